"""``focalroute eval --live``: what the command line calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from focalroute.core.config import Endpoint
from focalroute.core.errors import ConfigError
from focalroute.core.pool import load_pool
from focalroute.core.progress import progress_bar
from focalroute.evaluate.files import STANDARD_OUTPUT, check_writable, write_file
from focalroute.evaluate.live.asking import in_process, over_http
from focalroute.evaluate.live.playing import LiveResult, joined
from focalroute.evaluate.live.queries import LiveQuery, Quality, read_queries
from focalroute.evaluate.live.report import LiveReport, live_report, show_live
from focalroute.evaluate.live.strategies import Plan, play_all
from focalroute.sim import SimulatedModel, SimulatedPool, relay_models

#: What ``--live`` calls the built-in simulated pool.
SIMULATED = "sim"


def live_command(
    pool: str,
    queries: Path | None,
    *,
    answer: str | None = None,
    quality: str | None = None,
    train_fraction: float = 0.8,
    seed: int = 0,
    seeds: int = 1,
    max_rounds: int = 3,
    out: Path | None = None,
    json_file: Path | None = None,
) -> None:
    """Evaluate with a progress bar, print the tables, write the JSON.

    Raises:
        ConfigError: an argument, the queries or the pool is wrong, or a file cannot be written.
    """
    if queries is None:
        raise ConfigError("--queries: give the file of queries that --live is to ask")
    check_writable(json_file)
    metric = None if quality is None else _metric(quality)
    asked = read_queries(queries, answer=answer, quality=metric)
    plan = Plan(most=max_rounds, keep=out)
    title = f"{queries} on {pool}"
    models = relay_models(seed) if pool == SIMULATED else None
    with progress_bar("playing", _length(asked, train_fraction, plan, models, pool) * seeds, shown=True) as advance:
        report = evaluate_live(
            pool,
            asked,
            title=title,
            plan=plan,
            train_fraction=train_fraction,
            seed=seed,
            seeds=seeds,
            scored=quality or "accuracy",
            advance=advance,
        )
    if json_file != STANDARD_OUTPUT:
        show_live(report)
    if json_file is not None:
        write_file(json_file, json.dumps(report.to_dict(), indent=2, allow_nan=False) + "\n")


def evaluate_live(
    pool: str | Path,
    queries: Sequence[LiveQuery],
    *,
    title: str,
    plan: Plan,
    train_fraction: float = 0.8,
    seed: int = 0,
    seeds: int = 1,
    scored: str = "accuracy",
    advance: Callable[[int], object] = lambda _: None,
) -> LiveReport:
    """Train DER on the first part of the queries, play every strategy on the rest; once with each seed.

    Args:
        pool: a pool file, or `SIMULATED`: then every seed has models of its own.

    Raises:
        ConfigError: one of the parts would be empty, or the pool is wrong.
    """
    at = int(len(queries) * train_fraction + 1e-9)
    if not 0 < at < len(queries):
        raise ConfigError(
            f"train_fraction: {train_fraction} leaves {at} queries to train on and {len(queries) - at} to test"
        )
    train, test = queries[:at], queries[at:]
    parts: list[dict[str, LiveResult]] = []
    for number in range(seed, seed + seeds):
        with ExitStack() as stack:
            if str(pool) == SIMULATED:
                running = stack.enter_context(SimulatedPool(relay_models(number)))
                endpoints: Sequence[Endpoint] = running.endpoints
                ask = in_process(running.models, endpoints, train)
            else:
                endpoints = load_pool(pool).endpoints
                ask = stack.enter_context(over_http(endpoints, train))
            parts.append(play_all(endpoints, train, test, ask, plan=plan, seed=number, advance=advance))
    played = {name: joined([part[name] for part in parts]) for name in parts[0]}
    return live_report(title, played, seeds=seeds, scored=scored)


def _metric(name: str) -> Quality:
    from focalroute.evaluate.quality import metric

    return metric(name)


def _length(
    queries: Sequence[LiveQuery], fraction: float, plan: Plan, models: Sequence[SimulatedModel] | None, pool: str
) -> int:
    """Queries that one seed plays: each chain of a single endpoint, and the other strategies."""
    endpoints = len(load_pool(pool).endpoints if models is None else models)
    return (len(queries) - int(len(queries) * fraction)) * (endpoints + 3 + len(plan.alphas))
