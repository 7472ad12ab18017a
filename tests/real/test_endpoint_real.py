"""Probing, eliciting and streaming through focalroute's own client, against third-party servers."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import anyio
import httpx
import pytest
from openai import AsyncOpenAI

from focalroute import Answer, AsyncEnsemble, Budget
from focalroute.core.config import Endpoint
from focalroute.core.errors import CallFailed
from focalroute.core.records import Query, Usage
from focalroute.endpoints.capabilities import NONE, Capabilities, CapabilityCheck
from focalroute.endpoints.client import EndpointClient, HttpSessions
from focalroute.endpoints.elicit import ParsedReply, plan
from focalroute.endpoints.wire import Completion, Request
from tests.real import servers
from tests.real.servers import Server

pytestmark = pytest.mark.real

MESSAGES = ({"role": "user", "content": "Which planet has the most moons?"},)
QUERY = Query("q", MESSAGES, choices=("Jupiter", "Saturn", "Mars"))
HELD = replace(NONE, structured_choice=True)  # a random model answers nothing readable unless it is held to the choices

T = TypeVar("T")


@pytest.fixture(params=["llama-server", pytest.param("litellm", marks=pytest.mark.slow), "vllm"])
def endpoint(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Endpoint:
    """The test runs against each of them."""
    if request.param == "vllm":
        return vllm_endpoint(request.getfixturevalue("vllm_server"))
    if request.param == "litellm":
        proxy: Server = request.getfixturevalue("litellm_proxy")
        monkeypatch.setenv("REAL_PROXY_KEY", proxy.key or "")
        return Endpoint("proxy", model=proxy.model, base_url=proxy.base_url, api_key_env="REAL_PROXY_KEY")
    start: Callable[[int], Server] = request.getfixturevalue("llama_server")
    return Endpoint("llama", model=start(0).model, base_url=start(0).base_url, dialect="llamacpp")


def vllm_endpoint(server: Server, **settings: Any) -> Endpoint:
    return Endpoint("vllm", model=server.model, base_url=server.base_url, dialect="vllm", **settings)


@asynccontextmanager
async def client_of(endpoint: Endpoint) -> AsyncIterator[EndpointClient]:
    sessions = HttpSessions()
    try:
        yield EndpointClient(endpoint, sessions)
    finally:
        await sessions.aclose()


def with_client(endpoint: Endpoint, act: Callable[[EndpointClient], Awaitable[T]]) -> T:
    """What ``act`` returns for a fresh client of the endpoint, in an event loop of its own."""

    async def run() -> T:
        async with client_of(endpoint) as client:
            return await act(client)

    return anyio.run(run)


def read(endpoint: Endpoint, capabilities: Capabilities) -> ParsedReply:
    """The endpoint's answer to `QUERY`, put in the way that these capabilities allow."""
    put = plan(QUERY, capabilities)
    return put.read(with_client(endpoint, lambda client: client.complete(put.request)))


def test_the_probe_finds_all_that_they_can_do(endpoint: Endpoint) -> None:
    """Log-probabilities with alternatives, samples, held answers and streamed usage are found, as is what it took."""

    async def checked(client: EndpointClient) -> tuple[Capabilities, Usage | None]:
        check = CapabilityCheck(client)
        return await check.run(), check.usage

    found, usage = with_client(endpoint, checked)
    assert found == Capabilities(True, found.top_logprobs, n=True, structured_choice=True, stream_usage=True)
    assert 10 <= found.top_logprobs <= 20  # of 20 asked for, those that are parts of letters look the same
    assert usage is not None
    assert usage.completion_tokens > 0


def test_choices_by_log_probabilities(endpoint: Endpoint) -> None:
    """The answer is a choice, its probabilities are masses of at most 1 in total."""
    reading = read(endpoint, replace(HELD, logprobs=True, top_logprobs=20))
    assert reading.method == "logprobs"
    assert reading.choice in range(3)
    assert reading.probabilities is not None
    assert 0 < sum(reading.probabilities) <= 1


def test_choices_by_samples(endpoint: Endpoint) -> None:
    """Ten samples in one call are counted into tenths."""
    reading = read(endpoint, replace(HELD, n=True))
    assert reading.method == "samples"
    assert reading.probabilities is not None
    assert all((10 * mass) % 1 == pytest.approx(0, abs=1e-9) for mass in reading.probabilities)
    assert 0 < sum(reading.probabilities) <= 1 + 1e-9


def test_a_stream_adds_up_to_its_completion(endpoint: Endpoint) -> None:
    """The pieces of a stream are the text of its completion, which ends with its usage."""

    async def collect(client: EndpointClient) -> list[str | Completion]:
        return [piece async for piece in client.stream(Request(MESSAGES, 24))]

    *pieces, completion = with_client(endpoint, collect)
    assert isinstance(completion, Completion)
    assert "".join(str(piece) for piece in pieces) == completion.choices[0].text
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 24


def test_a_call_right_after_a_stream_succeeds(endpoint: Endpoint) -> None:
    """llama-server hangs up after every stream, though it announces keep-alive; the next call must not trip over it."""

    async def alternate(client: EndpointClient) -> int:
        for _ in range(10):
            async for _piece in client.stream(Request(MESSAGES, 4)):
                pass
            await client.complete(Request(MESSAGES, 4))
        return 10

    assert with_client(endpoint, alternate) == 10


def test_the_likelihood_of_whole_choices(vllm_server: Server) -> None:
    """Of choices of one token it is what the model would say next, were it held to them."""
    endpoint = vllm_endpoint(vllm_server)
    query = Query("q", ({"role": "user", "content": "B or C?"},), choices=("A", "B", "C", "D"))
    put = plan(query, replace(NONE, whole_choices=True))
    reading = put.read(with_client(endpoint, lambda client: client.complete(put.request)))
    question, _ = put.request.scored[0].rsplit(" ", 1)
    held = {
        "prompt": question,
        "max_tokens": 1,
        "logprobs": 4,
        "structured_outputs": {"choice": [" A", " B", " C", " D"]},
    }
    url = f"{vllm_server.base_url}/completions"
    reply = httpx.post(url, json={"model": vllm_server.model, **held}, timeout=60, trust_env=False).json()
    top = reply["choices"][0]["logprobs"]["top_logprobs"][0]
    assert reading.probabilities == pytest.approx([math.exp(top[f" {letter}"]) for letter in "ABCD"], abs=1e-3)
    assert (reading.method, reading.text) == ("likelihood", "ABCD"[reading.choice or 0])


@pytest.mark.parametrize("kind", ["own client", "AsyncOpenAI"])
def test_an_ensemble_of_whole_choices(vllm_server: Server, kind: str) -> None:
    """Through the public face, by our own HTTP or a ready client; a prompt a choice is what is billed."""
    settings: dict[str, Any] = {"input_usd_per_1m": 1, "output_usd_per_1m": 1, "whole_choices": True}

    async def ask() -> tuple[Answer, Answer]:
        async with AsyncOpenAI(base_url=vllm_server.base_url, api_key="none") as client:
            endpoint = vllm_endpoint(vllm_server, **settings)
            if kind == "AsyncOpenAI":
                endpoint = Endpoint("vllm", model=vllm_server.model, client=client, dialect="vllm", **settings)
            async with AsyncEnsemble([endpoint], budget=Budget(max_usd_per_ask=1)) as pool:
                question = "Which planet has the most moons?"
                return await pool.ask(question, choices=("Jupiter", "Saturn", "Mars")), await pool.ask(question)

    closed, free = anyio.run(ask)
    assert closed.replies[0].method == "likelihood"
    assert sum(closed.replies[0].probabilities or ()) == pytest.approx(1)
    usage = closed.replies[0].usage
    assert usage is not None
    assert usage.prompt_tokens > 3 * 10
    assert free.replies[0].method == "text"


def test_whole_choices_of_a_server_that_scores_none_are_asked_for_by_letter(
    llama_server: Callable[[int], Server],
) -> None:
    """llama-server gives the log-probabilities of what it generates: it is not asked again, its letters are."""
    server = llama_server(0)
    endpoint = Endpoint("llama", model=server.model, base_url=server.base_url, dialect="llamacpp", whole_choices=True)

    async def ask() -> list[Answer]:
        async with AsyncEnsemble([endpoint]) as pool:
            return [await pool.ask("Jupiter or Saturn?", choices=("Jupiter", "Saturn")) for _ in range(2)]

    first, second = anyio.run(ask)
    assert first.replies[0].method == second.replies[0].method == "logprobs"


def test_too_many_samples_are_a_failure_with_its_status(endpoint: Endpoint) -> None:
    """n above what the server has slots for is status 400, not to be retried."""
    if endpoint.name == "vllm":
        pytest.skip("vLLM has no slots: it gives as many as are asked for")
    with pytest.raises(CallFailed) as caught:
        with_client(endpoint, lambda client: client.complete(Request(MESSAGES, 4, n=100)))
    assert caught.value.failure.status == 400
    assert not caught.value.failure.retryable


@pytest.mark.slow
def test_another_key_is_a_failure_with_its_status(litellm_proxy: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy's refusal of a key is a failure whose message does not hold the key."""
    monkeypatch.setenv("REAL_PROXY_KEY", "sk-another")
    endpoint = Endpoint(
        "proxy", model=litellm_proxy.model, base_url=litellm_proxy.base_url, api_key_env="REAL_PROXY_KEY"
    )
    with pytest.raises(CallFailed) as caught:
        with_client(endpoint, lambda client: client.complete(Request(MESSAGES, 4)))
    assert caught.value.failure.status == 400
    assert "sk-another" not in str(caught.value)


def test_a_server_that_is_gone_is_a_failed_connection(llama_server: Callable[[int], Server], tmp_path: Path) -> None:
    """A call to a server that was stopped fails as a connection, which may be retried."""
    llama_server(0)  # skips where there is none
    with servers.llama_server(tmp_path, seed=5) as server:
        endpoint = Endpoint("gone", model=server.model, base_url=server.base_url)
    with pytest.raises(CallFailed) as caught:
        with_client(endpoint, lambda client: client.complete(Request(MESSAGES, 4)))
    assert caught.value.failure.kind == "connection"
    assert caught.value.failure.retryable
