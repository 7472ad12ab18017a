"""``rl-focal``: the paper's method (arXiv 2502.04492), trained offline (Algorithm 1) and online (Algorithm 2).

For each query, the Decider draws a pool, given the previous pool and its diversity. All members of the pool are asked.
Then the Fusion maps their probabilities and past rewards to an answer. Neither network sees the query.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from focalroute.core.records import F32, I64, Bools
from focalroute.evaluate.presets import Learned, Mlp, Ppo, bernoulli, categorical, draw, eq6, improve, regress
from focalroute.evaluate.replay import Revealed, Training, TrainingArrays, Turn, best_setting
from focalroute.evaluate.votes import elect, focal_diversities
from focalroute.learn.losses import Likelihood, log_posterior
from focalroute.learn.mappo import GAE_LAMBDA, gae
from focalroute.learn.nets import Floats
from focalroute.policy.decider import EXPLORATION

#: The columns of `diversities`: the paper's diversity metric, and those that it compares with.
METRICS = ("focal", "fleiss_kappa", "disagreement", "binary_entropy", "q_statistic", "correlation", "cohen_kappa")

#: With fewer rows all metrics are 0, as before the first query.
MIN_ROWS = 20


def diversities(fails: F32, pools: F32, pairs: F32) -> F32:
    """Return the metrics of B pools, (B, 7); all are 0 with fewer than `MIN_ROWS` rows or two members.

    Args:
        fails: (T, N) 1 if an endpoint failed a row, else 0.
        pools: (B, N) 1 for the members of each pool, else 0.
        pairs: (3, N, N) `pair_statistics` of the same rows.
    """
    rows, n = fails.shape
    m = pools.sum(axis=1)
    if rows < MIN_ROWS or n < 2:
        return np.zeros((len(pools), len(METRICS)), np.float32)
    s = fails @ pools.T  # (T, B): how many members failed a row
    failed, failed_with = fails.sum(axis=0), fails.T @ s  # (N,), (N, B): sum_t f_ti s_t
    others = np.maximum(m - 1, 1)
    all_failed = pools @ failed
    mixed = m * all_failed - (pools * failed_with.T).sum(axis=1)  # sum_t s_t (m - s_t)
    share = all_failed / (rows * np.maximum(m, 1))
    chance = rows * m * others * share * (1 - share)
    size = np.maximum(m, 1)
    found = np.empty((len(pools), len(METRICS)), np.float32)
    found[:, 0] = focal_diversities(fails, pools)
    found[:, 1] = 1 - mixed / np.where(chance > 0, chance, 1)  # without failures, or without successes, mixed is 0
    found[:, 2] = 2 * mixed / (rows * size * others)
    found[:, 3] = _entropies(n)[m.astype(np.intp), s.astype(np.intp)].mean(axis=0)
    found[:, 4:] = ((pools @ pairs) * pools).sum(axis=2).T / (size * others)[:, None]
    found[m < 2] = 0
    return found


def pair_statistics(both: F32, rows: int) -> F32:
    """Return Q statistic, correlation and Cohen's kappa of every pair, (3, N, N); the diagonal is 0.

    Args:
        both: (N, N) the number of rows that both endpoints of a pair failed; on the diagonal, that the endpoint failed.
        rows: the number of rows.
    """
    n = np.diagonal(both)
    one, other = n[:, None], n[None, :]
    a, b, c, d = both, one - both, other - both, rows - one - other + both
    determinant = a * d - b * c
    found = np.stack(
        [
            _ratio(determinant, a * d + b * c, 0.0),
            _ratio(determinant, np.sqrt(one * (rows - one) * other * (rows - other)), 0.0),
            _ratio(2 * determinant, one * (rows - other) + other * (rows - one), 1.0 if rows else 0.0),
        ]
    )
    diagonal = np.arange(len(n))
    found[:, diagonal, diagonal] = 0
    return found


def _ratio(above: F32, below: F32, undefined: float) -> F32:
    """Divide; ``undefined`` where the denominator is not positive."""
    return np.where(below > 0, above / np.where(below > 0, below, 1), undefined).astype(np.float32)


@cache
def _entropies(n: int) -> NDArray[np.float32]:
    """Return a table (n + 1, n + 1) with the binary entropy H(s / m), in bits, at [m, s]."""
    share = np.clip(np.arange(n + 1) / np.maximum(np.arange(n + 1), 1)[:, None], 0, 1)
    halves = np.stack([share, 1 - share])
    logs = np.log2(halves, out=np.zeros_like(halves), where=halves > 0)
    return np.asarray(-(halves * logs).sum(axis=0), np.float32)


_PPO = Ppo(rate=0.001, clip=0.02)
_LEAST_MEMBERS = 2


class BranchingHead:
    """The last layer of a Decider over N endpoints, as published: one head per endpoint, with independent draws.

    If fewer than two endpoints are drawn, the likeliest of the others are added to the pool.

    Attributes:
        width: number of outputs of the layer.
    """

    def __init__(self, endpoints: int) -> None:
        self.width = endpoints

    def draw(self, logits: Floats, rng: np.random.Generator) -> tuple[Bools, F32]:
        """Return the draws (B, N), and the resulting pools (B, N) of at least two."""
        p = _probabilities(logits)
        picked = rng.random(p.shape) < p
        return picked, _filled_up(picked, p)

    def likeliest(self, logits: Floats) -> tuple[Bools, F32]:
        """Return the endpoints with probability above a half, and the resulting pools of at least two."""
        p = _probabilities(logits)
        return p > 0.5, _filled_up(p > 0.5, p)

    def likelihood(self, logits: Floats, picked: Bools) -> Likelihood:
        """Return the joint likelihood of draws (B, N)."""
        return bernoulli(logits, picked)


@dataclass(frozen=True, slots=True)
class RlFocalSettings:
    """The settings of RL-Focal; the first five are the paper's, found there by grid search.

    Attributes:
        window: T, the number of past queries that diversity and past rewards cover.
        alpha: the weight of the penalty of Eq. 6.
        gamma: the discount over the stream of queries.
        ppo: the settings of PPO; learning rate 0.001 and clip 0.02 are the paper's, the others are ours.
        hidden: units of each network's hidden layer (about 17,000 parameters in all, as published).
        update_every: queries between two updates.
        passes: n_ep, passes over the training part; the first half trains the Decider, the second the Fusion.
        lanes: B, parallel streams in training, with the same queries and different draws.
        largest_free_form: the most candidates of a free-form question that the Fusion chooses from; others are dropped.
        sample: whether on the test part pools are drawn and the Decider goes on learning (Algorithm 2); else the
            Decider stays as trained and picks the endpoints with probability above a half.
        metrics: the diversity metrics in o1, a selection of `METRICS`.
        decider_head: the Decider's last layer.
    """

    window: int = 500
    alpha: float = 0.1
    gamma: float = 0.8
    ppo: Ppo = _PPO
    hidden: int = 32
    update_every: int = 100
    passes: int = 8
    lanes: int = 8
    largest_free_form: int = 10
    sample: bool = True
    metrics: tuple[str, ...] = METRICS
    decider_head: type[BranchingHead] = BranchingHead


@dataclass(frozen=True, slots=True)
class Agents:
    """Decider, Fusion and the central critic.

    The critic has two heads, V of the Decider's return and V of the Fusion's, as Eq. 6 penalises only the Decider. Its
    state is [o1 at t + 1, o2 at t], as published, which contains the decision to be judged.
    """

    decider: Learned
    fusion: Learned
    critic: Learned

    @classmethod
    def fresh(cls, rng: np.random.Generator, endpoints: int, candidates: int, settings: RlFocalSettings) -> Agents:
        """Make untrained agents: every endpoint has probability a half, and candidates are equally likely."""
        o1, o2 = endpoints + 1 + len(settings.metrics), settings.window + endpoints * candidates
        heads = settings.decider_head(endpoints).width
        sizes = ((o1, heads), (o2, candidates), (o1 + o2, 2))
        nets = (Mlp.initial(rng, inputs, outputs, hidden=settings.hidden) for inputs, outputs in sizes)
        return cls(*map(Learned.fresh, nets))


@dataclass(frozen=True, slots=True)
class AgentStep:
    """One query in B lanes; or L queries, on a second axis (B, L, ...).

    Attributes:
        seen: (B, Do) o1, the Decider's input.
        picked: (B, N) the Decider's draws.
        shown: (B, Df) o2, the Fusion's input.
        offered: (B, K) which of the Fusion's columns have a candidate to choose.
        fused: (B,) the column that the Fusion drew.
        tells: (B,) whether the reward of that draw is known.
        state: (B, Ds) the critic's input.
        rewards: (B, 2) the rewards of the Decider (Eq. 6) and of the Fusion's draw.
    """

    seen: F32
    picked: Bools
    shown: F32
    offered: Bools
    fused: I64
    tells: Bools
    state: F32
    rewards: F32

    @classmethod
    def stack(cls, steps: Sequence[AgentStep]) -> AgentStep:
        """Stack consecutive steps of the same lanes, with time on the second axis."""
        return cls(**{f.name: np.stack([getattr(step, f.name) for step in steps], axis=1) for f in fields(cls)})


def decider_view(pools: F32, metrics: F32) -> F32:
    """Return o1, (B, N + 1 + M): the pool of the last answer (B, N), its size / N, and its M diversity metrics."""
    return np.concatenate([pools, pools.mean(axis=1, keepdims=True), metrics], axis=1)


def fused_view(past: F32, shown: F32) -> F32:
    """Return o2, (B, T + N K): the past rewards (B, T), the latest last, and each member's probabilities (B, N, K)."""
    return np.concatenate([past, shown.reshape(len(shown), -1)], axis=1)


def learn(
    agents: Agents, steps: AgentStep, settings: RlFocalSettings, rng: np.random.Generator, *, decide: bool, fuse: bool
) -> Agents:
    """Update agents on L consecutive steps; one more step provides the value after the last of them.

    Each agent's advantages are computed by GAE over the stream, from its head of the central critic.

    Args:
        agents: the agents before the update.
        steps: (B, L + 1, ...) the steps.
        settings: the settings of learning.
        rng: shuffles the steps.
        decide: whether the Decider learns.
        fuse: whether the Fusion learns, from steps with known reward.
    """
    lanes, length = steps.picked.shape[0], steps.picked.shape[1] - 1
    values = agents.critic(_flat(steps.state)).reshape(lanes, length + 1, 2)
    rewards = steps.rewards[:, :length].copy()
    rewards[:, -1] += settings.gamma * values[:, -1]
    values = values[:, :length]
    advantages = np.stack(
        [gae(rewards[..., k], values[..., k], gamma=settings.gamma, lam=GAE_LAMBDA) for k in range(2)], axis=2
    )
    now = AgentStep(**{f.name: _flat(getattr(steps, f.name)[:, :length]) for f in fields(AgentStep)})
    gains = _flat(advantages)
    critic = regress(agents.critic, now.state, _flat(advantages + values), settings.ppo, rng)
    decider, fusion = agents.decider, agents.fusion
    if decide:
        head = settings.decider_head(now.picked.shape[1])
        decider = improve(
            decider, now.seen, lambda z, rows: head.likelihood(z, now.picked[rows]), gains[:, 0], settings.ppo, rng
        )
    known = np.flatnonzero(now.tells)
    if fuse and len(known):
        offered, fused = now.offered[known], now.fused[known]
        fusion = improve(
            fusion,
            now.shown[known],
            lambda z, rows: categorical(z, offered[rows], fused[rows]),
            gains[known, 1],
            settings.ppo,
            rng,
        )
    return replace(agents, decider=decider, fusion=fusion, critic=critic)


def _flat(x: NDArray[Any]) -> NDArray[Any]:
    """Join the first two axes."""
    return x.reshape(-1, *x.shape[2:])


def _probabilities(z: Floats) -> NDArray[np.floating[Any]]:
    """Return the sigmoid, clipped so that every endpoint is sometimes drawn."""
    least = EXPLORATION / z.shape[1]
    return np.clip(1 / (1 + np.exp(-z)), least, 1 - least)


def _filled_up(picked: Bools, p: NDArray[np.floating[Any]]) -> F32:
    """Add the likeliest endpoints to picks of fewer than two."""
    pools = picked.copy()
    for lane in np.flatnonzero(picked.sum(axis=1) < _LEAST_MEMBERS):
        order = np.argsort(-(p[lane] + picked[lane]), kind="stable")
        pools[lane, order[:_LEAST_MEMBERS]] = True
    return pools.astype(np.float32)


def rl_focal(training: Training, settings: RlFocalSettings | None = None) -> RlFocal:
    """``rl-focal``, trained on all endpoints' answers in the training part, as in the paper.

    By default ``sample`` is chosen on the last fifth of that part.
    """
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1, "blas"):  # on matrices this small, two threads are slower
        if settings is None:
            fit, _ = training.hold_out()
            data = fit.arrays()
            agents = train(data, RlFocalSettings(), fit.seed)
            options = [RlFocalSettings(), RlFocalSettings(sample=False)]
            settings = best_setting(training, options, lambda part, chosen: RlFocal(agents, data, part, chosen))
        everything = training.arrays()
        return RlFocal(train(everything, settings, training.seed), everything, training, settings)


def width_of(data: TrainingArrays, settings: RlFocalSettings) -> int:
    """Return K, the Fusion's number of columns.

    It is the most choices of any training question. If a free-form question has more candidates, it is their number, at
    most ``largest_free_form``.
    """
    free_form = int(data.votes[data.choices == 0].any(axis=1).sum(axis=1).max(initial=0))
    return max(int(data.choices.max()), min(free_form, settings.largest_free_form), 1)


def fusion_columns(probabilities: F32, choices: int, width: int) -> tuple[I64, Bools]:
    """Assign candidates to the Fusion's K columns, and say which of them it may choose.

    Choices keep their order. Of a free-form question's candidates, the K with the highest total probability are used,
    the highest first; candidates that no member gave are not offered. Without any answer, no candidate is offered.

    Args:
        probabilities: (B, N, C) of the members asked, zeros elsewhere; C is at least K.
        choices: number of choices; 0: a free-form question.
        width: K.

    Returns:
        (B, K) candidates, and (B, K) whether each is offered.
    """
    total = probabilities.sum(axis=1)
    if choices:
        order = np.broadcast_to(np.arange(width), (len(total), width))
        return order, (order < choices) & total.any(axis=1, keepdims=True)
    order = np.argsort(-total, axis=1, kind="stable")[:, :width]
    return order, np.take_along_axis(total, order, axis=1) > 0


def train(
    data: TrainingArrays, settings: RlFocalSettings, seed: int, *, watch: Callable[[AgentStep], object] = lambda _: None
) -> Agents:
    """Train agents on the training rows (Algorithm 1).

    In the first half of the passes the Decider learns, with plurality in place of the Fusion; in the second half the
    Fusion learns. The critic always learns. Each pass starts with all endpoints in the pool and all metrics 0. With
    fewer rows than an update takes, each pass makes one update.

    Args:
        data: the training rows.
        settings: the settings.
        seed: the random seed.
        watch: called with every query's step.
    """
    rng, width = np.random.default_rng(seed), width_of(data, settings)
    agents = Agents.fresh(rng, data.fails.shape[1], width, settings)
    pairs = _pairs_by_row(data.fails, settings.window)
    update_every = min(settings.update_every, max(len(data.fails) - 1, 1))  # an update takes one step more
    for number in range(settings.passes):
        fuse = number >= settings.passes // 2
        lanes = _Lanes(data, pairs, width, settings, rng)
        steps: list[AgentStep] = []
        for t in range(len(data.fails)):
            steps.append(lanes.step(t, agents, fuse=fuse))
            watch(steps[-1])
            if len(steps) > update_every:
                agents = learn(agents, AgentStep.stack(steps), settings, rng, decide=not fuse, fuse=fuse)
                steps = steps[-1:]
    return agents


def _pairs_by_row(fails: F32, window: int) -> list[F32]:
    """Return for each row the `pair_statistics` of the window that ends with it."""
    both = np.cumsum(fails[:, :, None] * fails[:, None, :], axis=0, dtype=np.float32)
    both[window:] -= both[:-window].copy()
    return [pair_statistics(one, min(t + 1, window)) for t, one in enumerate(both)]


class _Lanes:
    """One pass over the training rows in B lanes, with the same queries and different draws."""

    def __init__(
        self, data: TrainingArrays, pairs: list[F32], width: int, settings: RlFocalSettings, rng: np.random.Generator
    ) -> None:
        n = data.fails.shape[1]
        self._data, self._pairs, self._width, self._settings, self._rng = data, pairs, width, settings, rng
        self._heads = settings.decider_head(n)
        self._columns = [METRICS.index(name) for name in settings.metrics]
        self._seen = decider_view(
            np.ones((settings.lanes, n), np.float32), np.zeros((settings.lanes, len(self._columns)), np.float32)
        )
        self._past = np.zeros((settings.lanes, settings.window + len(data.fails)), np.float32)

    def step(self, t: int, agents: Agents, *, fuse: bool) -> AgentStep:
        """Answer row t: by the Fusion's draw if ``fuse``, else by plurality."""
        data, settings, rng = self._data, self._settings, self._rng
        picked, pools = self._heads.draw(agents.decider(self._seen), rng)
        asked = pools * data.there[t]
        probabilities = data.probabilities[t] * asked[:, :, None]
        order, offered = fusion_columns(probabilities, int(data.choices[t]), self._width)
        shown = np.take_along_axis(probabilities, order[:, None, :], axis=2) * offered[:, None, :]
        view = fused_view(self._past[:, t : t + settings.window], shown)
        worth = data.worth[t][order]
        if fuse:
            fused = draw(agents.fusion(view), offered, rng)
            u = 2 * worth[np.arange(len(fused)), fused] - 1
            u = np.where(offered.any(axis=1), u, -1)
        else:
            fused = np.zeros(len(order), np.int64)
            u = self._plurality(t, asked)
        decider_reward = eq6(u, asked.sum(axis=1), asked.shape[1], alpha=settings.alpha)
        following = decider_view(pools, self._metrics(t, pools))
        self._past[:, t + settings.window] = u
        step = AgentStep(
            seen=self._seen,
            picked=picked,
            shown=view,
            offered=offered,
            fused=fused,
            tells=offered.any(axis=1) & np.full(len(offered), fuse),
            state=np.concatenate([following, view], axis=1),
            rewards=np.stack([decider_reward, u], axis=1).astype(np.float32),
        )
        self._seen = following
        return step

    def _metrics(self, t: int, pools: F32) -> F32:
        fails = self._data.fails[max(0, t + 1 - self._settings.window) : t + 1]
        return diversities(fails, pools, self._pairs[t])[:, self._columns]

    def _plurality(self, t: int, asked: F32) -> F32:
        """Return the reward (B,) of a plurality vote; ties go to the candidate with the best-ranked backer."""
        data = self._data
        votes = asked @ data.votes[t]
        best = (data.votes[t] * data.best_first[:, None] * asked[:, :, None]).max(axis=1)
        worth = data.worth[t][(votes + best).argmax(axis=1)]
        return np.where(votes.any(axis=1), 2 * worth - 1, -1).astype(np.float32)


@dataclass(frozen=True, slots=True)
class _Pending:
    """An answered turn until its feedback comes: its pool, the Fusion's columns, and the rest as in `AgentStep`."""

    seen: F32
    picked: Bools
    pool: F32
    view: F32
    order: I64
    offered: Bools
    fused: I64


class RlFocal:
    """Answers with trained agents, and goes on training them (Algorithm 2); the window starts with the training rows.

    The answer is the Fusion's likeliest candidate. But the Fusion learns from a draw from its softmax, as PPO needs
    sampled actions; the worth of the drawn candidate follows from the label, and sometimes from a reward. Diversity
    metrics are taken over the rows in which it is known of every member of the pool whether it was right. As in
    training, members count as wrong if their call failed or they were not available.

    Args:
        agents: the trained agents.
        data: the training data.
        training: the part of the log that the data are from.
        settings: the settings of training.

    Attributes:
        agents: the current agents.
        unfused: number of questions with more choices than any in training; plurality answers them.
    """

    def __init__(self, agents: Agents, data: TrainingArrays, training: Training, settings: RlFocalSettings) -> None:
        n, window = data.fails.shape[1], settings.window
        self.agents = agents
        self.unfused = 0
        self._rank, self._settings, self._rng = training.rank, settings, np.random.default_rng(training.seed)
        self._width = width_of(data, settings)
        self._heads = settings.decider_head(n)
        self._columns = [METRICS.index(name) for name in settings.metrics]
        latest = data.fails[-window:]
        self._fails = np.zeros((window, n), np.float32)
        self._known = np.zeros((window, n), bool)
        self._fails[: len(latest)], self._known[: len(latest)] = latest, True
        self._learned = len(latest)
        self._past = np.zeros((1, window), np.float32)
        self._pools = np.ones((1, n), np.float32)
        self._steps: list[AgentStep] = []

    def answer(self, turn: Turn) -> int:
        """Draw a pool, ask all its members, and fuse their replies."""
        seen = self._view(self._pools)
        logits = self.agents.decider(seen)
        if self._settings.sample:
            picked, self._pools = self._heads.draw(logits, self._rng)
        else:
            picked, self._pools = self._heads.likeliest(logits)
        members = [i for i in turn.available if self._pools[0, i]]
        for i in members or turn.available[:1]:
            turn.ask(i)
        probabilities = turn.probabilities(max(turn.choices, self._pools.shape[1], self._width))[None]
        order, offered = fusion_columns(probabilities, turn.choices, self._width)
        fusable = turn.choices <= self._width
        offered = offered & fusable
        shown = np.take_along_axis(probabilities, order[:, None, :], axis=2) * offered[:, None, :]
        view = fused_view(self._past, shown)
        logits = self.agents.fusion(view)
        fused = draw(logits, offered, self._rng)
        turn.memo = _Pending(seen, picked, self._pools, view, order, offered, fused)
        if not fusable:
            self.unfused += 1
            votes = Counter(reply.candidate for reply in turn.replies.values() if reply.candidate >= 0)
            return elect(votes, turn.replies, self._rank)
        if not offered.any():
            return -1
        return int(order[0, log_posterior(logits, offered)[0].argmax()])

    def learn(self, turn: Turn, revealed: Revealed) -> None:
        """Add a row to the window, and after every ``update_every`` queries update the networks (Algorithm 2)."""
        pending: _Pending = turn.memo
        settings = self._settings
        self._add_row(self._without_reply(pending, turn) | dict(revealed.values))
        u = 2 * revealed.worth - 1
        drawn = self._drawn_reward(pending, turn, revealed)
        decider_reward = eq6(u, len(turn.replies), pending.pool.shape[1], alpha=settings.alpha)
        self._steps.append(
            AgentStep(
                seen=pending.seen,
                picked=pending.picked,
                shown=pending.view,
                offered=pending.offered,
                fused=pending.fused,
                tells=np.array([drawn is not None]),
                state=np.concatenate([self._view(pending.pool), pending.view], axis=1),
                rewards=np.array([[decider_reward, u if drawn is None else drawn]], np.float32),
            )
        )
        self._past = np.concatenate([self._past[:, 1:], np.array([[u]], np.float32)], axis=1)
        if len(self._steps) > settings.update_every:
            steps = AgentStep.stack(self._steps)
            self.agents = learn(self.agents, steps, settings, self._rng, decide=settings.sample, fuse=True)
            self._steps = self._steps[-1:]

    def _view(self, pool: F32) -> F32:
        """Return o1 of a pool, from the rows in which it is known of all its members whether they were right."""
        rows = self._known[:, pool[0] > 0].all(axis=1)
        fails = self._fails[rows]
        pairs = pair_statistics(fails.T @ fails, len(fails))
        return decider_view(pool, diversities(fails, pool, pairs)[:, self._columns])

    @staticmethod
    def _without_reply(pending: _Pending, turn: Turn) -> dict[int, float]:
        """Return worth 0 for the members of the pool whose call failed or that were not available, as in training."""
        members = np.flatnonzero(pending.pool[0]).tolist()
        return {i: 0.0 for i in members if i not in turn.replies or turn.replies[i].output.error is not None}

    def _add_row(self, values: Mapping[int, float]) -> None:
        """Replace the oldest row of the window by the worths of the members' answers, where known."""
        at = self._learned % len(self._fails)
        self._learned += 1
        self._known[at] = False
        for i, value in values.items():
            self._known[at, i], self._fails[at, i] = True, value < 0.5

    @staticmethod
    def _drawn_reward(pending: _Pending, turn: Turn, revealed: Revealed) -> float | None:
        """Return the reward of the Fusion's draw; None if it is unknown."""
        if not pending.offered.any():
            return None
        drawn = int(pending.order[0, pending.fused[0]])
        if revealed.label is not None:
            return 1.0 if drawn == revealed.label else -1.0
        if revealed.text is not None:  # no asked endpoint gave the right answer
            return -1.0
        worth = [value for i, value in revealed.values.items() if turn.replies[i].candidate == drawn]
        return 2 * fmean(worth) - 1 if worth else None
