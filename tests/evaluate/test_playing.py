"""Operating points: the curve between them, and how each is held."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from focalroute.evaluate.metrics import Score, compare, on_curve
from focalroute.evaluate.playing import PolicyReplay
from focalroute.evaluate.replay import ReplayResult, Training
from focalroute.evaluate.table import Split
from focalroute.policy.bundle import load
from tests.evaluate.logs import stream, table_of
from tests.policies import ask_the_affordable

ROWS = 200


def played(worth: float, usd: float) -> ReplayResult:
    """So many of 200 rows right, at this cost each; everybody costs 1."""
    right = np.arange(ROWS) % 100 < 100 * worth
    return ReplayResult(right.astype(np.float64), np.full(ROWS, usd), np.ones((ROWS, 1), bool))


def scored(worth: float, cost: float) -> Score:
    return Score("m", worth, (worth, worth), cost, cost, 1.0)


# Out of order, and the dearest is not the best.
CURVE = ((0.8, 0.5), (0.5, 0.1), (0.7, 1.0))
POINTS = [scored(*point) for point in CURVE]
RUNS = [[played(*point)] for point in CURVE]


@pytest.mark.parametrize(
    ("cost", "height"), [(0.1, 0.5), (0.2, 0.575), (0.4, 0.725), (0.5, 0.8), (0.75, 0.75), (1.0, 0.7), (1.3, 0.7)]
)
def test_the_curve_is_linear_between_its_points_and_level_beyond(cost: float, height: float) -> None:
    """Where it falls, too: which point is best is not picked by the rows that are compared."""
    found = on_curve(cost, POINTS, RUNS)
    assert found is not None
    assert found[0].worth.mean() == pytest.approx(height)
    minus = compare({"a": (found, [played(0.6, cost)])})["a"]
    assert minus.ci95[0] - 1e-12 <= minus.difference == pytest.approx(height - 0.6)
    assert minus.ci95[1] >= minus.difference - 1e-12


def test_below_the_cost_of_every_point_there_is_no_curve() -> None:
    assert on_curve(0.09, POINTS, RUNS) is None


def test_all_seeds_take_part() -> None:
    """The method is compared seed by seed with the curve of that seed."""
    runs = [[played(0.4, 0.1), played(0.6, 0.1)], [played(0.8, 0.5), played(0.8, 0.5)]]
    found = on_curve(0.3, [POINTS[1], POINTS[0]], runs)
    assert found is not None
    minus = compare({"a": (found, [played(0.6, 0.3), played(0.4, 0.3)])})["a"]
    assert minus.difference == pytest.approx((0.5 + 0.8) / 2 - 0.5)


def test_a_point_is_held_on_the_test_part_and_shuffled_makes_its_calls(tmp_path: Path) -> None:
    prices = {"a": 1.0, "b": 2.0, "c": 4.0, "d": 8.0}
    table = table_of(tmp_path, stream(600, dict.fromkeys(prices, 0.7)), prices)
    rows = np.arange(600)
    served = PolicyReplay(
        load(ask_the_affordable(tmp_path / "policy")),
        table,
        Split(rows[:100], rows[100:]),
        Training(table, rows[:100], 0),
        explore=False,
        advance=lambda _: None,
    )
    run = served.run(0.3)
    assert run.played.usd.sum() / table.usd[100:].sum() == pytest.approx(0.3, rel=0.03)
    assert len(run.plan) == len(run.confidence) == 500
    shuffled = served.shuffled(run.plan, 0.3)
    assert shuffled.asked.sum() == run.played.asked.sum()
    assert (shuffled.asked != run.played.asked).any()
