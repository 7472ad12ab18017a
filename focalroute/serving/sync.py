"""`Ensemble`, the synchronous interface: it runs the methods of an `AsyncEnsemble` on an event loop in a thread."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import typing
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, TypeVar, Unpack

from focalroute.answers import AnswerKind
from focalroute.answers.structured import Wanted
from focalroute.core.config import Endpoint
from focalroute.core.dollars import Amount
from focalroute.core.errors import EnsembleClosed
from focalroute.core.receipts import Answer, Answers
from focalroute.core.spelling import by_keyword
from focalroute.learn.reward import USER, FeedbackArguments
from focalroute.serving.closing import warn_unclosed
from focalroute.serving.concurrency import Item
from focalroute.serving.ensemble import CLOSED, FORKED, NO_COPY, AsyncEnsemble
from focalroute.serving.query import AskArguments, AskManyArguments, AskOptions, Prompt, TextKind
from focalroute.serving.settings import Settings, takes_settings
from focalroute.serving.stats import Stats
from focalroute.serving.streaming import AsyncAnswerStream

if TYPE_CHECKING:
    import openai
    from anyio.from_thread import BlockingPortal

    from focalroute.learn.update_report import UpdateReport
    from focalroute.serving.in_process import Run


F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
R = TypeVar("R")


def _as(method: Any) -> Callable[[F], F]:
    """Give a method the signature, documentation and errors of its asynchronous counterpart."""
    return by_keyword(*method.advice, like=method)


class AnswerStream:
    """An answer while it is being written; made by `Ensemble.stream`.

    Iterate over it for the pieces of the text; afterwards `answer` has the whole. Leaving ``with`` before the end, or
    dropping the stream, gives the answer up: its calls are cancelled down to their sockets, and their costs are in the
    ledger. One thread may read it at a time.
    """

    def __init__(self, stream: AsyncAnswerStream, run: Run) -> None:
        self._stream = stream
        self._run = run

    @property
    def id(self) -> str:
        """The answer's id, known from the beginning."""
        return self._stream.id

    @property
    def answer(self) -> Answer:
        """The finished answer; RuntimeError until the stream has been read to its end (see `AsyncAnswerStream`)."""
        return self._stream.answer

    def close(self) -> None:
        """Give up an unfinished answer; returns once its costs are settled. Idempotent."""
        if self._stream.stop():
            self._run(self._stream.aclose)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        piece = self._run(self._stream.next_piece)
        if piece is None:
            raise StopIteration
        return piece

    def __enter__(self) -> Self:
        self._run(self._stream.__aenter__)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(slots=True)
class _Failed:
    error: list[Exception | SystemExit]


async def _outcome(work: Callable[[], Awaitable[R]]) -> R | _Failed:
    """Return an exception as a value: if the portal raised it, both would be in a reference cycle."""
    try:
        return await work()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - raised again by `_result`
        return _Failed([error])


def _result(outcome: R | _Failed) -> R:
    if isinstance(outcome, _Failed):
        raise outcome.error.pop()
    return outcome


class _Loop:
    """An event loop in a daemon thread, started on first use.

    Args:
        on_end: runs on the loop before it ends.
    """

    def __init__(self, on_end: Callable[[], Awaitable[None]]) -> None:
        import anyio._backends._asyncio  # noqa: F401 - else the first ask would wait while anyio loads it
        from anyio.from_thread import BlockingPortal

        self._make_portal = BlockingPortal
        self._on_end = on_end
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self._portal: Future[BlockingPortal] = Future()
        self._ending: Future[None] = Future()
        self._ended: Future[None] = Future()

    def portal(self) -> BlockingPortal:
        """Return the portal that runs coroutines on it.

        Raises:
            EnsembleClosed: it was made before a fork, or its thread has ended because the caller's own function raised
                SystemExit on it.
        """
        if self._process != os.getpid():
            raise EnsembleClosed(FORKED, forked=True)
        self._start()
        if self.gone:
            raise EnsembleClosed(CLOSED)
        return self._portal.result()

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                atexit.register(self.finish)
                thread = threading.Thread(target=self._serve, name="focalroute-loop", daemon=True)
                thread.start()
                self._thread = thread  # not before: until it is started it looks `gone`

    @property
    def gone(self) -> bool:
        """Whether its thread has ended, or runs only in the process that this one was forked from."""
        return self._thread is not None and not self._thread.is_alive()

    def run(self, work: Callable[[], Awaitable[R]]) -> R:
        """Run the coroutine and return its result. Ctrl-C cancels it, so that nothing more is paid."""
        future = self._send(work)
        try:
            outcome = future.result()
        finally:
            future.cancel()
        return _result(outcome)

    @property
    def here(self) -> bool:
        """Whether the caller is on its thread, which must not wait for itself."""
        return threading.current_thread() is self._thread

    async def awaited(self, work: Callable[[], Awaitable[R]], /) -> R:
        """Run the coroutine and return its result, for a caller in another event loop."""
        return _result(await asyncio.wrap_future(self._send(work)))

    def _send(self, work: Callable[[], Awaitable[R]]) -> Future[R | _Failed]:
        portal = self.portal()
        try:
            return portal.start_task_soon(_outcome, work)
        except RuntimeError as error:
            if self.here:
                raise
            raise EnsembleClosed(CLOSED) from error  # the loop has ended since

    def _serve(self) -> None:
        """Run the loop until `end` is called, then ``on_end``. This is the thread's function."""

        async def serve() -> None:
            async with self._make_portal() as portal:
                self._portal.set_result(portal)
                await asyncio.wrap_future(self._ending)
                await on_end()

        async def on_end() -> None:
            await self._on_end()

        try:
            try:
                asyncio.run(serve())
            except (SystemExit, KeyboardInterrupt):  # of the caller's own function, which gets to the caller
                asyncio.run(on_end())
        except BaseException as error:  # noqa: BLE001 - `finish` raises it
            self._ended.set_exception(error)
        else:
            self._ended.set_result(None)
        finally:
            atexit.unregister(self.finish)

    def end(self) -> None:
        """Tell the thread to run ``on_end`` and end, without waiting for it."""
        self._start()
        with suppress(InvalidStateError):  # it is ending already
            self._ending.set_result(None)

    def finish(self) -> None:
        """Run ``on_end``, end the thread and wait for it; after a fork only the parent has a thread to end."""
        if self.gone:
            return
        self.end()
        if self.here:  # a caller's function closes the ensemble: the thread would wait for itself
            return
        self._ended.result()
        if self._thread is not None:
            self._thread.join()


class Ensemble:
    """A pool of endpoints that answers as one, for code without ``await``; arguments and methods as `AsyncEnsemble`.

    Safe to use from many threads, and inside a running event loop (a notebook). Close it with ``with`` or `close`; if
    it is dropped open, it is closed in the background, with a ResourceWarning, and if it is left open, when the
    interpreter ends.

    Examples:
        >>> from focalroute.sim import SimulatedPool
        >>> with SimulatedPool() as pool, Ensemble(pool.endpoints, seed=0) as ensemble:
        ...     answer = ensemble.ask("What is 17 + 25?", choices=[32, 42, 44])
        ...     ensemble.feedback(answer, label=42)
        ...     answer.value, len(answer.receipt.calls) == len(answer.replies)
        (42, True)
    """

    @takes_settings(Settings)
    def __init__(self, endpoints: Any = None, *more: Any, **settings: Any) -> None:
        self._async = AsyncEnsemble(endpoints, *more, **settings)
        self._loop = _Loop(self._async.aclose)
        self._unclosed = weakref.finalize(self, _on_dropped, self._loop)
        self._unclosed.atexit = False  # the loop ends itself then

    @classmethod
    def from_toml(cls, path: str | Path, **settings: Any) -> Self:
        """Make an ensemble from a pool file; see `AsyncEnsemble.from_toml`."""
        return cls(path, **settings)

    def __reduce_ex__(self, _: object) -> NoReturn:
        raise TypeError(NO_COPY)

    # Spelt `typing.overload`, as for `overload` jedi would show only the overloads, and so no options.
    @typing.overload
    def ask(self, query: Prompt | None = None, *, choices: Iterable[T], **options: Unpack[AskOptions]) -> Answer[T]: ...

    @typing.overload
    def ask(  # type: ignore[overload-overlap]  # a class is callable, too
        self, query: Prompt | None = None, *, answer: type[T], **options: Unpack[AskOptions]
    ) -> Answer[T]: ...

    @typing.overload
    def ask(
        self, query: Prompt | None = None, *, answer: Literal["number"], **options: Unpack[AskOptions]
    ) -> Answer[float]: ...

    @typing.overload
    def ask(
        self, query: Prompt | None = None, *, answer: TextKind | None = None, **options: Unpack[AskOptions]
    ) -> Answer[str]: ...

    @typing.overload
    def ask(
        self,
        query: Prompt | None = None,
        *,
        choices: Iterable[Any] | None = None,
        answer: AnswerKind | Wanted | None = None,
        **options: Unpack[AskOptions],
    ) -> Answer[Any]: ...

    @_as(AsyncEnsemble.ask)
    def ask(self, query: Prompt | None = None, **options: Any) -> Answer[Any]:
        """See `AsyncEnsemble.ask`."""
        return self._run(lambda: self._async.ask(query, **options))

    @typing.overload
    def ask_many(
        self,
        queries: Iterable[Item],
        *,
        return_exceptions: Literal[False] = False,
        **options: Unpack[AskManyArguments],
    ) -> Answers: ...

    @typing.overload
    def ask_many(
        self, queries: Iterable[Item], *, return_exceptions: bool, **options: Unpack[AskManyArguments]
    ) -> Answers[Answer | BaseException]: ...

    @_as(AsyncEnsemble.ask_many)
    def ask_many(self, queries: Iterable[Item], **options: Any) -> Answers[Any]:
        """See `AsyncEnsemble.ask_many`."""
        return self._run(lambda: self._async.ask_many(queries, **options))

    @_as(AsyncEnsemble.stream)
    def stream(self, query: Prompt | None = None, **options: Unpack[AskArguments]) -> AnswerStream:
        """See `AsyncEnsemble.stream`."""
        return AnswerStream(self._async.stream(query, **options), self._run)

    @_as(AsyncEnsemble.feedback)
    def feedback(self, answer: Answer | str, *, source: str = USER, **said: Unpack[FeedbackArguments]) -> None:
        """See `AsyncEnsemble.feedback`."""
        self._run(lambda: self._async.feedback(answer, source=source, **said))

    def update(self) -> UpdateReport:
        """Judge the challenger on the feedback in the store, or train one; see `AsyncEnsemble.update`."""
        return self._run(self._async.update)

    def reload(self) -> None:
        """Serve the policy folder's current bundle from now on; see `AsyncEnsemble.reload`."""
        self._run(self._async.reload)

    def as_openai(self) -> openai.OpenAI:
        """Return an ``OpenAI`` client that this ensemble answers; see `AsyncEnsemble.as_async_openai`."""
        from focalroute.serving.in_process import openai_client

        return openai_client(self._async, self._run, self._close_stream)

    def as_async_openai(self) -> openai.AsyncOpenAI:
        """Return an ``AsyncOpenAI`` client, answered on this ensemble's loop; for frameworks that take both kinds."""
        from focalroute.serving.in_process import async_openai_client

        return async_openai_client(self._async, self._loop.awaited)

    def _run(self, work: Callable[[], Awaitable[R]]) -> R:
        self._check_open()
        return self._loop.run(work)

    def _check_open(self) -> None:
        if not self._unclosed.alive:
            raise EnsembleClosed(CLOSED)

    def _close_stream(self, close: Callable[[], Awaitable[None]]) -> None:
        # If the garbage collector drops it on the loop's thread, the loop itself closes its generator.
        if self._unclosed.alive and not self._loop.here:
            self._loop.run(close)

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The pool."""
        return self._async.endpoints

    def limit_tags(self, usd_per_tag: Mapping[str, Amount | Mapping[str, Amount]]) -> None:
        """Replace the budget's limits on tags; see `AsyncEnsemble.limit_tags`."""
        self._async.limit_tags(usd_per_tag)

    def stats(self) -> Stats:
        """Return the statistics of asks, costs and endpoints so far."""
        return self._async.stats()

    def close(self) -> None:
        """Finish what is queued, close connections, the store and the thread. Idempotent."""
        if self._unclosed.detach():
            self._loop.finish()

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _on_dropped(loop: _Loop) -> None:
    if not loop.gone:
        loop.end()
        warn_unclosed("Ensemble", "`with Ensemble(...)`, or `ensemble.close()`")
