"""Learns how endpoints confuse choices that recur, such as a classifier's labels (Dawid & Skene 1979).

For each set of choices of a task, n_c counts the labelled answers of which choice c was right, and n_icv those to which
endpoint i gave choice v instead, or v = c. From these

    P(c)          uniform, or (n_c + 1) / (n + K)
    P_i(v | c)    (n_icv + s a_icv) / (n_ic + s),   with a_icv = a_i if v = c, else (1 - a_i) / (K - 1)

a_i is the endpoint's accuracy, so an infinite s means that it confuses all choices alike. P(c) and s are not fixed: all
candidates are averaged, weighted by how probable they make the labels and replies so far (Bayesian model averaging,
Hoeting et al. 1999). Without any, the uniform P(c) and the infinite s each have a weight of four fifths.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from focalroute.core.records import F32, F64, I64, Labelled

#: Questions with more choices are not counted.
MOST_COUNTED_CHOICES = 32

_STRENGTHS = (5.0, 20.0, 80.0, 320.0)  # besides them, an infinite one
_ALIKE_AT_FIRST = math.log(16)  # prior log-odds of the infinite strength to each of the four others
_UNIFORM_AT_FIRST = math.log(4)  # prior log-odds of the uniform P(c) to the counted one
_MOST_SETS = 128
_MOST_COUNTED = 1000  # labelled answers of a set; then all counts are halved, as shares change with time
_LEAST_ACCURACY, _MOST_ACCURACY = 0.02, 0.98  # the least: above blind chance

#: A task, or None, and the keys of its choices, sorted.
ChoiceSet = tuple[str | None, tuple[str, ...]]


class Confusion(NamedTuple):
    """How often one ask's choices are right, and how endpoints confuse them, as log-ratios.

    Attributes:
        prior: (K,) ln(K P(c)) of each choice c.
        votes: (N, K, K) [i, v, c]: how much more endpoint i's vote for choice v favours choice c than if the endpoint
            confused all choices alike; centred over c.
    """

    prior: F64
    votes: F64


class ChoiceCounts(NamedTuple):
    """The counts of one set of choices, in the order of their keys; an added answer makes new arrays.

    Attributes:
        right: n_c, float64 (K,).
        given: n_icv, float32 (N, K, K).
    """

    right: F64
    given: F32


class _Row(NamedTuple):
    """The contribution of one answer: the right choice, and the choice that each member gave."""

    key: ChoiceSet
    right: int
    members: I64
    votes: I64

    def added_to(self, counts: ChoiceCounts, times: int = 1) -> ChoiceCounts:
        """Return the counts with this answer, or without it if ``times`` is -1."""
        right, given = counts.right.copy(), counts.given.copy()
        right[self.right] = max(right[self.right] + times, 0)
        here = self.members, self.right, self.votes
        given[here] = np.maximum(given[here] + times, 0)
        return ChoiceCounts(right, given)


class ConfusionStats:
    """The counts of a pool's endpoints by set of choices. Not thread-safe by itself; `Observer` guards it.

    The 128 most recently labelled sets of at most 32 choices are kept.

    Args:
        endpoints: N.
        kept: how many of the latest answers can still be corrected.
    """

    def __init__(self, endpoints: int, kept: int) -> None:
        self._endpoints = endpoints
        self._kept = kept
        self._sets: OrderedDict[ChoiceSet, ChoiceCounts] = OrderedDict()
        self._rows: OrderedDict[str, _Row] = OrderedDict()
        self._made: dict[ChoiceSet, tuple[F64, Confusion]] = {}  # the accuracies used, and the result

    @property
    def sets(self) -> Mapping[ChoiceSet, ChoiceCounts]:
        """The counts by set of choices."""
        return self._sets

    def fill(self, sets: Mapping[ChoiceSet, ChoiceCounts]) -> None:
        """Replace all counts."""
        self._rows.clear()
        self._made.clear()
        self._sets = OrderedDict(sets)

    def add(self, answer_id: str, labelled: Labelled | None, votes: Mapping[int, int]) -> None:
        """Add the members' votes for one labelled question, replacing what the same answer added before.

        Args:
            labelled: the choices and the right one; None: only remove what the answer added.
            votes: endpoint -> the choice it gave; others are ignored.
        """
        self._made.clear()
        before = self._rows.pop(answer_id, None)
        if before is not None and before.key in self._sets:
            self._sets[before.key] = before.added_to(self._sets[before.key], -1)
        if labelled is None or len(labelled.choices) > MOST_COUNTED_CHOICES:
            return
        key = labelled.task, tuple(sorted(labelled.choices))
        place = [key[1].index(choice) for choice in labelled.choices]
        given = {endpoint: place[vote] for endpoint, vote in votes.items() if vote < len(place)}
        row = _Row(key, place[labelled.right], np.array([*given], np.int64), np.array([*given.values()], np.int64))
        known = self._sets.pop(key, None)
        counts = row.added_to(self._nothing(len(place)) if known is None else known)
        if counts.right.sum() > _MOST_COUNTED:
            counts = ChoiceCounts(counts.right / 2, counts.given / np.float32(2))
            self._rows = OrderedDict((name, one) for name, one in self._rows.items() if one.key != key)
        else:
            self._rows[answer_id] = row
        self._sets[key] = counts
        if len(self._rows) > self._kept:
            self._rows.popitem(last=False)
        if len(self._sets) > _MOST_SETS:
            self._sets.popitem(last=False)

    def forget(self, endpoint: int) -> None:
        """Set an endpoint's counts to 0."""
        self._made.clear()
        for counts in self._sets.values():
            counts.given[endpoint] = 0

    def of(self, task: str | None, choices: Sequence[str], accuracy: F64) -> Confusion | None:
        """Return how these choices are confused; None: no answer of the task with these choices has a label.

        Args:
            task: the query's; labels of other tasks do not count.
            choices: their keys.
            accuracy: (N,) of each endpoint.
        """
        order = sorted(range(len(choices)), key=choices.__getitem__)
        key = task, tuple(choices[at] for at in order)
        counts = self._sets.get(key)
        if counts is None:
            return None
        made = self._made.get(key)
        if made is None or made[0] is not accuracy:
            made = self._made[key] = accuracy, _confusion(counts, accuracy)
        prior, votes = made[1]
        place = np.argsort(order)
        return Confusion(prior[place], votes[:, place[:, None], place])

    def __bool__(self) -> bool:
        """Whether any answer to a closed question has a label."""
        return bool(self._sets)

    def _nothing(self, choices: int) -> ChoiceCounts:
        return ChoiceCounts(np.zeros(choices), np.zeros((self._endpoints, choices, choices), np.float32))


def _confusion(counts: ChoiceCounts, accuracy: F64) -> Confusion:
    """Return the confusion that these counts show, with choices in the counts' order."""
    k = len(counts.right)
    bounded = np.clip(accuracy, 1 / k + _LEAST_ACCURACY, _MOST_ACCURACY)[:, None, None]
    alike = np.where(np.eye(k, dtype=bool), bounded, (1 - bounded) / (k - 1))  # [i, c, v]
    seen = counts.given.sum(axis=2, keepdims=True)
    candidates = [*((counts.given + s * alike) / (seen + s) for s in _STRENGTHS), alike]
    shares = _shares(_evidence_of_strengths(counts.given.astype(np.float64), alike))
    votes = np.log(np.einsum("s,sicv->ivc", shares, candidates) / alike)
    counted = (counts.right + 1) / (counts.right.sum() + k)
    uniform_share, counted_share = _shares(_evidence_of_priors(counts.right))
    prior = np.log(uniform_share + counted_share * counted * k)
    return Confusion(prior, votes - votes.mean(axis=2, keepdims=True))


def _evidence_of_strengths(given: F64, alike: F64) -> F64:
    """Return the log-probability of the replies under each strength, plus its prior's; the infinite one last, (5,)."""
    seen = given.sum(axis=2)
    seen, replied = seen[seen > 0], given > 0
    counts, expected = given[replied], alike[replied]
    finite = [_log_rising(s * expected, counts).sum() - _log_rising(s, seen).sum() for s in _STRENGTHS]
    return np.array([*finite, _ALIKE_AT_FIRST + (counts * np.log(expected)).sum()])


def _evidence_of_priors(right: F64) -> F64:
    """Return the log-probability of the labels under the uniform and the counted P(c), plus their prior's, (2,)."""
    k, n = len(right), float(right.sum())
    counted = _log_rising(1.0, right).sum() - _log_rising(float(k), n)
    return np.array([_UNIFORM_AT_FIRST - n * math.log(k), counted])


#: ln(Gamma(x + n) / Gamma(x)), of the Dirichlet-multinomial distribution.
_log_rising = np.vectorize(lambda x, n: math.lgamma(x + n) - math.lgamma(x), otypes=[float])


def _shares(log_evidence: F64) -> F64:
    """Return the posterior weight of each candidate."""
    evidence = np.exp(log_evidence - log_evidence.max())
    shares: F64 = evidence / evidence.sum()
    return shares
