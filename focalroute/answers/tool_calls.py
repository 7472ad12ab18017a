"""When two replies call the same tools: the normal form of tool calls, which makes them candidates like any answer."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from focalroute.answers.canonical_json import canonical, parsed

ToolCall = Mapping[str, Any]

#: Begins the normal form of tool calls, and of nothing else.
CALLS = "\0"


@dataclass(frozen=True, slots=True, repr=False)
class Offer:
    """The tools that a request offers.

    Attributes:
        names: of its functions; None: unknown.
        required: whether one of them has to be called.
    """

    names: frozenset[str] | None
    required: bool

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> Offer:
        """What the parameters of a request offer."""
        tools = params.get("tools")
        listed = tools if isinstance(tools, list | tuple) else ()
        functions = [tool.get("function") for tool in listed if isinstance(tool, Mapping)]
        names = [function.get("name") for function in functions if isinstance(function, Mapping)]
        choice = params.get("tool_choice")
        return cls(
            frozenset(name for name in names if isinstance(name, str)) or None,
            choice in ("required", "any") or isinstance(choice, Mapping),
        )

    def refusal(self, calls: Sequence[ToolCall]) -> str | None:
        """Why a reply with these calls (as `called` gives them) cannot be used; None: it can."""
        if not calls and self.required:
            return "the reply calls no tool, though one was required"
        if self.names is not None and any(call["function"]["name"] not in self.names for call in calls):
            return "the reply calls a tool that was not offered"
        return None


def called(calls: Iterable[object]) -> tuple[ToolCall, ...] | None:
    """The calls of a reply in OpenAI's shape, each with an id of its own; None where one of them cannot be read.

    Arguments must be a JSON object, or nothing at all.
    """
    shaped: dict[str, ToolCall] = {}
    for call in calls:
        read = _read(call)
        if read is None or not isinstance(call, Mapping):
            return None
        given, (name, arguments) = call.get("id"), read
        unique = given if isinstance(given, str) and given and given not in shaped else f"call_{secrets.token_hex(8)}"
        shaped[unique] = {
            "id": unique,
            "type": "function",
            "function": {"name": name, "arguments": canonical(arguments)},
        }
    return tuple(shaped.values())


def calls_text(calls: Iterable[ToolCall]) -> str:
    """Names and arguments as JSON, in one form: of parallel calls, the order does not matter, nor do ids.

    Args:
        calls: each in OpenAI's shape, or as an object with "name" and "arguments".

    Raises:
        ValueError: one of them is no tool call.

    >>> calls_text([{"name": "add", "arguments": '{"b": 2.0, "a": 1}'}])
    '[{"arguments":{"a":1,"b":2},"name":"add"}]'
    """
    forms = []
    for call in calls:
        read = _read(call)
        if read is None:
            raise ValueError("is no tool call; give its name and its arguments")
        forms.append(canonical({"name": read[0], "arguments": read[1]}))
    return f"[{','.join(sorted(forms))}]"


def calls_form(calls: Iterable[ToolCall]) -> str:
    """The normal form of calls as a candidate, which no text has; as `calls_text` otherwise."""
    return f"{CALLS}{calls_text(calls)}"


def _read(call: object) -> tuple[str, Mapping[str, Any]] | None:
    """Name and arguments of a call; None if it is none."""
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return None
    name, arguments = function.get("name"), function.get("arguments") or {}  # none: of a function that takes none
    try:
        value = parsed(arguments) if isinstance(arguments, str) else arguments
        canonical(value)
    except ValueError:
        return None
    return (name, value) if isinstance(name, str) and name and isinstance(value, Mapping) else None
