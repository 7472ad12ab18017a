"""One attempt over real HTTP: what is sent, what is refused, how every fault comes back, what cancelling does."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import email.utils
import gzip
import json
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import openai
import pytest
from aiohttp import web

from focalroute.core.config import Endpoint
from focalroute.core.errors import CallFailed, ConfigError
from focalroute.core.records import Usage
from focalroute.endpoints.client import EndpointClient, HttpSessions
from focalroute.endpoints.wire import MAX_REPLY_BYTES, Completion, Request
from focalroute.money.prices import NotListed, fetch_models
from tests.loopback import Handler, Server, completion, json_reply, self_signed, serving, speaking, sse

PROMPT = "a very private prompt"
KEY = "sk-very-secret-key"
REQUEST = Request(({"role": "user", "content": PROMPT},), 8)
USAGE = {"prompt_tokens": 10, "completion_tokens": 1}

Use = Callable[[EndpointClient], Awaitable[Any]]


async def ok(_: web.Request, __: Any) -> web.StreamResponse:
    return json_reply(completion())


def answering(payload: Any, status: int = 200, headers: dict[str, str] | None = None) -> Handler:
    async def handler(_: web.Request, __: Any) -> web.StreamResponse:
        return json_reply(payload, status, headers)

    return handler


def streaming(*events: Any, end: bool = True) -> Handler:
    async def handler(request: web.Request, _: Any) -> web.StreamResponse:
        return await sse(request, *events, end=end)

    return handler


def chunk(text: str | None = None, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    delta = {} if text is None else {"content": text}
    return {"id": "s", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **fields}


def using(url: str, use: Use, **settings: Any) -> Any:
    """Run ``use`` on a client of ``url``, and close everything after."""

    async def run() -> Any:
        sessions = HttpSessions()
        try:
            return await use(EndpointClient(Endpoint("e", model="m", base_url=url, **settings), sessions))
        finally:
            await sessions.aclose()

    return asyncio.run(run())


def injected(url: str, use: Use, **settings: Any) -> Any:
    """The same through a ready openai client that would retry if it were let."""

    async def run() -> Any:
        async with openai.AsyncOpenAI(api_key=KEY, base_url=url, max_retries=3) as client:
            return await use(EndpointClient(Endpoint("e", model="m", client=client, **settings), HttpSessions()))

    return asyncio.run(run())


def over_httpx(url: str, use: Use, **settings: Any) -> Any:
    """The same through an httpx client of the user's, which would follow redirects if it were let."""

    async def run() -> Any:
        async with httpx.AsyncClient(follow_redirects=True) as client:
            endpoint = Endpoint("e", model="m", base_url=url, http_client=client, **settings)
            return await use(EndpointClient(endpoint, HttpSessions()))

    return asyncio.run(run())


EVERY_WAY = pytest.mark.parametrize("through", [using, injected, over_httpx])
Through = Callable[..., Any]


async def complete(client: EndpointClient) -> Completion:
    return await client.complete(REQUEST)


async def collect(client: EndpointClient) -> list[str | Completion]:
    return [piece async for piece in client.stream(REQUEST)]


def failure(through: Through, handler: Handler, use: Use = complete, **settings: Any) -> CallFailed:
    """The failure of one attempt; exactly one request must have been made, and nothing private be told."""
    with serving(handler) as server:
        with pytest.raises(CallFailed) as caught:
            through(server.url, use, **settings)
        assert len(server.received) == 1
    told = f"{caught.value!r} {caught.value.failure!r}"
    assert PROMPT not in told
    assert KEY not in told
    return caught.value


@EVERY_WAY
def test_a_call_brings_the_reply_with_its_usage_and_cost(through: Through) -> None:
    """Text, finish reason, model, id, usage and the provider's own cost."""
    with serving(answering(completion("B", usage={**USAGE, "cost": 0.00014265}))) as server:
        reply = through(server.url, complete)
    assert reply.choices[0].text == "B"
    assert (reply.choices[0].finish_reason, reply.model, reply.id) == ("stop", "m-1", "c-1")
    assert reply.usage == Usage(10, 1, cost_usd=Decimal("0.00014265"))


@EVERY_WAY
def test_the_endpoint_s_and_the_request_s_params_reach_the_body(through: Through) -> None:
    """The request's params win over the endpoint's; fields that no library knows get through too."""
    request = Request(REQUEST.messages, 8, top_logprobs=3, params={"seed": 2, "structured_outputs": {"choice": ["A"]}})
    with serving(ok) as server:
        through(server.url, lambda c: c.complete(request), params={"seed": 1, "top_k": 5})
        body = server.received[0].body
    assert server.received[0].path == "/v1/chat/completions"
    assert body == {
        "model": "m", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 8, "logprobs": True,
        "top_logprobs": 3, "seed": 2, "top_k": 5, "structured_outputs": {"choice": ["A"]},
    }  # fmt: skip


def test_the_key_is_read_at_the_first_call_and_sent_as_a_bearer(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the environment, in one header, with stray spaces removed."""
    with serving(ok) as server:

        async def set_then_call(client: EndpointClient) -> None:
            monkeypatch.setenv("SOME_KEY", f" {KEY}\n")
            await client.complete(REQUEST)

        using(server.url, set_then_call, api_key_env="SOME_KEY")
        using(server.url, complete)
        assert server.received[0].headers["Authorization"] == f"Bearer {KEY}"
        assert "Authorization" not in server.received[1].headers


def test_a_missing_or_broken_key_is_a_config_error_that_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is sent, and the broken key itself is not told."""
    with serving(ok) as server:
        with pytest.raises(ConfigError, match="ABSENT_KEY"):
            using(server.url, complete, api_key_env="ABSENT_KEY")
        monkeypatch.setenv("BROKEN_KEY", f"{KEY}\r\nX-Evil: 1")
        with pytest.raises(ConfigError, match="BROKEN_KEY") as caught:
            using(server.url, complete, api_key_env="BROKEN_KEY")
        assert server.received == []
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("through", [using, over_httpx])
@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_redirects_are_failures_and_carry_the_key_nowhere(
    status: int, through: Through, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service that points to another host gets nothing sent there."""
    monkeypatch.setenv("SOME_KEY", KEY)
    with serving(ok) as elsewhere:
        handler = answering({}, status, {"Location": f"{elsewhere.url}/chat/completions"})
        error = failure(through, handler, api_key_env="SOME_KEY")
        assert elsewhere.received == []
    assert (error.failure.kind, error.failure.status) == ("status", status)


@pytest.mark.parametrize("azure", [False, True], ids=["openai", "azure"])
def test_a_ready_client_follows_no_redirect_either(azure: bool) -> None:
    """Not even those with which an Azure key would go along; the user's own client goes on following its own."""
    with serving(ok) as elsewhere:
        host = elsewhere.url.replace("127.0.0.1", "localhost")
        with serving(answering({}, 307, {"Location": f"{host}/chat/completions"})) as server:

            async def run() -> CallFailed:
                made: Any = openai.AsyncOpenAI(api_key=KEY, base_url=server.url)
                if azure:
                    root = server.url.removesuffix("/v1")
                    made = openai.AsyncAzureOpenAI(api_key=KEY, azure_endpoint=root, api_version="2024-10-21")
                async with made as client:
                    with pytest.raises(CallFailed) as caught:
                        await complete(EndpointClient(Endpoint("e", model="m", client=client), HttpSessions()))
                    assert elsewhere.received == []
                    messages: Any = REQUEST.messages
                    await client.chat.completions.create(model="m", messages=messages)
                    assert len(elsewhere.received) == 1
                return caught.value

            assert asyncio.run(run()).failure.status == 307


@EVERY_WAY
@pytest.mark.parametrize("status", [400, 401, 402, 404, 408, 409, 422, 429, 500, 503])
def test_an_error_status_is_typed_and_tried_once(through: Through, status: int) -> None:
    """Status and the service's short code are told; what its message quotes of the prompt or the key is not."""
    body = {"error": {"message": f"{PROMPT} {KEY}", "type": "some_error", "code": None}}
    error = failure(through, answering(body, status))
    assert (error.failure.kind, error.failure.status) == ("status", status)
    assert str(error) == f"HTTP {status} (some_error)"


@EVERY_WAY
@pytest.mark.parametrize(
    "payload",
    [
        {"error": {"code": KEY}}, {"error": {"type": "private"}}, {"error": f"{KEY}{PROMPT}"}, [], "",
        {"error": {"code": "a b"}}, {"error": {"type": "x" * 100}}, {"type": ["x"]},
    ],
)  # fmt: skip
def test_an_error_code_that_echoes_the_request_or_is_not_a_code_is_left_out(
    through: Through, payload: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the key, not a word of the prompt, not prose."""
    monkeypatch.setenv("SOME_KEY", KEY)
    key = None if through is injected else "SOME_KEY"
    assert str(failure(through, answering(payload, 401), api_key_env=key)) == "HTTP 401"


@EVERY_WAY
def test_retry_after_is_understood_in_every_form(through: Through) -> None:
    """Seconds, milliseconds, a date, or in words; nonsense is None, the past is 0."""

    def asked(message: str = "", **headers: str) -> float | None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return failure(through, answering([{"error": {"message": message}}], 429, named)).failure.retry_after_s

    assert asked(Retry_After="7") == 7.0
    assert asked(retry_after_ms="1500") == asked(retry_after_ms="1500", Retry_After="7") == 1.5
    assert asked(retry_after_ms="soon", Retry_After="7") == 7.0
    assert asked(Retry_After="-3") == 0.0
    assert asked(Retry_After=email.utils.formatdate(time.time() - 60, usegmt=True)) == 0.0
    later = asked(Retry_After=email.utils.formatdate(time.time() + 600, usegmt=True))
    assert later is not None
    assert 500 < later <= 600
    fast = email.utils.formatdate(time.time() + 3600, usegmt=True)  # a service whose clock is an hour fast
    assert asked(Date=fast, Retry_After=fast) == 0.0
    for nonsense in ("soon", "nan", "inf", "", "Thu, 99 Foo 2026"):
        assert asked(Retry_After=nonsense) is None
    quota = "You exceeded your current quota. Please retry in 26.660853464s."  # Gemini, without a header
    assert asked(quota) == pytest.approx(26.66, abs=0.01)
    assert asked(quota, Retry_After="7") == 7.0
    assert asked("Rate limit reached. Please try again in 1m6.5s. Visit") == 66.5
    assert asked("Please try again in 2 stages, or retry in 3seconds") is None


@EVERY_WAY
def test_no_server_is_a_connection_failure(through: Through) -> None:
    """Refused connections are retryable faults."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        with pytest.raises(CallFailed) as caught:
            through(f"http://127.0.0.1:{sock.getsockname()[1]}/v1", complete)
    assert caught.value.failure.kind == "connection"
    assert caught.value.failure.retryable


@EVERY_WAY
def test_a_connection_dropped_before_the_reply_is_a_connection_failure(through: Through) -> None:
    """The server hangs up without a word."""

    async def hang_up(request: web.Request, _: Any) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    assert failure(through, hang_up).failure.kind == "connection"


def test_a_request_that_an_old_connection_did_not_take_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service closed it while it was idle. What was not sent was an unknown cost."""

    async def closed(*_: Any, **__: Any) -> None:
        raise aiohttp.ClientConnectionResetError("Cannot write to closing transport")

    monkeypatch.setattr(aiohttp.ClientSession, "request", closed)
    with pytest.raises(CallFailed) as caught:
        using("http://127.0.0.1:9/v1", complete)
    assert caught.value.free
    assert caught.value.failure.retryable


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"id\"",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n{}",
        b"SSH-2.0-OpenSSH_9\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nnope",
        b"HTTP/1.1 200 \xdb\xff\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\n" + b"X-A: b\r\n" * 100_000 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nX-A: " + b"a" * 10**6 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 9\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nX-A: \0\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 99999 OK\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000,
        b"HTTP/1.1 204 No Content\r\n\r\n",
    ],
)  # fmt: skip
def test_a_reply_cut_short_or_broken_in_its_http_is_a_protocol_failure(raw: bytes) -> None:
    """What was answered is not whole: it may have cost something, unlike a refused connection."""

    async def run() -> CallFailed:
        sessions = HttpSessions()
        async with speaking(raw) as url:
            client = EndpointClient(Endpoint("e", model="m", base_url=url), sessions)
            with pytest.raises(CallFailed) as caught:
                await client.complete(REQUEST)
            await sessions.aclose()
        return caught.value

    assert asyncio.run(run()).failure.kind in ("protocol", "connection")


@EVERY_WAY
@pytest.mark.parametrize("payload", [{}, [], None, {"choices": [{"message": 5}]}, {"choices": 7}])
def test_a_reply_that_is_not_a_chat_completion_is_a_protocol_failure(through: Through, payload: Any) -> None:
    """JSON of another shape."""
    assert failure(through, answering(payload)).failure.kind == "protocol"


@EVERY_WAY
@pytest.mark.parametrize("kind", ["application/json", "text/html"])
def test_a_reply_that_is_not_json_is_a_protocol_failure(through: Through, kind: str) -> None:
    """Whatever it calls itself."""

    async def handler(_: web.Request, __: Any) -> web.StreamResponse:
        return web.Response(text="<html>SECRET</html>", content_type=kind)

    error = failure(through, handler)
    assert error.failure.kind == "protocol"
    assert "SECRET" not in str(error)


@EVERY_WAY
def test_a_reply_that_is_packed_is_named(through: Through) -> None:
    async def handler(_: web.Request, __: Any) -> web.StreamResponse:
        return web.Response(body=gzip.compress(b"{}"), headers={"Content-Encoding": "gzip"})

    error = failure(through, handler)
    assert "compressed" in str(error)
    assert error.failure.hint.startswith("switch compression off")


@EVERY_WAY
@pytest.mark.parametrize("packed", [False, True])
def test_a_reply_without_end_is_refused_while_it_is_read(through: Through, packed: bool) -> None:
    """The bound holds for what is unpacked, not only for what is sent."""
    bomb = b" " * (2 * MAX_REPLY_BYTES)

    async def handler(_: web.Request, __: Any) -> web.StreamResponse:
        headers = {"Content-Encoding": "gzip"} if packed else {}
        return web.Response(body=gzip.compress(bomb) if packed else bomb, headers=headers)

    assert failure(through, handler).failure.kind == "protocol"


async def never(_: web.Request, __: Any) -> web.StreamResponse:
    await asyncio.sleep(60)
    return web.Response()


@EVERY_WAY
def test_a_slow_reply_times_out_and_hangs_up(through: Through) -> None:
    """The time limit covers the whole call, and the server sees the connection go."""

    async def only_once(request: web.Request, body: Any) -> web.StreamResponse:
        return await (ok if len(server.received) == 1 else never)(request, body)

    async def twice(client: EndpointClient) -> None:
        await client.complete(REQUEST)  # what is made once, the connection too, is there before the limit runs
        await client.complete(REQUEST, timeout_s=1.5)

    with serving(only_once) as server:
        with pytest.raises(CallFailed) as caught:
            through(server.url, twice)
        assert len(server.received) == 2
        assert server.cut.wait(30)
    assert caught.value.failure.kind == "timeout"
    assert not caught.value.failure.retryable


@EVERY_WAY
def test_a_reply_that_drips_times_out_too(through: Through) -> None:
    """Bytes now and then do not prolong the limit."""

    async def drip(request: web.Request, body: Any) -> web.StreamResponse:
        if len(server.received) == 1:
            return await ok(request, body)
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" ")
            await asyncio.sleep(0.01)

    async def twice(client: EndpointClient) -> None:
        await client.complete(REQUEST)  # what is made once is there before the limit runs
        await client.complete(REQUEST, timeout_s=1.5)

    with serving(drip) as server:
        with pytest.raises(CallFailed) as caught:
            through(server.url, twice)
        assert len(server.received) == 2
    assert caught.value.failure.kind == "timeout"


@EVERY_WAY
def test_cancelling_reaches_the_socket(through: Through) -> None:
    """The server sees its client go, and the task ends as cancelled, not as failed."""
    with serving(never) as server:

        async def cancel(client: EndpointClient) -> None:
            task = asyncio.create_task(client.complete(REQUEST))
            await asyncio.to_thread(server.arrived.wait)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await asyncio.to_thread(server.cut.wait, 30)

        through(server.url, cancel)


@EVERY_WAY
def test_a_stream_gives_its_pieces_and_then_the_whole(through: Through) -> None:
    """Text as it comes; the last item is the completion with the usage."""
    events = (chunk("Sat"), chunk("urn"), chunk(finish="stop"), {"choices": [], "usage": USAGE}, "[DONE]")
    with serving(streaming(*events)) as server:
        *pieces, whole = through(server.url, collect)
        assert server.received[0].body["stream"] is True
        assert server.received[0].body["stream_options"] == {"include_usage": True}
    assert "".join(pieces) == "Saturn"
    assert whole.choices[0].text == "Saturn"
    assert whole.usage == Usage(10, 1)


@EVERY_WAY
@pytest.mark.parametrize("end", [True, False])
def test_a_cut_stream_is_a_failure_that_keeps_the_usage_so_far(through: Through, end: bool) -> None:
    """Whether the connection breaks or the stream merely stops."""
    error = failure(through, streaming(chunk("Sat", usage=USAGE), end=end), collect)
    assert error.failure.kind == "protocol"
    assert error.usage == Usage(10, 1)


@EVERY_WAY
def test_a_stream_that_breaks_off_after_it_has_ended_is_whole(through: Through) -> None:
    """All was said and paid, and it was a failure."""
    with serving(streaming(chunk("Sat"), chunk("urn", finish="stop"), {"usage": USAGE}, end=False)) as server:
        *pieces, whole = through(server.url, collect)
    assert "".join(pieces) == whole.choices[0].text == "Saturn"
    assert whole.usage == Usage(10, 1)


@EVERY_WAY
def test_a_stream_that_stays_open_after_it_has_ended_is_whole(
    through: Through, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was waited for until the deadline, and was a failure then."""
    monkeypatch.setattr("focalroute.endpoints.client._USAGE_S", 0.2)

    async def open_ended(request: web.Request, _: Any) -> web.StreamResponse:
        await sse(request, chunk("Sat"), chunk("urn", finish="stop"), end=None)
        await asyncio.Event().wait()
        raise AssertionError

    with serving(open_ended) as server:
        *pieces, whole = through(server.url, collect)
    assert "".join(pieces) == whole.choices[0].text == "Saturn"
    assert whole.usage is None


@EVERY_WAY
def test_an_error_that_names_a_parameter_does_not_begin_a_stream_anew(through: Through) -> None:
    """The caller would read the first words twice."""
    refused = {"error": {"code": 400, "message": "temperature is not supported", "param": "temperature"}}
    with serving(streaming(chunk("Sat"), refused)) as server:
        with pytest.raises(CallFailed, match="takes no temperature"):
            through(server.url, collect)
        assert len(server.received) == 1


@EVERY_WAY
def test_an_error_within_a_stream_is_that_failure(through: Through) -> None:
    """A fault reported after the first pieces."""
    error = failure(through, streaming(chunk("Sat"), {"error": {"code": 502, "message": PROMPT}}), collect)
    assert (error.failure.kind, error.failure.status) == ("status", 502)


@EVERY_WAY
def test_what_fails_after_part_of_the_reply_has_come_is_not_free(through: Through) -> None:
    """By a status that would be a refusal before: the pieces are billed."""
    refused = {"error": {"code": 429, "message": "slow down"}}
    errors = [failure(through, streaming(*pieces, refused), collect) for pieces in ([], [chunk("Sat")])]
    broken = {"index": 0, "message": {"content": "Sat"}, "finish_reason": "error", **refused}
    errors.append(failure(through, answering(completion(choices=[broken]))))
    assert [(error.failure.status, error.free) for error in errors] == [(429, True), (429, False), (429, False)]


@EVERY_WAY
def test_a_stream_that_stalls_times_out_with_the_usage_so_far(through: Through) -> None:
    """The limit holds between pieces too."""

    async def stall(request: web.Request, body: Any) -> web.StreamResponse:
        if len(server.received) == 1:
            return await ok(request, body)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(f"data: {json.dumps(chunk('Sat', usage=USAGE))}\n\n".encode())
        await asyncio.sleep(60)
        return response

    async def after_another(client: EndpointClient) -> list[str | Completion]:
        await client.complete(REQUEST, timeout_s=60)  # what is made once is there before the limit runs
        return await collect(client)

    with serving(stall) as server:
        with pytest.raises(CallFailed) as caught:
            through(server.url, after_another, timeout_s=1.5)
        assert server.cut.wait(30)
    assert caught.value.failure.kind == "timeout"
    assert caught.value.usage == Usage(10, 1)


@EVERY_WAY
def test_closing_a_stream_early_hangs_up(through: Through) -> None:
    """A reader that has seen enough stops the generation."""

    async def endless(request: web.Request, _: Any) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        while True:
            await response.write(f"data: {json.dumps(chunk('x'))}\n\n".encode())
            await asyncio.sleep(0.01)

    with serving(endless) as server:

        async def first(client: EndpointClient) -> str | Completion:
            async with contextlib.aclosing(client.stream(REQUEST)) as pieces:
                return await anext(pieces)

        assert str(through(server.url, first)).startswith("x")  # a slow reader may find several chunks at once
        assert server.cut.wait(30)


def test_a_server_that_hangs_up_after_a_stream_does_not_break_the_next_call() -> None:
    """llama-server closes a stream's connection without announcing it, just when the next call would use it."""

    async def hang_up(request: web.Request, body: Any) -> web.StreamResponse:
        if "stream" not in body:
            return json_reply(completion())
        response = await sse(request, chunk("x", "stop"), "[DONE]")
        assert request.transport is not None
        request.transport.close()
        return response

    async def alternate(client: EndpointClient) -> list[Completion]:
        replies = []
        for _ in range(20):
            await collect(client)
            replies.append(await client.complete(REQUEST))
        return replies

    with serving(hang_up) as server:
        assert len(using(server.url, alternate)) == 20


def test_connections_are_kept_and_shared_between_endpoints() -> None:
    """One after another, calls to two endpoints of one host use one connection."""
    ports = set()

    async def handler(request: web.Request, _: Any) -> web.StreamResponse:
        assert request.transport is not None
        ports.add(request.transport.get_extra_info("peername")[1])
        return json_reply(completion())

    async def run(server: Server) -> None:
        sessions = HttpSessions()
        for name in ("one", "two"):
            client = EndpointClient(Endpoint(name, model="m", base_url=server.url), sessions)
            await client.complete(REQUEST)
        await sessions.aclose()
        await sessions.aclose()

    with serving(handler) as server:
        asyncio.run(run(server))
    assert len(ports) == 1


def test_a_streams_connection_is_not_used_again() -> None:
    """A server that closed it without saying so had failed the next call."""
    body = b"".join(b"data: %s\n\n" % json.dumps(one).encode() for one in (chunk("A", finish="stop"), {"usage": USAGE}))
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % (len(body) + 14)
    opened, closed = 0, asyncio.Event()

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(head + body + b"data: [DONE]\n\n")
        except asyncio.IncompleteReadError:
            writer.close()
            await writer.wait_closed()
            closed.set()

    async def run() -> None:
        async with await asyncio.start_server(speak, "127.0.0.1", 0) as server:
            sessions, url = HttpSessions(), f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
            client = EndpointClient(Endpoint("e", model="m", base_url=url), sessions)
            for _ in range(3):
                await collect(client)
                await asyncio.wait_for(closed.wait(), 10)
                closed.clear()
            await sessions.aclose()

    asyncio.run(run())
    assert opened == 3


def test_one_client_serves_several_event_loops_in_turn() -> None:
    """Each running loop gets its own connections; a loop closed long ago leaves nothing behind that breaks the next."""
    sessions = HttpSessions()
    with serving(ok) as server:
        client = EndpointClient(Endpoint("e", model="m", base_url=server.url), sessions)

        async def call() -> str:
            try:
                return (await client.complete(REQUEST)).choices[0].text
            finally:
                await sessions.aclose()

        assert [asyncio.run(call()) for _ in range(3)] == ["A", "A", "A"]


def test_256_calls_at_a_time_all_get_through() -> None:
    """No pool limit fails or starves them."""

    async def crowd(client: EndpointClient) -> list[Completion]:
        return await asyncio.gather(*(client.complete(REQUEST) for _ in range(256)))

    with serving(ok) as server:
        assert len(using(server.url, crowd)) == 256


def test_a_request_or_address_that_cannot_be_sent_is_a_config_error() -> None:
    """Params that are no JSON; no address; an address that is none."""
    bad = Request(REQUEST.messages, 8, params={"x": object()})
    with pytest.raises(ConfigError, match="JSON"):
        using("http://127.0.0.1:9/v1", lambda c: c.complete(bad))
    with pytest.raises(ConfigError, match="base_url"):
        asyncio.run(EndpointClient(Endpoint("e", model="m"), HttpSessions()).complete(REQUEST))
    with pytest.raises(ConfigError, match="base_url"):
        using("http://127.0.0.1:99999999/v1", complete)


def test_openai_s_own_service_gets_its_own_name_for_the_token_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its newer models refuse ``max_tokens``, which everybody else knows."""
    with serving(ok) as server:
        monkeypatch.setenv("http_proxy", server.url.removesuffix("/v1"))
        using("http://api.openai.com/v1", complete)
        using("http://openai.com.example.org/v1", complete)
        theirs, other = (received.body for received in server.received)
    assert (theirs.get("max_completion_tokens"), theirs.get("max_tokens")) == (8, None)
    assert (other.get("max_completion_tokens"), other.get("max_tokens")) == (None, 8)


@pytest.mark.parametrize(
    ("variable", "excepted"),
    [("http_proxy", "direct.invalid"), ("all_proxy", "direct.invalid:80,somewhere.invalid:8080")],
)
def test_the_environment_s_proxy_is_used(monkeypatch: pytest.MonkeyPatch, variable: str, excepted: str) -> None:
    """For calls and for listings, unless the host is excepted. all_proxy was for listings only."""
    with serving(ok) as server:
        monkeypatch.setenv(variable, server.url.removesuffix("/v1"))
        monkeypatch.setenv("no_proxy", excepted)
        somewhere, direct = (f"http://{name}.invalid/v1" for name in ("somewhere", "direct"))
        assert using(somewhere, complete).choices[0].text == "A"
        assert fetch_models(Endpoint("e", model="m", base_url=somewhere), 10)
        assert [one.headers["Host"] for one in server.received] == ["somewhere.invalid"] * 2
        with pytest.raises(CallFailed) as caught:
            using(direct, complete)
        with pytest.raises(NotListed):
            fetch_models(Endpoint("e", model="m", base_url=direct), 10)
    assert caught.value.failure.kind == "connection"


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_is_not_there_is_blamed_and_not_the_service(monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    """Nothing was sent, so nothing is billed."""
    monkeypatch.setenv(f"{scheme}_proxy", "http://127.0.0.1:9")
    with pytest.raises(CallFailed, match="could not get through the proxy") as caught:
        using(f"{scheme}://somewhere.invalid/v1", complete)
    assert caught.value.free
    assert "http_proxy" in caught.value.failure.hint


@pytest.mark.parametrize(("status", "hint"), [(407, "give the proxy's user"), (403, "check the proxy")])
def test_what_a_proxy_answers_to_connect_is_told(monkeypatch: pytest.MonkeyPatch, status: int, hint: str) -> None:
    async def run() -> None:
        async with speaking(f"HTTP/1.1 {status} No\r\nContent-Length: 0\r\n\r\n".encode()) as url:
            monkeypatch.setenv("https_proxy", url.removesuffix("/v1"))
            sessions = HttpSessions()
            client = EndpointClient(Endpoint("e", model="m", base_url="https://somewhere.invalid/v1"), sessions)
            with pytest.raises(CallFailed, match=rf"through the proxy \(HTTP {status}\)") as caught:
                await client.complete(REQUEST)
            await sessions.aclose()
            assert caught.value.failure.hint.startswith(hint)

    asyncio.run(run())


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("written", ["http://me:s%23cret@{}", "me:s%23cret@{}"])
def test_a_proxy_may_want_a_password_and_be_named_without_a_scheme(
    monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    with serving(ok) as server:
        monkeypatch.setenv("http_proxy", written.format(server.url.removeprefix("http://").removesuffix("/v1")))
        assert using("http://somewhere.invalid/v1", complete).choices[0].text == "A"
    said = server.received[0].headers["Proxy-Authorization"]
    assert base64.b64decode(said.removeprefix("Basic ")) == b"me:s#cret"


@pytest.mark.parametrize(
    "proxy", ["socks5://me:secret@proxy:1080", "http://me:sec#ret@proxy:1", "http://:3128", "http://"]
)
def test_a_proxy_that_cannot_be_used_is_not_bypassed(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    """It is an error, which does not quote it: there may be a password in it."""
    monkeypatch.setenv("http_proxy", proxy)
    monkeypatch.delenv("no_proxy", raising=False)
    url = "http://somewhere.invalid/v1"
    for call in (lambda: using(url, complete), lambda: fetch_models(Endpoint("e", model="m", base_url=url))):
        with pytest.raises(ConfigError, match=r"'e': http_proxy: is not an address .* an http_client") as said:
            call()
        assert "sec" not in str(said.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_no_proxy_leads_to_this_machine(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    """As in Go: in an office, where the environment names one, the demo and a model of one's own failed."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    with serving(ok) as server:
        url = server.url.replace("127.0.0.1", host)
        assert using(url, complete).choices[0].text == "A"
        assert fetch_models(Endpoint("e", model="m", base_url=url), 10)


def test_trusted_certificates_are_set_as_in_httpx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service whose certificate nobody vouches for is not spoken to, and a file without certificates is named."""
    certificate, key = self_signed(tmp_path)
    good = {"SSL_CERT_FILE": str(certificate)}

    async def answer(request: web.Request) -> web.StreamResponse:
        return await ok(request, None)

    async def run() -> list[Any]:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        url = f"https://127.0.0.1:{runner.addresses[0][1]}/v1"
        found: list[Any] = []
        for variables in ({}, {"SSL_CERT_FILE": str(tmp_path / "none.pem")}, {"SSL_CERT_FILE": str(key)}, good):
            for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
                monkeypatch.delenv(name, raising=False)
            for name, value in variables.items():
                monkeypatch.setenv(name, value)
            sessions = HttpSessions()
            client = EndpointClient(Endpoint("e", model="m", base_url=url), sessions)
            try:
                found.append((await client.complete(REQUEST)).choices[0].text)
            except (CallFailed, ConfigError) as error:
                found.append(error)
            await sessions.aclose()
        await runner.cleanup()
        return found

    unknown, missing, empty, trusted = asyncio.run(run())
    assert unknown.failure.kind == "connection"
    assert "Cert" in str(unknown)
    assert str(missing).startswith(f"SSL_CERT_FILE: {tmp_path / 'none.pem'}: cannot read certificates")
    assert str(empty).startswith(f"SSL_CERT_FILE: {key}: cannot read certificates")
    assert trusted == "A"
