"""The SQL that writes: rows, reservations, and the balances of accounts with limits.

To reserve an amount, to settle it by a ledger row and to release it each take one transaction. So balances are exact
across all processes on the database, whether or not a process has limits itself. Opening an account sums the ledger and
the reservations; from then on every process updates its balance. A call counts towards the period in which it was
reserved, whenever it ends. Periods never go back, except from one that a wrong clock began: then the balance of the
present period is summed again.

If a process dies, its reservation becomes a ledger row, estimated at the whole amount, once the call can no longer be
under way and some process has the store open. If the process was only suspended and settles the call after all, that
row replaces the estimate. Likewise, the bill of a call that broke off is an estimate until its cost is known; until
then, or for a day, part of its reservation stays held.
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
from focalroute.store.engine import LEDGER_ROWS_AN_ANSWER, difference_of, duplicate_answer, unknown_answer
from focalroute.store.sqlite.checksums import CHAINED, COLUMNS, Chain, checksum, head, seal

if TYPE_CHECKING:
    import sqlite3

_log = logging.getLogger("focalroute.store")

_LONGEST_S = 3600.0  # how long a call may take whose reservation has no deadline, as earlier versions wrote them
#: The columns of the ledger's sums: the key, then those that are added.
SUMMED = ("endpoint", "asks", "calls", "unpriced", "prompt_tokens", "completion_tokens", "micro", "pico")
#: SQL: whether a row of the ledger is a call of an ask.
IS_OF_ASK = f"answer_id NOT LIKE '{PROBE}%' AND answer_id NOT LIKE '{JUDGE}%'"
_SUMMED_UPTO = "(SELECT coalesce(max(upto), 0) FROM ledger_sums)"  # the last ledger row that is in the sums
# The sums of the ledger rows that meet a condition; an ask counts at the endpoint of its first row.
_SUMS = f"""
SELECT endpoint,
    sum({IS_OF_ASK} AND NOT EXISTS
        (SELECT 1 FROM ledger AS same WHERE same.answer_id = ledger.answer_id AND same.seq < ledger.seq)) AS asks,
    count(*) AS calls, sum(cost_pico IS NULL) AS unpriced,
    coalesce(sum(prompt_tokens), 0) AS prompt_tokens, coalesce(sum(completion_tokens), 0) AS completion_tokens,
    coalesce(sum(cost_pico / 1000000), 0) AS micro, coalesce(sum(cost_pico % 1000000), 0) AS pico
FROM ledger WHERE {{}} GROUP BY endpoint
"""  # noqa: S608 - constants
#: The stored sums, and those of the rows that are not in them yet.
ALL_SUMS = f"SELECT {', '.join(SUMMED)} FROM ledger_sums UNION ALL {_SUMS.format(f'seq > {_SUMMED_UPTO}')}"  # noqa: S608 - constants


# -- rows ----------------------------------------------------------------------------------------------------------


def insert(db: sqlite3.Connection, row: Row, chain: Chain) -> None:
    """Insert a row, and count it among the chained rows.

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
        newer: a column of times: an older row does not replace a newer one, unless a wrong clock wrote that.
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
        sealed: the values that the checksum covers, if not ``values``.
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
    earlier = db.execute(
        "SELECT reward, label FROM feedback WHERE answer_id = ? AND (source = ? OR instr(source, ?) = 1) ORDER BY seq",
        (row.answer_id, row.source, row.source + REVISION),
    ).fetchall()
    if earlier[-1] == (row.reward, row.label):
        return
    number = min(len(earlier), MOST_REVISIONS - 1)
    source = f"{row.source}{REVISION}{number}"
    if number < len(earlier):
        which = "WHERE answer_id = ? AND source = ?"
        chain.remove("feedback", which, (row.answer_id, source))
        db.execute(f"DELETE FROM feedback {which}", (row.answer_id, source))  # noqa: S608 - constants
    _try_feedback(db, row, source, chain)


def _try_feedback(db: sqlite3.Connection, row: Feedback, source: str, chain: Chain) -> bool:
    """Insert feedback unless this source has given some on the answer; return whether it was inserted.

    The foreign key checks that the answer exists, which saves a statement.
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
    """Add the next ledger rows to the ledger's sums: at most ``most``, and none if there are fewer than ``least``.

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
    """Subtract the estimated row of a call, which was deleted, from the ledger's sums, if it is in them."""
    ask, endpoint = reservation.answer_id, reservation.endpoint
    others = f"SELECT EXISTS (SELECT 1 FROM ledger WHERE answer_id = ? AND seq <= {_SUMMED_UPTO})"  # noqa: S608 - constants
    still_counted = ask.startswith((PROBE, JUDGE)) or db.execute(others, (ask,)).fetchone()[0]
    less = "asks = asks - ?, calls = calls - 1, micro = micro - ?, pico = pico - ?"
    values = (not still_counted, pico // 1_000_000, pico % 1_000_000, endpoint, seq)
    db.execute(f"UPDATE ledger_sums SET {less} WHERE endpoint = ? AND ? <= {_SUMMED_UPTO}", values)  # noqa: S608 - constants
    seal(db, "ledger_sums")


def prune(db: sqlite3.Connection, keep: int, chain: Chain) -> None:
    """Delete all but the latest ``keep`` answers, with their feedback and probes, and the ledger's oldest rows.

    The ledger's sums keep what the deleted rows add up to.
    """
    old = "WHERE answers.seq <= (SELECT max(seq) - ? FROM answers)"
    chain.remove("answers", old, (keep,))
    for table in ("feedback", "probes"):
        chain.remove(table, f"JOIN answers ON answers.id = {table}.answer_id {old}", (keep,))
    db.execute(f"DELETE FROM answers {old}", (keep,))  # noqa: S608 - constants
    last = db.execute("SELECT max(seq) - ? FROM ledger", (LEDGER_ROWS_AN_ANSWER * keep,)).fetchone()
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
        now: when the transaction began, Unix time.
        chain: counts the chained rows.
    """

    def __init__(self, db: sqlite3.Connection, now: float, chain: Chain) -> None:
        self._db = db
        self.chain = chain
        self._now = now
        self._states: dict[str, dict[Account, AccountState]] = {}  # the open accounts by tag
        self._changed: set[Account] = set()
        self._corrected: list[Account] = []  # after a wrong clock

    def open(self, accounts: Iterable[Account]) -> dict[Account, Balance]:
        """Open the accounts that are not open yet; return the balances of all."""
        wanted = list(accounts)
        new = {account: account.period(self._now) for account in wanted if account not in self._opened(account.tag)}
        for account, state in _add_up(self._db, new).items():
            self._set(account, state)
        return self.balances(wanted)

    def balances(self, accounts: Iterable[Account]) -> dict[Account, Balance]:
        """The balances of open accounts."""
        return {account: self._state(account, self._now).balance(account) for account in accounts}

    def reserve(self, reservation: Reservation, limits: Mapping[Account, Decimal]) -> ReservationResult:
        """Reserve the amount in every account that it counts towards, if it fits all limits."""
        amount = pico_above(reservation.amount)
        periods_begin = (self._state(account, 0.0).period * account.period_s for account in limits)
        at = max(self._now, *periods_begin, 0.0)
        granted = all(self._state(account, at).fits(amount, pico_below(limits[account])) for account in limits)
        if granted:
            self._resume(reservation.tags, at)
            self._hold(reservation, at, until=at + reservation.timeout_s + GRACE_S)
            self._add(reservation.tags, at, reserved=amount)
        balances = {account: self._state(account, at).balance(account) for account in limits}
        return ReservationResult(granted, at, balances)

    def resume(self, rows: Iterable[Row]) -> None:
        """Before rows are written, resume the periods that a clock has returned to (see `_resume`)."""
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
        """Turn dead processes' reservations into estimated ledger rows; release what was held in doubt for a day.

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
        """Replace the balances by the sums of ledger and reservations; return the differences."""
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
        if self._corrected:
            _log.warning(
                "the clock was far ahead, so the balances of %s were of periods that have not begun. The sums of the "
                "ledger for the present periods replace them",
                ", ".join(map(str, self._corrected)),
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
        """Delete a reservation and the estimated row of its call; return the picodollars of each, 0 if missing."""
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
        """Add picodollars to every open account that a call with these tags, begun at this time, counts towards.

        A time far ahead comes from a wrong clock and begins no new period. An account that is in such a period already
        still counts its calls, as the clock may return to it.
        """
        for account, state in self._accounts_of(tags):
            period = account.period(at)
            changed = state.add(period, spent, reserved)
            if changed is not state and (period == state.period or account.credible(period, self._now)):
                self._set(account, changed)

    def _resume(self, tags: Sequence[str], at: float) -> None:
        """If the clock was set back and has returned, resume what open accounts had spent in a call's period."""
        for account, state in self._accounts_of(tags):
            if account.period(at) > state.period and account.credible(account.period(at), self._now):
                self._state(account, at)

    def _accounts_of(self, tags: Sequence[str]) -> list[tuple[Account, AccountState]]:
        """The open accounts that a call with these tags counts towards. All are read first, as one may be damaged."""
        return [account for tag in {"", *tags} for account in self._opened(tag).items()]

    def _state(self, account: Account, at: float) -> AccountState:
        """The account's state at a time, summed again if a wrong clock began its period, or has returned to this."""
        state = self._opened(account.tag).get(account, AccountState(0))
        if not account.credible(state.period, self._now):
            state = _add_up(self._db, {account: account.period(self._now)})[account]
            self._set(account, state)
            self._corrected.append(account)
        period = account.period(at)
        if period > state.period and self._has_calls(account, period):
            state = _add_up(self._db, {account: period})[account]
            self._set(account, state)
        return state.at(period)

    def _has_calls(self, account: Account, period: int) -> bool:
        """Whether calls of a period are among the latest: then the clock was set back since, and has returned."""
        query = (
            "SELECT EXISTS (SELECT 1 FROM (SELECT * FROM (SELECT at, tags FROM ledger ORDER BY seq DESC LIMIT ?) "
            "UNION ALL SELECT at, tags FROM reservations) "
            "WHERE (? = '' OR ? IN (SELECT value FROM json_each(tags))) AND at >= ?)"
        )
        values = (LATEST_CALLS, account.tag, account.tag, period * account.period_s)
        return bool(self._db.execute(query, values).fetchone()[0])

    def _opened(self, tag: str) -> dict[Account, AccountState]:
        """The open accounts of a tag."""
        if tag not in self._states:
            found = self._db.execute("SELECT period_s, period, spent, reserved FROM balances WHERE tag = ?", (tag,))
            self._states[tag] = {Account(tag, period_s): _state_of(tag, rest) for period_s, *rest in found}
        return self._states[tag]

    def _set(self, account: Account, state: AccountState) -> None:
        self._opened(account.tag)[account] = state
        self._changed.add(account)


def _state_of(tag: str, values: Iterable[str | int]) -> AccountState:
    """Decode a balance's columns; StoreError if they are damaged."""
    try:
        return AccountState(*map(int, values))
    except (ValueError, TypeError):
        raise StoreError(f"the balance of the tag {tag!r} is damaged; see `focalroute ledger --repair`") from None


def find_differences(db: sqlite3.Connection, now: float) -> list[tuple[Account, AccountState | None, AccountState]]:
    """The accounts whose stored state differs from the sum of ledger and reservations: (account, stored, sum).

    After pruning, the sums of tags and periods are unknown, so accounts with either are left out.
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
    """Sum the ledger and the reservations of accounts, each in the period given by its number.

    One pass serves all accounts of a period, as other processes may be waiting.
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
    """Sum picodollars by tag ("": all rows); the query's rows have tags, micro- and picodollars.

    Two columns, as a 64-bit sum of picodollars overflows at 9.2 million USD.
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
