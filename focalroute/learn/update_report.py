"""The input and the report of an update, apart from the learner, which may run in another process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: An effective sample size below this says nothing.
ENOUGH = 50.0
#: Points of value that may be lost: a new policy is rejected if it surely loses more.
MARGIN = 1.0
#: The latest rewarded answers that an update reads.
WINDOW = 1_000
#: How many of the latest answers it looks at to find them.
REACH = 4 * WINDOW

Status = Literal["published", "rejected", "insufficient"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The new policy's value minus the old one's, in points: 1 is one more right answer in 100, costs counted too.

    Attributes:
        episodes: those that count: where the Deciders differ, only those whose every decision was sampled, since greedy
            ones have no probability to weigh by; where only the Fusions differ, all.
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


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """How an update went. Losses are means in nats, values in units of reward.

    Attributes:
        episodes: queries in the batch.
        decisions: sampled decisions, which the surrogate is over; all of the Decider's figures are 0 if there are none.
        policy_loss: the surrogate at the end, its sign turned. Advantages are normalised: compare it with nothing else.
        approx_kl: mean of (rho - 1) - log rho at the end: how far the Decider went; beyond ``target_kl`` it stopped.
        clip_fraction: share of decisions whose ratio rho ended beyond 1 +- eps; far over 0.3: too large a step.
        entropy: of a decision at the end, in nats, added up over its heads; falling to 0: it no longer explores.
        effective_sample_size: (sum w)^2 / sum w^2 of w = min(pi_old / mu, 2): how many fresh decisions these are worth.
        value_loss: mean squared error / 2 of the critic before the update.
        explained_variance: 1 - Var(return - V) / Var(return) before the update: 1 perfect, 0 no better than a constant,
            below 0 worse.
        fusion_loss: negative log-likelihood of the feedback under the Fusion before the update.
        fusion_loss_after: likewise after it.
        fusion_kl: mean of KL(q_old || q) at the end.
    """

    episodes: int
    decisions: int
    policy_loss: float
    approx_kl: float
    clip_fraction: float
    entropy: float
    effective_sample_size: float
    value_loss: float
    explained_variance: float
    fusion_loss: float
    fusion_loss_after: float
    fusion_kl: float


@dataclass(frozen=True, slots=True)
class UpdateReport:
    """The result of an update.

    Attributes:
        status: "published"; "rejected": surely worse than the old policy; "insufficient": too little evidence to tell.
            In both of the latter cases the old policy stays.
        version: the version that is current now.
        parent: the version it started from.
        episodes: how many it learned from.
        held_out: how many were kept for the gate.
        reason: the status in words.
        comparison: the gate's estimate; None if there was nothing to learn from.
        diagnostics: how learning went; None likewise.
    """

    status: Status
    version: int
    parent: int
    episodes: int
    held_out: int
    reason: str
    comparison: Comparison | None = None
    diagnostics: Diagnostics | None = None
