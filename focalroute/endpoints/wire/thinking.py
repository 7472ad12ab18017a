"""Separates a model's thinking from its answer.

Most services return thinking in a field of its own, others within the text:

- ``reasoning_content`` (DeepSeek https://api-docs.deepseek.com/guides/reasoning_model, llama.cpp, SGLang) or
  ``reasoning`` (OpenRouter https://openrouter.ai/docs/use-cases/reasoning-tokens, Groq, Ollama, vLLM
  https://docs.vllm.ai/en/latest/features/reasoning_outputs.html);
- parts of type "thinking" (Mistral https://docs.mistral.ai/capabilities/reasoning);
- ``<think>``, ``<thought>``, ``[THINK]``, ``<seed:think>`` (Seed-OSS) or ``◁think▷`` (Kimi-VL) tags at the start of the
  text, if the server does not parse them; the opening tag may be missing, as it is part of the prompt (DeepSeek-R1,
  Qwen3-Thinking https://huggingface.co/Qwen/Qwen3-30B-A3B-Thinking-2507);
- the channels of gpt-oss, with or without their marks (https://cookbook.openai.com/articles/openai-harmony).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any

from focalroute.core.json_values import objects_in
from focalroute.endpoints.wire.fields import text_of

_FINAL = "<|channel|>final<|message|>"
_BARE, _BARE_FINAL = "analysis", "assistantfinal"  # what is left of the marks if a server drops special tokens
#: Opening mark of thinking -> closing mark.
_MARKS = {
    "<think>": "</think>",
    "<thought>": "</thought>",
    "[THINK]": "[/THINK]",
    "<seed:think>": "</seed:think>",
    "◁think▷": "◁/think▷",
    "<|channel|>analysis": _FINAL,
    "<|channel|>commentary": _FINAL,
    "<|start|>assistant<|channel|>analysis": _FINAL,
    _FINAL: _FINAL,
    _BARE: _BARE_FINAL,
}
_OPENING = tuple(_MARKS)
_BEGINNINGS = frozenset(mark[:size] for mark in _MARKS for size in range(len(mark)))
_CHANNEL_MARKS = re.compile(r"<\|\w+\|>(?:assistant|analysis|commentary|final)?")
_MARK_BEGUN = re.compile(r"<(?:\||$)")
_CHANNEL_END = re.compile(r"<\|(?:return|end|call)\|>.*", re.DOTALL)
_UNOPENED = re.compile(r"(?:^|\n)\s*</think>|</think>\s*(?:\n|$)")
_FIELDS = ("reasoning_content", "reasoning")


def thinking_of(message: Mapping[str, Any]) -> str:
    """Return the thinking in the separate fields of a message, or of a piece of one."""
    for name in _FIELDS:
        if text := text_of(message.get(name)):
            return text
    return "".join(_flat(part.get("thinking")) for part in objects_in(message.get("content")))


def joined_details(pieces: Iterable[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """Join OpenRouter's ``reasoning_details`` from the pieces of a stream, each text with its signature."""
    whole = []
    for _, same in groupby(pieces, key=lambda piece: [piece.get(name) for name in ("type", "index", "data")]):
        parts = list(same)
        joined = {name: value for part in parts for name, value in part.items() if value is not None}
        for name in joined.keys() & {"text", "summary"}:
            joined[name] = "".join(text_of(part.get(name)) or "" for part in parts)
        whole.append(joined)
    return tuple(whole)


def _flat(part: object) -> str:
    if isinstance(part, list):
        return "".join(text_of(inner.get("text")) or "" for inner in objects_in(part))
    return text_of(part) or ""


def begins_thinking(text: str) -> bool:
    """Whether a whole text begins within the thinking: with a closing tag but no opening one."""
    return "</think>" in text and "<think>" not in text and _UNOPENED.search(text) is not None


def split_thinking(text: str) -> tuple[str, str]:
    """Split a whole text into the thinking and the answer after it.

    >>> split_thinking("<think>7 < 9</think>\\n\\nB"), split_thinking("7 < 9\\n</think>\\n\\nB"), split_thinking("B")
    (('7 < 9', 'B'), ('7 < 9\\n', 'B'), ('', 'B'))
    """
    unopened = begins_thinking(text)
    if not unopened and not text.lstrip().startswith(_OPENING):
        return "", text
    splitter = ThinkingSplitter(unopened=unopened)
    answer = splitter.feed(text) + splitter.finish()
    return splitter.thinking, answer


class ThinkingSplitter:
    """Splits a text that arrives in pieces into thinking and answer.

    Args:
        unopened: whether the text begins within the thinking. If it has no closing mark, all of it is the answer.
    """

    def __init__(self, *, unopened: bool = False) -> None:
        self._unopened = unopened
        self._end: str | None = "</think>" if unopened else None  # the closing mark; None: not known yet, "": none
        self._held = ""  # text that may be part of a mark
        self._thought: list[str] = []
        self._answering = self._begun = False

    @property
    def closed(self) -> bool:
        """Whether thinking without an opening mark has ended with the closing one."""
        return self._unopened and self._end != "" and self._answering

    @property
    def thinking(self) -> str:
        """All thinking so far."""
        thought = "".join(self._thought)
        return _CHANNEL_MARKS.sub("", thought) if self._end == _FINAL else thought

    def feed(self, piece: str) -> str:
        """Add a piece; return the new text that certainly belongs to the answer."""
        self._held += piece
        if self._end is None:
            self._open()
        if self._end and not self._answering:
            self._think(self._end)
        if not self._answering:
            return ""
        text, self._held = self._held, ""
        if self._end == _FINAL and (mark := _MARK_BEGUN.search(text)):  # the end mark may come in pieces
            text, self._held = text[: mark.start()], text[mark.start() :]
        return self._answered(text)

    def _open(self) -> None:
        """Look for a mark at the start of the text."""
        text = self._held.lstrip()
        mark = next((mark for mark in _MARKS if text.startswith(mark)), None)
        if mark is not None:
            self._end, self._held = _MARKS[mark], text[len(mark) :]
            self._answering = mark == _FINAL
        elif text not in _BEGINNINGS:
            self._end, self._answering = "", True

    def _think(self, end: str) -> None:
        """Move text that is certainly thinking from the held text to the thoughts."""
        thought, mark, rest = self._held.partition(end)
        if mark:
            self._held, self._answering = rest, True
        else:
            thought, self._held = self._held[: 1 - len(end)], self._held[1 - len(end) :]
        self._thought.append(thought)

    def _answered(self, text: str) -> str:
        """Return a piece of the answer without the blank lines between thinking and answer."""
        if self._thought and not self._begun:
            text = text.lstrip()
        self._begun = self._begun or text != ""
        return text

    def finish(self, *, cut: bool = False) -> str:
        """Return the rest of the answer, once the text has ended; ``cut``: at the token limit."""
        rest, self._held = self._held, ""
        if self._answering:
            return self._answered(_CHANNEL_END.sub("", rest))
        if not self._end:
            return rest
        self._thought.append(rest)
        if cut or (not self._unopened and self._end != _BARE_FINAL):
            return ""
        rest = ("" if self._unopened else _BARE) + "".join(self._thought)  # there was no thinking after all
        self._thought.clear()
        self._end, self._answering = "", True
        return rest
