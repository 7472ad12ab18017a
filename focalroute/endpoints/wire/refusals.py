"""An error status, without I/O: what may be told of it, and when to come back."""

from __future__ import annotations

import email.utils
import math
import re
import time
from collections.abc import Mapping, Sequence

from focalroute.core.records import Failure
from focalroute.endpoints.features import unsupported

_CODE = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def refusal(status: int, headers: Mapping[str, str], payload: object, secrets: Sequence[str]) -> Failure:
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
            if isinstance(code, str) and _CODE.fullmatch(code) and not any(code in secret for secret in secrets):
                return code
    return None


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
