"""What was saved against asking differently: every endpoint each time, or only the best single one.

Both counterfactuals are estimates: each ask that the ledger holds, times the mean cost of an endpoint's calls so far
(where it was never called: its price for the tokens of a mean call). What was really paid is the ledger's own sum,
failed and repeated calls and probes included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from focalroute.core.config import Endpoint
from focalroute.money.cost import total
from focalroute.store.base import Store, UsageTotal

ALL = "all endpoints"
_NOTHING = UsageTotal(0, 0, 0, 0, Decimal(0))


@dataclass(frozen=True, slots=True)
class Saving:
    """Against one counterfactual, USD.

    Attributes:
        against: "all endpoints", or the name of the single one.
        asks: how many asks the ledger holds; those of pruned rows are not among them, nor is what they cost.
        cost: what they cost, as far as it is known.
        otherwise: what they would have cost, None where unknown.
        saved: the difference; below 0 where more was spent.
    """

    against: str
    asks: int
    cost: Decimal
    otherwise: Decimal | None
    saved: Decimal | None


def savings(pool: Sequence[Endpoint], store: Store, accuracy: Sequence[float]) -> tuple[Saving, Saving]:
    """Against asking all of the pool, and against the endpoint of the highest accuracy, the first of equals."""
    found = store.totals()  # with endpoints that left the pool, and what an embedder was paid
    totals = {endpoint.name: found[endpoint.name] for endpoint in pool if endpoint.name in found}
    means = [_mean_cost(endpoint, totals) for endpoint in pool]
    best = accuracy.index(max(accuracy))
    rows = store.ledger("all")
    asks, cost = sum(row.asks for row in rows), sum((row.cost for row in rows), Decimal(0))
    return _against(ALL, asks, cost, total(means)), _against(pool[best].name, asks, cost, means[best])


def _against(name: str, asks: int, cost: Decimal, each: Decimal | None) -> Saving:
    otherwise = None if each is None else asks * each
    return Saving(name, asks, cost, otherwise, None if otherwise is None else otherwise - cost)


def _mean_cost(endpoint: Endpoint, totals: Mapping[str, UsageTotal]) -> Decimal | None:
    """USD of one call to it."""
    row = totals.get(endpoint.name, _NOTHING)
    if row.calls > row.unpriced:
        return row.cost / (row.calls - row.unpriced)
    calls = sum(one.calls for one in totals.values())
    if endpoint.price is None or not calls:
        return None
    prompt = sum(one.prompt_tokens for one in totals.values()) * endpoint.price.prompt
    completion = sum(one.completion_tokens for one in totals.values()) * endpoint.price.completion
    return (prompt + completion) / calls / 1_000_000
