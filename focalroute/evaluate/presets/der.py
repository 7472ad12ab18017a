"""``der``: dynamic ensemble reasoning (arXiv 2412.07448).

A policy trained by PPO asks one endpoint per step until STOP. The state is [query, last answer], and the last answer is
the final one. In the paper each expert is shown the previous answer (Knowledge Transfer Prompt). Recorded answers were
given without it, so here a later expert can replace an answer, but not improve it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import numpy as np

from focalroute.core.records import F32, I64, Bools
from focalroute.evaluate.presets import (
    Learned,
    Mlp,
    Ppo,
    categorical,
    der_bonus,
    der_reward,
    draw,
    improve,
    mlp_pass,
    regress,
)
from focalroute.evaluate.replay import Strategy, Training, Turn, best_setting
from focalroute.learn.losses import log_posterior
from focalroute.learn.mappo import gae
from focalroute.observe.features import text_features

_PPO = Ppo(rate=0.003, entropy=0.1)


@dataclass(frozen=True, slots=True)
class DerSettings:
    """The settings of DER. The paper gives the form of the reward, but not its numbers; those here are ours.

    Attributes:
        max_steps: T_max, the most experts to ask for a query.
        alpha: the cost weight; cost is relative to asking every endpoint once.
        beta: the weight of the gain.
        threshold: p_0, the quality to reach.
        bonus: the reward for reaching the threshold, and the penalty for not reaching it in T_max steps.
        level: whether P itself is paid at every step, as published, or only the gain after the first.
        ppo: the settings of PPO.
        hidden: units of the hidden layer.
        passes: passes over the training queries.
        batch: queries between two updates.
        validation: share of the training queries, at the end, on which the best pass is chosen; 0: use the last pass.
        look_every: passes between two validations.
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
    """B unfinished routes, one for each query; a route is the sequence of endpoints asked."""

    def state(self, step: int) -> F32:
        """Return the policy's input before this step, (B, D)."""

    def offered(self, step: int) -> Bools:
        """Return the valid actions of each route, (B, N + 1): ask an endpoint, or stop (the last column)."""

    def ask(self, rows: I64, endpoints: I64) -> tuple[F32, F32]:
        """Ask one endpoint on each of these routes; return the answers' worth (NaN if unusable) and their cost."""


class Environment(Protocol):
    """Training queries, and the endpoints' answers to them."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """The number of queries, the number of endpoints, and the width of the state."""

    @property
    def unit(self) -> float:
        """The mean cost of asking every endpoint once, in the unit of `Routes.ask`."""

    def start(self, rows: I64, max_steps: int, rng: np.random.Generator | None) -> Routes:
        """Start one route for each of these queries; in training, ``rng`` may add noise to the state."""


@dataclass(frozen=True, slots=True)
class RouteBatch:
    """B finished routes, padded to L steps.

    Attributes:
        states: (B, L, D) the policy's input.
        offered: (B, L, N + 1) the valid actions.
        chosen: (B, L) the action: an endpoint, or N to stop.
        taken: (B, L) whether it is a step, not padding.
        rewards: (B, L) the rewards; 0 at padding.
        worth: (B,) P of the last answer.
        cost: (B,) cost of the route.
        calls: (B,) number of calls.
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
        """Return the mean over routes of P(last answer) - alpha C(route), with cost in units of ``unit``."""
        return float(self.worth.mean() - settings.alpha * self.cost.mean() / max(unit, 1e-12))


def train_routes(environment: Environment, settings: DerSettings, seed: int) -> Mlp:
    """Train a policy by passes over the queries in random order; return the best on the validation part.

    The policy's head i asks endpoint i, its last head stops.
    """
    from threadpoolctl import threadpool_limits

    rng = np.random.default_rng(seed)
    (queries, n, width), unit = environment.shape, environment.unit
    policy = Learned.fresh(Mlp.initial(rng, width, n + 1, hidden=settings.hidden))
    value = Learned.fresh(Mlp.initial(rng, width, 1, hidden=settings.hidden))
    n_train = queries - int(queries * settings.validation)
    training, validation = np.arange(n_train), np.arange(n_train, queries)
    best_score, best = -np.inf, policy.net
    with threadpool_limits(1, "blas"):  # on matrices this small, two threads are slower
        for number in range(1, settings.passes + 1):
            for rows in np.array_split(rng.permutation(training), max(1, round(n_train / settings.batch))):
                routes = run_routes(policy, environment, rows, settings, rng)
                policy, value = _update(routes, policy, value, settings.ppo, rng)
            if len(validation) and (number % settings.look_every == 0 or number == settings.passes):
                score = run_routes(policy, environment, validation, settings, None).score(settings, unit)
                if score > best_score:
                    best_score, best = score, policy.net
    return best if len(validation) else policy.net


def run_routes(
    policy: Callable[[F32], Any],
    environment: Environment,
    rows: I64,
    settings: DerSettings,
    rng: np.random.Generator | None,
) -> RouteBatch:
    """Run one route for each of these queries, from its start to STOP or T_max.

    Args:
        policy: maps states (B, D) to logits (B, N + 1).
        environment: the queries and answers.
        rows: (B,) the queries.
        settings: the settings of DER.
        rng: draws the actions; None: take the likeliest.
    """
    size, last = len(rows), settings.max_steps - 1
    routes = environment.start(rows, settings.max_steps, rng)
    stop, unit = environment.shape[1], max(environment.unit, 1e-12)
    running = np.ones(size, np.bool_)
    quality, cost, calls = np.zeros(size, np.float32), np.zeros(size, np.float32), np.zeros(size, np.int64)
    steps = []
    for step in range(settings.max_steps):
        states, offered = routes.state(step), routes.offered(step)
        running = running & offered.any(axis=1)
        logits = policy(states)
        chosen = _choose(logits, offered, rng)
        asks = running & (chosen < stop)
        asking = np.flatnonzero(asks)
        after, paid = quality.copy(), np.zeros(size, np.float32)
        worth, paid[asking] = routes.ask(asking, chosen[asking])
        after[asking] = np.where(np.isnan(worth), quality[asking], worth)
        exhausted = asks & (step == last)
        before = quality if step else None
        earned = der_reward(after, before, paid / unit, alpha=settings.alpha, beta=settings.beta, level=settings.level)
        terminal = der_bonus(after, exhausted, threshold=settings.threshold, bonus=settings.bonus)
        rewards = np.where(asks, earned, 0) + np.where(running & (~asks | exhausted), terminal, 0)
        steps.append((states, offered, chosen, running, rewards.astype(np.float32)))
        quality, running = after, asks & ~exhausted
        cost, calls = cost + paid, calls + asks
    states, offered, chosen, taken, rewards = (np.stack(column, axis=1) for column in zip(*steps, strict=True))
    return RouteBatch(states, offered, chosen, taken, rewards, quality, cost, calls)


def _choose(logits: F32, offered: Bools, rng: np.random.Generator | None) -> I64:
    """Draw an action for each row from the softmax over those offered; without ``rng``, take the likeliest."""
    if rng is not None:
        return draw(logits, offered, rng)
    likeliest: I64 = np.where(offered, logits, -np.inf).argmax(axis=1)
    return likeliest


def _update(
    routes: RouteBatch, policy: Learned, value: Learned, settings: Ppo, rng: np.random.Generator
) -> tuple[Learned, Learned]:
    """Update policy and value on these routes; return them unchanged if no route took a step."""
    taken = routes.taken
    if not taken.any():
        return policy, value
    states, offered, chosen = routes.states[taken], routes.offered[taken], routes.chosen[taken]
    values = np.zeros_like(routes.rewards)
    values[taken] = value(states)[:, 0]
    advantages = gae(routes.rewards, values)
    improved = improve(
        policy, states, lambda z, rows: categorical(z, offered[rows], chosen[rows]), advantages[taken], settings, rng
    )
    return improved, regress(value, states, (advantages + values)[taken][:, None], settings, rng)


_TEXT = 32
#: The settings for recorded answers; calls in training are free, so each update takes many routes.
RECORDED = DerSettings(bonus=1.0, passes=20, batch=1024, validation=0.0)


@dataclass(frozen=True, slots=True)
class RecordedEnvironment:
    """An environment of n recorded queries: N endpoints, C candidates.

    Attributes:
        texts: (n, 32) features of the queries.
        answers: (n, C, 32) features of each candidate's text.
        candidate: (n, N) an endpoint's candidate; -1: no usable answer.
        certainty: (n, N) the endpoint's own probability of its candidate; 1 if it gave only an answer.
        worth: (n, N) worth of its answer, in [0, 1].
        cost: (n, N) cost of asking it, in units of the mean cost of asking all.
        there: (n, N) whether it can be asked.
    """

    texts: F32
    answers: F32
    candidate: I64
    certainty: F32
    worth: F32
    cost: F32
    there: Bools

    @classmethod
    def of(cls, training: Training) -> RecordedEnvironment:
        """Make the environment of the training part, without the rest of the log."""
        table, rows = training.table, training.rows
        candidate, width = table.candidate[rows], max(int(table.size[rows].max()), 1)
        answers = np.zeros((len(rows), width, _TEXT), np.float32)
        for at, row in enumerate(rows.tolist()):
            query = table.queries[row]
            for i, endpoint in enumerate(table.endpoints):
                c, output = int(candidate[at, i]), query.outputs.get(endpoint.name)
                if output is None or c < 0:
                    continue
                if not answers[at, c].any():
                    answers[at, c] = _answer_features(query.choices, c, output.answer)
        usd, given, backed = table.usd[rows], training.arrays(), np.maximum(candidate, 0)
        certainty = np.take_along_axis(given.probabilities, backed[:, :, None], axis=2)[:, :, 0]
        worth = np.take_along_axis(given.worth, backed, axis=1)
        return cls(
            texts=np.stack([text_features(table.texts[row], _TEXT) for row in rows.tolist()]),
            answers=answers,
            candidate=candidate,
            certainty=np.where(candidate >= 0, certainty, 0),
            worth=np.where(candidate >= 0, worth, 0),
            cost=(usd / max(float(usd.sum(axis=1).mean()), 1e-12)).astype(np.float32),
            there=table.there[rows],
        )

    @property
    def shape(self) -> tuple[int, int, int]:
        """The number of queries, the number of endpoints, and the width of the state."""
        queries, n = self.there.shape
        return queries, n, 2 * _TEXT + n + 3

    @property
    def unit(self) -> float:
        """1, as costs are relative already."""
        return 1.0

    def start(self, rows: I64, max_steps: int, rng: np.random.Generator | None) -> _ReplayedRoutes:
        """Start one route for each of these queries; no noise is added."""
        return _ReplayedRoutes(self.only(rows), max_steps)

    def only(self, rows: I64 | slice) -> RecordedEnvironment:
        """Return the environment of these queries alone."""
        return RecordedEnvironment(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})


class _ReplayedRoutes:
    """B routes through the recorded answers to B queries."""

    def __init__(self, data: RecordedEnvironment, max_steps: int) -> None:
        self._data, self._max_steps = data, max_steps
        self._rows = np.arange(len(data.there))
        self._asked: Bools = np.zeros_like(data.there)
        self._last = np.full(len(data.there), -1)

    def state(self, step: int) -> F32:
        """Return the policy's input before this step, see the function `state`."""
        data, rows = self._data, self._rows
        answered, member = (self._last >= 0).astype(np.float32), np.maximum(self._last, 0)
        answer = data.candidate[rows, member]
        replied = self._asked & (data.candidate >= 0)
        agreeing = (replied & (data.candidate == answer[:, None])).sum(axis=1) / np.maximum(replied.sum(axis=1), 1)
        return state(
            data.texts,
            data.answers[rows, answer] * answered[:, None],
            np.eye(data.there.shape[1], dtype=np.float32)[member] * answered[:, None],
            data.certainty[rows, member] * answered,
            agreeing * answered,
            step / self._max_steps,
        )

    def offered(self, step: int) -> Bools:
        """Return the valid actions: every endpoint not asked yet; STOP after the first step."""
        stop = np.full((len(self._rows), 1), step > 0)
        return np.concatenate([self._data.there & ~self._asked, stop], axis=1)

    def ask(self, rows: I64, endpoints: I64) -> tuple[F32, F32]:
        """Return the worth and cost of the recorded answers."""
        data = self._data
        usable = data.candidate[rows, endpoints] >= 0
        self._asked[rows, endpoints] = True
        self._last[rows] = np.where(usable, endpoints, self._last[rows])
        worth: F32 = np.where(usable, data.worth[rows, endpoints], np.float32(np.nan))
        return worth, data.cost[rows, endpoints]


def state(texts: F32, answers: F32, last: F32, certainty: F32, agreeing: F32, done: float) -> F32:
    """Return the state before a step, (B, 67 + N).

    Before the first answer, ``answers``, ``last``, ``certainty`` and ``agreeing`` are zeros.

    Args:
        texts: (B, 32) features of the query.
        answers: (B, 32) features of the last answer.
        last: (B, N) 1 for the endpoint that gave the last answer.
        certainty: (B,) that endpoint's own probability of it.
        agreeing: (B,) share of the usable replies so far that gave this answer.
        done: steps taken / T_max.
    """
    figures = np.stack([certainty, agreeing, np.full(len(texts), done)], axis=1).astype(np.float32)
    return np.concatenate([texts, answers, last, figures], axis=1)


class DerStrategy(Strategy):
    """Takes a trained policy's likeliest action at each step, without further learning, as in the paper.

    Args:
        policy: the trained policy.
        settings: the settings of training.
        size: N, the number of endpoints.
    """

    def __init__(self, policy: Mlp, settings: DerSettings, size: int) -> None:
        self._policy, self._settings, self._size = policy, settings, size

    def answer(self, turn: Turn) -> int:
        """Ask one endpoint after another until STOP; return the last usable answer."""
        text = text_features(turn.query.text, _TEXT)
        last = -1
        for t in range(min(self._settings.max_steps, len(turn.available))):
            offered = np.zeros((1, self._size + 1), bool)
            offered[0, [i for i in turn.available if i not in turn.replies]] = True
            offered[0, -1] = t > 0
            logits = mlp_pass(self._policy, self._state(turn, text, last, t / self._settings.max_steps))[0]
            chosen = int(log_posterior(logits, offered)[0].argmax())
            if chosen == self._size:
                break
            if turn.ask(chosen).candidate >= 0:
                last = chosen
            turn.wait()
        return turn.replies[last].candidate if last >= 0 else -1

    def _state(self, turn: Turn, text: F32, last: int, done: float) -> F32:
        one_hot, answer = np.zeros(self._size, np.float32), np.zeros(_TEXT, np.float32)
        certainty = agreeing = 0.0
        if last >= 0:
            reply = turn.replies[last]
            c = reply.candidate
            one_hot[last] = 1
            answer = _answer_features(turn.query.choices, c, reply.output.answer)
            certainty = float(turn.probabilities(max(turn.choices, self._size))[last, c])
            usable = [each.candidate for each in turn.replies.values() if each.candidate >= 0]
            agreeing = usable.count(c) / len(usable)
        figures = np.array([[certainty], [agreeing]], np.float32)
        return state(text[None], answer[None], one_hot[None], figures[0], figures[1], done)


def der(training: Training, settings: DerSettings | None = None) -> DerStrategy:
    """``der``, trained on the training part; by default T_max and ``level`` are chosen on its last fifth."""
    environment, size = RecordedEnvironment.of(training), len(training.table.endpoints)

    def trained_on(part: Training, chosen: DerSettings) -> DerStrategy:
        first_rows = slice(len(part.rows))
        return DerStrategy(train_routes(environment.only(first_rows), chosen, part.seed), chosen, size)

    if settings is None:
        options = [replace(RECORDED, max_steps=steps, level=level) for steps in (2, 4) for level in (False, True)]
        settings = best_setting(training, options, trained_on)
    return trained_on(training, settings)


def _answer_features(choices: Sequence[str] | None, candidate: int, answer: int | str | None) -> F32:
    """Return features of an answer's text; zeros if only its score is known."""
    text = choices[candidate] if choices is not None else answer
    return text_features(text if isinstance(text, str) else "", _TEXT)
