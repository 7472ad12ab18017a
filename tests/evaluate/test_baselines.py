"""Every baseline does what its name says, on logs small enough to reckon by hand or with a known best."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from examples.paper.reranker import Rerank
from focalroute.core.records import F64
from focalroute.evaluate.baselines import (
    BASELINES,
    TEXTUAL,
    First,
    ReplayedLatestCorrect,
    ReplayedRoundRobin,
    Routed,
    TextVectors,
    baselines,
    best_in_hindsight,
    fitted,
    oracle,
    threshold_pair,
)
from focalroute.evaluate.replay import (
    FeedbackKind,
    FeedbackPlan,
    FeedbackStream,
    ReplayResult,
    Training,
    Turn,
    best_setting,
    play,
)
from focalroute.evaluate.table import LogTable
from focalroute.evaluate.votes import (
    CascadeReplay,
    LogLinear,
    MeanVote,
    TrainedCascade,
    Vote,
    cascade,
    focal_diversities,
    log_linear_online,
    plurality_accuracies,
)
from focalroute.observe.diversity import focal_diversity
from focalroute.observe.features import text_features
from tests.evaluate.logs import Line, closed, output, stream, table_of

PRICES = {"a": 1.0, "b": 2.0, "c": 4.0}
SKILLS = {"a": 0.5, "b": 0.9, "c": 0.7}


def _training(folder: Path, lines: Sequence[Line], prices: Mapping[str, float] = PRICES, n: int = 0) -> Training:
    return Training(table_of(folder, lines, prices), np.arange(n or len(lines)), seed=3)


def _answer(strategy: Vote | First, table: LogTable, row: int = 0) -> int:
    return strategy.answer(Turn(table, row))


@pytest.mark.parametrize("name", BASELINES)
def test_the_same_seed_gives_the_same_play(tmp_path: Path, name: str) -> None:
    """And it copes with missing, failed and unusable outputs, and with graded scores."""
    lines = stream(60, SKILLS)
    lines[50]["outputs"] = {}
    lines[51]["outputs"] = {"a": {"error": "down"}, "b": output(None)}
    lines[52]["outputs"].pop("b")
    lines[53] = {"id": "s", "outputs": {n: output(None, score=0.5) for n in PRICES}}
    training = _training(tmp_path, lines, n=40)
    once, again = (play(BASELINES[name](training), training.table, np.arange(40, 60)) for _ in range(2))
    assert once.worth.tolist() == again.worth.tolist()
    assert once.asked.tolist() == again.asked.tolist()
    assert once.worth[10] == once.usd[10] == 0
    assert once.asked[12, 1] == False  # noqa: E712 - a numpy bool


@pytest.mark.parametrize("feedback", ["reward", "none"])
@pytest.mark.parametrize("name", BASELINES)
def test_every_baseline_plays_with_less_feedback(tmp_path: Path, name: str, feedback: FeedbackKind) -> None:
    training = _training(tmp_path, stream(60, SKILLS), n=40)
    played = play(BASELINES[name](training), training.table, np.arange(40, 60), feedback=feedback)
    assert played.asked.any(axis=1).all()


@pytest.mark.parametrize("name", BASELINES)
def test_every_baseline_plays_with_feedback_as_it_is_in_life(tmp_path: Path, name: str) -> None:
    training = _training(tmp_path, stream(80, SKILLS), n=40)
    plan = FeedbackPlan("label", share=0.8, delay=7, noise=0.2, seed=1)
    strategy, feedback = BASELINES[name](training), FeedbackStream(plan)
    played = play(strategy, training.table, np.arange(40, 80), feedback=feedback)
    assert played.asked.any(axis=1).all()


def test_a_late_label_is_of_its_own_text(tmp_path: Path) -> None:
    lines = [closed(n, {"a": n % 2, "b": 0}, prompt=f"text {n}") for n in range(90)]
    training = _training(tmp_path, lines, {"a": 1.0, "b": 1.0}, n=80)
    router = fitted("carrot-knn", training)
    feedback = FeedbackStream(FeedbackPlan(delay=3))
    play(Routed(router, text_features, None), training.table, np.arange(80, 90), feedback=feedback)
    assert router._texts[80:87] == pytest.approx(np.stack([text_features(f"text {n}") for n in range(80, 87)]))
    assert router._values[80:87, 1] == pytest.approx(1)


def test_the_best_single_is_that_of_the_part_it_may_look_at(tmp_path: Path) -> None:
    lines = [closed(n, {"a": int(n >= 5), "b": int(n < 5)}) for n in range(10)]
    training = _training(tmp_path, lines, n=5)
    test = np.arange(5, 10)
    assert play(BASELINES["best-single-train"](training), training.table, test).worth.mean() == 0
    assert play(best_in_hindsight(training.table, test), training.table, test).worth.mean() == 1


def test_round_robin_takes_turns(tmp_path: Path) -> None:
    table = table_of(tmp_path, stream(6, SKILLS), PRICES)
    assert play(ReplayedRoundRobin(3), table, np.arange(6)).asked.argmax(axis=1).tolist() == [0, 1, 2, 0, 1, 2]


def test_latest_correct_moves_on_when_its_member_was_wrong(tmp_path: Path) -> None:
    right, wrong = {"a": 0, "b": 0, "c": 1}, {"a": 1, "b": 1, "c": 0}
    training = _training(tmp_path, [closed(n, r) for n, r in enumerate([right, wrong, wrong, right])], n=1)
    asked = play(ReplayedLatestCorrect(training), training.table, np.arange(1, 4)).asked.argmax(axis=1)
    assert asked.tolist() == [0, 1, 2]  # once all were wrong, the one whose failure is longest ago


def test_ties_in_votes_go_to_the_candidate_with_the_best_backer(tmp_path: Path) -> None:
    """By accuracy on the training part, then by pool order."""
    table = table_of(tmp_path, [closed(0, {"a": 1, "b": 2, "c": 0})], PRICES)
    assert _answer(Vote((1, 0, 2)), table) == 2
    assert _answer(Vote((2, 1, 0)), table) == 0
    assert _answer(Vote((0, 1, 2)), table) == 1


def test_plurality_counts_and_mean_adds_probabilities(tmp_path: Path) -> None:
    line = closed(0, {}) | {
        "outputs": {
            "a": output(0, probabilities=[0.4, 0.35, 0.25]),
            "b": output(0, probabilities=[0.45, 0.4, 0.15]),
            "c": output(1, probabilities=[0.05, 0.9, 0.05]),
        }
    }
    table = table_of(tmp_path, [line], PRICES)
    assert _answer(Vote((0, 1, 2)), table) == 0
    assert _answer(MeanVote((0, 1, 2)), table) == 1


def test_log_linear_follows_the_gradient_of_the_log_likelihood(tmp_path: Path) -> None:
    """One step equals the numeric derivative of log q(right), or of log(1 - q(answer)) after a bare wrong."""
    table = table_of(tmp_path, [closed(0, {"a": 0, "b": 0, "c": 1}, 1)], PRICES)
    weights = np.ones(3)

    def q(w: F64) -> F64:
        e: F64 = np.exp(np.array([w[0] + w[1], w[2], 0.0]))
        shares: F64 = e / e.sum()
        return shares

    def right(w: F64) -> float:
        return float(np.log(q(w)[1]))

    def wrong(w: F64) -> float:
        return float(np.log(1 - q(w)[0]))

    losses: dict[FeedbackKind, Callable[[F64], float]] = {"label": right, "reward": wrong}
    for feedback, loss in losses.items():
        model = LogLinear((0, 1, 2), 3, rate=1.0)
        play(model, table, np.arange(1), feedback=feedback)
        for i in range(3):
            step = np.eye(3)[i] * 1e-6
            slope = (loss(weights + step) - loss(weights - step)) / 2e-6
            if feedback == "label":
                assert model.weights[i] - 1 == pytest.approx(slope, abs=1e-5)
            else:  # the odds are bounded by 1, which only shortens the step
                assert np.sign(model.weights[i] - 1) == np.sign(slope)


def test_log_linear_learns_which_members_to_believe(tmp_path: Path) -> None:
    skills = {"a": 0.4, "b": 0.95, "c": 0.4}
    training = _training(tmp_path, stream(400, skills), n=300)
    test = np.arange(300, 400)
    learned = play(log_linear_online(training), training.table, test).worth.mean()
    assert learned > play(Vote((0, 1, 2)), training.table, test).worth.mean()
    assert learned >= 0.9


def test_subset_diversity_and_accuracy_equal_their_definitions(tmp_path: Path) -> None:
    """All subsets at once, against one at a time by `focal_diversity` and by `Vote`."""
    table = table_of(tmp_path, stream(80, {**SKILLS, "d": 0.6}), {**PRICES, "d": 1.0})
    rows, rank = np.arange(80), table.rank(np.arange(80))
    subsets = [s for size in (2, 3, 4) for s in combinations(range(4), size)]
    chosen = np.array([[float(i in s) for i in range(4)] for s in subsets])
    failed = table.value < 0.5
    assert focal_diversities(failed.astype(np.float64), chosen) == pytest.approx(
        [focal_diversity(failed[:, s]) for s in subsets]
    )
    one_by_one = [play(Vote(rank, s), table, rows).worth.mean() for s in subsets]
    assert plurality_accuracies(table, rows, chosen, rank) == pytest.approx(one_by_one)


def test_the_static_subset_leaves_out_a_member_that_only_harms(tmp_path: Path) -> None:
    skills = {"a": 0.8, "b": 0.8, "c": 0.8, "d": 0.1}
    training = _training(tmp_path, stream(300, skills), {**PRICES, "d": 1.0}, n=200)
    played = play(BASELINES["static-subset"](training), training.table, np.arange(200, 300))
    assert not played.asked[:, 3].any()
    assert (played.asked == played.asked[0]).all()


def test_the_cascade_asks_the_cheap_first_and_on_where_they_disagree(tmp_path: Path) -> None:
    lines = stream(900, {"a": 0.8, "b": 0.8, "c": 0.9})
    training = _training(tmp_path, lines, {"a": 1.0, "b": 1.0, "c": 20.0}, n=800)
    played = play(BASELINES["cascade"](training), training.table, np.arange(800, 900))
    calls = played.asked.sum(axis=1)
    assert calls.min() < calls.max()
    assert (played.asked[:, 0] | (calls == 1)).all()


def test_a_cascade_is_learned_from_what_it_would_have_done(tmp_path: Path) -> None:
    """All rows at once and one by one are the same, for every list and thresholds; and it keeps to a budget."""
    lines = stream(150, {"a": 0.6, "b": 0.7, "c": 0.9})
    lines[10]["outputs"].pop("a")
    lines[11]["outputs"]["b"] = {"error": "down"}
    training = _training(tmp_path, lines)
    replay = CascadeReplay(training, training.rows)
    for order in ((0,), (0, 2), (0, 1, 2)):
        for right, paid, stages in list(replay.results(order))[::5]:
            played = play(TrainedCascade(training, stages), training.table, training.rows, feedback="none")
            assert (right, paid) == pytest.approx((played.worth.mean(), played.usd.mean()), abs=0.02)
    budget = 3.0 * float(training.table.usd[0, 0])
    held = cascade(replace(training, usd_per_query=budget))
    assert budget / 3 < play(held, training.table, training.rows).usd.mean() <= 1.1 * budget


def _topics(count: int) -> list[Line]:
    """a knows rivers, a third of the questions, and b knows mountains."""
    lines = []
    for n in range(count):
        river = n % 3 == 0
        prompt = f"how long is the river number {n}" if river else f"how high is the mountain number {n}"
        lines.append(closed(n, {"a": int(not river), "b": int(river)}) | {"prompt": prompt})
    return lines


@pytest.mark.parametrize("name", ["carrot-knn", "query-weights", "threshold-pair"])
def test_text_routers_send_each_topic_to_its_expert(tmp_path: Path, name: str) -> None:
    training = _training(tmp_path, _topics(120), {"a": 1.0, "b": 4.0}, n=90)
    assert play(BASELINES[name](training), training.table, np.arange(90, 120)).worth.mean() >= 0.9


def test_a_reranker_asks_all_endpoints_and_picks_by_the_text(tmp_path: Path) -> None:
    training = _training(tmp_path, _topics(120), {"a": 1.0, "b": 4.0}, n=90)
    played = play(Rerank(training), training.table, np.arange(90, 120))
    assert played.worth.mean() >= 0.9
    assert played.asked.all()


def test_a_pair_may_be_named(tmp_path: Path) -> None:
    training = _training(tmp_path, _topics(120), {"a": 1.0, "b": 4.0}, n=90)
    played = play(threshold_pair(training, (1, 0)), training.table, np.arange(90, 120))
    assert played.worth.mean() >= 0.9


def test_text_vectors_have_norm_one_and_near_texts_are_near(tmp_path: Path) -> None:
    vectors = TextVectors(_training(tmp_path, _topics(30)))
    river, other, mountain = (vectors(t) for t in ("the river number 4", "river number 5", "the mountain number 4"))
    assert float(np.linalg.norm(river)) == pytest.approx(1, abs=1e-6)
    assert river @ other > mountain @ other
    assert not vectors("").any()


def test_without_texts_the_baselines_that_need_them_do_not_play(tmp_path: Path) -> None:
    lines = [{k: v for k, v in line.items() if k != "prompt"} for line in stream(10, SKILLS)]
    assert baselines(_training(tmp_path, lines)).keys() == BASELINES.keys() - TEXTUAL


def test_the_oracle_takes_the_cheapest_of_the_best(tmp_path: Path) -> None:
    table = table_of(tmp_path, [closed(0, {"a": 1, "b": 0, "c": 0}), closed(1, {"a": 1, "b": 2})], PRICES)
    played: ReplayResult = oracle(table, np.arange(2))
    assert played.worth.tolist() == [1, 0]
    assert played.asked.argmax(axis=1).tolist() == [1, 0]


def test_settings_are_chosen_by_accuracy_less_a_tenth_of_the_cost_ratio(tmp_path: Path) -> None:
    """On the last fifth, made from what comes before it."""
    lines = [closed(n, {"a": 0, "b": 0}) for n in range(10)]
    training = _training(tmp_path, lines)
    made = []

    def make(part: Training, endpoint: int) -> First:
        made.append(len(part.rows))
        return First((endpoint,))

    assert best_setting(training, (1, 0), make) == 0
    assert made == [8, 8]
