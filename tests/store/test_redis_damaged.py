"""Damage in Redis is an error for those it concerns: no call hangs, no account reads as empty, and all else goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from focalroute.core.errors import StoreError
from focalroute.store.accounts import Account, Balance
from focalroute.store.redis.address import RedisAddress
from focalroute.store.redis.fleet_policy import FleetPolicy
from focalroute.store.redis.store import RedisStore
from tests.loopback import until
from tests.redis_server import RedisServer, place
from tests.store.made import answer, bill, judge
from tests.store.test_accounts import hold
from tests.store.test_redis import command

TOTAL = Account()
LIMITS = {TOTAL: Decimal(1), Account("team"): Decimal(1)}
SPENT = Decimal("0.75")

#: A key and a command that damages it.
DAMAGE: dict[str, tuple[str, tuple[Any, ...]]] = {
    "an answer's date": ("answer:x", ("HSET", "created_at", "soon")),
    "an answer's feedback": ("answer:x", ("HSET", "said:user", "good")),
    "an entry of answers": ("answers", ("XADD", "*", "other", "program")),
    "an entry of feedback": ("feedback", ("XADD", "*", "other", "program")),
    "an entry of the ledger": ("ledger", ("XADD", "*", "other", "program")),
    "an amount in the ledger": (
        "ledger",
        ("XADD", "*", "at", "1", "micro", "nan", "pico", "0", "tags", "[]", "row", ""),
    ),
    "a balance that is not a number": ("balances", ("HSET", "0 ", "0 nan 0 0 0")),
    "a balance that is short": ("balances", ("HSET", "0 ", "-5")),
    "a sum": ("totals", ("HSET", '["a", "micro"]', "much")),
    "the version": ("policy", ("HSET", "current", "latest")),
    "the versions": ("policy", ("HSET", "versions", "[1]")),
    "another program's writers": ("writers", ("SET", "x")),
    "another program's policy": ("policy", ("SET", "x")),
}


def calls_of(store: RedisStore) -> Iterator[Callable[[], object]]:
    """A call of every kind."""
    fleet_policy = FleetPolicy(store)

    def as_spent(found: Mapping[Account, Balance]) -> None:
        assert all(balance.spent >= SPENT for balance in found.values())

    def beyond() -> None:
        assert not store.reserve(hold(1, "0.5"), LIMITS).result(10).granted

    yield lambda: as_spent(store.open_accounts(LIMITS))
    yield lambda: as_spent(store.balances(LIMITS).result(10))
    yield beyond
    yield lambda: store.write(answer("y"), judge("y")).result(10)
    yield lambda: store.write(bill(cost=Decimal("0.125"))).result(10)
    yield lambda: store.write(judge("x", -1.0)).result(10)
    yield lambda: store.answer("x")
    yield lambda: store.recent(9)
    yield lambda: store.ledger("tag")
    yield lambda: store.ledger("endpoint")
    yield store.verify
    yield store.reconcile
    yield fleet_policy.state
    yield lambda: fleet_policy.files(1)
    yield lambda: time.sleep(0.1)  # until the store has looked for news
    yield lambda: store.capabilities("x")


def check(store: RedisStore) -> None:
    """Every call ends soon, with a result or an error of ours, and the store's thread lives."""
    for call in calls_of(store):
        began, said = time.monotonic(), ""
        try:
            call()
        except StoreError as error:
            said = str(error)
        assert time.monotonic() - began < 5
        assert "fork" not in said  # the error of a store whose thread has ended


@pytest.mark.parametrize("fresh", [False, True], ids=["open", "fresh"])
@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_a_typed_error_and_all_else_goes_on(redis_server: RedisServer, what: str, fresh: bool) -> None:
    where, (key, words) = place(redis_server.url), DAMAGE[what]
    delivered: list[str] = []
    with closing(RedisStore(where, patience_s=1, poll_s=0.02)) as store:
        store.subscribe(lambda rows: delivered.extend(one.answer_id for _, one in rows), last=9)
        store.open_accounts(LIMITS)
        store.write(answer("x"), judge("x"), bill(cost=SPENT)).result(10)
        full = f"{{{RedisAddress.of(where).prefix}}}:{key}"
        if words[0] == "SET":
            store.run(lambda connection: connection.command("DEL", full))
        store.run(lambda connection: connection.command(words[0], full, *words[1:]))
        if not fresh:
            check(store)
            assert key != "feedback" or delivered == ["x", "y", "x"]
    if fresh:
        with suppress(StoreError), closing(RedisStore(where, patience_s=1, poll_s=0.02)) as store:
            check(store)


def test_a_write_that_is_refused_for_good_does_not_hold_up_the_store(tmp_path: Path) -> None:
    """Neither while the server's access list refuses it, nor afterwards."""
    with RedisServer(tmp_path) as server, closing(RedisStore(server.url, patience_s=1)) as store:
        command(server, "ACL", "SETUSER", "default", "-evalsha")
        with pytest.raises(StoreError, match="access list"):
            store.write(answer("x")).result(10)
        with pytest.raises(StoreError, match="access list"):
            store.balances(LIMITS).result(10)
        command(server, "ACL", "SETUSER", "default", "+@all")
        until(lambda: store.write(answer("y")).exception(10) is None)


def test_another_programs_row_in_the_ledger_stops_no_period(redis_server: RedisServer) -> None:
    """Where a period begins, the latest rows are looked through for calls of it."""
    minute = Account("", 60)
    with closing(RedisStore(place(redis_server.url))) as store:
        store.open_accounts([minute])
        store.run(lambda redis: redis.command("XADD", redis.keys["ledger"], "*", "other", "program"))
        store.run(lambda redis: redis.command("HSET", redis.keys["balances"], "60 ", "1 0 0 0 0"))
        assert store.reserve(hold(1, "0.5"), {minute: Decimal(1)}).result(10).granted
