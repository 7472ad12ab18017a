"""What both of DER's trainers share: the reward of a step, and learning from routes of several steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from focalroute.core.records import F32
from focalroute.evaluate.presets.paper_rewards import der_bonus, der_reward
from focalroute.evaluate.presets.ppo import Learned, Ppo, categorical, improve, regress
from focalroute.learn.gae import gae

I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Terms(Protocol):
    """The numbers of the reward; see `focalroute.evaluate.presets.paper_rewards`."""

    @property
    def alpha(self) -> float:
        """The price of cost."""

    @property
    def beta(self) -> float:
        """The weight of the gain."""

    @property
    def threshold(self) -> float:
        """p_0."""

    @property
    def bonus(self) -> float:
        """For reaching it, and against missing it."""

    @property
    def level(self) -> bool:
        """Whether P itself is paid at every step."""


@dataclass(frozen=True, slots=True)
class Steps:
    """B routes of up to L steps, zeros after a route's end.

    Attributes:
        seen: (B, L, D) what the policy saw.
        offered: (B, L, N + 1) what it could do.
        chosen: (B, L) what it did; N: it stopped.
        taken: (B, L) a step, not padding.
        rewards: (B, L).
    """

    seen: F32
    offered: Bools
    chosen: I64
    taken: Bools
    rewards: F32


def step_rewards(
    terms: Terms, *, alive: Bools, asks: Bools, exhausted: Bools, before: F32 | None, after: F32, cost: F32
) -> F32:
    """The reward of one step of B routes, (B,); 0 of those that ended before.

    Args:
        alive: those under way.
        asks: those of them that ask somebody, and do not stop.
        exhausted: those of them for which it is the last step that there is.
        before: P of the answer before the step; None: it is the first.
        after: P of the answer after it.
        cost: of the step, relative to asking everybody.
    """
    earned = der_reward(after, before, cost, alpha=terms.alpha, beta=terms.beta, level=terms.level)
    over = der_bonus(after, exhausted, threshold=terms.threshold, bonus=terms.bonus)
    rewards = np.where(asks, earned, 0) + np.where(alive & (~asks | exhausted), over, 0)
    return rewards.astype(np.float32)


def learn_from(
    steps: Steps, policy: Learned, value: Learned, settings: Ppo, rng: np.random.Generator
) -> tuple[Learned, Learned]:
    """Policy and value after one update by these routes; as they were where nobody took a step."""
    taken = steps.taken
    if not taken.any():
        return policy, value
    seen, offered, chosen = steps.seen[taken], steps.offered[taken], steps.chosen[taken]
    before = np.zeros_like(steps.rewards)
    before[taken] = value(seen)[:, 0]
    advantages = gae(steps.rewards, before)
    improved = improve(
        policy,
        seen,
        lambda z, rows: categorical(z, offered[rows], chosen[rows]),
        advantages[taken],
        settings,
        rng,
    )
    return improved, regress(value, seen, (advantages + before)[taken][:, None], settings, rng)
