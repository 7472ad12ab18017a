"""``focalroute init``, for a user with an own server, a key, or neither."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from focalroute import Ensemble
from focalroute.core.pool import load_pool
from focalroute.sim import SimulatedPool
from tests.cli.test_batch import run
from tests.loopback import json_reply, serving

KEYS = ("OPENAI_API_KEY", "OPENROUTER_API_KEY", "TOGETHER_API_KEY", "DEEPINFRA_API_KEY")


@pytest.fixture
def local(simulated_pool: SimulatedPool) -> str:
    return f"http://127.0.0.1:{simulated_pool.port}/vllm/v1"


@pytest.fixture(autouse=True)
def _no_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for key in KEYS:
        monkeypatch.delenv(key, raising=False)


def test_your_own_server_becomes_a_pool_that_is_checked_and_asked(
    local: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "init", "--local", local, "--usd-total", "0.5", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    pool = load_pool("pool.toml")
    assert told["endpoints"] == [endpoint.name for endpoint in pool.endpoints]
    assert len(pool.endpoints) == 6
    assert pool.budget is not None
    assert not pool.budget.allow_unpriced
    assert pool.ensemble == {"store": "focalroute.db"}
    written = Path("pool.toml").read_text("utf-8")
    assert "expected_accuracy" in written
    assert "no budget limits it" in written
    with Ensemble("pool.toml") as ensemble:
        ensemble.feedback(told["answer"]["id"], reward=1)
        assert sum(one.calls for one in ensemble.stats().endpoints.values()) > 0
    assert told["answer"]["text"]
    assert told["problems"] == []
    assert run(monkeypatch, "init", "--local", local) == 2
    assert "already exists" in capsys.readouterr().err


def test_endpoints_that_cannot_be_asked_are_named(
    local: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "init") == 2
    assert "OPENAI_API_KEY" in capsys.readouterr().err
    assert run(monkeypatch, "init", "--model", "nobody/model") == 2
    assert "give SERVICE/MODEL; service: unknown 'nobody'" in capsys.readouterr().err
    assert run(monkeypatch, "init", "--model", "azure/gpt-5") == 2
    assert "such as https://RESOURCE.openai.azure.com" in capsys.readouterr().err
    assert run(monkeypatch, "init", "--local", "http://127.0.0.1:9/v1") == 2
    assert "/models: could not be fetched (ConnectError); is the address right" in capsys.readouterr().err
    assert run(monkeypatch, "init", "--local", "localhost:8000/v1") == 2
    assert capsys.readouterr().err.startswith("error: local: give an http:// or https:// address")
    assert not Path("pool.toml").exists()
    assert run(monkeypatch, "init", "--model", "openai/gpt-4o-mini", "--no-ask") == 1  # its key is not set
    assert "set OPENAI_API_KEY to a key that api.openai.com accepts" in capsys.readouterr().out
    (endpoint,) = load_pool("pool.toml").endpoints
    assert (endpoint.service, endpoint.model, endpoint.spoken) == ("openai", "gpt-4o-mini", "openai")
    assert run(monkeypatch, "init", "--model", "together/m", "--pool", "second.toml") == 1  # its prices need the key
    assert "set TOGETHER_API_KEY to a key" in capsys.readouterr().out
    assert run(monkeypatch, "init", "--local", local, "--pool", "no/pool.toml") == 2
    assert "no/pool.toml: cannot be written; give --pool a path in a folder" in capsys.readouterr().err


def test_a_pool_that_does_not_answer_was_written_and_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def handler(request: Any, _: Any) -> Any:
        return json_reply({"data": [{"id": "m"}]}) if request.method == "GET" else json_reply({}, status=401)

    with serving(handler) as server:
        assert run(monkeypatch, "init", "--local", server.url) == 1
    said = capsys.readouterr()
    assert said.out == "pool.toml has m\n"
    assert "name the variable of its key in api_key_env" in said.err


def test_it_says_which_endpoints_the_budget_does_not_limit(
    local: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    models = ("--model", "openai/unheard-of-1", "--model", "openai/unheard-of-2", "--local", local)
    assert run(monkeypatch, "init", *models, "--usd-total", "1", "--no-ask") == 1
    said = "usd_total does not limit unheard-of-1, unheard-of-2: no price was found; write prices into pool.toml"
    assert said in capsys.readouterr().err
    assert run(monkeypatch, "init", *models, "--no-ask", "--pool", "second.toml") == 1
    assert "usd_total" not in capsys.readouterr().err


def test_whatever_a_server_lists_is_written_whole_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    listed: list[str] = ["x/m", "m-2", "y/m", "x/m", "\x1b[31mred", " ", "\U0001f419"]

    async def handler(_request: Any, _: Any) -> Any:
        return json_reply({"data": [{"id": one} for one in listed]}, status=200 if listed else 401)

    with serving(handler) as server:
        assert run(monkeypatch, "init", "--local", server.url, "--no-ask") == 0
        assert [(one.name, one.model) for one in load_pool("pool.toml").endpoints] == [
            ("m", "x/m"), ("m-2", "m-2"), ("m-3", "y/m"), ("\U0001f419", "\U0001f419")
        ]  # fmt: skip
        listed.clear()
        assert run(monkeypatch, "init", "--local", server.url, "--pool", "second.toml") == 2
    assert "HTTP 401; is the address right, and the server up? If it needs a key," in capsys.readouterr().err
    assert run(monkeypatch, "init", "--model", "openai/\x1b[31m", "--pool", "second.toml") == 2
    assert [one.name for one in Path().iterdir()] == ["pool.toml"]


def test_in_a_terminal_it_asks_three_questions(
    local: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = iter(["", local, ""])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("typer.prompt", lambda _, default: next(said) or default)
    assert run(monkeypatch, "init", "--no-ask") == 0
    assert "pool.toml has swift-8b, " in capsys.readouterr().out
    budget = load_pool("pool.toml").budget
    assert budget is not None
    assert budget.usd_total == 1


def test_without_a_key_or_a_server_it_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "init") == 2
    told = capsys.readouterr().err
    assert all(way in told for way in (*KEYS, "--model", "--local", "focalroute demo"))
