"""Reads from a Redis store, and drops its oldest rows."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from focalroute.core.errors import StoreError
from focalroute.core.records import Feedback
from focalroute.store.accounts import Account, from_pico
from focalroute.store.base import (
    JUDGE,
    PROBE,
    BalanceDifference,
    CapabilityRow,
    FeedbackRows,
    Grouping,
    HealthRow,
    LedgerSum,
    StoredAnswer,
)
from focalroute.store.engine import LEDGER_ROWS_AN_ANSWER, difference_of, unless_damaged, with_totals
from focalroute.store.redis.connection import KeyName, RedisConnection
from focalroute.store.redis.rows import AnswerHash, entry_order, read_capabilities, read_health, read_state

# Fields of the policy's hash:
#: Set while a learner keeps an archive: then twice as many rows stay in Redis, until they are archived.
ARCHIVED = "archived"
#: Set once the asks of all rows of the ledger are counted.
_COUNTED = "asks_counted"
#: How many of the latest answers to keep, from the last address with this setting.
_KEEP = "keep"
_KEPT = 100_000  # without it

#: Runs one command.
Command = Callable[..., Any]
#: Entries of a stream: (id, fields).
Entries = list[tuple[bytes, dict[bytes, bytes]]]

_AT_ONCE = 500
_MOST_NEW = 1000  # entries of a stream delivered at a time; older ones are dropped

_FEEDBACK_STREAMS: tuple[KeyName, KeyName] = ("feedback", "probed")
_Position = tuple[bytes, bytes]  # the newest entries of the streams of feedback and of probed answers


def entries(reply: Sequence[Any]) -> Entries:
    """Parse the reply to a stream command."""
    return [(entry, dict(zip(pairs[::2], pairs[1::2], strict=True))) for entry, pairs in reply]


def pairs(reply: Sequence[bytes]) -> dict[str, bytes]:
    """Parse the reply to a hash command."""
    return {name.decode(): value for name, value in zip(reply[::2], reply[1::2], strict=True)}


def _every_entry(command: Command, stream: str) -> Iterator[Entries]:
    """Yield all entries of a stream, a part at a time."""
    after = b"-"
    while found := entries(command("XRANGE", stream, after, "+", "COUNT", _AT_ONCE)):
        yield found
        after = b"(" + found[-1][0]


def find_durability(connection: RedisConnection) -> str:
    """When Redis syncs calls to disk: "always", "everysec", "no" (the system decides), "none"; "": it does not say."""
    found = _settings(connection, "append*")
    if found is None:
        return ""
    return found.get("appendfsync", b"").decode() if found.get("appendonly") == b"yes" else "none"


def may_evict(connection: RedisConnection) -> bool:
    """Whether Redis may drop keys, such as a balance, when its memory is full; False if it does not say."""
    found = _settings(connection, "maxmemory*") or {}
    return found.get("maxmemory-policy", b"").startswith(b"allkeys") and found.get("maxmemory") != b"0"


def _settings(connection: RedisConnection, pattern: str) -> dict[str, bytes] | None:
    try:
        return pairs(connection.command("CONFIG", "GET", pattern))
    except StoreError:
        return None


# -- answers -------------------------------------------------------------------------------------------------------


def answer_hashes(connection: RedisConnection, ids: Sequence[str]) -> list[AnswerHash]:
    """The hashes of these answers; empty for a missing answer."""
    found: list[AnswerHash] = []
    for start in range(0, len(ids), _AT_ONCE):
        commands = [("HGETALL", connection.keys.answer(answer_id)) for answer_id in ids[start : start + _AT_ONCE]]
        for reply in connection.run(commands):
            if isinstance(reply, Exception):
                raise connection.error_of(reply)
            found.append(AnswerHash(reply))
    return found


def find_answer(connection: RedisConnection, answer_id: str) -> StoredAnswer | None:
    """See `EngineReads`."""
    (found,) = answer_hashes(connection, [answer_id])
    return found.answer if found else None


def latest_ids(connection: RedisConnection, limit: int) -> list[str]:
    """The ids of the ``limit`` latest answers, oldest first."""
    found = entries(connection.command("XREVRANGE", connection.keys["answers"], "+", "-", "COUNT", limit))[::-1]
    return [_id_of(fields) for _, fields in found]


def _ids_of(found: Entries) -> list[str]:
    """The ids of the answers these entries are about, each once."""
    return list(dict.fromkeys(_id_of(fields) for _, fields in found))


def _id_of(fields: Mapping[bytes, bytes]) -> str:
    """The id of the answer that a stream's entry is about; "" if the entry has none."""
    return fields.get(b"id", b"").decode(errors="replace")


def answers_with_feedback(
    connection: RedisConnection, ids: Sequence[str]
) -> list[tuple[StoredAnswer, list[tuple[bytes, Feedback]]]]:
    """These answers with their feedback, each with its stream entry; missing and damaged answers are left out."""
    return [
        pair
        for found in answer_hashes(connection, ids)
        if found
        for pair in unless_damaged(partial(_with_feedback, found))
    ]


def _with_feedback(found: AnswerHash) -> tuple[StoredAnswer, list[tuple[bytes, Feedback]]]:
    return found.answer, found.feedback()


# -- feedback ------------------------------------------------------------------------------------------------------


def newest(connection: RedisConnection) -> _Position:
    """See `EngineReads`."""
    feedback, probed = (
        entries(connection.command("XREVRANGE", connection.keys[name], "+", "-", "COUNT", 1))
        for name in _FEEDBACK_STREAMS
    )
    return _last(feedback, b"0-0"), _last(probed, b"0-0")


def _last(found: Entries, otherwise: bytes) -> bytes:
    return found[-1][0] if found else otherwise


def latest_feedback(connection: RedisConnection, last: int, position: _Position) -> FeedbackRows:
    """See `EngineReads`."""
    answers: dict[str, None] = {}
    before = position[0]
    while len(answers) < last:
        words = (connection.keys["feedback"], before, "-", "COUNT", last - len(answers))
        found = entries(connection.command("XREVRANGE", *words))
        if not found:
            break
        answers.update(dict.fromkeys(_ids_of(found)))
        before = b"(" + found[-1][0]
    return _up_to(connection, list(answers), position[0])


def feedback_after(connection: RedisConnection, position: _Position) -> tuple[FeedbackRows, _Position]:
    """See `EngineReads`; reads at most the 1,000 newest entries of each stream."""
    commands = [
        ("XREVRANGE", connection.keys[stream], "+", b"(" + entry, "COUNT", _MOST_NEW)
        for stream, entry in zip(_FEEDBACK_STREAMS, position, strict=True)
    ]
    feedback, probed = (entries(reply)[::-1] for reply in connection.run(commands))
    rows = [*_up_to(connection, _ids_of(probed), position[0]), *_with_answers(connection, feedback)]
    return rows, (_last(feedback, position[0]), _last(probed, position[1]))


def _with_answers(connection: RedisConnection, feedback: Entries) -> FeedbackRows:
    """The feedback of these entries with its answers; feedback whose answer is gone is left out."""
    answers = answers_with_feedback(connection, _ids_of(feedback))
    found = {entry: (answer, one) for answer, given in answers for entry, one in given}
    return [found[entry] for entry, _ in feedback if entry in found]


def _up_to(connection: RedisConnection, ids: Sequence[str], newest: bytes) -> FeedbackRows:
    """All feedback on these answers up to an entry, in the order in which it was committed."""
    found = [
        (entry_order(entry), answer, one)
        for answer, given in answers_with_feedback(connection, ids)
        for entry, one in given
    ]
    found.sort(key=lambda row: row[0])
    return [(answer, one) for order, answer, one in found if order <= entry_order(newest)]


# -- endpoints -----------------------------------------------------------------------------------------------------


def find_capabilities(connection: RedisConnection, key: str) -> CapabilityRow | None:
    """See `EngineReads`."""
    text = connection.command("HGET", connection.keys["capabilities"], key)
    try:
        return None if text is None else read_capabilities(key, text)
    except ValueError:
        return None


def find_health(connection: RedisConnection) -> dict[str, HealthRow]:
    """See `EngineReads`."""
    found = {}
    for key, text in pairs(connection.command("HGETALL", connection.keys["health"])).items():
        try:
            found[key] = read_health(key, text)
        except (ValueError, TypeError):
            continue
    return found


# -- the ledger ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """An entry of the ledger's stream; ``row`` is encoded by `focalroute.store.redis.rows`."""

    entry: bytes
    at: float
    tags: Sequence[str]
    row: Sequence[Any]

    @classmethod
    def of(cls, entry: bytes, fields: dict[bytes, bytes]) -> LedgerEntry:
        """Decode an entry's fields."""
        return cls(entry, float(fields[b"at"]), json.loads(fields[b"tags"]), json.loads(fields[b"row"]))


def ledger_sums(connection: RedisConnection, by: Grouping, command: Command | None = None) -> list[LedgerSum]:
    """See `EngineReads`; ``command`` runs the commands instead of the connection, so that other jobs run in between."""
    command, keys = command or connection.command, connection.keys
    asks: defaultdict[str, set[str]] = defaultdict(set)
    sums: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def add(endpoint: str, at: float, tags: Sequence[str], ask: str | None, **numbers: int) -> None:
        day = datetime.fromtimestamp(at, UTC).date().isoformat()
        for key in {"endpoint": [endpoint], "tag": dict.fromkeys(tags) or [""], "day": [day], "all": ["all"]}[by]:
            sums[key].update(numbers)
            if ask is not None:
                asks[key].add(ask)

    for part in _every_entry(command, keys["ledger"]):
        for one in (LedgerEntry.of(*found) for found in part):
            answer_id, endpoint, prompt, completion, *_, pico, source = one.row
            ask = None if answer_id.startswith((PROBE, JUDGE)) else answer_id
            numbers = {"calls": 1, "unpriced": int(pico is None), "prompt": prompt or 0, "completion": completion or 0}
            numbers["pico"] = pico or 0
            if source == "reserved":
                numbers |= {"estimated": 1, "estimated_pico": pico or 0}
            add(endpoint, one.at, one.tags, ask, **numbers)
    for held in map(json.loads, command("HVALS", keys["reservations"])):
        pico = int(held["micro"]) * 1_000_000 + int(held["pico"])
        add(json.loads(held["row"])[1], float(held["at"]), json.loads(held["tags"]), None, held=pico)
    found = [_ledger_sum(key, len(asks[key]), sums[key]) for key in sorted(sums)]
    return with_totals(found, totals(connection, command)) if by == "endpoint" else found


def totals(connection: RedisConnection, command: Command | None = None) -> dict[str, LedgerSum]:
    """See `EngineReads`; ``command``: as in `ledger_sums`."""
    sums: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for name, value in pairs((command or connection.command)("HGETALL", connection.keys["totals"])).items():
        endpoint, field = json.loads(name)
        sums[endpoint][field] = int(value)
    for total in sums.values():
        total["pico"] += total["micro"] * 1_000_000
    found = [_ledger_sum(name, total["asks"], total) for name, total in sorted(sums.items())]
    return {row.key: row for row in found if row.calls or row.asks}


def _ledger_sum(key: str, asks: int, total: Counter[str]) -> LedgerSum:
    return LedgerSum(
        key,
        asks,
        calls=total["calls"],
        unpriced=total["unpriced"],
        estimated=total["estimated"],
        prompt_tokens=total["prompt"],
        completion_tokens=total["completion"],
        cost=from_pico(total["pico"]),
        estimated_cost=from_pico(total["estimated_pico"]),
        held=from_pico(total["held"]),
    )


# -- dropping old rows --------------------------------------------------------------------------------------------


def count_asks(connection: RedisConnection) -> None:
    """Count the asks of a ledger that an earlier version wrote. Several processes may do so at once."""
    if not connection.command("HGET", connection.keys["policy"], _COUNTED):
        after = b"-"
        while after:
            after = connection.script("count", (), (after,))
        connection.command("HSET", connection.keys["policy"], _COUNTED, 1)


def kept_answers(connection: RedisConnection) -> int:
    """How many of the latest answers stay in Redis."""
    return int(connection.command("HGET", connection.keys["policy"], _KEEP) or _KEPT)


def trim(connection: RedisConnection, new_keep: int | None) -> None:
    """Drop all but the latest answers and their share of the ledger; with an archive twice as many stay.

    Args:
        new_keep: how many answers stay from now on; None: as many as before.
    """
    keep = kept_answers(connection) if new_keep is None else new_keep
    if connection.command("HGET", connection.keys["policy"], ARCHIVED):
        keep *= 2
    while rows := _oldest(connection, "ledger", LEDGER_ROWS_AN_ANSWER * keep):
        drop_ledger(connection, rows[-1][0], keep)
    while answers := _oldest(connection, "answers", keep):
        drop_answers(connection, [(entry, _id_of(fields)) for entry, fields in answers], keep)
    if new_keep is not None:
        connection.command("HSET", connection.keys["policy"], _KEEP, new_keep)  # last, as a full Redis refuses it


def oldest_ledger(connection: RedisConnection, keep: int) -> list[LedgerEntry]:
    """Up to 500 of the oldest ledger rows, without those that stay with the latest ``keep`` answers."""
    return [LedgerEntry.of(*found) for found in _oldest(connection, "ledger", LEDGER_ROWS_AN_ANSWER * keep)]


def oldest_answers(connection: RedisConnection, keep: int) -> list[tuple[bytes, str, AnswerHash]]:
    """Up to 500 of the oldest answers, without the latest ``keep``: the stream entry, id and hash of each."""
    found = _oldest(connection, "answers", keep)
    ids = [_id_of(fields) for _, fields in found]
    return [
        (entry, name, one) for (entry, _), name, one in zip(found, ids, answer_hashes(connection, ids), strict=True)
    ]


def drop_ledger(connection: RedisConnection, last: bytes, keep: int) -> None:
    """Drop the ledger's rows up to this entry."""
    connection.script("trim", (), (last, 2 * keep))


def drop_answers(connection: RedisConnection, rows: Sequence[tuple[bytes, str]], keep: int) -> None:
    """Drop answers, each given by its stream entry and id."""
    keys = [connection.keys.answer(answer_id) for _, answer_id in rows]
    connection.script("trim", keys, ("", 2 * keep, *(entry for entry, _ in rows)))


def _oldest(connection: RedisConnection, stream: KeyName, keep: int) -> Entries:
    beyond = min(int(connection.command("XLEN", connection.keys[stream])) - keep, _AT_ONCE)
    if beyond <= 0:
        return []
    return entries(connection.command("XRANGE", connection.keys[stream], "-", "+", "COUNT", beyond))


# -- integrity -----------------------------------------------------------------------------------------------------


def find_problems(connection: RedisConnection) -> tuple[str, ...]:
    """See `EngineReads`."""
    found: list[str] = []
    for check in (_damaged_answers, partial(reconcile, repair=False)):
        try:
            found.extend(map(str, check(connection)))
        except (ValueError, KeyError, TypeError, StoreError) as error:
            found.append(f"could not be read in full ({type(error).__name__})")
    return tuple(found)


def _damaged_answers(connection: RedisConnection) -> Iterator[str]:
    for part in _every_entry(connection.command, connection.keys["answers"]):
        ids = [_id_of(fields) for _, fields in part]
        for (entry, _), answer_id, found in zip(part, ids, answer_hashes(connection, ids), strict=True):
            yield from _damage(entry, answer_id, found)


def _damage(entry: bytes, answer_id: str, found: AnswerHash) -> Iterator[str]:
    if not found or found.entry != entry:
        yield f"answer {answer_id}: is in the stream of answers but nowhere else"
        return
    try:
        json.loads(found.answer.receipt)
        json.loads(found.answer.texts or "null")
        found.feedback()
    except StoreError as error:
        yield str(error)
    except ValueError:
        yield f"answer {answer_id}: not JSON"


def reconcile(connection: RedisConnection, *, repair: bool) -> list[BalanceDifference]:
    """See `Store.reconcile`."""
    dropped = connection.command("HGET", connection.keys["policy"], "ledger_dropped") or b""
    words = connection.script("verify", (), (dropped, "1" if repair else "0"))
    found = []
    for name, kept, true in zip(words[::3], words[1::3], words[2::3], strict=True):
        period_s, tag = name.decode().split(" ", 1)
        summed = read_state(true)
        if summed is None:
            raise StoreError("an amount in the ledger, or of a reservation, is damaged; restore a copy")
        found.append(difference_of(Account(tag, int(period_s)), read_state(kept), summed))
    return found
