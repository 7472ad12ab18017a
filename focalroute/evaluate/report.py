"""Runs ``eval``: replays a log with focalroute and every baseline, scores them, and reports as JSON, table and page.

`evaluate` is the whole evaluation: it reads the log, splits it, trains, replays, and compares.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from focalroute.core.config import STRICT, Unchecked, raises_config_error
from focalroute.core.errors import ConfigError
from focalroute.core.progress import progress_bar
from focalroute.core.spelling import counted
from focalroute.evaluate import output
from focalroute.evaluate.baselines import presets
from focalroute.evaluate.eval_page import eval_page
from focalroute.evaluate.eval_result import (
    Method,
    OperatingPoint,
    ReplayOptions,
    Report,
    Row,
    calibration,
    figures,
    nearest,
    row_comparisons,
)
from focalroute.evaluate.job_engine import HERE, Engine, open_engine
from focalroute.evaluate.metrics import PairedDifference, compare, on_curve, score
from focalroute.evaluate.outcomes import digest
from focalroute.evaluate.playing import EvaluationRuns, Stage
from focalroute.evaluate.replay import Training
from focalroute.evaluate.report_page.page import check_extra, html
from focalroute.evaluate.table import EVERYTHING, LogTable, Split, SplitKind, learning_order, split
from focalroute.evaluate.training import read_table
from focalroute.learn.offline.reinforce import OfflineSettings
from focalroute.observe.features import name_of
from focalroute.policy.bundle import Policy
from focalroute.serving.embedders import TextEmbedder

#: The default cost ratios to replay.
OPERATING_POINTS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)

_OURS = "focalroute"
_PIPED_WIDTH = 165


@raises_config_error
@dataclass(frozen=True, kw_only=True, config=STRICT)
class EvalOptions(ReplayOptions):
    """The options of an evaluation.

    Attributes:
        split_by: split the whole log once, or each of its tasks.
        operating_points: the target cost ratios, each replayed. None: those of `OPERATING_POINTS` that the cheapest
            endpoint can meet, and the cost ratio of the endpoint that is best on the training part; the cold start has
            no target.
        policy: the policy that focalroute serves; None: it is trained on the log.
        presets: the papers' methods to add, ``rl-focal`` or ``der`` (see `focalroute.evaluate.presets`).
        settings: the settings of training; None: the defaults.
        embedder: embeds texts for training and serving; None: the pool file's embedder, or the built-in one.
        skip_bad_rows: see `focalroute.evaluate.training.read_table`.

    Raises:
        ConfigError: a value is invalid.
    """

    shown_as: ClassVar[str] = "eval"

    split_by: SplitKind = "stream"
    operating_points: Annotated[Sequence[Annotated[float, Field(gt=0, le=1)]], Field(min_length=1)] | None = None
    policy: Annotated[Policy | None, Unchecked] = None
    presets: Sequence[str] = ()
    settings: Annotated[OfflineSettings | None, Unchecked] = None
    embedder: Annotated[TextEmbedder | None, Unchecked] = None
    skip_bad_rows: bool = False

    def __post_init__(self) -> None:
        presets(self.presets)  # raises for an unknown name
        if not isinstance(self.policy, Policy | None):
            raise ConfigError(
                "eval: policy: give a Policy, such as focalroute.policy.references.load_reference('cold')"
            )

    @property
    def cold(self) -> bool:
        """Whether the shipped policy is served, which was not trained on recorded answers."""
        return self.policy is not None and not self.policy.version

    def targets(self, table: LogTable, parts: Split) -> tuple[float | None, ...]:
        """Return the target cost ratios on the test part; None stands for no target.

        Raises:
            ConfigError: a given target is below the cost of the cheapest endpoint alone.
        """
        name, least = table.cheapest(parts.test)
        possible = least * (1 - 1e-6)  # sums of the same costs in another order differ slightly
        if self.operating_points is not None:
            lowest = min(self.operating_points)
            if lowest < possible:
                raise ConfigError(
                    f"operating_points: {lowest:g} is too low: the cheapest endpoint, {name}, alone costs {least:.3g} "
                    "of asking every endpoint; give at least that"
                )
            return tuple(self.operating_points)
        if self.cold:
            return (None,)
        if not table.usd[parts.test].any():
            return (EVERYTHING,)  # no cost is known, so there is nothing to save
        best = float(table.single_cost_ratios(parts.test)[table.rank(parts.train)[0]])
        points = {*OPERATING_POINTS, min(math.ceil(best * 1000) / 1000, 1.0)}
        return tuple(sorted(point for point in points if point and point >= possible))


def evaluate(
    log: str | Path,
    pool: str | Path,
    options: EvalOptions | None = None,
    *,
    engine: Engine = HERE,
    progress: bool = False,
    **changes: Any,
) -> Report:
    """Evaluate focalroute and the baselines on an outcome log: train on its first part, replay the rest.

    focalroute and the baselines are trained on all answers of the training part. On the test part they see only the
    replies that they ask for, query by query, and learn from the feedback after each answer. The cold start is not
    trained; it serves both parts, and only the test part is scored.

    Args:
        log: an outcome log.
        pool: its pool file.
        options: the options; None: the defaults.
        engine: runs seeds and operating points; the report does not depend on it.
        progress: whether to show a progress bar.
        changes: fields of `EvalOptions` that replace those of ``options``.

    Raises:
        ConfigError: an option, the log or the pool is invalid.
        PoolError: the embedder failed.
    """
    options = dataclasses.replace(options or EvalOptions(), **changes)
    table = read_table(log, pool, options.embedder, skip_bad_rows=options.skip_bad_rows, shown=progress)
    parts = split(table, per_task=options.split_by == "per-task", fraction=options.train_fraction)
    rows = learning_order(table, parts.train, options.split_by)
    first = Training(table, rows, options.seed, options.feedback_plan, options.show_task)
    stage = Stage(
        parts,
        first,
        range(options.seed, options.seed + options.seeds),
        options.settings or OfflineSettings(),
        before=parts.train if options.cold else parts.train[:0],  # the cold start gets to know the pool by serving
        explore=options.policy is not None and not options.policy.knows_pool,
        usd_per_second=options.usd_per_second,
        presets=presets(options.presets),
    )
    targets, policy = options.targets(table, parts), options.policy
    shown = nearest(targets)
    with progress_bar("replaying", stage.steps(len(targets), training=policy is None), shown=progress) as advance:
        policies = [policy] * options.seeds if policy is not None else stage.trained(engine, advance)
        ours = stage.ours(engine, policies, targets, advance)
        others, unfused = stage.others(engine, policies, ours[shown], targets[shown], advance)
    runs = EvaluationRuns(table, parts.test, tuple(map(tuple, ours)), others, shown)
    return _report(str(log), options, runs, targets, len(parts.train), unfused)


def _report(
    log: str,
    options: EvalOptions,
    runs: EvaluationRuns,
    targets: Sequence[float | None],
    n_train: int,
    unfused: Mapping[str, int],
) -> Report:
    """Score the results, compare focalroute with every method, and make the report."""
    table, policy = runs.table, options.policy
    ours = [[run.played for run in seeded] for seeded in runs.ours]
    ask_all_usd = float(table.usd[runs.test].sum())
    scores = [score(_OURS, played, ask_all_usd) for played in ours]
    others = {name: score(name, played, ask_all_usd) for name, played in runs.others.items()}
    points = []
    for n, target in enumerate(targets):
        points.append(
            OperatingPoint(
                **dataclasses.asdict(scores[n]),
                target_cost_ratio=target,
                expected_calibration_error=calibration(runs, n).expected_error,
                minus=compare({name: (ours[n], played) for name, played in runs.others.items()}),
            )
        )
    at_equal_cost = {}
    for name, other in others.items():
        curve = on_curve(other.cost_ratio, scores, ours)
        if curve is not None:
            at_equal_cost[name] = curve, runs.others[name]
    curve_minus = compare(at_equal_cost)
    methods = [Method(**dataclasses.asdict(other), curve_minus=curve_minus.get(name)) for name, other in others.items()]
    scored, served, seen = "accuracy", "trained", 0
    if all(query.label is None for query in table.queries):
        scored = "score"
    if policy is not None:
        served = f"version {policy.version}"
        seen = sum(digest(table.queries[row]) in policy.trained_on for row in runs.test)
    if options.cold:
        served = "cold"
    return Report(
        **{each.name: getattr(options, each.name) for each in dataclasses.fields(ReplayOptions)},
        log=log,
        split=options.split_by,
        n_train=n_train,
        n_test=len(runs.test),
        scored=scored,
        embedder=name_of(table.embed),
        bad_rows=table.bad_rows,
        unpriced=table.unpriced,
        never_right=table.never_right,
        policy=served,
        modelled_seconds=not any(output.latency_s for query in table.queries for output in query.outputs.values()),
        methods=tuple(methods),
        focalroute=tuple(points),
        unfused=unfused,
        seen=seen,
        figures=figures(runs, points[runs.shown].title, scored),
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
    """Run `evaluate` with a progress bar, write page and JSON, and print the table.

    If the page or the JSON goes to standard output ("-"), the table is not printed.

    Args:
        log: an outcome log.
        pool: its pool file.
        options: as for `evaluate`, like ``changes``.
        engine: the name of the engine (see `focalroute.evaluate.job_engine.open_engine`).
        json_file: where to write the report as JSON; None: nowhere.
        html_file: where to write the page; None: nowhere.

    Raises:
        ConfigError: an option, the log or the pool is invalid, a file cannot be written, or the extra is missing.
    """
    output.check_writable(json_file, log, pool, html_file)
    output.check_writable(html_file, log, pool)
    if html_file is not None:
        check_extra()
    with open_engine(engine) as opened:
        report = evaluate(log, pool, options, engine=opened, progress=True, **changes)
    try:  # the rest is written even if the disk is full
        if html_file is not None:
            output.write_file(html_file, html(eval_page(report)))
    finally:
        printed = html_file == output.STANDARD_OUTPUT
        output.write_and_show(report.to_dict(), partial(show, report), json_file, printed=printed)


def cost_ratios(text: str) -> tuple[float, ...] | None:
    """Parse target cost ratios, numbers separated by commas; None for an empty text.

    Raises:
        ConfigError: a part is not a number.
    """
    if not text:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"operating_points: give numbers separated by commas, not {text!r}") from None


def show(report: Report) -> None:
    """Print the report as a table, the most accurate first."""
    shown = report.shown
    seeds = f"seed {report.seed}" if report.seeds == 1 else f"{report.seeds} seeds"
    rows: list[Row] = [*report.focalroute, *report.methods]
    rows.sort(key=lambda row: -row.accuracy)
    minus = f"{shown.title} minus it"
    console = output.console(_PIPED_WIDTH)
    if report.seen:
        console.print(output.trained_on_test(report.seen, report.n_test))
    output.show_table(
        ("", report.scored, "95 %", "cost ratio", "$ / 1000", "calls", "s", "p95 s", "ECE", minus, "its curve"),
        (_cells(row, shown) for row in rows),
        title=f"{report.log}: {counted(report.n_test, 'query')} after {report.n_train:,}, {seeds}",
        left=("", minus),
        strong={point.title for point in report.focalroute},
    )
    learned = f"Each query is answered first; then its outcome ({report.feedback_plan}) is revealed and learned from."
    if report.feedback == "none":
        learned = "Queries are answered without feedback."
    console.print(
        f"{learned} best-single-hindsight and oracle know the test part. Cost ratio: the cost divided by that of "
        "asking every endpoint. Its curve: focalroute's curve at the method's cost, minus the method. Intervals are "
        "95 % intervals; those of differences are corrected for their number. "
        "ECE: the mean distance between confidence and accuracy. "
        f"s: seconds until the answer, mean and p95{', modelled: the log has none' * report.modelled_seconds}."
    )
    for sentence in output.log_problems(report.bad_rows, report.unpriced, report.never_right):
        console.print(sentence)
    for name, count in report.unfused.items():
        if count:
            console.print(
                f"{name} answered {counted(count, 'question')} by plurality: more choices than any in training."
            )
    if report.policy == "cold":
        console.print("focalroute served its cold start: trained on no recorded answers.")


def _cells(row: Row, shown: OperatingPoint) -> tuple[str, ...]:
    error, minus, curve = row_comparisons(row, shown)
    return row.title, *row.cells(), error, _difference(minus), _difference(curve)


def _difference(found: PairedDifference | None) -> str:
    return "{} ({})".format(*found.cells()) if found else ""
