"""A single call that is paid for: reserved before it, settled with what it consumed after it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from decimal import Decimal

from focalroute.core.config import Endpoint
from focalroute.core.errors import CallFailed
from focalroute.core.records import Usage
from focalroute.endpoints.cost_bounds import upper_bound
from focalroute.endpoints.wire import Request
from focalroute.money.budget import Purse
from focalroute.money.cost import bill_of


@dataclass(slots=True)
class Outlay:
    """What a call came to: set by whoever makes it, as soon as it is known."""

    usage: Usage | None = None


@asynccontextmanager
async def reserved(purse: Purse, endpoint: Endpoint, request: Request) -> AsyncIterator[Outlay | None]:
    """Reserve the most that a call can cost, and settle it at the end, however it ends; None: it is not affordable."""
    bound = upper_bound(request, endpoint)
    hold = await purse.reserve(endpoint.name, bound or Decimal(0))
    if hold is None:
        yield None
        return
    outlay, free = Outlay(), False
    try:
        yield outlay
    except CallFailed as error:
        outlay.usage, free = error.usage, error.free
        raise
    finally:
        purse.settle(hold, bill_of(endpoint, outlay.usage, bound, free=free))
