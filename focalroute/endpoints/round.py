"""Runs one round: asks its members concurrently, races late ones with others, and cancels needless ones."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
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
_PATIENCE = 3.0  # times the usual latency: longer is silent for too long
_SHORTEST_S = 0.25  # the least patience: below it, a busy machine is likelier than an endpoint that hangs
_STANDSTILL_S = 0.1  # if the event loop wakes this late, it stood still: the wait proves nothing, and is repeated
_COLD_SHARE = 0.05  # of the ask's time: if no usual latency is known, one more endpoint is asked after this
_UNKNOWN_SHARE = 0.2  # of the ask's time: an endpoint that has hardly answered yet, and may think, is given this long
_RACE_SHARE, _MOST_RACES = 0.1, 10.0
WEIGH_AGAIN = 0.25  # of a round's time so far: if waiting costs, an early end is weighed again after this
LOOK_AGAIN_S = 0.05  # until the next look for an endpoint to ask, if there was none
_INSIST_S = 0.1  # after the deadline: how often a member that does not end is cancelled


class RoundController(Protocol):
    """Decides, for the round under way, whether to ask another endpoint or to stop early."""

    @property
    def answered(self) -> bool:
        """Whether a member of an earlier round has answered."""

    def spare(self, asked: Sequence[int]) -> int | None:
        """Return the next best endpoint besides those asked in this round; None: none is left, or affordable."""

    @property
    def hurries(self) -> bool:
        """Whether waiting costs, so that the round may end before the answer is certain."""

    def settled(self, replies: Sequence[Reply], pending: Mapping[int, float]) -> bool:
        """Whether the round may end without the pending endpoints, given as index -> seconds since they were asked."""


@dataclass(frozen=True, slots=True)
class Rules:
    """When calls are retried, raced and given up; see `focalroute.AsyncEnsemble`."""

    attempts: int
    hedge_after: float | None = None
    early_stop: bool = False


@dataclass(slots=True)
class _AskedMember:
    """One endpoint asked. Members of one group race each other; ``reply`` is None while it is under way."""

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
    """Limits calls made only because others are silent to a tenth of all, and ten at once.

    If every call to a pool takes longer than usual, more calls would only add to its load.
    """

    def __init__(self) -> None:
        self._left = _MOST_RACES

    def earn(self) -> None:
        """Count a call that is made."""
        self._left = min(self._left + _RACE_SHARE, _MOST_RACES)

    def spend(self) -> bool:
        """Use up one such call; False if none is left."""
        allowed = self._left >= 1
        self._left -= allowed
        return allowed


@dataclass(eq=False)
class RoundCalls:
    """Asks the members of one round.

    No ask waits for a silent member: one that is silent, or made to wait by its service, for much longer than usual.
    Until a member has answered, a silent one is raced by one more endpoint; afterwards it is given up. Without an
    answer, one more endpoint is asked after half of the ask's time (a twentieth if no usual latency is known), and
    another after the same time again or half of the rest, or as soon as that endpoint fails. With ``hedge_after``, a
    member that takes longer than this quantile of its own latencies is raced, which counts as a retry. The first
    member of a race to answer (if the answer is streamed, to send text) wins, and the others are cancelled.

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
        self._wakeup: asyncio.Future[None] | None = None  # done when a member may have decided something
        self._began_left_s = self._context.left_s
        self._rescue_s = -math.inf  # with this time left and no answer, one more endpoint is asked; -inf: none is
        self._rescue_wait_s = 0.0  # and the next after this long again
        self._raced = False  # whether any member is raced
        self._blind = False  # whether the round waits without knowing a usual latency
        self._stood_still = False  # whether the event loop did during the last wait
        self._look_at = -math.inf  # no look for one more endpoint before this time (`time.perf_counter`)

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
            self._rescue_s = self._began_left_s - self._rescue_wait_s
        try:
            while pending := self._pending:
                await self._wait(pending)
                if not self._pending:
                    break
                while needless := self._needless():
                    await self._give_up(needless)
                if self._context.left_s <= 0:
                    await self._give_up(self._asked, Failure("timeout", "the deadline of the ask passed"))
                self._hedge()
                self._rescue()
                if silent := [member for member in self._pending if self._silent_in(member) <= 0]:
                    await self._deal_with(silent)
        except BaseException:
            await self._cancel(self._asked)
            raise
        return tuple(
            [self._without_late_reply(member, member.reply) for member in self._asked if member.reply is not None]
        )

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
                worth=lambda wait_s: self._worth(member, wait_s),
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

    def _without_late_reply(self, member: _AskedMember, reply: Reply) -> Reply:
        """Return a member's reply; as cancelled if another member already streams the answer."""
        if not self._answer_begun or not reply.ok or (self._stream_sink and member.call is self._stream_sink.speaker):
            return reply
        failure = Failure("cancelled", "another endpoint answered first")
        return _reply(member, error=failure)

    async def _wait(self, pending: Sequence[_AskedMember]) -> None:
        """Wait until there may be something to do: a reply decides something, or a member or the round is late.

        `asyncio.wait` would take three times as long to set up for a single member.

        Raises:
            Exception: an unexpected error in a member.
        """
        if not any(member.task.done() for member in pending):  # done: it broke while others were given up
            loop = asyncio.get_running_loop()
            self._wakeup = loop.create_future()
            late_s = min([min(self._late_in(member), self._silent_in(member)) for member in pending])
            if self._hurries and self._answered:
                late_s = min(late_s, max(WEIGH_AGAIN * (time.perf_counter() - pending[0].call.started), LOOK_AGAIN_S))
            self._blind = late_s == math.inf
            timeout = min(late_s, self._context.left_s - max(self._rescue_s, 0.0))
            due = loop.time() + max(timeout, 0.0)
            alarm = loop.call_at(due, self._wake)
            try:
                await self._wakeup
            finally:
                alarm.cancel()
            stood_still = loop.time() - due > _STANDSTILL_S
            if stood_still and not self._stood_still and late_s < math.inf:
                self._look_at = time.perf_counter() + late_s
            self._stood_still = stood_still
        for member in pending:
            if member.reply is None and member.task.done():
                member.task.result()

    def _on_done(self, member: _AskedMember) -> None:
        """Wake the round if this reply may decide it, or gives a first idea of the usual latency."""
        broke = member.reply is None or self._blind
        racing = self._rules.early_stop or self._hurries or (self._stream_sink is not None and not self._answer_begun)
        if broke or racing or self._raced or not self._pending:
            self._wake()

    def _wake(self, _: asyncio.Future[Any] | None = None) -> None:
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    def _late_in(self, member: _AskedMember) -> float:
        """Return the seconds until a member is late; infinite: it never is, or may not be raced."""
        share = self._rules.hedge_after
        if share is None or member.raced or self._controller is None or self._context.retries < 1 or self._answer_begun:
            return math.inf
        usual = member.pool_member.breaker.latencies.quantile(share)
        if usual is None:
            return math.inf
        return max(member.call.started + usual, self._look_at) - time.perf_counter()

    def _patience_s(self, member: _AskedMember) -> float:
        """Return how long a member may be silent, by its own latencies, else its slowest peer's; infinite: unknown.

        The latencies in this ask count too, as a query that takes long takes long at every endpoint.
        """
        slowest_s = self._context.slowest_s
        usual = member.pool_member.breaker.latencies.quantile(_USUAL_SHARE, _FEWEST)
        if usual is not None:
            return max(_PATIENCE * max(usual, slowest_s), _SHORTEST_S)
        calls = [(one.breaker.latencies, 1 if one is member.pool_member else _FEWEST) for one in self._members]
        known = [usual for some, fewest in calls if (usual := some.quantile(_USUAL_SHARE, fewest)) is not None]
        if self._answered:
            return max(_PATIENCE * max([*known, slowest_s]), _UNKNOWN_SHARE * self._began_left_s, _SHORTEST_S)
        return max(_PATIENCE * max([*known, slowest_s]), _SHORTEST_S) if known else math.inf

    def _silent_in(self, member: _AskedMember) -> float:
        """Return the seconds until a member has been silent for too long; infinite: it may be silent."""
        if (member.raced and not self._answered) or self._controller is None or self._answer_begun:
            return math.inf
        now, patience_s = time.perf_counter(), self._patience_s(member)
        left_s = member.call.silent_since - now
        left_s = 0.0 if self._long(left_s, patience_s) else left_s + patience_s
        return max(left_s, self._look_at - now)

    def _long(self, wait_s: float, patience_s: float) -> bool:
        """Whether a wait for the next attempt is so long that another endpoint is asked meanwhile."""
        return wait_s > (patience_s if patience_s < math.inf else _COLD_SHARE * self._began_left_s)

    def _worth(self, member: _AskedMember, wait_s: float) -> bool:
        """Whether a member may wait this long, or for a pause, for its next attempt.

        If that is long, another endpoint is asked too.
        """
        wait_s = max(wait_s, member.pool_member.throttle.wait_s)
        long = self._controller is not None and self._long(wait_s, self._patience_s(member))
        if long and self._answered:
            return False
        member.call.silent_since = time.perf_counter() + wait_s
        if long:
            self._wake()
        return True

    async def _deal_with(self, silent: Sequence[_AskedMember]) -> None:
        """Race silent members or, if another has answered, give them up."""
        if self._answered:
            for member in silent:
                member.call.outrun = True
            await self._give_up(silent, Failure("timeout", "silent for long after another endpoint had answered"))
        else:
            for member in silent:
                waiting = member.call.silent_since > time.perf_counter()  # it makes no call meanwhile
                self._race(member, free=waiting)

    def _hedge(self) -> None:
        """Race late members."""
        for member in self._pending:
            if self._late_in(member) <= 0 and self._race(member):
                self._context.retries -= 1

    def _rescue(self) -> None:
        """Ask one more endpoint if none has answered in good time, or each is raced already."""
        if self._won:
            self._rescue_s = -math.inf
        pending, left_s = self._pending, self._context.left_s
        if self._rescue_s == -math.inf or not pending:
            return
        if left_s > self._rescue_s and not all(member.raced for member in pending):
            return
        if self._race(pending[-1]):
            self._rescue_s = left_s - min(left_s / 2, self._rescue_wait_s)
            self._rescue_wait_s *= 2
        else:
            self._rescue_s = left_s - LOOK_AGAIN_S

    def _race(self, member: _AskedMember, *, free: bool = True) -> bool:
        """Ask one more endpoint, if one is left and the race is ``free`` or allowed; if not, look again soon."""
        spare = self._controller.spare([one.index for one in self._asked]) if self._controller else None
        if spare is not None and (free or self._allowance.spend()):
            member.raced = self._raced = True
            self._start(spare, member.group, member.pool_member.endpoint.name)
            return True
        self._look_at = time.perf_counter() + LOOK_AGAIN_S
        return False

    def _needless(self) -> list[_AskedMember]:
        """Return the members that lost a race, or can no longer change the answer."""
        lost = self._losers()
        rest = [member for member in self._pending if member not in lost]
        return lost + rest if rest and self._settled_without(rest) else lost

    def _losers(self) -> list[_AskedMember]:
        """Return the members that lost a race."""
        speaker = self._stream_sink.speaker if self._stream_sink else None
        winners = {
            member.group: place
            for place, member in enumerate(self._asked)
            if (member.reply and member.reply.ok) or member.call is speaker
        }
        lost = [member for member in self._pending if member.group in winners and member.call is not speaker]
        for member in lost:
            member.call.outrun = self._asked.index(member) < winners[member.group]
        return lost

    def _settled_without(self, pending: Sequence[_AskedMember]) -> bool:
        """Whether the round may end without these members, once a member of it (of any, if waiting costs) answered."""
        if self._controller is None or not (self._answered if self._hurries else self._rules.early_stop and self._won):
            return False
        replies = [member.reply for member in self._asked if member.reply]
        now = time.perf_counter()
        waited = {member.index: now - member.call.started for member in pending}
        if not self._controller.settled(replies, waited):
            return False
        for index, seconds in waited.items() if self._hurries else ():
            self._members[index].breaker.latencies.give_up(seconds)
        return True

    @property
    def _hurries(self) -> bool:
        return self._controller is not None and self._controller.hurries

    async def _cancel(self, members: Sequence[_AskedMember]) -> None:
        """Cancel members and wait until they have ended; after the deadline, cancel them again and again."""
        pending = {member.task for member in members if not member.task.done()}
        for member in members:
            member.given_up = True
            member.task.cancel()
        while pending:
            _, pending = await asyncio.wait(pending, timeout=max(self._context.left_s, _INSIST_S))
            for task in pending:
                task.cancel()
        for member in members:
            if not member.task.cancelled():
                member.task.exception()  # retrieved, so that asyncio does not warn

    async def _give_up(self, members: Sequence[_AskedMember], why: Failure | None = None) -> None:
        """Cancel members still under way, down to their sockets; a reply that comes at that very moment counts."""
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
