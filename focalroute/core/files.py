"""Reads files that a stranger may have put in place of the expected ones, and holds those that are written."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from focalroute.core.errors import ConfigError


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


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Have what goes wrong in writing this file say which it is."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def hold_file(file: IO[bytes], path: Path) -> None:
    """Keep other processes that hold it from writing a file while it is open here; ``path`` is its name.

    Raises:
        ConfigError: another process holds it.
        OSError: it cannot be locked.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(f"{path}: another process is writing it; wait for its end, or give another name") from None
