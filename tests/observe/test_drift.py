"""The change detector: few false alarms, short delays in both directions, and not misled by hard queries."""

from __future__ import annotations

import random
import statistics

import pytest

from focalroute.observe.drift import Change, Detector


def watch(detector: Detector, share: float, outcomes: int, rng: random.Random) -> tuple[int, Change] | None:
    """The first change, and after how many outcomes."""
    for n in range(1, outcomes + 1):
        change = detector.push(rng.random() < share)
        if change is not None:
            return n, change
    return None


@pytest.mark.parametrize("share", [0.5, *(pytest.param(share, marks=pytest.mark.slow) for share in (0.7, 0.9))])
def test_false_alarms_are_rare(share: float) -> None:
    """About one in 5,000 outcomes at the most, as its documentation says."""
    rng, detector = random.Random(3), Detector()
    assert sum(detector.push(rng.random() < share) is not None for _ in range(10_000)) <= 5


@pytest.mark.parametrize(("before", "after"), [(0.7, 0.4), (0.4, 0.7)])
def test_a_change_is_found_soon_and_described(before: float, after: float) -> None:
    delays, changes = [], []
    for seed in range(30):
        rng, detector = random.Random(seed), Detector()
        watch(detector, before, 100, rng)
        found = watch(detector, after, 1000, rng)
        assert found is not None
        delays.append(found[0])
        changes.append(found[1])
    assert statistics.median(delays) < 70
    assert statistics.median(change.before for change in changes) == pytest.approx(before, abs=0.1)
    assert statistics.median(change.after for change in changes) == pytest.approx(after, abs=0.15)


def test_outcomes_before_the_change_are_forgotten() -> None:
    """Of two in three right before and none since not more than a block's width of the old is left, and it is said."""
    detector = Detector()
    assert not any(detector.push(n % 3 > 0) for n in range(300))
    delay, change = next((n, change) for n in range(1, 100) if (change := detector.push(False)) is not None)
    assert delay <= change.since <= delay + 4
    assert delay < 15
    assert change.before == pytest.approx(2 / 3, abs=0.01)
    assert sum(block[0] for blocks in detector._levels for block in blocks) == change.since
    assert str(Change(0.75, 0.2, 10)) == "right 20% of the last 10 times, 75% before"


def test_a_change_that_is_not_confirmed_is_looked_at_again_and_nothing_is_forgotten() -> None:
    detector, seen = Detector(), list[Change]()
    assert not any(detector.push(True) for _ in range(100))

    def confirmed(change: Change) -> bool:
        seen.append(change)
        return change.since > 20

    change = next(change for _ in range(60) if (change := detector.push(False, confirmed=confirmed)) is not None)
    assert change == seen[-1]
    assert change.before == 1.0
    assert len(seen) < 6  # texts are compared each time


def test_when_all_are_right_less_often_no_endpoint_changed() -> None:
    """The queries got harder. Without looking at the peers the same outcomes are a change."""
    rng = random.Random(1)
    aware, blind = Detector(), Detector()
    seen = {"aware": 0, "blind": 0}
    for n in range(1000):
        hard = n >= 500
        right = rng.random() < (0.3 if hard else 0.8)
        peers_right = sum(rng.random() < (0.35 if hard else 0.85) for _ in range(3))
        seen["aware"] += aware.push(right, 3, peers_right) is not None
        seen["blind"] += blind.push(right) is not None
    assert seen == {"aware": 0, "blind": 1}


def test_among_steady_peers_its_own_change_is_found() -> None:
    rng, detector = random.Random(2), Detector()
    changes = []
    for n in range(600):
        right = rng.random() < (0.8 if n < 300 else 0.3)
        peers_right = sum(rng.random() < 0.7 for _ in range(2))
        changes.append(detector.push(right, 2, peers_right))
    (found,) = [n for n, change in enumerate(changes) if change is not None]
    assert 300 < found < 400


@pytest.mark.slow
def test_its_memory_is_logarithmic() -> None:
    detector = Detector()
    for n in range(20_000):
        detector.push(n % 2 == 0)
    assert sum(map(len, detector._levels)) <= 27
