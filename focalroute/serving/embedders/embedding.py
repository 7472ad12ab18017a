"""Embeds texts while an ensemble serves: each text once, and within a time limit."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from focalroute.core.config import Endpoint
from focalroute.core.errors import CallFailed, PoolError
from focalroute.core.pool import validate_pool
from focalroute.core.records import F32, HASHED, Failure, Query
from focalroute.endpoints.calls import CallContext, call_with_retries
from focalroute.money.budget import AskBudget, BudgetGuard
from focalroute.money.cost import total
from focalroute.observe.agreement import BatchEmbedder
from focalroute.observe.features import clipped, name_of, text_features
from focalroute.serving.concurrency import run_together
from focalroute.serving.embedders import TextEmbedder, VectorSource, vector_source

_log = logging.getLogger("focalroute")

_SHARE = 0.1  # of the time an ask has left
_KEPT = 1024  # texts whose vectors are kept
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0  # after a failure, and while failures follow each other
_LEAST_S = 0.5  # with less time, a timeout does not count as a failure of the embedder


class EmbeddedText(NamedTuple):
    """A text's features, and if they are empty, the reason in words."""

    features: F32
    missing: str = ""


_NOTHING = EmbeddedText(np.zeros(0, np.float32))


class TextEmbedding:
    """Embeds queries, and replies to compare. Safe to use from several event loops.

    After a failure the embedder is not asked for a while, so that an outage does not make every ask wait.

    Args:
        embedder: None: the built-in hashed features, which take no time and cannot fail.

    Attributes:
        name: the name under which features are kept.
        services: the embedder if it is an endpoint, whose calls cost money; else empty.

    Raises:
        ConfigError: it is not an embedder.
    """

    def __init__(self, embedder: TextEmbedder | None) -> None:
        self.name = HASHED if embedder is None else name_of(embedder)
        self.services: tuple[Endpoint, ...] = (embedder,) if isinstance(embedder, Endpoint) else ()
        self._source = None if embedder is None else vector_source(embedder)
        self._kept: OrderedDict[bytes, F32] = OrderedDict()
        self._lock = threading.Lock()  # of what is kept
        self._locks: WeakValueDictionary[tuple[asyncio.AbstractEventLoop, bytes], asyncio.Lock] = WeakValueDictionary()
        self._pause_s = 0.0
        self._paused_until = 0.0

    async def read(self, text: str, ask_budget: AskBudget, deadline: float) -> EmbeddedText:
        """Return the features of a text; if the embedder does not give them in time, none, with the reason.

        Args:
            ask_budget: pays for it.
            deadline: of the ask, in the running loop's time.

        Raises:
            ConfigError: the embedder is a function that gives no vector for its first text.
            StoreError: a limit cannot be enforced, as the store fails.
        """
        try:
            return await self._read(text, ask_budget, deadline)
        except BaseException:
            ask_budget.write()
            raise

    def batch_embedder(self, ask_budget: AskBudget, deadline: float) -> BatchEmbedder | None:
        """Return a function that embeds several texts at once; None with the built-in features, which need no call.

        If the function raises, the ask has to write its bills.
        """
        return None if self._source is None else partial(self._read_all, ask_budget=ask_budget, deadline=deadline)

    async def _read_all(self, texts: Sequence[str], ask_budget: AskBudget, deadline: float) -> list[EmbeddedText]:
        """Embed all texts; when this returns or raises, all calls have ended and have their bills."""
        made = await asyncio.gather(*(self._read(one, ask_budget, deadline) for one in texts), return_exceptions=True)
        failed = next((one for one in made if isinstance(one, BaseException)), None)
        if failed is not None:
            raise failed
        return [one for one in made if isinstance(one, EmbeddedText)]

    async def _read(self, text: str, ask_budget: AskBudget, deadline: float) -> EmbeddedText:
        """Return a text's features from the cache, else from the embedder."""
        source = self._source
        if source is None:
            return EmbeddedText(text_features(text))
        if not text.strip():
            return _NOTHING
        text = clipped(text)
        key = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        found = self._known(key)
        if found is not None:
            return EmbeddedText(found)
        source.prepare()
        loop = asyncio.get_running_loop()
        left_s = max(0.0, _SHARE * (deadline - loop.time()))
        try:
            async with asyncio.timeout(left_s), self._locks.setdefault((loop, key), asyncio.Lock()):
                return EmbeddedText(await self._vector(source, key, text, ask_budget, left_s))
        except CallFailed as error:
            return self._missing(error.failure)
        except TimeoutError:
            return self._missing(Failure("timeout", f"no vector within {left_s:.2g} s"), failed=left_s >= _LEAST_S)

    async def _vector(self, source: VectorSource, key: bytes, text: str, ask_budget: AskBudget, left_s: float) -> F32:
        """Return a text's vector; of several asks with that text, the first makes it and the others find it."""
        found = self._known(key)
        if found is not None:
            return found
        if time.monotonic() < self._paused_until:
            raise CallFailed(Failure("unavailable", "it failed a moment ago"))
        (made,) = await source.vectors((text,), ask_budget, left_s)
        self._pause_s = 0.0
        with self._lock:
            self._kept[key] = made
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return made

    def _known(self, key: bytes) -> F32 | None:
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
        return found

    def _missing(self, failure: Failure, *, failed: bool = True) -> EmbeddedText:
        """Return no features, with the reason; after a failure of the embedder, do not ask it for a while."""
        now = time.monotonic()
        if failed and failure.kind not in ("unavailable", "limited") and now >= self._paused_until:
            self._pause_s = min(max(_FIRST_PAUSE_S, 2 * self._pause_s), _LONGEST_PAUSE_S)
            self._paused_until = now + self._pause_s
            _log.warning("the embedder failed, so asks go on without features of their texts: %s", failure.advised)
        return EmbeddedText(_NOTHING.features, f"embedder {self.name}: {failure.brief}")

    async def aclose(self) -> None:
        """Close the connections of the running loop, and end the thread."""
        if self._source is not None:
            await self._source.aclose()


_BATCH = 32  # texts in a call
_AT_A_TIME = 8  # calls
_ATTEMPTS = 8


@dataclass(frozen=True, slots=True)
class StoredVectors:
    """An embedder that looks up vectors that were made before.

    Attributes:
        name: the name of the embedder that made them.
        usd: what they cost; None: unknown.
    """

    name: str
    usd: Decimal | None
    _made: Mapping[str, F32]
    _none: F32

    def __call__(self, text: str) -> F32:
        """Return a text's vector, float32 (D,), zeros for an empty text; KeyError for an unknown one."""
        return self._made[clipped(text)] if text.strip() else self._none


def embed_log(
    texts: Iterable[str], embedder: TextEmbedder, advance: Callable[[int], object] = lambda _: None
) -> StoredVectors:
    """Embed texts, each distinct one once. Also works inside a running event loop.

    Args:
        advance: called with the number of texts done.

    Raises:
        ConfigError: it is not an embedder, gives no vectors, or lacks its address or key.
        PoolError: it kept failing.
    """
    if isinstance(embedder, Endpoint):
        validate_pool((embedder,), askable=True)
    wanted = list(dict.fromkeys(clipped(text) for text in texts if text.strip()))
    from anyio.from_thread import start_blocking_portal

    with start_blocking_portal() as portal:
        made = portal.start_task_soon(_embedded, wanted, embedder, advance)
        try:
            return made.result()
        finally:
            made.cancel()  # Ctrl-C


async def _embedded(wanted: list[str], embedder: TextEmbedder, advance: Callable[[int], object]) -> StoredVectors:
    """Embed all texts in batches, with retries."""
    guard = BudgetGuard(None, (embedder,) if isinstance(embedder, Endpoint) else ())
    ask_budget, source = guard.open_ask_budget("embedding"), vector_source(embedder)
    made: dict[str, F32] = {}
    places = asyncio.Semaphore(_AT_A_TIME)

    async def some(texts: Sequence[str]) -> None:
        async with places:
            context = CallContext(Query("embedding", ()), ask_budget, math.inf, _ATTEMPTS)
            found = await call_with_retries(
                lambda: source.vectors(texts, ask_budget, math.inf), context, _ATTEMPTS, lambda: False
            )
        made.update(zip(texts, found, strict=True))
        advance(len(texts))

    try:
        await run_together(some(wanted[at : at + _BATCH]) for at in range(0, len(wanted), _BATCH))
    except CallFailed as error:
        raise PoolError(f"embedder: no features of the log's texts: {error.failure.message}") from None
    finally:
        await source.aclose()
    width = next(iter(made.values())).size if made else 1
    return StoredVectors(
        name_of(embedder), total(bill.cost for bill in ask_budget.bills), made, np.zeros(width, np.float32)
    )
