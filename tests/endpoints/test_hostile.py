"""Hostile replies over real HTTP: a typed failure of that member or a right reading, and the ask is answered."""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from collections.abc import Iterator, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from aiohttp import web

from focalroute import Answer, AsyncEnsemble, Endpoint, Ensemble, PoolError, Reply
from focalroute.core.errors import CallFailed
from focalroute.core.records import FailureKind
from focalroute.endpoints.client import EndpointClient, HttpSessions
from focalroute.endpoints.wire import MAX_REPLY_BYTES, Completion, Request
from focalroute.sim import Fault, SimulatedModel, SimulatedPool
from focalroute.sim.faults import KINDS
from tests.loopback import completion, json_reply, serving
from tests.policies import ask_all

QUESTION = "What is 17 + 25?"
CHOICES = ("32", "42", "44", "52")
STREAMED = Request(
    ({"role": "user", "content": f"{QUESTION}\n\nA. 32\nB. 42\n\nAnswer with the letter only."},), 32, 0.0
)

#: What a hostile member's failure is; where the two differ, in a whole reply and in a stream. None: it is read rightly.
OUTCOMES: Mapping[str, tuple[FailureKind | None, FailureKind | None]] = {
    "status": ("status", "status"),
    "hang": ("timeout", "timeout"),
    "drip": ("timeout", "timeout"),
    "cut": ("protocol", "protocol"),
    "short": ("protocol", "protocol"),
    "reset": ("connection", "connection"),
    "redirect": ("status", "status"),
    "html": ("protocol", "protocol"),
    "bad_json": ("protocol", "protocol"),
    "wrong_content_type": (None, None),
    "empty_choices": ("protocol", "protocol"),
    "null_content": ("unusable", None),
    "nan_logprobs": ("unusable", None),
    "no_usage": (None, None),
    "wrong_type": ("protocol", "protocol"),
    "huge": ("protocol", "protocol"),
    "flood": ("protocol", "protocol"),
    "bomb": ("protocol", "protocol"),
    "deep": ("protocol", "protocol"),
    "odd_types": ("protocol", "protocol"),
    "odd_text": ("unusable", None),
    "positive_logprobs": ("unusable", None),
    "negative_usage": (None, None),
    "duplicates": (None, None),
    "outside": ("unusable", None),
    "decoy": (None, None),
}
#: What a stream says in the end, where it is not just "B".
TEXTS = {"null_content": "", "outside": "Pluto. ", "duplicates": "BB"}


@pytest.fixture(scope="module")
def pool() -> Iterator[SimulatedPool]:
    with SimulatedPool([SimulatedModel("honest", skill=0.999), SimulatedModel("hostile", skill=0.999)]) as running:
        yield running


def fault(kind: str, size: int = 10_000_000) -> Fault:
    """One that lasts, and is as large as a reply must not be."""
    return Fault(kind, size=size, seconds=60)


def members(pool: SimulatedPool, kind: str) -> list[Endpoint]:
    """The honest one, and the one that meets the fault; a reply that does not end is waited for only briefly."""
    pool.set("hostile", faults=fault(kind))
    known: dict[str, Any] = {"logprobs": True, "top_logprobs": 5, "n": True, "structured_choice": False}
    patience = 0.3 if OUTCOMES[kind][0] == "timeout" else 60.0
    honest, hostile = (replace(endpoint, **known, stream_usage=True) for endpoint in pool.endpoints)
    return [honest, replace(hostile, timeout_s=patience)]


def test_every_fault_has_its_outcome() -> None:
    """A fault that is added to the simulator is added here."""
    assert OUTCOMES.keys() == set(KINDS)


def check(answer: Answer, kind: str) -> None:
    """The honest member was heard, and the hostile one did what it does."""
    honest, hostile = sorted(answer.replies, key=lambda reply: reply.endpoint)
    assert (answer.text, honest.choice) == ("42", 1)
    check_reply(hostile, OUTCOMES[kind][0])
    assert ("fewer members: hostile failed" in answer.degraded) == (not hostile.ok)


def check_reply(reply: Reply, expected: FailureKind | None) -> None:
    if expected is None:
        assert (reply.error, reply.choice) == (None, 1)
        assert reply.usage is None or reply.usage.prompt_tokens > 0
        assert reply.cost is None or reply.cost >= 0
    else:
        assert reply.error is not None
        assert reply.error.kind == expected
        assert (reply.text, reply.choice, reply.probabilities) == (None, None, None)


@pytest.mark.parametrize("kind", OUTCOMES)
def test_one_good_member_is_enough(pool: SimulatedPool, tmp_path: Path, kind: str) -> None:
    """From code without ``await``."""
    settings: dict[str, Any] = {"policy": ask_all(tmp_path), "explore": False, "attempts": 1}
    with Ensemble(members(pool, kind), **settings) as ensemble:
        check(ensemble.ask(QUESTION, choices=CHOICES), kind)


@pytest.mark.parametrize("kind", OUTCOMES)
def test_checking_what_a_hostile_member_can_do_does_no_harm(pool: SimulatedPool, tmp_path: Path, kind: str) -> None:
    """The first closed question probes it; whatever comes back, the ask is answered, and what was learned is typed."""
    honest, hostile = members(pool, kind)
    unknown = replace(hostile, logprobs=None, top_logprobs=None, n=None, structured_choice=None, stream_usage=None)
    settings: dict[str, Any] = {"policy": ask_all(tmp_path), "explore": False, "attempts": 1}
    with Ensemble([honest, unknown], store=tmp_path / "s.db", **settings) as ensemble:
        answer = ensemble.ask(QUESTION, choices=CHOICES)
        assert answer.text == "42"
        assert ensemble.ask(QUESTION, choices=CHOICES).text == "42"
    assert {reply.endpoint: reply.ok for reply in answer.replies}["honest"]


@pytest.mark.parametrize("kind", OUTCOMES)
def test_a_client_of_yours_is_not_a_way_in(pool: SimulatedPool, tmp_path: Path, kind: str) -> None:
    """The same with ``await``, through the openai library."""
    honest, hostile = members(pool, kind)
    settings: dict[str, Any] = {"policy": ask_all(tmp_path), "explore": False, "attempts": 1}

    async def run() -> Answer:
        async with openai.AsyncOpenAI(api_key="none", base_url=str(hostile.base_url)) as client:
            ready = replace(hostile, base_url=None, client=client)
            async with AsyncEnsemble([honest, ready], **settings) as ensemble:
                return await ensemble.ask(QUESTION, choices=CHOICES)

    check(asyncio.run(run()), kind)


@pytest.mark.parametrize("ready", [False, True], ids=["own", "ready"])
@pytest.mark.parametrize("kind", OUTCOMES)
def test_a_hostile_stream_fails_or_says_what_it_says(pool: SimulatedPool, kind: str, ready: bool) -> None:
    hostile = members(pool, kind)[1]

    async def run() -> str:
        sessions = HttpSessions()
        async with openai.AsyncOpenAI(api_key="none", base_url=str(hostile.base_url)) as client:
            endpoint = replace(hostile, base_url=None, client=client) if ready else hostile
            try:
                async with aclosing(EndpointClient(endpoint, sessions).stream(STREAMED)) as pieces:
                    *_, last = [piece async for piece in pieces]
            finally:
                await sessions.aclose()
        assert isinstance(last, Completion)
        return last.choices[0].text

    expected = OUTCOMES[kind][1]
    if expected is None:
        assert asyncio.run(run()).endswith(TEXTS.get(kind, "B" if kind != "odd_text" else "[2J?"))
        return
    with pytest.raises(CallFailed) as caught:
        asyncio.run(run())
    assert caught.value.failure.kind == expected


def test_when_every_member_is_hostile_the_error_is_typed(pool: SimulatedPool) -> None:
    """And holds each member's failure."""
    (hostile,) = members(pool, "deep")[1:]
    with Ensemble([hostile], attempts=1) as ensemble, pytest.raises(PoolError) as caught:
        ensemble.ask(QUESTION, choices=CHOICES)
    (reply,) = caught.value.replies
    check_reply(reply, "protocol")


@pytest.mark.parametrize("way", ["own", "openai", "httpx"])
@pytest.mark.parametrize("kind", ["flood", "bomb"])
def test_memory_is_bounded_whatever_is_sent(pool: SimulatedPool, kind: str, way: str) -> None:
    """Of 50 MB no more is read, nor unpacked, than a reply may have; then the client hangs up."""
    pool.set("hostile", faults=fault(kind, 50_000_000))
    url = str(pool.endpoints[1].base_url)

    async def run() -> int:
        sessions = HttpSessions()
        async with openai.AsyncOpenAI(api_key="none", base_url=url) as client, httpx.AsyncClient() as http_client:
            where: dict[str, Any] = {"client": client} if way == "openai" else {"base_url": url}
            where |= {"http_client": http_client} if way == "httpx" else {}
            caller = EndpointClient(Endpoint("hostile", model="hostile", **where), sessions)
            with pytest.raises(CallFailed):
                await caller.complete(Request(STREAMED.messages, 8))  # all that is loaded on first use is there
            tracemalloc.start()
            with pytest.raises(CallFailed):
                await caller.complete(Request(STREAMED.messages, 8))
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            await sessions.aclose()
        return peak

    assert asyncio.run(run()) < 3 * MAX_REPLY_BYTES


#: What a service goes on sending around a body, after how it begins; and what the failure of the call is.
_PIECES = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
ENDLESS: Mapping[str, tuple[bytes, bytes, set[FailureKind]]] = {
    "headers": (b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n" * 1000, {"connection"}),
    "status line": (b"HTTP/1.1 200 ", b"O" * 10_000, {"connection"}),
    "interim responses": (b"", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 100, {"timeout"}),
    "trailers": (_PIECES + b"2\r\n{}\r\n0\r\n", b"X-A: b\r\n" * 1000, {"connection", "protocol"}),
    "extension of a chunk": (_PIECES, b"1;" + b"a" * 10_000, {"timeout"}),
    "empty pieces": (_PIECES, b"1\r\n \r\n" * 1000, {"timeout"}),
}


@pytest.mark.parametrize("part", ENDLESS)
def test_endless_headers_and_trailers_take_neither_memory_nor_longer_than_the_call_may(part: str) -> None:
    begin, more, kinds = ENDLESS[part]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.CancelledError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(begin)
            while True:
                writer.write(more)
                await writer.drain()
        writer.close()

    async def run() -> tuple[CallFailed, int]:
        sessions = HttpSessions()
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
            caller = EndpointClient(Endpoint("hostile", model="hostile", base_url=url), sessions)
            tracemalloc.start()
            with pytest.raises(CallFailed) as failed:
                await caller.complete(Request(STREAMED.messages, 8), timeout_s=1.0 if "timeout" in kinds else 60)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            await sessions.aclose()
        return failed.value, peak

    error, peak = asyncio.run(run())
    assert error.failure.kind in kinds
    assert peak < 3 * MAX_REPLY_BYTES


def test_a_reply_that_was_not_asked_for_is_not_the_next_calls() -> None:
    """It comes late, on a connection that is kept for the next call."""
    replies = [f'{{"choices": [{{"message": {{"content": "{text}"}}}}]}}'.encode() for text in ("mine", "another's")]
    asked, late = (b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(reply) + reply for reply in replies)
    kept: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kept.append(writer)
        with suppress(asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(asked)
        writer.close()

    async def run() -> list[str]:
        sessions = HttpSessions()
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
            caller = EndpointClient(Endpoint("hostile", model="hostile", base_url=url), sessions)
            said = [await caller.complete(STREAMED)]
            kept[0].write(late)
            await asyncio.sleep(0.05)
            said += [await caller.complete(STREAMED) for _ in range(2)]
            await sessions.aclose()
        return [one.choices[0].text for one in said]

    assert asyncio.run(run()) == ["mine"] * 3
    assert len(kept) == 2  # the third call's connection is the second's


def test_a_connection_that_was_closed_while_the_event_loop_stood_still_is_not_used() -> None:
    """Services close idle connections after seconds; a program may compute for longer between two asks."""

    async def serve(request: web.Request, _: Any) -> web.StreamResponse:
        assert request.transport is not None
        asyncio.get_running_loop().call_later(0.05, request.transport.close)
        return json_reply(completion())

    async def run(url: str) -> None:
        sessions = HttpSessions()
        caller = EndpointClient(Endpoint("e", model="m", base_url=url), sessions)
        for _ in range(3):
            await caller.complete(STREAMED)
            time.sleep(0.2)  # noqa: ASYNC251 - the loop stands still
        await sessions.aclose()

    with serving(serve) as server:
        asyncio.run(run(server.url))
        assert len(server.received) == 3


def test_a_service_that_sends_before_it_is_asked_is_not_connected_to_for_ever(
    pool: SimulatedPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the event loop reads what it sends before the call looks at the connection."""
    monkeypatch.setattr("aiohttp.client_proto.ResponseHandler.should_close", True)

    async def run() -> CallFailed:
        sessions = HttpSessions()
        with pytest.raises(CallFailed) as failed:
            await EndpointClient(pool.endpoints[0], sessions).complete(STREAMED)
        await sessions.aclose()
        return failed.value

    assert asyncio.run(run()).failure.kind == "connection"
