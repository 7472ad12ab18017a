"""`Stats`: what an ensemble has asked, paid and learned so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from focalroute.observe import Observer
from focalroute.observe.drift import Change
from focalroute.store.base import UsageTotal

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
        policy: the name of the policy that serves, where it has one; else None.
    """

    policy_version: int
    cost: Decimal
    endpoints: Mapping[str, EndpointStats]
    policy: str | None = None


def stats_of(
    names: Sequence[str],
    totals: Mapping[str, UsageTotal],
    observer: Observer,
    breakers: Sequence[str],
    version: int,
    policy: str | None,
) -> Stats:
    """Put the ledger, the window and the breakers side by side."""
    accuracy, seen, latency = observer.accuracy(), observer.seen(), observer.latency_s()
    changes = observer.changes()
    endpoints = {}
    for i, name in enumerate(names):
        row = totals.get(name, _NOTHING)
        endpoints[name] = EndpointStats(
            row.calls, row.unpriced, row.prompt_tokens, row.completion_tokens, row.cost,
            seen=int(seen[i]), accuracy=float(accuracy[i]), latency_s=latency[i], breaker=breakers[i],
            change=changes[i],
        )  # fmt: skip
    return Stats(version, sum((row.cost for row in totals.values()), Decimal(0)), endpoints, policy)
