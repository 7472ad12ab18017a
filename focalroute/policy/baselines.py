"""Baseline policies that serve by name, such as ``policy="plurality"``.

Each is a rule of a few lines over the named slices of the observation, so rounds, budgets, breakers, receipts and the
store work as with a bundle. Their decisions are not sampled, and updates do not learn from them: no log-probability and
no trajectory is stored. They have the names of ``focalroute eval``, whose baselines choose their settings on a training
log; here every setting has a stated default. `NEED_A_LOG` lists the baselines that need one.

They learn from feedback through the windowed accuracy in the observation. An unknown price counts as the pool's mean.
"""

from __future__ import annotations

import itertools
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from focalroute.core.records import F32, F64, Evidence, Observation, Outcome
from focalroute.observe.layout import CONTEXT, ENDPOINT, MEMBER, slices
from focalroute.policy.decider import posterior

#: The policy version on answers that a named policy decided; the receipt's ``policy`` gives the name.
BASELINE_VERSION = -2
#: A logit that counts as certain, with either sign.
SURE = 9.0
#: `Cascade` stops at this posterior probability of its answer.
SURE_ENOUGH = 0.9
#: Step size of `LogLinearOnline`: the middle one of those that its baseline in ``focalroute eval`` chooses from.
LOG_LINEAR_RATE = 0.01

#: Baselines of ``focalroute eval`` that cannot serve by name, and why.
NEED_A_LOG: Mapping[str, str] = {
    "best-single-train": 'the best endpoint of a training log; in service it is "best-single"',
    "best-single-hindsight": "the endpoint that turns out best, known only afterwards",
    "oracle": "the best answer that any endpoint gave, known only afterwards",
    "static-subset": "the best fixed subset of a training log in which every endpoint answered",
    "query-weights": "weights of the members by the query, fitted on a training log in which every endpoint answered",
    "threshold-pair": "a rule for two endpoints, fitted on a training log",
}

_CHOICES = slices(CONTEXT)["choices"].start
_CERTAINTY = slices(CONTEXT)["posterior"].start  # the largest probability
_REPLIED, _ACCURACY, _PRICE = (slices(ENDPOINT)[name].start for name in ("replied", "accuracy", "price"))
_VOTE, _PROBABILITY, _EVIDENCE, _MEMBER_SKILL = (
    slices(MEMBER)[name].start for name in ("vote", "probability", "evidence", "relative_skill")
)
_TIE = 1e-6  # scores that differ by less are equal: they are sums in single precision
_LEAD = 2e-6  # added to the elected candidate's score to break a tie, large enough for single precision
_UNBACKED = 1e-6  # mass of a candidate that has none, so that its logarithm is finite


def cheapest_first(observation: Observation) -> NDArray[np.intp]:
    """Return endpoint indices (N,) by price; ties in pool order."""
    return np.argsort(observation.endpoints[:, _PRICE], kind="stable")


def best_first(observation: Observation) -> NDArray[np.intp]:
    """Return endpoint indices (N,) by windowed accuracy, best first; ties by price, then in pool order."""
    return np.lexsort((observation.endpoints[:, _PRICE], -observation.endpoints[:, _ACCURACY]))


def better_half(observation: Observation) -> NDArray[np.intp]:
    """Return the first N / 2 of `best_first`, at least 2."""
    return best_first(observation)[: max(2, len(observation.endpoints) // 2)]


def plurality(evidence: Evidence) -> F32:
    """Return logits (K,) whose softmax is each candidate's share of the votes; `elected` breaks ties."""
    return _shares(evidence, _VOTE)


def elected(scores: F64, evidence: Evidence) -> int:
    """Return the candidate with the highest score; of ties the one with the most accurate backer, then the first."""
    ties: list[int] = np.flatnonzero(scores >= scores.max() - _TIE).tolist()
    votes, accuracy = evidence.members[:, :, _VOTE], evidence.members[0, :, _MEMBER_SKILL]
    by_accuracy: list[int] = np.lexsort((np.array(evidence.endpoints), -accuracy)).tolist()
    rank = {member: n for n, member in enumerate(by_accuracy)}

    def best_backer(candidate: int) -> int:
        return min((rank[member] for member in np.flatnonzero(votes[candidate]).tolist()), default=len(rank))

    return min(ties, key=best_backer)


def _without_ties(scores: F64, evidence: Evidence) -> F32:
    """Return the scores as logits, with the elected candidate slightly ahead of any ties."""
    ahead = scores - scores.max()
    ahead[elected(scores, evidence)] += _LEAD
    logits: F32 = ahead.astype(np.float32)
    return logits


def _shares(evidence: Evidence, column: int) -> F32:
    sums = evidence.members[:, :, column].sum(axis=1, dtype=np.float64)
    logits: F64 = np.log(np.maximum(sums, _UNBACKED))
    return _without_ties(logits, evidence)


def _in_order(order: Sequence[int] | NDArray[np.intp]) -> F32:
    """Return logits that ask the first endpoint of an order; if it cannot be asked and one must be, the next."""
    logits = np.empty(len(order), np.float32)
    logits[list(order)] = -1 - np.arange(len(order)) / len(order)
    logits[order[0]] = SURE
    return logits


class Baseline:
    """A named policy; unless overridden it asks all endpoints once. Any number of threads may use it at once.

    Args:
        endpoints: the pool's N names, in the order of the observations' rows.
        seed: makes random choices repeatable; None: they are not.

    Attributes:
        name: as given to ``policy=``.
        version: `BASELINE_VERSION`.
        experience: always None; ``knows_pool``: always False.
        one_a_round: whether at most one endpoint is asked in a round.
    """

    name: ClassVar[str]
    version: ClassVar[int] = BASELINE_VERSION
    experience: ClassVar[None] = None
    knows_pool: ClassVar[bool] = False
    one_a_round: ClassVar[bool] = False

    def __init__(self, endpoints: Sequence[str], seed: int | None = None) -> None:
        self._index = {endpoint: i for i, endpoint in enumerate(endpoints)}
        self._seed = seed

    def ids(self, endpoints: Sequence[str]) -> NDArray[np.int64]:
        """Return each endpoint's index, as a rule has no embeddings."""
        return np.arange(len(endpoints))

    def decider_logits(self, observation: Observation, ids: NDArray[np.int64]) -> F32:
        """Return logits, float32 (N,), that ask the wanted endpoints; after a reply none, unless it `_asks_on`."""
        if observation.endpoints[:, _REPLIED].any() and not self._asks_on(observation):
            return np.full(len(ids), -SURE, np.float32)
        return self._wanted(observation)

    def fusion_logits(self, evidence: Evidence, ids: NDArray[np.int64]) -> F32:
        """Return each candidate's score, float32 (K,): here the log of the members' summed mass on it."""
        return _shares(evidence, _PROBABILITY)

    def for_query(self, query_id: str, features: F32, cost_weight: float) -> Self:
        """Return the policy for one query, given its text's features and lambda. Most rules use neither."""
        return self

    def learn(self, outcome: Outcome, candidates: int) -> None:
        """Learn from an outcome with feedback, given the number of the query's candidates. Most rules do not."""

    def _asks_on(self, observation: Observation) -> bool:
        """Whether to ask more endpoints after one has replied."""
        return False

    def _wanted(self, observation: Observation) -> F32:
        """Return the logits of a round in which endpoints are asked."""
        return np.full(len(observation.endpoints), SURE, np.float32)


class Mean(Baseline):
    """All endpoints; the mean of their probabilities, 1 for the answer of a member that gave none."""

    name = "mean"


class Plurality(Baseline):
    """All endpoints, with one vote each."""

    name = "plurality"

    def fusion_logits(self, evidence: Evidence, ids: NDArray[np.int64]) -> F32:
        """See `plurality`."""
        return plurality(evidence)


class WeightedVote(Baseline):
    """All endpoints; naive Bayes: each vote weighs ln((K - 1) a / (1 - a)), a its member's windowed accuracy."""

    name = "weighted-vote"

    def fusion_logits(self, evidence: Evidence, ids: NDArray[np.int64]) -> F32:
        """Return the summed weights; their softmax is the naive Bayes posterior."""
        return _without_ties(evidence.members[:, :, _EVIDENCE].sum(axis=1, dtype=np.float64), evidence)


class LogLinearOnline(Baseline):
    """All endpoints; q(c) is the softmax of the summed weights of c's backers, learned online.

    Weights start at 1, a plurality vote. They follow the gradient of log q(right): a member's weight moves by
    `LOG_LINEAR_RATE` (y - q(c)), c the candidate it voted for and y whether c was right (see
    `focalroute.learn.reward.credit`). Nothing moves if y is unknown for any member, or if every candidate was wrong. A
    judge's feedback is not undone when a user's replaces it.
    """

    name = "log-linear-online"

    def __init__(self, endpoints: Sequence[str], seed: int | None = None) -> None:
        super().__init__(endpoints, seed)
        self.weights = np.ones(len(self._index))  # replaced, never changed in place, so that readers need no lock
        self._learning = threading.Lock()

    def fusion_logits(self, evidence: Evidence, ids: NDArray[np.int64]) -> F32:
        """Return the summed weights."""
        votes = evidence.members[:, :, _VOTE].astype(np.float64)
        return _without_ties(votes @ self.weights[list(evidence.endpoints)], evidence)

    def learn(self, outcome: Outcome, candidates: int) -> None:
        """Do one gradient step."""
        backed = {n: m.candidate for n, m in outcome.members.items() if m.candidate is not None}
        voted = {self._index[n]: candidate for n, candidate in backed.items() if n in self._index}
        right = {candidate: outcome.right[n] for n, candidate in backed.items() if n in outcome.right}
        total = sum(right.values())
        if not set(voted.values()) <= right.keys() or (total == 0 and len(right) == candidates):
            return
        with self._learning:
            scores, weights = np.zeros(candidates), self.weights.copy()
            for member, candidate in voted.items():
                scores[candidate] += weights[member]
            q = posterior(scores.tolist())
            for member, candidate in voted.items():
                weights[member] += LOG_LINEAR_RATE * (right[candidate] / max(total, 1.0) - q[candidate])
            self.weights = weights


class Alone(Baseline, ABC):
    """One endpoint, the first of an order that can be asked and answers; its probabilities are the answer's."""

    def _wanted(self, observation: Observation) -> F32:
        return _in_order(self._order(observation))

    @abstractmethod
    def _order(self, observation: Observation) -> Sequence[int] | NDArray[np.intp]:
        """Return all endpoints, most wanted first."""


class BestSingle(Alone):
    """The endpoint with the best windowed accuracy; the cheapest while nothing is known.

    Only endpoints that are asked get a record, so it stays with the first that is more accurate than the pool's mean.
    """

    name = "best-single"

    def _order(self, observation: Observation) -> NDArray[np.intp]:
        return best_first(observation)


class _Counting(Alone):
    """Counts its decisions. Taking the next count is atomic, and there is no other state, so it needs no lock."""

    def __init__(self, endpoints: Sequence[str], seed: int | None = None) -> None:
        super().__init__(endpoints, seed)
        self._turns = itertools.count()


class RoundRobin(_Counting):
    """The endpoints in turn, in pool order; the next one stands in for one that cannot be asked."""

    name = "round-robin"

    def _order(self, observation: Observation) -> Sequence[int]:
        n = len(observation.endpoints)
        turn = next(self._turns)
        return [(turn + step) % n for step in range(n)]


class Random(_Counting):
    """One endpoint drawn uniformly at random."""

    name = "random"

    def _order(self, observation: Observation) -> Sequence[int]:
        return self._shuffled(list(range(len(observation.endpoints))))

    def _shuffled(self, endpoints: list[int]) -> list[int]:
        turn = next(self._turns)
        rng = random.Random(None if self._seed is None else f"{self._seed} {turn}")  # noqa: S311 - no secret
        rng.shuffle(endpoints)
        return endpoints


class RandomSelect(Random):
    """One endpoint drawn from the better half of the pool, the others as stand-ins (the paper's greedy control)."""

    name = "random-select"

    def _order(self, observation: Observation) -> Sequence[int]:
        order: list[int] = best_first(observation).tolist()
        half = len(better_half(observation))
        return self._shuffled(order[:half]) + order[half:]


class RecencyRanking:
    """Ranks endpoints by their latest outcomes; safe to use from any thread.

    First come those whose latest answer was right, the most recent first; then those without an outcome; then those
    whose latest answer was wrong, the oldest first. A value of at least 1/2 counts as right.

    Args:
        size: number of endpoints.
    """

    def __init__(self, size: int) -> None:
        self._clock = itertools.count(1)
        # (whether the latest answer was right, time); the time of a wrong answer is negative
        self._latest: dict[int, tuple[bool, int]] = dict.fromkeys(range(size), (False, 0))

    def record(self, values: Mapping[int, float]) -> None:
        """Record the values of endpoints' answers to one query, each in [0, 1]."""
        now = next(self._clock)
        for endpoint, value in values.items():
            self._latest[endpoint] = (True, now) if value >= 0.5 else (False, -now)

    def key(self, endpoint: int) -> tuple[bool, int]:
        """Return the sort key of an endpoint; the greatest ranks first."""
        return self._latest[endpoint]


class LatestCorrect(Alone):
    """The endpoint that was right most recently (the paper's greedy control).

    Ranked by `RecencyRanking`; ties as by `BestSingle`. Inferred values do not count.
    """

    name = "latest-correct"

    def __init__(self, endpoints: Sequence[str], seed: int | None = None) -> None:
        super().__init__(endpoints, seed)
        self._recency = RecencyRanking(len(self._index))

    def learn(self, outcome: Outcome, candidates: int) -> None:
        """Record which members were right."""
        observed = {
            self._index[name]: value
            for name, value in outcome.right.items()
            if name in self._index and name not in outcome.inferred
        }
        self._recency.record(observed)

    def _order(self, observation: Observation) -> Sequence[int]:
        return sorted(best_first(observation).tolist(), key=self._recency.key, reverse=True)


class Cascade(WeightedVote):
    """One endpoint per round from the better half of the pool, cheapest first, until the answer is sure.

    It is sure if a candidate's naive Bayes posterior (as in `WeightedVote`) is at least `SURE_ENOUGH`. A free-form
    question also needs two replies, as a single one always looks sure. It stops after ``max_rounds``. FrugalGPT (arXiv
    2305.05176) learns its order and its threshold from a log. Here the window gives the order, and by its own estimate
    the threshold allows one wrong answer in ten.
    """

    name = "cascade"
    one_a_round = True

    def _asks_on(self, observation: Observation) -> bool:
        context = observation.context
        free_form = context[_CHOICES] == 0
        return bool(context[_CERTAINTY] < SURE_ENOUGH or (free_form and observation.endpoints[:, _REPLIED].sum() < 2))

    def _wanted(self, observation: Observation) -> F32:
        logits = _in_order(best_first(observation))
        logits[better_half(observation)] = SURE  # one per round, as heads are visited cheapest first
        return logits


_KINDS = (
    BestSingle,
    Cascade,
    LatestCorrect,
    LogLinearOnline,
    Mean,
    Plurality,
    Random,
    RandomSelect,
    RoundRobin,
    WeightedVote,
)
#: Baselines by name.
SERVED_BASELINES: Mapping[str, type[Baseline]] = {kind.name: kind for kind in _KINDS}
