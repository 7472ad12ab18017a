"""An error status, without I/O: what may be told of it, and when to come back."""

from __future__ import annotations

import email.utils
import math
import re
import time
from collections.abc import Mapping, Sequence
from typing import Literal

from focalroute.core.records import Failure

#: Each is a field of `Endpoint`.
Feature = Literal["tools", "images", "json_schema"]

_LONGEST = 2000  # characters of a message that are looked at

# Of the service or its model. A message about the caller's own tools, images or schema must not match: one bad image
# would shut the endpoint to all others.
_SAID: Mapping[Feature, re.Pattern[str]] = {
    "tools": re.compile(
        r"(?:not support|unsupported|that support)[^.]{0,40}\b(?:tools?|function.?call)"
        r"|\b(?:tools?|tool use|function.?calling)\b[^.]{0,20}not (?:supported|enabled|available)"
        r"|\btools?\b[^.]{0,20}requires? --",
        re.IGNORECASE,
    ),
    "images": re.compile(
        r"(?:not support|that support)[^.]{0,20}\b(?:images?\b|image_url|vision|multi-?modal)"
        r"|\b(?:images|image inputs?|image_url|vision) (?:is|are) (?:not (?:supported|enabled|available)|only supp)"
        r"|not a multi-?modal|at most 0 image",
        re.IGNORECASE,
    ),
    "json_schema": re.compile(
        r"(?:not support|unsupported|that support)[^.]{0,40}(?:response_format|json.?schema|structured output)"
        r"|(?:response_format|json.?schema|structured outputs?)[^.]{0,40}not (?:supported|enabled|available)",
        re.IGNORECASE,
    ),
}  # fmt: skip

_CODE = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def refusal_of(status: int, headers: Mapping[str, str], payload: object, secrets: Sequence[str]) -> Failure:
    """The failure that an error status stands for; ``secrets`` are texts of which nothing may be told."""
    code = _error_code(payload, secrets)
    lacks = unsupported(_message(payload))
    said = code if lacks is None else f"takes no {lacks}"
    return Failure(
        "status", f"HTTP {status} ({said})" if said else f"HTTP {status}", status, _retry_after(headers), lacks
    )


def _message(payload: object) -> str:
    """What the error says in words, to be looked at and not told on: it may quote what was sent."""
    for _ in range(3):
        if isinstance(payload, str):
            return payload
        inner = payload if isinstance(payload, dict) else {}
        payload = inner.get("message") or inner.get("error") or inner.get("detail")
    return ""


def _error_code(payload: object, secrets: Sequence[str]) -> str | None:
    """The service's own short name of the error, if it cannot be something of ours that it sent back."""
    inner = payload.get("error") if isinstance(payload, dict) else None
    for source in (inner, payload):
        for name in ("code", "type"):
            code = source.get(name) if isinstance(source, dict) else None
            if isinstance(code, str) and _CODE.fullmatch(code) and not any(_quotes(code, secret) for secret in secrets):
                return code
    return None


def _quotes(code: str, secret: str) -> bool:
    return code in secret or (secret != "" and secret in code)


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """``retry-after-ms``, or ``Retry-After`` as seconds or as a date. Seconds, at least 0."""
    milliseconds, value = headers.get("retry-after-ms"), headers.get("Retry-After", "")
    try:
        seconds = float(milliseconds) / 1000 if milliseconds else float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return max(seconds, 0.0) if math.isfinite(seconds) else None


def unsupported(message: str) -> Feature | None:
    """The feature that an error message says the service does not have; None if it says no such thing.

    >>> unsupported("No endpoints found that support tool use."), unsupported("You uploaded an unsupported image.")
    ('tools', None)
    """
    return next((feature for feature, said in _SAID.items() if said.search(message[:_LONGEST])), None)
