"""One paid call: the most it can cost is reserved before it, what it consumed is settled after it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from focalroute.core.config import Endpoint
from focalroute.core.errors import CallFailed
from focalroute.core.records import Usage
from focalroute.endpoints.wire import Request
from focalroute.money.budget import AskBudget, HeldAmount
from focalroute.money.cost import Bill, bill_of

_MILLION = Decimal(1_000_000)
_PER_MESSAGE = 16  # tokens a chat template may add around one message, generously
_PER_REQUEST = 64
_PER_MEDIA_PART = 4096  # tokens an image, audio or file part may count, generously


@dataclass(slots=True)
class PaidCall:
    """A call whose highest cost is reserved; `settle` must follow.

    Attributes:
        usage: the tokens it consumed, set as soon as they are known; None: unknown.
        free: whether it failed before anything was sent.
    """

    _ask_budget: AskBudget
    _endpoint: Endpoint
    _bound: Decimal | None
    _hold: HeldAmount
    usage: Usage | None = None
    free: bool = False

    @classmethod
    async def reserve(cls, ask_budget: AskBudget, endpoint: Endpoint, request: Request) -> PaidCall | None:
        """Reserve the most that a call can cost; None: it is not affordable."""
        bound = upper_bound(request, endpoint)
        hold = await ask_budget.reserve(endpoint.name, bound or Decimal(0))
        if hold is None:
            return None
        return cls(ask_budget, endpoint, bound, hold)

    def fail(self, error: CallFailed) -> None:
        """Note what a failed call consumed."""
        self.usage, self.free = error.usage or self.usage, error.free

    def settle(self) -> Bill:
        """Replace the reservation by the bill."""
        bill = bill_of(self._endpoint, self.usage, self._bound, free=self.free)
        self._ask_budget.settle(self._hold, bill)
        return bill


@asynccontextmanager
async def reserved(ask_budget: AskBudget, endpoint: Endpoint, request: Request) -> AsyncIterator[PaidCall | None]:
    """Reserve a call's cost and settle it at the end, however it ends; None: it is not affordable."""
    paid_call = await PaidCall.reserve(ask_budget, endpoint, request)
    if paid_call is None:
        yield None
        return
    try:
        yield paid_call
    except CallFailed as error:
        paid_call.fail(error)
        raise
    finally:
        paid_call.settle()


def upper_bound(request: Request, endpoint: Endpoint) -> Decimal | None:
    """The most one call can cost: every byte of the prompt a token, every allowed token generated, n times.

    Of the parameters every byte counts too: tools and schemas are part of the prompt. None where the price, or the
    number of tokens it may generate, is unknown.
    """
    params = {**endpoint.params, **request.params}
    generated = _most_generated(params, request)
    price = endpoint.price
    if price is None or generated is None:
        return None
    prompt = (
        _PER_REQUEST
        + _json_tokens(params)
        + _json_tokens(request.choices)
        + sum(map(_message_tokens, request.messages))
        + sum(map(_text_tokens, request.scored))
    )
    return (prompt * max(price.prompt, price.cached) + generated * price.completion) / _MILLION


def _most_generated(params: Mapping[str, Any], request: Request) -> int | None:
    if request.scored:  # nothing is wanted, but vLLM generates, and counts, a token for each text
        return len(request.scored)
    caps = [params[name] for name in ("max_tokens", "max_completion_tokens") if name in params] or [request.max_tokens]
    samples = params.get("n", request.n)
    return max(caps) * samples if all(isinstance(count, int) for count in (*caps, samples)) else None


def _message_tokens(message: Mapping[str, Any]) -> int:
    rest = {key: value for key, value in message.items() if key not in ("role", "content")}  # tool calls, a name
    return _PER_MESSAGE + _content_tokens(message.get("content")) + _json_tokens(rest)


def _text_tokens(text: str) -> int:
    return _PER_MESSAGE + _content_tokens(text)


def _json_tokens(value: object) -> int:
    return len(json.dumps(value, default=str)) if value else 0


def _content_tokens(content: Any) -> int:
    if isinstance(content, str):
        return len(content.encode(errors="surrogatepass"))
    if not isinstance(content, Iterable):
        return 0
    parts = (part for part in content if isinstance(part, Mapping))
    return sum(_content_tokens(part["text"]) if "text" in part else _PER_MEDIA_PART for part in parts)
