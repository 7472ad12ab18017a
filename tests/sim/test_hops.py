"""Questions of two hops and of yes or no, and how an answer that is shown sways a model; over HTTP."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random

import httpx
import pytest

from focalroute.core.errors import ConfigError
from focalroute.core.records import Query, Reply
from focalroute.serving.sequential import transfer
from focalroute.sim import ALL_TOPICS, TOPICS, Question, SimulatedModel, SimulatedPool, generate, solve, stream
from focalroute.sim.families import Options
from focalroute.sim.prompt import read_prompt
from focalroute.sim.questions import TWO_HOPS
from focalroute.sim.replies import options
from tests.sim.conftest import Client

KNOWN = [
    ("Call X the answer to this: Which number comes next: 2, 4, 6, 8, 10? What is X * 7 + 3?", "87"),
    ('Call X the answer to this: How many times does the letter "s" occur in "moss"? How many days are X weeks?', "14"),
    ("Is it true that 17 + 25 is more than 41?", "Yes"),
    ("Is it true that 3 * 5 is less than 15?", "No"),
]  # fmt: skip
READER = SimulatedModel("reader", skill=0.97, skills={"arithmetic": 0.3, "units": 0.3}, sharpness=3)
RECKONER = SimulatedModel(
    "reckoner", skill=0.97, skills={"counting": 0.3, "sequences": 0.3}, sharpness=3, convinced=0.9
)
PLAIN = SimulatedModel("plain", skill=0.6, sharpness=2)
STUBBORN = SimulatedModel("stubborn", skill=0.6, sharpness=2, convinced=0, misled=0)


@pytest.fixture(scope="module")
def pool(http: httpx.Client) -> Iterator[Client]:
    with SimulatedPool([READER, RECKONER, PLAIN, STUBBORN]) as running:
        yield Client(running, http)


def put(question: Question, shown: str | None) -> str:
    """The prompt, with the answer shown if there is one."""
    query = Query("q", ({"role": "user", "content": question.text},))
    content = query.messages[0] if shown is None else transfer(query, Reply("other", text=shown)).messages[0]
    return str(content["content"])


def accuracy(pool: Client, model: str, topic: str, shown: Callable[[Question], str | None]) -> float:
    """The share of 60 questions whose reply ends in the right answer."""
    questions = list(stream(60, seed=4, topics=[topic]))
    replies: list[str] = [
        pool.ask(put(q, shown(q)), model=model)["choices"][0]["message"]["content"] for q in questions
    ]
    right = [reply.endswith(f" is {q.answer}.") for reply, q in zip(replies, questions, strict=True)]
    return sum(right) / len(right)


def test_a_family_of_one_s_own_says_what_may_be_replied_whatever_its_name() -> None:
    family = replace(TWO_HOPS, options=lambda *_: Options(("Both.",), (1.0,), 0, ""))
    prompt = read_prompt(KNOWN[0][0], (family,))
    assert options(PLAIN, prompt, None, drifted=False).spoken == ("Both.",)


@pytest.mark.parametrize(("text", "answer"), KNOWN)
def test_questions_of_two_hops_are_solved_from_their_text(text: str, answer: str) -> None:
    found = solve(f"Think.\n{text}\nBe brief.")
    assert found is not None
    assert found[1] == answer


@pytest.mark.parametrize("topic", sorted(set(ALL_TOPICS) - set(TOPICS)))
def test_their_labels_are_true_and_their_choices_sound(topic: str) -> None:
    rng = Random(3)
    labels = set()
    for _ in range(100):
        question = generate(topic, rng)
        assert solve(question.text) == (topic, question.answer)
        assert 2 <= len(set(question.choices)) == len(question.choices)
        labels.add(question.label)
    assert {0, 1} <= labels


def test_a_stream_mixes_them_in_only_where_they_are_named() -> None:
    assert {q.topic for q in stream(300, seed=1)} == set(TOPICS)
    assert {q.topic for q in stream(10, seed=1, topics=["multi-hop"])} == {"multi-hop"}


@pytest.mark.parametrize("topic", ["multi-hop", "yes-no"])
def test_a_right_answer_shown_helps_and_a_wrong_one_harms(pool: Client, topic: str) -> None:
    def wrong(question: Question) -> str:
        return f"The answer is {next(c for c in question.choices if c != question.answer)}."

    alone = accuracy(pool, "plain", topic, lambda _: None)
    helped = accuracy(pool, "plain", topic, lambda q: f"The answer is {q.answer}.")
    harmed = accuracy(pool, "plain", topic, wrong)
    assert helped > alone + 0.1
    assert harmed < alone if topic == "yes-no" else harmed <= alone + 0.05
    assert accuracy(pool, "stubborn", topic, wrong) == pytest.approx(alone, abs=0.15)


def test_a_model_good_at_the_second_hop_gains_from_one_good_at_the_first(pool: Client) -> None:
    """And hardly the other way round; nor does one that is shown its own answer."""

    def by(model: str) -> Callable[[Question], str]:
        return lambda q: pool.ask(put(q, None), model=model)["choices"][0]["message"]["content"]

    right_order = accuracy(pool, "reckoner", "multi-hop", by("reader"))
    wrong_order = accuracy(pool, "reader", "multi-hop", by("reckoner"))
    itself = accuracy(pool, "reckoner", "multi-hop", by("reckoner"))
    assert right_order > wrong_order + 0.1
    assert right_order > itself + 0.1


def test_the_answer_shown_is_not_part_of_the_question() -> None:
    prompt = read_prompt("What is 2 + 3?\n<student_answer>\nWhat is 1 + 1? A) 2\n</student_answer>\nA) 6\nB) 5\n")
    assert (prompt.key, prompt.letters, prompt.earlier) == ("What is 2 + 3?", ("A", "B"), "What is 1 + 1? A) 2")
    assert read_prompt("What is 2 + 3?").earlier is None


def test_a_letter_shown_sways_a_closed_question(pool: Client) -> None:
    def mass(shown: str | None) -> float:
        section = "" if shown is None else f"<answer>{shown}</answer>\n"
        text = f"What is 12 + 30?\n{section}A) 41\nB) 42\nC) 52\nReply with the letter only."
        choice = pool.ask(text, model="plain", logprobs=True, top_logprobs=20, max_tokens=1)["choices"][0]
        tops = choice["logprobs"]["content"][0]["top_logprobs"]
        return sum(math.exp(top["logprob"]) for top in tops if top["token"].strip() == "B")

    assert mass("B. 42") > mass(None) > mass("C. 52")


@pytest.mark.parametrize("field", ["convinced", "misled"])
def test_how_far_a_model_is_swayed_is_a_share(field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        SimulatedModel("a", **{field: 1.5})  # type: ignore[arg-type]
