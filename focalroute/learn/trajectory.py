"""Turns answers and their feedback into episodes, and episodes into the padded arrays that an update learns from.

Letters as in `focalroute.core.records`, and: B episodes, T their largest number of steps, S sampled decisions in all,
P the largest number of heads visited, Ds the width of the critic's state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from focalroute.core.json_values import read_object
from focalroute.core.records import F32, I64, Bools, Decision, Feedback, Observation, Trajectory
from focalroute.learn.nets import STATE, DeciderNet, FusionNet, Net, decider_state, fusion_state, zeroed
from focalroute.learn.reward import outranks
from focalroute.observe import layout
from focalroute.store.base import StoredAnswer

#: The policies of a trial, or the only one; the kind of answer; whether it is disputed.
Stratum = tuple[frozenset[int | None], str, bool]

_LAMBDA = layout.slices(layout.CONTEXT)["cost_weight"].start
_LEFT = layout.slices(layout.CONTEXT)["budget_left"].start
_SMALL = 0.01  # scale of new embeddings; at 0.1 they would change decisions as much as an update does
_MOST_WEIGHT = 5.0  # so that a few answers do not decide a trial


class Rewarded(NamedTuple):
    """An answer, the feedback on it that counts, and that feedback's weight, see `feedback_weights`."""

    answer: StoredAnswer
    feedback: Feedback
    weight: float


@dataclass(frozen=True, slots=True)
class Episode:
    """One rewarded query.

    Attributes:
        shares: for each of the trajectory's decisions, its round's cost relative to asking all once, c_k / C.
        reward: u in [-1, 1], of the answer given.
        right: index of the right candidate, from a label; None: no label, or no candidate is right.
        labelled: whether there was a label, so that every candidate is known to be right or wrong.
        weight: its weight in a trial, see `feedback_weights`.
    """

    id: str
    trajectory: Trajectory
    shares: tuple[float, ...]
    reward: float
    right: int | None
    labelled: bool
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Costs:
    """The typical costs of calls, fixed for one update.

    Attributes:
        usd: endpoint -> mean cost of its calls of known cost.
    """

    usd: Mapping[str, float]

    @classmethod
    def of(cls, answers: Iterable[StoredAnswer]) -> Costs:
        """Return the mean costs of these answers' calls."""
        sums: dict[str, tuple[float, int]] = {}
        for answer in answers:
            for endpoint, _, usd in _calls(answer):
                if usd is not None:
                    total, calls = sums.get(endpoint, (0.0, 0))
                    sums[endpoint] = total + usd, calls + 1
        return cls({endpoint: total / calls for endpoint, (total, calls) in sums.items()})

    def typical(self, endpoint: str) -> float:
        """Return the USD of a call; if unknown, the mean of the known ones, or 1 if there are none.

        So without any known cost, each call costs 1/N of asking all: unknown is not free.
        """
        if not self.usd:
            return 1.0
        return self.usd.get(endpoint, sum(self.usd.values()) / len(self.usd))

    def ask_all(self, endpoints: Sequence[str]) -> float:
        """Return C, USD of asking all of a pool once."""
        return sum(map(self.typical, endpoints))

    def shares(self, answer: StoredAnswer, trajectory: Trajectory) -> tuple[float, ...]:
        """Return c_k / C of each decision; 0 if the whole pool is free."""
        rounds: dict[int, float] = {}
        for endpoint, number, usd in _calls(answer):
            if usd is None:
                usd = self.typical(endpoint)
            rounds[number] = rounds.get(number, 0.0) + usd
        ask_all = self.ask_all(trajectory.endpoints)
        if ask_all <= 0:
            return (0.0,) * len(trajectory.decisions)
        return tuple([rounds.get(decision.round, 0.0) / ask_all for _, decision in trajectory.decisions])


def counting_feedback(feedback: Sequence[Feedback]) -> Feedback | None:
    """Return the feedback that counts among all feedback on an answer, oldest first; None if there is none."""
    found: Feedback | None = None
    for said in feedback:
        if found is None or outranks(said.source, found.source):
            found = said
    return found


def rewarded(answers: Iterable[tuple[StoredAnswer, Sequence[Feedback]]]) -> list[Rewarded]:
    """Return the answers that a policy decided and that have feedback, in order."""
    every: Counter[Stratum] = Counter()
    found: list[tuple[StoredAnswer, Feedback, Stratum]] = []  # answers without feedback may be many: only counted
    for answer, feedback in answers:
        if answer.trajectory is None:
            continue
        policies = frozenset((answer.trajectory.version, answer.trajectory.rival))
        stratum = policies, answer.kind, answer.disputed
        every[stratum] += 1
        counting = counting_feedback(feedback)
        if counting is not None:
            found.append((answer, counting, stratum))
    weights = feedback_weights(every, Counter(stratum for *_, stratum in found))
    return [Rewarded(answer, feedback, weights[stratum]) for answer, feedback, stratum in found]


def feedback_weights(every: Mapping[Stratum, int], judged: Mapping[Stratum, int]) -> dict[Stratum, float]:
    """Return the weight of feedback by stratum, as answers of some strata get feedback more often than others.

    A judge, for example, mostly grades answers whose members differ. The weight is inversely proportional to the share
    of the stratum's answers that have feedback (post-stratification). It is at most 5, and its mean over all feedback
    on the same policies is 1.

    Args:
        every: number of answers, of all strata in ``judged``.
        judged: number of answers with feedback, positive.
    """
    weights: dict[Stratum, float] = {}
    for policies in {policies for policies, *_ in judged}:
        rarest_first = sorted((one for one in judged if one[0] == policies), key=lambda one: judged[one] / every[one])
        answers = sum(every[one] for one in rarest_first)
        due = float(sum(judged[one] for one in rarest_first))  # the sum of all feedback's weights
        for one in rarest_first:  # what a bounded weight lacks goes to the others
            weights[one] = min(due / answers * every[one] / judged[one], _MOST_WEIGHT)
            due, answers = due - weights[one] * judged[one], answers - every[one]
    return weights


def episode(answer: StoredAnswer, feedback: Feedback, costs: Costs, weight: float = 1.0) -> Episode | None:
    """Return the episode of an answer and its feedback.

    None if no policy decided it, or if another version of this package stored it with another layout.
    """
    trajectory, label = answer.trajectory, feedback.right
    if trajectory is None or not _fits(trajectory):
        return None
    keys = answer.keys[: len(trajectory.evidence.candidates)]  # without the key of a synthesised answer
    right = keys.index(label) if label in keys else None
    return Episode(
        id=answer.id,
        trajectory=trajectory,
        shares=costs.shares(answer, trajectory),
        reward=feedback.reward,
        right=right,
        labelled=label is not None,
        weight=weight,
    )


def _fits(trajectory: Trajectory) -> bool:
    """Whether all inputs of the policies have the present layout."""
    evidence = trajectory.evidence
    seen = [(evidence.members, layout.MEMBER), (evidence.candidates, layout.CANDIDATE)]
    for observation, _ in trajectory.decisions:
        seen += [(observation.context, layout.CONTEXT), (observation.endpoints, layout.ENDPOINT)]
    return all(array.shape[-1] == layout.width(columns) for array, columns in seen)


def _calls(answer: StoredAnswer) -> list[tuple[str, int, float | None]]:
    """Return (endpoint, round, USD or None) of every call, from the receipt, or else of the members that replied.

    The cost of a cancelled call counts as unknown if it is only a reservation, which is many times the actual cost.
    """
    calls = read_object(answer.receipt).get("calls")
    if calls is None:
        return [(name, m.round, None if m.usd is None else float(m.usd)) for name, m in answer.members.items()]
    found: list[tuple[str, int, float | None]] = []
    for call in calls:
        given_up = call["error"] is not None and call["cost_source"] == "reserved"
        if call["cost"] is not None and not given_up:
            found.append((call["endpoint"], call["round"], float(call["cost"])))
        elif call["attempts"] or call["cost"] is not None:
            found.append((call["endpoint"], call["round"], None))
    return found


@dataclass(frozen=True, slots=True)
class HeadBatch:
    """The heads that S decisions chose from; P places, padded at the end.

    Attributes:
        visited: (S, P) a head, not padding; it could be picked while no other was.
        eligible: (S, P) the head could still be picked when it was visited, given those picked before.
        picked: (S, P) the head was picked.
        must_pick: (S,) whether at least one had to be picked.
        pool: (S,) N, the size of the pool, on which the clip of p depends.
        one: (S,) whether exactly one had to be picked; None: in no decision.
    """

    visited: Bools
    eligible: Bools
    picked: Bools
    must_pick: Bools
    pool: NDArray[np.int64]
    one: Bools | None = None

    def take(self, rows: NDArray[Any]) -> HeadBatch:
        """Return only these decisions."""
        one = None if self.one is None else self.one[rows]
        return HeadBatch(
            self.visited[rows], self.eligible[rows], self.picked[rows], self.must_pick[rows], self.pool[rows], one
        )


@dataclass(frozen=True, slots=True)
class Decisions:
    """S decisions; only sampled ones can be learned from, as greedy ones have no probability.

    Attributes:
        context: (S, Dc).
        endpoints: (S, P, De) of the heads in visiting order.
        ids: (S, P) their rows in the nets' tables.
        heads: the heads, and which were picked.
        log_mu: (S,) log-probability under the policy that decided; NaN for a greedy decision.
        episode: (S,) the row of `StepBatch`.
        step: (S,) the column of `StepBatch`.
        place: (S,) index among its episode's decisions.
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
    """All steps, including greedy ones; an episode's row is right-aligned, with its Fusion step in the last column.

    Attributes:
        states: (B, T, Ds) the critic's input.
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
        members: (B, K, m, Fm); zeros, also in ``present``, for padding.
        candidates: (B, K, Fc).
        ids: (B, m) the members' rows in the nets' tables.
        offered: (B, K) a candidate, not padding.
        answered: (B,) index of the answer given; -1: it was not a candidate.
        right: (B,) index of the right candidate; -1: unknown, or no candidate is right.
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
    """Return the names known so far, then those that first appear in the episodes, in order."""
    known = dict.fromkeys(names)
    for one in episodes:
        known.update(dict.fromkeys(one.trajectory.endpoints))
    return tuple(known)


def grown(net: Net, size: int, rng: np.random.Generator) -> Net:
    """Return the net with tables over ``size`` names; new embeddings are small and random, new vote weights zero.

    Zero embeddings could never be learned: while the weights that read them are also zero, both gradients are zero.
    """
    new = size + 1 - len(net.names)
    embeddings = (_SMALL * rng.standard_normal((new, net.names.shape[1]))).astype(net.names.dtype)
    names = np.concatenate([net.names, embeddings])
    if isinstance(net, FusionNet):
        return replace(net, names=names, vote=np.concatenate([net.vote, np.zeros(new, net.vote.dtype)]))
    return replace(net, names=names)


def neutral(net: Net, size: int) -> Net:
    """Return the net with tables of zeros over ``size`` names, so that every name counts as unknown."""
    names = np.zeros((size + 1, net.names.shape[1]), net.names.dtype)
    if isinstance(net, FusionNet):
        return replace(net, names=names, vote=np.zeros(size + 1, net.vote.dtype))
    return replace(net, names=names)


def unlimited(net: DeciderNet) -> DeciderNet:
    """Return the Decider with its "budget_left" input fixed at 1.

    In training this input is always 1, so the effect of smaller values is arbitrary. Endpoints that a cap cannot pay
    for are not eligible anyway.
    """
    return replace(
        net,
        bias=net.bias + net.skip_context[_LEFT],
        hidden_bias=net.hidden_bias + net.hidden_context[_LEFT],
        skip_context=zeroed(net.skip_context, _LEFT),
        hidden_context=zeroed(net.hidden_context, _LEFT),
    )


def batch(episodes: Sequence[Episode], names: Sequence[str], *, greedy: bool = False) -> Batch:
    """Return the episodes as arrays.

    Args:
        episodes: at least one.
        names: every endpoint's name, in the order of the nets' tables.
        greedy: whether `Decisions` includes decisions that were not sampled.
    """
    rows = {name: row for row, name in enumerate(names, 1)}
    ids = [np.array([rows[name] for name in one.trajectory.endpoints], np.int64) for one in episodes]
    return Batch(_decisions(episodes, ids, greedy), _steps(episodes), _fusions(episodes, ids))


def _decisions(episodes: Sequence[Episode], ids: Sequence[I64], greedy: bool) -> Decisions:
    steps = _most_steps(episodes)
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


def _heads(taken: Sequence[tuple[Observation, Decision]], places: int) -> HeadBatch:
    visited, eligible, picked = (np.zeros((len(taken), places), np.bool_) for _ in range(3))
    for s, (_, decision) in enumerate(taken):
        count = len(decision.order)
        visited[s, :count] = True
        eligible[s, :count] = decision.eligible
        picked[s, :count] = [head in decision.picked for head in decision.order]
    return HeadBatch(
        visited,
        eligible,
        picked,
        must_pick=np.array([decision.must_pick for _, decision in taken], np.bool_),
        pool=np.array([len(observation.endpoints) for observation, _ in taken], np.int64),
        one=np.array([decision.one for _, decision in taken], np.bool_),
    )


def _steps(episodes: Sequence[Episode]) -> StepBatch:
    size, width = len(episodes), _most_steps(episodes)
    states = np.zeros((size, width, STATE), np.float32)
    rewards = np.zeros((size, width), np.float32)
    taken = np.zeros((size, width), np.bool_)
    for row, one in enumerate(episodes):
        first = width - 1 - len(one.shares)
        taken[row, first:] = True
        observation = None
        decisions = zip(one.trajectory.decisions, one.shares, strict=True)
        for column, ((observation, _), share) in enumerate(decisions, first):
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


def _most_steps(episodes: Iterable[Episode]) -> int:
    """Return T: the most decisions of any episode, plus the Fusion step."""
    return 1 + max(len(one.trajectory.decisions) for one in episodes)
