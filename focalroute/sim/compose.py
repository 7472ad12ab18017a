"""Turns a request into a reply, without a server: `composed` checks the request and asks the model for a completion.

The `Composer` that it returns writes the payload, whole or in the chunks of a stream. `embeddings` does the same for a
request for embeddings.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from focalroute.core.json_values import is_number, objects_in
from focalroute.sim.dialects import Dialect, RequestRefused
from focalroute.sim.faults import Fault, ServedModel
from focalroute.sim.models import SimulatedModel, uniforms
from focalroute.sim.prompt import (
    Allowed,
    Calling,
    Prompt,
    allowed_replies,
    calling,
    last_user_text,
    read_prompt,
    read_result,
    told_schema,
)
from focalroute.sim.replies import SimulatedReply, SimulatedToken, Voice, count_tokens, think

_PER_MESSAGE, _PER_PROMPT = 4, 3  # tokens of the chat template
_PER_IMAGE = 85
_EFFORTS: Mapping[Any, float] = {"none": 0.0, "minimal": 0.125, "low": 0.25, "high": 4.0}


@dataclass(frozen=True, slots=True)
class SimulatedRequest:
    """One chat completion request.

    Attributes:
        prompt_tokens: tokens of all messages.
        n: number of samples.
        top: number of alternatives for each token; None: no log-probabilities.
        room: the token limit of one sample; None: no limit.
        thinking: tokens of thinking before the answer.
        allowed: the only replies that the request admits; None: any.
        usage_asked: whether a stream is to report its usage.
        calling: the tool that the question calls for; None: it is answered with text.
    """

    prompt: Prompt
    prompt_tokens: int
    n: int
    top: int | None
    room: int | None
    temperature: float
    seed: int | None
    allowed: Allowed | None
    stream: bool
    usage_asked: bool
    calling: Calling | None = None
    thinking: int = 0


def parse_request(body: Mapping[str, Any], dialect: Dialect, model: SimulatedModel) -> SimulatedRequest:
    """Parse a request to a model in a dialect.

    Raises:
        RequestRefused: a field is invalid, unknown to the service, or more than the model can do.
    """
    if dialect.fields is not None and (unknown := sorted(set(body) - dialect.fields)):
        raise RequestRefused(400, f"Unrecognized request argument supplied: {unknown[0]}")
    dialect.refuse(body)
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise RequestRefused(400, "'messages' must be a non-empty list of messages.")
    _require_able(body, messages, dialect, model)
    asked, called = last_user_text(messages), None
    if messages[-1].get("role") == "tool" and (result := messages[-1].get("content")) is not None:
        prompt = read_result(str(result))
    else:
        prompt = read_prompt(asked, model.families)
        if dialect.tools:
            called = calling(body, asked)
    options = body.get("stream_options")
    try:
        allowed = allowed_replies(body, dialect.structured, prompt) or told_schema(asked, prompt)
    except ValueError as error:
        raise RequestRefused(400, f"Invalid structured output: {error}") from None
    return SimulatedRequest(
        prompt=prompt,
        prompt_tokens=_PER_PROMPT + sum(map(_message_tokens, messages)) + _json_tokens(body.get("tools")),
        n=_samples(body, dialect),
        top=dialect.top(body),
        room=_room(body),
        temperature=_temperature(body),
        seed=_integer(body, "seed", None),
        allowed=allowed,
        stream=body.get("stream") is True,
        usage_asked=isinstance(options, dict) and options.get("include_usage") is True,
        calling=called,
        thinking=round(dialect.thinking.tokens * model.thinking * _EFFORTS.get(_effort(body), 1.0)),
    )


def _effort(body: Mapping[str, Any]) -> Any:
    reasoning = body.get("reasoning")
    return reasoning.get("effort") if isinstance(reasoning, dict) else body.get("reasoning_effort")


def _require_able(body: Mapping[str, Any], messages: list[Any], dialect: Dialect, model: SimulatedModel) -> None:
    parts = [part for message in messages for part in objects_in(message.get("content"))]
    if body.get("tools") and dialect.tools and not model.tools:
        raise RequestRefused(*dialect.unable("tools", "tool use", model.name))
    if any(part.get("type") == "image_url" for part in parts) and not model.images:
        raise RequestRefused(*dialect.unable("image input", "image input", model.name))


def _message_tokens(message: Mapping[str, Any]) -> int:
    return _PER_MESSAGE + _tokens(message.get("content")) + _json_tokens(message.get("tool_calls"))


def _json_tokens(value: Any) -> int:
    return count_tokens(json.dumps(value)) if value else 0


def _tokens(content: Any) -> int:
    if isinstance(content, str):
        return count_tokens(content)
    parts = objects_in(content)
    seen = sum(_PER_IMAGE for part in parts if part.get("type") == "image_url")
    return seen + sum(count_tokens(str(part.get("text", ""))) for part in parts)


def _integer(body: Mapping[str, Any], name: str, least: int | None) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    expected = "an integer"
    if least is not None:
        expected += f" of at least {least}"
    if isinstance(value, bool) or not isinstance(value, int) or (least is not None and value < least):
        raise RequestRefused(400, f"Invalid value for '{name}': expected {expected}.")
    return value


def _samples(body: Mapping[str, Any], dialect: Dialect) -> int:
    if dialect.max_n == 1:
        return 1
    n = _integer(body, "n", 1) or 1
    if n > dialect.max_n:
        raise RequestRefused(422, f"n must be at most {dialect.max_n}")
    return n


def _room(body: Mapping[str, Any]) -> int | None:
    limits = (_integer(body, "max_completion_tokens", 1), _integer(body, "max_tokens", 1))
    return min((limit for limit in limits if limit is not None), default=None)


def _temperature(body: Mapping[str, Any]) -> float:
    value = body.get("temperature")
    if value is None:
        return 1.0
    if not is_number(value) or not 0 <= value <= 2:
        raise RequestRefused(400, "Invalid value for 'temperature': expected a number from 0 to 2.")
    return float(value)


_WORD = re.compile(r"\w+")
_WIDTH = 64
_MOST = 4096


def vector(text: str, width: int = _WIDTH) -> list[float]:
    """A vector of norm 1: each word adds +1 or -1 at one place, sign and place by its hash; zeros without words.

    >>> vector("moons", 4) == vector("Moons?", 4)
    True
    """
    sums = [0.0] * width
    for word in _WORD.findall(text.lower()):
        place, sign, *_ = uniforms("word", word)
        sums[int(place * width)] += 1.0 if sign < 0.5 else -1.0
    norm = math.sqrt(sum(x * x for x in sums))
    return [x / norm for x in sums] if norm else sums


def _texts(body: Mapping[str, Any]) -> list[str]:
    given = body.get("input")
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise RequestRefused(400, "'input' must be a string or a non-empty list of strings.")
    return texts


def embeddings(body: Mapping[str, Any], model: str) -> dict[str, Any]:
    """The reply to a request for embeddings; RequestRefused if the request is invalid."""
    texts, width = _texts(body), body.get("dimensions", _WIDTH)
    if type(width) is not int or not 0 < width <= _MOST:
        raise RequestRefused(400, f"'dimensions' must be an integer from 1 to {_MOST}.")
    tokens = sum(map(count_tokens, texts))
    data = [{"object": "embedding", "index": i, "embedding": vector(text, width)} for i, text in enumerate(texts)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}


Json = dict[str, Any]

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Composer:
    """Writes one reply from its parts, in the service's dialect."""

    dialect: Dialect
    model: str
    request: SimulatedRequest
    replies: Sequence[SimulatedReply]
    cost: Decimal

    def whole(self) -> Json:
        """The payload of an unstreamed reply."""
        choices = [
            {
                "index": i,
                "message": {"role": "assistant", **self._thinking_field(reply), **self._content(reply.text, reply)},
                "finish_reason": self._finish(reply),
                **self._logprobs((*reply.thought, *reply.tokens, *self._end(reply)), self.dialect.logprobs),
                **self.dialect.choice,
            }
            for i, reply in enumerate(self.replies)
        ]
        return {**self._head("chat.completion"), "choices": choices, "usage": self._usage()}

    def chunks(self) -> Iterator[Json]:
        """Yield the payloads of a stream in order, samples interleaved."""
        when = self.dialect.stream_usage
        tells = when in ("always", "last") or (when == "asked" and self.request.usage_asked)
        head = self._head("chat.completion.chunk")
        if tells and self.dialect.usage_null:
            head["usage"] = None
        for i in range(len(self.replies)):
            yield {**head, "choices": [self._chunk(i, {"role": "assistant", **self._content("")}, None)]}
        for i, reply in enumerate(self.replies):
            for delta in self._thinking_deltas(reply):
                yield {**head, "choices": [self._chunk(i, delta, None)]}
        for tokens in itertools.zip_longest(*(reply.tokens for reply in self.replies)):
            for i, token in enumerate(tokens):
                if token is not None:
                    yield {**head, "choices": [self._chunk(i, self._content_delta(token.text), None, (token,))]}
        for i, reply in enumerate(self.replies):
            usage = {"usage": self._usage()} if when == "last" and i == len(self.replies) - 1 else {}
            yield {**head, "choices": [self._chunk(i, {}, self._finish(reply))], **usage}
        if tells and when != "last":
            yield {**head, "choices": [], "usage": self._usage()}

    def _thinking_field(self, reply: SimulatedReply) -> Json:
        """The thinking, if the dialect has a field for it."""
        field = self.dialect.thinking.field
        return {field: _joined(reply.thought)} if field and reply.thought else {}

    def _around_answer(self, reply: SimulatedReply) -> tuple[str, str]:
        """Return the text before and after the answer in the content, such as thinking in tags."""
        how = self.dialect.thinking
        if how.field != "" or not reply.thought:
            return "", ""
        before = how.before + _joined(reply.thought) + (how.after if reply.tokens else "")
        return before, how.end if reply.tokens and not reply.cut else ""

    def _thinking_deltas(self, reply: SimulatedReply) -> Iterator[Json]:
        how = self.dialect.thinking
        if how.field is None or not reply.thought:
            return
        if how.field:
            yield from ({how.field: token.text} for token in reply.thought)
            return
        yield from ({"content": text} for text in (how.before, *(token.text for token in reply.thought)) if text)
        if reply.tokens:
            yield {"content": how.after}

    def _content(self, text: str, reply: SimulatedReply | None = None) -> Json:
        """Return the content of a message: its text, or a call of the tool with this text as its arguments."""
        calling = self.request.calling
        if calling is None:
            before, after = self._around_answer(reply) if reply is not None else ("", "")
            return {"content": f"{before}{text}{after}"}
        function = {"name": calling.name, "arguments": text}
        call = {"index": 0, "id": f"call_{next(_numbers):012x}", "type": "function", "function": function}
        return {"content": None, "tool_calls": [call]}

    def _content_delta(self, text: str) -> Json:
        if self.request.calling is None:
            return {"content": text}
        return {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}

    def _head(self, kind: str) -> Json:
        return {
            "id": f"chatcmpl-{next(_numbers):024x}",
            "object": kind,
            "created": int(time.time()),
            "model": self.model,
            **self.dialect.head,
        }

    def _chunk(self, index: int, delta: Json, finish: str | None, tokens: Sequence[SimulatedToken] = ()) -> Json:
        write = self.dialect.chunk_logprobs or self.dialect.logprobs
        scored = self._logprobs(tokens, write) if tokens else {"logprobs": None}
        return {"index": index, "delta": delta, "finish_reason": finish, **scored}

    def _logprobs(self, tokens: Sequence[SimulatedToken], write: Any) -> Json:
        top = self.request.top
        if top is None or write is None or not self.dialect.tells_logprobs(self.model, self.request.prompt.key):
            return {"logprobs": None}
        return {"logprobs": write(tokens, top)}

    def _end(self, reply: SimulatedReply) -> Sequence[SimulatedToken]:
        """The token that ended the reply, if the service lists it."""
        end = self.dialect.end
        return () if reply.cut or not end else (SimulatedToken(end, 1.0, ((end, 1.0),)),)

    def _finish(self, reply: SimulatedReply) -> str:
        if reply.cut:
            return "length"
        return "stop" if self.request.calling is None else "tool_calls"

    def _usage(self) -> Json:
        prompt, answer = self.request.prompt_tokens, sum(len(reply.tokens) for reply in self.replies)
        thought = sum(len(reply.thought) for reply in self.replies)
        luck = uniforms("usage", self.model, self.request.prompt.key)[0]
        counted = self.dialect.thinking.counted
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": answer + thought * (counted in ("in", "details")),
            "total_tokens": prompt + answer + thought,
            **self.dialect.usage(self.cost, luck),
        }
        if counted in ("details", "apart"):
            usage["completion_tokens_details"] = {"reasoning_tokens": thought}
        return usage


def _joined(tokens: Sequence[SimulatedToken]) -> str:
    return "".join(token.text for token in tokens)


def _after_thinking(voice: Voice, index: int, asked: SimulatedRequest) -> SimulatedReply:
    """A sample with the thinking before it, together within the token limit."""
    if asked.room is not None and asked.room <= asked.thinking:
        return SimulatedReply((), cut=True, thought=think(asked.room))
    return replace(voice.say(index, asked.temperature, asked.seed), thought=think(asked.thinking))


def composed(served: ServedModel, body: Mapping[str, Any], dialect: Dialect, fault: Fault | None = None) -> Composer:
    """Make one call to one model, from the request to the bill; the composer writes the reply.

    Raises:
        RequestRefused: the service refuses the request.
    """
    asked = parse_request(body, dialect, served.model)
    room, allowed, right = asked.room, asked.allowed, None
    if room is not None:
        room -= asked.thinking
    if asked.calling is not None:
        allowed, right = [(text, text) for text in asked.calling.arguments], 0
    voice = Voice(served.model, asked.prompt, allowed=allowed, drifted=served.drifted, room=room, right=right)
    replies = [_after_thinking(voice, i, asked) for i in range(asked.n)]
    if dialect.thinking.starved and not replies[0].tokens:
        raise RequestRefused(400, dialect.thinking.starved)
    cost = served.bill(asked.prompt_tokens, sum(len(reply.thought) + len(reply.tokens) for reply in replies), fault)
    return Composer(dialect, served.model.name, asked, replies, cost)
