"""Which schemas make closed questions, and how these are put to endpoints."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any

import pytest
from aiohttp import web
from pydantic import BaseModel, Field

from focalroute import Endpoint
from focalroute.serving.openai_api.requests import AnswerFormat, _Chat, _Extras, read_chat, read_format
from tests.loopback import completion, json_reply, serving
from tests.server.running import ask, post, served

ENUM: dict[str, Any] = {"type": "string", "enum": ["good", "bad"]}


class Feeling(StrEnum):
    """How it feels."""

    GOOD = "good"
    BAD = "bad"


class Review(BaseModel):
    """A judgement of a review."""

    feeling: Feeling = Field(description="the feeling of the writer")


def formatted(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "review", "schema": schema}}


def holding(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "name", "meaning"),
    [
        (ENUM, "", ""),
        ({"enum": ["good", "bad"], "description": "a feeling"}, "", "What is asked for is a feeling"),
        (holding(feeling=ENUM), "feeling", 'What is asked for is "feeling"'),
        (
            Review.model_json_schema(),
            "feeling",
            'What is asked for is "feeling": the feeling of the writer: A judgement of a review.',
        ),
    ],
)
def test_a_schema_that_leaves_only_a_choice(schema: dict[str, Any], name: str, meaning: str) -> None:
    got = read_format(formatted(schema), tools=False)
    assert (got.choices, got.field_name, got.meaning) == (("good", "bad"), name, meaning)
    assert read_format(formatted(schema), tools=True).structure is not None  # which may call a tool instead


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": ["good", "bad", 5]},
        {"enum": ["only"]},
        {"enum": ["same", "same "]},
        {"enum": [str(number) for number in range(1001)]},
        {"enum": ["good", "bad"], "pattern": "^g"},
        {"type": "array", "items": ENUM},
        holding(feeling=ENUM, why={"type": "string"}),
        holding(feeling={"anyOf": [ENUM, {"type": "null"}]}),
        holding(feeling=ENUM) | {"required": ["else"]},
        holding(feeling=ENUM) | {"minProperties": 2},
    ],
)
def test_a_schema_that_leaves_more_makes_a_structured_answer(schema: dict[str, Any]) -> None:
    got = read_format(formatted(schema), tools=False)
    assert got.choices is None
    assert got.structure is not None


def test_a_text_format_is_no_format_at_all() -> None:
    assert read_format(None, tools=False) == read_format({"type": "text"}, tools=False) == AnswerFormat()


def test_a_reply_that_is_not_a_json_object_is_not_usable() -> None:
    """It is asked for once more, as with a schema."""
    replies = iter(["[1, 2]", "none", '```json\n{"b": 1, "a": "x"}\n```'])

    async def says(_: web.Request, __: Any) -> web.StreamResponse:
        return json_reply(completion(next(replies)))

    with serving(says) as service, served([bare(service.url)]) as url:
        body = ask("Fill it in.", response_format={"type": "json_object"})
        failed, said = post(f"{url}/v1/chat/completions", body)
        status, got = post(f"{url}/v1/chat/completions", body)
    assert failed == 502
    assert "the reply is not JSON" in said["error"]["message"]
    assert status == 200
    assert json.loads(got["choices"][0]["message"]["content"]) == got["focalroute"]["value"] == {"a": "x", "b": 1}
    assert service.received[-1].body["response_format"] == {"type": "json_object"}


def bare(url: str) -> Endpoint:
    """One of which nothing has to be found out."""
    return Endpoint("e", model="m", base_url=url, logprobs=False, top_logprobs=0, n=False, structured_choice=False,
                    stream_usage=False)  # fmt: skip


def test_the_fields_description_joins_the_question_and_the_answer_is_an_object_again() -> None:
    async def says(_: web.Request, __: Any) -> web.StreamResponse:
        return json_reply(completion("B"))

    with serving(says) as service, served([bare(service.url)]) as url:
        body = ask("I hated it.", response_format=formatted(Review.model_json_schema()))
        status, got = post(f"{url}/v1/chat/completions", body)
    assert (status, got["choices"][0]["message"]["content"]) == (200, '{"feeling": "bad"}')
    asked = service.received[-1].body["messages"][-1]["content"]
    assert asked.startswith('I hated it.\n\nWhat is asked for is "feeling": the feeling of the writer')
    assert "A. good\nB. bad" in asked


def test_fields_that_change_no_answer_are_taken_but_not_sent_on() -> None:
    """OpenAI's Agents SDK could not set how long prompts are cached."""
    idle = {"user": "u", "store": True, "prompt_cache_key": "k", "prompt_cache_retention": "24h"}
    body = {"model": "focalroute", "messages": [{"role": "user", "content": "hi"}], "seed": 1, **idle}
    assert read_chat(body, None).options["params"] == {"seed": 1}


def test_a_field_that_is_null_is_as_if_left_out() -> None:
    """Clients in other languages write every field that is not set so, those of later APIs among them."""
    unset: dict[str, Any] = dict.fromkeys(_Chat.model_fields.keys() - {"model", "messages"})
    own = dict.fromkeys(_Extras.model_fields.keys() - {"combine", "receipt"})
    bare = read_chat(ask(), None)
    assert read_chat(ask(**unset, top_logprobs=None, of_a_later_api=None), None) == bare
    assert read_chat(ask(focalroute=own), None) == bare


def test_a_reply_that_comes_back_as_a_message_is_without_its_nulls() -> None:
    """Groq and Mistral refuse the "refusal": null that every reply has, and which the openai library sends back."""
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    asked = ask()
    asked["messages"] += [
        {**said, "refusal": None, "audio": None},
        {"role": "tool", "tool_call_id": "1", "content": "2"},
    ]
    assert list(read_chat(asked, None).query)[1:] == [said, asked["messages"][2]]
