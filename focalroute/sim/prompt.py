"""What a simulated model understands of a prompt: the question in it, the lettered choices, the format it asks for."""

from __future__ import annotations

import functools
import re
import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from focalroute.sim.prose import Brief, drafts_in, find_brief
from focalroute.sim.questions import Found, find

_LETTERED = re.compile(r"^[ \t]*\(?([A-Z])(?:\)|\.|:)[ \t]+(\S.*?)[ \t]*$", re.MULTILINE)
_LISTED = re.compile(r"\bone of (?:these|the following)\b[^:\n]{0,40}:\s*([^\n]+)", re.IGNORECASE)
_ONLY = re.compile(r"\b(?:only|just|nothing else|single)\b", re.IGNORECASE)
_TOLD = re.compile(
    r"\b(?:reply|answer|respond)\s+with\s+(?:(?:only|just|exactly)\s+)?(?:the\s+(?:single\s+)?(?:letter|word)\s+)?"
    r"""["'`]?(\w{1,40})\b""",
    re.IGNORECASE,
)
_EARLIER = re.compile(r"<(\w{0,40}answer)>(.*?)</\1>", re.DOTALL)
_PLACEHOLDERS = frozenset({"the", "a", "an", "one", "only", "just", "your", "exactly", "its", "that"})


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as understood.

    Attributes:
        key: what the model's draws depend on: the question's own words, or the whole text where no question was found.
        found: the question, if it is of a known family.
        letters: "A", "B", ... of the lettered choices, or the words of a list as in "one of these: yes, no".
        texts: what stands behind each letter.
        terse: whether it asks for nothing but the answer.
        told: the word it asks to be answered with, as in "Reply with OK".
        earlier: the answer of somebody else that it shows, between tags such as <student_answer>; None: it shows none.
        brief: the request for prose, where it asks for that.
        drafts: others' replies to it, as far as the prompt shows them.
    """

    key: str
    found: Found | None
    letters: tuple[str, ...]
    texts: tuple[str, ...]
    terse: bool
    told: str | None
    earlier: str | None = None
    brief: Brief | None = None
    drafts: tuple[str, ...] = ()


def last_user_text(messages: Any) -> str:
    """The text of the last user message, text parts joined; empty if there is none."""
    for message in reversed(messages if isinstance(messages, list) else []):
        if isinstance(message, Mapping) and message.get("role") == "user":
            content = message.get("content")
            if isinstance(content, str):
                return content
            parts = content if isinstance(content, list) else []
            return "\n".join(str(part.get("text", "")) for part in parts if isinstance(part, Mapping))
    return ""


@functools.lru_cache(maxsize=1024)
def read_prompt(text: str) -> Prompt:
    """Understand a prompt.

    >>> read_prompt("What is 2 + 3?\\nA) 6\\nB) 5\\nReply with the letter only.").letters
    ('A', 'B')
    """
    shown = _EARLIER.search(text)
    if shown:
        text = text[: shown.start()] + text[shown.end() :]
    found = find(text)
    brief = None if found else find_brief(text)
    after = found.end if found else 0
    lettered = _lettered(text, after) or _lettered(text, 0) or _listed(text, after)
    told = next((m[1] for m in _TOLD.finditer(text) if m[1] not in _PLACEHOLDERS), None)
    return Prompt(
        key=found.question if found else brief.request if brief else text,
        found=found,
        letters=tuple(letter for letter, _ in lettered),
        texts=tuple(choice for _, choice in lettered),
        terse=_ONLY.search(text) is not None,
        told=None if found else told,
        earlier=shown[2].strip() if shown else None,
        brief=brief,
        drafts=drafts_in(text) if brief else (),
    )


def read_result(result: str) -> Prompt:
    """What a tool gave, to be told on."""
    return Prompt(result, None, (), (), terse=True, told=f"The answer is {result}.")


def same(one: str, other: str) -> bool:
    """Whether two choices are the same answer: case, spacing and a closing full stop do not matter."""
    return one.strip().rstrip(".").casefold() == other.strip().rstrip(".").casefold()


def _lettered(text: str, start: int) -> list[tuple[str, str]]:
    """The first run of lines lettered A, B, C, ... after ``start``; empty if there are not at least two."""
    run: list[tuple[str, str]] = []
    for match in _LETTERED.finditer(text, start):
        if match[1] == string.ascii_uppercase[len(run) % 26]:
            run.append((match[1], match[2]))
        elif len(run) > 1:
            break
        else:
            run = [(match[1], match[2])] if match[1] == "A" else []
    return run if len(run) > 1 else []


def _listed(text: str, start: int) -> list[tuple[str, str]]:
    match = _LISTED.search(text, start)
    words = [word.strip(" .\"'`") for word in match[1].split(",")] if match else []
    return [(word, word) for word in words if word]
