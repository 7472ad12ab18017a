"""Learns from an endpoint's replies and refusals: which fields it refuses, and how many tokens its thinking needs.

The *room* for thinking is the number of tokens that a request allows besides those for the answer.
"""

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
from focalroute.endpoints.wire import CAP_FIELDS, Completion, CompletionChoice, Request
from focalroute.endpoints.wire.refusals import ROOM

_log = logging.getLogger("focalroute")

#: The room of a thinking model. OpenAI advises 25,000 tokens to start with for thinking and answer together
#: (https://platform.openai.com/docs/guides/reasoning); most questions take a tenth, and the whole room is reserved.
THINKING_TOKENS = 8192
_MAX_ROOM, _MIN_ROOM = 32_768, 512
_GROWTH = 4
#: The room after a reply that was cut and shows no thinking: some models give their reasons first.
_REASONS_TOKENS = 512

#: Marks of thinking are forgotten after this many replies without any.
_REMEMBERED = 4
#: Fields of a request whose replies may lack the marks of thinking: constrained ones, and echoes of a prompt.
_CONSTRAINING = ("response_format", "structured_outputs", "echo")

#: A field of replies with tool calls -> the services that expect it back in the next request; others may refuse it.
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

    Marks of thinking within a reply's text (such as ``<think>``) may be quoted from the question. So they are forgotten
    after a few replies without any: one caller's text must not change how all others' questions are sent.

    Attributes:
        certain: whether the model is known to think before it answers, by other evidence than such marks.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        tokens = endpoint.thinking_tokens
        self.certain = endpoint.reasoning_effort != "none" and (bool(tokens) or thinks(endpoint.model))
        # How many more replies without marks until they are forgotten: any marks, and a closing mark alone.
        self._marked = self._unopened = 0
        self._name = endpoint.name
        self._room = tokens
        self._fixed = tokens is not None or not endpoint.params.keys().isdisjoint(CAP_FIELDS)
        self._cap: str | None = None  # the field that the service takes for the token limit; None: the usual one
        self._refused: set[str] = set()
        service = endpoint.service or service_at(endpoint.base_url)
        foreign = {field for field, wanted in _WANTED.items() if service not in (None, "litellm", *wanted)}
        self._rewrites: list[Callable[[Mapping[str, Any]], Mapping[str, Any]]] = []  # applied to each message in turn
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

    def rooms(self, least: int = 0) -> tuple[int, ...]:
        """Return the room to try first, at least ``least``, then smaller ones for asks that cannot afford it."""
        rooms = [max(self.room, least)]
        while rooms[-1] >= _GROWTH * _MIN_ROOM:
            rooms.append(rooms[-1] // _GROWTH)
        return tuple(rooms)

    def fit(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return a request's body as the service takes it: without fields it refused, with the names it expects."""
        for rewrite in self._rewrites:
            body = {**body, "messages": [*map(rewrite, body["messages"])]}
        if not self._refused and self._cap is None:
            return dict(body)
        fitting = {name: value for name, value in body.items() if name not in self._refused}
        for cap in CAP_FIELDS:
            if self._cap not in (None, cap) and cap in fitting:
                fitting[str(self._cap)] = fitting.pop(cap)
        return fitting

    def learn_from_refusal(self, failure: Failure) -> bool:
        """Learn from a refusal; return whether it names a field that is left out, or renamed, from now on."""
        field = failure.lacks
        if field in CAP_FIELDS:
            is_new = self._cap is None
            if is_new:
                self._cap = "max_completion_tokens" if field == "max_tokens" else "max_tokens"
        elif field in _OPTIONAL:
            is_new = field not in self._refused
            self._refused.add(field)
        else:
            return False
        if is_new:
            _log.info("%s takes no %s: it is left out from now on", self._name, field)
        return True

    def learn_from_reply(self, completion: Completion, sent: Mapping[str, Any]) -> Completion:
        """Learn from the reply to a body that was sent; return the reply, without cut thinking that looks like text.

        A reply that was cut, or constrained, may lack the marks although the model thinks.
        """
        samples = completion.choices
        counted = completion.usage is not None and completion.usage.reasoning_tokens > 0
        self.certain = self.certain or counted or any(sample.reasoning and not sample.marked for sample in samples)
        free = sent.keys().isdisjoint(_CONSTRAINING)
        plain = free and all(sample.text and sample.finish_reason != "length" for sample in samples)
        self._marked = _remembered_for(self._marked, any(sample.marked for sample in samples), plain=plain)
        self._unopened = _remembered_for(self._unopened, any(sample.unopened for sample in samples), plain=plain)
        if not self.unopened:
            return completion
        return replace(completion, choices=tuple(map(_without_cut_thinking, completion.choices)))

    def adjust_room(self, request: Request, failure: Failure, had: int) -> int | None:
        """Return the room for repeating a failed call: more if it was cut, less if it asked for too many tokens.

        Args:
            had: the room that the call had. If another call has adjusted the room since, that adjustment is used.

        Returns:
            None: repeating the call would not help, as the room stays as it is.
        """
        if self._fixed or request.max_tokens is None or not request.params.keys().isdisjoint(CAP_FIELDS):
            return None
        if failure.lacks == ROOM:
            if _MIN_ROOM < had <= self.room:
                self._room = had // _GROWTH
            return self.room if 0 < self.room < had else None
        if not self.thinks:
            return _REASONS_TOKENS
        if had >= self.room or not had:  # 0: the model was not known to think when the call was made
            self._room = min(max(self.room, _MIN_ROOM) * _GROWTH, _MAX_ROOM)
        return self.room if self.room > had else None


def _remembered_for(before: int, seen: bool, *, plain: bool) -> int:
    """Return how many more ``plain`` replies until marks are forgotten, after a reply in which they were ``seen``."""
    if seen:
        return _REMEMBERED
    return max(before - plain, 0)


def _without(foreign: Set[str], message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message without these fields, also in its tool calls."""
    parts = [message, *map(as_object, as_list(message.get("tool_calls")))]
    if all(foreign.isdisjoint(part) for part in parts):
        return message
    bare, *calls = [{name: value for name, value in part.items() if name not in foreign} for part in parts]
    return {**bare, "tool_calls": calls} if calls else bare


def _as_system(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Rename the role "developer" of a message to the older "system", which every service knows."""
    return {**message, "role": "system"} if message.get("role") == "developer" else message


def _with_thinking(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add a space as thinking to an assistant's message without any, as DeepSeek and Moonshot require the field."""
    return {"reasoning_content": " ", **message} if message.get("role") == "assistant" else message


def _without_cut_thinking(sample: CompletionChoice) -> CompletionChoice:
    if sample.finish_reason != "length" or sample.reasoning:
        return sample
    return replace(sample, text="", tokens=None, reasoning=sample.text)


def with_room(request: Request, room: int) -> Request:
    """Add room for thinking to a request's ``max_tokens``, if it has any."""
    if not room or request.max_tokens is None:
        return request
    return replace(request, max_tokens=request.max_tokens + room)
