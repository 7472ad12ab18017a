"""``focalroute pool check``: what it reports on each endpoint, and the remedy."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from focalroute import Endpoint
from focalroute.cli.pool_check import Checked, check_pool
from focalroute.sim import SimulatedPool, default_models
from focalroute.sim.process import pool_toml
from tests.cli.test_batch import run
from tests.conftest import StartPool
from tests.interruptible import heed_interrupts
from tests.loopback import json_reply, serving

FREE = {"input_usd_per_1m": 0, "output_usd_per_1m": 0}


@pytest.fixture
def open_pool(start_pool: StartPool) -> SimulatedPool:
    """A pool that wants no key."""
    return start_pool(default_models()[:2])


@pytest.fixture(scope="module")
def locked_pool() -> Iterator[SimulatedPool]:
    """A pool of one model that wants a key."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SIM_KEY", "right-key-123")
        model = default_models()[0]
        with SimulatedPool([model], keys={model.name: "SIM_KEY"}) as pool:
            yield pool


def check(base_url: str | None = None, model: str = "m", **settings: Any) -> Checked:
    (found,) = check_pool([Endpoint("e", model=model, base_url=base_url, **(FREE | settings))])
    return found


def answering(body: object, status: int = 200) -> Callable[[web.Request, Any], Any]:
    async def handler(request: web.Request, _: Any) -> web.StreamResponse:
        return json_reply(body) if status == 200 else web.Response(status=status)

    return handler


@pytest.mark.parametrize("columns", ["20", "60"])
def test_a_table_is_whole_on_a_narrow_terminal(
    open_pool: SimulatedPool,
    tmp_path: Path,
    columns: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It was a column of single letters, without the endpoints."""
    (tmp_path / "pool.toml").write_text(pool_toml(open_pool.endpoints))
    monkeypatch.setenv("COLUMNS", columns)
    assert run(monkeypatch, "pool", "check", str(tmp_path / "pool.toml")) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["swift-24b", "yes", "none", "yes", "known", "unknown:"] in lines
    assert ["pool"] in lines or ["pool", "measure"] in lines


def test_a_pool_that_can_be_asked_needs_nothing(
    open_pool: SimulatedPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pool.toml"
    path.write_text(pool_toml(open_pool.endpoints))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FOCALROUTE_POOL", raising=False)
    assert run(monkeypatch, "pool", "check", "--json") == 0
    first, _ = json.loads(capsys.readouterr().out)
    assert first == {
        "endpoint": "swift-8b", "model": "swift-8b", "state": "ok", "detail": "", "key": None, "listed": True,
        "priced": True, "capabilities": None, "source": "", "reachable": True, "accepted": None, "remedy": "",
    }  # fmt: skip
    assert sum(stats.calls for stats in open_pool.stats().values()) == 0
    path.write_text(f"{path.read_text()}\n[ensemble]\nattempts = 11\n")
    assert run(monkeypatch, "pool", "check", str(path)) == 2
    assert "attempts: " in capsys.readouterr().err


def test_a_model_that_is_not_listed_is_not_ok_and_the_right_name_is_said(
    open_pool: SimulatedPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pool.toml"
    path.write_text(pool_toml(open_pool.endpoints).replace('model = "swift-8b"', 'model = "swift-9b"'))
    assert run(monkeypatch, "pool", "check", str(path)) == 1
    said = capsys.readouterr().out
    assert "swift-8b: correct the model 'swift-9b'; did you mean 'swift-8b'? (the service does not list it)" in said
    assert run(monkeypatch, "pool", "check", str(path), "--json") == 1
    first, second = json.loads(capsys.readouterr().out)
    assert (first["state"], first["listed"], second["state"], second["listed"]) == ("unlisted", False, "ok", True)


@pytest.mark.parametrize(
    ("key", "state", "accepted", "remedy"),
    [
        ("right-key-123", "ok", True, ""),
        ("wrong-key-456", "refused", False, "set SIM_KEY to a key that 127.0.0.1:PORT accepts"),
        ("", "key", None, "set SIM_KEY to a key that 127.0.0.1:PORT accepts"),
        (None, "refused", False, "name the variable of its key in api_key_env: 127.0.0.1:PORT asks for one"),
    ],
)
def test_a_key_is_accepted_or_what_to_do_is_said_and_it_is_never_shown(
    locked_pool: SimulatedPool, monkeypatch: pytest.MonkeyPatch, key: str | None, state: str, accepted: bool | None,
    remedy: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("SIM_KEY", key or "")
    (endpoint,) = locked_pool.endpoints
    found = check(endpoint.base_url, endpoint.model, api_key_env=None if key is None else "SIM_KEY")
    assert (found.state, found.accepted) == (state, accepted)
    assert found.remedy == remedy.replace("PORT", str(locked_pool.port))
    assert "key-" not in repr(found)


def test_a_public_list_does_not_show_whether_the_key_is_accepted(
    open_pool: SimulatedPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANY_KEY", "never-looked-at")
    found = check(open_pool.endpoints[0].base_url, "swift-8b", api_key_env="ANY_KEY")
    assert (found.state, found.listed, found.accepted) == ("ok", True, None)


def test_an_unreachable_server_is_named() -> None:
    gone = check("http://127.0.0.1:1/v1")
    assert (gone.state, gone.reachable) == ("unreachable", False)
    assert gone.remedy == "check base_url and that its server runs: 127.0.0.1:1 could not be reached"
    assert gone.detail.startswith("http://127.0.0.1:1/v1/models could not be fetched")
    nowhere = check()
    assert (nowhere.state, nowhere.reachable, nowhere.remedy) == ("no address", None, "give it a base_url")


@pytest.mark.parametrize(
    ("body", "status", "remedy"),
    [
        ({}, 200, ""),
        ({"data": []}, 200, ""),
        (None, 501, "try it with focalroute pool measure"),
        (None, 404, "check base_url URL: its path may be wrong"),
    ],
)
def test_a_service_without_a_list_is_unknown_not_a_failure(body: object, status: int, remedy: str) -> None:
    with serving(answering(body, status)) as server:
        found = check(server.url)
    assert (found.state, found.listed, found.reachable) == ("ok", None, True)
    assert found.remedy == remedy.replace("URL", server.url)


def test_an_address_without_v1_is_said() -> None:
    with serving(answering(None, 404)) as server:
        assert check(server.url.removesuffix("/v1")).remedy.endswith(": /v1 may be missing")


@pytest.mark.parametrize(
    ("listed", "model", "dialect", "found"),
    [
        (["models/gemini-2.5-flash"], "gemini-2.5-flash", "auto", True),
        (["llama3:latest"], "llama3", "auto", True),
        (["openai/*"], "openai/gpt-5", "auto", True),
        (["openai/*"], "groq/m", "auto", False),
        (["a/b"], "a/b:nitro", "openrouter", True),
        (["a/b"], "a/b:nitro", "auto", False),
    ],
)
def test_the_names_that_mean_the_same_are_listed(listed: list[str], model: str, dialect: str, found: bool) -> None:
    with serving(answering({"data": [{"id": one} for one in listed]})) as server:
        assert check(server.url, model, dialect=dialect).listed is found


def test_part_of_a_list_lacks_nothing_and_llama_server_answers_to_any_name() -> None:
    with serving(answering({"data": [{"id": "other"}], "has_more": True})) as server:
        assert (check(server.url).state, check(server.url).listed) == ("ok", None)
    with serving(answering({"data": [{"id": "other"}]})) as server:
        found = check(server.url, dialect="llamacpp")
        assert (found.state, found.listed) == ("ok", False)


def test_a_long_or_hostile_list_gives_short_advice() -> None:
    names = ["\x1b[2J", *(f"zz-{number}" for number in range(3000))]
    with serving(answering({"data": [{"id": name} for name in names]})) as server:
        remedy = check(server.url, "gpt-5").remedy
    assert len(remedy) <= 160
    assert remedy.isprintable()


def test_anthropic_lists_by_its_own_header(monkeypatch: pytest.MonkeyPatch) -> None:
    async def handler(request: web.Request, _: Any) -> web.StreamResponse:
        if request.headers.get("x-api-key") != "right-key-123" or "anthropic-version" not in request.headers:
            return web.Response(status=401)
        return json_reply({"data": [{"id": "claude"}]})

    monkeypatch.setenv("ANTHROPIC_API_KEY", "right-key-123")
    with serving(handler) as server:
        found = check(server.url, "claude", service="anthropic")
    assert (found.state, found.listed, found.accepted) == ("ok", True, True)


def test_an_unknown_price_is_not_a_failure_and_where_to_find_it_is_said(open_pool: SimulatedPool) -> None:
    unpriced = Endpoint("e", model="swift-8b", base_url=open_pool.endpoints[0].base_url)
    (found,) = check_pool([unpriced])
    assert (found.state, found.priced) == ("ok", False)
    assert found.remedy.startswith("look its price up with focalroute pool prices --write")


def test_features_declared_in_the_file_are_found(open_pool: SimulatedPool) -> None:
    said = {"logprobs": True, "top_logprobs": 5, "n": True, "structured_choice": False, "stream_usage": True}
    found = check(open_pool.endpoints[0].base_url, "swift-8b", **said)
    assert found.source == "pool file"
    assert found.capabilities is not None
    assert found.capabilities.top_logprobs == 5


@pytest.mark.slow
def test_the_pool_file_is_given_either_way_but_once(
    pool_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for given in ([str(pool_file)], ["--pool", str(pool_file)]):
        assert run(monkeypatch, "pool", "prices", *given) == 0
    assert run(monkeypatch, "pool", "prices", str(pool_file), "--pool", "other.toml") == 2
    assert "is given twice" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="this system has no SIGINT")
def test_an_interrupt_ends_it_at_once_where_a_service_hangs(tmp_path: Path) -> None:
    """The thread with the listing was waited for, up to its timeout."""

    async def hanging(*_: Any) -> web.StreamResponse:
        await asyncio.sleep(120)
        return json_reply({})

    code = """
import sys
from focalroute.cli import app, pool_check
from focalroute.money import prices
pool_check._TIMEOUT_S = prices._LONGEST_S = 600
sys.argv[1:1] = ["pool", "check"]
app.main()
"""
    pool = tmp_path / "pool.toml"
    with serving(hanging) as server:
        pool.write_text(f'[[endpoint]]\nname = "e"\nmodel = "m"\nbase_url = "{server.url}"')
        command = [sys.executable, "-c", code, str(pool)]
        process = subprocess.Popen(command, preexec_fn=heed_interrupts)
        assert server.arrived.wait(30)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
