from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from focalroute.learn.gate import evidence, judge, log_q
from focalroute.learn.losses import feedback_losses
from focalroute.learn.mappo import Learner, best_supported
from focalroute.learn.nets import FusionNet, parameters
from focalroute.learn.trajectory import batch
from focalroute.learn.update_report import Comparison
from focalroute.policy.slot import CHALLENGER_SHARE
from tests.learn.made import (
    NAMES,
    PRICE_OF_MONEY,
    Played,
    episodes_of,
    fresh_learner,
    learned,
    nets,
    play,
    tried,
    value,
)


@pytest.fixture(scope="module")
def old() -> Learner:
    return learned(1, 0)


@pytest.fixture(scope="module")
def new() -> Learner:
    return learned(3, 0)


@pytest.fixture(scope="module")
def truth(old: Learner, new: Learner) -> float:
    """In points, from playing both."""
    return 50 * (value(new, 2000, explore=True) - value(old, 2000, explore=True))


def compared(old: Learner, new: Learner, played: Played, share: float = 0) -> Comparison:
    return judge(evidence(nets(old, 1), nets(new, 2), episodes_of(played), share=share))


@pytest.mark.parametrize("share", [pytest.param(0, marks=pytest.mark.slow), CHALLENGER_SHARE])
@pytest.mark.parametrize("label", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_estimate_is_unbiased_and_its_interval_honest(
    old: Learner, new: Learner, truth: float, label: bool, share: float
) -> None:
    """With a trial or from what the old policy did; a bare reward leaves the Fusion's part partly guessed."""
    runs = [
        tried(old, new, 300, seed, label=label) if share else play(old, 300, seed, version=1, label=label)
        for seed in range(10)
    ]
    found = [compared(old, new, played, share) for played in runs]
    assert truth > 5
    assert abs(np.mean([one.gain for one in found]) - truth) < (1.2 if label else 3.0)
    if label:
        assert all(one.low < truth < one.high for one in found)
    assert all(one.episodes == 300 for one in found)
    saved = -100 * PRICE_OF_MONEY / 2 * np.mean([one.cost for one in found]) / 100
    assert np.mean([one.right for one in found]) + saved == pytest.approx(truth, abs=1.5 if label else 3.0)


@pytest.mark.slow
def test_a_trial_says_more_than_as_many_answers_of_the_champion(old: Learner) -> None:
    """Where the challenger often does what the champion hardly ever does."""
    sure = learned(8, 0)
    trial = compared(sure, old, tried(sure, old, 600, 0), CHALLENGER_SHARE)
    alone = compared(sure, old, play(sure, 600, 0, version=1))
    assert trial.high - trial.low < 0.8 * (alone.high - alone.low)


def test_a_policy_compared_with_itself_gains_exactly_nothing(old: Learner) -> None:
    for played, share in ((tried(old, old, 300, 0), CHALLENGER_SHARE), (play(old, 300, 0, version=1), 0)):
        found = compared(old, old, played, share)
        assert (found.gain, found.right, found.cost) == pytest.approx((0, 0, 0), abs=1e-4)
        assert found.high - found.low < 6


def test_a_worse_policy_is_found_significantly_worse(old: Learner, new: Learner) -> None:
    assert compared(new, old, tried(new, old, 600, 0), CHALLENGER_SHARE).high < 0
    assert compared(new, old, play(new, 600, 0, version=1)).high < 0


def test_nothing_is_known_without_answers(old: Learner, new: Learner) -> None:
    found = compared(old, new, [])
    assert found.episodes == 0
    assert found.low < 0 < found.high


def test_greedy_answers_that_both_decide_the_same_differ_only_by_the_fusion(new: Learner) -> None:
    """The Decider is the same: the difference is that of the answers to the same replies, counted exactly."""
    deaf = replace(new, fusion=fresh_learner().fusion)
    played = play(new, 100, 0, version=1, explore=False)
    told = batch(episodes_of(played), NAMES).fusions
    right = [np.mean(log_q(one.fusion, told).argmax(axis=1) == told.right).item() for one in (new, deaf)]
    assert right[0] > right[1] + 0.3
    for share in (0, CHALLENGER_SHARE):
        assert compared(new, deaf, played, share).gain == pytest.approx(100 * (right[1] - right[0]))


def test_greedy_answers_are_evidence_on_another_decider_only_where_it_decides_the_same(old: Learner) -> None:
    """What it does otherwise was never tried, so it may be worth anything; in a trial it is tried."""
    away = replace(old, decider=replace(old.decider, bias=old.decider.bias + 9))  # asks all
    alone = compared(old, away, play(old, 300, 0, version=1, explore=False))
    assert alone.low < -50 < 50 < alone.high
    truth = 50 * (value(away, 2000) - value(old, 2000))
    trial = compared(old, away, tried(old, away, 1500, 0, explore=False), CHALLENGER_SHARE)
    assert trial.low < truth < trial.high
    assert trial.gain == pytest.approx(truth, abs=6)


def test_the_fusion_goes_only_as_far_as_held_out_feedback_supports(old: Learner, new: Learner) -> None:
    """All the way to a better one, no step to a worse one, and part of the way where the whole of it is too far."""
    told = batch(episodes_of(play(new, 300, 0)), NAMES).fusions
    start, end = parameters(old.fusion), parameters(new.fusion)
    far = replace(new.fusion, **{name: start[name] + 40 * (end[name] - start[name]) for name in start})

    def loss(net: FusionNet) -> float:
        return float(feedback_losses(log_q(net, told), told).mean())

    assert best_supported(old.fusion, new.fusion, told) is not old.fusion
    assert loss(best_supported(old.fusion, new.fusion, told)) < loss(old.fusion)
    assert best_supported(new.fusion, fresh_learner().fusion, told) is new.fusion
    assert loss(best_supported(old.fusion, far, told)) <= min(loss(old.fusion), loss(far))
