"""`Ask`, the state of one ask under way, and `Rounds`, which controls its rounds."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import NamedTuple

import numpy as np

from focalroute.answers.structured import Structure
from focalroute.core.errors import BudgetExceeded, DeadlineExceeded, PoolError, StreamBroken
from focalroute.core.records import F64, Decision, Evidence, Failure, Observation, Query, Reply, Round
from focalroute.endpoints.breaker import Latencies
from focalroute.endpoints.calls import StreamSink
from focalroute.endpoints.capabilities import Needs
from focalroute.endpoints.pool import Pool
from focalroute.money.budget import AskBudget
from focalroute.money.pacing import HIGHEST_WEIGHT, LOWEST_WEIGHT
from focalroute.observe.ask_view import AskView
from focalroute.policy.baselines import SURE
from focalroute.policy.decider import Eligible, decide, posterior
from focalroute.policy.fallback import Guarded

_MOST_TRIALS = 64  # combinations of pending votes
_LACKS = "takes no "
_MOST_HINTS = 2
_SHARE_FOR_REPLIES = 2 / 3  # of the time, if the answer is then synthesised


@dataclass(frozen=True, slots=True)
class TimePrice:
    """The price of a second, and the latencies of the pool's endpoints.

    The Decider was trained on money alone, so time is shown to it as money. Let c be the cost of a call to an endpoint,
    mu the price of a second and t the seconds that its reply is expected to take. The Decider sees this cost, in USD:

    - In the first round, c, because its slow members need not be waited for. But the first reply always is. So if all
      endpoints that the Decider would ask take longer than t*, the time of the endpoint that is worth most alone (by
      accuracy, money and time), the cost is c + max(0, mu (t - t*)).
    - In later rounds, c + mu t.
    - For a member under way, mu t, where t is the time left, as its money is spent. Once the Decider would ask none of
      these members at that cost, the ask stops waiting.

    Attributes:
        usd_per_second: mu.
        latencies: of each endpoint, pool order.
    """

    usd_per_second: float
    latencies: Sequence[Latencies]

    def waits(self, under_way: Mapping[int, float], length: float) -> F64:
        """Return the expected cost of waiting for each endpoint's reply, USD (N,); if unknown, the mean of the others.

        Args:
            under_way: endpoint -> seconds since its call began; the other calls would begin now.
            length: the expected length of this query's replies, as a multiple of the usual one.
        """
        left = [one.expected_left(under_way.get(i, 0.0), length) for i, one in enumerate(self.latencies)]
        known = [seconds for seconds in left if seconds is not None]
        usual = sum(known) / len(known) if known else 0.0
        return self.usd_per_second * np.array([usual if seconds is None else seconds for seconds in left])


class Fused(NamedTuple):
    """The Fusion's evidence, and its posterior over the candidates (K,)."""

    evidence: Evidence
    posterior: list[float]


@dataclass(slots=True)
class Ask:
    """The state of one ask.

    Attributes:
        deadline: for replies, in the running loop's time.
        rng: the random generator of its decisions.
        started: `time.perf_counter` at its start.
        rounds: every decision so far, a STOP included, with its replies.
        fused: the Fusion's result for all replies so far; None until a member has answered.
        fused_at: `time.perf_counter` of that fusion; None: it was not timed.
        late: whether the deadline has passed.
        unavailable: endpoint name -> why it could not be asked in some round: an open breaker, a rate limit, or a need
            of the query that it does not meet.
        cost_weight: the lambda of its latest observation.
        alone: whether only one endpoint is asked, chosen by the text (see `decide`).
        written: the synthesiser's reply; None: no synthesis was tried.
        embedding_error: why there are no features of its text; empty: there are, or it has no text.
        stream_sink: takes the pieces of the answer as they come; None: it is not streamed.
        time_price: what waiting costs; None: nothing, as with rules and sequential policies.
        due: when the answer is due, in the running loop's time.
    """

    query: Query
    policy: Guarded
    view: AskView
    ask_budget: AskBudget
    deadline: float
    rng: random.Random
    started: float = field(default_factory=time.perf_counter)
    rounds: list[Round] = field(default_factory=list)
    fused: Fused | None = None
    fused_at: float | None = None
    late: bool = False
    unavailable: dict[str, str] = field(default_factory=dict)
    cost_weight: float = 0.0
    alone: bool = False
    written: Reply | None = None
    embedding_error: str = ""
    stream_sink: StreamSink | None = None
    time_price: TimePrice | None = None
    due: float = math.inf

    def price_time(self, price: TimePrice) -> None:
        """Set the price of waiting, if the policy takes it into account."""
        if self.policy.learnable and not self.policy.sequential:
            self.time_price = price

    @property
    def streaming(self) -> bool:
        """Whether a reply was or is being streamed; that reply is the answer."""
        return self.stream_sink is not None and self.stream_sink.speaker is not None

    @property
    def replies(self) -> tuple[Reply, ...]:
        """All replies so far, in the order of asking, failures included."""
        return tuple([reply for round_ in self.rounds for reply in round_.replies])

    @property
    def next_query(self) -> Query:
        """The query for the endpoints of the next round."""
        return self.query

    def failure(self) -> PoolError | BudgetExceeded:
        """Make the error that says why there is no answer."""
        replies = self.replies
        failures = {reply.endpoint: reply.error for reply in replies if reply.error}
        reasons = _reasons(failures)
        if self.stream_sink is not None and self.streaming:
            message = f"the answer broke off ({reasons}); the text until then is in .text"
            return StreamBroken(message, replies, self.stream_sink.text)
        if self.late and self.ask_budget.store_late and not any(reply.sent for reply in replies):
            message = "the deadline passed before the store had reserved money, so no endpoint was asked"
            remedy = "see that the store is in reach and no process keeps it locked, or raise deadline_s"
            return DeadlineExceeded(f"{message}; {remedy}", replies)
        if self.late:
            return DeadlineExceeded("the deadline passed before any endpoint had answered; raise deadline_s", replies)
        unable = [name for name, why in self.unavailable.items() if why.startswith(_LACKS)]
        if not replies and len(unable) == len(self.policy.endpoints):
            reasons = ", ".join(f"{name} {self.unavailable[name]}" for name in unable)
            return PoolError(
                f"no endpoint can take this request ({reasons}); see Endpoint.tools, .images, "
                ".json_schema and .context_tokens"
            )
        if all(reply.error is not None and reply.error.kind == "unavailable" for reply in replies):
            return self.ask_budget.exceeded()
        hints = Counter(error.hint for error in failures.values() if error.hint)
        advice = "".join(f"{hint}; " for hint, _ in hints.most_common(_MOST_HINTS))
        return PoolError(f"{advice}every asked endpoint failed ({reasons})", replies)

    def observe(self, cost_weight: float) -> Observation:
        """Make the observation for the next decision, at the lambda that the policy uses for this cost weight."""
        self.cost_weight, self.alone = self.policy.served(cost_weight)
        self.policy.set_query(self.query.id, self.view.features, cost_weight)
        if self.fused is not None:  # only now: after the last round it would not be used
            self.view.see(self.fused.posterior)
        if self.time_price is None:
            return self._observation()
        waits = self.time_price.waits({}, self.view.length_ratio)
        if self.rounds:
            return self._observation(waits)
        timeless = self._observation()
        logits = self.policy.decider_logits(timeless)
        to_ask = [int(logits.argmax()), *np.flatnonzero(logits > 0)]  # the first round asks at least one endpoint
        best_alone_waits = waits[self.view.best_alone(self.cost_weight, waits)]
        if waits[to_ask].min() <= best_alone_waits:
            return timeless
        return self._observation(np.maximum(waits - best_alone_waits, 0))

    def _observation(self, waits: F64 | None = None) -> Observation:
        return self.view.observe(
            round=len(self.rounds) + 1,
            cost_weight=self.cost_weight,
            budget_left=self.ask_budget.share_left,
            waits=waits,
        )

    def decide(self, observation: Observation, *, order: Sequence[int], eligible: Eligible, explore: bool) -> Decision:
        """Pick the endpoints to ask next, of those eligible and not asked yet, visited in this order (see `decide`).

        A learned policy makes some decisions without its networks and without chance. At the highest cost weight it
        asks only the cheapest endpoint, at the lowest all endpoints at once. Where training found that best (see
        `PolicyGradient.curve`), it asks only the endpoint that is worth most by the query's text.
        """
        logits, asked = self.policy.decider_logits(observation), self.view.asked
        order = [endpoint for endpoint in order if endpoint not in asked]
        must_pick, one = not self.view.backs, self.query.combine == "pick"
        ranking = self._single_ranking() if self.policy.learnable else None
        if ranking is not None:
            can_ask = [i for i in ranking if i in order and eligible(i, ())]
            order = can_ask[:1] if must_pick or one else []
        elif self.policy.learnable and self.cost_weight <= LOWEST_WEIGHT and not one:
            logits, explore = np.full_like(logits, SURE), False
        return decide(
            logits,
            round=len(self.rounds) + 1,
            must_pick=must_pick,
            order=order,
            eligible=_first_of(eligible) if self.policy.one_a_round else eligible,
            explore=explore and self.policy.learnable,
            rng=self.rng,
            one=one,
        )

    def _single_ranking(self) -> tuple[int, ...] | None:
        """Return the endpoints, best first, if only one is to be asked; None: the networks decide."""
        if self.cost_weight >= HIGHEST_WEIGHT:
            return self.view.by_price
        if not self.alone:
            return None
        waits = self.time_price.waits({}, self.view.length_ratio) if self.time_price else None
        return self.view.by_text(self.cost_weight, waits)

    def note_unavailable(self, available: Sequence[bool], broken: Sequence[bool], lacks: Sequence[str | None]) -> None:
        """Note why endpoints are not available now: a missing feature, an open breaker, or a rate limit."""
        for name, free, breaker_open, lack in zip(self.policy.endpoints, available, broken, lacks, strict=True):
            if lack is not None:
                self.unavailable[name] = f"{_LACKS}{lack}"
            elif not free and breaker_open:
                self.unavailable[name] = "breaker open"
            elif not free:
                self.unavailable[name] = "rate limited"

    def settled(self, replies: Sequence[Reply], pending: Sequence[int]) -> bool:
        """Return whether these replies of the round under way settle the answer, whatever the pending endpoints reply.

        All combinations of their possible votes are tried: no vote, any candidate, and for a free-form question a new
        candidate; with choices or several samples, also votes of full certainty. If there are more than 64, the answer
        counts as not settled. So do open text, where every reply matters, and structured answers, whose fields are
        elected one by one.
        """
        if self.view.agreement is not None or isinstance(self.query.answer, Structure):
            return False
        trial = self._view_with(replies)
        options = len(trial.candidates) + (not self.query.choices)
        if not trial.backs or (options + 1) ** len(pending) > _MOST_TRIALS:
            return False
        best = self._likeliest(trial.evidence())
        may_be_certain = self.query.choices or (self.query.samples or 1) > 1
        for sure in (False, True) if may_be_certain else (False,):
            for votes in itertools.product((None, *range(options)), repeat=len(pending)):
                evidence = trial.supposing(zip(pending, votes, strict=True), len(self.rounds) + 1, sure=sure)
                if self._likeliest(evidence) != best:
                    return False
        return True

    def worth_waiting(self, replies: Sequence[Reply], pending: Mapping[int, float]) -> bool:
        """Return whether waiting for the pending members may improve the answer by more than it costs.

        That is so if the Decider, given these replies of the round under way, would ask any pending member at the cost
        of waiting alone. Open text is always waited for, as its replies are compared together.

        Args:
            pending: endpoint -> seconds since its call began.
        """
        if self.time_price is None or self.view.agreement is not None:
            return True
        trial = self._view_with(replies)
        if not trial.backs:
            return True
        trial.see(self._fused_posterior(trial.evidence()))
        seen = trial.observe(
            round=len(self.rounds) + 2,
            cost_weight=self.cost_weight,
            budget_left=self.ask_budget.share_left,
            waits=self.time_price.waits(pending, trial.length_ratio),
            paid=tuple(pending),
        )
        logits = self.policy.decider_logits(seen)
        return any(logits[i] > 0 for i in pending)

    def _view_with(self, replies: Sequence[Reply]) -> AskView:
        """Return a view that includes these replies of the round under way."""
        trial = self.view.fork()
        for reply in replies:
            trial.add(reply, len(self.rounds) + 1)
        return trial

    def _fused_posterior(self, evidence: Evidence) -> list[float]:
        """Return the Fusion's posterior; a single candidate has probability 1."""
        if len(evidence.candidates) == 1:
            return [1.0]
        return posterior(self.policy.fusion_logits(evidence).tolist())

    def _likeliest(self, evidence: Evidence) -> int:
        """Return the candidate with the highest posterior probability, the first among equals."""
        probabilities = self._fused_posterior(evidence)
        return probabilities.index(max(probabilities))

    def done(self, replies: Sequence[Reply], pending: Mapping[int, float]) -> bool:
        """Return whether the round under way may end: waiting is not worth it, or the answer is settled.

        With a price on time, hardly known endpoints are always waited for, as a cancelled call teaches nothing.
        """
        if self.time_price is not None and self.view.hardly_known(pending):
            return False
        return not self.worth_waiting(replies, pending) or self.settled(replies, tuple(pending))

    def add_round(self, round_: Round) -> None:
        """Add a round's replies."""
        self.rounds.append(round_)
        for reply in round_.replies:
            self.view.add(reply, len(self.rounds))

    def fuse(self) -> None:
        """Fuse all replies, if the last round brought any."""
        if self.view.backs and self.rounds[-1].replies:
            evidence = self.view.evidence()
            self.fused = Fused(evidence, self._fused_posterior(evidence))

    def goes_on(self, *, max_rounds: int, askable: int) -> bool:
        """Return whether another round follows the last one.

        Without an answer the ask goes on to other endpoints. After a streamed reply, which is the answer, it ends.

        Args:
            askable: how many endpoints can be asked, those already asked included.
        """
        if self.streaming or not self.rounds[-1].replies or len(self.view.asked) == askable:
            return False
        return len(self.rounds) < max_rounds or not self.view.backs

    def candidate_of(self, number: int, endpoint: int) -> int | None:
        """Return the candidate that an endpoint's reply in this round backs, or None."""
        return self.view.backs.get(endpoint)

    def ranked(self) -> list[str]:
        """Return the candidates, the most probable first."""
        if self.fused is None:
            return []
        probabilities = self.fused.posterior
        order = sorted(range(len(probabilities)), key=probabilities.__getitem__, reverse=True)  # stable
        return [self.view.candidates[k] for k in order]


class Rounds:
    """Controls the rounds of one ask: prepares each, and answers the questions of its calls (`RoundController`).

    Args:
        max_rounds: most rounds; with ``combine="pick"`` there is one.

    Attributes:
        order: the indices of all endpoints, in the order in which the Decider visits them.
        calls: the context that all calls of the ask share.
        decision: the decision of the round under way.
    """

    decision: Decision

    def __init__(self, ask: Ask, pool: Pool, *, max_rounds: int) -> None:
        self._ask = ask
        self._pool = pool
        self._max_rounds = 1 if ask.query.combine == "pick" else max_rounds
        self.order = ask.view.order
        now = asyncio.get_running_loop().time()
        share = _SHARE_FOR_REPLIES if ask.query.combine == "synthesise" else 1.0
        self._deadline = now + share * (ask.deadline - now)
        self.calls = pool.call_context(ask.query, ask.ask_budget, self._deadline, ask.stream_sink)
        self._needs = Needs(ask.query)
        self._bounds: Sequence[Decimal] | None = None
        self._available: Sequence[bool] = ()

    async def prepare(self) -> bool:
        """Find which endpoints can be asked in the next round, and at what cost; False if time ran out meanwhile."""
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
        """Bound the cost of a call to each endpoint, which may need the store; False if time ran out meanwhile."""
        try:
            async with asyncio.timeout_at(self._deadline):
                self._bounds = await self._pool.upper_bounds(self._ask.next_query, self._ask.ask_budget)
        except TimeoutError:
            self._ask.late = True
        return not self._ask.late

    def _note_unavailable(self) -> None:
        """Rule out endpoints that cannot be asked now, and note why.

        Endpoints that lack a feature that the query needs are never asked. If there is no reply yet and no endpoint is
        left, those over a rate limit are asked all the same, and if there are none, those with an open breaker.
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
        """Return one more endpoint to ask, or None: an affordable one that was not asked yet.

        Endpoints available now come first, then those whose breaker is closed, then the most probable.
        """
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
        """Whether time has a price."""
        return self._ask.time_price is not None

    def settled(self, replies: Sequence[Reply], pending: Mapping[int, float]) -> bool:
        """Whether the pending endpoints cannot change the answer, or waiting for them is not worth it."""
        return self._ask.done(replies, pending)


def _reasons(failures: Mapping[str, Failure]) -> str:
    """Say why each endpoint failed, each reason once."""
    alike: dict[tuple[str, str], list[str]] = {}
    for name, error in failures.items():
        alike.setdefault((error.kind, error.message), []).append(name)
    parts = []
    for (kind, message), (first, *others) in alike.items():
        likewise = f"; likewise {', '.join(others)}" if others else ""
        parts.append(f"{first}{_where(failures[first])}: {kind}: {message}{likewise}")
    return "; ".join(parts)


def _where(failure: Failure) -> str:
    return f", {failure.model} at {failure.host}" if failure.host else ""


def _first_of(eligible: Eligible) -> Eligible:
    """Make endpoints eligible only until one is picked."""
    return lambda endpoint, picked: not picked and eligible(endpoint, picked)


def _both(one: Sequence[bool], other: Sequence[bool]) -> tuple[bool, ...]:
    return tuple([a and b for a, b in zip(one, other, strict=True)])
