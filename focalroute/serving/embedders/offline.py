"""The features of a whole log's texts, made once before training or replaying it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal

import numpy as np

from focalroute.core.config import Endpoint
from focalroute.core.errors import CallFailed, PoolError
from focalroute.core.pool import validate_pool
from focalroute.core.records import F32, Query
from focalroute.endpoints.retries import Terms, retrying
from focalroute.money.budget import AskBudget, BudgetGuard
from focalroute.money.cost import total
from focalroute.observe.features import clipped, name_of
from focalroute.serving.embedders.sources import Source, TextEmbedder, source_of

_BATCH = 32  # texts in a call
_AT_A_TIME = 8  # calls
_ATTEMPTS = 8


@dataclass(frozen=True, slots=True)
class Vectors:
    """Vectors that were made before, of some texts: an embedder that looks them up.

    Attributes:
        name: the embedder's that made them.
        usd: what that cost; None: unknown.
    """

    name: str
    usd: Decimal | None
    _made: Mapping[str, F32]
    _none: F32

    def __call__(self, text: str) -> F32:
        """float32 (D,), zeros for an empty text; KeyError for one that was not among them."""
        return self._made[clipped(text)] if text.strip() else self._none


def embedded(
    texts: Iterable[str], embedder: TextEmbedder, advance: Callable[[int], object] = lambda _: None
) -> Vectors:
    """The vectors of some texts, each different one made once. Runs where an event loop is running, too.

    Args:
        advance: called with the number of texts done.

    Raises:
        ConfigError: the embedder is none, or gives no vectors; its address or key is missing.
        PoolError: it failed, and went on failing.
    """
    if isinstance(embedder, Endpoint):
        validate_pool((embedder,), askable=True)
    wanted = list(dict.fromkeys(clipped(text) for text in texts if text.strip()))
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(_embedded(wanted, embedder, advance))).result()


async def _embedded(wanted: list[str], embedder: TextEmbedder, advance: Callable[[int], object]) -> Vectors:
    guard = BudgetGuard(None, (embedder,) if isinstance(embedder, Endpoint) else ())
    ask_budget, source = guard.open_ask_budget("embedding"), source_of(embedder)
    made: dict[str, F32] = {}
    places = asyncio.Semaphore(_AT_A_TIME)

    async def some(texts: Sequence[str]) -> None:
        async with places:
            made.update(zip(texts, await _repeated(texts, source, ask_budget), strict=True))
        advance(len(texts))

    try:
        async with asyncio.TaskGroup() as group:
            for at in range(0, len(wanted), _BATCH):
                group.create_task(some(wanted[at : at + _BATCH]))
    except BaseExceptionGroup as failed:
        first = failed.exceptions[0]
        if isinstance(first, CallFailed):
            raise PoolError(f"embedder: no features of the log's texts: {first.failure.message}") from None
        raise first from None
    finally:
        await source.aclose()
    width = next(iter(made.values())).size if made else 1
    return Vectors(name_of(embedder), total(bill.cost for bill in ask_budget.bills), made, np.zeros(width, np.float32))


async def _repeated(texts: Sequence[str], source: Source, ask_budget: AskBudget) -> list[F32]:
    terms = Terms(Query("embedding", ()), ask_budget, math.inf, _ATTEMPTS)
    return await retrying(lambda: source.vectors(texts, ask_budget, math.inf), terms, _ATTEMPTS, lambda: False)
