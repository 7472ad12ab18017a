"""What ``focalroute ledger`` prints: the store's ledger, added up."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, fields
from decimal import Decimal
from typing import Literal

from focalroute.store.base import LedgerSum

__all__ = ["show_spending"]

_HEADS = ("asks", "calls", "tokens in", "tokens out", "USD", "estimated", "held")
_NAMES = [field.name for field in fields(LedgerSum)]


def show_spending(sums: Sequence[LedgerSum], by: str, form: Literal["text", "csv", "json"]) -> str:
    """The sums as a table, as CSV, or as a JSON list; USD exact as it is kept."""
    rows = [dict(zip((by, *_NAMES[1:]), _plain(one), strict=True)) for one in sums]
    if form == "json":
        return json.dumps(rows, indent=2)
    if form == "csv":
        written = io.StringIO()
        writer = csv.writer(written, lineterminator="\n")
        writer.writerow((by, *_NAMES[1:]))
        writer.writerows(row.values() for row in rows)
        return written.getvalue().rstrip("\n")
    return "\n".join(_table(sums, by))


def _plain(one: LedgerSum) -> Iterator[str | int]:
    for value in astuple(one):
        yield f"{value:f}" if isinstance(value, Decimal) else value


def _table(sums: Sequence[LedgerSum], by: str) -> Iterator[str]:
    yield _line(by, _HEADS)
    for one in sums:
        usd = (f"{amount:.6f}" for amount in (one.cost, one.estimated_cost, one.held))
        yield _line(one.key or "(none)", (one.asks, one.calls, one.prompt_tokens, one.completion_tokens, *usd))
    unpriced = sum(one.unpriced for one in sums)
    if unpriced:
        yield f"{unpriced} calls of unknown cost are not in these sums"


def _line(key: str, cells: Iterable[object]) -> str:
    return f"{key:28} " + " ".join(f"{cell:>12}" for cell in cells)
