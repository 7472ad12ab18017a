from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from focalroute.policy.decider import posterior


def test_posterior_is_the_softmax() -> None:
    assert posterior([0.0, math.log(2), math.log(5)]) == pytest.approx([1 / 8, 2 / 8, 5 / 8])


@given(
    st.lists(
        st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**100), max_value=2.0**100),
        min_size=1,
    )
)
def test_posterior_is_a_distribution_however_large_the_logits(logits: list[float]) -> None:
    probabilities = posterior(logits)
    assert sum(probabilities) == pytest.approx(1)
    assert min(probabilities) >= 0
    assert probabilities[logits.index(max(logits))] == max(probabilities)


def test_equal_candidates_are_equally_likely() -> None:
    _, *equal = posterior([1.0, 3.0, 3.0, 3.0])
    assert len(set(equal)) == 1
