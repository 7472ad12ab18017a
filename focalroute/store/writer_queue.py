"""The queue from a store's callers, on any thread, to the one thread that owns its connection."""

from __future__ import annotations

import atexit
import contextlib
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from focalroute.core.errors import StoreError
from focalroute.store.base import Row, StoredAnswer, StoredProbe

_MOST_WAITING = 10_000  # beyond it the queue would only eat memory
_RECENT = 512


@dataclass(eq=False, slots=True)
class Job:
    """Work for the store's thread.

    Attributes:
        future: resolves when the job is done.
        until: when the caller gives up (monotonic clock); only the Redis store uses it.
    """

    future: Future[Any] = field(default_factory=Future, init=False)
    until: float = field(default=0.0, init=False)


@dataclass(eq=False, slots=True)
class ReadJob(Job):
    """Work that only reads, or that can be repeated safely; ``work`` gets the connection."""

    work: Callable[[Any], Any]


JobT = TypeVar("JobT", bound=Job)


class WriterQueue(Generic[JobT]):
    """Takes jobs for the store's thread, and holds the latest answers, readable before they are written.

    Args:
        name: the store's name, for errors.
        work: the thread's function, which returns once `take` has returned None as the last job.
        keep: how many answers the store keeps; None: all.
        trouble: the likely cause if too many jobs wait, for the error.
        waiting: counts the jobs that wait outside this queue.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], None],
        *,
        keep: int | None,
        trouble: str,
        waiting: Callable[[], int] = lambda: 0,
    ) -> None:
        self._name = name
        self._most_recent = min(_RECENT, keep or _RECENT)
        self._trouble = trouble
        self._waiting = waiting
        self._queue: queue.SimpleQueue[JobT | None] = queue.SimpleQueue()
        self._recent: OrderedDict[str, StoredAnswer] = OrderedDict()  # drops its oldest in O(1)
        self._undone = 0  # jobs that are not done yet
        self._lock = threading.Lock()  # guards what any thread may touch: _recent, _undone, _closed
        self._closed = False
        self._thread = threading.Thread(target=work, name="focalroute-store", daemon=True)

    def open(self) -> None:
        """Start the thread; the queue closes itself when the program exits."""
        self._thread.start()
        atexit.register(self.close)

    def close(self) -> None:
        """Take no more jobs, and wait until the queued ones are done."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._undone += 1
                self._queue.put(None)
        atexit.unregister(self.close)
        if not self.inside:
            self._thread.join()

    @property
    def closed(self) -> bool:
        """Whether the queue takes no more jobs."""
        return self._closed

    @property
    def inside(self) -> bool:
        """Whether the caller is on the store's thread, as ``on_feedback`` callbacks are, and must not wait for it."""
        return threading.current_thread() is self._thread

    def submit(self, job: JobT, rows: Iterable[Row] = ()) -> None:
        """Queue a job and the rows it writes; if it cannot be queued, its future fails with `StoreError`."""
        job.future.set_running_or_notify_cancel()  # a queued job cannot be cancelled
        with self._lock:
            refusal = self._refusal()
            if refusal is None:
                self._remember(rows)
                self._undone += 1
                self._queue.put(job)
        if refusal is not None:
            job.future.set_exception(StoreError(f"{self._name}: {refusal}"))

    def take(self, until: float, most: int = _MOST_WAITING) -> list[JobT | None]:
        """Wait for a job until this time (monotonic clock), then take up to ``most``; None comes last, on closing."""
        jobs: list[JobT | None] = []
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
        return not self._undone and not self._closed and self._thread.is_alive()

    def answer(self, answer_id: str) -> StoredAnswer | None:
        """Look up one of the latest answers, written or still queued; None: look into the store."""
        with self._lock:
            return self._recent.get(answer_id)

    def forget(self, rows: Iterable[Row]) -> None:
        """Forget the answers among these rows, as they are now in the store or were refused."""
        with self._lock:
            for row in rows:
                if isinstance(row, StoredAnswer) and self._recent.get(row.id) is row:
                    del self._recent[row.id]

    def _refusal(self) -> str | None:
        """Return why no job can be taken now; None if one can."""
        if self._closed:
            return "the store is closed"
        if not self._thread.is_alive():
            return "the store was opened before a fork; open it after"
        if self._queue.qsize() + self._waiting() >= _MOST_WAITING:
            return f"{_MOST_WAITING} jobs wait already; {self._trouble}"
        return None

    def _remember(self, rows: Iterable[Row]) -> None:
        for row in rows:
            if isinstance(row, StoredAnswer):
                self._recent.setdefault(row.id, row)
            elif isinstance(row, StoredProbe):
                self._recent.pop(row.answer_id, None)  # it lacks the new probe
        while len(self._recent) > self._most_recent:
            self._recent.popitem(last=False)
