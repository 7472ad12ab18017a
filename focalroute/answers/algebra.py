"""Brings quotients of polynomials into a canonical form, exactly and in bounded time.

It evaluates no text as code, and gives up on expressions that are too large. Coefficients are rational numbers. "Atoms"
are names; square roots of primes and "i", whose squares are known; and whole functions such as "sin(x)", which are not
simplified.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import reduce
from typing import NamedTuple

from focalroute.answers.notation import write_number

Monomial = tuple[tuple[str, int], ...]  # (atom, exponent), sorted by atom; exponents are positive
Polynomial = Mapping[Monomial, Fraction]  # no coefficient is 0

_MOST_WORK = 10_000  # products of terms
_MOST_BITS = 2_000  # of a coefficient
_MOST_DEGREE = 200
_LARGEST_RADICAND = 10**8
_ONE: Polynomial = {(): Fraction(1)}


class NotMath(ValueError):
    """The text cannot be read as an expression, or it is too large."""


class Quotient(NamedTuple):
    """A quotient of polynomials, ``over / under``."""

    over: Polynomial
    under: Polynomial


def constant_value(quotient: Quotient) -> Fraction | None:
    """Return the value of a quotient in lowest terms; None if it has atoms."""
    if quotient.under == _ONE and not quotient.over.keys() - {()}:
        return quotient.over.get((), Fraction(0))
    return None


def _square(atom: str) -> int | None:
    """Return the square of an atom where it is a number: of "i" and of roots of primes."""
    if atom == "i":
        return -1
    inside = atom[5:-1]
    return int(inside) if atom.startswith("sqrt(") and inside.isdecimal() else None


def _product(one: Monomial, other: Monomial) -> tuple[Monomial, int]:
    """Return the product, and the number that its squared roots amount to."""
    exponents, factor = dict(one), 1
    for atom, exponent in other:
        exponents[atom] = exponents.get(atom, 0) + exponent
    for atom in [atom for atom, exponent in exponents.items() if exponent > 1]:
        square = _square(atom)
        if square is not None:
            twice, exponents[atom] = divmod(exponents[atom], 2)
            factor *= square**twice
    if sum(exponents.values()) > _MOST_DEGREE:
        raise NotMath
    return tuple(sorted((atom, exponent) for atom, exponent in exponents.items() if exponent)), factor


class Algebra:
    """Computes with the quotients of one text. Operations raise `NotMath` once they have taken too much work in all."""

    def __init__(self) -> None:
        self._work_left = _MOST_WORK

    # -- making ------------------------------------------------------------------------------------------------------

    def number(self, value: Fraction) -> Quotient:
        """Make a rational number."""
        return Quotient({(): self._checked(value)} if value else {}, _ONE)

    def atom(self, name: str) -> Quotient:
        """Make an atom: a name, or a whole function."""
        return Quotient({((name, 1),): Fraction(1)}, _ONE)

    def function(self, name: str, *arguments: Quotient) -> Quotient:
        """Make a function of the arguments, as an atom."""
        return self.atom(f"{name}({', '.join(map(self.text, arguments))})")

    # -- computing ---------------------------------------------------------------------------------------------------

    def plus(self, one: Quotient, other: Quotient, sign: int = 1) -> Quotient:
        """Add, or with sign -1 subtract."""
        if one.under == other.under:
            return Quotient(self._sum(one.over, other.over, Fraction(sign)), one.under)
        over = self._sum(self._times(one.over, other.under), self._times(other.over, one.under), Fraction(sign))
        return Quotient(over, self._times(one.under, other.under))

    def times(self, one: Quotient, other: Quotient) -> Quotient:
        """Multiply."""
        return Quotient(self._times(one.over, other.over), self._times(one.under, other.under))

    def divided(self, one: Quotient, other: Quotient) -> Quotient:
        """Divide."""
        if not other.over:
            raise NotMath
        return Quotient(self._times(one.over, other.under), self._times(one.under, other.over))

    def power(self, base: Quotient, exponent: Quotient) -> Quotient:
        """Raise to a power; an exponent that is not a number makes an atom."""
        n = constant_value(self.lowest(exponent))
        if n is None:
            return self.function("pow", base, exponent)
        if n.denominator > 1:
            return self.power(self.root(base, n.denominator), self.number(Fraction(n.numerator)))
        if n < 0:
            base = self.divided(Quotient(_ONE, _ONE), base)
        return Quotient(self._power(base.over, abs(n.numerator)), self._power(base.under, abs(n.numerator)))

    def root(self, base: Quotient, degree: int) -> Quotient:
        """Take the root of this degree: exact for a number with an exact root, else as atoms."""
        base = self.lowest(base)
        value = constant_value(base)
        if value is not None and value >= 0:
            exact = _exact_root(value, degree)
            if exact is not None:
                return self.number(exact)
        if degree == 2 and value is not None:
            return self._square_root(value)
        lead = next((c for m, c in _ordered(base.over) if m), None)
        if degree == 2 and lead is not None and lead > 0 and lead != 1:
            rest = Quotient({m: c / lead for m, c in base.over.items()}, base.under)
            return self.times(self._square_root(lead), self.root(rest, 2))
        return self.function("root", self.number(Fraction(degree)), base)

    def _square_root(self, value: Fraction) -> Quotient:
        """Take the square root of a rational number: sqrt(p / q) = sqrt(p q) / q, as a product of roots of primes."""
        radicand = abs(value.numerator * value.denominator)
        if radicand > _LARGEST_RADICAND:
            raise NotMath
        factor, divisor, monomial = 1, 2, []
        if value < 0:
            monomial.append(("i", 1))
        while divisor * divisor <= radicand:
            while radicand % (divisor * divisor) == 0:
                radicand, factor = radicand // (divisor * divisor), factor * divisor
            if radicand % divisor == 0:
                radicand //= divisor
                monomial.append((f"sqrt({divisor})", 1))
            divisor += 1
        if radicand > 1:
            monomial.append((f"sqrt({radicand})", 1))
        return Quotient({tuple(sorted(monomial)): Fraction(factor, value.denominator)}, _ONE)

    # -- canonical form ----------------------------------------------------------------------------------------------

    def lowest(self, quotient: Quotient) -> Quotient:
        """Bring into lowest terms, with no root in the denominator and 1 as the denominator's first coefficient.

        Common factors are found where the denominator has one atom, or where one side is a multiple of the other.
        """
        over, under = quotient
        for atom in sorted({atom for monomial in under for atom, _ in monomial if _square(atom) is not None}):
            conjugate = {m: -c if (atom, 1) in m else c for m, c in under.items()}
            over, under = self._times(over, conjugate), self._times(under, conjugate)
        if not under:
            raise NotMath
        over, under = self._reduced(over, under)
        lead = _ordered(under)[0][1]
        return Quotient({m: c / lead for m, c in over.items()}, {m: c / lead for m, c in under.items()})

    def monic_text(self, polynomial: Polynomial) -> str:
        """Write a polynomial such that all its multiples by a number give the same text."""
        lead = _ordered(polynomial)[0][1]
        return _sum_text({m: c / lead for m, c in polynomial.items()})

    def text(self, quotient: Quotient) -> str:
        """Write a quotient such that equal ones give the same text, which parses to the same quotient."""
        lowest = self.lowest(quotient)
        value = constant_value(lowest)
        if value is not None:
            return write_number(value).replace("E+", "*10^").replace("E", "*10^")  # E would be a name
        if lowest.under == _ONE:
            return _sum_text(lowest.over)
        over, under = _sum_text(lowest.over), _sum_text(lowest.under)
        if len(lowest.over) > 1 or "/" in over:
            over = f"({over})"
        if len(lowest.under) > 1 or "*" in under:
            under = f"({under})"
        return f"{over}/{under}"

    def _reduced(self, over: Polynomial, under: Polynomial) -> tuple[Polynomial, Polynomial]:
        """Divide both by the common factors that are found."""
        if not over:
            return {}, _ONE
        common = reduce(_shared, [*over, *under])
        over = {_without(m, common): c for m, c in over.items()}
        under = {_without(m, common): c for m, c in under.items()}
        atoms = {atom for monomial in under for atom, _ in monomial}
        if len(atoms) == 1:
            return self._without_common_factor(over, under, *atoms)
        if len(atoms) > 1:
            whole = self._exactly(over, under)
            if whole is not None:
                return whole, _ONE
            whole = self._exactly(under, over)
            if whole is not None:
                return _ONE, whole
        return over, under

    def _without_common_factor(self, over: Polynomial, under: Polynomial, atom: str) -> tuple[Polynomial, Polynomial]:
        """Divide both by their greatest common divisor in the atom (Euclid); only ``over`` may have other atoms."""
        parts: dict[Monomial, dict[int, Fraction]] = {}
        for monomial, coefficient in over.items():
            exponents = dict(monomial)
            rest = tuple((a, e) for a, e in monomial if a != atom)
            parts.setdefault(rest, {})[exponents.get(atom, 0)] = coefficient
        below = _coefficients({dict(m).get(atom, 0): c for m, c in under.items()})
        factor = reduce(self._gcd, map(_coefficients, parts.values()), below)
        if len(factor) == 1:
            return over, under
        shorter = {
            tuple(sorted(rest + power)): c
            for rest, part in parts.items()
            for power, c in self._powers(atom, _coefficients(part), factor)
        }
        return shorter, dict(self._powers(atom, below, factor))

    def _powers(self, atom: str, whole: list[Fraction], factor: list[Fraction]) -> Iterator[tuple[Monomial, Fraction]]:
        """Divide by the factor; yield powers of the atom with their coefficients other than 0."""
        for exponent, coefficient in enumerate(self._divided(whole, factor)[0]):
            if coefficient:
                yield ((atom, exponent),) if exponent else (), coefficient

    def _gcd(self, one: list[Fraction], other: list[Fraction]) -> list[Fraction]:
        """Return the greatest common divisor of polynomials as in `_divided`."""
        while other:
            one, other = other, self._divided(one, other)[1]
        return [c / one[-1] for c in one]

    def _divided(self, one: list[Fraction], other: list[Fraction]) -> tuple[list[Fraction], list[Fraction]]:
        """Return quotient and remainder of polynomials in one variable, coefficients by rising exponents."""
        rest, quotient = one.copy(), [Fraction(0)] * max(len(one) - len(other) + 1, 1)
        while len(rest) >= len(other):
            self._pay(len(other))
            shift, factor = len(rest) - len(other), self._checked(rest[-1] / other[-1])
            quotient[shift] = factor
            for at, c in enumerate(other):
                rest[at + shift] -= factor * c
            while rest and not rest[-1]:
                rest.pop()
        return quotient, rest

    def _exactly(self, one: Polynomial, other: Polynomial) -> Polynomial | None:
        """Return ``one / other`` if that is a polynomial, else None."""
        atoms = sorted({atom for monomial in (*one, *other) for atom, _ in monomial})

        def leading(polynomial: Polynomial) -> Monomial:
            return max(polynomial, key=lambda monomial: [dict(monomial).get(atom, 0) for atom in atoms])

        lead, quotient, rest = leading(other), dict[Monomial, Fraction](), one
        while rest:
            first = leading(rest)
            if _shared(first, lead) != lead:
                return None
            step = {_without(first, lead): rest[first] / other[lead]}
            quotient.update(step)
            rest = self._sum(rest, self._times(step, other), Fraction(-1))
        return quotient

    # -- polynomials -------------------------------------------------------------------------------------------------

    def _pay(self, work: int) -> None:
        """Count work against the bound for the text."""
        self._work_left -= work
        if self._work_left < 0:
            raise NotMath

    def _checked(self, value: Fraction) -> Fraction:
        if max(value.numerator.bit_length(), value.denominator.bit_length()) > _MOST_BITS:
            raise NotMath
        return value

    def _sum(self, one: Polynomial, other: Polynomial, factor: Fraction) -> Polynomial:
        self._pay(len(one) + len(other))
        total = dict(one)
        for monomial, coefficient in other.items():
            total[monomial] = self._checked(total.get(monomial, Fraction(0)) + factor * coefficient)
        return {m: c for m, c in total.items() if c}

    def _times(self, one: Polynomial, other: Polynomial) -> Polynomial:
        if one == _ONE:
            return other
        if other == _ONE:
            return one
        self._pay(len(one) * len(other))
        total: dict[Monomial, Fraction] = {}
        for m, c in one.items():
            for n, d in other.items():
                monomial, factor = _product(m, n)
                total[monomial] = self._checked(total.get(monomial, Fraction(0)) + c * d * factor)
        return {m: c for m, c in total.items() if c}

    def _power(self, base: Polynomial, exponent: int) -> Polynomial:
        """Raise to a power by squaring, so that too large a result is noticed after a few steps."""
        result = _ONE
        while exponent:
            if exponent & 1:
                result = self._times(result, base)
            exponent >>= 1
            if exponent:
                base = self._times(base, base)
        return result


def _exact_root(value: Fraction, degree: int) -> Fraction | None:
    """Return the root of this degree; None if it is not rational, or too large to tell."""
    parts = []
    for part in (value.numerator, value.denominator):
        if degree > 64 or part.bit_length() > 1_000:
            return None
        root = math.isqrt(part) if degree == 2 else round(part ** (1 / degree))
        if root**degree != part:
            return None
        parts.append(root)
    return Fraction(*parts)


def _shared(one: Monomial, other: Monomial) -> Monomial:
    """Return the greatest common divisor."""
    exponents = dict(other)
    return tuple((atom, min(e, exponents[atom])) for atom, e in one if atom in exponents)


def _without(monomial: Monomial, factor: Monomial) -> Monomial:
    """Divide by a factor."""
    less = dict(factor)
    return tuple((atom, e - less.get(atom, 0)) for atom, e in monomial if e > less.get(atom, 0))


def _coefficients(by_exponent: Mapping[int, Fraction]) -> list[Fraction]:
    return [by_exponent.get(e, Fraction(0)) for e in range(max(by_exponent) + 1)]


def _ordered(polynomial: Polynomial) -> list[tuple[Monomial, Fraction]]:
    """Return the terms by falling degree, then by atoms."""
    return sorted(polynomial.items(), key=lambda term: (-sum(e for _, e in term[0]), term[0]))


def _sum_text(polynomial: Polynomial) -> str:
    terms = "+".join(_term_text(monomial, coefficient) for monomial, coefficient in _ordered(polynomial))
    return terms.replace("+-", "-")


def _term_text(monomial: Monomial, coefficient: Fraction) -> str:
    factors = [atom if e == 1 else f"{atom}^{e}" for atom, e in monomial]
    if abs(coefficient.numerator) != 1 or not factors:
        factors.insert(0, str(abs(coefficient.numerator)))
    below = f"/{coefficient.denominator}" if coefficient.denominator > 1 else ""
    sign = "-" if coefficient < 0 else ""
    return sign + "*".join(factors) + below
