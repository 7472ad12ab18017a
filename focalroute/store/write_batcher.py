"""Rows on their way from an event loop to the store and back, in company.

What is written in one turn of the loop is committed together at its end; alone, where there is no company, and then at
once. In the loop's own thread where the store can, else by the store's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial

from focalroute.core.event_loops import PerLoop
from focalroute.store.base import Outcomes, Row, Store

Waiters = list[asyncio.Future[None]]


class WriteBatcher:
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

    def write(self, rows: Sequence[Row]) -> asyncio.Future[None]:
        waiter = self._loop.create_future()
        self._going.append((rows, waiter))
        self._written += 1
        if self._written == 1:
            self._loop.call_soon(self._end_turn)
            if self._lone:
                self._commit()
        return waiter

    def _end_turn(self) -> None:
        self._lone, self._written = self._written == 1, 0
        if self._going:
            self._commit()

    def _commit(self) -> None:
        going, self._going = self._going, []
        waiters = [waiter for _, waiter in going]
        written = self._store.write_calls([rows for rows, _ in going])
        if written.done():
            _tell(waiters, written)
        else:
            written.add_done_callback(partial(self._land, waiters))

    def _land(self, waiters: Waiters, written: Future[Outcomes]) -> None:
        """On the store's thread. A loop that is closed by now is not told."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_tell, waiters, written)


def _tell(waiters: Waiters, written: Future[Outcomes]) -> None:
    failed = written.exception()
    for waiter, error in zip(waiters, [failed] * len(waiters) if failed else written.result(), strict=True):
        if waiter.done():  # nobody waits for it any more
            continue
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)
