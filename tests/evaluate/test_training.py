"""The log as arrays for training equals what the serving code sees query by query; and the resulting bundle."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from focalroute.core.errors import ConfigError
from focalroute.core.records import Bools, Trajectory
from focalroute.evaluate.replay import Turn, play
from focalroute.evaluate.serving import Serving
from focalroute.evaluate.table import LogTable
from focalroute.evaluate.training import TrainingJob, best_of, publish_trained, recorded, train_each, train_on
from focalroute.learn.export import decider_model, fusion_model
from focalroute.learn.nets import DeciderNet, FusionNet, decider_state, fusion_state
from focalroute.learn.offline import RecordedLog
from focalroute.learn.offline.prior_stats import PriorStats, calibration, compute_prior_stats
from focalroute.learn.offline.reinforce import OfflineSettings, critic_targets
from focalroute.learn.offline.rollout import LogView, Rollout, log_view, roll
from focalroute.learn.offline.stacking import fusion_inputs
from focalroute.learn.offline.views import long_run
from focalroute.learn.online import unpack
from focalroute.money.cost import typical_cost
from focalroute.observe.experience import Experience
from focalroute.observe.layout import CONTEXT, ENDPOINT, MEMBER, slices
from focalroute.observe.memory import Expectation
from focalroute.observe.observer import Observer
from focalroute.policy.bundle import learner, load
from focalroute.policy.publish import publish
from tests.evaluate.logs import Line, output, stream, table_of
from tests.learn.made import randomised
from tests.policies import ask_all

PRICES = {"a": 1.0, "b": 2.0, "c": 4.0, "d": 0.5, "e": 3.0}
NAMES = tuple(PRICES)
WINDOW = 40
PRICE_OF_MONEY = 0.3
SMALL = OfflineSettings(
    fusion_epochs=1,
    lookahead_steps=4,
    iterations=4,
    queries=16,
    samples=4,
    renew=2,
    finish=1,
    finish_epochs=0,
    critic_steps=10,
)
_ENDPOINT, _MEMBER = slices(ENDPOINT), slices(MEMBER)


def _line(number: int, rng: random.Random) -> Line:
    """Closed with 2 to 6 choices or free-form; some endpoints absent, some replies unusable or failed."""
    k = rng.choice((2, 3, 5, 6))
    closed = rng.random() < 0.6
    outputs: dict[str, Any] = {}
    for name in NAMES:
        chance = rng.random()
        if chance < 0.15:
            continue
        choice = rng.randrange(k)
        more = {"latency_s": rng.random(), "completion_tokens": rng.randrange(40)}
        if chance < 0.45:
            outputs[name] = output(None, **more, **({"error": "timeout"} if chance < 0.3 else {}))
        elif closed:
            masses = [rng.random() + (at == choice) for at in range(k)]
            mass = {"probabilities": [x / sum(masses) for x in masses]} if rng.random() < 0.5 else {}
            outputs[name] = output(choice, **more, **mass)
        else:
            outputs[name] = output(f"{choice}", **more)
    if all(one["answer"] is None for one in outputs.values()):  # one that nobody answers is not learned from
        outputs["d"] = output(0 if closed else "0")
    line: Line = {"id": f"q{number}", "label": 0 if closed else "0", "outputs": outputs}
    if rng.random() < 0.8:
        line["prompt"] = " ".join(rng.choices(("sum", "river", "poem", "planet", "code"), k=4))
    if rng.random() < 0.8:
        line["task"] = rng.choice(("even", "odd"))
    # choices of its own, as training does not count how choices that recur are confused
    return line | ({"choices": [f"choice {at} of {number}" for at in range(k)]} if closed else {})


@dataclass(frozen=True)
class Both:
    """One policy served over a log, and what training computes from whom it asked."""

    log: RecordedLog
    asked: tuple[tuple[tuple[int, ...], ...], ...]
    steps: tuple[Trajectory, ...]
    answers: tuple[int, ...]
    probabilities: tuple[tuple[float, ...], ...]
    candidates: tuple[tuple[int, ...], ...]  # of the log, in the order in which serving met them
    prior_stats: PriorStats
    seen: LogView
    played: Rollout
    fusion: FusionNet


def _policy(folder: Path, experience: Experience) -> tuple[DeciderNet, FusionNet]:
    """Nets by chance that ask some at first and others later; no two candidates tie."""
    rng = np.random.default_rng(0)
    decider = randomised(DeciderNet.initial(rng, vocabulary=5), 5, np.float32, 0.4)
    fusion = randomised(FusionNet.initial(rng, vocabulary=5), 4, np.float32, 0.4)
    late = decider.skip_context.copy()
    late[slices(CONTEXT)["first"]] -= 1.5
    decider = replace(decider, skip_context=late, bias=np.full(1, 3.5, np.float32))
    models = decider_model(decider), fusion_model(fusion)
    publish(folder, decider=models[0], fusion=models[1], names=NAMES, parent=None, experience=experience)
    return decider, fusion


def _served(table: LogTable, serving: Serving) -> tuple[list[Any], list[int], list[Trajectory], list[tuple[int, ...]]]:
    """Every answer as it would be stored, and the candidates in the order met."""
    stored, answers, steps, met = [], [], [], []

    class Watched:
        def answer(self, turn: Turn) -> int:
            answers.append(serving.answer(turn))
            stored.append(turn.memo)
            steps.append(turn.memo.trajectory)
            heard = [one.candidate for one in turn.replies.values() if one.candidate >= 0]
            met.append(tuple(range(turn.choices)) or tuple(dict.fromkeys(heard)))
            return answers[-1]

        def learn(self, turn: Turn, revealed: Any) -> None:
            serving.learn(turn, revealed)

    play(Watched(), table, np.arange(len(table.queries)), show_task=True)
    return stored, answers, steps, met


def _masks(asked: Sequence[Sequence[Sequence[int]]], n: int) -> tuple[Bools, Bools]:
    first, later = np.zeros((len(asked), n), np.bool_), np.zeros((len(asked), n), np.bool_)
    for t, rounds in enumerate(asked):
        first[t, list(rounds[0])] = True
        later[t, [i for round_ in rounds[1:] for i in round_]] = True
    return first, later


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    """150 queries served greedily with a window of 40, and the same in bulk."""
    folder = tmp_path_factory.mktemp("both")
    rng = random.Random(8)
    table = table_of(folder, [_line(number, rng) for number in range(150)], PRICES)
    everyone = np.arange(len(table.queries))
    log = recorded(table, everyone, show_task=True)
    accuracy, prior = long_run(log, everyone)
    nothing = np.zeros((0, log.vectors.shape[1]), np.float32), *np.zeros((2, 0, 5), np.float32)
    decider, fusion = _policy(folder / "policy", Experience(NAMES, accuracy, prior.usd.astype(np.float32), *nothing))
    serving = Serving(
        load(folder / "policy"),
        table.endpoints,
        seed=0,
        explore=False,
        window=WINDOW,
        cost_weight=PRICE_OF_MONEY,
        max_rounds=2,
        probe_share=0.0,
        detect=False,
    )
    stored, answers, steps, met = _served(table, serving)
    first, later = _masks(serving.history, 5)
    prior_stats = compute_prior_stats(log, first, later, prior, window=WINDOW, every=1)
    similar = np.array([one.decisions[0][0].endpoints[:, _ENDPOINT["similar"].start] / 4 for one in steps])
    assert log.mass is not None
    asked_mass = np.where((first | later)[:, :, None], log.mass, np.nan)
    book = calibration(replace(log, mass=asked_mass))  # serving learns only from whom it asked
    seen = log_view(log, prior_stats, Expectation(similar, np.ones_like(similar)), everyone, np.arange(1, 6), book)
    played = roll(
        decider,
        fusion,
        seen,
        cost_weight=np.full(len(log), PRICE_OF_MONEY, np.float32),
        ask_all_usd=1.0,
        rounds=2,
        samples=1,
        rng=None,
    )
    probabilities = tuple(one.probabilities for one in stored)
    history = tuple(serving.history)
    return Both(
        log, history, tuple(steps), tuple(answers), probabilities, tuple(met), prior_stats, seen, played, fusion
    )


def test_the_log_has_all_that_makes_a_difference(both: Both) -> None:
    """Else the tests below would show little."""
    log = both.log
    assert 0.2 < log.closed.mean() < 0.8
    assert len(set(log.size[log.closed].tolist())) > 2
    assert not log.there.all()
    assert (log.there & ~log.usable).any()
    assert log.mass is not None
    assert np.isnan(log.mass).any()
    assert log.tasks is not None
    assert set(log.tasks.tolist()) == {"", "even", "odd"}
    assert both.seen.columns[..., _ENDPOINT["signal"].start].any()
    assert (np.abs(both.seen.features[..., _MEMBER["calibrated"].start]) > 0.1).any()
    assert 0 < (~log.vectors.any(axis=1)).sum() < len(log)
    rounds = [len([r for r in asked if r]) for asked in both.asked]
    assert {1, 2} <= set(rounds)
    assert max(rounds) > 2  # where nobody had answered by then
    sizes = [len(asked[0]) for asked in both.asked]
    assert len(set(sizes)) > 2


def test_observations_of_every_round_are_those_of_service(both: Both) -> None:
    compared = 0
    for number, step in enumerate(both.played.steps):
        for row, context, endpoints in zip(step.rows.tolist(), step.context, step.endpoints, strict=True):
            decisions = both.steps[row].decisions
            if number >= len(decisions):
                assert not step.heads.eligible[step.rows == row].any()  # a forced STOP
                continue
            seen = decisions[number][0]
            np.testing.assert_allclose(context, seen.context, atol=2e-4, err_msg=f"{row} {number}")
            np.testing.assert_allclose(endpoints, seen.endpoints, atol=2e-4, err_msg=f"{row} {number}")
            compared += 1
    assert compared == sum(len(one.decisions) for one in both.steps)


def test_evidence_is_that_of_service(both: Both) -> None:
    for row, one in enumerate(both.steps):
        first, later = (mask[row : row + 1] for mask in _masks(both.asked, 5))
        members, candidates, ids, offered = fusion_inputs(both.seen, np.array([row]), first, later)
        met = list(both.candidates[row])
        assert sorted(np.flatnonzero(offered[0]).tolist()) == sorted(met)
        assert (ids[0] - 1).tolist() == list(one.evidence.endpoints)
        np.testing.assert_allclose(members[0, met], one.evidence.members, atol=2e-4, err_msg=str(row))
        np.testing.assert_allclose(candidates[0, met], one.evidence.candidates, atol=1e-6, err_msg=str(row))


def test_decisions_posteriors_and_answers_are_those_of_service(both: Both) -> None:
    first, later = _masks(both.asked, 5)
    np.testing.assert_array_equal(both.played.first, first)
    np.testing.assert_array_equal(both.played.later, later)
    for row, probabilities in enumerate(both.probabilities):
        posterior = both.played.posterior[row, list(both.candidates[row])]
        among = np.array(probabilities) / sum(probabilities)  # without the chance that none of them is right
        np.testing.assert_allclose(posterior, among, atol=2e-4)
    rows, answers = np.arange(len(both.log)), np.array(both.answers)
    served = both.played.posterior[rows, answers]  # the largest, or as large: rounding decides among those nobody backs
    np.testing.assert_allclose(served, both.played.posterior[rows, both.played.answer], atol=2e-4)
    np.testing.assert_array_equal(both.played.worth, both.log.worth[rows, both.played.answer])
    paid = (both.log.usd * (first | later)).sum(axis=1)
    np.testing.assert_allclose(both.played.shares.sum(axis=0), paid, rtol=1e-5)


def test_the_critics_states_are_those_of_online_updates(both: Both) -> None:
    states, returns = critic_targets(both.played, both.seen, PRICE_OF_MONEY)
    expected, paid = [], both.played.shares.sum(axis=0)
    for number in range(len(both.played.steps)):
        expected += [decider_state(one.decisions[number][0]) for one in both.steps if number < len(one.decisions)]
    expected += [fusion_state(one.decisions[-1][0], one.evidence) for one in both.steps]
    np.testing.assert_allclose(states, np.array(expected), atol=2e-4)
    worth = 2 * both.played.worth - 1
    np.testing.assert_allclose(returns[: len(worth)], worth - PRICE_OF_MONEY * paid, atol=1e-5)
    np.testing.assert_allclose(returns[-len(worth) :], worth, atol=1e-6)


# --- training on a table, and what it leaves -------------------------------------------------------------


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> LogTable:
    skills = {"a": 0.5, "b": 0.9, "c": 0.7, "d": 0.2, "e": 0.6}
    return table_of(tmp_path_factory.mktemp("log"), stream(100, skills), PRICES)


def scored(score: float) -> Line:
    """An output of which only the score is known."""
    return {"score": score, "cost_usd": 1.0}


def test_a_log_as_arrays_by_hand(tmp_path: Path) -> None:
    """A question of scores, a free-form one with a failed call, and one with masses."""
    lines: list[Line] = [
        {
            "id": "1",
            "prompt": "x",
            "outputs": {"a": {"score": 0.5, "cost_usd": 1.0}, "b": {"score": 0.2, "cost_usd": 1.0}},
        },
        {"id": "2", "label": "7", "outputs": {"a": output("8"), "b": output("7"), "c": output(None, error="down")}},
        {
            "id": "3",
            "label": 1,
            "choices": ["A", "B"],
            "outputs": {"c": output(1, probabilities=[0.25, 0.75], latency_s=2.0)},
        },
    ]
    log = recorded(table_of(tmp_path, lines, {"a": 1.0, "b": 2.0, "c": 4.0}), np.arange(3))
    assert log.there.tolist() == [[True, True, False], [True, True, True], [False, False, True]]
    assert log.candidate.tolist() == [[0, 1, -1], [0, 1, -1], [-1, -1, 1]]
    assert log.usable.tolist() == [[True, True, False], [True, True, False], [False, False, True]]
    assert log.size.tolist() == [2, 2, 2]
    assert log.closed.tolist() == [False, False, True]
    assert log.worth.tolist() == [[0.5, pytest.approx(0.2)], [0, 1], [0, 1]]
    assert log.value.tolist() == [[0.5, pytest.approx(0.2), 0], [0, 1, 0], [0, 0, 1]]
    assert log.usd[:, 2].tolist() == pytest.approx([0, 440e-6, 440e-6])
    assert log.latency_s[2].tolist() == [0, 0, 2]
    assert log.mass is not None
    assert log.mass[2, 2].tolist() == [0.25, 0.75]
    assert np.isnan(log.mass).sum() == 16
    assert log.vectors.any(axis=1).tolist() == [True, False, False]


def test_a_published_policy_serves_and_can_be_learned_on_from(table: LogTable, tmp_path: Path) -> None:
    trained = train_on(table, np.arange(100), seed=3, settings=SMALL)
    assert publish_trained(tmp_path, trained, settings=SMALL) == 1
    policy = load(tmp_path)
    assert policy.names == NAMES
    assert policy.experience is not None
    assert policy.experience.same(Experience.of(trained.experience.arrays()))
    assert [point["cost_weight"] for point in policy.metrics["curve"]] == [p.cost_weight for p in trained.curve]
    left = learner(tmp_path, 1)
    assert left is not None
    critic = unpack(left, trained.decider, trained.fusion).critic
    assert critic.out.any()
    np.testing.assert_array_equal(critic.out, trained.critic.out)
    played = play(Serving(policy, table.endpoints, seed=0, explore=False), table, np.arange(100))
    assert played.asked.any(axis=1).all()


@pytest.mark.slow
def test_many_good_endpoints_that_agree_on_free_answers_are_trained_and_served(tmp_path: Path) -> None:
    """Their evidence adds up to more than float32 has odds for."""
    names = [f"e{i}" for i in range(30)]
    lines = [{"id": f"{n}", "label": "x", "outputs": {name: output("x") for name in names}} for n in range(60)]
    table = table_of(tmp_path, lines, dict.fromkeys(names, 1.0))
    publish_trained(tmp_path / "policy", train_on(table, np.arange(60), settings=SMALL), settings=SMALL)
    for policy in (load(tmp_path / "policy"), load(ask_all(tmp_path / "ask all"))):
        serving = Serving(policy, table.endpoints, seed=0)
        assert play(serving, table, np.arange(60)).worth.all()
        assert 0.5 < serving.confidence[-1] <= 1


def test_an_endpoint_that_the_log_never_asked_costs_what_its_price_says(tmp_path: Path) -> None:
    table = table_of(tmp_path, stream(60, {"a": 0.5, "b": 0.9}), {"a": 1.0, "b": 2.0, "new": 40.0})
    publish_trained(tmp_path / "policy", train_on(table, np.arange(60), settings=SMALL), settings=SMALL)
    policy = load(tmp_path / "policy")
    assert policy.experience is not None
    assert np.isnan(policy.experience.usd).tolist() == [False, False, True]
    observer = Observer(table.names, [typical_cost(endpoint) for endpoint in table.endpoints])
    observer.adopt(policy.experience)
    assert observer.order() == (0, 1, 2)


@pytest.mark.slow
def test_of_several_seeds_the_best_on_the_validation_part_is_kept(table: LogTable) -> None:
    (found,) = train_each([TrainingJob(recorded(table, np.arange(100)), SMALL)], range(5, 8))
    assert [one.seed for one in found] == [5, 6, 7]
    assert len({one.score for one in found}) > 1
    best = best_of(found)
    assert best.score == max(one.score for one in found)
    assert best.seed == max(found, key=lambda one: one.score).seed


@pytest.mark.parametrize("size", [0, 1, 4])
def test_a_log_that_leaves_nothing_to_train_on_or_to_validate_is_refused(table: LogTable, size: int) -> None:
    """One query made a policy, and its score on that query was said to be from before it learned from it."""
    with pytest.raises(ConfigError, match=r"log: .* give a longer one"):
        train_on(table, np.arange(size), settings=SMALL)
