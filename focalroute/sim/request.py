"""A request to a simulated model, checked and made plain."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from focalroute.sim.constraints import Allowed, allowed_replies, told_schema
from focalroute.sim.dialects import Dialect, Refused
from focalroute.sim.models import SimulatedModel
from focalroute.sim.prompt import Prompt, last_user_text, read_prompt, read_result
from focalroute.sim.replies import count_tokens
from focalroute.sim.tools import Calling, calling

_PER_MESSAGE, _PER_PROMPT = 4, 3  # tokens of the chat template
_PER_IMAGE = 85


@dataclass(frozen=True, slots=True)
class Request:
    """What one chat completion request asks for.

    Attributes:
        prompt_tokens: of all messages.
        n: samples.
        top: alternatives to give with each token; None: no log-probabilities.
        room: the token limit of one sample; None: none.
        allowed: the only replies it admits; None: any.
        usage_asked: whether a stream is asked to tell its usage.
        calling: the tool that the question calls for; None: it is answered with text.
    """

    prompt: Prompt
    prompt_tokens: int
    n: int
    top: int | None
    room: int | None
    temperature: float
    seed: int | None
    allowed: Allowed | None
    stream: bool
    usage_asked: bool
    calling: Calling | None = None


def parse_request(body: Mapping[str, Any], dialect: Dialect, model: SimulatedModel) -> Request:
    """Read a request to a model in a dialect.

    Raises:
        Refused: something in it is wrong, not known to the service, or more than the model can do.
    """
    unknown = sorted(set(body) - dialect.fields) if dialect.fields is not None else []
    if unknown:
        raise Refused(400, f"Unrecognized request argument supplied: {unknown[0]}")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise Refused(400, "'messages' must be a non-empty list of messages.")
    _require_able(body, messages, dialect, model)
    asked = last_user_text(messages)
    result = messages[-1].get("content") if messages[-1].get("role") == "tool" else None
    prompt = read_prompt(asked) if result is None else read_result(str(result))
    options = body.get("stream_options")
    try:
        allowed = allowed_replies(body, dialect.structured, prompt) or told_schema(asked, prompt)
    except ValueError as error:
        raise Refused(400, f"Invalid structured output: {error}") from None
    return Request(
        prompt=prompt,
        prompt_tokens=_PER_PROMPT + sum(map(_message_tokens, messages)) + _json_tokens(body.get("tools")),
        n=_samples(body, dialect),
        top=dialect.top(body),
        room=_room(body),
        temperature=_temperature(body),
        seed=_integer(body, "seed", None),
        allowed=allowed,
        stream=body.get("stream") is True,
        usage_asked=isinstance(options, dict) and options.get("include_usage") is True,
        calling=calling(body, asked) if result is None and dialect.tools else None,
    )


def _require_able(body: Mapping[str, Any], messages: list[Any], dialect: Dialect, model: SimulatedModel) -> None:
    contents = [message.get("content") for message in messages]
    parts = [part for content in contents if isinstance(content, list) for part in content if isinstance(part, dict)]
    if body.get("tools") and dialect.tools and not model.tools:
        raise Refused(*dialect.unable("tools", "tool use", model.name))
    if any(part.get("type") == "image_url" for part in parts) and not model.images:
        raise Refused(*dialect.unable("image input", "image input", model.name))


def _message_tokens(message: Mapping[str, Any]) -> int:
    return _PER_MESSAGE + _tokens(message.get("content")) + _json_tokens(message.get("tool_calls"))


def _json_tokens(value: Any) -> int:
    return count_tokens(json.dumps(value)) if value else 0


def _tokens(content: Any) -> int:
    if isinstance(content, str):
        return count_tokens(content)
    parts = content if isinstance(content, list) else []
    seen = sum(_PER_IMAGE for part in parts if isinstance(part, dict) and part.get("type") == "image_url")
    return seen + sum(count_tokens(str(part.get("text", ""))) for part in parts if isinstance(part, dict))


def _integer(body: Mapping[str, Any], name: str, least: int | None) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or (least is not None and value < least):
        raise Refused(
            400, f"Invalid value for '{name}': expected an integer{'' if least is None else f' of at least {least}'}."
        )
    return value


def _samples(body: Mapping[str, Any], dialect: Dialect) -> int:
    if dialect.max_n == 1:
        return 1
    n = _integer(body, "n", 1) or 1
    if n > dialect.max_n:
        raise Refused(422, f"n must be at most {dialect.max_n}")
    return n


def _room(body: Mapping[str, Any]) -> int | None:
    limits = (_integer(body, "max_completion_tokens", 1), _integer(body, "max_tokens", 1))
    return min((limit for limit in limits if limit is not None), default=None)


def _temperature(body: Mapping[str, Any]) -> float:
    value = body.get("temperature")
    if value is None:
        return 1.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 2:
        raise Refused(400, "Invalid value for 'temperature': expected a number from 0 to 2.")
    return float(value)
