"""One running pool for the tests that do not change it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from focalroute.sim import SimulatedModel, SimulatedPool

SURE = SimulatedModel("sure", skill=0.99)
WORDY = SimulatedModel("wordy", skill=0.6, verbosity=30, wrong_length=3.0, output_usd_per_1m="0.5")


class Client:
    """Speaks plain HTTP to a pool."""

    def __init__(self, pool: SimulatedPool, http: httpx.Client) -> None:
        self.pool = pool
        self.http = http

    def post(self, content: Any, dialect: str = "openai", model: str = "sure", **fields: Any) -> httpx.Response:
        messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
        body = {"model": model, "messages": messages, **fields}
        return self.http.post(f"http://127.0.0.1:{self.pool.port}/{dialect}/v1/chat/completions", json=body)

    def ask(self, content: Any, dialect: str = "openai", model: str = "sure", **fields: Any) -> Any:
        response = self.post(content, dialect, model, **fields)
        assert response.status_code == 200, response.text
        return response.json()


@pytest.fixture(scope="session")
def http() -> Iterator[httpx.Client]:
    with httpx.Client(trust_env=False, timeout=20) as client:
        yield client


@pytest.fixture(scope="session")
def client(http: httpx.Client) -> Iterator[Client]:
    with SimulatedPool([SURE, WORDY]) as pool:
        yield Client(pool, http)


@pytest.fixture(scope="session")
def changed(http: httpx.Client) -> Iterator[Client]:
    with SimulatedPool([SURE, WORDY]) as pool:
        yield Client(pool, http)


@pytest.fixture
def own(changed: Client) -> Client:
    """A pool that the test may change: as if just started."""
    changed.pool.reset()
    return changed
