"""Which endpoint to probe and when: within the share, where a dollar is most informative."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from focalroute.core.records import Member, Outcome
from focalroute.observe.observer import Observer
from focalroute.serving.exploration import Cost, Probing

NAMES = ("a", "b", "c", "d")


def observer(prices: Sequence[float | None] = (1.0, 1.0, 1.0, 1.0), window: int = 500) -> Observer:
    return Observer(NAMES[: len(prices)], prices, window=window)


def learn(observer: Observer, name: str, times: int, right: float = 1.0, at: str = "") -> None:
    for n in range(times):
        observer.learn(Outcome(f"{name}{at}{n}", {name: Member(1, 0, 5, 0.1, None)}, {name: right}))


def run(probing: Probing, asks: int, cost: Cost, candidates: Sequence[int]) -> Counter[int]:
    """Who was probed how often; each probe costs what was expected."""
    probed: Counter[int] = Counter()
    for _ in range(asks):
        probe = probing.after(cost, lambda: candidates)
        if probe is not None:
            probing.settle(probe, probe.expected)
            probed.update(probe.endpoints)
    return probed


def test_probes_cost_the_share_of_what_the_asks_cost() -> None:
    watched = observer()
    learn(watched, "a", 1)
    probed = run(Probing(watched, 0.02), 1001, Cost(2.0, 2), [1, 2, 3])
    assert probed.total() == 40  # 0.02 x 2 dollars x 1,000 asks, a dollar a probe


def test_without_feedback_all_are_probed_at_once_but_of_copies_only_one() -> None:
    watched = observer()
    assert run(Probing(watched, 0.02), 100, Cost(1.0, 1), [1, 2, 3]).total() == 0
    probing = Probing(watched, 0.02, agreement=True)
    probes = [probe for _ in range(20) if (probe := probing.after(Cost(1.0, 1), lambda: [1, 2, 3], [0]))]
    assert [probe.endpoints for probe in probes] == [(1, 2, 3)] * 3
    for n in range(30):  # c says what b says, a and d what no other does
        members = {name: Member(1, 1 if name == "c" else k, 5, 0.1, None) for k, name in enumerate(NAMES)}
        watched.agree(Outcome(f"{n}", members, {}), 8)
    probing = Probing(watched, 0.5, agreement=True)
    probed = next(probe for _ in range(20) if (probe := probing.after(Cost(1.0, 1), lambda: [1, 2, 3], [0])))
    assert probed.endpoints in ((1, 3), (2, 3))


def test_without_a_share_or_feedback_or_candidates_none_is_probed() -> None:
    watched = observer()
    assert not run(Probing(watched, 0.5), 100, Cost(2.0, 2), [1, 2, 3])
    learn(watched, "a", 1)
    assert not run(Probing(watched, 0.0), 100, Cost(2.0, 2), [1, 2, 3])
    assert not run(Probing(watched, 0.5), 100, Cost(2.0, 2), [])


def test_the_ask_that_pays_is_not_the_one_whose_query_is_probed() -> None:
    """Otherwise hard queries, which are dear, would be probed more often."""
    watched = observer()
    learn(watched, "a", 1)
    probing = Probing(watched, 0.5)
    assert probing.after(Cost(100.0, 1), lambda: [1]) is None
    probe = probing.after(Cost(0.0, 1), lambda: [1])
    assert probe is not None
    assert probe.endpoints == (1,)


def test_the_true_cost_of_a_probe_is_paid_back_before_the_next() -> None:
    watched = observer()
    learn(watched, "a", 1)
    probing = Probing(watched, 0.5)
    probing.after(Cost(2.0, 1), lambda: [1])
    probe = probing.after(Cost(0.0, 1), lambda: [1])
    assert probe is not None
    probing.settle(probe, Cost(3.0, 1))  # it was to cost 1
    waited = next(n for n in range(100) if probing.after(Cost(1.0, 1), lambda: [1]))
    assert waited == 6  # 2 too much and 1 for the next, at half a dollar an ask


def test_a_newcomer_comes_first_and_then_the_endpoint_seen_least() -> None:
    watched = observer()
    learn(watched, "a", 40)
    learn(watched, "b", 30)
    learn(watched, "c", 20)
    probing = Probing(watched, 1.0)
    probed = [probe.endpoints[0] for _ in range(40) if (probe := probing.after(Cost(1.0, 1), lambda: [0, 1, 2, 3]))]
    assert probed[:20] == [3] * 20
    assert set(probed[20:32]) == {2, 3}


def test_the_number_of_probes_falls_with_the_square_root_of_the_price() -> None:
    """Neyman's allocation: four times as dear is seen half as often."""
    watched = observer((1.0, 4.0))
    learn(watched, "a", 1, right=0.5)
    probed = run(Probing(watched, 1.0), 150, Cost(1.0, 1), [0, 1])
    assert probed[0] + 11 == pytest.approx(2 * (probed[1] + 10), abs=3)


def test_a_well_known_endpoint_needs_no_probe() -> None:
    watched = observer()
    learn(watched, "a", 50)
    learn(watched, "b", 49)
    assert run(Probing(watched, 1.0), 20, Cost(1.0, 1), [0]).total() == 0
    assert run(Probing(watched, 1.0), 20, Cost(1.0, 1), [0, 1]).keys() == {1}


@pytest.mark.parametrize("prices", [(None, 1.0, 1.0, 1.0), (0.0, 0.0, 0.0, 0.0)])
def test_without_prices_calls_are_counted(prices: Sequence[float | None]) -> None:
    watched = observer(prices)
    learn(watched, "a", 1)
    assert run(Probing(watched, 0.1), 101, Cost(7.0, 3), [1, 2, 3]).total() == 30


def test_a_free_endpoint_among_others_is_not_probed_for_ever() -> None:
    watched = observer((0.0, 1.0, 1.0, 2.0))
    learn(watched, "b", 1)
    assert run(Probing(watched, 0.02), 101, Cost(1.0, 1), [0]).total() == 20  # as if at a tenth of the mean


def test_savings_are_bounded() -> None:
    """When there is something to find out, it does not begin with a burst of all that was saved in years."""
    watched = observer()
    learn(watched, "a", 1)
    probing = Probing(watched, 0.5)
    for _ in range(1000):
        probing.after(Cost(1.0, 1), lambda: [])
    assert run(probing, 20, Cost(0.0, 1), [1, 2, 3]).total() == 4


def test_after_a_change_more_is_probed_for_a_while() -> None:
    watched = observer()
    learn(watched, "a", 60)
    steady = run(Probing(watched, 0.02), 105, Cost(1.0, 1), [1, 2, 3]).total()
    learn(watched, "a", 8, right=0.0, at="later ")
    assert watched.unsettled
    unsettled = run(Probing(watched, 0.02), 105, Cost(1.0, 1), [1, 2, 3]).total()
    assert (steady, unsettled) == (2, 10)
    learn(watched, "b", 200)
    assert not watched.unsettled
