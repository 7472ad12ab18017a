"""Classifiers: choices that are the same for every question, beside the same questions with choices of their own.

``python -m tests.benchmarks.classification --seeds 5`` (an hour) plays at three tenths of the cost of asking all: the
cold start, every answer labelled, and a policy trained on 2,000 further questions, without feedback. In the simulated
pools five endpoints see a score for each label, with noise and with a bias of their own for each label, which is 0 in
one of the pools. The recorded answers are to the 895 questions of the task moral_scenarios of mmlu9, which all have the
same four choices. In the control each question has choices of its own, so what was learned of the others does not
count.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

from focalroute.core.config import Endpoint
from focalroute.core.pool import PoolFile, load_pool
from focalroute.core.records import F64, I64
from focalroute.evaluate.outcomes import LoggedQuery, Output, read_log
from focalroute.evaluate.playing import PolicyReplay, trained
from focalroute.evaluate.replay import FeedbackPlan, Training
from focalroute.evaluate.table import LogTable, Split, join
from focalroute.learn.offline.reinforce import OfflineSettings
from focalroute.policy.bundle import cold
from tests.benchmarks.harness import Table, markdown_table, student_points

QUERIES, TRAINING, ENDPOINTS = 1000, 2000, 5
COST = 0.3


@dataclass(frozen=True, slots=True)
class World:
    """A simulated classifier's work.

    Attributes:
        labels: how many there are.
        skew: each label is e^-skew times as frequent as the one before.
        bias: standard deviation of an endpoint's bias for a label, in units of its noise.
    """

    labels: int
    skew: float
    bias: float


WORLDS: Mapping[str, World] = {
    "two labels, nine to one": World(2, 2.2, 0.5),
    "five labels, skewed": World(5, 0.6, 0.5),
    "five labels, equally frequent, no biases": World(5, 0.0, 0.0),
}
RECORDED = "moral_scenarios (recorded)"


def simulated(world: World, seed: int, size: int = QUERIES) -> LogTable:
    """The answers of a pool drawn at random."""
    rng = np.random.default_rng(seed)
    shares = np.exp(-world.skew * np.arange(world.labels))
    right = rng.choice(world.labels, size, p=shares / shares.sum())
    scores = rng.normal(scale=0.5, size=(size, world.labels))
    scores[np.arange(size), right] += 1.6
    endpoints, given = [], []
    for number in range(ENDPOINTS):
        usd = float(np.exp(rng.uniform(0, np.log(30))))
        skill = rng.uniform(0.6, 1.4) * (1 + 0.1 * np.log(usd)) / 1.2
        seen = scores * skill + rng.normal(size=scores.shape) + rng.normal(scale=world.bias, size=world.labels)
        given.append(seen.argmax(axis=1))
        name = f"endpoint {number}"
        endpoints.append(
            Endpoint(name, base_url="http://127.0.0.1:1", model=name, input_usd_per_1m=0, output_usd_per_1m=usd)
        )
    choices = tuple(f"label {label}" for label in range(world.labels))
    queries = []
    for t in range(size):
        outputs = {
            one.name: Output(int(said[t]), completion_tokens=10) for one, said in zip(endpoints, given, strict=True)
        }
        queries.append(LoggedQuery(str(t), None, (), choices, int(right[t]), outputs, t + 1))
    return join(queries, PoolFile(tuple(endpoints), {}, None), "simulated")


def recorded(data: Path, seed: int) -> LogTable:
    """The questions of moral_scenarios in random order."""
    pool = load_pool(data / "mmlu9.pool.toml")
    queries = [query for query in read_log(data / "mmlu9.jsonl.gz") if query.task == "moral_scenarios"]
    order = np.random.default_rng(seed).permutation(len(queries)).tolist()
    return join([queries[at] for at in order], pool, RECORDED)


def apart(table: LogTable) -> LogTable:
    """The same questions, each with choices of its own."""
    queries = [
        replace(query, choices=tuple(f"{choice} ({query.id})" for choice in query.choices or ()))
        for query in table.queries
    ]
    return join(queries, PoolFile(table.endpoints, {}, None), "apart")


def played(table: LogTable, seed: int) -> tuple[float, float]:
    """Accuracy and cost ratio of the cold start."""
    rows = np.arange(len(table.queries))
    replay = PolicyReplay(
        cold(), table, Split(rows[:0], rows), Training(table, rows[:0], seed), explore=True, advance=lambda _: None
    )
    found = replay.run(COST).played
    return float(found.worth.mean()), float(found.usd.sum() / table.usd.sum())


def after_training(table: LogTable, seed: int) -> tuple[float, float]:
    """Accuracy and cost ratio, without feedback, of a policy trained on the first queries."""
    rows = np.arange(len(table.queries))
    parts = Split(rows[:TRAINING], rows[TRAINING:])
    policy = trained(table, parts.train, seed=seed, settings=OfflineSettings(), advance=lambda _: None)
    training = Training(table, parts.train, seed, FeedbackPlan("none"))
    found = PolicyReplay(policy, table, parts, training, explore=False, advance=lambda _: None).run(COST).played
    return float(found.worth.mean()), float(found.usd.sum() / table.usd[parts.test].sum())


def trained_case(job: tuple[str, int]) -> F64:
    """As `case`, of the queries after training."""
    name, seed = job
    table = simulated(WORLDS[name], seed, TRAINING + QUERIES)
    return np.array(
        [
            *beside(table, np.arange(TRAINING, TRAINING + QUERIES)),
            *after_training(apart(table), seed),
            *after_training(table, seed),
        ]
    )


def beside(table: LogTable, rows: I64) -> tuple[float, float]:
    """The accuracy of the best single endpoint and of the plurality."""
    right = 0
    for row in rows.tolist():
        query = table.queries[row]
        votes = [output.answer for output in query.outputs.values() if isinstance(output.answer, int)]
        right += int(np.bincount(votes).argmax() == query.label)
    return float(table.accuracy(rows).max()), right / len(rows)


def case(data: Path, job: tuple[str, int]) -> F64:
    """Best single endpoint, plurality, and accuracy and cost with choices of their own and with the same, (6,)."""
    name, seed = job
    table = recorded(data, seed) if name == RECORDED else simulated(WORLDS[name], seed)
    each = beside(table, np.arange(len(table.queries)))
    return np.array([*each, *played(apart(table), seed), *played(table, seed)])


def table(found: Mapping[str, Sequence[F64]]) -> Table:
    """A row for each case: means over the seeds, and the difference that recurring choices make."""
    heads = ["", "best single", "plurality", "choices of their own", "the same choices", "difference, points"]
    rows = []
    for name, each in found.items():
        best, plurality, alone, alone_cost, same, same_cost = np.mean(each, axis=0)
        gained = np.array([one[4] - one[2] for one in each])
        cells = f"{best:.3f}", f"{plurality:.3f}", f"{alone:.3f} @ {alone_cost:.2f}", f"{same:.3f} @ {same_cost:.2f}"
        rows.append([name, *cells, student_points(gained, len(found))])
    return Table(heads, rows)


def main() -> None:
    """Play and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    jobs = list(product([*WORLDS, RECORDED], range(given.seeds)))
    simulations = list(product(WORLDS, range(given.seeds)))
    with ProcessPoolExecutor(2) as pool:
        cold_start = list(pool.map(partial(case, given.data), jobs))
        after = list(pool.map(trained_case, simulations))
    for of, results in ((jobs, cold_start), (simulations, after)):
        found: dict[str, list[F64]] = {}
        for (name, _), one in zip(of, results, strict=True):
            found.setdefault(name, []).append(one)
        print(markdown_table(table(found)) + "\n")


if __name__ == "__main__":
    main()
