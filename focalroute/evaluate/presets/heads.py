"""How RL-Focal's Decider draws a pool from its last layer: a head for each endpoint, or one head over all teams."""

from __future__ import annotations

from functools import cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from focalroute.core.records import F32
from focalroute.evaluate.presets.ppo import bernoulli, categorical, draw
from focalroute.learn.backward import Floats
from focalroute.learn.likelihood import Likelihood
from focalroute.policy.decider import EXPLORATION

Bools = NDArray[np.bool_]

#: The most endpoints whose teams one head can list: 4,083 teams.
LARGEST_SINGLE_HEAD = 12
_LEAST_TEAM = 2


class Heads(Protocol):
    """The last layer of a Decider over N endpoints."""

    def width(self, endpoints: int) -> int:
        """Its outputs for so many endpoints."""

    def draw(self, logits: Floats, rng: np.random.Generator) -> tuple[Bools, F32]:
        """What is drawn (B, N), and the pools (B, N) of at least two that it makes."""

    def likeliest(self, logits: Floats) -> tuple[Bools, F32]:
        """Likewise, without chance."""

    def law(self, logits: Floats, picked: Bools) -> Likelihood:
        """The probability of what was drawn (B, N)."""


class Branching:
    """As published: independent draws, one head for each endpoint; of fewer than two the likeliest fill up."""

    def width(self, endpoints: int) -> int:
        """One for each."""
        return endpoints

    def draw(self, logits: Floats, rng: np.random.Generator) -> tuple[Bools, F32]:
        """Each endpoint by its own head."""
        p = _probabilities(logits)
        picked = rng.random(p.shape) < p
        return picked, _team(picked, p)

    def likeliest(self, logits: Floats) -> tuple[Bools, F32]:
        """All that are more likely than not."""
        p = _probabilities(logits)
        return p > 0.5, _team(p > 0.5, p)

    def law(self, logits: Floats, picked: Bools) -> Likelihood:
        """One joint probability."""
        return bernoulli(logits, picked)


class SingleHead:
    """What the published heads are compared with: one softmax over all 2^N - N - 1 teams of at least two.

    Args:
        endpoints: N, from 2 to `LARGEST_SINGLE_HEAD`.

    Raises:
        ValueError: N is out of that range.
    """

    def __init__(self, endpoints: int) -> None:
        if not _LEAST_TEAM <= endpoints <= LARGEST_SINGLE_HEAD:
            raise ValueError(f"one head lists the teams of 2 to {LARGEST_SINGLE_HEAD} endpoints, not {endpoints}")
        self._teams = teams(endpoints)
        self._codes = self._teams @ (1 << np.arange(endpoints))

    def width(self, endpoints: int) -> int:
        """One for each team."""
        return len(self._teams)

    def draw(self, logits: Floats, rng: np.random.Generator) -> tuple[Bools, F32]:
        """One team."""
        picked = self._teams[draw(logits, np.ones(logits.shape, bool), rng)]
        return picked, picked.astype(np.float32)

    def likeliest(self, logits: Floats) -> tuple[Bools, F32]:
        """The likeliest team."""
        picked = self._teams[logits.argmax(axis=1)]
        return picked, picked.astype(np.float32)

    def law(self, logits: Floats, picked: Bools) -> Likelihood:
        """The team's probability."""
        chosen = np.searchsorted(self._codes, picked @ (1 << np.arange(picked.shape[1])))
        return categorical(logits, np.ones(logits.shape, bool), chosen)


def heads_of(endpoints: int, *, branching: bool) -> Heads:
    """The last layer for so many endpoints."""
    return Branching() if branching else SingleHead(endpoints)


@cache
def teams(endpoints: int) -> Bools:
    """All teams of at least two of N endpoints, (2^N - N - 1, N), in the order of the numbers that they spell.

    >>> teams(3).astype(int).tolist()
    [[1, 1, 0], [1, 0, 1], [0, 1, 1], [1, 1, 1]]
    """
    every = (np.arange(1 << endpoints)[:, None] >> np.arange(endpoints)) & 1
    return np.asarray(every[every.sum(axis=1) >= _LEAST_TEAM], np.bool_)


def _probabilities(z: Floats) -> NDArray[np.floating[Any]]:
    least = EXPLORATION / z.shape[1]
    p: NDArray[np.floating[Any]] = np.clip(1 / (1 + np.exp(-z)), least, 1 - least)
    return p


def _team(picked: Bools, p: NDArray[np.floating[Any]]) -> F32:
    team = picked.copy()
    for lane in np.flatnonzero(picked.sum(axis=1) < _LEAST_TEAM):
        order = np.argsort(-(p[lane] + picked[lane]), kind="stable")
        team[lane, order[:_LEAST_TEAM]] = True
    return team.astype(np.float32)
