"""Procedurally generated questions with true labels, and the reading of such a question out of any prompt."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from random import Random

from focalroute.core.errors import ConfigError
from focalroute.sim.families import FAMILIES, Family
from focalroute.sim.hops import HOPPED
from focalroute.sim.passages import PASSAGES
from focalroute.sim.prose import GRADES, JUDGING, grade_in
from focalroute.sim.stories import STORIES

#: The topics that a stream mixes where none are named.
TOPICS: tuple[str, ...] = tuple(FAMILIES)
#: The names of all topics: those, and the ones made for free-form answers, for chains of models and for texts.
ALL_TOPICS: tuple[str, ...] = (*TOPICS, *STORIES, *HOPPED, *PASSAGES)

_ALL = {**STORIES, **HOPPED, **PASSAGES, **FAMILIES}  # in the order in which they are looked for


@dataclass(frozen=True, slots=True)
class Question:
    """A closed question with its true label.

    Attributes:
        id: a digest of text and choices: equal questions have equal ids.
        choices: 2 to 8 distinct answers in random order; the right one is among them.
        label: index of the right choice.
    """

    id: str
    topic: str
    text: str
    choices: tuple[str, ...]
    label: int

    @property
    def answer(self) -> str:
        """The right answer as text, for asking the question without choices."""
        return self.choices[self.label]


@dataclass(frozen=True, slots=True)
class Found:
    """A question found in a text: its own words, its right answer, and where in the text it ends."""

    topic: str
    question: str
    answer: str
    end: int


def generate(topic: str, rng: Random) -> Question:
    """A new question of a topic; all randomness comes from ``rng``.

    Raises:
        ConfigError: there is no such topic.

    >>> question = generate("arithmetic", Random(1))
    >>> solve(question.text) == (question.topic, question.choices[question.label])
    True
    """
    family = _family(topic)
    while True:
        text = family.make(rng)
        found = _found(family, text)
        if found is None:  # such as the third oldest of two
            continue
        choices = [found.answer, *_wrong(family, found, rng, rng.randint(min(3, family.most), family.most) - 1)]
        if len(choices) > 1:
            rng.shuffle(choices)
            digest = blake2b("\n".join((text, *choices)).encode(), digest_size=8).hexdigest()
            return Question(f"{topic}-{digest}", topic, text, tuple(choices), choices.index(found.answer))


def stream(n: int, seed: int = 0, topics: Sequence[str] = TOPICS, drift: float | None = None) -> Iterator[Question]:
    """``n`` questions of mixed topics; the same seed gives the same stream.

    Args:
        n: how many.
        seed: of the stream's own random generator.
        topics: to mix, equally often without ``drift``.
        drift: the share of the stream, in (0, 1), after which the mix turns: before it the first half of ``topics`` is
            four times as frequent as the other half, after it the other way round.

    Raises:
        ConfigError: an argument is out of range, or a topic does not exist.
    """
    if n < 0:
        raise ConfigError(f"n: give a number of questions, got {n}")
    if not topics:
        raise ConfigError(f"topics: give at least one of {', '.join(TOPICS)}")
    if drift is not None and not 0 < drift < 1:
        raise ConfigError(f"drift: give a share of the stream between 0 and 1, got {drift}")
    for topic in topics:
        _family(topic)
    return _stream(n, Random(seed), tuple(topics), drift)  # noqa: S311 - no secret


def _stream(n: int, rng: Random, topics: tuple[str, ...], drift: float | None) -> Iterator[Question]:
    early = [4 if i < (len(topics) + 1) // 2 else 1 for i in range(len(topics))]
    late = [5 - weight for weight in early]
    for i in range(n):
        weights = None if drift is None else early if i < drift * n else late
        yield generate(rng.choices(topics, weights)[0], rng)


def find(text: str) -> Found | None:
    """The first question of a known family in a text, or None; where a text shows a reply to be graded, which grade."""
    graded = grade_in(text)
    if graded is not None:
        return Found(JUDGING, *graded)
    for family in _ALL.values():
        found = _found(family, text)
        if found is not None:
            return found
    return None


def solve(text: str) -> tuple[str, str] | None:
    """Topic and right answer of the question in a text, or None if there is none it can read.

    >>> solve("Answer briefly. What is 17 + 25?")
    ('arithmetic', '42')
    """
    found = find(text)
    return None if found is None else (found.topic, found.answer)


@functools.lru_cache(maxsize=4096)
def alternatives(found: Found, n: int) -> tuple[str, ...]:
    """The right answer and up to ``n - 1`` plausible wrong ones, always the same for the same question."""
    if found.topic == JUDGING:
        return (found.answer, *[grade for grade in GRADES if grade != found.answer][: n - 1])
    rng = Random(found.question)  # noqa: S311 - no secret
    return (found.answer, *_wrong(_ALL[found.topic], found, rng, n - 1))


def _family(topic: str) -> Family:
    if topic not in _ALL:
        raise ConfigError(f"topic: unknown topic {topic!r}; use one of {', '.join(ALL_TOPICS)}")
    return _ALL[topic]


def _found(family: Family, text: str) -> Found | None:
    match = family.pattern.search(text)
    answer = None if match is None else family.solve(match)
    return None if match is None or answer is None else Found(family.topic, match[0], answer, match.end())


def _wrong(family: Family, found: Found, rng: Random, n: int) -> list[str]:
    match = family.pattern.search(found.question)
    if not isinstance(match, re.Match):
        return []
    offered = islice(family.wrong(match, found.answer, rng), 60)
    return [answer for answer in dict.fromkeys(offered) if answer != found.answer][:n]
