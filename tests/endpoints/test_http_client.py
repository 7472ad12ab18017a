"""A user's own ``httpx.AsyncClient``, the settings of an endpoint's connection, and clients that are mocks."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import respx
from aiohttp import web
from pytest_httpx import HTTPXMock

from focalroute import AsyncEnsemble, Budget, ConfigError, Endpoint, Ensemble, Judge, PoolError
from focalroute.core.errors import CallFailed
from focalroute.core.pool import load_pool
from focalroute.endpoints.client import EndpointClient, HttpSessions
from focalroute.endpoints.wire import MAX_REPLY_BYTES, Completion, Request
from tests.loopback import Server, completion, json_reply, self_signed, serving

URL = "http://models.test/v1"
CHAT = f"{URL}/chat/completions"
KEY = "sk-very-secret-key"
REQUEST = Request(({"role": "user", "content": "Hello"},), 8)


async def ok(_: web.Request, __: Any) -> web.StreamResponse:
    return json_reply(completion())


def mocked(handler: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.MockTransport(handler))


def endpoint(name: str = "e", **settings: Any) -> Endpoint:
    return Endpoint(name, model="m", **{"base_url": URL, **settings})


def complete(one: Endpoint, request: Request = REQUEST) -> Completion:
    async def run() -> Completion:
        sessions = HttpSessions()
        try:
            return await EndpointClient(one, sessions).complete(request)
        finally:
            await sessions.aclose()

    return asyncio.run(run())


def failed(one: Endpoint) -> CallFailed:
    with pytest.raises(CallFailed) as caught:
        complete(one)
    return caught.value


def test_an_error_is_read_no_further_than_its_bound() -> None:
    sent = 0

    async def endless(request: web.Request, _: Any) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse(status=500)
        await response.prepare(request)
        while sent < 2**28:
            await response.write(b" " * 2**16)
            sent += 2**16
        return response

    with serving(endless) as server:
        error = failed(endpoint(base_url=server.url))
    assert (error.failure.kind, error.failure.status) == ("status", 500)
    assert sent < 2**24  # what fits into the buffers between


# -- clients that are mocks --------------------------------------------------------------------------------------------


def answering(_: httpx.Request) -> httpx.Response:
    return httpx.Response(200, json=completion("B"))


def test_an_ensemble_calls_through_a_mock_transport() -> None:
    """From code without ``await``, closed questions with their checks, judge and all."""
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return answering(request)

    pool = [endpoint("a"), endpoint("b")]
    judge = Judge(endpoint("judge", base_url="http://judge.test/v1"), share=1.0)
    with Ensemble(pool, policy="plurality", http_client=mocked(handler), judge=judge) as ensemble:
        assert ensemble.ask("Hello?", choices=["Mars", "Saturn"]).text == "Saturn"
        assert ensemble.ask("Hello?").text == "B"
    assert {str(request.url) for request in seen} == {CHAT, "http://judge.test/v1/chat/completions"}
    assert all(request.headers["accept-encoding"] == "identity" for request in seen)


def test_respx_answers_for_the_services(respx_mock: respx.MockRouter) -> None:
    route = respx_mock.post(CHAT).mock(return_value=httpx.Response(200, json=completion("42")))
    with Ensemble([endpoint()], http_client=httpx.AsyncClient()) as ensemble:
        assert ensemble.ask("What is 17 + 25?", answer="number").value == 42
    assert json.loads(route.calls[0].request.content)["model"] == "m"


def test_pytest_httpx_answers_for_the_services(httpx_mock: HTTPXMock) -> None:
    httpx_mock.add_response(503, url=CHAT, headers={"Retry-After": "0"})
    httpx_mock.add_response(url=CHAT, json=completion("42"))
    with Ensemble([endpoint()], http_client=httpx.AsyncClient()) as ensemble:
        assert ensemble.ask("What is 17 + 25?", answer="number").value == 42


def test_a_mock_streams() -> None:
    events = [{"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": "stop"}]} for text in ("4", "2")]
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
    with (
        Ensemble([endpoint()], http_client=mocked(lambda _: httpx.Response(200, text=body))) as ensemble,
        ensemble.stream("What is 17 + 25?") as stream,
    ):
        assert "".join(stream) == "42"


@pytest.mark.parametrize("azure", [False, True])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_ready_openai_client_may_have_any_transport(azure: bool, streamed: bool) -> None:
    """Its own retries, and redirects, are off for our calls."""
    seen: list[httpx.Request] = []
    cut = 'data: {"choices": [{"index": 0, "delta": {"content": "B"}, "finish_reason": null}]}\n\n'
    whole = cut.replace("null", '"stop"') + "data: [DONE]\n\n"
    replies = [
        httpx.Response(307, headers={"Location": "http://elsewhere.test/"}),
        httpx.Response(503),
        httpx.Response(200, text=cut) if streamed else httpx.Response(200, content=b"<html>"),
        httpx.Response(200, text=whole) if streamed else httpx.Response(200, json=completion("B")),
    ]

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return replies[len(seen) - 1]

    async def call(client: EndpointClient) -> str:
        if not streamed:
            return (await client.complete(REQUEST)).choices[0].text
        return "".join([piece async for piece in client.stream(REQUEST) if isinstance(piece, str)])

    async def run() -> tuple[list[CallFailed], str]:
        http: Any = mocked(handler)
        ready: Any = openai.AsyncOpenAI(api_key=KEY, base_url=URL, http_client=http)
        if azure:
            ready = openai.AsyncAzureOpenAI(
                api_key=KEY, azure_endpoint="http://azure.test", api_version="1", http_client=http
            )
        client = EndpointClient(Endpoint("e", model="m", client=ready, headers={"x-team": "search"}), HttpSessions())
        failures = []
        for _ in replies[1:]:
            with pytest.raises(CallFailed) as caught:
                await call(client)
            failures.append(caught.value)
        return failures, await call(client)

    (redirected, broken, odd), text = asyncio.run(run())
    assert (redirected.failure.status, broken.failure.status, odd.failure.kind, text) == (307, 503, "protocol", "B")
    where = "http://azure.test/openai/deployments/m/chat/completions?api-version=1" if azure else CHAT
    assert {(str(request.url), request.headers["x-team"]) for request in seen} == {(where, "search")}


# -- used as given -----------------------------------------------------------------------------------------------------


def test_hooks_auth_headers_and_proxies_of_a_client_are_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its hooks may read the reply; its redirects and its five seconds are not for our calls."""
    monkeypatch.setenv("SOME_KEY", KEY)
    read: list[bytes] = []

    async def hook(response: httpx.Response) -> None:
        read.append(await response.aread())

    async def run(server: Server) -> Completion:
        proxy = server.url.removesuffix("/v1")
        async with httpx.AsyncClient(
            proxy=proxy, headers={"x-mine": "1", "x-team": "theirs"}, event_hooks={"response": [hook]}
        ) as client:
            one = endpoint(http_client=client, headers={"x-team": "ours"}, api_key_env="SOME_KEY")
            return await EndpointClient(one, HttpSessions()).complete(REQUEST)

    with serving(ok) as server:
        assert asyncio.run(run(server)).choices[0].text == "A"
    (received,) = server.received
    assert (received.headers["Host"], received.headers["x-mine"]) == ("models.test", "1")
    assert (received.headers["x-team"], received.headers["Authorization"]) == ("ours", f"Bearer {KEY}")
    assert json.loads(read[0]) == completion()


@pytest.mark.parametrize(
    ("raised", "kind", "free"),
    [
        (httpx.ConnectError("x"), "connection", True), (httpx.PoolTimeout("x"), "connection", True),
        (httpx.ReadError("x"), "connection", False), (httpx.RemoteProtocolError("x"), "connection", False),
        (httpx.WriteError("x"), "connection", True),
        (httpx.ReadTimeout("x"), "timeout", False), (ZeroDivisionError(KEY), "protocol", False),
    ],
)  # fmt: skip
def test_whatever_a_client_raises_is_the_failure_of_a_call(raised: Exception, kind: str, free: bool) -> None:
    """What was not sent is free; what it says is not repeated, only its name is."""

    def handler(_: httpx.Request) -> httpx.Response:
        raise raised

    error = failed(endpoint(http_client=mocked(handler)))
    assert (error.failure.kind, error.free) == (kind, free)
    assert error.failure.hint.startswith("check the HTTP client that you gave") is (kind == "protocol")
    assert KEY not in str(error)
    assert error.__cause__ is error.__context__ is None


class Endless(httpx.AsyncByteStream):
    """Says nothing useful for ever; counts what was taken of it, and whether it was closed."""

    def __init__(self, pause_s: float) -> None:
        self.pause_s, self.taken, self.closed, self.begun = pause_s, 0, False, asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            await asyncio.sleep(self.pause_s)
            self.taken += 2**20
            self.begun.set()
            yield b" " * 2**20

    async def aclose(self) -> None:
        self.closed = True


@pytest.mark.parametrize(("pause_s", "kind"), [(0.0, "protocol"), (30.0, "timeout")])
@pytest.mark.parametrize("ready", [False, True])
def test_a_transports_reply_is_bounded_in_size_and_time(pause_s: float, kind: str, ready: bool) -> None:
    body = Endless(pause_s)
    http: Any = mocked(lambda _: httpx.Response(200, stream=body))
    one = endpoint(http_client=http, timeout_s=1.5)
    if ready:
        client = openai.AsyncOpenAI(api_key=KEY, base_url=URL, http_client=http)
        warm: Any = mocked(answering)
        complete(endpoint(base_url=None, client=openai.AsyncOpenAI(api_key=KEY, http_client=warm)))
        one = endpoint(base_url=None, client=client, timeout_s=1.5)
    if kind == "protocol":
        one = endpoint(http_client=http) if not ready else endpoint(base_url=None, client=one.client)
    assert failed(one).failure.kind == kind
    assert body.taken <= MAX_REPLY_BYTES + 2**20
    assert body.closed


def test_a_cancelled_ask_lets_go_of_a_transport_and_a_budget_holds(tmp_path: Path) -> None:
    body = Endless(0.01)
    pool = [endpoint(input_usd_per_1m=1, output_usd_per_1m=1)]

    async def run() -> None:
        client = mocked(lambda _: httpx.Response(200, stream=body))
        async with AsyncEnsemble(
            pool, http_client=client, budget=Budget(usd_total=1), store=tmp_path / "s"
        ) as ensemble:
            task = asyncio.create_task(ensemble.ask("Hello?", deadline_s=30))
            await body.begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert body.closed
            assert 0 < (ensemble.stats().cost or 0) < 1
            body.closed = False
            with pytest.raises(PoolError):
                await ensemble.ask("Hello?", deadline_s=2.0)
            assert body.closed

    asyncio.run(run())


def test_an_endpoint_that_says_how_it_is_reached_goes_its_own_way() -> None:
    """Its ``http_client``, ``proxy`` or ``client`` wins over the ensemble's."""
    seen: list[str] = []

    def by(name: str) -> httpx.AsyncClient:
        def handler(request: httpx.Request) -> httpx.Response:
            seen.append(f"{json.loads(request.content)['model']} {name}")
            return answering(request)

        return mocked(handler)

    with serving(ok) as server:
        pool = [
            Endpoint("a", model="a", base_url=URL),
            Endpoint("b", model="b", base_url=URL, http_client=by("own")),
            Endpoint("c", model="c", base_url=URL, proxy=server.url.removesuffix("/v1")),
        ]
        with Ensemble(pool, policy="plurality", http_client=by("ensemble")) as ensemble:
            ensemble.ask("Hello?", answer="short")
    assert sorted(seen) == ["a ensemble", "b own"]
    assert [received.body["model"] for received in server.received] == ["c"]


@pytest.mark.parametrize("client", [httpx.Client(), object(), "http://x"], ids=["sync", "object", "text"])
def test_something_else_than_a_client_is_refused_by_name(client: Any) -> None:
    with pytest.raises(ConfigError, match=r"http_client: give an httpx\.AsyncClient"):
        Ensemble([endpoint()], http_client=client)
    with pytest.raises(ConfigError, match=r"http_client: give an httpx\.AsyncClient"):
        endpoint(http_client=client)


# -- the settings of a connection --------------------------------------------------------------------------------------


def test_headers_and_extra_body_go_with_every_call(tmp_path: Path) -> None:
    """Of a pool file, too; those of one ask are added, and win."""
    with serving(ok) as server:
        file = tmp_path / "pool.toml"
        file.write_text(f"""
            [[endpoint]]
            name = "e"
            model = "m"
            base_url = "{server.url}"
            headers = {{ "x-team" = "search", "User-Agent" = "mine" }}
            params = {{ seed = 1 }}
            extra_body = {{ top_k = 5, min_p = 0.1 }}
            """)
        with Ensemble.from_toml(file) as ensemble:
            extra = {"extra_headers": {"X-Team": "sales", "x-trace": "7"}, "extra_body": {"top_k": 6}}
            ensemble.ask("Hello?", params=extra)
            ensemble.ask("Hello?")
    first, second = server.received
    assert {name: first.body[name] for name in first.body if name not in ("messages", "model")} == {
        "seed": 1, "top_k": 6, "min_p": 0.1,
    }  # fmt: skip
    assert (first.headers["X-Team"], first.headers["x-trace"]) == ("sales", "7")
    assert (second.headers["x-team"], second.headers["User-Agent"], second.body["top_k"]) == ("search", "mine", 5)


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"timeout": 5}, "params: timeout: give timeout_s to the Endpoint, or deadline_s to ask"),
        ({"extra_query": {"a": "b"}}, "params: extra_query: is not sent"),
        ({"extra_body": {"messages": []}}, "params: messages: is set by focalroute"),
        ({"extra_body": [1]}, "params: extra_body: give a mapping"),
        ({5: 1}, "params: 5: name each parameter by text, not by int"),
        ({"extra_body": {None: 1}}, "params: None: name each parameter by text, not by NoneType"),
        ({"extra_body": {"n": 0}}, "params: n: give a whole number"),
        ({"extra_headers": {"Authorization": KEY}}, "params: Authorization: would go to every service"),
        ({"extra_headers": {"Content-Length": "1"}}, "params: Content-Length: is set by focalroute"),
        ({"extra_headers": {"x": "a\r\nb: c"}}, "params: x: give a text of plain ASCII"),
        ({"extra_headers": {"a b": "c"}}, "params: a name has letters"),
        ({"extra_headers": ["x"]}, "params: give at most 100 names"),
    ],
)
def test_arguments_of_openai_s_client_that_cannot_be_sent_are_refused_by_name(params: Any, said: str) -> None:
    def never(_: httpx.Request) -> httpx.Response:
        raise AssertionError

    with Ensemble([endpoint()], http_client=mocked(never)) as ensemble, pytest.raises(ConfigError) as caught:
        ensemble.ask("Hello?", params=params)
    assert str(caught.value).startswith(said)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"headers": {"x-key": "ü"}}, "headers: x-key: give a text"),
        ({"headers": {"Host": "x"}}, "headers: Host: is set by focalroute"),
        (
            {"headers": {"authorization": KEY}, "api_key_env": "SOME_KEY"},
            "headers: Authorization: api_key_env or api_key gives it",
        ),
        ({"proxy": f"socks5://me:{KEY}@proxy"}, "proxy: give an http:// or https:// address"),
        ({"cert": ["a", "b", "c"]}, "cert: give a PEM file"),
        ({"cert": "a", "verify": ssl.create_default_context()}, "cert, verify: load the certificate"),
        ({"verify": "none.pem", "http_client": httpx.AsyncClient()}, "verify, http_client: give it to the http_client"),
        ({"params": {"timeout": 1}}, "params: timeout: give timeout_s"),
        ({"params": {"extra_headers": {}}}, "params: extra_headers: is named headers here"),
        ({"extra_body": {"model": "x"}}, "params: model: is set by focalroute"),
        ({"base_url": None, "client": openai.AsyncOpenAI(api_key=KEY), "proxy": "http://p"}, "proxy, client: a ready"),
    ],
)
def test_a_connection_that_cannot_be_is_refused_by_name(settings: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        endpoint(**settings)
    assert f"Endpoint: {said}" in str(caught.value)
    assert KEY not in str(caught.value)


def test_fields_that_may_hold_a_key_are_not_in_a_repr() -> None:
    one = endpoint(headers={"x-key": KEY}, proxy=f"http://me:{KEY}@proxy:3128")
    assert KEY not in f"{one!r} {one}"


def test_a_header_that_comes_back_in_an_error_is_not_told() -> None:
    async def echo(request: web.Request, _: Any) -> web.StreamResponse:
        return json_reply({"error": {"code": request.headers["x-key"]}}, 400)

    with serving(echo) as server:
        assert KEY not in str(failed(endpoint(base_url=server.url, headers={"x-key": KEY})))


def test_a_proxy_of_an_endpoint_wins_over_the_environment_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with serving(ok) as server:
        proxy = server.url.replace("://", "://me:s%23cret@").removesuffix("/v1")
        assert complete(endpoint(proxy=proxy)).choices[0].text == "A"
    said = server.received[0].headers["Proxy-Authorization"]
    assert base64.b64decode(said.removeprefix("Basic ")) == b"me:s#cret"


@contextmanager
def tls_server(folder: Path) -> Iterator[tuple[str, str, str]]:
    """A service that wants a client's certificate; its address, and the files of the one it knows."""
    certificate, key = self_signed(folder)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(certificate))
    context.load_cert_chain(certificate, key)
    context.verify_mode = ssl.CERT_REQUIRED
    with serving(ok, context) as server:
        yield server.url, str(certificate), str(key)


def test_a_service_without_tls_is_told_from_one_that_is_down() -> None:
    with serving(ok) as server:
        found = failed(endpoint(base_url=server.url.replace("http:", "https:"))).failure
    assert "is it http instead of https" in found.hint


def test_a_service_that_does_not_take_up_the_connection_was_waited_for_in_vain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It listens, and is silent where TLS begins."""
    monkeypatch.setattr("focalroute.endpoints.http._CONNECT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        error = failed(endpoint(base_url=f"https://127.0.0.1:{silent.getsockname()[1]}/v1"))
    assert error.failure.message == "could not reach the service (TimeoutError)"
    assert error.free


def test_trusted_and_own_certificates_are_settings_of_an_endpoint(tmp_path: Path) -> None:
    """From a pool file, too; files that cannot be used are said before anything is asked."""
    with tls_server(tmp_path) as (url, certificate, key):
        untrusted = failed(endpoint(base_url=url, cert=(certificate, key))).failure
        assert "self-signed certificate)" in untrusted.message
        assert untrusted.hint.startswith("set verify, or SSL_CERT_FILE")
        named = failed(endpoint(base_url=url.replace("127.0.0.1", "localhost"), verify=certificate)).failure
        assert named.hint == "call the service in base_url by a name that is in its certificate"
        uncertified = failed(endpoint(base_url=url, verify=False)).failure
        assert uncertified.message.startswith("the service ended the connection without a reply (")
        assert "a client certificate (cert)" in uncertified.hint
        for verify in (certificate, Path(certificate), False):
            one = endpoint(base_url=url, verify=verify, cert=(certificate, key))
            assert complete(one).choices[0].text == "A"
        file = tmp_path / "pool.toml"
        file.write_text(f"""
            [[endpoint]]
            name = "e"
            model = "m"
            base_url = "{url}"
            verify = "{certificate}"
            cert = ["{certificate}", "{key}"]
            """)
        (loaded,) = load_pool(file).endpoints
        assert complete(loaded).choices[0].text == "A"
        of_verify = [({"verify": file}, "verify: cannot read") for file in (key, "a\0b")]
        of_cert = [({"cert": file}, "cert: cannot read") for file in (certificate, "a\0b")]
        for settings, said in of_verify + of_cert:
            with pytest.raises(ConfigError, match=f"endpoints: e: {said}"):
                Ensemble([endpoint(base_url=url, **settings)])


@pytest.mark.slow
def test_many_calls_at_a_time_are_made_where_few_files_may_be_open() -> None:
    """As on a Mac, which allows 256: with no file left every call failed, and nothing more could be imported."""
    code = """
import resource
from focalroute import Ensemble
from focalroute.sim import SimulatedModel, SimulatedPool
with SimulatedPool([SimulatedModel(name, latency_s=0.2) for name in "abcd"]) as pool:
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
    with Ensemble(pool.endpoints, policy="plurality") as ensemble:
        answers = ensemble.ask_many([f"What is {i} + 25?" for i in range(80)], answer=int, concurrency=80)
print(len(answers))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("80\n", "")
