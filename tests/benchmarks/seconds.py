"""The price of time against accuracy, money and seconds: ``python -m tests.benchmarks.seconds [LOG --pool POOL]``.

Without a log: a made-up pool of the kind that the shipped policy is trained on, drawn anew with another seed, whose
calls take what `focalroute.evaluate.latency` models; the shipped policy serves all of it, with sampled decisions and
labels as feedback. With a log: a policy trained on its first 80 % serves the rest greedily, once for each price of
time. That price is stated as what a second takes from a right answer: with lambda = 0.1 and C the cost of asking all, a
right answer is worth 10 C, so 0.05 is usd_per_second = 0.5 C.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from examples.shipped_policy.synthetic_pools import synthetic_pool
from focalroute.core.config import Endpoint
from focalroute.core.pool import PoolFile, load_pool
from focalroute.core.records import I64
from focalroute.evaluate.cascade import cascade
from focalroute.evaluate.metrics import compare
from focalroute.evaluate.outcomes import LoggedQuery, Output, read_log
from focalroute.evaluate.recording import publish_trained, train_on
from focalroute.evaluate.replay import ReplayResult, Training, play
from focalroute.evaluate.serving import Serving
from focalroute.evaluate.singles import First
from focalroute.evaluate.table import LogTable, join
from focalroute.evaluate.votes import Vote
from focalroute.learn.offline.reinforce import OfflineSettings
from focalroute.policy.bundle import Policy, cold, load

COST_WEIGHT = 0.1
WARM = 500
WORTH = (0.0, 0.01, 0.02, 0.03, 0.05, 0.1)


def made_up(seed: int, size: int) -> LogTable:
    """A made-up pool that answers choices, by its log."""
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


def served(policy: Policy, table: LogTable, parts: tuple[I64, I64], seed: int, worth: float) -> ReplayResult:
    """The test part, after the rows before it, where a second is worth so much of a right answer."""
    everybody = float(table.usd[parts[0]].sum(axis=1).mean())
    serving = Serving(
        policy,
        table.endpoints,
        seed=seed,
        explore=not policy.version,
        cost_weight=COST_WEIGHT,
        usd_per_second=worth * everybody / COST_WEIGHT,
    )
    play(serving, table, parts[0][-WARM:])
    return play(serving, table, parts[1])


def show(title: str, runs: dict[str, list[ReplayResult]], everybody: Sequence[float]) -> Iterator[str]:
    """The lines of a table; all beside the best single endpoint, seed by seed."""
    yield f"| {title} | accuracy | minus the best single, points | minus plurality | cost | p50 | p95 |"
    yield f"|{'---|' * 7}"
    best, vote = runs["best single"], runs["plurality"]
    for name, found in runs.items():
        ratios = [
            [np.quantile(run.seconds, share) / np.quantile(one.seconds, share) for share in (0.5, 0.95)]
            for run, one in zip(found, best, strict=True)
            if run.seconds is not None and one.seconds is not None
        ]
        half, most = np.mean(ratios, axis=0).tolist()
        cost = np.mean([run.usd.sum() / usd for run, usd in zip(found, everybody, strict=True)])
        accuracy = np.mean([run.worth.mean() for run in found])
        beside = [compare(found, other) for other in (best, vote)]
        gaps = [f"{100 * g.difference:+.1f} ({100 * g.ci95[0]:+.1f} to {100 * g.ci95[1]:+.1f})" for g in beside]
        yield f"| {name} | {accuracy:.3f} | {' | '.join(gaps)} | {cost:.3f} | {half:.2f} | {most:.2f} |"


def main() -> None:
    """Play and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path, nargs="?")
    parser.add_argument("--pool", type=Path)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--size", type=int, default=3000, help="of a made-up log")
    given = parser.parse_args()
    runs: dict[str, list[ReplayResult]] = {}
    everybody = []
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
        for worth in WORTH:
            runs.setdefault(f"a second worth {worth:g}", []).append(served(policy, table, parts, seed, worth))
        everybody.append(float(table.usd[parts[1]].sum()))
    print("\n".join(show(given.log.name.split(".")[0] if given.log else "made-up pools", runs, everybody)))


def trained(table: LogTable, rows: I64, seed: int) -> Policy:
    """The policy that training on these rows gives."""
    with tempfile.TemporaryDirectory() as folder:
        settings = OfflineSettings()
        publish_trained(folder, train_on(table, rows, seed=seed, settings=settings), settings=settings)
        return load(folder)


if __name__ == "__main__":
    main()
