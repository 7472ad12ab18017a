"""Sends jobs to Redis, each exactly once, and keeps them while Redis is unavailable."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from focalroute.core.errors import FocalrouteError, StoreError
from focalroute.core.records import Feedback
from focalroute.store.base import Release, Row, StoredProbe
from focalroute.store.engine import FeedbackSubscription, Job, ReadJob
from focalroute.store.redis.connection import DataLost, RedisConnection, RedisUnavailable
from focalroute.store.redis.journal import Entry, Journal
from focalroute.store.redis.rows import pack_rows, refusal

_AGAIN_S = 0.1  # between two tries to reach Redis
_BATCH = 500
_EARLY = [b"early"]  # the reply of `write.lua` to a call if Redis lacks earlier calls of its writer

_STILL_WRITTEN = ". It is still written if Redis comes back while this process lives"
_FORGOT = "Redis has lost writes that it had acknowledged: it was restarted or replaced without them"

_log = logging.getLogger("focalroute.store")


@dataclass(eq=False, slots=True)
class WriteJob(Job):
    """A call that writes rows by ``write.lua``.

    Attributes:
        number: the call's number among those of its writer, kept when it is sent again; 0: none yet.
    """

    rows: tuple[Row, ...]
    keys: list[str]
    words: list[bytes]
    number: int = field(default=0, init=False)


@dataclass(eq=False, slots=True)
class ScriptJob(Job):
    """A script that is safe to run again.

    Attributes:
        read: decodes its reply.
        undo: the row to write if the caller gave up waiting, although the script may have run.
        sent: whether the script may have run.
    """

    name: str
    words: Sequence[Any]
    read: Callable[[Any], Any]
    undo: Release | None = None
    sent: bool = field(default=False, init=False)


class Sender:
    """Takes jobs in order, sends them to Redis, and completes or fails each. For the store's thread.

    Args:
        journal: where writes go while Redis is unavailable; None: they wait in memory.
        patience_s: how long jobs wait for an unavailable Redis before they fail.
    """

    def __init__(
        self,
        connection: RedisConnection,
        subscription: FeedbackSubscription[RedisConnection],
        writer: str,
        journal: Journal | None,
        patience_s: float,
    ) -> None:
        self._connection = connection
        self._subscription = subscription
        self._writer = writer
        self._journal = journal
        self._patience_s = patience_s
        self._closing = False
        self._number = 0
        self._waiting: deque[Job] = deque()
        self._away_since: float | None = None
        self._next_try = 0.0
        self._data_lost = False
        self._reason = ""
        #: A journal's writer whose earlier calls Redis has lost -> its new name, and what to subtract from its numbers.
        self._renamed: dict[str, tuple[str, int]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def away(self) -> bool:
        """Whether Redis was unavailable at the last attempt."""
        return self._away_since is not None

    def serve(self, jobs: Iterable[Job] = ()) -> None:
        """Send the waiting jobs, then these; while Redis is unavailable, journal or fail them."""
        self._waiting.extend(jobs)
        if self.away and time.monotonic() < self._next_try:
            self._journal_or_fail()
            return
        try:
            self._connection.connect()
            if self._journal:
                self._catch_up(self._journal)
            while self._waiting:
                self._send_batch()
        except (RedisUnavailable, StoreError) as error:
            self.lost(error)
            self._journal_or_fail()
            return
        if self._away_since is not None:
            seconds = time.monotonic() - self._away_since
            _log.warning("Redis is back after %.1f s, and has received what was written meanwhile", seconds)
            self._away_since = None
            self._data_lost = False

    def lost(self, error: Exception) -> None:
        """Note that Redis is unavailable, because of this error."""
        self._connection.drop()
        self._reason = str(error)
        if isinstance(error, DataLost) and not self._data_lost:
            self._data_lost = True
            _log.error("%s", error)
        if not self.away:
            self._away_since = time.monotonic()
            remedy = "trying again" if self._journal is None else "writes wait in the journal"
            _log.warning("%s; %s", error, remedy)
        self._next_try = time.monotonic() + _AGAIN_S

    def give_up(self, error: Exception) -> None:
        """Fail all waiting jobs, after an unexpected error."""
        self._connection.drop()
        waiting, self._waiting = self._waiting, deque()
        for job in waiting:
            _fail(job, StoreError(f"a call failed unexpectedly ({type(error).__name__}); it may have been done"))

    def close(self) -> None:
        """Journal or fail the jobs that still wait."""
        self._patience_s = 0.0
        self._closing = True
        if self._waiting:
            self._journal_or_fail()
        if self._journal is not None:
            self._journal.close()

    # -- sending -----------------------------------------------------------------------------------------------------

    def _send_batch(self) -> None:
        """Send the waiting writes and scripts in one round trip; if there are none, do the first read."""
        batch = [job for job in self._waiting if not isinstance(job, ReadJob)][:_BATCH]
        if not batch:
            self._read(self._waiting[0])
            self._waiting.popleft()
            return
        self._assign_numbers(batch)
        replies = self._connection.run([self._command(job) for job in batch])
        ended: list[tuple[Job, Any]] = []
        unavailable: Exception | None = None
        for job, reply in zip(batch, replies, strict=True):
            if isinstance(reply, Exception):
                error = self._connection.error_of(reply)
                emptied = isinstance(job, WriteJob) and not job.words  # by `_refuse`: even an empty call was refused
                if isinstance(error, RedisUnavailable | DataLost) or emptied:
                    unavailable = error
                else:
                    self._refuse(job, error)
            elif reply != _EARLY:
                ended.append((job, reply))
        if not ended and replies[0] == _EARLY:
            self._restart_numbers()
        self._end(ended)
        if unavailable is not None:
            raise unavailable

    def _assign_numbers(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            if isinstance(job, WriteJob) and not job.number:
                self._number += 1
                job.number = self._number

    def _command(self, job: Job) -> Sequence[Any]:
        if isinstance(job, WriteJob):
            return self._connection.script_command("write", job.keys, (self._writer, job.number, *job.words))
        assert isinstance(job, ScriptJob)  # noqa: S101 - reads are not sent
        job.sent = True
        return self._connection.script_command(job.name, (), job.words)

    def _refuse(self, job: Job, error: FocalrouteError) -> None:
        """Fail a job that Redis will never do. A write becomes an empty call, so that its number is not missing."""
        _fail(job, error)
        if isinstance(job, WriteJob):
            job.rows, job.keys, job.words = (), [], []
        else:
            self._waiting.remove(job)

    def _restart_numbers(self) -> None:
        """Become a new writer, as Redis has lost calls of this one that can no longer be sent again."""
        _log.error(_FORGOT)
        self._writer, self._number = f"{self._writer}+", 0
        for job in self._waiting:
            if isinstance(job, WriteJob):
                job.number = 0

    def _end(self, ended: list[tuple[Job, Any]]) -> None:
        """Remove jobs that are done, call the subscribers, then resolve the jobs' futures."""
        done = {id(job) for job, _ in ended}
        self._waiting = deque(job for job in self._waiting if id(job) not in done)
        written = [row for job, _ in ended if isinstance(job, WriteJob) for row in job.rows]
        if any(isinstance(row, Feedback | StoredProbe) for row in written):
            self._deliver()
        for job, reply in ended:
            if job.future.done():
                continue
            if isinstance(job, ScriptJob):
                self._complete(job, partial(job.read, reply))
            elif (refused := refusal(reply)) is not None:
                job.future.set_exception(refused)
            else:
                job.future.set_result(None)

    def _deliver(self) -> None:
        """Call the subscribers with new feedback; if it cannot be read now, a later call does it."""
        try:
            self._subscription.deliver(self._connection)
        except Exception as error:  # noqa: BLE001 - damage may show as anything
            _log.warning("feedback could not be read, trying again: %s", self._connection.error_of(error))

    def _read(self, job: Job) -> None:
        assert isinstance(job, ReadJob)  # noqa: S101 - all others were sent
        if not job.future.done():
            self._complete(job, partial(job.work, self._connection))

    def _complete(self, job: Job, read: Callable[[], Any]) -> None:
        """Resolve a job's future with what ``read`` returns, or with its error."""
        try:
            job.future.set_result(read())
        except Exception as error:  # noqa: BLE001 - damage may show as anything
            failure = self._connection.error_of(error)
            if isinstance(failure, RedisUnavailable):
                raise failure from None
            job.future.set_exception(failure)

    # -- while Redis is unavailable ----------------------------------------------------------------------------------

    def _journal_or_fail(self) -> None:
        """Put writes into the journal, and fail the other jobs that have waited too long."""
        if self._journal is not None:
            self._add_to(self._journal)
        now = time.monotonic()
        all_late = self._away_since is not None and now - self._away_since >= self._patience_s
        all_late = all_late or self._data_lost  # waiting does not bring the data back
        for job in [job for job in self._waiting if all_late or now >= job.until]:
            waits = isinstance(job, WriteJob) and not self._closing
            _fail(job, StoreError(f"{self._reason}{_STILL_WRITTEN if waits else ''}"))
            if isinstance(job, WriteJob):
                continue  # it still waits, as what was consumed must be recorded
            self._waiting.remove(job)
            if isinstance(job, ScriptJob) and job.undo is not None and job.sent:
                self._waiting.append(WriteJob((job.undo,), *pack_rows((job.undo,), self._connection.keys)))

    def _add_to(self, journal: Journal) -> None:
        writes = [job for job in self._waiting if isinstance(job, WriteJob)]
        if not writes:
            return
        self._assign_numbers(writes)
        try:
            journal.add([Entry(self._writer, job.number, job.keys, job.words) for job in writes])
        except StoreError as error:
            for job in writes:
                _fail(job, error)
            return
        self._waiting = deque(job for job in self._waiting if not isinstance(job, WriteJob))
        for job in writes:
            if not job.future.done():
                job.future.set_result(None)

    def _catch_up(self, journal: Journal) -> None:
        """Send the entries of the journals, also those of dead processes."""
        refused = 0
        for batch in journal.batches(_BATCH):
            left = list(batch)
            while left:
                done = self._send_entries(left)
                refused += sum(refusal(reply) is not None for reply in done)
                left = left[len(done) :]
        if refused:
            _log.error(
                "%d calls from the journal were refused, as they contradict what other processes had written", refused
            )
        self._deliver()

    def _send_entries(self, entries: list[Entry]) -> list[Any]:
        """Send entries; return the replies to those that were done, which are the first ones."""
        replies = self._connection.run([self._entry_command(entry) for entry in entries])
        done: list[Any] = []
        for reply in replies:
            if isinstance(reply, Exception):
                raise self._connection.error_of(reply)
            if reply == _EARLY:
                break
            done.append(reply)
        if not done:
            # Redis has lost calls before the first entry. So this entry and those after it get another writer and new
            # numbers, which are the same whenever they are sent.
            _log.error(_FORGOT)
            first = entries[0]
            self._renamed[first.writer] = f"{first.writer}~{first.number}", first.number - 1
        return done

    def _entry_command(self, entry: Entry) -> Sequence[Any]:
        writer, offset = self._renamed.get(entry.writer, (entry.writer, 0))
        return self._connection.script_command("write", entry.keys, (writer, entry.number - offset, *entry.words))


def _fail(job: Job, error: FocalrouteError) -> None:
    if not job.future.done():
        job.future.set_exception(type(error)(str(error)))
