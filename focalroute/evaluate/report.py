"""``eval``: plays focalroute and every baseline over one log, scores them, and reports it as JSON, table and page."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from focalroute.core.errors import ConfigError
from focalroute.core.progress import progress_bar
from focalroute.core.records import I64
from focalroute.evaluate import output
from focalroute.evaluate.baselines import presets
from focalroute.evaluate.eval_page import calibration, eval_page, figures, read_eval
from focalroute.evaluate.job_engine import HERE, Engine, open_engine
from focalroute.evaluate.metrics import PairedDifference, Score, beside_curve, compare, score
from focalroute.evaluate.outcomes import digest
from focalroute.evaluate.playing import EvaluationRuns, Stage
from focalroute.evaluate.recording import read_table
from focalroute.evaluate.replay import FeedbackBias, FeedbackKind, FeedbackPlan, Training
from focalroute.evaluate.report_page.page import check_extra, html
from focalroute.evaluate.table import LogTable, SplitKind, learning_order, split
from focalroute.learn.offline.reinforce import OfflineSettings
from focalroute.observe.features import name_of
from focalroute.policy.bundle import Policy
from focalroute.serving.embedders import TextEmbedder

#: The cost ratios that are played by default.
OPERATING_POINTS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)

_OURS = "focalroute"
_PIPED_WIDTH = 150
_SHOWN = 0.2
_WARM = 500


@dataclass(frozen=True, slots=True)
class EvalOptions:
    """How a log is evaluated.

    Attributes:
        split_by: cut the log once, or every task.
        train_fraction: share of the queries in the first part.
        seed: of everything random, the first of ``seeds``.
        seeds: how often everything is trained and played; figures are means over them.
        feedback: what is revealed of a query once it is answered.
        feedback_share: see `focalroute.evaluate.replay.FeedbackPlan`, and so those that follow.
        show_task: whether the strategies see the task's name.
        operating_points: the cost ratios to hold, each of them played; None: those of `OPERATING_POINTS` that the
            cheapest endpoint is within, or of the cold start its own.
        policy: what focalroute serves; None: what it is trained to.
        presets: the papers' own methods to add, ``rl-focal`` or ``der`` (see `focalroute.evaluate.presets`).
        settings: how it is trained; None: the default.
        embedder: what makes the features of a text that focalroute is trained and served with; None: the pool file's,
            or the built-in ones.
        skip_bad_rows: see `focalroute.evaluate.recording.read_table`.

    Raises:
        ConfigError: a value is wrong.
    """

    split_by: SplitKind = "stream"
    train_fraction: float = 0.8
    seed: int = 0
    seeds: int = 1
    feedback: FeedbackKind = "label"
    feedback_share: float = 1.0
    feedback_delay: int = 0
    feedback_noise: float = 0.0
    feedback_bias: FeedbackBias = "none"
    show_task: bool = False
    operating_points: Sequence[float] | None = None
    policy: Policy | None = None
    presets: Sequence[str] = ()
    settings: OfflineSettings | None = None
    embedder: TextEmbedder | None = None
    skip_bad_rows: bool = False

    def __post_init__(self) -> None:
        if self.split_by not in ("stream", "per-task"):
            raise ConfigError(f"split: stream or per-task, not {self.split_by!r}")
        if not 0 < self.train_fraction < 1:
            raise ConfigError(f"train_fraction: must lie between 0 and 1, not {self.train_fraction}")
        if self.seeds < 1:
            raise ConfigError(f"seeds: must be at least 1, not {self.seeds}")
        points = self.operating_points
        if points is not None and not (points and all(0 < point <= 1 for point in points)):
            raise ConfigError(f"operating_points: give cost ratios above 0 and up to 1, not {list(points)}")
        presets(self.presets)  # checks them
        _ = self.feedback_plan  # likewise

    @property
    def feedback_plan(self) -> FeedbackPlan:
        """Return what is revealed when, the same for all methods and seeds."""
        return FeedbackPlan(
            self.feedback, self.feedback_share, self.feedback_delay, self.feedback_noise, self.feedback_bias, self.seed
        )

    @property
    def cold(self) -> bool:
        """Whether the shipped policy is served, which was trained on no recorded answers."""
        return self.policy is not None and not self.policy.version

    def targets(self, table: LogTable, test: I64) -> tuple[float | None, ...]:
        """The cost ratios to hold on these rows; None: the cold start's own, whatever it is.

        Raises:
            ConfigError: one of those given is below what the cheapest endpoint alone costs.
        """
        name, least = table.cheapest(test)
        within = least * (1 - 1e-6)  # a sum of the same costs in another order
        if self.operating_points is None:
            return (None,) if self.cold else tuple(point for point in OPERATING_POINTS if point >= within)
        lowest = min(self.operating_points)
        if lowest < within:
            raise ConfigError(
                f"operating_points: {lowest:g} cannot be held: the cheapest endpoint, {name}, alone costs {least:.3g} "
                "of asking everybody; give at least that"
            )
        return tuple(self.operating_points)


@dataclass(frozen=True, slots=True)
class OperatingPoint(Score):
    """focalroute at one operating point.

    Attributes:
        target_cost_ratio: what it was to hold; None: nothing (the cold start's own).
        expected_calibration_error: of its confidence, of all seeds together (see
            `focalroute.evaluate.report_page.drawings.measure_calibration`); None: it answered nothing.
        minus: by method, this point's accuracy minus the method's.
    """

    target_cost_ratio: float | None
    expected_calibration_error: float | None
    minus: dict[str, PairedDifference]


@dataclass(frozen=True, slots=True)
class Method(Score):
    """A baseline or control.

    Attributes:
        curve_minus: focalroute's cost-quality curve at this method's cost minus the method; None: it costs less than
            every operating point.
    """

    curve_minus: PairedDifference | None


@dataclass(frozen=True, slots=True)
class Report:
    """The result of one evaluation.

    Attributes:
        log: the log's path as given.
        scored: "accuracy", or "score" where the log has no labels.
        policy: "trained", "cold", or the version of the one given.
        embedder: what made the features of the texts, by its name.
        bad_rows: lines of the log that were left out.
        unpriced: endpoints whose calls count as free, since their price is unknown.
        methods: the baselines and controls.
        focalroute: its operating points.
        seen: test queries that the policy given was trained on.
        unfused: by preset with a Fusion of fixed size, test questions with too many choices, answered by plurality; of
            all seeds.
        runs: what was played, row by row; the JSON has the figures drawn from it.
    """

    log: str
    split: SplitKind
    train_fraction: float
    n_train: int
    n_test: int
    seed: int
    seeds: int
    feedback: FeedbackKind
    feedback_share: float
    feedback_delay: int
    feedback_noise: float
    feedback_bias: FeedbackBias
    show_task: bool
    scored: str
    policy: str
    embedder: str
    bad_rows: int
    unpriced: tuple[str, ...]
    methods: tuple[Method, ...]
    focalroute: tuple[OperatingPoint, ...]
    unfused: Mapping[str, int]
    seen: int
    runs: EvaluationRuns | None = field(repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """As the JSON report has it; with "figures", what a page draws (see `focalroute.evaluate.eval_page`)."""
        found = dataclasses.asdict(dataclasses.replace(self, runs=None))
        del found["runs"]
        if self.runs is None:
            return found
        drawn = figures(self.runs, named(self.focalroute[self.runs.shown]), self.scored)
        return {**found, "figures": dataclasses.asdict(drawn)}


def evaluate(
    log: str | Path,
    pool: str | Path,
    options: EvalOptions | None = None,
    *,
    engine: Engine = HERE,
    progress: bool = False,
    **changes: Any,
) -> Report:
    """Replay an outcome log: train on its first part, then answer, reveal and learn query by query on the rest.

    focalroute trains like the baselines on the whole training part, then serves the last 500 queries of it, unscored,
    and the test part, both as it would in service: seeing only what it asks for, learning from the feedback.

    Args:
        log: an outcome log.
        pool: its pool file.
        options: how; None: the defaults.
        engine: what runs seeds and operating points; the report is the same.
        progress: whether to show a progress bar.
        changes: fields of `EvalOptions` that differ from ``options``.

    Raises:
        ConfigError: an option, the log or the pool is wrong.
        PoolError: the embedder failed.
    """
    options = dataclasses.replace(options or EvalOptions(), **changes)
    table = read_table(log, pool, options.embedder, skip_bad_rows=options.skip_bad_rows, shown=progress)
    parts = split(table, per_task=options.split_by == "per-task", fraction=options.train_fraction)
    first = Training(table, parts.train, options.seed, options.feedback_plan, options.show_task)
    rows = learning_order(table, parts.train, options.split_by)
    stage = Stage(
        table,
        parts,
        first,
        range(options.seed, options.seed + options.seeds),
        options.settings or OfflineSettings(),
        rows,
        warm=parts.train if options.cold else rows[-_WARM:],
        explore=options.cold,
        presets=presets(options.presets),
    )
    targets, policy = options.targets(table, parts.test), options.policy
    shown = min(range(len(targets)), key=lambda n: abs((targets[n] or _SHOWN) - _SHOWN))
    with progress_bar("replaying", stage.steps(len(targets), training=policy is None), shown=progress) as advance:
        policies = [policy] * options.seeds if policy is not None else stage.trained(engine, advance)
        ours = stage.ours(engine, policies, targets, advance)
        others = stage.others(engine, policies, ours[shown], targets[shown], advance)
    every = {name: tuple(played) for name, played in others.played.items()}
    runs = EvaluationRuns(table, parts.test, tuple(map(tuple, ours)), every, shown)
    return _report(str(log), options, runs, targets, len(parts.train), others.unfused)


def _report(
    log: str,
    options: EvalOptions,
    runs: EvaluationRuns,
    targets: Sequence[float | None],
    n_train: int,
    unfused: Mapping[str, int],
) -> Report:
    table, seed, policy = runs.table, options.seed, options.policy
    ours = [[run.played for run in each] for each in runs.ours]
    everybody = float(table.usd[runs.test].sum())
    points = []
    for n, (played, target) in enumerate(zip(ours, targets, strict=True)):
        scored = dataclasses.asdict(score(_OURS, played, everybody, seed=seed))
        minus = {name: compare(played, other, seed=seed) for name, other in runs.others.items()}
        error = calibration(runs, n).expected_error
        points.append(OperatingPoint(**scored, target_cost_ratio=target, expected_calibration_error=error, minus=minus))
    methods = []
    for name, other in runs.others.items():
        one = score(name, other, everybody, seed=seed)
        beside = beside_curve(one, other, points, ours, seed=seed)
        methods.append(Method(**dataclasses.asdict(one), curve_minus=beside))
    served = "trained"
    if policy is not None:
        served = "cold" if options.cold else f"version {policy.version}"
    return Report(
        log=log,
        split=options.split_by,
        train_fraction=options.train_fraction,
        n_train=n_train,
        n_test=len(runs.test),
        seed=seed,
        seeds=options.seeds,
        feedback=options.feedback,
        feedback_share=options.feedback_share,
        feedback_delay=options.feedback_delay,
        feedback_noise=options.feedback_noise,
        feedback_bias=options.feedback_bias,
        show_task=options.show_task,
        scored="score" if all(query.label is None for query in table.queries) else "accuracy",
        embedder=name_of(table.embed),
        bad_rows=table.bad_rows,
        unpriced=table.unpriced,
        policy=served,
        methods=tuple(methods),
        focalroute=tuple(points),
        unfused=unfused,
        seen=0 if policy is None else sum(digest(table.queries[row]) in policy.trained_on for row in runs.test),
        runs=runs,
    )


def evaluate_command(
    log: Path,
    pool: Path,
    options: EvalOptions | None = None,
    *,
    engine: str = "local",
    json_file: Path | None = None,
    html_file: Path | None = None,
    **changes: Any,
) -> None:
    """`evaluate` with a progress bar, print the table, write JSON and page.

    The JSON on standard output ("-") takes the table's place.

    Raises:
        ConfigError: an option, the log or the pool is wrong, a file cannot be written, or the page's extra is missing.
    """
    for file in (json_file, html_file):
        output.check_writable(file)
    if html_file is not None:
        check_extra()
    with open_engine(engine) as opened:
        report = evaluate(log, pool, options, engine=opened, progress=True, **changes)
    found = report.to_dict()
    if json_file != output.STANDARD_OUTPUT:
        show(report)
    if json_file is not None:
        output.write_file(json_file, json.dumps(found, indent=2, allow_nan=False) + "\n")
    if html_file is not None:
        output.write_file(html_file, html(eval_page(read_eval(found, str(log)))))


def cost_ratios(text: str) -> tuple[float, ...] | None:
    """Operating points from numbers separated by commas; None: an empty text.

    Raises:
        ConfigError: something else is between the commas.
    """
    if not text:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"operating_points: give numbers separated by commas, not {text!r}") from None


def show(report: Report) -> None:
    """Print the report as a table, the most accurate first."""
    shown = min(report.focalroute, key=lambda point: abs((point.target_cost_ratio or _SHOWN) - _SHOWN))
    seeds = f"seed {report.seed}" if report.seeds == 1 else f"{report.seeds} seeds"
    rows: list[OperatingPoint | Method] = [*report.focalroute, *report.methods]
    rows.sort(key=lambda row: -row.accuracy)
    minus = f"focalroute @ {shown.cost_ratio:.2f} minus it"
    plan = FeedbackPlan(
        report.feedback, report.feedback_share, report.feedback_delay, report.feedback_noise, report.feedback_bias
    )
    grid = output.table(
        ("", report.scored, "95 %", "cost ratio", "$ / 1000", "calls", "ECE", minus, "its curve"),
        (_cells(row, shown) for row in rows),
        title=f"{report.log}: {report.n_test} queries after {report.n_train}, {seeds}",
        left=("", minus),
        strong={named(point) for point in report.focalroute},
    )
    console = output.console(_PIPED_WIDTH)
    if report.seen:
        console.print(output.trained_on_test(report.seen, report.n_test))
    console.print(grid)
    console.print(
        f"Answered first, then revealed ({plan}) and learned from. best-single-hindsight and oracle know "
        "the test part. Its curve: focalroute's operating points at the method's cost, minus the method. "
        "ECE: how far the confidence is from the accuracy, in the mean."
    )
    for sentence in output.left_out(report.bad_rows, report.unpriced):
        console.print(sentence)
    for name, count in report.unfused.items():
        if count:
            console.print(f"{name} answered {count} questions by plurality: more choices than any in training.")
    if report.policy == "cold":
        console.print("focalroute served its cold start: trained on no recorded answers.")


def _cells(row: OperatingPoint | Method, shown: OperatingPoint) -> tuple[str, ...]:
    if isinstance(row, OperatingPoint):
        error = row.expected_calibration_error
        return named(row), *row.cells(), "" if error is None else f"{error:.3f}", "", ""
    return row.name, *row.cells(), "", _difference(shown.minus[row.name]), _difference(row.curve_minus)


def named(row: Score) -> str:
    """Return the name of a row of the report: an operating point with its target."""
    if isinstance(row, OperatingPoint) and row.target_cost_ratio is not None:
        return f"{row.name} @ {row.target_cost_ratio:g}"
    return row.name


def _difference(found: PairedDifference | None) -> str:
    return "{} ({})".format(*found.cells()) if found else ""
