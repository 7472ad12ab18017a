"""Focal diversity against values worked out by hand, and its stated edge cases."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from focalroute.observe.diversity import focal_diversity, focal_negative_correlation, pair_focal_diversity

# s = 3, 2, 1, 1, 0 failures by row; n = 3, 2, 2 by model.
FAILS = [[1, 1, 1], [1, 1, 0], [1, 0, 0], [0, 0, 1], [0, 0, 0]]


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


def test_a_model_that_never_failed_counts_one() -> None:
    assert focal_negative_correlation([[0, 1], [0, 1]]).tolist() == [1, 1]
    assert focal_negative_correlation([[0, 1, 1]]).tolist() == [1, 0.5, 0.5]
    assert focal_diversity([[0, 0], [0, 0]]) == 1


@pytest.mark.parametrize("bad", [[1, 0], [[0.5, 1]], [[float("nan"), 0]], [[2, 0]]])
def test_what_is_not_a_failure_matrix_is_refused(bad: list[object]) -> None:
    with pytest.raises(ValueError, match="0 and 1"):
        focal_diversity(bad)  # type: ignore[arg-type]


def test_edge_cases_have_the_stated_values() -> None:
    assert focal_diversity([[1], [0]]) == focal_diversity(np.zeros((3, 0))) == 0
    assert focal_diversity([[1, 1], [1, 1]]) == 0
    assert focal_diversity(np.zeros((0, 3))) == 1


@given(hnp.arrays(np.int8, st.tuples(st.integers(20, 40), st.just(2)), elements=st.integers(0, 1)))
def test_a_pair_by_its_counts_is_as_defined(fails: np.ndarray) -> None:
    one, other = fails.sum(axis=0)
    both = fails.prod(axis=1).sum()
    assert pair_focal_diversity(len(fails), one, other, both) == pytest.approx(focal_diversity(fails))
    assert focal_diversity(fails[:, ::-1]) == pytest.approx(focal_diversity(fails))


def test_a_pair_with_few_common_rows_is_shrunk_towards_a_third() -> None:
    """Unseen; one row that both failed: q = (1 + 2) / (1 + 4); and as many pairs at once."""
    found = pair_focal_diversity(np.array([0, 1]), np.array([0, 1]), np.array([0, 1]), np.array([0, 1]))
    assert found == pytest.approx([1 / 3, (1 - 0.6) / (1 + 0.6)])
