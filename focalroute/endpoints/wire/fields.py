"""Reads the fields of a reply, as hostile input: a value that is not credible counts as missing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any

from focalroute.core.dollars import stated_usd
from focalroute.core.errors import CallFailed
from focalroute.core.json_values import as_object, objects_in
from focalroute.core.records import Failure, Usage

_NO_LOGPROB = -9999.0  # what vLLM writes for "none"
_ABOVE_ZERO = 1e-3  # rounding may lift a log-probability above 0, but not by more
_MAX_TOKEN_COUNT = 10**9
_MOST_TICKS = Decimal(10**15)  # 100,000 USD
_EXACT = Context(prec=50)  # adds two such amounts without rounding
#: A service's finish reason of a reply that was cut or withheld -> OpenAI's. Gemini's come in capitals or with a colon.
_FINISHES = {
    **dict.fromkeys(("length", "max_tokens", "model_length"), "length"),  # the last is Mistral's
    **dict.fromkeys(("content_filter", "safety", "recitation", "blocklist", "prohibited_content"), "content_filter"),
    **dict.fromkeys(("spii", "sensitive"), "content_filter"),  # the latter is Z.ai's
}
#: A field of the usage in other APIs -> its name in this one.
_OTHER_NAMES = {
    "input_tokens": "prompt_tokens", "input_tokens_details": "prompt_tokens_details",
    "output_tokens": "completion_tokens", "output_tokens_details": "completion_tokens_details",
}  # fmt: skip
#: Finish reasons of a reply that its service broke off: OpenRouter and Mistral, vLLM and SGLang, DeepSeek, Z.ai.
_BROKEN = ("error", "abort", "insufficient_system_resource", "network_error")


@dataclass(slots=True)  # a frozen one takes five times as long to make
class Token:
    """One generated token.

    Attributes:
        logprob: its natural log-probability, at most 0.
        top: the most probable tokens in its place -> their log-probabilities; empty if only its own came back.
    """

    text: str
    logprob: float
    top: Mapping[str, float]


def protocol_error(message: str, usage: Usage | None = None) -> CallFailed:
    """Return the failure of a reply that is not in the chat completion format."""
    return CallFailed(Failure("protocol", message), usage)


def reported_error(error: object, usage: Usage | None, *, begun: bool = False) -> CallFailed:
    """Return the failure for a response of status 2xx with an error in its body, as OpenRouter sends them.

    Args:
        begun: whether part of the reply has arrived, which is billed.
    """
    code = as_object(error).get("code")
    if isinstance(code, str) and len(code) == 3 and code.isdecimal():
        code = int(code)
    if type(code) is int and 400 <= code <= 599:
        failure = Failure("status", f"the reply reports error {code}", status=code)
    else:
        failure = Failure("protocol", "the reply reports an error")
    return CallFailed(failure, usage, free=False if begun else None, reported=error)


def error_in(payload: Mapping[str, Any]) -> object:
    """Return the error that a reply reports, None if it reports none. Older versions of vLLM send nothing else."""
    error = payload.get("error")
    return payload if error is None and payload.get("object") == "error" else error


def finish_of(choice: Mapping[str, Any], usage: Usage | None) -> str | None:
    """Return a choice's finish reason, by OpenAI's name if it was cut or withheld; None: it has not ended.

    Raises:
        CallFailed: the service broke it off.
    """
    reason = text_of(choice.get("finish_reason"))
    if reason in _BROKEN:
        raise reported_error(choice.get("error") or reason, usage, begun=True)
    kind = (reason or "").lower().partition(":")[0]
    return _FINISHES.get(kind, reason)


def text_of(value: object) -> str | None:
    """Return a string without lone surrogates, which JSON may hold but no store; None if it is not a string."""
    if not isinstance(value, str) or value.isascii():
        return value if isinstance(value, str) else None
    return value.encode("utf-8", "replace").decode()


def content_of(content: object) -> str | None:
    """Return a message's text. Its content may be a string, nothing or text parts; None: it is none of these."""
    if content is None:
        return ""
    if isinstance(content, list):
        parts = [text_of(part.get("text", "")) if isinstance(part, dict) else None for part in content]
        return None if None in parts else "".join(part for part in parts if part)
    return text_of(content)


def usage_of(usage: object) -> Usage | None:
    """Return the usage; None if it is absent, negative, all zero or contradicts itself.

    Gateways to other APIs may use their names: ``input_tokens``, ``output_tokens``. If the generated tokens are left
    out, they are computed from the total.
    """
    if not isinstance(usage, dict):
        return None
    given = {name: value for name, value in usage.items() if value is not None}
    usage = {_OTHER_NAMES.get(name, name): value for name, value in given.items()} | given
    prompt, total = count_of(usage.get("prompt_tokens")), count_of(usage.get("total_tokens")) or 0
    if prompt is None:
        return None
    completion = count_of(usage.get("completion_tokens", total - prompt if total > prompt else None))
    if completion is None:
        return None
    cached = _first_count(
        _within(usage, "prompt_tokens_details", "cached_tokens"),
        usage.get("prompt_cache_hit_tokens"),
        usage.get("cached_tokens"),
    )
    reasoning = _first_count(
        _within(usage, "completion_tokens_details", "reasoning_tokens"), usage.get("reasoning_tokens")
    )
    if cached > prompt:
        return None
    missing = total - prompt - completion  # xAI and Gemini count thinking only in the total
    if missing > 0 or reasoning > completion:  # a Usage counts it in the completion
        reasoning = max(reasoning, missing)
        completion += reasoning
    cost = _cost(usage)
    return Usage(prompt, completion, cached, reasoning, cost) if prompt or completion or cost else None


def _first_count(*values: object) -> int:
    """Return the first credible count; 0 if there is none.

    Cached tokens: OpenAI, DeepSeek (https://api-docs.deepseek.com/guides/kv_cache), Together.
    """
    for value in values:
        if value is not None and (count := count_of(value)) is not None:
            return count
    return 0


def _within(usage: Mapping[str, Any], details: str, name: str) -> object:
    return as_object(usage.get(details)).get(name)


def count_of(value: object) -> int | None:
    """Return a credible count (a whole number, not negative, at most a billion); else None."""
    if type(value) is float and value.is_integer():  # as Lua and JavaScript may write one
        value = int(value)
    return value if type(value) is int and 0 <= value <= _MAX_TOKEN_COUNT else None


def stated_cost(payload: object) -> Decimal | None:
    """Return the cost, USD, from OpenRouter's reply to the lookup of a call; None: it has none, or not yet."""
    call = as_object(as_object(payload).get("data"))
    return _cost({**call, "cost": call.get("total_cost"), "cost_details": call})


def _cost(usage: Mapping[str, Any]) -> Decimal | None:
    """Return the stated cost, USD; None: there is none.

    It includes what OpenRouter charges to a caller's own key (``upstream_inference_cost``, unless ``is_byok`` is
    false). xAI states ticks of 1e-10 USD (https://docs.x.ai/developers/cost-tracking).
    """
    ticks = stated_usd(usage.get("cost_in_usd_ticks"), _MOST_TICKS)
    if ticks is not None:
        return ticks.scaleb(-10)
    cost = stated_usd(usage.get("cost", usage.get("estimated_cost")))
    upstream = None if cost is None else _within(usage, "cost_details", "upstream_inference_cost")
    if cost is None or upstream is None or usage.get("is_byok") is False:
        return cost
    upstream_cost = stated_usd(upstream)
    return None if upstream_cost is None else stated_usd(_EXACT.add(cost, upstream_cost))


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def tokens_of(logprobs: object) -> tuple[Token, ...] | None:
    """Return the tokens of a choice, in OpenAI's or Together's format; None if any is missing or not credible."""
    if not isinstance(logprobs, dict):
        return None
    content = logprobs.get("content")
    entries = _openai_entries(content) if isinstance(content, list) else _together_entries(logprobs)
    tokens = [_token(*entry) for entry in entries]
    if not tokens or None in tokens:
        return None
    known = tuple(token for token in tokens if token is not None)
    all_zero = all(token.logprob == 0 and not any(token.top.values()) for token in known)
    return None if all_zero else known


def answer_tokens(tokens: Sequence[Token], text: str) -> tuple[Token, ...] | None:
    """Return those tokens of a reply with thinking that spell its answer; None if none do."""
    at = "".join(token.text for token in tokens).rfind(text.strip()) if text.strip() else -1
    if at < 0:
        return None
    for i, token in enumerate(tokens):
        at -= len(token.text)
        if at < 0:
            return tuple(tokens[i:])
    return None


def echoed_tokens(logprobs: object) -> tuple[Token, ...] | None:
    """Return the tokens of an echoed prompt but the first, which has no log-probability; None if any is missing."""
    entries = _together_entries(as_object(logprobs))[1:]
    tokens = [_token(text, value, ()) for text, value, _ in entries]
    known = tuple(token for token in tokens if token is not None)
    return known if any(token.logprob for token in known) and len(known) == len(tokens) else None


_Entry = tuple[object, object, Sequence[tuple[object, object]]]


def _openai_entries(content: Sequence[object]) -> list[_Entry]:
    entries: list[_Entry] = []
    for item in content:
        item = as_object(item)
        tops = [(top.get("token"), top.get("logprob")) for top in objects_in(item.get("top_logprobs"))]
        entries.append((item.get("token"), item.get("logprob"), tops))
    return entries


def _together_entries(logprobs: Mapping[str, Any]) -> list[_Entry]:
    """Read parallel lists; ``top_logprobs`` is a list of objects, or the single object of the first token."""
    texts, values, tops = (logprobs.get(name) for name in ("tokens", "token_logprobs", "top_logprobs"))
    if not isinstance(texts, list) or not isinstance(values, list) or len(texts) != len(values):
        return []
    if not isinstance(tops, list):
        tops = [tops]
    alternatives = [list(as_object(top).items()) for top in tops]
    alternatives += [[]] * len(texts)
    return list(zip(texts, values, alternatives, strict=False))


def _token(text: object, logprob: object, tops: Sequence[tuple[object, object]]) -> Token | None:
    value = _number(logprob)
    if not isinstance(text, str) or value is None or not _NO_LOGPROB < value <= _ABOVE_ZERO:
        return None
    top: dict[str, float] = {}
    for other, other_logprob in tops:
        mass = _number(other_logprob)
        if isinstance(other, str) and mass is not None and _NO_LOGPROB < mass <= _ABOVE_ZERO:
            # distinct tokens may look the same (" A" and "A" in some vocabularies): their probabilities add up
            top[other] = mass if other not in top else math.log(math.exp(top[other]) + math.exp(mass) + 1e-300)
    if sum(math.exp(mass) for mass in top.values()) > 1.01:
        return None
    return Token(text, min(value, 0.0), {other: min(mass, 0.0) for other, mass in top.items()})
