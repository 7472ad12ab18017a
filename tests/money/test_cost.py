"""Money: exact, and never guessed to be zero."""

from __future__ import annotations

from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from focalroute.core.config import Endpoint
from focalroute.core.records import Usage
from focalroute.endpoints.paid_call import upper_bound
from focalroute.endpoints.wire import Request
from focalroute.money import cost
from focalroute.money.cost import Bill, UsualCost, bill_of, cost_of, total, typical_cost

ZERO = Decimal(0)


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


def test_the_dearer_of_the_providers_figure_and_tokens_times_price_counts() -> None:
    at = endpoint(1, 1)
    assert cost_of(Usage(1000, 1000, cost_usd=Decimal("0.5")), at) == (Decimal("0.5"), "provider")
    assert cost_of(Usage(1000, 1000, cost_usd=ZERO), at) == (Decimal("0.002"), "price")
    assert cost_of(Usage(1000, 1000, cost_usd=ZERO), UNPRICED) == (ZERO, "provider")


def test_a_bill_above_its_bound_counts_as_the_bound_and_says_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost, "_warned_at", {})
    bill = bill_of(endpoint(1, 1), Usage(10, 10, cost_usd=Decimal(99999)), Decimal("0.01"))
    assert (bill.cost, bill.source) == (Decimal("0.01"), "reserved")
    assert "a billed 99999 USD for a call that can cost at most 0.01" in caplog.text


def test_an_estimate_is_as_fine_as_the_ledger_keeps_it() -> None:
    bill = bill_of(endpoint(), None, Decimal("0.01"), usual=UsualCost(Decimal(1) / 300_000, Decimal(1) / 200_000))
    assert (bill.cost, bill.doubt, bill.source) == (Decimal("0.000001666667"), Decimal("0.000005833333"), "reserved")


def test_a_stated_cost_is_as_fine_as_the_ledger_keeps_it() -> None:
    """Services compute it in floating point; receipts then had more digits than the ledger."""
    stated = [Usage(1, 1, cost_usd=Decimal(usd)) for usd in ("0.00014523000000000002", "0.0001")]
    assert [str(bill_of(UNPRICED, usage, None).cost) for usage in stated] == ["0.000145230000", "0.0001"]


def test_a_bill_above_its_bound_is_warned_of_once_a_minute_for_each_endpoint(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(cost, "time", SimpleNamespace(monotonic=lambda: now))  # this module's clock alone
    monkeypatch.setattr(cost, "_warned_at", {})
    dear = Usage(10, 10, cost_usd=Decimal(7))
    for now, name in ((0.0, "a"), (59.0, "a"), (59.0, "b"), (60.0, "a")):  # noqa: B007 - read by the clock
        bill_of(endpoint(name=name), dear, Decimal("0.01"))
    assert [record.args[0] for record in caplog.records if isinstance(record.args, tuple)] == ["a", "b", "a"]


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


def test_a_call_with_a_price_of_zero_costs_nothing_even_without_usage() -> None:
    """A server of one's own that counts no tokens was said to cost an unknown amount."""
    assert bill_of(endpoint(0, 0), None, None).cost == 0
    assert bill_of(endpoint(0, 1), None, None).cost is None
