"""Routers as others published them: one endpoint is asked, chosen by the query's text and by what it costs.

Each estimates how right each endpoint is on such a text, v_i(x), and asks the one of the greatest net value

    v_i(x) - lambda c_i / C,    c_i: what it costs on average,    C: what all cost,

where lambda is the ensemble's cost weight, so that one pacer holds the cost of all of them. x is the project's own
features of the text (or ``embedder=``'s), less their mean, of norm 1. They serve by name (``policy="carrot-knn"``) and
are rows of ``focalroute eval``. There they begin with a training log in which every endpoint answered; in service they
begin with nothing, and first ask each endpoint a few times. Both learn from the outcomes of those they ask.
In service that ends with the process, since the store keeps no text of what a rule decided.
"""

from __future__ import annotations

import copy
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Self

import numpy as np

from focalroute.core.records import F32, F64, Observation, Outcome
from focalroute.policy.baselines import Alone

_TRIES = 8  # known outcomes of each endpoint before estimates decide
_FIRST_FIT = 64  # queries known before anything is fitted to texts; from then on with every doubling
_MOST = 16384  # queries remembered: the oldest makes room
_WAITING = 4096  # queries whose outcome may still come
#: Of what is divided by.
LEAST = 1e-12


class TextRouter(Alone, ABC):
    """Asks the endpoint of the greatest net value on such a text. Any number of threads may use it at once.

    Attributes:
        fits_until: known queries after which it is not fitted anew.
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
        self._size = self._added = self._fitted = 0  # queries remembered, ever, and when they were fitted to
        self._texts = self._x = np.zeros((0, 0), np.float32)
        self._values, self._usd = np.zeros((2, 0, n))  # NaN where not known
        self._mean: F32 = np.zeros(0, np.float32)
        self._sums, self._counts = np.zeros((2, 2, n))  # of values and of USD that are known

    # -- as a policy by its name

    def reading(self, query_id: str, features: F32, cost_weight: float) -> Self:
        """A copy for one query, which goes by its text and lambda."""
        with self._lock:
            self._waiting[query_id] = features
            if len(self._waiting) > _WAITING:
                self._waiting.popitem(last=False)
        one = copy.copy(self)
        one._text, one._cost_weight = features, cost_weight
        return one

    def learn(self, outcome: Outcome, candidates: int) -> None:
        """Take in what those asked were worth and cost."""
        with self._lock:
            features = self._waiting.pop(outcome.answer_id, None)
        if features is not None:
            paid = {self._index[n]: float(m.usd) for n, m in outcome.members.items() if m.usd is not None}
            self.add(features, {self._index[name]: value for name, value in outcome.right.items()}, paid)

    def _order(self, observation: Observation) -> list[int]:
        return self.order(self._text, self._cost_weight)

    # -- as an estimate

    def fit(self, texts: F32, values: F64, usd: F64) -> None:
        """Begin with recorded queries instead, oldest first.

        Args:
            texts: (n, F) features.
            values: (n, N) what each endpoint's answer is worth, in [0, 1]; NaN where it is not known.
            usd: (n, N) what each call cost; NaN where it is not known.
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
        """Learn from one query what the endpoints that were asked are worth and cost; of the others nothing is known.

        Args:
            text: (F,) features.
        """
        with self._lock:
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
        """All endpoints, most wanted first: those hardly tried, then by net value; of equals in pool order.

        Args:
            text: (F,) features.
            cost_weight: lambda.
        """
        with self._lock:
            tries = self._counts[0]
            if (tries < _TRIES).any():
                return _sorted(np.minimum(tries, _TRIES))
            if self._fitted:
                x = self._direction(text)
                scores = self._worth(x) - cost_weight * self._shares(x)
            else:
                scores = self._average() - cost_weight * self._cost() / self._total()
        return _sorted(-scores)

    def _place(self, width: int) -> int:
        """Make room for one more query, and return where."""
        if self._texts.shape[1] != width:  # the first one, or another embedder: what was is of no use
            self._texts, self._x, self._size, self._fitted = *np.zeros((2, 0, width), np.float32), 0, 0
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
        """x of these features; 0 of an empty text."""
        return _unit(text - self._mean) if text.size == self._mean.size and text.any() else np.zeros_like(self._mean)

    def _average(self) -> F64:
        """How right each endpoint is on average, the pool's mean counting as one more answer."""
        totals, counts = self._sums[0], self._counts[0]
        mean: F64 = (totals + totals.sum() / max(counts.sum(), 1)) / (counts + 1)
        return mean

    def _cost(self) -> F64:
        """c_i, USD; of an endpoint of unknown cost the mean of the others."""
        totals, counts = self._sums[1], self._counts[1]
        usd = totals / np.maximum(counts, 1)
        known = counts > 0
        return np.where(known, usd, usd[known].mean() if known.any() else 0.0)

    def _total(self) -> float:
        """C, USD."""
        return max(float(self._cost().sum()), LEAST)

    def _least_error(self, settings: Sequence[int], predict: Callable[[int, int], F64]) -> int:
        """The setting whose predictions of the last fifth, made from what is before it, have the least squared error.

        Args:
            predict: (setting, rows to learn from) -> (rest, N).
        """
        cut = self._size - self._size // 5
        held = self._values[cut : self._size]
        known = ~np.isnan(held)
        return min(settings, key=lambda setting: float(((predict(setting, cut) - held)[known] ** 2).sum()))

    @abstractmethod
    def _fit(self, x: F64, values: F64) -> None:
        """Learn from all that is remembered: (n, F), and (n, N) with NaN where not known."""

    def _update(self, x: F32, values: Mapping[int, float]) -> None:
        """Learn from one more query, which is remembered already. Most wait until they are fitted anew."""

    @abstractmethod
    def _worth(self, x: F32) -> F64:
        """v (N,)."""

    def _shares(self, x: F32) -> F64:
        """c / C (N,)."""
        return self._cost() / self._total()


def _sorted(keys: F64) -> list[int]:
    places: list[int] = np.argsort(keys, kind="stable").tolist()
    return places


def _unit(vectors: F32) -> F32:
    """Each of norm 1; zeros stay zeros."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    found: F32 = vectors / np.maximum(lengths, np.float32(LEAST))
    return found
