"""Measures accuracy, cost and seconds with a price of time: ``python -m tests.benchmarks.seconds [LOG --pool POOL]``.

Without a log, the shipped policy serves a simulated pool of the kind it was trained on, drawn with another seed; it
samples decisions and gets labels. With a log, a policy trained on its first 80 % serves the rest greedily. Durations of
calls are recorded, or modelled by `focalroute.evaluate.table`. There is a run for each pair of a cost weight and a
price of time, in right answers per second. With lambda = 0.1 and C the cost of asking all, a right answer is worth
10 C, so a price of 0.05 is usd_per_second = 0.5 C.

"Above" is the accuracy of a method, in points, minus the best of our runs that cost no more and have no larger median
time. "Gain" is the reward (right answers, less cost and seconds at that price), in points, minus that of serving
without a price of time.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from examples.shipped_policy.synthetic_pools import synthetic_pool
from focalroute.core.config import Endpoint
from focalroute.core.pool import PoolFile, load_pool
from focalroute.core.records import I64
from focalroute.evaluate.baselines import First
from focalroute.evaluate.metrics import compare
from focalroute.evaluate.outcomes import LoggedQuery, Output, read_log
from focalroute.evaluate.replay import ReplayResult, Training, play
from focalroute.evaluate.serving import Serving
from focalroute.evaluate.table import LogTable, join
from focalroute.evaluate.training import publish_trained, train_on
from focalroute.evaluate.votes import Vote, cascade
from focalroute.learn.offline.reinforce import OfflineSettings
from focalroute.policy.bundle import Policy, cold, load

COST_WEIGHTS = (0.03, 0.1, 0.3)
OURS = "lambda "
NAME = OURS + "{:g}, a second {:g}"
WORTH = (0.0, 0.03, 0.1)
BEFORE = 500


def made_up(seed: int, size: int) -> LogTable:
    """Draw a simulated pool that answers closed questions; return its log."""
    chance = np.random.default_rng(1_000 + seed)
    made = synthetic_pool(chance, size)
    while not made.closed.all():
        made = synthetic_pool(chance, size)
    endpoints = [
        Endpoint(
            name,
            base_url="http://127.0.0.1:1",
            model=name,
            input_usd_per_1m=0,
            output_usd_per_1m=round(1e6 * usd / 150, 9),
        )
        for name, usd in zip(made.names, made.prices.tolist(), strict=True)
    ]
    queries = []
    for t in range(size):
        outputs = {}
        for i, name in enumerate(made.names):
            if made.there[t, i]:
                said = int(made.candidate[t, i])
                usd, tokens = float(made.usd[t, i]), int(made.tokens[t, i])
                outputs[name] = Output(said if said >= 0 else None, None, None, 0, tokens, usd, None, None)
        choices = tuple(f"choice {k}" for k in range(int(made.size[t])))
        label = int(made.worth[t].argmax())
        queries.append(LoggedQuery(str(t), None, (), choices, label, outputs, t + 1))
    return join(queries, PoolFile(tuple(endpoints), {}, None), "made up")


def served(
    policy: Policy, table: LogTable, parts: tuple[I64, I64], seed: int, cost_weight: float, worth: float
) -> ReplayResult:
    """Serve the test part; ``worth``: right answers that a second costs. The cold start serves earlier rows first."""
    ask_all_usd = float(table.usd[parts[0]].sum(axis=1).mean())
    serving = Serving(
        policy,
        table.endpoints,
        seed=seed,
        explore=not policy.version,
        cost_weight=cost_weight,
        usd_per_second=worth * ask_all_usd / cost_weight,
    )
    if not policy.version:
        play(serving, table, parts[0][-BEFORE:])
    return play(serving, table, parts[1])


@dataclass(frozen=True, slots=True)
class Placed:
    """A method's means over seeds: accuracy, cost ratio, and p50 and p95 of seconds relative to the best single's."""

    accuracy: float
    cost: float
    half: float
    most: float


def placed(runs: Sequence[ReplayResult], best: Sequence[ReplayResult], ask_all_usd: Sequence[float]) -> Placed:
    """Average these runs."""
    ratios = [
        [np.quantile(run.seconds, share) / np.quantile(one.seconds, share) for share in (0.5, 0.95)]
        for run, one in zip(runs, best, strict=True)
        if run.seconds is not None and one.seconds is not None
    ]
    half, most = np.mean(ratios, axis=0).tolist()
    cost = float(np.mean([run.usd.sum() / usd for run, usd in zip(runs, ask_all_usd, strict=True)]))
    return Placed(float(np.mean([run.worth.mean() for run in runs])), cost, half, most)


def show(title: str, runs: dict[str, list[ReplayResult]], ask_all_usd: Sequence[float]) -> Iterator[str]:
    """Yield the lines of a table; seconds are relative to the best single endpoint, seed by seed."""
    yield f"| {title} | accuracy | above | gain | minus the best single | minus plurality | cost | p50 | p95 |"
    yield f"|{'---|' * 9}"
    best, vote = runs["best single"], runs["plurality"]
    gains = {}
    for weight, worth in itertools.product(COST_WEIGHTS, WORTH[1:]):
        rewards = [_reward(runs[NAME.format(weight, at)], ask_all_usd, weight, worth) for at in (worth, 0)]
        gains[NAME.format(weight, worth)] = f"{100 * (rewards[0] - rewards[1]):+.1f}"
    places = {name: placed(found, best, ask_all_usd) for name, found in runs.items()}
    pairs = {(name, "single"): (found, best) for name, found in runs.items() if found is not best}
    pairs |= {(name, "vote"): (found, vote) for name, found in runs.items() if found is not vote}
    for name, found in runs.items():
        below = _as_cheap_and_quick(places[name], places)
        if below and not name.startswith(OURS):
            pairs[name, "above"] = found, runs[max(below, key=lambda other: places[other].accuracy)]
    minus = {cell: one.in_points() for cell, one in compare(pairs).items()}
    for name, at in places.items():
        none = "" if name.startswith(OURS) else "none of ours is as cheap and quick"
        gaps = minus.get((name, "single"), ""), minus.get((name, "vote"), "")
        told = [name, f"{at.accuracy:.3f}", minus.get((name, "above"), none), gains.get(name, ""), *gaps]
        yield f"| {' | '.join(told)} | {at.cost:.3f} | {at.half:.2f} | {at.most:.2f} |"


def _as_cheap_and_quick(at: Placed, places: Mapping[str, Placed]) -> list[str]:
    """Return our points that cost no more and take no longer."""
    return [
        name
        for name, other in places.items()
        if name.startswith(OURS) and other.cost <= at.cost and other.half <= at.half
    ]


def _reward(runs: Sequence[ReplayResult], ask_all_usd: Sequence[float], cost_weight: float, worth: float) -> float:
    """Return the mean worth of answers less their cost and seconds at these prices."""
    found = []
    for run, usd in zip(runs, ask_all_usd, strict=True):
        seconds = 0.0 if run.seconds is None else run.seconds.mean()
        found.append(run.worth.mean() - cost_weight * run.usd.sum() / usd - worth * seconds)
    return float(np.mean(found))


def main() -> None:
    """Replay and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path, nargs="?")
    parser.add_argument("--pool", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--size", type=int, default=3000, help="number of queries of the simulated log")
    given = parser.parse_args()
    runs: dict[str, list[ReplayResult]] = {}
    ask_all_usd = []
    for seed in range(given.seeds):
        if given.log is None:
            table, policy = made_up(seed, given.size), cold()
        else:
            table = join(read_log(given.log), load_pool(given.pool), given.log)
        cut = int(0.8 * len(table.queries))
        parts = np.arange(cut), np.arange(cut, len(table.queries))
        if given.log is not None:
            policy = trained(table, parts[0], seed)
        training = Training(table, parts[0], seed)
        others = {
            "best single": First(training.rank),
            "plurality": Vote(training.rank),
            "cascade": cascade(training),
        }
        for name, strategy in others.items():
            runs.setdefault(name, []).append(play(strategy, table, parts[1]))
        for cost_weight, worth in itertools.product(COST_WEIGHTS, WORTH):
            played = served(policy, table, parts, seed, cost_weight, worth)
            runs.setdefault(NAME.format(cost_weight, worth), []).append(played)
        ask_all_usd.append(float(table.usd[parts[1]].sum()))
    print("\n".join(show(given.log.name.split(".")[0] if given.log else "synthetic pools", runs, ask_all_usd)))


def trained(table: LogTable, rows: I64, seed: int) -> Policy:
    """Train a policy on these rows."""
    with tempfile.TemporaryDirectory() as folder:
        settings = OfflineSettings()
        publish_trained(folder, train_on(table, rows, seed=seed, settings=settings), settings=settings)
        return load(folder)


if __name__ == "__main__":
    main()
