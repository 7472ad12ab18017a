"""Measures how long hostile bodies block the event loop of a server.

``python -m tests.server.heartbeat`` prints the figure of each.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from urllib.parse import urlsplit

import uvicorn

from focalroute import AsyncEnsemble, Endpoint
from focalroute.cli.server import _listening
from focalroute.server import create_app
from focalroute.server.app import MAX_BODY_BYTES
from focalroute.server.connections import server_config
from focalroute.serving.openai_api.requests import MOST_VALUES
from focalroute.sim import SimulatedModel, SimulatedPool
from tests.server.running import post

__all__ = ["ASKED", "HOSTILE", "longest_hold"]

_ROOM = MAX_BODY_BYTES - 1000
_VALUES = MOST_VALUES - 100
_BEAT_S = 0.005


def _list(item: bytes, commas: int = 1) -> bytes:
    """As many as fit; each brings so many commas and brackets."""
    return b"[" + b",".join([item] * min(_VALUES // commas, _ROOM // (len(item) + 1))) + b"]"


def _keys(length: int) -> bytes:
    width = min(length, _ROOM // _VALUES - 5)
    return b"{" + b",".join(b'"%0*d":0' % (width, number) for number in range(_VALUES)) + b"}"


def _chat(metadata: bytes) -> bytes:
    return b'{"model": "absent", "messages": [{"role": "user", "content": "q"}], "metadata": {"x": ' + metadata + b"}}"


def _messages(message: bytes, commas: int) -> bytes:
    count = min(9_999, _VALUES // commas)
    return b'{"model": "absent", "messages": [' + b",".join([message] * count) + b"]}"


#: Bodies just within every bound, by what they are full of.
HOSTILE: Mapping[str, Callable[[], bytes]] = {
    "long floats": lambda: _chat(_list(b"1." + b"7" * 150)),
    "floats of small exponents": lambda: _chat(_list(b"1.2345678901234567e-300")),
    "long ints": lambda: _chat(_list(b"7" * 160)),
    "longest ints": lambda: _chat(_list(b"7" * 400)),
    "long keys": lambda: _chat(_keys(160)),
    "short keys": lambda: _chat(_keys(6)),
    "unknown fields": lambda: _keys(6),
    "one text": lambda: _chat(b'"' + b"a" * _ROOM + b'"'),
    "small texts": lambda: _chat(_list(b'"abc"')),
    "escapes": lambda: _chat(b'"' + b"\\u1234" * (_ROOM // 6) + b'"'),
    "texts of escapes": lambda: _chat(_list(b'"' + b"\\n\\u1234" * 19 + b'"')),
    "objects": lambda: _chat(_list(b'{"a":1}', 2)),
    "lists": lambda: _chat(_list(b"[]", 2)),
    "deep lists": lambda: _chat(_list(b"[" * 90 + b"]" * 90, 91)),
    "messages": lambda: _messages(b'{"role":"user","content":[{"type":"text","text":"a"}]}', 6),
    "empty messages": lambda: _messages(b"{}", 2),
    "choices": lambda: b'{"model": "absent", "messages": [], "focalroute": {"choices": ' + _list(b'"a"') + b"}}",
}  # fmt: skip


def _asked(content: bytes, **fields: bytes) -> bytes:
    more = b"".join(b', "%s": %s' % (name.encode(), value) for name, value in fields.items())
    head = b'{"model": "focalroute", "focalroute": {"choices": ["a", "b"]}, "messages": [{"role": "user", "content": '
    return head + content + b"}]" + more + b"}"


#: Bodies just within every bound that are taken, and asked.
ASKED: Mapping[str, Callable[[], bytes]] = {
    "asked: text parts": lambda: _asked(_list(b'{"type":"text","text":"a"}', 6)),
    "asked: a long parameter": lambda: _asked(b'"q"', logit_bias=_keys(6)),
    "asked: one text": lambda: _asked(b'"' + b"word " * (_ROOM // 5) + b'"'),
}


def _post_in_chunks(url: str, body: bytes) -> tuple[int, bytes]:
    """Status and head of a POST whose body comes in chunks of one byte each, all sent at once."""
    parts = urlsplit(url)
    head = f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    with socket.create_connection((parts.hostname, parts.port)) as connection:
        connection.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + chunks + b"0\r\n\r\n")
        said = connection.recv(4096)
    return int(said.split()[1]), said


def longest_hold(body: bytes, endpoints: Sequence[Endpoint], *, chunked: bool = False) -> float:
    """The longest that the loop of a server was held while it was sent this body, in seconds.

    The body is sent whole, or in chunks of one byte. Time in which this process did not work does not count: others had
    the processor then.
    """

    async def attempt(send: Callable[[], Awaitable[object]]) -> float:
        sending, longest = asyncio.ensure_future(send()), 0.0
        while not sending.done():
            began, worked = time.perf_counter(), time.process_time()
            await asyncio.sleep(_BEAT_S)
            held = time.perf_counter() - began - _BEAT_S
            longest = max(longest, min(held, time.process_time() - worked))
        assert sending.result() in (200, 400, 404), sending.result()
        return longest

    async def run() -> float:
        with _listening("127.0.0.1", 0) as sock:
            ensemble = AsyncEnsemble(endpoints)
            server = uvicorn.Server(server_config(create_app(ensemble), 5))
            serving = asyncio.create_task(server.serve(sockets=[sock]))
            url = f"http://127.0.0.1:{sock.getsockname()[1]}/v1/chat/completions"

            async def send() -> int:
                return (await asyncio.to_thread(_post_in_chunks if chunked else post, url, body))[0]

            held = await attempt(send)
            server.should_exit = True
            await serving
            await ensemble.aclose()
            return held

    return asyncio.run(run())


if __name__ == "__main__":
    with SimulatedPool([SimulatedModel("e")]) as pool:
        for name, hostile in {**HOSTILE, **ASKED}.items():
            content = hostile()
            held = min(longest_hold(content, pool.endpoints) for _ in range(3))
            print(f"{name:26} {len(content) / 2**20:5.1f} MiB  {held * 1000:6.1f} ms")
