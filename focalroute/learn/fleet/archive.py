"""The archive of a fleet: a SQLite store into which the oldest rows go before Redis lets go of them.

A row is in the archive before it leaves Redis, and putting it there again changes nothing: so a crash between the two
loses nothing and doubles nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from focalroute.core.errors import StoreError
from focalroute.core.records import Usage
from focalroute.store import Store, open_store
from focalroute.store.accounts import from_pico
from focalroute.store.base import CapabilityRow, LedgerRow
from focalroute.store.redis.fleet_policy import FleetPolicy
from focalroute.store.redis.reads import LedgerEntry, drop_answers, drop_ledger, oldest_answers, oldest_ledger
from focalroute.store.redis.rows import AnswerHash, entry_order
from focalroute.store.redis.store import RedisStore

#: In the archive, under this key stands how far the ledger was taken over; in the same transaction as its rows.
_MARK = "archived ledger"

_log = logging.getLogger("focalroute")


class Archive:
    """Takes over what Redis is to keep no longer.

    Args:
        path: the archive, a SQLite file; it can be read like any store.

    Raises:
        StoreError: it cannot be opened.
    """

    def __init__(self, store: RedisStore, path: str | Path) -> None:
        self._store = store
        self._kept: Store = open_store(path)
        FleetPolicy(store).keep_archive(True)

    def take(self) -> int:
        """Take over everything beyond what Redis keeps; how many answers.

        Raises:
            StoreError: either of the two cannot be used; nothing is lost.
        """
        while bills := self._store.run(lambda connection: oldest_ledger(connection, self._store.keep)):
            self._take_bills(bills)
            last = bills[-1].entry
            self._store.run(lambda connection, last=last: drop_ledger(connection, last, self._store.keep))  # type: ignore[misc]
        taken = 0
        while answers := self._store.run(lambda connection: oldest_answers(connection, self._store.keep)):
            for _, _, one in answers:
                self._take_answer(one)
            dropped = [(entry, name) for entry, name, _ in answers]
            self._store.run(lambda connection, rows=dropped: drop_answers(connection, rows, self._store.keep))  # type: ignore[misc]
            taken += len(answers)
        return taken

    def _take_answer(self, one: AnswerHash) -> None:
        try:
            answer = one.answer
        except StoreError as error:
            _log.warning("%s; it does not go into the archive", error)
            return
        if self._kept.answer(answer.id) is None:
            self._kept.write(answer, *answer.probes, *(said for _, said in one.feedback())).result()

    def _take_bills(self, bills: Sequence[LedgerEntry]) -> None:
        mark = self._kept.capabilities(_MARK)
        before = entry_order(b"0-0" if mark is None else str(mark.values["entry"]).encode())
        rows = [_ledger_row(bill) for bill in bills if entry_order(bill.entry) > before]
        done = CapabilityRow(_MARK, time.time(), {"entry": bills[-1].entry.decode()})
        self._kept.write(*rows, done).result()

    def close(self) -> None:
        """Let go of the file. The next archive goes on."""
        self._kept.close()


def _ledger_row(bill: LedgerEntry) -> LedgerRow:
    answer_id, endpoint, *used, cost, source = bill.row
    return LedgerRow(answer_id, endpoint, bill.at, _usage(used), _usd(cost), source, tuple(bill.tags))


def _usage(used: Sequence[int | None]) -> Usage | None:
    prompt, completion, cached, reasoning, provider = used
    if prompt is None or completion is None:
        return None
    counts: dict[str, Any] = {"cached_tokens": cached, "reasoning_tokens": reasoning, "cost_usd": _usd(provider)}
    return Usage(prompt, completion, **counts)


def _usd(pico: int | None) -> Any:
    return None if pico is None else from_pico(pico)
