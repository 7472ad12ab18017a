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
from focalroute.money.budget import AskBudget
from focalroute.money.cost import bill_of


@dataclass(slots=True)
class PaidCall:
    """What a call came to: set by whoever makes it, as soon as it is known."""

    usage: Usage | None = None


@asynccontextmanager
async def reserved(ask_budget: AskBudget, endpoint: Endpoint, request: Request) -> AsyncIterator[PaidCall | None]:
    """Reserve the most that a call can cost, and settle it at the end, however it ends; None: it is not affordable."""
    bound = upper_bound(request, endpoint)
    hold = await ask_budget.reserve(endpoint.name, bound or Decimal(0))
    if hold is None:
        yield None
        return
    paid_call, free = PaidCall(), False
    try:
        yield paid_call
    except CallFailed as error:
        paid_call.usage, free = error.usage, error.free
        raise
    finally:
        ask_budget.settle(hold, bill_of(endpoint, paid_call.usage, bound, free=free))
