"""Makes exploration calls, which put an answered query to endpoints that were not asked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from focalroute.answers import candidate_key, reply_form
from focalroute.core.errors import FocalrouteError
from focalroute.core.event_loops import Background
from focalroute.core.records import Query, Reply
from focalroute.endpoints.capabilities import Needs
from focalroute.endpoints.pool import Pool
from focalroute.money.budget import AskBudget
from focalroute.money.cost import Bill
from focalroute.money.pacing import Pacer
from focalroute.observe.exploration import Cost, Probe, Probing
from focalroute.observe.observer import Observer
from focalroute.serving.ask import Ask
from focalroute.store.base import PROBE, Store, StoredAnswer, StoredProbe

_log = logging.getLogger("focalroute")


class Explorer:
    """Makes exploration calls in the background of the loop that asked. Safe to use from several event loops.

    An exploration call is paid from its ask's budget, and so stays within all limits. Its rows in the ledger are under
    "probe:" and the answer's id; it is not on the receipt.

    Args:
        pacer: later asks make up for what exploration cost.
        share: see `focalroute.observe.exploration.Probing`, also for ``agreement``.
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
