"""What a policy brings along of the past: how right each endpoint was in the long run, and a memory of texts.

The window forgets after T queries, and a new process starts with an empty one; this is what training, or another
process, has seen before. It is stored in a bundle (``experience.npz``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from focalroute.observe.memory import Memory

__all__ = ["Experience"]

F32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Experience:
    """The past of some endpoints.

    Attributes:
        names: the endpoints, V of them.
        accuracy: float32 (V,) long-run accuracy of each, in [0, 1].
        usd: float32 (V,) long-run cost of a call; NaN where unknown.
        vectors: float32 (M, D) text features of past queries, oldest first; M may be 0.
        values: float32 (M, V) how right each endpoint was on them; NaN where it was not asked.
    """

    names: tuple[str, ...]
    accuracy: F32
    usd: F32
    vectors: F32
    values: F32

    def offsets(self, pool: Sequence[str]) -> tuple[float | None, ...]:
        """By how much each endpoint of a pool is more accurate in the long run than the known ones on average.

        None for an endpoint that is not known.
        """
        rows = {name: row for row, name in enumerate(self.names)}
        known = [rows[name] for name in pool if name in rows]
        if not known:
            return (None,) * len(pool)
        mean = float(self.accuracy[known].mean())
        return tuple([float(self.accuracy[rows[name]]) - mean if name in rows else None for name in pool])

    def prices(self, listed: NDArray[np.float64], pool: Sequence[str]) -> NDArray[np.float64]:
        """USD of a call of each endpoint of a pool, (N,): the long run's where it is known, else as listed."""
        usd = dict(zip(self.names, self.usd.tolist(), strict=True))
        known = np.array([usd.get(name, np.nan) for name in pool])
        return np.where(np.isnan(known), listed, known)

    def memory(self, pool: Sequence[str]) -> Memory:
        """A memory of a pool that holds these queries."""
        memory = Memory(len(pool))
        columns = np.full((len(self.values), len(pool)), np.nan, np.float32)
        rows = {name: row for row, name in enumerate(self.names)}
        for column, name in enumerate(pool):
            if name in rows:
                columns[:, column] = self.values[:, rows[name]]
        memory.fill(self.vectors, columns)
        return memory

    def same(self, other: Experience) -> bool:
        """Whether the other one holds the same; what was read from arrays is the same after any further way there."""
        return (
            self.names == other.names
            and np.array_equal(self.accuracy, other.accuracy)
            and np.array_equal(self.usd, other.usd, equal_nan=True)
            and np.array_equal(self.values, other.values, equal_nan=True)
            and np.array_equal(self.vectors, other.vectors)
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        """As named arrays: values in half precision, vectors as whole 127ths of their largest entry."""
        largest = np.maximum(np.abs(self.vectors).max(axis=1, initial=0, keepdims=True), 1e-9)
        return {
            "names": np.array(self.names, np.str_),
            "accuracy": self.accuracy.astype(np.float32),
            "usd": self.usd.astype(np.float32),
            "vectors": np.round(self.vectors / largest * 127).astype(np.int8),
            "values": self.values.astype(np.float16),
        }

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]]) -> Experience:
        """What `arrays` gave.

        Raises:
            ValueError: these are no such arrays.
        """
        try:
            keys = ("names", "accuracy", "usd", "vectors", "values")
            names, accuracy, usd, vectors, values = (arrays[key] for key in keys)
        except KeyError as error:
            raise ValueError(f"{error} is missing") from None
        if names.dtype.kind != "U" or any(array.dtype.kind not in "iuf" for array in (accuracy, usd, vectors, values)):
            raise ValueError("its arrays are not names and numbers")
        if names.ndim != 1 or accuracy.shape != names.shape or usd.shape != names.shape or vectors.ndim != 2:
            raise ValueError("its arrays do not fit each other")
        if values.shape != (len(vectors), len(names)) or len(set(names.tolist())) != len(names):
            raise ValueError("its arrays do not fit each other")
        known = np.concatenate([accuracy, values[~np.isnan(values)]])
        if not ((known >= 0) & (known <= 1)).all() or not np.isfinite(vectors).all() or (usd < 0).any():
            raise ValueError("its numbers are not within their bounds")
        lengths = np.maximum(np.linalg.norm(vectors.astype(np.float32), axis=1, keepdims=True), 1e-9)
        return cls(
            tuple(names.tolist()),
            accuracy.astype(np.float32),
            usd.astype(np.float32),
            (vectors / lengths).astype(np.float32),
            values.astype(np.float32),
        )
