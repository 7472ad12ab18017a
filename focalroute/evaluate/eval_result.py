"""The result of an evaluation: its options, the rows of its table and the figures of its page. Also reads its JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from focalroute.core.errors import ConfigError
from focalroute.core.records import F64
from focalroute.core.spelling import advice, first_problem
from focalroute.evaluate.metrics import PairedDifference, Score
from focalroute.evaluate.playing import EvaluationRuns
from focalroute.evaluate.replay import FeedbackBias, FeedbackKind, FeedbackPlan
from focalroute.evaluate.report_page import drawings
from focalroute.evaluate.table import SplitKind
from focalroute.serving.query import MOST_USD_PER_SECOND

#: The methods that the figures compare focalroute with.
BESIDE = ("best-single-train", "plurality")
_SHOWN_TARGET = 0.2  # the operating point nearest to this target represents focalroute


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of the page, also in the JSON; all are at the operating point that is shown.

    Attributes:
        shown: index of that operating point.
        over_time: rolling means over the test queries.
        errors: the errors of `BESIDE` that focalroute corrects and spoils.
        when_right: the worth of answers by the number of endpoints that are right.
        calibration: accuracy by confidence.
        rounds: which endpoints are asked in which round.
        diversity: focal diversity of every two endpoints.
        tasks: which endpoints are asked on which task; None: the log names no tasks.
        tasks_left: number of tasks left out, those with the fewest queries.
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
    """Make all figures.

    Args:
        replayed: the results.
        name: the name of the operating point that is shown.
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
    """Measure the accuracy of an operating point's answers by their confidence, over all seeds."""
    runs = replayed.ours[point]
    confidence = np.concatenate([run.confidence for run in runs])
    return drawings.measure_calibration(confidence, np.concatenate([run.played.worth for run in runs]), scored)


def over_time(replayed: EvaluationRuns, means: dict[str, F64], scored: str) -> drawings.OverTime:
    """Average all seeds over consecutive test queries; mark the endpoints' changes detected with the first seed."""
    runs = replayed.ours[replayed.shown]
    width = drawings.rolling_width(len(replayed.test))
    ask_all_usd = drawings.rolling_means(replayed.table.usd[replayed.test].sum(axis=1), width)
    spent = drawings.rolling_means(np.mean([run.played.usd for run in runs], axis=0), width)
    cost = np.divide(spent, ask_all_usd, out=np.zeros_like(spent), where=ask_all_usd > 0)
    timed = [run.played.seconds for run in runs if run.played.seconds is not None]
    marks = tuple(drawings.StreamEvent(place + 1.0, f"{name} was {change}") for place, name, change in runs[0].changes)
    return drawings.measure_over_time(
        means, cost, np.mean(timed, axis=0), marks, scored=scored, axis="share", along="test queries so far"
    )


def asked_by_round(replayed: EvaluationRuns) -> F64:
    """Return the share of queries on which each endpoint was asked in each round, over all seeds.

    The shape is (R, N) for R rounds, up to the last in which any endpoint was asked.
    """
    runs = replayed.ours[replayed.shown]
    rounds = max((len(plan) for run in runs for plan in run.plan), default=0)
    counts = np.zeros((max(rounds, 1), len(replayed.table.endpoints)))
    for run in runs:
        for plan in run.plan:
            for number, picked in enumerate(plan):
                counts[number, list(picked)] += 1
    last = int(np.flatnonzero(counts.any(axis=1)).max(initial=0))
    return counts[: last + 1] / (len(runs) * len(replayed.test))


def asked_by_task(replayed: EvaluationRuns) -> tuple[drawings.Heatmap | None, int]:
    """Return the share of each task's queries on which each endpoint was asked, and the number of tasks left out.

    Exploration calls are not counted, as they do not contribute to the answer.
    """
    named = [replayed.table.queries[row].task for row in replayed.test.tolist()]
    runs = replayed.ours[replayed.shown]
    asked = np.zeros((len(named), len(replayed.table.endpoints)))
    for run in runs:
        for n, plan in enumerate(run.plan):
            asked[n, [endpoint for picked in plan for endpoint in picked]] += 1 / len(runs)
    tasks = [task for task in named if task is not None]
    return drawings.measure_tasks(tasks, asked[[task is not None for task in named]], replayed.table.names)


@dataclass(frozen=True, slots=True)
class OperatingPoint(Score):
    """focalroute at one operating point.

    Attributes:
        target_cost_ratio: the target; None: the cold start without a target.
        expected_calibration_error: ECE of the confidence, over all seeds (see
            `focalroute.evaluate.report_page.drawings.measure_calibration`); None: there was no answer.
        minus: method -> this point's accuracy minus the method's.
    """

    target_cost_ratio: float | None = None
    expected_calibration_error: float | None = None
    minus: Mapping[str, PairedDifference] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The name with its target."""
        if self.target_cost_ratio is None:
            return self.name
        return f"{self.name} @ {self.target_cost_ratio:g}"


@dataclass(frozen=True, slots=True)
class Method(Score):
    """A baseline or control.

    Attributes:
        curve_minus: the accuracy on focalroute's cost-quality curve at this method's cost, minus the method's; None:
            the method costs less than every operating point.
    """

    curve_minus: PairedDifference | None = None


Row = OperatingPoint | Method


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """The options of an evaluation that its report states.

    Attributes:
        train_fraction: share of the queries used for training.
        seed: the first random seed.
        seeds: how often everything is trained and replayed, each with its own seed; figures are means over them.
        feedback: the kind of feedback after each answer.
        feedback_share: see `focalroute.evaluate.replay.FeedbackPlan`, as for ``delay``, ``noise`` and ``bias``.
        show_task: whether the strategies see the task's name.
        usd_per_second: the price of a second until the answer, as in `focalroute.AsyncEnsemble`.
    """

    train_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.8
    seed: Annotated[int, Field(ge=0)] = 0
    seeds: Annotated[int, Field(ge=1)] = 1
    feedback: FeedbackKind = "label"
    feedback_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    feedback_delay: Annotated[int, Field(ge=0)] = 0
    feedback_noise: Annotated[float, Field(ge=0, le=1)] = 0.0
    feedback_bias: FeedbackBias = "none"
    show_task: bool = False
    usd_per_second: Annotated[float, Field(ge=0, le=MOST_USD_PER_SECOND)] = 0.0

    @property
    def feedback_plan(self) -> FeedbackPlan:
        """The plan of the feedback, which is the same for all methods and seeds."""
        return FeedbackPlan(
            self.feedback, self.feedback_share, self.feedback_delay, self.feedback_noise, self.feedback_bias, self.seed
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(ReplayOptions):
    """The result of one evaluation.

    Attributes:
        log: the log's path as given.
        split: whether the whole log or each of its tasks was split.
        n_train: number of training queries.
        n_test: number of test queries.
        scored: "accuracy", or "score" if the log has no labels.
        policy: "trained", "cold", or the version of the given policy.
        embedder: the name of the embedder of the texts.
        bad_rows: number of the log's lines that were left out.
        modelled_seconds: whether the log has no latencies, so that `focalroute.evaluate.table.call_seconds` models
            them.
        unpriced: endpoints of unknown price, whose calls count as free.
        never_right: endpoints with at least 20 replies to labelled questions, none of them right; probably their
            answers are written in another form than the labels.
        methods: the baselines and controls.
        focalroute: focalroute's operating points.
        unfused: preset with a Fusion of fixed size -> number of test questions with too many choices for it, over all
            seeds; plurality answered them.
        seen: number of test queries that the given policy was trained on.
        figures: the figures of the page.
        runs: the results row by row; not in the JSON.
    """

    log: str
    split: SplitKind
    n_train: int
    n_test: int
    scored: str
    policy: str
    embedder: str
    bad_rows: int
    modelled_seconds: bool
    unpriced: tuple[str, ...]
    never_right: tuple[str, ...]
    methods: tuple[Method, ...]
    focalroute: tuple[OperatingPoint, ...]
    unfused: Mapping[str, int]
    seen: int
    figures: Figures
    runs: Any = field(default=None, repr=False, compare=False)

    @property
    def shown(self) -> OperatingPoint:
        """The operating point that represents focalroute: the one with the target nearest to a fifth of the cost."""
        return self.focalroute[self.figures.shown]

    def to_dict(self) -> dict[str, Any]:
        """The report as in JSON."""
        fields = dataclasses.asdict(dataclasses.replace(self, runs=None))
        del fields["runs"]
        return fields


def row_comparisons(row: Row, shown: OperatingPoint) -> tuple[str, PairedDifference | None, PairedDifference | None]:
    """Return a row's calibration error, and the differences of the shown point and of the curve from it."""
    if isinstance(row, Method):
        return "", shown.minus.get(row.name), row.curve_minus
    if row.expected_calibration_error is None:
        return "", None, None
    return f"{row.expected_calibration_error:.3f}", None, None


def nearest(targets: Sequence[float | None]) -> int:
    """Return the index of the operating point to show: the one with the target nearest to a fifth of the cost."""
    return min(range(len(targets)), key=lambda n: abs((targets[n] or _SHOWN_TARGET) - _SHOWN_TARGET))


def read_eval(found: object, name: str) -> Report:
    """Make a report of its parsed JSON; ``name`` is the file's, for errors.

    Raises:
        ConfigError: this is not a report; the message says why.
    """
    if isinstance(found, Mapping) and "equal_cost" in found:
        raise ConfigError(f"{name}: is of eval --live, which has no page; give the JSON of focalroute eval LOG")
    try:
        report = TypeAdapter(Report).validate_python(found)
    except ValidationError as error:
        place, problem = first_problem(error)
        reason = f"{place or 'the whole'}: {advice(problem)}"
        raise ConfigError(
            f"{name}: is not a report of focalroute eval: {reason}; give the file that --json wrote"
        ) from None
    if not 0 <= report.figures.shown < len(report.focalroute):
        raise ConfigError(f"{name}: is not a report of focalroute eval: it has no operating point of focalroute")
    return report
