"""The features of a query's text while an ensemble serves: within a time limit, once for each text."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from focalroute.core.config import Endpoint
from focalroute.core.errors import CallFailed
from focalroute.core.records import F32, HASHED, Failure
from focalroute.money.budget import AskBudget
from focalroute.observe.agreement import Reader
from focalroute.observe.features import clipped, name_of, text_features
from focalroute.serving.embedders.sources import Source, TextEmbedder, source_of
from focalroute.store.base import Store

_log = logging.getLogger("focalroute")

_SHARE = 0.1  # of the time an ask has left
_KEPT = 1024  # texts whose vectors are kept
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0  # after a failure, and while failures follow each other


class TextRead(NamedTuple):
    """What was made of a text: its features (empty: none), and why there are none, in words."""

    features: F32
    missing: str = ""


_NOTHING = TextRead(np.zeros(0, np.float32))


class Embedding:
    """Reads the texts of queries, and of the replies that are compared. Safe to use from several event loops.

    After a failure nobody asks the embedder for a while: an outage must not make every ask wait.

    Args:
        embedder: None: the built-in hashed features, which take no time and cannot fail.
        store: where the bills of an ask go that ends while its text is read.

    Attributes:
        name: what the features are kept under.
        services: the endpoint it pays, if it is one.

    Raises:
        ConfigError: it is no embedder.
    """

    def __init__(self, embedder: TextEmbedder | None, store: Store) -> None:
        self.name = HASHED if embedder is None else name_of(embedder)
        self.services: tuple[Endpoint, ...] = (embedder,) if isinstance(embedder, Endpoint) else ()
        self._source = None if embedder is None else source_of(embedder)
        self._store = store
        self._kept: OrderedDict[bytes, F32] = OrderedDict()
        self._lock = threading.Lock()  # of what is kept
        self._turns: WeakValueDictionary[tuple[asyncio.AbstractEventLoop, bytes], asyncio.Lock] = WeakValueDictionary()
        self._pause_s = 0.0
        self._paused_until = 0.0

    async def read(self, text: str, ask_budget: AskBudget, deadline: float) -> TextRead:
        """The features of a text; none, and why, where the embedder does not give them in time.

        Args:
            purse: what pays for it, before anything else.
            deadline: of the ask, in the running loop's time.

        Raises:
            ConfigError: the embedder is a function that gives no vectors of one length.
            StoreError: a limit cannot be kept, as the store fails.
        """
        try:
            return await self._read(text, ask_budget, deadline)
        except BaseException:
            self._store.write(*ask_budget.unwritten)
            raise

    def reader(self, ask_budget: AskBudget, deadline: float) -> Reader | None:
        """Reads several texts at once, on the terms of `read`; None: the built-in features do.

        The bills of what it raises are the ask's to write.
        """
        return None if self._source is None else partial(self._read_all, ask_budget=ask_budget, deadline=deadline)

    async def _read_all(self, texts: Sequence[str], ask_budget: AskBudget, deadline: float) -> list[TextRead]:
        """All have ended when it returns or raises: their bills are there."""
        made = await asyncio.gather(*(self._read(one, ask_budget, deadline) for one in texts), return_exceptions=True)
        failed = next((one for one in made if isinstance(one, BaseException)), None)
        if failed is not None:
            raise failed
        return [one for one in made if isinstance(one, TextRead)]

    async def _read(self, text: str, ask_budget: AskBudget, deadline: float) -> TextRead:
        source = self._source
        if source is None:
            return TextRead(text_features(text))
        if not text.strip():
            return _NOTHING
        text = clipped(text)
        key = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        found = self._known(key)
        if found is not None:
            return TextRead(found)
        source.prepare()
        loop = asyncio.get_running_loop()
        left_s = max(0.0, _SHARE * (deadline - loop.time()))
        try:
            async with asyncio.timeout(left_s), self._turns.setdefault((loop, key), asyncio.Lock()):
                return TextRead(await self._made(source, key, text, ask_budget, left_s))
        except CallFailed as error:
            return self._without(error.failure)
        except TimeoutError:
            return self._without(Failure("timeout", f"no vector within {left_s:.2g} s"))

    async def _made(self, source: Source, key: bytes, text: str, ask_budget: AskBudget, left_s: float) -> F32:
        """By the first of several asks with one text; the others find it here."""
        found = self._known(key)
        if found is not None:
            return found
        if time.monotonic() < self._paused_until:
            raise CallFailed(Failure("unavailable", "it failed lately"))
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

    def _without(self, failure: Failure) -> TextRead:
        now = time.monotonic()
        if failure.kind not in ("unavailable", "limited") and now >= self._paused_until:
            self._pause_s = min(max(_FIRST_PAUSE_S, 2 * self._pause_s), _LONGEST_PAUSE_S)
            self._paused_until = now + self._pause_s
            _log.warning("the embedder failed, asks go without features of their texts: %s", failure.message)
        return TextRead(_NOTHING.features, f"text not read: embedder {self.name}: {failure.message}")

    async def aclose(self) -> None:
        """Close the connections of the running loop, and let go of the thread."""
        if self._source is not None:
            await self._source.aclose()
