"""Synthetic recorded answers: two topics that texts tell apart, a specialist for each, and useless endpoints."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from focalroute.learn.offline import RecordedLog

__all__ = ["Kind", "history", "random_history"]


@dataclass(frozen=True, slots=True)
class Kind:
    """An endpoint: how often it is right on each topic, and what a call costs."""

    skill: tuple[float, ...]
    usd: float


def history(kinds: list[Kind], size: int, *, seed: int, choices: int = 4, texts: bool = True) -> RecordedLog:
    """Closed questions whose topic changes at random; wrong answers fall anywhere. Everybody answers everything."""
    rng = np.random.default_rng(seed)
    n, topics = len(kinds), len(kinds[0].skill)
    topic = rng.integers(topics, size=size)
    label = rng.integers(choices, size=size)
    right = rng.random((size, n)) < np.array([kind.skill for kind in kinds]).T[topic]
    off = (label[:, None] + rng.integers(1, choices, (size, n))) % choices
    usd = np.array([kind.usd for kind in kinds])
    vectors = np.zeros((size, 8), np.float32)
    if texts:
        vectors[np.arange(size), topic] = 1
    return RecordedLog(
        names=tuple(f"e{i}" for i in range(n)),
        prices=usd.copy(),
        there=np.ones((size, n), np.bool_),
        replied=np.ones((size, n), np.bool_),
        candidate=np.where(right, label[:, None], off),
        size=np.full(size, choices),
        closed=np.ones(size, np.bool_),
        value=right.astype(np.float32),
        worth=(np.arange(choices) == label[:, None]).astype(np.float32),
        usd=np.tile(usd, (size, 1)).astype(np.float32),
        tokens=rng.integers(5, 50, (size, n)).astype(np.float32),
        latency_s=rng.random((size, n)).astype(np.float32),
        mass=None,
        vectors=vectors,
    )


def random_history(size: int = 60, n: int = 4, *, seed: int = 0, most: int = 5) -> RecordedLog:
    """Closed and free-form questions, absent endpoints, unusable replies, masses of some, texts of some."""
    rng = np.random.default_rng(seed)
    closed = rng.random(size) < 0.6
    count = rng.integers(2, most + 1, size)
    there = rng.random((size, n)) < 0.9
    there[~there.any(axis=1), 0] = True
    said = (rng.random((size, n)) * count[:, None]).astype(np.int64)
    candidate = np.where(there & (rng.random((size, n)) < 0.9), said, -1)
    failed = (candidate < 0) & (rng.random((size, n)) < 0.5)
    label = rng.integers(0, count)
    mass = rng.random((size, n, most)).astype(np.float32)
    mass *= np.arange(most) < count[:, None, None]
    mass /= mass.sum(axis=2, keepdims=True)
    mass[~closed | (rng.random(size) < 0.3)] = np.nan
    vectors = rng.random((size, 6)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors[rng.random(size) < 0.1] = 0
    return RecordedLog(
        names=tuple(f"e{i}" for i in range(n)),
        prices=rng.random(n),
        there=there,
        replied=there & ~failed,
        candidate=candidate,
        size=count,
        closed=closed,
        value=((candidate == label[:, None]) & there).astype(np.float32),
        worth=(np.arange(most) == label[:, None]).astype(np.float32),
        usd=(rng.random((size, n)) * there).astype(np.float32),
        tokens=(rng.integers(0, 40, (size, n)) * there).astype(np.float32),
        latency_s=(rng.random((size, n)) * there).astype(np.float32),
        mass=mass,
        vectors=vectors,
    )
