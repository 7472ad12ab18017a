"""Explores: sends answered queries to endpoints that were not asked.

Policies ask endpoints that were right lately. They learn nothing about the others, such as a new endpoint or a poor one
that has improved. After an answer, a *probe* therefore sends the query to some of those. This costs money but no right
answers. Probes cost a share p of what asks cost.

*With feedback* a probe asks one endpoint, the one that yields the most information per dollar. Let c_i be the cost of
a call to endpoint i. Within a budget, the sum of the variances of the accuracies is least if endpoint i is seen in
proportion to 1 / sqrt(c_i) (Neyman's allocation with costs; Cochran 1977, Sampling Techniques, 5.5). So the next probe
goes to the endpoint with the least (n_i + 10)^2 c_i, where n_i counts its outcomes in the window. A new endpoint has
none, a changed one only those since the change, and the outcomes of an endpoint that is never asked leave the window.
For 200 outcomes after a change, p is five times as large.

*Without feedback* endpoints judge each other, which takes more than two of them. So the account saves up for a probe of
all endpoints at once, without copies of each other. It spends the share p (1 + 24 u^2), where u is the mean over the
endpoints of max(0, 1 - n_i / 20), or 1 after a change. With p = 2 % that is half of what asks cost while nothing is
known.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from focalroute.answers import candidate_key, reply_form
from focalroute.core.errors import FocalrouteError
from focalroute.core.event_loops import Background
from focalroute.core.records import Query, Reply
from focalroute.endpoints.capabilities import Needs
from focalroute.endpoints.pool import Pool
from focalroute.money.budget import AskBudget
from focalroute.money.cost import Bill
from focalroute.money.pacing import Pacer
from focalroute.observe.observer import Observer
from focalroute.observe.pool_stats import FEW
from focalroute.serving.ask import Ask
from focalroute.store.base import PROBE, Store, StoredAnswer, StoredProbe

_log = logging.getLogger("focalroute")

_PRIOR_OUTCOMES = 10  # outcomes added to each endpoint's count
_ENOUGH = 50  # outcomes in the window after which accuracy is known to some 7 points and needs no probe
_EXTRA_UNKNOWN = 24.0  # times the share, spent in addition while nothing is known and no feedback comes
_EXTRA_CHANGED = 4.0  # likewise with feedback, after a change
_LEAST_COST = 0.1  # times the pool's mean cost: a cheaper probe counts as this, or only that endpoint would be probed
_REMEMBERED = 100  # probes whose feedback may still come
_SAME = 0.5  # from this value of `Referees.copies` on two endpoints count as copies


class Cost(NamedTuple):
    """A cost in dollars, as far as known, and in calls."""

    usd: float
    calls: float


class Probe(NamedTuple):
    """The endpoints to probe with one query, and their expected cost."""

    endpoints: tuple[int, ...]
    expected: Cost


class Probing:
    """Keeps the account that pays for probes, and chooses the next probe. Deterministic; safe to use from many threads.

    Args:
        share: p in [0, 1], of the asks' cost in dollars, or of their calls while any endpoint's cost is unknown.
            0: no probes.
        agreement: whether endpoints judge each other without feedback. If not, probes start with the first outcome, as
            earlier ones would teach nothing.
    """

    def __init__(self, observer: Observer, share: float, *, agreement: bool = False) -> None:
        self._observer = observer
        self._share = share
        self._agreement = agreement
        self._owed = Cost(0.0, 0.0)
        self._probed: deque[int] = deque(maxlen=_REMEMBERED)
        self._lock = threading.Lock()

    def after(self, ask: Cost, candidates: Callable[[], Collection[int]], asked: Collection[int] = ()) -> Probe | None:
        """Return the probe to make after an ask, if any; afterwards call `settle` with its cost.

        The probe is paid from earlier asks only. If this ask paid, too, expensive queries, which are the hard ones,
        would be probed more often than others.

        Args:
            ask: its cost.
            candidates: returns the endpoints that were not asked and can be probed; called only if a probe is due and
                some endpoint needs it.
            asked: the endpoints that were asked.
        """
        if not self._share:
            return None
        with self._lock:
            prices, unit = self._prices()
            chosen = self._choose(candidates, asked, prices, unit)
            share = self._share * (1 + self._extra(self._observer.seen()))
            self._owed = Cost(  # bounded, so that probes do not come in bursts
                min(self._owed.usd + share * ask.usd, sum(price.usd for price in prices)),
                min(self._owed.calls + share * ask.calls, len(prices)),
            )
            if not chosen:
                return None
            self._probed.extend(chosen)
            expected = Cost(sum(prices[i].usd for i in chosen), len(chosen))
            self._pay(expected)
            return Probe(chosen, expected)

    def _extra(self, seen: Sequence[int]) -> float:
        """Return the extra spending, as a multiple of the share."""
        if not self._unlabelled(seen):
            return _EXTRA_CHANGED if self._observer.unsettled else 0.0
        unknown = sum([max(0.0, 1 - n / FEW) for n in seen]) / len(seen)
        return _EXTRA_UNKNOWN * (1.0 if self._observer.unsettled else unknown**2)

    def _unlabelled(self, seen: Sequence[int]) -> bool:
        """Whether at least half of the outcomes come from agreement rather than feedback."""
        return self._agreement and 2 * sum(self._observer.labelled()) <= sum(seen)

    def settle(self, probe: Probe, paid: Cost) -> None:
        """Correct the account by the actual cost of a probe."""
        with self._lock:
            self._pay(Cost(paid.usd - probe.expected.usd, paid.calls - probe.expected.calls))

    def _pay(self, cost: Cost) -> None:
        self._owed = Cost(self._owed.usd - cost.usd, self._owed.calls - cost.calls)

    def _prices(self) -> tuple[list[Cost], int]:
        """Return the expected cost of probing each endpoint, and the index of the field of `Cost` that counts."""
        costs = self._observer.expected_cost()
        usd = [cost for cost in costs if cost is not None]
        least = sum(usd) / len(costs) * _LEAST_COST
        if len(usd) < len(costs) or not least:  # a cost is unknown, or all are free
            return [Cost(0.0, 1.0)] * len(costs), 1
        return [Cost(max(cost, least), 1.0) for cost in usd], 0

    def _choose(
        self,
        candidates: Callable[[], Collection[int]],
        asked: Collection[int],
        prices: list[Cost],
        unit: int,
    ) -> tuple[int, ...]:
        """Choose the endpoints to probe now; none while the account cannot pay for them.

        Args:
            unit: index of the field of `Cost` that counts: 0 for dollars, 1 for calls.
        """
        seen = self._observer.seen()
        if self._owed[unit] < min(price[unit] for price in prices) or not (self._agreement or any(seen)):
            return ()
        needy = [i for i in self._observer.order() if i not in asked and seen[i] < _ENOUGH]
        free = candidates() if needy else ()
        needy = [i for i in needy if i in free]

        def score(endpoint: int) -> float:
            outcomes = seen[endpoint] + self._probed.count(endpoint) + _PRIOR_OUTCOMES
            return outcomes * outcomes * prices[endpoint][unit]

        chosen = sorted(needy, key=score)[:1]
        if needy and self._unlabelled(seen):
            chosen = self._without_copies(free, asked)
        return tuple(chosen) if sum(prices[i][unit] for i in chosen) <= self._owed[unit] else ()

    def _without_copies(self, free: Collection[int], asked: Collection[int]) -> list[int]:
        """Return the free endpoints that are not copies of each other or of those asked."""
        copies = self._observer.copies()
        chosen: list[int] = []
        for endpoint in self._observer.order():
            if endpoint in free and all(copies[endpoint, other] < _SAME for other in (*asked, *chosen)):
                chosen.append(endpoint)
        return chosen


class Explorer:
    """Makes probes in the background of the loop that asked. Safe to use from several event loops.

    A probe is paid from its ask's budget, so it stays within all limits. In the ledger it is under "probe:" and the
    answer's id; it is not on the receipt.

    Args:
        pacer: counts the cost of probes, so that later asks make up for it.
        share: see `Probing`, also for ``agreement``.
        deadline_s: for the calls of a probe.
        on_probe: called with the answer and the replies to its probe.
    """

    def __init__(
        self,
        observer: Observer,
        pool: Pool,
        store: Store,
        pacer: Pacer,
        share: float,
        *,
        agreement: bool,
        deadline_s: float,
        on_probe: Callable[[StoredAnswer], None],
    ) -> None:
        self._on_probe = on_probe
        self._probing = Probing(observer, share, agreement=agreement)
        self._pacer = pacer
        self._pool = pool
        self._store = store
        self._deadline_s = deadline_s
        self._tasks = Background()
        self._closed = False

    def on_answer(self, ask: Ask, answer: StoredAnswer) -> None:
        """Send the query of a stored answer to other endpoints if a probe is due. Returns at once."""
        if self._closed or ask.view.agreement is not None:  # feedback on one open text says nothing about another
            return
        probe = self._probing.after(_cost(ask.ask_budget.bills), lambda: self._callable(ask), ask.view.asked)
        if probe is not None:
            self._tasks.start(self._explore(probe, ask.query, ask.ask_budget, answer))

    def _callable(self, ask: Ask) -> set[int]:
        """Return the endpoints that were not asked and can be asked now."""
        free = enumerate(zip(self._pool.available(), self._pool.lacking(Needs(ask.query)), strict=True))
        return {i for i, (available, lack) in free if available and not lack and i not in ask.view.asked}

    async def _explore(self, probe: Probe, query: Query, ask_budget: AskBudget, answer: StoredAnswer) -> None:
        paid, written = len(ask_budget.bills), len(ask_budget.unwritten)
        ask_budget.answer_id = f"{PROBE}:{query.id}"
        deadline = asyncio.get_running_loop().time() + self._deadline_s
        try:
            replies = await self._pool.ask(probe.endpoints, self._pool.call_context(query, ask_budget, deadline))
            rows = tuple([row for reply in replies if (row := stored_probe(query, reply)) is not None])
            if rows:
                self._store.write(*rows)
                self._on_probe(replace(answer, probes=rows))
        except FocalrouteError as error:
            _log.warning("an exploration call failed: %s", error)
        finally:
            cost = _cost(ask_budget.bills[paid:])
            self._probing.settle(probe, cost)
            self._pacer.add(cost.usd)
            ask_budget.write(written)

    async def aclose(self) -> None:
        """Begin no more probes, and cancel those under way in the running loop; their costs are in the ledger."""
        self._closed = True
        await self._tasks.cancel()


def stored_probe(query: Query, reply: Reply) -> StoredProbe | None:
    """Make the row of a reply to a probe; None if no reply came.

    Raises:
        ConfigError: the caller's own normaliser failed.
    """
    if reply.error is not None and reply.error.kind != "unusable":
        return None
    candidate: str | None = None
    if not query.choices:
        candidate = reply_form(reply, query.answer)
    elif reply.choice is not None:
        candidate = query.choices[reply.choice]
    key = None if candidate is None else candidate_key(candidate)
    return StoredProbe(query.id, reply.endpoint, key, reply.length, reply.latency_s, reply.cost)


def _cost(bills: list[Bill]) -> Cost:
    return Cost(float(sum(bill.cost or 0 for bill in bills)), len(bills))
