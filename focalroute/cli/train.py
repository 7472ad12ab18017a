"""``focalroute train``: trains a policy on each of the given outcome logs, and publishes it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from focalroute.cli import EngineOption, JsonOption, SkipBadRowsOption, named_folder, resumable
from focalroute.core.errors import ConfigError
from focalroute.core.progress import progress_bar

if TYPE_CHECKING:
    from focalroute.evaluate.table import LogTable
    from focalroute.evaluate.training import TrainingJob
    from focalroute.learn.offline.train import Trained


def train(
    log: Annotated[
        list[Path], typer.Argument(help="Outcome logs (.jsonl or .jsonl.gz): what a pool answered in the past.")
    ],
    pool: Annotated[
        list[Path],
        typer.Option(help="The pool file (TOML) with the endpoints' prices; with several logs one for each."),
    ],
    out: Annotated[
        Path,
        typer.Option(
            parser=named_folder,
            metavar="PATH",
            help="Folder of policy bundles to publish to; with several logs OUT/NAME for each.",
        ),
    ],
    seed: Annotated[int, typer.Option(min=0, help="Same seed and log: the same policy.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="How many to train; the best on the validation part is kept.")] = 1,
    iterations: Annotated[
        int | None, typer.Option(min=1, help="Steps of the policy gradient, if not the default.")
    ] = None,
    backend: Annotated[Literal["numpy", "torch"], typer.Option(help="Library that runs the networks.")] = "numpy",
    device: Annotated[str | None, typer.Option(help="Device for torch, such as cuda.")] = None,
    show_task: Annotated[bool, typer.Option("--show-task", help="Let the policy see the log's tasks.")] = False,
    split: Annotated[
        Literal["stream", "per-task"],
        typer.Option(help="What to train for: the continuation of the log's stream, or the log's tasks again."),
    ] = "stream",
    resume: Annotated[bool, typer.Option("--resume", help="Continue where a killed training stopped.")] = False,
    skip_bad_rows: SkipBadRowsOption = False,
    engine: EngineOption = "local",
    as_json: JsonOption = False,
) -> None:
    """Train a policy on recorded answers and publish it as the next version of a folder.

    With --engine ray, logs and seeds are trained in parallel; the policies are the same.
    """
    import numpy as np

    from focalroute.evaluate.job_engine import open_engine, shares_files
    from focalroute.evaluate.table import learning_order
    from focalroute.evaluate.training import TrainingJob, publish_best, read_table, recorded, train_each
    from focalroute.learn.backend import open_backend
    from focalroute.learn.offline.reinforce import OfflineSettings

    settings = OfflineSettings() if iterations is None else OfflineSettings(iterations=iterations)
    if settings.iterations < 1 or seeds < 1:
        raise ConfigError("iterations and seeds: must be at least 1")
    opened_backend, keep = open_backend(backend, device), shares_files(engine)
    if resume and not keep:
        raise ConfigError("resume: a training on other machines keeps nothing to resume from; leave it out")
    folders = _folders(out, log)
    tables, jobs = [], []
    with open_engine(engine) as opened:
        for log_file, pool_file, folder in zip(log, _pool_files(pool, log), folders, strict=True):
            table = read_table(log_file, pool_file, skip_bad_rows=skip_bad_rows, shown=not as_json)
            rows = learning_order(table, np.arange(len(table.queries)), split)
            data = recorded(table, rows, show_task=show_task)
            tables.append(table)
            jobs.append(TrainingJob(data, settings, opened_backend, folder.absolute() if keep else None, resume))
        bar = progress_bar("training", len(jobs) * seeds * settings.steps, shown=not as_json)
        with resumable() if keep else contextlib.nullcontext(), bar as advance:
            found = train_each(jobs, range(seed, seed + seeds), engine=opened, advance=advance)
    published = list(map(publish_best, jobs, tables, folders, found))
    if not as_json:
        for results in zip(jobs, tables, folders, found, published, strict=True):
            _show(*results)
        return
    print(json.dumps(published if len(jobs) > 1 else published[0], indent=2, allow_nan=False))


def _pool_files(pools: Sequence[Path], logs: Sequence[Path]) -> Sequence[Path]:
    """Return the pool file of each log."""
    if len(pools) not in (1, len(logs)):
        raise ConfigError(f"pool: give one for all {len(logs)} logs, or one for each, not {len(pools)}")
    return list(pools) * (len(logs) // len(pools))


def _folders(out: Path, logs: Sequence[Path]) -> Sequence[Path]:
    """Return the folder to publish the policy of each log to."""
    from focalroute.evaluate.output import check_folder

    check_folder(out)
    if len(logs) == 1:
        return [out]
    names = [log.name.removesuffix(".gz").removesuffix(".jsonl") for log in logs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"log: two are called {twice!r}, and would share a folder; train them one by one")
    return [out / name for name in names]


def _show(
    job: TrainingJob, table: LogTable, folder: Path, found: Sequence[Trained], published: Mapping[str, Any]
) -> None:
    from focalroute.core.spelling import counted
    from focalroute.evaluate import output
    from focalroute.evaluate.training import best_of

    best = best_of(found)
    for one in found:
        said = f"seed {one.seed}: score {one.score:.4f}, trust in the learned Fusion {one.trust:g}"
        if one is best:
            said += f", version {published['version']} of {folder}"
        print(said)
    output.show_table(
        ("cost weight", "accuracy", "cost ratio", "calls"),
        [(f"{p.cost_weight:g}", f"{p.accuracy:.4f}", f"{p.cost_ratio:.3f}", f"{p.calls:.2f}") for p in best.curve],
        title=f"seed {best.seed} on the last {counted(job.n_validation, 'query')}, before it learned from them",
    )
    for sentence in output.log_problems(table.bad_rows, table.unpriced, table.never_right):
        print(sentence)
