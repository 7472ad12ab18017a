"""The SQL of budgets: reservations, and the balance of every account that a limit is held against.

A reservation, its refusal, its settlement by a row of the ledger and its release each happen within one transaction,
so they are exact for all processes on the database, whichever of them has limits. A call counts towards the period in
which it was reserved, whenever it ends; the moment is taken within the transaction, and a clock that was set back stays
in the latest period. Whoever opens an account finds in it what the ledger and the reservations hold already; from then
on every process keeps it.

What a process had reserved when it died becomes a row of the ledger, estimated at the whole amount, once the call can
no longer be under way and somebody opens the store. Should its process have been asleep and settle it after all, the
estimate gives way.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple

from focalroute.store.base import Account, Balance, LedgerRow, Reservation, ReservationResult
from focalroute.store.codec import from_pico, pico_above, to_pico

if TYPE_CHECKING:
    import sqlite3


_GRACE_S = 60.0  # between the end of a call and its settlement in the store, at most
_LONGEST_S = 3600.0  # a call, where it is not known


class _Amounts(NamedTuple):
    """An account's row: the number of its period, and picodollars."""

    period: int
    spent: int
    reserved: int


class AccountBalances:
    """The balances within one transaction: read once, changed in memory, written by `save`.

    So a commit that many calls share holds the database for a few statements, not for a few of each call.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._rows: dict[str, dict[Account, _Amounts]] = {}  # by tag
        self._changed: set[Account] = set()

    def open(self, accounts: Iterable[Account], at: float) -> dict[Account, Balance]:
        """Make a row for each account that has none; the balances of all of them."""
        wanted = list(accounts)
        for account in wanted:
            if account not in self._of(account.tag):
                self._set(account, _added_up(self._db, account, _period(account, at)))
        return self.balances(wanted, at)

    def balances(self, accounts: Iterable[Account], at: float) -> dict[Account, Balance]:
        """The balances of open accounts."""
        return {account: _balance(account, self._current(account, at)) for account in accounts}

    def reserve(self, reservation: Reservation, limits: Mapping[Account, Decimal], at: float) -> ReservationResult:
        """Hold the amount back from every account it concerns, if it fits all limits."""
        amount = pico_above(reservation.amount)
        begun = (self._current(account, 0.0).period * account.period_s for account in limits)
        at = max(at, *begun, 0.0)
        now = {account: self._current(account, at) for account in limits}
        granted = all(row.spent + row.reserved + amount <= _floor(limits[account]) for account, row in now.items())
        if granted:
            held = (reservation.id, reservation.answer_id, reservation.endpoint, at, amount)
            until = at + reservation.timeout_s + _GRACE_S
            self._db.execute(
                "INSERT INTO reservations (id, answer_id, endpoint, at, pico, until, tags) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (*held, until, json.dumps(reservation.tags)),
            )
            self._move(reservation.tags, at, reserved=amount)
        return ReservationResult(granted, at, self.balances(limits, at))

    def charge(self, row: LedgerRow) -> None:
        """Count a row of the ledger, and end the reservation that it settles."""
        held, estimated = (0, 0) if row.reservation is None else self._end(row.reservation)
        self._move(row.tags, row.at, spent=(to_pico(row.cost) or 0) - estimated, reserved=-held)

    def release(self, reservation: Reservation, at: float) -> None:
        """End a reservation whose call was never made."""
        held, estimated = self._end(reservation)
        self._move(reservation.tags, at, spent=-estimated, reserved=-held)

    def estimate(self, held: str, tags: Sequence[str], at: float, amount: int) -> None:
        """Turn a reservation, by its id, into a row of the ledger at its whole amount."""
        self._db.execute(
            "INSERT INTO ledger (answer_id, endpoint, at, cost_pico, cost_source, tags, overdue) "
            "SELECT answer_id, endpoint, at, pico, 'reserved', tags, id FROM reservations WHERE id = ?",
            (held,),
        )
        self._db.execute("DELETE FROM reservations WHERE id = ?", (held,))
        self._move(tags, at, spent=amount, reserved=-amount)

    def save(self) -> None:
        """Write what has changed."""
        for account in self._changed:
            row = self._rows[account.tag][account]
            self._db.execute(
                "INSERT INTO balances (tag, period_s, period, spent, reserved) VALUES (?, ?, ?, ?, ?) "
                "ON CONFLICT (tag, period_s) DO UPDATE SET period = excluded.period, spent = excluded.spent, "
                "reserved = excluded.reserved",
                (account.tag, account.period_s, row.period, str(row.spent), str(row.reserved)),
            )

    def _end(self, reservation: Reservation) -> tuple[int, int]:
        """Delete a reservation, or what it was estimated at; the picodollars of either, 0 if it is not there."""
        held = pico_above(reservation.amount)
        if self._db.execute("DELETE FROM reservations WHERE id = ?", (reservation.id,)).rowcount:
            return held, 0
        return 0, held if self._db.execute("DELETE FROM ledger WHERE overdue = ?", (reservation.id,)).rowcount else 0

    def _move(self, tags: Sequence[str], at: float, *, spent: int = 0, reserved: int = 0) -> None:
        """Add to every open account that a call with these tags, begun at this moment, counts towards."""
        for tag in {"", *tags}:
            for account, row in list(self._of(tag).items()):
                number = _period(account, at)
                if number > row.period:
                    self._set(account, _Amounts(number, spent, max(reserved, 0)))
                elif number == row.period:
                    self._set(account, _Amounts(number, row.spent + spent, row.reserved + reserved))

    def _current(self, account: Account, at: float) -> _Amounts:
        """Its amounts in the period of this moment, or in the latest if that is later."""
        row = self._of(account.tag).get(account, _Amounts(0, 0, 0))
        number = _period(account, at)
        return row if number <= row.period else _Amounts(number, 0, 0)

    def _of(self, tag: str) -> dict[Account, _Amounts]:
        """The open accounts of a tag."""
        if tag not in self._rows:
            found = self._db.execute("SELECT period_s, period, spent, reserved FROM balances WHERE tag = ?", (tag,))
            self._rows[tag] = {Account(tag, period_s): _Amounts(*map(int, rest)) for period_s, *rest in found}
        return self._rows[tag]

    def _set(self, account: Account, row: _Amounts) -> None:
        self._of(account.tag)[account] = row
        self._changed.add(account)


def settle_overdue(db: sqlite3.Connection, books: AccountBalances, now: float) -> None:
    """Turn what dead processes had reserved into estimated rows of the ledger."""
    overdue = "SELECT id, at, pico, tags FROM reservations WHERE coalesce(until, at + ?) < ? ORDER BY at"
    for held, at, amount, tags in db.execute(overdue, (_LONGEST_S + _GRACE_S, now)).fetchall():
        books.estimate(held, json.loads(tags), at, amount)


def _floor(limit: Decimal) -> int:
    return -pico_above(-limit)


def _period(account: Account, at: float) -> int:
    return int(at // account.period_s) if account.period_s else 0


def _balance(account: Account, row: _Amounts) -> Balance:
    resets_at = float((row.period + 1) * account.period_s) if account.period_s else None
    return Balance(from_pico(row.spent), from_pico(row.reserved), resets_at)


def _added_up(db: sqlite3.Connection, account: Account, number: int) -> _Amounts:
    """What the ledger and the reservations hold of an account in one of its periods."""
    begin, end = number * account.period_s, (number + 1) * account.period_s
    within = "FROM {} WHERE (? = '' OR ? IN (SELECT value FROM json_each(tags))) AND (? = 0 OR at >= ? AND at < ?)"
    values = (account.tag, account.tag, account.period_s, begin, end)
    spent = _sum(db, "SELECT sum(cost_pico / 1000000), sum(cost_pico % 1000000) " + within.format("ledger"), values)
    held = _sum(db, "SELECT sum(pico / 1000000), sum(pico % 1000000) " + within.format("reservations"), values)
    if account == Account():
        spent += _sum(db, "SELECT sum(micro), sum(pico) FROM ledger_sums", ())
    return _Amounts(number, spent, held)


def _sum(db: sqlite3.Connection, query: str, values: Sequence[object]) -> int:
    """A sum in picodollars of micro- and picodollars added up apart, as a 64-bit sum ends at 9.2 million USD."""
    micro, pico = db.execute(query, values).fetchone()
    return (micro or 0) * 1_000_000 + (pico or 0)


def problems(db: sqlite3.Connection) -> Iterator[str]:
    """Balances that are not what the ledger and the reservations add up to; not known where rows were pruned."""
    pruned = db.execute("SELECT count(*) FROM ledger_sums").fetchone()[0]
    for tag, period_s, *amounts in db.execute("SELECT tag, period_s, period, spent, reserved FROM balances").fetchall():
        account, kept = Account(tag, period_s), _Amounts(*map(int, amounts))
        if pruned and account != Account():
            continue
        if (true := _added_up(db, account, kept.period)) != kept:
            yield f"the balance of {account} is {kept[1:]}, its rows add up to {true[1:]}"
