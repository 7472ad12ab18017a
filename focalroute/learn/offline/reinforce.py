"""Trains the Decider by the policy gradient on recorded queries; each sample of a query is the others' baseline.

REINFORCE (Williams 1992) with the leave-one-out baseline (Kool et al. 2019). Lambda is drawn anew for every batch, so
that one policy serves every price. `fit_critic` then leaves online updates a central critic to start from, fitted by
least squares to what rollouts were rewarded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from focalroute.core.records import COST_WEIGHT_RANGE, F32, F64, I64
from focalroute.learn.adam import Adam, Moments
from focalroute.learn.backend import Backend
from focalroute.learn.losses import likelihood
from focalroute.learn.nets import STATE, CriticNet, DeciderNet, FusionNet, parameters
from focalroute.learn.offline.rollout import LogView, Rollout, roll
from focalroute.learn.offline.stacking import gathered
from focalroute.learn.offline.views import Views, drawn_price, nearest
from focalroute.money.pacing import HIGHEST_WEIGHT, LOWEST_WEIGHT
from focalroute.observe import layout

_OBSERVED = layout.width(layout.CONTEXT) + layout.width(layout.ENDPOINT)
_MEMBERS = layout.width(layout.MEMBER)
_BATCHES = 24  # batches of rollouts, each at a cost weight of its own
_SAMPLES = 2  # rollouts of a query
_MINIBATCH, _RATE = 256, 5e-3


@dataclass(frozen=True, slots=True)
class OfflineSettings:
    """How to train.

    Attributes:
        rounds: the most rounds a query may take.
        window: T of the observer.
        validation: share of the log, its end, that is held out to choose by; then it is learned from as well.
        fusion_epochs: over random sets.
        fusion_rate: of Adam; likewise ``decider_rate``.
        lookahead_steps: of the regression that gives the Decider another start; ``lookahead_rate``: of its Adam.
        iterations: of the policy gradient.
        queries: in a batch of the policy gradient.
        samples: rollouts of each of these.
        entropy: weight of the Decider's entropy bonus.
        renew: iterations after which windows are renewed and the policy is measured.
        probed: share of queries on which an endpoint that was not asked is looked at all the same.
        finish: iterations at the end, with the validation part.
        finish_epochs: of the Fusion at the end, on the sets that are asked.
        critic_steps: of the regression that leaves online updates a critic.
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
        """Units of progress in all."""
        return self.fusion_epochs + self.lookahead_steps + self.iterations + self.finish + self.critic_steps


#: The cost weights at which a policy is measured; at the first everybody is asked, at the last the cheapest alone.
GRID = (LOWEST_WEIGHT, 0.003, 0.01, 0.03, 0.06, 0.12, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, HIGHEST_WEIGHT)


_BLOCKS = 20  # of the validation queries, in their order


@dataclass(frozen=True, slots=True)
class ValidationPoint:
    """A policy at one cost weight, on queries that it was not trained on.

    Attributes:
        cost_weight: lambda.
        accuracy: mean worth of the answers.
        cost_ratio: paid / what asking everybody costs.
        calls: a query.
        served: the weight that is served in place of this one: its own, or the next higher one that is (see `kept`).
        alone: whether one endpoint is asked, by the text.
    """

    cost_weight: float
    accuracy: float
    cost_ratio: float
    calls: float
    served: float
    alone: bool = False


@dataclass(frozen=True, slots=True)
class PolicyGradient:
    """The batch that the Decider learns from.

    Attributes:
        views: the log.
        rows: the queries of it to learn from.
        fusion: fuses.
        everybody: C, mean USD of asking all.
        settings: how to learn.
        passes: which engine computes.
        advance: called with 1 after every step.
    """

    views: Views
    rows: I64
    fusion: FusionNet
    everybody: float
    settings: OfflineSettings
    passes: Backend
    advance: Callable[[int], object]

    def gradients(self, decider: DeciderNet, rng: np.random.Generator) -> dict[str, NDArray[np.floating]]:
        """Of the mean reward of one batch, at one cost weight, its sign turned."""
        rows = rng.choice(self.rows, min(self.settings.queries, len(self.rows)), replace=False)
        view, price = drawn_price(rng)
        played = self.roll(decider, view, rows, price, self.settings.samples, rng)
        reward = 2 * played.worth - 1 - price * played.shares.sum(axis=0)
        by_query = reward.reshape(len(rows), -1)
        others = (by_query.sum(axis=1, keepdims=True) - by_query) / max(self.settings.samples - 1, 1)
        advantage = (by_query - others).ravel() / np.sqrt(1 + price**2)
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
        price: float,
        samples: int,
        rng: np.random.Generator | None,
        *,
        alone: bool = False,
    ) -> Rollout:
        """These queries answered at one cost weight; without ``rng`` greedily."""
        return roll(
            decider,
            self.fusion,
            self.views.at(view, rows),
            cost_weight=np.full(len(rows), price, np.float32),
            everybody=self.everybody,
            rounds=self.settings.rounds,
            samples=samples,
            rng=rng,
            passes=self.passes,
            alone=alone,
        )

    def curve(self, decider: DeciderNet, rows: I64) -> tuple[ValidationPoint, ...]:
        """The greedy policy on these queries at every price of `GRID`: the nets, or the one endpoint that texts favour.

        Where no two answers can be compared the one that has more reward; else the nets, unless they surely have less.
        """
        recorded = self.views.recorded
        comparable = recorded.closed.any() or (recorded.size < recorded.usable.sum(axis=1)).any()
        everything = float(recorded.usd[rows].sum())
        worths, points = [], []
        for price in GRID:
            alone = price > COST_WEIGHT_RANGE[1]
            played = self.roll(decider, nearest(price), rows, price, 1, None, alone=alone)
            if not alone and price > LOWEST_WEIGHT:
                one = self.roll(decider, nearest(price), rows, price, 1, None, alone=True)
                if _surely(_reward(one, price) - _reward(played, price)) > 2 * comparable:
                    played, alone = one, True
            paid = float(played.shares.sum()) * self.everybody
            calls = float((played.first | played.later).sum(axis=1).mean())
            cost_ratio = paid / everything if everything else 0.0
            worths.append(played.worth)
            points.append(ValidationPoint(price, float(played.worth.mean()), cost_ratio, calls, price, alone))
        # Where no two answers can be compared, what looks better than chance on few queries is often luck; what texts
        # favour costs less and has fewer right by its own estimate, which is shrunk.
        gain = np.where(comparable | np.array([point.alone for point in points]), -1.0, 1.0)
        cost = np.array([point.cost_ratio for point in points])
        served = [GRID[at] for at in kept(np.stack(worths), cost, gain)]
        return tuple(replace(point, served=min(w for w in served if w >= point.cost_weight)) for point in points)


def _reward(played: Rollout, price: float) -> F32:
    """Of each query, minus what it cost; one sample of each."""
    reward: F32 = played.worth - price * played.shares.sum(axis=0)
    return reward


def improved(
    learners: Sequence[PolicyGradient],
    decider: DeciderNet,
    moments: Moments,
    *,
    steps: range,
    total: int,
    share: float,
    rng: np.random.Generator,
) -> tuple[DeciderNet, Moments]:
    """Some steps of ``total``, along which the rate rises and then falls.

    Args:
        learners: each step learns from one of them, drawn by chance.
        decider: where to start.
        moments: of Adam, so far.
        steps: which of the steps.
        total: how many there are.
        share: of the settings' rate.
        rng: chance.
    """
    adam = Adam(parameters(decider), moments, learning_rate=0.0, max_norm=1.0)
    for step in steps:
        learner = learners[int(rng.integers(len(learners)))]
        warm = min(1.0, (step + 1) / 10)
        rate = learner.settings.decider_rate * share * warm
        adam.learning_rate = rate * (0.1 + 0.45 * (1 + np.cos(np.pi * step / total)))
        adam.step(learner.gradients(decider, rng))
        decider = replace(decider, **adam.parameters)
        learner.advance(1)
    return decider, adam.moments


def kept(worth: F32, cost: F64, gain: F64) -> list[int]:
    """Which of G ways to answer, the dearest first, are worth serving; what lies between two of them is left to chance.

    Always the last; and the first, unless it has too few right beside the best of the others: then that one, on the
    same terms. Each of the others has to have more right than a mixture by chance of its neighbours at its cost.

    Args:
        worth: (G, n) of the answers to the same queries.
        cost: (G,).
        gain: (G,) by how many standard errors of the paired difference; below 0: it may have fewer. The first has to
            have as many more than the best of the others, or may have fewer by twice as many.
    """
    last, right = len(worth) - 1, worth.mean(axis=1)
    first = 0
    while first < last:
        equals = first + 1 + np.flatnonzero(right[first + 1 :] >= right[first + 1 :].max())
        best = int(equals[cost[equals].argmin()])  # of equal costs the lowest weight: later texts may cost otherwise
        if _surely(worth[first] - worth[best]) >= min(gain[first], 2 * gain[first]):
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
                gains[at] = _surely(worth[at] - share * worth[dear] - (1 - share) * worth[cheap]) - gain[at]
        most = max(gains, key=gains.__getitem__, default=0)
        if gains.get(most, -np.inf) < 0:
            return ends
        found.add(most)


def _surely(gain: NDArray[np.floating]) -> float:
    """The mean, in standard errors; the larger of those over queries and over blocks, as topics come in blocks."""
    blocks = [block.mean() for block in np.array_split(gain, min(_BLOCKS, len(gain)))]
    error = max(gain.std() / math.sqrt(len(gain)), np.std(blocks) / math.sqrt(len(blocks)), 1e-9)
    return float(gain.mean() / error)


def score_of(curve: tuple[ValidationPoint, ...]) -> float:
    """Mean over the prices at which it decides of the reward, (u - lambda c / C) / (1 + lambda)."""
    rewards = [
        (2 * point.accuracy - 1 - point.cost_weight * point.cost_ratio) / (1 + point.cost_weight)
        for point in curve
        if LOWEST_WEIGHT < point.cost_weight <= COST_WEIGHT_RANGE[1]
    ]
    return float(np.mean(rewards))


def valued(played: Rollout, seen: LogView, cost_weight: float) -> tuple[F32, F32]:
    """States (S, Ds) of all steps of the rollouts that have an answer, and their rewards to go (S,).

    Args:
        played: the rollouts.
        seen: what they were rolled out on.
        cost_weight: lambda, the same for all.
    """
    answered = played.answer >= 0
    size = len(played.answer)
    rewards = -cost_weight * played.shares
    to_go = rewards[::-1].cumsum(axis=0)[::-1] + (2 * played.worth - 1)
    states, targets = [], []
    last = np.zeros((size, STATE), np.float32)
    for number, step in enumerate(played.steps):
        free = step.heads.eligible.any(axis=1)  # a forced STOP is no step
        rows = step.rows[free]
        last[rows, :_OBSERVED] = np.concatenate([step.context, step.endpoints.mean(axis=1)], axis=1)[free]
        states.append(last[rows[answered[rows]]])
        targets.append(to_go[number, rows[answered[rows]]])
    rows = np.flatnonzero(answered)
    states.append(_fused(last[rows], played, seen, rows))
    targets.append(2 * played.worth[rows] - 1)
    return np.concatenate(states), np.concatenate(targets).astype(np.float32)


def _fused(last: F32, played: Rollout, seen: LogView, rows: I64) -> F32:
    """As `focalroute.learn.nets.fusion_state`."""
    of = rows // (len(played.answer) // len(seen.recorded))
    members, candidates, _, offered = gathered(seen, of, played.first[rows], played.later[rows])
    count = ((played.first | played.later)[rows] & seen.recorded.usable[of]).sum(axis=1) * offered.sum(axis=1)
    states = last.copy()
    shown = (members * offered[:, :, None, None]).sum(axis=(1, 2)) / np.maximum(count, 1)[:, None]
    states[:, _OBSERVED : _OBSERVED + _MEMBERS] = shown
    states[:, _OBSERVED + _MEMBERS : -1] = candidates.max(axis=1)
    states[:, -1] = 1
    return states


def fit_critic(net: CriticNet, learner: PolicyGradient, decider: DeciderNet, rng: np.random.Generator) -> CriticNet:
    """The critic after some steps of Adam, its rate falling along a cosine, on rollouts of a policy at random prices.

    Args:
        net: where to start.
        learner: rolls out, and says how many steps to take.
        decider: the policy's.
        rng: chance.
    """
    parts = []
    for _ in range(_BATCHES):
        rows = learner.rows
        at = rng.choice(rows, min(learner.settings.queries, len(rows)), replace=False)
        view, price = drawn_price(rng)
        parts.append(valued(learner.roll(decider, view, at, price, _SAMPLES, rng), learner.views.at(view, at), price))
    states, targets = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    total = learner.settings.critic_steps if len(states) else 0  # of a log to which nobody has an answer: nothing
    adam = Adam(parameters(net), Moments.zero(parameters(net)), learning_rate=_RATE, max_norm=1.0)
    for step in range(total):
        some = rng.integers(len(states), size=_MINIBATCH)
        values, vjp = learner.passes.critic(net, states[some])
        adam.learning_rate = _RATE * (0.05 + 0.475 * (1 + np.cos(np.pi * step / total)))
        adam.step(vjp((values - targets[some]) / np.float32(_MINIBATCH)))
        net = replace(net, **adam.parameters)
        learner.advance(1)
    return net
