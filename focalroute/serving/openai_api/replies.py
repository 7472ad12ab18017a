"""Writes an answer as a chat completion in OpenAI's shape, whole or in chunks."""

from __future__ import annotations

import json
import math
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from typing import Any

from focalroute.core.receipts import Answer, Call, Receipt
from focalroute.core.records import Failure, Usage
from focalroute.serving.openai_api import answer_id_of, completion_id
from focalroute.serving.openai_api.refusals import Refused
from focalroute.serving.openai_api.requests import MODEL, ChatRequest, FeedbackRequest
from focalroute.serving.streaming import AsyncAnswerStream

_CUT = ("length", "content_filter")


def completion(request: ChatRequest, answer: Answer) -> dict[str, Any]:
    """Return an answer as a chat completion."""
    content = None if answer.tool_calls and not answer.text else request.content_of(answer.text)
    message = {**answer.message, "content": content, "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason_of(answer)}
    return {
        "id": completion_id(answer.id),
        "object": "chat.completion",
        "created": int(answer.receipt.created_at),
        "model": MODEL,
        "choices": [choice],
        "usage": _usage(answer),
        "focalroute": _extras(request, answer),
    }


def model_list(created: int) -> dict[str, Any]:
    """Return the list of models, which holds only ours; ``created`` is Unix time."""
    return {"object": "list", "data": [model(MODEL, created)]}


def model(name: str, created: int) -> dict[str, Any]:
    """Return the model of this name.

    Raises:
        Refused: there is none.
    """
    if name != MODEL:
        raise Refused(404, f"model: there is only {MODEL!r} here", param="model", code="model_not_found")
    return {"id": MODEL, "object": "model", "created": created, "owned_by": "focalroute"}


def feedback_taken(request: FeedbackRequest) -> dict[str, Any]:
    """Return the response to accepted feedback."""
    return {"object": "feedback", "id": completion_id(answer_id_of(request.id)), "source": request.source}


#: The last event of a streamed reply.
DONE = "[DONE]"


async def events(request: ChatRequest, stream: AsyncAnswerStream, first: str | None) -> AsyncGenerator[str]:
    """Yield the events of a streamed reply: lines of JSON, then `DONE`.

    Args:
        first: the answer's first piece; None: it has no text.
    """
    name, created = completion_id(stream.id), int(time.time())
    head = {"id": name, "object": "chat.completion.chunk", "created": created, "model": MODEL}
    usage = {"usage": None} if request.include_usage else {}

    def chunk(delta: Mapping[str, Any], finish_reason: str | None = None, **rest: Any) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return json.dumps({**head, "choices": [choice], **usage, **rest}, default=str)

    yield chunk({"role": "assistant", "content": ""})
    piece = first
    while piece is not None:
        yield chunk({"content": request.content_of(piece)})
        piece = await stream.next_piece()
    answer = stream.answer
    if answer.tool_calls:
        calls = [{"index": i, **call} for i, call in enumerate(answer.tool_calls)]
        signed = {name: value for name, value in answer.message.items() if name not in ("role", "content")}
        yield chunk({**signed, "tool_calls": calls})
    yield chunk({}, finish_reason_of(answer), focalroute=_extras(request, answer))
    if request.include_usage:
        yield json.dumps({**head, "choices": [], "usage": _usage(answer)})
    yield DONE


def finish_reason_of(answer: Answer) -> str:
    """Return the answer's finish reason."""
    if answer.tool_calls:
        return "tool_calls"
    for reply in answer.replies:
        if reply.ok and reply.text == answer.text:
            return reply.finish_reason if reply.finish_reason in _CUT else "stop"
    return "stop"


def _usage(answer: Answer) -> dict[str, Any]:
    """Add up the usage and cost of all calls; as with OpenRouter, ``cost`` is in USD, null if unknown."""
    usage = answer.usage or Usage(0, 0)
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "cost": None if answer.cost is None else float(answer.cost),
    }


def _extras(request: ChatRequest, answer: Answer) -> dict[str, Any]:
    """Return the fields that OpenAI's API does not have."""
    extras: dict[str, Any] = {
        "answer_id": answer.id,
        "confidence": answer.confidence,
        "disputed": answer.disputed,
        "cost_usd": None if answer.cost is None else str(answer.cost),
        "members": [call.endpoint for call in answer.receipt.calls],
        "degraded": list(answer.degraded),
        "durable": answer.durable,
    }
    if request.options["choices"] is not None:
        extras |= {"choice": answer.choice, "candidates": answer.candidates, "probabilities": answer.probabilities}
    elif request.options["answer"] is not None:
        value = answer.value
        extras["value"] = str(value) if isinstance(value, float) and not math.isfinite(value) else value
    if request.receipt:
        extras["receipt"] = json.loads(_public_receipt(answer.receipt).to_json())
    return extras


def _public_receipt(receipt: Receipt) -> Receipt:
    """Return the receipt without endpoints' addresses and providers' messages."""
    synthesis = None if receipt.synthesis is None else _public_call(receipt.synthesis)
    return replace(receipt, calls=tuple(map(_public_call, receipt.calls)), synthesis=synthesis)


def _public_call(call: Call) -> Call:
    error = call.error
    return call if error is None else replace(call, error=Failure(error.kind, error.brief, error.status))
