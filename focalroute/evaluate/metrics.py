"""Scores results (accuracy, cost, calls, seconds) with confidence intervals, and compares methods in pairs.

Intervals are Student's t intervals over the means of blocks of 50 consecutive test rows, as neighbouring rows of a
stream are correlated (batch means, Schmeiser 1982). With fewer than 500 rows, a block is a tenth of them. With several
seeds, rows and training runs are both treated as random samples, so differences between runs widen the interval (Owen
2007, "The pigeonhole bootstrap", eq. 5). If several comparisons are made, their intervals are widened by Bonferroni's
correction, so that all of them hold together with 95 % probability.
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
_NO_WORSE = -0.01  # a method is "no worse" if the lower bound of its difference is above this


@dataclass(frozen=True, slots=True)
class Score:
    """A method's results on the test part.

    Attributes:
        accuracy: share of right answers; the mean score if there are no labels.
        accuracy_ci95: its 95 % interval.
        cost_usd_per_query: mean cost, USD.
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
        difference: the mean difference.
        ci95: its interval; the intervals of all comparisons made together hold with 95 % probability.
        beats: whether the lower bound is above 0.
        no_worse: whether the lower bound is above -1 point.
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
    """Return the 95 % interval of the mean of all values.

    If all n rows have the same value, their variation is unknown. Then the interval allows for a share 1 - 0.025^(1/n)
    of unseen rows with the lowest or the highest value: with probability 2.5 % none of n rows is one of them. If all
    answers are right, or all wrong, this is the interval of Clopper & Pearson (1934).

    Args:
        values: one array for each run (seed), all over the same rows, in order.
        least: the lowest possible value; the highest is 1.
        comparisons: the number of intervals that are to hold together with 95 % probability.
    """
    runs, tail = np.stack(values), _TAIL / comparisons
    mean, rows = float(runs.mean()), runs.shape[1]
    block = min(BLOCK, math.ceil(rows / _LEAST_BLOCKS))
    starts = np.arange(0, rows, block)
    # (runs, blocks): the deviation of each block from the mean, which add up to 0
    deviations = np.add.reduceat(runs - mean, starts, axis=1) * (len(starts) / rows)
    if np.ptp(runs) == 0 or not deviations.mean(axis=0).any():
        share = tail ** (1 / rows)
        return least + share * (mean - least), 1 - share * (1 - mean)
    error, freedom = _standard_error(deviations)
    margin = student_quantile(tail, freedom) * error
    return max(mean - margin, least), min(mean + margin, 1.0)


def _standard_error(deviations: F64) -> tuple[float, float]:
    """Return the standard error of a mean over (runs, blocks), and its degrees of freedom (Welch & Satterthwaite).

    Runs and blocks are both random samples. The variance between runs is reduced by what the differences between their
    blocks explain, and is at least 0.
    """
    by_run, by_block = deviations.mean(axis=1), deviations.mean(axis=0)
    n, k = deviations.shape
    parts = [(float(by_block @ by_block) / (k * (k - 1)), k - 1)]
    if n > 1:
        rest = deviations - by_run[:, None] - by_block
        between = float(by_run @ by_run) / (n * (n - 1)) - float((rest * rest).sum()) / (n * k * (n - 1) * (k - 1))
        parts.append((max(between, 0.0), n - 1))
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
    """Score a method's results.

    Args:
        name: the method.
        runs: its results, one for each seed.
        ask_all_usd: the total cost of asking every endpoint on these rows.
    """
    paid = float(np.mean([run.usd.sum() for run in runs]))
    mean_s = p95_s = None
    if seconds := [run.seconds for run in runs if run.seconds is not None]:
        mean_s = float(np.mean(seconds))
        p95_s = float(np.mean([np.quantile(run, 0.95) for run in seconds]))
    return Score(
        name=name,
        accuracy=float(np.mean([run.worth.mean() for run in runs])),
        accuracy_ci95=interval([run.worth for run in runs]),
        cost_usd_per_query=paid / len(runs[0].usd),
        cost_ratio=paid / ask_all_usd if ask_all_usd else 0.0,
        calls_per_query=float(np.mean([run.asked.sum(axis=1).mean() for run in runs])),
        mean_s=mean_s,
        p95_s=p95_s,
    )


def mixed(first: Sequence[ReplayResult], second: Sequence[ReplayResult], share: float) -> list[ReplayResult]:
    """Return the expected results of a random mixture: each query by the second with probability ``share``.

    Only worth and cost are mixed; ``asked`` is that of the first.
    """
    return [
        ReplayResult((1 - share) * a.worth + share * b.worth, (1 - share) * a.usd + share * b.usd, a.asked)
        for a, b in zip(first, second, strict=True)
    ]


def compare(pairs: Mapping[Key, Pair]) -> dict[Key, PairedDifference]:
    """Compare pairs of methods: the accuracy of the first minus that of the second.

    All intervals hold together with 95 % probability.

    Raises:
        ValueError: the methods of a pair have different numbers of rows or seeds.
    """
    found = {}
    for name, (one, other) in pairs.items():
        if [len(run.worth) for run in one] != [len(run.worth) for run in other]:
            raise ValueError("both methods must be played on the same rows with the same number of seeds")
        differences = [a.worth - b.worth for a, b in zip(one, other, strict=True)]
        low, high = interval(differences, least=-1.0, comparisons=len(pairs))
        found[name] = PairedDifference(float(np.mean(differences)), (low, high), low > 0, low > _NO_WORSE)
    return found


def on_curve(
    cost_ratio: float, points: Sequence[Score], curve: Sequence[Sequence[ReplayResult]]
) -> Sequence[ReplayResult] | None:
    """Return the results of a cost-quality curve at a cost ratio; None if every point of the curve costs more.

    Between neighbouring points the curve is linear, as a random mixture of both attains it; beyond the last it is flat.

    Args:
        cost_ratio: where to read the curve.
        points: the scores of the curve's points, in any order.
        curve: the results of each point, one for each seed.
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
