"""DER's trainer (arXiv 2412.07448): routes of one endpoint a step until STOP, learned from by PPO.

An `Environment` plays the routes: recorded answers (`focalroute.evaluate.presets.der`), or live endpoints that are
shown the answer before (`focalroute.evaluate.live.environment`). They differ in what a policy sees and may do; the
reward, the updates and the choice of the best pass are here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from focalroute.core.records import F32
from focalroute.evaluate.presets.networks import Learned, Mlp, Ppo, categorical, draw, improve, regress
from focalroute.evaluate.presets.paper_rewards import der_bonus, der_reward
from focalroute.learn.mappo import gae

I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]
_PPO = Ppo(rate=0.003, entropy=0.1)


@dataclass(frozen=True, slots=True)
class DerSettings:
    """How DER is trained and served; the shape of the reward is published, its numbers here are ours.

    Attributes:
        max_steps: T_max, the most experts a query is put to.
        alpha: the price of cost, which is relative to asking everybody once.
        beta: the weight of the gain.
        threshold: p_0.
        bonus: for reaching it, and against missing it in T_max steps.
        level: whether P itself is paid at every step, as published, or the gain alone after the first.
        ppo: how to learn.
        hidden: units of the hidden layer.
        passes: over the training queries.
        batch: queries between two updates.
        validation: share of the training queries, the last ones, that the best pass is chosen on; 0: the last pass.
        look_every: passes between two looks at these.
    """

    max_steps: int = 3
    alpha: float = 0.1
    beta: float = 1.0
    threshold: float = 0.5
    bonus: float = 0.0
    level: bool = False
    ppo: Ppo = _PPO
    hidden: int = 32
    passes: int = 150
    batch: int = 256
    validation: float = 0.2
    look_every: int = 10


class Routes(Protocol):
    """B routes under way."""

    def state(self, step: int) -> F32:
        """What the policy sees before this step, (B, D)."""

    def offered(self, step: int) -> Bools:
        """What each route can do, (B, N + 1): ask an endpoint, or stop."""

    def ask(self, rows: I64, endpoints: I64) -> tuple[F32, F32]:
        """Let these routes ask one endpoint each: what their answers are worth now, NaN where unusable; their cost."""


class Environment(Protocol):
    """Training queries, and what endpoints answer to them.

    Attributes:
        shape: (queries, endpoints, width of the state).
        unit: the cost of asking everybody once, in the unit of `Routes.ask`.
    """

    @property
    def shape(self) -> tuple[int, int, int]:
        """See above."""

    @property
    def unit(self) -> float:
        """See above."""

    def start(self, rows: I64, max_steps: int, rng: np.random.Generator | None) -> Routes:
        """Routes for these queries; ``rng`` varies what is seen in training."""


@dataclass(frozen=True, slots=True)
class RouteBatch:
    """B routes of L steps, zeros after a route's end.

    Attributes:
        states: (B, L, D) what the policy saw.
        offered: (B, L, N + 1) what it could do.
        chosen: (B, L) what it did; N: it stopped.
        taken: (B, L) a step, not padding.
        rewards: (B, L).
        worth: (B,) P of the last answer.
        cost: (B,) what the route paid.
        calls: (B,).
    """

    states: F32
    offered: Bools
    chosen: I64
    taken: Bools
    rewards: F32
    worth: F32
    cost: F32
    calls: I64

    def score(self, settings: DerSettings, unit: float) -> float:
        """P of the last answer - alpha C of the whole route, the mean over the routes."""
        return float(self.worth.mean() - settings.alpha * self.cost.mean() / max(unit, 1e-12))


def train_routes(
    environment: Environment, settings: DerSettings, seed: int, *, advance: Callable[[int], object] = lambda _: None
) -> Mlp:
    """The policy after the best of some passes over the queries, in random order; heads 0..N-1 ask, head N stops.

    Args:
        advance: called with the passes made.
    """
    from threadpoolctl import threadpool_limits

    rng = np.random.default_rng(seed)
    (queries, n, width), unit = environment.shape, environment.unit
    policy = Learned.fresh(Mlp.initial(rng, width, n + 1, hidden=settings.hidden))
    value = Learned.fresh(Mlp.initial(rng, width, 1, hidden=settings.hidden))
    cut = queries - int(queries * settings.validation)
    training, validation = np.arange(cut), np.arange(cut, queries)
    best, net = -np.inf, policy.net
    with threadpool_limits(1, "blas"):  # two threads on matrices this small take longer
        for number in range(1, settings.passes + 1):
            for rows in np.array_split(rng.permutation(training), max(1, round(cut / settings.batch))):
                routes = roll(policy, environment, rows, settings, rng)
                policy, value = _update(routes, policy, value, settings.ppo, rng)
            if len(validation) and (number % settings.look_every == 0 or number == settings.passes):
                reached = roll(policy, environment, validation, settings, None).score(settings, unit)
                if reached > best:
                    best, net = reached, policy.net
            advance(1)
    return net if len(validation) else policy.net


def roll(
    policy: Callable[[F32], Any],
    environment: Environment,
    rows: I64,
    settings: DerSettings,
    rng: np.random.Generator | None,
) -> RouteBatch:
    """One route for each of these queries.

    Args:
        policy: logits (B, N + 1) of states (B, D).
        rng: draws the actions; None: the likeliest.
    """
    size, last = len(rows), settings.max_steps - 1
    routes = environment.start(rows, settings.max_steps, rng)
    stop, unit = environment.shape[1], max(environment.unit, 1e-12)
    alive = np.ones(size, np.bool_)
    quality, cost, calls = np.zeros(size, np.float32), np.zeros(size, np.float32), np.zeros(size, np.int64)
    steps = []
    for step in range(settings.max_steps):
        states, offered = routes.state(step), routes.offered(step)
        alive = alive & offered.any(axis=1)
        logits = policy(states)
        chosen = _choose(logits, offered, rng)
        asks = alive & (chosen < stop)
        asking = np.flatnonzero(asks)
        after, paid = quality.copy(), np.zeros(size, np.float32)
        worth, paid[asking] = routes.ask(asking, chosen[asking])
        after[asking] = np.where(np.isnan(worth), quality[asking], worth)
        exhausted = asks & (step == last)
        before = quality if step else None
        relative = paid / unit
        earned = der_reward(after, before, relative, alpha=settings.alpha, beta=settings.beta, level=settings.level)
        over = der_bonus(after, exhausted, threshold=settings.threshold, bonus=settings.bonus)
        rewards = np.where(asks, earned, 0) + np.where(alive & (~asks | exhausted), over, 0)
        steps.append((states, offered, chosen, alive, rewards.astype(np.float32)))
        quality, alive = after, asks & ~exhausted
        cost, calls = cost + paid, calls + asks
    states, offered, chosen, taken, rewards = (np.stack(column, axis=1) for column in zip(*steps, strict=True))
    return RouteBatch(states, offered, chosen, taken, rewards, quality, cost, calls)


def _choose(logits: F32, offered: Bools, rng: np.random.Generator | None) -> I64:
    if rng is not None:
        return draw(logits, offered, rng)
    likeliest: I64 = np.where(offered, logits, -np.inf).argmax(axis=1)
    return likeliest


def _update(
    routes: RouteBatch, policy: Learned, value: Learned, settings: Ppo, rng: np.random.Generator
) -> tuple[Learned, Learned]:
    """Policy and value after one update on these routes; as they were where no route took a step."""
    taken = routes.taken
    if not taken.any():
        return policy, value
    states, offered, chosen = routes.states[taken], routes.offered[taken], routes.chosen[taken]
    before = np.zeros_like(routes.rewards)
    before[taken] = value(states)[:, 0]
    advantages = gae(routes.rewards, before)
    improved = improve(
        policy,
        states,
        lambda z, rows: categorical(z, offered[rows], chosen[rows]),
        advantages[taken],
        settings,
        rng,
    )
    return improved, regress(value, states, (advantages + before)[taken][:, None], settings, rng)
