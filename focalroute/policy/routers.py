"""Published routers, which ask one endpoint, chosen by the query's text and by cost.

Each estimates the accuracy v_i(x) of each endpoint on the text and asks the one with the greatest net value

    v_i(x) - lambda c_i / C,    c_i: its mean cost,    C: the cost of asking all,

where lambda is the ensemble's cost weight, so that its pacer controls their cost like any policy's. x is the text's
features (the built-in or the ``embedder=``'s) minus their mean, scaled to norm 1. Routers serve by name
(``policy="carrot-knn"``) and are rows of ``focalroute eval``. There they start from a training log in which every
endpoint answered; in service they start without knowledge, and first ask each endpoint a few times. Either way they
learn from the outcomes of the endpoints they ask. In service this is lost when the process ends, as the store keeps no
features of their queries.
"""

from __future__ import annotations

import copy
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from focalroute.core.records import F32, F64, Observation, Outcome
from focalroute.policy.baselines import Alone

_TRIES = 8  # known outcomes of each endpoint before estimates decide
_FIRST_FIT = 64  # queries before the first fit; later fits follow whenever their number has doubled
_MOST = 16384  # queries remembered; beyond that each replaces the oldest
_WAITING = 4096  # queries whose features are kept for an outcome that may still come
#: Least divisor.
LEAST = 1e-12


class TextRouter(Alone, ABC):
    """Asks the endpoint with the greatest net value on the text. Any number of threads may use it at once.

    Attributes:
        fits_until: known queries after which it is not fitted again.
    """

    fits_until: ClassVar[int] = _MOST

    def __init__(self, endpoints: Sequence[str], seed: int | None = None) -> None:
        super().__init__(endpoints, seed)
        self._n = n = len(self._index)
        self._rng = np.random.default_rng(seed)
        self._lock = threading.RLock()
        self._waiting: OrderedDict[str, F32] = OrderedDict()
        self._text: F32 = np.zeros(0, np.float32)  # of the query that is being decided
        self._cost_weight = 0.0
        self._size = self._added = self._fitted = 0  # queries remembered; added ever; added at the last fit
        self._texts = self._x = np.zeros((0, 0), np.float32)
        self._values, self._usd = np.zeros((2, 0, n))  # NaN where not known
        self._mean: F32 = np.zeros(0, np.float32)
        self._sums, self._counts = np.zeros((2, 2, n))  # of the known values (row 0), and of the known USD (row 1)

    # -- as a named policy

    def for_query(self, query_id: str, features: F32, cost_weight: float) -> Self:
        """Return a copy for one query, which decides by its text and lambda."""
        with self._lock:
            self._waiting[query_id] = features
            if len(self._waiting) > _WAITING:
                self._waiting.popitem(last=False)
        one = copy.copy(self)
        one._text, one._cost_weight = features, cost_weight
        return one

    def learn(self, outcome: Outcome, candidates: int) -> None:
        """Learn the values and costs of the members' answers, if the query's features are still kept."""
        with self._lock:
            features = self._waiting.pop(outcome.answer_id, None)
        if features is not None:
            paid = {self._index[n]: float(m.usd) for n, m in outcome.members.items() if m.usd is not None}
            self.add(features, {self._index[name]: value for name, value in outcome.right.items()}, paid)

    def _order(self, observation: Observation) -> list[int]:
        return self.order(self._text, self._cost_weight)

    # -- as an estimate

    def fit(self, texts: F32, values: F64, usd: F64) -> None:
        """Forget everything, and learn from these recorded queries, oldest first.

        Args:
            texts: (n, F) features.
            values: (n, N) the value of each endpoint's answer, in [0, 1]; NaN where unknown.
            usd: (n, N) the cost of each call; NaN where unknown.
        """
        with self._lock:
            self._added = len(texts)
            self._texts = np.array(texts[-_MOST:])
            self._values, self._usd = np.array(values[-_MOST:]), np.array(usd[-_MOST:])
            self._x, self._size, self._fitted = np.zeros_like(self._texts), len(self._texts), 0
            self._sums = np.array([np.nansum(values, axis=0), np.nansum(usd, axis=0)])
            self._counts = np.array([(~np.isnan(array)).sum(axis=0) for array in (values, usd)], float)
            if self._size >= _FIRST_FIT:
                self._refit()

    def add(self, text: F32, values: Mapping[int, float], usd: Mapping[int, float]) -> None:
        """Learn from one query.

        Args:
            text: (F,) features; empty: none.
            values: endpoint index -> value of its answer, for those known; ``usd`` likewise the cost.
        """
        with self._lock:
            if not text.size:  # as after a failure of the embedder: only the values and costs are learned
                text = np.zeros(self._texts.shape[1], np.float32)
            place = self._place(text.size)
            self._texts[place] = text
            for array, said, row in ((self._values, values, 0), (self._usd, usd, 1)):
                array[place] = np.nan
                for i, number in said.items():
                    array[place, i] = number
                    self._sums[row, i] += number
                    self._counts[row, i] += 1
            if max(2 * self._fitted, _FIRST_FIT) <= self._added <= self.fits_until:
                self._refit()
            elif self._fitted:
                self._x[place] = self._direction(text)
                self._update(self._x[place], values)

    def order(self, text: F32, cost_weight: float) -> list[int]:
        """Return all endpoints, most wanted first: those that need tries, the least tried first, then by net value.

        Args:
            text: (F,) features.
            cost_weight: lambda.
        """
        with self._lock:
            tries = np.minimum(self._counts[0], _TRIES)
            if self._fitted:
                x = self._direction(text)
                scores = self._worth(x) - cost_weight * self._shares(x)
            else:
                scores = self._average() - cost_weight * self._cost() / self._total()
        # the first may never be available: then the others are still in order of value
        places: list[int] = np.lexsort((np.where(tries < _TRIES, 0.0, -scores), tries)).tolist()
        return places

    def _place(self, width: int) -> int:
        """Make room for one more query, and return its place."""
        if self._texts.shape[1] != width:  # the first query, or another embedder: older vectors are useless
            self._size = self._fitted = 0
            self._texts, self._x = np.zeros((2, 0, width), np.float32)
            self._values, self._usd = np.zeros((2, 0, self._n))
        if self._size == len(self._texts) < _MOST:
            more = min(max(self._size, _FIRST_FIT), _MOST - self._size)
            self._texts, self._x, self._values, self._usd = (
                np.concatenate([array, np.zeros((more, array.shape[1]), array.dtype)])
                for array in (self._texts, self._x, self._values, self._usd)
            )
        place = self._added % _MOST if self._size == _MOST else self._size
        self._size = min(self._size + 1, _MOST)
        self._added += 1
        return place

    def _refit(self) -> None:
        texts = self._texts[: self._size]
        self._mean = texts.mean(axis=0)
        self._x[: self._size] = _unit(texts - self._mean)
        self._fit(self._x[: self._size].astype(np.float64), self._values[: self._size])
        self._fitted = self._added

    def _direction(self, text: F32) -> F32:
        """Return x of these features; 0 for an empty text."""
        if text.size != self._mean.size or not text.any():
            return np.zeros_like(self._mean)
        return _unit(text - self._mean)

    def _average(self) -> F64:
        """Return each endpoint's mean value, with one more answer of the pool's mean value added."""
        totals, counts = self._sums[0], self._counts[0]
        mean: F64 = (totals + totals.sum() / max(counts.sum(), 1)) / (counts + 1)
        return mean

    def _cost(self) -> F64:
        """Return c_i, USD; for an endpoint of unknown cost the mean of the others."""
        totals, counts = self._sums[1], self._counts[1]
        usd = totals / np.maximum(counts, 1)
        known = counts > 0
        return np.where(known, usd, usd[known].mean() if known.any() else 0.0)

    def _total(self) -> float:
        """Return C, USD."""
        return max(float(self._cost().sum()), LEAST)

    def _least_error(self, settings: Sequence[int], predict: Callable[[int, int], F64]) -> int:
        """Return the setting that predicts the last fifth of the queries from the others with the least squared error.

        Args:
            predict: (setting, number of rows to learn from) -> predictions for the other rows, (rest, N).
        """
        cut = self._size - self._size // 5
        held = self._values[cut : self._size]
        known = ~np.isnan(held)
        return min(settings, key=lambda setting: float(((predict(setting, cut) - held)[known] ** 2).sum()))

    @abstractmethod
    def _fit(self, x: F64, values: F64) -> None:
        """Fit all remembered queries: x (n, F), and values (n, N) with NaN where unknown."""

    def _update(self, x: F32, values: Mapping[int, float]) -> None:
        """Learn from one more query, already remembered. Most routers wait for the next fit."""

    @abstractmethod
    def _worth(self, x: F32) -> F64:
        """Return the endpoints' estimated values v, (N,), on a text."""

    def _shares(self, x: F32) -> F64:
        """Return the costs c / C, (N,)."""
        return self._cost() / self._total()


def _unit(vectors: F32) -> F32:
    """Return each vector scaled to norm 1; zeros stay zeros."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    found: F32 = vectors / np.maximum(lengths, np.float32(LEAST))
    return found


class CarrotKnn(TextRouter):
    """CARROT (arXiv 2502.03261, its plug-in rule) with value and cost as means over the k nearest neighbours.

    The similarity is the cosine; each endpoint's average counts as one more neighbour. `_least_error` chooses k.
    """

    name = "carrot-knn"
    _k = 40

    def _fit(self, x: F64, values: F64) -> None:
        cut = self._size - self._size // 5
        single = x.astype(np.float32)
        order = np.argsort(-(single[cut:] @ single[:cut].T), axis=1)[:, :160]
        average = np.nan_to_num(_means(values[:cut]), nan=0.5)

        def predict(k: int, _: int) -> F64:
            near = values[order[:, :k]]
            there = ~np.isnan(near)
            found: F64 = (np.where(there, near, 0).sum(axis=1) + average) / (there.sum(axis=1) + 1)
            return found

        self._k = self._least_error((10, 40, 160), predict)

    def _worth(self, x: F32) -> F64:
        return _mean_and(self._values[self._nearest(x)], self._average())

    def _shares(self, x: F32) -> F64:
        return _mean_and(self._usd[self._nearest(x)], self._cost()) / self._total()

    def _nearest(self, x: F32) -> NDArray[np.intp]:
        if not x.any():
            return np.zeros(0, np.intp)
        k = min(self._k, self._size)
        return np.argpartition(-(self._x[: self._size] @ x), k - 1)[:k]


class CarrotLinear(TextRouter):
    """CARROT's plug-in rule with ridge regressions of value and cost; `_least_error` chooses the penalty."""

    name = "carrot-linear"

    def _fit(self, x: F64, values: F64) -> None:
        def predict(penalty: int, cut: int) -> F64:
            return _affine(x[cut:]) @ _ridge(x[:cut], values[:cut], penalty)

        penalty = self._least_error((1, 10, 100), predict)
        self._weights = _ridge(x, values, penalty)
        self._usd_weights = _ridge(x, self._usd[: self._size], penalty)

    def _worth(self, x: F32) -> F64:
        return _affine(x) @ self._weights

    def _shares(self, x: F32) -> F64:
        return np.maximum(_affine(x) @ self._usd_weights, 0) / self._total()


class AvengersPro(TextRouter):
    """Avengers-Pro (arXiv 2508.12631, Section 2): k-means clusters of texts, with a score of each endpoint in each.

    In a cluster, performance p and cost q are scaled to [0, 1] over the endpoints; the score is alpha p + (1 - alpha)
    (1 - q), summed over the 4 nearest clusters. There are 60 clusters, as published, or fewer for a short log, so that
    they have 20 queries on average. With alpha = 1 / (1 + lambda) this ranks as p - lambda q does.
    """

    name = "avengers-pro"
    _clusters, _near, _rounds = 60, 4, 20

    def _fit(self, x: F64, values: F64) -> None:
        k = max(1, min(self._clusters, len(x) // 20))
        self._centres = x[self._rng.choice(len(x), k, replace=False)]
        for _ in range(self._rounds):
            member = self._distances(x).argmin(axis=1)
            for j in np.unique(member).tolist():
                self._centres[j] = x[member == j].mean(axis=0)
        member = self._distances(x).argmin(axis=1)
        usd = self._usd[: self._size]
        averages = self._average(), self._cost()
        tables = [
            _scaled(np.stack([_mean_and(array[member == j], mean) for j in range(k)]))
            for array, mean in zip((values, usd), averages, strict=True)
        ]
        self._performance, self._expense = tables

    def _distances(self, x: F64 | F32) -> F64:
        """Return squared distances (..., k), without the part that does not depend on the cluster."""
        found: F64 = (self._centres**2).sum(axis=1) - 2 * x @ self._centres.T
        return found

    def _worth(self, x: F32) -> F64:
        return self._summed(self._performance, x)

    def _shares(self, x: F32) -> F64:
        return self._summed(self._expense, x)

    def _summed(self, table: F64, x: F32) -> F64:
        found: F64 = table[np.argsort(self._distances(x))[: self._near]].sum(axis=0)
        return found


class IrtRouter(TextRouter):
    """IRT-Router's multidimensional model (arXiv 2506.01048, MIRT): P(right) = sigma(a(x) . theta_i - b(x)).

    theta_i is endpoint i's ability, a and b the query's discrimination and difficulty, linear in x; a's first component
    is 1. RouteLLM's matrix factorisation (arXiv 2406.18665) for N models instead of two is the same bilinear form.
    Trained by stochastic gradient descent (Adam) on the likelihood; `_least_error` chooses the number of epochs.
    """

    name = "irt-router"
    _rank, _rate, _decay, _batch = 8, 0.02, 1e-4, 256

    def _fit(self, x: F64, values: F64) -> None:
        epochs = (2, 6, 18)
        cut = self._size - self._size // 5
        held = dict(zip(epochs, self._trained(x[:cut], values[:cut], epochs), strict=True))
        best = self._least_error(epochs, lambda epoch, cut: _sigmoid(self._logits(x[cut:], *held[epoch])))
        (self._parameters,) = self._trained(x, values, (best,))

    def _trained(self, x: F64, values: F64, epochs: Sequence[int]) -> list[tuple[F64, F64, F64]]:
        """Return the parameters after each number of epochs: of a (F, rank), theta (rank + 1, N) and b (F,)."""
        mean = np.clip(_means(values), 0.02, 0.98)
        ability = self._rng.normal(0, 0.1, (self._rank + 1, self._n))
        ability[0] = np.nan_to_num(np.log(mean / (1 - mean)))
        parameters = [self._rng.normal(0, 0.1, (x.shape[1], self._rank)), ability, np.zeros(x.shape[1])]
        moments = [[np.zeros_like(p), np.zeros_like(p)] for p in parameters]
        known = ~np.isnan(values)
        values, step, found = np.where(known, values, 0), 0, []
        for epoch in range(1, max(epochs) + 1):
            order = self._rng.permutation(len(x))
            for rows in np.array_split(order, max(1, len(x) // self._batch)):
                step += 1
                error = (_sigmoid(self._logits(x[rows], *parameters)) - values[rows]) * known[rows] / len(rows)
                a = np.hstack([np.ones((len(rows), 1)), x[rows] @ parameters[0]])
                slopes = (x[rows].T @ error @ parameters[1][1:].T, a.T @ error, -x[rows].T @ error.sum(axis=1))
                for p, slope, (first, second) in zip(parameters, slopes, moments, strict=True):
                    first += 0.1 * (slope + self._decay * p - first)
                    second += 0.001 * ((slope + self._decay * p) ** 2 - second)
                    size = np.sqrt(second / (1 - 0.999**step)) + 1e-8
                    p -= self._rate * first / (1 - 0.9**step) / size
            if epoch in epochs:
                found.append((parameters[0].copy(), parameters[1].copy(), parameters[2].copy()))
        return found

    @staticmethod
    def _logits(x: F64 | F32, discrimination: F64, ability: F64, difficulty: F64) -> F64:
        found: F64 = ability[0] + (x @ discrimination) @ ability[1:] - (x @ difficulty)[..., None]
        return found

    def _worth(self, x: F32) -> F64:
        return _sigmoid(self._logits(x, *self._parameters))


class LinUcb(TextRouter):
    """LinUCB, one model per endpoint (arXiv 1003.0146, Algorithm 1), with forgetting: v = theta . z + alpha deviation.

    z is the text's first 25 principal components, each scaled to variance 1, and a constant 1. An endpoint's record
    decays by .997 per query (arXiv 2604.00136): its statistics A and b when it is next asked; until then the squared
    deviation grows, at most 200-fold. As in that paper, recorded queries count equally, together at most as much as
    `fits_until` queries.
    """

    name = "lin-ucb"
    fits_until = 1163
    _alpha = 0.05
    _components, _fading, _most_stale = 25, 0.997, 200.0

    def _fit(self, x: F64, values: F64) -> None:
        few = len(x) < x.shape[1]  # then the smaller matrix x x' has the same variances
        variances, vectors = np.linalg.eigh((x @ x.T if few else x.T @ x) / len(x))
        top = np.argsort(-variances)[: self._components]
        vectors, deviations = vectors[:, top], np.sqrt(np.maximum(variances[top], 1e-6))
        if few:
            vectors = x.T @ vectors / (np.sqrt(len(x)) * deviations)
        self._projection = vectors / deviations
        z, known = self._context(x), ~np.isnan(values)
        weight = np.minimum(1, self.fits_until / np.maximum(known.sum(axis=0), 1))
        self._a = np.stack([w * z[rows].T @ z[rows] for w, rows in zip(weight, known.T, strict=True)])
        self._a += np.eye(z.shape[1])
        self._b = weight[:, None] * (np.where(known, values, 0).T @ z)
        self._inverse = np.linalg.inv(self._a)
        self._theta = np.einsum("nij,nj->ni", self._inverse, self._b)
        self._ridge = np.ones(self._n)  # what is left of the identity in A
        self._stale = np.zeros(self._n)  # queries since it was last asked

    def _context(self, x: F64 | F32) -> F64:
        z = x @ self._projection
        return np.concatenate([z, np.ones((*z.shape[:-1], 1))], axis=-1)

    def _update(self, x: F32, values: Mapping[int, float]) -> None:
        z = self._context(x)
        self._stale += 1
        for i, value in values.items():
            kept = self._fading ** min(self._stale[i], 1000.0)
            self._a[i] *= kept
            self._b[i] *= kept
            self._ridge[i] *= kept
            if self._ridge[i] < 0.1:
                self._a[i] += (1 - self._ridge[i]) * np.eye(len(z))
                self._ridge[i] = 1
            self._a[i] += np.outer(z, z)
            self._b[i] += value * z
            self._inverse[i] = np.linalg.inv(self._a[i])
            self._theta[i] = self._inverse[i] @ self._b[i]
            self._stale[i] = 0

    def _worth(self, x: F32) -> F64:
        z = self._context(x)
        grown = np.minimum(self._fading**-self._stale, self._most_stale)
        variance = np.einsum("i,nij,j->n", z, self._inverse, z) * grown
        worth: F64 = self._theta @ z + self._bonus(np.sqrt(np.maximum(variance, 0)))
        return worth

    def _bonus(self, deviation: F64) -> F64:
        return self._alpha * deviation


class Thompson(LinUcb):
    """Linear Thompson sampling (arXiv 1209.3352, Algorithm 1) on `LinUcb`'s model: v = theta . z with theta drawn."""

    name = "thompson"
    _alpha = 0.1

    def _bonus(self, deviation: F64) -> F64:
        return self._alpha * deviation * self._rng.standard_normal(self._n)


class ParetoBandit(LinUcb):
    """ParetoBandit (arXiv 2604.00136): `LinUcb` with that paper's settings, minus lambda times a logarithmic cost.

    The cost is ln(c / least) / ln(most / least) over the pool; the paper has fixed bounds for the market. lambda is the
    paper's dual variable, moved here by the ensemble's pacer, also by dual ascent. The paper's features are a sentence
    encoder's.
    """

    name = "pareto-bandit"
    _alpha = 0.01

    def _shares(self, x: F32) -> F64:
        logs = np.log(np.maximum(self._cost(), LEAST))
        shares: F64 = (logs - logs.min()) / max(float(np.ptp(logs)), LEAST)
        return shares


def _means(array: F64) -> F64:
    """Return the means (N,) over the rows (n, N) where known; NaN without any."""
    known = ~np.isnan(array)
    with np.errstate(invalid="ignore"):
        mean: F64 = np.where(known, array, 0).sum(axis=0) / known.sum(axis=0)
    return mean


def _mean_and(rows: F64, one_more: F64) -> F64:
    """Return the means (N,) over the known values of the rows (n, N), with one more row (N,) added."""
    known = ~np.isnan(rows)
    mean: F64 = (np.where(known, rows, 0).sum(axis=0) + one_more) / (known.sum(axis=0) + 1)
    return mean


def _scaled(rows: F64) -> F64:
    """Scale each row to [0, 1]."""
    low = rows.min(axis=1, keepdims=True)
    found: F64 = (rows - low) / np.maximum(np.ptp(rows, axis=1, keepdims=True), LEAST)
    return found


def _affine(x: F64 | F32) -> F64:
    return np.concatenate([x, np.ones((*x.shape[:-1], 1))], axis=-1, dtype=np.float64)


def _ridge(x: F64, targets: F64, penalty: float) -> F64:
    """Return the weights (F + 1, N) of a ridge regression of each column on its known rows, the intercept last.

    The intercept is the column's mean, which is not penalised.
    """
    mean, known = np.nan_to_num(_means(targets)), ~np.isnan(targets)
    found = np.zeros((x.shape[1] + 1, targets.shape[1]))
    found[-1] = mean
    for rows, columns in _groups_known_together(known):
        some = x[rows]
        offsets = targets[np.ix_(rows, columns)] - mean[columns]
        if len(some) < x.shape[1]:  # the same weights from a smaller matrix
            found[:-1, columns] = some.T @ np.linalg.solve(some @ some.T + penalty * np.eye(len(some)), offsets)
        else:
            found[:-1, columns] = np.linalg.solve(some.T @ some + penalty * np.eye(x.shape[1]), some.T @ offsets)
    return found


def _groups_known_together(known: NDArray[np.bool_]) -> list[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Return (rows, columns) of each group of columns that are known in the same rows."""
    patterns, group = np.unique(known, axis=1, return_inverse=True)
    return [(np.flatnonzero(patterns[:, j]), np.flatnonzero(group.reshape(-1) == j)) for j in range(patterns.shape[1])]


def _sigmoid(z: F64) -> F64:
    return 1 / (1 + np.exp(-np.clip(z, -30, 30)))


_KINDS = (AvengersPro, CarrotKnn, CarrotLinear, IrtRouter, LinUcb, ParetoBandit, Thompson)
#: The published routers by name.
ROUTERS: Mapping[str, type[TextRouter]] = {kind.name: kind for kind in _KINDS}
