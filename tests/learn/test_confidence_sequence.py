from __future__ import annotations

import numpy as np
import pytest

from focalroute.learn.gate import lower_bound


def test_without_values_nothing_is_known() -> None:
    assert lower_bound(np.zeros(0), np.zeros(0), alpha=0.05) == pytest.approx(-1)


def test_however_often_one_looks_it_is_hardly_ever_above_the_mean() -> None:
    """60 runs, each looked at 20 times, of values that are rarely large: the worst case for a lower bound."""
    rng, wrong = np.random.default_rng(0), 0
    for _ in range(60):
        values = np.where(rng.random(800) < 0.02, 49.0, -1.0)  # mean 0
        wrong += any(lower_bound(values[:n], np.ones(n), alpha=0.05) > 0 for n in range(40, 801, 40))
    assert wrong <= 0.05 * 60 + 3.4  # two standard errors


def test_it_finds_a_significantly_higher_mean_and_tightens_with_every_value() -> None:
    rng = np.random.default_rng(0)
    values = rng.uniform(-1, 1.2, 4000)  # mean .1
    early, late = (lower_bound(values[:n], np.ones(n), alpha=0.025) for n in (100, 4000))
    assert early < 0.04 < late < 0.1


def test_the_order_of_the_values_does_not_matter() -> None:
    values = np.random.default_rng(0).uniform(-1, 2, 50)
    forwards, backwards = (lower_bound(one, np.ones(50), alpha=0.1) for one in (values, values[::-1]))
    assert forwards == pytest.approx(backwards)
