"""The store's narrow face: what every store (SQLite here, Redis for a fleet) has to do.

Everything written goes through `Store.write`, whose future resolves once the rows are committed; everything learned
comes back through `Store.subscribe`, whichever process wrote it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol

from focalroute.records import CostSource, Feedback, Member, Trajectory, Usage

__all__ = ["CapabilityRow", "LedgerRow", "Listener", "Row", "Store", "StoredAnswer", "StoredProbe", "UsageTotal"]


@dataclass(frozen=True, slots=True)
class StoredProbe:
    """What an endpoint that was not asked says to an answered query: evidence about it, no part of the answer.

    Attributes:
        key: the key of the candidate it backs (see `focalroute.answers.candidate_key`), which may be one that no
            member gave.
        usd: what it cost, None if unknown.
    """

    answer_id: str
    endpoint: str
    key: str
    completion_tokens: int
    latency_s: float
    usd: Decimal | None


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """An answer as it is kept: enough to learn from it and to check feedback against it, and no text.

    Attributes:
        keys: the key of each candidate (see `focalroute.answers.candidate_key`), length K.
        kind: "choice" for a closed question (a label must then be one of the choices), else the kind of free-form
            answer: "number", "short", "text", or "custom" for the caller's own callable.
        answered: index of the candidate given as the answer.
        probabilities: the posterior over candidates, length K.
        members: endpoint -> how it took part, of every member with a usable reply.
        trajectory: the policies' steps; None when a fallback or a named policy answered.
        receipt: the receipt as JSON.
        texts: prompt and replies as JSON; None unless the user chose to store text.
        probes: endpoints that were probed with the query afterwards; kept in rows of their own.
    """

    id: str
    created_at: float
    keys: tuple[str, ...]
    kind: str
    answered: int
    probabilities: tuple[float, ...]
    members: Mapping[str, Member]
    trajectory: Trajectory | None
    receipt: str
    texts: str | None = None
    probes: tuple[StoredProbe, ...] = ()


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One member's bill within one ask. ``cost`` None: unknown."""

    answer_id: str
    endpoint: str
    at: float
    usage: Usage | None
    cost: Decimal | None
    cost_source: CostSource
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CapabilityRow:
    """What a probe of one endpoint measured, with its date; ``key`` names service, model and dialect."""

    key: str
    probed_at: float
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class UsageTotal:
    """A ledger sum: ``calls`` of which ``unpriced`` have no known cost, ``cost`` the sum of the known ones."""

    calls: int
    unpriced: int
    prompt_tokens: int
    completion_tokens: int
    cost: Decimal


Row = StoredAnswer | StoredProbe | Feedback | LedgerRow | CapabilityRow
Listener = Callable[[Sequence[tuple[StoredAnswer, Feedback]]], None]


class Store(Protocol):
    """Keeps answers, feedback, capabilities and the ledger. Safe to call from any thread.

    `write` never waits; everything that reads waits for what was queued before it.
    """

    def write(self, *rows: Row) -> Future[None]:
        """Queue rows; the future resolves when all of them are committed together, or fails with StoreError.

        A `Feedback` fails with UnknownAnswer if its answer is not in the store and with FeedbackConflict if a different
        one from the same source is; an identical one is taken as done. A call that fails writes none of its rows; one
        that fails for its rows fails alone. Nothing cancels a write: it is done whether or not anybody still waits.
        """

    def answer(self, answer_id: str) -> StoredAnswer | None:
        """The stored answer, rows still queued included."""

    def subscribe(self, listener: Listener, *, last: int) -> None:
        """Call ``listener`` with feedback and its answer, in the order it was committed, by any process.

        The ``last`` latest ones are delivered before this returns; then every new one, before its `write` future
        resolves if it was written here, and once more when a probe of its answer was committed after it. The listener
        runs on the store's thread and must be quick.
        """

    def capabilities(self, key: str) -> CapabilityRow | None:
        """The latest probe under this key."""

    def totals(self) -> Mapping[str, UsageTotal]:
        """The ledger summed by endpoint."""

    def recent(self, limit: int) -> Iterable[tuple[StoredAnswer, tuple[Feedback, ...]]]:
        """The latest answers with their feedback, oldest first."""

    def verify(self) -> tuple[str, ...]:
        """Check integrity; the problems found, in words (none: empty)."""

    def close(self) -> None:
        """Commit what is queued and let go of every resource. Idempotent."""
