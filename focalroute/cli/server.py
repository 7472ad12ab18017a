"""``focalroute serve`` and ``focalroute key``, as the command line sees them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def serve(
    pool: Annotated[Path, typer.Option(help="The pool file (TOML) that lists the endpoints.")],
    policy: Annotated[
        str | None, typer.Option(help="Folder of policy bundles, or a name such as plurality or cascade.")
    ] = None,
    store: Annotated[
        str | None, typer.Option(help="SQLite file, or redis:// address, to keep and learn in; several servers may.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; one that others reach needs keys.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: any that is free.")] = 8000,
    keys: Annotated[
        Path | None, typer.Option(help="File of callers' keys (TOML); else the one key in FOCALROUTE_KEY.")
    ] = None,
    shutdown_s: Annotated[
        int, typer.Option(min=1, help="How long asks under way may take to finish at the end, seconds.")
    ] = 60,
    telemetry: Annotated[
        bool, typer.Option("--telemetry", help="Send OpenTelemetry by OTLP/HTTP; OTEL_* variables say where to.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print where it listens as JSON, once it does.")] = False,
) -> None:
    """Serve a pool as one OpenAI-compatible model, focalroute, until Ctrl-C or SIGTERM (extra server)."""
    from focalroute.server.command import serve_command

    settings = {name: value for name, value in (("policy", policy), ("store", store)) if value is not None}
    serve_command(
        pool, settings, address=(host, port), keys=keys, shutdown_s=shutdown_s, telemetry=telemetry, as_json=as_json
    )


def key(
    name: Annotated[str, typer.Argument(help="Whose key it is: a name for the ledger.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print key and table as JSON.")] = False,
) -> None:
    """Make a caller's key: its table for serve --keys goes to standard output, the key to standard error, once.

    As in: focalroute key alice >> keys.toml
    """
    from focalroute.server.command import key_command

    key_command(name, as_json=as_json)
