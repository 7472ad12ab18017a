"""What a ``response_format`` wants: one of some choices, an answer of a schema, or just any JSON.

A schema that leaves only a choice, an enum of strings or an object whose one field is such an enum, makes a closed
question: its choices get probabilities, and every endpoint can be asked it. All other schemas make structured answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from focalroute.answers.structured import Structure, structure_of
from focalroute.core.errors import ConfigError
from focalroute.server.refusals import Refusal, Refused

_OF_A_CHOICE = {"type", "enum", "title", "description"}
_OF_ITS_OBJECT = {
    "type", "properties", "required", "additionalProperties", "title", "description", "$defs", "definitions", "$schema",
}  # fmt: skip
_NONE: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is wanted.

    Attributes:
        choices: those of a closed question.
        field_name: of the object that holds the choice; empty: it stands alone; None: no choice.
        meaning: what the choices are choices of, in words; empty: nothing is said of that.
        structure: of a structured answer.
        params: what the endpoints are to see to.
    """

    choices: tuple[str, ...] | None = None
    field_name: str | None = None
    meaning: str = ""
    structure: Structure | None = None
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def given(self) -> bool:
        """Whether some kind of answer is wanted."""
        return self.choices is not None or self.structure is not None


def wanted_of(response_format: Mapping[str, Any] | None, *, tools: bool) -> Wanted:
    """Read a ``response_format``.

    Args:
        tools: whether tools may be called instead, which a closed question does not allow.

    Raises:
        Refused: it is none.
    """
    if response_format is None or response_format.get("type") == "text":
        return Wanted()
    if response_format.get("type") == "json_object":
        return Wanted(params={"response_format": dict(response_format)})
    holder = response_format.get("json_schema")
    schema = holder.get("schema") if isinstance(holder, dict) else None
    if response_format.get("type") != "json_schema" or not isinstance(schema, dict):
        message = (
            'response_format: give {"type": "json_schema", "json_schema": {"name": ..., "schema": {...}}}, or the type '
            '"json_object" or "text"'
        )
        raise Refused(Refusal(400, message, param="response_format"))
    closed = None if tools else _closed(schema)
    if closed is not None:
        return closed
    try:
        return Wanted(structure=structure_of(schema))
    except ConfigError as error:
        message = str(error).replace("answer:", "response_format:", 1)
        raise Refused(Refusal(400, message, param="response_format")) from None


def _closed(schema: Mapping[str, Any]) -> Wanted | None:
    """The closed question that a schema makes; None: it makes none."""
    choices = _choices(schema)
    if choices is not None:
        return Wanted(choices, "", _meaning("", schema))
    properties, required = schema.get("properties"), schema.get("required", [])
    if not set(schema) <= _OF_ITS_OBJECT or not isinstance(properties, dict) or len(properties) != 1:
        return None
    ((name, given),) = properties.items()
    value = _referred(schema, given)
    choices = _choices(value)
    if choices is None or not name or required not in ([], [name]):
        return None
    described = value if given is value else {**value, **given}
    return Wanted(choices, name, _meaning(name, described, schema))


def _referred(schema: Mapping[str, Any], given: Any) -> Mapping[str, Any]:
    """A field's schema, or the one of the same document that it refers to."""
    if not isinstance(given, dict):
        return _NONE
    reference = given.get("$ref")
    if not isinstance(reference, str):
        return given
    _, _, path = reference.partition("#/")
    holder, _, name = path.partition("/")
    found = schema.get(holder) if holder in ("$defs", "definitions") else None
    target = found.get(name) if isinstance(found, dict) else None
    return target if isinstance(target, dict) else _NONE


def _choices(schema: Mapping[str, Any]) -> tuple[str, ...] | None:
    """At least two different strings; None: the schema takes something else, too."""
    values = schema.get("enum")
    if not set(schema) <= _OF_A_CHOICE or schema.get("type", "string") != "string" or not isinstance(values, list):
        return None
    if len(values) < 2 or not all(isinstance(value, str) and value.strip() for value in values):
        return None
    return tuple(values) if len({value.strip() for value in values}) == len(values) else None


def _meaning(name: str, *schemas: Mapping[str, Any]) -> str:
    """What the schema says the choice is of: its field's name, and the descriptions."""
    described = [schema["description"] for schema in schemas if isinstance(schema.get("description"), str)]
    said = [f'"{name}"', *described] if name else described
    return f"What is asked for is {': '.join(said)}" if said else ""
