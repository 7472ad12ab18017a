"""Stories with a number at their end, and the many ways in which models give it."""

from __future__ import annotations

from random import Random

import httpx
import pytest

from focalroute.answers import normal_form
from focalroute.core.errors import ConfigError
from focalroute.sim import TOPICS, SimulatedModel, SimulatedPool, generate, solve, stream
from focalroute.sim.questions import ALL_TOPICS, alternatives, find
from tests.sim.conftest import Client

ENDINGS = (
    " The answer is {}.",
    "\n#### {}",
    " So it is **{}**.",
    "\n\\boxed{{}}",
    "\nAnswer: {} in all",
    " That makes {}.",
)
STORY = "Ann has 12 apples. Then buys 3 bags of 5. Then gives 4 away. Then finds 1 more. Then sells half."


def test_a_story_is_solved_step_by_step() -> None:
    assert solve(f"Listen. {STORY} How many apples does Ann have now?") == ("stories", "12")
    assert solve("Ben has 5 coins. Then sells half. How many coins does Ben have now?") is None
    assert solve("Ben has 5 coins. Then gives 6 away. How many coins does Ben have now?") is None
    assert solve(f"{STORY} How many pears does Ann have now?") is None


def test_generated_stories_have_their_label_among_different_choices() -> None:
    rng = Random(5)
    for question in (generate("stories", rng) for _ in range(200)):
        assert solve(question.text) == ("stories", question.answer)
        assert len(set(question.choices)) == len(question.choices) > 2
        assert all(normal_form(choice, "number") == choice for choice in question.choices)
        found = find(question.text)
        assert found is not None
        assert alternatives(found, 4)[0] == question.answer


def test_a_stream_has_them_only_where_they_are_named() -> None:
    assert "stories" in ALL_TOPICS
    assert "stories" not in TOPICS
    assert all(question.topic != "stories" for question in stream(100))
    assert {question.topic for question in stream(9, topics=["stories"])} == {"stories"}


@pytest.mark.parametrize("verbosity", [0, 25])
def test_every_ending_is_read_as_the_answer_it_gives(http: httpx.Client, verbosity: int) -> None:
    models = [
        SimulatedModel(f"m{i}", skill=0.999, ending=ending, verbosity=verbosity) for i, ending in enumerate(ENDINGS)
    ]
    with SimulatedPool(models) as pool:
        client = Client(pool, http)
        for question in stream(6, seed=4, topics=["stories"]):
            for model, ending in zip(models, ENDINGS, strict=True):
                reply = client.ask(question.text, model=model.name, temperature=0)
                text = reply["choices"][0]["message"]["content"]
                assert text.endswith(ending.replace("{}", question.answer).lstrip())
                assert normal_form(text, "number") == question.answer


def test_several_samples_of_a_free_answer_vary(client: Client) -> None:
    """As often each as the model's own probabilities have it, and the same ones again for the same request."""
    question = next(q for q in stream(20, seed=8, topics=["stories"]))
    replies = [client.ask(question.text, model="wordy", n=20)["choices"] for _ in range(2)]
    texts = [[choice["message"]["content"] for choice in reply] for reply in replies]
    assert texts[0] == texts[1]
    assert 1 < len({normal_form(text, "number") for text in texts[0]}) <= 4


def test_an_ending_has_a_place_for_the_answer() -> None:
    with pytest.raises(ConfigError, match="ending: give a text"):
        SimulatedModel("m", ending="It is 42.")
