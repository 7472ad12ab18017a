"""``focalroute serve`` and ``focalroute key``."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from focalroute.cli import JsonOption, PolicyOption, PoolOption, given
from focalroute.core.errors import ConfigError, needing
from focalroute.core.files import raise_limit
from focalroute.core.services import is_loopback

if TYPE_CHECKING:
    from focalroute.server import Callers
    from focalroute.server.connections import BoundedServer

_BACKLOG = 2048
_FILES = 4096  # open files needed for the maximum of connections


def serve(
    pool: PoolOption = None,
    policy: PolicyOption = None,
    store: Annotated[
        str | None,
        typer.Option(
            help="Where answers are kept and learned from: a SQLite file or a redis:// address; servers may share one."
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; keys are needed if other machines can reach it.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: any free one.")] = 8000,
    keys: Annotated[
        Path | None, typer.Option(help="File of callers' keys (TOML); default: the one key in FOCALROUTE_KEY.")
    ] = None,
    shutdown_s: Annotated[
        int, typer.Option(min=1, help="How long asks under way may take to finish on shutdown, seconds.")
    ] = 60,
    telemetry: Annotated[
        bool, typer.Option("--telemetry", help="Send OpenTelemetry by OTLP/HTTP; OTEL_* variables say where to.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the server's address as JSON once it listens.")
    ] = False,
) -> None:
    """Serve a pool as one OpenAI-compatible model, focalroute, until Ctrl-C or SIGTERM (extra server)."""
    from focalroute.core.pool import find_pool, load_pool
    from focalroute.server.callers import KEY_VARIABLE, Callers
    from focalroute.serving.telemetry import exporting

    pool = pool or find_pool()
    callers = Callers.from_environment() if keys is None else Callers.from_toml(keys)
    if callers is None and not is_loopback(host):
        raise ConfigError(
            f"host: {host} can be reached by others, who could spend your money: give --keys, set {KEY_VARIABLE}, or "
            "leave --host out"
        )
    settings: dict[str, Any] = given(policy=policy, store=store)
    if callers is not None:
        settings["budget"] = callers.within(load_pool(pool).budget)
    with contextlib.ExitStack() as stack:
        if telemetry:
            settings["telemetry"] = stack.enter_context(exporting())
        asyncio.run(_serve(pool, settings, callers, (host, port), shutdown_s, as_json))


async def _serve(
    pool: Path,
    settings: dict[str, Any],
    callers: Callers | None,
    address: tuple[str, int],
    shutdown_s: int,
    as_json: bool,
) -> None:
    """Serve an ensemble until a signal ends it, then close it."""
    from focalroute.server import NEEDED, create_app
    from focalroute.serving.ensemble import AsyncEnsemble

    with needing(*NEEDED):
        from focalroute.server.connections import BoundedServer, server_config
    raise_limit(_FILES)
    async with AsyncEnsemble.from_toml(pool, **settings) as ensemble:
        app = create_app(ensemble, callers=callers, local_only=callers is None)
        with _listening(*address) as sock:
            server = BoundedServer(server_config(app, shutdown_s))
            _handle_signals(server)
            _greet(len(ensemble.endpoints), sock, callers, as_json)
            await server.serve(sockets=[sock])


def _handle_signals(server: BoundedServer) -> None:
    """Shut down gracefully on SIGINT, SIGTERM and SIGHUP, unless SIGHUP is ignored; a second SIGINT does not wait.

    Uvicorn's own handler would raise the signals again before the ensemble is closed.
    """
    logging.getLogger("uvicorn.error").addFilter(_is_not_cancellation)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP
            loop.add_signal_handler(number, server.handle_exit, number, None)


def _is_not_cancellation(record: logging.LogRecord) -> bool:
    """Filter out tracebacks of asks that the shutdown has cancelled."""
    return record.exc_info is None or not isinstance(record.exc_info[1], asyncio.CancelledError)


def _greet(endpoints: int, sock: socket.socket, callers: Callers | None, as_json: bool) -> None:
    """Print the address that the server listens on."""
    host, port = sock.getsockname()[:2]
    host = f"[{host}]" if ":" in host else host
    url, keys = f"http://{host}:{port}/v1", None if callers is None else len(tuple(callers))
    if as_json:
        print(json.dumps({"url": url, "endpoints": endpoints, "keys": keys}), flush=True)
        return
    who = "anyone on this machine" if keys is None else f"{keys} key(s)"
    with contextlib.suppress(OSError):  # such as a full disk or a closed pipe, which should not stop a server
        print(f"{endpoints} endpoints as the model focalroute on {url} for {who}", file=sys.stderr, flush=True)


def _listening(host: str, port: int) -> socket.socket:
    """Open a socket that listens on this address.

    Raises:
        ConfigError: it cannot listen there.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no host has such a name"
        raise ConfigError(f"host, port: cannot listen on {host}:{port}: {reason}; give others") from None


def key(
    name: Annotated[str, typer.Argument(help="The caller's name, for the ledger.")], as_json: JsonOption = False
) -> None:
    """Make a caller's key: print its table for serve --keys to standard output, and the key once to standard error.

    For example: focalroute key alice >> keys.toml
    """
    from focalroute.server.callers import new_key

    made, table = new_key(name)
    if as_json:
        print(json.dumps({"key": made, "table": table}))
        return
    print(table)
    print(f"the key, which is not kept anywhere: {made}", file=sys.stderr)
