"""Reads yes and no."""

from __future__ import annotations

import re

from focalroute.answers.final import UNDECIDED, find_final
from focalroute.answers.latex import without_commands

_YES = {"yes", "yeah", "yep", "yup", "true", "correct", "affirmative"}
_NO = {"no", "nope", "nah", "false", "incorrect", "negative", "untrue"}
_YES_WORDS = "ja oui si sí sì sim да 是 是的 对 はい 네 예 نعم हाँ richtig stimmt vrai verdadero vero верно 正确 正确的"
_NO_WORDS = "nein non não нет 否 不是 不 不对 いいえ 아니요 아니오 لا नहीं falsch faux falso неверно 错误 错误的"
#: Read where they are the whole answer, or open one without a verdict in English.
_OTHER_LANGUAGES = dict.fromkeys(_YES_WORDS.split(), "yes") | dict.fromkeys(_NO_WORDS.split(), "no")
_YES_ALONE = "y|t|1|right|absolutely|certainly|definitely|of course|indeed|i think so"
_NO_ALONE = "n|f|0|wrong|absolutely not|certainly not|definitely not|of course not|not at all|not really|no way|not yet"
#: Read only where they are the whole answer.
_ALONE = dict.fromkeys(_YES_ALONE.split("|"), "yes") | dict.fromkeys(_NO_ALONE.split("|"), "no")
_ALONE |= _OTHER_LANGUAGES | {"i don't think so": "no", "stimmt nicht": "no"}
_IT_IS = re.compile(r"(?:(?:(?:that|this|it)(?:['\u2019]s| is)|das(?: ist)?|c['\u2019]est|es|è|é|это)\s+|这是)(?=\w)")
_YES_NO_WORDS = {"yes", "yeah", "yep", "yup", "no", "nope", "nah"}
_VERDICT = re.compile(
    r"(?P<not>(?:\b(?:can)?not(?!\s+only\b)|\bnever|n['\u2019]t)\s+(?:[\w'\u2019]+\s+){0,3}|\b(?:hardly|far\s+from)\s+)?"
    r"(?<!\bpartly )(?<!\bpartially )"
    rf"\b(?:(?P<yes>{'|'.join(_YES)})|(?P<no>{'|'.join(_NO)}))\b",
    re.IGNORECASE,
)
# Before a "true" or "correct" in the same clause it makes that unclear: "no evidence that it is true"
_DOUBT = re.compile(
    r"\b(?:myth|misconception|opposite|doubtful|I\s+doubt|wrong\s+to\s+\w+|whether|if|no\s+(?:\w+\s+)?(?:evidence|proof)"
    r"|(?:can)?not\s+(?:\w+\s+)?(?:clear|certain|known|proven|confirm)|unlikely|(?:might|may|could)\s+be)\b[^,.;:!?\n]*$",
    re.IGNORECASE,
)
_EMPHASIS = re.compile(r"\*+|(?<![^\W_])_+|_+(?![^\W_])")
_YES_OR_NO = re.compile(r"\b(?:yes|true)(?:\s+(?:and|n?or)\s+|\s*/\s*)(?:no|false)\b(?!\s+\w)", re.IGNORECASE)
_CLAUSE_END = re.compile(r"[,.;:!\n\u2013\u2014\u3001\u3002\uff0c\u060c]")
_AROUND_VERDICT = " \t\r\n.,;:!?\"'`*_()[]{}$\\\u201c\u201d\u2018\u2019\u2705\u274c\u3002"
#: Follows the "no" of "no reason", which is not a verdict, but not that of "no it is not".
NOUN_FOLLOWS = re.compile(r"\s+(?!(?:it|he|she|this|that|they|we|you|i|the)\b)\w", re.IGNORECASE)


def read_verdict(text: str) -> str | None:
    """Return the verdict, "yes" or "no", that a reply gives; None if it is unclear.

    True, false, correct and incorrect are verdicts, too. A "not" or "never" before a verdict negates it. Yes and no are
    also read in some other languages. These rules are tried in order, where the answer is the marked one, else the last
    line:

    1. The answer is nothing but a verdict, such as "yes" or "of course not".
    2. No answer is marked, and a yes or no opens the reply. It counts unless the last line has a yes or no of its own.
    3. A marked answer gives its first verdict. A last line gives its verdict if it has one, or several that agree.
    4. If the verdicts of the last line differ, the one that opens it counts. If it has none, the one that opens the
       reply does.
    5. A yes or no in another language counts where it opens the answer, else where it opens the reply.

    >>> read_verdict("Yes, as 7 is prime."), read_verdict("So the claim is not true."), read_verdict("It depends.")
    ('yes', 'no', None)
    """
    answer = find_final(text)
    if answer is None:
        return None
    stated = "" if UNDECIDED.search(answer.text) else answer.text
    line = _YES_OR_NO.sub("", _EMPHASIS.sub("", without_commands(stated)))
    alone = _IT_IS.sub("", line.strip(_AROUND_VERDICT).casefold().replace("\u2019", "'"), count=1)
    if alone in _ALONE:
        return _ALONE[alone]
    found = [match for match in _VERDICT.finditer(line) if not _is_unclear(match)]
    opening = _opening_verdict(answer.reply)
    opens_with_word = not answer.marked and answer.reply.lstrip(_AROUND_VERDICT)[:1] in "YyNn"  # not true or false
    if opening and opens_with_word and not any(_word(match) in _YES_NO_WORDS for match in found):
        return opening
    verdicts = [_meaning(match) for match in found]
    if verdicts and (answer.marked or len(set(verdicts)) == 1):
        return verdicts[0]
    english = _opening_verdict(line) if verdicts else opening  # "Yes.\n\nNo other planet is larger."
    return english or _opening_in_other_language(line) or _opening_in_other_language(answer.reply)


def _word(match: re.Match[str]) -> str:
    return (match["yes"] or match["no"]).casefold()


def _meaning(match: re.Match[str]) -> str:
    return "yes" if bool(match["yes"]) != bool(match["not"]) else "no"


def _is_unclear(match: re.Match[str]) -> bool:
    """Whether it is the "no" of "no reason", or the "true" of "no evidence that it is true"."""
    if _word(match) in _YES_NO_WORDS:
        return _word(match) == "no" and NOUN_FOLLOWS.match(match.string, match.end()) is not None
    return _DOUBT.search(match.string, max(0, match.start() - 80), match.start()) is not None


def _opening_verdict(text: str) -> str | None:
    text = text.lstrip(_AROUND_VERDICT)[:40]
    match = _VERDICT.match(text)
    if match is None or match["not"] or _is_unclear(match) or _YES_OR_NO.match(text):
        return None
    return _meaning(match)


def _opening_in_other_language(text: str) -> str | None:
    first, *_ = _CLAUSE_END.split(text.lstrip(_AROUND_VERDICT), maxsplit=1)
    return _OTHER_LANGUAGES.get(_IT_IS.sub("", first.strip(_AROUND_VERDICT).casefold(), count=1))
