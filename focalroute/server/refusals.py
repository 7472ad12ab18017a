"""What went wrong, as OpenAI's API says it: a status, and ``{"error": {message, type, param, code}}``."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from focalroute.core.errors import (
    BudgetExceeded,
    ConfigError,
    DeadlineExceeded,
    FeedbackConflict,
    FeedbackError,
    FocalrouteError,
    PoolError,
    StoreError,
    UnknownAnswer,
)
from focalroute.core.records import Reply

_FIELD = re.compile(r"([a-z_]+)(?:, [a-z_]+)*: ")
#: What an argument of ``ask`` is called in a request.
_CALLED = {"query": "messages", "params": None, "label": "label", "reward": "reward"}
_OWN = ("choices", "answer", "samples", "combine", "task", "tags", "max_usd", "deadline_s")
_REFUSES = (400, 404, 413, 422)  # a request as it stands, whoever sends it
_RETRY_AFTER_S = 1


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that is not granted.

    Attributes:
        param: the field it is about.
        retry_after_s: when it may be granted, seconds from now; None: not said.
        again: whether a client may try again by itself; None: it goes by the status.
    """

    status: int
    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    retry_after_s: float | None = None
    again: bool | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def body(self) -> dict[str, Any]:
        """In OpenAI's shape."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    @property
    def all_headers(self) -> dict[str, str]:
        """Those that say when to come again, too."""
        headers = dict(self.headers)
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(max(1, math.ceil(self.retry_after_s)))
        if self.again is not None:
            headers["x-should-retry"] = "true" if self.again else "false"  # the openai library heeds it
        return headers


class Refused(Exception):
    """Raised where a request is not granted."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


def refusal_of(error: FocalrouteError) -> Refusal:
    """How an error of the library is told to a caller."""
    message = str(error)
    match error:
        case ConfigError():
            return Refusal(400, *_named(message))
        case BudgetExceeded():
            return _out_of_money(error)
        case DeadlineExceeded():
            return Refusal(504, message, "timeout_error", code="deadline_exceeded", again=False)
        case PoolError():
            return _nobody(message, error.replies)
        case UnknownAnswer():
            return Refusal(404, message, param="id", code="unknown_answer")
        case FeedbackConflict():
            return Refusal(409, message, code="feedback_conflict", again=False)
        case FeedbackError():
            return Refusal(400, *_named(message))
        case StoreError():
            return Refusal(503, message, "server_error", code="store_failed", retry_after_s=_RETRY_AFTER_S)
    return Refusal(500, message, "server_error")


def _named(message: str) -> tuple[str, str, str | None]:
    """Message, type and field, by the names of the request."""
    found = _FIELD.match(message)
    if found is None:
        return message, "invalid_request_error", None
    name = found[1]
    if name in _CALLED:
        said = f"{_CALLED[name]}: {message[found.end() :]}" if name == "query" else message
        return said, "invalid_request_error", _CALLED[name]
    return message, "invalid_request_error", f"focalroute.{name}" if name in _OWN else None


def _out_of_money(error: BudgetExceeded) -> Refusal:
    """402 where waiting does not help, 429 where it does."""
    if error.resets_at is None:
        return Refusal(402, str(error), "insufficient_quota", code="budget_exceeded", again=False)
    left_s = error.resets_at.timestamp() - time.time()
    return Refusal(
        429, str(error), "insufficient_quota", code="budget_exceeded", retry_after_s=left_s, again=left_s <= 60
    )


def _nobody(message: str, replies: Sequence[Reply]) -> Refusal:
    """Nobody answered: 400 where all refused the request itself, 503 where they were busy, else 502."""
    failures = [reply.error for reply in replies if reply.error is not None]
    if not failures or all(failure.status in _REFUSES for failure in failures):
        return Refusal(400, message, code="no_endpoint_takes_this")
    if all(failure.kind == "limited" or failure.status in (429, 503) for failure in failures):
        waits = [failure.retry_after_s for failure in failures if failure.retry_after_s is not None]
        wait_s = min(waits, default=_RETRY_AFTER_S)
        return Refusal(503, message, "server_error", code="pool_busy", retry_after_s=wait_s)
    paid = any(reply.usage is not None for reply in replies)  # a client that tried again would pay again
    return Refusal(502, message, "server_error", code="pool_failed", again=False if paid else None)
