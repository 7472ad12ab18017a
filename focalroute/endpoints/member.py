"""One endpoint in a pool: its client, what it can do, its breaker and limits, and the single calls made to it."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace

from focalroute.core.config import Endpoint
from focalroute.core.errors import CallFailed, FocalrouteError
from focalroute.core.event_loops import Background
from focalroute.core.records import Failure
from focalroute.endpoints import capabilities
from focalroute.endpoints.breaker import Breaker
from focalroute.endpoints.calls import CallContext, StreamSink
from focalroute.endpoints.capabilities import Capabilities
from focalroute.endpoints.client import EndpointClient, HttpClients
from focalroute.endpoints.elicit import ParsedReply, Plan
from focalroute.endpoints.paid_call import PaidCall, reserved
from focalroute.endpoints.rate_limits import Health, Throttle
from focalroute.endpoints.wire import Completion, Request
from focalroute.endpoints.wire.fields import protocol_error
from focalroute.endpoints.wire.refusals import Feature
from focalroute.endpoints.wire.stream import StreamDecoder
from focalroute.money.budget import BudgetGuard
from focalroute.money.cost import Bill
from focalroute.store.base import PROBE, CapabilityRow, Store

_CHECK_AGAIN_S = 7 * 24 * 3600.0
_CHECK_PATIENCE_S = 5.0  # how long after its start asks wait for a capability check
_LACK_BELIEVED_S = 3600.0  # that it lacks a feature, as it reported itself
_UNSUPPORTED_STATUSES = (400, 422, 500, 501)  # some servers break down over what they do not support
_MAX_UNSUPPORTED = 256  # schemas; then they are forgotten
_UNBOUNDED_TOKENS = 1024  # counted towards a rate for a reply of unbounded length, until it is there
_EVIDENCE_S = 5.0  # a deadline that comes sooner says more of the caller than of the endpoint


@dataclass(slots=True)
class MemberCall:
    """One member's part in one round: what it may do, and what its attempts have cost so far.

    Attributes:
        plan: plans the query for an endpoint with these capabilities.
        needs_capabilities: whether the plan depends on the capabilities.
        started: when its first attempt began (`time.perf_counter`), after any capability check.
        silent_since: when its latest attempt began; while it waits for the next, when that will be.
        outrun: whether it was cancelled because another endpoint, asked later, answered first, or one long before it.
        stream_sink: where its reply is streamed; None: it comes whole.
    """

    plan: Callable[[Capabilities], Plan]
    needs_capabilities: bool
    context: CallContext
    started: float = field(default_factory=time.perf_counter)
    silent_since: float = field(default_factory=time.perf_counter)
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
        self._client = EndpointClient(endpoint, clients, on_headers=self.throttle.on_headers)
        self._store = store
        self._guard = guard
        self._capabilities = capabilities.declared(endpoint) or self._remembered()
        self._checks: dict[asyncio.AbstractEventLoop, asyncio.Task[Capabilities]] = {}
        self._check_started = math.inf
        self._trials = Background()
        self._lacks: dict[str, float] = {}  # features it reported to lack -> until when that is believed
        self._unsupported: set[str] = set()  # schemas that it refuses, or "scored": it scores no choices

    def _remembered(self) -> Capabilities | None:
        row = self._store.capabilities(capabilities.key(self.endpoint))
        if row is None or time.time() - row.probed_at > _CHECK_AGAIN_S:
            return None
        return capabilities.override(self.endpoint, Capabilities.from_dict(row.values))

    # -- what it can do ----------------------------------------------------------------------------------------------

    async def _known_capabilities(self, call: MemberCall) -> Capabilities:
        """Its capabilities, checked once for all calls that wait for them.

        A call that would wait too long goes on without: every endpoint gives plain replies.

        Raises:
            CallFailed: the check did not get through; the next caller tries again.
        """
        if self._capabilities is not None:
            return self._capabilities
        loop = asyncio.get_running_loop()
        check = self._checks.get(loop)
        if check is None or check.done():
            check = self._checks[loop] = loop.create_task(self._check_capabilities())
            check.add_done_callback(self._on_checked)
            self._check_started = time.monotonic()
        patience = min(call.context.left_s / 4, self._check_started + _CHECK_PATIENCE_S - time.monotonic())
        try:
            async with asyncio.timeout(patience):
                return await asyncio.shield(check)
        except TimeoutError:
            return capabilities.NONE

    def _on_checked(self, check: asyncio.Task[Capabilities]) -> None:
        """Let go of a check that ended, and of its loop. Callers that still wait for it get its failure."""
        if self._checks.get(check.get_loop()) is check:
            del self._checks[check.get_loop()]
        if not check.cancelled():
            check.exception()

    async def _check_capabilities(self) -> Capabilities:
        async with self._reserved(capabilities.CHECK) as paid_call:
            if paid_call is None:
                raise _not_affordable()
            try:
                measured, paid_call.usage = await capabilities.check_capabilities(self._client)
            except CallFailed as error:
                self.breaker.leave(self.breaker.enter(), error.failure)
                raise
        self._store.write(CapabilityRow(capabilities.key(self.endpoint), time.time(), measured.to_dict()))
        self._capabilities = capabilities.override(self.endpoint, measured)
        return self._capabilities

    def lacks(self, feature: Feature) -> bool:
        """Whether it is known not to have this feature, by the pool file or its own error messages."""
        declared: bool | None = getattr(self.endpoint, feature)
        if declared is not None:
            return not declared
        return self._lacks.get(feature, 0.0) > time.monotonic()

    # -- whether it is there -----------------------------------------------------------------------------------------

    def check(self) -> bool:
        """Whether asks may call it now. Where it is out and may be back, a trial call in the background finds out."""
        self.breaker.notice()
        if self.breaker.allows:
            return self.throttle.ready
        if self.breaker.claim_trial():
            self._trials.start(self._run_trial())
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

    async def _run_trial(self) -> None:
        """Make the breaker's trial call; where no money is left for it, the next ask is the trial."""
        well: bool | None = None
        try:
            async with self._reserved(capabilities.TRIAL) as paid_call:
                if paid_call is not None:
                    paid_call.usage = (await capabilities.call_trial(self._client)).usage
            well = True
        except FocalrouteError:
            well = False
        finally:
            self.breaker.end_trial(well)

    @asynccontextmanager
    async def _reserved(self, request: Request) -> AsyncIterator[PaidCall | None]:
        """`reserved` for a call that belongs to no query; it is in the ledger at the end."""
        ask_budget = self._guard.open_ask_budget(PROBE)
        try:
            async with reserved(ask_budget, self.endpoint, request) as paid_call:
                yield paid_call
        finally:
            self._store.write(*ask_budget.unwritten)

    async def aclose(self) -> None:
        """Cancel what is under way in the background of this loop."""
        check = self._checks.pop(asyncio.get_running_loop(), None)
        if check is not None:
            check.cancel()
            await asyncio.gather(check, return_exceptions=True)
        await self._trials.cancel()

    # -- calls -------------------------------------------------------------------------------------------------------

    async def attempt(self, call: MemberCall) -> tuple[ParsedReply, Completion]:
        """Make one call, once the endpoint takes one more; a caller that is cancelled before has cost nothing.

        Raises:
            CallFailed: it failed, or does not fit the ask's budget or the limits.
        """
        able = capabilities.NONE
        call.silent_since = time.perf_counter() + self.throttle.paused_s
        if call.needs_capabilities:
            able = await self._known_capabilities(call)
        plan = call.plan(able)
        if not call.bills:
            call.started = time.perf_counter()
        admitted = await self.throttle.enter(self._expected_tokens(plan.request), call.context.left_s)
        failure: Failure | None = None
        before = len(call.bills)
        try:
            if plan.fallback is None:
                return await self._attempt(call, plan)
            return await self._attempt_or_fall_back(call, plan, plan.fallback)
        except CallFailed as error:
            failure = error.failure
            raise
        except BaseException:
            failure = _cancellation(call)
            raise
        finally:
            usage = call.bills[-1].usage if len(call.bills) > before else None
            tokens = None if usage is None else usage.prompt_tokens + usage.completion_tokens
            self.throttle.leave(admitted, tokens, failure)

    async def _attempt_or_fall_back(
        self, call: MemberCall, plan: Plan, fallback: Plan
    ) -> tuple[ParsedReply, Completion]:
        """Try the plan, then its fallback where the service refuses just this schema, or scores no texts."""
        scored = bool(plan.request.scored)
        way = "scored" if scored else str(plan.request.params.get("response_format"))
        if way not in self._unsupported:
            try:
                return await self._attempt(call, plan)
            except CallFailed as error:
                if error.failure.status not in _UNSUPPORTED_STATUSES and not (scored and _scores_none(error.failure)):
                    raise
            if len(self._unsupported) >= _MAX_UNSUPPORTED:
                self._unsupported.clear()
            self._unsupported.add(way)
        return await self._attempt(call, fallback)

    async def _attempt(self, call: MemberCall, plan: Plan) -> tuple[ParsedReply, Completion]:
        """Make one paid call: reserved before and settled after, however it ends."""
        paid_call = await PaidCall.reserve(call.context.ask_budget, self.endpoint, plan.request)
        if paid_call is None:
            raise _not_affordable()
        in_flight = self.breaker.enter()
        failure: Failure | None = None
        completion: Completion | None = None
        try:
            completion = await self._complete(call, plan.request, paid_call)
            paid_call.usage = completion.usage
            return plan.read(completion), completion
        except CallFailed as error:
            failure = error.failure
            paid_call.fail(error)
            if failure.lacks is not None:
                self._lacks[failure.lacks] = time.monotonic() + _LACK_BELIEVED_S
            raise
        except BaseException:
            if completion is None:
                failure = _cancellation(call)
            raise
        finally:
            refused = failure is not None and failure.status == 429 and not self.throttle.at_floor
            lacking = failure is not None and failure.lacks is not None
            self.breaker.leave(in_flight, failure, blameless=refused or lacking)
            call.bills.append(paid_call.settle())

    async def _complete(self, call: MemberCall, request: Request, paid_call: PaidCall) -> Completion:
        """The whole reply, streamed to the call's sink if it has one."""
        if call.stream_sink is None:
            bounded = call.context.left_s <= self.endpoint.timeout_s  # by the deadline of the ask
            return await self._client.complete(request, timeout_s=math.inf if bounded else None)
        stream_usage = self.endpoint.stream_usage is not False
        if self._capabilities is not None:
            stream_usage = self._capabilities.stream_usage
        request = replace(request, n=1, stream_usage=stream_usage)
        decoder = StreamDecoder()
        try:
            async with aclosing(self._client.stream(request, decoder=decoder)) as pieces:
                async for piece in pieces:
                    if isinstance(piece, Completion):
                        return piece
                    call.stream_sink.say(call, piece)
        finally:
            paid_call.usage = decoder.usage
        raise protocol_error("the stream was cut short", decoder.usage)

    def _expected_tokens(self, request: Request) -> float:
        """Estimate what a call will use of the tokens of a minute; corrected once it has ended."""
        if self.endpoint.tokens_per_minute is None:
            return 0.0
        written = (*(str(message.get("content", "")) for message in request.messages), *request.scored)
        prompt = sum(map(len, written)) / 4
        return prompt + (request.max_tokens or _UNBOUNDED_TOKENS) * request.n


def _scores_none(failure: Failure) -> bool:
    """Whether a service has no likelihoods to give: no such address, or a reply that is about something else."""
    return failure.status in (404, 405) or failure.kind == "unusable"


def _not_affordable() -> CallFailed:
    return CallFailed(Failure("unavailable", "not affordable any more"))


def _cancellation(call: MemberCall) -> Failure:
    """Why a call was cancelled: it was too slow, which counts against the endpoint, or was not needed any more."""
    if call.outrun:
        return Failure("timeout", "another endpoint answered first")
    if call.context.left_s <= 0 and time.perf_counter() - call.started >= _EVIDENCE_S:
        return Failure("timeout", "the deadline of the ask came first")
    return Failure("cancelled", "given up before it answered")
