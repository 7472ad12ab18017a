"""The store of a fleet: Redis (or Valkey). Safe to use from any thread.

One thread owns the connection. Whatever is queued while it waits for a reply goes out in the next round trip, each call
as a script of its own, which does all of it or nothing. Every call has a number, and Redis knows the last one of each
writer: so what is sent again, because its reply was lost, is not done twice.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from decimal import Decimal
from functools import partial
from typing import Any, Literal, TypeVar

from focalroute.core.errors import StoreError
from focalroute.core.records import Feedback
from focalroute.store import base
from focalroute.store.base import Account, Balance, OnFeedback, Release, Reservation, Row, StoredAnswer
from focalroute.store.redis import reads as redis_reads
from focalroute.store.redis.address import RedisAddress
from focalroute.store.redis.connection import RedisConnection, RedisUnavailable
from focalroute.store.redis.jobs import Job, Read, Script, Write
from focalroute.store.redis.journal import Journal
from focalroute.store.redis.keys import POLICY
from focalroute.store.redis.rows import packed, read_balances, read_grant, reservation_words
from focalroute.store.redis.sender import Sender
from focalroute.store.redis.subscription import FeedbackSubscription
from focalroute.store.writer_queue import WriterQueue

T = TypeVar("T")

_log = logging.getLogger("focalroute.store")

_PATIENCE_S = 5.0  # what a call waits for a Redis that is away
_AT_ONCE = 200  # answers that are read in one go
_TRIM_EVERY = 500  # calls
_RETRY_S = 0.05  # looked whether Redis is back so often


class RedisStore:
    """Answers, feedback, capabilities and the ledger in Redis, for any number of processes and machines.

    While Redis is away, writes go into the journal, if the address names one, and count as done; without one they wait
    in memory, and are told to have failed after 5 seconds, though they are still done if Redis comes back while this
    process lives. What needs an answer of Redis (budgets, reading) waits so long and then fails.

    Args:
        where: its address, see `RedisAddress`.
        durability: "full": refuse a Redis that does not write every call to its disk before it says it is done, and
            write the journal likewise.
        poll_s: how often news from other processes are looked for.
        patience_s: how long a call waits for a Redis that is away.

    Raises:
        ConfigError: the address is wrong, or redis-py is not installed.
        StoreError: Redis cannot be used (with a journal, one that cannot be reached is waited for).
    """

    def __init__(
        self,
        where: str,
        *,
        durability: Literal["normal", "full"] = "normal",
        poll_s: float = 0.25,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        self._address = RedisAddress.of(where)
        self._full = durability == "full"
        self._poll_s = poll_s
        self._patience_s = patience_s
        self._link = RedisConnection(self._address)
        self._hearing = FeedbackSubscription()
        self._untrimmed = _TRIM_EVERY  # an earlier process may have left some
        self._followers: list[Callable[[int], None]] = []
        self._version = 0
        writer = secrets.token_hex(8)
        folder = self._address.journal
        self._journal = None if folder is None else Journal(folder, writer, sync=self._full)
        self._sender = Sender(self._link, self._hearing, writer, self._journal, patience_s)
        self._desk: WriterQueue[Job] = WriterQueue(
            self.name, self._work, keep=self.keep, trouble="is Redis away, or too slow?", held=self._sender.__len__
        )
        self._first()
        self._desk.open()

    def _first(self) -> None:
        """Reach Redis once; say what will not hold with it as it is."""
        try:
            self._link.connect()
            self._check()
            while self._link.script("overdue", (), ()) == 1000:
                pass
        except RedisUnavailable as away:
            if self._journal is None:
                raise StoreError(str(away)) from None
            self._sender.lost(away)

    def _check(self) -> None:
        kept = redis_reads.durability(self._link)
        if self._full and kept != "always":
            raise StoreError(
                f'{self.name}: durability="full" needs a Redis with "appendonly yes" and "appendfsync always" that '
                f"lets this user read its CONFIG, this one has {kept or 'another setting'}"
            )
        if kept == "none":
            _log.warning("%s: keeps nothing over a restart; set appendonly yes", self.name)

    # -- the store's face --------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Its address as it may be shown."""
        return self._address.name

    @property
    def keep(self) -> int:
        """How many of the latest answers stay in Redis."""
        return self._address.keep

    def write(self, *rows: Row) -> Future[None]:
        """See `Store.write`."""
        try:
            job = Write(rows, *packed(rows, self._link.keys))
        except StoreError as error:
            refused: Future[None] = Future()
            refused.set_exception(StoreError(f"{self.name}: {error}"))
            return refused
        self._submit(job, rows)
        return job.future

    def write_calls(self, calls: Sequence[Sequence[Row]]) -> Future[base.Outcomes]:
        """See `Store.write_calls`; Redis is always waited for."""
        return _together([self.write(*rows) for rows in calls])

    def answer(self, answer_id: str) -> StoredAnswer | None:
        """See `Store.answer`."""
        return self._desk.answer(answer_id) or self._read(lambda link: redis_reads.answer(link, answer_id))

    def subscribe(self, listener: OnFeedback, *, last: int) -> None:
        """See `Store.subscribe`. Of news that come faster than they are looked for, the latest 1,000 are told."""
        try:
            self._read(lambda link: self._hearing.join(link, listener, last))
        except StoreError:
            if self._journal is None or self._desk.closed:
                raise
            self._hearing.join_later(listener, last)  # when Redis is back

    def open_accounts(self, accounts: Iterable[Account]) -> Mapping[Account, Balance]:
        """See `Store.open_accounts`."""
        return self._balances(accounts, "1").result()

    def reserve(self, reservation: Reservation, limits: Mapping[Account, Decimal]) -> Future[base.ReservationResult]:
        """See `Store.reserve`; the moment is Redis's, so that all machines have one clock."""
        accounts = tuple(limits)
        return self._script(
            "reserve",
            reservation_words(reservation, limits),
            lambda reply: read_grant(reply, accounts),
            Release(reservation, 0.0),
        )

    def balances(self, accounts: Iterable[Account]) -> Future[Mapping[Account, Balance]]:
        """See `Store.balances`."""
        return self._balances(accounts, "0")

    def _balances(self, accounts: Iterable[Account], opening: str) -> Future[Mapping[Account, Balance]]:
        wanted = tuple(accounts)
        words = [opening, *(word for one in wanted for word in (one.tag, str(one.period_s)))]
        return self._script("balances", words, lambda reply: read_balances(reply, wanted))

    def capabilities(self, key: str) -> base.CapabilityRow | None:
        """See `Store.capabilities`."""
        return self._read(lambda link: redis_reads.capabilities(link, key))

    def health(self) -> Future[Mapping[str, base.HealthRow]]:
        """See `Store.health`."""
        return self._look_up(redis_reads.health)

    def totals(self) -> Mapping[str, base.UsageTotal]:
        """See `Store.totals`."""
        return self._read(redis_reads.totals)

    def ledger(self, by: base.Grouping) -> Sequence[base.LedgerSum]:
        """See `Store.ledger`."""
        return self._read(lambda link: redis_reads.ledger(link, by))

    def recent(self, limit: int) -> Iterable[tuple[StoredAnswer, tuple[Feedback, ...]]]:
        """See `Store.recent`. Read in parts, so that other jobs need not wait for all of it."""
        ids = self._read(lambda link: redis_reads.latest(link, limit))
        parts = (ids[start : start + _AT_ONCE] for start in range(0, len(ids), _AT_ONCE))
        found = (self._read(partial(redis_reads.stored, ids=part)) for part in parts)
        return [row for part in found for row in redis_reads.judged(part)]

    def verify(self) -> tuple[str, ...]:
        """See `Store.verify`."""
        return self._read(redis_reads.problems)

    def close(self) -> None:
        """See `Store.close`. What Redis did not take is in the journal, or lost with an error to whoever waits."""
        self._desk.close()

    # -- for the fleet -----------------------------------------------------------------------------------------------

    def run(self, work: Callable[[RedisConnection], T]) -> T:
        """Do something with the connection, on the store's thread, after all that was queued; it must be quick.

        Raises:
            StoreError: Redis is away.
        """
        return self._read(work)

    def follow(self, follower: Callable[[int], None]) -> None:
        """Call this with the number of the fleet's policy now (0: none yet), and whenever another one is current.

        It runs on the store's thread and must be quick.
        """
        self._followers.append(follower)
        if self._version:
            follower(self._version)

    # -- any thread --------------------------------------------------------------------------------------------------

    def _submit(self, job: Job, rows: Iterable[Row] = ()) -> None:
        job.until = time.monotonic() + self._patience_s
        self._desk.submit(job, rows)

    def _read(self, work: Callable[[RedisConnection], T]) -> T:
        if self._desk.inside:
            try:
                return work(self._link)
            except RedisUnavailable as away:
                raise StoreError(str(away)) from None
        return self._look_up(work).result()

    def _look_up(self, work: Callable[[RedisConnection], T]) -> Future[T]:
        job = Read(work)
        self._submit(job)
        return job.future

    def _script(
        self, name: str, words: Sequence[Any], read: Callable[[Any], T], unwanted: Release | None = None
    ) -> Future[T]:
        job = Script(name, words, read, unwanted)
        self._submit(job)
        return job.future

    # -- the store's thread ------------------------------------------------------------------------------------------

    def _work(self) -> None:
        next_poll = 0.0
        running = True
        while running:
            jobs = self._desk.take(min(next_poll, time.monotonic() + _RETRY_S) if self._sender.away else next_poll)
            running = None not in jobs
            work = [job for job in jobs if job is not None]
            if work or self._sender.away:
                self._serve(work)
            self._desk.done(len(jobs))
            if time.monotonic() >= next_poll and not self._sender.away:
                self._poll()
                next_poll = time.monotonic() + self._poll_s
        self._sender.close()
        self._link.drop()

    def _serve(self, jobs: list[Job]) -> None:
        try:
            self._sender.serve(jobs)
        except Exception as error:  # noqa: BLE001 - every waiter is told, and the thread goes on
            _log.exception("the store's thread failed")
            self._sender.give_up(error)
        self._forget(jobs)

    def _forget(self, jobs: Iterable[Job]) -> None:
        """What was refused can no longer be read; and count what was written."""
        for job in jobs:
            if isinstance(job, Write):
                self._untrimmed += 1
                if job.future.done() and job.future.exception() is not None:
                    self._desk.forget(job.rows)

    def _poll(self) -> None:
        """Look for news of other processes, and for another policy; keep the streams bounded."""
        try:
            version = int(self._link.one("HGET", self._link.keys[POLICY], "current") or 0)
            self._hearing.deliver(self._link)
            if self._untrimmed >= min(_TRIM_EVERY, self._address.keep):
                redis_reads.trim(self._link, self._address.keep)
                self._untrimmed = 0
        except (RedisUnavailable, StoreError) as trouble:
            self._sender.lost(trouble)
            return
        if version != self._version:
            self._version = version
            for follower in tuple(self._followers):
                follower(version)


def _together(futures: Sequence[Future[None]]) -> Future[base.Outcomes]:
    """What became of all of them, once all are done."""
    together: Future[base.Outcomes] = Future()
    together.set_running_or_notify_cancel()
    left = iter(futures)

    def go_on(_: object = None) -> None:
        for future in left:
            if not future.done():
                future.add_done_callback(go_on)
                return
        together.set_result([future.exception() for future in futures])

    go_on()
    return together
