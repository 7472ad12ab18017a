"""A policy's knowledge from its training: long-run accuracies, a memory of texts, calibration statistics.

The window forgets after T queries, and a new process starts with an empty one. Experience keeps what training or
another process saw before. It is stored in a bundle (``experience.npz``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from focalroute.core.records import F32, HASHED
from focalroute.observe.calibration import Totals
from focalroute.observe.confusion import MOST_COUNTED_CHOICES, ChoiceCounts, ChoiceSet
from focalroute.observe.memory import Memory

_CONFUSED = "tasks of choices"


@dataclass(frozen=True, slots=True)
class Experience:
    """The records of V endpoints.

    Attributes:
        names: the endpoints.
        accuracy: float32 (V,) long-run accuracy of each, in [0, 1].
        usd: float32 (V,) long-run cost of a call; NaN where unknown.
        vectors: float32 (M, D) text features of past queries, oldest first; M may be 0.
        values: float32 (M, V) how right each endpoint was on them, in [0, 1]; NaN where it was not asked.
        costs: float32 (M, V) cost of each call relative to the endpoint's mean; NaN where unknown.
        calibration: task -> calibration totals of the endpoints; None -> those over all tasks; empty if no endpoint
            gave probabilities.
        confusion: set of choices -> how the endpoints confused them.
        embedder: name of the embedder that made the vectors.
    """

    names: tuple[str, ...]
    accuracy: F32
    usd: F32
    vectors: F32
    values: F32
    costs: F32
    calibration: Mapping[str | None, Totals] = field(default_factory=dict)
    confusion: Mapping[ChoiceSet, ChoiceCounts] = field(default_factory=dict)
    embedder: str = HASHED

    def offsets(self, pool: Sequence[str]) -> NDArray[np.float64]:
        """Return each endpoint's long-run accuracy minus the mean of those known in this pool, (N,); NaN if unknown."""
        accuracy = dict(zip(self.names, self.accuracy.tolist(), strict=True))
        found = np.array([accuracy.get(name, np.nan) for name in pool])
        known = found[~np.isnan(found)]
        return found - known.mean() if len(known) else found

    def prices(self, listed: NDArray[np.float64], pool: Sequence[str]) -> NDArray[np.float64]:
        """Return the USD of a call to each endpoint of a pool, (N,): the long-run cost if known, else as listed."""
        usd = dict(zip(self.names, self.usd.tolist(), strict=True))
        known = np.array([usd.get(name, np.nan) for name in pool])
        return np.where(np.isnan(known), listed, known)

    def memory(self, pool: Sequence[str]) -> Memory:
        """Return a memory for a pool, filled with these queries."""
        memory = Memory(len(pool))
        values, costs = np.full((2, len(self.values), len(pool)), np.nan, np.float32)
        known, columns = self._known(pool)
        values[:, known], costs[:, known] = self.values[:, columns], self.costs[:, columns]
        memory.fill(self.vectors, values, costs)
        return memory

    def totals(self, pool: Sequence[str]) -> dict[str | None, Totals]:
        """Return the calibration totals by task, with a pool's endpoints as columns; 0 for unknown endpoints."""
        known, columns = self._known(pool)
        found: dict[str | None, Totals] = {}
        for task, own in self.calibration.items():
            totals = Totals(np.zeros((4, len(pool), own.sums.shape[2])), np.zeros((2, len(pool))))
            totals.sums[:, known] = own.sums[:, columns]
            totals.squares[:, known] = own.squares[:, columns]
            found[task] = totals
        return found

    def confused(self, pool: Sequence[str]) -> dict[ChoiceSet, ChoiceCounts]:
        """Return the counts of each set of choices for a pool's endpoints; 0 for unknown endpoints."""
        known, columns = self._known(pool)
        found: dict[ChoiceSet, ChoiceCounts] = {}
        for key, own in self.confusion.items():
            given = np.zeros((len(pool), *own.given.shape[1:]), np.float32)
            given[known] = own.given[columns]
            found[key] = ChoiceCounts(own.right, given)
        return found

    def _known(self, pool: Sequence[str]) -> tuple[list[int], list[int]]:
        """Return the pool indices of the endpoints it knows, and their indices in ``names``."""
        columns = {name: column for column, name in enumerate(self.names)}
        known = [i for i, name in enumerate(pool) if name in columns]
        return known, [columns[pool[i]] for i in known]

    def same(self, other: Experience) -> bool:
        """Whether both hold the same data. One read from a bundle stays the same when written and read again."""
        return (
            self.names == other.names
            and self.embedder == other.embedder
            and np.array_equal(self.accuracy, other.accuracy)
            and np.array_equal(self.usd, other.usd, equal_nan=True)
            and np.array_equal(self.values, other.values, equal_nan=True)
            and np.array_equal(self.vectors, other.vectors)
            and np.array_equal(self.costs, other.costs, equal_nan=True)
            and self.calibration.keys() == other.calibration.keys()
            and all(np.array_equal(own.sums, other.calibration[task].sums) for task, own in self.calibration.items())
            and self.confusion.keys() == other.confusion.keys()
            and all(np.array_equal(own.given, other.confusion[key].given) for key, own in self.confusion.items())
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return named arrays: values in half precision, vectors as integer 127ths of their largest entry."""
        largest = np.maximum(np.abs(self.vectors).max(axis=1, initial=0, keepdims=True), 1e-9)
        return {
            "names": np.array(self.names, np.str_),
            "accuracy": self.accuracy.astype(np.float32),
            "usd": self.usd.astype(np.float32),
            "vectors": np.round(self.vectors / largest * 127).astype(np.int8),
            "values": self.values.astype(np.float16),
            "costs": self.costs.astype(np.float16),
            "embedder": np.array(self.embedder),
            **self._calibration_arrays(),
            **self._confusion_arrays(),
        }

    def _calibration_arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return the tasks' names (B,), and totals (B + 1, 4, V, P) and (B + 1, 2, V), those over all tasks first."""
        if not self.calibration:
            return {}
        tasks = [task for task in self.calibration if task is not None]
        rows = [self.calibration[task] for task in (None, *tasks)]
        wide = max(row.sums.shape[2] for row in rows)
        sums = [np.pad(row.sums, [(0, 0), (0, 0), (0, wide - row.sums.shape[2])]) for row in rows]
        return {
            "tasks": np.array(tasks, np.str_),
            "sums": np.array(sums),
            "squares": np.array([row.squares for row in rows]),
        }

    def _confusion_arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return the task of each set of choices (empty: none), and each set's keys and counts."""
        if not self.confusion:
            return {}
        found: dict[str, NDArray[Any]] = {_CONFUSED: np.array([task or "" for task, _ in self.confusion], np.str_)}
        for n, ((_, choices), counts) in enumerate(self.confusion.items()):
            found |= {f"choices {n}": np.array(choices), f"right {n}": counts.right, f"given {n}": counts.given}
        return found

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]]) -> Experience:
        """Restore the experience from the arrays of `arrays`.

        Raises:
            ValueError: the arrays are not valid.
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
        unknown = np.full(values.shape, np.nan, np.float16)
        costs = arrays.get("costs", unknown)  # an earlier version of this package kept none
        if costs.dtype.kind != "f" or costs.shape != values.shape or (costs < 0).any():
            raise ValueError("its costs are not numbers that fit its values")
        lengths = np.maximum(np.linalg.norm(vectors.astype(np.float32), axis=1, keepdims=True), 1e-9)
        return cls(
            tuple(names.tolist()),
            accuracy.astype(np.float32),
            usd.astype(np.float32),
            (vectors / lengths).astype(np.float32),
            values.astype(np.float32),
            costs.astype(np.float32),
            _read_calibration(arrays, len(names)),
            _read_confusion(arrays, len(names)),
            str(arrays.get("embedder", HASHED)),  # an earlier version of this package had no others
        )


def _read_calibration(arrays: Mapping[str, NDArray[Any]], size: int) -> dict[str | None, Totals]:
    """Read the calibration totals that `Experience.arrays` wrote; empty if there are none."""
    if "tasks" not in arrays:
        return {}
    tasks, sums, squares = (arrays.get(key, np.zeros(0)) for key in ("tasks", "sums", "squares"))
    fit = tasks.ndim == 1 and sums.ndim == 4 and sums.shape[:3] == (len(tasks) + 1, 4, size)
    if not fit or squares.shape != (len(tasks) + 1, 2, size) or len(set(tasks.tolist())) != len(tasks):
        raise ValueError("its calibration arrays do not fit each other")
    if tasks.dtype.kind != "U" or not all(x.dtype.kind == "f" and np.isfinite(x).all() for x in (sums, squares)):
        raise ValueError("its calibration arrays are not names and numbers")
    if (sums[:, ::2] < 0).any() or (squares < 0).any():
        raise ValueError("its calibration numbers are not within their bounds")
    keys: list[str | None] = [None, *tasks.tolist()]
    return {key: Totals(sums[row], squares[row]) for row, key in enumerate(keys)}


def _read_confusion(arrays: Mapping[str, NDArray[Any]], size: int) -> dict[ChoiceSet, ChoiceCounts]:
    """Read the counts of choices that `Experience.arrays` wrote; empty if there are none."""
    tasks = arrays.get(_CONFUSED, np.zeros(0, np.str_))
    if tasks.ndim != 1 or tasks.dtype.kind != "U":
        raise ValueError("its tasks of choices are not names")
    found: dict[ChoiceSet, ChoiceCounts] = {}
    for n, task in enumerate(tasks.tolist()):
        choices, right, given = (arrays.get(f"{part} {n}", np.zeros(0)) for part in ("choices", "right", "given"))
        k = len(choices) if choices.ndim == 1 else 0
        if choices.dtype.kind != "U" or not 1 < k <= MOST_COUNTED_CHOICES:
            raise ValueError(f"its choices {n} are not 2 to {MOST_COUNTED_CHOICES} names")
        if right.shape != (k,) or given.shape != (size, k, k):
            raise ValueError(f"its counts of choices {n} do not fit each other")
        if not all(x.dtype.kind == "f" and np.isfinite(x).all() and (x >= 0).all() for x in (right, given)):
            raise ValueError(f"its counts of choices {n} are not numbers from 0")
        found[task or None, tuple(choices.tolist())] = ChoiceCounts(right.astype(np.float64), given.astype(np.float32))
    return found
