"""Reservations and balances: exact for every process on the file, whatever happens to any of them."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack, closing
from dataclasses import replace
from decimal import Decimal, DefaultContext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from focalroute.core.errors import StoreError
from focalroute.core.records import Usage
from focalroute.store.accounts import DOUBT_S, Account, Balance
from focalroute.store.base import CapabilityRow, HealthRow, LedgerRow, Release, Reservation
from focalroute.store.sqlite.store import SqliteStore
from tests.loopback import until
from tests.redis_server import RedisServer
from tests.store.engines import Engine, RedisEngine, SqliteEngine
from tests.store.made import change, on_thread

PERIOD_S = 10**9  # no test meets its end
TOTAL, LONG, TEAM = Account(), Account("", PERIOD_S), Account("team", PERIOD_S)
LIMITS = {TOTAL: Decimal(3), LONG: Decimal(2), TEAM: Decimal(1)}
LIMITS_LONG = {LONG: Decimal(2)}
ZERO = Decimal(0)


def hold(number: object, amount: Decimal | str | int, tags: tuple[str, ...] = ()) -> Reservation:
    return Reservation(f"r{number}", "x", "a", Decimal(amount), tags)


def bill(held: Reservation, at: float, cost: Decimal | None) -> LedgerRow:
    source: Any = "unknown" if cost is None else "price"
    return LedgerRow(held.answer_id, held.endpoint, at, Usage(1, 1), cost, source, held.tags, held)


def applies(account: Account, tags: tuple[str, ...]) -> bool:
    return not account.tag or account.tag in tags


AMOUNTS = st.decimals(0, 1, places=6)
SHARES = st.sampled_from([Decimal(0), Decimal("0.25"), Decimal(1)])
TAGS = st.sampled_from([(), ("team",), ("other", "team"), ("other",)])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("reserve"), st.integers(0, 2), AMOUNTS, TAGS),
        st.tuples(st.just("settle"), st.integers(0, 9), SHARES),
        st.tuples(st.just("release"), st.integers(0, 9)),
        st.tuples(st.just("break off"), st.integers(0, 9), SHARES),
        st.tuples(st.just("become known"), st.integers(0, 9), SHARES),
        st.tuples(st.just("crash"), st.integers(0, 2)),
        st.tuples(st.just("pass time"), st.integers(0, 2)),
        st.tuples(st.just("charge"), st.integers(0, 2), AMOUNTS, TAGS),
    ),
    max_size=30,
)


class Model:
    """What the balances must be, counted the plain way."""

    def __init__(self) -> None:
        self.open: list[tuple[int, Reservation, float]] = []  # of living processes
        self.orphans: list[Reservation] = []
        self.paid: list[tuple[tuple[str, ...], Decimal]] = []
        self.estimates: list[LedgerRow] = []

    def balance(self, account: Account) -> tuple[Decimal, Decimal]:
        held = [r for _, r, _ in self.open] + self.orphans + [row.held_on for row in self.estimates if row.held_on]
        paid = self.paid + [(row.tags, row.cost or ZERO) for row in self.estimates]
        return (
            sum((cost for tags, cost in paid if applies(account, tags)), ZERO),
            sum((r.amount for r in held if applies(account, r.tags)), ZERO),
        )

    def fits(self, reservation: Reservation) -> bool:
        return all(
            sum(self.balance(account), reservation.amount) <= limit
            for account, limit in LIMITS.items()
            if applies(account, reservation.tags)
        )


@settings(max_examples=15)
@given(steps=STEPS)
def test_any_interleaving_of_reserve_settle_release_and_crash_keeps_every_limit(steps: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        interleave(SqliteEngine(Path(folder) / "s.db"), steps)


def test_any_interleaving_keeps_every_limit_in_redis_too(redis_server: RedisServer) -> None:
    @settings(max_examples=15)
    @given(steps=STEPS)
    def hold_to_it(steps: list[tuple[Any, ...]]) -> None:
        interleave(RedisEngine(redis_server.url), steps)

    hold_to_it()


def interleave(engine: Engine, steps: list[tuple[Any, ...]]) -> None:
    """Three stores on one place stand for three processes; one that crashes leaves its reservations behind."""
    model = Model()
    with ExitStack() as stack:

        def begin() -> Any:
            store = stack.enter_context(closing(engine.open()))
            store.open_accounts(LIMITS)
            return store

        stores = [begin() for _ in range(3)]
        for number, (what, which, *rest) in enumerate(steps):
            if what == "reserve":
                wanted = hold(number, *rest)
                limits = {a: limit for a, limit in LIMITS.items() if applies(a, wanted.tags)}
                grant = stores[which].reserve(wanted, limits).result(10)
                assert grant.granted is model.fits(wanted)
                if grant.granted:
                    model.open.append((which, wanted, grant.at))
            elif what == "charge":  # by a process without limits
                amount, tags = rest
                if model.fits(Reservation("", "", "", amount, tags)):
                    stores[which].write(LedgerRow("y", "a", time.time(), None, amount, "price", tags)).result(10)
                    model.paid.append((tags, amount))
            elif what in ("crash", "pass time"):  # either way the store is opened anew
                if what == "pass time":
                    overdue = tuple(held.id for held in model.orphans)
                    if overdue:
                        engine.later(stores[which], 4000, overdue)
                    model.paid += [(held.tags, held.amount) for held in model.orphans]
                    model.orphans = []
                stores[which].close()
                stores[which] = begin()
                model.orphans += [r for owner, r, _ in model.open if owner == which]
                model.open = [entry for entry in model.open if entry[0] != which]
            elif what == "become known":
                if model.estimates:
                    row = model.estimates.pop(which % len(model.estimates))
                    cost = ((row.cost or ZERO) + (row.doubt or ZERO)) * rest[0]
                    stores[number % 3].write(known(row, cost)).result(10)
                    model.paid.append((row.tags, cost))
            elif what == "break off":
                if model.open:
                    owner, held, at = model.open.pop(which % len(model.open))
                    cost, doubt = held.amount * rest[0] / 2, held.amount / 4
                    row = replace(bill(held, at, cost), usage=None, cost_source="reserved", doubt=doubt)
                    stores[owner].write(row).result(10)
                    model.estimates.append(row)
            elif model.open:
                owner, held, at = model.open.pop(which % len(model.open))
                cost = held.amount * rest[0] if what == "settle" else ZERO
                stores[owner].write(bill(held, at, cost) if what == "settle" else Release(held, at)).result(10)
                model.paid.append((held.tags, cost))
            balances = stores[number % 3].balances(LIMITS).result(10)
            for account, limit in LIMITS.items():
                assert (balances[account].spent, balances[account].reserved) == model.balance(account)
                assert sum(model.balance(account)) <= limit
        assert stores[0].verify() == ()


def test_threads_of_several_stores_that_only_reserve_fill_the_limit_exactly(engine: Engine) -> None:
    limits = {TOTAL: Decimal(1)}
    with ExitStack() as stack:
        stores = [stack.enter_context(closing(engine.open())) for _ in range(3)]
        for store in stores:
            store.open_accounts(limits)
        won: Counter[bool] = Counter()
        ready = threading.Barrier(6)

        def work(thread: int) -> None:
            ready.wait()
            futures = [stores[thread % 3].reserve(hold(f"{thread}-{i}", "0.002"), limits) for i in range(150)]
            won.update(future.result(20).granted for future in futures)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert won == {True: 500, False: 400}
        assert stores[0].balances([TOTAL]).result(10) == {TOTAL: Balance(ZERO, Decimal(1))}
        assert stores[0].verify() == ()


def test_the_reservations_of_a_killed_process_stand(engine: Engine) -> None:
    """kill -9 between the reservation and the bill: the next process starts with it."""
    where = engine.where
    code = """
import os, signal, sys
from tests.store.test_accounts import LIMITS, hold, bill
from focalroute.store import open_store
from dataclasses import replace
from decimal import Decimal
store = open_store(sys.argv[1])
store.open_accounts(LIMITS)
settled = store.reserve(hold(1, "0.5"), LIMITS).result()
store.write(bill(hold(1, "0.5"), settled.at, Decimal("0.1"))).result()
store.reserve(hold(2, "0.25"), LIMITS).result()
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code, where], timeout=60).returncode == -9
    with closing(engine.open()) as store:
        assert store.open_accounts([TOTAL])[TOTAL] == Balance(Decimal("0.1"), Decimal("0.25"))
        assert not store.reserve(hold(3, "2.66"), {TOTAL: Decimal(3)}).result(10).granted
        assert store.reserve(hold(4, "2.65"), {TOTAL: Decimal(3)}).result(10).granted


def test_an_account_opened_late_finds_what_was_spent_and_held(engine: Engine) -> None:
    with closing(engine.open()) as store:
        at = store.reserve(hold(1, "0.5", ("team",)), {}).result(10).at
        store.reserve(hold(2, "0.25", ("team", "x")), {}).result(10)
        store.reserve(hold(3, "0.125"), {}).result(10)
        store.write(bill(hold(1, "0.5", ("team",)), at, Decimal("0.4"))).result(10)
        store.write(bill(hold(9, 0, ("team",)), at - PERIOD_S, Decimal("0.0625"))).result(10)
        opened = store.open_accounts([TOTAL, LONG, Account("team"), Account("nobody")])
        amounts = {account: (str(b.spent), str(b.reserved)) for account, b in opened.items()}
        assert amounts == {
            TOTAL: ("0.4625", "0.375"),
            LONG: ("0.4", "0.375"),
            Account("team"): ("0.4625", "0.25"),
            Account("nobody"): ("0", "0"),
        }
        assert store.verify() == ()


def test_a_period_begins_anew_and_what_it_held_before_stays_behind() -> None:
    """The clock is moved through the database: what is there becomes the last period's."""
    with closing(SqliteStore()) as store:
        store.open_accounts([LONG, TOTAL])
        grant = store.reserve(hold(1, 2), LIMITS_LONG).result(10)
        assert grant.granted
        assert grant.balances[LONG].resets_at == (grant.at // PERIOD_S + 1) * PERIOD_S
        assert not store.reserve(hold(2, 1), LIMITS_LONG).result(10).granted
        change(store, "balances", "period = period - 1 WHERE period_s > 0")
        change(store, "reservations", f"at = at - {PERIOD_S}")
        assert store.balances([LONG]).result(10)[LONG].reserved == 0
        assert store.reserve(hold(3, 2), LIMITS_LONG).result(10).granted
        store.write(bill(hold(1, 2), grant.at - PERIOD_S, Decimal(1))).result(10)  # it counts where it began
        balances = store.balances([LONG, TOTAL]).result(10)
        assert balances[LONG] == Balance(ZERO, Decimal(2), grant.balances[LONG].resets_at)
        assert balances[TOTAL] == Balance(Decimal(1), Decimal(2))
        assert store.verify() == ()


MINUTE, DAY = Account("", 60), Account("", 86_400)


def put_ahead(engine: Engine, store: Any, account: Account, periods: int, usd: int) -> None:
    """As if the clock had been so many periods ahead when this was spent last."""
    period, name = account.period(time.time()) + periods, f"{account.period_s} {account.tag}"
    if isinstance(engine, RedisEngine):
        text = f"{period} {usd * 10**6} 0 0 0"
        store.run(lambda connection: connection.command("HSET", connection.keys["balances"], name, text))
    else:
        change(store, "balances", f"period = {period}, spent = '{usd}000000000000' WHERE period_s = {account.period_s}")


def test_a_clock_that_was_set_back_a_little_stays_in_the_latest_period(engine: Engine) -> None:
    limits = {MINUTE: Decimal(2)}
    with closing(engine.open()) as store:
        store.open_accounts(limits)
        put_ahead(engine, store, MINUTE, 1, 1)
        assert not store.reserve(hold(1, "1.5"), limits).result(10).granted
        assert store.reserve(hold(2, 1), limits).result(10).granted
        assert not store.reserve(hold(3, "0.5"), limits).result(10).granted


@pytest.mark.parametrize("first", ["reserve", "balances", "write"])
@pytest.mark.usefixtures("no_period_ends")
def test_a_clock_that_was_years_ahead_once_leaves_the_present_period_with_what_it_had_spent(
    engine: Engine, caplog: pytest.LogCaptureFixture, first: str
) -> None:
    limits = {DAY: Decimal(2), TOTAL: Decimal(20)}
    with closing(engine.open(poll_s=0.01)) as store:
        store.open_accounts(limits)
        store.write(replace(bill(hold(1, 0), 0, Decimal("0.5")), at=time.time())).result(10)
        store.reserve(hold(2, "0.25"), limits).result(10)
        put_ahead(engine, store, DAY, 10_000, 2)
        assert any("its rows add up to" in problem for problem in store.verify())
        if first == "balances":
            assert store.balances(limits).result(10)[DAY].spent == Decimal("0.5")
        elif first == "write":
            store.write(replace(bill(hold(2, "0.25"), 0, Decimal("0.125")), at=time.time())).result(10)
        grant = store.reserve(hold(3, "0.25"), limits).result(10)
        assert grant.granted
        assert abs(grant.at - time.time()) < 60
        spent, held = ("0.625", "0.25") if first == "write" else ("0.5", "0.5")
        for balances in (grant.balances, store.balances(limits).result(10)):
            assert [(balances[account].spent, balances[account].reserved) for account in limits] == [
                (Decimal(spent), Decimal(held))
            ] * 2
        assert store.verify() == ()
        until(lambda: "clock was far ahead" in caplog.text)
    assert sum("clock was far ahead" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize("tag", ["", "team"])
@pytest.mark.usefixtures("no_period_ends")
def test_a_period_that_a_clock_comes_back_to_goes_on_with_what_it_had_spent(engine: Engine, tag: str) -> None:
    """The clock was set back by five periods, in which others have called, and has returned."""
    account = Account(tag, MINUTE.period_s)
    limits, tags = {account: Decimal(2)}, ("team",)
    with closing(engine.open()) as store:
        store.open_accounts(limits)
        store.write(replace(bill(hold(1, 0), 0, Decimal("0.75")), at=time.time(), tags=tags)).result(10)
        store.reserve(hold(2, "0.25", tags), limits).result(10)
        put_ahead(engine, store, account, -5, 1)
        balance = store.balances([account]).result(10)[account]
        assert (balance.spent, balance.reserved) == (Decimal("0.75"), Decimal("0.25"))
        put_ahead(engine, store, account, -5, 1)
        assert not store.reserve(hold(3, "1.25", tags), limits).result(10).granted
        assert store.reserve(hold(4, 1, tags), limits).result(10).granted
        assert store.verify() == ()


@pytest.mark.parametrize("first", ["settle", "release", "reserve", "charge", "die"])
@pytest.mark.usefixtures("no_period_ends")
def test_a_period_goes_on_with_what_it_had_spent_whoever_comes_back_first(engine: Engine, first: str) -> None:
    """A call that was under way when the clock was set back began the period anew: the limit was exceeded."""
    limits = {MINUTE: Decimal(2)}
    with closing(engine.open()) as store:
        store.open_accounts(limits)
        store.write(replace(bill(hold(1, 0), 0, Decimal("0.75")), at=time.time())).result(10)
        at = store.reserve(hold(2, "0.25"), limits).result(10).at
        put_ahead(engine, store, MINUTE, -5, 1)
        if first == "settle":
            store.write(bill(hold(2, "0.25"), at, Decimal("0.125"))).result(10)
        elif first == "release":
            store.write(Release(hold(2, "0.25"), at)).result(10)
        elif first == "reserve":  # another ensemble, which does not have this limit
            store.reserve(hold(3, "0.5"), {}).result(10)
        elif first == "charge":
            store.write(replace(bill(hold(3, 0), 0, Decimal("0.5")), at=time.time(), reservation=None)).result(10)
        else:
            engine.later(store, 4000)
            engine.open().close()
        balance = store.balances([MINUTE]).result(10)[MINUTE]
        spent = {"settle": "0.875", "charge": "1.25", "die": "1"}.get(first, "0.75")
        held = {"reserve": "0.75", "charge": "0.25"}.get(first, "0")
        assert (balance.spent, balance.reserved) == (Decimal(spent), Decimal(held))
        assert store.verify() == ()


@pytest.mark.usefixtures("no_period_ends")
def test_calls_with_other_tags_do_not_bring_a_period_back(engine: Engine) -> None:
    account = Account("other", MINUTE.period_s)
    with closing(engine.open()) as store:
        store.open_accounts([account])
        store.write(replace(bill(hold(1, 0), 0, Decimal("0.75")), at=time.time(), tags=("team",))).result(10)
        put_ahead(engine, store, account, -5, 1)
        balance = store.balances([account]).result(10)[account]
        assert (balance.spent, balance.reserved) == (0, 0)


def test_a_call_by_a_clock_that_is_far_ahead_moves_no_period_for_the_others(engine: Engine) -> None:
    limits = {MINUTE: Decimal(2), DAY: Decimal(2), TOTAL: Decimal(9)}
    with closing(engine.open()) as store:
        store.open_accounts(limits)
        for ahead in (7200, 10**9):
            store.write(replace(bill(hold(0, 0), 0, Decimal(1)), at=time.time() + 86_400 + ahead)).result(10)
        grant = store.reserve(hold(1, "1.5"), limits).result(10)
        assert grant.granted
        assert abs(grant.at - time.time()) < 60
        assert grant.balances[TOTAL].spent == 2
        assert store.verify() == ()


def test_a_reservation_by_a_clock_far_ahead_is_not_held_for_years(engine: Engine) -> None:
    limits = {TOTAL: Decimal(9)}
    with closing(engine.open()) as store:
        store.open_accounts(limits)
        store.reserve(hold(1, "0.5"), limits).result(10)
        engine.move_reservations(store, 10**9)
    for later, held in ((0, "0.5"), (4000, "0.5"), (0, "0")):
        with closing(engine.open()) as store:
            assert store.balances(limits).result(10)[TOTAL].reserved == Decimal(held)
            engine.later(store, later)
    with closing(engine.open()) as store:
        assert store.balances(limits).result(10)[TOTAL].spent == Decimal("0.5")
        assert store.verify() == ()


def test_news_by_a_clock_far_ahead_do_not_stand_until_its_time_comes(engine: Engine) -> None:
    """Of an endpoint's health and capabilities; those by a clock that is a little ahead do."""
    now = time.time()
    with closing(engine.open()) as store:
        for ahead, kept in ((7200, 0), (5, 5), (4, 5)):
            store.write(HealthRow("k", now, 1, now + ahead), CapabilityRow("k", now + ahead, {})).result(10)
            store.write(HealthRow("k", now, 1, now), CapabilityRow("k", now, {})).result(10)
            assert store.health().result(10)["k"].changed_at == now + kept
            assert store.capabilities("k").probed_at == now + kept
        assert store.verify() == ()


def test_a_clock_that_is_set_ahead_is_warned_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = time.time
    with closing(SqliteStore(tmp_path / "s.db", poll_s=0.01)) as store:
        store.capabilities("k")
        monkeypatch.setattr(time, "time", lambda: real() + 7200)
        until(lambda: "s.db: the clock was set ahead by 7200 s" in caplog.text)
        time.sleep(0.05)
    assert caplog.text.count("s.db: the clock was set ahead") == 1  # another test's store may say so, too


def test_amounts_are_rounded_against_the_spender_and_limits_down(engine: Engine) -> None:
    limits = {TOTAL: Decimal("0.0000000000019")}
    with closing(engine.open()) as store:
        store.open_accounts(limits)
        assert not store.reserve(hold(1, "0.0000000000011"), limits).result(10).granted
        assert store.reserve(hold(2, "0.0000000000009"), limits).result(10).granted
        assert store.balances(limits).result(10)[TOTAL].reserved == Decimal("1e-12")


def test_amounts_do_not_depend_on_the_decimal_context_of_the_thread_that_commits(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program may lower the precision of all threads that begin later; bills were then stored rounded."""
    amount = Decimal("0.000123456789")
    monkeypatch.setattr(DefaultContext, "prec", 4)
    with closing(engine.open()) as store:
        store.open_accounts([TOTAL])
        store.write(bill(hold(1, 1), 0.0, amount)).result(10)
        assert store.balances([TOTAL]).result(10)[TOTAL].spent == amount


def test_balances_are_exact_beyond_64_bits_of_picodollars(engine: Engine) -> None:
    limits = {TOTAL: Decimal(10) ** 9}
    with closing(engine.open()) as store:
        store.open_accounts(limits)
        for i in range(3):
            grant = store.reserve(hold(i, "9000000.000000000001"), limits).result(10)
            store.write(bill(hold(i, "9000000.000000000001"), grant.at, Decimal("9000000.000000000001"))).result(10)
        assert store.balances(limits).result(10)[TOTAL].spent == Decimal("27000000.000000000003")
        assert store.verify() == ()


def test_settling_or_releasing_twice_ends_it_once(engine: Engine) -> None:
    with closing(engine.open()) as store:
        store.open_accounts([TOTAL])
        at = store.reserve(hold(1, 1), {TOTAL: Decimal(3)}).result(10).at
        released = [Release(hold(number, 1), at) for number in (1, 1, 2)]
        store.write(bill(hold(1, 1), at, None), *released).result(10)
        assert store.balances([TOTAL]).result(10) == {TOTAL: Balance(ZERO, ZERO)}
        assert store.verify() == ()


def test_a_bill_that_cannot_be_stored_does_not_count_as_others_are(tmp_path: Path) -> None:
    """Where the balance of its tag was damaged, the balance of all calls counted it nevertheless."""
    tags = [f"t{i}" for i in range(8)]
    with closing(SqliteStore(tmp_path / "s.db")) as store:
        store.open_accounts([TOTAL, *map(Account, tags)])
        on_thread(store, lambda db: db.execute("UPDATE balances SET spent = 'x' WHERE tag <> ''"))
        bills = [replace(bill(hold(tag, 1), 0.0, Decimal(1)), tags=(tag,)) for tag in tags]
        *failed, stored = store.write_calls([(one,) for one in (*bills, bill(hold(9, 1), 0.0, Decimal(1)))]).result(10)
        assert all(failed)
        assert stored is None
        assert store.balances([TOTAL]).result(10)[TOTAL].spent == 1


def test_a_reservation_that_fails_beside_others_leaves_nothing(tmp_path: Path) -> None:
    """Its row stayed, and would have become a bill, as it was not undone by itself."""
    with closing(SqliteStore(tmp_path / "s.db")) as store:
        store.open_accounts([TOTAL, Account("team")])
        on_thread(store, lambda db: db.execute("UPDATE balances SET spent = 'x' WHERE tag = 'team'"))
        with store._using:  # the store's thread waits with the first, then takes the others together
            first = store.write(bill(hold(1, 1), 0.0, Decimal(1)))
            until(lambda: store._queue._queue.empty())
            failed = store.reserve(hold(2, 1, ("team",)), {TOTAL: Decimal(9)})
            last = store.write(bill(hold(3, 1), 0.0, Decimal(1)))
        assert first.result(10) is last.result(10) is None
        assert isinstance(failed.exception(10), StoreError)
        assert on_thread(store, lambda db: db.execute("SELECT count(*) FROM reservations").fetchone()[0]) == 0
        assert store.balances([TOTAL]).result(10)[TOTAL] == Balance(Decimal(2), ZERO)


def test_a_row_with_damaged_tags_stops_only_limits_on_tags(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "s.db")) as store:
        store.write(bill(hold(1, 1), 0.0, Decimal(1))).result(10)
        on_thread(store, lambda db: db.execute("UPDATE ledger SET tags = 'x'"))
        assert store.open_accounts([TOTAL, LONG])[TOTAL].spent == 1
        with pytest.raises(StoreError, match="the tags of a row of the ledger are damaged"):
            store.open_accounts([Account("team")])


def test_accounts_are_added_up_in_one_pass_over_the_ledger(tmp_path: Path) -> None:
    """Each took a pass of its own, and other processes waited: a hundred limits on tags of an old store for minutes."""
    accounts = [Account(tag, period_s) for tag in ("", "team", "other") for period_s in (0, PERIOD_S)]
    statements: list[str] = []
    with closing(SqliteStore(tmp_path / "s.db")) as store:
        for tags in (("team", "team", "other"), ("team",), ()):
            store.write(replace(bill(hold(1, 1), time.time(), Decimal(1)), tags=tags)).result(10)
        on_thread(store, lambda db: db.set_trace_callback(statements.append))
        found = store.open_accounts(accounts)
        assert sum("FROM ledger " in statement for statement in statements) == 2
        assert store.reconcile() == []
    assert [int(found[one].spent) for one in accounts] == [3, 3, 2, 2, 1, 1]


@pytest.mark.parametrize("damage", ["UPDATE balances SET spent = '5'", "DELETE FROM reservations"])
def test_a_balance_that_its_rows_do_not_add_up_to_is_found(damage: str) -> None:
    with closing(SqliteStore()) as store:
        store.open_accounts([TOTAL])
        store.reserve(hold(1, 1), {TOTAL: Decimal(3)}).result(10)
        on_thread(store, lambda db: db.execute(damage))
        assert any("its rows add up to" in problem for problem in store.verify())


def test_a_dead_processs_reservation_is_settled_as_an_estimate_once_its_call_must_be_over(engine: Engine) -> None:
    timed = Reservation("r1", "x", "a", Decimal("0.5"), ("team",), timeout_s=30)
    with closing(engine.open()) as store:
        store.open_accounts(LIMITS)
        assert store.reserve(timed, LIMITS).result(10).granted
        assert store.reserve(hold(2, "0.25"), {TOTAL: Decimal(3)}).result(10).granted
        engine.later(store, 80)
    for seconds, spent, held in ((20, "0", "0.75"), (0, "0.5", "0.25"), (0, "0.5", "0.25")):
        with closing(engine.open()) as store:
            balances = store.open_accounts(LIMITS)
            assert balances[TOTAL] == Balance(Decimal(spent), Decimal(held))
            assert {balances[account].spent for account in LIMITS} == {Decimal(spent)}
            assert balances[TEAM].reserved == Decimal("0.5") - Decimal(spent)
            (row,) = store.ledger("all")
            assert (row.cost, row.estimated_cost, row.held) == (Decimal(spent), Decimal(spent), Decimal(held))
            assert row.calls == row.estimated == (spent != "0")
            assert store.verify() == ()
            engine.later(store, seconds)


@pytest.mark.parametrize("released", [False, True])
def test_a_process_that_was_only_asleep_settles_or_releases_what_was_estimated(engine: Engine, released: bool) -> None:
    limits = {TOTAL: Decimal(3)}
    with closing(engine.open()) as asleep:
        asleep.open_accounts(limits)
        at = asleep.reserve(hold(1, "0.5"), limits).result(10).at
        engine.later(asleep, 4000)
        with closing(engine.open()) as other:
            assert other.balances(limits).result(10)[TOTAL] == Balance(Decimal("0.5"), ZERO)
        row = Release(hold(1, "0.5"), at) if released else bill(hold(1, "0.5"), at, Decimal("0.125"))
        asleep.write(row).result(10)
        spent = ZERO if released else Decimal("0.125")
        assert asleep.balances(limits).result(10)[TOTAL] == Balance(spent, ZERO)
        left = [(one.calls, one.estimated, one.cost) for one in asleep.ledger("all")]
        assert left == ([] if released else [(1, 0, spent)])
        assert asleep.verify() == ()


def estimated(store: Any, number: int = 1) -> LedgerRow:
    """The row of a call that broke off, settled: 0.1 of its reservation counts as spent, 0.2 stay held."""
    held = hold(number, "0.5", ("team",))
    grant = store.reserve(held, LIMITS).result(10)
    row = LedgerRow("x", "a", grant.at, None, Decimal("0.1"), "reserved", ("team",), held, Decimal("0.2"))
    store.write(row).result(10)
    return row


def known(row: LedgerRow, cost: Decimal | str) -> LedgerRow:
    """The row with the cost that the service reported afterwards."""
    return replace(row, cost=Decimal(cost), cost_source="provider", reservation=row.held_on, doubt=None)


def sums(store: Any) -> list[tuple[int, int, Decimal, Decimal]]:
    return [(one.calls, one.estimated, one.cost, one.held) for one in store.ledger("all")]


def amounts(store: Any) -> set[tuple[Decimal, Decimal]]:
    return {(one.spent, one.reserved) for one in store.balances(LIMITS).result(10).values()}


def test_money_in_doubt_stays_held_by_the_same_write_that_settles_the_reservation(engine: Engine) -> None:
    with closing(engine.open()) as store, closing(engine.open()) as other:
        store.open_accounts(LIMITS)
        estimated(store)
        assert amounts(other) == {(Decimal("0.1"), Decimal("0.2"))}
        assert sums(other) == [(1, 1, Decimal("0.1"), Decimal("0.2"))]
        assert not other.reserve(hold(2, "0.71", ("team",)), LIMITS).result(10).granted
        assert other.reserve(hold(3, "0.7", ("team",)), LIMITS).result(10).granted
        assert other.verify() == ()


@pytest.mark.parametrize("cost", ["0", "0.05", "0.4"])
def test_a_cost_that_becomes_known_replaces_the_estimate_and_what_is_held_besides(engine: Engine, cost: str) -> None:
    with closing(engine.open()) as store, closing(engine.open()) as other:
        store.open_accounts(LIMITS)
        row = estimated(store)
        other.write(known(row, cost)).result(10)
        assert amounts(store) == {(Decimal(cost), ZERO)}
        assert sums(store) == [(1, 0, Decimal(cost), ZERO)]
        assert store.totals()["a"].cost == Decimal(cost)
        assert store.verify() == ()


def test_money_in_doubt_is_released_after_a_day_and_the_estimate_stands(engine: Engine) -> None:
    with closing(engine.open()) as store:
        store.open_accounts(LIMITS)
        row = estimated(store)
        engine.later(store, DOUBT_S - 30)
    for seconds, held in ((60, "0.2"), (0, "0")):
        with closing(engine.open()) as store:
            store.open_accounts(LIMITS)
            assert amounts(store) == {(Decimal("0.1"), Decimal(held))}
            assert sums(store) == [(1, 1, Decimal("0.1"), Decimal(held))]
            assert store.verify() == ()
            engine.later(store, seconds)
    with closing(engine.open()) as store:
        store.write(known(row, "0.3")).result(10)  # too late, or not: never both
        assert sums(store) in ([(1, 1, Decimal("0.1"), ZERO)], [(1, 0, Decimal("0.3"), ZERO)])
        assert store.verify() == ()


def test_a_process_that_was_only_asleep_may_estimate_what_was_estimated_for_it(engine: Engine) -> None:
    with closing(engine.open()) as asleep:
        asleep.open_accounts(LIMITS)
        held = hold(1, "0.5", ("team",))
        at = asleep.reserve(held, LIMITS).result(10).at
        engine.later(asleep, 4000)
        with closing(engine.open()) as other:
            assert amounts(other) == {(Decimal("0.5"), ZERO)}
        row = LedgerRow("x", "a", at, None, Decimal("0.1"), "reserved", ("team",), held, Decimal("0.2"))
        asleep.write(row).result(10)
        assert amounts(asleep) == {(Decimal("0.1"), Decimal("0.2"))}
        asleep.write(row).result(10)  # a reservation ends once: nothing is held twice
        assert {reserved for _, reserved in amounts(asleep)} == {Decimal("0.2")}
        assert asleep.verify() == ()


def test_overdue_reservations_are_settled_while_the_store_is_open(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in ("sqlite", "redis"):
        monkeypatch.setattr(f"focalroute.store.{kind}.store.SETTLE_EVERY_S", 0.05)
    with closing(engine.open(poll_s=0.02)) as store:
        store.open_accounts(LIMITS)
        estimated(store)
        engine.later(store, DOUBT_S + 1)
        until(lambda: amounts(store) == {(Decimal("0.1"), ZERO)})
        assert store.verify() == ()
