"""Batches store writes made in one event-loop iteration.

They are committed together at the end of the iteration. While iterations have one write each, it is committed at once:
in the loop's thread if the store can, else in the store's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial

from focalroute.store.base import Outcomes, Row, Store

Waiters = list[asyncio.Future[None]]


class WriteBatcher:
    """Batches the writes that an ensemble's asks make in one event loop."""

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

    def _on_commit(self, waiters: Waiters, written: Future[Outcomes]) -> None:
        """Settle the waiters in their loop, unless it was closed meanwhile; called on the store's thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_settle, waiters, written)


def _settle(waiters: Waiters, written: Future[Outcomes]) -> None:
    failure = written.exception()
    outcomes = written.result() if failure is None else [failure] * len(waiters)
    for waiter, error in zip(waiters, outcomes, strict=True):
        if waiter.done():  # its caller was cancelled
            continue
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)
