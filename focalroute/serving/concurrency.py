"""Runs many asks at once.

`ask_all` does the work of `ask_many`. `StartGate` limits how many asks begin in one event-loop iteration, and
`WriteBatcher` commits together what they write in one.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence, Sized
from concurrent.futures import Future
from functools import partial
from typing import Any

from focalroute.core.errors import ConfigError, FocalrouteError
from focalroute.core.progress import progress_bar
from focalroute.core.receipts import Answer, Answers
from focalroute.core.spelling import did_you_mean
from focalroute.serving.query import INSTEAD, Prompt
from focalroute.store.base import Outcomes, Row, Store

#: A question, or the arguments of an ask with it.
Item = Prompt | Mapping[str, Any]

_Waiters = list[asyncio.Future[None]]

#: Asks admitted in one event-loop iteration. More would wait longer for each other; with fewer, every step of an ask
#: would run with cold CPU caches.
MOST_ADMITTED = 8
#: Workers at a time. Starting a million of them would take a minute and a gigabyte.
_MOST_WORKERS = 10_000


class StartGate:
    """Admits at most 8 asks per event-loop iteration, first in, first out.

    If hundreds began in one iteration, their calls would be sent only when all of them were prepared. An ask is running
    while it is within the gate's ``with``.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.running = 0  # asks
        self._admitted = 0  # in this iteration
        self._waiting: deque[asyncio.Future[None]] = deque()

    def __enter__(self) -> None:
        self.running += 1

    def __exit__(self, *_: object) -> None:
        self.running -= 1

    def enter(self) -> asyncio.Future[None] | None:
        """Return a future to wait for before beginning; None: begin at once."""
        if not self._admitted:
            self._loop.call_soon(self._next_iteration)
        self._admitted += 1
        if self._admitted <= MOST_ADMITTED:
            return None
        waiter = self._loop.create_future()
        self._waiting.append(waiter)
        return waiter

    def _next_iteration(self) -> None:
        """Admit waiting asks in a new iteration."""
        self._admitted = 0
        while self._waiting and self._admitted < MOST_ADMITTED:
            waiter = self._waiting.popleft()
            if not waiter.done():  # it was not cancelled
                waiter.set_result(None)
                self._admitted += 1
        if self._admitted:
            self._admitted = MOST_ADMITTED  # asks that come in this iteration must not overtake them
            self._loop.call_soon(self._next_iteration)


class WriteBatcher:
    """Batches the writes that an ensemble's asks make in one event loop.

    All writes of an iteration are committed together at its end. If the last iteration with writes had only
    one, the first write of the next one is committed at once: on the loop's thread if the store can do that, else on
    the store's.
    """

    def __init__(self, store: Store) -> None:
        self._loop = asyncio.get_running_loop()
        self._store = store
        self._pending: list[tuple[Sequence[Row], asyncio.Future[None]]] = []
        self._written = 0  # in this iteration of the loop
        self._alone = True  # whether the last iteration with writes had a single one

    def write(self, rows: Sequence[Row]) -> asyncio.Future[None]:
        """Commit rows, even if the caller stops waiting; the future fails as that of `Store.write` does."""
        waiter = self._loop.create_future()
        self._pending.append((rows, waiter))
        self._written += 1
        if self._written == 1:
            self._loop.call_soon(self._end_iteration)
            if self._alone:
                self._commit()
        return waiter

    def _end_iteration(self) -> None:
        self._alone, self._written = self._written == 1, 0
        if self._pending:
            self._commit()

    def _commit(self) -> None:
        pending, self._pending = self._pending, []
        waiters = [waiter for _, waiter in pending]
        written = self._store.write_calls([rows for rows, _ in pending])
        if written.done():
            _settle(waiters, written)
        else:
            written.add_done_callback(partial(self._on_commit, waiters))

    def _on_commit(self, waiters: _Waiters, written: Future[Outcomes]) -> None:
        """Settle the waiters in their loop, unless it was closed meanwhile; called on the store's thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_settle, waiters, written)


def _settle(waiters: _Waiters, written: Future[Outcomes]) -> None:
    """Settle the futures of writes that were committed together."""
    failure = written.exception()
    outcomes = written.result() if failure is None else [failure] * len(waiters)
    for waiter, error in zip(waiters, outcomes, strict=True):
        if waiter.done():  # its caller was cancelled
            continue
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)


async def ask_all(
    ask: Callable[..., Awaitable[Answer]],
    queries: Iterable[Item],
    common: Mapping[str, Any],
    *,
    concurrency: int,
    progress: bool,
    return_exceptions: bool,
) -> Answers[Answer | BaseException]:
    """Run ``ask`` over the queries with ``concurrency`` workers that share one iterator.

    Raises:
        ConfigError: ``concurrency`` is out of bounds, or ``queries`` is a single query.
        Exception: the first that an ask raised, after the others were cancelled, unless ``return_exceptions``.
    """
    check_concurrency(concurrency)
    if isinstance(queries, str | Mapping):
        raise ConfigError("queries: give a list of queries, not a single one")
    if not isinstance(queries, Iterable):
        raise ConfigError(f"queries: give a list, or another iterable, got {type(queries).__name__}")
    if len(getattr(queries, "shape", (0,))) != 1:  # iterating over a table yields its columns' names
        raise ConfigError('queries: is a table; give one of its columns, or its rows, such as df.to_dict("records")')
    waiting = enumerate(queries)
    answers: dict[int, Answer | BaseException] = {}

    known = set(inspect.signature(ask).parameters)

    async def work(advance: Callable[[int], object]) -> None:
        for number, item in waiting:
            try:
                answers[number] = await ask(**{**common, **_arguments(number, item, known)})
            except Exception as error:
                _add_index(error, number)
                if not return_exceptions:
                    raise
                answers[number] = error
            advance(1)

    total = len(queries) if isinstance(queries, Sized) else None
    with progress_bar("asking", total, shown=progress) as advance:
        await run_together(work(advance) for _ in range(concurrency))
    return Answers(answers[number] for number in sorted(answers))


def check_concurrency(concurrency: object) -> None:
    """Raise ConfigError unless this is a number of workers that `run_together` can start."""
    if type(concurrency) is not int or not 1 <= concurrency <= _MOST_WORKERS:
        raise ConfigError(f"concurrency: give a whole number from 1 to {_MOST_WORKERS}, got {concurrency!r}")


def _add_index(error: Exception, number: int) -> None:
    error.add_note(f"in queries[{number}]")
    if isinstance(error, FocalrouteError):
        error.index = number


async def run_together(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines at the same time; the first exception cancels the others, and none is left behind."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _arguments(number: int, item: Item, known: set[str]) -> Mapping[str, Any]:
    """Return the arguments of ``ask`` for an item of ``ask_many``."""
    if not isinstance(item, Mapping):
        return {"query": item}
    unknown = sorted(set(item) - known)
    if unknown or not item.keys() & {"query", "messages"}:
        what = "no key 'query'; give"
        if unknown:
            what = f"unknown key {unknown[0]!r}; {did_you_mean(unknown[0], known, INSTEAD)} Give"
        raise ConfigError(f"queries[{number}]: {what} arguments of ask, or a list of messages for a conversation")
    return item
