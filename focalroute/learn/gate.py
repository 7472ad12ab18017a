"""Whether a new policy may take over: what it would have been worth on episodes that it has not learned from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from focalroute.learn.critic import values
from focalroute.learn.mappo import Learner
from focalroute.learn.offpolicy import (
    POINTS,
    corrections,
    effective_sample_size,
    interval,
    log_q,
    ratios,
    sampled_throughout,
    worth,
)
from focalroute.learn.trajectory import Batch

__all__ = ["ENOUGH", "MARGIN", "Comparison", "compare"]

#: An effective sample size below this says nothing.
ENOUGH = 50.0
#: Points of value that may be lost: a new policy is rejected if it surely loses more.
MARGIN = 1.0


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
    """Doubly robust, step by step (see `focalroute.learn.offpolicy.corrections`).

    V is the new critic's for both, so V(s_1) cancels, and the difference is taken episode by episode. The last step is
    the Fusion's: its reward is that of the candidate the policy would have answered with.
    """
    steps = held.steps
    whole = sampled_throughout(held)
    if not whole.any():
        return Comparison(0, 0.0, 0.0, 0.0, 0.0)
    value = values(new.critic, steps.states)
    u = worth(held.fusions, log_q(old.fusion, held.fusions))
    weights = [ratios(policy.decider, held.decisions, value.shape) for policy in (new, old)]
    totals = []
    for policy, ratio in zip((new, old), weights, strict=True):
        rewards = steps.rewards.astype(np.float64)
        answer = log_q(policy.fusion, held.fusions).argmax(axis=1)
        rewards[:, -1] = u[np.arange(len(u)), answer]
        totals.append(corrections(rewards, value, ratio, steps.taken))
    gain, low, high = interval(POINTS * (totals[0] - totals[1])[whole])
    return Comparison(int(whole.sum()), gain, low, high, effective_sample_size(weights[0][whole, -1]))
