"""The records that travel: ids, sums of usage, failures worth retrying, receipts as JSON."""

from __future__ import annotations

import dataclasses
import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from focalroute.core.receipts import Answer, Call, Receipt
from focalroute.core.records import Failure, Reply, Usage


def test_usage_adds_up_field_by_field() -> None:
    one, two = Usage(10, 5, 4, 2, Decimal("0.1")), Usage(1, 2, 0, 1, Decimal("0.2"))
    assert one + two == Usage(11, 7, 4, 3, Decimal("0.3"))


def test_a_sum_with_an_unknown_cost_is_unknown() -> None:
    assert (Usage(1, 1, cost_usd=Decimal(1)) + Usage(1, 1)).cost_usd is None
    assert (Usage(1, 1) + Usage(1, 1, cost_usd=Decimal(1))).cost_usd is None


USAGES = st.builds(
    Usage,
    *[st.integers(0, 10**9)] * 4,
    cost_usd=st.none() | st.decimals(0, 100, places=6),
)


@given(USAGES, USAGES, USAGES)
def test_adding_usage_is_associative_and_commutative(a: Usage, b: Usage, c: Usage) -> None:
    assert (a + b) + c == a + (b + c)
    assert a + b == b + a


@pytest.mark.parametrize(
    ("failure", "again"),
    [
        (Failure("connection", ""), True),
        (Failure("protocol", ""), True),
        (Failure("status", "", status=408), True),
        (Failure("status", "", status=409), True),
        (Failure("status", "", status=425), True),
        (Failure("status", "", status=429), True),
        (Failure("status", "", status=500), True),
        (Failure("status", "", status=503), True),
        (Failure("status", "", status=400), False),
        (Failure("status", "", status=400, code="tool_use_failed"), True),
        (Failure("status", "", status=401), False),
        (Failure("status", "", status=404), False),
        (Failure("status", ""), False),
        (Failure("timeout", ""), False),
        (Failure("unusable", ""), False),
        (Failure("cancelled", ""), False),
        (Failure("unavailable", ""), False),
    ],
)
def test_only_what_may_pass_a_moment_later_is_retryable(failure: Failure, again: bool) -> None:
    assert failure.retryable is again


def test_a_reply_is_usable_unless_it_has_an_error() -> None:
    assert Reply("a", text="x").ok
    assert not Reply("a", error=Failure("timeout", "")).ok


CALL = Call(
    endpoint="a",
    round=1,
    probability=0.9,
    candidate=0,
    method="samples",
    usage=Usage(10, 5, cost_usd=Decimal("0.00000012")),
    cost=Decimal("0.00000012"),
    cost_source="provider",
    latency_s=0.5,
    attempts=1,
    error=None,
)
FAILED = dataclasses.replace(
    CALL, candidate=None, usage=None, cost=None, cost_source="unknown", error=Failure("status", "busy", 503, 1.5)
)


def receipt(*calls: Call, cost: Decimal | None = Decimal("0.10")) -> Receipt:
    return Receipt("id", 1.5, 3, calls, 1, cost, 0.75, tags=("t",), degraded=("fewer members: b failed",))


def test_a_receipt_goes_through_json_with_money_as_decimal_strings() -> None:
    read: dict[str, Any] = json.loads(receipt(CALL, FAILED).to_json())
    assert read["cost"] == "0.10"
    assert Decimal(read["calls"][0]["cost"]) == Decimal("0.00000012") == Decimal(read["calls"][0]["usage"]["cost_usd"])
    assert read["calls"][1]["cost"] is None
    error = {"kind": "status", "message": "busy", "status": 503, "retry_after_s": 1.5, "lacks": None}
    assert read["calls"][1]["error"].items() >= error.items()
    assert (read["answer_id"], read["policy_version"], read["tags"]) == ("id", 3, ["t"])
    assert set(read) == {field.name for field in dataclasses.fields(Receipt)}
    assert set(read["calls"][0]) == {field.name for field in dataclasses.fields(Call)}


@given(st.none() | st.decimals(0, 10**6, allow_nan=False, allow_infinity=False))
def test_no_digit_of_the_cost_is_lost_in_json(cost: Decimal | None) -> None:
    read = json.loads(receipt(cost=cost).to_json())["cost"]
    assert read is None if cost is None else Decimal(read) == cost


def answer(**changes: Any) -> Answer:
    made = Answer(
        "id", "x", "x", 0, ("x", "y"), (0.9, 0.1), 0.9, None, receipt(CALL), (Reply("a", text="SECRET TEXT"),)
    )
    return dataclasses.replace(made, **changes)


def test_an_answer_is_frozen_shows_no_reply_text_and_says_how_it_falls_short() -> None:
    made = answer()
    assert "SECRET TEXT" not in repr(made)
    assert made.degraded == ("fewer members: b failed",)
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.text = "y"  # type: ignore[misc]
