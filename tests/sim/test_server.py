"""The wire: each dialect's form, and what the models say in it."""

from __future__ import annotations

import json
import math
from datetime import date, datetime, time, timedelta
from typing import Annotated, Any, Literal
from uuid import UUID

import jsonschema
import pytest
from pydantic import AnyUrl, BaseModel, Field

from focalroute.sim import stream
from focalroute.sim.dialects import DIALECTS
from tests.sim.conftest import Client

ASKED = "What is 17 + 25?\n\nA. 32\nB. 42\nC. 44\nD. 52\n\nAnswer with the letter of one choice only."
LETTERS = ["A", "B", "C", "D"]
PLAIN = list(DIALECTS)
OPENAI_LIKE = ["openai", "vllm", "llamacpp"]
#: What follows a reply's own tokens.
ENDS = {"vllm": ["<|im_end|>"]}
SCHEMA = {
    "type": "object",
    "properties": {"reason": {"type": "string"}, "answer": {"type": "string", "enum": LETTERS}},
    "required": ["reason", "answer"],
}
BY_SCHEMA: dict[str, Any] = {
    "response_format": {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": SCHEMA}}
}


def content(reply: Any, i: int = 0) -> str:
    text = reply["choices"][i]["message"]["content"]
    assert isinstance(text, str)
    return text


def events(response: Any) -> list[Any]:
    lines = [line for line in response.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


@pytest.mark.parametrize("dialect", PLAIN)
def test_every_dialect_answers_a_lettered_question_with_its_letter_and_usage(client: Client, dialect: str) -> None:
    reply = client.ask(ASKED, dialect, temperature=0)
    assert reply["object"] == "chat.completion"
    assert content(reply) == "B"
    choice = reply["choices"][0]
    assert (choice["index"], choice["finish_reason"]) == (0, "stop")
    assert choice.get("logprobs") is None
    usage = reply["usage"]
    assert usage["completion_tokens"] == 1
    assert 30 < usage["prompt_tokens"] < 60
    assert usage["total_tokens"] == usage["prompt_tokens"] + 1


@pytest.mark.parametrize("dialect", OPENAI_LIKE)
def test_top_logprobs_hold_the_letters_their_spellings_and_strays(client: Client, dialect: str) -> None:
    reply = client.ask(ASKED, dialect, temperature=0, logprobs=True, top_logprobs=20)
    entry, *rest = reply["choices"][0]["logprobs"]["content"]
    assert [end["token"] for end in rest] == ENDS.get(dialect, [])
    top = {item["token"]: item["logprob"] for item in entry["top_logprobs"]}
    assert entry["token"] == "B"
    assert entry["logprob"] == top["B"] == max(top.values())
    assert {*LETTERS, " B", "b", "The"} <= set(top)
    assert sum(math.exp(value) for value in top.values()) == pytest.approx(1, abs=0.01)
    assert entry["bytes"] == [66]
    fewer = client.ask(ASKED, dialect, temperature=0, logprobs=True, top_logprobs=2)
    assert len(fewer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]) == 2


def test_together_takes_an_integer_and_writes_parallel_lists(client: Client) -> None:
    reply = client.ask(ASKED, "together", temperature=0, logprobs=3)
    scored = reply["choices"][0]["logprobs"]
    assert scored["tokens"] == ["B"]
    assert next(iter(scored["top_logprobs"][0].items())) == ("B", scored["token_logprobs"][0])
    assert len(scored["top_logprobs"][0]) == 3
    assert len(scored["token_ids"]) == 1
    assert client.post(ASKED, "together", logprobs=True).status_code == 422


def test_deepinfra_gives_only_the_sampled_token_and_at_most_four_samples(client: Client) -> None:
    reply = client.ask(ASKED, "deepinfra", temperature=0, logprobs=True, top_logprobs=5)
    (entry,) = reply["choices"][0]["logprobs"]["content"]
    assert entry["token"] == "B"
    assert entry["top_logprobs"] == []
    assert len(client.ask(ASKED, "deepinfra", n=4)["choices"]) == 4
    assert client.post(ASKED, "deepinfra", n=5).status_code == 422


def test_deepinfra_tells_its_estimated_cost_at_times_and_rightly(client: Client) -> None:
    usages = [client.ask(q.text, "deepinfra")["usage"] for q in stream(20, seed=4)]
    told = [usage for usage in usages if "estimated_cost" in usage]
    assert 0 < len(told) < 20
    assert all(usage["estimated_cost"] == pytest.approx(usage["total_tokens"] * 1e-7) for usage in told)


def test_vllm_fills_up_with_missing_values_where_it_was_held_to_choices(client: Client) -> None:
    held: dict[str, Any] = {"structured_outputs": {"choice": LETTERS}}
    reply = client.ask(ASKED, "vllm", temperature=0, logprobs=True, top_logprobs=10, **held)
    top = {item["token"]: item["logprob"] for item in reply["choices"][0]["logprobs"]["content"][0]["top_logprobs"]}
    assert len(top) == 10
    assert {token for token, value in top.items() if value > -9999.0} == set(LETTERS)


def test_vllm_ignores_the_old_guided_fields_and_openai_refuses_what_it_does_not_know(client: Client) -> None:
    assert content(client.ask("Say hello.", "vllm", guided_choice=["Zebra"])) != "Zebra"
    refused = client.post("Say hello.", structured_outputs={"choice": ["Zebra"]})
    assert refused.status_code == 400
    assert "structured_outputs" in refused.json()["error"]["message"]


def test_openrouter_tells_the_cost_and_keeps_logprobs_back_at_times(client: Client) -> None:
    prompts = [f"{q.text}\n\nA. 1\nB. 2\n\nLetter only." for q in stream(24, seed=5)]
    replies = [client.ask(prompt, "openrouter", logprobs=True, top_logprobs=5) for prompt in prompts]
    silent = sum(reply["choices"][0]["logprobs"] is None for reply in replies)
    assert 0 < silent < 24
    assert all(r["usage"]["cost"] == pytest.approx(r["usage"]["total_tokens"] * 1e-7) for r in replies)


def test_minimal_silently_ignores_samples_logprobs_and_formats(client: Client) -> None:
    reply = client.ask("Say hello.", "minimal", n=3, logprobs=True, top_logprobs=5, **BY_SCHEMA)
    assert len(reply["choices"]) == 1
    assert reply["choices"][0]["logprobs"] is None
    assert content(reply).startswith("Hello")


@pytest.mark.parametrize("dialect", PLAIN)
def test_an_unknown_model_is_refused_except_by_llamacpp(client: Client, dialect: str) -> None:
    response = client.post(ASKED, dialect, model="nobody")
    if dialect == "llamacpp":
        assert response.json()["model"] == "sure"
    else:
        assert response.status_code == 404
        assert "nobody" in response.text


@pytest.mark.parametrize("dialect", OPENAI_LIKE)
def test_samples_differ_at_temperature_one_repeat_with_the_seed_and_agree_at_zero(client: Client, dialect: str) -> None:
    def texts(**fields: Any) -> list[str]:
        return [c["message"]["content"] for c in client.ask(ASKED, dialect, model="wordy", n=40, **fields)["choices"]]

    assert len(set(texts())) > 1
    assert texts(seed=1) == texts(seed=1)
    assert texts(seed=1) != texts(seed=2)
    assert len(set(texts(temperature=0))) == 1
    assert client.ask(ASKED, dialect, n=3)["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("dialect", ["openai", "vllm", "llamacpp", "together", "deepinfra", "openrouter"])
def test_a_schema_is_kept_and_its_letter_token_carries_the_distribution(client: Client, dialect: str) -> None:
    reply = client.ask(ASKED, dialect, temperature=0, **BY_SCHEMA)
    assert json.loads(content(reply)) == {"reason": "ok", "answer": "B"}
    if dialect in OPENAI_LIKE:
        scored = client.ask(ASKED, dialect, temperature=0, logprobs=True, top_logprobs=4, **BY_SCHEMA)
        tokens = scored["choices"][0]["logprobs"]["content"]
        assert "".join(token["token"] for token in tokens) == "".join([content(scored), *ENDS.get(dialect, [])])
        tokens = tokens[: len(tokens) - len(ENDS.get(dialect, []))]
        wavering = [t for t in tokens if {item["token"] for item in t["top_logprobs"]} == set(LETTERS)]
        assert [token["token"] for token in wavering] == ["B"]
        assert all(token["logprob"] < 0 for token in tokens)


@pytest.mark.parametrize("required", [[], ["value", "next"]])
def test_a_schema_that_holds_itself_is_kept(client: Client, required: list[str]) -> None:
    following = {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}
    node = {"type": "object", "properties": {"value": {"type": "integer"}, "next": following}, "required": required}
    schema = {"$ref": "#/$defs/Node", "$defs": {"Node": node}}
    held: Any = {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}}
    reply = json.loads(content(client.ask("What is 17 + 25?", "openai", **held)))
    jsonschema.validate(reply, schema)
    assert isinstance(reply["next"]["value"], int)


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]


class Order(BaseModel):
    """As people write them who have documents read."""

    due: date | None
    sent: datetime
    took: timedelta
    at: time
    id: UUID
    page: AnyUrl
    sure: float = Field(ge=0, le=1)
    size: int = Field(gt=50)
    counts: dict[str, int]
    pair: tuple[int, str]
    pets: list[Annotated[Cat | Dog, Field(discriminator="kind")]] = Field(min_length=1)


@pytest.mark.parametrize("dialect", ["openai", "minimal"])
def test_a_model_of_dates_bounds_and_unions_is_filled_in(client: Client, dialect: str) -> None:
    """In the prompt of a service without schemas, too; no test of such a model could pass before."""
    schema = Order.model_json_schema()
    held: Any = {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}}
    told = f"What is 17 + 25?\n\nAnswer with JSON valid against this JSON schema:\n{json.dumps(schema)}"
    reply = client.ask("What is 17 + 25?", dialect, **held) if dialect == "openai" else client.ask(told, dialect)
    order = Order.model_validate_json(content(reply).removeprefix("```json").removesuffix("```"))
    assert isinstance(order.due, date)
    assert order.pets == [Cat(kind="cat")]


def test_a_schema_whose_references_lead_round_in_a_circle_is_answered(client: Client) -> None:
    """It held the server up for ever."""
    schema = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"anyOf": [{"$ref": "#/$defs/a"}]}}}
    held: Any = {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}}
    assert content(client.ask("What is 17 + 25?", "openai", **held)) == "null"


@pytest.mark.parametrize(
    ("dialect", "fields"),
    [
        ("vllm", {"structured_outputs": {"choice": ["Zebra", "Quartz"]}}),
        ("vllm", {"structured_outputs": {"regex": "Zebra|Quartz"}}),
        ("deepinfra", {"response_format": {"type": "regex", "regex": "(Zebra|Quartz)"}}),
        ("together", {"response_format": {"type": "regex", "pattern": "(?:Zebra|Quartz)"}}),
    ],
)
def test_a_prompt_that_asks_for_something_else_is_still_held_to_the_choices(
    client: Client, dialect: str, fields: dict[str, Any]
) -> None:
    reply = client.ask("Say hello in one word.", dialect, n=4, **fields)
    assert {choice["message"]["content"] for choice in reply["choices"]} <= {"Zebra", "Quartz"}


@pytest.mark.parametrize(
    ("dialect", "fields"),
    [
        ("vllm", {"structured_outputs": {"choice": "A"}}),
        ("vllm", {"structured_outputs": {"choice": []}}),
        ("deepinfra", {"response_format": {"type": "regex", "regex": "("}}),
        ("deepinfra", {"response_format": {"type": "regex", "regex": "[0-9]{30}"}}),
        ("openai", {"response_format": {"type": "json_schema", "json_schema": 5}}),
        ("openai", {"n": 0}),
        ("openai", {"temperature": "hot"}),
        ("openai", {"max_tokens": 0}),
        ("openai", {"top_logprobs": 5}),
        ("openai", {"logprobs": True, "top_logprobs": 21}),
        ("openai", {"logprobs": 5}),
        ("llamacpp", {"logprobs": True, "stream": True, "tools": [{}]}),
    ],
)
def test_requests_that_a_service_would_refuse_are_refused(client: Client, dialect: str, fields: dict[str, Any]) -> None:
    assert client.post(ASKED, dialect, **fields).status_code == 400


@pytest.mark.parametrize(
    "function",
    [
        {"parameters": 5},
        {"parameters": {"properties": [1], "required": 5}},
        {"parameters": {"properties": {"a": 5, "b": {"enum": 7}}, "required": [{}, "a"]}},
    ],
    ids=str,
)
def test_a_tool_may_be_described_in_any_way(client: Client, function: dict[str, Any]) -> None:
    """The service broke down with status 500."""
    tools = [{"type": "function", "function": {"name": "add", **function}}]
    for choice in ("auto", "required", {"function": 5}):
        assert client.post(ASKED, "openai", tools=tools, tool_choice=choice).status_code == 200


def test_a_tool_that_has_to_be_called_gets_all_that_it_requires(client: Client) -> None:
    """Arguments that the question does not hold were left out, which no schema allows."""
    team = {"type": "string", "enum": ["billing", "shipping"]}
    properties = {"team": team, "urgent": {"type": "boolean"}, "note": {"type": "string"}}
    parameters = {"type": "object", "properties": properties, "required": ["team", "urgent"]}
    tools = [{"type": "function", "function": {"name": "file", "parameters": parameters}}]
    choice = client.post(ASKED, "openai", tools=tools, tool_choice="required", temperature=0).json()["choices"][0]
    arguments = json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])
    assert (arguments["team"], arguments["urgent"]) == ("billing", True)


def test_a_reply_in_json_mode_is_an_object(client: Client) -> None:
    reply = client.post(ASKED, "openai", response_format={"type": "json_object"}).json()
    assert json.loads(reply["choices"][0]["message"]["content"]).keys() == {"answer"}


def test_a_body_that_is_not_a_request_is_refused(client: Client) -> None:
    url = f"http://127.0.0.1:{client.pool.port}/openai/v1/chat/completions"
    for body in (b"", b"[1]", b"{", b'{"model": "sure"}', b'{"model": "sure", "messages": []}'):
        assert client.http.post(url, content=body).status_code == 400
    assert client.http.post(url.replace("openai", "gopher"), json={}).status_code == 404


def test_a_choice_offered_by_its_text_is_answered_by_its_text(client: Client) -> None:
    held: dict[str, Any] = {"structured_outputs": {"choice": ["32", "42", "44", "52"]}}
    assert content(client.ask("What is 17 + 25?", "vllm", temperature=0, **held)) == "42"


def test_without_choices_the_answer_comes_in_words(client: Client) -> None:
    assert content(client.ask("What is 17 + 25?", temperature=0)) == "The answer is 42."


def test_a_wordy_model_thinks_aloud_unless_told_not_to_or_short_of_tokens(client: Client) -> None:
    asked = ASKED.removesuffix("only.")
    long = content(client.ask(asked, model="wordy"))
    assert len(long.split()) > 15
    assert any(long.endswith(f"The answer is {letter}.") for letter in LETTERS)
    assert content(client.ask(asked, model="wordy", max_tokens=16)) in LETTERS
    assert content(client.ask(ASKED, model="wordy")) in LETTERS


def test_wrong_replies_have_their_own_length(client: Client) -> None:
    length: dict[bool, list[int]] = {True: [], False: []}
    for question in stream(60, seed=8):
        reply = client.ask(question.text, model="wordy", temperature=0)
        right = content(reply).endswith(f"The answer is {question.answer}.")
        length[right].append(reply["usage"]["completion_tokens"])
    assert sum(length[False]) / len(length[False]) > 1.5 * sum(length[True]) / len(length[True])


@pytest.mark.parametrize("limit", ["max_tokens", "max_completion_tokens"])
def test_the_token_limit_cuts_the_reply(client: Client, limit: str) -> None:
    limits: dict[str, Any] = {limit: 5}
    reply = client.ask("What is 17 + 25?", model="wordy", **limits)
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["usage"]["completion_tokens"] == 5


def test_probes_and_small_talk_get_a_sensible_answer(client: Client) -> None:
    assert content(client.ask("Reply with A")) == "A"
    assert content(client.ask('Please reply with only the word "pong".')) == "pong"
    assert content(client.ask("Pick one.\nA) tea\nB) coffee\nLetter only.")) in ("A", "B")
    assert content(client.ask("Hi!")) == content(client.ask("Hi!"))


def test_the_last_user_message_counts_and_may_come_in_parts(client: Client) -> None:
    parts = [{"type": "text", "text": "What is 17 + 25?"}, {"type": "text", "text": "\nA. 1\nB. 42\nOnly the letter."}]
    messages = [
        {"role": "user", "content": "What is 1 + 1?"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": parts},
    ]
    assert content(client.ask(messages, temperature=0)) == "B"


@pytest.mark.parametrize("dialect", PLAIN)
def test_a_stream_says_the_same_as_a_whole_reply(client: Client, dialect: str) -> None:
    whole = client.ask("What is 17 + 25?", dialect, model="wordy", temperature=0)
    response = client.post("What is 17 + 25?", dialect, model="wordy", temperature=0, stream=True)
    assert response.headers["content-type"] == "text/event-stream"
    chunks = events(response)
    choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    assert all(chunk["object"] == "chat.completion.chunk" for chunk in chunks)
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert choices[0]["delta"]["role"] == "assistant"
    assert "".join(choice["delta"].get("content") or "" for choice in choices) == content(whole)
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]


@pytest.mark.parametrize("dialect", PLAIN)
@pytest.mark.parametrize("asked", [False, True])
def test_when_a_stream_tells_its_usage_depends_on_the_dialect(client: Client, dialect: str, asked: bool) -> None:
    options: dict[str, Any] = {"stream_options": {"include_usage": True}} if asked else {}
    usage = client.ask(ASKED, dialect, temperature=0)["usage"]
    chunks = events(client.post(ASKED, dialect, temperature=0, stream=True, **options))
    told = [chunk for chunk in chunks if chunk.get("usage")]
    when = DIALECTS[dialect].stream_usage
    if when == "always" or when == "last" or (when == "asked" and asked):
        assert told == [chunks[-1]]
        assert told[0]["usage"] == usage
        assert bool(told[0]["choices"]) == (when == "last")
    else:
        assert told == []


def test_stream_chunks_carry_logprobs_in_the_form_of_the_dialect(client: Client) -> None:
    chunks = events(client.post(ASKED, stream=True, temperature=0, logprobs=True, top_logprobs=3))
    scored = [c["choices"][0]["logprobs"] for c in chunks if c["choices"] and c["choices"][0]["delta"].get("content")]
    assert [entry["token"] for entry in scored[0]["content"]] == ["B"]
    chunks = events(client.post(ASKED, "together", stream=True, temperature=0, logprobs=3))
    numbers = [c["choices"][0]["logprobs"] for c in chunks if c["choices"][0]["delta"].get("content")]
    assert all(isinstance(number, float) for number in numbers)


def test_a_stream_of_several_samples_keeps_them_apart(client: Client) -> None:
    chunks = events(client.post(ASKED, model="wordy", stream=True, n=3))
    said = dict.fromkeys(range(3), "")
    for chunk in chunks:
        for choice in chunk["choices"]:
            said[choice["index"]] += choice["delta"].get("content") or ""
    assert set(said.values()) <= set(LETTERS)


def test_each_dialect_lists_models_and_prices_in_its_form(client: Client) -> None:
    def listing(dialect: str) -> Any:
        return client.http.get(f"http://127.0.0.1:{client.pool.port}/{dialect}/v1/models").json()

    for dialect in PLAIN:
        models = listing(dialect)
        models = models if dialect == "together" else models["data"]
        assert [model["id"] for model in models] == ["sure", "wordy"]
    assert listing("together")[1]["pricing"]["output"] == 0.5
    assert listing("deepinfra")["data"][1]["metadata"]["pricing"]["output_tokens"] == 0.5
    assert listing("openrouter")["data"][1]["pricing"]["completion"] == "0.0000005"
