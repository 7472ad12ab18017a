"""Whom to probe: endpoints that a query was not asked, so that what is known of them stays fresh.

The policies ask those that were right lately. What they do not ask they hear nothing of: a newcomer, or an endpoint
that was poor and has become good. A probe asks them, too, after the answer was given, so that exploring costs money
and never a right answer. Probes cost a share p of what the asks do.

*With feedback* a probe goes where a dollar tells the most: to keep the sum of the variances of N accuracies low within
a budget, endpoint i should be seen in proportion to 1 / sqrt(c_i), c_i the cost of a call (Neyman's allocation with
costs; Cochran 1977, Sampling Techniques, 5.5). So the next one is the endpoint of the least (n_i + 10)^2 c_i, n_i the
outcomes of it in the window: a newcomer has none, one that changed only those since, and of one that is never asked
they slide out. For 200 outcomes after an endpoint changed p is five times as much.

*Without feedback* endpoints are judged by each other, and two alone cannot be. So a probe asks everybody at once, for
which the account saves up; but of copies only one. What that costs follows how little is known: p (1 + 24 u^2), u the
mean over endpoints of max(0, 1 - n_i / 20), which at p = 2 % is half of what the asks cost while nothing is.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from focalroute.observe.observer import Observer
from focalroute.observe.pool_stats import FEW

_PRIOR = 10  # outcomes that knowing nothing counts as
_ENOUGH = 50  # outcomes in the window, beyond which an endpoint is known to some 7 points and needs no probe
_WIDER = 24.0  # times the share beside it, while nothing is known and no feedback comes
_UNSETTLED = 4.0  # likewise, while the pool is unsettled
_CHEAPEST = 0.1  # of the pool's mean cost: what is cheaper counts as this much, so that nobody is probed for ever
_REMEMBERED = 100  # probes whose feedback may still come
_COPIES = 0.5  # see `Referees.copies`


class Cost(NamedTuple):
    """A cost: dollars as far as they are known, and calls."""

    usd: float
    calls: float


class Probe(NamedTuple):
    """Endpoints to probe with one query, and what they are expected to cost."""

    endpoints: tuple[int, ...]
    expected: Cost


class Probing:
    """The account of probes, and the choice of the next. Safe to use from any number of threads.

    Nothing here is random.

    Args:
        share: in [0, 1], of what the asks cost, in dollars, or in calls while the cost of any endpoint is unknown;
            more while little is known. 0: no probes.
        agreement: whether endpoints judge each other where there is no feedback. Without that, probes
            start with the first outcome, as earlier ones would teach nothing.
    """

    def __init__(self, observer: Observer, share: float, *, agreement: bool = False) -> None:
        self._observer = observer
        self._share = share
        self._agreement = agreement
        self._owed = Cost(0.0, 0.0)
        self._probed: deque[int] = deque(maxlen=_REMEMBERED)
        self._lock = threading.Lock()

    def after(self, ask: Cost, candidates: Callable[[], Collection[int]], asked: Collection[int] = ()) -> Probe | None:
        """After an ask: whom to probe with its query, if anybody; then `settle` what it cost.

        The probe is paid by the asks before this one: were it paid by this one, too, dear queries, which are the hard
        ones, would be probed more often than others.

        Args:
            ask: what it cost.
            candidates: gives the endpoints that were not asked and can be probed; called only if it is time for a
                probe, and one that was not asked needs it.
            asked: the endpoints that were asked.
        """
        if not self._share:
            return None
        with self._lock:
            prices, unit = self._prices()
            chosen = self._choose(candidates, asked, prices, unit)
            share = self._share * (1 + self._wider(self._observer.seen()))
            most = Cost(sum(price.usd for price in prices), len(prices))  # nobody is probed in long bursts
            owed = (min(owed + share * paid, top) for owed, paid, top in zip(self._owed, ask, most, strict=True))
            self._owed = Cost(*owed)
            if not chosen:
                return None
            self._probed.extend(chosen)
            expected = Cost(sum(prices[i].usd for i in chosen), len(chosen))
            self._pay(expected)
            return Probe(chosen, expected)

    def _wider(self, seen: Sequence[int]) -> float:
        """How many times the share is spent beside it."""
        if not self._unlabelled(seen):
            return _UNSETTLED if self._observer.unsettled else 0.0
        unknown = sum([max(0.0, 1 - n / FEW) for n in seen]) / len(seen)
        return _WIDER * (1.0 if self._observer.unsettled else unknown**2)

    def _unlabelled(self, seen: Sequence[int]) -> bool:
        """Whether most of what is known is known by agreement."""
        return self._agreement and 2 * sum(self._observer.labelled()) <= sum(seen)

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

    def _choose(
        self,
        candidates: Callable[[], Collection[int]],
        asked: Collection[int],
        prices: list[Cost],
        unit: int,
    ) -> tuple[int, ...]:
        """Choose whom to probe now; no endpoint while the account does not hold what that costs."""
        seen = self._observer.seen()
        if self._owed[unit] < min(price[unit] for price in prices) or not (self._agreement or any(seen)):
            return ()
        needy = [i for i in self._observer.order() if i not in asked and seen[i] < _ENOUGH]
        free = candidates() if needy else ()
        needy = [i for i in needy if i in free]

        def score(endpoint: int) -> float:
            outcomes = seen[endpoint] + self._probed.count(endpoint) + _PRIOR
            return outcomes * outcomes * prices[endpoint][unit]

        chosen = sorted(needy, key=score)[:1]
        if needy and self._unlabelled(seen):
            chosen = self._different(free, asked)
        return tuple(chosen) if sum(prices[i][unit] for i in chosen) <= self._owed[unit] else ()

    def _different(self, free: Collection[int], asked: Collection[int]) -> list[int]:
        """Of these all that copy no other that is asked."""
        copies = self._observer.copies()
        chosen: list[int] = []
        for endpoint in self._observer.order():
            if endpoint in free and all(copies[endpoint, other] < _COPIES for other in (*asked, *chosen)):
                chosen.append(endpoint)
        return chosen
