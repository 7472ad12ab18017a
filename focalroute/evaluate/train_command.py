"""``focalroute train``: what the command line calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np

from focalroute.config import load_pool
from focalroute.embedders import embedder_of
from focalroute.errors import ConfigError
from focalroute.evaluate.outcomes import read_log
from focalroute.evaluate.recording import best_of, discard, publish_trained, train_each, with_embedder
from focalroute.evaluate.table import join
from focalroute.learn.offline import OfflineSettings, Point, Trained
from focalroute.learn.passes import Backend, passes
from focalroute.progress import progress_bar

__all__ = ["train_command"]


@dataclass(frozen=True, slots=True)
class _Seed:
    """How training went with one seed: see `Trained`."""

    seed: int
    score: float
    trust: float
    curve: tuple[Point, ...]


def train_command(
    log: Path,
    pool: Path,
    out: Path,
    *,
    seed: int = 0,
    seeds: int = 1,
    iterations: int | None = None,
    backend: str = "numpy",
    device: str | None = None,
    show_task: bool = False,
    resume: bool = False,
    as_json: bool = False,
) -> None:
    """Train on a whole log with a progress bar, publish the best of the seeds, and print how each did.

    Args:
        log: the outcome log.
        pool: the pool file.
        out: the folder of bundles; what outlives a killed process is kept there, too.
        seed: the first of the seeds.
        seeds: how many.
        iterations: of the policy gradient; None: the default.
        backend: see `focalroute.learn.passes.passes`; ``device`` likewise.
        show_task: whether the policy sees the tasks of the log, as it will those that ``ask(task=)`` names.
        resume: go on from what an earlier, killed process kept.
        as_json: print JSON.

    Raises:
        ConfigError: an argument, the log, the pool or what was kept is wrong.
        PoolError: the pool's embedder failed.
        PolicyError: the policy cannot be published.
    """
    settings = OfflineSettings()
    if iterations is not None:
        settings = replace(settings, iterations=iterations)
    if settings.iterations < 1 or seeds < 1:
        raise ConfigError("iterations and seeds: must be at least 1")
    engine = passes(cast(Backend, backend), device)  # checked there
    file = load_pool(pool)
    table = join(read_log(log), file, log)
    embedder = embedder_of(file, pool)
    if embedder is not None:
        table = with_embedder(table, embedder, shown=not as_json)
    size = len(table.queries)
    with progress_bar("training", seeds * settings.steps, shown=not as_json) as advance:
        found = train_each(
            table,
            np.arange(size),
            seed=seed,
            seeds=seeds,
            settings=settings,
            passes=engine,
            show_task=show_task,
            advance=advance,
            folder=out,
            resume=resume,
        )
    best = best_of(found)
    version = publish_trained(out, best, settings=settings)
    discard(out, found)
    held = int(size * settings.validation) or size
    if as_json:
        said = {"version": version, "seed": best.seed, "queries": size, "validation": held}
        print(json.dumps({**said, "seeds": [asdict(_told(one)) for one in found]}, indent=2, allow_nan=False))
    else:
        _show(found, best, version, out, held)


def _told(trained: Trained) -> _Seed:
    return _Seed(trained.seed, trained.score, trained.trust, trained.curve)


def _show(found: Sequence[Trained], best: Trained, version: int, out: Path, held: int) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table as Grid

    console = Console(highlight=False, soft_wrap=True)
    for one in found:
        kept = f", version {version} of {out}" if one is best else ""
        console.print(f"seed {one.seed}: score {one.score:.4f}, trust in the learned Fusion {one.trust:g}{kept}")
    grid = Grid(box=SIMPLE, title=f"seed {best.seed} on the last {held} queries, before it learned from them")
    for column in ("price of money", "accuracy", "cost ratio", "calls"):
        grid.add_column(column, justify="right")
    for point in best.curve:
        figures = (f"{point.accuracy:.4f}", f"{point.cost_ratio:.3f}", f"{point.calls:.2f}")
        grid.add_row(f"{point.price_of_money:g}", *figures)
    console.print(grid)
