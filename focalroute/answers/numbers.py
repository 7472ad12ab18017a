"""Numbers: which one a reply gives, and one way to write it."""

from __future__ import annotations

import re
import unicodedata
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal, InvalidOperation, Overflow
from fractions import Fraction

from focalroute.answers.final import final
from focalroute.answers.words import SCALES, number_in_words

_EXACT = Context(prec=MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX)  # the current context may round
_NUMBER = r"(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)"
_BOUNDED = r"(?:\d{1,18}(?:\.\d{1,18})?|\.\d{1,18})"
_TIMES = r"\s*(?:\*|x|\u00d7|·|⋅|\\times|\\cdot)\s*"
_TO_THE = r"\s*(?:\^|\*\*)\s*\{?\s*"
# Tried in this order. Dates, times, ratios, versions, exponents and indices are no numbers.
_TOKEN = re.compile(
    rf"""(?=[-+$€£¥₹\d.^_*])(?:
    (?P<none>(?:\^|_|\*\*)\s*\{{?\s*[-+]?\d+
      |(?<![\d.,])\d++(?P<joint>[-:/.])\d++(?:(?P=joint)\d++)+
      |(?<![\d.,])\d++:\d++)
    |(?P<sign>(?<![\w)\]}}])[-+])?[$€£¥₹]?(?:
      (?:(?P<mantissa>{_NUMBER}){_TIMES})?10{_TO_THE}(?P<ten>[-+]?\d{{1,6}})
      |(?P<base>{_BOUNDED}){_TO_THE}(?P<exponent>\d{{1,2}})(?!\d)
      |(?:(?P<whole>\d{{1,18}})\s+)?(?P<over>{_BOUNDED})\s*/\s*(?P<under>{_BOUNDED})(?!\d)
      |(?P<plain>{_NUMBER})(?P<e>(?:[eE][-+]?\d+)?)(?:\s*(?P<scale>{"|".join(SCALES)})\b)?
    )(?P<half>\s+and\s+a\s+half\b)?)""",
    re.VERBOSE | re.IGNORECASE,
)
_FEW = 10**6
_ASIDE = re.compile(r"\([^()]{1,200}\)[\s.]*$")  # "2.5 hours (150 minutes)."
_CLAUSE_END = re.compile(r"[,;]\s|\s\(|\s(?:as|since|because|so|which)\s")
_VULGAR = re.compile("(\\d?)([\u00bc-\u00be\u2150-\u215e])")
_RAISED = re.compile("[\u2070\u00b9\u00b2\u00b3\u2074-\u2079\u207a\u207b]+")
_THIN = re.compile(r"(?<=\d)(?:[\u00a0\u2009\u202f]|\\[,!;: ]|_)(?=\d{3}(?!\d))")
_FRACTION = re.compile(rf"(\d?)\\[dtc]?frac\s*(?:\{{\s*({_NUMBER})\s*\}}|(\d))\s*(?:\{{\s*({_NUMBER})\s*\}}|(\d))")
_PLAIN = str.maketrans("\N{MINUS SIGN}\N{SMALL HYPHEN-MINUS}\N{FULLWIDTH HYPHEN-MINUS}\N{FULLWIDTH FULL STOP}", "---.")


def number(text: str) -> str | None:
    """The number that a reply gives as its answer: the first where it says so, else its last.

    Plain decimal notation without trailing zeros; a lowest fraction where that would not end. Thousands separators,
    currencies, percent signs and units do not matter; "3/4", "3 1/2", ``\\frac{3}{4}``, "1.2 x 10^3", "3 million" and
    small numbers in words are read. Equal means exactly equal: 0.33 is not 1/3. The comma is never a decimal point.

    >>> number("So 1,250.50 in all."), number("The answer is 3/4 of 20."), number("-2/6"), number("none")
    ('1250.5', '0.75', '-1/3', None)
    """
    found = final(text)
    if found is None:
        return None
    if found.said:
        said = cleaned(found.text)
        _, _, solved = _CLAUSE_END.split(said, 1)[0].rpartition("=")
        form = _in_digits(solved, first=True) or _in_digits(said, first=True) or _in_words(said, first=True)
        if form is not None or any(character.isdigit() for character in said):
            return form
    for line in reversed(found.rest.splitlines()):
        line = cleaned(line)
        form = _in_digits(_ASIDE.sub("", line), first=False) or _in_digits(line, first=False)
        if form is not None:
            return form
    return _in_words(found.text, first=False)


def cleaned(text: str) -> str:
    """Typographic and LaTeX ways to write numbers as plain ones.

    >>> cleaned("3½ is 1{,}000 \\\\frac{7}{2}")
    '3 1/2 is 1,000 7/2'
    """
    text = _THIN.sub("", typed(text.translate(_PLAIN)).replace("{,}", ",").replace("\\$", "$"))
    return _FRACTION.sub(lambda m: f"{m[1]}{m[1] and ' '}{m[2] or m[3]}/{m[4] or m[5]}", text)


def typed(text: str) -> str:
    """Raised digits and small fractions as they are typed.

    >>> typed("5½ m²")
    '5 1/2 m^2'
    """
    text = _RAISED.sub(lambda match: "^" + unicodedata.normalize("NFKC", match[0]).translate(_PLAIN), text)
    return _VULGAR.sub(_spelled, text)


def written(value: Fraction | Decimal) -> str:
    """One way to write a number.

    >>> written(Fraction(1, 8)), written(Fraction(-2, 6)), written(Decimal("1.50"))
    ('0.125', '-1/3', '1.5')
    """
    if isinstance(value, Fraction):
        twos = (value.denominator & -value.denominator).bit_length() - 1
        odd, fives = value.denominator >> twos, 0
        while odd % 5 == 0:
            odd, fives = odd // 5, fives + 1
        if odd > 1:
            return f"{value.numerator}/{value.denominator}"
        places = max(twos, fives)
        value = _EXACT.scaleb(Decimal(value.numerator * 10**places // value.denominator), -places)
    value = _EXACT.normalize(value)
    if not value:
        return "0"
    return format(value, "f") if abs(value.adjusted()) <= 40 else str(value)


def _spelled(match: re.Match[str]) -> str:
    return match[1] + (match[1] and " ") + unicodedata.normalize("NFKD", match[2]).replace("\u2044", "/")


def _in_digits(text: str, *, first: bool) -> str | None:
    """The form of the first number, or of the last."""
    found = [match for match in _TOKEN.finditer(text) if match["none"] is None]
    return _form(found[0 if first else -1]) if found else None


def _in_words(text: str, *, first: bool) -> str | None:
    value = number_in_words(text, first=first)
    return None if value is None else written(value)


def _form(match: re.Match[str]) -> str | None:
    try:
        value = _value(match)
        if value is not None and match["half"]:
            value = Fraction(value) + Fraction(1, 2) if abs(Fraction(value)) < _FEW else None
        return None if value is None else written(-value if match["sign"] == "-" else value)
    except (InvalidOperation, Overflow):  # beyond any number that is meant
        return None


def _value(match: re.Match[str]) -> Fraction | Decimal | None:
    if match["ten"] is not None:
        return _EXACT.scaleb(_decimal(match["mantissa"] or "1"), int(match["ten"]))
    if match["base"] is not None:
        return Fraction(_decimal(match["base"])) ** int(match["exponent"])
    if match["over"] is not None:
        over, under = Fraction(_decimal(match["over"])), Fraction(_decimal(match["under"]))
        whole = int(match["whole"] or 0) if over < under else 0  # "12 6/3" is no mixed number
        return whole + over / under if under else None
    value = _decimal(match["plain"] + match["e"])
    return _EXACT.scaleb(value, SCALES[match["scale"].casefold()]) if match["scale"] else value


def _decimal(digits: str) -> Decimal:
    return _EXACT.create_decimal(digits.replace(",", ""))
