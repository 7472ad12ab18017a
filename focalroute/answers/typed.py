"""Reads answers of a Python type from replies, and converts them to values.

Numbers, bools and dates are read as the kinds "number", "yes-no" and "date", so that replies with one value are one
candidate, whatever the type. An Enum or a Literal makes a closed question of its members. All other types that pydantic
knows (models, dataclasses, lists and unions) are structured answers.
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

_MOST_DIGITS = 4300  # Python refuses to print longer integers


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
        kind: one of `focalroute.answers.KINDS`.
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
