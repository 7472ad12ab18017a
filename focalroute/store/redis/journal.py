"""Keeps writes in append-only files while Redis is unavailable. Each process has its own files in a shared folder.

A written entry counts as stored, so it must outlive its process: the next process to open the folder takes over the
files of dead ones. An entry that was cut off by the death of its process does not count, and is left out.
"""

from __future__ import annotations

import fcntl
import logging
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from focalroute.core.errors import StoreError

_log = logging.getLogger("focalroute.store")

_HEAD = struct.Struct("<II")  # CRC-32 and length of what follows
_SIZE = struct.Struct("<I")
_SUFFIX = ".journal"


@dataclass(frozen=True, slots=True)
class Entry:
    """One call of a writer: its number, the keys of the answers it concerns, its rows as arguments of ``write.lua``."""

    writer: str
    number: int
    keys: Sequence[str]
    words: Sequence[bytes]

    def to_bytes(self) -> bytes:
        """Encode the entry for the journal file."""
        parts = [self.writer.encode(), str(self.number).encode(), str(len(self.keys)).encode()]
        parts += [key.encode() for key in self.keys] + list(self.words)
        body = b"".join(_SIZE.pack(len(part)) + part for part in parts)
        return _HEAD.pack(zlib.crc32(body), len(body)) + body

    @classmethod
    def of(cls, body: bytes) -> Entry:
        """Decode an entry, whose checksum was verified by the caller."""
        parts, at = [], 0
        while at < len(body):
            (size,) = _SIZE.unpack_from(body, at)
            parts.append(body[at + _SIZE.size : at + _SIZE.size + size])
            at += _SIZE.size + size
        count = int(parts[2])
        keys = [part.decode() for part in parts[3 : 3 + count]]
        return cls(parts[0].decode(), int(parts[1]), keys, parts[3 + count :])


class Journal:
    """The journal of one process, with the files it took over from dead processes. Not thread-safe.

    Args:
        folder: created if missing.
        writer: the name of this process's files.
        sync: whether an entry must survive a power failure too.

    Raises:
        StoreError: the folder cannot be used.
    """

    def __init__(self, folder: Path, writer: str, *, sync: bool) -> None:
        self._sync = sync
        self._folder = folder
        self._writer = writer
        self._made = 0
        self._own: Path | None = None
        self._files: dict[Path, int] = {}  # descriptors; an open one is locked
        try:
            folder.mkdir(exist_ok=True)
            left = [path for path in sorted(folder.glob(f"*{_SUFFIX}")) if self._take(path)]
        except OSError as error:
            message = f"{folder}: the journal cannot be used: {error.strerror}; give another folder in journal="
            raise StoreError(message) from None
        self._waiting = left  # files with entries to send

    def _take(self, path: Path) -> bool:
        """Lock a journal file; False if a living process holds it."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        if not path.exists():  # its owner removed it before the lock
            os.close(descriptor)
            return False
        self._files[path] = descriptor
        return True

    def __bool__(self) -> bool:
        """Whether entries are waiting."""
        return bool(self._waiting)

    def add(self, entries: Sequence[Entry]) -> None:
        """Append entries, all or none.

        Raises:
            StoreError: they cannot be written.
        """
        data = memoryview(b"".join(entry.to_bytes() for entry in entries))
        try:
            path = self._opened()
            descriptor = self._files[path]
            before = os.fstat(descriptor).st_size
            try:
                while data:
                    data = data[os.write(descriptor, data) :]
                if self._sync:
                    os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, before)
                raise
        except OSError as error:
            message = f"{self._folder}: the journal cannot be written: {error.strerror}; check the folder and its disk"
            raise StoreError(message) from None
        if path not in self._waiting:
            self._waiting.append(path)

    def _opened(self) -> Path:
        """The file this process writes to: a new one if the last was sent and removed, or was deleted by somebody."""
        while self._own is None or self._own not in self._files or not self._own.exists():
            self._made += 1
            self._own = self._folder / f"{self._writer}-{self._made}{_SUFFIX}"
            self._take(self._own)
        return self._own

    def batches(self, size: int) -> Iterator[list[Entry]]:
        """Yield all waiting entries, each writer's in order. Once the caller has sent those of a file, it is removed.

        A file with anything but whole entries is renamed instead.
        """
        while self._waiting:
            path = self._waiting[0]
            entries, left_out = _entries(self._files[path])
            for start in range(0, len(entries), size):
                yield entries[start : start + size]
            if left_out:
                _log.error("%s: %d of its bytes are not whole entries; it is kept, as *.damaged", path, left_out)
            with suppress(OSError):  # it is gone, or must not be removed: sending its entries again is harmless
                if left_out:
                    path.rename(path.with_suffix(".damaged"))
                else:
                    path.unlink()
            os.close(self._files.pop(path))
            self._waiting.pop(0)

    def close(self) -> None:
        """Close the files, keeping the entries in them."""
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()


def _entries(descriptor: int) -> tuple[list[Entry], int]:
    """The entries of an open file, which may be deleted; and how many of its bytes do not belong to undamaged ones."""
    with open(descriptor, "rb", closefd=False) as file:
        file.seek(0)
        data = file.read()
    entries: list[Entry] = []
    at = sound = 0
    while at + _HEAD.size <= len(data):
        checksum, size = _HEAD.unpack_from(data, at)
        body = data[at + _HEAD.size : at + _HEAD.size + size]
        at += _HEAD.size + size
        if len(body) == size and zlib.crc32(body) == checksum:
            entries.append(Entry.of(body))
            sound += _HEAD.size + size
    return entries, len(data) - sound
