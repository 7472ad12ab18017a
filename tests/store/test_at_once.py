"""A caller commits by itself if it need not wait; otherwise the store's thread does."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from decimal import Decimal
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from focalroute.core.errors import StoreError, UnknownAnswer
from focalroute.store.accounts import Account
from focalroute.store.base import Reservation, Row, Store
from focalroute.store.redis.store import RedisStore
from focalroute.store.sqlite import reads
from focalroute.store.sqlite import store as engine
from focalroute.store.sqlite.store import SqliteStore, Unit
from tests.redis_server import RedisServer, place
from tests.store.made import answer, bill, judge, trajectory
from tests.store.test_writing import held


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """No commit passes for slow because this machine is."""
    monkeypatch.setattr(engine, "_SLOW_S", 60.0)


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(tmp_path / "s.db" if request.param == "file" else None)) as made:
        yield made


def comes(what: Callable[[], Any]) -> Any:
    """What this gives as soon as it gives something; the store's thread may just be at the database."""
    until = time.monotonic() + 60
    while (found := what()) is None:
        assert time.monotonic() < until
        time.sleep(0.001)
    return found


def at_once(store: SqliteStore, *calls: Sequence[Row]) -> Sequence[Exception | None] | None:
    """What became of calls that this thread does itself; None: nothing, they are for the store's thread."""
    return store._try_in_caller([engine._insertion(rows) for rows in calls])


def written(store: SqliteStore, calls: Sequence[Sequence[Row]]) -> Sequence[Exception | None]:
    found: Sequence[Exception | None] = comes(lambda: at_once(store, *calls))
    return found


def ids(store: SqliteStore) -> list[str]:
    return [row.id for row, _ in store.recent(1000)]


def test_calls_are_committed_when_they_return_and_fail_one_by_one(store: SqliteStore) -> None:
    """As `write` does it: rows, sums, what went wrong."""
    found = written(store, [(answer("a"), bill()), (answer("b"), answer("a")), (answer("c"),)])
    assert [type(one) for one in found] == [type(None), StoreError, type(None)]
    assert "ids must be unique" in str(found[1])
    assert ids(store) == ["a", "c"]
    assert store.totals()["a"].calls == 1
    assert store.answer("a") == answer("a")
    assert store.answer("b") is None
    assert store.verify() == ()


def test_a_lone_call_that_fails_changes_nothing(store: SqliteStore) -> None:
    """Though it has a transaction to itself, and what is wrong comes last."""
    written(store, [(answer("a"),)])
    (found,) = written(store, [(answer("b"), bill(), answer("a"))])
    assert "ids must be unique" in str(found)
    assert ids(store) == ["a"]
    assert store.totals() == {}
    queued = store.write(answer("c"), bill(), answer("a"))
    with pytest.raises(StoreError, match="ids must be unique"):
        queued.result(10)
    assert set(written(store, [(answer("b"), bill())])) == {None}
    assert ids(store) == ["a", "b"]


def test_an_interrupted_caller_leaves_nothing_half_done(store: SqliteStore) -> None:
    """As by Ctrl-C, which comes between any two lines of the main thread."""

    def interrupted(db: sqlite3.Connection, *_: object) -> None:
        db.execute("INSERT INTO capabilities VALUES ('k', 1.0, '{}', 0)")
        raise KeyboardInterrupt

    written(store, [(answer("a"),)])
    with pytest.raises(KeyboardInterrupt):
        store._try_in_caller([Unit((), interrupted)])
    assert store.capabilities("k") is None
    assert set(written(store, [(answer("b"),)])) == {None}
    assert ids(store) == ["a", "b"]


def test_feedback_is_left_to_the_thread_that_notifies_listeners(store: SqliteStore) -> None:
    written(store, [(answer("a"),)])
    heard: list[str] = []
    store.subscribe(lambda rows: heard.extend(f"{threading.current_thread().name} {row.id}" for row, _ in rows), last=0)
    assert list(store.write_calls([(answer("b"),), (judge("a"),)]).result(10)) == [None, None]
    assert heard == ["focalroute-store a"]
    assert ids(store) == ["a", "b"]


def test_queued_writes_come_first(store: SqliteStore) -> None:
    """While the thread is at work, or has taken a job and is not, nobody overtakes it."""
    reached = []

    def look(_: sqlite3.Connection) -> None:
        reached.append(at_once(store, (answer("early"),)))

    store._read(look)
    assert reached == [None]
    for number in range(200):
        queued = store.write(answer(f"{number}"))
        if at_once(store, (answer(f"{number}-after"),)) is not None:
            assert queued.done()
    assert [one for one in ids(store) if "-" not in one] == [f"{number}" for number in range(200)]


def test_a_locked_file_is_left_to_the_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written and nobody waits; once the other process has gone on, it is possible again."""
    monkeypatch.setattr("focalroute.store.sqlite.database.BUSY_S", 60.0)
    with closing(SqliteStore(tmp_path / "s.db")) as store:
        written(store, [(answer("a"),)])
        with closing(sqlite3.connect(tmp_path / "s.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            began = time.monotonic()
            queued = store.write_calls([(answer("b"),)])
            assert time.monotonic() - began < 30  # of the 60 seconds that a lock is waited for
            assert not queued.done()
            other.execute("COMMIT")
        queued.result(10)
        written(store, [(answer("c"),)])
        assert ids(store) == ["a", "b", "c"]


def test_a_reservation_is_made_at_once_or_waits_its_turn(tmp_path: Path) -> None:
    """Either way it is exact: what does not fit beside all others is refused."""
    limits = {Account(): Decimal(1)}
    with (  # whose threads look around only when they are called
        closing(SqliteStore(tmp_path / "s.db", poll_s=3600)) as store,
        closing(SqliteStore(tmp_path / "s.db", poll_s=3600)) as other,
    ):
        store.open_accounts(limits)
        comes(lambda: at_once(store))
        first = store.reserve(Reservation("r1", "x", "a", Decimal("0.5")), limits)
        assert first.done()
        assert first.result().granted
        with held(store):
            queued = store.reserve(Reservation("r2", "x", "a", Decimal("0.25")), limits)
            assert not queued.done()
            assert other.reserve(Reservation("r3", "x", "a", Decimal("0.375")), limits).result(10).granted
        assert not queued.result(10).granted
        comes(lambda: at_once(store))
        assert not store.reserve(Reservation("r4", "x", "a", Decimal("0.25")), limits).result(10).granted
        assert store.reserve(Reservation("r5", "x", "a", Decimal("0.125")), limits).result(10).granted
        assert store.verify() == ()


def test_full_durability_is_left_to_the_thread(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "s.db", durability="full")) as store:
        store.write(answer("a")).result(10)
        time.sleep(0.05)
        assert at_once(store, (answer("b"),)) is None


def test_a_slow_disk_is_left_to_the_thread_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_SLOW_S", -1.0)  # every commit is slow
    monkeypatch.setattr(engine, "_SLOW_FOR_S", 60.0)
    with closing(SqliteStore(tmp_path / "s.db")) as store:
        written(store, [(answer("a"),)])
        assert at_once(store, (answer("b"),)) is None
    monkeypatch.setattr(engine, "_SLOW_FOR_S", 0.1)
    with closing(SqliteStore(tmp_path / "s.db")) as store:
        for name in "bc":
            written(store, [(answer(name),)])  # in time
        assert ids(store) == ["a", "b", "c"]


@pytest.mark.parametrize("read", ["totals", "verify", "reconcile"])
def test_calls_are_committed_while_all_of_a_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    """Asks waited for it, seconds in a file of 300,000 answers."""
    begun, go_on = threading.Event(), threading.Event()

    def slow(usual: Callable[..., Any], *values: Any) -> Any:
        begun.set()
        assert go_on.wait(10)
        return usual(*values)

    for name in ("totals", "find_problems", "reconcile"):
        monkeypatch.setattr(reads, name, partial(slow, getattr(reads, name)))
    with closing(SqliteStore(tmp_path / "s.db")) as store, ThreadPoolExecutor(1) as pool:
        store.write(bill()).result(10)
        reading = pool.submit(getattr(store, read))
        assert begun.wait(10)
        assert store.write_calls([(answer("x"), bill())]).result(10) == [None]
        go_on.set()
        assert len(reading.result(10)) == (read == "totals")


def test_a_closed_store_takes_nothing(store: SqliteStore) -> None:
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.write_calls([(answer("a"),), (answer("b"),)]).result(10)
    with pytest.raises(StoreError, match="closed"):
        store.write(answer("a")).result(10)


def test_a_full_file_says_so(tmp_path: Path) -> None:
    """Nothing of the calls is written, each is told, and with room again it goes on."""
    with closing(SqliteStore(tmp_path / "s.db")) as store:
        pages = store._read(lambda db: db.execute("PRAGMA page_count").fetchone()[0])
        store._read(lambda db: db.execute(f"PRAGMA max_page_count = {pages}"))
        found = written(store, [(answer(f"{i}", steps=trajectory()),) for i in range(20)])
        assert {type(one) for one in found} == {StoreError}
        assert "make room on the disk" in str(found[0])
        assert ids(store) == []
        store._read(lambda db: db.execute("PRAGMA max_page_count = 1000000"))
        assert set(written(store, [(answer("a"),)])) == {None}


@pytest.mark.slow
def test_the_thread_brings_it_into_the_file_and_prunes(tmp_path: Path) -> None:
    """Neither the log of changes nor the tables grow without bounds, though only callers write."""
    path = tmp_path / "s.db"
    with closing(SqliteStore(path, keep=100, poll_s=0.01)) as store:
        for part in range(40):
            written(store, [(answer(f"{part}-{i}", steps=trajectory()), bill()) for i in range(100)])
            comes(lambda: True if store._since_checkpoint < 300 else None)
            if store._next_write_syncs:
                store.write(bill()).result(10)
        assert len(ids(store)) <= 600
        assert store.totals()["a"].calls >= 4000
        assert path.stat().st_size > 100_000
        assert Path(f"{path}-wal").stat().st_size < 8_000_000
        assert store.verify() == ()


@pytest.mark.slow
def test_writes_of_other_processes_are_checkpointed_too(tmp_path: Path) -> None:
    """One store that writes nothing itself, and is never the last to close, does not let the log grow for ever."""
    path = tmp_path / "s.db"
    with closing(SqliteStore(path)):
        for part in range(30):
            with closing(SqliteStore(path)) as other:
                written(other, [(answer(f"{part}-{i}", steps=trajectory()), bill()) for i in range(140)])
        assert Path(f"{path}-wal").stat().st_size < 25_000_000
        assert path.stat().st_size > 1_000_000


def test_after_a_checkpoint_the_next_write_is_the_threads(tmp_path: Path) -> None:
    """It begins the log anew, which waits for the disk."""
    with closing(SqliteStore(tmp_path / "s.db", poll_s=0.01)) as store:
        written(store, [(answer(f"{i}"), bill()) for i in range(200)])
        comes(lambda: True if store._since_checkpoint == 0 else None)
        time.sleep(0.05)
        assert at_once(store, (answer("a"),)) is None
        store.write(answer("a")).result(10)
        written(store, [(answer("b"),)])


def test_the_thread_prunes_to_keep(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "s.db", keep=10, poll_s=0.01)) as store:
        written(store, [(answer(f"{i}"),) for i in range(100)])
        comes(lambda: True if len(ids(store)) == 10 else None)
        assert store.answer("0") is None


def test_a_failing_prune_fails_no_write(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fails(*_: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(engine, "prune", fails)
    with closing(SqliteStore(keep=1)) as store:
        for name in ("a", "b"):
            store.write(answer(name)).result(10)
        assert ids(store) == ["a", "b"]
    assert "pruning failed, trying again later" in caplog.text


def test_closing_while_others_commit_loses_nothing_that_was_said_to_be_done(tmp_path: Path) -> None:
    path, done = tmp_path / "s.db", []
    store = SqliteStore(path)

    def commit(thread: int) -> None:
        """As asks do, until it is closed."""
        for number in count():
            try:
                assert store.write_calls([(answer(f"{thread}-{number}"),)]).result(10) == [None]
            except StoreError:
                return
            done.append(f"{thread}-{number}")

    with ThreadPoolExecutor(3) as pool:
        threads = [pool.submit(commit, thread) for thread in range(3)]
        comes(lambda: True if len(done) > 10 else None)
        store.close()
        for thread in threads:
            thread.result(20)
    with closing(SqliteStore(path)) as again:
        assert {row.id for row, _ in again.recent(100_000)} == set(done)


MIXED: Sequence[Sequence[Row]] = [
    (answer("before"), bill()),
    (answer("x"),),
    (answer("with unknown"), bill(), judge("nobody")),
    (answer("after"), judge("after"), bill()),
]


def check_mixed(store: Store, outcomes: Sequence[BaseException | None]) -> None:
    assert [type(one) for one in outcomes] == [type(None), StoreError, UnknownAnswer, type(None)]
    assert [row.id for row, _ in store.recent(9)] == ["x", "before", "after"]
    assert store.totals()["a"].calls == 2
    assert store.verify() == ()


def test_calls_that_are_queued_together_fail_one_by_one(store: SqliteStore) -> None:
    """Others of the same commit are as they would be without."""
    store.write(answer("x"), judge("x")).result(10)
    with held(store):
        queued = [store.write_calls(MIXED), store.write_calls([(answer("x"),)]), store.write_calls([])]
        alone = store.write(judge("before"))
        assert not any(future.done() for future in queued)
    outcomes, twin, none = [future.result(10) for future in queued]
    check_mixed(store, outcomes)
    assert [type(one) for one in twin] == [StoreError]
    assert list(none) == []
    alone.result(10)


def test_calls_that_go_to_redis_together_fail_one_by_one(redis_server: RedisServer) -> None:
    with closing(RedisStore(place(redis_server.url))) as store:
        store.write(answer("x"), judge("x")).result(10)
        queued = store.write_calls(MIXED)
        assert not queued.cancel()
        check_mixed(store, queued.result(10))
        assert list(store.write_calls([]).result(10)) == []
    assert [type(one) for one in store.write_calls(MIXED[:2]).result(10)] == [StoreError, StoreError]
