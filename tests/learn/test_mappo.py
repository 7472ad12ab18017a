from __future__ import annotations

import math
from dataclasses import asdict, replace

import numpy as np
import pytest

from focalroute.learn.losses import likelihood
from focalroute.learn.mappo import Learner, update
from focalroute.learn.nets import decider_pass, parameters
from focalroute.learn.trajectory import batch
from focalroute.observe.layout import CONTEXT, slices
from tests.learn.made import NAMES, OPTIMUM, SETTINGS, episodes_of, fresh_learner, learned, play, value


def content(learner: Learner) -> bytes:
    nets = (parameters(learner.decider), parameters(learner.fusion), parameters(learner.critic))
    parts = [array.tobytes() for arrays in nets for array in arrays.values()]
    for moments in learner.moments.values():
        parts += [array.tobytes() for part in (moments.first, moments.second) for array in part.values()]
    return b"".join(parts)


@pytest.mark.parametrize(("seed", "label"), [(0, True), pytest.param(1, False, marks=pytest.mark.slow)])
def test_it_finds_the_optimum_of_a_small_world(seed: int, label: bool) -> None:
    """From nets that know nothing: whom to ask by what the context says, told apart by name alone; whom to believe."""
    assert value(fresh_learner(seed)) < OPTIMUM - 0.5
    assert math.isclose(value(learned(12, seed, label=label)), OPTIMUM, abs_tol=1e-6)


def test_the_same_seed_gives_the_same_bytes_and_another_one_others() -> None:
    played = batch(episodes_of(play(fresh_learner(), 100, 0)), NAMES)
    first, again, other = (update(fresh_learner(), played, SETTINGS, np.random.default_rng(s)) for s in (1, 1, 2))
    assert content(first[0]) == content(again[0]) != content(other[0])
    assert first[1] == again[1]


def test_nothing_given_is_changed_and_unknown_names_stay_at_zero() -> None:
    learner = fresh_learner()
    before, played = content(learner), batch(episodes_of(play(learner, 100, 0)), NAMES)
    after, _ = update(learner, played, SETTINGS, np.random.default_rng(0))
    assert content(learner) == before
    assert not after.decider.names[0].any()
    assert not after.fusion.names[0].any()
    assert after.fusion.vote[0] == 0
    assert {array.dtype for array in parameters(after.decider).values()} == {np.dtype(np.float32)}


def test_the_diagnostics_are_what_they_say() -> None:
    """Against their definitions, computed anew from the nets before and after."""
    learner = learned(2, 3)
    played = batch(episodes_of(play(learner, 200, 5)), NAMES)
    after, found = update(learner, played, SETTINGS, np.random.default_rng(0))
    made = played.decisions
    distribution = likelihood(decider_pass(after.decider, made.context, made.endpoints, made.ids)[0], made.heads)
    log_ratio = distribution.log_pi - made.log_mu  # the policy that decided is the one at the start: w = 1
    assert found.approx_kl == pytest.approx(np.mean(np.exp(log_ratio) - 1 - log_ratio), abs=1e-5)
    assert found.clip_fraction == pytest.approx(np.mean(np.abs(np.exp(log_ratio) - 1) > 0.2), abs=0.01)
    assert found.entropy == pytest.approx(distribution.entropy.mean())
    assert found.effective_sample_size == pytest.approx(200, rel=1e-3)
    assert (found.episodes, found.decisions) == (200, 200)
    assert found.fusion_loss_after < found.fusion_loss
    assert all(math.isfinite(number) for number in asdict(found).values())


def test_old_decisions_weigh_less_where_the_policy_has_left_them() -> None:
    """w = min(pi_old / mu, 2): decisions of another policy are worth fewer fresh ones."""
    played = batch(episodes_of(play(fresh_learner(), 300, 0)), NAMES)
    _, found = update(learned(6, 0), played, SETTINGS, np.random.default_rng(0))
    assert 1 < found.effective_sample_size < 250


@pytest.mark.parametrize("rate", [0.05, 1.0])
def test_no_update_goes_further_than_it_may(rate: float) -> None:
    """However large the learning rate, both policies end within 1.5 times their target KL."""
    wild = replace(SETTINGS, decider_rate=rate, fusion_rate=rate)
    learner = learned(3, 0)
    played = batch(episodes_of(play(learner, 300, 9)), NAMES)
    _, found = update(learner, played, wild, np.random.default_rng(0))
    assert found.approx_kl <= 1.5 * wild.target_kl
    assert found.fusion_kl <= 1.5 * wild.fusion_target_kl


def test_greedy_episodes_teach_fusion_and_critic_but_not_the_decider() -> None:
    learner = learned(1, 0)
    played = batch(episodes_of(play(learner, 100, 0, explore=False)), NAMES)
    after, found = update(learner, played, SETTINGS, np.random.default_rng(0))
    assert after.decider is learner.decider
    assert not np.array_equal(after.fusion.vote, learner.fusion.vote)
    assert not np.array_equal(after.critic.out, learner.critic.out)
    assert (found.decisions, found.approx_kl, found.effective_sample_size) == (0, 0, 0)


def test_equal_returns_teach_the_decider_nothing_but_entropy() -> None:
    """Without a difference there is no advantage."""
    one = episodes_of(play(fresh_learner(), 1, 0)) * 50
    after, _ = update(fresh_learner(), batch(one, NAMES), replace(SETTINGS, entropy=0.0), np.random.default_rng(0))
    for name, array in parameters(fresh_learner().decider).items():
        np.testing.assert_array_equal(array, getattr(after.decider, name))


def test_the_critic_learns_what_episodes_are_worth() -> None:
    """Where the return hangs on the query alone, its explained variance goes to 1."""
    learner, rng = fresh_learner(), np.random.default_rng(0)
    played = batch(episodes_of(play(learner, 300, 0)), NAMES)
    x = played.steps.states[:, -1, slices(CONTEXT)["level"].start]
    rewards = np.stack([np.zeros_like(x), x], axis=1)
    played = replace(played, steps=replace(played.steps, rewards=rewards))
    explained = []
    for _ in range(8):
        after, found = update(learner, played, replace(SETTINGS, critic_rate=0.02), rng)
        learner = replace(learner, critic=after.critic, moments={**learner.moments, "critic": after.moments["critic"]})
        explained.append(found.explained_variance)
    assert explained[0] == pytest.approx(0, abs=1e-6)
    assert explained[-1] > 0.95
