"""Recognises numbers that a reply repeats from the question, as in "the 3 friends" and "in 2020"."""

from __future__ import annotations

import re

_REACH = 60  # characters that are looked at before a number

# "result in 42", "is done in 8 days"
_OUTCOME = r"(?P<outcome>\b(?:result\w*|finish(?:es|ed)?|done|ready|completed?)\s+)"
_POSSESSOR = r"\w(?<!\bit)(?<!\bthat)(?<!\bhe)(?<!\bshe)(?<!\bthere)(?<!\bhere)"  # not "it's 42"
#: The rules for the text that ends just before such a number. The longest match counts, then the first.
_BEFORE = {
    "the 3 friends, after 3 h, since 2010, with a 20% tip": (
        r"\b(?:the|(?:after|with|for|at)\s+an?|after|since|during|nach|apr[eè]s|despu[eé]s\s+de|depois\s+de|dopo)\s+$"
    ),
    "42, not 5; rather than 5; 42 per 8": r"\b(?:not|per|rather\s+than)\s+$",
    "as of 2023, 42 out of 50, instead of 7, each of 4 suits": r"\b(?:as|out|instead|each)\s+of(?:\s+[a-z]+)?\s+$",
    "from 10 to 52": r"\bfrom\s\S{1,8}\s+to\s+$",
    "ways to seat 5 people, from a group of 10": r"\b(?:ways\s+to\s+[a-z]+|from\s+an?\s+[a-z]+\s+of)\s+$",
    "early 2024, fiscal year 2024, Q3 2024": r"\b(?:(?:early|mid|late|fiscal|financial)(?:\s+year)?|Q[1-4]|FY)\s+$",
    "Tom's 20": rf"{_POSSESSOR}['\u2019]s\s+$",
    "42 of 100, 10% of 50": r"\d%?\s+of\s+$",
    "in 2020, in 2 weeks": rf"{_OUTCOME}?\b(?P<in>in(?:\s+\d{{4}},?\s+and)?|en|em)\s+$",
    "42 m³, or about 42,000 L": r",\s+or(?:\s+(?:about|roughly))?\s+$",
    "42 cards, with 13 in each": r",\s+with\s+$",
    "World War 2": r"(?-i:(?<=[a-z]\ )[A-Z][a-z]{2,})\s+$",
    "COVID-19": r"(?<=[a-z])-$",
    "FY2023, Q3": r"(?-i:\b(?P<letters>[A-Z]{1,2})$)",
    "[1]": r"\[$",
    "42 m (138 ft)": r"(?<!\S)\([^()]*$",
}
_BEFORE_PATTERN = re.compile("|".join(_BEFORE.values()), re.IGNORECASE)
# "10th", "to 1 decimal", "a 3-day pass"
_ORDINAL = re.compile(r"(?:st|nd|rd|th|\s+decimals?|\s+times\s+as|-(?:hour|day|week|month|year))\b", re.IGNORECASE)
_WAYS = re.compile(r"\s+(?:[a-z]+\s+)?(?:ways|orders|arrangements)\b", re.IGNORECASE)  # "in 24 different ways"
_RACED = re.compile(r"\b(?:ran|swam|sprinted|skated|rowed|cycled)\s+\S+\s+\S+\s+in\s+$")  # "ran 100 m in 9.58 s"


def is_from_question(match: re.Match[str]) -> bool:
    """Whether a number that was matched in a text is an ordinal, or one that the question gave, by the words around it.

    >>> is_from_question(re.search("3", "the 3 friends")), is_from_question(re.search("42", "result in 42"))
    (True, False)
    """
    text, begin, end = match.string, match.start(), match.end()
    if _ORDINAL.match(text, end):
        return True
    before = _BEFORE_PATTERN.search(text, max(0, begin - _REACH), begin)
    if before is None or before["outcome"]:
        return False
    if before["letters"]:
        return match[0][0].isdecimal()  # not "US$42"
    if before["in"]:
        is_time = "." in match[0] and _RACED.search(text, max(0, begin - _REACH), begin) is not None
        return not is_time and _WAYS.match(text, end) is None
    return True
