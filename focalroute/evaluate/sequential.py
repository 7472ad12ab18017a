"""DER (arXiv 2412.07448) learned by PPO on live rollouts: one endpoint after another, each shown the answer before.

A route asks real (or simulated) endpoints, so every reply is shown the one before. Endpoints are frozen, and so a call
whose question, endpoint and shown answer were all there before is not made again: what it said is remembered
(`World`). The maths is that of the preset: `paper_rewards`, `gae`, `ppo`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from focalroute.core.records import F32
from focalroute.evaluate.presets.mlp import Mlp, mlp_parameters
from focalroute.evaluate.presets.ppo import Learned, Ppo, draw
from focalroute.evaluate.presets.steps import Steps, learn_from, step_rewards
from focalroute.learn.export import der_model
from focalroute.observe.layout import width
from focalroute.policy.der import flat
from focalroute.policy.publish import publish_der
from focalroute.policy.sequential import ANSWER, STEP, STEP_ENDPOINT, stacked

_JITTER = 0.25  # of the window's columns in training: in service they are never the same for long

I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Step(NamedTuple):
    """One call: which query, which endpoint, and the text of the answer it is shown; None: none."""

    query: int
    endpoint: int
    shown: str | None


class Said(NamedTuple):
    """What came back.

    Attributes:
        text: what the next endpoint is shown; None: the reply was not usable.
        form: the answer in normal form.
        features: (`ANSWER`,) of that.
        certainty: its own mass on it; 0 where it gave none.
        worth: P, its quality in [0, 1].
        usd: what the call cost.
    """

    text: str | None
    form: str
    features: F32
    certainty: float
    worth: float
    usd: float


#: Makes calls, as many at a time as it pleases; the results in the same order.
Asker = Callable[[Sequence[Step]], Sequence[Said]]


_PPO = Ppo(rate=0.003, entropy=0.1)


@dataclass(frozen=True, slots=True)
class Settings:
    """How DER is trained and served; the shape of the reward is published, its numbers here are ours.

    Attributes:
        most: T_max.
        alpha: the price of cost, which is relative to asking everybody once.
        beta: the weight of the gain.
        threshold: p_0.
        bonus: for reaching it, and against missing it in T_max steps.
        level: whether P itself is paid at every step, as published, or the gain alone after the first.
        ppo: how to learn.
        hidden: units of the hidden layer.
        passes: over the training queries.
        batch: queries between two updates.
        validation: share of the training queries, the last ones, that the best pass is chosen on.
        look_every: passes between two looks at these.
    """

    most: int = 3
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


class World:
    """What endpoints say to queries, asked once and then remembered.

    Args:
        queries: (Q, `QUERY`) features of their text.
        names: the endpoints, N of them.
        ask: makes the calls.

    Attributes:
        calls: how many were made.
    """

    def __init__(self, queries: F32, names: Sequence[str], ask: Asker) -> None:
        self.queries = queries
        self.names = tuple(names)
        self.calls = 0
        self._ask = ask
        self._known: dict[Step, Said] = {}

    def say(self, steps: Sequence[Step]) -> list[Said]:
        """What comes back of these calls; those not made before are made now."""
        new = [step for step in dict.fromkeys(steps) if step not in self._known]
        if new:
            self._known.update(zip(new, self._ask(new), strict=True))
            self.calls += len(new)
        return [self._known[step] for step in steps]

    def unit(self) -> float:
        """C's unit: USD of asking everybody once, the mean over the queries; they are all asked for it."""
        steps = [Step(q, i, None) for q in range(len(self.queries)) for i in range(len(self.names))]
        return sum(said.usd for said in self.say(steps)) / len(self.queries)


@dataclass(frozen=True, slots=True)
class Routes(Steps):
    """Routes, and what became of them.

    Attributes:
        worth: (B,) P of the last answer.
        usd: (B,) what it paid.
        calls: (B,).
    """

    worth: F32
    usd: F32
    calls: I64

    def earned(self, settings: Settings, unit: float) -> float:
        """P of the last answer - alpha C of the whole route, the mean over the routes."""
        return float(self.worth.mean() - settings.alpha * self.usd.mean() / max(unit, 1e-12))


def train_routes(
    world: World,
    settings: Settings,
    seed: int,
    *,
    columns: F32 | None = None,
    advance: Callable[[int], object] = lambda _: None,
) -> Mlp:
    """The policy after the best of some passes over the queries, in random order; heads 0..N-1 ask, head N stops.

    Args:
        columns: (N, 2) "accuracy" and "price" as the policy sees them (`STEP_ENDPOINT`); None: zeros.
        advance: called with the passes made.
    """
    from threadpoolctl import threadpool_limits

    rng = np.random.default_rng(seed)
    n, unit = len(world.names), world.unit()
    width_seen = width(STEP) + n * width(STEP_ENDPOINT)
    policy = Learned.fresh(Mlp.initial(rng, width_seen, n + 1, hidden=settings.hidden))
    value = Learned.fresh(Mlp.initial(rng, width_seen, 1, hidden=settings.hidden))
    known = np.zeros((n, 2), np.float32) if columns is None else columns
    cut = len(world.queries) - int(len(world.queries) * settings.validation)
    learnt, kept = np.arange(cut), np.arange(cut, len(world.queries))
    best, net = -np.inf, policy.net
    with threadpool_limits(1, "blas"):  # two threads on matrices this small take longer
        for number in range(1, settings.passes + 1):
            for rows in np.array_split(rng.permutation(learnt), max(1, round(cut / settings.batch))):
                moved = (known + _JITTER * rng.standard_normal(known.shape)).astype(np.float32)
                routes = roll(policy, world, rows, settings, unit, moved, rng)
                policy, value = learn_from(routes, policy, value, settings.ppo, rng)
            if len(kept) and (number % settings.look_every == 0 or number == settings.passes):
                reached = roll(policy, world, kept, settings, unit, known, None).earned(settings, unit)
                if reached > best:
                    best, net = reached, policy.net
            advance(1)
    return net if len(kept) else policy.net


class _Chains:
    """B routes under way, as `focalroute.serving.sequential.Chain` sees each of them."""

    def __init__(self, world: World, rows: I64, most: int, columns: F32) -> None:
        size, n = len(rows), len(world.names)
        self.world, self.rows, self.most, self.columns = world, rows, most, columns
        self.last: list[Said | None] = [None] * size
        self.by = np.full(size, -1)
        self.asked, self.failed = np.zeros((size, n)), np.zeros((size, n), np.bool_)
        self.forms: list[list[str]] = [[] for _ in range(size)]

    def seen(self, step: int) -> F32:
        """What the policy sees before this step, (B, D)."""
        answers = np.zeros((len(self.rows), ANSWER), np.float32)
        figures = np.zeros((len(self.rows), 5), np.float32)
        for row, said in enumerate(self.last):
            if said is not None:
                forms = self.forms[row]
                answers[row] = said.features
                agreeing, repeated = forms.count(said.form) / len(forms), forms[-2:] == [said.form] * 2
                figures[row, :-1] = (1, agreeing, repeated, said.certainty)
        figures[:, -1] = step / self.most
        last = np.arange(self.asked.shape[1]) == self.by[:, None]
        columns = [np.broadcast_to(column, last.shape) for column in self.columns.T]
        endpoints = [last.astype(np.float32), (self.asked / self.most).astype(np.float32), *columns]
        return flat(*stacked(self.world.queries[self.rows], answers, figures, endpoints))

    def offered(self) -> Bools:
        """What each can do, (B, N + 1): ask whoever has not failed, or stop once somebody has answered."""
        answered = np.array([said is not None for said in self.last])
        return np.concatenate([~self.failed, answered[:, None]], axis=1)

    def ask(self, who: I64, chosen: I64) -> list[Said]:
        """Let these routes ask these endpoints."""
        last = [self.last[row] for row in who.tolist()]
        shown = [None if said is None else said.text for said in last]
        steps = [Step(int(self.rows[row]), int(i), text) for row, i, text in zip(who, chosen, shown, strict=True)]
        replies = self.world.say(steps)
        for row, i, said in zip(who.tolist(), chosen.tolist(), replies, strict=True):
            self.asked[row, i] += 1
            if said.text is None:
                self.failed[row, i] = True
            else:
                self.last[row], self.by[row] = said, i
                self.forms[row].append(said.form)
        return replies


def roll(
    policy: Callable[[F32], Any],
    world: World,
    rows: I64,
    settings: Settings,
    unit: float,
    columns: F32,
    rng: np.random.Generator | None,
) -> Routes:
    """One route for each of these queries.

    Args:
        policy: logits (B, N + 1) of what is seen.
        unit: see `World.unit`.
        rng: draws the actions; None: the likeliest.
    """
    size, n = len(rows), len(world.names)
    chains = _Chains(world, rows, settings.most, columns)
    alive = np.ones(size, np.bool_)
    quality, usd, calls = np.zeros(size, np.float32), np.zeros(size, np.float32), np.zeros(size, np.int64)
    steps = []
    for step in range(settings.most):
        seen, offered = chains.seen(step), chains.offered()
        alive &= offered.any(axis=1)
        logits = policy(seen)
        masked = np.where(offered, logits, -np.inf)
        chosen = masked.argmax(axis=1) if rng is None else draw(logits, offered, rng)
        asks = alive & (chosen < n)
        who = np.flatnonzero(asks)
        replies = chains.ask(who, chosen[who])
        after, paid = quality.copy(), np.zeros(size, np.float32)
        for row, said in zip(who.tolist(), replies, strict=True):
            paid[row] = said.usd
            after[row] = quality[row] if said.text is None else said.worth
        exhausted = asks & (step == settings.most - 1)
        rewards = step_rewards(
            settings,
            alive=alive,
            asks=asks,
            exhausted=exhausted,
            before=quality if step else None,
            after=after,
            cost=paid / max(unit, 1e-12),
        )
        steps.append((seen, offered, chosen, alive.copy(), rewards))
        quality, alive = after, asks & ~exhausted
        usd, calls = usd + paid, calls + asks
    seen, offered, chosen, taken, rewards = (np.stack(column, axis=1) for column in zip(*steps, strict=True))
    return Routes(seen, offered, chosen, taken, rewards, quality, usd, calls)


def publish_routes(root: str | Path, net: Mlp, names: Sequence[str], settings: Settings, *, seed: int) -> int:
    """Publish a trained policy as the next version of a folder; `focalroute.Ensemble` serves it."""
    return publish_der(
        root,
        model=der_model(mlp_parameters(net)),
        names=names,
        parent=None,
        hyperparameters={**asdict(settings), "seed": seed},
    )
