"""A pool file for the commands of all these tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from focalroute.sim.process import pool_toml
from tests.conftest import StartPool


@pytest.fixture
def pool_file(start_pool: StartPool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default simulated pool, as if just started."""
    path = tmp_path_factory.mktemp("pool") / "pool.toml"
    path.write_text(pool_toml(start_pool().endpoints))
    return path
