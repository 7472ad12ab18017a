from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from focalroute.policy.fusion import posterior


def test_posterior_is_the_softmax_in_double_precision() -> None:
    probabilities = posterior(np.array([0.0, math.log(2), math.log(5)], np.float32))
    assert probabilities.dtype == np.float64
    assert probabilities.tolist() == pytest.approx([1 / 8, 2 / 8, 5 / 8])


@settings(deadline=None, derandomize=True)
@given(
    st.lists(
        st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**100), max_value=2.0**100),
        min_size=1,
    )
)
def test_posterior_is_a_distribution_however_large_the_logits(logits: list[float]) -> None:
    probabilities = posterior(np.array(logits, np.float32))
    assert probabilities.sum() == pytest.approx(1)
    assert (probabilities >= 0).all()
    assert probabilities[np.argmax(np.array(logits, np.float32))] == probabilities.max()


def test_of_equal_candidates_the_first_is_the_argmax() -> None:
    assert posterior(np.array([1.0, 3.0, 3.0, 3.0], np.float32)).argmax() == 1
