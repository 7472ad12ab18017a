"""The simulated /embeddings, as a client sees it."""

from __future__ import annotations

import math

import openai
import pytest

from focalroute.sim import SimulatedPool
from focalroute.sim.compose import vector


def test_a_vector_is_that_of_the_words() -> None:
    one, same, other = (vector(text) for text in ("How many moons?", "MOONS, how many", "Sort this list."))
    assert one == same
    assert math.hypot(*one) == pytest.approx(1)
    assert abs(sum(a * b for a, b in zip(one, other, strict=True))) < 0.5
    assert vector("...", 3) == [0.0, 0.0, 0.0]


def test_the_openai_library_reads_it_and_it_is_billed() -> None:
    with SimulatedPool() as pool:
        endpoint = pool.endpoints[0]
        with openai.OpenAI(base_url=endpoint.base_url, api_key="none") as client:
            reply = client.embeddings.create(
                model=endpoint.model, input=["two words", "three more words"], dimensions=8, encoding_format="float"
            )
            for texts, width in (([], 8), (["a"], 0)):
                with pytest.raises(openai.BadRequestError):
                    client.embeddings.create(model=endpoint.model, input=texts, dimensions=width)
            with pytest.raises(openai.NotFoundError):
                client.embeddings.create(model="nobody", input="a")
        stats = pool.stats()[endpoint.name]
    assert [item.embedding for item in reply.data] == [vector("two words", 8), vector("three more words", 8)]
    assert reply.usage.prompt_tokens == stats.prompt_tokens == 5
    assert stats.usd > 0
