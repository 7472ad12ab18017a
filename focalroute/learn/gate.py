"""Whether a new policy may take over: what it would have been worth on episodes that it has not learned from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from focalroute.learn.backward import Floats, decider_pass
from focalroute.learn.critic import values
from focalroute.learn.likelihood import Bools, likelihood
from focalroute.learn.losses import log_posterior
from focalroute.learn.mappo import Learner
from focalroute.learn.nets import DeciderNet, FusionNet
from focalroute.learn.trajectory import Batch, Decisions, Fusions

__all__ = ["ENOUGH", "MARGIN", "Comparison", "compare"]

#: An effective sample size below this says nothing.
ENOUGH = 50.0
#: Points of value that may be lost: a new policy is rejected if it surely loses more.
MARGIN = 1.0

_SURE = 1.96
_POINTS = 50.0  # u runs from -1 to 1, so that a point, 1 % of right answers, is 0.02


@dataclass(frozen=True, slots=True)
class Comparison:
    """The new policy's value minus the old one's, in points: 1 is one more right answer in 100, costs counted too.

    Attributes:
        episodes: those whose every decision was sampled; greedy ones have no probability to weigh by.
        gain: the estimate.
        low: lower end of its 95 % interval (normal approximation).
        high: upper end.
        effective_sample_size: (sum rho)^2 / sum rho^2 of the episodes' ratios rho = pi_new / mu.
    """

    episodes: int
    gain: float
    low: float
    high: float
    effective_sample_size: float

    @property
    def enough(self) -> bool:
        """Whether there is evidence at all."""
        return self.effective_sample_size >= ENOUGH

    @property
    def worse(self) -> bool:
        """Whether the new one is surely worse."""
        return self.high < -MARGIN


def compare(old: Learner, new: Learner, held: Batch) -> Comparison:
    """Doubly robust, step by step (Jiang & Li 2016, arXiv 1511.03722, with Q(s, a) taken to be V(s)).

    With rho_1:t the product of an episode's ratios pi / mu up to decision t, a policy is worth the mean of

        V(s_1) + sum over t of rho_1:t (r_t + V(s_{t+1}) - V(s_t)),

    unbiased whatever V, and the more precise the better V. The last step is the Fusion's, which is deterministic: its
    reward is that of the candidate the policy would have answered with. V is the new critic's for both, and the
    difference is taken episode by episode. What another Fusion would have shown the Decider between rounds is left out.
    """
    steps = held.steps
    whole = _sampled_throughout(held)
    if not whole.any():
        return Comparison(0, 0.0, 0.0, 0.0, 0.0)
    value = np.where(steps.taken, values(new.critic, steps.states), 0).astype(np.float64)
    after = np.concatenate([value[:, 1:], np.zeros_like(value[:, :1])], axis=1)
    worth = _worth(held.fusions, _log_q(old.fusion, held.fusions))
    ratios = [_ratios(policy.decider, held.decisions, value.shape) for policy in (new, old)]
    totals = []
    for policy, ratio in zip((new, old), ratios, strict=True):
        rewards = steps.rewards.astype(np.float64)
        answer = _log_q(policy.fusion, held.fusions).argmax(axis=1)
        rewards[:, -1] = worth[np.arange(len(worth)), answer]
        totals.append(np.where(steps.taken, ratio * (rewards + after - value), 0).sum(axis=1))
    gains = _POINTS * (totals[0] - totals[1])[whole]
    half = _SURE * float(gains.std()) / max(len(gains) - 1, 1) ** 0.5
    gain, weights = float(gains.mean()), ratios[0][whole, -1]
    size = float(weights.sum() ** 2 / (weights**2).sum())
    return Comparison(len(gains), gain, gain - half, gain + half, size)


def _sampled_throughout(held: Batch) -> Bools:
    sampled = np.bincount(held.decisions.episode, minlength=len(held.steps.taken))
    whole: Bools = sampled == held.steps.taken.sum(axis=1) - 1
    return whole


def _ratios(net: DeciderNet, decisions: Decisions, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """rho_1:t (B, T); the last column, the Fusion's, is that of all decisions."""
    logits, _ = decider_pass(net, decisions.context, decisions.endpoints, decisions.ids)
    log_ratio = np.zeros(shape)
    log_ratio[decisions.episode, decisions.step] = likelihood(logits, decisions.heads).log_pi - decisions.log_mu
    ratios: NDArray[np.float64] = np.exp(np.cumsum(log_ratio, axis=1))
    return ratios


def _log_q(net: FusionNet, fusions: Fusions) -> NDArray[np.float64]:
    return log_posterior(net.forward(fusions.members, fusions.candidates, fusions.ids), fusions.offered)


def _worth(fusions: Fusions, log_q: Floats) -> NDArray[np.float64]:
    """u (B, K), had this candidate been the answer.

    Exact with a label. From a bare reward on answer a the others are right with probability
    (1 - y) q(c) / (1 - q(a)), y = (u + 1) / 2 and q the old policy's: exact too after a full 1, and of two choices.
    """
    q, each = np.exp(log_q), np.arange(len(log_q))
    y = (fusions.reward.astype(np.float64) + 1) / 2
    rest = np.maximum(1 - q[each, fusions.answered], 1e-9)
    right = ((1 - y) / rest)[:, None] * q
    right[each, fusions.answered] = y
    exact = np.arange(q.shape[1]) == fusions.right[:, None]
    worth: NDArray[np.float64] = 2 * np.where(fusions.labelled[:, None], exact, np.minimum(right, 1)) - 1
    return worth
