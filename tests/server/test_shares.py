"""One key may not crowd out others: bounds on its concurrent asks and its asks a minute."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
import urllib.error
import urllib.request
from typing import Any

import pytest
from aiohttp import web

from focalroute import Endpoint
from focalroute.server import Caller, Callers
from focalroute.sim import SimulatedPool
from tests.loopback import completion, json_reply, serving, until
from tests.server.running import ask, post, served

KEY, OTHER = "fr-a-key-for-tests-0001", "fr-a-key-for-tests-0002"


def callers(max_concurrency: int = 100, requests_per_minute: int | None = None) -> Callers:
    """The first of them with these bounds."""
    digests = [hashlib.sha256(key.encode()).digest() for key in (KEY, OTHER)]
    bounded = Caller("bounded", digests[0], None, (), max_concurrency, requests_per_minute)
    return Callers([bounded, Caller("other", digests[1])])


def asked(url: str, key: str, **fields: Any) -> tuple[int, Any]:
    """Status and body; of a stream, its text."""
    if not fields.get("stream"):
        return post(f"{url}/v1/chat/completions", ask(**fields), Authorization=f"Bearer {key}")
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(ask(**fields)).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        return response.status, response.read().decode()


@pytest.mark.parametrize("stream", [False, True])
def test_a_key_has_a_bounded_number_of_asks_under_way(stream: bool) -> None:
    go_on = threading.Event()

    async def hold(_request: web.Request, _body: Any) -> web.StreamResponse:
        for _ in range(10_000):
            if go_on.is_set():
                break
            await asyncio.sleep(0.005)
        return json_reply(completion("held back"))

    with (
        serving(hold) as service,
        served([Endpoint("slow", model="slow", base_url=service.url)], callers=callers(max_concurrency=2)) as url,
    ):
        asking = [threading.Thread(target=asked, args=(url, KEY), kwargs={"stream": stream}) for _ in range(2)]
        other = threading.Thread(target=asked, args=(url, OTHER))
        for thread in asking:
            thread.start()
        until(lambda: len(service.received) == 2)
        status, got = asked(url, KEY)
        assert (status, got["error"]["code"]) == (429, "too_many_under_way")
        other.start()
        until(lambda: len(service.received) == 3)
        go_on.set()
        for thread in (*asking, other):
            thread.join()
        for _ in range(3):  # a request that is wrong gives its place back, too
            assert asked(url, KEY, n=2)[0] == 400
        assert asked(url, KEY)[0] == 200


@pytest.mark.parametrize("stream", [False, True])
def test_the_bodies_of_all_requests_are_bounded_and_forgotten_at_their_end(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one key with 100 asks, or any number of feedbacks, they took gigabytes."""
    monkeypatch.setattr("focalroute.server.app._MOST_BODY_BYTES", 150_000)
    go_on = threading.Event()

    async def hold(_request: web.Request, _body: Any) -> web.StreamResponse:
        await asyncio.to_thread(go_on.wait, 50)
        return json_reply(completion("held back"))

    large = [{"role": "user", "content": "word " * 20_000}]
    with (
        serving(hold) as service,
        served([Endpoint("slow", model="slow", base_url=service.url)], callers=callers()) as url,
    ):
        asking = threading.Thread(target=asked, args=(url, KEY), kwargs={"messages": large, "stream": stream})
        asking.start()
        until(lambda: len(service.received) == 1)
        for path in ("chat/completions", "feedback"):
            status, got = post(f"{url}/v1/{path}", {"messages": large}, Authorization=f"Bearer {OTHER}")
            assert (status, got["error"]["code"]) == (503, "busy")
        go_on.set()
        asking.join()
        for fields in ({"stream": stream}, {"n": 2}, {}, {}):
            status, _ = asked(url, OTHER, messages=large, **fields)
            assert status != 503


def test_a_key_has_a_bounded_number_of_asks_and_feedbacks_in_a_minute(pool: SimulatedPool) -> None:
    with served(pool.endpoints, callers=callers(requests_per_minute=2), policy="plurality") as url:
        assert [asked(url, KEY)[0] for _ in range(2)] == [200, 200]
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(
                urllib.request.Request(
                    f"{url}/v1/chat/completions",
                    b"{}",
                    {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"},
                )
            )
        with refused.value as error:
            assert error.code == 429
            assert 1 <= int(error.headers["Retry-After"]) <= 60
            assert b"too_many_requests" in error.read()
        told = [post(f"{url}/v1/feedback", {"id": "x"}, Authorization=f"Bearer {KEY}")[0] for _ in range(3)]
        assert told == [404, 404, 429]
        assert asked(url, OTHER)[0] == 200
