"""A key and words of the prompt are planted; then everything that the library wrote or raised is searched for them."""

from __future__ import annotations

import asyncio
import base64
import gc
import io
import json
import logging
import sqlite3
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import web
from typer.testing import CliRunner

from focalroute import Answer, Answers, AsyncEnsemble, Budget, Endpoint, Ensemble, FocalrouteError
from focalroute.cli.app import app
from focalroute.core.records import Reply
from focalroute.endpoints.client import EndpointClient, HttpSessions
from focalroute.endpoints.wire import Completion, CompletionChoice, Request
from focalroute.sim import SimulatedModel, SimulatedPool, stream
from focalroute.sim.process import pool_toml
from tests.loopback import completion, json_reply, serving, sse

KEY = "sk-planted0KEY1never2to3be4seen"
PROMPT, CHOICE, PARAM = "violet-walrus-prompt", "amber-heron-choice", "teal-otter-param"
PRIVATE = (KEY, base64.b64encode(KEY.encode()).decode(), KEY[::-1], PROMPT, CHOICE, PARAM)
#: What holds a reply's text: it is what the caller wants, and may repeat the prompt.
TEXTS = (Answer, Answers, Reply, Completion, CompletionChoice)


class Said:
    """All that was written or raised, and where."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []

    def add(self, where: str, what: object) -> None:
        self.found.append((where, what if isinstance(what, str) else repr(what)))

    def raised(self, error: BaseException) -> None:
        """The traceback as printed, and every exception behind it, suppressed ones too."""
        self.add("traceback", "".join(traceback.format_exception(error)))
        seen: BaseException | None = error
        while seen is not None:
            self.add("exception", f"{seen} {seen!r} {seen.args!r} {getattr(seen, 'replies', '')!r}")
            seen = seen.__cause__ or seen.__context__

    def files(self, folder: Path) -> None:
        """Every byte, archives unpacked."""
        for path in (path for path in folder.rglob("*") if path.is_file() and path.name != "pool.toml"):
            self.add(str(path), path.read_bytes().decode("latin-1"))
            if path.suffix == ".npz":
                with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive:
                    for name in archive.namelist():
                        self.add(f"{path}/{name}", archive.read(name).decode("latin-1"))

    def objects(self) -> None:
        """The reprs of objects of the library that live now: of each type up to ten."""
        seen: Counter[type] = Counter()
        for thing in gc.get_objects():
            if not str(type(thing).__module__).startswith("focalroute") or isinstance(thing, TEXTS):
                continue
            seen[type(thing)] += 1
            if seen[type(thing)] <= 10:
                with suppress(AttributeError):  # one that is just being made
                    self.add(f"repr of {type(thing).__name__}", repr(thing))

    def check(self, *private: str) -> None:
        """Nothing of it is in there, and something was searched."""
        assert self.found
        told = [(where, word) for where, what in self.found for word in private if word in what]
        assert told == []


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[Said]:
    """With the key in the environment; every log record at DEBUG is searched at the end, as it would be printed.

    The openai library writes requests into its own log at DEBUG; there only the key is looked for.
    """
    monkeypatch.setenv("PLANTED_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    searched = Said()
    yield searched
    formatter = logging.Formatter("%(name)s %(message)s")
    for record in caplog.records:
        text = formatter.format(record)
        assert KEY not in text
        if not record.name.startswith("openai"):
            searched.add("log", text)
    searched.check(*PRIVATE)


def caught(said: Said, act: Callable[[], Any]) -> BaseException:
    """The error that this raises."""
    try:
        act()
    except (FocalrouteError, RuntimeError) as error:
        said.raised(error)
        return error
    raise AssertionError("nothing was raised")


def test_an_ensemble_at_work_leaks_nothing(said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asks, feedback, probes, an update that publishes a bundle, statistics, receipts and the ledger."""
    monkeypatch.setattr("focalroute.learn.online.LEAST", 10)  # whatever was learned is tried
    monkeypatch.setattr("focalroute.serving.updates.can_start", lambda: False)  # it updates here, where these hold
    models = [SimulatedModel(name, skill=skill) for name, skill in (("a", 0.6), ("b", 0.75), ("c", 0.9))]
    keys = dict.fromkeys("abc", "PLANTED_KEY")
    settings: dict[str, Any] = {"store": tmp_path / "s.db", "policy": tmp_path / "policy", "seed": 0}
    settings |= {"probe_share": 0.1, "budget": Budget(usd_total=5, allow_unpriced=True)}
    with SimulatedPool(models, keys=keys) as pool, Ensemble(pool.endpoints, **settings) as ensemble:
        (tmp_path / "pool.toml").write_text(pool_toml(pool.endpoints))
        questions = list(stream(40, seed=12))
        asked = [
            {"query": f"{PROMPT}: {question.text}", "choices": (*question.choices, CHOICE), "params": {"user": PARAM}}
            for question in questions
        ]
        answers = ensemble.ask_many(asked, concurrency=8, tags=("team",))
        for question, given in zip(questions, answers, strict=True):
            assert isinstance(given, Answer)
            last = given
            ensemble.feedback(given, label_index=question.label)
            said.add("receipt", given.receipt.to_json() + repr(given.receipt))

        def looking(text: str) -> str:
            said.objects()
            return text

        ensemble.ask([{"role": "system", "content": PROMPT}, {"role": "user", "content": "?"}], answer=looking)
        report = ensemble.update()
        assert report.status == "on trial"
        said.add("report", report)
        said.add("judged", ensemble.update())
        said.add("stats", ensemble.stats())
        said.add("ensemble", f"{ensemble!r} {ensemble.endpoints!r}")
        said.raised(caught(said, lambda: ensemble.feedback(last, label="no such choice")))
        said.objects()
        said.files(tmp_path)  # while it is open: the write-ahead log too
    said.files(tmp_path)
    for form in ("--csv", "--json", ""):
        shown = CliRunner().invoke(app, ["ledger", "--store", str(tmp_path / "s.db"), *filter(None, [form])])
        assert shown.exit_code == 0
        said.add("ledger", shown.output)
    assert any("experience" in where or "decider.onnx" in where for where, _ in said.found)
    assert [what for where, what in said.found if where.endswith("s.db")]


def test_text_is_stored_where_it_was_asked_for_and_the_key_never(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANTED_KEY", KEY)
    with serving(echo) as server:
        endpoint = Endpoint("good", model="good", base_url=server.url, api_key_env="PLANTED_KEY")
        with Ensemble([endpoint], store=tmp_path / "s.db", store_text=True) as ensemble:
            ensemble.ask(PROMPT)
    searched = Said()
    searched.files(tmp_path)
    searched.check(KEY)
    with closing(sqlite3.connect(tmp_path / "s.db")) as db:
        assert PROMPT in db.execute("SELECT texts FROM answers").fetchone()[0]


async def echo(request: web.Request, body: Any) -> web.StreamResponse:
    """A service that sends back what it got, wherever that is possible."""
    got = f"{request.headers.get('Authorization', '')} {body}"
    fields = {"message": got, "code": KEY, "type": PROMPT, "param": got}
    match body["model"]:
        case "refuses":
            return json_reply({"error": fields}, 401, {"Retry-After": KEY, "X-Request-Id": KEY})
        case "fails":
            return web.Response(text=got, status=500, reason=KEY)
        case "redirects":
            return json_reply({}, 307, {"Location": f"http://{KEY}.invalid/{PROMPT}"})
        case "reports":
            return json_reply({"error": fields})
        case "html":
            return web.Response(text=f"<html>{got}</html>", content_type="text/html")
        case "mistyped":
            return json_reply({"choices": [{"message": {"content": {"text": got}}}], "usage": {"prompt_tokens": got}})
        case "streams":
            return await sse(request, {"choices": [{"delta": {"content": "x"}}]}, {"error": fields})
    return json_reply(completion(str(body["messages"])))


REQUEST = Request(({"role": "user", "content": PROMPT},), 8)
EVIL = ("refuses", "fails", "redirects", "reports", "html", "mistyped", "streams")


@pytest.mark.parametrize("ready", [False, True], ids=["own", "ready"])
def test_a_service_that_echoes_all_it_got_is_not_repeated(said: Said, tmp_path: Path, ready: bool) -> None:
    """Not in the failure, nor its traceback, nor the log, nor the store; the good answer still holds its own text."""

    async def run(url: str) -> None:
        client = openai.AsyncOpenAI(api_key=KEY, base_url=url) if ready else None
        how: dict[str, Any] = {"client": client} if ready else {"base_url": url, "api_key_env": "PLANTED_KEY"}
        pool = [Endpoint(name, model=name, **how) for name in EVIL]
        async with AsyncEnsemble(pool, store=tmp_path / "s.db", attempts=2, max_rounds=9) as ensemble:
            for kind in (None, "number"):
                with pytest.raises(FocalrouteError) as failed:
                    await ensemble.ask(PROMPT, answer=kind, params={"user": PARAM}, deadline_s=20)
                said.raised(failed.value)
                assert len(failed.value.replies) >= 5  # type: ignore[attr-defined]
            said.add("stats", ensemble.stats())
            said.objects()
        sessions = HttpSessions()
        for endpoint in pool:
            with pytest.raises(FocalrouteError) as failed:
                async for _ in EndpointClient(endpoint, sessions).stream(
                    Request(({"role": "user", "content": PROMPT},), 8)
                ):
                    pass
            said.raised(failed.value)
        await sessions.aclose()
        if client is not None:
            await client.close()

    with serving(echo) as server:
        asyncio.run(run(server.url), debug=True)
        assert any(KEY in received.headers.get("Authorization", "") for received in server.received)
    said.files(tmp_path)


def test_an_error_about_an_argument_does_not_repeat_it(said: Said, tmp_path: Path) -> None:
    """Params, choices and messages that cannot be; a function of the caller's that fails; a store that is closed."""

    def fails(text: str) -> str:
        raise ValueError(f"cannot read {PROMPT}")

    with serving(echo) as server:
        endpoint = Endpoint("good", model="good", base_url=server.url, api_key_env="PLANTED_KEY")
        with Ensemble([endpoint], store=tmp_path / "s.db", attempts=1) as ensemble:
            for wrong in (
                {"params": {"x": {PARAM}}},
                {"params": {"model": PARAM}},
                {"choices": [CHOICE, CHOICE]},
                {"choices": [CHOICE]},
                {"choices": CHOICE},
                {"answer": fails},
                {"answer": lambda text: 5},
            ):
                caught(said, lambda wrong=wrong: ensemble.ask(PROMPT, **wrong))  # type: ignore[misc]
            caught(said, lambda: ensemble.ask([{"role": PROMPT, "content": {PROMPT}}]))
            ensemble._async._store.close()
            assert not ensemble.ask("?").durable
        caught(said, lambda: ensemble.ask(PROMPT))


@pytest.mark.parametrize(
    "wrong",
    [
        {"api_key_env": KEY},
        {"base_url": f"https://user:{KEY}@host/v1"},
        {"base_url": f"https://host/v1?key={KEY}"},
        {"api_key": f"{KEY}\nX: 1"},
        {"params": KEY},
        {"timeout_s": KEY},
        {"client": KEY},
    ],
)
def test_a_key_in_the_wrong_place_is_refused_without_it(said: Said, tmp_path: Path, wrong: dict[str, str]) -> None:
    """In code, and in a pool file."""
    caught(said, lambda: Endpoint("e", model="m", **wrong))  # type: ignore[arg-type]
    ((name, value),) = wrong.items()
    (tmp_path / "pool.toml").write_text(f'[[endpoint]]\nname = "e"\nmodel = "m"\n{name} = {json.dumps(value)}\n')
    caught(said, lambda: Ensemble.from_toml(tmp_path / "pool.toml"))
    (tmp_path / "pool.toml").write_text(f'[[endpoint]]\nname = "e"\nmodel = "m"\n{name} = {value}\n')
    caught(said, lambda: Ensemble.from_toml(tmp_path / "pool.toml"))


def test_tools_and_a_stream_that_breaks_off_leak_nothing(said: Said, tmp_path: Path) -> None:
    async def half(request: web.Request, _: Any) -> web.StreamResponse:
        return await sse(request, {"choices": [{"index": 0, "delta": {"content": "Half"}}]}, end=False)

    tools = [{"type": "function", "function": {"name": PARAM, "description": PROMPT}}]
    with serving(half) as server:
        endpoint = Endpoint("cut", model="m", base_url=server.url, api_key_env="PLANTED_KEY")
        with Ensemble([endpoint], store=tmp_path / "s.db") as ensemble:
            stream = ensemble.stream(PROMPT, params={"tools": tools})
            assert "Half" not in str(caught(said, lambda: list(stream)))
            said.add("stream", stream)
            said.objects()
    said.files(tmp_path)
