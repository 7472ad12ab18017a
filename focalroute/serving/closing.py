"""Closes the resources of an ensemble, even if the ensemble was dropped without being closed."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from focalroute.core.event_loops import Background, PerLoop, wait_until
from focalroute.serving.concurrency import StartGate
from focalroute.store.base import Store

_CLOSING_S = 5.0  # to wait for asks under way
_GIVING_UP_S = 1.0  # to wait for those that are then given up

_dropped = Background()  # what is being closed in loops that still run


@dataclass(frozen=True, slots=True)
class Resources:
    """The open resources of an ensemble. They do not refer to the ensemble, which may be dropped.

    Attributes:
        closers: functions that close all but the store, called in this order and awaited if they return an awaitable.
        gates: count the asks under way, which are waited for afterwards.
        give_up: gives up the calls of asks that take longer.
    """

    closers: Sequence[Callable[[], Awaitable[None] | None]]
    gates: PerLoop[StartGate]
    give_up: Callable[[], None]
    store: Store

    async def aclose(self) -> None:
        """Close everything, the store last, once it has all costs. Idempotent."""
        try:
            for close in self.closers:
                closing = close()
                if closing is not None:
                    await closing
            await wait_until(self._idle, _CLOSING_S)
            self.give_up()
            await wait_until(self._idle, _GIVING_UP_S)
        finally:
            self.store.close()

    def _idle(self) -> bool:
        return not any(gate.running for gate in self.gates.all())


def warn_unclosed(name: str, remedy: str) -> None:
    """Warn that an ensemble was dropped without being closed."""
    warnings.warn(f"an {name} was never closed; use {remedy}", ResourceWarning, stacklevel=2)


def close_dropped(resources: Resources) -> None:
    """Close a dropped ensemble's resources, in one of its loops that still runs, else on a thread.

    The garbage collector may call this anywhere in the program, so it waits for nothing.
    """
    for loop in resources.gates.loops():
        if loop.is_running():
            with suppress(RuntimeError):  # it was closed just now
                loop.call_soon_threadsafe(_close_here, resources)
                return
    _close_on_thread(resources)


def _close_here(resources: Resources) -> None:
    def on_done(task: asyncio.Task[None]) -> None:
        if task.cancelled():  # its loop ends
            _close_on_thread(resources)

    _dropped.start(resources.aclose()).add_done_callback(on_done)


def _close_on_thread(resources: Resources) -> None:
    """Close on a daemon thread: the program's end does not wait for it, only for the store's own thread."""
    threading.Thread(target=lambda: asyncio.run(resources.aclose()), name="focalroute-closing", daemon=True).start()
