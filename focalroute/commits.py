"""Rows on their way from an event loop to the store's thread and back, in company.

Waking another thread costs more than storing a row. So all that a loop writes in one of its turns goes to the store at
once, and is committed together; and the loop is woken once for all that was committed meanwhile. Whoever wrote is told
in groups, one a turn: told all at once, everybody goes on to the next call at once, and then waits for the service with
nobody left to use the time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial

from focalroute.store.base import Row, Store

__all__ = ["Commits"]

_GROUP = 16  # told in one turn: in smaller groups every stage of an ask runs with cold caches
_GROUPS = 4  # where more than that many groups wait, they are larger


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
        self._untold: deque[tuple[asyncio.Future[None], Future[None]]] = deque()

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
        telling = bool(self._untold)
        while self._landed:
            self._untold.append(self._landed.popleft())
        if not telling:
            self._tell_group()

    def _tell_group(self) -> None:
        for _ in range(min(len(self._untold), max(_GROUP, len(self._untold) // _GROUPS))):
            waiter, written = self._untold.popleft()
            if waiter.done():  # nobody waits for it any more
                continue
            error = written.exception()
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)
        if self._untold:
            self._loop.call_soon(self._tell_group)
