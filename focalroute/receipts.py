"""The receipt of an answer: who was asked, why, what it cost, and how much of the budget that left."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from functools import cache

import pydantic
import pydantic_core

from focalroute.records import CostSource, Failure, Method, Usage

__all__ = ["Call", "Choice", "Limit", "Receipt"]


@dataclass(frozen=True, slots=True)
class Call:
    """One member on a receipt: no text, only what it did and what it cost.

    Attributes:
        round: 1-based; 0: it wrote the answer from the replies of all rounds.
        probability: with which it was picked by itself.
        candidate: the candidate it backs; None: it gave no usable reply.
        cost: USD of all its attempts. One that was given up stands with the most it can have cost, as its usage never
            came back (``cost_source`` "reserved"); None where nothing bounds that ("unknown").
        evidence: the weight of its vote by its record, in log-odds, as the Fusion saw it; None without a vote.
        saved: of a call that was cancelled, as it was no longer needed: USD that it would have gone on to cost. An
            estimate, not taken off ``cost``: the endpoint's expected cost (the mean of its calls, with its listed price
            as five more), times the share of its mean latency that was left. It holds where a service bills no more
            once the connection is closed. None: it was not cancelled, or no call of this endpoint is known.
        hedge_of: the endpoint whose late call it was to race; None: it was picked.
    """

    endpoint: str
    round: int
    probability: float
    candidate: int | None
    method: Method | None
    usage: Usage | None
    cost: Decimal | None
    cost_source: CostSource
    latency_s: float
    attempts: int
    error: Failure | None
    evidence: float | None = None
    saved: Decimal | None = None
    hedge_of: str | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """One decision on a receipt.

    Attributes:
        considered: the endpoints that could be asked then: not asked yet, not failing, affordable.
        picked: those that were; none: it stopped.
        probability: of this set under the policy; None where it was not sampled (greedy, or nobody was left).
    """

    round: int
    considered: tuple[str, ...]
    picked: tuple[str, ...]
    probability: float | None


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit of the budget at one moment, USD; ``resets_at``: Unix time at which its period ends, None: never."""

    name: str
    usd: Decimal
    spent: Decimal
    reserved: Decimal
    resets_at: float | None = None


@dataclass(frozen=True, slots=True)
class Receipt:
    """Who was asked, why, and what it cost. Holds no prompt and no reply text.

    Attributes:
        policy_version: the one that decided everything: 0 shipped, -1 the fallback, -2 the rule named by ``policy``.
        calls: every member asked, in the order of asking.
        rounds: rounds in which somebody was asked.
        synthesis: the call that wrote the answer from the members' replies; where it has an error, the answer is the
            reply that the Fusion chose. None: nothing was to be written. It is not among ``calls``, but in ``cost``.
        cost: USD of all calls, of ``synthesis`` and of ``embedding``; None if the cost of any is unknown.
        saved: USD that its cancelled calls would have gone on to cost, an estimate (see `Call`); 0 without any.
        degraded: how the answer falls short of normal service, in words; empty if it does not.
        latency_s: the whole ask.
        price_of_money: the lambda it was decided by.
        budget: every limit that concerned it, as it was known at its end.
        decisions: whom it could ask and whom it did, round by round, the last decision to stop included.
        embedding: USD of the vectors of its text and of replies that are compared, where a service makes them; None:
            unknown.
    """

    answer_id: str
    created_at: float
    policy_version: int
    calls: tuple[Call, ...]
    rounds: int
    cost: Decimal | None
    latency_s: float
    tags: tuple[str, ...] = ()
    degraded: tuple[str, ...] = ()
    policy: str | None = None
    price_of_money: float = 0.0
    budget: tuple[Limit, ...] = ()
    decisions: tuple[Choice, ...] = ()
    saved: Decimal | None = Decimal(0)
    embedding: Decimal | None = Decimal(0)
    synthesis: Call | None = None

    def to_json(self) -> str:
        """The receipt as one JSON object; money as decimal strings."""
        return _serializer().to_json(self, warnings=False).decode()


@cache
def _serializer() -> pydantic_core.SchemaSerializer:
    """Made for receipts, it takes half as long as `pydantic_core.to_json`. Making it takes 3 ms: on first use."""
    return pydantic.TypeAdapter(Receipt).serializer
