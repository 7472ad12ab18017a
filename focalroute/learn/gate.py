"""Tests whether a challenger may replace the policy that serves, on answers from which neither was selected.

While a challenger is on trial it decides a random share s of the asks, and the champion the rest. Every answer counts
for both policies, weighted by how probable its decisions are under each:

    rho = P(challenger) / P    for the challenger and    sigma = P(champion) / P    for the champion,

with P = (1 - s) P(champion) + s P(challenger). With s = 1/2 neither weight exceeds 2, and they are equal where both
policies decide alike. Without a share (s = 0) rho is an importance weight. The two Fusions differ in their answers to
the same replies, and in the posterior that the Decider sees between rounds. Everything that goes into that posterior is
stored with the answer, so that it can be recomputed (`reobserved`).

An answer's value is v = u - lambda c / C, u from -1 to 1, lambda the cost weight when it was asked, so that higher
costs must pay off. With v in [a, b] an answer gives two estimates, one bounded below and one bounded above,

    rho (v - a) + sigma (b - v) - (b - a)    and    (b - a) - rho (b - v) - sigma (v - a),

and the mean of each is the challenger's gain in v. `lower_bound` turns them into bounds that hold however often they
are checked. Decisions that were never tried count as the worst case in each estimate: in the first, the challenger's as
worth a and the champion's as worth b; in the second the other way round. As feedback may come mostly for disputed
answers, both are multiplied by `focalroute.learn.trajectory.feedback_weights`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from focalroute.core.records import COST_WEIGHT_RANGE, F32, F64, I64, Bools
from focalroute.learn.losses import likelihood, log_posterior
from focalroute.learn.nets import DeciderNet, Floats, FusionNet, decider_pass, fusion_pass
from focalroute.learn.trajectory import Batch, Decisions, Episode, Fusions, batch, vocabulary
from focalroute.learn.update_report import Comparison
from focalroute.observe import layout
from focalroute.observe.observation import OPEN_CHOICES, odds_of, posterior_columns

#: Points in one unit of u, which runs from -1 to 1: a point is 1 % of right answers.
POINTS = 50.0
#: Probability that each of the two bounds is ever wrong, at most.
ALPHA = 0.05
#: Columns of evidence: the two estimates, b - a, and the challenger's gain in u and in c / C.
WIDTH = 5

_SPAN = 2  # the column b - a

_log = logging.getLogger("focalroute")

_STAKES = 0.9 * 0.3 ** np.arange(3)  # below 1, so that no bet can lose all its wealth
_STEPS = 30  # halvings, which find the bound to a billionth of the range

_CONTEXT = layout.slices(layout.CONTEXT)
_LAMBDA, _CHOICES = _CONTEXT["cost_weight"].start, _CONTEXT["choices"].start
_POSTERIOR = slice(_CONTEXT["posterior"].start, _CONTEXT["entropy"].stop)
_REPLIED = layout.slices(layout.ENDPOINT)["replied"].start
_MEMBER = layout.slices(layout.MEMBER)
_VOTE, _PROBABILITY, _EVIDENCE = (_MEMBER[name].start for name in ("vote", "probability", "evidence"))
_LOWEST = float(np.log10(COST_WEIGHT_RANGE[0])) + 1e-4  # in the context; all endpoints are asked at lower ones
_EQUAL = 1e-3  # tolerance for rounding in single precision


@dataclass(frozen=True, slots=True)
class Nets:
    """A policy's nets.

    Attributes:
        version: the policy version on its answers.
        names: the endpoints it knows, in the order of its tables from row 1 on.
    """

    version: int
    names: tuple[str, ...]
    decider: DeciderNet
    fusion: FusionNet

    def over(self, names: Sequence[str]) -> Nets:
        """Return the nets with tables over these names; unknown ones get row 0, as in serving."""
        known = {name: row for row, name in enumerate(self.names, 1)}
        rows = np.array([0, *(known.get(name, 0) for name in names)])
        return Nets(
            self.version,
            tuple(names),
            replace(self.decider, names=self.decider.names[rows]),
            replace(self.fusion, names=self.fusion.names[rows], vote=self.fusion.vote[rows]),
        )


def evidence(champion: Nets, challenger: Nets, episodes: Sequence[Episode], *, share: float) -> F64:
    """Return the evidence for a challenger against the champion, (n, 5) for n answers in their order (see `WIDTH`).

    It is empty if other nets with the same version numbers decided some of the answers.

    Args:
        episodes: decided by either policy; without a share all by the champion.
        share: s, the random share of the asks that the challenger decided.
    """
    if not episodes:
        return np.zeros((0, WIDTH))
    names = vocabulary((), episodes)
    champion, challenger = champion.over(names), challenger.over(names)
    made = batch(episodes, names, greedy=True)
    by_challenger = np.array([one.trajectory.version == challenger.version for one in episodes])
    if not (_made_by(champion, made.decisions, ~by_challenger) and _made_by(challenger, made.decisions, by_challenger)):
        _log.warning(
            "%d answers do not count in a trial, as another policy folder's version %d or %d made some of them; "
            "use a store for each folder", len(episodes), champion.version, challenger.version,
        )  # fmt: skip
        return np.zeros((0, WIDTH))
    rho, sigma = _weights(champion, challenger, episodes, made, by_challenger, share)
    cost_weight = np.array([_cost_weight(one) for one in episodes])
    penalty = np.minimum(-made.steps.rewards[:, :-1].sum(axis=1, dtype=np.float64), cost_weight)
    after, before = _worth_by(champion, challenger, made, by_challenger)
    cost_share = np.minimum([sum(one.shares) for one in episodes], 1.0)
    gains = rho * after - sigma * before, (rho - sigma) * cost_share
    found = np.column_stack([paired(rho, sigma, after - penalty, before - penalty, cost_weight), *gains])
    weight = np.array([one.weight for one in episodes])[:, None]
    return found * np.where(np.arange(WIDTH) == _SPAN, weight.max(), weight)


def balanced(champion: F64, challenger: F64, share: float) -> tuple[F64, F64]:
    """Return rho and sigma, given the log-probabilities of the answers' decisions under each policy."""
    if share == 0:
        return np.exp(challenger - champion), np.ones(len(champion))
    both = np.logaddexp(np.log1p(-share) + champion, np.log(share) + challenger)
    return np.exp(challenger - both), np.exp(champion - both)


def paired(rho: F64, sigma: F64, after: F64, before: F64, cost_weight: F64) -> F64:
    """Return the two estimates of each answer, and b - a, (n, 3).

    Args:
        rho: each answer's weight for the challenger; ``sigma``: for the champion.
        after: v of the challenger's answer to the same replies; ``before``: of the champion's.
        cost_weight: lambda; v is from a = -1 - lambda to b = 1.
    """
    least, span = -1 - cost_weight, 2 + cost_weight
    low = rho * (after - least) + sigma * (1 - before) - span
    high = span - rho * (1 - after) - sigma * (before - least)
    return np.stack([low, high, span], axis=1)


def judge(evidence: F64) -> Comparison:
    """Return the estimated gain and its bounds from all evidence so far."""
    low, high, span, right, cost = evidence.T
    return Comparison(
        episodes=len(evidence),
        gain=POINTS * _mean((low + high) / 2),
        low=POINTS * lower_bound(low, span, alpha=ALPHA),
        high=-POINTS * lower_bound(-high, span, alpha=ALPHA),
        right=POINTS * _mean(right),
        cost=100 * _mean(cost),
    )


def lower_bound(values: F64, spans: F64, *, alpha: float) -> float:
    """Return a lower bound of the values' mean that holds at all times together with probability 1 - alpha.

    This is a confidence sequence by betting (Waudby-Smith & Ramdas 2023, arXiv 2010.09686). A bet against "the mean is
    at most m" at fair odds multiplies its wealth by 1 + b (x - m) for every value x, with a stake b that keeps it
    positive. If the mean is at most m, the wealth ever reaches 1 / alpha with probability at most alpha (Ville),
    however often it is checked. The values need no upper bound (arXiv 2210.10768). The initial wealth is split over
    large and small stakes, so that none has to be chosen.

    Args:
        values: (n,) each at least -span, all with the same mean given the earlier ones.
        spans: (n,) positive, each known before its value.
        alpha: probability that the bound is ever wrong, at most.

    Returns:
        The bound, within the largest span; minus the largest span if there are no values.
    """
    widest = float(spans.max(initial=1.0))
    low, high = -widest, widest
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if _log_wealth(values, spans, middle) >= -math.log(alpha):
            low = middle
        else:
            high = middle
    return low


def _log_wealth(values: F64, spans: F64, mean: float) -> float:
    """Return the log wealth of the bets against "the mean is at most this"."""
    stakes = _STAKES[:, None] / (spans + max(mean, 0.0))
    logs = np.log1p(stakes * (values - mean)).sum(axis=1)
    return float(np.logaddexp.reduce(logs)) - math.log(len(_STAKES))


def _mean(values: F64) -> float:
    return float(values.mean()) if len(values) else 0.0


def _cost_weight(one: Episode) -> float:
    """Return the highest lambda of its decisions."""
    return max((float(10 ** seen.context[_LAMBDA]) for seen, _ in one.trajectory.decisions), default=0.0)


def _worth_by(champion: Nets, challenger: Nets, made: Batch, by_challenger: Bools) -> tuple[F64, F64]:
    """Return u (B,) of the challenger's and of the champion's answers to the same replies."""
    posteriors = [log_q(nets.fusion, made.fusions) for nets in (challenger, champion)]
    answers = [posterior.argmax(axis=1) for posterior in posteriors]
    u = worth(made.fusions, np.where(by_challenger[:, None], *posteriors))
    given = np.where(by_challenger, *answers)
    each, reward = np.arange(len(u)), made.fusions.reward.astype(np.float64)
    after, before = (np.where(answer == given, reward, u[each, answer]) for answer in answers)
    return after, before


def _weights(
    champion: Nets, challenger: Nets, episodes: Sequence[Episode], made: Batch, by_challenger: Bools, share: float
) -> tuple[F64, F64]:
    """Return rho and sigma of each episode.

    If it is unknown what the other policy would have seen, an episode counts only for the policy that decided it.
    """
    decisions, fusions = made.decisions, made.fusions
    known = np.ones(len(by_challenger), np.bool_)
    log_chances = []
    for nets, other, decided in ((champion, challenger, ~by_challenger), (challenger, champion, by_challenger)):
        context, recomputed = reobserved(episodes, decisions, fusions, other.fusion, nets.fusion)
        own = decided[decisions.episode]
        np.logical_and.at(known, decisions.episode, recomputed | own)
        log_chances.append(_log_chance(nets.decider, made, np.where(own[:, None], decisions.context, context)))
    of_champion, of_challenger = log_chances
    known &= np.isfinite(np.where(by_challenger, of_challenger, of_champion))
    of_champion = np.where(known, of_champion, np.where(by_challenger, -np.inf, 0.0))
    of_challenger = np.where(known, of_challenger, np.where(by_challenger, 0.0, -np.inf))
    return balanced(of_champion, of_challenger, share)


def _made_by(nets: Nets, decisions: Decisions, decided: Bools) -> bool:
    """Whether the sampled decisions of the episodes ``decided`` (B,) have the probabilities these nets give them."""
    own = decided[decisions.episode] & ~np.isnan(decisions.log_mu)
    if not own.any():
        return True
    logits, _ = decider_pass(nets.decider, decisions.context, decisions.endpoints, decisions.ids)
    off = np.abs(likelihood(logits, decisions.heads).log_pi - decisions.log_mu)
    return bool(off[own].max() < _EQUAL)


def _log_chance(net: DeciderNet, made: Batch, context: Floats) -> F64:
    """Return the log-probability of each episode's decisions under the net, (B,).

    A greedy decision adds 0 if the net would have made the same one, else -inf.
    """
    decisions, heads = made.decisions, made.decisions.heads
    total = np.zeros(len(made.steps.taken))
    if not len(decisions.episode):
        return total
    logits, _ = decider_pass(net, context, decisions.endpoints, decisions.ids)
    likely = (logits > 0) & heads.eligible
    lone = heads.must_pick & ~likely.any(axis=1)
    if heads.one is not None:
        lone |= heads.one
    best = np.where(heads.visited, logits, -np.inf).argmax(axis=1)[:, None] == np.arange(logits.shape[1])
    likely = np.where(lone[:, None], best & heads.visited, likely)
    asked_all = (decisions.context[:, _LAMBDA] <= _LOWEST) & (heads.picked == heads.visited).all(axis=1)
    greedy = np.where((likely == heads.picked).all(axis=1) | asked_all, 0.0, -np.inf)
    sampled = likelihood(logits, heads).log_pi
    np.add.at(total, decisions.episode, np.where(np.isnan(decisions.log_mu), greedy, sampled))
    return total


def log_q(net: FusionNet, fusions: Fusions) -> F64:
    """Return the log posterior over the candidates, (B, K)."""
    logits, _ = fusion_pass(net, fusions.members, fusions.candidates, fusions.ids)
    return log_posterior(logits, fusions.offered)


def worth(fusions: Fusions, log_q: Floats) -> F64:
    """Return the reward u (B, K) that each candidate would have had as the answer.

    With a label this is exact. From a bare reward on answer a, each other candidate c is right with probability
    (1 - y) q(c) / (1 - q(a)), y = (u + 1) / 2. If only one answer can be right, this is also exact after a reward of 1,
    and for two choices. A synthesised answer has the same u whichever candidate the Fusion prefers.

    Args:
        fusions: the Fusion steps.
        log_q: (B, K) under the policy that answered, or one close to it.
    """
    q, each = np.exp(log_q), np.arange(len(log_q))
    y = (fusions.reward.astype(np.float64) + 1) / 2
    rest = np.maximum(1 - q[each, fusions.answered], 1e-9)
    right = ((1 - y) / rest)[:, None] * q
    right[each, fusions.answered] = y
    exact = np.arange(q.shape[1]) == fusions.right[:, None]
    found: F64 = 2 * np.where(fusions.labelled[:, None], exact, np.minimum(right, 1)) - 1
    written = fusions.answered < 0
    found[written] = fusions.reward[written, None]
    return found


def reobserved(
    episodes: Sequence[Episode], decisions: Decisions, fusions: Fusions, served: FusionNet, other: FusionNet
) -> tuple[F32, Bools]:
    """Return the contexts of these decisions with the posteriors of another Fusion.

    Args:
        episodes: those of ``decisions`` and ``fusions``.
        decisions: S decisions, greedy ones included, each located by its ``episode`` and ``place``.
        served: the Fusion that made the stored posteriors.
        other: the other Fusion, whose tables have the same rows.

    Returns:
        (S, Dc) the contexts, and (S,) whether each is right: whether ``served`` reproduces the stored one. It does not
        for several open texts, as their similarity is not stored.
    """
    context, known = decisions.context.copy(), np.ones(len(decisions.context), np.bool_)
    replied = _replied(episodes, decisions, fusions.members.shape[2])
    later = np.flatnonzero(replied.any(axis=1))
    if len(later):
        rows = decisions.episode[later]
        pools = np.array([len(episodes[row].trajectory.endpoints) for row in rows])
        inputs = _FusionInputs(fusions, rows, replied[later], context[later, _CHOICES] > 0, pools)
        known[later] = np.abs(inputs.posterior_columns(served) - context[later, _POSTERIOR]).max(axis=1) < _EQUAL
        context[later, _POSTERIOR] = inputs.posterior_columns(other)
    return context, known


def _replied(episodes: Sequence[Episode], decisions: Decisions, most: int) -> Bools:
    """Return which of the members in the final evidence had replied before each decision, (S, m)."""
    replied = np.zeros((len(decisions.episode), most), np.bool_)
    for s, (row, place) in enumerate(zip(decisions.episode, decisions.place, strict=True)):
        trajectory = episodes[row].trajectory
        members = list(trajectory.evidence.endpoints)
        replied[s, : len(members)] = trajectory.decisions[place][0].endpoints[members, _REPLIED] > 0
    return replied


class _FusionInputs:
    """The Fusion's inputs before S later decisions, recomputed; letters as in `Fusions`.

    Args:
        fusions: the final inputs of all episodes.
        rows: (S,) the episode of each decision.
        replied: (S, m) the members that had replied.
        closed: (S,) whether the question is closed.
        pools: (S,) N.
    """

    def __init__(self, fusions: Fusions, rows: I64, replied: Bools, closed: Bools, pools: I64) -> None:
        members = fusions.members[rows] * replied[:, None, :, None]
        backed = (members[..., _VOTE] > 0) | (members[..., _PROBABILITY] > 0)
        self._offered = fusions.offered[rows] & (closed[:, None] | backed.any(axis=2))
        self._members, self._ids, self._closed = members, fusions.ids[rows], closed
        number, self._size = replied.sum(axis=1), self._offered.sum(axis=1)
        candidates = np.zeros((*self._offered.shape, fusions.candidates.shape[2]), np.float32)
        candidates[..., :2] = members[..., [_VOTE, _PROBABILITY]].sum(axis=2) / number[:, None, None]
        candidates[..., 2] = np.log(self._size)[:, None] / 4
        candidates[..., 3] = (number / pools)[:, None]
        self._candidates = candidates * self._offered[..., None]

    def posterior_columns(self, fusion: FusionNet) -> F32:
        """Return the context's columns of this Fusion's posterior, (S, 6), as `AskView.see` computes them."""
        logits, _ = fusion_pass(fusion, self._members, self._candidates, self._ids)
        p = np.where(self._offered, np.exp(log_posterior(logits, self._offered)), 0)
        odds = np.where(self._offered, odds_of(self._members[..., _EVIDENCE].sum(axis=2)), 0).sum(axis=1)
        unseen = np.where(self._closed, 0, np.maximum(OPEN_CHOICES - self._size, 1))
        none = unseen / (odds + unseen)
        each = none / np.maximum(unseen, 1)
        spread = np.where(np.arange(OPEN_CHOICES) < unseen[:, None], each[:, None], 0)
        p = np.concatenate([p * (1 - none)[:, None], spread], axis=1)
        largest = -np.sort(-p, axis=1)[:, :4]
        p_log_p = (p * np.log(np.maximum(p, 1e-300))).sum(axis=1)
        columns = posterior_columns(tuple(largest.T), p_log_p, np.log(np.maximum(self._size + unseen, 2)))
        return np.stack(columns, axis=1).astype(np.float32)
