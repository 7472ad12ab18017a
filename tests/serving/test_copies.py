"""Copies, imitators and a majority that errs: agreement must not be taken for accuracy, with few labels or none."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from focalroute.core.config import Endpoint
from focalroute.core.pool import PoolFile
from focalroute.evaluate.outcomes import LoggedQuery, Output
from focalroute.evaluate.replay import FeedbackPlan, FeedbackStream, play
from focalroute.evaluate.serving import Serving
from focalroute.evaluate.table import LogTable, join
from focalroute.policy.bundle import cold

CHOICES = tuple("ABCD")
QUERIES, LEARNING = 1000, 400
NONE, FEW = FeedbackPlan("none"), FeedbackPlan(share=0.02)


def drawn(skill: float, label: int, rng: random.Random) -> int:
    return label if rng.random() < skill else rng.choice([k for k in range(len(CHOICES)) if k != label])


def clones(label: int, rng: random.Random) -> dict[str, int]:
    """Three names of one weak model beside two that are better."""
    weak = drawn(0.5, label, rng)
    return dict.fromkeys(("one", "two", "three"), weak) | better(label, rng)


def imitator(label: int, rng: random.Random) -> dict[str, int]:
    """One that says what another one does."""
    weak = drawn(0.55, label, rng)
    return {"weak": weak, "imitator": weak, "fair": drawn(0.6, label, rng)} | better(label, rng)


def better(label: int, rng: random.Random) -> dict[str, int]:
    return {"best": drawn(0.75, label, rng), "second": drawn(0.72, label, rng)}


@cache
def world(answers: Callable[[int, random.Random], dict[str, int]], seed: int) -> LogTable:
    rng = random.Random(seed)
    queries = []
    for n in range(QUERIES):
        label = rng.randrange(len(CHOICES))
        said = answers(label, rng)
        outputs = {name: Output(k, None, None, 100, 20, None, 1.0, None) for name, k in said.items()}
        message = {"role": "user", "content": f"{rng.getrandbits(400):x}"}
        queries.append(LoggedQuery(f"q{n}", None, (message,), CHOICES, label, outputs, n + 1))
    endpoints = (Endpoint(name, model="m", input_usd_per_1m=1.0, output_usd_per_1m=1.0) for name in said)
    return join(queries, PoolFile(tuple(endpoints), {}, None), "copies")


@pytest.mark.parametrize(
    ("answers", "labels"),
    [
        pytest.param(clones, NONE, marks=pytest.mark.slow),
        pytest.param(clones, FEW, marks=pytest.mark.slow),
        pytest.param(imitator, NONE, marks=pytest.mark.slow),
        (imitator, FEW),
    ],
)
def test_copies_do_not_vote_themselves_up(
    answers: Callable[[int, random.Random], dict[str, int]], labels: FeedbackPlan
) -> None:
    """After the first 400 queries it is at most a few points below the best endpoint, and far above the copies."""
    right, best = [], []
    for seed in (0, 1):
        table = world(answers, seed)
        serving = Serving(cold(), table.endpoints, seed=seed)
        played = play(serving, table, np.arange(QUERIES), feedback=FeedbackStream(labels))
        right.append(played.worth[LEARNING:].mean())
        best.append(table.value[LEARNING:].mean(axis=0).max())
    assert np.mean(right) > np.mean(best) - 0.04
