"""The default store: SQLite, in a file or in memory. The only module that imports sqlite3.

One thread owns the connection. Whatever is queued while it works is committed together, so that many writers share one commit;
reads wait in the same queue, so they see every row that was queued before them.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import queue
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from decimal import Decimal
from pathlib import Path
from typing import Literal, TypeVar

from focalroute.errors import FeedbackConflict, FocalrouteError, StoreError, UnknownAnswer
from focalroute.records import Feedback
from focalroute.store.base import CapabilityRow, LedgerRow, Listener, Row, StoredAnswer, UsageTotal
from focalroute.store.codec import from_pico, pack, read_answer, to_pico, write_answer
from focalroute.store.schema import MIGRATIONS

__all__ = ["SqliteStore"]

T = TypeVar("T")

_log = logging.getLogger("focalroute.store")

_BUSY_S = 5.0
_BATCH = 1000
_RECENT = 512
_KEPT_IN_MEMORY = 10_000
_PRUNE_EVERY = 500
_ANSWER = "a.id, a.created_at, a.record, a.trajectory, a.receipt, a.texts"
_FEEDBACK = "f.answer_id, f.reward, f.label, f.source, f.created_at"

#: Rows to insert as one unit, or a reading function; None: stop.
_Job = tuple["tuple[Row, ...] | Callable[[sqlite3.Connection], object]", "Future[object]"] | None


class SqliteStore:
    """Answers, feedback, capabilities and the ledger in one SQLite database. Safe to use from any thread.

    Args:
        path: the file, made if missing (its folder must exist); None: in memory.
        durability: "normal": a committed row survives the death of the process; "full": the loss of power too.
        keep: how many of the latest answers to keep, with their feedback; None: all of them in a file, 10,000 in memory. The
            ledger's sums are kept for ever.
        poll_s: how often feedback from other processes is looked for.

    Raises:
        StoreError: it cannot be opened, is damaged, or was written by a newer version.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        durability: Literal["normal", "full"] = "normal",
        keep: int | None = None,
        poll_s: float = 0.25,
    ) -> None:
        self._path = None if path is None else Path(path)
        self._keep = _KEPT_IN_MEMORY if keep is None and path is None else keep
        self._poll_s = poll_s
        self._connection = self._open(durability)
        self._queue: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._recent: OrderedDict[str, StoredAnswer] = OrderedDict()
        self._listeners: list[Listener] = []
        self._heard = 0  # the last feedback that was delivered
        self._data_version = 0
        self._unpruned = 0
        self._closing = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="focalroute-store", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    # -- the store's face --------------------------------------------------------------------------------------------

    def write(self, *rows: Row) -> Future[None]:
        """See `Store.write`."""
        for row in rows:
            if isinstance(row, StoredAnswer):
                self._remember(row)
        return self._submit(rows)

    def answer(self, answer_id: str) -> StoredAnswer | None:
        """See `Store.answer`."""
        recent = self._recent.get(answer_id)
        if recent is not None:
            return recent
        return self._read(lambda db: _one(db.execute(f"SELECT {_ANSWER} FROM answers a WHERE a.id = ?", (answer_id,))))  # noqa: S608

    def subscribe(self, listener: Listener, *, last: int) -> None:
        """See `Store.subscribe`."""

        def join(db: sqlite3.Connection) -> None:
            newest = db.execute("SELECT coalesce(max(seq), 0) FROM feedback").fetchone()[0]
            self._tell([listener], _heard(db, f"ORDER BY f.seq DESC LIMIT {int(last)}")[::-1])
            if not self._listeners:
                self._heard = newest
            self._listeners.append(listener)

        self._read(join)

    def capabilities(self, key: str) -> CapabilityRow | None:
        """See `Store.capabilities`."""
        query = "SELECT key, probed_at, capability_values FROM capabilities WHERE key = ?"
        row = self._read(lambda db: db.execute(query, (key,)).fetchone())
        return None if row is None else CapabilityRow(row[0], row[1], json.loads(row[2]))

    def totals(self) -> Mapping[str, UsageTotal]:
        """See `Store.totals`."""
        return self._read(_totals)

    def recent(self, limit: int) -> Iterable[tuple[StoredAnswer, tuple[Feedback, ...]]]:
        """See `Store.recent`."""
        return self._read(lambda db: _recent(db, limit))

    def verify(self) -> tuple[str, ...]:
        """See `Store.verify`."""
        return self._read(_problems)

    def close(self) -> None:
        """See `Store.close`."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        atexit.unregister(self.close)
        self._queue.put(None)
        self._thread.join()

    # -- any thread --------------------------------------------------------------------------------------------------

    def _remember(self, answer: StoredAnswer) -> None:
        self._recent[answer.id] = answer
        if len(self._recent) > _RECENT:
            with contextlib.suppress(KeyError):
                self._recent.popitem(last=False)

    def _submit(self, work: tuple[Row, ...] | Callable[[sqlite3.Connection], object]) -> Future[None]:
        future: Future[None] = Future()
        with self._closing:
            if not self._closed:
                self._queue.put((work, future))  # type: ignore[arg-type]
                return future
        future.set_exception(StoreError(f"{self._name}: the store is closed"))
        return future

    def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return self._submit(work).result()  # type: ignore[return-value]

    @property
    def _name(self) -> str:
        return "the store in memory" if self._path is None else str(self._path)

    # -- opening -----------------------------------------------------------------------------------------------------

    def _open(self, durability: str) -> sqlite3.Connection:
        if self._path is not None and not self._path.parent.is_dir():
            raise StoreError(f"{self._path}: its folder does not exist; make it first")
        target = ":memory:" if self._path is None else str(self._path)
        try:
            db = sqlite3.connect(target, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise self._broken(error) from None
        try:
            if self._path is not None:
                db.execute("PRAGMA journal_mode = WAL")
            db.execute(f"PRAGMA synchronous = {'FULL' if durability == 'full' else 'NORMAL'}")
            db.execute("PRAGMA foreign_keys = ON")
            self._migrate(db)
        except BaseException as error:
            db.close()
            if isinstance(error, sqlite3.Error):
                raise self._broken(error) from None
            raise
        return db

    def _migrate(self, db: sqlite3.Connection) -> None:
        db.execute("BEGIN IMMEDIATE")
        try:
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version > len(MIGRATIONS):
                raise StoreError(
                    f"{self._name}: was written by a newer focalroute (schema {version}); upgrade focalroute"
                )
            for migration in MIGRATIONS[version:]:
                for statement in filter(str.strip, migration.split(";")):
                    db.execute(statement)
            if version < len(MIGRATIONS):
                db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
            db.execute("COMMIT")
        except BaseException:
            db.execute("ROLLBACK")
            raise

    def _broken(self, error: sqlite3.Error) -> StoreError:
        return StoreError(f"{self._name}: {error}; check the file, its permissions and the space left")

    # -- the store's thread ------------------------------------------------------------------------------------------

    def _work(self) -> None:
        next_poll = time.monotonic() + self._poll_s
        running = True
        while running:
            jobs = self._jobs(next_poll)
            running = None not in jobs
            self._commit([job for job in jobs if job is not None])
            if time.monotonic() >= next_poll:
                next_poll = time.monotonic() + self._poll_s
                self._poll()
        self._connection.close()

    def _jobs(self, until: float) -> list[_Job]:
        """Wait for work until then; then take all there is, up to a batch."""
        jobs: list[_Job] = []
        with contextlib.suppress(queue.Empty):
            jobs.append(self._queue.get(timeout=max(until - time.monotonic(), 0.001)))
            while len(jobs) < _BATCH and jobs[-1] is not None:
                jobs.append(self._queue.get_nowait())
        return jobs

    def _commit(self, jobs: list[tuple[tuple[Row, ...] | Callable[..., object], Future[object]]]) -> None:
        """Run the jobs in order, all writes in one transaction, then tell their futures."""
        if not jobs:
            return
        results: list[object] = []
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            results = [self._run(work) for work, _ in jobs]
            self._prune()
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            results = [self._broken(error)] * len(jobs)
        if any(isinstance(row, Feedback) for work, _ in jobs if isinstance(work, tuple) for row in work):
            self._deliver()
        for (_, future), result in zip(jobs, results, strict=True):
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)

    def _run(self, work: tuple[Row, ...] | Callable[[sqlite3.Connection], object]) -> object:
        """One job within the transaction; an exception of ours is its result, and leaves nothing of it behind."""
        if not isinstance(work, tuple):
            try:
                return work(self._connection)
            except FocalrouteError as error:
                return error
        self._connection.execute("SAVEPOINT unit")
        try:
            for row in work:
                self._insert(row)
        except FocalrouteError as error:
            self._connection.execute("ROLLBACK TO unit")
            return error
        finally:
            if self._connection.in_transaction:
                self._connection.execute("RELEASE unit")
        return None

    def _insert(self, row: Row) -> None:
        if isinstance(row, StoredAnswer):
            blob = None if row.trajectory is None else pack(row.trajectory)
            values = (row.id, row.created_at, write_answer(row), blob, row.receipt, row.texts)
            self._connection.execute(
                "INSERT INTO answers (id, created_at, record, trajectory, receipt, texts) VALUES (?, ?, ?, ?, ?, ?)",
                values,
            )
            self._unpruned += 1
        elif isinstance(row, Feedback):
            self._insert_feedback(row)
        elif isinstance(row, LedgerRow):
            self._connection.execute(
                "INSERT INTO ledger (answer_id, endpoint, at, prompt_tokens, completion_tokens, cached_tokens, "
                "reasoning_tokens, provider_pico, cost_pico, cost_source, tags) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                _ledger_values(row),
            )
        else:
            values = (row.key, row.probed_at, json.dumps(dict(row.values)))
            self._connection.execute("INSERT OR REPLACE INTO capabilities VALUES (?, ?, ?)", values)

    def _insert_feedback(self, row: Feedback) -> None:
        db = self._connection
        if db.execute("SELECT 1 FROM answers WHERE id = ?", (row.answer_id,)).fetchone() is None:
            raise UnknownAnswer(
                f"the store has no answer with id {row.answer_id!r}; give feedback through the store it was asked with"
            )
        query = "SELECT reward, label FROM feedback WHERE answer_id = ? AND source = ?"
        found = db.execute(query, (row.answer_id, row.source)).fetchone()
        if found is None:
            db.execute(
                "INSERT INTO feedback (answer_id, source, reward, label, created_at) VALUES (?, ?, ?, ?, ?)",
                (row.answer_id, row.source, row.reward, row.label, row.created_at),
            )
        elif found != (row.reward, row.label):
            raise FeedbackConflict(
                f"answer {row.answer_id!r} already has a different feedback from source {row.source!r}; "
                "it stands: use another source to add to it"
            )

    def _poll(self) -> None:
        """Look whether another process wrote anything."""
        try:
            version = self._connection.execute("PRAGMA data_version").fetchone()[0]
            if version != self._data_version:
                self._data_version = version
                self._deliver()
        except sqlite3.Error as error:
            _log.warning("feedback of other processes could not be read: %s", self._broken(error))

    def _deliver(self) -> None:
        """Tell the listeners what feedback was committed since the last time."""
        if not self._listeners:
            return
        try:
            newest = self._connection.execute("SELECT coalesce(max(seq), 0) FROM feedback").fetchone()[0]
            rows = _heard(self._connection, f"WHERE f.seq > {self._heard} ORDER BY f.seq")
        except (sqlite3.Error, StoreError) as error:
            _log.warning("feedback could not be read back: %s", error)
            return
        self._heard = max(newest, self._heard)
        self._tell(self._listeners, rows)

    @staticmethod
    def _tell(listeners: Iterable[Listener], rows: list[tuple[StoredAnswer, Feedback]]) -> None:
        for listener in listeners if rows else ():
            try:
                listener(rows)
            except Exception:
                _log.exception("a listener failed on %d rows of feedback; it will not see them again", len(rows))

    def _prune(self) -> None:
        """Drop answers beyond ``keep``, with their feedback; their ledger rows are added up first."""
        if self._keep is None or self._unpruned < min(_PRUNE_EVERY, self._keep):
            return
        self._unpruned = 0
        db = self._connection
        cut = db.execute("SELECT max(seq) - ? FROM answers", (self._keep,)).fetchone()[0]
        db.execute("DELETE FROM answers WHERE seq <= ?", (cut,))
        last = db.execute("SELECT max(seq) - ? FROM ledger", (8 * self._keep,)).fetchone()[0]
        db.execute(
            "INSERT INTO ledger_sums SELECT endpoint, count(*), sum(cost_pico IS NULL), total(prompt_tokens), "
            "total(completion_tokens), coalesce(sum(cost_pico / 1000000000000), 0), "
            "coalesce(sum(cost_pico % 1000000000000), 0) FROM ledger WHERE seq <= ? GROUP BY endpoint "
            "ON CONFLICT (endpoint) DO UPDATE SET calls = calls + excluded.calls, "
            "unpriced = unpriced + excluded.unpriced, prompt_tokens = prompt_tokens + excluded.prompt_tokens, "
            "completion_tokens = completion_tokens + excluded.completion_tokens, "
            "whole_usd = whole_usd + excluded.whole_usd, pico = pico + excluded.pico",
            (last,),
        )
        db.execute("DELETE FROM ledger WHERE seq <= ?", (last,))


def _ledger_values(row: LedgerRow) -> tuple[object, ...]:
    usage = row.usage
    tokens = (
        (
            usage.prompt_tokens,
            usage.completion_tokens,
            usage.cached_tokens,
            usage.reasoning_tokens,
            to_pico(usage.cost_usd),
        )
        if usage
        else (None,) * 5
    )
    return (row.answer_id, row.endpoint, row.at, *tokens, to_pico(row.cost), row.cost_source, json.dumps(row.tags))


def _one(cursor: sqlite3.Cursor) -> StoredAnswer | None:
    row = cursor.fetchone()
    return None if row is None else read_answer(row)


def _heard(db: sqlite3.Connection, which: str) -> list[tuple[StoredAnswer, Feedback]]:
    """Feedback with its answer."""
    rows = db.execute(f"SELECT {_ANSWER}, {_FEEDBACK} FROM feedback f JOIN answers a ON a.id = f.answer_id {which}")  # noqa: S608
    return [(read_answer(row[:6]), Feedback(*row[6:])) for row in rows]


def _recent(db: sqlite3.Connection, limit: int) -> list[tuple[StoredAnswer, tuple[Feedback, ...]]]:
    latest = db.execute(f"SELECT {_ANSWER} FROM answers a ORDER BY a.seq DESC LIMIT ?", (limit,)).fetchall()[::-1]  # noqa: S608
    said = f"SELECT {_FEEDBACK} FROM feedback f WHERE f.answer_id = ? ORDER BY f.seq"  # noqa: S608
    return [(read_answer(row), tuple(Feedback(*f) for f in db.execute(said, (row[0],)))) for row in latest]


def _totals(db: sqlite3.Connection) -> dict[str, UsageTotal]:
    rows = db.execute(
        "SELECT endpoint, sum(calls), sum(unpriced), sum(prompt_tokens), sum(completion_tokens), sum(whole_usd), sum(pico) "
        "FROM (SELECT endpoint, 1 AS calls, cost_pico IS NULL AS unpriced, coalesce(prompt_tokens, 0) AS prompt_tokens, "
        "coalesce(completion_tokens, 0) AS completion_tokens, coalesce(cost_pico / 1000000000000, 0) AS whole_usd, "
        "coalesce(cost_pico % 1000000000000, 0) AS pico FROM ledger UNION ALL SELECT * FROM ledger_sums) GROUP BY endpoint"
    )
    return {
        name: UsageTotal(calls, unpriced, int(prompt), int(completion), Decimal(usd) + (from_pico(pico) or 0))
        for name, calls, unpriced, prompt, completion, usd, pico in rows
    }


def _problems(db: sqlite3.Connection) -> tuple[str, ...]:
    problems = [f"integrity check: {row[0]}" for row in db.execute("PRAGMA integrity_check") if row[0] != "ok"]
    problems += [
        f"{row[0]}: row {row[1]} points to a missing row of {row[2]}" for row in db.execute("PRAGMA foreign_key_check")
    ]
    for row in db.execute(f"SELECT {_ANSWER} FROM answers a"):  # noqa: S608
        try:
            read_answer(row)
        except StoreError as error:
            problems.append(str(error))
    for key, values in db.execute("SELECT key, capability_values FROM capabilities"):
        try:
            json.loads(values)
        except ValueError:
            problems.append(f"capabilities of {key}: the row is damaged")
    return tuple(problems)
