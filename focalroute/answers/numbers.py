"""Reads numbers, in digits or English words, and writes equal ones alike."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal, InvalidOperation, Overflow
from fractions import Fraction
from math import prod

from focalroute.answers.final import UNDECIDED, find_final

_UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_SMALL = {w: value for value, w in enumerate(_UNITS.split())} | {w: 10 * i for i, w in enumerate(_TENS.split(), 2)}
_SCALES = {"dozen": 12, "hundred": 100, "thousand": 10**3, "lakh": 10**5, "million": 10**6, "crore": 10**7}
_SCALES |= {"billion": 10**9, "trillion": 10**12, "quadrillion": 10**15}
_CHARACTERS = {"百": 2, "千": 3, "万": 4, "萬": 4, "만": 4, "亿": 8, "億": 8, "억": 8, "兆": 12}  # zeros that each adds
_FRACTION_WORDS = {"half": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8}
_FRACTION_WORDS |= {"ninth": 9, "tenth": 10, "halve": 2}

_AND_PART = r"[\s-]+and[\s-]+an?[\s-]+(?P<and>half|third|quarter)\b"
_SCALE = rf"(?:{'|'.join(_SCALES)})s?\b"
_NUMBER_WORD = "|".join([*sorted(_SMALL, key=len, reverse=True), *(f"{word}s?" for word in _SCALES)])
_NUMBER_IN_WORDS = re.compile(
    rf"(?:\b(?P<sign>minus|negative)\s+)?\b(?P<words>(?:{_NUMBER_WORD})(?:[\s-]+(?:and\s+)?(?:{_NUMBER_WORD}))*)\b"
    rf"(?:\s+point(?P<point>(?:[\s-]+(?:oh|{_NUMBER_WORD})){{0,30}})\b"
    rf"|(?:[\s-]+(?P<part>{'|'.join(_FRACTION_WORDS)})s?\b|{_AND_PART})"
    rf"(?:(?:\s+of)?(?:\s+an?)?[\s-]+(?P<scale>{_SCALE}))?)?|^\W*(?:a\s+)?half\b",
    re.IGNORECASE,
)
_ALONE = re.compile(r"(?:^|\ban?\s)\W*$", re.IGNORECASE)  # "a million", not "a few million"
_WORD, _SCALE_WORD = re.compile(_NUMBER_WORD, re.IGNORECASE), re.compile("|".join(_SCALES))
_MOST_WORDS = 16

_EXACT = Context(prec=MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX)  # the current context may round
# Thousands by commas, also as in India (12,34,567).
_NUMBER = r"(?:(?:(?:\d{1,3}(?:,\d{3})+|\d{1,2}(?:,\d{2}){1,6},\d{3})(?!\d)|\d+)(?:\.\d+)?|\.\d+)"
_BOUNDED = r"(?:\d{1,18}(?:\.\d{1,18})?|\.\d{1,18})"
_TIMES = r"\s*(?:\*|x|\u00d7|·|⋅|\\times|\\cdot)\s*"
_TO_THE = r"\s*(?:\^|\*\*)\s*\{?\s*"
_GAP = r"(?:[\s~$-]|\\[,;: ]|\\(?:text|mathrm)\s*\{)*"
_CURRENCY = "[$€£¥₹]"
# What is not a number, but has digits
_EXPONENT = r"(?:\^|_|\*\*)\s*\{?\s*[-+]?\d+"  # or an index
_DATE = r"(?<![\d.,])\d++(?P<joint>[-:/.])\d++(?:(?P=joint)\d++)+(?:\.\d+)?"  # or a time or version
_RATIO = r"(?<![\d.,])\d++:\d++"
_IN_BITS = r"0[xb][\da-f]+\b"
_ROOT = rf"(?:{_NUMBER}\s*)?(?:\\?sqrt\s*(?:\[\d+\])?\s*[{{(]?|√\s*\(?)\s*\d[\d.]*(?:[)}}]?\s*/\s*\d+)?"
_TIMES_PI = rf"{_NUMBER}\s*(?:\\pi|π|pi\b)"
_RANGE_START = rf"\bfrom\s+{_CURRENCY}?{_NUMBER}(?=%?\s*(?:-|to\s)\s*{_CURRENCY}?\d)|between\s\d{{4}}\sand\s\d{{4}}\b"
# The forms of a number, in the order in which they are tried
_SIGN = r"(?<![\w)\]}])[-+]|(?<=[=≈]\ )-\ |(?<![\d)\]}]\ )\b(?:minus|negative)\s+"
_SCIENTIFIC = rf"(?:(?P<mantissa>{_NUMBER}){_TIMES})?10{_TO_THE}(?P<ten>[-+]?\d{{1,6}})"
_POWER = rf"(?P<base>{_BOUNDED}){_TO_THE}(?P<exponent>-?\d{{1,2}})(?!\d)"
_QUOTIENT = (
    rf"(?:(?P<whole>\d{{1,18}})(?:\s+|-))?(?P<over>{_BOUNDED})\s*/\s*(?P<under>-?{_BOUNDED})(?!\d)"
    rf"(?:(?:\s+of)?\s+an?(?=\s+{_SCALE}))?"
)
_IN_DIGITS = rf"(?P<plain>{_NUMBER})(?P<e>(?:[eE][-+]?\d+)?)"
_BY_CHARACTER = f"[{''.join(_CHARACTERS)}]"
_SCALES_AFTER = rf"(?:{_GAP}{_SCALE}){{1,3}}|\s*{_BY_CHARACTER}{{1,4}}(?![米克瓦分])"
# What makes another number of the one before it, which is then not read: more digits ("2 million 5 hundred"), a scale
# that is unclear or in another language, a second half
_MORE_DIGITS = rf"(?<=[a-z])\s+\d[\d.,]*\s*{_SCALE}|(?<={_BY_CHARACTER})(?:\d|{_BY_CHARACTER})"
_OTHER_SCALE = (
    rf"(?-i:[KMBT]\b)|{_GAP}(?:(?:m|b|tr)il{{1,2}}[ij]?(?:o|ó|oe)n\w*|mill?[ij]ar\w+|m(?:io|rd|ld|il|ila)\b|milh[ãõ]\w+"
    r"|тыс\w*|миллион\w*|миллиард\w*|млн|млрд|[a-z]{1,12}illions?\b|(?:ten|hundred|thousand|million)th(?:s|\b)|and\s+(?:a\s+half\b|\d+\s*/\s*\d))"
)
_RANGE = r"\s?(?:-|\bto\b(?!\s\d\s+decimal)|['\u2032])\s?|(?(between)\s+and\s+|(?!))"  # "3-5", "between 3 and 5"; 5'6
_OR = r"\s+or\s+-?\d+(?!\d|[.,]\d|\s?[%/])"  # "41 or 42"; "3/4 or 0.75" is one number, written twice
_ODDS = r"(?<=(?<![\d.,])1)\s+(?:in|out\s+of)(?:\s+every)?\s+(?!(?:19|20)\d\d\b)\d[\d,]*"  # "1 in 6", not "1 in 2019"
# "7 each, with 2 left over", "3 with a remainder of 2"; not "is left with 2 remaining"
_REST = r"[^\d.;\n]{0,40}(?<!up|er|im|em|ft),?\s+with\s(?:a\sremainder\sof\s\d|\d+(?:\s[a-z]+)?\s(?:left|remaining)\b)"
_MEASURE = r"\s?(?:feet|foot|ft|hours?|hrs?|h|minutes?|min|pounds?|lbs?|dollars?)\s+(?:and\s+)?"  # "5 feet 6"
_SMALLER_UNIT = (
    r"(?![\d.,]|\s+(?!(?:in|inch\w*|min\w*|sec\w*|s|o\w*|cents?|pence)\b)[^\W\d_])"  # not "3 hours 45 litres"
)
_SECOND_ANSWER = (  # "x = 3 or x = -2", "x_1 = 3, x_2 = -2"
    r"[$\s]*(?:\b(?:or|and)\s+[$]?[a-z]|[,;][$\s]*(?:\\q?quad\s*)?[a-z]_\{?2\}?)\s*=\s*-?"
)
_ANOTHER = (
    rf"{_MORE_DIGITS}|{_OTHER_SCALE}|(?:{_RANGE}|{_SECOND_ANSWER}){_CURRENCY}?\d[\d.,]*"
    rf"|{_MEASURE}{_CURRENCY}?\d[\d.,]*{_SMALLER_UNIT}|{_OR}|{_ODDS}|{_REST}"
)
_TOKEN = re.compile(
    rf"""(?=[-+$€£¥₹\d.^_*mns\\√±]|between|from)(?:
    (?P<none>{_EXPONENT}|{_DATE}|{_RATIO}|{_IN_BITS}|{_ROOT}|{_TIMES_PI}|{_RANGE_START})
    |(?P<between>\bbetween\s+)?(?P<either>(?:±|\\pm)\s*)?(?P<sign>{_SIGN})?{_CURRENCY}?
     (?:{_SCIENTIFIC}|{_POWER}|{_QUOTIENT}|{_IN_DIGITS})
     (?:{_AND_PART})?(?P<scales>{_SCALES_AFTER})?(?P<unclear>{_ANOTHER})?)""",
    re.VERBOSE | re.IGNORECASE,
)
_LARGEST_WITH_PART = 10**6  # "3 and a half"
_FIRST, _LAST = 0, -1
# "10th", "to 1 decimal", "a 3-day pass"
_ORDINAL = re.compile(r"(?:st|nd|rd|th|\s+decimals?|\s+times\s+as|-(?:hour|day|week|month|year))\b", re.IGNORECASE)
_PRONOUN = r"(?<!\bit)(?<!\bthat)(?<!\bhe)(?<!\bshe)(?<!\bthere)(?<!\bhere)"
# "result in 42", "is done in 8 days"
_OUTCOME = r"(?P<outcome>\b(?:result\w*|finish(?:es|ed)?|done|ready|completed?)\s+)"
# "the 3 friends", "after 3 h", "in 2020", "in 2 weeks", "World War 2", "Tom's 20", "42 of 100", "4, not 5", "(120 min)"
# "with a 20% tip", "since 2010", "in fiscal 2024", "Q3", "ways to seat 5 people", "from a group of 10"
_GIVEN = re.compile(
    r"(?:\b(?:the|(?:after|with|for|at)\s+an?|after|since|during|not|per|rather\s+than"
    r"|(?:as|out|instead|each)\s+of(?:\s+[a-z]+)?|from\s\S{1,8}\s+to|ways\s+to\s+[a-z]+|from\s+an?\s+[a-z]+\s+of"
    r"|(?:early|mid|late|fiscal|financial)(?:\s+year)?|Q[1-4]|FY"
    r"|nach|apr[eè]s|despu[eé]s\s+de|depois\s+de|dopo)"
    rf"|\w{_PRONOUN}['\u2019]s|\d%?\s+of|{_OUTCOME}?\b(?P<in>in(?:\s+\d{{4}},?\s+and)?|en|em)|,\s+or(?:\s+(?:about|roughly))?"
    r"|,\s+with|(?-i:(?<=[a-z]\ )[A-Z][a-z]{2,}))\s+$|(?<=[a-z])-$|(?-i:\b(?P<letters>[A-Z]{1,2})$)"
    r"|\[$|(?<!\S)\([^()]*$",
    re.IGNORECASE,
)
_YEAR = re.compile(r"[12]\d{3}")
_NAMED = re.compile(  # "Apollo 11 landed", but not "Nearly 42 came"
    r"(?:[^,\d]*\d{4},\s)?\W*(?!(?:About|Around|Almost|Over|Under|Some|All|Just|Total|Another|These|Those|\w+ly)\s)"
    r"[A-Z]\w+(?:\s[A-Z]\w+)*\s\d[\d.]*\s(?:was|were|is|came|flew|took|[a-z]+ed)\b"
)
_WAYS = re.compile(r"\s+(?:[a-z]+\s+)?(?:ways|orders|arrangements)\b", re.IGNORECASE)  # "in 24 different ways"
_RACED = re.compile(r"\b(?:ran|swam|sprinted|skated|rowed|cycled)\s+\S+\s+\S+\s+in\s+$")  # "ran 100 m in 9.58 s"
_WHOLE_THINGS = r"personas|persone|Personen|pessoas|Menschen|Einwohner|habitantes|abitanti|años|anos|anni|Jahren?"
_DOTTED = re.compile(  # 1.234.567; 1.234 €; 1.500 personas
    rf"(?<![\w.,])\d{{1,3}}(?:(?:\.\d{{3}}){{2,}}(?![\w]|[.,]\d)"
    rf"|\.\d{{3}}(?=\s?(?:€|[Ee]uros?\b)|\s(?:{_WHOLE_THINGS})\b))"
)
# "$2.5M", "5 M€", "5k", "5 bn"; but "300 K", "0.1 M", "5m" and "$5 m$" have units
_SHORTENED = re.compile(
    r"(?P<money>[$€£¥₹]\s?|\b(?:USD|EUR|GBP|INR)\s?)?(?<![\w.,])(?P<digits>\d[\d,]{0,20}(?:\.\d{1,9})?)"
    r"(?P<scale>(?-i:k)|\s?bn|\s?(?P<of_money>k|m[mn]?|b|tn?))(?!\w|[^$\n]{0,80}\$(?!\d))"
    r"(?P<after>\s?[€£¥₹]|\s?(?:USD|EUR|GBP|dollars|euros)\b)?",
    re.IGNORECASE,
)
_SHORT_SCALES = {"k": "thousand", "m": "million", "b": "billion", "t": "trillion"}
_PART_OF_SCALE = re.compile(  # "half a million", but not "two and a half million"
    r"(?P<mixed>\band\s+an?\s+)?(?:\ban?\s+)?"
    rf"\b(?P<part>half|quarter|(?:{'|'.join(_FRACTION_WORDS)})(?=\s+of\s))(?:\s+of)?(?:\s+an?)?[\s-]+(?={_SCALE})",
    re.IGNORECASE,
)
_SCALE_OUTSIDE = re.compile(rf"(\*\*|\\boxed\{{|\$)([-€£¥₹\d.,]{{1,40}})(\*\*|\}}\$?|\$)(\s+{_SCALE})", re.IGNORECASE)
_SCALED = re.compile(rf"(?<=[\d}}])[\s~]*(\\text\s*\{{)?\s*({_SCALE})", re.IGNORECASE)
_BARE = re.compile(r"[*_`$€£¥₹+-]*\d[\d.,]*[\s%€*_`]*(?:[^\W\d_]+[.*_`]*)?")  # a number and at most one word
_CLAUSE_END = re.compile(r"[,;]\s|\s\(|\s(?:as|since|because|so|which|when|if)\s")
_VULGAR = re.compile("(\\d?)([\u00bc-\u00be\u2150-\u215e])")
_RAISED = re.compile("[\u2070\u00b9\u00b2\u00b3\u2074-\u2079\u207a\u207b]+")
_REPEATING = re.compile(r"(?<![\d.,/*^])(\d{1,9})\.(\d{0,9})\\overline\s*\{(\d{1,9})\}")
#: Spaces of typography or LaTeX, or Python's underscore, between thousands.
THIN_SPACES = re.compile(r"(?<=\d)(?:[\u00a0\u2009\u202f]|\\[,!;: ]|_)(?=\d{3}(?!\d))")
_OVER = rf"(?:\{{\s*(-?{_NUMBER})\s*\}}|(\d))"
_FRACTION = re.compile(rf"(\d?)\\[dtc]?frac\s*{_OVER}\s*{_OVER}")
# Else "**4" and "_4" would be an exponent and an index. A power (2**10) has no space before it, or has one behind it.
_EMPHASIS = re.compile(
    r"(?<![A-Za-z0-9_)\]}*])(?:\*\*(?=\S)((?:[^*\n]|\*(?!\*))+)(?<=\S)\*\*|(__?)(?=\S)([^_\n]+)(?<=\S)\2)"
    r"(?![A-Za-z0-9_])"
)
_SPACED = re.compile(r"(?<![\w.,])\d{1,3}(?:[ '\u2019]\d{3})+(?!\d|\s*/)")  # 12 345, 12'345
_DECIMAL_COMMA = re.compile(r"(?<![\w.,(\[{])(\d{1,3}(?:\.\d{3})+|\d+),(\d+)(?!\d|[.,]\d)")
_PLAIN = str.maketrans(
    "\N{MINUS SIGN}\N{EN DASH}\N{SMALL HYPHEN-MINUS}\N{FULLWIDTH HYPHEN-MINUS}\N{FULLWIDTH FULL STOP}"
    "\N{ARABIC DECIMAL SEPARATOR}\N{ARABIC THOUSANDS SEPARATOR}",
    "----..,",
    "\N{VARIATION SELECTOR-16}\N{COMBINING ENCLOSING KEYCAP}",  # of digits written as emoji
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
        marked = _plain_digits(answer.text)
        _, _, solved = _CLAUSE_END.split(marked, 1)[0].rpartition("=")
        form = _number_in_digits([solved, marked], _FIRST)
        if form is None:
            form = _number_in_words(marked, _FIRST)
        if form is not None or any(character.isdigit() for character in marked):
            return form or None
    opening, lines = answer.opening, [*reversed(answer.reply.splitlines())]
    if opening and (_BARE.fullmatch(opening) or answer.explained):
        lines.insert(0, opening)
    form = _number_in_digits(map(_plain_digits, lines), _LAST)
    return (_number_in_words(answer.text, _LAST) if form is None else form) or None


def _plain_digits(text: str) -> str:
    """Turn typographic, emphasised and LaTeX numbers into plain ones.

    >>> _plain_digits("3½ is 1{,}000 \\\\frac{7}{2}")
    '3 1/2 is 1,000 7/2'
    """
    if text.isdecimal():
        return text
    text = _EMPHASIS.sub(lambda m: m[1] or m[3], text)
    text = THIN_SPACES.sub("", type_out(text.translate(_PLAIN)).replace("{,}", ",").replace("\\$", "$"))
    for grouped in (_SPACED, _DOTTED):
        text = grouped.sub(lambda m: re.sub(r"\D", "", m[0]), text)
    text = _PART_OF_SCALE.sub(
        lambda m: m[0] if m["mixed"] else f"1/{_FRACTION_WORDS[m['part'].casefold()]} ", _SHORTENED.sub(_in_full, text)
    )
    text = _DECIMAL_COMMA.sub(_with_decimal_point, text)
    return _FRACTION.sub(lambda m: f"{m[1]}{m[1] and ' '}{m[2] or m[3]}/{m[4] or m[5]}", text)


def with_scale(text: str) -> str:
    """Move a scale to the number that it belongs to.

    >>> with_scale("They are **2.5** million."), with_scale("$2.5$ million")
    ('They are **2.5 million**.', '$2.5 million$')
    """
    return _SCALE_OUTSIDE.sub(r"\1\2\4\3", text)


def multiply_out(text: str) -> str:
    """Write scales as factors.

    >>> multiply_out("2.5\\\\text{ million km}"), multiply_out("3 dozen")
    ('2.5*1000000\\\\text{ km}', '3*12')
    """
    return _SCALED.sub(lambda m: f"*{_SCALES[m[2].casefold().removesuffix('s')]}{m[1] or ''}", text)


def _in_full(match: re.Match[str]) -> str:
    if match["of_money"] and not (match["money"] or match["after"]):
        return match[0]
    scale = _SHORT_SCALES[match["scale"].lstrip()[0].casefold()]
    return f"{match['money'] or ''}{match['digits']} {scale}{match['after'] or ''}"


def _with_decimal_point(match: re.Match[str]) -> str:
    """Replace a decimal comma by a point; a comma that separates thousands stays."""
    whole, decimals = match[1].replace(".", ""), match[2]
    if len(decimals) == 3 and whole == match[1] and len(whole) <= 3 and whole != "0":
        return match[0]
    return f"{whole}.{decimals}"


def type_out(text: str) -> str:
    """Replace superscript digits, fraction characters and repeating decimals by plain text.

    >>> type_out("5½ m²"), type_out("0.1\\\\overline{6}")
    ('5 1/2 m^2', '15/90')
    """
    text = _REPEATING.sub(_as_fraction, text)
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


def _as_fraction(match: re.Match[str]) -> str:
    before, places, repeated = match[1] + match[2], len(match[2]), match[3]
    return f"{int(before + repeated) - int(before)}/{10**places * (10 ** len(repeated) - 1)}"


def _spelled(match: re.Match[str]) -> str:
    return match[1] + (match[1] and " ") + unicodedata.normalize("NFKD", match[2]).replace("\u2044", "/")


def _number_in_digits(texts: Iterable[str], which: int) -> str | None:
    """Return the first or last number of the first text that has one, in canonical form; "" if it is unclear.

    Ordinals, and what the question gave ("the 3 friends", "in 2020"), count only if there is nothing else. In
    "Apollo 11 landed in 1969" it is unclear which one is the answer.
    """
    for text in texts:
        found = [match for match in _TOKEN.finditer(text) if match["none"] is None]
        if found:
            answers = [match for match in found if not _is_given(match)]
            in_words = None if answers else _number_in_words(text, which, given=False)
            if not in_words and len(found) > 1 and _only_names(text, found, answers):
                return ""
            return in_words or _form((answers or found)[which])
    return None


def _only_names(text: str, found: Sequence[re.Match[str]], answers: Sequence[re.Match[str]]) -> bool:
    """Whether a year is given, and no other number found is an answer but in a name, such as "Apollo 11"."""
    if not any(match not in answers and _YEAR.fullmatch(match[0]) for match in found):
        return False
    named = _NAMED.match(text)
    return all(named is not None and match.end() < named.end() for match in answers)


def _is_given(match: re.Match[str]) -> bool:
    text, begin, end = match.string, match.start(), match.end()
    if _ORDINAL.match(text, end):
        return True
    before = _GIVEN.search(text, max(0, begin - 60), begin)
    if before is None or before["outcome"] or (before["letters"] and not match[0][0].isdecimal()):  # US$42
        return False
    if before["in"] is None:
        return True
    is_time = "." in match[0] and _RACED.search(text, max(0, begin - 60), begin) is not None
    return not is_time and _WAYS.match(text, end) is None


def _form(match: re.Match[str]) -> str:
    try:
        value = None if match["unclear"] or match["either"] else _value(match)
        if value is None:
            return ""
        if match["and"]:
            if value >= _LARGEST_WITH_PART or value != int(value):  # a fraction of 1e-9999999 would take minutes
                return ""
            value = Fraction(value) + Fraction(1, _FRACTION_WORDS[match["and"].casefold()])
        if match["scales"]:
            scale = prod(_SCALES[word] for word in _SCALE_WORD.findall(match["scales"].casefold()))
            scale *= 10 ** sum(_CHARACTERS.get(character, 0) for character in match["scales"])
            value = value * scale if isinstance(value, Fraction) else _EXACT.multiply(value, scale)
        return write_number(value if match["sign"] in (None, "+") else -value)
    except (InvalidOperation, Overflow, ZeroDivisionError):  # too large to be meant
        return ""


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
    return _decimal(match["plain"] + match["e"])


def _decimal(digits: str) -> Decimal:
    return _EXACT.create_decimal(digits.replace(",", ""))


def _number_in_words(text: str, which: int, *, given: bool = True) -> str | None:
    """Return the first or last number in words, in canonical form; "" if it is unclear.

    A lone "one" counts at the beginning only; without ``given``, "the two" does not count.

    >>> _number_in_words("two thirds", _FIRST), _number_in_words("zero point five million", _FIRST)
    ('2/3', '500000')
    """
    opening = next((at for at, character in enumerate(text) if character.isalnum()), 0)
    found = [m for m in _NUMBER_IN_WORDS.finditer(text) if m.start() <= opening or m[0].casefold() != "one"]
    found = [match for match in found if given or not _is_given(match)]
    if not found:
        return None
    value = _value_in_words(found[which], text)
    return "" if value is None else write_number(value)


def _value_in_words(match: re.Match[str], text: str) -> Fraction | None:
    if match["words"] is None:
        return Fraction(1, 2)
    words = [word.removesuffix("s") for word in _WORD.findall(match["words"].casefold())]
    before = text[max(0, match.start() - 10) : match.start()].casefold()
    if len(words) > _MOST_WORDS or before.endswith(("point ", "one in ")):
        return None
    if words[0] in _SCALES and (match["words"][-1] in "sS" or not _ALONE.search(before)):
        return None
    whole = _add_up(words)
    if whole is None or (match["and"] and words[-1] in _SCALES):  # "a million and a half" is 1.5 million
        return None
    value = Fraction(whole)
    scales = _SCALE_WORD.findall((match["scale"] or match["point"] or "").casefold())
    if match["point"] is not None:
        decimals = _WORD.findall(match["point"].casefold().replace("oh", "zero"))
        del decimals[len(decimals) - len(scales) :]
        if not decimals or any(_SMALL.get(word, 10) > 9 for word in decimals):
            return None
        value += Fraction(int("".join(str(_SMALL[word]) for word in decimals)), 10 ** len(decimals))
    elif match["part"]:
        value /= _FRACTION_WORDS[match["part"].casefold()]
    elif match["and"]:
        value += Fraction(1, _FRACTION_WORDS[match["and"].casefold()])
    value *= prod(map(_SCALES.__getitem__, scales))
    return -value if match["sign"] else value


def _add_up(words: list[str]) -> int | None:
    """Add up the words of one number; None if they are several numbers, as in "five six"."""
    total, below, room, largest = 0, 0, 1000, 10**18  # the next word must be less than room, a scale less than largest
    for word in words:
        if word == "hundred":
            if below >= 100 or room == 100:
                return None
            below, room = max(below, 1) * 100, 100
        elif word in _SCALES:
            if _SCALES[word] >= largest:
                return None
            total, below, room, largest = total + max(below, 1) * _SCALES[word], 0, 1000, _SCALES[word]
        else:
            value = _SMALL[word]
            if value >= room or (value == 0 and len(words) > 1):
                return None
            below += value
            room = 10 if value >= 20 else 1
    return total + below
