"""Off-policy estimates: against policies that were really played, and what they refuse to say."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from focalroute.core.errors import ConfigError
from focalroute.core.records import Feedback, preference
from focalroute.evaluate.offpolicy import (
    ENOUGH,
    ESTIMATORS,
    MEASURES,
    PARTS,
    UNTRIED,
    PolicyComparison,
    compare_policies,
    cross_fitted,
)
from focalroute.learn.export import decider_model, fusion_model
from focalroute.learn.mappo import Learner
from focalroute.learn.nets import STATE
from focalroute.learn.trajectory import StepBatch
from focalroute.policy.bundle import Policy, cold, load
from focalroute.policy.publish import publish
from focalroute.store.base import SYNTHESIS, StoredAnswer
from tests.evaluate.truth import World, simulated_table, study, targets
from tests.learn.made import NAMES, PRICE_OF_MONEY, episodes_of, learned, play

Judged = tuple[StoredAnswer, tuple[Feedback, ...]]

LOGS, PLAYED = 12, 1500


def policy_of(root: Path, learner: Learner, names: Sequence[str] = NAMES) -> Policy:
    """A bundle of a learner's nets."""
    decider, fusion = decider_model(learner.decider), fusion_model(learner.fusion)
    publish(root, decider=decider, fusion=fusion, names=names, parent=None)
    return load(root)


def log_of(learner: Learner, number: int, seed: int, *, explore: bool = True, label: bool = True) -> list[Judged]:
    """What a learner did in the small world, and what was said of it."""
    return [(answer, (said,)) for answer, said in play(learner, number, seed, explore=explore, label=label)]


def played(learner: Learner) -> NDArray[np.float64]:
    """What a learner's policy earns there, (measure, episode), by playing it; by the same chance for every learner."""
    episodes = episodes_of(play(learner, PLAYED, 4321))
    accuracy = 50 * (1 + np.array([one.reward for one in episodes]))
    cost = np.array([sum(one.shares) for one in episodes])
    return np.stack([accuracy, cost, accuracy - 50 * PRICE_OF_MONEY * cost])


@pytest.fixture(scope="module")
def old() -> Learner:
    return learned(1, 0)


@pytest.fixture(scope="module")
def new() -> Learner:
    return learned(3, 0)


@pytest.fixture(scope="module")
def policies(old: Learner, new: Learner, tmp_path_factory: pytest.TempPathFactory) -> tuple[Policy, Policy]:
    folder = tmp_path_factory.mktemp("policies")
    return policy_of(folder / "old", old), policy_of(folder / "new", new)


@pytest.fixture(scope="module")
def found(old: Learner, policies: tuple[Policy, Policy]) -> list[PolicyComparison]:
    """Logs of the old policy, the new one compared with it on each."""
    return [compare_policies(log_of(old, 300, seed), *policies, seed=seed) for seed in range(LOGS)]


@pytest.mark.slow
def test_estimates_are_unbiased_and_their_intervals_honest(
    old: Learner, new: Learner, found: list[PolicyComparison]
) -> None:
    """In the small world, value and difference: mean error within noise, and 95 % intervals that hold the truth."""
    before, after = played(old), played(new)
    for m, measure in enumerate(MEASURES):
        for how in ESTIMATORS:
            values = [one.b.estimates[measure][how] for one in found if one.b.estimates]
            gains = [one.difference[measure][how] for one in found if one.difference]
            assert len(values) == len(gains) == LOGS
            for estimates, truth in ((values, after[m]), (gains, (after - before)[m])):
                errors = np.array([one.value for one in estimates]) - truth.mean()
                noise = (float(errors.var()) / LOGS + float(truth.var()) / PLAYED) ** 0.5
                assert abs(errors.mean()) < 3 * noise, (measure, how)
                assert sum(one.low < truth.mean() < one.high for one in estimates) >= LOGS - 3, (measure, how)


def test_estimates_that_know_a_level_are_more_precise_than_bare_weights(found: list[PolicyComparison]) -> None:
    halves = dict.fromkeys(ESTIMATORS, 0.0)
    for one in found:
        assert one.difference is not None
        for how, estimate in one.difference["reward"].items():
            halves[how] += estimate.high - estimate.low
    assert max(halves["doubly-robust"], halves["self-normalised"]) < halves["ips"]


@pytest.mark.slow
def test_served_for_real_in_rounds_the_truth_lies_within_the_intervals(tmp_path: Path) -> None:
    """Through the serving code, on every endpoint's recorded answers: another Decider is valued without bias."""
    world = World.of(simulated_table(tmp_path, 160), warm=80, last=160)
    generous = study(world, {"generous": targets(tmp_path)["generous"]}, logs=6, size=120, samples=6)["generous"]
    assert generous.answered == 1
    assert 60 < generous.size < 120
    for quantity in (generous.value["reward"], generous.gain["accuracy"], generous.gain["cost"]):
        for how in ("self-normalised", "doubly-robust"):
            trial = quantity.trials[how]
            noise = (trial.bias_error**2 + quantity.truth_error**2) ** 0.5
            assert abs(trial.bias) < 3 * noise
            assert trial.coverage >= 3 / 6


def test_feedback_mostly_where_members_differ_leaves_values_as_they_are(
    old: Learner, new: Learner, policies: tuple[Policy, Policy]
) -> None:
    """A judge gives it so. Such answers are hard ones: both policies seemed to be right less often than they are."""
    rng = random.Random(0)
    log = [
        (answer, (said,) * (rng.random() < (0.5 if answer.disputed else 0.1))) for answer, said in play(old, 4000, 7)
    ]
    one = compare_policies(log, *policies)
    for value, learner in ((one.a, old), (one.b, new)):
        assert value.estimates is not None
        accuracy, cost, _ = played(learner).mean(axis=1)
        for how in ESTIMATORS:
            assert value.estimates["accuracy"][how].value == pytest.approx(accuracy, abs=4), how
            assert value.estimates["cost"][how].value == pytest.approx(cost, abs=0.05), how


def test_the_policy_that_answered_is_its_own_best_witness(
    old: Learner, policies: tuple[Policy, Policy], found: list[PolicyComparison]
) -> None:
    """Its ratios are 1, so that weighing changes nothing: the estimate is the mean of what it got."""
    one = found[0]
    got = np.mean([50 * (1 + said.reward) for _, (said,) in log_of(old, 300, 0)])
    assert one.a.estimates is not None
    assert one.a.effective_sample_size == pytest.approx(300, rel=1e-4)
    assert one.a.changed == one.a.guessed == 0
    assert one.a.estimates["accuracy"]["ips"].value == pytest.approx(got, rel=1e-4)
    assert one.a.estimates["accuracy"]["self-normalised"].value == pytest.approx(got, rel=1e-4)
    assert one.labelled == one.episodes == one.rewarded == 300


def test_the_other_way_round_it_is_the_negative(old: Learner, policies: tuple[Policy, Policy]) -> None:
    log = log_of(old, 200, 5)
    there, back = (compare_policies(log, *pair, seed=1).difference for pair in (policies, policies[::-1]))
    assert there is not None
    assert back is not None
    for measure in MEASURES:
        for how in ESTIMATORS:
            one, other = there[measure][how], back[measure][how]
            assert (one.value, one.low, one.high) == pytest.approx((-other.value, -other.high, -other.low))


def test_a_policy_may_know_the_endpoints_in_another_order(
    new: Learner, old: Learner, policies: tuple[Policy, Policy], tmp_path: Path
) -> None:
    order = [0, 3, 1, 2]
    decider = replace(new.decider, names=new.decider.names[order])
    fusion = replace(new.fusion, names=new.fusion.names[order], vote=new.fusion.vote[order])
    turned = policy_of(tmp_path, replace(new, decider=decider, fusion=fusion), [NAMES[i - 1] for i in order[1:]])
    log = log_of(old, 100, 6)
    one, other = (compare_policies(log, policies[0], policy) for policy in (policies[1], turned))
    assert one.b.effective_sample_size == pytest.approx(other.b.effective_sample_size, rel=1e-6)
    assert one.b.changed == other.b.changed > 0


def test_answers_that_a_bare_reward_leaves_open_are_counted(old: Learner, policies: tuple[Policy, Policy]) -> None:
    """Another answer than one that got a full 1 is wrong; than one that got a -1, only likely right."""
    log = log_of(old, 300, 7, label=False)
    one = compare_policies(log, *policies)
    liked = compare_policies([(a, (replace(f, reward=1.0),)) for a, (f,) in log], *policies)
    assert one.labelled == 0
    assert one.b.changed >= one.b.guessed > 0
    assert liked.b.changed == one.b.changed
    assert liked.b.guessed == 0


def test_where_several_may_be_right_or_one_is_only_better_the_others_are_guessed(
    old: Learner, policies: tuple[Policy, Policy]
) -> None:
    """Another open text than the one that was liked may be as good, and so may one that was merely not preferred."""
    log = [(a, replace(f, reward=1.0)) for a, (f,) in log_of(old, 300, 7, label=False)]
    texts = compare_policies([(replace(a, kind="text"), (f,)) for a, f in log], *policies).b
    preferred = [(a, (replace(f, label=preference(a.keys[a.answered], a.keys[a.answered - 1])),)) for a, f in log]
    for one in (texts, compare_policies(preferred, *policies).b):
        assert one.guessed == one.changed > 0


def test_a_synthesised_answer_does_not_depend_on_the_fusion(old: Learner, policies: tuple[Policy, Policy]) -> None:
    """Whichever candidate the policies prefer, it is worth what was said of the text."""
    log = [(written_from(answer), said) for answer, said in log_of(old, 300, 7, label=False)]
    one = compare_policies(log, *policies)
    assert (one.b.changed, one.b.guessed) == (0, 0)


def written_from(answer: StoredAnswer) -> StoredAnswer:
    assert answer.trajectory is not None
    return replace(
        answer, kind=SYNTHESIS, keys=(*answer.keys, "w"), answered=len(answer.keys),
        probabilities=(*answer.probabilities, 0.0), trajectory=replace(answer.trajectory, fused=-1),
    )  # fmt: skip


def test_greedy_and_foreign_answers_are_counted_and_left_out(old: Learner, policies: tuple[Policy, Policy]) -> None:
    sampled, greedy = log_of(old, 100, 8), log_of(old, 30, 9, explore=False)
    foreign = []
    for answer, said in log_of(old, 7, 10):
        assert answer.trajectory is not None
        evidence = answer.trajectory.evidence
        narrow = replace(evidence, candidates=evidence.candidates[:, :1])
        foreign.append((replace(answer, trajectory=replace(answer.trajectory, evidence=narrow)), said))
    unjudged = [(answer, ()) for answer, _ in log_of(old, 5, 11)]
    one = compare_policies([*greedy, *sampled, *foreign, *unjudged], *policies)
    alone = compare_policies(sampled, *policies)
    assert (one.rewarded, one.episodes, one.greedy, one.unread) == (137, 100, 30, 7)
    assert one.b.effective_sample_size == pytest.approx(alone.b.effective_sample_size, rel=0.02)


def test_answers_that_are_left_out_do_not_scale_the_values_of_the_others(
    old: Learner, policies: tuple[Policy, Policy]
) -> None:
    """With feedback mostly where members differ, greedy answers changed how much the sampled ones counted."""
    rng = random.Random(0)
    log = [
        (answer, said * (not answer.disputed or rng.random() < 0.2))
        for answer, said in [*log_of(old, 400, 8), *log_of(old, 400, 9, explore=False)]
    ]
    assert compare_policies(log, *policies).a.mean_ratio == pytest.approx(1, rel=1e-6)


def test_too_little_evidence_is_refused(
    old: Learner, new: Learner, policies: tuple[Policy, Policy], tmp_path: Path
) -> None:
    """By the effective sample size, of each policy on its own."""
    eager = replace(new, decider=replace(new.decider, bias=new.decider.bias + np.float32(4)))
    log = log_of(old, 120, 12)
    far = compare_policies(log, policies[0], policy_of(tmp_path, eager))
    assert far.a.enough
    assert (far.b.enough, far.b.estimates, far.difference) == (False, None, None)
    assert far.b.effective_sample_size < 50
    few = compare_policies(log[:49], *policies)
    assert (few.a.estimates, few.b.estimates, few.difference) == (None, None, None)
    assert compare_policies(log[:1], *policies).episodes == 1


def picked(answer: StoredAnswer) -> int:
    """How many endpoints were asked first."""
    assert answer.trajectory is not None
    return len(answer.trajectory.decisions[0][1].picked)


def test_answers_in_which_a_policys_choice_was_never_made_are_not_evidence(old: Learner, tmp_path: Path) -> None:
    """However many they are worth: what never happened has no ratio, but its share is missing in their mean."""
    keener = replace(old, decider=replace(old.decider, bias=old.decider.bias + np.float32(0.5)))
    policies = policy_of(tmp_path / "old", old), policy_of(tmp_path / "keener", keener)
    log = log_of(old, 300, 15)
    whole = compare_policies(log, *policies).b
    assert whole.enough
    assert whole.mean_ratio == pytest.approx(1, abs=UNTRIED)
    cheap = compare_policies([one for one in log if picked(one[0]) == 1], *policies).b
    assert cheap.effective_sample_size > ENOUGH
    assert cheap.mean_ratio < 1 - UNTRIED
    assert not cheap.enough


def test_the_error_says_what_cannot_be_compared(old: Learner, policies: tuple[Policy, Policy]) -> None:
    log = log_of(old, 60, 13)
    with pytest.raises(ConfigError, match="both are the same"):
        compare_policies(log, cold(), cold())
    with pytest.raises(ConfigError, match="no stored answer has a policy and feedback"):
        compare_policies([(answer, ()) for answer, _ in log], *policies)
    with pytest.raises(ConfigError, match=r"none of the 9 .* 9 were decided greedily"):
        compare_policies(log_of(old, 9, 14, explore=False), *policies)


def test_the_critic_of_an_episode_has_not_seen_it() -> None:
    """Cross-fitting: an episode's reward moves the values of the other parts, never of its own."""
    rng = np.random.default_rng(0)
    states = rng.standard_normal((50, 3, STATE)).astype(np.float32)
    taken = np.ones((50, 3), bool)
    taken[:20, 0] = False
    steps = StepBatch(states, np.zeros((50, 3), np.float32), taken)
    rewards, ratio = rng.standard_normal((1, 50, 3)), np.exp(0.1 * rng.standard_normal((50, 3)))
    part = np.arange(50) % PARTS
    before = cross_fitted(steps, rewards, ratio, part)
    rewards[0, 30, 2] += 5
    moved = (cross_fitted(steps, rewards, ratio, part) != before)[0].any(axis=1)
    assert moved.tolist() == (part != part[30]).tolist()


def test_the_critic_finds_a_linear_value() -> None:
    rng = np.random.default_rng(1)
    states = rng.standard_normal((2000, 2, STATE)).astype(np.float32)
    rewards = np.zeros((1, 2000, 2))
    rewards[0, :, 1] = 3 + states[:, 1, 0] - 2 * states[:, 1, 5]
    steps = StepBatch(states, rewards[0].astype(np.float32), np.ones((2000, 2), bool))
    value = cross_fitted(steps, rewards, np.ones((2000, 2)), np.arange(2000) % PARTS)
    assert value[0, :, 1] == pytest.approx(rewards[0, :, 1], abs=0.1)
    assert value[0, :, 0].mean() == pytest.approx(3, abs=0.2)
