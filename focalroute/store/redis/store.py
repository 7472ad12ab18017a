"""The store of a fleet: Redis (or Valkey).

One thread owns the connection. Calls queued while it waits for a reply go out together in the next round trip, each as
an atomic script of its own. Each writer numbers its calls, and Redis keeps the last number of each writer. So a call
that is sent again, because its reply was lost, is not done twice.
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

from focalroute.core.errors import ConfigError, StoreError
from focalroute.core.records import Feedback
from focalroute.store.accounts import SETTLE_EVERY_S, Account, Balance
from focalroute.store.base import (
    BalanceDifference,
    Grouping,
    LedgerSum,
    OnFeedback,
    Outcomes,
    Release,
    Reservation,
    ReservationResult,
    Row,
    StoredAnswer,
)
from focalroute.store.engine import Job, QueuedStore, WriterQueue
from focalroute.store.redis import reads
from focalroute.store.redis.address import RedisAddress
from focalroute.store.redis.connection import RedisConnection, RedisUnavailable
from focalroute.store.redis.journal import Journal
from focalroute.store.redis.rows import pack_rows, read_balances, read_reservation, reservation_words
from focalroute.store.redis.sender import ScriptJob, Sender, WriteJob

T = TypeVar("T")

_log = logging.getLogger("focalroute.store")

_PATIENCE_S = 5.0
_AT_ONCE = 200  # answers read in one go
_TRIM_EVERY = 500  # calls
_RETRY_S = 0.05  # between checks whether Redis is back


class RedisStore(QueuedStore[RedisConnection]):
    """Answers, feedback, capabilities and the ledger in Redis, for many processes. Safe to use from any thread.

    While Redis is unavailable, writes go into the journal, if the address names one, and count as done. Without a
    journal they wait in memory: their callers get an error after 5 seconds, but the writes are still done if Redis
    comes back while this process lives. Calls that need a reply (budgets, reads) also fail after 5 seconds.

    Args:
        where: the address, see `RedisAddress`.
        durability: "full": refuse a Redis that acknowledges calls before they are on its disk, and sync the journal.
        poll_s: how often to look for feedback and policies from other processes.
        patience_s: how long a call waits for an unavailable Redis.
        maintain: whether to drop old answers, count the asks in an earlier version's ledger and settle dead processes'
            reservations.

    Attributes:
        name: the address without its password.
        keep: how many of the latest answers stay in Redis, if its address says so.

    Raises:
        ConfigError: the address is wrong, or redis-py is not installed.
        StoreError: Redis cannot be used. With a journal, an unreachable Redis is waited for instead.
    """

    def __init__(
        self,
        where: str,
        *,
        durability: Literal["normal", "full"] = "normal",
        poll_s: float = 0.25,
        patience_s: float = _PATIENCE_S,
        maintain: bool = True,
    ) -> None:
        super().__init__(reads)
        address = RedisAddress.of(where)
        self.name, self.keep = address.name, address.keep
        self._full = durability == "full"
        self._poll_s = poll_s
        self._patience_s = patience_s
        self._connection = RedisConnection(address)
        self._maintain = maintain
        self._opened: set[Account] = set()  # by this process: if one is missing in Redis, its data was lost
        self._untrimmed = 0
        self._next_settling = time.monotonic() + SETTLE_EVERY_S
        self._on_version: list[Callable[[int], None]] = []
        self._version = 0
        self._clock_jumps: int | None = None  # None until read
        writer = secrets.token_hex(8)
        self._journal = None if address.journal is None else Journal(address.journal, writer, sync=self._full)
        self._sender = Sender(self._connection, self._subscription, writer, self._journal, patience_s)
        self._queue = WriterQueue(
            self.name, self._work, trouble="is Redis away, or too slow?", waiting=self._sender.__len__
        )
        self._connect()
        self._queue.open()

    def _connect(self) -> None:
        """Connect once, and raise if Redis cannot be used as it is set up."""
        try:
            self._connection.connect()
            if self._maintain:
                self._check_durability()
                reads.trim(self._connection, self.keep)  # first, as it makes room in a Redis that is full
                reads.count_asks(self._connection)
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
                f"lets this user read its CONFIG; this one has {kept or 'another setting'}"
            )
        if kept == "none":
            _log.warning("%s: keeps no data over a restart; set appendonly yes", self.name)
        if reads.may_evict(self._connection):
            _log.warning("%s: drops budgets when its memory is full; set maxmemory-policy noeviction", self.name)

    # -- the interface -----------------------------------------------------------------------------------------------

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
        """See `Store.subscribe`. Of more than 1,000 new feedbacks between two polls, only the latest are delivered."""
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
        """See `Store.reserve`; time is Redis's, which all machines share."""
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
        """See `Store.recent`. Reads in parts, so that other jobs run in between."""
        ids = self._read(lambda connection: reads.latest_ids(connection, limit))
        parts = (ids[start : start + _AT_ONCE] for start in range(0, len(ids), _AT_ONCE))
        found = (self._read(partial(reads.answers_with_feedback, ids=part)) for part in parts)
        return [(answer, tuple(one for _, one in feedback)) for part in found for answer, feedback in part]

    def ledger(self, by: Grouping) -> Sequence[LedgerSum]:
        """See `Store.ledger`. Reads in parts, so that other jobs run in between."""

        def command(*words: Any) -> Any:
            return self._read(lambda connection: connection.command(*words))

        return self._read_now(lambda connection: reads.ledger_sums(connection, by, command))

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
        """Call ``work``, which must be quick, with the connection on the store's thread, after all queued jobs.

        Raises:
            StoreError: Redis is unavailable.
        """
        return self._read(work)

    def follow(self, on_version: Callable[[int], None]) -> None:
        """Call ``on_version`` with the version of the fleet's policy: now, if there is one, and whenever it changes.

        Changes are reported on the store's thread, so ``on_version`` must be quick.
        """
        self._on_version.append(on_version)
        if self._version:
            on_version(self._version)

    # -- any thread --------------------------------------------------------------------------------------------------

    def _submit(self, job: Job) -> Future[Any]:
        job.until = time.monotonic() + self._patience_s
        return super()._submit(job)

    def _read_now(self, work: Callable[[RedisConnection], T]) -> T:
        try:
            return work(self._connection)
        except Exception as error:  # noqa: BLE001 - damage may show as anything
            failure = self._connection.error_of(error)
            raise StoreError(str(failure)) if isinstance(failure, RedisUnavailable) else failure from None

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
        self._untrimmed += sum(isinstance(job, WriteJob) for job in jobs)

    def _poll(self) -> None:
        """Look for feedback from other processes and for a new policy; maintain the store."""
        try:
            kept = self._connection.command("HMGET", self._connection.keys["policy"], "current", "clock_jumps")
            version, jumps = (int(number or 0) for number in kept)
            self._subscription.deliver(self._connection)
            if self._maintain and self._untrimmed >= min(_TRIM_EVERY, self.keep or _TRIM_EVERY):
                reads.trim(self._connection, self.keep)
                self._untrimmed = 0
            if self._maintain and time.monotonic() >= self._next_settling:
                settle_overdue(self._connection)
                self._next_settling = time.monotonic() + SETTLE_EVERY_S
        except Exception as error:  # noqa: BLE001 - damage may show as anything, and the thread goes on
            self._sender.lost(self._connection.error_of(error))
            return
        if self._clock_jumps not in (None, jumps):
            _log.warning(
                "%s: its clock was far ahead, so balances were of periods that have not begun. The sums of the ledger "
                "for the present periods replace them",
                self.name,
            )
        self._clock_jumps = jumps
        if version != self._version:
            self._version = version
            for on_version in tuple(self._on_version):
                on_version(version)


def require_stored(where: str) -> None:
    """Raise ConfigError if no store is at this address, StoreError if Redis cannot be used."""
    address = RedisAddress.of(where)
    connection = RedisConnection(address)
    try:
        if not connection.has_store():
            raise ConfigError(
                f"{address.name}: there is no such store; give the address that the ensemble uses, with its database "
                "and prefix, or start the ensemble first"
            )
    except RedisUnavailable as error:
        raise StoreError(str(error)) from None
    finally:
        connection.drop()


def settle_overdue(connection: RedisConnection) -> None:
    """Turn the reservations of dead processes into estimated ledger rows, 1,000 at a time."""
    while connection.script("overdue", (), ()) == 1000:
        pass


def _gather(futures: Sequence[Future[None]]) -> Future[Outcomes]:
    """A future of all outcomes, resolved once all futures are done."""
    gathered: Future[Outcomes] = Future()
    gathered.set_running_or_notify_cancel()
    left = iter(futures)

    def wait_for_next(_: object = None) -> None:
        for future in left:
            if not future.done():
                future.add_done_callback(wait_for_next)
                return
        gathered.set_result([future.exception() for future in futures])

    wait_for_next()
    return gathered
