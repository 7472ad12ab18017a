"""Generalised advantage estimation (Schulman et al. 2016, arXiv 1506.02438) within episodes."""

from __future__ import annotations

import numpy as np

from focalroute.learn.backward import Floats

#: Nothing is discounted inside an episode, which is one query.
GAMMA = 1.0
GAE_LAMBDA = 0.95


def gae(rewards: Floats, values: Floats, *, gamma: float = GAMMA, lam: float = GAE_LAMBDA) -> Floats:
    """Advantages A (B, T) of ``rewards`` (B, T) and ``values`` (B, T) of the states before each step.

    A_t = sum over l >= 0 of (gamma lam)^l delta_{t+l} with delta_t = r_t + gamma V_{t+1} - V_t (their eqs. 11, 16),
    V = 0 after the last column. Shorter episodes are padded on the left, where nothing flows back from. A + values is
    the return the critic learns.
    """
    advantages = np.zeros_like(values)
    following = np.zeros_like(values[:, 0])
    ahead = np.zeros_like(following)
    for t in range(values.shape[1] - 1, -1, -1):
        ahead = rewards[:, t] + gamma * following - values[:, t] + gamma * lam * ahead
        advantages[:, t] = ahead
        following = values[:, t]
    return advantages
