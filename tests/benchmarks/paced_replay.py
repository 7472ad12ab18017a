"""Compares pacing with fixed cost weights on recorded answers, with prices that double and topics that drift.

    python -m tests.benchmarks.paced_replay LOG --pool POOL [--seeds 3] [--points 0.13,0.16] [--under-way 1,64]

A policy is trained on all but the last 5,000 queries of the log, and serves these greedily, in the order of the log,
whose topics come in blocks. After 2,000 of them all prices double. Each point is a target in USD per query: this share
of the cost of asking all in the training part. A paced run starts with the cost weight that met the share in training,
and is held to the target over all 5,000 queries, exploration included. With 64 queries at a time, the pacer learns the
cost of a query only 63 queries later.

A paced run is compared with 13 fixed cost weights from 0.003 to 4 on the same queries and seeds: with the most accurate
of those that cost no more, and of the mixtures of two neighbours that cost the same. So the fixed weight is chosen in
hindsight, on the scored queries. Intervals are from a paired block bootstrap.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import numpy as np

from focalroute.core.pool import PoolFile, load_pool
from focalroute.core.records import I64
from focalroute.evaluate.metrics import PairedDifference, compare, mixed
from focalroute.evaluate.outcomes import LoggedQuery, read_log
from focalroute.evaluate.playing import cost_weight_at
from focalroute.evaluate.replay import ReplayResult, Turn, play
from focalroute.evaluate.serving import Serving
from focalroute.evaluate.table import LogTable, join
from focalroute.evaluate.training import publish_trained, train_on
from focalroute.learn.offline.reinforce import OfflineSettings
from focalroute.money.pacing import Pacer
from focalroute.policy.bundle import Policy, load

QUERIES = 5000
CHANGE = 2000
PRICES = tuple(np.geomspace(0.003, 4.0, 13).tolist())

Runs = Sequence[ReplayResult]


class Late(Pacer):
    """A pacer that learns the cost of a query only after a number of later ones have begun."""

    def __init__(self, target: float, price: float, under_way: int) -> None:
        super().__init__(Decimal(repr(target)), price)
        self._unreported: deque[float | Decimal | None] = deque()
        self._most = under_way

    def end(self, used: float | Decimal | None) -> None:
        """Keep the cost until then."""
        self._unreported.append(used)
        if len(self._unreported) == self._most:
            super().end(self._unreported.popleft())


class Dollars(Serving):
    """Serves as usual, with a pacer that can be replaced."""

    def pace(self, pacer: Pacer) -> None:
        """Use this pacer from now on."""
        self._pacer = pacer

    def _paid(self, turn: Turn) -> Decimal:
        return Decimal(repr(sum(reply.usd for reply in turn.replies.values())))


def doubled(table: LogTable, pool: PoolFile, row: int) -> LogTable:
    """Return the log with all costs doubled from this row on."""
    later = [
        _dearer(query, dict(zip(table.names, table.usd[at].tolist(), strict=True)))
        for at, query in enumerate(table.queries[row:], row)
    ]
    return join([*table.queries[:row], *later], pool, "prices doubled")


def _dearer(query: LoggedQuery, usd: dict[str, float]) -> LoggedQuery:
    outputs = {name: replace(output, cost_usd=2 * usd[name]) for name, output in query.outputs.items()}
    return replace(query, outputs=outputs)


def served(
    policy: Policy, table: LogTable, test: I64, seed: int, price: float, pacer: Pacer | None = None
) -> ReplayResult:
    """Serve the test rows with this cost weight, which is the first one if there is a pacer."""
    serving = Dollars(policy, table.endpoints, seed=seed, explore=False, cost_weight=price)
    if pacer is not None:
        serving.pace(pacer)
    return play(serving, table, test)


def best_fixed(fixed: Sequence[Runs], usd: float) -> Runs:
    """Return the most accurate results that cost no more than this, of a cost weight or a mixture of two neighbours."""
    costs = [mean_usd(runs) for runs in fixed]
    candidates = [runs for runs, cost in zip(fixed, costs, strict=True) if cost <= usd]
    for one, other in zip(range(len(fixed) - 1), range(1, len(fixed)), strict=True):
        if min(costs[one], costs[other]) < usd < max(costs[one], costs[other]):
            candidates.append(mixed(fixed[one], fixed[other], (usd - costs[one]) / (costs[other] - costs[one])))
    return max(candidates, key=accuracy)


def mean_usd(runs: Runs) -> float:
    """Return the mean USD per query, over all seeds."""
    return float(np.mean([run.usd.mean() for run in runs]))


def accuracy(runs: Runs) -> float:
    """Return the mean worth of an answer, over all seeds."""
    return float(np.mean([run.worth.mean() for run in runs]))


def row(point: float, under_way: int, target: float, paced: Runs, best: Runs, found: PairedDifference) -> str:
    """Format a row of the table."""
    low, high = (100 * end for end in found.ci95)
    spread = [run.usd.mean() / target for run in paced]
    cells = (
        f"{point:g}",
        f"{under_way}",
        f"{target:.6f}",
        f"{mean_usd(paced) / target:.4f} ({min(spread):.4f} to {max(spread):.4f})",
        f"{accuracy(paced):.4f}",
        f"{accuracy(best):.4f} @ {mean_usd(best) / target:.4f}",
        f"{100 * found.difference:+.2f} ({low:+.2f} to {high:+.2f})",
        "yes" if found.no_worse else "no",
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Train, replay and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path)
    parser.add_argument("--pool", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--points", default="0.13,0.16", help="targets, as shares of the cost of asking all in training"
    )
    parser.add_argument("--under-way", default="1,64", help="numbers of concurrent asks")
    given = parser.parse_args()
    pool = load_pool(given.pool)
    recorded = join(read_log(given.log), pool, given.log)
    start = len(recorded.queries) - QUERIES
    train, test = np.arange(start), np.arange(start, start + QUERIES)
    table = doubled(recorded, pool, start + CHANGE)
    ask_all_usd = float(recorded.usd[train].sum(axis=1).mean())
    with tempfile.TemporaryDirectory() as name:
        plan, trained = OfflineSettings(), []
        for seed in range(given.seeds):
            folder = Path(name) / str(seed)
            publish_trained(folder, train_on(recorded, train, seed=seed, settings=plan), settings=plan)
            trained.append(load(folder))
    fixed = [[served(policy, table, test, seed, price) for seed, policy in enumerate(trained)] for price in PRICES]
    for price, runs in zip(PRICES, fixed, strict=True):
        print(f"fixed {price:.4g}: {accuracy(runs):.4f} at {mean_usd(runs):.6f} USD a query", flush=True)
    columns = ("point", "under way", "target, USD", "mean cost / target (seeds)", "accuracy",
        "best fixed @ its cost / target", "difference, points", "no worse")  # fmt: skip
    print(f"\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    points = [float(point) for point in given.points.split(",")]
    together = [int(calls) for calls in given.under_way.split(",")]
    found = {}
    for point, under_way in itertools.product(points, together):
        target, paced = point * ask_all_usd, []
        for seed, policy in enumerate(trained):
            price = cost_weight_at(policy, point)
            paced.append(served(policy, table, test, seed, price, Late(target, price, under_way)))
        found[point, under_way] = paced, best_fixed(fixed, mean_usd(paced))
    minus = compare(found)
    for (point, under_way), (paced, best) in found.items():
        print(row(point, under_way, point * ask_all_usd, paced, best, minus[point, under_way]))


if __name__ == "__main__":
    main()
