"""Writes of one event-loop turn share a transaction of a real SQLite store, and each has its own result."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest

from focalroute.core.errors import StoreError
from focalroute.core.event_loops import PerLoop
from focalroute.serving.concurrency import WriteBatcher
from focalroute.store.sqlite.store import SqliteStore
from tests.store.made import answer


def test_each_write_of_a_turn_succeeds_or_fails_by_itself(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")

    async def write() -> list[BaseException | None]:
        commits = WriteBatcher(store)
        waiting = [commits.write((answer(name),)) for name in ("a", "b", "a", "c")]
        return await asyncio.gather(*waiting, return_exceptions=True)

    found = asyncio.run(write())
    assert [type(one) for one in found] == [type(None), type(None), StoreError, type(None)]
    assert [kept.id for kept, _ in store.recent(10)] == ["a", "b", "c"]
    store.close()


def test_a_write_whose_waiter_gave_up_is_committed(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")

    async def give_up() -> None:
        commits = WriteBatcher(store)
        waiting = commits.write((answer("a"),))
        waiting.cancel()
        await commits.write((answer("b"),))

    asyncio.run(give_up())
    assert [kept.id for kept, _ in store.recent(10)] == ["a", "b"]
    store.close()


@pytest.mark.parametrize("durability", ["normal", "full"])
def test_writes_of_one_turn_share_a_transaction(tmp_path: Path, durability: Literal["normal", "full"]) -> None:
    """Who writes alone is committed by then; who writes in company with all others of the turn, in few commits."""
    store = SqliteStore(tmp_path / "store.db", durability=durability)
    commits: list[int] = []
    transact = store._transact

    def counted(units: Sequence[Any]) -> Any:
        writes = sum(bool(unit.rows) for unit in units)
        if writes:  # else it is the store's own work
            commits.append(writes)
        return transact(units)

    store._transact = counted  # type: ignore[method-assign]

    async def write() -> list[list[int]]:
        writes, seen = WriteBatcher(store), []
        for part in range(3):
            await asyncio.gather(*(writes.write((answer(f"{part}-{number}"),)) for number in range(50)))
            await asyncio.sleep(0.05)  # what is queued is done
            seen.append(commits.copy())
            commits.clear()
        for number in range(3):
            await writes.write((answer(f"alone-{number}"),))
        seen.append(commits.copy())
        return seen

    *crowds, alone = asyncio.run(write())
    store.close()
    for crowd in crowds:
        assert sum(crowd) == 50
        assert len(crowd) <= 3
    assert alone == [1, 1, 1]


def test_loops_one_after_the_other_have_their_own_writes(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    commits = PerLoop(partial(WriteBatcher, store))

    async def write(name: str) -> None:
        await commits.here().write((answer(name),))

    for name in "abc":
        asyncio.run(write(name))
    assert [kept.id for kept, _ in store.recent(10)] == ["a", "b", "c"]
    store.close()
    with pytest.raises(StoreError, match="closed"):
        asyncio.run(write("d"))
