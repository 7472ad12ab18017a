"""Adding to what the user asks, in messages of any shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Messages = tuple[Mapping[str, Any], ...]


def added(messages: Sequence[Mapping[str, Any]], text: str) -> Messages:
    """The messages with a text added to the last one of the user; a new one where the user has said nothing.

    >>> added(({"role": "user", "content": "Why?"},), "Be brief.")[0]["content"]
    'Why?\\n\\nBe brief.'
    """
    for i in range(len(messages) - 1, -1, -1):
        if messages[i].get("role") == "user":
            content = _joined(messages[i].get("content"), text)
            return (*messages[:i], {**messages[i], "content": content}, *messages[i + 1 :])
    return (*messages, {"role": "user", "content": text})


def _joined(content: Any, text: str) -> Any:
    if isinstance(content, str):
        return f"{content}\n\n{text}"
    return [*(content or ()), {"type": "text", "text": text}]
