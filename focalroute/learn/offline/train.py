"""Learns offline (the paper's Algorithm 1): a policy from recorded answers. Read `train` from top to bottom.

Both nets start from the shipped policy (see `examples.shipped_policy.training`).

1. The Fusion learns by cross-entropy over random sets of members. How far it moves towards the learned weights is
   chosen on the validation part, since it may have learned the topics rather than the members.
2. The Decider gets a second start: a new one that looks one step ahead on this log alone. The better of the two on the
   validation part continues. Without it, the policy gradient hardly leaves the shipped one, even if the pool is unlike
   the synthetic ones. Both explore less than the shipped policy, as the log says what the pool is like.
3. The Decider learns by the policy gradient over whole queries. Each query has several samples, and the mean of the
   others is a sample's baseline; every batch draws its own lambda, so that one policy serves every cost weight. The
   best on the validation part is kept.
4. Both learn again, briefly, with the validation part: the Fusion on the sets that the policy asks.
5. A central critic of the resulting policy is fitted, for online updates to start from.

The nets do not learn names: with names they learned which endpoints were best in the training part, which cost up to 1
point where topics drift (docs/results/lessons.md). They know an endpoint by its long-run accuracy and cost, its
relative skill and its price. Online updates may learn names.

The paper trains the Decider first, on the interim plurality answer. Here the Fusion comes first, as the value of
another member depends on how its reply is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from threadpoolctl import threadpool_limits

from focalroute.core.records import I64
from focalroute.learn.adam import Moments
from focalroute.learn.backend import NUMPY, Backend
from focalroute.learn.export import decider_net, fusion_net
from focalroute.learn.nets import CriticNet, DeciderNet, FusionNet, between, parameters, sharpened
from focalroute.learn.offline import RecordedLog
from focalroute.learn.offline.checkpoint import Progress
from focalroute.learn.offline.lookahead import look_ahead
from focalroute.learn.offline.prior_stats import calibration_totals, confusion, relative_usd
from focalroute.learn.offline.reinforce import (
    OfflineSettings,
    PolicyGradient,
    ValidationPoint,
    fit_critic,
    improve,
    score_of,
)
from focalroute.learn.offline.stacking import fit, log_loss, random_sets
from focalroute.learn.offline.views import COST_WEIGHTS, Masks, Views, long_run, random_masks
from focalroute.learn.trajectory import neutral, unlimited
from focalroute.observe.experience import Experience
from focalroute.observe.memory import spread
from focalroute.policy import bundle

#: Factor on the logits of both starts. The shipped policy has to explore an unknown pool, a trained one does not, and
#: the policy gradient's steps are too small to remove that randomness.
_SHARPER = 3.0
_TRUST = (1.0, 0.75, 0.5, 0.25, 0.0)


@dataclass(frozen=True, slots=True)
class Trained:
    """The result of training.

    Attributes:
        seed: the random seed.
        decider: the net.
        fusion: the net.
        critic: the net.
        experience: for serving to start from.
        usd_per_query: C, mean USD of asking all.
        trust: share of the way from the shipped Fusion to the learned one.
        curve: the policy's results on the validation part, before it learned from that.
        score: their mean reward, see `score_of`.
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
    progress: Progress | None = None,
    keep: Callable[[Progress], object] = lambda _: None,
) -> Trained:
    """Train Fusion and Decider on a log. The same seed gives the same policy.

    Args:
        recorded: the log, in order of arrival.
        seed: the random seed.
        settings: None: the defaults.
        passes: the engine that runs the networks.
        advance: called with the units of progress made, `OfflineSettings.steps` in total.
        progress: the state to resume from, of the same log, seed and settings; the policy is the same as without the
            interruption.
        keep: called with the progress after every phase and every renewal of the windows.
    """
    settings = settings or OfflineSettings()
    with threadpool_limits(1, "blas"):  # two threads on matrices this small take twice as long
        rng = np.random.default_rng(seed)
        if progress is None:
            progress = _initial_progress(recorded, seed, rng)
        else:
            rng.bit_generator.state = progress.rng
            advance(_units_done(progress, settings))
        training = _training(recorded, progress, settings, passes, advance)
        while progress.phase < len(_PHASES):
            after = _PHASES[progress.phase](training, progress, rng)
            progress = replace(after, rng=rng.bit_generator.state, masks=tuple(training.views.masks))
            keep(progress)
    return Trained(
        seed=seed,
        decider=unlimited(neutral(progress.decider, len(recorded.names))),
        fusion=neutral(progress.fusion, len(recorded.names)),
        critic=progress.critic,
        experience=_experience(recorded),
        usd_per_query=training.ask_all_usd,
        trust=progress.trust,
        curve=progress.curve,
        score=progress.score,
    )


def _initial_progress(recorded: RecordedLog, seed: int, rng: np.random.Generator) -> Progress:
    """Return the state before training: the shipped nets, and random members asked."""
    masks = random_masks(recorded, rng)
    shipped = bundle.cold()
    decider = sharpened(decider_net(shipped.decider_onnx), _SHARPER)
    return Progress(
        phase=0,
        done=0,
        rng=rng.bit_generator.state,
        masks=masks,
        fusion=fusion_net(shipped.fusion_onnx),
        trust=1.0,
        decider=decider,
        moments=Moments.zero(parameters(decider)),
        best=decider,
        curve=(),
        score=-np.inf,
        critic=CriticNet.initial(np.random.default_rng(seed)),
    )


def _units_done(progress: Progress, settings: OfflineSettings) -> int:
    """Return the units of progress made."""
    improving = (settings.iterations, settings.finish, settings.critic_steps)
    units = (settings.fusion_epochs, 0, settings.lookahead_steps, *improving)
    whole = units[: progress.phase]
    return sum(whole) + (progress.done if progress.phase == _PHASES.index(_improve) else 0)


@dataclass(frozen=True, slots=True)
class _Training:
    """The data and settings that all phases share.

    Attributes:
        rows: the queries to learn from; ``held``: the validation part, after them.
        ask_all_usd: C, mean USD of asking all.
    """

    recorded: RecordedLog
    rows: I64
    held: I64
    views: Views
    ask_all_usd: float
    settings: OfflineSettings
    passes: Backend
    advance: Callable[[int], object]

    @property
    def selection_rows(self) -> I64:
        """The queries for model selection: those held out, if there are any, else all."""
        return self.held if len(self.held) else self.rows

    @property
    def all_rows(self) -> I64:
        """All queries."""
        return np.arange(len(self.recorded))

    def gradient(self, fusion: FusionNet, rows: I64) -> PolicyGradient:
        """Return the policy gradient with this Fusion."""
        return PolicyGradient(self.views, rows, fusion, self.ask_all_usd, self.settings, self.passes, self.advance)

    def measured(self, decider: DeciderNet, fusion: FusionNet, rng: np.random.Generator) -> tuple[ValidationPoint, ...]:
        """Measure a Decider on the validation queries, after renewing the windows with what it asks."""
        self.views.renew(decider, fusion, self.ask_all_usd, self.settings.rounds, rng)
        return self.gradient(fusion, self.rows).curve(decider, self.selection_rows)


def _training(
    recorded: RecordedLog,
    progress: Progress,
    settings: OfflineSettings,
    passes: Backend,
    advance: Callable[[int], object],
) -> _Training:
    size = len(recorded)
    all_rows = np.arange(size)
    held = all_rows[size - int(size * settings.validation) :]
    rows = all_rows[: size - len(held)]
    _, prior = long_run(recorded, rows)
    ids = np.zeros(len(recorded.names), np.int64)
    views = Views(recorded, prior, ids, progress.masks, window=settings.window, probed=settings.probed)
    ask_all_usd = float(recorded.usd[rows].sum() / len(rows))
    return _Training(recorded, rows, held, views, ask_all_usd, settings, passes, advance)


def _fuse(training: _Training, progress: Progress, rng: np.random.Generator) -> Progress:
    """Train the Fusion over random sets, and choose on the held-out queries how far to move towards the result."""
    recorded, views, held, settings = training.recorded, training.views, training.held, training.settings
    start = progress.fusion
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
        return replace(progress, phase=progress.phase + 1, fusion=learned)
    seen = views.at(0, held)
    sets = [random_sets(recorded.usable[held], everyone=0)(np.arange(len(held)), rng) for _ in range(4)]

    def loss(trust: float) -> float:
        net = between(start, learned, trust)
        return float(np.mean([log_loss(net, seen, *asked)[0] for asked in sets]))

    trust = min(_TRUST, key=loss)
    return replace(progress, phase=progress.phase + 1, fusion=between(start, learned, trust), trust=trust)


def _measure(training: _Training, progress: Progress, rng: np.random.Generator) -> Progress:
    """Measure the shipped Decider, which stays unless a better one is found."""
    curve = training.measured(progress.decider, progress.fusion, rng)
    return replace(progress, phase=progress.phase + 1, curve=curve, score=score_of(curve))


def _look_ahead(training: _Training, progress: Progress, rng: np.random.Generator) -> Progress:
    """Train a new Decider to look ahead on this log alone, and use it if it is better than the shipped one."""
    settings = training.settings
    looking = look_ahead(
        DeciderNet.initial(rng),
        progress.fusion,
        [(training.views, training.rows)],
        steps=settings.lookahead_steps,
        rate=settings.lookahead_rate,
        batch=2 * settings.queries,
        rng=rng,
        passes=training.passes,
        advance=training.advance,
    )
    fresh = sharpened(looking, _SHARPER)
    shipped_masks = tuple(training.views.masks)
    curve = training.measured(fresh, progress.fusion, rng)
    after = replace(progress, phase=progress.phase + 1)
    if score_of(curve) > progress.score:
        return replace(after, decider=fresh, best=fresh, curve=curve, score=score_of(curve))
    training.views.set_masks(shipped_masks)
    return after


def _improve(training: _Training, progress: Progress, rng: np.random.Generator) -> Progress:
    """Train the Decider by the policy gradient up to the next renewal of the windows, and keep the best one so far."""
    settings = training.settings
    learner = training.gradient(progress.fusion, training.rows)
    end = min(progress.done + settings.renew, settings.iterations)
    decider, moments = improve(
        [learner],
        progress.decider,
        progress.moments,
        steps=range(progress.done, end),
        total=settings.iterations,
        share=1.0,
        rng=rng,
    )
    curve = training.measured(decider, progress.fusion, rng)
    after = replace(progress, done=end, decider=decider, moments=moments)
    if score_of(curve) > progress.score:
        after = replace(after, best=decider, curve=curve, score=score_of(curve))
    return replace(after, phase=progress.phase + 1) if end == settings.iterations else after


def _finish(training: _Training, progress: Progress, rng: np.random.Generator) -> Progress:
    """Train both nets a little more on all queries, starting from the best Decider."""
    settings, fusion = training.settings, progress.fusion
    if settings.finish_epochs:
        fusion = fit(
            fusion,
            training.views.at(len(COST_WEIGHTS) // 2, training.all_rows),
            _drawn_from(training.views.masks),
            epochs=settings.finish_epochs,
            rate=settings.fusion_rate / 6,
            rng=rng,
            passes=training.passes,
        )
    decider, moments = improve(
        [training.gradient(fusion, training.all_rows)],
        progress.best,
        Moments.zero(parameters(progress.best)),
        steps=range(settings.finish),
        total=settings.finish,
        share=0.3,
        rng=rng,
    )
    return replace(progress, phase=progress.phase + 1, fusion=fusion, decider=decider, moments=moments)


def _fit_critic(training: _Training, progress: Progress, rng: np.random.Generator) -> Progress:
    """Fit the critic of the resulting policy."""
    learner = training.gradient(progress.fusion, training.all_rows)
    critic = fit_critic(progress.critic, learner, progress.decider, rng)
    return replace(progress, phase=progress.phase + 1, critic=critic)


_PHASES = (_fuse, _measure, _look_ahead, _improve, _finish, _fit_critic)


def _drawn_from(masks: Sequence[Masks]) -> Callable[[I64, np.random.Generator], Masks]:
    """Return a function that returns the sets asked in a view drawn at random."""

    def draw(rows: I64, rng: np.random.Generator) -> Masks:
        first, later = masks[int(rng.integers(len(masks)))]
        return first[rows], later[rows]

    return draw


def _experience(recorded: RecordedLog) -> Experience:
    """Return long-run accuracies and costs, and a memory of the queries that have a text."""
    accuracy, prior = long_run(recorded, np.arange(len(recorded)))
    values = np.where(recorded.replied, recorded.value, np.nan).astype(np.float32)
    has_text = np.asarray(recorded.vectors.any(axis=1))
    usd = np.where(recorded.there.any(axis=0), prior.usd, np.nan).astype(np.float32)  # without calls: unknown, not free
    some = np.flatnonzero(has_text)[spread(int(has_text.sum()))]
    vectors, costs = recorded.vectors[some], relative_usd(recorded)[some]
    return Experience(
        recorded.names,
        accuracy,
        usd,
        vectors,
        values[some],
        costs,
        calibration_totals(recorded),
        confusion(recorded),
        recorded.embedder,
    )
