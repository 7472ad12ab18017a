"""An endpoint that changed: the observer forgets what came before, and reports the change."""

from __future__ import annotations

import random

import numpy as np
import pytest

from focalroute.core.records import HASHED, Member, Outcome
from focalroute.observe.drift import Change
from focalroute.observe.experience import Experience
from focalroute.observe.features import text_features
from focalroute.observe.memory import Memory
from focalroute.observe.observer import Observer

NAMES = ("a", "b", "c")


def row(number: object, *inferred: str, **right: float) -> Outcome:
    members = {name: Member(1, 0, 5, 0.1, None) for name in right}
    return Outcome(str(number), members, right, frozenset(inferred))


def learned(observer: Observer, count: int, at: str, **right: float) -> list[Change]:
    """The changes that so many rows show."""
    changes: list[Change] = []
    for n in range(count):
        changes += observer.learn(row(f"{at} {n}", **right), at=float(n)).values()
    return changes


def test_after_a_change_the_reading_follows_at_once() -> None:
    watching, other = (Observer(NAMES, [None] * 3, detect=detect) for detect in (True, False))
    for observer in (watching, other):
        learned(observer, 200, "before", a=1.0)
        for n in range(100):
            observer.learn(row(f"b{n}", b=float(n % 2)))
    changes = learned(watching, 20, "after", a=0.0)
    learned(other, 20, "after", a=0.0)
    assert changes[0].before == 1.0
    assert changes[0].at <= 8
    assert watching.changes() == (changes[-1], None, None)
    assert watching.seen()[0] <= 28
    assert other.seen()[0] == 220
    assert watching.accuracy()[0] < 0.4 < 0.8 < other.accuracy()[0]
    assert watching.seen()[1] == other.seen()[1] == 100
    assert watching.unsettled
    assert not other.unsettled
    assert other.changes() == (None,) * 3


def test_a_change_is_noticed_where_one_answer_in_five_has_feedback() -> None:
    """The memory of texts remembers the others, too, with what agreement infers."""
    observer, rng = Observer(NAMES, [None] * 3), random.Random(0)
    words, noticed = [f"word{n}" for n in range(40)], list[tuple[int, str]]()
    for n in range(900):
        right = {"a": 0.85 if n < 600 else 0.35, "b": 0.8, "c": 0.75}
        said = {name: 0 if rng.random() < share else rng.randrange(1, 4) for name, share in right.items()}
        members = {name: Member(1, candidate, 5, 0.1, None) for name, candidate in said.items()}
        features = text_features(" ".join(rng.sample(words, 12)))
        observer.agree(Outcome(str(n), members, {}, features=features), 4)
        if n % 5 == 0:
            known = {name: float(candidate == 0) for name, candidate in said.items()}
            noticed += [(n, name) for name in observer.learn(Outcome(str(n), members, known, features=features))]
    assert [name for _, name in noticed] == ["a"]
    assert 600 < noticed[0][0] < 800


def test_two_endpoints_that_are_exchanged_are_noticed_though_they_are_hardly_asked_together() -> None:
    """A single query that both answered said nothing, and kept what each said alone from counting."""
    observer, rng = Observer(NAMES, [None] * 3), random.Random(3)
    assert not observer.learn(row("both", a=1.0, b=1.0))
    changes: dict[str, Change] = {}
    for n in range(600):
        share = {"a": 0.9, "b": 0.5} if n < 400 else {"a": 0.5, "b": 0.9}
        name = "ab"[n % 2]
        found = observer.learn(row(n, **{name: float(rng.random() < share[name])}), at=float(n))
        assert n >= 400 or not found
        changes.update(found)
    assert {name: change.after > change.before for name, change in changes.items()} == {"a": False, "b": True}
    assert max(change.at for change in changes.values()) < 500


def test_endpoints_that_are_asked_alone_fall_together_where_queries_get_harder() -> None:
    observer, rng = Observer(NAMES, [None] * 3), random.Random(3)
    for n in range(1000):
        share = {"a": 0.9, "b": 0.8} if n < 500 else {"a": 0.5, "b": 0.33}
        name = "ab"[n % 2]
        assert not observer.learn(row(n, **{name: float(rng.random() < share[name])}))


def test_only_what_is_known_counts_and_only_once() -> None:
    """Inferred values, and an outcome that is said again or corrected, are no news to the detector."""
    observer = Observer(NAMES, [None] * 3)
    learned(observer, 100, "before", a=1.0)
    for n in range(50):
        assert not observer.learn(row(f"guessed {n}", "a", a=0.0))
    for _ in range(50):
        assert not observer.learn(row("one", a=0.0))
    for n in range(50):
        assert not observer.learn(row(f"before {n}", a=0.0))
    assert not observer.unsettled


def test_the_experience_with_an_endpoint_that_changed_is_dropped() -> None:
    """Its long run and its memory are of what it was; the others keep theirs."""
    vector = np.eye(1, 4, dtype=np.float32)
    accuracy, unknown = np.array([0.9, 0.5, 0.4], np.float32), np.full(3, np.nan, np.float32)
    experience = Experience(NAMES, accuracy, unknown, vector, np.array([[1, 0, 1]], np.float32), unknown[None])
    observer = Observer(NAMES, [None] * 3, embed=lambda _: vector[0], embedder=HASHED)
    observer.adopt(experience)
    believed = observer.accuracy()
    assert believed[0] > believed[1] > believed[2]
    learned(observer, 100, "others", b=1.0, c=1.0)
    learned(observer, 100, "before", a=1.0)
    assert learned(observer, 30, "after", a=0.0)
    observer.adopt(experience)  # of the same policy: nothing new
    now = observer.accuracy()
    assert now[0] < 0.35
    assert now[1] - now[2] == pytest.approx((believed[1] - believed[2]) * 50 / 150)


def test_a_memory_counts_what_to_keep_in_feedback() -> None:
    """Each fifth outcome has feedback; what agreement inferred since the latest but two of those is kept."""
    memory, kept = Memory(2), Memory(2)
    texts = [text_features(f"question {n}") for n in range(30)]
    for n, text in enumerate(texts):
        memory.add(str(n), text, [float(n >= 20), 1.0], inferred=n % 5 > 0)
        kept.add(str(n), text, [float(n >= 20) if n > 15 else np.nan, 1.0], inferred=n % 5 > 0)
    memory.forget(0, 2)
    assert memory.surprise(0, 2) == kept.surprise(0, 2) == np.inf  # nothing with feedback is older
    assert memory.estimate(texts[18]).right.tolist() == kept.estimate(texts[18]).right.tolist()


def test_a_memory_forgets_one_endpoints_past_alone() -> None:
    vector = np.ones(2, np.float32) / np.sqrt(2)
    memory, without = Memory(2), Memory(2)
    for n in range(30):
        memory.add(f"old {n}", vector, [1.0, n % 2])
        without.add(f"old {n}", vector, [np.nan, n % 2])
    for n in range(4):
        memory.add(f"new {n}", vector, [0.0, np.nan])
        without.add(f"new {n}", vector, [0.0, np.nan])
    memory.forget(0, 4)
    assert memory.estimate(vector).right == pytest.approx(without.estimate(vector).right)
    assert len(memory) == 34


def test_a_change_of_an_endpoint_that_is_not_in_the_pool_changes_nothing() -> None:
    observer = Observer(NAMES, [None] * 3)
    learned(observer, 100, "before", gone=1.0)
    assert learned(observer, 20, "after", gone=0.0)
    assert not observer.unsettled
    assert observer.changes() == (None,) * 3


@pytest.mark.parametrize("told", [True, False])
def test_a_topic_that_comes_back_is_not_a_change(told: bool) -> None:
    """Of an endpoint that is poor at one topic, and asked about two by turns; without texts it looks like one."""
    observer, changes = Observer(NAMES, [None] * 3), list[Change]()
    topics = {"algebra: solve for x": 0.2, "history: who reigned then": 0.9}
    for n in range(360):
        topic, right = list(topics.items())[n % 2 if n < 120 else n // 60 % 2]
        features = text_features(f"{topic}, number {n}") if told else None
        outcome = Outcome(
            str(n), {"a": Member(1, 0, 5, 0.1, None)}, {"a": float(n * 7 % 10 < 10 * right)}, features=features
        )
        changes += observer.learn(outcome).values()
    assert bool(changes) is not told
