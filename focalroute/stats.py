"""`Stats`: what an ensemble has asked, paid and learned so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from focalroute.config import Endpoint
from focalroute.cost import total
from focalroute.observe import Observer
from focalroute.observe.drift import Change
from focalroute.store.base import Store, UsageTotal

__all__ = ["EndpointStats", "Stats", "stats_of"]

_NOTHING = UsageTotal(0, 0, 0, 0, Decimal(0))


@dataclass(frozen=True, slots=True)
class EndpointStats:
    """One endpoint.

    Attributes:
        calls: calls on the store's ledger, retries and probes included; ``unpriced`` of them have no known cost.
        cost: USD of the others.
        seen: outcomes in the window in which it took part.
        accuracy: its share right among them, shrunk towards its long-run one, or else the pool's mean.
        latency_s: its mean latency among them; None if there are none.
        breaker: "closed", "open" or "half-open".
        change: the last time it was found to be right more, or less, often than before (see
            `focalroute.observe.drift`); None if it never was.
    """

    calls: int
    unpriced: int
    prompt_tokens: int
    completion_tokens: int
    cost: Decimal
    seen: int
    accuracy: float
    latency_s: float | None
    breaker: str
    change: Change | None


@dataclass(frozen=True, slots=True)
class Stats:
    """An ensemble at one moment.

    Attributes:
        policy_version: the version that serves now: 0 the shipped one, -1 the fallback, -2 a named policy.
        cost: USD of all calls with a known cost.
        endpoints: by name, in pool order.
        asks: how many asks they were for.
        if_all: USD if each of these had asked every endpoint once, at the mean cost of an endpoint's calls (where it
            was never called: its price for the tokens of a mean call); None if that is unknown for any.
        if_best_single: USD if each had asked only ``best_single``.
        best_single: the endpoint with the highest windowed accuracy, the first of equals.
        policy: the name of the policy that serves, where it has one; else None.
    """

    policy_version: int
    cost: Decimal
    endpoints: Mapping[str, EndpointStats]
    asks: int
    if_all: Decimal | None
    if_best_single: Decimal | None
    best_single: str
    policy: str | None = None


def stats_of(
    pool: Sequence[Endpoint],
    store: Store,
    observer: Observer,
    breakers: Sequence[str],
    version: int,
    policy: str | None,
) -> Stats:
    """Put the ledger, the window and the breakers side by side."""
    totals = store.totals()
    accuracy, seen, latency = observer.accuracy(), observer.seen(), observer.latency_s()
    changes = observer.changes()
    endpoints = {}
    for i, endpoint in enumerate(pool):
        row = totals.get(endpoint.name, _NOTHING)
        endpoints[endpoint.name] = EndpointStats(
            row.calls, row.unpriced, row.prompt_tokens, row.completion_tokens, row.cost,
            seen=int(seen[i]), accuracy=float(accuracy[i]), latency_s=latency[i], breaker=breakers[i],
            change=changes[i],
        )  # fmt: skip
    asks = sum(one.asks for one in store.ledger("all"))
    best = accuracy.index(max(accuracy))
    means = [_mean_cost(endpoint, totals) for endpoint in pool]
    return Stats(
        policy_version=version,
        cost=sum((row.cost for row in totals.values()), Decimal(0)),
        asks=asks,
        if_all=_times(asks, total(means)),
        if_best_single=_times(asks, means[best]),
        best_single=pool[best].name,
        endpoints=endpoints,
        policy=policy,
    )


def _times(asks: int, cost: Decimal | None) -> Decimal | None:
    return None if cost is None else asks * cost


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
