from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

from focalroute.learn.losses import likelihood
from focalroute.learn.trajectory import HeadBatch
from focalroute.policy.decider import EXPLORATION, decide, pick_probabilities
from tests.learn.made import random_decision
from tests.policy.chances import log_probability


def every_set(n: int, must_pick: bool) -> HeadBatch:
    """One decision for each set of a pool of n."""
    picked = np.array([s for s in itertools.product([False, True], repeat=n) if any(s) or not must_pick])
    some = np.ones(picked.shape, np.bool_)
    return HeadBatch(some, some, picked, np.full(len(picked), must_pick), np.full(len(picked), n))


@pytest.mark.parametrize("must_pick", [False, True])
@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("shift", [0.0, -4.0])
def test_the_probabilities_of_all_sets_sum_to_one(n: int, must_pick: bool, shift: float) -> None:
    heads = every_set(n, must_pick)
    logits = np.tile(np.random.default_rng(n).standard_normal(n) * 2 + shift, (len(heads.picked), 1))
    assert math.isclose(float(np.exp(likelihood(logits, heads).log_pi).sum()), 1, rel_tol=1e-12)


@pytest.mark.parametrize("n", [1, 3, 8])
def test_it_is_the_log_probability_that_serving_stores(n: int) -> None:
    """For random decisions with closed heads and budgets, under the logits that decided and under others."""
    rng, chance = random.Random(n), np.random.default_rng(n)
    for _ in range(200):
        logits = (chance.standard_normal(n) * 3).astype(np.float32)
        made = random_decision(rng, logits)
        if not made.order:
            continue
        pad = 2
        visited = np.array([[True] * len(made.order) + [False] * pad])
        eligible = np.array([[*made.eligible] + [False] * pad])
        picked = np.array([[head in made.picked for head in made.order] + [False] * pad])
        heads = HeadBatch(visited, eligible, picked, np.array([made.must_pick]), np.array([n]))
        for z in (logits, chance.standard_normal(n).astype(np.float32)):
            p = pick_probabilities(z, made.order if made.must_pick else ())
            mine = likelihood(np.array([[*z[list(made.order)], 7.0, -7.0]]), heads).log_pi[0]
            assert math.isclose(mine, log_probability(p, made), rel_tol=1e-6, abs_tol=1e-6)


@pytest.mark.parametrize("shift", [0.0, -2.0])
@pytest.mark.parametrize("must_pick", [False, True])
def test_the_gradients_are_those_of_finite_differences(must_pick: bool, shift: float) -> None:
    """Of log pi, "never nobody" and the raised logits included, and of the entropy, where nothing is clipped."""
    heads = every_set(4, must_pick)
    heads.eligible[3:, 2] &= heads.picked[3:, 2] | (heads.picked[3:, 0] & (np.arange(len(heads.picked) - 3) % 2 == 0))
    z, h = np.random.default_rng(0).standard_normal(heads.picked.shape) * 0.7 + shift, 1e-5
    found = likelihood(z, heads)
    for place in range(4):
        step = np.zeros_like(z)
        step[:, place] = h
        up, down = likelihood(z + step, heads), likelihood(z - step, heads)
        np.testing.assert_allclose(found.d_log_pi[:, place], (up.log_pi - down.log_pi) / (2 * h), rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(
            found.d_entropy[:, place], (up.entropy - down.entropy) / (2 * h), rtol=1e-6, atol=1e-9
        )


def test_a_head_at_the_floor_still_learns() -> None:
    """Beyond the clip the probability stands still, but the gradient is that of the clipped p: a - p."""
    some, least = np.ones((1, 2), np.bool_), EXPLORATION / 2
    heads = HeadBatch(some, some, np.array([[True, False]]), np.array([False]), np.array([2]))
    found = likelihood(np.array([[-50.0, 50.0]]), heads)
    assert math.isclose(found.log_pi[0], 2 * math.log(least), rel_tol=1e-9)
    np.testing.assert_allclose(found.d_log_pi, [[1 - least, -(1 - least)]])


def test_padding_and_closed_heads_have_no_gradient() -> None:
    some = np.array([[True, True, False]])
    heads = HeadBatch(some, np.array([[True, False, False]]), some & False, np.array([False]), np.array([3]))
    found = likelihood(np.array([[1.0, 2.0, 3.0]]), heads)
    assert (found.d_log_pi[0, 1:] == 0).all()
    assert (found.d_entropy[0, 1:] == 0).all()


def one_of_each(n: int) -> HeadBatch:
    """Exactly one of a pool of n, each once; the last place is padding."""
    visited = np.array([[True] * n + [False]] * n)
    picked = np.eye(n, n + 1, dtype=np.bool_)
    eligible = visited & (np.arange(n + 1) <= np.arange(n)[:, None])
    return HeadBatch(visited, eligible, picked, np.ones(n, np.bool_), np.full(n, n), np.ones(n, np.bool_))


@pytest.mark.parametrize("shift", [-6.0, 0.0, 6.0])
def test_exactly_one_is_the_law_that_serving_stores(shift: float) -> None:
    chance = np.random.default_rng(3)
    for n, scale in itertools.product((1, 2, 5), (1.0, 8.0)):
        z = (chance.standard_normal(n) * scale + shift).astype(np.float32)
        found = likelihood(np.tile([*z, 9.0], (n, 1)), one_of_each(n))
        assert math.isclose(float(np.exp(found.log_pi).sum()), 1, rel_tol=1e-9)
        for seed in range(5):
            made = decide(
                z, round=1, must_pick=True, order=range(n), eligible=lambda *_: True, explore=True,
                rng=random.Random(seed), one=True,
            )  # fmt: skip
            assert made.log_mu is not None
            assert math.isclose(found.log_pi[made.picked[0]], made.log_mu, rel_tol=1e-5, abs_tol=1e-5)


def test_the_gradients_of_exactly_one_are_those_of_finite_differences() -> None:
    """Where nothing is clipped; beside decisions of several, which keep theirs."""
    one, several = one_of_each(4), every_set(4, True)
    pad = np.zeros((len(several.picked), 1), np.bool_)
    joined = [np.concatenate([np.hstack([getattr(several, name), pad]), getattr(one, name)])
              for name in ("visited", "eligible", "picked")]  # fmt: skip
    rows = len(joined[0])
    both = HeadBatch(
        joined[0],
        joined[1],
        joined[2],
        np.ones(rows, np.bool_),
        np.full(rows, 4),
        np.arange(rows) >= len(several.picked),
    )
    z, h = np.random.default_rng(0).standard_normal(joined[0].shape) * 0.5, 1e-5
    found = likelihood(z, both)
    np.testing.assert_allclose(
        found.log_pi[: len(several.picked)], likelihood(z[: len(several.picked), :4], several).log_pi
    )
    for place in range(5):
        step = np.zeros_like(z)
        step[:, place] = h
        up, down = likelihood(z + step, both), likelihood(z - step, both)
        np.testing.assert_allclose(found.d_log_pi[:, place], (up.log_pi - down.log_pi) / (2 * h), rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(
            found.d_entropy[:, place], (up.entropy - down.entropy) / (2 * h), rtol=1e-6, atol=1e-9
        )
    taken = both.take(np.array([rows - 1]))
    assert taken.one is not None
    assert taken.one.tolist() == [True]
