"""Learning offline (the paper's Algorithm 1): from recorded answers to a policy. Read `train` from top to bottom.

Both nets start from the policy that is shipped (see `examples.shipped_policy.training`).

1. The Fusion, by cross-entropy over random sets of members; how far it moves towards what it learned is chosen on the
   validation part, since it may have learned the topics rather than the members.
2. A second Decider to start from, a fresh one that looks one step ahead on this log alone: the better of the two on the
   validation part goes on. The shipped one is hard to leave where a pool is unlike the made-up ones it learned from.
   Both leave less to chance than what is shipped: what their pool is like is in the log.
3. The Decider: the policy gradient over whole queries, several samples a query, each the baseline of the others; lambda
   is drawn anew for every batch, so that one policy serves every price. What does best on the validation part is kept.
4. Both again, briefly, with the validation part: the Fusion on the sets that are really asked.
5. A central critic of the policy that came out, for online updates to go on from.

The nets do not learn who is who: names held on to who was best in the training part, which cost up to a point where
topics drift (docs/results/lessons.md). What an endpoint is like they see in its long-run accuracy and cost, its
relative skill and its price. Online updates may give names a meaning of their own.

The paper trains the Decider first, on the interim plurality answer. Here the Fusion comes first: what another member is
worth depends on how its reply is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from focalroute.learn.adam import Moments
from focalroute.learn.backend import NUMPY, Backend
from focalroute.learn.critic import CriticNet
from focalroute.learn.export import decider_net, fusion_net
from focalroute.learn.nets import DeciderNet, FusionNet, between, parameters, sharpened
from focalroute.learn.offline.lookahead import look_ahead
from focalroute.learn.offline.prior_stats import book, relative_usd
from focalroute.learn.offline.recorded import I64, RecordedLog
from focalroute.learn.offline.reinforce import (
    OfflineSettings,
    PolicyGradient,
    ValidationPoint,
    fit_critic,
    improved,
    score_of,
)
from focalroute.learn.offline.stacking import fit, log_loss, random_sets
from focalroute.learn.offline.views import PRICES, Masks, Views, long_run, random_masks
from focalroute.learn.trajectory import neutral, unlimited
from focalroute.observe.experience import Experience
from focalroute.observe.memory import spread
from focalroute.policy import bundle

#: How much larger the logits of both starts are made: the shipped policy has to explore a pool that it does not know,
#: and this one does not. The policy gradient's own steps are too small to take that chance away again.
_SHARPER = 3.0
_TRUST = (1.0, 0.75, 0.5, 0.25, 0.0)


@dataclass(frozen=True, slots=True)
class Trained:
    """The result of training.

    Attributes:
        seed: of everything random.
        decider: the net.
        fusion: the net.
        critic: the net.
        experience: what serving goes on from.
        usd_per_query: C, mean USD of asking everybody.
        trust: share of the Fusion's learned part.
        curve: the policy on the validation part, before it learned from that.
        score: mean over prices of the reward there, (u - lambda c / C) / (1 + lambda).
    """

    seed: int
    decider: DeciderNet
    fusion: FusionNet
    critic: CriticNet
    experience: Experience
    usd_per_query: float
    trust: float
    curve: tuple[ValidationPoint, ...]
    score: float


def train(
    recorded: RecordedLog,
    *,
    seed: int = 0,
    settings: OfflineSettings | None = None,
    passes: Backend = NUMPY,
    advance: Callable[[int], object] = lambda _: None,
) -> Trained:
    """Train Fusion and Decider on a log. The same seed gives the same policy.

    Args:
        recorded: the log, in the order the queries came.
        seed: of everything random.
        settings: how; None: the defaults.
        passes: which engine computes.
        advance: called with the units of progress made, `OfflineSettings.steps` in all.
    """
    with threadpool_limits(1, "blas"):  # two threads on matrices this small take twice as long
        rng, shipped = np.random.default_rng(seed), bundle.cold()
        masks = random_masks(recorded, rng)
        training = _training(recorded, masks, settings or OfflineSettings(), passes, advance)
        fusion, trust = _fused(training, fusion_net(shipped.fusion_onnx), rng)
        start = _start(training, sharpened(decider_net(shipped.decider_onnx), _SHARPER), fusion, rng)
        best = _best(training, start, fusion, rng)
        decider, fusion = _finished(training, best.decider, fusion, rng)
        learner = training.gradient(fusion, training.everyone)
        critic = fit_critic(CriticNet.initial(np.random.default_rng(seed)), learner, decider, rng)
    return Trained(
        seed=seed,
        decider=unlimited(neutral(decider, len(recorded.names))),
        fusion=neutral(fusion, len(recorded.names)),
        critic=critic,
        experience=_experience(recorded),
        usd_per_query=training.everybody,
        trust=trust,
        curve=best.curve,
        score=best.score,
    )


@dataclass(frozen=True, slots=True)
class _Measured:
    """A Decider, and what it did on the validation part."""

    decider: DeciderNet
    curve: tuple[ValidationPoint, ...]

    @property
    def score(self) -> float:
        """Return what that is worth."""
        return score_of(self.curve)


@dataclass(frozen=True, slots=True)
class _Training:
    """The state that all phases share.

    Attributes:
        rows: the queries to learn from; ``held``: the validation part, after them.
        everybody: C, mean USD of asking all.
    """

    recorded: RecordedLog
    rows: I64
    held: I64
    views: Views
    everybody: float
    settings: OfflineSettings
    passes: Backend
    advance: Callable[[int], object]

    @property
    def judges(self) -> I64:
        """The queries to choose by: those held out, if there are any."""
        return self.held if len(self.held) else self.rows

    @property
    def everyone(self) -> I64:
        """All queries."""
        return np.arange(len(self.recorded))

    def gradient(self, fusion: FusionNet, rows: I64) -> PolicyGradient:
        """Return the Decider's batch beside this Fusion."""
        return PolicyGradient(self.views, rows, fusion, self.everybody, self.settings, self.passes, self.advance)

    def measured(self, decider: DeciderNet, fusion: FusionNet, rng: np.random.Generator) -> _Measured:
        """Measure a Decider on the validation queries, in windows of what it asks, which stay."""
        self.views.renew(decider, fusion, self.everybody, self.settings.rounds, rng)
        return _Measured(decider, self.gradient(fusion, self.rows).curve(decider, self.judges))


def _training(
    recorded: RecordedLog,
    masks: Sequence[Masks],
    settings: OfflineSettings,
    passes: Backend,
    advance: Callable[[int], object],
) -> _Training:
    size = len(recorded)
    everyone = np.arange(size)
    held = everyone[size - int(size * settings.validation) :]
    rows = everyone[: size - len(held)]
    _, prior = long_run(recorded, rows)
    ids = np.zeros(len(recorded.names), np.int64)
    views = Views(recorded, prior, ids, masks, window=settings.window, probed=settings.probed)
    everybody = float(recorded.usd[rows].sum() / len(rows))
    return _Training(recorded, rows, held, views, everybody, settings, passes, advance)


def _fused(training: _Training, start: FusionNet, rng: np.random.Generator) -> tuple[FusionNet, float]:
    """The Fusion over random sets, as far towards what it learned as does best on the held-out queries; how far."""
    recorded, views, held, settings = training.recorded, training.views, training.held, training.settings
    learned = fit(
        start,
        views.at(0, training.rows),
        random_sets(recorded.usable[training.rows]),
        epochs=settings.fusion_epochs,
        rate=settings.fusion_rate,
        rng=rng,
        passes=training.passes,
        advance=training.advance,
    )
    if not len(held):
        return learned, 1.0
    seen = views.at(0, held)
    sets = [random_sets(recorded.usable[held], everyone=0)(np.arange(len(held)), rng) for _ in range(4)]

    def loss(trust: float) -> float:
        net = between(start, learned, trust)
        return float(np.mean([log_loss(net, seen, *asked)[0] for asked in sets]))

    trust = min(_TRUST, key=loss)
    return between(start, learned, trust), trust


def _start(training: _Training, shipped: DeciderNet, fusion: FusionNet, rng: np.random.Generator) -> _Measured:
    """The shipped Decider, or one that learned to look ahead on this log alone, if it is better."""
    settings = training.settings
    first = training.measured(shipped, fusion, rng)
    shipped_masks = tuple(training.views.masks)
    looking = look_ahead(
        DeciderNet.initial(rng),
        fusion,
        [(training.views, training.rows)],
        steps=settings.lookahead_steps,
        rate=settings.lookahead_rate,
        batch=2 * settings.queries,
        rng=rng,
        passes=training.passes,
        advance=training.advance,
    )
    second = training.measured(sharpened(looking, _SHARPER), fusion, rng)
    if second.score > first.score:
        return second
    training.views.see(shipped_masks)
    return first


def _best(training: _Training, start: _Measured, fusion: FusionNet, rng: np.random.Generator) -> _Measured:
    """The best Decider on the way of the policy gradient, measured whenever the windows are renewed."""
    settings = training.settings
    learner = training.gradient(fusion, training.rows)
    best, decider, moments = start, start.decider, Moments.zero(parameters(start.decider))
    for done in range(0, settings.iterations, settings.renew):
        decider, moments = improved(
            [learner],
            decider,
            moments,
            steps=range(done, min(done + settings.renew, settings.iterations)),
            total=settings.iterations,
            share=1.0,
            rng=rng,
        )
        found = training.measured(decider, fusion, rng)
        if found.score > best.score:
            best = found
    return best


def _finished(
    training: _Training, decider: DeciderNet, fusion: FusionNet, rng: np.random.Generator
) -> tuple[DeciderNet, FusionNet]:
    """Both nets after some more learning from all queries."""
    settings = training.settings
    if settings.finish_epochs:
        fusion = fit(
            fusion,
            training.views.at(len(PRICES) // 2, training.everyone),
            _one_of(training.views.masks),
            epochs=settings.finish_epochs,
            rate=settings.fusion_rate / 6,
            rng=rng,
            passes=training.passes,
        )
    decider, _ = improved(
        [training.gradient(fusion, training.everyone)],
        decider,
        Moments.zero(parameters(decider)),
        steps=range(settings.finish),
        total=settings.finish,
        share=0.3,
        rng=rng,
    )
    return decider, fusion


def _one_of(masks: Sequence[Masks]) -> Callable[[I64, np.random.Generator], Masks]:
    """The sets that were asked in a view chosen by chance."""

    def draw(rows: I64, rng: np.random.Generator) -> Masks:
        first, later = masks[int(rng.integers(len(masks)))]
        return first[rows], later[rows]

    return draw


def _experience(recorded: RecordedLog) -> Experience:
    """The long run, and queries that have a text."""
    accuracy, prior = long_run(recorded, np.arange(len(recorded)))
    values = np.where(recorded.replied, recorded.value, np.nan).astype(np.float32)
    told = np.asarray(recorded.vectors.any(axis=1))
    usd = np.where(recorded.there.any(axis=0), prior.usd, np.nan).astype(np.float32)  # never asked is not free
    some = np.flatnonzero(told)[spread(int(told.sum()))]
    vectors, costs = recorded.vectors[some], relative_usd(recorded)[some]
    return Experience(recorded.names, accuracy, usd, vectors, values[some], costs, book(recorded), recorded.embedder)
