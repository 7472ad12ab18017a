"""Reads dates, and writes them as in ISO 8601."""

from __future__ import annotations

import datetime
import re

from focalroute.answers.final import find_final, only_bold

_MOST_WORDS = 4  # of a date; an explanation has more
_LEAP_YEAR = 2000  # stands in for a year that is not given

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
_RANGE_BEFORE = re.compile(
    rf"(?:\d{{4}}|[-/.]\d\d?|\b(?:{'|'.join(_MONTHS)})\.?(?:\s+\d\d?\w*)?)[.,]?{_TO}$", re.IGNORECASE
)
_REFERRED = re.compile(r"\b(?:after|before|since)\s+$", re.IGNORECASE)  # "3 days after March 1": not the answer


def read_date(text: str) -> str | None:
    """Return the date that a reply gives as its answer.

    That is the first date in a marked answer. Without one it is the first in the only bold words or in a short first
    paragraph, else the last in the last line, else the reply's last.

    The normal form is "2024-03-03", "2024-03" without a day, "--03-03" without a year, or "2024" for a year alone.
    Weekday and time are ignored. In 03/04/2024 and 03-04-2024 the first number is the month (as in the USA) unless it
    is above 12; in 03.04.2024 it is the day. Years have four digits (September 4, 476 is read too). Months are read in
    the languages of `_MONTHS`. Ranges, years before Christ, and dates that do not exist are not read.

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
    """Return all dates of the most complete forms that occur, in order; None for one that is unclear or impossible."""
    text = " ".join(text.translate({0x2010: "-", 0x2011: "-", 0x2013: "-"}).split())
    for forms in ([_IN_CHARACTERS], *_FORMS, [_YEARLESS]):
        found = sorted((match for form in forms for match in form.finditer(text)), key=re.Match.start)
        matches = [m for m in found if not _REFERRED.search(text, max(0, m.start() - 20), m.start())] or found
        if matches:
            in_range = [_RANGE_BEFORE.search(text, max(0, m.start() - 30), m.start()) for m in matches]
            return [None if any(in_range[i : i + 2]) else _iso_date(match) for i, match in enumerate(matches)]
    return []


def _iso_date(match: re.Match[str]) -> str | None:
    """Return the normal form of a match of one of the forms; None if it is a range, or no such day exists."""
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
        date = datetime.date(int(year or _LEAP_YEAR), month, int(day or 1)).isoformat()
    except ValueError:  # there is no such day
        return None
    if year is None:
        return f"-{date[4:]}"
    return date if day is not None else date[:7]
