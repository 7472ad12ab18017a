"""From episodes to arrays: the padded batch an update learns from, and nets that know every endpoint in it.

Letters as in `focalroute.core.records`, and: B episodes, T their largest number of steps, S sampled decisions in all,
P the largest number of heads visited, Ds the width of the critic's state.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from focalroute.core.records import Decision, Observation
from focalroute.learn.critic import STATE, decider_state, fusion_state
from focalroute.learn.episodes import Episode
from focalroute.learn.nets import F32, I64, DeciderNet, FusionNet, Net, zeroed
from focalroute.observe import layout

_LAMBDA = layout.slices(layout.CONTEXT)["cost_weight"].start
_LEFT = layout.slices(layout.CONTEXT)["budget_left"].start
_SMALL = 0.01  # what a tenth does to decisions is as much as an update does

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class HeadBatch:
    """The heads that S decisions chose from; P places, padded at the end.

    Attributes:
        visited: (S, P) a head, not padding: who could be picked while none was.
        eligible: (S, P) who still could be picked beside those picked before.
        picked: (S, P) who was.
        must_pick: (S,) whether one had to be picked.
        pool: (S,) N, the size of the pool, on which the clip of p depends.
        one: (S,) whether exactly one was to be picked; None: nowhere.
    """

    visited: Bools
    eligible: Bools
    picked: Bools
    must_pick: Bools
    pool: NDArray[np.int64]
    one: Bools | None = None

    def take(self, rows: NDArray[Any]) -> HeadBatch:
        """Only these decisions."""
        one = None if self.one is None else self.one[rows]
        return HeadBatch(
            self.visited[rows], self.eligible[rows], self.picked[rows], self.must_pick[rows], self.pool[rows], one
        )


@dataclass(frozen=True, slots=True)
class Decisions:
    """Some decisions, for learning those that were sampled; greedy ones have no probability to learn by.

    Attributes:
        context: (S, Dc).
        endpoints: (S, P, De) of the heads in visiting order.
        ids: (S, P) their rows in the nets' tables.
        heads: what was chosen from.
        log_mu: (S,) log-probability under the policy that chose; NaN of a greedy one.
        episode: (S,) the row of `StepBatch`.
        step: (S,) the column of `StepBatch`.
        place: (S,) which of its episode's decisions it is.
    """

    context: F32
    endpoints: F32
    ids: I64
    heads: HeadBatch
    log_mu: NDArray[np.float64]
    episode: I64
    step: I64
    place: I64


@dataclass(frozen=True, slots=True)
class StepBatch:
    """All steps, greedy ones too; an episode fills its row from the right, its Fusion step in the last column.

    Attributes:
        states: (B, T, Ds) what the critic sees.
        rewards: (B, T): -lambda c_k / C at Decider steps, u at the Fusion step.
        taken: (B, T) a step, not padding.
    """

    states: F32
    rewards: F32
    taken: Bools


@dataclass(frozen=True, slots=True)
class Fusions:
    """The Fusion steps.

    Attributes:
        members: (B, K, m, Fm); zeros (``present`` too) where an episode has fewer.
        candidates: (B, K, Fc).
        ids: (B, m) the members' rows in the nets' tables.
        offered: (B, K) a candidate, not padding.
        answered: (B,) index of the answer given; -1: it was none of the candidates.
        right: (B,) index of the right candidate; -1: not known, or none is.
        labelled: (B,) whether there was a label.
        reward: (B,) u of the answer given.
    """

    members: F32
    candidates: F32
    ids: I64
    offered: Bools
    answered: I64
    right: I64
    labelled: Bools
    reward: F32


@dataclass(frozen=True, slots=True)
class Batch:
    """B episodes as arrays."""

    decisions: Decisions
    steps: StepBatch
    fusions: Fusions


def vocabulary(names: Sequence[str], episodes: Iterable[Episode]) -> tuple[str, ...]:
    """The names known so far, then those that first appear in the episodes, in their order."""
    known = dict.fromkeys(names)
    for one in episodes:
        known.update(dict.fromkeys(one.trajectory.endpoints))
    return tuple(known)


def grown(net: Net, size: int, rng: np.random.Generator) -> Net:
    """The net with tables over ``size`` names: an embedding starts small and random, a vote weight at zero.

    Zero embeddings would never move: where the weights that read them are zero too, so are both gradients.
    """
    new = size + 1 - len(net.names)
    embeddings = (_SMALL * rng.standard_normal((new, net.names.shape[1]))).astype(net.names.dtype)
    names = np.concatenate([net.names, embeddings])
    if isinstance(net, FusionNet):
        return replace(net, names=names, vote=np.concatenate([net.vote, np.zeros(new, net.vote.dtype)]))
    return replace(net, names=names)


def neutral(net: Net, size: int) -> Net:
    """The net with tables over ``size`` names that all count as unknown, for now: rows of zeros."""
    names = np.zeros((size + 1, net.names.shape[1]), net.names.dtype)
    if isinstance(net, FusionNet):
        return replace(net, names=names, vote=np.zeros(size + 1, net.vote.dtype))
    return replace(net, names=names)


def unlimited(net: DeciderNet) -> DeciderNet:
    """The net that decides alike while no cap is near, and takes no notice of one that is.

    In training the layout's "budget_left" is always 1, so that what a net makes of less is chance. What a cap does not
    pay for is not eligible anyway.
    """
    return replace(
        net,
        bias=net.bias + net.skip_context[_LEFT],
        hidden_bias=net.hidden_bias + net.hidden_context[_LEFT],
        skip_context=zeroed(net.skip_context, _LEFT),
        hidden_context=zeroed(net.hidden_context, _LEFT),
    )


def batch(episodes: Sequence[Episode], names: Sequence[str], *, greedy: bool = False) -> Batch:
    """The episodes as arrays.

    Args:
        episodes: at least one.
        names: every endpoint's name, in the order of the nets' tables.
        greedy: whether decisions that were not sampled are among the `Decisions`.
    """
    rows = {name: row for row, name in enumerate(names, 1)}
    ids = [np.array([rows[name] for name in one.trajectory.endpoints], np.int64) for one in episodes]
    return Batch(_decisions(episodes, ids, greedy), _steps(episodes), _fusions(episodes, ids))


def _decisions(episodes: Sequence[Episode], ids: Sequence[I64], greedy: bool) -> Decisions:
    steps = _width(episodes)
    taken = [
        (row, place, observation, decision)
        for row, one in enumerate(episodes)
        for place, (observation, decision) in enumerate(one.trajectory.decisions)
        if greedy or decision.log_mu is not None
    ]
    size, places = len(taken), max((len(decision.order) for *_, decision in taken), default=1)
    context = np.zeros((size, layout.width(layout.CONTEXT)), np.float32)
    endpoints = np.zeros((size, places, layout.width(layout.ENDPOINT)), np.float32)
    rows = np.zeros((size, places), np.int64)
    for s, (row, _, observation, decision) in enumerate(taken):
        order = list(decision.order)
        context[s] = observation.context
        endpoints[s, : len(order)] = observation.endpoints[order]
        rows[s, : len(order)] = ids[row][order]
    return Decisions(
        context=context,
        endpoints=endpoints,
        ids=rows,
        heads=_heads([(observation, decision) for _, _, observation, decision in taken], places),
        log_mu=np.array([decision.log_mu for *_, decision in taken], np.float64),
        episode=np.array([row for row, *_ in taken], np.int64),
        step=np.array([steps - 1 - len(episodes[row].shares) + place for row, place, *_ in taken], np.int64),
        place=np.array([place for _, place, *_ in taken], np.int64),
    )


def _heads(sampled: Sequence[tuple[Observation, Decision]], places: int) -> HeadBatch:
    visited, eligible, picked = (np.zeros((len(sampled), places), np.bool_) for _ in range(3))
    for s, (_, decision) in enumerate(sampled):
        count = len(decision.order)
        visited[s, :count] = True
        eligible[s, :count] = decision.eligible
        picked[s, :count] = [head in decision.picked for head in decision.order]
    return HeadBatch(
        visited,
        eligible,
        picked,
        must_pick=np.array([decision.must_pick for _, decision in sampled], np.bool_),
        pool=np.array([len(observation.endpoints) for observation, _ in sampled], np.int64),
        one=np.array([decision.one for _, decision in sampled], np.bool_),
    )


def _steps(episodes: Sequence[Episode]) -> StepBatch:
    size, width = len(episodes), _width(episodes)
    states = np.zeros((size, width, STATE), np.float32)
    rewards = np.zeros((size, width), np.float32)
    taken = np.zeros((size, width), np.bool_)
    for row, one in enumerate(episodes):
        first = width - 1 - len(one.shares)
        taken[row, first:] = True
        observation = None
        for column, ((observation, _), share) in enumerate(
            zip(one.trajectory.decisions, one.shares, strict=True), first
        ):
            states[row, column] = decider_state(observation)
            rewards[row, column] = -share * float(10.0 ** observation.context[_LAMBDA])
        states[row, -1] = fusion_state(observation, one.trajectory.evidence)
        rewards[row, -1] = one.reward
    return StepBatch(states, rewards, taken)


def _fusions(episodes: Sequence[Episode], ids: Sequence[I64]) -> Fusions:
    evidence = [one.trajectory.evidence for one in episodes]
    size = len(episodes)
    k, m = (max(seen.members.shape[axis] for seen in evidence) for axis in (0, 1))
    members = np.zeros((size, k, m, layout.width(layout.MEMBER)), np.float32)
    candidates = np.zeros((size, k, layout.width(layout.CANDIDATE)), np.float32)
    rows, offered = np.zeros((size, m), np.int64), np.zeros((size, k), np.bool_)
    for row, seen in enumerate(evidence):
        count, replied = seen.members.shape[:2]
        members[row, :count, :replied] = seen.members
        candidates[row, :count] = seen.candidates
        rows[row, :replied] = ids[row][list(seen.endpoints)]
        offered[row, :count] = True
    return Fusions(
        members=members,
        candidates=candidates,
        ids=rows,
        offered=offered,
        answered=np.array([one.trajectory.fused for one in episodes], np.int64),
        right=np.array([-1 if one.right is None else one.right for one in episodes], np.int64),
        labelled=np.array([one.labelled for one in episodes], np.bool_),
        reward=np.array([one.reward for one in episodes], np.float32),
    )


def _width(episodes: Iterable[Episode]) -> int:
    """T: the most decisions of any episode, and the Fusion step."""
    return 1 + max(len(one.trajectory.decisions) for one in episodes)
