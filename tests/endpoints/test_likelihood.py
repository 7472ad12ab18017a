"""Whole choices scored by their likelihood, at a server whose language model can be worked out by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from focalroute import Answer, Budget, Endpoint, Ensemble, PoolError
from focalroute.core.errors import CallFailed
from focalroute.core.records import Usage
from focalroute.endpoints.capabilities import NONE, Capabilities, declared
from focalroute.endpoints.elicit import plan
from focalroute.endpoints.elicit.closed import choice_probabilities, write_out_choices
from focalroute.endpoints.paid_call import upper_bound
from focalroute.endpoints.wire import Request, decode_scored, encode_scored
from focalroute.endpoints.wire.fields import Token
from focalroute.money.cost import cost_of
from focalroute.serving.query import make_query
from tests.loopback import Server, completion, json_reply, serving

QUESTION, CHOICES = "Which planet has the most moons?", ("Jupiter", "Saturn", "Mars")
LIKES = {"J": 0.2, "S": 0.3, "M": 0.05}  # the model's chance of a letter; of any other character it is a half
PLAIN: dict[str, Any] = {
    "logprobs": False,
    "top_logprobs": 0,
    "n": False,
    "structured_choice": False,
    "stream_usage": True,
}
WHOLE = Capabilities(False, 0, False, False, True, whole_choices=True)


def scored(body: Mapping[str, Any]) -> dict[str, Any]:
    """What a service that echoes says of the prompts: every character is a token."""
    choices = []
    for index, text in enumerate(body["prompt"]):
        logprobs = [None, *(math.log(LIKES.get(character, 0.5)) for character in text[1:])]
        scores = {"tokens": list(text), "token_logprobs": logprobs, "top_logprobs": None}
        choices.append({"index": index, "text": text, "finish_reason": "length", "logprobs": scores})
    usage = {"prompt_tokens": sum(map(len, body["prompt"])), "completion_tokens": len(choices)}
    return {"id": "cmpl-1", "model": "m", "choices": choices[::-1], "usage": usage}  # in any order


def expected(choices: tuple[str, ...]) -> list[float]:
    """By the product over the characters of each choice."""
    likelihoods = [math.prod(LIKES.get(character, 0.5) for character in choice) for choice in choices]
    return [likelihood / sum(likelihoods) for likelihood in likelihoods]


def asked(server: Server, times: int = 1, **settings: Any) -> list[Answer]:
    """A closed question, put to an endpoint at this server as whole choices."""
    endpoint = Endpoint("e", model="m", base_url=server.url, whole_choices=True, **{**PLAIN, **settings})
    with Ensemble([endpoint], budget=Budget(max_usd_per_ask=1) if "input_usd_per_1m" in settings else None) as pool:
        return [pool.ask(QUESTION, choices=CHOICES) for _ in range(times)]


# -- from the question to the masses ----------------------------------------------------------------------------------


def test_every_choice_is_written_behind_the_whole_conversation() -> None:
    parts = [{"type": "text", "text": "Which planet "}, {"type": "text", "text": "has rings?"}]
    messages = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": parts})
    assert write_out_choices(messages, ("Saturn", "Mars")) == (
        "Be brief.\n\nWhich planet has rings?\n\nAnswer: Saturn",
        "Be brief.\n\nWhich planet has rings?\n\nAnswer: Mars",
    )


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [{"type": "text", "text": "?"}, {"type": "image_url", "image_url": {"url": "x"}}]},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]},
    ],
)
def test_a_question_with_more_than_text_is_asked_by_letter(message: dict[str, Any]) -> None:
    assert write_out_choices((message,), CHOICES) is None
    query = make_query([{"role": "user", "content": "?"}, message], choices=CHOICES)
    assert plan(query, WHOLE).method == "parsed"


def test_the_masses_are_normalised_products_of_what_differs() -> None:
    def tokens(*steps: tuple[str, float]) -> list[Token]:
        return [Token(text, logprob, {}) for text, logprob in steps]

    shared = ("Answer:", -400.0)  # far beyond what a float could hold as a likelihood
    texts = [
        tokens(shared, (" New", math.log(0.5)), (" York", math.log(0.2))),
        tokens(shared, (" New", math.log(0.5)), (" Delhi", math.log(0.6))),
        tokens(shared, (" Rome", math.log(0.1))),
    ]
    assert choice_probabilities(texts) == pytest.approx([0.1 / 0.5, 0.3 / 0.5, 0.1 / 0.5])
    assert choice_probabilities([tokens(shared), tokens(shared)]) == (0.5, 0.5)


# -- the format -------------------------------------------------------------------------------------------------------


def test_nothing_is_generated_whatever_the_parameters_say() -> None:
    params = {
        "max_tokens": 512,
        "n": 4,
        "tools": [],
        "top_logprobs": 5,
        "response_format": {"type": "text"},
        "seed": 3,
        "prompt": "no",
    }
    body = encode_scored(Request((), 0, params=params, scored=("a b", "a c")), "m")
    assert body == {"model": "m", "prompt": ["a b", "a c"], "max_tokens": 0, "echo": True, "logprobs": 1, "seed": 3}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda reply: reply | {"choices": reply["choices"][:2]}, "for each text"),
        (lambda reply: reply | {"choices": None}, "for each text"),
        (lambda reply: reply | {"choices": [{**one, "index": 0} for one in reply["choices"]]}, "do not fit"),
        (lambda reply: reply | {"choices": [{**one, "text": None} for one in reply["choices"]]}, "no text"),
        (lambda reply: {"error": {"code": 500}}, "error 500"),
        (lambda reply: [reply], "not a JSON object"),
    ],
)
def test_a_reply_that_does_not_fit_is_a_typed_failure(change: Any, says: str) -> None:
    reply = scored({"prompt": ["x a", "x b", "x c"]})
    with pytest.raises(CallFailed, match=says):
        decode_scored(json.dumps(change(reply)).encode(), 3)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(("tokens", "token_logprobs", "top_logprobs")), inner)
    ),
)


@given(JSON)
def test_any_log_probabilities_are_read_without_an_error(logprobs: object) -> None:
    choices = [{"index": index, "text": "x", "logprobs": logprobs} for index in range(2)]
    for choice in decode_scored(json.dumps({"choices": choices}).encode(), 2).choices:
        assert choice.tokens is None or all(token.logprob <= 0 for token in choice.tokens)


# -- over the wire ----------------------------------------------------------------------------------------------------


def test_an_ask_is_answered_by_the_likeliest_choice() -> None:
    async def handle(request: web.Request, body: Any) -> web.StreamResponse:
        return json_reply(scored(body))

    with serving(handle) as server:
        (answer,) = asked(server, input_usd_per_1m=2, output_usd_per_1m=4)
    reply = answer.replies[0]
    assert [one.path for one in server.received] == ["/v1/completions"]
    assert (reply.method, reply.text, answer.text) == ("likelihood", CHOICES[reply.choice or 0], reply.text)
    assert reply.probabilities == pytest.approx(expected(CHOICES))
    assert reply.usage is not None
    assert reply.cost == cost_of(reply.usage, endpoint_of(server))[0]


def endpoint_of(server: Server) -> Endpoint:
    return Endpoint("e", model="m", base_url=server.url, input_usd_per_1m=2, output_usd_per_1m=4)


def test_the_upper_bound_covers_a_prompt_for_every_choice() -> None:
    async def handle(request: web.Request, body: Any) -> web.StreamResponse:
        return json_reply(scored(body))

    request = plan(make_query(QUESTION, choices=CHOICES), WHOLE).request
    with serving(handle) as server:
        bound = upper_bound(request, endpoint_of(server))
    usage = scored({"prompt": request.scored})["usage"]
    paid, _ = cost_of(Usage(usage["prompt_tokens"], usage["completion_tokens"]), endpoint_of(server))
    assert bound is not None
    assert paid is not None
    assert paid <= bound <= 4 * paid


@pytest.mark.parametrize("refusal", [400, 404, 405, 422, "generated", "another format"])
def test_a_service_that_scores_none_is_asked_by_letter_and_never_again(refusal: int | str) -> None:
    """Whether it refuses, or answers with what it generated (as llama-server does), or with something else."""

    async def handle(request: web.Request, body: Any) -> web.StreamResponse:
        if request.path.endswith("/chat/completions"):
            return json_reply(completion("B"))
        if isinstance(refusal, int):
            return json_reply({"error": {"message": "no"}}, status=refusal)
        choices = [{"index": i, "text": "x", "logprobs": {"tokens": ["x"]}} for i in range(len(body["prompt"]))]
        return json_reply({"choices": choices if refusal == "generated" else []})

    with serving(handle) as server:
        answers = asked(server, times=2)
    assert [answer.text for answer in answers] == ["Saturn", "Saturn"]
    assert [one.path.removeprefix("/v1") for one in server.received] == [
        "/completions",
        "/chat/completions",
        "/chat/completions",
    ]


def test_a_reply_that_came_to_pieces_does_not_end_the_scoring() -> None:
    async def handle(request: web.Request, body: Any) -> web.StreamResponse:
        return web.Response(body=b"{", content_type="application/json") if broken() else json_reply(scored(body))

    def broken() -> bool:
        return len(server.received) == 1

    with serving(handle) as server:
        endpoint = Endpoint("e", model="m", base_url=server.url, whole_choices=True, **PLAIN)
        with Ensemble([endpoint], attempts=1) as pool:
            with pytest.raises(PoolError, match="not JSON"):
                pool.ask(QUESTION, choices=CHOICES)
            assert pool.ask(QUESTION, choices=CHOICES).replies[0].method == "likelihood"


def test_a_server_that_breaks_down_is_not_taken_for_one_that_scores_none() -> None:
    async def handle(request: web.Request, body: Any) -> web.StreamResponse:
        return json_reply({"error": {"message": "later"}}, status=503)

    with serving(handle) as server, pytest.raises(Exception, match="503"):
        asked(server)
    assert {one.path for one in server.received} == {"/v1/completions"}


def test_the_pool_file_alone_says_so() -> None:
    """No probe looks for it, and a declared endpoint needs no probe for it."""
    endpoint = Endpoint("e", model="m", base_url="http://x/v1", whole_choices=True, **PLAIN)
    assert declared(endpoint) == WHOLE
    assert not NONE.whole_choices
