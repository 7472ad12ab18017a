"""Streams, structured answers and tools on llama.cpp's own server, with a tiny model constrained by grammars."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from focalroute import Budget, Endpoint, Ensemble, PoolError
from tests.real import build, servers
from tests.real.conftest import require
from tests.real.servers import Server

pytestmark = pytest.mark.real

QUESTION = "What is 17 + 25?"
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"enum": [1, 2]}, "kind": {"enum": ["x", "y"]}},
            "required": ["a", "kind"],
            "additionalProperties": False,
        },
    },
}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAAB"}}
#: As Llama 3.1 calls tools.
TEMPLATE = """
{%- if tools %}Call functions as {"name": function name, "parameters": arguments by name}.
{%- for tool in tools %}{{ tool | tojson }}{%- endfor %}{%- endif %}
{%- for message in messages %}
{%- if message.tool_calls %}{%- set call = message.tool_calls[0].function -%}
<|start_header_id|>assistant<|end_header_id|>\n
{{- '{"name": "' + call.name + '", "parameters": ' }}{{ call.arguments | tojson }}}<|eot_id|>
{%- elif message.role == "tool" %}<|start_header_id|>ipython<|end_header_id|>\n{{ message.content }}<|eot_id|>
{%- else %}<|start_header_id|>{{ message.role }}<|end_header_id|>\n{{ message.content }}<|eot_id|>{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n{%- endif %}
"""


def member(server: Server, name: str = "llama.cpp") -> Endpoint:
    return Endpoint(
        name, base_url=server.base_url, model=server.model, dialect="llamacpp", input_usd_per_1m=1, output_usd_per_1m=2
    )


@pytest.fixture(scope="module")
def with_tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose template knows of tools."""
    require(build.llama_server_ready(), "llama-server")
    with servers.llama_server(tmp_path_factory.mktemp("tools"), template=TEMPLATE) as server:
        yield server


def test_a_stream_and_its_bill(llama_server: Callable[[int], Server]) -> None:
    with Ensemble([member(llama_server(0))], budget=Budget(usd_total=1)) as ensemble:
        with ensemble.stream(QUESTION, params={"max_tokens": 24, "seed": 3}) as stream:
            pieces = list(stream)
        answer = stream.answer
        usage = answer.replies[0].usage
        assert usage is not None
        assert answer.text == "".join(pieces)
        assert usage.completion_tokens == 24
        assert answer.cost == ensemble.stats().cost == Decimal(usage.prompt_tokens + 48) / 10**6
        again = ensemble.ask(QUESTION, params={"max_tokens": 24, "seed": 3})
    assert again.text == answer.text  # the seed reaches it, streamed or not


def test_a_stream_given_up_is_settled_and_the_server_goes_on(llama_server: Callable[[int], Server]) -> None:
    with Ensemble([member(llama_server(0))], budget=Budget(usd_total=1)) as ensemble:
        for _ in ensemble.stream(QUESTION, params={"max_tokens": 1500}):
            break
        with ensemble.stream(QUESTION, params={"max_tokens": 8}) as stream:
            list(stream)
        assert (ensemble.stats().cost or 0) > (stream.answer.cost or 0)


class Ticket(BaseModel):
    team: Literal["billing", "shipping"]
    urgent: bool
    amount: int


def test_structured_answers_of_three_servers_are_fused(llama_server: Callable[[int], Server]) -> None:
    """They are held to the schema as measured by the probe, not told it."""
    pool = [member(llama_server(seed), f"llama-{seed}") for seed in range(3)]
    with Ensemble(pool, policy="plurality") as ensemble:
        answer = ensemble.ask(QUESTION, answer=Ticket, params={"max_tokens": 400, "seed": 1})
    said = [json.loads(reply.text or "") for reply in answer.replies if reply.ok]
    assert len(said) >= 2
    assert isinstance(answer.value, Ticket)
    assert set(answer.shares) == {"team", "urgent"}
    assert answer.value.amount in [one["amount"] for one in said]


def test_tools_are_called_and_their_results_go_back(with_tools: Server) -> None:
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    # a random model comes to its call in the end: a brace begins it
    params = {"tools": [TOOL], "tool_choice": "required", "max_tokens": 400, "logit_bias": [["{", 12.0]]}
    with Ensemble([member(with_tools)]) as ensemble:
        answer = ensemble.ask(messages, params=params)
        with ensemble.stream(messages, params=params) as stream:
            said = "".join(stream)
        assert said == stream.answer.text
        for one in (answer, stream.answer):
            (call,) = one.tool_calls
            assert call["function"]["name"] == "add"
            assert json.loads(call["function"]["arguments"])["kind"] in ("x", "y")
        messages += [answer.message, {"role": "tool", "tool_call_id": answer.tool_calls[0]["id"], "content": "42"}]
        assert ensemble.ask(messages, params={"tools": [TOOL], "max_tokens": 5}).replies[0].ok


def test_a_template_without_tools_is_a_reply_without_calls(llama_server: Callable[[int], Server]) -> None:
    """The server takes the tools and says nothing; only where a call was required is that a failure."""
    params = {"tools": [TOOL], "max_tokens": 5}
    with Ensemble([member(llama_server(0))]) as ensemble:
        assert ensemble.ask(QUESTION, params=params).tool_calls == ()
        with pytest.raises(PoolError, match=r"no tool, though one was required|token limit"):
            ensemble.ask(QUESTION, params={**params, "tool_choice": "required"})


def test_a_server_that_sees_nothing_is_not_shown_a_second_image(llama_server: Callable[[int], Server]) -> None:
    look: list[Any] = [{"role": "user", "content": [{"type": "text", "text": QUESTION}, IMAGE]}]
    with Ensemble([member(llama_server(0))], attempts=1) as ensemble:
        with pytest.raises(PoolError, match=r"HTTP 500 .takes no images"):
            ensemble.ask(look)
        with pytest.raises(PoolError, match="no endpoint can take this request"):
            ensemble.ask(look)
