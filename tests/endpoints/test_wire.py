"""The chat completion format: what is sent in each dialect, and what is made of replies, hostile ones included."""

from __future__ import annotations

import contextlib
import gzip
import json
import math
import re
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from focalroute.core.config import Dialect
from focalroute.core.errors import CallFailed
from focalroute.core.records import Usage
from focalroute.endpoints.wire import MAX_REPLY_BYTES, Completion, Request, decode, decode_bytes, encode
from focalroute.endpoints.wire.stream import StreamDecoder

MESSAGES = ({"role": "user", "content": "Hi"},)
DIALECTS: tuple[Dialect, ...] = ("openai", "together", "deepinfra", "vllm", "llamacpp", "openrouter")

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just(10**400),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
LOGPROBS = st.fixed_dictionaries(
    {},
    optional={
        "content": st.lists(
            st.fixed_dictionaries({}, optional=dict.fromkeys(("token", "logprob", "top_logprobs"), JSON)) | JSON
        ),
        "tokens": JSON | st.lists(st.text(max_size=3), max_size=3),
        "token_logprobs": JSON | st.lists(st.floats(), max_size=3),
        "top_logprobs": JSON | st.lists(st.dictionaries(st.text(max_size=3), st.floats(), max_size=3), max_size=3),
    },
)
CHOICE = st.fixed_dictionaries(
    {},
    optional={
        "message": JSON | st.fixed_dictionaries({}, optional={"content": JSON, "tool_calls": JSON}),
        "delta": JSON | st.fixed_dictionaries({}, optional={"content": JSON, "tool_calls": JSON}),
        "logprobs": JSON | LOGPROBS,
        "finish_reason": JSON,
        "index": JSON,
        "error": JSON,
    },
)
USAGE = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(
        ("prompt_tokens", "completion_tokens", "prompt_tokens_details", "cost", "estimated_cost"), JSON
    ),
)
REPLY = st.fixed_dictionaries(
    {},
    optional={
        "choices": JSON | st.lists(CHOICE | JSON, max_size=3), "usage": JSON | USAGE,
        "model": JSON, "id": JSON, "error": JSON,
    },
)  # fmt: skip


def body(dialect: Dialect, **wanted: Any) -> dict[str, Any]:
    return encode(Request(MESSAGES, 8, **wanted), "m", dialect)


def reply(text: Any = "A", *, usage: Any = None, **choice: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"content": text}, "finish_reason": "stop", **choice}], "usage": usage}


def entry(token: str, logprob: Any, **top: Any) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "top_logprobs": [{"token": t, "logprob": v} for t, v in top.items()]}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_plain_request_is_the_same_in_every_dialect(dialect: Dialect) -> None:
    """Nothing but model, messages and the token limit is sent where nothing else is wanted."""
    assert body(dialect) == {"model": "m", "messages": list(MESSAGES), "max_tokens": 8}


@pytest.mark.parametrize(
    ("dialect", "top", "sent"),
    [
        ("openai", 5, {"logprobs": True, "top_logprobs": 5}),
        ("vllm", 0, {"logprobs": True}),
        ("together", 5, {"logprobs": 5}),
        ("together", 0, {"logprobs": 1}),
        ("deepinfra", 5, {"logprobs": True}),
    ],
)
def test_log_probabilities_are_asked_for_in_the_service_s_own_way(
    dialect: Dialect, top: int, sent: dict[str, Any]
) -> None:
    """Together takes an integer, DeepInfra no number at all, the others a flag and a number."""
    assert {k: v for k, v in body(dialect, top_logprobs=top).items() if "logprobs" in k} == sent


def test_an_answer_is_held_to_choices_in_the_service_s_own_way() -> None:
    """vLLM gets choices, Together and DeepInfra an escaped regular expression, the others a strict JSON schema."""
    choices = ("A", "b.c")
    assert body("vllm", choices=choices)["structured_outputs"] == {"choice": ["A", "b.c"]}
    regular: tuple[tuple[Dialect, str], ...] = (("together", "pattern"), ("deepinfra", "regex"))
    for dialect, name in regular:
        sent = body(dialect, choices=choices)["response_format"]
        assert sent["type"] == "regex"
        assert re.fullmatch(sent[name], "b.c")
        assert not re.fullmatch(sent[name], "bxc")
    plain: tuple[Dialect, ...] = ("openai", "llamacpp", "openrouter")
    for dialect in plain:
        schema = body(dialect, choices=choices)["response_format"]["json_schema"]
        assert schema["strict"] is True
        assert schema["schema"]["properties"]["answer"]["enum"] == ["A", "b.c"]


def test_deepinfra_is_never_asked_for_more_than_four_samples() -> None:
    """DeepInfra refuses n above 4; the others get what is wanted."""
    assert body("deepinfra", n=10)["n"] == 4
    assert body("together", n=10)["n"] == 10


def test_the_caller_s_params_win_and_pass_unchanged() -> None:
    """Provider parameters go into the body as they are; a token limit of theirs replaces ours under either name."""
    sent = encode(
        Request(MESSAGES, 8, 0.0, params={"temperature": 1, "max_completion_tokens": 99, "x": {"y": 1}}), "m", "openai"
    )
    assert sent["temperature"] == 1
    assert sent["x"] == {"y": 1}
    assert sent["max_completion_tokens"] == 99
    assert "max_tokens" not in sent


def test_a_stream_asks_for_its_usage_unless_told_otherwise() -> None:
    """Usage is asked for where it does not come by itself, and not of servers that refuse the field."""
    assert body("openai", stream=True)["stream_options"] == {"include_usage": True}
    assert "stream_options" not in body("openai", stream=True, stream_usage=False)
    assert "stream_options" not in body("together", stream=True)
    assert "stream" not in body("openai")


def test_usage_and_the_provider_s_own_cost_are_read_exactly() -> None:
    """Cached and reasoning tokens and the cost to the last digit, under either provider's name for it."""
    usage = {
        "prompt_tokens": 100, "completion_tokens": 20, "cost": 0.00014265,
        "prompt_tokens_details": {"cached_tokens": 64}, "completion_tokens_details": {"reasoning_tokens": 12},
    }  # fmt: skip
    assert decode(reply(usage=usage)).usage == Usage(100, 20, 64, 12, Decimal("0.00014265"))
    estimated = {"prompt_tokens": 1, "completion_tokens": 1, "estimated_cost": 1.65e-05}
    assert decode(reply(usage=estimated)).usage == Usage(1, 1, cost_usd=Decimal("0.0000165"))
    ticks = {"prompt_tokens": 1, "completion_tokens": 1, "cost_in_usd_ticks": 37756000}  # xAI's
    assert decode(reply(usage=ticks)).usage == Usage(1, 1, cost_usd=Decimal("0.0037756"))


@pytest.mark.parametrize(
    "usage",
    [
        None, [], {}, {"prompt_tokens": 1}, {"prompt_tokens": -1, "completion_tokens": 1},
        {"prompt_tokens": 10**15, "completion_tokens": 1}, {"prompt_tokens": "9", "completion_tokens": 1},
        {"prompt_tokens": True, "completion_tokens": 1}, {"prompt_tokens": 1.5, "completion_tokens": 1},
        {"prompt_tokens": 0, "completion_tokens": 0}, {"prompt_tokens": math.inf, "completion_tokens": 1},
        {"prompt_tokens": 5, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 6}},
    ],
)  # fmt: skip
def test_incredible_usage_is_missing_not_zero(usage: Any) -> None:
    """Absent, negative, absurd or contradictory token counts are no usage at all, nor is a reply of no tokens."""
    assert decode(reply(usage=usage)).usage is None
    stream = StreamDecoder()
    stream.feed((chunk("A", "stop") + chunk(usage={"prompt_tokens": 1, "completion_tokens": 2})).encode())
    stream.feed(chunk(usage=usage).encode())
    assert stream.finish().usage == Usage(1, 2)


def test_a_whole_number_may_be_written_as_a_float() -> None:
    """It was billed as an unknown usage: at all that was reserved."""
    assert decode(reply(usage={"prompt_tokens": 10.0, "completion_tokens": 5.0})).usage == Usage(10, 5)


@pytest.mark.parametrize("cost", [-1, "NaN", math.inf, math.nan, True, [], "x", 1e12, "1_000"])
def test_an_incredible_cost_is_unknown(cost: Any) -> None:
    """A cost that cannot be one leaves the usage without a cost."""
    assert decode(reply(usage={"prompt_tokens": 1, "completion_tokens": 2, "cost": cost})).usage == Usage(1, 2)


@pytest.mark.parametrize(
    ("usage", "cost"),
    [
        ({"cost": 0.0005, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.01}}, "0.0105"),
        ({"cost": 0, "cost_details": {"upstream_inference_cost": "0.019"}}, "0.019"),
        ({"cost": 99999, "cost_details": {"upstream_inference_cost": "1e-24"}}, f"99999.{'0' * 23}1"),
        ({"cost": 0.0005, "cost_details": {"upstream_inference_cost": None}}, "0.0005"),
        ({"cost": 0.01, "is_byok": False, "cost_details": {"upstream_inference_cost": 0.01}}, "0.01"),
        ({"cost": 0.0005, "cost_details": {"upstream_inference_cost": "1_000"}}, None),
        ({"cost": 0.0005, "cost_details": {"upstream_inference_cost": -0.0001}}, None),
        ({"cost": 99999, "cost_details": {"upstream_inference_cost": 2}}, None),
        ({"cost_details": {"upstream_inference_cost": 0.01}}, None),
    ],
)
def test_the_upstream_charge_to_your_own_key_is_part_of_the_cost(usage: dict[str, Any], cost: str | None) -> None:
    """OpenRouter reports it beside its fee; where either is incredible the sum is unknown."""
    found = decode(reply(usage={"prompt_tokens": 1, "completion_tokens": 2} | usage)).usage
    assert found == Usage(1, 2, cost_usd=None if cost is None else Decimal(cost))


def test_reasoning_counted_apart_is_counted_in() -> None:
    """Where reasoning tokens exceed completion tokens they were not among them, and are added."""
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "completion_tokens_details": {"reasoning_tokens": 30}}
    assert decode(reply(usage=usage)).usage == Usage(1, 32, reasoning_tokens=30)


@pytest.mark.parametrize(
    ("usage", "found"),
    [
        ({"input_tokens": 5, "output_tokens": 2}, Usage(5, 2)),
        ({"input_tokens": 5, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 2}, Usage(5, 2, 4)),
        ({"output_tokens": 9, "output_tokens_details": {"reasoning_tokens": 7}, "input_tokens": 1}, Usage(1, 9, 0, 7)),
        ({"prompt_tokens": 5, "completion_tokens": 2, "input_tokens": 0, "output_tokens": 0}, Usage(5, 2)),
        ({"prompt_tokens": 5, "completion_tokens": 2, "input_tokens": None}, Usage(5, 2)),
        ({"prompt_tokens": None, "completion_tokens": None, "input_tokens": 5, "output_tokens": 2}, Usage(5, 2)),
        ({"prompt_tokens": 5, "total_tokens": 7}, Usage(5, 2)),
        ({"prompt_tokens": 5, "completion_tokens": None, "total_tokens": 5}, None),
    ],
)
def test_usage_in_another_api_s_terms_is_read(usage: dict[str, Any], found: Usage | None) -> None:
    """As gateways pass them on; and what was generated is what the prompt leaves of the total. It had no cost."""
    assert decode(reply(usage=usage)).usage == found


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("model_length", "length"), ("MAX_TOKENS", "length"), ("max_tokens", "length"), ("LENGTH", "length"),
        ("SAFETY", "content_filter"), ("content_filter: PROHIBITED_CONTENT", "content_filter"),
        ("sensitive", "content_filter"), ("stop", "stop"), ("STOP", "STOP"), ("eos", "eos"), (None, None),
    ],
)  # fmt: skip
def test_a_reply_that_was_cut_or_withheld_has_openai_s_name_of_it(theirs: str | None, ours: str | None) -> None:
    """An intermediate result of a reply that Mistral cut at the end of its context was the answer."""
    assert decode(reply(finish_reason=theirs)).choices[0].finish_reason == ours
    if theirs is not None:
        stream = StreamDecoder()
        stream.feed(chunk("A", theirs).encode())
        assert stream.finish().choices[0].finish_reason == ours


@pytest.mark.parametrize("reason", ["error", "abort", "insufficient_system_resource", "network_error"])
def test_a_reply_that_its_service_broke_off_is_a_failure(reason: str) -> None:
    """Its text until then was taken for the answer."""
    for read in (
        lambda: decode(reply(finish_reason=reason)),
        lambda: StreamDecoder().feed(chunk("A", reason).encode()),
    ):
        with pytest.raises(CallFailed) as caught:
            read()
        assert caught.value.failure.retryable
        assert caught.value.reported == reason


def test_openai_log_probabilities_are_read() -> None:
    """Each token comes with its own log-probability and those of the alternatives; "none" among these is dropped."""
    content = [entry("A", -0.1, A=-0.1, B=-2.5, C=-9999.0, D=math.nan)]
    tokens = decode(reply(logprobs={"content": content})).choices[0].tokens
    assert tokens is not None
    assert tokens[0].text == "A"
    assert tokens[0].logprob == -0.1
    assert tokens[0].top == {"A": -0.1, "B": -2.5}


@pytest.mark.parametrize("top", [[{"A": -0.1, "B": -2.5}], {"A": -0.1, "B": -2.5}])
def test_together_log_probabilities_are_read(top: Any) -> None:
    """Together's parallel lists, its alternatives as a list of objects or as one object."""
    logprobs = {"tokens": ["A", "."], "token_ids": [1, 2], "token_logprobs": [-0.1, -0.2], "top_logprobs": top}
    tokens = decode(reply(logprobs=logprobs)).choices[0].tokens
    assert tokens is not None
    assert [token.text for token in tokens] == ["A", "."]
    assert tokens[0].top == {"A": -0.1, "B": -2.5}
    assert tokens[1].top == {}


def test_alternatives_that_look_the_same_add_up() -> None:
    """Two tokens with one spelling are two masses of the same text."""
    content = [{"token": "A", "logprob": -1, "top_logprobs": [{"token": "A", "logprob": math.log(0.25)}] * 2}]
    tokens = decode(reply(logprobs={"content": content})).choices[0].tokens
    assert tokens is not None
    assert math.exp(tokens[0].top["A"]) == pytest.approx(0.5)


@pytest.mark.parametrize(
    "content",
    [
        [], None, "x", [entry("A", None)], [entry("A", math.nan)], [entry("A", 0.5)], [entry("A", -9999.0)],
        [entry("A", -math.inf)], [entry("A", 0.0, A=0.0, B=0.0)], [entry("A", 0), entry("B", 0)],
        [entry("A", -0.1, A=-0.1, B=-0.1)], [{"logprob": -1}], [entry("A", -0.1), {}], [entry("A", True)],
    ],
)  # fmt: skip
def test_incredible_log_probabilities_are_missing(content: Any) -> None:
    """NaN, positive, -9999, all-zero, partial or over-full log-probabilities are not confidence: they are not there."""
    assert decode(reply(logprobs={"content": content})).choices[0].tokens is None


def test_a_certain_token_with_doubted_alternatives_is_credible() -> None:
    """A zero is real where its alternatives say so."""
    assert decode(reply(logprobs={"content": [entry("A", 0.0, A=0.0, B=-17.5)]})).choices[0].tokens is not None


@pytest.mark.parametrize(
    "payload",
    [
        None, 3, "text", [], {}, {"choices": []}, {"choices": {}}, {"choices": [None]}, {"choices": [{}]},
        {"choices": [{"message": "hi"}]}, {"choices": [{"message": {"content": 7}}]}, {"error": "no"},
        {"choices": [{"message": {"content": "x"}, "finish_reason": "error"}]}, {"object": "error", "message": "no"},
    ],
)  # fmt: skip
def test_a_body_that_is_not_a_chat_completion_is_a_protocol_failure(payload: object) -> None:
    """A malformed reply is a typed failure."""
    with pytest.raises(CallFailed) as caught:
        decode(payload)
    assert caught.value.failure.kind == "protocol"


def test_an_error_in_a_successful_response_keeps_its_status_and_usage() -> None:
    """OpenRouter reports upstream faults in the body of a 200; what it cost is kept."""
    usage = {"prompt_tokens": 3, "completion_tokens": 0}
    with pytest.raises(CallFailed) as caught:
        decode({"error": {"code": 429, "message": "SECRET"}, "usage": usage})
    assert caught.value.failure.kind == "status"
    assert caught.value.failure.status == 429
    assert caught.value.failure.retryable
    assert caught.value.usage == Usage(3, 0)
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("raw", [b"", b"<html>", b"\xff\xfe", b"[" * 100_000, b'{"choices":'])
def test_a_body_that_is_not_json_is_a_protocol_failure(raw: bytes) -> None:
    """Bytes of any kind, deep nesting included, end as a typed failure."""
    with pytest.raises(CallFailed) as caught:
        decode_bytes(raw)
    assert caught.value.failure.kind == "protocol"


def test_content_may_be_absent_or_in_parts_and_is_always_storable() -> None:
    """Null content is empty text (a tool call), text parts are joined, lone surrogates are replaced."""
    calls = [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]
    choice = decode({"choices": [{"message": {"content": None, "tool_calls": calls}}]}).choices[0]
    assert choice.text == ""
    assert choice.tool_calls == tuple(calls)
    assert decode(reply([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])).choices[0].text == "ab"
    assert decode(reply("\ud800!")).choices[0].text.encode() == b"?!"


@given(JSON | REPLY)
@settings(max_examples=60)
def test_decode_gives_a_completion_or_a_typed_failure_for_any_json(payload: object) -> None:
    """Whatever JSON a service answers, nothing else comes out."""
    with contextlib.suppress(CallFailed):
        assert isinstance(decode(payload), Completion)


@given(st.lists(JSON | REPLY, max_size=4), st.integers(1, 40))
@settings(max_examples=50)
def test_a_stream_of_any_json_gives_a_completion_or_a_typed_failure(events: list[Any], size: int) -> None:
    """Whatever events come, in pieces of whatever size."""
    raw = "".join(f"data: {json.dumps(event)}\n\n" for event in events).encode()
    decoder = StreamDecoder()
    with contextlib.suppress(CallFailed):
        for i in range(0, len(raw), size):
            decoder.feed(raw[i : i + size])
        assert isinstance(decoder.finish(), Completion)


def chunk(text: str | None = None, finish: str | None = None, **fields: Any) -> str:
    delta = {} if text is None else {"content": text}
    return (
        "data: " + json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **fields}) + "\n\n"
    )


@given(st.integers(1, 7), st.sampled_from(["\n", "\r\n", "\r"]))
@settings(max_examples=12)
def test_a_stream_gives_the_same_text_however_it_is_cut_into_chunks(size: int, newline: str) -> None:
    """Chunk borders within characters, lines or newlines do not matter, nor do comments and other fields."""
    usage = {"prompt_tokens": 1, "completion_tokens": 2}
    text = (
        ": ping\n\n"
        + chunk("Zü", id="i", model="m")
        + "event: x\n"
        + chunk("rich", "stop")
        + chunk(usage=usage)
        + "data: [DONE]\n\n"
    )
    raw = text.replace("\n", newline).encode()
    decoder = StreamDecoder()
    pieces = [decoder.feed(raw[i : i + size]) for i in range(0, len(raw), size)]
    whole = decoder.finish()
    assert "".join(pieces) == whole.choices[0].text == "Zürich"
    assert whole.usage == Usage(1, 2)
    assert (whole.id, whole.model, whole.choices[0].finish_reason) == ("i", "m", "stop")


def test_a_stream_cut_before_its_finish_reason_keeps_the_usage_it_reported() -> None:
    """Even with [DONE], a reply whose finish reason never came was cut."""
    for tail in ("", "data: [DONE]\n\n"):
        decoder = StreamDecoder()
        decoder.feed((chunk("Zü", usage={"prompt_tokens": 1, "completion_tokens": 2}) + tail).encode())
        with pytest.raises(CallFailed) as caught:
            decoder.finish()
        assert caught.value.failure.kind == "protocol"
        assert caught.value.usage == Usage(1, 2)


def test_a_stream_without_the_done_mark_is_whole_once_it_says_why_it_ended() -> None:
    """Some servers never send [DONE], and some end without the last empty line."""
    decoder = StreamDecoder()
    decoder.feed(chunk("A", "stop").rstrip().encode())
    assert decoder.finish().choices[0].text == "A"


def test_streamed_log_probabilities_and_tool_calls_are_put_together() -> None:
    """Tokens of all chunks in order; a tool call's arguments joined."""
    decoder = StreamDecoder()
    for i, piece in enumerate(("A", ".")):
        call = {"index": 0, "function": {"arguments": "{}"[i]}} | ({"id": "7"} if i == 0 else {})
        choice = {
            "delta": {"content": piece, "tool_calls": [call]},
            "logprobs": {"content": [entry(piece, -0.5)]},
            "finish_reason": "stop" if i else None,
        }
        decoder.event({"choices": [choice]})
    whole = decoder.finish().choices[0]
    assert whole.tokens is not None
    assert [token.text for token in whole.tokens] == ["A", "."]
    assert whole.tool_calls[0]["id"] == "7"
    assert whole.tool_calls[0]["function"]["arguments"] == "{}"


def call_piece(name: str | None = None, arguments: Any = None, **told: Any) -> dict[str, Any]:
    """A piece of a tool call."""
    function = {"name": name, "arguments": arguments}
    return {**told, "function": {key: value for key, value in function.items() if value is not None}}


PARIS, ROME = '{"city": "Paris"}', '{"city": "Rome"}'


@pytest.mark.parametrize(
    ("pieces", "calls"),
    [
        ([[call_piece("f", PARIS, id="a"), call_piece("f", ROME, id="b")]], [PARIS, ROME]),  # Gemini numbers none
        ([[call_piece("f", PARIS, id="a", index=0)], [call_piece("f", ROME, id="b", index=0)]], [PARIS, ROME]),
        ([[call_piece("f", id="a", index=None)], [call_piece(arguments=PARIS, index=None)]], [PARIS]),
        ([[call_piece("f", id="a", index=0)], [call_piece(arguments=PARIS, id="b", index=0)]], [PARIS]),  # vLLM
        ([[call_piece("f", PARIS[:5], id="a", index=0)], [call_piece("f", PARIS[5:], id="a", index=0)]], [PARIS]),
        ([[call_piece("f", PARIS, index=0)], [call_piece("f", ROME, index=0)]], [PARIS, ROME]),
        ([[call_piece("f", PARIS[:5], index=0)], [call_piece("f", PARIS[5:], index=0)]], [PARIS]),
        ([[{"index": 0, "id": "a"}], [call_piece("f", PARIS, index=0)]], [PARIS]),
        ([[call_piece(arguments=PARIS[:5], index=0)], [call_piece("f", PARIS[5:], id="a", index=0)]], [PARIS]),
        ([[call_piece("f", {"city": "Paris"}, index=0)]], [PARIS]),
        ([[call_piece("f", ROME, id="b", index=7)], [call_piece("f", PARIS, id="a", index=2)]], [PARIS, ROME]),
        ([[{"function": ["f"]}, {"function": "f"}], [call_piece("f", PARIS)]], [PARIS]),
        ([[call_piece("f", PARIS, id=["a"], index=0)], [call_piece("f", ROME, id={}, index=-1), None, 5]], [PARIS]),
    ],
)
def test_tool_calls_are_told_apart_however_they_are_numbered(pieces: list[Any], calls: list[str]) -> None:
    decoder = StreamDecoder()
    for piece in pieces:
        decoder.event({"choices": [{"index": 0, "delta": {"tool_calls": piece}, "finish_reason": "tool_calls"}]})
    found = [call["function"] for call in decoder.finish().choices[0].tool_calls]
    assert found == [{"name": "f", "arguments": call} for call in calls]


def test_fields_that_openrouter_wants_back_are_assembled() -> None:
    """Text joined, with its signature; what is encrypted stays apart, and what is none of it is left out."""
    text = {"type": "reasoning.text", "index": 0, "format": "anthropic-claude-v1"}
    pieces: list[Any] = [
        [{**text, "text": "It ", "signature": None}],
        [{**text, "text": "asks."}, 5],
        [{**text, "signature": "EqQB"}],
        {},
        [
            {"type": "reasoning.encrypted", "index": 0, "data": "a"},
            {"type": "reasoning.encrypted", "index": 0, "data": "b"},
        ],
        [
            {"type": "reasoning.summary", "index": 1, "summary": "What"},
            {"type": "reasoning.summary", "index": 1, "summary": 7},
        ],
    ]
    decoder = StreamDecoder()
    for piece in pieces:
        decoder.event({"choices": [{"index": 0, "delta": {"reasoning_details": piece}, "finish_reason": "tool_calls"}]})
    assert decoder.finish().choices[0].reasoning_details == (
        {**text, "text": "It asks.", "signature": "EqQB"},
        {"type": "reasoning.encrypted", "index": 0, "data": "a"},
        {"type": "reasoning.encrypted", "index": 0, "data": "b"},
        {"type": "reasoning.summary", "index": 1, "summary": "What"},
    )


def test_a_stream_may_begin_with_a_mark_of_its_byte_order() -> None:
    """The first words were lost, and the rest was the answer."""
    decoder = StreamDecoder()
    assert decoder.feed(b"\xef\xbb") + decoder.feed(b"\xbf" + chunk("A", "stop").encode()) == "A"


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_an_object_in_several_lines_instead_of_events_is_the_reply(newline: str) -> None:
    decoder = StreamDecoder()
    text = decoder.feed(json.dumps(reply("It is\n{ 42 }"), indent=2).replace("\n", newline).encode())
    assert text + decoder.end() == "It is\n{ 42 }"
    assert decoder.finish().choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (json.dumps({"error": {"message": "no quota", "code": 429}}, indent=1).encode(), "reports error 429"),
        (b'{\n "choices": [\n', "the reply is not JSON"),
        (b"{\n" + b"[\n" * 150_000, "too many parts"),
        (gzip.compress(b"data: {}\n\n"), "the reply is compressed"),
    ],
    ids=["error", "cut", "large", "gzip"],
)
def test_something_else_instead_of_events_is_named(sent: bytes, said: str) -> None:
    decoder = StreamDecoder()

    def decode_all() -> None:
        decoder.feed(sent)
        decoder.finish()

    with pytest.raises(CallFailed, match=said):
        decode_all()


def test_a_sign_of_life_is_no_event() -> None:
    """Such as data that is empty."""
    decoder = StreamDecoder()
    assert decoder.feed(b": ping\n\ndata:\n\ndata: \n\n" + chunk("A", "stop").encode()) == "A"


def test_usage_is_read_from_a_choice() -> None:
    """Where Moonshot's streams have it (https://platform.moonshot.ai/docs/api/chat); these had no cost."""
    decoder = StreamDecoder()
    ended = {"index": 0, "delta": {}, "finish_reason": "stop", "usage": {"prompt_tokens": 5, "completion_tokens": 2}}
    decoder.event({"choices": [{"index": 0, "delta": {"content": "A"}}]})
    decoder.event({"choices": [ended]})
    assert decoder.finish().usage == Usage(5, 2)


@pytest.mark.parametrize(
    "event",
    [
        '{"error": {"message": "engine died", "code": 500}}\n\n',
        'data: {"object": "error", "message": "engine died", "code": 500}\n\n',
    ],
)
def test_an_error_in_mid_stream_is_told_in_any_form(event: str) -> None:
    """Bare, or as older versions of vLLM send it. The stream was said to be cut short."""
    decoder = StreamDecoder()
    decoder.feed(chunk("A").encode())
    with pytest.raises(CallFailed) as caught:
        decoder.feed(event.encode())
    assert caught.value.failure.status == 500


@pytest.mark.parametrize(
    ("event", "status"),
    [('{"message": "overloaded", "code": 529}', 529), ('{"error": {"code": "429"}}', 429), ("it broke", None)],
)
def test_an_event_that_is_named_an_error_is_that_failure(event: str, status: int | None) -> None:
    """It was skipped, and the stream said to be cut short."""
    with pytest.raises(CallFailed, match="reports") as caught:
        StreamDecoder().feed(f"event: error\ndata: {event}\n\n".encode())
    assert caught.value.failure.status == status


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"\n <!DOCTYPE html><html>Sign in</html>", "is a web page"),
        (b" \n", "is empty"),
        (b"\x28\xb5\x2f\xfd\0", "is compressed"),
        (b"Hello", "is not JSON"),
    ],
)
def test_a_reply_that_is_something_else_is_named(body: bytes, said: str) -> None:
    with pytest.raises(CallFailed, match=said):
        decode_bytes(body)
    if said == "is a web page":
        stream = StreamDecoder()
        stream.feed(body)
        with pytest.raises(CallFailed, match=said):
            stream.finish()


def feed_endlessly(piece: bytes) -> None:
    decoder = StreamDecoder()
    for _ in range(2 * MAX_REPLY_BYTES // len(piece)):
        decoder.feed(piece)


def test_a_refusal_in_place_of_a_text_is_how_a_reply_finished() -> None:
    """Whole or in pieces; one beside a text is not."""
    message = {"content": None, "refusal": "I cannot help."}
    whole = decode({"choices": [{"message": message, "finish_reason": "stop"}]})
    beside = decode({"choices": [{"message": {**message, "content": "B"}, "finish_reason": "stop"}]})
    assert (whole.choices[0].finish_reason, beside.choices[0].finish_reason) == ("refusal", "stop")
    stream = StreamDecoder()
    for delta, finish in (({"refusal": "I cannot"}, None), ({"refusal": " help."}, None), ({}, "stop")):
        assert stream.event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}) == ""
    assert stream.finish().choices[0].finish_reason == "refusal"


def test_a_stream_is_bounded_in_length() -> None:
    """An endless reply, and an endless line, are refused while they come."""
    for piece in (b"x" * 2**19, b": ping\n" * 2**16):
        with pytest.raises(CallFailed, match="too long"):
            feed_endlessly(piece)


def test_an_error_event_ends_a_stream_with_its_status() -> None:
    """A fault reported midway is that fault."""
    with pytest.raises(CallFailed) as caught:
        StreamDecoder().event({"error": {"code": 502, "message": "x"}, "choices": [{"finish_reason": "error"}]})
    assert caught.value.failure.status == 502
