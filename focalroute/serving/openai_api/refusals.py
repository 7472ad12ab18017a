"""Maps errors to the status and body that a caller gets, in OpenAI's shape."""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from focalroute.core import errors
from focalroute.core.records import Reply

_OWN = ("choices", "answer", "samples", "combine", "task", "tags", "max_usd", "deadline_s")
#: Argument of ``ask`` that comes from a request -> the field's name there.
_REQUEST_NAMES = {
    "query": "messages",
    "feedback": None,
    **{name: name for name in ("messages", "params", "tools", "tool_choice", "response_format")},
    **{name: f"focalroute.{name}" for name in _OWN},
}
#: Limits whose amounts a caller may see: those of its request and of its key.
_OWN_LIMITS = ("max_usd", "usd_per_tag.key:")
_RETRY_AFTER_S = 1
_MOST_REASONS = 2  # reasons of a failed ask
#: Parts of a provider's message that name an account, or where it is managed.
_ACCOUNT = re.compile(r"https?://\S+|\b(?:org|organization|proj|project|acct|user)[-_]\w+")
#: Code of a refusal -> message for callers who may not see details of the pool.
_PUBLIC = {
    "no_endpoint_takes_this": "no endpoint takes this request; leave out tools, images or a schema, or shorten it",
    "pool_busy": "every endpoint is busy, or at its rate limit; try again later",
    "pool_failed": "no endpoint answered, and the server's log says why; give its operator the x-request-id",
    "store_failed": "the server cannot store anything, and its log says why; try again later",
    "closing": "the server is shutting down; try again",
    "internal_error": "the server failed, and its log says where; give its operator the x-request-id",
}


@dataclass(eq=False)
class Refused(Exception):
    """A refused request, with the status and body of its response.

    Attributes:
        param: the field it is about.
        retry_after_s: seconds until a retry may succeed; None: unknown.
        again: whether a client may retry automatically; None: clients go by the status.
    """

    status: int
    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    retry_after_s: float | None = None
    again: bool | None = None
    extra_headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def body(self) -> dict[str, Any]:
        """The body in OpenAI's shape."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        """All headers, those about retries included."""
        headers = dict(self.extra_headers)
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(max(1, math.ceil(self.retry_after_s)))
        if self.again is not None:
            headers["x-should-retry"] = str(self.again).lower()  # for the openai library
        return headers


def refusal_of(error: errors.FocalrouteError) -> Refused:
    """Map an error of the library to the response that a caller gets."""
    message = str(error)
    match error:
        case errors.BudgetExceeded():
            return _over_budget(error)
        case errors.DeadlineExceeded():
            return Refused(504, message, "timeout_error", code="deadline_exceeded", again=False)
        case errors.PoolError():
            return _no_reply(message, error.replies)
        case errors.UnknownAnswer():
            return Refused(404, message, param="id", code="unknown_answer")
        case errors.EnsembleClosed(forked=False):
            return Refused(503, message, "server_error", code="closing", retry_after_s=_RETRY_AFTER_S)
        case errors.StoreError():
            return Refused(503, message, "server_error", code="store_failed", retry_after_s=_RETRY_AFTER_S)
        case errors.FeedbackError():  # an unknown answer is one, too
            return _invalid(message)
        case errors.ConfigError() if error.field in _REQUEST_NAMES:  # else a setting, or an endpoint, is wrong
            return _invalid(message)
    return Refused(500, message, "server_error", code="internal_error", again=False)


def public_refusal_of(error: errors.FocalrouteError) -> Refused:
    """Map an error to a response for outside callers: without endpoints, addresses, accounts, keys and files."""
    refused = refusal_of(error)
    reasons = _reasons(error.replies) if isinstance(error, errors.PoolError) else ""
    if isinstance(error, errors.StreamBroken):
        refused.message = "the answer broke off; ask again"
    elif isinstance(error, errors.BudgetExceeded) and not is_own(error):
        remedy = "ask its operator to raise it" if error.resets_at is None else f"try again at {error.resets_at}"
        refused.message = f"the server's budget has not enough left for this; lower max_tokens, or {remedy}"
    elif isinstance(error, errors.ConfigError) and error.private and refused.status < 500:
        refused.message = f"{refused.param}: this server is not set up for it; leave it out, or ask its operator"
    elif refused.code in _PUBLIC:
        refused.message = reasons or _PUBLIC[refused.code]
    return refused


def is_own(error: errors.BudgetExceeded) -> bool:
    """Whether the exceeded limit belongs to the request or its key."""
    return error.name.startswith(_OWN_LIMITS)


def internal_error() -> Refused:
    """Make the response to an exception that is not one of the library's."""
    return Refused(500, _PUBLIC["internal_error"], "server_error", code="internal_error")


def _reasons(replies: Sequence[Reply]) -> str:
    """Say why replies were unusable or the request was refused, which the caller can change; "" for other reasons."""
    failures = [reply.error for reply in replies if reply.error is not None]
    failures = [one for one in failures if one.kind == "unusable" or one.of_request]
    hints = Counter(one.hint for one in failures if one.hint)
    reasons = Counter(_ACCOUNT.sub("[...]", one.message) for one in failures)
    advice = "".join(f"{hint}; " for hint, _ in hints.most_common(_MOST_REASONS))
    if not reasons:
        return ""
    return f"{advice}no endpoint answered ({'; '.join(dict(reasons.most_common(_MOST_REASONS)))})"


def _invalid(message: str) -> Refused:
    """Return a 400 for the field that the message names, under its name in the request."""
    message = message.removeprefix("params: ")
    field = errors.field_of(message)
    if field == "query":
        message = message.replace("query", "messages", 1)
    return Refused(400, message, param=_REQUEST_NAMES.get(field or "", field))


def _over_budget(error: errors.BudgetExceeded) -> Refused:
    """Return a 429 if the limit resets at some time, else a 402."""
    if error.resets_at is None:
        return Refused(402, str(error), "insufficient_quota", code="budget_exceeded", again=False)
    left_s = error.resets_at.timestamp() - time.time()
    return Refused(
        429, str(error), "insufficient_quota", code="budget_exceeded", retry_after_s=left_s, again=left_s <= 60
    )


def _no_reply(message: str, replies: Sequence[Reply]) -> Refused:
    """Return the refusal if no endpoint answered: 400 if the request is the reason, 503 if all were busy, else 502."""
    failures = [reply.error for reply in replies if reply.error is not None]
    if all(failure.of_request for failure in failures):
        return Refused(400, message, code="no_endpoint_takes_this")
    if all(failure.kind == "limited" or (failure.status in (429, 503) and failure.retryable) for failure in failures):
        waits = [failure.retry_after_s for failure in failures if failure.retry_after_s is not None]
        wait_s = min(waits, default=_RETRY_AFTER_S)
        return Refused(503, message, "server_error", code="pool_busy", retry_after_s=wait_s)
    paid = any(reply.usage is not None for reply in replies)  # a retry would cost as much again
    hopeless = all(failure.kind == "status" and not failure.retryable for failure in failures)
    again = False if paid or hopeless else None
    return Refused(502, message, "server_error", code="pool_failed", again=again)
