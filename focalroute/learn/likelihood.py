"""How likely many decisions are at once, its gradient, and entropy: `focalroute.policy.decider` for arrays.

Heads lie in visiting order. Where somebody must be picked, z is taken less ln(sum of e^z) over the heads visited, if
that is negative. Since every head visited is eligible as long as nobody is picked, the chances h of "never
nobody" telescope: with p the heads' own probabilities

    log pi(a) = sum over eligible heads of a_i log p_i + (1 - a_i) log(1 - p_i)
                - [somebody must be picked] log(1 - prod over all heads of (1 - p_j)).

Where exactly one was to be picked, ln(sum of e^z) is taken off whatever its sign, and with o = p / (1 - p)

    log pi(a) = log o_i - log sum over all heads of o_j,  i the one picked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from focalroute.learn.backward import Floats
from focalroute.policy.decider import EXPLORATION

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
        one: (S,) whether exactly one was to be picked; None: nowhere.
    """

    visited: Bools
    eligible: Bools
    picked: Bools
    must_pick: Bools
    pool: NDArray[np.int64]
    one: Bools | None = None

    def take(self, rows: NDArray[Any]) -> Heads:
        """Only these decisions."""
        one = None if self.one is None else self.one[rows]
        return Heads(
            self.visited[rows], self.eligible[rows], self.picked[rows], self.must_pick[rows], self.pool[rows], one
        )


@dataclass(frozen=True, slots=True)
class Likelihood:
    """The law of S decisions under some logits z.

    Attributes:
        log_pi: (S,) log-probability of what was picked.
        d_log_pi: (S, P) its derivative by z.
        entropy: (S,) sum over eligible heads of their Bernoulli entropies, in nats; "never nobody" left out of account.
            Where exactly one was to be picked, the entropy of that choice.
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


def _of_one(logits: Floats, heads: Heads) -> Likelihood:
    """Where exactly one is picked of the heads visited: the softmax of their clipped logits."""
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
    """ln(sum of e^z) of the heads visited, (S, 1); 0 where there are none."""
    log_sum = np.logaddexp.reduce(logits, axis=1, where=visited, initial=-np.inf)
    found: Floats = np.where(visited.any(axis=1), log_sum, 0)[:, None]
    return found


def _of_several(logits: Floats, heads: Heads) -> Likelihood:
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
    found: Floats = np.where(must_pick[:, None], _log_odds(logits, visited), 0)
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
