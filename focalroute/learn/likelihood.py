"""How likely many decisions are at once, its gradient, and entropy: `focalroute.policy.decider` for arrays.

Heads lie in visiting order. Where somebody must be picked, z is taken less ln(sum of e^z) over the heads visited, if
that is negative. Since every head visited is eligible as long as nobody is picked, the chances h of "never
nobody" telescope: with p the heads' own probabilities

    log pi(a) = sum over eligible heads of a_i log p_i + (1 - a_i) log(1 - p_i)
                - [somebody must be picked] log(1 - prod over all heads of (1 - p_j)).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from focalroute.learn.backward import Floats
from focalroute.policy.decider import EXPLORATION

__all__ = ["Heads", "Likelihood", "likelihood", "raised"]

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Heads:
    """What S decisions chose from; P places, padded at the end.

    Attributes:
        visited: (S, P) a head, not padding: who could be picked while nobody was.
        eligible: (S, P) who still could be picked beside those picked before.
        picked: (S, P) who was.
        must_pick: (S,) whether nobody was no option.
        pool: (S,) N, the size of the pool, on which the clip of p depends.
    """

    visited: Bools
    eligible: Bools
    picked: Bools
    must_pick: Bools
    pool: NDArray[np.int64]

    def take(self, rows: NDArray[Any]) -> Heads:
        """Only these decisions."""
        return Heads(self.visited[rows], self.eligible[rows], self.picked[rows], self.must_pick[rows], self.pool[rows])


@dataclass(frozen=True, slots=True)
class Likelihood:
    """The law of S decisions under some logits z.

    Attributes:
        log_pi: (S,) log-probability of what was picked.
        d_log_pi: (S, P) its derivative by z.
        entropy: (S,) sum over eligible heads of their Bernoulli entropies, in nats; "never nobody" left out of account.
        d_entropy: (S, P) its derivative by z.

    The derivatives pass straight through the clip: they are those of the sigmoid at the clipped p, so a_i - p_i for a
    free head. Exactly they would be zero there, and a head at the floor would never come back, however well its rare
    picks did.
    """

    log_pi: Floats
    d_log_pi: Floats
    entropy: Floats
    d_entropy: Floats


def likelihood(logits: Floats, heads: Heads) -> Likelihood:
    """The law of the decisions under ``logits`` (S, P), in float64."""
    least = (EXPLORATION / heads.pool)[:, None]
    far = np.log((1 - least) / least)
    z = np.clip(raised(logits.astype(np.float64), heads.visited, heads.must_pick), -far, far)
    odds = np.exp(z)
    p = odds / (1 + odds)
    log_out = -np.log1p(odds)  # log(1 - p); log p is this + z
    chosen = np.where(heads.eligible, heads.picked * z + log_out, 0).sum(axis=1)
    log_nobody = np.where(heads.visited, log_out, 0).sum(axis=1)
    somebody = np.where(heads.must_pick, -np.expm1(log_nobody), 1)
    pull = np.where(heads.must_pick, np.exp(log_nobody) / somebody, 0)[:, None]
    entropy = np.where(heads.eligible, -p * z - log_out, 0)
    d_log_pi = np.where(heads.eligible, heads.picked - p, 0) - np.where(heads.visited, pull * p, 0)
    d_entropy = np.where(heads.eligible, -z * p * (1 - p), 0)
    share = _share(logits, heads)
    return Likelihood(
        log_pi=chosen - np.log(somebody),
        d_log_pi=_lowered(d_log_pi, share),
        entropy=entropy.sum(axis=1),
        d_entropy=_lowered(d_entropy, share),
    )


def raised(logits: Floats, visited: Bools, must_pick: Bools) -> Floats:
    """The logits (S, P), raised where somebody must be picked until the odds of the heads visited sum to 1."""
    return np.asarray(logits - np.minimum(_log_sum(logits, visited, must_pick), 0), logits.dtype)


def _log_sum(logits: Floats, visited: Bools, must_pick: Bools) -> Floats:
    """ln(sum of e^z) of the heads visited, (S, 1); 0 where nobody must be picked."""
    log_sum = np.logaddexp.reduce(logits, axis=1, where=visited, initial=-np.inf)
    found: Floats = np.where(must_pick & visited.any(axis=1), log_sum, 0)[:, None]
    return found


def _share(logits: Floats, heads: Heads) -> Floats:
    """By how much each logit lowers the raised logits, (S, P): its share of the odds; 0 where nothing was raised."""
    log_sum = _log_sum(logits, heads.visited, heads.must_pick)
    share: Floats = np.exp(np.where(heads.visited & (log_sum < 0), logits - log_sum, -np.inf))
    return share


def _lowered(gradient: Floats, share: Floats) -> Floats:
    """From derivatives by raised logits to those by the logits themselves: what raises them hangs on all visited."""
    lowered: Floats = gradient - share * gradient.sum(axis=1, keepdims=True)
    return lowered
