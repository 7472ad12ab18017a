"""Answers given again: to an identical question, for a time, in this process."""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import replace

from focalroute.core.dollars import Dollars
from focalroute.core.receipts import Answer
from focalroute.core.records import Query

_MOST_CHARACTERS = 50_000_000  # of the replies that are kept


class AnswerCache:
    """Keeps whole answers, the least recently used are dropped first. It is safe to use from several threads.

    Identical are questions with the same messages, choices, kind of answer, parameters and tags; so no customer is
    given what another one asked, where tags name customers.

    Args:
        ttl_s: how long an answer is given again, seconds; None: never.
    """

    def __init__(self, ttl_s: float | None) -> None:
        self._ttl_s = ttl_s
        self._kept: OrderedDict[Hashable, tuple[float, Answer]] = OrderedDict()
        self._characters = 0
        self._lock = threading.Lock()

    def key(self, query: Query) -> Hashable:
        """The key that identical questions share; None: no answer is kept.

        Take it before asking: the caller may change the messages meanwhile.
        """
        return None if self._ttl_s is None else _key(query)

    def find(self, key: Hashable, query: Query) -> Answer | None:
        """The answer that an identical question had, as one that costs nothing; None: there is none."""
        if self._ttl_s is None:
            return None
        with self._lock:
            since, answer = self._kept.get(key, (0.0, None))
            if answer is None:
                return None
            if time.monotonic() - since > self._ttl_s:
                self._drop(key)
                return None
            self._kept.move_to_end(key)
        return replace(answer, cached=True, cost=Dollars(0), metadata=query.metadata)

    def keep(self, key: Hashable, answer: Answer) -> None:
        """Keep an answer; one that falls short of normal service is not."""
        if self._ttl_s is None or answer.degraded or not answer.durable:
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
    meant = tuple([(type(value), value) for value in query.values or ()])  # 42 and "42" look alike
    return json.dumps([query.messages, *asked], sort_keys=True, default=dict), meant, query.answer


def _size(answer: Answer) -> int:
    """Characters of its replies, and as many as a receipt has."""
    return 5_000 + sum(len(reply.text or "") for reply in answer.replies)
