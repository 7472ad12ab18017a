"""Reads short answers: names, places and words; yes or no; and dates, written as in ISO 8601."""

from __future__ import annotations

import datetime
import re
import unicodedata

from focalroute.answers.final import UNDECIDED, FinalAnswer, find_final, first_sentence, normalise_final, only_bold
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
_EXPLAINS = re.compile(r"(?:It|This|That|He|She)\s+(?:is|was)\s+(?:the|an?|one)\b")
_MOST_WORDS = 4  # of a date; an explanation has more
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
_YES = {"yes", "yeah", "yep", "yup", "true", "correct", "affirmative"}
_NO = {"no", "nope", "nah", "false", "incorrect", "negative", "untrue"}
_YES_WORDS = "ja oui si sí sì sim да 是 是的 对 はい 네 예 نعم हाँ richtig stimmt vrai verdadero vero верно 正确 正确的"
_NO_WORDS = "nein non não нет 否 不是 不 不对 いいえ 아니요 아니오 لا नहीं falsch faux falso неверно 错误 错误的"
#: Yes and no in other languages: alone, or at the beginning of an answer with neither in English.
_ELSEWHERE = dict.fromkeys(_YES_WORDS.split(), "yes") | dict.fromkeys(_NO_WORDS.split(), "no")
_YES_ALONE = "y|t|1|right|absolutely|certainly|definitely|of course|indeed|i think so"
_NO_ALONE = "n|f|0|wrong|absolutely not|certainly not|definitely not|of course not|not at all|not really|no way|not yet"
#: What means yes or no only where it is the whole answer.
_ALONE = dict.fromkeys(_YES_ALONE.split("|"), "yes") | dict.fromkeys(_NO_ALONE.split("|"), "no")
_ALONE |= _ELSEWHERE | {"i don't think so": "no", "stimmt nicht": "no"}
_ITS = re.compile(r"(?:(?:(?:that|this|it)(?:['\u2019]s| is)|das(?: ist)?|c['\u2019]est|es|è|é|это)\s+|这是)(?=\w)")
_WORDS_SAID = {"yes", "yeah", "yep", "yup", "no", "nope", "nah"}
_VERDICT = re.compile(
    r"(?P<not>(?:\b(?:can)?not(?!\s+only\b)|\bnever|n['\u2019]t)\s+(?:[\w'\u2019]+\s+){0,3}|\b(?:hardly|far\s+from)\s+)?"
    r"(?<!\bpartly )(?<!\bpartially )"
    rf"\b(?:(?P<yes>{'|'.join(_YES)})|(?P<no>{'|'.join(_NO)}))\b",
    re.IGNORECASE,
)
# What makes a "true" or "correct" later in the clause unclear: "no evidence that it is true"
_DOUBT = re.compile(
    r"\b(?:myth|misconception|opposite|doubtful|I\s+doubt|wrong\s+to\s+\w+|whether|if|no\s+(?:\w+\s+)?(?:evidence|proof)"
    r"|(?:can)?not\s+(?:\w+\s+)?(?:clear|certain|known|proven|confirm)|unlikely|(?:might|may|could)\s+be)\b[^,.;:!?\n]*$",
    re.IGNORECASE,
)
_EMPHASIS = re.compile(r"\*+|(?<![^\W_])_+|_+(?![^\W_])")
_EITHER = re.compile(r"\b(?:yes|true)(?:\s+(?:and|n?or)\s+|\s*/\s*)(?:no|false)\b(?!\s+\w)", re.IGNORECASE)
_CLAUSE_END = re.compile(r"[,.;:!\n\u2013\u2014\u3001\u3002\uff0c\u060c]")
_AROUND_VERDICT = " \t\r\n.,;:!?\"'`*_()[]{}$\\\u201c\u201d\u2018\u2019\u2705\u274c\u3002"
#: What follows the "no" of "no reason", which is not a verdict; that of "no it is not" is one.
DETERMINED = re.compile(r"\s+(?!(?:it|he|she|this|that|they|we|you|i|the)\b)\w", re.IGNORECASE)


def read_short(text: str) -> str | None:
    """Return the final answer of a reply (see `find_final`), folded; the reply's only bold words if it marks none.

    Of "It is Paris." and "The capital of France is Paris." the end counts. Folding ignores case, accents, a leading
    article or bullet, punctuation at the ends, hyphens, emoji, the dots of initials and abbreviations, the style of
    quotation marks and of indices, and spacing.

    >>> read_short("Let me think.\\n\\nThe answer is: The  Sao-Paulo."), read_short("S\N{COMBINING TILDE}ao Paulo")
    ('sao paulo', 'sao paulo')
    """
    return normalise_final(text, lambda answer: fold(_likeliest(answer)))


def _likeliest(answer: FinalAnswer) -> str:
    """Return the marked answer, else the reply's only bold words, else its last line; of a sentence what it states.

    If the last line explains a short first paragraph, as in "Paris.\\n\\nIt is the capital of France.", that counts.
    """
    bold = None if answer.marked else only_bold(answer.reply)
    described = _STATED.match(answer.text)
    if bold and described and bold.casefold() in described[0].casefold():
        bold = None  # a heading, such as "Capital", of "The capital of Australia is Canberra."
    text = bold or answer.text
    stated = _STATED.match(text)
    explains = answer.explained or (len(text.split()) > _MOST_WORDS and (not stated or _EXPLAINS.match(text)))
    opening = answer.opening if explains and text == answer.text and not answer.marked else None
    if opening and not _LEADS_IN.match(opening):
        return opening
    return _APPOSED.split(first_sentence(text[stated.end() :]) if stated else text, maxsplit=1)[0]


def fold(text: str) -> str | None:
    """Fold a string as `read_short` says; None if nothing is left, or it is too long for a short answer."""
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


def read_verdict(text: str) -> str | None:
    """Return the verdict, "yes" or "no", that a reply gives; None if it is unclear.

    A marked answer gives its first verdict. An unmarked last line gives the only one on it or, if they differ, the one
    that opens it; without any, the one that opens the reply counts, also in some other languages. A yes or no that
    opens the reply outranks a true, false, correct or incorrect on its last line. True, false, correct and incorrect
    are verdicts too, and a "not" or "never" before one negates it.

    >>> read_verdict("Yes, as 7 is prime."), read_verdict("So the claim is not true."), read_verdict("It depends.")
    ('yes', 'no', None)
    """
    answer = find_final(text)
    if answer is None:
        return None
    stated = "" if UNDECIDED.search(answer.text) else answer.text
    line = _EITHER.sub("", _EMPHASIS.sub("", without_commands(stated)))
    alone = _ITS.sub("", line.strip(_AROUND_VERDICT).casefold().replace("\u2019", "'"), count=1)
    if alone in _ALONE:
        return _ALONE[alone]
    found = [match for match in _VERDICT.finditer(line) if not _is_unclear(match)]
    verdicts = [_meaning(match) for match in found]
    opening = _opening_verdict(answer.reply)
    said = not answer.marked and answer.reply.lstrip(_AROUND_VERDICT)[:1] in "YyNn"  # yes or no, not true or false
    if said and opening and not any((match["yes"] or match["no"]).casefold() in _WORDS_SAID for match in found):
        return opening
    if verdicts and (answer.marked or len(set(verdicts)) == 1):
        return verdicts[0]
    english = _opening_verdict(line) if verdicts else opening  # "Yes.\n\nNo other planet is larger."
    return english or _opening_elsewhere(line) or _opening_elsewhere(answer.reply)


def _meaning(match: re.Match[str]) -> str:
    return "yes" if bool(match["yes"]) != bool(match["not"]) else "no"


def _is_unclear(match: re.Match[str]) -> bool:
    """Whether it is the "no" of "no reason", or the "true" of "no evidence that it is true"."""
    word, line = (match["yes"] or match["no"]).casefold(), match.string
    if word in _WORDS_SAID:
        return word == "no" and DETERMINED.match(line, match.end()) is not None
    return _DOUBT.search(line, max(0, match.start() - 80), match.start()) is not None


def _opening_verdict(text: str) -> str | None:
    text = text.lstrip(_AROUND_VERDICT)[:40]
    match = _VERDICT.match(text)
    if match is None or match["not"] or _is_unclear(match) or _EITHER.match(text):
        return None
    return _meaning(match)


def _opening_elsewhere(text: str) -> str | None:
    first, *_ = _CLAUSE_END.split(text.lstrip(_AROUND_VERDICT), maxsplit=1)
    return _ELSEWHERE.get(_ITS.sub("", first.strip(_AROUND_VERDICT).casefold(), count=1))


# -- dates -----------------------------------------------------------------------------------------------------------

#: Also in German, Dutch, French, Spanish, Italian, Portuguese and Russian.
_MONTHS = (
    "jan(?:uary)?|januari?|janvier|enero|gennaio|janeiro|января",
    "feb(?:ruary)?|februari?|février|febrero|febbraio|fevereiro|февраля",
    "mar(?:ch)?|märz|maart|mars|marzo|março|марта",
    "apr(?:il)?|avril|abril|aprile|апреля",
    "may|mai|mei|mayo|maggio|maio|мая",
    "june?|juni|juin|junio|giugno|junho|июня",
    "july?|juli|juillet|julio|luglio|julho|июля",
    "aug(?:ust)?|augustus|août|agosto|августа",
    "sept?(?:ember)?|septembre|septiembre|settembre|setembro|сентября",
    "oct(?:ober)?|oktober|octobre|octubre|ottobre|outubro|октября",
    "nov(?:ember)?|novembre|noviembre|novembro|ноября",
    "dec(?:ember)?|dezember|décembre|diciembre|dicembre|dezembro|декабря",
)
_MONTH = rf"(?P<month>(?:{'|'.join(_MONTHS)})\b)\.?"
_GERMAN = "januar|februar|märz|april|mai|juni|juli|august|september|oktober|november|dezember"
_SUFFIX = rf"(?:st|nd|rd|th|er|º|\.(?=\s+(?:{_GERMAN})\b))?"
_DAY = rf"(?P<day>\d{{1,2}}){_SUFFIX}"
_OF = r"(?:(?:of|in|del?)\s+)?"
_TO = r"\s?(?:[-\u2014/]|to|and|or|through|bis|und)\s?"
_DAY_MONTH = rf"(?P<range>\d{{1,2}}{_SUFFIX}{_TO})?{_DAY}[\s-]+{_OF}{_MONTH}"
_MONTH_DAY = rf"{_MONTH}[\s-]+(?:the\s+)?{_DAY}(?P<range>{_TO}\d{{1,2}}{_SUFFIX}(?![\w:]))?"
_YEAR = r"(?P<year>\d{4})"
_BC = r"\s*(?:BCE?|B\.C\.)"
# After a day and a month, also one of three digits before punctuation; without the group it is unclear: "'99", "44 BC".
_ANY_YEAR = (
    rf"{_OF}(?:AD\s)?(?:(?P<year>\d{{4}}|\d{{3}}(?!\s+[a-z]{{3}}))(?!{_BC})"
    rf"|['\u2019]?\d{{2,4}}(?![\w:]|,?\s+\d{{4}}|\s*[ap]\.?m\b)(?:{_BC})?)"
)
_NOT_WITHIN = r"(?<![\w/.-])"
_ENDS = rf"(?!(?!T\d)\w|/|[-.]\d|{_BC})"
# The most complete forms first; "of" and commas may stand between the parts.
_FORMS = tuple(
    [re.compile(_NOT_WITHIN + form + _ENDS, re.IGNORECASE) for form in forms]
    for forms in (
        (
            rf"{_DAY_MONTH}[\s,-]+{_ANY_YEAR}",
            rf"{_MONTH_DAY}[\s,-]+{_ANY_YEAR}",
            rf"{_YEAR}[\s,-]+{_MONTH}[\s-]+{_DAY}(?![\s,-]+\d)",
            rf"{_YEAR},?\s+{_DAY}[\s-]+{_OF}{_MONTH}(?![\s,-]+\d)",
            rf"{_YEAR}(?P<j>[-/]|\.\s?)(?P<number>\d{{1,2}})(?P=j){_DAY}",
            rf"(?P<first>\d{{1,2}})(?P<j>[-/.])(?P<second>\d{{1,2}})(?P=j)(?:{_YEAR}|\d\d)",
        ),
        (rf"{_MONTH}[\s,-]+{_OF}{_YEAR}", r"(?P<year>\d{4})-(?P<number>\d\d)"),
        (_DAY_MONTH, _MONTH_DAY),
        (r"(?P<range>\d{1,2}\.?\s+[^\W\d_]{3,12}\s+)?(?P<year>[12]\d{3})",),  # a month in another language: unclear
    )
)
_IN_CHARACTERS = re.compile(
    r"(?<!\d)(?P<year>\d{4})\s*[年년]\s*(?P<number>\d{1,2})\s*[月월]\s*(?P<day>\d{1,2})\s*[日일]"
)
_YEARLESS = re.compile(r"(?<!\S)--(?P<number>\d\d)-(?P<day>\d\d)(?!\S)")
_RANGED = re.compile(rf"(?:\d{{4}}|[-/.]\d\d?|\b(?:{'|'.join(_MONTHS)})\.?(?:\s+\d\d?\w*)?)[.,]?{_TO}$", re.IGNORECASE)
_REFERRED = re.compile(r"\b(?:after|before|since)\s+$", re.IGNORECASE)  # "3 days after March 1"
_LEAP = 2000


def read_date(text: str) -> str | None:
    """Return the date that a reply gives as its answer: the first in a marked answer, else in its only bold words,
    else the reply's last.

    The form is "2024-03-03", "2024-03" without a day, "--03-03" without a year, or "2024" for a year alone. Weekday and
    time are ignored. In 03/04/2024 and 03-04-2024 the first number is the month (as in the USA) unless it is above 12;
    in 03.04.2024 it is the day. Years have four digits (September 4, 476 is read too), and months names of some
    languages, see `_MONTHS`. Ranges, years before Christ, and dates that do not exist are not read.

    >>> read_date("The answer is Sunday, March 3rd, 2024."), read_date("31/01/2024"), read_date("3.4.2024")
    ('2024-03-03', '2024-01-31', '2024-04-03')
    """
    answer = find_final(text)
    if answer is None:
        return None
    dates = _find_dates(answer.text)
    if not answer.marked:
        opening = answer.opening if len((answer.opening or "").split()) <= _MOST_WORDS else ""
        alone = _find_dates(only_bold(answer.reply) or opening or "")
        dates = alone[:1] or dates[-1:]
    dates = dates or _find_dates(answer.reply)[-1:]
    return dates[0] if dates else None


def _find_dates(text: str) -> list[str | None]:
    """Return all dates of the most complete forms that occur, in order; None for one that is unclear or no date."""
    text = " ".join(text.translate({0x2010: "-", 0x2011: "-", 0x2013: "-"}).split())
    for forms in ([_IN_CHARACTERS], *_FORMS, [_YEARLESS]):
        found = sorted((match for form in forms for match in form.finditer(text)), key=re.Match.start)
        matches = [m for m in found if not _REFERRED.search(text, max(0, m.start() - 20), m.start())] or found
        if matches:
            ends = [_RANGED.search(text, max(0, m.start() - 30), m.start()) for m in matches]
            return [None if any(ends[i : i + 2]) else _read(match) for i, match in enumerate(matches)]
    return []


def _read(match: re.Match[str]) -> str | None:
    parts = match.groupdict()
    year, day = parts.get("year"), parts.get("day")
    if parts.get("range") or (year is None and "year" in parts):
        return None
    if "month" in parts:
        names = enumerate(_MONTHS, 1)
        month = next(i for i, spelt in names if re.fullmatch(spelt, match["month"], re.IGNORECASE))
    elif "number" in parts:
        month = int(match["number"])
    elif "first" in parts:
        month, day = int(match["first"]), match["second"]
        if match["j"] == "." or month > 12:
            month, day = int(match["second"]), match["first"]
    else:
        return f"{int(year or 0):04}"
    try:
        date = datetime.date(int(year or _LEAP), month, int(day or 1)).isoformat()
    except ValueError:  # there is no such day
        return None
    if year is None:
        return f"-{date[4:]}"
    return date if day is not None else date[:7]
