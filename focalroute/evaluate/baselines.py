"""Lists the baselines by name, and defines those that ask one endpoint for each query.

Baselines are fitted on the training part only. `best_in_hindsight` and `oracle` also use the test part.
"""

from __future__ import annotations

import math
import random
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from zlib import crc32

import numpy as np

from focalroute.core.errors import ConfigError
from focalroute.core.records import F32, F64, I64
from focalroute.evaluate.presets.der import der
from focalroute.evaluate.presets.rl_focal import rl_focal
from focalroute.evaluate.replay import (
    COST_WEIGHT,
    ReplayResult,
    Revealed,
    Strategy,
    Training,
    Turn,
    best_setting,
    play,
)
from focalroute.evaluate.table import LogTable
from focalroute.evaluate.votes import MeanVote, Vote, Weighted, cascade, log_linear_online, query_weights, static_subset
from focalroute.money.pacing import Pacer
from focalroute.observe.features import Embedder, unit_vector
from focalroute.policy.baselines import RecencyRanking
from focalroute.policy.routers import ROUTERS, TextRouter


class OneEndpoint(Strategy, ABC):
    """A baseline that asks one endpoint for each query: the first available one in its order."""

    _last = -1  # the endpoint asked last

    def answer(self, turn: Turn) -> int:
        """The endpoint's answer; -1 if none is available."""
        for endpoint in self._order(turn):
            if endpoint in turn.available:
                self._last = endpoint
                return turn.ask(endpoint).candidate
        return -1

    @abstractmethod
    def _order(self, turn: Turn) -> Sequence[int]:
        """Return the endpoints in order of preference."""


class First(OneEndpoint):
    """``best-single-train``, ``best-single-hindsight``: always the same endpoint; the next best if it is unavailable.

    Args:
        order: endpoints in order of preference.
    """

    def __init__(self, order: Sequence[int]) -> None:
        self._fixed = tuple(order)

    def _order(self, turn: Turn) -> Sequence[int]:
        return self._fixed


class RandomOf(OneEndpoint):
    """``random``, ``random-select``: one of the given endpoints, uniformly; any endpoint if none is available."""

    def __init__(self, endpoints: Sequence[int], seed: int) -> None:
        self._endpoints = tuple(endpoints)
        self._random = random.Random(seed)  # noqa: S311 - no secret

    def _order(self, turn: Turn) -> Sequence[int]:
        candidates = [i for i in self._endpoints if i in turn.available] or turn.available
        return [self._random.choice(candidates)] if candidates else []


class ReplayedRoundRobin(OneEndpoint):
    """``round-robin``: the endpoints in turn, in pool order; unavailable ones are skipped."""

    def __init__(self, size: int) -> None:
        self._size = size

    def _order(self, turn: Turn) -> Sequence[int]:
        return [(self._last + 1 + step) % self._size for step in range(self._size)]


class ReplayedLatestCorrect(OneEndpoint):
    """``latest-correct`` (RL-Focal's greedy control): the endpoint that was right most recently.

    `focalroute.policy.baselines.RecencyRanking` ranks the endpoints, from the training part on. Ties go to the endpoint
    that is more accurate on the training part.
    """

    def __init__(self, training: Training) -> None:
        table, rows = training.table, training.rows
        self._rank = training.rank
        self._recency = RecencyRanking(len(table.endpoints))
        for row in rows.tolist():
            known = table.there[row] & ~table.failed[row]
            self._recency.record({i: float(table.value[row, i]) for i in known.nonzero()[0].tolist()})

    def learn(self, turn: Turn, revealed: Revealed) -> None:
        """Record which endpoints were right."""
        self._recency.record(revealed.values)

    def _order(self, turn: Turn) -> Sequence[int]:
        return sorted(self._rank, key=self._recency.key, reverse=True)


def random_select(training: Training) -> RandomOf:
    """``random-select`` (RL-Focal's greedy control): a random one of the k most accurate endpoints.

    Accuracy is that on the training part; k is chosen on its last fifth.
    """
    sizes = range(2, max(3, len(training.table.endpoints) // 2 + 1))
    k = best_setting(training, sizes, lambda part, k: RandomOf(part.rank[:k], part.seed))
    return RandomOf(training.rank[:k], training.seed)


_WARM_UP = 500  # training rows on which a pacer adapts before the test part


class Routed(OneEndpoint):
    """One of `focalroute.policy.routers`, held to a cost by the ensemble's pacer.

    Args:
        router: the router.
        embed: embeds a query's text.
        usd_per_query: the target mean cost; None: the cost weight is always `COST_WEIGHT`.
    """

    def __init__(self, router: TextRouter, embed: Embedder, usd_per_query: float | None) -> None:
        self._router = router
        self._embed = embed
        self._pacer = Pacer(None if usd_per_query is None else Decimal(usd_per_query), COST_WEIGHT)

    def answer(self, turn: Turn) -> int:
        """Ask an endpoint, and tell the pacer what it cost."""
        turn.memo = unit_vector(self._embed(turn.query.text))
        answer = super().answer(turn)
        self._pacer.end(Decimal(sum(reply.usd for reply in turn.replies.values())))
        return answer

    def _order(self, turn: Turn) -> Sequence[int]:
        return self._router.order(turn.memo, self._pacer.begin())

    def learn(self, turn: Turn, revealed: Revealed) -> None:
        """Update the router with the values and costs of the answers."""
        self._router.add(turn.memo, revealed.values, {i: reply.usd for i, reply in turn.replies.items()})


def fitted(name: str, training: Training) -> TextRouter:
    """Return the router of this name, fitted to all answers of the training part."""
    table, rows = training.table, training.rows
    router = ROUTERS[name](table.names, training.seed)
    texts = np.stack([unit_vector(table.embed(table.texts[row])) for row in rows.tolist()])
    known = table.there[rows]
    values = np.where(known, table.value[rows], np.nan)
    router.fit(texts, values, np.where(known, table.usd[rows], np.nan))
    return router


def routed(router: TextRouter, training: Training) -> Routed:
    """Return a fitted router as a strategy, whose pacer has adapted on the last rows of the training part."""
    strategy = Routed(router, training.table.embed, training.usd_per_query)
    play(strategy, training.table, training.rows[-_WARM_UP:], feedback="none", show_task=training.show_task)
    return strategy


def _routed(name: str, training: Training) -> Routed:
    return routed(fitted(name, training), training)


#: The published routers: name -> factory.
ROUTED: Mapping[str, Callable[[Training], Strategy]] = {name: partial(_routed, name) for name in ROUTERS}

_COLUMNS = 512
_WORD = re.compile(r"\w+")
_MAX_CHARACTERS = 4000
_RIDGE = 1.0


def has_text(training: Training) -> bool:
    """Whether any training query has text."""
    return any(training.table.texts[row] for row in training.rows.tolist())


class TextVectors:
    """TF-IDF of hashed words, fitted on the training part; Euclidean norm 1.

    A word's weight is (1 + ln tf) (ln((1 + n) / (1 + df)) + 1), where df of n texts contain it (Salton & Buckley 1988).
    Words are hashed with signs to 512 columns (Weinberger et al. 2009). Only the first 4,000 characters are read.

    Attributes:
        rows: float32 (n, 512), the vectors of the training texts.
    """

    def __init__(self, training: Training) -> None:
        texts = [Counter(_words(training.table.texts[row])) for row in training.rows.tolist()]
        seen = Counter(word for counts in texts for word in counts)
        self._rarity = {word: math.log((1 + len(texts)) / (1 + df)) + 1 for word, df in seen.items()}
        self._unseen = math.log(1 + len(texts)) + 1
        self.rows: F32 = np.stack([self._vector(counts) for counts in texts])

    def __call__(self, text: str) -> F32:
        """Return the vector of a text, float32 (512,)."""
        return self._vector(Counter(_words(text)))

    def _vector(self, counts: Mapping[str, int]) -> F32:
        vector = np.zeros(_COLUMNS)
        for word, count in counts.items():
            hashed = crc32(word.encode("utf-8", "replace"))
            weight = (1 + math.log(count)) * self._rarity.get(word, self._unseen)
            vector[hashed % _COLUMNS] += weight if hashed & 0x80000000 else -weight
        norm = math.sqrt(vector @ vector)
        return (vector / norm if norm else vector).astype(np.float32)


def _words(text: str) -> list[str]:
    return _WORD.findall(text[:_MAX_CHARACTERS].lower())


class ThresholdPair(OneEndpoint):
    """``threshold-pair``, after RouteLLM: the strong endpoint if its predicted gain is high enough, else the cheap one.

    Args:
        rank: all endpoints, best first, in case both are unavailable.
        gain: predicts the gain of the strong endpoint.
        threshold: the least predicted gain for which a query goes to the strong endpoint.
    """

    def __init__(self, rank: Sequence[int], gain: GainModel, threshold: float) -> None:
        self._rank = tuple(rank)
        self._gain = gain
        self._threshold = threshold

    def _order(self, turn: Turn) -> Sequence[int]:
        cheap, strong = self._gain.pair
        if self._gain(turn.query.text) >= self._threshold:
            return strong, cheap, *self._rank
        return cheap, strong, *self._rank


class GainModel:
    """Predicts from the text how much more the strong endpoint's answer is worth than the cheap one's.

    The model is a ridge regression on `TextVectors`.

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
        penalty: F64 = _RIDGE * np.eye(_COLUMNS)
        self._weights = np.linalg.solve(x.T @ x + penalty, x.T @ (gain - self._mean)).astype(np.float64)

    def __call__(self, text: str) -> float:
        """Return the predicted gain."""
        return float(self._vectors(text) @ self._weights) + self._mean


def threshold_pair(training: Training, pair: tuple[int, int] | None = None) -> ThresholdPair | First:
    """``threshold-pair`` with two endpoints, a model of the gain and a threshold from the training part.

    The strong endpoint is the most accurate; the cheap one is the most accurate of those that cost at most half as
    much. If there is none, the strong one is always asked. The gain is fitted on the first four fifths. The threshold
    is a quantile of the predicted gains on the last fifth: the one that does best there.

    Args:
        pair: (cheap, strong) to use instead.
    """
    pair = pair or _cheap_and_strong(training)
    if pair is None:
        return First(training.rank)
    fit, held_out = training.hold_out()
    gain = GainModel(fit, pair)
    predicted = [gain(training.table.texts[row]) for row in held_out.tolist()]
    thresholds = [-math.inf, *np.quantile(predicted, np.linspace(0.1, 0.9, 9)).tolist(), math.inf]
    chosen = best_setting(training, thresholds, lambda part, threshold: ThresholdPair(part.rank, gain, threshold))
    return ThresholdPair(training.rank, gain, chosen)


def _cheap_and_strong(training: Training) -> tuple[int, int] | None:
    table, rows = training.table, training.rows
    usd = table.usd[rows].sum(axis=0) / np.maximum(table.there[rows].sum(axis=0), 1)
    strong = training.rank[0]
    cheap = next((i for i in training.rank if usd[i] <= usd[strong] / 2), None)
    return None if cheap is None else (cheap, strong)


#: The baselines: name -> factory.
BASELINES: Mapping[str, Callable[[Training], Strategy]] = {
    "best-single-train": lambda training: First(training.rank),
    "random": lambda training: RandomOf(range(len(training.table.endpoints)), training.seed),
    "round-robin": lambda training: ReplayedRoundRobin(len(training.table.endpoints)),
    "plurality": lambda training: Vote(training.rank),
    "mean": lambda training: MeanVote(training.rank),
    "weighted-vote": Weighted,
    "log-linear-online": log_linear_online,
    "latest-correct": ReplayedLatestCorrect,
    "random-select": random_select,
    "threshold-pair": threshold_pair,
    "static-subset": static_subset,
    "cascade": cascade,
    "query-weights": query_weights,
    **ROUTED,
}
#: The papers' methods: name -> factory.
PRESETS: Mapping[str, Callable[[Training], Strategy]] = {"rl-focal": rl_focal, "der": der}
#: The baselines that need the text of the queries.
TEXTUAL = frozenset({"query-weights", "threshold-pair", *ROUTED})
#: The baselines that depend on the random seed, so they are replayed with every seed.
BY_CHANCE = frozenset({"avengers-pro", "irt-router", "query-weights", "random", "random-select", "thompson"})
#: Upper bounds that use the test part, so no method could attain them.
IN_HINDSIGHT = ("best-single-hindsight", "oracle")


def baselines(training: Training) -> dict[str, Callable[[Training], Strategy]]:
    """Return the baselines that this log allows: all, or without any text, those that need none."""
    return {name: make for name, make in BASELINES.items() if name not in TEXTUAL or has_text(training)}


def presets(names: Sequence[str]) -> dict[str, Callable[[Training], Strategy]]:
    """Return the factories of presets by their names in a report, ``preset-rl-focal`` and ``preset-der``.

    Raises:
        ConfigError: there is no such preset.
    """
    for name in names:
        if name not in PRESETS:
            raise ConfigError(f"preset: there is no {name!r}; give one of {', '.join(PRESETS)}")
    return {f"preset-{name}": PRESETS[name] for name in names}


def best_in_hindsight(table: LogTable, test: I64) -> First:
    """``best-single-hindsight``: the endpoint that is most accurate on the test part."""
    return First(table.rank(test))


def oracle(table: LogTable, test: I64) -> ReplayResult:
    """``oracle``: the best answer of any endpoint to each query, from the cheapest endpoint that gave it."""
    asked = np.zeros((len(test), len(table.endpoints)), bool)
    worth, usd, seconds = np.zeros((3, len(test)))
    for n, row in enumerate(test.tolist()):
        there = np.flatnonzero(table.there[row]).tolist()
        if there:
            best = min(there, key=lambda i: (-table.value[row, i], table.usd[row, i]))
            worth[n], usd[n], asked[n, best] = table.value[row, best], table.usd[row, best], True
            seconds[n] = table.seconds[row, best]
    return ReplayResult(worth, usd, asked, seconds=seconds)
