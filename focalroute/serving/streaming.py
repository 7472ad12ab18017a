"""Streams an answer: its text piece by piece, then the whole `Answer`."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Awaitable, Callable
from typing import Self

from focalroute.core.errors import EnsembleClosed
from focalroute.core.event_loops import Background, check_loop
from focalroute.core.receipts import Answer
from focalroute.endpoints.calls import StreamSink

_UNFINISHED = "the answer is available once the stream has been read to its end"
_CLOSED = "the stream was cancelled because its ensemble was closed; close the ensemble after the last answer"

#: Writes one answer: passes its pieces to the sink, and returns it at the end.
Writer = Callable[[StreamSink], Awaitable[Answer]]


class _Flow:
    """The state that the writing task and the reader share. It does not refer to the reader, which may be dropped."""

    def __init__(self) -> None:
        self.pieces: asyncio.Queue[str | None] = asyncio.Queue()  # None: the end
        self.answer: Answer | None = None
        self.error: Exception | None = None

    async def write(self, writer: Writer) -> None:
        try:
            self.answer = await writer(StreamSink(self.pieces.put_nowait))
        except Exception as error:  # noqa: BLE001 - the reader gets it instead of the answer
            self.error = error
        finally:
            self.pieces.put_nowait(None)


class AsyncAnswerStream:
    """An answer while it is being written; made by `AsyncEnsemble.stream`.

    Iterate over it for the pieces of the text; afterwards `answer` has the whole. Leaving ``async with`` before the
    end, or dropping the stream, gives the answer up: its calls are cancelled down to their sockets, and their costs are
    in the ledger. One task may read it at a time.

    Attributes:
        id: of the answer, known from the beginning.
    """

    def __init__(self, answer_id: str, writer: Writer, background: Background) -> None:
        self.id = answer_id
        self._writer = writer
        self._background = background
        self._flow: _Flow | None = None
        self._task: asyncio.Task[None] | None = None
        self._ended = False

    @property
    def answer(self) -> Answer:
        """The finished answer, with receipt, usage and cost.

        Raises:
            RuntimeError: the stream has not been read to its end, or has failed.
        """
        if self._flow is None or self._flow.answer is None or not self._ended:
            raise RuntimeError(_UNFINISHED)
        return self._flow.answer

    async def next_piece(self) -> str | None:
        """Return the next piece; None at the end.

        Raises:
            FocalrouteError: as `AsyncEnsemble.stream`.
            EnsembleClosed: the ensemble was closed before the end.
        """
        if self._ended:
            return None
        flow = self._start()
        piece = await flow.pieces.get()
        if piece is None:
            flow.pieces.put_nowait(None)  # else another task that reads would wait for ever
            given_up, self._ended = self._ended, True
            if flow.answer is None and not given_up:
                raise flow.error or EnsembleClosed(_CLOSED)
        return piece

    def _start(self) -> _Flow:
        """Start the writing task on first use."""
        if self._flow is None:
            check_loop()
            self._flow = _Flow()
            self._task = self._background.start(self._flow.write(self._writer))
            weakref.finalize(self, _drop, self._task).atexit = False
        return self._flow

    def stop(self) -> bool:
        """Stop reading; return whether the answer is still being written, so that `aclose` has to cancel it."""
        self._ended = True
        return self._task is not None and not self._task.done()

    async def aclose(self) -> None:
        """Give up an unfinished answer; returns once its costs are settled. Idempotent."""
        if self.stop() and self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        piece = await self.next_piece()
        if piece is None:
            raise StopAsyncIteration
        return piece

    async def __aenter__(self) -> Self:
        self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _drop(task: asyncio.Task[None]) -> None:
    """Cancel a dropped reader's task. This may be called in any thread, and after the loop was closed."""
    with contextlib.suppress(RuntimeError):
        task.get_loop().call_soon_threadsafe(task.cancel)
