"""Makes the records of a finished ask: the answer, its receipt, and its row for the store."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from focalroute.answers import TypedAnswer, candidate_key, normal_form, reply_form, to_number
from focalroute.answers.structured import Structure
from focalroute.core.receipts import Answer, Call, Choice, Receipt
from focalroute.core.records import Decision, Query, Reply, Trajectory
from focalroute.money.cost import total
from focalroute.observe.layout import MEMBER, slices
from focalroute.serving.ask import Ask
from focalroute.store.base import SYNTHESIS, StoredAnswer

_EVIDENCE = slices(MEMBER)["evidence"].start


@dataclass(slots=True, repr=False)  # a frozen one takes five times as long to make
class Selection:
    """The selected answer; see `Answer`.

    Attributes:
        form: its normal form.
        kind: see `focalroute.store.base.StoredAnswer`.
        candidate: index of the selected candidate; None: the answer was assembled or synthesised from several.
    """

    text: str
    value: Any
    form: str
    kind: str
    confidence: float
    candidate: int | None
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    shares: Mapping[str, float] = field(default_factory=dict)


def make_answer(ask: Ask, *, store_text: bool) -> tuple[Answer, StoredAnswer]:
    """Make the answer of a finished ask, and its row for the store; prompt and replies are kept only if ``store_text``.

    Raises:
        PoolError: no endpoint answered; or DeadlineExceeded, or BudgetExceeded.
    """
    if ask.fused is None:
        raise ask.failure()
    selection = select_answer(ask, ask.fused.posterior)
    receipt = _receipt(ask, selection)
    answer = Answer(
        id=ask.query.id,
        text=selection.text,
        value=selection.value,
        choice=selection.candidate if ask.query.choices else None,
        candidates=tuple(ask.view.candidates),
        probabilities=tuple(ask.fused.posterior),
        confidence=selection.confidence,
        cost=receipt.cost,
        receipt=receipt,
        replies=ask.replies,
        metadata=ask.query.metadata,
        tool_calls=selection.tool_calls,
        shares=selection.shares,
    )
    return answer, _stored_answer(ask, answer, selection, _texts(ask, answer) if store_text else None)


# -- the answer --------------------------------------------------------------------------------------------------------


def select_answer(ask: Ask, posterior: list[float]) -> Selection:
    """Select the synthesised answer, else the candidate with the highest posterior probability, the first among equals.

    The fields of a structured answer are elected one by one.
    """
    query, written = ask.query, ask.written
    best = posterior.index(max(posterior))
    confidence = ask.view.confidence(posterior[best])
    text, form = ask.view.candidates[best], ask.view.forms[best]
    if written is not None and written.ok and written.text is not None:
        written_form = normal_form(written.text, "text") or ""
        return Selection(written.text, written.text, written_form, SYNTHESIS, confidence, None)
    kind, structure, tool_reply = _kind(query), query.answer, _tool_reply(ask, form)
    if tool_reply is not None:
        return Selection(tool_reply.text or "", text, form, kind, confidence, best, tool_reply.tool_calls)
    if isinstance(structure, Structure):
        fused, election = structure.fuse(ask.view.forms, posterior)
        confidence = min(map(ask.view.confidence, election.shares.values()), default=confidence)
        value = structure.value(fused)
        return Selection(fused, value, fused, kind, confidence, election.candidate, shares=election.shares)
    return Selection(text, _value(query, best, text, form), form, kind, confidence, best)


def _value(query: Query, best: int, text: str, form: str) -> Any:
    """Return the answer's value: that of the choice, or of its kind or type."""
    if query.values is not None:
        return query.values[best]
    if query.open:
        return text
    if isinstance(query.answer, TypedAnswer):
        return query.answer.value(form)
    return to_number(form) if query.answer == "number" else form


def _kind(query: Query) -> str:
    """Return the kind of answer, as the store names it."""
    if query.choices:
        return "choice"
    if isinstance(query.answer, Structure):
        return "structured"
    if isinstance(query.answer, TypedAnswer):
        return query.answer.kind
    kind = query.answer or "text"
    return kind if isinstance(kind, str) else "custom"


def _tool_reply(ask: Ask, form: str) -> Reply | None:
    """Return the first reply with this form that calls tools; None: its replies are text."""
    if ask.query.choices:
        return None
    callers = (reply for reply in ask.replies if reply.ok and reply.tool_calls)
    return next((reply for reply in callers if reply_form(reply, ask.query.answer) == form), None)


# -- its receipt -------------------------------------------------------------------------------------------------------


def _receipt(ask: Ask, selection: Selection) -> Receipt:
    calls = tuple([_call(ask, number, reply) for number, r in enumerate(ask.rounds, 1) for reply in r.replies])
    costs = [call.cost for call in calls]
    synthesis = None
    if ask.written is not None:
        synthesis = replace(_call(ask, 0, ask.written), candidate=None, evidence=None)
        costs.append(synthesis.cost)
    embedding = total(bill.cost for bill in ask.ask_budget.bills if bill.endpoint not in ask.policy.endpoints)
    return Receipt(
        answer_id=ask.query.id,
        created_at=time.time(),
        policy_version=ask.policy.version,
        calls=calls,
        rounds=sum([bool(r.replies) for r in ask.rounds]),
        cost=total((*costs, embedding)),
        latency_s=time.perf_counter() - ask.started,
        tags=ask.query.tags,
        degraded=tuple(_shortfalls(ask)),
        policy=ask.policy.name,
        cost_weight=ask.cost_weight,
        budget=ask.ask_budget.state(),
        decisions=tuple([_choice(ask, number, r.decision) for number, r in enumerate(ask.rounds, 1)]),
        saved=total(call.saved for call in calls if call.error is not None and call.error.kind == "cancelled"),
        synthesis=synthesis,
        embedding=embedding,
        confidence=selection.confidence,
        fused_s=_since(ask.started, ask.fused_at),
        usd_per_second=ask.time_price.usd_per_second if ask.time_price else 0.0,
    )


def _since(started: float, moment: float | None) -> float | None:
    """Return the seconds from the ask's start to another `time.perf_counter`, cut to microseconds."""
    return None if moment is None else int((moment - started) * 1e6) / 1e6


def _choice(ask: Ask, number: int, decision: Decision) -> Choice:
    names = ask.policy.endpoints
    return Choice(
        round=number,
        considered=tuple([names[i] for i in decision.order]),
        picked=tuple([names[i] for i in decision.picked]),
        probability=None if decision.log_mu is None else math.exp(decision.log_mu),
    )


def _call(ask: Ask, number: int, reply: Reply) -> Call:
    index = ask.policy.endpoints.index(reply.endpoint)
    return Call(
        endpoint=reply.endpoint,
        round=number,
        probability=ask.rounds[number - 1].decision.probabilities[index] if number else 1.0,
        candidate=ask.candidate_of(number, index),
        method=reply.method,
        usage=reply.usage,
        cost=reply.cost,
        cost_source=reply.cost_source,
        latency_s=reply.latency_s,
        attempts=reply.attempts,
        error=reply.error,
        evidence=_evidence(ask, index),
        saved=_saved(ask, index, reply),
        hedge_of=reply.hedge_of,
        queued_s=_since(ask.started, reply.started or None),
        sent_s=_since(ask.started, reply.sent),
        first_token_s=_since(ask.started, reply.first_token),
    )


def _evidence(ask: Ask, index: int) -> float | None:
    """Return the weight of a member's vote in log-odds, 0 to 8, as the Fusion sees it."""
    candidate = ask.view.backs.get(index)
    if candidate is None or ask.fused is None or index not in ask.fused.evidence.endpoints:
        return None
    evidence = ask.fused.evidence
    weight: float = evidence.members.item(candidate, evidence.endpoints.index(index), _EVIDENCE)
    return weight


def _saved(ask: Ask, index: int, reply: Reply) -> Decimal | None:
    """Estimate the cost that cancelling a call saved, as if costs accrued evenly over a call's usual time."""
    if reply.error is None or reply.error.kind != "cancelled":
        return None
    usd, usual_s = ask.view.usual(index)
    if usd is None:
        return None
    if not reply.attempts:  # it was never made
        return Decimal(f"{usd:.12f}")
    if usual_s is None:
        return None
    return Decimal(f"{usd * max(0.0, 1 - reply.latency_s / usual_s):.12f}")


def _shortfalls(ask: Ask) -> list[str]:
    """List what the answer lacked, as its ``degraded`` tells."""
    found = []
    if ask.policy.failed:
        found.append("fallback policy: plurality of the cheapest endpoints")
    if ask.embedding_error:
        found.append(f"text not read: {ask.embedding_error}")
    if ask.late:
        found.append("deadline hit: fused what had arrived")
    failed = [reply.endpoint for reply in ask.replies if reply.error and reply.error.kind != "cancelled"]
    if failed:
        found.append(f"fewer members: {', '.join(failed)} failed")
    if ask.view.agreement is not None and ask.view.agreement.failure:
        found.append(f"replies compared by their letters: {ask.view.agreement.failure}")
    if ask.written is not None and ask.written.error is not None:
        why = f"{ask.written.endpoint}: {ask.written.error.kind}: {ask.written.error.brief}"
        found.append(f"not synthesised ({why}): the answer is the reply that was chosen")
    if ask.unavailable:
        found += _unavailable(ask)
    return found


def _unavailable(ask: Ask) -> list[str]:
    """List the endpoints that could not be asked in any round, by reason."""
    asked = {reply.endpoint for reply in ask.replies}
    names: dict[str, list[str]] = {}
    for name, reason in ask.unavailable.items():
        if name not in asked:
            names.setdefault(reason, []).append(name)
    return [f"{reason}: {', '.join(names[reason])} could not be asked" for reason in sorted(names)]


# -- its row for the store ---------------------------------------------------------------------------------------------


def _stored_answer(ask: Ask, answer: Answer, selection: Selection, texts: str | None) -> StoredAnswer:
    keys = tuple(map(candidate_key, ask.view.forms))
    any_right = 1 - ask.view.none_of_these()
    probabilities = tuple([any_right * p for p in answer.probabilities])
    answered = selection.candidate
    if answered is None:  # no member gave the whole answer
        answered = len(keys)
        keys, probabilities = (*keys, candidate_key(selection.form)), (*probabilities, 0.0)
    return StoredAnswer(
        id=answer.id,
        created_at=answer.receipt.created_at,
        keys=keys,
        kind=selection.kind,
        answered=answered,
        probabilities=probabilities,
        members=ask.view.members(),
        trajectory=_trajectory(ask, selection),
        receipt=answer.receipt.to_json(),
        texts=texts,
    )


def _trajectory(ask: Ask, selection: Selection) -> Trajectory | None:
    """Make the record that updates train on; None: the policy does not learn."""
    if not ask.policy.learnable or ask.fused is None:
        return None
    return Trajectory(
        version=ask.policy.version,
        endpoints=ask.policy.endpoints,
        decisions=tuple((r.observation, r.decision) for r in ask.rounds if any(r.decision.eligible)),
        evidence=ask.fused.evidence,
        fused=-1 if selection.candidate is None else selection.candidate,
        features=ask.view.features,
        task=ask.query.task,
        embedder=ask.view.embedder,
        rival=ask.policy.rival,
    )


def _texts(ask: Ask, answer: Answer) -> str:
    """Return prompt, candidates and replies as JSON."""
    texts = {
        "messages": ask.query.messages,
        "candidates": answer.candidates,
        "answer": answer.text,
        "replies": {reply.endpoint: reply.text for reply in answer.replies},
        "tool_calls": {reply.endpoint: reply.tool_calls for reply in answer.replies if reply.tool_calls},
    }
    return json.dumps(texts, default=str)
