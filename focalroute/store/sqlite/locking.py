"""Beginning and giving up a transaction where several processes write."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3


_BUSY = 5  # SQLITE_BUSY
_LONGEST_WAIT_S = 0.004


def begin_writing(db: sqlite3.Connection, patience_s: float) -> None:
    """Begin a transaction that writes, as soon as no other process does.

    SQLite's own way to wait, which is switched off here, sleeps up to 100 ms at a time. Under many short transactions
    of others that is unfair: it may miss every gap between them for seconds.

    Args:
        patience_s: how long to try; 0: once.

    Raises:
        sqlite3.OperationalError: another process has kept the database locked for so long, or it fails.
    """
    give_up = time.monotonic() + patience_s
    while True:
        try:
            db.execute("BEGIN IMMEDIATE")
            return
        except db.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != _BUSY or time.monotonic() >= give_up:
                raise
        time.sleep(random.uniform(0, _LONGEST_WAIT_S))  # noqa: S311 - no secret


@contextlib.contextmanager
def patient(db: sqlite3.Connection, patience_s: float) -> Iterator[None]:
    """Meanwhile SQLite waits so long for a lock, as reading may have to while a file is recovered."""
    db.execute(f"PRAGMA busy_timeout = {int(1000 * patience_s)}")
    try:
        yield
    finally:
        db.execute("PRAGMA busy_timeout = 0")


def roll_back(db: sqlite3.Connection) -> None:
    """Whatever went wrong, leave no transaction open; SQLite may have ended it by itself."""
    with contextlib.suppress(db.Error):
        if db.in_transaction:
            db.execute("ROLLBACK")
