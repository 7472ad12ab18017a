"""Prose with a hidden quality: requests, the points of a good reply, and the points that a reply makes.

A request has a handful of points. The right option of each follows from the request's own words, and the options in a
reply can be read back from its text alone, so a grader need not know which model wrote it.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any

from focalroute.core.errors import ConfigError
from focalroute.core.json_values import objects_in

#: The qualities that requests ask for.
AXES = ("helpful", "safe", "truthful")

#: The topic of grading a reply; a model's skill at it is the share of right grades.
JUDGING = "judging"

#: The words for a reply with all, most, ... hardly any of its points right.
GRADES = ("excellent", "good", "fair", "poor", "bad")


_GRADED = '{"conversation"'


@dataclass(frozen=True, slots=True)
class ProsePoint:
    """One point of a reply.

    Attributes:
        wordings: sentences with a place for the option.
        options: the possible statements; none is a substring of another of the request.
        right: the index of the right one; None: it depends on the request.
    """

    wordings: tuple[str, ...]
    options: tuple[str, ...]
    right: int | None = None


@dataclass(frozen=True, slots=True)
class Brief:
    """A request for prose.

    Attributes:
        axis: one of `AXES`.
        request: its own words.
    """

    axis: str
    request: str

    @property
    def points(self) -> tuple[ProsePoint, ...]:
        """The points of a good reply, each with its right option."""
        return tuple(self._point(number, point) for number, point in enumerate(_POINTS[self.axis]))

    def _point(self, number: int, point: ProsePoint) -> ProsePoint:
        if point.right is not None:
            return point
        digest = blake2b(f"{number} {self.request}".encode(errors="surrogatepass"), digest_size=8).digest()
        return replace(point, right=int.from_bytes(digest) % len(point.options))

    def said(self, text: str) -> tuple[int | None, ...]:
        """For each point the index of the option that a text states, the first if it states several; None: none."""
        return tuple(_first(point.options, text) for point in self.points)

    def quality(self, text: str) -> float:
        """The share of points on which a text states the right option, in [0, 1]."""
        points = self.points
        return sum(said == point.right for said, point in zip(self.said(text), points, strict=True)) / len(points)


def _first(options: Sequence[str], text: str) -> int | None:
    places = {at: i for i, option in enumerate(options) if (at := text.find(option)) >= 0}
    return places[min(places)] if places else None


def prose_requests(n: int, seed: int = 0, axes: Sequence[str] = AXES) -> Iterator[Brief]:
    """Yield ``n`` requests of mixed axes; the same seed gives the same requests.

    Raises:
        ConfigError: an argument is wrong.

    Examples:
        >>> [brief.axis for brief in prose_requests(3, seed=1)]
        ['helpful', 'safe', 'safe']
    """
    unknown = sorted(set(axes) - set(AXES))
    if unknown or not axes:
        raise ConfigError(f"axes: give some of {', '.join(AXES)}")
    if type(n) is not int or n < 0:
        raise ConfigError(f"n: give a whole number of requests, got {n!r}")
    rng = Random(seed)  # noqa: S311 - no secret
    for _ in range(n):
        axis = rng.choice(list(axes))
        yield Brief(axis, _REQUESTS[axis].format(*(rng.choice(words) for words in _WORDS[axis])))


def find_brief(text: str) -> Brief | None:
    """The first request for prose in a text."""
    for axis, pattern in _PATTERNS.items():
        if (match := pattern.search(text)) is not None:
            return Brief(axis, match[0])
    return None


def drafts_in(text: str) -> tuple[str, ...]:
    """Other models' replies in a prompt: a line with a JSON list of objects with a "reply"."""
    found = _json_line(text, "[{")
    replies = (row.get("reply") for row in objects_in(found))
    return tuple(reply for reply in replies if isinstance(reply, str))


def grade_in(text: str) -> tuple[str, str, int] | None:
    """The reply that a prompt asks to grade, its right grade, and where in the prompt it begins; None without one.

    It is in a line with a JSON object with a "conversation" and a "reply".
    """
    found = _json_line(text, _GRADED)
    if not isinstance(found, dict) or not isinstance(found.get("reply"), str):
        return None
    brief = find_brief(json.dumps(found["conversation"], ensure_ascii=False))
    if brief is None:
        return None
    quality = brief.quality(found["reply"])
    grade = GRADES[min(round((1 - quality) * 5), len(GRADES) - 1)]
    return found["reply"], grade, text.index(_GRADED)


def _json_line(text: str, start: str) -> object:
    for line in text.splitlines():
        if line.startswith(start):
            try:
                return json.loads(line)
            except ValueError:
                continue
    return None


_AXES: Mapping[str, Any] = tomllib.loads(Path(__file__).with_name("prose.toml").read_text("utf-8"))
_WORDS = {axis: tuple(map(tuple, about["words"])) for axis, about in _AXES.items()}
_REQUESTS = {axis: about["request"] for axis, about in _AXES.items()}
_PATTERNS = {
    axis: re.compile(re.escape(request).replace(re.escape("{}"), r"[A-Za-z ]{1,30}?"))
    for axis, request in _REQUESTS.items()
}
_POINTS = {
    axis: tuple(
        ProsePoint(tuple(point["wordings"]), tuple(point["options"]), point.get("right")) for point in about["points"]
    )
    for axis, about in _AXES.items()
}
