"""Connections that send nothing, half a request or too little of it are closed, and so are those beyond the maximum."""

from __future__ import annotations

import resource
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from urllib.parse import urlsplit

import pytest

from focalroute.server.connections import BoundedProtocol, server_config
from focalroute.sim import SimulatedPool
from tests.loopback import until
from tests.server.running import get, served

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
METRICS = HEALTH.replace(b"healthz", b"metrics")
UNREAD_BODY = b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"


class Impatient(BoundedProtocol):
    head_s = 0.5
    idle_s = 3.0
    flush_s = 0.5
    max_connections = 20


@pytest.fixture(scope="module")
def url(pool: SimulatedPool) -> Iterator[str]:
    with served(pool.endpoints, protocol=Impatient) as address:
        yield address


def connected(url: str) -> socket.socket:
    parts = urlsplit(url)
    return socket.create_connection((parts.hostname, parts.port), timeout=10)


def received(connection: socket.socket, end: bytes) -> bytes:
    """What comes up to these bytes, or to the end of the connection."""
    data = b""
    while end not in data and (part := connection.recv(4096)):
        data += part
    return data


def answered(connection: socket.socket, request: bytes, end: bytes = b'"ok"}') -> bool:
    """Whether it is, before the server takes it for one that does not end."""
    try:
        connection.sendall(request)
        return end in received(connection, end)
    except ConnectionError:
        return False


def closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(10) == b""
    except ConnectionError:
        return True


def refused(connection: socket.socket, data: bytes) -> bool:
    """Whether the server closes a connection that goes on sending, within half a minute."""
    began = time.monotonic()
    while time.monotonic() - began < 30:
        try:
            connection.send(data)
        except TimeoutError:
            continue
        except ConnectionError:
            return True
    return False


def dripped(connection: socket.socket) -> bool:
    """Whether the server closes a connection that gets a byte every now and then, within half a minute."""
    began = time.monotonic()
    connection.settimeout(0.02)
    while time.monotonic() - began < 30:
        try:
            connection.send(b"a")
            if not connection.recv(4096):
                return True
        except TimeoutError:
            continue
        except ConnectionError:
            return True
    return False


@pytest.mark.parametrize("before", [b"", HEALTH, UNREAD_BODY])
def test_a_head_that_does_not_end_is_cut_off(url: str, before: bytes) -> None:
    """The first on its connection, the second, and after a response that did not wait for the body."""

    def cut_off() -> bool:
        began = time.monotonic()
        with connected(url) as connection:
            if before and not answered(connection, before, b"\r\n\r\n"):
                return False
            assert dripped(connection)
        assert time.monotonic() - began > 0.9 * Impatient.head_s  # it had its time
        return True

    assert in_time(cut_off)


def test_a_request_behind_one_of_ambiguous_length_is_not_answered(url: str) -> None:
    """A proxy that goes by Content-Length takes it for part of the body of the first."""
    body = b"0\r\n\r\n" + METRICS
    lengths = b"Transfer-Encoding: chunked\r\nContent-Length: %d\r\n\r\n" % len(body)
    with connected(url) as connection:
        connection.sendall(HEALTH.removesuffix(b"\r\n") + lengths + body)
        answer = received(connection, b"focalroute_requests")
    assert answer.count(b"HTTP/1.1 200 OK") == 1
    assert answer.endswith(b'"ok"}')


def test_a_client_that_reads_nothing_is_cut_off(url: str) -> None:
    """Requests one after the other, until the server can write no more of its responses to them."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((urlsplit(url).hostname, urlsplit(url).port))
        connection.settimeout(0.2)
        assert refused(connection, METRICS * 100)
    assert get(f"{url}/healthz")[0] == 200


def in_time(attempt: Callable[[], bool]) -> bool:
    """Whether one of ten attempts succeeds: on a busy machine any of them may be late itself."""
    return any(attempt() for _ in range(10))


def test_a_client_that_asks_again_in_time_keeps_the_connection(url: str) -> None:
    def keeps() -> bool:
        """Four heads that take longer together than one may."""
        with connected(url) as connection:
            for _ in range(4):
                try:
                    connection.sendall(HEALTH[:20])
                except ConnectionError:
                    return False
                time.sleep(0.2)
                if not answered(connection, HEALTH[20:]):
                    return False
        return True

    assert in_time(keeps)


def test_a_connection_is_kept_for_the_next_request_and_then_closed(url: str) -> None:
    """For longer than a head may take, and than the 5 s after which httpx gives up its own end."""
    assert BoundedProtocol.idle_s > 60  # proxies

    def kept() -> bool:
        with connected(url) as connection:
            for _ in range(2):
                if not answered(connection, HEALTH):
                    return False
                time.sleep(1.0)
            assert closed(connection)
        return True

    assert in_time(kept)


def test_where_half_of_the_connections_are_taken_idle_ones_are_not_kept(url: str) -> None:
    def closed_early() -> bool:
        with ExitStack() as stack:
            for _ in range(Impatient.max_connections // 2):
                stack.enter_context(connected(url))
            connection = stack.enter_context(connected(url))
            if not answered(connection, HEALTH):
                return False
            began = time.monotonic()
            assert closed(connection)
            return time.monotonic() - began < Impatient.idle_s / 2

    assert in_time(closed_early)


def test_connections_beyond_the_maximum_are_closed_and_service_comes_back(url: str) -> None:
    def closed_first() -> bool:
        """One beyond the maximum, before any of those within it."""
        with ExitStack() as stack:
            held = [stack.enter_context(connected(url)) for _ in range(Impatient.max_connections)]
            for connection in held:
                with suppress(ConnectionError):  # it is closed already
                    connection.sendall(HEALTH[:20])
            assert closed(stack.enter_context(connected(url)))
            all_open = not select.select(held, [], [], 0)[0]
            assert all(closed(connection) for connection in held)
        assert get(f"{url}/healthz")[0] == 200
        return all_open

    assert in_time(closed_first)


def test_fewer_connections_are_taken_where_few_files_may_be_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def protocol(files: int) -> tuple[int, int]:
        monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
        config = server_config(lambda *_: None, 1)  # type: ignore[arg-type]
        assert isinstance(config.http, type)
        assert issubclass(config.http, BoundedProtocol)
        return config.http.max_connections, config.backlog

    assert protocol(20_000) == (1000, 2048)
    assert protocol(4096) == (1000, 512)
    assert protocol(256) == (64, 32)
    assert protocol(resource.RLIM_INFINITY) == (1000, 2048)


def test_a_client_that_would_rather_speak_http_2_is_answered_without_a_line_in_the_log(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As Java's does on each new connection; uvicorn told the operator to install WebSockets."""
    upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n"
    with connected(url) as connection:
        connection.sendall(HEALTH[:-2] + upgrade)
        assert received(connection, b'"ok"}').startswith(b"HTTP/1.1 200 OK")
    assert caplog.records == []


@pytest.mark.parametrize("patient", [False, True])
def test_bytes_that_are_not_http_leave_one_line_in_the_log(
    url: str, caplog: pytest.LogCaptureFixture, patient: bool
) -> None:
    """Not a traceback of 60, from somebody without a key: the answer to it could not be sent any more.

    They come at once, or after the response to what came before them.
    """
    head = b"POST /v1/feedback HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5;"
    with connected(url) as connection, suppress(ConnectionError):
        connection.sendall(head)
        if patient:
            received(connection, b"}")
        connection.sendall(b"a" * 1_000_000)
        received(connection, b"end of the connection")
    until(lambda: bool(caplog.records))
    assert get(f"{url}/healthz")[0] == 200
    assert [record.exc_info for record in caplog.records] == [None]


def test_a_connection_that_comes_at_the_last_moment_does_not_hold_up_the_end(
    pool: SimulatedPool, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not there yet when uvicorn closes the others, which then waited for it as long as for an ask."""

    class Late(BoundedProtocol):
        there = False

        def shutdown(self) -> None:
            if self.there:
                super().shutdown()
            self.there = True

    with served(pool.endpoints, protocol=Late) as url:
        connection = connected(url)
        assert answered(connection, HEALTH)
    connection.close()
    assert caplog.records == []
