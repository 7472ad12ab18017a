"""Reads error responses, without I/O: what is wrong, what is not supported, when to retry, and what to do about it."""

from __future__ import annotations

import email.utils
import json
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC
from typing import Any, Literal
from urllib.parse import urlsplit

from focalroute.core.config import Endpoint
from focalroute.core.json_values import as_object, read_json
from focalroute.core.records import WITHHELD, Failure
from focalroute.core.services import is_loopback
from focalroute.endpoints.wire import CAP_FIELDS

#: Each is a field of `Endpoint`.
Feature = Literal["tools", "images", "json_schema"]

#: The value of `Failure.lacks` for a request that allows more tokens than the model can generate.
ROOM = "the token limit"
#: The hint for status 407, which only a proxy sends.
PROXY_LOGIN = "give the proxy's user and password in its address, as http://user:password@proxy:3128"
#: The statuses with which a service refuses something in the request.
REFUSING = (400, 403, 404, 422)

_LONGEST = 2000  # characters of a message that are read
_MOST_SHOWN = 300  # characters of it that are passed on
_DEEPEST = 6  # errors within errors

# Messages of a service or model that lacks a feature. A message about the caller's own tools, images or schema must not
# match: one bad image would close the endpoint to all images.
_LACKING: Mapping[Feature, re.Pattern[str]] = {
    "tools": re.compile(
        r"(?:not support|unsupported|that support)[^.]{0,40}\b(?:tools?|function.?call)"
        r"|\b(?:tools?|tool use|function.?calling)\b[^.]{0,20}not (?:supported|enabled|available)"
        r"|\btools?\b[^.]{0,20}requires? --",
        re.IGNORECASE,
    ),
    "images": re.compile(
        r"(?:not support|that support)[^.]{0,20}\b(?:images?\b|image_url|vision|multi-?modal)"
        r"|\b(?:images|image inputs?|image_url|vision) (?:is|are) (?:not (?:supported|enabled|available)|only supp)"
        r"|not a multi-?modal|at most 0 image|unknown variant .?image_url|data required for image input",
        re.IGNORECASE,
    ),
    "json_schema": re.compile(
        r"(?:not support|unsupported|that support)[^.]{0,40}(?:response_format|json.?schema|structured output)"
        r"|(?:response_format|json.?schema|structured outputs?)[^.]{0,40}not (?:supported|enabled|available)",
        re.IGNORECASE,
    ),
}  # fmt: skip

#: Fields of a request that a service may refuse.
FIELDS = (
    *CAP_FIELDS, "logprobs", "top_logprobs", "n", "temperature", "top_p", "stream_options",
    "presence_penalty", "frequency_penalty", "prompt_cache_key", "reasoning_effort", "verbosity", "structured_outputs",
)  # fmt: skip
_REFUSED = re.compile(
    r"unsupported|(?:not|n't|never) (?:be )?(?:support|allow|permit|enabl|accept)|unrecogni[sz]ed|unknown|unexpected"
    r"|forbidden|only \S+ is allowed",  # Moonshot: invalid temperature: only 1 is allowed for this model
    re.IGNORECASE,
)
_FIELD = re.compile(rf"(?<![a-z_])(?:{'|'.join(sorted(FIELDS, key=len, reverse=True))})(?![a-z_])")
_TOO_MUCH = re.compile(
    r"too (?:large|high)|at most|(?:great|less)er? than|exceeds?\b|maximum|valid range", re.IGNORECASE
)
#: Fields of a request in which the caller chooses names; then the patterns of a path into them and of a quoted name.
_CALLERS_OWN = ("messages", "tools", "response_format")
_PATH = re.compile(r"\b(?:messages|tools|response_format)[.\[][\w.\[\]-]*")
_QUOTATION = re.compile(r"(?<!\w)(['\"`])(.{1,100}?)\1(?!\w)")
_OF_THE_API = {"image_url", "json_schema", "tool"}
_CAMEL = re.compile(r"(?<=[a-z])[A-Z]")
_CODE = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_KEY = re.compile(
    r"\b(?:sk|pk|rk|gsk|xai|tgp|fw|csk|key)[-_][\w*.-]{4,}|\bAIza[\w-]{4,}|\bBearer\s+\S+|\w*\*{3,}[\w*.-]*"
)
_SPAN = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
#: A wait in words, as Gemini states it nowhere else ("Please retry in 26.660853464s.").
_ASKED = re.compile(r"\b(?:retry|try again) in ((?:\d{1,9}(?:\.\d{1,12})?(?:ms|[smhd])){1,5})(?!\w)", re.IGNORECASE)
_CUT = "max_tokens or model output limit was reached"  # from OpenAI, if the model was still thinking


def error_body(body: bytes | bytearray) -> object:
    """Return the body of an error response: parsed if it is JSON, else its text; None if it is neither."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        pass
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def refusal_of(status: int, headers: Mapping[str, str], payload: object, secrets: Sequence[str]) -> Failure:
    """Convert an error response to a failure.

    Args:
        secrets: texts that must not be quoted: the JSON that was sent, and the key.
    """
    message = _message(payload)[:_LONGEST]
    private = ["\n".join(_texts(secrets[0])), *secrets[1:]] if secrets else []
    code, param = _name(payload, ("code", "type", "status"), private), _name(payload, ("param",), private)
    about_own = any(_PATH.match(str(one.get("param"))) for one in _errors(payload))
    refusing = status in REFUSING and not about_own
    lacks = _lacking(message, param, code, refusing=refusing)
    if lacks is not None and secrets:  # reading what was sent takes a while
        lacks = _lacking(_without_names(message, secrets[0]), param, code, refusing=refusing)
    short = ", ".join(filter(None, (code, param))) if lacks in (None, ROOM) else f"takes no {lacks}"
    shown = _redacted(message[:_MOST_SHOWN], private)
    return Failure(
        "status",
        f"HTTP {status}{f' ({short})' if short else ''}{f': {shown}' if shown else ''}",
        status,
        _retry_after(headers, message),
        lacks,
        code=code,
        param=param,
        provider_message=shown or None,
        cut=_CUT in message,
        hint=_AT_THE_DOOR if status == 400 and _is_page(payload) else "",
    )


def with_service_message(failure: Failure, reported: object, secrets: Sequence[str]) -> Failure:
    """Add the service's message to the failure for a response of status 2xx that reported an error in its body.

    Args:
        secrets: as in `refusal_of`.
    """
    status = failure.status or 0
    refusal = refusal_of(status, {}, {"error": reported}, secrets)
    message = failure.message + refusal.message.removeprefix(f"HTTP {status}")
    return replace(refusal, kind=failure.kind, message=message, status=failure.status)


def _is_page(payload: object) -> bool:
    """Whether the body is a web page, as from a web server or a proxy in front of the service."""
    return isinstance(payload, str) and payload.lstrip().startswith("<")


def _message(payload: object, depth: int = _DEEPEST) -> str:
    """Return the error's message; of a list of mistakes, their messages, each with its field."""
    if isinstance(payload, str):
        if _is_page(payload):
            return ""
        return payload if not payload.lstrip().startswith(("{", "[")) else _within(payload, depth) or payload
    if depth <= 0:
        return ""
    if isinstance(payload, list):
        return "; ".join(filter(None, (_message(item, depth - 1) for item in payload[:4])))
    if not isinstance(payload, dict):
        return ""
    if isinstance(message := payload.get("msg"), str):
        place = payload.get("loc")
        return f"{place[-1]}: {message}" if isinstance(place, list) and place else message
    found = (payload.get(name) for name in ("message", "error", "detail", "errors"))
    message = next(filter(None, (_message(inner, depth - 1) for inner in found)), "")
    raw = as_object(payload.get("metadata")).get("raw")  # the message of the service behind OpenRouter
    return f"{message}: {_message(raw, depth - 1)}" if raw else message


def _within(text: str, depth: int) -> str:
    """Return the message of an error that is quoted as JSON in the message of another one."""
    try:
        return _message(json.loads(text[: 4 * _LONGEST]), depth - 1)
    except (ValueError, RecursionError):
        return ""


def _lacking(message: str, param: str | None, code: str | None, *, refusing: bool) -> str | None:
    """Return the feature that is not supported or, if the status refuses a request, the field that it refuses."""
    return unsupported(message) or (_refused(param, code, message) if refusing else None)


def _refused(param: str | None, code: str | None, message: str) -> str | None:
    """Return the field of the request that the service refuses, or `ROOM`."""
    words = _CAMEL.sub(lambda letter: f"_{letter[0].lower()}", message)  # xAI: presencePenalty
    named = [field for field in _FIELD.findall(words.lower()) if field != "n" or param == "n" or "'n'" in words]
    field = param if param in FIELDS else next(iter(named), None)
    if field is None:
        return None
    if _REFUSED.search(message) or (code or "").startswith("unsupported"):
        return field
    return ROOM if field in CAP_FIELDS and _TOO_MUCH.search(message) else None


def _without_names(message: str, sent: str) -> str:
    """Remove names that the caller chose from a message: a tool may be called unknown-max_tokens.

    Args:
        sent: the request's JSON.
    """
    message = _PATH.sub("", message)
    names: set[str] = set()
    with suppress(ValueError):
        body = as_object(read_json(sent))
        names = {*_strings([body.get(field) for field in _CALLERS_OWN], keys=True)} - _OF_THE_API
    return _QUOTATION.sub(lambda quoted: "" if quoted[2] in names else quoted[0], message)


def _errors(payload: object) -> Iterator[Mapping[str, Any]]:
    """Yield the error, then the object around it."""
    outer = payload[0] if isinstance(payload, list) and payload else payload  # Gemini sends a list
    if isinstance(outer, dict):
        inner = outer.get("error")
        yield from (one for one in (inner, outer) if isinstance(one, dict))


def _name(payload: object, fields: Sequence[str], private: Sequence[str]) -> str | None:
    """Return the first of these fields with a short name as its value, unless it may be quoted from what was sent."""
    for source in _errors(payload):
        for field in fields:
            name = source.get(field)
            if not isinstance(name, str) or not _CODE.fullmatch(name) or name.isdigit():
                continue
            if not any(_quotes(name, secret) for secret in private):
                return name
    return None


def _quotes(code: str, secret: str) -> bool:
    return code in secret or (secret != "" and secret in code)


# -- redaction ---------------------------------------------------------------------------------------------------------

_HIDDEN = "[...]"
_MOST_SENT = 2**18  # characters; for a longer request no message is passed on
_QUOTED, _QUOTED_KEY = 12, 6  # this many characters in a row that also occur in the request, or in the key, are hidden
_PERSONAL = re.compile(r"[^\s\"'`,;:()\[\]{}]*[\d@][^\s\"'`,;:()\[\]{}]*")  # a word that may be a number or address


def redacted(message: str, private: str) -> str:
    """Return the beginning of a message on one line, with keys and even short quotations of private JSON hidden.

    >>> redacted("no rubric for 'Who died?'", '["Who died?"]')
    "no rubric for '[...]'"
    """
    texts = " ".join("\n".join(_texts(private)).split())
    return _redacted(message[:_MOST_SHOWN], [texts, texts])


def _redacted(message: str, private: Sequence[str]) -> str:
    """Return the message on one line, with keys and quotations of the texts that were sent hidden.

    Args:
        private: the texts that were sent, then the keys.
    """
    texts, *keys = private or ("",)
    if len(texts) > _MOST_SENT:
        return ""
    message = _KEY.sub(_HIDDEN, " ".join(message.split()))
    for key in keys:
        message = _without_runs(message, key, _QUOTED_KEY)
    texts = " ".join(texts.split())
    message = _without_runs(message, texts, _QUOTED)
    message = _PERSONAL.sub(lambda word: _HIDDEN if len(word[0]) > 3 and word[0] in texts else word[0], message)
    printable = "".join(letter for letter in message if letter.isprintable())
    return printable if any(map(str.isalnum, printable)) else ""


def _texts(sent: str) -> Iterator[str]:
    """Yield the caller's own texts in the JSON that was sent: every string value except the model's name."""
    try:
        body = read_json(sent)
    except ValueError:
        yield sent
        return
    inner = [value for name, value in body.items() if name != "model"] if isinstance(body, dict) else [body]
    yield from _strings(inner)


def _strings(inner: list[Any], *, keys: bool = False) -> Iterator[str]:
    """Yield every string within these JSON values, and with ``keys`` those of objects too; empties the list."""
    while inner:
        one = inner.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict):
            inner += [*one, *one.values()] if keys else one.values()
        elif isinstance(one, list):
            inner += one


def _without_runs(message: str, secret: str, length: int) -> str:
    """Hide every run of ``length`` characters in the message that is also in the secret."""
    hidden = bytearray(len(message))
    for at in range(len(message) - length + 1):
        if message[at : at + length] in secret:
            hidden[at : at + length] = b"\1" * length
    pieces = [letter if not hide else "\0" for letter, hide in zip(message, hidden, strict=True)]
    return re.sub("\0+", _HIDDEN, "".join(pieces))


def _retry_after(headers: Mapping[str, str], message: str) -> float | None:
    """Return the seconds, at least 0, to wait before a retry; None: the response does not say.

    By ``retry-after-ms``, by ``Retry-After`` (seconds, or a date, which is compared with the response's own date as the
    two machines' clocks may differ), or by the message.
    """
    for header, unit in (("retry-after-ms", 0.001), ("Retry-After", 1.0)):
        with suppress(ValueError, KeyError):
            seconds = float(headers[header]) * unit
            return max(seconds, 0.0) if math.isfinite(seconds) else None
    with suppress(ValueError, OverflowError):
        now = _seconds_of(headers["Date"]) if "Date" in headers else time.time()
        return max(_seconds_of(headers.get("Retry-After", "")) - now, 0.0)
    asked = _ASKED.search(message)
    return span_s(asked[1].lower()) if asked else None


def span_s(text: str) -> float | None:
    """Return the seconds of a span of time; None if it is not one.

    >>> span_s("6m0.5s"), span_s("20ms"), span_s("soon")
    (360.5, 0.02, None)
    """
    parts = _SPAN.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def _seconds_of(date: str) -> float:
    """Return the Unix time of an HTTP date; ValueError or OverflowError if it is not one."""
    found = email.utils.parsedate_to_datetime(date)
    return found.replace(tzinfo=found.tzinfo or UTC).timestamp()  # one of the three formats names no zone


def unsupported(message: str) -> Feature | None:
    """Return the feature that an error message says is not supported; None if it names none.

    >>> unsupported("No endpoints found that support tool use."), unsupported("You uploaded an unsupported image.")
    ('tools', None)
    """
    return next((feature for feature, pattern in _LACKING.items() if pattern.search(message[:_LONGEST])), None)


# -- what to do about it -----------------------------------------------------------------------------------------------

_CREDIT = re.compile(r"insufficient|balance|credit|billing|quota|payment|spend", re.IGNORECASE)
_WRONG_KEY = re.compile(r"api.?key|authenticat|unauthori[sz]ed|credentials", re.IGNORECASE)
_MODEL = re.compile(r"\bmodel|deployment", re.IGNORECASE)
#: Words about what the caller sent, in which any name may occur: a tool may be called get_balance.
_CONTENT = re.compile(r"\b(?:tools?|functions?|messages|schema|images?)\b", re.IGNORECASE)
_LONG = re.compile(
    r"context.?length|context.?window|maximum context|too long|input tokens|reduce the length", re.IGNORECASE
)
_FILTER = re.compile(r"content.?(?:filter|policy|management)|flagged|moderation|safety", re.IGNORECASE)

_ROOM = "give it more room: a larger max_tokens, or a larger thinking_tokens of the endpoint"
_SHORTEN = "shorten the prompt, or ask a model with a longer context"
_REPHRASE = "rephrase the prompt: the service's filter withholds it"
_CHECK = "check the parameters: the service does not take the request as it is"
_AT_THE_DOOR = "check base_url (is it https?) and cert: a web server in front of the service does not take the call"
_SEE = "ask without choices, answer and tools to see the whole replies, and state in the prompt how to answer"
_REFUSES = (*REFUSING, 413)  # statuses that may refuse the request itself


def located(failure: Failure, endpoint: Endpoint) -> Failure:
    """Add to a failure its host, its model, a hint what to do, and whether the request itself is the cause."""
    host = host_of(endpoint)
    hint = failure.hint or _hint(failure, endpoint, host or "the service")
    # Some services answer 400 where the key, the credit or the model is wrong.
    refused = failure.status in _REFUSES and (failure.lacks is not None or hint in (_SHORTEN, _REPHRASE, _CHECK))
    of_request = refused or failure.cut or failure.code in WITHHELD
    return replace(failure, host=host, model=endpoint.model, hint=hint, of_request=of_request)


def host_of(endpoint: Endpoint) -> str | None:
    """Return the host and port that the endpoint's calls go to."""
    return urlsplit(_address(endpoint)).netloc.rpartition("@")[2] or None


def _address(endpoint: Endpoint) -> str:
    """Return the URL that the endpoint's calls go to, which may hold credentials; empty if it has none."""
    return (endpoint.base_url if endpoint.client is None else str(endpoint.client.base_url)) or ""


def _hint(failure: Failure, endpoint: Endpoint, host: str) -> str:
    if failure.kind == "connection":
        other = "that its server runs" if is_loopback(host.rpartition(":")[0].strip("[]")) else "the network"
        return f"check base_url and {other}: {host} could not be reached"
    if failure.kind == "status":
        return _status_hint(failure, endpoint, host)
    if failure.kind == "unusable":
        return _unusable_hint(failure)
    if failure.kind == "limited":
        return "try again later, or raise deadline_s of the ask"
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
    named = status == 400 and (failure.param not in (None, "model") or _CONTENT.search(message) is not None)
    if 300 <= status < 400 and status != 304:
        return f"check base_url {endpoint.base_url or host}: it redirects, and redirects are not followed"
    if status < 400:
        return f"check base_url: is {host} an OpenAI-compatible service?"
    if status == 407:
        return PROXY_LOGIN
    spent = status in (400, 403, 429) and not named and _CREDIT.search(message) and "per" not in message.split()
    if status == 402 or spent:
        return f"add credit to the account at {host}"
    if status == 401 or (status in (400, 403) and not named and _WRONG_KEY.search(message)):
        if endpoint.api_key_env is None and endpoint.api_key is None and endpoint.client is None:
            return f"name the variable of its key in api_key_env: {host} asks for one"
        return f"set {variable} to a key that {host} accepts"
    if failure.code == "tool_use_failed":
        return f"try again, or ask another model: {endpoint.model!r} wrote no readable tool call"
    if failure.lacks is not None and status < 500:
        return f"leave {failure.lacks} out, or ask another model"
    if status in (404, 405) and not _MODEL.search(message):
        path = urlsplit(_address(endpoint)).path
        likely = "/v1 may be missing" if "/v1" not in path else "its path may be wrong"
        return f"check base_url {endpoint.base_url or host}: {likely}"
    unknown = _MODEL.search(message) and re.search("exist|found|access|invalid|know", message)
    if status in (400, 404) and not named and unknown:
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
