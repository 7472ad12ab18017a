"""Rows that a loop writes go to a real SQLite store in company, and each comes back by itself."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from focalroute.commits import Commits
from focalroute.errors import StoreError
from focalroute.store.sqlite import SqliteStore
from tests.store.made import answer


def test_each_write_of_a_turn_succeeds_or_fails_by_itself(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")

    async def write() -> list[BaseException | None]:
        commits = Commits(store)
        waiting = [commits.write((answer(name),)) for name in ("a", "b", "a", "c")]
        return await asyncio.gather(*waiting, return_exceptions=True)

    found = asyncio.run(write())
    assert [type(one) for one in found] == [type(None), type(None), StoreError, type(None)]
    assert [kept.id for kept, _ in store.recent(10)] == ["a", "b", "c"]
    store.close()


def test_a_write_whose_waiter_gave_up_is_committed(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")

    async def give_up() -> None:
        commits = Commits(store)
        waiting = commits.write((answer("a"),))
        waiting.cancel()
        await commits.write((answer("b"),))

    asyncio.run(give_up())
    assert [kept.id for kept, _ in store.recent(10)] == ["a", "b"]
    store.close()


def test_many_are_told_in_their_order_and_never_all_in_one_turn(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    told: list[tuple[int, int]] = []  # who, in which turn of the loop

    async def write() -> None:
        loop, commits = asyncio.get_running_loop(), Commits(store)
        turn = 0

        def count() -> None:
            nonlocal turn
            turn += 1
            loop.call_soon(count)

        async def one(number: int) -> None:
            await commits.write((answer(f"{number}"),))
            told.append((number, turn))

        count()
        await asyncio.gather(*map(one, range(100)))

    asyncio.run(write())
    store.close()
    assert [number for number, _ in told] == list(range(100))
    together = Counter(turn for _, turn in told)
    assert len(together) >= 2
    assert max(together.values()) <= 50  # two groups may meet in a turn


def test_loops_one_after_the_other_have_their_own_writes(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    commits = Commits(store)

    async def write(name: str) -> None:
        await commits.write((answer(name),))

    for name in "abc":
        asyncio.run(write(name))
    assert [kept.id for kept, _ in store.recent(10)] == ["a", "b", "c"]
    store.close()
    with pytest.raises(StoreError, match="closed"):
        asyncio.run(write("d"))
