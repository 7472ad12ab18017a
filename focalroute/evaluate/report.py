"""``eval``: plays focalroute and every baseline over one log, scores them, and says it as JSON and as a table."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from focalroute.config import load_pool
from focalroute.errors import ConfigError
from focalroute.evaluate.lineup import baselines, best_in_hindsight, oracle
from focalroute.evaluate.metrics import Comparison, Score, compare, score
from focalroute.evaluate.outcomes import read_log
from focalroute.evaluate.presets.catalogue import presets as find_presets
from focalroute.evaluate.presets.rl_focal import RlFocal
from focalroute.evaluate.replay import FeedbackKind, Played, Strategy, play
from focalroute.evaluate.serving import Serving, Shuffled
from focalroute.evaluate.table import I64, Split, Table, join, split
from focalroute.evaluate.training import Training
from focalroute.policy.bundle import Policy, cold
from focalroute.progress import progress_bar

__all__ = ["Report", "SplitKind", "evaluate", "show"]

SplitKind = Literal["stream", "per-task"]
Plan = Sequence[tuple[tuple[int, ...], ...]]

_OURS = "focalroute"
_PIPED_WIDTH = 120


@dataclass(frozen=True, slots=True)
class Report:
    """The result of one evaluation.

    Attributes:
        log: the log's path as given.
        scored: "accuracy", or "score" where the log has no labels.
        policy_version: 0: the cold start, which has no operating points: it takes no notice of the price of money.
        methods: the baselines and controls.
        focalroute: its operating points.
        margins: by method, focalroute's (first operating point) accuracy minus the method's.
        unfused: by preset with a Fusion of fixed size, test questions with too many choices, answered by plurality.
    """

    log: str
    split: SplitKind
    train_fraction: float
    n_train: int
    n_test: int
    seed: int
    feedback: FeedbackKind
    show_task: bool
    scored: str
    policy_version: int
    methods: tuple[Score, ...]
    focalroute: tuple[Score, ...]
    margins: dict[str, Comparison]
    unfused: dict[str, int]

    def to_dict(self) -> dict[str, Any]:
        """As the JSON report has it; an operating point without a target has null there."""
        plain = dataclasses.asdict(self)
        margins = plain.pop("margins")
        for method in plain["methods"]:
            method["focalroute_minus"] = margins[method["name"]]
        for point in plain["focalroute"]:
            point["target_cost_ratio"] = None
        return plain


def evaluate(
    log: str | Path,
    pool: str | Path,
    *,
    split_by: SplitKind = "stream",
    train_fraction: float = 0.8,
    seed: int = 0,
    feedback: FeedbackKind = "label",
    show_task: bool = False,
    policy: Policy | None = None,
    presets: Sequence[str] = (),
    progress: bool = False,
) -> Report:
    """Replay an outcome log: train on its first part, then answer, reveal and learn query by query on the rest.

    focalroute plays the training part as it would have in service (seeing only what it asks for, learning from the
    feedback), unscored. Baselines see the whole training part, with its labels.

    Args:
        log: an outcome log.
        pool: its pool file.
        split_by: cut the log once, or every task.
        train_fraction: share of the queries in the first part.
        seed: of everything random.
        feedback: what is revealed of a query once it is answered.
        show_task: whether the strategies see the task's name.
        policy: what focalroute serves; None: the cold start.
        presets: the papers' own methods to add, ``rl-focal`` or ``der`` (see `focalroute.evaluate.presets`).
        progress: whether to show a progress bar.

    Raises:
        ConfigError: an argument, the log or the pool is wrong.
    """
    _check(split_by, train_fraction, feedback)
    published = find_presets(presets)
    table = join(read_log(log), load_pool(pool), log)
    parts = split(table, per_task=split_by == "per-task", fraction=train_fraction)
    served = cold() if policy is None else policy
    training = Training(table, parts.train, seed, feedback, show_task)
    rounds = len(baselines(training)) + len(published) + 3 + 2 * len(parts.train) / len(parts.test)
    with progress_bar("replaying", round(rounds * len(parts.test)), shown=progress) as advance:
        replay = _Replay(table, parts, training, served, published, {}, advance)
        ours, plan = replay.ours()
        played = dict(replay.others(plan))
    everybody = float(table.usd[parts.test].sum())
    return Report(
        log=str(log),
        split=split_by,
        train_fraction=train_fraction,
        n_train=len(parts.train),
        n_test=len(parts.test),
        seed=seed,
        feedback=feedback,
        show_task=show_task,
        scored="score" if all(query.label is None for query in table.queries) else "accuracy",
        policy_version=served.version,
        methods=tuple(score(name, one, everybody, seed=seed) for name, one in played.items()),
        focalroute=(score(_OURS, ours, everybody, seed=seed),),
        margins={name: compare([ours], [one], seed=seed) for name, one in played.items()},
        unfused=replay.unfused,
    )


def _check(split_by: str, train_fraction: float, feedback: str) -> None:
    if split_by not in ("stream", "per-task"):
        raise ConfigError(f"split: stream or per-task, not {split_by!r}")
    if feedback not in ("label", "reward", "none"):
        raise ConfigError(f"feedback: label, reward or none, not {feedback!r}")
    if not 0 < train_fraction < 1:
        raise ConfigError(f"train_fraction: must lie between 0 and 1, not {train_fraction}")


@dataclass(frozen=True, slots=True)
class _Replay:
    """What one evaluation plays on."""

    table: Table
    parts: Split
    training: Training
    policy: Policy
    presets: Mapping[str, Callable[[Training], Strategy]]
    unfused: dict[str, int]
    advance: Callable[[int], object]

    def ours(self) -> tuple[Played, Plan]:
        """The test part, as focalroute plays it after the training part, and whom it asked there."""
        serving = Serving(self.policy, self.table.endpoints, seed=self.training.seed)
        played = self._after_training(serving)
        return played, serving.history[len(self.parts.train) :]

    def others(self, plan: Plan) -> Iterator[tuple[str, Played]]:
        """The test part, as all others play it; the decisions of ``plan`` are what gets shuffled."""
        for name, make in {**baselines(self.training), **self.presets}.items():
            strategy = make(self.training)
            yield name, self._play(strategy, self.parts.test)
            if isinstance(strategy, RlFocal):
                self.unfused[name] = strategy.unfused
        yield "best-single-hindsight", self._play(best_in_hindsight(self.table, self.parts.test), self.parts.test)
        yield "shuffled", self._after_training(self._shuffled(plan))
        yield "oracle", oracle(self.table, self.parts.test)

    def _shuffled(self, plan: Plan) -> Shuffled:
        order = np.random.default_rng(self.training.seed).permutation(len(plan)).tolist()
        return Shuffled(
            self.policy,
            self.table.endpoints,
            seed=self.training.seed,
            plan=[plan[n] for n in order],
            start=len(self.parts.train),
        )

    def _after_training(self, strategy: Strategy) -> Played:
        self._play(strategy, self.parts.train)
        return self._play(strategy, self.parts.test)

    def _play(self, strategy: Strategy, rows: I64) -> Played:
        training = self.training
        return play(
            strategy,
            self.table,
            rows,
            feedback=training.feedback,
            show_task=training.show_task,
            advance=self.advance,
        )


def show(report: Report) -> None:
    """Print the report as a table, the most accurate first."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table as Grid

    grid = Grid(box=SIMPLE, title=f"{report.log}: {report.n_test} queries after {report.n_train}, seed {report.seed}")
    for column in ("", report.scored, "95 %", "cost ratio", "$ / 1000", "calls", "focalroute minus it"):
        grid.add_column(column, justify="right" if column else "left", no_wrap=True)
    for row in sorted((*report.focalroute, *report.methods), key=lambda row: -row.accuracy):
        margin = report.margins.get(row.name)
        low, high = row.accuracy_ci95
        grid.add_row(
            row.name,
            f"{row.accuracy:.4f}",
            f"{low:.3f} to {high:.3f}",
            f"{row.cost_ratio:.3f}",
            f"{row.cost_usd_per_query * 1000:.4f}",
            f"{row.calls_per_query:.2f}",
            "" if margin is None else f"{margin.difference:+.3f} ({margin.ci95[0]:+.3f} to {margin.ci95[1]:+.3f})",
            style="bold" if row.name == _OURS else None,
        )
    console = Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH)
    console.print(grid)
    console.print(
        f"Answered first, then revealed ({report.feedback}) and learned from. "
        "best-single-hindsight and oracle know the test part."
    )
    for name, count in report.unfused.items():
        if count:
            console.print(f"{name} answered {count} questions by plurality: more choices than any in training.")
    if report.policy_version == 0:
        console.print("focalroute served its cold start: hand-set weights, one operating point, nothing trained.")
