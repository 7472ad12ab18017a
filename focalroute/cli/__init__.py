"""The command line: commands by topic, and the options that they share.

Each command is declared beside the code that does its work. What is heavy is imported when a command runs, so that
help and completion are quick.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

PoolOption = Annotated[Path, typer.Option(help="The pool file (TOML) that lists the endpoints.")]
PolicyOption = Annotated[
    str | None, typer.Option(help="Folder of policy bundles, or a name such as plurality or cascade.")
]
StoreOption = Annotated[str | None, typer.Option(help="SQLite file, or redis:// address, to keep and learn in.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def given(**settings: object) -> dict[str, object]:
    """Return the settings that were given: those left out are the pool file's."""
    return {name: value for name, value in settings.items() if value is not None}
