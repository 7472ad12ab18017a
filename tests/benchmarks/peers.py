"""Other ways to call a model, each in a process of its own that makes a number of calls and reports their time.

``python peers.py NAME URL`` in the environment of the peer: reads lines ``CALLS CONCURRENCY`` and answers each with a
JSON line: the seconds of every call, calls a second, CPU seconds a call. So a benchmark can let peers of different
environments take turns. Needs nothing but the peer; focalroute is one of them.
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
    """An ensemble that asks all of its endpoints, with a store on disk and its policies running."""
    from tests.benchmarks.harness import ensemble

    with tempfile.TemporaryDirectory() as folder:
        async with ensemble(url, size, Path(folder)) as pool:
            yield lambda: pool.ask(PROMPT)


@asynccontextmanager
async def openai(url: str) -> AsyncIterator[Call]:
    """The bare client."""
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0) as client:
        yield lambda: client.chat.completions.create(model="floor", messages=MESSAGES)  # type: ignore[arg-type]


@asynccontextmanager
async def openai3(url: str) -> AsyncIterator[Call]:
    """Three calls of the bare client at once."""
    async with openai(url) as call:
        yield lambda: asyncio.gather(call(), call(), call())


@asynccontextmanager
async def httpx(url: str) -> AsyncIterator[Call]:
    """A bare POST."""
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
    """A bare POST: the wire's floor."""
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
    """Its Router over three deployments."""
    os.environ.update(LITELLM_LOCAL_MODEL_COST_MAP="True", LITELLM_LOG="ERROR")
    from litellm import Router  # type: ignore[import-not-found]

    deployment = {"model": "openai/floor", "api_base": url, "api_key": KEY}
    router = Router([{"model_name": "floor", "litellm_params": dict(deployment)} for _ in range(3)], num_retries=0)
    yield lambda: router.acompletion(model="floor", messages=MESSAGES)


@asynccontextmanager
async def routellm(url: str) -> AsyncIterator[Call]:
    """Its controller with the cheapest router that runs on this machine without a model: chance."""
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
    """So many calls, so many at a time."""
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
    """Do as standard input says."""
    async with PEERS[name](url) as call:
        print(json.dumps("ready"), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            calls, concurrency = map(int, line.split())
            print(json.dumps(await burst(call, calls, concurrency)), flush=True)


class Peer:
    """A peer in its process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def said(self) -> Any:
        """Its next line; RuntimeError if it ended. What is no JSON is its own chatter."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):
                return json.loads(line)
        raise RuntimeError("the peer ended")

    def run(self, calls: int, concurrency: int) -> dict[str, Any]:
        """So many calls, so many at a time; see `burst`."""
        assert self._process.stdin is not None
        print(calls, concurrency, file=self._process.stdin, flush=True)
        found: dict[str, Any] = self.said()
        return found


@contextmanager
def peer(python: Path, name: str, url: str) -> Iterator[Peer]:
    """A peer that is ready; RuntimeError if it cannot be."""
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
