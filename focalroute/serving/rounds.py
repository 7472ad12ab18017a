"""The rounds of one ask: observe, decide, ask, fuse; again until the policy stops."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from decimal import Decimal

from focalroute.core.records import Decision, Reply, Round
from focalroute.endpoints.features import needs
from focalroute.endpoints.pool import Pool
from focalroute.serving.ask import Ask

_WRITTEN_AFTER = 2 / 3  # of the time at the latest: the rest is for writing the answer from the replies


class Rounds:
    """Takes one ask through its rounds; of the round under way it says who may be asked besides, and when to stop.

    Args:
        most: how many rounds at the most; one, where the Decider picks the one member.
        order: every endpoint's index, in the order in which the Decider visits them.
        explore: whether decisions are sampled.
    """

    def __init__(self, ask: Ask, pool: Pool, *, most: int, order: Sequence[int], explore: bool) -> None:
        self._ask = ask
        self._pool = pool
        self._most = 1 if ask.query.combine == "pick" else most
        self._order = order
        self._explore = explore
        now = asyncio.get_running_loop().time()
        share = _WRITTEN_AFTER if ask.query.combine == "synthesise" else 1.0
        self._deadline = now + share * (ask.deadline - now)
        self._terms = pool.terms(ask.query, ask.ask_budget, self._deadline, ask.stream_sink)
        self._needs = needs(ask.query)
        self._bounds: Sequence[Decimal] | None = None
        self._available: Sequence[bool] = ()
        self._decision: Decision | None = None

    async def step(self, cost_weight: float) -> bool:
        """Do one round; whether another is to follow."""
        ask = self._ask
        if not await self._bounded():
            return False
        self._terms.query = ask.put
        observation = ask.observe(cost_weight)
        self._available = self._pool.available()
        if self._needs or False in self._available:
            self._leave_out()
        decision = self._decision = ask.decide(
            observation, order=self._order, eligible=self._eligible, explore=self._explore
        )
        replies = await self._pool.ask(decision.picked, self._terms, self)
        ask.hear(Round(observation, decision, replies))
        if ask.sight.agreement is not None:
            await ask.sight.agreement.read(ask.sight.candidates)
        ask.fuse()
        ask.late = self._terms.left_s <= 0
        return not ask.late and ask.goes_on(most=self._most, askable=len(self._order))

    def _leave_out(self) -> None:
        """Some cannot be asked now; but where nobody else is left to answer, those over a rate limit are waited for.

        Who lacks what the query needs is never asked, were it the last.
        """
        ask, out, lacks = self._ask, self._pool.out(), self._pool.lacking(self._needs)
        able = tuple([lack is None for lack in lacks])
        self._available = _both(self._available, able)
        if not ask.sight.backs and not any(self._available[i] for i in self._order if i not in ask.sight.asked):
            whole = _both(able, [not broken for broken in out])
            self._available = whole if any(whole) else able
        ask.leave_out(self._available, out, lacks)

    async def _bounded(self) -> bool:
        """See what a call to each may cost; whether there was time for it, as the store may have to be asked."""
        if not self._ask.ask_budget.limited:
            return True
        try:
            async with asyncio.timeout_at(self._deadline):
                self._bounds = await self._pool.upper_bounds(self._ask.put, self._ask.ask_budget)
        except TimeoutError:
            self._ask.late = True
        return not self._ask.late

    def _eligible(self, endpoint: int, picked: tuple[int, ...]) -> bool:
        """Whether it can be asked now beside those picked: not failing, and affordable together."""
        if not self._available[endpoint]:
            return False
        bounds = self._bounds
        return bounds is None or self._ask.ask_budget.fits(sum((bounds[i] for i in picked), bounds[endpoint]))

    # -- while a round is under way (see `focalroute.endpoints.round.RoundController`) --

    @property
    def answered(self) -> bool:
        """Whether a member of an earlier round has answered."""
        return bool(self._ask.sight.backs)

    def spare(self, asked: Sequence[int]) -> int | None:
        """The likeliest endpoint besides those asked in this round that could be asked then and can be now."""
        decision = self._decision
        if decision is None:
            return None
        now = self._pool.available()
        left = [i for i in decision.order if i not in asked and now[i] and self._eligible(i, ())]
        return max(left, key=decision.probabilities.__getitem__, default=None)

    def settled(self, replies: Sequence[Reply], pending: Sequence[int]) -> bool:
        """Whether the answer is certain, whatever the pending endpoints say."""
        return self._ask.settled(replies, pending)


def _both(one: Sequence[bool], other: Sequence[bool]) -> tuple[bool, ...]:
    return tuple([a and b for a, b in zip(one, other, strict=True)])
