"""Decides when two free-form answers are the same, and names a candidate without storing its text.

A normaliser maps a whole reply, reasoning included, to the normal form of its final answer, or to None if it has no
answer. All but "text" find the final answer with `final.find_final`. Replies with equal forms are one candidate, and an
answer is right if its form equals the label's. The kinds are

- "number": one number, see `numbers.read_number`;
- "short": a name, a place, a word or a few, see `short.read_short`;
- "yes-no": yes or no, see `verdicts.read_verdict`;
- "date": a day, month or year, see `dates.read_date`;
- "math": an expression, list, set, tuple, interval, equation or inequality, see `formulas.read_math`;
- "text": open text, the same only if equal up to spacing;
- a callable from the caller.

The named kinds are idempotent, never raise, and take time linear in the reply's length.

The caller may also ask for a Python type. Numbers, bools and dates are read as the kinds "number", "yes-no" and "date"
(`TYPES`), so replies with the same value are one candidate. An Enum or a Literal makes a closed question with its
members as choices. All other types that pydantic knows (models, dataclasses, lists and unions) are structured answers.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from fractions import Fraction
from functools import cache
from hashlib import blake2b
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from focalroute.answers.structured import Structure
from focalroute.answers.tool_calls import calls_form, calls_text
from focalroute.core.errors import ConfigError
from focalroute.core.spelling import did_you_mean

if TYPE_CHECKING:
    from focalroute.core.records import Reply

Normaliser = Callable[[str], str | None]
#: A name in `KINDS`, or the caller's own normaliser.
AnswerKind = str | Normaliser

_MOST_DIGITS = 4300  # Python refuses to print longer integers


def read_text(text: str) -> str | None:
    """Return the text with single spaces between words; None if it is empty."""
    return " ".join(text.split()) or None


def _read_later(module: str, function: str) -> Normaliser:
    """Return a reader that is imported on its first use, as each module compiles many patterns."""

    @cache
    def reader() -> Normaliser:
        found: Normaliser = getattr(import_module(f"{__name__}.{module}"), function)
        return found

    return lambda text: reader()(text)


#: The kinds of free-form answers by name.
KINDS: dict[str, Normaliser] = {
    "number": _read_later("numbers", "read_number"),
    "short": _read_later("short", "read_short"),
    "text": read_text,
    "yes-no": _read_later("verdicts", "read_verdict"),
    "date": _read_later("dates", "read_date"),
    "math": _read_later("formulas", "read_math"),
}


#: Another name of a kind -> its name here, or what to do.
_INSTEAD = {
    **dict.fromkeys(("integer", "int", "float", "decimal", "numeric"), "number"),
    **dict.fromkeys(("bool", "boolean", "yesno", "true-false"), "yes-no"),
    **dict.fromkeys(("string", "str", "free", "open"), "text"),
    **dict.fromkeys(("json", "object", "schema"), "give a pydantic model or a JSON schema."),
}


def normaliser(kind: AnswerKind | None) -> Normaliser:
    """Return the function that maps a reply's text to its normal form (None: no answer in it); "text" by default.

    Raises:
        ConfigError: ``kind`` is neither a known kind nor a callable.
    """
    if callable(kind):
        return kind
    try:
        return KINDS["text" if kind is None else kind]
    except (KeyError, TypeError):
        meant = did_you_mean(str(kind), KINDS, _INSTEAD)
        others = "a type, a JSON schema or a callable"
        raise ConfigError(f"answer: unknown kind {kind!r}; {meant} Or give {others}") from None


class NormaliserFailed(ConfigError):
    """The caller's own normaliser failed on a reply; ``hint`` says what to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def normal_form(text: str, kind: AnswerKind | None) -> str | None:
    """Return the text's normal form; None if it holds no answer.

    Raises:
        NormaliserFailed: the caller's own normaliser raised an exception.
        ConfigError: it returned something other than a string or None.
    """
    try:
        form = normaliser(kind)(text)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:  # which would end the event loop, and with it the ensemble
        what, hint = "the callable", "let the callable return None for a reply without an answer"
        if isinstance(kind, Structure):
            what, hint = "a validator of the model", "let the model's validator raise ValueError for what it refuses"
        where = f"{type(error).__name__}{_line_of(error, kind)}"
        raise NormaliserFailed(f"answer: {what} failed on a reply ({where})", hint) from error
    if form is not None and not isinstance(form, str):
        raise ConfigError(f"answer: the callable must give a string or None, gave {type(form).__name__}")
    return form


def _line_of(error: BaseException, function: object) -> str:
    """Return the line of the caller's function that raised the error, without its message, which may quote a reply."""
    code, at = getattr(function, "__code__", None), error.__traceback__
    while at is not None and at.tb_frame.f_code is not code:
        at = at.tb_next
    return "" if at is None else f" in line {at.tb_lineno}"


def reply_form(reply: Reply, kind: AnswerKind | None) -> str | None:
    """Return the normal form of a usable reply to a free-form question: of its tool calls, else of its text.

    Raises:
        ConfigError: as `normal_form`.
    """
    if reply.tool_calls:
        return calls_form(reply.tool_calls)
    return reply.form if reply.form is not None or reply.text is None else normal_form(reply.text, kind)


def shown(reply: Reply, form: str, kind: AnswerKind | None) -> str:
    """Return a reply as a candidate to show: its text, or canonical JSON for tool calls and structured answers."""
    if reply.tool_calls:
        return calls_text(reply.tool_calls)
    return form if isinstance(kind, Structure) else reply.text or ""


def candidate_key(candidate: str) -> str:
    """Return a short digest of a candidate. Labels are compared by it, so the store need not hold any text."""
    return blake2b(candidate.encode(errors="surrogatepass"), digest_size=8).hexdigest()


def to_number(form: str) -> int | float:
    """Return the number of a normal form of the kind "number": an int where it is whole, else a float.

    >>> to_number("42"), to_number("0.5"), to_number("-1/4"), to_number("1.2E+41") == 12 * 10**40
    (42, 0.5, -0.25, True)
    """
    whole = _to_int(form)
    return _to_float(form) if whole is None else whole


def _to_int(form: str) -> int | None:
    if "/" in form:
        return None
    value = Decimal(form)
    return int(value) if value.adjusted() < _MOST_DIGITS and value == value.to_integral_value() else None


def _to_float(form: str) -> float:
    return float(Fraction(form)) if "/" in form else float(form)


def _to_finite(form: str) -> float | None:
    value = _to_float(form)
    return value if math.isfinite(value) else None


def _to_decimal(form: str) -> Decimal:
    over, _, under = form.partition("/")
    return Decimal(over) / Decimal(under) if under else Decimal(over)  # a division by 1 would round it


@dataclass(frozen=True, slots=True)
class TypedAnswer:
    """A normaliser for the values of a type, which are read as a kind of answer.

    Attributes:
        kind: one of `KINDS`.
        value: converts a normal form; ValueError or None: it is not a value of the type.
    """

    kind: str
    value: Callable[[str], Any]

    def __call__(self, text: str) -> str | None:
        """Return the normal form; None if there is none or it is not a value of the type."""
        form = KINDS[self.kind](text)
        try:
            return None if form is None or self.value(form) is None else form
        except ValueError:
            return None


#: The types that are read as a kind of answer.
TYPES: Mapping[object, TypedAnswer] = {
    int: TypedAnswer("number", _to_int),
    float: TypedAnswer("number", _to_finite),
    Decimal: TypedAnswer("number", _to_decimal),
    bool: TypedAnswer("yes-no", lambda form: form == "yes"),
    date: TypedAnswer("date", date.fromisoformat),
}


def members_of(wanted: object) -> tuple[Any, ...] | None:
    """Return the members of an Enum or a Literal; None: it is neither."""
    if isinstance(wanted, enum.EnumMeta):
        return tuple(wanted)
    return get_args(wanted) if get_origin(wanted) is Literal else None


def choice_text(choice: object) -> str:
    """Return a choice as text: an Enum's member as its value where that is text, else as its name.

    Raises:
        ConfigError: it cannot be shown as text.
    """
    if type(choice) is str:
        return choice
    if isinstance(choice, enum.Enum):
        return choice.value if isinstance(choice.value, str) else choice.name
    if isinstance(choice, str | int | float | Decimal | Fraction | date):
        if choice != choice:  # nan; pandas' missing date
            raise ConfigError("choices: a value is missing (nan); drop it")
        try:
            return str(choice)
        except ValueError:  # an integer of more digits than Python prints
            raise ConfigError("choices: a number is too long; give it as text") from None
    raise ConfigError(
        f"choices: give strings, numbers, bools, dates or members of an Enum, got {type(choice).__name__}"
    )
