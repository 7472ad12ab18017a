"""Reads tool calls and gives them a normal form, so that they can be candidates."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from focalroute.core.errors import ConfigError
from focalroute.core.json_values import as_list, as_object, canonical, objects_in, parsed

ToolCall = Mapping[str, Any]

#: Most tool calls in a reply: checking tens of thousands takes seconds.
MOST_CALLS = 256
#: Most characters of a reply's calls: putting seven million into normal form takes seconds.
LONGEST_CALLS = 2**20
#: Begins the normal form of tool calls, and of nothing else.
CALLS = "\0"

_ID = re.compile("[A-Za-z0-9]{9}")  # the only call ids that Mistral and its models' templates accept


@dataclass(frozen=True, slots=True, repr=False)
class ToolOffer:
    """The tools that a request offers, and whether they may or must be called.

    Attributes:
        names: names of the functions; None: unknown.
        schemas: name -> JSON schema of the arguments, for functions that have one.
        required: whether a tool has to be called.
        open: whether a tool may be called.
    """

    names: frozenset[str] | None
    schemas: Mapping[str, Mapping[str, Any]]
    required: bool
    open: bool

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> ToolOffer:
        """Read the parameters of a request."""
        listed = as_list(params.get("tools"))
        functions = [as_object(tool.get("function")) for tool in objects_in(listed)]
        named = {function["name"]: function for function in functions if isinstance(function.get("name"), str)}
        schemas = {name: f["parameters"] for name, f in named.items() if isinstance(f.get("parameters"), Mapping)}
        choice = params.get("tool_choice")
        if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
            choice = as_object(choice.get("allowed_tools")).get("mode")
        required = choice in ("required", "any") or isinstance(choice, Mapping)
        return cls(frozenset(named) or None, schemas, required, bool(listed) and choice != "none")

    def refusal(self, calls: Sequence[ToolCall]) -> str | None:
        """Return why a reply with these calls (from `parse_calls`) cannot be used; None: it can."""
        if not calls and self.required:
            return "the reply calls no tool, though one was required"
        if self.names is not None and any(call["function"]["name"] not in self.names for call in calls):
            return "the reply calls a tool that was not offered"
        for function in (call["function"] for call in calls):
            schema = self.schemas.get(function["name"])
            if schema and _checker(canonical(schema))(parsed(function["arguments"])):
                return "the reply calls a tool with arguments that its schema does not allow"
        return None


@lru_cache(maxsize=256)
def _checker(schema: str) -> Callable[[object], Sequence[object]]:
    """Return a validator for a tool's arguments; without a supported schema, or jsonschema, it accepts everything."""
    from focalroute.answers.json_schema import validator

    try:
        return validator(json.loads(schema))
    except ConfigError:
        return lambda arguments: ()


def parse_calls(calls: Iterable[object]) -> tuple[ToolCall, ...] | None:
    """Return a reply's calls in OpenAI's shape, each with a unique id; None if one of them cannot be read.

    Arguments must be a JSON object or absent. An id that some service would not accept back is replaced.
    """
    shaped: dict[str, ToolCall] = {}
    for call in map(as_object, calls):
        read = _read(call)
        if read is None:
            return None
        name, arguments = read
        call_id = call.get("id")
        if not isinstance(call_id, str) or not _ID.fullmatch(call_id) or call_id in shaped:
            call_id = secrets.token_hex(5)[:9]
        function = {"name": name, "arguments": canonical(arguments)}
        shaped[call_id] = {"id": call_id, "type": "function", "function": function}
        if signature := as_object(call.get("extra_content")):  # which Gemini expects back
            shaped[call_id] = {**shaped[call_id], "extra_content": signature}
    return tuple(shaped.values())


def calls_text(calls: Iterable[ToolCall]) -> str:
    """Write names and arguments as canonical JSON, regardless of ids and the order of parallel calls.

    Args:
        calls: each in OpenAI's shape, or as an object with "name" and "arguments".

    Raises:
        ValueError: one of them is not a tool call.

    >>> calls_text([{"name": "add", "arguments": '{"b": 2.0, "a": 1}'}])
    '[{"arguments":{"a":1,"b":2},"name":"add"}]'
    """
    forms = []
    for call in calls:
        read = _read(call)
        if read is None:
            raise ValueError("is not a tool call; give its name and its arguments")
        forms.append(canonical({"name": read[0], "arguments": read[1]}))
    return f"[{','.join(sorted(forms))}]"


def calls_form(calls: Iterable[ToolCall]) -> str:
    """Return the normal form of calls as a candidate: `calls_text`, marked so that no text has the same form."""
    return f"{CALLS}{calls_text(calls)}"


def _read(call: object) -> tuple[str, Mapping[str, Any]] | None:
    """Read the name and arguments of a call; None if it is not one."""
    call = as_object(call)
    function = as_object(call.get("function", call))
    name, arguments = function.get("name"), function.get("arguments")
    try:
        for _ in range(2):  # some servers write the JSON as a JSON string
            if isinstance(arguments, str):
                arguments = parsed(arguments.strip() or "null")
        arguments = {} if arguments is None else arguments  # a function may take none
        canonical(arguments)
    except ValueError:
        return None
    if isinstance(name, str) and name and isinstance(arguments, Mapping):
        return name, arguments
    return None
