"""Compares the cold start with the single endpoint that is best in hindsight.

    python -m tests.benchmarks.cold_start LOG --pool POOL [--seeds N]

Nothing is trained. 4,000 queries are scored: those after the first 500 if feedback is labels, after the first 2,000 if
it is rewards. The best endpoint is that of the scored rows. The policy samples its decisions, as by default in service.
Prints a Markdown table.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from focalroute.core.pool import load_pool
from focalroute.evaluate.baselines import best_in_hindsight
from focalroute.evaluate.metrics import compare, score
from focalroute.evaluate.outcomes import read_log
from focalroute.evaluate.replay import FeedbackKind, ReplayResult, play
from focalroute.evaluate.serving import Serving
from focalroute.evaluate.table import LogTable, join
from focalroute.policy.bundle import cold

BEFORE: dict[FeedbackKind, int] = {"label": 500, "reward": 2000}
ROWS = 4000


def served(table: LogTable, feedback: FeedbackKind, first: int, *, seed: int) -> ReplayResult:
    """Serve from the first row on; return the results on the scored rows."""
    rows = np.arange(first, min(first + ROWS, len(table.queries)))
    serving = Serving(cold(), table.endpoints, seed=seed)
    play(serving, table, np.arange(first), feedback=feedback)
    return play(serving, table, rows, feedback=feedback)


def main(arguments: Sequence[str] | None = None) -> None:
    """Play and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.cold_start")
    parser.add_argument("log", type=Path)
    parser.add_argument("--pool", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    asked = parser.parse_args(arguments)
    table = join(read_log(asked.log), load_pool(asked.pool), asked.log)
    print(
        "| feedback | accuracy @ cost, by seed | best single in hindsight | difference in points |\n|---|---|---|---|"
    )
    lines, pairs = {}, {}
    for feedback, first in BEFORE.items():
        rows = np.arange(first, min(first + ROWS, len(table.queries)))
        ask_all_usd = float(table.usd[rows].sum())
        runs = [served(table, feedback, first, seed=seed) for seed in range(asked.seeds)]
        single = play(best_in_hindsight(table, rows), table, rows)
        cells = [score(feedback, [one], ask_all_usd) for one in (*runs, single)]
        shown = [f"{cell.accuracy:.3f} @ {cell.cost_ratio:.3f}" for cell in cells]
        lines[feedback] = f"| {feedback} | {', '.join(shown[:-1])} | {shown[-1]}"
        pairs[feedback] = runs, [single] * len(runs)
    for feedback, gain in compare(pairs).items():
        print(f"{lines[feedback]} | {gain.in_points()} |")


if __name__ == "__main__":
    main()
