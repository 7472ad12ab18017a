"""Keeping a Redis store bounded: the oldest rows are dropped, or go into an archive first."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from focalroute.store.redis.connection import Link
from focalroute.store.redis.keys import ANSWERS, LEDGER, POLICY
from focalroute.store.redis.reads import entries, stored
from focalroute.store.redis.rows import Stored

#: Set while somebody keeps an archive; until that has them, twice as many rows are kept.
ARCHIVED = "archived"

_LEDGER_ROWS_AN_ANSWER = 8  # kept for each answer that is kept
_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Bill:
    """An entry of the ledger's stream; ``row`` as `focalroute.store.redis.rows` writes it."""

    entry: bytes
    at: float
    tags: Sequence[str]
    row: Sequence[Any]


def trim(link: Link, keep: int) -> None:
    """Drop what is beyond the latest ``keep`` answers and their share of the ledger; twice that, for an archive."""
    if link.one("HGET", link.keys[POLICY], ARCHIVED):
        keep *= 2
    while bills := _oldest(link, LEDGER, _LEDGER_ROWS_AN_ANSWER * keep):
        drop_bills(link, bills[-1][0], keep)
    while answers := _oldest(link, ANSWERS, keep):
        drop_answers(link, [(entry, fields[b"id"].decode()) for entry, fields in answers], keep)


def oldest_bills(link: Link, keep: int) -> list[Bill]:
    """Up to 500 of the oldest bills beyond those that go with ``keep`` answers."""
    found = _oldest(link, LEDGER, _LEDGER_ROWS_AN_ANSWER * keep)
    return [Bill(e, float(f[b"at"]), json.loads(f[b"tags"]), json.loads(f[b"row"])) for e, f in found]


def oldest_answers(link: Link, keep: int) -> list[tuple[bytes, str, Stored]]:
    """Up to 500 of the oldest answers beyond ``keep``: the entry in the stream, the id and the hash."""
    found = _oldest(link, ANSWERS, keep)
    ids = [fields[b"id"].decode() for _, fields in found]
    return [(entry, name, one) for (entry, _), name, one in zip(found, ids, stored(link, ids), strict=True)]


def drop_bills(link: Link, last: bytes, keep: int) -> None:
    """Drop the ledger up to this entry."""
    link.script("trim", (), (last, 2 * keep))


def drop_answers(link: Link, rows: Sequence[tuple[bytes, str]], keep: int) -> None:
    """Drop answers, each given as its entry and its id."""
    keys = [link.keys.answer(answer_id) for _, answer_id in rows]
    link.script("trim", keys, ("", 2 * keep, *(entry for entry, _ in rows)))


def _oldest(link: Link, stream: str, keep: int) -> list[tuple[bytes, dict[bytes, bytes]]]:
    beyond = min(int(link.one("XLEN", link.keys[stream])) - keep, _AT_ONCE)
    return entries(link.one("XRANGE", link.keys[stream], "-", "+", "COUNT", beyond)) if beyond > 0 else []
