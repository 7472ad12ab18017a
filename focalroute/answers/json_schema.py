"""Checks values against JSON schemas in bounded time, even if both are hostile.

A schema may come from a caller and a value from a provider, so neither is trusted. Three bounds hold:

- a schema has at most `MAX_NODES` nodes in `MAX_DEPTH` levels, and no keyword of unbounded cost;
- patterns are matched by RE2, in time linear in the text and in the pattern's program, whose size counts as nodes;
- a check that takes more than `MAX_STEPS` steps ends, and the value counts as invalid. Steps are keywords evaluated,
  values compared, and texts matched; one takes a few microseconds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from itertools import islice
from typing import Any
from urllib.parse import unquote

from focalroute.core.errors import ConfigError
from focalroute.core.json_values import as_object, canonical, is_number

MAX_NODES = 5_000
MAX_DEPTH = 64
MAX_STEPS = 20_000
MAX_PATTERN = 10_000  # characters
MOST_MISFITS = 5  # listed by a check

_PROGRAM_BYTES = 2**20  # of memory for one pattern: "\\pL{400}" would compile to eight times as much, in 0.2 s
_PROGRAM_PER_NODE = 8  # instructions; one takes up to 2 us to compile
_MATCHED_PER_STEP = 500  # bytes times instructions: without an automaton RE2 tries each instruction on each byte

_TYPES = frozenset(("array", "boolean", "integer", "null", "number", "object", "string"))
_REFUSED = frozenset(("$dynamicRef", "$recursiveRef", "unevaluatedItems", "unevaluatedProperties"))
_COSTLY = frozenset(("$ref", "allOf", "anyOf", "oneOf"))  # each takes about as long as five others
_INSTALL = "pip install 'focalroute[schema]', or ask with a pydantic model as answer="


class _TooManySteps(Exception):
    """The check takes too many steps."""


#: How many steps the current check has left.
_steps_left: ContextVar[int] = ContextVar("focalroute_schema_steps")


def _take_steps(count: int) -> None:
    _steps_left.set(_steps_left.get() - count)
    if _steps_left.get() < 0:
        raise _TooManySteps


#: The path to an invalid part of a value, and the keyword of the schema that it violates.
Misfit = tuple[tuple[str | int, ...], str]


def validator(schema: Mapping[str, Any]) -> Callable[[object], Sequence[Misfit]]:
    """Return a function that lists up to `MOST_MISFITS` misfits of a value; references are never fetched.

    Raises:
        ConfigError: the schema is wrong or not supported, or a needed package is not installed.
    """
    try:
        import jsonschema
        import referencing
    except ImportError:
        raise ConfigError(f"answer: JSON schemas are checked by jsonschema; {_INSTALL}") from None
    newest = jsonschema.Draft202012Validator
    draft = newest
    if isinstance(schema.get("$schema"), str):
        try:
            draft = jsonschema.validators.validator_for(schema, default=newest)
        except ValueError:  # not an address
            raise ConfigError(
                "answer: the JSON schema is wrong at $.$schema: give the address of a draft, or leave it out"
            ) from None
    check_schema(schema, tuples=draft is not newest)
    bounded = _bounded(draft, jsonschema.validators.extend, jsonschema.ValidationError)
    # with "$schema", jsonschema would switch to that draft's own keywords
    undated = {keyword: value for keyword, value in schema.items() if keyword != "$schema"}
    checks = bounded(_with_short_repr(undated), registry=referencing.Registry())

    def misfits(value: object) -> Sequence[Misfit]:
        found: list[Misfit] = []
        token = _steps_left.set(MAX_STEPS)
        try:
            for error in islice(checks.iter_errors(_with_short_repr(value)), MOST_MISFITS):
                found.append((tuple(error.absolute_path), error.validator or "false"))
        except (ArithmeticError, RecursionError, UnicodeError, _TooManySteps, referencing.exceptions.Unresolvable):
            return found or [((), "cannot be checked")]
        finally:
            _steps_left.reset(token)
        return found

    return misfits


@functools.lru_cache(maxsize=8)
def _bounded(draft: Any, extend: Callable[..., Any], invalid: Callable[..., Exception]) -> Any:
    """Extend a draft's validator so that every keyword counts steps.

    Own keywords replace those that take superlinear time, and those that do not name the missing or unexpected field.
    """

    def pattern(_: Any, pattern: str, instance: Any, __: Any) -> Iterator[Exception]:
        if isinstance(instance, str) and not _matches(pattern, instance):
            yield invalid("does not match the pattern")

    def unique_items(_: Any, wanted: bool, instance: Any, __: Any) -> Iterator[Exception]:
        if wanted and isinstance(instance, list) and len(set(map(canonical, instance))) < len(instance):
            yield invalid("has equal items")

    def pattern_properties(validator: Any, patterns: Any, instance: Any, _: Any) -> Iterator[Exception]:
        if not isinstance(instance, dict):
            return
        for pattern, schema in patterns.items():
            for name in instance:
                if _matches(pattern, name):
                    yield from validator.descend(instance[name], schema, path=name)

    def additional_properties(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Exception]:
        if not isinstance(instance, dict):
            return
        named = schema.get("properties", {})
        patterns = schema.get("patternProperties", {})
        for name in instance:
            if name in named or any(_matches(pattern, name) for pattern in patterns):
                continue
            if wanted is False:
                yield invalid("is not allowed", path=[name])
            else:
                yield from validator.descend(instance[name], wanted, path=name)

    def required(_: Any, names: Any, instance: Any, __: Any) -> Iterator[Exception]:
        for name in names if isinstance(instance, dict) else ():
            if name not in instance:
                yield invalid("is missing", path=[name])

    own = {
        "additionalProperties": additional_properties,
        "pattern": pattern,
        "patternProperties": pattern_properties,
        "required": required,
        "uniqueItems": unique_items,
    }
    keywords = {**draft.VALIDATORS, **own}
    return extend(draft, {name: _counted(keyword, 5 if name in _COSTLY else 1) for name, keyword in keywords.items()})


def _counted(keyword: Any, steps: int) -> Any:
    def counted(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        _take_steps(steps + _size(value) + _size(instance))
        yield from keyword(validator, value, instance, schema) or ()

    return counted


def _size(value: Any) -> int:
    """Return the extra steps for a value of this size."""
    return len(value) // 32 if isinstance(value, list | dict | str) else 0


class _List(list[Any]):
    def __repr__(self) -> str:
        return "[...]"


class _Dict(dict[str, Any]):
    def __repr__(self) -> str:
        return "{...}"


class _Str(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return "'...'"


def _with_short_repr(value: Any) -> Any:
    """Copy a JSON value so that its repr is short: jsonschema writes the repr into every error."""
    if isinstance(value, Mapping):
        return _Dict((name, _with_short_repr(part)) for name, part in value.items())
    if isinstance(value, list | tuple):
        return _List(map(_with_short_repr, value))
    return _Str(value) if isinstance(value, str) else value


def check_schema(schema: object, *, tuples: bool) -> None:
    """Check that this is a JSON schema against which values can be checked in bounded time.

    Args:
        tuples: whether ``items`` may be a list of schemas, as in drafts before 2020-12.

    Raises:
        ConfigError: the message names the place and what to do.
    """
    _SchemaCheck(schema, tuples=tuples).run()


class _SchemaCheck:
    """Checks all parts of a schema, including those that only a reference leads to."""

    def __init__(self, schema: object, *, tuples: bool) -> None:
        self._schema = schema
        self._tuples = tuples
        self._waiting: list[tuple[str, object, int]] = [("$", schema, 1)]  # place, part and depth
        self._walked: set[int] = set()
        self._references: dict[str, str] = {}  # reference -> where it was last found
        self._pending: list[str] = []  # references whose parts may not have been walked
        self._nodes = 0
        self._rebased = False  # whether an inner $id changes what references point to

    def run(self) -> None:
        while (part := self._next_part()) is not None:
            self._check(*part)
        if not self._rebased:
            _check_references(self._schema, self._references)

    def _next_part(self) -> tuple[str, object, int] | None:
        if self._waiting:
            return self._waiting.pop()
        while self._pending and not self._rebased:
            reference = self._pending.pop()
            target = pointed_to(self._schema, reference) if reference[:2] == "#/" else None
            if target is not None and id(target) not in self._walked:
                return reference, target, 1
        return None

    def _check(self, where: str, node: object, depth: int) -> None:
        """Check one part, and queue the parts in it."""
        self._walked.add(id(node))
        self._nodes += 1
        if depth > MAX_DEPTH:
            raise ConfigError(f"answer: the JSON schema is nested deeper than {MAX_DEPTH} levels; use $ref")
        if isinstance(node, bool):
            return
        if not isinstance(node, Mapping):
            raise ConfigError(f"answer: the JSON schema is wrong at {where}: give an object, true or false")
        for keyword, value in node.items():
            if keyword in _REFUSED or (keyword == "$schema" and where != "$"):
                raise ConfigError(f"answer: the JSON schema uses {keyword} at {where}, which is not supported")
            if keyword in _SHAPES:  # else an annotation, or a keyword without effect
                self._check_keyword(keyword, value, where, depth)

    def _check_keyword(self, keyword: str, value: Any, where: str, depth: int) -> None:
        """Check a keyword's value, and queue the schemas in it."""
        at = f"{where}.{keyword}"[:200]
        wrong, parts, size = _SHAPES[keyword](value)
        if keyword == "items" and isinstance(value, list) and not self._tuples:
            wrong = "give one schema; schemas of the first items go into prefixItems"
        if wrong:
            raise ConfigError(f"answer: the JSON schema is wrong at {at}: {wrong}")
        if keyword == "$ref":
            if value not in self._references:
                self._pending.append(value)
            self._references[value] = at
        elif keyword == "$id" and where != "$":
            self._rebased = True
        self._nodes += size
        if self._nodes + len(self._waiting) + len(parts) > MAX_NODES:
            raise ConfigError(f"answer: the JSON schema has more than {MAX_NODES} parts; simplify it")
        self._waiting += [(f"{at}{name}"[:200], part, depth + 1) for name, part in parts]


def _check_references(schema: object, references: Mapping[str, str]) -> None:
    """Check that references point to existing parts, and none refers back to itself."""
    sound: set[str] = set()
    for first, at in references.items():
        followed: set[str] = set()
        reference: object = first
        while isinstance(reference, str) and reference[:2] in ("#", "#/") and reference not in sound:
            target = pointed_to(schema, reference)
            if target is None:
                raise ConfigError(f"answer: the JSON schema is wrong at {at}: there is no {reference[:200]} in it")
            if reference in followed:
                raise ConfigError(f"answer: the JSON schema is wrong at {at}: {reference[:200]} refers to itself")
            followed.add(reference)
            reference = as_object(target).get("$ref")
        sound |= followed


def pointed_to(schema: object, reference: str) -> object | None:
    """Return the part of a schema that a reference such as "#/$defs/name" points to; None if there is none.

    >>> pointed_to({"$defs": {"a/b": [{"type": "null"}]}}, "#/$defs/a~1b/0")
    {'type': 'null'}
    """
    part = schema
    for name in unquote(reference[1:]).split("/")[1:]:
        if isinstance(part, list):
            place = int(name) if name.isdecimal() and len(name) < 10 else len(part)
            part = part[place] if place < len(part) else None
        else:
            part = as_object(part).get(name.replace("~1", "/").replace("~0", "~"))
    return part


#: Checks a keyword's value: returns the advice if it is wrong (else ""), the schemas in it by name, its size in nodes.
Shape = Callable[[Any], tuple[str, list[tuple[str, object]], int]]


def _plain(takes: Callable[[Any], bool], advice: str) -> Shape:
    """Make the check of a keyword whose value holds no schema."""

    def shape(value: Any) -> tuple[str, list[tuple[str, object]], int]:
        return "" if takes(value) else advice, [], len(value) if isinstance(value, list) else 0

    return shape


def _schema(value: Any) -> tuple[str, list[tuple[str, object]], int]:
    return "", [("", value)], 0


def _schemas(value: Any) -> tuple[str, list[tuple[str, object]], int]:
    if not isinstance(value, list) or not value:
        return "give a list of schemas", [], 0
    return "", [(f"[{i}]", part) for i, part in enumerate(value)], 0


def _schema_or_schemas(value: Any) -> tuple[str, list[tuple[str, object]], int]:
    return _schemas(value) if isinstance(value, list) else _schema(value)


def _schemas_by_name(value: Any) -> tuple[str, list[tuple[str, object]], int]:
    if not isinstance(value, Mapping):
        return "give an object of schemas", [], 0
    return "", [(f".{name}", part) for name, part in value.items()], 0


def _schemas_by_pattern(value: Any) -> tuple[str, list[tuple[str, object]], int]:
    wrong, parts, size = _schemas_by_name(value)
    for pattern in value if not wrong else ():
        wrong, _, program = _pattern(pattern)
        size += program
        if wrong or size > MAX_NODES:
            break
    return wrong, parts, size


def _names_by_name(value: Any) -> tuple[str, list[tuple[str, object]], int]:
    if not isinstance(value, Mapping) or not all(map(_is_names, value.values())):
        return "give an object of lists of names", [], 0
    return "", [], sum(map(len, value.values()))


def _is_count(value: Any) -> bool:
    return is_number(value) and value >= 0 and value == int(value)


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_type(value: Any) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(name, str) and name in _TYPES for name in names)


def _is_local(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("#")


def _pattern(value: Any) -> tuple[str, list[tuple[str, object]], int]:
    if not isinstance(value, str):
        return "give a regular expression", [], 0
    if len(value) > MAX_PATTERN:
        return f"give a regular expression of at most {MAX_PATTERN} characters", [], 0
    try:
        return "", [], _compiled(value).programsize // _PROGRAM_PER_NODE
    except ValueError:
        return "give a regular expression without look-around, back-references and large repetitions", [], 0


def _matches(pattern: str, text: str) -> bool:
    compiled = _compiled(pattern)
    length = len(text) if text.isascii() else 4 * len(text)
    _take_steps(length * compiled.programsize // _MATCHED_PER_STEP)
    return compiled.search(text) is not None


def _compiled(pattern: str) -> Any:
    """Compile the pattern with RE2, which caches the latest 128.

    Raises:
        ValueError: RE2 cannot match it in linear time, or it is not a pattern.
    """
    try:
        import re2
    except ImportError:
        raise ConfigError(f"answer: patterns in JSON schemas are matched by google-re2; {_INSTALL}") from None
    try:
        return re2.compile(pattern, _options(re2))
    except re2.error as error:
        raise ValueError(str(error)) from None


def _options(re2: Any) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _PROGRAM_BYTES
    return options


_number = _plain(is_number, "give a number")
_text = _plain(lambda value: isinstance(value, str), "give a text")
_count = _plain(_is_count, "give a whole number, 0 or more")
_names = _plain(_is_names, "give a list of names")

_SHAPES: Mapping[str, Shape] = {
    **dict.fromkeys(("items", "additionalItems"), _schema_or_schemas),
    **dict.fromkeys(("additionalProperties", "contains", "else", "if", "not", "propertyNames", "then"), _schema),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), _schemas),
    **dict.fromkeys(("$defs", "definitions", "dependentSchemas", "properties"), _schemas_by_name),
    **dict.fromkeys(("$anchor", "$dynamicAnchor", "$id", "$schema"), _text),
    **dict.fromkeys(("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum"), _number),
    **dict.fromkeys(
        ("maxContains", "maxItems", "maxLength", "maxProperties", "minContains", "minItems", "minLength",
         "minProperties"),
        _count,
    ),
    "$ref": _plain(_is_local, 'refer to a part of the same schema, such as "#/$defs/name"'),
    "dependentRequired": _names_by_name,
    "enum": _plain(lambda value: isinstance(value, list) and bool(value), "give a list of values"),
    "multipleOf": _plain(lambda value: is_number(value) and value > 0, "give a number above 0"),
    "pattern": _pattern,
    "patternProperties": _schemas_by_pattern,
    "required": _names,
    "type": _plain(_is_type, f"give one of {', '.join(sorted(_TYPES))}, or a list of them"),
    "uniqueItems": _plain(lambda value: isinstance(value, bool), "give true or false"),
}  # fmt: skip
