"""Which tool a simulated model calls, with arguments that it finds in the question, or nearly those."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_QUOTED = re.compile(r"[\"“']([^\"”']+)[\"”']")
_NAMED = re.compile(r"(?<!^)(?<![.!?] )\b[A-Z][a-z]+\b")
_MOST_WRONG = 3


@dataclass(frozen=True, slots=True)
class Calling:
    """A tool to be called.

    Attributes:
        arguments: as JSON, the right ones first, then plausible wrong ones.
    """

    name: str
    arguments: tuple[str, ...]


def calling(body: Mapping[str, Any], text: str) -> Calling | None:
    """The tool that a request's question calls for; None: it offers none, or none that fits.

    The first that fits is called: all that it requires can be found in the text. One that has to be called is called
    with what there is.
    """
    choice = body.get("tool_choice")
    if choice == "none":
        return None
    wanted = choice.get("function", {}).get("name") if isinstance(choice, Mapping) else None
    for function in _functions(body.get("tools")):
        if wanted not in (None, function["name"]):
            continue
        found = _found(function, text)
        missing = set(function.get("parameters", {}).get("required", ())) - set(found)
        if not missing or wanted or choice == "required":
            right = json.dumps(found)
            wrong = [json.dumps(other) for other in _wrong(found)]
            return Calling(function["name"], (right, *dict.fromkeys(o for o in wrong if o != right)))
    return None


def _functions(tools: object) -> Iterator[Mapping[str, Any]]:
    for tool in tools if isinstance(tools, list) else []:
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            yield function


def _found(function: Mapping[str, Any], text: str) -> dict[str, Any]:
    """The arguments that the text has for a function's parameters, in order."""
    numbers: list[str] = _NUMBER.findall(text)
    words: list[str] = _QUOTED.findall(text) or _NAMED.findall(text)
    found: dict[str, Any] = {}
    for name, schema in function.get("parameters", {}).get("properties", {}).items():
        listed = [item for item in schema.get("enum", ()) if str(item).casefold() in text.casefold()]
        if listed:
            found[name] = listed[0]
        elif schema.get("type") in ("integer", "number") and numbers:
            number = float(numbers.pop(0))
            found[name] = int(number) if number.is_integer() else number
        elif schema.get("type") == "string" and "enum" not in schema and words:
            found[name] = words.pop(0)
    return found


def _wrong(right: Mapping[str, Any]) -> Sequence[dict[str, Any]]:
    """The right arguments with one of them changed."""
    changed = [
        {**right, name: value + 1 if isinstance(value, int | float) else f"{value}s"} for name, value in right.items()
    ]
    swapped = dict(zip(right, reversed(list(right.values())), strict=True))
    return [*changed, swapped][:_MOST_WRONG]
