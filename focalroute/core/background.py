"""Work in the background of whichever event loop began it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class Background:
    """Tasks under way, of any number of event loops. A task is held until it ends, and then let go."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """How many are under way, in all loops."""
        return len(self._tasks)

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin it in the running loop."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def give_up(self, *, patience_s: float = 0.0) -> None:
        """Cancel those of the running loop that do not end within so many seconds; returns once all have ended."""
        here = [task for task in tuple(self._tasks) if task.get_loop() is asyncio.get_running_loop()]
        if here and patience_s:
            await asyncio.wait(here, timeout=patience_s)
        for task in here:
            task.cancel()
        await asyncio.gather(*here, return_exceptions=True)
