"""When two free-form answers are the same answer, and how a candidate is named without storing its text."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal, InvalidOperation, Overflow
from hashlib import blake2b

from focalroute.errors import ConfigError

__all__ = ["KINDS", "AnswerKind", "NormaliserFailed", "candidate_key", "is_open_text", "normal_form", "normaliser"]

Normaliser = Callable[[str], str | None]
#: A name in `KINDS`, or the caller's own normaliser.
AnswerKind = str | Normaliser

# Not within a number (the sign of "10-20" is none) nor an exponent ("25 m^2" is 25).
_NUMBER = re.compile(r"(?<![\d^])([-+]?)[$€£]?((?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)((?:[eE][-+]?\d+)?)")
_EXACT = Context(prec=MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX)  # the current context may round
_AT_ENDS = " \t\r\n.,;:!?\"'`*_()[]“”\u2018\u2019"
_MAX_SHORT = 10_000  # characters, unless plain ASCII: normalising such that combine takes time with their square
_LEAD_IN = re.compile(rf"(?:(?:the )?(?:final )?answer ?(?:is\b|:)[{re.escape(_AT_ENDS)}]*)+")


def _number(text: str) -> str | None:
    """The last number in the text, in plain decimal notation without trailing zeros.

    >>> _number("So 1,250.50 in all."), _number("-3"), _number("none")
    ('1250.5', '-3', None)
    """
    found = _NUMBER.findall(text.replace("\N{MINUS SIGN}", "-"))
    if not found:
        return None
    sign, digits, exponent = found[-1]
    try:
        value = _EXACT.normalize(Decimal(sign + digits.replace(",", "") + exponent))
    except (InvalidOperation, Overflow):  # beyond any number that is meant
        return None
    if not value:
        return "0"
    return format(value, "f") if abs(value.adjusted()) <= 40 else str(value)


def _short(text: str) -> str | None:
    """Case, punctuation at the ends, spacing and a lead-in do not matter.

    >>> _short("The answer is:  New   York."), _short("new york")
    ('new york', 'new york')
    """
    if len(text) > _MAX_SHORT and not text.isascii():
        return None
    form = _shorter(text)
    while form != text:  # folding one thing may uncover another
        text, form = form, _shorter(form)
    return form or None


def _shorter(text: str) -> str:
    text = " ".join(unicodedata.normalize("NFKC", text).casefold().split()).strip(_AT_ENDS)
    lead_in = _LEAD_IN.match(text)
    return text[lead_in.end() :] if lead_in else text


def _text(text: str) -> str | None:
    """Open text: the same only if equal up to spacing."""
    return " ".join(text.split()) or None


KINDS: dict[str, Normaliser] = {"number": _number, "short": _short, "text": _text}


def normaliser(kind: AnswerKind | None) -> Normaliser:
    """The function that maps a reply's text to its normal form (None: no answer in it); "text" by default.

    Raises:
        ConfigError: ``kind`` is not a known kind nor a callable.
    """
    if callable(kind):
        return kind
    try:
        return KINDS["text" if kind is None else kind]
    except (KeyError, TypeError):
        raise ConfigError(f"answer: unknown kind {kind!r}; use one of {', '.join(KINDS)} or a callable") from None


def is_open_text(choices: Sequence[str] | None, kind: AnswerKind | None) -> bool:
    """Whether answers are open text, of which no two are equal: neither choices nor another kind of answer is given."""
    return choices is None and kind in (None, "text")


class NormaliserFailed(ConfigError):
    """The caller's own normaliser failed on a text."""


def normal_form(text: str, kind: AnswerKind | None) -> str | None:
    """The text's normal form; None if it holds no answer.

    Raises:
        NormaliserFailed: the caller's own normaliser raised an exception.
        ConfigError: it gave something else than a string or None.
    """
    try:
        form = normaliser(kind)(text)
    except ConfigError:
        raise
    except Exception as error:
        raise NormaliserFailed(f"answer: the callable failed on a reply ({type(error).__name__})") from error
    if form is not None and not isinstance(form, str):
        raise ConfigError(f"answer: the callable must give a string or None, gave {type(form).__name__}")
    return form


def candidate_key(candidate: str) -> str:
    """A short digest that names a candidate: labels are compared by it, so that the store need not hold any text."""
    return blake2b(candidate.encode(errors="surrogatepass"), digest_size=8).hexdigest()
