"""Short strings: names, places, words."""

from __future__ import annotations

import re
import unicodedata

from focalroute.answers.final import final
from focalroute.answers.latex import without_commands

_AT_ENDS = " \t\r\n.,;:!?\"'`*_()[]{}\u201c\u201d\u2018\u2019"
_LONGEST = 10_000  # characters; normalising such that combine takes time with the square of their number
_ARTICLE = re.compile(r"(?:the|an?)\s+(?=\S)")
_ACCENT = re.compile(r"(?<=[a-z])[\u0300-\u036f]+")
_HYPHEN = re.compile(r"(?<=[^\W\d_])[-\u2010\u2011](?=[^\W\d_])")
_INITIALS = re.compile(r"\b(?:[^\W\d_]\.){2,}|\b[^\W\d_](?:\.[^\W\d_])+\b")
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_QUOTES = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "&": " and "})
_MOST_TURNS = 8


def short(text: str) -> str | None:
    """The final answer of a reply (see `final`), folded: case, accents, articles and punctuation at the ends, hyphens,
    the dots of initials, quotation marks and spacing do not matter.

    >>> short("Let me think.\\n\\nThe answer is: The  Sao-Paulo."), short("S\N{LATIN SMALL LETTER A WITH TILDE}o Paulo")
    ('sao paulo', 'sao paulo')
    """
    for _ in range(_MOST_TURNS):  # folding one thing may uncover another
        found = final(text)
        form = None if found is None else folded(found.text)
        if form is None or form == text:
            return form
        text = form
    return None


def folded(text: str) -> str | None:
    """A string without what does not matter; None if nothing is left, or it is too long to be a short answer."""
    if len(text) > _LONGEST:
        return None
    text = unicodedata.normalize("NFKD", without_commands(text).translate(_QUOTES)).casefold()
    text = unicodedata.normalize("NFKC", _ACCENT.sub("", text))
    text = " ".join(_HYPHEN.sub(" ", text).replace("**", "").split()).strip(_AT_ENDS)
    if _THOUSANDS.fullmatch(text):
        text = text.replace(",", "")
    text = _INITIALS.sub(lambda match: match[0].replace(".", ""), text)
    return _ARTICLE.sub("", text, count=1) if _ARTICLE.match(text) else text or None
