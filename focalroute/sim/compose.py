"""Replies put into a dialect's JSON: one payload, or the payloads of a stream."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from focalroute.sim.dialects import Dialect
from focalroute.sim.models import uniforms
from focalroute.sim.replies import Reply, Token
from focalroute.sim.request import Request

Json = dict[str, Any]

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Composer:
    """Everything that one reply is composed from."""

    dialect: Dialect
    model: str
    request: Request
    replies: Sequence[Reply]
    cost: Decimal

    def whole(self) -> Json:
        """The payload of a reply in one piece."""
        choices = [
            {
                "index": i,
                "message": {"role": "assistant", **self._said(reply.text, reply.text)},
                "finish_reason": self._finish(reply),
                **self._logprobs((*reply.tokens, *self._end(reply)), self.dialect.logprobs),
                **self.dialect.choice,
            }
            for i, reply in enumerate(self.replies)
        ]
        return {**self._head("chat.completion"), "choices": choices, "usage": self._usage()}

    def chunks(self) -> Iterator[Json]:
        """The payloads of a stream, in order, samples interleaved."""
        when = self.dialect.stream_usage
        tells = when in ("always", "last") or (when == "asked" and self.request.usage_asked)
        head = self._head("chat.completion.chunk") | ({"usage": None} if tells and self.dialect.usage_null else {})
        for i in range(len(self.replies)):
            yield {**head, "choices": [self._chunk(i, {"role": "assistant", **self._said("", "")}, None)]}
        for tokens in itertools.zip_longest(*(reply.tokens for reply in self.replies)):
            for i, token in enumerate(tokens):
                if token is not None:
                    yield {**head, "choices": [self._chunk(i, self._more(token.text), None, (token,))]}
        for i, reply in enumerate(self.replies):
            usage = {"usage": self._usage()} if when == "last" and i == len(self.replies) - 1 else {}
            yield {**head, "choices": [self._chunk(i, {}, self._finish(reply))], **usage}
        if tells and when != "last":
            yield {**head, "choices": [], "usage": self._usage()}

    def _said(self, text: str, arguments: str) -> Json:
        """What a message says: its text, or the tool it calls with these arguments."""
        calling = self.request.calling
        if calling is None:
            return {"content": text}
        function = {"name": calling.name, "arguments": arguments}
        call = {"index": 0, "id": f"call_{next(_numbers):012x}", "type": "function", "function": function}
        return {"content": None, "tool_calls": [call]}

    def _more(self, text: str) -> Json:
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

    def _chunk(self, index: int, delta: Json, finish: str | None, tokens: Sequence[Token] = ()) -> Json:
        write = self.dialect.chunk_logprobs or self.dialect.logprobs
        scored = self._logprobs(tokens, write) if tokens else {"logprobs": None}
        return {"index": index, "delta": delta, "finish_reason": finish, **scored}

    def _logprobs(self, tokens: Sequence[Token], write: Any) -> Json:
        top = self.request.top
        if top is None or write is None or not self.dialect.tells_logprobs(self.model, self.request.prompt.key):
            return {"logprobs": None}
        return {"logprobs": write(tokens, top)}

    def _end(self, reply: Reply) -> Sequence[Token]:
        """The token that ended it, where the service lists that."""
        end = self.dialect.end
        return () if reply.cut or not end else (Token(end, 1.0, ((end, 1.0),)),)

    def _finish(self, reply: Reply) -> str:
        return "length" if reply.cut else "stop" if self.request.calling is None else "tool_calls"

    def _usage(self) -> Json:
        prompt, completion = self.request.prompt_tokens, sum(len(reply.tokens) for reply in self.replies)
        luck = uniforms("usage", self.model, self.request.prompt.key)[0]
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            **self.dialect.usage(self.cost, luck),
        }
