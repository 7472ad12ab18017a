"""Measures how the cold start copes with changes of every kind on recorded answers.

    python -m tests.benchmarks.changes [--data ../shared/data] [--seeds 10]

2,000 queries of a log are replayed with default settings, and with a label for every answer unless the row says
otherwise; the change is in the middle. Net value is accuracy - 0.1 x cost ratio. The table has the net value after the
change minus that of a cold start for which the pool (or mix of topics, or prices) was always as after the change; and
the regret, the net value of the best single endpoint after the change minus ours. Intervals as in
`focalroute.evaluate.metrics`.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from focalroute.core.config import Endpoint
from focalroute.core.pool import PoolFile, load_pool
from focalroute.evaluate.metrics import compare
from focalroute.evaluate.outcomes import LoggedQuery, read_log
from focalroute.evaluate.replay import COST_WEIGHT, FeedbackPlan, FeedbackStream, ReplayResult, play
from focalroute.evaluate.serving import Serving
from focalroute.evaluate.table import LogTable, join
from focalroute.policy.bundle import cold
from tests.benchmarks.drift import PoolChange, with_outputs
from tests.benchmarks.harness import Table, markdown_table

LOGS = ("mmlupro12", "mmlu9")
HALF = 1000
PARTS = {"first 100 after": slice(0, 100), "next 300": slice(100, 400), "the rest": slice(400, None)}
_MOSTLY = 0.8  # share of the queries that are of the frequent half of the topics


EVERY_LABEL, NO_FEEDBACK = FeedbackPlan(), FeedbackPlan("none")

#: Queries of a log, or half of a stream.
Queries: TypeAlias = Sequence[LoggedQuery]


class Played(NamedTuple):
    """The results after the change; their ``worth`` is the net value.

    Attributes:
        ours: with the change.
        knew: on the stream that was always as after the change.
        best: the mean net value of the best endpoint.
    """

    ours: ReplayResult
    knew: ReplayResult
    best: float


@dataclass(frozen=True, slots=True)
class Case:
    """A change of the pool, of a price or of the topics.

    Attributes:
        before: how the pool before the change differs from the log; endpoints are "best", "middling" and "worst".
        after: how it differs after the change.
        price: the factor by which the price of the best endpoint changes.
        topics: whether rare topics become frequent.
        feedback: the feedback on answers, before and after the change.
    """

    before: PoolChange = field(default_factory=dict)
    after: PoolChange = field(default_factory=dict)
    price: float = 1.0
    topics: bool = False
    feedback: FeedbackPlan = EVERY_LABEL


_WORSE: PoolChange = {"best": "worst"}
CASES: Mapping[str, Case] = {
    "the best gets worse": Case(after=_WORSE),
    "the worst gets good": Case(after={"worst": "best"}),
    "two are exchanged": Case(after={"best": "middling", "middling": "best"}),
    "the best joins": Case(before={"best": None}),
    "the best leaves": Case(after={"best": None}),
    "the best costs half": Case(price=0.5),
    "the best costs twice as much": Case(price=2.0),
    "the best costs ten times as much": Case(price=10.0),
    "topics are reversed": Case(topics=True),
    "the best gets worse, labels 500 queries late": Case(after=_WORSE, feedback=FeedbackPlan(delay=500)),
    "the best gets worse, bare rewards": Case(after=_WORSE, feedback=FeedbackPlan("reward")),
    "best and worst are exchanged, no feedback": Case(after={"best": "worst", "worst": "best"}, feedback=NO_FEEDBACK),
    "the best becomes a copy of the worst, no feedback": Case(after=_WORSE, feedback=NO_FEEDBACK),
}


def streams(data: Path, log: str, case: Case) -> tuple[LogTable, LogTable]:
    """Return the stream with the change, and one that was always as after it; both have the same second half."""
    every, pool = _read(data, log)
    first, usual, second = _reversed(every) if case.topics else (every[:HALF], every[:HALF], every[HALF : 2 * HALF])
    names = [endpoint.name for endpoint in pool.endpoints]
    rank = [names[i] for i in join(every[: 2 * HALF], pool, log).rank(np.arange(2 * HALF))]
    called = {"best": rank[0], "middling": rank[len(rank) // 2], "worst": rank[-1]}
    before, after = (
        {called[name]: source and called[source] for name, source in change.items()}
        for change in (case.before, case.after)
    )
    later = with_outputs(second, after)
    stream = join([*with_outputs(first, before), *later], pool, log)
    best = names.index(rank[0])
    dearer = np.ones(stream.usd.shape)
    dearer[HALF:, best] = case.price
    knew = join([*with_outputs(usual, after), *later], _priced(pool, best, case.price), log)
    return replace(stream, usd=stream.usd * dearer), knew


@cache
def _read(data: Path, log: str) -> tuple[Queries, PoolFile]:
    """Read a log and its pool, once in each process."""
    return read_log(data / f"{log}.jsonl.gz"), load_pool(data / f"{log}.pool.toml")


def _reversed(every: Queries) -> tuple[Queries, Queries, Queries]:
    """Return a first half with mostly one half of the topics, then another and a second half with mostly the other."""
    topics = sorted({str(query.task) for query in every})
    frequent = set(random.Random(0).sample(topics, len(topics) // 2))
    kinds = [[query for query in every if (str(query.task) in frequent) is one] for one in (True, False)]
    many, few = round(_MOSTLY * HALF), HALF - round(_MOSTLY * HALF)
    order = random.Random(1)

    def mixed(counts: Sequence[int]) -> list[LoggedQuery]:
        half = [kind.pop(0) for kind, count in zip(kinds, counts, strict=True) for _ in range(count)]
        order.shuffle(half)
        return half

    return mixed((many, few)), mixed((few, many)), mixed((few, many))


def _priced(pool: PoolFile, place: int, factor: float) -> PoolFile:
    """Multiply the prices of one endpoint by a factor."""
    endpoints = list(pool.endpoints)
    one: Endpoint = endpoints[place]
    prices: dict[str, Any] = {
        name: float(getattr(one, name)) * factor for name in ("input_usd_per_1m", "output_usd_per_1m")
    }
    endpoints[place] = replace(one, **prices)
    return replace(pool, endpoints=tuple(endpoints))


def played(data: Path, log: str, name: str, seed: int) -> Played:
    """Replay both streams of a case."""
    case = CASES[name]
    sides = streams(data, log, case)
    rows = np.arange(2 * HALF)
    late, after = rows[HALF:], sides[1]
    ask_all_usd = float(after.usd[late].sum(axis=1).mean())
    runs = []
    for side in sides:
        serving = Serving(cold(), side.endpoints, seed=seed)
        run = play(serving, side, rows, feedback=FeedbackStream(replace(case.feedback, seed=seed)))
        net = run.worth - COST_WEIGHT * run.usd / ask_all_usd
        runs.append(replace(run, worth=net).part(slice(HALF, None)))
    singles = after.accuracy(late) - COST_WEIGHT * after.single_cost_ratios(late)
    return Played(runs[0], runs[1], float(singles.max()))


def main() -> None:
    """Play and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--seeds", type=int, default=10)
    given = parser.parse_args()
    cells = [(log, name) for log in LOGS for name in CASES]
    with ProcessPoolExecutor(2) as pool:
        jobs = {cell: [pool.submit(played, given.data, *cell, seed) for seed in range(given.seeds)] for cell in cells}
        found = {cell: [job.result() for job in each] for cell, each in jobs.items()}
    minus = compare({
        (cell, part): ([run.ours.part(rows) for run in runs], [run.knew.part(rows) for run in runs])
        for cell, runs in found.items()
        for part, rows in PARTS.items()
    })  # fmt: skip
    table = []
    for cell, runs in found.items():
        differences = [minus[cell, part].in_points() for part in PARTS]
        regret = 100 * np.mean([run.best - run.ours.worth.mean() for run in runs])
        table.append([*cell, *differences, f"{regret:+.1f}"])
    print(markdown_table(Table(["log", "change", *PARTS, "regret"], table)))


if __name__ == "__main__":
    main()
