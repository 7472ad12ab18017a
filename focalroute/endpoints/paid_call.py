"""Pays for calls: reserves the most that a call can cost, settles its bill, and looks up costs reported later."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pydantic_core import to_json

from focalroute.core.config import Endpoint
from focalroute.core.errors import CallFailed
from focalroute.core.event_loops import Background
from focalroute.core.json_values import as_object, objects_in
from focalroute.core.records import Usage
from focalroute.endpoints.client import EndpointClient
from focalroute.endpoints.wire import CAP_FIELDS, Request
from focalroute.money.budget import AskBudget, HeldAmount
from focalroute.money.cost import Bill, bill_of
from focalroute.store.base import LedgerRow

_MILLION = Decimal(1_000_000)
_PER_MESSAGE = 16  # more tokens than a chat template adds to one message,
_PER_REQUEST = 64  # and to all of them
_ASCII = bytes(range(128))
_PER_IMAGE = 65_536  # tokens: the most of any known service is 48,169 (gpt-4o-mini, high detail)
_COUNTED_PARTS = ("text", "refusal")  # types of content parts whose bytes bound their tokens
#: Parameters whose cost no number of tokens bounds.
_UNBOUNDED_PARAMS = ("audio", "modalities", "plugins", "prediction", "service_tier", "web_search_options")
#: Parameters of a caller that cost no more than the tokens they allow and the bytes they add to the prompt.
_BOUNDED_PARAMS = frozenset(
    ("chat_template_kwargs", "enable_thinking", "extra_headers", "frequency_penalty", "grammar", "guided_choice",
     "guided_grammar", "guided_json", "guided_regex", "ignore_eos", "include_reasoning", "json_schema", "logit_bias",
     "logprobs", "max_completion_tokens", "max_tokens", "metadata", "min_p", "min_tokens", "n", "parallel_tool_calls",
     "presence_penalty", "prompt_cache_key", "reasoning", "reasoning_effort", "repetition_penalty", "response_format",
     "safety_identifier", "seed", "skip_special_tokens", "stop", "stop_token_ids", "store", "structured_outputs",
     "temperature", "thinking", "tool_choice", "tools", "top_k", "top_logprobs", "top_p", "user", "verbosity")
)  # fmt: skip
_OWN_TOOLS = ("custom", "function")  # run by the caller; all others run at the service, which bills them separately


@dataclass(slots=True)
class PaidCall:
    """A call for which the most that it can cost is reserved; `settle` must follow.

    Attributes:
        usage: the tokens it consumed, set as soon as they are known; None: unknown.
        generation: the service's id for the call, set as soon as it is known; its cost is looked up by this id.
        free: whether it failed before anything was sent.
    """

    _ask_budget: AskBudget
    _endpoint: Endpoint
    _bound: Decimal | None
    _hold: HeldAmount
    usage: Usage | None = None
    free: bool = False
    generation: str | None = None
    _row: LedgerRow | None = None

    @classmethod
    async def reserve(cls, ask_budget: AskBudget, endpoint: Endpoint, request: Request) -> PaidCall | None:
        """Reserve the most that a call can cost; None: it is not affordable."""
        bound = upper_bound(request, endpoint)
        hold = await ask_budget.reserve(endpoint.name, bound)
        if hold is None:
            return None
        return cls(ask_budget, endpoint, bound, hold)

    def fail(self, error: CallFailed) -> None:
        """Note what a failed call consumed."""
        self.usage, self.free = error.usage or self.usage, error.free

    def settle(self) -> Bill:
        """Replace the reservation by the bill."""
        bound, usual = self._bound, None
        if bound is not None and self.usage is None:
            usual = self._ask_budget.usual_cost(self._endpoint.name, bound)
        bill = bill_of(self._endpoint, self.usage, bound, free=self.free, usual=usual)
        self._row = self._ask_budget.settle(self._hold, bill)
        return bill

    @property
    def doubtful(self) -> bool:
        """Whether its bill is an estimate that `correct` can replace; false if it counts towards no stored limit."""
        return self._row is not None and self._row.held_on is not None

    def correct(self, cost: Decimal) -> None:
        """Replace the estimate by the cost, USD, that the service reported afterwards."""
        if self._row is not None:
            bill = bill_of(self._endpoint, Usage(0, 0, cost_usd=cost), self._bound)
            self._ask_budget.correct(self._row, bill)


@contextlib.asynccontextmanager
async def reserved(ask_budget: AskBudget, endpoint: Endpoint, request: Request) -> AsyncIterator[PaidCall | None]:
    """Reserve a call's cost and settle it, however the call ends; yields None if it is not affordable."""
    paid_call = await PaidCall.reserve(ask_budget, endpoint, request)
    if paid_call is None:
        yield None
        return
    try:
        yield paid_call
    except CallFailed as error:
        paid_call.fail(error)
        raise
    finally:
        paid_call.settle()


def upper_bound(request: Request, endpoint: Endpoint) -> Decimal | None:
    """Return the most that one call can cost, USD; None: the price is unknown, or nothing bounds the tokens.

    Each byte of the messages and of the parameters counts as a token of the prompt, since tools and schemas are part of
    it, and each sample as if all its allowed tokens were generated.
    """
    params = request.params_over(endpoint.params)
    price, generated = endpoint.price, max_generated_tokens(params, request)
    if price is None or generated is None or why_unbounded(params, request.messages) is not None:
        return None
    prompt_usd_per_1m = max(price.prompt, price.cached)
    return (max_prompt_tokens(params, request) * prompt_usd_per_1m + generated * price.completion) / _MILLION


def max_prompt_tokens(params: Mapping[str, Any], request: Request) -> int:
    """Return the most tokens that the prompt of a call with these parameters may have."""
    return (
        _PER_REQUEST
        + _json_tokens(params)
        + _json_tokens(request.choices)
        + sum(map(_message_tokens, request.messages))
        + sum(map(_text_tokens, request.scored))
    )


def why_unbounded(params: Mapping[str, Any], messages: Iterable[Mapping[str, Any]]) -> str | None:
    """Return an error message for a request whose cost has no bound: the field and what to do; None if it has one."""
    for name in _UNBOUNDED_PARAMS:
        if params.get(name) is not None:
            return f"params: {name}: nothing bounds its cost; leave it out"
    for tool in objects_in(params.get("tools")):
        if tool.get("type", "function") not in _OWN_TOOLS:
            return "params: tools: nothing bounds the cost of tools that run at the service; give functions only"
    for message in messages:
        for part in objects_in(message.get("content")):
            if not _is_bounded(part):
                kind = str(part.get("type"))[:40]
                return (
                    f"query: nothing bounds the tokens of a content part of type {kind!r}; "
                    "send text, images or audio (in base64)"
                )
    return None


def unknown_param(params: Mapping[str, Any]) -> str | None:
    """Return a caller's first parameter that may cost extra, as by a search or another model; None: none may."""
    return next((name for name, value in params.items() if value is not None and name not in _BOUNDED_PARAMS), None)


def max_generated_tokens(params: Mapping[str, Any], request: Request) -> int | None:
    """Return the most tokens that a call with these parameters may generate; None: unknown."""
    if request.scored:  # none are wanted, but vLLM generates, and counts, a token for each text
        return len(request.scored)
    caps = [params[name] for name in CAP_FIELDS if name in params] or [request.max_tokens]
    samples = params.get("n", request.n)
    if not all(type(count) is int and count >= 0 for count in (*caps, samples)):
        return None
    tokens: int = max(caps) * samples
    return tokens


def _message_tokens(message: Mapping[str, Any]) -> int:
    rest = {key: value for key, value in message.items() if key not in ("role", "content")}  # tool calls, a name
    return _PER_MESSAGE + _content_tokens(message.get("content")) + _json_tokens(rest)


def _text_tokens(text: str) -> int:
    return _PER_MESSAGE + _content_tokens(text)


def _json_tokens(value: object, *, escaped: bool = True) -> int:
    """Return the most tokens of a value as JSON: a token a byte.

    Chat templates write tools with spaces after commas and colons and, if ``escaped``, with all but ASCII as escapes.
    Of audio each byte of its base64 form counts, which is more than any codec makes of it.
    """
    if not value:
        return 0
    try:
        sent = to_json(value)  # much faster than json
    except ValueError:  # a lone surrogate, or not JSON
        return len(json.dumps(value, default=str))
    beyond_ascii = 0 if sent.isascii() or not escaped else len(sent.translate(None, _ASCII))
    return len(sent) + sent.count(b",") + sent.count(b":") + 2 * beyond_ascii  # two bytes or more become six


def _content_tokens(content: Any) -> int:
    if isinstance(content, str):
        return len(content.encode(errors="surrogatepass"))
    parts = objects_in(content)
    counted = [part for part in parts if part.get("type") != "image_url"]
    return _PER_IMAGE * (len(parts) - len(counted)) + _json_tokens(counted, escaped=False)


def _is_bounded(part: Mapping[str, Any]) -> bool:
    """Whether the size of a content part bounds its tokens, unlike that of files and videos."""
    kind = part.get("type")
    if kind == "input_audio":  # DashScope takes the address of audio of any length in place of its bytes
        return not any("://" in str(value) for value in as_object(part.get("input_audio")).values())
    return kind == "image_url" or kind in _COUNTED_PARTS or (kind is None and isinstance(part.get("text"), str))


# -- the costs of calls that broke off ---------------------------------------------------------------------------------

_HEADER = b"x-generation-id"
_GENERATION = re.compile(r"[A-Za-z0-9_.:-]{1,128}")  # anything else might change the URL of the lookup
_WAITS_S = (1.0, 3.0, 10.0, 30.0, 120.0)
_MOST_LOOKUPS = 100  # under way; further calls keep their estimates
#: The running task's call.
PAID_CALL: ContextVar[PaidCall | None] = ContextVar("paid_call", default=None)


def note_generation(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Note the service's id for this task's call, if the response's headers have it."""
    paid_call = PAID_CALL.get()
    if paid_call is not None:
        ids = (value.decode("latin-1") for name, value in headers if name.lower() == _HEADER)
        paid_call.generation = next(ids, None)


class CostLookups:
    """Looks up, in the background, what one endpoint's calls cost that broke off. Closing cancels unfinished lookups.

    OpenRouter gives each call an id, in the header ``X-Generation-Id`` and in every piece of a stream
    (https://openrouter.ai/docs/api-reference/streaming), and reports its cost by that id
    (https://openrouter.ai/docs/api-reference/get-a-generation) some time later.

    Attributes:
        supported: whether the endpoint's service offers this.
    """

    def __init__(self, client: EndpointClient) -> None:
        self.supported = client.endpoint.spoken == "openrouter"
        self._client = client
        self._lookups = Background()

    def begin(self, paid_call: PaidCall) -> None:
        """Look up the cost of a call whose bill is an estimate, if its service gave it an id."""
        generation = paid_call.generation or ""
        if not self.supported or not paid_call.doubtful or not _GENERATION.fullmatch(generation):
            return
        if len(self._lookups) < _MOST_LOOKUPS:
            self._lookups.start(self._look_up(paid_call, generation))

    async def _look_up(self, paid_call: PaidCall, generation: str) -> None:
        for wait_s in _WAITS_S:
            await asyncio.sleep(wait_s)
            with contextlib.suppress(CallFailed):
                cost = await self._client.cost_of(generation)
                if cost is not None:
                    paid_call.correct(cost)
                    return

    async def aclose(self) -> None:
        """Cancel the running loop's lookups."""
        await self._lookups.cancel()
