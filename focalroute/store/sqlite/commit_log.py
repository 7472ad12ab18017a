"""Detects lost transactions that were acknowledged, by a small file with transaction numbers beside the database.

SQLite silently drops a damaged part of its write-ahead log and everything after it. Then the number of transactions in
the chain is less than the one in the file.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import struct
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from focalroute.store.sqlite.checksums import Mark, read_mark, write_mark

if TYPE_CHECKING:
    import sqlite3

_log = logging.getLogger("focalroute.store")

_ENTRY = struct.Struct("<QQI")  # store, commits, CRC-32 of both
_PAUSE_S = 0.01  # between two writes, as each takes as long as a small row
_ENTRIES = 64  # consecutive commits use different slots, so that processes need not wait for each other


_MARK = re.compile(rb"focalroute chain(?: [0-9a-f]{16}){6} [0-9a-f]{8}")


class CommitLog:
    """The numbers of the latest transactions, in a file beside the database. Its failures do not affect the store.

    It is written soon after a commit (`write`) and never synced: after the death of a process it is a moment behind,
    after a power failure by any amount.

    Args:
        path: the database's file; None: it is in memory, and nothing is kept.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file: int | None = None
        self._latest: Mark | None = None  # not written yet
        self._next = 0.0  # when it may be written again (monotonic)

    def open(self) -> None:
        """Open or create the file; to be called once the database is known to be ours."""
        if self._path is None:
            return
        beside = Path(f"{os.path.realpath(self._path)}-commits")
        try:
            mode = self._path.stat().st_mode & 0o777
            self._file = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, mode)
            if os.fstat(self._file).st_size < _ENTRIES * _ENTRY.size:
                os.fchmod(self._file, mode)  # whoever may write the database may write this
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
        """Note a committed transaction; its number is written now, or by the next `write` if one was written just now.

        Args:
            mark: None: the transaction wrote no mark.
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
    """Note in the chain how many acknowledged transactions are lost, within the caller's transaction; return how many.

    After the commit the caller must clear the log, as the lost numbers will be used again.
    """
    mark = read_mark(db)
    lost = 0 if mark is None else max(log.latest(mark.store) - mark.commits, 0)
    if mark is not None and lost:
        _log.error("%s: %d acknowledged transactions are lost; see `Store.verify`", name, lost)
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
