"""The SQL that reads: answers, feedback, endpoints, the ledger's sums and integrity."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

from focalroute.core.errors import StoreError
from focalroute.core.records import Feedback
from focalroute.store.accounts import from_pico
from focalroute.store.base import (
    BalanceDifference,
    CapabilityRow,
    FeedbackRows,
    Grouping,
    HealthRow,
    LedgerSum,
    StoredAnswer,
)
from focalroute.store.codec import read_answer
from focalroute.store.engine import difference_of, source_name, unless_damaged, with_totals
from focalroute.store.sqlite.checksums import Check, checks, checksum, head
from focalroute.store.sqlite.database import fresh_schema
from focalroute.store.sqlite.writes import ALL_SUMS, IS_OF_ASK, SUMMED, find_differences, is_pruned

if TYPE_CHECKING:
    import sqlite3


# Texts are read as bytes, so that one that is not UTF-8 damages only its row, and the query goes on.
_ANSWER = (
    "a.id, a.created_at, CAST(a.record AS BLOB), a.trajectory, CAST(a.receipt AS BLOB), CAST(a.texts AS BLOB), "
    "(SELECT CAST('[' || group_concat(p.record) || ']' AS BLOB) FROM probes p WHERE p.answer_id = a.id) "
)
_ANSWERS = "SELECT " + _ANSWER + "FROM answers a "
_FEEDBACK = (
    "SELECT f.answer_id, f.reward, f.label, f.source, f.created_at, f.seq, "
    + _ANSWER
    + "FROM feedback f JOIN answers a ON a.id = f.answer_id "
)
_AT_ONCE = 50  # answers

_Position = tuple[int, int]  # the numbers of the newest feedback and of the newest probe
_Rows = tuple[list[Any], dict[str, list[Feedback]]]  # rows of answers, and their feedback by answer id


# -- answers -------------------------------------------------------------------------------------------------------


def find_answer(db: sqlite3.Connection, answer_id: str) -> StoredAnswer | None:
    """See `EngineReads`."""
    row = db.execute(_ANSWERS + "WHERE a.id = ?", (answer_id,)).fetchone()
    return None if row is None else read_answer(row[:6], row[6])


def latest_answers(
    read: Callable[[Callable[[sqlite3.Connection], _Rows]], _Rows], limit: int
) -> list[tuple[StoredAnswer, tuple[Feedback, ...]]]:
    """See `Store.recent`.

    Reads in parts, so that other jobs use the connection in between, and decodes in the calling thread.

    Args:
        read: runs a function with the connection on the store's thread.
    """
    parts: list[_Rows] = []
    left, before = limit, sys.maxsize
    while left > 0:
        part = read(partial(_answers_before, before=before, limit=min(left, _AT_ONCE)))
        if not part[0]:
            break
        parts.append(part)
        left, before = left - len(part[0]), part[0][-1][0]
    return [
        (answer, tuple(feedback.get(answer.id, ())))
        for rows, feedback in reversed(parts)
        for row in reversed(rows)
        for answer in _decoded(row[1:])
    ]


def _answers_before(db: sqlite3.Connection, *, before: int, limit: int) -> _Rows:
    """The rows of the latest answers before this number, each beginning with its number; and their feedback."""
    latest = "SELECT a.seq, " + _ANSWER + "FROM answers a WHERE a.seq < ? ORDER BY a.seq DESC LIMIT ?"
    rows = db.execute(latest, (before, limit)).fetchall()
    feedback: dict[str, list[Feedback]] = {}
    if rows:
        query = (
            "SELECT f.answer_id, f.reward, f.label, f.source, f.created_at FROM answers a JOIN feedback f "
            "ON f.answer_id = a.id WHERE a.seq BETWEEN ? AND ? ORDER BY f.seq"
        )
        for row in db.execute(query, (rows[-1][0], rows[0][0])):
            feedback.setdefault(row[0], []).append(_feedback(row))
    return rows, feedback


def _decoded(row: Any) -> list[StoredAnswer]:
    """The answer of a row, or none if it is damaged."""
    return unless_damaged(partial(read_answer, row[:6], row[6]))


# -- feedback ------------------------------------------------------------------------------------------------------


def newest(db: sqlite3.Connection) -> _Position:
    """See `EngineReads`."""
    query = "SELECT (SELECT coalesce(max(seq), 0) FROM feedback), (SELECT coalesce(max(seq), 0) FROM probes)"
    feedback, probe = db.execute(query).fetchone()
    return feedback, probe


def latest_feedback(db: sqlite3.Connection, last: int, position: _Position) -> FeedbackRows:
    """See `EngineReads`."""
    answers: set[str] = set()
    first = position[0] + 1
    for answer_id, seq in db.execute("SELECT answer_id, seq FROM feedback WHERE seq < ? ORDER BY seq DESC", (first,)):
        answers.add(answer_id)
        if len(answers) > last:
            break
        first = seq
    query = (
        "WHERE f.seq <= ? AND f.answer_id IN (SELECT answer_id FROM feedback WHERE seq BETWEEN ? AND ?) ORDER BY f.seq"
    )
    return _with_answers(db.execute(_FEEDBACK + query, (position[0], first, position[0])).fetchall())


def feedback_after(db: sqlite3.Connection, position: _Position) -> tuple[FeedbackRows, _Position]:
    """See `EngineReads`."""
    feedback, probe = position
    _, newest_probe = newest(db)
    probed: list[Any] = []
    if newest_probe > probe:
        query = "WHERE f.seq <= ? AND f.answer_id IN (SELECT answer_id FROM probes WHERE seq > ?) ORDER BY f.seq"
        probed = db.execute(_FEEDBACK + query, (feedback, probe)).fetchall()
    new = db.execute(_FEEDBACK + "WHERE f.seq > ? ORDER BY f.seq", (feedback,)).fetchall()
    if new:
        feedback = new[-1][5]
    return _with_answers(probed + new), (feedback, newest_probe)


def _with_answers(rows: Iterable[Any]) -> FeedbackRows:
    return [(answer, _feedback(row[:5])) for row in rows for answer in _decoded(row[6:])]


def _feedback(row: Sequence[Any]) -> Feedback:
    answer_id, reward, label, source, created_at = row
    return Feedback(answer_id, reward, label, source_name(source), created_at)


# -- endpoints -----------------------------------------------------------------------------------------------------


def find_capabilities(db: sqlite3.Connection, key: str) -> CapabilityRow | None:
    """See `EngineReads`."""
    query = "SELECT key, probed_at, capability_values FROM capabilities WHERE key = ?"
    row = db.execute(query, (key,)).fetchone()
    try:
        return row and CapabilityRow(row[0], row[1], json.loads(row[2]))
    except (ValueError, TypeError):
        return None


def find_health(db: sqlite3.Connection) -> dict[str, HealthRow]:
    """See `EngineReads`."""
    sound = "typeof(open_until) IN ('real', 'null') AND typeof(ejections) = 'integer' AND typeof(changed_at) = 'real'"
    rows = db.execute(f"SELECT key, open_until, ejections, changed_at FROM health WHERE {sound}").fetchall()  # noqa: S608 - constants
    return {row[0]: HealthRow(*row) for row in rows}


# -- the ledger ----------------------------------------------------------------------------------------------------

# Costs are summed as micro- and picodollars separately: a 64-bit sum of picodollars overflows at 9.2 million USD.
_LEDGER_ROWS = f"""
WITH bills AS (
    SELECT CASE WHEN {IS_OF_ASK} THEN answer_id END AS ask,
        endpoint, at, tags,
        1 AS calls, cost_pico IS NULL AS unpriced, cost_source = 'reserved' AS estimated,
        coalesce(prompt_tokens, 0) AS prompt, coalesce(completion_tokens, 0) AS completion,
        coalesce(cost_pico, 0) / 1000000 AS micro, coalesce(cost_pico, 0) % 1000000 AS pico, 0 AS held
    FROM ledger
    UNION ALL SELECT NULL, endpoint, at, tags, 0, 0, 0, 0, 0, 0, 0, pico FROM reservations
),
tagged AS (
    SELECT coalesce(tag.value, '') AS tag, bills.* FROM bills
    LEFT JOIN json_each(bills.tags) AS tag ON tag.key = (
        SELECT min(same.key) FROM json_each(bills.tags) AS same WHERE same.value = tag.value
    )
)
"""  # noqa: S608 - constants
_LEDGER_SUMS = """
    count(DISTINCT ask), sum(calls), sum(unpriced), sum(estimated), sum(prompt), sum(completion), sum(micro), sum(pico),
    sum(micro * estimated), sum(pico * estimated), sum(held / 1000000), sum(held % 1000000)
"""
_LEDGER_KEYS = {
    "endpoint": ("endpoint", "bills"),
    "tag": ("tag", "tagged"),
    "day": ("date(at, 'unixepoch')", "bills"),
    "all": ("'all'", "bills"),
}


def ledger_sums(db: sqlite3.Connection, by: Grouping) -> list[LedgerSum]:
    """See `EngineReads`."""
    sums = _sums_of_rows(db, by)
    return with_totals(sums, totals(db)) if by == "endpoint" else sums


def _sums_of_rows(db: sqlite3.Connection, by: Grouping) -> list[LedgerSum]:
    key, rows = _LEDGER_KEYS[by]
    query = f"{_LEDGER_ROWS} SELECT {key}, {_LEDGER_SUMS} FROM {rows} GROUP BY 1 ORDER BY 1"  # noqa: S608 - constants
    found = []
    for *counts, micro, pico, estimated_micro, estimated_pico, held_micro, held_pico in db.execute(query):
        costs = [_usd(micro, pico), _usd(estimated_micro, estimated_pico), _usd(held_micro, held_pico)]
        found.append(LedgerSum(*counts, *costs))
    return found


def _usd(micro: int, pico: int) -> Decimal:
    return from_pico(micro * 1_000_000 + pico)


def totals(db: sqlite3.Connection) -> dict[str, LedgerSum]:
    """See `Store.totals`."""
    summed = ", ".join(f"sum({column})" for column in SUMMED[1:])
    query = f"SELECT endpoint, {summed} FROM ({ALL_SUMS}) GROUP BY endpoint ORDER BY endpoint"  # noqa: S608 - constants
    found = {}
    for endpoint, asks, calls, unpriced, prompt, completion, micro, pico in db.execute(query):
        found[endpoint] = LedgerSum(endpoint, asks, calls, unpriced, 0, prompt, completion, _usd(micro, pico))
    return {endpoint: row for endpoint, row in found.items() if row.calls or row.asks}


# -- integrity -----------------------------------------------------------------------------------------------------


def find_problems(db: sqlite3.Connection) -> tuple[str, ...]:
    """See `EngineReads`."""
    found: list[str] = []
    named_checks: dict[str, Check] = {
        "pages": _damaged_pages,
        "references": _lost_rows,
        "answers": _damaged_answers,
        **checks(fresh_schema()),
        "balances": lambda db: map(str, reconcile(db)),
        "sums": _wrong_sums,
    }
    usual, db.text_factory = db.text_factory, partial(str, encoding="utf-8", errors="backslashreplace")
    try:
        for name, check in named_checks.items():
            try:
                found.extend(check(db))
            except (db.Error, StoreError, ValueError, TypeError, OverflowError) as error:  # what damage may raise
                found.append(f"{name}: could not be read in full ({type(error).__name__}: {error})")
    finally:
        db.text_factory = usual
    return tuple(found)


def reconcile(db: sqlite3.Connection) -> list[BalanceDifference]:
    """See `Store.reconcile`."""
    return [difference_of(*difference) for difference in find_differences(db, time.time())]


def _wrong_sums(db: sqlite3.Connection) -> Iterator[str]:
    if is_pruned(db):
        return
    kept = totals(db)
    if sum(row.asks for row in kept.values()) != sum(row.asks for row in _sums_of_rows(db, "all")):
        yield "ledger_sums: the asks are not those of the ledger"
    for row in _sums_of_rows(db, "endpoint"):
        if _without_asks(row) != _without_asks(kept.get(row.key, LedgerSum(row.key))):
            yield f"ledger_sums: the sums of {row.key!r} are not those of its rows"


def _without_asks(row: LedgerSum) -> tuple[object, ...]:
    return row.calls, row.unpriced, row.prompt_tokens, row.completion_tokens, row.cost


def _damaged_pages(db: sqlite3.Connection) -> Iterator[str]:
    yield from (f"integrity check: {row[0]}" for row in db.execute("PRAGMA main.integrity_check") if row[0] != "ok")


def _lost_rows(db: sqlite3.Connection) -> Iterator[str]:
    for table, number, parent, _ in db.execute("PRAGMA main.foreign_key_check"):
        yield f"{table}: row {number} points to a missing row of {parent}"


def _damaged_answers(db: sqlite3.Connection) -> Iterator[str]:
    for *row, crc in db.execute("SELECT id, created_at, record, trajectory, receipt, texts, crc FROM answers"):
        try:
            read_answer(tuple(row))
        except StoreError as error:
            yield str(error)
            continue
        if crc is not None and checksum((*row[:3], head(row[3]), *row[4:])) != crc:
            yield f"answers: the row of {row[0]!r} was changed after it was written"
