"""When two free-form answers are the same answer, and how a candidate is named without storing its text."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from hashlib import blake2b

from focalroute.errors import ConfigError

__all__ = ["KINDS", "candidate_key", "normal_form", "normaliser"]

Normaliser = Callable[[str], str | None]

_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:[eE][-+]?\d+)?(?<=\d)")
_LEAD_IN = re.compile(r"^(?:the\s+)?(?:final\s+)?answer\s*(?:is|:)\s*", re.IGNORECASE)


def _number(text: str) -> str | None:
    """The last number in the text, in plain decimal notation without trailing zeros.

    >>> _number("So 1,250.50 in all."), _number("-3"), _number("none")
    ('1250.5', '-3', None)
    """
    found = [m.group() for m in _NUMBER.finditer(text) if m.group()]
    if not found:
        return None
    try:
        value = Decimal(found[-1].replace(",", ""))
    except InvalidOperation:
        return None
    if value.adjusted() > 40 or value.adjusted() < -40:
        return str(value.normalize())
    plain = format(value, "f")
    return (plain.rstrip("0").rstrip(".") if "." in plain else plain).lstrip("+") or "0"


def _short(text: str) -> str | None:
    """Case, punctuation at the ends, spacing and a lead-in do not matter.

    >>> _short("The answer is:  New   York."), _short("new york")
    ('new york', 'new york')
    """
    text = unicodedata.normalize("NFKC", text).strip()
    text = _LEAD_IN.sub("", text).strip(" \t\r\n.,;:!?\"'`*_()[]")
    return " ".join(text.casefold().split()) or None


def _text(text: str) -> str | None:
    """Open text: the same only if equal up to spacing."""
    return " ".join(text.split()) or None


KINDS: dict[str, Normaliser] = {"number": _number, "short": _short, "text": _text}


def normaliser(kind: str | Normaliser | None) -> Normaliser:
    """The function that maps a reply's text to its normal form (None: no answer in it); "text" by default.

    Raises:
        ConfigError: ``kind`` is not a known kind nor a callable.
    """
    if callable(kind):
        return kind
    try:
        return KINDS[kind or "text"]
    except (KeyError, TypeError):
        raise ConfigError(f"answer: unknown kind {kind!r}; use one of {', '.join(KINDS)} or a callable") from None


def normal_form(text: str, kind: str | Normaliser | None) -> str | None:
    """The text's normal form; None if it holds no answer."""
    return normaliser(kind)(text)


def candidate_key(candidate: str) -> str:
    """A short digest that names a candidate: labels are compared by it, so that the store need not hold any text."""
    return blake2b(candidate.encode(), digest_size=8).hexdigest()
