"""Pacing: the mean cost meets the target, however the cost of the policy changes."""

from __future__ import annotations

import math
import random
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from focalroute import Budget, Ensemble
from focalroute.money.pacing import HIGHEST_WEIGHT, LOWEST_WEIGHT, Pacer, TimePacer, make_pacers
from focalroute.sim import SimulatedModel, SimulatedPool, stream
from focalroute.store.sqlite.store import SqliteStore
from tests.policies import ask_the_affordable, thrifty
from tests.responses import Response, drawn
from tests.store.made import answer as made_answer


def paid(pacer: Pacer, cost: float) -> None:
    pacer.begin()
    pacer.end(Decimal(repr(cost)))


@settings(max_examples=5)
@given(
    response=st.builds(
        Response,
        steepness=st.floats(0.6, 20),
        where=st.floats(0, 1),
        price=st.floats(0.5, 3),
        drift=st.floats(-1, 1),
        noise=st.floats(0, 1),
        start=st.floats(0.01, HIGHEST_WEIGHT),
        seed=st.integers(0, 99),
    ),
    under_way=st.sampled_from([1, 2, 4]),
)
def test_the_mean_cost_is_within_2_percent_of_the_target_for_any_falling_response(
    response: Response, under_way: int
) -> None:
    assert response.mean(under_way) == pytest.approx(1, rel=0.02)


@pytest.mark.slow
def test_with_64_asks_under_way_nearly_all_responses_are_held_too() -> None:
    off = sorted(abs(response.mean(64) - 1) for response in drawn(20, seed=0))
    assert off[-2] <= 0.02
    assert off[-1] <= 0.05


def test_weights_of_asks_under_way_are_spread_evenly_around_the_learned_one() -> None:
    pacer = Pacer(Decimal(1), 0.1)
    assert pacer.begin() == pytest.approx(0.1)
    given = [math.log10(pacer.begin() / 0.1) for _ in range(399)]
    assert given[:3] == pytest.approx([0, 0, 0])
    latest = given[-100:]
    assert sum(latest) / 100 == pytest.approx(0, abs=0.02)
    assert [round(f * math.log10(math.e), 1) for f in (-1, 1)] == [round(f(latest), 1) for f in (min, max)]
    assert pacer.weight == pytest.approx(0.1)
    fixed = Pacer(None, 0.1)
    assert {fixed.begin() for _ in range(64)} == {0.1}


def test_the_cost_of_a_probe_is_made_up_for() -> None:
    plain, probed = Pacer(Decimal(1), 0.1), Pacer(Decimal(1), 0.1)
    probed.add(30.0)
    paid(plain, 1.0)
    paid(probed, 1.0)
    assert plain.weight == pytest.approx(0.1)
    assert probed.weight == pytest.approx(0.1 * math.exp(0.1 * 30 / 300))
    without = Pacer(None, 0.1)
    without.add(30.0)
    paid(without, 1.0)
    assert without.weight == pytest.approx(0.1)


def test_without_a_target_the_weight_stays() -> None:
    pacer = Pacer(None, 0.3)
    paid(pacer, 100.0)
    assert pacer.weight == pytest.approx(0.3)


def test_a_refused_ask_does_not_move_the_weight() -> None:
    pacer = Pacer(Decimal(1), 0.3)
    pacer.begin()
    pacer.end(None)
    assert pacer.weight == pytest.approx(0.3)


def test_a_target_that_cannot_be_met_for_a_while_leaves_a_debt_of_1000_queries_at_most() -> None:
    """It is paid back at half the target a query; the weight itself does not wind up."""
    pacer = Pacer(Decimal(1), 1.0)
    for _ in range(20_000):
        paid(pacer, 50.0)
    assert pacer.weight == pytest.approx(HIGHEST_WEIGHT)
    for _ in range(1700):
        paid(pacer, 0.5)
    assert pacer.weight == pytest.approx(HIGHEST_WEIGHT)  # half the target is what is wanted now
    for _ in range(400):
        paid(pacer, 0.5)
    assert HIGHEST_WEIGHT / 100 < pacer.weight < HIGHEST_WEIGHT / 2  # paid back
    for _ in range(400):
        paid(pacer, 0.0)
    assert pacer.weight == pytest.approx(LOWEST_WEIGHT)


def test_a_long_tail_of_costs_does_not_bias_the_mean() -> None:
    """One query in twenty costs ten times the mean; at a weight of 1 the mean is the target."""
    pacer, rng, total = Pacer(Decimal(1), 0.1), random.Random(0), 0.0
    for _ in range(5000):
        mean = pacer.begin() ** -0.5
        cost = mean * (10.0 if rng.random() < 0.05 else 0.5 / 0.95)
        total += cost
        pacer.end(Decimal(repr(cost)))
    assert total / 5000 == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize(("target", "policy"), [(1.2, 5.0), (3.0, 5.0), (7.0, 2.0), (18.0, 2.0)])
def test_targets_that_no_weight_reaches_are_held_by_asking_the_cheapest_or_all(target: float, policy: float) -> None:
    """Whatever the weight the policy costs the same; the cheapest endpoint 1, everybody 20."""
    pacer, rng, total = Pacer(Decimal(repr(target)), 0.1), random.Random(0), 0.0
    for _ in range(3000):
        weight = pacer.begin()
        mean = {HIGHEST_WEIGHT: 1.0, LOWEST_WEIGHT: 20.0}.get(weight, policy)
        cost = mean * rng.uniform(0.5, 1.5)
        total += cost
        pacer.end(Decimal(repr(cost)))
    assert total / 3000 == pytest.approx(target, rel=0.02)


def test_a_target_below_the_cheapest_endpoint_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    pacer = Pacer(Decimal("0.5"), 0.1)
    for _ in range(3000):
        paid(pacer, 1.0)
    assert [record.getMessage() for record in caplog.records] == [
        "usd_per_query: 0.5 cannot be held: the cheapest way to answer costs 1. Raise it, or add a cheaper endpoint"
    ]


def test_one_dear_query_moves_the_weight_by_a_bounded_step() -> None:
    pacer = Pacer(Decimal(1), 1.0)
    paid(pacer, 1e6)
    assert pacer.weight == pytest.approx(math.e)


def test_with_many_asks_under_way_steps_are_smaller() -> None:
    alone, crowded = Pacer(Decimal(1), 1.0), Pacer(Decimal(1), 1.0)
    for _ in range(63):
        crowded.begin()
    paid(alone, 2.0)
    paid(crowded, 2.0)
    assert 1 < crowded.weight < alone.weight ** (1 / 8)


def test_an_ensemble_holds_its_mean_cost_and_remembers_the_weight(tmp_path: Path) -> None:
    """Real asks with a policy that asks fewer as lambda rises; the weight starts far too low."""
    models = [SimulatedModel(name, skill=0.7) for name in "abcd"]
    with SimulatedPool(models) as pool:
        target = Decimal("0.000015")
        budget = Budget(usd_per_query=target)
        folder, store = thrifty(tmp_path / "policy"), tmp_path / "s.db"
        with Ensemble(
            pool.endpoints, policy=folder, store=store, budget=budget, cost_weight=0.1, seed=1, max_rounds=1
        ) as ensemble:
            answers = [ensemble.ask(question.text, choices=question.choices) for question in stream(120, seed=5)]
        costs = [float(answer.cost or 0) for answer in answers]
        weights = [answer.receipt.cost_weight for answer in answers]
        assert weights[0] == pytest.approx(0.1)
        assert sum(costs[:10]) / 10 > 1.2 * float(target)
        assert sum(costs[60:]) / 60 == pytest.approx(float(target), rel=0.25)
        with Ensemble(pool.endpoints, policy=folder, store=store, budget=budget, cost_weight=0.1) as ensemble:
            again = ensemble.ask("What is 17 + 25?", choices=["32", "42"])
        latest = [math.log(weight) for weight in weights[-16:]]
        assert again.receipt.cost_weight == pytest.approx(math.exp(sum(latest) / 16))


def test_a_damaged_receipt_stops_no_ensemble() -> None:
    """Reading the latest weights raised a JSONDecodeError."""
    with closing(SqliteStore()) as store:
        store.write(replace(made_answer("a"), receipt='{"cost_weight": 2.0}')).result(10)
        store.write(replace(made_answer("b"), receipt='{"cost_wei')).result(10)
        pacer, _ = make_pacers(Budget(usd_per_query=1), store, 0.1, 0.0, 1.0)
    assert pacer.weight == pytest.approx(2.0)


@pytest.mark.parametrize("steepness", [0.6, 3, 20])
def test_a_mean_time_is_held_by_the_price_of_a_second(steepness: float) -> None:
    """It takes from 3 targets to a third of one; the long tail of real latencies is there, too."""
    pacer, rng, total = TimePacer(2.0, 0.001), random.Random(0), 0.0
    for _ in range(5000):
        slope = min(steepness * math.log(pacer.begin() / 0.03), 500.0)
        seconds = (2 / 3 + 5.4 / (1 + math.exp(slope))) * rng.lognormvariate(-0.5, 1)
        total += seconds
        pacer.end(seconds)
    assert total / 5000 == pytest.approx(2, rel=0.02)


def test_a_time_that_no_price_reaches_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    pacer = TimePacer(0.5, 0.001)
    for _ in range(3000):
        pacer.begin()
        pacer.end(1.0)
    assert pacer.weight == pytest.approx(1)
    assert [record.getMessage() for record in caplog.records] == [
        "seconds_per_query: 0.5 cannot be held: the quickest way to answer takes 1. Raise it, or add a quicker endpoint"
    ]


@pytest.mark.slow
def test_an_ensemble_holds_its_mean_time_and_remembers_the_price(tmp_path: Path) -> None:
    """Real asks of a quick and a slow endpoint, which is waited for below some price."""
    models = [SimulatedModel("quick", skill=0.7), SimulatedModel("slow", skill=0.7, latency_s=0.3)]
    with SimulatedPool(models) as pool:
        budget, folder = Budget(seconds_per_query=0.15), ask_the_affordable(tmp_path / "policy")
        shared: dict[str, Any] = {"policy": folder, "store": tmp_path / "s.db", "budget": budget, "max_rounds": 1}
        with Ensemble(pool.endpoints, seed=1, explore=False, usd_per_second=1e-6, **shared) as ensemble:
            for question in stream(4, seed=4):
                ensemble.ask(question.text, choices=question.choices, usd_per_second=0)
            answers = [ensemble.ask(question.text, choices=question.choices) for question in stream(60, seed=5)]
        waited = [all(reply.ok for reply in answer.replies) for answer in answers]
        prices = [answer.receipt.usd_per_second for answer in answers]
        assert prices[0] == pytest.approx(1e-6)
        assert waited[0]
        assert sum(waited[20:]) < 0.9 * 40  # how well it is held is measured where no machine is slow
        with Ensemble(pool.endpoints, usd_per_second=1e-6, **shared) as ensemble:
            again = ensemble.ask("What is 17 + 25?", choices=["32", "42"])
        latest = [math.log(price) for price in prices[-16:]]
        assert again.receipt.usd_per_second == pytest.approx(math.exp(sum(latest) / 16))
