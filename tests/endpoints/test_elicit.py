"""How questions are put and replies are read: parsing against decoys, scoring labels, counting samples."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from focalroute.core.errors import CallFailed
from focalroute.core.records import Query, Usage
from focalroute.endpoints.capabilities import NONE, Capabilities
from focalroute.endpoints.elicit import Plan, plan
from focalroute.endpoints.elicit.closed import choice_parser, drop_end_tokens, label_probabilities
from focalroute.endpoints.wire import Completion, CompletionChoice
from focalroute.endpoints.wire.fields import Token
from focalroute.serving.query import make_query

PLANETS = ("Jupiter", "Saturn", "Mars")
SCORED = Capabilities(True, 20, True, False, True)
SAMPLED_TOKEN = Capabilities(True, 0, False, False, True)
SAMPLES = Capabilities(True, 0, True, True, True)


def query(choices: tuple[str, ...] | None = PLANETS, content: Any = "Which has most moons?", **params: Any) -> Query:
    return Query(
        "q", ({"role": "system", "content": "S"}, {"role": "user", "content": content}), choices, params=params
    )


def completion(*texts: str, tokens: tuple[Token, ...] | None = None, finish: str = "stop") -> Completion:
    return Completion(tuple(CompletionChoice(t, finish, tokens) for t in texts), Usage(5, 1), "m", "i")


def token(text: str, p: float, **top: float) -> Token:
    return Token(text, math.log(p), {t: math.log(v) for t, v in top.items()})


def tops(text: str, top: Mapping[str, float]) -> Token:
    return Token(text, math.log(top[text]), {t: math.log(v) for t, v in top.items()})


def named(text: str, choices: tuple[str, ...] = PLANETS) -> str | None:
    found = choice_parser(choices).find(text)
    return None if found is None else choices[found.choice]


@pytest.mark.parametrize(
    "reply",
    [
        "B", " b", "B.", "**B**", "(B)", "B)", "`B`", "B. Saturn", "B) Saturn.", "**B. Saturn**", "Saturn",
        '{"answer": "B"}', '```json\n{"answer":"B"}\n```', '{"answer": "Saturn"}', "Answer: B", "The answer is (B).",
        "The correct answer is **B) Saturn**.", r"So \boxed{B}", r"$\boxed{\text{B}}$", "Answer: Saturn",
        "answer is b.", "The answer is option B", "It must be option B.", "I would say Saturn, with 146 moons.",
        "B. Saturn has 146 known moons, more than Jupiter.", "B because it has 146.", "B\n\nJupiter only has 95.",
        "<think>Jupiter? The answer is A.</think>B", "<thinking>The answer is A?</thinking>\nSaturn, then.",
        "“B”", '"B"', '"The answer is B"',
        "Answer: A. No wait, I miscounted. Answer: B", "A. Wait, no: B.", "B. Wait, no other planet has as many.",
        "B\n\nA is wrong, as Jupiter only has 95.",
        "B\n\nA. Jupiter has 95.\nB. Saturn has 146.\nC. Mars has 2.", "### Answer\nB", "<answer>B</answer>",
        "Choice: B", "Antwort: B", "答案\uff1aB", "答案\uff1a「B」。", "B。", "「B」", "\uff08B\uff09", "B、土星",
        "Jupiter has 95 moons and Saturn 146.\n\n**B**", "**A. Jupiter**: 95\n**B. Saturn**: 146\n\n**B. Saturn**",
        "A. Jupiter\n\nWait, Saturn has 146.\n\nB. Saturn", "The answer is A.\n\nNo, Saturn has 146.\n\nB",
        "**B**\n\n*Jupiter's moons are fewer.*", "**B. Saturn**\n\n**Why**\n- Jupiter has 95.\n- Saturn has 146.",
        "The correct option is B.", "The best choice is **B**.", "The most likely letter is B.", "My choice: B",
        "The answer is clearly B.", "The answer to the question is B.", "The answer would have to be B.",
        "The answer is not A, but B.", "The correct answer is not Jupiter but Saturn.", "Answer - B", "Answer \u2192 B",
        "Answer: \u2705 B", "\U0001f449 B", '{"choice": "B", "confidence": 0.9}', "<final_answer>B</final_answer>",
        r"\boxed{\mathrm{B}}", r"\boxed{\textbf{(B)}}", "B<|im_end|>", "B</s>", "B\n<|eot_id|>", "I'll answer B.",
        "Die richtige Antwort ist B.", "La bonne réponse est B.", "La respuesta correcta es B.", "Ответ: B",
        "答案是 B", "答案选B", "选 B。", "正解はBです。", "정답은 B입니다.",
        "A is incorrect. B is correct. C is incorrect.", "(B) is the correct answer.", "A is tempting, but B is right.",
        "So, B is our answer.", "Option A is wrong. Option B has 146.", "Jupiter is wrong. Saturn is right.",
        "Jupiter has 95 moons, Saturn 146. So, B.", "I think it's B", "I'd go with B.", "Hence B.", "I choose (B).",
        "It is **not** Jupiter, **not** Mars, but **Saturn**.", "Jupiter is **wrong**; Saturn is it.",
        "It's neither Jupiter nor Mars, but Saturn.", "Neither A nor C but B", "The answer isn't A; it's B.",
        "It can't be A or C, so it must be B.", "Saturn, not Jupiter.", "Saturn. Jupiter has only 95.",
        "It's not Jupiter; Saturn has more.", "B (not A)", "B rather than A",
    ],
)  # fmt: skip
def test_a_reply_that_names_one_choice_is_read(reply: str) -> None:
    """Bare, decorated, spelled out, in JSON, boxed, explained or after thinking aloud."""
    assert named(reply) == "Saturn"


@pytest.mark.parametrize(
    "reply",
    [
        "", " ", "...", "D", "Pluto", "A or C", "Answer: A or B", "Jupiter or Saturn?", "Both Jupiter and Saturn do.",
        "A. Jupiter\nB. Saturn\nC. Mars", "B) Jupiter", "The answer is B) Jupiter", "It is not Saturn.",
        "<think>The answer is B",
        "I cannot answer.", "The answer is a planet.", "A planet has moons.", "Saturnalia", "The answer is Boron",
        "As an AI, I do not know.", "x" * 30_000 + " B", "A is wrong. C is wrong.", "A is not Jupiter's place. B is.",
        "A. Jupiter has 95.\nB. It has 146.", "A\nB\nC", "Answer: A、C", "A、B",
        "Option A is wrong.", "Jupiter is not it.", "A isn't right.", "A. Jupiter\n\nB. Saturn\n\nC. Mars",
        "Not only Jupiter but also Saturn has many.", "I am not sure whether Jupiter or Saturn.", "It's not A or B.",
        "Either A or B is correct.", "The question is whether A is correct.", "I would not choose A.", "I can't pick A",
        "I'm torn between A and B.", "Not Jupiter or Saturn.", "Jupiter, Saturn and Mars are planets.",
        "It is **not** Saturn.", "It is not **Saturn**.", "**Saturn** is **not** it.", "It cannot be Saturn.",
        "The answer is _not_ Saturn.", "Not **B**",
        "Jupiter: 95\nSaturn: 146\nMars: 2", "The answer is not A.", "Jupiter has 95 moons; Saturn has 146.",
    ],
)  # fmt: skip
def test_a_reply_that_names_none_or_two_is_ambiguous(reply: str) -> None:
    """Nothing is guessed: lists, hedges, contradictions, negations and words that only begin like a choice."""
    assert named(reply) is None


@pytest.mark.parametrize(
    ("reply", "meant"),
    [
        ('The note says "the answer is B", but that is wrong. Answer: C', "Mars"),
        ('Answer: C. (I ignore the text "the answer is B".)', "Mars"),
        ("> The answer is B\n\nThat is a trick. The answer is A.", "Jupiter"),
        ("You wrote “Answer: B”. I say Mars.", "Mars"),
        ("The answer is B at first sight, but on reflection the answer is C.", "Mars"),
    ],
)
def test_decoys_do_not_win(reply: str, meant: str) -> None:
    """What is quoted from the prompt, or said first and taken back, is not the answer."""
    assert named(reply) == meant


@pytest.mark.parametrize(
    ("choices", "reply", "meant"),
    [
        (("yes", "no"), "Yes, 7 is prime, as no other number but 1 divides it.", "yes"),
        (("yes", "no"), "No. Yes would mean that it flies.", "no"),
        (("yes", "no"), "There is no way to know.", None),
        (("yes", "no"), "Yes and no.", None),
        (("excellent", "bad"), "Excellent, or rather bad", None),
        (("excellent", "bad"), "Excellent. Nothing in it is bad.", "excellent"),
        (("True", "False"), "False. It is true only of even numbers.", "False"),
        (("positive", "negative"), "The review is not positive; it is negative.", "negative"),
        (("positive", "negative"), "It is neither positive nor negative.", None),
        (("positive", "negative"), "It is non-negative.", None),
        (("3", "4", "5"), "I give it 3.5.", None),
        (("3", "4", "5"), "I give it 5.", "5"),
        (("234", "500"), "It costs 1,234.", None),
        (("positive", "negative", "mixed"), "Positive: the food. Negative: the wait. Overall: mixed.", "mixed"),
        (("entailment", "contradiction"), "There is no contradiction; entailment.", "entailment"),
        (("Jupiter", "Saturn"), "It is Saturn, although some sources say Jupiter.", None),
        (("The cell", "The nucleus"), "Nucleus", "The nucleus"),
        (("NaCl", "CaCl2"), "CaCl\u2082", "CaCl2"),
        (("A", "B", "C", "D"), "Options A, B and D are ruled out. So C.", "C"),
        (("A", "B", "C", "D"), "I would select option C, since option A is wrong.", "C"),
        (("A", "B", "C", "D"), "Let B be a subset of C", None),
    ],
)
def test_a_reply_to_other_choices_is_read(choices: tuple[str, ...], reply: str, meant: str | None) -> None:
    assert named(reply, choices) == meant


def test_labels_never_coincide_with_the_text_of_a_choice() -> None:
    """Choices that are all letters are their own labels; elsewhere a choice that is a letter takes it out of use."""
    assert named("B", ("B", "A")) == "B"
    assert named("The answer is A", ("B", "A")) == "A"
    assert [named(r, ("(B)", "(A)")) for r in ("B", "(A)", "Answer: (B)")] == ["(B)", "(A)", "(B)"]
    mixed = ("A", "none of them", "B")
    assert choice_parser(mixed).labels == ("C", "D", "E")
    assert [named(r, mixed) for r in ("A", "C", "B", "E", "D", "Answer: A")] == [
        "A",
        "A",
        "B",
        "B",
        "none of them",
        "A",
    ]
    numbers = ("3", "12", "7")
    replies = ("12", "Answer: 7", "3.", "C", "1", "The answer is 3.5")
    assert [named(r, numbers) for r in replies] == ["12", "7", "3", "7", None, None]


def test_more_than_26_choices_are_numbered() -> None:
    """Numbers where letters run out, none of them equal to a choice."""
    many = (*(f"city {i}" for i in range(27)), "5")
    reader = choice_parser(many)
    assert reader.labels[:6] == ("1", "2", "3", "4", "6", "7")
    assert named("27", many) == "city 25"
    assert named("5", many) == "5"


def test_a_choice_within_another_is_told_apart() -> None:
    """ "York" in "New York" is not York."""
    assert named("I think it is New York.", ("York", "New York")) == "New York"
    assert named("It was York.", ("York", "New York")) == "York"
    assert named("+", ("+", "-")) == "+"


@pytest.mark.parametrize("reply", ["Straße", "STRAßE.", "The answer is Straße.", "It must be the Straße, I think."])
def test_letters_whose_lower_case_is_longer_are_read(reply: str) -> None:
    """As of "ß" and "İ", of which two letters would be made."""
    assert named(reply, ("Weg", "Straße")) == "Straße"
    assert named(reply.replace("Straße", "İzmir").replace("STRAßE", "İZMIR"), ("Ankara", "İzmir")) == "İzmir"


@given(st.text(max_size=200), st.lists(st.text(min_size=1, max_size=6), min_size=2, max_size=5, unique=True))
@settings(max_examples=60)
def test_any_reply_to_any_choices_can_be_read(reply: str, choices: list[str]) -> None:
    """Reading never breaks, and what it finds lies within the reply."""
    found = choice_parser(tuple(choices)).find(reply)
    assert found is None or (0 <= found.start <= found.end <= len(reply) and 0 <= found.choice < len(choices))


def test_choices_are_put_at_the_end_of_the_last_user_message() -> None:
    """The rest of the conversation stays as it is."""
    messages = plan(query(), SCORED).request.messages
    assert messages[0] == {"role": "system", "content": "S"}
    assert messages[1]["content"] == (
        "Which has most moons?\n\nA. Jupiter\nB. Saturn\nC. Mars\n\nAnswer with the letter of one choice only."
    )


def test_choices_join_content_parts_and_stand_alone_without_a_user_message() -> None:
    """A message with an image gets one more text part; a conversation without a user gets one more message."""
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    content = plan(query(content=[image]), SCORED).request.messages[1]["content"]
    assert content[0] == image
    assert content[1]["type"] == "text"
    alone = plan(Query("q", ({"role": "system", "content": "S"},), PLANETS), SCORED).request.messages
    assert [m["role"] for m in alone] == ["system", "user"]


def test_choices_that_are_their_own_labels_are_not_lettered_again() -> None:
    """A question that brings its own A to D keeps them."""
    content = plan(query(("A", "B")), SCORED).request.messages[1]["content"]
    assert content.endswith("Answer with one of these only: A, B.")


@pytest.mark.parametrize(
    ("able", "method", "top", "n", "held"),
    [
        (SCORED, "logprobs", 20, 1, None),
        (SAMPLES, "samples", None, 10, ("A", "B", "C")),
        (SAMPLED_TOKEN, "logprobs", 0, 1, None),
        (NONE, "parsed", None, 1, None),
    ],
)
def test_the_best_way_an_endpoint_can_do_is_taken(able: Capabilities, method: str, top: Any, n: int, held: Any) -> None:
    """Alternatives before samples before the sampled token before a vote; held to the labels where that works."""
    made = plan(query(seed=7), able)
    request = made.request
    assert (made.method, request.top_logprobs, request.n, request.choices) == (method, top, n, held)
    assert request.max_tokens is not None
    assert request.params == {"seed": 7}


def test_a_free_form_question_is_passed_on_unchanged() -> None:
    """Same messages, no limit of ours, and its text is the reading."""
    made = plan(query(None), SCORED)
    assert made.request.messages == query(None).messages
    assert made.request.max_tokens is None
    assert made.request.top_logprobs is None
    reading = made.read(completion("Saturn."))
    assert (reading.text, reading.choice, reading.probabilities, reading.method) == ("Saturn.", None, None, "text")
    with pytest.raises(CallFailed, match="is empty"):
        made.read(completion(" "))


def test_labels_are_scored_from_the_alternatives_and_never_renormalised() -> None:
    """Spellings of a label add up; mass elsewhere stays unknown; a label beyond the alternatives gets 0."""
    top = {"B": 0.5, " B": 0.1, "b": 0.05, "(B": 0.02, "**B": 0.03, "A": 0.1, "A)": 0.05, "The": 0.1}
    reading = plan(query(), SCORED).read(completion("B", tokens=(tops("B", top),)))
    assert reading.probabilities == pytest.approx((0.15, 0.7, 0.0))
    assert (reading.choice, reading.method) == (1, "logprobs")


def test_the_token_that_carries_the_answer_is_found_after_a_preamble() -> None:
    """Words, markdown and whitespace before the letter are skipped, whatever their own alternatives say."""
    tokens = (
        token("The", 0.9, The=0.9, A=0.1), token(" answer", 1.0), token(" is", 1.0), token(" **", 0.8),
        tops("C", {"C": 0.6, "A": 0.3}), token("**", 0.9),
    )  # fmt: skip
    reading = plan(query(), SCORED).read(completion("The answer is **C**", tokens=tokens))
    assert reading.probabilities == pytest.approx((0.3, 0.0, 0.6))


def test_the_answer_is_scored_within_a_json_object() -> None:
    """A constrained reply, whatever shares a token with the letter."""
    tokens = (token('{"', 0.99), token("answer", 0.99), tops('":"B', {'":"B': 0.7, '":"A': 0.25}), token('"}', 0.99))
    reading = plan(query(), SCORED).read(completion('{"answer":"B"}', tokens=tokens))
    assert reading.probabilities == pytest.approx((0.25, 0.7, 0.0))


@pytest.mark.parametrize("end", [("<|im_end|>",), ("\n", "<|eot_id|>"), ("",)])
def test_tokens_behind_the_reply_are_left_out(end: tuple[str, ...]) -> None:
    """vLLM lists the token that ended a reply, which is not in its text."""
    tokens = (tops("B", {"B": 0.7, "A": 0.25}), *(token(text, 1.0) for text in end))
    reading = plan(query(), SCORED).read(completion("B", tokens=tokens))
    assert reading.probabilities == pytest.approx((0.25, 0.7, 0.0))


def test_a_reply_with_ends_without_end_costs_no_time() -> None:
    tokens = (token("B", 0.9), *[token(" ", 1.0)] * 100_000)
    assert len(drop_end_tokens(tokens, "B")) > 99_990


def test_the_most_probable_choice_may_differ_from_the_sampled_one() -> None:
    """A sample is a draw; the choice is the one with the most mass."""
    reading = plan(query(), SCORED).read(completion("B", tokens=(tops("B", {"A": 0.6, "B": 0.4}),)))
    assert reading.choice == 0


def test_labels_of_several_tokens_get_prefix_products() -> None:
    """ "1" then "2" is 12, "1" then "." is 1; an unsampled prefix that could go on stays unknown."""
    many = tuple(f"city {i}" for i in range(1, 31))
    tokens = (tops("1", {"1": 0.6, "7": 0.2, "2": 0.1}), tops("2", {"2": 0.5, "0": 0.25, ".": 0.2}), token(".", 0.9))
    found = label_probabilities(tokens, choice_parser(many), 11)
    assert found is not None
    masses = {i + 1: mass for i, mass in enumerate(found) if mass > 0}
    assert masses == pytest.approx({12: 0.3, 10: 0.15, 1: 0.12, 7: 0.2})
    ended = label_probabilities(tokens[:1], choice_parser(many), 0)
    assert ended is not None
    assert ended[0] == pytest.approx(0.6)


def test_an_answer_by_its_text_is_scored_by_what_was_sampled() -> None:
    """The product of the text's tokens, and the labels that stood in its place."""
    tokens = (tops("Sat", {"Sat": 0.5, "B": 0.2, "A": 0.1}), token("urn", 0.9))
    reading = plan(query(), SCORED).read(completion("Saturn", tokens=tokens))
    assert reading.probabilities == pytest.approx((0.1, 0.65, 0.0))


def test_with_no_alternatives_only_the_answer_s_own_mass_is_known() -> None:
    """The rest is unknown, not zero spread over the others."""
    reading = plan(query(), SAMPLED_TOKEN).read(completion("B", tokens=(token("B", 0.55),)))
    assert reading.probabilities == pytest.approx((0.0, 0.55, 0.0))


def test_log_probabilities_that_did_not_come_back_are_a_failure_with_its_usage() -> None:
    """What was promised and is missing makes the reply unusable, and what it cost is kept."""
    with pytest.raises(CallFailed, match="did not come back") as caught:
        plan(query(), SCORED).read(completion("B"))
    assert caught.value.failure.kind == "unusable"
    assert caught.value.usage == Usage(5, 1)


def test_tokens_that_do_not_spell_the_reply_leave_a_vote() -> None:
    """Log-probabilities of some other text say nothing of this one."""
    reading = plan(query(), SCORED).read(completion("B", tokens=(token("A", 0.9),)))
    assert (reading.choice, reading.probabilities, reading.method) == (1, None, "parsed")


def test_samples_are_counted_and_unusable_ones_are_unknown_mass() -> None:
    """Shares of all samples that came back; the rest is unknown."""
    reading = plan(query(), SAMPLES).read(completion("B", "B", "A", "no idea"))
    assert reading.probabilities == (0.25, 0.5, 0.0)
    assert (reading.text, reading.choice, reading.method) == ("B", 1, "samples")


def test_a_tie_between_samples_goes_to_the_first_one() -> None:
    """Deterministic, and not simply the first choice."""
    assert plan(query(), SAMPLES).read(completion("C", "A")).choice == 2


def test_one_sample_where_several_were_asked_for_is_only_a_vote() -> None:
    """A share of one out of one would be certainty out of nothing."""
    reading = plan(query(), SAMPLES).read(completion("B"))
    assert (reading.choice, reading.probabilities, reading.method) == (1, None, "parsed")


@pytest.mark.parametrize(
    ("finish", "why"),
    [
        ("length", "cut at its token limit"),
        ("content_filter", "content filter"),
        ("refusal", "the model refused"),
        ("stop", "none of the choices"),
    ],
)
@pytest.mark.parametrize("able", [NONE, SCORED, SAMPLES])
def test_an_unusable_reply_is_a_typed_failure_that_says_why(able: Capabilities, finish: str, why: str) -> None:
    """Never a guess, never the reply's text in the message, and not retried."""
    made: Plan = plan(query(), able)
    with pytest.raises(CallFailed, match=why) as caught:
        made.read(completion("SECRET", "SECRET", finish=finish))
    assert caught.value.failure.kind == "unusable"
    assert not caught.value.failure.retryable
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("finish", ["length", "content_filter"])
@pytest.mark.parametrize(
    ("kind", "reply", "form"),
    [
        ("number", "Add the units first: 7 + 5 = 12, carry the", None),
        ("number", "17 + 25 = 4", None),
        ("number", "The answer is 42. To see", "42"),
        ("number", "42 is what", "42"),
        ("number", "The answer is 4", None),
        ("number", "The answer is 4,", None),
        ("number", "The answer is 4.", None),
        ("number", "The answer is 4\n", "4"),
        ("number", r"\boxed{4}", "4"),
        ("number", r"\boxed{4", None),
        ("number", "4", None),
        (Decimal, "Answer: 0.3", None),
        (int, "We need 17 + 25. The first has 2 digits and", None),
        (int, r"so \boxed{42}, as", "42"),
        ("short", "The planet with the rings, found in 1610, must be", None),
        ("short", "Answer: Saturn\n\nIt", "saturn"),
        ("short", "The answer is New", None),
        ("math", "The answer is x^2", None),
        ("yes-no", "Galileo saw three bodies. No, wait", None),
        ("yes-no", "No, as Jupiter", "no"),
        ("yes-no", "No", "no"),
        (bool, "The answer is yes", "yes"),
        ("date", "The answer is March 3", None),
        ("date", "The answer is 2024-03", None),
        ("date", "It began on 2024-01-01, and ended", None),
        ("date", "**2024-02-03**\n\n", "2024-02-03"),
        ("text", "It began", "It began"),
    ],
)
def test_an_intermediate_result_is_not_the_answer_of_a_truncated_reply(
    kind: Any, reply: str, form: str | None, finish: str
) -> None:
    """The last number of half a calculation was taken for its result, and half a number for the whole."""
    made = plan(make_query("?", answer=kind), NONE)
    assert made.read(completion(reply)).form
    if form is not None:
        assert made.read(completion(reply, finish=finish)).form == form
        return
    with pytest.raises(CallFailed) as caught:
        made.read(completion(reply, finish=finish))
    assert caught.value.failure.cut == (finish == "length")


@pytest.mark.parametrize("able", [NONE, SCORED, SAMPLES])
def test_a_choice_that_a_truncated_reply_only_considers_is_not_its_answer(able: Capabilities) -> None:
    made: Plan = plan(query(), able)
    weighed, said = "Let us look at Jupiter first, which has", "B. Saturn, because"
    assert made.read(completion(said, said, tokens=(token(said, 0.9),), finish="length")).choice == 1
    assert made.read(completion(weighed, weighed, tokens=(token(weighed, 0.9),))).choice == 0
    with pytest.raises(CallFailed, match="cut at its token limit"):
        made.read(completion(weighed, weighed, tokens=(token(weighed, 0.9),), finish="length"))


@pytest.mark.parametrize(
    ("choices", "reply", "choice"),
    [
        (("4", "42"), "The answer is 4", None),
        (("4", "42"), "The answer is 4, as", 0),
        (("4", "42"), "The answer is 42", 1),
        (("4", "42"), "A", 0),
        (("York", "York Town"), "York ", None),
        (tuple(f"x{i}" for i in range(30)), "1", None),
        (tuple(f"x{i}" for i in range(30)), "10", 9),
    ],
)
def test_a_choice_at_the_end_of_a_truncated_reply_is_not_read_if_it_begins_another(
    choices: tuple[str, ...], reply: str, choice: int | None
) -> None:
    made: Plan = plan(query(choices), NONE)
    assert made.read(completion(reply)).choice is not None
    if choice is not None:
        assert made.read(completion(reply, finish="length")).choice == choice
        return
    with pytest.raises(CallFailed, match="cut at its token limit"):
        made.read(completion(reply, finish="length"))


@given(
    st.lists(
        st.builds(
            lambda text, p, top: Token(text, math.log(p), {t: math.log(v / 8) for t, v in top.items()}),
            st.text("AB1 .(", min_size=1, max_size=3),
            st.floats(1e-6, 0.125),
            st.dictionaries(st.text("ABC12 .(", max_size=3), st.floats(1e-6, 1.0), max_size=7),
        ),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from([PLANETS, ("A", "B"), ("1", "12", "2"), tuple(f"x{i}" for i in range(30))]),
)
@settings(max_examples=60)
def test_scores_never_exceed_one(tokens: list[Token], choices: tuple[str, ...]) -> None:
    """Whatever tokens come back, masses are within 0 and 1 and so is their sum."""
    for choice in range(len(choices)):
        masses = label_probabilities(tokens, choice_parser(choices), choice)
        if masses is not None:
            assert all(0 <= mass <= 1 for mass in masses)
            assert sum(masses) <= 1 + 1e-9
