from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from focalroute.core.records import Observation
from focalroute.learn.nets import STATE, CriticNet, Floats, critic_pass, decider_state, fusion_state, parameters, values
from focalroute.observe.layout import ENDPOINT, width
from tests.learn.made import check_gradients, context, evidence, randomised


def test_its_gradients_are_those_of_finite_differences() -> None:
    rng = np.random.default_rng(0)
    net = randomised(CriticNet.initial(rng, hidden=5), 1)
    states, weights = rng.standard_normal((6, STATE)), rng.standard_normal(6)

    def f(arrays: Mapping[str, Floats]) -> float:
        return float(weights @ critic_pass(replace(net, **arrays), states)[0])

    check_gradients(f, parameters(net), critic_pass(net, states)[1](weights))


def test_a_new_one_values_everything_0() -> None:
    assert not values(CriticNet.initial(np.random.default_rng(0)), np.ones((2, 3, STATE), np.float32)).any()


def test_states_tell_the_steps_apart_and_do_not_depend_on_the_pools_order() -> None:
    """The Fusion's state is the Decider's with what was replied and a flag; endpoints are pooled."""
    rows = np.random.default_rng(0).standard_normal((4, width(ENDPOINT))).astype(np.float32)
    seen, turned = Observation(context(1), rows), Observation(context(1), rows[::-1])
    np.testing.assert_allclose(decider_state(seen), decider_state(turned), rtol=1e-6)
    before, after = decider_state(seen), fusion_state(seen, evidence({0: 1, 1: 1}))
    assert (before[-1], after[-1]) == (0, 1)
    pooled = len(context(1)) + rows.shape[1]
    np.testing.assert_array_equal(before[:pooled], after[:pooled])
    assert not before[pooled:].any()
    assert fusion_state(None, evidence({0: 1})).shape == (STATE,)
