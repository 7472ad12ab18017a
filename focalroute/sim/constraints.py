"""The only replies that a request admits, read from its structured-output fields."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from focalroute.sim.prompt import Prompt
from focalroute.sim.questions import alternatives

_ALTERNATIVES = 4  # answers a model wavers between where the schema lists none

#: (the value chosen, the text that is sent for it), in the order given.
Allowed = list[tuple[str, str]]


def allowed_replies(body: Mapping[str, Any], forms: frozenset[str], prompt: Prompt) -> Allowed | None:
    """What the reply is held to; None where the request asks for nothing, or for a form the service does not know.

    Args:
        forms: those the service knows, of "choice", "regex" and "json_schema".

    Raises:
        ValueError: the constraint is malformed or admits nothing that could be said.
    """
    for form, value in _asked(body):
        if form in forms:
            allowed = _READERS[form](value, prompt)
            if not allowed:
                raise ValueError("the constraint admits no reply")
            return allowed
    return None


def _asked(body: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """Each constraint of the request, by form. vLLM's old ``guided_*`` fields are ignored, as vLLM itself does."""
    outputs = body.get("structured_outputs")
    if isinstance(outputs, Mapping):
        names = {"choice": "choice", "regex": "regex", "json": "json_schema"}
        yield from ((names[key], value) for key, value in outputs.items() if key in names and value is not None)
    wanted = body.get("response_format")
    if isinstance(wanted, Mapping):
        if wanted.get("type") == "regex":
            yield "regex", wanted.get("regex") or wanted.get("pattern")
        if wanted.get("type") == "json_schema":
            holder = wanted.get("json_schema")
            yield "json_schema", holder.get("schema", holder) if isinstance(holder, Mapping) else None


def _choice(value: Any, _: Prompt) -> Allowed:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError("choice must be a list of strings")
    return [(item, item) for item in value]


def _regex(value: Any, prompt: Prompt) -> Allowed:
    if not isinstance(value, str):
        raise ValueError("the regular expression must be a string")
    try:
        pattern = re.compile(value)
    except re.error as error:
        raise ValueError(f"the regular expression is invalid: {error}") from None
    inner = value.removeprefix("^").removesuffix("$")
    inner = inner[1:-1].removeprefix("?:") if inner.startswith("(") and inner.endswith(")") else inner
    listed = [re.sub(r"\\(.)", r"\1", item) for item in re.split(r"(?<!\\)\|", inner)]
    said = dict.fromkeys((*listed, *prompt.letters, *prompt.texts))
    return [(text, text) for text in said if text and pattern.fullmatch(text)]


def _schema(value: Any, prompt: Prompt) -> Allowed:
    if not isinstance(value, Mapping):
        raise ValueError("json_schema must hold a schema")
    known = alternatives(prompt.found, _ALTERNATIVES) if prompt.found else ("",)
    listed = _enum(value, value) or list(known)
    return [(str(item), json.dumps(_filled(value, value, item))) for item in listed]


def told_schema(text: str, prompt: Prompt) -> Allowed | None:
    """What the reply is held to where the prompt itself ends with a JSON schema; as models do, within code fences."""
    before, marker, schema = text.rpartition("JSON schema:")
    try:
        value = json.loads(schema) if marker else None
        return [(item, f"```json\n{spoken}\n```") for item, spoken in _schema(value, prompt)] if before else None
    except ValueError:
        return None


def _resolved(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema that a reference stands for; of several options, the first that is not null."""
    while isinstance(schema, Mapping) and ("$ref" in schema or "anyOf" in schema):
        if "anyOf" in schema:
            schema = next((part for part in schema["anyOf"] if part.get("type") != "null"), {})
        else:
            schema = root.get("$defs", {}).get(str(schema["$ref"]).rpartition("/")[2], {})
    return schema if isinstance(schema, Mapping) else {}


def _enum(schema: Any, root: Mapping[str, Any]) -> list[Any]:
    """The values of the first enumeration in a schema, at the top or among its properties."""
    schema = _resolved(schema, root)
    if isinstance(schema.get("enum"), list):
        return list(schema["enum"])
    inner = schema.get("properties")
    found = (_enum(part, root) for part in inner.values()) if isinstance(inner, Mapping) else ()
    return next((values for values in found if values), [])


def _filled(schema: Any, root: Mapping[str, Any], value: Any) -> Any:
    """An instance of a schema that says ``value`` wherever it may."""
    schema = _resolved(schema, root)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return value if value in schema["enum"] else schema["enum"][0]
    if isinstance(schema.get("properties"), Mapping):
        return {key: _filled(part, root, value) for key, part in schema["properties"].items()}
    if schema.get("type") in ("number", "integer"):
        number = re.search(r"-?\d+", str(value))
        return int(number[0]) if number else 0
    if schema.get("type") == "string":
        return "ok" if _enum(root, root) else str(value) or "ok"
    return {"boolean": True, "array": []}.get(str(schema.get("type")))


_READERS = {"choice": _choice, "regex": _regex, "json_schema": _schema}
