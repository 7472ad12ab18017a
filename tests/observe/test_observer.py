"""What the policies see of a pool and of one ask: each slice by its definition, bounded, keyed by name."""

from __future__ import annotations

import math
import threading
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from focalroute.core.records import Failure, Member, Observation, Outcome, Query, Reply, Usage
from focalroute.observe.ask_view import AskView
from focalroute.observe.diversity import focal_diversity
from focalroute.observe.experience import Experience
from focalroute.observe.features import text_features
from focalroute.observe.layout import CANDIDATE, CONTEXT, ENDPOINT, MEMBER, slices, width
from focalroute.observe.observer import Observer

NAMES = ("a", "b", "c", "d")
CHOICES = ("red", "green", "blue")


def query(choices: tuple[str, ...] | None = CHOICES, kind: str | None = None) -> Query:
    return Query("q", ({"role": "user", "content": "What colour is it?"},), choices=choices, answer=kind)


def took_part(round: int = 1, tokens: int = 10, latency_s: float = 1.0, usd: str | None = None) -> Member:
    return Member(round, 0, tokens, latency_s, None if usd is None else Decimal(usd))


def learned(observer: Observer, name: str, right: float, times: int, **how: object) -> None:
    at = f"{name}{right}{how}"
    for i in range(times):
        observer.learn(Outcome(f"{at}{i}", {name: took_part(**how)}, {name: right}))  # type: ignore[arg-type]


def observe(sight: AskView, round: int = 1, cost_weight: float = 1.0, budget_left: float = 1.0) -> Observation:
    return sight.observe(round=round, cost_weight=cost_weight, budget_left=budget_left)


def context(observation: Observation, name: str) -> list[float]:
    return [float(x) for x in observation.context[slices(CONTEXT)[name]]]


def column(observation: Observation, name: str) -> list[float]:
    return [float(x) for x in observation.endpoints[:, slices(ENDPOINT)[name].start]]


def seen_through(sight: AskView, name: str) -> np.ndarray:
    return sight.evidence().members[:, :, slices(MEMBER)[name].start]


FAILED = Failure("timeout", "too slow")

# --- the pool --------------------------------------------------------------------------------------------


def test_an_unseen_pool_is_neutral() -> None:
    seen = observe(Observer(NAMES, [None] * 4).begin(query()))
    for name in ("asked", "replied", "agrees", "accuracy", "relative_skill", "seen", "price", "latency"):
        assert column(seen, name) == [0] * 4
    assert column(seen, "focal") == pytest.approx([1 / 3] * 4)
    assert column(seen, "similar") == [0] * 4
    assert column(seen, "cost_penalty") == [0.25] * 4
    assert context(seen, "level") == [0]


def test_accuracy_is_shrunk_towards_the_pools_mean() -> None:
    observer = Observer(("a", "b"), [None, None])
    learned(observer, "a", 1.0, 30)
    learned(observer, "b", 0.0, 10)
    mean = 31 / 42
    expected = [(30 + 10 * mean) / 40, (0 + 10 * mean) / 20]
    assert observer.accuracy() == pytest.approx(expected)
    assert observer.seen() == (30, 10)
    seen = observe(observer.begin(query()))
    assert column(seen, "accuracy") == pytest.approx([4 * (x - mean) for x in expected], abs=1e-6)
    assert column(seen, "seen") == pytest.approx([30 / 50, 10 / 30])
    assert column(seen, "relative_skill") == [0, 0]  # they never met
    assert context(seen, "level") == pytest.approx([2 * (mean - 0.5)])


def expecting(*expected: float | None) -> Observer:
    return Observer(NAMES[: len(expected)], [None] * len(expected), expected=expected)


def test_expected_accuracies_count_as_differences_from_their_mean() -> None:
    """One without takes the pool's level."""
    seen = observe(expecting(0.9, 0.7, None).begin(query()))
    assert expecting(0.9, 0.7, None).accuracy() == pytest.approx((0.6, 0.4, 0.5))
    best, worst, other = column(seen, "relative_skill")
    assert best == -worst > 0
    assert other == pytest.approx(0, abs=1e-9)
    assert expecting(0.5, 0.3, None).accuracy() == pytest.approx((0.6, 0.4, 0.5))


def test_an_expectation_is_worth_a_hundred_answers() -> None:
    observer = expecting(0.9, 0.7)
    learned(observer, "a", 0.0, 100)
    learned(observer, "b", 1.0, 100)
    level = 101 / 202
    assert observer.accuracy() == pytest.approx(((level + 0.1) / 2, (100 + 100 * (level - 0.1)) / 200))


def test_an_expectation_is_not_evidence() -> None:
    """The interval is as wide as without one, but for its middle."""
    (low, high), _ = expecting(0.5, 0.5).accuracy_interval()
    (low_unknown, high_unknown), _ = expecting(None, None).accuracy_interval()
    assert (low, high) == (low_unknown, high_unknown)


def test_a_trained_policys_record_replaces_an_expectation_where_it_has_one() -> None:
    observer = expecting(0.9, 0.7, 0.8)
    none = np.zeros((0, 3), np.float32)
    features = np.zeros((0, len(text_features("x"))), np.float32)
    accuracy, unknown = np.array([0.3, 0.7, 0.8], np.float32), np.full(3, np.nan, np.float32)
    observer.adopt(Experience(("b", "z", "a"), accuracy, unknown, features, none, none))
    assert observer.accuracy() == pytest.approx((0.5 + 0.25, 0.5 - 0.25, 0.5))


def test_standing_compares_on_the_queries_both_were_asked() -> None:
    """On 30 a was right and b wrong; what each was asked alone, a the hard ones, says nothing of who is better.

    30 (2 t - 1)^2 + 10 t^2 + 10 t^2 is least at t = 3/7.
    """
    observer = Observer(("a", "b"), [None, None], detect=False)
    for i in range(30):
        observer.learn(Outcome(f"{i}", {"a": took_part(), "b": took_part()}, {"a": 1.0, "b": 0.0}))
    learned(observer, "a", 0.0, 100)
    learned(observer, "b", 1.0, 100)
    seen = observe(observer.begin(query()))
    assert column(seen, "relative_skill") == pytest.approx([4 * 3 / 7, -4 * 3 / 7])
    assert column(seen, "accuracy")[0] < 0 < column(seen, "accuracy")[1]


def test_an_inferred_value_counts_towards_accuracy_as_the_fraction_it_is() -> None:
    observer = Observer(("a",), [None])
    observer.learn(Outcome("1", {"a": took_part()}, {"a": 0.5}, frozenset("a")))
    assert observer.accuracy() == pytest.approx([0.5])


def test_expected_cost_starts_at_the_listed_price_and_moves_to_what_was_paid() -> None:
    observer = Observer(("a", "b", "c"), [0.01, None, None])
    assert observer.expected_cost() == (0.01, None, None)
    learned(observer, "a", 1.0, 15, usd="0.002")
    learned(observer, "b", 1.0, 2, usd="0.001")
    scale = (5 * 0.01 + 15 * 0.002) / (5 * 0.01 + 15 * 0.01)  # calls cost so much of their price
    *known, unknown = observer.expected_cost()
    assert known == pytest.approx([(5 * 0.01 * scale + 15 * 0.002) / 20, 0.001])
    assert unknown is None


def test_order_is_cheapest_first_unknown_last_then_by_name() -> None:
    assert Observer(("z", "y", "b", "a", "free"), [0.1, None, 0.2, 0.2, 0.0]).order() == (4, 0, 3, 2, 1)


def test_price_and_latency_are_relative_to_the_pools_mean() -> None:
    observer = Observer(("a", "b", "c"), [0.001, 0.003, None])
    learned(observer, "b", 1.0, 1, latency_s=3.0)
    learned(observer, "c", 1.0, 1, latency_s=1.0)
    seen = observe(observer.begin(query()))
    assert column(seen, "price") == pytest.approx([math.log(0.5) / 4, math.log(1.5) / 4, 0], abs=1e-6)
    assert column(seen, "latency") == pytest.approx([0, math.log(1.5) / 4, math.log(0.5) / 4], abs=1e-6)
    assert observer.latency_s() == (None, 3.0, 1.0)


def test_free_endpoints_are_cheap_but_finite() -> None:
    assert column(observe(Observer(("a", "b"), [0.0, 1.0]).begin(query())), "price")[0] == -4
    assert column(observe(Observer(("a", "b"), [0.0, 0.0]).begin(query())), "price") == [0, 0]


def focal(seed: int, density: float, one: str, other: str) -> float:
    """Of a pair, by the last 60 of the outcomes of `taught`."""
    rows = [row for row in outcomes(seed, density)[-60:] if one in row.right and other in row.right]
    fails = np.array([[1 - row.right[one], 1 - row.right[other]] for row in rows]).reshape(-1, 2)
    if len(fails) >= 20:
        return focal_diversity(fails)
    q = [(fails.prod(axis=1).sum() + 2) / (n + 4) for n in fails.sum(axis=0)]
    return float(np.mean([(1 - x) / (1 + x) for x in q]))


def test_in_round_one_focal_is_the_mean_over_pairs() -> None:
    observer = taught(0)
    pairs = [[focal(0, 0.6, one, other) for other in NAMES if other != one] for one in NAMES]
    expected = [sum(row) / 3 for row in pairs]
    assert column(observe(observer.begin(query())), "focal") == pytest.approx(expected, abs=1e-6)


@pytest.mark.slow
@settings(max_examples=20)
@given(st.integers(0, 1000), st.sets(st.sampled_from(NAMES), min_size=1), st.sampled_from((0.25, 0.7, 1.0)))
def test_later_focal_is_the_mean_over_pairs_with_the_others_asked(seed: int, asked: set[str], density: float) -> None:
    observer = taught(seed, density)
    sight = observer.begin(query())
    for name in sorted(asked, reverse=True):
        sight.add(Reply(name, choice=0), 1)
    pairs = [[focal(seed, density, name, other) for other in asked if other != name] for name in NAMES]
    expected = [sum(row) / len(row) if row else 0.0 for row in pairs]
    assert column(observe(sight, 2), "focal") == pytest.approx(expected, abs=1e-6)


def test_a_single_endpoint_makes_a_pool() -> None:
    sight = Observer(("a",), [None]).begin(query())
    assert column(observe(sight), "focal") == [0]
    sight.add(Reply("a", choice=1), 1)
    assert column(observe(sight, 2), "focal") == [0]


def taught(seed: int, density: float = 0.6, order: tuple[str, ...] = NAMES) -> Observer:
    prices = dict(zip(NAMES, (0.1, 0.3, 0.2, None), strict=True))
    observer = Observer(order, [prices[name] for name in order], window=60, detect=False)  # no false alarms
    for t, outcome in enumerate(outcomes(seed, density)):
        observer.learn(outcome)
        if t % 7 == 0:  # asks between outcomes must not matter
            sight = observer.begin(query())
            sight.add(Reply(NAMES[t % 3], choice=0), 1)
            observe(sight, 2)
    return observer


def outcomes(seed: int, density: float) -> list[Outcome]:
    rng = np.random.default_rng(seed)
    made = []
    for t in range(90):
        members, right = {}, {}
        for skill, name in enumerate(NAMES):
            there, was_right = rng.random() < density, float(rng.random() < 0.4 + 0.1 * skill)
            tokens, latency_s = int(rng.integers(1, 99)), float(rng.random())
            if there:
                members[name] = took_part(1 + t % 2, tokens, latency_s, "0.1")
                right[name] = was_right
        made.append(Outcome(str(t), members, right))
    return made


@settings(max_examples=15)
@given(st.integers(0, 1000), st.permutations(NAMES))
def test_another_order_of_the_pool_permutes_the_rows_and_nothing_else(seed: int, order: list[str]) -> None:
    one, other = taught(seed), taught(seed, order=tuple(order))
    at = [NAMES.index(name) for name in order]
    sights = one.begin(query()), other.begin(query())
    for round in (1, 2):
        seen, moved = (observe(sight, round) for sight in sights)
        assert moved.context == pytest.approx(seen.context)
        assert moved.endpoints == pytest.approx(seen.endpoints[at], abs=1e-6)
        for sight in sights:
            sight.add(Reply(NAMES[round], choice=round), round)
            sight.see((0.2, 0.5, 0.3))
    assert [NAMES[i] for i in one.order()] == [order[i] for i in other.order()]


def test_an_endpoint_outside_the_pool_may_be_learned_about() -> None:
    observer = Observer(("a",), [None])
    learned(observer, "stranger", 1.0, 3)
    assert observer.seen() == (0,)


def test_an_ask_sees_one_state_of_the_pool_in_all_its_rounds() -> None:
    still, moving = taught(1, 0.25), taught(1, 0.25)
    sights = still.begin(query()), moving.begin(query())
    for t in range(60):
        moving.learn(Outcome(f"new{t}", {n: took_part() for n in NAMES}, {n: float(t % 5 > 1) for n in NAMES}))
    new = moving.begin(query())
    for sight in (*sights, new):
        sight.add(Reply("a", choice=0), 1)
        sight.add(Reply("c", choice=0), 1)
    expected = observe(sights[0], 2).endpoints
    assert (observe(sights[1], 2).endpoints == expected).all()
    assert (sights[1].evidence().members == sights[0].evidence().members).all()
    assert (observe(new, 2).endpoints != expected).any()


def test_learning_and_asking_from_many_threads_ends_where_learning_alone_does() -> None:
    shared, alone = Observer(NAMES, [None] * 4), Observer(NAMES, [None] * 4)
    rows = [Outcome(str(t), {n: took_part() for n in NAMES}, {n: float(t % 3 > 0) for n in NAMES}) for t in range(200)]
    failures: list[BaseException] = []

    def ask() -> None:
        try:
            for _ in range(100):
                sight = shared.begin(query())
                sight.add(Reply("a", choice=0), 1)
                if not np.isfinite(observe(sight, 2).endpoints).all():
                    raise ValueError("not finite")
        except Exception as error:  # noqa: BLE001 - reported below
            failures.append(error)

    def learn(part: list[Outcome]) -> None:
        for row in part:
            shared.learn(row)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    threads += [threading.Thread(target=learn, args=(rows[at::2],)) for at in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for row in rows:
        alone.learn(row)
    assert not failures
    assert shared.accuracy() == alone.accuracy()


# --- the query -------------------------------------------------------------------------------------------


def test_query_features_are_those_of_the_last_user_message() -> None:
    sight = Observer(NAMES, [None] * 4).begin(query())
    assert sight.features.tolist() == text_features("What colour is it?").tolist()


def test_an_embedder_replaces_them_and_is_scaled_to_norm_one() -> None:
    sight = Observer(("a",), [None], embed=lambda text: [3.0, 4.0, 0.0]).begin(query())
    assert sight.features == pytest.approx(np.array([0.6, 0.8, 0]))
    assert sight.features.dtype == np.float32
    assert not Observer(("a",), [None], embed=lambda text: [0.0, 0.0]).begin(query()).features.any()


@pytest.mark.parametrize("vector", [[], 1.0, [[1.0]], [math.nan, 1.0], [math.inf]])
def test_an_embedder_that_gives_something_else_is_refused(vector: object) -> None:
    observer = Observer(("a",), [None], embed=lambda text: vector)  # type: ignore[arg-type, return-value]
    with pytest.raises(ValueError, match="must give"):
        observer.begin(query())


# --- one ask ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "shown"), [(0.0, 0.003), (0.001, 0.003), (0.003, 0.003), (4.0, 4.0), (1e4, 4.0)])
def test_a_cost_weight_is_shown_as_the_nearest_that_policies_are_trained_for(given: float, shown: float) -> None:
    """In the context, and in what asking each takes from the reward."""
    sight = Observer(NAMES, [None] * 4).begin(query())
    found = observe(sight, cost_weight=given)
    assert context(found, "cost_weight") == pytest.approx([math.log10(shown)])
    np.testing.assert_array_equal(found.endpoints, observe(sight, cost_weight=shown).endpoints)


def test_context_holds_each_slice_by_its_definition() -> None:
    sight = Observer(NAMES, [None] * 4).begin(query())
    first = observe(sight, 1, cost_weight=0.1, budget_left=0.25)
    assert context(first, "first") == [1]
    assert context(first, "round") == [0]
    assert context(first, "cost_weight") == [-1]
    assert context(first, "budget_left") == [0.25]
    assert context(first, "log_pool") == pytest.approx([math.log(4) / 4])
    assert context(first, "choices") == pytest.approx([math.log(3) / 4])
    for name in ("asked", "replied", "posterior", "margin", "entropy"):
        assert not any(context(first, name))
    sight.add(Reply("a", choice=1), 1)
    sight.add(Reply("b", error=FAILED), 1)
    sight.see((0.25, 0.5, 0.25))
    second = observe(sight, 2)
    assert context(second, "first") == [0]
    assert context(second, "round") == [0.25]
    assert context(second, "asked") == [0.5]
    assert context(second, "replied") == [0.25]
    assert context(second, "posterior") == [0.5, 0.25, 0.25, 0]
    assert context(second, "margin") == [0.25]
    assert context(second, "entropy") == pytest.approx([1.5 * math.log(2) / math.log(3)])


def test_rows_say_which_endpoints_were_asked_replied_and_agree() -> None:
    sight = Observer(NAMES, [None] * 4).begin(query())
    sight.add(Reply("c", choice=1), 1)
    sight.add(Reply("a", choice=2), 1)
    sight.add(Reply("b", error=FAILED), 1)
    sight.see((0.1, 0.7, 0.2))
    seen = observe(sight, 2)
    assert column(seen, "asked") == [1, 1, 1, 0]
    assert column(seen, "replied") == [1, 0, 1, 0]
    assert column(seen, "agrees") == [-1, 0, 1, 0]
    assert sight.asked == [2, 0, 1]
    assert sight.backs == {2: 1, 0: 2}


def test_an_observation_is_not_changed_by_what_comes_later() -> None:
    sight = Observer(NAMES, [None] * 4).begin(query())
    first = observe(sight)
    rows, numbers = first.endpoints.copy(), first.context.copy()
    sight.add(Reply("a", choice=1), 1)
    sight.see((0.0, 1.0, 0.0))
    observe(sight, 2)
    assert (first.endpoints == rows).all()
    assert (first.context == numbers).all()


def test_evidence_of_a_closed_question_holds_each_slice_by_its_definition() -> None:
    observer = Observer(("a", "b", "c"), [None] * 3, detect=False)
    learned(observer, "a", 1.0, 20, tokens=10)
    learned(observer, "a", 0.0, 20, tokens=30)
    learned(observer, "c", 1.0, 40)
    sight = observer.begin(query())
    sight.add(Reply("c", choice=2), 1)
    sight.add(Reply("a", choice=0, probabilities=(0.5, 0.25, 0.0), usage=Usage(1, 40)), 2)
    evidence = sight.evidence()
    assert evidence.endpoints == (0, 2)
    assert seen_through(sight, "present").tolist() == [[1, 1]] * 3
    assert seen_through(sight, "vote").tolist() == [[1, 0], [0, 0], [0, 1]]
    assert seen_through(sight, "probability").tolist() == [[0.5, 0], [0.25, 0], [0, 1]]
    logs = [[math.log(0.5) / 8, 0], [math.log(0.25) / 8, 0], [-30 / 8, 0]]
    assert seen_through(sight, "log_probability") == pytest.approx(np.array(logs), abs=1e-6)
    weight = math.log(2 * 61 / 82 / (1 - 61 / 82))  # they were never asked together: both as good as the pool
    assert seen_through(sight, "evidence") == pytest.approx(np.array([[weight, 0], [0, 0], [0, weight]]))
    rows = observe(sight).endpoints[[0, 2], slices(ENDPOINT)["relative_skill"].start]
    assert (seen_through(sight, "relative_skill") == rows).all()
    assert (seen_through(sight, "level") == context(observe(sight), "level")[0]).all()
    assert context(observe(sight), "level") == pytest.approx([2 * (61 / 82 - 0.5)])
    # lengths of a: mean 20, variance 100
    assert seen_through(sight, "length") == pytest.approx(np.array([[20 / math.sqrt(101) / 4, 0]] * 3), abs=1e-6)
    assert seen_through(sight, "later").tolist() == [[1, 0]] * 3
    candidates = {name: evidence.candidates[:, at.start].tolist() for name, at in slices(CANDIDATE).items()}
    assert candidates["votes"] == [0.5, 0, 0.5]
    assert candidates["probability"] == [0.25, 0.125, 0.5]
    assert candidates["choices"] == pytest.approx([math.log(3) / 4] * 3)
    assert candidates["replied"] == pytest.approx([2 / 3] * 3)


def test_with_nothing_learned_every_vote_weighs_the_same() -> None:
    sight = Observer(NAMES, [None] * 4).begin(query())
    for i, name in enumerate(NAMES):
        sight.add(Reply(name, choice=i % 3), 1)
    weights = seen_through(sight, "evidence").sum(axis=0)
    assert (weights == weights[0]).all()
    assert weights[0] > 0


def test_a_vote_never_repels_however_bad_the_member() -> None:
    observer = Observer(("a", "b"), [None, None])
    learned(observer, "a", 0.0, 400)
    sight = observer.begin(query())
    sight.add(Reply("a", choice=0), 1)
    assert seen_through(sight, "evidence")[0, 0] > 0


def test_free_form_candidates_are_clusters_of_equal_answers() -> None:
    sight = Observer(NAMES, [None] * 4).begin(query(None, "number"))
    assert sight.candidates == []
    assert sight.evidence().members.shape == (0, 0, width(MEMBER))
    sight.add(Reply("b", text="It is 7."), 1)
    sight.add(Reply("d", text="no number at all"), 1)
    sight.add(Reply("c", text="8"), 1)
    sight.add(Reply("a", text="So: 7.0"), 2)
    assert sight.candidates == ["It is 7.", "8"]
    assert sight.backs == {1: 0, 2: 1, 0: 0}
    assert sight.asked == [1, 3, 2, 0]
    evidence = sight.evidence()
    assert evidence.endpoints == (0, 1, 2)
    assert seen_through(sight, "vote").tolist() == [[1, 1, 0], [0, 0, 1]]
    assert seen_through(sight, "probability").tolist() == [[1, 1, 0], [0, 0, 1]]
    assert not seen_through(sight, "log_probability").any()
    assert context(observe(sight, 2), "choices") == [0]


def test_a_vote_weighs_the_same_whether_it_came_before_or_after_the_other_candidates() -> None:
    sight = Observer(NAMES, [None] * 4).begin(query(None, "number"))
    for name, text in zip(NAMES, ("1", "2", "3", "1"), strict=True):
        sight.add(Reply(name, text=text), 1)
    weight = math.log(7 * 0.5 / 0.5)  # as one of eight choices, accuracy 1/2
    assert seen_through(sight, "evidence").sum(axis=0) == pytest.approx([weight] * 4)


def test_members_are_told_as_the_store_keeps_them() -> None:
    sight = Observer(NAMES, [None] * 4).begin(query())
    sight.add(Reply("b", choice=2, usage=Usage(5, 7), latency_s=0.5, cost=Decimal("0.01")), 2)
    sight.add(Reply("a", error=FAILED), 2)
    sight.add(Reply("c", error=Failure("unusable", "no answer"), usage=Usage(5, 9), latency_s=0.2), 2)
    sight.add(Reply("d", text="who knows"), 3)
    assert sight.members() == {
        "b": Member(2, 2, 7, 0.5, Decimal("0.01")),
        "c": Member(2, None, 9, 0.2, None),
        "d": Member(3, None, 0, 0.0, None),
    }
    assert sight.backs == {1: 2}


def test_a_reply_of_a_stranger_is_refused_and_changes_nothing() -> None:
    sight = Observer(("a", "b"), [None, None]).begin(query())
    sight.add(Reply("b", choice=1), 1)
    with pytest.raises(KeyError):
        sight.add(Reply("stranger", choice=0), 1)
    assert sight.asked == [1]
    assert sight.backs == {1: 1}


@st.composite
def replies(draw: st.DrawFn, k: int | None) -> list[Reply]:
    given_back = []
    for name in draw(st.lists(st.sampled_from(NAMES), unique=True)):
        usage = draw(st.none() | st.builds(Usage, st.just(1), st.integers(0, 10**6)))
        if draw(st.booleans()) and draw(st.booleans()):
            given_back.append(Reply(name, error=FAILED))
        elif k is None:
            given_back.append(Reply(name, text=draw(st.sampled_from("xyz")), usage=usage))
        else:
            mass = draw(st.none() | st.tuples(*[st.floats(0, 1)] * k))
            given_back.append(Reply(name, choice=draw(st.integers(0, k - 1)), probabilities=mass, usage=usage))
    return given_back


@settings(max_examples=60)
@given(st.data())
def test_whatever_happens_all_is_finite_bounded_and_of_the_layouts_width(data: st.DataObject) -> None:
    prices = data.draw(st.lists(st.none() | st.floats(0, 1e3), min_size=4, max_size=4))
    observer = Observer(NAMES, prices)
    for t in range(data.draw(st.integers(0, 4))):
        how = st.builds(
            took_part, st.integers(1, 3), st.integers(0, 10**7), st.floats(0, 1e5), st.sampled_from((None, "0", "9"))
        )
        members = data.draw(st.dictionaries(st.sampled_from(NAMES), how))
        observer.learn(Outcome(str(t), members, {name: data.draw(st.floats(0, 1)) for name in members}))
    k = data.draw(st.sampled_from((None, 2, 5, 70)))
    sight = observer.begin(query(None if k is None else tuple(map(str, range(k)))))
    for round, reply in enumerate(data.draw(replies(k)), 1):
        sight.add(reply, round)
    if sight.candidates:
        sight.see([1 / len(sight.candidates)] * len(sight.candidates))
    seen = observe(sight, data.draw(st.integers(1, 99)), data.draw(st.floats(0, 1e30)), data.draw(st.floats(-1, 2)))
    evidence = sight.evidence()
    assert seen.context.shape == (width(CONTEXT),)
    assert seen.endpoints.shape == (4, width(ENDPOINT))
    assert evidence.members.shape == (len(sight.candidates), len(sight.backs), width(MEMBER))
    assert evidence.candidates.shape == (len(sight.candidates), width(CANDIDATE))
    assert evidence.endpoints == tuple(sorted(sight.backs))
    weights = evidence.members[:, :, slices(MEMBER)["evidence"].start].copy()
    assert ((weights >= 0) & (weights <= 8)).all()
    evidence.members[:, :, slices(MEMBER)["evidence"].start] = 0
    for array in (seen.context, seen.endpoints, evidence.members, evidence.candidates):
        assert array.dtype == np.float32
        assert (np.abs(array) <= 4).all()
