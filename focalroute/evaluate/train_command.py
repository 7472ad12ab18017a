"""``focalroute train``: what the command line calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from focalroute.core.errors import ConfigError
from focalroute.core.pool import load_pool
from focalroute.core.progress import progress_bar
from focalroute.evaluate.job_engine import open_engine, shares_files
from focalroute.evaluate.outcomes import read_log
from focalroute.evaluate.output import table
from focalroute.evaluate.recording import (
    TrainingJob,
    best_of,
    discard,
    publish_trained,
    recorded,
    train_each,
    with_embedder,
)
from focalroute.evaluate.table import SplitKind, join, learning_order
from focalroute.learn.backend import Backend, BackendName, open_backend
from focalroute.learn.offline.reinforce import OfflineSettings
from focalroute.learn.offline.train import Trained
from focalroute.serving.embedders import embedder_from_pool_file


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """How policies are trained.

    Attributes:
        seed: the first of the seeds.
        seeds: how many.
        iterations: of the policy gradient; None: the default.
        backend: see `focalroute.learn.backend.passes`; ``device`` likewise.
        show_task: whether the policy sees the tasks of the log, as it will those that ``ask(task=)`` names.
        split: what it is to serve: "stream", a stream that goes on as the log does; "per-task", the log's tasks again.
        resume: go on from what an earlier, killed process kept.

    Raises:
        ConfigError: a value is wrong.
    """

    seed: int = 0
    seeds: int = 1
    iterations: int | None = None
    backend: BackendName = "numpy"
    device: str | None = None
    show_task: bool = False
    split: SplitKind = "stream"
    resume: bool = False

    def __post_init__(self) -> None:
        if self.settings.iterations < 1 or self.seeds < 1:
            raise ConfigError("iterations and seeds: must be at least 1")

    @property
    def settings(self) -> OfflineSettings:
        """How the networks are trained."""
        settings = OfflineSettings()
        return settings if self.iterations is None else replace(settings, iterations=self.iterations)


@dataclass(frozen=True, slots=True)
class _Log:
    """A log to train on, and the folder that its policy goes to."""

    job: TrainingJob
    out: Path

    @property
    def size(self) -> int:
        """Queries of the log."""
        return len(self.job.log.there)

    @property
    def held(self) -> int:
        """Queries of the validation part; all of them, where there is none."""
        return int(self.size * self.job.settings.validation) or self.size


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
    """Train on whole logs with a progress bar, publish the best of the seeds of each, and print how all did.

    Args:
        logs: the outcome logs.
        pools: the pool file of each, or one for all.
        out: the folder of bundles, and of what outlives a killed process; of several logs one folder each in it, named
            as the log.
        options: how; None: the defaults.
        engine: see `focalroute.evaluate.job_engine.open_engine`; logs and seeds are its jobs.
        as_json: print JSON: an object, or of several logs a list.
        changes: fields of `TrainOptions` that differ from ``options``.

    Raises:
        ConfigError: an argument, a log, a pool or what was kept is wrong, or there is no such engine.
        PoolError: a pool's embedder failed.
        PolicyError: a policy cannot be published.
    """
    options = replace(options or TrainOptions(), **changes)
    backend = open_backend(options.backend, options.device)
    keep = shares_files(engine)
    if options.resume and not keep:
        raise ConfigError("resume: nothing is kept of a training on other machines; leave it out")
    seeds = range(options.seed, options.seed + options.seeds)
    with open_engine(engine) as opened:
        read = [
            _read(log, pool, folder, options, backend, keep=keep, shown=not as_json)
            for log, pool, folder in zip(logs, _each(pools, logs), _folders(out, logs), strict=True)
        ]
        steps = len(read) * len(seeds) * options.settings.steps
        with progress_bar("training", steps, shown=not as_json) as advance:
            found = train_each([one.job for one in read], seeds, engine=opened, advance=advance)
    published = [_publish(one, trained) for one, trained in zip(read, found, strict=True)]
    if as_json:
        print(json.dumps(published if len(read) > 1 else published[0], indent=2, allow_nan=False))
        return
    for one, trained, result in zip(read, found, published, strict=True):
        _show(trained, best_of(trained), result["version"], one.out, one.held)


def _each(pools: Sequence[Path], logs: Sequence[Path]) -> Sequence[Path]:
    """The pool file of each log."""
    if len(pools) not in (1, len(logs)):
        raise ConfigError(f"pool: give one for all {len(logs)} logs, or one for each, not {len(pools)}")
    return pools if len(pools) == len(logs) else list(pools) * len(logs)


def _folders(out: Path, logs: Sequence[Path]) -> Sequence[Path]:
    """The folder of each log's policies."""
    if len(logs) == 1:
        return [out]
    names = [log.name.removesuffix(".gz").removesuffix(".jsonl") for log in logs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"log: two are called {twice!r}, and would share a folder; train them one by one")
    return [out / name for name in names]


def _read(
    log: Path, pool: Path, out: Path, options: TrainOptions, backend: Backend, *, keep: bool, shown: bool
) -> _Log:
    file = load_pool(pool)
    table = join(read_log(log), file, log)
    embedder = embedder_from_pool_file(file, pool)
    if embedder is not None:
        table = with_embedder(table, embedder, shown=shown)
    rows = learning_order(table, np.arange(len(table.queries)), options.split)
    folder = out.absolute() if keep else None
    data = recorded(table, rows, show_task=options.show_task)
    return _Log(TrainingJob(data, options.settings, backend, folder, options.resume), out)


def _publish(one: _Log, trained: Sequence[Trained]) -> dict[str, Any]:
    """Publish the best of the seeds; how all did, for the JSON."""
    best = best_of(trained)
    version = publish_trained(one.out, best, settings=one.job.settings)
    discard(one.out, trained)
    seeds = [
        {"seed": each.seed, "score": each.score, "trust": each.trust, "curve": [asdict(p) for p in each.curve]}
        for each in trained
    ]
    return {
        "version": version,
        "seed": best.seed,
        "queries": one.size,
        "validation": one.held,
        "seeds": seeds,
    }


def _show(found: Sequence[Trained], best: Trained, version: int, out: Path, held: int) -> None:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    for one in found:
        kept = f", version {version} of {out}" if one is best else ""
        console.print(f"seed {one.seed}: score {one.score:.4f}, trust in the learned Fusion {one.trust:g}{kept}")
    console.print(
        table(
            ("cost weight", "accuracy", "cost ratio", "calls"),
            [(f"{p.cost_weight:g}", f"{p.accuracy:.4f}", f"{p.cost_ratio:.3f}", f"{p.calls:.2f}") for p in best.curve],
            title=f"seed {best.seed} on the last {held} queries, before it learned from them",
        )
    )
