"""Asks the endpoints of an ensemble concurrently; a member's failure is data (`Reply.error`), never an exception."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from decimal import Decimal
from functools import partial

from focalroute.core.config import Endpoint
from focalroute.core.errors import ConfigError
from focalroute.core.records import Query, Reply
from focalroute.endpoints import capabilities, elicit
from focalroute.endpoints.breaker import Breaker, Breakers, Latencies
from focalroute.endpoints.calls import CallContext, StreamSink
from focalroute.endpoints.capabilities import Capabilities, Needs
from focalroute.endpoints.client import HttpSessions
from focalroute.endpoints.elicit import Plan
from focalroute.endpoints.member import PoolMember
from focalroute.endpoints.paid_call import unknown_param, upper_bound, why_unbounded
from focalroute.endpoints.rate_limits import Health
from focalroute.endpoints.round import RaceAllowance, RoundCalls, RoundController, Rules
from focalroute.money.budget import AskBudget, BudgetGuard
from focalroute.store.accounts import AHEAD_S
from focalroute.store.base import HealthRow, Store

#: The bound of a call without a price, USD: the call is made as long as anything is left of every limit.
_UNPRICED = Decimal("1e-12")
_TOKENS_UNDER_BUDGET = 1024  # of a free-form reply whose length is not limited: a budget needs a bound
_STALE_S = 60.0  # if a stored trial was due longer ago than this, its process is gone
_THINKING = replace(capabilities.COSTLIEST, thinks=True)
_SCORED = replace(capabilities.COSTLIEST, whole_choices=True)
_REFRESH_EVERY_S = 1.0  # how often the states stored by other processes are fetched


def health_key(endpoint: Endpoint) -> str:
    """Return the key under which an endpoint's health is stored.

    It has the endpoint's name, as two endpoints for one model may use different accounts of the service.
    """
    return f"{endpoint.name}: {capabilities.key(endpoint)}"


class Pool:
    """The endpoints of an ensemble, ready to be asked. Safe to use from several event loops.

    Breaker states are shared by all processes on the store: written when they change, and fetched once a second, in the
    background.
    """

    def __init__(
        self, endpoints: Iterable[Endpoint], store: Store, guard: BudgetGuard, *, rules: Rules, samples: int
    ) -> None:
        pool = tuple(endpoints)
        self._sessions = HttpSessions()
        if any(endpoint.client is None for endpoint in pool):
            self._sessions.load()
        self._breakers = Breakers(len(pool), self._on_breaker_change)
        self._members = tuple(
            PoolMember(endpoint, breaker, self._sessions, store, guard)
            for endpoint, breaker in zip(pool, self._breakers.all, strict=True)
        )
        self._keys = tuple(map(health_key, pool))
        self._store = store
        self._rules = rules
        self._allowance = RaceAllowance()
        self._samples = samples
        self._rounds: set[RoundCalls] = set()  # under way, in all loops
        self._closed = False
        self._refresh_at = time.monotonic() + _REFRESH_EVERY_S
        self._on_health(store.health())

    # -- availability ------------------------------------------------------------------------------------------------

    def available(self) -> tuple[bool, ...]:
        """Return which endpoints may be called now without a long wait; possibly none."""
        self._refresh_health()
        return tuple([member.is_available() for member in self._members])

    def unpaused(self) -> tuple[bool, ...]:
        """Return which endpoints' rate limits allow at least a trial call now, whatever the state of their breakers."""
        return tuple([member.throttle.ready or member.throttle.triable for member in self._members])

    def lacking(self, needs: Needs) -> tuple[str | None, ...]:
        """Return for each endpoint the first need of the query that it does not meet (see `PoolMember.lacks`)."""
        return tuple([member.lacks(needs) for member in self._members])

    def out(self) -> tuple[bool, ...]:
        """Return which endpoints' breakers are not closed; never all."""
        return tuple([not member.breaker.allows for member in self._members])

    @property
    def latencies(self) -> tuple[Latencies, ...]:
        """How long each endpoint's latest calls took, pool order."""
        return tuple([member.breaker.latencies for member in self._members])

    def health(self) -> tuple[Health, ...]:
        """Return each endpoint's health, in pool order."""
        return tuple(member.health for member in self._members)

    def _on_breaker_change(self, index: int, breaker: Breaker) -> None:
        """Store a breaker's state for the other processes."""
        left_s = None if breaker.allows else breaker.left_s
        now = time.time()
        until = None if left_s is None else now + left_s
        self._store.write(HealthRow(self._keys[index], until, breaker.ejections, now))

    def _refresh_health(self) -> None:
        """Fetch the states stored by other processes, if that is due; `_on_health` applies them."""
        now = time.monotonic()
        if now >= self._refresh_at:
            self._refresh_at = now + _REFRESH_EVERY_S
            self._store.health().add_done_callback(self._on_health)

    def _on_health(self, stored: Future[Mapping[str, HealthRow]]) -> None:
        if stored.exception() is not None:  # the store reports its failures itself
            return
        now, clock = time.time(), time.monotonic()
        for key, member in zip(self._keys, self._members, strict=True):
            row = stored.result().get(key)
            if row is None or row.changed_at > now + AHEAD_S:  # a clock was ahead: the row would be newest until then
                continue
            left_s = None if row.open_until is None else row.open_until - now
            if left_s is None or left_s > -_STALE_S:
                member.breaker.on_remote_change(left_s, row.ejections, clock - (now - row.changed_at))

    async def upper_bounds(self, query: Query, ask_budget: AskBudget) -> tuple[Decimal, ...] | None:
        """Return the most that one call to each endpoint can cost, USD, with its most expensive plan.

        An endpoint without a price counts almost nothing (a budget that forbids such endpoints has refused it earlier).
        If the calls do not all fit the ask's budget, the store is asked again for what is left.

        Returns:
            None if no limit applies.

        Raises:
            ConfigError: a call has no upper bound.
            StoreError: the store cannot tell what is left.
        """
        if not ask_budget.limited:
            return None
        own = {name for member in self._members for name in member.endpoint.params}
        unknown = unknown_param({name: value for name, value in query.params.items() if name not in own})
        if unknown is not None:
            raise ConfigError(
                f"params: {unknown}: nothing bounds its cost, as a budget requires; leave it out, or give it to the "
                "Endpoint if it costs nothing"
            )
        plan = thinking_plan = self._plan(query, capabilities.COSTLIEST, bounded=True)
        if any(member.thinks for member in self._members):
            thinking_plan = self._plan(query, _THINKING, bounded=True)
        bounds = []
        for member in self._members:
            bounds.append(self._upper_bound(query, member, thinking_plan if member.thinks else plan))
            await asyncio.sleep(0)  # a prompt of many parts takes a while to count
        least = min(bounds)
        ask_budget.needed = None if least == _UNPRICED else least
        await ask_budget.make_room(bounds)
        return tuple(bounds)

    def _upper_bound(self, query: Query, member: PoolMember, plan: Plan) -> Decimal:
        endpoint = member.endpoint
        bound = upper_bound(member.with_least_room(plan.request), endpoint) if endpoint.price else _UNPRICED
        if bound is None:
            reason = why_unbounded(plan.request.params_over(endpoint.params), plan.request.messages)
            raise ConfigError(f"{reason or 'params: max_tokens, n: give whole numbers above 0'} under a budget")
        if bound and endpoint.whole_choices:
            scored = self._plan(query, _SCORED, bounded=True)
            bound = max(bound, upper_bound(scored.request, endpoint) or bound)
        return bound

    # -- asking ------------------------------------------------------------------------------------------------------

    def call_context(
        self, query: Query, ask_budget: AskBudget, deadline: float, stream_sink: StreamSink | None = None
    ) -> CallContext:
        """Return the context that all calls of one ask share (see `CallContext`); ``deadline`` is in loop time."""
        return CallContext(query, ask_budget, deadline, self._rules.attempts - 1, stream_sink)

    async def ask(
        self, picked: Sequence[int], context: CallContext, controller: RoundController | None = None
    ) -> tuple[Reply, ...]:
        """Ask the picked endpoints concurrently.

        Returns:
            Their replies in the same order, failures included; then those of endpoints that were asked because others
            were late.
        """
        if not picked:
            return ()
        plan = partial(self._plan, context.query, bounded=context.ask_budget.limited)
        calls = RoundCalls(self._members, context, self._rules, plan, controller, self._allowance, lambda: self._closed)
        self._rounds.add(calls)
        try:
            return await calls.run(picked)
        finally:
            self._rounds.discard(calls)

    def _plan(self, query: Query, capabilities: Capabilities, *, bounded: bool) -> Plan:
        """Return the best plan; ``bounded``: with a limit on the tokens of every reply."""
        plan = elicit.plan(query, capabilities, samples=self._samples)
        if bounded:
            for one in (plan, plan.fallback):
                if one is not None and one.request.max_tokens is None:
                    one.request.max_tokens = _TOKENS_UNDER_BUDGET
        return plan

    def give_up(self) -> None:
        """Give up the calls under way in all loops."""
        for calls in tuple(self._rounds):
            calls.give_up()

    async def aclose(self) -> None:
        """Close the connections and background calls of the running loop. Calls under way fail, without retries."""
        self._closed = True
        await asyncio.gather(*(member.aclose() for member in self._members))
        await self._sessions.aclose()
