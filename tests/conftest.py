"""Simulated pools for all tests: each starts once in a test process and is reset for every test that asks for it.

And a garbage collector that looks at what tests make, not at the modules and thousands of tests that are loaded; a
Hypothesis that draws the same every time, and fails no test because the machine is slow; and ensembles that give no
endpoint up because the machine stands still for a moment.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from _pytest.doctest import DoctestModule
from hypothesis import HealthCheck, settings

from focalroute.endpoints import round as rounds
from focalroute.sim import SimulatedModel, SimulatedPool
from tests.forked_pools import ForkedPools

StartPool = Callable[..., SimulatedPool]

settings.register_profile(
    "steady", settings(derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
)
settings.load_profile("steady")


# An authority that has signed nothing is all that is trusted, unless a test says otherwise: to read the usual 140 takes
# every process, and every client of the openai library, 30 ms of CPU.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).parent / "data" / "unused_authority.pem")


def pytest_collection() -> None:
    gc.disable()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """The tests themselves are not searched for doctests: that takes a fifth of all collecting, and finds none."""
    return [collector for collector in (yield) if not isinstance(collector, DoctestModule)]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files beside this one first: some take most of a minute, and at the end nothing else would run meanwhile."""
    items.sort(key=lambda item: item.path.parent != Path(__file__).parent)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def shortest_silence_s() -> Iterator[float]:
    """For how long an endpoint that is known to be fast may be silent in use. In tests a machine may be that busy."""
    with pytest.MonkeyPatch.context() as patch:
        in_use = rounds._SHORTEST_S
        patch.setattr(rounds, "_SHORTEST_S", 30.0)
        yield in_use


@pytest.fixture
def impatient(shortest_silence_s: float, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Once called, silent endpoints are raced and given up as soon as in use; call it after what has to be answered."""
    return lambda: monkeypatch.setattr(rounds, "_SHORTEST_S", shortest_silence_s)


@pytest.fixture
def no_period_ends() -> None:
    """Neither an hour nor a day, of whatever time zone, ends meanwhile: a quarter of an hour is not about to end."""
    left_s = 900 - time.time() % 900
    if left_s < 10:
        time.sleep(left_s)


@pytest.fixture(scope="session", autouse=True)
def forked_pools() -> Iterator[None]:
    """Have the processes of simulated pools forked (see `tests.forked_pools`), where that can be done."""
    if not hasattr(os, "pidfd_open"):
        yield
        return
    pools = ForkedPools()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimulatedPool, "_start_process", staticmethod(pools.begin))
        yield
    pools.close()


@pytest.fixture(scope="session")
def start_pool(forked_pools: None) -> Iterator[StartPool]:
    """``start_pool(models, **settings)``: a running `SimulatedPool`, reset; equal arguments share one process."""
    running: dict[str, SimulatedPool] = {}

    def start(models: Sequence[SimulatedModel] | None = None, **settings: Any) -> SimulatedPool:
        key = repr((models, settings))
        if key not in running:
            running[key] = stack.enter_context(SimulatedPool(models, **settings))
        running[key].reset()
        return running[key]

    with ExitStack() as stack:
        yield start


@pytest.fixture
def simulated_pool(start_pool: StartPool) -> SimulatedPool:
    """The default pool, as if just started: no faults, nothing billed yet."""
    return start_pool()
