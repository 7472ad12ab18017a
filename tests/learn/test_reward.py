"""The credit that a label or a reward gives each member."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from focalroute.answers import candidate_key, normal_form
from focalroute.answers.tool_calls import calls_form, calls_text
from focalroute.core.errors import BadLabel, FeedbackError
from focalroute.core.records import Evidence, Feedback, Labelled, Masses, Member, Outcome, Trajectory, preference
from focalroute.learn.reward import credit, judged, label_key, outranks, reward_of, unjudged
from focalroute.observe.layout import MEMBER, slices, width
from focalroute.store.base import SYNTHESIS, StoredAnswer, StoredProbe


def stored(
    *candidates: str, backs: dict[str, int], q: tuple[float, ...], kind: str = "choice", answered: int = 0
) -> StoredAnswer:
    members = {name: Member(1, candidate, 5, 0.1, Decimal("0.001")) for name, candidate in backs.items()}
    keys = tuple(candidate_key(candidate) for candidate in candidates)
    return StoredAnswer("id", 1.0, keys, kind, answered, q, members, None, "{}")


def told(answer: StoredAnswer, *, reward: float = 0.0, label: str | None = None) -> Outcome:
    return credit(answer, Feedback("id", reward, label, "user", 2.0))


THREE = stored("x", "y", "z", backs={"a": 0, "b": 0, "c": 1, "d": 2}, q=(0.5, 0.4, 0.1))
TWO = stored("x", "y", backs={"a": 0, "b": 1}, q=(0.6, 0.4))
FREE = stored("42", "41", backs={"a": 0, "b": 1}, q=(0.6, 0.4), kind="number")


# -- rewards -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_", "reward"),
    [
        *((True, 1.0), (False, -1.0), (1, 1.0), (-1, -1.0), (0, 0.0), (0.25, 0.25), (Decimal("0.25"), 0.25)),
        *((np.bool_(True), 1.0), (np.False_, -1.0), (np.float32(0.25), 0.25), (np.int64(-1), -1.0)),
    ],
)
def test_a_reward_is_a_number_or_a_bool(given_: Any, reward: float) -> None:
    assert reward_of(given_) == reward
    assert isinstance(reward_of(given_), float)


@pytest.mark.parametrize(
    "reward",
    [1.01, -2, float("nan"), float("inf"), "1", None, [1], 10**400, Decimal("sNaN"), np.float32(2), np.array([1.0])],
)
def test_anything_else_is_refused(reward: Any) -> None:
    with pytest.raises(FeedbackError, match=r"number in \[-1, 1\], or a bool"):
        reward_of(reward)


# -- labels ------------------------------------------------------------------------------------------------------------


def test_a_choice_is_named_by_its_value_or_its_index() -> None:
    assert label_key("y", THREE) == candidate_key("y")
    assert judged(THREE, label_index=2)[1] == candidate_key("z")
    numbers = replace(THREE, keys=tuple(map(candidate_key, ("1", "2", "3"))))
    assert label_key(2, numbers) == candidate_key("2")
    assert label_key(np.int64(2), numbers) == candidate_key("2")  # type: ignore[arg-type]
    assert judged(THREE, label_index=np.int64(2))[1] == candidate_key("z")  # type: ignore[arg-type]
    for index in (3, -1, True, "0", 1.0, 10**5000):
        with pytest.raises(BadLabel, match=r"label_index: .* from 0 to 2"):
            judged(THREE, label_index=index)  # type: ignore[arg-type]
    with pytest.raises(BadLabel, match=r"got 3$"):  # as it was given
        judged(THREE, label_index=3)


@pytest.mark.parametrize(("score", "reward"), [(0, -1.0), (Decimal("0.75"), 0.5), (np.float32(1), 1.0)])
def test_a_score_is_a_number(score: Any, reward: float) -> None:
    assert judged(THREE, score=score) == (reward, None)
    refused: tuple[Any, ...] = (True, np.True_, "1", math.nan, 1.01, 10**400)
    for wrong in refused:
        with pytest.raises(FeedbackError, match=r"number in \[0, 1\]; got \w{,5}$|got 1\.01"):
            judged(THREE, score=wrong)


@pytest.mark.parametrize("label", [3, -1, "w", "X", "", True, False, 1.0, None, b"x"])
def test_a_label_outside_the_choices_is_a_bad_label(label: Any) -> None:
    with pytest.raises(BadLabel, match="label: "):
        label_key(label, THREE)


def test_a_bad_label_is_a_value_error_and_does_not_repeat_the_text() -> None:
    with pytest.raises(ValueError, match="not among the choices") as caught:
        label_key("my private answer", THREE)
    assert "private" not in str(caught.value)


def test_a_free_form_label_is_read_like_a_reply() -> None:
    assert label_key("It is $42.00", FREE) == FREE.keys[0]
    short = stored("new york", backs={"a": 0}, q=(1.0,), kind="short")
    assert label_key("The answer is: New York.", short) == short.keys[0]
    text = stored("One two", backs={"a": 0}, q=(1.0,), kind="text")
    assert label_key(" One\ntwo ", text) == text.keys[0]


@pytest.mark.parametrize("label", ["1/3", 1 / 3, np.float64(1 / 3), Decimal(1) / Decimal(3), Fraction(1, 3)])
def test_the_value_of_a_fraction_labels_it(label: Any) -> None:
    """The answer's own value, a float, counted as another answer."""
    third = stored("1/3", "0.3333", backs={"a": 0, "b": 1}, q=(0.6, 0.4), kind="number")
    assert label_key(label, third) == third.keys[0]
    assert label_key(0.3333, third) == third.keys[1]
    assert label_key(Decimal("0.333333"), third) == label_key(Decimal("0.333333"), FREE) not in third.keys
    assert label_key(Decimal("1E+400"), third) not in third.keys


def test_a_free_form_label_that_no_member_gave_is_not_an_error() -> None:
    assert label_key("40", FREE) not in FREE.keys


def test_a_label_of_a_custom_kind_is_the_normal_form_itself() -> None:
    custom = stored("A|B", backs={"a": 0}, q=(1.0,), kind="custom")
    assert label_key("A|B", custom) == custom.keys[0]


def test_a_free_form_label_without_an_answer_in_it_is_a_bad_label() -> None:
    with pytest.raises(BadLabel, match="holds no answer of the kind 'number'"):
        label_key("a few", FREE)
    with pytest.raises(BadLabel, match=r"give the right answer as text, or tool calls, each .*; got list"):
        label_key([42], FREE)


def test_tool_calls_may_be_labelled_by_their_json() -> None:
    """`answer.value` is such a text: as a label it counted as another answer, so the answer itself was wrong."""
    call = {"name": "add", "arguments": {"a": 17, "b": 25}}
    right = calls_form([call])
    for kind in ("text", "number"):
        asked = stored("52", right, backs={"a": 0, "b": 1}, q=(0.4, 0.6), kind=kind)
        for label in (call, [call], calls_text([call]), json.dumps(call), json.dumps({"function": call})):
            assert label_key(label, asked) == asked.keys[1]
        assert label_key("52", asked) == asked.keys[0]
        assert judged(asked, preferred=calls_text([call])) == (-1.0, preference(asked.keys[1], asked.keys[0]))
    assert label_key('{"name": "sub"}', stored("x", backs={"a": 0}, q=(1.0,), kind="text")) not in asked.keys


def test_a_missing_label_is_named() -> None:
    """As pandas has them: "got float" did not say what is wrong, since a number may be a label."""
    with pytest.raises(BadLabel, match=r"the right answer, got nan$"):
        label_key(math.nan, FREE)


def test_the_label_of_an_optional_answer_without_a_value_is_said() -> None:
    structured = stored("null", "5", backs={"a": 0}, q=(0.5, 0.5), kind="structured")
    with pytest.raises(FeedbackError, match='the right answer None is label="null"'):
        judged(structured, label=None)
    assert judged(structured, label="null") == (1.0, structured.keys[0])


def test_a_structured_text_may_be_labelled_by_itself_or_by_its_json() -> None:
    """As `answer.value`, which looks like other JSON or like none; what is a candidate as JSON is read so."""
    texts = stored('"42"', '"x"', backs={"a": 0}, q=(0.6, 0.4), kind="structured")
    for said, right in (("42", 0), ('"42"', 0), ("x", 1), ('"x"', 1)):
        assert label_key(said, texts) == texts.keys[right]
    with pytest.raises(BadLabel, match="of a text, date or time in quotes"):
        label_key("y", texts)
    both = stored('"42"', "42", backs={"a": 0}, q=(0.6, 0.4), kind="structured")
    assert (label_key("42", both), label_key('"42"', both)) == (both.keys[1], both.keys[0])


def test_a_whole_number_labels_a_free_form_question_as_its_text_does() -> None:
    assert label_key(7, FREE) == label_key("7", FREE)


@given(st.text(st.characters(), max_size=30), st.sampled_from(["number", "short", "text"]))
def test_a_label_and_a_reply_of_the_same_text_are_the_same_answer(text: str, kind: str) -> None:
    form = normal_form(text, kind)
    if form is not None:
        answer = stored(form, backs={"a": 0}, q=(1.0,), kind=kind)
        assert label_key(text, answer) == answer.keys[0]


# -- whose word counts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "other", "replaces"),
    [
        ("user", "judge", True),
        ("user", "user", True),
        ("judge", "user", False),
        ("judge", "judge", True),
        ("expert", "user", True),
        ("user", "expert", True),
        ("judge", "expert", False),
    ],
)
def test_a_judge_is_outranked_by_all_others(source: str, other: str, replaces: bool) -> None:
    assert outranks(source, other) is replaces


# -- credit ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [THREE, FREE], ids=["closed", "free-form"])
@pytest.mark.parametrize("right", [0, 1])
def test_a_label_is_exact_for_every_member(answer: StoredAnswer, right: int) -> None:
    outcome = told(answer, reward=1.0 if right == 0 else -1.0, label=answer.keys[right])
    assert outcome.right == {name: float(member.candidate == right) for name, member in answer.members.items()}
    assert outcome.inferred == frozenset()


@pytest.mark.parametrize("answer", [THREE, FREE], ids=["closed", "free-form"])
def test_a_reply_without_an_answer_is_wrong_whatever_is_said(answer: StoredAnswer) -> None:
    silent = replace(answer, members={**answer.members, "silent": Member(1, None, 900, 0.1, Decimal("0.001"))})
    plain = told(answer, label=answer.keys[1])
    assert told(silent, label=answer.keys[1]).right == {**plain.right, "silent": 0.0}
    for reward in (1.0, 0.5, -1.0):
        plain, outcome = told(answer, reward=reward), told(silent, reward=reward)
        assert outcome.right == {**plain.right, "silent": 0.0}
        assert outcome.inferred == plain.inferred


def test_a_label_that_no_member_gave_makes_all_wrong() -> None:
    assert told(FREE, reward=-1.0, label=candidate_key("7")).right == {"a": 0.0, "b": 0.0}


def test_after_a_reward_of_1_members_that_agree_are_right_and_the_others_wrong() -> None:
    outcome = told(THREE, reward=1.0)
    assert outcome.right == {"a": 1.0, "b": 1.0, "c": 0.0, "d": 0.0}
    assert outcome.inferred == frozenset()


def test_after_a_reward_of_minus_1_the_others_share_the_rest_of_the_posterior_as_inferred() -> None:
    outcome = told(THREE, reward=-1.0)
    assert outcome.right == {"a": 0.0, "b": 0.0, "c": pytest.approx(0.8), "d": pytest.approx(0.2)}
    assert outcome.inferred == {"c", "d"}


def test_of_two_choices_one_is_wrong_and_so_the_other_right_exactly() -> None:
    outcome = told(TWO, reward=-1.0)
    assert outcome.right == {"a": 0.0, "b": 1.0}
    assert outcome.inferred == frozenset()


def test_an_answer_given_against_the_first_candidate_is_credited_by_its_own() -> None:
    answer = stored("x", "y", backs={"a": 0, "b": 1}, q=(0.4, 0.6), answered=1)
    assert told(answer, reward=1.0).right == {"a": 0.0, "b": 1.0}


@pytest.mark.parametrize("reward", [0.5, 0.0, -0.5])
def test_a_graded_reward_is_the_chance_that_the_answer_is_right_and_leaves_the_others_the_rest(reward: float) -> None:
    y = (reward + 1) / 2
    three, two, free = (told(answer, reward=reward) for answer in (THREE, TWO, FREE))
    assert three.right == {"a": y, "b": y, "c": pytest.approx(0.8 * (1 - y)), "d": pytest.approx(0.2 * (1 - y))}
    assert two.right == {"a": y, "b": 1 - y}
    assert free.right == {"a": y, "b": pytest.approx(1 - y)}
    for outcome in (three, two, free):
        assert outcome.inferred == outcome.right.keys()


def test_a_bare_reward_on_a_number_says_how_right_other_numbers_are() -> None:
    """Probability left for answers that no member gave is not shared among the members."""
    answer = replace(FREE, probabilities=(0.6, 0.1))
    assert told(answer, reward=1.0).right == {"a": 1.0, "b": 0.0}
    assert told(answer, reward=1.0).inferred == frozenset()
    wrong = told(answer, reward=-1.0)
    assert wrong.right == {"a": 0.0, "b": pytest.approx(0.25)}
    assert wrong.inferred == {"b"}
    assert told(probed(answer, new="7"), reward=-1.0).right.keys() == {"a", "b"}  # not weighed before


@pytest.mark.parametrize("kind", ["text", "structured", "custom"])
@pytest.mark.parametrize(("reward", "value"), [(1.0, 1.0), (0.5, 0.75), (-1.0, 0.0)])
def test_a_bare_reward_teaches_nothing_about_other_answers_that_may_be_right_too(
    kind: str, reward: float, value: float
) -> None:
    outcome = told(replace(FREE, kind=kind), reward=reward)
    assert outcome.right == {"a": value}
    assert outcome.inferred == (frozenset() if abs(reward) == 1 else {"a"})


def test_a_wrong_answer_that_was_held_for_certain_leaves_the_others_even() -> None:
    certain = stored("x", "y", "z", backs={"a": 0, "b": 1}, q=(1.0, 0.0, 0.0))
    assert told(certain, reward=-1.0).right == {"a": 0.0, "b": 0.5}


@given(st.lists(st.floats(1e-6, 1), min_size=2, max_size=8), st.data())
def test_inferred_values_are_probabilities_that_add_up_to_one(masses: list[float], data: st.DataObject) -> None:
    q = tuple(mass / sum(masses) for mass in masses)
    names = [f"m{i}" for i in range(len(q))]
    answered = data.draw(st.integers(0, len(q) - 1))
    answer = stored(*names, backs={name: i for i, name in enumerate(names)}, q=q, answered=answered)
    right = told(answer, reward=-1.0).right
    assert right[names[answered]] == 0
    assert all(0 <= value <= 1 for value in right.values())
    assert sum(right.values()) == pytest.approx(1)


def test_an_outcome_names_its_answer_and_only_the_members_that_were_asked() -> None:
    outcome = told(THREE, reward=1.0)
    assert (outcome.answer_id, outcome.members) == ("id", THREE.members)
    assert set(outcome.right) == set(THREE.members)


@pytest.mark.parametrize(
    ("answer", "said", "right"),
    [
        (THREE, {"label": THREE.keys[2]}, 2),
        (TWO, {"reward": 1.0}, 0),
        (TWO, {"reward": -1.0}, 1),
        (TWO, {"reward": 0.5}, None),
        (THREE, {"reward": 1.0}, None),  # whether it is known must not depend on whether the answer was right
        (THREE, {"reward": -1.0}, None),
        (FREE, {"label": FREE.keys[1]}, None),
    ],
)
def test_the_right_choice_goes_along_where_every_answer_would_reveal_it(
    answer: StoredAnswer, said: dict[str, Any], right: int | None
) -> None:
    assert told(answer, **said).labelled == (None if right is None else Labelled(None, answer.keys, right))


def test_a_preference_says_nothing_about_confidence() -> None:
    """The better of two candidates may be as wrong as the other."""
    given, other = THREE.keys[:2]
    assert told(THREE, reward=1.0).correct == 1.0
    for reward, label in ((1.0, preference(given, other)), (-1.0, preference(other, given))):
        assert told(THREE, reward=reward, label=label).posterior is None


@pytest.mark.parametrize("said", [{"label": candidate_key("x")}, {"reward": 0.5}])
def test_the_texts_features_go_along(said: dict[str, Any]) -> None:
    features = np.array([0.6, 0.8], np.float32)
    seen = Evidence(np.zeros((3, 4, 1), np.float32), np.zeros((3, 1), np.float32), (0, 1, 2, 3))
    made = Trajectory(1, ("a", "b", "c", "d"), (), seen, 0, features=features)
    assert told(replace(THREE, trajectory=made), **said).features is features
    assert told(THREE, **said).features is None


# -- without feedback --------------------------------------------------------------------------------------------------


def sure(query: int, *, members: int = 2, answer_id: str = "1") -> StoredAnswer:
    """Both members' probabilities are .7 and .3, and so is the posterior."""
    seen = np.zeros((2, members, width(MEMBER)), np.float32)
    seen[:, :, slices(MEMBER)["log_probability"].start] = np.log([[0.7], [0.3]]) / 8
    names = ("a", "b")[:members]
    backing = Evidence(seen, np.zeros((2, 1), np.float32), tuple(range(members)))
    made = Trajectory(1, names, (), backing, 0, features=np.array([1, query], np.float32))
    answer = stored("x", "y", backs=dict.fromkeys(names, 0), q=(0.7, 0.3))
    return replace(answer, id=answer_id, trajectory=made)


def drawn(answer: StoredAnswer) -> Masses | None:
    return unjudged(answer)[0].masses


def test_without_feedback_probabilities_are_held_against_a_choice_drawn_from_the_posterior() -> None:
    labels = [masses.label for n in range(400) if (masses := drawn(sure(n))) is not None]
    assert len(labels) == 400
    assert np.mean(labels) == pytest.approx(0.3, abs=0.07)
    again = drawn(sure(17, answer_id="2"))  # ids differ from run to run, also with a seed
    assert again is not None
    assert again.label == labels[17]
    assert again.log_mass["a"] == pytest.approx(np.log([0.7, 0.3]))


def test_one_member_alone_is_not_held_against_itself() -> None:
    assert drawn(sure(1, members=1)) is None


# -- probes ------------------------------------------------------------------------------------------------------------


def probed(answer: StoredAnswer, **says: str) -> StoredAnswer:
    probes = [StoredProbe("id", name, candidate_key(said), 7, 0.2, None) for name, said in says.items()]
    return replace(answer, probes=tuple(probes))


def test_a_label_tells_of_those_probed_as_of_members() -> None:
    outcome = told(probed(THREE, new="y", old="x"), label=candidate_key("y"))
    assert outcome.right == {"a": 0, "b": 0, "c": 1, "d": 0, "new": 1, "old": 0}
    assert outcome.inferred == frozenset()
    assert outcome.members["new"] == Member(0, 1, 7, 0.2, None)
    assert {name: outcome.members[name] for name in "abcd"} == THREE.members


def test_a_bare_reward_tells_of_those_probed_as_of_members() -> None:
    answer = probed(THREE, agrees="x", differs="y")
    assert told(answer, reward=1.0).right == {"a": 1, "b": 1, "c": 0, "d": 0, "agrees": 1, "differs": 0}
    wrong = told(answer, reward=-1.0)
    assert wrong.right["agrees"] == 0
    assert wrong.right["differs"] == wrong.right["c"] == pytest.approx(0.8)
    assert wrong.inferred == {"c", "d", "differs"}


def test_a_free_form_answer_that_only_a_probe_gave_is_right_or_wrong_by_the_label() -> None:
    answer = probed(FREE, new="43", same="41")
    assert told(answer, label=candidate_key("43")).right == {"a": 0, "b": 0, "new": 1, "same": 0}
    assert told(answer, label=candidate_key("41")).right == {"a": 0, "b": 1, "new": 0, "same": 1}
    assert told(answer, reward=1.0).right == {"a": 1, "b": 0, "new": 0, "same": 0}


def test_a_probe_without_an_answer_is_wrong() -> None:
    answer = replace(FREE, probes=(StoredProbe("id", "silent", None, 7, 0.2, None),))
    assert told(answer, label=candidate_key("41")).right == {"a": 0, "b": 1, "silent": 0}
    assert told(answer, reward=1.0).right == {"a": 1, "b": 0, "silent": 0}
    assert told(answer, label=candidate_key("41")).members["silent"] == Member(0, None, 7, 0.2, None)


def test_every_asked_member_is_credited_as_asked() -> None:
    """A probe of a member, which there should not be, changes nothing."""
    assert told(probed(THREE, a="y"), label=candidate_key("y")) == told(THREE, label=candidate_key("y"))


def test_a_reward_for_what_was_written_from_the_replies_is_shared_as_inferred() -> None:
    """Nobody alone has earned it; a label says no more of the members than whether that text was right."""
    written = stored("x", "y", "w", backs={"a": 0, "b": 1}, q=(0.6, 0.4, 0.0), kind=SYNTHESIS, answered=2)
    graded = told(written, reward=0.5)
    assert graded.right == {"a": 0.75, "b": 0.75}
    assert graded.inferred == {"a", "b"}
    assert label_key(" w ", written) == written.keys[2]
    assert told(written, reward=1.0, label=written.keys[2]).right == {"a": 1.0, "b": 1.0}
    silent = replace(written, members={**written.members, "c": Member(1, None, 5, 0.1, None)})
    assert told(silent, reward=0.5).right == {"a": 0.75, "b": 0.75, "c": 0.0}
    assert told(silent, reward=0.5).inferred == {"a", "b"}
