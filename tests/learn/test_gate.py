from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from focalroute.learn.critic import CriticNet
from focalroute.learn.gate import compare, log_q, supported
from focalroute.learn.losses import unlikeliness
from focalroute.learn.mappo import Learner
from focalroute.learn.nets import FusionNet, parameters
from focalroute.learn.trajectory import batch
from focalroute.learn.update_report import Comparison
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


def test_greedy_episodes_are_no_evidence_of_another_decider(old: Learner, new: Learner) -> None:
    held = batch(episodes_of(play(old, 50, 0, explore=False)), NAMES)
    assert compare(old, new, held) == Comparison(0, 0.0, 0.0, 0.0, 0.0)
    assert not compare(old, new, held).enough


def test_greedy_episodes_are_evidence_of_another_fusion(new: Learner) -> None:
    """The Decider is the same: the difference is that of the answers to the same replies, counted exactly."""
    held = batch(episodes_of(play(new, 100, 0, explore=False)), NAMES)
    deaf = replace(new, fusion=fresh_learner().fusion)
    right = [
        np.mean(log_q(one.fusion, held.fusions).argmax(axis=1) == held.fusions.right).item() for one in (new, deaf)
    ]
    found = compare(new, deaf, held)
    assert right[0] > right[1] + 0.3
    assert found.gain == pytest.approx(100 * (right[1] - right[0]))
    assert (found.episodes, found.effective_sample_size, found.worse) == (100, 100, True)
    assert compare(deaf, new, held).low > 0


def test_the_fusion_goes_only_as_far_as_held_out_feedback_supports(old: Learner, new: Learner) -> None:
    """All the way to a better one, no step to a worse one, and part of the way where the whole of it is too far."""
    told = batch(episodes_of(play(new, 300, 0)), NAMES).fusions
    start, end = parameters(old.fusion), parameters(new.fusion)
    far = replace(new.fusion, **{name: start[name] + 40 * (end[name] - start[name]) for name in start})

    def loss(net: FusionNet) -> float:
        return float(unlikeliness(log_q(net, told), told).mean())

    assert supported(old.fusion, new.fusion, told) is not old.fusion
    assert loss(supported(old.fusion, new.fusion, told)) < loss(old.fusion)
    assert supported(new.fusion, fresh_learner().fusion, told) is new.fusion
    assert loss(supported(old.fusion, far, told)) <= min(loss(old.fusion), loss(far))


def test_a_policy_that_has_gone_far_leaves_little_evidence() -> None:
    far = learned(8, 0)
    held = batch(episodes_of(play(fresh_learner(), 100, 0)), NAMES)
    found = compare(fresh_learner(), far, held)
    assert found.effective_sample_size < 50
    assert not found.enough
