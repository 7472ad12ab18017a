"""Trains as `focalroute.learn.offline.train.train` does, except for what a variant of the ablation changes.

Hidden columns are zero in everything that the networks see, in training and in measuring.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from examples.shipped_policy.training import cold_fusion
from focalroute.core.records import F32, I64
from focalroute.learn.adam import Adam, Moments
from focalroute.learn.backend import Backend
from focalroute.learn.export import decider_net, fusion_net
from focalroute.learn.losses import likelihood
from focalroute.learn.mappo import gae
from focalroute.learn.nets import (
    STATE,
    CriticNet,
    DeciderNet,
    Floats,
    FusionNet,
    Gradients,
    Vjp,
    between,
    critic_pass,
    decider_pass,
    fusion_pass,
    parameters,
    sharpened,
    values,
)
from focalroute.learn.offline import RecordedLog
from focalroute.learn.offline.lookahead import look_ahead
from focalroute.learn.offline.prior_stats import LongRun
from focalroute.learn.offline.reinforce import OfflineSettings, PolicyGradient, improve, score_of
from focalroute.learn.offline.rollout import LogView, Rollout
from focalroute.learn.offline.stacking import fit, log_loss, random_sets
from focalroute.learn.offline.train import _SHARPER, _drawn_from
from focalroute.learn.offline.views import COST_WEIGHTS, Masks, Views, draw_cost_weight, long_run, random_masks
from focalroute.learn.trajectory import grown, neutral, unlimited
from focalroute.observe import layout
from focalroute.observe.observation import OPEN_CHOICES, vote_weights
from focalroute.policy.bundle import cold
from tests.benchmarks.trunk import branching, trunk_pass
from tests.by_hand import linear_decider

__all__ = ["Policy", "Variant", "Windows", "train"]

_ENDPOINT, _MEMBER = layout.slices(layout.ENDPOINT), layout.slices(layout.MEMBER)
_TRUST = (1.0, 0.75, 0.5, 0.25, 0.0)
_CRITIC_STEPS, _CRITIC_BATCH, _CRITIC_RATE = 8, 1024, 5e-3


@dataclass(frozen=True, slots=True)
class Variant:
    """What differs from the default training.

    Attributes:
        decider: hidden columns of `layout.ENDPOINT`.
        fusion: hidden columns of `layout.MEMBER`.
        weighed_by: the accuracy that weighs a vote in the layout's "evidence".
        named: whether networks can tell the endpoints apart.
        settings: the settings of training.
        fresh: whether a Decider trained by lookahead on this log is tried as a start beside the shipped one; training
            goes on from the better one.
        sharper: the factor by which the logits of both starts are multiplied.
        scratch: whether training starts from hand-set weights, not from the shipped networks.
        looks_ahead: whether, from scratch, the Decider is first trained by lookahead.
        improves: whether the policy gradient follows.
        critic: whether the baseline is a central critic, not the other samples of the same query.
        one_sample: whether the policy gradient plays more queries once each, instead of each query several times.
        full_windows: whether windows in training hold the outcomes of all endpoints, not only of those asked.
        tempers: whether the trust in the trained Fusion is chosen; else it is 1.
        branches: whether the Decider is that of `tests.benchmarks.trunk`.
    """

    decider: frozenset[str] = frozenset()
    fusion: frozenset[str] = frozenset()
    weighed_by: Literal["relative_skill", "accuracy", "level"] = "relative_skill"
    named: bool = False
    settings: OfflineSettings = OfflineSettings()  # noqa: RUF009 - frozen
    fresh: bool = True
    sharper: float = _SHARPER
    scratch: bool = False
    looks_ahead: bool = True
    improves: bool = True
    critic: bool = False
    one_sample: bool = False
    full_windows: bool = False
    tempers: bool = True
    branches: bool = False

    @property
    def passes(self) -> Backend:
        """The networks, with the hidden columns of the Decider's input zeroed."""
        through = trunk_pass if self.branches else decider_pass
        columns = [_ENDPOINT[name].start for name in sorted(self.decider)]

        def decider(net: DeciderNet, context: Floats, endpoints: Floats, ids: I64) -> tuple[Floats, Vjp]:
            if columns:
                endpoints = endpoints.copy()
                endpoints[..., columns] = 0
            return through(net, context, endpoints, ids)

        return Backend(decider, fusion_pass, critic_pass)

    def hidden(self, seen: LogView) -> LogView:
        """Return the view with the hidden columns of the Fusion's input zeroed."""
        if not self.fusion and self.weighed_by == "relative_skill":
            return seen
        features = seen.features.copy()
        if self.weighed_by != "relative_skill":
            above = seen.columns[..., _ENDPOINT["accuracy"].start] / 4 * (self.weighed_by == "accuracy")
            choices = np.where(seen.recorded.closed, seen.recorded.size, OPEN_CHOICES)[:, None]
            weights = vote_weights((seen.level / 2 + 0.5)[:, None] + above, choices)[:, None, :]
            features[..., _MEMBER["evidence"].start] = features[..., _MEMBER["vote"].start] * weights
        for name in self.fusion:
            features[..., _MEMBER[name]] = 0
        return replace(seen, features=features)


@dataclass(frozen=True, slots=True)
class Policy:
    """Two networks."""

    decider: DeciderNet
    fusion: FusionNet


class Windows(Views):
    """The views of a variant.

    Args:
        recorded: the log.
        prior: the long-run accuracies.
        variant: the variant.
        masks: the endpoints asked, for each view.
        since: the first query whose windows are renewed.
        full: whether windows hold the outcomes of all endpoints.
    """

    def __init__(
        self,
        recorded: RecordedLog,
        prior: LongRun,
        variant: Variant,
        masks: Sequence[Masks],
        *,
        since: int = 0,
        full: bool = False,
    ) -> None:
        self._variant, self._full = variant, full
        ids = np.arange(1, len(recorded.names) + 1) * variant.named
        settings = variant.settings
        super().__init__(
            recorded, prior, ids, masks, window=settings.window, probed=settings.probed, passes=variant.passes
        )
        self._rows = self._rows[since:]

    def at(self, view: int, rows: I64) -> LogView:
        """Return what the networks see before these queries, in this view."""
        return self._variant.hidden(super().at(view, rows))

    def set_masks(self, masks: Sequence[Masks]) -> None:
        """Compute the windows from the endpoints asked, or from all."""
        if not self._full:
            super().set_masks(masks)
            return
        super().set_masks([(np.ones_like(first), np.zeros_like(first)) for first, _ in masks])
        there = self.recorded.there
        self.masks = [(first & there, later & there) for first, later in masks]


def train(recorded: RecordedLog, variant: Variant, seed: int) -> tuple[Policy, Policy]:
    """Train on one thread; return the policy before, and after, it learned from the validation part."""
    with threadpool_limits(1, "blas"):
        return _train(recorded, variant, seed)


def _train(recorded: RecordedLog, variant: Variant, seed: int) -> tuple[Policy, Policy]:
    settings, rng = variant.settings, np.random.default_rng(seed)
    everyone = np.arange(len(recorded))
    held = everyone[len(recorded) - int(len(recorded) * settings.validation) :]
    rows = everyone[: len(recorded) - len(held)]
    _, prior = long_run(recorded, rows)
    windows = Windows(recorded, prior, variant, random_masks(recorded, rng), full=variant.full_windows)
    ask_all_usd = float(recorded.usd[rows].sum() / len(rows))
    fusion = _fusion(variant, windows, rows, held, rng)
    learner = _learner(variant, windows, rows, fusion, ask_all_usd, seed)
    decider, score = _start(variant, learner, held, rng)
    if variant.improves:
        decider = _improved(learner, decider, score, held, rng)
    finished = fit(
        fusion,
        windows.at(len(COST_WEIGHTS) // 2, everyone),
        _drawn_from(windows.masks),
        epochs=settings.finish_epochs,
        rate=settings.fusion_rate / 6,
        rng=rng,
    )
    last = decider
    if variant.improves:
        steps = range(settings.finish)
        none = Moments.zero(parameters(decider))
        learner = replace(learner, fusion=finished, rows=everyone)
        last, _ = improve([learner], decider, none, steps=steps, total=len(steps), share=0.3, rng=rng)
    if not variant.named:
        n = len(recorded.names)
        decider, fusion = neutral(decider, n), neutral(fusion, n)
        last, finished = neutral(last, n), neutral(finished, n)
    return Policy(unlimited(decider), fusion), Policy(unlimited(last), finished)


def _improved(
    learner: PolicyGradient, decider: DeciderNet, score: float, held: I64, rng: np.random.Generator
) -> DeciderNet:
    """Train by policy gradient; return the Decider that does best on the held-out queries, the start included."""
    settings, moments = learner.settings, Moments.zero(parameters(decider))
    found = [(decider, score)]
    for start in range(0, settings.iterations, settings.renew):
        steps = range(start, min(start + settings.renew, settings.iterations))
        decider, moments = improve(
            [learner], decider, moments, steps=steps, total=settings.iterations, share=1.0, rng=rng
        )
        found.append((decider, _measured(learner, decider, held, rng)))
    return max(found, key=lambda one: one[1])[0]


def _measured(learner: PolicyGradient, decider: DeciderNet, held: I64, rng: np.random.Generator) -> float:
    """Score a Decider on the held-out queries, with windows of what it asks itself."""
    learner.views.renew(decider, learner.fusion, learner.ask_all_usd, learner.settings.rounds, rng)
    return score_of(learner.curve(decider, held))


def _fusion(variant: Variant, windows: Windows, rows: I64, held: I64, rng: np.random.Generator) -> FusionNet:
    settings, usable = variant.settings, windows.recorded.usable
    start = cold_fusion() if variant.scratch else fusion_net(cold().fusion_onnx)
    start = grown(start, len(windows.recorded.names), rng) if variant.named else start
    learned = fit(
        start,
        windows.at(0, rows),
        random_sets(usable[rows]),
        epochs=settings.fusion_epochs,
        rate=settings.fusion_rate,
        rng=rng,
    )
    seen = windows.at(0, held)
    sets = [random_sets(usable[held], everyone=0)(np.arange(len(held)), rng) for _ in range(4)]

    def loss(trust: float) -> float:
        net = between(start, learned, trust)
        return float(np.mean([log_loss(net, seen, *asked)[0] for asked in sets]))

    return between(start, learned, min(_TRUST, key=loss)) if variant.tempers else learned


def _start(variant: Variant, learner: PolicyGradient, held: I64, rng: np.random.Generator) -> tuple[DeciderNet, float]:
    """Return the Decider that the policy gradient starts from, and its score on the held-out queries."""
    if variant.scratch:
        fresh = _fresh(variant, learner, rng)
        return fresh, _measured(learner, fresh, held, rng)
    shipped = sharpened(decider_net(cold().decider_onnx), variant.sharper)
    shipped = grown(shipped, len(learner.views.recorded.names), rng) if variant.named else shipped
    score = _measured(learner, shipped, held, rng)
    if not variant.fresh:
        return shipped, score
    fresh, masks = _fresh(variant, learner, rng), tuple(learner.views.masks)
    other = _measured(learner, fresh, held, rng)
    if other > score:
        return fresh, other
    learner.views.set_masks(masks)
    return shipped, score


def _fresh(variant: Variant, learner: PolicyGradient, rng: np.random.Generator) -> DeciderNet:
    """Make a Decider from this log alone."""
    n = len(learner.views.recorded.names)
    fresh = DeciderNet.initial(rng, vocabulary=n if variant.named else 0)
    if variant.named:  # the endpoints' embeddings differ from the start
        names = rng.standard_normal(fresh.names.shape).astype(np.float32)
        names[0] = 0
        fresh = replace(fresh, names=names)
    if not variant.looks_ahead:
        return replace(linear_decider(), names=fresh.names)
    looking = look_ahead(
        branching(fresh, n, rng) if variant.branches else fresh,
        learner.fusion,
        [(learner.views, learner.rows)],
        steps=variant.settings.lookahead_steps,
        rate=variant.settings.lookahead_rate,
        batch=2 * variant.settings.queries,
        rng=rng,
        passes=variant.passes,
        advance=_ignore,
    )
    return sharpened(looking, variant.sharper)


def _learner(
    variant: Variant, windows: Windows, rows: I64, fusion: FusionNet, ask_all_usd: float, seed: int
) -> PolicyGradient:
    settings = variant.settings
    if variant.one_sample:
        settings = replace(settings, queries=settings.queries * settings.samples, samples=1)
    learner = PolicyGradient(windows, rows, fusion, ask_all_usd, settings, variant.passes, _ignore)
    if not variant.critic:
        return learner
    parts = {field.name: getattr(learner, field.name) for field in fields(learner)}
    return _Criticised(**parts, critic=_Critic(seed))


def _ignore(_: int) -> None:
    """No progress is shown."""


class _Critic:
    """A central critic that learns during the policy gradient."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.net = CriticNet.initial(self.rng)
        parts = parameters(self.net)
        self._adam = Adam(parts, Moments.zero(parts), learning_rate=_CRITIC_RATE, max_norm=1.0)

    def learn(self, states: F32, returns: F32) -> None:
        """Take some steps of least squares."""
        for _ in range(_CRITIC_STEPS):
            at = self.rng.integers(len(states), size=min(_CRITIC_BATCH, len(states)))
            found, vjp = critic_pass(self.net, states[at])
            self._adam.step(vjp((found - returns[at]) / np.float32(len(at))))
            self.net = replace(self.net, **self._adam.parameters)


@dataclass(frozen=True, slots=True)
class _Criticised(PolicyGradient):
    """The policy gradient with generalised advantages from a central critic."""

    critic: _Critic

    def gradients(self, decider: DeciderNet, rng: np.random.Generator) -> dict[str, NDArray[np.floating]]:
        rows = rng.choice(self.rows, min(self.settings.queries, len(self.rows)), replace=False)
        view, price = draw_cost_weight(rng)
        played = self.roll(decider, view, rows, price, self.settings.samples, rng)
        states, rewards, taken = _episodes(played, price)
        before = np.where(taken, values(self.critic.net, states), 0).astype(np.float32)
        advantages = gae(rewards, before)
        self.critic.learn(states[taken], (advantages + before)[taken])
        scale = max(float(advantages[taken].std()), 1e-6)
        length = taken.sum(axis=1)
        total: Gradients = {}
        for number, step in enumerate(played.steps):
            distribution = likelihood(step.logits, step.heads)
            # centred, as a critic that has learned little may be off by the same amount everywhere
            column = taken.shape[1] - length[step.rows] + number
            good = (advantages[step.rows, column] - advantages[taken].mean()) / scale
            d = -(good[:, None] * distribution.d_log_pi + self.settings.entropy * distribution.d_entropy) / len(rewards)
            for name, gradient in step.vjp(d.astype(step.logits.dtype)).items():
                total[name] = total[name] + gradient if name in total else gradient
        return total


def _episodes(played: Rollout, price: float) -> tuple[F32, F32, NDArray[np.bool_]]:
    """Return states (R, T, Ds), rewards (R, T) and which steps were taken (R, T); last steps are in the last column."""
    length = np.zeros(len(played.answer), np.int64)
    for step in played.steps:
        length[step.rows] += 1
    shape = (len(length), len(played.steps))
    states, rewards = np.zeros((*shape, STATE), np.float32), np.zeros(shape, np.float32)
    taken = np.arange(shape[1]) >= shape[1] - length[:, None]
    for number, step in enumerate(played.steps):
        column = shape[1] - length[step.rows] + number
        state = np.concatenate([step.context, step.endpoints.mean(axis=1)], axis=1)
        states[step.rows, column, : state.shape[1]] = state
        rewards[step.rows, column] = -price * played.shares[number, step.rows]
    rewards[:, -1] += 2 * played.worth - 1
    return states, rewards, taken
