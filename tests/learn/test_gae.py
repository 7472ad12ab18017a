from __future__ import annotations

import numpy as np

from focalroute.learn.mappo import gae


def test_it_is_the_closed_form() -> None:
    """Of three steps, written out."""
    r, v, g, lam = np.array([[1.0, -2.0, 3.0]]), np.array([[0.5, 0.25, -1.0]]), 0.9, 0.8
    d = [1 + g * 0.25 - 0.5, -2 + g * -1.0 - 0.25, 3 - -1.0]
    expected = [d[0] + g * lam * d[1] + (g * lam) ** 2 * d[2], d[1] + g * lam * d[2], d[2]]
    np.testing.assert_allclose(gae(r, v, gamma=g, lam=lam)[0], expected, rtol=1e-12)


def test_at_lambda_1_it_is_the_return_minus_the_value_and_at_0_the_one_step_error() -> None:
    rng = np.random.default_rng(0)
    r, v = rng.standard_normal((5, 4)), rng.standard_normal((5, 4))
    np.testing.assert_allclose(gae(r, v, lam=1) + v, r[:, ::-1].cumsum(axis=1)[:, ::-1])
    np.testing.assert_allclose(gae(r, v, lam=0), r + np.c_[v[:, 1:], np.zeros(5)] - v)


def test_padding_on_the_left_changes_nothing() -> None:
    r, v = np.array([[0.0, 0.0, 1.0, 2.0]]), np.array([[0.0, 0.0, 3.0, 4.0]])
    np.testing.assert_array_equal(gae(r, v)[:, 2:], gae(r[:, 2:], v[:, 2:]))
