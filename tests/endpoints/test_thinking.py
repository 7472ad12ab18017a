"""Models that think before they answer, over real HTTP: each service as documented (`tests.sim.reasoning`)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from aiohttp import web

from focalroute import Answer, AsyncEnsemble, Budget, BudgetExceeded, Endpoint, Ensemble, PoolError
from focalroute.endpoints.quirks import THINKING_TOKENS, Quirks
from focalroute.endpoints.wire import Completion, CompletionChoice
from focalroute.endpoints.wire.stream import StreamDecoder
from focalroute.endpoints.wire.thinking import ThinkingSplitter, split_thinking
from focalroute.sim import SimulatedModel, SimulatedPool, stream
from tests.loopback import completion, json_reply, serving, sse, until_checked
from tests.sim.reasoning import SERVICES, Thinker

DIALECTS: Sequence[Any] = tuple(SERVICES)
#: How a closed question is answered there, and whether the service tells what was thought.
METHODS = {"qwen-thinking": "logprobs", "vllm-reasoning": "logprobs"}
HIDDEN = ("gpt-5", "o-series", "gemini")
UNCOUNTED = ("qwen-thinking", "vllm-reasoning", "gpt-oss", "magistral")
QUESTION = next(iter(stream(5, seed=3)))
THOUGHT = 200


def thinker(name: str, thinking: int = THOUGHT) -> SimulatedModel:
    """A model that is right, and thinks so many tokens first."""
    return Thinker(
        name, skill=1.0, thinking=thinking, input_usd_per_1m=Decimal(1), output_usd_per_1m=Decimal(10), sharpness=9
    )


@pytest.fixture(scope="module")
def services() -> Iterator[SimulatedPool]:
    """One model at every service, by a name that says nothing of it."""
    models = [thinker(f"plain {dialect}") for dialect in DIALECTS]
    with SimulatedPool(models, dialects={f"plain {dialect}": dialect for dialect in DIALECTS}) as pool:
        yield pool


@pytest.fixture
def service(services: SimulatedPool) -> SimulatedPool:
    """The same, nothing billed yet."""
    services.reset()
    return services


def endpoint(pool: SimulatedPool, dialect: str) -> Endpoint:
    found = next(one for one in pool.endpoints if one.name == f"plain {dialect}")
    return replace(found, dialect="vllm") if dialect in METHODS else found


def right(answer: Answer) -> bool:
    return answer.choice == QUESTION.label


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_model_that_thinks_answers_with_defaults_and_the_bill_is_exact(service: SimulatedPool, dialect: str) -> None:
    """A closed question twice, an open one and a stream: right, no thinking in any text, every token billed."""
    with Ensemble([endpoint(service, dialect)]) as ensemble:
        assert right(ensemble.ask(QUESTION.text, choices=QUESTION.choices))  # perhaps cut once: it is not known yet
        until_checked(ensemble)
        for _ in range(2):
            answer = ensemble.ask(QUESTION.text, choices=QUESTION.choices)
            reply = answer.replies[0]
            assert right(answer)
            assert reply.method == METHODS.get(dialect, "parsed")
            assert len(reply.text or "") < 20
            assert (reply.reasoning is None) == (dialect in HIDDEN)
            assert reply.usage is not None
            assert reply.usage.completion_tokens > THOUGHT
            assert reply.usage.reasoning_tokens == (0 if dialect in UNCOUNTED else THOUGHT)
        free = ensemble.ask(QUESTION.text, answer="short")
        assert len(free.text) < 50
        with ensemble.stream("Say hello.") as pieces:
            said = "".join(pieces)
        assert said == pieces.answer.text == "Hello! I am a simulated model. How can I help you?"
        assert pieces.answer.replies[0].reasoning == (None if dialect in HIDDEN else reply.reasoning)
        until_checked(ensemble)
        spent = ensemble.stats().cost
    assert spent == service.stats()[f"plain {dialect}"].usd


@pytest.mark.parametrize("dialect", DIALECTS)
def test_its_thinking_fits_a_budget(service: SimulatedPool, dialect: str) -> None:
    """Where all of its room is not affordable it gets less; where none is, nothing is asked."""
    member = endpoint(service, dialect)
    with Ensemble([member], budget=Budget(max_usd_per_ask="0.03")) as ensemble:
        assert right(ensemble.ask(QUESTION.text, choices=QUESTION.choices))
        answer = ensemble.ask(QUESTION.text, choices=QUESTION.choices)
        assert right(answer)
        assert answer.cost is not None
        assert answer.cost <= Decimal("0.03")
        with pytest.raises(BudgetExceeded):
            ensemble.ask(QUESTION.text, choices=QUESTION.choices, max_usd="0.001")
        until_checked(ensemble)
        assert ensemble.stats().cost == service.stats()[member.name].usd


def test_one_model_at_two_efforts_is_two_endpoints(service: SimulatedPool) -> None:
    """Each is billed what it thinks, and what is known of one is not taken for the other."""
    plain = endpoint(service, "gpt-5")
    pool = [
        Endpoint(effort, model=plain.model, base_url=plain.base_url, reasoning_effort=effort)
        for effort in ("none", "low", "high")
    ]
    with Ensemble(pool, policy="plurality") as ensemble:
        ensemble.ask(QUESTION.text, choices=QUESTION.choices)
        until_checked(ensemble)
        answer = ensemble.ask(QUESTION.text, choices=QUESTION.choices)
    thought = {reply.endpoint: reply.usage.reasoning_tokens for reply in answer.replies if reply.usage}
    assert thought == {"none": 0, "low": THOUGHT // 4, "high": THOUGHT * 4}
    assert {reply.endpoint: reply.method for reply in answer.replies} == {
        "none": "logprobs", "low": "parsed", "high": "parsed",
    }  # fmt: skip


def test_a_reply_that_was_cut_is_repeated_once_with_more_room() -> None:
    """A model that thinks for longer than its room; one that never ends is given up, all of it billed."""
    models = [thinker("long", THINKING_TOKENS + 50), thinker("endless", 10**5)]
    with SimulatedPool(models, dialects=DIALECTS[0]) as pool:
        long, endless = pool.endpoints
        with Ensemble([long]) as ensemble:
            answer = ensemble.ask(QUESTION.text, choices=QUESTION.choices, deadline_s=30)
            assert right(answer)
            assert ensemble.ask(QUESTION.text, choices=QUESTION.choices).receipt.calls[0].attempts == 1
            until_checked(ensemble)
            assert ensemble.stats().cost == pool.stats()["long"].usd
        known = Endpoint("endless", model="endless", base_url=endless.base_url, thinking_tokens=100, logprobs=False,
                         top_logprobs=0, n=False, structured_choice=False, stream_usage=True)  # fmt: skip
        with Ensemble([known]) as ensemble, pytest.raises(PoolError, match=r"give it more room.*thinking_tokens"):
            ensemble.ask(QUESTION.text, choices=QUESTION.choices)
        assert pool.stats()["endless"].calls == 2  # the first of them named max_tokens, and was refused


@pytest.mark.parametrize(("used", "calls"), [(1959, 2), (1960, 1)])
def test_a_reply_that_was_cut_as_the_context_is_full_is_not_repeated(used: int, calls: int) -> None:
    async def cut(_: web.Request, body: Any) -> web.StreamResponse:
        choice = {"message": {"content": "", "reasoning": "7 is"}, "finish_reason": "length"}
        return json_reply(completion(choices=[choice], usage={"prompt_tokens": 40, "completion_tokens": used}))

    able: Any = {"logprobs": False, "top_logprobs": 0, "n": False, "structured_choice": False, "stream_usage": False}
    with serving(cut) as server:
        small = Endpoint("m", model="qwq", base_url=server.url, whole_choices=False, context_tokens=2000, **able)
        with pytest.raises(PoolError, match="give it more room"):
            asked([small])
        assert len(server.received) == calls


def asked(endpoints: Sequence[Endpoint], **options: Any) -> Answer:
    async def run() -> Answer:
        async with AsyncEnsemble(endpoints) as ensemble:
            return await ensemble.ask("Which is larger?", choices=["7", "9"], **options)

    return asyncio.run(run())


def test_refusals_are_learned_once_and_cost_nothing() -> None:
    """Of a temperature that the caller gave, and the name of the token limit: the next call leaves them out."""

    async def strict(_: web.Request, body: Any) -> web.StreamResponse:
        for field in ("temperature", "max_tokens"):
            if field in body:
                message = f"Unsupported parameter: '{field}' is not supported with this model."
                return json_reply({"error": {"message": message, "param": field, "code": "unsupported_parameter"}}, 400)
        return json_reply(completion("9"))

    able = {"logprobs": False, "top_logprobs": 0, "n": False, "structured_choice": False, "stream_usage": False}
    with serving(strict) as server:
        member = Endpoint("m", model="m", base_url=server.url, **able)  # type: ignore[arg-type]
        with Ensemble([member]) as ensemble:
            for _ in range(2):
                answer = ensemble.ask("Which is larger?", choices=["7", "9"], params={"temperature": 0.5})
                assert (answer.text, answer.receipt.calls[0].attempts) == ("9", 1)
        bodies = [received.body for received in server.received]
    assert [("temperature" in body, "max_tokens" in body) for body in bodies] == [
        (True, True), (False, True), (False, False), (False, False),
    ]  # fmt: skip
    assert bodies[-1]["max_completion_tokens"] == 32


def test_calls_that_are_refused_at_the_same_time_are_all_repeated() -> None:
    """For a field that they have, and for too large a token limit: what the first of them taught holds for all."""

    async def strict(_: web.Request, body: Any) -> web.StreamResponse:
        await asyncio.sleep(0.05)
        message, param = "", ""
        if "temperature" in body:
            message, param = "Unsupported parameter: 'temperature' is not supported with this model.", "temperature"
        elif body["max_tokens"] > 4096:
            message, param = "max_tokens is too large: this model supports at most 4096 tokens", "max_tokens"
        return (
            json_reply({"error": {"message": message, "param": param}}, 400) if param else json_reply(completion("9"))
        )

    async def run(url: str) -> list[Answer]:
        able: Any = {"logprobs": False, "top_logprobs": 0, "n": False, "structured_choice": False}
        thinker = Endpoint("m", model="qwq", base_url=url, stream_usage=False, whole_choices=False, **able)
        async with AsyncEnsemble([thinker], attempts=1) as ensemble:
            asks = (ensemble.ask("Which is larger?", choices=["7", "9"], temperature=0.5) for _ in range(3))
            return await asyncio.gather(*asks)

    with serving(strict) as server:
        assert [answer.text for answer in asyncio.run(run(server.url))] == ["9"] * 3
        asked_for = [received.body["max_tokens"] for received in server.received]
    assert asked_for == [THINKING_TOKENS + 32] * 6 + [THINKING_TOKENS // 4 + 32] * 3


def test_log_probabilities_that_are_refused_later_are_done_without() -> None:
    """Although the pool file says they come, and by a status that mostly means something else."""

    async def refuses(_: web.Request, body: Any) -> web.StreamResponse:
        if body.get("logprobs"):
            return json_reply({"error": {"message": "You are not allowed to request logprobs from this model"}}, 403)
        return json_reply(completion("9"))

    able = {"logprobs": True, "top_logprobs": 5, "n": False, "structured_choice": False, "stream_usage": False}
    with serving(refuses) as server:
        answer = asked([Endpoint("m", model="m", base_url=server.url, **able)])  # type: ignore[arg-type]
        assert len(server.received) == 2
    assert (answer.text, answer.replies[0].method, answer.receipt.calls[0].attempts) == ("9", "parsed", 2)
    assert answer.replies[0].error is None


def test_a_403_that_is_about_something_else_stays_a_failure() -> None:
    async def refuses(_: web.Request, body: Any) -> web.StreamResponse:
        return json_reply({"error": {"message": "Your account may not use this region."}}, 403)

    with serving(refuses) as server, pytest.raises(PoolError, match="HTTP 403"):
        asked([Endpoint("m", model="m", base_url=server.url)])


@pytest.mark.parametrize(
    ("message", "thought"),
    [
        ({"content": "9", "reasoning_content": "7 < 9"}, "7 < 9"),
        ({"content": "9", "reasoning": "7 < 9"}, "7 < 9"),
        ({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "7 < 9"}]},
                      {"type": "text", "text": "9"}]}, "7 < 9"),
        ({"content": "<think>\n7 < 9\n</think>\n\n9"}, "\n7 < 9\n"),
        ({"content": "<think></think>9"}, None),
        ({"content": "<thought>7 < 9</thought>9"}, "7 < 9"),
        ({"content": "[THINK]7 < 9[/THINK]9"}, "7 < 9"),
        ({"content": "<seed:think>7 < 9</seed:think>9"}, "7 < 9"),
        ({"content": "◁think▷7 < 9◁/think▷9"}, "7 < 9"),
        ({"content": "So 7 < 9.\n</think>\n\n9"}, "So 7 < 9.\n"),
        ({"content": "<|channel|>analysis<|message|>7<9<|end|>"
                     "<|start|>assistant<|channel|>final<|message|>9<|return|>"}, "7<9"),
        ({"content": "analysis7 < 9assistantfinal9"}, "7 < 9"),
        ({"content": "9"}, None),
    ],
)  # fmt: skip
def test_thinking_is_read_in_every_form(message: dict[str, Any], thought: str | None) -> None:
    """Whole and streamed: the answer alone is the text."""

    async def thinks(request: web.Request, body: Any) -> web.StreamResponse:
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        if not body.get("stream"):
            return json_reply(completion(choices=[choice]))
        return await sse(request, {"choices": [{"index": 0, "delta": message, "finish_reason": "stop"}]}, "[DONE]")

    with serving(thinks) as server, Ensemble([Endpoint("m", model="m", base_url=server.url)]) as ensemble:
        whole = ensemble.ask("Which is larger?")
        with ensemble.stream("Which is larger?") as pieces:
            assert "".join(pieces) == "9"
    for answer in (whole, pieces.answer):
        assert (answer.text, answer.replies[0].reasoning) == ("9", thought)


TEXTS = (
    "<think>a < b</think>\n\nB", "B", "<b>bold</b>", "<thi", "analysis of it", "an", "  <think>cut short",
    "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>B<|return|>",
    "analysis: so it isassistantfinalB", "[THINK]x[/THINK]B <|odd", "A </think> in a line is no mark", "",
)  # fmt: skip


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("text", TEXTS)
def test_pieces_are_split_as_the_whole_is(text: str, size: int) -> None:
    splitter = ThinkingSplitter()
    said = [splitter.feed(text[at : at + size]) for at in range(0, len(text), size)]
    answer = "".join(said) + splitter.finish()
    assert (splitter.thinking, answer) == split_thinking(text)


@pytest.mark.parametrize("quoted", ["It ends with\n</think>\nand a line.", "<think>hm</think>That is how it begins."])
def test_marks_that_a_model_quotes_are_forgotten_after_a_few_replies(quoted: str) -> None:
    """One prompt about them would have all other callers' streams come in one piece, and their limits raised."""

    async def speak(request: web.Request, body: Any) -> web.StreamResponse:
        text = quoted if "Quote" in str(body["messages"]) else "one two three"
        if not body.get("stream"):
            return json_reply(completion(text))
        pieces = [{"choices": [{"index": 0, "delta": {"content": f"{word} "}}]} for word in text.split()]
        response = await sse(request, *pieces, end=None)
        await asyncio.sleep(0.05)
        end = {"choices": [{"index": 0, "delta": {"content": "end"}, "finish_reason": "stop"}]}
        await response.write(f"data: {json.dumps(end)}\n\ndata: [DONE]\n\n".encode())
        return response

    with serving(speak) as server:
        one = Endpoint("e", model="m", base_url=server.url, input_usd_per_1m=1, output_usd_per_1m=1)
        with Ensemble([one], budget=Budget(usd_total=1)) as ensemble:
            ensemble.ask("Quote the marks of thinking.")
            for _ in range(5):
                ensemble.ask("Count.")
            with ensemble.stream("Count.") as answer:
                assert len(list(answer)) > 1
        limits = [received.body["max_tokens"] for received in server.received]
    assert limits == [1024] + 4 * [1024 + THINKING_TOKENS] + 2 * [1024]


def test_a_model_whose_streams_begin_within_the_thinking_stays_known() -> None:
    """By each stream's closing mark; replies that were cut or constrained lack it."""
    quirks = Quirks(Endpoint("e", model="m", base_url="http://h/v1"))
    plain, cut = (CompletionChoice("42", reason, None) for reason in ("stop", "length"))
    unmarked: Any = ((plain, {"response_format": {}}), (cut, {}), (plain, {}))
    for _ in range(9):
        decoder = StreamDecoder(unopened=quirks.unopened)
        for text, reason in (("17 + 25\n</thi", None), ("nk>\n\n42", "stop")):
            event = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": reason}]}
            decoder.feed(f"data: {json.dumps(event)}\n\n".encode())
        said = quirks.learn_from_reply(decoder.finish(), {}).choices[0]
        assert (said.text.strip(), said.reasoning.strip()) == ("42", "17 + 25")
        assert quirks.thinks
        assert quirks.unopened
        for sample, sent in unmarked:
            quirks.learn_from_reply(Completion((sample,), None, None, None), sent)


def test_a_stream_that_begins_within_the_thinking_is_silent_until_its_end() -> None:
    """Where that is known; without an end all of it was the answer, unless it was cut."""
    splitter = ThinkingSplitter(unopened=True)
    assert [splitter.feed(piece) for piece in ("so", "\n</thi", "nk>\n", "\nB")] == ["", "", "", "B"]
    silent = ThinkingSplitter(unopened=True)
    assert silent.feed("just B") == ""
    assert silent.finish() == "just B"
    cut = ThinkingSplitter(unopened=True)
    assert (cut.feed("and so on"), cut.finish(cut=True), cut.thinking) == ("", "", "and so on")
