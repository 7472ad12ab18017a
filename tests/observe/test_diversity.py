"""Every measure of diversity against values worked out by hand, and its stated edge cases."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from focalroute.observe.diversity import (
    binary_entropy,
    cohen_kappa,
    correlation,
    disagreement,
    fleiss_kappa,
    focal_diversity,
    focal_negative_correlation,
    generalised_diversity,
    plurality_accuracy,
    q_statistic,
)

# s = 3, 2, 1, 1, 0 failures by row; n = 3, 2, 2 by model.
# (both, first, second, neither) by pair: (0,1): 2 1 0 2; (0,2): 1 2 1 1; (1,2): 1 1 1 2.
FAILS = [[1, 1, 1], [1, 1, 0], [1, 0, 0], [0, 0, 1], [0, 0, 0]]
MEASURES: list[Callable[..., float]] = [
    focal_diversity, generalised_diversity, binary_entropy, fleiss_kappa, q_statistic, correlation, disagreement,
    cohen_kappa,
]  # fmt: skip


def test_focal_negative_correlation_by_hand() -> None:
    # sum f s = 6, 5, 4; sum f s (s - 1) = 8, 8, 6; m - 1 = 2
    expected = [1 - 8 / (2 * 6), 1 - 8 / (2 * 5), 1 - 6 / (2 * 4)]
    assert focal_negative_correlation(FAILS) == pytest.approx(expected)
    assert focal_diversity(FAILS) == pytest.approx(sum(expected) / 3)


def test_focal_negative_correlation_is_one_minus_p2_over_p1_as_written_in_the_paper() -> None:
    f = np.array(FAILS, float)
    m, s, n = 3, f.sum(1), f.sum(0)
    for i in range(m):
        p1 = (f[:, i] * s).sum() / (m * n[i])
        p2 = (f[:, i] * s * (s - 1)).sum() / (m * (m - 1) * n[i])
        assert focal_negative_correlation(FAILS)[i] == pytest.approx(1 - p2 / p1)


def test_every_failure_count_occurring_is_counted_right() -> None:
    """With counts 0..m all present (here 0..3), public code is off by one; p(1) = 7/15 and p(2) = 8/30."""
    assert generalised_diversity(FAILS) == pytest.approx(1 - (8 / 30) / (7 / 15))


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


def test_plurality_accuracy_by_hand() -> None:
    votes = [[0, 0, 1], [0, 1, 2], [1, -1, 1], [-1, -1, -1]]
    assert plurality_accuracy(votes, [0, 2, 0, 0]) == pytest.approx((1 + 1 / 3 + 0 + 0) / 4)
    assert plurality_accuracy([[2, 2, 1, 1, 0]], [1]) == pytest.approx(1 / 2)
    assert plurality_accuracy([[-1, -1, 3]], [3]) == 1
    assert plurality_accuracy(np.zeros((0, 3), int), []) == 0


def test_a_model_that_never_failed_counts_one() -> None:
    assert focal_negative_correlation([[0, 1], [0, 1]]).tolist() == [1, 1]
    assert focal_negative_correlation([[0, 1, 1]]).tolist() == [1, 0.5, 0.5]
    assert focal_diversity([[0, 0], [0, 0]]) == 1
    assert generalised_diversity([[0, 0], [0, 0]]) == 1


@pytest.mark.parametrize("measure", MEASURES)
def test_fewer_than_two_models_have_no_diversity(measure: Callable[..., float]) -> None:
    assert measure([[1], [0]]) == 0
    assert measure(np.zeros((3, 0))) == 0


def test_zero_denominators_have_the_stated_values() -> None:
    always, never = [[1, 1], [1, 1]], [[0, 0], [0, 0]]
    for same in (always, never):
        assert fleiss_kappa(same) == cohen_kappa(same) == 1
        assert q_statistic(same) == correlation(same) == disagreement(same) == binary_entropy(same) == 0
    assert focal_diversity(always) == 0
    assert correlation([[1, 1], [1, 0]]) == 0


def test_without_rows_nothing_is_claimed() -> None:
    empty = np.zeros((0, 3))
    assert focal_diversity(empty) == generalised_diversity(empty) == 1
    for measure in (binary_entropy, fleiss_kappa, q_statistic, correlation, disagreement, cohen_kappa):
        assert measure(empty) == 0


@pytest.mark.parametrize("bad", [[1, 0], [[0.5, 1]], [[float("nan"), 0]], [[2, 0]]])
def test_what_is_not_a_failure_matrix_is_refused(bad: list[object]) -> None:
    with pytest.raises(ValueError, match="0 and 1"):
        focal_diversity(bad)  # type: ignore[arg-type]


def test_votes_and_labels_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="labels"):
        plurality_accuracy([[0, 1]], [0, 1])


@settings(deadline=None)
@given(hnp.arrays(np.int8, st.tuples(st.integers(0, 12), st.integers(0, 5)), elements=st.integers(0, 1)))
def test_every_measure_is_finite_and_blind_to_the_order_of_models(fails: np.ndarray) -> None:
    for measure in MEASURES:
        value = measure(fails)
        assert -1 - 1e-9 <= value <= 1 + 1e-9
        assert measure(fails[:, ::-1]) == pytest.approx(value)
