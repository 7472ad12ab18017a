"""Admits asks that arrive together a few at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

#: Asks admitted in one event-loop iteration. With more they wait longer for each other; with fewer every step of an ask
#: runs with cold caches.
MOST_ADMITTED = 8


class StartGate:
    """Admits at most 8 asks per event-loop iteration, first in, first out.

    Asks that all begin in one iteration would take each step together: all would send their calls late, then wait for
    the services with no work left to do meanwhile. An ask is running while it is within the gate's ``with``.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._running = 0
        self._idle = asyncio.Event()  # set once the last running ask has ended
        self._admitted = 0  # in this iteration
        self._waiting: deque[asyncio.Future[None]] = deque()

    def __enter__(self) -> None:
        self._running += 1

    def __exit__(self, *_: object) -> None:
        self._running -= 1
        if not self._running:
            self._idle.set()

    async def wait_idle(self, within_s: float) -> None:
        """Wait until no ask is running, for at most ``within_s`` seconds."""
        if self._running:
            self._idle.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), within_s)

    def enter(self) -> asyncio.Future[None] | None:
        """Return what to wait for before beginning; None: begin at once."""
        if not self._admitted:
            self._loop.call_soon(self._next)
        self._admitted += 1
        if self._admitted <= MOST_ADMITTED:
            return None
        waiter = self._loop.create_future()
        self._waiting.append(waiter)
        return waiter

    def _next(self) -> None:
        self._admitted = 0
        while self._waiting and self._admitted < MOST_ADMITTED:
            waiter = self._waiting.popleft()
            if not waiter.done():  # it was not cancelled
                waiter.set_result(None)
                self._admitted += 1
        if self._admitted:
            self._admitted = MOST_ADMITTED  # those that come in this iteration must not overtake them
            self._loop.call_soon(self._next)
