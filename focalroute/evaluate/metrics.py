"""Accuracy, cost and calls of results, with bootstrap intervals; paired comparisons.

Neighbouring rows of a stream are alike, so blocks of 50 consecutive test rows are resampled, not single rows (Künsch
1989, non-overlapping as in Carlstein 1986); the last block may be shorter. With fewer than 500 rows a block is a tenth
of them, as a handful of blocks would make the interval too narrow, and a single one a point. Ten blocks still do, a
little: such an interval holds the truth in 90 %, not 95 % (docs/evaluating.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from focalroute.core.records import F64
from focalroute.evaluate.replay import ReplayResult

#: Consecutive test rows in one block of the bootstrap.
BLOCK = 50
_LEAST_BLOCKS = 10
_RESAMPLES = 2000
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

    def cells(self, digits: int = 4) -> tuple[str, ...]:
        """The cells of a table's row: accuracy, interval, cost ratio, USD for 1,000 queries, calls, seconds."""
        return (
            f"{self.accuracy:.{digits}f}",
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
        ci95: its 95 % interval, paired.
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


def interval(values: Sequence[F64], *, least: float = 0.0, seed: int = 0) -> tuple[float, float]:
    """The 95 % percentile interval of the mean of all values; each array is one run over the same rows, in order.

    Rows are resampled: a block comes with the values of all runs, as the runs are not independent on the same rows.

    If all n rows have the same value, resampling cannot vary it. Then up to a share 1 - 0.025^(1/n) of further rows may
    have the lowest or highest value, as n rows miss such rows with probability 2.5 %. If all answers are right, or all
    wrong, this is the interval of Clopper & Pearson (1934).

    Args:
        least: the lowest possible value; the highest is 1.
    """
    rows = np.mean(values, axis=0)
    if np.ptp(rows) == 0:
        value, share = float(rows[0]), _TAIL ** (1 / len(rows))
        return least + share * (value - least), 1 - share * (1 - value)
    size = min(BLOCK, -(-len(rows) // _LEAST_BLOCKS))
    blocks = [rows[at : at + size] for at in range(0, len(rows), size)]
    sums, sizes = np.array([block.sum() for block in blocks]), np.array([len(block) for block in blocks])
    drawn = np.random.default_rng(seed).integers(len(blocks), size=(_RESAMPLES, len(blocks)))
    means = sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1)
    low, high = np.percentile(means, (100 * _TAIL, 100 - 100 * _TAIL)).tolist()
    return low, high


def score(name: str, runs: Sequence[ReplayResult], ask_all_usd: float, *, seed: int = 0) -> Score:
    """Score results, one for each seed; ``ask_all_usd``: the cost of asking every endpoint on these rows."""
    paid = float(np.mean([run.usd.sum() for run in runs]))
    timed = {}
    if seconds := [run.seconds for run in runs if run.seconds is not None]:
        p95 = float(np.mean([np.quantile(run, 0.95) for run in seconds]))
        timed = {"mean_s": float(np.mean(seconds)), "p95_s": p95}
    return Score(
        name=name,
        accuracy=float(np.mean([run.worth.mean() for run in runs])),
        accuracy_ci95=interval([run.worth for run in runs], seed=seed),
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


def compare(one: Sequence[ReplayResult], other: Sequence[ReplayResult], *, seed: int = 0) -> PairedDifference:
    """Compare two methods on the same rows, with one `ReplayResult` for each seed.

    Raises:
        ValueError: the rows do not pair up.
    """
    if len(one) != len(other) or any(len(a.worth) != len(b.worth) for a, b in zip(one, other, strict=False)):
        raise ValueError("both methods must be played on the same rows, with as many seeds")
    differences = [a.worth - b.worth for a, b in zip(one, other, strict=True)]
    low, high = interval(differences, least=-1.0, seed=seed)
    return PairedDifference(float(np.concatenate(differences).mean()), (low, high), low > 0, low > _WORSE)


def beside_curve(
    method: Score,
    played: Sequence[ReplayResult],
    points: Sequence[Score],
    curve: Sequence[Sequence[ReplayResult]],
    *,
    seed: int = 0,
) -> PairedDifference | None:
    """Focalroute's curve at the method's cost, minus the method; None if the method costs less than every point.

    Between neighbouring points the curve is linear, as they can be mixed at random; beyond the last it is flat.
    """
    order = sorted(range(len(points)), key=lambda n: points[n].cost_ratio)
    below = [n for n in order if points[n].cost_ratio <= method.cost_ratio]
    if not below:
        return None
    low = below[-1]
    found = curve[low]
    if len(below) < len(order):
        high = order[len(below)]
        cheap, dear = points[low].cost_ratio, points[high].cost_ratio
        found = mixed(found, curve[high], (method.cost_ratio - cheap) / (dear - cheap))
    return compare(found, played, seed=seed)
