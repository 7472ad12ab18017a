"""The context, the streamed answer and the retries that all calls of one ask share.

No other code in focalroute retries.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from focalroute.core.errors import CallFailed
from focalroute.core.records import Failure, Query
from focalroute.money.budget import AskBudget


class StreamSink:
    """Takes the pieces of one streamed answer, from the first call that sends one. Belongs to the running event loop.

    Attributes:
        begun: done once the first piece came; from then on its speaker gives the answer.
        speaker: the call that streamed the first piece; None: none has yet.
    """

    def __init__(self, on_piece: Callable[[str], None]) -> None:
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.speaker: object | None = None
        self._on_piece = on_piece
        self._pieces: list[str] = []

    @property
    def said(self) -> str:
        """All text so far."""
        return "".join(self._pieces)

    def say(self, speaker: object, piece: str) -> None:
        """Pass a piece on, unless another call has begun."""
        if self.speaker is None:
            self.speaker = speaker
            self.begun.set_result(None)
        if self.speaker is speaker:
            self._pieces.append(piece)
            self._on_piece(piece)


T = TypeVar("T")

_FIRST_WAIT_S = 0.25
_MAX_WAIT_S = 8.0
_LONGEST_ASKED_S = 60.0  # wait that a service may ask for; a longer one ends the retries


@dataclass(slots=True)
class CallContext:
    """The context that all calls of one ask share.

    Attributes:
        deadline: in the running loop's time.
        retries: retries and hedges left for all members together: an outage adds this many calls to an ask, and does
            not multiply them.
        stream_sink: where a member that answers alone streams its reply; None: replies are not streamed.
        slowest_s: the longest that any successful attempt took, seconds.
    """

    query: Query
    ask_budget: AskBudget
    deadline: float
    retries: int
    stream_sink: StreamSink | None = None
    slowest_s: float = 0.0

    @property
    def left_s(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - asyncio.get_running_loop().time()


async def call_with_retries(
    call: Callable[[], Awaitable[T]],
    context: CallContext,
    attempts: int,
    closed: Callable[[], bool],
    worth: Callable[[float], bool] = lambda _: True,
) -> T:
    """Make a call and retry it: at most ``attempts`` in all, within the context's limits, until it is ``closed``.

    Args:
        worth: whether a retry is worth a wait of this many seconds.

    Raises:
        CallFailed: the last attempt failed.
    """
    attempt = 1
    while True:
        try:
            return await call()
        except CallFailed as error:
            if not error.failure.retryable or closed() or attempt >= attempts or context.retries < 1:
                raise
            wait_s = _wait_s(error.failure, attempt)
            if wait_s > _LONGEST_ASKED_S or wait_s >= context.left_s or not worth(wait_s):
                raise
        context.retries -= 1
        attempt += 1
        await asyncio.sleep(wait_s)


def _wait_s(failure: Failure, attempt: int) -> float:
    """Return the wait after a failed attempt (1-based): as the service asked, else exponential with full jitter.

    https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
    """
    if failure.retry_after_s is not None:
        return failure.retry_after_s
    return random.uniform(0, min(_FIRST_WAIT_S * 2 ** (attempt - 1), _MAX_WAIT_S))  # noqa: S311 - jitter, no secret
