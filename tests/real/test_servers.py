"""The real servers do what the rest of the suite relies on: seen through plain httpx, without focalroute."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.real.servers import Server
from tests.real.tiny_model import write_tiny_model

pytestmark = pytest.mark.real

QUESTION = [{"role": "user", "content": "Which planet has the most moons? A or B"}]
SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "string", "enum": ["A", "B"]}},
    "required": ["answer"],
    "additionalProperties": False,
}


@pytest.fixture(params=["llama-server", pytest.param("litellm", marks=pytest.mark.slow)])
def server(request: pytest.FixtureRequest) -> Server:
    """The test runs against each of them."""
    if request.param == "litellm":
        proxy: Server = request.getfixturevalue("litellm_proxy")
        return proxy
    start: Callable[[int], Server] = request.getfixturevalue("llama_server")
    return start(0)


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    """Plain HTTP, with the server's key."""
    headers = {"Authorization": f"Bearer {server.key}"} if server.key else {}
    with httpx.Client(base_url=server.base_url, headers=headers, timeout=60, trust_env=False) as client:
        yield client


def chat(client: httpx.Client, server: Server, **fields: Any) -> Any:
    response = client.post("/chat/completions", json={"model": server.model, "messages": QUESTION} | fields)
    assert response.status_code == 200, response.text
    return response.json()


def stream(client: httpx.Client, server: Server, **fields: Any) -> list[Any]:
    body = {"model": server.model, "messages": QUESTION, "max_tokens": 4, "stream": True} | fields
    # llama-server hangs up after a stream though it announced to keep the connection alive
    with client.stream("POST", "/chat/completions", json=body, headers={"Connection": "close"}) as response:
        events = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    return [json.loads(event) for event in events]


def test_a_completion_has_text_and_usage(client: httpx.Client, server: Server) -> None:
    """A plain call gives one choice that stopped at the token limit, and its exact usage."""
    reply = chat(client, server, max_tokens=8)
    (choice,) = reply["choices"]
    assert choice["message"]["content"]
    assert choice["finish_reason"] == "length"
    assert reply["usage"]["completion_tokens"] == 8
    assert reply["usage"]["prompt_tokens"] > 0


def test_two_samples_in_one_call(client: httpx.Client, server: Server) -> None:
    """n = 2 gives two choices of 8 tokens each; of which llama-server counts only one in its usage."""
    reply = chat(client, server, max_tokens=8, n=2)
    assert [choice["index"] for choice in reply["choices"]] == [0, 1]
    assert [choice["finish_reason"] for choice in reply["choices"]] == ["length", "length"]
    assert reply["usage"]["completion_tokens"] == 8


def test_log_probabilities_of_each_token(client: httpx.Client, server: Server) -> None:
    """top_logprobs come as asked for, in falling order, as probabilities that sum to at most 1.

    A token that ends within a letter has no entry, so there may be fewer entries than tokens.
    """
    reply = chat(client, server, max_tokens=16, logprobs=True, top_logprobs=5)
    entries = reply["choices"][0]["logprobs"]["content"]
    assert 0 < len(entries) <= reply["usage"]["completion_tokens"] == 16
    for entry in entries:
        top = [other["logprob"] for other in entry["top_logprobs"]]
        assert len(top) == 5
        assert top == sorted(top, reverse=True)
        assert 0 < sum(map(math.exp, top)) <= 1


def test_a_json_schema_is_kept(client: httpx.Client, server: Server) -> None:
    """A strict schema with an enum makes even a random model answer with one of the choices."""
    schema = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": SCHEMA}}
    reply = chat(client, server, max_tokens=64, temperature=0, response_format=schema)
    assert json.loads(reply["choices"][0]["message"]["content"])["answer"] in ("A", "B")


def test_a_stream_ends_with_its_usage_only_on_request(client: httpx.Client, server: Server) -> None:
    """With include_usage the last event carries the usage; without it none does."""
    asked = stream(client, server, stream_options={"include_usage": True})
    assert asked[-1]["usage"]["completion_tokens"] == 4
    assert not any(event.get("usage") for event in stream(client, server))


def test_more_samples_than_slots_are_refused(client: httpx.Client, server: Server) -> None:
    """llama-server refuses n above its number of slots, and the proxy passes the refusal on."""
    response = client.post("/chat/completions", json={"model": server.model, "messages": QUESTION, "n": 13})
    assert response.status_code == 400
    assert "n" in response.json()["error"]["message"]


@pytest.mark.slow
def test_the_proxy_wants_its_key(litellm_proxy: Server) -> None:
    """A call with another key is refused (with 400, as the proxy has no database to look it up in)."""
    body = {"model": litellm_proxy.model, "messages": QUESTION}
    with httpx.Client(timeout=60, trust_env=False, headers={"Authorization": "Bearer sk-another"}) as client:
        response = client.post(f"{litellm_proxy.base_url}/chat/completions", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "no_db_connection"


def test_another_seed_is_another_model(llama_server: Callable[[int], Server]) -> None:
    """Two servers with different seeds answer the same greedy call differently, each the same every time."""
    texts = []
    for seed in (0, 1, 0):
        with httpx.Client(base_url=llama_server(seed).base_url, timeout=60, trust_env=False) as client:
            reply = chat(client, llama_server(seed), max_tokens=16, temperature=0)
            texts.append(reply["choices"][0]["message"]["content"])
    assert texts[0] == texts[2] != texts[1]


def test_the_same_seed_writes_the_same_file(tmp_path: Path) -> None:
    """The model file is a function of the seed, and small."""
    first, again, other = (write_tiny_model(tmp_path / str(i), seed).read_bytes() for i, seed in enumerate((3, 3, 4)))
    assert first == again != other
    assert len(first) < 1_000_000
