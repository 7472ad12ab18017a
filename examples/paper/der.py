"""Compares DER with self-correction, a fixed route and each endpoint alone, on five simulated tasks.

python -m examples.paper.der [--task qa ...] [--seeds 5] [--train 800] [--test 300] [--json FILE]

Two hops and yes or no are for `focalroute.sim.relay_models`: four cheap models that are each good at one kind of hop,
and an expensive one that is fair at all. QA (F1), summaries (ROUGE-L) and sentiment (accuracy) are for `small_models`,
in the shape of DER's small-model rebuild. Every seed has its own models, questions and training. Training asks the
models in process; everything that is scored goes through `focalroute.Ensemble` over HTTP. The settings of DER were
chosen on two hops and yes or no, with other seeds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from pathlib import Path

import numpy as np

from examples.paper.common import mean_se, parser_of, show
from examples.paper.in_process import in_process
from examples.paper.passages import FACTS, PASSAGES, PassageModel
from focalroute.answers import AnswerKind
from focalroute.evaluate.live import FAMILIES, LiveOptions, live_report, play_all, show_live
from focalroute.evaluate.live_environment import LiveResult, of_questions
from focalroute.evaluate.presets.der import DerSettings
from focalroute.evaluate.quality import metric
from focalroute.sim import SimulatedModel, SimulatedPool, relay_models, stream
from focalroute.sim.families import Family

FIRST_SEED = 1


def small_models(seed: int) -> tuple[SimulatedModel, ...]:
    """Make three small models: each is good at one kind of fact, and none is far ahead at sentiment."""

    def model(name: str, usd: str, **skills: float) -> SimulatedModel:
        price = Decimal(usd)
        return PassageModel(
            name, skills=skills, sharpness=2.5, seed=seed, input_usd_per_1m=price, output_usd_per_1m=2 * price
        )

    return (
        model("scribe-3b", "0.06", who=0.90, where=0.55, cost=0.50, sentiment=0.84),
        model("ledger-3b", "0.06", who=0.50, where=0.55, cost=0.92, sentiment=0.82),
        model("compass-7b", "0.12", who=0.65, where=0.90, cost=0.60, sentiment=0.88),
    )


@dataclass(frozen=True, slots=True)
class Task:
    """One task.

    Attributes:
        topics: the topics of its questions.
        models: makes the models of a seed; their names end in their size, in billions of parameters.
        answer: the kind of free-form answers; None: choices are given.
        quality: the metric of free-form answers; None: accuracy.
    """

    topics: Sequence[str | Family]
    models: Callable[[int], tuple[SimulatedModel, ...]]
    answer: AnswerKind | None = None
    quality: str | None = None


TASKS: Mapping[str, Task] = {
    "multi-hop": Task(("multi-hop",), relay_models, "number"),
    "yes-no": Task(("yes-no",), relay_models),
    "qa": Task([PASSAGES[fact] for fact in FACTS], small_models, "short", "f1"),
    "summary": Task([PASSAGES["summary"]], small_models, "text", "rouge-l"),
    "sentiment": Task([PASSAGES["sentiment"]], small_models),
}


def played(task: Task, train: int, test: int, seed: int, plan: LiveOptions) -> dict[str, LiveResult]:
    """Run every strategy on the test queries of one seed."""
    questions = list(stream(train + test, seed=1000 + seed, topics=task.topics))
    asked = of_questions(questions, answer=task.answer, quality=metric(task.quality) if task.quality else None)
    with SimulatedPool(task.models(seed)) as pool:
        ask = in_process(pool.models, pool.endpoints, asked[:train])
        return play_all(pool.endpoints, asked[:train], asked[train:], ask, options=plan, seed=seed)


def tera_flops(run: LiveResult) -> float:
    """Return the mean of 2 x parameters x tokens over queries, in 10^12 operations."""
    billions = {name: float(name.rpartition("-")[2].removesuffix("b")) for name in run.tokens}
    return sum(2e-3 * billions[name] * float(tokens.mean()) for name, tokens in run.tokens.items())


def rows_of(parts: Sequence[Mapping[str, LiveResult]]) -> list[list[str]]:
    """Make a row for each strategy, best first, with means and standard errors over the seeds."""
    rows = []
    best_first = sorted(parts[0], key=lambda name: -float(np.mean([part[name].worth.mean() for part in parts])))
    for name in best_first:
        runs = [part[name] for part in parts]
        ratios = [float(run.usd.sum() / part["plurality"].usd.sum()) for run, part in zip(runs, parts, strict=True)]
        rows.append(
            [
                name,
                mean_se([run.worth.mean() for run in runs], digits=1),
                mean_se([run.asked.sum(axis=1).mean() for run in runs], scale=1),
                mean_se([run.usd.mean() for run in runs], scale=1000, digits=4),
                mean_se(ratios, scale=1, digits=3),
                mean_se([tera_flops(run) for run in runs], scale=1),
            ]
        )
    return rows


def joined(parts: Sequence[LiveResult]) -> LiveResult:
    """Join results on different queries into one."""
    most = max(part.asked.shape[1] for part in parts)
    asked = [np.pad(part.asked, ((0, 0), (0, most - part.asked.shape[1]))) for part in parts]
    names = dict.fromkeys(name for part in parts for name in part.tokens)
    return LiveResult(
        np.concatenate([part.worth for part in parts]),
        np.concatenate([part.usd for part in parts]),
        np.concatenate(asked),
        {
            name: np.concatenate([part.tokens.get(name, np.zeros(len(part.worth), np.int64)) for part in parts])
            for name in names
        },
    )


def main() -> None:
    """Train, play and print."""
    parser = parser_of(__doc__ or "")
    parser.add_argument("--train", type=int, default=800, help="queries that DER learns from")
    parser.add_argument("--test", type=int, default=300, help="queries that are scored, for each seed")
    parser.add_argument("--task", choices=TASKS, action="append", help="only this one; may be given again")
    parser.add_argument("--json", type=Path, help="write the reports there")
    options = parser.parse_args()
    plan = LiveOptions()
    if options.quick:
        options.seeds, options.train, options.test, options.task = 1, 10, 4, ["yes-no", "summary"]
        plan = LiveOptions(max_steps=2, alphas=(0.3,), settings=DerSettings(passes=1, hidden=8))
    reports, beside = {}, list[list[str]]()
    for name in options.task or TASKS:
        task, seeds = TASKS[name], range(FIRST_SEED, FIRST_SEED + options.seeds)
        parts = [played(task, options.train, options.test, seed, plan) for seed in seeds]
        together = {way: [joined([part[way] for part in parts])] for way in parts[0]}
        report = live_report(name, together, seeds=len(parts), scored=task.quality or "accuracy")
        show_live(report)
        title = f"{name}, {options.test} queries a seed after {options.train}: means and standard errors"
        columns = ["", f"{report.scored} x 100", "calls", "USD per 1,000 queries", "cost ratio", "TFLOPs a query"]
        show(title, columns, rows_of(parts))
        for way, found in report.equal_cost.items():
            cells = [f"**{one.in_points()}**" if one.beats else one.in_points() for one in found.values()]
            beside.append([f"{name}, {way}", *cells])
        reports[name] = asdict(report)
        if options.json is not None:
            options.json.write_text(json.dumps(reports, indent=2) + "\n", "utf-8")
    show("DER minus the best of a family at the same cost, points", ["", *FAMILIES], beside)


if __name__ == "__main__":
    main()
