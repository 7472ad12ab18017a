"""Code that both engines (SQLite, Redis) share.

The queue of jobs for the one thread that owns the connection, reads through that queue, and the delivery of feedback to
subscribers.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

from focalroute.core.errors import FocalrouteError, StoreError, UnknownAnswer
from focalroute.store.accounts import Account, AccountState
from focalroute.store.base import (
    REVISION,
    BalanceDifference,
    CapabilityRow,
    FeedbackRows,
    Grouping,
    HealthRow,
    LedgerSum,
    OnFeedback,
    StoredAnswer,
)

_log = logging.getLogger("focalroute.store")

#: How many of the latest ledger rows are kept for each answer that is kept.
LEDGER_ROWS_AN_ANSWER = 8
_MOST_WAITING = 10_000  # jobs; beyond it the queue would only eat memory

T = TypeVar("T")
ConnectionT = TypeVar("ConnectionT")
ReadConnectionT = TypeVar("ReadConnectionT", contravariant=True)
#: How far a subscription has read, in the engine's own terms.
Position = Any


# -- the queue ---------------------------------------------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class Job:
    """Work for the store's thread.

    Attributes:
        future: resolves when the job is done.
        until: when the caller gives up (monotonic clock); only the Redis store uses it.
    """

    future: Future[Any] = field(default_factory=Future, init=False)
    until: float = field(default=0.0, init=False)


class Resolved(Future[T]):
    """A future that is done already. It has no lock, so making one takes a tenth of the time of an ordinary future.

    Args:
        outcome: the result, or the error.
    """

    def __init__(self, outcome: T | FocalrouteError) -> None:
        self._outcome = outcome

    def done(self) -> bool:
        """Return True."""
        return True

    def running(self) -> bool:
        """Return False."""
        return False

    cancel = cancelled = running

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error, if it is one."""
        return self._outcome if isinstance(self._outcome, FocalrouteError) else None

    def result(self, timeout: float | None = None) -> T:
        """Return the result, or raise the error."""
        if isinstance(self._outcome, FocalrouteError):
            raise self._outcome
        return self._outcome

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        """Call the function at once."""
        fn(self)


@dataclass(eq=False, slots=True)
class ReadJob(Job):
    """Work that only reads, or that is safe to repeat; ``work`` gets the connection."""

    work: Callable[[Any], Any]


class WriterQueue:
    """The queue of jobs for the store's thread.

    Args:
        name: the store's name, for errors.
        work: the thread's function, which returns once `take` has returned None as the last job.
        trouble: the likely cause if too many jobs wait, for the error.
        waiting: counts the jobs that were taken from the queue but still wait.

    Attributes:
        closed: whether it accepts no more jobs.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], None],
        *,
        trouble: str,
        waiting: Callable[[], int] = lambda: 0,
    ) -> None:
        self._name = name
        self._trouble = trouble
        self._waiting = waiting
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._undone = 0  # jobs queued or taken, but not done yet
        self._lock = threading.Lock()  # guards what any thread may touch: _undone, closed
        self.closed = False
        self._thread = threading.Thread(target=work, name="focalroute-store", daemon=True)

    def open(self) -> None:
        """Start the thread; the queue closes itself when the program exits."""
        self._thread.start()
        atexit.register(self.close)

    def close(self) -> None:
        """Accept no more jobs, and wait until the queued ones are done."""
        with self._lock:
            if not self.closed:
                self.closed = True
                self._undone += 1
                self._queue.put(None)
        atexit.unregister(self.close)
        if not self.inside:
            self._thread.join()

    @property
    def inside(self) -> bool:
        """Whether the caller is on the store's thread, as ``on_feedback`` callbacks are, and must not wait for it."""
        return threading.current_thread() is self._thread

    def submit(self, job: Job) -> None:
        """Queue a job; if it cannot be queued, its future fails with `StoreError`."""
        job.future.set_running_or_notify_cancel()  # a queued job cannot be cancelled
        with self._lock:
            refusal = self._refusal()
            if refusal is None:
                self._undone += 1
                self._queue.put(job)
        if refusal is not None:
            job.future.set_exception(StoreError(f"{self._name}: {refusal}"))

    def take(self, until: float, most: int = _MOST_WAITING) -> list[Job | None]:
        """Wait for a job until this time (monotonic clock), then take up to ``most``; a last None: it was closed."""
        jobs: list[Job | None] = []
        with contextlib.suppress(queue.Empty):
            jobs.append(self._queue.get(timeout=max(until - time.monotonic(), 0.001)))
            while len(jobs) < most and jobs[-1] is not None:
                jobs.append(self._queue.get_nowait())
        return jobs

    def done(self, count: int) -> None:
        """Note that this many of the taken jobs are done."""
        with self._lock:
            self._undone -= count

    @property
    def idle(self) -> bool:
        """Whether the queue is open and every job is done."""
        return not self._undone and not self.closed and self._thread.is_alive()

    def _refusal(self) -> str | None:
        """Return why no job can be taken now; None if one can."""
        if self.closed:
            return "the store is closed"
        if not self._thread.is_alive():
            return "the store was opened before a fork; open it after"
        if self._queue.qsize() + self._waiting() >= _MOST_WAITING:
            return f"{_MOST_WAITING} jobs wait already; {self._trouble}"
        return None


# -- reading -----------------------------------------------------------------------------------------------------------


class EngineReads(Protocol[ReadConnectionT]):
    """An engine's module of functions that read from its connection."""

    def find_answer(self, connection: ReadConnectionT, answer_id: str, /) -> StoredAnswer | None:
        """See `Store.answer`; StoreError if the answer is damaged."""

    def find_capabilities(self, connection: ReadConnectionT, key: str, /) -> CapabilityRow | None:
        """See `Store.capabilities`; None also for a damaged row, so that the endpoint is checked again."""

    def find_health(self, connection: ReadConnectionT, /) -> Mapping[str, HealthRow]:
        """See `Store.health`; damaged rows are left out."""

    def ledger_sums(self, connection: ReadConnectionT, by: Grouping, /) -> list[LedgerSum]:
        """See `Store.ledger`."""

    def totals(self, connection: ReadConnectionT, /) -> Mapping[str, LedgerSum]:
        """See `Store.totals`."""

    def find_problems(self, connection: ReadConnectionT, /) -> tuple[str, ...]:
        """See `Store.verify`."""

    def newest(self, connection: ReadConnectionT, /) -> Position:
        """The position after the newest feedback and the newest probe."""

    def latest_feedback(self, connection: ReadConnectionT, last: int, position: Position, /) -> FeedbackRows:
        """All feedback, up to a position, on the ``last`` answers that got any most recently."""

    def feedback_after(self, connection: ReadConnectionT, position: Position, /) -> tuple[FeedbackRows, Position]:
        """Older feedback on answers probed since the position, then the feedback since; and the new position."""


def unknown_answer(answer_id: str) -> UnknownAnswer:
    """Make the error for feedback on an answer that is not in the store."""
    return UnknownAnswer(
        f"the store has no answer with id {answer_id[:99]!r}; use the store that its ask used. Answers "
        "with durable=False are not stored, and a store in memory or on Redis keeps only the latest"
    )


def source_name(source: str) -> str:
    """The source of a stored feedback, without its revision number."""
    return source.partition(REVISION)[0]


def duplicate_answer(answer_id: str) -> StoreError:
    """Make the error for an answer whose id is already stored."""
    return StoreError(f"an answer with id {answer_id!r} is stored already; ids must be unique")


def difference_of(account: Account, kept: AccountState | None, true: AccountState) -> BalanceDifference:
    """The difference between an account's stored state (None: unreadable) and the sum of its rows."""
    return BalanceDifference(account, None if kept is None else kept.balance(account), true.balance(account))


def with_totals(kept: Iterable[LedgerSum], totals: Mapping[str, LedgerSum]) -> list[LedgerSum]:
    """The sums of the rows that are kept, by endpoint, but with the calls, tokens and costs of pruned rows too."""
    sums = {row.key: row for row in kept}
    for key, total in totals.items():
        if total.calls:
            own = sums.get(key, LedgerSum(key))
            sums[key] = replace(
                total, asks=own.asks, estimated=own.estimated, estimated_cost=own.estimated_cost, held=own.held
            )
    return [sums[key] for key in sorted(sums)]


def unless_damaged(read: Callable[[], T]) -> list[T]:
    """The result in a list; for a damaged row an empty list and a warning, so that other rows can still be read."""
    try:
        return [read()]
    except StoreError as error:
        _log.warning("%s; it is left out", error)
        return []


class FeedbackSubscription(Generic[ConnectionT]):
    """The ``on_feedback`` callbacks of one process, and how far they have read. For the store's thread."""

    def __init__(self, reads: EngineReads[ConnectionT]) -> None:
        self._reads = reads
        self._callbacks: list[OnFeedback] = []
        self._late: list[tuple[OnFeedback, int]] = []
        self._position: Position = None

    def join(self, connection: ConnectionT, on_feedback: OnFeedback, last: int) -> None:
        """Add a callback: call it with the latest feedback, and from now on with all new feedback."""
        self._call_all(connection)  # brings the earlier callbacks to the same position
        if not self._callbacks:
            self._position = self._reads.newest(connection)
        _call([on_feedback], self._reads.latest_feedback(connection, last, self._position))
        self._callbacks.append(on_feedback)

    def join_later(self, on_feedback: OnFeedback, last: int) -> None:
        """Add a callback at the next `deliver`, as the store cannot be read now."""
        self._late.append((on_feedback, last))

    def deliver(self, connection: ConnectionT) -> None:
        """Call every callback with the feedback that was committed, or whose answer was probed, since the last call."""
        while self._late:
            self.join(connection, *self._late[0])
            del self._late[0]
        self._call_all(connection)

    def _call_all(self, connection: ConnectionT) -> None:
        if self._callbacks:
            rows, self._position = self._reads.feedback_after(connection, self._position)
            _call(tuple(self._callbacks), rows)


def _call(callbacks: Iterable[OnFeedback], rows: FeedbackRows) -> None:
    """Call each callback with the rows, if there are any; a failing callback is logged and skipped."""
    if not rows:
        return
    for on_feedback in callbacks:
        try:
            on_feedback(rows)
        except BaseException:  # noqa: BLE001 - the thread must go on for the other callers
            _log.exception(
                "an on_feedback callback failed on %d rows of feedback; it will not see them again", len(rows)
            )


class QueuedStore(Generic[ConnectionT]):
    """A store with one thread that owns the connection and works through a queue of jobs."""

    _queue: WriterQueue
    _connection: ConnectionT

    def __init__(self, reads: EngineReads[ConnectionT]) -> None:
        self._reads = reads
        self._subscription = FeedbackSubscription(reads)

    def answer(self, answer_id: str) -> StoredAnswer | None:
        """See `Store.answer`."""
        return self._read(lambda db: self._reads.find_answer(db, answer_id))

    def subscribe(self, on_feedback: OnFeedback, *, last: int) -> None:
        """See `Store.subscribe`."""
        self._read(lambda db: self._subscription.join(db, on_feedback, last))

    def capabilities(self, key: str) -> CapabilityRow | None:
        """See `Store.capabilities`."""
        return self._read(lambda db: self._reads.find_capabilities(db, key))

    def health(self) -> Future[Mapping[str, HealthRow]]:
        """See `Store.health`."""
        return self._look_up(self._reads.find_health)

    def ledger(self, by: Grouping) -> Sequence[LedgerSum]:
        """See `Store.ledger`."""
        return self._read(lambda db: self._reads.ledger_sums(db, by))

    def totals(self) -> Mapping[str, LedgerSum]:
        """See `Store.totals`."""
        return self._read(self._reads.totals)

    def verify(self) -> tuple[str, ...]:
        """See `Store.verify`."""
        return self._read(self._reads.find_problems)

    def close(self) -> None:
        """See `Store.close`."""
        self._queue.close()

    def _read(self, work: Callable[[ConnectionT], T]) -> T:
        if self._queue.inside:
            return self._read_now(work)
        return self._look_up(work).result()

    def _look_up(self, work: Callable[[ConnectionT], T]) -> Future[T]:
        return self._submit(ReadJob(work))

    def _submit(self, job: Job) -> Future[Any]:
        """Queue a job and return its future."""
        self._queue.submit(job)
        return job.future

    def _read_now(self, work: Callable[[ConnectionT], T]) -> T:
        """Read on the store's own thread."""
        return work(self._connection)
