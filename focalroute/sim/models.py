"""Simulated models: their skills by topic, their calibration, and the mistakes that models of one kin share.

A model is a pure function: every draw is a hash of (seed, model or kin, question), never a generator's state. So the
same question gets the same distribution over its choices in every process, in any order and in any prompt.
"""

from __future__ import annotations

import math
import struct
import tomllib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from focalroute.core.dollars import Amount, parse_decimal
from focalroute.core.errors import ConfigError
from focalroute.core.json_values import is_number
from focalroute.sim.families import Family
from focalroute.sim.prose import AXES, JUDGING
from focalroute.sim.questions import KNOWN

_SURE = 0.9999  # the highest confidence, so that no choice has probability 0
_FALLING = 0.5  # each choice after the leader gets half the probability of the one before it


@dataclass(frozen=True, slots=True)
class SimulatedModel:
    """One model of a simulated pool.

    Attributes:
        name: the model name it is served under; also the endpoint's name.
        skills: topic -> probability that the most probable choice is right; below chance counts as chance. Topics are
            those of questions, the axes of prose (for each of its points), and "judging" (for a grade).
        drifted: topic -> skill after the drift switch; other topics keep their skill.
        skill: the skill for topics not in ``skills``.
        sharpness: the power to which probabilities are raised: 1 is calibrated (the probability of a choice is that of
            its being right), above 1 overconfident, below 1 underconfident.
        kin: models of one kin and seed share mistakes; None: no kin.
        correlation: probability that the kin's draws are used for a question instead of the model's own.
        seed: the seed of all draws; use one seed for a pool.
        input_usd_per_1m: USD per million prompt tokens.
        output_usd_per_1m: USD per million completion tokens.
        latency_s: mean time to answer, seconds.
        jitter_s: the time is uniform within this many seconds of the mean.
        verbosity: mean tokens of reasoning in the text before an answer; none if only the answer is asked for, or the
            format is constrained.
        thinking: tokens of thinking before the answer, in ``dialects`` of reasoning models: a quarter at low effort,
            four times as many at high effort.
        wrong_length: factor on the length of wrong replies.
        tools: whether tools are supported; if not, requests with tools are refused.
        images: whether images are supported; if not, requests with images are refused.
        ending: the form of an answer without choices, with "{}" for the answer: "\\n#### {}", "**{}**", ...
        convinced: the share of probability that moves to an earlier answer in the prompt that is right.
        misled: the same for one that is wrong.
        families: the questions that the model understands; a subclass, in an importable module, may have more.
        dialects: dialects it can be served in besides those of `focalroute.sim.dialects`; a subclass may have more.
    """

    families: ClassVar[tuple[Family, ...]] = KNOWN
    dialects: ClassVar[Mapping[str, Any]] = MappingProxyType({})

    name: str
    skills: Mapping[str, float] = field(default_factory=dict)
    drifted: Mapping[str, float] = field(default_factory=dict)
    skill: float = 0.5
    sharpness: float = 1.0
    kin: str | None = None
    correlation: float = 0.0
    seed: int = 0
    input_usd_per_1m: Amount = Decimal("0.1")
    output_usd_per_1m: Amount = Decimal("0.1")
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
        if not isinstance(self.name, str) or not self.name:
            raise ConfigError(f"SimulatedModel: name: give a text, got {self.name!r}")
        for where in ("skill", "correlation", "convinced", "misled"):
            self._check(where, _is_probability(getattr(self, where)), "give a probability between 0 and 1")
        topics = (*(family.topic for family in self.families), *AXES, JUDGING)
        for where, skills in (("skills", self.skills), ("drifted", self.drifted)):
            self._check(where, isinstance(skills, Mapping), 'give topics and their skills, such as {"dates": 0.9}')
            for topic, value in skills.items():
                self._check(f"{where}[{topic!r}]", topic in topics, f"unknown topic; use one of {', '.join(topics)}")
                self._check(f"{where}[{topic!r}]", _is_probability(value), "give a probability between 0 and 1")
        for where in ("sharpness", "wrong_length"):
            self._check(where, _is_amount(getattr(self, where)) and getattr(self, where) > 0, "give a positive number")
        for where in ("latency_s", "jitter_s", "verbosity", "thinking"):
            self._check(where, _is_amount(getattr(self, where)), "give a number of at least 0")
        self._check("ending", "{}" in self.ending, "give a text with {} in it, where the answer stands")
        for where in ("input_usd_per_1m", "output_usd_per_1m"):
            price = parse_decimal(getattr(self, where))
            self._check(where, price is not None and price >= 0, "give USD per million tokens, at least 0")
            object.__setattr__(self, where, price)

    def _check(self, where: str, right: bool, advice: str) -> None:
        if not right:
            raise ConfigError(f"SimulatedModel {self.name!r}: {where}: {advice}")

    @property
    def price(self) -> tuple[Decimal, Decimal]:
        """USD per million prompt and completion tokens."""
        return Decimal(self.input_usd_per_1m), Decimal(self.output_usd_per_1m)

    def p_right(self, topic: str | None, *, drifted: bool = False) -> float:
        """The probability of being right on a topic."""
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
    """The model's probability for each choice, shape (K,), sum 1. It does not depend on the order of the choices.

    The confidence in the leading choice is c = f + (1 - f) u^((1 - m) / m), with u uniform, f just above chance, and m
    such that the mean of c is the model's skill. The leading choice is right with probability c. Otherwise each later
    choice is the right one with a probability equal to its share of 1 - c. So at sharpness 1 every probability is
    calibrated.

    Args:
        question: the question's own words, which key the draws.
        topic: the question's topic, if known.
        choices: the K choices.
        right: index of the right one; None if it is unknown or not offered (the model then guesses).
        drifted: whether the skills after the drift switch apply.
    """
    k = len(choices)
    if k == 1:
        return (1.0,)
    luck, who = _draws(model, question)
    skill = 0.0 if right is None else model.p_right(topic, drifted=drifted)
    confidence = _confidence(skill, k, luck[1])
    # The wrong choice that ranks first is this model's (or its kin's) attractor: its answer whenever it is wrong.
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
    """The model's probabilities (K,) after the prompt has shown it the answer with index ``shown``; None: it has none.

    A model recognises a right answer more easily than it finds one, so ``convinced`` should be above ``misled``.
    """
    if shown is None:
        return tuple(p)
    share = model.convinced if shown == right else model.misled
    return tuple((1 - share) * mass + share * (i == shown) for i, mass in enumerate(p))


def sample(probabilities: Sequence[float], u: float, temperature: float = 1.0) -> int:
    """Draw an index at a temperature, given a uniform ``u``; temperature 0 is greedy."""
    if temperature <= 0:
        return max(range(len(probabilities)), key=probabilities.__getitem__)
    return _pick(probabilities if temperature == 1 else _powered(probabilities, 1 / max(temperature, 0.01)), u)


def _is_probability(value: object) -> bool:
    return is_number(value) and 0 <= value <= 1


def _is_amount(value: object) -> bool:
    return is_number(value) and 0 <= value < math.inf


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
    """Shares of the remaining mass for the ``n`` choices after the leader: halving, or flatter if one would lead."""
    total = 2 * (1 - _FALLING**n)
    shares = [_FALLING**i / total for i in range(n)]
    most = 0.98 * confidence / (1 - confidence)
    if shares[0] > most:
        flat = (shares[0] - most) / (shares[0] - 1 / n) if n > 1 else 0.0
        shares = [(1 - flat) * share + flat / n for share in shares]
    return shares


def _pick(probabilities: Sequence[float], u: float) -> int:
    """Return the index at which the sum of the probabilities exceeds ``u``; the last one if rounding keeps it below."""
    return min(bisect_right(list(accumulate(probabilities)), u), len(probabilities) - 1)


def _powered(mass: Sequence[float], power: float) -> tuple[float, ...]:
    highest = max(mass)
    raised = [(m / highest) ** power for m in mass]
    total = sum(raised)
    return tuple(m / total for m in raised)


def default_models(seed: int = 0) -> tuple[SimulatedModel, ...]:
    """A pool of six models that complement each other.

    It has two cheap generalists of one kin, three cheap specialists (one overconfident) and a strong, expensive
    generalist. No model is best at every topic, and a few cheap ones fused by their probabilities beat the strong one.
    After the drift switch two specialists have lost a topic and a generalist has gained one.
    """
    return _models("default", seed)


def relay_models(seed: int = 0) -> tuple[SimulatedModel, ...]:
    """A pool of five models for chains of models.

    Each of four cheap models is good at one hop of two-hop questions ("multi-hop"); an expensive one is fair at
    everything. No model is a specialist at yes-no questions, so there is nothing to route by.
    """
    return _models("relay", seed)


def _models(pool: str, seed: int) -> tuple[SimulatedModel, ...]:
    pools = tomllib.loads(Path(__file__).with_name("pools.toml").read_text("utf-8"))
    return tuple(SimulatedModel(**model, seed=seed) for model in pools[pool])
