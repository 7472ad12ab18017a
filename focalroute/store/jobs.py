"""What waits in the queue of the store's thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from focalroute.store.accounts import Books
from focalroute.store.base import Row

if TYPE_CHECKING:
    import sqlite3

__all__ = ["Read", "Write"]


@dataclass(frozen=True, slots=True)
class Write:
    """Work for a transaction that writes; ``rows`` of it can be read before it is done."""

    rows: tuple[Row, ...]
    work: Callable[[sqlite3.Connection, Books], Any]
    future: Future[Any]


@dataclass(frozen=True, slots=True)
class Read:
    """Work for a transaction that only reads."""

    work: Callable[[sqlite3.Connection], Any]
    future: Future[Any]
