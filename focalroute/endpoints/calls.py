"""The context, the streamed answer and the retries that all calls of one ask share.

No other code in focalroute waits and makes a failed call again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import tenacity

from focalroute.core.errors import CallFailed
from focalroute.core.records import Query
from focalroute.money.budget import AskBudget


class StreamSink:
    """Passes on the pieces of one streamed answer. Belongs to the running event loop.

    Of several calls that stream, the first to send a piece becomes the speaker; pieces of the others are dropped.

    Attributes:
        begun: done once the first piece has arrived.
        speaker: the call that sent it; None: there is none yet.
    """

    def __init__(self, on_piece: Callable[[str], None]) -> None:
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.speaker: object | None = None
        self._on_piece = on_piece
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(self._pieces)

    def add(self, speaker: object, piece: str) -> None:
        """Pass a piece on, unless another call is the speaker."""
        if self.speaker is None:
            self.speaker = speaker
            self.begun.set_result(None)
        if self.speaker is speaker:
            self._pieces.append(piece)
            self._on_piece(piece)


T = TypeVar("T")
E = TypeVar("E", bound=BaseException)

_FIRST_WAIT_S = 0.25
_MAX_WAIT_S = 8.0
_LONGEST_ASKED_S = 60.0  # if a service asks for a longer wait, the call is not retried


@dataclass(slots=True)
class CallContext:
    """The context that all calls of one ask share.

    Attributes:
        deadline: in the running loop's time.
        retries: retries and hedges left, for all members together, so that an outage adds few calls to an ask.
        stream_sink: where a member that is asked alone streams its reply; None: replies are not streamed.
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
    may_wait: Callable[[float], bool] = lambda _: True,
) -> T:
    """Make a call; if it fails in a way that a retry may mend, wait and make it again.

    Args:
        attempts: the most attempts, the first included; the context limits them further.
        closed: whether retries must end.
        may_wait: whether a retry is worth a wait of this many seconds.

    Raises:
        CallFailed: the last attempt failed.
    """
    try:
        return await call()  # most calls succeed at once, and need no retries
    except CallFailed as error:
        retried = _RetriedCall(call, context, attempts, closed, may_wait, [_without_traceback(error)])
    answer: T | CallFailed | asyncio.CancelledError = await tenacity.AsyncRetrying(
        retry=_may_retry,
        stop=_must_stop,
        wait=_wait,
        before_sleep=_count_retry,
        sleep=asyncio.sleep,
        retry_error_callback=_outcome,
    )(_attempt, retried)
    if not isinstance(answer, CallFailed | asyncio.CancelledError):
        return answer
    try:
        raise answer
    finally:
        del answer  # else this frame and its traceback would hold each other


@dataclass(slots=True)
class _RetriedCall(Generic[T]):
    """A call that is retried, and its limits; ``failed`` holds its first failure until tenacity takes it.

    Tenacity's state and exceptions form reference cycles, which could keep an ask and all its replies until the garbage
    collector runs. So this is passed as an argument, and failures and cancellations are returned, not raised.
    """

    call: Callable[[], Awaitable[T]]
    context: CallContext
    attempts: int
    closed: Callable[[], bool]
    may_wait: Callable[[float], bool]
    failed: list[CallFailed]


def _without_traceback(error: E) -> E:
    """Drop an error's traceback and context, whose frames refer back to what keeps the error."""
    error.__context__ = None
    return error.with_traceback(None)


async def _attempt(retried: _RetriedCall[T]) -> T | CallFailed | asyncio.CancelledError:
    if retried.failed:
        return retried.failed.pop()
    try:
        return await retried.call()
    except (CallFailed, asyncio.CancelledError) as error:
        return _without_traceback(error)


def _outcome(state: tenacity.RetryCallState) -> Any:
    return state.outcome.result() if state.outcome else None


def _may_retry(state: tenacity.RetryCallState) -> bool:
    error, retried = _outcome(state), state.args[0]
    return isinstance(error, CallFailed) and error.failure.retryable and not retried.closed()


def _must_stop(state: tenacity.RetryCallState) -> bool:
    retried, wait = state.args[0], state.upcoming_sleep
    if state.attempt_number >= retried.attempts or retried.context.retries < 1:
        return True
    return bool(wait > _LONGEST_ASKED_S or wait >= retried.context.left_s or not retried.may_wait(wait))


def _count_retry(state: tenacity.RetryCallState) -> None:
    state.args[0].context.retries -= 1


def _wait(state: tenacity.RetryCallState) -> float:
    """Return the seconds to wait: what the service asked for, else exponential backoff with full jitter.

    https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
    """
    error = _outcome(state)
    asked_s = error.failure.retry_after_s if isinstance(error, CallFailed) else None
    if asked_s:  # a wait of 0 does not replace the backoff
        return asked_s
    ceiling = min(_FIRST_WAIT_S * 2 ** (state.attempt_number - 1), _MAX_WAIT_S)
    return random.uniform(0, ceiling)  # noqa: S311 - jitter, no secret
