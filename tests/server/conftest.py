"""A simulated pool, and a server in front of it that needs no key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from focalroute.sim import SimulatedPool
from focalroute.sim.process import pool_toml
from tests.server.running import served


@pytest.fixture(scope="session")
def pool() -> Iterator[SimulatedPool]:
    with SimulatedPool() as simulated:
        yield simulated


@pytest.fixture(scope="session")
def pool_file(pool: SimulatedPool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("server") / "pool.toml"
    path.write_text(pool_toml(pool.endpoints))
    return path


@pytest.fixture(scope="session")
def url(pool: SimulatedPool) -> Iterator[str]:
    """Of a server that asks all of the pool and takes the plurality; anybody on this machine may."""
    with served(pool.endpoints, policy="plurality", local_only=True) as address:
        yield address
