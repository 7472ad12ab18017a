"""What only a Redis store has to get right: its address, its keys, access, and calls that are sent twice."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from focalroute.cli.app import app
from focalroute.core.errors import ConfigError, StoreError, UnknownAnswer
from focalroute.core.records import Usage
from focalroute.learn.fleet import rollback_fleet_command
from focalroute.sim import default_models
from focalroute.sim.process import pool_toml
from focalroute.store import open_store, require_existing
from focalroute.store.accounts import Account
from focalroute.store.base import CapabilityRow, HealthRow, LedgerRow, Row
from focalroute.store.engine import Job
from focalroute.store.redis import connection as connection_module
from focalroute.store.redis import reads
from focalroute.store.redis.address import RedisAddress
from focalroute.store.redis.connection import FIXED, Keys, RedisConnection
from focalroute.store.redis.journal import Entry
from focalroute.store.redis.rows import pack_rows, refusal
from focalroute.store.redis.store import RedisStore
from tests.conftest import StartPool
from tests.loopback import self_signed, until
from tests.redis_server import RedisServer, free_port, place
from tests.store.made import answer, bill, judge, trajectory
from tests.store.test_writing import BAD_ROWS


@pytest.fixture
def where(redis_server: RedisServer) -> str:
    return place(redis_server.url)


# -- the address -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("redis://", "needs a host"),
        ("redis://host/name", "number of a database"),
        ("redis://host:port/0", "cannot be read"),
        ("redis://a..b/0", "cannot be read"),
        ("redis://host/0?prefx=a", "unknown setting 'prefx'"),
        ("redis://host/0?prefix=a{b}", "without braces"),
        ("redis://host/0?keep=0", "from 1, got '0'"),
        ("redis://host/0?keep=many", "from 1, got 'many'"),
        ("redis://host/0?journal=/no/such/folder/journal", "make it first"),
        ("redis://host/0?ssl_ca_certs=ca.pem", "write rediss://"),
        ("rediss://host/0?ssl_ca_certs=/no/such.pem", "ssl_ca_certs: '/no/such.pem' cannot be read"),
        ("rediss://host/0?ssl_cert_reqs=maybe", "ssl_cert_reqs: give one of none, optional, required"),
        ("redis://host/0?password_env=NOT_SET", "NOT_SET is not set"),
    ],
)
def test_errors_in_an_address_are_named(where: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        RedisAddress.of(where)


def test_a_password_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEET_PASSWORD", "p@ss w/rd:%+")
    for where in ("redis://me@127.0.0.1:1/2?password_env=FLEET_PASSWORD", "redis://me:p%40ss@127.0.0.1:1/2"):
        address = RedisAddress.of(where)
        assert "p%40ss" in address.url
        assert address.name == "redis://127.0.0.1:1/2"
        assert "p%40ss" not in repr(address)
        with pytest.raises(StoreError, match="cannot be reached") as raised:
            open_store(where)
        assert "p@ss" not in str(raised.value)
        assert "p%40ss" not in str(raised.value)
    with pytest.raises(ConfigError, match="not in both"):
        RedisAddress.of("redis://me:too@host/0?password_env=FLEET_PASSWORD")


# -- who may use it ----------------------------------------------------------------------------------------------------


def test_a_password_and_an_access_list_are_kept_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With every right on the fleet's own keys and nothing else, all of it works."""
    monkeypatch.setenv("FLEET_PASSWORD", "s ecret/%")
    with RedisServer(tmp_path, "--requirepass", "s ecret/%") as server:
        with pytest.raises(StoreError, match="password"):
            open_store(server.url)
        with pytest.raises(StoreError, match="refuses the user or the password"):
            open_store(f"redis://:wrong@127.0.0.1:{server.port}/0")
        connection = RedisConnection(RedisAddress.of(f"{server.url}?password_env=FLEET_PASSWORD"))
        rights = ("on", ">s ecret/%", "~{fleet}:*", "+@read", "+@write", "+@stream", "+@scripting", "+time", "+ping")
        connection.command("ACL", "SETUSER", "worker", "reset", *rights)
        connection.drop()
        where = f"redis://worker@127.0.0.1:{server.port}/0?password_env=FLEET_PASSWORD"
        with closing(open_store(f"{where}&prefix=fleet")) as store:
            store.write(answer("x"), judge("x"), bill()).result(10)
            assert store.totals()["a"].calls == 1
            assert store.verify() == ()
        with pytest.raises(StoreError, match="access list"):
            open_store(f"{where}&prefix=other")


def test_tls_is_checked_against_the_authority_given(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    files = ("--tls-cert-file", str(certificate), "--tls-key-file", str(key), "--tls-ca-cert-file", str(certificate))
    with RedisServer(tmp_path) as probe:
        port = probe.port
    with RedisServer(tmp_path, "--tls-port", str(port), *files, "--tls-auth-clients", "no"):
        where = f"rediss://127.0.0.1:{port}/0?prefix=tls"
        with closing(open_store(f"{where}&ssl_ca_certs={certificate}")) as store:
            store.write(answer("x")).result(10)
            assert store.answer("x") == answer("x")
        with pytest.raises(StoreError, match=r"self-signed certificate\); give ssl_ca_certs="):
            open_store(where)
        with pytest.raises(StoreError, match="by a name that is in its certificate"):
            open_store(f"{where.replace('127.0.0.1', 'localhost')}&ssl_ca_certs={certificate}")
        with pytest.raises(StoreError, match=r"whether it wants TLS there \(rediss://\)"):
            open_store(where.replace("rediss", "redis"))


def test_tls_to_a_server_without_it_says_so(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It said "TimeoutError" alone, as such a server waits for more."""
    monkeypatch.setattr(connection_module, "_TIMEOUT_S", 0.5)
    with pytest.raises(StoreError, match=r"\(TimeoutError\); .* whether it speaks TLS there \(redis:// is without\)"):
        open_store(place(redis_server.url).replace("redis:", "rediss:"))


def test_two_prefixes_are_two_stores(redis_server: RedisServer) -> None:
    with closing(RedisStore(place(redis_server.url))) as one, closing(RedisStore(place(redis_server.url))) as other:
        assert one.name != other.name  # so that a line in the log says which
        one.write(answer("x")).result(10)
        assert other.answer("x") is None
        with pytest.raises(UnknownAnswer):
            other.write(judge("x")).result(10)
        other.write(answer("x")).result(10)


# -- keys --------------------------------------------------------------------------------------------------------------


def slot(key: str) -> int:
    """The slot of a key, by the cluster specification: CRC-16 (XMODEM) of what is in the first braces, mod 16384."""
    start = key.find("{")
    end = key.find("}", start + 1)
    tag = key[start + 1 : end] if 0 <= start < end - 1 else key
    crc = 0
    for byte in tag.encode():
        crc ^= byte << 8
        for _ in range(8):
            crc = (crc << 1 ^ 0x1021 if crc & 0x8000 else crc << 1) & 0xFFFF
    return crc % 16384


def test_all_keys_of_every_script_share_a_slot() -> None:
    assert slot("123456789") == 0x31C3 % 16384  # the specification's own example
    for prefix in ("focalroute", "a:b", "über"):
        keys = Keys(prefix)
        rows: list[Row] = [answer("x"), answer("{y}"), judge("z}{", source="{s}")]
        every = [*keys.fixed, *pack_rows(rows, keys)[0]]
        assert len(set(every)) == len(FIXED) + 3
        assert {slot(key) for key in every} == {slot(keys.fixed[0])}


def test_in_a_cluster_the_node_with_the_keys_is_found(tmp_path: Path) -> None:
    """Whichever node the address names."""
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
    mode = ("--cluster-enabled", "yes", "--cluster-require-full-coverage", "no", "--cluster-port")
    buses = [free_port(), free_port()]
    with (
        RedisServer(folders[0], *mode, str(buses[0])) as one,
        RedisServer(folders[1], *mode, str(buses[1])) as other,
    ):
        home = slot("{fleet}:answers")
        for server, slots in ((one, [(0, home - 1), (home + 1, 16383)]), (other, [(home, home)])):
            for first, last in slots:
                command(server, "CLUSTER", "ADDSLOTSRANGE", first, last)
        command(one, "CLUSTER", "SET-CONFIG-EPOCH", 1)
        command(other, "CLUSTER", "SET-CONFIG-EPOCH", 2)
        command(one, "CLUSTER", "MEET", "127.0.0.1", other.port, buses[1])
        for server in (one, other):
            until(partial(is_one_of_two, server, str(other.port).encode()))
        until(lambda: str(home).encode() in command(one, "CLUSTER", "NODES").split(str(other.port).encode())[-1])
        for server in (one, other):
            with closing(open_store(f"{server.url}?prefix=fleet")) as store:
                store.write(answer(f"from {server.port}"), bill()).result(10)
        assert command(other, "CLUSTER", "COUNTKEYSINSLOT", home) > 0
        assert command(one, "CLUSTER", "COUNTKEYSINSLOT", home) == 0
        with closing(RedisStore(f"{one.url}?prefix=fleet", patience_s=0.2)) as store:
            store.write(answer("x")).result(10)
            other.kill()
            command(one, "CLUSTER", "SETSLOT", home, "NODE", command(one, "CLUSTER", "MYID"))  # as after a failover
            until(lambda: "lost its data" in str(store.write(bill()).exception(10)))  # from the node that has none


def is_one_of_two(server: RedisServer, other: bytes) -> bool:
    said = command(server, "CLUSTER", "INFO")
    known = b"cluster_known_nodes:2" in said and b"cluster_state:ok" in said
    return known and other in command(server, "CLUSTER", "NODES")


def command(server: RedisServer, *words: object) -> Any:
    import redis

    with redis.Redis(port=server.port, protocol=2) as client:
        connection: Any = client.connection_pool.get_connection()
        connection.send_command(*words)
        return connection.read_response(disable_decoding=True)


# -- rows --------------------------------------------------------------------------------------------------------------


def test_written_rows_are_read_back_bit_for_bit(where: str) -> None:
    """Floats, text, trajectories, the latest of capabilities and health, sums."""
    odd = replace(
        answer("ö {x}\n", steps=trajectory()), created_at=0.1 + 0.2, probabilities=(1 / 3, 2 / 3), texts='["é"]'
    )
    probe = CapabilityRow("service model", 2.0, {"logprobs": True})
    used = LedgerRow("x", "ö", 1e9 / 3, Usage(2**53 + 1, 1), Decimal("9000000.000000000001"), "price", ("t", "t"))
    with closing(open_store(where)) as store:
        store.write(odd, probe, used, judge(odd.id, 0.1 + 0.2, source="ü", label="key1")).result(10)
        store.write(replace(probe, probed_at=1.0, values={})).result(10)
        for row in (HealthRow("k", 12.0, 2, 10.0), HealthRow("k", None, 2, 11.0), HealthRow("k", 12.0, 2, 10.0)):
            store.write(row).result(10)
    with closing(open_store(where)) as store:
        ((kept, said),) = store.recent(9)
        assert said == (judge(odd.id, 0.1 + 0.2, source="ü", label="key1"),)
        assert kept.trajectory is not None
        assert kept.trajectory.features.tobytes() == trajectory().features.tobytes()
        assert replace(kept, trajectory=None) == replace(odd, trajectory=None)
        assert store.capabilities("service model") == probe
        assert store.health().result(10) == {"k": HealthRow("k", None, 2, 11.0)}
        assert store.totals()["ö"].cost == Decimal("9000000.000000000001")
        assert store.totals()["ö"].prompt_tokens == 2**53 + 1
        assert [(one.key, one.calls, one.asks) for one in store.ledger("tag")] == [("t", 1, 1)]
        assert store.verify() == ()


@pytest.mark.parametrize("bad", BAD_ROWS, ids=range(len(BAD_ROWS)))
def test_a_row_that_cannot_be_stored_fails_its_call_only(where: str, bad: Any) -> None:
    with closing(open_store(where)) as store:
        store.write(answer("x")).result(10)
        calls = [store.write(answer("before")), store.write(bill(), bad), store.write(answer("after"))]
        with pytest.raises(StoreError, match="cannot be stored"):
            calls[1].result(10)
        assert [row.id for row, _ in store.recent(9)] == ["x", "before", "after"]
        assert store.totals() == {}
        assert store.answer("bad") is None


def test_a_refused_call_leaves_nothing(where: str) -> None:
    with closing(open_store(where)) as store:
        store.write(answer("x"), judge("x")).result(10)
        refused: list[tuple[str, list[Row], type[Exception]]] = [
            ("unknown", [bill(), judge("nobody")], UnknownAnswer),
            ("twin", [bill(), answer("x")], StoreError),
        ]
        for name, rows, error in refused:
            with pytest.raises(error):
                store.write(answer(name), *rows).result(10)
            assert store.answer(name) is None
        assert store.totals() == {}
        assert [row.id for row, _ in store.recent(9)] == ["x"]


def test_a_call_that_is_sent_twice_is_done_once_and_answered_the_same(where: str) -> None:
    """As after a reply that was lost: each call again, in order, as it was."""
    connection = RedisConnection(RedisAddress.of(where))
    connection.connect()
    calls: list[list[Row]] = [
        [answer("x"), bill()],
        [judge("x"), bill()],
        [judge("x", -1.0), bill()],
        [answer("x"), bill()],
        [bill()],
        [judge("nobody")],
    ]

    def send() -> list[Any]:
        entries = [Entry("w", number, *pack_rows(rows, connection.keys)) for number, rows in enumerate(calls, 1)]
        commands = [
            connection.script_command("write", one.keys, (one.writer, one.number, *one.words)) for one in entries
        ]
        return [type(refusal(reply)) for reply in connection.run(commands)]

    first = send()
    assert first == [type(None), type(None), type(None), StoreError, type(None), UnknownAnswer]
    assert send() == first
    ahead = connection.command(*connection.script_command("write", (), ("w", 9)))
    assert ahead == [b"early"]
    connection.drop()
    with closing(open_store(where)) as store:
        assert store.totals()["a"].calls == 4
        assert [(row.id, len(said)) for row, said in store.recent(9)] == [("x", 2)]


def test_old_rows_are_dropped_and_the_sums_stay(where: str) -> None:
    with closing(RedisStore(f"{where}&keep=10", poll_s=0.01)) as store:
        store.open_accounts([Account()])
        for number in range(60):
            store.write(answer(str(number)), judge(str(number)), *[bill()] * 16).result(10)
        until(lambda: len(list(store.recent(100))) < 20)
        latest = [row.id for row, _ in store.recent(100)]
        assert latest == [str(number) for number in range(60 - len(latest), 60)]
        assert store.answer("0") is None
        assert sum(one.calls for one in store.ledger("day")) < 8 * 40
        assert store.totals()["a"].calls == 960
        assert [(one.calls, one.cost) for one in store.ledger("endpoint")] == [(960, Decimal("0.96"))]
        assert store.balances([Account()]).result(10)[Account()].spent == Decimal("0.96")
        assert store.verify() == ()


def test_a_tool_drops_nothing_and_reads_no_store_that_is_not_there(
    where: str, tmp_path: Path, start_pool: StartPool
) -> None:
    """A tool whose address left out the fleet's `keep` dropped all but 100,000 answers."""
    pool = tmp_path / "pool.toml"
    pool.write_text(pool_toml(start_pool(default_models()[:1]).endpoints))
    tool = f"{where}&keep=5"
    commands = [
        ["ledger", "--store", tool],
        ["ledger", "--store", tool, "--repair"],
        ["pool", "check", str(pool), "--store", tool],
        ["pool", "measure", str(pool), "--store", tool],
        ["update", "--store", tool, "--policy", str(tmp_path / "policy")],
    ]
    with closing(RedisStore(where)) as store:
        for number in range(600):
            written = store.write(answer(str(number)), bill())
        written.result(10)
        for words in commands:
            said = CliRunner().invoke(app, words)
            assert said.exit_code == 0, said.output
            assert len(list(store.recent(999))) == 600
        with closing(open_store(tool)) as opened:
            for _ in range(600):
                written = opened.write(bill())
            written.result(10)
            assert len(list(opened.recent(999))) == 600
        nowhere = f"{where}-misspelt"
        with pytest.raises(ConfigError, match="there is no such store; give the address that the ensemble uses"):
            require_existing(nowhere)
        with pytest.raises(ConfigError, match="there is no such store"):
            rollback_fleet_command(nowhere, None)
        said = CliRunner().invoke(app, ["update", "--store", nowhere, "--policy", str(tmp_path / "policy")])
        assert "there is no such store" in str(said.exception)
        assert store.run(lambda connection: connection.command("KEYS", "*-misspelt*")) == []


def test_an_ensemble_that_does_not_say_how_many_answers_to_keep_keeps_as_many_as_the_others(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`focalroute ask` with an address that left out the fleet's `keep` dropped all but 100,000."""
    monkeypatch.setattr(reads, "_KEPT", 10)
    with closing(RedisStore(f"{where}&keep=50")) as worker:
        worker.write(*(answer(str(number)) for number in range(40))).result(10)
        with closing(RedisStore(where, poll_s=0.01)) as other:
            for _ in range(600):
                written = other.write(bill())
            written.result(10)
            until(lambda: other._untrimmed < 500)
            assert len(list(worker.recent(99))) == 40


def test_others_go_on_between_the_parts_of_a_ledger_that_is_read(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reservations of a process that called `stats` waited for all of it, half a minute in a full store."""
    monkeypatch.setattr(reads, "_AT_ONCE", 2)
    jobs: list[Job] = []
    with closing(RedisStore(where)) as store:
        store.write(*[bill()] * 5).result(10)
        submit = store._queue.submit

        def count(job: Job) -> None:
            jobs.append(job)
            submit(job)

        monkeypatch.setattr(store._queue, "submit", count)
        (everything,) = store.ledger("all")
    assert everything.calls == 5
    assert len(jobs) == 5  # three with rows, one that finds no more, and the reservations


def test_many_accounts_are_added_up_in_one_pass_over_the_ledger(where: str) -> None:
    """Each took a pass of its own, in one script: fifty limits on tags stopped a fleet's Redis for minutes."""

    def passes(store: RedisStore) -> int:
        stats = store.run(lambda connection: connection.command("INFO", "commandstats")).decode()
        return int(stats.partition("cmdstat_xrange:calls=")[2].partition(",")[0] or 0)

    accounts = [Account(tag, period_s) for tag in ("", "t", "u") for period_s in (0, 86_400)]
    with closing(RedisStore(where)) as store:
        store.write(*(replace(bill(str(n)), at=time.time(), tags=("t", "t", "u")[n:]) for n in range(3))).result(10)
        before = passes(store)
        found = store.open_accounts(accounts)
        assert passes(store) == before + 2  # the second finds no more
        assert store.reconcile() == []
        assert passes(store) == before + 4
    (cost,) = {balance.spent for account, balance in found.items() if account.tag == "t"}
    assert {account.tag: balance.spent for account, balance in found.items()} == {
        "": cost * 3 / 2,
        "t": cost,
        "u": cost * 3 / 2,
    }


def test_damage_is_found_and_harms_nothing_else(where: str) -> None:
    with closing(RedisStore(where)) as store:
        store.open_accounts([Account()])
        store.write(*(answer(name) for name in "abc"), bill()).result(10)
        store.run(lambda connection: connection.command("HSET", connection.keys.answer("a"), "record", "no"))
        store.run(lambda connection: connection.command("DEL", connection.keys.answer("b")))
        store.run(lambda connection: connection.command("HSET", connection.keys["balances"], "0 ", "0 5 0 0 0"))
        store.run(lambda connection: connection.command("HSET", connection.keys["health"], "k", "never"))
        assert [row.id for row, _ in store.recent(9)] == ["c"]
        assert store.health().result(10) == {}
        said = "; ".join(store.verify())
        assert "answer a: its row is damaged" in said
        assert "answer b: is in the stream" in said
        assert "its rows add up to" in said
