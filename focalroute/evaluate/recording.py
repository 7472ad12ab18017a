"""From an outcome log to a trained policy: what ``focalroute train`` and ``eval`` share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from focalroute.core.errors import ConfigError
from focalroute.core.progress import gathered, progress_bar
from focalroute.core.records import I64
from focalroute.evaluate.job_engine import HERE, Engine
from focalroute.evaluate.table import LogTable
from focalroute.learn.backend import NUMPY, Backend
from focalroute.learn.export import decider_model, fusion_model
from focalroute.learn.mappo import Learner
from focalroute.learn.offline.checkpoint import Checkpoint, made_for
from focalroute.learn.offline.recorded import F32, RecordedLog
from focalroute.learn.offline.reinforce import OfflineSettings
from focalroute.learn.offline.train import Trained, train
from focalroute.learn.online import pack
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


def recorded(table: LogTable, rows: I64, *, show_task: bool = False) -> RecordedLog:
    """These rows of a log as training needs them; without a task where they are not shown, or one has none."""
    if not len(rows):
        raise ConfigError("settings.validation: a log of 0 queries leaves none to train on")
    worth = table.worths(rows).astype(np.float32)
    outputs = [[table.queries[row].outputs.get(name) for name in table.names] for row in rows.tolist()]

    def each(of: Callable[[Any], float]) -> F32:
        return np.array([[0.0 if o is None else of(o) for o in row] for row in outputs], np.float32)

    tasks = [table.queries[row].task for row in rows.tolist()]
    prices = [typical_cost(endpoint) for endpoint in table.endpoints]
    there = table.there[rows]
    mass = table.masses(rows, worth.shape[1])
    return RecordedLog(
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
        mass=None if np.isnan(mass).all() else mass,
        vectors=np.stack([unit_vector(table.embed(table.texts[row])) for row in rows.tolist()]),
        tasks=np.array([task or "" for task in tasks]) if show_task else None,
        embedder=name_of(table.embed),
    )


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """What is to be trained.

    Attributes:
        log: what to learn from, its last part to choose by.
        settings: how.
        backend: which engine computes.
        folder: where to keep what outlives a killed process; None: nowhere.
        resume: go on from what is kept there.

    Raises:
        ConfigError: the log is too short.
    """

    log: RecordedLog
    settings: OfflineSettings = OfflineSettings()  # noqa: RUF009 - immutable
    backend: Backend = NUMPY
    folder: Path | None = None
    resume: bool = False

    def __post_init__(self) -> None:
        rows, share = len(self.log.there), self.settings.validation
        if rows - int(rows * share) < 1:
            raise ConfigError(f"settings.validation: {share} of {rows} queries leaves none to train on")

    def checkpoint(self, seed: int) -> Checkpoint | None:
        """What is kept of this training with this seed; None: nothing is."""
        if self.folder is None:
            return None
        key = made_for(self.log, seed=seed, settings=self.settings, engine=self.backend.name)
        return Checkpoint(_file(self.folder, seed), key)


def train_each(
    jobs: Sequence[TrainingJob],
    seeds: Sequence[int],
    *,
    engine: Engine = HERE,
    advance: Callable[[int], object] = lambda _: None,
) -> list[list[Trained]]:
    """Train every job with each of the seeds, by job; the same whichever engine runs them.

    Args:
        advance: called with the units of progress made, `OfflineSettings.steps` for each job and seed.

    Raises:
        ConfigError: what is kept belongs to another training, or cannot be written.
    """
    inputs = [(number, seed) for number in range(len(jobs)) for seed in seeds]
    found = engine.each(_train, jobs, inputs, advance)
    return [found[start : start + len(seeds)] for start in range(0, len(found), len(seeds))]


def _train(jobs: Sequence[TrainingJob], one: tuple[int, int], tell: Callable[[int], object]) -> Trained:
    number, seed = one
    job = jobs[number]
    kept = job.checkpoint(seed)
    with gathered(tell) as advance:
        return train(
            job.log,
            seed=seed,
            settings=job.settings,
            passes=job.backend,
            advance=advance,
            progress=kept.read() if kept is not None and job.resume else None,
            keep=(lambda _: None) if kept is None else kept.write,
        )


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
    """The best of some trainings on these rows of a log, ``seed`` being the first of the seeds (see `TrainingJob`)."""
    job = TrainingJob(recorded(table, rows, show_task=show_task), settings or OfflineSettings())
    (found,) = train_each([job], range(seed, seed + seeds), advance=advance)
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
