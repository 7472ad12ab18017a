"""The named slices of the policies' input. A bundle's manifest stores the layout it was made for.

Every number is finite, scaled to about -1..1 and clipped to -4..4 ("evidence": to 0..8, "calibrated": to -8..8). A
layout is an ordered mapping of slice name -> width; offsets follow from the order. Means and expectations are taken
from the window.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

Layout = Mapping[str, int]


#: `Observation.context`: features that are the same for every endpoint.
CONTEXT: Layout = {
    "first": 1,  # 1 in round 1, else 0
    "round": 1,  # (round - 1) / 4
    "cost_weight": 1,  # log10(lambda), lambda within `COST_WEIGHT_RANGE`
    "budget_left": 1,  # share of this ask's cap that is left; 1 without a cap
    "log_pool": 1,  # ln(N) / 4, so that a policy can learn to ask a number of endpoints, not a share of the pool
    "asked": 1,  # asked / N
    "replied": 1,  # usable replies / N
    "posterior": 4,  # the four largest fused probabilities, falling; 0 before any reply
    "margin": 1,  # the largest minus the second largest
    "entropy": 1,  # entropy / ln(K); 0 before any reply
    "choices": 1,  # ln(K) / 4; 0 for a free-form question
    "level": 1,  # windowed accuracy of the pool as a whole, minus 1/2, times 2: how hard the queries are at present
}

#: A row of `Observation.endpoints`: one endpoint.
ENDPOINT: Layout = {
    "asked": 1,
    "replied": 1,
    "agrees": 1,  # +1 backs the leading candidate, -1 another (of open texts: 2 similarity to the leader - 1), 0 none
    "accuracy": 1,  # recent accuracy, shrunk, minus the pool's level (see `accuracy.averaged`), times 4
    "relative_skill": 1,  # accuracy against others on the same queries (see `pool_stats.relative_skills`), times 4
    "seen": 1,  # n / (n + 20), n: the window's rows in which it is known or inferred whether it was right
    "similar": 1,  # its accuracy on queries of similar text, minus the pool's on them, times 4
    "signal": 1,  # how well its mass separates right from wrong choices (see `calibration`), minus the pool's mean
    "price": 1,  # ln(expected cost / the pool's mean expected cost) / 4; 0 if unknown
    "cost_penalty": 1,  # lambda c / C, subtracted from the reward if asked: c its expected cost, C that of asking all
    "log_cost_penalty": 1,  # log10(lambda c / C + 1e-4), at most 1
    "latency": 1,  # ln(mean latency / the pool's mean latency) / 4; 0 if unknown
    "focal": 1,  # its mean focal diversity over pairs with those asked; before any is asked, with all others
}

#: `Evidence.members`: one member's evidence on one candidate.
MEMBER: Layout = {
    "present": 1,  # 1; 0 marks padding in a batch
    "vote": 1,  # 1 if this is its most probable candidate, else 0; of open texts, similarity to it (see `agreement`)
    "probability": 1,  # its mass on the candidate; the vote where it gave none
    "log_probability": 1,  # ln(max(mass, e^-30)) / 8, of free-form samples at least half a sample; 0 where it gave none
    # vote (of several free-form samples: share) times its naive Bayes weight ln((K - 1) a / (1 - a)), a = level +
    # relative skill, K = 8 if free-form; times 1 - trust (see `calibration`) if its probabilities are calibrated
    "evidence": 1,
    # log-likelihood ratio by its probabilities (see `calibration`); where it gave none, by how it confuses choices that
    # recur (see `confusion`), beyond "evidence"; 0 where nothing is known
    "calibrated": 1,
    "relative_skill": 1,  # as in ENDPOINT, like the next
    "similar": 1,
    "level": 1,  # as in CONTEXT
    "length": 1,  # its completion tokens, standardised over its own replies, / 4; 0 if unknown
    "later": 1,  # 1 if it was asked in round 2 or later
}

#: A row of `Evidence.candidates`: one candidate.
CANDIDATE: Layout = {
    "votes": 1,  # votes / m
    "probability": 1,  # mean mass over members
    "choices": 1,  # ln(K) / 4
    "replied": 1,  # m / N
}

LAYOUT: Mapping[str, Layout] = {"context": CONTEXT, "endpoint": ENDPOINT, "member": MEMBER, "candidate": CANDIDATE}


def width(layout: Layout) -> int:
    """Number of columns of a layout."""
    return sum(layout.values())


def slices(layout: Layout) -> dict[str, slice]:
    """Return the slice of each name.

    >>> slices({"first": 1, "posterior": 4})
    {'first': slice(0, 1, None), 'posterior': slice(1, 5, None)}
    """
    ends = list(accumulate(layout.values()))
    return {name: slice(end - size, end) for (name, size), end in zip(layout.items(), ends, strict=True)}
