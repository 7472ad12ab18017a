"""The capabilities of an endpoint: declared in the pool file, or else measured with tiny calls."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
import operator
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from focalroute.core.config import Endpoint
from focalroute.core.errors import CallFailed
from focalroute.core.json_values import as_object, objects_in
from focalroute.core.records import Failure, Query, Usage
from focalroute.endpoints.client import EndpointClient
from focalroute.endpoints.paid_call import max_generated_tokens, max_prompt_tokens
from focalroute.endpoints.quirks import with_room
from focalroute.endpoints.wire import Completion, Request
from focalroute.endpoints.wire.refusals import Feature

_MAX_TOP = 20  # the most alternatives to a token that OpenAI, Together and vLLM return
_FEWER_TOP = 5  # stricter services still return these
_MAX_TOKENS = 48  # some servers write blanks and a code fence before a constrained answer

_QUESTION = "Which number is larger?\n\nA. 7\nB. 9\n\nAnswer with the letter of one choice only."
_MESSAGES = ({"role": "user", "content": _QUESTION},)
#: Never sent: a request as large as all calls of a capability check together that are answered, for an upper bound of
#: their cost. It has seven questions, and as much again for the chat template of each call.
CHECK = Request(14 * _MESSAGES, 7 * _MAX_TOKENS, n=2, params={})
#: Letters that the question does not offer: only a model that was constrained to them answers with one.
_CONSTRAINED = ("Q", "Z")
#: The smallest useful call, which shows that the endpoint answers.
TRIAL = Request(({"role": "user", "content": "Answer with the word yes."},), 8)
#: Time limit of that call, seconds.
TRIAL_TIMEOUT_S = 10.0


_IMAGES = frozenset(("image_url", "input_image", "image"))
_SHORT = 2048  # characters of a prompt that fits every context
#: Four letters of a script that has no spaces: Thai, Lao, Burmese, Khmer, Japanese or Chinese. No tokenizer in use puts
#: as many into one token, on average.
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]{4}")


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The capabilities of an endpoint.

    Attributes:
        logprobs: whether replies have credible log-probabilities.
        top_logprobs: how many alternatives to each token they have; 0: none.
        n: whether one call can return several samples.
        structured_choice: whether an answer can be constrained to a set of choices.
        stream_usage: whether a stream ends with its usage.
        whole_choices: whether closed questions are asked by the likelihood of each whole choice (see
            `focalroute.endpoints.elicit.closed`); set in the pool file, not measured.
        thinks: whether the model thinks before it answers; learned from its replies.
    """

    logprobs: bool = False
    top_logprobs: int = 0
    n: bool = False
    structured_choice: bool = False
    stream_usage: bool = False
    whole_choices: bool = False
    thinks: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the capabilities as plain values, for the store."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: object) -> Capabilities:
        """Read plain values; a capability whose value is missing, or of another type, counts as lacking."""
        known = as_object(values)
        top = known.get("top_logprobs")
        flags = ("logprobs", "n", "structured_choice", "stream_usage", "thinks")
        return cls(top_logprobs=top if type(top) is int else 0, **{name: known.get(name) is True for name in flags})


_DECLARED = tuple(field.name for field in dataclasses.fields(Capabilities) if field.name != "thinks")

#: Of a service that returns plain replies only.
NONE = Capabilities()

#: Of the best services.
ALL = Capabilities(logprobs=True, top_logprobs=_MAX_TOP, n=True, structured_choice=True, stream_usage=True)

#: With these the plan is the most expensive one: several samples.
COSTLIEST = Capabilities(n=True)


def declared(endpoint: Endpoint) -> Capabilities | None:
    """Return the capabilities declared in the pool file if all of them are, so that no check is needed; else None."""
    values = _declared_values(endpoint)
    if len(values) < len(_DECLARED):
        return None
    return Capabilities(**values)


def override(endpoint: Endpoint, measured: Capabilities) -> Capabilities:
    """Return the measured capabilities, with those declared in the pool file in their place."""
    return replace(measured, **_declared_values(endpoint))


def key(endpoint: Endpoint) -> str:
    """Return the key under which a check is stored: service, model, dialect and effort. It holds no secret."""
    service = endpoint.base_url if endpoint.client is None else str(endpoint.client.base_url).rstrip("/")
    effort = "" if endpoint.reasoning_effort is None else f" {endpoint.reasoning_effort}"
    return f"{service or endpoint.name} {endpoint.model} {endpoint.spoken}{effort}"


def _declared_values(endpoint: Endpoint) -> dict[str, Any]:
    values = {name: getattr(endpoint, name) for name in _DECLARED}
    return {name: value for name, value in values.items() if value is not None}


class Needs:
    """The needs of a query that an endpoint must meet; true if there are any.

    Attributes:
        features: in the order of their names. A structured answer (``answer=``) needs none.
        characters: the number of characters in the prompt.
    """

    def __init__(self, query: Query) -> None:
        params, wanted = query.params, query.params.get("response_format")
        contents = [message.get("content") for message in query.messages]
        texts = [content for content in contents if isinstance(content, str)]
        found: list[Feature] = []
        if len(texts) < len(contents):
            parts = [part for content in contents for part in objects_in(content)]
            texts += [part["text"] for part in parts if isinstance(part.get("text"), str)]
            if any(part.get("type") in _IMAGES for part in parts):
                found.append("images")
        if isinstance(wanted, Mapping) and wanted.get("type") == "json_schema":
            found.append("json_schema")
        if params.get("tools") or params.get("functions"):
            found.append("tools")
        self.features: tuple[Feature, ...] = tuple(found)
        self._texts = texts
        self.characters = sum(map(len, texts))

    def __bool__(self) -> bool:
        return bool(self.features) or self.characters > _SHORT

    @functools.cached_property
    def words(self) -> int:
        """The number of words in the prompt, where four letters of a script without spaces count as one.

        It is at most the number of tokens, as no tokenizer in use merges two words into one token.
        """
        return sum(len(text.split()) + len(_UNSPACED.findall(text)) for text in self._texts)

    def surely_exceeds(self, tokens: int) -> bool:
        """Whether the prompt surely has more than twice this many tokens: listed context lengths may be out of date."""
        return self.characters > 4 * tokens and self.words > 2 * tokens


async def call_trial(client: EndpointClient) -> Completion:
    """Make the trial call, within 10 seconds.

    Raises:
        CallFailed: it failed.
    """
    trial = with_room(TRIAL, client.quirks.room)
    return await client.complete(trial, timeout_s=min(TRIAL_TIMEOUT_S, client.endpoint.timeout_s))


_THINKS = Failure("unusable", "the model thinks before it answers: it needs more room", cut=True)


class CapabilityCheck:
    """Measures an endpoint's capabilities: two calls if it accepts all features at once, up to eight if not.

    A capability counts only if the replies show it.

    Args:
        admitted: a context entered for each call, which waits until the call may be made.

    Attributes:
        doubtful: whether a feature counts as lacking because of a status 500, which may have been an outage.
    """

    def __init__(
        self, client: EndpointClient, admitted: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
    ) -> None:
        self.doubtful = False
        self._client = client
        self._admitted = admitted
        self._usages: list[Usage | None] = []
        self._lacking: set[str | None] = set()

    @property
    def usage(self) -> Usage | None:
        """The tokens of all calls so far; None: those of a call are unknown."""
        known = [usage for usage in self._usages if usage is not None]
        return functools.reduce(operator.add, known) if known and len(known) == len(self._usages) else None

    async def run(self) -> Capabilities:
        """Make the calls; return the capabilities that the replies show. To be called once.

        Raises:
            CallFailed: the service cannot be used now, so nothing was learned; it carries the tokens of all calls. If
                ``failure.cut``, the model needs room for thinking, which the client has now noted.
        """
        try:
            return await self._run()
        except CallFailed as error:
            raise CallFailed(error.failure, self.usage, free=error.free and not self._usages) from None
        except asyncio.CancelledError:
            self._usages += self._usages[-1:]  # the call that was cancelled counts as much as the one before it
            raise

    async def _run(self) -> Capabilities:
        with_all = await self._try(n=2, top_logprobs=_MAX_TOP, choices=_CONSTRAINED)
        if with_all:
            found = _measured(with_all, with_all, with_all, _MAX_TOP)
        else:
            found = await self._one_by_one()
        return replace(found, stream_usage=await self._streams_usage(), thinks=self._client.quirks.thinks)

    async def _one_by_one(self) -> Capabilities:
        """Try each feature by itself, as one of them was refused. If each is refused, a plain call must succeed."""
        for top in (_MAX_TOP, _FEWER_TOP, 0):
            if (scored := await self._try(top_logprobs=top)) is not None or "logprobs" in self._lacking:
                break
        sampled, constrained = await self._try(n=2), await self._try(choices=_CONSTRAINED)
        if not (scored or sampled or constrained):
            await self._complete()
        return _measured(scored, sampled, constrained, top)

    async def _try(self, **features: Any) -> Completion | None:
        """Make one call; None if a feature was refused."""
        try:
            return await self._complete(**features)
        except CallFailed as error:
            if not _refused(error):
                raise
            self.doubtful = self.doubtful or error.failure.status == 500
            self._lacking.add(error.failure.lacks)
            return None

    def _count_failed(self, error: CallFailed, request: Request) -> None:
        """Count the tokens of a failed call; if it reports none but may be billed, the most that it allowed."""
        if error.usage or not error.free:
            params = request.params_over(self._client.endpoint.params)
            generated = max_generated_tokens(params, request)
            most = None if generated is None else Usage(max_prompt_tokens(params, request), generated)
            self._usages.append(error.usage or most)

    async def _complete(self, **features: Any) -> Completion:
        """Make one call; CallFailed (see `run`) if its reply is the first to show that the model needs more room."""
        quirks = self._client.quirks
        room = quirks.room
        request = with_room(Request(_MESSAGES, _MAX_TOKENS, **features), room)
        try:
            async with self._admitted():
                completion = await self._client.complete(request)
        except CallFailed as error:
            self._count_failed(error, request)
            quirks.certain = quirks.certain or error.failure.cut
            if quirks.room > room:
                raise CallFailed(_THINKS, error.usage, free=error.free) from None
            raise
        self._usages.append(completion.usage)
        if quirks.room > room and not completion.choices[0].text:
            raise CallFailed(_THINKS, completion.usage)
        return completion

    async def _streams_usage(self) -> bool:
        usage = None
        request = with_room(Request(_MESSAGES, _MAX_TOKENS), self._client.quirks.room)
        try:
            async with self._admitted(), aclosing(self._client.stream(request)) as pieces:
                async for piece in pieces:
                    usage = piece.usage if isinstance(piece, Completion) else None
        except CallFailed as error:
            self._count_failed(error, request)
            if not _refused(error):
                raise
            return False
        self._usages.append(usage)
        return usage is not None


def _refused(error: CallFailed) -> bool:
    """Whether a call may have failed because of its features. Some servers answer unknown fields with status 500."""
    return error.failure.kind == "protocol" or refuses(error.failure)


#: A refused field of a request -> the capabilities that are lacking.
_WITHOUT: Mapping[str, dict[str, Any]] = {
    "logprobs": {"logprobs": False, "top_logprobs": 0},
    "top_logprobs": {"top_logprobs": 0},
    "n": {"n": False},
    "structured_outputs": {"structured_choice": False},
    "json_schema": {"structured_choice": False},
}


def without(able: Capabilities, failure: Failure) -> Capabilities | None:
    """Return the capabilities without the one that the failure refuses; None if it refuses none of them."""
    lost = replace(able, **_WITHOUT.get(failure.lacks or "", {}))
    return None if lost == able else lost


def refuses(failure: Failure) -> bool:
    """Whether a service may have refused a feature of the request: by the status, or because the failure names it."""
    return not failure.cut and (failure.status in (400, 422, 500, 501) or failure.lacks is not None)


def _measured(
    scored: Completion | None, sampled: Completion | None, constrained: Completion | None, top: int
) -> Capabilities:
    """Return the capabilities that the replies show; a reply is None if its request was refused."""
    several = sampled is not None and len(sampled.choices) > 1
    tokens = scored.choices[0].tokens if scored else None
    # Fewer alternatives than asked for may have come back only because the answer was constrained to two letters.
    top = top if tokens and any(len(token.top) > 1 for token in tokens) else 0
    return Capabilities(tokens is not None, top, several, _was_constrained(constrained))


def _was_constrained(completion: Completion | None) -> bool:
    """Whether every sample is one of the letters, bare or in the JSON object asked for."""
    return completion is not None and all(_answered(sample.text) in _CONSTRAINED for sample in completion.choices)


def _answered(text: str) -> object:
    try:
        payload = json.loads(text)
    except (ValueError, RecursionError):
        return text.strip()
    return payload.get("answer") if isinstance(payload, Mapping) else payload
