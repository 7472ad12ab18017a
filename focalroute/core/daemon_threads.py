"""An executor whose threads, unlike those of a ``ThreadPoolExecutor``, the end of the program does not wait for."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class DaemonThreads(Executor):
    """Runs work on up to ``most`` threads; shutting down does not wait."""

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
