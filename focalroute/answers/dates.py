"""Reads dates, as ISO 8601 writes them."""

from __future__ import annotations

import datetime
import re

from focalroute.answers.final import find_final

_MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
)  # fmt: skip
_MONTH = rf"(?P<month>(?:{'|'.join(m[:3] + (f'(?:{m[3:]})?' if m[3:] else '') for m in _MONTHS)}|sept)\b)\.?"
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_YEAR = r"(?P<year>\d{4})"
_NOT_WITHIN = r"(?<![\w/.-])"
_ENDS = r"(?!(?!T\d)\w|/|[-.]\d)"
# How much each says, the most first; "of" and commas may stand between.
_FORMS = tuple(
    re.compile(_NOT_WITHIN + form + _ENDS, re.IGNORECASE)
    for form in (
        rf"{_DAY}[\s-]+(?:of\s+)?{_MONTH}[\s,-]+(?:of\s+)?{_YEAR}",
        rf"{_MONTH}[\s-]+(?:the\s+)?{_DAY}[\s,-]+(?:of\s+)?{_YEAR}",
        rf"{_YEAR}(?P<j>[-/.])(?P<number>\d{{1,2}})(?P=j){_DAY}",
        rf"(?P<first>\d{{1,2}})(?P<j>[-/.])(?P<second>\d{{1,2}})(?P=j){_YEAR}",
        rf"{_MONTH}[\s,-]+(?:of\s+)?{_YEAR}",
        r"(?P<year>\d{4})-(?P<number>\d\d)",
        rf"{_DAY}[\s-]+(?:of\s+)?{_MONTH}",
        rf"{_MONTH}[\s-]+(?:the\s+)?{_DAY}",
        r"(?P<year>[12]\d{3})",
    )
)
_YEARLESS = re.compile(r"(?<!\S)--(?P<number>\d\d)-(?P<day>\d\d)(?!\S)")
_LEAP = 2000


def read_date(text: str) -> str | None:
    """Return the date that a reply gives as its answer: the first where it marks its answer, else its last.

    "2024-03-03"; "2024-03" without a day, "--03-03" without a year, "2024" for a year alone. A weekday and a
    time do not matter. Of 03/04/2024 and 03-04-2024 the first number is the month (as in the USA) unless it is above
    12; of 03.04.2024 it is the day. Years have four digits. Dates that do not exist are not read.

    >>> read_date("The answer is Sunday, March 3rd, 2024."), read_date("31/01/2024"), read_date("3.4.2024")
    ('2024-03-03', '2024-01-31', '2024-04-03')
    """
    answer = find_final(text)
    if answer is None:
        return None
    dates = _find_dates(answer.text)
    if dates and answer.marked:
        return dates[0]
    dates = dates or _find_dates(answer.reply)
    return dates[-1] if dates else None


def _find_dates(text: str) -> list[str]:
    """Find all dates of the most complete form that is there, in order."""
    text = " ".join(text.translate({0x2010: "-", 0x2011: "-", 0x2013: "-"}).split())
    yearless = [match[0] for match in _YEARLESS.finditer(text) if _read(match) == match[0]]
    for form in _FORMS:
        matches = list(form.finditer(text))
        if matches:
            return [date for match in matches if (date := _read(match)) is not None]
    return yearless


def _read(match: re.Match[str]) -> str | None:
    parts = match.groupdict()
    year, day = parts.get("year"), parts.get("day")
    if "month" in parts:
        month = next(i for i, name in enumerate(_MONTHS, 1) if name.startswith(match["month"][:3].casefold()))
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
