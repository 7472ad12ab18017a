"""The bill never exceeds a limit, whatever provider and caller do; exceptions are listed in the benchmark."""

from __future__ import annotations

import asyncio
from collections import Counter

from tests.benchmarks import adversary


def test_the_bill_never_passes_a_limit_whatever_provider_and_caller_do() -> None:
    cases = asyncio.run(adversary.play_all(range(20)))
    assert [(case.seed, case.passed) for case in cases if case.passed] == []
    ended = sum((case.ended for case in cases), Counter[str]())
    assert min(ended[how] for how in ("answered", "PoolError", "ConfigError", "BudgetExceeded")) > 10
