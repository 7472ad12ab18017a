"""Learns from an endpoint's replies and refusals: unsupported fields, and the room that thinking needs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from functools import partial
from typing import Any

from focalroute.core.config import Endpoint
from focalroute.core.json_values import as_list, as_object
from focalroute.core.records import Failure
from focalroute.core.services import service_at, thinks
from focalroute.endpoints.wire import Completion, CompletionChoice, Request
from focalroute.endpoints.wire.refusals import ROOM

_log = logging.getLogger("focalroute")

#: Tokens for thinking, besides those for the answer. OpenAI advises 25,000 to start with for both
#: (https://platform.openai.com/docs/guides/reasoning); most questions take a tenth, and all of it is reserved.
THINKING_TOKENS = 8192
_MOST, _LEAST = 32_768, 512
_GROWTH = 4
#: More tokens after a reply that was cut and shows no thinking: some models give their reasons first.
_TALKING_TOKENS = 512

#: Replies without marks of thinking after which marks that were seen are forgotten.
_REMEMBERED = 4
#: Fields of a request that keep thinking out of the reply; with the last, it echoes a prompt.
_CONSTRAINING = ("response_format", "structured_outputs", "echo")

_CAPS = ("max_tokens", "max_completion_tokens")
#: A field that comes with tool calls -> the services that expect it back; others may refuse it.
#: https://ai.google.dev/gemini-api/docs/thought-signatures, https://openrouter.ai/docs/use-cases/reasoning-tokens,
#: https://api-docs.deepseek.com/guides/thinking_mode,
#: https://platform.moonshot.ai/docs/guide/use-kimi-k2-thinking-model
_WANTED = {
    "extra_content": ("gemini",),
    "reasoning_details": ("openrouter",),
    "reasoning_content": ("deepseek", "moonshot"),
}
#: Fields that can be left out without changing the question.
_OPTIONAL = frozenset(
    ("temperature", "top_p", "presence_penalty", "frequency_penalty", "stream_options", "prompt_cache_key")
)


class Quirks:
    """The known quirks of one endpoint.

    Marks of thinking within a text may be a quotation of them, so what they show is forgotten after a few replies
    without any: one caller's text must not change how all others are asked.

    Attributes:
        certain: whether the model is known by something else than such marks to think before it answers.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        tokens = endpoint.thinking_tokens
        self.certain = endpoint.reasoning_effort != "none" and (bool(tokens) or thinks(endpoint.model))
        self._marked = self._unopened = 0  # replies without marks of thinking until those that were seen are forgotten
        self._name = endpoint.name
        self._room = tokens
        self._fixed = tokens is not None or not endpoint.params.keys().isdisjoint(_CAPS)
        self._cap: str | None = None  # the name of the token limit; None: the usual one at this address
        self._refused: set[str] = set()
        service = endpoint.service or service_at(endpoint.base_url)
        foreign = {field for field, wanted in _WANTED.items() if service not in (None, "litellm", *wanted)}
        self._rewrites: list[Callable[[Mapping[str, Any]], Mapping[str, Any]]] = []  # of a message, in this order
        if foreign:
            self._rewrites.append(partial(_without, foreign))
        if service not in ("openai", "azure"):
            self._rewrites.append(_as_system)
        if service in _WANTED["reasoning_content"]:
            self._rewrites.append(_with_thinking)

    @property
    def thinks(self) -> bool:
        """Whether the model thinks before it answers."""
        return self.certain or self._marked > 0

    @property
    def unopened(self) -> bool:
        """Whether its text begins within the thinking, without an opening mark."""
        return self._unopened > 0

    @property
    def room(self) -> int:
        """Tokens for thinking, besides those for the answer."""
        if not self.thinks:
            return 0
        return THINKING_TOKENS if self._room is None else self._room

    def rooms(self, more: int = 0) -> tuple[int, ...]:
        """Return the room for thinking, then smaller ones for asks that cannot afford it."""
        rooms = [max(self.room, more)]
        while rooms[-1] >= _GROWTH * _LEAST:
            rooms.append(rooms[-1] // _GROWTH)
        return tuple(rooms)

    def fit(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return a request's body in the service's terms, without fields that it refused or that are another's."""
        for rewrite in self._rewrites:
            body = {**body, "messages": [*map(rewrite, body["messages"])]}
        if not self._refused and self._cap is None:
            return dict(body)
        fitting = {name: value for name, value in body.items() if name not in self._refused}
        for cap in _CAPS:
            if self._cap not in (None, cap) and cap in fitting:
                fitting[str(self._cap)] = fitting.pop(cap)
        return fitting

    def learn(self, failure: Failure) -> bool:
        """Learn from a refusal; whether it is one of a field that is left out, or renamed, from now on."""
        field = failure.lacks
        if field in _CAPS:
            other = _CAPS[field == "max_tokens"]
            news, self._cap = self._cap is None, self._cap or other
        elif field in _OPTIONAL:
            news = field not in self._refused
            self._refused.add(field)
        else:
            return False
        if news:
            _log.info("%s takes no %s: it is left out from now on", self._name, field)
        return True

    def see(self, completion: Completion, sent: Mapping[str, Any]) -> Completion:
        """Learn from a reply to a body that was sent; return it without thinking that was cut and looks like an answer.

        A reply that was cut, or constrained, may lack the marks although the model thinks.
        """
        samples = completion.choices
        counted = completion.usage is not None and completion.usage.reasoning_tokens > 0
        self.certain = self.certain or counted or any(sample.reasoning and not sample.marked for sample in samples)
        free = sent.keys().isdisjoint(_CONSTRAINING)
        plain = free and all(sample.text and sample.finish_reason != "length" for sample in samples)
        self._marked = _left(self._marked, any(sample.marked for sample in samples), plain=plain)
        self._unopened = _left(self._unopened, any(sample.unopened for sample in samples), plain=plain)
        if not self.unopened:
            return completion
        return replace(completion, choices=tuple(map(_without_cut_thinking, completion.choices)))

    def grow(self, request: Request, failure: Failure, had: int) -> int | None:
        """Return more room for a call that was cut, or less for one refused for asking too much; None: no change.

        Args:
            had: the room that the call had; if another call has changed it meanwhile, that change holds for this one.
        """
        if self._fixed or request.max_tokens is None or not request.params.keys().isdisjoint(_CAPS):
            return None
        if failure.lacks == ROOM:
            if _LEAST < had <= self.room:
                self._room = had // _GROWTH
            return self.room if 0 < self.room < had else None
        if not self.thinks:
            return _TALKING_TOKENS
        if had >= self.room or not had:  # without any it was not known to think
            self._room = min(max(self.room, _LEAST) * _GROWTH, _MOST)
        return self.room if self.room > had else None


def _left(before: int, seen: bool, *, plain: bool) -> int:
    """Return after how many further replies without marks they are forgotten, if they were just ``seen`` or not."""
    if seen:
        return _REMEMBERED
    return max(before - plain, 0)


def _without(foreign: Set[str], message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message without these fields, in its tool calls too."""
    parts = [message, *map(as_object, as_list(message.get("tool_calls")))]
    if all(foreign.isdisjoint(part) for part in parts):
        return message
    bare, *calls = [{name: value for name, value in part.items() if name not in foreign} for part in parts]
    return {**bare, "tool_calls": calls} if calls else bare


def _as_system(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a developer's message under the older name of its role, which every service knows."""
    return {**message, "role": "system"} if message.get("role") == "developer" else message


def _with_thinking(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message as DeepSeek and Moonshot require it: an assistant's has thinking, other models' a space."""
    return {"reasoning_content": " ", **message} if message.get("role") == "assistant" else message


def _without_cut_thinking(sample: CompletionChoice) -> CompletionChoice:
    if sample.finish_reason != "length" or sample.reasoning:
        return sample
    return replace(sample, text="", tokens=None, reasoning=sample.text)


def with_room(request: Request, room: int) -> Request:
    """Add room for thinking to a request's token limit; one without a limit of ours is unchanged."""
    if not room or request.max_tokens is None:
        return request
    return replace(request, max_tokens=request.max_tokens + room)
