"""Questions on a report, sentiment and summaries: solved from their words, and fact by fact by a simulated model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import httpx
import pytest

from examples.paper.passages import FACTS, PASSAGES, PassageModel, fact_in, questions_behind, summed_up
from focalroute import ConfigError
from focalroute.core.records import Query, Reply
from focalroute.evaluate.quality import metric
from focalroute.serving.sequential import transfer
from focalroute.sim import Question, SimulatedModel, SimulatedPool, generate, solve, stream
from tests.sim.conftest import Client

REPORT = (
    "Leofric Archer opened a theatre in Old Galmouth last week. Hilda Archer had wanted to have it in Old Elham. "
    "After 7 years of work it cost 797 pounds, and 423 people came to see it."
)
REQUEST = f'Sum this up in one sentence: "{REPORT}"'
SUMMARY = "Leofric Archer opened a theatre in Old Galmouth for 797 pounds."
KNOWN = [
    (f'Read this: "{REPORT}" Who opened it?', ("who", "Leofric Archer")),
    (f'Read this: "{REPORT}" Where is it?', ("where", "Old Galmouth")),
    (f'Read this: "{REPORT}" How many pounds did it cost?', ("cost", "797")),
    (REQUEST, ("summary", SUMMARY)),
    ('Is this review positive or negative? "In short, the plot is dull, the music is superb and the end is lovely."',
     ("sentiment", "positive")),
    ('Is this review positive or negative? "In short, the plot is dull and the music is superb."', None),
    ('Sum this up in one sentence: "It rained."', None),
    ('Read this: "It rained." Where is it?', None),
]  # fmt: skip
#: Good at one fact each, and all but surely so.
SCRIBE = PassageModel("scribe", skill=0.4, skills={"who": 0.99}, sharpness=3)
GUIDE = PassageModel("guide", skill=0.4, skills={"where": 0.99}, sharpness=3, convinced=1.0, misled=0.0)


@pytest.fixture(scope="module")
def pool(http: httpx.Client) -> Iterator[Client]:
    with SimulatedPool([SCRIBE, GUIDE]) as running:
        yield Client(running, http)


@pytest.mark.parametrize(("text", "answer"), KNOWN)
def test_questions_on_a_report_are_solved_from_their_text(text: str, answer: tuple[str, str] | None) -> None:
    assert solve(f"Think.\n{text}\nBe brief.", PassageModel.families) == answer


@pytest.mark.parametrize("topic", sorted(PASSAGES))
def test_their_labels_are_true_and_their_choices_sound(topic: str) -> None:
    rng = Random(3)
    for _ in range(100):
        question = generate(PASSAGES[topic], rng)
        assert solve(question.text, PassageModel.families) == (topic, question.answer)
        assert 2 <= len(set(question.choices)) == len(question.choices)


def test_a_summary_says_the_answers_of_the_questions_behind_it() -> None:
    answers = {fact: solve(question, PassageModel.families) for fact, question in questions_behind(REQUEST).items()}
    said = {fact: fact_in(SUMMARY, fact) for fact in FACTS}
    assert answers == {fact: (fact, right) for fact, right in said.items()}
    assert summed_up(REQUEST, {fact: right or "" for fact, right in said.items()}) == SUMMARY
    assert fact_in("Nothing of that.", "cost") is None


@pytest.mark.parametrize(("topic", "name"), [("who", "f1"), ("summary", "rouge-l")])
def test_wrong_answers_may_be_right_in_part(topic: str, name: str) -> None:
    quality = metric(name)
    worth = {
        quality(choice, question.answer)
        for question in stream(50, seed=2, topics=[PASSAGES[topic]])
        for choice in question.choices
        if choice != question.answer
    }
    assert max(worth) < 1
    assert any(0.4 <= w <= 0.9 for w in worth)


def shares(pool: Client, model: str, shown: Callable[[Question], str | None]) -> dict[str, float]:
    """How often each fact of 100 summaries is right."""
    right = dict.fromkeys(FACTS, 0)
    for question in stream(100, seed=4, topics=[PASSAGES["summary"]]):
        query, before = Query("q", ({"role": "user", "content": question.text},)), shown(question)
        put = query if before is None else transfer(query, Reply("other", text=before))
        reply = pool.ask(str(put.messages[0]["content"]), model=model)["choices"][0]["message"]["content"]
        for fact in FACTS:
            right[fact] += fact_in(reply, fact) == fact_in(question.answer, fact)
    return {fact: count / 100 for fact, count in right.items()}


def test_no_other_model_knows_them() -> None:
    assert solve(KNOWN[0][0]) is None
    with pytest.raises(ConfigError, match=r"skills\['who'\]: unknown topic"):
        SimulatedModel("scribe", skills={"who": 0.99})


def test_a_model_has_each_fact_right_by_its_own_skill(pool: Client) -> None:
    found = shares(pool, "scribe", lambda _: None)
    assert found["who"] > 0.9
    assert max(found["where"], found["cost"]) < 0.7


def test_a_summary_shown_is_put_right_where_the_next_model_knows_better_and_else_believed(pool: Client) -> None:
    def half(question: Question) -> str:
        return question.answer.replace(str(fact_in(question.answer, "where")), "Far Away")

    found = shares(pool, "guide", half)
    assert found["where"] > 0.9
    assert found["who"] == found["cost"] == 1.0
