"""`Stats`: an ensemble's asks, costs and endpoints so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from focalroute.core.config import Endpoint
from focalroute.endpoints.rate_limits import Health
from focalroute.money.cost import Saving, known_cost, savings
from focalroute.observe.drift import Change
from focalroute.observe.observer import Observer
from focalroute.serving.judge import JudgeStats
from focalroute.store.base import LedgerSum, Store

_NOTHING = LedgerSum("")


@dataclass(frozen=True, slots=True)
class EndpointStats:
    """The statistics of one endpoint.

    Attributes:
        calls: calls on the store's ledger, retries and exploration included; ``unpriced`` of them have no known cost.
        cost: USD of the calls with a known cost; None where there are calls and none has one.
        seen: answers in the window for which it is known whether the endpoint was right; for ``labelled`` of them
            from feedback, for the others from agreement.
        accuracy: share of right answers among them, shrunk towards the endpoint's long-run share, if known, else
            towards the pool's mean.
        accuracy_interval: the 95 % interval of ``accuracy``.
        latency_s: mean latency over the window; None without an answer in it.
        breaker: "closed", "open" or "half-open".
        health: its health now.
        change: the latest detected change of its share of right answers (see `focalroute.observe.drift`), or None.
    """

    calls: int
    unpriced: int
    prompt_tokens: int
    completion_tokens: int
    cost: Decimal | None
    seen: int
    labelled: int
    accuracy: float
    accuracy_interval: tuple[float, float]
    latency_s: float | None
    breaker: str
    health: Health
    change: Change | None


@dataclass(frozen=True, slots=True)
class Stats:
    """The statistics of an ensemble at one moment.

    Attributes:
        policy_version: the version that serves now; 0: the shipped one, -1: the fallback, -2: a named policy.
        cost: USD of all calls with a known cost; None where there are calls and none has one.
        endpoints: by name, in pool order.
        asks: the number of asks.
        if_all: estimated USD if each ask had called every endpoint once (see `focalroute.money.cost`); None if unknown
            for any.
        if_best_single: estimated USD if each ask had called only ``best_single``, likewise.
        best_single: the endpoint with the highest windowed accuracy, the first among equals.
        saved: the savings against both, in that order.
        judge: the judge's statistics, whose cost is part of ``cost``; None without a judge.
        policy: the name of the serving policy; None if it has none.
    """

    policy_version: int
    cost: Decimal | None
    endpoints: Mapping[str, EndpointStats]
    asks: int
    if_all: Decimal | None
    if_best_single: Decimal | None
    best_single: str
    policy: str | None = None
    saved: tuple[Saving, ...] = ()
    judge: JudgeStats | None = None


def stats_of(
    pool: Sequence[Endpoint],
    store: Store,
    observer: Observer,
    health: Sequence[Health],
    version: int,
    policy: str | None,
    judge: JudgeStats | None = None,
) -> Stats:
    """Combine the ledger, the window and the endpoints' health."""
    totals = store.totals()
    accuracy, seen, latency = observer.accuracy(), observer.seen(), observer.latency_s()
    labelled, intervals, changes = observer.labelled(), observer.accuracy_interval(), observer.changes()
    endpoints = {}
    for i, endpoint in enumerate(pool):
        row = totals.get(endpoint.name, _NOTHING)
        endpoints[endpoint.name] = EndpointStats(
            row.calls, row.unpriced, row.prompt_tokens, row.completion_tokens, known_cost([row]),
            seen=seen[i], labelled=labelled[i], accuracy=accuracy[i],
            accuracy_interval=intervals[i], latency_s=latency[i],
            breaker=health[i].breaker, health=health[i], change=changes[i],
        )  # fmt: skip
    saved = savings(pool, totals, accuracy)
    all_, best = saved
    return Stats(
        policy_version=version,
        cost=known_cost(totals.values()),
        asks=all_.asks,
        if_all=all_.otherwise,
        if_best_single=best.otherwise,
        best_single=best.against,
        endpoints=endpoints,
        policy=policy,
        saved=saved,
        judge=judge,
    )
