"""A real HTTP server on a free port, in a thread of its own, that answers as each test tells it to."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from focalroute import Ensemble

__all__ = [
    "Received",
    "Server",
    "completion",
    "json_reply",
    "self_signed",
    "serving",
    "speaking",
    "sse",
    "until",
    "until_checked",
]

Handler = Callable[[web.Request, Any], Awaitable[web.StreamResponse]]


@dataclass
class Received:
    """One request as it arrived."""

    path: str
    headers: Mapping[str, str]
    body: Any


@dataclass
class Server:
    """The running server: its address and what it has received; ``cut`` is set once a client has hung up."""

    url: str
    received: list[Received] = field(default_factory=list)
    arrived: threading.Event = field(default_factory=threading.Event)
    cut: threading.Event = field(default_factory=threading.Event)


@contextlib.contextmanager
def serving(handler: Handler, tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    """Serve ``handler`` for every path."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        server = Server(f"{'https' if tls else 'http'}://127.0.0.1:{sock.getsockname()[1]}/v1")
        ready, loop = threading.Event(), asyncio.new_event_loop()
        stop = asyncio.Event()
        work = _serve(server, handler, sock, tls, ready, stop)
        thread = threading.Thread(target=lambda: loop.run_until_complete(work))
        thread.start()
        ready.wait()
        try:
            yield server
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join()
            loop.close()


@contextlib.asynccontextmanager
async def speaking(raw: bytes) -> AsyncIterator[str]:
    """Answer the first request of every connection with these bytes; yields the address."""

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(raw)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(speak, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


async def _serve(
    server: Server,
    handler: Handler,
    sock: socket.socket,
    tls: ssl.SSLContext | None,
    ready: threading.Event,
    stop: asyncio.Event,
) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        server.received.append(Received(request.path, dict(request.headers), json.loads(raw) if raw else None))
        server.arrived.set()
        try:
            return await handler(request, server.received[-1].body)
        except asyncio.CancelledError:
            server.cut.set()
            raise

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.SockSite(runner, sock, ssl_context=tls).start()
    ready.set()
    await stop.wait()
    await runner.cleanup()


def completion(text: str = "A", **fields: Any) -> dict[str, Any]:
    """A plain chat completion; ``fields`` replace or add top-level ones."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11}
    return {"id": "c-1", "object": "chat.completion", "model": "m-1", "choices": [choice], "usage": usage, **fields}


def json_reply(payload: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """``payload`` as a JSON response."""
    return web.json_response(payload, status=status, headers=headers)


async def sse(request: web.Request, *events: Any, end: bool | None = True) -> web.StreamResponse:
    """Send each event (a string as it is, anything else as JSON); ``end`` False: then cut the connection; None: not."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for event in events:
        data = event if isinstance(event, str) else json.dumps(event)
        await response.write(f"data: {data}\n\n".encode())
    if end is None:
        return response
    if not end and request.transport is not None:
        request.transport.abort()
        return response
    await response.write_eof()
    return response


def self_signed(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that nobody vouches for, and its key."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


def until(condition: Callable[[], bool]) -> None:
    """Wait for what happens in the background."""
    give_up = time.monotonic() + 60  # for a machine that is slow
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def until_checked(ensemble: Ensemble) -> None:
    """Wait for the checks of what endpoints can do, which run, and are billed, beside an ask."""
    pools = filter(None, (ensemble._async._pool, ensemble._async._judge._pool))
    members = [member for pool in pools for member in pool._members]
    until(lambda: not any(len(checks) for member in members for checks in member._checks.all()))
