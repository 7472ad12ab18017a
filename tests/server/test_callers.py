"""Keys: which callers may ask, what each may spend, and that no key is shown."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
import urllib.request
from contextlib import ExitStack
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from focalroute import AsyncEnsemble, Budget, ConfigError, Ensemble, StoreError
from focalroute.server import Caller, Callers, create_app
from focalroute.server.callers import new_key
from focalroute.sim import SimulatedPool
from focalroute.store import open_store
from focalroute.store.sqlite.store import SqliteStore
from tests.cli.calling import focalroute
from tests.loopback import until
from tests.server.running import ask, command, get, post, served, started

KEY, OTHER = "fr-a-key-for-tests-0001", "fr-a-key-for-tests-0002"


def caller(name: str, key: str, usd: object = None, *tags: str) -> Caller:
    limit = None if usd is None else Decimal(str(usd))
    return Caller(name, hashlib.sha256(key.encode()).digest(), limit, tags)


def bearing(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", r"has tables \[\[key\]\]"),
        ("x", "not valid TOML"),
        ("key = 5", r"has tables \[\[key\]\]"),
        ("key = []", "there are none"),
        ("key = [5]", r"key\[0\]: write \[\[key\]\]"),
        ("[[key]]\nname = 'a'\nkey = 'sk-secret'", r"key\[0\]: key: never write a key itself"),
        (
            "[[key]]\nname = 'a'\nusb = 1",
            r"key\[0\]: unknown key 'usb'; known keys: name, sha256, key_env, usd, tags, max_",
        ),
        ("[[key]]\nsha256 = 'a'", r"key\[0\]: name: give a name"),
        ("[[key]]\nname = 'a'", r"key\[0\]: sha256, key_env: give one of them"),
        ("[[key]]\nname = 'a'\nsha256 = 'xyz'", r"key\[0\]: sha256: give the 64 hex digits"),
        ("[[key]]\nname = 'a'\nkey_env = 'FR_LO", r"end of document: not valid TOML"),  # half written
        ("[[key]]\nname = 'a'\nkey_env = 'FR_NOT_SET'", r"variable FR_NOT_SET is not set"),
        ("[[key]]\nname = 'a'\nkey_env = 'FR_SHORT'", r"FR_SHORT: a key has at least 16 printable"),
        ("[[key]]\nname = 'a'\nkey_env = 'FR_LONG'\nusd = -1", r"key\[0\]: usd: give a positive amount"),
        ("[[key]]\nname = 'a'\nkey_env = 'FR_LONG'\nusd = {}", r"key\[0\]: usd: give a positive amount"),
        ("[[key]]\nname = 'a'\nkey_env = 'FR_LONG'\nusd = {week = 1}", r'key\[0\]: usd: give USD for each "minute"'),
        ("[[key]]\nname = 'a'\nkey_env = 'FR_LONG'\nmax_concurrency = 0", r"max_concurrency: give a whole number"),
        ("[[key]]\nname = 'a'\nkey_env = 'FR_LONG'\nrequests_per_minute = true", r"requests_per_minute: give a whole"),
        ("[[key]]\nname = 'a'\nkey_env = 'FR_LONG'\nmetrics = 1", r"key\[0\]: metrics: give true or false"),
        ("[[key]]\nname = 'a'\nkey_env = 'FR_LONG'\ntags = 'x'", r"key\[0\]: tags: give a list of strings"),
        ("[[key]]\nname = 'a'\nkey_env = 'FR_LONG'\ntags = ['key:b']", r"key\[0\]: tags: those that begin"),
        (f"[[key]]\nname = 'a'\nkey_env = 'FR_LONG'\ntags = {['b'] * 64}", r"key\[0\]: tags: give at most 63"),
        (f"[[key]]\nname = '{'a' * 253}'\nkey_env = 'FR_LONG'", r"key\[0\]: name: give one of at most 252"),
        ("[[key]]\nname = 'a'\nkey_env = 'FR_LONG'\n[[key]]\nname = 'a'\nkey_env = 'FR_OTHER'", "the same name"),
        ("[[key]]\nname = 'a'\nkey_env = 'FR_LONG'\n[[key]]\nname = 'b'\nkey_env = 'FR_LONG'", "the same key"),
    ],
)
def test_errors_in_a_file_of_keys_do_not_show_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    for name, value in {"FR_SHORT": "sk-secret", "FR_LONG": KEY, "FR_OTHER": OTHER}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "keys.toml").write_text(text)
    with pytest.raises(ConfigError, match=said) as failed:
        Callers.from_toml(tmp_path / "keys.toml")
    assert not any(secret in str(failed.value) for secret in ("sk-secret", KEY, OTHER))


def test_a_wrong_key_is_found_by_its_line_behind_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "keys.toml").write_text("[[key]]\nusb = 1\n", "utf-8-sig")
    with pytest.raises(ConfigError, match=r"keys\.toml: line 1: key\[0\]: unknown key 'usb'"):
        Callers.from_toml(tmp_path / "keys.toml")


def test_a_file_of_keys_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "keys.toml")
    with pytest.raises(ConfigError, match=r"keys\.toml: cannot be read: not a regular file"):
        Callers.from_toml(tmp_path / "keys.toml")


def test_a_key_is_found_and_its_limits_join_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FR_LONG", OTHER)
    key, table = new_key("alice")
    day = "[[key]]\nname = 'bob'\nkey_env = 'FR_LONG'\nusd = {day = 0.5}\ntags = ['team']\n"
    (tmp_path / "keys.toml").write_text(f"{table}usd = 2\n{day}")
    callers = Callers.from_toml(tmp_path / "keys.toml")
    alice, bob = callers
    assert (callers.find(key), callers.find(OTHER), callers.find("no"), callers.find("")) == (alice, bob, None, None)
    assert key not in repr(alice) + repr(callers)
    budget = callers.within(Budget(usd_total=9, usd_per_tag={"team": 3}))
    assert budget is not None
    assert budget.usd_total == 9
    assert budget.usd_per_tag == {"team": 3, "key:alice": 2, "key:bob": {"day": Decimal("0.5")}}
    callers.require_limits(budget)
    assert Callers([caller("free", KEY)]).within(None) is None


def test_the_environment_may_hold_the_only_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FOCALROUTE_KEY", raising=False)
    assert Callers.from_environment() is None
    monkeypatch.setenv("FOCALROUTE_KEY", KEY)
    callers = Callers.from_environment()
    assert callers is not None
    assert [(one.name, one.metrics) for one in callers] == [("default", True)]
    assert callers.find(KEY) is not None


def test_an_app_is_not_made_of_an_ensemble_that_keeps_no_limits(pool: SimulatedPool) -> None:
    callers = Callers([caller("alice", KEY, 1)])
    with Ensemble(pool.endpoints) as ensemble:
        with pytest.raises(ConfigError, match="give an AsyncEnsemble, got Ensemble"):
            create_app(ensemble)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=r"does not enforce the limit of alice; .*callers\.within"):
            create_app(ensemble._async, callers=callers)

    async def make() -> None:
        async with AsyncEnsemble(pool.endpoints, budget=callers.within(None)) as keeps_them:
            create_app(keeps_them, callers=callers)

    asyncio.run(make())


def test_without_a_right_key_nothing_is_done(pool: SimulatedPool) -> None:
    callers = Callers([caller("alice", KEY), caller("bob", OTHER, None, "team")])
    with served(pool.endpoints, callers=callers) as url:
        for headers in ({}, bearing(KEY[:-1]), bearing(""), {"Authorization": f"Basic {KEY}"}, {"X-Key": KEY}):
            for path in ("/v1/models", "/metrics", "/v1/models/focalroute"):
                status, said = get(url + path, **headers)
                assert (status, said["error"]["code"]) == (401, "invalid_api_key")
                assert ("no such key" in said["error"]["message"]) is (headers == bearing(KEY[:-1]))
            for path in ("/v1/chat/completions", "/v1/feedback"):
                assert post(url + path, ask(), **headers)[0] == 401
        assert get(f"{url}/healthz") == (200, {"status": "ok"})
        assert get(f"{url}/v1/models", **bearing(KEY))[0] == 200
        body = ask(focalroute={"choices": ["32", "42"], "receipt": True})
        status, got = post(f"{url}/v1/chat/completions", body, **bearing(OTHER))
        assert (status, got["focalroute"]["receipt"]["tags"]) == (200, ["key:bob", "team"])
        status, got = post(f"{url}/v1/chat/completions", ask(focalroute={"tags": ["key:alice"]}), **bearing(OTHER))
        assert (status, got["error"]["param"]) == (400, "focalroute.tags")  # or bob would spend alice's money


def table(name: str, key: str, more: str = "") -> str:
    return f'[[key]]\nname = "{name}"\nsha256 = "{hashlib.sha256(key.encode()).hexdigest()}"\n{more}\n'


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of two keys, looked at before each request."""
    monkeypatch.setattr("focalroute.server.callers._CHECK_EVERY_S", 0.0)
    path = tmp_path / "keys.toml"
    path.write_text(table("alice", KEY) + table("bob", OTHER))
    return path


def status_of(url: str, key: str) -> int:
    return get(f"{url}/v1/models", **bearing(key))[0]


def test_a_key_is_revoked_and_another_added_without_a_restart(pool: SimulatedPool, keys: Path) -> None:
    """Written in place, or put in its place as editors and mounted secrets do."""
    new = "fr-a-key-for-tests-0003"
    with served(pool.endpoints, callers=Callers.from_toml(keys)) as url:
        assert [status_of(url, key) for key in (KEY, OTHER, new)] == [200, 200, 401]
        keys.write_text(table("alice", KEY) + table("carol", new))
        assert [status_of(url, key) for key in (KEY, OTHER, new)] == [200, 401, 200]
        (keys.parent / "next").write_text(table("bob", OTHER))
        (keys.parent / "next").replace(keys)
        assert [status_of(url, key) for key in (KEY, OTHER, new)] == [401, 200, 401]


def test_the_file_of_keys_is_looked_at_within_about_a_second(pool: SimulatedPool, tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(table("alice", KEY) + table("bob", OTHER))
    with served(pool.endpoints, callers=Callers.from_toml(path)) as url:
        assert status_of(url, OTHER) == 200
        path.write_text(table("alice", KEY))
        until(lambda: status_of(url, OTHER) == 401)
        assert status_of(url, KEY) == 200


def test_a_stream_under_way_survives_its_key(pool: SimulatedPool, keys: Path) -> None:
    with served(pool.endpoints, callers=Callers.from_toml(keys)) as url:
        body = json.dumps(ask("What is 17 + 25? Think aloud.", stream=True)).encode()
        headers = {"Content-Type": "application/json", **bearing(OTHER)}
        request = urllib.request.Request(f"{url}/v1/chat/completions", body, headers)
        with urllib.request.urlopen(request, timeout=60) as stream:
            begun = stream.readline()
            keys.write_text(table("alice", KEY))
            assert status_of(url, OTHER) == 401
            assert (begun + stream.read()).rstrip().endswith(b"data: [DONE]")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f'# keys\n[[key]]\nname = "x"\nsha256 = "{KEY}\n', "line 4: not valid TOML"),
        (table("alice", KEY) + "\n[[key]]\nname = 'bob'\nusb = 1", r"line 6: key[1]: unknown key 'usb'"),
        ("", "has tables [[key]]"),
        (table("alice", KEY) + "#" * 2**20, "is larger than 1048576 bytes"),
        (None, "is missing, or not a regular file"),
    ],
)
def test_a_wrong_file_of_keys_changes_nothing_and_is_logged_once(
    pool: SimulatedPool, keys: Path, caplog: pytest.LogCaptureFixture, text: str | None, said: str
) -> None:
    with served(pool.endpoints, callers=Callers.from_toml(keys)) as url:
        if text is None:
            keys.unlink()
            os.mkfifo(keys)
        else:
            keys.write_text(text)
        assert [status_of(url, key) for key in (KEY, OTHER)] == [200, 200]
        (logged,) = (record.getMessage() for record in caplog.records if "the keys stay" in record.getMessage())
        assert said in logged
        assert KEY not in logged
        keys.unlink()
        keys.write_text(table("alice", KEY))
        assert [status_of(url, key) for key in (KEY, OTHER)] == [200, 401]


def test_a_changed_limit_is_kept_without_a_restart(pool: SimulatedPool, keys: Path) -> None:
    """New, raised and taken away; the limits of the pool itself stay."""
    callers = Callers.from_toml(keys)

    def asked(url: str, key: str) -> tuple[Any, ...]:
        status, got = post(f"{url}/v1/chat/completions", ask(focalroute={"choices": ["32", "42"]}), **bearing(key))
        return status, *re.findall(r"usd_per_tag\S+ = \S+|server's budget", json.dumps(got.get("error", "")))

    with served(pool.endpoints, callers=callers, budget=Budget(usd_per_tag={"team": "0.0000001"})) as url:
        assert [asked(url, key) for key in (KEY, OTHER)] == [(200,), (200,)]
        keys.write_text(table("alice", KEY) + table("bob", OTHER, "usd = 0.000001"))
        assert [asked(url, key) for key in (KEY, OTHER)] == [(200,), (402, "usd_per_tag.key:bob = 0.000001")]
        keys.write_text(table("alice", KEY, "usd = {day = 0.000002}") + table("bob", OTHER, "usd = 1"))
        assert [asked(url, key) for key in (KEY, OTHER)] == [(402, "usd_per_tag.key:alice.day = 0.000002"), (200,)]
        keys.write_text(table("alice", KEY) + table("bob", OTHER, "tags = ['team']"))
        assert [asked(url, key) for key in (KEY, OTHER)] == [(200,), (402, "server's budget")]


def test_a_limit_that_cannot_be_kept_yet_is_once_the_store_works(
    pool: SimulatedPool, keys: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with served(pool.endpoints, callers=Callers.from_toml(keys)) as url:
        keys.write_text(table("alice", KEY, "usd = 1"))
        with monkeypatch.context() as patch:
            patch.setattr(SqliteStore, "open_accounts", Mock(side_effect=StoreError("is locked")))
            assert [status_of(url, key) for key in (KEY, OTHER)] == [200, 200]
        assert "the keys stay as they were" in caplog.text
        assert [status_of(url, key) for key in (KEY, OTHER)] == [200, 401]


def test_a_reload_that_waits_for_the_store_does_not_undo_a_later_one(keys: Path) -> None:
    callers, waits, go_on = Callers.from_toml(keys), threading.Event(), threading.Event()

    def limit_tags(_: object) -> None:
        waits.set()
        go_on.wait(60)

    ensemble = Mock(budget=None, limit_tags=limit_tags)
    keys.write_text(table("alice", KEY, "usd = 1") + table("bob", OTHER))
    first = threading.Thread(target=callers.reload, args=(ensemble,))
    first.start()
    assert waits.wait(60)
    keys.write_text(table("alice", KEY))
    second = threading.Thread(target=callers.reload, args=(Mock(budget=None),))
    second.start()
    second.join(0.3)
    go_on.set()
    for thread in (first, second):
        thread.join()
    assert callers.find(OTHER) is None


def test_the_limit_of_a_key_is_its_own(pool: SimulatedPool) -> None:
    """402 for who has spent it all; the others go on."""
    callers = Callers([caller("poor", KEY, "0.0000001"), caller("rich", OTHER, 1)])
    with served(pool.endpoints, callers=callers, budget=callers.within(None)) as url:
        body = ask(focalroute={"choices": ["32", "42"]})
        status, got = post(f"{url}/v1/chat/completions", body, **bearing(KEY))
        assert (status, got["error"]["code"], got["error"]["type"]) == (402, "budget_exceeded", "insufficient_quota")
        assert "usd_per_tag.key:poor" in got["error"]["message"]
        assert post(f"{url}/v1/chat/completions", body, **bearing(OTHER))[0] == 200


@pytest.mark.usefixtures("no_period_ends")
def test_a_limit_that_renews_itself_is_429(pool: SimulatedPool) -> None:
    """Once it is spent; where it is less than the cheapest call, waiting does not help."""
    digests = [hashlib.sha256(key.encode()).digest() for key in (KEY, OTHER)]
    limits = (Decimal("0.00003"), Decimal("0.0000001"))
    daily, never = (Caller(f"of {usd}", digest, {"day": usd}) for digest, usd in zip(digests, limits, strict=True))
    callers = Callers([daily, never])
    with served(pool.endpoints, callers=callers, budget=callers.within(None)) as url:
        asked = f"{url}/v1/chat/completions", ask(max_tokens=200)
        statuses = [post(*asked, **bearing(KEY))[0]]
        while statuses[-1] == 200 and len(statuses) < 100:
            statuses.append(post(*asked, **bearing(KEY))[0])
        assert (statuses[0], statuses[-1]) == (200, 429)
        for key, status in ((KEY, 429), (OTHER, 402)):
            told, got = post(*asked, **bearing(key))
            assert (told, got["error"]["type"]) == (status, "insufficient_quota")


def test_metrics_of_all_callers_are_shown_only_to_a_key_that_may_read_them(pool: SimulatedPool, keys: Path) -> None:
    keys.write_text(table("alice", KEY) + table("prometheus", OTHER, "metrics = true"))
    with served(pool.endpoints, callers=Callers.from_toml(keys)) as url:
        assert post(f"{url}/v1/chat/completions", ask(), **bearing(KEY))[0] == 200
        status, got = get(f"{url}/metrics", **bearing(KEY))
        assert (status, got["error"]["code"]) == (403, "no_metrics")
        status, got = get(f"{url}/metrics", **bearing(OTHER))
        assert (status, 'focalroute_cost_usd_total{caller="alice"}' in got) == (200, True)


def test_two_servers_on_one_store_keep_a_key_s_limit_exactly(pool_file: Path, tmp_path: Path) -> None:
    """Both asked at once until both refuse; what was spent is within the limit, and every cent on the ledger."""
    limit = Decimal("0.0005")
    (tmp_path / "keys.toml").write_text(
        f"[[key]]\nname = 'alice'\nsha256 = '{hashlib.sha256(KEY.encode()).hexdigest()}'\nusd = {limit}\n"
    )
    options = ("--keys", str(tmp_path / "keys.toml"), "--store", str(tmp_path / "s.db"), "--policy", "plurality")
    refused: list[int] = []
    bills: list[Decimal] = []

    def spend(url: str) -> None:
        for _ in range(200):
            body = ask(focalroute={"choices": ["32", "42"]})
            status, got = post(f"{url}/v1/chat/completions", body, **bearing(KEY))
            if status != 200:
                refused.append(status)
                return
            bills.append(Decimal(got["focalroute"]["cost_usd"]))

    with ExitStack() as stack:
        urls = [stack.enter_context(started(pool_file, *options))[1] for _ in range(2)]
        threads = [threading.Thread(target=spend, args=(url,)) for url in urls * 3]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    store = open_store(tmp_path / "s.db")
    spent = {row.key: row.cost for row in store.ledger("tag")}["key:alice"]
    store.close()
    assert refused == [402] * 6
    assert limit / 2 < sum(bills) <= spent <= limit


def test_a_key_is_made_and_shown_once(tmp_path: Path) -> None:
    made = focalroute("key", "alice")
    (key,) = re.findall(r"fr-[0-9a-f]{48}", made.stderr)
    assert key not in made.stdout
    (tmp_path / "keys.toml").write_text(made.stdout)
    found = Callers.from_toml(tmp_path / "keys.toml").find(key)
    assert found is not None
    assert found.name == "alice"
    wrong = focalroute("key", 'a"b')
    assert "name: give a name without quotes" in wrong.stderr
    assert wrong.returncode == 2


@pytest.mark.slow
def test_keys_and_addresses_come_as_json_where_asked_for(pool_file: Path) -> None:
    made = focalroute("key", "alice", "--json")
    assert json.loads(made.stdout)["key"].startswith("fr-")
    assert "alice" in json.loads(made.stdout)["table"]
    assert made.stderr == ""
    with command("serve", "--pool", str(pool_file), "--port", "0", "--json") as served:
        assert served.stdout is not None
        found = json.loads(served.stdout.readline())
        assert get(found["url"].removesuffix("/v1") + "/healthz") == (200, {"status": "ok"})
        assert found["keys"] is None
        served.terminate()


def test_a_key_is_never_written_down(pool_file: Path, tmp_path: Path) -> None:
    """Nor is a wrong one, nor a prompt: not on any output, at any level of the log, nor in the store."""
    prompt, wrong = "violet-walrus-prompt", "fr-wrong-key-never-seen"
    environment = {"FOCALROUTE_KEY": KEY, "PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).parents[2])}
    code = """
import logging
logging.basicConfig(level=logging.DEBUG)
from focalroute.cli.app import main
main()
"""
    options = ["serve", "--pool", str(pool_file), "--port", "0", "--store", str(tmp_path / "s.db")]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if found := re.search(r"as the model focalroute on (http://[^/]+)", line):
            break
    assert found is not None
    url = found[1]
    assert post(f"{url}/v1/chat/completions", ask(prompt), **bearing(KEY))[0] == 200
    assert post(f"{url}/v1/chat/completions", ask(prompt, temperature=prompt), **bearing(KEY))[0] == 400
    assert post(f"{url}/v1/chat/completions?key={KEY}", ask(prompt), **bearing(wrong))[0] == 401
    metrics = json.dumps(get(f"{url}/v1/models", **bearing(KEY)))
    process.terminate()
    said = "".join(lines) + process.communicate()[0] + metrics
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("s.db*")).decode("latin-1")
    assert "DEBUG" in said
    for secret in (KEY, wrong, prompt, hashlib.sha256(KEY.encode()).hexdigest()):
        assert secret not in said
        assert secret not in stored
