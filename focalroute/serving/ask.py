"""One ask: what was seen, decided and paid while it was under way, and the records that are made of it at its end."""

from __future__ import annotations

import itertools
import json
import math
import random
import time
from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import NamedTuple

from focalroute.answers import candidate_key
from focalroute.answers.structured import Structure
from focalroute.core.errors import BudgetExceeded, DeadlineExceeded, PoolError, StreamBroken
from focalroute.core.receipts import Answer, Call, Choice, Receipt
from focalroute.core.records import Decision, Evidence, Observation, Query, Reply, Round, Trajectory
from focalroute.endpoints.stream_sink import StreamSink
from focalroute.money.budget import AskBudget
from focalroute.money.cost import total
from focalroute.observe import AskView
from focalroute.observe.layout import MEMBER, slices
from focalroute.policy.decider import Eligible, decide
from focalroute.policy.fallback import Guarded
from focalroute.policy.fusion import posterior
from focalroute.serving.answer_selection import Selection, give
from focalroute.store.base import LedgerRow, StoredAnswer

_MOST_TRIALS = 64
_LACKS = "takes no "
_EVIDENCE = slices(MEMBER)["evidence"].start


class Fused(NamedTuple):
    """The Fusion's evidence and the posterior it gives over the candidates (K,)."""

    evidence: Evidence
    posterior: list[float]


@dataclass(slots=True)
class Ask:
    """The state of one ask.

    Attributes:
        deadline: in the running loop's time.
        rng: what its decisions are sampled with.
        started: `time.perf_counter` at its start.
        rounds: every decision so far, a STOP included, with its replies.
        fused: what the Fusion made of all replies so far; None as long as nobody has answered.
        given: what is answered, once it is.
        late: whether the deadline has passed.
        left_out: name -> why it could not be asked in some round, of endpoints that failed before, were over a rate
            limit, or lack what the query needs.
        cost_weight: the lambda of its latest observation.
        written: what the endpoint that was to write the answer gave back; None: none was asked to.
        outlet: where the answer is said as it comes; None: it is not streamed.
        unread: why there are no features of its text; empty: there are, or it has no text.
    """

    query: Query
    policy: Guarded
    sight: AskView
    ask_budget: AskBudget
    deadline: float
    rng: random.Random
    started: float = field(default_factory=time.perf_counter)
    rounds: list[Round] = field(default_factory=list)
    fused: Fused | None = None
    given: Selection | None = None
    late: bool = False
    left_out: dict[str, str] = field(default_factory=dict)
    cost_weight: float = 0.0
    written: Reply | None = None
    unread: str = ""
    stream_sink: StreamSink | None = None

    @property
    def begun(self) -> bool:
        """Whether a reply is being said as it comes, or was: it is the answer."""
        return self.stream_sink is not None and self.stream_sink.speaker is not None

    @property
    def replies(self) -> tuple[Reply, ...]:
        """All replies so far, in the order of asking, failures included."""
        return tuple([reply for round_ in self.rounds for reply in round_.replies])

    @property
    def put(self) -> Query:
        """What the endpoints of the next round are asked."""
        return self.query

    def _failure(self) -> PoolError | BudgetExceeded:
        """Why there is no answer."""
        replies = self.replies
        reasons = "; ".join(f"{r.endpoint}: {r.error.kind}: {r.error.message}" for r in replies if r.error)
        if self.stream_sink is not None and self.begun:
            said = f"the answer broke off ({reasons}); what was said until then is in .text"
            return StreamBroken(said, replies, self.stream_sink.said)
        if self.late:
            return DeadlineExceeded("the deadline passed before any endpoint had answered; raise deadline_s", replies)
        unable = [name for name, why in self.left_out.items() if why.startswith(_LACKS)]
        if not replies and len(unable) == len(self.policy.endpoints):
            said = ", ".join(f"{name} {self.left_out[name]}" for name in unable)
            return PoolError(f"no endpoint can be asked this ({said}); see Endpoint.tools, .images and .json_schema")
        if all(reply.error is not None and reply.error.kind == "unavailable" for reply in replies):
            return self.ask_budget.exceeded()
        return PoolError(f"every asked endpoint failed ({reasons})", replies)

    def observe(self, cost_weight: float) -> Observation:
        """What the Decider sees before the next decision, at this lambda."""
        self.cost_weight = cost_weight
        if self.fused is not None:  # only now: after the last round nobody would look at it
            self.sight.see(self.fused.posterior)
        return self.sight.observe(
            round=len(self.rounds) + 1, cost_weight=cost_weight, budget_left=self.ask_budget.share_left
        )

    def decide(self, observation: Observation, *, order: Sequence[int], eligible: Eligible, explore: bool) -> Decision:
        """Whom to ask next: those not asked yet that are eligible, visited in this order (see `decide`)."""
        asked = self.sight.asked
        return decide(
            self.policy.decider_logits(observation),
            round=len(self.rounds) + 1,
            must_pick=not self.sight.backs,
            order=[endpoint for endpoint in order if endpoint not in asked],
            eligible=_first_of(eligible) if self.policy.one_a_round else eligible,
            explore=explore and self.policy.learnable,
            rng=self.rng,
            one=self.query.combine == "pick",
        )

    def leave_out(self, available: Sequence[bool], out: Sequence[bool], lacks: Sequence[str | None]) -> None:
        """Some are not available now: they lack something, their breaker is open (``out``), or a rate limit says so."""
        for name, free, broken, lack in zip(self.policy.endpoints, available, out, lacks, strict=True):
            if lack is not None:
                self.left_out[name] = f"{_LACKS}{lack}"
            elif not free:
                self.left_out[name] = "breaker open" if broken else "rate limited"

    def settled(self, replies: Sequence[Reply], pending: Sequence[int]) -> bool:
        """Whether these replies of the round under way settle the answer, whatever the pending endpoints vote.

        Tried out: each of them silent, or for any candidate, or (a free-form question) for a new one; alone and with
        all of its mass, where there are choices or several samples. Where that were too many trials, it is not settled.
        Nor is an open text, to which every further reply counts, or an answer whose fields are elected each by itself.
        """
        if self.sight.agreement is not None or isinstance(self.query.answer, Structure):
            return False
        trial = self.sight.fork()
        for reply in replies:
            trial.add(reply, len(self.rounds) + 1)
        options = len(trial.candidates) + (not self.query.choices)
        if not trial.backs or (options + 1) ** len(pending) > _MOST_TRIALS:
            return False
        best = self._likeliest(trial.evidence())
        for sure in (False, True) if self.query.choices or (self.query.samples or 1) > 1 else (False,):
            for votes in itertools.product((None, *range(options)), repeat=len(pending)):
                evidence = trial.supposing(zip(pending, votes, strict=True), len(self.rounds) + 1, sure=sure)
                if self._likeliest(evidence) != best:
                    return False
        return True

    def _likeliest(self, evidence: Evidence) -> int:
        """The candidate with the most posterior mass, the first of equals."""
        masses = posterior(self.policy.fusion_logits(evidence).tolist())
        return masses.index(max(masses))

    def take(self, round_: Round) -> None:
        """Take in a round: its replies, and what the Fusion makes of them and all before."""
        self.hear(round_)
        self.fuse()

    def hear(self, round_: Round) -> None:
        """Take in a round's replies."""
        self.rounds.append(round_)
        for reply in round_.replies:
            self.sight.add(reply, len(self.rounds))

    def fuse(self) -> None:
        """See what the Fusion makes of all replies, if the last round brought any; one candidate has all there is."""
        if self.sight.backs and self.rounds[-1].replies:
            evidence = self.sight.evidence()
            alone = len(evidence.candidates) == 1
            self.fused = Fused(evidence, [1.0] if alone else posterior(self.policy.fusion_logits(evidence).tolist()))

    def goes_on(self, *, most: int, askable: int) -> bool:
        """Whether another round follows the last one.

        As long as nobody has answered it goes on to others: there is nothing to stop with. A reply that was said as it
        came is the answer: nothing follows it.

        Args:
            most: how many rounds at the most.
            askable: how many endpoints can be asked, those already asked included.
        """
        if self.begun or not self.rounds[-1].replies or len(self.sight.asked) == askable:
            return False
        return len(self.rounds) < most or not self.sight.backs

    def ranked(self) -> list[str]:
        """The candidates, those with the most posterior mass first."""
        masses = [] if self.fused is None else self.fused.posterior
        order = sorted(range(len(masses)), key=masses.__getitem__, reverse=True)  # the first of equals stays ahead
        return [self.sight.candidates[k] for k in order]

    def answer(self) -> Answer:
        """What was written from the replies, or else the candidate with the most posterior mass, the first of equals.

        Raises:
            PoolError: nobody answered; or DeadlineExceeded, or BudgetExceeded.
        """
        if self.fused is None:
            raise self._failure()
        replies = self.replies
        given = self.given = give(self.query, self.sight, self.fused.posterior, replies, self.written)
        receipt = self._receipt()
        return Answer(
            id=self.query.id,
            text=given.text,
            value=given.value,
            choice=given.place if self.query.choices else None,
            candidates=tuple(self.sight.candidates),
            probabilities=tuple(self.fused.posterior),
            confidence=given.confidence,
            cost=receipt.cost,
            receipt=receipt,
            replies=replies,
            metadata=self.query.metadata,
            tool_calls=given.tool_calls,
            shares=given.shares,
        )

    def _receipt(self) -> Receipt:
        calls = tuple(self._call(number, reply) for number, r in enumerate(self.rounds, 1) for reply in r.replies)
        written = None if self.written is None else replace(self._call(0, self.written), candidate=None, evidence=None)
        embedding = total(bill.cost for bill in self.ask_budget.bills if bill.endpoint not in self.policy.endpoints)
        return Receipt(
            answer_id=self.query.id,
            created_at=time.time(),
            policy_version=self.policy.version,
            calls=calls,
            rounds=sum(bool(r.replies) for r in self.rounds),
            cost=total((*(call.cost for call in calls), *([written.cost] if written else ()), embedding)),
            latency_s=time.perf_counter() - self.started,
            tags=self.query.tags,
            degraded=tuple(self._shortfalls()),
            policy=self.policy.name,
            cost_weight=self.cost_weight,
            budget=self.ask_budget.state(),
            decisions=tuple(self._choice(number, r.decision) for number, r in enumerate(self.rounds, 1)),
            saved=total(call.saved for call in calls if call.error is not None and call.error.kind == "cancelled"),
            synthesis=written,
            embedding=embedding,
        )

    def _choice(self, number: int, decision: Decision) -> Choice:
        names = self.policy.endpoints
        return Choice(
            round=number,
            considered=tuple([names[i] for i in decision.order]),
            picked=tuple([names[i] for i in decision.picked]),
            probability=None if decision.log_mu is None else math.exp(decision.log_mu),
        )

    def _evidence(self, index: int) -> float | None:
        """The weight of a member's vote in log-odds, 0 to 8, as the Fusion sees it."""
        candidate = self.sight.backs.get(index)
        if candidate is None or self.fused is None or index not in self.fused.evidence.endpoints:
            return None
        evidence = self.fused.evidence
        return float(evidence.members[candidate, evidence.endpoints.index(index), _EVIDENCE])

    def _candidate(self, number: int, reply: Reply) -> int | None:
        return self.sight.backs.get(self.policy.endpoints.index(reply.endpoint))

    def _call(self, number: int, reply: Reply) -> Call:
        index = self.policy.endpoints.index(reply.endpoint)
        return Call(
            endpoint=reply.endpoint,
            round=number,
            probability=self.rounds[number - 1].decision.probabilities[index] if number else 1.0,
            candidate=self._candidate(number, reply),
            method=reply.method,
            usage=reply.usage,
            cost=reply.cost,
            cost_source=reply.cost_source,
            latency_s=reply.latency_s,
            attempts=reply.attempts,
            error=reply.error,
            evidence=self._evidence(index),
            saved=self._saved(index, reply),
            hedge_of=reply.hedge_of,
        )

    def _saved(self, index: int, reply: Reply) -> Decimal | None:
        """What a cancelled call would have gone on to cost, taken to accrue evenly over the usual time of a call."""
        if reply.error is None or reply.error.kind != "cancelled":
            return None
        usd, usual_s = self.sight.usual(index)
        if usd is None:
            return None
        if not reply.attempts:  # it was never made
            return Decimal(f"{usd:.12f}")
        return None if usual_s is None else Decimal(f"{usd * max(0.0, 1 - reply.latency_s / usual_s):.12f}")

    def _shortfalls(self) -> list[str]:
        said, replies = [], self.replies
        if self.policy.failed:
            said.append("fallback policy: plurality of the cheapest endpoints")
        if self.unread:
            said.append(self.unread)
        if self.late:
            said.append("deadline hit: fused what had arrived")
        failed = [reply.endpoint for reply in replies if reply.error and reply.error.kind != "cancelled"]
        if failed:
            said.append(f"fewer members: {', '.join(failed)} failed")
        if self.sight.agreement is not None and self.sight.agreement.failure:
            said.append(f"replies compared by their letters: {self.sight.agreement.failure}")
        if self.written is not None and self.written.error is not None:
            why = f"{self.written.endpoint}: {self.written.error.kind}: {self.written.error.message}"
            said.append(f"not synthesised ({why}): the answer is the reply that was chosen")
        return said if not self.left_out else said + self._absences({reply.endpoint for reply in replies})

    def _absences(self, asked: Container[str]) -> list[str]:
        """Who could not be asked, and was not in another round, by reason."""
        left_out = {name: why for name, why in self.left_out.items() if name not in asked}
        reasons = {reason: [n for n, why in left_out.items() if why == reason] for reason in left_out.values()}
        return [f"{reason}: {', '.join(names)} could not be asked" for reason, names in sorted(reasons.items())]

    def stored(self, answer: Answer, *, texts: bool) -> StoredAnswer:
        """The answer as it is kept; prompt and replies only if ``texts``."""
        given = self.given
        if given is None:
            raise RuntimeError("nothing has been answered yet")
        keys, probabilities = tuple(map(candidate_key, self.sight.forms)), answer.probabilities
        if given.place is None:  # nobody gave it as a whole
            keys, probabilities = (*keys, candidate_key(given.form)), (*probabilities, 0.0)
        return StoredAnswer(
            id=answer.id,
            created_at=answer.receipt.created_at,
            keys=keys,
            kind=given.kind,
            answered=len(keys) - 1 if given.place is None else given.place,
            probabilities=probabilities,
            members=self.sight.members(),
            trajectory=self._trajectory(given.place),
            receipt=answer.receipt.to_json(),
            texts=self._texts(answer) if texts else None,
        )

    def _trajectory(self, place: int | None) -> Trajectory | None:
        if not self.policy.learnable or self.fused is None:
            return None
        return Trajectory(
            version=self.policy.version,
            endpoints=self.policy.endpoints,
            decisions=tuple((r.observation, r.decision) for r in self.rounds if any(r.decision.eligible)),
            evidence=self.fused.evidence,
            fused=-1 if place is None else place,
            features=self.sight.features,
            task=self.query.task,
            embedder=self.sight.embedder,
        )

    def _texts(self, answer: Answer) -> str:
        kept = {
            "messages": self.query.messages,
            "candidates": answer.candidates,
            "answer": answer.text,
            "replies": {reply.endpoint: reply.text for reply in answer.replies},
            "tool_calls": {reply.endpoint: reply.tool_calls for reply in answer.replies if reply.tool_calls},
        }
        return json.dumps(kept, default=str)

    def ledger(self) -> Sequence[LedgerRow]:
        """A row for every attempt that was made, whatever became of it, and that the ledger does not have yet."""
        return self.ask_budget.unwritten


def _first_of(eligible: Eligible) -> Eligible:
    """Nobody beside the one that was picked."""
    return lambda endpoint, picked: not picked and eligible(endpoint, picked)
