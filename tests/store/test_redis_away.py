"""Redis restarts, hangs, dies, loses what it had: what was acknowledged is there in the end, once."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from focalroute import Ensemble
from focalroute.core.errors import StoreError
from focalroute.sim import SimulatedPool
from focalroute.store.accounts import Account, Balance
from focalroute.store.redis.store import RedisStore
from tests.loopback import until
from tests.redis_server import RedisServer
from tests.store.made import answer, bill, judge
from tests.store.test_accounts import TOTAL, hold
from tests.store.test_redis import command

LIMITS = {TOTAL: Decimal(1)}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    folder = tmp_path / "redis"
    folder.mkdir()
    with RedisServer(folder, "--appendfsync", "always") as running:  # it is killed
        yield running


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def kept(store: RedisStore) -> Counter[str]:
    return Counter(row.id for row, said in store.recent(10**6) for _ in said)


def more(futures: list[Future[None]]) -> None:
    enough = len(futures) + 20
    until(lambda: len(futures) > enough)


def test_a_restart_is_waited_for_and_nothing_is_lost_or_doubled(server: RedisServer) -> None:
    """Under load from threads, with reservations: every call ends well, and all of it is there once."""
    limits = {TOTAL: Decimal(100)}
    with closing(RedisStore(server.url, patience_s=30)) as store:
        store.open_accounts(limits)
        futures: list[Future[None]] = []
        end = threading.Event()

        def work(thread: int) -> None:
            number = 0
            while not end.is_set():
                number += 1
                name = f"{thread}-{number}"
                held = hold(name, "0.001")
                assert store.reserve(held, limits).result(30).granted
                futures.append(store.write(answer(name), judge(name), bill(cost=Decimal("0.0005"))))
                if number % 8 == 0:
                    futures[-1].result(30)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for stop in (server.kill, server.stop):
            more(futures)
            stop()
            server.start()
        more(futures)
        end.set()
        for thread in threads:
            thread.join()
        for future in futures:
            future.result(30)
        assert kept(store).total() == len(kept(store)) == len(futures)
        assert store.totals()["a"].calls == len(futures)
        balance = store.balances(limits).result(10)[TOTAL]
        assert balance == Balance(Decimal("0.0005") * len(futures), Decimal("0.001") * len(futures))
        assert store.verify() == ()


def test_without_a_journal_calls_fail_in_time_but_are_done_once_redis_is_back(server: RedisServer) -> None:
    with closing(RedisStore(server.url, patience_s=0.2)) as store:
        store.open_accounts(LIMITS)
        server.stop()
        call = store.write(answer("x"), bill())
        with pytest.raises(StoreError, match=r"cannot be reached.* It is still written if Redis comes back"):
            call.result(10)
        with pytest.raises(StoreError, match=r"cannot be reached.*the address$"):
            store.reserve(hold(1, "0.5"), LIMITS).result(10)
        with pytest.raises(StoreError, match="cannot be reached"):
            store.answer("y")
        server.start()
        until(lambda: bool(list(store.recent(9))) if _up(store) else False)
        assert [row.id for row, _ in store.recent(9)] == ["x"]
        assert store.balances(LIMITS).result(10)[TOTAL] == Balance(Decimal("0.001"), Decimal(0))


def _up(store: RedisStore) -> bool:
    try:
        store.answer("nobody")
    except StoreError:
        return False
    return True


def test_a_reservation_whose_caller_gave_up_is_released(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis hangs, takes the call, and does it when it goes on: the money comes back."""
    monkeypatch.setattr("focalroute.store.redis.connection._TIMEOUT_S", 1.0)
    with closing(RedisStore(server.url, patience_s=0.2)) as store:
        store.open_accounts(LIMITS)
        server.pause()
        with pytest.raises(StoreError):
            store.reserve(hold(1, "0.5"), LIMITS).result(10)
        server.go_on()

        def released() -> bool:
            try:
                return store.balances(LIMITS).result(10)[TOTAL] == Balance(Decimal(0), Decimal(0))
            except StoreError:
                return False

        until(released)


def test_with_a_journal_writes_are_done_at_once_and_arrive_later(server: RedisServer, journal: Path) -> None:
    heard: list[str] = []
    with closing(RedisStore(f"{server.url}?journal={journal}", patience_s=0.2, poll_s=0.01)) as store:
        store.subscribe(lambda rows: heard.extend(row.id for row, _ in rows), last=9)
        server.kill()
        for number in range(30):
            name = f"a{number}"
            store.write(answer(name), bill()).result(10)
            store.write(judge(name)).result(10)
        assert len(list(journal.iterdir())) == 1
        server.start()
        until(lambda: len(heard) == 30)
        assert kept(store) == Counter(f"a{number}" for number in range(30))
        assert store.totals()["a"].calls == 30
        until(lambda: not list(journal.iterdir()))
        store.write(answer("after")).result(10)


def test_with_a_journal_feedback_is_taken_while_redis_is_away(
    server: RedisServer, journal: Path, simulated_pool: SimulatedPool
) -> None:
    """Also by the answer's id, though the store cannot be read."""
    with Ensemble(simulated_pool.endpoints, store=f"{server.url}?journal={journal}", probe_share=0.0) as ensemble:
        server.kill()
        answered = ensemble.ask("Who?", choices=["Ann", "Bob"])
        assert answered.durable
        ensemble.feedback(answered.id, label="Ann")
        server.start()
        until(lambda: not list(journal.iterdir()))
    with closing(RedisStore(server.url)) as store:
        assert kept(store) == {answered.id: 1}


DYING = """
import os, signal, sys
from focalroute.sim import SimulatedPool
from focalroute.store.redis.store import RedisStore
from tests.store.made import answer, bill, judge
store = RedisStore(sys.argv[1], patience_s=0.1)
print("ready", flush=True)
sys.stdin.readline()
for number in range(20):
    store.write(answer(f"{sys.argv[2]}{number}"), bill()).result(10)
    store.write(judge(f"{sys.argv[2]}{number}")).result(10)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_journal_of_dead_workers_is_taken_over(server: RedisServer, journal: Path) -> None:
    """Two on one folder, killed while Redis is away; the third starts without it, and brings all of it."""
    where = f"{server.url}?journal={journal}"
    command = [sys.executable, "-c", DYING, where]
    workers = [
        subprocess.Popen([*command, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for name in "ab"
    ]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    server.kill()
    for worker in workers:
        worker.communicate("go\n", timeout=60)
        assert worker.returncode == -9
    left = list(journal.iterdir())
    assert len(left) == 2
    with left[0].open("ab") as file:
        file.write(b"\x01\x02\x03")  # cut off by the death of its process
    with closing(RedisStore(where, patience_s=0.1, poll_s=0.01)) as store:
        store.subscribe(lambda _: None, last=9)
        store.write(answer("own")).result(10)
        server.start()
        until(lambda: _up(store) and len(kept(store)) == 40)
        assert kept(store).total() == 40
        assert store.totals()["a"].calls == 40
        assert store.answer("own") is not None
    assert [path.suffix for path in journal.iterdir()] == [".damaged"]


def test_a_journal_that_was_deleted_is_sent_and_the_next_write_says_so(server: RedisServer, journal: Path) -> None:
    """Every call failed from then on, with Redis back; and what was written after the deletion was in no file."""
    with closing(RedisStore(f"{server.url}?journal={journal}", patience_s=0.2, poll_s=0.01)) as store:
        server.kill()
        store.write(answer("a"), bill()).result(10)
        shutil.rmtree(journal)
        with pytest.raises(StoreError, match="the journal cannot be written"):
            store.write(answer("b"), bill()).result(10)
        server.start()
        until(lambda: _up(store) and store.totals()["a"].calls == 2)
        store.write(answer("c")).result(10)
        assert [row.id for row, _ in store.recent(9)] == ["a", "b", "c"]


def test_a_journals_folder_stays_where_it_was(
    server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon changes its working folder after it was started."""
    monkeypatch.chdir(tmp_path)
    with closing(RedisStore(f"{server.url}?journal=journal", patience_s=0.2)) as store:
        monkeypatch.chdir("/")
        server.kill()
        store.write(answer("a")).result(10)
        assert len(list((tmp_path / "journal").iterdir())) == 1


def test_a_damaged_journal_entry_is_named_and_the_others_are_sent(
    server: RedisServer, journal: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All after it were dropped, and the file removed, without a word; so was any file whose name ends so."""
    where = f"{server.url}?journal={journal}"
    with closing(RedisStore(where, patience_s=0.2)) as store:
        server.kill()
        for number in range(5):
            store.write(answer(str(number))).result(10)
    (path,) = journal.iterdir()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    (journal / "system.journal").write_bytes(b"another program's")
    server.start()
    with closing(RedisStore(where, patience_s=0.2)) as store:
        store.write(answer("own")).result(10)
        assert [row.id for row, _ in store.recent(9)] == ["0", "1", "3", "4", "own"]
    assert f"{path}: " in caplog.text
    assert "of its bytes are not whole entries" in caplog.text
    assert (journal / f"{path.stem}.damaged").read_bytes() == data
    assert (journal / "system.damaged").read_bytes() == b"another program's"


def test_a_redis_that_lost_its_data_gets_all_later_writes(
    server: RedisServer, journal: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As after a failover to a replica that was behind: the calls it has lost are lost, no others are."""
    with closing(RedisStore(f"{server.url}?journal={journal}", patience_s=0.2, poll_s=0.01)) as store:
        store.write(answer("a")).result(10)
        old = store.run(lambda connection: connection.command("HGETALL", connection.keys["writers"]))
        for number in range(5):
            store.write(answer(f"lost{number}")).result(10)
        store.run(lambda connection: connection.command("HSET", connection.keys["writers"], *old))
        store.write(answer("b"), bill()).result(10)
        store.write(answer("c"), bill()).result(10)
        assert "Redis has lost writes" in caplog.text
        server.kill()
        store.write(answer("d"), bill()).result(10)
        server.start()
        until(lambda: _up(store) and store.totals()["a"].calls == 3)
        assert {"a", "b", "c", "d"} <= {row.id for row, _ in store.recent(99)}
        assert store.write(answer("e")).result(10) is None


def test_a_server_without_room_says_so_and_goes_on_with_room(server: RedisServer) -> None:
    with closing(RedisStore(server.url, patience_s=0.2)) as store:
        store.write(answer("x")).result(10)
        command(server, "CONFIG", "SET", "maxmemory", 1)
        with pytest.raises(StoreError, match="no memory left"):
            store.write(answer("y")).result(10)
        command(server, "CONFIG", "SET", "maxmemory", 0)
        until(lambda: _up(store) and len(list(store.recent(9))) == 2)


def test_a_full_server_makes_room_for_a_store_that_keeps_fewer_answers(server: RedisServer) -> None:
    """The message says "keep fewer answers", and the store could not be opened to do so."""
    with closing(RedisStore(server.url)) as store:
        for number in range(300):
            held = store.write(replace(answer(str(number)), receipt="x" * 10_000))
        held.result(10)
    used = int(command(server, "INFO", "memory").decode().partition("used_memory:")[2].split()[0])
    command(server, "CONFIG", "SET", "maxmemory", used - 100_000)
    with closing(RedisStore(f"{server.url}?keep=20", patience_s=0.2)) as store:
        store.write(answer("new")).result(10)
        assert len(list(store.recent(999))) == 21


def test_a_server_that_would_drop_budgets_for_room_is_warned_of(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Keys of the store have no time to live: only the policies over all keys drop them."""
    command(server, "CONFIG", "SET", "maxmemory", "100mb")
    for policy, warned in (("volatile-lru", False), ("allkeys-lru", True), ("noeviction", False)):
        command(server, "CONFIG", "SET", "maxmemory-policy", policy)
        caplog.clear()
        RedisStore(server.url).close()
        assert ("set maxmemory-policy noeviction" in caplog.text) is warned


def test_full_durability_needs_a_server_that_has_it(server: RedisServer) -> None:
    command(server, "CONFIG", "SET", "appendfsync", "everysec")
    with pytest.raises(StoreError, match="appendfsync always"):
        RedisStore(server.url, durability="full")
    command(server, "CONFIG", "SET", "appendfsync", "always")
    with closing(RedisStore(server.url, durability="full")) as store:
        store.write(answer("x")).result(10)


def test_an_account_is_not_opened_without_redis(server: RedisServer, journal: Path) -> None:
    """A limit that cannot be kept is not pretended to be."""
    server.stop()
    store = RedisStore(f"{server.url}?journal={journal}", patience_s=0.1)
    with closing(store), pytest.raises(StoreError, match="cannot be reached"):
        store.open_accounts([Account()])
    with pytest.raises(StoreError, match="cannot be reached"):
        RedisStore(server.url)
