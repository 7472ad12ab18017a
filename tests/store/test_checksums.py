"""Every bit that is flipped in a store's file is found by `verify`, and every acknowledged transaction that is lost."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import zlib
from collections.abc import Callable
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from focalroute.core.errors import StoreError
from focalroute.core.records import Usage
from focalroute.store.accounts import Account
from focalroute.store.base import CapabilityRow, HealthRow, Row, StoredProbe
from focalroute.store.sqlite.checksums import read_schema
from focalroute.store.sqlite.store import SqliteStore
from tests.store.made import answer, bill, edit, judge, trajectory
from tests.store.test_accounts import hold

PAGE = 4096
FLIPS = 168
LIMITS = {Account(): Decimal(3), Account("team", 86_400): Decimal(3)}

#: Writes until it is killed: each number that is printed is acknowledged. Then the last is beside the file, too.
WRITER = """
import sys
import time
from focalroute.store.sqlite.store import SqliteStore
from tests.store.made import answer, bill, trajectory
store = SqliteStore(sys.argv[1], durability=sys.argv[2])
for number in range(20):
    store.write(answer(f"{sys.argv[3]}-{number}", steps=trajectory()), bill()).result(10)
    print(number, flush=True)
while store._commit_log._latest:
    time.sleep(0.01)
store.totals()  # after its thread has written
print("written", flush=True)
sys.stdin.read()
"""


def fill(path: Path) -> None:
    """Rows in every table."""
    with closing(SqliteStore(path, keep=40)) as store:
        store.open_accounts(LIMITS)
        for number in range(44):
            store.write(answer(str(number), steps=trajectory(2, 1, 2, 2)), *[bill(usage=Usage(7, number))] * 8).result(
                10
            )
            store.write(judge(str(number), label="x"), StoredProbe(str(number), "c", "k", 3, 0.5, None)).result(10)
        store.reserve(hold(1, "0.5", ("team",)), LIMITS).result(10)
        store.write(CapabilityRow("k", 1.0, {"n": 1}), HealthRow("k", 2.5, 3, 4.5)).result(10)
    with closing(SqliteStore(path, keep=40)) as store:  # prunes
        store.write(bill()).result(10)
        assert store.verify() == ()
        assert len(list(store.recent(99))) == 40


def content(path: Path) -> Any:
    """Every value of every table as SQLite reads it, or that it cannot."""
    try:
        with closing(sqlite3.connect(path)) as db:
            tables = db.execute("SELECT name FROM sqlite_master WHERE sql LIKE 'CREATE TABLE%' ORDER BY 1").fetchall()
            rows = [db.execute(f"SELECT * FROM {name} NOT INDEXED").fetchall() for (name,) in tables]
            return read_schema(db), rows
    except (sqlite3.Error, UnicodeDecodeError) as error:
        return type(error)


def found(path: Path) -> bool:
    """Whether the store says that something is wrong, when it is opened or verified."""
    try:
        with closing(SqliteStore(path)) as store:
            return store.verify() != ()
    except StoreError:
        return True


def test_every_flipped_bit_that_changes_something_is_found(tmp_path: Path) -> None:
    """Bits at random, half of them in the cells of the tables and half anywhere."""
    path, rng = tmp_path / "s.db", random.Random(0)
    fill(path)
    sound, intact = path.read_bytes(), content(path)
    changed = 0
    for number in range(FLIPS):
        data = bytearray(sound)
        at = rng.randrange(100, len(data))
        while number % 2 and not data[at]:  # not where nothing is
            at = rng.randrange(100, len(data))
        data[at] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        if content(path) != intact:
            changed += 1
            path.write_bytes(data)
            assert found(path), f"the bit in {data[at]:02x} at {at}"
    assert changed > FLIPS // 4
    path.write_bytes(sound)
    assert not found(path)


def test_answers_are_stored_where_texts_of_bytes_are_errors() -> None:
    code = "from focalroute.store.sqlite.checksums import checksum; print(checksum(('a', b'x', 1.5)))"
    done = subprocess.run([sys.executable, "-bb", "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) == zlib.crc32(b"a\0b'x'\x001.5\0")


@pytest.mark.parametrize("table", ["answers", "feedback", "probes", "ledger", "ledger_sums", "reservations"])
def test_a_row_that_is_gone_or_doubled_is_found(tmp_path: Path, table: str) -> None:
    """Even where the database itself is sound. (A balance that is gone is added up anew.)"""
    path = tmp_path / "s.db"
    fill(path)
    sound = path.read_bytes()
    which = f"rowid = (SELECT max(rowid) FROM {table})"
    damages = [f"DELETE FROM {table} WHERE {which}"]
    if table == "ledger":
        columns = "answer_id, endpoint, at, cost_source, tags, crc"
        damages.append(f"INSERT INTO ledger ({columns}) SELECT {columns} FROM ledger WHERE {which}")
    for damage in damages:
        path.write_bytes(sound)
        edit(path, damage)
        assert found(path)


def test_refused_or_repeated_writes_are_not_a_change() -> None:
    """Alone, or beside others in one transaction; numbers that were given to nothing are none that are missing."""
    with closing(SqliteStore()) as store:
        store.write(answer("a"), judge("a")).result(10)
        calls: list[list[Row]] = [[judge("a")], [judge("a", 0.0)], [answer("a")], [answer("b"), judge("unknown")]]
        for number, call in enumerate(calls):
            for others in ([], [[answer(str(number))]]):
                store.write_calls([call, *others]).result(10)
                assert store.verify() == ()


# -- the end of the write-ahead log ----------------------------------------------------------------------------------


def killed(path: Path, durability: str = "normal", name: str = "a") -> None:
    """Twenty acknowledged transactions of a process that dies."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), durability, name],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert [int(process.stdout.readline()) for _ in range(20)] == list(range(20))
        assert process.stdout.readline() == "written\n"
        process.send_signal(signal.SIGKILL)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size * 2 // 3)


@pytest.mark.parametrize("lose", [flip, cut, Path.unlink])
def test_acknowledged_transactions_that_are_lost_with_the_log_are_counted(
    tmp_path: Path, lose: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """SQLite drops them without a word. It is said again by whoever verifies later."""
    path = tmp_path / "s.db"
    SqliteStore(path).close()
    killed(path)
    lose(tmp_path / "s.db-wal")
    for _ in range(2):
        with closing(SqliteStore(path)) as store:
            (problem,) = store.verify()
            lost = 20 - len(list(store.recent(99)))
            assert problem.startswith(f"chain: acknowledged transactions that are lost: {lost};")
    assert caplog.text.count("acknowledged transactions that are lost") == 1
    with closing(SqliteStore(path)) as store:
        store.write(answer("b")).result(10)
        assert len(store.verify()) == 1


def test_an_older_copy_in_the_place_of_the_file_is_found(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with closing(SqliteStore(path)) as store:
        store.write(answer("a")).result(10)
    shutil.copy(path, tmp_path / "old.db")
    with closing(SqliteStore(path)) as store:
        store.write(answer("b")).result(10)
    shutil.copy(tmp_path / "old.db", path)
    with closing(SqliteStore(path)) as store:
        (problem,) = store.verify()
        assert problem.startswith("chain: acknowledged transactions that are lost: 1;")


def test_a_copy_without_the_file_of_commits_is_a_sound_store(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    fill(path)
    (tmp_path / "s.db-commits").unlink()
    with closing(SqliteStore(path)) as store:
        assert store.verify() == ()
    (tmp_path / "s.db-commits").write_bytes(b"no file of commits" * 100)
    with closing(SqliteStore(path)) as store:
        assert store.verify() == ()


def test_a_link_in_the_place_of_the_file_of_commits_is_not_followed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "letter").write_text("dear")
    (tmp_path / "s.db-commits").symlink_to(tmp_path / "letter")
    fill(tmp_path / "s.db")
    assert (tmp_path / "letter").read_text() == "dear"
    assert "s.db-commits: cannot be used" in caplog.text


@pytest.mark.parametrize("other", ["older copy", "other store", "nothing"])
def test_the_log_of_another_file_is_not_mixed_into_this_one(tmp_path: Path, other: str) -> None:
    path, put = tmp_path / "s.db", tmp_path / "put.db"
    with closing(SqliteStore(path)) as store:
        store.write(answer("first")).result(10)
    if other == "older copy":
        shutil.copy(path, put)
    elif other == "other store":
        fill(put)
    else:
        put.touch()
    with closing(SqliteStore(path)) as store:
        for number in range(5):
            store.write(answer(f"x{number}")).result(10)
    killed(path)
    before = put.read_bytes()
    log = (tmp_path / "s.db-wal").read_bytes()
    shutil.copy(put, path)
    with pytest.raises(StoreError, match=r"was put in the place of another file, whose s\.db-wal is still there"):
        SqliteStore(path)
    assert (path.read_bytes(), (tmp_path / "s.db-wal").read_bytes()) == (before, log)
    for name in ("-wal", "-shm"):
        Path(f"{path}{name}").unlink(missing_ok=True)
    SqliteStore(path).close()


def test_a_log_that_belongs_to_the_file_is_taken(tmp_path: Path) -> None:
    """That of a new file, of one that was in use, and of one that another process uses now."""
    path = tmp_path / "s.db"
    for life in "abc":
        killed(path, name=life)
        folder = tmp_path / f"moved {life}"
        folder.mkdir()
        for file in ("s.db", "s.db-wal", "s.db-commits"):
            shutil.copy(tmp_path / file, folder / file)
        with closing(SqliteStore(folder / "s.db")) as store, closing(SqliteStore(folder / "s.db")) as second:
            store.write(bill()).result(10)
            assert second.verify() == ()
            assert len(list(second.recent(99))) == 20 * (1 + "abc".index(life))
