"""A policy's experience: written as arrays and read back, matched by name, adopted by an observer."""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from focalroute.core.records import HASHED, Member, Outcome, Query, Reply
from focalroute.observe.experience import Experience
from focalroute.observe.layout import ENDPOINT, MEMBER, slices
from focalroute.observe.observer import Observer

NAMES = ("a", "b", "c")


def experience(seed: int = 0, count: int = 30, width: int = 6) -> Experience:
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((count, width))
    values = np.where(rng.random((count, 3)) < 0.3, np.nan, rng.random((count, 3)))
    return Experience(
        NAMES,
        np.array([0.9, 0.6, 0.6], np.float32),
        np.array([0.5, np.nan, 0.25], np.float32),
        (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32),
        values.astype(np.float32),
        np.full((count, 3), np.nan, np.float32),
    )


def embedded(vectors: np.ndarray, names: tuple[str, ...] = NAMES) -> Observer:
    """An observer whose queries' texts are the numbers of these vectors; it heeds no order of outcomes."""
    return Observer(names, [None] * len(names), detect=False, embed=lambda text: vectors[int(text)], embedder=HASHED)


def ask(text: int) -> Query:
    return Query("q", ({"role": "user", "content": str(text)},), choices=("x", "y"), answer=None)


def similar(observer: Observer, text: int = 0) -> list[float]:
    seen = observer.begin(ask(text)).observe(round=1, cost_weight=0.1, budget_left=1.0)
    return [float(x) for x in seen.endpoints[:, slices(ENDPOINT)["similar"].start]]


def outcome(at: int, vector: np.ndarray | None = None, **right: float) -> Outcome:
    return Outcome(f"o{at}", {name: Member(1, 0, 10, 1.0, None) for name in right}, right, features=vector)


# --- as arrays -------------------------------------------------------------------------------------------


def test_it_comes_back_from_its_arrays_within_their_precision() -> None:
    made = experience(count=200, width=32)
    arrays = made.arrays()
    assert {key: array.dtype.kind + str(array.dtype.itemsize) for key, array in arrays.items() if key != "names"} == {
        "accuracy": "f4",
        "usd": "f4",
        "vectors": "i1",
        "values": "f2",
        "costs": "f2",
        "embedder": f"U{4 * len(HASHED)}",
    }
    back = Experience.of(arrays)
    assert back.names == NAMES
    assert (back.accuracy == made.accuracy).all()
    np.testing.assert_array_equal(back.usd, made.usd)
    np.testing.assert_allclose(back.values, made.values, atol=2**-12)
    assert (np.isnan(back.values) == np.isnan(made.values)).all()
    assert np.linalg.norm(back.vectors, axis=1) == pytest.approx(1, abs=1e-6)
    assert np.sum(back.vectors * made.vectors, axis=1) == pytest.approx(1, abs=1e-3)
    for array in (back.accuracy, back.vectors, back.values):
        assert array.dtype == np.float32


def test_an_experience_read_from_arrays_is_equal_after_every_further_round_trip() -> None:
    made = experience()
    back = Experience.of(made.arrays())
    assert Experience.of(back.arrays()).same(back)
    assert not back.same(made)  # coarser
    assert made.same(experience())
    assert not made.same(experience(1))
    assert not made.same(replace(made, names=("a", "b", "d")))
    assert not made.same(replace(made, accuracy=made.accuracy[::-1].copy()))
    assert not made.same(replace(made, usd=2 * made.usd))
    assert not made.same(replace(made, values=1 - made.values))
    assert not made.same(replace(made, vectors=made.vectors[:-1], values=made.values[:-1], costs=made.costs[:-1]))
    assert not made.same(replace(made, vectors=made.vectors.reshape(15, 12)))


def test_costs_on_a_text_survive_the_round_trip_and_are_remembered() -> None:
    made = experience()
    x, dear = made.vectors[0], np.full((30, 3), np.nan, np.float32)
    dear[0], dear[1:] = 5, 1
    known = replace(made, costs=dear)
    back = Experience.of(known.arrays())
    assert back.same(Experience.of(back.arrays()))
    assert not known.same(made)
    assert not known.same(replace(made, costs=2 * dear))
    asked = ~np.isnan(made.values[0])
    cost = back.memory(NAMES).estimate(x).cost
    assert (cost[asked] > 1.2).all()
    former = Experience.of({name: array for name, array in known.arrays().items() if name != "costs"})
    assert former.memory(NAMES).estimate(x).cost == pytest.approx([1, 1, 1])  # an earlier version kept no costs


def test_the_long_runs_costs_take_the_place_of_listed_prices_where_they_are_known() -> None:
    found = experience().prices(np.array([1.0, 2.0, np.nan]), ("b", "a", "new"))
    np.testing.assert_array_equal(found, [1.0, 0.5, np.nan])


def test_without_texts_or_names_it_is_still_one() -> None:
    none = np.zeros(0, np.float32)
    for made in (
        replace(experience(count=0), vectors=np.zeros((0, 0), np.float32)),
        Experience((), none, none, np.zeros((2, 4), np.float32), *np.zeros((2, 2, 0), np.float32)),
    ):
        back = Experience.of(made.arrays())
        assert back.names == made.names
        assert back.same(Experience.of(back.arrays()))
        assert len(back.memory(NAMES)) == len(made.values)


@pytest.mark.parametrize(
    "wrong",
    [
        {"names": None},
        {"values": None},
        {"names": np.array(["a", "b"])},
        {"names": np.array(["a", "b", "b"])},
        {"names": np.arange(3)},
        {"names": np.array([["a"], ["b"], ["c"]]), "accuracy": np.zeros((3, 1))},
        {"accuracy": np.zeros((1, 3))},
        {"accuracy": np.array(["0.1", "0.2", "0.3"])},
        {"accuracy": np.array([0.1, 0.2, math.nan])},
        {"accuracy": np.array([0.1, 0.2, 1.5])},
        {"usd": None},
        {"usd": np.zeros(2)},
        {"usd": np.array([0.1, -0.2, 0.3])},
        {"vectors": np.zeros((29, 6), np.int8)},
        {"vectors": np.zeros(30, np.int8)},
        {"vectors": np.full((30, 6), math.inf)},
        {"values": np.zeros((30, 2), np.float16)},
        {"values": np.full((30, 3), -1.0)},
        {"values": np.full((30, 3), math.inf)},
        {"values": np.float32(1)},
        {"costs": np.ones((30, 2), np.float16)},
        {"costs": np.ones((30, 3), np.int8)},
        {"costs": np.full((30, 3), -1.0)},
    ],
)
def test_arrays_that_hold_none_are_refused(wrong: dict[str, Any]) -> None:
    arrays = {**experience().arrays(), **wrong}
    with pytest.raises(ValueError, match=r"is missing|its (arrays|numbers|costs) "):
        Experience.of({key: np.asarray(array) for key, array in arrays.items() if array is not None})


def test_offsets_are_from_the_mean_of_those_known_in_the_pool() -> None:
    made = experience()
    assert made.offsets(NAMES) == pytest.approx((0.2, -0.1, -0.1))
    assert made.offsets(("stranger", "b", "a")) == pytest.approx((math.nan, -0.15, 0.15), nan_ok=True)
    assert np.isnan(made.offsets(("stranger",))).all()


def test_a_memory_is_filled_by_name() -> None:
    made = experience()
    x = made.vectors[0]
    whole, turned = made.memory(NAMES).estimate(x).right, made.memory(("c", "a", "b")).estimate(x).right
    assert turned == pytest.approx([whole[2], whole[0], whole[1]], abs=1e-6)
    with_stranger = made.memory(("a", "stranger")).estimate(x).right
    assert with_stranger[0] == pytest.approx(-with_stranger[1], abs=1e-6)
    assert with_stranger[0] != 0
    assert made.memory(("stranger",)).estimate(x).right == [0]
    assert len(made.memory(("a",))) == 30


# --- taken over ------------------------------------------------------------------------------------------


def test_the_long_run_becomes_the_prior_of_the_accuracy() -> None:
    made = experience()
    observer = embedded(made.vectors, ("a", "stranger", "b"))
    observer.learn(outcome(0, a=1.0, stranger=1.0, b=1.0))
    observer.adopt(made)
    level = (3 + 1) / (3 + 2)  # the offsets, +0.15 and -0.15, cancel
    expected = [(1 + 50 * min(level + 0.15, 0.98)) / 51, (1 + 10 * level) / 11, (1 + 50 * (level - 0.15)) / 51]
    assert observer.accuracy() == pytest.approx(expected)
    assert observer.seen() == (1, 1, 1)  # what the window knew stays


def test_similar_queries_are_shown_to_decider_and_fusion() -> None:
    made = experience()
    observer = embedded(made.vectors)
    assert similar(observer) == [0, 0, 0]
    observer.adopt(made)
    memory = made.memory(NAMES)
    sight = observer.begin(ask(0))
    expected = [4 * x for x in memory.estimate(made.vectors[0]).right]
    seen = sight.observe(round=1, cost_weight=0.1, budget_left=1.0)
    assert seen.endpoints[:, slices(ENDPOINT)["similar"].start] == pytest.approx(expected, abs=1e-6)
    assert any(expected)
    sight.add(Reply("c", choice=1), 1)
    sight.add(Reply("a", choice=0), 1)
    through = sight.evidence().members[:, :, slices(MEMBER)["similar"].start]
    assert through == pytest.approx(np.array([[expected[0], expected[2]]] * 2), abs=1e-6)


def test_adopting_the_same_again_keeps_what_was_learned_since_and_another_replaces_it() -> None:
    made, other = Experience.of(experience().arrays()), experience(1)
    observer, untaught, fresh = (embedded(made.vectors) for _ in range(3))
    observer.adopt(made)
    untaught.adopt(made)
    for t in range(40):
        observer.learn(outcome(t, made.vectors[0], a=0.0, b=1.0))
    learned = similar(observer)
    assert learned[0] < similar(untaught)[0] - 0.5
    for again in (made, Experience.of(made.arrays()), None):
        observer.adopt(again)
        assert similar(observer) == pytest.approx(learned, abs=0.05)  # the typical sum of weights moves with each ask
    observer.adopt(other)
    fresh.adopt(other)
    assert similar(observer) == pytest.approx(similar(fresh), abs=1e-6)
    assert observer.seen() == (40, 40, 0)


def test_only_members_are_remembered_and_feedback_said_again_counts_once() -> None:
    made = experience()
    observer, alone = embedded(made.vectors), embedded(made.vectors)
    observer.learn(outcome(0, made.vectors[0], a=0.0, b=1.0))
    said = outcome(0, made.vectors[0], a=1.0, b=0.0)
    observer.learn(replace(said, right={**said.right, "c": 1.0}))
    alone.learn(said)
    assert similar(observer) == pytest.approx(similar(alone), abs=1e-6)
    assert similar(alone)[0] > 0 > similar(alone)[1]


def test_adopting_learning_and_asking_from_many_threads_ends_where_one_alone_does() -> None:
    made, other = experience(), experience(1)
    shared, alone = embedded(made.vectors), embedded(made.vectors)
    rows = [outcome(t, made.vectors[t % 30], a=float(t % 3 > 0), b=float(t % 2)) for t in range(100)]
    failures: list[BaseException] = []

    def watched(work: Any, part: Any) -> None:
        try:
            for item in part:
                work(item)
        except Exception as error:  # noqa: BLE001 - reported below
            failures.append(error)

    def look(text: int) -> None:
        if not np.isfinite(similar(shared, text)).all():
            raise ValueError("not finite")

    jobs = [(look, [t % 30 for t in range(100)])] * 2 + [(shared.learn, rows[0::2]), (shared.learn, rows[1::2])]
    jobs += [(shared.adopt, [made, other] * 20)]  # type: ignore[list-item]
    threads = [threading.Thread(target=watched, args=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    for row in rows:
        alone.learn(row)
    for observer in (shared, alone):
        observer.adopt(made)
        observer.adopt(other)
    assert shared.accuracy() == alone.accuracy()
    assert shared.seen() == (100, 100, 0)
