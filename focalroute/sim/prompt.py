"""Parses a request to a simulated model: the question in the prompt, and the formats and tools that it offers."""

from __future__ import annotations

import functools
import json
import re
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from focalroute.core.json_values import as_list, as_object, objects_in
from focalroute.sim.families import Family
from focalroute.sim.prose import Brief, drafts_in, find_brief
from focalroute.sim.questions import KNOWN, FoundQuestion, alternatives, find

_LETTERED = re.compile(r"^[ \t]*\(?([A-Z])(?:\)|\.|:)[ \t]+(\S.*?)[ \t]*$", re.MULTILINE)
_LISTED = re.compile(r"\bone of (?:these|the following)\b[^:\n]{0,40}:\s*([^\n]+)", re.IGNORECASE)
_ONLY = re.compile(r"\b(?:only|just|nothing else|single)\b", re.IGNORECASE)
_TOLD = re.compile(
    r"\b(?:reply|answer|respond)\s+with\s+(?:(?:only|just|exactly)\s+)?(?:the\s+(?:single\s+)?(?:letter|word)\s+)?"
    r"""["'`]?(\w{1,40})\b""",
    re.IGNORECASE,
)
_EARLIER = re.compile(r"<(\w{0,40}answer)>(.*?)</\1>", re.DOTALL)
_PLACEHOLDERS = frozenset({"the", "a", "an", "one", "only", "just", "your", "exactly", "its", "that"})


@dataclass(frozen=True, slots=True)
class Prompt:
    """A parsed prompt.

    Attributes:
        key: the key of the model's draws: the question's own words, or the whole text if no question was found.
        found: the question, if it is of a known family.
        letters: "A", "B", ... of the lettered choices, or the words of a list as in "one of these: yes, no".
        texts: the text of each lettered choice.
        terse: whether the prompt asks for the answer only.
        reply_with: the word to reply with, as in "Reply with OK".
        earlier: another model's answer in the prompt, between tags such as <student_answer>; None: there is none.
        brief: the request for prose, if it is one.
        drafts: other models' replies to the request that the prompt shows.
    """

    key: str
    found: FoundQuestion | None
    letters: tuple[str, ...]
    texts: tuple[str, ...]
    terse: bool
    reply_with: str | None
    earlier: str | None = None
    brief: Brief | None = None
    drafts: tuple[str, ...] = ()


def last_user_text(messages: Any) -> str:
    """The text of the last user message, text parts joined; empty if there is none."""
    for message in reversed(objects_in(messages)):
        if message.get("role") == "user":
            content = message.get("content")
            if isinstance(content, str):
                return content
            return "\n".join(str(part.get("text", "")) for part in objects_in(content))
    return ""


@functools.lru_cache(maxsize=1024)
def read_prompt(text: str, families: tuple[Family, ...] = KNOWN) -> Prompt:
    """Parse a prompt, looking for questions of these families.

    >>> read_prompt("What is 2 + 3?\\nA) 6\\nB) 5\\nReply with the letter only.").letters
    ('A', 'B')
    """
    shown = _EARLIER.search(text)
    if shown:
        text = text[: shown.start()] + text[shown.end() :]
    found, brief, reply_with, after, key = find(text, families), None, None, 0, text
    drafts: tuple[str, ...] = ()
    if found:
        after, key = found.end, found.question
    else:
        reply_with = next((m[1] for m in _TOLD.finditer(text) if m[1] not in _PLACEHOLDERS), None)
        if (brief := find_brief(text)) is not None:
            key, drafts = brief.request, drafts_in(text)
    lettered = _lettered(text, after) or _lettered(text, 0) or _listed(text, after)
    return Prompt(
        key=key,
        found=found,
        letters=tuple(letter for letter, _ in lettered),
        texts=tuple(choice for _, choice in lettered),
        terse=_ONLY.search(text) is not None,
        reply_with=reply_with,
        earlier=shown and shown[2].strip(),
        brief=brief,
        drafts=drafts,
    )


def read_result(result: str) -> Prompt:
    """Make a prompt that asks to repeat a tool's result."""
    return Prompt(result, None, (), (), terse=True, reply_with=f"The answer is {result}.")


def same(one: str, other: str) -> bool:
    """Whether two choices are the same answer: case, spacing and a closing full stop do not matter."""
    return one.strip().rstrip(".").casefold() == other.strip().rstrip(".").casefold()


def _lettered(text: str, start: int) -> list[tuple[str, str]]:
    """The first run of lines lettered A, B, C, ... after ``start``; empty if there are not at least two."""
    run: list[tuple[str, str]] = []
    for match in _LETTERED.finditer(text, start):
        if match[1] == string.ascii_uppercase[len(run) % 26]:
            run.append((match[1], match[2]))
        elif len(run) > 1:
            break
        else:
            run = [(match[1], match[2])] if match[1] == "A" else []
    return run if len(run) > 1 else []


def _listed(text: str, start: int) -> list[tuple[str, str]]:
    match = _LISTED.search(text, start)
    words = match[1].split(",") if match else ()
    return [(word, word) for given in words if (word := given.strip(" .\"'`"))]


_ALTERNATIVES = 4  # possible answers if the schema lists none
_DEEPEST = 4  # level of optional parts, as a schema may contain itself
#: A text in each format that schemas of Python's types name.
_FORMATS = {
    "date": "2024-03-01",
    "date-time": "2024-03-01T12:00:00Z",
    "time": "12:00:00Z",
    "duration": "PT1H",
    "uuid": "12345678-1234-5678-1234-567812345678",
    "email": "somebody@example.com",
    "uri": "https://example.com/",
}
_MOST_REFERENCES = 100  # followed from one part, as they may lead round in a circle

#: (the value chosen, the text that is sent for it), in the order given.
Allowed = list[tuple[str, str]]


def allowed_replies(body: Mapping[str, Any], forms: frozenset[str], prompt: Prompt) -> Allowed | None:
    """Return the constraint on the reply; None if the request has none, or one of an unsupported form.

    Args:
        forms: the forms that the service supports, of "choice", "regex" and "json_schema".

    Raises:
        ValueError: the constraint is malformed or admits no known reply.
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
    outputs, wanted = as_object(body.get("structured_outputs")), as_object(body.get("response_format"))
    names = {"choice": "choice", "regex": "regex", "json": "json_schema"}
    yield from ((names[key], value) for key, value in outputs.items() if key in names and value is not None)
    if wanted.get("type") == "regex":
        yield "regex", wanted.get("regex") or wanted.get("pattern")
    if wanted.get("type") == "json_schema":
        holder = wanted.get("json_schema")
        yield "json_schema", as_object(holder).get("schema", holder)
    if wanted.get("type") == "json_object":
        yield "json_schema", {"properties": {"answer": {"type": "string"}}}


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
    candidates = dict.fromkeys((*listed, *prompt.letters, *prompt.texts))
    return [(text, text) for text in candidates if text and pattern.fullmatch(text)]


def _schema(value: Any, prompt: Prompt) -> Allowed:
    if not isinstance(value, Mapping):
        raise ValueError("json_schema must hold a schema")
    known = alternatives(prompt.found, _ALTERNATIVES) if prompt.found else ("",)
    listed = _enum(value, value) or list(known)
    return [(str(item), json.dumps(_filled(value, value, item))) for item in listed]


def told_schema(text: str, prompt: Prompt) -> Allowed | None:
    """Return the constraint on the reply if the prompt ends with a JSON schema; replies are in code fences."""
    before, marker, schema = text.rpartition("JSON schema:")
    try:
        value = json.loads(schema) if marker else None
        return [(item, f"```json\n{spoken}\n```") for item, spoken in _schema(value, prompt)] if before else None
    except ValueError:
        return None


def _resolved(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema that a reference points to; of several options, the first that is not null."""
    for _ in range(_MOST_REFERENCES):
        given = as_object(schema)
        if options := given.get("anyOf", given.get("oneOf")):
            schema = next((part for part in options if part.get("type") != "null"), {})
        elif "$ref" in given:
            schema = root.get("$defs", {}).get(str(given["$ref"]).rpartition("/")[2], {})
        else:
            return given
    return {}


def _enum(schema: Any, root: Mapping[str, Any], depth: int = 0) -> list[Any]:
    """The values of the first enumeration in a schema, at the top or among its properties."""
    schema = _resolved(schema, root)
    if isinstance(schema.get("enum"), list):
        return list(schema["enum"])
    parts = as_object(schema.get("properties")).values() if depth < _DEEPEST else ()
    return next((values for part in parts if (values := _enum(part, root, depth + 1))), [])


def _filled(schema: Any, root: Mapping[str, Any], value: Any, depth: int = 0) -> Any:
    """An instance of a schema, with ``value`` wherever it is allowed."""
    if depth > _DEEPEST and {"type": "null"} in as_object(schema).get("anyOf", ()):
        return None
    schema = _resolved(schema, root)
    if "const" in schema:
        return schema["const"]
    if listed := as_list(schema.get("enum")):
        return value if value in listed else listed[0]
    if isinstance(schema.get("properties"), Mapping):
        kept = schema["properties"].keys() if depth < _DEEPEST else schema.get("required", ())
        return {key: _filled(part, root, value, depth + 1) for key, part in schema["properties"].items() if key in kept}
    if schema.get("type") in ("number", "integer"):
        found = re.search(r"-?\d+", str(value))
        number = int(found[0]) if found else 0
        number = max(number, schema.get("minimum", number), schema.get("exclusiveMinimum", number - 1) + 1)
        return min(number, schema.get("maximum", number))
    if schema.get("type") == "string":
        return _FORMATS.get(schema.get("format", "")) or ("ok" if _enum(root, root) else str(value) or "ok")
    if schema.get("type") == "array" and depth < _DEEPEST:
        first = as_list(schema.get("prefixItems"))
        parts = [*first, *[schema.get("items")] * (schema.get("minItems", 0) - len(first))]
        return [_filled(part, root, value, depth + 1) for part in parts]
    return {"boolean": True, "array": [], "object": {}}.get(str(schema.get("type")))


_READERS = {"choice": _choice, "regex": _regex, "json_schema": _schema}


_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_QUOTED = re.compile(r"[\"“']([^\"”']+)[\"”']")
_NAMED = re.compile(r"(?<!^)(?<![.!?] )\b[A-Z][a-z]+\b")
_MOST_WRONG = 3


@dataclass(frozen=True, slots=True)
class Calling:
    """A tool to be called.

    Attributes:
        arguments: possible arguments as JSON, the right ones first, then plausible wrong ones.
    """

    name: str
    arguments: tuple[str, ...]


def calling(body: Mapping[str, Any], text: str) -> Calling | None:
    """The tool that a request's question calls for; None: there is none, or none that fits.

    The first tool whose required arguments can all be found in the text is called. A tool that must be called gets
    placeholder values for missing arguments.
    """
    choice = body.get("tool_choice")
    if choice == "none":
        return None
    wanted = as_object(as_object(choice).get("function")).get("name")
    for function in _functions(body.get("tools")):
        if wanted not in (None, function["name"]):
            continue
        parameters = as_object(function.get("parameters"))
        properties = as_object(parameters.get("properties"))
        found = _found(properties, text)
        required = [name for name in as_list(parameters.get("required")) if isinstance(name, str)]
        missing = [name for name in required if name not in found]
        if not missing or wanted or choice == "required":
            found |= {name: _filled(properties.get(name), parameters, "") for name in missing}
            right = json.dumps(found)
            wrong = [json.dumps(other) for other in _wrong(found)]
            return Calling(function["name"], (right, *dict.fromkeys(o for o in wrong if o != right)))
    return None


def _functions(tools: object) -> Iterator[Mapping[str, Any]]:
    for tool in objects_in(tools):
        function = as_object(tool.get("function"))
        if isinstance(function.get("name"), str):
            yield function


def _found(properties: Mapping[str, Any], text: str) -> dict[str, Any]:
    """The arguments found in the text for a function's parameters, in order."""
    numbers: list[str] = _NUMBER.findall(text)
    words: list[str] = _QUOTED.findall(text) or _NAMED.findall(text)
    found: dict[str, Any] = {}
    for name, described in properties.items():
        schema = as_object(described)
        listed = [item for item in as_list(schema.get("enum")) if str(item).casefold() in text.casefold()]
        if listed:
            found[name] = listed[0]
        elif schema.get("type") in ("integer", "number") and numbers:
            number = float(numbers.pop(0))
            found[name] = int(number) if number.is_integer() else number
        elif schema.get("type") == "string" and "enum" not in schema and words:
            found[name] = words.pop(0)
    return found


def _wrong(right: Mapping[str, Any]) -> Sequence[dict[str, Any]]:
    """The right arguments with one changed, or in reverse order."""
    changed: list[dict[str, Any]] = []
    for name, value in right.items():
        other = value + 1 if isinstance(value, int | float) else f"{value}s"
        changed.append({**right, name: other})
    swapped = dict(zip(right, reversed(list(right.values())), strict=True))
    return [*changed, swapped][:_MOST_WRONG]
