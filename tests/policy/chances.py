"""The probability of a decision by its definition, to compare with what a sampled decision stores."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, log, log1p

from focalroute.core.records import Decision
from focalroute.policy.decider import _first_chances

__all__ = ["log_probability"]


def log_probability(probabilities: Sequence[float], decision: Decision) -> float:
    """The log-probability of a decision under these p (N,) instead of the decision's own; -inf if it is impossible."""
    heads, picked = decision.order, decision.picked
    first = _first_chances(probabilities, heads, decision.must_pick, decision.one)
    total, some = 0.0, False
    for head, at_first, could in zip(heads, first, decision.eligible, strict=True):
        if not could:
            continue
        chance = probabilities[head] if some else at_first
        if head in picked:
            total += log(chance)
            some = True
        elif chance < 1.0:
            total += log1p(-chance)
        else:
            return -inf
    return total
