"""The policy that is shipped: how it is trained, and how it does on unseen synthetic pools."""

from __future__ import annotations

import numpy as np
import pytest

from examples.shipped_policy.training import ShippedSettings, cold_fusion, shipped, synthetic_views
from focalroute.learn.export import decider_net, fusion_net
from focalroute.learn.nets import DeciderNet, FusionNet, parameters
from focalroute.learn.offline.rollout import Rollout, roll
from focalroute.learn.offline.views import Views, nearest
from focalroute.observe import layout
from focalroute.policy.bundle import cold
from tests.by_hand import linear_decider

SHORT = ShippedSettings(pools=2, queries=200, fusion_steps=3, lookahead_steps=3, iterations=4, renewals=2)
QUERIES, WARM = 400, 150
PRICES = (0.03, 0.3)


def played(nets: tuple[DeciderNet, FusionNet], views: Views, price: float) -> Rollout:
    """The queries of a world after the first ones, in windows of what these nets ask."""
    ask_all_usd, rng = float(views.recorded.usd.sum() / QUERIES), np.random.default_rng(0)
    rows = np.arange(WARM, QUERIES)
    views.renew(*nets, ask_all_usd, 3, rng)
    return roll(
        *nets,
        views.at(nearest(price), rows),
        cost_weight=np.full(len(rows), price, np.float32),
        ask_all_usd=ask_all_usd,
        rounds=3,
        samples=1,
        rng=rng,
    )


@pytest.fixture(scope="module")
def nets() -> tuple[DeciderNet, FusionNet]:
    """Those of the shipped bundle."""
    policy = cold()
    return decider_net(policy.decider_onnx), fusion_net(policy.fusion_onnx)


@pytest.fixture(scope="module")
def pools() -> list[Views]:
    """New ones, seen as in service from the first query on."""
    rng = np.random.default_rng(7)
    return [synthetic_views(rng, QUERIES) for _ in range(7)]


@pytest.mark.slow
def test_the_same_seed_gives_the_same_nets_and_another_one_others() -> None:
    one, same, other = shipped(SHORT, 1), shipped(SHORT, 1), shipped(SHORT, 2)
    for place in (0, 1):
        arrays = [parameters(nets[place]) for nets in (one, same, other)]
        for name, array in arrays[0].items():
            np.testing.assert_array_equal(array, arrays[1][name], name)
        assert not np.array_equal(arrays[0]["out"], arrays[2]["out"])


def test_it_knows_no_endpoint_by_name(nets: tuple[DeciderNet, FusionNet]) -> None:
    assert cold().names == ()
    assert not any(net.names.any() for net in nets)


def test_it_ignores_what_no_synthetic_log_has(nets: tuple[DeciderNet, FusionNet]) -> None:
    """Latencies, and how near a cap is: its weights for these would be chance."""
    for net in (nets[0], shipped(SHORT, 1)[0]):
        for weights in (net.hidden_endpoint, net.skip_endpoint):
            assert not weights[layout.slices(layout.ENDPOINT)["latency"]].any()
        for weights in (net.hidden_context, net.skip_context):
            assert not weights[layout.slices(layout.CONTEXT)["budget_left"]].any()


@pytest.mark.slow
@pytest.mark.parametrize("price", PRICES)
def test_it_does_better_on_new_worlds_than_nets_set_by_hand(
    nets: tuple[DeciderNet, FusionNet], pools: list[Views], price: float
) -> None:
    def reward(found: Rollout) -> float:
        return float((2 * found.worth - 1 - price * found.shares.sum(axis=0)).mean())

    by_hand = linear_decider(), cold_fusion()
    gains = np.array([reward(played(nets, one, price)) - reward(played(by_hand, one, price)) for one in pools])
    assert gains.mean() > 0


def test_a_higher_cost_weight_spends_less(nets: tuple[DeciderNet, FusionNet], pools: list[Views]) -> None:
    for one in pools[:2]:
        paid = [float(played(nets, one, price).shares.sum()) for price in (*PRICES, 2.0)]
        assert paid == sorted(paid, reverse=True)


def test_it_asks_on_where_replies_disagree(nets: tuple[DeciderNet, FusionNet], pools: list[Views]) -> None:
    asked_on: dict[bool, list[bool]] = {True: [], False: []}
    for one in pools:
        found = played(nets, one, 0.05)
        candidate = one.recorded.candidate[WARM:]
        for row in np.flatnonzero(found.first.sum(axis=1) >= 2):
            said = candidate[row][found.first[row] & (candidate[row] >= 0)]
            asked_on[len(set(said.tolist())) == 1].append(bool(found.later[row].any()))
    assert min(len(rows) for rows in asked_on.values()) > 50
    assert np.mean(asked_on[False]) > np.mean(asked_on[True]) + 0.15


def test_its_confidence_is_about_right(nets: tuple[DeciderNet, FusionNet], pools: list[Views]) -> None:
    """Over all worlds together, in three bands; a single world may be off, since nothing of it was known."""
    confidence, right = [], []
    for one in pools:
        if one.recorded.closed.all():
            found = played(nets, one, 0.05)
            confidence.append(found.posterior.max(axis=1))
            right.append(found.worth)
    sure, worth = np.concatenate(confidence), np.concatenate(right)
    for low, high in ((0.0, 0.6), (0.6, 0.85), (0.85, 1.01)):
        band = (sure >= low) & (sure < high)
        assert band.sum() > 100
        assert abs(sure[band].mean() - worth[band].mean()) < 0.1
