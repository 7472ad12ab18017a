"""Requests about texts, without I/O: their embeddings, and their log-likelihoods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from focalroute.core.errors import CallFailed
from focalroute.core.records import Failure, Usage
from focalroute.core.shapes import as_object
from focalroute.endpoints.wire import Completion, CompletionChoice, Request, open_reply, parse_json
from focalroute.endpoints.wire.fields import echoed_tokens, protocol_error, text_of

#: Bounds on the length of a vector, and on its numbers.
_MOST_NUMBERS = 2**16
_LARGEST = 1e30


@dataclass(frozen=True, slots=True)
class Embeddings:
    """One vector for each text, all of one length. ``usage`` is None where none (credible) came back."""

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
        raise protocol_error("the reply does not have an embedding for each text", usage)
    vectors: dict[int, Sequence[float]] = {}
    for place, item in enumerate(data):
        item = as_object(item)
        index = item.get("index", place)
        if type(index) is not int or not _is_vector(item.get("embedding")):
            raise protocol_error("an embedding is not a list of finite numbers", usage)
        vectors[index] = item["embedding"]
    if vectors.keys() != set(range(count)) or len({len(vector) for vector in vectors.values()}) > 1:
        raise protocol_error("the embeddings do not fit the texts, or each other", usage)
    return Embeddings(tuple(vectors[index] for index in range(count)), usage)


def _is_vector(value: object) -> bool:
    if not isinstance(value, list) or not 0 < len(value) <= _MOST_NUMBERS:
        return False
    return all(type(x) in (int, float) and -_LARGEST < x < _LARGEST for x in value)  # which NaN is not


_GENERATING = frozenset(
    ("max_tokens", "max_completion_tokens", "n", "top_logprobs", "response_format", "structured_outputs", "tools",
     "tool_choice")
)  # fmt: skip


def encode_scored(request: Request, model: str) -> dict[str, Any]:
    """Return the JSON body that asks for the log-probabilities of every token of ``request.scored``.

    Parameters for generation are left out, as nothing is generated.
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
        index, text = item.get("index", place), text_of(item.get("text"))
        if type(index) is not int or text is None:
            raise _about_something_else("a completion has no text", usage)
        found[index] = CompletionChoice(text, text_of(item.get("finish_reason")), echoed_tokens(item.get("logprobs")))
    if found.keys() != set(range(count)):
        raise _about_something_else("the completions do not fit the texts", usage)
    ordered = tuple(found[index] for index in range(count))
    return Completion(ordered, usage, text_of(payload.get("model")), text_of(payload.get("id")))


def _about_something_else(message: str, usage: Usage | None) -> CallFailed:
    return CallFailed(Failure("unusable", message), usage)
