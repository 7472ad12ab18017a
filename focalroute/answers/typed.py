"""Answers of a Python type: how each is read from a reply, and the value that it makes.

Numbers, yes or no, and dates are read as the kinds of those names are, so that replies of one value are one candidate,
whatever the type. An Enum or a Literal is a closed question of its members. All else that pydantic knows (a model, a
dataclass, a list or union of such) is a structured answer.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal, get_args, get_origin

from focalroute.answers import KINDS
from focalroute.core.errors import ConfigError


def to_number(form: str) -> int | float:
    """The number of a normal form of the kind "number": an int where it is whole, else a float.

    >>> to_number("42"), to_number("0.5"), to_number("-1/4")
    (42, 0.5, -0.25)
    """
    if form.lstrip("-").isdecimal():
        return int(form)
    return float(Fraction(form)) if "/" in form else float(form)


def _to_decimal(form: str) -> Decimal:
    over, _, under = form.partition("/")
    return Decimal(over) / Decimal(under or 1)


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
    int: TypedAnswer("number", int),
    float: TypedAnswer("number", lambda form: float(to_number(form))),
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
        return str(choice)
    raise ConfigError(
        f"choices: give strings, numbers, bools, dates or members of an Enum, got {type(choice).__name__}"
    )
