"""Likelihoods of many decisions at once, and the losses of Decider and Fusion with their derivatives by the logits.

The likelihood is that of `focalroute.policy.decider`, for arrays. Heads are in visiting order. If at least one must be
picked, ln(sum of e^z) over the heads visited is subtracted from z, if it is negative. Since every head visited is
eligible while none is picked, the probabilities h of "at least one" telescope: with p the heads' own probabilities

    log pi(a) = sum over eligible heads of a_i log p_i + (1 - a_i) log(1 - p_i)
                - [one must be picked] log(1 - prod over all heads of (1 - p_j)).

If exactly one must be picked, ln(sum of e^z) is subtracted whatever its sign, and with o = p / (1 - p)

    log pi(a) = log o_i - log sum over all heads of o_j,  i the one picked.

The Fusion's loss is a likelihood, not the expected reward, the sum over c of q(c) u(c), that a policy gradient would
suggest. Both are exact given a label, but maximising the expectation makes q as certain as possible, which ruins the
calibration that the Decider's next round and the user's ``confidence`` need.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from focalroute.core.records import Bools
from focalroute.learn.nets import Floats
from focalroute.learn.trajectory import Fusions, HeadBatch
from focalroute.policy.decider import EXPLORATION

_FAR = -1e9
_LEAST = 1e-6


@dataclass(frozen=True, slots=True)
class Likelihood:
    """The distribution of S decisions under some logits z.

    Attributes:
        log_pi: (S,) log-probability of what was picked.
        d_log_pi: (S, P) its derivative by z.
        entropy: (S,) sum of the eligible heads' Bernoulli entropies, in nats, ignoring that one must be picked. If
            exactly one must be picked, the entropy of that choice.
        d_entropy: (S, P) its derivative by z.

    The derivatives ignore the clip: they are those of the sigmoid at the clipped p, so a_i - p_i for a free head. The
    exact ones would be zero beyond the clip, and a head at the floor would never recover, however good its rare picks.
    """

    log_pi: Floats
    d_log_pi: Floats
    entropy: Floats
    d_entropy: Floats


def likelihood(logits: Floats, heads: HeadBatch) -> Likelihood:
    """Return the distribution of the decisions under ``logits`` (S, P), in float64."""
    if heads.one is None or not heads.one.any():
        return _of_several(logits, heads)
    one, several = _of_one(logits, heads), _of_several(logits, heads)
    rows = heads.one[:, None]
    return Likelihood(
        log_pi=np.where(heads.one, one.log_pi, several.log_pi),
        d_log_pi=np.where(rows, one.d_log_pi, several.d_log_pi),
        entropy=np.where(heads.one, one.entropy, several.entropy),
        d_entropy=np.where(rows, one.d_entropy, several.d_entropy),
    )


def _of_one(logits: Floats, heads: HeadBatch) -> Likelihood:
    """Return the distribution if exactly one head is picked: the softmax of the clipped logits of those visited."""
    far = np.log(heads.pool / EXPLORATION - 1)[:, None]
    z = np.clip(logits.astype(np.float64) - _log_odds(logits.astype(np.float64), heads.visited), -far, far)
    log_p = np.where(heads.visited, z - _log_odds(z, heads.visited), 0)
    p = np.where(heads.visited, np.exp(log_p), 0)
    entropy = -(p * log_p).sum(axis=1)
    return Likelihood(
        log_pi=np.where(heads.picked, log_p, 0).sum(axis=1),
        d_log_pi=heads.picked - p,
        entropy=entropy,
        d_entropy=-p * (log_p + entropy[:, None]),
    )


def _log_odds(logits: Floats, visited: Bools) -> Floats:
    """Return ln(sum of e^z) over the heads visited, (S, 1); 0 if there are none."""
    log_sum = np.logaddexp.reduce(logits, axis=1, where=visited, initial=-np.inf)
    return np.where(visited.any(axis=1), log_sum, 0)[:, None]


def _of_several(logits: Floats, heads: HeadBatch) -> Likelihood:
    """Return the distribution if any number of heads is picked, at least one where ``must_pick``."""
    least = (EXPLORATION / heads.pool)[:, None]
    far = np.log((1 - least) / least)
    z = np.clip(raised(logits.astype(np.float64), heads.visited, heads.must_pick), -far, far)
    odds = np.exp(z)
    p = odds / (1 + odds)
    log_out = -np.log1p(odds)  # log(1 - p); log p is this + z
    chosen = np.where(heads.eligible, heads.picked * z + log_out, 0).sum(axis=1)
    log_none = np.where(heads.visited, log_out, 0).sum(axis=1)
    any_picked = np.where(heads.must_pick, -np.expm1(log_none), 1)
    given_any = np.where(heads.must_pick, np.exp(log_none) / any_picked, 0)[:, None]  # from - log(any_picked)
    entropy = np.where(heads.eligible, -p * z - log_out, 0)
    d_log_pi = np.where(heads.eligible, heads.picked - p, 0) - np.where(heads.visited, given_any * p, 0)
    d_entropy = np.where(heads.eligible, -z * p * (1 - p), 0)
    share = _share(logits, heads)
    return Likelihood(
        log_pi=chosen - np.log(any_picked),
        d_log_pi=_by_logits(d_log_pi, share),
        entropy=entropy.sum(axis=1),
        d_entropy=_by_logits(d_entropy, share),
    )


def raised(logits: Floats, visited: Bools, must_pick: Bools) -> Floats:
    """Return logits (S, P), raised where one must be picked until the odds of the heads visited sum to 1."""
    return np.asarray(logits - np.minimum(_log_sum(logits, visited, must_pick), 0), logits.dtype)


def _log_sum(logits: Floats, visited: Bools, must_pick: Bools) -> Floats:
    """Return ln(sum of e^z) over the heads visited, (S, 1); 0 where none need be picked."""
    return np.where(must_pick[:, None], _log_odds(logits, visited), 0)


def _share(logits: Floats, heads: HeadBatch) -> Floats:
    """Return each logit's share of the odds, (S, P), by which it lowers all raised logits; 0 if none was raised."""
    log_sum = _log_sum(logits, heads.visited, heads.must_pick)
    return np.exp(np.where(heads.visited & (log_sum < 0), logits - log_sum, -np.inf))


def _by_logits(gradient: Floats, share: Floats) -> Floats:
    """Turn derivatives by the raised logits into derivatives by the logits, on which the raise depends, too."""
    by_logits: Floats = gradient - share * gradient.sum(axis=1, keepdims=True)
    return by_logits


@dataclass(frozen=True, slots=True)
class SurrogateLoss:
    """The clipped surrogate of some decisions (Schulman et al. 2017, eq. 7).

    Attributes:
        loss: -mean of w min(rho A, clip(rho, 1 - eps, 1 + eps) A), without the entropy bonus.
        d_logits: (S, P) derivative of the loss with the entropy bonus.
        approx_kl: mean of (rho - 1) - log rho, an estimate of KL(pi_old || pi) that is never negative.
        clip_fraction: share of decisions whose rho is outside 1 +- eps.
    """

    loss: float
    d_logits: NDArray[np.float64]
    approx_kl: float
    clip_fraction: float


@dataclass(frozen=True, slots=True)
class FusionLoss:
    """The negative log-likelihood of the feedback on some answers.

    Attributes:
        loss: mean over the episodes with informative feedback, without the KL penalty; 0 if there are none.
        d_logits: (B, K) derivative of the loss with the penalty.
        kl: mean of KL(q_old || q).
    """

    loss: float
    d_logits: NDArray[np.float64]
    kl: float


def surrogate_loss(
    distribution: Likelihood, old_log_pi: Floats, weights: Floats, advantages: Floats, *, clip: float, entropy: float
) -> SurrogateLoss:
    """Return the surrogate, with one joint ratio rho = pi / pi_old per decision, and an entropy bonus.

    Args:
        distribution: of the decisions under the present policy.
        old_log_pi: (S,) at the start of the update.
        weights: (S,) w, the bounded ratio of the policy at the start to the one that decided; constant.
        advantages: (S,) A.
        clip: eps.
        entropy: weight of the bonus.
    """
    log_ratio = distribution.log_pi - old_log_pi
    ratio = np.exp(log_ratio)
    bounded = np.clip(ratio, 1 - clip, 1 + clip)
    unclipped = ratio * advantages <= bounded * advantages
    d_log_pi = np.where(unclipped, weights * ratio * advantages, 0)
    d_logits = d_log_pi[:, None] * distribution.d_log_pi + entropy * distribution.d_entropy
    return SurrogateLoss(
        loss=-float(np.mean(weights * np.minimum(ratio * advantages, bounded * advantages))),
        d_logits=-d_logits / len(ratio),
        approx_kl=float(np.mean(ratio - 1 - log_ratio)),
        clip_fraction=float(np.mean(np.abs(ratio - 1) > clip)),
    )


def log_posterior(logits: Floats, offered: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return log q (B, K), the softmax over the candidates offered; about -1e9 elsewhere."""
    masked = np.where(offered, logits.astype(np.float64), _FAR)
    masked -= masked.max(axis=1, keepdims=True)
    posterior: NDArray[np.float64] = masked - np.log(np.exp(masked).sum(axis=1, keepdims=True))
    return posterior


def fusion_loss(logits: Floats, fusions: Fusions, rows: NDArray[Any], old: Floats, *, penalty: float) -> FusionLoss:
    """Return the negative log-likelihood of the feedback, and ``penalty`` times KL(q_old || q).

    From a label: -log q(right). From a bare reward on answer a, with y = (u + 1) / 2: -y log q(a) - (1 - y) log(1 -
    q(a)). A label that is not among the candidates is not counted.

    Args:
        logits: (B, K) of the episodes ``rows``.
        fusions: all episodes.
        rows: (B,) indices of episodes.
        old: (B, K) log q_old of these.
        penalty: weight of the KL.
    """
    offered = fusions.offered[rows]
    log_q = log_posterior(logits, offered)
    q = np.exp(log_q)
    each = np.arange(len(rows))
    losses, judged, y, informative = _feedback_losses(log_q, fusions, rows)
    is_judged = np.zeros_like(q)
    is_judged[each, judged] = 1
    q_judged = q[each, judged]
    by_log_q = np.where(informative, -y + (1 - y) * q_judged / np.maximum(1 - q_judged, _LEAST), 0)
    count = max(int(informative.sum()), 1)
    q_old = np.exp(old)
    d_logits = by_log_q[:, None] * (is_judged - q) / count + penalty * (q - q_old) / len(rows)
    return FusionLoss(
        loss=float(losses.sum() / count),
        d_logits=np.where(offered, d_logits, 0),
        kl=float(np.where(offered, q_old * (old - log_q), 0).sum() / len(rows)),
    )


def feedback_losses(log_q: Floats, fusions: Fusions) -> NDArray[np.float64]:
    """Return the negative log-likelihood of each answer's feedback, (B,), see `fusion_loss`; 0 if uninformative."""
    return _feedback_losses(log_q, fusions, np.arange(len(log_q)))[0]


def _feedback_losses(
    log_q: Floats, fusions: Fusions, rows: NDArray[Any]
) -> tuple[NDArray[np.float64], NDArray[Any], NDArray[Any], NDArray[np.bool_]]:
    """Return for each row its loss, the candidate that the feedback judges, y, and whether it is informative."""
    labelled, each = fusions.labelled[rows], np.arange(len(rows))
    target = np.where(labelled, fusions.right[rows], fusions.answered[rows])
    judged, informative = np.maximum(target, 0), target >= 0
    y = np.where(labelled, 1.0, (fusions.reward[rows] + 1) / 2)
    log_q_judged = log_q[each, judged]
    losses = -y * log_q_judged - (1 - y) * np.log(np.maximum(1 - np.exp(log_q_judged), _LEAST))
    return np.where(informative, losses, 0.0), judged, y, informative


def standardised(advantages: Floats) -> NDArray[np.float64]:
    """Return advantages of mean 0 and standard deviation 1; zeros if all are equal."""
    centred: NDArray[np.float64] = advantages.astype(np.float64) - advantages.mean()
    deviation = float(centred.std())
    if deviation <= 1e-9:
        return np.zeros_like(centred)
    centred /= deviation
    return centred
