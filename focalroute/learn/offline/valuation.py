"""A central critic for the policy that offline training ends with: online updates start from it.

By least squares on rollouts: the states of `focalroute.learn.critic`, and what each rollout was rewarded from there on.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from focalroute.learn.adam import Adam, Moments
from focalroute.learn.critic import STATE, CriticNet, critic_parameters
from focalroute.learn.nets import DeciderNet
from focalroute.learn.offline.recorded import F32, I64
from focalroute.learn.offline.reinforce import PolicyGradient
from focalroute.learn.offline.rollout import Played, Seen
from focalroute.learn.offline.stacking import gathered
from focalroute.learn.offline.views import drawn_price
from focalroute.observe import layout

_OBSERVED = layout.width(layout.CONTEXT) + layout.width(layout.ENDPOINT)
_MEMBERS = layout.width(layout.MEMBER)
_BATCHES = 24  # batches of rollouts, each at a cost weight of its own
_SAMPLES = 2  # rollouts of a query
_MINIBATCH, _RATE = 256, 5e-3


def valued(played: Played, seen: Seen, cost_weight: float) -> tuple[F32, F32]:
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


def _fused(last: F32, played: Played, seen: Seen, rows: I64) -> F32:
    """As `focalroute.learn.critic.fusion_state`."""
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
    adam = Adam(critic_parameters(net), Moments.zero(critic_parameters(net)), learning_rate=_RATE, max_norm=1.0)
    for step in range(total):
        some = rng.integers(len(states), size=_MINIBATCH)
        values, pull = learner.passes.critic(net, states[some])
        adam.learning_rate = _RATE * (0.05 + 0.475 * (1 + np.cos(np.pi * step / total)))
        adam.step(pull((values - targets[some]) / np.float32(_MINIBATCH)))
        net = replace(net, **adam.parameters)
        learner.advance(1)
    return net
