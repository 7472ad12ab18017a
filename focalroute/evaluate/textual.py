"""Baselines that choose by the query's text: nearest neighbours, and RouteLLM's cheap-or-strong."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from zlib import crc32

import numpy as np

from focalroute.core.records import F32, F64
from focalroute.evaluate.replay import Revealed, Turn
from focalroute.evaluate.singles import First, first_of
from focalroute.evaluate.training import Training, best_setting

_WIDTH = 512
_WORD = re.compile(r"\w+")
_MAX_CHARACTERS = 4000
_RIDGE = 1.0


def has_text(training: Training) -> bool:
    """Whether any training query has text."""
    return any(training.table.texts[row] for row in training.rows.tolist())


class TextVectors:
    """TF-IDF of hashed words, fitted on the training part; Euclidean norm 1.

    A word weighs (1 + ln tf) (ln((1 + n) / (1 + df)) + 1), n texts of which df hold it (Salton & Buckley 1988); hashed
    with signs to 512 columns (Weinberger et al. 2009). Of a long text the first 4,000 characters are read.

    Attributes:
        rows: float32 (n, 512), the training texts themselves.
    """

    def __init__(self, training: Training) -> None:
        texts = [Counter(_words(training.table.texts[row])) for row in training.rows.tolist()]
        seen = Counter(word for counts in texts for word in counts)
        self._rarity = {word: math.log((1 + len(texts)) / (1 + df)) + 1 for word, df in seen.items()}
        self._unseen = math.log(1 + len(texts)) + 1
        self.rows: F32 = np.stack([self._vector(counts) for counts in texts])

    def __call__(self, text: str) -> F32:
        """float32 (512,)."""
        return self._vector(Counter(_words(text)))

    def _vector(self, counts: Mapping[str, int]) -> F32:
        vector = np.zeros(_WIDTH)
        for word, count in counts.items():
            hashed = crc32(word.encode("utf-8", "replace"))
            weight = (1 + math.log(count)) * self._rarity.get(word, self._unseen)
            vector[hashed % _WIDTH] += weight if hashed & 0x80000000 else -weight
        norm = math.sqrt(vector @ vector)
        return (vector / norm if norm else vector).astype(np.float32)


def _words(text: str) -> list[str]:
    return _WORD.findall(text[:_MAX_CHARACTERS].lower())


class Knn:
    """``knn``: the endpoint whose answers to the k most similar queries so far were worth most.

    Similarity is the cosine of TF-IDF vectors. Where an endpoint was not asked its accuracy on the training part
    stands in, as one more neighbour. Test queries join the neighbours once their outcome is revealed.
    """

    def __init__(self, training: Training, vectors: TextVectors, k: int) -> None:
        table, rows = training.table, training.rows
        self._k = k
        self._rank = training.rank
        self._mean = table.accuracy(rows)
        self._vectors = vectors
        self._size = len(rows)
        self._known: F32 = np.concatenate([vectors.rows, np.zeros_like(vectors.rows)])
        values = np.where(table.failed[rows], np.nan, table.value[rows])
        self._values: F64 = np.concatenate([values, np.full_like(values, np.nan)])
        self._last: F32 = self._known[0]

    def answer(self, turn: Turn) -> int:
        """The most promising endpoint's answer; of equals the one that is better on the training part."""
        self._last = self._vectors(turn.query.text)
        similarity = self._known[: self._size] @ self._last
        k = min(self._k, self._size)
        nearest = np.argpartition(-similarity, k - 1)[:k]
        values = self._values[nearest]
        there = ~np.isnan(values)
        worth = (np.where(there, values, 0.0).sum(axis=0) + self._mean) / (there.sum(axis=0) + 1)
        order = sorted(self._rank, key=lambda i: -float(worth[i]))
        wanted = first_of(order, turn)
        return -1 if wanted is None else turn.ask(wanted).candidate

    def learn(self, turn: Turn, revealed: Revealed) -> None:
        """One more neighbour."""
        if self._size == len(self._known):
            self._known = np.concatenate([self._known, np.zeros_like(self._known)])
            self._values = np.concatenate([self._values, np.full_like(self._values, np.nan)])
        self._known[self._size] = self._last
        for i, value in revealed.values.items():
            self._values[self._size, i] = value
        self._size += 1


def knn(training: Training) -> Knn:
    """``knn`` with k chosen on the training part's last fifth."""
    vectors = TextVectors(training.cut()[0])
    k = best_setting(training, (10, 40, 160), lambda part, k: Knn(part, vectors, k))
    return Knn(training, TextVectors(training), k)


class ThresholdPair:
    """``threshold-pair``, RouteLLM's shape: the cheap endpoint where the strong one is not likely enough to do better.

    Args:
        rank: the endpoints, best first, for where both are missing.
        predicted: the gain of the strong one by text.
        threshold: the gain from which on a query goes to the strong one.
    """

    def __init__(self, rank: Sequence[int], predicted: Gain, threshold: float) -> None:
        self._rank = tuple(rank)
        self._predicted = predicted
        self._threshold = threshold

    def answer(self, turn: Turn) -> int:
        """The strong one's answer where the predicted gain passes the threshold, else the cheap one's."""
        passes = self._predicted(turn.query.text) >= self._threshold
        cheap, strong = self._predicted.pair
        pair = (strong, cheap) if passes else (cheap, strong)
        wanted = first_of((*pair, *self._rank), turn)
        return -1 if wanted is None else turn.ask(wanted).candidate

    def learn(self, turn: Turn, revealed: Revealed) -> None:
        """It stays as trained."""


class Gain:
    """How much more the strong endpoint's answer is worth than the cheap one's: ridge regression on the text's vector.

    Attributes:
        pair: (cheap, strong).
    """

    def __init__(self, training: Training, pair: tuple[int, int]) -> None:
        self.pair = pair
        self._vectors = TextVectors(training)
        table, rows = training.table, training.rows
        x = self._vectors.rows.astype(np.float64)
        gain = np.nan_to_num(table.value[rows][:, pair[1]]) - np.nan_to_num(table.value[rows][:, pair[0]])
        self._mean = float(gain.mean())
        penalty: F64 = _RIDGE * np.eye(_WIDTH)
        self._weights = np.linalg.solve(x.T @ x + penalty, x.T @ (gain - self._mean)).astype(np.float64)

    def __call__(self, text: str) -> float:
        """The predicted gain."""
        return float(self._vectors(text) @ self._weights) + self._mean


def threshold_pair(training: Training, pair: tuple[int, int] | None = None) -> ThresholdPair | First:
    """``threshold-pair``: strong is the most accurate on the training part, cheap the best of those at half its cost.

    The gain is learned from the first four fifths; the threshold, a quantile of the gains predicted for the last fifth,
    is chosen there. Where nobody is that cheap, the strong one alone.

    Args:
        pair: (cheap, strong) instead.
    """
    pair = pair or _pair(training)
    if pair is None:
        return First(training.rank)
    fit, held = training.cut()
    gain = Gain(fit, pair)
    predicted = [gain(training.table.texts[row]) for row in held.tolist()]
    thresholds = [-math.inf, *np.quantile(predicted, np.linspace(0.1, 0.9, 9)).tolist(), math.inf]
    chosen = best_setting(training, thresholds, lambda part, threshold: ThresholdPair(part.rank, gain, threshold))
    return ThresholdPair(training.rank, gain, chosen)


def _pair(training: Training) -> tuple[int, int] | None:
    table, rows = training.table, training.rows
    usd = table.usd[rows].sum(axis=0) / np.maximum(table.there[rows].sum(axis=0), 1)
    strong = training.rank[0]
    cheap = next((i for i in training.rank if usd[i] <= usd[strong] / 2), None)
    return None if cheap is None else (cheap, strong)
