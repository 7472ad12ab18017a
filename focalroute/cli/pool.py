"""``focalroute pool``: commands that look after a pool file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from focalroute.cli import JsonOption, PoolOption

pools = typer.Typer(no_args_is_help=True, help="Check a pool file, measure its endpoints, update its prices.")

_Pool = Annotated[Path | None, typer.Argument(metavar="POOL", hidden=True)]  # the same as --pool


@pools.command()
def check(
    path: _Pool = None,
    pool: PoolOption = None,
    store: Annotated[
        str | None,
        typer.Option(help="SQLite file, or redis:// address, with earlier measurements; default: the pool file's."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check that a pool can be asked, without asking it: addresses, keys, models and prices, each with a remedy.

    This is free: it only fetches each service's list of models. Exit code 1 if an endpoint cannot be asked, or its
    service does not list its model; what a service does not state counts as unknown, not as a failure.
    """
    from focalroute.cli.pool_check import check_command

    if not check_command(_found(path, pool), store, as_json=as_json):
        raise typer.Exit(1)


@pools.command()
def measure(
    path: _Pool = None,
    pool: PoolOption = None,
    store: Annotated[
        str | None,
        typer.Option(help="SQLite file, or redis:// address, to keep the measurements; default: the pool file's."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Ask every endpoint tiny questions, to measure its latency, its capabilities and what that cost.

    Three to eight calls of at most 48 tokens each. Exit code 1 if an endpoint did not answer.
    """
    from focalroute.cli.pool_check import measure_command

    if not measure_command(_found(path, pool), store, as_json=as_json):
        raise typer.Exit(1)


@pools.command()
def prices(
    path: _Pool = None,
    pool: PoolOption = None,
    write: Annotated[
        bool, typer.Option("--write", help="Put the listed prices, their date and source into the file.")
    ] = False,
    library: Annotated[
        bool, typer.Option("--library", help="Take all prices from genai-prices (extra prices); fetch nothing.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Compare the pool's prices with the listings of Together, DeepInfra and OpenRouter, or with a price library.

    Services without such a listing are looked up in genai-prices, if installed. API keys are read from the environment,
    as for asking. Exit code 1 if a listing could not be fetched.
    """
    from focalroute.core.pool import load_pool
    from focalroute.money.prices import listed_prices, show_prices, write_prices

    pool = _found(path, pool)
    listed = listed_prices(load_pool(pool).endpoints, library=library)
    if write:
        write_prices(pool, listed)
    typer.echo(show_prices(listed, as_json=as_json))
    if any(one.state == "failed" for one in listed):
        raise typer.Exit(1)


def _found(path: Path | None, pool: Path | None) -> Path:
    """Return the pool file, given either way or not at all."""
    from focalroute.core.pool import find_pool

    if path is not None and pool is not None:
        raise typer.BadParameter(f"is given twice, as {path} and {pool}", param_hint="--pool")
    return path or pool or find_pool()
