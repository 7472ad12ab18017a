"""Accuracy from windows of several lengths: which of them count, and what each endpoint's estimate is."""

from __future__ import annotations

import numpy as np
import pytest

from focalroute.observe.accuracy import (
    PRIOR_ASKS,
    PRIOR_LONG_RUN,
    RecentOutcomes,
    averaged,
    departures,
    discounted_sums,
    log_losses,
    relative_accuracies,
    shrunk_accuracy,
)

WINDOW = 500
NONE, WEAK, LONG_RUN = np.zeros(2), np.full(2, float(PRIOR_ASKS)), np.full(2, float(PRIOR_LONG_RUN))
NOTHING = np.zeros((2, 2, 2))


def learned(right: np.ndarray, strengths: np.ndarray = LONG_RUN) -> tuple[RecentOutcomes, np.ndarray]:
    """The shorter windows after these rows, and the counts of the whole one."""
    recent, counts = RecentOutcomes(2, WINDOW), NOTHING.copy()
    for at, row in enumerate(right):
        recent.learn(str(at), row, counts, NONE, strengths)
        rows = right[max(0, at + 1 - WINDOW) : at + 1]
        counts[0] = (~np.isnan(rows)).sum(axis=0), np.nansum(rows, axis=0)
    return recent, counts


def exchanged() -> np.ndarray:
    """Two endpoints are exchanged after 400 rows, of 480."""
    rng = np.random.default_rng(0)
    right = np.concatenate([rng.random((400, 2)) < (0.9, 0.3), rng.random((80, 2)) < (0.3, 0.9)])
    return right.astype(np.float64)


def test_without_labels_all_windows_are_the_pool_s() -> None:
    n, right = np.array([[40.0, 10.0], [30.0, 4.0]])
    accuracy, level = shrunk_accuracy(n, right, NONE, LONG_RUN)
    counts = np.array([np.zeros((2, 2)), [n, right]])
    found, found_level = RecentOutcomes(2, WINDOW).relative_accuracy(counts, NONE, LONG_RUN)
    assert found == pytest.approx(accuracy - level)
    assert found_level == level


def test_where_nothing_changes_it_stays_near_the_long_window_s() -> None:
    right = np.random.default_rng(0).random((900, 2)) < (0.8, 0.4)
    recent, counts = learned(right.astype(np.float64))
    found, _ = recent.relative_accuracy(counts, NONE, LONG_RUN)
    assert found == pytest.approx(recent.estimates(counts, NONE, LONG_RUN)[0][0], abs=0.05)


def test_where_the_topic_changes_the_shorter_windows_count() -> None:
    """The long window still believes the endpoint that was better for 400 rows."""
    recent, counts = learned(exchanged())
    whole = recent.estimates(counts, NONE, LONG_RUN)[0][0]
    assert whole[0] > whole[1]
    found, _ = recent.relative_accuracy(counts, NONE, LONG_RUN)
    assert found[1] > found[0]


def test_an_endpoint_without_a_long_run_keeps_its_record_in_the_pool_s_window() -> None:
    recent, counts = learned(exchanged(), WEAK)
    (relative, _), (found, _) = (of(counts, NONE, WEAK) for of in (recent.estimates, recent.relative_accuracy))
    n, right = counts[0]
    accuracy, level = shrunk_accuracy(n, right, NONE, WEAK)
    assert (relative == accuracy - level).all()
    assert found == pytest.approx(accuracy - level)


def test_only_an_endpoint_with_a_long_run_departs_from_it() -> None:
    relative, offsets = np.array([0.1, -0.1]), np.array([0.3, 0.0])
    assert departures(relative, offsets, np.array([50.0, PRIOR_ASKS])).tolist() == pytest.approx([-0.2, 0])


def test_an_endpoint_asked_alone_lately_does_not_become_the_level() -> None:
    """All recent rows are of the worse endpoint: by these alone it would be as good as the pool."""
    n, right = np.array([[[200.0, 100.0], [0.0, 60.0]]]), np.array([[[180.0, 30.0], [0.0, 18.0]]])
    relative, levels = relative_accuracies(n, right, NONE, LONG_RUN)
    assert levels[0, 1] == pytest.approx(levels[0, 0], abs=0.15)
    assert relative[0, 1, 1] < -0.1
    assert relative[0, 1, 0] == pytest.approx(0)  # not seen lately: its long run


def test_labels_that_are_corrected_or_forgotten_leave_no_trace_in_the_estimates() -> None:
    rows = (np.random.default_rng(1).random((200, 2)) < 0.5).astype(np.float64)
    recent, counts = learned(rows)
    other, _ = learned(np.where(np.arange(200)[:, None] < 180, rows, 1 - rows))
    for at in range(180, 200):
        other.learn(str(at), rows[at], counts, NONE, LONG_RUN)
    assert np.array_equal(other.estimates(counts, NONE, LONG_RUN)[0], recent.estimates(counts, NONE, LONG_RUN)[0])
    recent.forget(0, 5)
    anew, _ = learned(np.where((np.arange(200)[:, None] < 195) & [True, False], np.nan, rows))
    assert np.array_equal(anew.estimates(counts, NONE, LONG_RUN)[0], recent.estimates(counts, NONE, LONG_RUN)[0])


def test_rows_at_once_are_those_one_by_one() -> None:
    rng = np.random.default_rng(2)
    relative, levels = rng.uniform(-0.4, 0.4, (30, 3, 2)), rng.random((30, 3))
    known = (rng.random((30, 2)) < 0.7).astype(np.float64)
    right = rng.random((30, 2)) * known
    against = discounted_sums(log_losses(relative, levels, known, right), known.sum(axis=1))
    now = np.zeros(3)
    for t in range(30):
        assert against[t] == pytest.approx(now)
        weights = np.exp(-now) / np.exp(-now).sum()
        assert averaged(relative[t], against[t]) == pytest.approx(weights @ relative[t])
        now = now * 0.998 ** known[t].sum() + log_losses(relative[t], levels[t], known[t], right[t])
