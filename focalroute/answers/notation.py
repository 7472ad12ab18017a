"""Rewrites the notations of numbers as plain digits, and writes equal numbers alike."""

from __future__ import annotations

import re
import unicodedata
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from fractions import Fraction

#: Computes without rounding, as the current context may not.
EXACT = Context(prec=MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX)

SCALES = {"dozen": 12, "hundred": 100, "thousand": 10**3, "lakh": 10**5, "million": 10**6, "crore": 10**7}
SCALES |= {"billion": 10**9, "trillion": 10**12, "quadrillion": 10**15}
SCALE = rf"(?:{'|'.join(SCALES)})s?\b"
#: Word of a fraction -> its denominator.
FRACTION_WORDS = {"half": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8}
FRACTION_WORDS |= {"ninth": 9, "tenth": 10, "halve": 2}

#: Digits, with thousands by commas, also as in India (12,34,567).
NUMBER = r"(?:(?:(?:\d{1,3}(?:,\d{3})+|\d{1,2}(?:,\d{2}){1,6},\d{3})(?!\d)|\d+)(?:\.\d+)?|\.\d+)"
#: Spaces of typography or LaTeX, or Python's underscore, between thousands.
THIN_SPACES = re.compile(r"(?<=\d)(?:[\u00a0\u2009\u202f]|\\[,!;: ]|_)(?=\d{3}(?!\d))")

_ASCII = str.maketrans(
    "\N{MINUS SIGN}\N{EN DASH}\N{SMALL HYPHEN-MINUS}\N{FULLWIDTH HYPHEN-MINUS}\N{FULLWIDTH FULL STOP}"
    "\N{ARABIC DECIMAL SEPARATOR}\N{ARABIC THOUSANDS SEPARATOR}",
    "----..,",
    "\N{VARIATION SELECTOR-16}\N{COMBINING ENCLOSING KEYCAP}",  # of digits written as emoji
)
# Else "**4" and "_4" would be an exponent and an index. A power (2**10) has no space before it, or has one behind it.
_EMPHASIS = re.compile(
    r"(?<![A-Za-z0-9_)\]}*])(?:\*\*(?=\S)((?:[^*\n]|\*(?!\*))+)(?<=\S)\*\*|(__?)(?=\S)([^_\n]+)(?<=\S)\2)"
    r"(?![A-Za-z0-9_])"
)
_FRACTION_CHARACTER = re.compile("(\\d?)([\u00bc-\u00be\u2150-\u215e])")
_SUPERSCRIPT = re.compile("[\u2070\u00b9\u00b2\u00b3\u2074-\u2079\u207a\u207b]+")
_REPEATING = re.compile(r"(?<![\d.,/*^])(\d{1,9})\.(\d{0,9})\\overline\s*\{(\d{1,9})\}")
_PART = rf"(?:\{{\s*(-?{NUMBER})\s*\}}|(\d))"
_LATEX_FRACTION = re.compile(rf"(\d?)\\[dtc]?frac\s*{_PART}\s*{_PART}")

# -- thousands, and decimal commas -------------------------------------------------------------------------------------

_BY_SPACES = re.compile(r"(?<![\w.,])\d{1,3}(?:[ '\u2019]\d{3})+(?!\d|\s*/)")  # 12 345, 12'345
_COUNTED = r"personas|persone|Personen|pessoas|Menschen|Einwohner|habitantes|abitanti|años|anos|anni|Jahren?"
_BY_POINTS = re.compile(  # 1.234.567; 1.234 €; 1.500 personas
    rf"(?<![\w.,])\d{{1,3}}(?:(?:\.\d{{3}}){{2,}}(?![\w]|[.,]\d)"
    rf"|\.\d{{3}}(?=\s?(?:€|[Ee]uros?\b)|\s(?:{_COUNTED})\b))"
)
_DECIMAL_COMMA = re.compile(r"(?<![\w.,(\[{])(\d{1,3}(?:\.\d{3})+|\d+),(\d+)(?!\d|[.,]\d)")

# -- scales ------------------------------------------------------------------------------------------------------------

# "$2.5M", "5 M€", "5k", "5 bn"; but "300 K", "0.1 M", "5m" and "$5 m$" have units
_ABBREVIATED_SCALE = re.compile(
    r"(?P<money>[$€£¥₹]\s?|\b(?:USD|EUR|GBP|INR)\s?)?(?<![\w.,])(?P<digits>\d[\d,]{0,20}(?:\.\d{1,9})?)"
    r"(?P<scale>(?-i:k)|\s?bn|\s?(?P<of_money>k|m[mn]?|b|tn?))(?!\w|[^$\n]{0,80}\$(?!\d))"
    r"(?P<after>\s?[€£¥₹]|\s?(?:USD|EUR|GBP|dollars|euros)\b)?",
    re.IGNORECASE,
)
_ABBREVIATIONS = {"k": "thousand", "m": "million", "b": "billion", "t": "trillion"}
_PART_OF_SCALE = re.compile(  # "half a million", but not "two and a half million"
    r"(?P<mixed>\band\s+an?\s+)?(?:\ban?\s+)?"
    rf"\b(?P<part>half|quarter|(?:{'|'.join(FRACTION_WORDS)})(?=\s+of\s))(?:\s+of)?(?:\s+an?)?[\s-]+(?={SCALE})",
    re.IGNORECASE,
)
_SCALE_OUTSIDE = re.compile(rf"(\*\*|\\boxed\{{|\$)([-€£¥₹\d.,]{{1,40}})(\*\*|\}}\$?|\$)(\s+{SCALE})", re.IGNORECASE)
_SCALE_AFTER_DIGITS = re.compile(rf"(?<=[\d}}])[\s~]*(\\text\s*\{{)?\s*({SCALE})", re.IGNORECASE)


def plain_digits(text: str) -> str:
    """Turn typographic, emphasised and LaTeX numbers into plain ones.

    >>> plain_digits("3½ is 1{,}000 \\\\frac{7}{2}")
    '3 1/2 is 1,000 7/2'
    """
    if text.isdecimal():
        return text
    text = _EMPHASIS.sub(lambda m: m[1] or m[3], text)
    text = THIN_SPACES.sub("", type_out(text.translate(_ASCII)).replace("{,}", ",").replace("\\$", "$"))
    for grouped in (_BY_SPACES, _BY_POINTS):
        text = grouped.sub(lambda m: re.sub(r"\D", "", m[0]), text)
    text = _ABBREVIATED_SCALE.sub(_with_scale_in_full, text)
    text = _PART_OF_SCALE.sub(_with_part_in_digits, text)
    text = _DECIMAL_COMMA.sub(_with_decimal_point, text)
    return _LATEX_FRACTION.sub(lambda m: f"{m[1]}{m[1] and ' '}{m[2] or m[3]}/{m[4] or m[5]}", text)


def _with_scale_in_full(match: re.Match[str]) -> str:
    """Write "$5M" as "$5 million". Without a currency, letters that are scales only of money, as in "5M", stay."""
    if match["of_money"] and not (match["money"] or match["after"]):
        return match[0]
    scale = _ABBREVIATIONS[match["scale"].lstrip()[0].casefold()]
    return f"{match['money'] or ''}{match['digits']} {scale}{match['after'] or ''}"


def _with_part_in_digits(match: re.Match[str]) -> str:
    """Write "half a million" as "1/2 million"."""
    return match[0] if match["mixed"] else f"1/{FRACTION_WORDS[match['part'].casefold()]} "


def _with_decimal_point(match: re.Match[str]) -> str:
    """Replace a decimal comma by a point; a comma that separates thousands stays."""
    whole, decimals = match[1].replace(".", ""), match[2]
    if len(decimals) == 3 and whole == match[1] and len(whole) <= 3 and whole != "0":
        return match[0]
    return f"{whole}.{decimals}"


def with_scale(text: str) -> str:
    """Move a scale that stands behind a number's markup into it.

    >>> with_scale("They are **2.5** million."), with_scale("$2.5$ million")
    ('They are **2.5 million**.', '$2.5 million$')
    """
    return _SCALE_OUTSIDE.sub(r"\1\2\4\3", text)


def multiply_out(text: str) -> str:
    """Write scales as factors.

    >>> multiply_out("2.5\\\\text{ million km}"), multiply_out("3 dozen")
    ('2.5*1000000\\\\text{ km}', '3*12')
    """
    return _SCALE_AFTER_DIGITS.sub(lambda m: f"*{SCALES[m[2].casefold().removesuffix('s')]}{m[1] or ''}", text)


def type_out(text: str) -> str:
    """Replace superscript digits, fraction characters and repeating decimals by plain text.

    >>> type_out("5½ m²"), type_out("0.1\\\\overline{6}")
    ('5 1/2 m^2', '15/90')
    """
    text = _REPEATING.sub(_as_fraction, text)
    text = _SUPERSCRIPT.sub(lambda match: "^" + unicodedata.normalize("NFKC", match[0]).translate(_ASCII), text)
    return _FRACTION_CHARACTER.sub(_as_quotient, text)


def _as_fraction(match: re.Match[str]) -> str:
    """Write a repeating decimal as a fraction: 0.1666... = (16 - 1) / 90."""
    before, places, repeated = match[1] + match[2], len(match[2]), match[3]
    return f"{int(before + repeated) - int(before)}/{10**places * (10 ** len(repeated) - 1)}"


def _as_quotient(match: re.Match[str]) -> str:
    """Write "½" as "1/2", with a space after a whole number."""
    return match[1] + (match[1] and " ") + unicodedata.normalize("NFKD", match[2]).replace("\u2044", "/")


def write_number(value: Fraction | Decimal) -> str:
    """Write a number in canonical form: in decimals where they end, else as a fraction in lowest terms.

    >>> write_number(Fraction(1, 8)), write_number(Fraction(-2, 6)), write_number(Decimal("1.50"))
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
        value = EXACT.scaleb(Decimal(value.numerator * 10**places // value.denominator), -places)
    value = EXACT.normalize(value)
    if not value:
        return "0"
    return format(value, "f") if abs(value.adjusted()) <= 40 else str(value)
