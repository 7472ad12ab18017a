"""Calls that break off, billed or not: limits still hold, and the ledger is near the bill."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from decimal import Decimal

import pytest

from focalroute.core.errors import CallFailed
from focalroute.core.records import Failure
from focalroute.sim import Fault
from tests.benchmarks import broken_calls

LIMIT = Decimal("0.002")


@pytest.mark.parametrize(
    ("kinds", "billed"),
    [
        pytest.param(broken_calls.STATUSES, "all", id="all billed", marks=pytest.mark.slow),
        pytest.param(broken_calls.STATUSES, "none", id="none billed", marks=pytest.mark.slow),
        pytest.param(broken_calls.MIXTURE, "every second one", id="some billed"),
    ],
)
def test_with_20_percent_of_calls_broken_the_ledger_is_near_the_bill_and_the_limit_holds(
    kinds: Sequence[Fault], billed: str
) -> None:
    faults = broken_calls.faults_of(0.2, kinds, billed)
    outcome = asyncio.run(broken_calls.run(faults, limit=LIMIT, free_form=True))
    assert outcome.estimated > 0
    assert 0.8 <= outcome.ratio <= 1.2
    assert LIMIT * Decimal("0.6") <= outcome.billed <= LIMIT


@pytest.mark.parametrize("warm", [0, 50], ids=["from the start", "after a good time"])
def test_error_statuses_that_are_all_billed_do_not_pass_the_limit(warm: int) -> None:
    fault = Fault("status", status=504, billed=True)
    outcome = asyncio.run(broken_calls.run([fault], limit=LIMIT, warm=warm, free_form=True))
    assert outcome.asks["failed"] > 0 < outcome.asks["over budget"]
    assert outcome.billed <= LIMIT


@pytest.mark.parametrize(
    ("free", "statuses"), [(True, (307, 400, 401, 403, 404, 422, 429)), (False, (408, 500, 502, 503, 504, 524))]
)
def test_a_status_that_refuses_is_free_and_one_that_breaks_off_may_not(free: bool, statuses: tuple[int, ...]) -> None:
    assert {CallFailed(Failure("status", "?", status)).free for status in statuses} == {free}
