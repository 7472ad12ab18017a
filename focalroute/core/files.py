"""Reads files that a stranger may have put in place of the expected ones."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def read_regular(path: str | Path, most: int, flags: int = 0) -> bytes | None:
    """The first ``most`` bytes of a regular file; None if it is something else. Opening a pipe does not wait.

    Args:
        flags: of `os.open`, besides.

    Raises:
        OSError: it cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(most)
    finally:
        os.close(descriptor)
