"""Writes the output files of commands."""

from __future__ import annotations

import sys
from pathlib import Path

from focalroute.core.errors import ConfigError

#: What stands for standard output where a file is asked for.
STANDARD_OUTPUT = Path("-")


def check_writable(file: Path | None) -> None:
    """Before the long work, as far as that can be known.

    Raises:
        ConfigError: it is a folder, or in one that does not exist.
    """
    if file not in (None, STANDARD_OUTPUT) and (file.is_dir() or not file.parent.is_dir()):
        raise ConfigError(f"{file}: cannot be written: give a file in a folder that exists")


def write_file(file: Path, content: str | bytes) -> None:
    """Write a file, or text to standard output.

    Raises:
        ConfigError: it cannot be written.
    """
    if isinstance(content, str) and file == STANDARD_OUTPUT:
        sys.stdout.write(content)
        return
    try:
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written: {error.strerror}") from None
