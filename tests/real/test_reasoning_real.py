"""Thinking as real servers take it out of a reply: llama-server's and vLLM's own parsers.

The models are random, so a grammar makes them think and answer; the servers then parse that as any model's words. See
llama.cpp's tools/server/README.md and https://docs.vllm.ai/en/latest/features/reasoning_outputs/.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from focalroute import Answer, Endpoint, Ensemble
from tests.real import build, servers
from tests.real.conftest import require
from tests.real.servers import Server
from tests.real.tiny_model import write_tiny_folder

pytestmark = pytest.mark.real

QUESTION = "What is 17 + 25?"
GRAMMAR = {"grammar": 'root ::= "<think>" [a-z] [a-z] [a-z] "</think>" "42"'}
REGEX = {"structured_outputs": {"regex": "<think>[a-z]{3}</think>42"}}
TEMPLATE = """{%- for message in messages %}<|start|>{{ message.role }}
{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif -%}
{{ message.content }}<|end|>
{% endfor %}{%- if add_generation_prompt %}<|start|>assistant
{% endif %}"""


@pytest.fixture(scope="module", params=["none", "deepseek", "deepseek-legacy"])
def llama(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """It leaves the thinking in the text, or moves it to ``reasoning_content``."""
    require(build.llama_server_ready(), "llama-server")
    folder, options = tmp_path_factory.mktemp(request.param), ["--jinja", "--reasoning-format", request.param]
    with servers.llama_server(folder, template=TEMPLATE, slots=2, options=options) as server:
        yield server


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """It moves the thinking to ``reasoning``."""
    require(build.vllm_ready(), "vLLM", must=False)
    folder = tmp_path_factory.mktemp("vllm")
    model = write_tiny_folder(folder / "thinker", thinks=True)
    options = ["--reasoning-parser", "deepseek_r1", "--structured-outputs-config.enable_in_reasoning=True"]
    with servers.vllm_serving(model, folder / "vllm.log", options) as root:
        yield Server(f"{root}/v1", model.name)


def asked(
    server: Server, dialect: Any, params: dict[str, Any], **settings: Any
) -> tuple[Answer[Any], Answer[Any], str]:
    """A number, and the same question as a stream with what it said."""
    settings |= {"dialect": dialect, "logprobs": False, "n": False}
    endpoint = Endpoint("thinker", model=server.model, base_url=server.base_url, **settings)
    with Ensemble([endpoint]) as ensemble:
        number = ensemble.ask(QUESTION, answer="number", params=params)
        with ensemble.stream(QUESTION, params=params) as stream:
            said = "".join(stream)
        return number, stream.answer, said


def holds(number: Answer[Any], streamed: Answer[Any], said: str) -> None:
    assert number.value == 42
    assert number.text == streamed.text == said == "42"
    for answer in (number, streamed):
        (reply,) = answer.replies
        assert re.fullmatch("[a-z]{3}", (reply.reasoning or "").strip())
        assert reply.usage is not None
        assert reply.usage.completion_tokens > 3  # what was thought is billed


def message(server: Server, params: dict[str, Any]) -> dict[str, Any]:
    """The server's own reply, read without focalroute."""
    body = {"model": server.model, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 64, **params}
    reply = httpx.post(f"{server.base_url}/chat/completions", json=body, timeout=60, trust_env=False)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()["choices"][0]["message"]
    return found


def test_llama_servers_thinking_is_in_no_text_however_it_is_told(llama: Server, request: pytest.FixtureRequest) -> None:
    raw = message(llama, GRAMMAR)
    told = request.node.callspec.params["llama"]
    assert ("reasoning_content" in raw) == (told != "none")
    assert ("<think>" in raw["content"]) == (told == "none")
    holds(*asked(llama, "llamacpp", GRAMMAR))


def test_vllms_thinking_is_in_no_text(vllm: Server) -> None:
    raw = message(vllm, REGEX)
    assert raw["content"] == "42"
    holds(*asked(vllm, "vllm", REGEX))


@pytest.mark.slow
def test_a_litellm_proxy_passes_the_thinking_on(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    require(build.llama_server_ready() and build.litellm_ready(), "llama-server or the LiteLLM proxy")
    folder = tmp_path_factory.mktemp("proxy")
    options = ["--jinja", "--reasoning-format", "deepseek"]
    with (
        servers.llama_server(folder, template=TEMPLATE, slots=2, options=options) as behind,
        servers.litellm_proxy(folder, behind) as proxy,
    ):
        monkeypatch.setenv("REAL_PROXY_KEY", proxy.key or "")
        holds(*asked(proxy, "openai", GRAMMAR, api_key_env="REAL_PROXY_KEY"))
