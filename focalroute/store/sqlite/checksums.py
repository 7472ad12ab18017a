"""Detects rows that were changed or lost, and acknowledged transactions that were lost.

Every row carries the CRC-32 of its values. The rows of answers, feedback, probes and the ledger are also *chained*: one
`Mark` holds their number, the sum of their checksums and the number of transactions that wrote any, and each such
transaction rewrites it. So `checks` find a row that was changed, lost or put back. The mark is a row of
``sqlite_sequence``, whose page those transactions write anyway: a table of its own took twice the time.

SQLite silently drops a damaged part of its write-ahead log and everything after it. Then the mark counts fewer
transactions than the `CommitLog`, a small file beside the database.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import struct
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

if TYPE_CHECKING:
    import sqlite3

_log = logging.getLogger("focalroute.store")

_HEAD = 8  # bytes of a trajectory: its own checksum and length, which cover the rest (see `focalroute.store.codec`)

#: The columns that a row's checksum covers, in this order, by table; the first column names the row.
COLUMNS = {
    "answers": ("id", "created_at", "record", "trajectory", "receipt", "texts"),
    "feedback": ("answer_id", "source", "reward", "label", "created_at"),
    "probes": ("answer_id", "endpoint", "record"),
    "ledger": (
        *("answer_id", "endpoint", "at", "prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens"),
        *("provider_pico", "cost_pico", "cost_source", "tags", "overdue"),
    ),
    "ledger_sums": (
        *("endpoint", "calls", "unpriced", "prompt_tokens", "completion_tokens", "micro", "pico"),
        *("asks", "upto", "pruned"),
    ),
    "capabilities": ("key", "probed_at", "capability_values"),
    "reservations": ("id", "answer_id", "endpoint", "at", "pico", "until", "tags"),
    "balances": ("tag", "period_s", "period", "spent", "reserved"),
    "health": ("key", "open_until", "ejections", "changed_at"),
}
#: The tables with chained rows. Only these may have old rows without checksums.
CHAINED = ("answers", "feedback", "probes", "ledger")
_SPACES = re.compile(r"--[^\n]*|\s")
_FORMATS = tuple("%s\0" * count for count in range(1 + max(map(len, COLUMNS.values()))))


def checksum(values: Sequence[object]) -> int:
    """The checksum of a row's values, which must have the types that SQLite returns: floats for REAL columns."""
    shown = [repr(value) if type(value) is bytes else value for value in values]  # python -b warns of str(bytes)
    return zlib.crc32((_FORMATS[len(values)] % tuple(shown)).encode("utf-8", "surrogatepass"))


def head(trajectory: object) -> object:
    """The part of a trajectory that its row's checksum covers."""
    return trajectory[:_HEAD] if isinstance(trajectory, bytes) else trajectory


def seal(db: sqlite3.Connection, table: str) -> None:
    """Recompute the checksum of every row of a table."""
    columns = COLUMNS[table]
    named = " AND ".join(f"{column} IS ?" for column in columns)
    for row in db.execute(f"SELECT {', '.join(columns)} FROM {table}").fetchall():  # noqa: S608 - constants
        db.execute(f"UPDATE {table} SET crc = ? WHERE {named}", (checksum(row), *row))  # noqa: S608 - constants


# -- the chain ---------------------------------------------------------------------------------------------------------


class Mark(NamedTuple):
    """The counts of the chained rows. Its text always has the same length, so it is overwritten in place.

    Attributes:
        store: the store's random id.
        commits: transactions that wrote or deleted chained rows.
        lost: acknowledged transactions that were missing when the store was opened.
        rows: rows with a checksum in all chained tables.
        total: the sum of their checksums.
        numbers: the sum of the latest row numbers (``seq``) of all chained tables.
    """

    store: int
    commits: int = 0
    lost: int = 0
    rows: int = 0
    total: int = 0
    numbers: int = 0

    def to_text(self) -> str:
        """Encode the mark for the database."""
        store, commits, lost, rows, total, numbers = self
        text = f"focalroute chain {store:016x} {commits:016x} {lost:016x} {rows:016x} {total:016x} {numbers:016x}"
        return f"{text} {zlib.crc32(text.encode()):08x}"

    @classmethod
    def of(cls, text: object) -> Self | None:
        """Decode a mark; None if it is damaged."""
        try:
            mark = cls(*(int(word, 16) for word in str(text).split()[2:8]))
        except (ValueError, TypeError):
            return None
        return mark if mark.to_text() == text else None


_NUMBERS = "SELECT sum(seq) FROM sqlite_sequence WHERE name <> 'chain'"
_STATE = f"SELECT seq, ({_NUMBERS}) FROM sqlite_sequence WHERE name = 'chain'"  # noqa: S608 - constants
_WRITE = "UPDATE sqlite_sequence SET seq = ? WHERE name = 'chain'"


class Chain:
    """Tracks how a transaction changes the chained rows, and updates the mark at its end.

    Attributes:
        counts: how much the number of rows and the sum of their checksums have changed.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._written = "", Mark(0)  # the last mark that this process wrote, to save parsing it
        self.begin()

    def begin(self) -> None:
        """Start tracking a new transaction."""
        self._touched = self._recount = False
        self.counts = (0, 0)

    def touch(self) -> None:
        """Make `save` write the mark, as an insertion without effect may have used up a row number."""
        self._touched = True

    def accept(self) -> None:
        """Make `save` recount the present rows and forget lost transactions."""
        self._touched = self._recount = True

    def add(self, crc: int) -> None:
        """Count a row of a chained table."""
        self._touched = True
        rows, total = self.counts
        self.counts = (rows + 1, total + crc)

    def remove(self, table: str, which: str, values: Sequence[object] = ()) -> None:
        """Subtract rows that are about to be deleted; ``which``: the query's text after the table's name."""
        query = f"SELECT count({table}.crc), coalesce(sum({table}.crc), 0) FROM {table} {which}"  # noqa: S608 - constants
        self._touched = True
        fewer, less = self._db.execute(query, values).fetchone()
        rows, total = self.counts
        self.counts = (rows - fewer, total - less)

    def save(self) -> Mark | None:
        """Write the mark and return it; None: no chained row has changed, or the mark is damaged."""
        if not self._touched:
            return None
        text, numbers = self._db.execute(_STATE).fetchone() or (None, None)
        mark = self._written[1] if text == self._written[0] else Mark.of(text)
        if mark is None:
            return None
        store, commits, lost, rows, total, _ = mark
        more, higher = self.counts
        mark = Mark(store, commits + 1, lost, rows + more, total + higher, numbers or 0)
        if self._recount:
            rows, total = _count(self._db)
            mark = mark._replace(lost=0, rows=rows, total=total)
        text = mark.to_text()
        self._db.execute(_WRITE, (text,))
        self._written = text, mark
        return mark


def read_mark(db: sqlite3.Connection) -> Mark | None:
    """The chain's mark; None if it is missing or damaged."""
    row = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'chain'").fetchone()
    return None if row is None else Mark.of(row[0])


def write_mark(db: sqlite3.Connection, mark: Mark) -> None:
    """Write the chain's mark."""
    db.execute(_WRITE, (mark.to_text(),))


def begin_chain(db: sqlite3.Connection) -> None:
    """Start the chain of a database that has none; older rows of chained tables stay without checksum."""
    for table in COLUMNS.keys() - set(CHAINED):
        seal(db, table)
    recount(db)


def recount(db: sqlite3.Connection) -> None:
    """Write a new mark that counts the present rows, in a database that was filled without the chain."""
    rows, total = _count(db)
    (numbers,) = db.execute(_NUMBERS).fetchone()
    write_mark(db, Mark(secrets.randbits(63), rows=rows, total=total, numbers=numbers or 0))


def _count(db: sqlite3.Connection) -> tuple[int, int]:
    """The number of rows with a checksum in all chained tables, and the sum of the checksums."""
    rows = total = 0
    for table in CHAINED:
        query = f"SELECT count(crc), coalesce(sum(crc), 0) FROM {table}"  # noqa: S608 - constants
        count, of_table = db.execute(query).fetchone()
        rows, total = rows + count, total + of_table
    return rows, total


# -- finding changes ---------------------------------------------------------------------------------------------------

Check = Callable[["sqlite3.Connection"], Iterator[str]]


def checks(schema: Sequence[Any]) -> dict[str, Check]:
    """All checks by name, except that of answers; ``schema``: that of a fresh database."""
    tables = COLUMNS.keys() - {"answers"}
    rows: dict[str, Check] = {f"rows of {table}": partial(_changed_rows, table) for table in sorted(tables)}
    return {**rows, "chain": _changed_chain, "schema": partial(_changed_schema, schema)}


def _changed_rows(table: str, db: sqlite3.Connection) -> Iterator[str]:
    for *values, crc in db.execute(f"SELECT {', '.join(COLUMNS[table])}, crc FROM {table}"):  # noqa: S608 - constants
        if crc is None and table in CHAINED:
            continue  # see `_changed_chain`
        if checksum(values) != crc:
            yield f"{table}: the row of {values[0]!r} was changed after it was written"


def _changed_chain(db: sqlite3.Connection) -> Iterator[str]:
    text, numbers = db.execute(_STATE).fetchone() or (None, None)
    mark = Mark.of(text)
    if mark is None:
        yield "chain: damaged, so missing rows would not be noticed"
        return
    for table in CHAINED:
        (older,) = db.execute(f"SELECT count(*) - count(crc) FROM {table}").fetchone()  # noqa: S608 - constants
        if older:
            yield f"{table}: {older} rows are older than checksums; changes to them cannot be found"
    rows, total = _count(db)
    names = {name for (name,) in db.execute("SELECT name FROM sqlite_sequence")}
    if (rows, total, numbers or 0) != (mark.rows, mark.total, mark.numbers) or not names <= {*CHAINED, "chain"}:
        counts = f"{mark.rows} were written, {rows} are there"
        yield f"chain: rows of answers, feedback, probes or ledger are missing or were replaced ({counts})"
    if mark.lost:
        yield (
            f"chain: acknowledged transactions that are lost: {mark.lost}; the end of the write-ahead log was "
            "damaged, or an older file was put in the place of this one"
        )


def _changed_schema(schema: Sequence[Any], db: sqlite3.Connection) -> Iterator[str]:
    if read_schema(db) != schema:
        yield "schema: is not the one that focalroute made"


def read_schema(db: sqlite3.Connection) -> list[Any]:
    """The statements of the schema, without spaces and comments."""
    found = db.execute("SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_master ORDER BY type, name")
    return [(*names, _SPACES.sub("", sql)) for *names, sql in found]


# -- lost transactions -------------------------------------------------------------------------------------------------

_ENTRY = struct.Struct("<QQI")  # store, commits, CRC-32 of both
_PAUSE_S = 0.01  # between two writes, as each takes as long as a small row
_ENTRIES = 64  # consecutive commits use different slots, so that processes need not wait for each other


_MARK = re.compile(rb"focalroute chain(?: [0-9a-f]{16}){6} [0-9a-f]{8}")


class CommitLog:
    """The numbers of the latest transactions, in a file beside the database. Its failures do not affect the store.

    It is written soon after a commit and never synced. So after the death of a process it may lack the latest
    transactions, after a power failure many.

    Args:
        path: the database's file; None: it is in memory, and nothing is kept.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file: int | None = None
        self._latest: Mark | None = None  # not written yet
        self._next = 0.0  # when it may be written again (monotonic)

    def open(self) -> None:
        """Open or create the file. To be called once the database is known to be ours."""
        if self._path is None:
            return
        beside = Path(f"{os.path.realpath(self._path)}-commits")
        try:
            mode = self._path.stat().st_mode & 0o777
            self._file = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, mode)
            if os.fstat(self._file).st_size < _ENTRIES * _ENTRY.size:
                os.fchmod(self._file, mode)  # it may be written by those who may write the database
                os.ftruncate(self._file, 0)
                os.pwrite(self._file, bytes(_ENTRIES * _ENTRY.size), 0)
        except OSError as error:
            _log.warning("%s: cannot be used (%s), so lost transactions would not be noticed", beside, error.strerror)
            self.close()

    def latest(self, store: int) -> int:
        """The number of the latest transaction of this store; 0 if unknown."""
        if self._file is None:
            return 0
        data = os.pread(self._file, _ENTRIES * _ENTRY.size, 0)
        entries = [_ENTRY.unpack_from(data, at) for at in range(0, len(data) - _ENTRY.size + 1, _ENTRY.size)]
        return max((commits for of, commits, crc in entries if of == store and crc == _crc(of, commits)), default=0)

    def add(self, mark: Mark | None) -> None:
        """Note a committed transaction, and write its number unless another was written just now.

        Args:
            mark: the mark that the transaction wrote, if it wrote any.
        """
        self._latest = mark or self._latest
        if time.monotonic() >= self._next:
            self.write()

    def write(self) -> None:
        """Write the latest number, if it is not written yet."""
        mark, self._latest = self._latest, None
        if self._file is None or mark is None:
            return
        self._next = time.monotonic() + _PAUSE_S
        with contextlib.suppress(OSError):  # a full disk: the next one may be written
            entry = _ENTRY.pack(mark.store, mark.commits, _crc(mark.store, mark.commits))
            os.pwrite(self._file, entry, mark.commits % _ENTRIES * _ENTRY.size)

    def clear(self) -> None:
        """Forget all numbers."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.pwrite(self._file, bytes(_ENTRIES * _ENTRY.size), 0)

    def close(self) -> None:
        """Write the latest number and close the file."""
        self.write()
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _crc(store: int, commits: int) -> int:
    return zlib.crc32(b"%d %d" % (store, commits))


def note_lost(db: sqlite3.Connection, name: str, log: CommitLog) -> int:
    """Add the number of lost acknowledged transactions to the mark, in the caller's transaction; return that number.

    After the commit the caller must clear the log, as the lost numbers will be used again.
    """
    mark = read_mark(db)
    lost = 0 if mark is None else max(log.latest(mark.store) - mark.commits, 0)
    if mark is not None and lost:
        _log.error("%s: acknowledged transactions that are lost: %d; see `Store.verify`", name, lost)
        write_mark(db, mark._replace(lost=mark.lost + lost))
    return lost


def first_mark(wal: Path) -> Mark | None:
    """The mark of the first transaction in a write-ahead log; None if there is none."""
    with contextlib.suppress(OSError), wal.open("rb") as file:
        data = b""
        while part := file.read(1 << 20):
            data = data[-200:] + part
            if found := _MARK.search(data):
                return Mark.of(found[0].decode())
    return None
