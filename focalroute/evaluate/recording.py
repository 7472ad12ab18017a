"""From an outcome log to a trained policy: what ``focalroute train`` and ``eval`` share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from focalroute.cost import typical_cost
from focalroute.embedders import TextEmbedder, embedded
from focalroute.errors import ConfigError
from focalroute.evaluate.table import I64, Table
from focalroute.learn.checkpoint import Checkpoint, made_for
from focalroute.learn.export import decider_model, fusion_model
from focalroute.learn.mappo import Learner
from focalroute.learn.offline import OfflineSettings, Trained, train
from focalroute.learn.passes import NUMPY, Passes
from focalroute.learn.recorded import F32, Recorded
from focalroute.learn.state import pack
from focalroute.observe.features import name_of, unit_vector
from focalroute.policy.publish import publish
from focalroute.progress import progress_bar

__all__ = ["best_of", "discard", "publish_trained", "recorded", "train_each", "train_on", "with_embedder"]


def with_embedder(table: Table, embedder: TextEmbedder, *, shown: bool = False) -> Table:
    """The log with the features that an embedder makes of its texts, for training and for serving alike.

    Each different text is embedded once, here.

    Args:
        shown: whether to show a progress bar.

    Raises:
        ConfigError: it is no embedder, or gives no vectors.
        PoolError: it failed.
    """
    texts = dict.fromkeys(table.texts)
    with progress_bar("embedding", len(texts), shown=shown) as advance:
        return replace(table, embed=embedded(texts, embedder, advance))


def recorded(table: Table, rows: I64, *, show_task: bool = False) -> Recorded:
    """These rows of a log as training needs them; without a task where they are not shown, or one has none."""
    worth = table.worths(rows).astype(np.float32)
    outputs = [[table.queries[row].outputs.get(name) for name in table.names] for row in rows.tolist()]

    def each(of: Callable[[Any], float]) -> F32:
        return np.array([[0.0 if o is None else of(o) for o in row] for row in outputs], np.float32)

    tasks = [table.queries[row].task for row in rows.tolist()]
    prices = [typical_cost(endpoint) for endpoint in table.endpoints]
    there = table.there[rows]
    return Recorded(
        names=table.names,
        prices=np.array([np.nan if price is None else price for price in prices]),
        there=there,
        replied=there & ~table.failed[rows],
        candidate=table.candidate[rows],
        size=table.size[rows],
        closed=np.array([table.queries[row].choices is not None for row in rows.tolist()]),
        value=np.where(there, np.nan_to_num(table.value[rows]), 0).astype(np.float32),
        worth=worth,
        usd=table.usd[rows].astype(np.float32),
        tokens=each(lambda output: output.completion_tokens),
        latency_s=each(lambda output: output.latency_s or 0.0),
        mass=_masses(table, rows, worth.shape[1]),
        vectors=np.stack([unit_vector(table.embed(table.texts[row])) for row in rows.tolist()]),
        tasks=np.array([task or "" for task in tasks]) if show_task else None,
        embedder=name_of(table.embed),
    )


def _masses(table: Table, rows: I64, width: int) -> F32 | None:
    """(T, N, ``width``) the mass each endpoint gave each candidate, NaN where it gave none; None: nobody gave any."""
    mass = np.full((len(rows), len(table.endpoints), width), np.nan, np.float32)
    for t, row in enumerate(rows.tolist()):
        for i, name in enumerate(table.names):
            output = table.queries[row].outputs.get(name)
            if output is not None and output.probabilities is not None:
                mass[t, i] = 0
                mass[t, i, : len(output.probabilities)] = output.probabilities
    return None if np.isnan(mass).all() else mass


def train_each(
    table: Table,
    rows: I64,
    *,
    seed: int = 0,
    seeds: int = 1,
    settings: OfflineSettings | None = None,
    passes: Passes = NUMPY,
    show_task: bool = False,
    advance: Callable[[int], object] = lambda _: None,
    folder: Path | None = None,
    resume: bool = False,
) -> tuple[Trained, ...]:
    """Train on these rows of a log, once with each seed.

    Args:
        table: the log.
        rows: what to learn from, its last part to choose by.
        seed: the first of the seeds.
        seeds: how many.
        settings: how; None: the defaults.
        passes: which engine computes.
        show_task: whether the policy sees the tasks.
        advance: called with the units of progress made, `OfflineSettings.steps` for each seed.
        folder: where to keep what outlives a killed process; None: nowhere.
        resume: go on from what is kept there.

    Raises:
        ConfigError: the log is too short, or what is kept belongs to another training or cannot be written.
    """
    settings = settings or OfflineSettings()
    if len(rows) - int(len(rows) * settings.validation) < 1:
        raise ConfigError(f"settings.validation: {settings.validation} of {len(rows)} queries leaves none to train on")
    log = recorded(table, rows, show_task=show_task)
    found = []
    for number in range(seed, seed + seeds):
        one = None if folder is None else _checkpoint(folder, log, number, settings, passes)
        found.append(
            train(
                log,
                seed=number,
                settings=settings,
                passes=passes,
                advance=advance,
                progress=one.read() if one is not None and resume else None,
                keep=(lambda _: None) if one is None else one.write,
            )
        )
    return tuple(found)


def _checkpoint(folder: Path, log: Recorded, seed: int, settings: OfflineSettings, passes: Passes) -> Checkpoint:
    return Checkpoint(_file(folder, seed), made_for(log, seed=seed, settings=settings, engine=passes.name))


def discard(folder: Path, found: Sequence[Trained]) -> None:
    """Remove what was kept there of these trainings."""
    for one in found:
        _file(folder, one.seed).unlink(missing_ok=True)


def _file(folder: Path, seed: int) -> Path:
    return folder / f".training-{seed}.npz"


def best_of(found: Sequence[Trained]) -> Trained:
    """The one that did best on its validation part."""
    return max(found, key=lambda one: one.score)


def train_on(
    table: Table,
    rows: I64,
    *,
    seed: int = 0,
    seeds: int = 1,
    settings: OfflineSettings | None = None,
    show_task: bool = False,
    advance: Callable[[int], object] = lambda _: None,
) -> Trained:
    """The best of some trainings (see `train_each`)."""
    return best_of(
        train_each(table, rows, seed=seed, seeds=seeds, settings=settings, show_task=show_task, advance=advance)
    )


def publish_trained(root: str | Path, trained: Trained, *, settings: OfflineSettings) -> int:
    """Publish a trained policy as the next version; online updates go on from it."""
    return publish(
        root,
        decider=decider_model(trained.decider),
        fusion=fusion_model(trained.fusion),
        names=trained.experience.names,
        parent=None,
        hyperparameters={
            **asdict(settings),
            "seed": trained.seed,
            "usd_per_query": trained.usd_per_query,
            "embedder": trained.experience.embedder,
        },
        metrics={
            "trust": trained.trust,
            "score": trained.score,
            "curve": [asdict(point) for point in trained.curve],
        },
        experience=trained.experience,
        learner=pack(Learner.fresh(trained.decider, trained.fusion, trained.critic), {}),
    )
