"""Usage x price -> money: what a call cost, and the most that it can cost.

Money is exact: `decimal.Decimal` USD. What is not known is None, never zero.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from focalroute.core.config import Endpoint
from focalroute.core.records import CostSource, Usage

_MILLION = Decimal(1_000_000)


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
