"""Recorded answers as arrays: what offline training learns from, T queries in the order they came, N endpoints."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from focalroute.core.records import F32, HASHED, I64, Bools


@dataclass(frozen=True, slots=True)
class RecordedLog:
    """T queries and what each endpoint answered.

    Attributes:
        names: the endpoints, pool order.
        prices: (N,) expected USD of a typical call by the price list; NaN where unknown.
        there: (T, N) whether the endpoint could be asked.
        replied: (T, N) whether it replied; a reply without a usable answer is wrong, a call that failed is neither.
        candidate: (T, N) the candidate it backs, -1 without a usable answer.
        size: (T,) number of candidates, K at the most.
        closed: (T,) whether the candidates are the choices of a closed question.
        value: (T, N) what its answer is worth, 0 to 1; 0 where there is none.
        worth: (T, K) what each candidate is worth as the answer.
        usd: (T, N) cost of the call; 0 where there was none.
        tokens: (T, N) completion tokens; 0 unknown.
        latency_s: (T, N) likewise.
        mass: (T, N, K) probability of each candidate, NaN in whole rows where the endpoint gave none; None: none did.
        vectors: (T, D) features of the text; zeros where there is none.
        tasks: (T,) the topic's name; None: not shown.
        embedder: what made the vectors, by its name.
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
    embedder: str = HASHED

    def __len__(self) -> int:
        return len(self.size)

    @property
    def usable(self) -> Bools:
        """(T, N) whether there is an answer in the endpoint's reply, if it is asked."""
        return self.candidate >= 0

    def take(self, rows: NDArray[Any] | slice) -> RecordedLog:
        """Only these queries."""
        parts: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        of_pool = ("names", "prices", "embedder")
        return replace(self, **{k: array[rows] for k, array in parts.items() if k not in of_pool and array is not None})
