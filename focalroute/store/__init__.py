"""Where answers, feedback, capabilities and the ledger are kept: `Store` is the narrow face, SQLite the default."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from focalroute.store.base import Store

__all__ = ["Store", "open_store"]


def open_store(where: str | Path | None, *, durability: Literal["normal", "full"] = "normal") -> Store:
    """The store at a path, or in memory.

    Raises:
        StoreError: it cannot be opened.
    """
    from focalroute.store.sqlite import SqliteStore

    return SqliteStore(where, durability=durability)
