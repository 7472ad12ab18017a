"""Formulas: whatever way one is written, its form is the same, means the same, and is found in bounded time."""

from __future__ import annotations

import cmath
import re
from dataclasses import dataclass

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from focalroute.answers import normal_form
from focalroute.answers.algebra import NotMath
from focalroute.answers.formulas import canonical_formula

FEW = settings(max_examples=60)
VALUES = {"x": 0.7321, "y": -1.3077, "sqrt": cmath.sqrt, "pi": cmath.pi, "i": 1j, "pow": pow, "e": cmath.e}


@dataclass(frozen=True)
class Formula:
    """One formula in two ways of writing, and what it comes to."""

    latex: str
    plain: str
    value: complex


def number(n: int) -> Formula:
    return Formula(str(n), str(n), n)


LEAVES = st.one_of(
    st.integers(0, 12).map(number),
    st.sampled_from(["x", "y"]).map(lambda name: Formula(name, name, VALUES[name])),  # type: ignore[arg-type]
    st.integers(1, 30).map(lambda n: Formula(f"\\sqrt{{{n}}}", f"sqrt({n})", cmath.sqrt(n))),
    st.just(Formula("\\pi", "pi", cmath.pi)),
    st.decimals(0, 9, places=2).map(lambda d: Formula(str(d), str(d), float(d))),
)


def grown(inner: st.SearchStrategy[Formula]) -> st.SearchStrategy[Formula]:
    def plus(a: Formula, b: Formula) -> Formula:
        return Formula(f"{a.latex} + {b.latex}", f"({a.plain})+({b.plain})", a.value + b.value)

    def minus(a: Formula, b: Formula) -> Formula:
        return Formula(f"{a.latex} - \\left({b.latex}\\right)", f"({a.plain})-({b.plain})", a.value - b.value)

    def times(a: Formula, b: Formula) -> Formula:
        return Formula(f"({a.latex}) \\cdot ({b.latex})", f"({b.plain})*({a.plain})", a.value * b.value)

    def power(a: Formula, n: int) -> Formula:
        return Formula(f"({a.latex})^{{{n}}}", f"({a.plain})**{n}", a.value**n)

    def over(a: Formula, b: Formula) -> Formula:
        value = a.value / b.value if abs(b.value) > 1e-9 else float("nan")
        return Formula(f"\\frac{{{a.latex}}}{{{b.latex}}}", f"({a.plain})/({b.plain})", value)

    pairs = (st.builds(join, inner, inner) for join in (plus, minus, times, over))
    return st.one_of(*pairs, st.builds(power, inner, st.integers(0, 3)))


FORMULAS = st.recursive(LEAVES, grown, max_leaves=5)


def worth(form: str) -> complex:
    """What a form comes to; it is plain arithmetic."""
    assert re.fullmatch(r"[\dxypisqrt+*/^().-]+", form)
    return complex(eval(form.replace("^", "**"), {"__builtins__": {}}, VALUES))


@FEW
@given(FORMULAS)
def test_a_formula_and_its_form_mean_the_same_however_it_is_written(formula: Formula) -> None:
    assume(abs(formula.value) < 1e6)  # nor is it not a number
    form = canonical_formula(formula.plain.replace("**", "^"))
    assert normal_form(f"So it is ${formula.latex}$.", "math") == form
    assert normal_form(f"Answer: {formula.plain}", "math") == form
    assert normal_form(form, "math") == form
    assert worth(form) == pytest.approx(formula.value, rel=1e-6, abs=1e-6)


@FEW
@given(FORMULAS, FORMULAS)
def test_the_order_of_sums_products_and_lists_does_not_matter(one: Formula, other: Formula) -> None:
    assume(abs(one.value) < 1e6 and abs(other.value) < 1e6)
    for joined in ("({}) + ({})", "({}) \\cdot ({})", "({}), ({})"):
        there, back = joined.format(one.latex, other.latex), joined.format(other.latex, one.latex)
        assert canonical_of(there) == canonical_of(back)


def canonical_of(latex: str) -> str | None:
    return normal_form(f"\\boxed{{{latex}}}", "math")


@FEW
@given(st.lists(st.integers(-9, 9), min_size=1, max_size=5))
def test_a_set_is_its_members_and_a_tuple_their_order(members: list[int]) -> None:
    written = ",\\ ".join(map(str, members))
    assert canonical_of(f"\\{{{written}\\}}") == canonical_of(", ".join(map(str, {*members})))
    if len(members) > 1:
        same = canonical_of(f"({written})") == canonical_of(f"({', '.join(map(str, sorted(members)))})")
        assert same == (members == sorted(members))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x^2-1", "x^2+1"), ("xy", "x+y"), ("(1,2)", "[1,2]"), ("(1,2)", "(2,1)"), ("x<1", "x\\le 1"), ("x<1", "x>1"),
        ("\\sqrt{2}", "1.41421356"), ("1/3", "0.333"), ("x", "X"), ("x_1", "x_2"), ("\\sin x", "\\cos x"), ("2^x",
        "x^2"),
        ("a^b", "b^a"), ("\\log_2 x", "\\log_3 x"), ("x=1", "x=-1"), ("x+y=1", "x-y=1"), ("\\frac{a}{b}",
        "\\frac{b}{a}"),
        ("no solution", "one solution"), ("east", "seat"), ("\\sqrt{x}", "\\sqrt[3]{x}"), ("2", "\\{2,3\\}"), ("i",
        "1"),
    ],
)  # fmt: skip
def test_different_answers_have_different_forms(one: str, other: str) -> None:
    forms = {canonical_of(one), canonical_of(other)}
    assert len(forms) == 2
    assert None not in forms


@pytest.mark.parametrize(
    "text",
    [
        "9^9^9^9", "(a+b+c+d)^{30}", "(1+x)^{10^9}", "2^{999999}", "100!!", "9999999999!", "\\binom{10^9}{3}",
        "(" * 300, "(x+y)^{60}",
        "\\sqrt{" * 60 + "2" + "}" * 60, "((((x+1)^9+1)^9+1)^9+1)^9", "\\frac{1}{" * 50 + "x" + "}" * 50,
        "\\sqrt{10^{12}+1}",
        "-" * 300 + "1", "1/0", "1/(x-x)", "0^{-1}", "__import__('os').system('true')", "x.__class__", "lambda: 1",
        "9**9**9",
        "1" * 100 + "*x", "\\frac{1}{\\sqrt2+\\sqrt3+\\sqrt5+\\sqrt7+\\sqrt{11}+\\sqrt{13}}",
        "sin(" * 30 + "x" + ")" * 30,
        "(x-y)/(x^{60}-y^{60})", "x^{" * 100 + "2" + "}" * 100, "\\pm 1 \\pm 2", "{" * 200, "1,2;3 or and 4",
    ],
)  # fmt: skip
def test_too_large_formulas_and_other_texts_are_compared_as_text(text: str) -> None:
    """Nothing of it is evaluated as code, and none takes long: a slow one would be seen in the fuzzing runs."""
    with pytest.raises(NotMath):
        canonical_formula(text)
    form = normal_form(text, "math")
    assert form is None or normal_form(form, "math") == form
