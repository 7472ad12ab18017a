"""Measures what is gained where all questions have the same choices, as in classification.

``python -m tests.benchmarks.classification --seeds 5`` (an hour) plays at 0.3 of the cost of asking all: first the cold
start, with a label for every answer; then a policy trained on 2,000 further questions, without feedback. The control is
the same questions, each with choices of its own, so nothing that was learned about a choice applies to another
question. In the simulated pools, five endpoints see a noisy score for each label, with their own bias for each label
(in one of the pools, without biases). The recorded answers are to the 895 questions of the task moral_scenarios of
mmlu9, which all have the same four choices.
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
    """A simulated classification task.

    Attributes:
        labels: number of labels.
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
    """Simulate the answers of a randomly drawn pool."""
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
    """Return the questions of moral_scenarios in random order."""
    pool = load_pool(data / "mmlu9.pool.toml")
    queries = [query for query in read_log(data / "mmlu9.jsonl.gz") if query.task == "moral_scenarios"]
    order = np.random.default_rng(seed).permutation(len(queries)).tolist()
    return join([queries[at] for at in order], pool, RECORDED)


def apart(table: LogTable) -> LogTable:
    """Return the same questions, each with choices of its own."""
    queries = [
        replace(query, choices=tuple(f"{choice} ({query.id})" for choice in query.choices or ()))
        for query in table.queries
    ]
    return join(queries, PoolFile(table.endpoints, {}, None), "apart")


def played(table: LogTable, seed: int) -> tuple[float, float]:
    """Return accuracy and cost ratio of the cold start."""
    rows = np.arange(len(table.queries))
    replay = PolicyReplay(
        cold(), table, Split(rows[:0], rows), Training(table, rows[:0], seed), explore=True, advance=lambda _: None
    )
    found = replay.run(COST).played
    return float(found.worth.mean()), float(found.usd.sum() / table.usd.sum())


def after_training(table: LogTable, seed: int) -> tuple[float, float]:
    """Train a policy on the first queries; return its accuracy and cost ratio on the others, without feedback."""
    rows = np.arange(len(table.queries))
    parts = Split(rows[:TRAINING], rows[TRAINING:])
    policy = trained(table, parts.train, seed=seed, settings=OfflineSettings(), advance=lambda _: None)
    training = Training(table, parts.train, seed, FeedbackPlan("none"))
    found = PolicyReplay(policy, table, parts, training, explore=False, advance=lambda _: None).run(COST).played
    return float(found.worth.mean()), float(found.usd.sum() / table.usd[parts.test].sum())


def trained_case(job: tuple[str, int]) -> F64:
    """As `case`, with trained policies, on the queries after training."""
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
    """Return the accuracy of the best single endpoint and of plurality."""
    right = 0
    for row in rows.tolist():
        query = table.queries[row]
        votes = [output.answer for output in query.outputs.values() if isinstance(output.answer, int)]
        right += int(np.bincount(votes).argmax() == query.label)
    return float(table.accuracy(rows).max()), right / len(rows)


def case(data: Path, job: tuple[str, int]) -> F64:
    """Return `beside`, then accuracy and cost with choices of their own, then both with the same choices, (6,)."""
    name, seed = job
    table = recorded(data, seed) if name == RECORDED else simulated(WORLDS[name], seed)
    each = beside(table, np.arange(len(table.queries)))
    return np.array([*each, *played(apart(table), seed), *played(table, seed)])


def table(found: Mapping[str, Sequence[F64]]) -> Table:
    """Make a table with a row for each case: means over the seeds, and the gain from recurring choices."""
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
