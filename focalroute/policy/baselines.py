"""Policies that go by a name, ``policy="plurality"``: the usual baselines, served as any other policy is.

Each is a rule of a few lines over the named slices of the observation, so rounds, budgets, breakers, receipts and the
store work as with a bundle. None of them samples, and what they decide is never learned from as if a net had decided
it: no log-probability and no trajectory is stored. The names are those of ``focalroute eval``, whose baselines of the
same name choose their settings on a training log; here a stated default takes the place of every such setting. Those
that are nothing without a log are not here (`NEED_A_LOG`).

What they know comes from feedback: accuracy is the windowed one of the observation. An endpoint of unknown price counts
as dear as the pool's mean.
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

#: The policy version stamped on answers that a named policy decided; the receipt's ``policy`` says which.
BASELINE_VERSION = -2
#: A logit of either sign that is as certain as a policy may be.
SURE = 9.0
#: `Cascade` stops once it believes its answer to be right with this probability.
SURE_ENOUGH = 0.9
#: Step of `LogLinearOnline`, the middle one of those its baseline chooses from.
LOG_LINEAR_RATE = 0.01

#: Baselines of ``focalroute eval`` that cannot serve by name, and why.
NEED_A_LOG: Mapping[str, str] = {
    "best-single-train": 'the best endpoint of a training log; in service it is "best-single"',
    "best-single-hindsight": "the endpoint that turns out best, known only afterwards",
    "oracle": "the best answer that anybody gave, known only afterwards",
    "static-subset": "the best fixed subset of a training log in which every endpoint answered",
    "query-weights": "weights of the members by the query, fitted on a training log in which every endpoint answered",
    "threshold-pair": "a rule for two endpoints, fitted on a training log",
}

_CHOICES = slices(CONTEXT)["choices"].start
_CERTAINTY = slices(CONTEXT)["posterior"].start  # the largest of them comes first
_REPLIED, _ACCURACY, _PRICE = (slices(ENDPOINT)[name].start for name in ("replied", "accuracy", "price"))
_VOTE, _PROBABILITY, _EVIDENCE, _MEMBER_STANDING = (
    slices(MEMBER)[name].start for name in ("vote", "probability", "evidence", "relative_skill")
)
_TIE = 1e-6  # scores this near are equal: they are sums of numbers in single precision
_LEAD = 2e-6  # what the elected of equals is put ahead by, so that it stays first in single precision
_UNBACKED = 1e-6  # mass of a candidate without any, so that its logarithm is finite


def cheapest_first(observation: Observation) -> NDArray[np.intp]:
    """Endpoint indices (N,), of equals in pool order."""
    return np.argsort(observation.endpoints[:, _PRICE], kind="stable")


def best_first(observation: Observation) -> NDArray[np.intp]:
    """Endpoint indices (N,) by windowed accuracy; of equals, as while nothing is known, the cheaper, in pool order."""
    return np.lexsort((observation.endpoints[:, _PRICE], -observation.endpoints[:, _ACCURACY]))


def better_half(observation: Observation) -> NDArray[np.intp]:
    """The first N / 2 of them, at least 2."""
    return best_first(observation)[: max(2, len(observation.endpoints) // 2)]


def plurality(evidence: Evidence) -> F32:
    """Logits (K,) whose softmax is each candidate's share of the votes; ties as `elected` breaks them."""
    return _shares(evidence, _VOTE)


def elected(scores: F64, evidence: Evidence) -> int:
    """The candidate with the highest score; of equals the one with the most accurate backer, then the first."""
    equals = np.flatnonzero(scores >= scores.max() - _TIE).tolist()
    votes, accuracy = evidence.members[:, :, _VOTE], evidence.members[:, :, _MEMBER_STANDING]
    # an index into the pool settles equal accuracies; without a backer it comes last
    place = {member: n for n, member in enumerate(np.lexsort((evidence.endpoints, -accuracy[0])).tolist())}
    backers = {c: min((place[m] for m in np.flatnonzero(votes[c]).tolist()), default=len(place)) for c in equals}
    return min(equals, key=lambda c: (backers[c], c))


def _led(scores: F64, evidence: Evidence) -> F32:
    """The scores as logits, the elected candidate ahead of its equals."""
    ahead = scores - scores.max()
    ahead[elected(scores, evidence)] += _LEAD
    logits: F32 = ahead.astype(np.float32)
    return logits


def _shares(evidence: Evidence, column: int) -> F32:
    sums = evidence.members[:, :, column].sum(axis=1, dtype=np.float64)
    logits: F64 = np.log(np.maximum(sums, _UNBACKED))
    return _led(logits, evidence)


def _in_order(order: Sequence[int] | NDArray[np.intp]) -> F32:
    """Logits that ask the first of an order, or where it cannot be asked and somebody must be, the next that can."""
    logits = np.empty(len(order), np.float32)
    logits[list(order)] = -1 - np.arange(len(order)) / len(order)
    logits[order[0]] = SURE
    return logits


class Baseline:
    """A policy by its name; this one asks everybody once. Any number of threads may use it at once.

    Args:
        endpoints: the pool's names, N of them, in the order of the observations' rows.
        seed: makes what is random repeatable; None: chance.

    Attributes:
        name: as given to ``policy=``.
        version: `BASELINE_VERSION`; ``experience``, ``knows_pool``: nothing is brought along.
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
        """Each endpoint's place: a rule has no embeddings."""
        return np.arange(len(endpoints))

    def decider_logits(self, observation: Observation, ids: NDArray[np.int64]) -> F32:
        """Whom it asks, float32 (N,): certain for the wanted ones; none once one has replied."""
        if observation.endpoints[:, _REPLIED].any() and not self._doubts(observation):
            return np.full(len(ids), -SURE, np.float32)
        return self._wanted(observation)

    def fusion_logits(self, evidence: Evidence, ids: NDArray[np.int64]) -> F32:
        """The score of every candidate, float32 (K,): here the log of the members' mean mass on it."""
        return _shares(evidence, _PROBABILITY)

    def reading(self, query_id: str, features: F32, cost_weight: float) -> Self:
        """The policy for one query whose text has these features, at this lambda. Most go by neither."""
        return self

    def learn(self, outcome: Outcome, candidates: int) -> None:
        """Take in an outcome that feedback brought, with the number of its query's candidates. Most need none."""

    def _doubts(self, observation: Observation) -> bool:
        """Whether to ask on though somebody has replied."""
        return False

    def _wanted(self, observation: Observation) -> F32:
        return np.full(len(observation.endpoints), SURE, np.float32)


class Mean(Baseline):
    """Everybody; the mean of their probabilities, a member that gave none counting as sure of its answer."""

    name = "mean"


class Plurality(Baseline):
    """Everybody, with a vote each."""

    name = "plurality"

    def fusion_logits(self, evidence: Evidence, ids: NDArray[np.int64]) -> F32:
        """See `plurality`."""
        return plurality(evidence)


class WeightedVote(Baseline):
    """Everybody; naive Bayes: each vote weighs ln((K - 1) a / (1 - a)), a its member's windowed accuracy."""

    name = "weighted-vote"

    def fusion_logits(self, evidence: Evidence, ids: NDArray[np.int64]) -> F32:
        """The summed weights: their softmax is the naive Bayes posterior."""
        return _led(evidence.members[:, :, _EVIDENCE].sum(axis=1, dtype=np.float64), evidence)


class LogLinearOnline(Baseline):
    """Everybody; q(c) = softmax of the summed weights of c's backers, by online gradient ascent on log q(right).

    Weights start at 1, a plurality vote. A member's weight moves by `LOG_LINEAR_RATE` (y - q(c)), c what it voted for
    and y whether that was right, as far as the feedback tells (see `focalroute.learn.reward.credit`);
    nothing moves where it does not tell of every member, or where none was right and no other candidate is known.
    Feedback of a judge that a user's replaces later has moved them nevertheless.
    """

    name = "log-linear-online"

    def __init__(self, endpoints: Sequence[str], seed: int | None = None) -> None:
        super().__init__(endpoints, seed)
        self.weights = np.ones(len(self._index))  # never changed in place: a reader has one whole state
        self._learning = threading.Lock()

    def fusion_logits(self, evidence: Evidence, ids: NDArray[np.int64]) -> F32:
        """The summed weights."""
        votes = evidence.members[:, :, _VOTE].astype(np.float64)
        return _led(votes @ self.weights[list(evidence.endpoints)], evidence)

    def learn(self, outcome: Outcome, candidates: int) -> None:
        """One step."""
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
    """One endpoint, the first that can be asked and answers; its probabilities are the answer's."""

    def _wanted(self, observation: Observation) -> F32:
        return _in_order(self._order(observation))

    @abstractmethod
    def _order(self, observation: Observation) -> Sequence[int] | NDArray[np.intp]:
        """All endpoints, most wanted first."""


class BestSingle(Alone):
    """The endpoint with the best windowed accuracy; the cheapest while nothing is known.

    Only who was asked can become known: it stays with the first that is right more often than the pool's mean.
    """

    name = "best-single"

    def _order(self, observation: Observation) -> NDArray[np.intp]:
        return best_first(observation)


class _InTurns(Alone):
    """Counts its decisions: the count is all that changes between two asks, and taking it is atomic."""

    def __init__(self, endpoints: Sequence[str], seed: int | None = None) -> None:
        super().__init__(endpoints, seed)
        self._turns = itertools.count()


class RoundRobin(_InTurns):
    """Everyone in turn, in pool order, from the first at every start; the next stands in for who cannot be asked."""

    name = "round-robin"

    def _order(self, observation: Observation) -> Sequence[int]:
        n = len(observation.endpoints)
        turn = next(self._turns)
        return [(turn + step) % n for step in range(n)]


class Random(_InTurns):
    """Any endpoint, each as likely."""

    name = "random"

    def _order(self, observation: Observation) -> Sequence[int]:
        return self._shuffled(list(range(len(observation.endpoints))))

    def _shuffled(self, endpoints: list[int]) -> list[int]:
        turn = next(self._turns)
        chance = random.Random(None if self._seed is None else f"{self._seed} {turn}")  # noqa: S311 - no secret
        chance.shuffle(endpoints)
        return endpoints


class RandomSelect(Random):
    """One of the better half of the pool, each as likely (the paper's greedy control); after them the others."""

    name = "random-select"

    def _order(self, observation: Observation) -> Sequence[int]:
        order: list[int] = best_first(observation).tolist()
        half = len(better_half(observation))
        return self._shuffled(order[:half]) + order[half:]


class RecencyRanking:
    """Ranks endpoints by who was right most recently; safe to use from any thread.

    An endpoint that was wrong ranks below all that were never wrong since they were last right; among those wrong
    since, the one whose failure is longest ago comes first. Right is a value of at least 1/2.

    Args:
        size: number of endpoints.
    """

    def __init__(self, size: int) -> None:
        self._clock = itertools.count(1)
        # (was right the last time, when); a failure counts by how long ago it is
        self._latest: dict[int, tuple[bool, int]] = dict.fromkeys(range(size), (False, 0))

    def record(self, values: Mapping[int, float]) -> None:
        """Take in what the endpoints' answers to one query were worth, each in [0, 1]."""
        now = next(self._clock)
        for endpoint, value in values.items():
            self._latest[endpoint] = (True, now) if value >= 0.5 else (False, -now)

    def key(self, endpoint: int) -> tuple[bool, int]:
        """The sort key of an endpoint; the greatest was right most recently."""
        return self._latest[endpoint]


class LatestCorrect(Alone):
    """The member that was right most recently (the paper's greedy control).

    Ranked by `RecencyRanking`; of equals, as `BestSingle`. Values that were only inferred do not count.
    """

    name = "latest-correct"

    def __init__(self, endpoints: Sequence[str], seed: int | None = None) -> None:
        super().__init__(endpoints, seed)
        self._recency = RecencyRanking(len(self._index))

    def learn(self, outcome: Outcome, candidates: int) -> None:
        """Note who was right."""
        observed = {
            self._index[name]: value
            for name, value in outcome.right.items()
            if name in self._index and name not in outcome.inferred
        }
        self._recency.record(observed)

    def _order(self, observation: Observation) -> Sequence[int]:
        return sorted(best_first(observation).tolist(), key=self._recency.key, reverse=True)


class Cascade(WeightedVote):
    """The cheap first: one endpoint a round, from the better half of the pool, cheapest first, until it is sure.

    Sure means a naive Bayes posterior (as `WeightedVote`) of at least `SURE_ENOUGH` for a candidate; of a free-form
    question, which a single reply is always sure of, after two replies. It ends after ``max_rounds`` at the latest.
    FrugalGPT (arXiv 2305.05176) learns its order and its threshold from a log; here the window gives the order, and the
    threshold is a plain statement: wrong in one of ten, by its own count.
    """

    name = "cascade"
    one_a_round = True

    def _doubts(self, observation: Observation) -> bool:
        context = observation.context
        free_form = context[_CHOICES] == 0
        return bool(context[_CERTAINTY] < SURE_ENOUGH or (free_form and observation.endpoints[:, _REPLIED].sum() < 2))

    def _wanted(self, observation: Observation) -> F32:
        logits = _in_order(best_first(observation))
        logits[better_half(observation)] = SURE  # one a round, and the cheapest are visited first
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
#: What ``policy=`` knows by name.
SERVED_BASELINES: Mapping[str, type[Baseline]] = {kind.name: kind for kind in _KINDS}
