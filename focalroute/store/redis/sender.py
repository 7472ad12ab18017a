"""Sending what waits to Redis, each call once; and what becomes of it while Redis is away."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from focalroute.core.errors import FocalrouteError, StoreError
from focalroute.core.records import Feedback
from focalroute.store.base import StoredProbe
from focalroute.store.redis.connection import RedisConnection, RedisUnavailable
from focalroute.store.redis.jobs import Job, Read, Script, Write
from focalroute.store.redis.journal import Entry, Journal
from focalroute.store.redis.rows import packed, refusal
from focalroute.store.redis.subscription import FeedbackSubscription

_AGAIN_S = 0.1  # between two tries to reach Redis
_BATCH = 500

_FORGOT = "Redis has lost writes that it had said were done: it was restarted, or replaced, without them"

_log = logging.getLogger("focalroute.store")


class Sender:
    """Takes jobs in order and ends all of them. Belongs to the store's thread.

    Args:
        journal: where writes go while Redis is away; None: they wait in memory.
        patience_s: how long others then wait before they fail.
    """

    def __init__(
        self,
        link: RedisConnection,
        hearing: FeedbackSubscription,
        writer: str,
        journal: Journal | None,
        patience_s: float,
    ) -> None:
        self._link = link
        self._hearing = hearing
        self._writer = writer
        self._journal = journal
        self._patience_s = patience_s
        self._number = 0
        self._waiting: deque[Job] = deque()
        self._away_since: float | None = None
        self._next_try = 0.0
        self._reason = ""
        self._renamed: dict[str, tuple[str, int]] = {}  # writers of journals whose earlier calls Redis has forgotten

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def away(self) -> bool:
        """Whether Redis could not be reached the last time."""
        return self._away_since is not None

    def serve(self, jobs: Iterable[Job] = ()) -> None:
        """Do these jobs after all that waits, or what can be done with them while Redis is away."""
        self._waiting.extend(jobs)
        if self.away and time.monotonic() < self._next_try:
            self._make_do()
            return
        try:
            self._link.connect()
            if self._journal:
                self._catch_up(self._journal)
            while self._waiting:
                self._round()
        except (RedisUnavailable, StoreError) as trouble:
            self.lost(trouble)
            self._make_do()
        else:
            self._found()

    def lost(self, trouble: Exception) -> None:
        """Redis is away, as somebody found."""
        self._link.drop()
        self._reason = str(trouble)
        if not self.away:
            self._away_since = time.monotonic()
            _log.warning(
                "%s; %s", trouble, "what is written waits in the journal" if self._kept else "it is tried again"
            )
        self._next_try = time.monotonic() + _AGAIN_S

    @property
    def _kept(self) -> bool:
        return self._journal is not None

    def _found(self) -> None:
        if self._away_since is not None:
            _log.warning(
                "Redis is back after %.1f s, and has what was written meanwhile", time.monotonic() - self._away_since
            )
        self._away_since = None

    def give_up(self, error: Exception) -> None:
        """End all that waits: something has happened that nobody thought of."""
        self._link.drop()
        waiting, self._waiting = self._waiting, deque()
        for job in waiting:
            _fail(job, StoreError(f"a call could not be ended ({type(error).__name__}); it may have been done"))

    def close(self) -> None:
        """End what still waits: it goes into the journal, or fails."""
        self._patience_s = 0.0
        if self._waiting:
            self._make_do()
        if self._journal is not None:
            self._journal.close()

    # -- sending -----------------------------------------------------------------------------------------------------

    def _round(self) -> None:
        """One round trip for what writes; the reads follow, so that they see it."""
        batch = [job for job in self._waiting if not isinstance(job, Read)][:_BATCH]
        if not batch:
            job = self._waiting[0]
            self._look(job)
            self._waiting.popleft()
            return
        for job in batch:
            self._number_it(job)
        replies = self._link.all([self._command(job) for job in batch])
        ended: list[tuple[Job, Any]] = []
        away: Exception | None = None
        for job, reply in zip(batch, replies, strict=True):
            if isinstance(reply, Exception):
                trouble = self._link.trouble(reply)
                if isinstance(trouble, RedisUnavailable):
                    away = trouble
                    continue
                self._refuse(job, trouble)
            elif reply != [b"early"]:
                ended.append((job, reply))
        if not ended and replies and replies[0] == [b"early"]:
            self._begin_anew()
        self._end(ended)
        if away is not None:
            raise away

    def _number_it(self, job: Job) -> None:
        if isinstance(job, Write) and not job.number:
            self._number += 1
            job.number = self._number

    def _command(self, job: Job) -> Sequence[Any]:
        if isinstance(job, Write):
            return self._link.scripted("write", job.keys, (self._writer, job.number, *job.words))
        assert isinstance(job, Script)  # noqa: S101 - reads are not sent
        job.sent = True
        return self._link.scripted(job.name, (), job.words)

    def _refuse(self, job: Job, trouble: FocalrouteError) -> None:
        """Redis will never do it. A write's number is used up by an empty call."""
        _fail(job, trouble)
        if isinstance(job, Write):
            job.rows, job.keys, job.words = (), [], []
        else:
            self._waiting.remove(job)

    def _begin_anew(self) -> None:
        """Redis has forgotten calls that it had done; what waits is not among them, so it gets new numbers."""
        _log.error(_FORGOT)
        self._writer, self._number = f"{self._writer}+", 0
        for job in self._waiting:
            if isinstance(job, Write):
                job.number = 0

    def _end(self, ended: list[tuple[Job, Any]]) -> None:
        """Take done jobs off the list, let the listeners hear, then tell whoever waits."""
        gone = {id(job) for job, _ in ended}
        self._waiting = deque(job for job in self._waiting if id(job) not in gone)
        if any(
            isinstance(row, Feedback | StoredProbe) for job, _ in ended if isinstance(job, Write) for row in job.rows
        ):
            self.hear()
        for job, reply in ended:
            if job.future.done():
                continue
            refused = refusal(reply) if isinstance(job, Write) else None
            if refused is not None:
                job.future.set_exception(refused)
            else:
                job.future.set_result(job.read(reply) if isinstance(job, Script) else None)

    def hear(self) -> None:
        """Tell the listeners what is new; what cannot be read now is told later."""
        try:
            self._hearing.deliver(self._link)
        except (RedisUnavailable, StoreError) as trouble:
            _log.warning("feedback could not be read, it is tried again: %s", trouble)

    def _look(self, job: Job) -> None:
        assert isinstance(job, Read)  # noqa: S101 - all else was sent
        if job.future.done():
            return
        try:
            result = job.work(self._link)
        except RedisUnavailable:
            raise
        except BaseException as error:  # noqa: BLE001 - it is raised where the reader waits
            job.future.set_exception(error)
        else:
            job.future.set_result(result)

    # -- while Redis is away -----------------------------------------------------------------------------------------

    def _make_do(self) -> None:
        """Put the writes into the journal; without one, or where it fails, end those that have waited too long."""
        if self._journal is not None:
            self._put_away(self._journal)
        now = time.monotonic()
        tired = self._away_since is not None and now - self._away_since >= self._patience_s
        for job in [job for job in self._waiting if tired or now >= job.until]:
            _fail(job, StoreError(self._reason))
            if isinstance(job, Write):
                continue  # it is still done if Redis comes back: what was consumed is paid for
            self._waiting.remove(job)
            if isinstance(job, Script) and job.unwanted is not None and job.sent:
                self._waiting.append(Write((job.unwanted,), *packed((job.unwanted,), self._link.keys)))

    def _put_away(self, journal: Journal) -> None:
        writes = [job for job in self._waiting if isinstance(job, Write)]
        for job in writes:
            self._number_it(job)
        try:
            journal.add([Entry(self._writer, job.number, job.keys, job.words) for job in writes] if writes else [])
        except StoreError as error:
            for job in writes:
                _fail(job, error)
            return
        self._waiting = deque(job for job in self._waiting if not isinstance(job, Write))
        for job in writes:
            if not job.future.done():
                job.future.set_result(None)

    def _catch_up(self, journal: Journal) -> None:
        """Send what waited in the journals, those of dead processes too."""
        refused = 0
        for batch in journal.batches(_BATCH):
            left = list(batch)
            while left:
                done = self._sent(left)
                refused += sum(refusal(reply) is not None for reply in done)
                left = left[len(done) :]
        if refused:
            _log.error(
                "%d calls that waited in the journal contradict what others had written, and were refused", refused
            )
        self.hear()

    def _sent(self, entries: list[Entry]) -> list[Any]:
        """Send entries; the replies to those that were done, which are the first ones."""
        replies = self._link.all([self._entry(entry) for entry in entries])
        done: list[Any] = []
        for reply in replies:
            if isinstance(reply, Exception):
                raise self._link.trouble(reply)
            if reply == [b"early"]:
                break
            done.append(reply)
        if not done:
            self._lost_before(entries[0])
        return done

    def _entry(self, entry: Entry) -> Sequence[Any]:
        writer, before = self._renamed.get(entry.writer, (entry.writer, 0))
        return self._link.scripted("write", entry.keys, (writer, entry.number - before, *entry.words))

    def _lost_before(self, entry: Entry) -> None:
        """Redis has forgotten calls before this one; it and those that follow get another writer and new numbers.

        The same ones whenever they are sent again.
        """
        _log.error(_FORGOT)
        self._renamed[entry.writer] = f"{entry.writer}~{entry.number}", entry.number - 1


def _fail(job: Job, error: FocalrouteError) -> None:
    if not job.future.done():
        job.future.set_exception(type(error)(str(error)))
