"""Families in which an answer may be worth more to the next model than to the asker: two hops, and yes or no.

"Call X the answer to this: Which number comes next: 2, 4, 6, 8? What is X * 7 + 3?" The second hop can only be solved
with the answer to the first. Both are questions of other families, so that a model may be good at one and bad at the
other; a reply states X as well, and whoever is shown one with the right X needs only the second hop.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from random import Random
from types import MappingProxyType

from focalroute.sim.families import FAMILIES, Family, Match, calculate, near, yes_no

#: The topic of questions of two hops.
TWO_HOPS = "multi-hop"

#: The families that a first hop is of: their answers are whole numbers.
_FIRST = ("counting", "sequences")
_INTO: Mapping[str, str] = MappingProxyType({
    "hours": "minutes", "minutes": "seconds", "days": "hours", "kilometres": "metres", "kilograms": "grams",
    "feet": "inches", "pounds": "ounces",
})  # fmt: skip
_TWO = re.compile(
    r"\bCall X the answer to this: ([^\n?]{1,300}\?) "
    r"(What is X [+*-] \d{1,9}(?: [+-] \d{1,9})?\?|How many \w+ are X \w+\?)"
)
_CLAIM = re.compile(r"\bIs it true that (-?\d{1,9}) ([+*-]) (\d{1,9})()() is (more|less) than (-?\d{1,9})\?")


def hops(question: str, x: str) -> tuple[str, str]:
    """The two hops of such a question, the second with this for X."""
    match = _TWO.search(question)
    if match is None:
        raise ValueError("not a question of two hops")
    return match[1], match[2].replace("X", x)


def _make_two(rng: Random) -> str:
    first = FAMILIES[rng.choice(_FIRST)].make(rng)
    if rng.random() < 0.5:
        of = rng.choice(list(_INTO))
        return f"Call X the answer to this: {first} How many {_INTO[of]} are X {of}?"
    tail = f" {rng.choice('+-')} {rng.randint(3, 99)}" if rng.random() < 0.5 else ""
    return f"Call X the answer to this: {first} What is X * {rng.randint(3, 29)}{tail}?"


def _answer(text: str) -> str | None:
    for family in FAMILIES.values():
        match = family.pattern.search(text)
        if match is not None:
            return family.solve(match)
    return None


def _solve_two(match: Match) -> str | None:
    x = _answer(match[1])
    return None if x is None or not x.isdigit() else _answer(match[2].replace("X", x))


def _wrong_two(match: Match, right: str, rng: Random) -> Iterator[str]:
    """What comes of a slip in the first hop, and slips in the second."""
    x = _answer(match[1]) or "0"
    slips = near(match, x, rng)
    slipped = near(match, right, rng)
    while True:
        found = _answer(match[2].replace("X", next(slips)))
        if found is not None:
            yield found
        yield next(slipped)


def _make_claim(rng: Random) -> str:
    sign = rng.choice("+-*")
    a, b = (rng.randint(3, 29), rng.randint(3, 19)) if sign == "*" else (rng.randint(11, 480), rng.randint(11, 480))
    value = {"+": a + b, "-": a - b, "*": a * b}[sign]
    than = value + rng.choice((-1, 1)) * rng.randint(1, max(3, abs(value) // 8))
    return f"Is it true that {a} {sign} {b} is {rng.choice(('more', 'less'))} than {than}?"


def _judge_claim(match: Match) -> str:
    value, than = int(calculate(match)), int(match[7])
    return "Yes" if (value > than if match[6] == "more" else value < than) else "No"


#: By name, as `focalroute.sim.families.FAMILIES`; looked for before these, whose questions they contain.
HOPPED: Mapping[str, Family] = MappingProxyType({
    family.topic: family
    for family in (
        Family(TWO_HOPS, _TWO, _make_two, _solve_two, _wrong_two),
        Family("yes-no", _CLAIM, _make_claim, _judge_claim, yes_no, most=2),
    )
})  # fmt: skip
