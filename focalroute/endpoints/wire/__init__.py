"""The chat completion format, without I/O: encodes requests to JSON and decodes replies, as hostile input, to records.

Services agree on most of the format. `encode` handles the four differences: how log-probabilities are requested, how an
answer is constrained to choices, how many samples one call may return, and the name of the token limit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from focalroute.core.config import Dialect
from focalroute.core.errors import CallFailed
from focalroute.core.json_values import as_object, objects_in, read_json
from focalroute.core.records import Failure, Usage
from focalroute.endpoints.wire import fields
from focalroute.endpoints.wire.thinking import begins_thinking, split_thinking, thinking_of

CapField = Literal["max_tokens", "max_completion_tokens"]
#: The two names of the token limit.
CAP_FIELDS: tuple[CapField, ...] = get_args(CapField)

#: A reply longer than this is refused while it is being read.
MAX_REPLY_BYTES = 8 * 2**20
#: A reply with more samples than this is refused.
MAX_CHOICES = 1024

#: Most objects and lists in a large reply. A reply of 8 MB with alternatives for every token has 80,000. One made of
#: nothing else would take seconds to parse, and 20 times its size in memory.
_MAX_CONTAINERS = 100_000
_LARGE = 2**18
_DEEPINFRA_MAX_N = 4
_SWITCH_OFF = "switch compression off at the service, or at the proxy in front of it"


@dataclass(slots=True)  # a frozen one takes five times as long to make
class Request:
    """A request for a chat completion. Its repr shows nothing of the prompt.

    Attributes:
        max_tokens: limit on the generated tokens of one sample; None: the service's own.
        temperature: None: the service's own.
        n: the number of samples.
        top_logprobs: the number of alternatives to each token; 0: only the log-probability of the token itself, None:
            no log-probabilities.
        choices: constrain the answer to one of these; None: it is free.
        stream: whether to stream the reply.
        params: the provider's parameters; they go into the body unchanged and override everything above.
        stream_usage: whether to ask for the usage at the end of a stream.
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
        finish_reason: the service's, by OpenAI's name if the reply was cut or withheld; "refusal" if it returned a
            refusal instead of text.
        tokens: the tokens of the answer; None: no (credible) log-probabilities came back.
        reasoning: the thinking, as far as the service returns it.
        marked: whether the thinking was found by marks in the text, which any text may quote.
        unopened: whether the text began within the thinking, without an opening mark.
        reasoning_details: data that OpenRouter expects back with the tool calls, unchanged.
    """

    text: str
    finish_reason: str | None
    tokens: tuple[fields.Token, ...] | None
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    reasoning: str = field(default="", repr=False)
    marked: bool = False
    unopened: bool = False
    reasoning_details: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)


@dataclass(slots=True)  # a frozen one takes five times as long to make
class Completion:
    """A whole reply, with at least one choice. ``usage`` is None if no (credible) one came back."""

    choices: tuple[CompletionChoice, ...]
    usage: Usage | None
    model: str | None
    id: str | None


def encode(request: Request, model: str, dialect: Dialect, *, cap: CapField = "max_tokens") -> dict[str, Any]:
    """Return the JSON body of a request, in the service's dialect.

    Args:
        cap: the name of the token limit. OpenAI's newer models refuse ``max_tokens``; several compatible servers
            silently ignore ``max_completion_tokens``.
    """
    body: dict[str, Any] = {"model": model, "messages": list(request.messages)}
    if request.max_tokens is not None and request.params.keys().isdisjoint(CAP_FIELDS):
        body[cap] = request.max_tokens
    if request.temperature is not None:
        body["temperature"] = request.temperature
    if request.n > 1:
        body["n"] = min(request.n, _DEEPINFRA_MAX_N) if dialect == "deepinfra" else request.n
    if request.top_logprobs is not None:
        body |= _logprobs_wanted(request.top_logprobs, dialect)
    if request.choices is not None:
        body |= _constrained_to(request.choices, dialect)
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


def _constrained_to(choices: Sequence[str], dialect: Dialect) -> dict[str, Any]:
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
    refuse_compressed(body)
    if len(body) > _LARGE and body.count(b"[") + body.count(b"{") > _MAX_CONTAINERS:
        raise fields.protocol_error("the reply has too many parts")
    try:
        return read_json(body)
    except (ValueError, RecursionError):
        raise fields.protocol_error(f"the reply {_what_it_is(body)}") from None


def refuse_compressed(body: bytes | bytearray) -> None:
    """Raise CallFailed if a body, or its first piece, begins as gzip or Zstandard do."""
    if body.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd")):
        raise CallFailed(
            Failure("protocol", "the reply is compressed, though the request forbids it", hint=_SWITCH_OFF)
        )


def _what_it_is(body: bytes | bytearray) -> str:
    """Say what a body that is not JSON is instead."""
    if not body.strip():
        return "is empty"
    return "is a web page" if body.lstrip()[:1] == b"<" else "is not JSON"


def open_reply(payload: object, content: str, *, generates: bool = True) -> tuple[Mapping[str, Any], Any, Usage | None]:
    """Return a parsed reply, its field named ``content``, and its usage.

    Args:
        generates: whether the call generates tokens. If not, the reply need not say how many.

    Raises:
        CallFailed: it is not an object, or reports an error instead.
    """
    if not isinstance(payload, dict):
        raise fields.protocol_error("the reply is not a JSON object")
    counts = payload.get("usage")
    if not generates and isinstance(counts, dict):
        counts = {**counts, "completion_tokens": counts.get("completion_tokens") or 0}
    usage, held = fields.usage_of(counts), payload.get(content)
    error = fields.error_in(payload)
    if error is not None and not held:
        raise fields.reported_error(error, usage)
    return payload, held, usage


def decode(payload: object) -> Completion:
    """Convert a parsed reply, of any dialect, to a record.

    Raises:
        CallFailed: it is not a chat completion; ``.usage`` is kept where it could be read.
    """
    payload, choices, usage = open_reply(payload, "choices")
    if not isinstance(choices, list) or not choices:
        raise fields.protocol_error("the reply has no choices", usage)
    if len(choices) > MAX_CHOICES:
        raise fields.protocol_error("the reply has too many choices", usage)
    return _completion(payload, [_choice(choice, usage) for choice in choices], usage)


def _completion(payload: Mapping[str, Any], choices: Sequence[CompletionChoice], usage: Usage | None) -> Completion:
    return Completion(tuple(choices), usage, fields.text_of(payload.get("model")), fields.text_of(payload.get("id")))


def _choice(choice: object, usage: Usage | None) -> CompletionChoice:
    choice = as_object(choice)
    message = choice.get("message")
    if not isinstance(message, dict):
        raise fields.protocol_error("a choice has no message", usage)
    finished = fields.finish_of(choice, usage)
    text = fields.content_of(message.get("content"))
    if text is None:
        raise fields.protocol_error("a message's content is not text", usage)
    calls = tuple(objects_in(message.get("tool_calls")))
    unopened = begins_thinking(text)
    within, text = split_thinking(text)
    thought, tokens = thinking_of(message), fields.tokens_of(choice.get("logprobs"))
    reasoning = thought or within
    if reasoning and tokens:
        tokens = fields.answer_tokens(tokens, text)
    if message.get("refusal") and not text:
        finished = "refusal"
    details = tuple(objects_in(message.get("reasoning_details")))
    marked = reasoning != thought
    return CompletionChoice(text, finished, tokens, calls, reasoning, marked, unopened, details)


# -- requests about texts: their embeddings, and their log-likelihoods -------------------------------------------------

#: Limits on the length of a vector, and on the size of its numbers.
_MOST_NUMBERS = 2**16
_LARGEST = 1e30


@dataclass(frozen=True, slots=True)
class Embeddings:
    """One vector for each text, all of one length. ``usage`` is None if no (credible) one came back."""

    vectors: tuple[Sequence[float], ...] = field(repr=False)
    usage: Usage | None


def encode_texts(texts: Sequence[str], model: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON body of a request for embeddings, with ``params`` such as ``dimensions``."""
    return {**params, "model": model, "input": list(texts)}


def decode_embeddings(body: bytes | bytearray, count: int) -> Embeddings:
    """Return the vectors of ``count`` texts, in their order.

    Raises:
        CallFailed: the body is not JSON, or has another number of embeddings; ``.usage`` is kept if it could be read.
    """
    _, data, usage = open_reply(parse_json(body), "data", generates=False)
    if not isinstance(data, list) or len(data) != count:
        raise fields.protocol_error("the reply does not have an embedding for each text", usage)
    vectors: dict[int, Sequence[float]] = {}
    for place, item in enumerate(data):
        item = as_object(item)
        index = item.get("index", place)
        if type(index) is not int or not _is_vector(item.get("embedding")):
            raise fields.protocol_error("an embedding is not a list of finite numbers", usage)
        vectors[index] = item["embedding"]
    if vectors.keys() != set(range(count)) or len({len(vector) for vector in vectors.values()}) > 1:
        raise fields.protocol_error("the embeddings do not fit the texts, or each other", usage)
    return Embeddings(tuple(vectors[index] for index in range(count)), usage)


def _is_vector(value: object) -> bool:
    if not isinstance(value, list) or not 0 < len(value) <= _MOST_NUMBERS:
        return False
    return all(type(x) in (int, float) and -_LARGEST < x < _LARGEST for x in value)  # which NaN is not


_GENERATING = frozenset(
    (*CAP_FIELDS, "n", "top_logprobs", "response_format", "structured_outputs", "tools", "tool_choice")
)  # fmt: skip


def encode_scored(request: Request, model: str) -> dict[str, Any]:
    """Return the JSON body that asks for the log-probability of every token of ``request.scored``.

    Nothing is generated, so parameters for generation are left out.
    """
    params = {name: value for name, value in request.params.items() if name not in _GENERATING}
    asked = {"prompt": list(request.scored), "max_tokens": 0, "echo": True, "logprobs": 1}
    return {**params, "model": model, **asked}


def decode_scored(body: bytes | bytearray, count: int) -> Completion:
    """Return the texts as they came back, in the order they were sent, without the first token of each.

    Raises:
        CallFailed: the body is not JSON, or ("unusable") not about these texts; ``.usage`` is kept if it could be read.
    """
    payload, choices, usage = open_reply(parse_json(body), "choices", generates=False)
    if not isinstance(choices, list) or len(choices) != count:
        raise _about_something_else("the reply does not have a completion for each text", usage)
    found: dict[int, CompletionChoice] = {}
    for place, item in enumerate(choices):
        item = as_object(item)
        index, text = item.get("index", place), fields.text_of(item.get("text"))
        if type(index) is not int or text is None:
            raise _about_something_else("a completion has no text", usage)
        tokens = fields.echoed_tokens(item.get("logprobs"))
        found[index] = CompletionChoice(text, fields.text_of(item.get("finish_reason")), tokens)
    if found.keys() != set(range(count)):
        raise _about_something_else("the completions do not fit the texts", usage)
    return _completion(payload, [found[index] for index in range(count)], usage)


def _about_something_else(message: str, usage: Usage | None) -> CallFailed:
    return CallFailed(Failure("unusable", message), usage)
