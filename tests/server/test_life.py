"""A server from start to end: listening, clients that hang up, and what is finished or refused at shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import signal
import socket
import threading
import urllib.request
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest
from aiohttp import web

from focalroute import Endpoint
from focalroute.sim import SimulatedPool
from focalroute.sim.process import pool_toml
from focalroute.store import open_store
from tests.cli.calling import focalroute
from tests.loopback import completion, json_reply, serving, sse, until
from tests.redis_server import free_port
from tests.server.running import ask, command, post, served, started


class Held:
    """A service whose replies wait until `go_on` is set."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    async def handle(self, request: web.Request, body: Any) -> web.StreamResponse:
        for _ in range(10_000):
            if self.go_on.is_set():
                break
            await asyncio.sleep(0.005)
        if body.get("stream"):
            return await sse(request, {"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}]})
        return json_reply(completion("held back"))


@pytest.fixture
def held() -> Held:
    return Held()


def endpoint(url: str) -> Endpoint:
    return Endpoint("slow", model="slow", base_url=url, input_usd_per_1m=1, output_usd_per_1m=1)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up_has_its_calls_cancelled(held: Held, tmp_path: Path, stream: bool) -> None:
    """The ask is cancelled down to the endpoint's socket, and what it may have cost is on the ledger."""
    with serving(held.handle) as service:
        settings: dict[str, Any] = {"store": tmp_path / "s.db", "probe_share": 0.0}
        with served([endpoint(service.url)], **settings) as url:
            connection = http.client.HTTPConnection(urlsplit(url).netloc)
            body = json.dumps(ask(stream=stream, max_tokens=10))
            connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
            service.arrived.wait()
            connection.close()
            service.cut.wait()
            until(lambda: asks_under_way(url) == 0)
            held.go_on.set()
            assert post(f"{url}/v1/chat/completions", ask())[0] == 200
            spent = measured(url, "focalroute_cost_usd_total")
    store = open_store(tmp_path / "s.db")
    (row,) = store.ledger("all")
    store.close()
    assert (row.calls, row.asks) == (2, 2)
    assert spent == pytest.approx(float(row.cost))
    assert spent > 11 / 1_000_000


def asks_under_way(url: str) -> float:
    return measured(url, "focalroute_asks_under_way")


def measured(url: str, name: str) -> float:
    """A figure of /metrics, the first that begins with this."""
    with urllib.request.urlopen(f"{url}/metrics") as response:
        text = response.read().decode()
    return float(next(line for line in text.splitlines() if line.startswith(name)).split()[-1])


def test_an_answer_that_is_given_again_is_not_paid_again_by_the_metrics(pool: SimulatedPool) -> None:
    with served(pool.endpoints, cache_ttl_s=60, policy="plurality") as url:
        (_, first), *_, (_, again) = [post(f"{url}/v1/chat/completions", ask()) for _ in range(3)]
        assert (again["id"], again["usage"]["cost"]) == (first["id"], 0)
        assert first["usage"]["cost"] > 0
        assert measured(url, "focalroute_cost_usd_total") == pytest.approx(first["usage"]["cost"])


def test_the_call_that_writes_the_answer_is_in_the_metrics() -> None:
    async def says(_: web.Request, __: Any) -> web.StreamResponse:
        return json_reply(completion("A long story."))

    with serving(says) as service, served([endpoint(service.url)], synthesiser="slow", probe_share=0.0) as url:
        status, reply = post(f"{url}/v1/chat/completions", ask(focalroute={"combine": "synthesise"}))
        assert status == 200
        assert reply["usage"]["prompt_tokens"] == 20
        assert measured(url, 'focalroute_calls_total{endpoint="slow",outcome="ok"}') == 2
        assert measured(url, 'focalroute_tokens_total{endpoint="slow",type="input"}') == 20


def test_an_ask_that_failed_and_was_paid_is_in_the_metrics() -> None:
    async def says(_: web.Request, __: Any) -> web.StreamResponse:
        return json_reply(completion(""))

    with serving(says) as service, served([endpoint(service.url)]) as url:
        assert post(f"{url}/v1/chat/completions", ask())[0] == 502
        assert measured(url, "focalroute_cost_usd_total") == pytest.approx(11 / 1_000_000)
        assert measured(url, 'focalroute_tokens_total{endpoint="slow",type="input"}') == 10
        assert measured(url, 'focalroute_calls_total{endpoint="slow",outcome="unusable"}') == 1


def test_a_client_that_hangs_up_in_a_stream_has_its_calls_cancelled(tmp_path: Path) -> None:
    """And the piece that was said is paid."""

    async def drip(request: web.Request, _: Any) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        event = json.dumps({"choices": [{"index": 0, "delta": {"content": "piece "}}]})
        while True:
            await response.write(f"data: {event}\n\n".encode())
            await asyncio.sleep(0.01)

    with serving(drip) as service, served([endpoint(service.url)], store=tmp_path / "s.db") as url:
        connection = http.client.HTTPConnection(urlsplit(url).netloc)
        body = json.dumps(ask(stream=True, max_tokens=10))
        connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.status == 200
        while b"piece" not in response.readline():
            pass
        response.close()
        connection.close()
        service.cut.wait()
        until(lambda: asks_under_way(url) == 0)
    store = open_store(tmp_path / "s.db")
    (row,) = store.ledger("all")
    store.close()
    assert (row.calls, row.estimated) == (1, 1)
    assert row.cost > Decimal(0)


@contextlib.contextmanager
def inherited(number: signal.Signals, how: signal.Handlers) -> Iterator[None]:
    """Processes that are started meanwhile handle this signal in this way, however the tests were started."""
    before = signal.signal(number, how)
    try:
        yield
    finally:
        signal.signal(number, before)


# SIGHUP comes when its terminal is closed.
@pytest.mark.parametrize("ends", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)])
def test_at_the_end_asks_under_way_finish_and_new_ones_are_refused(
    held: Held, tmp_path: Path, ends: signal.Signals
) -> None:
    """A signal to the real command while 8 are under way."""
    answers: list[tuple[int, Any]] = []
    with serving(held.handle) as service:
        pool = tmp_path / "pool.toml"
        pool.write_text(pool_toml([endpoint(service.url)]))
        with (
            inherited(ends, signal.SIG_DFL),
            started(pool, "--store", str(tmp_path / "s.db")) as (process, url),
        ):
            asking = [
                threading.Thread(target=lambda: answers.append(post(f"{url}/v1/chat/completions", ask())))
                for _ in range(8)
            ]
            for thread in asking:
                thread.start()
            until(lambda: len(service.received) == 8)
            process.send_signal(ends)
            until(lambda: refused(url))
            assert process.poll() is None
            held.go_on.set()
            for thread in asking:
                thread.join()
            assert process.wait() == 0
    assert [(status, got["choices"][0]["message"]["content"]) for status, got in answers] == [(200, "held back")] * 8
    store = open_store(tmp_path / "s.db")
    assert sum(1 for _ in store.recent(100)) == 8
    assert store.verify() == ()
    store.close()


@pytest.mark.slow
def test_a_server_under_nohup_outlives_its_terminal(pool_file: Path) -> None:
    with inherited(signal.SIGHUP, signal.SIG_IGN), started(pool_file) as (process, url):
        process.send_signal(signal.SIGHUP)
        assert post(f"{url}/v1/chat/completions", ask())[0] == 200
        assert process.poll() is None


def refused(url: str) -> bool:
    parts = urlsplit(url)
    try:
        socket.create_connection((parts.hostname, parts.port)).close()
    except ConnectionRefusedError:
        return True
    return False


def test_asks_that_do_not_finish_in_time_are_given_up(held: Held, tmp_path: Path) -> None:
    answers: list[tuple[int, Any]] = []

    def asks(url: str) -> None:
        try:
            answers.append(post(f"{url}/v1/chat/completions", ask()))
        except (OSError, http.client.HTTPException):
            answers.append((0, None))

    with serving(held.handle) as service:
        pool = tmp_path / "pool.toml"
        pool.write_text(pool_toml([endpoint(service.url)]))
        with started(pool, "--shutdown-s", "1", "--store", str(tmp_path / "s.db")) as (process, url):
            thread = threading.Thread(target=asks, args=(url,))
            thread.start()
            until(lambda: len(service.received) == 1)
            process.send_signal(signal.SIGINT)
            process.wait()
            thread.join()
            service.cut.wait()
    assert [status for status, _ in answers] in ([0], [500])
    store = open_store(tmp_path / "s.db")
    assert [row.calls for row in store.ledger("all")] == [1]  # what was asked is on the ledger
    store.close()


@pytest.mark.slow
def test_a_second_interrupt_does_not_wait(held: Held, tmp_path: Path) -> None:
    with serving(held.handle) as service:
        pool = tmp_path / "pool.toml"
        pool.write_text(pool_toml([endpoint(service.url)]))
        with started(pool, "--shutdown-s", "300") as (process, url):
            caller = http.client.HTTPConnection(urlsplit(url).netloc)
            caller.request("POST", "/v1/chat/completions", json.dumps(ask()), {"Content-Type": "application/json"})
            until(lambda: len(service.received) == 1)
            process.send_signal(signal.SIGINT)
            until(lambda: refused(url))
            process.send_signal(signal.SIGINT)
            assert "Traceback" not in process.communicate(timeout=60)[1]
            assert process.returncode == 0
            caller.close()


@pytest.mark.slow
def test_a_server_starts_though_its_log_cannot_be_written(pool_file: Path) -> None:
    port = free_port()
    with command("serve", "--pool", str(pool_file), "--port", str(port)) as process:
        assert process.stderr is not None
        process.stderr.close()
        until(lambda: process.poll() is not None or not refused(f"http://127.0.0.1:{port}"))
        assert post(f"http://127.0.0.1:{port}/v1/chat/completions", ask())[0] == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0


@pytest.mark.slow
def test_an_interrupt_as_soon_as_it_listens_ends_it_in_good_order(pool_file: Path) -> None:
    with started(pool_file) as (process, _):
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60)[1] == ""
        assert process.returncode == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--host", "0.0.0.0"], "host: 0.0.0.0 can be reached by others"),
        (["--host", "::"], "host: :: can be reached by others"),
        (["--host", "192.0.2.1", "--keys", "KEYS"], "host, port: cannot listen on 192.0.2.1"),  # nobody has that
        (["--host", "a..b", "--keys", "KEYS"], "host, port: cannot listen on a..b"),
        (["--port", "BUSY"], "host, port: cannot listen on 127.0.0.1"),
        (["--keys", "missing.toml"], "missing.toml: cannot be read"),
    ],
)
def test_a_server_that_cannot_start_says_why_and_does_not_listen(
    pool_file: Path, tmp_path: Path, options: list[str], said: str
) -> None:
    (tmp_path / "keys.toml").write_text(f"[[key]]\nname = 'a'\nsha256 = '{'0' * 64}'\n")
    with socket.create_server(("127.0.0.1", 0)) as busy:
        put = {"KEYS": str(tmp_path / "keys.toml"), "BUSY": str(busy.getsockname()[1])}
        done = focalroute("serve", "--pool", str(pool_file), *(put.get(o, o) for o in options), cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.mark.parametrize("stream", [False, True])  # before the first piece a stream has a status, too
@pytest.mark.parametrize(
    ("status", "told"),
    [
        (400, (400, "no_endpoint_takes_this")),
        (401, (502, "pool_failed")),
        (404, (502, "pool_failed")),  # the pool names a model that the service does not have
        (500, (502, "pool_failed")),
        (429, (503, "pool_busy")),
    ],
)
def test_the_status_says_whether_caller_or_pool_is_at_fault(status: int, told: tuple[int, str], stream: bool) -> None:
    async def fails(_: web.Request, __: Any) -> web.StreamResponse:
        return json_reply({"error": {"message": "no"}}, status)

    with serving(fails) as service, served([endpoint(service.url)], attempts=1) as url:
        got = post(f"{url}/v1/chat/completions", ask(stream=stream))
    assert (got[0], got[1]["error"]["code"]) == told


def test_a_deadline_is_504(held: Held) -> None:
    with serving(held.handle) as service, served([endpoint(service.url)]) as url:
        status, got = post(f"{url}/v1/chat/completions", ask(focalroute={"deadline_s": 0.2}))
    assert (status, got["error"]["code"]) == (504, "deadline_exceeded")


def test_the_openai_library_is_told_not_to_ask_again_where_that_does_not_help(held: Held) -> None:
    with (
        serving(held.handle) as service,
        served([endpoint(service.url)], deadline_s=3) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=2) as client,
        pytest.raises(openai.APIStatusError) as caught,
    ):
        client.chat.completions.create(model="focalroute", messages=[{"role": "user", "content": "?"}])
    assert caught.value.response.headers["x-should-retry"] == "false"
    assert len([one for one in service.received if one.body["messages"][-1]["content"] == "?"]) == 1


@pytest.mark.parametrize("status", [401, 404])
def test_a_failure_that_lasts_is_not_asked_again(status: int) -> None:
    """Nor one that was paid."""

    async def fails(_: web.Request, __: Any) -> web.StreamResponse:
        return json_reply({"error": {"message": "no"}}, status)

    with (
        serving(fails) as service,
        served([endpoint(service.url)]) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=2) as client,
    ):
        with pytest.raises(openai.InternalServerError):
            client.chat.completions.create(model="focalroute", messages=[{"role": "user", "content": "?"}])
        assert len(service.received) == 1


@pytest.mark.parametrize(
    ("message", "finish_reason", "said"),
    [
        ({"content": ""}, "length", "a larger max_tokens"),
        ({"content": None, "refusal": "I cannot help with that."}, "stop", "the model refused"),
        ({"content": ""}, "content_filter", "withheld by the service's content filter"),
    ],
)
def test_a_request_that_no_model_would_answer_is_the_caller_s_to_change(
    message: dict[str, Any], finish_reason: str, said: str
) -> None:
    async def says(_: web.Request, __: Any) -> web.StreamResponse:
        return json_reply(completion(choices=[{"index": 0, "message": message, "finish_reason": finish_reason}]))

    with serving(says) as service, served([endpoint(service.url)]) as url:
        status, got = post(f"{url}/v1/chat/completions", ask(max_tokens=1))
    assert (status, got["error"]["code"]) == (400, "no_endpoint_takes_this")
    assert said in got["error"]["message"]


def test_a_rate_limit_of_the_pool_is_told_with_its_end() -> None:
    async def says(_: web.Request, __: Any) -> web.StreamResponse:
        return json_reply(completion("42"))

    with serving(says) as service:
        scarce = Endpoint("scarce", model="m", base_url=service.url, requests_per_minute=1)
        with (
            served([scarce], deadline_s=15, policy="plurality") as url,
            openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client,
        ):
            question: Any = {"model": "focalroute", "messages": [{"role": "user", "content": "?"}]}
            client.chat.completions.create(**question)
            with pytest.raises(openai.InternalServerError, match="rate limit") as caught:
                client.chat.completions.create(**question)
    assert caught.value.status_code == 503
    assert 20 < int(caught.value.response.headers["retry-after"]) <= 60


def test_a_stream_that_breaks_off_says_so(tmp_path: Path) -> None:
    async def breaks(request: web.Request, _: Any) -> web.StreamResponse:
        return await sse(request, {"choices": [{"index": 0, "delta": {"content": "Half"}}]}, end=False)

    with (
        serving(breaks) as service,
        served([endpoint(service.url)]) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client,
    ):
        chunks = client.chat.completions.create(
            model="focalroute", messages=[{"role": "user", "content": "?"}], stream=True
        )
        assert next(chunks).choices[0].delta.role == "assistant"
        assert next(chunks).choices[0].delta.content == "Half"
        with pytest.raises(openai.APIError, match="broke off"):
            next(chunks)
