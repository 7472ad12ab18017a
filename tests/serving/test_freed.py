"""The memory of an ask is freed with the last reference to it, without the garbage collector."""

from __future__ import annotations

import asyncio
import gc
import traceback
import weakref
from collections.abc import Iterator

import pytest

from focalroute import AsyncEnsemble, Ensemble
from focalroute.core.errors import PoolError
from focalroute.core.records import Reply
from focalroute.sim import Fault, SimulatedModel, SimulatedPool
from tests.conftest import StartPool
from tests.loopback import until

NAMES = ("e", "f")
FAILS, HANGS = Fault("status", status=500), Fault("hang", seconds=60)
FAULTS = [
    FAILS,
    pytest.param(Fault("status", status=429, retry_after_s=0.01), marks=pytest.mark.slow),
    pytest.param(Fault("reset"), marks=pytest.mark.slow),
    pytest.param(Fault("cut"), marks=pytest.mark.slow),
    pytest.param(Fault("html"), marks=pytest.mark.slow),
    HANGS,
    pytest.param([Fault("status", count=1), HANGS], id="hang-repeated", marks=pytest.mark.slow),
    pytest.param(Fault("drip", seconds=60), marks=pytest.mark.slow),
]


@pytest.fixture
def pool(start_pool: StartPool) -> SimulatedPool:
    return start_pool([SimulatedModel(name, skill=1.0) for name in NAMES])


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def replies() -> int:
    return sum(type(thing) is Reply for thing in gc.get_objects())  # isinstance would run code of the others


def failed_with(pool: SimulatedPool, faults: Fault | list[Fault], *names: str) -> None:
    for name in names:
        pool.set(name, faults=faults)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.kind}{fault.retry_after_s or ''}")
@pytest.mark.usefixtures("without_collector")
def test_the_replies_of_a_failed_ask_go_with_its_error(pool: SimulatedPool, fault: Fault | list[Fault]) -> None:
    async def ask() -> tuple[int, weakref.ref[PoolError]]:
        async with AsyncEnsemble(pool.endpoints, policy="plurality", deadline_s=4) as ensemble:
            failed_with(pool, fault, *NAMES)
            try:
                await ensemble.ask("What is 17 + 25?", choices=["42", "43"])
            except PoolError as error:
                return len(error.replies), weakref.ref(error)
        raise AssertionError("it was answered")

    before = replies()
    failed, error = asyncio.run(ask())
    assert failed == len(NAMES)
    assert error() is None
    assert replies() == before


@pytest.mark.parametrize("fault", [FAILS, HANGS], ids=lambda fault: fault.kind)
@pytest.mark.usefixtures("without_collector")
def test_the_replies_of_an_answer_with_a_failed_member_go_with_it(pool: SimulatedPool, fault: Fault) -> None:
    with Ensemble(pool.endpoints, policy="plurality", deadline_s=4) as ensemble:
        failed_with(pool, fault, "e")
        before = replies()
        assert ensemble.ask("What is 17 + 25?", choices=["42", "43"]).text == "42"
        until(lambda: replies() == before)  # the loop's own thread lets go of them as well


@pytest.mark.usefixtures("without_collector")
def test_a_failed_ask_of_the_synchronous_class_is_freed_and_shows_where_it_was_asked(pool: SimulatedPool) -> None:
    with Ensemble(pool.endpoints, policy="plurality", deadline_s=4) as ensemble:
        failed_with(pool, FAILS, *NAMES)
        before = replies()
        try:
            ensemble.ask("What is 17 + 25?", choices=["42", "43"])
        except PoolError as error:
            shown = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
            freed = weakref.ref(error)
        assert shown[0].startswith("test_a_failed_ask")
        assert "ask" in shown
        until(lambda: freed() is None and replies() == before)
