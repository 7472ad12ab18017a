"""Computes the drawings of a page as plain numbers, from arrays of n queries and N endpoints.

An evaluation's JSON has them, too. None stands for a missing value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from focalroute.core.records import F64, I64, Bools
from focalroute.observe.diversity import focal_diversity

#: Confidence bins of equal width.
BINS = 15
#: A bin with fewer answers is imprecise, and drawn hollow.
FEW_IN_BIN = 10
#: The number of tasks to show, those with the most queries.
MOST_TASKS = 24
#: How to read a calibration.
CALIBRATION = (
    f"Answers in {BINS} bins by their confidence, with the mean worth of each bin; hollow: fewer than {FEW_IN_BIN} "
    "answers. On the dashed line, confidence equals worth; below it, answers are overconfident. Expected calibration "
    "error, the mean distance from that line: "
)
#: An answer counts as right if it is worth at least this.
RIGHT = 0.5
_MOST_POINTS = 400

Value = float | None
#: The unit of cost: the share of asking every endpoint, USD per 1,000 queries, or calls per query (if all calls are
#: free, or of unknown cost).
CostAxis = Literal["share", "usd", "calls"]


@dataclass(frozen=True, slots=True)
class MethodPoint:
    """A method's cost and quality, with the quality's 95 % interval from ``low`` to ``high``.

    Attributes:
        ours: whether it is one of focalroute's operating points, which are joined by a line.
        hollow: whether a comparison with it would not be fair; the caption says why.
    """

    name: str
    cost: float
    quality: float
    low: float
    high: float
    ours: bool = False
    hollow: bool = False


@dataclass(frozen=True, slots=True)
class CostQuality:
    """Quality against cost; ``scored`` names the quality."""

    dots: Sequence[MethodPoint]
    scored: str
    axis: CostAxis


@dataclass(frozen=True, slots=True)
class Series:
    """A method's values along an axis."""

    name: str
    values: Sequence[Value]


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """An event after ``at`` queries, described by ``what``; it gets a number if it was detected (``found``)."""

    at: float
    what: str
    found: bool = True


@dataclass(frozen=True, slots=True)
class OverTime:
    """Rolling means along a stream of queries: quality above, cost and seconds below.

    Attributes:
        width: queries in each mean.
        at: number of the last query of each mean, 1-based; all lines have as many values.
        cost: focalroute's cost.
        seconds: seconds until focalroute's answers.
        along: the axis label.
    """

    width: int
    at: Sequence[float]
    lines: Sequence[Series]
    cost: Sequence[Value]
    seconds: Sequence[Value]
    scored: str
    axis: CostAxis
    along: str
    marks: Sequence[StreamEvent] = ()


@dataclass(frozen=True, slots=True)
class ErrorCorrection:
    """How focalroute's errors differ from another method's, as shares of the queries that both answered.

    Attributes:
        corrected: share on which focalroute is right and the other wrong.
        spoilt: share on which focalroute is wrong and the other right.
        errors: share on which the other is wrong.
        queries: number of queries that both answered.
    """

    corrected: float
    spoilt: float
    errors: float
    queries: int


@dataclass(frozen=True, slots=True)
class ErrorComparison:
    """Method -> how focalroute's errors differ from the method's."""

    found: Mapping[str, ErrorCorrection]


@dataclass(frozen=True, slots=True)
class WhenRight:
    """The worth of answers when exactly n members are right, n from 0: RL-Focal's consensus plot (figure 4).

    Attributes:
        rows: number of queries for each n.
        lines: the mean worth of each method's answers to them.
        members: the axis label, which says what n counts.
    """

    rows: Sequence[int]
    lines: Sequence[Series]
    scored: str
    members: str


@dataclass(frozen=True, slots=True)
class Calibration:
    """The quality of answers by their confidence, in bins of equal width (Guo et al. 2017, arXiv 1706.04599).

    Attributes:
        count: number of answers in the bin.
        confidence: their mean confidence.
        quality: their mean worth.
        expected_error: ECE, the mean of \\|quality - confidence\\| over bins, weighted by count.
    """

    count: Sequence[int]
    confidence: Sequence[Value]
    quality: Sequence[Value]
    expected_error: Value
    scored: str


@dataclass(frozen=True, slots=True)
class AskedByRound:
    """The share of the queries on which each endpoint is asked; ``shares`` has one row for each round."""

    names: Sequence[str]
    shares: Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True)
class Heatmap:
    """Values in [0, 1], row by row, shown with this number of ``digits``; 0: as percent."""

    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[Value]]
    digits: int


@dataclass(frozen=True, slots=True)
class VersionHistories:
    """Several figures of an update, each with its value for each version of a policy."""

    versions: Sequence[int]
    lines: Sequence[Series]


@dataclass(frozen=True, slots=True)
class CallSpan:
    """One call of an answer, in seconds since it was asked; see `focalroute.core.receipts.Call`."""

    endpoint: str
    queued: float
    sent: Value
    first_token: Value
    ended: float
    outcome: Literal["done", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class AskTimeline:
    """The calls of one answer, which was complete after ``ended`` seconds."""

    title: str
    calls: Sequence[CallSpan]
    ended: float


@dataclass(frozen=True, slots=True)
class Timelines:
    """The timelines of some answers."""

    asks: Sequence[AskTimeline]


Drawing = (
    CostQuality
    | OverTime
    | ErrorComparison
    | WhenRight
    | Calibration
    | AskedByRound
    | Heatmap
    | VersionHistories
    | Timelines
)


def plain_values(found: F64) -> tuple[Value, ...]:
    """Round an array to plain numbers; NaN becomes None."""
    return tuple(None if np.isnan(value) else round(value, 6) for value in found.tolist())


def rolling_width(rows: int) -> int:
    """Choose the width of a rolling mean over this number of rows."""
    return max(1, min(200, rows // 4))


def rolling_means(found: F64, width: int) -> F64:
    """Average each ``width`` consecutive values, shape (n - width + 1,).

    >>> rolling_means(np.array([0.0, 1.0, 1.0]), 2).tolist()
    [0.5, 1.0]
    """
    total = np.concatenate([[0.0], np.cumsum(found)])
    mean: F64 = (total[width:] - total[:-width]) / width
    return mean


def thinned_indices(size: int) -> I64:
    """Choose at most 400 indices into ``size`` values, including first and last; more would look the same."""
    return np.unique(np.linspace(0, size - 1, min(size, _MOST_POINTS)).round().astype(np.int64))


def measure_over_time(
    methods: Mapping[str, F64],
    cost: F64,
    seconds: F64,
    marks: Sequence[StreamEvent],
    *,
    scored: str,
    axis: CostAxis,
    along: str,
) -> OverTime:
    """Average along a stream.

    Args:
        methods: (n,) worth of each method's answers.
        cost: rolling means of focalroute's cost.
        seconds: (n,) seconds until focalroute's answers.
    """
    width = rolling_width(len(seconds))
    kept = thinned_indices(len(cost))
    at = tuple((kept + width).tolist())
    lines = tuple(Series(name, plain_values(rolling_means(worth, width)[kept])) for name, worth in methods.items())
    costs, waits = plain_values(cost[kept]), plain_values(rolling_means(seconds, width)[kept])
    return OverTime(width, at, lines, costs, waits, scored, axis, along, marks)


def measure_diversity(names: Sequence[str], known: Bools, right: Bools, least: int = 1) -> Heatmap:
    """Measure the focal diversity of every two endpoints over the rows on which both are known.

    Args:
        names: the names of the N endpoints.
        known: (n, N) whether it is known if an endpoint was right.
        right: (n, N) whether the endpoint was right.
        least: the least rows for two endpoints to have a value.
    """
    size = len(names)
    found = np.full((size, size), np.nan)
    for i in range(size):
        for j in range(i):
            both = known[:, i] & known[:, j]
            if both.sum() >= least:
                found[i, j] = found[j, i] = focal_diversity(~right[both][:, [i, j]])
    return Heatmap(names, names, tuple(map(plain_values, found)), 2)


def measure_tasks(tasks: Sequence[str], asked: F64, names: Sequence[str]) -> tuple[Heatmap | None, int]:
    """Return the share of each task's queries on which each endpoint was asked, and the number of tasks left out.

    Args:
        tasks: the tasks of the n queries that have one.
        asked: (n, N) whether an endpoint was asked, or in which share of all runs.
        names: the names of the N endpoints.
    """
    counts = Counter(tasks)
    if not counts:
        return None, 0
    kept = tuple(sorted(task for task, _ in counts.most_common(MOST_TASKS)))
    task_of = np.array(tasks, object)
    rows = tuple(plain_values(asked[task_of == task].mean(axis=0)) for task in kept)
    return Heatmap(kept, names, rows, 0), len(counts) - len(kept)


def measure_when_right(number: I64, methods: Mapping[str, F64], most: int, *, scored: str, members: str) -> WhenRight:
    """Average the worth of answers over the queries for which exactly n members are right.

    Args:
        number: (n,) number of members that are right.
        methods: (n,) worth of each method's answers.
        most: the largest possible number.
    """
    rows = np.bincount(number, minlength=most + 1)
    lines = []
    for name, worth in methods.items():
        total = np.bincount(number, weights=worth, minlength=most + 1)
        lines.append(Series(name, plain_values(np.divide(total, rows, out=np.full(most + 1, np.nan), where=rows > 0))))
    return WhenRight(tuple(rows.tolist()), tuple(lines), scored, members)


def compare_errors(ours: F64, theirs: F64) -> ErrorCorrection:
    """Compare answers, (..., n): 1 is right, 0 wrong, and a value between is the probability of being right."""
    return ErrorCorrection(
        round(float((ours * (1 - theirs)).mean()), 6),
        round(float((theirs * (1 - ours)).mean()), 6),
        round(float((1 - theirs).mean()), 6),
        ours.shape[-1],
    )


def measure_calibration(confidence: F64, worth: F64, scored: str) -> Calibration:
    """Bin answers by their confidence; those without (NaN) are left out."""
    answered: Bools = ~np.isnan(confidence)
    confidence, worth = confidence[answered], worth[answered]
    at = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    count = np.bincount(at, minlength=BINS)

    def mean(found: F64) -> F64:
        total = np.bincount(at, weights=found, minlength=BINS)
        each: F64 = np.divide(total, count, out=np.full(BINS, np.nan), where=count > 0)
        return each

    predicted, actual = mean(confidence), mean(worth)
    error = None
    if count.any():
        error = round(float(np.nansum(np.abs(predicted - actual) * count) / count.sum()), 6)
    return Calibration(tuple(count.tolist()), plain_values(predicted), plain_values(actual), error, scored)
