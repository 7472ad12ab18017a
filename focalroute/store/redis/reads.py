"""What is read from a Redis store, and how it is kept bounded, over a connection that the store owns."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from focalroute.core.errors import StoreError
from focalroute.core.records import Feedback
from focalroute.store.base import (
    CapabilityRow,
    Grouping,
    HealthRow,
    LedgerSum,
    StoredAnswer,
    UsageTotal,
)
from focalroute.store.codec import from_pico
from focalroute.store.redis.connection import RedisConnection
from focalroute.store.redis.keys import ANSWERS, CAPABILITIES, HEALTH, LEDGER, POLICY, RESERVATIONS, TOTALS
from focalroute.store.redis.rows import AnswerHash, read_capabilities, read_health

#: Of a stream: its entries with their fields.
Entries = list[tuple[bytes, dict[bytes, bytes]]]

#: Set while somebody keeps an archive; until that has them, twice as many rows are kept.
ARCHIVED = "archived"

_LEDGER_ROWS_AN_ANSWER = 8  # kept for each answer that is kept
_AT_ONCE = 500

_log = logging.getLogger("focalroute.store")


def entries(reply: Sequence[Any]) -> Entries:
    """What a stream's command gave."""
    return [(entry, dict(zip(pairs[::2], pairs[1::2], strict=True))) for entry, pairs in reply]


def pairs(reply: Sequence[bytes]) -> dict[str, bytes]:
    """What a hash's command gave."""
    return {name.decode(): value for name, value in zip(reply[::2], reply[1::2], strict=True)}


def durability(link: RedisConnection) -> str:
    """When Redis writes a call to its disk: "always", "everysec", "no", "none": never; "" where it does not say."""
    try:
        found = pairs(link.one("CONFIG", "GET", "append*"))
    except StoreError:
        return ""
    return found.get("appendfsync", b"").decode() if found.get("appendonly") == b"yes" else "none"


# -- answers -------------------------------------------------------------------------------------------------------


def stored(link: RedisConnection, ids: Sequence[str]) -> list[AnswerHash]:
    """The hashes of these answers, empty ones of those that are not there."""
    found: list[AnswerHash] = []
    for start in range(0, len(ids), _AT_ONCE):
        commands = [("HGETALL", link.keys.answer(answer_id)) for answer_id in ids[start : start + _AT_ONCE]]
        found += [AnswerHash(reply) for reply in link.all(commands)]
    return found


def answer(link: RedisConnection, answer_id: str) -> StoredAnswer | None:
    """The answer with this id; StoreError if it is damaged."""
    (found,) = stored(link, [answer_id])
    return found.answer if found else None


def latest(link: RedisConnection, limit: int) -> list[str]:
    """The ids of the ``limit`` latest answers, oldest first."""
    found = entries(link.one("XREVRANGE", link.keys[ANSWERS], "+", "-", "COUNT", limit))[::-1]
    return [fields[b"id"].decode() for _, fields in found]


def judged(found: Sequence[AnswerHash]) -> Iterator[tuple[StoredAnswer, tuple[Feedback, ...]]]:
    """These answers with their feedback; a damaged one is no reason to learn nothing from the others."""
    for one in found:
        try:
            if one:
                yield one.answer, tuple(said for _, said in one.feedback())
        except StoreError as error:
            _log.warning("%s; it is left out", error)


# -- endpoints -----------------------------------------------------------------------------------------------------


def capabilities(link: RedisConnection, key: str) -> CapabilityRow | None:
    """The probe under this key; a damaged one counts as none, so that the endpoint is probed again."""
    text = link.one("HGET", link.keys[CAPABILITIES], key)
    try:
        return None if text is None else read_capabilities(key, text)
    except ValueError:
        return None


def health(link: RedisConnection) -> dict[str, HealthRow]:
    """What is known of the endpoints, by key; damaged rows are none."""
    found = {}
    for key, text in pairs(link.one("HGETALL", link.keys[HEALTH])).items():
        try:
            found[key] = read_health(key, text)
        except (ValueError, TypeError):
            continue
    return found


# -- the ledger ----------------------------------------------------------------------------------------------------


def totals(link: RedisConnection) -> dict[str, UsageTotal]:
    """The ledger summed by endpoint, dropped rows included."""
    sums: dict[str, dict[str, int]] = {}
    for name, value in pairs(link.one("HGETALL", link.keys[TOTALS])).items():
        endpoint, what = json.loads(name)
        sums.setdefault(endpoint, {})[what] = int(value)
    found = {}
    for endpoint, of in sorted(sums.items()):
        cost = from_pico(of.get("micro", 0) * 1_000_000 + of.get("pico", 0))
        tokens = of.get("prompt", 0), of.get("completion", 0)
        if of.get("calls"):
            found[endpoint] = UsageTotal(of["calls"], of.get("unpriced", 0), *tokens, cost)
    return found


@dataclass(slots=True)
class _Sum:
    asks: set[str] = field(default_factory=set)
    calls: int = 0
    unpriced: int = 0
    estimated: int = 0
    prompt: int = 0
    completion: int = 0
    pico: int = 0
    estimated_pico: int = 0
    held: int = 0

    def row(self, key: str) -> LedgerSum:
        money = (from_pico(pico) for pico in (self.pico, self.estimated_pico, self.held))
        counts = (self.calls, self.unpriced, self.estimated, self.prompt, self.completion)
        return LedgerSum(key, len(self.asks), *counts, *money)


def _bills(link: RedisConnection) -> Iterator[tuple[float, list[str], list[Any]]]:
    """The ledger's entries: the moment, the tags, and the row as it is kept."""
    after = b"-"
    while True:
        found = entries(link.one("XRANGE", link.keys[LEDGER], after, "+", "COUNT", 1000))
        for _, fields in found:
            yield float(fields[b"at"]), json.loads(fields[b"tags"]), json.loads(fields[b"row"])
        if not found:
            return
        after = b"(" + found[-1][0]


def ledger(link: RedisConnection, by: Grouping) -> list[LedgerSum]:
    """See `Store.ledger`."""
    sums: dict[str, _Sum] = {}

    def of(endpoint: str, at: float, tags: Sequence[str]) -> list[_Sum]:
        day = datetime.fromtimestamp(at, UTC).date().isoformat()
        keys = {"endpoint": [endpoint], "tag": dict.fromkeys(tags) or [""], "day": [day], "all": ["all"]}[by]
        return [sums.setdefault(key, _Sum()) for key in keys]

    for at, tags, (answer_id, endpoint, prompt, completion, *_, pico, source) in _bills(link):
        for one in of(endpoint, at, tags):
            if not answer_id.startswith(("probe", "judge")):
                one.asks.add(answer_id)
            one.calls += 1
            one.unpriced += pico is None
            one.prompt += prompt or 0
            one.completion += completion or 0
            one.pico += pico or 0
            if source == "reserved":
                one.estimated += 1
                one.estimated_pico += pico or 0
    for held in map(json.loads, link.one("HVALS", link.keys[RESERVATIONS])):
        endpoint = json.loads(held["row"])[1]
        for one in of(endpoint, float(held["at"]), json.loads(held["tags"])):
            one.held += int(held["micro"]) * 1_000_000 + int(held["pico"])
    if by == "endpoint":  # these are kept for ever
        for endpoint, total in totals(link).items():
            one = sums.setdefault(endpoint, _Sum())
            one.calls, one.unpriced, one.pico = total.calls, total.unpriced, int(total.cost * Decimal(10) ** 12)
            one.prompt, one.completion = total.prompt_tokens, total.completion_tokens
    return [one.row(key) for key, one in sorted(sums.items())]


# -- keeping it bounded -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """An entry of the ledger's stream; ``row`` as `focalroute.store.redis.rows` writes it."""

    entry: bytes
    at: float
    tags: Sequence[str]
    row: Sequence[Any]


def trim(link: RedisConnection, keep: int) -> None:
    """Drop what is beyond the latest ``keep`` answers and their share of the ledger; twice that, for an archive."""
    if link.one("HGET", link.keys[POLICY], ARCHIVED):
        keep *= 2
    while bills := _oldest(link, LEDGER, _LEDGER_ROWS_AN_ANSWER * keep):
        drop_bills(link, bills[-1][0], keep)
    while answers := _oldest(link, ANSWERS, keep):
        drop_answers(link, [(entry, fields[b"id"].decode()) for entry, fields in answers], keep)


def oldest_bills(link: RedisConnection, keep: int) -> list[LedgerEntry]:
    """Up to 500 of the oldest bills beyond those that go with ``keep`` answers."""
    found = _oldest(link, LEDGER, _LEDGER_ROWS_AN_ANSWER * keep)
    return [LedgerEntry(e, float(f[b"at"]), json.loads(f[b"tags"]), json.loads(f[b"row"])) for e, f in found]


def oldest_answers(link: RedisConnection, keep: int) -> list[tuple[bytes, str, AnswerHash]]:
    """Up to 500 of the oldest answers beyond ``keep``: the entry in the stream, the id and the hash."""
    found = _oldest(link, ANSWERS, keep)
    ids = [fields[b"id"].decode() for _, fields in found]
    return [(entry, name, one) for (entry, _), name, one in zip(found, ids, stored(link, ids), strict=True)]


def drop_bills(link: RedisConnection, last: bytes, keep: int) -> None:
    """Drop the ledger up to this entry."""
    link.script("trim", (), (last, 2 * keep))


def drop_answers(link: RedisConnection, rows: Sequence[tuple[bytes, str]], keep: int) -> None:
    """Drop answers, each given as its entry and its id."""
    keys = [link.keys.answer(answer_id) for _, answer_id in rows]
    link.script("trim", keys, ("", 2 * keep, *(entry for entry, _ in rows)))


def _oldest(link: RedisConnection, stream: str, keep: int) -> list[tuple[bytes, dict[bytes, bytes]]]:
    beyond = min(int(link.one("XLEN", link.keys[stream])) - keep, _AT_ONCE)
    return entries(link.one("XRANGE", link.keys[stream], "-", "+", "COUNT", beyond)) if beyond > 0 else []


# -- integrity -----------------------------------------------------------------------------------------------------


def problems(link: RedisConnection) -> tuple[str, ...]:
    """Everything that is wrong with what is kept, in words; reads all of it."""
    found: list[str] = []
    for check in (_damaged_answers, _wrong_balances):
        try:
            found.extend(check(link))
        except (ValueError, KeyError, TypeError, StoreError) as error:
            found.append(f"could not all be read ({type(error).__name__})")
    return tuple(found)


def _damaged_answers(link: RedisConnection) -> Iterator[str]:
    after = b"-"
    while True:
        found = entries(link.one("XRANGE", link.keys[ANSWERS], after, "+", "COUNT", _AT_ONCE))
        if not found:
            return
        after = b"(" + found[-1][0]
        ids = [fields[b"id"].decode() for _, fields in found]
        for (entry, _), name, one in zip(found, ids, stored(link, ids), strict=True):
            yield from _damage(entry, name, one)


def _damage(entry: bytes, name: str, one: AnswerHash) -> Iterator[str]:
    if not one or one.entry != entry:
        yield f"answer {name}: stands in the stream of answers but nowhere else"
        return
    try:
        json.loads(one.answer.receipt)
        json.loads(one.answer.texts or "null")
        one.feedback()
    except (StoreError, ValueError) as error:
        yield str(error) if isinstance(error, StoreError) else f"answer {name}: not JSON"


def _wrong_balances(link: RedisConnection) -> Iterator[str]:
    dropped = link.one("HGET", link.keys[POLICY], "ledger_dropped") or b""
    wrong = [word.decode() for word in link.script("verify", (), (dropped,))]
    for account, kept, true in zip(wrong[::3], wrong[1::3], wrong[2::3], strict=True):
        yield f"the balance of the account {account!r} is {kept}, its rows add up to {true}"
