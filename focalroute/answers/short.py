"""Reads short answers: names, places and words."""

from __future__ import annotations

import re
import unicodedata

from focalroute.answers.final import FinalAnswer, first_sentence, normalise_final, only_bold
from focalroute.answers.latex import without_commands

_AT_ENDS = (
    " \t\r\n.,;:!?\"'`*_()[]{}\u201c\u201d\u2018\u2019\u201a\u201e\u2026\u2039\u203a«»¡¿"
    "\u3001\u3002\u3008\u3009\u300a\u300b\u300c\u300d\u300e\u300f\u3010\u3011"  # Chinese and Japanese
    "\u060c\u061b\u061f\u0964"  # Arabic, Hindi
)
_LONGEST = 10_000  # characters; normalising combining characters takes time quadratic in their number
_ARTICLE = re.compile(r"(?:the|an?)\s+(?=\S)")
_ACCENT = re.compile(r"(?<=[a-z])[\u0300-\u036f]+")
_HYPHEN = re.compile(r"(?<=[^\W\d_])[-\u2010\u2011](?=[^\W\d_])")
_INITIALS = re.compile(r"\b[^\W\d_](?:\.\s?[^\W\d_]\b)+\.?")
_ABBREVIATED = re.compile(r"(?<=[^\W\d_])\.(?=\s)")
_CITED = re.compile(r"(?<=[\s.])(?:\[\d{1,2}\])+[\s.]*$")
_LEADS_IN = re.compile(  # an opening that is not the answer
    r"\W*(?:sure|okay|let|here|i|we|step|question|solution)\b|#|.*(?:\b(?:is|are|was|were|has|have)\b|[:!?\u2026\n]|\.\.)|(?:\S+\s+){6}",
    re.IGNORECASE | re.DOTALL,
)
_EXPLANATION = re.compile(r"(?:It|This|That|He|She)\s+(?:is|was)\s+(?:the|an?|one)\b")
_MOST_WORDS = 4  # of an answer; an explanation has more
# "Paris, the capital of France", "Paris - the city of light"
_APPOSED = re.compile(r"(?<=\w)(?:,\s+|\s+[\u2013\u2014-]\s+)(?:the|an?)\s+\w+\s+(?:of|in|for|that)\b")
_LETTERS = str.maketrans({"æ": "ae", "œ": "oe", "ø": "o", "ł": "l", "đ": "d"})
_ROLE = r"of|for|most|first|\w+est|von|des|de|du|della|di|d[ao]"  # "The red car is German" does not name one
_UNSURE = r"(?:I['\u2019]m\s+not\s+(?:\w+\s+)?(?:sure|certain),\s+but\s+)?"
_SUBJECT = rf"{_UNSURE}(?:It|This|That|He|She|I\s+(?:think|believe)\s+(?:that\s+)?[a-z]+)"
_IT_IS = rf"{_SUBJECT}(?:\s+(?:is|was|would\s+be)|['\u2019]s)\s(?:called\s)?"
_LABELLED = r"\*\*[^*\n]+(?::\*\*|\*\*\s*:)\s+(?!The\s|An?\s)(?=\W*[A-Z\d])"
_DESCRIBED = (  # others may name it at the beginning, as does "The Nile is the longest river"
    rf"(?:The(?=\s+[a-z])|D(?:ie|er|as)|L[ae]|El|Il|[AO])(?=(?:\s+\S+){{0,6}}?\s+(?:{_ROLE})\s)"
    r"(?:\s+[^\s.!?:;]+){2,12}?(?<! no)(?<! non)(?<! não)\s+(?:is|was|are|were|ist|est|es|è|é)\s"
    r"(?=\W*(?:the\s+|an?\s+)?(?:[A-Z\d]|[a-z]+(?:\s\([^()]*\))?\W*$))"
)
_DESCRIBED_IN_CHINESE = r"[^\W\d_]{1,12}的[^\W\d_]{1,8}?(?<!不)是"
# "It is Paris.", "**Capital:** Paris", "The capital of France is Paris."
_STATED = re.compile(rf"\s*(?:{_IT_IS}|{_LABELLED}|{_DESCRIBED}|{_DESCRIBED_IN_CHINESE})")
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_BULLET = re.compile(r"[-+*>#\u2022]+\s+(?=[^\W\d_])")
_FUNCTION = re.compile(r"\\(?=(?:log|ln|exp|sin|cos|tan|min|max)(?![A-Za-z]))")
_SUBSCRIPT = re.compile(r"(?<=[A-Za-z)])_\{?(\d{1,3})\}?")
_EMOJI = re.compile("[\u2705\u2714\u274c\ufe0f\U0001f1e6-\U0001f1ff\U0001f300-\U0001faff]")
_QUOTES = str.maketrans("\u2018\u2019", "''", '"\u201c\u201d\u201e«»') | {ord("&"): " and "}
_PAIRS = (("[", "]"), ("{", "}"), ("(", ")"))


def read_short(text: str) -> str | None:
    """Return the answer that a reply marks (see `find_final`), else its only bold words, else its last line, folded.

    Of "It is Paris." and "The capital of France is Paris." only the end counts. Folding ignores case, accents, a
    leading article or bullet, punctuation at the ends, hyphens, emoji, the dots of initials and abbreviations, the
    style of quotation marks and of indices, and spacing.

    >>> read_short("Let me think.\\n\\nThe answer is: The  Sao-Paulo."), read_short("S\N{COMBINING TILDE}ao Paulo")
    ('sao paulo', 'sao paulo')
    """
    return normalise_final(text, lambda answer: fold(_stated_answer(answer)))


def _stated_answer(answer: FinalAnswer) -> str:
    """Return the marked answer, else the reply's only bold words, else its last line.

    Of a sentence such as "It is Paris." only the end counts. If the last line explains a short first paragraph, as in
    "Paris.\\n\\nIt is the capital of France.", that paragraph is the answer.
    """
    bold = None if answer.marked else only_bold(answer.reply)
    described = _STATED.match(answer.text)
    if bold and described and bold.casefold() in described[0].casefold():
        bold = None  # a heading, such as "Capital", of "The capital of Australia is Canberra."
    text = bold or answer.text
    stated = _STATED.match(text)
    explains = answer.explained or (len(text.split()) > _MOST_WORDS and (not stated or _EXPLANATION.match(text)))
    opening = answer.opening if explains and text == answer.text and not answer.marked else None
    if opening and not _LEADS_IN.match(opening):
        return opening
    return _APPOSED.split(first_sentence(text[stated.end() :]) if stated else text, maxsplit=1)[0]


def fold(text: str) -> str | None:
    """Fold a text as `read_short` describes; None if nothing is left, or it is too long for a short answer."""
    if len(text) > _LONGEST:
        return None
    text = _CITED.sub("", _FUNCTION.sub("", without_commands(text))).translate(_QUOTES)
    text = unicodedata.normalize("NFKD", text).casefold()
    text = unicodedata.normalize("NFKC", _ACCENT.sub("", text.translate(_LETTERS)))
    text = _SUBSCRIPT.sub(r"\1", _HYPHEN.sub(" ", text).replace("**", ""))
    plain = _EMOJI.sub(" ", text)
    text = _stripped(" ".join((plain if plain.strip(_AT_ENDS) else text).split()))
    if bullet := _BULLET.match(text):
        text = text[bullet.end() :]
    if _THOUSANDS.fullmatch(text):
        text = text.replace(",", "")
    text = _ABBREVIATED.sub("", _INITIALS.sub(lambda match: re.sub(r"[.\s]", "", match[0]), text))
    article = _ARTICLE.match(text)
    if article:
        text = text[article.end() :]
    return text or None


def _stripped(text: str) -> str:
    """Strip punctuation from the ends, except for brackets with a partner inside.

    >>> _stripped('"Paris (France)."'), _stripped("(b)")
    ('Paris (France)', 'b')
    """
    inner = text.strip(_AT_ENDS)
    before, _, after = text.partition(inner) if inner else ("", "", "")
    for opening, closing in _PAIRS:
        depth = lowest = 0
        for character in inner:
            depth += (character == opening) - (character == closing)
            lowest = min(lowest, depth)
        opened, closed = min(-lowest, before.count(opening)), min(depth - lowest, after.count(closing))
        inner = opening * opened + inner + closing * closed
    return inner
