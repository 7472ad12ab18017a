"""The command line: commands by topic, and the options that they share.

Each command is declared beside the code that does its work. Heavy modules are imported when a command runs, so that
help and completion are quick.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

PoolOption = Annotated[
    Path | None,
    typer.Option(help="The pool file (TOML) that lists the endpoints; default: FOCALROUTE_POOL, or ./pool.toml."),
]
PolicyOption = Annotated[
    str | None, typer.Option(help="Folder of policy bundles, or a name such as plurality or cascade.")
]
StoreOption = Annotated[
    str | None, typer.Option(help="Where answers are kept and learned from: a SQLite file or a redis:// address.")
]
SystemOption = Annotated[str | None, typer.Option(help="The system message.")]
ParamOption = Annotated[
    list[str] | None,
    typer.Option(help="NAME=VALUE, passed on to the endpoints, such as temperature=0; may be repeated."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
SkipBadRowsOption = Annotated[
    bool, typer.Option("--skip-bad-rows", help="Skip and count invalid rows instead of stopping.")
]
EngineOption = Annotated[
    str, typer.Option(help="Where to run: local (this process), ray (this machine's cores) or ray://HOST:PORT.")
]


def named_folder(text: str) -> Path:
    """Parse the name of a folder to publish to; an empty one (an unset variable) would be the current folder."""
    if not text:
        raise typer.BadParameter("is empty; give a folder of policy bundles, or the name of a new one")
    return Path(text)


def printable(text: str, *, keep: str = "") -> str:
    """Replace characters that are not printable, and so may control the terminal, except those to keep."""
    return "".join(c if c.isprintable() or c in keep else "\N{REPLACEMENT CHARACTER}" for c in text)


def given(**settings: Any) -> dict[str, Any]:
    """Return only the settings that were given; the others come from the pool file."""
    return {name: value for name, value in settings.items() if value is not None}


def was_given(context: typer.Context, parameter: str) -> bool:
    """Whether a parameter was given on the command line."""
    source = context.get_parameter_source(parameter)
    return source is not None and source.name == "COMMANDLINE"


@contextlib.contextmanager
def resumable() -> Iterator[None]:
    """Tell the user, if the work within is interrupted, that --resume continues it."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("stopped; the same command with --resume continues", err=True)
        raise
