"""V(s) of a policy from episodes of others, fitted by least squares on parts that an episode is not in (cross-fitting).

One linear function for each kind of step: the first decision, later ones, the Fusion's. An error of V costs precision,
never correctness, so that a fit in closed form, with nothing to tune and always the same, is what is wanted here.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from focalroute.learn.trajectory import Steps

#: An episode's V is fitted on the other parts.
PARTS = 5

_RIDGE = 10.0  # as if so many episodes had shown no effect of a feature

F64 = NDArray[np.float64]


def cross_fitted(steps: Steps, rewards: F64, ratio: F64, part: NDArray[np.int64]) -> F64:
    """V at every step, (measure, B, T); what stands at padding means nothing.

    What followed a step is weighted by the ratios of the decisions from there on, so that V is the policy's own and
    not that of whoever decided.

    Args:
        steps: what was seen.
        rewards: (measure, B, T).
        ratio: (B, T) rho_1:t.
        part: (B,) in 0..`PARTS` - 1.
    """
    returns = np.cumsum(rewards[:, :, ::-1], axis=2)[:, :, ::-1]
    before = np.concatenate([np.ones_like(ratio[:, :1]), ratio[:, :-1]], axis=1)
    weights = ratio[:, -1:] / before
    value = np.zeros_like(rewards)
    for kind in _kinds(steps.taken):
        for number in range(PARTS):
            own = kind & (part == number)[:, None]
            rest = kind & (part != number)[:, None]
            if own.any() and rest.any():
                value[:, own] = _fitted(
                    steps.states[rest].astype(np.float64), returns[:, rest], weights[rest], steps.states[own]
                )
    return value


def _kinds(taken: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], ...]:
    """First decisions, later ones, Fusion steps: (B, T) each."""
    fusion = np.zeros_like(taken)
    fusion[:, -1] = True
    first = taken & (np.cumsum(taken, axis=1) == 1) & ~fusion
    return first, taken & ~first & ~fusion, fusion


def _fitted(states: F64, returns: F64, weights: F64, wanted: NDArray[np.float32]) -> F64:
    """Weighted ridge regression of ``returns`` (measure, n) on ``states`` (n, Ds), at the states ``wanted``."""
    weights = weights / weights.mean()
    total = weights.sum()
    centre, level = weights @ states / total, returns @ weights / total
    x = (states - centre) * weights[:, None]
    gram = x.T @ (states - centre) + _RIDGE * np.eye(states.shape[1])
    slopes = np.linalg.solve(gram, x.T @ (returns - level[:, None]).T)
    found: F64 = ((wanted - centre) @ slopes + level).T
    return found
