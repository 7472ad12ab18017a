"""Generates questions with true labels, and finds such questions in any prompt.

Besides the plain topics of `focalroute.sim.families` there are topics of several steps. Stories are word problems in
the style of grade-school mathematics (GSM8K, arXiv 2110.14168). In a two-hop question, such as "Call X the answer to
this: Which number comes next: 2, 4, 6, 8? What is X * 7 + 3?", the second hop needs the answer to the first. So a model
may be good at one hop and bad at the other, and a model that is shown the right X needs only the second.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain, islice
from random import Random
from types import MappingProxyType

from focalroute.core.errors import ConfigError
from focalroute.sim.families import CLAIMS, FAMILIES, Family, Match, near, one_more
from focalroute.sim.prose import GRADES, JUDGING, grade_in

#: The families of first hops, whose answers are whole numbers.
_FIRST = ("counting", "sequences")
_INTO: Mapping[str, str] = MappingProxyType({
    "hours": "minutes", "minutes": "seconds", "days": "hours", "kilometres": "metres", "kilograms": "grams",
    "feet": "inches", "pounds": "ounces",
})  # fmt: skip
_TWO = re.compile(
    r"\bCall X the answer to this: ([^\n?]{1,300}\?) "
    r"(What is X [+*-] \d{1,9}(?: [+-] \d{1,9})?\?|How many \w+ are X \w+\?)"
)


def hops(question: str, x: str) -> tuple[str, str]:
    """The two hops of a two-hop question, the second with ``x`` for X."""
    match = _TWO.search(question)
    if match is None:
        raise ValueError("not a question of two hops")
    return match[1], match[2].replace("X", x)


def _make_two(rng: Random) -> str:
    first = FAMILIES[rng.choice(_FIRST)].make(rng)
    if rng.random() < 0.5:
        of = rng.choice(list(_INTO))
        return f"Call X the answer to this: {first} How many {_INTO[of]} are X {of}?"
    tail = one_more(rng)
    return f"Call X the answer to this: {first} What is X * {rng.randint(3, 29)}{tail}?"


def _answer(text: str) -> str | None:
    found = find(text, tuple(FAMILIES.values()))
    return None if found is None else found.answer


def _solve_two(match: Match) -> str | None:
    x = _answer(match[1])
    return None if x is None or not x.isdigit() else _answer(match[2].replace("X", x))


def _wrong_two(match: Match, right: str, rng: Random) -> Iterator[str]:
    """Yield the results of mistakes in the first hop, and of mistakes in the second."""
    x = _answer(match[1]) or "0"
    slips = near(match, x, rng)
    slipped = near(match, right, rng)
    while True:
        found = _answer(match[2].replace("X", next(slips)))
        if found is not None:
            yield found
        yield next(slipped)


#: Searched before the plain families, whose questions they contain.
TWO_HOPS = Family("multi-hop", _TWO, _make_two, _solve_two, _wrong_two)


_NAMES = ("Ann", "Ben", "Cid", "Dora", "Eli", "Fay", "Gus", "Hana")
_THINGS = ("apples", "pencils", "stamps", "marbles", "coins", "stickers")
_STEP = re.compile(r"Then (?:buys (\d+) bags of (\d+)|gives (\d+) away|finds (\d+) more|(sells half))\.")


def _story(rng: Random) -> str:
    name, things = rng.choice(_NAMES), rng.choice(_THINGS)
    steps = [
        rng.choice((
            f"Then buys {rng.randint(2, 9)} bags of {rng.randint(3, 12)}.",
            f"Then gives {rng.randint(2, 30)} away.",
            f"Then finds {rng.randint(2, 40)} more.",
            "Then sells half.",
        ))
        for _ in range(rng.randint(2, 4))
    ]  # fmt: skip
    return f"{name} has {rng.randint(4, 60)} {things}. {' '.join(steps)} How many {things} does {name} have now?"


def _end(match: re.Match[str], without: int | None = None) -> str | None:
    """The number at the story's end, without the step of index ``without``; None if the story is impossible."""
    left = int(match["start"])
    for at, (bags, each, given, found, half) in enumerate(_STEP.findall(match["steps"])):
        if at == without:
            continue
        if half and left % 2:
            return None
        left = left // 2 if half else left + int(bags or 0) * int(each or 0) - int(given or 0) + int(found or 0)
        if left < 0:
            return None
    return str(left)


def _slips(match: re.Match[str], right: str, rng: Random) -> Iterator[str]:
    """Yield wrong answers: first those that forget a step, then numbers near the right one."""
    steps = range(len(_STEP.findall(match["steps"])))
    forgetful = (end for step in steps if (end := _end(match, step)) is not None)
    return chain(forgetful, FAMILIES["arithmetic"].wrong(match, right, rng))


STORIES = Family(
    "stories",
    re.compile(
        r"\b(?P<name>[A-Z][a-z]+) has (?P<start>\d{1,6}) (?P<things>\w+)\. "
        r"(?P<steps>(?:Then (?:buys \d{1,6} bags of \d{1,6}|gives \d{1,6} away|finds \d{1,6} more|sells half)\. )+)"
        r"How many (?P=things) does (?P=name) have now\?"
    ),
    _story, _end, _slips,
)  # fmt: skip

#: Not in `FAMILIES`, so that a stream has them only if they are named.
_MORE = (STORIES, TWO_HOPS, CLAIMS)

#: The topics of a stream by default.
TOPICS: tuple[str, ...] = tuple(FAMILIES)
#: All topics: also those for free-form answers and for chains of models.
ALL_TOPICS: tuple[str, ...] = (*TOPICS, *(family.topic for family in _MORE))

#: All families, in the order in which they are searched for.
KNOWN: tuple[Family, ...] = (*_MORE, *FAMILIES.values())


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
class FoundQuestion:
    """A question found in a text: its own words, its right answer, where in the text it ends, and its family.

    A reply to be graded has no family.
    """

    question: str
    answer: str
    end: int
    family: Family | None = None

    @property
    def topic(self) -> str:
        """The topic of its family; of a reply to be graded, `JUDGING`."""
        return JUDGING if self.family is None else self.family.topic


def generate(topic: str | Family, rng: Random) -> Question:
    """Generate a question of a topic, or of your own family; all randomness comes from ``rng``.

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
            return Question(f"{family.topic}-{digest}", family.topic, text, tuple(choices), choices.index(found.answer))


def stream(
    n: int, seed: int = 0, topics: Sequence[str | Family] = TOPICS, drift: float | None = None
) -> Iterator[Question]:
    """Yield ``n`` questions of mixed topics; the same seed gives the same stream.

    Args:
        n: number of questions.
        seed: the seed of the stream's random generator.
        topics: the topics to mix, equally often without ``drift``.
        drift: the share of the stream, in (0, 1), after which the mix changes: before it the first half of ``topics``
            is four times as frequent as the other half, after it the other way round.

    Raises:
        ConfigError: an argument is out of range, or a topic does not exist.
    """
    if type(n) is not int or n < 0:
        raise ConfigError(f"n: give a whole number of questions, got {n!r}")
    if not topics or isinstance(topics, str):
        raise ConfigError(f"topics: give a list of at least one of {', '.join(TOPICS)}")
    if drift is not None and not 0 < drift < 1:
        raise ConfigError(f"drift: give a share of the stream between 0 and 1, got {drift}")
    for topic in topics:
        _family(topic)
    return _stream(n, Random(seed), tuple(topics), drift)  # noqa: S311 - no secret


def _stream(n: int, rng: Random, topics: tuple[str | Family, ...], drift: float | None) -> Iterator[Question]:
    half = len(topics) // 2
    early, late = [4] * (len(topics) - half) + [1] * half, [1] * (len(topics) - half) + [4] * half
    weights: list[int] | None = None
    for i in range(n):
        if drift is not None:
            weights = early if i < drift * n else late
        yield generate(rng.choices(topics, weights)[0], rng)


def find(text: str, families: Sequence[Family] = KNOWN) -> FoundQuestion | None:
    """The first question of these families in a text, or None; for a text with a reply to grade, that question."""
    graded = grade_in(text)
    if graded is not None:
        return FoundQuestion(*graded)
    for family in families:
        found = _found(family, text)
        if found is not None:
            return found
    return None


def solve(text: str, families: Sequence[Family] = KNOWN) -> tuple[str, str] | None:
    """Topic and right answer of the question in a text; None if no question is found.

    >>> solve("Answer briefly. What is 17 + 25?")
    ('arithmetic', '42')
    """
    found = find(text, families)
    return None if found is None else (found.topic, found.answer)


@functools.lru_cache(maxsize=4096)
def alternatives(found: FoundQuestion, n: int) -> tuple[str, ...]:
    """The right answer and up to ``n - 1`` plausible wrong ones, always the same for the same question."""
    if found.family is None:
        return (found.answer, *[grade for grade in GRADES if grade != found.answer][: n - 1])
    rng = Random(found.question)  # noqa: S311 - no secret
    return (found.answer, *_wrong(found.family, found, rng, n - 1))


def _family(topic: str | Family) -> Family:
    if isinstance(topic, Family):
        return topic
    for family in KNOWN:
        if family.topic == topic:
            return family
    raise ConfigError(f"topic: unknown topic {topic!r}; use one of {', '.join(ALL_TOPICS)}")


def _found(family: Family, text: str) -> FoundQuestion | None:
    match = family.pattern.search(text)
    answer = None if match is None else family.solve(match)
    if match is None or answer is None:
        return None
    return FoundQuestion(match[0], answer, match.end(), family)


def _wrong(family: Family, found: FoundQuestion, rng: Random, n: int) -> list[str]:
    match = family.pattern.search(found.question)
    if not isinstance(match, re.Match):
        return []
    offered = islice(family.wrong(match, found.answer, rng), 60)
    return [answer for answer in dict.fromkeys(offered) if answer != found.answer][:n]
