"""Says what to do about a failed call, and where it happened."""

from __future__ import annotations

import re
from dataclasses import replace
from urllib.parse import urlsplit

from focalroute.core.config import Endpoint
from focalroute.core.records import WITHHELD, Failure
from focalroute.core.services import is_loopback
from focalroute.endpoints.wire.refusals import REFUSING

_CREDIT = re.compile(r"insufficient|balance|credit|billing|quota|payment|spend", re.IGNORECASE)
_KEY = re.compile(r"api.?key|authenticat|unauthori[sz]ed|credentials", re.IGNORECASE)
_MODEL = re.compile(r"\bmodel|deployment", re.IGNORECASE)
_LONG = re.compile(
    r"context.?length|context.?window|maximum context|too long|input tokens|reduce the length", re.IGNORECASE
)
_FILTER = re.compile(r"content.?(?:filter|policy|management)|flagged|moderation|safety", re.IGNORECASE)

_ROOM = "give it more room: a larger max_tokens, or a larger thinking_tokens of the endpoint"
_SHORTEN = "shorten the prompt, or ask a model with a longer context"
_REPHRASE = "rephrase the prompt: the service's filter withholds it"
_CHECK = "check the parameters: the service does not take the request as it is"
_SEE = "ask without choices, answer and tools to see what the models say, and say in the prompt how to answer"
_REFUSES = (*REFUSING, 413)  # statuses that may refuse the request itself


def located(failure: Failure, endpoint: Endpoint) -> Failure:
    """Add to a failure its host, its model, what to do about it, and whether the request itself is the cause."""
    if failure.host is not None:
        return failure
    host = host_of(endpoint)
    hint = failure.hint or _hint(failure, endpoint, host or "the service")
    # Some services answer 400 where the key, the credit or the model is wrong.
    refused = failure.status in _REFUSES and (failure.lacks is not None or hint in (_SHORTEN, _REPHRASE, _CHECK))
    of_request = refused or failure.cut or failure.code in WITHHELD
    return replace(failure, host=host, model=endpoint.model, hint=hint, of_request=of_request)


def host_of(endpoint: Endpoint) -> str | None:
    """Return the host and port that the endpoint's calls go to."""
    address = endpoint.base_url if endpoint.client is None else str(endpoint.client.base_url)
    return urlsplit(address or "").netloc.rpartition("@")[2] or None


def _hint(failure: Failure, endpoint: Endpoint, host: str) -> str:
    if failure.kind == "connection":
        down = "is its server running" if is_loopback(host.rpartition(":")[0].strip("[]")) else "is the network up"
        return f"check base_url: {host} could not be reached; {down}?"
    if failure.kind == "status":
        return _status_hint(failure, endpoint, host)
    if failure.kind == "unusable":
        return _unusable_hint(failure)
    if failure.kind == "timeout":
        return "raise timeout_s of the endpoint, or deadline_s of the ask"
    if failure.kind == "protocol" and failure.provider_message is None:
        return f"check base_url: is {host} an OpenAI-compatible service?"
    if failure.kind == "protocol":  # an error that it reports without a status
        return _status_hint(replace(failure, status=500), endpoint, host)
    return ""


def _unusable_hint(failure: Failure) -> str:
    if failure.cut:
        return _ROOM
    if failure.code == "refusal":
        return "rephrase the prompt, or ask another model: this one refuses to answer"
    return _REPHRASE if failure.code in WITHHELD else _SEE


def _status_hint(failure: Failure, endpoint: Endpoint, host: str) -> str:
    status, message = failure.status or 0, f"{failure.code} {failure.provider_message}"
    variable = endpoint.api_key_env or "the key"
    if 300 <= status < 400 and status != 304:
        return f"check base_url {endpoint.base_url or host}: it redirects, and redirects are not followed"
    if status < 400:
        return f"check base_url: is {host} an OpenAI-compatible service?"
    if status == 402 or (status in (400, 403, 429) and _CREDIT.search(message) and "per" not in message.split()):
        return f"add credit to the account at {host}"
    if status == 401 or (status in (400, 403) and _KEY.search(message)):
        if endpoint.api_key_env is None and endpoint.api_key is None and endpoint.client is None:
            return f"name the variable of its key in api_key_env: {host} asks for one"
        return f"set {variable} to a key that {host} accepts"
    if failure.lacks is not None and status < 500:
        return f"leave {failure.lacks} out, or ask another model"
    if status == 404 and not _MODEL.search(message):
        path = urlsplit(endpoint.base_url or "").path
        likely = "is /v1 missing" if "/v1" not in path else "is its path right"
        return f"check base_url {endpoint.base_url or host}: {likely}?"
    if status in (400, 404) and _MODEL.search(message) and re.search("exist|found|access|invalid|know", message):
        return f"correct the model {endpoint.model!r}: focalroute pool check says what {host} lists"
    if status == 413 or _LONG.search(message):
        return _SHORTEN
    if _FILTER.search(message):
        return _REPHRASE
    if status == 403:
        return f"ask {host} for access to {endpoint.model!r}, or use a key that has it"
    if status == 429:
        return "set requests_per_minute or max_concurrency of the endpoint to what its plan allows"
    if status >= 500:
        return f"try again later: {host} fails"
    return _CHECK
