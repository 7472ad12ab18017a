"""The database's schema as a list of migrations that only ever grows: a fresh and an old file take one path."""

from __future__ import annotations

__all__ = ["MIGRATIONS", "TABLES"]

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
)
