"""``focalroute train``: from an outcome log to a trained policy, as ``eval`` makes one, too."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from focalroute.core.errors import ConfigError
from focalroute.core.pool import load_pool
from focalroute.core.progress import progress_bar
from focalroute.core.records import I64
from focalroute.evaluate import output
from focalroute.evaluate.outcomes import Output, digest, read_log
from focalroute.evaluate.table import LogTable, SplitKind, join, learning_order
from focalroute.learn.backend import BackendName, open_backend
from focalroute.learn.export import decider_model, fusion_model
from focalroute.learn.mappo import Learner
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
    """A log joined with its pool; its texts' features are the embedder's, else the pool file's, else the built-in ones.

    Args:
        skip_bad_rows: whether to leave out lines that break the format, instead of refusing the log.
        shown: whether to show a progress bar.

    Raises:
        ConfigError: the log, the pool or the embedder is wrong.
        PoolError: the embedder failed.
    """
    file = load_pool(pool)
    bad_rows: list[str] | None = None
    if skip_bad_rows:
        bad_rows = []
    table = join(read_log(log, bad_rows=bad_rows), file, log)
    table = replace(table, bad_rows=len(bad_rows or ()))
    embedder = embedder or embedder_from_pool_file(file, pool)
    if embedder is not None:
        table = with_embedder(table, embedder, shown=shown)
    return table


def with_embedder(table: LogTable, embedder: TextEmbedder, *, shown: bool = False) -> LogTable:
    """The log with the features that an embedder makes of its texts, for training and for serving alike.

    Each different text is embedded once, here.

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
    """These rows of a log as training needs them; without a task where they are not shown, or one has none."""
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


def train_on(
    table: LogTable,
    rows: I64,
    *,
    seed: int = 0,
    settings: OfflineSettings | None = None,
    show_task: bool = False,
    advance: Callable[[int], object] = lambda _: None,
) -> Trained:
    """Train on these rows of a log.

    Raises:
        ConfigError: there are too few.
    """
    log, settings = recorded(table, rows, show_task=show_task), settings or OfflineSettings()
    _check_size(log, settings)
    return train(log, seed=seed, settings=settings, advance=advance)


def _check_size(log: RecordedLog, settings: OfflineSettings) -> None:
    if len(log) - int(len(log) * settings.validation) < 1:
        raise ConfigError(
            f"settings.validation: {settings.validation} of {len(log)} queries leaves none to train on; lower it"
        )


def publish_trained(
    root: str | Path, trained: Trained, *, settings: OfflineSettings, trained_on: Iterable[str] = ()
) -> int:
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
        metrics={"trust": trained.trust, "score": trained.score, "curve": [asdict(point) for point in trained.curve]},
        experience=trained.experience,
        learner=pack(Learner.fresh(trained.decider, trained.fusion, trained.critic)),
        trained_on=trained_on,
    )


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
        skip_bad_rows: see `read_table`.

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
    skip_bad_rows: bool = False

    def __post_init__(self) -> None:
        if self.settings.iterations < 1 or self.seeds < 1:
            raise ConfigError("iterations and seeds: must be at least 1")

    @property
    def settings(self) -> OfflineSettings:
        """How the networks are trained."""
        settings = OfflineSettings()
        if self.iterations is not None:
            settings = replace(settings, iterations=self.iterations)
        return settings


def train_command(
    log: Path,
    pool: Path,
    out: Path,
    options: TrainOptions | None = None,
    *,
    as_json: bool = False,
    **changes: Any,
) -> None:
    """Train on a whole log with a progress bar, publish the best of the seeds, and print how all did.

    Args:
        log: the outcome log.
        pool: its pool file.
        out: the folder of bundles.
        options: how; None: the defaults.
        as_json: print JSON.
        changes: fields of `TrainOptions` that differ from ``options``.

    Raises:
        ConfigError: an argument, the log or the pool is wrong.
        PoolError: the pool's embedder failed.
        PolicyError: the policy cannot be published.
    """
    options = replace(options or TrainOptions(), **changes)
    settings, backend = options.settings, open_backend(options.backend, options.device)
    table = read_table(log, pool, skip_bad_rows=options.skip_bad_rows, shown=not as_json)
    rows = learning_order(table, np.arange(len(table.queries)), options.split)
    data = recorded(table, rows, show_task=options.show_task)
    _check_size(data, settings)
    with progress_bar("training", options.seeds * settings.steps, shown=not as_json) as advance:
        found = [
            train(data, seed=seed, settings=settings, passes=backend, advance=advance)
            for seed in range(options.seed, options.seed + options.seeds)
        ]
    best = max(found, key=lambda one: one.score)
    version = publish_trained(out, best, settings=settings, trained_on=map(digest, table.queries))
    held = int(len(data) * settings.validation) or len(data)
    if not as_json:
        _show(table, found, best, held, f"version {version} of {out}")
        return
    said: dict[str, Any] = {"version": version, "seed": best.seed, "queries": len(data), "validation": held}
    said |= {"bad_rows": table.bad_rows, "unpriced": table.unpriced}
    seeds = [
        {"seed": one.seed, "score": one.score, "trust": one.trust, "curve": [asdict(point) for point in one.curve]}
        for one in found
    ]
    print(json.dumps({**said, "seeds": seeds}, indent=2, allow_nan=False))


def _show(table: LogTable, found: Sequence[Trained], best: Trained, held: int, published: str) -> None:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    for one in found:
        said = f"seed {one.seed}: score {one.score:.4f}, trust in the learned Fusion {one.trust:g}"
        if one is best:
            said += f", {published}"
        console.print(said)
    console.print(
        output.table(
            ("cost weight", "accuracy", "cost ratio", "calls"),
            [(f"{p.cost_weight:g}", f"{p.accuracy:.4f}", f"{p.cost_ratio:.3f}", f"{p.calls:.2f}") for p in best.curve],
            title=f"seed {best.seed} on the last {held} queries, before it learned from them",
        )
    )
    for sentence in output.left_out(table.bad_rows, table.unpriced):
        console.print(sentence)
