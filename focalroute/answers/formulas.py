"""Mathematical answers."""

from __future__ import annotations

from focalroute.answers.algebra import NotMath
from focalroute.answers.final import final
from focalroute.answers.latex import formula_in, plain
from focalroute.answers.short import folded
from focalroute.answers.statements import canonical

_LONGEST = 2_000  # characters; more is no formula
_MARKS = frozenset("\\^_=<>+*/{}|")  # of a formula, rather than words
_MOST_TURNS = 8


def math(text: str) -> str | None:
    """The final answer of a reply (see `final`), its first formula if it is marked as the answer, else its last.

    Formulas are equal that are the same after multiplying out, see `canonical`; units, degrees, percent and currency
    signs do not matter, nor does "x =". What cannot be read as one is compared as LaTeX without its spaces, or as a
    short answer. Identities of functions, and factors in common of quotients in several variables, are not seen.

    >>> math("So $\\\\boxed{\\\\frac{1}{\\\\sqrt{2}}}$."), math("Answer: (x-1)(x+1)"), math("No solution.")
    ('sqrt(2)/2', 'x^2-1', 'no solution')
    """
    for _ in range(_MOST_TURNS):  # reading one thing may uncover another
        found = final(text)
        form = None if found is None else _form(formula_in(found.text, first=found.said))
        if form is None or form == text:
            return form
        text = form
    return None


def _form(formula: str) -> str | None:
    if len(formula) > _LONGEST:
        return folded(formula)
    simple = plain(formula)
    try:
        return canonical(simple)
    except NotMath:
        return folded(formula) if _MARKS.isdisjoint(simple) else "".join(simple.split())
