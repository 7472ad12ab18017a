"""The log through the windows of policies at several cost weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from examples.shipped_policy.training import cold_fusion
from focalroute.learn.offline import RecordedLog
from focalroute.learn.offline.prior_stats import calibration, compute_prior_stats
from focalroute.learn.offline.views import COST_WEIGHTS, Views, draw_cost_weight, long_run, nearest, random_masks
from focalroute.learn.trajectory import grown
from focalroute.observe.layout import ENDPOINT, slices
from focalroute.observe.observation import signal_column
from tests.by_hand import linear_decider
from tests.learn.offline.histories import random_history

_SIGNAL, _TOLL = (slices(ENDPOINT)[name].start for name in ("signal", "cost_penalty"))


def _views(log: RecordedLog, *, probed: float = 0.0, seed: int = 0) -> Views:
    _, prior = long_run(log, np.arange(len(log)))
    masks = random_masks(log, np.random.default_rng(seed))
    return Views(log, prior, np.arange(1, 5), masks, window=30, probed=probed)


def test_the_long_run_by_hand() -> None:
    log = random_history(50)
    rows = np.arange(10, 40)
    accuracy, prior = long_run(log, rows)
    replied = log.replied[rows]
    right, count = (replied * log.value[rows]).sum(axis=0), replied.sum(axis=0)
    overall = right.sum() / count.sum()
    np.testing.assert_allclose(accuracy, (right + 10 * overall) / (count + 10), rtol=1e-5)
    np.testing.assert_allclose(prior.offsets, accuracy - accuracy.mean(), atol=1e-6)
    usd = [log.usd[rows, i][log.there[rows, i]].mean() for i in range(4)]
    np.testing.assert_allclose(prior.usd, usd, rtol=1e-5)


def test_there_is_a_view_for_each_cost_weight_and_higher_ones_ask_fewer() -> None:
    views = _views(random_history(400))
    asked = [(first | later).mean() for first, later in views.masks]
    assert len(asked) == len(COST_WEIGHTS)
    assert asked == sorted(asked, reverse=True)
    assert not any((first & later).any() for first, later in views.masks)


def test_a_view_is_the_hindsight_of_its_masks() -> None:
    log = random_history(60)
    views = _views(log)
    _, prior = long_run(log, np.arange(60))
    rows = np.array([3, 50, 20, 59])
    known = calibration(log)  # the same in every view: the book comes with the policy
    assert known is not None
    signal = signal_column(known.signal[rows])
    assert (signal * log.closed[rows, None]).any()
    assert not log.closed[rows].all()
    for view, (first, later) in enumerate(views.masks):
        assert not ((first | later) & ~log.there).any()
        expected = compute_prior_stats(log, first, later, prior, window=30).rows.columns[rows]
        found = views.at(view, rows).columns
        similar = slices(ENDPOINT)["similar"].start
        expected[..., similar] = found[..., similar]
        expected[..., _SIGNAL] = signal * log.closed[rows, None]
        np.testing.assert_array_equal(found, expected)


def test_renewed_views_hold_what_the_policy_asks_at_their_price() -> None:
    """A policy that minds the money asks ever fewer; whom it does not ask is probed as often as said."""
    log = random_history(300)
    decider = linear_decider()
    weights = decider.skip_endpoint.copy()
    weights[_TOLL] = -60.0
    rng = np.random.default_rng(0)
    decider, fusion = grown(replace(decider, skip_endpoint=weights), 4, rng), grown(cold_fusion(), 4, rng)
    plain, probing = _views(log), _views(log, probed=0.5)
    for views in (plain, probing):
        views.renew(decider, fusion, 2.0, 3, np.random.default_rng(1))
    asked = [(first | later)[log.there].mean() for first, later in plain.masks]
    assert asked[0] > asked[-1] + 0.1
    assert all(first.any(axis=1).all() for first, _ in plain.masks)
    assert (probing.masks[-1][0] | probing.masks[-1][1])[log.there].mean() > asked[-1] + 0.2


def test_the_nearest_view_on_a_logarithmic_scale() -> None:
    assert [nearest(price) for price in (0.0, 0.01, 0.03, 0.08, 0.5, 9.0)] == [0, 0, 1, 1, 3, 3]


def test_drawn_cost_weights_stay_near_their_view() -> None:
    rng = np.random.default_rng(0)
    drawn = [draw_cost_weight(rng) for _ in range(500)]
    assert {view for view, _ in drawn} == set(range(len(COST_WEIGHTS)))
    ratios = [cost_weight / COST_WEIGHTS[view] for view, cost_weight in drawn]
    assert max(ratios) == pytest.approx(10**0.45, rel=0.1)
    assert min(ratios) == pytest.approx(10**-0.45, rel=0.1)
