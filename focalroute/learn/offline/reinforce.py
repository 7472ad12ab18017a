"""The Decider by the policy gradient, over whole recorded queries, several samples a query, each the others' baseline.

REINFORCE (Williams 1992) with the leave-one-out baseline (Kool et al. 2019). Lambda is drawn anew for every batch, so
that one policy serves every price.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from focalroute.learn.adam import Adam, Moments
from focalroute.learn.backend import Backend
from focalroute.learn.likelihood import likelihood
from focalroute.learn.nets import DeciderNet, FusionNet, parameters
from focalroute.learn.offline.recorded import I64
from focalroute.learn.offline.rollout import Played, roll
from focalroute.learn.offline.settings import OfflineSettings
from focalroute.learn.offline.views import Views, drawn_price, nearest

#: The cost weights at which a policy is measured.
GRID = (0.003, 0.01, 0.03, 0.06, 0.12, 0.25, 0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True, slots=True)
class Point:
    """A policy at one cost weight, on queries that it was not trained on.

    Attributes:
        cost_weight: lambda.
        accuracy: mean worth of the answers.
        cost_ratio: paid / what asking everybody costs.
        calls: a query.
    """

    cost_weight: float
    accuracy: float
    cost_ratio: float
    calls: float


@dataclass(frozen=True, slots=True)
class PolicyGradient:
    """What the Decider learns from.

    Attributes:
        views: the log.
        rows: the queries of it to learn from.
        fusion: fuses.
        everybody: C, mean USD of asking all.
        settings: how to learn.
        passes: which engine computes.
        advance: called with 1 after every step.
    """

    views: Views
    rows: I64
    fusion: FusionNet
    everybody: float
    settings: OfflineSettings
    passes: Backend
    advance: Callable[[int], object]

    def gradients(self, decider: DeciderNet, rng: np.random.Generator) -> dict[str, NDArray[np.floating]]:
        """Of the mean reward of one batch, at one cost weight, its sign turned."""
        rows = rng.choice(self.rows, min(self.settings.queries, len(self.rows)), replace=False)
        view, price = drawn_price(rng)
        played = self.roll(decider, view, rows, price, self.settings.samples, rng)
        reward = 2 * played.worth - 1 - price * played.shares.sum(axis=0)
        by_query = reward.reshape(len(rows), -1)
        others = (by_query.sum(axis=1, keepdims=True) - by_query) / max(self.settings.samples - 1, 1)
        advantage = (by_query - others).ravel() / np.sqrt(1 + price**2)
        advantage /= max(float(advantage.std()), 1e-6)
        total: dict[str, NDArray[np.floating]] = {}
        for step in played.steps:
            law = likelihood(step.logits, step.heads)
            d = -(advantage[step.rows, None] * law.d_log_pi + self.settings.entropy * law.d_entropy) / len(reward)
            for name, gradient in step.pull(d.astype(step.logits.dtype)).items():
                total[name] = total[name] + gradient if name in total else gradient
        return total

    def roll(
        self, decider: DeciderNet, view: int, rows: I64, price: float, samples: int, rng: np.random.Generator | None
    ) -> Played:
        """These queries answered at one cost weight; without ``rng`` greedily."""
        return roll(
            decider,
            self.fusion,
            self.views.at(view, rows),
            cost_weight=np.full(len(rows), price, np.float32),
            everybody=self.everybody,
            rounds=self.settings.rounds,
            samples=samples,
            rng=rng,
            passes=self.passes,
        )

    def curve(self, decider: DeciderNet, rows: I64) -> tuple[Point, ...]:
        """The greedy policy on these queries at every price of `GRID`."""
        everything = float(self.views.recorded.usd[rows].sum())
        points = []
        for price in GRID:
            played = self.roll(decider, nearest(price), rows, price, 1, None)
            paid = float(played.shares.sum()) * self.everybody
            calls = float((played.first | played.later).sum(axis=1).mean())
            cost_ratio = paid / everything if everything else 0.0
            points.append(Point(price, float(played.worth.mean()), cost_ratio, calls))
        return tuple(points)


def improved(
    learners: Sequence[PolicyGradient],
    decider: DeciderNet,
    moments: Moments,
    *,
    steps: range,
    total: int,
    share: float,
    rng: np.random.Generator,
) -> tuple[DeciderNet, Moments]:
    """Some steps of ``total``, along which the rate rises and then falls.

    Args:
        learners: each step learns from one of them, drawn by chance.
        decider: where to start.
        moments: of Adam, so far.
        steps: which of the steps.
        total: how many there are.
        share: of the settings' rate.
        rng: chance.
    """
    adam = Adam(parameters(decider), moments, learning_rate=0.0, max_norm=1.0)
    for step in steps:
        learner = learners[int(rng.integers(len(learners)))]
        warm = min(1.0, (step + 1) / 10)
        rate = learner.settings.decider_rate * share * warm
        adam.learning_rate = rate * (0.1 + 0.45 * (1 + np.cos(np.pi * step / total)))
        adam.step(learner.gradients(decider, rng))
        decider = replace(decider, **adam.parameters)
        learner.advance(1)
    return decider, adam.moments


def score_of(curve: tuple[Point, ...]) -> float:
    """Mean over prices of the reward, (u - lambda c / C) / (1 + lambda)."""
    rewards = [
        (2 * point.accuracy - 1 - point.cost_weight * point.cost_ratio) / (1 + point.cost_weight) for point in curve
    ]
    return float(np.mean(rewards))
