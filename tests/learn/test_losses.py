from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from focalroute.learn.gate import worth
from focalroute.learn.losses import fusion_loss, likelihood, log_posterior, surrogate_loss
from focalroute.learn.nets import Floats
from focalroute.learn.trajectory import Fusions, HeadBatch
from focalroute.observe.layout import CANDIDATE, MEMBER, width

B, K = 6, 4
ROWS = np.arange(B)


def told(**changes: object) -> Fusions:
    """Labels, a label nobody has, and bare rewards, one of them graded; the last two have but three candidates."""
    offered = np.ones((B, K), np.bool_)
    offered[4:, 3] = False
    some = Fusions(
        members=np.zeros((B, K, 1, width(MEMBER)), np.float32),
        candidates=np.zeros((B, K, width(CANDIDATE)), np.float32),
        ids=np.zeros((B, 1), np.int64),
        offered=offered,
        answered=np.array([0, 1, 2, 3, 1, 0]),
        right=np.array([0, 2, -1, -1, -1, 2]),
        labelled=np.array([True, True, True, False, False, True]),
        reward=np.array([1, -1, -1, 1, 0.4, -1], np.float32),
    )
    return replace(some, **changes)  # type: ignore[arg-type]


def objective(z: Floats, old: Floats, penalty: float) -> float:
    loss = fusion_loss(z, told(), ROWS, old, penalty=penalty)
    return loss.loss + penalty * loss.kl


@pytest.mark.parametrize("penalty", [0.0, 0.7])
def test_the_fusions_gradient_is_that_of_finite_differences(penalty: float) -> None:
    rng, h = np.random.default_rng(0), 1e-5
    z, old = rng.standard_normal((B, K)), log_posterior(rng.standard_normal((B, K)), told().offered)
    found = fusion_loss(z, told(), ROWS, old, penalty=penalty).d_logits
    for b in range(B):
        for k in range(K):
            step = np.zeros((B, K))
            step[b, k] = h
            expected = (objective(z + step, old, penalty) - objective(z - step, old, penalty)) / (2 * h)
            assert abs(found[b, k] - expected) < 1e-6 * max(1, abs(expected))


def test_uninformative_feedback_has_no_gradient() -> None:
    """Neither a label that no candidate has, nor padding."""
    z = np.random.default_rng(0).standard_normal((B, K))
    found = fusion_loss(z, told(), ROWS, log_posterior(z, told().offered), penalty=0.5).d_logits
    assert not found[2].any()
    assert not found[4:, 3].any()
    silent = told(right=np.full(B, -1), labelled=np.ones(B, np.bool_))
    nothing = fusion_loss(z, silent, ROWS, log_posterior(z, silent.offered), penalty=0.5)
    assert (nothing.loss, nothing.kl) == (0, 0)
    assert not nothing.d_logits.any()


def test_a_reward_for_what_was_written_from_the_candidates_tells_of_none_of_them() -> None:
    """Where there is a label it tells which is right all the same; whatever would have been preferred earned that."""
    z = np.random.default_rng(0).standard_normal((B, K))
    bare = told(answered=np.full(B, -1), labelled=np.zeros(B, np.bool_))
    nothing = fusion_loss(z, bare, ROWS, log_posterior(z, bare.offered), penalty=0.5)
    assert nothing.loss == 0
    assert not nothing.d_logits.any()
    written = told(answered=np.full(B, -1))
    assert fusion_loss(z, written, ROWS, log_posterior(z, written.offered), penalty=0).d_logits[0].any()
    for fusions in (bare, written):
        earned = worth(fusions, log_posterior(z, fusions.offered))
        np.testing.assert_array_equal(earned, np.tile(fusions.reward[:, None], (1, K)))


def test_a_wrong_answer_that_was_sure_stays_finite() -> None:
    z = np.zeros((B, K))
    z[ROWS, told().answered] = 60
    loss = fusion_loss(z, told(reward=np.full(B, -1, np.float32), labelled=np.zeros(B, np.bool_)), ROWS, z, penalty=0)
    assert np.isfinite(loss.loss)
    assert np.isfinite(loss.d_logits).all()


def test_the_posterior_is_over_what_was_offered() -> None:
    q = np.exp(log_posterior(np.full((B, K), 1000.0, np.float32), told().offered))
    np.testing.assert_allclose(q[0], 0.25)
    np.testing.assert_allclose(q[5], [1 / 3, 1 / 3, 1 / 3, 0], atol=1e-12)


def test_the_surrogates_gradient_is_that_of_finite_differences_and_zero_where_clipped() -> None:
    rng, h, s = np.random.default_rng(1), 1e-6, 40
    some = np.ones((s, 3), np.bool_)
    picked = rng.random((s, 3)) < 0.5
    picked[:, 0] |= ~picked.any(axis=1)
    heads = HeadBatch(some, some, picked, np.ones(s, np.bool_), np.full(s, 3))
    z, weights, advantages = rng.standard_normal((s, 3)), rng.uniform(0.5, 2, s), rng.standard_normal(s)
    old = likelihood(z, heads).log_pi + rng.uniform(-0.5, 0.5, s)

    def objective(z: Floats) -> float:
        distribution = likelihood(z, heads)
        loss = surrogate_loss(distribution, old, weights, advantages, clip=0.2, entropy=0.01).loss
        return loss - 0.01 * float(distribution.entropy.mean())

    distribution = likelihood(z, heads)
    found = surrogate_loss(distribution, old, weights, advantages, clip=0.2, entropy=0.01)
    for row in range(s):
        step = np.zeros((s, 3))
        step[row] = h
        expected = (objective(z + step) - objective(z - step)) / (2 * h)
        assert abs(found.d_logits[row].sum() - expected) < 1e-8
    ratio = np.exp(distribution.log_pi - old)
    stuck = ((ratio > 1.2) & (advantages > 0)) | ((ratio < 0.8) & (advantages < 0))
    assert stuck.any()
    assert not surrogate_loss(distribution, old, weights, advantages, clip=0.2, entropy=0).d_logits[stuck].any()
    assert found.clip_fraction == np.mean(np.abs(ratio - 1) > 0.2)
    assert found.approx_kl > 0
