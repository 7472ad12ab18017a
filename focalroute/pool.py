"""Asks members concurrently. A member's failure is data (``Reply.error``), never an exception.

The one owner of retries: `EndpointClient` makes single attempts, `elicit` plans and reads them, and here they are
repeated, kept within the deadline and the purse, and counted.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any
from weakref import WeakKeyDictionary

import tenacity

from focalroute import capabilities, elicit
from focalroute.capabilities import Capabilities
from focalroute.config import Endpoint
from focalroute.cost import Bill, BudgetGuard, Purse, cost_of, upper_bound
from focalroute.elicit import Plan, Reading
from focalroute.endpoint import EndpointClient, HttpClients
from focalroute.errors import CallFailed, ConfigError
from focalroute.limits import Breaker
from focalroute.records import Failure, Query, Reply, Usage
from focalroute.store.base import CapabilityRow, LedgerRow, Row, Store
from focalroute.wire import Completion

__all__ = ["PROBE", "Pool"]

#: The answer id under which probes stand in the ledger.
PROBE = "probe"

_PROBE_AGAIN_S = 7 * 24 * 3600.0
_FIRST_WAIT_S = 0.25
_MAX_WAIT_S = 8.0
_TOKENS_UNDER_BUDGET = 1024  # for a free-form reply whose length nobody bounded: a budget needs a bound
_SURELY_FREE = ("status", "connection", "unavailable")


@dataclass(slots=True)
class _Call:
    """One member's part in one round: what it may do, and what its attempts have cost so far."""

    plan: Plan
    purse: Purse
    deadline: float
    bills: list[Bill] = field(default_factory=list)


class _Seat:
    """One endpoint in the pool: its client, its breaker, what it can do."""

    def __init__(self, endpoint: Endpoint, clients: HttpClients, store: Store, guard: BudgetGuard) -> None:
        self.endpoint = endpoint
        self.breaker = Breaker()
        self._client = EndpointClient(endpoint, clients)
        self._store = store
        self._guard = guard
        self._capabilities = capabilities.declared(endpoint) or self._remembered()
        self._probes: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[Capabilities]] = WeakKeyDictionary()
        self._gates: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    def _remembered(self) -> Capabilities | None:
        row = self._store.capabilities(capabilities.key(self.endpoint))
        if row is None or time.time() - row.probed_at > _PROBE_AGAIN_S:
            return None
        return capabilities.override(self.endpoint, Capabilities.from_dict(row.values))

    async def capabilities(self) -> Capabilities:
        """What the endpoint can do; probed once, by whoever needs it first, for all who wait.

        Raises:
            CallFailed: the probe did not get through; the next caller tries again.
        """
        if self._capabilities is not None:
            return self._capabilities
        loop = asyncio.get_running_loop()
        probe = self._probes.get(loop)
        if probe is None or probe.done():
            probe = self._probes[loop] = loop.create_task(self._probe())
        return await asyncio.shield(probe)

    async def _probe(self) -> Capabilities:
        held = upper_bound(capabilities.PROBE, self.endpoint) or Decimal(0)
        if not self._guard.reserve(held):
            raise CallFailed(Failure("unavailable", "not affordable any more"))
        bill = Bill(self.endpoint.name, None, held, "reserved")
        rows: list[Row] = []
        try:
            measured, usage = await capabilities.probe(self._client)
            bill = self._bill(usage, held, None)
            rows.append(CapabilityRow(capabilities.key(self.endpoint), time.time(), measured.to_dict()))
        except CallFailed as error:
            self.breaker.leave(error.failure)
            bill = self._bill(error.usage, held, error.failure)
            raise
        finally:
            self._guard.settle(held, bill.cost or Decimal(0))
            self._store.write(*rows, LedgerRow(PROBE, bill.endpoint, time.time(), bill.usage, bill.cost, bill.source))
        self._capabilities = capabilities.override(self.endpoint, measured)
        return self._capabilities

    async def aclose(self) -> None:
        """Give up a probe still under way in this loop."""
        probe = self._probes.pop(asyncio.get_running_loop(), None)
        if probe is not None:
            probe.cancel()
            await asyncio.gather(probe, return_exceptions=True)

    async def attempt(self, call: _Call) -> tuple[Reading, Completion]:
        """One call, reserved before and settled after, whatever becomes of it.

        Raises:
            CallFailed: it failed, or does not fit the purse.
        """
        bound = upper_bound(call.plan.request, self.endpoint)
        held = bound or Decimal(0)
        if not call.purse.reserve(held):
            raise CallFailed(Failure("unavailable", "not affordable any more"))
        self.breaker.enter()
        failure: Failure | None = None
        usage: Usage | None = None
        try:
            async with self._gate():
                completion = await self._client.complete(call.plan.request)
            usage = completion.usage
            return call.plan.read(completion), completion
        except CallFailed as error:
            failure, usage = error.failure, error.usage or usage
            raise
        except asyncio.CancelledError:
            failure = _given_up(call)
            raise
        finally:
            self.breaker.leave(failure)
            bill = self._bill(usage, bound, failure)
            call.bills.append(bill)
            call.purse.settle(held, bill)

    def _bill(self, usage: Usage | None, bound: Decimal | None, failure: Failure | None) -> Bill:
        if usage is not None:
            return Bill(self.endpoint.name, usage, *cost_of(usage, self.endpoint))
        if failure is not None and failure.kind in _SURELY_FREE:
            return Bill(self.endpoint.name, None, Decimal(0), "price")
        return Bill(self.endpoint.name, None, bound, "unknown" if bound is None else "reserved")

    def _gate(self) -> asyncio.Semaphore | _Open:
        if self.endpoint.max_concurrency is None:
            return _OPEN
        return self._gates.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self.endpoint.max_concurrency))


class _Open:
    """A gate without a limit."""

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *_: object) -> None: ...


_OPEN = _Open()


class Pool:
    """The endpoints of an ensemble, ready to be asked. Safe to use from several event loops."""

    def __init__(
        self, endpoints: Iterable[Endpoint], store: Store, guard: BudgetGuard, *, attempts: int, samples: int
    ) -> None:
        self._clients = HttpClients()
        self._seats = tuple(_Seat(endpoint, self._clients, store, guard) for endpoint in endpoints)
        self._attempts = attempts
        self._samples = samples

    def available(self) -> tuple[bool, ...]:
        """Which endpoints may be called now. Never none: when every breaker is open, all may be tried."""
        closed = tuple(seat.breaker.allows for seat in self._seats)
        return closed if any(closed) else (True,) * len(closed)

    def states(self) -> tuple[str, ...]:
        """Each endpoint's breaker state, pool order."""
        return tuple(seat.breaker.state for seat in self._seats)

    def upper_bounds(self, query: Query) -> tuple[Decimal, ...]:
        """The most one call to each endpoint can cost, USD, by the dearest way to put the query.

        Raises:
            ConfigError: it has no upper bound.
        """
        plan = self._plan(query, capabilities.DEAREST, bounded=True)
        bounds = [upper_bound(plan.request, seat.endpoint) for seat in self._seats]
        known = tuple(bound for bound in bounds if bound is not None)
        if len(known) < len(bounds):
            raise ConfigError(
                "params: max_tokens and n must be whole numbers, or be left out, where a budget is to be kept"
            )
        return known

    async def ask(self, picked: Sequence[int], query: Query, purse: Purse, deadline: float) -> tuple[Reply, ...]:
        """Ask the picked endpoints concurrently; their replies in the same order, failures included.

        ``deadline`` is in the running loop's time.
        """
        if len(picked) == 1:
            return (await self._ask(self._seats[picked[0]], query, purse, deadline),)
        return tuple(await asyncio.gather(*(self._ask(self._seats[i], query, purse, deadline) for i in picked)))

    async def _ask(self, seat: _Seat, query: Query, purse: Purse, deadline: float) -> Reply:
        started = time.perf_counter()
        call: _Call | None = None
        try:
            async with asyncio.timeout_at(deadline):
                able = await seat.capabilities() if query.choices else capabilities.NONE
                call = _Call(self._plan(query, able, bounded=purse.limited), purse, deadline)
                answered: tuple[Reading, Completion] = await self._retrying()(seat.attempt, call)
        except CallFailed as error:
            return _failed(seat, call, error.failure, started)
        except TimeoutError:
            return _failed(seat, call, Failure("timeout", "the deadline of the ask passed"), started)
        return _replied(seat, call, *answered, started)

    def _plan(self, query: Query, able: Capabilities, *, bounded: bool) -> Plan:
        plan = elicit.plan(query, able, samples=self._samples)
        if bounded and plan.request.max_tokens is None:
            return replace(plan, request=replace(plan.request, max_tokens=_TOKENS_UNDER_BUDGET))
        return plan

    def _retrying(self) -> tenacity.AsyncRetrying:
        return tenacity.AsyncRetrying(
            stop=tenacity.stop_after_attempt(self._attempts) | _NoTimeLeft(),
            retry=tenacity.retry_if_exception(_retryable),
            wait=_wait,
            sleep=asyncio.sleep,
            reraise=True,
        )

    async def aclose(self) -> None:
        """Close the connections and probes of the running loop."""
        for seat in self._seats:
            await seat.aclose()
        await self._clients.aclose()


def _given_up(call: _Call) -> Failure:
    """Cancelled from outside: because the deadline passed, which the endpoint has to answer for, or because of us."""
    if asyncio.get_running_loop().time() >= call.deadline:
        return Failure("timeout", "the deadline of the ask passed")
    return Failure("cancelled", "given up before it answered")


def _retryable(error: BaseException) -> bool:
    return isinstance(error, CallFailed) and error.failure.retryable


def _wait(state: tenacity.RetryCallState) -> float:
    """What the service asked for, else exponential with full jitter. Seconds."""
    error = state.outcome.exception() if state.outcome else None
    asked = error.failure.retry_after_s if isinstance(error, CallFailed) else None
    ceiling = min(_FIRST_WAIT_S * 2 ** (state.attempt_number - 1), _MAX_WAIT_S)
    return random.uniform(0, ceiling) if asked is None else asked  # noqa: S311 - jitter, no secret


class _NoTimeLeft(tenacity.stop.stop_base):
    """Stop where the wait would last beyond the deadline."""

    def __call__(self, state: tenacity.RetryCallState) -> bool:
        call: _Call = state.args[0]
        return asyncio.get_running_loop().time() + state.upcoming_sleep >= call.deadline


def _failed(seat: _Seat, call: _Call | None, failure: Failure, started: float) -> Reply:
    return _reply(seat, call.bills if call else (), started, error=failure)


def _replied(seat: _Seat, call: _Call, reading: Reading, completion: Completion, started: float) -> Reply:
    return _reply(
        seat,
        call.bills,
        started,
        text=reading.text,
        choice=reading.choice,
        probabilities=reading.probabilities,
        method=reading.method,
        model=completion.model,
        response_id=completion.id,
        finish_reason=reading.finish_reason,
    )


def _reply(seat: _Seat, bills: Sequence[Bill], started: float, **rest: Any) -> Reply:
    usage, cost, source = Bill.total(bills)
    latency_s = time.perf_counter() - started
    return Reply(
        seat.endpoint.name, usage=usage, cost=cost, cost_source=source, latency_s=latency_s, attempts=len(bills), **rest
    )
