"""Money: exact, never guessed to be zero, and never above the limit."""

from __future__ import annotations

import pickle
import threading
import time
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from focalroute.config import Budget, Endpoint
from focalroute.cost import Bill, BudgetGuard, Purse, cost_of, total, typical_cost, upper_bound
from focalroute.errors import BudgetExceeded, ConfigError
from focalroute.records import Usage
from focalroute.wire import Request

STEADY = settings(deadline=None, derandomize=True)

ZERO = Decimal(0)
NEVER = None


def endpoint(
    into: Any = "0.88", out: Any = "0.88", cached: Any = None, *, name: str = "a", params: dict[str, Any] | None = None
) -> Endpoint:
    return Endpoint(
        name,
        model="m",
        input_usd_per_1m=into,
        output_usd_per_1m=out,
        cached_input_usd_per_1m=cached,
        params=params or {},
    )


UNPRICED = Endpoint("unpriced", model="m")


def bill(cost: Decimal | None) -> Bill:
    return Bill("a", None, cost, "unknown" if cost is None else "price")


# -- what a call cost --------------------------------------------------------------------------------------------------


def test_cost_is_exact_in_decimals() -> None:
    assert cost_of(Usage(3, 7), endpoint(0.1, 0.3)) == (Decimal("0.0000024"), "price")
    assert cost_of(Usage(1, 1), endpoint(0.1, 0.2)) == (Decimal("0.0000003"), "price")


def test_cached_tokens_have_their_own_price_if_there_is_one() -> None:
    usage = Usage(prompt_tokens=1000, completion_tokens=0, cached_tokens=400)
    assert cost_of(usage, endpoint(1, 1, "0.25"))[0] == Decimal("0.0007")
    assert cost_of(usage, endpoint(1, 1))[0] == Decimal("0.001")
    assert cost_of(usage, endpoint(1, 1, 0))[0] == Decimal("0.0006")


def test_reasoning_tokens_are_within_the_completion_tokens() -> None:
    assert cost_of(Usage(0, 100, reasoning_tokens=90), endpoint(1, 1))[0] == Decimal("0.0001")


@pytest.mark.parametrize("said", [Decimal("0.5"), ZERO])
@pytest.mark.parametrize("at", [endpoint(), UNPRICED], ids=["priced", "unpriced"])
def test_what_the_provider_reports_wins(said: Decimal, at: Endpoint) -> None:
    assert cost_of(Usage(1000, 1000, cost_usd=said), at) == (said, "provider")


def test_without_a_price_the_cost_is_unknown_but_a_price_of_zero_is_known() -> None:
    assert cost_of(Usage(1000, 1000), UNPRICED) == (None, "unknown")
    assert cost_of(Usage(1000, 1000), endpoint(0, 0)) == (ZERO, "price")
    assert typical_cost(UNPRICED) is None
    assert typical_cost(endpoint(0, 0)) == 0
    assert typical_cost(endpoint(1, 2)) == pytest.approx(400e-6)


def test_a_total_with_an_unknown_part_is_unknown() -> None:
    assert total([Decimal("0.1"), Decimal("0.2")]) == Decimal("0.3")
    assert total([Decimal("0.1"), None]) is None
    assert total([]) == 0


def test_attempts_add_up_and_are_as_certain_as_the_least_certain() -> None:
    first = Bill("a", Usage(10, 1), Decimal("0.1"), "price")
    second = Bill("a", Usage(10, 2), Decimal("0.2"), "provider")
    guess = Bill("a", None, Decimal("0.4"), "reserved")
    lost = Bill("a", None, None, "unknown")
    assert Bill.total([first, second]) == (Usage(20, 3), Decimal("0.3"), "price")
    assert Bill.total([first, second, guess]) == (Usage(20, 3), Decimal("0.7"), "reserved")
    assert Bill.total([first, guess, lost]) == (Usage(10, 1), None, "unknown")
    assert Bill.total([]) == (None, ZERO, "price")


# -- what a call can cost at most --------------------------------------------------------------------------------------


def request(content: Any = "hi", *, max_tokens: int | None = 10, n: int = 1, **rest: Any) -> Request:
    return Request(({"role": "user", "content": content},), max_tokens=max_tokens, n=n, **rest)


MONEY = st.decimals(0, 100, places=4)


@STEADY
@given(
    text=st.text(max_size=50),
    prices=st.tuples(MONEY, MONEY, st.none() | MONEY),
    max_tokens=st.integers(1, 10_000),
    n=st.integers(1, 8),
    data=st.data(),
)
def test_no_usage_within_the_request_costs_more_than_the_bound(
    text: str, prices: tuple[Any, Any, Any], max_tokens: int, n: int, data: st.DataObject
) -> None:
    prompt = data.draw(st.integers(0, len(text.encode()) + 16))
    usage = Usage(
        prompt_tokens=prompt,
        completion_tokens=data.draw(st.integers(0, max_tokens * n)),
        cached_tokens=data.draw(st.integers(0, prompt)),
    )
    bound = upper_bound(request(text, max_tokens=max_tokens, n=n), endpoint(*prices))
    cost, _ = cost_of(usage, endpoint(*prices))
    assert bound is not None
    assert cost is not None
    assert bound >= cost


def test_the_bound_is_unknown_without_a_price_or_a_limit_on_tokens() -> None:
    assert upper_bound(request(), UNPRICED) is None
    assert upper_bound(request(max_tokens=None), endpoint()) is None
    assert upper_bound(request(params={"max_tokens": None}), endpoint()) is None
    assert upper_bound(request(params={"n": "many"}), endpoint()) is None


def generated(sent: Request, at: Endpoint) -> int:
    """The tokens the bound allows for, read off a price of 1 USD a token."""
    bound = upper_bound(sent, at)
    assert bound is not None
    return int(bound * 1_000_000)


OUTPUT_ONLY = endpoint(0, 1)


def test_parameters_win_over_the_request_and_the_asks_over_the_endpoints() -> None:
    assert generated(request(max_tokens=10, n=2), OUTPUT_ONLY) == 20
    assert generated(request(params={"max_tokens": 50}), OUTPUT_ONLY) == 50
    assert generated(request(params={"max_completion_tokens": 50, "n": 3}), OUTPUT_ONLY) == 150
    assert generated(request(params={"max_tokens": 70, "max_completion_tokens": 50}), OUTPUT_ONLY) == 70
    fixed = endpoint(0, 1, params={"max_tokens": 500})
    assert generated(request(), fixed) == 500
    assert generated(request(params={"max_tokens": 5}), fixed) == 5


@pytest.mark.parametrize(
    ("more", "at_least"),
    [
        (request("é" * 100), 200),
        (request([{"type": "text", "text": "x" * 300}, {"type": "image_url", "image_url": {"url": "u"}}]), 300 + 1000),
        (request("hi", params={"tools": [{"type": "function", "function": {"name": "f" * 400}}]}), 400),
        (request("hi", choices=("a" * 150, "b" * 150)), 300),
        (Request(({"role": "assistant", "content": None, "tool_calls": [{"id": "x" * 250}]},), max_tokens=1), 250),
        (Request(({"role": "user", "content": "hi", "name": "x" * 250},), max_tokens=1), 250),
        (request("\ud800"), 1),
    ],
    ids=["utf-8", "media", "tools", "choices", "tool calls", "name", "lone surrogate"],
)
def test_everything_that_becomes_part_of_the_prompt_is_in_the_bound(more: Request, at_least: int) -> None:
    assert generated(more, endpoint(1, 0)) >= at_least


# -- the guard ---------------------------------------------------------------------------------------------------------


def guard(limit: Any = 1, *, per_ask: Any = None, spent: Decimal = ZERO) -> BudgetGuard:
    return BudgetGuard(Budget(usd_total=limit, max_usd_per_ask=per_ask), [endpoint()], spent)


AMOUNTS = st.decimals(0, 1, places=6)
#: (which open reservation to settle, at what share of it) or an amount to reserve
STEPS = st.lists(AMOUNTS | st.tuples(st.integers(0, 5), st.sampled_from([Decimal(0), Decimal("0.5"), Decimal(1)])))


@STEADY
@given(steps=STEPS, limit=st.decimals("0.000001", 3, places=6), cap=st.none() | st.decimals("0.000001", 2, places=6))
def test_spent_and_reserved_never_pass_a_limit_and_add_up_exactly(
    steps: list[Any], limit: Decimal, cap: Decimal | None
) -> None:
    keeper = guard(limit, per_ask=cap)
    purses = [keeper.purse(None), keeper.purse(None)]
    held: list[tuple[Purse, Decimal]] = []
    paid = ZERO
    for number, step in enumerate(steps):
        if isinstance(step, tuple):
            if held:
                purse, amount = held.pop(step[0] % len(held))
                purse.settle(amount, bill(amount * step[1]))
                paid += amount * step[1]
        else:
            purse = purses[number % 2]
            fits = purse.fits(step)
            before = (keeper.spent, keeper.reserved, purse.spent, purse.reserved)
            assert purse.reserve(step) is fits
            if fits:
                held.append((purse, step))
            else:
                assert (keeper.spent, keeper.reserved, purse.spent, purse.reserved) == before
        assert keeper.spent == paid == sum(purse.spent for purse in purses)
        assert keeper.reserved == sum((amount for _, amount in held), ZERO) == sum(p.reserved for p in purses)
        assert keeper.spent + keeper.reserved <= limit
        assert keeper.available == limit - keeper.spent - keeper.reserved
        assert all(cap is None or p.spent + p.reserved <= cap for p in purses)
        assert all(0 <= p.share_left <= 1 for p in purses)


class Yielding(Decimal):
    """An amount that lets other threads run in the midst of every sum it is part of."""

    def __radd__(self, other: Any) -> Decimal:
        time.sleep(0)
        return Decimal(other) + Decimal(self)


def test_threads_that_reserve_at_once_never_pass_the_limit() -> None:
    keeper = guard(1)
    amount = Yielding("0.001")
    ready = threading.Barrier(8)
    kept: list[int] = []
    seen: list[Decimal] = []

    def work() -> None:
        ready.wait()
        taken = 0
        for i in range(400):
            if keeper.reserve(amount):
                seen.append(keeper.spent + keeper.reserved)
                back = i % 2 == 0
                keeper.settle(amount, ZERO if back else amount)
                taken += not back
        kept.append(taken)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert keeper.spent == sum(kept) * amount <= 1
    assert keeper.reserved == 0
    assert max(seen) <= 1


def test_threads_that_only_reserve_fill_the_limit_exactly() -> None:
    keeper = guard(1)
    won: list[bool] = []
    ready = threading.Barrier(8)

    def work() -> None:
        ready.wait()
        won.extend([keeper.reserve(Yielding("0.001")) for _ in range(200)])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (won.count(True), keeper.reserved) == (1000, Decimal(1))


def test_what_was_spent_before_counts() -> None:
    keeper = guard(1, spent=Decimal("0.9"))
    assert not keeper.reserve(Decimal("0.11"))
    assert keeper.reserve(Decimal("0.1"))
    assert keeper.available == 0


def test_without_a_budget_everything_fits_and_is_still_counted() -> None:
    keeper = BudgetGuard(None, [UNPRICED], ZERO)
    purse = keeper.purse(None)
    assert not purse.limited
    assert purse.fits(Decimal(10**9))
    assert purse.reserve(Decimal(2))
    purse.settle(Decimal(2), bill(Decimal("0.5")))
    assert (keeper.available, keeper.spent, purse.share_left) == (NEVER, Decimal("0.5"), 1.0)


def test_a_bill_without_a_known_cost_is_kept_and_frees_the_reservation() -> None:
    purse = BudgetGuard(None, [UNPRICED], ZERO).purse(None)
    purse.reserve(ZERO)
    purse.settle(ZERO, bill(None))
    assert purse.bills == [bill(None)]
    assert total(b.cost for b in purse.bills) is None


@pytest.mark.parametrize(
    "budget", [Budget(usd_total=Decimal(1)), Budget(max_usd_per_ask=Decimal(1)), Budget()], ids=str
)
def test_a_budget_needs_every_price(budget: Budget) -> None:
    with pytest.raises(ConfigError, match="budget: cannot be kept, the price of unpriced is unknown; set input_usd"):
        BudgetGuard(budget, [endpoint(), UNPRICED], ZERO)


@pytest.mark.parametrize("budget", [{"usd_total": 1}, 5, "1"])
def test_what_is_no_budget_is_not_taken_for_none(budget: Any) -> None:
    with pytest.raises(ConfigError, match="give a Budget"):
        BudgetGuard(budget, [endpoint()], ZERO)


def test_so_does_a_cap_on_one_ask() -> None:
    with pytest.raises(ConfigError, match="max_usd: cannot be kept, the price of unpriced is unknown"):
        BudgetGuard(None, [endpoint(), UNPRICED], ZERO).purse("0.01")


# -- the purse ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("per_ask", "own", "cap"),
    [(None, None, None), ("0.5", None, "0.5"), (None, "0.3", "0.3"), ("0.5", "0.3", "0.3"), ("0.3", 0.5, "0.3")],
)
def test_the_smaller_cap_holds(per_ask: Any, own: Any, cap: str | None) -> None:
    purse = guard(1, per_ask=per_ask).purse(own)
    assert purse.cap == (None if cap is None else Decimal(cap))
    assert purse.limited


@pytest.mark.parametrize("amount", [0, -1, "NaN", "much", float("inf"), True])
def test_a_cap_is_a_positive_amount(amount: Any) -> None:
    with pytest.raises(ConfigError, match="max_usd"):
        guard().purse(amount)


def test_a_purse_keeps_its_cap_even_where_the_budget_has_more() -> None:
    keeper = guard(1)
    purse, other = keeper.purse("0.3"), keeper.purse(None)
    assert purse.reserve(Decimal("0.2"))
    assert not purse.fits(Decimal("0.2"))
    assert not purse.reserve(Decimal("0.2"))
    assert keeper.reserved == Decimal("0.2")
    assert other.reserve(Decimal("0.8"))
    assert not purse.reserve(Decimal("0.1"))  # the cap has it, the budget not
    assert purse.reserved == Decimal("0.2")
    assert purse.share_left == pytest.approx(1 / 3)
    purse.settle(Decimal("0.2"), bill(Decimal("0.05")))
    assert purse.share_left == pytest.approx(5 / 6)
    assert purse.reserve(Decimal("0.15"))


def test_a_bill_above_its_reservation_leaves_nothing_rather_than_less() -> None:
    purse = guard(1).purse("0.1")
    assert purse.reserve(Decimal("0.1"))
    purse.settle(Decimal("0.1"), bill(Decimal("0.2")))
    assert purse.share_left == 0
    assert not purse.fits(ZERO)


# -- the error ---------------------------------------------------------------------------------------------------------


def fields(error: BudgetExceeded) -> tuple[Decimal, Decimal, Decimal]:
    return error.limit, error.spent, error.reserved


def test_the_error_names_the_ask_if_its_cap_is_the_tighter() -> None:
    keeper = guard(1)
    keeper.reserve(Decimal("0.4"))
    error = keeper.purse("0.01").exceeded()
    assert "within 0.01 USD for this ask" in str(error)
    assert fields(error) == (Decimal("0.01"), ZERO, ZERO)
    assert error.resets_at is None


def test_the_error_names_the_total_if_that_is_the_tighter() -> None:
    keeper = guard(1, per_ask="0.5", spent=Decimal("0.6"))
    keeper.reserve(Decimal("0.3"))
    error = keeper.purse(None).exceeded()
    assert "usd_total = 1 USD" in str(error)
    assert fields(error) == (Decimal(1), Decimal("0.6"), Decimal("0.3"))


def test_what_the_ask_has_spent_already_tightens_its_cap() -> None:
    keeper = guard(1, spent=Decimal("0.5"))
    purse = keeper.purse("0.4")
    purse.reserve(Decimal("0.39"))
    purse.settle(Decimal("0.39"), bill(Decimal("0.39")))
    keeper.reserve(Decimal("0.05"))
    assert purse.exceeded().limit == Decimal("0.4")


def test_the_error_survives_pickling_with_its_fields() -> None:
    error = guard(1, spent=Decimal(1)).purse(None).exceeded()
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is BudgetExceeded
    assert (str(again), fields(again), again.resets_at) == (str(error), fields(error), None)
