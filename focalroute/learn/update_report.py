"""The report of an update, in a module without the learner, which may run in another process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: The latest rewarded answers that an update learns from.
WINDOW = 1_000
#: How many of the latest answers are searched for them.
REACH = 4 * WINDOW

Status = Literal["published", "on trial", "dropped", "rolled back", "insufficient"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Another policy's value minus the serving one's, net of costs, in points: 1 is one more right answer in 100.

    Attributes:
        episodes: answers with feedback that were compared; each counts once.
        gain: the estimated difference.
        low: with 95 % probability the difference is not below this, however often it is checked.
        high: likewise, not above this.
        right: the gain in right answers alone, in points.
        cost: the additional cost of an answer, in % of asking every endpoint.
    """

    episodes: int
    gain: float
    low: float
    high: float
    right: float
    cost: float


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """Diagnostics of an update. Losses are means in nats, values in units of reward.

    Attributes:
        episodes: queries in the batch.
        decisions: sampled decisions, which the surrogate uses; without any, all of the Decider's figures are 0.
        policy_loss: minus the surrogate at the end. Advantages are normalised, so it cannot be compared across updates.
        approx_kl: mean of (rho - 1) - log rho at the end: how far the Decider moved; beyond ``target_kl`` it stopped.
        clip_fraction: share of decisions whose ratio rho ended beyond 1 +- eps; far over 0.3: too large a step.
        entropy: of a decision at the end, in nats, summed over its heads; near 0: it no longer explores.
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
        status: "on trial": a challenger decides a share of the asks, and there is no verdict yet; "published": it
            proved better, and serves; "dropped": it is unlikely to prove better; "rolled back": the previous version
            proved better than the one that replaced it, and serves again; "insufficient": too little to learn from.
        version: the version that is current now.
        parent: the version that was current before.
        challenger: the version that is on trial now, if any.
        episodes: how many answers with feedback it learned from; 0: it only judged.
        held_out: how many were held out to choose how far the Fusion moves.
        reason: the status in words.
        comparison: the gate's estimate; None if nothing was judged.
        diagnostics: of the learning; None if there was none.
    """

    status: Status
    version: int
    parent: int
    reason: str
    challenger: int | None = None
    episodes: int = 0
    held_out: int = 0
    comparison: Comparison | None = None
    diagnostics: Diagnostics | None = None
