"""Reads numbers in English words."""

from __future__ import annotations

import re
from fractions import Fraction
from math import prod

from focalroute.answers.notation import FRACTION_WORDS, SCALE, SCALES, write_number
from focalroute.answers.question_numbers import is_from_question

_UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_SMALL = {w: value for value, w in enumerate(_UNITS.split())} | {w: 10 * i for i, w in enumerate(_TENS.split(), 2)}
_MOST_WORDS = 16

#: "and a half" after a number.
AND_PART = r"[\s-]+and[\s-]+an?[\s-]+(?P<and>half|third|quarter)\b"
SCALE_WORD = re.compile("|".join(SCALES))
_WORD_PATTERN = "|".join([*sorted(_SMALL, key=len, reverse=True), *(f"{word}s?" for word in SCALES)])
_WORD = re.compile(_WORD_PATTERN, re.IGNORECASE)
_NUMBER = re.compile(
    rf"(?:\b(?P<sign>minus|negative)\s+)?\b(?P<words>(?:{_WORD_PATTERN})(?:[\s-]+(?:and\s+)?(?:{_WORD_PATTERN}))*)\b"
    rf"(?:\s+point(?P<point>(?:[\s-]+(?:oh|{_WORD_PATTERN})){{0,30}})\b"
    rf"|(?:[\s-]+(?P<part>{'|'.join(FRACTION_WORDS)})s?\b|{AND_PART})"
    rf"(?:(?:\s+of)?(?:\s+an?)?[\s-]+(?P<scale>{SCALE}))?)?|^\W*(?:a\s+)?half\b",
    re.IGNORECASE,
)
_ALONE = re.compile(r"(?:^|\ban?\s)\W*$", re.IGNORECASE)  # "a million", not "a few million"


def number_in_words(text: str, which: int, *, from_question: bool = True) -> str | None:
    """Return a number in words, in canonical form; "" if it is unclear, None if there is none.

    A lone "one" counts only at the beginning.

    Args:
        which: 0: the first number; -1: the last.
        from_question: whether numbers from the question count, such as that of "the two".

    >>> number_in_words("two thirds", 0), number_in_words("zero point five million", 0)
    ('2/3', '500000')
    """
    opening = next((at for at, character in enumerate(text) if character.isalnum()), 0)
    found = [match for match in _NUMBER.finditer(text) if match.start() <= opening or match[0].casefold() != "one"]
    if not from_question:
        found = [match for match in found if not is_from_question(match)]
    if not found:
        return None
    value = _value(found[which], text)
    return "" if value is None else write_number(value)


def _value(match: re.Match[str], text: str) -> Fraction | None:
    """Return the value of a match of `_NUMBER`; None if it is unclear."""
    if match["words"] is None:
        return Fraction(1, 2)
    words = [word.removesuffix("s") for word in _WORD.findall(match["words"].casefold())]
    before = text[max(0, match.start() - 10) : match.start()].casefold()
    if len(words) > _MOST_WORDS or before.endswith(("point ", "one in ")):
        return None
    if words[0] in SCALES and (match["words"][-1] in "sS" or not _ALONE.search(before)):
        return None
    whole = _add_up(words)
    if whole is None or (match["and"] and words[-1] in SCALES):  # "a million and a half" is 1.5 million
        return None
    value = Fraction(whole)
    scales = SCALE_WORD.findall((match["scale"] or match["point"] or "").casefold())
    if match["point"] is not None:
        decimals = _WORD.findall(match["point"].casefold().replace("oh", "zero"))
        del decimals[len(decimals) - len(scales) :]
        if not decimals or any(_SMALL.get(word, 10) > 9 for word in decimals):
            return None
        value += Fraction(int("".join(str(_SMALL[word]) for word in decimals)), 10 ** len(decimals))
    elif match["part"]:
        value /= FRACTION_WORDS[match["part"].casefold()]
    elif match["and"]:
        value += Fraction(1, FRACTION_WORDS[match["and"].casefold()])
    value *= prod(SCALES[scale] for scale in scales)
    return -value if match["sign"] else value


def _add_up(words: list[str]) -> int | None:
    """Add up the words of one number; None if they are several numbers, as in "five six"."""
    total, below, room, largest = 0, 0, 1000, 10**18  # the next word must be less than room, a scale less than largest
    for word in words:
        if word == "hundred":
            if below >= 100 or room == 100:
                return None
            below, room = max(below, 1) * 100, 100
        elif word in SCALES:
            if SCALES[word] >= largest:
                return None
            total, below, room, largest = total + max(below, 1) * SCALES[word], 0, 1000, SCALES[word]
        else:
            value = _SMALL[word]
            if value >= room or (value == 0 and len(words) > 1):
                return None
            below += value
            room = 10 if value >= 20 else 1
    return total + below
