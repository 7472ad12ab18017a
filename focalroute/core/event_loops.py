"""Objects and background tasks for each event loop, and daemon threads.

Several loops may use one ensemble, each in its own thread or one after another.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar

from focalroute.core.errors import ConfigError

P = ParamSpec("P")
T = TypeVar("T")

_POLL_EVERY_S = 0.02


def check_loop() -> None:
    """Raise ConfigError unless a loop of asyncio is running, as none is under trio."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise ConfigError("AsyncEnsemble: runs on asyncio; under trio use Ensemble, in a thread") from None


class PerLoop(Generic[T]):
    """Holds one object for each running event loop; objects of closed loops are dropped."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: dict[asyncio.AbstractEventLoop, T] = {}

    def here(self) -> T:
        """Return the running loop's object, made on first use."""
        loop = asyncio.get_running_loop()
        found = self._made.get(loop)
        if found is None:
            for other in [other for other in list(self._made) if other.is_closed()]:
                self._made.pop(other, None)
            found = self._made[loop] = self._make()
        return found

    def known(self) -> T | None:
        """Return the running loop's object; None if none was made."""
        return self._made.get(asyncio.get_running_loop())

    def loops(self) -> Collection[asyncio.AbstractEventLoop]:
        """Return the loops that have an object."""
        return list(self._made)

    def all(self) -> Collection[T]:
        """Return the objects of all loops."""
        return list(self._made.values())


class Background:
    """Keeps the background tasks of any number of event loops alive until they end."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """How many tasks are running, in all loops."""
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task in the running loop."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def cancel(self, *, grace_s: float = 0.0) -> None:
        """Cancel the running loop's tasks that do not end within ``grace_s``; returns once all have ended."""
        here = [task for task in tuple(self._tasks) if task.get_loop() is asyncio.get_running_loop()]
        if here and grace_s:
            await asyncio.wait(here, timeout=grace_s)
        for task in here:
            task.cancel()
        await asyncio.gather(*here, return_exceptions=True)


async def wait_until(done: Callable[[], bool], within_s: float) -> None:
    """Wait until other loops or threads are done, for at most ``within_s`` seconds.

    It polls, as a program that is ending cannot start a thread to wait in.
    """
    give_up = time.monotonic() + within_s
    while not done() and time.monotonic() < give_up:  # noqa: ASYNC110 - an event cannot be set from other loops
        await asyncio.sleep(_POLL_EVERY_S)


class DaemonThreads(Executor):
    """Runs work on up to ``most`` daemon threads: neither `shutdown` nor the end of the program waits for them."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._started = 0
        self._starting = threading.Lock()
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()

    def submit(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """See `concurrent.futures.Executor.submit`."""
        future: Future[T] = Future()
        self._jobs.put((future, partial(work, *args, **kwargs)))
        with self._starting:
            if self._started < self._most:
                self._started += 1
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        """End the threads once all submitted work is done, without waiting."""
        for _ in range(self._started):
            self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, work = job
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(work())
            except StopIteration:  # which an asyncio future refuses; Python turns a coroutine's into the same error
                future.set_exception(RuntimeError(f"a function on thread {self._name} raised StopIteration"))
            except BaseException as error:  # noqa: BLE001 - its waiter gets it
                future.set_exception(error)
            del job, future, work  # the thread may be idle for long
