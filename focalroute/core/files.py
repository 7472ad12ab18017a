"""Reads files that a stranger may have written or swapped, and locks files while they are written."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import stat
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Literal

from focalroute.core.errors import ConfigError

#: Largest TOML file.
MAX_BYTES = 2**20
MAX_DOTS = 200  # in a line: tomllib's time and memory grow with the square of the parts of a key


def read_regular(path: str | Path, most: int, flags: int = 0) -> bytes | None:
    """Return the first ``most`` bytes of a regular file; None if it is something else. Opening a pipe does not block.

    Args:
        flags: more flags for `os.open`.

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


def read_file(path: Path) -> bytes:
    """Return a file's bytes, as far as `read_toml` needs them; OSError if it is unreadable or not a regular file."""
    data = read_regular(path, MAX_BYTES + 1)
    if data is None:
        raise OSError(errno.EINVAL, "not a regular file")
    return data


def read_toml(data: bytes) -> dict[str, Any]:
    """Parse TOML; ValueError, which may quote the data, if it is not TOML or exceeds a limit."""
    if len(data) > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES} bytes")
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.count(b".") > MAX_DOTS:
            raise ValueError(f"more than {MAX_DOTS} dots (at line {number}, column 1)")
    try:
        text = data.decode("utf-8-sig")  # some editors begin a file with a byte-order mark
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8; save it as that") from None
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the file's name to an OSError raised while it is written."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


@contextlib.contextmanager
def refusing(path: Path, action: Literal["read", "written"]) -> Iterator[None]:
    """Turn an OSError in reading or writing this file into a `ConfigError` that names it."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{path}: cannot be {action}: {error.strerror or error}") from None


def replace_whole(path: Path, content: bytes) -> None:
    """Replace a file atomically: if writing fails, the old content stays. Keeps the file's mode and symbolic link.

    Raises:
        OSError: it cannot be written.
    """
    path = path.resolve()
    with tempfile.TemporaryDirectory(dir=path.parent) as beside, (Path(beside) / path.name).open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        if path.exists():
            Path(file.name).chmod(path.stat().st_mode)
        Path(file.name).replace(path)


def hold_file(file: IO[bytes], path: Path) -> None:
    """Lock an open file against other processes that call this function; ``path`` is its name.

    Raises:
        ConfigError: another process holds it.
        OSError: it cannot be locked.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(f"{path}: another process is writing it; wait until it ends, or give another name") from None


def most_files() -> int | None:
    """Return how many files, connections included, this process may have open; None: unlimited."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def raise_limit(files: int) -> None:
    """Raise the limit on open files to ``files``, as far as the system allows; a higher limit stays."""
    soft = most_files()
    if soft is None or soft >= files:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files if hard == resource.RLIM_INFINITY else min(files, hard), hard))
