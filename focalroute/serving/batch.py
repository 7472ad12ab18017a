"""Many asks at once: bounded, in order, read lazily, with a progress bar if wanted."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sized
from typing import Any

from focalroute.core.errors import ConfigError
from focalroute.core.progress import progress_bar
from focalroute.core.receipts import Answer
from focalroute.serving.query import Prompt

Item = Prompt | Mapping[str, Any]


async def ask_all(
    ask: Callable[..., Awaitable[Answer]],
    queries: Iterable[Item],
    common: Mapping[str, Any],
    *,
    concurrency: int,
    progress: bool,
    return_exceptions: bool,
) -> list[Answer | BaseException]:
    """Run ``ask`` over the queries with ``concurrency`` workers that share one iterator.

    Raises:
        ConfigError: ``concurrency`` is below 1, or ``queries`` is a single query.
        Exception: the first that an ask raised, after the others were cancelled, unless ``return_exceptions``.
    """
    if not isinstance(concurrency, int) or concurrency < 1:
        raise ConfigError(f"concurrency: must be a whole number of at least 1, got {concurrency!r}")
    if isinstance(queries, str | Mapping) or not isinstance(queries, Iterable):
        raise ConfigError("queries: give a list of queries, not a single one")
    waiting = enumerate(queries)
    answers: dict[int, Answer | BaseException] = {}

    known = set(inspect.signature(ask).parameters)

    async def work(advance: Callable[[int], object]) -> None:
        for number, item in waiting:
            try:
                answers[number] = await ask(**{**common, **_arguments(number, item, known)})
            except Exception as error:
                if not return_exceptions:
                    raise
                answers[number] = error
            advance(1)

    total = len(queries) if isinstance(queries, Sized) else None
    with progress_bar("asking", total, shown=progress) as advance:
        await together(work(advance) for _ in range(concurrency))
    return [answers[number] for number in sorted(answers)]


async def together(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run them at the same time; the first exception cancels the others, and none is left behind."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _arguments(number: int, item: Item, known: set[str]) -> Mapping[str, Any]:
    if not isinstance(item, Mapping):
        return {"query": item}
    unknown = sorted(set(item) - known)
    if unknown or "query" not in item:
        what = f"unknown key {unknown[0]!r}" if unknown else "no key 'query'"
        raise ConfigError(f"queries[{number}]: {what}; give arguments of ask, or a list of messages for a conversation")
    return item
