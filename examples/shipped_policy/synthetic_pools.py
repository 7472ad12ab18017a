"""Synthetic logs that the shipped policy is trained on: pools and questions of many kinds, none of them real.

They have what real pools have in common, each log to a random degree: some questions are harder than
others; an endpoint that is better overall is not better everywhere; topics come in blocks or mixed; endpoints of one
family err together, and some wrong answers are favourites; some endpoints prefer certain places among the choices;
expensive endpoints tend to be better, but not always; long replies go with hard questions. Endpoints may fail, be
absent for a while, or change half-way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from focalroute.core.records import F32, I64, Bools
from focalroute.learn.offline import RecordedLog

F64 = NDArray[np.float64]

_WIDTH = 24  # of the text features
_OPEN = 12  # different answers that an open question may get


@dataclass(frozen=True, slots=True)
class _Questions:
    """T questions.

    Attributes:
        topic: (T,).
        size: (T,) choices, or the answers there could be.
        kind: "choices"; "short": free answers that are right or wrong; "text": no two answers are equal.
        hard: (T,) how hard, in logits.
    """

    topic: I64
    size: I64
    kind: str
    hard: F64


def synthetic_pool(rng: np.random.Generator, size: int) -> RecordedLog:
    """Draw a log of ``size`` queries."""
    n = int(rng.integers(3, 17))
    questions = _questions(rng, size)
    skill = rng.normal(0, rng.uniform(0.2, 1.3), n)
    logits = _logits(rng, questions, skill)
    there = _there(rng, size, n)
    candidate = np.where(there & (rng.random((size, n)) >= rng.choice((0, 0.02))), logits.argmax(axis=2), -1)
    mass = None
    if questions.kind == "choices":
        candidate, truth, logits = _mixed(rng, questions, candidate, logits)
        logits += _leanings(rng, n, logits.shape[2])
        candidate = np.where(candidate >= 0, logits.argmax(axis=2), -1)
        worth, sizes = (np.arange(logits.shape[2]) == truth[:, None]).astype(np.float32), questions.size
        mass = _masses(rng, logits, candidate) if rng.random() < 0.4 else None
    elif questions.kind == "short":
        candidate, worth, sizes = _offered(candidate)
    else:
        candidate, worth, sizes = _graded(rng, candidate)
    usd, tokens, prices = _costs(rng, questions, skill, there)
    value = np.where(candidate >= 0, np.take_along_axis(worth, np.maximum(candidate, 0), axis=1), 0)
    return RecordedLog(
        names=tuple(f"m{i}" for i in range(n)),
        prices=prices,
        there=there,
        replied=there,
        candidate=candidate,
        size=sizes,
        closed=np.full(size, questions.kind == "choices"),
        value=value.astype(np.float32),
        worth=worth,
        usd=usd,
        tokens=tokens,
        latency_s=np.zeros((size, n), np.float32),
        mass=mass,
        vectors=_vectors(rng, questions.topic),
    )


def _questions(rng: np.random.Generator, size: int) -> _Questions:
    topics = int(rng.integers(1, 13))
    blocks = np.repeat(rng.integers(topics, size=size), int(rng.choice((1, 1, 30, 100, 250))))[:size]
    kind = str(rng.choice(("choices", "short", "text"), p=(0.65, 0.2, 0.15)))
    choices = rng.choice((2, 4, 4, 5, 10, 10), size if rng.random() < 0.3 else 1)
    sizes = np.broadcast_to(choices if kind == "choices" else _OPEN, size).astype(np.int64)
    by_topic = rng.normal(0, rng.uniform(0, 0.8), topics)
    hard = by_topic[blocks] + rng.normal(0, rng.uniform(0.3, 2), size)
    return _Questions(blocks, sizes, kind, hard)


def _logits(rng: np.random.Generator, questions: _Questions, skill: F64) -> F64:
    """Return each endpoint's logit of each answer, (T, N, K); the right one is answer 0."""
    size, n, width = len(questions.topic), len(skill), int(questions.size.max())
    level = rng.uniform(0.3, 3.0) + 0.45 * np.log(questions.size)
    taste = rng.normal(0, rng.uniform(0.05, 1.0), (n, questions.topic.max() + 1))
    margin = (level - questions.hard)[:, None] + skill + taste.T[questions.topic]
    if rng.random() < 0.3:  # one of them changes
        margin[int(rng.uniform(0.3, 0.8) * size) :, rng.integers(n)] += rng.choice((-1.5, 1.0))
    shared, family = rng.uniform(0.2, 1.0), rng.uniform(0.0, 0.8)
    of = rng.integers(max(n // 3, 1), size=n)
    noise = rng.gumbel(size=(size, n, width)) * rng.uniform(0.5, 0.9)
    noise += shared * rng.gumbel(size=(size, 1, width))
    noise += family * rng.gumbel(size=(size, n // 3 + 1, width))[:, of]
    noise[..., 0] += margin
    return np.where(np.arange(width) < questions.size[:, None, None], noise, -np.inf)


def _there(rng: np.random.Generator, size: int, n: int) -> Bools:
    there = np.ones((size, n), np.bool_)
    if rng.random() < 0.2:  # a newcomer
        there[: int(rng.uniform(0.2, 0.6) * size), rng.integers(n)] = False
    return there


def _mixed(rng: np.random.Generator, questions: _Questions, candidate: I64, logits: F64) -> tuple[I64, I64, F64]:
    """Shuffle the choices; return the candidates, the right one (T,), and the logits in the new order."""
    width = logits.shape[2]
    real = np.arange(width) < questions.size[:, None]
    order = np.where(real, rng.random(real.shape), 2).argsort(axis=1)  # (T, K) the old choice in each place
    place = order.argsort(axis=1)
    moved = np.where(candidate >= 0, np.take_along_axis(place, np.maximum(candidate, 0), axis=1), -1)
    return moved, place[:, 0], np.take_along_axis(logits, order[:, None, :], axis=2)


def _leanings(rng: np.random.Generator, n: int, width: int) -> F64:
    """Return each endpoint's preference for each place among the choices, (N, K)."""
    leanings: F64 = rng.normal(0, rng.choice((0, 0, 0.3, 1.0)), (n, width))
    return leanings


def _masses(rng: np.random.Generator, logits: F64, candidate: I64) -> F32:
    sharp = np.exp(rng.normal(rng.uniform(0, 1.2), 0.5, (1, logits.shape[1], 1)))  # many are overconfident
    q = np.exp(sharp * (logits - logits.max(axis=2, keepdims=True)))
    mass = (q / q.sum(axis=2, keepdims=True)).astype(np.float32)
    return np.where(candidate[..., None] < 0, np.float32(np.nan), mass)


def _offered(candidate: I64) -> tuple[I64, F32, I64]:
    """Number answers in order of occurrence; return candidates, the worth of each (T, K), and their number (T,)."""
    named = candidate.copy()
    worth = np.zeros((len(candidate), candidate.shape[1]), np.float32)
    sizes = np.zeros(len(candidate), np.int64)
    for t, row in enumerate(candidate):
        answers = list(dict.fromkeys(row[row >= 0].tolist()))
        named[t] = [answers.index(answer) if answer >= 0 else -1 for answer in row.tolist()]
        worth[t, : len(answers)] = [answer == 0 for answer in answers]
        sizes[t] = len(answers)
    return named, worth, sizes


def _graded(rng: np.random.Generator, candidate: I64) -> tuple[I64, F32, I64]:
    """As `_offered` for open text: every answer differs, and is worth much if right and little if not."""
    size, n = candidate.shape
    usable, noise = candidate >= 0, rng.uniform(0, 0.3)
    worth = np.where(candidate == 0, 1 - noise * rng.random((size, n)), noise * rng.random((size, n)))
    order = np.cumsum(usable, axis=1) - 1
    named = np.where(usable, order, -1)
    graded = np.zeros((size, n), np.float32)
    rows = np.broadcast_to(np.arange(size)[:, None], usable.shape)
    graded[rows[usable], order[usable]] = worth[usable]
    return named, graded, usable.sum(axis=1)


def _costs(
    rng: np.random.Generator, questions: _Questions, skill: F64, there: Bools
) -> tuple[F32, F32, NDArray[np.float64]]:
    """Return USD and completion tokens of each call (T, N), and the list prices (N,)."""
    n = len(skill)
    better = skill / max(float(skill.std()), 1e-6)
    prices = 1e-4 * np.exp(rng.uniform(-0.3, 1.2) * better + rng.normal(0, rng.uniform(0.3, 1.4), n))
    talk = rng.normal(0, 0.4, n)
    spread = rng.normal(0, rng.uniform(0.1, 0.5), there.shape)
    tokens = 150 * np.exp(talk + rng.uniform(0, 0.35) * questions.hard[:, None] + spread)
    usd = prices * (0.4 + 0.6 * tokens / 150)
    return np.where(there, usd, 0).astype(np.float32), tokens.astype(np.float32), prices


def _vectors(rng: np.random.Generator, topic: I64) -> F32:
    """(T, D) of length 1, those of a topic more or less like each other; zeros where texts are not known."""
    share = rng.uniform(0.1, 0.8)
    if rng.random() < 0.3:
        return np.zeros((len(topic), _WIDTH), np.float32)
    kinds = rng.normal(size=(topic.max() + 1, _WIDTH))
    kinds /= np.linalg.norm(kinds, axis=1, keepdims=True)
    own = rng.normal(size=(len(topic), _WIDTH))
    own /= np.linalg.norm(own, axis=1, keepdims=True)
    both = np.sqrt(share) * kinds[topic] + np.sqrt(1 - share) * own
    vectors: F32 = (both / np.linalg.norm(both, axis=1, keepdims=True)).astype(np.float32)
    return vectors
