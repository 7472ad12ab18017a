"""What the calls of one ask share: their context, the streamed answer, and the one retry layer.

Nothing else in focalroute repeats a call.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import tenacity

from focalroute.core.errors import CallFailed
from focalroute.core.records import Query
from focalroute.money.budget import AskBudget


class StreamSink:
    """Where the pieces of one streamed answer go. Belongs to the running event loop.

    Attributes:
        begun: done once the first piece was said; from then on the answer is what its speaker goes on to say.
        speaker: whose piece that was; None: nobody has said anything yet.
    """

    def __init__(self, put: Callable[[str], None]) -> None:
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.speaker: object | None = None
        self._put = put
        self._pieces: list[str] = []

    @property
    def said(self) -> str:
        """All that was said so far."""
        return "".join(self._pieces)

    def say(self, speaker: object, piece: str) -> None:
        """Pass a piece on, unless somebody else has begun."""
        if self.speaker is None:
            self.speaker = speaker
            self.begun.set_result(None)
        if self.speaker is speaker:
            self._pieces.append(piece)
            self._put(piece)


T = TypeVar("T")

_FIRST_WAIT_S = 0.25
_MAX_WAIT_S = 8.0
_LONGEST_ASKED_S = 60.0  # of a service's Retry-After; for one that asks for more nobody waits


@dataclass(slots=True)
class CallContext:
    """What all calls of one ask share.

    Attributes:
        deadline: in the running loop's time.
        retries: how many more calls may be repeated, or raced because they are late, whoever's they are: in an outage
            an ask makes so many calls more than it has members, and not several times as many.
        outlet: where a member that answers alone says its reply as it comes; None: replies are gathered.
    """

    query: Query
    ask_budget: AskBudget
    deadline: float
    retries: int
    stream_sink: StreamSink | None = None

    @property
    def left_s(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - asyncio.get_running_loop().time()


async def call_with_retries(
    call: Callable[[], Awaitable[T]], context: CallContext, attempts: int, closed: Callable[[], bool]
) -> T:
    """What a call gives, repeated: at most ``attempts`` in all, within the terms, and not once it is ``closed``.

    Raises:
        CallFailed: the last one failed.
    """
    try:
        return await call()  # most calls succeed at once, and need nobody who repeats them
    except CallFailed as error:
        failed: CallFailed | None = error

    async def attempt() -> T:
        nonlocal failed
        if failed is not None:
            first, failed = failed, None
            raise first
        return await call()

    return await _repeats(context, attempts, closed)(attempt)


def _repeats(context: CallContext, attempts: int, closed: Callable[[], bool]) -> tenacity.AsyncRetrying:
    def repeatable(error: BaseException) -> bool:
        return isinstance(error, CallFailed) and error.failure.retryable and not closed()

    def enough(state: tenacity.RetryCallState) -> bool:
        wait = state.upcoming_sleep
        return (
            state.attempt_number >= attempts or context.retries < 1 or wait > _LONGEST_ASKED_S or wait >= context.left_s
        )

    def repeat(_: tenacity.RetryCallState) -> None:
        context.retries -= 1

    return tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception(repeatable),
        stop=enough,
        wait=_wait,
        before_sleep=repeat,
        sleep=asyncio.sleep,
        reraise=True,
    )


def _wait(state: tenacity.RetryCallState) -> float:
    """What the service asked for, else exponential with full jitter. Seconds.

    https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
    """
    error = state.outcome.exception() if state.outcome else None
    asked = error.failure.retry_after_s if isinstance(error, CallFailed) else None
    if asked is not None:
        return asked
    ceiling = min(_FIRST_WAIT_S * 2 ** (state.attempt_number - 1), _MAX_WAIT_S)
    return random.uniform(0, ceiling)  # noqa: S311 - jitter, no secret
