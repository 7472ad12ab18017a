"""What the page's plots show, computed from what was played. n test rows, N endpoints."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from focalroute.evaluate.replayed import Replayed
from focalroute.evaluate.table import F64, I64
from focalroute.observe.diversity import focal_diversity

__all__ = [
    "BINS",
    "MOST_TASKS",
    "Calibration",
    "Corrected",
    "asked_by_round",
    "asked_by_task",
    "calibration",
    "consensus",
    "corrected",
    "pairwise_diversity",
    "rolling",
    "rolling_width",
]

#: Bins of the confidence, of equal width.
BINS = 10
#: Tasks that are shown, those with the most test rows first.
MOST_TASKS = 24
_RIGHT = 0.5


@dataclass(frozen=True, slots=True)
class Corrected:
    """What focalroute does to the errors of another method, as shares of the test rows.

    Attributes:
        corrected: right where the other is wrong.
        spoilt: wrong where the other is right.
        errors: where the other is wrong.
    """

    corrected: float
    spoilt: float
    errors: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """How far the confidence can be believed (Guo et al. 2017, On calibration of modern neural networks).

    Attributes:
        count: (`BINS`,) answers whose confidence lies in the bin.
        confidence: (`BINS`,) their mean confidence, NaN in an empty bin.
        accuracy: (`BINS`,) what they were worth on average, NaN in an empty bin.
        expected_error: ECE, the mean of \\|accuracy - confidence\\| over bins, weighted by count; NaN without answers.
    """

    count: I64
    confidence: F64
    accuracy: F64
    expected_error: float


def rolling_width(rows: int) -> int:
    """The width of a rolling mean over so many rows."""
    return max(1, min(200, rows // 4))


def rolling(values: F64, width: int) -> F64:
    """(n - width + 1,) means over each ``width`` consecutive values.

    >>> rolling(np.array([0.0, 1.0, 1.0]), 2).tolist()
    [0.5, 1.0]
    """
    total = np.concatenate([[0.0], np.cumsum(values)])
    mean: F64 = (total[width:] - total[:-width]) / width
    return mean


def asked_by_round(replayed: Replayed) -> F64:
    """(R, N) share of the queries on which a round asked an endpoint, over all seeds; R the most rounds there were."""
    runs = replayed.ours[replayed.shown]
    rounds = max((len(plan) for run in runs for plan in run.plan), default=0)
    found = np.zeros((max(rounds, 1), len(replayed.table.endpoints)))
    for run in runs:
        for plan in run.plan:
            for number, picked in enumerate(plan):
                found[number, list(picked)] += 1
    last = int(np.flatnonzero(found.any(axis=1)).max(initial=0))  # a round that asked nobody is none
    share: F64 = found[: last + 1] / (len(runs) * len(replayed.test))
    return share


def asked_by_task(replayed: Replayed) -> tuple[tuple[str, ...], F64, int]:
    """The tasks, (tasks, N) share of their queries on which an endpoint was asked, and how many tasks are left out.

    Probes are not counted: they are not asked for an answer.
    """
    named = [replayed.table.queries[row].task for row in replayed.test.tolist()]
    counts = Counter(task for task in named if task is not None)
    tasks = tuple(sorted(task for task, _ in counts.most_common(MOST_TASKS)))
    runs = replayed.ours[replayed.shown]
    asked = np.zeros((len(named), len(replayed.table.endpoints)))
    for run in runs:
        for n, plan in enumerate(run.plan):
            asked[n, [endpoint for picked in plan for endpoint in picked]] += 1 / len(runs)
    of = np.array([-1 if task not in tasks else tasks.index(task) for task in named])
    rows = [asked[of == number].mean(axis=0) for number in range(len(tasks))]
    return tasks, np.array(rows).reshape(len(tasks), len(replayed.table.endpoints)), len(counts) - len(tasks)


def pairwise_diversity(replayed: Replayed) -> F64:
    """(N, N) focal diversity of every two endpoints over the test rows that both answered; NaN on the diagonal."""
    known, right = replayed.right()
    n = known.shape[1]
    found = np.full((n, n), np.nan)
    for i in range(n):
        for j in range(i):
            both = known[:, i] & known[:, j]
            if both.any():
                found[i, j] = found[j, i] = focal_diversity(~right[both][:, [i, j]])
    return found


def consensus(replayed: Replayed, method: str | None = None) -> tuple[I64, F64]:
    """(N + 1,) test rows on which exactly n endpoints are right, and what a method's answers are worth on them.

    The paper's consensus plot (arXiv 2502.04492). NaN where there are no such rows.
    """
    number = replayed.right()[1].sum(axis=1)
    size = len(replayed.table.endpoints) + 1
    rows = np.bincount(number, minlength=size)
    total = np.bincount(number, weights=replayed.worth(method).mean(axis=0), minlength=size)
    return rows, np.divide(total, rows, out=np.full(size, np.nan), where=rows > 0)


def corrected(replayed: Replayed, method: str) -> Corrected:
    """Set beside the answers of another method, all seeds; right is worth at least a half."""
    ours, theirs = replayed.worth() >= _RIGHT, replayed.worth(method) >= _RIGHT
    return Corrected(float((ours & ~theirs).mean()), float((theirs & ~ours).mean()), float((~theirs).mean()))


def calibration(replayed: Replayed) -> Calibration:
    """Of the answers at the operating point that is shown, all seeds; queries without an answer are left out."""
    confidence = np.concatenate([run.confidence for run in replayed.ours[replayed.shown]])
    worth = replayed.worth().ravel()
    answered: NDArray[np.bool_] = ~np.isnan(confidence)
    confidence, worth = confidence[answered], worth[answered]
    at = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    count = np.bincount(at, minlength=BINS)

    def mean(values: F64) -> F64:
        total = np.bincount(at, weights=values, minlength=BINS)
        found: F64 = np.divide(total, count, out=np.full(BINS, np.nan), where=count > 0)
        return found

    said, came = mean(confidence), mean(worth)
    error = float(np.nansum(np.abs(said - came) * count) / count.sum()) if count.any() else float("nan")
    return Calibration(count, said, came, error)
