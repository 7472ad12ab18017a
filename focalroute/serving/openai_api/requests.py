"""Reads requests and checks them field by field: chat completions, as arguments of ``ask``, and feedback."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from focalroute.answers.json_schema import pointed_to
from focalroute.answers.structured import Structure, structure_of
from focalroute.core.config import MOST_CHOICES
from focalroute.core.errors import ConfigError
from focalroute.core.json_values import as_object
from focalroute.core.spelling import advice, did_you_mean, first_problem
from focalroute.endpoints.elicit import append_text
from focalroute.serving.openai_api.refusals import Refused

#: The one model that is served.
MODEL = "focalroute"

_SHORTEST_S = 0.1  # shortest deadline of a caller; a shorter one would pay for calls and bring no answer
_LONGEST_S = 600.0
_MOST_MESSAGES = 10_000
MOST_VALUES = 100_000  # in a body's JSON; other requests wait while they are parsed
_DEEPEST = 100  # nested values
_LONGEST_NAME = 100  # of a field, as an error shows it
_LONGEST_INTEGER = 400  # characters; parsing takes time quadratic in them

#: Passed on to every endpoint. Other parameters might cost more than a budget reserves, or concern the service alone.
_PASSED_ON = (
    "temperature", "top_p", "top_k", "min_p", "max_tokens", "max_completion_tokens", "stop", "seed",
    "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "reasoning_effort", "verbosity",
    "tools", "tool_choice", "parallel_tool_calls",
)  # fmt: skip

_NO_LOGPROBS = "leave it out: a fused answer has no tokens; focalroute.probabilities has those of the choices"
#: What to do about fields of OpenAI's API that are not supported.
_INSTEAD = {
    "n": "give 1, or leave it out: one answer is fused from several replies",
    "logprobs": _NO_LOGPROBS,
    "top_logprobs": _NO_LOGPROBS,
    "functions": "give tools instead",
    "function_call": "give tool_choice instead",
}

_STRICT = ConfigDict(strict=True, extra="forbid", hide_input_in_errors=True)

_B = TypeVar("_B", bound=BaseModel)


def _content(content: Any) -> Any:
    if content is None or isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(p, dict) and isinstance(p.get("type"), str) for p in content):
        return content
    raise ValueError('give text, or a list of parts such as {"type": "text", "text": "..."}')


def _stop(stop: Any) -> Any:
    if isinstance(stop, str) or (isinstance(stop, list) and all(isinstance(one, str) for one in stop)):
        return stop
    raise ValueError("give text, or a list of texts")


def _named_or_object(value: Any) -> Any:
    if isinstance(value, str | dict):
        return value
    raise ValueError("give a name or an object")


def _reward(value: Any) -> Any:
    if isinstance(value, bool | int | float):
        return value
    raise ValueError("give a number from -1 to 1, or true or false")


class _Message(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", hide_input_in_errors=True)
    role: Annotated[str, Field(min_length=1, max_length=64)]
    content: Annotated[Any, AfterValidator(_content)] = None


class _StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", hide_input_in_errors=True)
    include_usage: bool | None = None


class _Extras(BaseModel):
    """The object "focalroute" of a request: the arguments of ``ask`` that OpenAI's API has no name for."""

    model_config = _STRICT
    choices: list[str] | None = None
    answer: Annotated[Any, AfterValidator(_named_or_object)] | None = None
    samples: int | None = None
    combine: Literal["choose", "pick", "synthesise"] = "choose"
    task: Annotated[str, Field(max_length=200)] | None = None
    tags: list[str] | None = None
    max_usd: Any = None
    deadline_s: Annotated[float, Field(ge=_SHORTEST_S, le=_LONGEST_S)] | None = None
    receipt: bool = False


class _Chat(BaseModel):
    model_config = _STRICT
    model: str
    messages: Annotated[list[_Message], Field(min_length=1, max_length=_MOST_MESSAGES)]
    focalroute: _Extras | None = None
    response_format: dict[str, Any] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: int | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    stop: Annotated[Any, AfterValidator(_stop)] | None = None
    seed: int | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Annotated[Any, AfterValidator(_named_or_object)] | None = None
    parallel_tool_calls: bool | None = None
    # One answer is given, without log-probabilities. The other fields here affect no answer, and are not passed on.
    n: Literal[1] | None = None
    logprobs: Literal[False] | None = None
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: Literal["auto", "default"] | None = None
    modalities: list[Literal["text"]] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None


class FeedbackRequest(BaseModel):
    """Feedback for an answer, or for the chat completion with it."""

    model_config = _STRICT
    id: Annotated[str, Field(min_length=1, max_length=200)]
    reward: Annotated[Any, AfterValidator(_reward)] | None = None
    label: Any = None
    label_index: int | None = None
    preferred: Any = None
    score: float | None = None
    source: Annotated[str, Field(min_length=1, max_length=200)] = "user"

    @property
    def said(self) -> dict[str, Any]:
        """The arguments of ``feedback`` but the id."""
        return self.model_dump(exclude={"id"})


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request for a chat completion.

    Attributes:
        query: the messages.
        options: the other arguments of ``ask`` and ``stream``.
        field_name: name of the only field of the reply, a JSON object whose value there is the choice; empty: the reply
            is the choice as a JSON string; None: the reply is the answer's text.
        include_usage: whether a stream is to end with the usage.
        receipt: whether the reply is to have the receipt.
    """

    query: Sequence[Mapping[str, Any]]
    options: Mapping[str, Any]
    field_name: str | None
    stream: bool
    include_usage: bool
    receipt: bool

    def content_of(self, text: str) -> str:
        """Return an answer's text as the content of the reply."""
        if self.field_name is None:
            return text
        if not self.field_name:
            return json.dumps(text)
        return json.dumps({self.field_name: text})


def parse_json(body: bytes) -> object:
    """Parse the JSON of a body.

    Raises:
        Refused: it is not JSON, or has too many or too deeply nested values.
    """
    if not body.strip():
        raise Refused(400, "the body is empty; send a JSON object", code="invalid_json")
    openings = body.count(b"[") + body.count(b"{")
    if openings + body.count(b",") > MOST_VALUES:  # every value but the first follows one of them
        message = f"the body has more than {MOST_VALUES} values (commas and brackets, in texts, too); send less"
        raise Refused(400, message, code="too_many_values")
    try:
        value = json.loads(body, parse_int=_integer, parse_float=_float, parse_constant=_refuse_constant)
        too_deep = openings > _DEEPEST and _deeper_than(_DEEPEST, value)
    except RecursionError:
        too_deep = True
    except UnicodeDecodeError:
        raise Refused(400, "the body is not UTF-8; encode it as UTF-8", code="invalid_json") from None
    except ValueError as error:
        where = f"line {error.lineno}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise Refused(400, f"the body is not valid JSON: {where}", code="invalid_json") from None
    if too_deep:
        message = f"the body's values are nested more than {_DEEPEST} deep; flatten them"
        raise Refused(400, message, code="nested_too_deep")
    return value


def _deeper_than(depth: int, value: object) -> bool:
    """Whether lists and objects are nested deeper than this, checked level by level."""
    level = [value]
    while level and depth >= 0:
        below: list[object] = []
        for one in level:
            if isinstance(one, dict):
                below.extend(one.values())
            elif isinstance(one, list):
                below.extend(one)
        level = [one for one in below if isinstance(one, dict | list)]
        depth -= 1
    return bool(level)


def _integer(digits: str) -> int:
    if len(digits) > _LONGEST_INTEGER:
        raise ValueError(f"an integer has more than {_LONGEST_INTEGER} digits")
    return int(digits)


def _float(digits: str) -> float:
    """Parse a float in a Python function, as only these let other threads run in between."""
    return float(digits)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def read_chat(body: object, tags: Sequence[str] | None) -> ChatRequest:
    """Check a request for a chat completion.

    Args:
        tags: the caller's; None: the caller is not known, and the request may give tags.

    Raises:
        Refused: a field is wrong.
    """
    chat, raw = _checked(_Chat, body)
    if chat.model != MODEL:
        message = f"model: there is only {MODEL!r} here; give that"
        raise Refused(404, message, param="model", code="model_not_found")
    extras = chat.focalroute or _Extras()
    if extras.tags is not None and tags is not None:
        message = "focalroute.tags: are set by your key; leave them out"
        raise Refused(400, message, param="focalroute.tags")
    messages: Sequence[Mapping[str, Any]] = [_without_null(message) for message in raw["messages"]]
    for i, one in enumerate(chat.messages):
        if one.role == "user" and not one.content:
            param = f"messages.{i}.content"
            raise Refused(400, f"{param}: is empty; give text or parts", param=param)
    params = {name: raw[name] for name in _PASSED_ON if raw.get(name) is not None}
    answer_format = read_format(chat.response_format, tools=bool(params.get("tools")))
    if answer_format.specified and (extras.choices is not None or extras.answer is not None):
        message = "response_format: leave it out, or leave out focalroute.choices and focalroute.answer"
        raise Refused(400, message, param="response_format")
    options: dict[str, Any] = {
        "choices": extras.choices if answer_format.choices is None else answer_format.choices,
        "answer": extras.answer if answer_format.structure is None else answer_format.structure,
        "samples": extras.samples,
        "combine": extras.combine,
        "task": extras.task,
        "tags": tuple(extras.tags or () if tags is None else tags),
        "max_usd": extras.max_usd,
        "deadline_s": extras.deadline_s,
        "params": {**params, **answer_format.params},
    }
    return ChatRequest(
        query=append_text(messages, answer_format.meaning) if answer_format.meaning else messages,
        options=options,
        field_name=answer_format.field_name,
        stream=bool(chat.stream),
        include_usage=chat.stream_options is not None and bool(chat.stream_options.include_usage),
        receipt=extras.receipt,
    )


def _without_null(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message without null fields, which clients send back from replies and some services refuse."""
    return {name: value for name, value in message.items() if value is not None or name == "content"}


def read_feedback(body: object) -> FeedbackRequest:
    """Check a request with feedback.

    Raises:
        Refused: a field is wrong.
    """
    feedback, _ = _checked(FeedbackRequest, body)
    return feedback


def _checked(model: type[_B], body: object) -> tuple[_B, Mapping[str, Any]]:
    """Return the body as a model and as received, without the unknown null fields that some clients send."""
    if not isinstance(body, dict):
        raise Refused(400, "the body must be a JSON object")
    body = {name: value for name, value in body.items() if value is not None or name in model.model_fields}
    unknown = next((name for name in body if name not in model.model_fields), None)
    if unknown is not None:  # named here, as pydantic would describe up to 100,000 of them
        unknown = unknown[:_LONGEST_NAME]
        why = _INSTEAD.get(unknown) or _unknown(unknown, model)
        raise Refused(400, f"{unknown}: {why}", param=unknown)
    try:
        return model.model_validate(body), body
    except ValidationError as error:
        place, problem = first_problem(error)
        param = place[:_LONGEST_NAME]
        why = _explained(problem["type"], advice(problem), param)
        raise Refused(400, f"{param}: {why}", param=param) from None


def _explained(kind: str, message: str, param: str) -> str:
    """Return the advice for a field that pydantic refused."""
    if param in _INSTEAD:
        return _INSTEAD[param]
    if kind == "extra_forbidden":
        return _unknown(param.rpartition(".")[2], _Extras)
    if kind == "too_short":
        return "is empty"
    if kind == "too_long" and param == "messages":
        return f"at most {_MOST_MESSAGES}"
    return message


def _unknown(name: str, model: type[BaseModel]) -> str:
    """Advise on a field that a model does not have; OpenAI's API has too many to list."""
    if model is not _Chat:
        return f"unknown field; {did_you_mean(name, model.model_fields)}"
    if name in _Extras.model_fields:
        return 'put it into the object "focalroute"'
    return "unknown field; leave it out"


# -- the format of the answer ------------------------------------------------------------------------------------------

_OF_A_CHOICE = {"type", "enum", "title", "description"}
_OF_ITS_OBJECT = {
    "type", "properties", "required", "additionalProperties", "title", "description", "$defs", "definitions", "$schema",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """The format of an answer, read from a ``response_format``: a choice, a schema, or any JSON object.

    A schema that allows only a choice (an enum of strings, or an object whose one field is such an enum) makes a closed
    question, whose choices get probabilities and which every endpoint can answer. All other schemas make structured
    answers.

    Attributes:
        choices: the choices of a closed question.
        field_name: the name of the choice's field in an object; empty: the choice stands alone; None: no choice.
        meaning: description of what is to be chosen; empty: unknown.
        structure: the structure of a structured answer.
        params: passed on to the endpoints.
    """

    choices: tuple[str, ...] | None = None
    field_name: str | None = None
    meaning: str = ""
    structure: Structure | None = None
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def specified(self) -> bool:
        """Whether it asks for choices or a structured answer."""
        return self.choices is not None or self.structure is not None


def read_format(response_format: Mapping[str, Any] | None, *, tools: bool) -> AnswerFormat:
    """Read a ``response_format``.

    Args:
        tools: whether tools may be called instead, which a closed question does not allow.

    Raises:
        Refused: it is not a response format.
    """
    if response_format is None or response_format.get("type") == "text":
        return AnswerFormat()
    if response_format.get("type") == "json_object":
        return AnswerFormat(structure=structure_of(dict[str, Any]), params={"response_format": dict(response_format)})
    schema = as_object(response_format.get("json_schema")).get("schema")
    if response_format.get("type") != "json_schema" or not isinstance(schema, dict):
        message = (
            'response_format: give {"type": "json_schema", "json_schema": {"name": ..., "schema": {...}}}, or the type '
            '"json_object" or "text"'
        )
        raise Refused(400, message, param="response_format")
    closed = None if tools else _closed_format(schema)
    if closed is not None:
        return closed
    try:
        return AnswerFormat(structure=structure_of(schema))
    except ConfigError as error:
        message = str(error).replace("answer:", "response_format:", 1)
        raise Refused(400, message, param="response_format") from None


def _closed_format(schema: Mapping[str, Any]) -> AnswerFormat | None:
    """Read a schema that allows only a choice as a closed question; None for any other schema."""
    choices = _enum_choices(schema)
    if choices is not None:
        return AnswerFormat(choices, "", _meaning("", schema))
    properties, required = schema.get("properties"), schema.get("required", [])
    if not set(schema) <= _OF_ITS_OBJECT or not isinstance(properties, dict) or len(properties) != 1:
        return None
    ((name, given),) = properties.items()
    given = as_object(given)
    reference = given.get("$ref")
    value = as_object(pointed_to(schema, reference)) if isinstance(reference, str) else given
    choices = _enum_choices(value)
    if choices is None or not name or required not in ([], [name]):
        return None
    described = value if given is value else {**value, **given}
    return AnswerFormat(choices, name, _meaning(name, described, schema))


def _enum_choices(schema: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return an enum's strings as choices; None: the schema allows anything else, or too many or equal strings."""
    values = schema.get("enum")
    if not set(schema) <= _OF_A_CHOICE or schema.get("type", "string") != "string" or not isinstance(values, list):
        return None
    if not 2 <= len(values) <= MOST_CHOICES or not all(isinstance(value, str) and value.strip() for value in values):
        return None
    return tuple(values) if len({value.strip() for value in values}) == len(values) else None


def _meaning(name: str, *schemas: Mapping[str, Any]) -> str:
    """Return a description of the choice: the field's name, and the schemas' descriptions."""
    described = [schema["description"] for schema in schemas if isinstance(schema.get("description"), str)]
    parts = [f'"{name}"', *described] if name else described
    return f"What is asked for is {': '.join(parts)}" if parts else ""
