"""From an outcome log to a trained policy: what ``focalroute train`` and ``eval`` share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from focalroute.core.errors import ConfigError
from focalroute.core.progress import gathered, progress_bar
from focalroute.evaluate.job_engine import HERE, Engine
from focalroute.evaluate.table import I64, LogTable
from focalroute.learn.backend import NUMPY, Backend
from focalroute.learn.export import decider_model, fusion_model
from focalroute.learn.mappo import Learner
from focalroute.learn.offline.checkpoint import Checkpoint, made_for
from focalroute.learn.offline.recorded import F32, Recorded
from focalroute.learn.offline.settings import OfflineSettings
from focalroute.learn.offline.train import (
    Trained,
    train,
)
from focalroute.learn.state import pack
from focalroute.money.cost import typical_cost
from focalroute.observe.features import name_of, unit_vector
from focalroute.policy.publish import publish
from focalroute.serving.embedders import TextEmbedder
from focalroute.serving.embedders.embedding import embed_log


def with_embedder(table: LogTable, embedder: TextEmbedder, *, shown: bool = False) -> LogTable:
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
        return replace(table, embed=embed_log(texts, embedder, advance))


def recorded(table: LogTable, rows: I64, *, show_task: bool = False) -> Recorded:
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


def _masses(table: LogTable, rows: I64, width: int) -> F32 | None:
    """(T, N, ``width``) the mass each endpoint gave each candidate, NaN where it gave none; None: nobody gave any."""
    mass = np.full((len(rows), len(table.endpoints), width), np.nan, np.float32)
    for t, row in enumerate(rows.tolist()):
        for i, name in enumerate(table.names):
            output = table.queries[row].outputs.get(name)
            if output is not None and output.probabilities is not None:
                mass[t, i] = 0
                mass[t, i, : len(output.probabilities)] = output.probabilities
    return None if np.isnan(mass).all() else mass


@dataclass(frozen=True, slots=True)
class Course:
    """What trainings that differ in their seed alone have in common.

    Attributes:
        log: what to learn from, its last part to choose by.
        settings: how.
        passes: which engine computes.
        folder: where to keep what outlives a killed process; None: nowhere.
        resume: go on from what is kept there.
    """

    log: Recorded
    settings: OfflineSettings
    passes: Backend
    folder: Path | None = None
    resume: bool = False


def course(
    table: LogTable,
    rows: I64,
    *,
    settings: OfflineSettings | None = None,
    passes: Backend = NUMPY,
    show_task: bool = False,
    folder: Path | None = None,
    resume: bool = False,
) -> Course:
    """To train on these rows of a log; ``show_task``: whether the policy sees the tasks. For the rest see `Course`.

    Raises:
        ConfigError: the log is too short.
    """
    settings = settings or OfflineSettings()
    if len(rows) - int(len(rows) * settings.validation) < 1:
        raise ConfigError(f"settings.validation: {settings.validation} of {len(rows)} queries leaves none to train on")
    return Course(recorded(table, rows, show_task=show_task), settings, passes, folder, resume)


def train_each(
    courses: Sequence[Course],
    seeds: Sequence[int],
    *,
    engine: Engine = HERE,
    advance: Callable[[int], object] = lambda _: None,
) -> list[list[Trained]]:
    """Train every course with each of the seeds, by course; the same whichever engine runs them.

    Args:
        advance: called with the units of progress made, `OfflineSettings.steps` for each course and seed.

    Raises:
        ConfigError: what is kept belongs to another training, or cannot be written.
    """
    inputs = [(number, seed) for number in range(len(courses)) for seed in seeds]
    found = engine.each(_train, courses, inputs, advance)
    return [found[start : start + len(seeds)] for start in range(0, len(found), len(seeds))]


def _train(courses: Sequence[Course], one: tuple[int, int], tell: Callable[[int], object]) -> Trained:
    number, seed = one
    taken = courses[number]
    kept = None if taken.folder is None else _checkpoint(taken.folder, taken, seed)
    with gathered(tell) as advance:
        return train(
            taken.log,
            seed=seed,
            settings=taken.settings,
            passes=taken.passes,
            advance=advance,
            progress=kept.read() if kept is not None and taken.resume else None,
            keep=(lambda _: None) if kept is None else kept.write,
        )


def _checkpoint(folder: Path, taken: Course, seed: int) -> Checkpoint:
    key = made_for(taken.log, seed=seed, settings=taken.settings, engine=taken.passes.name)
    return Checkpoint(_file(folder, seed), key)


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
    table: LogTable,
    rows: I64,
    *,
    seed: int = 0,
    seeds: int = 1,
    settings: OfflineSettings | None = None,
    show_task: bool = False,
    advance: Callable[[int], object] = lambda _: None,
) -> Trained:
    """The best of some trainings on these rows of a log, ``seed`` being the first of the seeds (see `course`)."""
    taken = course(table, rows, settings=settings, show_task=show_task)
    (found,) = train_each([taken], range(seed, seed + seeds), advance=advance)
    return best_of(found)


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
