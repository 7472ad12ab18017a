"""The store's narrow face: what every store (SQLite here, Redis for a fleet) has to do.

Everything written goes through `Store.write`, whose future resolves once the rows are committed; everything learned
comes back through `Store.subscribe`, whichever process wrote it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal, Protocol

from focalroute.core.records import CostSource, Feedback, Member, Trajectory, Usage
from focalroute.store.accounts import Account, Balance

#: The answer id under which probes stand in the ledger.
PROBE = "probe"
#: Likewise what a judge costs, before the id of the answer that it judged; and the source of its feedback.
JUDGE = "judge"
#: How the id of a reservation begins that outlives its call, which may have cost more than its row in the ledger says.
#: After `focalroute.store.accounts.DOUBT_S` it is released, and the row stands.
DOUBT = "doubt:"
#: Between a source and the number of a feedback by which it replaces its earlier one; what it said before is kept.
REVISION = "\x1e"
#: So many feedbacks of a source on one answer are kept; a further one replaces the last.
MOST_REVISIONS = 100
#: The kind of an answer that was written from the candidates; it is the last of the answer's keys itself.
SYNTHESIS = "synthesis"


@dataclass(frozen=True, slots=True)
class StoredProbe:
    """The reply of an endpoint that was explored after the answer: evidence about it, not part of the answer.

    Attributes:
        key: the key of the candidate it backs (see `focalroute.answers.candidate_key`), which may be one that no
            member gave; None: no answer could be read from its reply.
        usd: what it cost, None if unknown.
    """

    answer_id: str
    endpoint: str
    key: str | None
    completion_tokens: int
    latency_s: float
    usd: Decimal | None


@dataclass(slots=True)  # a frozen one takes five times as long to make
class StoredAnswer:
    """An answer as it is kept: enough to learn from it and to check feedback against it, and no text.

    Attributes:
        keys: the key of each candidate (see `focalroute.answers.candidate_key`), length K.
        kind: "choice" for a closed question (a label must then be one of the choices), else the kind of free-form
            answer: "number", "short", "text", "structured", or "custom" for the caller's own callable; or `SYNTHESIS`.
        answered: index of the candidate given as the answer; one that was put together from several stands last.
        probabilities: of each candidate to be right, length K; what they lack to 1, none is.
        members: endpoint -> how it took part, of every member that replied.
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
    texts: str | None = field(default=None, repr=False)
    probes: tuple[StoredProbe, ...] = ()


@dataclass(frozen=True, slots=True)
class Reservation:
    """The most that a call may cost, USD, held back before it is made, until it is settled or released.

    Attributes:
        timeout_s: the longest that the call can take. One that is not ended a minute after that is of a process that
            died; another that has the store open settles it with its whole amount, as an estimate.
    """

    id: str
    answer_id: str
    endpoint: str
    amount: Decimal
    tags: tuple[str, ...] = ()
    timeout_s: float = 3600.0


@dataclass(slots=True)  # a frozen one takes five times as long to make
class LedgerRow:
    """One member's bill within one ask. ``cost`` None: unknown.

    Attributes:
        at: when the call began; it counts towards the periods of that moment.
        reservation: what it settles, if anything was reserved.
        doubt: of an estimate: USD of the reservation that stay held, as the call may have cost so much besides; None:
            the cost is known.
    """

    answer_id: str
    endpoint: str
    at: float
    usage: Usage | None
    cost: Decimal | None
    cost_source: CostSource
    tags: tuple[str, ...] = ()
    reservation: Reservation | None = None
    doubt: Decimal | None = None

    @property
    def held_on(self) -> Reservation | None:
        """The part of the reservation that stays held; a `LedgerRow` that settles it replaces this estimate."""
        if self.doubt is None or self.reservation is None:
            return None
        return Reservation(DOUBT + self.reservation.id, self.answer_id, self.endpoint, self.doubt, self.tags)


@dataclass(frozen=True, slots=True)
class Release:
    """The call of a reservation was never made; ``at``: the moment it counted towards."""

    reservation: Reservation
    at: float


@dataclass(frozen=True, slots=True)
class ReservationResult:
    """The outcome of a reservation.

    Attributes:
        granted: whether it was made.
        at: the moment it counts towards; the call's `LedgerRow.at`.
        balances: of the accounts it was held against, after it.
    """

    granted: bool
    at: float
    balances: Mapping[Account, Balance]


@dataclass(frozen=True, slots=True)
class CapabilityRow:
    """The result of one endpoint's capability check, with its date; ``key`` names service, model and dialect."""

    key: str
    probed_at: float
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class HealthRow:
    """Whether an endpoint is out of use, as the last process saw it that found out; ``key`` as for `CapabilityRow`.

    Attributes:
        open_until: its breaker is open until then, Unix time; None: it is closed.
        ejections: how often it was put out in a row.
        changed_at: Unix time.
    """

    key: str
    open_until: float | None
    ejections: int
    changed_at: float


@dataclass(frozen=True, slots=True)
class LedgerSum:
    """The ledger's rows of one key (an endpoint, tag or day, or all), added up.

    Attributes:
        asks: how many asks they belong to; probes and judgements belong to none.
        calls: rows; ``unpriced`` of them have no known cost, ``estimated`` of them cost what was reserved for them.
        cost: USD of all with a known cost, the estimated ones included.
        estimated_cost: the part of it that is estimated.
        held: USD reserved for calls under way, or lately by a process that died; not in ``cost``.
    """

    key: str
    asks: int = 0
    calls: int = 0
    unpriced: int = 0
    estimated: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: Decimal = Decimal(0)
    estimated_cost: Decimal = Decimal(0)
    held: Decimal = Decimal(0)

    @property
    def known_cost(self) -> Decimal | None:
        """The cost; None where there are calls and none has a known one."""
        return None if self.calls and self.calls == self.unpriced else self.cost


@dataclass(frozen=True, slots=True)
class BalanceDifference:
    """An account whose running balance is not what the ledger and the reservations add up to.

    Attributes:
        kept: its running balance; None: it cannot be read.
        summed: what its rows add up to.
    """

    account: Account
    kept: Balance | None
    summed: Balance

    def __str__(self) -> str:
        kept = "damaged" if self.kept is None else f"{self.kept.spent} spent, {self.kept.reserved} reserved"
        rows = f"{self.summed.spent} spent, {self.summed.reserved} reserved"
        return f"the balance of {self.account} is {kept}, its rows add up to {rows}"


Row = StoredAnswer | StoredProbe | Feedback | LedgerRow | CapabilityRow | HealthRow | Release
#: The outcome of each of several calls; None: it is done.
Outcomes = Sequence[BaseException | None]
Grouping = Literal["endpoint", "tag", "day", "all"]
#: Feedback with its answer, in the order in which it was committed.
FeedbackRows = Sequence[tuple[StoredAnswer, Feedback]]
OnFeedback = Callable[[FeedbackRows], None]


class Store(Protocol):
    """Keeps answers, feedback, capabilities and the ledger. Safe to call from any thread.

    `write` and `write_calls` never wait; everything that reads waits for what was queued before it.
    """

    def write(self, *rows: Row) -> Future[None]:
        """Queue rows; the future resolves when all of them are committed together, or fails with StoreError.

        A `Feedback` fails with UnknownAnswer if its answer is not in the store. A different one from the same source
        replaces it, and up to `MOST_REVISIONS` are kept; an identical one is taken as done. A call that fails writes
        none of its rows; one that fails for its rows fails alone. Nothing cancels a write: it is done even if its
        caller stops waiting.
        """

    def write_calls(self, calls: Sequence[Sequence[Row]]) -> Future[Outcomes]:
        """Do what a `write` of each of these calls would do, in this thread if nothing has to be waited for.

        Then the future has resolved when this returns: with what became of each call. It fails with StoreError if none
        of them could be queued.
        """

    def answer(self, answer_id: str) -> StoredAnswer | None:
        """The stored answer, rows still queued included."""

    def subscribe(self, on_feedback: OnFeedback, *, last: int) -> None:
        """Call ``on_feedback`` with feedback and its answer, in the order it was committed, by any process.

        The ``last`` latest ones are delivered before this returns; then every new one, before its `write` future
        resolves if it was written here, and once more when a probe of its answer was committed after it. It is called
        on the store's thread and must be quick.
        """

    def open_accounts(self, accounts: Iterable[Account]) -> Mapping[Account, Balance]:
        """Keep these accounts' balances from now on, what the ledger holds already included; the balances now."""

    def reserve(self, reservation: Reservation, limits: Mapping[Account, Decimal]) -> Future[ReservationResult]:
        """Hold an amount back if spent + reserved + amount stays within all limits; else nothing happens.

        Atomic over all processes on this store. A `LedgerRow` or a `Release` with it ends it, but for what
        `LedgerRow.held_on` says. The accounts must be open; the future fails with StoreError if the store does.
        """

    def balances(self, accounts: Iterable[Account]) -> Future[Mapping[Account, Balance]]:
        """The balances of open accounts now."""

    def capabilities(self, key: str) -> CapabilityRow | None:
        """The latest capability check under this key."""

    def health(self) -> Future[Mapping[str, HealthRow]]:
        """The health of every endpoint whose breaker ever changed, by its key."""

    def ledger(self, by: Grouping) -> Sequence[LedgerSum]:
        """The ledger summed by endpoint, tag ("": none) or day (UTC, ISO date), in that order; or all of it as one.

        A row with several tags counts towards each of them. Pruned rows count only by endpoint.
        """

    def totals(self) -> Mapping[str, LedgerSum]:
        """The ledger's sums by endpoint, by their keys."""

    def recent(self, limit: int) -> Iterable[tuple[StoredAnswer, tuple[Feedback, ...]]]:
        """The latest answers with their feedback, oldest first."""

    def verify(self) -> tuple[str, ...]:
        """Check integrity; the problems found, in words (none: empty)."""

    def reconcile(self, *, repair: bool = False) -> Sequence[BalanceDifference]:
        """Compare the balances of open accounts with what the ledger and the reservations add up to; the differences.

        Where old rows were dropped, only the account of all calls can be compared, and one that cannot be read.

        Args:
            repair: write the sums, after what dead processes had reserved is settled. In SQLite, what is gone of the
                chained rows is then taken for granted, too: `verify` no longer speaks of it.
        """

    def close(self) -> None:
        """Commit what is queued and release every resource. Idempotent."""
