"""The SQL: every kind of row into and out of its table, on a connection that `focalroute.store.sqlite.store` owns."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from focalroute.core.errors import FeedbackConflict, StoreError, UnknownAnswer
from focalroute.core.records import Feedback
from focalroute.store.base import (
    CapabilityRow,
    HealthRow,
    LedgerRow,
    Release,
    Row,
    StoredAnswer,
    StoredProbe,
    UsageTotal,
)
from focalroute.store.codec import from_pico, pack, read_answer, to_pico, write_answer, write_probe, write_tags
from focalroute.store.sqlite import accounts
from focalroute.store.sqlite.accounts import AccountBalances

if TYPE_CHECKING:
    import sqlite3


T = TypeVar("T")

_log = logging.getLogger("focalroute.store")

_ANSWER = (
    "a.id, a.created_at, a.record, a.trajectory, a.receipt, a.texts, "
    "(SELECT '[' || group_concat(p.record) || ']' FROM probes p WHERE p.answer_id = a.id) "
)
_ANSWERS = "SELECT " + _ANSWER + "FROM answers a "
_FEEDBACK = (
    "SELECT f.answer_id, f.reward, f.label, f.source, f.created_at, f.seq, "
    + _ANSWER
    + "FROM feedback f JOIN answers a ON a.id = f.answer_id "
)
_LEDGER_ROWS_AN_ANSWER = 8  # kept for each answer that is kept

_PART = 50  # answers read at a time
_COPIED = 100  # likewise copied
_COPY = "INSERT INTO copy.answers SELECT * FROM main.answers WHERE seq > ? ORDER BY seq LIMIT ?"
_COPY_SAID = tuple(
    f"INSERT INTO copy.{table} SELECT t.* FROM copy.answers a JOIN main.{table} t ON t.answer_id = a.id WHERE a.seq > ?"  # noqa: S608 - constants
    for table in ("feedback", "probes")
)

Judged = tuple[StoredAnswer, Feedback]
_Part = tuple[list[Any], dict[str, list[Feedback]]]


class Read(Protocol):
    """Has the connection read."""

    def __call__(self, work: Callable[[sqlite3.Connection], T], /) -> T:
        """What this finds."""


# -- in ------------------------------------------------------------------------------------------------------------


def _insert(db: sqlite3.Connection, row: Row) -> None:
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
        _insert_bill(db, row)
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


def insert_all(db: sqlite3.Connection, books: AccountBalances, rows: Sequence[Row]) -> None:
    """Insert the rows of one call, and count what they cost.

    Raises:
        FocalrouteError: as `_insert`; then nothing is counted.
    """
    for row in rows:
        _insert(db, row)
    for row in rows:
        if isinstance(row, LedgerRow):
            books.charge(row)
        elif isinstance(row, Release):
            books.release(row.reservation, row.at)


def _insert_answer(db: sqlite3.Connection, row: StoredAnswer) -> None:
    blob = None if row.trajectory is None else pack(row.trajectory)
    inserted = db.execute(
        "INSERT INTO answers (id, created_at, record, trajectory, receipt, texts) VALUES (?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (id) DO NOTHING",
        (row.id, row.created_at, write_answer(row), blob, row.receipt, row.texts),
    )
    if not inserted.rowcount:
        raise StoreError(f"an answer with id {row.id!r} is stored already; ids must be unique")


def _insert_feedback(db: sqlite3.Connection, row: Feedback) -> None:
    """In one statement, where it is the first from its source: whether the answer is there the reference tells."""
    try:
        inserted = db.execute(
            "INSERT INTO feedback (answer_id, source, reward, label, created_at) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT (answer_id, source) DO NOTHING",
            (row.answer_id, row.source, row.reward, row.label, row.created_at),
        )
    except db.IntegrityError:
        if db.execute("SELECT 1 FROM answers WHERE id = ?", (row.answer_id,)).fetchone() is not None:
            raise
        raise UnknownAnswer(
            f"the store has no answer with id {row.answer_id!r}; give feedback through the store it was asked with"
        ) from None
    if inserted.rowcount:
        return
    query = "SELECT reward, label FROM feedback WHERE answer_id = ? AND source = ?"
    if db.execute(query, (row.answer_id, row.source)).fetchone() != (row.reward, row.label):
        raise FeedbackConflict(
            f"answer {row.answer_id!r} already has a different feedback from source {row.source!r}; "
            "it stands: use another source to add to it"
        )


def _insert_bill(db: sqlite3.Connection, row: LedgerRow) -> None:
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


# -- out -----------------------------------------------------------------------------------------------------------


def find_answer(db: sqlite3.Connection, answer_id: str) -> StoredAnswer | None:
    """The answer with this id; StoreError if its row is damaged."""
    row = db.execute(_ANSWERS + "WHERE a.id = ?", (answer_id,)).fetchone()
    return None if row is None else read_answer(row[:6], row[6])


def find_capabilities(db: sqlite3.Connection, key: str) -> CapabilityRow | None:
    """The probe under this key; a damaged one counts as none, so that the endpoint is probed again."""
    query = "SELECT key, probed_at, capability_values FROM capabilities WHERE key = ?"
    row = db.execute(query, (key,)).fetchone()
    if row is None or not _is_json(row[2]):
        return None
    return CapabilityRow(row[0], row[1], json.loads(row[2]))


def find_health(db: sqlite3.Connection) -> dict[str, HealthRow]:
    """What is known of the endpoints, by key; damaged rows are none."""
    sound = "typeof(open_until) IN ('real', 'null') AND typeof(ejections) = 'integer' AND typeof(changed_at) = 'real'"
    rows = db.execute(f"SELECT key, open_until, ejections, changed_at FROM health WHERE {sound}").fetchall()  # noqa: S608 - constants
    return {row[0]: HealthRow(*row) for row in rows}


def newest_feedback(db: sqlite3.Connection) -> int:
    """The number of the feedback written last, 0 if there is none."""
    number: int = db.execute("SELECT coalesce(max(seq), 0) FROM feedback").fetchone()[0]
    return number


def feedback_after(db: sqlite3.Connection, number: int) -> tuple[list[Judged], int]:
    """Feedback written after that number, in order, with its answers; and the last number looked at."""
    rows = db.execute(_FEEDBACK + "WHERE f.seq > ? ORDER BY f.seq", (number,)).fetchall()
    return list(_judged(rows)), rows[-1][5] if rows else number


def newest_probe(db: sqlite3.Connection) -> int:
    """The number of the probe written last, 0 if there is none."""
    number: int = db.execute("SELECT coalesce(max(seq), 0) FROM probes").fetchone()[0]
    return number


def feedback_probed_after(db: sqlite3.Connection, number: int, feedback: int) -> list[Judged]:
    """Feedback up to number ``feedback`` whose answer was probed after probe ``number``, in order."""
    probed = "WHERE f.seq <= ? AND f.answer_id IN (SELECT answer_id FROM probes WHERE seq > ?) ORDER BY f.seq"
    return list(_judged(db.execute(_FEEDBACK + probed, (feedback, number)).fetchall()))


def latest_feedback(db: sqlite3.Connection, last: int) -> list[Judged]:
    """The ``last`` latest feedbacks, in order, with their answers."""
    return list(_judged(db.execute(_FEEDBACK + "ORDER BY f.seq DESC LIMIT ?", (last,)).fetchall()[::-1]))


def _judged(rows: Iterable[Any]) -> Iterator[Judged]:
    for row in rows:
        for answer in _readable([row[6:]]):
            yield answer, Feedback(*row[:5])


def _readable(rows: Iterable[Any]) -> Iterator[StoredAnswer]:
    """The answers of these rows; a damaged one is no reason to learn nothing from the others."""
    for row in rows:
        try:
            yield read_answer(row[:6], row[6])
        except StoreError as error:
            _log.warning("%s; it is left out", error)


def latest_answers(read: Read, limit: int) -> list[tuple[StoredAnswer, tuple[Feedback, ...]]]:
    """The ``limit`` latest answers with their feedback, oldest first.

    Read in parts, so that what waits for the connection meanwhile gets its turn, and made records of by the caller.
    """
    parts: list[_Part] = []
    left, before = limit, sys.maxsize
    while left > 0:
        part = read(partial(_answers_before, before=before, limit=min(left, _PART)))
        if not part[0]:
            break
        parts.append(part)
        left, before = left - len(part[0]), part[0][-1][0]
    return [
        (answer, tuple(said.get(answer.id, ())))
        for rows, said in reversed(parts)
        for answer in _readable(row[1:] for row in reversed(rows))
    ]


def number_before(db: sqlite3.Connection, latest: int) -> int:
    """The number after which the so many latest answers come."""
    number: int = db.execute("SELECT coalesce(max(seq), 0) - ? FROM answers", (latest,)).fetchone()[0]
    return number


def copy_answers(db: sqlite3.Connection, after: int) -> int | None:
    """Copy the next answers, and what was said of them, to the attached database ``copy``.

    Returns:
        The number of the last one; None: there are no more.
    """
    copied = db.execute(_COPY, (after, _COPIED)).rowcount
    for statement in _COPY_SAID:
        db.execute(statement, (after,))
    last: int = db.execute("SELECT max(seq) FROM copy.answers").fetchone()[0]
    return last if copied == _COPIED else None


def _answers_before(db: sqlite3.Connection, *, before: int, limit: int) -> _Part:
    """The rows of the latest answers before this one, their number first; and what was said of them, by id."""
    latest = "SELECT a.seq, " + _ANSWER + "FROM answers a WHERE a.seq < ? ORDER BY a.seq DESC LIMIT ?"
    rows = db.execute(latest, (before, limit)).fetchall()
    said: dict[str, list[Feedback]] = {}
    if rows:
        query = (
            "SELECT f.answer_id, f.reward, f.label, f.source, f.created_at FROM answers a JOIN feedback f "
            "ON f.answer_id = a.id WHERE a.seq BETWEEN ? AND ? ORDER BY f.seq"
        )
        for row in db.execute(query, (rows[-1][0], rows[0][0])):
            said.setdefault(row[0], []).append(Feedback(*row))
    return rows, said


def totals(db: sqlite3.Connection) -> dict[str, UsageTotal]:
    """The ledger summed by endpoint, pruned rows included.

    Costs are summed as micro- and picodollars apart, since a 64-bit sum of picodollars ends at 9.2 million USD.
    """
    rows = db.execute(
        "SELECT endpoint, sum(calls), sum(unpriced), sum(prompt_tokens), sum(completion_tokens), sum(micro), sum(pico) "
        "FROM (SELECT endpoint, 1 AS calls, cost_pico IS NULL AS unpriced, "
        "coalesce(prompt_tokens, 0) AS prompt_tokens, coalesce(completion_tokens, 0) AS completion_tokens, "
        "coalesce(cost_pico / 1000000, 0) AS micro, "
        "coalesce(cost_pico % 1000000, 0) AS pico FROM ledger UNION ALL SELECT * FROM ledger_sums) GROUP BY endpoint"
    )
    return {
        endpoint: UsageTotal(calls, unpriced, prompt, completion, from_pico(micro * 1_000_000 + pico))
        for endpoint, calls, unpriced, prompt, completion, micro, pico in rows
    }


# -- integrity -----------------------------------------------------------------------------------------------------


def problems(db: sqlite3.Connection) -> tuple[str, ...]:
    """Everything that is wrong with the database, in words; reads all of it."""
    found: list[str] = []
    checks = {"pages": _damaged_pages, "references": _lost_rows, "answers": _damaged_answers, "texts": _damaged_texts,
        "balances": accounts.problems}  # fmt: skip
    for what, check in checks.items():
        try:
            found.extend(check(db))
        except (db.DatabaseError, UnicodeDecodeError) as error:
            found.append(f"{what}: could not all be read ({error})")
    return tuple(found)


def _damaged_pages(db: sqlite3.Connection) -> Iterator[str]:
    yield from (f"integrity check: {row[0]}" for row in db.execute("PRAGMA main.integrity_check") if row[0] != "ok")


def _lost_rows(db: sqlite3.Connection) -> Iterator[str]:
    for table, number, parent, _ in db.execute("PRAGMA main.foreign_key_check"):
        yield f"{table}: row {number} points to a missing row of {parent}"


def _damaged_answers(db: sqlite3.Connection) -> Iterator[str]:
    for row in db.execute(_ANSWERS):
        try:
            read_answer(row[:6], row[6])
        except StoreError as error:
            yield str(error)


def _damaged_texts(db: sqlite3.Connection) -> Iterator[str]:
    """Whatever else is JSON."""
    for query in (
        "SELECT 'receipt of answer ' || id, receipt FROM answers",
        "SELECT 'texts of answer ' || id, texts FROM answers WHERE texts IS NOT NULL",
        "SELECT 'capabilities of ' || key, capability_values FROM capabilities",
        "SELECT 'tags of ledger row ' || seq, tags FROM ledger",
    ):
        yield from (f"{where}: not JSON" for where, text in db.execute(query) if not _is_json(text))


def _is_json(text: Any) -> bool:
    try:
        json.loads(text)
    except (ValueError, TypeError):
        return False
    return True
