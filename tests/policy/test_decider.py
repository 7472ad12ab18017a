from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from focalroute.core.records import F32, Decision
from focalroute.policy.decider import EXPLORATION, decide, pick_probabilities
from tests.policy.chances import log_probability

Eligible = Callable[[int, tuple[int, ...]], bool]


def free(endpoint: int, picked: tuple[int, ...]) -> bool:
    return True


def logits_of(*values: float) -> F32:
    return np.array(values, np.float32)


def sample(logits: F32, eligible: Eligible = free, must_pick: bool = True, seed: int = 0) -> Decision:
    order = tuple(range(len(logits)))
    rng = random.Random(seed)
    return decide(logits, round=1, must_pick=must_pick, order=order, eligible=eligible, explore=True, rng=rng)


class Always(random.Random):
    """Chance that always gives one number: just below 1 picks only what is certain, 0 picks everything possible."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def random(self) -> float:
        return self.value


def replayed(
    p: tuple[float, ...], order: tuple[int, ...], eligible: Eligible, picked: tuple[int, ...], must_pick: bool = True
) -> Decision | None:
    """The decision that picks exactly these, None if they cannot be picked together."""
    heads = tuple(i for i in order if eligible(i, ()))
    could: list[bool] = []
    so_far: tuple[int, ...] = ()
    for head in heads:
        could.append(eligible(head, so_far))
        if head in picked:
            if not could[-1]:
                return None
            so_far = (*so_far, head)
    return Decision(1, must_pick, heads, tuple(could), p, so_far, None) if len(so_far) == len(picked) else None


@given(
    st.lists(st.floats(-9, 6), min_size=1, max_size=6),
    st.data(),
    st.booleans(),
)
def test_the_probabilities_of_all_possible_decisions_sum_to_one(
    z: list[float], data: st.DataObject, must_pick: bool
) -> None:
    """With endpoints that are out, any order, and a budget that the picked share."""
    n = len(z)
    order = tuple(data.draw(st.permutations(range(n))))
    out = data.draw(st.sets(st.integers(0, n - 1), max_size=n - 1))
    costs = data.draw(st.lists(st.integers(1, 5), min_size=n, max_size=n))
    budget = data.draw(st.integers(5, 12))

    def eligible(endpoint: int, picked: tuple[int, ...]) -> bool:
        return endpoint not in out and costs[endpoint] + sum(costs[i] for i in picked) <= budget

    p = pick_probabilities(logits_of(*z), [i for i in order if eligible(i, ())] if must_pick else ())
    sets = (s for size in range(n + 1) for s in itertools.combinations(range(n), size))
    decisions = [d for d in (replayed(p, order, eligible, s, must_pick) for s in sets) if d is not None]
    total = math.fsum(math.exp(log_probability(p, d)) for d in decisions)
    assert total == pytest.approx(1, abs=1e-9)


@given(st.lists(st.floats(-6, 6), min_size=1, max_size=12), st.integers(0, 2**32), st.booleans())
def test_a_sampled_decision_stores_its_own_log_probability(z: list[float], seed: int, must_pick: bool) -> None:
    decision = sample(logits_of(*z), lambda i, picked: i + len(picked) < len(z), must_pick, seed)
    assert decision.log_mu is not None
    assert decision.log_mu == pytest.approx(log_probability(decision.probabilities, decision))
    assert decision.log_mu <= 1e-12
    assert decision.picked or not must_pick


def test_sampled_frequencies_are_the_stored_probabilities() -> None:
    """Under a joint budget of two, and never nobody."""
    logits, rng, n = logits_of(-1.0, 0.5, -0.5), random.Random(1), 20_000
    seen: Counter[tuple[int, ...]] = Counter()
    chance: dict[tuple[int, ...], float] = {}
    for _ in range(n):
        decision = decide(
            logits, round=1, must_pick=True, order=(2, 0, 1), eligible=lambda i, p: len(p) < 2, explore=True, rng=rng
        )
        seen[decision.picked] += 1
        chance[decision.picked] = math.exp(decision.log_mu or 0.0)
    assert len(seen) == 6
    for picked, count in seen.items():
        assert count / n == pytest.approx(chance[picked], abs=4 * math.sqrt(0.25 / n))


def test_conditioning_on_at_least_one_pick_keeps_the_odds_of_all_other_sets() -> None:
    p = pick_probabilities(logits_of(-1.0, 0.5, -2.0))
    nobody = math.prod(1 - x for x in p)
    for size in (1, 2, 3):
        for picked in itertools.combinations(range(3), size):
            decision = replayed(p, (0, 1, 2), free, picked)
            assert decision is not None
            plain = math.prod(x if i in picked else 1 - x for i, x in enumerate(p))
            assert math.exp(log_probability(p, decision)) == pytest.approx(plain / (1 - nobody))


def test_where_one_must_be_picked_the_last_head_is_certain_if_none_was() -> None:
    logits = logits_of(-9.0, -9.0, -9.0)
    decision = decide(
        logits, round=1, must_pick=True, order=(2, 1, 0), eligible=free, explore=True, rng=Always(math.nextafter(1, 0))
    )
    assert decision.picked == (0,)
    nobody = replace(decision, picked=(), log_mu=None)
    assert log_probability(decision.probabilities, nobody) == -math.inf
    assert log_probability(decision.probabilities, replace(nobody, must_pick=False)) < 0


def test_where_none_seems_worth_it_the_one_that_must_answer_is_still_the_likeliest() -> None:
    """Odds are raised to a sum of 1 before the clip, so that it leaves their order alone; nothing else is raised."""
    logits = logits_of(-20.0, -23.0, -40.0, -12.0)
    p = pick_probabilities(logits, (0, 1, 2))
    shares = [math.exp(-20.0) / (math.exp(-20.0) + math.exp(-23.0)), math.exp(-3.0) / (1 + math.exp(-3.0))]
    assert p[:2] == pytest.approx([x / (1 + x) for x in shares])
    assert p[2] == EXPLORATION / 4
    first = [sample(logits, lambda i, picked: i < 3, seed=seed).picked[0] for seed in range(300)]
    assert first.count(0) > 0.8 * len(first)
    assert pick_probabilities(logits_of(-1.0, -0.4), (0, 1)) == pick_probabilities(logits_of(-1.0, -0.4))
    assert pick_probabilities(logits) == (EXPLORATION / 4,) * 4


def test_a_later_round_may_stop() -> None:
    decision = sample(logits_of(-9.0, -9.0), must_pick=False)
    assert decision.picked == ()
    assert decision.order == (0, 1)
    assert decision.log_mu == pytest.approx(2 * math.log(1 - EXPLORATION / 2))


@pytest.mark.parametrize("explore", [True, False])
@pytest.mark.parametrize("must_pick", [True, False])
def test_with_no_eligible_head_the_stop_is_forced_and_visible(explore: bool, must_pick: bool) -> None:
    decision = decide(
        logits_of(3.0, 3.0),
        round=2,
        must_pick=must_pick,
        order=(0, 1),
        eligible=lambda i, p: False,
        explore=explore,
        rng=random.Random(0),
    )
    assert decision == Decision(2, must_pick, (), (), decision.probabilities, (), None)


def test_heads_that_could_never_be_picked_are_not_visited_and_those_that_no_longer_can_are_marked() -> None:
    def eligible(endpoint: int, picked: tuple[int, ...]) -> bool:
        return endpoint != 1 and len(picked) < 2

    decision = decide(
        logits_of(0, 0, 0, 0, 0),
        round=1,
        must_pick=True,
        order=(4, 3, 2, 1, 0),
        eligible=eligible,
        explore=True,
        rng=Always(0.0),
    )
    assert decision.order == (4, 3, 2, 0)
    assert decision.eligible == (True, True, False, False)
    assert decision.picked == (4, 3)


def test_probabilities_are_the_clipped_sigmoid_and_never_overflow() -> None:
    p = pick_probabilities(logits_of(-1e30, -800.0, 0.0, 1.0, 1e30))
    least = EXPLORATION / 5
    assert p == pytest.approx((least, least, 0.5, 1 / (1 + math.exp(-1)), 1 - least))
    assert pick_probabilities(logits_of(-50.0)) == (EXPLORATION,)


def test_greedy_picks_in_order_those_likelier_than_not_and_stores_no_log_probability() -> None:
    decision = decide(
        logits_of(2.0, -1.0, 1.0),
        round=1,
        must_pick=True,
        order=(2, 1, 0),
        eligible=free,
        explore=False,
        rng=Always(0.0),
    )
    assert decision.picked == (2, 0)
    assert decision.log_mu is None


def test_greedy_takes_the_likeliest_eligible_head_where_one_must_be_picked() -> None:
    def decided(must_pick: bool) -> tuple[int, ...]:
        logits = logits_of(-0.1, -3.0, -2.0, -2.0)
        return decide(
            logits,
            round=1,
            must_pick=must_pick,
            order=(3, 2, 1, 0),
            eligible=lambda i, p: i > 0,
            explore=False,
            rng=Always(0.0),
        ).picked

    assert decided(must_pick=True) == (3,)
    assert decided(must_pick=False) == ()


def test_greedy_keeps_within_a_joint_budget() -> None:
    decision = decide(
        logits_of(2.0, 3.0, 4.0),
        round=1,
        must_pick=True,
        order=(0, 1, 2),
        eligible=lambda i, p: len(p) < 2,
        explore=False,
        rng=Always(0.0),
    )
    assert decision.picked == (0, 1)
    assert decision.eligible == (True, True, False)


def test_the_same_seed_decides_the_same() -> None:
    logits = logits_of(*np.linspace(-2, 2, 12))
    assert [sample(logits, seed=s) for s in range(20)] == [sample(logits, seed=s) for s in range(20)]
    assert len({sample(logits, seed=s).picked for s in range(20)}) > 5


@given(st.lists(st.floats(-12, 12), min_size=1, max_size=6), st.integers(0, 2**32))
def test_where_one_is_picked_it_is_exactly_one_with_the_probability_that_is_stored(z: list[float], seed: int) -> None:
    """All of them sum to 1, in any order of visiting, and each is left a share of the exploration."""
    order = list(range(len(z)))
    random.Random(seed).shuffle(order)
    made = decide(
        logits_of(*z), round=1, must_pick=True, order=order, eligible=free, explore=True, rng=random.Random(seed),
        one=True,
    )  # fmt: skip
    assert len(made.picked) == 1
    assert made.log_mu == pytest.approx(log_probability(made.probabilities, made))
    place = made.order.index(made.picked[0])
    assert made.eligible == tuple(i <= place for i in range(len(z)))
    could = [replace(made, picked=(i,), eligible=tuple(j <= made.order.index(i) for j in range(len(z)))) for i in order]
    chances = [math.exp(log_probability(made.probabilities, one)) for one in could]
    assert math.fsum(chances) == pytest.approx(1)
    assert min(chances) > EXPLORATION / len(z) / 2 or len(z) == 1


def test_the_one_is_drawn_by_the_softmax_whatever_the_order_and_the_level() -> None:
    z = [0.3, 1.0, -0.5]
    softmax = np.exp(z) / np.exp(z).sum()
    for order, level in itertools.product(itertools.permutations(range(3)), (-5.0, 0.0, 5.0)):
        logits = logits_of(*z) + np.float32(level)
        made = decide(
            logits, round=1, must_pick=True, order=order, eligible=free, explore=True, rng=random.Random(0), one=True
        )
        assert math.exp(made.log_mu or 0.0) == pytest.approx(softmax[made.picked[0]], rel=1e-5)


def test_greedily_the_one_is_the_likeliest_not_the_first_of_the_likely() -> None:
    made = decide(
        logits_of(2.0, 3.0, 1.0), round=1, must_pick=True, order=(0, 1, 2), eligible=lambda i, _: i != 1, explore=False,
        rng=random.Random(0), one=True,
    )  # fmt: skip
    assert made.picked == (0,)
    free_to_pick = decide(
        logits_of(2.0, 3.0, 1.0), round=1, must_pick=True, order=(0, 2, 1), eligible=free, explore=False,
        rng=random.Random(0), one=True,
    )  # fmt: skip
    assert free_to_pick.picked == (1,)
    assert free_to_pick.log_mu is None
