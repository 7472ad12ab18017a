"""Compares published routers and the cascade, each held to several costs, with focalroute's cost-quality curve.

``python -m tests.benchmarks.rivals --seeds 5`` trains and replays (an hour of one core), and writes the results on each
log to the folder ``--json``. Given such files, it only prints their table.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from focalroute.evaluate.baselines import First, fitted, routed
from focalroute.evaluate.job_engine import HERE
from focalroute.evaluate.metrics import compare, on_curve, score
from focalroute.evaluate.playing import Stage
from focalroute.evaluate.replay import Strategy, Training, play
from focalroute.evaluate.table import SplitKind, learning_order, split
from focalroute.evaluate.training import read_table
from focalroute.evaluate.votes import cascade
from focalroute.learn.offline.reinforce import OfflineSettings
from focalroute.policy.routers import ROUTERS, TextRouter
from tests.benchmarks.harness import play_or_read

OURS = "focalroute"
#: Log -> a method and its published results on the same test part, at the points nearest to ours: that of the log's
#: maker, or a policy trained for this pool alone (long, with complete information), served greedily and not updated.
STATED: Mapping[str, tuple[str, Sequence[str]]] = {
    "pareto3": (
        "ParetoBandit, as published",
        ("0.813 @ 8.3e-5", "0.859 @ 2.3e-4", "0.898 @ 6.5e-4", "0.917 @ 1.7e-3", "0.924 @ 4.7e-3", "0.929 @ 1.1e-2"),
    ),
    "mmlupro12": (
        "trained for the pool",
        ("0.635 @ 0.113", "", "0.668 @ 0.210", "0.674 @ 0.320", "0.675 @ 0.355"),
    ),
    "mmlu9": ("trained for the pool", ("0.818 @ 0.059", "0.827 @ 0.117", "0.829 @ 0.135", "0.831 @ 0.181")),
}


class Case(NamedTuple):
    """A log, the costs to hold (cost ratios, or USD per query if ``usd``), and how the log is split."""

    log: str
    points: Sequence[float]
    split_by: SplitKind = "stream"
    usd: bool = False
    train_fraction: float = 0.8

    @property
    def title(self) -> str:
        """The name of its rows."""
        return self.log + (", per-task" if self.split_by == "per-task" else "")


CASES = (
    Case("mmlupro12", (0.1, 0.15, 0.2, 0.3, 0.35)),
    Case("mmlu9", (0.06, 0.1, 0.135, 0.18, 0.3)),
    Case("zeroeval12", (0.06, 0.1, 0.2, 0.3, 0.5)),
    Case("zeroeval12", (0.06, 0.1, 0.2, 0.3, 0.5), "per-task"),
    Case("llmrouter9", (0.06, 0.1, 0.16, 0.2, 0.24)),
    Case("llmrouter9", (0.06, 0.1, 0.16, 0.2, 0.24), "per-task"),
    Case("pareto3", (8.3e-5, 2.3e-4, 6.5e-4, 1.7e-3, 4.7e-3, 1.1e-2), usd=True, train_fraction=0.4946),
)


def main() -> None:
    """Train and replay, or read results; then print the table."""
    found = play_or_read(__doc__, "build/rivals", {case.title: case for case in CASES}, measured)
    print("\n".join(table(found)))


def measured(case: Case, data: Path, seeds: int) -> dict[str, Any]:
    """Return the results of each method at each point, and focalroute's curve minus the method."""
    log, pool = data / f"{case.log}.jsonl.gz", data / f"{case.log}.pool.toml"
    logged = read_table(log, pool, None, skip_bad_rows=False, shown=False)
    parts = split(logged, per_task=case.split_by == "per-task", fraction=case.train_fraction)
    rows = learning_order(logged, parts.train, case.split_by)
    training = Training(logged, rows, 0)
    ask_all_usd = float(logged.usd[parts.test].sum())
    a_query = ask_all_usd / len(parts.test)
    points = [point / (a_query if case.usd else 1) for point in case.points]
    stage = Stage(
        parts, training, range(seeds), OfflineSettings(), rows[:0],
        explore=False, usd_per_second=0.0, presets={},
    )  # fmt: skip
    policies = stage.trained(HERE, lambda _: None)
    ours = [[run.played for run in each] for each in stage.ours(HERE, policies, points, lambda _: None)]
    curve = [score(OURS, played, ask_all_usd) for played in ours]
    first = min(range(len(points)), key=lambda n: curve[n].cost_ratio)
    others = {
        (name, point): [play(strategy, logged, parts.test) for strategy in strategies]
        for name, point, strategies in rivals(training, points, a_query, seeds)
    }
    others["best-single-train", 0] = [play(First(training.rank), logged, parts.test)] * seeds
    scores = {(name, point): score(name, played, ask_all_usd) for (name, point), played in others.items()}
    # A method that is cheaper than the whole curve is compared with the curve's cheapest point.
    beside = compare(
        {
            cell: (on_curve(scores[cell].cost_ratio, curve, ours) or ours[first], played)
            for cell, played in others.items()
        }
    )
    cells: dict[str, list[dict[str, Any] | None]] = {OURS: [dataclasses.asdict(one) for one in curve]}
    for (name, point), one in scores.items():
        cells.setdefault(name, [None] * len(points))[point] = {
            **dataclasses.asdict(one),
            "curve_minus": dataclasses.asdict(beside[name, point]),
            "cheaper": one.cost_ratio < curve[first].cost_ratio,
        }
    return {"log": case.title, "usd": case.usd, "a_query": a_query, "points": points, "cells": cells}


def rivals(
    training: Training, points: Sequence[float], a_query: float, seeds: int
) -> Iterator[tuple[str, int, list[Strategy]]]:
    """Yield (name, point, one strategy for each seed) for every router, and for the cascade fitted to this cost."""
    for name in ROUTERS:
        trained = [fitted(name, dataclasses.replace(training, seed=seed)) for seed in range(seeds)]
        for n, point in enumerate(points):
            held = dataclasses.replace(training, usd_per_query=point * a_query)
            yield name, n, [routed(copied(router), held) for router in trained]
    for n, point in enumerate(points):
        yield "cascade", n, [cascade(dataclasses.replace(training, usd_per_query=point * a_query))] * seeds


def copied(router: TextRouter) -> TextRouter:
    """Copy a router so that the copy learns independently."""
    one = copy.copy(router)
    vars(one).update(copy.deepcopy({name: value for name, value in vars(router).items() if name != "_lock"}))
    return one


def table(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield Markdown: a row for each log and method, a column for each point; bold: significantly above focalroute."""
    wide = max(len(one["points"]) for one in found)
    yield "| log | method |" + "".join(f" point {n + 1} |" for n in range(wide))
    yield "|---|---|" + "---|" * wide
    for one in found:
        lines: list[tuple[str, Sequence[str]]] = [
            (name, [_cell(c, one) for c in cells]) for name, cells in one["cells"].items()
        ]
        lines[1:1] = [STATED[one["log"]]] if one["log"] in STATED else []
        for name, shown in lines:
            yield f"| {one['log']} | {name} | " + " | ".join([*shown, *[""] * (wide - len(shown))]) + " |"


def _cell(cell: Mapping[str, Any] | None, one: Mapping[str, Any]) -> str:
    if cell is None:
        return ""
    cost = f"{cell['cost_usd_per_query']:.1e}" if one["usd"] else f"{cell['cost_ratio']:.3f}"
    found = f"{cell['accuracy']:.3f} @ {cost}"
    beside = cell.get("curve_minus")
    if beside is None:
        return found
    high, low = (-100 * end for end in beside["ci95"])
    if low > 0:
        return f"**{found}, {-100 * beside['difference']:+.1f} ({low:+.1f} to {high:+.1f})**"
    return found + (" ↓" if high < 0 and not cell["cheaper"] else "")


if __name__ == "__main__":
    main()
