"""Rolls out a policy on many recorded queries at once: observe, decide, pay and answer, as in serving.

`focalroute.observe.observation` makes the observations, as in serving. Letters as in `focalroute.core.records`, and: B
queries with S samples each, R = B S rollouts (rollout r is of query r // S), R' of them not stopped.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from focalroute.core.records import F32, F64, I64, Bools
from focalroute.learn.backend import NUMPY, Backend
from focalroute.learn.losses import raised
from focalroute.learn.nets import DeciderNet, FusionNet, Vjp
from focalroute.learn.offline import RecordedLog
from focalroute.learn.offline.prior_stats import PriorStats, log_masses
from focalroute.learn.trajectory import HeadBatch
from focalroute.money.pacing import HIGHEST_WEIGHT, LOWEST_WEIGHT
from focalroute.observe import layout, observation
from focalroute.observe.calibration import MOST_CHOICES, Corrections
from focalroute.observe.memory import Expectation
from focalroute.observe.pool_stats import COST_PENALTIES, cost_penalties, level_column, typical_shares
from focalroute.policy.baselines import SURE
from focalroute.policy.decider import EXPLORATION

_ENDPOINT = layout.slices(layout.ENDPOINT)
_MEMBER = layout.slices(layout.MEMBER)
_FAR = np.float32(-1e9)
_STEEP = 80  # bound of a logit, far beyond the clip of the probabilities, against overflow


@dataclass(frozen=True, slots=True)
class LogView:
    """B recorded queries with the statistics before each.

    Attributes:
        recorded: the queries.
        columns: (B, N, De) endpoint rows before any is asked; 0 in the columns that depend on lambda.
        shares: (B, N) expected c / C.
        cost_factors: (B, N) expected cost of a call as a multiple of the usual one, by the text.
        departure: (B, N) see `focalroute.observe.accuracy.departures`.
        level: (B,) the column of this name.
        pairs: (B, N, N) focal diversity of pairs.
        features: (B, K, N, Fm) each endpoint's evidence on each candidate, as if asked in round 1; zeros if it has no
            answer.
        ids: (N,) the endpoints' rows in the nets' tables.
    """

    recorded: RecordedLog
    columns: F32
    shares: F32
    cost_factors: F32
    departure: F64
    level: F32
    pairs: F32
    features: F32
    ids: I64


@dataclass(frozen=True, slots=True)
class RolloutStep:
    """The decisions of one round.

    Attributes:
        rows: (R',) the rollouts that had not stopped.
        logits: (R', N).
        heads: the heads, in pool order, and which were picked.
        vjp: from d/dlogits to the Decider's gradients.
    """

    rows: I64
    context: F32
    endpoints: F32
    logits: F32
    heads: HeadBatch
    vjp: Vjp


@dataclass(frozen=True, slots=True)
class Rollout:
    """R rollouts.

    Attributes:
        steps: the decisions, round by round.
        shares: (rounds, R) each round's cost relative to the mean cost of asking all; as many rounds as ``steps``.
        first: (R, N) whether the endpoint was asked in round 1; ``later``: after it.
        answer: (R,) the candidate that is the answer; -1 if no endpoint answered.
        worth: (R,) value of the answer, 0 to 1.
        posterior: (R, K) the Fusion's at the end.
    """

    steps: tuple[RolloutStep, ...]
    shares: F32
    first: Bools
    later: Bools
    answer: I64
    worth: F32
    posterior: F32


def log_view(
    recorded: RecordedLog,
    prior: PriorStats,
    expected: Expectation,
    rows: I64,
    ids: I64,
    calibration: Corrections | None = None,
) -> LogView:
    """Return the view before the queries ``rows`` of a log, given the statistics before each query."""
    part = recorded.take(rows)
    columns = prior.rows.columns[rows].copy()
    columns[..., _ENDPOINT["similar"].start] = observation.similar_column(expected.right[rows])
    level = level_column(prior.rows.level[rows]).astype(np.float32)
    features = _features(part, columns, prior.rows.skill[rows], level, prior.length[rows])
    if calibration is not None and part.mass is not None:
        known = Corrections(*(array[rows] for array in calibration))
        apt = part.closed & (part.size <= MOST_CHOICES)
        columns[..., _ENDPOINT["signal"].start] = apt[:, None] * observation.signal_column(known.signal)
        given = ~np.isnan(part.mass[..., 0]) & apt[:, None]
        observation.calibrate(features, log_masses(part)[..., :MOST_CHOICES], known, given)
    shares = prior.rows.shares[rows].astype(np.float32)
    cost, departure = expected.cost[rows], prior.departure[rows]
    return LogView(part, columns, shares, cost, departure, level, prior.pairs_at(rows), features, ids)


def _features(part: RecordedLog, columns: F32, skill: NDArray[np.float64], level: F32, length: F32) -> F32:
    """Return each endpoint's evidence on each candidate as if asked in round 1, (B, K, N, Fm)."""
    weights = observation.vote_weights(skill, np.where(part.closed, part.size, observation.OPEN_CHOICES)[:, None])
    relative_skill, similar = (columns[..., _ENDPOINT[name].start] for name in ("relative_skill", "similar"))
    rows = observation.member_rows(weights, relative_skill, similar, level[:, None], length)
    k, members = part.worth.shape[1], part.candidate.size
    votes = part.candidate[:, None, :] == np.arange(k)[:, None]
    places = np.arange(members).reshape(len(votes), 1, -1) + members * votes
    features = observation.member_features(rows.reshape(2, members, -1), places)
    if part.mass is not None:
        observation.write_mass(features, part.mass)
    features *= (part.usable[:, None, :] & (np.arange(k) < part.size[:, None])[:, :, None])[..., None]
    return features


@dataclass(frozen=True, slots=True)
class Members:
    """A Fusion's encoding of each member.

    Attributes:
        phi: two (B, N, K P): if asked in round 1, and if asked later.
        linear: two (B, N, K), likewise.
        votes: (B, N, K) 1 for the candidate it backs; ``mass``: likewise its probabilities.
    """

    phi: tuple[F32, F32]
    linear: tuple[F32, F32]
    votes: F32
    mass: F32


def members_of(net: FusionNet, seen: LogView) -> Members:
    """Return every member's part of the Fusion, which does not depend on the other members."""
    x = seen.features
    b, k, n, _ = x.shape
    present, vote = x[..., _MEMBER["present"]], x[..., _MEMBER["vote"].start]
    base = (x.reshape(-1, x.shape[-1]) @ net.phi_member).reshape(b, k, n, -1)
    base += present * (net.names[seen.ids] @ net.phi_name + net.phi_bias)
    late = net.phi_member[_MEMBER["later"].start]
    linear = x @ net.skip_member + vote * net.vote[seen.ids]
    late_linear = linear + present[..., 0] * net.skip_member[_MEMBER["later"].start]

    def flat(phi: F32) -> F32:
        return np.ascontiguousarray(np.maximum(phi, 0).transpose(0, 2, 1, 3)).reshape(b, n, -1)

    return Members(
        phi=(flat(base), flat(base + present * late)),
        linear=(_by_member(linear), _by_member(late_linear)),
        votes=_by_member(vote),
        mass=_by_member(x[..., _MEMBER["probability"].start]),
    )


def _by_member(x: F32) -> F32:
    return np.ascontiguousarray(x.transpose(0, 2, 1))


def evidence(seen: LogView, votes: F32, mass: F32, count: F32) -> tuple[F32, Bools]:
    """Return candidate features (B, S, K, Fc) and the candidates offered (B, S, K), from sums over the members asked.

    Args:
        seen: the queries.
        votes: (B, S, K); ``mass`` likewise.
        count: (B, S) members that answered.
    """
    k = votes.shape[2]
    real = np.arange(k) < seen.recorded.size[:, None]
    offered = np.where(seen.recorded.closed[:, None, None], real[:, None, :], votes > 0) & (count > 0)[:, :, None]
    features = observation.candidate_features(
        np.stack([votes, mass], axis=-1),
        np.maximum(count, 1)[:, :, None, None],
        np.log(np.maximum(offered.sum(axis=2), 1))[:, :, None],
        (count / seen.recorded.there.shape[1])[:, :, None],
    )
    return features, offered


def fused(net: FusionNet, seen: LogView, members: Members, first: F32, later: F32) -> tuple[F32, Bools]:
    """Return the posterior and the candidates offered, (B, S, K), given the members of round 1 and later, (B, S, N)."""
    b, s, _ = first.shape
    both = first + later
    votes, mass, count = both @ members.votes, both @ members.mass, both.sum(axis=2)
    features, offered = evidence(seen, votes.astype(np.float32), mass.astype(np.float32), count)
    pooled = (first @ members.phi[0] + later @ members.phi[1]).reshape(b * s, offered.shape[2], -1)
    hidden = pooled @ net.hidden_pool + features.reshape(*pooled.shape[:2], -1) @ net.hidden_candidate + net.hidden_bias
    np.maximum(hidden, 0, out=hidden)
    score = (hidden @ net.out).reshape(b, s, -1) + features @ net.skip_candidate
    score += first @ members.linear[0] + later @ members.linear[1]
    score = np.where(offered, score, _FAR)
    score -= score.max(axis=2, keepdims=True)
    q = np.exp(score) * offered
    return q / np.maximum(q.sum(axis=2, keepdims=True), 1e-9), offered


def roll(
    decider: DeciderNet,
    fusion: FusionNet,
    seen: LogView,
    *,
    cost_weight: F32,
    ask_all_usd: float,
    rounds: int,
    samples: int,
    rng: np.random.Generator | None,
    passes: Backend = NUMPY,
    alone: bool = False,
) -> Rollout:
    """Answer every query ``samples`` times.

    Args:
        decider: the Decider.
        fusion: the Fusion.
        seen: B queries.
        cost_weight: (B,) lambda of each query.
        ask_all_usd: C, mean USD of asking all; 0 if all are free.
        rounds: most rounds; a query without an answer by then continues until it has one.
        samples: S.
        rng: samples the decisions; None: greedy.
        passes: the engine that runs the Decider.
        alone: whether to ask one endpoint by the text, for queries with remembered similar texts.
    """
    b, n = seen.recorded.there.shape
    k, size = seen.recorded.worth.shape[1], b * samples
    members = members_of(fusion, seen)
    query = np.repeat(np.arange(b), samples)
    usable, there = seen.recorded.usable[query], seen.recorded.there[query]
    first, later = np.zeros((size, n), np.bool_), np.zeros((size, n), np.bool_)
    posterior, offered = np.zeros((size, k), np.float32), np.zeros((size, k), np.bool_)
    worth_alone, lone = _alone(seen, cost_weight, alone=alone)
    active = np.arange(size)
    steps: list[RolloutStep] = []
    shares: list[F32] = []
    while len(active):
        number, row = len(steps), query[active]
        asked = (first | later)[active]
        replied = asked & usable[active]
        context, endpoints = observed(
            seen, row, number, cost_weight, asked, replied, posterior[active], offered[active]
        )
        logits, vjp = passes.decider(decider, context, endpoints, np.broadcast_to(seen.ids, asked.shape))
        eligible = there[active] & ~asked
        # if no endpoint can be asked, STOP is forced, and nothing is decided
        must_pick = np.asarray(eligible.any(axis=1) & ~replied.any(axis=1))
        logits = _overridden(logits, cost_weight[row], worth_alone[row], lone[row], eligible, must_pick)
        picked = _greedy(logits, eligible, must_pick) if rng is None else _sample(logits, eligible, must_pick, n, rng)
        heads = HeadBatch(eligible, eligible, picked, must_pick, np.full(len(active), n))
        steps.append(RolloutStep(active, context, endpoints, logits, heads, vjp))
        (first if number == 0 else later)[active] |= picked
        shares.append(np.zeros(size, np.float32))
        shares[-1][active] = (picked * seen.recorded.usd[row]).sum(axis=1) / (ask_all_usd or 1.0)
        active = active[picked.any(axis=1)]
        if not len(active):  # all have stopped, so there is no new reply
            break
        sets = [(asked & usable).reshape(b, samples, n).astype(np.float32) for asked in (first, later)]
        posterior, offered = (array.reshape(size, k) for array in fused(fusion, seen, members, *sets))
        if number + 1 >= rounds:  # only queries without an answer continue
            active = active[~((first | later) & usable)[active].any(axis=1)]
    answer = np.where(offered.any(axis=1), posterior.argmax(axis=1), -1)
    worth = np.where(answer >= 0, seen.recorded.worth[query, np.maximum(answer, 0)], 0).astype(np.float32)
    return Rollout(tuple(steps), np.array(shares), first, later, answer, worth, posterior)


def _alone(seen: LogView, cost_weight: F32, *, alone: bool) -> tuple[F64, Bools]:
    """Return each endpoint's score for being asked alone, (B, N), and whether one is, (B,), as in `Ask.decide`."""
    usd = seen.recorded.usd.sum(axis=0) / np.maximum(seen.recorded.there.sum(axis=0), 1)
    similar = seen.columns[..., _ENDPOINT["similar"].start]
    shares = typical_shares(usd.astype(np.float64))
    accuracy = observation.accuracy_alone(similar, seen.departure)
    worth = accuracy - cost_weight[:, None] * shares * seen.cost_factors
    cheapest = cost_weight >= HIGHEST_WEIGHT
    least = observation.worth_cheapest(accuracy, shares)
    return np.where(cheapest[:, None], least, worth), cheapest | (similar.any(axis=1) & alone)


def _overridden(logits: F32, cost_weight: F32, worth: F64, lone: Bools, eligible: Bools, must: Bools) -> F32:
    """Replace logits as `Ask.decide` does: ask all at the lowest cost weight, or the best one if one is asked alone."""
    best = np.where(eligible, worth, -np.inf).argmax(axis=1)[:, None] == np.arange(logits.shape[1])
    one = np.where(best & must[:, None], SURE, -SURE)
    bounded = np.where((cost_weight <= LOWEST_WEIGHT)[:, None], SURE, logits)
    return np.where(lone[:, None], one, bounded).astype(logits.dtype)


def observed(
    seen: LogView,
    of: I64,
    number: int,
    cost_weight: F32,
    asked: Bools,
    replied: Bools,
    posterior: F32,
    offered: Bools,
) -> tuple[F32, F32]:
    """Return context (R', Dc) and endpoints (R', N, De), as `AskView.observe` does.

    Args:
        seen: the queries.
        of: (R',) the query of each rollout.
        number: of earlier rounds.
        cost_weight: (B,) lambda.
        asked: (R', N) endpoints asked so far; ``replied``: those with a usable reply.
        posterior: (R', K) the Fusion's; ``offered``: (R', K) the candidates.
    """
    n = asked.shape[1]
    price = observation.bounded_cost_weight(cost_weight[of])
    leader = posterior.argmax(axis=1)
    posterior, number_offered = _with_unseen(seen, of, replied, posterior, offered.sum(axis=1))
    largest = -np.sort(-np.pad(posterior, ((0, 0), (0, max(4 - posterior.shape[1], 0)))), axis=1)[:, :4]
    p_log_p = (posterior * np.log(np.maximum(posterior, 1e-30))).sum(axis=1)
    columns = observation.context_columns(
        earlier_rounds=number,
        log_cost_weight=np.log10(price),
        budget_left=1.0,
        pool=n,
        asked=asked.sum(axis=1),
        replied=replied.sum(axis=1),
        posterior=observation.posterior_columns(tuple(largest.T), p_log_p, np.log(np.maximum(number_offered, 2))),
        log_choices=np.where(seen.recorded.closed, np.log(np.maximum(seen.recorded.size, 1)), 0)[of],
        level=seen.level[of],
    )
    context = np.empty((len(of), len(columns)), np.float32)
    for at, column in enumerate(columns):
        context[:, at] = column
    endpoints = seen.columns[of].copy()
    endpoints[..., COST_PENALTIES] = cost_penalties((price[:, None] * seen.shares[of]).astype(np.float64))
    endpoints[..., _ENDPOINT["asked"].start] = asked
    endpoints[..., _ENDPOINT["replied"].start] = replied
    agrees = observation.agreement(seen.recorded.candidate[of], leader[:, None])
    endpoints[..., _ENDPOINT["agrees"].start] = replied * agrees
    if number:
        marks = asked.astype(np.float32)
        focal = observation.focal_column(marks, asked.sum(axis=1, keepdims=True), seen.pairs[of])
        endpoints[..., _ENDPOINT["focal"].start] = focal
    return context, endpoints


def _with_unseen(seen: LogView, of: I64, replied: Bools, posterior: F32, offered: I64) -> tuple[F32, I64]:
    """Add the free-form answers that no member gave to the posterior, see `AskView.none_of_these`.

    Returns:
        The posterior (R', K + U), and the number of all answers (R',).
    """
    free = ~seen.recorded.closed[of] & replied.any(axis=1)
    if not free.any():
        return posterior, offered
    evidence = (seen.features[..., _MEMBER["evidence"].start][of[free]] * replied[free, None, :]).sum(axis=2)
    given = np.where(posterior[free] > 0, observation.odds_of(evidence), 0).sum(axis=1)
    unseen = np.maximum(observation.OPEN_CHOICES - offered[free], 1)
    none = unseen / (given + unseen)
    widened = np.pad(posterior, ((0, 0), (0, observation.OPEN_CHOICES)))
    k = posterior.shape[1]
    widened[free, :k] *= (1 - none)[:, None]
    widened[free, k:] = np.where(np.arange(observation.OPEN_CHOICES) < unseen[:, None], (none / unseen)[:, None], 0)
    counts = offered.copy()
    counts[free] += unseen
    return widened, counts


def _chances(logits: F32, size: int) -> F32:
    """Return the clipped probabilities p of the heads of a pool of this size."""
    least = EXPLORATION / size
    chances: F32 = 1 / (1 + np.exp(-logits.clip(-_STEEP, _STEEP)))
    return chances.clip(least, 1 - least)


def _sample(logits: F32, eligible: Bools, must: Bools, size: int, rng: np.random.Generator) -> Bools:
    """Sample from the distribution of `focalroute.policy.decider`, which does not depend on the order of the heads."""
    p = _chances(raised(logits, eligible, must), size) * eligible
    picked = np.asarray(rng.random(p.shape, np.float32) < p, np.bool_)
    none = np.flatnonzero(must & ~picked.any(axis=1))
    # given that any is picked, the first one is i with probability p_i prod over j < i of (1 - p_j), normalised
    if len(none):
        before = np.cumprod(1 - p[none], axis=1) / (1 - p[none])
        weights = np.cumsum(p[none] * before, axis=1)
        drawn = rng.random(len(none)) * weights[:, -1]
        start = (weights <= drawn[:, None]).sum(axis=1).clip(max=p.shape[1] - 1)
        after = np.arange(p.shape[1]) > start[:, None]
        picked[none] = (after & (rng.random((len(none), p.shape[1]), np.float32) < p[none])) & eligible[none]
        picked[none, start] = True
    return picked


def _greedy(logits: F32, eligible: Bools, must: Bools) -> Bools:
    picked = np.asarray((logits > 0) & eligible, np.bool_)
    none = np.flatnonzero(must & ~picked.any(axis=1))
    picked[none, np.where(eligible, logits, -np.inf)[none].argmax(axis=1)] = True
    return picked
