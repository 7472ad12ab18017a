"""Statistics of the window by endpoint: worked out by hand, and many pools at once as each alone."""

from __future__ import annotations

import math

import numpy as np
import pytest

from focalroute.observe.accuracy import PRIOR_ASKS, PRIOR_LONG_RUN, shrunk_accuracy
from focalroute.observe.layout import ENDPOINT, slices, width
from focalroute.observe.observation import bounded_cost_weight
from focalroute.observe.pool_stats import (
    CallMeans,
    EndpointRows,
    PoolStats,
    PoolTotals,
    cost_penalties,
    relative_skills,
    rows_of,
)
from focalroute.observe.window import INFERRED_UNIT, Counts

NONE = np.zeros(2), np.zeros(2), 0.5, np.zeros(2)  # relative skill, relative accuracy, level, departure


def summary(*counts: Counts, prices: tuple[float | None, ...] = ()) -> PoolTotals:
    made = PoolTotals(prices or (None,) * len(counts))
    for i, c in enumerate(counts):
        made.update(i, c)
    return made


def known(n: int, right: int) -> Counts:
    return Counts(rows=n, known=n, right=right)


def rows(made: PoolTotals, offsets: tuple[float, ...], strengths: tuple[float, ...]) -> EndpointRows:
    """With relative skills as in the long run: nothing was asked together."""
    size = len(offsets)
    relative_skill = relative_skills(np.zeros((size, size)), np.zeros(size), np.array(offsets), np.array(strengths))
    pairs = np.full((size, size), 0.25) * (1 - np.eye(size))
    n, right = made.values().sum(axis=0)
    accuracy, level = shrunk_accuracy(n, right, np.array(offsets), np.array(strengths))
    names, none = tuple(map(str, range(size))), np.zeros(size)
    return made.stats(names, pairs, relative_skill, accuracy - level, float(level), none).rows


def expected_costs(made: PoolTotals) -> list[float | None]:
    """With nothing asked together, and no long run."""
    n = len(made.prices)
    names = tuple(map(str, range(n)))
    return made.stats(names, np.zeros((n, n)), np.zeros(n), np.zeros(n), 0.5, np.zeros(n)).expected_cost


def column(found: EndpointRows, name: str) -> np.ndarray:
    return found.columns[..., slices(ENDPOINT)[name].start]


def random_calls(shape: tuple[int, ...], seed: int = 0) -> CallMeans:
    """Costs and latencies, some of them 0 and some unknown."""
    rng = np.random.default_rng(seed)
    paid = rng.random((*shape, 2)) * (rng.random((*shape, 2)) < 0.9)
    there = rng.random((*shape, 2)) < 0.7
    return CallMeans(paid * there, there)


def test_level_accuracy_and_skill_with_a_long_run_by_hand() -> None:
    """30 of 40 and 10 of 20 right, a known to lie 0.1 above the others in the long run and b 0.1 below."""
    found = rows(summary(known(40, 30), known(20, 10)), (0.1, -0.1), (PRIOR_LONG_RUN, PRIOR_LONG_RUN))
    level = (40 - 40 * 0.1 + 20 * 0.1 + 1) / 62
    expected = [(30 + 50 * (level + 0.1)) / 90, (10 + 50 * (level - 0.1)) / 70]
    assert found.level == pytest.approx(level)
    assert found.skill == pytest.approx([level + 0.1, level - 0.1])
    assert column(found, "accuracy") == pytest.approx([4 * (a - level) for a in expected], abs=1e-6)
    assert column(found, "relative_skill") == pytest.approx([0.4, -0.4])
    assert column(found, "seen") == pytest.approx([40 / 60, 20 / 40])
    assert column(found, "focal").tolist() == [0.25, 0.25]


def test_relative_skills_of_two_by_hand_and_of_many_by_least_squares() -> None:
    """Of 40 rows in common a got 10 more right: 40 (2 t - 1/4)^2 + 50 (t - o)^2 + 50 (-t + o)^2 is least at t."""
    wins = np.array([10.0, -10.0])
    together = np.array([[0.0, 40.0], [40.0, 0.0]])
    for offset in (0.0, 0.1):
        t = (40 * 2 * 0.25 + 100 * offset) / (40 * 4 + 100)
        assert relative_skills(together, wins, np.array([offset, -offset]), np.full(2, 50.0)) == pytest.approx([t, -t])
    rng = np.random.default_rng(0)
    n, gaps = np.triu(rng.integers(0, 60, (5, 5)), 1), rng.normal(0, 0.2, (5, 5))
    offsets, strengths = rng.normal(0, 0.1, 5), rng.uniform(5, 50, 5)
    equations, values = [], []
    for i, j in zip(*np.triu_indices(5, 1), strict=True):
        equations.append(np.sqrt(n[i, j]) * (np.eye(5)[i] - np.eye(5)[j]))
        values.append(np.sqrt(n[i, j]) * gaps[i, j])
    equations += list(np.sqrt(strengths)[:, None] * np.eye(5))
    values += list(np.sqrt(strengths) * offsets)
    theta = np.linalg.lstsq(np.array(equations), np.array(values), rcond=None)[0]
    ahead = np.triu(gaps, 1) * n
    found = relative_skills((n + n.T).astype(float), (ahead - ahead.T).sum(axis=1), offsets, strengths)
    assert found == pytest.approx(theta - theta.mean())


def test_the_level_does_not_depend_on_which_endpoints_the_window_knows() -> None:
    """Asking the better one more often makes the queries no easier."""
    even = rows(summary(known(400, 320), known(400, 240)), (0.1, -0.1), (50.0, 50.0))
    skewed = rows(summary(known(4000, 3200), known(40, 24)), (0.1, -0.1), (50.0, 50.0))
    assert even.level == pytest.approx(0.7, abs=1e-3)
    assert skewed.level == pytest.approx(0.7, abs=1e-3)


def test_where_nothing_was_seen_the_long_run_is_believed() -> None:
    found = rows(summary(Counts(), Counts(), Counts()), (0.3, -0.3, 0.0), (50.0, 50.0, 10.0))
    assert found.level == 0.5
    assert column(found, "accuracy") == pytest.approx([1.2, -1.2, 0], abs=1e-6)
    far = rows(summary(Counts(), Counts()), (0.6, -0.6), (50.0, 50.0))
    assert column(far, "accuracy") == pytest.approx([4 * 0.48, -4 * 0.48], abs=1e-6)


def test_without_a_long_run_it_is_the_pools_mean_that_shrinks() -> None:
    """The mean of a Beta posterior whose prior of strength 10 sits at the pool's mean; inferred values count."""
    c = Counts(rows=8, known=4, right=1, inferred=4, inferred_sum=3 * INFERRED_UNIT)
    found = rows(summary(known(60, 48), c), (0.0, 0.0), (PRIOR_ASKS, PRIOR_ASKS))
    mean = (48 + 4 + 1) / (68 + 2)
    assert found.level == pytest.approx(mean)
    expected = [(48 + 10 * mean) / 70, (4 + 10 * mean) / 18]
    assert column(found, "accuracy") == pytest.approx([4 * (a - mean) for a in expected], abs=1e-6)


def test_accuracy_stays_within_the_layouts_bounds_however_wrong_the_long_run() -> None:
    found = rows(summary(known(10**6, 10**6), *[known(0, 0)] * 30), (-1.0, *[0.03] * 30), (50.0,) * 31)
    assert np.abs(found.columns).max() == 4


def test_many_pools_at_once_are_each_alone() -> None:
    calls = random_calls((3, 5, 4))
    rng = np.random.default_rng(1)
    seen = rng.integers(0, 200, (3, 5, 4)).astype(float)
    focal, relative_skill, relative_accuracy = rng.random((3, 3, 5, 4))
    level = rng.random((3, 5))
    together = rows_of(calls, seen, focal, relative_skill, relative_accuracy, level)
    assert together.columns.shape == (3, 5, 4, width(ENDPOINT))
    assert together.level.shape == (3, 5)
    for at in np.ndindex(3, 5):
        one = CallMeans(calls.values[at], calls.known[at])
        alone = rows_of(one, seen[at], focal[at], relative_skill[at], relative_accuracy[at], level[at])
        for name in ("skill", "level", "columns", "shares"):
            np.testing.assert_array_equal(getattr(together, name)[at], getattr(alone, name))


# --- what a call takes from the reward -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prices", "shares"),
    [
        ((0.1, 0.3, 0.6), (0.1, 0.3, 0.6)),
        ((0.0, 1.0, 3.0), (0.0, 0.25, 0.75)),
        ((1.0, None, 3.0), (1 / 6, 2 / 6, 3 / 6)),  # an unknown cost is the mean of the known ones
        ((None, None, None), (1 / 3, 1 / 3, 1 / 3)),
        ((0.0, 0.0, 0.0), (0, 0, 0)),
        ((0.0, None, 0.0), (0, 0, 0)),
    ],
)
def test_shares_of_asking_all(prices: tuple[float | None, ...], shares: tuple[float, ...]) -> None:
    made = summary(Counts(), Counts(), Counts(), prices=prices)
    assert rows(made, (0.0,) * 3, (10.0,) * 3).shares == pytest.approx(shares)


def test_expected_cost_follows_what_was_paid_and_prices_scale_with_it() -> None:
    """Calls cost twice their prices so far: who was not asked yet is expected to, too; no price counts as no prior."""
    paid = Counts(priced=15, cost_pico=15 * 2 * 10**12)
    some = Counts(priced=2, cost_pico=6 * 10**12)
    costs = expected_costs(summary(paid, Counts(), some, prices=(1.0, 3.0, None)))
    prior = 5 * (1.0 + 3.0) / 2
    scale = (prior + 30) / (prior + 15)
    assert costs == pytest.approx([(5 * scale + 30) / 20, 3 * scale, 3.0])
    assert expected_costs(summary(Counts(), prices=(None,))) == [None]


def test_prices_next_to_nothing_do_not_scale_with_what_was_paid() -> None:
    """Their multiple would be infinite, and the expected cost of who was not asked yet with it."""
    made = summary(Counts(priced=1, cost_pico=10**12), Counts(), prices=(2e-313, 2e-313))
    assert expected_costs(made) == pytest.approx([1 / 6, 0])


@pytest.mark.parametrize("cost_weight", [0.0, 1e-4, 0.1, 1.0, 30.0, 1e30])
def test_cost_penalties_at_several_lambdas(cost_weight: float) -> None:
    shares = np.array([0.0, 0.25, 0.75])
    found = cost_penalties(cost_weight * shares)
    paid = [cost_weight * x for x in shares]
    assert found.dtype == np.float32
    assert found[:, 0] == pytest.approx([min(x, 4) for x in paid])
    assert found[:, 1] == pytest.approx([min(math.log10(x + 1e-4), 1) for x in paid], abs=1e-6)


def test_rows_hold_the_cost_penalties_of_their_lambda_and_are_copies() -> None:
    made = summary(known(10, 5), known(10, 8), prices=(1.0, 3.0))
    stats = made.stats(("a", "b"), np.array([[0.0, 0.5], [0.5, 0.0]]), *NONE)
    at = slice(slices(ENDPOINT)["cost_penalty"].start, slices(ENDPOINT)["log_cost_penalty"].stop)
    for cost_weight in (0.1, 2.0, 0.1, *range(40), 0.1):
        found, logarithm = stats.columns(cost_weight)
        bounded = bounded_cost_weight(cost_weight)
        assert logarithm == math.log10(bounded)
        np.testing.assert_array_equal(found[:, at], cost_penalties(bounded * np.array([0.25, 0.75])))
        others = np.delete(found, np.r_[at], axis=1)
        np.testing.assert_array_equal(others, np.delete(stats.rows.columns, np.r_[at], axis=1))
        found[:] = 99.0
    assert not stats.rows.columns[:, at].any()


def test_a_query_that_costs_other_than_usual_is_seen_as_if_prices_were_others() -> None:
    """Equal to a pool with those prices; what has none stays unknown."""
    prices, factors = (1e-6, 4e-6, None), np.array([2.0, 0.1, 1.0])

    def stats(prices: tuple[float | None, ...]) -> PoolStats:
        none = np.zeros(3)
        return PoolTotals(prices).stats(("a", "b", "c"), np.zeros((3, 3)), none, none, 0.5, none)

    seen, expected = stats(prices).at(factors), stats((2e-6, 4e-7, None))
    assert seen.order == expected.order == (1, 0, 2)
    assert stats(prices).order == (0, 1, 2)
    assert seen.expected_cost == pytest.approx(expected.expected_cost)
    np.testing.assert_allclose(seen.rows.shares, expected.rows.shares)
    np.testing.assert_allclose(seen.columns(1)[0], expected.columns(1)[0], atol=1e-6)
    np.testing.assert_allclose(seen.typical_shares, expected.typical_shares)


def test_where_no_price_is_listed_what_calls_cost_is_the_price() -> None:
    """And so it is known who is cheapest, though in the pool's order the dear one comes first."""
    none = np.zeros(3)
    totals = PoolTotals((None, None, None))
    for index, pico in enumerate((30_000_000, 1_000_000)):
        totals.update(index, Counts(priced=2, cost_pico=2 * pico))
    stats = totals.stats(("a", "b", "c"), np.zeros((3, 3)), none, none, 0.5, none)
    assert stats.order == (1, 0, 2)
    np.testing.assert_allclose(stats.prices, [3e-5, 1e-6, np.nan])
    assert stats.typical_shares[1] < stats.typical_shares[2] < stats.typical_shares[0]


def test_disputed_answers_with_more_labels_count_as_often_as_among_all() -> None:
    totals = PoolTotals((None,))
    disputed, agreed = Counts(known=60, right=12), Counts(inferred=90, inferred_sum=81 * INFERRED_UNIT)
    totals.update(0, disputed, agreed, (disputed, Counts()))
    bias = np.array([[-0.1], [0.0]])
    assert totals.values(bias, disputed_share=0.1)[..., 0].tolist() == [[10, 2], [90, 72]]
    assert totals.values(bias, disputed_share=0.9)[0, :, 0].tolist() == [60, 12]  # never more than they are
    totals.update(0, disputed, Counts(), (disputed, Counts()))
    assert totals.values(bias, disputed_share=0.1)[0, :, 0].tolist() == [60, 12]  # every answer has a label
