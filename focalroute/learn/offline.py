"""Learning offline (the paper's Algorithm 1): from recorded answers to a policy. Read `train` from top to bottom.

1. The Fusion, by cross-entropy over random sets of members; how far its learned part is trusted is chosen on the
   validation part, since it may have learned the topics rather than the members.
2. The Decider: one step of looking ahead by regression, then the policy gradient over whole queries, several samples a
   query, each the baseline of the others; lambda is drawn anew for every batch, so that one policy serves every price.
3. Both again, briefly, with the validation part: the Fusion on the sets that are really asked.

The paper trains the Decider first, on the interim plurality answer. Here the Fusion comes first: what another member is
worth depends on how its reply is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from focalroute.learn.adam import Adam, Moments
from focalroute.learn.cold import cold_fusion
from focalroute.learn.likelihood import likelihood
from focalroute.learn.lookahead import look_ahead
from focalroute.learn.nets import DeciderNet, FusionNet, parameters
from focalroute.learn.passes import NUMPY, Passes
from focalroute.learn.recorded import I64, Recorded
from focalroute.learn.rollout import Played, roll
from focalroute.learn.stacking import fit, log_loss, random_sets, tempered
from focalroute.learn.trajectory import grown
from focalroute.learn.views import PRICES, Masks, Views, long_run, nearest
from focalroute.observe.experience import Experience
from focalroute.observe.memory import CAPACITY

__all__ = ["OfflineSettings", "Point", "Trained", "train"]

_TRUST = (1.0, 0.75, 0.5, 0.25, 0.0)
#: The prices of money at which a policy is measured.
GRID = (0.003, 0.01, 0.03, 0.06, 0.12, 0.25, 0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True, slots=True)
class OfflineSettings:
    """How to train.

    Attributes:
        rounds: the most rounds a query may take.
        window: T of the observer.
        validation: share of the log, its end, that is held out to choose by; then it is learned from as well.
        fusion_epochs: over random sets.
        fusion_rate: of Adam; likewise the next two.
        lookahead_rate: of the regression on gains.
        decider_rate: of the policy gradient.
        lookahead_steps: of the regression.
        iterations: of the policy gradient.
        queries: in a batch of the policy gradient.
        samples: rollouts of each of these.
        entropy: weight of the Decider's entropy bonus.
        renew: iterations after which windows are renewed and the policy is measured.
        probed: share of queries on which an endpoint that was not asked is looked at all the same.
        finish: iterations at the end, with the validation part.
        finish_epochs: of the Fusion at the end, on the sets that are asked.
    """

    rounds: int = 3
    window: int = 500
    validation: float = 0.2
    fusion_epochs: int = 12
    fusion_rate: float = 3e-3
    lookahead_rate: float = 3e-3
    decider_rate: float = 1.5e-3
    lookahead_steps: int = 300
    iterations: int = 400
    queries: int = 128
    samples: int = 16
    entropy: float = 0.003
    renew: int = 80
    probed: float = 0.01
    finish: int = 40
    finish_epochs: int = 2

    @property
    def steps(self) -> int:
        """Units of progress, without those of the Fusion."""
        return self.lookahead_steps + self.iterations + self.finish


@dataclass(frozen=True, slots=True)
class Point:
    """A policy at one price of money, on queries that it was not trained on.

    Attributes:
        price_of_money: lambda.
        accuracy: mean worth of the answers.
        cost_ratio: paid / what asking everybody costs.
        calls: a query.
    """

    price_of_money: float
    accuracy: float
    cost_ratio: float
    calls: float


@dataclass(frozen=True, slots=True)
class Trained:
    """What training gives.

    Attributes:
        decider: the net.
        fusion: the net.
        experience: what serving goes on from.
        usd_per_query: C, mean USD of asking everybody.
        trust: share of the Fusion's learned part.
        curve: the policy on the validation part, before it learned from that.
        score: mean over prices of the reward there, (u - lambda c / C) / (1 + lambda).
    """

    decider: DeciderNet
    fusion: FusionNet
    experience: Experience
    usd_per_query: float
    trust: float
    curve: tuple[Point, ...]
    score: float


def train(
    recorded: Recorded,
    *,
    seed: int = 0,
    settings: OfflineSettings | None = None,
    passes: Passes = NUMPY,
    advance: Callable[[int], object] = lambda _: None,
) -> Trained:
    """Train Fusion and Decider on a log. The same seed gives the same policy.

    Args:
        recorded: the log, in the order the queries came.
        seed: of everything random.
        settings: how; None: the defaults.
        passes: which engine computes.
        advance: called with the units of progress made.
    """
    settings = settings or OfflineSettings()
    rng = np.random.default_rng(seed)
    size, n = len(recorded), len(recorded.names)
    everyone = np.arange(size)
    held = everyone[size - int(size * settings.validation) :]
    rows = everyone[: size - len(held)]
    ids = np.arange(1, n + 1)
    _, prior = long_run(recorded, rows)
    views = Views(recorded, prior, ids, window=settings.window, probed=settings.probed, rng=rng)
    everybody = float(recorded.usd[rows].sum() / len(rows))

    fusion, trust = _fusion(recorded, views, rows, held, settings, rng, passes, advance)
    learner = _Learner(views, fusion, everybody, settings, passes, advance)
    decider = look_ahead(
        _fresh(n, rng),
        fusion,
        views,
        rows,
        steps=settings.lookahead_steps,
        rate=settings.lookahead_rate,
        batch=2 * settings.queries,
        rng=rng,
        passes=passes,
        advance=advance,
    )
    decider, score, curve = learner.best(decider, rows, held, rng)
    fusion, decider = learner.finished(decider, everyone, rng)
    return Trained(decider, fusion, _experience(recorded), everybody, trust, curve, score)


def _fresh(n: int, rng: np.random.Generator) -> DeciderNet:
    """A net whose endpoints differ from the start."""
    net = DeciderNet.initial(rng, vocabulary=n)
    names = rng.standard_normal(net.names.shape).astype(np.float32)
    names[0] = 0
    return replace(net, names=names)


def _fusion(
    recorded: Recorded,
    views: Views,
    rows: I64,
    held: I64,
    settings: OfflineSettings,
    rng: np.random.Generator,
    passes: Passes,
    advance: Callable[[int], object],
) -> tuple[FusionNet, float]:
    """The Fusion over random sets, and the share of what it learned that does best on the held-out queries."""
    start = grown(cold_fusion(), len(recorded.names), rng)
    learned = fit(
        start,
        views.at(0, rows),
        random_sets(recorded.usable[rows]),
        epochs=settings.fusion_epochs,
        rate=settings.fusion_rate,
        rng=rng,
        passes=passes,
        advance=advance,
    )
    if not len(held):
        return learned, 1.0
    seen = views.at(0, held)
    sets = [random_sets(recorded.usable[held], everyone=0)(np.arange(len(held)), rng) for _ in range(4)]

    def loss(trust: float) -> float:
        net = tempered(learned, start, trust)
        return float(np.mean([log_loss(net, seen, *asked)[0] for asked in sets]))

    trust = min(_TRUST, key=loss)
    return tempered(learned, start, trust), trust


@dataclass(frozen=True, slots=True)
class _Learner:
    """The policy gradient, and what it needs."""

    views: Views
    fusion: FusionNet
    everybody: float
    settings: OfflineSettings
    passes: Passes
    advance: Callable[[int], object]

    def best(
        self, decider: DeciderNet, rows: I64, held: I64, rng: np.random.Generator
    ) -> tuple[DeciderNet, float, tuple[Point, ...]]:
        """Learn to decide; the net that did best on the held-out queries, its score and its curve there."""
        settings, moments = self.settings, Moments.zero(parameters(decider))
        found = []
        for start in range(0, settings.iterations, settings.renew):
            decider, moments = self._improved(decider, moments, rows, start, settings.iterations, 1.0, rng)
            self.views.renew(decider, self.fusion, self.everybody, settings.rounds, rng)
            curve = self.curve(decider, held if len(held) else rows)
            found.append((decider, _score(curve), curve))
        return max(found, key=lambda one: one[1])

    def finished(self, decider: DeciderNet, rows: I64, rng: np.random.Generator) -> tuple[FusionNet, DeciderNet]:
        """Both nets after some more learning from all queries."""
        settings = self.settings
        fusion = self.fusion
        if settings.finish_epochs:
            masks = self.views.masks
            fusion = fit(
                fusion,
                self.views.at(len(PRICES) // 2, rows),
                lambda at, rng: _one_of(masks, rows[at], rng),
                epochs=settings.finish_epochs,
                rate=settings.fusion_rate / 6,
                rng=rng,
                passes=self.passes,
            )
        learner = replace(self, fusion=fusion)
        moments = Moments.zero(parameters(decider))
        return fusion, learner._improved(decider, moments, rows, 0, settings.finish, 0.3, rng, settings.finish)[0]

    def _improved(
        self,
        decider: DeciderNet,
        moments: Moments,
        rows: I64,
        start: int,
        total: int,
        share: float,
        rng: np.random.Generator,
        steps: int | None = None,
    ) -> tuple[DeciderNet, Moments]:
        """Some steps of the policy gradient, of ``total`` along which the rate rises and then falls."""
        settings = self.settings
        adam = Adam(parameters(decider), moments, learning_rate=0.0, max_norm=1.0)
        for step in range(start, start + min(steps or settings.renew, total - start)):
            warm = min(1.0, (step + 1) / 10)
            adam.learning_rate = (
                settings.decider_rate * share * warm * (0.1 + 0.45 * (1 + np.cos(np.pi * step / total)))
            )
            adam.step(self._gradients(decider, rng.choice(rows, min(settings.queries, len(rows)), replace=False), rng))
            decider = replace(decider, **adam.parameters)
            self.advance(1)
        return decider, adam.moments

    def _gradients(self, decider: DeciderNet, rows: I64, rng: np.random.Generator) -> dict[str, NDArray[np.floating]]:
        """Of the mean reward of one batch, at one price of money, its sign turned."""
        view = int(rng.integers(len(PRICES)))
        price = PRICES[view] * 10 ** float(rng.uniform(-0.45, 0.45))
        played = self._roll(decider, view, rows, price, self.settings.samples, rng)
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

    def _roll(
        self, decider: DeciderNet, view: int, rows: I64, price: float, samples: int, rng: np.random.Generator | None
    ) -> Played:
        return roll(
            decider,
            self.fusion,
            self.views.at(view, rows),
            price_of_money=np.full(len(rows), price, np.float32),
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
            played = self._roll(decider, nearest(price), rows, price, 1, None)
            paid = float(played.shares.sum()) * self.everybody
            calls = float((played.first | played.later).sum(axis=1).mean())
            cost_ratio = paid / everything if everything else 0.0
            points.append(Point(price, float(played.worth.mean()), cost_ratio, calls))
        return tuple(points)


def _one_of(masks: list[Masks], rows: I64, rng: np.random.Generator) -> Masks:
    first, later = masks[int(rng.integers(len(masks)))]
    return first[rows], later[rows]


def _score(curve: tuple[Point, ...]) -> float:
    rewards = [
        (2 * point.accuracy - 1 - point.price_of_money * point.cost_ratio) / (1 + point.price_of_money)
        for point in curve
    ]
    return float(np.mean(rewards))


def _experience(recorded: Recorded) -> Experience:
    """The long run, and the last queries that have a text."""
    accuracy, prior = long_run(recorded, np.arange(len(recorded)))
    values = np.where(recorded.there & recorded.usable, recorded.value, np.nan).astype(np.float32)
    told = np.asarray(recorded.vectors.any(axis=1))
    usd = prior.usd.astype(np.float32)
    return Experience(recorded.names, accuracy, usd, recorded.vectors[told][-CAPACITY:], values[told][-CAPACITY:])
