"""Parses mathematical expressions, in LaTeX or plain, by recursive descent.

Nothing is evaluated as code, and size, depth and work are bounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from math import comb, factorial
from typing import TypeVar

from focalroute.answers.algebra import Algebra, NotMath, Quotient, constant_value

_T = TypeVar("_T")

LONGEST = 400  # characters of a formula
_DEEPEST = 24  # brackets within each other
_LARGEST_FACTORIAL = 100
_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)|(?P<command>\\[A-Za-z]+|\\[{}])"
    r"|(?P<name>[^\W\d_]+)|(?P<sign><=|>=|!=|[-+*/^_=<>()\[\]{},;|!])|(?P<other>\S))"
)
_FUNCTIONS = frozenset((
    "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "log", "ln",
    "exp", "abs", "sqrt", "root", "pow", "binom", "det", "max", "min",
))  # fmt: skip
_CONSTANTS = {"pi", "infinity"}
_SIGNS = {"+": 1, "-": -1}
GREEK = frozenset((
    "alpha", "beta", "gamma", "delta", "epsilon", "varepsilon", "zeta", "eta", "theta", "vartheta", "kappa",
    "lambda", "mu", "nu", "xi", "rho", "sigma", "tau", "phi", "varphi", "chi", "psi", "omega", "Gamma", "Delta",
    "Theta", "Lambda", "Xi", "Sigma", "Phi", "Psi", "Omega",
))  # fmt: skip
#: A run of letters is a product if it has two letters and is not one of these words, or has only `_VARIABLES`.
_WORDS = frozenset((
    "no", "if", "is", "or", "to", "in", "of", "on", "at", "by", "it", "an", "as", "we", "he", "me", "my", "be",
    "go", "do", "up", "us", "am", "so", "ok", "hi", "ie", "eg",
))  # fmt: skip
_VARIABLES = frozenset("abcxyz")
_BAR = "|"
OPENING = frozenset(("(", "[", "{", "\\{"))
ENDING = frozenset((")", "]", "}", "\\}"))


class ExpressionParser:
    """Parses expressions token by token."""

    def __init__(self, text: str) -> None:
        self._tokens: list[str] = []
        if len(text) > LONGEST:
            raise NotMath
        for match in _TOKEN.finditer(text):
            if match["other"]:
                raise NotMath
            self._tokens += _split(match["name"]) if match["name"] else [match[0].strip()]
        self._at = 0
        self._depth = 0
        self._algebra = Algebra()

    # -- tokens ------------------------------------------------------------------------------------------------------

    def _next(self, ahead: int = 0) -> str:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else ""

    def _take(self, *wanted: str) -> str:
        """Consume the next token; NotMath if there is none, or it is not one of those wanted."""
        token = self._next()
        if not token or (wanted and token not in wanted):
            raise NotMath
        self._at += 1
        return token

    def _skip(self, token: str) -> bool:
        found = self._next() == token
        self._at += found
        return found

    def _closed_at(self, opening: int) -> int:
        """Return the index of the token that closes the bracket at ``opening``."""
        for at, _, depth in self._depths(opening, len(self._tokens)):
            if not depth:
                return at
        raise NotMath

    def _depths(self, begin: int, end: int) -> Iterator[tuple[int, str, int]]:
        """Yield the index of each of these tokens, the token, and how many brackets are open after it."""
        depth = 0
        for at in range(begin, end):
            token = self._tokens[at]
            depth += (token in OPENING) - (token in ENDING)
            yield at, token, depth

    # -- expressions -------------------------------------------------------------------------------------------------

    def _nested(self, parse: Callable[[], _T]) -> _T:
        """Parse one level deeper, within the bound on depth."""
        self._depth += 1
        if self._depth > _DEEPEST:
            raise NotMath
        value = parse()
        self._depth -= 1
        return value

    def _sum(self) -> Quotient:
        """Parse terms joined by + and -."""
        total = self._algebra.number(Fraction(0))
        if self._next() not in ("+", "-"):
            total = self._algebra.plus(total, self._term())
        while self._next() in ("+", "-"):
            sign = _SIGNS[self._take()]
            total = self._algebra.plus(total, self._term(), sign)
        return total

    def _term(self) -> Quotient:
        """Parse factors that are multiplied, divided or written side by side."""
        product = self._factor()
        while True:
            if self._skip("*"):
                product = self._algebra.times(product, self._signed_factor())
            elif self._skip("/"):
                product = self._algebra.divided(product, self._signed_factor())
            elif self._begins_factor():
                product = self._algebra.times(product, self._factor())
            else:
                return product

    def _signed_factor(self) -> Quotient:
        if self._skip("-"):
            return self._algebra.times(self._algebra.number(Fraction(-1)), self._nested(self._signed_factor))
        return self._factor()

    def _begins_factor(self) -> bool:
        """Whether the next token begins a factor that is multiplied without a sign."""
        token = self._next()
        if not token or token in ("or", "and"):
            return False
        if token[0].isdigit() or token[0] == ".":
            raise NotMath  # two numbers side by side
        return token[0].isalpha() or token in ("(", "{", "[") or (token[0] == "\\" and token[1:] in _AS_FACTOR)

    def _factor(self) -> Quotient:
        """Parse a base with its factorials and exponent."""
        base = self._nested(self._base)
        while self._skip("!"):
            base = self._factorial(base)
        if self._skip("^"):
            return self._algebra.power(base, self._nested(self._exponent))
        return base

    def _exponent(self) -> Quotient:
        if self._skip("-"):
            return self._algebra.times(self._algebra.number(Fraction(-1)), self._nested(self._exponent))
        base = self._base()
        if self._skip("^"):
            return self._algebra.power(base, self._nested(self._exponent))
        return base

    def _factorial(self, base: Quotient) -> Quotient:
        return self._algebra.number(Fraction(factorial(self._whole(base, 0, _LARGEST_FACTORIAL))))

    def _whole(self, value: Quotient, least: int, most: int) -> int:
        """Return a value that has to be a whole number within these bounds."""
        number = constant_value(self._algebra.lowest(value))
        if number is None or number.denominator > 1 or not least <= number <= most:
            raise NotMath
        return int(number)

    def _base(self) -> Quotient:
        """Parse a number, a name, a function or a bracketed expression."""
        token = self._take()
        if token[0].isdigit() or token[0] == ".":
            return self._number(token)
        if token in ("(", "{", "["):
            inside = self._nested(self._sum)
            self._take(*ENDING)
            return inside
        if token == _BAR:
            inside = self._nested(self._sum)
            self._take(_BAR)
            return self._algebra.function("abs", inside)
        name = token.removeprefix("\\")
        if name in ("frac", "sqrt", "binom") and token[0] == "\\":
            return self._command(name)
        if name in _FUNCTIONS:
            return self._function(name)
        if token[0] == "\\" and name not in GREEK:
            raise NotMath
        if token in ("or", "and") or not (token[0].isalpha() or token[0] == "\\"):
            raise NotMath
        return self._algebra.atom(token + self._index())

    def _index(self) -> str:
        """Parse the index of a name: a number or a name."""
        if not self._skip("_"):
            return ""
        braced = self._skip("{")
        index = self._take()
        if braced:
            self._take("}")
        if not index.isalnum():
            raise NotMath
        return f"_{index}"

    def _number(self, digits: str) -> Quotient:
        """Parse the rest of a number, which may be mixed: 3 1/2, 3\\frac{1}{2}."""
        if len(digits) > 60:
            raise NotMath
        value = Fraction(digits.replace(",", ""))
        if digits.isdecimal() and self._next(1) == "/" and self._next().isdecimal() and self._next(2).isdecimal():
            over = int(self._take())
            self._take("/")
            under = int(self._take())
            if not 0 < over < under:
                raise NotMath
            value += Fraction(over, under)
        elif digits.isdecimal() and self._next() == "\\frac":
            begin = self._at
            self._at += 1
            part = constant_value(self._algebra.lowest(self._command("frac")))
            if part is not None and 0 < part < 1:
                value += part
            else:
                self._at = begin
        return self._algebra.number(value)

    def _command(self, name: str) -> Quotient:
        """Parse the arguments of \\frac, \\sqrt or \\binom."""
        if name == "sqrt":
            degree = 2
            if self._skip("["):
                degree = self._whole(self._nested(self._sum), 2, 64)
                self._take("]")
            return self._algebra.root(self._nested(self._base), degree)
        over, under = self._nested(self._argument), self._nested(self._argument)
        if name == "frac":
            return self._algebra.divided(over, under)
        return self._binomial(over, under)

    def _binomial(self, n: Quotient, k: Quotient) -> Quotient:
        return self._algebra.number(Fraction(comb(self._whole(n, 0, 200), self._whole(k, 0, 200))))

    def _argument(self) -> Quotient:
        """Parse the argument of a command: a group, or one digit or letter."""
        token = self._next()
        if not token.isdecimal():
            return self._base()
        if len(token) > 1:  # \frac12
            self._tokens[self._at : self._at + 1] = [token[0], token[1:]]
        return self._algebra.number(Fraction(self._take()))

    def _function(self, name: str) -> Quotient:
        """Parse the arguments of a function, also in the forms sin^2 x and log_2 x."""
        arguments, exponent = [], None
        if name == "log" and self._skip("_"):
            arguments.append(self._nested(self._argument))
        if self._skip("^"):
            exponent = self._nested(self._exponent)
        if self._next() in ("(", "{"):
            closing = {"(": ")", "{": "}"}[self._take()]
            arguments.append(self._nested(self._sum))
            while self._skip(","):
                arguments.append(self._nested(self._sum))
            self._take(closing)
        else:
            arguments.append(self._nested(self._bare_argument))
        value = self._applied(name, arguments)
        return value if exponent is None else self._algebra.power(value, exponent)

    def _bare_argument(self) -> Quotient:
        """Parse a function's argument without brackets: sin 2x."""
        product = self._factor()
        while (
            self._next()
            and (self._next()[0].isalpha() or self._next()[1:] in GREEK)
            and self._next() not in (_FUNCTIONS | {"or", "and"})
        ):
            product = self._algebra.times(product, self._factor())
        return product

    def _applied(self, name: str, arguments: list[Quotient]) -> Quotient:
        """Apply a function: compute it where that is exact, else keep it as an atom."""
        algebra = self._algebra
        match name, arguments:
            case "sqrt", [inside]:
                return algebra.root(inside, 2)
            case "root", [degree, inside]:
                return algebra.root(inside, self._whole(degree, 2, 64))
            case "pow", [base, exponent]:
                return algebra.power(base, exponent)
            case "exp", [inside]:
                return algebra.power(algebra.atom("e"), inside)
            case "binom", [n, k]:
                return self._binomial(n, k)
            case "abs", [inside] if (value := constant_value(algebra.lowest(inside))) is not None:
                return algebra.number(abs(value))
        return algebra.function(name, *arguments)


_AS_FACTOR = frozenset(("frac", "sqrt", "binom")) | _FUNCTIONS | GREEK


def _split(name: str) -> Iterable[str]:
    """Split a run of letters into tokens: a function, a constant, "or", "and", or the factors of a product."""
    if name in _FUNCTIONS or name in _CONSTANTS or name in ("or", "and"):
        return [name]
    if not name.isalpha():  # raised digits
        raise NotMath
    if len(name) == 1 or set(name) <= _VARIABLES or (len(name) == 2 and name.casefold() not in _WORDS):
        return list(name)
    raise NotMath
