"""What is answered: the likeliest candidate, what is put together from several, or what was written from them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from focalroute.answers import KINDS, normal_form, reply_form
from focalroute.answers.structured import Structure
from focalroute.core.records import Query, Reply
from focalroute.observe import AskView
from focalroute.store.base import SYNTHESIS


@dataclass(frozen=True, slots=True, repr=False)
class Selection:
    """What is answered; see `Answer`.

    Attributes:
        form: its normal form.
        kind: see `focalroute.store.base.StoredAnswer`.
        place: of the candidate it is; None: it was put together, or written, from several.
    """

    text: str
    value: Any
    form: str
    kind: str
    confidence: float
    place: int | None
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    shares: Mapping[str, float] = field(default_factory=dict)


def give(
    query: Query, sight: AskView, posterior: Sequence[float], replies: Sequence[Reply], written: Reply | None
) -> Selection:
    """What was written, if it was; else what this posterior over the candidates says, the first of equals."""
    confidence = max(posterior)
    best = posterior.index(confidence)
    candidate, form = sight.candidates[best], sight.forms[best]
    if written is not None and written.ok and written.text is not None:
        read = normal_form(written.text, "text") or ""
        return Selection(written.text, written.text, read, SYNTHESIS, confidence, None)
    kind, structure, caller = _kind(query), query.answer, _caller(query, form, replies)
    if caller is not None:
        return Selection(caller.text or "", candidate, form, kind, confidence, best, caller.tool_calls)
    if isinstance(structure, Structure):
        fused, election = structure.fuse(sight.forms, posterior)
        sure = min(election.shares.values(), default=confidence)
        return Selection(fused, structure.value(fused), fused, kind, sure, election.candidate, shares=election.shares)
    return Selection(candidate, candidate if kind in ("choice", "text") else form, form, kind, confidence, best)


def _kind(query: Query) -> str:
    if query.choices:
        return "choice"
    if isinstance(query.answer, Structure):
        return "structured"
    kind = query.answer or "text"
    return kind if kind in KINDS else "custom"


def _caller(query: Query, form: str, replies: Sequence[Reply]) -> Reply | None:
    """Of the replies in this form, the first that calls tools; None: they are text."""
    callers = (reply for reply in replies if reply.ok and reply.tool_calls and not query.choices)
    return next((reply for reply in callers if reply_form(reply, query.answer) == form), None)
