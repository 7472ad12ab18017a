"""Rows on their way from an event loop to the store and back, in company.

What is written first in a turn of the loop is committed at once where the store can, and all that follows in that turn
together at its end; else by the store's thread, which wakes the loop once for all that was committed meanwhile. These
are told in groups, one a turn: told all at once, everybody goes on to the next call at once, and then waits for the
service with nobody left to use the time.
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


_Outcome = tuple["asyncio.Future[None]", BaseException | None]


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
        self._written = 0  # in this turn of the loop
        self._lone = True  # whether it was one write in the last turn that had any
        self._landed: deque[_Outcome] = deque()  # by the store's thread
        self._untold: deque[_Outcome] = deque()

    def write(self, rows: Sequence[Row]) -> asyncio.Future[None]:
        waiter = self._loop.create_future()
        self._written += 1
        if self._written == 1:
            self._loop.call_soon(self._go)
            outcomes = self._store.write_at_once([rows]) if self._lone else None
            if outcomes is not None:
                _tell(waiter, outcomes[0])
                return waiter
        self._going.append((rows, waiter))
        return waiter

    def _go(self) -> None:
        self._lone, self._written = self._written == 1, 0
        going, self._going = self._going, []
        if not going:
            return
        outcomes = self._store.write_at_once([rows for rows, _ in going])
        if outcomes is not None:
            self._tell([(waiter, error) for (_, waiter), error in zip(going, outcomes, strict=True)])
            return
        for rows, waiter in going:
            self._store.write(*rows).add_done_callback(partial(self._land, waiter))

    def _land(self, waiter: asyncio.Future[None], written: Future[None]) -> None:
        """On the store's thread. A loop that is closed by now is not told."""
        self._landed.append((waiter, written.exception()))
        if len(self._landed) == 1 and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._tell_landed)

    def _tell_landed(self) -> None:
        outcomes = []
        while self._landed:
            outcomes.append(self._landed.popleft())
        self._tell(outcomes)

    def _tell(self, outcomes: Sequence[_Outcome]) -> None:
        telling = bool(self._untold)
        self._untold.extend(outcomes)
        if not telling:
            self._tell_group()

    def _tell_group(self) -> None:
        for _ in range(min(len(self._untold), max(_GROUP, len(self._untold) // _GROUPS))):
            _tell(*self._untold.popleft())
        if self._untold:
            self._loop.call_soon(self._tell_group)


def _tell(waiter: asyncio.Future[None], error: BaseException | None) -> None:
    if waiter.done():  # nobody waits for it any more
        return
    if error is None:
        waiter.set_result(None)
    else:
        waiter.set_exception(error)
