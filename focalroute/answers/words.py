"""Numbers written as English words."""

from __future__ import annotations

import re
from fractions import Fraction

_UNITS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = (
    "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety",
)  # fmt: skip
_SMALL = {word: value for value, word in enumerate(_UNITS)} | {w: 10 * i for i, w in enumerate(_TENS, 2)}
#: Word -> how many zeros it adds.
SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_PARTS = {"half": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8}
_PARTS |= {"ninth": 9, "tenth": 10, "halve": 2}

_ONE = "|".join(sorted((*_SMALL, *SCALES), key=len, reverse=True))
_PHRASE = re.compile(
    rf"(?:\b(?P<sign>minus|negative)\s+)?\b(?P<words>(?:{_ONE})(?:[\s-]+(?:and\s+)?(?:{_ONE}))*)\b"
    rf"(?:[\s-]+(?P<part>{'|'.join(_PARTS)})s?\b|(?P<half>\s+and\s+a\s+half\b))?|^\W*(?:a\s+)?half\b",
    re.IGNORECASE,
)
_WORD = re.compile(_ONE, re.IGNORECASE)
_LONGEST = 16  # words


def number_in_words(text: str, *, first: bool) -> Fraction | None:
    """The first number, or the last, that is written in words; a lone "one" counts at the beginning only.

    >>> number_in_words("one hundred and twenty-one", first=True), number_in_words("Two thirds.", first=True)
    (Fraction(121, 1), Fraction(2, 3))
    """
    values = [value for match in _PHRASE.finditer(text) if (value := _value(match, text)) is not None]
    return values[0 if first else -1] if values else None


def _value(match: re.Match[str], text: str) -> Fraction | None:
    if match["words"] is None:
        return Fraction(1, 2)
    words = [word.casefold() for word in _WORD.findall(match["words"])]
    lone = words == ["one"] and match["part"] is None
    if len(words) > _LONGEST or (lone and any(c.isalnum() for c in text[: match.start()])):
        return None
    whole = _added_up(words)
    if whole is None:
        return None
    value = Fraction(whole, _PARTS[match["part"].casefold()] if match["part"] else 1) + Fraction(bool(match["half"]), 2)
    return -value if match["sign"] else value


def _added_up(words: list[str]) -> int | None:
    """None where the words are several numbers rather than one, as in "five six"."""
    total, below, room = 0, 0, 1000  # room: what the next word has to be less than
    for word in words:
        if word == "hundred":
            if below >= 10 or room == 100:
                return None
            below, room = max(below, 1) * 100, 100
        elif word in SCALES:
            total, below, room = total + max(below, 1) * 10 ** SCALES[word], 0, 1000
        else:
            value = _SMALL[word]
            if value >= room or (value == 0 and len(words) > 1):
                return None
            below, room = below + value, 10 if value >= 20 else 1
    return total + below
