"""Runs an evaluation as jobs of an engine: each seed's training, each operating point, and all other methods."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from focalroute.core.progress import gathered
from focalroute.core.records import F64, I64, Bools
from focalroute.evaluate.baselines import BASELINES, BY_CHANCE, baselines, best_in_hindsight, oracle
from focalroute.evaluate.job_engine import Engine
from focalroute.evaluate.presets.rl_focal import RlFocal
from focalroute.evaluate.replay import PRICE_OF_MONEY, FeedbackStream, ReplayResult, Strategy, Training, play
from focalroute.evaluate.serving import Serving, Shuffled
from focalroute.evaluate.table import EVERYTHING, LogTable, Split
from focalroute.evaluate.training import publish_trained, train_on
from focalroute.learn.offline.reinforce import GRID, OfflineSettings
from focalroute.money.pacing import LOWEST_WEIGHT
from focalroute.observe.drift import Change
from focalroute.policy.bundle import Policy, load

Advance = Callable[[int], object]
_Point = tuple[Policy, int, float | None]
#: The endpoints that the decisions picked for each query, by round.
DecisionPlan = Sequence[tuple[tuple[int, ...], ...]]


@dataclass(frozen=True, slots=True)
class PointRun:
    """focalroute's results on the test part, n rows, at one operating point with one seed.

    Attributes:
        plan: (n,) the endpoints that the decisions picked, by round.
        confidence: (n,) the posterior of each answer; NaN without an answer.
        changes: (row, endpoint, change) for every detected change of an endpoint.
    """

    played: ReplayResult
    plan: DecisionPlan
    confidence: F64
    changes: tuple[tuple[int, str, Change], ...] = ()


@dataclass(frozen=True, slots=True)
class EvaluationRuns:
    """All results on the test part, n rows.

    Attributes:
        table: the log.
        test: (n,) the log's rows in the test part.
        ours: by operating point, one run for each seed.
        others: by method, one `ReplayResult` for each seed.
        shown: index of the operating point that represents focalroute.
    """

    table: LogTable
    test: I64
    ours: tuple[tuple[PointRun, ...], ...]
    others: Mapping[str, tuple[ReplayResult, ...]]
    shown: int

    def worth(self, method: str | None = None) -> F64:
        """The worth of a method's answers, (seeds, n); None: those of the operating point that is shown."""
        runs = [run.played for run in self.ours[self.shown]] if method is None else self.others[method]
        return np.stack([run.worth for run in runs])

    def right(self) -> tuple[Bools, Bools]:
        """Whether each endpoint's recorded answer is known, and whether it is right (worth at least a half): (n, N)."""
        known = self.table.there[self.test] & ~self.table.failed[self.test]
        return known, known & (np.nan_to_num(self.table.value[self.test]) >= 0.5)


@dataclass(frozen=True, slots=True)
class PolicyReplay:
    """Replays one policy on a log.

    Attributes:
        before: rows to serve before the test part, unscored: what the cold start learns from.
    """

    policy: Policy
    table: LogTable
    parts: Split
    training: Training
    explore: bool
    advance: Callable[[int], object]
    before: I64 = field(default_factory=lambda: np.arange(0))
    usd_per_second: float = 0.0

    def run(self, target: float | None) -> PointRun:
        """Replay the test part at one operating point."""
        serving = Serving(self.policy, self.table.endpoints, **self._settings(target))
        played = self._replayed(serving, target)
        start = len(self.before)
        changes = tuple((turn - start, name, change) for turn, name, change in serving.changes if turn >= start)
        return PointRun(played, serving.history[start:], np.array(serving.confidence[start:]), changes)

    def shuffled(self, plan: DecisionPlan, target: float | None) -> ReplayResult:
        """Replay the control, which asks on each query the endpoints picked for another query."""
        order = np.random.default_rng(self.training.seed).permutation(len(plan)).tolist()
        moved = [plan[n] for n in order]
        settings = self._settings(target)
        serving = Shuffled(self.policy, self.table.endpoints, plan=moved, start=len(self.before), **settings)
        return self._replayed(serving, target)

    def _replayed(self, serving: Serving, target: float | None = None) -> ReplayResult:
        """Replay the rows before and then the test part, both at this cost ratio; return the latter's result."""
        feedback = FeedbackStream(self.training.feedback)
        for rows in (self.before, self.parts.test):
            serving.hold(self.table.held(rows, target))
            played = self.play(serving, rows, feedback)
        return played

    def play(self, strategy: Strategy, rows: I64, feedback: FeedbackStream | None = None) -> ReplayResult:
        """Replay any strategy on these rows, with the evaluation's feedback."""
        return play(
            strategy,
            self.table,
            rows,
            feedback=feedback or FeedbackStream(self.training.feedback),
            show_task=self.training.show_task,
            advance=self.advance,
        )

    def _settings(self, target: float | None) -> dict[str, Any]:
        weight = PRICE_OF_MONEY
        if target == EVERYTHING:
            weight = LOWEST_WEIGHT
        elif target is not None:
            weight = price_at(self.policy, target)
        chosen = {"seed": self.training.seed, "explore": self.explore, "cost_weight": weight}
        return {**chosen, "usd_per_second": self.usd_per_second, "embed": self.table.embed}


def trained(
    table: LogTable,
    rows: I64,
    *,
    seed: int,
    settings: OfflineSettings,
    show_task: bool = False,
    advance: Callable[[int], object],
) -> Policy:
    """Train a policy on these rows, and load it from its published bundle."""
    with tempfile.TemporaryDirectory() as folder:
        found = train_on(table, rows, seed=seed, settings=settings, show_task=show_task, advance=advance)
        publish_trained(folder, found, settings=settings)
        return load(folder)


def price_at(policy: Policy, target: float) -> float:
    """The cost weight at which the policy met this cost ratio on its validation part, interpolated.

    For the cold start, which has no validation part, it is `PRICE_OF_MONEY`.
    """
    if not policy.version:
        return PRICE_OF_MONEY
    curve = policy.metrics.get("curve", ())
    prices = [point["cost_weight"] for point in curve] or [GRID[0], GRID[-1]]
    costs = [point["cost_ratio"] for point in curve] or [1.0, 0.0]
    falling = np.minimum.accumulate(costs)[::-1]
    return float(np.exp(np.interp(target, falling, np.log(prices)[::-1])))


@dataclass(frozen=True, slots=True)
class Stage:
    """The shared inputs of all jobs.

    Attributes:
        first: the training data, with the first seed.
        seeds: the random seeds.
        before: see `PolicyReplay`; ``explore`` and ``usd_per_second`` likewise.
        presets: the papers' methods, by name.
    """

    parts: Split
    first: Training
    seeds: range
    settings: OfflineSettings
    before: I64
    explore: bool
    usd_per_second: float
    presets: Mapping[str, Callable[[Training], Strategy]]

    def steps(self, targets: int, *, training: bool) -> int:
        """The total units of progress, with this many operating points."""
        test, names = len(self.parts.test), baselines(self.first).keys()
        each = (len(self.presets) + len(names & BY_CHANCE) + 1) * test + (targets + 1) * (len(self.before) + test)
        once = len(names - BY_CHANCE) * test
        return len(self.seeds) * (each + training * self.settings.steps) + once

    def trained(self, engine: Engine, advance: Advance) -> list[Policy]:
        """Train one policy with each seed."""
        return engine.each(_train, self, self.seeds, advance)

    def ours(
        self, engine: Engine, policies: Sequence[Policy], targets: Sequence[float | None], advance: Advance
    ) -> list[list[PointRun]]:
        """Replay every operating point with each seed; return the runs by operating point."""
        every = list(zip(policies, self.seeds, strict=True))
        points: list[_Point] = [(policy, seed, target) for target in targets for policy, seed in every]
        runs = engine.each(_run, self, points, advance)
        return [runs[start : start + len(every)] for start in range(0, len(runs), len(every))]

    def others(
        self,
        engine: Engine,
        policies: Sequence[Policy],
        shown: Sequence[PointRun],
        target: float | None,
        advance: Advance,
    ) -> tuple[dict[str, tuple[ReplayResult, ...]], dict[str, int]]:
        """Replay all other methods; return one result for each seed, and the unfused counts over all seeds (`Report`).

        ``shown`` are the runs at ``target`` whose decisions the control shuffles. A deterministic baseline gives the
        same result with every seed, so it is replayed only with the first.
        """
        inputs = [
            ((policy, seed, target), run.plan) for policy, seed, run in zip(policies, self.seeds, shown, strict=True)
        ]
        found = engine.each(_play_others, self, inputs, advance)
        first, unfused = found[0]
        played = {name: tuple(own.get(name, alone) for own, _ in found) for name, alone in first.items()}
        return played, {name: sum(counts[name] for _, counts in found) for name in unfused}

    def served(self, point: _Point, advance: Advance) -> PolicyReplay:
        """Make the replay of a point's policy with its seed."""
        policy, seed, _ = point
        return PolicyReplay(
            policy,
            self.first.table,
            self.parts,
            replace(self.first, seed=seed),
            before=self.before,
            explore=self.explore,
            usd_per_second=self.usd_per_second,
            advance=advance,
        )


def _train(stage: Stage, seed: int, tell: Advance) -> Policy:
    first = stage.first
    with gathered(tell) as advance:
        return trained(
            first.table, first.rows, seed=seed, settings=stage.settings, show_task=first.show_task, advance=advance
        )


def _run(stage: Stage, point: _Point, tell: Advance) -> PointRun:
    with gathered(tell) as advance:
        return stage.served(point, advance).run(point[2])


def _play_others(
    stage: Stage, one: tuple[_Point, DecisionPlan], tell: Advance
) -> tuple[dict[str, ReplayResult], dict[str, int]]:
    """Replay the test part with all other methods; the control shuffles the decisions of the plan."""
    point, plan = one
    target, table, test = point[2], stage.first.table, stage.parts.test
    with gathered(tell) as advance:
        replay = stage.served(point, advance)
        training = replace(replay.training, usd_per_query=table.held(test, target))
        makers = {**baselines(training), **stage.presets}
        if training.seed != stage.first.seed:
            makers = {name: make for name, make in makers.items() if name not in BASELINES or name in BY_CHANCE}
        played: dict[str, ReplayResult] = {}
        unfused: dict[str, int] = {}
        for name, make in makers.items():
            strategy = make(training)
            played[name] = replay.play(strategy, test)
            if isinstance(strategy, RlFocal):
                unfused[name] = strategy.unfused
        played["best-single-hindsight"] = replay.play(best_in_hindsight(table, test), test)
        played["shuffled"] = replay.shuffled(plan, target)
        played["oracle"] = oracle(table, test)
    return played, unfused
