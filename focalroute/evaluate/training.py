"""What baselines may learn from before the test part: the training rows, and their last fifth to choose settings on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from focalroute.evaluate.replay import FeedbackKind, Strategy, play
from focalroute.evaluate.table import LogTable

#: What asking everybody once is worth in right answers, where a baseline trades accuracy for cost; as in the ensemble.
PRICE_OF_MONEY = 0.1

_S = TypeVar("_S")


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
    rows: NDArray[np.int64]
    seed: int
    feedback: FeedbackKind = "label"
    show_task: bool = False

    @property
    def rank(self) -> tuple[int, ...]:
        """The endpoints by accuracy on the training part, best first."""
        return self.table.rank(self.rows)

    def cut(self) -> tuple[Training, NDArray[np.int64]]:
        """The first four fifths as a training part, and the last fifth's rows; of fewer than 5 rows all, twice."""
        held = len(self.rows) // 5
        return (replace(self, rows=self.rows[:-held]), self.rows[-held:]) if held else (self, self.rows)


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
