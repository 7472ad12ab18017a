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
from dataclasses import dataclass, replace

import numpy as np
from threadpoolctl import threadpool_limits

from focalroute.core.records import I64
from focalroute.learn.adam import Moments
from focalroute.learn.backend import NUMPY, Backend
from focalroute.learn.export import decider_net, fusion_net
from focalroute.learn.nets import CriticNet, DeciderNet, FusionNet, between, parameters, sharpened
from focalroute.learn.offline.checkpoint import Progress
from focalroute.learn.offline.lookahead import look_ahead
from focalroute.learn.offline.prior_stats import book, relative_usd
from focalroute.learn.offline.recorded import RecordedLog
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
    progress: Progress | None = None,
    keep: Callable[[Progress], object] = lambda _: None,
) -> Trained:
    """Train Fusion and Decider on a log. The same seed gives the same policy.

    Args:
        recorded: the log, in the order the queries came.
        seed: of everything random.
        settings: how; None: the defaults.
        passes: which engine computes.
        advance: called with the units of progress made, `OfflineSettings.steps` in all.
        progress: what to go on from, of the same log, seed and settings; the policy is the same as in one go.
        keep: called with the progress after every phase, and whenever the windows are renewed.
    """
    settings = settings or OfflineSettings()
    with threadpool_limits(1, "blas"):  # two threads on matrices this small take twice as long
        rng = np.random.default_rng(seed)
        if progress is None:
            progress = _begun(recorded, seed, rng)
        else:
            rng.bit_generator.state = progress.rng
            advance(_done(progress, settings))
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
        usd_per_query=training.everybody,
        trust=progress.trust,
        curve=progress.curve,
        score=progress.score,
    )


def _begun(recorded: RecordedLog, seed: int, rng: np.random.Generator) -> Progress:
    """Nothing learned yet: the nets are those that are shipped, and random members were asked."""
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


def _done(progress: Progress, settings: OfflineSettings) -> int:
    """The units of progress that were made."""
    improving = (settings.iterations, settings.finish, settings.critic_steps)
    units = (settings.fusion_epochs, 0, settings.lookahead_steps, *improving)
    whole = units[: progress.phase]
    return sum(whole) + (progress.done if progress.phase == _PHASES.index(_improve) else 0)


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

    def measured(self, decider: DeciderNet, fusion: FusionNet, rng: np.random.Generator) -> tuple[ValidationPoint, ...]:
        """Measure a Decider on the validation queries, in windows of what it asks, which stay."""
        self.views.renew(decider, fusion, self.everybody, self.settings.rounds, rng)
        return self.gradient(fusion, self.rows).curve(decider, self.judges)


def _training(
    recorded: RecordedLog,
    progress: Progress,
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
    views = Views(recorded, prior, ids, progress.masks, window=settings.window, probed=settings.probed)
    everybody = float(recorded.usd[rows].sum() / len(rows))
    return _Training(recorded, rows, held, views, everybody, settings, passes, advance)


def _fuse(training: _Training, progress: Progress, rng: np.random.Generator) -> Progress:
    """The Fusion over random sets, as far towards what it learned as does best on the held-out queries."""
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
    """The shipped Decider, in windows of what it asks: it stays unless a better one is found."""
    curve = training.measured(progress.decider, progress.fusion, rng)
    return replace(progress, phase=progress.phase + 1, curve=curve, score=score_of(curve))


def _look_ahead(training: _Training, progress: Progress, rng: np.random.Generator) -> Progress:
    """A Decider that learned to look ahead on this log alone, if it is better than the shipped one; else that one."""
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
    training.views.see(shipped_masks)
    return after


def _improve(training: _Training, progress: Progress, rng: np.random.Generator) -> Progress:
    """The Decider by the policy gradient, up to the next renewal of the windows; the best one so far is kept aside."""
    settings = training.settings
    learner = training.gradient(progress.fusion, training.rows)
    end = min(progress.done + settings.renew, settings.iterations)
    decider, moments = improved(
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
    """Both nets after some more learning from all queries, the Decider from where it was best."""
    settings, fusion = training.settings, progress.fusion
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
    decider, moments = improved(
        [training.gradient(fusion, training.everyone)],
        progress.best,
        Moments.zero(parameters(progress.best)),
        steps=range(settings.finish),
        total=settings.finish,
        share=0.3,
        rng=rng,
    )
    return replace(progress, phase=progress.phase + 1, fusion=fusion, decider=decider, moments=moments)


def _value(training: _Training, progress: Progress, rng: np.random.Generator) -> Progress:
    """The critic of the policy that came out."""
    learner = training.gradient(progress.fusion, training.everyone)
    critic = fit_critic(progress.critic, learner, progress.decider, rng)
    return replace(progress, phase=progress.phase + 1, critic=critic)


_PHASES = (_fuse, _measure, _look_ahead, _improve, _finish, _value)


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
