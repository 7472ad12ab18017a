"""Times other ways to call a model, each in its own process and environment, so that they can take turns.

``python peers.py NAME URL`` runs in the environment of the peer and needs nothing else; focalroute is one of the peers.
It reads lines ``CALLS CONCURRENCY`` and answers each with a JSON line: the seconds of every call, calls per second, and
CPU seconds per call.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

PROMPT = ("A train leaves at nine and drives for three hours at eighty kilometres an hour. " * 3)[:200]
MESSAGES = [{"role": "user", "content": PROMPT}]
KEY = "none"

Call = Callable[[], Awaitable[object]]


@asynccontextmanager
async def focalroute(url: str, size: int = 1) -> AsyncIterator[Call]:
    """Ask an ensemble that asks all of its endpoints, with a store on disk and its policies running."""
    from tests.benchmarks.harness import ensemble

    with tempfile.TemporaryDirectory() as folder:
        async with ensemble(url, size, Path(folder)) as pool:
            yield lambda: pool.ask(PROMPT)


@asynccontextmanager
async def openai(url: str) -> AsyncIterator[Call]:
    """Call with the bare openai client."""
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0) as client:
        yield lambda: client.chat.completions.create(model="floor", messages=MESSAGES)  # type: ignore[arg-type]


@asynccontextmanager
async def openai3(url: str) -> AsyncIterator[Call]:
    """Make three concurrent calls with the bare openai client."""
    async with openai(url) as call:
        yield lambda: asyncio.gather(call(), call(), call())


@asynccontextmanager
async def httpx(url: str) -> AsyncIterator[Call]:
    """Send a bare POST."""
    from httpx import AsyncClient

    body = json.dumps({"model": "floor", "messages": MESSAGES})
    async with AsyncClient(timeout=60) as client:

        async def post() -> object:
            response = await client.post(
                url + "/chat/completions", content=body, headers={"Content-Type": "application/json"}
            )
            return response.json()

        yield post


@asynccontextmanager
async def aiohttp(url: str) -> AsyncIterator[Call]:
    """Send a bare POST, the floor of any client."""
    from aiohttp import ClientSession, TCPConnector

    body = json.dumps({"model": "floor", "messages": MESSAGES}).encode()
    async with ClientSession(connector=TCPConnector(limit=0)) as session:

        async def post() -> object:
            async with session.post(
                url + "/chat/completions", data=body, headers={"Content-Type": "application/json"}
            ) as response:
                return json.loads(await response.read())

        yield post


@asynccontextmanager
async def litellm(url: str) -> AsyncIterator[Call]:
    """Call with LiteLLM's Router over three deployments."""
    os.environ.update(LITELLM_LOCAL_MODEL_COST_MAP="True", LITELLM_LOG="ERROR")
    from litellm import Router  # type: ignore[import-not-found]

    deployment = {"model": "openai/floor", "api_base": url, "api_key": KEY}
    router = Router([{"model_name": "floor", "litellm_params": dict(deployment)} for _ in range(3)], num_retries=0)
    yield lambda: router.acompletion(model="floor", messages=MESSAGES)


@asynccontextmanager
async def routellm(url: str) -> AsyncIterator[Call]:
    """Call with RouteLLM's controller and its random router, which needs no model."""
    os.environ.update(LITELLM_LOCAL_MODEL_COST_MAP="True", LITELLM_LOG="ERROR", OPENAI_API_KEY=KEY)
    from routellm.controller import Controller  # type: ignore[import-not-found]

    controller = Controller(["random"], "openai/floor", "openai/floor", api_base=url, api_key=KEY)
    yield lambda: controller.acompletion(model="router-random-0.5", messages=MESSAGES)


PEERS: dict[str, Callable[[str], contextlib.AbstractAsyncContextManager[Call]]] = {
    "focalroute": focalroute,
    "focalroute3": partial(focalroute, size=3),
    "openai": openai,
    "openai3": openai3,
    "httpx": httpx,
    "aiohttp": aiohttp,
    "litellm": litellm,
    "routellm": routellm,
}


async def burst(call: Call, calls: int, concurrency: int) -> dict[str, Any]:
    """Make this number of calls with this concurrency."""
    taken: list[float] = []
    left = iter(range(calls))

    async def work() -> None:
        for _ in left:
            started = time.perf_counter()
            await call()
            taken.append(time.perf_counter() - started)

    cpu, started = time.process_time(), time.perf_counter()
    await asyncio.gather(*(work() for _ in range(concurrency)))
    rate, cpu_s = calls / (time.perf_counter() - started), (time.process_time() - cpu) / calls
    return {"rate": rate, "seconds": taken, "cpu_s": cpu_s}


async def serve(name: str, url: str) -> None:
    """Read lines from standard input and answer them."""
    async with PEERS[name](url) as call:
        print(json.dumps("ready"), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            calls, concurrency = map(int, line.split())
            print(json.dumps(await burst(call, calls, concurrency)), flush=True)


class Peer:
    """A running peer."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def said(self) -> Any:
        """Return its next JSON line, skipping other output; raise RuntimeError if it ended."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):
                return json.loads(line)
        raise RuntimeError("the peer ended")

    def run(self, calls: int, concurrency: int) -> dict[str, Any]:
        """Let it make calls, see `burst`."""
        assert self._process.stdin is not None
        print(calls, concurrency, file=self._process.stdin, flush=True)
        found: dict[str, Any] = self.said()
        return found


@contextmanager
def peer(python: Path, name: str, url: str) -> Iterator[Peer]:
    """Start a peer and wait until it is ready; raise RuntimeError if it does not start."""
    command = [str(python), str(Path(__file__).resolve()), name, url]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, env=environment, **pipes) as process:  # type: ignore[call-overload]
        try:
            found = Peer(process)
            found.said()
            yield found
        finally:
            process.stdin.close()
            process.wait(20)


if __name__ == "__main__":
    sys.path.pop(0)  # this folder, whose names are no packages
    asyncio.run(serve(*sys.argv[1:]))
