"""One ask's rounds: what is observed, and which endpoints may be picked."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest

from focalroute.core.records import Failure, Member, Outcome, Query, Reply, Round
from focalroute.money.budget import BudgetGuard
from focalroute.money.pacing import HIGHEST_WEIGHT, LOWEST_WEIGHT
from focalroute.observe.experience import Experience
from focalroute.observe.features import text_features
from focalroute.observe.layout import CONTEXT, slices
from focalroute.observe.observer import Observer
from focalroute.policy.bundle import cold
from focalroute.policy.decider import decide, pick_probabilities
from focalroute.policy.fallback import Fallback, Guarded
from focalroute.serving.ask import Ask
from focalroute.serving.recording import make_answer

NAMES = ("a", "b", "c", "d")
CHEAPEST_FIRST = (3, 1, 0, 2)
FAILED = Failure("timeout", "too slow")


def begun(
    *,
    failing: bool = False,
    cap: str | None = None,
    seed: int = 0,
    priced: bool = False,
    known: bool = False,
    changed: bool = False,
    text: str = "Red or blue?",
    prices: Sequence[float] = (0.3, 0.2, 0.4, 0.1),
) -> Ask:
    observer = Observer(NAMES, prices)
    if known:  # "b" is right on texts like the one below, the others never are
        texts = np.stack([text_features(f"Red or {colour}?") for colour in ("green", "pink", "grey") for _ in range(9)])
        right = np.tile(np.array([0, 1, 0, 0], np.float32), (len(texts), 1))
        costs = np.ones_like(right)
        costs[:9, 1] = 10  # "b" is dear where green is mentioned
        even, unknown = np.full(4, 0.5, np.float32), np.full(4, np.nan, np.float32)
        observer.adopt(Experience(NAMES, even, unknown, texts, right, costs))
    if changed:  # on other texts "d" is right now, and "b" is not
        for number in range(100):
            members = {name: Member(1, 0, 5, 4.0, Decimal("0.2")) for name in ("b", "d")}
            observer.learn(Outcome(f"later {number}", members, {"b": 0.0, "d": 1.0}))
    if priced:
        observer.learn(Outcome("before", {"b": Member(1, 0, 5, 4.0, Decimal("0.2"))}, {"b": 1.0}))
    query = Query("q", ({"role": "user", "content": text},), choices=("red", "blue"), answer=None)
    policy = Guarded(Fallback() if failing else cold(), NAMES)
    ask_budget = BudgetGuard(None, ()).ask_budget(cap, "x")
    return Ask(query, policy, observer.begin(query), ask_budget, deadline=0.0, rng=random.Random(seed))


def anybody(endpoint: int, picked: tuple[int, ...]) -> bool:
    return True


def answered(name: str) -> Reply:
    return Reply(name, choice=0)


def one_round(
    ask: Ask, reply: Callable[[str], Reply], explore: bool = True, cost_weight: float = 0.1
) -> tuple[int, ...]:
    """Whom the ask picks, after they have replied."""
    observation = ask.observe(cost_weight)
    decision = ask.decide(observation, order=CHEAPEST_FIRST, eligible=anybody, explore=explore)
    ask.add_round(Round(observation, decision, tuple(reply(NAMES[i]) for i in decision.picked)))
    ask.fuse()
    return decision.picked


def test_it_observes_its_round_its_lambda_and_the_share_of_its_cap() -> None:
    ask = begun(cap="0.4")

    def seen(name: str) -> float:
        return float(ask.observe(0.1).context[slices(CONTEXT)[name]][0])

    assert (seen("first"), seen("round"), seen("cost_weight"), seen("budget_left")) == (1, 0, -1, 1)
    ask.ask_budget.spent = Decimal("0.1")
    one_round(ask, lambda name: Reply(name, choice=0))
    assert (seen("first"), seen("round"), seen("cost_weight"), seen("budget_left")) == (0, 0.25, -1, 0.75)


@pytest.mark.parametrize("explore", [True, False])
def test_a_decision_is_the_deciders_over_the_order_given(explore: bool) -> None:
    ask = begun(seed=5)
    observation = ask.observe(0.1)

    def eligible(endpoint: int, picked: tuple[int, ...]) -> bool:
        return endpoint != 1 and len(picked) < 2

    found = ask.decide(observation, order=CHEAPEST_FIRST, eligible=eligible, explore=explore)
    logits = ask.policy.decider_logits(observation)
    rng = random.Random(5)
    assert found == decide(
        logits, round=1, must_pick=True, order=CHEAPEST_FIRST, eligible=eligible, explore=explore, rng=rng
    )
    assert found.order == (3, 0, 2)
    assert found.probabilities == pick_probabilities(logits, found.order)
    assert (found.log_mu is None) is not explore


def test_no_endpoint_is_asked_twice_and_asking_goes_on_until_one_has_answered() -> None:
    for seed in range(20):
        ask, asked = begun(seed=seed), set[int]()
        while len(asked) < 4:
            picked = one_round(ask, lambda name: Reply(name, error=FAILED))
            assert picked
            assert not asked & set(picked)
            asked |= set(picked)
        assert ask.view.asked == [i for r in ask.rounds for i in r.decision.picked]
        assert one_round(ask, lambda name: Reply(name, error=FAILED)) == ()
        assert ask.rounds[-1].decision.order == ()


def test_once_a_member_has_answered_it_may_stop() -> None:
    ask = begun()
    one_round(ask, lambda name: Reply(name, choice=0))
    assert ask.rounds[0].decision.must_pick
    one_round(ask, lambda name: Reply(name, choice=0))
    decision = ask.rounds[1].decision
    assert (decision.round, decision.must_pick) == (2, False)
    assert set(decision.order) == set(range(4)) - set(ask.rounds[0].decision.picked)


def test_at_the_highest_cost_weight_the_cheapest_is_asked_alone_until_one_answers() -> None:
    """That is certain, so that its probability is exact."""
    ask = begun()
    assert one_round(ask, lambda name: Reply(name, error=FAILED), cost_weight=HIGHEST_WEIGHT) == (3,)
    assert one_round(ask, lambda name: Reply(name, choice=0), cost_weight=HIGHEST_WEIGHT) == (1,)
    assert one_round(ask, lambda name: Reply(name, choice=0), cost_weight=HIGHEST_WEIGHT) == ()
    assert [round_.decision.log_mu for round_ in ask.rounds] == [0.0, 0.0, None]


def test_of_equally_cheap_endpoints_the_one_that_the_text_favours_is_asked() -> None:
    """Within 2 % of each other, "b" is right on such texts."""
    ask = begun(known=True, prices=[0.3, 0.101, 0.4, 0.1])
    assert one_round(ask, lambda name: Reply(name, error=FAILED), cost_weight=HIGHEST_WEIGHT) == (1,)
    assert one_round(ask, answered, cost_weight=HIGHEST_WEIGHT) == (3,)


def test_beyond_the_trained_weights_the_endpoint_that_the_text_favours_is_asked() -> None:
    """On such texts "b" is right, "d" is the cheapest; where nothing is known of the text the nets decide."""
    assert one_round(begun(known=True), answered, cost_weight=5.0) == (1,)
    assert one_round(begun(known=True), answered, cost_weight=50.0) == (3,)
    ask = begun(known=True)
    assert one_round(ask, lambda name: Reply(name, error=FAILED), cost_weight=5.0) == (1,)
    assert one_round(ask, answered, cost_weight=5.0) == (3,)
    assert one_round(ask, answered, cost_weight=5.0) == ()
    assert [round_.decision.log_mu for round_ in ask.rounds] == [0.0, 0.0, None]
    unknown = begun()
    assert unknown.view.by_text(5.0) is None
    assert one_round(unknown, answered, cost_weight=5.0) == one_round(begun(), answered, cost_weight=4.0)


def test_the_cost_of_calls_on_similar_texts_counts() -> None:
    """On both "b" is right, but on green it is dear."""
    first = {colour: begun(known=True, text=f"Red or {colour}?").view.by_text(5.0) for colour in ("pink", "green")}
    assert [order[0] for order in first.values() if order is not None] == [1, 3]


def test_an_endpoint_that_lately_did_worse_than_in_the_long_run_is_worth_less_by_the_text() -> None:
    orders = [begun(known=True, changed=changed).view.by_text(7.0) for changed in (False, True)]
    assert [order[0] for order in orders if order is not None] == [1, 3]


def test_where_one_endpoint_by_the_text_did_better_in_training_it_is_asked_at_any_weight() -> None:
    ask = begun(known=True)
    curve = [{"cost_weight": 0.1, "served": 0.1, "alone": True}]
    ask.policy = Guarded(replace(cold(), metrics={"curve": curve}), NAMES)
    assert one_round(ask, answered) == (1,)
    assert ask.rounds[0].decision.log_mu == 0.0


def test_at_the_lowest_cost_weight_all_are_asked_without_chance() -> None:
    """Where training has measured that weight."""
    ask = begun()
    assert len(one_round(ask, lambda name: Reply(name, choice=0), cost_weight=LOWEST_WEIGHT)) < len(NAMES)
    ask = begun()
    curve = [{"cost_weight": LOWEST_WEIGHT, "served": LOWEST_WEIGHT}]
    ask.policy = Guarded(replace(cold(), metrics={"curve": curve}), NAMES)
    assert sorted(one_round(ask, lambda name: Reply(name, choice=0), cost_weight=LOWEST_WEIGHT)) == [0, 1, 2, 3]
    assert ask.rounds[0].decision.log_mu is None


def test_the_bounds_of_the_cost_weight_leave_rules_as_they_are() -> None:
    ask = begun(failing=True)
    assert sorted(one_round(ask, lambda name: Reply(name, choice=0), cost_weight=LOWEST_WEIGHT)) == [0, 1, 3]


def test_the_fallback_does_not_explore() -> None:
    for seed in range(10):
        ask = begun(failing=True, seed=seed)
        assert set(one_round(ask, lambda name: Reply(name, choice=1))) == {0, 1, 3}
        assert ask.rounds[0].decision.log_mu is None
        assert one_round(ask, lambda name: Reply(name, choice=1)) == ()


def test_the_stored_answer_has_the_texts_features() -> None:
    ask = begun()
    one_round(ask, lambda name: Reply(name, choice=0))
    _, stored = make_answer(ask, store_text=False)
    steps = stored.trajectory
    assert steps is not None
    assert steps.features is ask.view.features
    assert np.linalg.norm(steps.features) == pytest.approx(1)


def cancelled(seconds: float, attempts: int = 1) -> Callable[[str], Reply]:
    """Everybody answers but "b", which is given up after so long."""

    def reply(name: str) -> Reply:
        if name == "b":
            given_up = Failure("cancelled", "not needed any more")
            cost = Decimal("0.5") if attempts else Decimal(0)
            return Reply(name, error=given_up, cost=cost, cost_source="reserved", latency_s=seconds, attempts=attempts)
        return Reply(name, choice=0, cost=Decimal("0.125"), cost_source="price", latency_s=1.0, attempts=1)

    return reply


@pytest.mark.parametrize(
    ("seconds", "attempts", "saved"),
    [(1.0, 1, "0.15"), (4.0, 1, "0"), (9.0, 1, "0"), (9.0, 0, "0.2")],
    ids=["a quarter in", "at its end", "beyond", "never made"],
)
def test_the_receipt_says_what_cancelled_calls_would_have_gone_on_to_cost(
    seconds: float, attempts: int, saved: str
) -> None:
    """Endpoint "b" costs 20 cents and takes 4 seconds; the reservation of its cancelled call stays on the receipt."""
    ask = begun(priced=True)
    for endpoint in (1, 2):  # the only one that can be asked then, as nobody has answered
        observation = ask.observe(0.1)
        decision = ask.decide(observation, order=(endpoint,), eligible=anybody, explore=False)
        ask.add_round(Round(observation, decision, (cancelled(seconds, attempts)(NAMES[endpoint]),)))
        ask.fuse()
    answer, _ = make_answer(ask, store_text=False)
    calls = {call.endpoint: call for call in answer.receipt.calls}
    assert calls["b"].saved == Decimal(saved)
    assert (calls["b"].cost, calls["b"].cost_source) == (Decimal("0.5") if attempts else 0, "reserved")
    assert calls["c"].saved is None
    assert answer.receipt.saved == calls["b"].saved
    assert f'"saved":"{calls["b"].saved}"' in answer.receipt.to_json()
