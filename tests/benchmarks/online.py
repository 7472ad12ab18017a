"""Measures what online learning is worth, by serving the same stream at the same cost in several ways.

    python -m tests.benchmarks.online LOG --pool POOL [--seeds 5] [--cold]

Policies are trained on the first 80 % of the log, and serve the rest:

- ``still``: nothing is learned after training, not even the endpoints' latest outcomes;
- ``frozen``: the networks stay as they are; window, memory of texts and change detector learn, as in the ways below;
- ``refitted``: the Decider stays; the Fusion is refitted every 500 feedbacks to everything asked and labelled so far;
- ``online``: `update_policy` every 100 feedbacks, with its gate, as in service.

There are three streams: the log as it is; with the answers of the best and of a middling endpoint swapped from half-way
on; and with the price of the best endpoint doubled from half-way on. Differences are in points, paired, minus
``frozen``; intervals as in `focalroute.evaluate.metrics`. With ``--cold`` nothing is trained: the shipped policy serves
the last 4,500 queries as they are. Prints a Markdown table; the outcomes of trials go to standard error.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from focalroute.core.pool import PoolFile, load_pool
from focalroute.core.records import I64
from focalroute.evaluate.metrics import compare
from focalroute.evaluate.outcomes import LoggedQuery, read_log
from focalroute.evaluate.playing import cost_weight_at
from focalroute.evaluate.replay import COST_WEIGHT, FeedbackKind, ReplayResult, play
from focalroute.evaluate.serving import Serving
from focalroute.evaluate.table import LogTable, join, split
from focalroute.evaluate.training import publish_trained, train_on
from focalroute.learn.offline.reinforce import OfflineSettings
from focalroute.learn.trial import read_trial
from focalroute.policy.bundle import cold, current, load
from focalroute.policy.publish import publish
from tests.benchmarks.learning_replay import Online, Refitted

WAYS = ("still", "frozen", "refitted", "online")
STREAMS = ("no drift", "endpoint swapped", "price doubled")
POINT = 0.2  # the cost to hold, as a share of asking all
COLD_ROWS = 4500

Runs = Mapping[str, Sequence[ReplayResult]]


def changed(table: LogTable, pool: PoolFile, stream: str, train: I64, start: int) -> LogTable:
    """Return the log, changed from row ``start`` on."""
    rank = table.rank(train)
    best, middling = table.names[rank[0]], table.names[rank[len(rank) // 2]]
    change = {"endpoint swapped": lambda query, _: _swapped(query, {best: middling, middling: best})}
    change["price doubled"] = lambda query, row: _doubled(query, best, float(table.usd[row, rank[0]]))
    if stream not in change:
        return table
    later = [change[stream](query, row) for row, query in enumerate(table.queries[start:], start)]
    return join([*table.queries[:start], *later], pool, stream)


def _swapped(query: LoggedQuery, other: Mapping[str, str]) -> LoggedQuery:
    return replace(query, outputs={other.get(name, name): output for name, output in query.outputs.items()})


def _doubled(query: LoggedQuery, dearer: str, usd: float) -> LoggedQuery:
    outputs = dict(query.outputs)
    if dearer in outputs:
        outputs[dearer] = replace(outputs[dearer], cost_usd=2 * usd)
    return replace(query, outputs=outputs)


def served(
    way: str,
    table: LogTable,
    root: Path,
    test: I64,
    settings: Mapping[str, Any],
    *,
    point: float,
    every: int,
) -> ReplayResult:
    """Serve the test rows in one way at this cost ratio, with a copy of the policies in ``root``."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        copy = Path(shutil.copytree(root, Path(folder) / "policy"))
        if way == "online":
            serving: Serving = stack.enter_context(Online(copy, table.endpoints, every=every, **settings))
            stack.callback(_show_trials, copy)
        elif way == "refitted":
            serving = stack.enter_context(Refitted(copy, table.endpoints, **settings))
        else:
            serving = Serving(load(copy), table.endpoints, **settings)
        return _held(serving, table, test, point, "none" if way == "still" else "label")


def _show_trials(root: Path) -> None:
    """Print the outcome of every challenger's trial to standard error."""
    serves = current(root)
    for entry in read_trial(root, serves, None).record:
        print(f"version {entry['version']} was {entry['outcome']}: {entry['reason']}", file=sys.stderr)
    print(f"version {serves} serves at the end", file=sys.stderr, flush=True)


def _held(serving: Serving, table: LogTable, rows: I64, point: float, feedback: FeedbackKind = "label") -> ReplayResult:
    """Replay these rows at this cost ratio."""
    serving.hold(point * float(table.usd[rows].sum()) / len(rows))
    return play(serving, table, rows, feedback=feedback)


def show(stream: str, runs: Runs, table: LogTable, test: I64) -> None:
    """Print a row for each way: the whole stream, and the halves before and after the change."""
    half = len(test) // 2
    parts = (slice(0, None), slice(0, half), slice(half, None))
    cut = {way: [[run.part(part) for run in played] for part in parts] for way, played in runs.items()}
    minus = compare(
        {(way, n): (cut[way][n], cut["frozen"][n]) for way in cut if way != "frozen" for n in range(len(parts))}
    )
    for way in runs:
        cells = []
        for n, part in enumerate(parts):
            ours = cut[way][n]
            accuracy = np.mean([run.worth.mean() for run in ours])
            cost = np.mean([run.usd.sum() for run in ours]) / table.usd[test[part]].sum()
            cells.append(f"{accuracy:.3f} @ {cost:.3f}")
            if way != "frozen":
                cells[-1] += f", {minus[way, n].in_points()}"
        print(f"| {stream} | {way} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Train, replay and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path)
    parser.add_argument("--pool", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--cold", action="store_true", help="start from the shipped policy, without training")
    given = parser.parse_args()
    pool = load_pool(given.pool)
    whole = join(read_log(given.log), pool, given.log)
    parts = split(whole, per_task=False, fraction=0.8)
    train, test = parts.train, parts.test
    if given.cold:
        train, test = train[:0], np.arange(max(0, len(whole.queries) - COLD_ROWS), len(whole.queries))
    start = int(test[len(test) // 2])
    with tempfile.TemporaryDirectory() as folder:
        roots = [Path(folder) / str(seed) for seed in range(given.seeds)]
        for seed, root in enumerate(roots):
            if given.cold:
                shipped = cold()
                publish(root, decider=shipped.decider_onnx, fusion=shipped.fusion_onnx, names=(), parent=None)
                continue
            plan = OfflineSettings()
            publish_trained(root, train_on(whole, train, seed=seed, settings=plan), settings=plan)
        print("| stream | way | all | first half | second half |\n|---|---|---|---|---|")
        ways = ("frozen", "online") if given.cold else WAYS
        for stream in STREAMS[:1] if given.cold else STREAMS:
            table = changed(whole, pool, stream, train, start)
            runs: dict[str, list[ReplayResult]] = {way: [] for way in ways}
            for seed, root in enumerate(roots):
                cost_weight = COST_WEIGHT if given.cold else cost_weight_at(load(root), POINT)
                settings = {"seed": seed, "cost_weight": cost_weight}
                for way in ways:
                    runs[way].append(served(way, table, root, test, settings, point=POINT, every=100))
            show(stream, runs, table, test)


if __name__ == "__main__":
    main()
