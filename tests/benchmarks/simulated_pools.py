"""Compares the cold start and trained policies with baselines on random pools of simulated models.

    python -m tests.benchmarks.simulated_pools [--pools 60] [--first 1]

A pool has 3 to 16 models. Their overall skills, skills by topic, kin and prices are drawn as in the synthetic logs that
the shipped policy was trained on, but questions and replies are those of `focalroute.sim`. 400 questions are for
training; 1,000 are replayed at the cost ratio `HELD`, with a label after each answer. Prints Markdown tables; intervals
are Student's over pools.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from random import Random
from typing import TypeAlias

import numpy as np

from focalroute.core.config import Endpoint
from focalroute.core.pool import PoolFile
from focalroute.evaluate.baselines import baselines, best_in_hindsight
from focalroute.evaluate.metrics import compare
from focalroute.evaluate.outcomes import LoggedQuery, Output
from focalroute.evaluate.playing import cost_weight_at, trained
from focalroute.evaluate.replay import ReplayResult, Training, play
from focalroute.evaluate.serving import Serving
from focalroute.evaluate.table import LogTable, join
from focalroute.learn.offline.reinforce import OfflineSettings
from focalroute.policy.bundle import Policy, cold
from focalroute.sim import TOPICS, Question, SimulatedModel, generate
from focalroute.sim.models import distribution
from tests.benchmarks.harness import Table, markdown_table, student_points

SINGLE = "best-single-hindsight"
RIVALS = (SINGLE, "plurality", "carrot-knn", "cascade")
OURS = ("warm", "cold")
LEARNED = 300  # after this many questions, the cold start should not be significantly below the best single model
HELD = 0.4
#: Method -> its results.
Results: TypeAlias = dict[str, ReplayResult]

_TRAINING, _PLAYED = 400, 1000
_BLOCKS = (1, 1, 30, 100, 250)  # lengths of runs of questions of one topic
_PROBABILITIES = 0.4  # share of the pools whose models give probabilities


def drawn(number: int) -> LogTable:
    """Draw a pool and its questions, and let every model answer them."""
    rng = np.random.default_rng(number)
    models = _models(rng, number)
    questions = _questions(rng, number)
    probabilities = bool(rng.random() < _PROBABILITIES)
    talk = rng.normal(0, 0.4, len(models))
    queries = []
    for line, question in enumerate(questions, 1):
        tokens = 150 * np.exp(talk + rng.normal(0, 0.3, len(models)))
        outputs = {
            model.name: _output(model, question, int(length), probabilities)
            for model, length in zip(models, tokens, strict=True)
        }
        message = {"role": "user", "content": question.text}
        queries.append(
            LoggedQuery(f"q{line}", question.topic, (message,), question.choices, question.label, outputs, line)
        )
    endpoints = tuple(
        Endpoint(model.name, model=model.name, input_usd_per_1m=model.price[0], output_usd_per_1m=model.price[1])
        for model in models
    )
    return join(queries, PoolFile(endpoints, {}, None), f"pool {number}")


def _models(rng: np.random.Generator, number: int) -> list[SimulatedModel]:
    """Draw 3 to 16 models, with the distributions of ``examples/shipped_policy/synthetic_pools.py``."""
    n = int(rng.integers(3, 17))
    ability = rng.normal(0, rng.uniform(0.2, 1.3), n)
    taste = rng.normal(0, rng.uniform(0.05, 1.0), (n, len(TOPICS)))
    hard = rng.normal(0, rng.uniform(0, 0.8), len(TOPICS))
    skills = 1 / (1 + np.exp(-(rng.uniform(-1.0, 1.0) + ability[:, None] + taste - hard)))
    better = ability / max(float(ability.std()), 1e-6)
    usd = 0.5 * np.exp(rng.uniform(-0.3, 1.2) * better + rng.normal(0, rng.uniform(0.3, 1.4), n))
    sharpness = np.exp(rng.normal(rng.uniform(0, 1.2), 0.5, n))  # many are overconfident
    kin, correlation = rng.integers(max(n // 3, 1), size=n), float(rng.uniform(0, 0.8))
    return [
        SimulatedModel(
            f"m{i}",
            skills=dict(zip(TOPICS, skills[i].tolist(), strict=True)),
            sharpness=float(sharpness[i]),
            kin=f"kin {kin[i]}",
            correlation=correlation,
            seed=number,
            input_usd_per_1m=round(float(usd[i]), 4),
            output_usd_per_1m=round(float(usd[i]), 4),
        )
        for i in range(n)
    ]


def _questions(rng: np.random.Generator, number: int) -> list[Question]:
    """Draw questions of all topics, in blocks of one topic or mixed."""
    block = int(rng.choice(_BLOCKS))
    words = Random(number)
    topics = (TOPICS[i] for i in rng.integers(len(TOPICS), size=_TRAINING + _PLAYED) for _ in range(block))
    return [generate(next(topics), words) for _ in range(_TRAINING + _PLAYED)]


def _output(model: SimulatedModel, question: Question, tokens: int, probabilities: bool) -> Output:
    p = distribution(model, question.text, question.topic, question.choices, question.label)
    return Output(int(np.argmax(p)), p if probabilities else None, None, 60, tokens, None, None, None)


def played(number: int) -> Results:
    """Replay a pool with each method; ``usd`` is in units of asking all endpoints all queries."""
    table = drawn(number)
    rows = np.arange(_TRAINING, _TRAINING + _PLAYED)
    training = Training(table, np.arange(_TRAINING), number)
    policy = trained(table, training.rows, seed=number, settings=OfflineSettings(), advance=lambda _: None)
    fitted = baselines(training)
    found = {name: play(fitted[name](training), table, rows) for name in RIVALS if name != SINGLE}
    found[SINGLE] = play(best_in_hindsight(table, rows), table, rows)
    found["warm"] = _served(policy, table, rows, number, explore=False)
    found["cold"] = _served(cold(), table, rows, number, explore=True)
    ask_all_usd = float(table.usd[rows].sum())
    return {name: replace(run, usd=run.usd / ask_all_usd) for name, run in found.items()}


def _served(
    policy: Policy, table: LogTable, rows: np.ndarray[tuple[int], np.dtype[np.int64]], seed: int, *, explore: bool
) -> ReplayResult:
    serving = Serving(policy, table.endpoints, seed=seed, explore=explore, cost_weight=cost_weight_at(policy, HELD))
    serving.hold(table.target_usd_per_query(rows, HELD))
    return play(serving, table, rows)


def _rows(results: Sequence[Results]) -> list[list[str]]:
    """Make a row for each method: accuracy @ cost, and ours minus it."""
    rows = []
    for name in (*OURS, *RIVALS):
        accuracy = np.mean([each[name].worth.mean() for each in results])
        cost = np.mean([each[name].usd.sum() for each in results])
        differences = [""] * len(OURS)
        if name not in OURS:
            differences = [ahead(results, ours, name) for ours in OURS]
        rows.append([name, f"{accuracy:.3f} @ {cost:.3f}", *differences])
    return rows


def ahead(results: Sequence[Results], ours: str, other: str) -> str:
    """Format the accuracy of ours minus a rival's, in points, with Student's interval over pools."""
    points = np.array([each[ours].worth.mean() - each[other].worth.mean() for each in results])
    return student_points(points, len(OURS) * len(RIVALS))


def _late(results: Sequence[Results]) -> list[list[str]]:
    """Make a row for each of ours: on how many pools it ends significantly above or below the best single model."""
    late = slice(LEARNED, None)
    rows = []
    for ours in OURS:
        minus = compare({
            pool: ([each[ours].part(late)], [each[SINGLE].part(late)]) for pool, each in enumerate(results)
        }).values()  # fmt: skip
        mean = student_points(np.array([one.difference for one in minus]), len(OURS))
        below = sum(one.ci95[1] < 0 for one in minus)
        worst = 100 * min(one.difference for one in minus)
        rows.append([ours, mean, str(sum(one.beats for one in minus)), str(below), f"{worst:+.1f}"])
    return rows


def main() -> None:
    """Replay the pools and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pools", type=int, default=60)
    parser.add_argument("--first", type=int, default=1, help="number of the first pool; each number is another draw")
    given = parser.parse_args()
    with ProcessPoolExecutor(2) as pool:
        results = list(pool.map(played, range(given.first, given.first + given.pools)))
    head = ["", "accuracy @ cost", *(f"{ours} minus this" for ours in OURS)]
    print(markdown_table(Table(head, _rows(results))))
    print()
    head = [f"from question {LEARNED} on, minus the best single", "mean", "above", "below", "worst pool"]
    print(markdown_table(Table(head, _late(results))))


if __name__ == "__main__":
    main()
