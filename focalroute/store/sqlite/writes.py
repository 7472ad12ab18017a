"""The SQL that writes: rows, reservations, and the balances of accounts with limits.

Reserving (or refusing), settling by a ledger row and releasing each happen within one transaction, so they are exact
across all processes on the database, whether or not a process has limits itself. A call counts towards the period in
which it was reserved, whenever it ends; the moment is taken within the transaction. Opening an account sums the ledger
and the reservations; from then on every process updates the balance. Periods never go back, except from one that a
wrong clock began: then the balance of the present period is summed again.

A reservation of a dead process becomes a ledger row, estimated at the whole amount, once the call can no longer be
under way and some process has the store open. If its process was only asleep and settles the call after all, the
estimate is removed. So is the estimate of a call that broke off, if its cost becomes known; until then, or for a day,
part of its reservation stays.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING

from focalroute.core.errors import StoreError
from focalroute.core.records import Feedback
from focalroute.store.accounts import (
    AHEAD_S,
    DOUBT_S,
    GRACE_S,
    LATEST_CALLS,
    Account,
    AccountState,
    Balance,
    pico_above,
    pico_below,
    to_pico,
)
from focalroute.store.base import (
    DOUBT,
    JUDGE,
    MOST_REVISIONS,
    PROBE,
    REVISION,
    BalanceDifference,
    CapabilityRow,
    HealthRow,
    LedgerRow,
    Release,
    Reservation,
    ReservationResult,
    Row,
    StoredAnswer,
    StoredProbe,
)
from focalroute.store.codec import pack, write_answer, write_probe, write_tags
from focalroute.store.engine import difference_of, duplicate_answer, unknown_answer
from focalroute.store.sqlite.checksums import CHAINED, COLUMNS, Chain, checksum, head, seal

if TYPE_CHECKING:
    import sqlite3

_log = logging.getLogger("focalroute.store")

#: The rows of calls that count towards an account, given its tag twice.
_OF_TAG = "(? = '' OR ? IN (SELECT value FROM json_each(tags)))"
_LONGEST_S = 3600.0  # of a call, for old reservations without a deadline
_LEDGER_ROWS_AN_ANSWER = 8  # kept for each answer that is kept
#: The columns of the ledger's sums, all but the first of which can be added.
SUMMED = ("endpoint", "asks", "calls", "unpriced", "prompt_tokens", "completion_tokens", "micro", "pico")
#: Whether a row of the ledger is a call of an ask.
IS_OF_ASK = f"answer_id NOT LIKE '{PROBE}%' AND answer_id NOT LIKE '{JUDGE}%'"
_SUMMED_UPTO = "(SELECT coalesce(max(upto), 0) FROM ledger_sums)"  # the last ledger row that is in the sums
# The sums of the ledger rows of a condition; an ask counts at the endpoint of its first row.
_SUMS = f"""
SELECT endpoint,
    sum({IS_OF_ASK} AND NOT EXISTS
        (SELECT 1 FROM ledger AS same WHERE same.answer_id = ledger.answer_id AND same.seq < ledger.seq)) AS asks,
    count(*) AS calls, sum(cost_pico IS NULL) AS unpriced,
    coalesce(sum(prompt_tokens), 0) AS prompt_tokens, coalesce(sum(completion_tokens), 0) AS completion_tokens,
    coalesce(sum(cost_pico / 1000000), 0) AS micro, coalesce(sum(cost_pico % 1000000), 0) AS pico
FROM ledger WHERE {{}} GROUP BY endpoint
"""  # noqa: S608 - constants
#: The sums that are kept, and those of the rows after them.
ALL_SUMS = f"SELECT {', '.join(SUMMED)} FROM ledger_sums UNION ALL {_SUMS.format(f'seq > {_SUMMED_UPTO}')}"  # noqa: S608 - constants


# -- rows ----------------------------------------------------------------------------------------------------------


def insert(db: sqlite3.Connection, row: Row, chain: Chain) -> None:
    """Insert a row, and count it in the chain.

    Raises:
        UnknownAnswer: feedback for an answer that is not in the store.
        StoreError: an answer with this id is stored already.
    """
    if isinstance(row, StoredAnswer):
        _insert_answer(db, row, chain)
    elif isinstance(row, Feedback):
        _insert_feedback(db, row, chain)
    elif isinstance(row, LedgerRow):
        _insert_ledger_row(db, row, chain)
    elif isinstance(row, StoredProbe):
        _put(db, chain, "probes", (row.answer_id, row.endpoint, write_probe(row)))
    elif isinstance(row, CapabilityRow):
        checked = (row.key, float(row.probed_at), json.dumps(dict(row.values)))
        _put(db, chain, "capabilities", checked, _replacing("capabilities", "key", newer="probed_at"))
    elif isinstance(row, HealthRow):
        until = None if row.open_until is None else float(row.open_until)
        health = (row.key, until, row.ejections, float(row.changed_at))
        _put(db, chain, "health", health, _replacing("health", "key", newer="changed_at"))


@cache
def _statement(table: str, conflict: str) -> str:
    columns = (*COLUMNS[table], "crc")
    places = ", ".join("?" * len(columns))
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places}) {conflict}"  # noqa: S608 - constants


@cache
def _replacing(table: str, keys: str, newer: str = "") -> str:
    """The clause that replaces the row with the same keys.

    Args:
        newer: a column of moments, by which an older row replaces no newer one, unless a wrong clock wrote that.
    """
    columns = [column for column in (*COLUMNS[table], "crc") if column not in keys.split(", ")]
    clause = f"ON CONFLICT ({keys}) DO UPDATE SET {', '.join(f'{column} = excluded.{column}' for column in columns)}"
    if newer:
        clause += f" WHERE excluded.{newer} >= {newer} OR {newer} > strftime('%s', 'now') + {AHEAD_S}"
    return clause


def _put(
    db: sqlite3.Connection,
    chain: Chain,
    table: str,
    values: Sequence[object],
    conflict: str = "",
    *,
    sealed: Sequence[object] | None = None,
) -> bool:
    """Insert a row's values, in the order of `COLUMNS`, with their checksum; return whether it was inserted.

    Args:
        conflict: the SQL clause for a row that exists already.
        sealed: the values that the checksum covers; None: ``values``.
    """
    crc = checksum(sealed or values)
    inserted = db.execute(_statement(table, conflict), (*values, crc)).rowcount > 0
    if inserted and table in CHAINED:
        chain.add(crc)
    return inserted


def _insert_answer(db: sqlite3.Connection, row: StoredAnswer, chain: Chain) -> None:
    blob = None
    if row.trajectory is not None:
        blob = pack(row.trajectory)
    values = (row.id, float(row.created_at), write_answer(row), blob, row.receipt, row.texts)
    sealed = (*values[:3], head(blob), *values[4:])
    if not _put(db, chain, "answers", values, "ON CONFLICT (id) DO NOTHING", sealed=sealed):
        raise duplicate_answer(row.id)


def _insert_feedback(db: sqlite3.Connection, row: Feedback, chain: Chain) -> None:
    """Insert feedback: the first of its source in one statement, a different later one as a revision."""
    if _try_feedback(db, row, row.source, chain):
        return
    chain.touch()
    said = db.execute(
        "SELECT reward, label FROM feedback WHERE answer_id = ? AND (source = ? OR instr(source, ?) = 1) ORDER BY seq",
        (row.answer_id, row.source, row.source + REVISION),
    ).fetchall()
    if said[-1] == (row.reward, row.label):
        return
    number = min(len(said), MOST_REVISIONS - 1)
    source = f"{row.source}{REVISION}{number}"
    if number < len(said):
        which = "WHERE answer_id = ? AND source = ?"
        chain.remove("feedback", which, (row.answer_id, source))
        db.execute(f"DELETE FROM feedback {which}", (row.answer_id, source))  # noqa: S608 - constants
    _try_feedback(db, row, source, chain)


def _try_feedback(db: sqlite3.Connection, row: Feedback, source: str, chain: Chain) -> bool:
    """Insert feedback unless this source has some on the answer; return whether it was inserted.

    The foreign key finds out whether the answer exists, without another statement.
    """
    values = (row.answer_id, source, float(row.reward), row.label, float(row.created_at))
    try:
        return _put(db, chain, "feedback", values, "ON CONFLICT (answer_id, source) DO NOTHING")
    except db.IntegrityError:
        if db.execute("SELECT 1 FROM answers WHERE id = ?", (row.answer_id,)).fetchone() is not None:
            raise
        raise unknown_answer(row.answer_id) from None


def _insert_ledger_row(db: sqlite3.Connection, row: LedgerRow, chain: Chain) -> None:
    overdue = row.held_on and row.held_on.id
    paid = (to_pico(row.cost), row.cost_source, write_tags(row.tags), overdue)
    _put(db, chain, "ledger", (row.answer_id, row.endpoint, float(row.at), *row.used, *paid))


def sum_up(db: sqlite3.Connection, *, least: int = 1, most: int = sys.maxsize) -> bool:
    """Add the next ledger rows, at most ``most``, to the ledger's sums, unless there are fewer than ``least``.

    Returns:
        Whether there may be more.
    """
    (last,) = db.execute(f"SELECT {_SUMMED_UPTO}").fetchone()
    following = "SELECT count(*), max(seq) FROM (SELECT seq FROM ledger WHERE seq > ? ORDER BY seq LIMIT ?)"
    count, upto = db.execute(following, (last, most)).fetchone()
    if count < least:
        return False
    added = ", ".join(f"{column} = {column} + excluded.{column}" for column in SUMMED[1:])
    db.execute(
        f"INSERT INTO ledger_sums ({', '.join(SUMMED)}, upto) "  # noqa: S608 - constants
        f"SELECT *, ? FROM ({_SUMS.format('seq > ? AND seq <= ?')}) WHERE true "
        f"ON CONFLICT (endpoint) DO UPDATE SET {added}, upto = excluded.upto",
        (upto, last, upto),
    )
    seal(db, "ledger_sums")
    return bool(count == most)


def _take_from_sums(db: sqlite3.Connection, reservation: Reservation, seq: int, pico: int) -> None:
    """Take a deleted row, the estimate of a call, from the ledger's sums, if it is in them."""
    ask, endpoint = reservation.answer_id, reservation.endpoint
    others = f"SELECT EXISTS (SELECT 1 FROM ledger WHERE answer_id = ? AND seq <= {_SUMMED_UPTO})"  # noqa: S608 - constants
    no_ask = ask.startswith((PROBE, JUDGE)) or db.execute(others, (ask,)).fetchone()[0]
    less = "asks = asks - ?, calls = calls - 1, micro = micro - ?, pico = pico - ?"
    values = (not no_ask, pico // 1_000_000, pico % 1_000_000, endpoint, seq)
    db.execute(f"UPDATE ledger_sums SET {less} WHERE endpoint = ? AND ? <= {_SUMMED_UPTO}", values)  # noqa: S608 - constants
    seal(db, "ledger_sums")


def prune(db: sqlite3.Connection, keep: int, chain: Chain) -> None:
    """Drop answers beyond the latest ``keep``, with their feedback and probes, and old ledger rows from its sums on."""
    old = "WHERE answers.seq <= (SELECT max(seq) - ? FROM answers)"
    chain.remove("answers", old, (keep,))
    for table in ("feedback", "probes"):
        chain.remove(table, f"JOIN answers ON answers.id = {table}.answer_id {old}", (keep,))
    db.execute(f"DELETE FROM answers {old}", (keep,))  # noqa: S608 - constants
    last = db.execute("SELECT max(seq) - ? FROM ledger", (_LEDGER_ROWS_AN_ANSWER * keep,)).fetchone()
    sum_up(db)
    chain.remove("ledger", "WHERE seq <= ?", last)
    if db.execute("DELETE FROM ledger WHERE seq <= ?", last).rowcount:
        db.execute("UPDATE ledger_sums SET pruned = 1")
        seal(db, "ledger_sums")


# -- balances ------------------------------------------------------------------------------------------------------


class AccountBalances:
    """The balances within one transaction: read once, changed in memory, written by `save`.

    So a commit shared by many calls takes a few statements for balances, not a few for each call.

    Args:
        now: the time of the transaction, Unix time.
        chain: counts the rows written.
    """

    def __init__(self, db: sqlite3.Connection, now: float, chain: Chain) -> None:
        self._db = db
        self.chain = chain
        self._now = now
        self._states: dict[str, dict[Account, AccountState]] = {}  # by tag
        self._changed: set[Account] = set()
        self._put_right: list[Account] = []

    def open(self, accounts: Iterable[Account]) -> dict[Account, Balance]:
        """Open the accounts that are not open yet; return the balances of all."""
        wanted = list(accounts)
        new = {account: account.period(self._now) for account in wanted if account not in self._of(account.tag)}
        for account, state in _add_up(self._db, new).items():
            self._set(account, state)
        return self.balances(wanted)

    def balances(self, accounts: Iterable[Account]) -> dict[Account, Balance]:
        """The balances of open accounts."""
        return {account: self._state(account, self._now).balance(account) for account in accounts}

    def reserve(self, reservation: Reservation, limits: Mapping[Account, Decimal]) -> ReservationResult:
        """Reserve the amount in every account it counts towards, if it fits all limits."""
        amount = pico_above(reservation.amount)
        begun = (self._state(account, 0.0).period * account.period_s for account in limits)
        at = max(self._now, *begun, 0.0)
        granted = all(self._state(account, at).fits(amount, pico_below(limits[account])) for account in limits)
        if granted:
            self._resume(reservation.tags, at)
            self._hold(reservation, at, until=at + reservation.timeout_s + GRACE_S)
            self._add(reservation.tags, at, reserved=amount)
        balances = {account: self._state(account, at).balance(account) for account in limits}
        return ReservationResult(granted, at, balances)

    def resume(self, rows: Iterable[Row]) -> None:
        """Resume the periods that a clock has come back to with these rows, which are not written yet."""
        for row in rows:
            if isinstance(row, LedgerRow):
                self._resume(row.tags, row.at)
            elif isinstance(row, Release):
                self._resume(row.reservation.tags, row.at)

    def count(self, rows: Iterable[Row]) -> None:
        """Add the cost of ledger rows to the balances, and end the reservations that rows settle or release."""
        for row in rows:
            if isinstance(row, LedgerRow):
                held, estimated = (0, 0) if row.reservation is None else self._end(row.reservation)
                if row.held_on is not None and held + estimated:
                    held -= self._hold(row.held_on, row.at, until=self._now + DOUBT_S)
                self._add(row.tags, row.at, spent=(to_pico(row.cost) or 0) - estimated, reserved=-held)
            elif isinstance(row, Release):
                held, estimated = self._end(row.reservation)
                self._add(row.reservation.tags, row.at, spent=-estimated, reserved=-held)

    def settle_overdue(self) -> None:
        """Turn dead processes' reservations into ledger rows, estimated at the whole amount; release overdue doubts.

        A reservation made by a clock far ahead gets its full time again, from now.
        """
        ahead = "UPDATE reservations SET until = ? + until - at WHERE at > ? AND until > at"
        if self._db.execute(ahead, (self._now, self._now + AHEAD_S)).rowcount:
            seal(self._db, "reservations")
        overdue = (
            "SELECT id, answer_id, endpoint, at, pico, tags FROM reservations "
            "WHERE coalesce(until, at + ?) < ? ORDER BY at"
        )
        longest = (_LONGEST_S + GRACE_S, self._now)
        for held, answer_id, endpoint, at, amount, tags in self._db.execute(overdue, longest).fetchall():
            doubt = held.startswith(DOUBT)
            bill = (answer_id, endpoint, at, *(None,) * 5, amount, "reserved", tags, held)
            self._resume(json.loads(tags), at)
            if not doubt:
                _put(self._db, self.chain, "ledger", bill)
            self._db.execute("DELETE FROM reservations WHERE id = ?", (held,))
            self._add(json.loads(tags), at, spent=0 if doubt else amount, reserved=-amount)

    def repair(self) -> list[BalanceDifference]:
        """Set the balances to the sums of ledger and reservations; return the differences."""
        self.save()  # the transaction's own changes are not differences
        self._states.clear()
        self._changed.clear()
        found = find_differences(self._db, self._now)
        for account, _, true in found:
            self._write(account, true)
        if not is_pruned(self._db):
            self._db.execute("DELETE FROM ledger_sums")  # they are added up again
        self.settle_overdue()
        self.chain.accept()
        return [difference_of(*one) for one in found]

    def save(self) -> None:
        """Write the changed balances."""
        for account in self._changed:
            self._write(account, self._states[account.tag][account])
        if self._put_right:
            _log.warning(
                "the clock was far ahead, so the balances of %s were of periods that have not begun. The sums of the "
                "ledger for the present periods replace them",
                ", ".join(map(str, self._put_right)),
            )

    def _write(self, account: Account, state: AccountState) -> None:
        values = (account.tag, account.period_s, state.period, str(state.spent), str(state.reserved))
        _put(self._db, self.chain, "balances", values, _replacing("balances", "tag, period_s"))

    def _hold(self, reservation: Reservation, at: float, *, until: float) -> int:
        """Insert a reservation; return its picodollars."""
        amount = pico_above(reservation.amount)
        held = (reservation.id, reservation.answer_id, reservation.endpoint, float(at), amount, float(until))
        _put(self._db, self.chain, "reservations", (*held, write_tags(reservation.tags)))
        return amount

    def _end(self, reservation: Reservation) -> tuple[int, int]:
        """Delete a reservation and the estimated row of its call; return the picodollars of both, 0 if missing."""
        held = 0
        if self._db.execute("DELETE FROM reservations WHERE id = ?", (reservation.id,)).rowcount:
            held = pico_above(reservation.amount)
            if not reservation.id.startswith(DOUBT):
                return held, 0
        estimate = self._db.execute("SELECT seq, cost_pico FROM ledger WHERE overdue = ?", (reservation.id,)).fetchone()
        if estimate is None:
            return held, 0
        self.chain.remove("ledger", "WHERE overdue = ?", (reservation.id,))
        self._db.execute("DELETE FROM ledger WHERE overdue = ?", (reservation.id,))
        _take_from_sums(self._db, reservation, *estimate)
        return held, estimate[1]

    def _add(self, tags: Sequence[str], at: float, *, spent: int = 0, reserved: int = 0) -> None:
        """Add picodollars to every open account that a call with these tags and this begin counts towards.

        A time far ahead comes from a wrong clock, and moves no period. An account that is in such a period still counts
        its calls, as the clock may return to it.
        """
        found = [one for tag in {"", *tags} for one in self._of(tag).items()]  # first all, as one may be damaged
        for account, state in found:
            period = account.period(at)
            changed = state.add(period, spent, reserved)
            if changed is not state and (period == state.period or account.credible(period, self._now)):
                self._set(account, changed)

    def _resume(self, tags: Sequence[str], at: float) -> None:
        """Go on with what the open accounts had spent in the period of a call, if they have left it; see `_state`."""
        for account, state in [one for tag in {"", *tags} for one in self._of(tag).items()]:
            if account.period(at) > state.period and account.credible(account.period(at), self._now):
                self._state(account, at)

    def _state(self, account: Account, at: float) -> AccountState:
        state = self._of(account.tag).get(account, AccountState(0))
        if not account.credible(state.period, self._now):
            state = _add_up(self._db, {account: account.period(self._now)})[account]
            self._set(account, state)
            self._put_right.append(account)
        period = account.period(at)
        if period > state.period and self._has_calls(account, period):
            state = _add_up(self._db, {account: period})[account]
            self._set(account, state)
        return state.at(period)

    def _has_calls(self, account: Account, period: int) -> bool:
        """Whether calls of a period are among the latest: then the clock was set back since, and has returned."""
        latest = (
            "SELECT EXISTS (SELECT 1 FROM (SELECT * FROM (SELECT at, tags FROM ledger ORDER BY seq DESC LIMIT ?) "
            "UNION ALL SELECT at, tags FROM reservations) WHERE {} AND at >= ?)"
        )
        values = (LATEST_CALLS, account.tag, account.tag, period * account.period_s)
        return bool(self._db.execute(latest.format(_OF_TAG), values).fetchone()[0])

    def _of(self, tag: str) -> dict[Account, AccountState]:
        """The open accounts of a tag."""
        if tag not in self._states:
            found = self._db.execute("SELECT period_s, period, spent, reserved FROM balances WHERE tag = ?", (tag,))
            self._states[tag] = {Account(tag, period_s): _state_of(tag, rest) for period_s, *rest in found}
        return self._states[tag]

    def _set(self, account: Account, state: AccountState) -> None:
        self._of(account.tag)[account] = state
        self._changed.add(account)


def _state_of(tag: str, values: Iterable[str | int]) -> AccountState:
    """Decode a balance's columns; StoreError if they are damaged."""
    try:
        return AccountState(*map(int, values))
    except (ValueError, TypeError):
        raise StoreError(f"the balance of the tag {tag!r} is damaged; see `focalroute ledger --repair`") from None


def find_differences(db: sqlite3.Connection, now: float) -> list[tuple[Account, AccountState | None, AccountState]]:
    """The accounts whose stored state differs from the sum of ledger and reservations: (account, stored, sum).

    After pruning, the sums of tags and periods are unknown, so those accounts are left out.
    """
    pruned = is_pruned(db)
    kept: dict[Account, AccountState | None] = {}
    periods: dict[Account, int] = {}
    for tag, period_s, *values in db.execute("SELECT tag, period_s, period, spent, reserved FROM balances").fetchall():
        account, state = Account(tag, period_s), None
        with contextlib.suppress(StoreError):
            state = _state_of(tag, values)
        if state is not None and pruned and account != Account():
            continue
        known = state is not None and account.credible(state.period, now)
        kept[account] = state
        periods[account] = state.period if state is not None and known else account.period(now)
    return [(account, kept[account], true) for account, true in _add_up(db, periods).items() if true != kept[account]]


def _add_up(db: sqlite3.Connection, periods: Mapping[Account, int]) -> dict[Account, AccountState]:
    """Sum the ledger and the reservations of accounts, each in the period of this number.

    One pass serves all accounts of a period, as other processes may have to wait for it.
    """
    found: dict[Account, AccountState] = {}
    for period_s, period in {(account.period_s, period) for account, period in periods.items()}:
        accounts = [account for account, number in periods.items() if (account.period_s, number) == (period_s, period)]
        tags, which = "'[]'", "WHERE ? = 0 OR (at >= ? AND at < ?)"
        if any(account.tag for account in accounts):
            tags, which = "tags", f"{which} GROUP BY tags"
        within = (period_s, period * period_s, (period + 1) * period_s)
        spent = f"SELECT {tags}, sum(cost_pico / 1000000), sum(cost_pico % 1000000) FROM ledger {which}"  # noqa: S608 - constants
        held = f"SELECT {tags}, sum(pico / 1000000), sum(pico % 1000000) FROM reservations {which}"  # noqa: S608 - constants
        spent_by_tag, held_by_tag = _sums(db, spent, within), _sums(db, held, within)
        for account in accounts:
            found[account] = AccountState(period, spent_by_tag[account.tag], held_by_tag[account.tag])
    if Account() in found and is_pruned(db):
        spent_by_tag = _sums(db, f"SELECT '[]', micro, pico FROM ({ALL_SUMS})")  # noqa: S608 - constants
        found[Account()] = found[Account()]._replace(spent=spent_by_tag[""])
    return found


def is_pruned(db: sqlite3.Connection) -> bool:
    """Whether ledger rows were dropped, so that only the sums know what they cost."""
    return bool(db.execute("SELECT max(pruned) FROM ledger_sums").fetchone()[0])


def _sums(db: sqlite3.Connection, query: str, values: Sequence[object] = ()) -> Counter[str]:
    """Sum picodollars by tag ("": all rows) from rows of tags, micro- and picodollars.

    They are summed separately, as a 64-bit sum of picodollars overflows at 9.2 million USD.
    """
    sums = Counter[str]()
    for tags, micro, pico in db.execute(query, values):
        try:
            counted = {"", *json.loads(tags)}
        except (ValueError, TypeError):
            raise StoreError("the tags of a row of the ledger are damaged; see `Store.verify`") from None
        for tag in counted:
            sums[tag] += (micro or 0) * 1_000_000 + (pico or 0)
    return sums
