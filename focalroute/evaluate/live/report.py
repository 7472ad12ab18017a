"""The table of a live evaluation: accuracy, calls and cost with intervals, and what DER is worth at equal cost."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from focalroute.evaluate.metrics import PairedDifference, Score, compare, score
from focalroute.evaluate.points import beside_curve
from focalroute.evaluate.replay import ReplayResult

_PIPED_WIDTH = 120

#: Family -> how the names of its rows begin; its curve is made of all its rows.
FAMILIES: Mapping[str, tuple[str, ...]] = {
    "single": ("single ",),
    "round-robin": ("round-robin ",),
    "self-correction": ("single ", "self-correction "),
}


@dataclass(frozen=True, slots=True)
class LiveReport:
    """What a live evaluation found.

    Attributes:
        title: of what, for people.
        n_test: queries that were scored, all seeds together.
        seeds: how many.
        scored: "accuracy", or the name of the quality metric.
        methods: one row a strategy. Cost ratios are to plurality, which asks everybody once.
        equal_cost: DER's row -> family -> DER minus the family's curve at DER's cost (see `live_report`).
        minus: DER's row -> any other row -> DER minus it, whatever both cost.
    """

    title: str
    n_test: int
    seeds: int
    scored: str
    methods: tuple[Score, ...]
    equal_cost: Mapping[str, Mapping[str, PairedDifference]]
    minus: Mapping[str, Mapping[str, PairedDifference]]

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return dataclasses.asdict(self)


def live_report(title: str, played: Mapping[str, ReplayResult], *, seeds: int, scored: str = "accuracy") -> LiveReport:
    """Score what was played on the same queries.

    A family's curve is the upper envelope of its rows in cost and accuracy, linear in between: any two of them may be
    played by chance. It is taken on the very queries that are scored, which favours the family. Where DER costs less
    than all of it, DER is set beside its cheapest row.
    """
    everybody = float(played["plurality"].usd.sum())
    methods = {name: score(name, [one], everybody) for name, one in played.items()}
    ours = [name for name in played if name.startswith("der ")]
    beside = {
        name: {
            family: _beside(name, [row for row in played if row.startswith(starts)], methods, played)
            for family, starts in FAMILIES.items()
        }
        for name in ours
    }
    minus = {
        name: {other: compare([played[name]], [one]) for other, one in played.items() if other != name} for name in ours
    }
    n = len(played["plurality"].worth)
    return LiveReport(title, n, seeds, scored, tuple(methods.values()), beside, minus)


def _beside(
    name: str, rows: Sequence[str], methods: Mapping[str, Score], played: Mapping[str, ReplayResult]
) -> PairedDifference:
    curve = _envelope([methods[row] for row in rows])
    found = beside_curve(methods[name], [played[name]], curve, [[played[point.name]] for point in curve])
    if found is None:
        return compare([played[name]], [played[curve[0].name]])
    low, high = 0.0 - found.ci95[1], 0.0 - found.ci95[0]
    return PairedDifference(0.0 - found.difference, (low, high), low > 0, low > -0.01)


def _envelope(points: Sequence[Score]) -> list[Score]:
    """The points that no mixture of two others beats at their cost, from the cheapest to the most accurate."""
    hull: list[Score] = []
    for point in sorted(points, key=lambda p: (p.cost_ratio, -p.accuracy)):
        if hull and point.accuracy <= hull[-1].accuracy:
            continue
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) <= _slope(hull[-2], point):
            hull.pop()
        hull.append(point)
    return hull


def _slope(a: Score, b: Score) -> float:
    return (b.accuracy - a.accuracy) / max(b.cost_ratio - a.cost_ratio, 1e-12)


def show_live(report: LiveReport) -> None:
    """Print the report as two tables, the most accurate first."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    seeds = "1 seed" if report.seeds == 1 else f"{report.seeds} seeds"
    grid = Table(box=SIMPLE, title=f"{report.title}: {report.n_test} queries, {seeds}")
    for column in ("", report.scored, "95 %", "calls", "$ / 1000", "cost ratio"):
        grid.add_column(column, justify="right" if column else "left", no_wrap=True)
    for row in sorted(report.methods, key=lambda row: -row.accuracy):
        low, high = row.accuracy_ci95
        grid.add_row(
            row.name,
            f"{row.accuracy:.3f}",
            f"{low:.3f} to {high:.3f}",
            f"{row.calls_per_query:.2f}",
            f"{row.cost_usd_per_query * 1000:.4f}",
            f"{row.cost_ratio:.3f}",
            style="bold" if row.name in report.minus else None,
        )
    equal = Table(box=SIMPLE, title="DER minus the best of a family at the same cost; *: beats it")
    for column in ("", *FAMILIES):
        equal.add_column(column, justify="right" if column else "left", no_wrap=True)
    for name, families in report.equal_cost.items():
        equal.add_row(name, *(_difference(families[family]) for family in FAMILIES), style="bold")
    console = Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH)
    console.print(grid)
    console.print(equal)
    console.print(
        "Answered first, then revealed. @ n: the chain cut after n steps. Cost ratio: to asking everybody once "
        "(plurality). A family may be mixed by chance, and is chosen in hindsight; self-correction's holds the single "
        "endpoints, too."
    )


def _difference(found: PairedDifference) -> str:
    beats = "*" if found.beats else " "
    return f"{found.difference:+.3f}{beats} ({found.ci95[0]:+.3f} to {found.ci95[1]:+.3f})"
