"""Nets, decisions and a small world with a known optimum, for the tests of learning."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from decimal import Decimal
from functools import cache
from typing import Any, TypeVar

import numpy as np

from examples.shipped_policy.training import cold_fusion
from focalroute.core.records import Decision, Evidence, Feedback, Member, Observation, Trajectory
from focalroute.learn.gate import Nets
from focalroute.learn.mappo import Hyperparameters, Learner, update
from focalroute.learn.nets import CriticNet, DeciderNet, Floats, FusionNet, Gradients, decider_pass, fusion_pass
from focalroute.learn.trajectory import Costs, Episode, batch, episode, grown
from focalroute.observe.layout import CANDIDATE, CONTEXT, ENDPOINT, MEMBER, slices, width
from focalroute.policy.decider import decide
from focalroute.policy.slot import CHALLENGER_SHARE
from focalroute.store.base import StoredAnswer
from tests.by_hand import linear_decider

Net = TypeVar("Net", DeciderNet, FusionNet, CriticNet)

NAMES = ("left", "right", "useless")
USD = {"left": 0.3, "right": 0.3, "useless": 0.4}
PRICE_OF_MONEY = 0.5
SETTINGS = Hyperparameters(minibatch=64)
OPTIMUM = 1 - PRICE_OF_MONEY * 0.3
_CONTEXT, _MEMBER = slices(CONTEXT), slices(MEMBER)


def randomised(net: Net, seed: int, dtype: type = np.float64, scale: float = 0.3) -> Net:
    """The net with every array random, row 0 of its tables zero."""
    rng = np.random.default_rng(seed)
    arrays = {f.name: (scale * rng.standard_normal(getattr(net, f.name).shape)).astype(dtype) for f in fields(net)}
    for table in ("names", "vote"):
        if table in arrays:
            arrays[table][0] = 0
    return replace(net, **arrays)


def slope(f: Callable[[Mapping[str, Floats]], float], at: Mapping[str, Floats], name: str, seed: int) -> Any:
    """(direction, central difference of f along it) for one array; row 0 of a table stays where it is."""
    direction = np.random.default_rng(seed).standard_normal(at[name].shape)
    if name in ("names", "vote"):
        direction[0] = 0
    h = 1e-5
    up, down = ({**at, name: at[name] + sign * h * direction} for sign in (1, -1))
    return direction, (f(up) - f(down)) / (2 * h)


def check_gradients(f: Callable[[Mapping[str, Floats]], float], at: Mapping[str, Floats], found: Gradients) -> None:
    """Every array's gradient against finite differences along random directions, to 1e-6."""
    assert found.keys() == at.keys()
    for name in at:
        assert found[name].shape == at[name].shape
        for seed in range(3):
            direction, expected = slope(f, at, name, seed)
            assert math.isclose(float((found[name] * direction).sum()), expected, rel_tol=1e-6, abs_tol=1e-9), name


def random_decision(rng: random.Random, logits: Any) -> Decision:
    """A sampled decision with some heads unavailable, and a budget for at most a few."""
    n = len(logits)
    order = rng.sample(range(n), n)
    closed = {i for i in range(n) if rng.random() < 0.2}
    most = rng.choice([1, 2, n])

    def eligible(i: int, picked: tuple[int, ...]) -> bool:
        return i not in closed and len(picked) < most

    must = rng.random() < 0.5
    return decide(logits, round=1 if must else 2, must_pick=must, order=order, eligible=eligible, explore=True, rng=rng)


def fresh_learner(seed: int = 0, vocabulary: int = 3) -> Learner:
    """Nets that know nothing; random embeddings."""
    rng = np.random.default_rng(seed)
    decider, fusion = DeciderNet.initial(rng, vocabulary=vocabulary), FusionNet.initial(rng, vocabulary=vocabulary)
    names = rng.standard_normal((vocabulary + 1, decider.names.shape[1])).astype(np.float32) * 0.1
    names[0] = 0
    return Learner.fresh(replace(decider, names=names), replace(fusion, names=names), CriticNet.initial(rng))


def linear_learner() -> Learner:
    """The nets set by hand, with rows for the small world's names."""
    rng = np.random.default_rng(0)
    return Learner.fresh(grown(linear_decider(), 3, rng), grown(cold_fusion(), 3, rng), CriticNet.initial(rng))


def context(x: float, cost_weight: float = PRICE_OF_MONEY) -> Any:
    """An observation's context in which "level" tells the queries apart."""
    seen = np.zeros(width(CONTEXT), np.float32)
    seen[_CONTEXT["first"]] = 1
    seen[_CONTEXT["log_pool"]] = math.log(3) / 4
    seen[_CONTEXT["cost_weight"]] = math.log10(cost_weight)
    seen[_CONTEXT["level"]] = x
    return seen


def evidence(votes: Mapping[int, int], k: int = 4) -> Evidence:
    """What the Fusion sees of members that vote."""
    members = np.zeros((k, len(votes), width(MEMBER)), np.float32)
    members[:, :, _MEMBER["present"]] = 1
    for j, candidate in enumerate(votes.values()):
        members[candidate, j, _MEMBER["vote"]] = 1
    return Evidence(members, np.zeros((k, width(CANDIDATE)), np.float32), tuple(votes))


Played = list[tuple[StoredAnswer, Feedback]]


def tried(
    champion: Learner,
    challenger: Learner,
    number: int,
    seed: int,
    *,
    versions: tuple[int, int] = (1, 2),
    **settings: Any,
) -> Played:
    """Answers of a trial: chance gives each to one of the two."""
    rng = random.Random(seed)
    played: Played = []
    for i in range(number):
        theirs = rng.random() < CHALLENGER_SHARE
        learner, (version, rival) = (challenger, versions[::-1]) if theirs else (champion, versions)
        played += play(learner, 1, 100_000 * (seed + 1) + i, version=version, rival=rival, **settings)
    return played


def nets(learner: Learner, version: int) -> Nets:
    """A learner of the small world as the gate reads a policy."""
    return Nets(version, NAMES, learner.decider, learner.fusion)


def play(
    learner: Learner,
    number: int,
    seed: int,
    *,
    version: int = 0,
    rival: int | None = None,
    explore: bool = True,
    label: bool = True,
) -> Played:
    """Answers of a small world: "left" is right if x = -1, "right" if x = 1, "useless" never; four choices, one round.

    The optimum: ask "left" alone if x = -1 and "right" alone if x = 1. Wrong votes fall anywhere.
    """
    rng = random.Random(seed)
    ids = np.arange(1, 4)
    played = []
    for i in range(number):
        x, right = rng.choice([-1, 1]), rng.randrange(4)
        seen = Observation(context(x), np.zeros((3, width(ENDPOINT)), np.float32))
        logits = decider_pass(learner.decider, seen.context[None], seen.endpoints[None], ids)[0][0]
        made = decide(
            logits,
            round=1,
            must_pick=True,
            order=(1, 2, 0),
            eligible=lambda *_: True,
            explore=explore,
            rng=rng,
        )
        off = [(right + rng.randrange(1, 4)) % 4 for _ in NAMES]
        votes = {j: right if (x < 0, x > 0, False)[j] else off[j] for j in made.picked}
        shown = evidence(votes)
        named = ids[list(made.picked)][None]
        q = fusion_pass(learner.fusion, shown.members[None], shown.candidates[None], named)[0][0]
        answered = int(q.argmax())
        members = {
            NAMES[j]: Member(1, candidate, 5, 0.1, Decimal(str(USD[NAMES[j]]))) for j, candidate in votes.items()
        }
        name = f"{seed}-{i}"
        steps = Trajectory(version, NAMES, ((seen, made),), shown, answered, rival=rival)
        answer = StoredAnswer(
            name, 1.0 + i, ("k0", "k1", "k2", "k3"), "choice", answered, (0.25,) * 4, members, steps, "{}"
        )
        reward = 1.0 if answered == right else -1.0
        played.append((answer, Feedback(name, reward, f"k{right}" if label else None, "user", 2.0)))
    return played


def episodes_of(played: Played) -> list[Episode]:
    """As an update makes them, at the world's true costs."""
    return [found for answer, said in played if (found := episode(answer, said, Costs(USD)))]


@cache
def learned(updates: int, seed: int, *, label: bool = True) -> Learner:
    """A learner that knew nothing, after updates on 300 episodes of its own each."""
    learner, rng = fresh_learner(seed), np.random.default_rng(seed)
    for number in range(updates):
        played = play(learner, 300, 1000 * seed + number, label=label)
        learner, _ = update(learner, batch(episodes_of(played), NAMES), SETTINGS, rng)
    return learner


def value(learner: Learner, number: int = 400, *, explore: bool = False) -> float:
    """Mean return of the learner's policy."""
    played = episodes_of(play(learner, number, 999, explore=explore))
    return float(np.mean([one.reward - PRICE_OF_MONEY * sum(one.shares) for one in played]))
