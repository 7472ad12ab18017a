"""Estimates of what a policy is worth on answers of others: importance weights, and what goes with them.

rho_1:t is the product of an episode's ratios pi / mu up to decision t, mu the probability stored when it was decided.
"""

from __future__ import annotations

import numpy as np

from focalroute.core.records import F64
from focalroute.learn.losses import likelihood
from focalroute.learn.nets import DeciderNet, Floats, decider_pass
from focalroute.learn.trajectory import Bools, Decisions

_SURE = 1.96


def ratios(net: DeciderNet, decisions: Decisions, shape: tuple[int, ...]) -> F64:
    """rho_1:t (B, T); the last column, the Fusion's, is that of all decisions."""
    logits, _ = decider_pass(net, decisions.context, decisions.endpoints, decisions.ids)
    log_ratio = np.zeros(shape)
    log_ratio[decisions.episode, decisions.step] = likelihood(logits, decisions.heads).log_pi - decisions.log_mu
    found: F64 = np.exp(np.cumsum(log_ratio, axis=1))
    return found


def corrections(rewards: Floats, value: Floats, ratio: F64, taken: Bools) -> F64:
    """sum over t of rho_1:t (r_t + V(s_{t+1}) - V(s_t)), (B,): what doubly robust estimation adds to V(s_1).

    Jiang & Li 2016 (arXiv 1511.03722) with Q(s, a) taken to be V(s). V(s_1) plus this has the policy's value as its
    mean whatever V, as long as V was not fitted on the same episodes, and the less variance the better V.

    Args:
        rewards: (B, T).
        value: (B, T) V(s_t); what stands at padding does not matter.
        ratio: (B, T) rho_1:t.
        taken: (B, T) a step, not padding.
    """
    value = np.where(taken, value, 0).astype(np.float64)
    after = np.concatenate([value[:, 1:], np.zeros_like(value[:, :1])], axis=1)
    total: F64 = np.where(taken, ratio * (rewards + after - value), 0).sum(axis=1)
    return total


def effective_sample_size(weights: Floats) -> float:
    """(sum w)^2 / sum w^2: how many episodes of the policy's own these are worth."""
    return float(weights.sum() ** 2 / (weights**2).sum())


def interval(values: Floats) -> tuple[float, float, float]:
    """The mean of one value an episode, and the ends of its 95 % interval.

    By the normal approximation: each decision was sampled by itself, so what weighing adds is independent from episode
    to episode.
    """
    mean, half = float(values.mean()), _SURE * float(values.std()) / max(len(values) - 1, 1) ** 0.5
    return mean, mean - half, mean + half
