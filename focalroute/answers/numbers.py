"""Reads the number that a reply gives as its answer, in digits or English words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation, Overflow
from fractions import Fraction
from math import prod

from focalroute.answers.final import UNDECIDED, find_final
from focalroute.answers.notation import (
    EXACT,
    FRACTION_WORDS,
    NUMBER,
    SCALE,
    SCALES,
    plain_digits,
    with_scale,
    write_number,
)
from focalroute.answers.number_words import AND_PART, SCALE_WORD, number_in_words
from focalroute.answers.question_numbers import is_from_question

_FIRST, _LAST = 0, -1
_LARGEST_WITH_PART = 10**6  # "3 and a half"
_ZEROS = {"百": 2, "千": 3, "万": 4, "萬": 4, "만": 4, "亿": 8, "億": 8, "억": 8, "兆": 12}  # that a character adds

_CURRENCY = "[$€£¥₹]"
_AMOUNT = rf"{_CURRENCY}?\d[\d.,]*"
_BOUNDED = r"(?:\d{1,18}(?:\.\d{1,18})?|\.\d{1,18})"
_TO_THE = r"\s*(?:\^|\*\*)\s*\{?\s*"
_GAP = r"(?:[\s~$-]|\\[,;: ]|\\(?:text|mathrm)\s*\{)*"
_SCALE_CHARACTER = f"[{''.join(_ZEROS)}]"

#: Digits that are not a number. These rules come first; in each table the first rule that matches counts.
_NOT_NUMBERS = {
    "exponent or index: m^2, x_1": r"(?:\^|_|\*\*)\s*\{?\s*[-+]?\d+",
    "date, time or version: 2024-05-13, 1.2.3": r"(?<![\d.,])\d++(?P<joint>[-:/.])\d++(?:(?P=joint)\d++)+(?:\.\d+)?",
    "ratio, or time of day: 3:30": r"(?<![\d.,])\d++:\d++",
    "hexadecimal or binary: 0x1F": r"0[xb][\da-f]+\b",
    "root: 2\\sqrt{3}, √2/2": (
        rf"(?:{NUMBER}\s*)?(?:\\?sqrt\s*(?:\[\d+\])?\s*[{{(]?|√\s*\(?)\s*\d[\d.]*(?:[)}}]?\s*/\s*\d+)?"
    ),
    "multiple of pi: 2π": rf"{NUMBER}\s*(?:\\pi|π|pi\b)",
    "start of a range: from 10 (to 52)": rf"\bfrom\s+{_CURRENCY}?{NUMBER}(?=%?\s*(?:-|to\s)\s*{_CURRENCY}?\d)",
    "range of years: between 1800 and 1824": r"between\s\d{4}\sand\s\d{4}\b",
}
#: The forms of a number, after its sign and currency.
_FORMS = {
    "scientific: 1.2 x 10^3": (
        rf"(?:(?P<mantissa>{NUMBER})\s*(?:\*|x|\u00d7|·|⋅|\\times|\\cdot)\s*)?10{_TO_THE}(?P<ten>[-+]?\d{{1,6}})"
    ),
    "power: 2^10": rf"(?P<base>{_BOUNDED}){_TO_THE}(?P<exponent>-?\d{{1,2}})(?!\d)",
    "quotient: 3/4, 3 1/2": (
        rf"(?:(?P<whole>\d{{1,18}})(?:\s+|-))?(?P<over>{_BOUNDED})\s*/\s*(?P<under>-?{_BOUNDED})(?!\d)"
        rf"(?:(?:\s+of)?\s+an?(?=\s+{SCALE}))?"
    ),
    "digits: 1,250.50, 1e3": rf"(?P<plain>{NUMBER})(?P<e>(?:[eE][-+]?\d+)?)",
}
#: Text after a number that makes it unclear. An unclear number is not read.
_UNCLEAR = {
    "more digits after a scale: 2 million 500 thousand": rf"(?<=[a-z])\s+\d[\d.,]*\s*{SCALE}",
    "more digits after a scale: 1万2千": rf"(?<={_SCALE_CHARACTER})(?:\d|{_SCALE_CHARACTER})",
    "scale or unit: 5M, 300K": r"(?-i:[KMBT]\b)",
    "scale in another language: 3 Millionen, 5 млн": (
        rf"{_GAP}(?:(?:m|b|tr)il{{1,2}}[ij]?(?:o|ó|oe)n\w*|mill?[ij]ar\w+|m(?:io|rd|ld|il|ila)\b|milh[ãõ]\w+"
        r"|тыс\w*|миллион\w*|миллиард\w*|млн|млрд)"
    ),
    "other scale: 3 quintillion, 7 tenths": (
        rf"{_GAP}(?:[a-z]{{1,12}}illions?\b|(?:ten|hundred|thousand|million)th(?:s|\b))"
    ),
    "second part: 3 million and a half, 3 and 1/2": rf"{_GAP}and\s+(?:a\s+half\b|\d+\s*/\s*\d)",
    "range, or feet and inches: 3-5, 3 to 5, 5'6": rf"\s?(?:-|\bto\b(?!\s\d\s+decimal)|['\u2032])\s?{_AMOUNT}",
    "range: between 3 and 5": rf"(?(between)\s+and\s+|(?!)){_AMOUNT}",
    "second solution: x = 3 or x = -2, x_1 = 3, x_2 = -2": (
        r"[$\s]*(?:\b(?:or|and)\s+[$]?[a-z]|[,;][$\s]*(?:\\q?quad\s*)?[a-z]_\{?2\}?)\s*=\s*-?"
        rf"{_AMOUNT}"
    ),
    "measure in two units: 5 feet 6, not 3 hours 45 litres": (
        r"\s?(?:feet|foot|ft|hours?|hrs?|h|minutes?|min|pounds?|lbs?|dollars?)\s+(?:and\s+)?"
        rf"{_AMOUNT}(?![\d.,]|\s+(?!(?:in|inch\w*|min\w*|sec\w*|s|o\w*|cents?|pence)\b)[^\W\d_])"
    ),
    "alternative: 41 or 42, not 3/4 or 0.75": r"\s+or\s+-?\d+(?!\d|[.,]\d|\s?[%/])",
    "odds: 1 in 6, not 1 in 2019": r"(?<=(?<![\d.,])1)\s+(?:in|out\s+of)(?:\s+every)?\s+(?!(?:19|20)\d\d\b)\d[\d,]*",
    "remainder: 3 with a remainder of 2, 7 each, with 2 left; not left with 2 remaining": (
        r"[^\d.;\n]{0,40}(?<!up|er|im|em|ft),?\s+with\s"
        r"(?:a\sremainder\sof\s\d|\d+(?:\s[a-z]+)?\s(?:left|remaining)\b)"
    ),
}


def _any_of(rules: Mapping[str, str]) -> str:
    return "|".join(rules.values())


_SIGN = r"(?<![\w)\]}])[-+]|(?<=[=≈] )- |(?<![\d)\]}] )\b(?:minus|negative)\s+"
_SCALES_AFTER = rf"(?:{_GAP}{SCALE}){{1,3}}|\s*{_SCALE_CHARACTER}{{1,4}}(?![米克瓦分])"  # characters of units
_TOKEN = re.compile(
    rf"(?=[-+$€£¥₹\d.^_*mns\\√±]|between|from)(?:(?P<none>{_any_of(_NOT_NUMBERS)})"  # the lookahead only saves time
    rf"|(?P<between>\bbetween\s+)?(?P<either>(?:±|\\pm)\s*)?(?P<sign>{_SIGN})?{_CURRENCY}?(?:{_any_of(_FORMS)})"
    rf"(?:{AND_PART})?(?P<scales>{_SCALES_AFTER})?(?P<unclear>{_any_of(_UNCLEAR)})?)",
    re.IGNORECASE,
)
_BARE = re.compile(r"[*_`$€£¥₹+-]*\d[\d.,]*[\s%€*_`]*(?:[^\W\d_]+[.*_`]*)?")  # a number and at most one word
_CLAUSE_END = re.compile(r"[,;]\s|\s\(|\s(?:as|since|because|so|which|when|if)\s")
_YEAR = re.compile(r"[12]\d{3}")
_NAMED = re.compile(  # "Apollo 11 landed", but not "Nearly 42 came"
    r"(?:[^,\d]*\d{4},\s)?\W*(?!(?:About|Around|Almost|Over|Under|Some|All|Just|Total|Another|These|Those|\w+ly)\s)"
    r"[A-Z]\w+(?:\s[A-Z]\w+)*\s\d[\d.]*\s(?:was|were|is|came|flew|took|[a-z]+ed)\b"
)


def read_number(text: str) -> str | None:
    """Return the number that a reply gives as its answer: the first in a marked answer, else the reply's last.

    Numbers from the question, as in "the 3 friends" and "in 2020", count only if nothing else does. A range, several
    answers and a measure in two units ("5 feet 6") are unclear: None.

    The form is plain decimal notation without trailing zeros, or a fraction in lowest terms where decimals would not
    end. Thousands separators, currencies, percent signs and units are ignored; "3/4", "3 1/2", ``\\frac{3}{4}``,
    "1.2 x 10^3", "3 million" and small numbers in words are read. Equal means exactly equal: 0.33 is not 1/3. One comma
    is a decimal point unless three digits follow it ("3,14", "0,125", "1.234,5").

    >>> read_number("So 1,250.50 in all."), read_number("The answer is 3/4 of 20."), read_number("-2/6")
    ('1250.5', '0.75', '-1/3')
    >>> read_number("One hundred and twenty-one."), read_number("none")
    ('121', None)
    """
    answer = find_final(with_scale(text))
    if answer is None or UNDECIDED.search(answer.text):
        return None
    if answer.marked:
        marked = plain_digits(answer.text)
        _, _, solved = _CLAUSE_END.split(marked, 1)[0].rpartition("=")
        form = _number_in_digits([solved, marked], _FIRST)
        if form is None:
            form = number_in_words(marked, _FIRST)
        if form is not None or any(character.isdigit() for character in marked):
            return form or None
    opening, lines = answer.opening, [*reversed(answer.reply.splitlines())]
    if opening and (_BARE.fullmatch(opening) or answer.explained):
        lines.insert(0, opening)
    form = _number_in_digits(map(plain_digits, lines), _LAST)
    return (number_in_words(answer.text, _LAST) if form is None else form) or None


def _number_in_digits(texts: Iterable[str], which: int) -> str | None:
    """Return a number of the first text that has one, in canonical form; "" if it is unclear, None if there is none.

    Ordinals and numbers from the question count only if there is nothing else. In "Apollo 11 landed in 1969" it is
    unclear which number is the answer.

    Args:
        which: 0: the text's first number; -1: its last.
    """
    for text in texts:
        found = [match for match in _TOKEN.finditer(text) if match["none"] is None]
        if not found:
            continue
        answers = [match for match in found if not is_from_question(match)]
        in_words = None if answers else number_in_words(text, which, from_question=False)
        if in_words:
            return in_words
        if len(found) > 1 and _only_names(text, found, answers):
            return ""
        return _canonical((answers or found)[which])
    return None


def _only_names(text: str, found: Sequence[re.Match[str]], answers: Sequence[re.Match[str]]) -> bool:
    """Whether one of the numbers is a year from the question, and all others that may be the answer are in a name."""
    if not any(match not in answers and _YEAR.fullmatch(match[0]) for match in found):
        return False
    named = _NAMED.match(text)
    return all(named is not None and match.end() < named.end() for match in answers)


def _canonical(match: re.Match[str]) -> str:
    """Return the canonical form of a number that `_TOKEN` matched; "" if it is unclear, or too large to be meant."""
    if match["unclear"] or match["either"]:
        return ""
    try:
        value = _value(match)
        if match["and"]:
            if value >= _LARGEST_WITH_PART or value != int(value):  # a fraction of 1e-9999999 would take minutes
                return ""
            value = Fraction(value) + Fraction(1, FRACTION_WORDS[match["and"].casefold()])
        if match["scales"]:
            scale = prod(SCALES[word] for word in SCALE_WORD.findall(match["scales"].casefold()))
            scale *= 10 ** sum(_ZEROS.get(character, 0) for character in match["scales"])
            value = value * scale if isinstance(value, Fraction) else EXACT.multiply(value, scale)
        return write_number(value if match["sign"] in (None, "+") else -value)
    except (InvalidOperation, Overflow, ZeroDivisionError):
        return ""


def _value(match: re.Match[str]) -> Fraction | Decimal:
    """Return the value of a matched number, without its sign, "and a half" and scale."""
    if match["ten"] is not None:
        return EXACT.scaleb(_decimal(match["mantissa"] or "1"), int(match["ten"]))
    if match["base"] is not None:
        return Fraction(_decimal(match["base"])) ** int(match["exponent"])
    if match["over"] is not None:
        over, under = Fraction(_decimal(match["over"])), Fraction(_decimal(match["under"]))
        if match["whole"] and over < under:  # "12 6/3" is not a mixed number
            return int(match["whole"]) + over / under
        return over / under
    return _decimal(match["plain"] + match["e"])


def _decimal(digits: str) -> Decimal:
    return EXACT.create_decimal(digits.replace(",", ""))
