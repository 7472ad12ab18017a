"""Trains policies on outcome logs, for ``train`` and ``eval``, and publishes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from focalroute.answers import candidate_key
from focalroute.core.errors import ConfigError
from focalroute.core.pool import load_pool
from focalroute.core.progress import gathered, progress_bar
from focalroute.core.records import I64
from focalroute.evaluate.job_engine import HERE, Engine
from focalroute.evaluate.outcomes import Output, digest, read_log
from focalroute.evaluate.table import LogTable, join
from focalroute.learn.backend import NUMPY, Backend
from focalroute.learn.export import decider_model, fusion_model
from focalroute.learn.mappo import Learner
from focalroute.learn.offline import RecordedLog
from focalroute.learn.offline.checkpoint import Checkpoint, made_for
from focalroute.learn.offline.reinforce import OfflineSettings
from focalroute.learn.offline.train import Trained, train
from focalroute.learn.online import pack
from focalroute.money.cost import typical_cost
from focalroute.observe.features import name_of, unit_vector
from focalroute.policy.publish import publish
from focalroute.serving.embedders import TextEmbedder, embedder_from_pool_file
from focalroute.serving.embedders.embedding import embed_log


def read_table(
    log: str | Path,
    pool: str | Path,
    embedder: TextEmbedder | None = None,
    *,
    skip_bad_rows: bool = False,
    shown: bool = False,
) -> LogTable:
    """Read a log and join it with its pool.

    Args:
        log: an outcome log.
        pool: its pool file.
        embedder: embeds the texts; None: the pool file's embedder, or the built-in one.
        skip_bad_rows: whether to leave out lines that break the format; else such a line is an error.
        shown: whether to show progress bars.

    Raises:
        ConfigError: the log, the pool or the embedder is invalid.
        PoolError: the embedder failed.
    """
    file = load_pool(pool)
    bad_rows: list[str] | None = None
    if skip_bad_rows:
        bad_rows = []
    with progress_bar("reading", None, shown=shown) as report, gathered(report) as advance:
        queries = read_log(log, bad_rows=bad_rows, advance=advance)
    table = join(queries, file, log)
    if not (table.there & ~table.failed).any():
        raise ConfigError(f"{log}: outputs: there is none, or all calls failed; record answers with focalroute collect")
    table = replace(table, bad_rows=len(bad_rows or ()))
    embedder = embedder or embedder_from_pool_file(file, pool)
    if embedder is not None:
        table = with_embedder(table, embedder, shown=shown)
    return table


def with_embedder(table: LogTable, embedder: TextEmbedder, *, shown: bool = False) -> LogTable:
    """Return the log with this embedder, for training and for serving; each distinct text is embedded here, once.

    Args:
        shown: whether to show a progress bar.

    Raises:
        ConfigError: it is not an embedder, or gives no vectors.
        PoolError: it failed.
    """
    texts = dict.fromkeys(table.texts)
    with progress_bar("embedding", len(texts), shown=shown) as advance:
        return replace(table, embed=embed_log(texts, embedder, advance))


def recorded(table: LogTable, rows: I64, *, show_task: bool = False) -> RecordedLog:
    """Return these rows of a log in the form that training takes; without tasks unless ``show_task``."""
    if not len(rows):
        raise ConfigError("log: leaves no query to train on; give a longer one")
    worth = table.worths(rows).astype(np.float32)
    queries = [table.queries[row] for row in rows.tolist()]
    outputs = [[query.outputs.get(name, Output()) for name in table.names] for query in queries]
    tasks = None
    if show_task:
        tasks = np.array([query.task or "" for query in queries])
    prices = [typical_cost(endpoint) for endpoint in table.endpoints]
    there = table.there[rows]
    probabilities = table.probabilities(rows, worth.shape[1])
    return RecordedLog(
        names=table.names,
        prices=np.array(prices, np.float64),  # None becomes NaN
        there=there,
        replied=there & ~table.failed[rows],
        candidate=table.candidate[rows],
        size=table.size[rows],
        closed=np.array([query.choices is not None for query in queries]),
        value=np.where(there, np.nan_to_num(table.value[rows]), 0).astype(np.float32),
        worth=worth,
        usd=table.usd[rows].astype(np.float32),
        tokens=np.array([[output.completion_tokens for output in row] for row in outputs], np.float32),
        latency_s=np.array([[output.latency_s or 0.0 for output in row] for row in outputs], np.float32),
        mass=None if np.isnan(probabilities).all() else probabilities,
        vectors=np.stack([unit_vector(table.embed(table.texts[row])) for row in rows.tolist()]),
        tasks=tasks,
        choices=np.fromiter((tuple(map(candidate_key, query.choices or ())) for query in queries), np.object_),
        embedder=name_of(table.embed),
    )


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """A training to run with one or more seeds.

    Attributes:
        log: the data to learn from, with the validation part last.
        settings: the training's settings.
        backend: the backend that runs the networks.
        folder: where to write checkpoints, from which a killed training can resume; None: no checkpoints.
        resume: whether to continue from the checkpoints there.

    Raises:
        ConfigError: the log is too short.
    """

    log: RecordedLog
    settings: OfflineSettings = OfflineSettings()  # noqa: RUF009 - immutable
    backend: Backend = NUMPY
    folder: Path | None = None
    resume: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.n_validation < len(self.log):
            raise ConfigError(f"log: {len(self.log)} queries are too few to train and validate on; give a longer one")

    @property
    def n_validation(self) -> int:
        """The number of queries in the validation part."""
        return int(len(self.log) * self.settings.validation)

    def checkpoint(self, seed: int) -> Checkpoint | None:
        """Return the checkpoint of this training with this seed; None if there is no folder."""
        if self.folder is None:
            return None
        key = made_for(self.log, seed=seed, settings=self.settings, engine=self.backend.name)
        return Checkpoint(_checkpoint_path(self.folder, seed), key)


def _checkpoint_path(folder: Path, seed: int) -> Path:
    return folder / f".training-{seed}.npz"


def train_each(
    jobs: Sequence[TrainingJob],
    seeds: Sequence[int],
    *,
    engine: Engine = HERE,
    advance: Callable[[int], object] = lambda _: None,
) -> list[list[Trained]]:
    """Train every job with each seed; return, for each job, the results in the order of the seeds.

    They do not depend on the engine.

    Args:
        advance: called with units of progress, `OfflineSettings.steps` for each job and seed.

    Raises:
        ConfigError: a checkpoint belongs to another training, or cannot be written.
    """
    inputs = [(number, seed) for number in range(len(jobs)) for seed in seeds]
    results = engine.each(_train, jobs, inputs, advance)
    return [results[start : start + len(seeds)] for start in range(0, len(results), len(seeds))]


def _train(jobs: Sequence[TrainingJob], number_and_seed: tuple[int, int], report: Callable[[int], object]) -> Trained:
    """Train the job of this number with this seed; an engine's job."""
    number, seed = number_and_seed
    job = jobs[number]
    checkpointing: dict[str, Any] = {}
    checkpoint = job.checkpoint(seed)
    if checkpoint is not None:
        checkpointing["keep"] = checkpoint.write
        if job.resume:
            checkpointing["progress"] = checkpoint.read()
    with gathered(report) as advance:
        return train(job.log, seed=seed, settings=job.settings, passes=job.backend, advance=advance, **checkpointing)


def best_of(results: Sequence[Trained]) -> Trained:
    """The result with the best score on its validation part."""
    return max(results, key=lambda result: result.score)


def train_on(
    table: LogTable,
    rows: I64,
    *,
    seed: int = 0,
    settings: OfflineSettings | None = None,
    show_task: bool = False,
    advance: Callable[[int], object] = lambda _: None,
) -> Trained:
    """Train on these rows of a log with one seed, in this process (see `TrainingJob`)."""
    job = TrainingJob(recorded(table, rows, show_task=show_task), settings or OfflineSettings())
    return _train([job], (0, seed), advance)


def publish_trained(
    root: str | Path, trained: Trained, *, settings: OfflineSettings, trained_on: Iterable[str] = ()
) -> int:
    """Publish a trained policy as the next version of a folder, with the critic that online updates need.

    Args:
        root: the folder.
        trained: the result of the training.
        settings: the settings it was trained with.
        trained_on: digests of the questions (`focalroute.evaluate.outcomes.digest`).

    Returns:
        The version.
    """
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
        metrics={"trust": trained.trust, "score": trained.score, "curve": [asdict(point) for point in trained.curve]},
        experience=trained.experience,
        learner=pack(Learner.fresh(trained.decider, trained.fusion, trained.critic)),
        trained_on=trained_on,
    )


def publish_best(job: TrainingJob, table: LogTable, folder: Path, results: Sequence[Trained]) -> dict[str, Any]:
    """Publish the result with the best seed, and remove all checkpoints; return the JSON report of the training."""
    best = best_of(results)
    version = publish_trained(folder, best, settings=job.settings, trained_on=map(digest, table.queries))
    seeds = []
    for result in results:
        curve = [asdict(point) for point in result.curve]
        seeds.append({"seed": result.seed, "score": result.score, "trust": result.trust, "curve": curve})
        _checkpoint_path(folder, result.seed).unlink(missing_ok=True)
    return {
        "version": version,
        "seed": best.seed,
        "queries": len(job.log),
        "validation": job.n_validation,
        "bad_rows": table.bad_rows,
        "unpriced": table.unpriced,
        "never_right": table.never_right,
        "seeds": seeds,
    }
