"""Turns logits into a decision (which endpoints to ask in this round, with its probability) and into a posterior.

Each endpoint has a Bernoulli head, p_i = clip(sigmoid(z_i), e/N, 1 - e/N) with e = 0.02, so that the policy itself
explores and every probability is bounded away from 0 and 1. Heads are visited in an order; one can be picked if it is
eligible given those picked before it. If at least one must be picked, the heads follow the same distribution
conditioned on that: as long as none is picked, the head at place i is picked with

    h_i = p_i / (1 - prod over j >= i of (1 - p_j)),    afterwards with h_i = p_i,

so the last one is certain if none was picked before it. Without the clip, this tends to a softmax choice of one as all
logits fall. With the clip all heads would reach the floor, and the choice would be uniform. So if the odds e^z of the
heads that could be picked sum to less than 1, all logits are raised before the clip until the odds sum to 1.

If exactly one must be picked, the heads follow their distribution conditioned on that: head i is picked with
probability proportional to its odds p_i / (1 - p_i). All logits are first shifted so that the odds sum to 1: this is
the softmax of the logits, with at least about e/N for each endpoint by the clip.

A decision's log-probability is the sum over eligible heads of a_i log h_i + (1 - a_i) log(1 - h_i), which is exact for
this rule and any budget.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from math import exp, log, log1p

from focalroute.core.records import F32, Decision

#: (endpoint, picked so far) -> whether it could be picked as well.
Eligible = Callable[[int, tuple[int, ...]], bool]

#: e: the expected number of endpoints that even a certain policy picks or leaves out at random.
EXPLORATION = 0.02


def decide(
    logits: F32,
    *,
    round: int,
    must_pick: bool,
    order: Iterable[int],
    eligible: Eligible,
    explore: bool,
    rng: random.Random,
    one: bool = False,
) -> Decision:
    """Decide which endpoints to ask now.

    Args:
        logits: z, float32 (N,).
        round: 1-based.
        must_pick: pick at least one (round 1; later, until one has answered).
        order: every endpoint's index, in the order in which to visit them.
        eligible: whether an endpoint could be picked in addition to those picked so far. Picking more must never make
            another eligible.
        explore: sample; otherwise pick every endpoint that is more likely than not or, if there is none and one must be
            picked, the likeliest.
        rng: used only with ``explore``.
        one: pick exactly one; without ``explore`` the likeliest.

    Returns:
        The decision. Its ``order`` holds the heads visited: the endpoints that are eligible while none is picked. If
        there are none, STOP is forced and ``picked`` is empty. ``log_mu`` is None for a forced STOP and for a greedy
        decision.
    """
    heads = tuple([head for head in order if eligible(head, ())])
    probabilities = pick_probabilities(logits, heads if must_pick or one else (), one=one)
    if one:
        eligible = _unless_picked
    log_mu = None
    if explore:
        first = _first_chances(probabilities, heads, must_pick, one)
        picked, was_eligible, log_mu = _sample(probabilities, heads, first, eligible, rng)
    else:
        picked, was_eligible = _greedy(logits.tolist(), heads, must_pick, eligible, one)
    return Decision(round, must_pick, heads, was_eligible, probabilities, picked, log_mu, one)


def _unless_picked(_: int, picked: tuple[int, ...]) -> bool:
    return not picked


def pick_probabilities(logits: F32, one_of: Sequence[int] = (), *, one: bool = False) -> tuple[float, ...]:
    """Return p of every endpoint: the sigmoid of its logit, kept e/N away from 0 and 1.

    Args:
        logits: z, float32 (N,).
        one_of: endpoints of which at least one must be picked: if their odds sum to less than 1, all logits are raised
            until they do.
        one: exactly one of them is picked: logits are also lowered if the odds sum to more.
    """
    if not len(logits):
        return ()
    least = EXPLORATION / len(logits)
    most, far = 1.0 - least, log((1.0 - least) / least)  # the sigmoid leaves [least, most] beyond +-far
    values = logits.tolist()
    log_sum = _log_sum([values[head] for head in one_of]) if one_of else 0.0
    shift = log_sum if one else min(log_sum, 0.0)
    return tuple([_sigmoid(z - shift, far, least, most) for z in values])


def _sigmoid(z: float, far: float, least: float, most: float) -> float:
    if z >= far:
        return most
    return least if z <= -far else 1.0 / (1.0 + exp(-z))


def _log_sum(logits: Sequence[float]) -> float:
    """Return ln(sum of e^z)."""
    most = max(logits)
    return most + log(sum([exp(z - most) for z in logits]))


def _sample(
    probabilities: Sequence[float],
    heads: Sequence[int],
    first: Sequence[float],
    eligible: Eligible,
    rng: random.Random,
) -> tuple[tuple[int, ...], tuple[bool, ...], float | None]:
    """Return the heads picked, whether each head was eligible when it was visited, and the log-probability.

    Args:
        first: h of each head while none is picked, see `_first_chances`.
    """
    picked: tuple[int, ...] = ()
    was_eligible, log_mu = [True] * len(heads), 0.0
    for place, head in enumerate(heads):
        chance = first[place]
        if picked:
            if not eligible(head, picked):
                was_eligible[place] = False
                continue
            chance = probabilities[head]
        if rng.random() < chance:
            picked += (head,)
            log_mu += log(chance)
        else:
            log_mu += log1p(-chance)
    return picked, tuple(was_eligible), log_mu if heads else None


def _greedy(
    logits: Sequence[float], heads: Sequence[int], must_pick: bool, eligible: Eligible, one: bool
) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    """Return the heads picked greedily, and whether each head was eligible when it was visited.

    This compares logits, as all probabilities beyond the clip are equal.
    """
    likely = set() if one else {head for head in heads if logits[head] > 0}
    if (must_pick or one) and heads and not likely:
        likely = {max(heads, key=logits.__getitem__)}
    picked: tuple[int, ...] = ()
    was_eligible = []
    for head in heads:
        free = not picked or eligible(head, picked)
        was_eligible.append(free)
        if free and head in likely:
            picked += (head,)
    return picked, tuple(was_eligible)


def _first_chances(probabilities: Sequence[float], heads: Sequence[int], must_pick: bool, one: bool) -> list[float]:
    """Return the probability h of picking each head, given that none before it was picked."""
    chances = [probabilities[head] for head in heads]
    if one:
        odds = [p / (1.0 - p) for p in chances]
        left = list(accumulate(reversed(odds)))[::-1]
        return [odd / rest for odd, rest in zip(odds, left, strict=True)]
    if must_pick and heads:
        none = 1.0 - chances[-1]  # the probability that none from this place on is picked
        chances[-1] = 1.0  # exact, despite rounding
        for place in range(len(chances) - 2, -1, -1):
            none *= 1.0 - chances[place]
            chances[place] /= 1.0 - none
    return chances


def posterior(logits: Sequence[float]) -> list[float]:
    """Return the softmax of the candidates' logits (K,). Plain Python takes a third of numpy's time for a few numbers.

    >>> posterior([1000.0, 1000.0, -1000.0])
    [0.5, 0.5, 0.0]
    """
    most = max(logits)
    weights = [exp(logit - most) for logit in logits]
    total = sum(weights)
    return [weight / total for weight in weights]
