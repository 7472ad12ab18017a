"""Rows to what the scripts take and back. Every number that has to come back exactly is text on the way."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from focalroute.core.errors import FeedbackConflict, FocalrouteError, StoreError, UnknownAnswer
from focalroute.core.records import Feedback
from focalroute.store.base import (
    Account,
    Balance,
    CapabilityRow,
    HealthRow,
    LedgerRow,
    Release,
    Reservation,
    ReservationResult,
    Row,
    StoredAnswer,
    StoredProbe,
)
from focalroute.store.codec import from_pico, pack, pico_above, read_answer, to_pico, write_answer, write_probe
from focalroute.store.redis.keys import FIXED, Keys

_GRACE_S = 60.0  # between the end of a call and its settlement in the store, at most
_LARGEST = 2**63 - 1  # what Redis adds up


# -- in ------------------------------------------------------------------------------------------------------------


def packed(rows: Sequence[Row], keys: Keys) -> tuple[list[str], list[bytes]]:
    """The keys of the answers that rows are about, and the rows as arguments of ``write.lua``.

    Raises:
        StoreError: a row cannot be stored; the message holds nothing of it.
    """
    places: dict[str, int] = {}

    def place(answer_id: str) -> str:
        return str(places.setdefault(answer_id, len(FIXED) + 1 + len(places)))

    words: list[bytes] = []
    try:
        for row in rows:
            kind, *fields = _fields(row, place)
            words += [_bytes(kind), _bytes(str(len(fields))), *map(_bytes, fields)]
        return [keys.answer(answer_id) for answer_id in places], words
    except StoreError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever is wrong with the values
        reason = type(error).__name__
    raise StoreError(f"a row cannot be stored ({reason})")


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


def _fields(row: Row, place: Any) -> list[str | bytes]:
    if isinstance(row, StoredAnswer):
        steps = b"" if row.trajectory is None else pack(row.trajectory)
        record = write_answer(row)
        return ["answer", place(row.id), row.id, repr(row.created_at), record, steps, row.receipt, row.texts or ""]
    if isinstance(row, Feedback):
        verdict = json.dumps([float(row.reward), row.label], allow_nan=False)
        return ["feedback", place(row.answer_id), row.answer_id, row.source, verdict, repr(row.created_at)]
    if isinstance(row, StoredProbe):
        return ["probe", place(row.answer_id), row.answer_id, row.endpoint, write_probe(row)]
    if isinstance(row, LedgerRow):
        return _bill(row)
    if isinstance(row, Release):
        held = row.reservation
        return ["release", held.id, held.endpoint, json.dumps(held.tags), repr(row.at), *split(_held(held))]
    if isinstance(row, CapabilityRow):
        return ["capabilities", row.key, repr(row.probed_at), json.dumps(dict(row.values))]
    return ["health", row.key, repr(row.changed_at), json.dumps([row.open_until, row.ejections])]


def _bill(row: LedgerRow) -> list[str | bytes]:
    used: tuple[int | None, ...] = (None,) * 5
    if row.usage is not None:
        tokens = (row.usage.prompt_tokens, row.usage.completion_tokens)
        used = (*tokens, row.usage.cached_tokens, row.usage.reasoning_tokens, to_pico(row.usage.cost_usd))
    cost = to_pico(row.cost)
    if any(number is not None and not 0 <= number <= _LARGEST for number in (*used, cost)):
        raise StoreError("a row cannot be stored (a number is too large)")
    if not math.isfinite(row.at):
        raise StoreError("a row cannot be stored (no moment)")
    amounts = ("", "") if cost is None else split(cost)
    text = json.dumps([row.answer_id, row.endpoint, *used, cost, row.cost_source])
    held = row.reservation
    ended: tuple[str, ...] = ("", "0", "0") if held is None else (held.id, *split(_held(held)))
    tokens_text = (str(used[0] or 0), str(used[1] or 0))
    return ["bill", row.endpoint, repr(row.at), *amounts, *tokens_text, json.dumps(row.tags), text, *ended]


def _held(reservation: Reservation) -> int:
    return pico_above(reservation.amount)


def split(pico: int) -> tuple[str, str]:
    """An amount as whole microdollars and what is left, 0 to 999,999 picodollars."""
    micro, rest = divmod(pico, 1_000_000)
    return str(micro), str(rest)


def reservation_words(reservation: Reservation, limits: Mapping[Account, Decimal]) -> list[str]:
    """A reservation as the arguments of ``reserve.lua``; it stands in the ledger as ``row`` if its process dies."""
    amount = _held(reservation)
    row = [reservation.answer_id, reservation.endpoint, *(None,) * 5, amount, "reserved"]
    words = [reservation.id, *split(amount), repr(reservation.timeout_s + _GRACE_S)]
    words += [json.dumps(reservation.tags), json.dumps(row)]
    for account, limit in limits.items():
        words += [account.tag, str(account.period_s), *split(-pico_above(-limit))]
    return words


# -- out -----------------------------------------------------------------------------------------------------------


def refusal(reply: Sequence[bytes]) -> FocalrouteError | None:
    """Why ``write.lua`` wrote nothing; None: it did."""
    code, *about = (word.decode() for word in reply)
    if code == "unknown":
        return UnknownAnswer(
            f"the store has no answer with id {about[0]!r}; give feedback through the store it was asked with"
        )
    if code == "conflict":
        return FeedbackConflict(
            f"answer {about[0]!r} already has a different feedback from source {about[1]!r}; "
            "it stands: use another source to add to it"
        )
    if code == "duplicate":
        return StoreError(f"an answer with id {about[0]!r} is stored already; ids must be unique")
    if code == "probe":
        return StoreError("a row cannot be stored (a probe of no answer, or a second one)")
    return None


def read_grant(reply: Sequence[Any], limits: Sequence[Account]) -> ReservationResult:
    """What became of a reservation."""
    return ReservationResult(reply[0] == 1, float(reply[1]), read_balances(reply[2:], limits))


def read_balances(reply: Sequence[bytes], accounts: Sequence[Account]) -> dict[Account, Balance]:
    """Balances, each as the script shows it."""
    return {account: _balance(account, text) for account, text in zip(accounts, reply, strict=True)}


def _balance(account: Account, text: bytes) -> Balance:
    period, *amounts = map(int, text.split())
    spent, reserved = (amounts[i] * 1_000_000 + amounts[i + 1] for i in (0, 2))
    resets_at = float((period + 1) * account.period_s) if account.period_s else None
    return Balance(from_pico(spent), from_pico(reserved), resets_at)


def read_capabilities(key: str, text: bytes) -> CapabilityRow:
    """What was kept under this key; ValueError if it is damaged."""
    at, _, values = text.partition(b"\n")
    return CapabilityRow(key, float(at), json.loads(values))


def read_health(key: str, text: bytes) -> HealthRow:
    """Likewise."""
    at, _, values = text.partition(b"\n")
    open_until, ejections = json.loads(values)
    return HealthRow(key, None if open_until is None else float(open_until), int(ejections), float(at))


class AnswerHash:
    """An answer's hash: the answer, and what was said of it.

    Args:
        pairs: fields and values in turn.
    """

    def __init__(self, pairs: Sequence[bytes]) -> None:
        self._fields = dict(zip(pairs[::2], pairs[1::2], strict=True))

    def __bool__(self) -> bool:
        return bool(self._fields)

    @property
    def answer(self) -> StoredAnswer:
        """The answer; StoreError if it is damaged."""
        kept = self._fields
        try:
            text = {name: kept[name.encode()].decode() for name in ("id", "created_at", "record", "receipt")}
            texts = kept.get(b"texts")
            probes = [value.decode() for name, value in sorted(kept.items()) if name.startswith(b"probe:")]
        except (KeyError, UnicodeDecodeError) as error:
            raise StoreError(f"an answer is damaged ({type(error).__name__})") from None
        row = (text["id"], float(text["created_at"]), text["record"], kept.get(b"trajectory"), text["receipt"])
        return read_answer((*row, None if texts is None else texts.decode()), f"[{','.join(probes)}]")

    @property
    def entry(self) -> bytes:
        """Its place in the stream of answers."""
        return self._fields[b"entry"]

    def feedback(self) -> list[tuple[bytes, Feedback]]:
        """What was said of it, each with its place in the stream of feedback, in that order."""
        answer_id = self._fields[b"id"].decode()
        found = []
        for name, value in self._fields.items():
            if name.startswith(b"said:"):
                entry, at, verdict = value.split(b"\n", 2)
                reward, label = json.loads(verdict)
                found.append((entry, Feedback(answer_id, reward, label, name[5:].decode(), float(at))))
        return sorted(found, key=lambda one: place(one[0]))


def place(entry: bytes) -> tuple[int, int]:
    """An entry of a stream as what entries are ordered by."""
    milliseconds, _, number = entry.partition(b"-")
    return int(milliseconds), int(number)
