"""What the page's plots show, on a test part small enough to count by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from focalroute.evaluate.html.labels import places
from focalroute.evaluate.html.numbers import (
    BINS,
    MOST_TASKS,
    asked_by_round,
    asked_by_task,
    calibration,
    consensus,
    corrected,
    pairwise_diversity,
    rolling,
)

from focalroute.evaluate.replay import Played
from focalroute.evaluate.replayed import Replayed, Run
from focalroute.observe.diversity import focal_diversity
from tests.evaluate.logs import Line, closed, table_of

# Whether a, b and c are right; None: no output. The first line is for training.
RIGHT = [(1, 1, 1), (1, 1, 0), (1, 0, 0), (0, 0, 0), (1, 1, 1), (0, 1, None)]
PLANS = [((0,), (1, 2)), ((0,), ()), ((1,),), ((1, 0),), ((2,), (0,), (1,))]


def lines() -> list[Line]:
    found = []
    for n, row in enumerate(RIGHT):
        answers = {name: 0 if right else 1 for name, right in zip("abc", row, strict=True) if right is not None}
        found.append(closed(n, answers, task=("x", "y")[n % 2]))
    return found


def played(worth: list[float], plan: list[tuple[tuple[int, ...], ...]]) -> Played:
    asked = np.zeros((5, 3), bool)
    for n, rounds in enumerate(plan):
        for picked in rounds:
            asked[n, list(picked)] = True
    return Played(np.array(worth), np.ones(5), asked)


@pytest.fixture
def replayed(tmp_path: Path) -> Replayed:
    """Two seeds; the second asks as the first does and gets one more right."""
    table = table_of(tmp_path, lines(), dict.fromkeys("abc", 1.0))
    runs = (
        Run(played([1, 0, 0, 1, 0], PLANS), PLANS, np.array([0.95, 0.35, np.nan, 1.0, 0.32])),
        Run(played([1, 1, 0, 1, 0], PLANS), PLANS, np.array([0.97, 0.55, np.nan, 1.0, 0.38])),
    )
    other = played([0, 1, 0, 1, 1], PLANS)
    return Replayed(table, np.arange(1, 6), (runs,), {"other": (other, other)}, 0)


def test_shares_by_round_are_of_the_queries(replayed: Replayed) -> None:
    """A round that asked nobody is none."""
    assert (5 * asked_by_round(replayed)).round(9).tolist() == [[3, 2, 1], [1, 1, 1], [0, 1, 0]]


def test_shares_by_task_are_of_its_queries(replayed: Replayed) -> None:
    tasks, shares, left = asked_by_task(replayed)
    assert (tasks, left) == (("x", "y"), 0)
    assert shares.tolist() == pytest.approx(np.array([[2 / 2, 1 / 2, 0], [2 / 3, 1, 2 / 3]]))


def test_of_many_tasks_the_largest_are_kept(tmp_path: Path) -> None:
    """And a query without one is in none."""
    given = [closed(n, {"a": 0}, task=f"t{n}") for n in range(MOST_TASKS + 3)]
    given += [closed(100, {"a": 0}, task="t26"), closed(101, {"a": 0})]
    table = table_of(tmp_path, given, {"a": 1.0})
    n = len(given)
    run = Run(Played(np.ones(n), np.ones(n), np.ones((n, 1), bool)), [((0,),)] * n, np.ones(n))
    tasks, shares, left = asked_by_task(Replayed(table, np.arange(n), ((run,),), {}, 0))
    assert (len(tasks), left, shares.shape) == (MOST_TASKS, 3, (MOST_TASKS, 1))
    assert "t26" in tasks


def test_diversity_is_of_the_rows_that_both_answered(replayed: Replayed) -> None:
    found = pairwise_diversity(replayed)
    assert np.isnan(found.diagonal()).all()
    assert found[0, 1] == found[1, 0] == pytest.approx(focal_diversity([[0, 0], [0, 1], [1, 1], [0, 0], [1, 0]]))
    assert found[0, 2] == pytest.approx(focal_diversity([[0, 1], [0, 1], [1, 1], [0, 0]]))


def test_consensus_counts_the_endpoints_that_are_right(replayed: Replayed) -> None:
    rows, worth = consensus(replayed)
    assert rows.tolist() == [1, 2, 1, 1]
    assert worth.tolist() == [0, 0.25, 1, 1]
    assert consensus(replayed, "other")[1].tolist() == [0, 1, 0, 1]


def test_corrected_and_spoilt_are_shares_of_all_rows_and_seeds(replayed: Replayed) -> None:
    found = corrected(replayed, "other")
    assert (found.corrected, found.spoilt, found.errors) == pytest.approx((2 / 10, 3 / 10, 4 / 10))
    gain = replayed.worth().mean() - replayed.worth("other").mean()
    assert found.corrected - found.spoilt == pytest.approx(gain)


def test_calibration_leaves_out_what_was_not_answered(replayed: Replayed) -> None:
    found = calibration(replayed)
    assert found.count.tolist() == [0, 0, 0, 3, 0, 1, 0, 0, 0, 4]
    assert found.confidence[3] == pytest.approx((0.35 + 0.32 + 0.38) / 3)
    assert (found.accuracy[3], found.accuracy[5], found.accuracy[9]) == (0, 1, 1)
    assert np.isnan(found.accuracy[0])
    error = (3 * 0.35 + 1 * 0.45 + 4 * (1 - (0.95 + 0.97 + 2) / 4)) / 8
    assert found.expected_error == pytest.approx(error)


def test_without_answers_there_is_no_calibration_error(replayed: Replayed) -> None:
    (runs,) = replayed.ours
    none = Run(runs[0].played, PLANS, np.full(5, np.nan))
    found = calibration(Replayed(replayed.table, replayed.test, ((none,),), {}, 0))
    assert found.count.tolist() == [0] * BINS
    assert np.isnan(found.expected_error)


def test_a_rolling_mean_has_a_full_window_everywhere() -> None:
    assert rolling(np.arange(5.0), 3).tolist() == [1, 2, 3]
    assert rolling(np.arange(3.0), 1).tolist() == [0, 1, 2]


def test_labels_keep_off_points_and_each_other_and_stay_inside() -> None:
    """Five points on a heap in a corner, with lines through them."""
    points = [(188.0, 100.0), (190.0, 101.0), (186.0, 99.0), (189.0, 103.0), (187.0, 96.0)]
    widths = [40.0, 50.0, 30.0, 60.0, 45.0]
    lines = [(x - 1, 60.0, x + 1, 140.0) for x, _ in points]
    found = places(points, widths, height=10, lines=lines, within=(0, 0, 200, 200))
    boxes = [place.box(width, 10) for place, width in zip(found, widths, strict=True)]
    for n, (left, bottom, right, top) in enumerate(boxes):
        assert left >= 0
        assert right <= 200
        assert not any(left < x < right and bottom < y < top for x, y in points)
        assert not any(left < c and a < right and bottom < d and b < top for a, b, c, d in boxes[n + 1 :])
