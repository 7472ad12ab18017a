"""Reads mathematical answers (lists, sets, intervals, equations, ...) and writes them in a canonical form."""

from __future__ import annotations

import re
from fractions import Fraction

from focalroute.answers.algebra import NotMath, Quotient
from focalroute.answers.expressions import GREEK, LONGEST, OPENING, ExpressionParser
from focalroute.answers.final import FinalAnswer, normalise_final, only_bold
from focalroute.answers.latex import select_formula, simplify_latex
from focalroute.answers.notation import with_scale
from focalroute.answers.short import fold

_LONGEST_FORMULA = 2_000  # characters
_FORMULA_CHARACTERS = frozenset("\\^_=<>+*/{}|")  # which words do not have
_RELATIONS = {"=", "<", ">", "<=", ">=", "!="}
_FLIPPED = {">": "<", ">=": "<=", "<": "<", "<=": "<="}
# "f'(x) =" or "dy/dx =" before the answer
_DERIVATIVE = re.compile(
    r"^\s*(?:[A-Za-z]'{1,3}(?:\(\s*[A-Za-z]\s*\))?|\\frac\s*\{d[A-Za-z]?\}\s*\{d[A-Za-z]\})\s*=(?=[^=<>]+$)"
)
# Matches "This is what we wanted." but not "There is no real solution."
_PROSE = re.compile(
    r"(?!.*\b(?:no|not|none|never|cannot|impossible|undefined|infinite\w*|all|any|every|empty)\b)"
    r"(?:[^\W\d_]+[\s,;:.'\u2019-]+){3,}[^\W\d_]+\W*",
    re.IGNORECASE,
)
_SEPARATING = (",", ";", "or", "and")


def read_math(text: str) -> str | None:
    """Return the formula that a reply gives as its answer: the first in a marked answer, else the last.

    Formulas that multiply out to the same are equal, see `canonical_formula`; units, degrees, percent and currency
    signs and "x =" are ignored. Text that cannot be read as a formula is compared as LaTeX without spaces, or as a
    short answer. Identities of functions, and common factors of quotients in several variables, are not recognised.

    >>> read_math("So $\\\\boxed{\\\\frac{1}{\\\\sqrt{2}}}$."), read_math("Answer: (x-1)(x+1)")
    ('sqrt(2)/2', 'x^2-1')
    """
    return normalise_final(with_scale(text), lambda answer: _form(_answer_formula(answer)))


def _answer_formula(answer: FinalAnswer) -> str:
    """Return the formula in the marked answer, else in the last line, else, if that is prose, the one before it."""
    if answer.marked or not _PROSE.fullmatch(answer.text):
        return select_formula(answer.text, first=answer.marked)
    earlier = select_formula(only_bold(answer.reply) or answer.reply, first=False)
    return answer.text if earlier == answer.reply else earlier


def _form(formula: str) -> str | None:
    """Return the canonical form; for a text that is not a formula, its LaTeX without spaces or its folded words."""
    if len(formula) > _LONGEST_FORMULA:
        return fold(formula)
    simple = _DERIVATIVE.sub("", simplify_latex(formula))
    try:
        return canonical_formula(simple)
    except NotMath:
        return fold(formula) if _FORMULA_CHARACTERS.isdisjoint(simple) else "".join(simple.split())


def canonical_formula(text: str) -> str:
    """Write an answer in canonical form, the same for all equal answers.

    The answer may be an expression, list, set, tuple, interval, equation or inequality. Expressions are equal if they
    multiply out to the same polynomial or quotient of polynomials, with or without a root in the denominator; lists and
    sets are equal in any order; x = 5 equals 5, and 3 > x equals x < 3.

    Raises:
        NotMath: it cannot be read as one of these, or is too large.
    """
    return _StatementParser(text).parse()


class _StatementParser(ExpressionParser):
    """Parses lists, sets, tuples, intervals, equations and inequalities of expressions."""

    def parse(self) -> str:
        """Parse the whole text."""
        named = self._named_values()
        if named is not None:
            return named
        elements = self._elements(len(self._tokens))
        if self._at < len(self._tokens) or not elements:
            raise NotMath
        form = ", ".join(elements)
        if len(form) > LONGEST:  # it could not be parsed again
            raise NotMath
        return form

    def _named_values(self) -> str | None:
        """Write "y = 2, x = 1" as the tuple (1, 2), sorted by name; None if the text is not a list of named values."""
        values: dict[str, str] = {}
        while self._at < len(self._tokens) and not {"or", "\\pm"}.intersection(self._tokens):
            name, stop = self._next(), self._stop(len(self._tokens))
            if name in values or not _is_variable(name) or self._next(1) != "=" or stop == self._at + 2:
                break
            found = self._statement(stop)
            if len(found) != 1 or self._at != stop:
                break
            values[name] = found[0]
            if self._at < len(self._tokens):
                self._take(*_SEPARATING)
        else:
            if len(values) > 1:
                return f"({', '.join(values[name] for name in sorted(values))})"
        self._at = 0
        return None

    def _elements(self, end: int) -> list[str]:
        """Parse a list's elements up to the token ``end``; return them sorted, each once."""
        found: set[str] = set()
        while self._at < end:
            found.update(self._element(end))
            if self._at < end:
                self._take(*_SEPARATING)
        return sorted(found, key=lambda element: (len(element), element))

    def _element(self, end: int) -> list[str]:
        """Parse one element of a list; "a \\pm b" gives two, and a set may give several."""
        stop = self._stop(end)
        doubled = [at for at in range(self._at, stop) if self._tokens[at] == "\\pm"]
        if not doubled:
            return self._statement(stop)
        if len(doubled) > 1:
            raise NotMath
        begin, both = self._at, []
        for sign in "+-":
            self._at, self._tokens[doubled[0]] = begin, sign
            both += self._statement(stop)
        return both

    def _stop(self, end: int) -> int:
        """Return the index where the current element ends."""
        tokens = self._depths(self._at, end)
        return next((at for at, token, depth in tokens if not depth and token in _SEPARATING), end)

    def _statement(self, stop: int) -> list[str]:
        """Parse an expression, equation or chain of inequalities."""
        self._at += self._prefix_length(stop)
        begin = self._at
        sides, relations = [self._side(stop)], []
        while self._at < stop:
            relations.append(self._take(*_RELATIONS))
            sides.append(self._side(stop))
        if not relations:
            return sides[0] if isinstance(sides[0], list) else [self._algebra.text(sides[0])]
        quotients = [side for side in sides if isinstance(side, Quotient)]
        if len(quotients) < len(sides):
            raise NotMath
        if set(relations) == {"="}:
            return [self._equation(quotients, self._tokens[begin:stop])]
        return [self._inequality(quotients, relations)]

    def _prefix_length(self, stop: int) -> int:
        """Count the tokens of the prefix "x in", or of "x =" or "(x, y) =" before a set, tuple or interval; 0: none."""
        named = self._closed_at(self._at) + 1 - self._at if self._next() == "(" else 1
        if self._next(named) == "\\in":
            return named + 1
        names = self._tokens[self._at + 1 : self._at + named - 1] or [self._next()]
        opening = self._at + named + 1
        equals = self._next(named) == "=" and all(map(_is_variable, names[::2])) and opening < stop
        return named + 1 if equals and self._tokens[opening] in OPENING and self._brackets(opening, stop) else 0

    def _equation(self, sides: list[Quotient], tokens: list[str]) -> str:
        """Write an equation canonically.

        That is the value if one side is a lone name or nothing is unknown, the solution of a linear equation in one
        unknown, else all on one side ("x+y-1=0").
        """
        text, algebra = self._algebra.text, self._algebra
        left = tokens[: tokens.index("=")]
        if len(sides) > 2 or _is_name(left):
            return text(sides[-1])
        if _is_name(tokens[tokens.index("=") + 1 :]):
            return text(sides[0])
        if not any(map(_is_variable, tokens)):  # sin(60) = sqrt(3)/2
            return text(sides[-1])
        zero = algebra.lowest(algebra.plus(sides[0], sides[1], -1)).over
        atoms = sorted({atom for monomial in zero for atom, _ in monomial})
        if not atoms:
            return text(sides[-1])
        if len(atoms) == 1 and not zero.keys() - {(), ((atoms[0], 1),)}:
            return text(algebra.number(-zero.get((), Fraction(0)) / zero[((atoms[0], 1),)]))
        return f"{algebra.monic_text(zero)}=0"

    def _inequality(self, sides: list[Quotient], relations: list[str]) -> str:
        """Write a chain of inequalities, with < or <= only."""
        texts = [self._algebra.text(side) for side in sides]
        if set(relations) <= {">", ">="}:
            texts.reverse()
            relations = [_FLIPPED[relation] for relation in reversed(relations)]
        elif relations == ["!="]:
            texts.sort()
        elif not set(relations) <= {"<", "<="}:
            raise NotMath
        return "".join(text + relation for text, relation in zip(texts, [*relations, ""], strict=True))

    def _side(self, stop: int) -> Quotient | list[str]:
        """Parse an expression; or a set as its elements; or a tuple or a union of intervals as one element."""
        if self._next() in OPENING and self._brackets(self._at, stop):
            if self._next() in ("\\{", "{"):
                inside = self._closed_at(self._at)
                self._at += 1
                elements = self._nested(lambda: self._elements(inside))
                self._at = inside + 1
                return elements or ["\\emptyset"]
            parts = [self._bracketed()]
            while self._skip("\\cup"):
                parts.append(self._bracketed())
            return ["\\cup ".join(sorted(set(parts)))]
        return self._sum()

    def _brackets(self, opening: int, stop: int) -> bool:
        """Whether the bracket at ``opening`` holds a list, and at most a union follows it."""
        closed = self._closed_at(opening)
        if closed >= stop or self._tokens[min(closed + 1, stop - 1)] not in ("\\cup", self._tokens[closed]):
            return False
        if self._tokens[opening] == "\\{":
            return True
        return any(not depth and token in _SEPARATING for _, token, depth in self._depths(opening + 1, closed))

    def _bracketed(self) -> str:
        """Parse a tuple or an interval, keeping order and brackets."""
        opening, closed = self._take("(", "["), self._closed_at(self._at - 1)
        parts = [self._algebra.text(self._nested(self._sum))]
        while self._skip(","):
            parts.append(self._algebra.text(self._nested(self._sum)))
        if self._at != closed:
            raise NotMath
        return f"{opening}{', '.join(parts)}{self._take(')', ']')}"


def _is_name(tokens: list[str]) -> bool:
    """Whether the tokens are a variable, with or without an index, or a function of one: y, x_1, f(x), f^{-1}(x)."""
    match tokens:
        case [name] | [name, "_", _] | [name, "_", "{", _, "}"]:
            return _is_variable(name)
        case [name, "(", argument, ")"] | [name, "^", "{", "-", "1", "}", "(", argument, ")"]:
            return _is_variable(name) and _is_variable(argument)
    return False


def _is_variable(token: str) -> bool:
    return (len(token) == 1 and token.isalpha()) or token[1:] in GREEK
