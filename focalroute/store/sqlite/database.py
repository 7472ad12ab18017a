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
from focalroute.store.sqlite.checksums import Mark, begin_chain, read_mark, read_schema, recount
from focalroute.store.sqlite.commit_log import CommitLog, first_mark, note_lost

LONGEST_ROW = 256 * 2**20  # bytes, also of a value
BUSY_S = 5.0  # the longest that another process is waited for

#: What reading a database raises; an error message that quotes damaged bytes fails in Python itself.
FAILURES = (sqlite3.Error, UnicodeDecodeError)
#: Errors of one call's rows, not of the database.
ROW_ERRORS = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.ProgrammingError, sqlite3.InterfaceError)

_OUR_TABLES = {"answers", "ledger_sums"}  # by these a database of ours is known, whatever its version
_MOST_PAGES = 4000  # not checkpointed, whichever process wrote them; then the next commit does it
_LONGEST_PAUSE_S = 0.004  # between two tries to begin
_FILE_CHECK_S = 1.0  # between two looks whether the file is still in its place
_LONGEST_PATH = 504  # bytes that SQLite takes of a file's whole path
_COPIED = 100  # answers at a time
_COPY_PAUSE_S = 0.001  # between two parts of a copy

_NOT_WRITABLE = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN}
_ADVICE = {
    sqlite3.SQLITE_BUSY: "another process keeps it locked; end that process or try again",
    sqlite3.SQLITE_FULL: "make room on the disk",
    sqlite3.SQLITE_READONLY: "make the file and its folder writable",
    sqlite3.SQLITE_CANTOPEN: "make the file and its folder readable and writable",
    sqlite3.SQLITE_NOTADB: "name another file",
    sqlite3.SQLITE_CORRUPT: "restore it from a copy, or name another file",
}


def store_error(name: str, error: Exception) -> StoreError:
    """Name the database, its trouble and the remedy."""
    return StoreError(f"{name}: {error}; {_ADVICE.get(_code(error), 'check the file, its folder and its disk')}")


def _code(error: Exception) -> int:
    """SQLite's primary result code, 0 where there is none."""
    if isinstance(error, UnicodeDecodeError):
        return sqlite3.SQLITE_CORRUPT
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


# -- opening -----------------------------------------------------------------------------------------------------------


def open_database(
    path: Path | None, name: str, log: CommitLog, *, full: bool, to_read: bool = False
) -> sqlite3.Connection:
    """Open a database and bring its schema up to date; one in memory for None.

    Args:
        name: the database's, for errors.
        log: of its latest commits.
        full: whether a committed row must survive the loss of power.
        to_read: whether it may be where nothing can be written.

    Raises:
        StoreError: it cannot be opened, belongs to another program, or is a newer version's.
    """
    give_up = time.monotonic() + BUSY_S
    immutable = False
    while True:
        try:
            return _connect(path, name, log, full, immutable)
        except FAILURES as error:
            if to_read and not immutable and _code(error) in _NOT_WRITABLE and path is not None and not _has_log(path):
                immutable = True  # else SQLite has to make a -wal file beside it, which a closed one lacks
                continue
            # The process that makes the file WAL locks the others out, and SQLite does not wait for that.
            if _code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > give_up:
                raise store_error(name, error) from None
        time.sleep(0.01)


def _has_log(path: Path) -> bool:
    """Whether a write-ahead log stands beside a file."""
    return os.path.exists(f"{os.path.realpath(path)}-wal")  # noqa: PTH110 - False where one may not look


def prepare(path: Path) -> None:
    """Make the file, if there is none; StoreError if it cannot be a database's."""
    try:
        _check_path(path)
    except OSError as error:  # such as a folder that one may not look into
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
        raise StoreError(f"{path}: SQLite takes no path of more than {_LONGEST_PATH} bytes; put it into another folder")


def _create_private(path: Path) -> None:
    """Create the file for its owner only, as it holds prompts and answers; one that is there keeps its mode.

    SQLite gives the -wal and -shm files the mode of the database.
    """
    with contextlib.suppress(OSError):  # it is there, or SQLite says why it cannot be made
        # A file that is there must not even be opened: closing it would release this process's locks on it.
        os.close(os.open(os.path.realpath(path), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def _require_own_log(path: Path) -> None:
    """See that the write-ahead log beside a file goes on from it.

    SQLite would mix into it what a log holds that was left by another file, or by an older copy of this one.

    Raises:
        StoreError: it does not.
    """
    first = first_mark(Path(f"{os.path.realpath(path)}-wal"))
    if first is None:
        return
    try:
        kept = _mark_without_log(path, Mark(first.store))
    except FAILURES:
        return  # opening it says what is wrong
    if kept is not None and (kept.store != first.store or first.commits > kept.commits + 1):
        raise StoreError(
            f"{path}: was put in the place of another file, whose {path.name}-wal is still there; put that file "
            f"back, or remove {path.name}-wal and {path.name}-shm, with what was written there last"
        )


def _immutable(path: Path) -> str:
    """The address of a file without its log, for reading alone."""
    return f"file:{quote(os.fsencode(path))}?mode=ro&immutable=1"


def _mark_without_log(path: Path, empty: Mark) -> Mark | None:
    """The mark in the file alone; ``empty`` for one without tables, None for one that has no mark or a damaged one."""
    # SQLite may close this file, as it knows of the locks that this process has on it.
    with contextlib.closing(sqlite3.connect(_immutable(path), uri=True)) as db:
        tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        return read_mark(db) if tables else empty


def _connect(path: Path | None, name: str, log: CommitLog, full: bool, immutable: bool) -> sqlite3.Connection:
    where = _immutable(path) if path is not None and immutable else path or ":memory:"
    db = sqlite3.connect(where, timeout=BUSY_S, isolation_level=None, check_same_thread=False, uri=immutable)
    try:
        if path is None:
            _fresh(os.getpid()).backup(db)
            recount(db)
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_ROW)
        db.execute("PRAGMA trusted_schema = OFF")
        made = list(db.execute("SELECT type, name FROM sqlite_master"))
        tables = {name for kind, name in made if kind == "table"}
        if tables and not tables >= _OUR_TABLES:
            raise StoreError(f"{name}: is a database of something else; name another file")
        if foreign := [each for each in made if each[0] not in ("table", "index")]:
            kind, called = foreign[0]  # it would run whenever rows are written or read, and may never end
            raise StoreError(f"{name}: holds a {kind}, {called[:40]!r}; drop it, or name another file")
        if path is not None:
            db.execute("PRAGMA journal_mode = WAL")
        db.execute(f"PRAGMA synchronous = {'FULL' if full else 'NORMAL'}")
        db.execute(f"PRAGMA wal_autocheckpoint = {_MOST_PAGES}")  # mostly the store's thread does it
        db.execute("PRAGMA fullfsync = ON")  # macOS: what is synced is on the disk, not in its cache
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
            _compare(db, name, log)
        db.execute("PRAGMA foreign_keys = ON")  # only now: a migration may have to rebuild a table
    except BaseException:
        db.close()
        raise
    return db


def _compare(db: sqlite3.Connection, name: str, log: CommitLog) -> None:
    """Note what the log knows of and the database does not; where the chain's own page is damaged, `verify` says so."""
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
    if version < newest:
        begin_chain(db)
        db.execute(f"PRAGMA user_version = {newest}")


@cache
def _fresh(process: int) -> sqlite3.Connection:
    """An empty database of this process, to copy: a fiftieth of the time that making one takes.

    A fork's own, as the parent's may have been in use in another thread.
    """
    db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    atexit.register(db.close)  # CPython 3.13 warns of one that is left open
    migrate(db, "a fresh one")
    return db


@cache
def fresh_schema() -> list[Any]:
    """The schema of a database that was made by this version."""
    return read_schema(_fresh(os.getpid()))


class OpenedFile:
    """The file of an open database, to notice when its path no longer leads to it.

    SQLite goes on in a file that was deleted or replaced, where no other process sees what it writes. In one that
    another was copied over, it mixes the two.

    Args:
        path: absolute. One that leads to no file is not checked, nor is None.
        db: the open database.
    """

    def __init__(self, path: Path | None, db: sqlite3.Connection) -> None:
        self._path = path
        self._mark: Mark | None = None
        with contextlib.suppress(*FAILURES):  # `verify` says what is wrong
            mark = read_mark(db)
            self._mark = mark and Mark(mark.store)  # of no commits: the file may lack those that are in the log
        self._changed_at: int | None = None
        files = [] if path is None else [path, Path(f"{os.path.realpath(path)}-wal")]
        self._identities = [(file, found) for file in files if (found := _identity(file)) is not None]
        self._next_check = time.monotonic() + _FILE_CHECK_S

    def require_in_place(self) -> None:
        """Look at once; StoreError if the file, or its log, was deleted, emptied, moved or replaced."""
        self._next_check = time.monotonic() + _FILE_CHECK_S
        for file, identity in self._identities:
            found = _identity(file)
            if found == identity:
                continue
            self._next_check = 0.0  # the next caller must hear of it, too
            happened = "deleted, emptied or moved away" if found is None else "replaced by another file"
            raise StoreError(
                f"{file}: was {happened} while it was in use, so what is written is lost to other processes; "
                "put the file back, or open a new ensemble on what is there now"
            )
        self._require_own_content()

    def _require_own_content(self) -> None:
        """Look at the mark in the file, if it was written to since the last look, as checkpoints do and copying."""
        if self._path is None or self._mark is None:
            return
        try:
            changed_at = self._path.stat().st_ctime_ns
            if changed_at == self._changed_at:
                return
            mark = _mark_without_log(self._path, self._mark) or self._mark
        except (OSError, *FAILURES):  # in the midst of a checkpoint; SQLite says what else is wrong
            return
        if mark.store != self._mark.store or mark.commits < self._mark.commits:
            self._next_check = 0.0
            raise StoreError(
                f"{self._path}: another database was copied over it while it was in use, so the two are mixed; "
                "restore it from a copy, and open a new ensemble"
            )
        self._mark, self._changed_at = mark, changed_at

    def require_in_place_lately(self) -> None:
        """Look if that was not done in the last second; likewise."""
        if time.monotonic() >= self._next_check:
            self.require_in_place()


def _identity(path: Path) -> tuple[int, int] | None:
    """The device and the number of the file at a path; None: there is none, or an empty database."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return (status.st_dev, status.st_ino) if status.st_size or path.name.endswith("-wal") else None


# -- transactions ------------------------------------------------------------------------------------------------------


def begin_writing(db: sqlite3.Connection, patience_s: float) -> None:
    """Begin a transaction that writes, as soon as no other process does.

    SQLite's own way to wait, which is switched off here, sleeps up to 100 ms at a time. Under many short transactions
    of others that is unfair: it may miss every gap between them for seconds.

    Args:
        patience_s: how long to try; 0: once.

    Raises:
        sqlite3.OperationalError: another process has kept the database locked for so long, or it fails.
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
    """Let SQLite wait for a lock meanwhile, as reading may have to while a file is recovered."""
    db.execute(f"PRAGMA busy_timeout = {int(1000 * BUSY_S)}")
    try:
        yield
    finally:
        db.execute("PRAGMA busy_timeout = 0")


def roll_back(db: sqlite3.Connection) -> None:
    """Leave no transaction open, whatever went wrong; SQLite may have ended it by itself."""
    with contextlib.suppress(sqlite3.Error):
        if db.in_transaction:
            db.execute("ROLLBACK")


# -- copying -----------------------------------------------------------------------------------------------------------


def copy_answers(db: sqlite3.Connection, using: threading.Lock, file: Path, latest: int) -> None:
    """Copy the latest answers with their feedback and probes into a new file.

    A part at a time, so that asks get their turn between; SQLite does each without the interpreter's lock.

    Args:
        using: held while the connection is used.

    Raises:
        sqlite3.Error: the copy cannot be written.
    """
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as copy:
        copy.execute("PRAGMA synchronous = OFF")  # here and below: a copy that is not written whole is dropped anyway
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
    """Copy the next answers with all that belongs to them; the number of the last one, None if there are no more."""
    answers = "INSERT INTO copy.answers SELECT * FROM main.answers WHERE seq > ? ORDER BY seq LIMIT ?"
    copied = db.execute(answers, (after, _COPIED)).rowcount
    of_these = "SELECT t.* FROM copy.answers a JOIN main.{0} t ON t.answer_id = a.id WHERE a.seq > ?"
    for table in ("feedback", "probes"):
        db.execute(f"INSERT INTO copy.{table} {of_these.format(table)}", (after,))
    last: int = db.execute("SELECT max(seq) FROM copy.answers").fetchone()[0]
    return last if copied == _COPIED else None
