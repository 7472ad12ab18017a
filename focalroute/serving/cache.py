"""Caches answers to identical questions in this process, for a limited time."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import replace

from focalroute.answers.structured import Structure
from focalroute.core.dollars import Dollars
from focalroute.core.errors import DeadlineExceeded
from focalroute.core.receipts import Answer
from focalroute.core.records import Query

_MOST_CHARACTERS = 50_000_000  # of the cached replies
_MOST_FAILED_WAITS = 2  # for identical asks; without a limit, waiting asks would fail one after another


class AnswerCache:
    """Keeps whole answers; the least recently used are dropped first. Safe to use from several threads.

    Questions are identical if all their arguments are, tags included; limits, the price of time and metadata do not
    count. So customers with different tags never get each other's answers. A question whose ``answer`` cannot be hashed
    is not cached.

    Args:
        ttl_s: how long an answer is reused, seconds; None: never.
        deadline_s: the deadline of a query without one of its own.
    """

    def __init__(self, ttl_s: float | None, deadline_s: float) -> None:
        self._ttl_s = ttl_s
        self._deadline_s = deadline_s
        self._under_way: dict[Hashable, asyncio.Future[None]] = {}  # asks, by their event loop and key
        self._kept: OrderedDict[Hashable, tuple[float, Answer]] = OrderedDict()
        self._characters = 0
        self._lock = threading.Lock()

    async def ask(self, query: Query, answer: Callable[[Query], Awaitable[Answer]]) -> Answer:
        """Return the cached answer to an identical question, at no cost; else ask this one.

        If an identical question is under way in this event loop, this one waits for its answer. If none comes (that ask
        failed, was cancelled, or is not cached), the first of the waiting asks is asked, within the rest of its
        deadline, and the others wait for it. After two asks that failed or were not cached, they wait no longer.

        Raises:
            DeadlineExceeded: no time is left. Else what ``answer`` raises.
        """
        if self._ttl_s is None or not _hashable(query.answer):
            return await answer(query)
        key = _key(query)  # before asking: the caller may change the messages meanwhile
        if (known := self._find(key, query)) is not None:
            return known
        loop = asyncio.get_running_loop()
        failed_waits = 0
        while failed_waits < _MOST_FAILED_WAITS and (other := self._under_way.get((loop, key))) is not None:
            deadline_s = self._deadline_s if query.deadline_s is None else query.deadline_s
            began = loop.time()
            await asyncio.wait([other], timeout=deadline_s)
            if (known := self._find(key, query)) is not None:
                return known
            left_s = deadline_s - (loop.time() - began)
            if left_s <= 0:
                raise DeadlineExceeded("the deadline passed before an identical ask had ended; raise deadline_s")
            query = replace(query, deadline_s=left_s)
            failed_waits += not other.cancelled()
        ended = self._under_way[loop, key] = loop.create_future()
        try:
            made = await answer(query)
            self._keep(key, made)
            return made
        except asyncio.CancelledError:
            ended.cancel()
            raise
        finally:
            if not ended.done():
                ended.set_result(None)
            if self._under_way.get((loop, key)) is ended:
                del self._under_way[loop, key]

    def _find(self, key: Hashable, query: Query) -> Answer | None:
        """Return the cached answer to an identical question, or None."""
        with self._lock:
            since, answer = self._kept.get(key, (0.0, None))
            if answer is None:
                return None
            if time.monotonic() - since > (self._ttl_s or 0):
                self._drop(key)
                return None
            self._kept.move_to_end(key)
        value = answer.value
        if isinstance(query.answer, Structure) and not answer.tool_calls:
            value = query.answer.value(answer.text)  # a new one: an earlier caller may have changed theirs
        return replace(answer, value=value, cached=True, cost=Dollars(0), metadata=query.metadata)

    def _keep(self, key: Hashable, answer: Answer) -> None:
        """Cache an answer, unless it is degraded or not durable."""
        if answer.degraded or not answer.durable:
            return
        with self._lock:
            self._drop(key)
            self._kept[key] = time.monotonic(), answer
            self._characters += _size(answer)
            while self._characters > _MOST_CHARACTERS:
                self._drop(next(iter(self._kept)))

    def _drop(self, key: Hashable) -> None:
        _, answer = self._kept.pop(key, (0.0, None))
        self._characters -= 0 if answer is None else _size(answer)


def _key(query: Query) -> Hashable:
    asked = [query.choices, query.samples, query.combine, query.task, query.tags, query.params]
    values = tuple([(type(value), value) for value in query.values or ()])  # 42 and "42" look alike
    return json.dumps([query.messages, *asked], default=dict), values, query.answer


def _hashable(kind: object) -> bool:
    """Whether a kind of answer can be part of a key."""
    try:
        hash(kind)
    except TypeError:
        return False
    return True


def _size(answer: Answer) -> int:
    """Return the characters of an answer's replies, plus those of a receipt."""
    return 5_000 + sum(len(reply.text or "") for reply in answer.replies)
