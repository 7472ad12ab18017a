"""A Redis that comes back empty is noticed: what was spent before still counts, or nothing more is spent."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pytest

from focalroute.core.errors import StoreError
from focalroute.store.accounts import Account, Balance
from focalroute.store.redis.connection import EPOCH, KeyName
from focalroute.store.redis.store import RedisStore
from tests.loopback import until
from tests.redis_server import RedisServer
from tests.store.made import answer, bill
from tests.store.test_accounts import hold
from tests.store.test_redis import command

TOTAL, TEAM = Account(), Account("team")
LIMITS = {TOTAL: Decimal(1), TEAM: Decimal(1)}
LOST = "lost its data.*open"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    folder = tmp_path / "redis"
    folder.mkdir()
    with RedisServer(folder, "--appendonly", "no") as running:
        yield running


#: All keys at once: what waits is written as soon as the first of them is there.
RESTORE = "for i, key in ipairs(KEYS) do redis.call('RESTORE', key, 0, ARGV[i]) end"


def spend(store: RedisStore) -> None:
    store.open_accounts(LIMITS)
    store.write(bill(cost=Decimal("0.75"))).result(10)
    assert store.balances(LIMITS).result(10)[TOTAL] == Balance(Decimal("0.75"), Decimal(0))


@pytest.mark.parametrize("how", ["flushed", "restarted"])
def test_a_redis_that_comes_back_empty_is_an_error_for_all_that_counts_money(server: RedisServer, how: str) -> None:
    with closing(RedisStore(server.url, patience_s=60)) as store:
        spend(store)
        if how == "flushed":
            command(server, "FLUSHALL")
        else:
            server.kill()
            server.start()
        began = time.monotonic()
        for _ in range(2):
            with pytest.raises(StoreError, match=LOST):
                store.reserve(hold(1, "0.5"), LIMITS).result(10)
            with pytest.raises(StoreError, match=LOST):
                store.balances(LIMITS).result(10)
            with pytest.raises(StoreError, match=LOST):
                store.open_accounts(LIMITS)
            with pytest.raises(StoreError, match=LOST):
                store.write(bill()).result(10)
        assert time.monotonic() - began < 30  # nothing waits for what does not come back
        assert command(server, "DBSIZE") == 0  # and nothing passes for the lost data
        with closing(RedisStore(server.url)) as fresh:
            assert fresh.open_accounts(LIMITS)[TOTAL] == Balance(Decimal(0), Decimal(0))
            assert fresh.reserve(hold(1, "0.5"), LIMITS).result(10).granted
            with pytest.raises(StoreError, match=LOST):  # what others began since is not what this one opened
                store.reserve(hold(2, "0.5"), LIMITS).result(10)


def test_data_that_was_restored_is_taken_up_again(server: RedisServer) -> None:
    with closing(RedisStore(server.url)) as store:
        spend(store)
        keys = command(server, "KEYS", "*")
        saved = {key: command(server, "DUMP", key) for key in keys}
        command(server, "FLUSHALL")
        with pytest.raises(StoreError, match=LOST):
            store.reserve(hold(1, "0.5"), LIMITS).result(10)
        waiting = store.write(bill(cost=Decimal("0.125")))
        with pytest.raises(StoreError, match=LOST):
            waiting.result(10)
        command(server, "EVAL", RESTORE, len(saved), *saved, *saved.values())

        def counted() -> bool:
            try:
                return store.balances(LIMITS).result(10)[TOTAL] == Balance(Decimal("0.875"), Decimal(0))
            except StoreError:
                return False

        until(counted)
        assert not store.reserve(hold(2, "0.5"), LIMITS).result(10).granted


def test_a_journal_keeps_what_is_written_after_the_loss(server: RedisServer, tmp_path: Path) -> None:
    where = f"{server.url}?journal={tmp_path / 'journal'}"
    with closing(RedisStore(where)) as store:
        spend(store)
        command(server, "FLUSHALL")
        store.write(answer("x"), bill()).result(10)
        with pytest.raises(StoreError, match=LOST):
            store.reserve(hold(1, "0.5"), LIMITS).result(10)
    with closing(RedisStore(where)) as fresh:
        until(lambda: [row.id for row, _ in fresh.recent(9)] == ["x"])


@pytest.mark.parametrize("gone", ["balances", "accounts"])
def test_an_account_that_has_disappeared_is_an_error_until_it_is_opened_anew(
    server: RedisServer, gone: KeyName
) -> None:
    with closing(RedisStore(server.url)) as store:
        spend(store)
        store.run(lambda connection: connection.command("DEL", connection.keys[gone]))
        store.write(bill(cost=Decimal("0.125"))).result(10)  # into the ledger
        for _ in range(2):
            with pytest.raises(StoreError, match="account of the budget has disappeared"):
                store.reserve(hold(1, "0.125"), LIMITS).result(10)
            with pytest.raises(StoreError, match="account of the budget has disappeared"):
                store.balances(LIMITS).result(10)
            with pytest.raises(StoreError, match="account of the budget has disappeared"):
                store.open_accounts(LIMITS)
        with closing(RedisStore(server.url)) as fresh:
            opened = fresh.open_accounts(LIMITS)
            assert {one.spent for one in opened.values()} == {Decimal("0.875")}
            assert fresh.reserve(hold(1, "0.125", ("team",)), LIMITS).result(10).granted
            assert not fresh.reserve(hold(2, "0.125"), LIMITS).result(10).granted
            assert fresh.verify() == ()


def test_a_store_from_before_gets_its_epoch_once(server: RedisServer) -> None:
    with closing(RedisStore(server.url)) as store:
        spend(store)
        store.run(lambda connection: connection.command("HDEL", connection.keys["policy"], EPOCH))
    with closing(RedisStore(server.url)) as first, closing(RedisStore(server.url)) as second:
        for store in (first, second):
            assert store.open_accounts(LIMITS)[TOTAL].spent == Decimal("0.75")
            assert not store.reserve(hold(1, "0.5"), LIMITS).result(10).granted
