"""The cost of calls, by usage and price, and the savings against asking differently.

Money is exact: `decimal.Decimal` USD. An unknown amount is None, never zero.
"""

from __future__ import annotations

import functools
import logging
import math
import operator
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple

from focalroute.core.config import Endpoint
from focalroute.core.dollars import MONEY, Dollars
from focalroute.core.records import CostSource, Usage
from focalroute.store.base import LedgerSum

_log = logging.getLogger("focalroute")
_MILLION = Decimal(1_000_000)
_FINEST = Decimal("1e-12")  # USD
_CERTAINTY: Sequence[CostSource] = ("unknown", "reserved", "library", "price", "listing", "provider")  # least first
_WARN_EVERY_S = 60.0
_warned_at: dict[str, float] = {}  # by endpoint


def cost_of(usage: Usage, endpoint: Endpoint) -> tuple[Decimal | None, CostSource]:
    """Price the usage at this endpoint: the higher of the provider's own figure and price x tokens.

    A provider's figure may leave out what another provider bills (your own key at a gateway), or be too low. Unknown if
    there is neither a figure nor a price. The source of a price is where it was looked up.
    """
    price = endpoint.price
    if price is None:
        return usage.cost_usd, "unknown" if usage.cost_usd is None else "provider"
    tokens = (
        (usage.prompt_tokens - usage.cached_tokens) * price.prompt
        + usage.cached_tokens * price.cached
        + usage.completion_tokens * price.completion
    )
    cost = tokens / _MILLION
    if usage.cost_usd is not None and usage.cost_usd >= cost:
        return usage.cost_usd, "provider"
    return cost, _price_source(endpoint)


def _price_source(endpoint: Endpoint) -> CostSource:
    if endpoint.prices_from is None:
        return "price"
    return "listing" if endpoint.prices_from == "listing" else "library"


def typical_cost(endpoint: Endpoint) -> float | None:
    """USD of a typical call by the price list, to compare endpoints before any call was made; None if unknown."""
    price = endpoint.price
    return None if price is None else float(200 * price.prompt + 100 * price.completion) / 1e6


def total(costs: Iterable[Decimal | None]) -> Dollars | None:
    """The sum; None if any cost is unknown."""
    known = Decimal(0)
    for cost in costs:
        if cost is None:
            return None
        known += cost
    return Dollars(known)


@dataclass(slots=True)  # a frozen one takes five times as long to make
class Bill:
    """The usage and cost of one attempt at one endpoint.

    Attributes:
        cost: USD, rounded to the ledger's precision, so that receipts and ledger have the same sums.
        doubt: for an estimate, the USD that the attempt may have cost on top of ``cost``.
    """

    endpoint: str
    usage: Usage | None
    cost: Decimal | None
    source: CostSource
    doubt: Decimal | None = None

    def __post_init__(self) -> None:
        if self.cost is not None:
            rounded = self.cost.quantize(_FINEST, context=MONEY)
            if rounded != self.cost:  # an equal amount keeps its number of digits
                self.cost = rounded

    @staticmethod
    def total(bills: Sequence[Bill]) -> tuple[Usage | None, Decimal | None, CostSource]:
        """The sum of several attempts; its source is the least certain source."""
        usages = [bill.usage for bill in bills if bill.usage is not None]
        usage = functools.reduce(operator.add, usages) if usages else None
        source: CostSource = min((bill.source for bill in bills), key=_CERTAINTY.index, default="price")
        return usage, total(bill.cost for bill in bills), source


class UsualCost(NamedTuple):
    """The usual cost of a call with a given bound, USD.

    Attributes:
        mean: the mean cost of the endpoint's calls, at most the bound.
        dearer: the higher of ``mean`` and the bound times the calls' mean share of their bounds.
    """

    mean: Decimal
    dearer: Decimal


def bill_of(
    endpoint: Endpoint,
    usage: Usage | None,
    bound: Decimal | None,
    *,
    free: bool = False,
    usual: UsualCost | None = None,
) -> Bill:
    """Make the bill of an attempt from its usage; without usage, estimate it, unless the attempt or endpoint is free.

    The estimated cost is half the usual mean, as if every second such call were billed. The doubt is the difference to
    1.5 times ``usual.dearer``, or to ``bound`` if that is less. If the usual cost is unknown, the cost is ``bound``.

    A bill above its bound counts as the bound, since no allowed call costs that much. A warning, at most one a minute
    for each endpoint, states both amounts, as prices may be out of date.
    """
    if usage is not None:
        cost, source = cost_of(usage, endpoint)
        if bound is not None and cost is not None and cost > bound:
            _warn_of_excess(endpoint.name, bound, cost)
            return Bill(endpoint.name, usage, bound, "reserved")
        return Bill(endpoint.name, usage, cost, source)
    if free or (endpoint.price is not None and not any(endpoint.price)):
        return Bill(endpoint.name, None, Decimal(0), "price")
    if bound is None:
        return Bill(endpoint.name, None, None, "unknown")
    if usual is None:
        return Bill(endpoint.name, None, bound, "reserved", Decimal(0))
    cost = (usual.mean / 2).quantize(_FINEST, context=MONEY)
    return Bill(endpoint.name, None, cost, "reserved", min(usual.dearer * 3 / 2, bound) - cost)


def _warn_of_excess(endpoint: str, bound: Decimal, cost: Decimal) -> None:
    now = time.monotonic()
    if now - _warned_at.get(endpoint, -math.inf) >= _WARN_EVERY_S:
        _warned_at[endpoint] = now
        _log.warning(
            "%s billed %s USD for a call that can cost at most %s, which was reserved and is counted instead. "
            "Check its prices", endpoint, cost, bound,
        )  # fmt: skip


# -- savings ---------------------------------------------------------------------------------------------------------

ALL = "all endpoints"
_NO_CALLS = LedgerSum("")


@dataclass(frozen=True, slots=True)
class Saving:
    """The saving against one counterfactual, USD.

    Attributes:
        against: "all endpoints", or the name of a single one.
        asks: how many asks made calls.
        cost: the known cost of all calls; None: no call's cost is known.
        otherwise: what these asks would have cost; None: unknown.
        saved: the difference; below 0 if more was spent. None: unknown, as it is if any call's cost is unknown.
    """

    against: str
    asks: int
    cost: Decimal | None
    otherwise: Decimal | None
    saved: Decimal | None


def savings(
    pool: Sequence[Endpoint], found: Mapping[str, LedgerSum], accuracy: Sequence[float]
) -> tuple[Saving, Saving]:
    """Estimate the savings against asking the whole pool, and against the most accurate endpoint (first among equals).

    Each ask in the ledger would have cost the mean of the endpoint's calls so far or, if it was never called, its price
    for the tokens of a mean call. The cost paid is the ledger's sum, including failed calls, retries and exploration.

    Args:
        found: the store's `totals`; they also have endpoints that left the pool, and an embedder.
    """
    totals = {endpoint.name: found[endpoint.name] for endpoint in pool if endpoint.name in found}
    means = [_mean_cost(endpoint, totals) for endpoint in pool]
    best = accuracy.index(max(accuracy))
    asks, cost = sum(row.asks for row in found.values()), known_cost(found.values())
    paid = None if any(row.unpriced for row in found.values()) else cost

    def against(name: str, each: Decimal | None) -> Saving:
        otherwise = None if each is None else asks * each
        saved = None if otherwise is None or paid is None else otherwise - paid
        return Saving(name, asks, cost, otherwise, saved)

    return against(ALL, total(means)), against(pool[best].name, means[best])


def known_cost(rows: Iterable[LedgerSum]) -> Dollars | None:
    """USD of the calls in these rows with a known cost; None if there are calls and none has one."""
    known = [row.known_cost for row in rows if row.calls]
    costs = [cost for cost in known if cost is not None]
    return None if known and not costs else Dollars(sum(costs, Decimal(0)))


def _mean_cost(endpoint: Endpoint, totals: Mapping[str, LedgerSum]) -> Decimal | None:
    """Mean USD of a call to the endpoint; None if unknown."""
    row = totals.get(endpoint.name, _NO_CALLS)
    if row.calls > row.unpriced:
        return row.cost / (row.calls - row.unpriced)
    calls = sum(one.calls for one in totals.values())
    if endpoint.price is None or not calls:
        return None
    prompt = sum(one.prompt_tokens for one in totals.values()) * endpoint.price.prompt
    completion = sum(one.completion_tokens for one in totals.values()) * endpoint.price.completion
    return (prompt + completion) / calls / 1_000_000
