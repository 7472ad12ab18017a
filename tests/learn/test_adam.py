from __future__ import annotations

import numpy as np
import pytest

from focalroute.learn.adam import Adam, Moments


def test_the_first_step_is_the_learning_rate_against_the_sign() -> None:
    """The closed form of bias-corrected Adam after one step, for every shape."""
    start = {"a": np.ones((2, 3)), "b": np.zeros(1)}
    adam = Adam(start, Moments.zero(start), learning_rate=0.1, max_norm=100)
    adam.step({"a": np.full((2, 3), 5.0), "b": np.array([-0.01])})
    np.testing.assert_allclose(adam.parameters["a"], 0.9, rtol=1e-6)
    np.testing.assert_allclose(adam.parameters["b"], 0.1, rtol=1e-5)
    assert (start["a"] == 1).all()


def test_it_finds_the_minimum_of_a_parabola() -> None:
    start = {"x": np.array([3.0, -2.0])}
    adam = Adam(start, Moments.zero(start), learning_rate=0.05, max_norm=100)
    for _ in range(500):
        adam.step({"x": 2 * (adam.parameters["x"] - np.array([1.0, 4.0]))})
    np.testing.assert_allclose(adam.parameters["x"], [1, 4], atol=1e-2)


def test_a_long_gradient_is_scaled_down_and_a_short_one_is_not() -> None:
    start = {"x": np.zeros(2), "y": np.zeros(1)}
    adam = Adam(start, Moments.zero(start), learning_rate=0.1, max_norm=1)
    adam.step({"x": np.array([30.0, 0.0]), "y": np.array([40.0])})
    np.testing.assert_allclose(adam.moments.first["x"], [0.06, 0])
    np.testing.assert_allclose(adam.moments.first["y"], [0.08])
    short = Adam(start, Moments.zero(start), learning_rate=0.1, max_norm=1)
    short.step({"x": np.array([0.3, 0.0]), "y": np.array([0.4])})
    np.testing.assert_allclose(short.moments.first["y"], [0.04])


@pytest.mark.parametrize("cut", [0, 1, 7])
def test_resuming_from_its_moments_changes_nothing(cut: int) -> None:
    """Stopped anywhere and resumed it ends, to the bit, where one without a stop does."""
    start = {"x": np.random.default_rng(0).standard_normal((2, 2)).astype(np.float32)}
    gradients = [{"x": g.astype(np.float32)} for g in np.random.default_rng(1).standard_normal((10, 2, 2))]
    whole = Adam(start, Moments.zero(start), learning_rate=0.1, max_norm=1)
    first = Adam(start, Moments.zero(start), learning_rate=0.1, max_norm=1)
    for g in gradients:
        whole.step(g)
    for g in gradients[:cut]:
        first.step(g)
    second = Adam(first.parameters, first.moments, learning_rate=0.1, max_norm=1)
    for g in gradients[cut:]:
        second.step(g)
    assert second.parameters["x"].tobytes() == whole.parameters["x"].tobytes()
    assert second.moments.steps == whole.moments.steps == 10
    assert second.parameters["x"].dtype == np.float32
