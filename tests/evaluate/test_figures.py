"""What the page of an evaluation draws, on a test part small enough to count by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from focalroute.evaluate.eval_result import BESIDE, Figures, asked_by_round, asked_by_task, figures
from focalroute.evaluate.playing import EvaluationRuns, PointRun
from focalroute.evaluate.replay import ReplayResult
from focalroute.evaluate.report_page.drawings import BINS, MOST_TASKS
from focalroute.observe.diversity import focal_diversity
from focalroute.observe.drift import Change
from tests.evaluate.logs import Line, closed, table_of

# Whether a, b and c are right; None: no output. The first line is for training.
RIGHT = [(1, 1, 1), (1, 1, 0), (1, 0, 0), (0, 0, 0), (1, 1, 1), (0, 1, None)]
PLANS = [((0,), (1, 2)), ((0,), ()), ((1,),), ((1, 0),), ((2,), (0,), (1,))]

CHANGES = ((3, "b", Change(0.9, 0.2, 8)),)


def lines() -> list[Line]:
    found = []
    for n, row in enumerate(RIGHT):
        answers = {name: 0 if right else 1 for name, right in zip("abc", row, strict=True) if right is not None}
        found.append(closed(n, answers, task=("x", "y")[n % 2]))
    return found


def played(worth: list[float], plan: list[tuple[tuple[int, ...], ...]]) -> ReplayResult:
    asked = np.zeros((5, 3), bool)
    for n, rounds in enumerate(plan):
        for picked in rounds:
            asked[n, list(picked)] = True
    return ReplayResult(np.array(worth), np.ones(5), asked, seconds=np.ones(5))


@pytest.fixture
def replayed(tmp_path: Path) -> EvaluationRuns:
    """Two seeds; the second asks as the first does and gets one more right."""
    table = table_of(tmp_path, lines(), dict.fromkeys("abc", 1.0))
    runs = (
        PointRun(played([1, 0, 0, 1, 0], PLANS), PLANS, np.array([0.95, 0.35, np.nan, 1.0, 0.32]), CHANGES),
        PointRun(played([1, 1, 0, 1, 0], PLANS), PLANS, np.array([0.97, 0.55, np.nan, 1.0, 0.38])),
    )
    other = played([0, 1, 0, 1, 1], PLANS)
    return EvaluationRuns(table, np.arange(1, 6), (runs,), dict.fromkeys(BESIDE, (other, other)), 0)


@pytest.fixture
def found(replayed: EvaluationRuns) -> Figures:
    return figures(replayed, "focalroute @ 0.2", "accuracy")


def test_shares_by_round_are_of_the_queries(replayed: EvaluationRuns) -> None:
    """A round that asked nobody is none."""
    assert (5 * asked_by_round(replayed)).round(9).tolist() == [[3, 2, 1], [1, 1, 1], [0, 1, 0]]


def test_shares_by_task_are_of_its_queries(found: Figures) -> None:
    assert found.tasks is not None
    assert (found.tasks.rows, found.tasks_left) == (("x", "y"), 0)
    assert np.array(found.tasks.values) == pytest.approx(np.array([[2 / 2, 1 / 2, 0], [2 / 3, 1, 2 / 3]]), abs=1e-6)


def test_of_many_tasks_the_largest_are_kept(tmp_path: Path) -> None:
    """And a query without one is in none."""
    given = [closed(n, {"a": 0}, task=f"t{n}") for n in range(MOST_TASKS + 3)]
    given += [closed(100, {"a": 0}, task="t26"), closed(101, {"a": 0})]
    table = table_of(tmp_path, given, {"a": 1.0})
    n = len(given)
    run = PointRun(ReplayResult(np.ones(n), np.ones(n), np.ones((n, 1), bool)), [((0,),)] * n, np.ones(n))
    tasks, left = asked_by_task(EvaluationRuns(table, np.arange(n), ((run,),), {}, 0))
    assert tasks is not None
    assert (len(tasks.rows), left, len(tasks.values)) == (MOST_TASKS, 3, MOST_TASKS)
    assert "t26" in tasks.rows


def test_diversity_is_of_the_rows_that_both_answered(found: Figures) -> None:
    rows = found.diversity.values
    assert [rows[n][n] for n in range(3)] == [None] * 3
    assert rows[0][1] == rows[1][0]
    assert rows[0][1] == pytest.approx(focal_diversity([[0, 0], [0, 1], [1, 1], [0, 0], [1, 0]]), abs=1e-6)
    assert rows[0][2] == pytest.approx(focal_diversity([[0, 1], [0, 1], [1, 1], [0, 0]]), abs=1e-6)


def test_consensus_counts_the_endpoints_that_are_right(found: Figures) -> None:
    ours, other, _ = found.when_right.lines
    assert found.when_right.rows == (1, 2, 1, 1)
    assert ours.values == (0, 0.25, 1, 1)
    assert other.values == (0, 1, 0, 1)


def test_corrected_and_spoilt_are_shares_of_all_rows_and_seeds(found: Figures, replayed: EvaluationRuns) -> None:
    one = found.errors.found["plurality"]
    assert (one.corrected, one.spoilt, one.errors, one.queries) == pytest.approx((2 / 10, 3 / 10, 4 / 10, 5))
    gain = replayed.worth().mean() - replayed.worth("plurality").mean()
    assert one.corrected - one.spoilt == pytest.approx(gain)


def test_calibration_leaves_out_what_was_not_answered(found: Figures) -> None:
    one = found.calibration
    assert one.count == (0, 0, 0, 0, 1, 2, 0, 0, 1, 0, 0, 0, 0, 0, 4)
    assert one.confidence[5] == pytest.approx((0.35 + 0.38) / 2)
    assert (one.quality[0], one.quality[5], one.quality[8], one.quality[14]) == (None, 0, 1, 1)
    error = (3 * 0.35 + 1 * 0.45 + 4 * (1 - (0.95 + 0.97 + 2) / 4)) / 8
    assert one.expected_error == pytest.approx(error, abs=1e-6)


def test_without_answers_there_is_no_calibration_error(replayed: EvaluationRuns) -> None:
    (runs,) = replayed.ours
    none = PointRun(runs[0].played, PLANS, np.full(5, np.nan))
    found = figures(EvaluationRuns(replayed.table, replayed.test, ((none,),), replayed.others, 0), "ours", "accuracy")
    assert found.calibration.count == (0,) * BINS
    assert found.calibration.expected_error is None


def test_means_roll_and_changes_stand_where_they_were_noticed(found: Figures) -> None:
    drawn = found.over_time
    assert (drawn.width, drawn.at) == (1, (1, 2, 3, 4, 5))
    assert drawn.lines[0].values == (1, 0.5, 0, 1, 0)
    assert drawn.cost[0] == pytest.approx(1 / 3.3e-4, rel=1e-3)
    assert [(mark.at, mark.what) for mark in drawn.marks] == [(4, "b was right 20% of the last 8 times, 90% before")]
