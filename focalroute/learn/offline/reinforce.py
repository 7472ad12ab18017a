"""Trains the Decider by the policy gradient on recorded queries.

This is REINFORCE (Williams 1992) with the leave-one-out baseline (Kool et al. 2019): the baseline of a sample is the
mean of the query's other samples. Every batch draws its own lambda, so that one policy serves every cost weight.
`fit_critic` then fits a central critic for online updates to start from, by least squares to the rollouts' rewards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from focalroute.core.records import COST_WEIGHT_RANGE, F32, F64, I64
from focalroute.learn.adam import Adam, Moments, cosine_decay
from focalroute.learn.backend import Backend
from focalroute.learn.losses import likelihood
from focalroute.learn.nets import STATE, CriticNet, DeciderNet, FusionNet, parameters
from focalroute.learn.offline.rollout import LogView, Rollout, roll
from focalroute.learn.offline.stacking import fusion_inputs
from focalroute.learn.offline.views import Views, draw_cost_weight, nearest
from focalroute.money.pacing import HIGHEST_WEIGHT, LOWEST_WEIGHT
from focalroute.observe import layout

_OBSERVED = layout.width(layout.CONTEXT) + layout.width(layout.ENDPOINT)
_MEMBERS = layout.width(layout.MEMBER)
_BATCHES = 24  # batches of rollouts for the critic, each at its own cost weight
_SAMPLES = 2  # rollouts of a query for the critic
_MINIBATCH, _RATE = 256, 5e-3


@dataclass(frozen=True, slots=True)
class OfflineSettings:
    """The settings of offline training.

    Attributes:
        rounds: most rounds of a query.
        window: length of the observer's window.
        validation: share of the log, at its end, that is held out for model selection; at the end of training it is
            learned from, too.
        fusion_epochs: epochs of the Fusion over random sets.
        fusion_rate: Adam's learning rate for the Fusion; likewise ``decider_rate``.
        lookahead_steps: steps of the regression that gives the Decider another start; ``lookahead_rate``: its rate.
        iterations: of the policy gradient.
        queries: in a batch of the policy gradient.
        samples: rollouts of each query in a batch.
        entropy: weight of the Decider's entropy bonus.
        renew: iterations after which windows are renewed and the policy is measured.
        probed: see `focalroute.learn.offline.views.Views`.
        finish: iterations at the end, with the validation part.
        finish_epochs: epochs of the Fusion at the end, on the sets that the policy asks.
        critic_steps: steps of the critic's regression.
    """

    rounds: int = 3
    window: int = 500
    validation: float = 0.2
    fusion_epochs: int = 12
    fusion_rate: float = 3e-3
    decider_rate: float = 3e-3
    lookahead_steps: int = 300
    lookahead_rate: float = 3e-3
    iterations: int = 400
    queries: int = 128
    samples: int = 16
    entropy: float = 0.0
    renew: int = 80
    probed: float = 0.01
    finish: int = 40
    finish_epochs: int = 2
    critic_steps: int = 300

    @property
    def steps(self) -> int:
        """Total units of progress."""
        return self.fusion_epochs + self.lookahead_steps + self.iterations + self.finish + self.critic_steps


#: The cost weights at which a policy is measured. At the first all endpoints are asked (one, if hardly any two answers
#: can be compared), at the last only the cheapest.
GRID = (LOWEST_WEIGHT, 0.003, 0.01, 0.03, 0.06, 0.12, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, HIGHEST_WEIGHT)


_BLOCKS = 20  # of consecutive validation queries
_COMPARABLE = 0.05  # least share of queries with choices or with equal answers, for more than one endpoint to be of use


@dataclass(frozen=True, slots=True)
class ValidationPoint:
    """A policy's results at one cost weight, on queries that it was not trained on.

    Attributes:
        cost_weight: lambda.
        accuracy: mean value of the answers.
        cost_ratio: cost / cost of asking all endpoints.
        calls: mean number of calls per query.
        served: the weight of the option that serves at this one, see `assigned`.
        alone: whether one endpoint is asked, by the text, instead of using the nets.
    """

    cost_weight: float
    accuracy: float
    cost_ratio: float
    calls: float
    served: float
    alone: bool = False


@dataclass(frozen=True, slots=True)
class PolicyGradient:
    """Rolls out Deciders on a log, and computes their policy gradients and results.

    Attributes:
        views: the log.
        rows: its queries to learn from.
        fusion: the Fusion.
        ask_all_usd: C, mean USD of asking all.
        settings: how to learn.
        passes: the engine that runs the networks.
        advance: called with 1 after every step.
    """

    views: Views
    rows: I64
    fusion: FusionNet
    ask_all_usd: float
    settings: OfflineSettings
    passes: Backend
    advance: Callable[[int], object]

    def gradients(self, decider: DeciderNet, rng: np.random.Generator) -> dict[str, NDArray[np.floating]]:
        """Return the gradients of minus the mean reward of one batch at one cost weight."""
        rows = rng.choice(self.rows, min(self.settings.queries, len(self.rows)), replace=False)
        view, cost_weight = draw_cost_weight(rng)
        played = self.roll(decider, view, rows, cost_weight, self.settings.samples, rng)
        reward = 2 * played.worth - 1 - cost_weight * played.shares.sum(axis=0)
        by_query = reward.reshape(len(rows), -1)
        others = (by_query.sum(axis=1, keepdims=True) - by_query) / max(self.settings.samples - 1, 1)
        advantage = (by_query - others).ravel() / np.sqrt(1 + cost_weight**2)
        advantage /= max(float(advantage.std()), 1e-6)
        total: dict[str, NDArray[np.floating]] = {}
        for step in played.steps:
            distribution = likelihood(step.logits, step.heads)
            gain = advantage[step.rows, None] * distribution.d_log_pi
            d = -(gain + self.settings.entropy * distribution.d_entropy) / len(reward)
            for name, gradient in step.vjp(d.astype(step.logits.dtype)).items():
                total[name] = total[name] + gradient if name in total else gradient
        return total

    def roll(
        self,
        decider: DeciderNet,
        view: int,
        rows: I64,
        cost_weight: float,
        samples: int,
        rng: np.random.Generator | None,
        *,
        alone: bool = False,
    ) -> Rollout:
        """Roll out these queries at one cost weight; greedily without ``rng``."""
        return roll(
            decider,
            self.fusion,
            self.views.at(view, rows),
            cost_weight=np.full(len(rows), cost_weight, np.float32),
            ask_all_usd=self.ask_all_usd,
            rounds=self.settings.rounds,
            samples=samples,
            rng=rng,
            passes=self.passes,
            alone=alone,
        )

    def curve(self, decider: DeciderNet, rows: I64) -> tuple[ValidationPoint, ...]:
        """Measure the greedy policy on these queries at every weight of `GRID`: the nets, or one endpoint by the text.

        The nets are used unless asking one endpoint has a significantly higher net value. One is always asked above
        `COST_WEIGHT_RANGE`, and if hardly any two answers can be compared, as further endpoints then confirm nothing.
        """
        recorded = self.views.recorded
        comparable = np.mean(recorded.closed | (recorded.size < recorded.usable.sum(axis=1))) >= _COMPARABLE
        ask_all = float(recorded.usd[rows].sum())
        worths, points = [], []
        for cost_weight in GRID:
            alone = cost_weight > COST_WEIGHT_RANGE[1] or not comparable
            played = self.roll(decider, nearest(cost_weight), rows, cost_weight, 1, None, alone=alone)
            if not alone and cost_weight > LOWEST_WEIGHT:
                one = self.roll(decider, nearest(cost_weight), rows, cost_weight, 1, None, alone=True)
                if _mean_in_errors(_net_value(one, cost_weight) - _net_value(played, cost_weight)) > 2:
                    played, alone = one, True
            usd = float(played.shares.sum()) * self.ask_all_usd
            calls = float((played.first | played.later).sum(axis=1).mean())
            cost_ratio = usd / ask_all if ask_all else 0.0
            worths.append(played.worth)
            accuracy = float(played.worth.mean())
            points.append(ValidationPoint(cost_weight, accuracy, cost_ratio, calls, cost_weight, alone))
        served = assigned(np.stack(worths), np.array([point.cost_ratio for point in points]))
        return tuple(replace(point, served=GRID[at]) for point, at in zip(points, served, strict=True))


def _net_value(played: Rollout, cost_weight: float) -> F32:
    """Return each query's value v - lambda c / C, of one sample each."""
    value: F32 = played.worth - cost_weight * played.shares.sum(axis=0)
    return value


def improve(
    learners: Sequence[PolicyGradient],
    decider: DeciderNet,
    moments: Moments,
    *,
    steps: range,
    total: int,
    share: float,
    rng: np.random.Generator,
) -> tuple[DeciderNet, Moments]:
    """Take some steps of the policy gradient; over all ``total`` steps the learning rate rises and then falls.

    Args:
        learners: each step learns from one of them, drawn at random.
        decider: where to start.
        moments: Adam's state at the start.
        steps: the steps to take, of ``total``.
        total: the number of all steps, with those of earlier and later calls.
        share: factor on the settings' learning rate.
        rng: the random generator.
    """
    adam = Adam(parameters(decider), moments, learning_rate=0.0, max_norm=1.0)
    for step in steps:
        learner = learners[int(rng.integers(len(learners)))]
        warm = min(1.0, (step + 1) / 10)
        adam.learning_rate = learner.settings.decider_rate * share * warm * cosine_decay(step, total, least=0.1)
        adam.step(learner.gradients(decider, rng))
        decider = replace(decider, **adam.parameters)
        learner.advance(1)
    return decider, adam.moments


def assigned(worth: F32, cost: F64) -> list[int]:
    """Assign one of G options to each of the G cost weights at which they were measured, lowest weight first.

    The options are sorted by decreasing cost, the last one staying last, and those that are not `useful` are replaced
    by the next useful one. So a higher weight never costs more: a pacer that raises the weight to spend less would
    otherwise spend more.

    Args:
        worth: (G, n) values of the options' answers to the same n queries.
        cost: (G,) of the options.

    Returns:
        The option for each weight.
    """
    options = [*np.argsort(-cost[:-1], kind="stable").tolist(), len(cost) - 1]
    places = useful(worth[options], cost[options])
    return [options[min(place for place in places if place >= at)] for at in range(len(options))]


def useful(worth: F32, cost: F64) -> list[int]:
    """Return which of G options, most expensive first, are worth serving.

    A pacer can mix two options at random to reach any cost between theirs, so an option must be about as accurate as
    the mixture of its neighbours at the same cost: at most one standard error less. The last option is always useful.
    The first is useful unless it is less accurate than the best of the others by two standard errors of the paired
    difference; in that case the best takes its place and is tested in the same way.

    Args:
        worth: (G, n) values of the options' answers to the same n queries.
        cost: (G,) of the options.
    """
    last, accuracy = len(worth) - 1, worth.mean(axis=1)
    first = 0
    while first < last:
        ties = first + 1 + np.flatnonzero(accuracy[first + 1 :] >= accuracy[first + 1 :].max())
        best = int(ties[cost[ties].argmin()])  # of equal costs the lowest weight: later texts may cost differently
        if _mean_in_errors(worth[first] - worth[best]) >= -2:
            break
        first = best
    found = {first, last}
    while True:
        gains: dict[int, float] = {}
        ends = sorted(found)
        for dear, cheap in pairwise(ends):
            for at in range(dear + 1, cheap):
                gap = cost[dear] - cost[cheap]
                share = np.clip((cost[at] - cost[cheap]) / gap, 0, 1) if gap > 0 else 0.0
                gains[at] = _mean_in_errors(worth[at] - share * worth[dear] - (1 - share) * worth[cheap])
        most = max(gains, key=gains.__getitem__, default=0)
        if gains.get(most, -np.inf) < -1:
            return ends
        found.add(most)


def _mean_in_errors(gain: NDArray[np.floating]) -> float:
    """Return the mean in standard errors, of queries or of blocks, whichever is larger: topics come in blocks."""
    blocks = [block.mean() for block in np.array_split(gain, min(_BLOCKS, len(gain)))]
    error = max(gain.std() / math.sqrt(len(gain)), np.std(blocks) / math.sqrt(len(blocks)), 1e-9)
    return float(gain.mean() / error)


def score_of(curve: tuple[ValidationPoint, ...]) -> float:
    """Return the mean of (u - lambda c / C) / (1 + lambda) over the cost weights at which the nets decide."""
    rewards = [
        (2 * point.accuracy - 1 - point.cost_weight * point.cost_ratio) / (1 + point.cost_weight)
        for point in curve
        if LOWEST_WEIGHT < point.cost_weight <= COST_WEIGHT_RANGE[1]
    ]
    return float(np.mean(rewards))


def critic_targets(played: Rollout, seen: LogView, cost_weight: float) -> tuple[F32, F32]:
    """Return the states (S, Ds) of all steps of the rollouts that have an answer, and their rewards to go (S,).

    Args:
        played: the rollouts.
        seen: the queries.
        cost_weight: lambda, the same for all.
    """
    answered = played.answer >= 0
    size = len(played.answer)
    rewards = -cost_weight * played.shares
    to_go = rewards[::-1].cumsum(axis=0)[::-1] + (2 * played.worth - 1)
    states, targets = [], []
    last = np.zeros((size, STATE), np.float32)
    for number, step in enumerate(played.steps):
        free = step.heads.eligible.any(axis=1)  # a forced STOP is not a step
        rows = step.rows[free]
        last[rows, :_OBSERVED] = np.concatenate([step.context, step.endpoints.mean(axis=1)], axis=1)[free]
        states.append(last[rows[answered[rows]]])
        targets.append(to_go[number, rows[answered[rows]]])
    rows = np.flatnonzero(answered)
    states.append(_fusion_states(last[rows], played, seen, rows))
    targets.append(2 * played.worth[rows] - 1)
    return np.concatenate(states), np.concatenate(targets).astype(np.float32)


def _fusion_states(last: F32, played: Rollout, seen: LogView, rows: I64) -> F32:
    """Return the states before the answer, given the last Decider states, as `focalroute.learn.nets.fusion_state`."""
    of = rows // (len(played.answer) // len(seen.recorded))
    members, candidates, _, offered = fusion_inputs(seen, of, played.first[rows], played.later[rows])
    count = ((played.first | played.later)[rows] & seen.recorded.usable[of]).sum(axis=1) * offered.sum(axis=1)
    states = last.copy()
    shown = (members * offered[:, :, None, None]).sum(axis=(1, 2)) / np.maximum(count, 1)[:, None]
    states[:, _OBSERVED : _OBSERVED + _MEMBERS] = shown
    states[:, _OBSERVED + _MEMBERS : -1] = candidates.max(axis=1)
    states[:, -1] = 1
    return states


def fit_critic(net: CriticNet, learner: PolicyGradient, decider: DeciderNet, rng: np.random.Generator) -> CriticNet:
    """Fit the critic by Adam, with a learning rate that falls along a cosine, to rollouts at random cost weights.

    Args:
        net: where to start.
        learner: rolls out the Decider; its settings give the number of steps.
        decider: the policy's Decider.
        rng: the random generator.
    """
    parts = []
    for _ in range(_BATCHES):
        rows = learner.rows
        at = rng.choice(rows, min(learner.settings.queries, len(rows)), replace=False)
        view, cost_weight = draw_cost_weight(rng)
        played = learner.roll(decider, view, at, cost_weight, _SAMPLES, rng)
        parts.append(critic_targets(played, learner.views.at(view, at), cost_weight))
    states, targets = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    total = learner.settings.critic_steps if len(states) else 0  # a log without any answer has no states
    adam = Adam(parameters(net), learning_rate=_RATE, max_norm=1.0)
    for step in range(total):
        some = rng.integers(len(states), size=_MINIBATCH)
        values, vjp = learner.passes.critic(net, states[some])
        adam.learning_rate = _RATE * cosine_decay(step, total)
        adam.step(vjp((values - targets[some]) / np.float32(_MINIBATCH)))
        net = replace(net, **adam.parameters)
        learner.advance(1)
    return net
