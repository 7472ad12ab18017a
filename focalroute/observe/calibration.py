"""Calibrates the members' probabilities, and the confidence in an answer, as labels arrive.

`CalibrationStats` corrects the members' probabilities, from sums over labelled queries, without gradients. Let x_k be
the log of a member's mass on choice k, centred over the choices, and y the right choice. For each task and position k
it counts how often k was wrong and how often it was right, and sums x_k and its squares. From these

    m_k = mean of x_k where k was wrong           the member's bias for the position
    g   = mean of x_y - m_y over all queries      how much more mass the right choice gets
    v   = the larger of the means of (x_k - m_k)^2 and (x_y - m_y - g)^2

and the log-likelihood ratio of choice k is g / v (x_k - m_k): a linear discriminant (Fisher 1936), the same for all k.
As m_k leaves out the right choice, it does not depend on how often each position is right. Every mean of a task is
shrunk to the mean over all tasks, and that mean to 0, each with the weight of `PRIOR_QUERIES` (partial pooling, Gelman
& Hill 2007). Position bias: Zhao et al. 2021 (contextual calibration), Zheng et al. 2024 (PriDe).

`Recalibration` turns the Fusion's posteriors into confidences, by Platt scaling:

    confidence = sigmoid(alpha + beta logit q),    q the posterior of the answer

alpha and beta maximise the likelihood of the latest outcomes under a prior around (0, beta_0) that is worth
`PRIOR_OUTCOMES` (Platt 1999). The curve is monotone in q, so it never changes which answer is given. Members' errors
are correlated, so votes say less than they seem to: beta_0 is `SHARED_ERRORS`, but 1 for a policy that was trained on
the pool's own record.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from focalroute.core.records import F64, Masses

#: Questions with more choices are not calibrated.
MOST_CHOICES = 64

#: Strength, in queries, of the prior: for one task the mean over all tasks, for that mean 0.
PRIOR_QUERIES = 10

#: Labelled queries after which a member's vote counts half and its probabilities take the other half.
HALF_TRUST = 20

#: Logarithms of smaller probabilities are taken of this.
LEAST_MASS = np.exp(-30)

#: Bound of a log-likelihood ratio, in either direction.
STRONGEST = 8.0

#: Strength, in outcomes, of the prior of an answer's confidence.
PRIOR_OUTCOMES = 30

#: beta_0, the prior slope of the confidence while it is unknown how correlated the members' errors are.
SHARED_ERRORS = 0.7

_MOST_TASKS = 256
_PRIOR_VARIANCE = 1.0  # nats^2
_CURVATURE = PRIOR_OUTCOMES / 4 * np.diag([1.0, 4.0])  # of that many outcomes' log-likelihood at q = 1/2, logits +-2
_IDENTITY = (0.0, 1.0)
_PRESUMED = (0.0, SHARED_ERRORS)
_FARTHEST = 8.0  # bound of a logit


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over labelled queries for each endpoint.

    Attributes:
        sums: float64 (..., 4, N, P) by position: how often it was wrong and the sum of x where it was, how often it
            was right and the sum of x where it was.
        squares: float64 (..., 2, N) the sum of x^2 where wrong, and where right.
    """

    sums: F64
    squares: F64


class Corrections(NamedTuple):
    """The corrections that follow from the totals.

    Attributes:
        means: m, (..., N, P).
        weights: g / v, (..., N).
        trust: n / (n + 20), n the labelled queries of any task for which the endpoint gave probabilities; (..., N).
        signal: g / sqrt(v), the distance of right from wrong choices in standard deviations; (..., N).
    """

    means: F64
    weights: F64
    trust: F64
    signal: F64


def corrections_of(own: Totals, shared: Totals) -> Corrections:
    """Return the corrections for a task from its own totals (all 0 if there are none) and those of all tasks."""
    seen = shared.sums[..., 2, :, :].sum(axis=-1)
    found = _moments(own, _moments(shared, _Moments.uninformative(shared)))
    variance = np.maximum(found.variance[..., 0, :], found.variance[..., 1, :])
    return Corrections(found.means, found.gap / variance, seen / (seen + HALF_TRUST), found.gap / np.sqrt(variance))


class _Moments(NamedTuple):
    """m (..., N, P), g (..., N), and v where wrong and where right (..., 2, N)."""

    means: F64
    gap: F64
    variance: F64

    @classmethod
    def uninformative(cls, totals: Totals) -> _Moments:
        """Return the prior: probabilities that say nothing about which choice is right."""
        return cls(np.zeros_like(totals.sums[..., 0, :, :]), np.zeros(()), np.full((1, 1), _PRIOR_VARIANCE))


def _moments(totals: Totals, prior: _Moments) -> _Moments:
    """Return the moments, shrunk to the prior."""
    wrong, wrong_sum, right, right_sum = (totals.sums[..., part, :, :] for part in range(4))
    means = (wrong_sum + PRIOR_QUERIES * prior.means) / (wrong + PRIOR_QUERIES)
    # (..., 2, N), where wrong and where right: the number of x, the sum of x - m, the sum of x^2 - (x - m)^2
    count = _over_positions(wrong, right)
    excess = _over_positions(wrong_sum - wrong * means, right_sum - right * means)
    cross = _over_positions(means * (2 * wrong_sum - wrong * means), means * (2 * right_sum - right * means))
    off = excess / np.maximum(count, 1)
    right_excess = (excess[..., 1, :] + PRIOR_QUERIES * prior.gap) / (count[..., 1, :] + PRIOR_QUERIES)
    gap = np.maximum(right_excess - off[..., 0, :], 0)
    spread = np.maximum(totals.squares - cross - excess * off, 0)
    variance = (spread + PRIOR_QUERIES * prior.variance) / (count + PRIOR_QUERIES)
    return _Moments(means, gap, variance)


def _over_positions(wrong: F64, right: F64) -> F64:
    return np.stack([wrong.sum(axis=-1), right.sum(axis=-1)], axis=-2)


def centred_log_mass(mass: NDArray[np.floating], size: NDArray[np.int64]) -> F64:
    """Return logs of probabilities, at least ln(`LEAST_MASS`), centred over each query's choices; 0 where unknown.

    Args:
        mass: (..., N, K), NaN where an endpoint gave none.
        size: (...) the query's number of choices, at most K; 0: a free-form one without an answer.
    """
    logs = np.log(np.clip(mass, LEAST_MASS, 1).astype(np.float64))
    real = ~np.isnan(logs) & (np.arange(logs.shape[-1]) < size[..., None])[..., None, :]
    logs = np.where(real, logs, 0)
    return np.where(real, logs - logs.sum(axis=-1, keepdims=True) / np.maximum(size, 1)[..., None, None], 0)


def likelihoods(log_mass: F64, means: F64, weights: F64) -> F64:
    """Return the log-likelihood ratios (..., K) of centred log-masses (..., K), within -`STRONGEST` and `STRONGEST`."""
    return (weights[..., None] * (log_mass - means)).clip(-STRONGEST, STRONGEST)


def totals_of(log_mass: F64, given: NDArray[np.bool_], label: NDArray[np.int64], size: NDArray[np.int64]) -> Totals:
    """Return the totals of each of T queries, (T, ...).

    Args:
        log_mass: (T, N, P) centred log-masses; values beyond a query's choices are ignored.
        given: (T, N) whether the endpoint gave probabilities and the label is known.
        label: (T,) the right choice.
        size: (T,) number of choices.
    """
    at = np.arange(log_mass.shape[2])
    real = given[:, :, None] & (at < size[:, None])[:, None, :]
    is_right = (at == label[:, None])[:, None, :]
    wrong, right = real & ~is_right, real & is_right
    x = np.where(real, log_mass, 0.0)
    sums = np.stack([wrong, wrong * x, right, right * x], axis=1)
    squares = np.stack([(wrong * x * x).sum(axis=2), (right * x * x).sum(axis=2)], axis=1)
    return Totals(sums, squares)


class _Row(NamedTuple):
    """The contribution of one answer."""

    task: str | None
    totals: Totals


class CalibrationStats:
    """The totals of a pool's endpoints, by task and over all tasks. Not thread-safe by itself; `Observer` guards it.

    The 256 most recently updated tasks are kept.

    Args:
        endpoints: the pool's names.
        kept: how many of the latest answers can still be corrected.
    """

    def __init__(self, endpoints: Sequence[str], kept: int) -> None:
        self._names = tuple(endpoints)
        self._kept = kept
        self._rows: OrderedDict[str, _Row] = OrderedDict()
        self._totals: OrderedDict[str | None, Totals] = OrderedDict()
        self._made: dict[str | None, Corrections] = {}

    def fill(self, totals: Mapping[str | None, Totals]) -> None:
        """Replace the totals, by task (None: over all tasks), with columns in pool order."""
        self._rows.clear()
        self._made = {}
        self._totals = OrderedDict(totals)

    def add(self, answer_id: str, masses: Masses | None) -> None:
        """Add the members' probabilities for one labelled query, replacing what the same answer added before."""
        before = self._rows.pop(answer_id, None)
        if before is not None:
            self._count(before, -1)
        if masses is None or not 1 < masses.size <= MOST_CHOICES:
            return
        log_mass = np.zeros((1, len(self._names), masses.size))
        given = np.array([[name in masses.log_mass for name in self._names]])
        for i, name in enumerate(self._names):
            if given[0, i]:
                log_mass[0, i] = masses.log_mass[name]
        log_mass -= log_mass.mean(axis=2, keepdims=True)
        added = totals_of(log_mass, given, np.array([masses.label]), np.array([masses.size]))
        row = self._rows[answer_id] = _Row(masses.task, Totals(added.sums[0], added.squares[0]))
        self._count(row, 1)
        if len(self._rows) > self._kept:
            self._rows.popitem(last=False)

    def forget(self, endpoint: int) -> None:
        """Set an endpoint's totals to 0."""
        self._made = {}
        for totals in [*self._totals.values(), *(row.totals for row in self._rows.values())]:
            totals.sums[:, endpoint] = 0
            totals.squares[:, endpoint] = 0

    def corrections(self, task: str | None) -> Corrections | None:
        """Return a task's corrections; those over all tasks if it is None or new; None before any labelled query."""
        shared = self._totals.get(None)
        if shared is None:
            return None
        known = task is not None and task in self._totals
        key = task if known else None
        found = self._made.get(key)
        if found is None:
            nothing = Totals(np.zeros_like(shared.sums), np.zeros_like(shared.squares))
            own = _widened(self._totals[key], shared.sums.shape[2]) if known else nothing
            found = self._made[key] = corrections_of(own, shared)
        return found

    def _count(self, row: _Row, sign: int) -> None:
        """Add an answer to the totals of its task and of all tasks, or with sign -1 take it back."""
        self._made = {}
        for key in {None, row.task}:
            known = self._totals.pop(key, None)
            if known is None and sign < 0:
                continue  # its task is no longer kept
            wide = max(row.totals.sums.shape[2], 0 if known is None else known.sums.shape[2])
            added = _widened(row.totals, wide)
            if known is None:
                total = Totals(added.sums.copy(), added.squares.copy())
            else:
                known = _widened(known, wide)
                total = Totals(known.sums + sign * added.sums, known.squares + sign * added.squares)
            self._totals[key] = total
        while len(self._totals) > _MOST_TASKS + 1:
            oldest = next(key for key in self._totals if key is not None)
            del self._totals[oldest]


def _widened(totals: Totals, positions: int) -> Totals:
    """Return the totals padded to at least this many positions; the same object if it has enough."""
    missing = positions - totals.sums.shape[-1]
    if missing <= 0:
        return totals
    return Totals(np.pad(totals.sums, [(0, 0), (0, 0), (0, missing)]), totals.squares)


class Recalibration:
    """Fits the confidence curve to the latest answers' outcomes. Not thread-safe by itself; `Observer` guards it.

    Args:
        size: outcomes kept.

    Attributes:
        curve: the present alpha and beta.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._places: dict[str, int] = {}
        self._ids: list[str] = []
        self._next = 0
        self._rows = np.zeros((size, 2))  # 1, logit of q
        self._right = np.zeros(size)
        self._prior = self.curve = _PRESUMED

    def trust(self) -> None:
        """Make the identity the prior, as for a policy trained on the pool's own record."""
        self._prior = _IDENTITY
        if not self._ids:
            self.curve = _IDENTITY

    def learn(self, answer_id: str, posterior: float, right: float) -> None:
        """Learn how right an answer with this posterior was, in [0, 1]; replaces an earlier outcome of the answer."""
        place = self._places.get(answer_id)
        if place is None:
            place, self._next = self._next, (self._next + 1) % self._size
            if place < len(self._ids):
                del self._places[self._ids[place]]
                self._ids[place] = answer_id
            else:
                self._ids.append(answer_id)
            self._places[answer_id] = place
        self._rows[place] = 1, _logit(posterior)
        self._right[place] = right
        self._step()

    def _step(self) -> None:
        """Do one Newton step from the last curve; after a single further outcome one is enough."""
        known = len(self._ids)
        rows, curve = self._rows[:known], np.array(self.curve)
        p = 1 / (1 + np.exp(-rows @ curve))
        gradient = (self._right[:known] - p) @ rows - _CURVATURE @ (curve - self._prior)
        hessian = (rows * (p * (1 - p))[:, None]).T @ rows + _CURVATURE
        (a, b), (_, c) = hessian.tolist()
        d, e = gradient.tolist()
        scale = a * c - b * b  # Cramer's rule: `np.linalg.solve` takes most of a step's time for these two unknowns
        changes = (c * d - b * e) / scale, (a * e - b * d) / scale
        bounded = [min(max(change, -0.5), 0.5) for change in changes]
        alpha, beta = self.curve
        self.curve = alpha + bounded[0], max(beta + bounded[1], 0.0)


def recalibrated(posterior: float, curve: tuple[float, float]) -> float:
    """Return the confidence in an answer with this posterior.

    >>> recalibrated(0.9, (0.0, 1.0))
    0.9
    """
    if curve == _IDENTITY:
        return posterior
    alpha, beta = curve
    return 1 / (1 + math.exp(-alpha - beta * _logit(posterior)))


def _logit(p: float) -> float:
    least = 1 / (1 + math.exp(_FARTHEST))
    p = min(max(p, least), 1 - least)
    return math.log(p / (1 - p))
