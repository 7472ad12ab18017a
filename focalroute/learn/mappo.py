"""One MAPPO update (Yu et al. 2022, arXiv 2103.01955) of Decider, Fusion and central critic from a batch of episodes.

Read `update` from top to bottom. Arguments are not modified; the same batch and random generator give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from focalroute.learn.adam import Moments, fit_minibatches
from focalroute.learn.backend import NUMPY, Backend
from focalroute.learn.gate import log_q
from focalroute.learn.losses import (
    Likelihood,
    SurrogateLoss,
    feedback_losses,
    fusion_loss,
    likelihood,
    log_posterior,
    standardised,
    surrogate_loss,
)
from focalroute.learn.nets import CriticNet, DeciderNet, Floats, FusionNet, Gradients, between, parameters, values
from focalroute.learn.trajectory import Batch, Decisions, Fusions, StepBatch
from focalroute.learn.update_report import Diagnostics

_Policy = TypeVar("_Policy", DeciderNet, FusionNet)
_Rows = NDArray[Any]
_Figures = dict[str, float]

_HALVINGS, _SLACK = 8, 1.5  # see `_within_target`
_LIKELY = 1.0  # standard errors by which a Fusion must be better on held-out feedback
_SHARES = (1.0, 0.5, 0.25, 0.125)  # of the way from the old Fusion to the new one


#: No discount within an episode, which is one query.
GAMMA = 1.0
GAE_LAMBDA = 0.95


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """The hyperparameters of an update.

    Attributes:
        decider_rate: Adam's learning rate for the Decider; likewise ``fusion_rate`` and ``critic_rate``.
        clip: eps of the surrogate.
        entropy: weight of the Decider's entropy bonus.
        max_weight: largest w = pi_old / mu.
        epochs: passes over the batch.
        minibatch: approximate number of rows of a gradient step.
        target_kl: the Decider stops learning once a minibatch's approx_kl exceeds this; the final approx_kl is at most
            1.5 times this.
        fusion_penalty: weight of the Fusion's KL(q_old || q).
        fusion_target_kl: as ``target_kl``, for the Fusion's KL(q_old || q).
        max_norm: longest gradient.
        gae_lambda: lambda of the advantage estimate.
    """

    decider_rate: float = 0.005
    fusion_rate: float = 0.005
    critic_rate: float = 0.005
    clip: float = 0.2
    entropy: float = 0.003
    max_weight: float = 2.0
    epochs: int = 4
    minibatch: int = 256
    target_kl: float = 0.03
    fusion_penalty: float = 0.5
    fusion_target_kl: float = 0.05
    max_norm: float = 1.0
    gae_lambda: float = GAE_LAMBDA


@dataclass(frozen=True, slots=True)
class Learner:
    """The learner's state: the three nets, and Adam's state for each.

    Attributes:
        moments: by "decider", "fusion" and "critic".
    """

    decider: DeciderNet
    fusion: FusionNet
    critic: CriticNet
    moments: Mapping[str, Moments]

    @classmethod
    def fresh(cls, decider: DeciderNet, fusion: FusionNet, critic: CriticNet) -> Learner:
        """Return the state before the first update."""
        arrays = {"decider": parameters(decider), "fusion": parameters(fusion), "critic": parameters(critic)}
        return cls(decider, fusion, critic, {name: Moments.zero(own) for name, own in arrays.items()})


def update(
    learner: Learner, batch: Batch, settings: Hyperparameters, rng: np.random.Generator, *, passes: Backend = NUMPY
) -> tuple[Learner, Diagnostics]:
    """Learn from a batch: compute advantages by the present critic, then train each net on its own.

    Args:
        learner: the state to continue from.
        batch: the episodes.
        settings: the hyperparameters.
        rng: shuffles the minibatches.
        passes: the engine that runs the networks.

    Returns:
        The next state, and diagnostics.
    """
    steps = batch.steps
    before = values(learner.critic, steps.states, passes.critic)
    advantages = gae(steps.rewards, np.where(steps.taken, before, 0), gamma=GAMMA, lam=settings.gae_lambda)
    returns = advantages + before

    decider, decider_moments, on_decider = _learn_to_decide(learner, batch.decisions, advantages, settings, rng, passes)
    critic, critic_moments = _learn_to_value(learner, steps, returns, settings, rng, passes)
    fusion, fusion_moments, on_fusion = _learn_to_fuse(learner, batch.fusions, settings, rng, passes)

    moments = {"decider": decider_moments, "fusion": fusion_moments, "critic": critic_moments}
    return Learner(decider, fusion, critic, moments), Diagnostics(
        episodes=len(steps.taken),
        decisions=len(batch.decisions.log_mu),
        **on_decider,
        **_critic_figures(before[steps.taken], returns[steps.taken]),
        **on_fusion,
    )


def _learn_to_decide(
    learner: Learner,
    decisions: Decisions,
    advantages: Floats,
    settings: Hyperparameters,
    rng: np.random.Generator,
    passes: Backend,
) -> tuple[DeciderNet, Moments, _Figures]:
    """Train the Decider by the clipped surrogate, weighted by pi_old / mu, up to ``target_kl``."""
    net, moments = learner.decider, learner.moments["decider"]
    if not len(decisions.log_mu):
        names = ("policy_loss", "approx_kl", "clip_fraction", "entropy", "effective_sample_size")
        return net, moments, dict.fromkeys(names, 0.0)

    def distribution(net: DeciderNet, rows: _Rows) -> tuple[Likelihood, Callable[[Floats], Gradients]]:
        logits, vjp = passes.decider(net, decisions.context[rows], decisions.endpoints[rows], decisions.ids[rows])
        return likelihood(logits, decisions.heads.take(rows)), lambda d: vjp(d.astype(logits.dtype))

    all_rows = np.arange(len(decisions.log_mu))
    old = distribution(net, all_rows)[0].log_pi
    weights = np.minimum(np.exp(old - decisions.log_mu), settings.max_weight)
    normalised = standardised(advantages[decisions.episode, decisions.step].astype(np.float64))

    def surrogate(now: Likelihood, rows: _Rows) -> SurrogateLoss:
        return surrogate_loss(
            now, old[rows], weights[rows], normalised[rows], clip=settings.clip, entropy=settings.entropy
        )

    def gradients(net: DeciderNet, rows: _Rows) -> Gradients | None:
        now, vjp = distribution(net, rows)
        loss = surrogate(now, rows)
        return None if loss.approx_kl > settings.target_kl else vjp(loss.d_logits)

    def figures(net: DeciderNet) -> _Figures:
        now, _ = distribution(net, all_rows)
        end = surrogate(now, all_rows)
        return {
            "policy_loss": end.loss,
            "approx_kl": end.approx_kl,
            "clip_fraction": end.clip_fraction,
            "entropy": float(now.entropy.mean()),
        }

    far, moments = fit_minibatches(net, moments, gradients, len(all_rows), settings, settings.decider_rate, rng)
    net, end = _within_target(net, far, figures, "approx_kl", settings.target_kl)
    return net, moments, {**end, "effective_sample_size": float(weights.sum() ** 2 / (weights**2).sum())}


def _learn_to_value(
    learner: Learner,
    steps: StepBatch,
    returns: Floats,
    settings: Hyperparameters,
    rng: np.random.Generator,
    passes: Backend,
) -> tuple[CriticNet, Moments]:
    """Train the critic by least squares on the lambda-returns of all steps."""
    states, targets = steps.states[steps.taken], returns[steps.taken]

    def gradients(net: CriticNet, rows: _Rows) -> Gradients:
        now, vjp = passes.critic(net, states[rows])
        return vjp((now - targets[rows]) / np.float32(len(rows)))

    net, moments = learner.critic, learner.moments["critic"]
    return fit_minibatches(net, moments, gradients, len(targets), settings, settings.critic_rate, rng)


def _learn_to_fuse(
    learner: Learner, fusions: Fusions, settings: Hyperparameters, rng: np.random.Generator, passes: Backend
) -> tuple[FusionNet, Moments, _Figures]:
    """Train the Fusion by the likelihood of the feedback, up to ``fusion_target_kl``."""
    net, penalty = learner.fusion, settings.fusion_penalty
    all_rows = np.arange(len(fusions.answered))
    logits, _ = passes.fusion(net, fusions.members, fusions.candidates, fusions.ids)
    old = log_posterior(logits, fusions.offered)
    start = fusion_loss(logits, fusions, all_rows, old, penalty=penalty)

    def gradients(net: FusionNet, rows: _Rows) -> Gradients | None:
        logits, vjp = passes.fusion(net, fusions.members[rows], fusions.candidates[rows], fusions.ids[rows])
        loss = fusion_loss(logits, fusions, rows, old[rows], penalty=penalty)
        return None if loss.kl > settings.fusion_target_kl else vjp(loss.d_logits.astype(logits.dtype))

    def figures(net: FusionNet) -> _Figures:
        logits, _ = passes.fusion(net, fusions.members, fusions.candidates, fusions.ids)
        end = fusion_loss(logits, fusions, all_rows, old, penalty=penalty)
        return {"fusion_loss_after": end.loss, "fusion_kl": end.kl}

    moments = learner.moments["fusion"]
    far, moments = fit_minibatches(net, moments, gradients, len(all_rows), settings, settings.fusion_rate, rng)
    net, end = _within_target(net, far, figures, "fusion_kl", settings.fusion_target_kl)
    return net, moments, {"fusion_loss": start.loss, **end}


def _within_target(
    net: _Policy, far: _Policy, figures: Callable[[_Policy], _Figures], distance: str, target: float
) -> tuple[_Policy, _Figures]:
    """Halve the way from ``net`` to ``far`` until the distance is within 1.5 times ``target``.

    This is needed as learning stops only after the step that went too far, and after many small gradients one step of
    Adam can be large.

    Args:
        figures: computes a net's figures; ``distance`` is the name of the one to bound.

    Returns:
        The net, and its figures.
    """
    for halvings in range(_HALVINGS):
        nearer = between(net, far, 0.5**halvings)
        found = figures(nearer)
        if found[distance] <= _SLACK * target:
            return nearer, found
    return net, figures(net)


def _critic_figures(before: Floats, returns: Floats) -> _Figures:
    variance = float(returns.var())
    return {
        "value_loss": float(np.mean((returns - before) ** 2) / 2),
        "explained_variance": 1 - float((returns - before).var()) / variance if variance > 0 else 0.0,
    }


def gae(rewards: Floats, values: Floats, *, gamma: float = GAMMA, lam: float = GAE_LAMBDA) -> Floats:
    """Return advantages A (B, T) from ``rewards`` (B, T) and ``values`` (B, T) of the states before each step.

    A_t = sum over l >= 0 of (gamma lam)^l delta_{t+l} with delta_t = r_t + gamma V_{t+1} - V_t (Schulman et al. 2016,
    arXiv 1506.02438, eqs. 11, 16), V = 0 after the last column. Shorter episodes are padded on the left, which does not
    affect their steps. A + values are the lambda-returns that the critic learns.
    """
    advantages = np.zeros_like(values)
    following = np.zeros_like(values[:, 0])
    ahead = np.zeros_like(following)
    for t in range(values.shape[1] - 1, -1, -1):
        ahead = rewards[:, t] + gamma * following - values[:, t] + gamma * lam * ahead
        advantages[:, t] = ahead
        following = values[:, t]
    return advantages


def best_supported(old: FusionNet, new: FusionNet, held: Fusions) -> FusionNet:
    """Move the Fusion from old to new as far as held-out feedback supports; not at all if nothing is likely better.

    The criterion is the likelihood of the feedback. It detects much smaller differences than the share of right answers
    does, and the Decider reads the posterior: with a slightly overconfident Fusion it stops too soon.
    """
    losses = feedback_losses(log_q(old, held), held)
    best, found = 0.0, old
    for share in _SHARES:
        moved = between(old, new, share)
        gains = losses - feedback_losses(log_q(moved, held), held)
        gain, error = float(gains.mean()), float(gains.std()) / max(len(gains) - 1, 1) ** 0.5
        if gain > max(best, _LIKELY * error):
            best, found = gain, moved
    return found
