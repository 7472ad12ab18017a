"""What belongs to one event loop: an ensemble may be used by several, in threads of their own or one after another."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Collection
from typing import Generic, TypeVar

T = TypeVar("T")

#: So many begin in one turn of a loop. More wait longer for each other, fewer do every step of an ask with cold caches.
AT_ONCE = 8


class PerLoop(Generic[T]):
    """One of something for each running event loop; those of closed loops are let go."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: dict[asyncio.AbstractEventLoop, T] = {}

    def here(self) -> T:
        """The running loop's, made on first use."""
        loop = asyncio.get_running_loop()
        found = self._made.get(loop)
        if found is None:
            for other in [other for other in list(self._made) if other.is_closed()]:
                self._made.pop(other, None)
            found = self._made[loop] = self._make()
        return found

    def known(self) -> T | None:
        """The running loop's, if it was made."""
        return self._made.get(asyncio.get_running_loop())

    def pop(self) -> T | None:
        """Likewise, and let go of it."""
        return self._made.pop(asyncio.get_running_loop(), None)

    def all(self) -> Collection[T]:
        """Those of all loops."""
        return list(self._made.values())


class StartGate:
    """Lets a few begin in one turn of a loop, the others in the next ones, in their order.

    Where many begin at once, all would take each step together: all would send their calls late, then wait for the
    service with nobody left to use the time, and then be answered together. Who is under way is so within its ``with``.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._under_way = 0
        self._quiet = asyncio.Event()  # set where nobody is who was waited for
        self._begun = 0  # in this turn
        self._waiting: deque[asyncio.Future[None]] = deque()

    def __enter__(self) -> None:
        self._under_way += 1

    def __exit__(self, *_: object) -> None:
        self._under_way -= 1
        if not self._under_way:
            self._quiet.set()

    async def quiet(self, within_s: float) -> None:
        """Wait until nobody is under way, but no longer than that."""
        if self._under_way:
            self._quiet.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._quiet.wait(), within_s)

    def enter(self) -> asyncio.Future[None] | None:
        """What to wait for before one begins; None: nothing."""
        if not self._begun:
            self._loop.call_soon(self._next)
        self._begun += 1
        if self._begun <= AT_ONCE:
            return None
        waiter = self._loop.create_future()
        self._waiting.append(waiter)
        return waiter

    def _next(self) -> None:
        self._begun = 0
        while self._waiting and self._begun < AT_ONCE:
            waiter = self._waiting.popleft()
            if not waiter.done():  # it was not given up
                waiter.set_result(None)
                self._begun += 1
        if self._begun:
            self._begun = AT_ONCE  # they go on in the next turn: who comes in this one is not to overtake them
            self._loop.call_soon(self._next)
