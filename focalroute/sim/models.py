"""Simulated models: how good each is at what, how sure it is of itself, and which mistakes it shares with its kin.

A model is a pure function. Every draw is a hash of (seed, model or kin, question), never a generator's state, so the
same question gets the same distribution over its choices in every process, in any order, whatever surrounds it.
"""

from __future__ import annotations

import math
import struct
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from hashlib import blake2b
from pathlib import Path
from typing import ClassVar

from focalroute.core.errors import ConfigError
from focalroute.sim.families import Family
from focalroute.sim.prose import AXES, JUDGING
from focalroute.sim.questions import KNOWN

_SURE = 0.9999  # no choice is ever entirely ruled out
_FALLING = 0.5  # each choice behind the leader gets half the mass of the one before it


@dataclass(frozen=True, slots=True)
class SimulatedModel:
    """One model of a simulated pool.

    Attributes:
        name: the model name it is served under; also the endpoint's name.
        skills: topic -> probability that its most probable choice is right, never below chance. Topics are those of
            questions, the axes of prose (of each point in it), and "judging" (of a grade).
        drifted: topic -> the same after the drift switch; topics not named keep their skill.
        skill: the same for every topic not in ``skills``.
        sharpness: 1 is calibrated (its mass on a choice is the probability that this choice is right), above 1
            overconfident, below 1 underconfident: mass is raised to this power.
        kin: models of one kin (and seed) share mistakes; None: none.
        correlation: probability that it uses its kin's draws for a question in place of its own.
        seed: of all its draws; give one pool one seed.
        input_usd_per_1m: USD per million prompt tokens.
        output_usd_per_1m: USD per million completion tokens.
        latency_s: mean time to answer, seconds.
        jitter_s: half-width of the uniform distribution of that time.
        verbosity: mean length of its thinking aloud before an answer, tokens; it leaves it out where it is told to give
            the answer only, or held to a format.
        thinking: length of its thinking before it answers, tokens, in dialects of models that think: a quarter of it at
            low effort, four times as much at high effort.
        wrong_length: how much longer (or shorter) its replies are when wrong.
        tools: whether it takes tools; if not, it refuses requests that have any.
        images: whether it takes images; if not, it refuses requests that have any.
        ending: how it gives its answer where no choices are offered, "{}" being the answer: "\\n#### {}", "**{}**", ...
        convinced: shown an earlier answer that is right, the share of its mass that moves there.
        misled: the same, shown one that is wrong.
        families: the questions that it can read; a subclass, in a module that can be imported, may know more.
    """

    families: ClassVar[tuple[Family, ...]] = KNOWN

    name: str
    skills: Mapping[str, float] = field(default_factory=dict)
    drifted: Mapping[str, float] = field(default_factory=dict)
    skill: float = 0.5
    sharpness: float = 1.0
    kin: str | None = None
    correlation: float = 0.0
    seed: int = 0
    input_usd_per_1m: Decimal = Decimal("0.1")
    output_usd_per_1m: Decimal = Decimal("0.1")
    latency_s: float = 0.0
    jitter_s: float = 0.0
    verbosity: int = 0
    thinking: int = 0
    wrong_length: float = 1.2
    tools: bool = True
    images: bool = True
    ending: str = " The answer is {}."
    convinced: float = 0.6
    misled: float = 0.3

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("SimulatedModel: name: is empty")
        for where in ("skill", "correlation", "convinced", "misled"):
            self._check(where, _is_probability(getattr(self, where)), "give a probability between 0 and 1")
        topics = (*(family.topic for family in self.families), *AXES, JUDGING)
        for where, skills in (("skills", self.skills), ("drifted", self.drifted)):
            for topic, value in skills.items():
                self._check(f"{where}[{topic!r}]", topic in topics, f"unknown topic; use one of {', '.join(topics)}")
                self._check(f"{where}[{topic!r}]", _is_probability(value), "give a probability between 0 and 1")
        for where in ("sharpness", "wrong_length"):
            self._check(where, _is_amount(getattr(self, where)) and getattr(self, where) > 0, "give a positive number")
        for where in ("latency_s", "jitter_s", "verbosity", "thinking"):
            self._check(where, _is_amount(getattr(self, where)), "give a number of at least 0")
        self._check("ending", "{}" in self.ending, "give a text with {} in it, where the answer stands")
        for where in ("input_usd_per_1m", "output_usd_per_1m"):
            object.__setattr__(self, where, self._price(where))

    def _check(self, where: str, right: bool, advice: str) -> None:
        if not right:
            raise ConfigError(f"SimulatedModel {self.name!r}: {where}: {advice}")

    def _price(self, where: str) -> Decimal:
        try:
            price = Decimal(str(getattr(self, where)))
        except InvalidOperation:
            price = Decimal("NaN")
        self._check(where, price.is_finite() and price >= 0, "give USD per million tokens, at least 0")
        return price

    def p_right(self, topic: str | None, *, drifted: bool = False) -> float:
        """How often it is meant to be right on a topic."""
        known = self.skills.get(topic or "", self.skill)
        return self.drifted.get(topic or "", known) if drifted else known


def uniforms(*parts: object) -> tuple[float, ...]:
    """Eight independent numbers in [0, 1) that depend on ``parts`` alone."""
    digest = blake2b("\x1f".join(map(str, parts)).encode(errors="surrogatepass"), digest_size=64).digest()
    return tuple((word >> 11) * 2.0**-53 for word in struct.unpack("<8Q", digest))


def distribution(
    model: SimulatedModel,
    question: str,
    topic: str | None,
    choices: Sequence[str],
    right: int | None,
    *,
    drifted: bool = False,
) -> tuple[float, ...]:
    """The model's probability for each choice, shape (K,), sums to 1. The order of the choices does not matter to it.

    Its confidence in its leading choice is c = f + (1 - f) u^((1 - m) / m), u uniform, f just above chance, m chosen so
    that the mean of c is the model's skill; the leading choice is right with probability c, and the right choice, where
    it does not lead, stands at each later place with that place's share of 1 - c. So at sharpness 1 every probability
    is calibrated.

    Args:
        model: whose.
        question: the question's own words; draws are keyed by it.
        topic: the question's topic, if known.
        choices: K of them.
        right: index of the right one; None if it is unknown or not offered (the model then guesses).
        drifted: whether the skills after the drift switch hold.
    """
    k = len(choices)
    if k == 1:
        return (1.0,)
    luck, who = _draws(model, question)
    skill = 0.0 if right is None else model.p_right(topic, drifted=drifted)
    confidence = _confidence(skill, k, luck[1])
    # The wrong choice that ranks first is this model's (or its kin's) attractor: what it says whenever it is wrong.
    ranked = sorted((i for i in range(k) if i != right), key=lambda i: uniforms(*who, question, choices[i]))
    shares = _shares(confidence, k - 1)
    if right is not None:
        place = 0 if luck[2] < confidence else 1 + _pick(shares, luck[3])
        ranked.insert(place, right)
    mass = [0.0] * k
    for i, share in zip(ranked, (confidence, *((1 - confidence) * s for s in shares)), strict=True):
        mass[i] = share
    return _powered(mass, model.sharpness)


def swayed(model: SimulatedModel, p: Sequence[float], shown: int | None, right: int | None) -> tuple[float, ...]:
    """The model's probabilities (K,) once it was shown that somebody answered ``shown``; None: nothing it knows.

    It tells a right answer from a wrong one better than it finds it: ``convinced`` is meant to be above ``misled``.
    """
    if shown is None:
        return tuple(p)
    share = model.convinced if shown == right else model.misled
    return tuple((1 - share) * mass + share * (i == shown) for i, mass in enumerate(p))


def sample(probabilities: Sequence[float], u: float, temperature: float = 1.0) -> int:
    """The index that a uniform ``u`` draws at a temperature; 0 is greedy."""
    if temperature <= 0:
        return max(range(len(probabilities)), key=probabilities.__getitem__)
    return _pick(probabilities if temperature == 1 else _powered(probabilities, 1 / max(temperature, 0.01)), u)


def _is_probability(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value <= 1


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value < math.inf


def _draws(model: SimulatedModel, question: str) -> tuple[tuple[float, ...], tuple[object, ...]]:
    own: tuple[object, ...] = ("own", model.seed, model.name)
    luck = uniforms(*own, question)
    if model.kin is None or luck[0] >= model.correlation:
        return luck, own
    kin: tuple[object, ...] = ("kin", model.seed, model.kin)
    return uniforms(*kin, question), kin


def _confidence(skill: float, k: int, u: float) -> float:
    floor = 1 / k + 0.02 * (1 - 1 / k)
    mean = min(max((skill - floor) / (1 - floor), 0.0), 0.995)
    lift = u ** ((1 - mean) / mean) if mean else 0.0
    return min(floor + (1 - floor) * lift, _SURE)


def _shares(confidence: float, n: int) -> list[float]:
    """The shares of the rest of the mass of the ``n`` choices behind the leader: halving, flatter if one would lead."""
    total = 2 * (1 - _FALLING**n)
    shares = [_FALLING**i / total for i in range(n)]
    most = 0.98 * confidence / (1 - confidence)
    if shares[0] > most:
        flat = (shares[0] - most) / (shares[0] - 1 / n) if n > 1 else 0.0
        shares = [(1 - flat) * share + flat / n for share in shares]
    return shares


def _pick(probabilities: Sequence[float], u: float) -> int:
    reached = 0.0
    for i, probability in enumerate(probabilities):
        reached += probability
        if u < reached:
            return i
    return len(probabilities) - 1


def _powered(mass: Sequence[float], power: float) -> tuple[float, ...]:
    highest = max(mass)
    raised = [(m / highest) ** power for m in mass]
    total = sum(raised)
    return tuple(m / total for m in raised)


def default_models(seed: int = 0) -> tuple[SimulatedModel, ...]:
    """A pool of six that complement each other.

    Two cheap generalists of one kin, three cheap specialists (one of them overconfident) and a strong, expensive
    generalist. No model is best at every topic, and a few cheap ones fused by their probabilities beat the strong one.
    After the drift switch two specialists have lost a subject and a generalist has gained one.
    """
    return _models("default", seed)


def relay_models(seed: int = 0) -> tuple[SimulatedModel, ...]:
    """A pool of five for asking one model after another.

    Each of four cheap models is good at one hop of a question of two ("multi-hop"); an expensive one is fair at all. At
    questions of yes or no none is a specialist: there is nothing to route by.
    """
    return _models("relay", seed)


def _models(pool: str, seed: int) -> tuple[SimulatedModel, ...]:
    pools = tomllib.loads(Path(__file__).with_name("pools.toml").read_text("utf-8"))
    return tuple(SimulatedModel(**model, seed=seed) for model in pools[pool])
