"""Tool calls: the same calls are the same candidate, and a loop of calls and results goes through the ensemble."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web

from focalroute import Answer, BadLabel, Endpoint, Ensemble, PoolError
from focalroute.answers.tool_calls import MOST_CALLS, ToolOffer, calls_text, parse_calls
from focalroute.core.errors import CallFailed
from focalroute.core.json_values import canonical, parsed
from focalroute.endpoints.capabilities import NONE
from focalroute.endpoints.elicit import plan
from focalroute.endpoints.wire import decode
from focalroute.serving.query import make_query
from focalroute.sim import SimulatedModel, SimulatedPool
from focalroute.sim.process import DialectName
from tests.loopback import Server, completion, json_reply, serving

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "The sum of two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}
QUESTION = "What is 17 + 25?"
PARAMS = {"tools": [ADD]}
BOTH = '{"a": 17, "b": 25}'


def call(arguments: Any, name: str = "add", id: str | None = "call_1") -> dict[str, Any]:
    """A tool call as a service writes it."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calling(*calls: Any, text: str | None = None) -> dict[str, Any]:
    """A completion that calls tools."""
    message = {"role": "assistant", "content": text, "tool_calls": list(calls)}
    return completion(choices=[{"index": 0, "message": message, "finish_reason": "tool_calls"}])


# -- the normal form --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ([call('{"a": 1, "b": 2}')], [call('{"b":2.0,"a":1}', id="else")], True),
        ([call('{"a": 1}')], [call('{"a": 2}')], False),
        ([call('{"a": 1}')], [call('{"a": "1"}')], False),
        ([call('{"a": 1}')], [call('{"a": true}')], False),
        ([call("{}")], [call("", name="add")], True),
        ([call("{}")], [call("{}", name="sub")], False),
        ([call('{"a": 1}'), call('{"a": 2}')], [call('{"a": 2}'), call('{"a": 1}')], True),
        ([call('{"a": 1}'), call('{"a": 1}')], [call('{"a": 1}')], False),  # two increments are not one
        ([call('{"a": 1}')], [{"name": "add", "arguments": {"a": 1}}], True),
    ],
)
def test_calls_are_the_same_if_names_and_arguments_are(one: Any, other: Any, same: bool) -> None:
    assert (calls_text(one) == calls_text(other)) is same


@pytest.mark.parametrize(
    "bad",
    [
        call('{"a": 1'),
        call("[1]"),
        call("17"),
        call('{"a": NaN}'),
        call('{"a": 1e999}'),
        call('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}"),
        call('{"a": ' + "9" * 5000 + "}"),
        call("{}", name=""),
        call(17),
        {"id": "x", "function": None},
        {"id": "x"},
        "add(1, 2)",
    ],
)
def test_a_call_that_cannot_be_read_spoils_the_reply(bad: Any) -> None:
    assert parse_calls([call('{"a": 1}'), bad]) is None
    with pytest.raises(ValueError, match="tool call"):
        calls_text([bad])


def test_every_call_has_an_id_of_its_own() -> None:
    """Whatever the service calls them, it is one that Mistral, too, takes back: a member may be asked to go on."""
    named = [call("{}", id=id) for id in ("3Xk9vQz0a", "3Xk9vQz0a", None, "", "call_9qWmFz", "call_49c8")]
    shaped = parse_calls(named)
    assert shaped is not None
    ids = [one["id"] for one in shaped]
    assert ids[0] == "3Xk9vQz0a"
    assert len(set(ids)) == len(named)
    assert all(len(one) == 9 and one.isascii() and one.isalnum() for one in ids)
    assert all(one["type"] == "function" and one["function"]["arguments"] == "{}" for one in shaped)


@pytest.mark.parametrize("arguments", [None, "", " ", "null", "{}", '"{}"', {}])
def test_a_function_may_take_no_arguments(arguments: Any) -> None:
    assert calls_text([call(arguments)]) == '[{"arguments":{},"name":"add"}]'


def test_unoffered_tools_missing_calls_and_wrong_arguments_are_named() -> None:
    one = parse_calls([call(BOTH)]) or ()
    assert ToolOffer.of(PARAMS).refusal(one) is None
    assert ToolOffer.of(PARAMS).refusal(()) is None
    assert "not offered" in (ToolOffer.of(PARAMS).refusal(parse_calls([call("{}", name="sub")]) or ()) or "")
    assert "required" in (ToolOffer.of({**PARAMS, "tool_choice": "required"}).refusal(()) or "")
    for mode, required in (("auto", False), ("required", True)):
        some = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": PARAMS["tools"]}}
        assert ToolOffer.of({**PARAMS, "tool_choice": some}).required is required
    assert "schema" in (ToolOffer.of(PARAMS).refusal(parse_calls([call('{"a": 17}')]) or ()) or "")
    assert ToolOffer.of({}).refusal(one) is None
    assert ToolOffer.of({"tools": 17, "tool_choice": "auto"}).refusal(one) is None


def test_json_in_one_form_can_always_be_stored() -> None:
    assert canonical(parsed('{"a": "\\ud800é", "b": 2e0}')) == '{"a":"?é","b":2}'
    with pytest.raises(ValueError, match="too deep"):
        parsed("[" * 100_000)
    with pytest.raises(ValueError, match="written"):
        canonical({1: 2, "a": 3})


# -- over HTTP --------------------------------------------------------------------------------------------------------


class Service:
    """Each model's reply."""

    def __init__(self) -> None:
        self.replies: dict[str, Any] = {}

    async def handle(self, _: web.Request, body: Any) -> web.StreamResponse:
        return json_reply(self.replies[body["model"]])


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def server(service: Service) -> Iterator[Server]:
    with serving(service.handle) as running:
        yield running


def ask(service: Service, server: Server, *replies: Any, **options: Any) -> Answer:
    """The answer of a plurality of members with these replies."""
    service.replies = {f"m{i}": reply for i, reply in enumerate(replies)}
    endpoints = [Endpoint(name, base_url=server.url, model=name) for name in service.replies]
    with Ensemble(endpoints, policy="plurality") as ensemble:
        return ensemble.ask(QUESTION, params={**PARAMS, **options.pop("params", {})}, **options)


def test_equal_calls_are_one_candidate_and_one_members_calls_are_returned(service: Service, server: Server) -> None:
    two = calling(call('{"b": 25, "a": 17}', id="mine00001"))
    other = calling(call('{"a":17,"b":25}', id="other"))
    answer = ask(service, server, calling(call('{"a": 1, "b": 2}')), two, other)
    assert answer.candidates == (
        '[{"arguments":{"a":1,"b":2},"name":"add"}]',
        '[{"arguments":{"a":17,"b":25},"name":"add"}]',
    )
    assert answer.tool_calls == (call('{"a":17,"b":25}', id="mine00001"),)
    assert (answer.text, answer.value) == ("", answer.candidates[1])
    assert answer.message == {"role": "assistant", "content": None, "tool_calls": [dict(answer.tool_calls[0])]}
    assert [c.candidate for c in answer.receipt.calls] == [0, 1, 1]
    assert server.received[0].body["tools"] == [ADD]


def test_text_and_calls_compete(service: Service, server: Server) -> None:
    said = completion("It is 42.")
    answer = ask(service, server, calling(call(BOTH)), said, said)
    assert (answer.text, answer.tool_calls) == ("It is 42.", ())
    assert answer.message == {"role": "assistant", "content": "It is 42."}
    answer = ask(service, server, calling(call(BOTH), text="Let me see."), calling(call(BOTH)), said)
    assert (answer.text, len(answer.tool_calls)) == ("Let me see.", 1)
    assert answer.message["content"] == "Let me see."


def test_a_number_is_not_read_out_of_arguments(service: Service, server: Server) -> None:
    answer = ask(
        service, server, calling(call('{"a": 42, "b": 0}')), calling(call('{"a": 42, "b": 0}')), answer="number"
    )
    assert answer.value == '[{"arguments":{"a":42,"b":0},"name":"add"}]'


@pytest.mark.parametrize(
    ("reply", "params", "why"),
    [
        (calling(call('{"a": 17,')), {}, "not a JSON object"),
        (calling(call("{}", name="rm")), {}, "not offered"),
        (completion("No."), {"tool_choice": "required"}, "calls no tool"),
        (completion("No."), {"tool_choice": {"type": "function", "function": {"name": "add"}}}, "calls no tool"),
    ],
)
def test_calls_that_cannot_be_used_are_that_members_failure(
    service: Service, server: Server, reply: Any, params: Any, why: str
) -> None:
    answer = ask(service, server, reply, calling(call(BOTH)), params=params)
    failure = answer.replies[0].error
    assert failure is not None
    assert failure.kind == "unusable"
    assert why in failure.message
    assert len(answer.tool_calls) == 1
    with pytest.raises(PoolError, match=why):
        ask(service, server, reply, params=params)


def test_a_closed_question_takes_no_notice_of_calls(service: Service, server: Server) -> None:
    reply = calling(call("{}"), text="B")
    answer = ask(service, server, reply, choices=["40", "42"], params={"tools": []})
    assert (answer.text, answer.tool_calls) == ("42", ())


# -- simulated models -------------------------------------------------------------------------------------------------


SPEAKERS: dict[str, DialectName] = {"a": "openai", "b": "together", "c": "vllm", "d": "openrouter", "e": "minimal"}


@pytest.fixture(scope="module")
def pool() -> Iterator[SimulatedPool]:
    """Models that are always right, one of each dialect."""
    with SimulatedPool([SimulatedModel(name, skill=1.0) for name in SPEAKERS], dialects=SPEAKERS) as running:
        yield running


@pytest.mark.parametrize("names", ["a", "b", "c", "d", "abcd"])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_loop_of_calls_and_results(pool: SimulatedPool, names: str, streamed: bool) -> None:
    """The calls are carried out here, and their results go back as messages."""

    def answered(messages: Any) -> Answer:
        if not streamed:
            return ensemble.ask(messages, params=PARAMS)
        with ensemble.stream(messages, params=PARAMS) as stream:
            said = "".join(stream)
        assert said == stream.answer.text
        return stream.answer

    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    with Ensemble([endpoint for endpoint in pool.endpoints if endpoint.name in names]) as ensemble:
        answer = answered(messages)
        messages.append(answer.message)
        for one in answer.tool_calls:
            arguments = json.loads(one["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": one["id"], "content": str(sum(arguments.values()))})
        assert len(messages) == 3
        assert answered(messages).text == "The answer is 42."


def test_simulated_models_err_and_the_ensemble_less() -> None:
    models = [SimulatedModel(name, skill=0.7, seed=3) for name in ("a", "b", "c", "d", "e")]
    single = fused = 0
    with SimulatedPool(models) as erring, Ensemble(erring.endpoints, policy="plurality") as ensemble:
        for a in range(10, 40):
            answer = ensemble.ask(f"What is {a} + {a + 3}?", params={**PARAMS, "temperature": 0})
            right = calls_text([{"name": "add", "arguments": {"a": a, "b": a + 3}}])
            fused += answer.value == right
            single += calls_text(answer.replies[0].tool_calls) == right
            ensemble.feedback(answer, label=[{"name": "add", "arguments": {"a": a, "b": a + 3}}])
        accuracies = [one.accuracy for one in ensemble.stats().endpoints.values()]
    assert sum(accuracies) / 5 == pytest.approx(0.7, abs=0.1)
    assert single < fused


def test_a_label_may_be_a_call(pool: SimulatedPool) -> None:
    right = {"name": "add", "arguments": {"a": 17, "b": 25}}
    with Ensemble(pool.endpoints[:1]) as ensemble:
        answer = ensemble.ask(QUESTION, params=PARAMS)
        ensemble.feedback(answer, label=right)
        ensemble.feedback(answer, label=list(answer.tool_calls), source="another")
        with pytest.raises(BadLabel, match="tool call"):
            ensemble.feedback(answer, label={"a": 17}, source="third")
        assert ensemble.stats().endpoints["a"].accuracy > 0.5


def test_a_service_that_ignores_tools_answers_with_text(pool: SimulatedPool) -> None:
    with Ensemble(pool.endpoints[-1:]) as ensemble:
        assert "42" in ensemble.ask(QUESTION, params=PARAMS).text


@pytest.mark.parametrize("asked", [{"answer": "number"}, {}, {"params": {**PARAMS, "tool_choice": "none"}}])
@pytest.mark.parametrize("said", ["42", None])
def test_a_call_of_a_tool_that_was_not_offered_is_not_an_answer(asked: dict[str, Any], said: str | None) -> None:
    """It was the answer, even where a number was asked for; and what the caller was to run."""

    async def handler(*_: Any) -> web.StreamResponse:
        return json_reply(calling(call("{}", "rm"), text=said))

    with serving(handler) as server, Ensemble([Endpoint("m", model="m", base_url=server.url)]) as ensemble:
        if said is None:
            with pytest.raises(PoolError, match="calls a tool, and none was offered"):
                ensemble.ask(QUESTION, **asked)
            return
        answer = ensemble.ask(QUESTION, **asked)
    assert (str(answer.value), answer.tool_calls) == ("42", ())


@pytest.mark.parametrize("where", ["signature", "thinking"])
def test_numbers_that_json_lacks_are_not_passed_on(where: str) -> None:
    """Python would write them as NaN, which no other program reads."""
    body = calling({**call(BOTH), "extra_content": {"google": {"odd": float("nan") if where == "signature" else 1}}})
    body["choices"][0]["message"]["reasoning_details"] = [{"odd": float("inf") if where == "thinking" else 1}]
    with pytest.raises(CallFailed, match="numbers that JSON lacks"):
        plan(make_query("?", params=PARAMS), NONE).read(decode(body))


@pytest.mark.parametrize("count", [MOST_CALLS, 30_000])
def test_calls_without_end_are_refused_before_they_are_checked(count: int) -> None:
    """Thirty thousand kept the event loop busy for eight seconds."""
    read = decode(calling(*[call(BOTH)] * count))
    made = plan(make_query("?", params=PARAMS), NONE)
    if count <= MOST_CALLS:
        assert len(made.read(read).tool_calls) == count
        return
    began = time.thread_time()
    with pytest.raises(CallFailed, match="more than 256 times"):
        made.read(read)
    assert time.thread_time() - began < 0.5


def test_calls_of_great_length_are_refused_before_they_are_checked() -> None:
    """Seven million characters kept the event loop busy for three seconds."""
    numbers = ",".join(map(str, range(1_000_000)))
    read = decode(calling(call(f'{{"a": [{numbers}], "b": 1}}')))
    made = plan(make_query("?", params={"tools": [{"type": "function", "function": {"name": "add"}}]}), NONE)
    began = time.thread_time()
    with pytest.raises(CallFailed, match="longer than 1048576 characters"):
        made.read(read)
    assert time.thread_time() - began < 0.5


def test_tools_of_the_endpoint_are_offered() -> None:
    async def handler(*_: Any) -> web.StreamResponse:
        return json_reply(calling(call(BOTH)))

    with serving(handler) as server:
        able = Endpoint("m", model="m", base_url=server.url, params=PARAMS)
        with Ensemble([able]) as ensemble:
            assert ensemble.ask(QUESTION).tool_calls[0]["function"]["name"] == "add"
