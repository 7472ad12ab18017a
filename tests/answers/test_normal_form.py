"""Normal forms: which free-form answers are one answer."""

from __future__ import annotations

from decimal import getcontext, localcontext
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from focalroute.answers import KINDS, candidate_key, normal_form, normaliser
from focalroute.core.errors import ConfigError

ANY_TEXT = st.text(st.characters(), max_size=80)  # lone surrogates included


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("42", "42"),
        ("The answer is 42.", "42"),
        ("7 apples and 5 pears make 12", "12"),
        ("1,234,567", "1234567"),
        ("$1,234.50", "1234.5"),
        ("-$5", "-5"),
        ("€1,000", "1000"),
        ("-3", "-3"),
        ("+3", "3"),
        ("\N{MINUS SIGN}3", "-3"),
        ("x = -3.50", "-3.5"),
        ("7-9 make 10-12, so 16", "16"),  # a hyphen between numbers is not a minus sign
        ("2024-05-13", None),  # a date
        ("10 - 3 = 7", "7"),
        (".5", "0.5"),
        ("-.5", "-0.5"),
        ("5.", "5"),
        ("0.500", "0.5"),
        ("007", "7"),
        ("0", "0"),
        ("-0.00", "0"),
        ("0e99", "0"),
        ("1e3", "1000"),
        ("1.5E-3", "0.0015"),
        ("1000", "1000"),
        ("5 km", "5"),
        ("25 m^2", "25"),
        ("25 cm²", "25"),
        ("12%", "12"),
        ("3 eggs", "3"),
        ("42, see page e5", "5"),  # an exponent alone is no number, its digit is
        ("1,2345", "1.2345"),  # no thousands separator
        ("the list 1, 2, 3", "3"),
        ("\\boxed{17}", "17"),
        ("٣", "3"),
        ("none", None),
        ("e", None),
        ("-", None),
        ("", None),
        ("1e99999999999999999999999", None),
    ],
)
def test_a_number_is_the_last_one_in_plain_decimals(text: str, form: str | None) -> None:
    assert normal_form(text, "number") == form


@pytest.mark.parametrize(("text", "form"), [("1.2.3", None), ("four score", "4"), ("5 days 6", "6")])
def test_versions_and_mixed_units_are_not_read_as_what_they_mean(text: str, form: str | None) -> None:
    """The limits of the kind: whoever needs them gives a callable of their own."""
    assert normal_form(text, "number") == form


def test_numbers_too_large_to_write_out_stay_exact() -> None:
    long = "123456789" * 6
    assert normal_form(long, "number") == long
    assert normal_form(long, "number") != normal_form(long[:-1] + "8", "number")
    assert normal_form(f"{long}000", "number") == normal_form(f"{long}e3", "number")


def test_a_number_does_not_depend_on_the_callers_decimal_context() -> None:
    with localcontext() as context:
        context.prec = 3
        assert normal_form("123456.789", "number") == "123456.789"
        assert normal_form("1.23456e60", "number") == "1.23456E+60"
    assert getcontext().prec == 28


@pytest.mark.parametrize(
    "text",
    [
        "9" * 200_000,
        "1," * 100_000,
        "1,111" * 40_000,
        "e1" * 100_000,
        "-" * 200_000,
        "0." * 100_000,
        "11," * 70_000,
        "1 11" * 50_000,
        "1 111" * 40_000,
        "1.111" * 40_000,
        "3√" * 100_000,
        "minus " * 40_000,
        "**4" * 70_000,
        "_4" * 100_000,
        "**" + "4 " * 100_000,
        "between 1 and " * 20_000,
        "(the 3 " * 40_000,
        "5 feet " * 40_000,
        "3 or x = " * 30_000,
        "no wait, " * 30_000,
        "Note: a\n" * 30_000,
        "The a of " * 30_000,
        "March 3 - " * 30_000,
        "yes or " * 40_000,
    ],
)
@pytest.mark.parametrize("kind", list(KINDS))
def test_a_huge_reply_does_not_hang(text: str, kind: str) -> None:
    normal_form(text, kind)


def test_many_lead_ins_do_not_hang() -> None:
    assert normal_form("answer: " * 50_000 + "Paris", "short") == "paris"


@pytest.mark.parametrize("exponent", [50, 1_000_000, 999_999_999_999, 10**18, 10**18 - 1])
@pytest.mark.parametrize("sign", ["", "-"])
def test_an_exponent_beyond_reason_neither_raises_nor_is_written_out(exponent: int, sign: str) -> None:
    form = normal_form(f"7e{sign}{exponent}", "number")
    assert form is None or len(form) < 40
    assert normal_form(f"7e{sign}{exponent} and a half", "number") is None


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("Paris", "paris"),
        ("  PARIS. ", "paris"),
        ('"Paris"', "paris"),
        ("“Paris”", "paris"),
        ("**Paris**", "paris"),
        ("The answer is Paris.", "paris"),
        ("Answer: Paris", "paris"),
        ("The final answer is: Paris", "paris"),
        ("**Final answer:** Paris", "paris"),
        ("Answer: the answer is Paris!", "paris"),
        ("Let me see.\n  New   York", "new york"),
        ("Answer Island", "answer island"),
        ("\uff30\uff41\uff52\uff49\uff53", "paris"),  # full width
        ("STRASSE", "strasse"),
        ("Straße", "strasse"),
        ("(b)", "b"),
        ("don't", "don't"),
        ("3.5", "3.5"),
        ("-4", "-4"),
        ("", None),
        ("...", None),
        ("The answer is:", None),
    ],
)
def test_a_short_answer_ignores_case_ends_spacing_and_lead_in(text: str, form: str | None) -> None:
    assert normal_form(text, "short") == form


def test_open_text_is_equal_up_to_spacing_only() -> None:
    assert normal_form(" One\n\ttwo ", "text") == "One two" == normal_form("One two", None)
    assert normal_form("one two", "text") != "One two"
    assert normal_form(" \n", "text") is None


@given(text=ANY_TEXT, kind=st.sampled_from([*KINDS, None]))
@example(text="answer: answer: x", kind="short")
@example(text="answer is_", kind="short")
@example(text="0e-50", kind="number")
@example(text="1e-9999999", kind="number")
def test_a_form_never_raises_and_is_its_own_form(text: str, kind: str | None) -> None:
    form = normal_form(text, kind)
    assert form is None or (form and normal_form(form, kind) == form)


NUMBER_LIKE = st.text("0123456789.,-+eE^$ ", max_size=40)


@given(NUMBER_LIKE)
def test_the_form_of_anything_like_a_number_is_its_own_form(text: str) -> None:
    form = normal_form(text, "number")
    assert form is None or normal_form(form, "number") == form


@given(st.decimals(allow_nan=False, allow_infinity=False, places=6, min_value=-(10**12), max_value=10**12))
def test_however_a_number_is_written_its_form_is_the_same(value: Any) -> None:
    written = {f"{value}", f"{value:f}", f"{value:,}", f"about {value:e} units", f"{value:f}000"}
    assert len({normal_form(text, "number") for text in written}) == 1


def test_a_callable_is_its_own_kind() -> None:
    assert normaliser(str.upper) is str.upper
    assert normal_form("x", str.upper) == "X"


@pytest.mark.parametrize("kind", ["integer", "", 0, False, [], {}])
def test_an_unknown_kind_says_which_there_are(kind: Any) -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'number'|use one of date, math, number, short, text, yes-no"):
        normaliser(kind)


@given(ANY_TEXT, ANY_TEXT)
def test_a_key_names_its_candidate_in_16_digits_and_tells_others_apart(one: str, other: str) -> None:
    assert len(candidate_key(one)) == 16
    assert (candidate_key(one) == candidate_key(other)) == (one == other)


def test_a_key_is_the_same_in_every_process() -> None:
    assert candidate_key("Saturn") == "12fd4edcb2f246d0"
