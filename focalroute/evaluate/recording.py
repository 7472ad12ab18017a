"""``focalroute train``: trains a policy on an outcome log, for ``eval`` too."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from focalroute.core.errors import ConfigError
from focalroute.core.pool import load_pool
from focalroute.core.progress import gathered, progress_bar
from focalroute.core.records import I64
from focalroute.evaluate import output
from focalroute.evaluate.job_engine import HERE, Engine, open_engine, shares_files
from focalroute.evaluate.outcomes import Output, digest, read_log
from focalroute.evaluate.table import LogTable, SplitKind, join, learning_order
from focalroute.learn.backend import NUMPY, Backend, BackendName, open_backend
from focalroute.learn.export import decider_model, fusion_model
from focalroute.learn.mappo import Learner
from focalroute.learn.offline.checkpoint import Checkpoint, made_for
from focalroute.learn.offline.recorded import RecordedLog
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
    """Read a log and join it with its pool; texts are embedded by the embedder, the pool file's, or the built-in one.

    Args:
        skip_bad_rows: whether to leave out lines that break the format, instead of refusing the log.
        shown: whether to show a progress bar.

    Raises:
        ConfigError: the log, the pool or the embedder is invalid.
        PoolError: the embedder failed.
    """
    file = load_pool(pool)
    bad_rows: list[str] | None = None
    if skip_bad_rows:
        bad_rows = []
    table = join(read_log(log, bad_rows=bad_rows), file, log)
    if not table.there.any():
        raise ConfigError(f"{log}: outputs: no query has any; record them with focalroute collect")
    table = replace(table, bad_rows=len(bad_rows or ()))
    embedder = embedder or embedder_from_pool_file(file, pool)
    if embedder is not None:
        table = with_embedder(table, embedder, shown=shown)
    return table


def with_embedder(table: LogTable, embedder: TextEmbedder, *, shown: bool = False) -> LogTable:
    """The log with texts embedded by this embedder, for training and for serving.

    Each distinct text is embedded here, once.

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
    """The data that training needs from these rows of a log; without tasks unless ``show_task``."""
    if not len(rows):
        raise ConfigError("settings.validation: a log of 0 queries leaves none to train on; give a longer one")
    worth = table.worths(rows).astype(np.float32)
    queries = [table.queries[row] for row in rows.tolist()]
    outputs = [[query.outputs.get(name, Output()) for name in table.names] for query in queries]
    tasks = None
    if show_task:
        tasks = np.array([query.task or "" for query in queries])
    prices = [typical_cost(endpoint) for endpoint in table.endpoints]
    there = table.there[rows]
    masses, mass = table.masses(rows, worth.shape[1]), None
    if not np.isnan(masses).all():
        mass = masses
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
        mass=mass,
        vectors=np.stack([unit_vector(table.embed(table.texts[row])) for row in rows.tolist()]),
        tasks=tasks,
        embedder=name_of(table.embed),
    )


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """A training to run.

    Attributes:
        log: the data to learn from, with the validation part last.
        settings: the training's settings.
        backend: the engine that runs the networks.
        folder: where to keep checkpoints for a killed process; None: nowhere.
        resume: continue from the checkpoint there.

    Raises:
        ConfigError: the log is too short.
    """

    log: RecordedLog
    settings: OfflineSettings = OfflineSettings()  # noqa: RUF009 - immutable
    backend: Backend = NUMPY
    folder: Path | None = None
    resume: bool = False

    def __post_init__(self) -> None:
        rows, share = len(self.log), self.settings.validation
        if rows - int(rows * share) < 1:
            raise ConfigError(f"settings.validation: {share} of {rows} queries leaves none to train on; lower it")

    @property
    def held(self) -> int:
        """The number of queries in the validation part; of all, if there is none."""
        return int(len(self.log) * self.settings.validation) or len(self.log)

    def checkpoint(self, seed: int) -> Checkpoint | None:
        """Return the checkpoint of this training with this seed; None without one."""
        if self.folder is None:
            return None
        key = made_for(self.log, seed=seed, settings=self.settings, engine=self.backend.name)
        return Checkpoint(_kept(self.folder, seed), key)


def _kept(folder: Path, seed: int) -> Path:
    return folder / f".training-{seed}.npz"


def train_each(
    jobs: Sequence[TrainingJob],
    seeds: Sequence[int],
    *,
    engine: Engine = HERE,
    advance: Callable[[int], object] = lambda _: None,
) -> list[list[Trained]]:
    """Train every job with each seed; return the results by job, which do not depend on the engine.

    Args:
        advance: called with units of progress, `OfflineSettings.steps` for each job and seed.

    Raises:
        ConfigError: a checkpoint belongs to another training, or cannot be written.
    """
    inputs = [(number, seed) for number in range(len(jobs)) for seed in seeds]
    found = engine.each(_train, jobs, inputs, advance)
    return [found[start : start + len(seeds)] for start in range(0, len(found), len(seeds))]


def _train(jobs: Sequence[TrainingJob], one: tuple[int, int], tell: Callable[[int], object]) -> Trained:
    number, seed = one
    job = jobs[number]
    settings: dict[str, Any] = {}
    kept = job.checkpoint(seed)
    if kept is not None:
        settings["keep"] = kept.write
        if job.resume:
            settings["progress"] = kept.read()
    with gathered(tell) as advance:
        return train(job.log, seed=seed, settings=job.settings, passes=job.backend, advance=advance, **settings)


def best_of(found: Sequence[Trained]) -> Trained:
    """The training with the best score on its validation part."""
    return max(found, key=lambda one: one.score)


def train_on(
    table: LogTable,
    rows: I64,
    *,
    seed: int = 0,
    settings: OfflineSettings | None = None,
    show_task: bool = False,
    advance: Callable[[int], object] = lambda _: None,
) -> Trained:
    """Train on these rows of a log (see `TrainingJob`)."""
    job = TrainingJob(recorded(table, rows, show_task=show_task), settings or OfflineSettings())
    return _train([job], (0, seed), advance)


def publish_trained(
    root: str | Path, trained: Trained, *, settings: OfflineSettings, trained_on: Iterable[str] = ()
) -> int:
    """Publish a trained policy as the next version, from which online updates continue."""
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


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """The options of a training.

    Attributes:
        seed: the first seed.
        seeds: number of seeds.
        iterations: steps of the policy gradient; None: the default.
        backend: see `focalroute.learn.backend.passes`; ``device`` likewise.
        show_task: whether the policy sees the log's tasks, as it then will those of ``ask(task=)``.
        split: what to train for: "stream", the continuation of the log; "per-task", the log's tasks again.
        resume: continue from the checkpoint of a killed process.
        skip_bad_rows: see `read_table`.

    Raises:
        ConfigError: a value is invalid.
    """

    seed: int = 0
    seeds: int = 1
    iterations: int | None = None
    backend: BackendName = "numpy"
    device: str | None = None
    show_task: bool = False
    split: SplitKind = "stream"
    resume: bool = False
    skip_bad_rows: bool = False

    def __post_init__(self) -> None:
        if self.settings.iterations < 1 or self.seeds < 1:
            raise ConfigError("iterations and seeds: must be at least 1")

    @property
    def settings(self) -> OfflineSettings:
        """The settings of the networks' training."""
        settings = OfflineSettings()
        if self.iterations is not None:
            settings = replace(settings, iterations=self.iterations)
        return settings


def train_command(
    logs: Sequence[Path],
    pools: Sequence[Path],
    out: Path,
    options: TrainOptions | None = None,
    *,
    engine: str = "local",
    as_json: bool = False,
    **changes: Any,
) -> None:
    """Train on whole logs with a progress bar, publish each log's best seed, and print the scores of all.

    Args:
        logs: the outcome logs.
        pools: the pool file of each, or one for all.
        out: the folder of bundles and checkpoints; with several logs, a subfolder for each, named after the log.
        options: the training's options; None: the defaults.
        engine: see `focalroute.evaluate.job_engine.open_engine`; it runs a job for each log and seed.
        as_json: print JSON: an object, or a list for several logs.
        changes: fields of `TrainOptions` that differ from ``options``.

    Raises:
        ConfigError: an argument, a log, a pool or a checkpoint is invalid, or there is no such engine.
        PoolError: a pool's embedder failed.
        PolicyError: a policy cannot be published.
    """
    options = replace(options or TrainOptions(), **changes)
    backend = open_backend(options.backend, options.device)
    keep = shares_files(engine)
    if options.resume and not keep:
        raise ConfigError("resume: nothing is kept of a training on other machines; leave it out")
    seeds, folders = range(options.seed, options.seed + options.seeds), _folders(out, logs)
    tables, jobs = [], []
    with open_engine(engine) as opened:
        for log, pool, folder in zip(logs, _each(pools, logs), folders, strict=True):
            table = read_table(log, pool, skip_bad_rows=options.skip_bad_rows, shown=not as_json)
            rows = learning_order(table, np.arange(len(table.queries)), options.split)
            data = recorded(table, rows, show_task=options.show_task)
            tables.append(table)
            jobs.append(
                TrainingJob(data, options.settings, backend, folder.absolute() if keep else None, options.resume)
            )
        steps = len(jobs) * len(seeds) * options.settings.steps
        with progress_bar("training", steps, shown=not as_json) as advance:
            found = train_each(jobs, seeds, engine=opened, advance=advance)
    published = list(map(_publish, jobs, tables, folders, found))
    if not as_json:
        for each in zip(jobs, tables, folders, found, published, strict=True):
            _show(*each)
    elif len(jobs) == 1:
        print(json.dumps(published[0], indent=2, allow_nan=False))
    else:
        print(json.dumps(published, indent=2, allow_nan=False))


def _each(pools: Sequence[Path], logs: Sequence[Path]) -> Sequence[Path]:
    """The pool file of each log."""
    if len(pools) not in (1, len(logs)):
        raise ConfigError(f"pool: give one for all {len(logs)} logs, or one for each, not {len(pools)}")
    return list(pools) * (len(logs) // len(pools))


def _folders(out: Path, logs: Sequence[Path]) -> Sequence[Path]:
    """The folder of each log's policies."""
    if out.exists() and not out.is_dir():
        raise ConfigError(f"out: {out} is a file; give a folder of policy bundles, or the name of a new one")
    if len(logs) == 1:
        return [out]
    names = [log.name.removesuffix(".gz").removesuffix(".jsonl") for log in logs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"log: two are called {twice!r}, and would share a folder; train them one by one")
    return [out / name for name in names]


def _publish(job: TrainingJob, table: LogTable, folder: Path, found: Sequence[Trained]) -> dict[str, Any]:
    """Publish the best seed, and remove all checkpoints; return the results for the JSON."""
    best = best_of(found)
    version = publish_trained(folder, best, settings=job.settings, trained_on=map(digest, table.queries))
    seeds = []
    for one in found:
        curve = [asdict(point) for point in one.curve]
        seeds.append({"seed": one.seed, "score": one.score, "trust": one.trust, "curve": curve})
        _kept(folder, one.seed).unlink(missing_ok=True)
    return {
        "version": version,
        "seed": best.seed,
        "queries": len(job.log),
        "validation": job.held,
        "bad_rows": table.bad_rows,
        "unpriced": table.unpriced,
        "seeds": seeds,
    }


def _show(
    job: TrainingJob, table: LogTable, folder: Path, found: Sequence[Trained], published: Mapping[str, Any]
) -> None:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    best = best_of(found)
    for one in found:
        said = f"seed {one.seed}: score {one.score:.4f}, trust in the learned Fusion {one.trust:g}"
        if one is best:
            said += f", version {published['version']} of {folder}"
        console.print(said)
    console.print(
        output.table(
            ("cost weight", "accuracy", "cost ratio", "calls"),
            [(f"{p.cost_weight:g}", f"{p.accuracy:.4f}", f"{p.cost_ratio:.3f}", f"{p.calls:.2f}") for p in best.curve],
            title=f"seed {best.seed} on the last {job.held} queries, before it learned from them",
        )
    )
    for sentence in output.left_out(table.bad_rows, table.unpriced):
        console.print(sentence)
