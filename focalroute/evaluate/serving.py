"""focalroute itself as a strategy: it serves recorded replies with the ensemble's own code.

Observer, AskView, policy, decider, fusion, `Ask` and credit are those of `focalroute.serving.ensemble`; only the pool
is replaced. Any policy can serve: the cold start, a bundle, or a policy by name.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from focalroute.core.config import Endpoint
from focalroute.core.errors import PoolError
from focalroute.core.records import Decision, Failure, Feedback, Observation, Outcome, Query, Reply, Round, Usage
from focalroute.endpoints.breaker import Latencies
from focalroute.endpoints.round import LOOK_AGAIN_S, WEIGH_AGAIN
from focalroute.evaluate.replay import RecordedReply, Revealed, Turn
from focalroute.learn.reward import USER, credit, judged, unjudged
from focalroute.money.budget import BudgetGuard
from focalroute.money.pacing import Pacer
from focalroute.observe.drift import Change
from focalroute.observe.features import Embedder, text_features
from focalroute.observe.observer import Observer
from focalroute.policy.baselines import Baseline
from focalroute.policy.bundle import Policy
from focalroute.policy.fallback import Guarded, Served
from focalroute.policy.slot import draw_policy
from focalroute.serving.ask import Ask, TimePrice
from focalroute.serving.exploration import Cost, Probing, stored_probe
from focalroute.serving.recording import make_answer
from focalroute.store.base import StoredAnswer, StoredProbe

_NOT_NEEDED = Failure("cancelled", "not needed any more")


class Serving:
    """Serves a policy, and learns from feedback, as `focalroute.AsyncEnsemble` does.

    The memo of a turn is the answer as the ensemble would store it; None if there was no answer.

    Args:
        policy: the policy that serves.
        endpoints: the pool.
        seed: the seed of sampled decisions.
        max_rounds: as in `focalroute.AsyncEnsemble`, like all other arguments except ``detect`` and ``embed``.
        detect: whether to detect changes of endpoints.
        embed: embeds a query's text.

    Attributes:
        policy: the policy that serves; it may be replaced between turns.
        challenger: if given, decides a share of the turns instead (see `focalroute.policy.slot.draw_policy`).
        history: for every turn so far, the endpoints picked in each round.
        confidence: for every turn so far, the posterior of the answer; NaN without an answer.
        changes: (turn from 0, endpoint, change) for every detected change of an endpoint.
    """

    def __init__(
        self,
        policy: Served,
        endpoints: Sequence[Endpoint],
        *,
        seed: int,
        max_rounds: int = 3,
        explore: bool = True,
        cost_weight: float = 0.1,
        window: int = 500,
        probe_share: float = 0.02,
        detect: bool = True,
        learn_from_agreement: bool = True,
        embed: Embedder = text_features,
        usd_per_second: float = 0.0,
    ) -> None:
        self.policy = policy
        self.challenger: Policy | None = None
        self.history: list[tuple[tuple[int, ...], ...]] = []
        self.confidence: list[float] = []
        self._names = tuple(endpoint.name for endpoint in endpoints)
        self._observer = Observer.of(endpoints, window=window, detect=detect, embed=embed)
        self._guard = BudgetGuard(None, endpoints)
        self._learn_from_agreement = learn_from_agreement
        self._seed = seed
        self._max_rounds = max_rounds
        self._explore = explore
        self._pacer = Pacer(None, cost_weight)
        self._probing = Probing(self._observer, probe_share, agreement=learn_from_agreement)
        self._usd_per_second = usd_per_second
        self._latencies = [Latencies() for _ in endpoints]
        self.changes: list[tuple[int, str, Change]] = []

    def hold(self, usd_per_query: float | None) -> None:
        """From now on adapt the cost weight so that a query costs this on average; None: keep the weight constant."""
        self._pacer = Pacer(None if usd_per_query is None else Decimal(usd_per_query), self._pacer.weight)

    def answer(self, turn: Turn) -> int:
        """Answer in rounds, as the ensemble does; -1 without an answer."""
        ask, cost_weight = self._begin(turn), self._pacer.begin()
        if self._usd_per_second:
            ask.price_time(TimePrice(self._usd_per_second, self._latencies))
        another_round = bool(turn.available)
        while another_round:
            observation = ask.observe(cost_weight)
            decision = self._decide(ask, observation, turn)
            ask.add_round(Round(observation, decision, self._replies(ask, turn, decision.picked)))
            ask.fuse()
            another_round = ask.goes_on(max_rounds=self._max_rounds, askable=len(turn.available))
        self.history.append(tuple(round_.decision.picked for round_ in ask.rounds))
        answer = self._end(ask, turn)
        if turn.memo is not None:
            turn.memo = replace(turn.memo, probes=self._probe(ask.query, turn))
            if self._learn_from_agreement:
                self._observer.agree(*unjudged(turn.memo))
        self._pacer.end(Decimal(float(sum(reply.usd for reply in turn.replies.values()))))
        return answer

    def _replies(self, ask: Ask, turn: Turn, picked: Sequence[int]) -> tuple[Reply, ...]:
        """Ask the picked endpoints and wait for the replies.

        If time has a price, the round may end early, as in `focalroute.endpoints.round`: calls that would then be
        cancelled count as failed, but are paid in full here.
        """
        replies = {i: self._reply(turn, i) for i in picked}
        if ask.time_price is None:
            turn.wait()
            return tuple(replies.values())
        ended, late = self._end_of_round(ask, turn, replies)
        for i in late:
            turn.give_up(i)
            self._latencies[i].add_cancelled(ended)
            replies[i] = replace(replies[i], error=_NOT_NEEDED, text=None, choice=None, latency_s=ended)
        turn.wait(ended)
        return tuple(replies.values())

    def _end_of_round(self, ask: Ask, turn: Turn, replies: Mapping[int, Reply]) -> tuple[float, Sequence[int]]:
        """Return the time at which the round ends early, and the endpoints with later replies; inf: it does not."""
        arriving = sorted(replies, key=turn.latency)
        for place, i in enumerate(arriving):
            at, pending = turn.latency(i), arriving[place + 1 :]
            self._latencies[i].add(at)
            arrived = [replies[one] for one in arriving[: place + 1]]
            while pending and at < turn.latency(pending[0]):
                if ask.done(arrived, dict.fromkeys(pending, at)):
                    return at, pending
                at += max(WEIGH_AGAIN * at, LOOK_AGAIN_S)
        return math.inf, ()

    def _probe(self, query: Query, turn: Turn) -> tuple[StoredProbe, ...]:
        """Ask more endpoints this turn's query, if exploration is due; policies by name do not explore."""
        if isinstance(self.policy, Baseline):
            return ()
        paid = Cost(sum(reply.usd for reply in turn.replies.values()), len(turn.replies))
        probe = self._probing.after(paid, lambda: set(turn.available) - turn.replies.keys(), tuple(turn.replies))
        if probe is None:
            return ()
        replies = [self._reply(turn, endpoint, waited_for=False) for endpoint in probe.endpoints]
        self._probing.settle(probe, Cost(float(sum(reply.cost or 0 for reply in replies)), len(replies)))
        return tuple([row for reply in replies if (row := stored_probe(query, reply)) is not None])

    def learn(self, turn: Turn, revealed: Revealed) -> None:
        """Learn which members were right, as the ensemble does."""
        stored: StoredAnswer | None = turn.memo
        if stored is None:
            return
        feedback = feedback_on(stored, turn, revealed)
        outcome = credit(stored, feedback)
        if feedback.label is None:
            outcome = self._with_scores(outcome, revealed)
        latest = len(self.history) - 1
        self.changes += [(latest, name, change) for name, change in self._observer.learn(outcome).items()]
        if isinstance(self.policy, Baseline):
            self.policy.learn(outcome, len(stored.keys))

    def _with_scores(self, outcome: Outcome, revealed: Revealed) -> Outcome:
        """Replace what a reward says of members by their own scores, where these are revealed."""
        scores = {self._names[i]: value for i, value in revealed.values.items()}
        others = {name: value for name, value in outcome.right.items() if name not in scores}
        return replace(outcome, right={**others, **scores}, inferred=outcome.inferred & others.keys())

    def _begin(self, turn: Turn) -> Ask:
        query = _askable(turn.query)
        self._observer.adopt(self.policy.experience)
        rng = random.Random(f"{self._seed} {len(self.history)}")  # noqa: S311 - exploration, no secret
        policy, rival = draw_policy(self.policy, self.challenger, rng)
        return Ask(
            query,
            policy=Guarded(policy, self._names, rival),
            view=self._observer.begin(query),
            ask_budget=self._guard.ask_budget(None, query.id),
            deadline=math.inf,
            rng=rng,
        )

    def _decide(self, ask: Ask, observation: Observation, turn: Turn) -> Decision:
        return ask.decide(
            observation,
            order=self._observer.order(),
            eligible=lambda endpoint, picked: endpoint in turn.available,
            explore=self._explore,
        )

    def _end(self, ask: Ask, turn: Turn) -> int:
        """Make the stored answer, which becomes the turn's memo; return the answer's candidate in the log."""
        try:
            if not ask.rounds:
                raise PoolError("pool: no endpoint is available; give one that the log has answers of")
            answer, turn.memo = make_answer(ask, store_text=False)
        except PoolError:
            self.confidence.append(math.nan)
            return -1
        self.confidence.append(answer.confidence)
        if answer.choice is not None:
            return answer.choice
        best = answer.candidates.index(answer.text)
        return next(turn.replies[i].candidate for i, backed in ask.view.backs.items() if backed == best)

    def _reply(self, turn: Turn, endpoint: int, *, waited_for: bool = True) -> Reply:
        return _reply(self._names[endpoint], turn.ask(endpoint, waited_for=waited_for), turn)


class Shuffled(Serving):
    """The control for `Serving`: asks in each turn the endpoints that were picked for *another* query.

    If its accuracy is the same, the decisions carry no information about the query.

    Args:
        args: as for `Serving`.
        plan: the endpoints to ask, one tuple of rounds for each turn.
        start: the turn, from 0, of the plan's first entry; on turns outside the plan, the policy decides.
        settings: as for `Serving`.
    """

    def __init__(self, *args: Any, plan: Sequence[tuple[tuple[int, ...], ...]], start: int, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._plan = plan
        self._start = start

    def _decide(self, ask: Ask, observation: Observation, turn: Turn) -> Decision:
        at, done = len(self.history) - self._start, len(ask.rounds)
        if not 0 <= at < len(self._plan):
            return super()._decide(ask, observation, turn)
        wanted = self._plan[at][done] if done < len(self._plan[at]) else ()
        # An endpoint may have been asked before its planned round, by the policy, where the log lacked a planned one.
        picked = tuple(i for i in wanted if i in turn.available and i not in ask.view.asked)
        if not picked and not ask.view.backs:  # at least one endpoint must answer
            return super()._decide(ask, observation, turn)
        return Decision(done + 1, False, (), (), (0.0,) * len(self._names), picked, None)


def feedback_on(stored: StoredAnswer, turn: Turn, revealed: Revealed) -> Feedback:
    """Turn what was revealed into a user's feedback on the stored answer."""
    if revealed.text is not None:
        reward, key = judged(stored, label=revealed.text)
    elif turn.choices and revealed.label is not None:
        reward, key = judged(stored, label_index=revealed.label)
    else:
        reward, key = judged(stored, reward=2 * revealed.worth - 1)
    return Feedback(stored.id, reward, key, USER, 0.0)


def _same(text: str) -> str:
    """The identity, as a log's answers are in normal form."""
    return text


def _askable(query: Query) -> Query:
    """Return the logged query as `ask` would make it; equal choices, which `ask` does not allow, get numbers."""
    if query.choices is None:
        return replace(query, answer=_same)
    if len(set(query.choices)) < len(query.choices):
        return replace(query, choices=tuple(f"{i}. {choice}" for i, choice in enumerate(query.choices)))
    return query


def _reply(name: str, reply: RecordedReply, turn: Turn) -> Reply:
    """Make the reply that the endpoint's client would have returned."""
    output, failure, text, choice = reply.output, None, None, None
    if output.error is not None:
        failure = Failure("connection", output.error)
    elif reply.candidate < 0:
        failure = Failure("unusable", "no answer in the reply")
    else:
        # The name stands for an answer without text: a choice, or an output of which only the score is known.
        text = output.answer if isinstance(output.answer, str) else name
        if turn.choices:
            choice = reply.candidate
    return Reply(
        endpoint=name,
        text=text,
        choice=choice,
        probabilities=output.probabilities,
        usage=Usage(output.prompt_tokens, output.completion_tokens),
        cost=Decimal(reply.usd),
        cost_source="price" if output.cost_usd is None else "provider",
        latency_s=output.latency_s or 0.0,
        attempts=1,
        error=failure,
    )
