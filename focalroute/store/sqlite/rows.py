"""The SQL that writes rows and prunes old ones, on a connection that `focalroute.store.sqlite.store` owns."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from focalroute.core.records import Feedback
from focalroute.store.accounts import to_pico
from focalroute.store.base import CapabilityRow, HealthRow, LedgerRow, Row, StoredAnswer, StoredProbe
from focalroute.store.codec import pack, write_answer, write_probe, write_tags
from focalroute.store.engine import duplicate_answer, feedback_conflict, unknown_answer

if TYPE_CHECKING:
    import sqlite3


_LEDGER_ROWS_AN_ANSWER = 8  # kept for each answer that is kept


def insert(db: sqlite3.Connection, row: Row) -> None:
    """Insert a row.

    Raises:
        UnknownAnswer: feedback for an answer that is not there.
        FeedbackConflict: the answer has a different feedback from this source.
        StoreError: an answer with this id is there already.
    """
    if isinstance(row, StoredAnswer):
        _insert_answer(db, row)
    elif isinstance(row, Feedback):
        _insert_feedback(db, row)
    elif isinstance(row, LedgerRow):
        _insert_ledger_row(db, row)
    elif isinstance(row, StoredProbe):
        insert = "INSERT INTO probes (answer_id, endpoint, record) VALUES (?, ?, ?)"
        db.execute(insert, (row.answer_id, row.endpoint, write_probe(row)))
    elif isinstance(row, CapabilityRow):
        db.execute(
            "INSERT INTO capabilities (key, probed_at, capability_values) VALUES (?, ?, ?) ON CONFLICT (key) DO UPDATE "
            "SET probed_at = excluded.probed_at, capability_values = excluded.capability_values "
            "WHERE excluded.probed_at >= probed_at",
            (row.key, row.probed_at, json.dumps(dict(row.values))),
        )
    elif isinstance(row, HealthRow):
        db.execute(
            "INSERT INTO health (key, open_until, ejections, changed_at) VALUES (?, ?, ?, ?) ON CONFLICT (key) DO "
            "UPDATE SET open_until = excluded.open_until, ejections = excluded.ejections, "
            "changed_at = excluded.changed_at WHERE excluded.changed_at >= changed_at",
            (row.key, row.open_until, row.ejections, row.changed_at),
        )


def _insert_answer(db: sqlite3.Connection, row: StoredAnswer) -> None:
    blob = None if row.trajectory is None else pack(row.trajectory)
    inserted = db.execute(
        "INSERT INTO answers (id, created_at, record, trajectory, receipt, texts) VALUES (?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (id) DO NOTHING",
        (row.id, row.created_at, write_answer(row), blob, row.receipt, row.texts),
    )
    if not inserted.rowcount:
        raise duplicate_answer(row.id)


def _insert_feedback(db: sqlite3.Connection, row: Feedback) -> None:
    """Insert it in one statement, if it is the first from its source: the reference tells whether the answer exists."""
    try:
        inserted = db.execute(
            "INSERT INTO feedback (answer_id, source, reward, label, created_at) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT (answer_id, source) DO NOTHING",
            (row.answer_id, row.source, row.reward, row.label, row.created_at),
        )
    except db.IntegrityError:
        if db.execute("SELECT 1 FROM answers WHERE id = ?", (row.answer_id,)).fetchone() is not None:
            raise
        raise unknown_answer(row.answer_id) from None
    if inserted.rowcount:
        return
    query = "SELECT reward, label FROM feedback WHERE answer_id = ? AND source = ?"
    if db.execute(query, (row.answer_id, row.source)).fetchone() != (row.reward, row.label):
        raise feedback_conflict(row.answer_id, row.source)


def _insert_ledger_row(db: sqlite3.Connection, row: LedgerRow) -> None:
    usage = row.usage
    used: tuple[int | None, ...] = (None,) * 5
    if usage is not None:
        tokens = (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, usage.reasoning_tokens)
        used = (*tokens, to_pico(usage.cost_usd))
    db.execute(
        "INSERT INTO ledger (answer_id, endpoint, at, prompt_tokens, completion_tokens, cached_tokens, "
        "reasoning_tokens, provider_pico, cost_pico, cost_source, tags) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (row.answer_id, row.endpoint, row.at, *used, to_pico(row.cost), row.cost_source, write_tags(row.tags)),
    )


def prune(db: sqlite3.Connection, keep: int) -> None:
    """Drop answers beyond the latest ``keep``, with their feedback; old ledger rows go into the sums."""
    db.execute("DELETE FROM answers WHERE seq <= (SELECT max(seq) - ? FROM answers)", (keep,))
    last = db.execute("SELECT max(seq) - ? FROM ledger", (_LEDGER_ROWS_AN_ANSWER * keep,)).fetchone()
    db.execute(
        "INSERT INTO ledger_sums SELECT endpoint, count(*), sum(cost_pico IS NULL), coalesce(sum(prompt_tokens), 0), "
        "coalesce(sum(completion_tokens), 0), coalesce(sum(cost_pico / 1000000), 0), "
        "coalesce(sum(cost_pico % 1000000), 0) FROM ledger WHERE seq <= ? GROUP BY endpoint "
        "ON CONFLICT (endpoint) DO UPDATE SET calls = calls + excluded.calls, unpriced = unpriced + excluded.unpriced, "
        "prompt_tokens = prompt_tokens + excluded.prompt_tokens, "
        "completion_tokens = completion_tokens + excluded.completion_tokens, "
        "micro = micro + excluded.micro, pico = pico + excluded.pico",
        last,
    )
    db.execute("DELETE FROM ledger WHERE seq <= ?", last)
