"""Runs the steps of an evaluation as jobs of an engine.

`Stage.trained` trains a policy with each seed, `Stage.ours` replays it at each operating point, and `Stage.others`
replays the baselines and controls.
"""

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
from focalroute.evaluate.replay import COST_WEIGHT, FeedbackStream, ReplayResult, Strategy, Training, play
from focalroute.evaluate.serving import Serving, Shuffled
from focalroute.evaluate.table import EVERYTHING, LogTable, Split
from focalroute.evaluate.training import publish_trained, train_on
from focalroute.learn.offline.reinforce import GRID, OfflineSettings
from focalroute.money.pacing import LOWEST_WEIGHT
from focalroute.observe.drift import Change
from focalroute.policy.bundle import Policy, load

Advance = Callable[[int], object]
#: A policy, its seed, and the target cost ratio (None: no target).
_Point = tuple[Policy, int, float | None]
#: For each query, the endpoints picked in each round.
DecisionPlan = Sequence[tuple[tuple[int, ...], ...]]


@dataclass(frozen=True, slots=True)
class PointRun:
    """focalroute's results on the n rows of the test part, at one operating point with one seed.

    Attributes:
        played: the scored results.
        plan: for each row, the endpoints picked in each round.
        confidence: (n,) the posterior of each answer; NaN without an answer.
        changes: (row from 0, endpoint, change) for every detected change of an endpoint.
    """

    played: ReplayResult
    plan: DecisionPlan
    confidence: F64
    changes: tuple[tuple[int, str, Change], ...] = ()


@dataclass(frozen=True, slots=True)
class EvaluationRuns:
    """All results on the n rows of the test part.

    Attributes:
        table: the log.
        test: (n,) the log's rows in the test part.
        ours: for each operating point, one run with each seed.
        others: method -> one result with each seed.
        shown: index of the operating point that represents focalroute.
    """

    table: LogTable
    test: I64
    ours: tuple[tuple[PointRun, ...], ...]
    others: Mapping[str, tuple[ReplayResult, ...]]
    shown: int

    def worth(self, method: str | None = None) -> F64:
        """The worth of a method's answers, (seeds, n); None: of focalroute at the operating point that is shown."""
        runs = [run.played for run in self.ours[self.shown]] if method is None else self.others[method]
        return np.stack([run.worth for run in runs])

    def right(self) -> tuple[Bools, Bools]:
        """Two arrays (n, N): whether an endpoint replied, and whether its answer is right (worth at least a half)."""
        known = self.table.there[self.test] & ~self.table.failed[self.test]
        return known, known & (np.nan_to_num(self.table.value[self.test]) >= 0.5)


@dataclass(frozen=True, slots=True)
class PolicyReplay:
    """Replays one policy on a log.

    Attributes:
        policy: the policy.
        table: the log.
        parts: its split; the test part is scored.
        training: has the seed, the feedback and whether tasks are shown.
        explore: whether decisions are sampled; else the likeliest is taken.
        advance: called with the number of queries done.
        before: rows to serve before the test part, unscored; the cold start gets to know the pool from them.
        usd_per_second: the price of a second until the answer.
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
        """Replay the control, which asks for each query the endpoints that were picked for another query."""
        order = np.random.default_rng(self.training.seed).permutation(len(plan)).tolist()
        shuffled = [plan[n] for n in order]
        settings = self._settings(target)
        serving = Shuffled(self.policy, self.table.endpoints, plan=shuffled, start=len(self.before), **settings)
        return self._replayed(serving, target)

    def _replayed(self, serving: Serving, target: float | None) -> ReplayResult:
        """Serve the rows ``before``, then the test part, each at this cost ratio; return the results on the latter."""
        feedback = FeedbackStream(self.training.feedback)
        for rows in (self.before, self.parts.test):
            serving.hold(self.table.target_usd_per_query(rows, target))
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
        """Return the keyword arguments of `Serving` at this cost ratio."""
        weight = COST_WEIGHT
        if target == EVERYTHING:
            weight = LOWEST_WEIGHT
        elif target is not None:
            weight = cost_weight_at(self.policy, target)
        return {
            "seed": self.training.seed,
            "explore": self.explore,
            "cost_weight": weight,
            "usd_per_second": self.usd_per_second,
            "embed": self.table.embed,
        }


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


def cost_weight_at(policy: Policy, target: float) -> float:
    """Return the cost weight at which the policy has this cost ratio, interpolated from its validation curve.

    For the cold start, which has no such curve, it is `COST_WEIGHT`.
    """
    if not policy.version:
        return COST_WEIGHT
    curve = policy.metrics.get("curve", ())
    weights = [point["cost_weight"] for point in curve] or [GRID[0], GRID[-1]]
    cost_ratios = [point["cost_ratio"] for point in curve] or [1.0, 0.0]
    falling = np.minimum.accumulate(cost_ratios)  # the higher the weight, the lower the cost
    return float(np.exp(np.interp(target, falling[::-1], np.log(weights)[::-1])))


@dataclass(frozen=True, slots=True)
class Stage:
    """The inputs that all jobs of an evaluation share.

    Attributes:
        parts: the log's split.
        first: the training data, with the first seed.
        seeds: the random seeds.
        settings: the settings of training.
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
        """Return the total units of progress: a query replayed, or a step of training.

        Args:
            targets: the number of operating points.
            training: whether policies are trained.
        """
        test, names = len(self.parts.test), baselines(self.first).keys()
        per_seed = (targets + 1) * (len(self.before) + test)  # the operating points and the shuffled control
        per_seed += (len(self.presets) + len(names & BY_CHANCE) + 1) * test  # the last is best-single-hindsight
        if training:
            per_seed += self.settings.steps
        return len(self.seeds) * per_seed + len(names - BY_CHANCE) * test

    def trained(self, engine: Engine, advance: Advance) -> list[Policy]:
        """Train one policy with each seed."""
        return engine.each(_train, self, self.seeds, advance)

    def ours(
        self, engine: Engine, policies: Sequence[Policy], targets: Sequence[float | None], advance: Advance
    ) -> list[list[PointRun]]:
        """Replay every operating point with each seed; return, for each operating point, one run with each seed."""
        seeded = list(zip(policies, self.seeds, strict=True))
        points: list[_Point] = [(policy, seed, target) for target in targets for policy, seed in seeded]
        runs = engine.each(_run, self, points, advance)
        return [runs[start : start + len(seeded)] for start in range(0, len(runs), len(seeded))]

    def others(
        self,
        engine: Engine,
        policies: Sequence[Policy],
        shown: Sequence[PointRun],
        target: float | None,
        advance: Advance,
    ) -> tuple[dict[str, tuple[ReplayResult, ...]], dict[str, int]]:
        """Replay all other methods.

        A deterministic baseline has the same result with every seed, so it is replayed only with the first.

        Args:
            engine: runs the jobs.
            policies: focalroute's policy with each seed, for the shuffled control.
            shown: their runs at ``target``, whose decisions the control shuffles.
            target: the cost ratio that the control, and baselines that can hold one, are held to.
            advance: called with the number of queries done.

        Returns:
            Method -> one result with each seed; and for each preset, the ``unfused`` count of `Report`.
        """
        inputs = [
            ((policy, seed, target), run.plan) for policy, seed, run in zip(policies, self.seeds, shown, strict=True)
        ]
        by_seed = engine.each(_play_others, self, inputs, advance)
        first, unfused = by_seed[0]
        played = {name: tuple(own.get(name, result) for own, _ in by_seed) for name, result in first.items()}
        return played, {name: sum(counts[name] for _, counts in by_seed) for name in unfused}

    def replay_of(self, point: _Point, advance: Advance) -> PolicyReplay:
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


def _train(stage: Stage, seed: int, report: Advance) -> Policy:
    """Train a policy with this seed; an engine's job."""
    first = stage.first
    with gathered(report) as advance:
        return trained(
            first.table, first.rows, seed=seed, settings=stage.settings, show_task=first.show_task, advance=advance
        )


def _run(stage: Stage, point: _Point, report: Advance) -> PointRun:
    """Replay one operating point with one seed; an engine's job."""
    with gathered(report) as advance:
        return stage.replay_of(point, advance).run(point[2])


def _play_others(
    stage: Stage, point_and_plan: tuple[_Point, DecisionPlan], report: Advance
) -> tuple[dict[str, ReplayResult], dict[str, int]]:
    """Replay all other methods with one seed; an engine's job."""
    point, plan = point_and_plan
    target, table, test = point[2], stage.first.table, stage.parts.test
    with gathered(report) as advance:
        replay = stage.replay_of(point, advance)
        training = replace(replay.training, usd_per_query=table.target_usd_per_query(test, target))
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
