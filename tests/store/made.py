"""Rows for the store's tests, and a way to tamper with its database."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from focalroute.core.records import Decision, Evidence, Feedback, Member, Observation, Trajectory, Usage
from focalroute.store.base import LedgerRow, StoredAnswer
from focalroute.store.sqlite.checksums import seal
from focalroute.store.sqlite.store import SqliteStore

__all__ = ["answer", "bill", "change", "edit", "judge", "on_thread", "trajectory"]


def trajectory(n: int = 12, decisions: int = 3, k: int = 4, m: int = 4) -> Trajectory:
    """A trajectory of the given sizes, always the same."""
    rng = np.random.default_rng(0)

    def array(*shape: int) -> Any:
        return rng.standard_normal(shape, dtype=np.float32)

    steps = tuple(
        (
            Observation(array(44), array(n, 9)),
            Decision(i + 1, i == 0, tuple(range(n)), (True,) * n, (0.1 + i / 7,) * n, (i % n,), -1.25 / (i + 1)),
        )
        for i in range(decisions)
    )
    evidence = Evidence(array(k, m, 8), array(k, 4), tuple(range(m)))
    return Trajectory(3, tuple(f"endpoint-{i}" for i in range(n)), steps, evidence, 0)


def answer(answer_id: str, *, steps: Trajectory | None = None) -> StoredAnswer:
    """A small answer."""
    members = {"a": Member(1, 0, 5, 0.25, Decimal("0.0001")), "b": Member(2, 1, 7, 0.5, None)}
    return StoredAnswer(answer_id, 1.5, ("key0", "key1"), "choice", 0, (0.75, 0.25), members, steps, "{}")


def judge(answer_id: str, reward: float = 1.0, *, source: str = "user", label: str | None = None) -> Feedback:
    """A feedback."""
    return Feedback(answer_id, reward, label, source, 2.5)


def bill(endpoint: str = "a", cost: Decimal | None = Decimal("0.001"), usage: Usage | None = None) -> LedgerRow:
    """A row of the ledger."""
    return LedgerRow("x", endpoint, 3.5, usage, cost, "price", ("team",))


def on_thread(store: SqliteStore, work: Callable[[sqlite3.Connection], Any]) -> Any:
    """Run something on the store's own connection, as a read does, and commit it."""

    def commit(db: sqlite3.Connection) -> Any:
        result = work(db)
        db.execute("COMMIT")
        return result

    return store._read(commit)


def change(store: SqliteStore, table: str, changed: str) -> None:
    """Change rows of a table as the store itself would have written them, without that being found."""

    def work(db: sqlite3.Connection) -> None:
        db.execute(f"UPDATE {table} SET {changed}")
        seal(db, table)

    on_thread(store, work)


def edit(path: Path, sql: str, *values: object) -> None:
    """Change the database behind the store's back."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute(sql, values)
