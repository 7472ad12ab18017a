"""Choices that recur: how often each is right, and which endpoint confuses which."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from focalroute.answers import candidate_key
from focalroute.core.records import Labelled, Member, Outcome, Query, Reply
from focalroute.learn.offline.prior_stats import confusion
from focalroute.observe.confusion import Confusion, ConfusionStats
from focalroute.observe.experience import Experience
from focalroute.observe.layout import MEMBER, slices
from focalroute.observe.observer import Observer
from tests.learn.offline.histories import Kind, history

LABELS = ("ham", "junk", "spam")
ACCURACY = np.array([0.7, 0.7])
CALIBRATED = slices(MEMBER)["calibrated"].start


def filled(rows: list[tuple[int, dict[int, int]]], kept: int = 500) -> ConfusionStats:
    """Labelled answers: the right choice, and what each endpoint gave."""
    stats = ConfusionStats(2, kept)
    for n, (right, votes) in enumerate(rows):
        stats.add(str(n), Labelled(None, LABELS, right), votes)
    return stats


def of(stats: ConfusionStats, labels: tuple[str, ...] = LABELS) -> Confusion:
    found = stats.of(None, labels, ACCURACY)
    assert found is not None
    return found


def by(confusion: Confusion, vote: int, endpoint: int = 0) -> list[float]:
    """Return the evidence of one vote for each choice, in nats, beyond the endpoint's accuracy."""
    said: list[float] = confusion.votes[endpoint, vote].tolist()
    return said


def votes(n: int, seed: int, *, flags: float) -> list[tuple[int, dict[int, int]]]:
    """Mostly ham; an endpoint is right seven times in ten, and calls ham spam with this probability."""
    rng = np.random.default_rng(seed)
    rows = []
    for right in rng.choice(3, n, p=[0.8, 0.1, 0.1]).tolist():
        wrong = [at for at in range(3) if at != right]
        given = right if rng.random() < 0.7 else int(rng.choice(wrong))
        if right == 0:
            given = int(rng.choice(3, p=[0.7, 0.3 - flags, flags]))
        rows.append((right, {0: given}))
    return rows


def test_the_share_of_each_choice_is_learned() -> None:
    prior = np.exp(of(filled(votes(300, 1, flags=0.15))).prior) / 3
    assert prior == pytest.approx([0.8, 0.1, 0.1], abs=0.06)


def test_equal_shares_and_equal_confusions_are_told_from_chance() -> None:
    """Random labels, and errors that fall on either wrong choice."""
    rng = np.random.default_rng(0)
    rows = [(n % 3, {0: n % 3 if rng.random() < 0.7 else (n + 1 + int(rng.integers(2))) % 3}) for n in range(300)]
    seen = of(filled(rows))
    assert by(seen, 0) == pytest.approx([0, 0, 0], abs=0.1)
    assert seen.prior == pytest.approx(0, abs=0.05)


def test_an_endpoint_that_flags_too_much_is_believed_less_when_it_flags() -> None:
    seen = of(filled(votes(300, 2, flags=0.3)))
    spam, junk = by(seen, 2), by(seen, 1)
    assert spam[2] - spam[0] == pytest.approx(math.log(0.7 / 0.3) - math.log(0.7 / 0.15), abs=0.3)
    assert junk[1] - junk[0] > 1  # it never calls ham junk


def test_nothing_is_claimed_of_an_endpoint_without_labels() -> None:
    assert by(of(filled(votes(300, 2, flags=0.3))), 2, endpoint=1) == pytest.approx([0, 0, 0])


def test_the_order_of_the_choices_does_not_matter() -> None:
    stats = filled(votes(200, 3, flags=0.3))
    one, other = of(stats), of(stats, ("spam", "ham", "junk"))
    assert other.prior == pytest.approx(one.prior[[2, 0, 1]])
    assert by(other, 0) == pytest.approx(np.array(by(one, 2))[[2, 0, 1]])


def test_a_corrected_label_replaces_the_first() -> None:
    rows = votes(50, 4, flags=0.3)
    stats = filled(rows)
    stats.add("7", Labelled(None, LABELS, 1), {0: 1, 1: 2})
    stats.add("7", None, {})
    corrected, without = of(stats), of(filled([row for n, row in enumerate(rows) if n != 7]))
    assert corrected.prior == pytest.approx(without.prior)
    assert corrected.votes == pytest.approx(without.votes)


def test_the_order_of_the_labels_does_not_matter() -> None:
    rows = votes(100, 5, flags=0.3)
    one, other = of(filled(rows)), of(filled(rows[::-1]))
    assert one.prior == pytest.approx(other.prior)
    assert one.votes == pytest.approx(other.votes)


def test_old_shares_fade() -> None:
    """After 1,000 labels all counts are halved, so a share that changed is found again."""
    stats = filled([(0, {0: 0})] * 1000 + [(2, {0: 2})] * 1500)
    prior = np.exp(of(stats).prior) / 3
    assert prior[2] > 0.75


def test_memory_is_bounded() -> None:
    stats = ConfusionStats(2, 10)
    many = tuple(map(str, range(33)))
    stats.add("many", Labelled(None, many, 0), {0: 0})
    assert stats.of(None, many, ACCURACY) is None
    for n in range(200):
        stats.add(f"set {n}", Labelled(None, (f"{n} a", f"{n} b"), 0), {0: 0})
    assert stats.of(None, ("0 a", "0 b"), ACCURACY) is None
    assert stats.of(None, ("199 a", "199 b"), ACCURACY) is not None
    assert len(stats._rows) == 10


def test_labels_of_another_task_do_not_count() -> None:
    stats = filled(votes(300, 1, flags=0.15))
    assert stats.of("mail", LABELS, ACCURACY) is None
    stats.add("first", Labelled("mail", LABELS, 2), {0: 2})
    mail = stats.of("mail", LABELS, ACCURACY)
    assert mail is not None
    assert mail.prior[2] > mail.prior[0]


def test_an_answer_that_is_none_of_the_choices_is_ignored() -> None:
    assert of(filled([(0, {0: 3})])).votes == pytest.approx(0)


def test_an_endpoint_that_changed_is_forgotten() -> None:
    stats = filled(votes(300, 2, flags=0.3))
    stats.forget(0)
    assert by(of(stats), 2) == pytest.approx([0, 0, 0])


def test_an_ask_sees_what_labels_say_of_its_choices() -> None:
    """One endpoint flags three of four; after its labels a flag is hardly evidence, and ham is the better guess."""
    observer = Observer(("a", "b"), (1.0, 1.0))
    keys = tuple(map(candidate_key, ("ham", "spam")))

    def flagged() -> np.ndarray:
        view = observer.begin(Query("q", (), ("ham", "spam")))
        view.add(Reply("a", text="spam", choice=1), 1)
        row: np.ndarray = view.evidence().members[:, 0]
        return row

    before = flagged()
    assert before[:, CALIBRATED].tolist() == [0, 0]
    for n in range(200):
        right, given = int(n % 10 == 0), int(n % 4 != 0)
        member = {"a": Member(1, given, 10, 0.1, None)}
        worth = {"a": float(right == given)}
        observer.learn(Outcome(str(n), member, worth, labelled=Labelled(None, keys, right)))
    after = flagged()
    assert after[0, CALIBRATED] > after[1, CALIBRATED] + 1
    other = observer.begin(Query("q", (), ("no", "yes")))
    other.add(Reply("a", text="yes", choice=1), 1)
    assert other.evidence().members[:, 0, CALIBRATED].tolist() == [0, 0]


# -- in a policy's experience ----------------------------------------------------------------------------------------


def learned() -> Experience:
    """Of endpoints b and a, and two tasks with the same choices."""
    stats = filled(votes(60, 6, flags=0.3))
    for n in range(20):
        stats.add(f"mail {n}", Labelled("mail", LABELS, 2), {1: n % 3})
    half, nothing = np.full(2, 0.5, np.float32), np.zeros((0, 2), np.float32)
    return Experience(("b", "a"), half, half, np.zeros((0, 4), np.float32), nothing, nothing, {}, stats.sets)


def test_counts_come_back_from_an_experiences_arrays() -> None:
    made = learned()
    back = Experience.of(made.arrays())
    assert back.same(made)
    assert list(back.confusion) == [(None, LABELS), ("mail", LABELS)]
    assert not back.same(replace(made, confusion={}))


def test_an_observer_begins_with_an_experiences_counts_by_name() -> None:
    made = learned()
    choices = ("ham", "junk", "spam")
    made = replace(made, confusion={(None, tuple(sorted(map(candidate_key, choices)))): made.confusion[None, LABELS]})
    before: list[list[float]] = []
    after: list[list[float]] = []
    for names in (("a", "b", "new"), ("new", "b", "a")):
        observer = Observer(names, (1.0, 1.0, 1.0))
        for seen in (before, after):
            view = observer.begin(Query("q", (), choices))
            view.add(Reply("b", text="spam", choice=2), 1)
            seen.append(view.evidence().members[:, 0, CALIBRATED].tolist())
            observer.adopt(made)
    assert before == [[0, 0, 0]] * 2
    assert after[0] == pytest.approx(after[1])
    assert max(map(abs, after[0])) > 0.3


@pytest.mark.parametrize(
    "wrong",
    [
        {"tasks of choices": np.arange(2)},
        {"choices 0": np.array(["one"])},
        {"choices 1": np.arange(3)},
        {"right 0": np.ones(2)},
        {"right 1": np.full(3, math.nan)},
        {"given 0": np.ones((1, 3, 3))},
        {"given 1": np.full((2, 3, 3), -1.0)},
        {"given 1": np.full((2, 3, 3), "x")},
    ],
)
def test_arrays_that_cannot_be_counts_are_refused(wrong: dict[str, np.ndarray]) -> None:
    with pytest.raises(ValueError, match="its"):
        Experience.of(learned().arrays() | wrong)


def test_training_counts_choices_that_recur() -> None:
    recorded = history([Kind((0.9,), 1.0), Kind((0.5,), 1.0)], 40, seed=0, choices=3)
    assert confusion(recorded) == {}
    choices = [LABELS] * 30 + [("x", "y", str(n)) for n in range(10)]
    alike = replace(recorded, choices=np.fromiter(choices, np.object_))
    ((key, counts),) = confusion(alike).items()
    assert key == (None, LABELS)
    assert counts.right.sum() == 30
    assert counts.given.sum(axis=(1, 2)).tolist() == [30, 30]
    right = [counts.given[i].trace() / 30 for i in range(2)]
    assert right == pytest.approx(recorded.value[:30].mean(axis=0).tolist())
