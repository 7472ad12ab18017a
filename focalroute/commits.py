"""Rows on their way from an event loop to the store and back, in company.

What is written in one turn of the loop is committed together at its end; alone, where there is no company, and then at
once. In the loop's own thread where the store can, else by the store's, which wakes the loop once for all that was
committed meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial

from focalroute.loops import PerLoop
from focalroute.store.base import Row, Store

__all__ = ["Commits"]


class Commits:
    """What the asks of an ensemble write, in any number of event loops."""

    def __init__(self, store: Store) -> None:
        self._lanes = PerLoop(lambda: _Lane(store))

    def write(self, rows: Sequence[Row]) -> asyncio.Future[None]:
        """Have the rows committed, whether or not somebody still waits for it then; fails as `Store.write` does."""
        return self._lanes.here().write(rows)


class _Lane:
    """The writes of one event loop."""

    def __init__(self, store: Store) -> None:
        self._loop = asyncio.get_running_loop()
        self._store = store
        self._going: list[tuple[Sequence[Row], asyncio.Future[None]]] = []
        self._written = 0  # in this turn of the loop
        self._lone = True  # whether it was one write in the last turn that had any
        self._landed: deque[tuple[asyncio.Future[None], BaseException | None]] = deque()  # mostly by the store's thread
        self._called = False  # whether the loop was called to tell them

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
        outcomes = self._store.write_at_once([rows for rows, _ in going]) if going else ()
        if outcomes is None:
            for rows, waiter in going:
                self._store.write(*rows).add_done_callback(partial(self._land, waiter))
            return
        for (_, waiter), error in zip(going, outcomes, strict=True):
            _tell(waiter, error)

    def _land(self, waiter: asyncio.Future[None], written: Future[None]) -> None:
        """On the store's thread, or at once on the loop's. A loop that is closed by now is not told."""
        self._landed.append((waiter, written.exception()))
        if not self._called and not self._loop.is_closed():
            self._called = True  # two threads that both call do no harm
            self._loop.call_soon_threadsafe(self._tell_landed)

    def _tell_landed(self) -> None:
        self._called = False  # before it looks: who comes after that calls again
        while self._landed:
            _tell(*self._landed.popleft())


def _tell(waiter: asyncio.Future[None], error: BaseException | None) -> None:
    if waiter.done():  # nobody waits for it any more
        return
    if error is None:
        waiter.set_result(None)
    else:
        waiter.set_exception(error)
