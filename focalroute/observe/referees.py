"""Infers which endpoints are right from their agreement, without labels.

*Values.* With naive Bayes weights w_j of the members' votes (see `observation.vote_weights`), the candidates C that
were given and K possible answers, candidate c is right with probability

    q(c) = e^s(c) / (sum over C of e^s + max(K - |C|, 0)),    s(c) = sum of w_j over the members j that back c

and a member's value is q of its candidate. The last term is "none of these": it makes a lone member's value its usual
accuracy, so a member asked alone teaches nothing.

*Comparisons.* Members i and j that differ are compared by the others, their referees:

    d_ij = (sum of v_r over referees r that agree with i - sum over those that agree with j) / sum of v_r

with v_r = 1/2 + 3 (relative skill), within 0.1 and 2. Referees err, too: E[d_ij] is `RELIABILITY` times the difference
that a label would show, so each such row counts as RELIABILITY^2 labelled ones. d_ij is a share of trust rather than a
posterior, as posteriors would give trusted endpoints ever more trust. Rows on which i and j agree show no difference.

*Copies.* A row is contested by i and j if they differ, or agree against another member. Let o be the share of contested
rows on which they agree: it is small for endpoints whose errors are independent. From o = 0.85 to 0.93 k_ij rises from
0 to 1, and copies count as one: a vote is divided by 1 + the sum of k over the others that back the same candidate, and
v_r is multiplied by (1 - k_ri) (1 - k_rj). If one of two endpoints that used to differ becomes the other's model, they
suddenly agree on row after row. Once the log-probability of such a run by chance is below -`_BECAME_ALIKE` nats, their
earlier rows no longer count towards o.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from focalroute.core.records import F64, I64
from focalroute.observe.observation import vote_weights

#: Mean share of a difference between two endpoints that their referees see.
RELIABILITY = 0.6

#: By how much values are assumed to be too high before there are labels: endpoints that err together look right.
FLATTERY = 0.1

#: The most labelled rows that all comparisons of an endpoint by referees are worth.
MOST_WORTH = 60

_BIAS_PRIOR = 10.0  # labelled rows: strength of the pool's bias as prior of an endpoint's, and of -FLATTERY as pool's
_LEAST_TRUST = 0.02  # in all referees of a pair together
_COPY = 0.85, 0.93  # the shares o between which k rises
_CONTESTED_PRIOR = 1.0  # rows added on which two endpoints differ
_TWO_VOICES = 1.5  # least votes to judge by, copies counted as one
_FEW = 15  # contested rows, below which they do not tell copies apart; and least rows to suspect copies
_ALIKE = 0.97  # two endpoints that agree on this share of rows may be copies
_MOST_CONTESTED = 500.0  # rows, after which all earlier ones count half
_BECAME_ALIKE = 40.0  # nats: how improbable a run of agreement must be, given how often the two differed before it
_REFEREED_PRIOR = 0.5  # rows: strength of the prior, 0, of a pair's difference


@dataclass(slots=True)  # a frozen one takes five times as long to make
class Verdict:
    """The inferred correctness of the m members of one query.

    Attributes:
        members: (m,) their indices in the pool.
        candidates: (m,) the candidate each backs, as given to `judge`.
        values: (m,) how likely each is right; NaN where unknown.
        sums: (4, m, m) for each pair, rounded by `_exact`: 1; whether they differ; RELIABILITY d_ij; RELIABILITY^2
            where there are referees. Only the first, (1, m, m), if all back the same, as the others are 0.
    """

    members: I64
    candidates: I64
    values: F64
    sums: F64


def judge(
    members: I64, candidates: I64, choices: int, skill: F64, relative_skill: F64, copies: F64 | None = None
) -> Verdict:
    """Judge the members of one query, at least two, by each other.

    Args:
        members: (m,) their indices in the pool.
        candidates: (m,) the candidate each backs; -1: its reply has no answer, which counts as wrong.
        choices: K; `OPEN_CHOICES` for a free-form question.
        skill: (m,) how likely each was expected to be right.
        relative_skill: (m,) the same minus the pool's level.
        copies: (m, m) k, 1 on the diagonal; None: no copies.
    """
    copies = np.eye(len(members)) if copies is None else copies
    if _all_equal(candidates) and candidates[0] >= 0:
        return _unanimous(members, candidates, choices, skill, copies)
    answered = candidates >= 0
    same = (candidates[:, None] == candidates) & answered[:, None]
    alone = 1 / np.maximum((same * copies).sum(axis=1), 1)  # weight of a vote, divided among copies
    scores = np.exp(same @ (vote_weights(skill, choices) * alone))
    given = dict(zip(candidates[answered].tolist(), scores[answered].tolist(), strict=True))
    values = np.zeros(len(members))
    if given:
        whole = sum(given.values()) + max(choices - len(given), 0)
        values = np.minimum(answered * scores / whole, 1)  # rounding may exceed 1
    if len(given) == 1 and (alone * answered).sum() < _TWO_VOICES:  # copies only: they count as one vote
        values[answered] = np.nan
    trust = np.minimum(np.maximum(0.5 + 3 * relative_skill, 0.1), 2.0)  # v_r
    weight = (1 - copies) * (trust * alone)  # of referee r (column) for member i (row), (m, m)
    backing, referees = (same * weight) @ (1 - copies), weight @ (1 - copies)
    differ = candidates[:, None] != candidates
    refereed = differ & (referees > _LEAST_TRUST)
    ahead = np.divide(backing - backing.T, referees, out=np.zeros(differ.shape), where=refereed)
    sums = np.empty((4, *differ.shape))
    sums[0], sums[1], sums[2], sums[3] = 1, differ, RELIABILITY * ahead, RELIABILITY**2 * refereed
    at = np.arange(len(members))
    sums[:, at, at] = 0
    return Verdict(members, candidates, values, _exact(sums))


def _unanimous(members: I64, candidates: I64, choices: int, skill: F64, copies: F64) -> Verdict:
    """Judge members that all back the same candidate, so that no pair differs."""
    alone = 1 / np.maximum(np.add.reduce(copies, axis=1), 1)
    score = math.exp(float(vote_weights(skill, choices) @ alone))
    value = min(score / (score + choices - 1), 1.0) if float(np.add.reduce(alone)) >= _TWO_VOICES else math.nan
    return Verdict(members, candidates, np.full(len(members), value), _pairs(len(members)))


@lru_cache(maxsize=16)
def _pairs(members: int) -> F64:
    """Return (1, m, m): 1 for each pair; shared by all unanimous verdicts."""
    return 1 - np.eye(members)[None]


def _all_equal(candidates: I64) -> bool:
    return len({*candidates.tolist()}) == 1


class Referees:
    """Keeps the latest verdicts, and their errors where labels came. Not thread-safe by itself; `Observer` guards it.

    Args:
        endpoints: N.
        size: the verdicts kept.

    Attributes:
        copies: (N, N) k, 1 on the diagonal.
    """

    def __init__(self, endpoints: int, size: int) -> None:
        self._size = size
        self._verdicts: OrderedDict[str, Verdict] = OrderedDict()
        self._errors: OrderedDict[str, _Errors] = OrderedDict()
        self._sums = np.zeros((4, endpoints, endpoints))
        # (2, 3, N) of undisputed and of disputed answers: labelled rows; sums of (truth - value) and of its square
        self._error_sums = np.zeros((2, 3, endpoints))
        self._contested = np.zeros((2, endpoints, endpoints))  # rows on which a pair agrees against another, or differs
        self._common = np.zeros((2, endpoints, endpoints))  # rows with both of a pair, and those on which they differ
        self._run = np.zeros((endpoints, endpoints))  # latest rows with both, back to the last on which they differ
        self.copies = np.eye(endpoints)

    def compare(self, answer_id: str, members: I64, candidates: I64) -> list[int]:
        """Count which members of one query agree and differ, and update the copies.

        If there is a verdict on the query, as an endpoint was probed since, it replaces what that verdict counted.

        Returns:
            The endpoints newly found to be copies of others.
        """
        before = self._verdicts.get(answer_id)
        if before is not None:
            self._count(before.members, before.candidates, -1)
        self._count(members, candidates, 1)
        unanimous = _all_equal(candidates)
        self._follow_runs(members, candidates, unanimous=unanimous, new=before is None)
        if unanimous:
            return []
        at = members[:, None], members
        agreed, differed = self._contested[0][at], self._contested[1][at]
        kept = np.where(agreed + differed > _MOST_CONTESTED, 0.5, 1.0)
        self._contested[0][at], self._contested[1][at] = agreed, differed = agreed * kept, differed * kept
        share = agreed / (agreed + differed + _CONTESTED_PRIOR)
        copies = np.minimum(np.maximum((share - _COPY[0]) / (_COPY[1] - _COPY[0]), 0), 1)
        np.fill_diagonal(copies, 1)
        found = (copies >= 0.5) & (self.copies[at] < 0.5)
        self.copies[at] = copies
        copying: list[int] = members[found.any(axis=1)].tolist()
        return copying

    def _follow_runs(self, members: I64, candidates: I64, *, unanimous: bool, new: bool) -> None:
        """Count for how many rows each pair has agreed; if the run is too long for chance, forget earlier differences.

        Args:
            unanimous: whether all back the same.
            new: whether the query was not counted before.
        """
        at = members[:, None], members
        run = self._run[at]
        if new:
            run += candidates >= 0
        if not unanimous:
            self._run[at] = np.where(candidates[:, None] == candidates, run, 0)
            return
        self._run[at] = run
        rows, differed = self._common[0][at], self._common[1][at]
        became_alike = run * np.log1p(differed / (rows - run - differed + 1)) >= _BECAME_ALIKE
        if became_alike.any():
            self._common[0][at] = np.where(became_alike, run, rows)
            for counts in (self._common[1], *self._contested):
                counts[at] = np.where(became_alike, 0, counts[at])

    def _count(self, members: I64, candidates: I64, sign: int) -> None:
        """Count the pairs of one query's members that agree or differ, or with sign -1 take them back."""
        at = members[:, None], members
        self._common[0][at] += sign
        if not _all_equal(candidates):
            same = candidates[:, None] == candidates
            self._common[1][at] += sign * ~same
            self._contested[0][at] += sign * (same & (candidates >= 0))
            self._contested[1][at] += sign * ~same

    def add(self, answer_id: str, verdict: Verdict) -> None:
        """Add the verdict on one query, replacing an earlier one."""
        self._drop(answer_id)
        self._verdicts[answer_id] = verdict
        self._sums[: len(verdict.sums), verdict.members[:, None], verdict.members] += verdict.sums
        if len(self._verdicts) > self._size:
            self._drop(next(iter(self._verdicts)))

    def label(self, answer_id: str, right: F64, disputed: bool, *, known: bool = True) -> bool:
        """Replace the verdict on a labelled query by its errors; a later label replaces these.

        Args:
            right: (N,) 1 right, 0 wrong, NaN unknown.
            disputed: see `Outcome.disputed`.
            known: False if all of ``right`` is inferred, as from a grade: the verdict stays, as such values do not
                compare members.

        Returns:
            Whether there was a verdict.
        """
        before = self._errors.pop(answer_id, None)
        if before is not None:
            self._add_errors(before, -1)
        judged = self._verdicts.get(answer_id, before)
        if judged is None:
            return False
        if known:
            self._drop(answer_id)
        members, values = judged.members, judged.values
        kept = self._errors[answer_id] = _Errors(int(disputed), members, values, _error_terms(right[members] - values))
        self._add_errors(kept, 1)
        if len(self._errors) > self._size:
            _, oldest = self._errors.popitem(last=False)
            self._add_errors(oldest, -1)
        return True

    def _add_errors(self, errors: _Errors, sign: int) -> None:
        self._error_sums[errors.disputed][:, errors.members] += sign * errors.terms

    def suspicious(self) -> bool:
        """Whether two endpoints nearly always agree, with too few contested rows to tell whether they are copies."""
        rows, differed = self._common
        alike = (rows >= _FEW) & (rows - differed >= _ALIKE * rows) & (self._contested.sum(axis=0) < _FEW)
        np.fill_diagonal(alike, 0)
        return bool(alike.any())

    def reset(self, endpoint: int) -> None:
        """Forget everything about an endpoint that changed, including whose copy it was."""
        self.forget(endpoint)
        for counts in (*self._common, *self._contested, self._run, self.copies):
            counts[endpoint] = counts[:, endpoint] = 0
        self.copies[endpoint, endpoint] = 1

    def forget(self, endpoint: int) -> None:
        """Forget all verdicts on queries that an endpoint answered, and its errors."""
        for answer_id, verdict in list(self._verdicts.items()):
            if endpoint in verdict.members:
                self._drop(answer_id)
        for answer_id, errors in list(self._errors.items()):
            if endpoint in errors.members:
                self._errors[answer_id] = errors.without(endpoint)
        self._error_sums[..., endpoint] = 0

    def bias(self) -> F64:
        """Return by how much each endpoint's values are too low on undisputed and on disputed answers, (2, N).

        This is the mean error on labelled rows, shrunk to the pool's, which is shrunk to -FLATTERY: the rectifier of
        prediction-powered inference (arXiv 2301.09633, Eq. 1), partially pooled. It is stratified, as users may judge
        disputed answers more often than others.
        """
        rows, errors, _ = self._error_sums.swapaxes(0, 1)
        pool = errors.sum(axis=1, keepdims=True) / (rows.sum(axis=1, keepdims=True) + _BIAS_PRIOR)
        bias: F64 = (errors + _BIAS_PRIOR * pool) / (rows + _BIAS_PRIOR) - self.presumed()
        return bias

    def presumed(self) -> F64:
        """Return the part of `bias` that is the prior, FLATTERY, rather than labels; positive, (2, N)."""
        rows = self._error_sums[:, 0]
        of_pool = FLATTERY * _BIAS_PRIOR / (rows.sum(axis=1, keepdims=True) + _BIAS_PRIOR)
        left: F64 = of_pool * _BIAS_PRIOR / (rows + _BIAS_PRIOR)
        return left

    def bias_deviation(self) -> F64:
        """Return the standard error of `bias`, (2, N); FLATTERY without labels."""
        rows, errors, squares = self._error_sums.swapaxes(0, 1)
        spread = np.maximum(squares - errors**2 / np.maximum(rows, 1), 0)
        deviation: F64 = np.sqrt(spread + (_BIAS_PRIOR * FLATTERY) ** 2) / (rows + _BIAS_PRIOR)
        return deviation

    def comparisons(self) -> tuple[F64, F64]:
        """Return how many labelled rows each pair's verdicts are worth, and i's lead over j in these; both (N, N).

        A pair's difference is the share of rows on which it differs times the mean difference that referees see there.
        """
        rows, differ, ahead, refereed = self._sums
        worth = rows * np.where(differ > 0, (refereed + _REFEREED_PRIOR) / (differ + _REFEREED_PRIOR), 1.0)
        worth = np.minimum(worth, rows)
        share = differ / np.maximum(rows, 1)
        return worth, worth * share * ahead / (refereed + _REFEREED_PRIOR)

    def _drop(self, answer_id: str) -> None:
        verdict = self._verdicts.pop(answer_id, None)
        if verdict is not None:
            self._sums[: len(verdict.sums), verdict.members[:, None], verdict.members] -= verdict.sums


class _Errors(NamedTuple):
    """A labelled query: whether it is disputed, its members, their values, and their error terms (3, m)."""

    disputed: int
    members: I64
    values: F64
    terms: F64

    def without(self, endpoint: int) -> _Errors:
        kept = self.members != endpoint
        return _Errors(self.disputed, self.members[kept], self.values[kept], self.terms[:, kept])


def _error_terms(errors: F64) -> F64:
    """Return what each member adds to the sums over errors, (3, m): 1, its error, its square; 0 if unknown."""
    known = ~np.isnan(errors)
    errors = _exact(np.where(known, errors, 0))
    return np.array([known, errors, _exact(errors**2)], np.float64)


def _exact(values: F64) -> F64:
    """Round to multiples of 2^-20, so that adding and subtracting the same values is exact."""
    return np.rint(values * 2**20) / 2**20
