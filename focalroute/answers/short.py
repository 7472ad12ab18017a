"""Reads short answers: names, places and words, and yes or no."""

from __future__ import annotations

import re
import unicodedata

from focalroute.answers.final import find_final, normalise_final
from focalroute.answers.latex import without_commands

_AT_ENDS = " \t\r\n.,;:!?\"'`*_()[]{}\u201c\u201d\u2018\u2019"
_LONGEST = 10_000  # characters; normalising such that combine takes time with the square of their number
_ARTICLE = re.compile(r"(?:the|an?)\s+(?=\S)")
_ACCENT = re.compile(r"(?<=[a-z])[\u0300-\u036f]+")
_HYPHEN = re.compile(r"(?<=[^\W\d_])[-\u2010\u2011](?=[^\W\d_])")
_INITIALS = re.compile(r"\b(?:[^\W\d_]\.){2,}|\b[^\W\d_](?:\.[^\W\d_])+\b")
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_QUOTES = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "&": " and "})
_YES = {"yes", "yeah", "yep", "yup", "true", "correct", "affirmative"}
_NO = {"no", "nope", "nah", "false", "incorrect", "negative", "untrue"}
_SHORTHAND = {"y": "yes", "t": "yes", "right": "yes", "n": "no", "f": "no", "wrong": "no", "1": "yes", "0": "no"}
_VERDICT = re.compile(
    rf"(?P<not>(?:\bnot|n['\u2019]t)\s+(?:\w+\s+)?)?\b(?:(?P<yes>{'|'.join(_YES)})|(?P<no>{'|'.join(_NO)}))\b",
    re.IGNORECASE,
)
_AROUND_VERDICT = " \t\r\n.,;:!?\"'`*_()[]{}$\\\u201c\u201d\u2018\u2019"
_WORD_FOLLOWS = re.compile(r"\s+\w")


def read_short(text: str) -> str | None:
    """Return the final answer of a reply (see `find_final`), folded.

    Case, accents, articles and punctuation at the ends, hyphens, the dots of initials, quotation marks and spacing do
    not matter.

    >>> read_short("Let me think.\\n\\nThe answer is: The  Sao-Paulo."), read_short("S\N{COMBINING TILDE}ao Paulo")
    ('sao paulo', 'sao paulo')
    """
    return normalise_final(text, lambda answer: fold(answer.text))


def fold(text: str) -> str | None:
    """Remove what does not matter from a string; None if nothing is left, or it is too long to be a short answer."""
    if len(text) > _LONGEST:
        return None
    text = unicodedata.normalize("NFKD", without_commands(text).translate(_QUOTES)).casefold()
    text = unicodedata.normalize("NFKC", _ACCENT.sub("", text))
    text = " ".join(_HYPHEN.sub(" ", text).replace("**", "").split()).strip(_AT_ENDS)
    if _THOUSANDS.fullmatch(text):
        text = text.replace(",", "")
    text = _INITIALS.sub(lambda match: match[0].replace(".", ""), text)
    article = _ARTICLE.match(text)
    if article:
        text = text[article.end() :]
    return text or None


def read_verdict(text: str) -> str | None:
    """Return "yes" or "no": the first such word where the reply marks its answer, else the one on its last line, or
    with which it opens.

    True and false, correct and incorrect, and a "not" before them count. Of several different ones on a last line the
    one that opens it counts, else none.

    >>> read_verdict("Yes, as 7 is prime."), read_verdict("So the claim is not true."), read_verdict("It depends.")
    ('yes', 'no', None)
    """
    answer = find_final(text)
    if answer is None:
        return None
    line = without_commands(answer.text)
    alone = line.strip(_AROUND_VERDICT).casefold()
    if alone in _SHORTHAND:
        return _SHORTHAND[alone]
    verdicts = [_meaning(match) for match in _VERDICT.finditer(line) if not _is_determiner(match, line)]
    if verdicts and (answer.marked or len(set(verdicts)) == 1):
        return verdicts[0]
    opening = _opening_verdict(line)
    if opening is None and not verdicts:
        return _opening_verdict(answer.reply)
    return opening


def _meaning(match: re.Match[str]) -> str:
    affirmed, negated = match["yes"] is not None, match["not"] is not None
    return "yes" if affirmed != negated else "no"


def _is_determiner(match: re.Match[str], line: str) -> bool:
    """Whether it is the "no" of "no reason"."""
    word = match["no"] or ""
    return word.casefold() == "no" and _WORD_FOLLOWS.match(line, match.end()) is not None


def _opening_verdict(text: str) -> str | None:
    match = _VERDICT.match(text.lstrip(_AROUND_VERDICT)[:40])
    return _meaning(match) if match and not match["not"] else None
