"""The two papers' methods as baselines (`rl_focal`, `der`); this module has what both use.

That is their network (one hidden layer of sigmoids), its learning by PPO (arXiv 1707.06347), and the papers' rewards.
focalroute's own learning is in `focalroute.learn.mappo`: there, networks share weights between endpoints, and updates
stop at a KL target. Qualities are in [0, 1]; u = 2 quality - 1 is in [-1, 1].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from focalroute.core.records import F32, F64, Bools
from focalroute.learn.adam import Moments, fit_minibatches
from focalroute.learn.losses import Likelihood, likelihood, log_posterior, standardised, surrogate_loss
from focalroute.learn.nets import Floats, Gradients, Vjp, parameters
from focalroute.learn.trajectory import HeadBatch

_Rows = NDArray[Any]
#: Maps logits (R, O) and the indices of their rows (R,) to the likelihood of the actions taken there.
Distribution = Callable[[Floats, _Rows], Likelihood]


@dataclass(frozen=True, slots=True)
class Mlp:
    """z = sigmoid(x hidden + hidden_bias) out + out_bias; D inputs, H hidden units, O heads.

    Attributes:
        hidden: (D, H).
        hidden_bias: (H,).
        out: (H, O).
        out_bias: (O,).
    """

    hidden: F32
    hidden_bias: F32
    out: F32
    out_bias: F32

    @classmethod
    def initial(cls, rng: np.random.Generator, inputs: int, outputs: int, *, hidden: int = 32) -> Mlp:
        """Make a net with outputs 0: random hidden weights (Glorot & Bengio 2010), everything else zero."""
        weights = (rng.standard_normal((inputs, hidden)) * np.sqrt(2 / (inputs + hidden))).astype(np.float32)
        zeros = np.zeros(hidden, np.float32), np.zeros((hidden, outputs), np.float32), np.zeros(outputs, np.float32)
        return cls(weights, *zeros)


def mlp_pass(net: Mlp, x: Floats) -> tuple[Floats, Vjp]:
    """Return the heads (B, O) of inputs (B, D), and the vjp from dL/dheads (B, O) to dL/dparameters."""
    z = x @ net.hidden
    z += net.hidden_bias
    hidden: Floats = 0.5 + 0.5 * np.tanh(0.5 * z)  # the sigmoid, without overflow

    def vjp(d: Floats) -> Gradients:
        d_hidden = (d @ net.out.T) * hidden * (1 - hidden)
        return {
            "hidden": x.T @ d_hidden,
            "hidden_bias": d_hidden.sum(axis=0),
            "out": hidden.T @ d,
            "out_bias": d.sum(axis=0),
        }

    return hidden @ net.out + net.out_bias, vjp


@dataclass(frozen=True, slots=True)
class Ppo:
    """The settings of PPO.

    Attributes:
        rate: Adam's learning rate.
        clip: epsilon of the clipped surrogate.
        entropy: weight of the entropy bonus.
        epochs: passes over a batch.
        minibatch: approximate number of rows for one gradient step.
        max_norm: the norm to which larger gradients are scaled down.
    """

    rate: float = 0.001
    clip: float = 0.2
    entropy: float = 0.0
    epochs: int = 4
    minibatch: int = 256
    max_norm: float = 1.0


@dataclass(frozen=True, slots=True)
class Learned:
    """A network with Adam's moments."""

    net: Mlp
    moments: Moments

    @classmethod
    def fresh(cls, net: Mlp) -> Learned:
        """Start with this network, before its first update."""
        return cls(net, Moments.zero(parameters(net)))

    def __call__(self, x: Floats) -> Floats:
        """The heads (B, O) of inputs (B, D)."""
        return mlp_pass(self.net, x)[0]


def bernoulli(logits: Floats, picked: Bools) -> Likelihood:
    """Return the joint likelihood of picks (B, N) by N independent heads, with probabilities clipped as in serving."""
    free, must_pick = np.ones_like(picked), np.zeros(len(picked), bool)
    return likelihood(logits, HeadBatch(free, free, picked, must_pick, np.full(len(picked), picked.shape[1])))


def categorical(logits: Floats, offered: Bools, chosen: NDArray[np.int64]) -> Likelihood:
    """Return the likelihood of one choice (B,) by the softmax over those ``offered`` (B, K)."""
    log_q = log_posterior(logits, offered)
    q, rows = np.exp(log_q), np.arange(len(chosen))
    surprise = np.where(q > 0, q * log_q, 0.0)
    entropy = -surprise.sum(axis=1)
    at = np.zeros_like(q)
    at[rows, chosen] = 1
    return Likelihood(log_q[rows, chosen], at - q, entropy, -surprise - q * entropy[:, None])


def draw(logits: Floats, offered: Bools, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw one choice (B,) for each row from the softmax over those ``offered`` (B, K)."""
    noise = rng.gumbel(size=logits.shape)  # the largest of log q + Gumbel noise is a draw from q
    chosen: NDArray[np.int64] = (log_posterior(logits, offered) + noise).argmax(axis=1)
    return chosen


def improve(
    learned: Learned, x: Floats, distribution: Distribution, advantages: Floats, settings: Ppo, rng: np.random.Generator
) -> Learned:
    """Improve a policy by some epochs of the clipped surrogate, with one joint ratio rho = pi / pi_old per decision.

    Args:
        learned: the policy that decided.
        x: (S, D) its inputs.
        distribution: maps logits (R, O) and their rows (R,) to likelihoods.
        advantages: (S,); they will be standardised.
        settings: the settings of PPO.
        rng: shuffles the rows.
    """
    log_pi_old = distribution(learned(x), np.arange(len(x))).log_pi
    standardised_advantages = standardised(advantages)

    def gradients(net: Mlp, rows: _Rows) -> Gradients:
        logits, vjp = mlp_pass(net, x[rows])
        surrogate = surrogate_loss(
            distribution(logits, rows),
            log_pi_old[rows],
            np.ones(len(rows)),
            standardised_advantages[rows],
            clip=settings.clip,
            entropy=settings.entropy,
        )
        return vjp(surrogate.d_logits.astype(logits.dtype))

    return _fit(learned, gradients, len(x), settings, rng)


def regress(learned: Learned, x: Floats, targets: Floats, settings: Ppo, rng: np.random.Generator) -> Learned:
    """Fit a value net by some epochs of least squares on ``targets`` (S, O)."""

    def gradients(net: Mlp, rows: _Rows) -> Gradients:
        values, vjp = mlp_pass(net, x[rows])
        return vjp(((values - targets[rows]) / len(rows)).astype(values.dtype))

    return _fit(learned, gradients, len(x), settings, rng)


def _fit(
    learned: Learned, gradients: Callable[[Mlp, _Rows], Gradients], count: int, settings: Ppo, rng: np.random.Generator
) -> Learned:
    return Learned(*fit_minibatches(learned.net, learned.moments, gradients, count, settings, settings.rate, rng))


def eq6(u: ArrayLike, asked: ArrayLike, pool: int, *, alpha: float) -> F64:
    """Return RL-Focal's reward of the Decider (arXiv 2502.04492, Eq. 6): 1 if right, -1 - alpha |E| / N if wrong.

    Only wrong answers are penalised for the number of endpoints asked. With graded answers, negative u count as wrong,
    and the penalty is subtracted from u. The Fusion's reward is u itself (alpha = 0).

    Args:
        u: the answers' rewards in [-1, 1], of any shape.
        asked: |E|, the number of endpoints asked, of the same shape.
        pool: N, the size of the pool, at least 1.
        alpha: the weight of the penalty.

    >>> eq6([1, -1], [12, 6], 12, alpha=0.1).tolist()
    [1.0, -1.05]
    """
    reward = np.asarray(u, dtype=np.float64)
    return np.where(reward < 0, reward - alpha * np.asarray(asked) / pool, reward)


def der_reward(
    quality: ArrayLike, before: ArrayLike | None, cost: ArrayLike, *, alpha: float, beta: float, level: bool = True
) -> F64:
    """Return DER's reward of asking one more expert (arXiv 2412.07448), without the threshold bonus.

    At t = 0 it is P(y_0) - alpha C(M), later P(y_t) + beta (P(y_t) - P(y_(t-1))) - alpha C(M). Paying P at every step
    rewards long routes: two steps at quality 1 earn more than one. Without ``level``, later steps earn only the gain,
    so with beta = 1 a route's rewards add up to P(last answer) - alpha (cost of the route).

    Args:
        quality: P(y_t), the quality of the answer after this step, in [0, 1], of any shape.
        before: P(y_(t-1)), the quality of the answer before it, of the same shape; None at t = 0.
        cost: C(M), the cost of the expert asked, of the same shape.
        alpha: the cost weight.
        beta: the weight of the gain.
        level: whether later steps also earn P(y_t) itself, as published.

    >>> float(der_reward(1.0, None, 0.5, alpha=0.1, beta=1.0)), float(der_reward(1.0, 0.0, 0.5, alpha=0.1, beta=1.0))
    (0.95, 1.95)
    """
    p: NDArray[Any] = np.asarray(quality, dtype=np.float64)
    penalty = alpha * np.asarray(cost, dtype=np.float64)
    if before is None:
        return p - penalty
    gain = beta * (p - np.asarray(before, dtype=np.float64))
    return (p if level else 0.0) + gain - penalty


def der_bonus(quality: ArrayLike, exhausted: ArrayLike, *, threshold: float, bonus: float) -> F64:
    """Return DER's terminal reward: ``bonus`` if P >= p_0, -``bonus`` if that was not reached in T_max steps, else 0.

    It is paid once, at STOP or after step T_max.

    Args:
        quality: P, the quality of the last answer, of any shape.
        exhausted: whether T_max experts were asked, of the same shape.
        threshold: p_0.
        bonus: the size of the bonus.

    >>> der_bonus([1, 0, 0], [False, False, True], threshold=0.5, bonus=1.0).tolist()
    [1.0, 0.0, -1.0]
    """
    missed = np.where(np.asarray(exhausted), -bonus, 0.0)
    return np.where(np.asarray(quality, dtype=np.float64) >= threshold, bonus, missed)
