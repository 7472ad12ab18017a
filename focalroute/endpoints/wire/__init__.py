"""The chat completion format, without I/O: requests to JSON, replies (taken as hostile input) to records.

Services agree on most of it and differ in four places, all settled in `encode`: how log-probabilities are requested,
how an answer is constrained to choices, how many samples one call may return, and the name of the token limit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from focalroute.core.config import Dialect
from focalroute.core.records import Usage
from focalroute.core.shapes import as_object, objects_in, read_json
from focalroute.endpoints.wire.fields import (
    Token,
    answer_tokens,
    content_of,
    protocol_error,
    reported_error,
    text_of,
    tokens_of,
    usage_of,
)
from focalroute.endpoints.wire.thinking import begins_thinking, split_thinking, thinking_of

CapField = Literal["max_tokens", "max_completion_tokens"]

#: A reply longer than this is refused while it is being read.
MAX_REPLY_BYTES = 8 * 2**20
#: A reply with more samples than this is refused.
MAX_CHOICES = 1024

#: Most objects and lists in a large reply. One of 8 MB with alternatives for every token has 80,000; a reply made of
#: nothing else would take seconds, and memory of 20 times its size, to parse.
_MAX_CONTAINERS = 100_000
_LARGE = 2**18
_DEEPINFRA_MAX_N = 4


@dataclass(slots=True)  # a frozen one takes five times as long to make
class Request:
    """One chat completion to ask for. Its repr holds nothing of the prompt.

    Attributes:
        max_tokens: bound on the generated tokens of one sample; None: the service's own.
        temperature: None: the service's own.
        n: samples wanted from one call.
        top_logprobs: alternatives wanted with each token; 0: only the sampled token's own, None: no log-probabilities.
        choices: constrain the answer to one of these; None: free.
        stream: whether the reply comes in pieces.
        stream_usage: whether a stream is asked to end with its usage.
        params: provider parameters; they go into the body unchanged and win over everything above.
        scored: texts whose own log-likelihood is wanted instead of a reply to messages (see `encode_scored`).
    """

    messages: Sequence[Mapping[str, Any]] = field(repr=False)
    max_tokens: int | None
    temperature: float | None = None
    n: int = 1
    top_logprobs: int | None = None
    choices: tuple[str, ...] | None = field(default=None, repr=False)
    stream: bool = False
    params: Mapping[str, Any] = field(default_factory=dict, repr=False)
    stream_usage: bool = True
    scored: tuple[str, ...] = field(default=(), repr=False)

    def params_over(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters to send: an endpoint's own, overridden by those of the request."""
        return {**own, **self.params}


@dataclass(slots=True)  # a frozen one takes five times as long to make
class CompletionChoice:
    """One sample.

    Attributes:
        text: the answer, without the thinking before it.
        finish_reason: the service's; "refusal" if it returned a refusal instead of text.
        tokens: of the answer; None where no (credible) log-probabilities came back.
        reasoning: the thinking, as far as the service returns it.
        unopened: whether the text began within the thinking, without an opening mark.
        reasoning_details: data that OpenRouter expects back with the tool calls, unchanged.
    """

    text: str
    finish_reason: str | None
    tokens: tuple[Token, ...] | None
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    reasoning: str = field(default="", repr=False)
    unopened: bool = False
    reasoning_details: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)


@dataclass(slots=True)  # a frozen one takes five times as long to make
class Completion:
    """A whole reply: at least one choice. ``usage`` is None where none (credible) came back."""

    choices: tuple[CompletionChoice, ...]
    usage: Usage | None
    model: str | None
    id: str | None


def encode(request: Request, model: str, dialect: Dialect, *, cap: CapField = "max_tokens") -> dict[str, Any]:
    """Return the JSON body of a request, in the service's dialect.

    ``cap`` names the token limit: every service knows ``max_tokens`` except OpenAI's own newer models, which refuse it,
    while several compatible servers silently ignore ``max_completion_tokens``.
    """
    body: dict[str, Any] = {"model": model, "messages": list(request.messages)}
    if request.max_tokens is not None and request.params.keys().isdisjoint(("max_tokens", "max_completion_tokens")):
        body[cap] = request.max_tokens
    if request.temperature is not None:
        body["temperature"] = request.temperature
    if request.n > 1:
        body["n"] = min(request.n, _DEEPINFRA_MAX_N) if dialect == "deepinfra" else request.n
    if request.top_logprobs is not None:
        body |= _logprobs_wanted(request.top_logprobs, dialect)
    if request.choices is not None:
        body |= _held_to(request.choices, dialect)
    if request.stream:
        body["stream"] = True
        if request.stream_usage and dialect not in ("together", "deepinfra"):  # these two always send it
            body["stream_options"] = {"include_usage": True}
    return body | dict(request.params)


def _logprobs_wanted(top: int, dialect: Dialect) -> dict[str, Any]:
    if dialect == "together":  # an integer; 0 would mean none at all
        return {"logprobs": max(top, 1)}
    if dialect == "deepinfra" or top == 0:
        return {"logprobs": True}
    return {"logprobs": True, "top_logprobs": top}


def _held_to(choices: Sequence[str], dialect: Dialect) -> dict[str, Any]:
    """Constrain to choices: vLLM by a list, Together and DeepInfra by a regular expression, others by a JSON schema."""
    if dialect == "vllm":
        return {"structured_outputs": {"choice": list(choices)}}
    pattern = "(" + "|".join(re.escape(choice) for choice in choices) + ")"
    if dialect == "together":
        return {"response_format": {"type": "regex", "pattern": pattern}}
    if dialect == "deepinfra":
        return {"response_format": {"type": "regex", "regex": pattern}}
    schema = {
        "type": "object",
        "properties": {"answer": {"type": "string", "enum": list(choices)}},
        "required": ["answer"],
        "additionalProperties": False,
    }
    return {
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}
    }


def decode_bytes(body: bytes | bytearray) -> Completion:
    """Parse and `decode` a reply's body.

    Raises:
        CallFailed: the body is not JSON, or not a chat completion.
    """
    return decode(parse_json(body))


def parse_json(body: bytes | bytearray) -> object:
    """Parse a reply's body in bounded time and memory; CallFailed if it is not JSON or has too many parts."""
    if len(body) > _LARGE and body.count(b"[") + body.count(b"{") > _MAX_CONTAINERS:
        raise protocol_error("the reply has too many parts")
    try:
        return read_json(body)
    except (ValueError, RecursionError):
        raise protocol_error(f"the reply {_what_it_is(body)}") from None


def _what_it_is(body: bytes | bytearray) -> str:
    """Describe a body that is not JSON."""
    if body.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd")):
        return "is compressed, though the request forbids it"
    if not body.strip():
        return "is empty"
    return "is a web page" if body.lstrip()[:1] == b"<" else "is not JSON"


def open_reply(payload: object, content: str, *, generates: bool = True) -> tuple[Mapping[str, Any], Any, Usage | None]:
    """Return a parsed reply, its field named ``content``, and its usage.

    Args:
        generates: whether the call generates tokens; if not, services may leave out their number.

    Raises:
        CallFailed: it is not an object, or reports an error instead.
    """
    if not isinstance(payload, dict):
        raise protocol_error("the reply is not a JSON object")
    counts = payload.get("usage")
    if not generates and isinstance(counts, dict):
        counts = {**counts, "completion_tokens": counts.get("completion_tokens") or 0}
    usage, held = usage_of(counts), payload.get(content)
    if payload.get("error") is not None and not held:
        raise reported_error(payload["error"], usage)
    return payload, held, usage


def decode(payload: object) -> Completion:
    """Convert a parsed reply to a record; the dialects' forms are told apart by their shape.

    Raises:
        CallFailed: it is not a chat completion; ``.usage`` is kept where it could be read.
    """
    payload, choices, usage = open_reply(payload, "choices")
    if not isinstance(choices, list) or not choices:
        raise protocol_error("the reply has no choices", usage)
    if len(choices) > MAX_CHOICES:
        raise protocol_error("the reply has too many choices", usage)
    return Completion(
        tuple(_choice(c, usage) for c in choices), usage, text_of(payload.get("model")), text_of(payload.get("id"))
    )


def _choice(choice: object, usage: Usage | None) -> CompletionChoice:
    choice = as_object(choice)
    message = choice.get("message")
    if not isinstance(message, dict):
        raise protocol_error("a choice has no message", usage)
    if choice.get("finish_reason") == "error":
        raise reported_error(choice.get("error"), usage)
    text = content_of(message.get("content"))
    if text is None:
        raise protocol_error("a message's content is not text", usage)
    calls = tuple(objects_in(message.get("tool_calls")))
    unopened = begins_thinking(text)
    within, text = split_thinking(text)
    reasoning, tokens = thinking_of(message) or within, tokens_of(choice.get("logprobs"))
    if reasoning and tokens:
        tokens = answer_tokens(tokens, text)
    finished = "refusal" if message.get("refusal") and not text else text_of(choice.get("finish_reason"))
    details = tuple(objects_in(message.get("reasoning_details")))
    return CompletionChoice(text, finished, tokens, calls, reasoning, unopened, details)
