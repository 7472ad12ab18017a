"""Other draws of the pool: policies trained for a few of a log's endpoints, drawn by chance, as a Markdown table.

    python -m tests.benchmarks.draws [--draws 3] [--data ../shared/data] [--rows 3000]

Of each log's training part as many queries, evenly drawn and in its order, with 3 to 6 of its endpoints: the first 80 %
are learned from, the rest is played, each answered before its label is shown. Costs are held at 0.1, 0.2 and 0.35 of
asking all, and at that of the best endpoint of what was learned from; those that the cheapest endpoint exceeds are left
out. What a point is compared with knows the part that is played: of all mixtures by chance of two endpoints, each asked
alone, at the point's cost the one that is right the most. Runs in two processes.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from pathlib import Path

import numpy as np

from focalroute.core.pool import load_pool
from focalroute.core.records import F64
from focalroute.evaluate.outcomes import read_log
from focalroute.evaluate.playing import PolicyReplay
from focalroute.evaluate.recording import publish_trained, train_on
from focalroute.evaluate.replay import Training
from focalroute.evaluate.table import LogTable, join, learning_order, split
from focalroute.learn.offline.reinforce import OfflineSettings
from focalroute.policy.bundle import load
from tests.benchmarks.harness import Table, markdown_table

LOGS = ("mmlupro12", "mmlu9", "zeroeval12", "llmrouter9")
COSTS = (0.1, 0.2, 0.35)
_TRAINING = 0.8
_WARM = 500


@dataclass(frozen=True, slots=True)
class Drawn:
    """One draw: how many endpoints, how right and dear the best is alone, and its points.

    Each point: what was held, how right and how dear it was, and how right the mixture is.
    """

    endpoints: int
    best: tuple[float, float]
    points: tuple[tuple[float, float, float, float], ...]


def draw(data: Path, log: str, seed: int, rows: int) -> LogTable:
    """Some of a log's endpoints, on some of its training queries."""
    rng = random.Random(f"{log} {seed}")
    pool, queries = load_pool(data / f"{log}.pool.toml"), read_log(data / f"{log}.jsonl.gz")
    endpoints = sorted(rng.sample(pool.endpoints, rng.randint(3, 6)), key=pool.endpoints.index)
    names = {endpoint.name for endpoint in endpoints}
    training = queries[: int(_TRAINING * len(queries))]
    kept = np.linspace(0, len(training) - 1, min(len(training), rows)).astype(int).tolist()
    asked = [{name: output for name, output in training[row].outputs.items() if name in names} for row in kept]
    some = [replace(training[row], outputs=outputs) for row, outputs in zip(kept, asked, strict=True) if outputs]
    return join(some, replace(pool, endpoints=tuple(endpoints)), f"{log}, draw {seed}")


def mixture(costs: F64, right: F64, cost: float) -> float:
    """How right two endpoints are that are asked by chance so that a query costs this in the mean, at best."""
    endpoints = sorted(zip(costs.tolist(), right.tolist(), strict=True))
    found = [
        float(np.interp(cost, (cheap, dear), (less, more)))
        for (cheap, less), (dear, more) in combinations_with_replacement(endpoints, 2)
        if cheap <= cost
    ]
    return max(found, default=0.0)


def played(data: Path, log: str, seed: int, rows: int) -> Drawn:
    """Train on a draw, and play its last fifth."""
    table = draw(data, log, seed, rows)
    parts = split(table, per_task=False, fraction=_TRAINING)
    order, settings = learning_order(table, parts.train, "stream"), OfflineSettings()
    with tempfile.TemporaryDirectory() as folder:
        publish_trained(Path(folder), train_on(table, order, seed=seed, settings=settings), settings=settings)
        policy = load(Path(folder))
    costs, right = table.single_cost_ratios(parts.test), table.accuracy(parts.test)
    best = table.rank(parts.train)[0]
    everybody = float(table.usd[parts.test].sum())
    training = Training(table, parts.train, seed)
    replay = PolicyReplay(policy, table, parts, training, warm=order[-_WARM:], explore=False, advance=lambda _: None)
    points = []
    for target in sorted({*COSTS, round(float(costs[best]), 3)}):
        if target > table.cheapest(parts.test)[1]:
            found = replay.run(target).played
            cost = float(found.usd.sum()) / everybody
            points.append((target, float(found.worth.mean()), cost, mixture(costs, right, cost)))
    return Drawn(len(table.endpoints), (float(right[best]), float(costs[best])), tuple(points))


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw, train, play and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.draws")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--rows", type=int, default=3000)
    given = parser.parse_args(arguments)
    logs = [log for log in LOGS if (given.data / f"{log}.jsonl.gz").exists()]
    with ProcessPoolExecutor(2) as pool:
        runs = [
            (log, pool.submit(played, given.data, log, seed, given.rows)) for log in logs for seed in range(given.draws)
        ]
        drawn = [(log, run.result()) for log, run in runs]
    rows, behind = [], []
    for log, one in drawn:
        shown = []
        for target, right, cost, mixed in one.points:
            behind.append(right - mixed)
            shown.append(f"{target:g}: {right:.3f} @ {cost:.3f} ({100 * behind[-1]:+.1f})")
        rows.append([log, str(one.endpoints), f"{one.best[0]:.3f} @ {one.best[1]:.3f}", "; ".join(shown)])
    print(markdown_table(Table(["log", "endpoints", "best of training, alone", "held: accuracy @ cost"], rows)))
    print(f"\nIn the mean {100 * np.mean(behind):+.1f} points beside the mixtures, at worst {100 * min(behind):+.1f}.")


if __name__ == "__main__":
    main()
