"""The million inputs of `tests.benchmarks.fuzz` in little, and what hypothesis makes up."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.benchmarks.fuzz import fuzz
from tests.fuzzing import targets
from tests.fuzzing.targets import TARGETS, Target

SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=40))
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


def likely(**fields: Any) -> st.SearchStrategy[Any]:
    """An object with these fields, or something else in the place of some of them."""
    return st.fixed_dictionaries({}, optional={name: value | ANYTHING for name, value in fields.items()})


TOP = st.lists(likely(token=st.sampled_from("AB "), logprob=st.floats(-20, 1)), max_size=3)
TOKENS = st.lists(likely(token=st.text(max_size=3), logprob=st.floats(-20, 1), top_logprobs=TOP), max_size=4)
LOGPROBS = likely(content=TOKENS, tokens=st.lists(st.text(max_size=3), max_size=3), token_logprobs=st.lists(SCALARS))
MESSAGE = likely(content=st.text(alphabet='AB answeris:.()*"“”\n', max_size=60), role=st.just("assistant"))
CHOICE = likely(
    message=MESSAGE, delta=MESSAGE, index=st.integers(0, 3), finish_reason=st.just("stop"), logprobs=LOGPROBS
)
USAGE = likely(prompt_tokens=st.integers(), completion_tokens=st.integers(), cost=st.floats())
REPLY = likely(choices=st.lists(CHOICE, max_size=3), usage=USAGE)


@settings(max_examples=40)
@given(REPLY)
def test_any_reply_is_read_or_a_typed_failure(payload: Any) -> None:
    targets.reply(json.dumps(payload).encode())


@settings(max_examples=30)
@given(st.lists(REPLY, max_size=4))
def test_any_stream_is_read_or_a_typed_failure(events: list[Any]) -> None:
    targets.stream(b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events))


@settings(max_examples=30)
@given(st.text(max_size=300))
def test_any_text_has_a_normal_form_that_is_its_own_or_none(said: str) -> None:
    targets.text(said.encode("utf-8", "replace"))


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_no_reader_raises_anything_but_its_own_errors(target: Target) -> None:
    """A few hundred mutations of right inputs for each."""
    fuzz(target, max(8, target.inputs // 1000), seed=1)
