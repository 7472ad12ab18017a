"""An answer as a chat completion, whole or as the chunks of a stream."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from focalroute.core.receipts import Answer, Call
from focalroute.server.requests import MODEL, Asked

_CUT = ("length", "content_filter")


def completion_id(answer_id: str) -> str:
    """What the reply with this answer is called."""
    return f"chatcmpl-{answer_id}"


def completion(asked: Asked, answer: Answer) -> dict[str, Any]:
    """The whole reply."""
    content = None if answer.tool_calls and not answer.text else asked.said(answer.text)
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if answer.tool_calls:
        message["tool_calls"] = [dict(call) for call in answer.tool_calls]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish_reason(answer)}
    return {
        "id": completion_id(answer.id),
        "object": "chat.completion",
        "created": int(answer.receipt.created_at),
        "model": MODEL,
        "choices": [choice],
        "usage": _usage(answer),
        "focalroute": _told(asked, answer),
    }


class Chunks:
    """The events of a streamed reply, one line of JSON each.

    Args:
        name: of the reply: its id is known only at the end, when there is an answer.
        created: Unix time.
    """

    def __init__(self, asked: Asked, name: str, created: int) -> None:
        self._asked = asked
        self._head = {"id": name, "object": "chat.completion.chunk", "created": created, "model": MODEL}

    def role(self) -> str:
        """The first."""
        return self._chunk({"role": "assistant", "content": ""})

    def piece(self, text: str) -> str:
        """Some more of the text."""
        return self._chunk({"content": text})

    def end(self, answer: Answer) -> Iterator[str]:
        """What follows the text: tool calls, why it ended and what it cost, and the usage if it is wanted."""
        if answer.tool_calls:
            yield self._chunk({"tool_calls": [{"index": i, **call} for i, call in enumerate(answer.tool_calls)]})
        yield self._chunk({}, _finish_reason(answer), focalroute=_told(self._asked, answer))
        if self._asked.include_usage:
            yield json.dumps({**self._head, "choices": [], "usage": _usage(answer)})

    def _chunk(self, delta: Mapping[str, Any], finish_reason: str | None = None, **rest: Any) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        usage = {"usage": None} if self._asked.include_usage else {}
        return json.dumps({**self._head, "choices": [choice], **usage, **rest}, default=str)


def _finish_reason(answer: Answer) -> str:
    if answer.tool_calls:
        return "tool_calls"
    given = next((reply for reply in answer.replies if reply.ok and reply.text == answer.text), None)
    return given.finish_reason if given and given.finish_reason in _CUT else "stop"


def _calls(answer: Answer) -> tuple[Call, ...]:
    synthesis = answer.receipt.synthesis
    return answer.receipt.calls if synthesis is None else (*answer.receipt.calls, synthesis)


def _usage(answer: Answer) -> dict[str, Any]:
    """Of all calls together, their cost too, as OpenRouter has it: in USD, null where it is not known."""
    usages = [call.usage for call in _calls(answer) if call.usage is not None]
    prompt, completion = sum(one.prompt_tokens for one in usages), sum(one.completion_tokens for one in usages)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(one.cached_tokens for one in usages)},
        "completion_tokens_details": {"reasoning_tokens": sum(one.reasoning_tokens for one in usages)},
        "cost": None if answer.cost is None else float(answer.cost),
    }


def _told(asked: Asked, answer: Answer) -> dict[str, Any]:
    """What OpenAI's API has no name for."""
    told: dict[str, Any] = {
        "answer_id": answer.id,
        "confidence": answer.confidence,
        "cost_usd": _usd(answer.cost),
        "members": [call.endpoint for call in answer.receipt.calls],
        "degraded": list(answer.degraded),
        "durable": answer.durable,
    }
    if asked.options["choices"] is not None:
        told |= {"choice": answer.choice, "candidates": answer.candidates, "probabilities": answer.probabilities}
    elif asked.options["answer"] is not None:
        told["value"] = answer.value
    if asked.receipt:
        told["receipt"] = json.loads(answer.receipt.to_json())
    return told


def _usd(cost: Decimal | None) -> str | None:
    return None if cost is None else f"{cost:f}"
