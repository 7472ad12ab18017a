"""Budgets: which limits apply to an ask, what is left of them, and the error that names the one used up."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from focalroute.core.config import Budget, Endpoint
from focalroute.core.errors import BudgetExceeded, ConfigError, StoreError
from focalroute.money.budget import AskBudget, BudgetGuard, HeldAmount
from focalroute.money.cost import Bill
from focalroute.store.accounts import Account, Balance
from focalroute.store.base import LedgerRow, Reservation
from focalroute.store.sqlite.store import SqliteStore
from tests.store.test_writing import held

ZERO = Decimal(0)
PRICED = Endpoint("a", model="m", input_usd_per_1m="0.88", output_usd_per_1m="0.88")
UNPRICED = Endpoint("unpriced", model="m")


@pytest.fixture
def store() -> Iterator[SqliteStore]:
    with closing(SqliteStore()) as opened:
        yield opened


def guard(store: SqliteStore, **limits: Any) -> BudgetGuard:
    return BudgetGuard(Budget(**limits), [PRICED], store)


def hold(ask_budget: AskBudget, amount: str | int) -> HeldAmount | None:
    return asyncio.run(ask_budget.reserve("a", Decimal(amount)))


def spend(ask_budget: AskBudget, reserved: str | int, cost: str | int | None) -> None:
    held = hold(ask_budget, reserved)
    assert held is not None
    exact = None if cost is None else Decimal(cost)
    ask_budget.settle(held, Bill("a", None, exact, "unknown" if exact is None else "price"))


def left(ask_budget: AskBudget) -> dict[str, Decimal]:
    """What every limit has left, seen afresh."""
    asyncio.run(ask_budget.make_room([Decimal(10**9)]))
    return {limit.name: limit.usd - limit.spent - limit.reserved for limit in ask_budget.state()}


# -- which limits hold -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_period_ends")
def test_every_limit_that_concerns_an_ask_is_charged_and_no_other(store: SqliteStore) -> None:
    keeper = guard(
        store,
        usd_total=9,
        usd_per_period={"day": 8, "hour": "7"},
        usd_per_tag={"team": 5, "user": {"hour": 4, "day": 6}},
    )
    team = keeper.ask_budget(None, "x", ["team"])
    spend(team, 3, 2)
    names = ("usd_total", "usd_per_period.day", "usd_per_period.hour")
    assert left(keeper.ask_budget(None, "y")) == dict(zip(names, (7, 6, 5), strict=True))
    assert left(team) == {**left(keeper.ask_budget(None, "y")), "usd_per_tag.team": 3}
    both = keeper.ask_budget("0.5", "z", ["user", "team", "user"])
    assert left(both) == {
        **left(team),
        "usd_per_tag.user.hour": 4,
        "usd_per_tag.user.day": 6,
        "max_usd": Decimal("0.5"),
    }
    assert keeper.limits[Account("user", 3600)] == 4


def test_a_call_that_no_limit_concerns_is_not_reserved_in_the_store(store: SqliteStore) -> None:
    ask_budget = guard(store, usd_per_tag={"team": 5}).ask_budget(None, "x", ["other"])
    assert not ask_budget.limited
    held = hold(ask_budget, 10**9)
    assert held is not None
    assert held.reservation is None
    ask_budget.settle(held, Bill("a", None, Decimal(1), "price"))
    assert [row.cost for row in ask_budget.unwritten] == [1]


def test_a_free_call_is_made_even_if_more_than_a_limit_was_spent(store: SqliteStore) -> None:
    """As after a limit was lowered. One whose cost is unknown is not."""
    spend(guard(store, usd_total=5).ask_budget(None, "x"), 5, 5)
    ask_budget = guard(store, usd_total=3).ask_budget("0.01", "y")
    assert ask_budget.fits(Decimal(0))
    assert hold(ask_budget, 0)
    assert asyncio.run(ask_budget.reserve("a", None)) is None


def test_a_bill_that_cannot_be_stored_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with closing(SqliteStore()) as store:
        ask_budget = BudgetGuard(None, [PRICED], store).ask_budget(None, "the-answer")
        spend(ask_budget, 1, "0.25")
        spend(ask_budget, 1, None)
    ask_budget.write()
    (line,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert line.getMessage().startswith("2 calls of the-answer, which cost $0.25, are not in the ledger: ")


def test_a_reservation_is_settled_in_the_ledger_at_once(store: SqliteStore) -> None:
    ask_budget = guard(store, usd_total=1).ask_budget(None, "x", ["t"])
    spend(ask_budget, "0.5", "0.125")
    assert ask_budget.unwritten == []
    assert store.totals()["a"].cost == Decimal("0.125")
    assert [entry.key for entry in store.ledger("tag")] == ["t"]


def test_two_guards_on_one_store_share_the_limit(store: SqliteStore) -> None:
    first, second = guard(store, usd_total=1), guard(store, usd_total=1)
    assert hold(first.ask_budget(None, "x"), "0.75")
    late = second.ask_budget(None, "y")
    assert late.fits(Decimal(1))  # it has not heard of it yet
    assert hold(late, "0.5") is None
    assert not late.fits(Decimal("0.5"))  # now it has
    assert hold(late, "0.25")


def test_a_look_that_was_already_under_way_is_repeated(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may say how things were before: read already, but not told yet."""
    looked: list[Future[Mapping[Account, Balance]]] = []
    balances = store.balances

    def slow(accounts: Iterable[Account]) -> Future[Mapping[Account, Balance]]:
        found = balances(accounts) if looked else Future[Mapping[Account, Balance]]()
        if not looked:
            found.set_running_or_notify_cancel()  # as the store does with what is in its queue
        looked.append(found)
        return found

    limited = guard(store, usd_total=1)
    monkeypatch.setattr(store, "balances", slow)

    async def look() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(limited.refresh((Account(),)), 0.01)
        await asyncio.wait_for(limited.refresh((Account(),)), 10)

    asyncio.run(look())
    assert len(looked) == 2

    async def look_after_a_call() -> None:
        looked.clear()
        held = await limited.ask_budget(None, "x").reserve("a", Decimal(1))
        assert held is not None
        before = asyncio.ensure_future(limited.refresh((Account(),)))
        await asyncio.sleep(0)
        limited.settle(LedgerRow("x", "a", held.at, None, ZERO, "price", (), held.reservation))
        await asyncio.wait_for(limited.refresh((Account(),)), 10)
        assert limited.balance(Account()).reserved == 0
        before.cancel()

    asyncio.run(look_after_a_call())
    assert len(looked) == 2


def test_money_in_doubt_cannot_be_spent_between_settling_and_holding_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(SqliteStore(tmp_path / "s.db")) as store, closing(SqliteStore(tmp_path / "s.db")) as other:
        limits, granted = {Account(): Decimal(1)}, []
        ask_budget = guard(store, usd_total=1).ask_budget(None, "x")
        write = store.write_calls

        def then_another_process_takes_the_rest(calls: Any) -> Any:
            written = write(calls)
            written.result(10)
            granted.append(other.reserve(Reservation("r", "y", "a", Decimal("0.9")), limits).result(10).granted)
            return written

        monkeypatch.setattr(store, "write_calls", then_another_process_takes_the_rest)
        held = hold(ask_budget, "0.5")
        assert held is not None
        ask_budget.settle(held, Bill("a", None, Decimal("0.1"), "reserved", Decimal("0.2")))
        assert granted == [False]
        assert other.balances(limits).result(10)[Account()] == Balance(Decimal("0.1"), Decimal("0.2"))


def test_looking_again_finds_what_others_released(store: SqliteStore) -> None:
    first, second = guard(store, usd_total=1).ask_budget(None, "x"), guard(store, usd_total=1).ask_budget(None, "y")
    held = hold(first, 1)
    assert held is not None
    assert hold(second, 1) is None
    first.settle(held, Bill("a", None, Decimal("0.5"), "price"))
    asyncio.run(second.make_room([ZERO]))
    assert not second.fits(Decimal("0.5"))  # nothing that may not fit was wanted, so nothing was looked up
    asyncio.run(second.make_room([Decimal("0.5")]))
    assert second.fits(Decimal("0.5"))


def test_money_that_others_hold_is_waited_for_first_come_first_served(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = guard(store, usd_total=1)
    queued, served = asyncio.Semaphore(0), []
    wait_for_others = keeper.wait_for_others

    async def counted(*arguments: Any) -> bool:
        queued.release()
        return await wait_for_others(*arguments)

    monkeypatch.setattr(keeper, "wait_for_others", counted)

    async def run() -> None:
        first = keeper.ask_budget(None, "x")
        held = await first.reserve("a", Decimal(1))
        assert held is not None

        async def take(name: str) -> None:
            ask_budget = keeper.ask_budget(None, name, (), 60.0)
            await ask_budget.make_room([Decimal("0.25"), Decimal("0.25")])
            served.append(name)
            assert ask_budget.fits(Decimal("0.5"))
            assert await ask_budget.reserve("a", Decimal("0.25"))

        waiting = [asyncio.ensure_future(take(name)) for name in ("second", "third")]
        for _ in waiting:
            await asyncio.wait_for(queued.acquire(), 60)
        assert served == []
        first.settle(held, Bill("a", None, Decimal("0.25"), "price"))
        await asyncio.gather(*waiting)

    asyncio.run(run())
    assert served == ["second", "third"]


def test_who_waits_for_a_limit_of_their_own_holds_up_nobody_else(store: SqliteStore) -> None:
    keeper = guard(store, usd_total=1, usd_per_tag={"poor": "0.5", "rich": "0.9"})

    async def run() -> None:
        poor, rich = (("poor",), ("rich",))
        assert await keeper.ask_budget(None, "v", poor).reserve("a", Decimal("0.5"))
        other = keeper.ask_budget(None, "w")
        held = await other.reserve("a", Decimal("0.5"))
        assert held is not None
        first = asyncio.ensure_future(keeper.ask_budget(None, "x", poor, 60.0).reserve("a", Decimal("0.25")))
        second = asyncio.ensure_future(keeper.ask_budget(None, "y", rich, 60.0).reserve("a", Decimal("0.25")))
        await asyncio.sleep(0.05)
        other.settle(held, Bill("a", None, ZERO, "price"))
        assert await asyncio.wait_for(second, 10)
        assert not first.done()
        first.cancel()

    asyncio.run(run())


def test_a_reservation_itself_waits_too(store: SqliteStore) -> None:
    keeper = guard(store, usd_total=1)

    async def run() -> None:
        first = keeper.ask_budget(None, "x")
        held = await first.reserve("a", Decimal(1))
        assert held is not None
        waiting = asyncio.ensure_future(keeper.ask_budget(None, "y", (), 60.0).reserve("a", Decimal("0.5")))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        first.settle(held, Bill("a", None, Decimal("0.5"), "price"))
        assert await waiting

    asyncio.run(run())


@pytest.mark.parametrize("case", ["no patience", "spent", "another process", "more than there is"])
def test_money_that_cannot_come_is_not_waited_for(store: SqliteStore, case: str) -> None:
    keeper, other = guard(store, usd_total=1), guard(store, usd_total=1)
    wanted = Decimal(2) if case == "more than there is" else Decimal("0.5")

    async def run() -> None:
        assert (
            await (other if case == "another process" else keeper).ask_budget(None, "x").reserve("a", Decimal("0.25"))
        )
        spent = await keeper.ask_budget(None, "x").reserve("a", Decimal("0.625"))
        assert spent is not None
        if case in ("spent", "another process"):
            cost = Decimal("0.625" if case == "spent" else "0.375")
            keeper.ask_budget(None, "x").settle(spent, Bill("a", None, cost, "price"))
        ask_budget = keeper.ask_budget(None, "y", (), 0.0 if case == "no patience" else 60.0)
        await asyncio.wait_for(ask_budget.make_room([wanted]), 10)
        assert await asyncio.wait_for(ask_budget.reserve("a", wanted), 10) is None

    asyncio.run(run())


def test_a_reservation_whose_caller_has_gone_is_released(store: SqliteStore) -> None:
    keeper = guard(store, usd_total=1)

    async def run() -> None:
        waiting = asyncio.ensure_future(keeper.ask_budget(None, "x").reserve("a", Decimal(1)))
        await asyncio.sleep(0)  # it is queued
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    with held(store):
        asyncio.run(run())
    store.totals()  # by now the reservation is made, and its release queued
    assert left(keeper.ask_budget(None, "y")) == {"usd_total": 1}
    assert store.verify() == ()


def test_a_limit_is_not_kept_by_a_store_that_fails(store: SqliteStore) -> None:
    ask_budget = guard(store, usd_total=1).ask_budget(None, "x")
    store.close()
    with pytest.raises(StoreError):
        hold(ask_budget, "0.5")
    assert ask_budget.reserved == 0


# -- the cap of one ask ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("per_ask", "own", "cap"),
    [(None, None, None), ("0.5", None, "0.5"), (None, "0.3", "0.3"), ("0.5", "0.3", "0.3"), ("0.3", 0.5, "0.3")],
)
def test_the_smaller_cap_holds(store: SqliteStore, per_ask: Any, own: Any, cap: str | None) -> None:
    ask_budget = guard(store, usd_total=1, max_usd_per_ask=per_ask).ask_budget(own, "x")
    assert ask_budget.cap == (None if cap is None else Decimal(cap))
    assert ask_budget.limited


@pytest.mark.parametrize("amount", [0, -1, "NaN", "much", float("inf"), True])
def test_a_cap_is_a_positive_amount(store: SqliteStore, amount: Any) -> None:
    with pytest.raises(ConfigError, match="max_usd"):
        guard(store).ask_budget(amount, "x")


def test_an_ask_keeps_its_cap_even_where_the_budget_has_more(store: SqliteStore) -> None:
    keeper = guard(store, usd_total=1)
    ask_budget = keeper.ask_budget("0.3", "x")
    held = hold(ask_budget, "0.2")
    assert held is not None
    assert hold(ask_budget, "0.2") is None
    assert hold(keeper.ask_budget(None, "y"), "0.8")
    assert hold(ask_budget, "0.1") is None  # the cap has it, the budget not
    assert ask_budget.reserved == Decimal("0.2")
    assert ask_budget.share_left == pytest.approx(1 / 3)
    ask_budget.settle(held, Bill("a", None, Decimal("0.05"), "price"))
    assert ask_budget.share_left == pytest.approx(5 / 6)
    assert hold(ask_budget, "0.15")


def test_members_that_reserve_at_a_time_stay_within_the_cap_together(store: SqliteStore) -> None:
    ask_budget = guard(store, usd_total=9).ask_budget(1, "x")

    async def run() -> list[HeldAmount | None]:
        return await asyncio.gather(*(ask_budget.reserve("a", Decimal("0.4")) for _ in range(5)))

    assert [held is not None for held in asyncio.run(run())] == [True, True, False, False, False]
    assert ask_budget.reserved == Decimal("0.8")


def test_the_possible_further_cost_of_a_broken_call_is_held_and_by_its_ask_to_the_end(store: SqliteStore) -> None:
    ask_budget = guard(store, usd_total=1).ask_budget("0.75", "x")
    held = hold(ask_budget, "0.5")
    assert held is not None
    ask_budget.settle(held, Bill("a", None, Decimal("0.125"), "reserved", Decimal("0.25")))
    assert left(ask_budget) == {"max_usd": Decimal("0.25"), "usd_total": Decimal("0.625")}
    assert left(guard(store, usd_total=1).ask_budget(None, "other")) == {"usd_total": Decimal("0.625")}


@pytest.mark.parametrize(
    ("paid", "bound", "usual"),
    [
        ((), "1", None),
        ((("a", "0.5", "1"), ("a", "0.25", "1")), "1", ("0.375", "0.375")),
        ((("a", "0.5", "1"),), "0.25", ("0.25", "0.25")),  # no call costs more than it can
        ((("a", "0.5", "1"),), "4", ("0.5", "2")),  # its share of the bound is more than its mean
        ((("b", "0.5", "1"),), "4", ("2", "2")),  # the pool's, where it was never paid
    ],
)
def test_the_usual_cost_of_a_call(
    store: SqliteStore, paid: tuple[tuple[str, str, str], ...], bound: str, usual: tuple[str, str] | None
) -> None:
    keeper = guard(store)
    for name, cost, most in paid:
        keeper.note_cost(name, Decimal(cost), Decimal(most))
    assert keeper.usual_cost("a", Decimal(bound)) == (usual and tuple(map(Decimal, usual)))


def test_a_bill_above_its_reservation_leaves_nothing_rather_than_less(store: SqliteStore) -> None:
    ask_budget = guard(store, usd_total=1).ask_budget("0.1", "x")
    spend(ask_budget, "0.1", "0.2")
    assert ask_budget.share_left == 0
    assert not ask_budget.fits(Decimal("1e-12"))


def test_a_bill_without_a_known_cost_is_kept_and_frees_the_reservation(store: SqliteStore) -> None:
    ask_budget = BudgetGuard(None, [UNPRICED]).ask_budget(None, "x")
    spend(ask_budget, 0, None)
    assert [bill.cost for bill in ask_budget.bills] == [None]
    assert (ask_budget.spent, ask_budget.reserved, ask_budget.share_left) == (ZERO, ZERO, 1.0)


# -- prices that are unknown -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [{"usd_total": 1}, {"max_usd_per_ask": 1}, {"usd_per_query": 1}, {}], ids=str)
def test_a_budget_needs_every_price(store: SqliteStore, limits: dict[str, Any]) -> None:
    with pytest.raises(
        ConfigError, match="budget: cannot be kept while the price of unpriced is unknown; set input_usd"
    ):
        BudgetGuard(Budget(**limits), [PRICED, UNPRICED], store)
    BudgetGuard(Budget(**limits, allow_unpriced=True), [PRICED, UNPRICED], store)


def test_a_cap_on_one_ask_needs_every_price(store: SqliteStore) -> None:
    with pytest.raises(ConfigError, match="max_usd: cannot be kept while the price of unpriced is unknown"):
        BudgetGuard(None, [PRICED, UNPRICED], store).ask_budget("0.01", "x")
    assert BudgetGuard(Budget(allow_unpriced=True), [UNPRICED], store).ask_budget("0.01", "x").limited


@pytest.mark.parametrize("budget", [{"usd_total": 1}, 5, "1"])
def test_something_else_than_a_budget_is_refused(store: SqliteStore, budget: Any) -> None:
    with pytest.raises(ConfigError, match="give a Budget"):
        BudgetGuard(budget, [PRICED], store)


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({"usd_per_period": {"week": 1}}, 'usd_per_period: give USD for each "minute", "hour" or "day"'),
        ({"usd_per_period": 5}, 'usd_per_period: give USD for each "minute", "hour" or "day"'),
        ({"usd_per_period": {"hour": 0}}, "hour: give a positive amount of USD"),
        ({"usd_per_tag": {"": 1}}, "usd_per_tag: give USD for each tag"),
        ({"usd_per_tag": ["a"]}, "usd_per_tag: give USD for each tag"),
        ({"usd_per_tag": {"team": "much"}}, "team: give a positive amount of USD"),
        ({"usd_per_tag": {"team": {}}}, "team: give a positive amount of USD"),
        ({"usd_per_tag": {"team": {"year": 1}}}, 'usd_per_tag: give USD for each "minute"'),
        ({"usd_per_query": -1}, "usd_per_query: give a positive amount"),
    ],
    ids=str,
)
def test_a_wrong_limit_is_refused_by_its_name(limits: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Budget(**limits)


# -- the error ---------------------------------------------------------------------------------------------------------


def fields(error: BudgetExceeded) -> tuple[Decimal, Decimal, Decimal]:
    return error.limit, error.spent, error.reserved


def test_the_error_names_the_ask_if_its_cap_is_the_tighter(store: SqliteStore) -> None:
    error = guard(store, usd_total=1).ask_budget("0.01", "x").exceeded()
    assert "within 0.01 USD for this ask" in str(error)
    assert fields(error) == (Decimal("0.01"), ZERO, ZERO)
    assert error.resets_at is None


def test_the_error_names_the_total_if_that_is_the_tighter(store: SqliteStore) -> None:
    keeper = guard(store, usd_total=1, max_usd_per_ask="0.5")
    spend(keeper.ask_budget(None, "x"), "0.5", "0.5")
    spend(keeper.ask_budget(None, "y"), "0.1", "0.1")
    assert hold(keeper.ask_budget(None, "z"), "0.3")
    error = keeper.ask_budget(None, "w").exceeded()
    assert "usd_total = 1 USD; raise it" in str(error)
    assert fields(error) == (Decimal(1), Decimal("0.6"), Decimal("0.3"))


@pytest.mark.usefixtures("no_period_ends")
def test_the_error_of_a_period_says_when_it_renews(store: SqliteStore) -> None:
    keeper = guard(store, usd_total=5, usd_per_period={"day": 1})
    ask_budget = keeper.ask_budget(None, "x")
    assert hold(ask_budget, 1)
    error = ask_budget.exceeded()
    assert error.resets_at is not None
    today = datetime.now(UTC)
    assert 0 <= (error.resets_at - today).total_seconds() <= 86_400
    assert (error.resets_at.hour, error.resets_at.minute, error.resets_at.tzinfo) == (0, 0, UTC)
    assert f"usd_per_period.day = 1 USD; raise it, or wait until {error.resets_at.isoformat()}" in str(error)


def test_a_limit_that_is_too_small_for_any_call_has_no_reset_time(store: SqliteStore) -> None:
    ask_budget = guard(store, usd_per_period={"minute": 1}).ask_budget(None, "x")
    ask_budget.needed = Decimal(2)
    error = ask_budget.exceeded()
    assert error.resets_at is None
    assert "usd_per_period.minute = 1 USD; raise it to go on" in str(error)


def test_the_error_survives_pickling_with_its_fields(store: SqliteStore) -> None:
    """As it comes from `ask_many`, too, which says whose it is."""
    error = guard(store, usd_total=1).ask_budget(None, "x").exceeded()
    error.index = 3
    error.add_note("in queries[3]")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is BudgetExceeded
    assert (again.index, again.__notes__) == (3, ["in queries[3]"])
    assert (str(again), fields(again), again.resets_at) == (str(error), fields(error), None)


def test_a_restart_keeps_everything(tmp_path: Path) -> None:
    for spent in range(3):
        with closing(SqliteStore(tmp_path / "s.db")) as opened:
            ask_budget = guard(opened, usd_total=3, usd_per_tag={"t": 3}).ask_budget(None, "x", ["t"])
            assert left(ask_budget) == {"usd_total": 3 - spent, "usd_per_tag.t": 3 - spent}
            spend(ask_budget, 1, 1)
