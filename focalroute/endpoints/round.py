"""One round under way: its members asked concurrently, late ones raced by others, needless ones cancelled."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from focalroute.core.errors import CallFailed
from focalroute.core.records import Failure, Reply
from focalroute.endpoints.calls import CallContext, StreamSink, call_with_retries
from focalroute.endpoints.capabilities import Capabilities
from focalroute.endpoints.elicit import ParsedReply, Plan, needs_capabilities
from focalroute.endpoints.member import MemberCall, PoolMember
from focalroute.endpoints.wire import Completion
from focalroute.money.cost import Bill

_INSIST_S = 0.1  # after the deadline: how often who does not let go is cancelled


class RoundController(Protocol):
    """Whoever steers an ask through its rounds."""

    @property
    def answered(self) -> bool:
        """Whether a member of an earlier round has answered."""

    def spare(self, asked: Sequence[int]) -> int | None:
        """The next best endpoint besides those asked in this round; None: nobody is left, or affordable."""

    def settled(self, replies: Sequence[Reply], pending: Sequence[int]) -> bool:
        """Whether the answer is certain, whatever the pending endpoints say."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How calls are repeated, raced and given up; see `focalroute.AsyncEnsemble`."""

    attempts: int
    hedge_after: float | None = None
    early_stop: bool = False


@dataclass(slots=True)
class _Member:
    """One endpoint asked. Members of one group race each other; ``reply`` is None while it is under way."""

    index: int
    group: int
    call: MemberCall
    hedge_of: str | None
    task: asyncio.Task[None] = field(init=False)
    raced: bool = False
    given_up: bool = False
    reply: Reply | None = None


class RoundCalls:
    """Asks the members of one round.

    As long as nobody has answered and half of the time is gone, one more endpoint is asked, and again after half of
    the rest, or as soon as that one fails: a lone member that hangs shall not cost the answer. With ``hedge_after`` a
    member is raced that takes longer than that quantile of its own latencies, which counts as a retry. Who answers
    first wins, the others of its race are cancelled; where the answer is streamed, who first says something.

    Args:
        seats: all endpoints of the pool.
        plan: how to put the query to an endpoint that can do this much; ``probe``: whether that hangs on what it can.
        helm: None: nobody is raced, and nobody given up early.
        closed: whether the pool was closed.
    """

    def __init__(
        self,
        seats: Sequence[PoolMember],
        terms: CallContext,
        rules: Rules,
        plan: Callable[[Capabilities], Plan],
        helm: RoundController | None,
        closed: Callable[[], bool],
    ) -> None:
        self._seats = seats
        self._terms = terms
        self._rules = rules
        self._plan = plan
        self._helm = helm
        self._closed = closed
        self._outlet: StreamSink | None = None  # where a member that was picked alone says its reply as it comes
        self._members: list[_Member] = []
        self._news: asyncio.Future[None] | None = None  # done when one of them may have decided something
        self._rescue_s = math.inf  # when nobody has answered by this time left, somebody else is asked

    async def run(self, picked: Sequence[int]) -> tuple[Reply, ...]:
        """Their replies, failures included, in the order of asking."""
        if len(picked) == 1 and self._helm and not self._helm.answered:
            self._outlet = self._terms.stream_sink
        if self._outlet is not None:
            self._outlet.begun.add_done_callback(self._ring)
        for index in picked:
            self._start(index, len(self._members))
        self._rescue_s = self._terms.left_s / 2 if self._helm and not self._helm.answered else -math.inf
        try:
            while pending := [member for member in self._members if member.reply is None]:
                await self._wait(pending)
                while needless := self._needless():
                    await self._give_up(needless)
                if self._terms.left_s <= 0:
                    await self._give_up(self._members, Failure("timeout", "the deadline of the ask passed"))
                self._hedge()
        except BaseException:
            await self._cancel(self._members)
            raise
        return tuple([self._counted(member, member.reply) for member in self._members if member.reply is not None])

    def _start(self, index: int, group: int, hedge_of: str | None = None) -> None:
        call = MemberCall(self._plan, needs_capabilities(self._terms.query), self._terms, stream_sink=self._outlet)
        member = _Member(index, group, call, hedge_of)
        member.task = asyncio.get_running_loop().create_task(self._ask(member))
        self._members.append(member)

    async def _ask(self, member: _Member) -> None:
        seat, call = self._seats[member.index], member.call
        try:
            answered = await call_with_retries(
                lambda: seat.attempt(call),
                self._terms,
                self._rules.attempts,
                closed=lambda: self._closed() or self._begun or member.given_up,
            )
            member.reply = _replied(seat, call, member.hedge_of, *answered)
        except CallFailed as error:
            member.reply = _reply(seat, call, member.hedge_of, error=error.failure)
        finally:
            self._heard(member)

    # -- while they are under way ------------------------------------------------------------------------------------

    @property
    def _begun(self) -> bool:
        """Whether a member says its reply already: it is the answer, and nobody else's can be."""
        return self._outlet is not None and self._outlet.begun.done()

    def _counted(self, member: _Member, reply: Reply) -> Reply:
        """Its reply; who came through beside the one that is the answer already does not count."""
        if not self._begun or not reply.ok or (self._outlet and member.call is self._outlet.speaker):
            return reply
        failure = Failure("cancelled", "another endpoint answered first")
        return _reply(self._seats[member.index], member.call, member.hedge_of, error=failure)

    async def _wait(self, pending: Sequence[_Member]) -> None:
        """Until something may have to be done: a reply came that decides something, somebody is late, or all are.

        As `asyncio.wait` does, which takes three times as long to set up for a lone member.

        Raises:
            Exception: what broke a member.
        """
        if not any(member.task.done() for member in pending):  # one that broke while others were given up
            loop = asyncio.get_running_loop()
            self._news = loop.create_future()
            late_s = min([self._late_in(member) for member in pending])
            timeout = min(late_s, self._terms.left_s - max(self._rescue_s, 0.0))
            alarm = loop.call_later(max(timeout, 0.0), self._ring)
            try:
                await self._news
            finally:
                alarm.cancel()
        for member in pending:
            if member.reply is None and member.task.done():
                member.task.result()

    def _heard(self, member: _Member) -> None:
        """A member is done: of those that race each other one is enough, else all are waited for."""
        broke = member.reply is None
        racing = self._rules.early_stop or (self._outlet is not None and not self._begun)
        if broke or racing or any(one.raced for one in self._members) or all(one.reply for one in self._members):
            self._ring()

    def _ring(self, _: asyncio.Future[Any] | None = None) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def _late_in(self, member: _Member) -> float:
        """Seconds until it is late; infinite: it never is, or nobody may race it."""
        share = self._rules.hedge_after
        if share is None or member.raced or self._helm is None or self._terms.retries < 1 or self._begun:
            return math.inf
        usual = self._seats[member.index].breaker.latencies.quantile(share)
        return math.inf if usual is None else usual - (time.perf_counter() - member.call.started)

    def _hedge(self) -> None:
        """Race who is late, and ask somebody else in time where nobody has answered."""
        pending = [member for member in self._members if member.reply is None]
        for member in pending:
            if self._late_in(member) <= 0 and self._race(member):
                self._terms.retries -= 1
        if self._begun or any(member.reply and member.reply.ok for member in self._members):
            self._rescue_s = -math.inf
        fresh = [member for member in self._members if member.reply is None and not member.raced]
        if pending and (not fresh or self._terms.left_s <= self._rescue_s > -math.inf):
            raced = self._rescue_s > -math.inf and self._race(pending[-1])
            self._rescue_s = self._terms.left_s / 2 if raced else -math.inf

    def _race(self, member: _Member) -> bool:
        """Ask one more endpoint; whether there was one."""
        member.raced = True
        spare = self._helm.spare([one.index for one in self._members]) if self._helm else None
        if spare is not None:
            self._start(spare, member.group, self._seats[member.index].endpoint.name)
        return spare is not None

    def _needless(self) -> list[_Member]:
        """Who has lost a race, or can change nothing any more."""
        pending = [member for member in self._members if member.reply is None]
        speaker = self._outlet.speaker if self._outlet else None
        winners = {
            member.group: place
            for place, member in enumerate(self._members)
            if (member.reply and member.reply.ok) or member.call is speaker
        }
        lost = [member for member in pending if member.group in winners and member.call is not speaker]
        for member in lost:
            member.call.outrun = self._members.index(member) < winners[member.group]
        if self._rules.early_stop and self._helm and winners and len(lost) < len(pending):
            replies = [member.reply for member in self._members if member.reply]
            if self._helm.settled(replies, [member.index for member in pending if member not in lost]):
                return pending
        return lost

    async def _cancel(self, members: Sequence[_Member]) -> None:
        """Until these have ended; who has not let go by the deadline is cancelled again then, and again."""
        pending = {member.task for member in members if not member.task.done()}
        for member in members:
            member.given_up = True
            member.task.cancel()
        while pending:
            _, pending = await asyncio.wait(pending, timeout=max(self._terms.left_s, _INSIST_S))
            for task in pending:
                task.cancel()
        for member in members:
            if not member.task.cancelled():
                member.task.exception()  # somebody knows of it

    async def _give_up(self, members: Sequence[_Member], why: Failure | None = None) -> None:
        """Cancel those still under way, down to their sockets; who replied at that very moment has replied."""
        pending = [member for member in members if member.reply is None]
        await self._cancel(pending)
        for member in pending:
            if not member.task.cancelled():
                member.task.result()
                continue
            said = "another endpoint answered first" if member.call.outrun else "not needed any more"
            failure = why or Failure("cancelled", said)
            member.reply = _reply(self._seats[member.index], member.call, member.hedge_of, error=failure)


def _replied(
    seat: PoolMember, call: MemberCall, hedge_of: str | None, reading: ParsedReply, completion: Completion
) -> Reply:
    return _reply(
        seat,
        call,
        hedge_of,
        text=reading.text,
        choice=reading.choice,
        probabilities=reading.probabilities,
        method=reading.method,
        model=completion.model,
        response_id=completion.id,
        finish_reason=reading.finish_reason,
        tool_calls=reading.tool_calls,
        shares=reading.shares,
        samples=reading.samples,
        form=reading.form,
    )


def _reply(seat: PoolMember, call: MemberCall, hedge_of: str | None, **rest: Any) -> Reply:
    usage, cost, source = Bill.total(call.bills)
    return Reply(
        seat.endpoint.name,
        usage=usage,
        cost=cost,
        cost_source=source,
        latency_s=time.perf_counter() - call.started,
        attempts=len(call.bills),
        hedge_of=hedge_of,
        started=call.started,
        **rest,
    )
