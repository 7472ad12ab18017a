"""The papers' rewards, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from focalroute.evaluate.presets import der_bonus, der_reward, eq6


@pytest.mark.parametrize(
    ("u", "asked", "expected"),
    [
        (1, 2, 1.0),
        (1, 8, 1.0),  # size costs nothing where the answer is right
        (-1, 2, -1 - 0.1 * 2 / 8),
        (-1, 8, -1.1),
        (0.5, 8, 0.5),
        (0.0, 8, 0.0),
        (-0.5, 4, -0.55),
    ],
)
def test_eq6(u: float, asked: int, expected: float) -> None:
    assert float(eq6(u, asked, 8, alpha=0.1)) == pytest.approx(expected)


def test_eq6_without_a_penalty_is_the_fusions_reward() -> None:
    u = np.array([[1.0, -1.0], [0.25, -0.75]])
    assert eq6(u, np.full((2, 2), 5), 8, alpha=0.0).tolist() == u.tolist()


@pytest.mark.parametrize(
    ("quality", "before", "level", "expected"),
    [
        (0.75, None, True, 0.75 - 0.05),
        (0.75, None, False, 0.75 - 0.05),
        (0.75, 0.25, True, 0.75 + 2 * 0.5 - 0.05),
        (0.75, 0.25, False, 2 * 0.5 - 0.05),
        (0.25, 0.75, True, 0.25 - 2 * 0.5 - 0.05),
        (0.25, 0.75, False, -2 * 0.5 - 0.05),
    ],
)
def test_ders_reward(quality: float, before: float | None, level: bool, expected: float) -> None:
    assert float(der_reward(quality, before, 0.5, alpha=0.1, beta=2.0, level=level)) == pytest.approx(expected)


def test_paid_at_every_step_ders_reward_favours_long_routes_and_the_gain_does_not() -> None:
    """Two experts that both are right: the second adds nothing but its cost."""
    one, two = (
        [
            float(der_reward(1.0, None, 0.5, alpha=0.1, beta=1.0, level=level)),
            float(der_reward(1.0, 1.0, 0.5, alpha=0.1, beta=1.0, level=level)),
        ]
        for level in (True, False)
    )
    assert sum(one) == pytest.approx(2 - 0.1)
    assert sum(two) == pytest.approx(1 - 0.1)


def test_the_gains_add_up_to_the_last_quality() -> None:
    qualities, cost = [0.2, 0.9, 0.4], 0.25
    before = [None, *qualities]
    earned = sum(
        float(der_reward(p, b, cost, alpha=0.1, beta=1.0, level=False)) for p, b in zip(qualities, before, strict=False)
    )
    assert earned == pytest.approx(0.4 - 3 * 0.1 * cost)


def test_ders_bonus_is_for_the_threshold_and_against_missing_it_at_the_end() -> None:
    found = der_bonus([0.5, 0.5, 0.49, 0.49], [False, True, False, True], threshold=0.5, bonus=0.7)
    assert found.tolist() == [0.7, 0.7, 0.0, -0.7]
