"""Sums told as stories, of several steps, in the manner of grade-school mathematics (GSM8K, arXiv 2110.14168)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import chain
from random import Random
from types import MappingProxyType

from focalroute.sim.families import FAMILIES, Family

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
    """How many there are in the end, one of the steps left out or none; None where the story cannot be."""
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
    """First those that forget a step."""
    steps = range(len(_STEP.findall(match["steps"])))
    forgetful = (end for step in steps if (end := _end(match, step)) is not None)
    return chain(forgetful, FAMILIES["arithmetic"].wrong(match, right, rng))


#: Kept apart from `FAMILIES`: a stream mixes them in only where they are named.
STORIES: Mapping[str, Family] = MappingProxyType({
    "stories": Family(
        "stories",
        re.compile(
            r"\b(?P<name>[A-Z][a-z]+) has (?P<start>\d{1,6}) (?P<things>\w+)\. "
            r"(?P<steps>(?:Then (?:buys \d{1,6} bags of \d{1,6}|gives \d{1,6} away|finds \d{1,6} more|sells half)\. )+)"
            r"How many (?P=things) does (?P=name) have now\?"
        ),
        _story, _end, _slips,
    )
})  # fmt: skip
