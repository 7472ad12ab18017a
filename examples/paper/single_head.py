"""The alternative to RL-Focal's branching heads (Fig. 4): one softmax over all teams of at least two endpoints."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from focalroute.core.records import F32
from focalroute.evaluate.presets import categorical, draw
from focalroute.evaluate.presets.rl_focal import BranchingHead
from focalroute.learn.losses import Likelihood
from focalroute.learn.nets import Floats

__all__ = ["LARGEST_SINGLE_HEAD", "SingleHead", "teams"]

Bools = NDArray[np.bool_]

#: The most endpoints whose teams one head can list: 4,083 teams.
LARGEST_SINGLE_HEAD = 12
_LEAST_TEAM = 2


class SingleHead(BranchingHead):
    """The alternative to the published heads: one softmax over all 2^N - N - 1 teams of at least two.

    Args:
        endpoints: N, from 2 to `LARGEST_SINGLE_HEAD`.

    Raises:
        ValueError: N is out of that range.
    """

    def __init__(self, endpoints: int) -> None:
        if not _LEAST_TEAM <= endpoints <= LARGEST_SINGLE_HEAD:
            raise ValueError(f"one head lists the teams of 2 to {LARGEST_SINGLE_HEAD} endpoints, not {endpoints}")
        self._teams = teams(endpoints)
        super().__init__(endpoints)
        self.width = len(self._teams)
        self._codes = self._teams @ (1 << np.arange(endpoints))

    def draw(self, logits: Floats, rng: np.random.Generator) -> tuple[Bools, F32]:
        """Draw a team for each row."""
        picked = self._teams[draw(logits, np.ones(logits.shape, bool), rng)]
        return picked, picked.astype(np.float32)

    def likeliest(self, logits: Floats) -> tuple[Bools, F32]:
        """Return the likeliest team of each row."""
        picked = self._teams[logits.argmax(axis=1)]
        return picked, picked.astype(np.float32)

    def likelihood(self, logits: Floats, picked: Bools) -> Likelihood:
        """Return the likelihood of the teams."""
        chosen = np.searchsorted(self._codes, picked @ (1 << np.arange(picked.shape[1])))
        return categorical(logits, np.ones(logits.shape, bool), chosen)


@cache
def teams(endpoints: int) -> Bools:
    """All teams of at least two of N endpoints, (2^N - N - 1, N), in the order of the numbers that they spell.

    >>> teams(3).astype(int).tolist()
    [[1, 1, 0], [1, 0, 1], [0, 1, 1], [1, 1, 1]]
    """
    every = (np.arange(1 << endpoints)[:, None] >> np.arange(endpoints)) & 1
    return np.asarray(every[every.sum(axis=1) >= _LEAST_TEAM], np.bool_)
