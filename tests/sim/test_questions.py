"""Questions: each family solves its own texts, and labels are true."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from focalroute.core.errors import ConfigError
from focalroute.sim import TOPICS, generate, solve, stream
from focalroute.sim.prompt import read_prompt
from focalroute.sim.questions import alternatives, find

KNOWN = [
    ("What is 17 + 25?", "42"),
    ("What is 3 + 4 * 5?", "23"),
    ("What is 30 - 100?", "-70"),
    ("What is 12 * 12 - 44?", "100"),
    ('How many times does the letter "s" occur in "mississippi lantern"?', "4"),
    ("Which day of the week is 21 November 2026?", "Saturday"),
    ("Which date is 30 days after 15 February 2024?", "16 March 2024"),
    ("Which date is 10 days before 5 January 2021?", "26 December 2020"),
    ("Ann lies. Ben says that Ann lies. Cid says that Ben lies. Does Cid tell the truth?", "No"),
    ("Ann is older than Ben. Cid is younger than Ben. Who is the youngest?", "Cid"),
    ("Ben is older than Cid. Ann is older than Ben. Who is the second oldest?", "Ben"),
    ("Which number comes next: 3, 7, 11, 15, 19?", "23"),
    ("Which number comes next: 3, 6, 12, 24, 48?", "96"),
    ("Which number comes next: 1, 2, 4, 7, 11?", "16"),
    ("Which number comes next: 2, 3, 5, 8, 13?", "21"),
    ("How many minutes are 3.25 hours?", "195"),
    ("How many kilograms are 1250 grams?", "1.25"),
]


@pytest.mark.parametrize(("text", "answer"), KNOWN)
def test_families_know_what_a_person_knows(text: str, answer: str) -> None:
    found = solve(f"Please think.\n{text}\n\nA) 1\nB) 2")
    assert found is not None
    assert found[1] == answer


@pytest.mark.parametrize("topic", TOPICS)
def test_every_generated_question_is_solved_from_its_text_and_its_choices_are_sound(topic: str) -> None:
    rng = Random(topic)
    for _ in range(400):
        question = generate(topic, rng)
        assert solve(question.text) == (topic, question.answer)
        assert 2 <= len(question.choices) <= 8
        assert len(set(question.choices)) == len(question.choices)
        assert all(choice and choice == choice.strip() for choice in question.choices)


@pytest.mark.parametrize("topic", TOPICS)
def test_the_right_choice_may_stand_anywhere(topic: str) -> None:
    rng = Random(5)
    labels = {generate(topic, rng).label for _ in range(200)}
    assert len(labels) >= 2
    assert 0 in labels


@pytest.mark.parametrize("mark", ["{}) ", "{}. ", "({}) ", "{}: ", "  {}) "])
@pytest.mark.parametrize("topic", TOPICS)
def test_a_question_and_its_choices_are_read_back_from_a_prompt(topic: str, mark: str) -> None:
    for question in stream(30, seed=2, topics=[topic]):
        lines = "\n".join(mark.format("ABCDEFGH"[i]) + choice for i, choice in enumerate(question.choices))
        prompt = read_prompt(f"Answer this question.\n\n{question.text}\n\n{lines}\n\nReply with the letter only.")
        assert prompt.texts == question.choices
        assert prompt.found is not None
        assert prompt.found.question == question.text
        assert prompt.terse


def test_a_list_of_labels_is_read_as_choices() -> None:
    assert read_prompt("Is it so?\n\nAnswer with one of these only: yes, no.").letters == ("yes", "no")


@settings(max_examples=200)
@given(st.text(max_size=300))
def test_no_text_breaks_the_reader(text: str) -> None:
    assert read_prompt(text).key in text


@pytest.mark.parametrize(
    "text",
    [
        "Which day of the week is 31 February 2024?",
        "Which date is 90000 days after 1 January 9990?",
        "Who is the oldest?",
        "Ann is older than Ben. Ben is older than Ann. Who is the oldest?",
        "Ann is older than Ben. Cid is older than Ben. Who is the oldest?",
        "How many hours are 3 kilograms?",
        "Which number comes next: 5, 1, 9, 2, 8?",
        "",
    ],
)
def test_a_question_without_an_answer_is_not_answered(text: str) -> None:
    assert solve(text) is None


def test_the_same_seed_gives_the_same_stream_and_another_seed_another() -> None:
    assert list(stream(50, seed=1)) == list(stream(50, seed=1))
    assert list(stream(50, seed=1)) != list(stream(50, seed=2))
    assert list(stream(20, seed=1)) == list(stream(50, seed=1))[:20]


def test_a_drifting_stream_turns_its_mix() -> None:
    questions = list(stream(1000, seed=3, drift=0.5))
    early = [sum(q.topic in TOPICS[:4] for q in half) for half in (questions[:500], questions[500:])]
    assert early[0] > 380
    assert early[1] < 200


def test_free_form_alternatives_hold_the_right_answer_first_and_never_change() -> None:
    found = find("What is 17 + 25?")
    assert found is not None
    offered = alternatives(found, 4)
    assert offered[0] == "42"
    assert len(set(offered)) == 4
    assert alternatives(found, 4) == offered


@pytest.mark.parametrize(
    "arguments",
    [
        {"n": -1},
        {"n": "x"},
        {"topics": ()},
        {"topics": ("physics",)},
        {"topics": "dates"},
        {"drift": 0.0},
        {"drift": 1.5},
    ],
)
def test_wrong_arguments_of_a_stream_are_config_errors(arguments: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(arguments)).removesuffix("s")):
        stream(**{"n": 1, **arguments})  # type: ignore[arg-type]


def test_an_unknown_topic_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="arithmetic"):
        generate("physics", Random(0))
