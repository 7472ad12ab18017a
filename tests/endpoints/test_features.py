"""Tools, images, schemas and every other parameter reach the endpoints that support them, and no others are asked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from focalroute import Endpoint, Ensemble, PoolError
from focalroute.endpoints.capabilities import Needs
from focalroute.endpoints.quirks import Quirks
from focalroute.endpoints.wire.refusals import unsupported
from focalroute.serving.query import make_query
from focalroute.sim import SimulatedModel, SimulatedPool
from focalroute.sim.process import DialectName
from tests.loopback import Server, completion, json_reply, serving, sse

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
LOOK: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "What is 17 + 25?"}, IMAGE]}]
HELD = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}


def test_the_features_that_a_query_needs() -> None:
    for little in (
        make_query("?"),
        make_query("?", params={"tools": [], "response_format": {"type": "json_object"}}),
        make_query("?", answer={"type": "object"}),
    ):
        assert not Needs(little)
    much = Needs(make_query(LOOK, params={"tools": [TOOL], "response_format": HELD}))
    assert much.features == ("images", "json_schema", "tools")
    assert (much.characters, much.words) == (len("What is 17 + 25?"), 5)
    assert Needs(make_query("word " * 500))


@pytest.mark.parametrize(
    ("prompt", "exceeds"),
    [
        ("word " * 2049, True),
        ("word " * 2048, False),
        ("x" * 99999, False),
        ("土星の衛星" * 1640, True),
        ("ดาวเสาร์" * 1025, True),
        ("土星の衛星" * 1630, False),
    ],
)
def test_only_what_surely_exceeds_a_context_length_is_said_to(prompt: str, exceeds: bool) -> None:
    """A word is at least a token, as are four letters where words are not spaced; the length counts double, as it may
    be out of date."""
    assert Needs(make_query(prompt)).surely_exceeds(1024) is exceeds


@pytest.mark.parametrize(
    ("message", "feature"),
    [
        ("No endpoints found that support tool use. Try disabling one.", "tools"),
        ("registry.ollama.ai/library/gemma:2b does not support tools", "tools"),
        ("tools param requires --jinja flag", "tools"),
        ("Function calling is not enabled for this model", "tools"),
        ("No endpoints found that support image input", "images"),
        ("image input is not supported - hint: if this is unexpected, you may need to provide the mmproj", "images"),
        ("This model does not support image_url content.", "images"),
        ("Invalid content type. image_url is only supported by certain models.", "images"),
        ("Qwen2.5-7B is not a multimodal model", "images"),
        ("At most 0 image(s) may be provided in one request.", "images"),
        ("Failed to deserialize: messages[0]: unknown variant `image_url`, expected `text`", "images"),  # DeepSeek
        ("this model is missing data required for image input", "images"),  # Ollama
        ("Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model.", "json_schema"),
        ("Structured outputs are not supported by this model", "json_schema"),
        # of the caller's own, which says nothing of the service
        ("You uploaded an unsupported image. Please make sure your image is valid.", None),
        ("Unsupported image format: webp", None),
        ("Invalid schema for function 'look': schema must be a JSON Schema of 'type: \"object\"'", None),
        ("Invalid schema for response_format 'answer': In context=(), 'oneOf' is not permitted.", None),
        ("tool_choice 'required' is not supported", None),
        ("max_tokens is too large", None),
        ("", None),
    ],
)
def test_the_features_that_a_service_says_it_lacks(message: str, feature: str | None) -> None:
    assert unsupported(message) == feature


def test_a_long_message_takes_no_time() -> None:
    assert unsupported("not support " * 500_000) is None


# -- those who lack it ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pool() -> Iterator[SimulatedPool]:
    """The first two take neither tools nor images; the second is a service that says so in other words."""
    speakers: dict[str, DialectName] = {"blunt": "openai", "routed": "openrouter", "able": "openai"}
    models = [SimulatedModel(name, tools=name == "able", images=name == "able", skill=1.0) for name in speakers]
    with SimulatedPool(models, dialects=speakers) as running:
        yield running


@pytest.mark.parametrize(
    ("query", "params", "lack"), [(LOOK, {}, "images"), ("Look.", {"tools": [TOOL]}, "tools")], ids=["images", "tools"]
)
def test_an_endpoint_that_refuses_a_feature_once_is_not_asked_for_it_again(
    pool: SimulatedPool, query: Any, params: Any, lack: str
) -> None:
    with Ensemble(pool.endpoints, policy="plurality") as ensemble:
        first = ensemble.ask(query, params=params)
        second = ensemble.ask(query, params=params)
        other = ensemble.ask("What is 17 + 25?")
        assert all(one.breaker == "closed" for one in ensemble.stats().endpoints.values())
    refused = {reply.endpoint: reply.error for reply in first.replies if reply.error}
    assert {name: error.lacks for name, error in refused.items()} == {"blunt": lack, "routed": lack}
    for error, status in zip(refused.values(), (400, 404), strict=True):
        assert error.message.startswith(f"HTTP {status} (takes no {lack}): ")
    assert [reply.endpoint for reply in second.replies] == ["able"]
    assert second.degraded == (f"takes no {lack}: blunt, routed could not be asked",)
    assert len(other.replies) == 3
    assert all(reply.ok for reply in other.replies)


def test_an_endpoint_declared_to_lack_a_feature_is_never_asked_for_it(pool: SimulatedPool) -> None:
    members = [replace(endpoint, images=endpoint.name == "able") for endpoint in pool.endpoints]
    before = pool.stats()["blunt"].calls
    with Ensemble(members, policy="plurality") as ensemble:
        assert [reply.endpoint for reply in ensemble.ask(LOOK).replies] == ["able"]
    assert pool.stats()["blunt"].calls == before


def test_if_no_endpoint_has_the_feature_the_error_says_so(pool: SimulatedPool) -> None:
    members = [replace(endpoint, images=False) for endpoint in pool.endpoints]
    with (
        Ensemble(members) as ensemble,
        pytest.raises(PoolError, match="blunt takes no images, routed") as caught,
    ):
        ensemble.ask(LOOK)
    assert caught.value.replies == ()


def test_a_long_prompt_goes_to_endpoints_that_take_it_or_is_refused_before_anything_is_paid(
    pool: SimulatedPool,
) -> None:
    short, _, long = (replace(endpoint, context_tokens=1024) for endpoint in pool.endpoints)
    long = replace(long, context_tokens=200_000)
    prompt, before = "word " * 2500 + "What is 17 + 25?", pool.stats()["blunt"].calls
    with Ensemble([short, long], policy="plurality") as ensemble:
        answer = ensemble.ask(prompt)
        assert [reply.endpoint for reply in answer.replies] == ["able"]
        assert answer.degraded == ("takes no prompt of 2,505 words: blunt could not be asked",)
    with Ensemble([short]) as ensemble, pytest.raises(PoolError) as caught:
        ensemble.ask(prompt)
    assert str(caught.value) == (
        "no endpoint can take this request (blunt takes no prompt of 2,505 words); "
        "see Endpoint.tools, .images, .json_schema and .context_tokens"
    )
    assert pool.stats()["blunt"].calls == before


def test_a_closed_question_may_have_an_image(pool: SimulatedPool) -> None:
    with Ensemble(pool.endpoints, policy="plurality") as ensemble:
        answer = ensemble.ask(LOOK, choices=["42", "44"])
    assert answer.text == "42"
    assert [reply.endpoint for reply in answer.replies if reply.ok] == ["able"]


def test_an_outage_does_not_teach_that_a_schema_is_refused() -> None:
    """Some services fail on a schema by a status that an outage has, too; then they answer without it."""
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    down, refusing = True, False

    async def handler(_: web.Request, body: Any) -> web.StreamResponse:
        fails = down or (refusing and "response_format" in body)
        return json_reply({}, 500) if fails else json_reply(completion('{"n": 6}'))

    able: Any = {"logprobs": False, "top_logprobs": 0, "n": False, "structured_choice": True, "stream_usage": False}
    with serving(handler) as server:
        with Ensemble([Endpoint("a", base_url=server.url, model="a", whole_choices=False, **able)]) as ensemble:
            with pytest.raises(PoolError):
                ensemble.ask("?", answer=schema, deadline_s=5)
            down = False
            ensemble.ask("?", answer=schema)
            assert "response_format" in server.received[-1].body
            refusing = True
            ensemble.ask("?", answer=schema)
            refusing = False
            ensemble.ask("?", answer=schema)
            assert "response_format" in server.received[-1].body
            refusing = True
            for _ in range(3):
                ensemble.ask("?", answer=schema)
        with_schema = ["response_format" in received.body for received in server.received[-5:]]
        assert with_schema == [True, False, True, False, False]


def test_a_declared_feature_is_believed_over_a_refusal(pool: SimulatedPool) -> None:
    blunt = replace(pool.endpoints[0], tools=True)
    with Ensemble([blunt]) as ensemble:
        for _ in range(2):
            with pytest.raises(PoolError, match="every asked endpoint failed"):
                ensemble.ask("Look.", params={"tools": [TOOL]})


def test_an_endpoint_that_lacks_the_feature_is_not_probed(tmp_path: Path) -> None:
    """The only one that could be probed with the image takes none."""
    models = [SimulatedModel("able", skill=1.0), SimulatedModel("blind", images=False, input_usd_per_1m=1)]
    with SimulatedPool(models) as small:
        members = [small.endpoints[0], replace(small.endpoints[1], images=False)]
        with Ensemble(members, probe_share=1.0) as ensemble:
            for _ in range(5):
                ensemble.feedback(ensemble.ask(LOOK), reward=1)
        assert small.stats()["blind"].calls == 0


# -- what is passed on ------------------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[Server]:
    async def handler(_: web.Request, __: Any) -> web.StreamResponse:
        return json_reply(completion("A"))

    with serving(handler) as running:
        yield running


PARAMS = {
    "tools": [TOOL], "parallel_tool_calls": False, "seed": 7, "response_format": HELD,
    "top_k": 3, "logit_bias": {"7": -100}, "stop": ["\n"], "extra": {"nested": [1, None, "é"]},
}  # fmt: skip


@pytest.mark.parametrize("asked", [{}, {"choices": ["one", "two"]}])
def test_every_parameter_and_message_goes_on_unchanged(server: Server, asked: Any) -> None:
    messages: list[Any] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "What is it?"}, IMAGE]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": {}}]},
        {"role": "tool", "tool_call_id": "c", "content": "17"},
        {"role": "user", "content": "And?", "name": "Ann"},
    ]
    member = Endpoint(
        "m", base_url=server.url, model="m", logprobs=False, top_logprobs=0, n=False, structured_choice=False,
        stream_usage=True, params={"seed": 1, "min_p": 0.1},
    )  # fmt: skip
    with Ensemble([member]) as ensemble:
        params = {**PARAMS, "tool_choice": "none" if asked else "auto"}
        ensemble.ask(messages, params=params, **asked)
    body = server.received[-1].body
    assert {name: body[name] for name in params} == params  # the query's seed, not the endpoint's
    assert body["min_p"] == 0.1
    assert body["messages"][:4] == messages[:4]
    assert body["messages"][4] == messages[4] or asked


@pytest.mark.parametrize(
    ("service", "role"), [("openai", "developer"), ("azure", "developer"), ("mistral", "system"), (None, "system")]
)
def test_a_developer_s_message_goes_out_as_a_system_s_where_that_role_is_unknown(
    service: str | None, role: str
) -> None:
    """DeepSeek and Mistral refuse the role, and most models' templates know none of its name."""
    quirks = Quirks(Endpoint("e", model="m", service=service, base_url="http://h/v1"))
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "?"}]
    sent = quirks.fit({"model": "m", "messages": messages})["messages"]
    assert sent == [{"role": role, "content": "Be brief."}, messages[1]]


#: What a message with tool calls, or the call, is signed with, and by whom.
DETAILS = [{"type": "reasoning.text", "text": "It asks what.", "signature": "EqQB", "index": 0}]
SIGNED: dict[str, Any] = {
    "gemini": ({}, {"extra_content": {"google": {"thought_signature": "AY89"}}}),
    "openrouter": ({"reasoning_details": DETAILS}, {}),
    "deepseek": ({"reasoning_content": "It asks what."}, {}),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("service", [None, "gemini", "openrouter", "deepseek", "moonshot", "openai"])
@pytest.mark.parametrize("signer", SIGNED)
def test_signatures_of_tool_calls_go_back_only_to_their_service(signer: str, service: str | None, stream: bool) -> None:
    """It refuses a conversation without the signature; services that know no such field may refuse one with it."""
    on_message, on_call = SIGNED[signer]
    call: dict[str, Any] = {"id": "a1b2c3d4e", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    call |= on_call

    async def calls(request: web.Request, body: Any) -> web.StreamResponse:
        message = {"role": "assistant", "content": None, **on_message, "tool_calls": [call]}
        what = "delta" if body.get("stream") else "message"
        whole = completion(choices=[{"index": 0, what: message, "finish_reason": "tool_calls"}])
        return await sse(request, whole, "[DONE]") if body.get("stream") else json_reply(whole)

    with serving(calls) as server:
        member = Endpoint("m", base_url=server.url, model="m", service=service, api_key="unused-in-this-test")
        with Ensemble([member]) as ensemble, ensemble.as_openai() as client:
            answer = ensemble.ask("What is it?", params={"tools": [TOOL]})
            assert answer.message == {"role": "assistant", "content": None, **on_message, "tool_calls": [call]}
            said: dict[str, Any] = {"role": "assistant"}
            options: Any = {"model": "focalroute", "tools": [TOOL]}
            if stream:
                with client.chat.completions.create(messages=LOOK, stream=True, **options) as chunks:
                    for chunk in chunks:
                        for name, value in chunk.choices[0].delta.model_dump(exclude_unset=True).items():
                            said[name] = value
            else:
                said = client.chat.completions.create(messages=LOOK, **options).choices[0].message.model_dump()
            done = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "17"}
            ensemble.ask([LOOK[0], said, done], params={"tools": [TOOL]})
        _, sent, _ = server.received[-1].body["messages"]
    likewise = signer == "deepseek" and service == "moonshot"
    kept = likewise or service in (None, signer)
    both = ("deepseek", "moonshot")
    wanted = {"reasoning_content": " "} if service in both else {}  # which they want of what others said, too
    wanted |= on_message if kept else {}
    assert {name: value for name, value in sent.items() if name.startswith("reasoning")} == wanted
    assert ("extra_content" in sent["tool_calls"][0]) is (kept and signer == "gemini")
