"""An answer's confidence: the Fusion's posterior, lowered for presumed shared errors until labels show them."""

from __future__ import annotations

import random

import numpy as np
import pytest

from focalroute.core.records import Member, Outcome, Query, Reply
from focalroute.observe.experience import Experience
from focalroute.observe.observer import Observer
from focalroute.observe.recalibration import SHARED_ERRORS, Recalibration, recalibrated

NAMES = ("a", "b")


def test_without_labels_confidence_is_below_the_posterior() -> None:
    curve = Recalibration(500).curve
    assert curve == (0.0, SHARED_ERRORS)
    assert recalibrated(0.5, curve) == pytest.approx(0.5)
    assert 0.8 < recalibrated(0.9, curve) < 0.9


def test_labels_overrule_the_prior() -> None:
    """Answers that are right as often as was said are soon taken at their word, whatever was presumed."""
    rng = random.Random(0)
    learned = Recalibration(500)
    for n in range(500):
        posterior = rng.uniform(0.5, 0.99)
        learned.learn(str(n), posterior, float(rng.random() < posterior))
    for posterior in (0.6, 0.9):
        assert recalibrated(posterior, learned.curve) == pytest.approx(posterior, abs=0.05)


def test_a_policy_that_was_trained_on_the_pool_is_not_recalibrated_at_first() -> None:
    observer = Observer(NAMES, [1e-4, 1e-4])
    query = Query(id="q", messages=({"role": "user", "content": "?"},), choices=("x", "y"))
    assert observer.begin(query).confidence(0.9) < 0.9
    nothing = np.zeros((0, 256), np.float32), np.zeros((0, 2), np.float32)
    observer.adopt(
        Experience(NAMES, np.full(2, 0.7, np.float32), np.full(2, 1e-4, np.float32), *nothing, costs=nothing[1])
    )
    assert observer.begin(query).confidence(0.9) == 0.9


def test_disputed_answers_have_a_curve_of_their_own() -> None:
    observer = Observer(NAMES, [1e-4, 1e-4])
    query = Query(id="q", messages=({"role": "user", "content": "?"},), choices=("x", "y"))
    before = observer.begin(query).confidence(0.9)
    for n in range(200):
        members = {name: Member(1, k, 10, 0.1, None) for k, name in enumerate(NAMES)}
        observer.learn(Outcome(str(n), members, {"a": 0.0, "b": 1.0}, posterior=0.9, correct=0.0))
    ask = observer.begin(query)
    assert ask.confidence(0.9) == before
    ask.add(Reply("a", "x", choice=0), 1)
    ask.add(Reply("b", "y", choice=1), 1)
    assert ask.confidence(0.9) < 0.3
