"""Simulated pools for all tests: each starts once in a test process and is reset for every test that asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from focalroute.sim import SimulatedModel, SimulatedPool

StartPool = Callable[..., SimulatedPool]


@pytest.fixture(scope="session")
def start_pool() -> Iterator[StartPool]:
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
