"""``der``: dynamic ensemble reasoning (arXiv 2412.07448), one endpoint a step until STOP, by PPO.

The state is [query, last answer]; the answer is the one given last. In the paper each expert is shown the answer before
its own (Knowledge Transfer Prompt). Recorded answers were given without: here they do not change with what came before,
so a later expert can replace an answer but not improve it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from focalroute.core.records import F32
from focalroute.evaluate.presets.mlp import Mlp
from focalroute.evaluate.presets.ppo import Learned, Ppo, draw
from focalroute.evaluate.presets.recorded import masses
from focalroute.evaluate.presets.steps import Steps, learn_from, step_rewards
from focalroute.evaluate.replay import Revealed, Turn
from focalroute.evaluate.training import Training, best_setting
from focalroute.learn.losses import log_posterior
from focalroute.observe.features import text_features

I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]
_TEXT = 32
_PPO = Ppo(rate=0.003, entropy=0.1)


@dataclass(frozen=True, slots=True)
class Settings:
    """How DER is trained and served; the shape of the reward is published, its numbers here are ours.

    Attributes:
        steps: T_max, the most experts a query is put to.
        alpha: the price of cost, which is relative to asking everybody.
        beta: the weight of the gain.
        threshold: p_0; a label makes P 0 or 1.
        bonus: for reaching it, and against missing it in T_max steps.
        level: whether P itself is paid at every step, as published, or the gain alone after the first.
        ppo: how to learn.
        hidden: units of the hidden layer.
        passes: over the training part.
        batch: queries between two updates.
    """

    steps: int = 3
    alpha: float = 0.1
    beta: float = 1.0
    threshold: float = 0.5
    bonus: float = 1.0
    level: bool = False
    ppo: Ppo = _PPO
    hidden: int = 32
    passes: int = 20
    batch: int = 1024


@dataclass(frozen=True, slots=True)
class Routes:
    """What n training queries offer: N endpoints, C candidates.

    Attributes:
        texts: (n, 32) features of the queries.
        answers: (n, C, 32) features of each candidate's text.
        candidate: (n, N) what an endpoint backs, -1: nothing usable.
        certainty: (n, N) its mass on that; 1 where it gave only an answer.
        worth: (n, N) of its answer, in [0, 1].
        cost: (n, N) of asking it, 1: what asking everybody costs on average.
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
    def of(cls, training: Training) -> Routes:
        """The training part, and nothing else of the log."""
        table, rows = training.table, training.rows
        candidate, width = table.candidate[rows], max(int(table.size[rows].max()), 1)
        answers = np.zeros((len(rows), width, _TEXT), np.float32)
        certainty = (candidate >= 0).astype(np.float32)
        for at, row in enumerate(rows.tolist()):
            query = table.queries[row]
            for i, endpoint in enumerate(table.endpoints):
                c, output = int(candidate[at, i]), query.outputs.get(endpoint.name)
                if output is None or c < 0:
                    continue
                certainty[at, i] = masses(c, output, width)[c]
                if not answers[at, c].any():
                    answers[at, c] = _answer_features(query.choices, c, output.answer)
        usd = table.usd[rows]
        return cls(
            texts=np.stack([text_features(table.texts[row], _TEXT) for row in rows.tolist()]),
            answers=answers,
            candidate=candidate,
            certainty=certainty,
            worth=np.nan_to_num(table.value[rows]).astype(np.float32),
            cost=(usd / max(float(usd.sum(axis=1).mean()), 1e-12)).astype(np.float32),
            there=table.there[rows],
        )

    def take(self, rows: I64) -> Routes:
        """Only these queries."""
        return Routes(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})


def state(texts: F32, answers: F32, last: F32, certainty: F32, agreeing: F32, done: float) -> F32:
    """The state (B, 67 + N) before a step.

    Args:
        texts: (B, 32) of the query.
        answers: (B, 32) of the last answer; zeros before the first, as all that follows.
        last: (B, N) 1 for the endpoint that gave it.
        certainty: (B,) that endpoint's mass on it.
        agreeing: (B,) share of the usable replies so far that gave this answer.
        done: steps taken / T_max.
    """
    figures = np.stack([certainty, agreeing, np.full(len(texts), done)], axis=1).astype(np.float32)
    return np.concatenate([texts, answers, last, figures], axis=1)


def train(routes: Routes, settings: Settings, seed: int) -> Learned:
    """The policy after some passes over the training rows, in random order; heads 0..N-1 ask, head N stops."""
    rng = np.random.default_rng(seed)
    queries, n = routes.there.shape
    width = 2 * _TEXT + n + 3
    policy = Learned.fresh(Mlp.initial(rng, width, n + 1, hidden=settings.hidden))
    value = Learned.fresh(Mlp.initial(rng, width, 1, hidden=settings.hidden))
    for _ in range(settings.passes):
        for rows in np.array_split(rng.permutation(queries), max(1, round(queries / settings.batch))):
            steps = _roll(policy, routes.take(rows), settings, rng)
            policy, value = learn_from(steps, policy, value, settings.ppo, rng)
    return policy


def _roll(policy: Learned, routes: Routes, settings: Settings, rng: np.random.Generator) -> Steps:
    """One route for each query, drawn from the policy."""
    each, n = np.arange(len(routes.there)), routes.there.shape[1]
    asked, alive = np.zeros_like(routes.there), np.asarray(routes.there.any(axis=1))
    last, quality = np.full(len(each), -1), np.zeros(len(each), np.float32)
    steps = []
    for t in range(settings.steps):
        seen = _seen(routes, asked, last, t / settings.steps)
        stop = np.full((len(each), 1), t > 0)
        offered = np.concatenate([routes.there & ~asked, stop], axis=1)
        chosen = draw(policy(seen), offered, rng)
        asks = alive & (chosen < n)
        member = np.where(asks, chosen, 0)
        usable = asks & (routes.candidate[each, member] >= 0)
        after = np.where(usable, routes.worth[each, member], quality)
        exhausted = asks & (t == settings.steps - 1)
        rewards = step_rewards(
            settings,
            alive=alive,
            asks=asks,
            exhausted=exhausted,
            before=quality if t else None,
            after=after,
            cost=routes.cost[each, member],
        )
        steps.append((seen, offered, chosen, alive, rewards))
        asked[each[asks], chosen[asks]] = True
        last, quality, alive = np.where(usable, member, last), after.astype(np.float32), asks & ~exhausted
    return Steps(*(np.stack(column, axis=1) for column in zip(*steps, strict=True)))


def _seen(routes: Routes, asked: Bools, last: I64, done: float) -> F32:
    each, answered = np.arange(len(last)), (last >= 0).astype(np.float32)
    member = np.maximum(last, 0)
    answer = routes.candidate[each, member]
    replied = asked & (routes.candidate >= 0)
    agreeing = (replied & (routes.candidate == answer[:, None])).sum(axis=1) / np.maximum(replied.sum(axis=1), 1)
    one_hot = np.eye(asked.shape[1], dtype=np.float32)[member] * answered[:, None]
    answers = routes.answers[each, answer] * answered[:, None]
    return state(routes.texts, answers, one_hot, routes.certainty[each, member] * answered, agreeing * answered, done)


class Der:
    """The policy in service: its likeliest action at each step; it stays as trained, as in the paper.

    Args:
        policy: trained.
        settings: as trained.
        size: N.
    """

    def __init__(self, policy: Learned, settings: Settings, size: int) -> None:
        self._policy, self._settings, self._size = policy, settings, size

    def answer(self, turn: Turn) -> int:
        """Ask one by one until STOP; the last usable answer."""
        text = text_features(turn.query.text, _TEXT)
        last = -1
        for t in range(min(self._settings.steps, len(turn.available))):
            offered = np.zeros((1, self._size + 1), bool)
            offered[0, [i for i in turn.available if i not in turn.replies]] = True
            offered[0, -1] = t > 0
            logits = self._policy(self._state(turn, text, last, t / self._settings.steps))
            chosen = int(log_posterior(logits, offered)[0].argmax())
            if chosen == self._size:
                break
            if turn.ask(chosen).candidate >= 0:
                last = chosen
        return turn.replies[last].candidate if last >= 0 else -1

    def learn(self, turn: Turn, revealed: Revealed) -> None:
        """It stays as trained."""

    def _state(self, turn: Turn, text: F32, last: int, done: float) -> F32:
        one_hot, answer = np.zeros(self._size, np.float32), np.zeros(_TEXT, np.float32)
        certainty = agreeing = 0.0
        if last >= 0:
            reply = turn.replies[last]
            c = reply.candidate
            one_hot[last] = 1
            answer = _answer_features(turn.query.choices, c, reply.output.answer)
            certainty = float(masses(c, reply.output, max(turn.choices, c + 1))[c])
            backed = [h.candidate for h in turn.replies.values() if h.candidate >= 0]
            agreeing = backed.count(c) / len(backed)
        figures = np.array([[certainty], [agreeing]], np.float32)
        return state(text[None], answer[None], one_hot[None], figures[0], figures[1], done)


def der(training: Training, settings: Settings | None = None) -> Der:
    """The method, trained on the training part, by default with T_max and ``level`` chosen on its last fifth."""
    from threadpoolctl import threadpool_limits

    routes, size = Routes.of(training), len(training.table.endpoints)

    def made(part: Training, chosen: Settings) -> Der:
        return Der(train(routes.take(np.arange(len(part.rows))), chosen, part.seed), chosen, size)

    with threadpool_limits(1, "blas"):  # two threads on matrices this small take longer
        if settings is None:
            options = [Settings(steps=steps, level=level) for steps in (2, 4) for level in (False, True)]
            settings = best_setting(training, options, made)
        return made(training, settings)


def _answer_features(choices: Sequence[str] | None, candidate: int, answer: int | str | None) -> F32:
    """Features of an answer's text; zeros where only its score is known."""
    text = choices[candidate] if choices is not None else answer
    return text_features(text if isinstance(text, str) else "", _TEXT)
