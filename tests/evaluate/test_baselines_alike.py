"""A policy served by name does the same as the baseline of that name in the evaluation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from focalroute.evaluate.baselines import BASELINES, First, ReplayedLatestCorrect, ReplayedRoundRobin, Routed, fitted
from focalroute.evaluate.replay import FeedbackKind, ReplayResult, Strategy, Training, play
from focalroute.evaluate.serving import Serving
from focalroute.evaluate.table import LogTable
from focalroute.evaluate.votes import LogLinear, MeanVote, TrainedCascade, Vote, Weighted
from focalroute.policy.baselines import (
    LOG_LINEAR_RATE,
    NEED_A_LOG,
    SERVED_BASELINES,
    SURE_ENOUGH,
    Baseline,
    LogLinearOnline,
)
from focalroute.policy.references import ALL_BASELINES
from focalroute.policy.routers import ROUTERS
from tests.evaluate.logs import Line, closed, output, stream, table_of

PRICES = {"a": 1.0, "b": 2.0, "c": 4.0, "d": 3.0}
SKILLS = {"a": 0.55, "b": 0.9, "c": 0.7, "d": 0.6}
ROWS = 240
TRAIN, TEST = np.arange(120), np.arange(120, ROWS)

Make = Callable[[Training], Strategy]


def named(name: str, table: LogTable, seed: int = 0) -> Baseline:
    return ALL_BASELINES[name]([endpoint.name for endpoint in table.endpoints], seed)


def unsure(lines: list[Line]) -> list[Line]:
    """Some members with probabilities, among them equal sums and ones that turn the plurality."""
    for n, line in enumerate(lines):
        for name in ("a", "c"):
            given = line["outputs"][name]
            mass = [0.15, 0.15, 0.15] if n % 3 else [0.1, 0.1, 0.1]
            mass[given["answer"]] = 0.4 + 0.1 * (n % 4)
            given["probabilities"] = mass
    return lines


def both(
    name: str, make: Make, table: LogTable, *, feedback: FeedbackKind = "none", max_rounds: int = 4
) -> tuple[ReplayResult, ReplayResult]:
    """The policy, once everybody's answers to the training part are known, and the baseline on the test part."""
    serving = Serving(named("plurality", table), table.endpoints, seed=0, max_rounds=max_rounds)
    play(serving, table, TRAIN)
    serving.policy = named(name, table)
    ours = play(serving, table, TEST, feedback=feedback)
    theirs = play(make(Training(table, TRAIN, seed=0)), table, TEST, feedback=feedback)
    return ours, theirs


def test_every_baseline_serves_or_says_why_not() -> None:
    assert SERVED_BASELINES.keys() | ROUTERS.keys() <= BASELINES.keys() | {"best-single"}
    assert BASELINES.keys() <= SERVED_BASELINES.keys() | ROUTERS.keys() | NEED_A_LOG.keys()
    assert not SERVED_BASELINES.keys() & NEED_A_LOG.keys()


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("plurality", lambda training: Vote(training.rank)),
        pytest.param("mean", lambda training: MeanVote(training.rank), marks=pytest.mark.slow),
        ("best-single", lambda training: First(training.rank)),
        pytest.param(
            "round-robin",
            lambda training: ReplayedRoundRobin(len(training.table.endpoints)),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_baselines_in_replay_and_service_ask_and_answer_the_same_ties_included(
    tmp_path: Path, name: str, make: Make
) -> None:
    """With the same past: ties go by accuracy in both, over the window here and the training part there."""
    table = table_of(tmp_path, unsure(stream(ROWS, SKILLS)), PRICES)
    ours, theirs = both(name, make, table)
    assert ours.asked.tolist() == theirs.asked.tolist()
    assert ours.worth.tolist() == theirs.worth.tolist()
    assert 0.5 < ours.worth.mean() < 1


def test_weighted_votes_agree_but_for_how_they_rate_their_members(tmp_path: Path) -> None:
    """In service a member is rated beside those asked the same queries, in the replay by its own accuracy."""
    ours, theirs = both("weighted-vote", Weighted, table_of(tmp_path, unsure(stream(ROWS, SKILLS)), PRICES))
    assert ours.asked.tolist() == theirs.asked.tolist()
    assert (ours.worth == theirs.worth).mean() > 0.95


def test_the_latest_correct_is_the_same_member_from_nothing_known_on(tmp_path: Path) -> None:
    """At equal prices, which settle here what the pool's order settles there: nobody is known at the start."""
    table = table_of(tmp_path, stream(ROWS, SKILLS), dict.fromkeys(SKILLS, 1.0))
    rows = np.arange(ROWS)
    serving = Serving(named("latest-correct", table), table.endpoints, seed=0)
    theirs = play(ReplayedLatestCorrect(Training(table, rows[:0], seed=0)), table, rows)
    ours = play(serving, table, rows)
    assert ours.asked.tolist() == theirs.asked.tolist()
    assert (ours.asked.sum(axis=0) > 0).all()


def test_log_linear_learns_the_same_weights(tmp_path: Path) -> None:
    """From labels, of closed questions and of free-form ones, also of those that nobody answered rightly."""
    lines = stream(200, SKILLS)
    for n in range(150, 200):
        answers = {name: str(given["answer"]) for name, given in lines[n]["outputs"].items()}
        label = "7" if n % 5 == 0 else str(lines[n]["label"])
        lines[n] = {"id": f"f{n}", "prompt": "?", "label": label} | {
            "outputs": {name: output(text) for name, text in answers.items()}
        }
    lines[10] = closed(10, dict.fromkeys(SKILLS, 1), label=2)
    table = table_of(tmp_path, lines, PRICES)
    policy = named("log-linear-online", table)
    baseline = LogLinear(range(4), 4, LOG_LINEAR_RATE)
    ours = play(Serving(policy, table.endpoints, seed=0), table, np.arange(200))
    theirs = play(baseline, table, np.arange(200))
    assert isinstance(policy, LogLinearOnline)
    assert policy.weights == pytest.approx(baseline.weights, rel=1e-5)
    assert abs(policy.weights - 1).max() > 0.1
    assert ours.asked.all()
    assert (ours.worth == theirs.worth).mean() > 0.95  # ties apart: at first all weights are equal, and nobody known


def test_log_linear_takes_from_a_bare_reward_what_it_tells(tmp_path: Path) -> None:
    """Of a right answer everything, of a wrong one where the rest of the mass lies: it still finds whom to believe."""
    table = table_of(tmp_path, stream(ROWS, {"a": 0.3, "b": 0.95, "c": 0.3, "d": 0.3}), PRICES)
    policy = named("log-linear-online", table)
    play(Serving(policy, table.endpoints, seed=0), table, np.arange(ROWS), feedback="reward")
    assert isinstance(policy, LogLinearOnline)
    assert policy.weights.argmax() == 1
    assert policy.weights[1] > policy.weights[[0, 2, 3]].max() + 0.3


def test_the_cascade_asks_as_the_baseline_does_with_the_same_settings(tmp_path: Path) -> None:
    """But where the counts, with slightly different priors, fall on the two sides of the threshold."""
    table = table_of(tmp_path, stream(ROWS, SKILLS), PRICES)
    stages = ((1, SURE_ENOUGH), (2, SURE_ENOUGH))  # the better half, the cheap one first
    ours, theirs = both("cascade", lambda training: TrainedCascade(training, stages), table)
    assert (ours.asked == theirs.asked).all(axis=1).mean() > 0.95
    assert (ours.worth == theirs.worth).mean() > 0.95
    assert not ours.asked[:, [0, 3]].any()


def test_the_cascade_asks_a_free_form_question_twice_and_on_where_they_differ(tmp_path: Path) -> None:
    answers = [{"a": "1", "b": "1", "c": "2", "d": "2"}, {"a": "1", "b": "2", "c": "2", "d": "2"}]
    lines = [{"id": str(n), "prompt": "?", "outputs": {e: output(t) for e, t in row.items()}, "label": "1"}
             for n, row in enumerate(answers)]  # fmt: skip
    table = table_of(tmp_path, lines, PRICES)
    for rounds, calls in ((1, [1, 1]), (4, [2, 2])):  # half of the pool is all that a cascade asks
        serving = Serving(named("cascade", table), table.endpoints, seed=0, max_rounds=rounds)
        assert play(serving, table, np.arange(2), feedback="none").asked.sum(axis=1).tolist() == calls


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in ("carrot-knn", "lin-ucb") else [pytest.mark.slow]) for name in ROUTERS],
)
def test_a_published_router_decides_the_same_in_service_and_in_the_replay(tmp_path: Path, name: str) -> None:
    """It is one router behind both, fitted alike and held to one cost by the same pacer."""
    table = table_of(tmp_path, stream(ROWS, SKILLS), PRICES)
    train, test = TRAIN, TEST
    usd = 0.2 * float(table.usd[test].mean(axis=0).sum())
    theirs = play(Routed(fitted(name, Training(table, train, seed=0)), table.embed, usd), table, test)
    serving = Serving(fitted(name, Training(table, train, seed=0)), table.endpoints, seed=0)
    serving.hold(usd)
    ours = play(serving, table, test)
    assert ours.asked.tolist() == theirs.asked.tolist()
    assert theirs.usd.mean() == pytest.approx(usd, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "members"), [pytest.param("random", 4, marks=pytest.mark.slow), ("random-select", 2)])
def test_random_baselines_are_even_and_repeatable(tmp_path: Path, name: str, members: int) -> None:
    table = table_of(tmp_path, stream(ROWS, SKILLS), PRICES)
    ours, _ = both(name, BASELINES["round-robin"], table)
    shares = ours.asked.mean(axis=0)
    best = list(Training(table, TRAIN, seed=0).rank[:members])
    assert shares[best] == pytest.approx([1 / members] * members, abs=0.1)
    assert shares.sum() == pytest.approx(1)
    assert both(name, BASELINES["round-robin"], table)[0].asked.tolist() == ours.asked.tolist()


@pytest.mark.parametrize("name", [*SERVED_BASELINES, *ROUTERS])
@pytest.mark.parametrize("feedback", ["label", "reward", "none"])
def test_every_baseline_copes_with_members_missing_failing_and_graded(
    tmp_path: Path, name: str, feedback: FeedbackKind
) -> None:
    lines = stream(12, SKILLS)
    lines[5]["outputs"] = {}
    lines[6]["outputs"] = {"a": {"error": "down"}, "b": output(None), "c": output(1)}
    lines[7]["outputs"].pop("b")
    lines[8] = {"id": "s", "outputs": {n: output(None, score=0.5) for n in PRICES}}
    table = table_of(tmp_path, lines, PRICES)
    played = play(Serving(named(name, table), table.endpoints, seed=0), table, np.arange(12), feedback=feedback)
    assert played.asked.any(axis=1).tolist() == [n != 5 for n in range(12)]
    assert played.asked[6, 2]  # the only one with an answer
    assert played.worth[6] == float(lines[6]["label"] == 1)
