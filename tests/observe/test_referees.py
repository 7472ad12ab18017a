"""What agreement teaches: worked out by hand, on synthetic pools, and together with labels."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from focalroute.core.records import Member, Outcome, Query
from focalroute.observe.features import text_features
from focalroute.observe.layout import ENDPOINT, slices
from focalroute.observe.observation import OPEN_CHOICES, vote_weights
from focalroute.observe.observer import Observer
from focalroute.observe.referees import FLATTERY, RELIABILITY, Referees, Verdict, judge

CHOICES = 4


def verdict(backed: Sequence[int], *, skill: float = 0.6, choices: int = CHOICES) -> Verdict:
    """The verdict on members 0, 1, ... of equal skill."""
    n = len(backed)
    return judge(np.arange(n), np.array(backed), choices, np.full(n, skill), np.zeros(n))


def outcome(answer_id: str, backed: Sequence[int | None], right: dict[str, float] | None = None) -> Outcome:
    """Members m0, m1, ..., in this order, that back these candidates; None: was not asked."""
    members = {f"m{i}": Member(1, k, 10, 0.1, None) for i, k in enumerate(backed) if k is not None}
    return Outcome(answer_id, members, right or {})


def observer(n: int) -> Observer:
    return Observer([f"m{i}" for i in range(n)], [None] * n, detect=False)


def play(
    backed: Callable[[random.Random, int], list[int]], rows: int, asked: int, labels: float = 0.0, seed: int = 0
) -> Observer:
    """Let members answer so many queries, ``asked`` of them each, whose right candidate is 0."""
    rng = random.Random(seed)
    n = len(backed(rng, 0))
    learned = observer(n)
    for row in range(rows):
        here = set(rng.sample(range(n), asked))
        said = [k if i in here else None for i, k in enumerate(backed(rng, row))]
        learned.agree(outcome(str(row), said), CHOICES)
        if rng.random() < labels:
            learned.learn(
                outcome(str(row), said, {f"m{i}": float(k == 0) for i, k in enumerate(said) if k is not None})
            )
    return learned


def independent(*accuracy: float) -> Callable[[random.Random, int], list[int]]:
    return lambda rng, _: [0 if rng.random() < a else rng.randrange(1, CHOICES) for a in accuracy]


def test_a_value_is_naive_bayes_with_none_of_these() -> None:
    weight = float(vote_weights(np.array(0.6), OPEN_CHOICES))
    found = verdict([0, 0, 1], choices=OPEN_CHOICES)
    total = np.exp(2 * weight) + np.exp(weight) + OPEN_CHOICES - 2
    assert found.values == pytest.approx([np.exp(2 * weight) / total] * 2 + [np.exp(weight) / total])


def test_a_value_is_a_probability_however_many_agree() -> None:
    """Sums of large weights are rounded differently in different rows."""
    rng = np.random.default_rng(0)
    for _ in range(500):
        n = 12
        copies = np.maximum(np.eye(n), rng.random((n, n)) ** 8)
        found = judge(np.arange(n), rng.integers(0, 2, n) // 2, 2, rng.uniform(0.9, 0.98, n), np.zeros(n), copies)
        assert np.nanmax(found.values) <= 1


def test_a_member_without_an_answer_is_wrong_and_agrees_with_none() -> None:
    found = verdict([-1, -1, 2])
    assert found.values[:2].tolist() == [0, 0]
    assert np.isnan(found.values[2])  # who is alone is as good as ever
    assert found.sums[1, 0, 1] == 0  # both have none, so there is no difference between them
    assert verdict([-1, -1]).values.tolist() == [0, 0]


def test_referees_say_by_how_much_of_their_trust_one_is_ahead() -> None:
    rows, differ, ahead, heard = verdict([0, 1, 0, 2]).sums
    assert rows[0, 1] == differ[0, 1] == 1
    assert ahead[0, 1] == -ahead[1, 0] == pytest.approx(RELIABILITY / 2)  # of the two others one agrees with member 0
    assert heard[0, 1] == pytest.approx(RELIABILITY**2)
    assert (rows[0, 2], differ[0, 2], ahead[0, 2], heard[0, 2]) == (1, 0, 0, 0)
    assert not np.diagonal(verdict([0, 1, 0, 2]).sums, axis1=1, axis2=2).any()


def test_without_a_referee_a_difference_says_nothing() -> None:
    _, differ, ahead, heard = verdict([0, 1]).sums
    assert differ[0, 1] == 1
    assert not ahead.any()
    assert not heard.any()


def test_verdicts_that_leave_the_window_leave_no_trace() -> None:
    rng = np.random.default_rng(0)
    sliding, fresh = Referees(5, 20), Referees(5, 20)
    verdicts = [
        judge(np.arange(5), rng.integers(-1, 4, 5), CHOICES, rng.random(5), rng.normal(size=5) / 10) for _ in range(60)
    ]
    for n, one in enumerate(verdicts):
        sliding.add(str(n % 50), one)
    for n, one in list(enumerate(verdicts))[40:]:
        fresh.add(str(n % 50), one)
    for a, b in zip(sliding.comparisons(), fresh.comparisons(), strict=True):
        assert a.tolist() == b.tolist()


def test_labels_say_how_far_verdicts_are_off() -> None:
    referees = Referees(2, 100)
    for n in range(50):
        one = verdict([0, 0])
        referees.add(str(n), one)
        referees.label(str(n), np.array([0.0, np.nan]), False)
    (first, second), disputed = referees.bias()
    assert first < -0.7 * one.values[0]
    assert first < second < 0  # that nothing is known of, which follows the pool
    assert disputed.tolist() == [-FLATTERY, -FLATTERY]
    assert not referees.comparisons()[0].any()  # labels have taken their place


def test_forgetting_an_endpoint_leaves_no_trace() -> None:
    referees = Referees(2, 10)
    for n in range(30):
        referees.add(str(n), verdict([0, 0]))
        referees.label(str(n), np.array([1.0, 1.0]), False)
        if n == 9:
            referees.forget(0)
            assert 0 < referees.bias()[0, 0] < referees.bias()[0, 1]
    first, second = referees.bias()[0]
    assert first == second


def test_a_later_label_replaces_the_errors_by_an_earlier_one() -> None:
    """As a person's does that contradicts a judge's, and that of a second label on a probed endpoint."""
    corrected, plain = Referees(3, 100), Referees(3, 100)
    for n in range(50):
        for referees in (corrected, plain):
            referees.add(str(n), verdict([0, 0, 1]))
        corrected.label(str(n), np.array([0.0, np.nan, 1.0]), True)
        assert corrected.label(str(n), np.array([1.0, 1.0, 0.0]), True)
        plain.label(str(n), np.array([1.0, 1.0, 0.0]), True)
    assert corrected.bias().tolist() == plain.bias().tolist()
    assert corrected.bias_deviation().tolist() == plain.bias_deviation().tolist()


def test_a_label_after_a_second_verdict_replaces_the_errors_by_the_first() -> None:
    """An endpoint may be probed after the first label has left the window."""
    twice, once = Referees(2, 100), Referees(2, 100)
    for right in (0.0, 1.0):
        twice.add("1", verdict([0, 0]))
        twice.label("1", np.array([right, right]), False)
    once.add("1", verdict([0, 0]))
    once.label("1", np.array([1.0, 1.0]), False)
    assert twice.bias().tolist() == once.bias().tolist()


def test_members_of_a_probed_query_are_counted_once() -> None:
    """In service a query is learned from when it is answered, and again with the endpoints that were probed."""
    rng = np.random.default_rng(0)
    served, replayed = observer(4), observer(4)
    for n in range(60):
        first, *others = rng.integers(0, 4, 3)
        backed = [first, first, *others]
        served.agree(outcome(str(n), backed[:2]), CHOICES)
        for learned in (served, replayed):
            learned.agree(outcome(str(n), backed), CHOICES)
        assert served.copies().tolist() == replayed.copies().tolist()
        assert served.unsettled == replayed.unsettled
    assert served.copies()[0, 1] > 0.9


def test_a_copy_that_became_another_model_is_no_longer_one() -> None:
    referees, rng = Referees(4, 100), np.random.default_rng(0)
    for n in range(200):
        first, *others = rng.integers(0, 4, 3)
        referees.compare(str(n), np.arange(4), np.array([first, first, *others]))
    assert referees.copies[0, 1] == 1
    referees.reset(0)
    assert referees.copies.tolist() == np.eye(4).tolist()
    for n in range(20):
        referees.compare(f"later {n}", np.arange(4), rng.integers(0, 4, 4))
    assert referees.copies.tolist() == np.eye(4).tolist()
    assert not referees.suspicious()


def test_the_better_endpoints_are_found_without_a_label() -> None:
    learned = play(independent(0.85, 0.75, 0.6, 0.45), 400, asked=3)
    assert list(learned.accuracy()) == sorted(learned.accuracy(), reverse=True)
    skill = learned.begin(Query("q", ({"role": "user", "content": "?"},), ("a", "b", "c", "d")))
    assert skill.observe(round=1, cost_weight=0.1, budget_left=1.0).endpoints.shape[0] == 4


def test_a_member_asked_alone_teaches_nothing_but_its_cost() -> None:
    learned = play(independent(0.9, 0.2), 50, asked=1)
    assert learned.seen() == (0, 0)
    assert learned.accuracy() == (0.5, 0.5)
    assert learned.latency_s() == pytest.approx((0.1, 0.1))


def test_feedback_replaces_what_agreement_said() -> None:
    """To the last bit, whichever came first."""
    with_agreement, without = observer(3), observer(3)
    for n in range(30):
        backed = [n % 2, 0, n % 3]
        right = {f"m{i}": float(k == 0) for i, k in enumerate(backed)}
        with_agreement.agree(outcome(str(n), backed), CHOICES)
        with_agreement.learn(outcome(str(n), backed, right))
        with_agreement.agree(outcome(str(n), backed), CHOICES)
        without.learn(outcome(str(n), backed, right))
    assert with_agreement.accuracy() == without.accuracy()
    assert with_agreement.seen() == without.seen() == (30, 30, 30)


def test_a_few_labels_correct_what_all_agree_on() -> None:
    """A pool that agrees on what is wrong in four of ten cases: agreement alone is sure of it."""

    def together(rng: random.Random, _: int) -> list[int]:
        return [0 if rng.random() < 0.6 else 1] * 3

    guessed, corrected = (play(together, 500, asked=3, labels=share) for share in (0.0, 0.05))
    assert min(guessed.accuracy()) > 0.75
    assert corrected.accuracy() == pytest.approx((0.6, 0.6, 0.6), abs=0.12)


@pytest.mark.parametrize("open_texts", [0, 1])
def test_labels_for_disputed_answers_alone_do_not_lower_what_is_thought_of_the_pool(open_texts: int) -> None:
    """Nor if there are as many open texts, which differ, but are not compared."""
    truth, learned, rng = (0.9, 0.8, 0.7), observer(3), random.Random(0)
    for n in range(2000):
        for _ in range(open_texts):
            learned.agree(outcome(f"open {n}", [0, 1, 2]), None)
        backed = independent(*truth)(rng, n)
        right = {f"m{i}": float(k == 0) for i, k in enumerate(backed)}
        learned.agree(outcome(str(n), backed), CHOICES)
        if len({*backed}) > 1:
            learned.learn(outcome(str(n), backed, right))
    assert learned.accuracy() == pytest.approx(truth, abs=0.08)
    assert relative_skill(learned) == pytest.approx((0.1, 0.0, -0.1), abs=0.03)


def relative_skill(learned: Observer) -> list[float]:
    ask = learned.begin(Query("q", ({"role": "user", "content": "?"},), ("a", "b", "c", "d")))
    rows = ask.observe(round=1, cost_weight=0.1, budget_left=1.0).endpoints
    found: list[float] = (rows[:, slices(ENDPOINT)["relative_skill"].start] / 4).tolist()
    return found


def test_grades_do_not_take_away_what_agreement_says_of_pairs() -> None:
    """A grade says how right an answer may be, not which member is better; a label does, and takes its place."""
    graded, agreed = observer(3), observer(3)
    for n in range(40):
        backed = [0, 0, n % 2]
        for learned in (graded, agreed):
            learned.agree(outcome(str(n), backed), CHOICES)
        values = {f"m{i}": 0.9 if k == 0 else 0.1 for i, k in enumerate(backed)}
        graded.learn(replace(outcome(str(n), backed, values), inferred=frozenset(values)))
    before = relative_skill(agreed)
    assert before[0] - before[2] > 0.1
    assert relative_skill(graded) == pytest.approx(before, abs=0.02)
    for n in range(40):
        graded.learn(outcome(str(n), [0, 0, n % 2], dict.fromkeys(("m0", "m1", "m2"), 1.0)))
    assert relative_skill(graded) == pytest.approx([0, 0, 0], abs=1e-6)


def test_labels_that_come_late_do_not_make_members_seem_to_differ_more_often() -> None:
    """They come once 500 other answers have taken the place of theirs. Each answer counted again with its label."""
    late, rng = observer(2), random.Random(0)
    answers = [independent(0.9, 0.8)(rng, n) for n in range(1200)]
    for n, backed in enumerate(answers):
        late.agree(outcome(str(n), backed), CHOICES)
    for n, backed in enumerate(answers[:600]):
        if len({*backed}) > 1 or not n % 20:
            late.learn(outcome(str(n), backed, {f"m{i}": float(k == 0) for i, k in enumerate(backed)}))
    assert late.accuracy() == pytest.approx((0.9, 0.8), abs=0.03)


def test_probed_endpoints_count_towards_how_often_members_differ_as_if_known_at_once() -> None:
    """In service they are given later, in replays and after a restart with the answer itself."""
    at_once, later = observer(4), observer(4)
    answers: list[list[int | None]] = [[0, None, 1, 0], [0, None, 1, None], [0, 0, None, None], [1, 1, 1, 1]]
    for n, backed in enumerate(answers):
        whole = outcome(str(n), backed)
        asked = [name for name, member in whole.members.items() if name in ("m0", "m1") or (n == 3 and member)]
        probed = {name: replace(member, round=int(name in asked)) for name, member in whole.members.items()}
        first = replace(whole, members={name: probed[name] for name in asked})
        at_once.agree(replace(whole, members=probed), CHOICES)
        later.agree(first, CHOICES)
        if len(asked) < len(probed):
            later.agree(replace(whole, members=probed), CHOICES, new="probes")
        later.agree(replace(whole, members=probed), CHOICES, new="nothing")
    assert later._replied == pytest.approx(at_once._replied, abs=0.01)


def test_an_endpoint_that_changed_is_not_taken_for_as_good_as_others_once_they_agree() -> None:
    """How often they differed is then forgotten; until they do again, labels count as they are."""
    learned = Observer(["m0", "m1", "m2"], [None] * 3)
    changed, n = False, 0
    while not changed:
        backed = [int(n >= 60), 0, int(n % 4 == 0)]
        learned.agree(outcome(f"agreed {n}", [0, 0, 0]), CHOICES)
        changed = bool(learned.learn(outcome(str(n), backed, {f"m{i}": float(k == 0) for i, k in enumerate(backed)})))
        n += 1
    before = relative_skill(learned)
    assert before[1] - before[0] > 0.3
    for once_more in range(10):
        learned.agree(outcome(f"then {once_more}", [0, 0, 0]), CHOICES)
    assert relative_skill(learned) == pytest.approx(before, abs=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("labels", [0.05, *(pytest.param(share, marks=pytest.mark.slow) for share in (0.0, 0.5))])
def test_intervals_of_accuracies_hold_what_they_say(labels: float) -> None:
    truth = (0.8, 0.7, 0.6, 0.5)

    def with_shared_errors(rng: random.Random, _: int) -> list[int]:
        said = independent(*truth)(rng, 0)
        return [1 if k and rng.random() < 0.3 else k for k in said]

    held, widths = 0, []
    for seed in range(8):
        intervals = play(with_shared_errors, 400, asked=3, labels=labels, seed=seed).accuracy_interval()
        held += sum(low <= a <= high for a, (low, high) in zip(truth, intervals, strict=True))
        widths += [high - low for low, high in intervals]
    assert held >= 0.9 * 4 * 8
    assert np.mean(widths) < (0.42 if labels == 0 else 0.3)


def copies(rng: random.Random, _: int) -> list[int]:
    """Three endpoints that are one, right in half of the cases, beside two that are better and err by themselves."""
    said = independent(0.5, 0.75, 0.72)(rng, 0)
    return [said[0], said[0], *said]


def test_copies_do_not_raise_each_others_accuracy() -> None:
    accuracy = play(copies, 600, asked=4).accuracy()
    assert max(accuracy[:3]) < min(accuracy[3:])


def test_copies_count_as_one_voice() -> None:
    k = np.array([[1.0, 1, 0], [1, 1, 0], [0, 0, 1]])
    alone, one, two = (np.full(n, 0.6) for n in (1, 2, 3))
    found = judge(np.arange(3), np.array([0, 0, 1]), CHOICES, two, np.zeros(3), k)
    apart = judge(np.arange(2), np.array([0, 1]), CHOICES, one, np.zeros(2))
    assert found.values[[0, 2]] == pytest.approx(apart.values)
    assert not found.sums[2:, 0, 2].any()  # the only referee is a copy of one of them
    assert np.isnan(judge(np.arange(2), np.array([0, 0]), CHOICES, one, np.zeros(2), k[:2, :2]).values).all()
    assert not np.isnan(judge(np.arange(1), np.array([0]), CHOICES, alone, np.zeros(1)).sums).any()


def test_feedback_about_endpoints_is_kept_when_they_are_taken_for_copies() -> None:
    """Their credit for agreeing with each other is not kept: their votes had counted twice."""
    learned = observer(3)
    text = text_features("What is the capital of France?")
    for n in range(20):
        said = replace(outcome(f"labelled {n}", [0, 1, 0], {"m0": 1.0, "m1": 0.0, "m2": 1.0}), features=text)
        learned.learn(said)
    asked = Query("q", ({"role": "user", "content": "What is the capital of France?"},), ("a", "b", "c", "d"))
    before = similar(learned, asked)
    shown: list[list[float]] = []
    while learned.copies()[0, 1] < 0.5:
        learned.agree(replace(outcome(f"agreed {len(shown)}", [0, 0, 1]), features=text), CHOICES)
        shown.append(similar(learned, asked))
    credited, found = shown[-2:]
    assert before[0] - before[1] > 3
    assert credited[0] - credited[1] < before[0] - before[1] - 1
    assert found[0] - found[1] == pytest.approx(before[0] - before[1], abs=0.2)


def similar(learned: Observer, query: Query) -> list[float]:
    """The column of this name before anybody is asked."""
    rows = learned.begin(query).observe(round=1, cost_weight=0.1, budget_left=1.0).endpoints
    found: list[float] = rows[:, slices(ENDPOINT)["similar"].start].tolist()
    return found


def test_good_endpoints_that_agree_are_not_taken_for_copies() -> None:
    learned = play(independent(0.93, 0.92, 0.6, 0.55), 500, asked=3)
    assert not learned.unsettled
    accuracy = learned.accuracy()
    assert min(accuracy[:2]) > max(accuracy[2:]) + 0.1


def test_an_endpoint_that_becomes_a_copy_of_another_is_found() -> None:
    """They often differed before, and then are mostly asked together, without a third that could contradict them."""

    def backed(rng: random.Random, row: int) -> list[int]:
        first, *others = independent(0.85, 0.5, 0.7, 0.6)(rng, row)
        return [first, *others] if row < 600 else [others[0], *others]

    rng, learned, found = random.Random(0), observer(4), []
    for row in range(1000):
        here = set(rng.sample(range(4), 3)) if row < 600 or rng.random() < 0.1 else {0, 1}
        said = [k if i in here else None for i, k in enumerate(backed(rng, row))]
        learned.agree(outcome(str(row), said), CHOICES)
        found.append(learned.copies()[0, 1] >= 0.5)
    assert not any(found[:600])
    assert found[-1]


def test_easy_stretches_make_no_copies_of_endpoints_that_differ() -> None:
    """Every tenth stretch of forty rows is so easy that all agree."""
    rng, referees = random.Random(0), Referees(3, 2000)
    for row in range(4000):
        accuracy = 0.98 if row // 40 % 10 == 9 else 0.7
        said = independent(accuracy, accuracy, accuracy)(rng, row)
        referees.compare(str(row), np.arange(3), np.array(said))
        assert not referees.suspicious()
    assert (referees.copies == np.eye(3)).all()
