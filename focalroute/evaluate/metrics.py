"""Accuracy, cost and calls of results, with intervals; paired comparisons, corrected for their number.

Intervals are Student's over the means of blocks of 50 consecutive test rows, as neighbouring rows of a stream are alike
(batch means, Schmeiser 1982). With fewer than 500 rows a block is a tenth of them. Differences between training runs
widen an interval: rows and runs are both taken as drawn at random (Owen 2007, "The pigeonhole bootstrap", eq. 5). A
comparison that is one of several has the wider interval of Bonferroni, so that all of them hold together.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

import numpy as np

from focalroute.core.records import F64
from focalroute.evaluate.replay import ReplayResult

#: The results of two methods on the same rows, one for each seed.
Pair: TypeAlias = tuple[Sequence[ReplayResult], Sequence[ReplayResult]]
Key = TypeVar("Key", bound=Hashable)

#: Consecutive test rows in one block.
BLOCK = 50
_LEAST_BLOCKS = 10
_TAIL = 0.025  # probability on either side of a 95 % interval
_WORSE = -0.01  # a lower bound above this is "no worse"


@dataclass(frozen=True, slots=True)
class Score:
    """A method's results on the test part.

    Attributes:
        accuracy: share of right answers; the mean score if there are no labels.
        accuracy_ci95: its 95 % interval.
        cost_usd_per_query: mean USD, float64.
        cost_ratio: total cost / total cost of asking every endpoint; 0 if everything is free.
        calls_per_query: mean number of endpoints asked.
        mean_s: mean seconds until the answer; None: unknown, as in live evaluations.
        p95_s: the 95th percentile of these seconds.
    """

    name: str
    accuracy: float
    accuracy_ci95: tuple[float, float]
    cost_usd_per_query: float
    cost_ratio: float
    calls_per_query: float
    mean_s: float | None = field(default=None, kw_only=True)
    p95_s: float | None = field(default=None, kw_only=True)

    @property
    def title(self) -> str:
        """The name in tables."""
        return self.name

    def cells(self) -> tuple[str, ...]:
        """The cells of a table's row: accuracy, interval, cost ratio, USD for 1,000 queries, calls, seconds."""
        return (
            f"{self.accuracy:.4f}",
            span(self.accuracy_ci95),
            f"{self.cost_ratio:.3f}",
            f"{self.cost_usd_per_query * 1000:.4f}",
            f"{self.calls_per_query:.2f}",
            *("" if seconds is None else f"{seconds:.2f}" for seconds in (self.mean_s, self.p95_s)),
        )


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """One method's accuracy minus another's on the same rows.

    Attributes:
        difference: the mean.
        ci95: its interval, paired; those of all comparisons that were made hold together with 95 %.
        beats: the lower bound is above 0.
        no_worse: the lower bound is above -1 point.
    """

    difference: float
    ci95: tuple[float, float]
    beats: bool
    no_worse: bool

    def cells(self) -> tuple[str, str]:
        """The mean and its interval as a table's cells."""
        return f"{self.difference:+.3f}", span(self.ci95, "+.3f")

    def in_points(self) -> str:
        """The mean and its interval in points."""
        low, high = (100 * end for end in self.ci95)
        return f"{100 * self.difference:+.1f} ({low:+.1f} to {high:+.1f})"


def span(ends: tuple[float, float], form: str = ".3f") -> str:
    """Format an interval as "LOW to HIGH"."""
    return f"{ends[0]:{form}} to {ends[1]:{form}}"


def interval(values: Sequence[F64], *, least: float = 0.0, comparisons: int = 1) -> tuple[float, float]:
    """The 95 % interval of the mean of all values; each array is one run over the same rows, in order.

    If all n rows have the same value, they do not tell how much it varies. Then up to a share 1 - 0.025^(1/n) of
    further rows may have the lowest or highest value, as n rows miss such rows with probability 2.5 %. If all answers
    are right, or all wrong, this is the interval of Clopper & Pearson (1934).

    Args:
        least: the lowest possible value; the highest is 1.
        comparisons: how many intervals hold together with 95 %.
    """
    runs, tail = np.stack(values), _TAIL / comparisons
    mean, rows = float(runs.mean()), runs.shape[1]
    starts = np.arange(0, rows, min(BLOCK, -(-rows // _LEAST_BLOCKS)))
    off = np.add.reduceat(runs - mean, starts, axis=1) * (len(starts) / rows)  # (runs, blocks), of mean 0
    if np.ptp(runs) == 0 or not off.mean(axis=0).any():
        share = tail ** (1 / rows)
        return least + share * (mean - least), 1 - share * (1 - mean)
    error, freedom = _standard_error(off)
    margin = student_quantile(tail, freedom) * error
    return max(mean - margin, least), min(mean + margin, 1.0)


def _standard_error(off: F64) -> tuple[float, float]:
    """The standard error of the mean of (runs, blocks), both drawn at random, and its degrees of freedom.

    Welch & Satterthwaite's degrees of freedom. Runs that differ less than their blocks do by chance add nothing.
    """
    by_run, by_block = off.mean(axis=1), off.mean(axis=0)
    n, k = off.shape
    parts = [(float(by_block @ by_block) / (k * (k - 1)), k - 1)]
    if n > 1:
        rest = off - by_run[:, None] - by_block
        common = float(by_run @ by_run) / (n * (n - 1)) - float((rest * rest).sum()) / (n * k * (n - 1) * (k - 1))
        parts.append((max(common, 0.0), n - 1))
    variance = sum(part for part, _ in parts)
    return math.sqrt(variance), variance**2 / sum(part**2 / freedom for part, freedom in parts)


def student_quantile(tail: float, freedom: float) -> float:
    """Return the value that Student's t exceeds with probability ``tail``, which is below 0.5."""
    # t is sqrt(freedom) tan(angle), where the density of the angle is proportional to cos(angle)^(freedom - 1).
    angles = np.linspace(0, math.pi / 2, 10_001)
    density = np.cos(angles) ** (freedom - 1)
    steps = (density[1:] + density[:-1]) / 2
    above = np.append(np.cumsum(steps[::-1])[::-1], 0.0) / (2 * steps.sum())
    return math.sqrt(freedom) * math.tan(float(np.interp(-tail, -above, angles)))


def score(name: str, runs: Sequence[ReplayResult], ask_all_usd: float) -> Score:
    """Score results, one for each seed; ``ask_all_usd``: the cost of asking every endpoint on these rows."""
    paid = float(np.mean([run.usd.sum() for run in runs]))
    timed = {}
    if seconds := [run.seconds for run in runs if run.seconds is not None]:
        p95 = float(np.mean([np.quantile(run, 0.95) for run in seconds]))
        timed = {"mean_s": float(np.mean(seconds)), "p95_s": p95}
    return Score(
        name=name,
        accuracy=float(np.mean([run.worth.mean() for run in runs])),
        accuracy_ci95=interval([run.worth for run in runs]),
        cost_usd_per_query=paid / len(runs[0].usd),
        cost_ratio=paid / ask_all_usd if ask_all_usd else 0.0,
        calls_per_query=float(np.mean([run.asked.sum(axis=1).mean() for run in runs])),
        **timed,
    )


def mixed(first: Sequence[ReplayResult], second: Sequence[ReplayResult], share: float) -> list[ReplayResult]:
    """The expected results of using the second with probability ``share``, else the first; ``asked`` is the first's."""
    return [
        ReplayResult((1 - share) * a.worth + share * b.worth, (1 - share) * a.usd + share * b.usd, a.asked)
        for a, b in zip(first, second, strict=True)
    ]


def compare(pairs: Mapping[Key, Pair]) -> dict[Key, PairedDifference]:
    """Compare named pairs of methods, each on the same rows; with 95 % all of their intervals hold.

    Raises:
        ValueError: the rows of a pair are not the same number.
    """
    found = {}
    for name, (one, other) in pairs.items():
        if len(one) != len(other) or any(len(a.worth) != len(b.worth) for a, b in zip(one, other, strict=False)):
            raise ValueError("both methods must be played on the same rows, with as many seeds")
        differences = [a.worth - b.worth for a, b in zip(one, other, strict=True)]
        low, high = interval(differences, least=-1.0, comparisons=len(pairs))
        found[name] = PairedDifference(float(np.mean(differences)), (low, high), low > 0, low > _WORSE)
    return found


def on_curve(
    cost_ratio: float, points: Sequence[Score], curve: Sequence[Sequence[ReplayResult]]
) -> Sequence[ReplayResult] | None:
    """Focalroute's curve at a cost; None if that is less than what every point costs.

    Between neighbouring points the curve is linear, as they can be mixed at random; beyond the last it is flat.
    """
    order = sorted(range(len(points)), key=lambda n: points[n].cost_ratio)
    below = [n for n in order if points[n].cost_ratio <= cost_ratio]
    if not below:
        return None
    low = below[-1]
    if len(below) == len(order):
        return curve[low]
    high = order[len(below)]
    cheap, dear = points[low].cost_ratio, points[high].cost_ratio
    return mixed(curve[low], curve[high], (cost_ratio - cheap) / (dear - cheap))
