"""A small version of the budget benchmark: several processes on one store, one of them killed."""

from __future__ import annotations

from decimal import Decimal

import pytest

from tests.benchmarks.budgets import run


@pytest.mark.parametrize(
    "kill", [pytest.param(False, id="all completed", marks=pytest.mark.slow), pytest.param(True, id="one killed")]
)
def test_processes_on_one_store_keep_the_limit_and_every_cent_is_accounted_for(kill: bool) -> None:
    got = run(asks=80, processes=2, concurrency=4, kill=kill, limit=Decimal("0.00075"))
    got.check(exact=not kill)
