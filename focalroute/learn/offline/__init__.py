"""Trains policies on recorded answers and on synthetic pools.

`RecordedLog` has the recorded answers as arrays: T queries in order of arrival, N endpoints.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from focalroute.core.records import F32, HASHED, I64, Bools


@dataclass(frozen=True, slots=True)
class RecordedLog:
    """T queries and each endpoint's answers.

    Attributes:
        names: the endpoints in pool order.
        prices: (N,) expected USD of a typical call by the price list; NaN where unknown.
        there: (T, N) whether the endpoint could be asked.
        replied: (T, N) whether it replied. A reply without a usable answer is wrong; a failed call is neither.
        candidate: (T, N) the candidate it backs; -1 without a usable answer.
        size: (T,) number of candidates, at most K.
        closed: (T,) whether the candidates are the choices of a closed question.
        value: (T, N) value of its answer, 0 to 1; 0 if there is none.
        worth: (T, K) value of each candidate as the answer.
        usd: (T, N) cost of the call; 0 if there was none.
        tokens: (T, N) completion tokens; 0 if unknown.
        latency_s: (T, N) likewise.
        mass: (T, N, K) probability of each candidate, NaN in rows where the endpoint gave none; None: none did.
        vectors: (T, D) features of the text; zeros if there is none.
        tasks: (T,) the topic's name; None: not used.
        choices: (T,) tuples, the keys of a closed question's choices; None: not known.
        embedder: name of the embedder that made the vectors.
    """

    names: tuple[str, ...]
    prices: NDArray[np.float64]
    there: Bools
    replied: Bools
    candidate: I64
    size: I64
    closed: Bools
    value: F32
    worth: F32
    usd: F32
    tokens: F32
    latency_s: F32
    mass: F32 | None
    vectors: F32
    tasks: NDArray[np.str_] | None = None
    choices: NDArray[np.object_] | None = None
    embedder: str = HASHED

    def __len__(self) -> int:
        return len(self.size)

    @property
    def usable(self) -> Bools:
        """(T, N) whether the endpoint's reply has an answer."""
        return self.candidate >= 0

    def take(self, rows: NDArray[Any] | slice) -> RecordedLog:
        """Return only these queries."""
        parts: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        of_pool = ("names", "prices", "embedder")
        return replace(self, **{k: array[rows] for k, array in parts.items() if k not in of_pool and array is not None})
