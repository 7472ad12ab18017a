"""Writing files so that a crash of the process or the machine leaves the old state or the new one."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_TEMPORARY = ".tmp-"


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Hold ``root`` against every other process and thread that locks it; the lock dies with its holder."""
    with (root / ".lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def temporary(root: Path) -> Path:
    """A path in ``root`` that nobody else uses, and that whoever locks ``root`` next may remove."""
    return root / f"{_TEMPORARY}{secrets.token_hex(8)}"


def clean(root: Path) -> None:
    """Remove what publishers left that died. Only for whoever holds the lock."""
    for left in root.glob(f"{_TEMPORARY}*"):
        if left.is_dir():
            shutil.rmtree(left)
        else:
            left.unlink()


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Make the folder and write the files into it; `sync_files` makes them durable."""
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)


def replace_file(path: Path, data: bytes) -> None:
    """Write a file in one step: whoever reads it sees the old content or the new one."""
    new = temporary(path.parent)
    new.write_bytes(data)
    sync(new)
    new.replace(path)
    sync(path.parent)


def sync_files(folder: Path) -> None:
    """Make a folder durable, its files and their names."""
    for path in folder.iterdir():
        sync(path)
    sync(folder)


def sync(path: Path) -> None:
    """Make a file durable, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
