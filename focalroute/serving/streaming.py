"""An answer while it is being written: its text piece by piece, and at the end the whole `Answer`."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Awaitable, Callable
from typing import Self

from focalroute.core.errors import EnsembleClosed
from focalroute.core.event_loops import Background
from focalroute.core.receipts import Answer
from focalroute.endpoints.calls import StreamSink

_UNFINISHED = "the answer is there once the stream has been read to its end"
_GIVEN_UP = "the stream was given up, as its ensemble was closed; close it after the last answer"

#: Writes one answer: says its pieces, gives it back at the end.
Writer = Callable[[StreamSink], Awaitable[Answer]]


class _Flow:
    """The state shared by the writing task and the reader. It knows nothing of the reader, who may be dropped."""

    def __init__(self) -> None:
        self.pieces: asyncio.Queue[str | None] = asyncio.Queue()  # None: the end
        self.answer: Answer | None = None
        self.error: Exception | None = None

    async def write(self, writer: Writer) -> None:
        try:
            self.answer = await writer(StreamSink(self.pieces.put_nowait))
        except Exception as error:  # noqa: BLE001 - it is the reader's, who gets it in its place
            self.error = error
        finally:
            self.pieces.put_nowait(None)


class AsyncAnswerStream:
    """An answer while it is being written; made by `AsyncEnsemble.stream`.

    Iterate over it for the pieces of the text; afterwards `answer` has the whole. Leaving ``async with`` (or
    dropping the stream) before the end gives the answer up: its calls are cancelled down to their sockets, and
    what they consumed is in the ledger. It is read by one task at a time.

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
            RuntimeError: the stream has not been read to its end, or did not get there.
        """
        if self._flow is None or self._flow.answer is None or not self._ended:
            raise RuntimeError(_UNFINISHED)
        return self._flow.answer

    async def next_piece(self) -> str | None:
        """The next piece; None at the end.

        Raises:
            FocalrouteError: as `AsyncEnsemble.stream`.
            EnsembleClosed: the ensemble was closed before the end.
        """
        if self._ended:
            return None
        flow = self._begun()
        piece = await flow.pieces.get()
        if piece is None:
            flow.pieces.put_nowait(None)  # for another task that reads it, too, or that would wait without end
            given_up, self._ended = self._ended, True
            if flow.answer is None and not given_up:
                raise flow.error or EnsembleClosed(_GIVEN_UP)
        return piece

    def _begun(self) -> _Flow:
        if self._flow is None:
            self._flow = _Flow()
            self._task = self._background.start(self._flow.write(self._writer))
            weakref.finalize(self, _drop, self._task).atexit = False
        return self._flow

    def stop(self) -> bool:
        """Read no more of it; whether there is something under way that is to be given up."""
        self._ended = True
        return self._task is not None and not self._task.done()

    async def aclose(self) -> None:
        """Give the answer up, unless it is there; returns once what was consumed is settled. Idempotent."""
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
        self._begun()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _drop(task: asyncio.Task[None]) -> None:
    """The reader is gone. This may be said in any thread, and when the loop is gone already."""
    with contextlib.suppress(RuntimeError):
        task.get_loop().call_soon_threadsafe(task.cancel)
