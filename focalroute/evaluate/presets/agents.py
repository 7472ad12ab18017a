"""RL-Focal's two agents and their critic (arXiv 2502.04492): what they see, how they act, how they learn.

B lanes are streams played side by side, one in service. N endpoints, K candidates, T past queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from focalroute.core.records import F32
from focalroute.evaluate.presets.diversities import METRICS
from focalroute.evaluate.presets.networks import Learned, Mlp, Ppo, bernoulli, categorical, improve, regress
from focalroute.learn.losses import Likelihood
from focalroute.learn.mappo import GAE_LAMBDA, gae
from focalroute.learn.nets import Floats
from focalroute.policy.decider import EXPLORATION

I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]
_PPO = Ppo(rate=0.001, clip=0.02)
_LEAST_TEAM = 2


class BranchingHead:
    """The last layer of a Decider over N endpoints, as published: one head for each endpoint, independent draws.

    Of fewer than two drawn the likeliest fill up.

    Attributes:
        width: outputs of the layer.
    """

    def __init__(self, endpoints: int) -> None:
        self.width = endpoints

    def draw(self, logits: Floats, rng: np.random.Generator) -> tuple[Bools, F32]:
        """What is drawn (B, N), and the pools (B, N) of at least two that it makes."""
        p = _probabilities(logits)
        picked = rng.random(p.shape) < p
        return picked, _team(picked, p)

    def likeliest(self, logits: Floats) -> tuple[Bools, F32]:
        """All that are more likely than not, and the pools that they make."""
        p = _probabilities(logits)
        return p > 0.5, _team(p > 0.5, p)

    def likelihood(self, logits: Floats, picked: Bools) -> Likelihood:
        """The joint probability of what was drawn (B, N)."""
        return bernoulli(logits, picked)


@dataclass(frozen=True, slots=True)
class RlFocalSettings:
    """How RL-Focal is trained and served; the first five as published, found there by grid search.

    Attributes:
        window: T.
        alpha: the penalty of Eq. 6.
        gamma: the discount over the stream of queries.
        ppo: learning rate 0.001 and clip 0.02; the rest is ours.
        hidden: units of each network's hidden layer (about 17,000 parameters in all, as published).
        update_every: queries between two updates.
        passes: n_ep, over the training part; the first half is for the Decider, the second for the Fusion.
        lanes: streams played side by side in training.
        largest_free_form: candidates of a free-form question that are fused, the rest is cut.
        sample: whether pools are drawn in service too and the Decider goes on learning (Algorithm 2); else it stays as
            trained and names all that are more likely than not.
        metrics: the diversity metrics in o1, of `METRICS`.
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

    The critic has two heads, since Eq. 6 pays the Decider less than the Fusion: V of the Decider's and of the Fusion's
    return. Its state [o1 at t + 1, o2 at t] is the published one: it holds the decision that it judges.
    """

    decider: Learned
    fusion: Learned
    critic: Learned

    @classmethod
    def fresh(cls, rng: np.random.Generator, endpoints: int, candidates: int, settings: RlFocalSettings) -> Agents:
        """Before any training: every endpoint is as likely as not, every candidate as good as another."""
        first = endpoints + 1 + len(settings.metrics)
        second = settings.window + endpoints * candidates
        heads = settings.decider_head(endpoints).width
        sizes = ((first, heads), (second, candidates), (first + second, 2))
        nets = (Mlp.initial(rng, inputs, outputs, hidden=settings.hidden) for inputs, outputs in sizes)
        return cls(*map(Learned.fresh, nets))


@dataclass(frozen=True, slots=True)
class AgentStep:
    """One query in B lanes, or L of them with a second axis (B, L, ...).

    Attributes:
        seen: o1, (B, Do).
        picked: (B, N) what the Decider drew.
        shown: o2, (B, Df).
        offered: (B, K) the candidates there were.
        fused: (B,) the candidate the Fusion drew.
        tells: (B,) whether the reward of that draw is known.
        state: (B, Ds) the critic's.
        rewards: (B, 2) of the Decider (Eq. 6) and of the Fusion (its draw's).
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
        """Consecutive steps of the same lanes as one, time on the second axis."""
        return cls(**{f.name: np.stack([getattr(step, f.name) for step in steps], axis=1) for f in fields(cls)})


def decider_view(pools: F32, metrics: F32) -> F32:
    """o1 (B, N + 1 + M): the pool of the last answer (B, N), its size over N, its M diversity metrics."""
    return np.concatenate([pools, pools.mean(axis=1, keepdims=True), metrics], axis=1)


def fused_view(past: F32, shown: F32) -> F32:
    """o2 (B, T + N K): the past rewards (B, T), the latest last, and each member's probabilities (B, N, K)."""
    return np.concatenate([past, shown.reshape(len(shown), -1)], axis=1)


def learn(
    agents: Agents, steps: AgentStep, settings: RlFocalSettings, rng: np.random.Generator, *, decide: bool, fuse: bool
) -> Agents:
    """Agents after one update on L + 1 consecutive steps, of which the last only lends its value to the one before it.

    One advantage for each agent from its head of the central critic, by GAE over the stream.

    Args:
        agents: before.
        steps: (B, L + 1, ...).
        settings: how to learn.
        rng: shuffles.
        decide: whether the Decider learns.
        fuse: whether the Fusion does; from the steps that tell.
    """
    lanes, length = steps.picked.shape[0], steps.picked.shape[1] - 1
    values = agents.critic(_flat(steps.state)).reshape(lanes, length + 1, 2)
    rewards = steps.rewards[:, :length].copy()
    rewards[:, -1] += settings.gamma * values[:, -1]
    before = values[:, :length]
    advantages = np.stack(
        [gae(rewards[..., k], before[..., k], gamma=settings.gamma, lam=GAE_LAMBDA) for k in range(2)], axis=2
    )
    now = AgentStep(**{f.name: _flat(getattr(steps, f.name)[:, :length]) for f in fields(AgentStep)})
    gains = _flat(advantages)
    critic = regress(agents.critic, now.state, _flat(advantages + before), settings.ppo, rng)
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
    return x.reshape(-1, *x.shape[2:])


def _probabilities(z: Floats) -> NDArray[np.floating[Any]]:
    least = EXPLORATION / z.shape[1]
    p: NDArray[np.floating[Any]] = np.clip(1 / (1 + np.exp(-z)), least, 1 - least)
    return p


def _team(picked: Bools, p: NDArray[np.floating[Any]]) -> F32:
    team = picked.copy()
    for lane in np.flatnonzero(picked.sum(axis=1) < _LEAST_TEAM):
        order = np.argsort(-(p[lane] + picked[lane]), kind="stable")
        team[lane, order[:_LEAST_TEAM]] = True
    return team.astype(np.float32)
