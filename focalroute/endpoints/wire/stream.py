"""Decodes a streamed reply, without I/O: bytes into pieces of text and, at the end, the whole `Completion`."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Mapping
from typing import Any

from focalroute.core.errors import CallFailed
from focalroute.core.json_values import as_object, objects_in
from focalroute.core.records import Usage
from focalroute.endpoints.wire import (
    MAX_CHOICES,
    MAX_REPLY_BYTES,
    Completion,
    CompletionChoice,
    fields,
    parse_json,
    refuse_compressed,
)
from focalroute.endpoints.wire.thinking import ThinkingSplitter, joined_details, split_thinking, thinking_of

_MAX_LINE = 2**20
_LINE_END = re.compile(r"\r\n|\n|\r")


class StreamDecoder:
    """Decodes server-sent events into pieces of text and, at the end, the `Completion`.

    Call `feed` with the bytes as they arrive, then `finish`. A stream is whole once every choice has its
    ``finish_reason``; not every server sends the ``[DONE]`` mark.

    Args:
        unopened: whether the text is expected to begin within the model's thinking (see `ThinkingSplitter`).

    Attributes:
        usage: the latest that was reported; None: none was yet.
        done: whether the ``[DONE]`` mark has arrived.
        id: the service's id for the reply; None: not known yet.
    """

    def __init__(self, *, unopened: bool = False) -> None:
        self._unopened = unopened
        self.usage: Usage | None = None
        self.done = False
        self._utf8 = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._held = ""  # a carriage return that a line feed may follow
        self._line: list[str] = []  # the pieces of a line that has not ended, joined only once
        self._length = 0  # of that line
        self._data: list[str] = []  # the data lines of an event that has not ended
        self._object: list[str] = []  # the lines of a JSON object over several lines, sent instead of events
        self._named_error = False  # whether the event's name says that it is an error
        self._page = False  # whether the reply began as a web page
        self._bytes = 0
        self._model: str | None = None
        self.id: str | None = None
        self._choices: dict[int, _ChoiceDecoder] = {}

    def feed(self, chunk: bytes) -> str:
        """Decode bytes as they arrive; return the new text of the first choice (may be empty).

        Raises:
            CallFailed: what came is not a chat completion stream.
        """
        if not self._bytes:
            refuse_compressed(chunk)
        self._bytes += len(chunk)
        if self._bytes > MAX_REPLY_BYTES:
            raise self._failed("the reply is too long")
        text = self._held + self._utf8.decode(chunk)
        self._held = "\r" if text.endswith("\r") else ""
        first, *others = _LINE_END.split(text.removesuffix("\r"))
        self._line.append(first)
        self._length += len(first)
        if self._length > _MAX_LINE:
            raise self._failed("a stream event is too long")
        if not others:
            return ""
        *lines, last = ["".join(self._line), *others]
        self._line, self._length = [last], len(last)
        return "".join([self._feed_line(line) for line in lines])

    def _feed_line(self, line: str) -> str:
        """Decode a line: data is kept until the empty line that ends its event; other fields are skipped."""
        if self._object or (line == "{" and not self.done):
            self._object.append(line)
            return ""
        if line.startswith("event:"):
            self._named_error = line[6:].strip() == "error"
        if line.startswith("data:"):
            self._data.append(line[5:].removeprefix(" "))
            return ""
        if line.startswith("{"):  # a service that does not stream, or fails in mid-stream, may send a bare object
            self._data, line = [line], ""
        if line or not self._data:
            self._page = self._page or (line.lstrip().startswith("<") and not self._choices)
            return ""
        data, self._data = "\n".join(self._data), []
        named_error, self._named_error = self._named_error, False
        if self.done or data.strip() == "[DONE]":
            self.done = True
            return ""
        if not data.strip():  # sent to keep the connection alive
            return ""
        try:
            payload = json.loads(data)
        except (ValueError, RecursionError):
            payload = None
            if not named_error:
                raise self._failed("a stream event is not JSON") from None
        if named_error:
            error = payload.get("error", payload) if isinstance(payload, dict) else data
            raise fields.reported_error(error, self.usage, begun=self.begun)
        return self.event(payload)

    def event(self, payload: object) -> str:
        """Decode one parsed event; return the new text of the first choice.

        Raises:
            CallFailed: it reports an error, or is not a chat completion chunk.
        """
        if not isinstance(payload, dict):
            raise self._failed("a stream event is not a JSON object")
        self.usage = fields.usage_of(payload.get("usage")) or self.usage
        error = fields.error_in(payload)
        if error is not None:
            raise fields.reported_error(error, self.usage, begun=self.begun)
        self._model = self._model or fields.text_of(payload.get("model"))
        self.id = self.id or fields.text_of(payload.get("id"))
        choices = payload.get("choices")
        if choices is not None and not isinstance(choices, list):
            raise self._failed("a stream event's choices are not a list")
        return "".join([self._piece(choice) for choice in choices or ()])

    def _piece(self, choice: object) -> str:
        delta = choice.get("delta", choice.get("message")) if isinstance(choice, dict) else None
        if not isinstance(choice, dict) or not isinstance(delta, dict | None):
            raise self._failed("a stream choice is not an object")
        index = fields.count_of(choice.get("index") or 0)
        text = fields.content_of((delta or {}).get("content"))
        if text is None or index is None or index >= MAX_CHOICES:
            raise self._failed("a stream choice has no readable text")
        self.usage = fields.usage_of(choice.get("usage")) or self.usage  # Moonshot's is there
        finished = fields.finish_of(choice, self.usage)
        if index not in self._choices:
            self._choices[index] = _ChoiceDecoder(ThinkingSplitter(unopened=self._unopened))
        text = self._choices[index].add(text, choice, delta or {}, finished)
        return text if index == 0 else ""

    @property
    def begun(self) -> bool:
        """Whether a part of the reply has arrived."""
        return bool(self._choices)

    @property
    def whole(self) -> bool:
        """Whether every choice has ended; only the usage may follow."""
        return self.begun and all(choice.finish_reason is not None for choice in self._choices.values())

    def end(self) -> str:
        """End the stream; return the text of a last event without the empty line that should end it."""
        text = self.feed(b"\n\n")
        lines, self._object = self._object, []
        if lines:
            text += self.event(parse_json("\n".join(lines).encode()))
        return text

    def finish(self) -> Completion:
        """Return the whole reply, once the stream has ended.

        Raises:
            CallFailed: the stream was cut; ``.usage`` is what had been reported by then.
        """
        self.end()
        if not self.whole:
            raise self._failed("the reply is a web page" if self._page else "the stream was cut short")
        choices = tuple(self._choices[index].finish() for index in sorted(self._choices))
        return Completion(choices, self.usage, self._model, self.id)

    def _failed(self, message: str) -> CallFailed:
        return fields.protocol_error(message, self.usage)


class _ChoiceDecoder:
    """Collects the pieces of one choice of a stream."""

    def __init__(self, splitter: ThinkingSplitter) -> None:
        self.finish_reason: str | None = None
        self._refused = False
        self._splitter = splitter
        self._thoughts: list[str] = []
        self._details: list[Mapping[str, Any]] = []
        self._texts: list[str] = []
        self._entries: list[object] | None = []  # of log-probabilities; None: some are missing
        self._calls: dict[tuple[int, int], dict[str, Any]] = {}  # tool calls by (index, order of arrival)
        self._places: dict[int, tuple[int, int]] = {}  # index -> the key of its latest call
        self._arguments: dict[tuple[int, int], list[str]] = {}

    def add(self, text: str, choice: Mapping[str, Any], delta: Mapping[str, Any], finished: str | None) -> str:
        """Add a piece; return the new part of the answer."""
        answer = self._splitter.feed(text)
        self._thoughts.append(thinking_of(delta))
        self._details += objects_in(delta.get("reasoning_details"))
        self._refused = self._refused or bool(delta.get("refusal"))
        self.finish_reason = finished or self.finish_reason
        content = as_object(choice.get("logprobs")).get("content")
        if isinstance(content, list) and self._entries is not None:
            self._entries += content
        elif text:  # text without log-probabilities: those of the rest are useless
            self._entries = None
        for call in objects_in(delta.get("tool_calls")):
            self._add_call(call)
        if self.finish_reason is not None:
            answer += self._splitter.finish(cut=self.finish_reason == "length")
        self._texts.append(answer)
        return answer

    def _add_call(self, call: Mapping[str, Any]) -> None:
        """Add a piece of a tool call: the first piece names the tool, the others add to the arguments.

        Some services (Gemini) give all calls the same index, or none. So a piece with a name begins a new call if its
        id is new or, without ids, if the arguments before it are complete. A new id without a name does not, as other
        services (vLLM) give every piece its own id.
        """
        index, function = fields.count_of(call.get("index") or 0), as_object(call.get("function"))
        if index is None:
            return
        place = self._places.get(index)
        if place is None or (function.get("name") and self._ends_before(place, call)):
            place = self._places[index] = (index, len(self._calls))
            self._calls[place] = {**call, "function": {}}
        whole = self._calls[place]
        for known, new in ((whole, {**call, "function": None}), (whole["function"], function)):
            known.update((name, value) for name, value in new.items() if value and not known.get(name))
        arguments = function.get("arguments")
        text = json.dumps(arguments) if isinstance(arguments, dict) else fields.text_of(arguments)
        self._arguments.setdefault(place, []).append(text or "")

    def _ends_before(self, place: tuple[int, int], call: Mapping[str, Any]) -> bool:
        """Whether the call at this place is complete, so that this piece, which names a tool, begins another."""
        begun, new = self._calls[place].get("id"), call.get("id")
        if begun or new:
            return bool(begun and new) and begun != new
        first, *more = self._arguments[place]
        try:
            return not more and isinstance(json.loads(first), dict)
        except (ValueError, RecursionError):
            return False

    def finish(self) -> CompletionChoice:
        """Return the choice, once the stream has ended."""
        tokens = fields.tokens_of({"content": self._entries}) if self._entries else None
        for place, call in self._calls.items():
            call["function"]["arguments"] = "".join(self._arguments[place])
        calls = tuple(self._calls[place] for place in sorted(self._calls))
        within, text = split_thinking("".join(self._texts))
        thought = "".join(self._thoughts)
        reasoning = thought or self._splitter.thinking or within
        if reasoning and tokens:
            tokens = fields.answer_tokens(tokens, text)
        finished = "refusal" if self._refused and not text else self.finish_reason
        details = joined_details(self._details)
        marked, unopened = reasoning != thought, within != "" or self._splitter.closed
        return CompletionChoice(text, finished, tokens, calls, reasoning, marked, unopened, details)
