"""Whom to probe: an endpoint that a query was not asked, now and then, so that what is known of it stays fresh.

The policies ask those that were right lately. What they do not ask they hear nothing of: a newcomer, or an endpoint
that was poor and has become good. Probes are paid out of a share of what the asks cost, and go where a dollar tells the
most: to keep the sum of the variances of N accuracies low within a budget, endpoint i should be seen in proportion to
1 / sqrt(c_i), c_i the cost of a call (Neyman's allocation with costs; Cochran 1977, Sampling Techniques, 5.5). So the
next one is the endpoint of the least (n_i + 10)^2 c_i, n_i the outcomes of it in the window: a newcomer has none, one
that changed only those since, and of one that is never asked they slide out.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection
from typing import NamedTuple

from focalroute.observe.observer import Observer

_PRIOR = 10  # outcomes that knowing nothing counts as
_ENOUGH = 50  # outcomes in the window, beyond which an endpoint is known to some 7 points and needs no probe
_WIDER = 5.0  # times the share, while the pool is unsettled
_CHEAPEST = 0.1  # of the pool's mean cost: what is cheaper counts as this much, so that nobody is probed for ever
_REMEMBERED = 100  # probes whose feedback may still come


class Cost(NamedTuple):
    """A cost: dollars as far as they are known, and calls."""

    usd: float
    calls: float


class Probe(NamedTuple):
    """An endpoint to probe, and what it is expected to cost."""

    endpoint: int
    expected: Cost


class Probing:
    """The account of probes, and the choice of the next. Safe to use from any number of threads.

    Over time the probes cost no more than ``share`` of what the asks do, in dollars, or in calls while the cost of any
    endpoint is unknown; for 200 outcomes after an endpoint changed five times that. Nothing here is random.

    There are no probes before the first outcome: without feedback a probe teaches nothing.

    Args:
        share: in [0, 1]; 0: no probes.
    """

    def __init__(self, observer: Observer, share: float) -> None:
        self._observer = observer
        self._share = share
        self._owed = Cost(0.0, 0.0)
        self._probed: deque[int] = deque(maxlen=_REMEMBERED)
        self._lock = threading.Lock()

    def after(self, ask: Cost, candidates: Callable[[], Collection[int]]) -> Probe | None:
        """After an ask: whom to probe with its query, if anybody; then `settle` what it cost.

        The probe is paid by the asks before this one: were it paid by this one, too, dear queries, which are the hard
        ones, would be probed more often than others.

        Args:
            ask: what it cost.
            candidates: gives the endpoints that were not asked and can be probed; asked only if it is time for a probe.
        """
        if not self._share:
            return None
        with self._lock:
            prices, unit = self._prices()
            chosen = self._choose(candidates, prices, unit)
            share = self._share * (_WIDER if self._observer.unsettled else 1.0)
            most = Cost(sum(price.usd for price in prices), len(prices))  # nobody is probed in long bursts
            owed = (min(owed + share * paid, top) for owed, paid, top in zip(self._owed, ask, most, strict=True))
            self._owed = Cost(*owed)
            if chosen is None:
                return None
            self._probed.append(chosen)
            self._pay(prices[chosen])
            return Probe(chosen, prices[chosen])

    def settle(self, probe: Probe, paid: Cost) -> None:
        """Record the cost of a probe."""
        with self._lock:
            self._pay(Cost(paid.usd - probe.expected.usd, paid.calls - probe.expected.calls))

    def _pay(self, cost: Cost) -> None:
        self._owed = Cost(self._owed.usd - cost.usd, self._owed.calls - cost.calls)

    def _prices(self) -> tuple[list[Cost], int]:
        """Return the expected cost of a probe of each, and the field in which the account is kept."""
        costs = self._observer.expected_cost()
        usd = [cost for cost in costs if cost is not None]
        least = sum(usd) / len(costs) * _CHEAPEST
        if len(usd) < len(costs) or not least:  # unknown, or all of them are free
            return [Cost(0.0, 1.0)] * len(costs), 1
        return [Cost(max(cost, least), 1.0) for cost in usd], 0

    def _choose(self, candidates: Callable[[], Collection[int]], prices: list[Cost], unit: int) -> int | None:
        seen = self._observer.seen()
        if self._owed[unit] < min(price[unit] for price in prices) or not any(seen):
            return None
        free = candidates()

        def score(endpoint: int) -> float:
            known = seen[endpoint] + self._probed.count(endpoint) + _PRIOR
            return known * known * prices[endpoint][unit]

        needy = [endpoint for endpoint in self._observer.order() if endpoint in free and seen[endpoint] < _ENOUGH]
        chosen = min(needy, key=score, default=None)
        return chosen if chosen is not None and self._owed[unit] >= prices[chosen][unit] else None
