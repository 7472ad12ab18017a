"""Explains wrong names and values in this package's words, says what to give instead, and counts in words."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from focalroute.core.errors import ConfigError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails, ValidationError

F = TypeVar("F", bound=Callable[..., Any])

#: What to give, by pydantic's kind of problem.
_ADVICE: Mapping[str, str] = {
    "missing": "required",
    "missing_argument": "required",
    "greater_than": "give more than {gt}",
    "greater_than_equal": "give at least {ge}",
    "less_than": "give less than {lt}",
    "less_than_equal": "give at most {le}",
    "finite_number": "give a finite number",
    "literal_error": "give {expected}",
    "too_short": "give at least {min_length}",
    "too_long": "give at most {max_length}",
    "string_too_short": "is empty; give a text",
    "string_too_long": "give at most {max_length} characters",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "give a whole number"),
    **dict.fromkeys(("float_type", "float_parsing", "decimal_type", "decimal_parsing"), "give a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "give true or false"),
    **dict.fromkeys(("list_type", "tuple_type"), "give a list"),
    **dict.fromkeys(("dict_type", "mapping_type", "model_type", "dataclass_type"), "give names and their values"),
    "string_type": "give a string",
    **dict.fromkeys(("date_type", "date_parsing"), "give a date, in a file without quotes, such as 2026-11-30"),
}


def advice(problem: ErrorDetails) -> str:
    """Return advice on a problem that pydantic found; pydantic's own message where we have none."""
    template = _ADVICE.get(problem["type"])
    if template is None:
        return problem["msg"].removeprefix("Value error, ")
    bounds = problem.get("ctx", {})
    whole = {name: int(at) for name, at in bounds.items() if isinstance(at, float) and at.is_integer()}
    return template.format_map({**bounds, **whole})


def first_problem(error: ValidationError) -> tuple[str, ErrorDetails]:
    """Return the first problem that pydantic found, and its place: names and indices joined by dots."""
    problem = error.errors(include_url=False, include_input=False)[0]
    return ".".join(map(str, problem["loc"])), problem


def counted(n: int, what: str) -> str:
    """Return a number of things in words.

    >>> counted(1, "call"), counted(1200, "call"), counted(2, "query")
    ('1 call', '1,200 calls', '2 queries')
    """
    several = f"{what[:-1]}ies" if what.endswith("y") and what[-2] not in "aeiou" else f"{what}s"
    return f"1 {what}" if n == 1 else f"{n:,} {several}"


def did_you_mean(name: str, known: Collection[str], instead: Mapping[str, str] | None = None) -> str:
    """Return advice on an unknown name: the name probably meant, or all names.

    Args:
        known: the valid names.
        instead: a name used elsewhere -> its name here, or a sentence that says what to do.

    >>> did_you_mean("polcy", ["policy", "store"]), did_you_mean("timeout", [], {"timeout": "deadline_s"})
    ("did you mean 'policy'?", "did you mean 'deadline_s'?")
    """
    from difflib import get_close_matches  # only errors need it

    meant = (instead or {}).get(name)
    if meant is not None and " " in meant:
        return meant
    near = [meant] if meant else get_close_matches(name.lower().replace("-", "_"), known, 1)
    return f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(sorted(known))}."


def by_keyword(
    advice: str, instead: Mapping[str, str] | None = None, *, like: Callable[..., object] | None = None
) -> Callable[[F], F]:
    """Make a method raise a `ConfigError` that says what was meant, where a call does not fit its signature.

    Args:
        advice: what to do where too many arguments are given without their names.
        instead: as for `did_you_mean`.
        like: a method whose signature and documentation to show; None: its own.
    """

    def explained(method: F) -> F:
        shown = like or method
        signature = inspect.signature(shown)
        parameters = frozenset(signature.parameters)
        names = [*signature.parameters][1:]

        @functools.wraps(shown)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not parameters.issuperset(kwargs):
                unknown = next(name for name in kwargs if name not in names)
                why = did_you_mean(unknown, names, instead)
                raise ConfigError(f"{shown.__name__}: {unknown}: unknown argument; {why}")
            try:
                return method(*args, **kwargs)
            except TypeError:
                explain(args, kwargs)
                raise

        def explain(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                why = advice if str(error) == "too many positional arguments" else str(error)
                raise ConfigError(f"{shown.__name__}: {why}") from None

        @functools.wraps(shown)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            return await call(*args, **kwargs)

        # FastAPI's background tasks, among others, await only what is marked as a coroutine function.
        made: Any = awaited if inspect.iscoroutinefunction(method) else call
        made.advice = advice, instead
        return cast("F", made)

    return explained
