"""The price of time: what the Decider sees of it, when it stops waiting, and that propensities stay exact."""

from __future__ import annotations

import random

import numpy as np
import pytest

from focalroute import Endpoint, Ensemble
from focalroute.core.errors import ConfigError
from focalroute.core.records import Member, Outcome, Query, Reply, Round
from focalroute.endpoints.breaker import Latencies
from focalroute.money.budget import BudgetGuard
from focalroute.observe.observer import Observer
from focalroute.observe.pool_stats import COST_PENALTIES, cost_penalties
from focalroute.policy.baselines import Plurality
from focalroute.policy.bundle import cold
from focalroute.policy.decider import EXPLORATION
from focalroute.policy.fallback import Guarded, Served
from focalroute.serving.ask import Ask, TimePrice
from focalroute.serving.query import make_query
from tests.policy.chances import log_probability

NAMES = ("a", "b", "c", "d")
PRICES = (0.1, 0.2, 0.3, 0.4)  # USD a call: together 1
SECONDS = (1.0, 2.0, 3.0, 8.0)


def begun(
    usd_per_second: float,
    policy: Served | None = None,
    seconds: tuple[float, ...] = SECONDS,
    outcomes: tuple[int, ...] = (),
) -> Ask:
    observer = Observer(NAMES, PRICES)
    for i, count in enumerate(outcomes):
        for n in range(count):
            observer.learn(Outcome(f"{i} {n}", {NAMES[i]: Member(1, 0, 5, SECONDS[i], None)}, {NAMES[i]: 1.0}))
    query = Query("q", ({"role": "user", "content": "Red or blue?"},), choices=("red", "blue"))
    latencies = [Latencies() for _ in NAMES]
    for one, took in zip(latencies, seconds, strict=True):
        one.add(took)
    budget = BudgetGuard(None, ()).ask_budget(None, "x")
    guarded = Guarded(policy or cold(), NAMES)
    ask = Ask(query, guarded, observer.begin(query), budget, 0.0, random.Random(1))
    if usd_per_second:
        ask.price_time(TimePrice(usd_per_second, latencies))
    return ask


def one_round(ask: Ask, *picked: int, choice: int = 0) -> None:
    observation = ask.observe(0.1)
    decision = ask.decide(observation, order=range(4), eligible=lambda *_: True, explore=True)
    ask.add_round(Round(observation, decision, tuple(Reply(NAMES[i], choice=choice) for i in picked)))
    ask.fuse()


def test_a_later_round_costs_its_time_and_the_context_is_that_of_money_alone() -> None:
    free, dear = begun(0.0), begun(0.05)
    for ask in (free, dear):
        one_round(ask, 0)
    without, seen = free.observe(0.1), dear.observe(0.1)
    expected = cost_penalties(0.1 * (np.array(PRICES) + 0.05 * np.array(SECONDS)))
    assert seen.endpoints[:, COST_PENALTIES] == pytest.approx(expected)
    assert without.endpoints[:, COST_PENALTIES] == pytest.approx(cost_penalties(0.1 * np.array(PRICES)))
    assert np.array_equal(seen.context, without.context)


def test_in_the_first_round_time_costs_only_where_every_likely_pick_is_slower_than_the_best_alone() -> None:
    money = cost_penalties(0.1 * np.array(PRICES))
    quick = begun(0.05, seconds=(1.0, 1.0, 1.0, 1.0)).observe(0.1)
    assert quick.endpoints[:, COST_PENALTIES] == pytest.approx(money)
    slow = begun(100.0, seconds=(9.0, 9.0, 9.0, 1.0)).observe(0.1)
    likely = cold().decider_logits(begun(0.0).observe(0.1), np.zeros(4, np.int64))
    assert likely[3] < 0  # "d", the dearest, is the only one that is quick
    expected = cost_penalties(0.1 * (np.array(PRICES) + np.array([800.0, 800, 800, 0])))
    assert slow.endpoints[:, COST_PENALTIES] == pytest.approx(expected)


def test_the_recorded_observation_is_the_one_that_was_decided_on() -> None:
    ask = begun(0.02)
    one_round(ask, 0, 1)
    one_round(ask, 2)
    for round_ in ask.rounds:
        assert round_.decision.log_mu is not None
        assert round_.decision.log_mu == pytest.approx(log_probability(round_.decision.probabilities, round_.decision))
    logits = ask.policy.decider_logits(ask.rounds[1].observation)
    chances = np.clip(1 / (1 + np.exp(-logits)), EXPLORATION / 4, 1 - EXPLORATION / 4)
    assert ask.rounds[1].decision.probabilities == pytest.approx(
        np.clip(chances, EXPLORATION / 4, 1 - EXPLORATION / 4), abs=1e-5
    )


def test_it_waits_for_what_may_change_the_answer_and_is_near_and_for_nothing_at_a_dear_price() -> None:
    def waits(usd_per_second: float, *replies: Reply, after_s: float = 2.9) -> bool:
        ask = begun(usd_per_second)
        ask.observe(0.1)
        return ask.worth_waiting(replies, {2: after_s})

    apart = Reply("a", choice=0), Reply("b", choice=1)
    assert waits(0.0, *apart)
    assert waits(1.0, *apart)
    assert not waits(1.0, *apart, after_s=0.0)
    assert not waits(100.0, *apart)
    assert waits(100.0)  # somebody has to answer


def test_endpoints_that_are_hardly_known_are_waited_for_where_anything_teaches() -> None:
    def ends(*outcomes: int) -> bool:
        ask = begun(100.0, outcomes=outcomes)
        ask.observe(0.1)
        return ask.done([Reply("a", choice=0)], {1: 0.0})

    assert ends()
    assert not ends(20, 19)
    assert ends(20, 20)


def test_rules_by_name_know_no_price() -> None:
    assert begun(1.0, Plurality(NAMES)).time_price is None


def test_the_time_left_of_a_call_is_the_mean_over_calls_that_took_longer() -> None:
    latencies = Latencies()
    assert latencies.expected_left() is None
    for seconds in (1.0, 2.0, 6.0):
        latencies.add(seconds)
    assert latencies.expected_left() == 3
    assert latencies.expected_left(1.5) == pytest.approx(2.5)
    assert latencies.expected_left(1.5, scale=2) == pytest.approx((0.5 + 2.5 + 10.5) / 3)
    assert latencies.expected_left(7.0) == 7
    latencies.add_cancelled(2.0)
    assert latencies.expected_left(5.9) == pytest.approx(0.1)


def test_an_endpoint_without_a_record_is_expected_to_take_as_long_as_the_others() -> None:
    known = Latencies()
    known.add(2.0)
    assert TimePrice(0.5, [known, Latencies()]).waits({}, 1.0).tolist() == [1, 1]
    assert TimePrice(0.5, [Latencies()]).waits({}, 1.0).tolist() == [0]


@pytest.mark.parametrize("wrong", [-0.1, float("nan"), float("inf"), "0.1", True, 1001])
def test_a_wrong_price_is_an_error_that_names_it(wrong: object) -> None:
    with pytest.raises(ConfigError, match="usd_per_second"):
        make_query("?", usd_per_second=wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="usd_per_second"):
        Ensemble([Endpoint("a", base_url="http://127.0.0.1:1", model="a")], usd_per_second=wrong)  # type: ignore[arg-type]
