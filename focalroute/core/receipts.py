"""Answers, each with a receipt: which endpoints were asked, why, at what cost, and what is left of the budget."""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, SupportsIndex, overload

import pydantic
import pydantic_core

from focalroute.core.dollars import dollars
from focalroute.core.records import CostSource, Failure, Method, Reply, Usage, differ
from focalroute.core.spelling import counted

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T_co = TypeVar("T_co", default=Any, covariant=True)
    E = TypeVar("E", bound="Answer | BaseException", default="Answer")
else:
    from typing import TypeVar

    T_co = TypeVar("T_co", covariant=True)
    E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class Call:
    """One member's call on a receipt: what it did and what it cost, without any text.

    Attributes:
        round: 1-based; 0: it wrote the answer from the replies of all rounds.
        probability: the endpoint's own probability of being picked.
        candidate: the candidate it backs; None: it gave no usable reply.
        cost: USD of all its attempts. An attempt that was cancelled or broke off before its usage came back counts with
            an estimate (``cost_source`` "reserved"). None: an attempt's cost has no known bound ("unknown").
        evidence: the weight of its vote from its record, in log-odds, as the Fusion saw it; None: it has no vote.
        saved: estimated USD saved by cancelling it, not subtracted from ``cost``: the endpoint's expected cost times
            the share of its mean latency that was left. The expected cost is the mean of its calls, with its listed
            price counted as five more calls. The estimate holds for services that stop billing once the connection is
            closed. None: it was not cancelled, or no call of this endpoint is known.
        hedge_of: the endpoint whose late call it hedged; None: it was picked.
        queued_s: seconds from the ask's start until it was picked and began to wait for the endpoint; it ended
            ``latency_s`` later. None: on receipts from before 24 November 2026.
        sent_s: seconds from the ask's start until its latest attempt was sent; None: none was.
        first_token_s: seconds from the ask's start until the first piece of its text; None: it was not streamed.
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
    queued_s: float | None = None
    sent_s: float | None = None
    first_token_s: float | None = None

    @property
    def ended_s(self) -> float | None:
        """Seconds from the ask's start until it was done or cancelled; None: unknown."""
        return None if self.queued_s is None else self.queued_s + self.latency_s


class Event(NamedTuple):
    """One moment of an ask.

    Attributes:
        at_s: seconds since the ask began.
        what: "queued", "sent", "first token", "done", "failed", "cancelled"; or "fused", which is for all replies.
        endpoint: the endpoint called; None where "fused".
    """

    at_s: float
    what: str
    endpoint: str | None


@dataclass(frozen=True, slots=True)
class Choice:
    """One decision on a receipt.

    Attributes:
        considered: the endpoints that could be asked: not asked yet, not failing, affordable.
        picked: the endpoints picked; empty: it stopped.
        probability: of this set under the policy; None: it was not sampled (greedy, or no endpoint was left).
    """

    round: int
    considered: tuple[str, ...]
    picked: tuple[str, ...]
    probability: float | None


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit of the budget at one moment, USD; ``resets_at``: Unix time when its period ends, None: never."""

    name: str
    usd: Decimal
    spent: Decimal
    reserved: Decimal
    resets_at: float | None = None


@dataclass(frozen=True, slots=True)
class Receipt:
    """Which endpoints were asked, why, and at what cost. Holds no prompt and no reply text.

    Attributes:
        policy_version: version of the policy used throughout: 0 shipped, -1 the fallback, -2 the rule named by
            ``policy``.
        calls: every member asked, in the order of asking.
        rounds: rounds in which an endpoint was asked.
        synthesis: the call that wrote the answer from the members' replies; if it failed, the answer is the reply that
            the Fusion chose. None: no synthesis was asked for. It is in ``cost`` and ``all_calls``.
        cost: USD of all calls, of ``synthesis`` and of ``embedding``; None if the cost of any is unknown.
        saved: USD saved by cancelling calls, an estimate (see `Call`); 0 without any.
        degraded: how the answer falls short of normal service, in words; empty if it does not.
        latency_s: the whole ask.
        cost_weight: the lambda used; ``usd_per_second``: the price of time used.
        budget: every limit that applied, as known when the ask ended.
        decisions: which endpoints could be asked and which were, for each round, the final STOP included.
        embedding: USD of embedding its text and the replies to compare, where a service does so; None: unknown.
        confidence: the answer's; None on receipts from before 24 November 2026.
        fused_s: seconds from its start until the last replies were fused; None likewise.
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
    cost_weight: float = 0.0
    budget: tuple[Limit, ...] = ()
    decisions: tuple[Choice, ...] = ()
    saved: Decimal | None = Decimal(0)
    embedding: Decimal | None = Decimal(0)
    synthesis: Call | None = None
    confidence: float | None = None
    fused_s: float | None = None
    usd_per_second: float = 0.0

    def __str__(self) -> str:
        """Return its cost and time, then its timeline, a line for each event."""
        made = f"{counted(len(self.all_calls), 'call')} in {counted(self.rounds, 'round')}"
        lines = [f"{dollars(self.cost)}, {made}, {self.latency_s:.3f} s"]
        for at_s, what, endpoint in self.timeline:
            lines.append(f"{at_s:8.3f} s  {what}" if endpoint is None else f"{at_s:8.3f} s  {endpoint}: {what}")
        return "\n".join(lines)

    @property
    def all_calls(self) -> tuple[Call, ...]:
        """The members' calls, then the synthesiser's."""
        return self.calls if self.synthesis is None else (*self.calls, self.synthesis)

    @property
    def timeline(self) -> tuple[Event, ...]:
        """The events of the ask in order; empty on receipts from before 24 November 2026."""
        moments = [Event(self.fused_s, "fused", None)] if self.fused_s is not None else []
        for call in self.all_calls:
            ended = "done"
            if call.error is not None:
                ended = "cancelled" if call.error.kind == "cancelled" else "failed"
            times = (call.queued_s, "queued"), (call.sent_s, "sent"), (call.first_token_s, "first token")
            stages = (*times, (call.ended_s, ended))
            moments += [Event(at_s, what, call.endpoint) for at_s, what in stages if at_s is not None]
        return tuple(sorted(moments, key=lambda event: event.at_s))

    @property
    def usage(self) -> Usage | None:
        """Tokens of all calls, ``synthesis`` included; None if no service reported any."""
        known = [call.usage for call in self.all_calls if call.usage is not None]
        return functools.reduce(operator.add, known) if known else None

    def to_json(self) -> str:
        """The receipt as one JSON object; money as decimal strings."""
        return _serializer().to_json(self, warnings=False).decode()


@cache
def _serializer() -> pydantic_core.SchemaSerializer:
    """Make, on first use as it takes 3 ms, a serialiser of receipts twice as fast as `pydantic_core.to_json`."""
    return pydantic.TypeAdapter(Receipt).serializer


#: The fields of an answer that `Answer.to_dict` gives as they are.
_PLAIN = (
    "id", "text", "value", "choice", "candidates", "probabilities", "confidence", "disputed", "shares", "tool_calls",
    "cost", "usage", "latency_s", "degraded", "durable", "cached", "metadata", "receipt",
)  # fmt: skip
_SHOWN = 60  # characters of an answer in its repr
#: A name that other libraries use for a part of an answer -> its name here.
_ELSEWHERE = {
    **dict.fromkeys(("choices", "options"), "candidates, .choice (its index) or .message"),
    **dict.fromkeys(("content", "answer", "output_text", "response"), "text"),
    **dict.fromkeys(("parsed", "result", "data"), "value"),
    **dict.fromkeys(("price", "usd", "cost_usd"), "cost"),
    **dict.fromkeys(("model", "models", "endpoint", "endpoints", "calls"), "receipt.calls"),
    **dict.fromkeys(("model_dump", "dict", "json", "as_dict"), "to_dict()"),
    **dict.fromkeys(("latency", "seconds", "duration"), "latency_s"),
}


def shortened(text: str, longest: int) -> str:
    """Return the beginning of a long reply and its end, where the conclusion is."""
    return text if len(text) <= longest else f"{text[: longest // 2]} ... {text[-longest // 2 :]}"


@dataclass(frozen=True, slots=True, repr=False)
class Answer(Generic[T_co]):
    """The fused answer, generic in the type of its value. ``str()`` gives its text.

    Attributes:
        text: the answer: a closed question's choice, a structured answer's JSON, else one member's whole reply or the
            synthesised text.
        value: the answer alone: the choice as given, a number, an instance of the requested type, or JSON data valid
            against the schema; for tool calls, names and arguments as JSON; for all other kinds, the normal form.
        choice: index into the choices, None for a free-form question.
        candidates: what was scored: the choices, or one reply of each cluster of equal free-form answers (for tool
            calls, names and arguments as JSON).
        probabilities: the Fusion's posterior, aligned with ``candidates``, sums to 1.
        confidence: the estimated probability that the answer is right: its posterior, corrected for errors that members
            share and for answers that none gave (`focalroute.observe.calibration`). For a structured answer, that of
            its least certain closed field; for a synthesised one, that of the likeliest reply.
        shares: closed field of a structured answer (names joined by dots) -> the posterior of its value.
        cost: USD of all calls, None if any is unknown; 0 where it is ``cached``.
        cached: whether it is from the cache, with the id, receipt and replies of the first identical question.
        durable: whether the store has committed it. False: the store failed, or had not committed it by the deadline;
            feedback is possible only once it has.
        degraded: as on the receipt.
        replies: every member's reply, in the order of asking.
        tool_calls: the tools to call, in OpenAI's shape, as one member called them; empty where the answer is text.
    """

    id: str
    text: str
    value: T_co
    choice: int | None
    candidates: tuple[str, ...]
    probabilities: tuple[float, ...]
    confidence: float
    cost: Decimal | None
    receipt: Receipt
    replies: tuple[Reply, ...] = field(repr=False)
    durable: bool = True
    cached: bool = False
    metadata: Mapping[str, Any] | None = None
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    shares: Mapping[str, float] = field(default_factory=dict)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in _ELSEWHERE:
                raise AttributeError(f"an Answer has no {name!r}; use .{_ELSEWHERE[name]}", name=name, obj=self)
            return self.__getattribute__(name)

    def __str__(self) -> str:
        return self.text

    def __format__(self, form: str) -> str:
        return format(self.text, form)

    def __repr__(self) -> str:
        details = f"confidence={self.confidence:.2f}, cost={dollars(self.cost)}, calls={len(self.receipt.calls)}"
        details += ", cached" if self.cached else ""
        return f"Answer({shortened(self.text, _SHOWN)!r}, {details})"

    def _repr_html_(self) -> str:
        """The answer as HTML for a notebook: each endpoint's reply, its probability, cost and time."""
        return _html(self)

    @property
    def usage(self) -> Usage | None:
        """Tokens of all calls; None if no service reported any."""
        return self.receipt.usage

    @property
    def latency_s(self) -> float:
        """How long the whole ask took."""
        return self.receipt.latency_s

    def to_dict(self) -> dict[str, Any]:
        """The answer and its receipt as plain JSON values; money as decimal strings."""
        fields = {name: getattr(self, name) for name in _PLAIN}
        plain: dict[str, Any] = pydantic_core.to_jsonable_python(fields, fallback=str)
        return plain

    def to_json(self) -> str:
        """`to_dict` as one line of JSON."""
        return json.dumps(self.to_dict())

    @property
    def message(self) -> dict[str, Any]:
        """The answer as an assistant message, to continue the chat: append it, then the tools' results."""
        if not self.tool_calls:
            return {"role": "assistant", "content": self.text}
        caller = next((one for one in self.replies if one.tool_calls == self.tool_calls), None)
        thought = {}
        if caller is not None:
            thought = {"reasoning_content": caller.reasoning, "reasoning_details": [*caller.reasoning_details]}
        return {
            "role": "assistant",
            "content": self.text or None,
            "tool_calls": [dict(call) for call in self.tool_calls],
            **{name: value for name, value in thought.items() if value},
        }

    @property
    def degraded(self) -> tuple[str, ...]:
        """How the answer falls short of normal service, in words; empty if it does not."""
        return self.receipt.degraded

    @property
    def disputed(self) -> bool:
        """Whether members gave different answers; feedback on these teaches the most."""
        latest = {call.endpoint: call.candidate for call in self.receipt.calls if call.candidate is not None}
        return differ(latest.values())

    @property
    def made_of(self) -> tuple[str, ...]:
        """The members that gave the answer, or all whose replies it was assembled from."""
        written = self.receipt.synthesis is not None and self.receipt.synthesis.error is None
        shown = self.value if self.tool_calls else self.text
        backing = [call for call in self.receipt.calls if call.candidate is not None]
        if shown in self.candidates and not written:
            chosen = self.candidates.index(shown)
            backing = [call for call in backing if call.candidate == chosen]
        return tuple(call.endpoint for call in backing)


#: The columns of `Answers.rows`.
_COLUMNS = (
    "id", "text", "value", "confidence", "disputed", "cost_usd", "prompt_tokens", "completion_tokens", "latency_s",
    "rounds", "asked", "degraded",
)  # fmt: skip


class Answers(list[E]):
    """Answers in the order of the queries; a failed query has its exception instead. A slice has these methods, too."""

    @overload
    def __getitem__(self, index: SupportsIndex, /) -> E: ...

    @overload
    def __getitem__(self, index: slice, /) -> Answers[E]: ...

    def __getitem__(self, index: SupportsIndex | slice, /) -> E | Answers[E]:
        return Answers(super().__getitem__(index)) if isinstance(index, slice) else super().__getitem__(index)

    def rows(self) -> list[dict[str, Any]]:
        """Return a flat row for each query, failed ones included, for ``pandas.DataFrame(answers.rows())`` or polars.

        Costs are floats, in USD; unknown values, and those of a failed query, are None.
        """
        return [_row(index, one) for index, one in enumerate(self)]

    def to_jsonl(self, path: str | Path) -> None:
        """Write a line of JSON for each query: `Answer.to_dict`, or the error, with the query's ``index``."""
        with Path(path).open("w", encoding="utf-8") as file:
            for index, one in enumerate(self):
                record = one.to_dict() if isinstance(one, Answer) else {"error": error_text(one)}
                file.write(json.dumps({"index": index, **record}) + "\n")


def _row(index: int, answer: Answer | BaseException) -> dict[str, Any]:
    if not isinstance(answer, Answer):
        return {"index": index, **dict.fromkeys(_COLUMNS), "error": error_text(answer)}
    plain, usage = answer.to_dict(), answer.usage
    value = plain["value"]
    values = (
        answer.id,
        answer.text,
        json.dumps(value) if isinstance(value, dict | list) else value,
        answer.confidence,
        answer.disputed,
        None if answer.cost is None else float(answer.cost),
        None if usage is None else usage.prompt_tokens,
        None if usage is None else usage.completion_tokens,
        answer.latency_s,
        answer.receipt.rounds,
        ", ".join(call.endpoint for call in answer.receipt.calls),
        "; ".join(answer.degraded),
    )
    return {"index": index, **dict(zip(_COLUMNS, values, strict=True)), "error": None}


def error_text(error: BaseException) -> str:
    """Return an error's class and message as one text."""
    return f"{type(error).__name__}: {error}"


# -- in a notebook: a small table, without scripts or anything fetched -------------------------------------------------

_LONGEST = 100  # characters shown of a reply in HTML
_OUTER = "width:6em;background:#8883"
_INNER = "margin-left:{start:.0%};width:{share:.0%};height:.8em;background:{colour}"
_BAR = f'<div style="{_OUTER}"><div style="{_INNER}"></div></div>'
_HEADS = {"asked": 1, "said": 1, "probability": 2, "cost": 2, "time": 2}  # columns of each: a number has a bar, too
_HEAD = "".join(f'<th style="text-align:left" colspan="{span}">{head}</th>' for head, span in _HEADS.items())
_CELL = '<td style="text-align:left;white-space:{}">{}</td>'


def _html(answer: Answer) -> str:
    """Return a table of every call's reply, its probability, cost and time span, the most probable first."""
    calls = sorted(answer.receipt.all_calls, key=lambda call: _probability(answer, call), reverse=True)
    longest = max((call.ended_s or call.latency_s for call in calls), default=0.0)
    dearest = max((call.cost or 0 for call in calls), default=0)
    rows = [
        _html_row(
            escape(call.endpoint),
            escape(_said(answer, call)),
            _bar(_probability(answer, call), 1, "#4a8"),
            "" if call.candidate is None else f"{_probability(answer, call):.2f}",
            _bar(float(call.cost or 0), float(dearest), "#c84"),
            dollars(call.cost),
            _bar(call.latency_s, longest, "#68c", start=call.queued_s or 0.0),
            f"{call.latency_s:.2f} s",
        )
        for call in calls
    ]
    summary = f"confidence {answer.confidence:.2f}, {dollars(answer.cost)}, {answer.latency_s:.2f} s"
    notes = "".join(f"<p>{escape(one)}</p>" for one in answer.degraded)
    return (
        f'<div><p style="white-space:pre-wrap"><b>{escape(answer.text)}</b></p><p>{summary}</p>'
        f"<table><thead><tr>{_HEAD}</tr></thead><tbody>{''.join(rows)}</tbody></table>{notes}</div>"
    )


def _probability(answer: Answer, call: Call) -> float:
    return 0.0 if call.candidate is None else answer.probabilities[call.candidate]


def _said(answer: Answer, call: Call) -> str:
    if call.candidate is not None:
        return shortened(answer.candidates[call.candidate], _LONGEST)
    if call.error is not None:
        return f"failed: {call.error.kind}"
    return "wrote the answer" if call is answer.receipt.synthesis else "no answer"


def _bar(part: float, whole: float, colour: str, *, start: float = 0.0) -> str:
    shares = {"share": part / whole, "start": start / whole} if whole else {"share": 0, "start": 0}
    return _BAR.format(**shares, colour=colour)


def _html_row(endpoint: str, reply: str, *numbers: str) -> str:
    """Return a row of cells that are HTML already; only a reply's text may wrap."""
    rest = "".join(_CELL.format("nowrap", cell) for cell in numbers)
    return f"<tr>{_CELL.format('nowrap', endpoint)}{_CELL.format('normal', reply)}{rest}</tr>"
