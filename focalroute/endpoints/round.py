"""Runs one round: asks its members concurrently, races late ones with other endpoints, cancels those not needed."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from focalroute.core.errors import CallFailed
from focalroute.core.records import Failure, Reply
from focalroute.endpoints.calls import CallContext, StreamSink, call_with_retries
from focalroute.endpoints.capabilities import Capabilities
from focalroute.endpoints.elicit import Plan, needs_capabilities
from focalroute.endpoints.member import MemberCall, PoolMember
from focalroute.endpoints.wire.refusals import located
from focalroute.money.cost import Bill

_USUAL_SHARE, _FEWEST = 0.75, 5  # the usual latency: this quantile of at least five calls
_PATIENCE = 3.0  # a member may be silent for this many times the usual latency
_SHORTEST_S = 0.25  # and for this long at least: a busy machine is a likelier cause than an endpoint that hangs
_STANDSTILL_S = 0.1  # if the event loop wakes this late, it was blocked: the wait proves nothing, and is repeated
_COLD_SHARE = 0.05  # of the ask's time: if no usual latency is known, one more endpoint is asked after this
_UNKNOWN_SHARE = 0.2  # of the ask's time: what an endpoint gets that may think and has hardly answered yet
_RACE_SHARE, _MOST_RACES = 0.1, 10.0
WEIGH_AGAIN = 0.25  # of a round's time so far: if waiting costs, an early end is weighed again after this
LOOK_AGAIN_S = 0.05  # if no endpoint was left to ask, how long until the next look for one
_CANCEL_AGAIN_S = 0.1  # after the deadline: how often a member that does not end is cancelled


class RoundController(Protocol):
    """Decides, for the round under way, whether to ask another endpoint or to stop early."""

    @property
    def answered(self) -> bool:
        """Whether a member of an earlier round has answered."""

    def spare(self, asked: Sequence[int]) -> int | None:
        """Return the best endpoint not yet asked in this round; None: none is left, or none is affordable."""

    @property
    def hurries(self) -> bool:
        """Whether waiting costs, so that the round may end before the answer is certain."""

    def settled(self, replies: Sequence[Reply], pending: Mapping[int, float]) -> bool:
        """Whether the round may end without the pending endpoints, given as index -> seconds since they were asked."""


@dataclass(frozen=True, slots=True)
class Rules:
    """When calls are retried, raced and cancelled; see `focalroute.AsyncEnsemble`."""

    attempts: int
    hedge_after: float | None = None
    early_stop: bool = False


@dataclass(slots=True)
class _AskedMember:
    """One endpoint asked in the round.

    Attributes:
        index: the endpoint's position in the pool.
        group: the members of one group race each other: the first to answer wins.
        hedge_of: the endpoint that it races, if it was asked for that.
        raced: whether another endpoint was asked to race it.
        reply: None while the call is under way.
    """

    index: int
    pool_member: PoolMember
    group: int
    call: MemberCall
    hedge_of: str | None
    task: asyncio.Task[None] = field(init=False)
    raced: bool = False
    given_up: bool = False
    reply: Reply | None = None


class RaceAllowance:
    """Limits the calls made only because others are silent: to a tenth of all calls, and ten at once.

    If all calls to a pool take longer than usual, more calls would only add to its load.
    """

    def __init__(self) -> None:
        self._left = _MOST_RACES

    def earn(self) -> None:
        """Count an ordinary call."""
        self._left = min(self._left + _RACE_SHARE, _MOST_RACES)

    def spend(self) -> bool:
        """Use up one extra call; return False if none is left."""
        allowed = self._left >= 1
        self._left -= allowed
        return allowed


@dataclass(eq=False)
class RoundCalls:
    """Asks the members of one round.

    To *race* a member is to ask one more endpoint beside it. The first of them to answer (if the answer is streamed, to
    send text) wins, and the others are cancelled. A member is raced when it is

    - *late*: with ``hedge_after``, it has taken longer than this quantile of its own latencies (counts as a retry);
    - *silent*: it has sent nothing, or was told to wait by its service, for much longer than the usual latency. Once
      another member has answered, a silent one is cancelled instead.

    If no member has answered after half of the ask's time (a twentieth if no usual latency is known), one more endpoint
    is asked as a *rescue*. The next one follows after the same time again or half of the rest, or as soon as that one
    fails.

    Args:
        members: all endpoints of the pool.
        plan: plans the query for an endpoint with these capabilities.
        controller: None: no member is raced, and none cancelled early.
        allowance: the pool's.
        closed: whether the pool was closed.
    """

    _members: Sequence[PoolMember]
    _context: CallContext
    _rules: Rules
    _plan: Callable[[Capabilities], Plan]
    _controller: RoundController | None
    _allowance: RaceAllowance
    _closed: Callable[[], bool]

    def __post_init__(self) -> None:
        self._stream_sink: StreamSink | None = None  # where a member that was picked alone streams its reply
        self._asked: list[_AskedMember] = []
        self._wakeup: asyncio.Future[None] | None = None  # done when there may be something to do
        self._began_left_s = self._context.left_s
        self._rescue_at_s = -math.inf  # the next rescue is due with this much time left; -inf: none is
        self._rescue_wait_s = 0.0  # and the one after it this much later
        self._raced = False  # whether any member is raced
        self._latency_unknown = False  # whether the round waits without knowing a usual latency
        self._was_blocked = False  # whether the event loop was during the last wait
        self._no_race_before = -math.inf  # `time.perf_counter`
        self._loop = asyncio.get_running_loop()
        self._abandoned = False

    def give_up(self) -> None:
        """Give up the members under way, from any thread."""
        self._abandoned = True
        with suppress(RuntimeError):  # its loop is closed
            self._loop.call_soon_threadsafe(self._wake)

    async def run(self, picked: Sequence[int]) -> tuple[Reply, ...]:
        """Ask the picked endpoints; return all replies, failures included, in the order of asking."""
        if len(picked) == 1 and self._controller and not self._controller.answered:
            self._stream_sink = self._context.stream_sink
        if self._stream_sink is not None:
            self._stream_sink.begun.add_done_callback(self._wake)
        for index in picked:
            self._allowance.earn()
            self._start(index, len(self._asked))
        if self._controller and not self._controller.answered:
            known = any(self._patience_s(member) < math.inf for member in self._asked)
            self._rescue_wait_s = (0.5 if known else _COLD_SHARE) * self._began_left_s
            self._rescue_at_s = self._began_left_s - self._rescue_wait_s
        try:
            while pending := self._pending:
                await self._wait(pending)
                if not self._pending:
                    break
                while not_needed := self._not_needed():
                    await self._give_up(not_needed)
                if self._context.left_s <= 0:
                    await self._give_up(self._asked, Failure("timeout", "the deadline of the ask passed"))
                if self._abandoned:
                    await self._give_up(self._asked, Failure("cancelled", "the ensemble was closed"))
                self._hedge()
                self._rescue()
                if silent := [member for member in self._pending if self._silent_in(member) <= 0]:
                    await self._race_or_give_up(silent)
        except BaseException:
            await self._cancel(self._asked)
            raise
        return tuple([self._reply_that_counts(member, member.reply) for member in self._asked if member.reply])

    def _start(self, index: int, group: int, hedge_of: str | None = None) -> None:
        call = MemberCall(
            self._plan, needs_capabilities(self._context.query), self._context, stream_sink=self._stream_sink
        )
        call.silent_since += self._members[index].throttle.wait_s
        member = _AskedMember(index, self._members[index], group, call, hedge_of)
        member.task = asyncio.get_running_loop().create_task(self._ask(member))
        self._asked.append(member)

    async def _ask(self, member: _AskedMember) -> None:
        call = member.call
        try:
            parsed = await call_with_retries(
                lambda: member.pool_member.attempt(call),
                self._context,
                self._rules.attempts,
                closed=lambda: self._closed() or self._answer_begun or member.given_up,
                may_wait=lambda wait_s: self._may_wait(member, wait_s),
            )
            member.reply = _reply(member, **vars(parsed))
            took_s = time.perf_counter() - member.call.silent_since
            self._context.slowest_s = max(self._context.slowest_s, took_s)
        except CallFailed as error:
            member.reply = _reply(member, error=located(error.failure, member.pool_member.endpoint))
        except asyncio.CancelledError:
            if not member.given_up:  # the task would keep the error, whose frames keep the member and its task
                raise
        finally:
            self._on_done(member)

    # -- while they are under way ------------------------------------------------------------------------------------

    @property
    def _pending(self) -> list[_AskedMember]:
        """The members that are still under way."""
        return [member for member in self._asked if member.reply is None]

    @property
    def _won(self) -> bool:
        """Whether a member of this round has answered, or begun to."""
        return self._answer_begun or any(member.reply and member.reply.ok for member in self._asked)

    @property
    def _answered(self) -> bool:
        """Whether a member has answered, in this round or an earlier one."""
        return self._won or (self._controller is not None and self._controller.answered)

    @property
    def _answer_begun(self) -> bool:
        """Whether a member already streams its reply, which then is the answer."""
        return self._stream_sink is not None and self._stream_sink.begun.done()

    def _reply_that_counts(self, member: _AskedMember, reply: Reply) -> Reply:
        """Return a member's reply; if another member streams the answer, a good reply counts as cancelled."""
        if not self._answer_begun or not reply.ok or (self._stream_sink and member.call is self._stream_sink.speaker):
            return reply
        failure = Failure("cancelled", "another endpoint answered first")
        return _reply(member, error=failure)

    async def _wait(self, pending: Sequence[_AskedMember]) -> None:
        """Wait until there may be something to do: a reply decides something, or a member or the round is late.

        Raises:
            Exception: an unexpected error in a member.
        """
        if not any(member.task.done() for member in pending):  # done: it broke while others were given up
            await self._sleep(pending)
        for member in pending:
            if member.reply is None and member.task.done():
                member.task.result()

    async def _sleep(self, pending: Sequence[_AskedMember]) -> None:
        """Sleep until `_wake` is called or something is due.

        `asyncio.wait` would take three times as long to set up for a single member.
        """
        loop = asyncio.get_running_loop()
        self._wakeup = loop.create_future()
        soonest_s = min([min(self._late_in(member), self._silent_in(member)) for member in pending])
        if self._hurries and self._answered:
            soonest_s = min(soonest_s, max(WEIGH_AGAIN * (time.perf_counter() - pending[0].call.started), LOOK_AGAIN_S))
        self._latency_unknown = soonest_s == math.inf
        timeout_s = min(soonest_s, self._context.left_s - max(self._rescue_at_s, 0.0))
        alarm_at = loop.time() + max(timeout_s, 0.0)
        alarm = loop.call_at(alarm_at, self._wake)
        try:
            await self._wakeup
        finally:
            alarm.cancel()
        blocked = loop.time() - alarm_at > _STANDSTILL_S
        if blocked and not self._was_blocked and soonest_s < math.inf:
            self._no_race_before = time.perf_counter() + soonest_s
        self._was_blocked = blocked

    def _on_done(self, member: _AskedMember) -> None:
        """Wake the round if this reply may decide something, or shows the usual latency for the first time."""
        first_wins = self._rules.early_stop or self._hurries or self._raced
        first_wins = first_wins or (self._stream_sink is not None and not self._answer_begun)
        broke = member.reply is None
        if first_wins or broke or self._latency_unknown or not self._pending:
            self._wake()

    def _wake(self, _: asyncio.Future[Any] | None = None) -> None:
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    def _late_in(self, member: _AskedMember) -> float:
        """Return the seconds until a member is late; infinite: it never is, or it must not be raced."""
        share = self._rules.hedge_after
        if share is None or member.raced or self._controller is None or self._context.retries < 1 or self._answer_begun:
            return math.inf
        usual = member.pool_member.breaker.latencies.quantile(share)
        if usual is None:
            return math.inf
        return max(member.call.started + usual, self._no_race_before) - time.perf_counter()

    def _patience_s(self, member: _AskedMember) -> float:
        """Return how long a member may be silent; infinite: no usual latency is known.

        By its own latencies; if it has hardly any, by those of the pool's slowest endpoint. The latencies in this ask
        count too, as a query that takes long takes long at every endpoint.
        """
        slowest_s = self._context.slowest_s
        own = member.pool_member.breaker.latencies
        usual_s = own.quantile(_USUAL_SHARE, _FEWEST)
        if usual_s is not None:
            return max(_PATIENCE * max(usual_s, slowest_s), _SHORTEST_S)
        of_pool = [one.breaker.latencies.quantile(_USUAL_SHARE, _FEWEST) for one in self._members]
        known = [usual_s for usual_s in (own.quantile(_USUAL_SHARE, 1), *of_pool) if usual_s is not None]
        if not known and not self._answered:
            return math.inf
        least_s = _UNKNOWN_SHARE * self._began_left_s if self._answered else 0.0
        return max(_PATIENCE * max([*known, slowest_s]), least_s, _SHORTEST_S)

    def _silent_in(self, member: _AskedMember) -> float:
        """Return the seconds until a member has been silent for too long; infinite: it may be silent."""
        if (member.raced and not self._answered) or self._controller is None or self._answer_begun:
            return math.inf
        now, patience_s = time.perf_counter(), self._patience_s(member)
        left_s = member.call.silent_since - now
        left_s = 0.0 if self._is_long_wait(left_s, patience_s) else left_s + patience_s
        return max(left_s, self._no_race_before - now)

    def _is_long_wait(self, wait_s: float, patience_s: float) -> bool:
        """Whether a wait for the next attempt is so long that another endpoint is asked meanwhile."""
        return wait_s > (patience_s if patience_s < math.inf else _COLD_SHARE * self._began_left_s)

    def _may_wait(self, member: _AskedMember, wait_s: float) -> bool:
        """Whether a member may wait this long for its next attempt. If that is long, another endpoint is asked too."""
        wait_s = max(wait_s, member.pool_member.throttle.wait_s)
        long = self._controller is not None and self._is_long_wait(wait_s, self._patience_s(member))
        if long and self._answered:
            return False
        member.call.silent_since = time.perf_counter() + wait_s
        if long:
            self._wake()
        return True

    async def _race_or_give_up(self, silent: Sequence[_AskedMember]) -> None:
        """Race silent members or, if another has answered, cancel them."""
        if self._answered:
            for member in silent:
                member.call.outrun = True
            await self._give_up(silent, Failure("timeout", "silent for long after another endpoint had answered"))
        else:
            for member in silent:
                waiting = member.call.silent_since > time.perf_counter()  # so it makes no call meanwhile
                self._race(member, free=waiting)

    def _hedge(self) -> None:
        """Race late members."""
        for member in self._pending:
            if self._late_in(member) <= 0 and self._race(member):
                self._context.retries -= 1

    def _rescue(self) -> None:
        """Ask one more endpoint if a rescue is due, or if each member under way is raced already."""
        if self._won:
            self._rescue_at_s = -math.inf
        pending, left_s = self._pending, self._context.left_s
        if self._rescue_at_s == -math.inf or not pending:
            return
        if left_s > self._rescue_at_s and not all(member.raced for member in pending):
            return
        if self._race(pending[-1]):
            self._rescue_at_s = left_s - min(left_s / 2, self._rescue_wait_s)
            self._rescue_wait_s *= 2
        else:
            self._rescue_at_s = left_s - LOOK_AGAIN_S

    def _race(self, member: _AskedMember, *, free: bool = True) -> bool:
        """Race a member, if an endpoint is left for it; return whether it is raced. If not, look again soon.

        Args:
            free: whether the extra call needs no allowance (see `RaceAllowance`).
        """
        spare = None
        if self._controller and not self._closed():
            spare = self._controller.spare([one.index for one in self._asked])
        if spare is not None and (free or self._allowance.spend()):
            member.raced = self._raced = True
            self._start(spare, member.group, member.pool_member.endpoint.name)
            return True
        self._no_race_before = time.perf_counter() + LOOK_AGAIN_S
        return False

    def _not_needed(self) -> list[_AskedMember]:
        """Return the members that lost a race, or can no longer change the answer."""
        lost = self._losers()
        rest = [member for member in self._pending if member not in lost]
        return lost + rest if rest and self._settled_without(rest) else lost

    def _losers(self) -> list[_AskedMember]:
        """Return the members under way whose race another member has won, and note which were asked before it."""
        speaker = self._stream_sink.speaker if self._stream_sink else None
        winners: dict[int, int] = {}  # group -> position among the asked members
        for position, member in enumerate(self._asked):
            if (member.reply and member.reply.ok) or member.call is speaker:
                winners[member.group] = position
        losers = []
        for position, member in enumerate(self._asked):
            if member.reply is None and member.group in winners and member.call is not speaker:
                member.call.outrun = position < winners[member.group]
                losers.append(member)
        return losers

    def _settled_without(self, pending: Sequence[_AskedMember]) -> bool:
        """Whether the round may end without these members.

        It needs an answer: of this round with ``early_stop``, of any round if waiting costs.
        """
        if self._controller is None:
            return False
        may_end = self._answered if self._hurries else self._rules.early_stop and self._won
        if not may_end:
            return False
        replies = [member.reply for member in self._asked if member.reply]
        now = time.perf_counter()
        waited = {member.index: now - member.call.started for member in pending}
        if not self._controller.settled(replies, waited):
            return False
        if self._hurries:
            for index, seconds in waited.items():
                self._members[index].breaker.latencies.add_cancelled(seconds)
        return True

    @property
    def _hurries(self) -> bool:
        return self._controller is not None and self._controller.hurries

    async def _cancel(self, members: Sequence[_AskedMember]) -> None:
        """Cancel members and wait until they have ended; after the deadline, cancel them again until they do."""
        pending = {member.task for member in members if not member.task.done()}
        for member in members:
            member.given_up = True
            member.task.cancel()
        while pending:
            _, pending = await asyncio.wait(pending, timeout=max(self._context.left_s, _CANCEL_AGAIN_S))
            for task in pending:
                task.cancel()
        for member in members:
            if not member.task.cancelled():
                member.task.exception()  # retrieved, so that asyncio does not warn

    async def _give_up(self, members: Sequence[_AskedMember], why: Failure | None = None) -> None:
        """Cancel members still under way, down to their sockets; a reply that arrives at that moment counts."""
        pending = [member for member in members if member.reply is None]
        await self._cancel(pending)
        for member in pending:
            if not member.task.cancelled():  # cancelled: it had not begun
                member.task.result()
            if member.reply is not None:
                continue
            reason = "another endpoint answered first" if member.call.outrun else "not needed any more"
            failure = why or Failure("cancelled", reason)
            member.reply = _reply(member, error=failure)


def _reply(member: _AskedMember, **rest: Any) -> Reply:
    call = member.call
    usage, cost, source = Bill.total(call.bills)
    return Reply(
        member.pool_member.endpoint.name,
        usage=usage,
        cost=cost,
        cost_source=source,
        latency_s=time.perf_counter() - call.started,
        attempts=len(call.bills),
        hedge_of=member.hedge_of,
        started=call.started,
        sent=call.sent,
        first_token=call.first_token,
        **rest,
    )
