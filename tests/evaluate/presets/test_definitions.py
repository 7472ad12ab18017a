"""The definitions that the presets' measures must equal, by hand and in their stated edge cases."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.evaluate.presets.definitions import (
    binary_entropy,
    cohen_kappa,
    correlation,
    disagreement,
    fleiss_kappa,
    q_statistic,
)

# s = 3, 2, 1, 1, 0 failures by row; n = 3, 2, 2 by model.
# (both, first, second, neither) by pair: (0,1): 2 1 0 2; (0,2): 1 2 1 1; (1,2): 1 1 1 2.
FAILS = [[1, 1, 1], [1, 1, 0], [1, 0, 0], [0, 0, 1], [0, 0, 0]]
MEASURES: list[Callable[..., float]] = [
    binary_entropy,
    fleiss_kappa,
    q_statistic,
    correlation,
    disagreement,
    cohen_kappa,
]


def test_binary_entropy_by_hand() -> None:
    third = -(1 / 3) * math.log2(1 / 3) - (2 / 3) * math.log2(2 / 3)  # rows 2, 3, 4
    assert binary_entropy(FAILS) == pytest.approx(3 * third / 5)


def test_fleiss_kappa_by_hand() -> None:
    # sum s (m - s) = 2 + 2 + 2; p = 7/15
    assert fleiss_kappa(FAILS) == pytest.approx(1 - 6 / (5 * 3 * 2 * (7 / 15) * (8 / 15)))


def test_q_statistic_by_hand() -> None:
    assert q_statistic(FAILS) == pytest.approx((1 + (1 - 2) / (1 + 2) + (2 - 1) / (2 + 1)) / 3)


def test_correlation_by_hand_and_against_pearson() -> None:
    assert correlation(FAILS) == pytest.approx((4 / 6 - 1 / 6 + 1 / 6) / 3)
    pearson = np.corrcoef(np.array(FAILS).T)[np.triu_indices(3, 1)].mean()
    assert correlation(FAILS) == pytest.approx(pearson)


def test_disagreement_by_hand() -> None:
    assert disagreement(FAILS) == pytest.approx((1 / 5 + 3 / 5 + 2 / 5) / 3)


def test_cohen_kappa_by_hand_and_against_observed_over_chance_agreement() -> None:
    assert cohen_kappa(FAILS) == pytest.approx((8 / 13 - 2 / 13 + 2 / 12) / 3)
    # pair (0, 1): agree on 4 of 5 rows; by chance 3/5 * 2/5 + 2/5 * 3/5
    assert cohen_kappa([row[:2] for row in FAILS]) == pytest.approx((4 / 5 - 12 / 25) / (1 - 12 / 25))


@pytest.mark.parametrize("measure", MEASURES)
def test_fewer_than_two_models_have_no_diversity(measure: Callable[..., float]) -> None:
    assert measure([[1], [0]]) == 0
    assert measure(np.zeros((3, 0))) == 0


def test_zero_denominators_have_the_stated_values() -> None:
    always, never = [[1, 1], [1, 1]], [[0, 0], [0, 0]]
    for same in (always, never):
        assert fleiss_kappa(same) == cohen_kappa(same) == 1
        assert q_statistic(same) == correlation(same) == disagreement(same) == binary_entropy(same) == 0
    assert correlation([[1, 1], [1, 0]]) == 0


def test_without_rows_nothing_is_claimed() -> None:
    empty = np.zeros((0, 3))
    for measure in MEASURES:
        assert measure(empty) == 0


@given(hnp.arrays(np.int8, st.tuples(st.integers(0, 12), st.integers(0, 5)), elements=st.integers(0, 1)))
def test_every_measure_is_finite_and_blind_to_the_order_of_models(fails: np.ndarray) -> None:
    for measure in MEASURES:
        value = measure(fails)
        assert -1 - 1e-9 <= value <= 1 + 1e-9
        assert measure(fails[:, ::-1]) == pytest.approx(value)
