"""Account arithmetic: what is spent and reserved in an account's current period, in whole picodollars (1e-12 USD).

The SQLite store calls these functions inside a transaction. ``lua/common.lua`` does the same for Redis, where only a
script on the server is atomic.
"""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal
from typing import NamedTuple

from focalroute.core.dollars import MONEY

#: The longest time between the end of a call and its settlement in the store.
GRACE_S = 60.0
#: How long part of a reservation stays held for a call that may have cost more; at least as long as any period.
DOUBT_S = 24 * 3600.0
#: How often a store settles the reservations of dead processes, and releases what was held for `DOUBT_S`.
SETTLE_EVERY_S = 600.0
#: A moment that is further ahead than this comes from a wrong clock.
AHEAD_S = 60.0
#: How many of the latest calls to search for the calls of a period that began before, if the clock was set back since.
LATEST_CALLS = 1000

_PICO = Decimal(10) ** 12


def to_pico(usd: Decimal | None) -> int | None:
    """USD as whole picodollars (1e-12 USD), rounded half to even."""
    return None if usd is None else int(MONEY.multiply(usd, _PICO).to_integral_value(ROUND_HALF_EVEN))


def pico_above(usd: Decimal) -> int:
    """USD as whole picodollars, rounded up: a reservation never holds less than its amount."""
    return int(MONEY.multiply(usd, _PICO).to_integral_value(ROUND_CEILING))


def pico_below(usd: Decimal) -> int:
    """USD as whole picodollars, rounded down: a limit never allows more than its amount."""
    return int(MONEY.multiply(usd, _PICO).to_integral_value(ROUND_FLOOR))


def from_pico(pico: int) -> Decimal:
    """Picodollars as USD, exact to 28 digits."""
    return MONEY.divide(Decimal(pico), _PICO)


class Account(NamedTuple):
    """The calls that a limit applies to: those with a tag ("": all) in the current period (0 seconds: for ever).

    Periods follow the clock in UTC: an hour begins at :00, a day at midnight.
    """

    tag: str = ""
    period_s: int = 0

    def period(self, at: float) -> int:
        """The number of the period that a time (Unix, seconds) falls into."""
        return int(at // self.period_s) if self.period_s else 0

    def credible(self, period: int, now: float) -> bool:
        """Whether a period has begun or is about to; one that begins later comes from a wrong clock."""
        return period * self.period_s <= now + AHEAD_S


class Balance(NamedTuple):
    """An account at one moment, USD.

    Attributes:
        spent: the cost of its settled calls.
        reserved: the amounts held for unsettled calls, those of dead processes included.
        resets_at: when its period ends, Unix time; None: never.
    """

    spent: Decimal
    reserved: Decimal
    resets_at: float | None = None

    def left(self, limit: Decimal) -> Decimal:
        """Return what is left of a limit."""
        return limit - self.spent - self.reserved


class AccountState(NamedTuple):
    """An account as stored: the number of its latest period, and its amounts in picodollars."""

    period: int
    spent: int = 0
    reserved: int = 0

    def at(self, period: int) -> AccountState:
        """The state in this period or, if that is over, in the latest one: a clock set back begins no period again."""
        return self if period <= self.period else AccountState(period)

    def add(self, period: int, spent: int, reserved: int) -> AccountState:
        """The state with these amounts of a period added; amounts of an earlier period are ignored."""
        if period < self.period:
            return self
        if period > self.period:
            return AccountState(period, spent, max(reserved, 0))
        return AccountState(period, self.spent + spent, self.reserved + reserved)

    def fits(self, amount: int, limit: int) -> bool:
        """Whether the limit leaves room for this amount."""
        return self.spent + self.reserved + amount <= limit

    def balance(self, account: Account) -> Balance:
        """The account's balance in USD."""
        resets_at = float((self.period + 1) * account.period_s) if account.period_s else None
        return Balance(from_pico(self.spent), from_pico(self.reserved), resets_at)
