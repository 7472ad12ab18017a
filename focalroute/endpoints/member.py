"""One endpoint in a pool: its client, what it can do, its breaker and limits, and the single calls made to it."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace

from focalroute.core.config import Endpoint
from focalroute.core.errors import CallFailed, FocalrouteError
from focalroute.core.event_loops import Background, PerLoop
from focalroute.core.records import Failure, Usage
from focalroute.endpoints import capabilities
from focalroute.endpoints.breaker import Breaker
from focalroute.endpoints.calls import CallContext, StreamSink
from focalroute.endpoints.capabilities import Capabilities, Needs
from focalroute.endpoints.client import EndpointClient, HttpClients
from focalroute.endpoints.elicit import NotValid, ParsedReply, Plan
from focalroute.endpoints.paid_call import PAID_CALL, PaidCall, Settlement, note_generation, reserved
from focalroute.endpoints.quirks import Quirks, with_room
from focalroute.endpoints.rate_limits import Health, Throttle
from focalroute.endpoints.wire import Completion, Request
from focalroute.endpoints.wire.fields import protocol_error
from focalroute.endpoints.wire.refusals import ROOM, host_of, located
from focalroute.endpoints.wire.stream import StreamDecoder
from focalroute.money.budget import BudgetGuard
from focalroute.money.cost import Bill
from focalroute.store.base import PROBE, CapabilityRow, Store

_log = logging.getLogger("focalroute")
_CHECK_AGAIN_S = 7 * 24 * 3600.0
_CHECK_PAUSE_S = 30.0  # after a check that failed
_CHECK_GRACE_S = 1.0  # for a check to end when the pool is closed: else short programs would pay for it every time
_LACK_BELIEVED_S = 3600.0  # how long an endpoint's report that it lacks a feature is believed
_MAX_UNSUPPORTED = 256  # schemas; beyond that all are forgotten
_UNBOUNDED_TOKENS = 1024  # counted towards a rate for a reply of unbounded length, until it has come
_EVIDENCE_S = 5.0  # a call that the deadline ends sooner does not count against its endpoint, unless it is late
_STANDSTILL_S = 1.0  # a time limit that ends so late was held up by the event loop
_GIVEN_UP = Failure("cancelled", "given up before it answered")


@dataclass(slots=True)
class MemberCall:
    """One member's part in one round: what it may do, and what its attempts have cost so far.

    Attributes:
        plan: plans the query for an endpoint with these capabilities.
        needs_capabilities: whether the plan depends on the capabilities.
        started: when its first attempt began (`time.perf_counter`).
        silent_since: when its latest attempt began; during a wait, when the next attempt begins.
        sent: when its latest attempt was sent; None: none was yet.
        first_token: when the first piece of its text came; None: none has, or it is not streamed.
        widened: whether it was repeated with more room, as its reply was cut.
        more_room: the room for thinking that this call alone gets.
        room: the room for thinking that its latest attempt had.
        outrun: whether it was cancelled because an endpoint asked later answered first, or another one long before it.
        stream_sink: where its reply is streamed; None: it is not.
    """

    plan: Callable[[Capabilities], Plan]
    needs_capabilities: bool
    context: CallContext
    started: float = field(default_factory=time.perf_counter)
    silent_since: float = field(default_factory=time.perf_counter)
    sent: float | None = None
    first_token: float | None = None
    bills: list[Bill] = field(default_factory=list)
    widened: bool = False
    more_room: int = 0
    room: int = 0
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
        self._client = EndpointClient(endpoint, clients, self._on_headers)
        self._settlement = Settlement(self._client)
        self._store = store
        self._guard = guard
        self._check_at = -math.inf  # no check before this time (`time.monotonic`)
        self._capabilities = self._known()
        self._assumed = capabilities.override(endpoint, capabilities.ALL)  # until they are known
        if self._capabilities is not None and self._capabilities.thinks:
            self._quirks.certain = True
        self._checks = PerLoop(Background)
        self._trials = Background()
        self._lacks: dict[str, float] = {}  # features it reported to lack -> until when that is believed
        #: Schemas that it refuses, and "scored" if it cannot score choices -> until when that is believed.
        self._unsupported: dict[str, float] = {}

    @property
    def _quirks(self) -> Quirks:
        return self._client.quirks

    def _known(self) -> Capabilities | None:
        """Return the capabilities by the pool file, which then need no check, or by an earlier check."""
        declared = capabilities.declared(self.endpoint)
        if declared is not None:
            self._check_at = math.inf
            return declared
        row = self._store.capabilities(capabilities.key(self.endpoint))
        age_s = math.inf if row is None else time.time() - row.probed_at
        if row is None or abs(age_s) > _CHECK_AGAIN_S:  # a wrong clock may have been ahead
            return None
        self._check_at = time.monotonic() + _CHECK_AGAIN_S - max(age_s, 0.0)
        return capabilities.override(self.endpoint, Capabilities.from_dict(row.values))

    # -- capabilities ------------------------------------------------------------------------------------------------

    def _plan(self, call: MemberCall) -> Plan:
        """Return the best plan for the query; until the capabilities are known, the best are assumed."""
        able = self._capabilities if call.needs_capabilities else capabilities.NONE
        if call.needs_capabilities:
            self._begin_check()
        known = able or self._assumed
        if known.thinks != self._quirks.thinks:
            known = replace(known, thinks=self._quirks.thinks)
        plan = call.plan(known)
        return plan if able is not None else plan.with_optional_logprobs()

    def _begin_check(self) -> None:
        """Check the capabilities in the background if that is due, one check at a time per loop."""
        if time.monotonic() >= self._check_at and not len(checks := self._checks.here()):
            checks.start(self._check_capabilities())

    async def _check_capabilities(self) -> None:
        self._check_at = time.monotonic() + _CHECK_PAUSE_S  # if it fails, or is cancelled as its loop ends
        with suppress(Exception):  # asks report what is wrong
            measured: Capabilities | None = None
            while measured is None:
                room = self._quirks.room
                try:
                    measured = await self._measured_capabilities()
                except CallFailed:
                    if self._quirks.room <= room:  # else the check is repeated with more room, reserved anew
                        raise
            self._capabilities = capabilities.override(self.endpoint, measured)

    async def _measured_capabilities(self) -> Capabilities:
        """Make a check; note and store how long it is believed."""
        check = capabilities.CapabilityCheck(self._client, self._admitted)
        async with self._reserved(with_room(capabilities.CHECK, 7 * self._quirks.room)) as paid_call:
            if paid_call is None:
                raise _not_affordable()
            try:
                measured = await check.run()
            finally:
                paid_call.usage = check.usage
        believed_s = _LACK_BELIEVED_S if check.doubtful else _CHECK_AGAIN_S
        self._check_at = time.monotonic() + believed_s
        made_at = time.time() - _CHECK_AGAIN_S + believed_s
        self._store.write(CapabilityRow(capabilities.key(self.endpoint), made_at, measured.to_dict()))
        return measured

    @asynccontextmanager
    async def _admitted(self) -> AsyncIterator[None]:
        """Wait until the limits allow one more call."""
        admitted = await self.throttle.enter(0.0, self.endpoint.timeout_s)
        failure: Failure | None = _GIVEN_UP
        try:
            yield
            failure = None
        except CallFailed as error:
            failure = error.failure
            raise
        finally:
            self.throttle.leave(admitted, None, failure)

    def lacks(self, needs: Needs) -> str | None:
        """Return the first need that it is known not to meet, by the pool file or its errors, or None."""
        for feature in needs.features:
            declared: bool | None = getattr(self.endpoint, feature)
            if declared is False or (declared is None and self._lacks.get(feature, 0.0) > time.monotonic()):
                return feature
        limit = self.endpoint.context_tokens
        return f"prompt of {needs.words:,} words" if limit is not None and needs.surely_exceeds(limit) else None

    # -- availability ------------------------------------------------------------------------------------------------

    def check(self) -> bool:
        """Whether asks may call it now; if it is out of use, start a trial call that is due and within its limits."""
        self.breaker.notice()
        if self.breaker.allows:
            return self.throttle.ready
        if (self.throttle.ready or self.throttle.triable) and self.breaker.claim_trial():
            self._trials.start(self._run_trial())
        return False

    @property
    def thinks(self) -> bool:
        """Whether its model is known to think before it answers."""
        return self._quirks.thinks

    def fewest_tokens(self, request: Request) -> Request:
        """Return the request with the least room for thinking."""
        return with_room(request, self._quirks.rooms()[-1])

    @property
    def health(self) -> Health:
        """Its health now."""
        breaker, throttle = self.breaker, self.throttle
        limit = None if throttle.limit == math.inf else int(throttle.limit)
        return Health(
            breaker.state, breaker.left_s, breaker.ejections, breaker.failure_share,
            under_way=throttle.under_way, concurrency=limit, paused_s=throttle.paused_s,
        )  # fmt: skip

    async def _run_trial(self) -> None:
        """Make the breaker's trial call, within the limits; if it is not affordable, the next ask is the trial."""
        well: bool | None = None
        sent = math.inf
        try:
            async with self._reserved(with_room(capabilities.TRIAL, self._quirks.room)) as paid_call:
                if paid_call is not None:
                    async with self._admitted():
                        sent = time.monotonic()
                        paid_call.usage = (await capabilities.call_trial(self._client)).usage
            well = True
        except FocalrouteError as error:
            limited = isinstance(error, CallFailed) and error.failure.kind == "limited"
            well = None if limited else False
            if time.monotonic() - sent > capabilities.TRIAL_TIMEOUT_S + _STANDSTILL_S:
                self.breaker.drop_trial()  # the event loop stood still meanwhile, so the time limit proves nothing
        except asyncio.CancelledError:
            self.breaker.drop_trial()
            raise
        finally:
            self.breaker.end_trial(well)

    @asynccontextmanager
    async def _reserved(self, request: Request) -> AsyncIterator[PaidCall | None]:
        """Reserve a call that belongs to no query, as `reserved` does, and write it to the ledger at the end."""
        ask_budget = self._guard.open_ask_budget(PROBE)
        try:
            async with reserved(ask_budget, self.endpoint, request) as paid_call:
                yield paid_call
        finally:
            ask_budget.write()

    async def aclose(self) -> None:
        """Cancel this loop's background calls; a capability check gets a moment to end, as it is paid for."""
        await self._checks.here().cancel(grace_s=_CHECK_GRACE_S)
        await self._trials.cancel()
        await self._settlement.aclose()

    # -- calls -------------------------------------------------------------------------------------------------------

    async def attempt(self, call: MemberCall) -> ParsedReply:
        """Make one call, once the endpoint's limits allow it; if cancelled before, it costs nothing.

        It is repeated if it was refused for something that can be left out, or cut before it answered.

        Raises:
            CallFailed: it failed, or does not fit the ask's budget or the limits.
        """
        while True:
            plan = self._plan(call)
            try:
                return await self._attempt_or_repair(call, plan)
            except CallFailed as error:
                if not self._adapts(call, plan, error.failure):
                    raise

    def _adapts(self, call: MemberCall, plan: Plan, failure: Failure) -> bool:
        """Adapt to a failed call; True: repeat it, without what was refused or (once) with more room."""
        if call.stream_sink is not None and call.stream_sink.speaker is call:
            return False
        if capabilities.refuses(failure) and self._unlearn(call, plan, failure):
            return True
        if failure.cut and self._fills_context(call.bills[-1].usage, plan.request.n):
            return False
        if not failure.cut and failure.lacks != ROOM:
            return False
        room = None if failure.cut and call.widened else self._quirks.grow(plan.request, failure, call.room)
        call.widened = call.widened or failure.cut
        call.more_room = room if room is not None and failure.cut else 0
        return room is not None

    def _fills_context(self, usage: Usage | None, samples: int) -> bool:
        """Whether a call was cut as its model's context was full, so that more room would not help."""
        limit = self.endpoint.context_tokens
        return (
            limit is not None and usage is not None and limit <= usage.prompt_tokens + usage.completion_tokens / samples
        )

    def _unlearn(self, call: MemberCall, plan: Plan, failure: Failure) -> bool:
        """Drop a refused capability; whether that changes the plan. If capabilities were only assumed, drop all."""
        if self._capabilities is None:
            self._assumed = capabilities.override(self.endpoint, capabilities.NONE)
        else:
            self._capabilities = capabilities.without(self._capabilities, failure) or self._capabilities
        return self._plan(call) != plan

    async def _attempt_or_repair(self, call: MemberCall, plan: Plan) -> ParsedReply:
        """Make one call, and if its structured reply is not valid and a second call can be made, ask again."""
        try:
            return await self._attempt_admitted(call, plan)
        except NotValid as error:
            if error.repair is None:
                raise
            try:
                return await self._attempt_admitted(call, error.repair)
            except CallFailed as again:
                raise error if again.failure.kind in ("unavailable", "limited") else again from None

    async def _attempt_admitted(self, call: MemberCall, plan: Plan) -> ParsedReply:
        """Make one call, once the endpoint's limits allow it."""
        call.silent_since = time.perf_counter() + self.throttle.wait_s
        if not call.bills:
            call.started = time.perf_counter()
        admitted = await self.throttle.enter(self._expected_tokens(plan.request), call.context.left_s)
        call.silent_since = time.perf_counter()
        failure: Failure | None = None
        before = len(call.bills)
        try:
            if plan.fallback is None:
                return await self._pay(call, plan)
            return await self._attempt_or_fall_back(call, plan, plan.fallback)
        except CallFailed as error:
            failure = error.failure
            raise
        except BaseException:
            failure = _GIVEN_UP
            raise
        finally:
            usage, *_ = Bill.total(call.bills[before:])
            tokens = None if usage is None else usage.prompt_tokens + usage.completion_tokens
            self.throttle.leave(admitted, tokens, failure)

    async def _attempt_or_fall_back(self, call: MemberCall, plan: Plan, fallback: Plan) -> ParsedReply:
        """Try the plan, then its fallback if the service refuses this schema or cannot score texts."""
        scored = bool(plan.request.scored)
        way = "scored" if scored else str(plan.request.params.get("response_format"))
        if self._unsupported.get(way, 0.0) > time.monotonic():
            return await self._pay(call, fallback)
        try:
            parsed = await self._pay(call, plan)
        except CallFailed as error:
            refusal = error.failure
            if not capabilities.refuses(refusal) and not (scored and _scores_none(refusal)):
                raise
        else:
            self._unsupported.pop(way, None)
            return parsed
        try:
            parsed = await self._pay(call, fallback)
        except CallFailed as error:
            if error.failure.kind == "unusable":  # else the service may be out, which says nothing of the plan
                self._give_up(way, refusal)
            raise
        self._give_up(way, refusal)
        return parsed

    def _give_up(self, way: str, refusal: Failure) -> None:
        """Use the fallback for an hour, as the service answers it alone; after status 500 only from the second on."""
        certain = refusal.status != 500 or way in self._unsupported
        if len(self._unsupported) >= _MAX_UNSUPPORTED:
            self._unsupported.clear()
        self._unsupported[way] = time.monotonic() + _LACK_BELIEVED_S if certain else 0.0

    async def _pay(self, call: MemberCall, plan: Plan) -> ParsedReply:
        """Make one paid call: reserved before and settled after, however it ends.

        If the whole room for thinking is not affordable, the call gets less.
        """
        for room in self._quirks.rooms(call.more_room):
            request = with_room(plan.request, room)
            paid_call = await PaidCall.reserve(call.context.ask_budget, self.endpoint, request)
            if paid_call is not None:
                break
        else:
            raise _not_affordable()
        call.room = room
        if self._settlement.possible:
            PAID_CALL.set(paid_call)
        in_flight = self.breaker.enter()
        call.sent = sent = time.perf_counter()
        failure: Failure | None = None
        completion: Completion | None = None
        try:
            completion = await self._complete(call, request, paid_call)
            paid_call.usage = completion.usage
            return plan.read(completion, self.endpoint.params)
        except CallFailed as error:
            failure = error.failure
            paid_call.fail(error)
            if failure.lacks is not None:
                self._lacks[failure.lacks] = time.monotonic() + _LACK_BELIEVED_S
            raise
        except BaseException:
            if completion is None:
                failure = self._given_up(call, time.perf_counter() - sent)
            raise
        finally:
            refused = failure is not None and failure.status == 429 and self.throttle.limit > 1.0
            lacking = failure is not None and (failure.lacks is not None or failure.cut)
            flagged = failure is not None and failure.status == 403 and located(failure, self.endpoint).of_request
            self.breaker.leave(in_flight, failure, blameless=refused or lacking or flagged)
            call.bills.append(paid_call.settle())
            self._settlement.begin(paid_call)
            if _log.isEnabledFor(logging.DEBUG):
                self._log_attempt(call, failure)

    def _on_headers(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self.throttle.on_headers(headers)
        if self._settlement.possible:
            note_generation(headers)

    def _given_up(self, call: MemberCall, silent_s: float) -> Failure:
        """Return how a cancelled call counts: as a timeout if it was silent for too long."""
        overran = -_STANDSTILL_S < call.context.left_s <= 0 and silent_s >= _EVIDENCE_S
        if call.outrun or overran or self.breaker.late(silent_s, call.context.slowest_s):
            return Failure("timeout", "silent for too long")
        return _GIVEN_UP

    def _log_attempt(self, call: MemberCall, failure: Failure | None) -> None:
        """Log the outcome of an attempt, without texts or keys."""
        bill, seconds = call.bills[-1], time.perf_counter() - call.silent_since
        usage = "no usage" if bill.usage is None else str(bill.usage).removeprefix("Usage")
        _log.debug(
            "%s (%s at %s), query %s, attempt %d: %s after %.3f s; %s, USD %s",
            self.endpoint.name, self.endpoint.model, host_of(self.endpoint), call.context.query.id, len(call.bills),
            "answered" if failure is None else f"{failure.kind}: {failure.message}", seconds, usage, bill.cost,
        )  # fmt: skip

    async def _complete(self, call: MemberCall, request: Request, paid_call: PaidCall) -> Completion:
        """Return the whole reply, streamed to the call's sink if it has one."""
        if call.stream_sink is None:
            bounded = call.context.left_s <= self.endpoint.timeout_s  # by the ask's deadline
            return await self._client.complete(request, timeout_s=math.inf if bounded else None)
        stream_usage = self.endpoint.stream_usage is not False
        if self._capabilities is not None:
            stream_usage = self._capabilities.stream_usage
        request = replace(request, n=1, stream_usage=stream_usage)
        decoder = StreamDecoder(unopened=self._quirks.unopened)
        try:
            async with aclosing(self._client.stream(request, decoder=decoder)) as pieces:
                async for piece in pieces:
                    if isinstance(piece, Completion):
                        return piece
                    if call.first_token is None:
                        call.first_token = time.perf_counter()
                    call.stream_sink.say(call, piece)
        finally:
            paid_call.usage = decoder.usage
            paid_call.generation = paid_call.generation or decoder.id
        raise protocol_error("the stream was cut short", decoder.usage)

    def _expected_tokens(self, request: Request) -> float:
        """Estimate the tokens of a call for the rate limit; corrected once the call has ended."""
        if self.endpoint.tokens_per_minute is None:
            return 0.0
        written = (*(str(message.get("content", "")) for message in request.messages), *request.scored)
        prompt = sum(map(len, written)) / 4
        return prompt + (request.max_tokens or _UNBOUNDED_TOKENS) * request.n


def _scores_none(failure: Failure) -> bool:
    """Whether a service cannot score texts: the address does not exist, or the reply is about something else."""
    return failure.status in (404, 405) or failure.kind == "unusable"


def _not_affordable() -> CallFailed:
    return CallFailed(Failure("unavailable", "not affordable any more"))
