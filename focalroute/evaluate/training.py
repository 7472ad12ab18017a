"""What baselines may learn from before the test part: the training rows, and their last fifth to choose settings on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from focalroute.core.records import F32, I64, Bools
from focalroute.evaluate.replay import FeedbackKind, Strategy, play
from focalroute.evaluate.table import LogTable

#: What asking everybody once is worth in right answers, where a baseline trades accuracy for cost; as in the ensemble.
PRICE_OF_MONEY = 0.1

_S = TypeVar("_S")


@dataclass(frozen=True, slots=True)
class TrainingArrays:
    """The n training rows, N endpoints, C candidates (the most that any row has).

    Attributes:
        votes: (n, N, C) 1 for the candidate an endpoint backs.
        probabilities: (n, N, C) its mass on each candidate; its vote where it gave none.
        worth: (n, C) of each candidate, in [0, 1].
        fails: (n, N) 1 where an endpoint was wrong, failed or is missing.
        choices: (n,) the number of choices; 0: a free-form question.
        there: (n, N) whether there is an output.
        best_first: (N,) for ties: an endpoint's bonus, falling with its rank, of less than half a vote.
    """

    votes: F32
    probabilities: F32
    worth: F32
    fails: F32
    choices: I64
    there: Bools
    best_first: F32


@dataclass(frozen=True, slots=True)
class Training:
    """The training part.

    Attributes:
        table: the log; only ``rows`` of it may be looked at.
        rows: the training rows, in order.
        seed: for whatever is random.
        feedback: what is revealed when a baseline is tried out.
        show_task: whether topics are shown.
    """

    table: LogTable
    rows: I64
    seed: int
    feedback: FeedbackKind = "label"
    show_task: bool = False

    @property
    def rank(self) -> tuple[int, ...]:
        """The endpoints by accuracy on the training part, best first."""
        return self.table.rank(self.rows)

    def cut(self) -> tuple[Training, I64]:
        """The first four fifths as a training part, and the last fifth's rows; of fewer than 5 rows all, twice."""
        held = len(self.rows) // 5
        return (replace(self, rows=self.rows[:-held]), self.rows[-held:]) if held else (self, self.rows)

    def arrays(self) -> TrainingArrays:
        """All that was answered in the training part, and nothing else of the log."""
        table, rows = self.table, self.rows
        worth = table.worths(rows).astype(np.float32)
        n, width = len(table.endpoints), worth.shape[1]
        votes = (table.candidate[rows][:, :, None] == np.arange(width)).astype(np.float32)
        masses = table.masses(rows, width)
        unknown = np.isnan(masses) | table.failed[rows][:, :, None]
        bonus = np.empty(n, np.float32)
        bonus[list(self.rank)] = (n - np.arange(n)) / (2 * n + 2)
        return TrainingArrays(
            votes=votes,
            probabilities=np.where(unknown, votes, masses),
            worth=worth,
            fails=((table.value[rows] < 0.5) | ~table.there[rows]).astype(np.float32),
            choices=np.array([len(table.queries[row].choices or ()) for row in rows.tolist()]),
            there=table.there[rows],
            best_first=bonus,
        )


def best_setting(training: Training, settings: Sequence[_S], make: Callable[[Training, _S], Strategy]) -> _S:
    """The setting that does best on the last fifth after training on the rest; of equals the first.

    Best is accuracy - `PRICE_OF_MONEY` x cost, the cost relative to asking everybody.
    """
    fit, held = training.cut()
    full = training.table.usd[held].sum()

    def score(setting: _S) -> float:
        played = play(
            make(fit, setting), training.table, held, feedback=training.feedback, show_task=training.show_task
        )
        cost = played.usd.sum() / full if full else 0.0
        return float(played.worth.mean() - PRICE_OF_MONEY * cost)

    return max(settings, key=score) if len(settings) > 1 else settings[0]
