"""A server tells the caller of a failed ask what to change, and only its log names endpoints and accounts."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from focalroute import Budget, Endpoint
from focalroute.core.errors import PolicyError, StreamBroken
from focalroute.serving.openai_api.refusals import public_refusal_of
from tests.loopback import Server, completion, json_reply, serving, sse
from tests.server.running import ask, post, served

ORGANIZATION = "org-AbC123dEf456"
VARIABLE = "OPERATOR_SECRET_KEY"
PRIVATE = ("127.0.0.1", "in-the-cellar", VARIABLE, ORGANIZATION, "platform.example")


def in_the_cellar(service: Server, monkeypatch: pytest.MonkeyPatch) -> Endpoint:
    monkeypatch.setenv(VARIABLE, "key")
    return Endpoint("in-the-cellar", model="m", base_url=service.url, api_key_env=VARIABLE)


def asked(url: str, **fields: Any) -> tuple[int, str, str]:
    """Status, body and x-request-id."""
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(ask(**fields)).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.read().decode(), response.headers["x-request-id"]
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(), error.headers["x-request-id"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("status", "said", "told"),
    [
        (401, f"Incorrect API key provided for {ORGANIZATION}", (502, "give its operator the x-request-id")),
        (404, "The model `m` does not exist", (502, "give its operator the x-request-id")),
        (400, "API key not valid. Please pass a valid API key.", (502, "give its operator the x-request-id")),
        (402, f"Add credit at https://platform.example/{ORGANIZATION}", (502, "give its operator the x-request-id")),
        (429, f"Rate limit reached in organization {ORGANIZATION}", (503, "every endpoint is busy")),
        (400, "5 is greater than the maximum of 1", (400, "check the parameters")),
        (400, "5 is greater than the maximum of 1", (400, "5 is greater than the maximum of 1")),
        (400, f"{ORGANIZATION} must be verified at https://platform.example/x", (400, "[...] must be verified")),
        (400, "This model's maximum context length is 8 tokens", (400, "shorten the prompt")),
    ],
)
def test_a_caller_learns_what_to_do_and_the_log_has_the_rest_under_the_same_id(
    status: int, said: str, told: tuple[int, str], stream: bool, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    async def fails(_: web.Request, __: Any) -> web.StreamResponse:
        return json_reply({"error": {"message": said}}, status)

    with serving(fails) as service, served([in_the_cellar(service, monkeypatch)], attempts=1) as url:
        got, body, request_id = asked(url, stream=stream)
    assert got == told[0]
    assert told[1] in json.loads(body)["error"]["message"]
    assert not [secret for secret in PRIVATE if secret in body]
    (line,) = [record.getMessage() for record in caplog.records if record.name == "focalroute.server"]
    assert line.startswith(f"{request_id}: PoolError: ")
    assert "in-the-cellar, m at 127.0.0.1" in line
    assert said.split()[0].replace(ORGANIZATION, "org-") in line


def test_a_failed_ask_has_the_id_that_its_calls_have_in_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def says(_: web.Request, __: Any) -> web.StreamResponse:
        return json_reply(completion("neither"))

    store = tmp_path / "s.db"
    with serving(says) as service, served([in_the_cellar(service, monkeypatch)], store=store) as url:
        got, body, request_id = asked(url, focalroute={"choices": ["yes", "no"]})
    assert got == 502
    assert "names none of the choices" in body
    assert "ask without choices" in body
    with closing(sqlite3.connect(store)) as db, db:
        (answer_id,) = db.execute("SELECT DISTINCT answer_id FROM ledger").fetchone()
    assert request_id == f"chatcmpl-{answer_id}"


def test_a_request_that_no_endpoint_may_be_asked_is_told_without_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    async def says(_: web.Request, __: Any) -> web.StreamResponse:
        return json_reply(completion("42"))

    with serving(says) as service:
        blind = Endpoint("in-the-cellar", model="m", base_url=service.url, images=False)
        with served([blind]) as url:
            image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
            body = {"model": "focalroute", "messages": [{"role": "user", "content": [image]}]}
            status, got = post(f"{url}/v1/chat/completions", body)
    assert status == 400
    assert "leave out tools, images" in got["error"]["message"]
    assert "in-the-cellar" not in json.dumps(got)


@pytest.mark.parametrize("fields", [{"max_usd": 1}, {"combine": "synthesise"}])
def test_a_request_that_the_operators_settings_rule_out_is_told_without_them(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It named the endpoints without a price, and settings that only the operator can make."""

    async def says(_: web.Request, __: Any) -> web.StreamResponse:
        return json_reply(completion("42"))

    with serving(says) as service, served([in_the_cellar(service, monkeypatch)]) as url:
        status, body, _ = asked(url, focalroute=fields)
    error = json.loads(body)["error"]
    assert (status, error["param"]) == (400, f"focalroute.{next(iter(fields))}")
    assert "leave it out, or ask its operator" in error["message"]
    assert not [secret for secret in (*PRIVATE, "input_usd_per_1m", "synthesiser") if secret in body]


def test_a_stream_that_breaks_off_tells_no_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def breaks(request: web.Request, _: Any) -> web.StreamResponse:
        return await sse(request, {"choices": [{"index": 0, "delta": {"content": "Half"}}]}, end=False)

    with serving(breaks) as service, served([in_the_cellar(service, monkeypatch)]) as url:
        _, body, request_id = asked(url, stream=True)
    assert "the answer broke off" in body
    assert f"{request_id}: StreamBroken: " in caplog.text
    assert not [secret for secret in PRIVATE if secret in body]


def test_a_receipt_names_no_address_of_an_endpoint_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(_: web.Request, body: Any) -> web.StreamResponse:
        if body["model"] == "m":
            return json_reply({"error": {"message": f"no credit at https://platform.example/{ORGANIZATION}"}}, 402)
        return json_reply(completion("42"))

    with serving(fails) as service:
        pool = [in_the_cellar(service, monkeypatch), Endpoint("other", model="n", base_url=service.url)]
        with served(pool, policy="plurality", attempts=1) as url:
            status, body, _ = asked(url, focalroute={"choices": ["32", "42"], "receipt": True})
    assert status == 200
    failed, answered = json.loads(body)["focalroute"]["receipt"]["calls"]
    failed, answered = (failed, answered) if failed["error"] else (answered, failed)
    assert failed["error"] == {**failed["error"], "kind": "status", "status": 402, "message": "HTTP 402"}
    assert answered["error"] is None
    assert not [secret for secret in PRIVATE if secret != "in-the-cellar" and secret in body]


def test_a_wrong_setting_of_the_operator_is_not_blamed_on_the_caller(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was a 400 that named the variable of a key."""

    async def says(_: web.Request, __: Any) -> web.StreamResponse:
        return json_reply(completion("42"))

    with serving(says) as service:
        with served([in_the_cellar(service, monkeypatch)]) as url:
            monkeypatch.delenv(VARIABLE)
            keyless = asked(url)
        with served([in_the_cellar(service, monkeypatch)], embedder=lambda _: "no vector") as url:
            textless = asked(url)
    for status, body, request_id in (keyless, textless):
        assert (status, json.loads(body)["error"]["code"]) == (500, "internal_error")
        assert not [secret for secret in (*PRIVATE, "embedder") if secret in body]
        assert f"{request_id}: ConfigError: " in caplog.text
    assert {line.levelname for line in caplog.records if line.name == "focalroute.server"} == {"WARNING"}


@pytest.mark.parametrize(
    ("budget", "code", "told"),
    [
        ({"usd_total": "0.00053"}, 402, "lower max_tokens, or ask its operator to raise it"),
        ({"usd_per_tag": {"team-a": "0.00053"}}, 402, "lower max_tokens, or ask its operator to raise it"),
        ({"usd_per_period": {"day": "0.0031"}}, 429, "lower max_tokens, or try again at 20"),
    ],
    ids=str,
)
@pytest.mark.usefixtures("no_period_ends")
def test_a_caller_does_not_learn_the_budgets_of_others(
    budget: dict[str, Any], code: int, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Which the log has, as a warning."""

    async def says(_: web.Request, __: Any) -> web.StreamResponse:
        usage = {"prompt_tokens": 1000, "completion_tokens": 1000, "total_tokens": 2000}
        return json_reply(completion("42", usage=usage))

    with serving(says) as service:
        priced = Endpoint("e", model="m", base_url=service.url, input_usd_per_1m=1, output_usd_per_1m=1)
        with served([priced], budget=Budget(**budget)) as url:
            replies = [asked(url, focalroute={"tags": ["team-a"]}) for _ in range(3)]
    status, body, _ = replies[-1]
    assert status == code
    assert told in body
    assert "0.00" not in body
    assert "= 0.00" in caplog.text
    assert {line.levelname for line in caplog.records if line.name == "focalroute.server"} == {"WARNING"}


def test_no_file_of_the_server_is_named() -> None:
    told = public_refusal_of(PolicyError("/srv/policy: is damaged"))
    assert (told.status, "/srv" in told.message) == (500, False)
    assert "partial" not in public_refusal_of(StreamBroken("partial")).message


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_server_that_was_made_before_a_fork_is_set_up_wrongly() -> None:
    """It was shutting down for ever, as its clients heard; its log says what is wrong."""
    code = f"""
import asyncio, httpx, os, sys
from focalroute import AsyncEnsemble, Endpoint
from focalroute.server import create_app
app = create_app(AsyncEnsemble([Endpoint("e", base_url="http://127.0.0.1:1/v1", model="m")]))
async def asked():
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
        return await client.post("/v1/chat/completions", json={ask()!r}), await client.get("/healthz")
if os.fork() == 0:
    for reply in asyncio.run(asked()):
        print(reply.status_code, reply.json()["error"]["code"], flush=True)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "500 internal_error\n" * 2
    assert "this ensemble was made before a fork; make one after it" in done.stderr
