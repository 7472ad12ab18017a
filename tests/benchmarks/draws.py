"""Compares trained policies and published routers on random small pools drawn from the recorded logs.

    python -m tests.benchmarks.draws [--whole | --scores | --cold] [--draws 12] [--data ../shared/data] [--rows 3000]

A draw has 3 to 6 of a log's endpoints, and ``--rows`` queries evenly spread over its training part. The methods are
trained on the first 80 % of them; the rest is replayed. With ``--whole`` a draw has all endpoints and three quarters of
the training part, either the first or the last three; two quarters are for training, the third is replayed. With
``--scores`` the methods see only the score of each answer, so no two answers can be compared.

Costs are held at 0.1, 0.2 and 0.35 of asking all, and at the cost of the endpoint that was best in training; costs
below that of the cheapest endpoint are left out. A method is compared with the best single endpoint, or random mixture
of two, at the same cost, chosen in hindsight (`mixture`). A cell of the Markdown table is its accuracy minus that of
the mixture, in points, averaged over costs and draws. Bold means significantly above focalroute on the same draws, ↓
significantly below, by a permutation test of the signs of the differences at 5 % with Bonferroni's correction. Runs in
two processes.

With ``--cold`` the cold start is replayed instead, with default settings, on all queries of a draw: without labels,
with some, and with all; also with the MMLU scores that the models' makers published as expected accuracies (as a
control, with those of other endpoints), and with ``policy="cascade"``, which needs no training either. Each is compared
with a vote of all, with the best single endpoint in hindsight and with the mixtures. The gain is that of accuracy - 0.1
cost over the cold start without feedback. Intervals are Student's over draws. Logs without comparable answers are left
out.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Literal

import numpy as np

from focalroute.core.config import Endpoint
from focalroute.core.pool import PoolFile, load_pool
from focalroute.core.records import F64
from focalroute.evaluate.outcomes import LoggedQuery, read_log
from focalroute.evaluate.playing import PolicyReplay, trained
from focalroute.evaluate.replay import (
    COST_WEIGHT,
    FeedbackPlan,
    FeedbackStream,
    ReplayResult,
    Revealed,
    Training,
    Turn,
    play,
)
from focalroute.evaluate.serving import Serving
from focalroute.evaluate.table import LogTable, join, learning_order, split
from focalroute.learn.offline.reinforce import OfflineSettings
from focalroute.policy.baselines import Cascade
from focalroute.policy.bundle import cold
from tests.benchmarks.harness import Table, markdown_table, student_points
from tests.benchmarks.labels import vote_of_all
from tests.benchmarks.rivals import OURS, rivals

LOGS = ("mmlupro12", "mmlu9", "zeroeval12", "llmrouter9")
COMPARABLE = LOGS[:3]
NOTHING, EVERYTHING = FeedbackPlan("none"), FeedbackPlan()


@dataclass(frozen=True, slots=True)
class Untrained:
    """How a row of the ``--cold`` table is replayed.

    Attributes:
        feedback: the feedback on answers.
        cascade: whether the policy is the cascade, not the cold start.
        expected: whether endpoints have their `MMLU` scores as expected accuracies; shuffled: those of others.
    """

    feedback: FeedbackPlan = NOTHING
    cascade: bool = False
    expected: Literal["no", "yes", "shuffled"] = "no"


#: Row -> how it is replayed; gains are over the first row.
UNTRAINED: Mapping[str, Untrained] = {
    "cold start, no feedback": Untrained(),
    "3 % labels, at random": Untrained(FeedbackPlan(share=0.03)),
    "10 % labels, at random": Untrained(FeedbackPlan(share=0.1)),
    "3 % labels, where members differ first": Untrained(FeedbackPlan(share=0.03, bias="disputed")),
    "10 % labels, where members differ first": Untrained(FeedbackPlan(share=0.1, bias="disputed")),
    "every label": Untrained(EVERYTHING),
    "no feedback, expected by MMLU": Untrained(expected="yes"),
    "every label, expected by MMLU": Untrained(EVERYTHING, expected="yes"),
    "no feedback, MMLU of other endpoints": Untrained(expected="shuffled"),
    "every label, MMLU of other endpoints": Untrained(EVERYTHING, expected="shuffled"),
    "cascade, no feedback": Untrained(cascade=True),
    "cascade, no feedback, expected by MMLU": Untrained(cascade=True, expected="yes"),
    "cascade, every label": Untrained(EVERYTHING, cascade=True),
}
#: Accuracy on MMLU in %, as published by the makers; of the base model where they published no other.
MMLU: Mapping[str, float] = {
    "c4ai-command-r-v01": 68.2,
    "claude-3-haiku-20240307": 75.2,
    "claude-3-opus-20240229": 86.8,
    "deepseek-chat": 77.8,
    "deepseek-coder-v2": 79.2,
    "gemini-1.5-flash": 78.9,
    "gemini-1.5-flash-preview-0514": 78.9,
    "gemini-1.5-pro-preview-0409": 81.9,
    "gemma-2-27b-it": 75.2,
    "gemma-2-9b-it": 71.3,
    "gpt-3.5-turbo-0125": 70.0,
    "gpt-4-0613": 86.4,
    "gpt-4-1106-preview": 84.7,
    "gpt-4o-2024-05-13": 88.7,
    "gpt-4o-mini-2024-07-18": 82.0,
    "jamba-1.5-large": 80.0,
    "llama-3-70b": 82.0,
    "mathstral-7b": 63.5,
    "meta-llama-3-70b": 79.5,
    "meta-llama-3-70b-instruct": 82.0,
    "meta-llama-3-8b-instruct": 68.4,
    "meta-llama-3.1-70b-instruct": 83.6,
    "meta-llama-3.1-8b-instruct": 69.4,
    "mistral-large-2": 84.0,
    "mixtral-8x22b": 77.8,
    "mixtral-8x7b-instruct-v0.1": 70.6,
    "phi-3-mini-4k-instruct": 68.8,
    "qwen1.5-110b": 80.4,
    "qwen2-72b-instruct": 82.3,
    "text-unicorn": 78.3,
    "yi-34b": 76.3,
}
COSTS = (0.1, 0.2, 0.35)
_TRAINING = 0.8
_QUARTERS = 4
_FLIPS = 20_000  # random signs in a permutation test
_LEVEL = 0.05


def training_part(data: Path, log: str) -> tuple[PoolFile, tuple[LoggedQuery, ...]]:
    """Read a log; return its pool and the queries of its training part."""
    queries = read_log(data / f"{log}.jsonl.gz")
    return load_pool(data / f"{log}.pool.toml"), queries[: int(_TRAINING * len(queries))]


def scored(query: LoggedQuery) -> LoggedQuery:
    """Replace the answers to a query by their scores."""
    outputs = {
        name: replace(output, answer=None, probabilities=None, score=float(output.answer == query.label))
        for name, output in query.outputs.items()
    }
    return replace(query, choices=None, label=None, outputs=outputs)


def draw(data: Path, log: str, seed: int, rows: int, *, scores: bool = False) -> LogTable:
    """Draw some of a log's endpoints, with some of its training queries."""
    rng = random.Random(f"{log} {seed}")
    pool, training = training_part(data, log)
    endpoints = sorted(rng.sample(pool.endpoints, rng.randint(3, 6)), key=pool.endpoints.index)
    names = {endpoint.name for endpoint in endpoints}
    kept = np.linspace(0, len(training) - 1, min(len(training), rows)).astype(int).tolist()
    asked = [{name: output for name, output in training[row].outputs.items() if name in names} for row in kept]
    some = [replace(training[row], outputs=outputs) for row, outputs in zip(kept, asked, strict=True) if outputs]
    if scores:
        some = [scored(query) for query in some]
    return join(some, replace(pool, endpoints=tuple(endpoints)), f"{log}, draw {seed}")


def stretch(data: Path, log: str, seed: int) -> LogTable:
    """Return all of a log's endpoints with the first (for odd seeds, last) three quarters of its training queries."""
    pool, training = training_part(data, log)
    first = seed % 2 * len(training) // _QUARTERS
    return join(training[first : first + len(training) * 3 // _QUARTERS], pool, f"{log}, stretch {seed}")


def mixture(costs: F64, right: F64, cost: float) -> float:
    """Return the accuracy of the best single endpoint, or random mixture of two, at a mean cost.

    Args:
        costs: (N,) cost of each endpoint.
        right: (N,) accuracy of each endpoint.
        cost: the mean cost; if it is below that of the cheapest endpoint, that endpoint's cost is taken.
    """
    endpoints = sorted(zip(costs.tolist(), right.tolist(), strict=True))
    cost = max(cost, endpoints[0][0])
    accuracies = []
    for (cheap, accuracy), (dear, other) in combinations_with_replacement(endpoints, 2):
        if cheap <= cost:
            accuracies.append(float(np.interp(cost, (cheap, dear), (accuracy, other))))
    return max(accuracies)


def played(data: Path, log: str, seed: int, rows: int | None, scores: bool) -> dict[str, float]:
    """Train on a draw and replay its end; return method -> points above the mixtures, averaged over the costs held.

    Args:
        data: the folder of the logs.
        log: the log's name.
        seed: the draw.
        rows: number of queries in the draw; None: it has all endpoints, see `stretch`.
        scores: whether only scores are known.
    """
    table = stretch(data, log, seed) if rows is None else draw(data, log, seed, rows, scores=scores)
    parts = split(table, per_task=False, fraction=2 / 3 if rows is None else _TRAINING)
    costs, right = table.single_cost_ratios(parts.test), table.accuracy(parts.test)
    ask_all_usd = float(table.usd[parts.test].sum())
    training = Training(table, parts.train, seed)
    best = float(costs[table.rank(parts.train)[0]])
    points = [point for point in sorted({*COSTS, round(best, 3)}) if point > table.cheapest(parts.test)[1]]

    def above(found: ReplayResult) -> float:
        return 100 * (float(found.worth.mean()) - mixture(costs, right, float(found.usd.sum()) / ask_all_usd))

    order = learning_order(table, parts.train, "stream")
    policy = trained(table, order, seed=seed, settings=OfflineSettings(), advance=lambda _: None)
    replay = PolicyReplay(policy, table, parts, training, explore=False, advance=lambda _: None)
    differences = {OURS: [above(replay.run(point).played) for point in points]}
    for name, _, (strategy,) in rivals(training, points, ask_all_usd / len(parts.test), 1):
        differences.setdefault(name, []).append(above(play(strategy, table, parts.test)))
    return {name: float(np.mean(each)) for name, each in differences.items()}


def untrained(data: Path, log: str, seed: int, rows: int, name: str) -> tuple[float, ...]:
    """Replay a row of `UNTRAINED` on a draw.

    Returns:
        Accuracy, cost ratio, share of labels, and the accuracy minus that of the vote of all, of the best single
        endpoint, and of the best mixture.
    """
    row = UNTRAINED[name]
    table = draw(data, log, seed, rows)
    every = np.arange(len(table.queries))
    costs, right = table.single_cost_ratios(every), table.accuracy(every)
    policy = Cascade([endpoint.name for endpoint in table.endpoints], seed) if row.cascade else cold()
    serving = LabelCounter(policy, with_expected(table.endpoints, seed, row.expected), seed=seed)
    found = play(serving, table, every, feedback=FeedbackStream(replace(row.feedback, seed=seed)))
    accuracy, cost = float(found.worth.mean()), float(found.usd.sum() / table.usd.sum())
    others = (vote_of_all(table, every), float(right.max()), mixture(costs, right, cost))
    return (accuracy, cost, serving.labels / len(every), *(accuracy - other for other in others))


def with_expected(endpoints: Sequence[Endpoint], seed: int, expected: str) -> Sequence[Endpoint]:
    """Give the endpoints an expected accuracy, see `Untrained`."""
    if expected == "no":
        return endpoints
    scores = [MMLU[endpoint.name] / 100 for endpoint in endpoints]
    if expected == "shuffled":
        random.Random(seed).shuffle(scores)
    return [replace(one, expected_accuracy=score) for one, score in zip(endpoints, scores, strict=True)]


class LabelCounter(Serving):
    """Counts the labels that it learns from."""

    labels = 0

    def learn(self, turn: Turn, revealed: Revealed) -> None:
        """Count a label, and learn from it."""
        self.labels += 1
        super().learn(turn, revealed)


def show_untrained(data: Path, logs: Sequence[str], draws: int, rows: int) -> None:
    """Replay and print the ``--cold`` table."""
    jobs = [(log, seed) for log in logs if log in COMPARABLE for seed in range(draws)]
    table, first = [], None
    with ProcessPoolExecutor(2) as pool:
        for name in UNTRAINED:
            runs = [pool.submit(untrained, data, log, seed, rows, name) for log, seed in jobs]
            accuracy, cost, labels, *ahead = np.array([run.result() for run in runs]).T
            worth = accuracy - COST_WEIGHT * cost
            comparisons = len(UNTRAINED) * (len(ahead) + 1)
            gain = "" if first is None else student_points(worth - first, comparisons)
            first = worth if first is None else first
            cells = [student_points(one, comparisons) for one in ahead]
            table.append([name, f"{labels.mean():.3f}", f"{accuracy.mean():.3f} @ {cost.mean():.3f}", gain, *cells])
    head = [
        "",
        "labels",
        "accuracy @ cost",
        "gain",
        "minus plurality of all",
        "minus the best single",
        "above the mixtures",
    ]
    print(markdown_table(Table(head, table)))


def rows_of(drawn: Mapping[str, Sequence[Mapping[str, float]]]) -> Iterator[list[str]]:
    """Yield a row for each method, with a cell for each log and one for all logs, from log -> results of its draws."""
    groups = [*drawn.values(), [one for each in drawn.values() for one in each]]
    methods = list(groups[0][0])
    for method in methods:
        row = [method]
        for group in groups:
            ours, own = (np.array([one[name] for one in group]) for name in (OURS, method))
            cell, beside = f"{own.mean():+.1f}", own - ours
            if method != OURS and chance(beside) < _LEVEL / ((len(methods) - 1) * len(groups)):
                cell = f"**{cell}**" if beside.mean() > 0 else f"{cell} ↓"
            row.append(cell)
        yield row


def averaged(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Average each method's figures."""
    return {name: float(np.mean([run[name] for run in runs])) for name in runs[0]}


def chance(differences: F64) -> float:
    """Return the p-value of a mean of 0, two-sided, by a permutation test of the signs of the differences."""
    signs = np.random.default_rng(0).choice((-1.0, 1.0), (_FLIPS, len(differences)))
    return float((np.abs(signs @ differences) >= abs(differences.sum()) - 1e-9).mean())


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw, train, replay and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.draws")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--whole", action="store_true")
    which.add_argument("--scores", action="store_true")
    which.add_argument("--cold", action="store_true")
    parser.add_argument("--draws", type=int, default=12)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--rows", type=int, default=3000)
    given = parser.parse_args(arguments)
    logs = [log for log in (COMPARABLE if given.scores else LOGS) if (given.data / f"{log}.jsonl.gz").exists()]
    if given.cold:
        show_untrained(given.data, logs, given.draws, given.rows)
        return
    rows = None if given.whole else given.rows
    with ProcessPoolExecutor(2) as pool:
        runs = {
            log: [pool.submit(played, given.data, log, seed, rows, given.scores) for seed in range(given.draws)]
            for log in logs
        }
        drawn = {log: [run.result() for run in each] for log, each in runs.items()}
    if given.whole:  # the same queries with another seed are no other draw
        drawn = {log: [averaged(each[first::2]) for first in range(2)] for log, each in drawn.items()}
    print(markdown_table(Table(["points above the mixtures", *logs, "all"], [*rows_of(drawn)])))


if __name__ == "__main__":
    main()
