"""Predicts lower costs for prompts that begin like earlier ones, as a service reads those from its prompt cache.

It learns from ``cached_tokens`` in the replies' usage, by endpoint and by the prompt's beginning. In a conversation
that is all messages up to the first question; for a new conversation it is the ``prompt_cache_key``, else the system
prompt. Beginnings are kept in this process, as hashes. Calls are still reserved at the full price, since any cache may
be cold.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from focalroute.core.config import Endpoint
from focalroute.core.records import Query, Reply
from focalroute.observe.pool_stats import PRIOR_CALLS

_LASTS_S = 300.0  # services keep an unused cache for at least five minutes
_MOST_BEGINNINGS = 4096
_DISCOUNT = 0.99  # factor of an endpoint's earlier calls for each further one
_SAME = 0.01  # smaller differences of cost are ignored
_LEAST_SHARE = 1e-3  # of the full price


class WarmCaches:
    """Predicts each endpoint's cost for a query relative to its usual cost. Safe to use from any thread.

    Args:
        endpoints: the pool, N of them.
    """

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        prices = [one.price for one in endpoints]
        self._prices = {
            one.name: (i, float(price.prompt), float(price.completion), float(price.prompt - price.cached))
            for i, (one, price) in enumerate(zip(endpoints, prices, strict=True))
            if price is not None and price.cached < price.prompt
        }
        self._paid = [float(PRIOR_CALLS)] * len(endpoints)  # decayed sum of the calls' shares of the full price
        self._calls = self._paid.copy()  # decayed number of calls; starts at the listed price's weight in expected cost
        self._beginnings: OrderedDict[int, dict[int, tuple[float, float]]] = OrderedDict()  # endpoint -> (share, when)
        self._lock = threading.Lock()

    def learn(self, query: Query, replies: Iterable[Reply]) -> None:
        """Learn from the replies to a query how much of its prompt was cached."""
        used = [
            (reply.endpoint, usage) for reply in replies if (usage := reply.usage) and reply.endpoint in self._prices
        ]
        if not self._beginnings and not any(usage.cached_tokens for _, usage in used):
            return
        now, conversation = time.monotonic(), _conversation(query)
        with self._lock:
            places = [conversation] if conversation in self._beginnings else [conversation, _beginning(query)]
            for name, usage in used:
                i, prompt, completion, saved = self._prices[name]
                full = usage.prompt_tokens * prompt + usage.completion_tokens * completion
                share = max(1 - usage.cached_tokens * saved / full, _LEAST_SHARE) if full > 0 else 1.0
                self._paid[i] = self._paid[i] * _DISCOUNT + share
                self._calls[i] = self._calls[i] * _DISCOUNT + 1
                for place in places:
                    self._beginnings.setdefault(place, {})[i] = share, now
                    self._beginnings.move_to_end(place)
            while len(self._beginnings) > _MOST_BEGINNINGS:
                self._beginnings.popitem(last=False)

    def factors(self, query: Query) -> NDArray[np.float64] | None:
        """Return the query's expected cost relative to the usual one at each endpoint, (N,); None: all as usual."""
        if not self._beginnings:
            return None
        now, shares = time.monotonic(), [1.0] * len(self._paid)
        for place in (_beginning(query), _conversation(query)):  # the conversation's own share takes precedence
            for i, (share, at) in self._beginnings.get(place, {}).copy().items():
                if now - at < _LASTS_S:
                    shares[i] = share
        factors = [share * calls / paid for share, paid, calls in zip(shares, self._paid, self._calls, strict=True)]
        return None if all(abs(factor - 1) < _SAME for factor in factors) else np.array(factors)


def _conversation(query: Query) -> int:
    """Return a hash of the messages up to the first question, which all queries of a conversation share."""
    contents = []
    for message in query.messages:
        contents.append(str(message.get("content")))
        if message.get("role") == "user":
            break
    return hash(tuple(contents))


def _beginning(query: Query) -> int:
    """Return a hash of the ``prompt_cache_key``, else of the system prompt, which new conversations may share."""
    first, key = query.messages[0], query.params.get("prompt_cache_key")
    if key is None and first.get("role") != "user":
        key = first.get("content")
    return hash(("new", str(key)))
