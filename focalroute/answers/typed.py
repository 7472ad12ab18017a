"""Answers of a Python type: how each is read from a reply, and the value that it makes.

Numbers, yes or no, and dates are read as the kinds of those names are, so that replies of one value are one candidate,
whatever the type. An Enum or a Literal is a closed question of its members. All else that pydantic knows (a model, a
dataclass, a list or union of such) is a structured answer.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal, get_args, get_origin

from focalroute.answers import KINDS
from focalroute.core.errors import ConfigError

_MOST_DIGITS = 4300  # Python prints no longer integers


def to_number(form: str) -> int | float:
    """The number of a normal form of the kind "number": an int where it is whole, else a float.

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
    return Decimal(over) / Decimal(under) if under else Decimal(over)  # which a division would round


@dataclass(frozen=True, slots=True)
class TypedAnswer:
    """A normaliser for the values of a type, which are read as those of a kind of answer are.

    Attributes:
        kind: one of `focalroute.answers.KINDS`.
        value: the value of a normal form; ValueError: it is none of the type.
    """

    kind: str
    value: Callable[[str], Any]

    def __call__(self, text: str) -> str | None:
        """Return the normal form; None without one, or if it is not a value of the type."""
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
    """The members of an Enum or a Literal; None: it is neither."""
    if isinstance(wanted, enum.EnumMeta):
        return tuple(wanted)
    return get_args(wanted) if get_origin(wanted) is Literal else None


def choice_text(choice: object) -> str:
    """How a choice is shown: an Enum's member by its value where that is text, else by its name.

    Raises:
        ConfigError: it is nothing that can be shown.
    """
    if type(choice) is str:
        return choice
    if isinstance(choice, enum.Enum):
        return choice.value if isinstance(choice.value, str) else choice.name
    if isinstance(choice, str | int | float | Decimal | date):
        if choice != choice:  # nan; pandas' missing date
            raise ConfigError("choices: a value is missing (nan); drop it")
        try:
            return str(choice)
        except ValueError:  # an integer of more digits than Python prints
            raise ConfigError("choices: a number is too long; give it as text") from None
    raise ConfigError(
        f"choices: give strings, numbers, bools, dates or members of an Enum, got {type(choice).__name__}"
    )
