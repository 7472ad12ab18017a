"""Reads TOML that a stranger may have written: pool files, files of keys."""

from __future__ import annotations

import errno
import tomllib
from pathlib import Path
from typing import Any

from focalroute.core.files import read_regular

MAX_BYTES = 2**20
MAX_DOTS = 200  # of a line: tomllib takes time and memory by the square of the parts of a key


def read_file(path: Path) -> bytes:
    """A file, as far as `read_toml` needs it; OSError if it cannot be read, or is not a regular file."""
    data = read_regular(path, MAX_BYTES + 1)
    if data is None:
        raise OSError(errno.EINVAL, "not a regular file")
    return data


def read_toml(data: bytes) -> dict[str, Any]:
    """The tables of a file; ValueError, which may quote it, if it is not TOML or passes a bound."""
    if len(data) > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES} bytes")
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.count(b".") > MAX_DOTS:
            raise ValueError(f"more than {MAX_DOTS} dots (at line {number}, column 1)")
    try:
        return tomllib.loads(data.decode("utf-8-sig"))  # some editors begin a file with a mark
    except RecursionError:
        raise ValueError("it is nested too deep") from None
