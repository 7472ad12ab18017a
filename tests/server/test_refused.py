"""Requests that are wrong, huge, slow or meant to do harm: each gets a clear error, and the server goes on."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import struct
from typing import Any
from urllib.parse import urlsplit

import pytest

from focalroute.server.app import MAX_BODY_BYTES
from tests.server.running import ask, get, post

M: Any = [{"role": "user", "content": "What is 17 + 25?"}]
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}}


def call_of(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def formatted(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"model": 5}, "model", "give a string"),
        ({"messages": None}, "messages", "give a list"),
        ({"messages": []}, "messages", "is empty"),
        ({"messages": M * 10_001}, "messages", "at most 10000"),
        ({"messages": ["x"]}, "messages.0", "give names and their values"),
        ({"messages": [{"content": "x"}]}, "messages.0.role", "required"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content", "give text, or a list of parts"),
        ({"messages": [{"role": "user", "content": [5]}]}, "messages.0.content", "give text, or a list of parts"),
        ({"messages": [{"role": "user", "content": ""}]}, "messages.0.content", "is empty"),
        ({"n": 2}, "n", "one answer is fused"),
        ({"logprobs": True}, "logprobs", "focalroute.probabilities"),
        ({"top_logprobs": 5}, "top_logprobs", "focalroute.probabilities"),
        ({"functions": [{"name": "add"}]}, "functions", "give tools instead"),
        ({"function_call": "auto"}, "function_call", "give tool_choice instead"),
        ({"temperature": 3}, "temperature", "give at most 2"),
        ({"temperature": "hot"}, "temperature", "give a number"),
        ({"max_tokens": 0}, "max_tokens", "give at least 1"),
        ({"max_tokens": 10**8}, "max_tokens", "from 1 to 10000000"),
        ({"stop": 5}, "stop", "give text"),
        ({"stream": "yes"}, "stream", "give true or false"),
        ({"tools": "add"}, "tools", "give a list"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools", "number 1: function.name"),
        (
            {"tools": [call_of("add"), {"type": "custom", "custom": {"name": "code"}}]},
            "tools",
            "number 2: only calls of functions are read",
        ),
        ({"tool_choice": 5}, "tool_choice", "give a name or an object"),
        ({"tool_choice": "required"}, "tool_choice", "there are no tools"),
        ({"tools": [call_of("add")], "tool_choice": call_of("sub")}, "tool_choice", "not among the tools"),
        ({"service_tier": "priority"}, "service_tier", "'auto' or 'default'"),
        ({"modalities": ["text", "audio"]}, "modalities.1", "'text'"),
        ({"web_search_options": {}}, "web_search_options", "unknown field"),
        ({"choices": ["a", "b"]}, "choices", 'put it into the object "focalroute"'),
        ({"response_format": {"type": "xml"}}, "response_format", "json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": 5}}, "response_format", "json_schema"),
        (formatted({"type": "nothing"}), "response_format", "the JSON schema is wrong at $.type"),
        (
            {"response_format": {"type": "json_object"}, "focalroute": {"answer": "number"}},
            "response_format",
            "leave it out",
        ),
        ({"tools": [call_of("add")], "focalroute": {"choices": ["a", "b"]}}, "tools", "tool_choice"),
        (formatted(SCHEMA) | {"focalroute": {"choices": ["a", "b"]}}, "response_format", "leave it out"),
        ({"focalroute": 5}, "focalroute", "give names and their values"),
        ({"focalroute": {"choises": []}}, "focalroute.choises", "unknown field; did you mean 'choices'?"),
        ({"focalroute": {"choices": ["a"]}}, "focalroute.choices", "at least 2"),
        ({"focalroute": {"choices": ["a", "a"]}}, "focalroute.choices", "distinct"),
        ({"focalroute": {"choices": ["a", 5]}}, "focalroute.choices.1", "give a string"),
        ({"focalroute": {"answer": "poem"}}, "focalroute.answer", "poem"),
        ({"focalroute": {"answer": 5}}, "focalroute.answer", "give a name or an object"),
        ({"focalroute": {"samples": 1000}}, "focalroute.samples", "1 to 128"),
        ({"focalroute": {"combine": "mix"}}, "focalroute.combine", "'choose'"),
        ({"focalroute": {"combine": "synthesise"}}, "focalroute.combine", "ask its operator"),
        ({"focalroute": {"max_usd": -1}}, "focalroute.max_usd", "positive"),
        ({"focalroute": {"max_usd": "NaN"}}, "focalroute.max_usd", "positive"),
        ({"focalroute": {"max_usd": True}}, "focalroute.max_usd", "positive"),
        ({"focalroute": {"deadline_s": 1e9}}, "focalroute.deadline_s", "give at most 600"),
        ({"focalroute": {"deadline_s": 0}}, "focalroute.deadline_s", "give at least 0.1"),
        ({"focalroute": {"deadline_s": 0.09}}, "focalroute.deadline_s", "give at least 0.1"),
        ({"focalroute": {"params": {"model": "x"}}}, "focalroute.params", "unknown field"),
    ],
)
def test_a_wrong_field_is_named(url: str, fields: dict[str, Any], param: str, said: str) -> None:
    status, got = post(f"{url}/v1/chat/completions", {"model": "focalroute", "messages": M, **fields})
    error = got["error"]
    assert (status, error["type"]) == (400, "invalid_request_error")
    assert error["param"] == param
    assert said in error["message"]
    assert len(error["message"]) < 400


@pytest.mark.parametrize("prefix", ["", '"focalroute": {'], ids=["above", "within an object"])
def test_a_long_name_of_a_field_is_not_sent_back_whole(url: str, prefix: str) -> None:
    body = f'{{"model": "focalroute", "messages": [{{"role": "user", "content": "q"}}], {prefix}"{"k" * 100_000}": 1'
    status, got = post(f"{url}/v1/chat/completions", (body + "}" * (1 + bool(prefix))).encode())
    assert status == 400
    assert "unknown field" in got["error"]["message"]
    assert len(json.dumps(got)) < 500


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "is empty; send a JSON object"),
        (b" \n", "is empty; send a JSON object"),
        (b'{"model":\n  "focalroute",\n5}', "not valid JSON: line 3, column 1"),
        (b"[]", "must be a JSON object"),
        (b"5", "must be a JSON object"),
        (b"\xff\xfe", "JSON"),
        ('{"model": "café"}'.encode("latin-1"), "not UTF-8"),
        (b'{"model": NaN}', "not valid JSON: NaN"),
        (b"[" * 200_000, "more than 100000 values"),
        (b'{"a":' * 100_000, "nested more than 100 deep"),
        (b"9" * 10_000, "more than 400 digits"),
        (b'{"model": "focalroute", "messages": 1e999}', "messages: give a list"),
        (json.dumps({"model": "x" * 100_000, "messages": M}).encode(), "there is only 'focalroute' here"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_body_that_is_not_a_request_is_refused(url: str, body: bytes, said: str) -> None:
    status, got = post(f"{url}/v1/chat/completions", body)
    assert status in (400, 404)
    assert said in got["error"]["message"]
    assert len(got["error"]["message"]) < 200


def test_a_packed_body_is_refused_by_its_header(url: str) -> None:
    packed = gzip.compress(json.dumps(ask()).encode())
    status, got = post(f"{url}/v1/chat/completions", packed, **{"Content-Encoding": "gzip"})
    assert (status, got["error"]["code"]) == (415, "unsupported_content_encoding")
    assert post(f"{url}/v1/feedback", {"id": "x", "reward": 1}, **{"Content-Encoding": "identity"})[0] == 404


@pytest.mark.parametrize(
    "text", ["\ud800", "\x00", "\u202e" * 1000, "💥" * 10_000, "a\r\nX-Header: x", "{" * 5000, "((((" * 5000 + "x"]
)
def test_any_text_can_be_asked_and_answered(url: str, text: str) -> None:
    body = ask(text, focalroute={"choices": [text or "a", "something else"]})
    status, got = post(f"{url}/v1/chat/completions", json.dumps(body).encode())
    assert status in (200, 502), got  # the simulated models may see no question in it
    assert "choices" in got or got["error"]["code"] == "pool_failed"


def test_a_body_that_is_too_large_is_not_read(url: str) -> None:
    """Whether it says so, before any of it comes, or comes in chunks without an end."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    connection.putrequest("POST", "/v1/chat/completions")
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Content-Length", str(MAX_BODY_BYTES + 1))
    connection.endheaders()
    refused = connection.getresponse()
    assert (refused.status, json.load(refused)["error"]["code"]) == (413, "body_too_large")
    connection.close()

    def endless() -> Any:
        for _ in range(4 * MAX_BODY_BYTES // 2**16):
            yield b" " * 2**16

    connection = http.client.HTTPConnection(urlsplit(url).netloc)
    headers = {"Content-Type": "application/json", "Transfer-Encoding": "chunked"}
    try:
        connection.request("POST", "/v1/chat/completions", endless(), headers, encode_chunked=True)
        assert connection.getresponse().status == 413
    except (BrokenPipeError, ConnectionResetError):  # it hung up while we were still sending
        pass
    finally:
        connection.close()
    assert get(f"{url}/healthz")[0] == 200


def test_a_body_that_does_not_arrive_is_given_up(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("focalroute.server.app._BODY_S", 0.1)
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    connection.putrequest("POST", "/v1/chat/completions")
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Content-Length", "100")
    connection.endheaders(b"{")
    assert connection.getresponse().status == 408
    connection.close()


def test_beyond_the_asks_that_may_be_under_way_the_server_is_busy(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("focalroute.server.app._MOST_ASKS", 0)
    status, got = post(f"{url}/v1/chat/completions", ask())
    assert (status, got["error"]["code"]) == (503, "busy")
    assert get(f"{url}/healthz")[0] == 200


def test_a_web_page_cannot_make_its_visitor_s_browser_ask(url: str) -> None:
    """Not by a form, which has no JSON; nor by a name that it had point to this machine."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        status, got = post(f"{url}/v1/chat/completions", ask(), **{"Content-Type": kind})
        assert (status, got["error"]["code"]) == (415, "unsupported_media_type")
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "[", ""):
        status, got = post(f"{url}/v1/chat/completions", ask(), Host=host)
        assert (status, got["error"]["code"]) == (403, "not_local")
    port = urlsplit(url).port
    for host in (f"localhost:{port}", f"[::1]:{port}", "127.0.0.1", f"127.0.0.2:{port}"):
        assert get(f"{url}/v1/models", Host=host)[0] == 200


def test_paths_and_methods_that_do_not_exist(url: str) -> None:
    """Nor is anybody sent to another address, which behind a proxy would be one without TLS."""
    for path in ("/", "/v1", "/v1/completions", "/v1/../etc/passwd", "/metrics/x", "/v1/models/a/b", "/healthz/"):
        status, got = get(url + path)
        assert (status, got["error"]["type"]) == (404, "invalid_request_error")
    for path in ("/chat/completions", "/v1/chat/completions/", "/v1/responses", "//v1/chat/completions"):
        status, got = post(url + path, ask())
        assert (status, got["error"]["code"]) == (404, "not_found")
        assert "POST /v1/chat/completions (the base URL of a client ends in /v1)" in got["error"]["message"]
        assert "not responses" in got["error"]["message"]  # which some frameworks use by default
    status, got = get(f"{url}/v1/chat/completions")
    assert (status, got["error"]["code"]) == (405, "method_not_allowed")
    assert "use POST" in got["error"]["message"]
    assert post(f"{url}/v1/models", {})[0] == 405


def test_connections_that_break_off_leave_nothing_behind(url: str) -> None:
    """In the request line, the headers, the body; by a reset; and what is no HTTP at all."""
    parts = urlsplit(url)
    begun = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
    whole = begun + b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    for sent in (b"", b"POST /v1", begun, whole, b"\x16\x03\x01\x02\x00", b"GET / HTTP/9.9\r\n\r\n", b"\0" * 100_000):
        with socket.create_connection((parts.hostname, parts.port)) as connection:
            connection.sendall(sent)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert get(f"{url}/healthz")[0] == 200
    assert post(f"{url}/v1/chat/completions", ask(focalroute={"choices": ["32", "42"]}))[0] == 200


@pytest.mark.parametrize(
    ("wrong", "param", "said"),
    [
        ({}, "id", "required"),
        ({"id": 5, "reward": 1}, "id", "give a string"),
        ({"id": "x", "reward": 1}, "id", "the store has no answer"),
        ({"id": "x", "reward": "good"}, "reward", "give a number from -1 to 1"),
        ({"id": "x", "reward": 1, "lable": "42"}, "lable", "unknown field; did you mean 'label'?"),
    ],
)
def test_feedback_of_the_wrong_form_is_refused(url: str, wrong: dict[str, Any], param: str, said: str) -> None:
    status, got = post(f"{url}/v1/feedback", wrong)
    assert status in (400, 404)
    assert got["error"]["param"] == param
    assert said in got["error"]["message"]


def test_feedback_out_of_range(url: str) -> None:
    _, answer = post(f"{url}/v1/chat/completions", ask(focalroute={"choices": ["32", "42"]}))
    wrongs: list[Any] = [{"reward": 2}, {"reward": 1, "label": "42"}, {}, {"label": 7}, {"label": {"a": 1}}]
    for wrong in wrongs:
        status, got = post(f"{url}/v1/feedback", {"id": answer["id"], **wrong})
        assert status == 400, (wrong, got)
        assert got["error"]["param"] in {*wrong, None}
