"""The topics of simulated questions: how each family words a question, solves it, and makes plausible wrong answers.

The right answer is always computed from the question's *text*. So a simulated model that finds the question in a prompt
computes the same answer as the question's label.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from itertools import pairwise
from random import Random
from types import MappingProxyType
from typing import Any

Match = re.Match[str]

_NAMES = ("Ann", "Ben", "Cid", "Dora", "Eli", "Fay", "Gus", "Hana", "Ivo", "June", "Kai", "Lea")
_WORDS = (
    "banana", "lantern", "mississippi", "orchestra", "committee", "pepper", "assessment", "meadow", "parallel",
    "giraffe", "bookkeeper", "tomorrow", "successful", "volcano", "engineering", "coconut", "telescope", "balloon",
)  # fmt: skip
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
_UNITS = MappingProxyType({
    ("hours", "minutes"): 60, ("minutes", "seconds"): 60, ("days", "hours"): 24, ("weeks", "days"): 7,
    ("kilometres", "metres"): 1000, ("metres", "centimetres"): 100, ("kilograms", "grams"): 1000,
    ("litres", "millilitres"): 1000, ("feet", "inches"): 12, ("yards", "feet"): 3, ("pounds", "ounces"): 16,
})  # fmt: skip
_ACTS: Mapping[str, Callable[[int, int], int]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_RANKS = ("oldest", "second oldest", "third oldest")
_YES_NO = ("No", "Yes")
_OPPOSITES = MappingProxyType({"Yes": "No", "No": "Yes", "positive": "negative", "negative": "positive"})


@dataclass(frozen=True, slots=True)
class Options:
    """A model's possible replies.

    Attributes:
        spoken: the text of each reply.
        p: the probability of each.
        right: index of a right one; None: there is none, or it is unknown.
        seen: the earlier answer in the prompt, as found; empty without one. A reply depends only on this and the
            question.
    """

    spoken: tuple[str, ...]
    p: tuple[float, ...]
    right: int | None
    seen: str


@dataclass(frozen=True, slots=True)
class Family:
    """One topic.

    Attributes:
        pattern: finds a question of this family anywhere in a text.
        make: words a new question.
        solve: the right answer to the question found; None if it has none.
        wrong: yields plausible wrong answers, possibly repeated and without end.
        most: the most choices of a question.
        options: a model's possible replies, from the `SimulatedModel`, the question, the earlier answer in the prompt
            (None: there is none), and whether the skills after the drift switch apply; None: plain answers.
    """

    topic: str
    pattern: re.Pattern[str]
    make: Callable[[Random], str]
    solve: Callable[[Match], str | None]
    wrong: Callable[[Match, str, Random], Iterator[str]]
    most: int = 8
    options: Callable[[Any, str, str | None, bool], Options] | None = None


def _plain(value: Decimal) -> str:
    return format(value.normalize(), "f")


def near(_: Match, right: str, rng: Random) -> Iterator[str]:
    """Yield numbers near the right one: off by 1, 2, 10 or up to an eighth, or with two digits swapped."""
    value = Decimal(right)
    if len(right) > 1 and right[-2:].isdigit():
        yield _plain(Decimal(right[:-2] + right[:-3:-1]))
    width = max(3, abs(int(value)) // 8)
    while True:
        yield _plain(value + rng.choice((1, 2, 10, rng.randint(1, width))) * rng.choice((-1, 1)))


def _operation(rng: Random) -> tuple[int, str, int]:
    """Two numbers and an operator; smaller numbers for a product."""
    sign = rng.choice("+-*")
    if sign == "*":
        return rng.randint(3, 29), sign, rng.randint(3, 19)
    return rng.randint(11, 480), sign, rng.randint(11, 480)


def one_more(rng: Random) -> str:
    """A further step of a sum, half the time; else nothing."""
    return f" {rng.choice('+-')} {rng.randint(3, 99)}" if rng.random() < 0.5 else ""


def _arithmetic(rng: Random) -> str:
    a, sign, b = _operation(rng)
    return f"What is {a} {sign} {b}{one_more(rng)}?"


def _calculate(match: Match) -> str:
    """The value of groups 1 to 5: number, sign, number, and optionally another sign and number."""
    first, sign, second, then, third = match.groups()[:5]
    if then == "*" and sign != "*":
        return str(_ACTS[sign](int(first), int(second) * int(third)))
    value = _ACTS[sign](int(first), int(second))
    return str(_ACTS[then](value, int(third)) if then else value)


def _written(day: date) -> str:
    return f"{day.day} {_MONTHS[day.month - 1]} {day.year}"


def _date(rng: Random) -> str:
    day = _written(date(2000, 1, 1) + timedelta(days=rng.randrange(12_000)))
    if rng.random() < 0.5:
        return f"Which day of the week is {day}?"
    return f"Which date is {rng.randint(5, 120)} days {rng.choice(('before', 'after'))} {day}?"


def _find_date(match: Match) -> str | None:
    days, way, number, month, year = match.group("days", "way", "day", "month", "year")
    try:
        day = date(int(year), _MONTHS.index(month) + 1, int(number))
        if days is None:
            return _WEEKDAYS[day.weekday()]
        return _written(day + timedelta(days=int(days) * (1 if way == "after" else -1)))
    except (ValueError, OverflowError):
        return None


def _wrong_date(match: Match, right: str, rng: Random) -> Iterator[str]:
    if match["days"] is None:
        yield from rng.sample(_WEEKDAYS, len(_WEEKDAYS))
        return
    number, month, year = right.split()
    day = date(int(year), _MONTHS.index(month) + 1, int(number))
    while True:
        yield _written(day + timedelta(days=rng.choice((1, 2, 3, 7, 10, 30, 31)) * rng.choice((-1, 1))))


def _unit(rng: Random) -> str:
    (big, small), factor = rng.choice(list(_UNITS.items()))
    amount = Decimal(rng.randint(5, 160)) / 4
    if rng.random() < 0.5:
        return f"How many {small} are {_plain(amount)} {big}?"
    return f"How many {big} are {_plain(amount * factor)} {small}?"


def _convert(match: Match) -> str | None:
    into, amount, of = match.groups()
    if (of, into) in _UNITS:
        return _plain(Decimal(amount) * _UNITS[of, into])
    factor = _UNITS.get((into, of))
    return None if factor is None else _plain((Decimal(amount) / factor).quantize(Decimal("0.0001")))


def _wrong_unit(match: Match, right: str, rng: Random) -> Iterator[str]:
    slips = near(match, right, rng)
    while True:
        factor = rng.choice(("10", "0.1", "2", "0.5", "1.2", "0.6"))
        yield _plain(Decimal(right) * Decimal(factor)) if rng.random() < 0.6 else next(slips)


def _logic(rng: Random) -> str:
    names = rng.sample(_NAMES, rng.randint(3, 6))
    says = [f"{names[0]} {rng.choice(('tells the truth', 'lies'))}."]
    says += [f"{b} says that {a} {rng.choice(('tells the truth', 'lies'))}." for a, b in pairwise(names)]
    return f"{' '.join(says)} Does {names[-1]} tell the truth?"


def _judge(match: Match) -> str | None:
    truthful: dict[str, bool] = {}
    for name, about, tells in re.findall(r"(\w+) (?:says that (\w+) )?(tells the truth|lies)\.", match[1]):
        truthful[name] = truthful.get(about, True) == (tells == "tells the truth")
    return _YES_NO[truthful[match[2]]] if match[2] in truthful else None


def opposite(_: Match, right: str, __: Random) -> Iterator[str]:
    """Yield the other of two answers."""
    yield _OPPOSITES[right]


def _ordering(rng: Random) -> str:
    names = rng.sample(_NAMES, rng.randint(3, 8))
    pairs = list(pairwise(names))
    rng.shuffle(pairs)
    says = [f"{a} is older than {b}." if rng.random() < 0.5 else f"{b} is younger than {a}." for a, b in pairs]
    return f"{' '.join(says)} Who is the {rng.choice((*_RANKS, 'youngest'))}?"


def _rank(match: Match) -> str | None:
    pairs = [
        (a, b) if how == "older" else (b, a)
        for a, how, b in re.findall(r"(\w+) is (older|younger) than (\w+)\.", match[1])
    ]
    left = {name for pair in pairs for name in pair}
    order: list[str] = []
    while left:
        eldest = [name for name in left if not any(b == name and a in left for a, b in pairs)]
        if len(eldest) != 1:
            return None
        order += eldest
        left -= {eldest[0]}
    return {**dict(zip(_RANKS, order, strict=False)), "youngest": order[-1]}.get(match[2])


def _other_names(match: Match, _: str, rng: Random) -> Iterator[str]:
    names = list(dict.fromkeys(re.findall(r"(\w+) is|than (\w+)", match[1])))
    distinct = sorted({a or b for a, b in names})
    yield from rng.sample(distinct, len(distinct))


def _sequence(rng: Random) -> str:
    kind, start, step = rng.randrange(4), rng.randint(2, 20), rng.randint(2, 12)
    terms = [start, start + step]
    if kind == 1:
        terms[1] = start * (step := rng.randint(2, 4))
    growth = rng.randint(1, 5)
    for i in range(3):
        following = (terms[-1] + step, terms[-1] * step, terms[-1] + step + growth * (i + 1), terms[-1] + terms[-2])
        terms.append(following[kind])
    return f"Which number comes next: {', '.join(map(str, terms))}?"


def _continue(match: Match) -> str | None:
    terms = [int(term) for term in match[1].split(", ")]
    steps = [b - a for a, b in pairwise(terms)]
    if len(set(steps)) == 1:
        return str(terms[-1] + steps[0])
    if all(terms) and all(b * terms[0] == a * terms[1] for a, b in pairwise(terms)):
        return str(terms[-1] * terms[1] // terms[0])
    if len({b - a for a, b in pairwise(steps)}) == 1:
        return str(terms[-1] + 2 * steps[-1] - steps[-2])
    if all(a + b == c for a, b, c in zip(terms, terms[1:], terms[2:], strict=False)):
        return str(terms[-1] + terms[-2])
    return None


def _counting(rng: Random) -> str:
    phrase = " ".join(rng.sample(_WORDS, rng.randint(2, 4)))
    return f'How many times does the letter "{rng.choice(phrase.replace(" ", ""))}" occur in "{phrase}"?'


def _small(_: Match, right: str, rng: Random) -> Iterator[str]:
    counts = [str(n) for n in range(max(0, int(right) - 4), int(right) + 5)]
    yield from rng.sample(counts, len(counts))


_CLAIM = re.compile(r"\bIs it true that (-?\d{1,9}) ([+*-]) (\d{1,9})()() is (more|less) than (-?\d{1,9})\?")


def _make_claim(rng: Random) -> str:
    a, sign, b = _operation(rng)
    value = _ACTS[sign](a, b)
    than = value + rng.choice((-1, 1)) * rng.randint(1, max(3, abs(value) // 8))
    return f"Is it true that {a} {sign} {b} is {rng.choice(('more', 'less'))} than {than}?"


def _judge_claim(match: Match) -> str:
    value, than = int(_calculate(match)), int(match[7])
    return _YES_NO[{"more": value > than, "less": value < than}[match[6]]]


CLAIMS = Family("yes-no", _CLAIM, _make_claim, _judge_claim, opposite, most=2)

#: Every topic, by name.
FAMILIES: Mapping[str, Family] = MappingProxyType({
    family.topic: family
    for family in (
        Family(
            "arithmetic",
            re.compile(r"\bWhat is (-?\d{1,9}) ([+*-]) (\d{1,9})(?: ([+*-]) (\d{1,9}))?\?"),
            _arithmetic, _calculate, near,
        ),
        Family(
            "counting",
            re.compile(r'\bHow many times does the letter "(\w)" occur in "([^"\n]*)"\?'),
            _counting, lambda m: str(m[2].casefold().count(m[1].casefold())), _small,
        ),
        Family(
            "dates",
            re.compile(
                r"\bWhich (?:day of the week|date) is (?:(?P<days>\d{1,5}) days (?P<way>before|after) )?"
                rf"(?P<day>\d\d?) (?P<month>{'|'.join(_MONTHS)}) (?P<year>\d{{4}})\?"
            ),
            _date, _find_date, _wrong_date, most=7,
        ),
        Family(
            "logic",
            re.compile(
                r"\b((?:[A-Z][a-z]+ (?:says that [A-Z][a-z]+ )?(?:tells the truth|lies)\. )+)"
                r"Does ([A-Z][a-z]+) tell the truth\?"
            ),
            _logic, _judge, opposite, most=2,
        ),
        Family(
            "ordering",
            re.compile(
                r"\b((?:[A-Z][a-z]+ is (?:older|younger) than [A-Z][a-z]+\. )+)"
                rf"Who is the ({'|'.join(_RANKS)}|youngest)\?"
            ),
            _ordering, _rank, _other_names,
        ),
        Family(
            "sequences",
            re.compile(r"\bWhich number comes next: (-?\d{1,9}(?:, -?\d{1,9}){3,9})\?"),
            _sequence, _continue, near,
        ),
        Family(
            "units",
            re.compile(r"\bHow many (\w+) are (\d{1,9}(?:\.\d{1,4})?) (\w+)\?"),
            _unit, _convert, _wrong_unit,
        ),
    )
})  # fmt: skip
