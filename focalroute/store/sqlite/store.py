"""The default store: SQLite, in a file or in memory. The only module that imports sqlite3.

A thread works off a queue. Whatever is queued while it works is committed together, so that many writers share one
commit; each call is a unit of its own within it, and fails alone. Reads wait in the same queue, so they see every row
that was queued before them. While the queue is empty and nobody else is at the database, a caller commits in its own
thread (`write_calls`), as waking another takes several times as long as a commit. What may take longer (a file that
is locked, a sync of the disk, a checkpoint, pruning, telling listeners) is for the store's thread alone.
"""

from __future__ import annotations

import logging
import math
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from decimal import Decimal
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeVar

from focalroute.core.errors import FocalrouteError, StoreError
from focalroute.core.records import Feedback
from focalroute.store import base
from focalroute.store.base import Account, Balance, OnFeedback, Reservation, Row, StoredAnswer, StoredProbe
from focalroute.store.listeners import tell
from focalroute.store.sqlite import ledger, tables
from focalroute.store.sqlite.accounts import AccountBalances, settle_overdue
from focalroute.store.sqlite.jobs import Read, Unit, Write
from focalroute.store.sqlite.locking import begin_writing, patient, roll_back
from focalroute.store.sqlite.schema import check_ours, check_path, migrate
from focalroute.store.writer_queue import WriterQueue

T = TypeVar("T")

_log = logging.getLogger("focalroute.store")

_BUSY_S = 5.0
_BATCH = 1000
_KEPT_IN_MEMORY = 10_000
_PRUNE_EVERY = 500  # rows
_CHECKPOINT_EVERY = 300  # rows of this process: about the thousand pages after which SQLite would by itself
_MOST_PAGES = 4000  # not checkpointed, whoever wrote them; then whoever commits does it
_SLOW_S = 0.05  # a commit that waited longer is a reason to leave the next ones to the store's thread
_LEFT_S = 10.0  # for so long
_BREATH_S = 0.001  # between two parts of a copy

_ADVICE = {
    sqlite3.SQLITE_BUSY: "another process keeps it locked; end that process or try again",
    sqlite3.SQLITE_FULL: "make room on the disk",
    sqlite3.SQLITE_READONLY: "make the file and its folder writable",
    sqlite3.SQLITE_CANTOPEN: "make the file and its folder readable and writable",
    sqlite3.SQLITE_NOTADB: "name another file",
    sqlite3.SQLITE_CORRUPT: "restore it from a copy, or name another file",
}
#: What reading a database raises; an error message that quotes damaged bytes fails in Python itself.
_FAILURES = (sqlite3.Error, UnicodeDecodeError)
#: What is wrong with one call's rows, not with the database.
_WRONG_ROWS = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.ProgrammingError, sqlite3.InterfaceError)


class SqliteStore:
    """Answers, feedback, capabilities and the ledger in one SQLite database. Safe to use from any thread.

    A write whose waiter gave up is committed all the same: what was consumed is paid for. After a fork only the parent
    may use the store; the child opens its own.

    Args:
        path: the file, made if missing (its folder must exist); None: in memory.
        durability: "normal": a committed row survives the death of the process; "full": the loss of power too.
        keep: how many of the latest answers to keep, with their feedback; None: all of them in a file, 10,000 in
            memory. The ledger's sums are kept for ever.
        poll_s: how often feedback from other processes is looked for.

    Raises:
        StoreError: it cannot be opened, is no focalroute database, or is a newer version's.
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
        self._file = None if self._path is None else self._path.absolute()  # the working folder may change
        self._keep = _KEPT_IN_MEMORY if keep is None and path is None else keep
        self._poll_s = poll_s
        self._connection = self._open(durability)
        self._using = threading.Lock()  # the connection
        self._copying = threading.Lock()
        self._left_until = math.inf if durability == "full" else 0.0  # commits are the store's thread's (monotonic)
        self._unchecked = 0  # rows written since the last checkpoint
        self._restarted = False  # whether there was one since: whatever is written next waits for the disk
        self._desk: WriterQueue[Write | Read] = WriterQueue(
            self._name, self._work, keep=self._keep, trouble="is the file locked, or its disk too slow?"
        )
        self._listeners: list[OnFeedback] = []
        self._heard = 0  # number of the last feedback that was delivered
        self._probes_heard = 0  # number of the last probe that was
        self._unpruned = _PRUNE_EVERY  # an earlier process may have left some
        self._desk.open()
        self._change(lambda db, books: settle_overdue(db, books, time.time())).exception()  # a damaged file: see verify

    # -- the store's face --------------------------------------------------------------------------------------------

    def write(self, *rows: Row) -> Future[None]:
        """See `Store.write`."""
        return self._queue(Write([_inserting(rows)], alone=True))

    def write_calls(self, calls: Sequence[Sequence[Row]]) -> Future[base.Outcomes]:
        """See `Store.write_calls`."""
        job = Write([_inserting(rows) for rows in calls], alone=False)
        return self._queue(job) if _told(job.units) else self._soon(job)  # the store's thread tells the listeners

    def answer(self, answer_id: str) -> StoredAnswer | None:
        """See `Store.answer`."""
        return self._desk.answer(answer_id) or self._read(lambda db: tables.find_answer(db, answer_id))

    def subscribe(self, listener: OnFeedback, *, last: int) -> None:
        """See `Store.subscribe`."""

        def join(db: sqlite3.Connection) -> None:
            self._deliver()  # now every listener has heard the same
            self._heard = max(self._heard, tables.newest_feedback(db))
            self._probes_heard = max(self._probes_heard, tables.newest_probe(db))
            tell([listener], tables.latest_feedback(db, last))
            self._listeners.append(listener)

        self._read(join)

    def open_accounts(self, opened: Iterable[Account]) -> Mapping[Account, Balance]:
        """See `Store.open_accounts`."""
        return self._change(lambda _, books: books.open(opened, time.time())).result()

    def reserve(self, reservation: Reservation, limits: Mapping[Account, Decimal]) -> Future[base.ReservationResult]:
        """See `Store.reserve`."""

        def work(_: sqlite3.Connection, books: AccountBalances) -> base.ReservationResult:
            return books.reserve(reservation, limits, time.time())

        return self._soon(Write([Unit((), work)], alone=True))

    def balances(self, opened: Iterable[Account]) -> Future[Mapping[Account, Balance]]:
        """See `Store.balances`."""
        return self._look_up(lambda db: AccountBalances(db).balances(opened, time.time()))

    def ledger(self, by: base.Grouping) -> Sequence[base.LedgerSum]:
        """See `Store.ledger`."""
        return self._read(lambda db: ledger.sums(db, by))

    def capabilities(self, key: str) -> base.CapabilityRow | None:
        """See `Store.capabilities`."""
        return self._read(lambda db: tables.find_capabilities(db, key))

    def health(self) -> Future[Mapping[str, base.HealthRow]]:
        """See `Store.health`."""
        return self._look_up(tables.find_health)

    def totals(self) -> Mapping[str, base.UsageTotal]:
        """See `Store.totals`."""
        return self._read(tables.totals)

    def recent(self, limit: int) -> Iterable[tuple[StoredAnswer, tuple[Feedback, ...]]]:
        """See `Store.recent`."""
        return tables.latest_answers(self._read, limit)

    def verify(self) -> tuple[str, ...]:
        """See `Store.verify`."""
        return self._read(tables.problems)

    @contextmanager
    def on_disk(self, latest: int) -> Iterator[Path]:
        """Its file; of a store in memory a copy of its latest answers and what was said of them, which then goes.

        Nobody else may read that. Not for the store's own thread, that is for listeners.

        Raises:
            StoreError: that copy cannot be written.
        """
        if self._file is not None and self._file.is_file():
            yield self._file
            return
        with TemporaryDirectory(prefix="focalroute-") as folder:
            file = Path(folder) / "store.db"
            self._read(lambda _: None)  # what is queued comes first
            try:
                with self._copying:
                    self._copy(file, latest)
            except sqlite3.Error as error:
                raise StoreError(f"{file}: a copy of {self._name} cannot be written: {error}") from None
            yield file

    def _copy(self, file: Path, latest: int) -> None:
        """A part at a time, so that asks get their turn between; SQLite does each without the interpreter's lock."""
        with closing(sqlite3.connect(file, isolation_level=None)) as copy:
            copy.execute("PRAGMA synchronous = OFF")  # here and below: where it is not written whole it goes anyway
            copy.execute("BEGIN")
            migrate(copy, str(file))
            copy.execute("COMMIT")
        with self._using:
            self._connection.execute("ATTACH ? AS copy", (str(file),))
        try:
            with self._using:
                self._connection.execute("PRAGMA copy.journal_mode = OFF")
                self._connection.execute("PRAGMA copy.synchronous = OFF")
                after: int | None = tables.number_before(self._connection, latest)
            while after is not None:
                time.sleep(_BREATH_S)
                with self._using:
                    after = tables.copy_answers(self._connection, after)
        finally:
            with self._using, suppress(sqlite3.ProgrammingError):  # it was closed meanwhile
                self._connection.execute("DETACH copy")

    def close(self) -> None:
        """See `Store.close`."""
        self._desk.close()

    # -- any thread --------------------------------------------------------------------------------------------------

    def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._desk.inside:
            return work(self._connection)
        return self._look_up(work).result()

    def _look_up(self, work: Callable[[sqlite3.Connection], T]) -> Future[T]:
        future: Future[T] = Future()
        self._desk.submit(Read(work, future))
        return future

    def _change(self, work: Callable[[sqlite3.Connection, AccountBalances], T]) -> Future[T]:
        """Queue work that writes no rows."""
        return self._queue(Write([Unit((), work)], alone=True))

    def _queue(self, job: Write) -> Future[Any]:
        self._desk.submit(job, [row for unit in job.units for row in unit.rows])
        return job.future

    def _soon(self, job: Write) -> Future[Any]:
        """Do it now if that takes no waiting, for others or for the disk; else queue it."""
        results = self._at_once(job.units)
        if results is None:
            return self._queue(job)
        job.settle(results)
        return job.future

    def _at_once(self, units: Sequence[Unit]) -> list[Any] | None:
        """What these units give, done in this thread; None: that would take waiting, for others or for the disk."""
        if self._restarted or time.monotonic() < self._left_until or not self._using.acquire(blocking=False):
            return None
        try:
            if not self._desk.idle:
                return None
            began = time.monotonic() - time.thread_time()  # what this thread works is no wait
            try:
                begin_writing(self._connection, 0.0)
            except _FAILURES:
                return None  # the store's thread waits for it, or finds out what is wrong
            results = self._transact(units, prune=False)
            if time.monotonic() - time.thread_time() - began > _SLOW_S:
                self._left_until = time.monotonic() + _LEFT_S
            return results
        finally:
            roll_back(self._connection)  # if this thread was interrupted
            self._using.release()

    @property
    def _name(self) -> str:
        return "the store in memory" if self._path is None else str(self._path)

    # -- opening -----------------------------------------------------------------------------------------------------

    def _open(self, durability: str) -> sqlite3.Connection:
        if self._path is not None:
            check_path(self._path)
        give_up = time.monotonic() + _BUSY_S
        while True:
            try:
                return self._connect(durability)
            except _FAILURES as error:
                # Whoever makes the file WAL first locks the others out, and SQLite does not wait for that.
                if _code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > give_up:
                    raise self._broken(error) from None
            time.sleep(0.01)

    def _connect(self, durability: str) -> sqlite3.Connection:
        db = sqlite3.connect(self._path or ":memory:", timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            check_ours(db, self._name)
            if self._path is not None:
                db.execute("PRAGMA journal_mode = WAL")
            db.execute(f"PRAGMA synchronous = {'FULL' if durability == 'full' else 'NORMAL'}")
            db.execute(f"PRAGMA wal_autocheckpoint = {_MOST_PAGES}")  # mostly it is `_tidy` that does it
            db.execute("PRAGMA fullfsync = ON")  # macOS: what is synced is on the disk, not in its cache
            db.execute("PRAGMA busy_timeout = 0")  # see `begin_writing` and `patient`
            self._migrate(db)
            db.execute("PRAGMA foreign_keys = ON")  # only now: a migration may have to rebuild a table
        except BaseException:
            db.close()
            raise
        return db

    def _migrate(self, db: sqlite3.Connection) -> None:
        begin_writing(db, _BUSY_S)
        try:
            migrate(db, self._name)
            db.execute("COMMIT")
        except BaseException:
            roll_back(db)
            raise

    def _broken(self, error: Exception) -> StoreError:
        return StoreError(
            f"{self._name}: {error}; {_ADVICE.get(_code(error), 'check the file, its folder and its disk')}"
        )

    # -- the store's thread ------------------------------------------------------------------------------------------

    def _work(self) -> None:
        next_poll = time.monotonic() + self._poll_s
        running = True
        while running:
            jobs = self._desk.take(next_poll, _BATCH)
            running = None not in jobs
            with self._using:
                self._commit([job for job in jobs if isinstance(job, Write)])
                for job in jobs:
                    if isinstance(job, Read):
                        self._look(job)
                if time.monotonic() >= next_poll:
                    self._deliver()
                    self._tidy()
                    next_poll = time.monotonic() + self._poll_s
            self._desk.done(len(jobs))
        with self._using:
            self._connection.close()

    def _commit(self, jobs: list[Write]) -> None:
        """Commit all calls in one transaction, deliver what feedback there is in it, then tell the futures."""
        if not jobs:
            return
        results: list[Any]
        units = [unit for job in jobs for unit in job.units]
        try:
            begin_writing(self._connection, _BUSY_S)
        except _FAILURES as error:
            results = [self._broken(error) for _ in units]
        else:
            results = self._transact(units, prune=True)
            self._restarted = False
        if _told(units):
            self._deliver()
        left = iter(results)
        for job in jobs:
            self._desk.forget(row for unit in job.units for row in unit.rows)  # they are in the tables, or nowhere
            job.settle(list(islice(left, len(job.units))))

    def _transact(self, units: Sequence[Unit], *, prune: bool) -> list[Any]:
        """Do all of it in the transaction that was begun, and end that; what each unit gave, or why it was not done.

        Args:
            prune: whether it may take so long as pruning does, if that is due.
        """
        db = self._connection
        try:
            books = AccountBalances(db)
            alone = len(units) == 1  # then the transaction is its own
            results = [self._unit(unit, books, apart=not (alone or _whole(unit.rows))) for unit in units]
            if alone and isinstance(results[0], FocalrouteError):
                roll_back(db)
                return results
            books.save()
            if prune:
                self._prune()
            db.execute("COMMIT")
        except Exception as error:  # noqa: BLE001 - every waiter is told, and the store goes on
            roll_back(db)
            results = [self._broken(error) for _ in units]
        return results

    def _unit(self, unit: Unit, books: AccountBalances, *, apart: bool) -> Any:
        """Do what one call wants; if it cannot be done, why.

        Args:
            apart: whether nothing of it shall then be done, though the transaction goes on.

        Raises:
            sqlite3.Error: the database itself fails, and the whole transaction with it.
        """
        db = self._connection
        if apart:
            db.execute("SAVEPOINT unit")
        try:
            result = unit.work(db, books)
        except FocalrouteError as error:
            result = error
        except Exception as error:
            if isinstance(error, sqlite3.Error) and not isinstance(error, _WRONG_ROWS):
                raise
            result = StoreError(f"{self._name}: a row cannot be stored ({type(error).__name__}: {error})")
        if apart and isinstance(result, FocalrouteError):
            db.execute("ROLLBACK TO unit")
        if apart:
            db.execute("RELEASE unit")
        self._unpruned += len(unit.rows)
        self._unchecked += len(unit.rows) or 1
        return result

    def _prune(self) -> None:
        if self._keep is not None and self._prunable:
            tables.prune(self._connection, self._keep)
            self._unpruned = 0

    @property
    def _prunable(self) -> bool:
        return self._keep is not None and self._unpruned >= min(_PRUNE_EVERY, self._keep)

    def _tidy(self) -> None:
        """What callers that commit by themselves leave behind."""
        try:
            if self._prunable:
                begin_writing(self._connection, _BUSY_S)
                self._prune()
                self._connection.execute("COMMIT")
            if self._unchecked >= _CHECKPOINT_EVERY:
                self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
                self._unchecked, self._restarted = 0, self._path is not None
        except _FAILURES as error:
            roll_back(self._connection)
            _log.warning("what was written could not be tidied up, it is tried again: %s", self._broken(error))

    def _look(self, job: Read) -> None:
        """Read in one transaction, so that all of it sees the same rows."""
        try:
            with patient(self._connection, _BUSY_S):
                self._connection.execute("BEGIN")
                result = job.work(self._connection)
        except BaseException as error:  # noqa: BLE001 - it is raised where the reader waits
            roll_back(self._connection)
            job.future.set_exception(self._broken(error) if isinstance(error, _FAILURES) else error)
        else:
            roll_back(self._connection)  # nothing was written, and a damaged database may not even commit that
            job.future.set_result(result)

    def _deliver(self) -> None:
        """Tell the listeners what feedback was committed, or probed after it was, since the last time, by anybody."""
        if not self._listeners:
            return
        try:
            with patient(self._connection, _BUSY_S):
                probe = tables.newest_probe(self._connection)
                rows: list[tables.Judged] = []
                if probe > self._probes_heard:
                    rows = tables.feedback_probed_after(self._connection, self._probes_heard, self._heard)
                news, self._heard = tables.feedback_after(self._connection, self._heard)
                self._probes_heard = probe
        except _FAILURES as error:
            _log.warning("feedback could not be read, it is tried again: %s", self._broken(error))
            return
        tell(tuple(self._listeners), rows + news)


def _told(units: Iterable[Unit]) -> bool:
    """Whether listeners are told of something in it."""
    return any(isinstance(row, Feedback | StoredProbe) for unit in units for row in unit.rows)


def _whole(rows: Sequence[Row]) -> bool:
    """Whether what is done for these rows is one statement, which SQLite does as a whole or not at all."""
    return not rows or (len(rows) == 1 and isinstance(rows[0], Feedback))


def _inserting(rows: Sequence[Row]) -> Unit:
    return Unit(rows, lambda db, books: tables.insert_all(db, books, rows))


def _code(error: Exception) -> int:
    """SQLite's primary result code, 0 where there is none."""
    code = sqlite3.SQLITE_CORRUPT if isinstance(error, UnicodeDecodeError) else getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF
