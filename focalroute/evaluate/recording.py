"""From an outcome log to a trained policy: what ``focalroute train`` and ``eval`` share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from focalroute.cost import typical_cost
from focalroute.evaluate.table import I64, Table
from focalroute.learn.critic import CriticNet
from focalroute.learn.export import decider_model, fusion_model
from focalroute.learn.mappo import Learner
from focalroute.learn.offline import OfflineSettings, Trained, train
from focalroute.learn.passes import NUMPY, Passes
from focalroute.learn.recorded import F32, Recorded
from focalroute.learn.state import pack
from focalroute.observe.features import Embedder, text_features
from focalroute.policy.publish import publish

__all__ = ["publish_trained", "recorded", "train_on"]


def recorded(table: Table, rows: I64, *, embed: Embedder = text_features) -> Recorded:
    """These rows of a log as training needs them."""
    worth, mass = _candidates(table, rows)
    outputs = [[table.queries[row].outputs.get(name) for name in table.names] for row in rows.tolist()]

    def each(of: Callable[[Any], float]) -> F32:
        return np.array([[0.0 if o is None else of(o) for o in row] for row in outputs], np.float32)

    prices = [typical_cost(endpoint) for endpoint in table.endpoints]
    there = table.there[rows] & ~table.failed[rows]
    return Recorded(
        names=table.names,
        prices=np.array([np.nan if price is None else price for price in prices]),
        there=there,
        candidate=np.where(there, table.candidate[rows], -1),
        size=table.size[rows],
        closed=np.array([table.queries[row].choices is not None for row in rows.tolist()]),
        value=np.where(there, np.nan_to_num(table.value[rows]), 0).astype(np.float32),
        worth=worth,
        usd=table.usd[rows].astype(np.float32),
        tokens=each(lambda output: output.completion_tokens),
        latency_s=each(lambda output: output.latency_s or 0.0),
        mass=mass,
        vectors=np.stack([np.asarray(embed(table.texts[row]), np.float32) for row in rows.tolist()]),
    )


def _candidates(table: Table, rows: I64) -> tuple[F32, F32 | None]:
    """What each candidate is worth (T, K), and the mass each endpoint gave it (T, N, K)."""
    k = int(table.size[rows].max(initial=1))
    worth = np.zeros((len(rows), k), np.float32)
    mass = np.full((len(rows), len(table.endpoints), k), np.nan, np.float32)
    for t, row in enumerate(rows.tolist()):
        size = int(table.size[row])
        worth[t, :size] = [table.worth(row, candidate) for candidate in range(size)]
        for i, name in enumerate(table.names):
            output = table.queries[row].outputs.get(name)
            if output is not None and output.probabilities is not None:
                mass[t, i] = 0
                mass[t, i, : len(output.probabilities)] = output.probabilities
    return worth, None if np.isnan(mass).all() else mass


def train_on(
    table: Table,
    rows: I64,
    *,
    seed: int = 0,
    seeds: int = 1,
    settings: OfflineSettings | None = None,
    passes: Passes = NUMPY,
    advance: Callable[[int], object] = lambda _: None,
) -> Trained:
    """Train on these rows of a log; of several seeds the one that did best on the validation part."""
    log = recorded(table, rows)
    found = [train(log, seed=seed + n, settings=settings, passes=passes, advance=advance) for n in range(max(seeds, 1))]
    return max(found, key=lambda one: one.score)


def publish_trained(root: str | Path, trained: Trained, *, settings: OfflineSettings, seed: int) -> int:
    """Publish a trained policy as the next version; online updates go on from it."""
    names = trained.experience.names
    critic = CriticNet.initial(np.random.default_rng(seed))
    learner = Learner.fresh(trained.decider, trained.fusion, critic)
    return publish(
        root,
        decider=decider_model(trained.decider),
        fusion=fusion_model(trained.fusion),
        names=names,
        parent=None,
        hyperparameters={**asdict(settings), "seed": seed, "usd_per_query": trained.usd_per_query},
        metrics={
            "trust": trained.trust,
            "score": trained.score,
            "curve": [asdict(point) for point in trained.curve],
        },
        experience=trained.experience,
        learner=pack(learner, {}),
    )
