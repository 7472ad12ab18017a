"""What an evaluation played, row by row: what `focalroute.evaluate.figures` sums up, and too much for the JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from focalroute.evaluate.replay import ReplayResult
from focalroute.evaluate.table import F64, I64, LogTable
from focalroute.observe.drift import Change

#: Whom each query's decisions named, by round.
Plan = Sequence[tuple[tuple[int, ...], ...]]


@dataclass(frozen=True, slots=True)
class Run:
    """focalroute on the test part, n rows, at one operating point with one seed.

    Attributes:
        plan: (n,) whom its decisions named, by round.
        confidence: (n,) the posterior of each answer; NaN where there was none.
        changes: (row, endpoint, change) of every endpoint that was noticed to have changed.
    """

    played: ReplayResult
    plan: Plan
    confidence: F64
    changes: tuple[tuple[int, str, Change], ...] = ()


@dataclass(frozen=True, slots=True)
class Replayed:
    """Everything that was played on the test part, n rows.

    Attributes:
        table: the log.
        test: (n,) the rows of it.
        ours: by operating point, one run a seed.
        others: by method, one `ReplayResult` a seed.
        shown: the operating point that stands for focalroute where one has to.
    """

    table: LogTable
    test: I64
    ours: tuple[tuple[Run, ...], ...]
    others: Mapping[str, tuple[ReplayResult, ...]]
    shown: int

    def worth(self, method: str | None = None) -> F64:
        """(seeds, n) what the answers of a method were worth; None: of the operating point that is shown."""
        runs = [run.played for run in self.ours[self.shown]] if method is None else self.others[method]
        return np.stack([run.worth for run in runs])

    def right(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """(n, N) whether each endpoint's recorded answer is known, and whether it is right (worth at least a half)."""
        known = self.table.there[self.test] & ~self.table.failed[self.test]
        return known, known & (np.nan_to_num(self.table.value[self.test]) >= 0.5)
