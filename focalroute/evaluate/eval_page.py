"""Computes the figures of an evaluation's page, and makes the page from the evaluation's JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter, ValidationError

from focalroute.core.errors import ConfigError
from focalroute.core.records import F64
from focalroute.evaluate.baselines import IN_HINDSIGHT
from focalroute.evaluate.metrics import BLOCK, PairedDifference, Score, span
from focalroute.evaluate.output import trained_on_test
from focalroute.evaluate.playing import EvaluationRuns
from focalroute.evaluate.replay import FeedbackBias, FeedbackKind, FeedbackPlan
from focalroute.evaluate.report_page import drawings
from focalroute.evaluate.report_page.page import Page, Section, TextTable, tasks_section

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
    over_time: drawings.OverTime
    errors: drawings.ErrorComparison
    when_right: drawings.WhenRight
    calibration: drawings.Calibration
    rounds: drawings.AskedByRound
    diversity: drawings.Heatmap
    tasks: drawings.Heatmap | None
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
    right_or_wrong = {method: (worth >= drawings.RIGHT).astype(np.float64) for method, worth in methods.items()}
    return Figures(
        shown=replayed.shown,
        over_time=over_time(replayed, means, scored),
        errors=drawings.ErrorComparison(
            {other: drawings.compare_errors(right_or_wrong[name], right_or_wrong[other]) for other in BESIDE}
        ),
        when_right=drawings.measure_when_right(
            right.sum(axis=1), means, len(names), scored=scored, members="endpoints whose recorded answer is right"
        ),
        calibration=calibration(replayed, replayed.shown, scored),
        rounds=drawings.AskedByRound(names, tuple(tuple(row.round(6).tolist()) for row in asked_by_round(replayed))),
        diversity=drawings.measure_diversity(names, known, right),
        tasks=tasks,
        tasks_left=left,
    )


def calibration(replayed: EvaluationRuns, point: int, scored: str = "accuracy") -> drawings.Calibration:
    """How right the answers at an operating point are by their confidence, all seeds together."""
    runs = replayed.ours[point]
    confidence = np.concatenate([run.confidence for run in runs])
    return drawings.measure_calibration(confidence, np.concatenate([run.played.worth for run in runs]), scored)


def over_time(replayed: EvaluationRuns, means: dict[str, F64], scored: str) -> drawings.OverTime:
    """Rolling means, all seeds; the changes of endpoints are those that the first seed noticed."""
    runs = replayed.ours[replayed.shown]
    width = drawings.rolling_width(len(replayed.test))
    at, lines = drawings.rolling_series(means, width)
    everybody = drawings.rolling_means(replayed.table.usd[replayed.test].sum(axis=1), width)
    spent = drawings.rolling_means(np.mean([run.played.usd for run in runs], axis=0), width)
    cost = np.divide(spent, everybody, out=np.zeros_like(spent), where=everybody > 0)
    return drawings.OverTime(
        width=width,
        at=at,
        lines=lines,
        cost=drawings.plain_values(cost[drawings.thinned_indices(len(cost))]),
        scored=scored,
        axis="share",
        along="test queries so far",
        marks=tuple(
            drawings.StreamEvent(place + 1.0, f"{name} was {change}") for place, name, change in runs[0].changes
        ),
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


def asked_by_task(replayed: EvaluationRuns) -> tuple[drawings.Heatmap | None, int]:
    """The share of each task's queries on which an endpoint was asked, and how many tasks are left out.

    Probes are not counted: they are not asked for an answer.
    """
    named = [replayed.table.queries[row].task for row in replayed.test.tolist()]
    runs = replayed.ours[replayed.shown]
    asked = np.zeros((len(named), len(replayed.table.endpoints)))
    for run in runs:
        for n, plan in enumerate(run.plan):
            asked[n, [endpoint for picked in plan for endpoint in picked]] += 1 / len(runs)
    tasks = [task for task in named if task is not None]
    return drawings.measure_tasks(tasks, asked[[task is not None for task in named]], replayed.table.names)


_OLDER = "This report was written without it; run focalroute eval again to have it."
_UPDATES = "An evaluation is of one policy: it plays no updates. Give --policy FOLDER for what updates did to a folder."


@dataclass(frozen=True, slots=True)
class Row(Score):
    """A method or an operating point, as the JSON has it (see `focalroute.evaluate.report`)."""

    target_cost_ratio: float | None = None
    expected_calibration_error: float | None = None
    minus: Mapping[str, PairedDifference] = field(default_factory=dict)
    curve_minus: PairedDifference | None = None

    @property
    def title(self) -> str:
        """Its name; an operating point with its target."""
        return self.name if self.target_cost_ratio is None else f"{self.name} @ {self.target_cost_ratio:g}"


@dataclass(frozen=True, slots=True)
class EvalFile:
    """The part of `focalroute eval --json` that a page needs."""

    log: str
    n_train: int
    n_test: int
    methods: Sequence[Row]
    focalroute: Sequence[Row]
    split: str = "stream"
    seed: int = 0
    seeds: int = 1
    feedback: FeedbackKind = "label"
    feedback_share: float = 1.0
    feedback_delay: int = 0
    feedback_noise: float = 0.0
    feedback_bias: FeedbackBias = "none"
    show_task: bool = False
    scored: str = "accuracy"
    policy: str = "trained"
    bad_rows: int = 0
    unpriced: Sequence[str] = ()
    seen: int = 0
    figures: Figures | None = None

    @property
    def shown(self) -> Row:
        """The operating point that stands for focalroute: the one whose target is nearest to a fifth of the cost."""
        if self.figures is not None:
            return self.focalroute[self.figures.shown]
        return min(self.focalroute, key=lambda row: abs((row.target_cost_ratio or 0.2) - 0.2))


def read_eval(found: object, name: str) -> EvalFile:
    """Check a JSON report; ``name`` stands in messages.

    Raises:
        ConfigError: it is something else; the message says what is wrong with it.
    """
    if isinstance(found, Mapping) and "equal_cost" in found:
        raise ConfigError(f"{name}: is of eval --live, which has no page; give the JSON of focalroute eval LOG")
    try:
        report = TypeAdapter(EvalFile).validate_python(found)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the whole"
        raise ConfigError(
            f"{name}: is not a report of focalroute eval: {where}: {first['msg']}; give the file that --json wrote"
        ) from None
    if not report.focalroute or not 0 <= (report.figures.shown if report.figures else 0) < len(report.focalroute):
        raise ConfigError(f"{name}: is not a report of focalroute eval: it has no operating point of focalroute")
    return report


def eval_page(report: EvalFile, updates: Section | None = None) -> Page:
    """Describe all that the report can show, with a section about a policy folder's ``updates``."""
    return Page(
        title=f"focalroute on {Path(report.log).name}",
        facts=_facts(report),
        lead=_lead(report),
        sections={
            "curve": _curve(report),
            **(_played(report, report.figures) if report.figures else dict.fromkeys(_PLAYED, Section(_OLDER))),
            "updates": updates or Section(_UPDATES),
            "figures": _figures(report),
        },
    )


_PLAYED = ("over-time", "errors", "when-right", "calibration", "rounds", "diversity", "tasks")


def _facts(report: EvalFile) -> dict[str, str]:
    plan = FeedbackPlan(
        report.feedback, report.feedback_share, report.feedback_delay, report.feedback_noise, report.feedback_bias
    )
    seeds = str(report.seed)
    if report.seeds > 1:
        seeds += f" to {report.seed + report.seeds - 1}"
    return {
        "test queries": f"{report.n_test:,}",
        "before them": f"{report.n_train:,}",
        "split": report.split,
        "seeds": seeds,
        "feedback": str(plan),
        "task": "shown" if report.show_task else "not shown",
        "policy": report.policy,
        **({"bad rows left out": f"{report.bad_rows:,}"} if report.bad_rows else {}),
        **({"of unknown price": ", ".join(report.unpriced)} if report.unpriced else {}),
    }


def _lead(report: EvalFile) -> str:
    point = report.shown
    baselines = (
        f"{row.name} {row.accuracy:.3f} at {_percent(row.cost_ratio)}"
        for row in report.methods
        if row.name in ("best-single-train", "plurality")
    )
    warning = f"{trained_on_test(report.seen, report.n_test)} " if report.seen else ""
    return (
        f"{warning}At {_percent(point.cost_ratio)} of the cost of asking everybody, focalroute has {report.scored} "
        f"{point.accuracy:.3f} ({span(point.accuracy_ci95)}) with {point.calls_per_query:.1f} calls a query; "
        f"{', '.join(baselines)}."
    )


def _curve(report: EvalFile) -> Section:
    methods = [row for row in report.methods if row.name != "oracle"]
    free = not any(row.cost_ratio for row in (*report.focalroute, *methods))

    def dot(row: Row, ours: bool) -> drawings.MethodPoint:
        cost = row.calls_per_query if free else row.cost_ratio
        name = "focalroute" if ours else row.name
        return drawings.MethodPoint(
            name, cost, row.accuracy, *row.accuracy_ci95, ours=ours, hollow=row.name in IN_HINDSIGHT
        )

    dots = (*(dot(row, True) for row in report.focalroute), *(dot(row, False) for row in methods))
    oracle = "".join(
        f" Not drawn: the oracle, which always has the best answer that anybody gave, at {row.accuracy:.3f}."
        for row in report.methods
        if row.name == "oracle"
    )
    return Section(
        f"{report.scored.capitalize()} against cost; up and to the left is better. Bars are 95 % intervals. The line "
        "joins focalroute's operating points; between two of them either may be played by chance. Every other point is "
        "a baseline or control; the hollow one was picked by looking at the test part." + oracle,
        drawings.CostQuality(dots, report.scored, "calls" if free else "share"),
    )


def _played(report: EvalFile, figures: Figures) -> dict[str, Section]:
    """Return the figures of the played rows."""
    return {
        "over-time": _over_time(report, figures.over_time),
        "errors": _errors(report, figures),
        "when-right": Section(
            "The test queries by how many endpoints of the pool have the right answer recorded (RL-Focal's consensus "
            "plot). A vote needs many of them; what is right with few knows whom to believe. Below: how many queries "
            "there are of each kind.",
            figures.when_right,
        ),
        "calibration": _calibration(figures),
        "rounds": Section(
            "On how many of the queries each endpoint is asked. Round 1 is decided by the query and by the record of "
            "the endpoints; in later rounds the replies so far are known, and whoever is then asked is asked because "
            "of them.",
            figures.rounds,
        ),
        "diversity": Section(
            "Focal diversity of every two endpoints over their recorded answers to the test queries: 0, they fail on "
            "the same queries; 1, never on the same. A member adds most beside one that it is diverse from.",
            figures.diversity,
        ),
        "tasks": tasks_section(figures.tasks, figures.tasks_left, "This log names no tasks."),
    }


def _over_time(report: EvalFile, drawn: drawings.OverTime) -> Section:
    found = [f"{number}: after {mark.at:.0f}, {mark.what}" for number, mark in enumerate(drawn.marks, 1)]
    changes = " No endpoint was noticed to have changed."
    if found:
        first = " with the first seed" if report.seeds > 1 else ""
        changes = f" Lines mark where an endpoint was noticed to have changed{first}. {'; '.join(found)}."
    return Section(
        f"Means over {drawn.width} consecutive test queries, all seeds. Above: {report.scored}; all lines rise and "
        "fall together where the queries get easier or harder. Below: what focalroute paid of what asking everybody on "
        f"the same queries costs.{changes}",
        drawn,
    )


def _errors(report: EvalFile, figures: Figures) -> Section:
    corrected = [
        f"of the errors of {name} it corrects {_percent(one.corrected / one.errors)}"
        for name, one in figures.errors.found.items()
        if one.errors
    ]
    caption = ""
    if corrected:
        caption = "; ".join(corrected).capitalize() + "."
    if report.scored != "accuracy":
        caption += " An answer counts as right if it scores at least a half."
    return Section(
        f"{report.shown.title} beside the best single endpoint and the vote of all. Corrected: it is right where the "
        f"other is wrong; spoilt: the reverse; the difference is the gain. {caption}",
        figures.errors,
    )


def _calibration(figures: Figures) -> Section:
    found = figures.calibration
    if found.expected_error is None:
        return Section("No query was answered, so that there is no confidence to check.")
    return Section(f"{drawings.CALIBRATION}{found.expected_error:.3f}.", found)


def _figures(report: EvalFile) -> Section:
    shown = report.shown
    columns = ("", report.scored, "95 %", "cost ratio", "$ per 1,000", "calls", "ECE",
               f"{shown.title} minus it", "95 %", "curve minus it", "95 %")  # fmt: skip
    ours = [id(row) for row in report.focalroute]
    every = sorted((*report.focalroute, *report.methods), key=lambda row: -row.accuracy)
    return Section(
        "Curve minus it: focalroute's curve at the method's own cost, minus the method; empty where the method costs "
        "less than every operating point. best-single-hindsight and oracle know the test part; shuffled asks whom "
        "focalroute asked on another query. ECE: the expected calibration error. All intervals are paired where two "
        f"are compared, by a bootstrap over blocks of up to {BLOCK} consecutive test queries, "
        "each with its answers of all seeds.",
        table=TextTable(
            columns,
            [tuple(_cells(row, shown)) for row in every],
            frozenset(number for number, row in enumerate(every) if id(row) in ours),
        ),
    )


def _cells(row: Row, shown: Row) -> Iterator[str]:
    yield from (row.title, *row.cells())
    error = row.expected_calibration_error
    yield "" if error is None else f"{error:.3f}"
    for found in (shown.minus.get(row.name), row.curve_minus):
        yield from found.cells() if found else ("", "")


def _percent(share: float) -> str:
    return f"{100 * share:.0f}\u00a0%"
