"""``eval``: plays focalroute and every baseline over one log, scores them, and says it as JSON and as a table."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from focalroute.core.errors import ConfigError
from focalroute.core.pool import load_pool
from focalroute.core.progress import progress_bar
from focalroute.evaluate.figures import figures
from focalroute.evaluate.job_engine import HERE, Engine
from focalroute.evaluate.metrics import PairedDifference, Score, compare, score
from focalroute.evaluate.outcomes import read_log
from focalroute.evaluate.playing import Stage
from focalroute.evaluate.points import OPERATING_POINTS, Point, beside_curve
from focalroute.evaluate.presets.catalogue import presets as find_presets
from focalroute.evaluate.recording import with_embedder
from focalroute.evaluate.replay import FeedbackKind
from focalroute.evaluate.replayed import Replayed
from focalroute.evaluate.table import Split, SplitKind, join, learning_order, split
from focalroute.evaluate.training import Training
from focalroute.learn.offline.settings import OfflineSettings
from focalroute.observe.features import name_of
from focalroute.policy.bundle import Policy
from focalroute.serving.embedders import TextEmbedder, embedder_from_pool_file

_OURS = "focalroute"
_PIPED_WIDTH = 150
_SHOWN = 0.2
_WARM = 500


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
        methods: the baselines and controls.
        focalroute: its operating points.
        unfused: by preset with a Fusion of fixed size, test questions with too many choices, answered by plurality; of
            all seeds.
        replayed: what was played, row by row; the JSON has the figures drawn from it.
    """

    log: str
    split: SplitKind
    train_fraction: float
    n_train: int
    n_test: int
    seed: int
    seeds: int
    feedback: FeedbackKind
    show_task: bool
    scored: str
    policy: str
    embedder: str
    methods: tuple[Method, ...]
    focalroute: tuple[Point, ...]
    unfused: Mapping[str, int]
    replayed: Replayed | None = field(repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """As the JSON report has it; with "figures", what a page draws (see `focalroute.evaluate.figures`)."""
        found = dataclasses.asdict(dataclasses.replace(self, replayed=None))
        del found["replayed"]
        if self.replayed is None:
            return found
        drawn = figures(self.replayed, named(self.focalroute[self.replayed.shown]), self.scored)
        return {**found, "figures": dataclasses.asdict(drawn)}


def evaluate(
    log: str | Path,
    pool: str | Path,
    *,
    split_by: SplitKind = "stream",
    train_fraction: float = 0.8,
    seed: int = 0,
    seeds: int = 1,
    feedback: FeedbackKind = "label",
    show_task: bool = False,
    operating_points: Sequence[float] | None = None,
    policy: Policy | None = None,
    presets: Sequence[str] = (),
    settings: OfflineSettings | None = None,
    embedder: TextEmbedder | None = None,
    engine: Engine = HERE,
    progress: bool = False,
) -> Report:
    """Replay an outcome log: train on its first part, then answer, reveal and learn query by query on the rest.

    focalroute trains like the baselines on the whole training part, then serves the last 500 queries of it, unscored,
    and the test part, both as it would in service: seeing only what it asks for, learning from the feedback.

    Args:
        log: an outcome log.
        pool: its pool file.
        split_by: cut the log once, or every task.
        train_fraction: share of the queries in the first part.
        seed: of everything random, the first of ``seeds``.
        seeds: how often everything is trained and played; figures are means over them.
        feedback: what is revealed of a query once it is answered.
        show_task: whether the strategies see the task's name.
        operating_points: the cost ratios to hold, each of them played; None: `OPERATING_POINTS`.
        policy: what focalroute serves; None: what it is trained to.
        presets: the papers' own methods to add, ``rl-focal`` or ``der`` (see `focalroute.evaluate.presets`).
        settings: how it is trained.
        embedder: what makes the features of a text that focalroute is trained and served with; None: the pool file's,
            or the built-in ones.
        engine: what runs seeds and operating points; the report is the same.
        progress: whether to show a progress bar.

    Raises:
        ConfigError: an argument, the log or the pool is wrong.
        PoolError: the embedder failed.
    """
    _check(split_by, train_fraction, seeds, feedback)
    targets = _targets(operating_points, policy)
    published = find_presets(presets)
    file = load_pool(pool)
    table = join(read_log(log), file, log)
    embedder = embedder or embedder_from_pool_file(file, pool)
    if embedder is not None:
        table = with_embedder(table, embedder, shown=progress)
    parts = split(table, per_task=split_by == "per-task", fraction=train_fraction)
    first = Training(table, parts.train, seed, feedback, show_task)
    rows = learning_order(table, parts.train, split_by)
    cold = policy is not None and not policy.version
    stage = Stage(
        table,
        parts,
        first,
        range(seed, seed + seeds),
        settings or OfflineSettings(),
        rows,
        warm=parts.train if cold else rows[-_WARM:],
        explore=cold,
        presets=published,
    )
    shown = _shown(targets)
    with progress_bar("replaying", stage.steps(len(targets), training=policy is None), shown=progress) as advance:
        policies = stage.trained(engine, advance) if policy is None else [policy] * seeds
        ours = stage.ours(engine, policies, targets, advance)
        others = stage.others(engine, policies, ours[shown], targets[shown], advance)
    every = {name: tuple(played) for name, played in others.played.items()}
    replayed = Replayed(table, parts.test, tuple(map(tuple, ours)), every, shown)
    return _report(log, replayed, parts, targets, first, seeds, train_fraction, split_by, policy, others.unfused)


def _shown(targets: Sequence[float | None]) -> int:
    """The operating point that is set beside each method and shuffled: the one nearest a fifth of the cost."""
    return min(range(len(targets)), key=lambda n: abs((targets[n] or _SHOWN) - _SHOWN))


def _report(
    log: str | Path,
    replayed: Replayed,
    parts: Split,
    targets: Sequence[float | None],
    first: Training,
    seeds: int,
    train_fraction: float,
    split_by: SplitKind,
    policy: Policy | None,
    unfused: Mapping[str, int],
) -> Report:
    table, others = replayed.table, replayed.others
    ours = [[run.played for run in runs] for runs in replayed.ours]
    everybody = float(table.usd[parts.test].sum())
    points = []
    for runs, target in zip(ours, targets, strict=True):
        scored = dataclasses.asdict(score(_OURS, runs, everybody, seed=first.seed))
        minus = {name: compare(runs, played, seed=first.seed) for name, played in others.items()}
        points.append(Point(**scored, target_cost_ratio=target, minus=minus))
    methods = []
    for name, played in others.items():
        one = score(name, played, everybody, seed=first.seed)
        beside = beside_curve(one, played, points, ours, seed=first.seed)
        methods.append(Method(**dataclasses.asdict(one), curve_minus=beside))
    return Report(
        log=str(log),
        split=split_by,
        train_fraction=train_fraction,
        n_train=len(parts.train),
        n_test=len(parts.test),
        seed=first.seed,
        seeds=seeds,
        feedback=first.feedback,
        show_task=first.show_task,
        scored="score" if all(query.label is None for query in table.queries) else "accuracy",
        embedder=name_of(table.embed),
        policy="trained" if policy is None else "cold" if not policy.version else f"version {policy.version}",
        methods=tuple(methods),
        focalroute=tuple(points),
        unfused=unfused,
        replayed=replayed,
    )


def _targets(operating_points: Sequence[float] | None, policy: Policy | None) -> tuple[float | None, ...]:
    """The cost ratios to play at; None: as the policy pleases."""
    if policy is not None and not policy.version:
        if operating_points is not None:
            raise ConfigError("operating_points: the cold start has but one; leave them out, or serve a trained policy")
        return (None,)
    found = OPERATING_POINTS if operating_points is None else tuple(operating_points)
    if not found or not all(0 < point <= 1 for point in found):
        raise ConfigError(f"operating_points: give cost ratios above 0 and up to 1, not {list(found)}")
    return found


def _check(split_by: str, train_fraction: float, seeds: int, feedback: str) -> None:
    if split_by not in ("stream", "per-task"):
        raise ConfigError(f"split: stream or per-task, not {split_by!r}")
    if feedback not in ("label", "reward", "none"):
        raise ConfigError(f"feedback: label, reward or none, not {feedback!r}")
    if not 0 < train_fraction < 1:
        raise ConfigError(f"train_fraction: must lie between 0 and 1, not {train_fraction}")
    if seeds < 1:
        raise ConfigError(f"seeds: must be at least 1, not {seeds}")


def show(report: Report) -> None:
    """Print the report as a table, the most accurate first."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table as Grid

    shown = report.focalroute[_shown([point.target_cost_ratio for point in report.focalroute])]
    seeds = f"seed {report.seed}" if report.seeds == 1 else f"{report.seeds} seeds"
    grid = Grid(box=SIMPLE, title=f"{report.log}: {report.n_test} queries after {report.n_train}, {seeds}")
    for column in ("", report.scored, "95 %", "cost ratio", "$ / 1000", "calls", "", "its curve"):
        grid.add_column(column, justify="right" if column else "left", no_wrap=True)
    grid.columns[6].header = f"focalroute @ {shown.cost_ratio:.2f} minus it"
    for row in sorted((*report.focalroute, *report.methods), key=lambda row: -row.accuracy):
        low, high = row.accuracy_ci95
        grid.add_row(
            named(row),
            f"{row.accuracy:.4f}",
            f"{low:.3f} to {high:.3f}",
            f"{row.cost_ratio:.3f}",
            f"{row.cost_usd_per_query * 1000:.4f}",
            f"{row.calls_per_query:.2f}",
            "" if isinstance(row, Point) else _difference(shown.minus[row.name]),
            _difference(row.curve_minus) if isinstance(row, Method) else "",
            style="bold" if isinstance(row, Point) else None,
        )
    console = Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH)
    console.print(grid)
    console.print(
        f"Answered first, then revealed ({report.feedback}) and learned from. best-single-hindsight and oracle know "
        "the test part. Its curve: focalroute's operating points at the method's cost, minus the method."
    )
    for name, count in report.unfused.items():
        if count:
            console.print(f"{name} answered {count} questions by plurality: more choices than any in training.")
    if report.policy == "cold":
        console.print("focalroute served its cold start: trained on no recorded answers, one operating point.")


def named(row: Score) -> str:
    """What a row of the report is called: an operating point with its target."""
    if isinstance(row, Point) and row.target_cost_ratio is not None:
        return f"{row.name} @ {row.target_cost_ratio:g}"
    return row.name


def _difference(found: PairedDifference | None) -> str:
    return "" if found is None else f"{found.difference:+.3f} ({found.ci95[0]:+.3f} to {found.ci95[1]:+.3f})"
