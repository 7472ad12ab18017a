"""Explores: puts answered queries to endpoints that were not asked, and chooses which answers to label.

Policies ask endpoints that were right lately, and so learn nothing of the others: a new endpoint, or a poor one that
has improved. A probe puts the query to those once it is answered, so that exploration costs money but no right
answers. Probes cost a share p of what asks cost.

*With feedback* a probe asks the endpoint that yields the most information per dollar. The sum of the variances of N
accuracies is least within a budget if endpoint i is seen in proportion to 1 / sqrt(c_i), c_i the cost of a call
(Neyman's allocation with costs; Cochran 1977, Sampling Techniques, 5.5). So the next probe goes to the endpoint with
the least (n_i + 10)^2 c_i, n_i its outcomes in the window: a new endpoint has none, a changed one only those since the
change, and those of an endpoint that is never asked leave the window. For 200 outcomes after a change p is five times
as large.

*Without feedback* endpoints judge each other, which takes more than two. So the account saves up for a probe of all
endpoints at once, leaving out copies. It spends p (1 + 24 u^2), u the mean over endpoints of max(0, 1 - n_i / 20), and
1 after a change: at p = 2 % that is half of what the asks cost while nothing is known.

*Labels* teach the most where members differ. Three quarters of a share s of all answers go to disputed ones, a
quarter to any: with d the share of disputed answers, these are drawn with probability s / 4 + 3/4 s / d, at most 1.
Others are labelled, too, as agreement flatters there as well.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
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
_WIDER = 24.0  # times the share, spent in addition while nothing is known and no feedback comes
_UNSETTLED = 4.0  # likewise, while the pool is unsettled
_CHEAPEST = 0.1  # of the pool's mean cost: least cost of a probe, so that a cheap endpoint is not probed forever
_REMEMBERED = 100  # probes whose feedback may still come
_COPIES = 0.5  # see `Referees.copies`
_AT_RANDOM = 0.25  # of the labels
_DISPUTED = (10, 0.2)  # prior of the share of disputed answers: worth 10 answers, 0.2
_LATEST = 500  # answers that the share of disputed ones is taken of
_LEAST = 1e-9  # of that share


class Cost(NamedTuple):
    """A cost in dollars, as far as known, and in calls."""

    usd: float
    calls: float


class Probe(NamedTuple):
    """The endpoints to probe with one query, and their expected cost."""

    endpoints: tuple[int, ...]
    expected: Cost


class Probing:
    """Keeps the account of probes and chooses the next. Deterministic; safe to use from any number of threads.

    Args:
        share: p, in [0, 1], of the asks' cost in dollars, or in calls while any endpoint's cost is unknown. 0: no
            probes.
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
        """Return the probe to make after an ask, if any; `settle` its cost afterwards.

        Only earlier asks pay for it: if this one did too, expensive queries, which are the hard ones, would be probed
        more often than others.

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
            share = self._share * (1 + self._wider(self._observer.seen()))
            most = Cost(sum(price.usd for price in prices), len(prices))  # so that probes do not come in long bursts
            owed = (min(owed + share * paid, top) for owed, paid, top in zip(self._owed, ask, most, strict=True))
            self._owed = Cost(*owed)
            if not chosen:
                return None
            self._probed.extend(chosen)
            expected = Cost(sum(prices[i].usd for i in chosen), len(chosen))
            self._pay(expected)
            return Probe(chosen, expected)

    def _wider(self, seen: Sequence[int]) -> float:
        """Return how many times the share is spent in addition to it."""
        if not self._unlabelled(seen):
            return _UNSETTLED if self._observer.unsettled else 0.0
        unknown = sum([max(0.0, 1 - n / FEW) for n in seen]) / len(seen)
        return _WIDER * (1.0 if self._observer.unsettled else unknown**2)

    def _unlabelled(self, seen: Sequence[int]) -> bool:
        """Whether at least half of the outcomes come from agreement."""
        return self._agreement and 2 * sum(self._observer.labelled()) <= sum(seen)

    def settle(self, probe: Probe, paid: Cost) -> None:
        """Record the cost of a probe."""
        with self._lock:
            self._pay(Cost(paid.usd - probe.expected.usd, paid.calls - probe.expected.calls))

    def _pay(self, cost: Cost) -> None:
        self._owed = Cost(self._owed.usd - cost.usd, self._owed.calls - cost.calls)

    def _prices(self) -> tuple[list[Cost], int]:
        """Return the expected cost of probing each endpoint, and which field of `Cost` the account uses."""
        costs = self._observer.expected_cost()
        usd = [cost for cost in costs if cost is not None]
        least = sum(usd) / len(costs) * _CHEAPEST
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
        """Choose the endpoints to probe now; none while the account cannot pay for them."""
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
            chosen = self._different(free, asked)
        return tuple(chosen) if sum(prices[i][unit] for i in chosen) <= self._owed[unit] else ()

    def _different(self, free: Collection[int], asked: Collection[int]) -> list[int]:
        """Return the free endpoints without copies of each other or of those asked."""
        copies = self._observer.copies()
        chosen: list[int] = []
        for endpoint in self._observer.order():
            if endpoint in free and all(copies[endpoint, other] < _COPIES for other in (*asked, *chosen)):
                chosen.append(endpoint)
        return chosen


class DisputedFirst:
    """Draws a share of the answers to label, mostly those whose members differ.

    Args:
        share: of all answers, in [0, 1]; the mean comes close to it.
        earlier: whether each of the latest answers was disputed, oldest first.
    """

    def __init__(self, share: float, earlier: Iterable[bool] = ()) -> None:
        self._share = share
        self._answers, self._disputed = _DISPUTED
        self._lock = threading.Lock()
        for disputed in earlier:
            self.probability(disputed)

    def probability(self, disputed: bool) -> float:
        """Return the probability that the next answer is drawn."""
        with self._lock:
            d = max(self._disputed, _LEAST)
            self._answers = min(self._answers + 1, _LATEST)
            self._disputed += (disputed - d) / self._answers
        first = min(1.0, self._share * (_AT_RANDOM + (1 - _AT_RANDOM) / d))
        return first if disputed else max(0.0, (self._share - d * first) / (1 - d))


class Explorer:
    """Makes exploration calls in the background of the loop that asked. Safe to use from several event loops.

    An exploration call is paid from its ask's budget, and so stays within all limits. Its rows in the ledger are under
    "probe:" and the answer's id; it is not on the receipt.

    Args:
        pacer: later asks make up for what exploration cost.
        share: see `Probing`, also for ``agreement``.
        deadline_s: for one call.
        on_probe: called with the answer and its probes.
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
        """Put the query of a stored answer to other endpoints, if exploration is due. Returns at once."""
        if self._closed or ask.view.agreement is not None:  # feedback says nothing about another open text
            return
        probe = self._probing.after(_cost(ask.ask_budget.bills), lambda: self._callable(ask), ask.view.asked)
        if probe is not None:
            self._tasks.start(self._explore(probe, ask.query, ask.ask_budget, answer))

    def _callable(self, ask: Ask) -> set[int]:
        """Return the endpoints that were not asked, and can be."""
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
        """Cancel the calls under way in the running loop; their costs are in the ledger. Begin no more."""
        self._closed = True
        await self._tasks.cancel()


def stored_probe(query: Query, reply: Reply) -> StoredProbe | None:
    """Make the row of an exploration call's reply; None if there was none.

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
