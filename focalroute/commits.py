"""Rows on their way from an event loop to the store's thread and back, in company.

Waking another thread costs more than storing a row. So all that a loop writes in one of its turns goes to the store at
once, and is committed together; and the loop is woken once for all that was committed meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial

from focalroute.store.base import Row, Store

__all__ = ["Commits"]


class Commits:
    """What the asks of an ensemble write, in any number of event loops."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lanes: dict[asyncio.AbstractEventLoop, _Lane] = {}

    def write(self, rows: Sequence[Row]) -> asyncio.Future[None]:
        """Have the rows committed, whether or not somebody still waits for it then; fails as `Store.write` does."""
        loop = asyncio.get_running_loop()
        lane = self._lanes.get(loop)
        if lane is None:
            for other in [other for other in list(self._lanes) if other.is_closed()]:
                self._lanes.pop(other, None)
            lane = self._lanes[loop] = _Lane(loop, self._store)
        return lane.write(rows)


class _Lane:
    """The writes of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, store: Store) -> None:
        self._loop = loop
        self._store = store
        self._going: list[tuple[Sequence[Row], asyncio.Future[None]]] = []
        self._landed: deque[tuple[asyncio.Future[None], Future[None]]] = deque()

    def write(self, rows: Sequence[Row]) -> asyncio.Future[None]:
        waiter = self._loop.create_future()
        if not self._going:
            self._loop.call_soon(self._go)
        self._going.append((rows, waiter))
        return waiter

    def _go(self) -> None:
        going, self._going = self._going, []
        for rows, waiter in going:
            self._store.write(*rows).add_done_callback(partial(self._land, waiter))

    def _land(self, waiter: asyncio.Future[None], written: Future[None]) -> None:
        """On the store's thread. A loop that is closed by now is not told."""
        self._landed.append((waiter, written))
        if len(self._landed) == 1 and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        while self._landed:
            waiter, written = self._landed.popleft()
            if waiter.done():  # nobody waits for it any more
                continue
            error = written.exception()
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)
