"""The named slices of what the policies see. A bundle's manifest stores the layout it was made for.

Every number is finite, scaled to be about -1..1 and clipped to -4..4 ("evidence": to 0..8,
"calibrated": to -8..8). A layout is an ordered
mapping of slice name -> width; offsets follow from the order. What is expected or mean is taken from the window.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

Layout = Mapping[str, int]


#: `Observation.context`: what is the same for every endpoint.
CONTEXT: Layout = {
    "first": 1,  # 1 in round 1, else 0
    "round": 1,  # (round - 1) / 4
    "cost_weight": 1,  # log10(lambda), lambda within `COST_WEIGHT_RANGE`
    "budget_left": 1,  # share of this ask's cap that is left; 1 without a cap
    "log_pool": 1,  # ln(N) / 4: so that a policy may ask a number, not a share, of the pool
    "asked": 1,  # asked / N
    "replied": 1,  # usable replies / N
    "posterior": 4,  # the four largest fused probabilities, falling; 0 before any reply
    "margin": 1,  # first minus second of them
    "entropy": 1,  # entropy / ln(K); 0 before any reply
    "choices": 1,  # ln(K) / 4; 0 for a free-form question
    "level": 1,  # windowed accuracy of the pool as a whole, minus 1/2, times 2: how hard the queries are at present
}

#: A row of `Observation.endpoints`.
ENDPOINT: Layout = {
    "asked": 1,
    "replied": 1,
    "agrees": 1,  # +1 backs the leading fused candidate, -1 another one (of open texts: as far as not alike), 0 none
    "accuracy": 1,  # windowed accuracy, shrunk (see `pool_stats.rows_of`), minus the pool's level, times 4
    "relative_skill": 1,  # accuracy beside those asked the same queries, minus the mean over endpoints, times 4
    "seen": 1,  # n / (n + 20), n: the window's rows in which it is known or inferred whether it was right
    "similar": 1,  # its accuracy on queries of similar text, minus the pool's on them, times 4
    "signal": 1,  # how far apart its mass on right and on wrong choices is (see `calibration`), minus the pool's mean
    "price": 1,  # ln(expected cost / the pool's mean expected cost) / 4; 0 if unknown
    "cost_penalty": 1,  # lambda c / C, what asking it takes from the reward: c its expected cost, C that of asking all
    "log_cost_penalty": 1,  # log10(lambda c / C + 1e-4), at most 1
    "latency": 1,  # ln(mean latency / the pool's mean latency) / 4; 0 if unknown
    "focal": 1,  # its mean focal diversity over pairs with those asked; with nobody asked yet, with all others
}

#: `Evidence.members`: one candidate seen through one member.
MEMBER: Layout = {
    "present": 1,  # 1; 0 marks padding in a batch
    "vote": 1,  # 1 if this is its most probable candidate; of open texts how alike that one is (see `agreement`)
    "probability": 1,  # its mass on the candidate; the vote where it gave none
    "log_probability": 1,  # ln(max(mass, e^-30)) / 8; 0 where it gave none; of free-form samples half a sample or more
    "evidence": 1,  # vote times its naive Bayes weight ln((K - 1) a / (1 - a)), a = level + relative skill, K = 8
    # if open; the less, the more is known of its probabilities; of several free-form samples the share in place of
    # the vote
    "calibrated": 1,  # log-likelihood ratio by its probabilities (see `calibration`); 0 where it gave none
    "relative_skill": 1,  # as in ENDPOINT, and so the next
    "similar": 1,
    "level": 1,  # as in CONTEXT
    "length": 1,  # its completion tokens, standardised over its own replies, / 4; 0 if unknown
    "later": 1,  # 1 if it was asked in round 2 or later
}

#: `Evidence.candidates`.
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
    """Where each named slice lies.

    >>> slices({"first": 1, "posterior": 4})
    {'first': slice(0, 1, None), 'posterior': slice(1, 5, None)}
    """
    ends = list(accumulate(layout.values()))
    return {name: slice(end - size, end) for (name, size), end in zip(layout.items(), ends, strict=True)}
