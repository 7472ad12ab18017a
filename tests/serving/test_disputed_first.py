"""Which answers to label: mostly those whose members differ, at the share asked for."""

from __future__ import annotations

import random

import pytest

from focalroute.serving.labelling import DisputedFirst


def probabilities(share: float, disputed: float, after: int = 3000) -> tuple[float, float]:
    """Of an undisputed and a disputed answer, in the mean, once this many were seen."""
    rng, drawn, totals = random.Random(0), DisputedFirst(share), ([0.0], [0.0])
    for n in range(after + 3000):
        differ = rng.random() < disputed
        probability = drawn.probability(differ)
        assert 0 <= probability <= 1
        if n >= after:
            totals[differ].append(probability)
    return sum(totals[0]) / (len(totals[0]) - 1), sum(totals[1]) / (len(totals[1]) - 1)


@pytest.mark.parametrize("share", [0.02, 0.1, 0.5])
@pytest.mark.parametrize("disputed", [0.1, 0.3, 0.6])
def test_the_share_is_kept_and_three_quarters_of_it_are_disputed(share: float, disputed: float) -> None:
    other, differing = probabilities(share, disputed)
    assert (1 - disputed) * other + disputed * differing == pytest.approx(share, rel=0.05)
    first = min(1.0, share / 4 + 0.75 * share / disputed)
    assert differing == pytest.approx(first, rel=0.1)
    assert other > 0


@pytest.mark.parametrize(("share", "expected"), [(0.0, 0.0), (1.0, 1.0)])
def test_none_and_all_stay_none_and_all(share: float, expected: float) -> None:
    assert probabilities(share, 0.2, after=0) == pytest.approx((expected, expected))


@pytest.mark.parametrize("disputed", [0.0, 1.0])
def test_where_members_never_or_always_differ_the_share_is_drawn_at_random(disputed: float) -> None:
    drawn = DisputedFirst(0.1)
    kept = [drawn.probability(bool(disputed)) for _ in range(3000)]
    assert kept[-1] == pytest.approx(0.1, abs=0.005)


def test_it_follows_a_pool_whose_members_differ_less_than_they_did() -> None:
    """The share would fall short if all answers ever counted."""
    rng, drawn, kept = random.Random(1), DisputedFirst(0.1), []
    for n in range(6000):
        differ = rng.random() < (0.5 if n < 3000 else 0.05)
        kept.append(drawn.probability(differ))
    assert sum(kept[-1500:]) / 1500 == pytest.approx(0.1, abs=0.015)


def test_the_share_is_kept_from_the_first_answer_on_if_earlier_ones_are_known() -> None:
    assert DisputedFirst(0.1).probability(True) == pytest.approx(0.4)
    assert DisputedFirst(0.1, [True] * 100).probability(True) == pytest.approx(0.1, abs=0.01)


def test_nothing_is_drawn_of_a_share_of_0_however_long_no_answer_was_disputed() -> None:
    drawn = DisputedFirst(0.0)
    drawn._disputed = 5e-324
    assert drawn.probability(True) == 0
