"""Questions on a report, summaries and sentiment, in the shapes of SQuAD, XSum and SST-2, for `examples.paper.der`.

For a summary a model answers each question behind it separately, and is swayed in each by the answer it is shown. A
`PassageModel` is a simulated model that knows these topics.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import product
from math import prod
from random import Random
from types import MappingProxyType
from typing import ClassVar

from focalroute.sim import SimulatedModel
from focalroute.sim.families import Family, Match, Options, near, opposite
from focalroute.sim.questions import KNOWN, find
from focalroute.sim.replies import hop_options, seen_answer

#: The topic of summaries.
SUMMARY = "summary"
#: The topics of questions on a report: how each is asked, and how a summary's words give it away.
FACTS: Mapping[str, tuple[str, re.Pattern[str]]] = MappingProxyType({
    "who": ("Who opened it?", re.compile(r"\b([A-Z]\w+ [A-Z]\w+) opened\b")),
    "where": ("Where is it?", re.compile(r" in ([A-Z]\w+ [A-Z]\w+)\b")),
    "cost": ("How many pounds did it cost?", re.compile(r" for (\d+) pounds\b")),
})  # fmt: skip

_FIRST = ("Aldith", "Bertha", "Cedric", "Edwin", "Godwin", "Hilda", "Leofric", "Mildred", "Osbern", "Sunniva")
_LAST = ("Archer", "Baker", "Carter", "Fletcher", "Mason", "Potter", "Tanner", "Weaver")
_SIDES = ("Upper", "Lower", "Great", "Little", "Old", "New")
_TOWNS = ("Arbury", "Belford", "Corley", "Dunstead", "Elham", "Fardale", "Galmouth", "Holwick")
_THINGS = ("bakery", "brewery", "library", "mill", "museum", "pottery", "school", "theatre")
_REPORT = (
    "{who} opened a {thing} in {where} last week. {other} had wanted to have it in {elsewhere}. "
    "After {years} years of work it cost {cost} pounds, and {guests} people came to see it."
)
_READ = re.compile(
    r"(?P<who>\w+ \w+) opened a (?P<thing>\w+) in (?P<where>\w+ \w+) last week\. (?P<other>\w+ \w+) had wanted to have "
    r"it in (?P<elsewhere>\w+ \w+)\. After \d+ years of work it cost (?P<cost>\d+) pounds, and (?P<guests>\d+) "
)
_BESIDE = {"who": "other", "where": "elsewhere", "cost": "guests"}
_ABOUT = ("plot", "acting", "music", "ending", "humour", "camera")
_GOOD = ("moving", "superb", "clever", "lovely", "gripping", "fresh")
_POOR = ("dull", "clumsy", "stale", "noisy", "hollow", "tiresome")
_CLAUSE = re.compile(rf"\b({'|'.join(_GOOD + _POOR)})\b")


def _report(rng: Random) -> str:
    people = [f"{first} {rng.choice(_LAST)}" for first in rng.sample(_FIRST, 2)]
    places = [f"{side} {rng.choice(_TOWNS)}" for side in rng.sample(_SIDES, 2)]
    return _REPORT.format(
        who=people[0], other=people[1], where=places[0], elsewhere=places[1], thing=rng.choice(_THINGS),
        years=rng.randint(2, 9), cost=rng.randint(200, 999), guests=rng.randint(200, 999),
    )  # fmt: skip


def _question(report: str, fact: str) -> str:
    return f'Read this: "{report}" {FACTS[fact][0]}'


def questions_behind(request: str) -> dict[str, str]:
    """Return the questions that the requested summary must answer, by topic of `FACTS`."""
    return {fact: _question(_asked(request)["report"], fact) for fact in FACTS}


def fact_in(summary: str, fact: str) -> str | None:
    """Return the fact that a summary states; None without one."""
    match = FACTS[fact][1].search(summary)
    return match and match[1]


def summed_up(request: str, said: Mapping[str, str]) -> str:
    """Write the requested summary with these answers to each of `FACTS`."""
    thing = _read(_asked(request))["thing"]
    return f"{said['who']} opened a {thing} in {said['where']} for {said['cost']} pounds."


def _asked(request: str) -> Match:
    match = PASSAGES[SUMMARY].pattern.search(request)
    if match is None:
        raise ValueError("not a request for a summary")
    return match


def _read(match: Match) -> Match:
    read = _READ.match(match["report"])
    if read is None:
        raise ValueError("not a report")
    return read


def _fact_of(match: Match) -> str:
    return next(fact for fact, (asked, _) in FACTS.items() if asked == match["asked"])


def _solve_fact(match: Match) -> str | None:
    read = _READ.match(match["report"])
    return read and read[_fact_of(match)]


def _wrong_fact(match: Match, right: str, rng: Random) -> Iterator[str]:
    """Yield wrong facts: first what the report says about another person, place or thing, then half-right ones."""
    fact = _fact_of(match)
    yield _read(match)[_BESIDE[fact]]
    yield from near(match, right, rng) if fact == "cost" else _half_right(fact, right, rng)


def _half_right(fact: str, right: str, rng: Random) -> Iterator[str]:
    starts, ends = (_FIRST, _LAST) if fact == "who" else (_SIDES, _TOWNS)
    start, end = right.split()
    while True:
        yield rng.choice((f"{rng.choice(starts)} {end}", f"{start} {rng.choice(ends)}"))


def _solve_summary(match: Match) -> str | None:
    read = _READ.match(match["report"])
    return read and summed_up(match[0], read.groupdict())


def _wrong_summary(match: Match, _: str, rng: Random) -> Iterator[str]:
    read = _read(match)
    rights = [rights for rights in product((True, False), repeat=len(FACTS)) if not all(rights)]
    rng.shuffle(rights)
    for each in rights:
        said = {fact: read[fact if right else _BESIDE[fact]] for fact, right in zip(FACTS, each, strict=True)}
        yield summed_up(match[0], said)


def _review(rng: Random) -> str:
    about = rng.sample(_ABOUT, rng.choice((3, 5)))
    said = [f"the {thing} is {rng.choice(rng.choice((_GOOD, _POOR)))}" for thing in about]
    return f'Is this review positive or negative? "In short, {", ".join(said[:-1])} and {said[-1]}."'


def _mood(match: Match) -> str | None:
    words = _CLAUSE.findall(match["review"])
    good = sum(word in _GOOD for word in words)
    moods = {-1: "negative", 1: "positive"}  # as many good words as poor ones: neither
    return moods.get((2 * good > len(words)) - (2 * good < len(words)))


def _summary_options(model: SimulatedModel, request: str, earlier: str | None, drifted: bool) -> Options:
    shown = {fact: fact_in(earlier or "", fact) for fact in FACTS}
    asked = questions_behind(request)
    each = [
        zip(*hop_options(model, find(asked[fact], model.families), shown[fact], drifted), strict=True) for fact in FACTS
    ]
    combined = [zip(*combination, strict=True) for combination in product(*each)]
    spoken, p = [], []
    for texts, masses in combined:
        spoken.append(summed_up(request, dict(zip(FACTS, texts, strict=True))))
        p.append(prod(masses))
    said = [text for text in shown.values() if text is not None]
    return Options(tuple(spoken), tuple(p), 0, seen_answer(", ".join(said), earlier))


def _family_of(fact: str) -> Family:
    asked = re.escape(FACTS[fact][0])
    pattern = re.compile(rf'\bRead this: "(?P<report>[^"\n]{{1,600}})" (?P<asked>{asked})')
    return Family(fact, pattern, lambda rng: _question(_report(rng), fact), _solve_fact, _wrong_fact, most=4)


#: By name, as `focalroute.sim.families.FAMILIES`.
PASSAGES: Mapping[str, Family] = MappingProxyType({
    **{fact: _family_of(fact) for fact in FACTS},
    "sentiment": Family(
        "sentiment",
        re.compile(r'\bIs this review positive or negative\? "(?P<review>[^"\n]{1,400})"'),
        _review, _mood, opposite, most=2,
    ),
    SUMMARY: Family(
        SUMMARY,
        re.compile(r'\bSum this up in one sentence: "(?P<report>[^"\n]{1,600})"'),
        lambda rng: f'Sum this up in one sentence: "{_report(rng)}"', _solve_summary, _wrong_summary,
        options=_summary_options,
    ),
})  # fmt: skip


class PassageModel(SimulatedModel):
    """A model that knows these topics, too."""

    families: ClassVar[tuple[Family, ...]] = (*KNOWN, *PASSAGES.values())
