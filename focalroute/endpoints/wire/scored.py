"""The log-likelihood of given texts, without I/O: ``/completions`` told to generate nothing and to echo its prompts.

OpenAI had it first, vLLM has it, and most services have not: they refuse it, or pass over the ``echo``.
"""

from __future__ import annotations

from typing import Any

from focalroute.core.errors import CallFailed
from focalroute.core.records import Failure, Usage
from focalroute.endpoints.wire.fields import echoed_tokens, text_of
from focalroute.endpoints.wire.format import Completion, CompletionChoice, Request, opened, parsed

_GENERATING = frozenset(
    ("max_tokens", "max_completion_tokens", "n", "top_logprobs", "response_format", "structured_outputs", "tools",
     "tool_choice")
)  # fmt: skip


def encode_scored(request: Request, model: str) -> dict[str, Any]:
    """The JSON body that asks for the log-probabilities of every token of ``request.scored``.

    Of the parameters what says how to generate is left out: nothing is generated.
    """
    params = {name: value for name, value in request.params.items() if name not in _GENERATING}
    asked = {"prompt": list(request.scored), "max_tokens": 0, "echo": True, "logprobs": 1}
    return {**params, "model": model, **asked}


def decode_scored(body: bytes | bytearray, count: int) -> Completion:
    """The texts as they came back, in the order they were sent; the first token of each has no log-probability.

    Raises:
        CallFailed: the body is not JSON, or ("unusable") not about these texts; ``.usage`` is kept where it could be
            read.
    """
    payload, choices, usage = opened(parsed(body), "choices", generates=False)
    if not isinstance(choices, list) or len(choices) != count:
        raise _about_something_else("the reply does not have a completion for each text", usage)
    found: dict[int, CompletionChoice] = {}
    for place, item in enumerate(choices):
        item = item if isinstance(item, dict) else {}
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
