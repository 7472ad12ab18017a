"""Calibration in closed form, corrected, forgotten and stored; confidences lowered until labels show more."""

from __future__ import annotations

import random

import numpy as np
import pytest

from focalroute.core.records import Masses, Member, Outcome, Query, Reply
from focalroute.observe.calibration import (
    SHARED_ERRORS,
    CalibrationStats,
    Corrections,
    Recalibration,
    Totals,
    centred_log_mass,
    recalibrated,
)
from focalroute.observe.experience import Experience
from focalroute.observe.layout import ENDPOINT, slices
from focalroute.observe.observer import Observer

NAMES = ("left", "right")
PAIR = ("a", "b")


def gave(label: int, *log_mass: float, task: str | None = None, name: str = "left") -> Masses:
    """One member's log-masses."""
    return Masses(task, label, len(log_mass), {name: np.array(log_mass, np.float32)})


def known(book: CalibrationStats, task: str | None = None) -> Corrections:
    found = book.corrections(task)
    assert found is not None
    return found


def test_means_gap_and_variance_in_closed_form() -> None:
    """Two choices: x = (1, -1) with label 0 ten times, and (3, -3) with label 1 ten times; shrunk to 0 by ten."""
    book = CalibrationStats(NAMES, 500)
    for n in range(10):
        book.add(f"a{n}", gave(0, 1, -1))
        book.add(f"b{n}", gave(1, 3, -3))
    found = known(book)
    means = np.array([30 / 20, -10 / 20])  # of x at 0 where 1 was right, at 1 where 0 was right
    assert np.allclose(found.means[0], means)
    off_wrong = ((3 - 1.5) + (-1 + 0.5)) / 2
    gap = max((10 * (1 - 1.5) + 10 * (-3 + 0.5)) / 30 - off_wrong, 0)
    assert found.weights[0] == gap == 0.0  # its mass speaks against the right choice: it says nothing
    assert found.trust.tolist() == [20 / 40, 0.0]
    assert not found.means[1].any()


def test_a_question_without_any_answer_says_nothing() -> None:
    """In a log that also has probabilities; training printed a warning of numpy's."""
    assert not centred_log_mass(np.full((2, 3, 4), np.nan), np.array([0, 4])).any()


def test_a_bias_towards_a_position_is_taken_out() -> None:
    """A member that always leans to choice 0, but a little more where that is right."""
    rng = np.random.default_rng(0)
    book = CalibrationStats(NAMES, 500)
    for n in range(400):
        label = int(rng.integers(3))
        x = rng.standard_normal(3) + np.array([4.0, 0.0, 0.0])
        x[label] += 1.5
        book.add(f"q{n}", gave(label, *x))
    found = known(book)
    lean = found.means[0] - found.means[0].mean()
    assert np.allclose(lean, np.array([8, -4, -4]) / 3, atol=0.3)
    assert 1.0 < found.signal[0] < 2.0


def test_a_task_is_shrunk_to_all_tasks_and_a_new_one_is_theirs() -> None:
    """Ten queries of a task weigh as much as all the others together."""
    book = CalibrationStats(NAMES, 500)
    for n in range(90):
        book.add(f"a{n}", gave(1, 2, -2, task="often"))
    for n in range(10):
        book.add(f"b{n}", gave(1, -2, 2, task="seldom"))
    shared, seldom = known(book), known(book, "seldom")
    assert np.isclose(shared.means[0, 0], (180 - 20) / 110)
    assert np.isclose(seldom.means[0, 0], (-20 + 10 * shared.means[0, 0]) / 20)
    for a, b in zip(known(book, "never heard of"), shared, strict=True):
        assert np.array_equal(a, b)


def test_a_correction_takes_the_place_of_what_was_said_before() -> None:
    """A label that is corrected, or withdrawn, leaves no trace."""
    book, other = CalibrationStats(NAMES, 500), CalibrationStats(NAMES, 500)
    for each in (book, other):
        each.add("q0", gave(0, 1, -1, task="t"))
    book.add("q1", gave(1, 2, -2, task="t"))
    book.add("q1", gave(0, 2, -2, task="t"))
    other.add("q1", gave(0, 2, -2, task="t"))
    assert all(np.allclose(a, b) for a, b in zip(known(book, "t"), known(other, "t"), strict=True))
    book.add("q1", None)
    assert np.isclose(known(book, "t").trust[0], 1 / 21)


def test_forgetting_an_endpoint_leaves_the_others() -> None:
    """Also in what can still be corrected."""
    book = CalibrationStats(NAMES, 500)
    book.add("q0", gave(0, 1, -1))
    book.add("q1", gave(0, 1, -1, name="right"))
    book.forget(0)
    book.add("q0", None)
    found = known(book)
    assert found.trust.tolist() == [0.0, 1 / 21]
    assert not found.means[0].any()


def test_without_probabilities_nothing_changes() -> None:
    """A vote keeps its whole weight, whatever the book knows of others; an open question is left alone."""
    observer, plain = (Observer(NAMES, [None, None], detect=False) for _ in range(2))
    for n in range(50):
        observer.learn(Outcome(f"q{n}", {}, {}, masses=gave(n % 2, 0.0, -1.0)))
    query = Query("q", (), ("yes", "no"))
    members = []
    for each in (observer, plain):
        sight = each.begin(query)
        sight.add(Reply("left", "yes", 0), 1)
        members.append(sight.evidence().members)
    assert np.array_equal(members[0], members[1])
    seen = observer.begin(Query("r", ())).observe(round=1, cost_weight=0.1, budget_left=1.0)
    assert not seen.endpoints[:, slices(ENDPOINT)["signal"]].any()


def test_experience_brings_the_book_along() -> None:
    """Through its arrays, and to a pool in another order."""
    rng = np.random.default_rng(0)
    tasks: dict[str | None, Totals] = {
        task: Totals(rng.uniform(1, 9, (4, 2, 3)), rng.uniform(50, 90, (2, 2))) for task in (None, "t")
    }
    half, nothing, none = np.full(2, 0.5, np.float32), np.zeros((0, 4), np.float32), np.zeros((0, 2), np.float32)
    made = Experience(NAMES, half, half, nothing, none, none, tasks)
    again = Experience.of(made.arrays())
    assert made.same(again)
    book, moved = CalibrationStats(NAMES, 500), CalibrationStats(NAMES[::-1], 500)
    book.fill(again.totals(NAMES))
    moved.fill(again.totals(NAMES[::-1]))
    for a, b in zip(known(book, "t"), known(moved, "t"), strict=True):
        assert np.allclose(a, b[::-1])


def test_without_labels_confidence_is_below_the_posterior() -> None:
    curve = Recalibration(500).curve
    assert curve == (0.0, SHARED_ERRORS)
    assert recalibrated(0.5, curve) == pytest.approx(0.5)
    assert 0.8 < recalibrated(0.9, curve) < 0.9


def test_labels_overrule_the_prior() -> None:
    """Answers that are right as often as was said are soon taken at their word, whatever was presumed."""
    rng = random.Random(0)
    learned = Recalibration(500)
    for n in range(500):
        posterior = rng.uniform(0.5, 0.99)
        learned.learn(str(n), posterior, float(rng.random() < posterior))
    for posterior in (0.6, 0.9):
        assert recalibrated(posterior, learned.curve) == pytest.approx(posterior, abs=0.05)


def test_a_policy_that_was_trained_on_the_pool_is_not_recalibrated_at_first() -> None:
    observer = Observer(PAIR, [1e-4, 1e-4])
    query = Query(id="q", messages=({"role": "user", "content": "?"},), choices=("x", "y"))
    assert observer.begin(query).confidence(0.9) < 0.9
    nothing = np.zeros((0, 256), np.float32), np.zeros((0, 2), np.float32)
    observer.adopt(
        Experience(PAIR, np.full(2, 0.7, np.float32), np.full(2, 1e-4, np.float32), *nothing, costs=nothing[1])
    )
    assert observer.begin(query).confidence(0.9) == 0.9


def test_disputed_answers_have_a_curve_of_their_own() -> None:
    observer = Observer(PAIR, [1e-4, 1e-4])
    query = Query(id="q", messages=({"role": "user", "content": "?"},), choices=("x", "y"))
    before = observer.begin(query).confidence(0.9)
    for n in range(200):
        members = {name: Member(1, k, 10, 0.1, None) for k, name in enumerate(PAIR)}
        observer.learn(Outcome(str(n), members, {"a": 0.0, "b": 1.0}, posterior=0.9, correct=0.0))
    ask = observer.begin(query)
    assert ask.confidence(0.9) == before
    ask.add(Reply("a", "x", choice=0), 1)
    ask.add(Reply("b", "y", choice=1), 1)
    assert ask.confidence(0.9) < 0.3
