"""Reads and checks structured answers, and fuses several of them field by field.

A closed field of the JSON schema is an enumeration, a constant or a boolean, or one of these or null. It gets the value
with the largest posterior probability, summed over the candidates that have it. All else, such as free text, numbers
and lists, is taken whole from one candidate.
"""

from __future__ import annotations

import copy
import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from hashlib import blake2b
from itertools import chain
from types import UnionType
from typing import Any, _SpecialForm, get_origin
from uuid import UUID

from pydantic import BaseModel, TypeAdapter, ValidationError

from focalroute.answers.json_schema import MAX_NODES, MOST_MISFITS, pointed_to, validator
from focalroute.answers.tool_calls import CALLS
from focalroute.core.errors import BadLabel, ConfigError
from focalroute.core.json_values import as_list, as_object, canonical, parsed

#: The type of a structured answer: a pydantic model, another type that pydantic knows, or a JSON schema. The special
#: forms are for mypy, to which ``Literal["a", "b"]`` and ``Optional[int]`` are not types when passed as values.
Wanted = type[Any] | UnionType | _SpecialForm | Mapping[str, Any]

_LONGEST_PROBLEM = 1000  # characters
_LONGEST_REPLY = 2**18  # characters; a longer reply is not read
_UNQUOTED_FORMATS = ("date-time", "time", "duration", "uuid")  # read without JSON's quotes, too
_FENCED = re.compile(r"```[A-Za-z]*\s(.*?)```", re.DOTALL)
#: A string, or what JSON does not allow: a string or word of Python, a comment, a comma before a closing bracket.
_NOT_JSON = re.compile(
    r"""(?s)("(?:[^"\\]|\\.)*"?)|'((?:[^'\\]|\\.)*)'?|\b(True|False|None)\b|//[^\n]*|/\*.*?(?:\*/|\Z)"""
    r"""|,(?=(?:\s|//[^\n]*+|/\*[^*]{0,200}\*/)*+[}\]])"""
)
_QUOTE = re.compile(r'\\.|"', re.DOTALL)  # or anything else with a backslash before it
_QUOTES = {"\\'": "'", '"': '\\"'}  # in Python's 'text' -> in JSON's
_OPENING = re.compile(r"[{\[]")
_MOST_BRACKETS = 64  # parsing from each may read to the text's end
_NAME = re.compile(r"[^A-Za-z0-9_-]+")
#: The names that lead to a field; empty: the whole value.
Path = tuple[str, ...]

_ABSENT = "absent"  # the vote for leaving a field out; not valid JSON, so no value can equal it
_CLOSED_TYPES = {"boolean", "null"}


class Structure:
    """A normaliser for structured answers: maps a reply's text to its normal form, or None.

    Attributes:
        schema: the JSON schema.
        digest: of the schema.
    """

    def __init__(self, schema: Mapping[str, Any], adapter: TypeAdapter[Any] | None = None) -> None:
        self._check = validator(schema) if adapter is None else None  # first: the code below needs a valid schema
        self.schema = schema
        self.digest = blake2b(canonical(schema).encode(), digest_size=8).hexdigest()
        self._adapter = adapter
        self._fields = closed_fields(schema)

    def __call__(self, text: str) -> str | None:
        """Return the first valid answer in a reply as canonical JSON; None if there is none.

        Code fences, reasoning in ``<think>`` tags and words around the JSON are ignored. If these words hold brackets,
        the answer must be the only valid JSON among them.
        """
        if len(text) > _LONGEST_REPLY:
            return None
        forms = (self._form(value) for value in chain(_values(text), self._unquoted(text)))
        first = next((form for form in forms if form is not None), None)
        if first is not None:
            return first
        scattered = {self._form(value) for value in _scattered(text)} - {None}
        return scattered.pop() if len(scattered) == 1 else None

    def _unquoted(self, text: str) -> tuple[str, ...]:
        """Return the whole reply as a value if the type is a time or the like, whose quotes may be missing."""
        if self._adapter is None or self.schema.get("format") not in _UNQUOTED_FORMATS:
            return ()
        return (text.rpartition("</think>")[2].strip(),)

    def _form(self, value: object) -> str | None:
        """Return the canonical JSON of a valid value; None if it is invalid."""
        try:
            received = canonical(value)
            if self._check is not None and self._check(value):
                return None
            if self._adapter is None:
                return received
            read = self._adapter.validate_json(received)
            dumped = _dumped(self._adapter, read)
        except ValueError:
            return None
        try:  # a model may write other names than it reads, or change values
            return dumped if _same(self.value(dumped), read) else received
        except ValueError:
            return received

    def value(self, form: str) -> Any:
        """Convert a normal form to the answer: an instance of the model or type, or the plain value."""
        return parsed(form) if self._adapter is None else self._adapter.validate_json(form)

    def fuse(self, forms: Sequence[str], posterior: Sequence[float]) -> tuple[str, Election]:
        """Fuse the candidates field by field (see `elect`); return the normal form and how it was elected.

        Args:
            forms: the candidates; tool calls among them are ignored, and at least one must not be a tool call.
            posterior: their probabilities.
        """
        places = [i for i, form in enumerate(forms) if not form.startswith(CALLS)]
        values = [parsed(forms[i]) for i in places]
        for election in elect(values, [posterior[i] for i in places], self._fields):
            if election.candidate is not None:
                place = places[election.candidate]
                return forms[place], Election(election.value, place, election.shares)
            with suppress(Exception):  # the model's validators may raise anything
                form = self._form(election.value)
                if form is not None:
                    return form, election
        raise AssertionError("the likeliest candidate is always elected")

    @functools.cached_property
    def response_format(self) -> dict[str, Any]:
        """The ``response_format`` parameter. All fields of a model are required, as OpenAI's strict mode demands."""
        strict_schema = _strict(self.schema)
        schema = strict_schema if self._adapter else dict(self.schema)
        name = _NAME.sub("_", str(self.schema.get("title") or "answer"))[:64] or "answer"
        strict = schema == strict_schema
        return {"type": "json_schema", "json_schema": {"name": name, "strict": strict, "schema": schema}}

    def problem(self, text: str) -> str:
        """Return why a reply has no valid answer, in words for the model that wrote it."""
        found = "; ".join(f"{'.'.join(map(str, place))}: {message}" for place, _, message in self._errors(text))
        return found[:_LONGEST_PROBLEM] or "It is not JSON that is valid against the schema"

    def misfits(self, text: str) -> str:
        """Return where a reply does not fit, by pydantic's or the schema's names, without any text of the reply."""
        names = canonical(self.schema)
        found = []
        for place, error, _ in self._errors(text)[:MOST_MISFITS]:
            known = (str(part) if isinstance(part, int) or f'"{part}":' in names else "*" for part in place)
            found.append(f"{'.'.join(('$', *known))}: {error}")
        return f" ({', '.join(found)})" if found else ""

    def _errors(self, text: str) -> list[tuple[tuple[str | int, ...], str, str]]:
        """Return the place, name and message of each error in the likeliest JSON of a reply; empty without JSON."""
        for value in _values(text[:_LONGEST_REPLY]):
            if self._check is not None:
                return [(place, keyword, f"is wrong by {keyword!r}") for place, keyword in self._check(value)]
            try:
                self.value(canonical(value))
            except ValidationError as error:
                found = error.errors(include_url=False, include_context=False, include_input=False)
                return [(one["loc"], one["type"], one["msg"]) for one in found]
            except Exception:  # noqa: BLE001, S112 - too deep or large, or raised by the model's validator
                continue
        return []

    @property
    def is_object(self) -> bool:
        """Whether the schema can be sent as ``response_format``: services accept schemas of objects only."""
        return bool(self.schema.get("type", "object") == "object")

    @functools.cached_property
    def instruction(self) -> str:
        """A prompt with the schema, for services without ``response_format``."""
        return f"Answer with JSON only, which must be valid against this JSON schema:\n{canonical(self.schema)}"


def structure_of(wanted: object) -> Structure | None:
    """Make a `Structure` of a pydantic model, another type or a JSON schema; None for any other kind of answer.

    Raises:
        ConfigError: the schema is wrong, or the package that checks answers is not installed.
    """
    if isinstance(wanted, Structure):
        return wanted
    if isinstance(wanted, type | UnionType) or get_origin(wanted) is not None:
        try:
            return _of_type(wanted)
        except TypeError:  # it cannot be hashed
            return _of_type.__wrapped__(wanted)
    if isinstance(wanted, Mapping):
        if wanted.get("type") == "json_schema" or ("type" not in wanted and isinstance(wanted.get("schema"), Mapping)):
            raise ConfigError('answer: is a response_format; give what is under its "schema" alone')
        try:
            written = canonical(dict(wanted))
        except ValueError as error:
            raise ConfigError(f"answer: the JSON schema {error}") from None
        return _of_schema(written)
    return None


@functools.lru_cache(maxsize=256)
def _of_type(wanted: Any) -> Structure:
    try:
        adapter = TypeAdapter(wanted)
        return Structure(adapter.json_schema(), adapter)
    except Exception as error:
        name = getattr(wanted, "__name__", wanted)
        why = str(error).splitlines()[0]
        raise ConfigError(f"answer: {name} has no JSON schema ({why}); give a schema as a dict") from error


@functools.lru_cache(maxsize=256)
def _of_schema(schema: str) -> Structure:
    return Structure(as_object(parsed(schema)))


def _values(text: str) -> Iterator[object]:
    """Yield the values that can be parsed from a text, the likeliest first; JSON need not be strict (`_NOT_JSON`)."""
    text = text.rpartition("</think>")[2].strip()
    opened = [at for at in (text.find("{"), text.find("[")) if at >= 0]
    span = text[min(opened, default=0) : max(text.rfind("}"), text.rfind("]")) + 1]
    for part in (text, *reversed(_FENCED.findall(text)), span):
        for loose in (False, True):
            with suppress(ValueError):
                yield parsed(_NOT_JSON.sub(_as_json, part) if loose else part)
                break


def _as_json(match: re.Match[str]) -> str:
    """Turn a match of `_NOT_JSON` into JSON."""
    if match[2] is None:
        return match[1] or {"True": "true", "False": "false", "None": "null"}.get(match[3], "")
    return '"' + _QUOTE.sub(lambda quote: _QUOTES.get(quote[0], quote[0]), match[2]) + '"'


def _scattered(text: str) -> Iterator[object]:
    """Yield the JSON objects and lists among the words of a text, from at most 64 opening brackets."""
    text, decoder, at = text.rpartition("</think>")[2], json.JSONDecoder(strict=False), 0
    for _ in range(_MOST_BRACKETS):
        opening = _OPENING.search(text, at)
        if opening is None:
            return
        try:
            value, at = decoder.raw_decode(text, opening.start())
            yield value
        except (ValueError, RecursionError):
            at = opening.end()


def _strict(schema: Any) -> Any:
    """Make every field of every object required, allow no others, and remove defaults."""
    if isinstance(schema, list):
        return [_strict(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    strict = {name: _strict(part) for name, part in schema.items() if name != "default"}
    if isinstance(strict.get("properties"), Mapping):
        strict |= {
            "properties": {
                name: _strict(part) for name, part in schema["properties"].items()
            },  # also one named "default"
            "required": list(schema["properties"]),
            "additionalProperties": False,
        }
    return strict


_NO_LABEL = "label: give an instance of the model, a plain value, or its JSON (of a text, date or time in quotes)"


def checked_label(label: Any, value: object) -> Any:
    """Check a label against the answer's ``value``; return it, converted where needed.

    If the value is a model or dataclass, plain values and JSON are converted to an instance with all its fields. If it
    is a datetime, time, duration or UUID, text is converted, as each can be written in several ways.

    Raises:
        BadLabel: it is not valid, or is text that is not JSON.
    """
    if isinstance(value, datetime | time | timedelta | UUID) and isinstance(label, str):
        try:
            return TypeAdapter(type(value)).validate_python(label.strip('" '))
        except ValidationError:
            kind = type(value).__name__
            raise BadLabel(
                f"label: is not a valid {kind}; give an instance, or text (of a time as in ISO 8601)"
            ) from None
    if label is None or not _has_fields(value) or _has_fields(label):
        return label
    try:
        plain = parsed(label) if isinstance(label, str) else label
    except ValueError:
        raise BadLabel(_NO_LABEL) from None
    try:
        made = TypeAdapter(type(value)).validate_python(plain)
    except ValidationError as error:
        where = ", ".join(".".join(map(str, one["loc"])) for one in error.errors(include_input=False))
        raise BadLabel(f"label: is not a valid {type(value).__name__}; correct {where or 'it'}") from None
    return made if _reads_back(made) else plain


def _has_fields(value: object) -> bool:
    """Whether a value is an instance of a model or of a dataclass."""
    return isinstance(value, BaseModel) or (is_dataclass(value) and not isinstance(value, type))


def _same(one: Any, other: Any) -> bool:
    """Whether two values are equal; lists equal tuples, as JSON does not tell them apart."""
    if one == other:
        return True
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(part, other[name]) for name, part in one.items())
    return type(one) is type(other) and _has_fields(one) and _same(_fields_of(one), _fields_of(other))


def _fields_of(value: Any) -> dict[str, Any]:
    names = type(value).model_fields if isinstance(value, BaseModel) else [field.name for field in fields(value)]
    return {name: getattr(value, name) for name in names}


def _reads_back(instance: object) -> bool:
    """Whether an instance is the same after writing and reading; if not, answers are compared as received."""
    try:
        return _same(TypeAdapter(type(instance)).validate_json(_dumped(_of_anything(), instance)), instance)
    except Exception:  # noqa: BLE001 - the model's validators may raise anything
        return False


def label_form(label: object) -> str:
    """Return the normal form of a label: an instance of the model or type, a plain value, or its JSON.

    Raises:
        BadLabel: it cannot be written as JSON, or its JSON is not read back as the same.
    """
    if _has_fields(label) and not _reads_back(label):
        raise BadLabel(
            f"label: a {type(label).__name__} does not read back what it writes; give plain values, or JSON, with the "
            "names that it reads"
        )
    try:
        if isinstance(label, str) and not isinstance(label, Enum):  # a StrEnum's member is both
            return canonical(parsed(label))
        return _dumped(_of_anything(), label)
    except ValueError:
        raise BadLabel(_NO_LABEL) from None


@functools.cache
def _of_anything() -> TypeAdapter[Any]:
    return TypeAdapter(Any)


def _dumped(adapter: TypeAdapter[Any], value: object) -> str:
    """Write a value of a type as canonical JSON; ValueError if that is not possible."""
    plain = adapter.dump_python(value, mode="json", by_alias=True)
    return canonical(_alike(plain, adapter.dump_python(value, by_alias=True)))


def _alike(plain: Any, value: Any) -> Any:
    """Write a JSON value as all equal values are written; ``value`` is the same value in Python's types.

    Members of sets are sorted, and 12.50 becomes 12.5.
    """
    if isinstance(value, Decimal):
        return plain.rstrip("0").rstrip(".") if plain == str(value) and "." in plain and "E" not in plain else plain
    if not isinstance(value, Mapping | list | tuple | Set) or not isinstance(plain, dict | list):
        return plain
    if len(plain) != len(value):  # the model has its own serialiser
        return plain
    if isinstance(plain, dict):
        own = value.values() if isinstance(value, Mapping) else value
        return {name: _alike(part, one) for (name, part), one in zip(plain.items(), own, strict=True)}
    parts = [_alike(part, one) for part, one in zip(plain, value, strict=True)]
    return sorted(parts, key=canonical) if isinstance(value, Set) else parts


def closed_fields(schema: object) -> tuple[Path, ...]:
    """Return the closed fields of a JSON schema, including those of nested objects but not of lists.

    >>> closed_fields({"type": "object", "properties": {"sure": {"type": "boolean"}, "why": {"type": "string"}}})
    (('sure',),)

    Raises:
        ConfigError: its references unfold to too many parts.
    """
    return tuple(_closed_paths(_Unfolded(schema), schema, (), frozenset()))


class _Unfolded:
    """Follows the references of a schema in bounded time; two at each of twenty levels make a million parts."""

    def __init__(self, root: object) -> None:
        self._root = as_object(root)
        self._parts = 0

    def part(self, schema: object, followed: frozenset[str]) -> tuple[Mapping[str, Any], frozenset[str]]:
        """Return a part of the schema with its references followed; empty if one leads outside or in a circle."""
        self._parts += 1
        if self._parts > MAX_NODES:
            raise ConfigError(
                f"answer: the JSON schema's references unfold to more than {MAX_NODES} parts; simplify it"
            )
        found = as_object(schema)
        while isinstance(reference := found.get("$ref"), str):
            if reference in followed or not reference.startswith("#"):
                return {}, followed
            followed |= {reference}
            found = as_object(pointed_to(self._root, reference))
        return found, followed


def _closed_paths(unfolded: _Unfolded, schema: object, path: Path, followed: frozenset[str]) -> Iterator[Path]:
    """Yield the paths of the closed fields in a part of the schema."""
    part, followed = unfolded.part(schema, followed)
    if _closed(unfolded, part, followed):
        yield path
    elif isinstance(part.get("properties"), Mapping):
        for name, held in part["properties"].items():
            yield from _closed_paths(unfolded, held, (*path, name), followed)
    else:  # an object or null
        objects = [option for option in _options(part) if not _null(as_object(option))]
        if len(objects) == 1:
            yield from _closed_paths(unfolded, objects[0], path, followed)


def _closed(unfolded: _Unfolded, schema: object, followed: frozenset[str]) -> bool:
    """Whether a part of the schema is a closed field."""
    part, followed = unfolded.part(schema, followed)
    types = part.get("type")
    options = _options(part)
    return (
        "const" in part
        or isinstance(part.get("enum"), list)
        or (isinstance(types, str) and types in _CLOSED_TYPES)
        or (isinstance(types, list) and bool(types) and _CLOSED_TYPES.issuperset(types))
        or (bool(options) and all(_closed(unfolded, option, followed) for option in options))
    )


def _options(schema: Mapping[str, Any]) -> Sequence[object]:
    """Return the alternatives of a schema; a single part of ``allOf`` stands for the schema itself."""
    for name in ("anyOf", "oneOf"):
        if isinstance(schema.get(name), list):
            return as_list(schema[name])
    parts = as_list(schema.get("allOf"))
    return parts if len(parts) == 1 else ()


def _null(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "null" or ("const" in schema and schema["const"] is None)


@dataclass(frozen=True, slots=True, repr=False)
class Election:
    """The result of fusing candidates.

    Attributes:
        value: one candidate with its closed fields replaced by the elected values.
        candidate: index of the candidate equal to ``value``; None: no candidate has this combination.
        shares: field (names joined by dots) -> posterior probability of the candidates with the same value there.
    """

    value: object
    candidate: int | None
    shares: Mapping[str, float]


def elect(candidates: Sequence[object], posterior: Sequence[float], fields: Sequence[Path]) -> Iterator[Election]:
    """Elect the value of each closed field on its own; yield the combined answer, then the likeliest candidate.

    The second is for the case that the combination is not valid.

    Args:
        candidates: JSON values, at least one.
        posterior: their probabilities.
        fields: the closed ones.
    """
    falling = sorted(range(len(candidates)), key=lambda i: -posterior[i])
    votes = [[_vote(candidate, field) for field in fields] for candidate in candidates]
    totals: list[dict[str, float]] = [{} for _ in fields]
    for i in falling:  # so that a tie goes to the likelier candidate's value
        for total, vote in zip(totals, votes[i], strict=True):
            total[vote] = total.get(vote, 0.0) + posterior[i]
    elected = [max(total, key=total.__getitem__) for total in totals]
    base = max(falling, key=lambda i: sum(map(str.__eq__, votes[i], elected)))
    names = [".".join(field) for field in fields]

    def shares(values: Sequence[str]) -> dict[str, float]:
        return {name: total[value] for name, total, value in zip(names, totals, values, strict=True)}

    if votes[base] == elected:
        yield Election(candidates[base], base, shares(elected))
        return
    combined = copy.deepcopy(candidates[base])
    donors = [next(i for i in falling if votes[i][k] == elected[k]) for k in range(len(fields))]
    if all(_copy_field(combined, field, candidates[i]) for field, i in zip(fields, donors, strict=True)):
        yield Election(combined, None, shares(elected))
    yield Election(candidates[falling[0]], falling[0], shares(votes[falling[0]]))


def _look_up(value: object, path: Path) -> tuple[bool, object]:
    """Return whether a value has this field, and the field."""
    for name in path:
        if not isinstance(value, Mapping) or name not in value:
            return False, None
        value = value[name]
    return True, value


def _vote(value: object, path: Path) -> str:
    there, found = _look_up(value, path)
    return canonical(found) if there else _ABSENT


def _copy_field(value: object, path: Path, donor: object) -> bool:
    """Copy a field from a donor; return whether the value has a place for it."""
    there, wanted = _look_up(donor, path)
    _, holder = _look_up(value, path[:-1])
    if not path or not isinstance(holder, dict):
        return not there
    if there:
        holder[path[-1]] = copy.deepcopy(wanted)
    else:
        holder.pop(path[-1], None)
    return True
