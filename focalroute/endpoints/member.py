"""One endpoint in a pool: its capabilities, its availability, and the calls made to it.

A call passes through these methods of `PoolMember`, each inside the one before:

- `PoolMember.attempt`: repeats it without what the service refused, or with more room if it was cut;
- ``_attempt_or_repair``: asks again for a structured reply that is not valid;
- ``_attempt_admitted``: waits for the rate limits;
- ``_attempt_or_fall_back``: uses the plan's fallback if the service refuses the plan;
- ``_attempt_paid``: reserves the money, sends the request, reads the answer, settles the bill.

`focalroute.endpoints.calls.call_with_retries` retries the whole.
"""

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
from focalroute.endpoints.client import EndpointClient, HttpSessions
from focalroute.endpoints.elicit import NotValid, ParsedReply, Plan
from focalroute.endpoints.paid_call import PAID_CALL, CostLookups, PaidCall, note_generation, reserved
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
_UNBOUNDED_TOKENS = 1024  # counted towards a rate for a reply of unbounded length, until it has arrived
_EVIDENCE_S = 5.0  # a call that the deadline ends sooner does not count against its endpoint, unless it is late
_STANDSTILL_S = 1.0  # if a time limit ends this late, the event loop was blocked
_CANCELLED = Failure("cancelled", "given up before it answered")


@dataclass(slots=True)
class MemberCall:
    """One member's part in one round: its task, and what its attempts have cost so far.

    Times are those of `time.perf_counter`.

    Attributes:
        plan: plans the query for an endpoint with these capabilities.
        needs_capabilities: whether the plan depends on the capabilities.
        started: when its first attempt began.
        silent_since: when its latest attempt began; during a wait, when the next attempt begins.
        sent: when its latest attempt was sent; None: none was yet.
        first_token: when the first piece of its text arrived; None: none has, or it is not streamed.
        widened: whether it was repeated with more room, as its reply was cut.
        more_room: the least room for thinking (see `focalroute.endpoints.quirks`) that its attempts get.
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
        self, endpoint: Endpoint, breaker: Breaker, sessions: HttpSessions, store: Store, guard: BudgetGuard
    ) -> None:
        self.endpoint = endpoint
        self.breaker = breaker
        self.throttle = Throttle(endpoint)
        self._client = EndpointClient(endpoint, sessions, self._on_headers)
        self._cost_lookups = CostLookups(self._client)
        self._store = store
        self._guard = guard
        self._check_at = -math.inf  # no check before this time (`time.monotonic`)
        self._capabilities = self._known_capabilities()
        self._assumed = capabilities.override(endpoint, capabilities.ALL)  # as long as they are unknown
        if self._capabilities is not None and self._capabilities.thinks:
            self._quirks.certain = True
        self._checks = PerLoop(Background)
        self._trials = Background()
        self._lacks: dict[str, float] = {}  # a feature that it reported to lack -> until when that is believed
        #: A schema that it refuses, or "scored" if it cannot score choices -> until when that is believed.
        self._unsupported: dict[str, float] = {}

    @property
    def _quirks(self) -> Quirks:
        return self._client.quirks

    def _known_capabilities(self) -> Capabilities | None:
        """Return the capabilities if the pool file declares them all, or if an earlier check is recent enough."""
        declared = capabilities.declared(self.endpoint)
        if declared is not None:
            self._check_at = math.inf
            return declared
        row = self._store.capabilities(capabilities.key(self.endpoint))
        age_s = math.inf if row is None else time.time() - row.probed_at
        if row is None or abs(age_s) > _CHECK_AGAIN_S:  # the age is negative if a clock was ahead
            return None
        self._check_at = time.monotonic() + _CHECK_AGAIN_S - max(age_s, 0.0)
        return capabilities.override(self.endpoint, Capabilities.from_dict(row.values))

    # -- capabilities ------------------------------------------------------------------------------------------------

    def _plan(self, call: MemberCall) -> Plan:
        """Return the best plan for the query; as long as the capabilities are unknown, the best ones are assumed."""
        known = self._capabilities if call.needs_capabilities else capabilities.NONE
        if call.needs_capabilities:
            self._begin_check()
        used = known or self._assumed
        if used.thinks != self._quirks.thinks:
            used = replace(used, thinks=self._quirks.thinks)
        plan = call.plan(used)
        return plan if known is not None else plan.with_optional_logprobs()

    def _begin_check(self) -> None:
        """Start a capability check in the background if one is due and none runs in this event loop."""
        if time.monotonic() >= self._check_at and not len(checks := self._checks.here()):
            checks.start(self._check_capabilities())

    async def _check_capabilities(self) -> None:
        self._check_at = time.monotonic() + _CHECK_PAUSE_S  # if it fails, or is cancelled as its loop ends
        with suppress(Exception):  # asks report what is wrong
            measured: Capabilities | None = None
            while measured is None:
                room = self._quirks.room
                try:
                    measured = await self._measure_capabilities()
                except CallFailed:
                    if self._quirks.room <= room:  # else it is repeated with the larger room
                        raise
            self._capabilities = capabilities.override(self.endpoint, measured)

    async def _measure_capabilities(self) -> Capabilities:
        """Run a check, pay for it and store its result."""
        check = capabilities.CapabilityCheck(self._client, self._admitted)
        async with self._reserved_probe(with_room(capabilities.CHECK, 7 * self._quirks.room)) as paid_call:
            if paid_call is None:
                raise _not_affordable()
            try:
                measured = await check.run()
            finally:
                paid_call.usage = check.usage
        believed_s = _LACK_BELIEVED_S if check.doubtful else _CHECK_AGAIN_S
        self._check_at = time.monotonic() + believed_s
        made_at = time.time() - _CHECK_AGAIN_S + believed_s  # a doubtful result is stored as an old one
        self._store.write(CapabilityRow(capabilities.key(self.endpoint), made_at, measured.to_dict()))
        return measured

    @asynccontextmanager
    async def _admitted(self) -> AsyncIterator[None]:
        """Wait until the rate limits allow a background call, and register its end."""
        admitted = await self.throttle.enter(0.0, self.endpoint.timeout_s)
        failure: Failure | None = _CANCELLED
        try:
            yield
            failure = None
        except CallFailed as error:
            failure = error.failure
            raise
        finally:
            self.throttle.leave(admitted, None, failure)

    def lacks(self, needs: Needs) -> str | None:
        """Return the first need that the pool file, or an error of the endpoint, says it does not meet; else None."""
        for feature in needs.features:
            declared: bool | None = getattr(self.endpoint, feature)
            if declared is False or (declared is None and self._lacks.get(feature, 0.0) > time.monotonic()):
                return feature
        limit = self.endpoint.context_tokens
        return f"prompt of {needs.words:,} words" if limit is not None and needs.surely_exceeds(limit) else None

    # -- availability ------------------------------------------------------------------------------------------------

    def is_available(self) -> bool:
        """Whether asks may call it now. If its breaker is open and a trial call is due, start the trial."""
        self.breaker.count_overdue()
        if self.breaker.allows:
            return self.throttle.ready
        if (self.throttle.ready or self.throttle.triable) and self.breaker.claim_trial():
            self._trials.start(self._run_trial())
        return False

    @property
    def thinks(self) -> bool:
        """Whether its model is known to think before it answers."""
        return self._quirks.thinks

    def with_least_room(self, request: Request) -> Request:
        """Return the request with the least room for thinking that a call may get."""
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
        """Make the breaker's trial call, within the rate limits.

        If it is not affordable, the breaker closes, so that the next ask is the trial.
        """
        succeeded: bool | None = None
        sent = math.inf
        try:
            async with self._reserved_probe(with_room(capabilities.TRIAL, self._quirks.room)) as paid_call:
                if paid_call is not None:
                    async with self._admitted():
                        sent = time.monotonic()
                        paid_call.usage = (await capabilities.call_trial(self._client)).usage
            succeeded = True
        except FocalrouteError as error:
            limited = isinstance(error, CallFailed) and error.failure.kind == "limited"
            succeeded = None if limited else False
            if time.monotonic() - sent > capabilities.TRIAL_TIMEOUT_S + _STANDSTILL_S:
                self.breaker.drop_trial()  # the event loop was blocked, so the timeout says nothing of the endpoint
        except asyncio.CancelledError:
            self.breaker.drop_trial()
            raise
        finally:
            self.breaker.end_trial(succeeded)

    @asynccontextmanager
    async def _reserved_probe(self, request: Request) -> AsyncIterator[PaidCall | None]:
        """Reserve, settle and record a call that belongs to no query; yields None if it is not affordable."""
        ask_budget = self._guard.open_ask_budget(PROBE)
        try:
            async with reserved(ask_budget, self.endpoint, request) as paid_call:
                yield paid_call
        finally:
            ask_budget.write()

    async def aclose(self) -> None:
        """Cancel this loop's background calls; a capability check gets a moment to end, as it is paid for."""
        self._check_at = math.inf
        await self._checks.here().cancel(grace_s=_CHECK_GRACE_S)
        await self._trials.cancel()
        await self._cost_lookups.aclose()

    # -- calls -------------------------------------------------------------------------------------------------------

    async def attempt(self, call: MemberCall) -> ParsedReply:
        """Make one call. Repeat it if it was refused for something that can be left out, or cut before it answered.

        Raises:
            CallFailed: it failed, or does not fit the ask's budget or the rate limits.
        """
        while True:
            plan = self._plan(call)
            try:
                return await self._attempt_or_repair(call, plan)
            except CallFailed as error:
                if not self._adapts(call, plan, error.failure):
                    raise

    def _adapts(self, call: MemberCall, plan: Plan, failure: Failure) -> bool:
        """Adapt to a failed call; return whether to repeat it: without what was refused, or (once) with more room."""
        if call.stream_sink is not None and call.stream_sink.speaker is call:
            return False
        if capabilities.refuses(failure) and self._drop_capability(call, plan, failure):
            return True
        if failure.cut and self._fills_context(call.bills[-1].usage, plan.request.n):
            return False
        if not failure.cut and failure.lacks != ROOM:
            return False
        room = None if failure.cut and call.widened else self._quirks.adjust_room(plan.request, failure, call.room)
        call.widened = call.widened or failure.cut
        call.more_room = room if room is not None and failure.cut else 0
        return room is not None

    def _fills_context(self, usage: Usage | None, samples: int) -> bool:
        """Whether a call was cut because its model's context was full, so that more room would not help."""
        limit = self.endpoint.context_tokens
        return (
            limit is not None and usage is not None and limit <= usage.prompt_tokens + usage.completion_tokens / samples
        )

    def _drop_capability(self, call: MemberCall, plan: Plan, failure: Failure) -> bool:
        """Drop a refused capability, or all if they were only assumed; return whether that changes the plan."""
        if self._capabilities is None:
            self._assumed = capabilities.override(self.endpoint, capabilities.NONE)
        else:
            self._capabilities = capabilities.without(self._capabilities, failure) or self._capabilities
        return self._plan(call) != plan

    async def _attempt_or_repair(self, call: MemberCall, plan: Plan) -> ParsedReply:
        """Make one call; if its structured reply is not valid, ask for it again."""
        try:
            return await self._attempt_admitted(call, plan)
        except NotValid as error:
            if error.repair is None:
                raise
            try:
                return await self._attempt_admitted(call, error.repair)
            except CallFailed as again:
                not_made = again.failure.kind in ("unavailable", "limited")
                raise error if not_made else again from None

    async def _attempt_admitted(self, call: MemberCall, plan: Plan) -> ParsedReply:
        """Make one call, once the rate limits allow it. If it is cancelled before, it costs nothing."""
        call.silent_since = time.perf_counter() + self.throttle.wait_s
        if not call.bills:
            call.started = time.perf_counter()
        admitted = await self.throttle.enter(self._expected_tokens(plan.request), call.context.left_s)
        call.silent_since = time.perf_counter()
        failure: Failure | None = None
        before = len(call.bills)
        try:
            if plan.fallback is None:
                return await self._attempt_paid(call, plan)
            return await self._attempt_or_fall_back(call, plan, plan.fallback)
        except CallFailed as error:
            failure = error.failure
            raise
        except BaseException:
            failure = _CANCELLED
            raise
        finally:
            usage, *_ = Bill.total(call.bills[before:])
            tokens = None if usage is None else usage.prompt_tokens + usage.completion_tokens
            self.throttle.leave(admitted, tokens, failure)

    async def _attempt_or_fall_back(self, call: MemberCall, plan: Plan, fallback: Plan) -> ParsedReply:
        """Try the plan, then its fallback if the service refuses this schema or cannot score texts."""
        scored = bool(plan.request.scored)
        what = "scored" if scored else str(plan.request.params.get("response_format"))
        if self._unsupported.get(what, 0.0) > time.monotonic():
            return await self._attempt_paid(call, fallback)
        try:
            parsed = await self._attempt_paid(call, plan)
        except CallFailed as error:
            refusal = error.failure
            if not capabilities.refuses(refusal) and not (scored and _cannot_score(refusal)):
                raise
        else:
            self._unsupported.pop(what, None)
            return parsed
        try:
            parsed = await self._attempt_paid(call, fallback)
        except CallFailed as error:
            if error.failure.kind == "unusable":  # else the service may be down, which says nothing of the plan
                self._note_unsupported(what, refusal)
            raise
        self._note_unsupported(what, refusal)
        return parsed

    def _note_unsupported(self, what: str, refusal: Failure) -> None:
        """Use fallbacks at once for the next hour; after a status 500, only if it was the second in a row."""
        certain = refusal.status != 500 or what in self._unsupported
        if len(self._unsupported) >= _MAX_UNSUPPORTED:
            self._unsupported.clear()
        self._unsupported[what] = time.monotonic() + _LACK_BELIEVED_S if certain else 0.0

    async def _attempt_paid(self, call: MemberCall, plan: Plan) -> ParsedReply:
        """Reserve the cost of one request, send it and read its answer; settle the bill however it ends."""
        request, paid_call = await self._reserve(call, plan)
        if self._cost_lookups.supported:
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
                failure = self._failure_of_cancelled(call, time.perf_counter() - sent)
            raise
        finally:
            self.breaker.leave(in_flight, failure, blameless=failure is not None and self._blameless(failure))
            call.bills.append(paid_call.settle())
            self._cost_lookups.begin(paid_call)
            if _log.isEnabledFor(logging.DEBUG):
                self._log_attempt(call, failure)

    async def _reserve(self, call: MemberCall, plan: Plan) -> tuple[Request, PaidCall]:
        """Reserve the cost of the plan's request, with less room for thinking if the whole room is not affordable."""
        for room in self._quirks.rooms(call.more_room):
            request = with_room(plan.request, room)
            paid_call = await PaidCall.reserve(call.context.ask_budget, self.endpoint, request)
            if paid_call is not None:
                call.room = room
                return request, paid_call
        raise _not_affordable()

    def _blameless(self, failure: Failure) -> bool:
        """Whether a failure says nothing about the endpoint's health."""
        if failure.status == 429 and self.throttle.limit > 1.0:  # the limit on concurrent calls adapts to it
            return True
        if failure.lacks is not None or failure.cut:
            return True
        return failure.status == 403 and located(failure, self.endpoint).of_request

    def _on_headers(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self.throttle.on_headers(headers)
        if self._cost_lookups.supported:
            note_generation(headers)

    def _failure_of_cancelled(self, call: MemberCall, silent_s: float) -> Failure:
        """Return how a cancelled call counts: as a timeout if it was silent for too long."""
        overran = -_STANDSTILL_S < call.context.left_s <= 0 and silent_s >= _EVIDENCE_S
        if call.outrun or overran or self.breaker.late(silent_s, call.context.slowest_s):
            return Failure("timeout", "silent for too long")
        return _CANCELLED

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
        """Send the request; return the whole reply, streamed to the call's sink if it has one."""
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
                    call.stream_sink.add(call, piece)
        finally:
            paid_call.usage = decoder.usage
            paid_call.generation = paid_call.generation or decoder.id
        raise protocol_error("the stream was cut short", decoder.usage)

    def _expected_tokens(self, request: Request) -> float:
        """Estimate the tokens of a call for the rate limit, which is corrected once the call has ended."""
        if self.endpoint.tokens_per_minute is None:
            return 0.0
        written = (*(str(message.get("content", "")) for message in request.messages), *request.scored)
        prompt = sum(map(len, written)) / 4  # characters a token
        return prompt + (request.max_tokens or _UNBOUNDED_TOKENS) * request.n


def _cannot_score(failure: Failure) -> bool:
    """Whether a service cannot score texts: the address does not exist, or the reply is about something else."""
    return failure.status in (404, 405) or failure.kind == "unusable"


def _not_affordable() -> CallFailed:
    return CallFailed(Failure("unavailable", "not affordable any more"))
