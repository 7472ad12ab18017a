"""How right each endpoint was on past queries of similar text: a kernel estimate over a ring of remembered queries.

With x the text features (norm 1) of the query and x_r those of remembered query r, w_r = max(x . x_r, 0)^4 and v_ri how
right endpoint i was there, endpoint i is expected to be right on

    (sum over the r where i is known of w_r v_ri + s mu_i) / (sum over them of w_r + s)

where mu_i is its mean over the whole ring and s a tenth of the typical sum of all w_r: a query that resembles nothing
is met with the mean. (Nadaraya 1964, Watson 1964, shrunk.)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["CAPACITY", "SHRINK", "Memory", "kernel", "shrunk"]

F32 = NDArray[np.float32]

#: Queries remembered.
CAPACITY = 4096

#: Weight of the mean, as a share of the typical sum of kernel weights.
SHRINK = 0.1

_LEAST = 1e-6
_PRIOR = 10.0
_FORGET = 0.02  # share of the newest query in the typical sum of weights


def kernel(cosine: F32) -> F32:
    """w of these cosines."""
    positive = np.maximum(cosine, 0)
    positive *= positive
    positive *= positive
    return positive


def shrunk(weighted: F32, known: F32, mean: F32, strength: float | F32) -> F32:
    """The estimate from sum of w v (..., N), sum of w (..., N) over the known, mu (..., N) and s."""
    estimate: F32 = (weighted + strength * mean) / (known + strength)
    return estimate


class Memory:
    """A ring of remembered queries of a pool. Not thread-safe by itself; `Observer` guards it.

    Args:
        endpoints: N.
    """

    def __init__(self, endpoints: int) -> None:
        self._n = endpoints
        self._vectors: F32 = np.zeros((0, 0), np.float32)
        self._known: F32 = np.zeros((0, 2 * endpoints), np.float32)  # v where known (else 0), then 1 where known
        self._size = 0
        self._next = 0
        self._typical = 0.0
        self._sums = np.zeros(2 * endpoints)

    def __len__(self) -> int:
        return self._size

    def fill(self, vectors: F32, values: F32) -> None:
        """Remember many at once, oldest first: (M, D) and (M, N), NaN where not known. Only the last fit."""
        for vector, row in zip(vectors[-CAPACITY:], values[-CAPACITY:], strict=True):
            self.add(vector, row.tolist())
        if self._size > 1:
            some = self._vectors[: self._size][:: max(self._size // 256, 1)]
            sums = kernel(some @ self._vectors[: self._size].T).sum(axis=1) - 1
            self._typical = float(np.median(sums))

    def add(self, vector: F32, values: Sequence[float]) -> None:
        """Remember one query: its features (D,) and how right each endpoint was, NaN where that is not known."""
        if vector.size != self._vectors.shape[1]:  # the first one, or another embedder: what was is of no use
            self._vectors = np.zeros((CAPACITY, vector.size), np.float32)
            self._known = np.zeros((CAPACITY, 2 * self._n), np.float32)
            self._size = self._next = 0
            self._sums[:] = 0
        row = self._known[self._next]
        self._sums -= row
        given = np.array(values, np.float32)
        known = ~np.isnan(given)
        row[: self._n] = np.where(known, given, 0)
        row[self._n :] = known
        self._sums += row
        self._vectors[self._next] = vector
        self._next = (self._next + 1) % CAPACITY
        self._size = min(self._size + 1, CAPACITY)

    def estimate(self, vector: F32) -> list[float]:
        """How right each endpoint may be on a query with these features, minus the mean over endpoints; length N.

        All 0 while nothing is remembered, or where the text is empty.
        """
        if not self._size or vector.size != self._vectors.shape[1] or not vector.any():
            return [0.0] * self._n
        weights = kernel(self._vectors[: self._size] @ vector)
        total = float(weights.sum())
        self._typical += (_FORGET if self._typical else 1.0) * (total - self._typical)
        sums = weights @ self._known[: self._size]
        right, count = self._sums[: self._n], self._sums[self._n :]
        overall = (right.sum() + 1) / (count.sum() + 2)
        mean = ((right + _PRIOR * overall) / (count + _PRIOR)).astype(np.float32)
        estimate = shrunk(sums[: self._n], sums[self._n :], mean, max(SHRINK * self._typical, _LEAST))
        centred: list[float] = (estimate - estimate.mean()).tolist()
        return centred
