"""Calls share a commit but fail one by one: a wrong call affects no other, nor the store's thread."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from focalroute.core.errors import FocalrouteError, StoreError, UnknownAnswer
from focalroute.core.records import Usage
from focalroute.store import open_store
from focalroute.store.base import CapabilityRow, HealthRow, Row
from focalroute.store.sqlite.store import SqliteStore
from tests.store.made import answer, bill, judge, on_thread


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(tmp_path / "s.db" if request.param == "file" else None)) as made:
        yield made


@contextmanager
def held(store: SqliteStore) -> Iterator[None]:
    """Keep the store's thread busy, so that all calls made meanwhile share one commit."""
    reached, go = threading.Event(), threading.Event()

    def wait(_: Any) -> None:
        reached.set()
        go.wait(10)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(on_thread, store, wait)
        reached.wait(10)
        try:
            yield
        finally:
            go.set()
            waiting.result(10)


def done(future: Future[None]) -> None:
    assert future.result(10) is None


def ids(store: SqliteStore) -> list[str]:
    return [row.id for row, _ in store.recent(1000)]


def test_written_rows_are_read_back(store: SqliteStore) -> None:
    """Answers with feedback, the latest probe, the ledger."""
    probe = CapabilityRow("service model", 2.0, {"logprobs": True})
    done(store.write(answer("x"), answer("y"), bill(), probe))
    done(store.write(judge("x"), judge("x", 0.5, source="judge")))
    done(store.write(replace(probe, probed_at=1.0, values={})))
    assert list(store.recent(9)) == [
        (answer("x"), (judge("x"), judge("x", 0.5, source="judge"))),
        (answer("y"), ()),
    ]
    assert [row.id for row, _ in store.recent(1)] == ["y"]
    assert store.capabilities("service model") == probe
    assert store.capabilities("other") is None
    assert store.totals()["a"].calls == 1
    assert store.answer("x") == answer("x")
    assert store.answer("z") is None
    assert store.verify() == ()


def test_the_latest_news_of_an_endpoints_health_are_kept(store: SqliteStore) -> None:
    out, back = HealthRow("k", 12.0, 2, 10.0), HealthRow("k", None, 2, 11.0)
    for row in (out, back, out):
        done(store.write(row))
    done(store.write(HealthRow("other", 12.5, 1, 10.5)))
    assert store.health().result(10) == {"k": back, "other": HealthRow("other", 12.5, 1, 10.5)}


def test_a_damaged_row_of_health_is_none(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "s.db")) as store:
        done(store.write(HealthRow("k", 12.0, 2, 10.0), *(HealthRow(key, None, 1, 1.0) for key in "abc")))
    with closing(sqlite3.connect(tmp_path / "s.db")) as db, db:
        for key, column in zip("abc", ("open_until", "ejections", "changed_at"), strict=True):
            db.execute(f"UPDATE health SET {column} = 'never' WHERE key = ?", (key,))
    with closing(SqliteStore(tmp_path / "s.db")) as store:
        assert store.health().result(10).keys() == {"k"}


def test_a_call_that_fails_fails_alone(store: SqliteStore) -> None:
    """None of its rows is left, all of its neighbours' are, within one commit."""
    done(store.write(answer("x")))
    done(store.write(judge("x", 1.0)))
    with held(store):
        calls = [
            store.write(answer("before"), bill()),
            store.write(answer("with unknown"), bill(), judge("nobody")),
            store.write(answer("with twin"), bill(), answer("x")),
            store.write(answer("after"), judge("after"), bill()),
        ]
    raised = [type(call.exception(10)) for call in calls]
    assert raised == [type(None), UnknownAnswer, StoreError, type(None)]
    assert ids(store) == ["x", "before", "after"]
    assert store.totals()["a"].calls == 2
    assert store.verify() == ()


def test_a_duplicate_id_leaves_the_first_answer(store: SqliteStore) -> None:
    """Also if both are committed together."""
    first, second = answer("x"), replace(answer("x"), kind="number")
    with held(store):
        calls = store.write(first), store.write(second)
    assert calls[0].exception(10) is None
    with pytest.raises(StoreError, match="'x' is stored already"):
        calls[1].result(10)
    assert store.answer("x") == first
    assert ids(store) == ["x"]


BAD_ROWS: list[Row] = [
    replace(answer("bad"), keys=(object(),)),  # type: ignore[arg-type]
    replace(answer("bad"), trajectory="no trajectory"),  # type: ignore[arg-type]
    replace(answer("bad"), receipt=object()),  # type: ignore[arg-type]
    replace(answer("bad"), receipt=None),  # type: ignore[arg-type]
    replace(answer("bad"), texts="\ud800"),
    judge("x", float("nan"), source="nan"),
    bill(cost=Decimal("NaN")),
    bill(cost=Decimal("Infinity")),
    bill(cost=Decimal(10) ** 9),
    bill(usage=Usage(2**64, 0)),
    CapabilityRow("bad", 1.0, {"value": object()}),
]


@pytest.mark.parametrize("bad", BAD_ROWS, ids=range(len(BAD_ROWS)))
def test_a_row_that_cannot_be_stored_fails_its_call_only(bad: Row) -> None:
    """Whatever the reason: its future says so, its neighbours commit, the thread goes on."""
    with closing(SqliteStore()) as store:
        done(store.write(answer("x")))
        with held(store):
            calls = [store.write(answer("before")), store.write(bill(), bad), store.write(answer("after"))]
        with pytest.raises(StoreError):
            calls[1].result(10)
        done(calls[0])
        done(calls[2])
        assert ids(store) == ["x", "before", "after"]
        assert store.totals() == {}
        assert store.answer("bad") is None


def test_an_error_does_not_repeat_stored_texts() -> None:
    """Prompts and replies do not get into exceptions."""
    with closing(SqliteStore()) as store:
        error = store.write(replace(answer("x"), texts="secret \ud800 secret")).exception(10)
    seen: BaseException | None = error
    while seen is not None:
        assert "secret" not in str(seen)
        seen = seen.__cause__ or seen.__context__


class Odd(BaseException):
    """Nothing that anybody would catch."""


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, Odd])
def test_a_failing_read_fails_its_reader_only(error: type[BaseException]) -> None:
    """The thread survives anything, and leaves no transaction open."""

    def fail(db: sqlite3.Connection) -> None:
        raise error("no")

    with closing(SqliteStore()) as store:
        with pytest.raises(error):
            on_thread(store, fail)
        done(store.write(answer("x")))
        assert ids(store) == ["x"]


def test_a_reads_database_error_is_a_store_error(store: SqliteStore) -> None:
    """It names the store."""
    with pytest.raises(StoreError, match=r"s\.db|in memory"):
        on_thread(store, lambda db: db.execute("SELECT * FROM nothing"))


def test_a_full_disk_fails_writes_until_there_is_room(store: SqliteStore) -> None:
    """The error says what to do, nothing of the failed call is left nor told, and later writes succeed."""
    done(store.write(answer("x")))
    pages = on_thread(store, lambda db: db.execute("PRAGMA page_count").fetchone()[0])
    on_thread(store, lambda db: db.execute(f"PRAGMA max_page_count = {pages}").fetchall())
    big = replace(answer("big"), texts=json.dumps("x" * 100_000))
    with held(store):
        call = store.write(big, bill())
    with pytest.raises(StoreError, match="full; make room"):
        call.result(10)
    assert store.answer("big") is None
    on_thread(store, lambda db: db.execute("PRAGMA max_page_count = 100000").fetchall())
    done(store.write(big))
    assert ids(store) == ["x", "big"]
    assert store.totals() == {}
    assert store.verify() == ()


def test_a_database_that_turns_read_only_fails_writes_but_not_reads(store: SqliteStore) -> None:
    """And heals as soon as it may be written again."""
    done(store.write(answer("x")))
    on_thread(store, lambda db: db.execute("PRAGMA query_only = ON"))
    with pytest.raises(StoreError, match="make the file and its folder writable"):
        store.write(answer("y")).result(10)
    assert ids(store) == ["x"]
    on_thread(store, lambda db: db.execute("PRAGMA query_only = OFF"))
    done(store.write(answer("y")))
    assert ids(store) == ["x", "y"]


def test_a_lock_held_too_long_fails_writes_but_not_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process has it; once it lets go, writes succeed."""
    path = tmp_path / "s.db"
    with closing(SqliteStore(path)) as store, closing(sqlite3.connect(path, isolation_level=None)) as other:
        done(store.write(answer("x")))
        monkeypatch.setattr("focalroute.store.sqlite.database.BUSY_S", 0.02)
        other.execute("BEGIN IMMEDIATE")
        with held(store):
            calls = [store.write(answer("y")), store.write(judge("x"))]
        for call in calls:
            with pytest.raises(StoreError, match=r"s\.db: .*another process"):
                call.result(10)
        assert calls[0].exception() is not calls[1].exception()
        assert ids(store) == ["x"]
        assert store.answer("y") is None
        monkeypatch.undo()
        other.execute("ROLLBACK")
        done(store.write(answer("y"), judge("y")))


def test_a_lock_held_briefly_is_waited_for(tmp_path: Path) -> None:
    """Two processes writing are no error."""
    path = tmp_path / "s.db"
    with closing(SqliteStore(path)) as store, closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        call = store.write(answer("x"))
        other.execute("COMMIT")
        done(call)


async def give_up(store: SqliteStore) -> None:
    task = asyncio.ensure_future(asyncio.wrap_future(store.write(answer("x"), bill())))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_cancelled_waiter_harms_nothing_and_its_rows_are_kept() -> None:
    """What was consumed is in the ledger, whoever gave up; also if the event loop is gone by then."""
    with closing(SqliteStore()) as store:
        with held(store):
            asyncio.run(give_up(store))
        done(store.write(answer("y")))
        assert ids(store) == ["x", "y"]
        assert store.totals()["a"].calls == 1


def test_a_future_cannot_be_cancelled(store: SqliteStore) -> None:
    """A write that was taken is done."""
    with held(store):
        call = store.write(answer("x"))
        assert not call.cancel()
    done(call)


def test_many_threads_write_and_read_at_once(store: SqliteStore) -> None:
    """Every call gets its own outcome."""

    def work(thread: int) -> None:
        for i in range(40):
            name = f"{thread}-{i}"
            call = store.write(answer(name), bill(f"e{thread}"))
            assert store.answer(name) == answer(name)
            done(call)
            done(store.write(judge(name)))
            done(store.write(judge(name, -1.0)))

    with ThreadPoolExecutor(8) as pool:
        for finished in [pool.submit(work, thread) for thread in range(8)]:
            finished.result(30)
    assert len(ids(store)) == 320
    assert {name: total.calls for name, total in store.totals().items()} == {f"e{i}": 40 for i in range(8)}
    assert store.verify() == ()


def test_closing_commits_what_is_queued(tmp_path: Path) -> None:
    """From several threads at once, and again; each returns when all is done."""
    store = SqliteStore(tmp_path / "s.db")
    with ThreadPoolExecutor(4) as pool:
        with held(store):
            calls = [store.write(answer(str(i))) for i in range(2500)]
            closing_ = [pool.submit(store.close) for _ in range(4)]
        for each in closing_:
            each.result(10)
            assert all(call.done() for call in calls)
    store.close()
    with closing(SqliteStore(tmp_path / "s.db")) as again:
        assert len(list(again.recent(5000))) == 2500


def test_a_closed_store_says_so() -> None:
    """Writing and reading alike, and nothing waits."""
    store = open_store(None)
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.write(answer("x")).result(10)
    with pytest.raises(FocalrouteError, match="closed"):
        store.answer("x")


def test_a_posterior_that_is_not_a_number_is_refused_alone(store: SqliteStore) -> None:
    """JSON would take NaN, and whoever reads it later would not."""
    bad = replace(answer("bad"), probabilities=(float("nan"), 1.0))
    refused, taken = store.write(bad), store.write(answer("good"))
    with pytest.raises(StoreError):
        refused.result(10)
    done(taken)
    assert ids(store) == ["good"]


def test_a_queue_that_is_not_emptied_refuses_more(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("focalroute.store.engine._MOST_WAITING", 5)
    with held(store):
        waiting = [store.write(answer(str(number))) for number in range(12)]
        with pytest.raises(StoreError, match="wait already"):
            waiting[-1].result(10)
    done(waiting[0])
    assert len(ids(store)) == 5
