"""Folders that the user of this process may not enter."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["barred", "open_folder"]

_ANOTHER = 65534  # an account without rights on every Linux


@contextlib.contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter; pytest's are for their owner only."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@contextlib.contextmanager
def barred(folder: Path) -> Iterator[None]:
    """Bar this process from a folder meanwhile. Root may enter any, so it becomes another user: import all before."""
    mode, user = folder.stat().st_mode, os.geteuid()
    folder.chmod(0)
    try:
        if user == 0:
            os.seteuid(_ANOTHER)
        yield
    finally:
        os.seteuid(user)
        folder.chmod(mode)
