"""How each kind of service deviates from the OpenAI wire format: what it reads, what it refuses, how it writes.

`DIALECTS` has one `Dialect` for each service; nothing here does I/O.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, Literal

from focalroute.sim.models import SimulatedModel, uniforms
from focalroute.sim.replies import SimulatedToken

_MISSING = -9999.0  # vLLM's log-probability of a masked token
_FILLERS = (
    "The", "I", "**", "\n", "Answer", "Option", "#", "<", "It", "So", "We", "Based", "`", "-", "1", "Let", "?", "=",
    "[", "In",
)  # fmt: skip


def _logprobs_openai(tokens: Sequence[SimulatedToken], top: int) -> Json:
    """OpenAI's ``content`` list, with the ``top`` likeliest alternatives of each token."""
    return {"content": [_entry(token, token.rivals[:top]) for token in tokens], "refusal": None}


def _logprobs_vllm(tokens: Sequence[SimulatedToken], top: int) -> Json:
    """Like OpenAI's, but always with ``top`` alternatives; those without mass are at -9999."""
    entries = []
    for token in tokens:
        entry = _entry(token, token.rivals[:top])
        known = {rival["token"] for rival in entry["top_logprobs"]}
        fillers = [filler for filler in _FILLERS if filler not in known][: top - len(known)]
        entry["top_logprobs"] += [{"token": f, "logprob": _MISSING, "bytes": list(f.encode())} for f in fillers]
        entries.append(entry)
    return {"content": entries}


def _logprobs_llamacpp(tokens: Sequence[SimulatedToken], top: int) -> Json:
    """Like OpenAI's, with token ids."""
    entries = [_entry(token, token.rivals[:top]) for token in tokens]
    for entry in entries:
        for item in (entry, *entry["top_logprobs"]):
            item["id"] = _token_id(item["token"])
    return {"content": entries}


def _logprobs_sampled_only(tokens: Sequence[SimulatedToken], top: int) -> Json:
    """Like OpenAI's, without alternatives (DeepInfra)."""
    return {"content": [_entry(token, ()) for token in tokens]}


def _logprobs_together(tokens: Sequence[SimulatedToken], top: int) -> Json:
    """Together's parallel lists, with a mapping of alternatives for each token."""
    return {
        "tokens": [token.text for token in tokens],
        "token_ids": [_token_id(token.text) for token in tokens],
        "token_logprobs": [_log(token.p) for token in tokens],
        "top_logprobs": [{text: _log(p) for text, p in token.rivals[:top]} for token in tokens],
    }


def _logprobs_together_chunk(tokens: Sequence[SimulatedToken], top: int) -> float:
    """Together's form in a stream: one number for each token."""
    return _log(tokens[0].p)


def _entry(token: SimulatedToken, rivals: Sequence[tuple[str, float]]) -> Json:
    return {
        "token": token.text,
        "logprob": _log(token.p),
        "bytes": list(token.text.encode()),
        "top_logprobs": [{"token": text, "logprob": _log(p), "bytes": list(text.encode())} for text, p in rivals],
    }


def _log(p: float) -> float:
    return round(math.log(max(p, 1e-30)), 6)


def _token_id(token: str) -> int:
    return int.from_bytes(blake2b(token.encode(), digest_size=2).digest(), "big")


Json = dict[str, Any]
WriteLogprobs = Callable[[Sequence[SimulatedToken], int], Any]

_CREATED = 1_767_225_600
_CONTEXT = 32_768
_OPENAI_FIELDS = frozenset({
    "messages", "model", "audio", "frequency_penalty", "function_call", "functions", "logit_bias", "logprobs",
    "max_completion_tokens", "max_tokens", "metadata", "modalities", "n", "parallel_tool_calls", "prediction",
    "presence_penalty", "prompt_cache_key", "reasoning_effort", "response_format", "safety_identifier", "seed",
    "service_tier", "stop", "store", "stream", "stream_options", "temperature", "tool_choice", "tools", "top_logprobs",
    "top_p", "user", "verbosity", "web_search_options",
})  # fmt: skip


class RequestRefused(Exception):
    """The service refuses a request, with an error status and the service's own error type or code.

    ``body``: the body of the response; None: written by the dialect.
    """

    def __init__(
        self, status: int, message: str, kind: str = "invalid_request_error", body: object | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.body = body


def _top(body: Mapping[str, Any], default: int = 0) -> int | None:
    """How many alternatives ``logprobs`` and ``top_logprobs`` ask for, in OpenAI's form; None: no log-probabilities."""
    wanted, top = body.get("logprobs"), body.get("top_logprobs")
    if wanted is not None and not isinstance(wanted, bool):
        raise RequestRefused(400, "Invalid type for 'logprobs': expected a boolean.")
    if top is not None and (isinstance(top, bool) or not isinstance(top, int) or not 0 <= top <= 20):
        raise RequestRefused(400, "Invalid value for 'top_logprobs': expected an integer from 0 to 20.")
    if top is not None and not wanted:
        raise RequestRefused(400, "The 'top_logprobs' parameter is only allowed when 'logprobs' is enabled.")
    if not wanted:
        return None
    return default if top is None else top


def _top_llamacpp(body: Mapping[str, Any]) -> int | None:
    if body.get("logprobs") and body.get("stream") and body.get("tools"):
        raise RequestRefused(400, "logprobs is not supported with tools + stream")
    return _top(body, 20)


def _top_together(body: Mapping[str, Any]) -> int | None:
    wanted = body.get("logprobs")
    if wanted is not None and (isinstance(wanted, bool) or not isinstance(wanted, int) or not 0 <= wanted <= 20):
        raise RequestRefused(
            422, "Input validation error: logprobs must be an integer between 0 and 20", "invalid_request_error"
        )
    return wanted or None


def _top_deepinfra(body: Mapping[str, Any]) -> int | None:
    return 0 if body.get("logprobs") else None


def openai_error(message: str, param: str | None, code: str | None, kind: str = "invalid_request_error") -> Json:
    """The body of an error in OpenAI's form."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _error(status: int, message: str, kind: str) -> Json:
    if kind in ("model_not_found", "invalid_api_key", "rate_limit_exceeded"):
        return openai_error(message, None, kind)
    return openai_error(message, None, None, kind)


def _error_numbered(status: int, message: str, kind: str) -> Json:
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


def _error_detail(status: int, message: str, kind: str) -> Json:
    return {"detail": {"error": message}}


def _models(models: Sequence[SimulatedModel], about: Callable[[SimulatedModel], Json]) -> Json:
    data = [
        {"id": m.name, "object": "model", "created": _CREATED, "owned_by": "focalroute-sim"} | about(m) for m in models
    ]
    return {"object": "list", "data": data}


def _models_together(models: Sequence[SimulatedModel]) -> list[Json]:
    return [
        {
            "id": m.name, "object": "model", "created": _CREATED, "type": "chat", "running": False,
            "display_name": m.name, "organization": "focalroute-sim", "context_length": _CONTEXT,
            "pricing": {"hourly": 0, "input": float(m.input_usd_per_1m), "output": float(m.output_usd_per_1m),
                        "base": 0, "finetune": 0},
        }
        for m in models
    ]  # fmt: skip


def _about_deepinfra(m: SimulatedModel) -> Json:
    price = float(m.input_usd_per_1m)
    pricing = {"input_tokens": price, "output_tokens": float(m.output_usd_per_1m), "cache_read_tokens": price}
    metadata = {
        "description": "A simulated model.",
        "context_length": _CONTEXT,
        "max_tokens": _CONTEXT,
        "pricing": pricing,
    }
    return {"root": m.name, "parent": None, "metadata": metadata}


def _about_openrouter(m: SimulatedModel) -> Json:
    prompt, completion = (format(p / 1_000_000, "f") for p in m.price)
    pricing = {"prompt": prompt, "completion": completion, "request": "0", "image": "0"}
    return {"name": m.name, "context_length": _CONTEXT, "pricing": pricing}


def _details(cost: Decimal, luck: float) -> Json:
    return {
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    }


@dataclass(frozen=True, slots=True)
class Thinking:
    """How a service returns a model's thinking.

    Attributes:
        field: the message's field with the thinking; "": it is in the content; None: it is hidden.
        before: the text before the thinking in the content; ``after`` follows it, ``end`` follows the answer.
        counted: where the usage counts it: among the completion tokens and separately ("details"), only among them
            ("in"), only separately ("apart"), or only in the total ("total").
        starved: the error if the token limit leaves no room for an answer; "": the reply is empty instead.
        tokens: factor on the model's own amount of thinking.
    """

    field: str | None = None
    before: str = ""
    after: str = ""
    end: str = ""
    counted: Literal["details", "in", "apart", "total"] = "details"
    starved: str = ""
    tokens: int = 1


@dataclass(frozen=True, slots=True)
class Dialect:
    """One kind of service.

    Attributes:
        top: reads how many alternatives a request wants for each token; None: no log-probabilities. Raises
            `RequestRefused`.
        logprobs: writes log-probabilities; None: the service has none.
        chunk_logprobs: the same for a chunk of a stream, if that differs.
        end: the token that ends a reply, if it is listed among those with log-probabilities; else empty.
        silent: the share of requests whose log-probabilities are null although they were asked for.
        max_n: most samples in one call; 1: ``n`` is ignored.
        structured: the supported forms of constraint; others are ignored.
        fields: the supported request fields; others are refused. None: others are ignored.
        stream_usage: when a stream reports usage: if asked or always (both in a separate chunk), in the last chunk with
            a choice, or never.
        usage_null: whether every other chunk has ``usage: null``.
        usage: fields to add to the usage, from the call's cost and a uniform number.
        head: fields to add to a reply and to each chunk.
        choice: fields to add to each choice.
        any_model: whether the pool's first model answers for an unknown one.
        error: makes the body of an error, from status, message and type.
        models: makes the body of the list of models.
        preamble: comment lines that open a stream.
        tools: whether tools are supported; otherwise they are ignored.
        unable: makes status and message of a refusal, from the missing feature (in two wordings) and the model's name.
        refuse: checks a request's fields, and raises `RequestRefused`.
        thinking: how the service returns thinking; by default its models do not think.
    """

    top: Callable[[Mapping[str, Any]], int | None] = _top
    logprobs: WriteLogprobs | None = _logprobs_openai
    chunk_logprobs: WriteLogprobs | None = None
    end: str = ""
    silent: float = 0.0
    max_n: int = 128
    structured: frozenset[str] = frozenset({"json_schema"})
    fields: frozenset[str] | None = None
    stream_usage: Literal["asked", "always", "last", "never"] = "asked"
    usage_null: bool = False
    usage: Callable[[Decimal, float], Json] = lambda cost, luck: {}
    head: Mapping[str, Any] = field(default_factory=dict)
    choice: Mapping[str, Any] = field(default_factory=dict)
    any_model: bool = False
    error: Callable[[int, str, str], Json] = _error
    models: Callable[[Sequence[SimulatedModel]], Any] = lambda models: _models(models, lambda m: {})
    preamble: str = ""
    tools: bool = True
    unable: Callable[[str, str, str], tuple[int, str]] = lambda what, _, name: (400, f"{name} does not support {what}")
    refuse: Callable[[Mapping[str, Any]], None] = lambda body: None
    thinking: Thinking = Thinking(counted="in", tokens=0)

    def tells_logprobs(self, *key: object) -> bool:
        """Whether this request gets log-probabilities back."""
        return self.logprobs is not None and (not self.silent or uniforms("silent", *key)[0] >= self.silent)


#: Every dialect, by the name that begins its path.
DIALECTS: Mapping[str, Dialect] = MappingProxyType({
    "openai": Dialect(
        fields=_OPENAI_FIELDS,
        usage_null=True,
        usage=_details,
        head={"service_tier": "default", "system_fingerprint": "fp_simulated"},
    ),
    "together": Dialect(
        top=_top_together,
        logprobs=_logprobs_together,
        chunk_logprobs=_logprobs_together_chunk,
        structured=frozenset({"json_schema", "regex"}),
        stream_usage="last",
        usage_null=True,
        usage=lambda cost, luck: {"cached_tokens": 0},
        models=_models_together,
    ),
    "deepinfra": Dialect(
        top=_top_deepinfra,
        logprobs=_logprobs_sampled_only,
        max_n=4,
        structured=frozenset({"json_schema", "regex"}),
        stream_usage="always",
        usage=lambda cost, luck: {"estimated_cost": float(cost)} if luck < 0.5 else {},
        error=_error_detail,
        models=lambda models: _models(models, _about_deepinfra),
    ),
    "vllm": Dialect(
        logprobs=_logprobs_vllm,
        end="<|im_end|>",
        structured=frozenset({"json_schema", "regex", "choice"}),
        usage=lambda cost, luck: {"prompt_tokens_details": None},
        head={"prompt_logprobs": None, "kv_transfer_params": None},
        choice={"stop_reason": None},
        error=_error_numbered,
        models=lambda models: _models(models, lambda m: {"root": m.name, "parent": None, "max_model_len": _CONTEXT}),
    ),
    "llamacpp": Dialect(
        top=_top_llamacpp,
        logprobs=_logprobs_llamacpp,
        usage=lambda cost, luck: {"prompt_tokens_details": {"cached_tokens": 0}},
        head={"system_fingerprint": "b0-simulated"},
        any_model=True,
        error=_error_numbered,
        models=lambda models: _models(models, lambda m: {"meta": {"n_ctx_train": _CONTEXT}}),
    ),
    "openrouter": Dialect(
        silent=0.25,
        stream_usage="always",
        usage=lambda cost, luck: {"cost": float(cost), "is_byok": False} | _details(cost, luck),
        head={"provider": "Simulated"},
        error=lambda status, message, kind: {"error": {"message": message, "code": status}, "user_id": "simulated"},
        models=lambda models: _models(models, _about_openrouter),
        preamble=": OPENROUTER PROCESSING\n\n",
        unable=lambda _, what, name: (404, f"No endpoints found that support {what}."),
    ),
    "minimal": Dialect(
        top=lambda body: None,
        logprobs=None,
        max_n=1,
        structured=frozenset(),
        stream_usage="never",
        tools=False,
    ),
})  # fmt: skip
