"""Encodes rows as arguments of the Lua scripts, and decodes replies. Numbers that must be exact are sent as text."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

from focalroute.core.errors import FocalrouteError, StoreError
from focalroute.core.records import Feedback
from focalroute.store.accounts import GRACE_S, Account, AccountState, Balance, pico_above, pico_below, to_pico
from focalroute.store.base import (
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
from focalroute.store.codec import pack, read_answer, write_answer, write_probe, write_tags
from focalroute.store.engine import duplicate_answer, source_name, unknown_answer
from focalroute.store.redis.connection import FIXED, Keys

_LARGEST = 2**63 - 1  # Redis adds 64-bit integers


# -- encoding ------------------------------------------------------------------------------------------------------


def pack_rows(rows: Sequence[Row], keys: Keys) -> tuple[list[str], list[bytes]]:
    """The keys of the answers that these rows concern, and the rows as arguments of ``write.lua``.

    Raises:
        StoreError: a row cannot be stored; the message does not quote it.
    """
    positions: dict[str, int] = {}

    def position(answer_id: str) -> str:
        return str(positions.setdefault(answer_id, len(FIXED) + 1 + len(positions)))

    words: list[bytes] = []
    try:
        for row in rows:
            kind, *fields = (_to_bytes(field) for field in _fields(row, position))
            words += [kind, str(len(fields)).encode(), *fields]
        return [keys.answer(answer_id) for answer_id in positions], words
    except StoreError:
        raise
    except Exception as error:  # noqa: BLE001 - bad values may raise anything
        reason = type(error).__name__
    raise StoreError(f"a row cannot be stored ({reason})")


def _to_bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


def _fields(row: Row, position: Callable[[str], str]) -> list[str | bytes]:
    """The row's kind and fields; ``position`` returns the index of an answer's key among the script's keys."""
    if isinstance(row, StoredAnswer):
        steps = b"" if row.trajectory is None else pack(row.trajectory)
        record = write_answer(row)
        return ["answer", position(row.id), row.id, repr(row.created_at), record, steps, row.receipt, row.texts or ""]
    if isinstance(row, Feedback):
        verdict = json.dumps([float(row.reward), row.label], allow_nan=False)
        return ["feedback", position(row.answer_id), row.answer_id, row.source, verdict, repr(row.created_at)]
    if isinstance(row, StoredProbe):
        return ["probe", position(row.answer_id), row.answer_id, row.endpoint, write_probe(row)]
    if isinstance(row, LedgerRow):
        return _ledger_fields(row)
    if isinstance(row, Release):
        held = row.reservation
        amounts = _micro_and_pico(pico_above(held.amount))
        return ["release", held.id, held.endpoint, write_tags(held.tags), repr(row.at), *amounts]
    if isinstance(row, CapabilityRow):
        return ["capabilities", row.key, repr(row.probed_at), json.dumps(dict(row.values))]
    return ["health", row.key, repr(row.changed_at), json.dumps([row.open_until, row.ejections])]


def _ledger_fields(row: LedgerRow) -> list[str | bytes]:
    used, cost = row.used, to_pico(row.cost)
    if any(number is not None and not 0 <= number <= _LARGEST for number in (*used, cost)):
        raise StoreError("a row cannot be stored (a number is too large)")
    if not math.isfinite(row.at):
        raise StoreError("a row cannot be stored (its time is not finite)")
    amounts, ended, held_on = ("", ""), ("", "0", "0"), ("", "")
    if cost is not None:
        amounts = _micro_and_pico(cost)
    if row.reservation is not None:
        ended = (row.reservation.id, *_micro_and_pico(pico_above(row.reservation.amount)))
    if row.held_on is not None:
        held_on = _micro_and_pico(pico_above(row.held_on.amount))
    text = json.dumps([row.answer_id, row.endpoint, *used, cost, row.cost_source])
    tokens_text = (str(used[0] or 0), str(used[1] or 0))
    return ["bill", row.endpoint, repr(row.at), *amounts, *tokens_text, write_tags(row.tags), text, *ended, *held_on]


def _micro_and_pico(pico: int) -> tuple[str, str]:
    """Split an amount into whole microdollars and the rest, 0 to 999,999 picodollars."""
    micro, rest = divmod(pico, 1_000_000)
    return str(micro), str(rest)


def reservation_words(reservation: Reservation, limits: Mapping[Account, Decimal]) -> list[str]:
    """A reservation as arguments of ``reserve.lua``, with the ledger row that it becomes if its process dies."""
    amount = pico_above(reservation.amount)
    row = [reservation.answer_id, reservation.endpoint, *(None,) * 5, amount, "reserved"]
    words = [reservation.id, *_micro_and_pico(amount), repr(reservation.timeout_s + GRACE_S)]
    words += [write_tags(reservation.tags), json.dumps(row)]
    for account, limit in limits.items():
        words += [account.tag, str(account.period_s), *_micro_and_pico(pico_below(limit))]
    return words


# -- decoding ------------------------------------------------------------------------------------------------------


def refusal(reply: Sequence[bytes]) -> FocalrouteError | None:
    """The error if ``write.lua`` refused to write the rows; None if it wrote them."""
    code, *about = (word.decode() for word in reply)
    if code == "unknown":
        return unknown_answer(about[0])
    if code == "duplicate":
        return duplicate_answer(about[0])
    if code == "probe":
        return StoreError("a row cannot be stored (a probe without its answer, or a second probe)")
    return None


def read_reservation(reply: Sequence[Any], limits: Sequence[Account]) -> ReservationResult:
    """Decode the reply of ``reserve.lua``."""
    return ReservationResult(reply[0] == 1, float(reply[1]), read_balances(reply[2:], limits))


def read_balances(reply: Sequence[bytes], accounts: Sequence[Account]) -> dict[Account, Balance]:
    """Decode the balances in a script's reply; StoreError if one is damaged."""
    found = {}
    for account, text in zip(accounts, reply, strict=True):
        state = read_state(text)
        if state is None:
            raise StoreError(f"the balance of {account} is damaged; see `focalroute ledger --repair`")
        found[account] = state.balance(account)
    return found


def read_state(text: bytes) -> AccountState | None:
    """Decode an account's state: its period, then micro- and picodollars spent and reserved; None if it is damaged."""
    try:
        period, micro, pico, held_micro, held_pico = map(int, text.split())
    except ValueError:
        return None
    return AccountState(period, micro * 1_000_000 + pico, held_micro * 1_000_000 + held_pico)


def read_capabilities(key: str, text: bytes) -> CapabilityRow:
    """Decode a field of the capabilities hash; ValueError if it is damaged."""
    at, _, values = text.partition(b"\n")
    return CapabilityRow(key, float(at), json.loads(values))


def read_health(key: str, text: bytes) -> HealthRow:
    """Decode a field of the health hash; ValueError or TypeError if it is damaged."""
    at, _, values = text.partition(b"\n")
    open_until, ejections = json.loads(values)
    return HealthRow(key, None if open_until is None else float(open_until), int(ejections), float(at))


class AnswerHash:
    """An answer's hash: the answer and its feedback.

    Args:
        pairs: field names and values alternately.
    """

    def __init__(self, pairs: Sequence[bytes]) -> None:
        self._fields = dict(zip(pairs[::2], pairs[1::2], strict=True))

    def __bool__(self) -> bool:
        return bool(self._fields)

    @property
    def answer(self) -> StoredAnswer:
        """The answer; StoreError if it is damaged."""
        kept = self._fields
        with _reading():
            answer_id, created_at = kept[b"id"].decode(), float(kept[b"created_at"])
            record, receipt = kept[b"record"], kept[b"receipt"]
        probes = [value for name, value in sorted(kept.items()) if name.startswith(b"probe:")]
        row = (answer_id, created_at, record, kept.get(b"trajectory"), receipt, kept.get(b"texts"))
        return read_answer(row, b"[" + b",".join(probes) + b"]")

    @property
    def entry(self) -> bytes:
        """The answer's entry in the stream of answers."""
        return self._fields[b"entry"]

    def feedback(self) -> list[tuple[bytes, Feedback]]:
        """The feedback, each with its entry in the stream of feedback, in that order; StoreError if it is damaged."""
        found = []
        with _reading():
            answer_id = self._fields[b"id"].decode()
            for name, value in self._fields.items():
                if name.startswith(b"said:"):
                    entry, at, verdict = value.split(b"\n", 2)
                    reward, label = json.loads(verdict)
                    found.append((entry, Feedback(answer_id, reward, label, source_name(name[5:].decode()), float(at))))
            return sorted(found, key=lambda one: entry_order(one[0]))


@contextmanager
def _reading() -> Iterator[None]:
    """Raise StoreError for an answer that cannot be read."""
    try:
        yield
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise StoreError(f"an answer is damaged ({type(error).__name__}); restore a copy") from None


def entry_order(entry: bytes) -> tuple[int, int]:
    """The sort key of a stream entry."""
    milliseconds, _, number = entry.partition(b"-")
    return int(milliseconds), int(number)
