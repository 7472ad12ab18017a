"""Statistics of all earlier rows of a log at once equal their definition row by row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from focalroute.learn.offline import RecordedLog
from focalroute.learn.offline import prior_stats as prior_stats
from focalroute.learn.offline.prior_stats import LongRun, compute_prior_stats, relative_usd
from focalroute.learn.offline.prior_stats import expected as expected_on
from focalroute.learn.offline.views import long_run
from focalroute.observe.accuracy import RecentOutcomes
from focalroute.observe.diversity import pair_focal_diversity
from focalroute.observe.layout import ENDPOINT, slices
from focalroute.observe.memory import MEAN_PRIOR, SHRINK, Memory
from focalroute.observe.pool_stats import call_means, relative_skills, rows_of
from tests.learn.offline.histories import random_history

WINDOW = 20
_ENDPOINT = slices(ENDPOINT)


def _asked(log: RecordedLog, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    asked = (rng.random(log.there.shape) < 0.6) & log.there
    later = asked & (rng.random(asked.shape) < 0.4)
    return asked & ~later, later


def _sums(log: RecordedLog, first: np.ndarray, later: np.ndarray, t: int, i: int) -> list[float]:
    """One endpoint's outcomes, sum of their values, and sums of `call_means`, before row t, added up one by one."""
    sums = [0.0] * 6
    for r in range(max(t - WINDOW, 0), t):
        if not (first[r, i] or later[r, i]) or not log.replied[r, i]:
            continue
        value, usd, latency = float(log.value[r, i]), float(log.usd[r, i]), float(log.latency_s[r, i])
        added = (1, value, 1, usd, latency > 0, latency)
        sums = [a + float(b) for a, b in zip(sums, added, strict=True)]
    return sums


def _compared(log: RecordedLog, first: np.ndarray, later: np.ndarray, t: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows in common, and how much more of them each got right, before row t."""
    together, wins = np.zeros((4, 4)), np.zeros(4)
    for r in range(max(t - WINDOW, 0), t):
        known = [i for i in range(4) if (first[r, i] or later[r, i]) and log.replied[r, i]]
        for i in known:
            for j in known:
                together[i, j] += i != j
                wins[i] += log.value[r, i] - log.value[r, j]
    return together, wins


def test_rows_are_those_of_the_window_added_up_one_by_one() -> None:
    log = random_history(70)
    first, later = _asked(log)
    _, prior = long_run(log, np.arange(70))
    found = compute_prior_stats(log, first, later, prior, window=WINDOW)
    focal = np.repeat(found.pairs.sum(axis=2) / 3, 20, axis=0)[:70]
    recent = RecentOutcomes(4, WINDOW)
    for t in range(70):
        sums = np.array([_sums(log, first, later, t, i) for i in range(4)])
        calls = call_means(prior.usd, sums[:, 2:])
        relative_skill = relative_skills(*_compared(log, first, later, t // 20 * 20), prior.offsets, prior.strengths)
        counts = np.array([sums[:, :2].T, np.zeros((2, 4))])
        relative_accuracy, level = recent.relative_accuracy(counts, prior.offsets, prior.strengths)
        right = np.where((first[t] | later[t]) & log.replied[t], log.value[t], np.nan)
        recent.learn(str(t), right, counts, prior.offsets, prior.strengths)
        expected = rows_of(calls, sums[:, 0], focal[t], relative_skill, relative_accuracy, np.array(level))
        np.testing.assert_allclose(found.rows.columns[t], expected.columns, atol=1e-5)
        np.testing.assert_allclose(found.rows.shares[t], expected.shares, atol=1e-6)
        assert found.rows.level[t] == pytest.approx(float(expected.level), abs=1e-6)


def test_lengths_are_standardised_over_each_endpoints_own_replies() -> None:
    log = random_history(60)
    first, later = _asked(log)
    found = compute_prior_stats(log, first, later, LongRun(np.zeros(4), np.ones(4), np.ones(4)), window=WINDOW)
    some = 0
    for t in range(60):
        for i in range(4):
            rows = range(max(t - WINDOW, 0), t)
            lengths = [
                log.tokens[r, i]
                for r in rows
                if (first[r, i] or later[r, i]) and log.candidate[r, i] >= 0 and log.tokens[r, i] > 0
            ]
            expected = 0.0
            if len(lengths) >= 2 and log.tokens[t, i] > 0:
                expected = (log.tokens[t, i] - np.mean(lengths)) / np.sqrt(np.var(lengths) + 1) / 4
                some += 1
            assert found.length[t, i] == pytest.approx(np.clip(expected, -4, 4), abs=1e-5)
    assert some > 60


def test_pairs_are_renewed_every_20_rows_from_the_whole_chunks_before() -> None:
    log = random_history(130, seed=3)
    first, later = _asked(log)
    window = 60
    found = compute_prior_stats(log, first, later, LongRun(np.zeros(4), np.ones(4), np.ones(4)), window=window)
    assert len(found.pairs) == 7
    enough = 0
    for t in range(130):
        start = t // 20 * 20
        rows = np.arange(max(start - window, 0), start)
        known = ((first | later) & log.replied)[rows]
        failed = known & (log.value[rows] == 0)
        together = known.T.astype(int) @ known
        alone, both = failed.T.astype(int) @ known, failed.T.astype(int) @ failed
        expected = pair_focal_diversity(together, alone, alone.T, both) * (1 - np.eye(4))
        np.testing.assert_allclose(found.pairs_at(np.array([t]))[0], expected, atol=1e-6)
        enough += (together >= 20).sum() - (np.diagonal(together) >= 20).sum()
    assert enough  # with and without enough common rows


def test_graded_values_count_in_the_accuracy_and_not_in_the_pairs() -> None:
    log = random_history(60)
    graded = replace(log, value=np.where(log.replied, 0.5, 0).astype(np.float32))
    first, later = _asked(log)
    found = compute_prior_stats(graded, first, later, LongRun(np.zeros(4), np.full(4, 10.0), np.ones(4)), window=WINDOW)
    np.testing.assert_allclose(found.rows.columns[..., slices(ENDPOINT)["accuracy"].start], 0, atol=1e-6)
    assert found.pairs[2, 0, 1] == pytest.approx(1 / 3)


def test_nothing_depends_on_what_comes_later() -> None:
    log = random_history(60)
    first, later = _asked(log)
    prior = LongRun(np.zeros(4), np.ones(4), np.ones(4))
    whole = compute_prior_stats(log, first, later, prior, window=WINDOW)
    part = compute_prior_stats(log.take(slice(0, 31)), first[:31], later[:31], prior, window=WINDOW)
    np.testing.assert_allclose(whole.rows.columns[:31], part.rows.columns, atol=1e-6)
    np.testing.assert_array_equal(whole.length[:31], part.length)


# --- similar queries -------------------------------------------------------------------------------------


def _topical(size: int = 40) -> RecordedLog:
    """Two topics with orthogonal texts, in turn, so that the typical sum of weights is what each query has."""
    log = random_history(size)
    vectors = np.zeros((size, 6), np.float32)
    vectors[np.arange(size), np.arange(size) % 2] = 1
    return replace(log, vectors=vectors)


def test_similar_is_what_a_memory_of_the_queries_before_estimates() -> None:
    """Of the query in the middle, whose sum of weights is the typical one of the stream, as of its memory."""
    log = _topical(41)
    memory = Memory(4)
    for t in range(20):
        right = np.where(log.replied[t], log.value[t], np.nan).tolist()
        memory.add(f"{t}", log.vectors[t], right, relative_usd(log)[t].tolist())
    found = expected_on(log).right[20]
    known = memory.estimate(log.vectors[20])
    np.testing.assert_allclose(found, known.right, atol=1e-6)
    np.testing.assert_allclose(expected_on(log).cost[20], known.cost, rtol=1e-5)
    assert np.ptp(known.cost) > 0.01
    assert np.abs(found).max() > 0.05


def test_in_a_stream_only_the_queries_before_count() -> None:
    log = random_history(50, seed=2)
    found = expected_on(log).right
    told = np.asarray(log.vectors.any(axis=1))
    weights = np.zeros((50, 50))
    for t in range(50):
        offsets = log.vectors - log.vectors[:t].astype(float).sum(axis=0) / (told[:t].sum() + MEAN_PRIOR)
        lengths = np.maximum(np.linalg.norm(offsets, axis=1), 1e-9)
        cosines = offsets @ offsets[t] / lengths / lengths[t]
        weights[t, :t] = told[:t] * np.maximum(cosines[:t], 0) ** 3
    strength = SHRINK * max(float(np.median([weights[t].sum() for t in range(50)])), 1e-6)
    for t in range(50):
        known = log.replied[:t] & told[:t, None]
        right, count = (known * log.value[:t]).sum(axis=0), known.sum(axis=0)
        mean = (right + 10 * (right.sum() + 1) / (count.sum() + 2)) / (count + 10)
        w = weights[t, :t, None] * known
        expected = ((w * log.value[:t]).sum(axis=0) + strength * mean) / (w.sum(axis=0) + strength)
        expected = (expected - expected.mean()) * told[t]
        np.testing.assert_allclose(found[t], expected, atol=1e-5)


def test_a_long_stream_is_remembered_as_by_a_memory_that_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever came before fills it; then each query takes the place of another one."""
    monkeypatch.setattr(prior_stats, "CAPACITY", 8)
    monkeypatch.setattr(prior_stats, "_BLOCK", 5)
    blocks = list(prior_stats._remembered(42))
    assert len(blocks) == 9
    for number, rows in enumerate(blocks):
        at = 5 * number
        block = range(at, min(at + 5, 42))
        before = set(rows.tolist()) - set(block)
        assert set(block) <= set(rows.tolist())
        assert len(before) == min(at, 8)
        assert len(rows) == len(set(rows.tolist()))
        assert max(before, default=-1) < at
    assert min(blocks[-1]) < 30


def test_queries_without_a_text_resemble_nothing_and_are_not_remembered() -> None:
    log = random_history(40)
    blank = replace(log, vectors=np.zeros_like(log.vectors))
    assert not expected_on(blank).right.any()
    told = np.asarray(log.vectors.any(axis=1))
    assert 0 < told.sum() < len(log)
    assert not expected_on(log).right[~told].any()
    other = replace(log, value=np.where(told[:, None], log.value, 1 - log.value).astype(np.float32))
    np.testing.assert_array_equal(expected_on(other).right, expected_on(log).right)
