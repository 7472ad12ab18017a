"""focalroute on one log: trained, then played at several operating points, each a cost ratio to hold."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from focalroute.evaluate.metrics import PairedDifference, Score, compare, mixed
from focalroute.evaluate.recording import publish_trained, train_on
from focalroute.evaluate.replay import ReplayResult, play
from focalroute.evaluate.replayed import Plan, Run
from focalroute.evaluate.serving import Serving, Shuffled
from focalroute.evaluate.table import I64, LogTable, Split
from focalroute.evaluate.training import PRICE_OF_MONEY, Training
from focalroute.learn.offline.reinforce import GRID
from focalroute.learn.offline.settings import OfflineSettings
from focalroute.policy.bundle import Policy, load

#: The cost ratios that are played by default.
OPERATING_POINTS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class Point(Score):
    """One operating point.

    Attributes:
        target_cost_ratio: what it was to hold; None: the policy has but one point.
        minus: by method, this point's accuracy minus the method's.
    """

    target_cost_ratio: float | None
    minus: dict[str, PairedDifference]


@dataclass(frozen=True, slots=True)
class Served:
    """A policy, and how it is played on one log.

    Attributes:
        warm: the training rows that it serves before the test part, unscored, so that its window is full.
    """

    policy: Policy
    table: LogTable
    parts: Split
    training: Training
    warm: I64
    explore: bool
    advance: Callable[[int], object]

    def run(self, target: float | None) -> Run:
        """The test part at one operating point."""
        serving = Serving(self.policy, self.table.endpoints, **self._settings(target))
        played = self.after_warm(serving, target)
        start = len(self.warm)
        changes = tuple((turn - start, name, change) for turn, name, change in serving.changes if turn >= start)
        return Run(played, serving.history[start:], np.array(serving.confidence[start:]), changes)

    def shuffled(self, plan: Plan, target: float | None) -> ReplayResult:
        """The control: it asks, on every query, whom the decisions on another one named."""
        order = np.random.default_rng(self.training.seed).permutation(len(plan)).tolist()
        moved = [plan[n] for n in order]
        settings = self._settings(target)
        serving = Shuffled(self.policy, self.table.endpoints, plan=moved, start=len(self.warm), **settings)
        return self.after_warm(serving, target)

    def after_warm(self, serving: Serving, target: float | None = None) -> ReplayResult:
        """The test part, once the rows before it are played, each at this cost ratio."""
        self._play(serving, self.warm, target)
        return self._play(serving, self.parts.test, target)

    def _settings(self, target: float | None) -> dict[str, Any]:
        price = PRICE_OF_MONEY if target is None else price_at(self.policy, target)
        chosen = {"seed": self.training.seed, "explore": self.explore, "cost_weight": price}
        return {**chosen, "embed": self.table.embed}

    def _play(self, serving: Serving, rows: I64, target: float | None) -> ReplayResult:
        training, everybody = self.training, float(self.table.usd[rows].sum())
        serving.hold(None if target is None or not everybody else target * everybody / len(rows))
        return play(
            serving,
            self.table,
            rows,
            feedback=training.feedback,
            show_task=training.show_task,
            advance=self.advance,
        )


def trained(
    table: LogTable,
    rows: I64,
    *,
    seed: int,
    settings: OfflineSettings,
    show_task: bool = False,
    advance: Callable[[int], object],
) -> Policy:
    """The policy that training on these rows gives, as a bundle that went through the disk."""
    with tempfile.TemporaryDirectory() as folder:
        found = train_on(table, rows, seed=seed, settings=settings, show_task=show_task, advance=advance)
        publish_trained(folder, found, settings=settings)
        return load(folder)


def price_at(policy: Policy, target: float) -> float:
    """The cost weight at which the policy met this cost ratio on its validation part, as far as it is known."""
    curve = policy.metrics.get("curve", ())
    prices = [point["cost_weight"] for point in curve] or [GRID[0], GRID[-1]]
    costs = [point["cost_ratio"] for point in curve] or [1.0, 0.0]
    falling = np.minimum.accumulate(costs)[::-1]
    return float(np.exp(np.interp(target, falling, np.log(prices)[::-1])))


def beside_curve(
    method: Score,
    played: Sequence[ReplayResult],
    points: Sequence[Score],
    curve: Sequence[Sequence[ReplayResult]],
    *,
    seed: int = 0,
) -> PairedDifference | None:
    """Focalroute's curve at the method's cost minus the method; None where the method costs less than every point.

    Between neighbouring operating points the curve is linear: either is played by chance. Beyond the last it is level.
    """
    order = sorted(range(len(points)), key=lambda n: points[n].cost_ratio)
    below = [n for n in order if points[n].cost_ratio <= method.cost_ratio]
    if not below:
        return None
    low = below[-1]
    found = curve[low]
    if len(below) < len(order):
        high = order[len(below)]
        cheap, dear = points[low].cost_ratio, points[high].cost_ratio
        found = mixed(found, curve[high], (method.cost_ratio - cheap) / (dear - cheap))
    return compare(found, played, seed=seed)
