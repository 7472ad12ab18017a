"""Asks members concurrently. A member's failure is data (``Reply.error``), never an exception.

The one owner of retries: `EndpointClient` makes single attempts, `elicit` plans and reads them, and here they are
repeated, kept within the deadline and the purse, and counted.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from typing import Any

import tenacity

from focalroute import capabilities, elicit
from focalroute.budget import BudgetGuard, Purse
from focalroute.capabilities import Capabilities
from focalroute.config import Endpoint
from focalroute.cost import Bill, cost_of, upper_bound
from focalroute.elicit import Plan, Reading
from focalroute.endpoint import EndpointClient, HttpClients
from focalroute.errors import CallFailed, ConfigError
from focalroute.limits import Breaker
from focalroute.records import Failure, Query, Reply, Usage
from focalroute.store.base import PROBE, CapabilityRow, Row, Store
from focalroute.wire import Completion

__all__ = ["Pool"]

_PROBE_AGAIN_S = 7 * 24 * 3600.0
_FIRST_WAIT_S = 0.25
_MAX_WAIT_S = 8.0
_LONGEST_ASKED_S = 60.0  # of a service's Retry-After; one that asks for more is not taken at its word
_TOKENS_UNDER_BUDGET = 1024  # for a free-form reply whose length nobody bounded: a budget needs a bound


@dataclass(slots=True)
class _Call:
    """One member's part in one round: what it may do, and what its attempts have cost so far.

    Attributes:
        plan: how to put the query to an endpoint that can do this much.
        needs_probe: whether that hangs on what it can do at all.
        started: when its first attempt began (`time.perf_counter`), a probe before it left out.
    """

    plan: Callable[[Capabilities], Plan]
    needs_probe: bool
    purse: Purse
    deadline: float
    started: float = field(default_factory=time.perf_counter)
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
        self._probes: dict[asyncio.AbstractEventLoop, asyncio.Task[Capabilities]] = {}
        self._gates: dict[asyncio.AbstractEventLoop, asyncio.Semaphore] = {}

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
            probe.add_done_callback(self._probed)
        return await asyncio.shield(probe)

    def _probed(self, probe: asyncio.Task[Capabilities]) -> None:
        """Let go of a probe that ended, and of its loop. Its failure is known to whoever still waited for it."""
        if self._probes.get(probe.get_loop()) is probe:
            del self._probes[probe.get_loop()]
        if not probe.cancelled():
            probe.exception()

    async def _probe(self) -> Capabilities:
        bound = upper_bound(capabilities.PROBE, self.endpoint)
        purse = self._guard.open_purse(PROBE)
        hold = await purse.reserve(self.endpoint.name, bound or Decimal(0))
        if hold is None:
            raise _not_affordable()
        bill = self._bill(None, bound)
        rows: list[Row] = []
        try:
            measured, usage = await capabilities.probe(self._client)
            bill = self._bill(usage, bound)
            rows.append(CapabilityRow(capabilities.key(self.endpoint), time.time(), measured.to_dict()))
        except CallFailed as error:
            self.breaker.leave(error.failure)
            bill = self._bill(error.usage, bound, free=error.free)
            raise
        finally:
            purse.settle(hold, bill)
            self._store.write(*rows, *purse.unwritten)
        self._capabilities = capabilities.override(self.endpoint, measured)
        return self._capabilities

    async def aclose(self) -> None:
        """Give up a probe still under way in this loop."""
        probe = self._probes.pop(asyncio.get_running_loop(), None)
        if probe is not None:
            probe.cancel()
            await asyncio.gather(probe, return_exceptions=True)

    async def attempt(self, call: _Call) -> tuple[Reading, Completion]:
        """One call, once the endpoint takes one more; whoever gives up before has cost nothing.

        Raises:
            CallFailed: it failed, or does not fit the purse.
        """
        plan = call.plan(await self.capabilities() if call.needs_probe else capabilities.NONE)
        if not call.bills:
            call.started = time.perf_counter()
        async with self._gate():
            return await self._attempt(call, plan)

    async def _attempt(self, call: _Call, plan: Plan) -> tuple[Reading, Completion]:
        """Reserved before and settled after, whatever becomes of it."""
        bound = upper_bound(plan.request, self.endpoint)
        hold = await call.purse.reserve(self.endpoint.name, bound or Decimal(0))
        if hold is None:
            raise _not_affordable()
        self.breaker.enter()
        failure: Failure | None = None
        usage: Usage | None = None
        completion: Completion | None = None
        free = False
        try:
            completion = await self._client.complete(plan.request)
            usage = completion.usage
            return plan.read(completion), completion
        except CallFailed as error:
            failure, usage, free = error.failure, error.usage or usage, error.free
            raise
        except BaseException:
            failure = _given_up(call) if completion is None else None
            raise
        finally:
            self.breaker.leave(failure)
            bill = self._bill(usage, bound, free=free and completion is None)
            call.bills.append(bill)
            call.purse.settle(hold, bill)

    def _bill(self, usage: Usage | None, bound: Decimal | None, *, free: bool = False) -> Bill:
        """By its usage; where none came back by what was reserved for it, unless it surely cost nothing."""
        if usage is not None:
            return Bill(self.endpoint.name, usage, *cost_of(usage, self.endpoint))
        if free:
            return Bill(self.endpoint.name, None, Decimal(0), "price")
        return Bill(self.endpoint.name, None, bound, "unknown" if bound is None else "reserved")

    def _gate(self) -> asyncio.Semaphore | _Open:
        if self.endpoint.max_concurrency is None:
            return _OPEN
        loop = asyncio.get_running_loop()
        gate = self._gates.get(loop)
        if gate is None:
            for other in [other for other in list(self._gates) if other.is_closed()]:
                self._gates.pop(other, None)
            gate = self._gates[loop] = asyncio.Semaphore(self.endpoint.max_concurrency)
        return gate


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
        self._closed = False

    def available(self) -> tuple[bool, ...]:
        """Which endpoints may be called now. Never none: when every breaker is open, all may be tried."""
        closed = tuple(seat.breaker.allows for seat in self._seats)
        return closed if any(closed) else (True,) * len(closed)

    def states(self) -> tuple[str, ...]:
        """Each endpoint's breaker state, pool order."""
        return tuple(seat.breaker.state for seat in self._seats)

    async def upper_bounds(self, query: Query, purse: Purse) -> tuple[Decimal, ...] | None:
        """The most one call to each endpoint can cost, USD, by the dearest way to put the query; None without a limit.

        An endpoint without a price counts 0: a budget that forbids them does not get here. Where not all of them fit
        the purse together, it is made sure of what is left.

        Raises:
            ConfigError: a call has no upper bound.
            StoreError: what is left cannot be known.
        """
        if not purse.limited:
            return None
        plan = self._plan(query, capabilities.DEAREST, bounded=True)
        bounds = []
        for seat in self._seats:
            bound = upper_bound(plan.request, seat.endpoint) if seat.endpoint.price else Decimal(0)
            if bound is None:
                raise ConfigError(
                    "params: max_tokens and n must be whole numbers, or be left out, where a budget is to be kept"
                )
            bounds.append(bound)
        await purse.look(bounds)
        return tuple(bounds)

    async def ask(self, picked: Sequence[int], query: Query, purse: Purse, deadline: float) -> tuple[Reply, ...]:
        """Ask the picked endpoints concurrently; their replies in the same order, failures included.

        ``deadline`` is in the running loop's time.
        """
        if len(picked) == 1:
            return (await self._ask(self._seats[picked[0]], query, purse, deadline),)
        return await _together([self._ask(self._seats[i], query, purse, deadline) for i in picked])

    async def _ask(self, seat: _Seat, query: Query, purse: Purse, deadline: float) -> Reply:
        plan = partial(self._plan, query, bounded=purse.limited)
        call = _Call(plan, query.choices is not None, purse, deadline)
        try:
            async with asyncio.timeout_at(deadline):
                answered: tuple[Reading, Completion] = await self._retrying()(seat.attempt, call)
        except CallFailed as error:
            return _reply(seat, call, error=error.failure)
        except TimeoutError:
            return _reply(seat, call, error=Failure("timeout", "the deadline of the ask passed"))
        return _replied(seat, call, *answered)

    def _plan(self, query: Query, able: Capabilities, *, bounded: bool) -> Plan:
        plan = elicit.plan(query, able, samples=self._samples)
        if bounded and plan.request.max_tokens is None:
            return replace(plan, request=replace(plan.request, max_tokens=_TOKENS_UNDER_BUDGET))
        return plan

    def _retrying(self) -> tenacity.AsyncRetrying:
        return tenacity.AsyncRetrying(
            stop=tenacity.stop_after_attempt(self._attempts) | _NoTimeLeft(),
            retry=tenacity.retry_if_exception(lambda error: not self._closed and _retryable(error)),
            wait=_wait,
            sleep=asyncio.sleep,
            reraise=True,
        )

    async def aclose(self) -> None:
        """Close the connections and probes of the running loop. Calls under way fail, and are not repeated."""
        self._closed = True
        for seat in self._seats:
            await seat.aclose()
        await self._clients.aclose()


async def _together(members: Sequence[Coroutine[Any, Any, Reply]]) -> tuple[Reply, ...]:
    """What they give; if one raises, only after the others were cancelled and have settled what they spent."""
    asking = [asyncio.ensure_future(member) for member in members]
    try:
        return tuple(await asyncio.gather(*asking))
    except BaseException:
        for member in asking:
            member.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        raise


def _not_affordable() -> CallFailed:
    return CallFailed(Failure("unavailable", "not affordable any more"))


def _given_up(call: _Call) -> Failure:
    """Cancelled from outside: because the deadline passed, which the endpoint has to answer for, or because of us."""
    if asyncio.get_running_loop().time() >= call.deadline:
        return Failure("timeout", "the deadline of the ask passed")
    return Failure("cancelled", "given up before it answered")


def _retryable(error: BaseException) -> bool:
    return isinstance(error, CallFailed) and error.failure.retryable


def _wait(state: tenacity.RetryCallState) -> float:
    """What the service asked for, if it is sensible, else exponential with full jitter. Seconds."""
    error = state.outcome.exception() if state.outcome else None
    asked = error.failure.retry_after_s if isinstance(error, CallFailed) else None
    ceiling = min(_FIRST_WAIT_S * 2 ** (state.attempt_number - 1), _MAX_WAIT_S)
    if asked is not None and asked <= _LONGEST_ASKED_S:
        return asked
    return random.uniform(0, ceiling)  # noqa: S311 - jitter, no secret


class _NoTimeLeft(tenacity.stop.stop_base):
    """Stop where the wait would last beyond the deadline."""

    def __call__(self, state: tenacity.RetryCallState) -> bool:
        call: _Call = state.args[0]
        return asyncio.get_running_loop().time() + state.upcoming_sleep >= call.deadline


def _replied(seat: _Seat, call: _Call, reading: Reading, completion: Completion) -> Reply:
    return _reply(
        seat,
        call,
        text=reading.text,
        choice=reading.choice,
        probabilities=reading.probabilities,
        method=reading.method,
        model=completion.model,
        response_id=completion.id,
        finish_reason=reading.finish_reason,
    )


def _reply(seat: _Seat, call: _Call, **rest: Any) -> Reply:
    usage, cost, source = Bill.total(call.bills)
    return Reply(
        seat.endpoint.name,
        usage=usage,
        cost=cost,
        cost_source=source,
        latency_s=time.perf_counter() - call.started,
        attempts=len(call.bills),
        **rest,
    )
