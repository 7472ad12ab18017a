"""Files are opened, made, migrated and checked; what is wrong with one is said with its name and what to do."""

from __future__ import annotations

import os
import re
import resource
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from focalroute.core.errors import StoreError
from focalroute.store import open_store
from focalroute.store.base import CapabilityRow
from focalroute.store.sqlite import database
from focalroute.store.sqlite.database import migrations
from focalroute.store.sqlite.store import SqliteStore
from tests.store.made import answer, bill, edit, judge, on_thread, trajectory


@contextmanager
def old_database(path: Path, version: int) -> Iterator[sqlite3.Connection]:
    """A file as the release with that many migrations made it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for migration in migrations()[:version]:
            db.executescript(migration)
        db.execute(f"PRAGMA user_version = {version}")
        yield db


def filled(path: Path) -> Path:
    """A file with answers, feedback, bills and a probe."""
    with closing(SqliteStore(path)) as store:
        store.write(*(answer(name, steps=trajectory()) for name in "abc"), bill()).result(10)
        store.write(judge("a"), CapabilityRow("k", 1.0, {"n": 1})).result(10)
    return path


# -- opening -------------------------------------------------------------------------------------------------------


def test_a_file_keeps_everything(tmp_path: Path) -> None:
    """What one process wrote the next one reads."""
    filled(tmp_path / "s.db")
    with closing(open_store(tmp_path / "s.db")) as store:
        assert [(row.id, said) for row, said in store.recent(9)] == [("a", (judge("a"),)), ("b", ()), ("c", ())]
        assert store.totals()["a"].calls == 1
        assert store.capabilities("k") == CapabilityRow("k", 1.0, {"n": 1})
        assert store.verify() == ()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["s.db", "s.db-commits"]


@pytest.mark.parametrize(("durability", "level"), [("normal", 1), ("full", 2)])
def test_durability_is_sqlites_own(tmp_path: Path, durability: str, level: int) -> None:
    """WAL, synchronous NORMAL or FULL."""
    with closing(SqliteStore(tmp_path / "s.db", durability=durability)) as store:  # type: ignore[arg-type]
        assert on_thread(store, lambda db: db.execute("PRAGMA synchronous").fetchone()[0]) == level
        assert on_thread(store, lambda db: db.execute("PRAGMA journal_mode").fetchone()[0]) == "wal"
        assert on_thread(store, lambda db: db.execute("PRAGMA foreign_keys").fetchone()[0]) == 1


def test_a_store_in_memory_is_on_disk_while_that_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that only its owner can read; of a file it is that file, wherever the program works by then."""
    monkeypatch.chdir(tmp_path)
    with closing(SqliteStore("s.db")) as store:
        monkeypatch.chdir(tempfile.gettempdir())
        with store.on_disk(999) as file:
            assert file == tmp_path / "s.db"
    with closing(SqliteStore()) as store:
        store.write(answer("a", steps=trajectory()), judge("a"), bill()).result(10)
        with store.on_disk(999) as file:
            assert file.parent.stat().st_mode & 0o077 == 0
            with closing(SqliteStore(file)) as copy:
                assert copy.verify() == ()
                assert [(row.id, said) for row, said in copy.recent(9)] == [("a", (judge("a"),))]
        assert not file.parent.exists()


def test_a_copy_is_made_in_parts_between_which_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they write may be in it or not, but nothing is said there of an answer that is not."""
    copy_part, written = database._copy_part, list[Future[None]]()

    def part(db: sqlite3.Connection, after: int) -> int | None:
        name = f"new {len(written)}"
        written.append(store.write(answer(name), judge(name)))
        return copy_part(db, after)

    monkeypatch.setattr(database, "_COPIED", 3)
    monkeypatch.setattr(database, "_copy_part", part)
    with closing(SqliteStore()) as store:
        old = [f"old {number}" for number in range(10)]
        for name in old:
            store.write(answer(name), judge(name)).result(10)
        with store.on_disk(999) as file, closing(SqliteStore(file)) as copy:
            assert copy.verify() == ()
            found = {row.id: said for row, said in copy.recent(99)}
        assert len(written) >= len(old) // 3
        assert [found[name] for name in old] == [(judge(name),) for name in old]
        assert [row.id for row, _ in store.recent(len(written))] == [f"new {i}" for i in range(len(written))]
        assert store.write_calls([(answer("last"),)]).result(10) == [None]


@pytest.mark.parametrize("room", [1024, 300_000])
def test_a_copy_that_the_disk_has_no_room_for_is_a_store_error(room: int) -> None:
    """Whether its first page or a later one: there may be room the next time."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with closing(SqliteStore()) as store:
        for number in range(300):
            store.write(replace(answer(str(number)), texts=2000 * "x")).result(10)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
        try:
            with pytest.raises(StoreError, match="copy of the store in memory cannot be written"), store.on_disk(999):
                pass
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        store.write(answer("later")).result(10)
        with store.on_disk(999) as file, closing(SqliteStore(file)) as copy:
            assert len(list(copy.recent(999))) == 301
        with store.on_disk(2) as file, closing(SqliteStore(file)) as copy:
            assert [row.id for row, _ in copy.recent(999)] == ["299", "later"]


def test_many_may_open_a_fresh_file_at_once(tmp_path: Path) -> None:
    """Whoever makes it first, all of them can use it."""

    def use(path: Path, name: str) -> None:
        with closing(SqliteStore(path)) as store:
            store.write(answer(name)).result(10)

    for round_ in range(5):
        path = tmp_path / f"{round_}.db"
        with ThreadPoolExecutor(6) as pool:
            for each in [pool.submit(use, path, str(i)) for i in range(6)]:
                each.result(20)
        with closing(SqliteStore(path)) as store:
            assert sorted(row.id for row, _ in store.recent(99)) == list("012345")


def test_two_processes_may_open_a_fresh_file_at_once(tmp_path: Path) -> None:
    """The same between processes."""
    code = (
        "import sys\nfrom focalroute.store.sqlite.store import SqliteStore\nfrom tests.store.made import answer\n"
        "sys.stdin.readline()\nstore = SqliteStore(sys.argv[1])\n"
        "store.write(answer(sys.argv[2])).result(10)\nstore.close()\n"
    )
    path = tmp_path / "s.db"
    both = [
        subprocess.Popen([sys.executable, "-c", code, str(path), name], stdin=subprocess.PIPE, text=True)
        for name in "ab"
    ]
    for one in both:
        assert one.stdin is not None
        one.stdin.write("go\n")
        one.stdin.close()
    assert [one.wait(30) for one in both] == [0, 0]
    with closing(SqliteStore(path)) as store:
        assert sorted(row.id for row, _ in store.recent(9)) == ["a", "b"]


def fails(path: Path, *words: str) -> None:
    with pytest.raises(StoreError) as caught:
        SqliteStore(path)
    for word in (str(path), *words):
        assert word in str(caught.value)


def test_a_name_may_be_any_that_the_system_takes(tmp_path: Path) -> None:
    """One that is not UTF-8 could be opened, but not beside another process that had it open."""
    path = tmp_path / os.fsdecode(b"\xe9?#%20.db")
    with closing(SqliteStore(path)) as one:
        one.write(answer("a")).result(10)
        with closing(SqliteStore(path)) as other:
            assert [row.id for row, _ in other.recent(9)] == ["a"]
    with pytest.raises(StoreError, match="not a path; it holds a lone surrogate"):
        SqliteStore("\ud800.db")


def test_a_missing_folder_is_not_made(tmp_path: Path) -> None:
    fails(tmp_path / "no" / "s.db", "folder does not exist; make it first")


def test_a_relative_path_in_a_folder_that_is_gone_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    fails(Path("s.db"), "No such file or directory; name another file")


def test_a_name_that_no_file_can_have_is_refused(tmp_path: Path) -> None:
    fails(tmp_path / ("s" * 300), "File name too long; name another file")


def test_a_path_that_is_too_long_for_sqlite_is_named_as_such(tmp_path: Path) -> None:
    """It was to be made readable and writable, which it was; and left an empty file."""
    folder = tmp_path.joinpath(*["f" * 100] * 5)
    folder.mkdir(parents=True)
    fails(folder / "s.db", "its path is longer than SQLite's 504 bytes; put it into another folder")
    assert not list(folder.iterdir())
    room = 504 - len(str(tmp_path.resolve())) - 203
    longest = tmp_path / ("f" * 100) / ("f" * 100) / ("s" * room)
    SqliteStore(longest).close()


def test_a_folder_is_refused_as_a_store(tmp_path: Path) -> None:
    fails(tmp_path, "is a folder; name a file in it")


def test_a_file_that_is_not_a_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    path.write_text("a letter to my mother, which is longer than a header " * 9)
    before = path.read_bytes()
    fails(path, "not a database; name another file")
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_another_applications_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    edit(path, "CREATE TABLE customers (name TEXT)")
    before = path.read_bytes()
    fails(path, "another program's database; name another file")
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("made", "kind"),
    [
        (["CREATE TRIGGER gone AFTER INSERT ON answers BEGIN DELETE FROM answers; END"], "trigger"),
        (
            [
                "ALTER TABLE health RENAME TO old",
                "CREATE VIEW health (key, open_until, ejections, changed_at, crc) AS WITH RECURSIVE n (x) AS "
                "(SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x, x, x, x, x FROM n WHERE x < 0",
            ],
            "view",
        ),
    ],
)
def test_a_file_with_statements_of_its_own_is_refused(tmp_path: Path, made: list[str], kind: str) -> None:
    """They would run whenever rows are written or read, and may never end."""
    path = filled(tmp_path / "s.db")
    for statement in made:
        edit(path, statement)
    fails(path, f"holds a {kind}", "drop it, or name another file")


@pytest.mark.slow
def test_a_row_of_a_crafted_file_is_read_no_further_than_its_bound(tmp_path: Path) -> None:
    """In a process of its own that may take a gigabyte; the row has 300 MB."""
    path = filled(tmp_path / "s.db")
    edit(path, "UPDATE answers SET record = zeroblob(300000000) WHERE id = 'a'")
    script = (
        "import resource, sys; from pathlib import Path; from focalroute.store import open_store\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))\n"
        "store = open_store(Path(sys.argv[1]))\n"
        "try: list(store.recent(5))\n"
        "except Exception as error: print(type(error).__name__, error)\n"
        "finally: store.close()\n"
    )
    said = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True)
    assert "StoreError" in said.stdout
    assert "too big" in said.stdout


def test_a_newer_schema_asks_for_an_upgrade(tmp_path: Path) -> None:
    path = filled(tmp_path / "s.db")
    edit(path, f"PRAGMA user_version = {len(migrations()) + 1}")
    fails(path, f"schema {len(migrations()) + 1}", "upgrade focalroute")


def test_a_cut_file_is_said_to_be_damaged(tmp_path: Path) -> None:
    path = filled(tmp_path / "s.db")
    path.write_bytes(path.read_bytes()[: 4096 + 100])
    fails(path, "malformed; restore it from a copy")


def test_a_file_that_may_not_be_written_is_read_or_refused_at_once() -> None:
    """In a process without the rights of root, for which nothing is read-only."""
    code = (
        "import os, sys\nfrom focalroute.cli.app import app\nfrom focalroute.store.sqlite.store import SqliteStore\n"
        "ledger = ['ledger', '--store', sys.argv[1]]\nthere = os.path.exists(sys.argv[1])\n"
        "if there:\n    app(ledger, standalone_mode=False)\n"  # all code is loaded
        "os.geteuid() or os.seteuid(65534)\ntry:\n    SqliteStore(sys.argv[1])\nexcept Exception as error:\n"
        "    print(type(error).__name__, error)\n"
        "if there:\n    app(ledger, standalone_mode=False)\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        path = filled(Path(folder) / "s.db")
        path.chmod(0o444)
        Path(folder).chmod(0o555)
        done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
        fresh = subprocess.run(
            [sys.executable, "-c", code, folder + "/new"], capture_output=True, text=True, check=True
        )
        Path(folder).chmod(0o755)
    before, refused, after = done.stdout.partition(f"StoreError {path}: ")
    assert refused
    said, _, ledger = after.partition("\n")
    assert "make the file and its folder" in said
    assert ledger == before
    assert "make the file and its folder" in fresh.stdout


def test_a_file_that_may_not_be_written_is_refused_although_a_crash_left_its_log() -> None:
    """SQLite opens it without a word, and no answer is kept: as on a disk that is mounted read-only after a crash."""
    code = """
import os, sys
from focalroute.store.sqlite.store import SqliteStore
from tests.store.made import answer
if not os.fork():
    SqliteStore(sys.argv[1]).write(answer("x")).result(10)
    os._exit(0)
os.wait()
for name in os.listdir("."):
    os.chmod(name, 0o444)
os.chmod(".", 0o555)
os.geteuid() or os.seteuid(65534)
try:
    SqliteStore(sys.argv[1])
except Exception as error:
    print(type(error).__name__, error)
print(SqliteStore(sys.argv[1], maintain=False).answer("x").id)
"""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", code, "s.db"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
        Path(folder).chmod(0o755)
    assert done.stdout == "StoreError s.db: may only be read; make the file and its folder writable\nx\n"


def test_a_disk_too_full_to_open_a_file_is_named() -> None:
    """Without room for the file that readers share, SQLite reports an I/O error."""
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_SHMSIZE
    assert str(database.store_error("s.db", error)) == "s.db: disk I/O error; make room on the disk"


# -- migrating -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, len(migrations())))
def test_every_past_version_is_migrated_with_its_rows(tmp_path: Path, version: int) -> None:
    """A file of each release opens, keeps its rows, and then is as a fresh one."""
    with old_database(tmp_path / "old.db", version) as db:
        db.execute(
            "INSERT INTO answers (id, created_at, record, receipt) "
            "VALUES ('x', 1.5, '[[], \"short\", 0, [], {}]', '{}')"
        )
        db.execute("INSERT INTO feedback (answer_id, source, reward, created_at) VALUES ('x', 'user', 1.0, 2.5)")
    with closing(SqliteStore(tmp_path / "old.db")) as old, closing(SqliteStore(tmp_path / "new.db")) as new:
        assert [(row.id, said) for row, said in old.recent(9)] == [("x", (judge("x"),))]
        old.write(bill()).result(10)
        assert [problem.partition(" rows are older than checksums")[0] for problem in old.verify()] == [
            "answers: 1",
            "feedback: 1",
        ]
        schema = "SELECT name, sql FROM sqlite_master ORDER BY name"
        made = [on_thread(store, lambda db: db.execute(schema).fetchall()) for store in (old, new)]
        versions = [
            on_thread(store, lambda db: db.execute("PRAGMA user_version").fetchone()[0]) for store in (old, new)
        ]
    assert made[0] == made[1]
    assert versions == [len(migrations())] * 2


def test_a_migration_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it or none, and the file still opens with the old version."""
    path = filled(tmp_path / "s.db")
    with monkeypatch.context() as newer:
        broken = "ALTER TABLE answers ADD COLUMN fine TEXT; ALTER TABLE nothing ADD COLUMN wrong TEXT"
        with_broken = (*migrations(), broken)
        newer.setattr(database, "migrations", lambda: with_broken)
        fails(path, "nothing")
    with closing(SqliteStore(path)) as store:
        assert store.verify() == ()
        assert len(list(store.recent(9))) == 3


# -- verifying -----------------------------------------------------------------------------------------------------


_REPLACED = "chain: rows of answers, feedback, probes or ledger are missing or were replaced"


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        ("UPDATE answers SET trajectory = substr(trajectory, 1, 99) WHERE id = 'b'", "answer b: its row is damaged"),
        ("UPDATE answers SET trajectory = zeroblob(99) WHERE id = 'b'", "answer b: its row is damaged"),
        ("UPDATE answers SET trajectory = 'text' WHERE id = 'b'", "answer b: its row is damaged"),
        ("UPDATE answers SET record = substr(record, 2) WHERE id = 'b'", "answer b: its row is damaged"),
        ("UPDATE answers SET receipt = '{' WHERE id = 'b'", "answers: the row of 'b' was changed"),
        ("UPDATE answers SET texts = '{' WHERE id = 'b'", "answers: the row of 'b' was changed"),
        ("UPDATE capabilities SET capability_values = x'ff'", "capabilities: the row of 'k' was changed"),
        ("UPDATE ledger SET tags = ''", "ledger: the row of 'x' was changed"),
        ("UPDATE ledger SET cost_pico = cost_pico + 1", "ledger: the row of 'x' was changed"),
        ("UPDATE feedback SET reward = 0.0", "feedback: the row of 'a' was changed"),
        ("DELETE FROM answers WHERE id = 'b'", f"{_REPLACED} (5 were written, 4 are there)"),
        ("DELETE FROM ledger", f"{_REPLACED} (5 were written, 4 are there)"),
        (
            "UPDATE sqlite_sequence SET seq = seq + 1 WHERE name = 'ledger'",
            f"{_REPLACED} (5 were written, 5 are there)",
        ),
        ("UPDATE sqlite_sequence SET seq = 'x' WHERE name = 'chain'", "chain: damaged"),
        ("CREATE INDEX extra ON ledger (endpoint)", "schema: is not the one"),
    ],
)
def test_verify_finds_each_damage_and_only_it(tmp_path: Path, damage: str, found: str) -> None:
    """One problem, named by its row."""
    path = filled(tmp_path / "s.db")
    edit(path, damage)
    with closing(SqliteStore(path)) as store:
        (problem,) = store.verify()
    assert problem.startswith(found)


def test_verify_finds_damaged_pages(tmp_path: Path) -> None:
    """Whichever page is overwritten, verify says so instead of raising, and the file can still be opened for it."""
    path = filled(tmp_path / "s.db")
    sound = path.read_bytes()
    found = 0
    for page in range(1, len(sound) // 4096):
        path.write_bytes(sound[: page * 4096] + b"\x5a" * 4096 + sound[(page + 1) * 4096 :])
        with closing(SqliteStore(path)) as store:
            found += bool(store.verify())
    assert found == len(sound) // 4096 - 1
    path.write_bytes(sound)
    with closing(SqliteStore(path)) as store:
        assert store.verify() == ()


@pytest.mark.parametrize("column", ["record", "receipt", "texts"])
def test_a_text_that_is_no_utf_8_damages_its_answer_only(tmp_path: Path, column: str) -> None:
    """No answer could be read, so a store with one flipped bit could not be used at all."""
    path = filled(tmp_path / "s.db")
    edit(path, f"UPDATE answers SET {column} = CAST(x'7bff' AS TEXT) WHERE id = 'b'")
    with closing(SqliteStore(path)) as store:
        assert [row.id for row, _ in store.recent(9)] == ["a", "c"]
        store.write(judge("b"), judge("c")).result(10)
        seen: list[str] = []
        store.subscribe(lambda rows: seen.extend(row.id for row, _ in rows), last=9)
        assert seen == ["a", "c"]
        with pytest.raises(StoreError, match="answer b: its row is damaged"):
            store.answer("b")
        (problem,) = store.verify()
        assert re.match("answer b: |answers: the row of 'b'", problem)


def test_a_damaged_value_is_a_store_error(tmp_path: Path) -> None:
    """It was a TypeError."""
    path = filled(tmp_path / "s.db")
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA writable_schema = 1")
        db.execute("UPDATE sqlite_master SET sql = replace(sql, 'cost_source TEXT NOT NULL', 'cost_source TEXT')")
    edit(path, "UPDATE ledger SET cost_source = NULL")
    with closing(SqliteStore(path)) as store, pytest.raises(StoreError, match=r"s\.db: .*; restore it from a copy"):
        store.ledger("endpoint")


def test_a_store_is_not_called_damaged_where_memory_is_short(tmp_path: Path) -> None:
    """SQLite's own lack of memory is a MemoryError, too; a user was told to restore the store from a copy."""

    def short(_: sqlite3.Connection) -> None:
        raise MemoryError

    with closing(SqliteStore(tmp_path / "s.db")) as store, pytest.raises(StoreError, match="out of memory; free some"):
        store._read(short)


def test_a_damaged_probe_counts_as_none(tmp_path: Path) -> None:
    """The endpoint is probed again, and the new probe replaces it."""
    path = filled(tmp_path / "s.db")
    edit(path, "UPDATE capabilities SET capability_values = '{'")
    with closing(SqliteStore(path)) as store:
        assert store.capabilities("k") is None
        store.write(CapabilityRow("k", 2.0, {"n": 2})).result(10)
        assert store.capabilities("k") == CapabilityRow("k", 2.0, {"n": 2})
