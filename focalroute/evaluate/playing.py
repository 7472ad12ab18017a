"""What an evaluation plays, as jobs of an engine: each seed's training, each operating point, and all other methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from focalroute.core.progress import gathered
from focalroute.evaluate.baselines import BASELINES, BY_CHANCE, baselines, best_in_hindsight, oracle
from focalroute.evaluate.job_engine import Engine
from focalroute.evaluate.points import Served, trained
from focalroute.evaluate.presets.rl_focal import RlFocal
from focalroute.evaluate.replay import ReplayResult, Strategy, play
from focalroute.evaluate.replayed import Plan, Run
from focalroute.evaluate.table import I64, LogTable, Split
from focalroute.evaluate.training import Training
from focalroute.learn.offline.settings import OfflineSettings
from focalroute.policy.bundle import Policy

Advance = Callable[[int], object]
_Point = tuple[Policy, int, float | None]


@dataclass(frozen=True, slots=True)
class Others:
    """What all but focalroute did on the test part.

    Attributes:
        played: by method, one a seed.
        unfused: see `focalroute.evaluate.report.Report`.
    """

    played: dict[str, list[ReplayResult]] = field(default_factory=dict)
    unfused: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stage:
    """Where everything is played.

    Attributes:
        first: what may be learned from, with the first seed.
        seeds: of everything random.
        rows: the training part in the order to learn from it.
        warm: see `Served`; ``explore`` likewise.
        presets: the papers' own methods, by name.
    """

    table: LogTable
    parts: Split
    first: Training
    seeds: range
    settings: OfflineSettings
    rows: I64
    warm: I64
    explore: bool
    presets: Mapping[str, Callable[[Training], Strategy]]

    def steps(self, targets: int, *, training: bool) -> int:
        """The units of progress that all of it makes, with so many operating points."""
        test = len(self.parts.test)
        each = (len(self.presets) + len(BY_CHANCE) + 1) * test + (targets + 1) * (len(self.warm) + test)
        once = (len(baselines(self.first)) - len(BY_CHANCE)) * test
        return len(self.seeds) * (each + training * self.settings.steps) + once

    def trained(self, engine: Engine, advance: Advance) -> list[Policy]:
        """One policy a seed."""
        return engine.each(_train, self, self.seeds, advance)

    def ours(
        self, engine: Engine, policies: Sequence[Policy], targets: Sequence[float | None], advance: Advance
    ) -> list[list[Run]]:
        """By operating point, one run a seed."""
        every = list(zip(policies, self.seeds, strict=True))
        points: list[_Point] = [(policy, seed, target) for target in targets for policy, seed in every]
        runs = engine.each(_run, self, points, advance)
        return [runs[start : start + len(every)] for start in range(0, len(runs), len(every))]

    def others(
        self,
        engine: Engine,
        policies: Sequence[Policy],
        shown: Sequence[Run],
        target: float | None,
        advance: Advance,
    ) -> Others:
        """Everybody else, of each seed; ``shown`` are the runs at ``target``, whose decisions are shuffled.

        A baseline without chance plays every seed alike, so it plays the first one alone.
        """
        inputs = [
            ((policy, seed, target), run.plan) for policy, seed, run in zip(policies, self.seeds, shown, strict=True)
        ]
        found = Others()
        for played, unfused in engine.each(_play_others, self, inputs, advance):
            for name in played | found.played:
                found.played.setdefault(name, []).append(played[name] if name in played else found.played[name][0])
            for name, count in unfused.items():
                found.unfused[name] = found.unfused.get(name, 0) + count
        return found

    def served(self, point: _Point, advance: Advance) -> Served:
        """This policy with this seed."""
        policy, seed, _ = point
        training = replace(self.first, seed=seed)
        return Served(policy, self.table, self.parts, training, warm=self.warm, explore=self.explore, advance=advance)


def _train(stage: Stage, seed: int, tell: Advance) -> Policy:
    with gathered(tell) as advance:
        return trained(
            stage.table,
            stage.rows,
            seed=seed,
            settings=stage.settings,
            show_task=stage.first.show_task,
            advance=advance,
        )


def _run(stage: Stage, point: _Point, tell: Advance) -> Run:
    with gathered(tell) as advance:
        return stage.served(point, advance).run(point[2])


def _play_others(
    stage: Stage, one: tuple[_Point, Plan], tell: Advance
) -> tuple[dict[str, ReplayResult], dict[str, int]]:
    point, plan = one
    unfused: dict[str, int] = {}
    with gathered(tell) as advance:
        replay = stage.served(point, advance)
        return dict(_others(stage, replay, plan, point[2], unfused)), unfused


def _others(
    stage: Stage, replay: Served, plan: Plan, target: float | None, unfused: dict[str, int]
) -> Iterator[tuple[str, ReplayResult]]:
    """The test part, as all others play it; the decisions of ``plan`` are what gets shuffled."""
    table, test, training = replay.table, replay.parts.test, replay.training

    def alone(strategy: Strategy) -> ReplayResult:
        return play(
            strategy,
            table,
            test,
            feedback=training.feedback,
            show_task=training.show_task,
            advance=replay.advance,
        )

    for name, make in {**baselines(training), **stage.presets}.items():
        if training.seed != stage.first.seed and name in BASELINES and name not in BY_CHANCE:
            continue
        strategy = make(training)
        yield name, alone(strategy)
        if isinstance(strategy, RlFocal):
            unfused[name] = strategy.unfused
    yield "best-single-hindsight", alone(best_in_hindsight(table, test))
    yield "shuffled", replay.shuffled(plan, target)
    yield "oracle", oracle(table, test)
