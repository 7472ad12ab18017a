"""Usage x price -> money: what a call cost, and the most that it can cost.

Money is exact: `decimal.Decimal` USD. What is not known is None, never zero.
"""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from focalroute.config import Endpoint
from focalroute.records import CostSource, Usage
from focalroute.wire import Request

__all__ = ["Bill", "bill_of", "cost_of", "total", "typical_cost", "upper_bound"]

_MILLION = Decimal(1_000_000)
_PER_MESSAGE = 16  # tokens a chat template may add around one message, generously
_PER_REQUEST = 64
_PER_MEDIA_PART = 4096  # tokens an image, audio or file part may count, generously


def cost_of(usage: Usage, endpoint: Endpoint) -> tuple[Decimal | None, CostSource]:
    """What the usage costs at this endpoint: the provider's own figure, else price x tokens, else unknown.

    The source of a price is where it was looked up.
    """
    if usage.cost_usd is not None:
        return usage.cost_usd, "provider"
    price = endpoint.price
    if price is None:
        return None, "unknown"
    cost = (
        (usage.prompt_tokens - usage.cached_tokens) * price.prompt
        + usage.cached_tokens * price.cached
        + usage.completion_tokens * price.completion
    )
    return cost / _MILLION, _price_source(endpoint)


def _price_source(endpoint: Endpoint) -> CostSource:
    if endpoint.prices_from is None:
        return "price"
    return "listing" if endpoint.prices_from == "listing" else "library"


def typical_cost(endpoint: Endpoint) -> float | None:
    """USD of a typical call by the price list, to compare endpoints before anything was seen; None if unknown."""
    price = endpoint.price
    return None if price is None else float(200 * price.prompt + 100 * price.completion) / 1e6


def total(costs: Iterable[Decimal | None]) -> Decimal | None:
    """The sum; None if any part is unknown."""
    known = Decimal(0)
    for cost in costs:
        if cost is None:
            return None
        known += cost
    return known


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


@dataclass(frozen=True, slots=True)
class Bill:
    """What one attempt at one endpoint consumed and cost."""

    endpoint: str
    usage: Usage | None
    cost: Decimal | None
    source: CostSource

    @staticmethod
    def total(bills: Sequence[Bill]) -> tuple[Usage | None, Decimal | None, CostSource]:
        """Several attempts added up; the source is the least certain of theirs."""
        usages = [bill.usage for bill in bills if bill.usage is not None]
        usage = functools.reduce(operator.add, usages) if usages else None
        source: CostSource = min((bill.source for bill in bills), key=_CERTAINTY.index, default="price")
        return usage, total(bill.cost for bill in bills), source


def bill_of(endpoint: Endpoint, usage: Usage | None, bound: Decimal | None, *, free: bool = False) -> Bill:
    """By its usage; where none came back by ``bound``, what was reserved for it, unless it surely cost nothing."""
    if usage is not None:
        return Bill(endpoint.name, usage, *cost_of(usage, endpoint))
    if free:
        return Bill(endpoint.name, None, Decimal(0), "price")
    return Bill(endpoint.name, None, bound, "unknown" if bound is None else "reserved")


_CERTAINTY: Sequence[CostSource] = ("unknown", "reserved", "library", "price", "listing", "provider")
