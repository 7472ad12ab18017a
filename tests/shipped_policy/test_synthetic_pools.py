"""Made-up logs keep the rules of recorded ones, and are of many kinds."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from examples.shipped_policy.synthetic_pools import synthetic_pool
from focalroute.learn.offline import RecordedLog

SIZE = 120


@pytest.fixture(scope="module")
def pools() -> list[RecordedLog]:
    """Many of them."""
    rng = np.random.default_rng(0)
    return [synthetic_pool(rng, SIZE) for _ in range(60)]


def test_the_same_chance_makes_the_same_world() -> None:
    one, same, other = (synthetic_pool(np.random.default_rng(seed), SIZE) for seed in (1, 1, 2))
    for field in fields(RecordedLog):
        np.testing.assert_array_equal(getattr(one, field.name), getattr(same, field.name), field.name)
    assert one.candidate.shape != other.candidate.shape or not np.array_equal(one.candidate, other.candidate)


def test_an_answer_is_worth_what_its_candidate_is(pools: list[RecordedLog]) -> None:
    for log in pools:
        assert (log.candidate < log.size[:, None]).all()
        assert not log.usable[~log.there].any()
        found = np.take_along_axis(log.worth, np.maximum(log.candidate, 0), axis=1)
        np.testing.assert_array_equal(log.value, np.where(log.usable, found, 0))
        assert not log.worth[np.arange(log.worth.shape[1]) >= log.size[:, None]].any()
        assert (log.worth[log.closed].sum(axis=1) == 1).all()
        assert ((log.usd > 0) == log.there).all()


def test_the_masses_of_members_that_answer_are_probabilities_over_the_choices(pools: list[RecordedLog]) -> None:
    some = [log for log in pools if log.mass is not None]
    assert some
    for log in some:
        assert log.mass is not None
        assert (np.isnan(log.mass).all(axis=2) == ~log.usable).all()
        given = log.mass[log.usable]
        np.testing.assert_allclose(given.sum(axis=1), 1, atol=1e-5)
        np.testing.assert_array_equal(given.argmax(axis=1), log.candidate[log.usable])


def test_synthetic_pools_are_of_many_kinds(pools: list[RecordedLog]) -> None:
    sizes = {len(log.names) for log in pools}
    assert min(sizes) == 3
    assert max(sizes) >= 14
    best = np.array([log.value.mean(axis=0).max() for log in pools])
    assert best.min() < 0.6
    assert best.max() > 0.9
    closed = [bool(log.closed.all()) for log in pools]
    assert 0.4 < np.mean(closed) < 0.9
    assert {bool(log.vectors.any()) for log in pools} == {False, True}
    assert {bool(log.there.all()) for log in pools} == {False, True}
    assert any(((log.value > 0) & (log.value < 1)).any() for log in pools)  # graded
    assert any(not log.closed.any() and (log.size < len(log.names)).any() for log in pools)  # the same free answer


def test_the_dearer_tend_to_be_better_and_errors_to_be_shared(pools: list[RecordedLog]) -> None:
    ranks = [np.corrcoef(np.log(log.prices), log.value.mean(axis=0))[0, 1] for log in pools if len(log.names) > 4]
    assert 0.1 < np.mean(ranks) < 0.7
    assert min(ranks) < 0
    together = []
    for log in pools:
        wrong = 1.0 - log.value[:, log.there.all(axis=0)]
        if 0.02 < wrong.mean() < 0.98:
            together.append(np.corrcoef(wrong, rowvar=False)[np.triu_indices(wrong.shape[1], 1)].mean())
    assert 0.1 < np.nanmean(together) < 0.7
