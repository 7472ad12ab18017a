"""The fields of a JSON schema that take one of a few values, and the election of their values among candidates.

A structured answer is fused field by field where that makes sense: where a field is closed (an enumeration, a constant,
a boolean, or one of these or null) the posterior of the candidates adds up by its values. All else, such as free text,
numbers and lists, is taken whole from one candidate.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from focalroute.answers.canonical_json import canonical

#: The names that lead from the whole to a field; empty: the whole.
Path = tuple[str, ...]

_ABSENT = "absent"  # no JSON text: a field may be missing, which is a value of its own
_CLOSED_TYPES = {"boolean", "null"}


def closed_fields(schema: object) -> tuple[Path, ...]:
    """The closed fields of a JSON schema, those of nested objects included; within lists there are none.

    >>> closed_fields({"type": "object", "properties": {"sure": {"type": "boolean"}, "why": {"type": "string"}}})
    (('sure',),)
    """
    return tuple(_walk(schema, schema, (), frozenset()))


def _walk(schema: object, root: object, path: Path, followed: frozenset[str]) -> Iterator[Path]:
    schema, followed = _resolved(schema, root, followed)
    if not isinstance(schema, Mapping):
        return
    if _closed(schema, root, followed):
        yield path
    elif isinstance(schema.get("properties"), Mapping):
        for name, part in schema["properties"].items():
            yield from _walk(part, root, (*path, name), followed)
    else:  # an object or null
        objects = [option for option in _options(schema) if not (isinstance(option, Mapping) and _null(option))]
        if len(objects) == 1:
            yield from _walk(objects[0], root, path, followed)


def _resolved(schema: object, root: object, followed: frozenset[str]) -> tuple[object, frozenset[str]]:
    """What a reference within the schema stands for; None for one that leads outside, or round in a circle."""
    while isinstance(schema, Mapping) and isinstance(schema.get("$ref"), str):
        reference = schema["$ref"]
        if reference in followed or not reference.startswith("#"):
            return None, followed
        followed |= {reference}
        schema = root
        for name in reference[1:].split("/")[1:]:
            schema = schema.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(schema, Mapping) else None
    return schema, followed


def _closed(schema: object, root: object, followed: frozenset[str]) -> bool:
    schema, followed = _resolved(schema, root, followed)
    if not isinstance(schema, Mapping):
        return False
    types = schema.get("type")
    options = _options(schema)
    return (
        "const" in schema
        or isinstance(schema.get("enum"), list)
        or (isinstance(types, str) and types in _CLOSED_TYPES)
        or (isinstance(types, list) and bool(types) and _CLOSED_TYPES.issuperset(types))
        or (bool(options) and all(_closed(option, root, followed) for option in options))
    )


def _options(schema: Mapping[str, Any]) -> Sequence[object]:
    """What it may be one of; a lone part of ``allOf`` is no more than another way to write it."""
    for name in ("anyOf", "oneOf"):
        if isinstance(schema.get(name), list):
            listed: list[object] = schema[name]
            return listed
    parts = schema.get("allOf")
    return parts if isinstance(parts, list) and len(parts) == 1 else ()


def _null(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "null" or ("const" in schema and schema["const"] is None)


@dataclass(frozen=True, slots=True, repr=False)
class Election:
    """What the candidates say together.

    Attributes:
        value: the elected values, and all else from one candidate.
        candidate: the index of that one, if it is given whole; None: nobody gave this combination.
        shares: field, its names joined by dots -> the posterior mass of the candidates that agree with it there.
    """

    value: object
    candidate: int | None
    shares: Mapping[str, float]


def elect(candidates: Sequence[object], masses: Sequence[float], fields: Sequence[Path]) -> Iterator[Election]:
    """First what the closed fields elect, each by itself; then, in case that is not valid, the likeliest candidate.

    Args:
        candidates: JSON values, at least one.
        masses: their posterior.
        fields: the closed ones.
    """
    falling = sorted(range(len(candidates)), key=lambda i: -masses[i])
    votes = [[_at(candidate, field) for field in fields] for candidate in candidates]
    totals: list[dict[str, float]] = [{} for _ in fields]
    for i in falling:  # the first of equals is what the likelier candidate says
        for total, vote in zip(totals, votes[i], strict=True):
            total[vote] = total.get(vote, 0.0) + masses[i]
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
    if all(_put(combined, field, candidates[i]) for field, i in zip(fields, donors, strict=True)):
        yield Election(combined, None, shares(elected))
    yield Election(candidates[falling[0]], falling[0], shares(votes[falling[0]]))


def _found(value: object, path: Path) -> tuple[bool, object]:
    for name in path:
        if not isinstance(value, Mapping) or name not in value:
            return False, None
        value = value[name]
    return True, value


def _at(value: object, path: Path) -> str:
    there, found = _found(value, path)
    return canonical(found) if there else _ABSENT


def _put(value: object, path: Path, donor: object) -> bool:
    """Give a field the value that it has in a donor; whether there is a place for it."""
    there, wanted = _found(donor, path)
    holder = _found(value, path[:-1])[1]
    if not path or not isinstance(holder, dict):
        return not there
    if there:
        holder[path[-1]] = copy.deepcopy(wanted)
    else:
        holder.pop(path[-1], None)
    return True
