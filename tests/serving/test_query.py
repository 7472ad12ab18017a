"""What `ask` takes, and what it refuses before anything is paid for."""

from __future__ import annotations

import time
from types import MappingProxyType
from typing import Any, Literal, NewType, cast

import numpy as np
import pytest
from openai.types.chat import ChatCompletionMessage

from focalroute.answers import TYPES
from focalroute.core.errors import ConfigError
from focalroute.core.records import Query
from focalroute.serving.query import make_query, new_id

USER = {"role": "user", "content": "Which?"}


def test_a_text_becomes_one_user_message() -> None:
    query = make_query("Which planet?", choices=["Mars", "Venus"], task="sky", tags=["t1"], params={"seed": 1})
    assert query.messages == ({"role": "user", "content": "Which planet?"},)
    assert query.choices == ("Mars", "Venus")
    assert (query.task, query.tags, query.params) == ("sky", ("t1",), {"seed": 1})
    assert query.text == "Which planet?"


def test_every_query_has_its_own_id() -> None:
    assert make_query("a").id != make_query("a").id


def test_messages_of_the_openai_library_are_passed_on_as_it_sends_them() -> None:
    """As its own guide to tools has it: messages.append(completion.choices[0].message)."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    message = ChatCompletionMessage.model_validate({**said, "refusal": None, "function_call": None})
    told = {"role": "tool", "tool_call_id": "c", "content": "4"}
    query = make_query([{"role": "user", "content": "?"}, message, told])
    assert query.messages == ({"role": "user", "content": "?"}, said, told)


def test_messages_are_passed_on_as_they_are() -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        MappingProxyType(USER),
        {"role": "assistant", "content": None},
    ]
    assert make_query(messages).messages == tuple(messages)


@pytest.mark.parametrize(
    "prompt", ["", "  \n", [], (), None, 5, b"text", ["text"], [{}], [{"content": "x"}], {"role": "user"}]
)
def test_an_empty_or_malformed_prompt_is_refused(prompt: Any) -> None:
    with pytest.raises(ConfigError, match="query: "):
        make_query(prompt)


@pytest.mark.parametrize("content", [5, {"text": "x"}, 1.5])
def test_a_message_content_is_text_or_parts(content: Any) -> None:
    with pytest.raises(ConfigError, match="query: "):
        make_query([{"role": "user", "content": content}])


@pytest.mark.parametrize(
    ("choices", "says"),
    [
        ([], "at least 2 choices, got 0"),
        (["only"], "at least 2 choices, got 1"),
        (["a", "b", "a"], "distinct; number 1 is repeated"),
        (["a", " a"], "distinct"),
        ("abc", "give a list such as"),
        (5, "give a list such as"),
        (b"ab", "give a list such as .* got bytes"),
        (np.array("ab"), "give a list such as .* got ndarray"),
        (np.array([["a", "b"], ["c", "d"]]), "give a list such as .* got ndarray"),
        (["a", ""], "non-empty string"),
        (["a", "  "], "non-empty string"),
        (["a", b"b"], "got bytes"),
        (["a", None], "got NoneType"),
        (np.array([32, None], float), "a value is missing"),
    ],
)
def test_choices_are_two_or_more_distinct_texts(choices: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=f"choices: .*{says}"):
        make_query("q", choices=choices)


@pytest.mark.parametrize("values", [("a", "b"), (1, 2), (1.5, 2.0), (True, False)])
def test_choices_may_be_any_row_of_values_and_arrays_are_read_as_python_s_own(values: tuple[Any, ...]) -> None:
    for row in (values, iter(values), np.array(values), np.array(values, dtype=object), list(np.array(values))):
        made = make_query("q", choices=row).values
        assert made == values
        assert [*map(type, made)] == [*map(type, values)]


def test_a_closed_question_offers_no_tools() -> None:
    tool = {"type": "function", "function": {"name": "add"}}
    with pytest.raises(ConfigError, match="tools: a closed question cannot call any"):
        make_query("q", choices=["a", "b"], tools=[tool])
    with pytest.raises(ConfigError, match="tools: a closed question cannot call any"):
        make_query("q", answer=cast(Any, Literal["a", "b"]), params={"tools": [tool]})
    past = make_query("q", choices=["a", "b"], tools=[tool], tool_choice="none")  # as earlier messages may have called
    assert past.params["tools"] == [tool]
    assert make_query("q", choices=["a", "b"], tools=[]).choices == ("a", "b")


def test_choices_that_differ_in_case_are_distinct() -> None:
    assert make_query("q", choices=["a", "A"]).choices == ("a", "A")


def test_a_query_is_closed_or_free_form_but_not_both() -> None:
    with pytest.raises(ConfigError, match="choices, answer: "):
        make_query("q", choices=["a", "b"], answer="number")


@pytest.mark.parametrize("kind", ["numbers", "", 0, ["number"], object()])
def test_an_unknown_kind_of_answer_is_refused(kind: Any) -> None:
    with pytest.raises(ConfigError, match="answer: unknown kind"):
        make_query("q", answer=kind)


@pytest.mark.parametrize("kind", ["number", "short", "text", str.upper, None])
def test_a_known_kind_or_a_callable_is_kept(kind: Any) -> None:
    assert make_query("q", answer=kind).answer is kind


def test_a_new_name_for_a_type_is_that_type() -> None:
    """It is a function that gives its argument back: every reply was an answer, as text."""
    count = NewType("count", int)
    assert make_query("q", answer=NewType("apples", count)).answer is TYPES[int]


@pytest.mark.parametrize("tags", ["tenant", None, 5, [1], ["a", None], ["\ud800"], ["a\0b"]])
def test_tags_are_a_list_of_texts(tags: Any) -> None:
    with pytest.raises(ConfigError, match="tags: "):
        make_query("q", tags=tags)


def test_tags_may_come_from_an_iterator_or_an_array() -> None:
    for tags in ((tag for tag in ("a", "b")), np.array(["a", "b"])):
        assert make_query("q", tags=tags).tags == ("a", "b")  # type: ignore[arg-type]


@pytest.mark.parametrize("params", ["seed", 5, ["seed"]])
def test_params_are_a_mapping(params: Any) -> None:
    with pytest.raises(ConfigError, match="params: "):
        make_query("q", params=params)


def test_params_are_not_shared_with_the_caller() -> None:
    params = {"seed": 1}
    query = make_query("q", params=params)
    params["seed"] = 2
    assert query.params == {"seed": 1}


def text_of(*messages: dict[str, Any]) -> str:
    return Query("id", messages).text


def test_the_text_is_the_last_user_messages() -> None:
    assert text_of(USER, {"role": "user", "content": "And now?"}, {"role": "assistant", "content": "Hm."}) == "And now?"


def test_the_text_of_multimodal_content_is_that_of_its_text_parts() -> None:
    parts = [
        {"type": "text", "text": "What is"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "text", "text": "on this?"},
        {"type": "text", "text": None},
        "not a part",
    ]
    assert text_of({"role": "user", "content": parts}) == "What is on this?"


@pytest.mark.parametrize(
    "messages", [[{"role": "system", "content": "x"}], [{"role": "user"}], [{"role": "user", "content": []}]]
)
def test_without_user_text_it_is_empty(messages: list[dict[str, Any]]) -> None:
    assert text_of(*messages) == ""


def test_later_edits_by_the_caller_do_not_reach_the_query() -> None:
    messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "Which?"}]}]
    made = make_query(messages)
    messages[0]["content"][0]["text"] = "edited"
    messages[0]["role"] = "edited"
    assert made.text == "Which?"
    assert made.messages == ({"role": "user", "content": [{"type": "text", "text": "Which?"}]},)


def test_a_request_that_cannot_be_sent_is_refused_before_anything_is_reserved() -> None:
    with pytest.raises(ConfigError, match="params: seed: cannot be sent as JSON"):
        make_query("Which?", params={"top_k": 5, "seed": object()})
    with pytest.raises(ConfigError, match="params: temperature: cannot be sent as JSON"):
        make_query("Which?", params={"temperature": float("nan")})
    with pytest.raises(ConfigError, match="query: cannot be sent as JSON"):
        make_query([{**USER, "name": b"bytes"}])


# -- ids ---------------------------------------------------------------------------------------------------------------


def test_an_id_begins_with_its_time_so_that_ids_sort_by_it() -> None:
    before = time.time_ns() // 1_000_000
    made = int(new_id()[:12], 16)
    assert before <= made <= time.time_ns() // 1_000_000


def test_later_ids_sort_later() -> None:
    first = new_id()
    while time.time_ns() // 1_000_000 == int(first[:12], 16):
        pass
    assert first < new_id()


def test_ids_are_32_hex_digits_and_unique() -> None:
    ids = [new_id() for _ in range(10_000)]
    assert len(set(ids)) == len(ids)
    assert all(len(one) == 32 and int(one, 16) for one in ids)
