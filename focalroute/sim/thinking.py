"""What a simulated model could say to a prompt, and with which probabilities: an answer shown to it has its effect.

A model of one hop moves mass to the answer shown (`focalroute.sim.models.swayed`). Of two hops it goes through both:
its X, by its skill at the first hop; then what follows from that X, by its skill at the second. A reply states X, and
an X that it is shown sways it in the first hop; so does the result in the second, wherever it fits its own X. Of a
summary it answers each question behind it by itself, and is swayed in each by what it is shown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from focalroute.sim.hops import TWO_HOPS, hops
from focalroute.sim.models import SimulatedModel, distribution, swayed
from focalroute.sim.passages import FACTS, SUMMARY, fact_in, questions_behind, summed_up
from focalroute.sim.prompt import Prompt, same
from focalroute.sim.questions import Found, alternatives, find

_GREETING = "Hello! I am a simulated model. How can I help you?"
_FREE_CHOICES = 4  # answers a model wavers between where none are offered
_HOP_CHOICES = 3  # and in each of two hops, or of a summary's facts
_STATED = re.compile(r"\banswer is:? +(.+?)[.\s]*$", re.IGNORECASE)
_STATED_X = re.compile(r"\bX is (\S+?)[.,;]?(?=\s|$)")
_LETTER = re.compile(r"\(?([A-Z])(?:[).:]|$)")


@dataclass(frozen=True, slots=True)
class Options:
    """What can be said.

    Attributes:
        spoken: each reply; empty where the model says what it is told to.
        p: the probability of each.
        right: index of a right one; None: there is none, or none is known.
        seen: what the earlier answer in the prompt says, in its own words; empty without one. With the question it is
            all that a reply depends on.
    """

    spoken: tuple[str, ...]
    p: tuple[float, ...]
    right: int | None
    seen: str


def options(
    model: SimulatedModel,
    prompt: Prompt,
    allowed: Sequence[tuple[str, str]] | None,
    *,
    drifted: bool,
    right: int | None = None,
) -> Options:
    """What this model could say.

    Args:
        allowed: the only replies the request admits, as (value the model chooses, text to send); None: any.
        drifted: whether the skills after the drift switch hold.
        right: which of the allowed replies is right; None: the one that is the question's answer.
    """
    found = prompt.found
    behind = dict(zip(prompt.letters, prompt.texts, strict=True))
    if allowed is not None:
        spoken, texts = [text for _, text in allowed], [behind.get(value, value) for value, _ in allowed]
    elif prompt.letters:
        spoken, texts = list(prompt.letters), list(prompt.texts)
    elif found and found.topic == TWO_HOPS:
        return _two_hops(model, found, prompt.earlier, drifted)
    elif found and found.topic == SUMMARY:
        return _summary(model, found.question, prompt.earlier, drifted)
    elif found:
        texts = list(alternatives(found, _FREE_CHOICES))
        spoken = [model.ending.replace("{}", text) for text in texts]
    else:
        return Options((prompt.told or _GREETING,), distribution(model, prompt.key, None, [""], None), None, "")
    if right is None and found is not None:
        right = _at(texts, found.answer)
    skill = found.topic if found else None
    p = distribution(model, prompt.key, skill, texts, right, drifted=drifted) if texts else ()
    shown = _shown(prompt.earlier, prompt.letters, texts)
    said = "" if prompt.earlier is None else "?" if shown is None else texts[shown]
    return Options(tuple(spoken), swayed(model, p, shown, right), right, said)


def _two_hops(model: SimulatedModel, found: Found, earlier: str | None, drifted: bool) -> Options:
    first = find(hops(found.question, "0")[0])
    x_shown = _STATED_X.search(earlier or "")
    y_shown = _STATED.search(earlier or "")
    xs, px = _hop(model, first, x_shown and x_shown[1], drifted)
    spoken, p = [], []
    for x, mass in zip(xs, px, strict=True):
        ys, py = _hop(model, find(hops(found.question, x)[1]), y_shown and y_shown[1], drifted)
        spoken += [f" X is {x}. The answer is {y}." for y in ys]
        p += [mass * share for share in py]
    said = [match[1] for match in (x_shown, y_shown) if match]
    return Options(tuple(spoken), tuple(p), 0, " ".join(said) if said or earlier is None else "?")


def _summary(model: SimulatedModel, request: str, earlier: str | None, drifted: bool) -> Options:
    shown = {fact: fact_in(earlier or "", fact) for fact in FACTS}
    asked = questions_behind(request)
    each = [zip(*_hop(model, find(asked[fact]), shown[fact], drifted), strict=True) for fact in FACTS]
    combined = [zip(*combination, strict=True) for combination in product(*each)]
    spoken, p = [], []
    for texts, masses in combined:
        spoken.append(summed_up(request, dict(zip(FACTS, texts, strict=True))))
        p.append(prod(masses))
    said = [text for text in shown.values() if text is not None]
    return Options(tuple(spoken), tuple(p), 0, ", ".join(said) if said or earlier is None else "?")


def _hop(
    model: SimulatedModel, found: Found | None, shown: str | None, drifted: bool
) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """The answers that a model wavers between in one hop, the right one first, and its probabilities."""
    if found is None:
        return ("0",), (1.0,)
    texts = alternatives(found, _HOP_CHOICES)
    p = distribution(model, found.question, found.topic, texts, 0, drifted=drifted)
    return texts, swayed(model, p, None if shown is None else _at(texts, shown), 0)


def _shown(earlier: str | None, letters: Sequence[str], texts: Sequence[str]) -> int | None:
    """Which of the answers somebody else gave, by its words or by its letter."""
    if earlier is None:
        return None
    stated = _STATED.search(earlier)
    said = (stated[1] if stated else earlier).strip()
    lettered = _LETTER.match(said)
    if lettered and lettered[1] in letters:
        return letters.index(lettered[1])
    return _at(texts, said)


def _at(texts: Sequence[str], answer: str) -> int | None:
    return next((i for i, text in enumerate(texts) if same(text, answer)), None)
