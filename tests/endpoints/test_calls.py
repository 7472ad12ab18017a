"""The one retry layer, over real HTTP: what is retried, the wait, and the number of retries of an ask."""

from __future__ import annotations

import email.utils
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from focalroute import Endpoint, Ensemble, PoolError
from tests.loopback import Server, completion, json_reply, serving
from tests.policies import ask_all

Said = tuple[int, dict[str, str]]


@contextmanager
def saying(*replies: Said) -> Iterator[Server]:
    """A service that gives these statuses one after the other, and then answers."""
    left = iter(replies)

    async def handler(_: web.Request, __: Any) -> web.StreamResponse:
        status, headers = next(left, (200, {}))
        return json_reply(completion("42"), status, headers)

    with serving(handler) as server:
        yield server


def endpoints(url: str, count: int = 1) -> list[Endpoint]:
    return [Endpoint(f"e{i}", base_url=url, model="m") for i in range(count)]


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
def test_transient_failures_are_retried_and_counted_on_the_receipt(status: int) -> None:
    with saying((status, {})) as server, Ensemble(endpoints(server.url)) as ensemble:
        answer = ensemble.ask("?", answer="number")
        assert answer.value == 42
        assert [call.attempts for call in answer.receipt.calls] == [2]
        assert ensemble.stats().endpoints["e0"].calls == 2


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422, 307])
def test_permanent_failures_are_not_retried(status: int) -> None:
    with saying((status, {})) as server, Ensemble(endpoints(server.url)) as ensemble:
        with pytest.raises(PoolError) as caught:
            ensemble.ask("?", answer="number")
        assert caught.value.replies[0].attempts == 1
        assert len(server.received) == 1


def dated(seconds: float) -> str:
    return email.utils.formatdate(time.time() + seconds, usegmt=True)


@pytest.mark.parametrize("header", ["Retry-After", "retry-after-ms", "a date that is past"])
def test_a_service_is_not_called_again_before_its_retry_after(header: str) -> None:
    value = {"Retry-After": "0.5", "retry-after-ms": "500"}.get(header)
    asked = {"Retry-After": dated(-5)} if value is None else {header: value}
    with saying((429, asked)) as server, Ensemble(endpoints(server.url)) as ensemble:
        answer = ensemble.ask("?", answer="number")
    assert answer.receipt.calls[0].attempts == 2
    if value is not None:  # of its own accord it would wait for 0.25 seconds at the most
        assert answer.receipt.calls[0].latency_s > 0.4


@pytest.mark.parametrize("header", ["0", "-1"])
def test_a_service_at_its_limit_that_asks_for_no_wait_is_given_one(header: str) -> None:
    """Some count in whole seconds, and round the wait down."""
    with saying(*[(429, {"Retry-After": header})] * 2) as server, Ensemble(endpoints(server.url)) as ensemble:
        answer = ensemble.ask("?", answer="number")
    assert answer.receipt.calls[0].latency_s > 1.9


@pytest.mark.parametrize(
    ("form", "seconds", "deadline_s"), [(str, 58, 45.0), (dated, 58, 45.0), (str, 61, 300.0)], ids=["s", "date", "long"]
)
def test_no_call_waits_beyond_the_deadline_or_for_more_than_a_minute(
    form: Callable[[int], str], seconds: int, deadline_s: float
) -> None:
    """The member is given up at once, and the ask goes on to the next."""
    with saying((503, {"Retry-After": form(seconds)})) as server:
        with Ensemble(endpoints(server.url, 2), policy="best-single", deadline_s=deadline_s) as ensemble:
            answer = ensemble.ask("?", answer="number")
            health = ensemble.stats().endpoints
        first, second = answer.receipt.calls
        assert (first.attempts, second.attempts) == (1, 1)
        assert first.error is not None
        assert first.error.status == 503
        assert health[first.endpoint].health.paused_s > 20
        assert health[second.endpoint].health.paused_s == 0
        assert answer.receipt.latency_s < 30


def calls_in_an_outage(members: int, attempts: int, folder: Path) -> tuple[int, Sequence[int]]:
    with saying(*[(500, {})] * 99) as server:
        pool = endpoints(server.url, members)
        with Ensemble(pool, policy=ask_all(folder), explore=False, attempts=attempts) as ensemble:
            with pytest.raises(PoolError) as caught:
                ensemble.ask("?", answer="number")
            return len(server.received), [reply.attempts for reply in caught.value.replies]


@pytest.mark.parametrize(("members", "attempts"), [(1, 3), (4, 3), (6, 1)])
def test_an_outage_does_not_multiply_the_load(members: int, attempts: int, tmp_path: Path) -> None:
    """All members of an ask share its retries: m members cost m + attempts - 1 calls, not m x attempts."""
    received, counted = calls_in_an_outage(members, attempts, tmp_path)
    assert received == sum(counted) == members + attempts - 1
