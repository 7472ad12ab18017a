"""Small versions of the chaos run and of the outage run of `tests.benchmarks`, on real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from focalroute.sim import SimulatedPool
from focalroute.sim.faults import KINDS
from tests.benchmarks import chaos, outage
from tests.benchmarks.harness import growth


def test_with_a_third_of_all_calls_faulted_asks_are_answered_and_nothing_is_left(
    simulated_pool: SimulatedPool, impatient: Callable[[], None]
) -> None:
    """Replies of many megabytes are left to the long run.

    So few asks at a time that they stay within the deadline on a machine that is ten times slower, too.
    """
    impatient()
    kinds = [kind for kind in KINDS if kind not in ("huge", "flood", "bomb")]
    for model in simulated_pool.models:
        simulated_pool.set(model.name, faults=chaos.faults(0.3, kinds))
    outcome = asyncio.run(chaos.run(simulated_pool, 60, deadline_s=15, concurrency=8, early_stop=True, hedge_after=0.9))
    assert outcome.asks["answered"] >= 58
    assert outcome.struck[0] > 30
    assert outcome.hedges > 0
    assert outcome.left == {"tasks": 0, "threads": 0, "descriptors": 0}


def test_memory_that_rises_and_falls_does_not_grow_and_one_that_leaks_does() -> None:
    """A hundred values: a saw, and the same with a leak of 4 % in all."""
    saw = [150 + 3 * (i % 7) for i in range(100)]
    assert not growth(saw)[1]
    share, sure = growth([value + 0.06 * i for i, value in enumerate(saw)])
    assert sure
    assert share == pytest.approx(0.035, abs=0.01)


@pytest.mark.slow
def test_when_the_best_endpoint_goes_down_the_others_stand_in_for_it(simulated_pool: SimulatedPool) -> None:
    run = outage.run(
        simulated_pool, outage.DOWN["refuses"], before=200, during=60, a_second=100, deadline_s=10, patience_s=15
    )
    outcome = asyncio.run(run)
    assert sum(asked.called for asked in outcome.before) > 30
    assert sum(asked.called for asked in outcome.during) <= 20
    assert outcome.late_calls == 0
    assert sum(asked.right for asked in outcome.during) > 0.8 * sum(asked.right for asked in outcome.without)
    assert outcome.back_s < 15
