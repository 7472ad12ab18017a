"""What the shipped policy does from its first query on, against the endpoint that turns out best, as a Markdown table.

    python -m tests.benchmarks.cold_start LOG --pool POOL [--seeds N] [--online] [--cost-weight LAMBDA]

Nothing is trained. The 4,000 queries count after the first 500 with labels, and after the first 2,000 with bare
rewards; the endpoint is the best in hindsight of the rows that count. The policy samples its decisions, as it does by
default in service. ``--online`` lets it learn as it goes, an update every 100 feedbacks, as ``update_every=100`` does.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
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
from focalroute.policy.publish import publish
from tests.benchmarks.learning_replay import Online

BEFORE: dict[FeedbackKind, int] = {"label": 500, "reward": 2000}
ROWS = 4000


def served(
    table: LogTable, feedback: FeedbackKind, first: int, *, seed: int, cost_weight: float, online: bool
) -> ReplayResult:
    """The rows that count, after those before."""
    rows = np.arange(first, min(first + ROWS, len(table.queries)))
    with ExitStack() as stack:
        serving = Serving(cold(), table.endpoints, seed=seed, cost_weight=cost_weight)
        if online:
            root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            start = cold()
            publish(root, decider=start.decider_onnx, fusion=start.fusion_onnx, names=(), parent=None)
            serving = stack.enter_context(Online(root, table.endpoints, seed=seed, cost_weight=cost_weight))
        play(serving, table, np.arange(first), feedback=feedback)
        return play(serving, table, rows, feedback=feedback)


def main(arguments: Sequence[str] | None = None) -> None:
    """Play and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.cold_start")
    parser.add_argument("log", type=Path)
    parser.add_argument("--pool", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--online", action="store_true")
    parser.add_argument("--cost-weight", type=float, default=0.1)
    asked = parser.parse_args(arguments)
    table = join(read_log(asked.log), load_pool(asked.pool), asked.log)
    print(
        "| feedback | accuracy @ cost, by seed | best single in hindsight | difference in points |\n|---|---|---|---|"
    )
    for feedback, first in BEFORE.items():
        rows = np.arange(first, min(first + ROWS, len(table.queries)))
        ask_all_usd = float(table.usd[rows].sum())
        runs = [
            served(table, feedback, first, seed=seed, cost_weight=asked.cost_weight, online=asked.online)
            for seed in range(asked.seeds)
        ]
        single = play(best_in_hindsight(table, rows), table, rows)
        cells = [score(feedback, [one], ask_all_usd) for one in (*runs, single)]
        shown = [f"{cell.accuracy:.3f} @ {cell.cost_ratio:.3f}" for cell in cells]
        gain = compare(runs, [single] * len(runs), comparisons=len(BEFORE))
        print(f"| {feedback} | {', '.join(shown[:-1])} | {shown[-1]} | {gain.in_points()} |", flush=True)


if __name__ == "__main__":
    main()
