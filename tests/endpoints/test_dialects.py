"""Probing and elicitation over real HTTP against every dialect of the simulated pool."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, get_args

import pytest

from focalroute.core.config import Endpoint
from focalroute.core.errors import CallFailed
from focalroute.core.records import Query
from focalroute.endpoints import capabilities, elicit
from focalroute.endpoints.capabilities import Capabilities, CapabilityCheck
from focalroute.endpoints.client import EndpointClient, HttpSessions
from focalroute.endpoints.elicit import ParsedReply
from focalroute.endpoints.wire import Completion, Request
from focalroute.sim.models import default_models
from focalroute.sim.process import DialectName, SimulatedPool
from focalroute.sim.questions import Question, stream

DIALECTS: tuple[DialectName, ...] = get_args(DialectName)[:7]  # the others are in test_thinking

#: What each dialect can do by its documentation.
ABLE = {
    "openai": Capabilities(True, 20, True, True, True),
    "together": Capabilities(True, 20, True, True, True),
    "deepinfra": Capabilities(True, 0, True, True, True),
    "vllm": Capabilities(True, 20, True, True, True),
    "llamacpp": Capabilities(True, 20, True, True, True),
    "openrouter": Capabilities(True, 20, True, True, True),
    "minimal": capabilities.NONE,
}
METHODS = {"deepinfra": "samples", "minimal": "parsed"}
QUESTIONS = tuple(islice(stream(12, seed=3), 12))


@pytest.fixture(scope="module")
def endpoints() -> Iterator[dict[str, Endpoint]]:
    """One model in every dialect."""
    models = [replace(default_models()[0], name=dialect, latency_s=0.0, jitter_s=0.0) for dialect in DIALECTS]
    with SimulatedPool(models, dialects={dialect: dialect for dialect in DIALECTS}) as pool:
        yield {endpoint.name: endpoint for endpoint in pool.endpoints}


def with_client(endpoint: Endpoint, use: Any) -> Any:
    async def run() -> Any:
        sessions = HttpSessions()
        try:
            return await use(EndpointClient(endpoint, sessions))
        finally:
            await sessions.aclose()

    return asyncio.run(run())


def ask(
    endpoint: Endpoint, able: Capabilities, questions: tuple[Question, ...] = QUESTIONS
) -> list[ParsedReply | CallFailed]:
    """The readings of all questions, failures included."""

    async def one(client: EndpointClient, question: Question) -> ParsedReply | CallFailed:
        made = elicit.plan(Query("q", ({"role": "user", "content": question.text},), question.choices), able)
        try:
            return made.read(await client.complete(made.request))
        except CallFailed as error:
            return error

    async def use(client: EndpointClient) -> list[ParsedReply | CallFailed]:
        return await asyncio.gather(*(one(client, question) for question in questions))

    readings: list[ParsedReply | CallFailed] = with_client(endpoint, use)
    return readings


@pytest.mark.parametrize("dialect", [d for d in DIALECTS if d != "openrouter"])
def test_a_probe_finds_what_the_dialect_can_do(endpoints: dict[str, Endpoint], dialect: str) -> None:
    """Log-probabilities, alternatives, samples, structured choices, usage in a stream: as documented."""
    assert with_client(endpoints[dialect], lambda client: CapabilityCheck(client).run()) == ABLE[dialect]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_question_is_answered_by_the_best_way_of_the_dialect(
    endpoints: dict[str, Endpoint], dialect: str
) -> None:
    """Each reading names a choice; masses are aligned with the choices, sum to at most 1, and lead to the choice."""
    for question, reading in zip(QUESTIONS, ask(endpoints[dialect], ABLE[dialect]), strict=True):
        if dialect == "openrouter" and isinstance(reading, CallFailed):  # its log-probabilities are null at times
            assert "did not come back" in reading.failure.message
            continue
        assert isinstance(reading, ParsedReply)
        assert reading.method == METHODS.get(dialect, "logprobs")
        assert reading.choice is not None
        assert 0 <= reading.choice < len(question.choices)
        if reading.method == "parsed":
            assert reading.probabilities is None
            continue
        assert reading.probabilities is not None
        assert len(reading.probabilities) == len(question.choices)
        assert sum(reading.probabilities) <= 1 + 1e-9
        assert max(reading.probabilities) == reading.probabilities[reading.choice]


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("dialect", ["openai", "together", "vllm", "llamacpp"])
def test_scores_hold_nearly_all_mass_with_and_without_a_constraint(
    endpoints: dict[str, Endpoint], dialect: str, held: bool
) -> None:
    """The labels' spellings are all found, in a bare letter and within a JSON object."""
    able = Capabilities(True, 20, True, held, True)
    for reading in ask(endpoints[dialect], able):
        assert isinstance(reading, ParsedReply)
        assert reading.probabilities is not None
        assert sum(reading.probabilities) > 0.9


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("able", [capabilities.NONE, Capabilities(False, 0, True, False, False)])
def test_lesser_ways_are_read_in_every_dialect(
    endpoints: dict[str, Endpoint], dialect: str, able: Capabilities
) -> None:
    """A vote, and samples (a vote where a service ignores n), without any constraint."""
    for reading in ask(endpoints[dialect], able):
        assert isinstance(reading, ParsedReply)
        assert reading.method in ("parsed", "samples")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_stream_is_whole_in_every_dialect(endpoints: dict[str, Endpoint], dialect: str) -> None:
    """Its pieces are the whole's text, and its usage comes wherever the dialect has it."""

    async def use(client: EndpointClient) -> list[str | Completion]:
        request = Request(({"role": "user", "content": QUESTIONS[0].text},), 64)
        return [piece async for piece in client.stream(request)]

    *pieces, whole = with_client(endpoints[dialect], use)
    assert pieces
    assert "".join(pieces) == whole.choices[0].text
    assert (whole.usage is not None) == ABLE[dialect].stream_usage
