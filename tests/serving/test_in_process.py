"""Real OpenAI clients that an ensemble answers in this process."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Iterator
from typing import Any, Literal

import httpx
import openai
import pytest
from aiohttp import web
from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel

from focalroute import AsyncEnsemble, Endpoint, Ensemble
from focalroute.sim import SimulatedPool
from tests.loopback import Server, completion, json_reply, serving, sse, until

QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is 17 + 25?"}]


class Sum(BaseModel):
    total: Literal["32", "42"]


@pytest.fixture(scope="module")
def pool() -> Iterator[SimulatedPool]:
    with SimulatedPool() as made:
        yield made


@pytest.fixture(scope="module")
def ensemble(pool: SimulatedPool) -> Iterator[Ensemble]:
    with Ensemble(pool.endpoints, policy="plurality", seed=0) as made:
        yield made


def own(reply: BaseModel) -> dict[str, Any]:
    """What a reply holds besides what OpenAI's API knows."""
    return dict((reply.model_extra or {})["focalroute"])


def test_a_completion_with_its_receipt_and_feedback(ensemble: Ensemble) -> None:
    with ensemble.as_openai() as client:
        wishes = {"choices": ["32", "42"], "receipt": True}
        reply = client.chat.completions.create(
            model="focalroute", messages=QUESTION, temperature=0, extra_body={"focalroute": wishes}
        )
        assert reply.choices[0].message.content in ("32", "42")
        assert len(own(reply)["receipt"]["calls"]) == 6
        assert reply._request_id == reply.id
        told = client.post("/feedback", body={"id": reply.id, "label": "42"}, cast_to=dict[str, Any])
        assert told["id"] == reply.id
    ensemble.feedback(own(reply)["answer_id"], label="42")  # it stays open, and this is a repeat
    ensemble.feedback(reply.id, label="42")


@pytest.mark.parametrize(
    "said", [{"reward": 1.0}, {"label": "42"}, {"label_index": 1}, {"preferred": "42"}, {"score": 0.5}]
)
def test_feedback_is_taken_in_every_form_that_the_server_takes(ensemble: Ensemble, said: dict[str, Any]) -> None:
    with ensemble.as_openai() as client:
        reply = client.chat.completions.create(
            model="focalroute", messages=QUESTION, extra_body={"focalroute": {"choices": ["32", "42"]}}
        )
        told = client.post("/feedback", body={"id": reply.id, **said, "source": "test"}, cast_to=dict[str, Any])
    assert told == {"object": "feedback", "id": reply.id, "source": "test"}


def test_parsed(ensemble: Ensemble) -> None:
    client = ensemble.as_openai()
    if not hasattr(client.chat.completions, "parse"):
        pytest.skip("this version of openai has no parse there")
    parsed = client.chat.completions.parse(model="focalroute", messages=QUESTION, response_format=Sum)
    assert isinstance(parsed.choices[0].message.parsed, Sum)


def test_streamed(ensemble: Ensemble) -> None:
    client = ensemble.as_openai()
    thinking: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is 17 + 25? Think aloud."}]
    chunks = client.chat.completions.create(
        model="focalroute", messages=thinking, stream=True, extra_body={"focalroute": {"combine": "pick"}}
    )
    pieces = [choice.delta.content for chunk in chunks for choice in chunk.choices if choice.delta.content]
    assert "The answer is" in "".join(pieces)  # on a busy machine in one piece


def test_a_stream_that_is_left_is_given_up(ensemble: Ensemble) -> None:
    with ensemble.as_openai() as client:
        body = {"focalroute": {"combine": "pick"}}
        with client.chat.completions.create(
            model="focalroute", messages=QUESTION, stream=True, extra_body=body
        ) as chunks:
            next(iter(chunks))
        assert ensemble.ask("What is 17 + 25?", answer="number").text


@pytest.mark.filterwarnings("error")
def test_a_stream_that_nothing_holds_is_given_up_on_the_thread_of_the_loop_too() -> None:
    """Openai's streams are cycles: the garbage collector closes them wherever it happens to run."""

    async def says_half(request: web.Request, body: Any) -> web.StreamResponse:
        if body.get("stream"):
            await sse(request, {"choices": [{"index": 0, "delta": {"content": "Half"}}]}, end=None)
            await asyncio.Event().wait()
        return json_reply(completion("42"))

    async def collect() -> None:
        gc.collect()

    async def running() -> int:
        return len(asyncio.all_tasks())

    with (
        serving(says_half) as service,
        Ensemble([Endpoint("e", model="m", base_url=service.url)]) as ensemble,
        ensemble.as_openai() as client,
    ):
        ensemble.ask("What is 17 + 25?", answer="number")
        before = ensemble._run(running)
        gc.disable()
        try:
            chunks = client.chat.completions.create(
                model="focalroute", messages=QUESTION, stream=True, extra_body={"focalroute": {"combine": "pick"}}
            )
            next(iter(chunks))
            assert ensemble._run(running) > before
            del chunks
            ensemble._run(collect)
        finally:
            gc.enable()
        until(lambda: ensemble._run(running) == before)


@pytest.mark.parametrize(
    ("asked", "error", "says"),
    [
        ({"model": "gpt-5"}, openai.NotFoundError, "only 'focalroute'"),
        ({"temperature": 7}, openai.BadRequestError, "temperature"),
        ({"stream": True, "extra_body": {"focalroute": {"max_usd": "1e-9"}}}, openai.APIStatusError, "affordable"),
    ],
)
def test_errors_are_those_of_the_openai_library(
    ensemble: Ensemble, asked: dict[str, Any], error: type[openai.APIStatusError], says: str
) -> None:
    create: Any = ensemble.as_openai().chat.completions.create
    with pytest.raises(error, match=says):
        create(**{"model": "focalroute", "messages": QUESTION, **asked})


def test_a_raw_response_says_how_long_it_took(ensemble: Ensemble) -> None:
    raw = ensemble.as_openai().models.with_raw_response.list()
    assert raw.elapsed.total_seconds() > 0


def test_the_one_model_is_listed(ensemble: Ensemble) -> None:
    client = ensemble.as_openai()
    assert [model.id for model in client.models.list()] == ["focalroute"]
    assert client.models.retrieve("focalroute").owned_by == "focalroute"
    with pytest.raises(openai.NotFoundError, match="only 'focalroute'"):
        client.models.retrieve("gpt-5")


def test_requests_that_an_ensemble_cannot_answer_are_errors_that_say_so(ensemble: Ensemble) -> None:
    client = ensemble.as_openai()
    with pytest.raises(openai.NotFoundError, match="chat completions"):
        client.embeddings.create(model="focalroute", input="text")
    with pytest.raises(openai.NotFoundError, match="not GET /v1/chat/completions"):
        client.get("/chat/completions", cast_to=object)
    with pytest.raises(openai.NotFoundError, match="not DELETE /v1/models/focalroute"):
        client.models.delete("focalroute")


@pytest.mark.parametrize("face", [Ensemble, AsyncEnsemble])
def test_many_at_once_asynchronously(pool: SimulatedPool, face: type[Ensemble] | type[AsyncEnsemble]) -> None:
    """Of an `AsyncEnsemble` in its own loop, of an `Ensemble` across to its thread's."""

    async def run(client: openai.AsyncOpenAI) -> None:
        create = client.chat.completions.create
        whole = await asyncio.gather(*(create(model="focalroute", messages=QUESTION) for _ in range(8)))
        assert len({one.id for one in whole}) == 8
        events = [one async for one in await create(model="focalroute", messages=QUESTION, stream=True)]
        assert own(events[-1])["members"]

    async def main() -> None:
        async with AsyncEnsemble(pool.endpoints) as made:
            await run(made.as_async_openai())

    if face is AsyncEnsemble:
        asyncio.run(main())
    else:
        with Ensemble(pool.endpoints) as made:
            asyncio.run(run(made.as_async_openai()))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("face", [Ensemble, AsyncEnsemble])
def test_a_request_has_the_time_that_it_gives(face: type[Ensemble] | type[AsyncEnsemble], stream: bool) -> None:
    """It was answered however long that took, up to the deadline of the ensemble."""

    async def hangs(request: web.Request, _: Any) -> web.StreamResponse:
        if stream:
            await sse(request, {"choices": [{"index": 0, "delta": {"content": "Half"}}]}, end=None)
        await asyncio.sleep(60)
        raise AssertionError

    asked: Any = {"model": "focalroute", "messages": QUESTION, "stream": stream, "timeout": 1.5}

    def ask(service: Server) -> None:
        with Ensemble([Endpoint("e", model="m", base_url=service.url)]) as made:
            list(made.as_openai().chat.completions.create(**asked))

    async def ask_async(service: Server) -> None:
        async with AsyncEnsemble([Endpoint("e", model="m", base_url=service.url)]) as made:
            got: Any = await made.as_async_openai().chat.completions.create(**asked)
            assert [one async for one in got]

    timed_out = (openai.APITimeoutError, httpx.ReadTimeout)  # of a stream, by openai before 3
    with serving(hangs) as service:
        with pytest.raises(timed_out):
            ask(service) if face is Ensemble else asyncio.run(ask_async(service))
        assert service.cut.wait(30)


def test_a_closed_ensemble_is_a_server_that_is_closing(pool: SimulatedPool) -> None:
    async def main() -> None:
        async with AsyncEnsemble(pool.endpoints) as made:
            client = made.as_async_openai()
        with pytest.raises(openai.InternalServerError) as caught:
            await client.chat.completions.create(model="focalroute", messages=QUESTION)
        assert (caught.value.status_code, caught.value.code) == (503, "closing")

    asyncio.run(main())


def test_a_closed_synchronous_ensemble_raises_errors_of_the_openai_library(pool: SimulatedPool) -> None:
    """It raised its own."""
    with Ensemble(pool.endpoints) as made:
        client, in_async = made.as_openai(), made.as_async_openai()
        stream = client.chat.completions.create(model="focalroute", messages=QUESTION, stream=True)
    with pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(model="focalroute", messages=QUESTION)
    assert caught.value.code == "closing"
    with pytest.raises(openai.InternalServerError):
        asyncio.run(in_async.chat.completions.create(model="focalroute", messages=QUESTION))
    with pytest.raises(openai.APIError, match="this ensemble is closed"):
        list(stream)


def test_a_stream_that_outlives_its_synchronous_ensemble_is_closed_in_peace(pool: SimulatedPool) -> None:
    """Leaving it raised EnsembleClosed, over what the reader was told."""

    async def main() -> None:
        with Ensemble(pool.endpoints) as made:
            create = made.as_async_openai().chat.completions.create
            left, read = [await create(model="focalroute", messages=QUESTION, stream=True) for _ in range(2)]
        await left.close()
        with pytest.raises(openai.APIError, match="this ensemble is closed"):
            async for _ in read:
                pass

    asyncio.run(main())


def test_tools_are_called(ensemble: Ensemble) -> None:
    integer = {"type": "integer"}
    parameters = {"type": "object", "properties": {"a": integer, "b": integer}, "required": ["a", "b"]}
    add: Any = {"type": "function", "function": {"name": "add", "parameters": parameters}}
    reply = ensemble.as_openai().chat.completions.create(model="focalroute", messages=QUESTION, tools=[add])
    calls = reply.choices[0].message.tool_calls
    assert calls is not None
    call = calls[0]
    assert call.type == "function"
    assert set(json.loads(call.function.arguments).values()) == {17, 25}
