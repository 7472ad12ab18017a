"""The memory of texts: its estimate in closed form, and its ring."""

from __future__ import annotations

import math

import numpy as np
import pytest

from focalroute.observe import memory as module
from focalroute.observe.drift import THRESHOLD
from focalroute.observe.memory import CAPACITY, MEAN_PRIOR, MOST_COST, SHRINK, Memory, cosines, kernel

X, Y, BETWEEN = (np.array(v, np.float32) for v in ([1, 0], [0, 1], [math.sqrt(0.5), math.sqrt(0.5)]))
UNKNOWN = math.nan


def unit(rng: np.random.Generator, count: int, width: int = 8) -> np.ndarray:
    vectors = rng.standard_normal((count, width))
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def values(rng: np.random.Generator, count: int, n: int = 3) -> np.ndarray:
    some = rng.choice([0.0, 1.0, 0.3], (count, n))
    return np.where(rng.random((count, n)) < 0.3, np.nan, some).astype(np.float32)


def weights_of(vectors: np.ndarray, x: np.ndarray) -> np.ndarray:
    """w_r of the module's first lines in float64, the mean being that of all."""
    mean = vectors.astype(float).sum(axis=0) / (len(vectors) + MEAN_PRIOR)
    offsets, own = vectors - mean, x - mean
    cosines = offsets @ own / np.linalg.norm(offsets, axis=1) / np.linalg.norm(own)
    return np.asarray(np.maximum(cosines, 0) ** 3)


def closed_form(vectors: np.ndarray, v: np.ndarray, x: np.ndarray, typical: float) -> np.ndarray:
    """The estimate of the module's first lines in float64, row by row."""
    n = v.shape[1]
    there = ~np.isnan(v)
    overall = (v[there].sum() + 1) / (there.sum() + 2)
    found = np.zeros(n)
    for i in range(n):
        mine = v[there[:, i], i].astype(float)
        weights = weights_of(vectors, x)[there[:, i]]
        mean = (mine.sum() + 10 * overall) / (len(mine) + 10)
        s = max(SHRINK * typical, 1e-6)
        found[i] = ((weights * mine).sum() + s * mean) / (weights.sum() + s)
    return np.asarray(found - found.mean())


def test_the_kernel_is_the_third_power_of_what_is_positive() -> None:
    assert kernel(np.array([-1, 0, 0.5, 1], np.float32)).tolist() == [0, 0, 0.125, 1]


def test_costs_on_similar_texts_by_hand() -> None:
    """Of a four times its usual cost on X's like, the usual one on Y's; of b nothing is known."""
    memory = Memory(2)
    memory.add("1", X, [1.0, 0.0], [4.0, UNKNOWN])
    memory.add("2", Y, [1.0, 0.0], [1.0, UNKNOWN])
    mean = (4 + 1 + 10) / 12
    dear, b = memory.estimate(X).cost
    assert dear == pytest.approx((4 + 0.1 * mean) / 1.1 / mean, abs=1e-6)
    assert b == pytest.approx(1)
    assert memory.estimate(Y).cost[0] == pytest.approx((1 + 0.1 * mean) / 1.1 / mean, abs=1e-6)
    memory.forget(0, 0)
    assert memory.estimate(X).cost == pytest.approx([1, 1])
    assert memory.estimate(np.zeros(2, np.float32)).cost.tolist() == [1, 1]  # an empty text


def test_a_single_cost_is_bounded() -> None:
    memory = Memory(1)
    memory.add("1", X, [1.0], [1e9])
    assert memory.estimate(X).cost[0] < MOST_COST


def test_the_estimate_by_hand() -> None:
    """On X's like a was right and b wrong, on Y's the other way round."""
    memory = Memory(2)
    memory.add("1", X, [1.0, 0.0])
    memory.add("2", Y, [0.0, 1.0])
    # means: overall 1/2, each (1 + 10 / 2) / 12 = 1/2; the first text's sum of weights is the typical one: s = 0.1
    assert memory.estimate(X).right == pytest.approx([(1 + 0.05) / 1.1 - 0.5, 0.05 / 1.1 - 0.5], abs=1e-6)
    # both weigh the same: both are right on half; typical has moved by a fiftieth, which changes nothing here
    assert memory.estimate(BETWEEN).right == pytest.approx([0, 0], abs=1e-6)
    assert memory.estimate(-X).right == pytest.approx([0, 0], abs=1e-4)  # but for what is taken off, like neither


def test_an_unknown_endpoint_keeps_the_mean() -> None:
    memory = Memory(2)
    memory.add("1", X, [1.0, UNKNOWN])
    mean_a, mean_b = (1 + 10 * 2 / 3) / 11, 2 / 3
    a = (1 + 0.1 * mean_a) / 1.1
    assert memory.estimate(X).right == pytest.approx([(a - mean_b) / 2, (mean_b - a) / 2], abs=1e-6)


def test_the_estimate_equals_its_definition_and_forgets_the_typical_sum_slowly() -> None:
    rng = np.random.default_rng(0)
    vectors, v, texts = unit(rng, 39), values(rng, 39), unit(rng, 5)
    memory = Memory(3)
    for i in range(39):  # the last of which has had the mean taken again
        memory.add(str(i), vectors[i], v[i].tolist())
    typical = 0.0
    for x in texts:
        total = float(weights_of(vectors, x).sum())
        typical = typical + 0.02 * (total - typical) if typical else total
        assert memory.estimate(x).right == pytest.approx(closed_form(vectors, v, x, typical), abs=1e-5)


def test_filled_at_once_it_answers_as_if_told_one_by_one() -> None:
    rng = np.random.default_rng(1)
    vectors, v, x = unit(rng, 100), values(rng, 100), unit(rng, 1)[0]
    memory = Memory(3)
    memory.add("other", x, [0.0, 0.0, 1.0])
    memory.fill(vectors, v, np.full_like(v, np.nan))
    assert len(memory) == 100
    sums = np.median([weights_of(vectors, one).sum() - 1 for one in vectors])
    typical = sums + 0.02 * (weights_of(vectors, x).sum() - sums)
    assert memory.estimate(x).right == pytest.approx(closed_form(vectors, v, x, typical), abs=1e-5)
    memory.fill(np.zeros((0, 0), np.float32), *np.zeros((2, 0, 3), np.float32))
    assert len(memory) == 0
    assert memory.estimate(x).right.tolist() == [0, 0, 0]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> int:
    """Room for 16."""
    monkeypatch.setattr(module, "CAPACITY", 16)
    return 16


def test_a_full_one_forgets_by_chance_and_the_sums_stay_true(small: int) -> None:
    """After any number of rounds it is the memory of those that are left; old ones are among them."""
    rng = np.random.default_rng(2)
    vectors, v, x = unit(rng, 500), values(rng, 500), unit(rng, 1)[0]
    long = Memory(3)
    for i in range(500):
        long.add(str(i), vectors[i], v[i].tolist())
    kept = sorted(int(answer) for answer in long._places)
    short = Memory(3)
    for i in kept:
        short.add(str(i), vectors[i], v[i].tolist())
    assert len(long) == len(short) == len(kept) == small
    assert long._sums == pytest.approx(short._sums, abs=1e-9)
    for one in (long, short):
        one._centre()
    assert long.estimate(x).right == pytest.approx(short.estimate(x).right, abs=1e-6)
    assert kept[0] < 500 - 2 * small


def test_features_that_all_texts_share_do_not_count() -> None:
    """Two kinds of text that are nearly alike for what both have in common are told apart as if they had not."""
    shared, memory = np.array([0, 0, 3], np.float32), Memory(1)
    first, second = (np.append(v, 0).astype(np.float32) + shared for v in (X, Y))
    first, second = (v / np.linalg.norm(v) for v in (first, second))
    assert first @ second > 0.85
    for i in range(200):
        memory.add(f"first {i}", first, [1.0])
        memory.add(f"second {i}", second, [0.0])
    weights = kernel(cosines(memory._vectors[:2], memory._vectors[:2], memory._mean[None]))
    assert weights[0, 1] < 0.001
    assert weights[0, 0] == pytest.approx(1, abs=1e-4)


def test_the_mean_of_the_texts_is_never_older_than_an_eighth_of_them(
    small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many came, so that taking it again costs little for each of them."""
    taken: list[int] = []
    centre = Memory._centre

    def counted(memory: Memory) -> None:
        centre(memory)
        taken.append(memory._added)

    monkeypatch.setattr(Memory, "_centre", counted)
    rng, memory = np.random.default_rng(6), Memory(1)
    for i in range(100):
        memory.add(str(i), unit(rng, 1)[0], [1.0])
        assert memory._added - taken[-1] <= len(memory) / 8
        offsets = memory._vectors[: len(memory)] - memory._mean
        np.testing.assert_allclose(memory._scale[: len(memory)], 1 / np.linalg.norm(offsets, axis=1), rtol=1e-4)
    assert len(taken) < 50


def test_an_endpoint_is_forgotten_by_age_wherever_its_rows_lie(small: int) -> None:
    rng = np.random.default_rng(5)
    memory = Memory(1)
    for i in range(100):
        memory.add(str(i), unit(rng, 1)[0], [1.0])
    newest = sorted(int(answer) for answer in memory._places)[-4:]
    memory.forget(0, newest=4)
    assert memory._sums.tolist() == [4, 4, 4]
    assert sorted(memory._rows[:, 1].nonzero()[0]) == sorted(memory._places[str(answer)] for answer in newest)


def test_filling_with_too_many_keeps_some_from_first_to_last(small: int) -> None:
    rng = np.random.default_rng(3)
    vectors, v, x = unit(rng, 40), rng.integers(0, 2, (40, 3)).astype(np.float32), unit(rng, 1)[0]
    memory, alone = Memory(3), Memory(3)
    memory.fill(vectors, v, np.full_like(v, np.nan))
    fit = module.spread(40)
    assert (fit[0], fit[-1], len(fit)) == (0, 39, small)
    assert set(np.diff(fit).tolist()) <= {2, 3}
    alone.fill(vectors[fit], v[fit], np.full_like(v[fit], np.nan))
    assert len(memory) == small
    assert memory.estimate(x).right.tolist() == alone.estimate(x).right.tolist()


def test_an_answer_told_again_is_replaced_where_it_stands(small: int) -> None:
    memory, alone = Memory(2), Memory(2)
    memory.add("first", X, [1.0, 0.0])
    memory.add("second", Y, [0.0, UNKNOWN])
    memory.add("first", X, [0.0, 1.0])
    alone.add("first", X, [0.0, 1.0])
    alone.add("second", Y, [0.0, UNKNOWN])
    assert len(memory) == 2
    assert memory.estimate(X).right == pytest.approx(alone.estimate(X).right, abs=1e-6)
    memory.add("second", Y, [UNKNOWN, UNKNOWN])  # what was known is taken back
    assert memory._sums.tolist() == [0, 1, 1, 1, 1, 1]
    for i in range(20 * small):
        memory.add(str(i), Y, [1.0, 1.0])
    memory.add("first", X, [1.0, 1.0])  # long overwritten: a row of its own
    assert len(memory) == small
    assert "second" not in memory._places


def test_a_text_without_features_is_not_remembered() -> None:
    memory = Memory(2)
    memory.add("1", X, [UNKNOWN, UNKNOWN])
    memory.add("2", np.zeros(2, np.float32), [1.0, 0.0])
    memory.add("3", np.zeros(0, np.float32), [1.0, 0.0])
    assert len(memory) == 0
    memory.add("4", X, [1.0, 0.0])
    memory.add("5", np.zeros(0, np.float32), [1.0, 0.0])  # an answer kept by an earlier version has no features
    assert len(memory) == 1
    assert memory.estimate(np.zeros(2, np.float32)).right.tolist() == [0, 0]
    assert memory.estimate(np.zeros(0, np.float32)).right.tolist() == [0, 0]


def test_features_of_another_width_begin_it_anew() -> None:
    memory, alone = Memory(2), Memory(2)
    for i in range(5):
        memory.add(str(i), X, [1.0, 0.0])
    memory.estimate(X)
    wide = np.array([0.6, 0.8, 0.0], np.float32)
    assert memory.estimate(wide).right.tolist() == [0, 0]
    assert len(memory) == 5
    for one in (memory, alone):
        one.add("1", wide, [0.0, 1.0])
    assert len(memory) == 1
    assert memory.estimate(wide).right == pytest.approx(alone.estimate(wide).right, abs=1e-6)
    assert memory.estimate(X).right.tolist() == [0, 0]


def test_it_takes_no_more_room_than_its_capacity() -> None:
    memory = Memory(1)
    vectors = unit(np.random.default_rng(4), 7, 2)
    for i in range(CAPACITY + 10):
        memory.add(str(i), vectors[i % 7], [float(i % 2)])
    assert len(memory) == CAPACITY
    assert memory._vectors.shape == (CAPACITY, 2)
    assert memory._sums.tolist() == [memory._rows[:, 0].sum(), CAPACITY, CAPACITY]


def test_outcomes_surprise_where_what_is_remembered_of_such_texts_was_otherwise() -> None:
    """Right on X and wrong on Y before: then half right on Y is a surprise, and wrong is none."""
    memory = Memory(2)
    for n in range(40):
        memory.add(f"x {n}", X, [1.0, UNKNOWN])
        memory.add(f"y {n}", Y, [0.0, UNKNOWN])
    for n in range(10):
        memory.add(f"wrong {n}", Y, [0.0, UNKNOWN])
    assert memory.surprise(0, 10) < 0.5
    for n in range(10):
        memory.add(f"half {n}", Y, [float(n % 2), UNKNOWN])
    expected = SHRINK * 50 * 40 / 90 / (50 + SHRINK * 50)  # 50 on Y, the mean of all 90 with a tenth of their weight
    variance = 10 * max(expected * (1 - expected), 0.05)
    assert memory.surprise(0, 10) == pytest.approx((5 - 10 * expected) ** 2 / variance / 2, rel=1e-5)
    assert memory.surprise(0, 100) == memory.surprise(1, 5) == math.inf
    assert Memory(1).surprise(0, 5) == math.inf


def test_a_new_kind_of_text_surprises_little_however_often_it_is_asked() -> None:
    """Wrong 30 times on what resembles nothing: how right an endpoint is there was never known."""
    memory = Memory(1)
    for n in range(200):
        memory.add(f"x {n}", X, [float(n % 10 > 0)])
    for n in range(30):
        memory.add(f"y {n}", Y, [0.0])
    new, like = memory.surprise(0, 30), Memory(1)
    for n in range(230):
        like.add(f"x {n}", X, [float(n < 200 and n % 10 > 0)])
    assert new < 8 < like.surprise(0, 30)


@pytest.mark.parametrize(("stretches", "surprising"), [((36, 20), False), ((28, 28), True)])
def test_outcomes_that_vary_from_stretch_to_stretch_surprise_little(
    stretches: tuple[int, int], surprising: bool
) -> None:
    """Right on 12 of 40 like texts after ten stretches of 40, in which as many were right all along, or now more."""
    memory = Memory(1)
    for stretch, right in enumerate([*stretches * 5, 12]):
        for n in range(40):
            memory.add(f"{stretch} {n}", X, [float(n < right)])
    assert (memory.surprise(0, 40) >= THRESHOLD) is surprising
