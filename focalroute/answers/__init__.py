"""When two free-form answers are the same answer, and how a candidate is named without storing its text.

A normaliser maps a whole reply, reasoning and all, to the normal form of its final answer (None: there is none). Every
one but "text" looks for that where `final.final` says. Two replies are one candidate if their forms are equal, and a
label is right if its form is.

- "number": one number, see `numbers.number`;
- "short": a name, a place, a word or a few, see `short.short`;
- "yes-no": yes or no, see `verdicts.verdict`;
- "date": a day, month or year, see `dates.date`;
- "math": an expression, list, set, tuple, interval, equation or inequality, see `formulas.math`;
- "text": open text, the same only if equal up to spacing;
- a callable of the caller's own.

All are idempotent, never raise, and take time in proportion to the reply's length, or less.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import TYPE_CHECKING

from focalroute.answers.structured import Structure
from focalroute.answers.tool_calls import calls_form, calls_text
from focalroute.core.errors import ConfigError

if TYPE_CHECKING:
    from focalroute.core.records import Reply

__all__ = [
    "KINDS",
    "AnswerKind",
    "NormaliserFailed",
    "candidate_key",
    "normal_form",
    "normaliser",
    "reply_form",
    "shown",
]

Normaliser = Callable[[str], str | None]
#: A name in `KINDS`, or the caller's own normaliser.
AnswerKind = str | Normaliser


def _number(text: str) -> str | None:
    from focalroute.answers.numbers import number  # the patterns of a kind are compiled on its first use

    return number(text)


def _short(text: str) -> str | None:
    from focalroute.answers.short import short

    return short(text)


def _verdict(text: str) -> str | None:
    from focalroute.answers.verdicts import verdict

    return verdict(text)


def _date(text: str) -> str | None:
    from focalroute.answers.dates import date

    return date(text)


def _math(text: str) -> str | None:
    from focalroute.answers.formulas import math

    return math(text)


def _text(text: str) -> str | None:
    """Open text: the same only if equal up to spacing."""
    return " ".join(text.split()) or None


#: The kinds of free-form answers by name; each says what it reads, and as what.
KINDS: dict[str, Normaliser] = {
    "number": _number,
    "short": _short,
    "text": _text,
    "yes-no": _verdict,
    "date": _date,
    "math": _math,
}


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


def reply_form(reply: Reply, kind: AnswerKind | None) -> str | None:
    """The normal form of a usable reply to a free-form question: of its tool calls, else of its text.

    Raises:
        ConfigError: as `normal_form`.
    """
    if reply.tool_calls:
        return calls_form(reply.tool_calls)
    return reply.form if reply.form is not None or reply.text is None else normal_form(reply.text, kind)


def shown(reply: Reply, form: str, kind: AnswerKind | None) -> str:
    """The reply as a candidate: its text, of tool calls or a structured answer their JSON in one form."""
    if reply.tool_calls:
        return calls_text(reply.tool_calls)
    return form if isinstance(kind, Structure) else reply.text or ""


def candidate_key(candidate: str) -> str:
    """A short digest that names a candidate: labels are compared by it, so that the store need not hold any text."""
    return blake2b(candidate.encode(errors="surrogatepass"), digest_size=8).hexdigest()
