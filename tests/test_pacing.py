"""Pacing: the mean cost is the target, whatever the policy costs and however that changes."""

from __future__ import annotations

import math
import random
from collections import deque
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from focalroute import Budget, Ensemble
from focalroute.pacing import HIGHEST, LOWEST, Pacer
from focalroute.sim import SimulatedModel, SimulatedPool, stream
from tests.policies import thrifty

QUERIES = 5000


def paid(pacer: Pacer, cost: float) -> None:
    pacer.begin()
    pacer.end(Decimal(repr(cost)))


@settings(deadline=None, derandomize=True, max_examples=10)
@given(
    steepness=st.floats(0.6, 20),
    where=st.floats(0, 1),
    price=st.floats(0.5, 3),
    drift=st.floats(-1, 1),
    noise=st.floats(0, 1),
    start=st.floats(0.01, HIGHEST),
    under_way=st.sampled_from([1, 2, 4]),
    seed=st.integers(0, 99),
)
def test_the_mean_cost_is_within_2_percent_of_the_target_for_any_falling_response(
    steepness: float, where: float, price: float, drift: float, noise: float, start: float, under_way: int, seed: int
) -> None:
    """5,000 queries; prices change after 2,000, and what the policy makes of the price of money after 3,500.

    Costs fall from 4 to 0.1 targets as log lambda rises, steeply or not, with noise on each, around a middle anywhere
    between the bounds where the target can still be met after both changes.
    """
    dearest = math.log((4 - 1 / 3) / (1 / 3 - 0.1)) / steepness  # above the middle: costs the target at three prices
    low, high = math.log(LOWEST) + 1.25, math.log(HIGHEST) - 1.25 - dearest
    middle = low + where * (high - low)
    pacer, rng = Pacer(Decimal(1), start), random.Random(seed)
    waiting: deque[float] = deque()
    total = 0.0
    for number in range(QUERIES):
        centre = middle + (drift if number >= 3500 else 0.0)
        slope = min(steepness * (math.log(pacer.begin()) - centre), 500.0)
        mean = (price if number >= 2000 else 1.0) * (0.1 + 3.9 / (1 + math.exp(slope)))
        waiting.append(mean * rng.lognormvariate(-(noise**2) / 2, noise))
        total += waiting[-1]
        if len(waiting) == under_way:
            pacer.end(Decimal(repr(waiting.popleft())))
        assert LOWEST * 0.999 <= pacer.price <= HIGHEST * 1.001
    assert total / QUERIES == pytest.approx(1, rel=0.02)


def test_without_a_target_the_price_stays() -> None:
    pacer = Pacer(None, 0.3)
    paid(pacer, 100.0)
    assert pacer.price == pytest.approx(0.3)


def test_what_was_refused_tells_nothing() -> None:
    pacer = Pacer(Decimal(1), 0.3)
    pacer.begin()
    pacer.end(None)
    assert pacer.price == pytest.approx(0.3)


def test_a_target_that_cannot_be_met_for_a_while_leaves_no_debt() -> None:
    """Nothing winds up at a bound: when asks cost less again, the price comes down at once."""
    pacer = Pacer(Decimal(1), 1.0)
    for _ in range(20_000):
        paid(pacer, 50.0)
    assert pacer.price == pytest.approx(HIGHEST)
    for _ in range(400):
        paid(pacer, 0.0)
    assert pacer.price < HIGHEST / 100


def test_one_dear_query_moves_the_price_by_a_bounded_step() -> None:
    pacer = Pacer(Decimal(1), 1.0)
    paid(pacer, 1e6)
    assert pacer.price == pytest.approx(math.exp(0.25))


def test_with_many_asks_under_way_steps_are_smaller() -> None:
    alone, crowded = Pacer(Decimal(1), 1.0), Pacer(Decimal(1), 1.0)
    for _ in range(63):
        crowded.begin()
    paid(alone, 2.0)
    paid(crowded, 2.0)
    assert 1 < crowded.price < alone.price ** (1 / 8)


def test_an_ensemble_holds_its_mean_cost_and_remembers_the_price(tmp_path: Path) -> None:
    """Real asks with a policy that asks fewer as lambda rises; the price starts far too low."""
    models = [SimulatedModel(name, skill=0.7) for name in "abcd"]
    with SimulatedPool(models) as pool:
        target = Decimal("0.000015")
        budget = Budget(usd_per_query=target)
        folder, store = thrifty(tmp_path / "policy"), tmp_path / "s.db"
        with Ensemble(
            pool.endpoints, policy=folder, store=store, budget=budget, price_of_money=0.1, seed=1, max_rounds=1
        ) as ensemble:
            answers = [ensemble.ask(question.text, choices=question.choices) for question in stream(120, seed=5)]
        costs = [float(answer.cost or 0) for answer in answers]
        prices = [answer.receipt.price_of_money for answer in answers]
        assert prices[0] == pytest.approx(0.1)
        assert sum(costs[:10]) / 10 > 1.2 * float(target)
        assert sum(costs[60:]) / 60 == pytest.approx(float(target), rel=0.25)
        with Ensemble(pool.endpoints, policy=folder, store=store, budget=budget, price_of_money=0.1) as ensemble:
            again = ensemble.ask("What is 17 + 25?", choices=["32", "42"])
        assert again.receipt.price_of_money == pytest.approx(prices[-1])
