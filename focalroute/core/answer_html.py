"""Shows an answer in a notebook as a small table, without scripts or anything fetched."""

from __future__ import annotations

from html import escape

from focalroute.core.dollars import dollars
from focalroute.core.receipts import Answer, Call, shortened

_LONGEST = 100  # characters shown of a reply
_OUTER = "width:6em;background:#8883"
_INNER = "margin-left:{start:.0%};width:{share:.0%};height:.8em;background:{colour}"
_BAR = f'<div style="{_OUTER}"><div style="{_INNER}"></div></div>'
_HEADS = ("asked", "said", "probability", "cost", "time")
_HEAD = "".join(f'<th style="text-align:left" colspan="{1 + (i > 1)}">{head}</th>' for i, head in enumerate(_HEADS))

_CELL = '<td style="text-align:left;white-space:{}">{}</td>'


def answer_html(answer: Answer) -> str:
    """Return a table of every call's reply, its probability, cost and time span, the most probable first."""
    calls = sorted(answer.receipt.calls, key=lambda call: _probability(answer, call), reverse=True)
    longest = max((_start(call) + call.latency_s for call in calls), default=0.0)
    dearest = max((call.cost or 0 for call in calls), default=0)
    rows = [
        _row(
            escape(call.endpoint),
            escape(_said(answer, call)),
            _bar(_probability(answer, call), 1, "#4a8"),
            "" if call.candidate is None else f"{_probability(answer, call):.2f}",
            _bar(float(call.cost or 0), float(dearest), "#c84"),
            dollars(call.cost),
            _bar(call.latency_s, longest, "#68c", start=_start(call)),
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
    if call.candidate is None:
        return "no answer" if call.error is None else f"failed: {call.error.kind}"
    return shortened(answer.candidates[call.candidate], _LONGEST)


def _start(call: Call) -> float:
    return call.queued_s or 0.0


def _bar(part: float, whole: float, colour: str, *, start: float = 0.0) -> str:
    shares = {"share": part / whole, "start": start / whole} if whole else {"share": 0, "start": 0}
    return _BAR.format(**shares, colour=colour)


def _row(endpoint: str, reply: str, *numbers: str) -> str:
    """Return a row of cells that are HTML already; only a reply's text may wrap."""
    rest = "".join(_CELL.format("nowrap", cell) for cell in numbers)
    return f"<tr>{_CELL.format('nowrap', endpoint)}{_CELL.format('normal', reply)}{rest}</tr>"
