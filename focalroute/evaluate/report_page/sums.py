"""From what was played, or what is stored, to what is drawn: n queries, N endpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from focalroute.evaluate.report_page.drawings import Calibration, Corrected, Grid, Line, Value, WhenRight
from focalroute.observe.diversity import focal_diversity

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]

#: Bins of the confidence, of equal width.
BINS = 10
#: Answers below which a bin says little, and is drawn hollow.
FEW_IN_BIN = 10
#: Tasks that are shown, those with the most queries first.
MOST_TASKS = 24
#: How to read a calibration.
CALIBRATION = (
    f"Answers by their confidence, in {BINS} bins, and what those of a bin turned out to be worth; hollow: fewer than "
    f"{FEW_IN_BIN} answers. On the dashed line it is just as sure as it is right; below it is too sure. Expected "
    "calibration error, the mean distance from that line: "
)
#: An answer counts as right if it is worth at least this.
RIGHT = 0.5
_MOST_POINTS = 400


def values(found: F64, digits: int = 6) -> tuple[Value, ...]:
    """As plain numbers, rounded; NaN is None."""
    return tuple(None if np.isnan(value) else round(value, digits) for value in found.tolist())


def rolling_width(rows: int) -> int:
    """The width of a rolling mean over so many rows."""
    return max(1, min(200, rows // 4))


def rolling(found: F64, width: int) -> F64:
    """(n - width + 1,) means over each ``width`` consecutive values.

    >>> rolling(np.array([0.0, 1.0, 1.0]), 2).tolist()
    [0.5, 1.0]
    """
    total = np.concatenate([[0.0], np.cumsum(found)])
    mean: F64 = (total[width:] - total[:-width]) / width
    return mean


def thinned(size: int) -> I64:
    """Indices into ``size`` values, first and last among them, of no more than can be told apart in a drawing."""
    return np.unique(np.linspace(0, size - 1, min(size, _MOST_POINTS)).round().astype(np.int64))


def rolled(methods: Mapping[str, F64], width: int) -> tuple[tuple[float, ...], tuple[Line, ...]]:
    """Where rolling means of (n,) values stand, and the means, thinned."""
    size = len(next(iter(methods.values()))) - width + 1
    kept = thinned(size)
    lines = tuple(Line(name, values(rolling(found, width)[kept])) for name, found in methods.items())
    return tuple((kept + width).tolist()), lines


def diversity(names: Sequence[str], known: Bools, right: Bools, least: int = 1) -> Grid:
    """Focal diversity of every two endpoints over the rows on which both are known; none under ``least`` rows.

    Args:
        names: N.
        known: (n, N) whether it is known if an endpoint was right.
        right: (n, N) whether it was.
    """
    size = len(names)
    found = np.full((size, size), np.nan)
    for i in range(size):
        for j in range(i):
            both = known[:, i] & known[:, j]
            if both.sum() >= least:
                found[i, j] = found[j, i] = focal_diversity(~right[both][:, [i, j]])
    return Grid(names, names, tuple(map(values, found)), 2)


def when_right(number: I64, methods: Mapping[str, F64], most: int, *, scored: str, members: str) -> WhenRight:
    """What answers are worth on the queries on which exactly n members are right.

    Args:
        number: (n,) members that are right.
        methods: (n,) what the answers of each were worth.
        most: the largest n there can be.
    """
    rows = np.bincount(number, minlength=most + 1)
    lines = []
    for name, worth in methods.items():
        total = np.bincount(number, weights=worth, minlength=most + 1)
        lines.append(Line(name, values(np.divide(total, rows, out=np.full(most + 1, np.nan), where=rows > 0))))
    return WhenRight(tuple(rows.tolist()), tuple(lines), scored, members)


def corrected(ours: F64, theirs: F64) -> Corrected:
    """Set side by side; (..., n), 1 right, 0 wrong, between: right with that probability."""
    return Corrected(
        round(float((ours * (1 - theirs)).mean()), 6),
        round(float((theirs * (1 - ours)).mean()), 6),
        round(float((1 - theirs).mean()), 6),
        ours.shape[-1],
    )


def calibration(confidence: F64, worth: F64, scored: str) -> Calibration:
    """Of answers whose confidence is known; NaN is left out."""
    answered: Bools = ~np.isnan(confidence)
    confidence, worth = confidence[answered], worth[answered]
    at = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    count = np.bincount(at, minlength=BINS)

    def mean(found: F64) -> F64:
        total = np.bincount(at, weights=found, minlength=BINS)
        each: F64 = np.divide(total, count, out=np.full(BINS, np.nan), where=count > 0)
        return each

    said, came = mean(confidence), mean(worth)
    error = round(float(np.nansum(np.abs(said - came) * count) / count.sum()), 6) if count.any() else None
    return Calibration(tuple(count.tolist()), values(said), values(came), error, scored)
