"""Reads numbers, in digits or English words, and writes equal ones alike."""

from __future__ import annotations

import re
import unicodedata
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal, InvalidOperation, Overflow
from fractions import Fraction

from focalroute.answers.final import find_final

_UNITS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = (
    "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety",
)  # fmt: skip
_SMALL = {word: value for value, word in enumerate(_UNITS)} | {w: 10 * i for i, w in enumerate(_TENS, 2)}
# Word -> how many zeros it adds.
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_MYRIADS = {"万": 4, "萬": 4, "만": 4, "亿": 8, "億": 8, "억": 8}
_FRACTION_WORDS = {"half": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8}
_FRACTION_WORDS |= {"ninth": 9, "tenth": 10, "halve": 2}

_NUMBER_WORD = "|".join(sorted((*_SMALL, *_SCALES), key=len, reverse=True))
_NUMBER_IN_WORDS = re.compile(
    rf"(?:\b(?P<sign>minus|negative)\s+)?\b(?P<words>(?:{_NUMBER_WORD})(?:[\s-]+(?:and\s+)?(?:{_NUMBER_WORD}))*)\b"
    rf"(?:[\s-]+(?P<part>{'|'.join(_FRACTION_WORDS)})s?\b|(?P<half>\s+and\s+a\s+half\b))?|^\W*(?:a\s+)?half\b",
    re.IGNORECASE,
)
_WORD = re.compile(_NUMBER_WORD, re.IGNORECASE)
_MOST_WORDS = 16

_EXACT = Context(prec=MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX)  # the current context may round
# Thousands by commas, also as in India (12,34,567).
_NUMBER = r"(?:(?:(?:\d{1,3}(?:,\d{3})+|\d{1,2}(?:,\d{2}){1,6},\d{3})(?!\d)|\d+)(?:\.\d+)?|\.\d+)"
_BOUNDED = r"(?:\d{1,18}(?:\.\d{1,18})?|\.\d{1,18})"
_TIMES = r"\s*(?:\*|x|\u00d7|·|⋅|\\times|\\cdot)\s*"
_TO_THE = r"\s*(?:\^|\*\*)\s*\{?\s*"
# Tried in this order. Dates, times, ratios, versions, exponents, indices, roots and multiples of pi do not count as
# numbers.
_TOKEN = re.compile(
    rf"""(?=[-+$€£¥₹\d.^_*mns\\√])(?:
    (?P<none>(?:\^|_|\*\*)\s*\{{?\s*[-+]?\d+
      |(?<![\d.,])\d++(?P<joint>[-:/.])\d++(?:(?P=joint)\d++)+
      |(?<![\d.,])\d++:\d++
      |(?:{_NUMBER}\s*)?(?:\\?sqrt\s*(?:\[\d+\])?\s*[{{(]?|√\s*\(?)\s*\d[\d.]*(?:[)}}]?\s*/\s*\d+)?
      |{_NUMBER}\s*(?:\\pi|π|pi\b))
    |(?P<sign>(?<![\w)\]}}])[-+]|(?<![\d)\]}}]\ )\b(?:minus|negative)\s+)?[$€£¥₹]?(?:
      (?:(?P<mantissa>{_NUMBER}){_TIMES})?10{_TO_THE}(?P<ten>[-+]?\d{{1,6}})
      |(?P<base>{_BOUNDED}){_TO_THE}(?P<exponent>\d{{1,2}})(?!\d)
      |(?:(?P<whole>\d{{1,18}})\s+)?(?P<over>{_BOUNDED})\s*/\s*(?P<under>{_BOUNDED})(?!\d)
      |(?P<plain>{_NUMBER})(?P<e>(?:[eE][-+]?\d+)?)
       (?:\s*(?:(?P<scale>{"|".join(_SCALES)})\b|(?P<myriads>[{"".join(_MYRIADS)}])))?
    )(?P<half>\s+and\s+a\s+half\b)?)""",
    re.VERBOSE | re.IGNORECASE,
)
_LARGEST_WITH_HALF = 10**6  # "3 and a half"
_FIRST, _LAST = 0, -1
# "2.5 hours (150 minutes).", "4 [1]", "4, not 5", "4 rather than 5", "146 as of 2023", "4.0 to 1 decimal"
_ASIDE = re.compile(
    r"(?:\([^()]{1,200}\)|\[\d{1,2}\]|\bto\s+\d\s+decimals?\b(?:\s+places?)?"
    r"|(?:,\s+not|\b(?:and|but)\s+not|\b(?:as|out|instead)\s+of|\brather\s+than)\s[^,;=()]{1,60})[\s.]*$",
    re.IGNORECASE,
)
_ORDINAL = re.compile(r"(?:st|nd|rd|th)\b", re.IGNORECASE)
_DOTTED = re.compile(r"(?<![\w.,])\d{1,3}(?:\.\d{3}){2,}(?![\w]|[.,]\d)")  # 1.234.567
_MONEY = re.compile(r"(?<=[$€£¥₹])(\d[\d,]{0,20}(?:\.\d{1,9})?)(k|mn?|bn?|tn?)\b", re.IGNORECASE)  # $2.5M
_MONEY_SCALES = {"k": "thousand", "m": "million", "b": "billion", "t": "trillion"}
_BARE = " \t0123456789.,*_`$€£¥₹%+-"  # a line of these alone is nothing but a number
_CLAUSE_END = re.compile(r"[,;]\s|\s\(|\s(?:as|since|because|so|which)\s")
_VULGAR = re.compile("(\\d?)([\u00bc-\u00be\u2150-\u215e])")
_RAISED = re.compile("[\u2070\u00b9\u00b2\u00b3\u2074-\u2079\u207a\u207b]+")
#: A space of typography or LaTeX.
THIN_SPACE = r"[\u00a0\u2009\u202f]|\\[,!;: ]"
_THIN = re.compile(rf"(?<=\d)(?:{THIN_SPACE}|_)(?=\d{{3}}(?!\d))")
_FRACTION = re.compile(rf"(\d?)\\[dtc]?frac\s*(?:\{{\s*({_NUMBER})\s*\}}|(\d))\s*(?:\{{\s*({_NUMBER})\s*\}}|(\d))")
# Else "**4" and "_4" would be an exponent and an index. A power (2**10) has no space before it, or has one behind it.
_EMPHASIS = re.compile(
    r"(?<![A-Za-z0-9_)\]}*])(?:\*\*(?=\S)((?:[^*\n]|\*(?!\*))+)(?<=\S)\*\*|(__?)(?=\S)([^_\n]+)(?<=\S)\2)"
    r"(?![A-Za-z0-9_])"
)
_SPACED = re.compile(r"(?<![\w.,])\d{1,3}(?:[ '\u2019]\d{3})+(?!\d|\s*/)")  # 12 345, 12'345
_DECIMAL_COMMA = re.compile(r"(?<![\w.,(\[{])(\d{1,3}(?:\.\d{3})+|\d+),(\d+)(?!\d|[.,]\d)")
_PLAIN = str.maketrans(
    "\N{MINUS SIGN}\N{EN DASH}\N{SMALL HYPHEN-MINUS}\N{FULLWIDTH HYPHEN-MINUS}\N{FULLWIDTH FULL STOP}",
    "----.",
    "\N{VARIATION SELECTOR-16}\N{COMBINING ENCLOSING KEYCAP}",  # of digits written as emoji
)


def read_number(text: str) -> str | None:
    """Return the number that a reply gives as its answer: the first in a marked answer, else the reply's last.

    The form is plain decimal notation without trailing zeros, or a fraction in lowest terms where decimals would not
    end. Thousands separators, currencies, percent signs and units are ignored; "3/4", "3 1/2", ``\\frac{3}{4}``,
    "1.2 x 10^3", "3 million" and small numbers in words are read. Equal means exactly equal: 0.33 is not 1/3. One comma
    is a decimal point unless three digits follow it ("3,14", "0,125", "1.234,5").

    >>> read_number("So 1,250.50 in all."), read_number("The answer is 3/4 of 20."), read_number("-2/6")
    ('1250.5', '0.75', '-1/3')
    >>> read_number("One hundred and twenty-one."), read_number("none")
    ('121', None)
    """
    answer = find_final(text)
    if answer is None:
        return None
    if answer.marked:
        marked = _plain_digits(answer.text)
        _, _, solved = _CLAUSE_END.split(marked, 1)[0].rpartition("=")
        form = (
            _number_in_digits(solved, _FIRST) or _number_in_digits(marked, _FIRST) or _number_in_words(marked, _FIRST)
        )
        if form is not None or any(character.isdigit() for character in marked):
            return form
    lines = answer.reply.strip().splitlines()
    if len(lines) > 2 and not lines[0].strip(_BARE) and not lines[1].strip() and re.search(r"[^\W\d_]", lines[-1]):
        lines = lines[:1]  # an explanation follows
    for line in reversed(lines):
        line = _plain_digits(line)
        form = _number_in_digits(_ASIDE.sub("", line), _LAST) or _number_in_digits(line, _LAST)
        if form is not None:
            return form
    return _number_in_words(answer.text, _LAST)


def _plain_digits(text: str) -> str:
    """Turn typographic, emphasised and LaTeX numbers into plain ones.

    >>> _plain_digits("3½ is 1{,}000 \\\\frac{7}{2}")
    '3 1/2 is 1,000 7/2'
    """
    text = _EMPHASIS.sub(lambda m: m[1] or m[3], text)
    text = _THIN.sub("", type_out(text.translate(_PLAIN)).replace("{,}", ",").replace("\\$", "$"))
    for grouped in (_SPACED, _DOTTED):
        text = grouped.sub(lambda m: re.sub(r"\D", "", m[0]), text)
    text = _MONEY.sub(lambda m: f"{m[1]} {_MONEY_SCALES[m[2][0].casefold()]}", text)
    text = _DECIMAL_COMMA.sub(_with_decimal_point, text)
    return _FRACTION.sub(lambda m: f"{m[1]}{m[1] and ' '}{m[2] or m[3]}/{m[4] or m[5]}", text)


def _with_decimal_point(match: re.Match[str]) -> str:
    """Replace a decimal comma by a point; a comma that separates thousands stays."""
    whole, decimals = match[1].replace(".", ""), match[2]
    if len(decimals) == 3 and whole == match[1] and len(whole) <= 3 and whole != "0":
        return match[0]
    return f"{whole}.{decimals}"


def type_out(text: str) -> str:
    """Replace superscript digits and fraction characters by plain text.

    >>> type_out("5½ m²")
    '5 1/2 m^2'
    """
    text = _RAISED.sub(lambda match: "^" + unicodedata.normalize("NFKC", match[0]).translate(_PLAIN), text)
    return _VULGAR.sub(_spelled, text)


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
        value = _EXACT.scaleb(Decimal(value.numerator * 10**places // value.denominator), -places)
    value = _EXACT.normalize(value)
    if not value:
        return "0"
    return format(value, "f") if abs(value.adjusted()) <= 40 else str(value)


def _spelled(match: re.Match[str]) -> str:
    return match[1] + (match[1] and " ") + unicodedata.normalize("NFKD", match[2]).replace("\u2044", "/")


def _number_in_digits(text: str, which: int) -> str | None:
    """Return the first or last number in the text, in canonical form; "10th" counts only if all are ordinals."""
    found = [match for match in _TOKEN.finditer(text) if match["none"] is None]
    if not found:
        return None
    match = ([match for match in found if not _ORDINAL.match(text, match.end())] or found)[which]
    try:
        value = _value(match)
        if value is None:
            return None
        if match["half"]:
            if value >= _LARGEST_WITH_HALF or value != int(value):  # a fraction of 1e-9999999 would take minutes
                return None
            value = Fraction(value) + Fraction(1, 2)
        if match["sign"] not in (None, "+"):
            value = -value
        return write_number(value)
    except (InvalidOperation, Overflow):  # too large to be meant
        return None


def _value(match: re.Match[str]) -> Fraction | Decimal | None:
    if match["ten"] is not None:
        return _EXACT.scaleb(_decimal(match["mantissa"] or "1"), int(match["ten"]))
    if match["base"] is not None:
        return Fraction(_decimal(match["base"])) ** int(match["exponent"])
    if match["over"] is not None:
        over, under = Fraction(_decimal(match["over"])), Fraction(_decimal(match["under"]))
        if not under:
            return None
        if match["whole"] and over < under:  # "12 6/3" is not a mixed number
            return int(match["whole"]) + over / under
        return over / under
    value = _decimal(match["plain"] + match["e"])
    if match["scale"]:
        value = _EXACT.scaleb(value, _SCALES[match["scale"].casefold()])
    if match["myriads"]:
        value = _EXACT.scaleb(value, _MYRIADS[match["myriads"]])
    return value


def _decimal(digits: str) -> Decimal:
    return _EXACT.create_decimal(digits.replace(",", ""))


def _number_in_words(text: str, which: int) -> str | None:
    """Return the first or last number in words, in canonical form; a lone "one" counts at the beginning only.

    >>> _number_in_words("two thirds", _FIRST)
    '2/3'
    """
    values = [value for match in _NUMBER_IN_WORDS.finditer(text) if (value := _value_in_words(match, text)) is not None]
    return write_number(values[which]) if values else None


def _value_in_words(match: re.Match[str], text: str) -> Fraction | None:
    if match["words"] is None:
        return Fraction(1, 2)
    words = [word.casefold() for word in _WORD.findall(match["words"])]
    if len(words) > _MOST_WORDS:
        return None
    lone = words == ["one"] and match["part"] is None
    if lone and any(character.isalnum() for character in text[: match.start()]):
        return None
    whole = _add_up(words)
    if whole is None:
        return None
    value = Fraction(whole)
    if match["part"]:
        value /= _FRACTION_WORDS[match["part"].casefold()]
    if match["half"]:
        value += Fraction(1, 2)
    if match["sign"]:
        value = -value
    return value


def _add_up(words: list[str]) -> int | None:
    """Add up the words of one number; None if they are several numbers, as in "five six"."""
    total, below, room = 0, 0, 1000  # room: the next word must be less than this
    for word in words:
        if word == "hundred":
            if below >= 10 or room == 100:
                return None
            below, room = max(below, 1) * 100, 100
        elif word in _SCALES:
            total, below, room = total + max(below, 1) * 10 ** _SCALES[word], 0, 1000
        else:
            value = _SMALL[word]
            if value >= room or (value == 0 and len(words) > 1):
                return None
            below += value
            room = 10 if value >= 20 else 1
    return total + below
