"""Dates, as ISO 8601 writes them."""

from __future__ import annotations

import datetime
import re
from typing import NamedTuple

from focalroute.answers.final import final

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


class _Found(NamedTuple):
    at: int
    form: str


def date(text: str) -> str | None:
    """The date that a reply gives as its answer: the first where it says so, else its last.

    "2024-03-03"; "2024-03" where no day is said, "--03-03" where no year is, "2024" for a year alone. A weekday and a
    time do not matter. Of 03/04/2024 and 03-04-2024 the first number is the month (as in the USA) unless it is above
    12; of 03.04.2024 it is the day. Years have four digits. A date that does not exist is none.

    >>> date("The answer is Sunday, March 3rd, 2024."), date("31/01/2024"), date("3.4.2024"), date("30 February 2024")
    ('2024-03-03', '2024-01-31', '2024-04-03', None)
    """
    found = final(text)
    if found is None:
        return None
    parts = ((found.text, 0), (found.rest, -1)) if found.said else ((found.text, -1), (found.rest, -1))
    for part, which in parts:
        dates = _dates(part)
        if dates:
            return dates[which].form
    return None


def _dates(text: str) -> list[_Found]:
    """All dates of the form that says most, in order."""
    text = " ".join(text.translate({0x2010: "-", 0x2011: "-", 0x2013: "-"}).split())
    yearless = [_Found(match.start(), match[0]) for match in _YEARLESS.finditer(text) if _read(match) == match[0]]
    for form in _FORMS:
        matches = list(form.finditer(text))
        if matches:
            return [_Found(match.start(), read) for match in matches if (read := _read(match)) is not None]
    return yearless


def _read(match: re.Match[str]) -> str | None:
    said = match.groupdict()
    year, day = said.get("year"), said.get("day")
    if "month" in said:
        month = next(i for i, name in enumerate(_MONTHS, 1) if name.startswith(match["month"][:3].casefold()))
    elif "number" in said:
        month = int(match["number"])
    elif "first" in said:
        month, day = int(match["first"]), match["second"]
        if match["j"] == "." or month > 12:
            month, day = int(match["second"]), match["first"]
    else:
        return f"{int(year or 0):04}"
    return _checked(None if year is None else int(year), month, None if day is None else int(day))


def _checked(year: int | None, month: int, day: int | None) -> str | None:
    try:
        found = datetime.date(_LEAP if year is None else year, month, 1 if day is None else day).isoformat()
    except ValueError:
        return None
    if year is None:
        return f"-{found[4:]}"
    return found[:7] if day is None else found
