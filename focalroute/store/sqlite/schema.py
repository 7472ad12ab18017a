"""The database's schema as a list of migrations that only ever grows: a fresh and an old file take one path."""

from __future__ import annotations

from typing import TYPE_CHECKING

from focalroute.core.errors import StoreError

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path


#: By these a database of ours is known, whatever its version.
TABLES = frozenset({"answers", "ledger_sums"})

# Statements are split at semicolons: none may stand in a comment or a literal.

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE answers (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        created_at REAL NOT NULL,
        record TEXT NOT NULL,      -- keys, kind, answered, probabilities, members as JSON
        trajectory BLOB,           -- see codec.py, NULL where no policy decided
        receipt TEXT NOT NULL,
        texts TEXT
    );
    CREATE TABLE feedback (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        answer_id TEXT NOT NULL REFERENCES answers (id) ON DELETE CASCADE,
        source TEXT NOT NULL,
        reward REAL NOT NULL,
        label TEXT,
        created_at REAL NOT NULL,
        UNIQUE (answer_id, source)
    );
    CREATE TABLE capabilities (
        key TEXT PRIMARY KEY,
        probed_at REAL NOT NULL,
        capability_values TEXT NOT NULL
    );
    CREATE TABLE ledger (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        answer_id TEXT NOT NULL,   -- of no answer, for a probe or an ask that failed
        endpoint TEXT NOT NULL,
        at REAL NOT NULL,
        prompt_tokens INTEGER,     -- all five NULL where no usage came back
        completion_tokens INTEGER,
        cached_tokens INTEGER,
        reasoning_tokens INTEGER,
        provider_pico INTEGER,
        cost_pico INTEGER,         -- 1e-12 USD, NULL where unknown
        cost_source TEXT NOT NULL,
        tags TEXT NOT NULL
    );
    CREATE TABLE ledger_sums (     -- what pruned ledger rows added up to
        endpoint TEXT PRIMARY KEY,
        calls INTEGER NOT NULL,
        unpriced INTEGER NOT NULL,
        prompt_tokens INTEGER NOT NULL,
        completion_tokens INTEGER NOT NULL,
        micro INTEGER NOT NULL,    -- costs summed as whole 1e-6 USD
        pico INTEGER NOT NULL      -- and what was left of each, in 1e-12 USD
    );
    """,
    """
    CREATE TABLE probes (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        answer_id TEXT NOT NULL REFERENCES answers (id) ON DELETE CASCADE,
        endpoint TEXT NOT NULL,
        record TEXT NOT NULL,      -- endpoint, key, completion_tokens, latency_s, usd as JSON
        UNIQUE (answer_id, endpoint)
    );
    """,
    """
    CREATE TABLE reservations (    -- calls under way, or of a process that died
        id TEXT PRIMARY KEY,
        answer_id TEXT NOT NULL,
        endpoint TEXT NOT NULL,
        at REAL NOT NULL,
        pico INTEGER NOT NULL,
        tags TEXT NOT NULL
    );
    CREATE TABLE balances (        -- what every limit is held against, see accounts.py
        tag TEXT NOT NULL,         -- '' for all calls
        period_s INTEGER NOT NULL, -- 0 for ever
        period INTEGER NOT NULL,   -- the number of the period that the amounts are of
        spent TEXT NOT NULL,       -- whole 1e-12 USD as text, as they may pass 64 bits
        reserved TEXT NOT NULL,
        PRIMARY KEY (tag, period_s)
    );
    CREATE INDEX ledger_at ON ledger (at);
    """,
    """
    ALTER TABLE reservations ADD COLUMN until REAL;  -- then its process is dead, NULL: not known
    ALTER TABLE ledger ADD COLUMN overdue TEXT;      -- the reservation that this row estimates
    CREATE INDEX ledger_overdue ON ledger (overdue) WHERE overdue IS NOT NULL;
    """,
    """
    -- of endpoints whose breaker ever changed, open_until NULL where it is closed. Without an index of its own, so that
    -- the schema keeps to one page, and a file with any other page damaged can still be opened
    CREATE TABLE health (key TEXT PRIMARY KEY, open_until REAL, ejections INTEGER, changed_at REAL) WITHOUT ROWID
    """,
)


def check_path(path: Path) -> None:
    """Raise StoreError where no file can be."""
    if "\0" in str(path):
        raise StoreError(f"{str(path)!r}: is no path; remove the NUL character")
    if not path.parent.is_dir():
        raise StoreError(f"{path}: its folder does not exist; make it first")
    if path.is_dir():
        raise StoreError(f"{path}: is a folder; name a file in it")


def check_ours(db: sqlite3.Connection, name: str) -> None:
    """Raise StoreError for a database of something else."""
    names = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if names and not names >= TABLES:
        raise StoreError(f"{name}: is a database of something else; name another file")


def migrate(db: sqlite3.Connection, name: str) -> None:
    """Bring the schema up to date, inside the caller's transaction; StoreError if it is newer than this version."""
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version > len(MIGRATIONS):
        raise StoreError(f"{name}: was written by a newer focalroute (schema {version}); upgrade focalroute")
    for migration in MIGRATIONS[version:]:
        for statement in filter(str.strip, migration.split(";")):
            db.execute(statement)
    if version < len(MIGRATIONS):
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
