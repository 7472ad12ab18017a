"""Prepares and controls the rounds of one ask: which endpoints may be asked, at what cost, until when."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from decimal import Decimal

from focalroute.core.records import Decision, Reply
from focalroute.endpoints.capabilities import Needs
from focalroute.endpoints.pool import Pool
from focalroute.serving.ask import Ask

_WRITTEN_AFTER = 2 / 3  # share of the time for replies; the rest is for synthesising the answer


class Rounds:
    """Controls the rounds of one ask: prepares each, and steers its calls.

    Args:
        max_rounds: most rounds; with ``combine="pick"`` there is one.

    Attributes:
        order: every endpoint's index, in the order in which the Decider visits them.
        calls: what all calls of the ask share.
        decision: that of the round under way.
    """

    decision: Decision

    def __init__(self, ask: Ask, pool: Pool, *, max_rounds: int) -> None:
        self._ask = ask
        self._pool = pool
        self._max_rounds = 1 if ask.query.combine == "pick" else max_rounds
        self.order = ask.view.order
        now = asyncio.get_running_loop().time()
        share = _WRITTEN_AFTER if ask.query.combine == "synthesise" else 1.0
        self._deadline = now + share * (ask.deadline - now)
        self.calls = pool.call_context(ask.query, ask.ask_budget, self._deadline, ask.stream_sink)
        self._needs = Needs(ask.query)
        self._bounds: Sequence[Decimal] | None = None
        self._available: Sequence[bool] = ()

    async def prepare(self) -> bool:
        """Find which endpoints can be asked in the next round, and the costs; False if the time ran out meanwhile."""
        if self._ask.ask_budget.limited and not await self._bound_costs():
            return False
        self.calls.query = self._ask.next_query
        self._available = self._pool.available()
        if self._needs or False in self._available:
            self._note_unavailable()
        return True

    def go_on(self) -> bool:
        """Return whether another round follows the one that was just fused."""
        self._ask.fused_at = time.perf_counter()
        self._ask.late = self.calls.left_s <= 0
        return not self._ask.late and self._ask.goes_on(max_rounds=self._max_rounds, askable=len(self.order))

    async def _bound_costs(self) -> bool:
        """Find the most that a call to each endpoint can cost, which may need the store; False if time ran out."""
        try:
            async with asyncio.timeout_at(self._deadline):
                self._bounds = await self._pool.upper_bounds(self._ask.next_query, self._ask.ask_budget)
        except TimeoutError:
            self._ask.late = True
        return not self._ask.late

    def _note_unavailable(self) -> None:
        """Leave out endpoints that cannot be asked now, except those over a rate limit if no other is left to answer.

        Endpoints that lack what the query needs are never asked.
        """
        ask, broken, lacks = self._ask, self._pool.out(), self._pool.lacking(self._needs)
        able = tuple([lack is None for lack in lacks])
        self._available = _both(self._available, able)
        if not ask.view.backs and not any(self._available[i] for i in self.order if i not in ask.view.asked):
            unbroken = _both(able, [not is_broken for is_broken in broken])
            self._available = unbroken if any(unbroken) else able
        ask.note_unavailable(self._available, broken, lacks)

    def eligible(self, endpoint: int, picked: tuple[int, ...]) -> bool:
        """Whether an endpoint can be asked now along with those picked: available, and affordable together."""
        return self._available[endpoint] and self._fits(endpoint, picked)

    def _fits(self, endpoint: int, picked: tuple[int, ...]) -> bool:
        """Whether the ask can pay for an endpoint along with those picked."""
        bounds = self._bounds
        return bounds is None or self._ask.ask_budget.fits(sum((bounds[i] for i in picked), bounds[endpoint]))

    # -- while a round is under way (see `focalroute.endpoints.round.RoundController`) --

    @property
    def answered(self) -> bool:
        """Whether a member of an earlier round has answered."""
        return bool(self._ask.view.backs)

    def spare(self, asked: Sequence[int]) -> int | None:
        """Return the likeliest endpoint not asked yet that can be asked now; one out of use if there is no other."""
        probabilities = self.decision.probabilities
        now, unpaused, broken = self._pool.available(), self._pool.unpaused(), self._pool.out()
        lacks = self._pool.lacking(self._needs)
        left = [
            i
            for i in self.order
            if i not in asked
            and i not in self._ask.view.asked
            and unpaused[i]
            and lacks[i] is None
            and self._fits(i, ())
        ]
        return max(left, key=lambda i: (now[i], not broken[i], probabilities[i]), default=None)

    @property
    def hurries(self) -> bool:
        """Whether waiting costs."""
        return self._ask.time_price is not None

    def settled(self, replies: Sequence[Reply], pending: Mapping[int, float]) -> bool:
        """Whether the pending endpoints cannot change the answer, or waiting for them is not worth it."""
        return self._ask.done(replies, pending)


def _both(one: Sequence[bool], other: Sequence[bool]) -> tuple[bool, ...]:
    return tuple([a and b for a, b in zip(one, other, strict=True)])
