"""Yes or no."""

from __future__ import annotations

import re

from focalroute.answers.final import final
from focalroute.answers.latex import without_commands

_YES = {"yes", "yeah", "yep", "yup", "true", "correct", "affirmative"}
_NO = {"no", "nope", "nah", "false", "incorrect", "negative", "untrue"}
_SHORTHAND = {"y": "yes", "t": "yes", "right": "yes", "n": "no", "f": "no", "wrong": "no", "1": "yes", "0": "no"}
_VERDICT = re.compile(
    rf"(?P<not>(?:\bnot|n['\u2019]t)\s+(?:\w+\s+)?)?\b(?:(?P<yes>{'|'.join(_YES)})|(?P<no>{'|'.join(_NO)}))\b",
    re.IGNORECASE,
)
_AT_ENDS = " \t\r\n.,;:!?\"'`*_()[]{}$\\\u201c\u201d\u2018\u2019"
_WORD_FOLLOWS = re.compile(r"\s+\w")


def verdict(text: str) -> str | None:
    """ "yes" or "no": the first such word where the reply says its answer, else the one on its last line, or with
    which it opens. True and false, correct and incorrect, and a "not" before them count; of several different ones on
    a last line the one that opens it, else none.

    >>> verdict("Yes, as 7 is prime."), verdict("So the claim is not true."), verdict("It depends.")
    ('yes', 'no', None)
    """
    found = final(text)
    if found is None:
        return None
    line = without_commands(found.text)
    alone = line.strip(_AT_ENDS).casefold()
    if alone in _SHORTHAND:
        return _SHORTHAND[alone]
    verdicts = _verdicts(line)
    if found.said and verdicts:
        return verdicts[0]
    if len(set(verdicts)) == 1:
        return verdicts[0]
    return _opening(line) or (None if verdicts else _opening(found.rest))


def _verdicts(line: str) -> list[str]:
    return [_meant(match) for match in _VERDICT.finditer(line) if not _determines(match, line)]


def _meant(match: re.Match[str]) -> str:
    return "yes" if (match["yes"] is None) == (match["not"] is not None) else "no"


def _determines(match: re.Match[str], line: str) -> bool:
    """Whether it is the "no" of "no reason"."""
    return (
        match["no"] is not None
        and match["no"].casefold() == "no"
        and _WORD_FOLLOWS.match(line, match.end()) is not None
    )


def _opening(text: str) -> str | None:
    opening = text.lstrip(_AT_ENDS)[:40]
    match = _VERDICT.match(opening)
    return None if match is None or match["not"] else _meant(match)
