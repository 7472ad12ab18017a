"""Random batches of the shape an update learns from, without the episodes: for equality tests and the benchmark."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from focalroute.learn.losses import likelihood
from focalroute.learn.mappo import Learner
from focalroute.learn.nets import STATE, CriticNet, DeciderNet, FusionNet, decider_pass
from focalroute.learn.trajectory import Batch, Decisions, Fusions, HeadBatch, StepBatch
from focalroute.observe.layout import CANDIDATE, CONTEXT, ENDPOINT, MEMBER, slices, width
from tests.learn.made import randomised


def random_learner(seed: int, pool: int, dtype: type = np.float64) -> Learner:
    """Nets of the shipped size, every array random."""
    rng = np.random.default_rng(seed)
    return Learner.fresh(
        randomised(DeciderNet.initial(rng, vocabulary=pool), seed, dtype, 0.1),
        randomised(FusionNet.initial(rng, vocabulary=pool), seed + 1, dtype, 0.1),
        randomised(CriticNet.initial(rng), seed + 2, dtype, 0.1),
    )


def random_batch(
    seed: int,
    *,
    episodes: int,
    rounds: int = 2,
    pool: int = 12,
    candidates: int = 4,
    members: int = 3,
    learner: Learner | None = None,
) -> Batch:
    """``rounds`` decisions each: some heads closed, places padded, names unknown (row 0), feedback of every kind.

    Each decision follows mu, the learner's own law (else a coin for each head), off by a little as after some updates.
    """
    rng = np.random.default_rng(seed)
    decisions = _decisions(rng, episodes, rounds, pool)
    if learner is not None:
        logits, _ = decider_pass(learner.decider, decisions.context, decisions.endpoints, np.arange(1, pool + 1))
        picked = _picks(rng, 1 / (1 + np.exp(-logits)), decisions.heads)
        decisions = replace(decisions, heads=replace(decisions.heads, picked=picked))
        log_mu = likelihood(logits, decisions.heads).log_pi + 0.2 * rng.standard_normal(len(logits))
        decisions = replace(decisions, log_mu=log_mu.astype(np.float64))
    return Batch(
        decisions, _steps(rng, episodes, rounds), _fusions(rng, episodes, pool, candidates, min(members, pool))
    )


def _decisions(rng: np.random.Generator, episodes: int, rounds: int, pool: int) -> Decisions:
    size = episodes * rounds
    visited = np.arange(pool) < rng.integers(pool // 2 + 1, pool + 1, size)[:, None]
    ids = rng.permuted(np.tile(np.arange(1, pool + 1), (size, 1)), axis=1)
    ids[rng.random(ids.shape) < 0.05] = 0
    endpoints = _features(rng, size, pool, width(ENDPOINT))
    endpoints[~visited] = 0
    ids[~visited] = 0
    heads = HeadBatch(
        visited,
        visited & (rng.random(visited.shape) < 0.9),
        np.zeros_like(visited),
        must_pick=np.arange(size) % rounds == 0,
        pool=np.full(size, pool),
    )
    heads = replace(heads, picked=_picks(rng, np.full(visited.shape, 0.4), heads))
    return Decisions(
        context=_features(rng, size, width(CONTEXT)),
        endpoints=endpoints,
        ids=ids,
        heads=heads,
        log_mu=likelihood(0.3 * rng.standard_normal(visited.shape), heads).log_pi.astype(np.float64),
        episode=np.repeat(np.arange(episodes), rounds),
        step=np.tile(np.arange(rounds), episodes),
        place=np.tile(np.arange(rounds), episodes),
    )


def _picks(rng: np.random.Generator, chances: Any, heads: HeadBatch) -> Any:
    """Who is picked among the eligible; the first head, made eligible, where nobody else is and somebody must be."""
    picked = heads.eligible & (rng.random(chances.shape) < chances)
    nobody = heads.must_pick & ~picked.any(axis=1)
    heads.eligible[nobody, 0] = True
    picked[nobody, 0] = True
    return picked


def _steps(rng: np.random.Generator, episodes: int, rounds: int) -> StepBatch:
    taken = np.ones((episodes, rounds + 1), np.bool_)
    rewards = -0.1 * rng.random(taken.shape).astype(np.float32)
    rewards[:, -1] = rng.choice([-1, 1], episodes)
    return StepBatch(_features(rng, episodes, rounds + 1, STATE), rewards, taken)


def _fusions(rng: np.random.Generator, episodes: int, pool: int, candidates: int, members: int) -> Fusions:
    shown = _features(rng, episodes, candidates, members, width(MEMBER))
    votes = rng.integers(0, candidates, (episodes, members))
    shown[..., slices(MEMBER)["present"]] = 1
    shown[..., slices(MEMBER)["vote"].start] = np.arange(candidates)[:, None] == votes[:, None]
    absent = (np.arange(members) > 0) & (rng.random((episodes, members)) < 0.2)
    shown[np.broadcast_to(absent[:, None], shown.shape[:-1])] = 0
    offered = np.arange(candidates) < rng.integers(2, candidates + 1, episodes)[:, None]
    shown[~offered] = 0
    of_candidate = _features(rng, episodes, candidates, width(CANDIDATE))
    of_candidate[~offered] = 0
    ids = rng.permuted(np.tile(np.arange(pool + 1), (episodes, 1)), axis=1)[:, :members]
    labelled = rng.random(episodes) < 0.6
    right = np.where(rng.random(episodes) < 0.9, rng.integers(0, 2, episodes), -1)
    return Fusions(
        members=shown,
        candidates=of_candidate,
        ids=np.where(absent, 0, ids),
        offered=offered,
        answered=rng.integers(0, 2, episodes),
        right=np.where(labelled, right, -1),
        labelled=labelled,
        reward=rng.choice([-1, -0.2, 0.5, 1], episodes).astype(np.float32),
    )


def _features(rng: np.random.Generator, *shape: int) -> Any:
    return (0.5 * rng.standard_normal(shape)).astype(np.float32)
