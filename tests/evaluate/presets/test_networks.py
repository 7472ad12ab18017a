"""The presets' network and PPO: gradients, distributions, and updates that must change nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from focalroute.evaluate.presets import (
    Learned,
    Mlp,
    Ppo,
    bernoulli,
    categorical,
    draw,
    improve,
    mlp_pass,
    regress,
)
from focalroute.learn.nets import Floats, parameters
from tests.learn.made import check_gradients


def net(seed: int, inputs: int = 5, outputs: int = 3) -> Mlp:
    rng = np.random.default_rng(seed)
    made = Mlp.initial(rng, inputs, outputs, hidden=4)
    arrays: Mapping[str, Floats] = {key: rng.standard_normal(value.shape) for key, value in parameters(made).items()}
    return replace(made, **arrays)


@pytest.mark.parametrize("seed", range(3))
def test_the_gradients_are_those_of_finite_differences(seed: int) -> None:
    rng, made = np.random.default_rng(seed), net(seed)
    x, weights = rng.standard_normal((7, 5)), rng.standard_normal((7, 3))

    def f(arrays: Mapping[str, Floats]) -> float:
        return float((weights * mlp_pass(replace(made, **arrays), x)[0]).sum())

    check_gradients(f, parameters(made), mlp_pass(made, x)[1](weights))


def test_a_fresh_net_prefers_nothing_and_float32_stays_float32() -> None:
    fresh = Mlp.initial(np.random.default_rng(0), 5, 3)
    logits, pull = mlp_pass(fresh, np.ones((2, 5), np.float32))
    assert not logits.any()
    assert {logits.dtype, *(g.dtype for g in pull(logits).values())} == {np.dtype(np.float32)}


def test_the_probabilities_of_all_choices_add_up_to_1_and_of_those_not_offered_to_0() -> None:
    logits = np.random.default_rng(0).standard_normal((1, 4)).repeat(4, axis=0)
    offered = np.array([[True, False, True, True]]).repeat(4, axis=0)
    chances = np.exp(categorical(logits, offered, np.arange(4)).log_pi)
    assert chances.sum() == pytest.approx(1)
    assert chances[1] == 0


def test_the_probabilities_of_all_pools_add_up_to_1() -> None:
    logits = np.random.default_rng(0).standard_normal((1, 3)).repeat(8, axis=0)
    picked = np.array([[bool(n >> i & 1) for i in range(3)] for n in range(8)])
    assert np.exp(bernoulli(logits, picked).log_pi).sum() == pytest.approx(1)


@pytest.mark.parametrize("what", ["log_pi", "entropy"])
def test_the_softmaxs_derivatives_are_those_of_finite_differences(what: str) -> None:
    rng = np.random.default_rng(1)
    logits, offered, chosen = rng.standard_normal((3, 4)), np.ones((3, 4), bool), np.array([0, 2, 3])
    offered[:, 1] = False
    found = getattr(categorical(logits, offered, chosen), f"d_{what}")
    for row, column in np.ndindex(3, 4):
        h = np.zeros_like(logits)
        h[row, column] = 1e-6
        up, down = (getattr(categorical(logits + sign * h, offered, chosen), what)[row] for sign in (1, -1))
        assert found[row, column] == pytest.approx((up - down) / 2e-6, abs=1e-6)


def test_draws_follow_the_softmax() -> None:
    logits = np.log(np.array([[0.2, 0.5, 0.3]])).repeat(20_000, axis=0)
    offered = np.array([[True, True, False]]).repeat(20_000, axis=0)
    shares = np.bincount(draw(logits, offered, np.random.default_rng(0)), minlength=3) / 20_000
    assert shares.tolist() == pytest.approx([2 / 7, 5 / 7, 0], abs=0.015)


def test_the_surrogate_moves_towards_what_did_better_and_the_clip_holds_it_back() -> None:
    rng = np.random.default_rng(0)
    learned = Learned.fresh(Mlp.initial(rng, 1, 2, hidden=4))
    x, offered = np.ones((200, 1), np.float32), np.ones((200, 2), bool)
    chosen = np.arange(200) % 2
    reached = []
    for clip in (0.02, 10.0):
        settings = Ppo(rate=0.002, clip=clip, epochs=100, minibatch=200)
        after = improve(
            learned, x, lambda z, rows: categorical(z, offered[rows], chosen[rows]), chosen * 1.0, settings, rng
        )
        reached.append(float(np.exp(categorical(after(x[:1]), offered[:1], np.array([1])).log_pi[0])))
    assert 0.51 <= reached[0] < 0.55  # a ratio of 1.02 is 0.51; the momentum of the steps so far carries it on
    assert reached[1] > 0.65


def test_equal_advantages_change_nothing() -> None:
    rng = np.random.default_rng(0)
    learned = Learned.fresh(Mlp.initial(rng, 1, 2, hidden=4))
    x, offered, chosen = np.ones((10, 1), np.float32), np.ones((10, 2), bool), np.arange(10) % 2
    after = improve(
        learned, x, lambda z, rows: categorical(z, offered[rows], chosen[rows]), np.ones(10), Ppo(rate=0.1), rng
    )
    assert all(np.array_equal(a, b) for a, b in zip(*map(_arrays, (after, learned)), strict=True))


def _arrays(learned: Learned) -> list[Floats]:
    return list(parameters(learned.net).values())


def test_a_value_net_learns_the_mean_return_of_each_state() -> None:
    rng = np.random.default_rng(0)
    x = np.eye(2, dtype=np.float32)[rng.integers(0, 2, 400)]
    targets = (x @ np.array([[1.0, -1.0], [0.5, 2.0]], np.float32)) + rng.choice([-0.5, 0.5], (400, 1))
    learned = Learned.fresh(Mlp.initial(rng, 2, 2))
    for _ in range(40):
        learned = regress(learned, x, targets, Ppo(rate=0.02), rng)
    assert learned(np.eye(2, dtype=np.float32)).round(1).tolist() == pytest.approx(
        np.array([[1.0, -1.0], [0.5, 2.0]]), abs=0.15
    )
