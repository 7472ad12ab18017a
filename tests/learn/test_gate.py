from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from focalroute.learn.critic import CriticNet
from focalroute.learn.gate import Comparison, compare
from focalroute.learn.mappo import Learner
from focalroute.learn.trajectory import batch
from tests.learn.made import NAMES, episodes_of, fresh_learner, learned, play, value


@pytest.fixture(scope="module")
def old() -> Learner:
    return learned(1, 0)


@pytest.fixture(scope="module")
def new() -> Learner:
    return learned(3, 0)


@pytest.fixture(scope="module")
def truth(old: Learner, new: Learner) -> float:
    """In points, from playing both."""
    return 50 * (value(new, 4000, explore=True) - value(old, 4000, explore=True))


@pytest.mark.parametrize("label", [True, False])
def test_the_estimate_is_unbiased_and_its_interval_honest(
    old: Learner, new: Learner, truth: float, label: bool
) -> None:
    """From what the old policy did, against playing both; a bare reward leaves the Fusion's part partly guessed."""
    found = [compare(old, new, batch(episodes_of(play(old, 300, s, label=label)), NAMES)) for s in range(20)]
    assert truth > 5
    assert abs(np.mean([one.gain for one in found]) - truth) < (1.0 if label else 3.0)
    if label:
        assert sum(one.low < truth < one.high for one in found) >= 17
    assert all(one.episodes == 300 and one.enough for one in found)


def test_a_policy_compared_with_itself_gains_exactly_nothing(old: Learner) -> None:
    held = batch(episodes_of(play(old, 100, 0)), NAMES)
    found = compare(old, old, held)
    assert (found.gain, found.low, found.high) == (0, 0, 0)
    assert found.effective_sample_size == pytest.approx(100, rel=1e-4)


def test_it_holds_whatever_the_critic_says(old: Learner, new: Learner, truth: float) -> None:
    """A critic far off widens the interval but does not move it off the truth."""
    held = batch(episodes_of(play(old, 1000, 7)), NAMES)
    off = CriticNet.initial(np.random.default_rng(0))
    off = replace(off, bias=np.full(1, 3, np.float32))
    good, bad = compare(old, new, held), compare(old, replace(new, critic=off), held)
    assert good.high - good.low < bad.high - bad.low
    assert bad.low < truth < bad.high


def test_going_back_is_surely_worse(old: Learner, new: Learner) -> None:
    held = batch(episodes_of(play(new, 400, 0)), NAMES)
    assert compare(new, old, held).worse
    assert not compare(new, new, held).worse


def test_greedy_episodes_are_no_evidence(old: Learner, new: Learner) -> None:
    held = batch(episodes_of(play(old, 50, 0, explore=False)), NAMES)
    assert compare(old, new, held) == Comparison(0, 0.0, 0.0, 0.0, 0.0)
    assert not compare(old, new, held).enough


def test_a_policy_that_has_gone_far_leaves_little_evidence() -> None:
    far = learned(8, 0)
    held = batch(episodes_of(play(fresh_learner(), 100, 0)), NAMES)
    found = compare(fresh_learner(), far, held)
    assert found.effective_sample_size < 50
    assert not found.enough
