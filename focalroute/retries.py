"""The one retry layer: what is repeated, when, and how often. Nothing else in focalroute repeats a call."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from focalroute.budget import Purse
from focalroute.errors import CallFailed
from focalroute.outlet import Outlet
from focalroute.records import Failure, Query

__all__ = ["Terms", "retrying"]

T = TypeVar("T")

_FIRST_WAIT_S = 0.25
_MAX_WAIT_S = 8.0
_LONGEST_ASKED_S = 60.0  # of a service's Retry-After; for one that asks for more nobody waits


@dataclass(slots=True)
class Terms:
    """What all calls of one ask share.

    Attributes:
        deadline: in the running loop's time.
        retries: how many more calls may be repeated, or raced because they are late, whoever's they are: in an outage
            an ask makes so many calls more than it has members, and not several times as many.
        outlet: where a member that answers alone says its reply as it comes; None: replies are gathered.
    """

    query: Query
    purse: Purse
    deadline: float
    retries: int
    outlet: Outlet | None = None

    @property
    def left_s(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - asyncio.get_running_loop().time()


async def retrying(
    call: Callable[[], Awaitable[T]], terms: Terms, attempts: int, closed: Callable[[], bool] = lambda: False
) -> T:
    """What a member's call gives, repeated: at most ``attempts`` in all, within the terms, and not once it is closed.

    Raises:
        CallFailed: of the last attempt.
    """
    number = 0
    while True:
        number += 1
        try:
            return await call()
        except CallFailed as error:
            if not error.failure.retryable or closed() or number >= attempts or terms.retries < 1:
                raise
            wait_s = _wait_s(error.failure, number)
            if wait_s > _LONGEST_ASKED_S or wait_s >= terms.left_s:
                raise
        terms.retries -= 1
        await asyncio.sleep(wait_s)


def _wait_s(failure: Failure, number: int) -> float:
    """What the service asked for, else exponential with full jitter.

    https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
    """
    if failure.retry_after_s is not None:
        return failure.retry_after_s
    ceiling = min(_FIRST_WAIT_S * 2 ** (number - 1), _MAX_WAIT_S)
    return random.uniform(0, ceiling)  # noqa: S311 - jitter, no secret
