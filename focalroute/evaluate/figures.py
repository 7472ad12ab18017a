"""What a page about an evaluation draws, computed from what was played. n test rows, N endpoints."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from focalroute.core.records import F64
from focalroute.evaluate.playing import EvaluationRuns
from focalroute.evaluate.report_page import drawings
from focalroute.evaluate.report_page.drawings import (
    MOST_TASKS,
    RIGHT,
    AskedByRound,
    Calibration,
    ErrorComparison,
    Heatmap,
    OverTime,
    StreamEvent,
    WhenRight,
)

#: The methods that focalroute is set beside.
BESIDE = ("best-single-train", "plurality")


@dataclass(frozen=True, slots=True)
class Figures:
    """As the JSON report has them under "figures"; all of the operating point that is shown.

    Attributes:
        shown: its place in the list of operating points.
        tasks: None: the log names none.
        tasks_left: how many tasks are left out, the smallest.
    """

    shown: int
    over_time: OverTime
    errors: ErrorComparison
    when_right: WhenRight
    calibration: Calibration
    rounds: AskedByRound
    diversity: Heatmap
    tasks: Heatmap | None
    tasks_left: int


def figures(replayed: EvaluationRuns, name: str, scored: str) -> Figures:
    """Everything that is drawn.

    Args:
        name: of the operating point that is shown.
        scored: "accuracy" or "score".
    """
    names = replayed.table.names
    known, right = replayed.right()
    methods = {name: replayed.worth(), **{other: replayed.worth(other) for other in BESIDE}}
    means = {method: worth.mean(axis=0) for method, worth in methods.items()}
    tasks, left = asked_by_task(replayed)
    confidence = np.concatenate([run.confidence for run in replayed.ours[replayed.shown]])
    right_or_wrong = {method: (worth >= RIGHT).astype(np.float64) for method, worth in methods.items()}
    return Figures(
        shown=replayed.shown,
        over_time=over_time(replayed, means, scored),
        errors=ErrorComparison(
            {other: drawings.compare_errors(right_or_wrong[name], right_or_wrong[other]) for other in BESIDE}
        ),
        when_right=drawings.measure_when_right(
            right.sum(axis=1), means, len(names), scored=scored, members="endpoints whose recorded answer is right"
        ),
        calibration=drawings.measure_calibration(confidence, replayed.worth().ravel(), scored),
        rounds=AskedByRound(names, tuple(tuple(row.round(6).tolist()) for row in asked_by_round(replayed))),
        diversity=drawings.measure_diversity(names, known, right),
        tasks=tasks,
        tasks_left=left,
    )


def over_time(replayed: EvaluationRuns, means: dict[str, F64], scored: str) -> OverTime:
    """Rolling means, all seeds; the changes of endpoints are those that the first seed noticed."""
    runs = replayed.ours[replayed.shown]
    width = drawings.rolling_width(len(replayed.test))
    at, lines = drawings.rolling_series(means, width)
    everybody = drawings.rolling_means(replayed.table.usd[replayed.test].sum(axis=1), width)
    spent = drawings.rolling_means(np.mean([run.played.usd for run in runs], axis=0), width)
    cost = np.divide(spent, everybody, out=np.zeros_like(spent), where=everybody > 0)
    return OverTime(
        width=width,
        at=at,
        lines=lines,
        cost=drawings.plain_values(cost[drawings.thinned_indices(len(cost))]),
        scored=scored,
        axis="share",
        along="test queries so far",
        marks=tuple(StreamEvent(place + 1.0, f"{name} was {change}") for place, name, change in runs[0].changes),
    )


def asked_by_round(replayed: EvaluationRuns) -> F64:
    """(R, N) share of the queries on which a round asked an endpoint, over all seeds; R the most rounds there were."""
    runs = replayed.ours[replayed.shown]
    rounds = max((len(plan) for run in runs for plan in run.plan), default=0)
    found = np.zeros((max(rounds, 1), len(replayed.table.endpoints)))
    for run in runs:
        for plan in run.plan:
            for number, picked in enumerate(plan):
                found[number, list(picked)] += 1
    last = int(np.flatnonzero(found.any(axis=1)).max(initial=0))  # a round that asked nobody is none
    share: F64 = found[: last + 1] / (len(runs) * len(replayed.test))
    return share


def asked_by_task(replayed: EvaluationRuns) -> tuple[Heatmap | None, int]:
    """The share of each task's queries on which an endpoint was asked, and how many tasks are left out.

    Probes are not counted: they are not asked for an answer.
    """
    named = [replayed.table.queries[row].task for row in replayed.test.tolist()]
    counts = Counter(task for task in named if task is not None)
    tasks = tuple(sorted(task for task, _ in counts.most_common(MOST_TASKS)))
    runs = replayed.ours[replayed.shown]
    asked = np.zeros((len(named), len(replayed.table.endpoints)))
    for run in runs:
        for n, plan in enumerate(run.plan):
            asked[n, [endpoint for picked in plan for endpoint in picked]] += 1 / len(runs)
    of = np.array([-1 if task not in tasks else tasks.index(task) for task in named])
    rows = tuple(drawings.plain_values(asked[of == number].mean(axis=0)) for number in range(len(tasks)))
    return (Heatmap(tasks, replayed.table.names, rows, 0) if tasks else None), len(counts) - len(tasks)
