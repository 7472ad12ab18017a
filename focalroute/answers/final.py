"""Where in a reply its final answer stands. What comes before is reasoning, what comes after is small talk."""

from __future__ import annotations

import re
from typing import NamedTuple

_TAIL = 20_000  # characters: a final answer stands at the end
_THINKING = ("think", "thinking")
_BOXED = re.compile(r"\\f?box(?:ed)?\s*\{")
_TAGGED = re.compile(r"<answer>\s*([^<]*)", re.IGNORECASE)
_HASHED = re.compile(r"[ \t]*####[ \t]*(.+)")
_MARKER = re.compile(
    r"\banswer\b[^\n.!?:=]{0,60}?(?:\b(?:is|was|are|equals|(?:w|sh)ould be|must be)\b|[:=])"
    r"|^[ \t#*_-]*(?:(?:the|my|short|final)[ \t]+)*answer[ \t*_]*$",
    re.IGNORECASE | re.MULTILINE,
)
_OPENING = re.compile(r"(?:[\s*_:\"'`\u201c\u2018]|\$\$|\\[\[(])*")
_WORD = re.compile(r"[^\W_]|[∞∅]")  # the latter are answers without a letter or a digit
_BOLD = re.compile(r"\*\*([^*\n]+)\*\*")
# "St. Helena" and "J. K. Rowling" do not end a sentence
_SENTENCE_END = re.compile(
    r"(?<!\b[A-Za-z])(?<!\b(?:St|Mt|Ft|Dr|Mr|Ms|Jr|Sr|Lt))(?<!\b(?:Mrs|Rev|Gen|Col|Sgt))(?<!\b(?:Prof|Capt))"
    r"[.!?][\"'*_)\u201d\u2019]*\s+(?=[A-Z(])"
)
_REASON = re.compile(r"(?<=\w)[,;]?\s+\(?because\b", re.IGNORECASE)


class Final(NamedTuple):
    """The part of a reply that holds its final answer.

    Attributes:
        text: that part, one line.
        said: whether the reply marks it as its answer; else it is just its last line.
        rest: all that the reply says, its hidden reasoning left out; the end of it, if it is long.
    """

    text: str
    said: bool
    rest: str


def final(text: str) -> Final | None:
    """The last that is boxed; in ``<answer>`` tags; after ``####`` on the last line; after "the answer is", "Answer:"
    or a heading "Answer"; the only bold words of the last line; else the last line. None if there is no word in it.

    Reasoning in ``<think>`` tags does not count; one that never ends has no answer. Linear in time.

    >>> final("6 * 7 is easy. The answer is **42**. Anything else?").text
    '42**'
    """
    rest = _after_thinking(text)
    lines = _lines(rest)
    if not lines or _announces(lines[-1]):
        return None
    marked = _boxed(rest) or _tagged(rest) or _hashed(lines[-1]) or _marked(rest) or _bold(lines[-1])
    return Final(marked or lines[-1], marked is not None, rest)


def _after_thinking(text: str) -> str:
    """Without hidden reasoning, and not too long; empty where that goes on to the end."""
    for name in _THINKING:
        _, _, text = text.rpartition(f"</{name}>")
        if f"<{name}>" in text:
            return ""
    return text[-_TAIL:]


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if _worded(line)]


def _worded(text: str) -> bool:
    return _WORD.search(text) is not None


def _boxed(text: str) -> str | None:
    start = max((match.end() for match in _BOXED.finditer(text)), default=None) if "box" in text else None
    if start is None:
        return None
    inside = " ".join(text[start : _closing(text, start)].split())
    return inside if _worded(inside) else None


def _closing(text: str, start: int) -> int:
    """Where the brace that was opened before ``start`` is closed; the end of the text if it is not."""
    depth, at = 1, start
    while at < len(text):
        if text[at] == "\\":
            at += 1
        elif text[at] in "{}":
            depth += 1 if text[at] == "{" else -1
            if not depth:
                return at
        at += 1
    return len(text)


def _tagged(text: str) -> str | None:
    found = _TAGGED.findall(text)
    inside = " ".join(found[-1].split()) if found else ""
    return inside if _worded(inside) else None


def _hashed(line: str) -> str | None:
    """GSM8K's own mark, on the last line; elsewhere it is a heading."""
    found = _HASHED.fullmatch(line)
    return found[1] if found and not _markers(found[1]) else None


def _markers(text: str) -> list[re.Match[str]]:
    return list(_MARKER.finditer(text)) if "answer" in text.lower() else []


def _marked(text: str) -> str | None:
    for marker in reversed(_markers(text)):
        start = _OPENING.match(text, marker.end())
        if start is None:
            continue
        line, *_ = text[start.end() : start.end() + _TAIL].split("\n", 1)
        if _worded(line):
            return _first_sentence(line)
    return None


def _announces(line: str) -> bool:
    """Whether a reply that ends with this line was cut before its answer."""
    return any(not _worded(line[marker.end() :]) for marker in _markers(line))


def _bold(line: str) -> str | None:
    found = _BOLD.findall(line)
    return found[0] if len(found) == 1 and _worded(found[0]) and not found[0].rstrip().endswith(":") else None


def _first_sentence(line: str) -> str:
    """Without the sentences that follow, nor a reason."""
    for pattern in (_SENTENCE_END, _REASON):
        end = pattern.search(line)
        line = line[: end.start()] if end else line
    return line
