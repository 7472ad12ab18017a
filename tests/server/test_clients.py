"""Real clients of the server: the openai library, LangChain, curl."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from decimal import Decimal
from enum import StrEnum
from typing import Any, Literal

import openai
import pytest
from openai.types.chat import ChatCompletionMessageFunctionToolCall, ChatCompletionMessageParam, ChatCompletionToolParam
from pydantic import BaseModel, Field

from focalroute.sim import SimulatedPool
from tests.server.running import ask, served

QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is 17 + 25?"}]
ADD: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "The sum of two integers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}


def said_besides(got: BaseModel) -> dict[str, Any]:
    """What a reply holds besides what OpenAI's API knows."""
    return dict((got.model_extra or {})["focalroute"])


@pytest.fixture
def client(url: str) -> Any:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as made:
        yield made


def test_choices_probabilities_cost_and_receipt(client: openai.OpenAI) -> None:
    wishes = {"choices": ["32", "42", "44"], "receipt": True}
    got = client.chat.completions.create(model="focalroute", messages=QUESTION, extra_body={"focalroute": wishes})
    told = said_besides(got)
    assert got.choices[0].message.content == told["candidates"][told["choice"]]
    assert told["candidates"] == wishes["choices"]
    assert sum(told["probabilities"]) == pytest.approx(1)
    assert got.choices[0].finish_reason == "stop"
    assert got.usage is not None
    calls = told["receipt"]["calls"]
    assert got.usage.prompt_tokens == sum(call["usage"]["prompt_tokens"] for call in calls) > 0
    assert got.usage.completion_tokens == sum(call["usage"]["completion_tokens"] for call in calls) > 0
    assert Decimal(told["cost_usd"]) == sum(Decimal(call["cost"]) for call in calls) > 0
    assert got.usage.model_dump()["cost"] == float(told["cost_usd"])
    assert told["members"] == [call["endpoint"] for call in calls]
    assert got._request_id == got.id == f"chatcmpl-{told['answer_id']}"


def test_the_receipt_comes_only_on_request(client: openai.OpenAI) -> None:
    got = client.chat.completions.create(
        model="focalroute", messages=QUESTION, extra_body={"focalroute": {"answer": "number"}}
    )
    told = said_besides(got)
    assert isinstance(told["value"], int)
    assert str(told["value"]) in (got.choices[0].message.content or "")
    assert "receipt" not in told
    assert "candidates" not in told  # they are whole replies here


class Sum(StrEnum):
    LESS = "32"
    RIGHT = "42"


class Inner(BaseModel):
    """A sum, as an enum that the schema refers to."""

    total: Sum = Field(description="the sum of both numbers")


class Plain(BaseModel):
    total: Literal["32", "42"]


class Open(BaseModel):
    answer: str
    extra: int | None = None


@pytest.mark.parametrize("model", [Inner, Plain])
def test_a_schema_of_one_enum_is_a_closed_question(client: openai.OpenAI, model: type[BaseModel]) -> None:
    """In the library's own way; the answer is valid, and has probabilities."""
    got = client.chat.completions.parse(model="focalroute", messages=QUESTION, response_format=model)
    parsed = got.choices[0].message.parsed
    assert isinstance(parsed, model)
    told = said_besides(got)
    assert told["candidates"] == ["32", "42"]
    assert parsed.total == told["candidates"][told["choice"]]  # type: ignore[attr-defined]


def test_other_schemas_make_structured_answers(client: openai.OpenAI) -> None:
    got = client.chat.completions.parse(model="focalroute", messages=QUESTION, response_format=Open)
    parsed = got.choices[0].message.parsed
    assert parsed is not None
    assert said_besides(got)["value"] == parsed.model_dump(mode="json", exclude_unset=True)


def test_the_choice_of_a_bare_enum_is_returned_as_json(client: openai.OpenAI) -> None:
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "sum", "schema": {"enum": ["32", "42"]}}}
    got = client.chat.completions.create(model="focalroute", messages=QUESTION, response_format=wanted)
    assert json.loads(got.choices[0].message.content or "") in ("32", "42")


def test_a_loop_of_tool_calls(client: openai.OpenAI) -> None:
    messages = list(QUESTION)
    got = client.chat.completions.create(model="focalroute", messages=messages, tools=[ADD])
    assert got.choices[0].finish_reason == "tool_calls"
    calls = got.choices[0].message.tool_calls
    assert calls is not None
    call = calls[0]
    assert isinstance(call, ChatCompletionMessageFunctionToolCall)
    assert set(json.loads(call.function.arguments).values()) == {17, 25}
    messages += [
        got.choices[0].message.model_dump(exclude_unset=True),  # type: ignore[list-item]
        {"role": "tool", "tool_call_id": call.id, "content": "42"},
    ]
    got = client.chat.completions.create(model="focalroute", messages=messages, tools=[ADD])
    assert "42" in (got.choices[0].message.content or "")


def test_tools_in_a_stream(client: openai.OpenAI) -> None:
    chunks = list(client.chat.completions.create(model="focalroute", messages=QUESTION, tools=[ADD], stream=True))
    calls = [call for chunk in chunks for choice in chunk.choices for call in choice.delta.tool_calls or ()]
    assert [call.function.name for call in calls if call.function] == ["add"]
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_parameters_reach_the_endpoints_and_a_cut_reply_is_said_to_be(client: openai.OpenAI) -> None:
    got = client.chat.completions.create(
        model="focalroute",
        messages=[{"role": "user", "content": "What is 17 + 25? Think aloud."}],
        max_tokens=3,
        temperature=0,
        seed=7,
        user="somebody",
        modalities=["text"],
    )
    assert got.choices[0].finish_reason == "length"


@pytest.mark.parametrize("usage", [False, True])
def test_a_stream_arrives_piece_by_piece(pool: SimulatedPool, usage: bool) -> None:
    options: Any = {"stream_options": {"include_usage": True}} if usage else {}
    one = pool.endpoints[:1]  # of several, the picked reply may be whole before it is picked
    with served(one, local_only=True) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="unused") as client:
        chunks = list(
            client.chat.completions.create(
                model="focalroute",
                messages=[{"role": "user", "content": "What is 17 + 25? Think aloud."}],
                stream=True,
                extra_body={"focalroute": {"combine": "pick"}},
                **options,
            )
        )
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    pieces = [choice.delta.content for chunk in chunks for choice in chunk.choices if choice.delta.content]
    assert len(pieces) > 1
    ends = [chunk for chunk in chunks if chunk.choices and chunk.choices[0].finish_reason]
    assert len(ends) == 1
    assert said_besides(ends[0])["members"]
    told = [chunk.usage for chunk in chunks if chunk.usage]
    assert [total.completion_tokens > 0 for total in told] == ([True] if usage else [])
    assert bool(chunks[-1].choices) is not usage


def test_a_streamed_closed_question_arrives_in_one_piece(client: openai.OpenAI) -> None:
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "sum", "schema": Plain.model_json_schema()}}
    chunks = list(
        client.chat.completions.create(model="focalroute", messages=QUESTION, stream=True, response_format=wanted)
    )
    (piece,) = [choice.delta.content for chunk in chunks for choice in chunk.choices if choice.delta.content]
    assert Plain.model_validate_json(piece)


def test_a_proxy_is_told_not_to_hold_a_stream_back(client: openai.OpenAI) -> None:
    """As nginx would until 8 KiB are there."""
    raw = client.chat.completions.with_raw_response.create(model="focalroute", messages=QUESTION, stream=True)
    assert raw.headers["x-accel-buffering"] == "no"
    assert len(list(raw.parse())) > 1


def test_many_at_once_asynchronously_and_feedback(url: str) -> None:
    async def run() -> None:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client:
            body = {"focalroute": {"choices": ["32", "42"]}}
            asks = (
                client.chat.completions.create(model="focalroute", messages=QUESTION, extra_body=body)
                for _ in range(20)
            )
            answers = await asyncio.gather(*asks)
            assert len({answer.id for answer in answers}) == 20
            for told in ({"label": "42"}, {"label": "42"}, {"label_index": 0}, {"preferred": "42"}, {"score": 0.5}):
                said = await client.post("/feedback", body={"id": answers[0].id, **told}, cast_to=dict[str, Any])
                assert said["id"] == answers[0].id
            with pytest.raises(openai.BadRequestError, match="label"):
                await client.post("/feedback", body={"id": answers[1].id, "label": "7"}, cast_to=object)
            with pytest.raises(openai.NotFoundError, match="no answer"):
                await client.post("/feedback", body={"id": "chatcmpl-0", "reward": 1}, cast_to=object)
            assert [model.id async for model in client.models.list()] == ["focalroute"]
            assert (await client.models.retrieve("focalroute")).owned_by == "focalroute"
            with pytest.raises(openai.NotFoundError, match="focalroute"):
                await client.models.retrieve("gpt-5")

    asyncio.run(run())


@pytest.mark.slow
def test_langchain_is_a_client(url: str) -> None:
    """ChatOpenAI: plain, streamed, with a structured answer, with tools."""
    pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
    code = f"""
import json, sys
from typing import Literal
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

class Sum(BaseModel):
    total: Literal["32", "42"]

def add(a: int, b: int) -> int:
    "The sum of two integers."
    return a + b

model = ChatOpenAI(model="focalroute", base_url="{url}/v1", api_key="unused", temperature=0)
question = "What is 17 + 25?"
whole = model.invoke(question)
print(json.dumps({{
    "tokens": whole.usage_metadata["output_tokens"],
    "streamed": len("".join(chunk.text for chunk in model.stream(question))),
    "total": model.with_structured_output(Sum).invoke(question).total,
    "call": model.bind_tools([add]).invoke(question).tool_calls[0]["args"],
}}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    got = json.loads(done.stdout)
    assert got["tokens"] > 0
    assert got["streamed"] > 0
    assert got["total"] in ("32", "42")
    assert set(got["call"].values()) == {17, 25}


def test_curl_is_a_client(url: str) -> None:
    curl = shutil.which("curl")
    if curl is None and os.environ.get("FOCALROUTE_REAL") != "1":
        pytest.skip("no curl on this machine")
    assert curl is not None

    def run(path: str, *arguments: str) -> str:
        command = [curl, "--silent", "--show-error", "--fail-with-body", url + path, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout

    sent = ["-H", "Content-Type: application/json", "-d"]
    got = json.loads(run("/v1/chat/completions", *sent, json.dumps(ask(focalroute={"choices": ["32", "42"]}))))
    assert got["choices"][0]["message"]["content"] in ("32", "42")
    lines = run("/v1/chat/completions", "--no-buffer", *sent, json.dumps(ask(stream=True))).split("\n\n")
    assert all(line.startswith("data: ") for line in lines[:-1])
    assert lines[-2:] == ["data: [DONE]", ""]
    assert json.loads(run("/healthz")) == {"status": "ok"}
    assert 'focalroute_requests_total{path="/v1/chat/completions",status="200"}' in run("/metrics")
