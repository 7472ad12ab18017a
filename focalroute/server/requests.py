"""A request for a chat completion as the arguments of ``ask``, checked field by field."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from focalroute.endpoints.elicit.messages import append_text
from focalroute.server.refusals import Refusal, Refused
from focalroute.server.wanted import wanted_of

#: The one model that is served.
MODEL = "focalroute"

_LONGEST_S = 600.0  # that a caller may have an ask take

#: Sent on to every endpoint; nothing else is: it might cost more than a budget reserves, or concern the service alone.
_PASSED_ON = (
    "temperature", "top_p", "top_k", "min_p", "max_tokens", "max_completion_tokens", "stop", "seed",
    "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "reasoning_effort",
    "tools", "tool_choice", "parallel_tool_calls",
)  # fmt: skip

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


def _amount(value: Any) -> Any:
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return value
    raise ValueError("give a positive amount of USD")


class _Message(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", hide_input_in_errors=True)
    role: Annotated[str, Field(min_length=1, max_length=64)]
    content: Annotated[Any, AfterValidator(_content)] = None


class _StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", hide_input_in_errors=True)
    include_usage: bool | None = None


class _Wishes(BaseModel):
    """The object "focalroute" of a request: the arguments of ``ask`` that OpenAI's API has no name for."""

    model_config = _STRICT
    choices: list[str] | None = None
    answer: Annotated[Any, AfterValidator(_named_or_object)] = None
    samples: int | None = None
    combine: Literal["choose", "pick", "synthesise"] = "choose"
    task: Annotated[str, Field(max_length=200)] | None = None
    tags: list[str] | None = None
    max_usd: Annotated[Any, AfterValidator(_amount)] = None
    deadline_s: Annotated[float, Field(gt=0, le=_LONGEST_S)] | None = None
    receipt: bool = False


class _Chat(BaseModel):
    model_config = _STRICT
    model: str
    messages: Annotated[list[_Message], Field(min_length=1)]
    focalroute: _Wishes | None = None
    response_format: dict[str, Any] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: int | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    stop: Annotated[Any, AfterValidator(_stop)] = None
    seed: int | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    reasoning_effort: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Annotated[Any, AfterValidator(_named_or_object)] = None
    parallel_tool_calls: bool | None = None
    # One answer is given, without log-probabilities; what else OpenAI has and no answer hangs on is not sent on.
    n: Literal[1] | None = None
    logprobs: Literal[False] | None = None
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: Literal["auto", "default"] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


class _Feedback(BaseModel):
    model_config = _STRICT
    id: Annotated[str, Field(min_length=1, max_length=200)]
    reward: float | bool | None = None
    label: Any = None
    source: Annotated[str, Field(min_length=1, max_length=200)] = "user"


@dataclass(frozen=True, slots=True)
class Asked:
    """What a caller asks.

    Attributes:
        query: the messages.
        options: the other arguments of ``ask`` and ``stream``.
        field_name: of an object with this one field a choice is the value; empty: the choice itself is the JSON value;
            None: the answer is said as it is.
        include_usage: whether a stream is to end with the usage.
        receipt: whether the receipt is wanted.
    """

    query: Sequence[Mapping[str, Any]]
    options: Mapping[str, Any]
    field_name: str | None
    stream: bool
    include_usage: bool
    receipt: bool

    def said(self, text: str) -> str:
        """The answer's text as the content of the reply."""
        if self.field_name is None:
            return text
        return json.dumps({self.field_name: text} if self.field_name else text)


@dataclass(frozen=True, slots=True)
class Told:
    """Feedback for an answer."""

    answer_id: str
    reward: float | bool | None
    label: Any
    source: str


def parse_json(body: bytes) -> object:
    """The JSON of a body.

    Raises:
        Refused: it is none.
    """
    try:
        return json.loads(body, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise Refused(Refusal(400, "the body is not valid JSON", code="invalid_json")) from None


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def read_chat(body: object, tags: Sequence[str] | None) -> Asked:
    """Check a request for a chat completion.

    Args:
        tags: of whoever asks; None: nobody is known, and the request may give them.

    Raises:
        Refused: a field is wrong.
    """
    chat, raw = _checked(_Chat, body)
    if chat.model != MODEL:
        message = f"model: there is only {MODEL!r} here; see GET /v1/models"
        raise Refused(Refusal(404, message, param="model", code="model_not_found"))
    wishes = chat.focalroute or _Wishes()
    if wishes.tags is not None and tags is not None:
        message = "focalroute.tags: come with your key; leave them out"
        raise Refused(Refusal(400, message, param="focalroute.tags"))
    messages: Sequence[Mapping[str, Any]] = raw["messages"]
    for i, one in enumerate(chat.messages):
        if one.role == "user" and not one.content:
            param = f"messages.{i}.content"
            raise Refused(Refusal(400, f"{param}: is empty; say something", param=param))
    params = {name: raw[name] for name in _PASSED_ON if raw.get(name) is not None}
    wanted = wanted_of(chat.response_format, tools=bool(params.get("tools")))
    if wanted.given and (wishes.choices is not None or wishes.answer is not None):
        message = "response_format: focalroute.choices and focalroute.answer say what is wanted already; give one"
        raise Refused(Refusal(400, message, param="response_format"))
    options: dict[str, Any] = {
        "choices": wishes.choices if wanted.choices is None else wanted.choices,
        "answer": wishes.answer if wanted.structure is None else wanted.structure,
        "samples": wishes.samples,
        "combine": wishes.combine,
        "task": wishes.task,
        "tags": tuple(wishes.tags or () if tags is None else tags),
        "max_usd": wishes.max_usd,
        "deadline_s": wishes.deadline_s,
        "params": {**params, **wanted.params},
    }
    return Asked(
        query=append_text(messages, wanted.meaning) if wanted.meaning else messages,
        options=options,
        field_name=wanted.field_name,
        stream=bool(chat.stream),
        include_usage=chat.stream_options is not None and bool(chat.stream_options.include_usage),
        receipt=wishes.receipt,
    )


def read_feedback(body: object) -> Told:
    """Check a feedback.

    Raises:
        Refused: a field is wrong.
    """
    told, _ = _checked(_Feedback, body)
    return Told(told.id.removeprefix("chatcmpl-"), told.reward, told.label, told.source)


def _checked(model: type[_B], body: object) -> tuple[_B, Mapping[str, Any]]:
    """The body as a model, and as it came."""
    if not isinstance(body, dict):
        raise Refused(Refusal(400, "the body must be a JSON object"))
    try:
        return model.model_validate(body), body
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        param = ".".join(map(str, problem["loc"]))
        raise Refused(
            Refusal(400, f"{param}: {_explained(problem['type'], problem['msg'], param)}", param=param)
        ) from None


def _explained(kind: str, message: str, param: str) -> str:
    if param in ("n", "logprobs"):
        return "is not given: the answer is one, fused from several replies; see focalroute.probabilities in the reply"
    if kind == "missing":
        return "required"
    if kind == "too_short":
        return "is empty"
    if kind == "extra_forbidden":
        return 'unknown field; leave it out (what is focalroute\'s own goes into the object "focalroute")'
    return message.removeprefix("Value error, ")
