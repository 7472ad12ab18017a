"""``query-weights``, RLAE's shape: everybody is asked; a policy learned by reward weighs the members by the query."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from focalroute.core.records import F32
from focalroute.evaluate.replay import Revealed, Turn
from focalroute.evaluate.training import Training, best_setting
from focalroute.learn.adam import Adam, Moments
from focalroute.observe.features import unit_vector

_SPREAD = 0.5  # standard deviation of the drawn logits
_SAMPLES = 16  # draws a query, each the baseline of the others
_BATCH = 128
_PASSES = 10
_ONLINE = 32  # test queries between two steps


@dataclass(frozen=True, slots=True)
class _Batch:
    """B queries: their texts' features (B, F), members' masses (B, N, C), and what each candidate is worth (B, C)."""

    texts: F32
    masses: F32
    worth: F32


class QueryWeights:
    """RLAE (arXiv 2506.00439) at the level of whole answers, which is all that a log holds.

    w = softmax(W x + b) over the members, x the query's text; the answer is argmax_c sum_i w_i p_i(c), p_i member i's
    mass, its vote where it gave none. The policy is a Gaussian around the logits; its reward is what the answer that
    drawn weights give is worth, so that weights learn to be right together: the *expected* worth of a draw from the
    mixture would be linear in w, and best with all weight on one member. Learned by the policy gradient, as in RLAE by
    PPO with one epoch, where every ratio is 1; the draws of one query are each other's baseline instead of a critic.
    It goes on learning from labels, a step every 32 queries.

    Args:
        rate: of Adam.
    """

    def __init__(self, training: Training, rate: float) -> None:
        table, rows = training.table, training.rows
        self._embed = table.embed
        self._rng = np.random.default_rng(training.seed)
        data = training.arrays()
        texts = np.stack([self._features(table.texts[row]) for row in rows.tolist()])
        shapes = {"weights": (texts.shape[1], len(table.endpoints)), "bias": (len(table.endpoints),)}
        parts = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        self._adam = Adam(parts, Moments.zero(parts), learning_rate=rate, max_norm=1.0)
        for _ in range(_PASSES):
            order = self._rng.permutation(len(rows))
            for chosen in np.array_split(order, max(1, round(len(rows) / _BATCH))):
                self._step(_Batch(texts[chosen], data.probabilities[chosen], data.worth[chosen]))
        self._seen: list[tuple[F32, F32, F32]] = []
        self._last: tuple[F32, F32] | None = None

    def answer(self, turn: Turn) -> int:
        """Ask everybody, weigh."""
        for i in turn.available:
            turn.ask(i)
        n = len(self._adam.parameters["bias"])
        width = max([turn.choices, *(reply.candidate + 1 for reply in turn.replies.values())])
        mass = np.zeros((n, width), np.float32)
        for i, reply in turn.replies.items():
            mass[i] = reply.output.masses(reply.candidate, width)
        text = self._features(turn.query.text)
        self._last = text, mass
        weighed = _softmax(self._logits(text)) @ mass
        return int(weighed.argmax()) if weighed.any() else -1

    def learn(self, turn: Turn, revealed: Revealed) -> None:
        """Keep it until there are enough for a step; where it does not say what a candidate is worth, nothing."""
        worth = None if self._last is None else _worth(turn, revealed, self._last[1].shape[1])
        if self._last is None or worth is None:
            return
        self._seen.append((*self._last, worth))
        if len(self._seen) == _ONLINE:
            width = max(len(one[2]) for one in self._seen)
            padded = [(text, _wide(mass, width), _wide(worth, width)) for text, mass, worth in self._seen]
            self._step(_Batch(*(np.stack(column) for column in zip(*padded, strict=True))))
            self._seen = []

    def _features(self, text: str) -> F32:
        return unit_vector(self._embed(text))

    def _logits(self, texts: F32) -> F32:
        weights, bias = (np.asarray(self._adam.parameters[name], np.float32) for name in ("weights", "bias"))
        logits: F32 = texts @ weights + bias
        return logits

    def _step(self, batch: _Batch) -> None:
        logits = self._logits(batch.texts)
        noise = self._rng.standard_normal((_SAMPLES, *logits.shape)).astype(np.float32)
        drawn = _softmax(logits + _SPREAD * noise)
        answers = np.einsum("sbn,bnc->sbc", drawn, batch.masses, optimize=True).argmax(axis=2)
        reward = np.take_along_axis(batch.worth, answers.T, axis=1).T
        gain = (reward - reward.mean(axis=0)) * np.float32(_SAMPLES / (_SAMPLES - 1))
        # d log N(z) / d mean = noise / spread; Adam descends
        slope = -(gain[:, :, None] * noise).mean(axis=0) / np.float32(_SPREAD * len(logits))
        self._adam.step({"weights": batch.texts.T @ slope, "bias": slope.sum(axis=0)})


def query_weights(training: Training) -> QueryWeights:
    """``query-weights`` with its rate chosen on the training part's last fifth."""
    return QueryWeights(training, best_setting(training, (0.01, 0.03), QueryWeights))


def _worth(turn: Turn, revealed: Revealed, width: int) -> F32 | None:
    worth = np.zeros(width, np.float32)
    if revealed.label is not None:
        worth[revealed.label] = 1
        return worth
    if revealed.text is not None or len(revealed.values) < len(turn.replies):
        return None
    for i, value in revealed.values.items():
        if turn.replies[i].candidate >= 0:
            worth[turn.replies[i].candidate] = value
    return worth


def _softmax(z: F32) -> F32:
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    q: F32 = e / e.sum(axis=-1, keepdims=True)
    return q


def _wide(x: F32, width: int) -> F32:
    return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, width - x.shape[-1])])
