"""Opens, migrates, locks and copies the SQLite database. The only module that imports sqlite3."""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import re
import sqlite3
import threading
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from focalroute.core.errors import StoreError
from focalroute.store.sqlite.checksums import (
    CommitLog,
    Mark,
    begin_chain,
    first_mark,
    note_lost,
    read_mark,
    read_schema,
    recount,
    seal,
)

LONGEST_ROW = 256 * 2**20  # bytes; also the longest value
BUSY_S = 5.0  # the longest wait for another process

#: Errors that reading a database raises; Python fails to decode an error message that quotes damaged bytes.
FAILURES = (sqlite3.Error, UnicodeDecodeError)
#: Errors of one call's rows, not of the database.
ROW_ERRORS = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.ProgrammingError, sqlite3.InterfaceError)

_OUR_TABLES = {"answers", "ledger_sums"}  # every version of our database has these
_CHAINED_SINCE = 6  # the migration that made the chain
_MOST_PAGES = 4000  # pages not checkpointed, from all processes, after which the next commit does it
_LONGEST_PAUSE_S = 0.004  # between two tries to begin
_FILE_CHECK_S = 1.0  # between checks whether the file is still in its place
_LONGEST_PATH = 504  # bytes that SQLite accepts as a file's full path
_EFFECTIVE = os.access in os.supports_effective_ids
_COPIED = 100  # answers at a time
_COPY_PAUSE_S = 0.001  # between two parts of a copy

_NOT_WRITABLE = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN}
_ADVICE = {
    sqlite3.SQLITE_NOMEM: "free some memory, and try again",
    sqlite3.SQLITE_BUSY: "another process keeps it locked; end that process or try again",
    sqlite3.SQLITE_FULL: "make room on the disk",
    sqlite3.SQLITE_IOERR_SHMSIZE: "make room on the disk",
    sqlite3.SQLITE_READONLY: "make the file and its folder writable",
    sqlite3.SQLITE_CANTOPEN: "make the file and its folder readable and writable",
    sqlite3.SQLITE_NOTADB: "name another file",
    sqlite3.SQLITE_CORRUPT: "restore it from a copy, or name another file",
}


def store_error(name: str, error: Exception) -> StoreError:
    """Make an error that names the database, the failure and the remedy."""
    what = "out of memory" if isinstance(error, MemoryError) else error
    return StoreError(f"{name}: {what}; {_ADVICE.get(_code(error), 'check the file, its folder and its disk')}")


def _code(error: Exception) -> int:
    """SQLite's primary result code, or the extended one if there is advice for it; 0 if there is none."""
    if isinstance(error, MemoryError):
        return sqlite3.SQLITE_NOMEM
    if not isinstance(error, sqlite3.Error | OSError):  # a damaged value may raise anything
        return sqlite3.SQLITE_CORRUPT
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code if code in _ADVICE else code & 0xFF


# -- opening -----------------------------------------------------------------------------------------------------------


def open_database(path: Path | None, name: str, log: CommitLog, *, full: bool, to_write: bool) -> sqlite3.Connection:
    """Open a database and bring its schema up to date; path None: make one in memory.

    Args:
        name: the database's name, for errors.
        log: the log of its latest commits.
        full: whether a committed row must survive a power failure.
        to_write: whether a read-only file is an error.

    Raises:
        StoreError: it cannot be opened, belongs to another program, or was written by a newer version.
    """
    writable = path is None or not os.access(path, os.F_OK) or os.access(path, os.W_OK, effective_ids=_EFFECTIVE)
    if not writable and to_write:
        # If a crash left a log, SQLite opens such a file, and only writing to it fails.
        raise StoreError(f"{name}: may only be read; {_ADVICE[sqlite3.SQLITE_READONLY]}")
    give_up = time.monotonic() + BUSY_S
    immutable = False
    while True:
        try:
            return _connect(path, name, log, full, immutable)
        except FAILURES as error:
            unwritable = _code(error) in _NOT_WRITABLE and path is not None and not _has_log(path)
            if unwritable and not to_write and not immutable:
                immutable = True  # else SQLite would create the -wal file
                continue
            # While a process switches the file to WAL it locks others out, and SQLite does not wait for that.
            if _code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > give_up:
                raise store_error(name, error) from None
        time.sleep(0.01)


def _has_log(path: Path) -> bool:
    """Whether a file has a write-ahead log beside it."""
    return os.path.exists(f"{os.path.realpath(path)}-wal")  # noqa: PTH110 - False if access is denied


def prepare(path: Path) -> None:
    """Create the file if it is missing; StoreError if it cannot hold a database."""
    try:
        _check_path(path)
    except OSError as error:  # such as a folder without access
        raise StoreError(f"{path}: {error.strerror}; name another file") from None
    except UnicodeEncodeError:
        raise StoreError(f"{str(path)!a}: not a path; it holds a lone surrogate") from None
    _create_private(path)
    _require_own_log(path)


def _check_path(path: Path) -> None:
    if "\0" in str(path):
        raise StoreError(f"{str(path)!r}: not a path; remove the NUL character")
    if not path.parent.is_dir():
        raise StoreError(f"{path}: its folder does not exist; make it first")
    if path.is_dir():
        raise StoreError(f"{path}: is a folder; name a file in it")
    if len(os.fsencode(os.path.realpath(path))) > _LONGEST_PATH:
        raise StoreError(f"{path}: its path is longer than SQLite's {_LONGEST_PATH} bytes; put it into another folder")


def _create_private(path: Path) -> None:
    """Create the file, readable by its owner only, as it holds prompts and answers; an existing file keeps its mode.

    SQLite gives the -wal and -shm files the mode of the database.
    """
    with contextlib.suppress(OSError):  # it exists, or SQLite will say why it cannot be created
        # An existing file must not even be opened: closing it would release this process's locks on it.
        os.close(os.open(os.path.realpath(path), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def _require_own_log(path: Path) -> None:
    """Check that the write-ahead log beside a file continues that file.

    SQLite would mix the content of another file's log, or of an older copy's, into this one.

    Raises:
        StoreError: the log belongs to another file.
    """
    first = first_mark(Path(f"{os.path.realpath(path)}-wal"))
    if first is None:
        return
    try:
        kept = _mark_without_log(path, Mark(first.store))
    except FAILURES:
        return  # opening the database will say what is wrong
    if kept is not None and (kept.store != first.store or first.commits > kept.commits + 1):
        raise StoreError(
            f"{path}: was put in the place of another file, whose {path.name}-wal is still there. Put that file back, "
            f"or remove {path.name}-wal and {path.name}-shm, which loses the other file's latest writes"
        )


def _immutable(path: Path) -> str:
    """The URI that opens a file read-only and without its log."""
    return f"file:{quote(os.fsencode(path))}?mode=ro&immutable=1"


def _mark_without_log(path: Path, empty: Mark) -> Mark | None:
    """The mark in the file without its log; ``empty`` if it has no tables, None if its mark is missing or damaged."""
    # Closing the file through SQLite is safe, as SQLite tracks the locks that this process has on it.
    with contextlib.closing(sqlite3.connect(_immutable(path), uri=True)) as db:
        tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        return read_mark(db) if tables else empty


def open_second(path: Path) -> sqlite3.Connection:
    """Open a second connection to a file that this process has open, to read from it."""
    db = sqlite3.connect(f"file:{quote(os.fsencode(path))}?mode=ro", timeout=BUSY_S, isolation_level=None, uri=True)
    db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_ROW)
    db.execute("PRAGMA trusted_schema = OFF")
    return db


def _connect(path: Path | None, name: str, log: CommitLog, full: bool, immutable: bool) -> sqlite3.Connection:
    where = _immutable(path) if path is not None and immutable else path or ":memory:"
    db = sqlite3.connect(where, timeout=BUSY_S, isolation_level=None, check_same_thread=False, uri=immutable)
    try:
        if path is None:
            _template(os.getpid()).backup(db)
            recount(db)
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_ROW)
        db.execute("PRAGMA trusted_schema = OFF")
        _require_ours(db, name)
        if path is not None:
            db.execute("PRAGMA journal_mode = WAL")
        db.execute(f"PRAGMA synchronous = {'FULL' if full else 'NORMAL'}")
        db.execute(f"PRAGMA wal_autocheckpoint = {_MOST_PAGES}")  # usually the store's thread checkpoints first
        db.execute("PRAGMA fullfsync = ON")  # macOS: syncing flushes the disk's cache
        db.execute("PRAGMA busy_timeout = 0")  # see `begin_writing` and `patient`
        begin_writing(db, BUSY_S)
        try:
            migrate(db, name)
            db.execute("COMMIT")
        except BaseException:
            roll_back(db)
            raise
        if not immutable:
            log.open()
            _note_lost_transactions(db, name, log)
        db.execute("PRAGMA foreign_keys = ON")  # only now: a migration may have to rebuild a table
    except BaseException:
        db.close()
        raise
    return db


def _require_ours(db: sqlite3.Connection, name: str) -> None:
    """Raise StoreError if another program made the database, or added a view or trigger to it."""
    made = list(db.execute("SELECT type, name FROM sqlite_master"))
    tables = {called for kind, called in made if kind == "table"}
    if tables and not tables >= _OUR_TABLES:
        raise StoreError(f"{name}: is another program's database; name another file")
    for kind, called in made:
        if kind not in ("table", "index"):  # it would run on writes or reads, and might never end
            raise StoreError(f"{name}: holds a {kind}, {called[:40]!r}; drop it, or name another file")


def _note_lost_transactions(db: sqlite3.Connection, name: str, log: CommitLog) -> None:
    """Note transactions that the log has but the database lacks; `verify` reports a damaged chain."""
    try:
        begin_writing(db, BUSY_S)
        lost = note_lost(db, name, log)
        db.execute("COMMIT")
        if lost:
            log.clear()
    except FAILURES:
        roll_back(db)


@cache
def migrations() -> tuple[str, ...]:
    """The schema's migrations, oldest first."""
    text = Path(__file__).with_name("schema.sql").read_text("utf-8")
    return tuple(re.split(r"-- migration \d+\n", text)[1:])


def migrate(db: sqlite3.Connection, name: str) -> None:
    """Bring the schema up to date, inside the caller's transaction; StoreError if it is newer than this version."""
    version = db.execute("PRAGMA user_version").fetchone()[0]
    newest = len(migrations())
    if version > newest:
        raise StoreError(f"{name}: was written by a newer focalroute (schema {version}); upgrade focalroute")
    for migration in migrations()[version:]:
        for statement in filter(str.strip, migration.split(";")):
            db.execute(statement.strip())
    if version < _CHAINED_SINCE:
        begin_chain(db)
    elif version < newest:
        seal(db, "ledger_sums")
    if version < newest:
        db.execute(f"PRAGMA user_version = {newest}")


@cache
def _template(process: int) -> sqlite3.Connection:
    """An empty database in memory to copy, which takes a fiftieth of the time of running all migrations.

    Each process has its own: after a fork, the parent's may have been in use by another thread.
    """
    db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    atexit.register(db.close)  # CPython 3.13 warns of one that is left open
    migrate(db, "a fresh one")
    return db


@cache
def fresh_schema() -> list[Any]:
    """The schema of a database made by this version."""
    return read_schema(_template(os.getpid()))


class OpenedFile:
    """Detects that the file of an open database was deleted, replaced or overwritten.

    SQLite would go on writing to a deleted or replaced file, where no other process sees the rows, and would mix the
    database with another file copied over it.

    Args:
        path: the file's absolute path; None, or a path without a file, is not checked.
        db: the open database.
    """

    def __init__(self, path: Path | None, db: sqlite3.Connection) -> None:
        self._path = path
        self._mark: Mark | None = None
        with contextlib.suppress(*FAILURES):  # `verify` says what is wrong
            mark = read_mark(db)
            self._mark = mark and Mark(mark.store)  # 0 commits, as the file may lack those in the write-ahead log
        self._changed_at: int | None = None
        files = [] if path is None else [path, Path(f"{os.path.realpath(path)}-wal")]
        self._identities = [(file, found) for file in files if (found := _identity(file)) is not None]
        self._next_check = time.monotonic() + _FILE_CHECK_S

    def require_in_place(self) -> None:
        """Check now; StoreError if the file or its log was deleted, emptied, moved, replaced or overwritten."""
        self._next_check = time.monotonic() + _FILE_CHECK_S
        for file, identity in self._identities:
            found = _identity(file)
            if found == identity:
                continue
            self._next_check = 0.0  # the next caller gets the error, too
            happened = "deleted, emptied or moved away" if found is None else "replaced by another file"
            raise StoreError(
                f"{file}: was {happened} while it was in use, so other processes cannot see what is written; "
                "put the file back, or open a new ensemble on the present file"
            )
        self._require_own_content()

    def _require_own_content(self) -> None:
        """Check the mark in the file, if a checkpoint or a copy has written the file since the last check."""
        if self._path is None or self._mark is None:
            return
        try:
            changed_at = self._path.stat().st_ctime_ns
            if changed_at == self._changed_at:
                return
            mark = _mark_without_log(self._path, self._mark) or self._mark
        except (OSError, *FAILURES):  # during a checkpoint; SQLite reports anything else
            return
        if mark.store != self._mark.store or mark.commits < self._mark.commits:
            self._next_check = 0.0
            raise StoreError(
                f"{self._path}: another database was copied over it while it was in use, so the two are mixed; "
                "restore it from a copy, and open a new ensemble"
            )
        self._mark, self._changed_at = mark, changed_at

    def require_in_place_if_due(self) -> None:
        """Like `require_in_place`, but check at most once a second."""
        if time.monotonic() >= self._next_check:
            self.require_in_place()


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of the file at a path; None if there is no file, or an empty database."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return (status.st_dev, status.st_ino) if status.st_size or path.name.endswith("-wal") else None


# -- transactions ------------------------------------------------------------------------------------------------------


def begin_writing(db: sqlite3.Connection, patience_s: float) -> None:
    """Begin a write transaction as soon as no other process has one.

    SQLite's own busy handler, which is switched off, sleeps up to 100 ms at a time. With many short transactions of
    other processes it may miss every gap for seconds.

    Args:
        patience_s: how long to try; 0: only once.

    Raises:
        sqlite3.OperationalError: another process held the lock all this time, or the database fails.
    """
    give_up = time.monotonic() + patience_s
    while True:
        try:
            db.execute("BEGIN IMMEDIATE")
            return
        except sqlite3.OperationalError as error:
            if _code(error) != sqlite3.SQLITE_BUSY or time.monotonic() >= give_up:
                raise
        time.sleep(random.uniform(0, _LONGEST_PAUSE_S))  # noqa: S311 - no secret


@contextlib.contextmanager
def patient(db: sqlite3.Connection) -> Iterator[None]:
    """Let SQLite wait for locks within this context, as a read may have to while the file is recovered."""
    db.execute(f"PRAGMA busy_timeout = {int(1000 * BUSY_S)}")
    try:
        yield
    finally:
        db.execute("PRAGMA busy_timeout = 0")


def roll_back(db: sqlite3.Connection) -> None:
    """Roll back the open transaction, if SQLite has not ended it by itself."""
    with contextlib.suppress(sqlite3.Error):
        if db.in_transaction:
            db.execute("ROLLBACK")


# -- copying -----------------------------------------------------------------------------------------------------------


def copy_answers(db: sqlite3.Connection, using: threading.Lock, file: Path, latest: int) -> None:
    """Copy the latest answers with their feedback and probes into a new file.

    Copies a part at a time, so that asks run in between; SQLite releases the GIL while it copies a part.

    Args:
        using: the lock to hold while using the connection.

    Raises:
        sqlite3.Error: the copy cannot be written.
    """
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as copy:
        copy.execute("PRAGMA synchronous = OFF")  # here and below: an incomplete copy is dropped anyway
        copy.execute("BEGIN")
        migrate(copy, str(file))
        copy.execute("COMMIT")
    with using:
        db.execute("ATTACH ? AS copy", (str(file),))
    try:
        with using:
            db.execute("PRAGMA copy.journal_mode = OFF")
            db.execute("PRAGMA copy.synchronous = OFF")
            after: int | None = db.execute("SELECT coalesce(max(seq), 0) - ? FROM answers", (latest,)).fetchone()[0]
        while after is not None:
            time.sleep(_COPY_PAUSE_S)
            with using:
                after = _copy_part(db, after)
    finally:
        with using, contextlib.suppress(sqlite3.ProgrammingError):  # it was closed meanwhile
            db.execute("DETACH copy")
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as copy:
        copy.execute("PRAGMA synchronous = OFF")
        recount(copy)


def _copy_part(db: sqlite3.Connection, after: int) -> int | None:
    """Copy the next answers with their feedback and probes; return the last one's number, None if it was the end."""
    answers = "INSERT INTO copy.answers SELECT * FROM main.answers WHERE seq > ? ORDER BY seq LIMIT ?"
    copied = db.execute(answers, (after, _COPIED)).rowcount
    of_these = "SELECT t.* FROM copy.answers a JOIN main.{0} t ON t.answer_id = a.id WHERE a.seq > ?"
    for table in ("feedback", "probes"):
        db.execute(f"INSERT INTO copy.{table} {of_these.format(table)}", (after,))
    last: int = db.execute("SELECT max(seq) FROM copy.answers").fetchone()[0]
    return last if copied == _COPIED else None
