"""Budgets: the limits of an ensemble, and the budget of one ask within them.

Reservations against limits for all asks are made in the store, so they are exact across processes; the cap of one ask
is counted here. If no limit concerns an ask, nothing is reserved and the ask does not wait for the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import TypeVar
from weakref import WeakValueDictionary

from focalroute.core.config import Budget, Endpoint
from focalroute.core.dollars import PERIODS, dollars, parse_usd
from focalroute.core.errors import BudgetExceeded, ConfigError
from focalroute.core.event_loops import PerLoop
from focalroute.core.receipts import Limit
from focalroute.money.cost import Bill, UsualCost
from focalroute.store.accounts import Account, Balance
from focalroute.store.base import LedgerRow, Outcomes, Release, Reservation, ReservationResult, Store

T = TypeVar("T")

_log = logging.getLogger("focalroute")

#: Collects the budgets of the asks in this context; None: they are not collected.
ASKED: ContextVar[list[AskBudget] | None] = ContextVar("asked", default=None)

_POLL_EVERY_S = 0.01
_USUAL_CALLS = 128  # calls after which an endpoint's sums are halved


@dataclass(slots=True)  # a frozen one takes five times as long to make
class HeldAmount:
    """The amount reserved for one call, USD; ``reservation`` None: no limit in the store concerns the call."""

    amount: Decimal
    at: float
    reservation: Reservation | None = None


def _limits(budget: Budget) -> Iterator[tuple[str, Account, Decimal]]:
    """Name, account and amount of every limit that is kept in the store."""
    if budget.usd_total is not None:
        yield "usd_total", Account(), parse_usd(budget.usd_total, "usd_total")
    for period, amount in budget.usd_per_period.items():
        yield f"usd_per_period.{period}", Account("", PERIODS[period]), parse_usd(amount, period)
    for tag, given in budget.usd_per_tag.items():
        if isinstance(given, Mapping):
            for period, amount in given.items():
                yield f"usd_per_tag.{tag}.{period}", Account(tag, PERIODS[period]), parse_usd(amount, period)
        else:
            yield f"usd_per_tag.{tag}", Account(tag), parse_usd(given, tag)


class BudgetGuard:
    """The limits of all asks together: spent + reserved never exceeds a limit. Thread-safe.

    Args:
        store: keeps the amounts spent and reserved; needed only for limits on several asks.

    Raises:
        ConfigError: ``budget`` is not a Budget, or cannot be kept because a price is unknown.
    """

    def __init__(self, budget: Budget | None, endpoints: Iterable[Endpoint], store: Store | None = None) -> None:
        pool = tuple(endpoints)
        self.timeouts_s = {endpoint.name: endpoint.timeout_s for endpoint in pool}
        self._unpriced = [endpoint.name for endpoint in pool if endpoint.price is None]
        self._per_ask: Decimal | None = None
        self.names: dict[Account, str] = {}
        self.limits: dict[Account, Decimal] = {}
        self._store = store
        self._known: dict[Account, Balance] = {}
        self._refreshing: dict[tuple[Account, ...], Future[Mapping[Account, Balance]]] = {}
        self._held: set[str] = set()  # this process's own reservations
        self._usual: dict[str, tuple[int, Decimal, Decimal]] = {}  # by endpoint: calls, their cost and their bounds
        self._queues: PerLoop[WeakValueDictionary[tuple[Account, ...], asyncio.Lock]] = PerLoop(WeakValueDictionary)
        if budget is not None:
            self.keep(budget)

    def keep(self, budget: Budget) -> None:
        """Keep this budget for asks that begin from now on. Waits for the store.

        Raises:
            ConfigError: as for the class.
            StoreError: the store cannot be read; nothing is changed.
        """
        if not isinstance(budget, Budget):
            raise ConfigError(f"budget: give a Budget, such as Budget(usd_total=20), got {type(budget).__name__}")
        if budget.allow_unpriced:
            self._unpriced = []
        self._require_prices("budget")
        if budget.max_usd_per_ask is not None:
            self._per_ask = parse_usd(budget.max_usd_per_ask, "")
        names, limits = {}, {}
        for name, account, amount in _limits(budget):
            names[account], limits[account] = name, amount
        if limits:
            self._known.update(self._kept.open_accounts(limits))
        self.names.update(names)  # asks under way still use the former names
        self.limits = limits

    @property
    def _kept(self) -> Store:
        if self._store is None:
            raise ConfigError("budget: a limit for several asks needs a store; give store=")
        return self._store

    def ask_budget(
        self,
        max_usd: Decimal | float | str | None,
        answer_id: str,
        tags: Sequence[str] = (),
        patience_s: float = 0.0,
    ) -> AskBudget:
        """Make the budget of one ask: the smaller of its own cap and the budget's, within all limits that concern it.

        Args:
            patience_s: how long the ask may wait for other asks of this process to release what they do not spend.

        Raises:
            ConfigError: ``max_usd`` is not an amount, or cannot be kept because a price is unknown.
        """
        cap = self._per_ask
        if max_usd is not None:
            own = parse_usd(max_usd, "max_usd")
            self._require_prices("max_usd")
            cap = own if cap is None else min(own, cap)
        made, asked = AskBudget(self, cap, answer_id, tags, patience_s), ASKED.get()
        if asked is not None:
            asked.append(made)
        return made

    def open_ask_budget(self, answer_id: str) -> AskBudget:
        """Make a budget without a cap, for calls that belong to no ask."""
        return AskBudget(self, None, answer_id, (), 0.0)

    def _require_prices(self, limit: str) -> None:
        if self._unpriced:
            raise ConfigError(
                f"{limit}: cannot be kept while the price of {', '.join(self._unpriced)} is unknown; "
                "set input_usd_per_1m and output_usd_per_1m, or allow_unpriced=True in the Budget",
                private=True,
            )

    def balance(self, account: Account) -> Balance:
        """The latest known balance of a limit's account."""
        return self._known[account]

    async def refresh(self, accounts: tuple[Account, ...]) -> None:
        """Read the current balances from the store, once for all waiting callers; StoreError if it fails."""
        refreshing = self._refreshing.get(accounts)
        if refreshing is None or refreshing.done():
            refreshing = self._refreshing[accounts] = self._kept.balances(accounts)
        try:
            known = await asyncio.wrap_future(refreshing)
        except asyncio.CancelledError:
            self._refreshing.pop(accounts, None)  # later calls must not get this result, which may be old by then
            raise
        self._known.update(known)

    async def wait_for_others(self, accounts: tuple[Account, ...], enough: Callable[[], bool]) -> bool:
        """Wait until there is enough, or no call of this process is under way; return whether there is enough.

        First come, first served, among asks that the same limits concern. Does not wait for the reservations of other
        processes, which may be dead.
        """
        queue = self._queues.here().setdefault(accounts, asyncio.Lock())  # weak: it lives while asks wait in it
        async with queue:
            while True:
                none_under_way = not self._held
                await self.refresh(accounts)
                if enough():
                    return True
                if none_under_way:
                    return False
                await asyncio.sleep(_POLL_EVERY_S)

    async def reserve(self, reservation: Reservation, limits: Mapping[Account, Decimal]) -> float | None:
        """Reserve an amount; return its Unix time, by which it counts towards a period; None if it does not fit.

        Raises:
            StoreError: the store cannot tell whether it fits.
        """
        future = self._kept.reserve(reservation, limits)
        try:
            grant = future.result() if future.done() else await asyncio.wrap_future(future)
        except asyncio.CancelledError:  # the store still makes the reservation
            future.add_done_callback(lambda done: self._release(done, reservation))
            raise
        self._known.update(grant.balances)
        if not grant.granted:
            return None
        self._held.add(reservation.id)
        return grant.at

    def _release(self, done: Future[ReservationResult], reservation: Reservation) -> None:
        if done.exception() is None and done.result().granted:
            self._kept.write_calls([(Release(reservation, done.result().at),)]).add_done_callback(_warn)

    def settle(self, row: LedgerRow) -> None:
        """Have the store replace a reservation by the actual cost; an amount in doubt stays held for a day."""
        if row.reservation is not None:
            self._held.discard(row.reservation.id)
        self._kept.write_calls([(row,)]).add_done_callback(_warn)
        self._refreshing.clear()  # later callers must not get the balances from before

    def write(self, rows: Sequence[LedgerRow]) -> None:
        """Have the store write rows without reservations; rows it cannot write are logged."""
        if rows:
            self._kept.write(*rows).add_done_callback(lambda written: log_lost(rows, written.exception()))

    def note_cost(self, endpoint: str, cost: Decimal, bound: Decimal) -> None:
        """Note the cost of a call that could cost at most ``bound``."""
        calls, costs, bounds = self._usual.get(endpoint, (0, Decimal(0), Decimal(0)))
        if calls >= _USUAL_CALLS:
            calls, costs, bounds = calls // 2, costs / 2, bounds / 2
        self._usual[endpoint] = (calls + 1, costs + cost, bounds + bound)

    def usual_cost(self, endpoint: str, bound: Decimal) -> UsualCost | None:
        """Return the usual cost of a call that can cost at most ``bound``; None: no call was ever paid.

        Before the endpoint's first call, both values are the pool's mean share of the bound.
        """
        calls, costs, bounds = self._usual.get(endpoint, (0, Decimal(0), Decimal(0)))
        mean = min(bound, costs / calls) if calls else None
        if not bounds:
            others = tuple(self._usual.values())
            costs, bounds = sum((one[1] for one in others), Decimal(0)), sum((one[2] for one in others), Decimal(0))
        if not bounds:
            return None
        by_share = bound * min(Decimal(1), costs / bounds)
        return UsualCost(by_share, by_share) if mean is None else UsualCost(mean, max(mean, by_share))


def log_lost(rows: Sequence[LedgerRow], error: BaseException | None) -> None:
    """Log bills that could not be stored and had no reservation, as an error."""
    if rows and error is not None:
        usd = dollars(sum([row.cost or Decimal(0) for row in rows], Decimal(0)))
        _log.error("%d calls of %s, which cost %s, are not in the ledger: %s", len(rows), rows[0].answer_id, usd, error)


def _warn(written: Future[Outcomes]) -> None:
    error = written.exception() or written.result()[0]
    if error is not None:
        _log.warning("a bill could not be stored, so what was reserved for it stays reserved: %s", error)


class AskBudget:
    """The budget of one ask: its own cap within the guard's limits, and every bill. Used by one event loop.

    Attributes:
        answer_id: the answer that the next ledger rows belong to.
        cap: the most the ask may spend, USD; None: no cap of its own.
        spent: settled so far, USD; an unknown cost counts as nothing.
        reserved: held for calls under way, and for calls that may have been billed, USD.
        needed: the least that a call to any endpoint must reserve, USD; None: not known.
        bills: every attempt that was, or may have been, paid for.
        unwritten: rows that are not in the ledger yet.
        store_late: whether the ask was cancelled while it waited for the store.
    """

    def __init__(
        self, guard: BudgetGuard, cap: Decimal | None, answer_id: str, tags: Sequence[str], patience_s: float
    ) -> None:
        self._guard = guard
        self._until = time.monotonic() + patience_s
        self.answer_id = answer_id
        self._tags = tuple(tags)
        self._limits = {a: limit for a, limit in guard.limits.items() if not a.tag or a.tag in self._tags}
        self.cap = cap
        self.spent = Decimal(0)
        self.reserved = Decimal(0)
        self.needed: Decimal | None = None
        self.bills: list[Bill] = []
        self.unwritten: list[LedgerRow] = []
        self.store_late = False

    @property
    def limited(self) -> bool:
        """Whether the ask has a cap or a limit."""
        return self.cap is not None or bool(self._limits)

    def fits(self, amount: Decimal) -> bool:
        """Whether ``amount`` more could be reserved, by the latest known balances; 0 always fits."""
        return not amount or all(amount <= left for left in self._left())

    def _left(self) -> Iterator[Decimal]:
        if self.cap is not None:
            yield self.cap - self.spent - self.reserved
        for account, limit in self._limits.items():
            yield self._guard.balance(account).left(limit)

    async def make_room(self, amounts: Sequence[Decimal]) -> None:
        """Refresh the balances if these amounts may not all fit; wait for room if other asks' reservations take it.

        It waits until all amounts fit or, if they never can, until the least does. Waiting pays: a call reserves the
        most that it can cost, and most of that is released.

        Raises:
            StoreError: the store cannot be read.
        """
        if not self._limits or self.fits(sum(amounts, Decimal(0))):
            return
        accounts = tuple(self._limits)
        await self._from_store(self._guard.refresh(accounts))
        if self._room_may_come(amounts):
            await self._wait_for_room(amounts)

    async def _wait_for_room(self, amounts: Sequence[Decimal]) -> bool:
        """Wait for room within the ask's patience; True if there is room or never can be, False if it gave up."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, self._until - time.monotonic())):
                accounts = tuple(self._limits)
                return await self._guard.wait_for_others(accounts, lambda: not self._room_may_come(amounts))
        return False

    def _room_may_come(self, amounts: Sequence[Decimal]) -> bool:
        """Whether the amounts do not fit now but would without reservations; the least, if they never fit together."""
        unspent = min(limit - self._guard.balance(account).spent for account, limit in self._limits.items())
        wanted = sum(amounts, Decimal(0))
        if wanted > unspent:
            wanted = min(amounts)
        return wanted <= unspent and not self.fits(wanted)

    @property
    def share_left(self) -> float:
        """Share of the cap that is neither spent nor reserved; 1 without a cap."""
        return 1.0 if self.cap is None else max(0.0, float(1 - (self.spent + self.reserved) / self.cap))

    async def reserve(self, endpoint: str, bound: Decimal | None) -> HeldAmount | None:
        """Reserve the most that a call can cost; None, and nothing reserved, if it does not fit.

        Args:
            bound: 0: the call is free, and always fits; None: unknown, which fits while no limit is exceeded.

        Raises:
            StoreError: the store cannot tell whether it fits.
        """
        amount = bound or Decimal(0)
        if bound is not None and not bound:
            return HeldAmount(amount, time.time())
        if self.cap is not None and amount > self.cap - self.spent - self.reserved:
            return None
        self.reserved += amount  # before waiting, as the ask's other members reserve meanwhile
        if not self._limits:
            return HeldAmount(amount, time.time())
        hold = None
        try:
            timeout_s = self._guard.timeouts_s[endpoint]
            reservation = Reservation(secrets.token_hex(8), self.answer_id, endpoint, amount, self._tags, timeout_s)
            at = await self._from_store(self._guard.reserve(reservation, self._limits))
            while at is None and self._room_may_come([amount]) and await self._wait_for_room([amount]):
                at = await self._from_store(self._guard.reserve(reservation, self._limits))
            if at is not None:
                hold = HeldAmount(amount, at, reservation)
        finally:
            if hold is None:
                self.reserved -= amount
        return hold

    async def _from_store(self, work: Awaitable[T]) -> T:
        try:
            return await work
        except asyncio.CancelledError:
            self.store_late = True
            raise

    def usual_cost(self, endpoint: str, bound: Decimal) -> UsualCost | None:
        """Return the usual cost of a call that can cost at most ``bound``; None: not known yet."""
        return self._guard.usual_cost(endpoint, bound)

    def settle(self, hold: HeldAmount, bill: Bill) -> LedgerRow:
        """Replace the held amount by the bill's cost and doubt; return the ledger row."""
        self.bills.append(bill)
        cost = bill.cost or Decimal(0)
        self.reserved -= cost if bill.doubt else hold.amount  # a doubtful call counts in full against the ask's cap
        self.spent += cost
        if bill.usage is not None and bill.cost is not None and hold.amount:
            self._guard.note_cost(bill.endpoint, bill.cost, hold.amount)
        row = LedgerRow(
            self.answer_id, bill.endpoint, hold.at, bill.usage, bill.cost, bill.source, self._tags, hold.reservation,
            bill.doubt,
        )  # fmt: skip
        if hold.reservation is None:
            self.unwritten.append(row)
        else:
            self._guard.settle(row)
        return row

    def write(self, first: int = 0) -> None:
        """Have the store write the unwritten rows from index ``first`` on."""
        self._guard.write(self.unwritten[first:])

    def correct(self, row: LedgerRow, bill: Bill) -> None:
        """Replace an estimate, and the amount still held, by the known cost of the call. The ask's own sums stay."""
        true = replace(row, usage=bill.usage, cost=bill.cost, cost_source=bill.source, doubt=None)
        self._guard.settle(replace(true, reservation=row.held_on))

    def state(self) -> tuple[Limit, ...]:
        """Every limit that concerns the ask, by the latest known balances; its own cap first."""
        limits = []
        if self.cap is not None:
            limits.append(Limit("max_usd", self.cap, self.spent, self.reserved))
        for account, limit in self._limits.items():
            balance = self._guard.balance(account)
            limits.append(Limit(self._guard.names[account], limit, balance.spent, balance.reserved, balance.resets_at))
        return tuple(limits)

    def exceeded(self) -> BudgetExceeded:
        """Make the error that names the exhausted limit, the one with the least left."""
        limit = min(self.state(), key=lambda one: one.usd - one.spent - one.reserved)
        resets_at, remedy = None, "raise it to go on"
        if limit.resets_at is not None and (self.needed is None or self.needed <= limit.usd):
            resets_at = datetime.fromtimestamp(limit.resets_at, UTC)
            remedy = f"raise it, or wait until {resets_at.isoformat()}"
        message = f"no endpoint is affordable with what is left of {limit.name} = {limit.usd:f} USD; {remedy}"
        if limit.name == "max_usd":
            message = (
                f"no endpoint is affordable within {limit.usd:f} USD for this ask (max_usd, or the budget's "
                "max_usd_per_ask); raise it, lower max_tokens or ask a cheaper pool"
            )
        message += f". {dollars(limit.spent)} is spent and {dollars(limit.reserved)} held for calls under way"
        if self.needed is not None:
            message += f"; the cheapest call has to reserve {dollars(self.needed)}"
        return BudgetExceeded(
            message,
            name=limit.name,
            limit=limit.usd,
            spent=limit.spent,
            reserved=limit.reserved,
            resets_at=resets_at,
            needed=self.needed,
        )
