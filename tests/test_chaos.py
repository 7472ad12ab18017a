"""Small versions of the chaos run and of the outage run of `tests.benchmarks`, on real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from focalroute.sim import SimulatedPool
from focalroute.sim.faults import KINDS
from tests.benchmarks import chaos, outage


@pytest.fixture(scope="module")
def pool() -> Iterator[SimulatedPool]:
    with SimulatedPool() as running:
        yield running
        running.reset()


def test_with_a_third_of_all_calls_faulted_asks_are_answered_and_nothing_is_left(pool: SimulatedPool) -> None:
    """Replies of many megabytes are left to the long run.

    So few asks at a time that they stay within the deadline on a machine that is ten times slower, too.
    """
    kinds = [kind for kind in KINDS if kind not in ("huge", "flood", "bomb")]
    for model in pool.models:
        pool.set(model.name, faults=chaos.faults(0.3, kinds))
    outcome = asyncio.run(chaos.run(pool, 120, deadline_s=5, concurrency=8, early_stop=True, hedge_after=0.9))
    assert outcome.asks["answered"] >= 116
    assert outcome.struck[0] > 60
    assert outcome.hedges > 0
    assert outcome.left == {"tasks": 0, "threads": 0, "descriptors": 0}


def test_when_the_best_endpoint_goes_down_the_others_stand_in_for_it(pool: SimulatedPool) -> None:
    pool.reset()
    run = outage.run(pool, outage.DOWN["refuses"], before=200, during=60, a_second=100, deadline_s=10, patience_s=15)
    outcome = asyncio.run(run)
    assert sum(asked.called for asked in outcome.before) > 30
    assert sum(asked.called for asked in outcome.during) <= 20
    assert outcome.late_calls == 0
    assert sum(asked.right for asked in outcome.during) > 0.8 * sum(asked.right for asked in outcome.without)
    assert outcome.back_s < 15
