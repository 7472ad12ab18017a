"""The store's tests run against both engines."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.redis_server import redis_server as redis_server  # a fixture
from tests.store.engines import Engine, RedisEngine, SqliteEngine


@pytest.fixture(params=["sqlite", "redis"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    if request.param == "sqlite":
        return SqliteEngine(tmp_path / "s.db")
    return RedisEngine(request.getfixturevalue("redis_server").url)
