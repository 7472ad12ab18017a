"""Kernel estimates of each endpoint's accuracy and cost on a query, from past queries of similar text.

With x the text features of the query, x_r those of remembered query r, m the mean of the remembered features (what all
texts share says nothing), c_r the cosine of x - m and x_r - m, w_r = max(c_r, 0)^3 and v_ri how right endpoint i was on
query r, the expected accuracy of endpoint i is

    (sum of w_r v_ri + s mu_i) / (sum of w_r + s),    both sums over the r where v_ri is known

where mu_i is its mean over all remembered queries and s a tenth of the typical sum of all w_r, so that a query that
resembles none gets the mean (the estimator of Nadaraya 1964 and Watson 1964, shrunk). Costs, relative to the usual
ones, are estimated likewise.

When the memory is full, a new query replaces one drawn at random, not the oldest: topics come in blocks, and old ones
may come back. `Memory.forget` drops an endpoint's outcomes from before it changed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from focalroute.core.records import F32, I64
from focalroute.observe.drift import THRESHOLD

#: Queries remembered.
CAPACITY = 4096

#: Weight of the mean, as a share of the typical sum of kernel weights.
SHRINK = 0.1

#: Strength, in texts, with which the mean text is shrunk to 0, so that the mean of a single text is not that text.
MEAN_PRIOR = 10.0

#: Costs relative to the usual one are clipped to between 1 / `MOST_COST` and `MOST_COST`.
MOST_COST = 10.0

_LEAST = 1e-6  # least divisor
_SAMPLE = 64  # queries sampled to estimate a typical sum of weights, or an endpoint's accuracy on a stretch
_FEWEST_STRETCHES, _MOST_STRETCHES = 4, 8  # from which the variance between stretches is estimated
_LEAST_VARIANCE = 0.05  # of an outcome: no endpoint is sure to be right
_BETWEEN_KINDS = 0.25  # standard deviation of an endpoint's accuracy between kinds of text
_NEWEST_WEIGHT = 0.02  # weight of the newest query in the typical sum of weights
_NEW_SHARE = 1 / 8  # share of new texts after which the mean text is computed again


def spread(size: int) -> NDArray[np.int64]:
    """Return the indices of the queries to remember, of ``size`` in all: every one or, evenly spaced, `CAPACITY`."""
    return np.linspace(0, size - 1, min(size, CAPACITY)).round().astype(np.int64)


def kernel(cosine: F32) -> F32:
    """Return the kernel weights w = max(c, 0)^3 of these cosines."""
    positive = np.maximum(cosine, 0)
    return positive * positive * positive


def mean_text(total: NDArray[np.float64], count: int | I64) -> F32:
    """Return the mean (..., D) of ``count`` (...) texts whose sum is ``total`` (..., D), shrunk by `MEAN_PRIOR`."""
    return (total / (np.asarray(count)[..., None] + MEAN_PRIOR)).astype(np.float32)


def cosines(some: F32, others: F32, mean: F32) -> F32:
    """Return the cosines (S, O) of texts (S, D) and others (O, D) after subtracting a mean.

    Args:
        mean: (1, D), or (S, D) with one mean for each of the first texts.
    """
    offsets: F32 = some - mean
    along: F32 = offsets @ others.T - _dots(offsets, mean)[:, None]
    squares: F32 = _dots(others, others) - 2 * mean @ others.T + _dots(mean, mean)[:, None]  # |others - mean|^2
    return along * _scale(_dots(offsets, offsets))[:, None] * _scale(squares)


def overall_mean(right: NDArray[Any], count: NDArray[Any]) -> NDArray[Any]:
    """Return mu (..., N): each endpoint's accuracy, shrunk to the pool's with the weight of 10 outcomes.

    Args:
        right: (..., N) sum of the outcomes' values; ``count``: their number.
    """
    pool = (right.sum(axis=-1, keepdims=True) + 1) / (count.sum(axis=-1, keepdims=True) + 2)
    mean: NDArray[Any] = (right + 10 * pool) / (count + 10)
    return mean


def shrunk(weighted: F32, known: F32, mean: F32, strength: float | F32) -> F32:
    """Return the kernel estimate (..., N).

    Args:
        weighted: (..., N) sum of w v; ``known``: sum of w; both where v is known.
        mean: (..., N) mu; ``strength``: s.
    """
    estimate: F32 = (weighted + strength * mean) / (known + strength)
    return estimate


def relative_costs(right: NDArray[Any], costs: NDArray[Any]) -> F32:
    """Return the relative costs (..., N) to remember: clipped, 1 where unknown, 0 where ``right`` is unknown."""
    bounded = np.where(np.isnan(costs), 1.0, costs).clip(1 / MOST_COST, MOST_COST)
    return np.where(np.isnan(right), 0.0, bounded).astype(np.float32)


def cost_factors(weighted: F32, known: F32, costs: NDArray[Any], count: NDArray[Any], strength: float | F32) -> F32:
    """Return each call's expected cost as a multiple of its usual one, (..., N).

    Args:
        weighted: sum of w c; ``known``: sum of w, over the queries whose cost c is remembered.
        costs: sum of c; ``count``: the number of these queries.
        strength: s.
    """
    mean = ((costs + 10) / (count + 10)).astype(np.float32)
    factors: F32 = shrunk(weighted, known, mean, strength) / mean
    return factors


class Expectation(NamedTuple):
    """The endpoints' expected accuracy and cost on a text.

    Attributes:
        right: (N,) expected accuracy minus the mean over endpoints; all 0 without memories to compare.
        cost: (N,) expected cost of a call as a multiple of the usual one.
    """

    right: F32
    cost: F32


class Memory:
    """Remembered queries of a pool. Not thread-safe by itself; `Observer` guards it.

    Args:
        endpoints: N.
    """

    def __init__(self, endpoints: int) -> None:
        self._n = endpoints
        self._nothing = Expectation(np.zeros(endpoints, np.float32), np.ones(endpoints, np.float32))
        self._clear(0)

    def __len__(self) -> int:
        return self._size

    def fill(self, vectors: F32, values: F32, costs: F32) -> None:
        """Remember those of these queries that `spread` selects, and nothing else.

        Args:
            vectors: (M, D) features, oldest first.
            values: (M, N) how right each endpoint was, NaN where unknown; ``costs`` likewise, see `add`.
        """
        fit = spread(len(vectors))
        vectors, values, costs = vectors[fit], values[fit], costs[fit]
        size = len(vectors)
        self._clear(vectors.shape[1])
        self._vectors[:size] = vectors
        self._rows[:size] = _row(values, costs)
        self._sums += self._rows[:size].sum(axis=0, dtype=np.float64)
        self._number[:size] = np.arange(size)
        self._size = self._added = size
        self._total += vectors.sum(axis=0, dtype=np.float64)
        self._centre()
        if size > 1:
            self._typical = _typical_sum(vectors, self._mean)

    def add(
        self,
        answer_id: str,
        vector: F32,
        values: Sequence[float],
        costs: Sequence[float] = (),
        *,
        inferred: bool = False,
    ) -> None:
        """Remember one query, in place of what was remembered for the same answer.

        An empty text, and a query without any known value, are not remembered.

        Args:
            vector: (D,) its features.
            values: how right each endpoint was, NaN where unknown.
            costs: of each endpoint's call, relative to the usual ones, NaN where unknown; empty: all unknown.
            inferred: whether the values are from agreement.
        """
        row = _row(np.array(values, np.float32), np.array(costs or [np.nan] * self._n, np.float32))
        if not np.count_nonzero(vector):
            return
        if vector.size != self._vectors.shape[1]:  # the first query, or another embedder: older vectors are useless
            self._clear(vector.size)
        place = self._places.get(answer_id)
        if place is None:
            if not np.count_nonzero(row[self._n : 2 * self._n]):
                return
            place = self._size if self._size < CAPACITY else self._rng.randrange(CAPACITY)
            self._size = max(self._size, place + 1)
            self._number[place] = self._added
            self._added += 1
            self._places.pop(self._ids[place], None)
            self._ids[place], self._places[answer_id] = answer_id, place
        self._sums += row.astype(np.float64) - self._rows[place]
        self._rows[place], self._inferred[place] = row, inferred
        self._total += vector.astype(np.float64) - self._vectors[place]
        self._vectors[place] = vector
        if self._added - self._centred_at > _NEW_SHARE * self._size:
            self._centre()
        else:
            offset = vector - self._mean
            self._scale[place] = _scale(offset @ offset)

    def forget(self, endpoint: int, newest: int) -> None:
        """Forget all outcomes of an endpoint from before its latest ``newest`` with feedback."""
        latest_first = (-self._number[: self._size]).argsort()
        self._drop(endpoint, latest_first[self._has_feedback(endpoint, latest_first).cumsum() > newest])

    def forget_inferred(self, endpoint: int) -> None:
        """Forget an endpoint's outcomes that were inferred from agreement."""
        self._drop(endpoint, np.flatnonzero(self._inferred[: self._size]))

    def _drop(self, endpoint: int, places: I64) -> None:
        columns = np.arange(3) * self._n + endpoint
        self._rows[np.ix_(places, columns)] = 0
        self._sums[columns] = self._rows[: self._size, columns].sum(axis=0)

    def estimate(self, vector: F32) -> Expectation:
        """Return the expectation for a query with these features; neutral for an empty text, or an empty memory."""
        if not self._size or vector.size != self._vectors.shape[1] or not np.count_nonzero(vector):
            return self._nothing
        offset = vector - self._mean
        # einsum uses one thread and always sums in the same order, which BLAS does not
        along = np.einsum("md,d->m", self._vectors[: self._size], offset) - np.float32(self._mean @ offset)
        weights = kernel(along * self._scale[: self._size] * _scale(offset @ offset))
        total = float(weights.sum())
        self._typical += (_NEWEST_WEIGHT if self._typical else 1.0) * (total - self._typical)
        weighted, known, paid = np.einsum("m,mn->n", weights, self._rows[: self._size]).reshape(3, self._n)
        right, count, costs = self._sums.reshape(3, self._n)
        strength = max(SHRINK * self._typical, _LEAST)
        estimate = shrunk(weighted, known, overall_mean(right, count).astype(np.float32), strength)
        return Expectation(estimate - estimate.mean(), cost_factors(paid, known, costs, count, strength))

    def surprise(self, endpoint: int, newest: int) -> float:
        """Return how surprising an endpoint's latest ``newest`` outcomes are if it has not changed, in nats.

        Only outcomes with feedback count, as in `focalroute.observe.drift`. The result is z^2 / 2, with z the
        standardised difference between its accuracy on these texts and the estimate from its older outcomes; infinite
        without older outcomes. The variance of the difference grows the less these texts resemble the older ones, by up
        to `_BETWEEN_KINDS` squared, and the worse the estimates were on earlier stretches of as many queries (see
        `_unexplained`).
        """
        latest_first = (-self._number[: self._size]).argsort()
        known = latest_first[self._has_feedback(endpoint, latest_first)]
        new, old = known[:newest], known[newest:]
        if not len(new) or not len(old):
            return math.inf
        expected, resemblance = self._expected(endpoint, new, old)
        usual = _typical_sum(self._vectors[old], self._mean)
        novelty = max(0.0, 1 - resemblance / max(usual, _LEAST))
        variance = _chance(expected) + (_BETWEEN_KINDS * novelty) ** 2
        square = float(self._rows[new, endpoint].mean() - expected.mean()) ** 2
        if square / variance / 2 >= THRESHOLD:  # else a larger variance, which takes longest, changes nothing
            variance += self._unexplained(endpoint, old, len(new))
        return square / variance / 2

    def _has_feedback(self, endpoint: int, places: I64) -> NDArray[np.bool_]:
        """Return for each of these places whether it has an outcome of the endpoint from feedback."""
        known: NDArray[np.bool_] = (self._rows[places, self._n + endpoint] > 0) & ~self._inferred[places]
        return known

    def _expected(self, endpoint: int, texts: I64, others: I64) -> tuple[F32, float]:
        """Estimate its accuracy on texts (S,) from the others alone; return it with the texts' median sum of w."""
        weights = kernel(cosines(self._vectors[texts], self._vectors[others], self._mean[None]))
        right, total = self._rows[others, endpoint], weights.sum(axis=1)
        resemblance = float(np.median(total))
        strength = SHRINK * max(resemblance, _LEAST)
        return shrunk(weights @ right, total, np.mean(right), strength), resemblance

    def _unexplained(self, endpoint: int, known: I64, size: int) -> float:
        """Return the variance, beyond chance, of the estimates' error on earlier stretches of ``size`` queries.

        Topics come in blocks, and texts do not fully reveal how hard they are. Each stretch is estimated from all other
        remembered queries, the variance by the method of moments; 0 with fewer than `_FEWEST_STRETCHES`.
        """
        count = len(known) // size
        if count < _FEWEST_STRETCHES:
            return 0.0
        excess = []
        step = math.ceil(size / _SAMPLE)
        for k in np.linspace(0, count - 1, min(count, _MOST_STRETCHES)).astype(int).tolist():
            start, end = k * size, (k + 1) * size
            some = known[start:end:step]
            expected, _ = self._expected(endpoint, some, np.concatenate([known[:start], known[end:]]))
            error = float(self._rows[some, endpoint].mean() - expected.mean())
            excess.append(error**2 - _chance(expected))
        return max(0.0, float(np.mean(excess)))

    def _clear(self, width: int) -> None:
        rows = CAPACITY if width else 0
        self._vectors: F32 = np.zeros((rows, width), np.float32)
        self._rows: F32 = np.zeros((rows, 3 * self._n), np.float32)  # see _row
        self._sums = np.zeros(3 * self._n)  # of _rows
        self._inferred = np.zeros(rows, bool)
        self._number = np.zeros(rows, np.int64)  # how many queries were added before this one
        self._total = np.zeros(width)  # sum of the vectors
        self._mean: F32 = np.zeros(width, np.float32)
        self._scale: F32 = np.zeros(rows, np.float32)  # see _scale, of each vector minus the mean
        self._size = self._added = self._centred_at = 0
        self._rng = random.Random(0)  # noqa: S311 - no secret
        self._typical = 0.0
        self._ids = [""] * rows  # the answer in each place; empty for queries from `fill`
        self._places: dict[str, int] = {}

    def _centre(self) -> None:
        """Compute the mean vector again, and each vector's distance from it: |x_r - m|^2 = 1 - 2 x_r . m + |m|^2."""
        self._mean = mean_text(self._total, self._size)
        along = np.einsum("md,d->m", self._vectors[: self._size], self._mean)
        self._scale[: self._size] = _scale(1 - 2 * along + self._mean @ self._mean)
        self._centred_at = self._added


def _dots(a: F32, b: F32) -> F32:
    """Return the dot products of corresponding rows, (S,); a single row is paired with all rows of the other."""
    dots: F32 = np.einsum("sd,sd->s", a, b)
    return dots


def _scale(square: F32) -> F32:
    """Return 1 / length, given squared lengths."""
    return np.reciprocal(np.sqrt(np.maximum(square, np.float32(_LEAST))))


def _chance(expected: F32) -> float:
    """Return the variance of the mean of independent outcomes that are right with these probabilities (S,)."""
    return float(np.maximum(expected * (1 - expected), _LEAST_VARIANCE).mean()) / len(expected)


def _row(values: F32, costs: F32) -> F32:
    """Return (..., 3 N): values (0 where unknown), whether each is known (1 or 0), and costs."""
    known = ~np.isnan(values)
    return np.concatenate([np.where(known, values, 0), known, relative_costs(values, costs)], axis=-1, dtype=np.float32)


def _typical_sum(vectors: F32, mean: F32) -> float:
    """Return the median, over a sample of these texts (M, D), of the sum of all other texts' kernel weights."""
    some = vectors[:: max(len(vectors) // _SAMPLE, 1)]
    sums = kernel(cosines(some, vectors, mean[None])).sum(axis=1) - 1
    return max(float(np.median(sums)), 0.0)
