"""One endpoint in a pool: its client, what it can do, its breaker and limits, and the single calls made to it."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal

from focalroute.core.config import Endpoint
from focalroute.core.errors import CallFailed, FocalrouteError
from focalroute.core.event_loops import Background
from focalroute.core.records import Failure, Usage
from focalroute.endpoints import capabilities
from focalroute.endpoints.breaker import Breaker
from focalroute.endpoints.calls import CallContext, StreamSink
from focalroute.endpoints.capabilities import Capabilities
from focalroute.endpoints.client import EndpointClient, HttpClients
from focalroute.endpoints.elicit import ParsedReply, Plan
from focalroute.endpoints.paid_call import PaidCall, reserved, upper_bound
from focalroute.endpoints.rate_limits import Health, Throttle
from focalroute.endpoints.wire import Completion, Request
from focalroute.endpoints.wire.fields import protocol_error
from focalroute.endpoints.wire.refusals import Feature
from focalroute.endpoints.wire.stream import StreamDecoder
from focalroute.money.budget import BudgetGuard
from focalroute.money.cost import Bill, bill_of
from focalroute.store.base import PROBE, CapabilityRow, Store

_PROBE_AGAIN_S = 7 * 24 * 3600.0
_PATIENCE_S = 5.0  # how long after its begin asks wait for a probe
_SIGN_OF_LIFE = Request(({"role": "user", "content": "Answer with the word yes."},), 8)
_SIGN_OF_LIFE_S = 10.0
_BELIEVED_S = 3600.0  # that it lacks something, as it said itself
_REFUSED = (400, 422, 500, 501)  # for what was asked; some servers break down over it
_REFUSED_KEPT = 256  # schemas; then they are forgotten
_UNBOUNDED_TOKENS = 1024  # of a reply whose length nobody bounded, as it counts towards a rate until it is there


@dataclass(slots=True)
class MemberCall:
    """One member's part in one round: what it may do, and what its attempts have cost so far.

    Attributes:
        plan: how to put the query to an endpoint that can do this much.
        needs_probe: whether that hangs on what it can do at all.
        started: when its first attempt began (`time.perf_counter`), a probe before it left out.
        outrun: whether it was given up because another endpoint, asked later, answered first.
        outlet: where its reply is said as it comes; None: it comes whole.
    """

    plan: Callable[[Capabilities], Plan]
    needs_probe: bool
    terms: CallContext
    started: float = field(default_factory=time.perf_counter)
    bills: list[Bill] = field(default_factory=list)
    outrun: bool = False
    stream_sink: StreamSink | None = None


class PoolMember:
    """One endpoint in the pool."""

    def __init__(
        self, endpoint: Endpoint, breaker: Breaker, clients: HttpClients, store: Store, guard: BudgetGuard
    ) -> None:
        self.endpoint = endpoint
        self.breaker = breaker
        self.throttle = Throttle(endpoint)
        self._client = EndpointClient(endpoint, clients, heed=self.throttle.heed)
        self._store = store
        self._guard = guard
        self._capabilities = capabilities.declared(endpoint) or self._remembered()
        self._probes: dict[asyncio.AbstractEventLoop, asyncio.Task[Capabilities]] = {}
        self._probing_since = math.inf
        self._looking = Background()
        self._lacks: dict[str, float] = {}  # what it said it cannot do -> until when that is believed
        self._refused: set[str] = set()  # schemas that it does not take, though it takes others, or to score choices

    def _remembered(self) -> Capabilities | None:
        row = self._store.capabilities(capabilities.key(self.endpoint))
        if row is None or time.time() - row.probed_at > _PROBE_AGAIN_S:
            return None
        return capabilities.override(self.endpoint, Capabilities.from_dict(row.values))

    # -- what it can do ----------------------------------------------------------------------------------------------

    async def _able(self, call: MemberCall) -> Capabilities:
        """What it can do; probed once, by whoever needs it first, for all who wait.

        Whoever would have to wait too long goes without: plain replies are what every endpoint gives.

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
            self._probing_since = time.monotonic()
        patience = min(call.terms.left_s / 4, self._probing_since + _PATIENCE_S - time.monotonic())
        try:
            async with asyncio.timeout(patience):
                return await asyncio.shield(probe)
        except TimeoutError:
            return capabilities.NONE

    def _probed(self, probe: asyncio.Task[Capabilities]) -> None:
        """Let go of a probe that ended, and of its loop. Its failure is known to whoever still waited for it."""
        if self._probes.get(probe.get_loop()) is probe:
            del self._probes[probe.get_loop()]
        if not probe.cancelled():
            probe.exception()

    async def _probe(self) -> Capabilities:
        async with self._reserved(capabilities.PROBE) as paid_call:
            if paid_call is None:
                raise _not_affordable()
            try:
                measured, paid_call.usage = await capabilities.probe(self._client)
            except CallFailed as error:
                self.breaker.leave(self.breaker.enter(), error.failure)
                raise
        self._store.write(CapabilityRow(capabilities.key(self.endpoint), time.time(), measured.to_dict()))
        self._capabilities = capabilities.override(self.endpoint, measured)
        return self._capabilities

    def lacks(self, feature: Feature) -> bool:
        """Whether it is known not to have this, by the pool file or its own word."""
        declared: bool | None = getattr(self.endpoint, feature)
        return self._lacks.get(feature, 0.0) > time.monotonic() if declared is None else not declared

    # -- whether it is there -----------------------------------------------------------------------------------------

    def check(self) -> bool:
        """Whether asks may call it now. Where it is out and may be back, a tiny call in the background finds out."""
        self.breaker.notice()
        if self.breaker.allows:
            return self.throttle.ready
        if self.breaker.claim_probe():
            self._looking.start(self._look())
        return False

    @property
    def health(self) -> Health:
        """How it does now."""
        breaker, throttle = self.breaker, self.throttle
        limit = None if throttle.limit == math.inf else int(throttle.limit)
        return Health(
            breaker.state, breaker.left_s, breaker.ejections, breaker.failure_share,
            under_way=throttle.under_way, concurrency=limit, paused_s=throttle.paused_s,
        )  # fmt: skip

    async def _look(self) -> None:
        """Ask for a sign of life; where no money is left for that, the next ask is the probe."""
        alive: bool | None = None
        try:
            alive = await self._sign_of_life()
        except FocalrouteError:
            alive = False
        finally:
            self.breaker.probed(alive)

    async def _sign_of_life(self) -> bool:
        async with self._reserved(_SIGN_OF_LIFE) as paid_call:
            if paid_call is not None:
                completion = await self._client.complete(
                    _SIGN_OF_LIFE, timeout_s=min(_SIGN_OF_LIFE_S, self.endpoint.timeout_s)
                )
                paid_call.usage = completion.usage
        return True

    @asynccontextmanager
    async def _reserved(self, request: Request) -> AsyncIterator[PaidCall | None]:
        """`reserved` for a call that no query asked for, which is in the ledger at the end."""
        ask_budget = self._guard.open_ask_budget(PROBE)
        try:
            async with reserved(ask_budget, self.endpoint, request) as paid_call:
                yield paid_call
        finally:
            self._store.write(*ask_budget.unwritten)

    async def aclose(self) -> None:
        """Give up what is under way in the background of this loop."""
        probe = self._probes.pop(asyncio.get_running_loop(), None)
        if probe is not None:
            probe.cancel()
            await asyncio.gather(probe, return_exceptions=True)
        await self._looking.cancel()

    # -- calls -------------------------------------------------------------------------------------------------------

    async def attempt(self, call: MemberCall) -> tuple[ParsedReply, Completion]:
        """One call, once the endpoint takes one more; whoever gives up before has cost nothing.

        Raises:
            CallFailed: it failed, or does not fit the purse or the limits.
        """
        plan = call.plan(await self._able(call) if call.needs_probe else capabilities.NONE)
        if not call.bills:
            call.started = time.perf_counter()
        turn = await self.throttle.enter(self._tokens(plan.request), call.terms.left_s)
        failure: Failure | None = None
        before = len(call.bills)
        try:
            put = self._attempt(call, plan) if plan.otherwise is None else self._put(call, plan, plan.otherwise)
            return await put
        except CallFailed as error:
            failure = error.failure
            raise
        except BaseException:
            failure = _given_up(call)
            raise
        finally:
            usage = call.bills[-1].usage if len(call.bills) > before else None
            tokens = None if usage is None else usage.prompt_tokens + usage.completion_tokens
            self.throttle.leave(turn, tokens, failure)

    async def _put(self, call: MemberCall, plan: Plan, otherwise: Plan) -> tuple[ParsedReply, Completion]:
        """One attempt; a second one in another way where the service does not take just this schema, or scores none."""
        scored = bool(plan.request.scored)
        way = "scored" if scored else str(plan.request.params.get("response_format"))
        if way not in self._refused:
            try:
                return await self._attempt(call, plan)
            except CallFailed as error:
                if error.failure.status not in _REFUSED and not (scored and _scores_none(error.failure)):
                    raise
            if len(self._refused) >= _REFUSED_KEPT:
                self._refused.clear()
            self._refused.add(way)
        return await self._attempt(call, otherwise)

    async def _attempt(self, call: MemberCall, plan: Plan) -> tuple[ParsedReply, Completion]:
        """Reserved before and settled after, whatever becomes of it."""
        bound = upper_bound(plan.request, self.endpoint)
        ask_budget = call.terms.ask_budget
        hold = await ask_budget.reserve(self.endpoint.name, bound or Decimal(0))
        if hold is None:
            raise _not_affordable()
        flight = self.breaker.enter()
        failure: Failure | None = None
        usage: Usage | None = None
        completion: Completion | None = None
        free = False
        decoder = None if call.stream_sink is None else StreamDecoder()
        try:
            if call.stream_sink is None or decoder is None:
                bounded = call.terms.left_s <= self.endpoint.timeout_s  # by the deadline of the ask
                completion = await self._client.complete(plan.request, timeout_s=math.inf if bounded else None)
            else:
                completion = await self._said(call, call.stream_sink, plan.request, decoder)
            usage = completion.usage
            return plan.read(completion), completion
        except CallFailed as error:
            failure, usage, free = error.failure, error.usage or usage, error.free
            if failure.lacks is not None:
                self._lacks[failure.lacks] = time.monotonic() + _BELIEVED_S
            raise
        except BaseException:
            failure = _given_up(call) if completion is None else None
            usage = usage or (decoder.usage if decoder else None)
            raise
        finally:
            refused = failure is not None and failure.status == 429 and not self.throttle.at_floor
            lacking = failure is not None and failure.lacks is not None
            self.breaker.leave(flight, failure, blameless=refused or lacking)
            bill = bill_of(self.endpoint, usage, bound, free=free and completion is None)
            call.bills.append(bill)
            ask_budget.settle(hold, bill)

    async def _said(
        self, call: MemberCall, stream_sink: StreamSink, request: Request, decoder: StreamDecoder
    ) -> Completion:
        """The whole reply, said in pieces as they come."""
        able = self._capabilities
        told = self.endpoint.stream_usage is not False if able is None else able.stream_usage
        request = replace(request, n=1, stream_usage=told)
        async with aclosing(self._client.stream(request, decoder=decoder)) as pieces:
            async for piece in pieces:
                if isinstance(piece, Completion):
                    return piece
                stream_sink.say(call, piece)
        raise protocol_error("the stream was cut short", decoder.usage)

    def _tokens(self, request: Request) -> float:
        """About what a call will use of the tokens of a minute; corrected by what it did."""
        if self.endpoint.tokens_per_minute is None:
            return 0.0
        written = (*(str(message.get("content", "")) for message in request.messages), *request.scored)
        asked = sum(map(len, written)) / 4
        return asked + (request.max_tokens or _UNBOUNDED_TOKENS) * request.n


def _scores_none(failure: Failure) -> bool:
    """Whether a service has no likelihoods to give: no such address, or a reply that is about something else."""
    return failure.status in (404, 405) or failure.kind == "unusable"


def _not_affordable() -> CallFailed:
    return CallFailed(Failure("unavailable", "not affordable any more"))


def _given_up(call: MemberCall) -> Failure:
    """Cancelled from outside: because it was too slow, which the endpoint has to answer for, or because of us."""
    if call.outrun or call.terms.left_s <= 0:
        return Failure("timeout", "another endpoint, or the deadline of the ask, came first")
    return Failure("cancelled", "given up before it answered")
