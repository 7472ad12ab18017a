"""Costs of calls, by usage and price, and what was saved against asking differently.

Money is exact: `decimal.Decimal` USD. What is not known is None, never zero.
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
from focalroute.core.dollars import Dollars
from focalroute.core.records import CostSource, Usage
from focalroute.store.base import LedgerSum, Store

_log = logging.getLogger("focalroute")
_MILLION = Decimal(1_000_000)
_FINEST = Decimal("1e-12")  # USD
_WARN_EVERY_S = 60.0
_warned_at: dict[str, float] = {}  # by endpoint


def cost_of(usage: Usage, endpoint: Endpoint) -> tuple[Decimal | None, CostSource]:
    """Price the usage at this endpoint: the dearer of the provider's own figure and price x tokens.

    A provider may leave out what another one bills (a key of your own at a gateway), or say less than it takes. Unknown
    where neither is there. The source of a price is where it was looked up.
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
    """USD of a typical call by the price list, to compare endpoints before anything was seen; None if unknown."""
    price = endpoint.price
    return None if price is None else float(200 * price.prompt + 100 * price.completion) / 1e6


def total(costs: Iterable[Decimal | None]) -> Dollars | None:
    """The sum; None if any part is unknown."""
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
        doubt: of an estimate: USD that it may have cost besides, as it is unknown whether it was billed.
    """

    endpoint: str
    usage: Usage | None
    cost: Decimal | None
    source: CostSource
    doubt: Decimal | None = None

    @staticmethod
    def total(bills: Sequence[Bill]) -> tuple[Usage | None, Decimal | None, CostSource]:
        """Several attempts added up; the source is the least certain of theirs."""
        if len(bills) == 1:
            return bills[0].usage, total([bills[0].cost]), bills[0].source
        usages = [bill.usage for bill in bills if bill.usage is not None]
        usage = functools.reduce(operator.add, usages) if usages else None
        source: CostSource = min((bill.source for bill in bills), key=_CERTAINTY.index, default="price")
        return usage, total(bill.cost for bill in bills), source


class UsualCost(NamedTuple):
    """The usual cost of a call that can cost so much at the most, USD.

    Attributes:
        mean: of the endpoint's calls.
        dearer: of this and their mean share of what each could have cost.
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
    """Make an attempt's bill: by its usage, or without one an estimate, unless it, or the endpoint, was surely free.

    The estimate is half of the mean, as if every second such call were billed; one and a half times the usual cost may
    be spent. Where that is not known either, it is ``bound``, what was reserved.

    A bill above its bound is not believed, since no allowed call costs so much: it counts as the bound, and a warning,
    at most one a minute for each endpoint, says what was reserved and what was billed: prices may be out of date.
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
    cost = (usual.mean / 2).quantize(_FINEST)  # as the ledger keeps it, so that receipts add up to the same digit
    return Bill(endpoint.name, None, cost, "reserved", min(usual.dearer * 3 / 2, bound) - cost)


def _warn_of_excess(endpoint: str, bound: Decimal, cost: Decimal) -> None:
    now = time.monotonic()
    if now - _warned_at.get(endpoint, -math.inf) >= _WARN_EVERY_S:
        _warned_at[endpoint] = now
        _log.warning(
            "%s billed %s USD for a call that can cost %s at the most, which was reserved; the latter is counted. "
            "Check its prices", endpoint, cost, bound,
        )  # fmt: skip


_CERTAINTY: Sequence[CostSource] = ("unknown", "reserved", "library", "price", "listing", "provider")


# -- savings ---------------------------------------------------------------------------------------------------------

ALL = "all endpoints"
_NO_CALLS = LedgerSum("")


@dataclass(frozen=True, slots=True)
class Saving:
    """The saving against one counterfactual, USD.

    Attributes:
        against: "all endpoints", or the name of the single one.
        asks: how many asks the ledger holds; those of pruned rows are not among them, nor is what they cost.
        cost: what they cost, as far as it is known; None: of none of their calls.
        otherwise: what they would have cost; None: unknown.
        saved: the difference; below 0 where more was spent.
    """

    against: str
    asks: int
    cost: Decimal | None
    otherwise: Decimal | None
    saved: Decimal | None


def savings(pool: Sequence[Endpoint], store: Store, accuracy: Sequence[float]) -> tuple[Saving, Saving]:
    """Estimate the savings against asking the whole pool, and against the most accurate endpoint, the first of equals.

    Each ask on the ledger is counted with the mean cost of an endpoint's calls so far, or where it was never called
    with its price for the tokens of a mean call. The cost paid is the ledger's own sum, with failed calls, retries and
    exploration.
    """
    found = store.totals()  # with endpoints that left the pool, and what an embedder was paid
    totals = {endpoint.name: found[endpoint.name] for endpoint in pool if endpoint.name in found}
    means = [_mean_cost(endpoint, totals) for endpoint in pool]
    best = accuracy.index(max(accuracy))
    rows = store.ledger("all")
    asks, cost = sum(row.asks for row in rows), known_cost(rows)
    return _against(ALL, asks, cost, total(means)), _against(pool[best].name, asks, cost, means[best])


def known_cost(rows: Iterable[LedgerSum]) -> Dollars | None:
    """USD of the calls in these rows whose cost is known; None where there are calls and it is of none."""
    known = [row.known_cost for row in rows if row.calls]
    costs = [cost for cost in known if cost is not None]
    return None if known and not costs else Dollars(sum(costs, Decimal(0)))


def _against(name: str, asks: int, cost: Decimal | None, each: Decimal | None) -> Saving:
    otherwise = None if each is None else asks * each
    return Saving(name, asks, cost, otherwise, None if otherwise is None or cost is None else otherwise - cost)


def _mean_cost(endpoint: Endpoint, totals: Mapping[str, LedgerSum]) -> Decimal | None:
    """USD of one call to it."""
    row = totals.get(endpoint.name, _NO_CALLS)
    if row.calls > row.unpriced:
        return row.cost / (row.calls - row.unpriced)
    calls = sum(one.calls for one in totals.values())
    if endpoint.price is None or not calls:
        return None
    prompt = sum(one.prompt_tokens for one in totals.values()) * endpoint.price.prompt
    completion = sum(one.completion_tokens for one in totals.values()) * endpoint.price.completion
    return (prompt + completion) / calls / 1_000_000
