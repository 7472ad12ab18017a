"""Budgets by a clock that jumps back and forth, as at a switch to summer time that is set by hand."""

from __future__ import annotations

import random
import time
from contextlib import closing
from decimal import Decimal

import pytest

from focalroute.store.accounts import Account
from focalroute.store.base import LedgerRow, Release, Reservation
from focalroute.store.sqlite.store import SqliteStore
from focalroute.store.sqlite.writes import AccountBalances

LIMITS = {
    Account("", 3600): Decimal(1),
    Account("", 86_400): Decimal(3),
    Account("team", 86_400): Decimal(2),
    Account(): Decimal(50),
}
JUMPS = (-3600, 3600, -3600, 3600, -86_400, 86_400, -30, 30)


@pytest.mark.parametrize("seed", range(40))
def test_no_period_exceeds_its_limit_however_the_clock_jumps(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call counts in the period in which it was reserved, wherever the clock was when it ended."""
    rng, usual, ahead = random.Random(seed), time.time, 0
    monkeypatch.setattr(time, "time", lambda: usual() + ahead)
    under_way: list[tuple[Reservation, float]] = []
    counted: list[tuple[float, Decimal, tuple[str, ...]]] = []
    with closing(SqliteStore()) as store:
        store.open_accounts(LIMITS)
        for step in range(120):
            kind = rng.random()
            if kind < 0.25:
                ahead += rng.choice(JUMPS)
            elif kind < 0.6 or not under_way:
                tags = rng.choice([(), ("team",)])
                held = Reservation(f"r{step}", "x", "a", Decimal(rng.randrange(1, 500)) / 1000, tags)
                limits = {account: usd for account, usd in LIMITS.items() if account.tag in ("", *tags)}
                grant = store.reserve(held, limits).result(10)
                under_way += [(held, grant.at)] if grant.granted else []
            elif kind < 0.95:
                held, at = under_way.pop(rng.randrange(len(under_way)))
                cost = held.amount * rng.choice([0, 1])
                counted.append((at, cost, held.tags))
                store.write(LedgerRow("x", "a", at, None, cost, "price", held.tags, held)).result(10)
            else:
                held, at = under_way.pop()
                store.write(Release(held, at)).result(10)
            if rng.random() < 0.1:
                store._change_balances(AccountBalances.settle_overdue).result(10)
        store.open_accounts(LIMITS)  # in the present periods
        assert store.verify() == ()
    counted += [(at, held.amount, held.tags) for held, at in under_way]
    for account, limit in LIMITS.items():
        spent: dict[int, Decimal] = {}
        for at, cost, tags in counted:
            if account.tag in ("", *tags):
                spent[account.period(at)] = spent.get(account.period(at), Decimal(0)) + cost
        assert max(spent.values(), default=Decimal(0)) <= limit
