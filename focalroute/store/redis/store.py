"""The store of a fleet: Redis (or Valkey). Safe to use from any thread.

One thread owns the connection. Whatever is queued while it waits for a reply goes out in the next round trip, each call
as a script of its own, which does all of it or nothing. Every call has a number, and Redis knows the last one of each
writer: so a call that is sent again, because its reply was lost, is not done twice.
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
from focalroute.store.accounts import SETTLE_EVERY_S, Account, Balance
from focalroute.store.base import (
    BalanceDifference,
    OnFeedback,
    Outcomes,
    Release,
    Reservation,
    ReservationResult,
    Row,
    StoredAnswer,
)
from focalroute.store.engine import QueuedStore
from focalroute.store.redis import reads
from focalroute.store.redis.address import RedisAddress
from focalroute.store.redis.connection import POLICY, RedisConnection, RedisUnavailable
from focalroute.store.redis.journal import Journal
from focalroute.store.redis.rows import pack_rows, read_balances, read_reservation, reservation_words
from focalroute.store.redis.sender import ScriptJob, Sender, WriteJob
from focalroute.store.writer_queue import Job, WriterQueue

T = TypeVar("T")

_log = logging.getLogger("focalroute.store")

_PATIENCE_S = 5.0
_AT_ONCE = 200  # answers read in one go
_TRIM_EVERY = 500  # calls
_RETRY_S = 0.05  # between two looks whether Redis is back


class RedisStore(QueuedStore[RedisConnection]):
    """Answers, feedback, capabilities and the ledger in Redis, for any number of processes and machines.

    While Redis is unavailable, writes go into the journal, if the address names one, and count as done. Without one
    they wait in memory and fail for their callers after 5 seconds, though they are still done if Redis comes back while
    this process lives. What needs a reply (budgets, reading) waits as long and then fails.

    Args:
        where: its address, see `RedisAddress`.
        durability: "full": refuse a Redis that does not write every call to its disk before it says it is done, and
            write the journal likewise.
        poll_s: how often news from other processes are looked for.
        patience_s: how long a call waits for a Redis that is unavailable.

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
        super().__init__(reads)
        self._address = RedisAddress.of(where)
        self._full = durability == "full"
        self._poll_s = poll_s
        self._patience_s = patience_s
        self._connection = RedisConnection(self._address)
        self._opened: set[Account] = set()  # by this process: one of these that is missing was lost
        self._untrimmed = _TRIM_EVERY  # an earlier process may have left some
        self._next_settling = time.monotonic() + SETTLE_EVERY_S
        self._on_version: list[Callable[[int], None]] = []
        self._version = 0
        self._clock_jumps: int | None = None  # once they are known
        writer = secrets.token_hex(8)
        folder = self._address.journal
        self._journal = None if folder is None else Journal(folder, writer, sync=self._full)
        self._sender = Sender(self._connection, self._subscription, writer, self._journal, patience_s)
        self._queue = WriterQueue(
            self.name, self._work, keep=self.keep, trouble="is Redis away, or too slow?", waiting=self._sender.__len__
        )
        self._connect()
        self._queue.open()

    def _connect(self) -> None:
        """Reach Redis once; name what it cannot do as it is set up."""
        try:
            self._connection.connect()
            self._check_durability()
            settle_overdue(self._connection)
        except RedisUnavailable as error:
            if self._journal is None:
                raise StoreError(str(error)) from None
            self._sender.lost(error)

    def _check_durability(self) -> None:
        kept = reads.find_durability(self._connection)
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
        """The address without its password."""
        return self._address.name

    @property
    def keep(self) -> int:
        """The number of latest answers that stay in Redis."""
        return self._address.keep

    def write(self, *rows: Row) -> Future[None]:
        """See `Store.write`."""
        try:
            job = WriteJob(rows, *pack_rows(rows, self._connection.keys))
        except StoreError as error:
            refused: Future[None] = Future()
            refused.set_exception(StoreError(f"{self.name}: {error}"))
            return refused
        return self._submit(job)

    def write_calls(self, calls: Sequence[Sequence[Row]]) -> Future[Outcomes]:
        """See `Store.write_calls`; it always waits for Redis."""
        return _gather([self.write(*rows) for rows in calls])

    def subscribe(self, on_feedback: OnFeedback, *, last: int) -> None:
        """See `Store.subscribe`. If feedback comes faster than it is looked for, the latest 1,000 are delivered."""
        try:
            super().subscribe(on_feedback, last=last)
        except StoreError:
            if self._journal is None or self._queue.closed:
                raise
            self._subscription.join_later(on_feedback, last)  # when Redis is back

    def open_accounts(self, accounts: Iterable[Account]) -> Mapping[Account, Balance]:
        """See `Store.open_accounts`."""
        wanted = tuple(accounts)
        opened = self._balances(wanted, to_open=set(wanted) - self._opened).result()
        self._opened.update(wanted)
        return opened

    def reserve(self, reservation: Reservation, limits: Mapping[Account, Decimal]) -> Future[ReservationResult]:
        """See `Store.reserve`; the moment is Redis's, so that all machines have one clock."""
        words = reservation_words(reservation, limits)
        read = partial(read_reservation, limits=tuple(limits))
        return self._submit(ScriptJob("reserve", words, read, undo=Release(reservation, 0.0)))

    def balances(self, accounts: Iterable[Account]) -> Future[Mapping[Account, Balance]]:
        """See `Store.balances`."""
        return self._balances(tuple(accounts), to_open=set())

    def _balances(self, wanted: tuple[Account, ...], *, to_open: set[Account]) -> Future[Mapping[Account, Balance]]:
        words: list[str] = []
        for account in wanted:
            words += [account.tag, str(account.period_s), "1" if account in to_open else "0"]
        return self._submit(ScriptJob("balances", words, partial(read_balances, accounts=wanted)))

    def recent(self, limit: int) -> Iterable[tuple[StoredAnswer, tuple[Feedback, ...]]]:
        """See `Store.recent`. Read in parts, so that other jobs need not wait for all of it."""
        ids = self._read(lambda connection: reads.latest_ids(connection, limit))
        parts = (ids[start : start + _AT_ONCE] for start in range(0, len(ids), _AT_ONCE))
        found = (self._read(partial(reads.answers_with_feedback, ids=part)) for part in parts)
        return [(answer, tuple(one for _, one in feedback)) for part in found for answer, feedback in part]

    def reconcile(self, *, repair: bool = False) -> Sequence[BalanceDifference]:
        """See `Store.reconcile`."""

        def work(connection: RedisConnection) -> Sequence[BalanceDifference]:
            found = reads.reconcile(connection, repair=repair)
            if repair:
                settle_overdue(connection)
            return found

        return self._read(work)

    # -- for the fleet -----------------------------------------------------------------------------------------------

    def run(self, work: Callable[[RedisConnection], T]) -> T:
        """Do something quick with the connection, on the store's thread, after all that was queued.

        Raises:
            StoreError: Redis is unavailable.
        """
        return self._read(work)

    def follow(self, on_version: Callable[[int], None]) -> None:
        """Call ``on_version`` with the number of the fleet's policy (0: none yet), now and whenever it changes.

        It is called on the store's thread and must be quick.
        """
        self._on_version.append(on_version)
        if self._version:
            on_version(self._version)

    # -- any thread --------------------------------------------------------------------------------------------------

    def _submit(self, job: Job) -> Future[Any]:
        job.until = time.monotonic() + self._patience_s
        self._queue.submit(job, job.rows if isinstance(job, WriteJob) else ())
        return job.future

    def _read_now(self, work: Callable[[RedisConnection], T]) -> T:
        try:
            return work(self._connection)
        except RedisUnavailable as error:
            raise StoreError(str(error)) from None

    # -- the store's thread ------------------------------------------------------------------------------------------

    def _work(self) -> None:
        next_poll = 0.0
        running = True
        while running:
            until = next_poll
            if self._sender.away:
                until = min(next_poll, time.monotonic() + _RETRY_S)
            jobs = self._queue.take(until)
            running = None not in jobs
            work = [job for job in jobs if job is not None]
            if work or self._sender.away:
                self._serve(work)
            self._queue.done(len(jobs))
            if time.monotonic() >= next_poll and not self._sender.away:
                self._poll()
                next_poll = time.monotonic() + self._poll_s
        self._sender.close()
        self._connection.drop()

    def _serve(self, jobs: list[Job]) -> None:
        try:
            self._sender.serve(jobs)
        except Exception as error:  # noqa: BLE001 - every future gets it, and the thread goes on
            _log.exception("the store's thread failed")
            self._sender.give_up(error)
        for job in jobs:
            if isinstance(job, WriteJob):
                self._untrimmed += 1
                if job.future.done() and job.future.exception() is not None:
                    self._queue.forget(job.rows)

    def _poll(self) -> None:
        """Look for feedback of other processes and for another policy; keep the streams bounded."""
        try:
            kept = self._connection.command("HMGET", self._connection.keys[POLICY], "current", "clock_jumps")
            version, jumps = (int(number or 0) for number in kept)
            self._subscription.deliver(self._connection)
            if self._untrimmed >= min(_TRIM_EVERY, self._address.keep):
                reads.trim(self._connection, self._address.keep)
                self._untrimmed = 0
            if time.monotonic() >= self._next_settling:
                settle_overdue(self._connection)
                self._next_settling = time.monotonic() + SETTLE_EVERY_S
        except (RedisUnavailable, StoreError) as error:
            self._sender.lost(error)
            return
        if self._clock_jumps not in (None, jumps):
            _log.warning(
                "%s: its clock was far ahead: balances were of periods that have not begun; what the ledger holds of "
                "the present ones is taken instead",
                self.name,
            )
        self._clock_jumps = jumps
        if version != self._version:
            self._version = version
            for on_version in tuple(self._on_version):
                on_version(version)


def settle_overdue(connection: RedisConnection) -> None:
    """Turn what dead processes had reserved into estimated rows of the ledger, 1,000 at a time."""
    while connection.script("overdue", (), ()) == 1000:
        pass


def _gather(futures: Sequence[Future[None]]) -> Future[Outcomes]:
    """The outcomes of all of them, once all are done."""
    gathered: Future[Outcomes] = Future()
    gathered.set_running_or_notify_cancel()
    left = iter(futures)

    def go_on(_: object = None) -> None:
        for future in left:
            if not future.done():
                future.add_done_callback(go_on)
                return
        gathered.set_result([future.exception() for future in futures])

    go_on()
    return gathered
