"""Sums for statistics: those of the whole ledger, without reading it."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from focalroute.store.accounts import Account
from focalroute.store.base import LedgerRow, LedgerSum, Release, Reservation
from focalroute.store.redis.store import RedisStore
from focalroute.store.sqlite import store as engine_module
from focalroute.store.sqlite.store import SqliteStore
from tests.loopback import until
from tests.redis_server import RedisServer, place
from tests.store.engines import Engine
from tests.store.made import answer, bill, edit, on_thread

LIMITS = {Account(): Decimal(1000)}
ZERO = Decimal(0)


def in_all(store: Any) -> tuple[int, int, int, Decimal]:
    """Asks, calls, those of unknown cost, and the cost, by the totals."""
    found = store.totals().values()
    unpriced, cost = sum(row.unpriced for row in found), sum((row.cost for row in found), ZERO)
    return sum(row.asks for row in found), sum(row.calls for row in found), unpriced, cost


def by_the_ledger(store: Any) -> tuple[int, int, int, Decimal]:
    """The same by every row of the ledger."""
    (everything,) = store.ledger("all") or (LedgerSum("all"),)
    return everything.asks, everything.calls, everything.unpriced, everything.cost


def unsummed(store: SqliteStore) -> int:
    """How many rows a look at the totals has to read."""
    count = "SELECT count(*) FROM ledger WHERE seq > (SELECT coalesce(max(upto), 0) FROM ledger_sums)"
    rows: int = on_thread(store, lambda db: db.execute(count).fetchone()[0])
    return rows


def test_the_totals_of_a_long_ledger_are_read_without_its_rows(tmp_path: Path) -> None:
    """`stats` took 5 seconds in a file of a million answers, and its event loop stood still."""
    path = tmp_path / "s.db"
    with closing(SqliteStore(path, poll_s=0.01)) as store:
        for number in range(80):
            rows = [LedgerRow(f"{number}-{i}", "a", 1.0, None, Decimal("0.001"), "price") for i in range(50)]
            store.write(*rows).result(10)
        until(lambda: unsummed(store) < 1000)
        assert in_all(store) == by_the_ledger(store) == (4000, 4000, 0, Decimal(4))
        assert store.verify() == ()
    edit(path, "DELETE FROM ledger_sums")  # as an earlier version left it
    with closing(SqliteStore(path, poll_s=0.01)) as store:
        until(lambda: unsummed(store) < 1000)
        assert in_all(store) == (4000, 4000, 0, Decimal(4))


def test_the_totals_of_a_fleet_are_read_without_the_ledger(redis_server: RedisServer) -> None:
    def passes() -> int:
        stats = store.run(lambda connection: connection.command("INFO", "commandstats")).decode()
        return int(stats.partition("cmdstat_xrange:calls=")[2].partition(",")[0] or 0)

    with closing(RedisStore(place(redis_server.url))) as store:
        store.write(bill(), bill("b")).result(10)
        before = passes()
        assert in_all(store) == (1, 2, 0, Decimal("0.002"))
        assert passes() == before


def test_the_asks_of_a_fleet_of_before_are_counted_once(redis_server: RedisServer) -> None:
    where = place(redis_server.url)
    with closing(RedisStore(where)) as store:
        for number in range(5):
            rows = [LedgerRow(f"{number}", name, 1.0, None, ZERO, "price") for name in "ab"]
            store.write(*rows).result(10)

        def forget(connection: Any) -> None:
            connection.command("DEL", connection.keys["asks"])
            connection.command("HDEL", connection.keys["totals"], '["a","asks"]')
            connection.command("HDEL", connection.keys["policy"], "asks_counted")

        store.run(forget)
        assert in_all(store)[0] == 0
    for _ in range(2):
        with closing(RedisStore(where)) as store:
            assert in_all(store) == (5, 10, 0, ZERO)


@pytest.mark.parametrize("seed", range(4))
def test_the_totals_are_those_of_the_ledger_whatever_happens(
    engine: Engine, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asks under way at the same time, estimates that the true cost replaces, dead processes, credits."""
    monkeypatch.setattr(engine_module, "_SUM_EVERY", 3)
    monkeypatch.setattr(engine_module, "_SUMMED_AT_ONCE", 4)
    rng = random.Random(seed)
    with closing(engine.open(poll_s=0.002)) as store:
        store.open_accounts(LIMITS)
        estimates: list[LedgerRow] = []

        def charge(ask: str) -> None:
            cost = rng.choice([None, ZERO, Decimal(rng.randrange(10**8)) / 10**6])
            store.write(LedgerRow(ask, rng.choice("abc"), 1.0, None, cost, "price")).result(10)

        def break_off(ask: str) -> None:
            held = Reservation(f"r{rng.random()}", ask, rng.choice("abc"), Decimal("0.5"))
            at = store.reserve(held, LIMITS).result(10).at
            row = LedgerRow(ask, held.endpoint, at, None, Decimal("0.1"), "reserved", (), held, Decimal("0.2"))
            store.write(row).result(10)
            estimates.append(row)

        def become_known(_: str) -> None:
            if estimates:
                row = estimates.pop(rng.randrange(len(estimates)))
                store.write(
                    LedgerRow(row.answer_id, row.endpoint, row.at, None, Decimal("0.3"), "provider", (), row.held_on)
                ).result(10)

        def die(ask: str) -> None:
            held = Reservation(f"r{rng.random()}", ask, rng.choice("abc"), Decimal("0.5"))
            store.reserve(held, LIMITS).result(10)
            engine.later(store, 4000, (held.id,))
            engine.open().close()  # settles it

        steps: list[Callable[[str], None]] = [charge, charge, charge, break_off, become_known, die]
        for number in range(60):
            ask = rng.choice([f"{number // 3}", f"{number // 7}", "judge:x", "probe:x"])
            rng.choice(steps)(ask)
            assert in_all(store) == by_the_ledger(store)
        assert store.verify() == ()
        assert store.reconcile() == []


@pytest.mark.parametrize("released", [False, True])
def test_an_estimate_in_the_sums_is_taken_from_them_when_it_is_replaced(tmp_path: Path, released: bool) -> None:
    with closing(SqliteStore(tmp_path / "s.db", poll_s=0.002)) as store:
        store.open_accounts(LIMITS)
        held = Reservation("r", "x", "a", Decimal("0.5"))
        at = store.reserve(held, LIMITS).result(10).at
        on_thread(store, lambda db: db.execute("UPDATE reservations SET until = 0"))
        store.reconcile(repair=True)  # settles it
        store.write(*[bill("b")] * 1000).result(10)
        until(lambda: unsummed(store) == 0)
        assert in_all(store) == (1, 1001, 0, Decimal("1.5"))
        row = Release(held, at) if released else LedgerRow("x", "a", at, None, Decimal("0.125"), "price", (), held)
        store.write(row).result(10)
        assert in_all(store) == by_the_ledger(store)
        assert store.verify() == ()


def test_asks_whose_rows_are_pruned_are_counted_as_well() -> None:
    """The savings compared all asks' cost with what those of the latest rows would have cost."""
    with closing(SqliteStore(keep=5)) as store:
        for number in range(600):
            rows = [LedgerRow(f"{number}", name, 1.0, None, Decimal("0.001"), "price") for name in "ab"]
            store.write(answer(f"{number}"), *rows)
        assert in_all(store) == (600, 1200, 0, Decimal("1.2"))
        assert by_the_ledger(store)[0] < 100


def test_a_repair_adds_the_sums_up_again(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with closing(SqliteStore(path, poll_s=0.002)) as store:
        store.write(*[bill()] * 1000).result(10)
        until(lambda: unsummed(store) == 0)
    edit(path, "DELETE FROM ledger WHERE seq > 500")
    with closing(SqliteStore(path, poll_s=0.002)) as store:
        assert in_all(store)[1] == 1000
        assert "ledger_sums: the sums of 'a' are not those of its rows" in store.verify()
        store.reconcile(repair=True)
        assert in_all(store) == by_the_ledger(store) == (1, 500, 0, Decimal("0.5"))
        assert store.verify() == ()
