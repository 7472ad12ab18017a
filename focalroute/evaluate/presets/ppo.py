"""PPO for the presets' networks (Schulman et al. 2017, arXiv 1707.06347): the clipped surrogate and a value's error.

The maths is that of `focalroute.learn`: `likelihood`, `losses`, `adam`. What differs is what the networks see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from focalroute.evaluate.presets.mlp import Mlp, mlp_parameters, mlp_pass
from focalroute.learn.adam import Adam, Moments
from focalroute.learn.backward import Floats, Gradients
from focalroute.learn.likelihood import Heads, Likelihood, likelihood
from focalroute.learn.losses import log_posterior, surrogate_loss

_Rows = NDArray[Any]
Bools = NDArray[np.bool_]
Law = Callable[[Floats, _Rows], Likelihood]


@dataclass(frozen=True, slots=True)
class Ppo:
    """How to learn.

    Attributes:
        rate: Adam's learning rate.
        clip: eps of the surrogate.
        entropy: weight of the entropy bonus.
        epochs: passes over a batch.
        minibatch: about how many rows one gradient step takes.
        max_norm: longest gradient.
    """

    rate: float = 0.001
    clip: float = 0.2
    entropy: float = 0.0
    epochs: int = 4
    minibatch: int = 256
    max_norm: float = 1.0


@dataclass(frozen=True, slots=True)
class Learned:
    """A network and what Adam remembers of it."""

    net: Mlp
    moments: Moments

    @classmethod
    def fresh(cls, net: Mlp) -> Learned:
        """Before the first update."""
        return cls(net, Moments.zero(mlp_parameters(net)))

    def __call__(self, x: Floats) -> Floats:
        """The heads (B, O) of inputs (B, D)."""
        return mlp_pass(self.net, x)[0]


def bernoulli(logits: Floats, picked: Bools) -> Likelihood:
    """The law of N independent heads, picks (B, N): one joint probability for each row, clipped as in the ensemble."""
    free, nobody = np.ones_like(picked), np.zeros(len(picked), bool)
    return likelihood(logits, Heads(free, free, picked, nobody, np.full(len(picked), picked.shape[1])))


def categorical(logits: Floats, offered: Bools, chosen: NDArray[np.int64]) -> Likelihood:
    """The law of one choice (B,) among those ``offered`` (B, K), a softmax over them."""
    log_q = log_posterior(logits, offered)
    q, rows = np.exp(log_q), np.arange(len(chosen))
    surprise = np.where(q > 0, q * log_q, 0.0)
    entropy = -surprise.sum(axis=1)
    at = np.zeros_like(q)
    at[rows, chosen] = 1
    return Likelihood(log_q[rows, chosen], at - q, entropy, -surprise - q * entropy[:, None])


def draw(logits: Floats, offered: Bools, rng: np.random.Generator) -> NDArray[np.int64]:
    """One choice (B,) each, from the softmax over those ``offered`` (B, K)."""
    noise = rng.gumbel(size=logits.shape)  # the largest of log q + Gumbel noise is a draw from q
    chosen: NDArray[np.int64] = (log_posterior(logits, offered) + noise).argmax(axis=1)
    return chosen


def improve(
    learned: Learned, x: Floats, law: Law, advantages: Floats, settings: Ppo, rng: np.random.Generator
) -> Learned:
    """A policy after some epochs of the clipped surrogate, one joint ratio rho = pi / pi_old a decision.

    Args:
        learned: the policy that decided.
        x: (S, D) what it saw.
        law: of logits (R, O) and the rows (R,) they belong to.
        advantages: (S,); they are standardised.
        settings: how to learn.
        rng: shuffles the rows.
    """
    everyone = np.arange(len(x))
    old = law(learned(x), everyone).log_pi
    goodness = _standardised(advantages)

    def gradients(net: Mlp, rows: _Rows) -> Gradients:
        logits, pull = mlp_pass(net, x[rows])
        surrogate = surrogate_loss(
            law(logits, rows),
            old[rows],
            np.ones(len(rows)),
            goodness[rows],
            clip=settings.clip,
            entropy=settings.entropy,
        )
        return pull(surrogate.d_logits.astype(logits.dtype))

    return _fit(learned, gradients, everyone, settings, rng)


def regress(learned: Learned, x: Floats, targets: Floats, settings: Ppo, rng: np.random.Generator) -> Learned:
    """A value net after some epochs of least squares on ``targets`` (S, O)."""

    def gradients(net: Mlp, rows: _Rows) -> Gradients:
        values, pull = mlp_pass(net, x[rows])
        return pull(((values - targets[rows]) / len(rows)).astype(values.dtype))

    return _fit(learned, gradients, np.arange(len(x)), settings, rng)


def _fit(
    learned: Learned,
    gradients: Callable[[Mlp, _Rows], Gradients],
    everyone: _Rows,
    settings: Ppo,
    rng: np.random.Generator,
) -> Learned:
    net = learned.net
    adam = Adam(mlp_parameters(net), learned.moments, learning_rate=settings.rate, max_norm=settings.max_norm)
    for rows in _minibatches(everyone, settings, rng):
        adam.step(gradients(net, rows))
        net = replace(net, **adam.parameters)
    return Learned(net, adam.moments)


def _minibatches(everyone: _Rows, settings: Ppo, rng: np.random.Generator) -> Iterator[_Rows]:
    parts = max(1, round(len(everyone) / settings.minibatch))
    for _ in range(settings.epochs):
        yield from np.array_split(rng.permutation(everyone), parts)


def _standardised(advantages: Floats) -> NDArray[np.float64]:
    """Mean 0, standard deviation 1; zero where all are equal."""
    centred = advantages.astype(np.float64) - advantages.mean()
    deviation = float(centred.std())
    return centred / deviation if deviation > 1e-9 else np.zeros_like(centred)
