"""Compares the times to a stream's first and last token with those of the bare openai client.

``python -m tests.benchmarks.streaming`` prints a Markdown table. Both sides run alternately in one process against one
server in another; a ratio is the median over the pairs, with its quartiles.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import openai

from focalroute import AsyncEnsemble
from tests.benchmarks.harness import MESSAGES, PROMPT, ensemble, quartiles
from tests.benchmarks.server import floor_server

Times = tuple[float, float]  # seconds to the first piece, and to the end


async def timed(pieces: AsyncIterator[str]) -> Times:
    """Return the times of a stream."""
    started = time.perf_counter()
    first = 0.0
    async for piece in pieces:
        if piece and not first:
            first = time.perf_counter() - started
    return first, time.perf_counter() - started


async def bare(client: openai.AsyncOpenAI) -> AsyncIterator[str]:
    """Yield the pieces of the bare client's stream."""
    messages: Any = MESSAGES
    stream = await client.chat.completions.create(
        model="floor", messages=messages, stream=True, stream_options={"include_usage": True}
    )
    async for chunk in stream:
        if chunk.choices:
            yield chunk.choices[0].delta.content or ""


async def ours(pool: AsyncEnsemble) -> AsyncIterator[str]:
    """Yield the pieces of an ensemble's stream; it ends when the answer is in the store."""
    async with pool.stream(PROMPT) as stream:
        async for piece in stream:
            yield piece


async def paired(pairs: int) -> list[tuple[Times, Times]]:
    """Time focalroute and the bare client in alternating order."""
    taken = []
    with tempfile.TemporaryDirectory() as folder, floor_server() as url:
        async with (
            openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client,
            ensemble(url, 1, Path(folder)) as pool,
        ):
            sides: tuple[Callable[[], AsyncIterator[str]], ...] = (lambda: ours(pool), lambda: bare(client))
            for number in range(pairs + 30):
                order = (0, 1) if number % 2 else (1, 0)
                times = {side: await timed(sides[side]()) for side in order}
                if number >= 30:
                    taken.append((times[0], times[1]))
    return taken


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=400)
    taken = asyncio.run(paired(parser.parse_args().pairs))
    libraries = ", ".join(f"{name} {version(name)}" for name in ("openai", "httpx", "aiohttp"))
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}, {libraries}")
    print(f"\n| stream of 1 endpoint, {len(taken)} pairs | focalroute | bare openai client | ratio |")
    print("|---|---|---|---|")
    for what, at in (("to the first piece, ms", 0), ("to the end, stored, ms", 1)):
        mine, other = [pair[0][at] for pair in taken], [pair[1][at] for pair in taken]
        low, middle, high = statistics.quantiles([a / b for a, b in zip(mine, other, strict=True)], n=4)
        print(f"| {what} | {quartiles(mine)} | {quartiles(other)} | {middle:.2f} ({low:.2f} - {high:.2f}) |")


if __name__ == "__main__":
    main()
