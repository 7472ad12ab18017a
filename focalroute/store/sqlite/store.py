"""The default store: SQLite, in a file or in memory.

One thread works through a queue of jobs. It commits all calls that wait in the queue together, so that writers share a
commit; each call is a unit within it that fails alone. Reads wait in the same queue, so they see every row queued
before them.

If the queue is empty and the database is not in use, a caller commits in its own thread (`SqliteStore.write_calls`),
since waking another thread takes several times as long as a commit. Slow work is left to the store's thread: waiting
for a locked file or the disk, checkpoints, pruning, calling subscribers.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from focalroute.core.errors import FocalrouteError, StoreError
from focalroute.core.records import Feedback
from focalroute.store.accounts import SETTLE_EVERY_S, Account, Balance
from focalroute.store.base import (
    BalanceDifference,
    Grouping,
    LedgerSum,
    Outcomes,
    Reservation,
    ReservationResult,
    Row,
    StoredAnswer,
    StoredProbe,
)
from focalroute.store.engine import Job, QueuedStore, ReadJob, Resolved, WriterQueue
from focalroute.store.sqlite import database, reads
from focalroute.store.sqlite.checksums import Chain, CommitLog
from focalroute.store.sqlite.writes import AccountBalances, insert, prune, sum_up

if TYPE_CHECKING:
    import sqlite3

T = TypeVar("T")

_log = logging.getLogger("focalroute.store")

_BATCH = 1000
_KEPT_IN_MEMORY = 10_000
_PRUNE_EVERY = 500  # rows
_SUM_EVERY = 1000  # rows
_SUMMED_AT_ONCE = 5000  # rows: asks wait about 10 ms for them
_CHECKPOINT_EVERY = 300  # rows of this process: about 1,000 pages, SQLite's own default
_SLOW_S = 0.05  # after a commit that waited longer, callers leave their commits to the store's thread
_SLOW_FOR_S = 10.0  # for this long
_JUMP_S = 60.0  # a clock set ahead by more is worth a warning
#: A clock that cannot be set and that runs on while the machine sleeps: Linux's, else macOS's.
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Unit(NamedTuple):
    """The work of one call, and the rows that it writes."""

    rows: Sequence[Row]
    work: Callable[[sqlite3.Connection, AccountBalances], Any]


@dataclass(eq=False, slots=True)
class TransactionJob(Job):
    """Work for a write transaction.

    Attributes:
        units: each is atomic.
        single: whether there is one unit, whose result the future gets; else it gets the list of all results.
    """

    units: Sequence[Unit]
    single: bool

    def settle(self, results: list[Any]) -> None:
        """Resolve the future with the units' results, or the errors of those that failed."""
        if not self.single:
            self.future.set_result(results)
        elif isinstance(results[0], FocalrouteError):
            self.future.set_exception(results[0])
        else:
            self.future.set_result(results[0])


class SqliteStore(QueuedStore["sqlite3.Connection"]):
    """Answers, feedback, capabilities and the ledger in one SQLite database. Safe to use from any thread.

    After a fork only the parent may use the store; the child opens its own.

    Args:
        path: the file, created if missing (its folder must exist); None: in memory.
        durability: "normal": a committed row survives the death of the process; "full": a power failure too.
        keep: how many of the latest answers to keep, with their feedback; None: all in a file, 10,000 in memory. The
            ledger's sums are never pruned.
        poll_s: how often to look for feedback from other processes.
        maintain: whether to add up its ledger; if not, its file may be read-only.

    Raises:
        StoreError: it cannot be opened, is not a focalroute database, or was written by a newer version.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        durability: Literal["normal", "full"] = "normal",
        keep: int | None = None,
        poll_s: float = 0.25,
        maintain: bool = True,
    ) -> None:
        super().__init__(reads)
        if path is not None and os.fspath(path) == ":memory:":  # SQLite's own name for a database in memory
            path = None
        self._path = None if path is None else Path(path)
        self._name = "the store in memory" if self._path is None else str(self._path)
        self._maintain = maintain
        self._keep = _KEPT_IN_MEMORY if keep is None and path is None else keep
        self._poll_s = poll_s
        if self._path is not None:
            database.prepare(self._path)
        self._file = None if self._path is None else self._path.absolute()  # the working folder may change
        self._commit_log = CommitLog(self._file)
        self._connection = database.open_database(
            self._path, self._name, self._commit_log, full=durability == "full", to_write=maintain
        )
        self._chain = Chain(self._connection)
        self._opened_file = database.OpenedFile(self._file, self._connection)
        self._using = threading.Lock()  # held while using the connection
        self._copying = threading.Lock()
        self._slow_until = math.inf if durability == "full" else 0.0  # until then the store's thread commits
        self._since_checkpoint = 0  # rows written since the last checkpoint
        self._next_write_syncs = False  # the first write after a checkpoint waits for the disk
        self._unpruned = _PRUNE_EVERY  # an earlier process may have left rows to prune
        self._unsummed = _SUM_EVERY if maintain else 0  # or to add up
        self._next_settling = time.monotonic() + SETTLE_EVERY_S
        self._clock_lead = _lead_over_steady_clock()
        self._queue = WriterQueue(self._name, self._work, trouble="is the file locked, or its disk too slow?")
        self._queue.open()
        self._change_balances(AccountBalances.settle_overdue).exception()  # ignored: `verify` reports a damaged file

    # -- the interface -----------------------------------------------------------------------------------------------

    def write(self, *rows: Row) -> Future[None]:
        """See `Store.write`."""
        return self._submit(TransactionJob([_insertion(rows)], single=True))

    def write_calls(self, calls: Sequence[Sequence[Row]]) -> Future[Outcomes]:
        """See `Store.write_calls`."""
        units = [_insertion(rows) for rows in calls]
        if _concerns_subscribers(units):
            return self._submit(TransactionJob(units, single=False))  # the store's thread calls them
        return self._do_or_queue(units, single=False)

    def open_accounts(self, accounts: Iterable[Account]) -> Mapping[Account, Balance]:
        """See `Store.open_accounts`."""
        opened: Mapping[Account, Balance] = self._change_balances(lambda balances: balances.open(accounts)).result()
        return opened

    def reserve(self, reservation: Reservation, limits: Mapping[Account, Decimal]) -> Future[ReservationResult]:
        """See `Store.reserve`."""

        def work(_: sqlite3.Connection, balances: AccountBalances) -> ReservationResult:
            if limits:
                self._opened_file.require_in_place()
            return balances.reserve(reservation, limits)

        return self._do_or_queue([Unit((), work)], single=True)

    def balances(self, accounts: Iterable[Account]) -> Future[Mapping[Account, Balance]]:
        """See `Store.balances`."""

        def work(db: sqlite3.Connection) -> Mapping[Account, Balance]:
            return AccountBalances(db, time.time(), self._chain).balances(accounts)

        return self._look_up(work)

    def recent(self, limit: int) -> Iterable[tuple[StoredAnswer, tuple[Feedback, ...]]]:
        """See `Store.recent`."""
        return reads.latest_answers(self._read, limit)

    def ledger(self, by: Grouping) -> Sequence[LedgerSum]:
        """See `Store.ledger`."""
        return self._read_in_caller(lambda db: reads.ledger_sums(db, by))

    def totals(self) -> Mapping[str, LedgerSum]:
        """See `Store.totals`."""
        return self._read_in_caller(reads.totals)

    def verify(self) -> tuple[str, ...]:
        """See `Store.verify`."""
        return self._read_in_caller(reads.find_problems)

    def reconcile(self, *, repair: bool = False) -> Sequence[BalanceDifference]:
        """See `Store.reconcile`."""
        if not repair:
            return self._read_in_caller(reads.reconcile)
        repaired: Sequence[BalanceDifference] = self._change_balances(AccountBalances.repair).result()
        return repaired

    @contextmanager
    def on_disk(self, latest: int) -> Iterator[Path]:
        """Yield the store's file, or for a store in memory a temporary copy with its latest answers and their feedback.

        Only this user may read the copy. ``on_feedback`` callbacks must not call this.

        Raises:
            StoreError: the copy cannot be written.
        """
        if self._file is not None and self._file.is_file():
            yield self._file
            return
        with TemporaryDirectory(prefix="focalroute-") as folder:
            file = Path(folder) / "store.db"
            self._read(lambda _: None)  # waits for queued writes
            try:
                with self._copying:
                    database.copy_answers(self._connection, self._using, file, latest)
            except database.FAILURES as error:
                raise StoreError(f"{file}: a copy of {self._name} cannot be written: {error}") from None
            yield file

    # -- any thread --------------------------------------------------------------------------------------------------

    def _read_in_caller(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Read a file in the calling thread: reading all of it may take seconds, for which asks would have to wait."""
        if self._file is None or not self._maintain or self._queue.inside:
            return self._read(work)
        self._read(lambda _: None)  # waits for queued writes, and finds a file that was replaced
        try:
            with closing(database.open_second(self._file)) as db:
                db.execute("BEGIN")
                return work(db)
        except FocalrouteError:
            raise
        except Exception as error:  # noqa: BLE001 - damage may show as anything
            raise self._error(error) from None

    def _change_balances(self, work: Callable[[AccountBalances], Any]) -> Future[Any]:
        """Queue work on the accounts' balances."""
        return self._submit(_balances_job(work))

    def _do_or_queue(self, units: Sequence[Unit], *, single: bool) -> Future[Any]:
        """Do units in the calling thread if that needs no waiting, else queue them; see `TransactionJob`."""
        results = self._try_in_caller(units)
        if results is None:
            return self._submit(TransactionJob(units, single=single))
        return Resolved(results[0] if single else results)

    def _try_in_caller(self, units: Sequence[Unit]) -> list[Any] | None:
        """Do units in the calling thread; return their results, or None if it would have to wait."""
        if self._next_write_syncs or time.monotonic() < self._slow_until or not self._using.acquire(blocking=False):
            return None
        try:
            if not self._queue.idle:
                return None
            began = time.monotonic() - time.thread_time()  # CPU time does not count as waiting
            try:
                database.begin_writing(self._connection, 0.0)
            except database.FAILURES:
                return None  # the store's thread waits, or reports what is wrong
            results = self._transact(units)
            if time.monotonic() - time.thread_time() - began > _SLOW_S:
                self._slow_until = time.monotonic() + _SLOW_FOR_S
            return results
        finally:
            database.roll_back(self._connection)  # if this thread was interrupted
            self._using.release()

    # -- the store's thread ------------------------------------------------------------------------------------------

    def _work(self) -> None:
        next_poll = time.monotonic() + self._poll_s
        running = True
        while running:
            jobs = self._queue.take(0.0 if self._unsummed >= _SUM_EVERY else next_poll, _BATCH)
            running = None not in jobs
            with self._using:
                self._commit([job for job in jobs if isinstance(job, TransactionJob)])
                self._prune()
                self._sum_up()
                for job in jobs:
                    if isinstance(job, ReadJob):
                        self._do_read(job)
                if time.monotonic() >= next_poll:
                    self._poll()
                    next_poll = time.monotonic() + self._poll_s
            self._queue.done(len(jobs))
        with self._using:
            self._connection.close()
            self._commit_log.close()

    def _poll(self) -> None:
        """Do what is due now and then: deliver feedback from other processes, and maintain the file."""
        self._deliver()
        self._checkpoint()
        self._watch_clock()
        if time.monotonic() >= self._next_settling:
            self._commit([_balances_job(AccountBalances.settle_overdue)])
            self._next_settling = time.monotonic() + SETTLE_EVERY_S
        self._commit_log.write()

    def _watch_clock(self) -> None:
        """Warn if the clock was set far ahead since the last call."""
        before, self._clock_lead = self._clock_lead, _lead_over_steady_clock()
        ahead_s = self._clock_lead - before
        if ahead_s > _JUMP_S:
            _log.warning(
                "%s: the clock was set ahead by %.0f s, so budgets may begin their next period early",
                self._name,
                ahead_s,
            )

    def _commit(self, jobs: list[TransactionJob]) -> None:
        """Commit all jobs in one transaction, deliver their feedback, then settle their futures."""
        if not jobs:
            return
        results: list[Any]
        units = [unit for job in jobs for unit in job.units]
        try:
            database.begin_writing(self._connection, database.BUSY_S)
        except database.FAILURES as error:
            results = [self._error(error) for _ in units]
        else:
            results = self._transact(units)
            self._next_write_syncs = False
        if _concerns_subscribers(units):
            self._deliver()
        left = iter(results)
        for job in jobs:
            job.settle(list(islice(left, len(job.units))))

    def _transact(self, units: Sequence[Unit]) -> list[Any]:
        """Do units in the open transaction and commit it; return each unit's result or error."""
        db = self._connection
        try:
            self._opened_file.require_in_place_if_due()
            chain = self._chain
            chain.begin()
            balances = AccountBalances(db, time.time(), chain)
            single = len(units) == 1  # so it needs no savepoint
            results = [self._do_unit(unit, balances, savepoint=not single) for unit in units]
            if single and isinstance(results[0], FocalrouteError):
                database.roll_back(db)
                return results
            balances.save()
            mark = chain.save()
            db.execute("COMMIT")
            self._commit_log.add(mark)
        except Exception as error:  # noqa: BLE001 - raised by every future; the store goes on
            database.roll_back(db)
            results = [error if isinstance(error, StoreError) else self._error(error) for _ in units]
        return results

    def _do_unit(self, unit: Unit, balances: AccountBalances, *, savepoint: bool) -> Any:
        """Do the work of one call; return its result or error.

        Args:
            savepoint: whether to undo a failing unit alone, so that the transaction can go on.

        Raises:
            sqlite3.Error: the database itself fails, and with it the whole transaction.
        """
        db = self._connection
        counts = balances.chain.counts
        if savepoint:
            db.execute("SAVEPOINT unit")
        try:
            result = unit.work(db, balances)
        except FocalrouteError as error:
            result = error
        except Exception as error:
            if isinstance(error, db.Error) and not isinstance(error, database.ROW_ERRORS):
                raise
            result = StoreError(f"{self._name}: a row cannot be stored ({type(error).__name__}: {error})")
        if savepoint and isinstance(result, FocalrouteError):
            db.execute("ROLLBACK TO unit")
            balances.chain.counts = counts
        if savepoint:
            db.execute("RELEASE unit")
        self._unpruned += len(unit.rows)
        self._unsummed += len(unit.rows)
        self._since_checkpoint += len(unit.rows) or 1
        return result

    def _prune(self) -> None:
        """Prune the oldest answers, if that is due."""
        keep = self._keep
        if keep is None or self._unpruned < min(_PRUNE_EVERY, keep):
            return
        self._unpruned = 0
        job = TransactionJob([Unit((), lambda db, balances: prune(db, keep, balances.chain))], single=True)
        self._commit([job])
        if (error := job.future.exception()) is not None:
            _log.warning("pruning failed, trying again later: %s", error)

    def _sum_up(self) -> None:
        """Add the next rows to the ledger's sums, if that is due."""
        if self._unsummed < _SUM_EVERY:
            return
        unit = Unit((), lambda db, _: sum_up(db, least=_SUM_EVERY, most=_SUMMED_AT_ONCE))
        job = TransactionJob([unit], single=True)
        self._commit([job])
        if job.future.exception() is not None or not job.future.result():
            self._unsummed = 0

    def _checkpoint(self) -> None:
        """Checkpoint, which callers that commit in their own thread leave to this one."""
        try:
            if self._since_checkpoint >= _CHECKPOINT_EVERY:
                self._opened_file.require_in_place()  # else the checkpoint would write into a file copied over ours
                self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
                self._since_checkpoint, self._next_write_syncs = 0, self._path is not None
        except StoreError:
            self._since_checkpoint = 0  # the next caller gets this error
        except database.FAILURES as error:
            _log.warning("a checkpoint failed, trying again: %s", self._error(error))

    def _do_read(self, job: ReadJob) -> None:
        """Do a read in one transaction, so that all its queries see the same rows."""
        try:
            self._opened_file.require_in_place_if_due()
            with database.patient(self._connection):
                self._connection.execute("BEGIN")
                result = job.work(self._connection)
        except BaseException as error:  # noqa: BLE001 - raised in the waiting reader
            database.roll_back(self._connection)
            if isinstance(error, Exception) and not isinstance(error, FocalrouteError):
                error = self._error(error)
            job.future.set_exception(error)
        else:
            # Nothing was written, and a damaged database may fail to commit even that.
            database.roll_back(self._connection)
            job.future.set_result(result)

    def _deliver(self) -> None:
        """Call the subscribers with new feedback."""
        try:
            with database.patient(self._connection):
                self._subscription.deliver(self._connection)
        except database.FAILURES as error:
            _log.warning("feedback could not be read, trying again: %s", self._error(error))

    def _error(self, error: Exception) -> StoreError:
        return database.store_error(self._name, error)


def _lead_over_steady_clock() -> float:
    return time.time() - time.clock_gettime(_STEADY)


def _concerns_subscribers(units: Iterable[Unit]) -> bool:
    """Whether subscribers are called about any of the rows."""
    return any(isinstance(row, (Feedback, StoredProbe)) for unit in units for row in unit.rows)


def _balances_job(work: Callable[[AccountBalances], Any]) -> TransactionJob:
    return TransactionJob([Unit((), lambda _, balances: work(balances))], single=True)


def _insertion(rows: Sequence[Row]) -> Unit:
    """The unit that inserts the rows of one call and counts their cost."""

    def work(db: sqlite3.Connection, balances: AccountBalances) -> None:
        balances.resume(rows)
        for row in rows:
            insert(db, row, balances.chain)
        balances.count(rows)

    return Unit(rows, work)
