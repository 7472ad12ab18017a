"""The most a call can cost, before it is made."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from focalroute.core.config import Endpoint
from focalroute.endpoints.wire import Request

_MILLION = Decimal(1_000_000)


_PER_MESSAGE = 16  # tokens a chat template may add around one message, generously


_PER_REQUEST = 64


_PER_MEDIA_PART = 4096  # tokens an image, audio or file part may count, generously


def upper_bound(request: Request, endpoint: Endpoint) -> Decimal | None:
    """The most one call can cost: every byte of the prompt a token, every allowed token generated, n times.

    Of the parameters every byte counts too: tools and schemas are part of the prompt. None where the price, or the
    number of tokens it may generate, is unknown.
    """
    params = {**endpoint.params, **request.params}
    generated = _most_generated(params, request)
    price = endpoint.price
    if price is None or generated is None:
        return None
    prompt = (
        _PER_REQUEST
        + _json_tokens(params)
        + _json_tokens(request.choices)
        + sum(map(_message_tokens, request.messages))
        + sum(map(_text_tokens, request.scored))
    )
    return (prompt * max(price.prompt, price.cached) + generated * price.completion) / _MILLION


def _most_generated(params: Mapping[str, Any], request: Request) -> int | None:
    if request.scored:  # nothing is wanted, but vLLM generates, and counts, a token for each text
        return len(request.scored)
    caps = [params[name] for name in ("max_tokens", "max_completion_tokens") if name in params] or [request.max_tokens]
    samples = params.get("n", request.n)
    return max(caps) * samples if all(isinstance(count, int) for count in (*caps, samples)) else None


def _message_tokens(message: Mapping[str, Any]) -> int:
    rest = {key: value for key, value in message.items() if key not in ("role", "content")}  # tool calls, a name
    return _PER_MESSAGE + _content_tokens(message.get("content")) + _json_tokens(rest)


def _text_tokens(text: str) -> int:
    return _PER_MESSAGE + _content_tokens(text)


def _json_tokens(value: object) -> int:
    return len(json.dumps(value, default=str)) if value else 0


def _content_tokens(content: Any) -> int:
    if isinstance(content, str):
        return len(content.encode(errors="surrogatepass"))
    if not isinstance(content, Iterable):
        return 0
    parts = (part for part in content if isinstance(part, Mapping))
    return sum(_content_tokens(part["text"]) if "text" in part else _PER_MEDIA_PART for part in parts)
