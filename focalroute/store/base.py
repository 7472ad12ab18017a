"""The interface of every store (SQLite, or Redis for a fleet), and the records it keeps.

Rows are written by `Store.write`, whose future resolves once they are committed. Feedback from any process comes back
through `Store.subscribe`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal, Protocol

from focalroute.core.records import CostSource, Feedback, Member, Trajectory, Usage, differ
from focalroute.store.accounts import Account, Balance, to_pico

#: Prefix of a probe's answer id in the ledger.
PROBE = "probe"
#: Prefix of a judge's answer id in the ledger, before the id of the judged answer; also the source of its feedback.
JUDGE = "judge"
#: Prefix of the id of a reservation that outlives its call, as the call may have cost more than its ledger row says.
#: It is released after `focalroute.store.accounts.DOUBT_S`, and the row stands.
DOUBT = "doubt:"
#: Separates a source from the revision number of its feedback; earlier revisions are kept.
REVISION = "\x1e"
#: How many feedbacks of one source on one answer are kept; a further one replaces the last.
MOST_REVISIONS = 100
#: The kind of an answer that an endpoint wrote from the candidates; such an answer is the last candidate.
SYNTHESIS = "synthesis"


@dataclass(frozen=True, slots=True)
class StoredProbe:
    """An endpoint's reply to an exploration call after the answer: evidence about the endpoint, not part of the answer.

    Attributes:
        key: the key of the reply's candidate (see `focalroute.answers.candidate_key`), which may be one that no
            member gave; None: no answer could be read from the reply.
        usd: the cost of the call, None if unknown.
    """

    answer_id: str
    endpoint: str
    key: str | None
    completion_tokens: int
    latency_s: float
    usd: Decimal | None


@dataclass(slots=True)  # a frozen one takes five times as long to make
class StoredAnswer:
    """An answer as stored, without text: enough to learn from it and to check feedback against it.

    Attributes:
        keys: the key of each candidate (see `focalroute.answers.candidate_key`), length K.
        kind: "choice" for a closed question (a label must then be one of the choices), else the kind of free-form
            answer: "number", "short", "text", "structured", or "custom" for the caller's own callable; or `SYNTHESIS`.
        answered: index of the candidate given as the answer; an answer written from several candidates is the last.
        probabilities: the probability that each candidate is right, length K; what is left of 1 is that none is.
        members: endpoint -> how it took part, for every endpoint that replied.
        trajectory: the policies' steps; None if a fallback or a named policy answered.
        receipt: the receipt as JSON.
        texts: prompt and replies as JSON; None unless the user chose to store text.
        probes: the replies of endpoints that got the query afterwards, for exploration; stored in rows of their own.
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

    @property
    def open_text(self) -> bool:
        """Whether it is open text: members that differ may all be right."""
        return self.kind in ("text", SYNTHESIS)

    @property
    def disputed(self) -> bool:
        """Whether its members gave different answers; probes do not count."""
        return differ(member.candidate for member in self.members.values())


@dataclass(slots=True)  # a frozen one takes five times as long to make
class Reservation:
    """The most that a call may cost, USD, held before the call until it is settled or released.

    Attributes:
        timeout_s: the longest that the call can take. A reservation still open a minute after that belongs to a
            process that died; another process with the store open settles it at its whole amount, as an estimate.
    """

    id: str
    answer_id: str
    endpoint: str
    amount: Decimal
    tags: tuple[str, ...] = ()
    timeout_s: float = 3600.0


@dataclass(slots=True)  # a frozen one takes five times as long to make
class LedgerRow:
    """The bill of one call within one ask. ``cost`` None: unknown.

    Attributes:
        at: when the call began, Unix time; the cost counts towards the periods of that moment.
        reservation: the one that the row settles, if anything was reserved.
        doubt: how much more than this estimate the call may have cost, USD; as much of the reservation stays held.
            None: the row is final.
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
    def used(self) -> tuple[int | None, ...]:
        """Prompt, completion, cached and reasoning tokens, and the stated cost in picodollars; all None: unknown."""
        if self.usage is None:
            return (None,) * 5
        used = self.usage
        tokens = (used.prompt_tokens, used.completion_tokens, used.cached_tokens, used.reasoning_tokens)
        return (*tokens, to_pico(used.cost_usd))

    @property
    def held_on(self) -> Reservation | None:
        """The reservation that stays held (see `doubt`); a later `LedgerRow` that settles it replaces this row."""
        if self.doubt is None or self.reservation is None:
            return None
        return Reservation(DOUBT + self.reservation.id, self.answer_id, self.endpoint, self.doubt, self.tags)


@dataclass(frozen=True, slots=True)
class Release:
    """Releases the reservation of a call that was never made; ``at``: the moment that it counted towards."""

    reservation: Reservation
    at: float


@dataclass(slots=True)  # a frozen one takes five times as long to make
class ReservationResult:
    """The outcome of a reservation.

    Attributes:
        granted: whether the amount was reserved.
        at: the moment that the reservation counts towards; the call's `LedgerRow.at`.
        balances: of the limited accounts, after the reservation.
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
    """The state of an endpoint's circuit breaker, as any process reported it last.

    Attributes:
        key: names endpoint, service, model and dialect.
        open_until: the breaker is open until then, Unix time; None: it is closed.
        ejections: consecutive ejections of the endpoint.
        changed_at: Unix time.
    """

    key: str
    open_until: float | None
    ejections: int
    changed_at: float


@dataclass(frozen=True, slots=True)
class LedgerSum:
    """The sum of the ledger's rows of one key: an endpoint, a tag, a day, or all.

    Attributes:
        asks: number of asks; probes and judgements belong to none.
        calls: number of rows.
        unpriced: rows whose cost is unknown.
        estimated: rows whose cost is what was reserved.
        cost: USD of the rows with a known or estimated cost.
        estimated_cost: the estimated part of ``cost``.
        held: USD reserved for calls under way, or by a process that died recently; not in ``cost``.
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
        """The cost; None if there are calls and the cost of all is unknown."""
        return None if self.calls and self.calls == self.unpriced else self.cost


@dataclass(frozen=True, slots=True)
class BalanceDifference:
    """An account whose running balance differs from the sum of its ledger rows and reservations.

    Attributes:
        kept: the running balance; None: it cannot be read.
        summed: the sum of the account's rows.
    """

    account: Account
    kept: Balance | None
    summed: Balance

    def __str__(self) -> str:
        kept = "damaged" if self.kept is None else f"{self.kept.spent} spent, {self.kept.reserved} reserved"
        rows = f"{self.summed.spent} spent, {self.summed.reserved} reserved"
        return f"the balance of {self.account} is {kept}, its rows add up to {rows}"


Row = StoredAnswer | StoredProbe | Feedback | LedgerRow | CapabilityRow | HealthRow | Release
#: The outcome of each of several calls: an error, or None for success.
Outcomes = Sequence[BaseException | None]
Grouping = Literal["endpoint", "tag", "day", "all"]
#: Feedback with its answer, in the order in which it was committed.
FeedbackRows = Sequence[tuple[StoredAnswer, Feedback]]
OnFeedback = Callable[[FeedbackRows], None]


class Store(Protocol):
    """Keeps answers, feedback, capabilities and the ledger. Safe to call from any thread.

    `write` and `write_calls` never wait; a read waits for the work queued before it.
    """

    def write(self, *rows: Row) -> Future[None]:
        """Queue rows, to be committed together; the future resolves once they are, or fails with StoreError.

        A call that fails writes none of its rows, and bad rows fail only their own call. A `Feedback` fails with
        UnknownAnswer if its answer is not in the store. Different feedback from the same source replaces its earlier
        one, of which up to `MOST_REVISIONS` are kept; repeating the same is a no-op. A write cannot be cancelled: it is
        done even if its caller stops waiting.
        """

    def write_calls(self, calls: Sequence[Sequence[Row]]) -> Future[Outcomes]:
        """Write the rows of each call as `write` would, in the calling thread if that needs no waiting.

        The future gives the outcome of each call; it has resolved when this returns if the calling thread wrote them.
        It fails with StoreError if the calls could not be queued.
        """

    def answer(self, answer_id: str) -> StoredAnswer | None:
        """The stored answer; None if there is none."""

    def subscribe(self, on_feedback: OnFeedback, *, last: int) -> None:
        """Call ``on_feedback`` with each feedback of any process and its answer, in the order of commits.

        Before this returns, all feedback on the ``last`` answers that got any most recently is delivered; afterwards
        each new one. Feedback written by this process is delivered before its `write` future resolves. Feedback is
        delivered again when a probe of its answer is committed later. ``on_feedback`` is called on the store's thread
        and must be quick.
        """

    def open_accounts(self, accounts: Iterable[Account]) -> Mapping[Account, Balance]:
        """Keep balances of these accounts from now on, starting from the ledger's sums; return the balances."""

    def reserve(self, reservation: Reservation, limits: Mapping[Account, Decimal]) -> Future[ReservationResult]:
        """Reserve an amount if spent + reserved + amount stays within all limits; else change nothing.

        Atomic across all processes on this store. A `LedgerRow` or a `Release` with the reservation ends it, except for
        the part in `LedgerRow.held_on`. The accounts must be open; the future fails with StoreError if the store does.
        """

    def balances(self, accounts: Iterable[Account]) -> Future[Mapping[Account, Balance]]:
        """The current balances of open accounts."""

    def capabilities(self, key: str) -> CapabilityRow | None:
        """The latest capability check under this key."""

    def health(self) -> Future[Mapping[str, HealthRow]]:
        """The health of every endpoint whose breaker ever changed, by key."""

    def ledger(self, by: Grouping) -> Sequence[LedgerSum]:
        """The ledger summed by endpoint, tag ("": none) or day (UTC, ISO date), in order of the keys; or as one sum.

        A row with several tags counts towards each of them. Pruned rows count only by endpoint. Reads the whole ledger.
        """

    def totals(self) -> Mapping[str, LedgerSum]:
        """The ledger's sum for each endpoint that was called, by endpoint, pruned rows included.

        An ask counts at the endpoint that it called first; what is estimated or held is left out. Fast, however long
        the ledger is.
        """

    def recent(self, limit: int) -> Iterable[tuple[StoredAnswer, tuple[Feedback, ...]]]:
        """The latest answers with their feedback, oldest first."""

    def verify(self) -> tuple[str, ...]:
        """Check integrity; return a description of each problem."""

    def reconcile(self, *, repair: bool = False) -> Sequence[BalanceDifference]:
        """Compare open accounts' balances with the sums of ledger and reservations; return the differences.

        Once old rows were pruned, only the account of all calls and unreadable balances can be compared.

        Args:
            repair: replace the balances by the sums, and settle the reservations of dead processes. In SQLite this also
                accepts lost rows: `verify` no longer reports them.
        """

    def close(self) -> None:
        """Commit what is queued and release every resource. Idempotent."""
