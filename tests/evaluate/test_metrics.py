"""Scores and paired comparisons: ratios of sums, blocks, and what "beats" means."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import t as student

from focalroute.evaluate.metrics import BLOCK, compare, interval, mixed, score, student_quantile
from focalroute.evaluate.replay import ReplayResult


def _played(worth: object, usd: float = 1.0, calls: int = 2) -> ReplayResult:
    values = np.asarray(worth, np.float64)
    asked = np.zeros((len(values), 4), bool)
    asked[:, :calls] = True
    return ReplayResult(values, np.full(len(values), usd), asked)


def test_a_score_is_means_and_a_ratio_of_sums() -> None:
    scored = score("m", [_played([1, 0, 0.5, 0.5], usd=0.25)], ask_all_usd=4.0)
    assert (scored.name, scored.accuracy, scored.cost_usd_per_query) == ("m", 0.5, 0.25)
    assert (scored.cost_ratio, scored.calls_per_query) == (0.25, 2.0)


def test_a_free_pool_has_cost_ratio_zero() -> None:
    assert score("m", [_played([1], usd=0.0)], ask_all_usd=0.0).cost_ratio == 0


def test_the_interval_of_independent_rows_is_the_normal_one() -> None:
    """1,000 blocks of coin flips: mean +- 1.96 sd / sqrt(n), within the bootstrap's own noise."""
    flips = np.random.default_rng(0).integers(2, size=1000 * BLOCK).astype(np.float64)
    low, high = interval([flips])
    half = 1.96 * flips.std() / np.sqrt(len(flips))
    assert (high - low) / 2 == pytest.approx(half, rel=0.1)
    assert low < flips.mean() < high


def test_a_short_test_part_has_an_interval_all_the_same() -> None:
    """One block of 50 rows would say that 40 coin flips are known for sure."""
    flips = np.random.default_rng(3).integers(2, size=40).astype(np.float64)
    low, high = interval([flips])
    assert low + 0.2 < high
    assert low <= flips.mean() <= high


def test_rows_that_are_all_the_same_do_not_make_sure() -> None:
    """Clopper and Pearson's interval: of rows that are right with its lower end, 2.5 % of samples are all right."""
    assert interval([np.ones(1)]) == pytest.approx((0.025, 1))
    assert interval([np.ones(40)]) == pytest.approx((0.025 ** (1 / 40), 1))
    assert interval([np.zeros(40)] * 3) == pytest.approx((0, 1 - 0.025 ** (1 / 40)))
    low, high = interval([np.full(40, 0.5)])
    assert 0.4 < low < 0.5 < high < 0.6
    same = compare({"same": ([_played(np.ones(20))], [_played(np.ones(20))])})["same"]
    assert same.ci95 == pytest.approx((0.025 ** (1 / 20) - 1, 1 - 0.025 ** (1 / 20)))
    assert not same.no_worse


def test_rows_that_come_in_runs_widen_the_interval() -> None:
    """The same values sorted into blocks carry far less evidence."""
    even = np.tile([0.0, 1.0], 20 * BLOCK)
    low, high = interval([np.sort(even)])
    assert high - low > 0.2
    assert interval([even]) == pytest.approx((0.5, 0.5), abs=0.001)


def test_seeds_share_the_luck_of_their_rows() -> None:
    """Playing the same rows again is no new evidence: five equal seeds are as wide as one."""
    flips = np.random.default_rng(4).integers(2, size=2000).astype(np.float64)
    assert interval([flips] * 5) == interval([flips])
    assert interval([flips, 1 - flips]) == pytest.approx(
        (0.5, 0.5), abs=0.001
    )  # while what one seed loses on a row another gains


def test_scores_of_several_seeds_are_their_means() -> None:
    both = [_played([1, 1, 1, 0], usd=0.1, calls=1), _played([1, 0, 0, 0], usd=0.3, calls=3)]
    scored = score("m", both, ask_all_usd=4.0)
    assert (scored.accuracy, scored.calls_per_query) == (0.5, 2.0)
    assert scored.cost_ratio == pytest.approx(0.2)
    assert scored.cost_usd_per_query == pytest.approx(0.2)


def test_a_mixture_is_the_expectation_of_a_coin() -> None:
    found = mixed([_played([1, 0], usd=1.0)], [_played([0, 0], usd=5.0)], 0.25)
    assert found[0].worth.tolist() == [0.75, 0]
    assert found[0].usd.tolist() == [2.0, 2.0]
    with pytest.raises(ValueError, match="shorter"):
        mixed([_played([1])], [], 0.5)


@pytest.mark.parametrize(("rows", "runs", "apart"), [(60, 1, 0.0), (60, 5, 0.0), (1000, 5, 0.03)])
def test_intervals_hold_the_truth_in_95_percent(rows: int, runs: int, apart: float) -> None:
    """Runs share the luck of most rows; each may be better or worse than the mean run by a little."""
    rng = np.random.default_rng(5)
    held = 0
    for _ in range(500):
        rare = rng.random(rows)
        drawn = [np.where(rng.random(rows) < 0.7, rare, rng.random(rows)) for _ in range(runs)]
        low, high = interval([(one < 0.7 + apart * rng.standard_normal()).astype(np.float64) for one in drawn])
        held += low <= 0.7 <= high
    assert 0.93 <= held / 500 <= 0.97


def test_all_of_many_comparisons_hold_together() -> None:
    """Twenty methods that are as good as the one they are compared with."""
    rng = np.random.default_rng(6)
    alone = together = 0
    for _ in range(60):
        own, *others = (_played(rng.integers(2, size=600)) for _ in range(21))
        pairs = {n: ([own], [other]) for n, other in enumerate(others)}
        together += all(low <= 0 <= high for low, high in (one.ci95 for one in compare(pairs).values()))
        alone += all(low <= 0 <= high for low, high in (compare({n: pair})[n].ci95 for n, pair in pairs.items()))
    assert alone < 45
    assert together >= 54


@pytest.mark.parametrize("tail", [0.025, 0.0008])
@pytest.mark.parametrize("freedom", [1.0, 1.7, 9.0, 400.0])
def test_students_quantiles_are_scipys(tail: float, freedom: float) -> None:
    assert student_quantile(tail, freedom) == pytest.approx(student.isf(tail, freedom), rel=1e-4)


def test_beats_and_no_worse_go_by_the_lower_bound() -> None:
    rng = np.random.default_rng(2)
    base = rng.integers(2, size=4000).astype(np.float64)
    better = np.where(rng.random(4000) < 0.1, 1.0, base)
    up, down, same = (
        compare({"only": ([_played(a)], [_played(b)])})["only"]
        for a, b in ((better, base), (base, better), (base, base))
    )
    assert up.beats
    assert up.no_worse
    assert not down.beats
    assert not down.no_worse
    assert (same.difference, same.beats, same.no_worse) == (0, False, True)
    assert up.ci95[0] < up.difference < up.ci95[1]


def test_seeds_are_pooled_and_rows_must_pair_up() -> None:
    ones, zeros = _played(np.ones(100)), _played(np.zeros(100))
    assert compare({"a": ([ones, zeros], [zeros, zeros])})["a"].difference == 0.5
    with pytest.raises(ValueError, match="same rows"):
        compare({"a": ([ones], [ones, zeros])})
    with pytest.raises(ValueError, match="same rows"):
        compare({"a": ([ones], [_played([1.0])])})
