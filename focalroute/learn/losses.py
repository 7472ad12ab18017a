"""What the Decider and the Fusion minimise, as losses and their derivatives by the logits.

The Fusion's loss is a likelihood, not the expected reward sum over c of q(c) u(c) that design and policy gradients
suggest: both are exact given a label, but maximising the expectation makes q as certain as it can be, which ruins the
calibration that the Decider's next round and the user's ``confidence`` rest on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from focalroute.learn.backward import Floats
from focalroute.learn.likelihood import Likelihood
from focalroute.learn.trajectory import Fusions

_FAR = -1e9
_LEAST = 1e-6


@dataclass(frozen=True, slots=True)
class SurrogateLoss:
    """The clipped surrogate of some decisions (Schulman et al. 2017, eq. 7).

    Attributes:
        loss: -mean of w min(rho A, clip(rho, 1 - eps, 1 + eps) A), the entropy bonus not counted.
        d_logits: (S, P) of the loss and the entropy bonus.
        approx_kl: mean of (rho - 1) - log rho, an estimate of KL(pi_old || pi) that is never negative.
        clip_fraction: share of decisions whose rho lies beyond 1 +- eps.
    """

    loss: float
    d_logits: NDArray[np.float64]
    approx_kl: float
    clip_fraction: float


@dataclass(frozen=True, slots=True)
class FusionLoss:
    """The likelihood of what was said of some answers.

    Attributes:
        loss: mean over the episodes that tell something; 0 if none does. The KL penalty is not counted.
        d_logits: (B, K) of the loss and the penalty.
        kl: mean of KL(q_old || q).
    """

    loss: float
    d_logits: NDArray[np.float64]
    kl: float


def surrogate_loss(
    law: Likelihood, old_log_pi: Floats, weights: Floats, advantages: Floats, *, clip: float, entropy: float
) -> SurrogateLoss:
    """The surrogate, with one joint ratio rho = pi / pi_old for each decision, and an entropy bonus.

    Args:
        law: the decisions' law now.
        old_log_pi: (S,) at the start of the update.
        weights: (S,) w, how far the policy at the start was from the one that decided; without gradient.
        advantages: (S,) A.
        clip: eps.
        entropy: weight of the bonus.
    """
    log_ratio = law.log_pi - old_log_pi
    ratio = np.exp(log_ratio)
    bounded = np.clip(ratio, 1 - clip, 1 + clip)
    unclipped = ratio * advantages <= bounded * advantages
    d_log_pi = np.where(unclipped, weights * ratio * advantages, 0)
    d_logits = d_log_pi[:, None] * law.d_log_pi + entropy * law.d_entropy
    return SurrogateLoss(
        loss=-float(np.mean(weights * np.minimum(ratio * advantages, bounded * advantages))),
        d_logits=-d_logits / len(ratio),
        approx_kl=float(np.mean(ratio - 1 - log_ratio)),
        clip_fraction=float(np.mean(np.abs(ratio - 1) > clip)),
    )


def log_posterior(logits: Floats, offered: NDArray[np.bool_]) -> NDArray[np.float64]:
    """log q (B, K) over the candidates offered; very small elsewhere."""
    masked = np.where(offered, logits.astype(np.float64), _FAR)
    masked -= masked.max(axis=1, keepdims=True)
    posterior: NDArray[np.float64] = masked - np.log(np.exp(masked).sum(axis=1, keepdims=True))
    return posterior


def fusion_loss(logits: Floats, fusions: Fusions, rows: NDArray[Any], old: Floats, *, penalty: float) -> FusionLoss:
    """The negative log-likelihood of the feedback, and ``penalty`` times KL(q_old || q).

    From a label: -log q(right). From a bare reward on answer a, with y = (u + 1) / 2: -y log q(a) - (1 - y) log(1 -
    q(a)). A label that no candidate has tells nothing.

    Args:
        logits: (B, K) of the episodes ``rows``.
        fusions: all episodes.
        rows: which of them.
        old: (B, K) log q_old of them.
        penalty: weight of the KL.
    """
    offered = fusions.offered[rows]
    log_q = log_posterior(logits, offered)
    q = np.exp(log_q)
    each = np.arange(len(rows))
    losses, chosen, y, told = _said(log_q, fusions, rows)
    at = np.zeros_like(q)
    at[each, chosen] = 1
    q_at = q[each, chosen]
    by_log_q = np.where(told, -y + (1 - y) * q_at / np.maximum(1 - q_at, _LEAST), 0)
    count = max(int(told.sum()), 1)
    was = np.exp(old)
    d_logits = by_log_q[:, None] * (at - q) / count + penalty * (q - was) / len(rows)
    return FusionLoss(
        loss=float(losses.sum() / count),
        d_logits=np.where(offered, d_logits, 0),
        kl=float(np.where(offered, was * (old - log_q), 0).sum() / len(rows)),
    )


def unlikeliness(log_q: Floats, fusions: Fusions) -> NDArray[np.float64]:
    """(B,) the negative log-likelihood of what was said of each answer, see `fusion_loss`; 0 if that is nothing."""
    return _said(log_q, fusions, np.arange(len(log_q)))[0]


def _said(
    log_q: Floats, fusions: Fusions, rows: NDArray[Any]
) -> tuple[NDArray[np.float64], NDArray[Any], NDArray[Any], NDArray[np.bool_]]:
    """Of each row its loss, the candidate that something is said of, y, and whether that tells anything."""
    labelled, each = fusions.labelled[rows], np.arange(len(rows))
    target = np.where(labelled, fusions.right[rows], fusions.answered[rows])
    chosen, told = np.maximum(target, 0), target >= 0
    y = np.where(labelled, 1.0, (fusions.reward[rows] + 1) / 2)
    log_at = log_q[each, chosen]
    losses = -y * log_at - (1 - y) * np.log(np.maximum(1 - np.exp(log_at), _LEAST))
    return np.where(told, losses, 0.0), chosen, y, told
