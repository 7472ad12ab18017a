"""What listeners hear of a Redis store: every feedback of any process, and those whose answer was probed afterwards."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from focalroute.core.errors import StoreError
from focalroute.core.records import Feedback
from focalroute.store.base import OnFeedback, StoredAnswer
from focalroute.store.listeners import tell
from focalroute.store.redis.connection import RedisConnection
from focalroute.store.redis.keys import FEEDBACK, PROBED
from focalroute.store.redis.reads import Entries, entries, stored
from focalroute.store.redis.rows import AnswerHash, place

_MOST = 1000  # news at a time; of more, the latest count

_log = logging.getLogger("focalroute.store")

_Rows = list[tuple[StoredAnswer, Feedback]]


class FeedbackSubscription:
    """The listeners of one process, and how far they have heard. Belongs to the store's thread."""

    def __init__(self) -> None:
        self._listeners: list[OnFeedback] = []
        self._late: list[tuple[OnFeedback, int]] = []
        self._heard = b"0-0"
        self._probes_heard = b"0-0"

    def join(self, link: RedisConnection, listener: OnFeedback, last: int) -> None:
        """Tell a listener the latest, and from now on every new one."""
        self.deliver(link)  # now every listener has heard the same
        if not self._listeners:
            self._heard, self._probes_heard = (_newest(link, name) for name in (FEEDBACK, PROBED))
        words = ("XREVRANGE", link.keys[FEEDBACK], self._heard, "-", "COUNT", last)
        tell([listener], _judged(link, entries(link.one(*words))[::-1]) if last else [])
        self._listeners.append(listener)

    def join_later(self, listener: OnFeedback, last: int) -> None:
        """Let it join with the next delivery, as Redis is away."""
        self._late.append((listener, last))

    def deliver(self, link: RedisConnection) -> None:
        """Tell what feedback was committed, or probed after it was, since the last time, by anybody."""
        late, self._late = self._late, []
        while late:
            try:
                self.join(link, *late[0])
            except BaseException:
                self._late = late
                raise
            late.pop(0)
        if not self._listeners:
            return
        after = [("XREVRANGE", link.keys[name], "+", b"(" + mark, "COUNT", _MOST)
            for name, mark in ((PROBED, self._probes_heard), (FEEDBACK, self._heard))]  # fmt: skip
        probes, news = (entries(reply)[::-1] for reply in link.all(after))
        rows = _probed(link, probes, self._heard) + _judged(link, news)
        self._heard = news[-1][0] if news else self._heard
        self._probes_heard = probes[-1][0] if probes else self._probes_heard
        tell(tuple(self._listeners), rows)


def _newest(link: RedisConnection, name: str) -> bytes:
    found = entries(link.one("XREVRANGE", link.keys[name], "+", "-", "COUNT", 1))
    return found[0][0] if found else b"0-0"


def _judged(link: RedisConnection, said: Entries) -> _Rows:
    """Entries of the feedback stream with their answers; those whose answer is gone are left out."""
    found = dict(_answers(link, dict.fromkeys(fields[b"id"] for _, fields in said)))
    rows: _Rows = []
    for entry, fields in said:
        kept = found.get(fields[b"id"])
        if kept is not None:
            rows += [(kept[0], one) for at, one in kept[1] if at == entry]
    return rows


def _probed(link: RedisConnection, probes: Entries, heard: bytes) -> _Rows:
    """The feedback, heard already, of answers that were probed."""
    found = _answers(link, dict.fromkeys(fields[b"id"] for _, fields in probes))
    rows = [(at, answer, one) for _, (answer, said) in found for at, one in said if place(at) <= place(heard)]
    return [(answer, one) for _, answer, one in sorted(rows, key=lambda row: place(row[0]))]


def _answers(
    link: RedisConnection, ids: Iterable[bytes]
) -> list[tuple[bytes, tuple[StoredAnswer, list[tuple[bytes, Feedback]]]]]:
    """The answers with these ids and what was said of them; a damaged one is no reason not to hear of the others."""
    wanted: Sequence[bytes] = tuple(ids)
    found = []
    for answer_id, kept in zip(wanted, stored(link, [one.decode() for one in wanted]), strict=True):
        try:
            if kept:
                found.append((answer_id, _parts(kept)))
        except StoreError as error:
            _log.warning("%s; it is left out", error)
    return found


def _parts(kept: AnswerHash) -> tuple[StoredAnswer, list[tuple[bytes, Feedback]]]:
    return kept.answer, kept.feedback()
