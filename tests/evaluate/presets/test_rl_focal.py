"""RL-Focal: its views, what it learns where the best policy is known, and what it must not see."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.paper.single_head import SingleHead, teams
from focalroute.core.records import F32, Bools
from focalroute.evaluate.presets import Learned, Ppo
from focalroute.evaluate.presets.rl_focal import (
    METRICS,
    Agents,
    AgentStep,
    BranchingHead,
    RlFocalSettings,
    decider_view,
    diversities,
    fusion_columns,
    learn,
    pair_statistics,
    rl_focal,
    train,
    width_of,
)
from focalroute.evaluate.replay import FeedbackKind, FeedbackPlan, FeedbackStream, Training, Turn, play
from focalroute.learn.nets import Floats, parameters
from tests.evaluate.logs import closed, output, table_of
from tests.evaluate.presets.worlds import PRICES, parts, sees_only_what_it_asked, two_sides

QUICK = RlFocalSettings(window=50, passes=4, lanes=4, ppo=Ppo(rate=0.01, clip=0.2), update_every=50)


@pytest.mark.slow
def test_it_learns_which_members_to_believe_and_which_to_leave_out(tmp_path: Path) -> None:
    """The plurality of all is no better than a coin between two answers; the best pools are always right."""
    table = two_sides(tmp_path)
    training, rows = parts(table)
    strategy = rl_focal(training, QUICK)
    played = play(strategy, table, rows)
    assert played.worth.mean() > 0.95
    asked = played.asked.mean(axis=0)
    assert asked[:2].mean() > asked[2:].mean() + 0.2


def test_the_first_half_of_the_passes_is_the_deciders_and_the_second_the_fusions(tmp_path: Path) -> None:
    """Of two passes the second leaves the Decider alone; of one there is no first half."""
    training, _ = parts(two_sides(tmp_path, 200))
    data = training.arrays()
    fresh = Agents.fresh(np.random.default_rng(0), 4, 3, QUICK)
    one, two = (train(data, replace(QUICK, passes=passes), 0) for passes in (1, 2))
    assert _same(one.decider, fresh.decider)
    assert not _same(one.fusion, fresh.fusion)
    assert not _same(two.decider, fresh.decider)
    assert not _same(two.fusion, fresh.fusion)


def test_a_training_part_shorter_than_an_update_is_learned_from(tmp_path: Path) -> None:
    training, _ = parts(two_sides(tmp_path, 60))
    data, settings = training.arrays(), RlFocalSettings(passes=2, lanes=2)
    assert len(data.fails) < settings.update_every
    fresh, learned = Agents.fresh(np.random.default_rng(0), 4, 3, settings), train(data, settings, 0)
    assert not _same(learned.decider, fresh.decider)
    assert not _same(learned.fusion, fresh.fusion)


class Everyone(BranchingHead):
    """Always draws the whole pool."""

    def draw(self, logits: Floats, rng: np.random.Generator) -> tuple[Bools, F32]:
        return np.ones(logits.shape, bool), np.ones(logits.shape, np.float32)


def test_members_that_fail_or_are_missing_count_as_wrong_in_service_as_in_training(tmp_path: Path) -> None:
    """The metrics of a window that was played are those of a window that was trained on."""
    lines = [closed(n, {"a": n % 3, "b": 0, "c": n % 2}, n % 3) for n in range(121)]
    for n, line in enumerate(lines):
        if n % 3 == 0:
            line["outputs"]["a"] = output(None, error="timeout")
        if n % 4 == 0:
            del line["outputs"]["b"]
    table = table_of(tmp_path, lines, {name: PRICES[name] for name in "abc"})
    settings = replace(QUICK, decider_head=Everyone, passes=1, window=60)
    training = Training(table, np.arange(60), 0)
    strategy = rl_focal(training, settings)
    play(strategy, table, np.arange(60, 120))
    turn = Turn(table, 120)
    strategy.answer(turn)
    fails, everyone = replace(training, rows=np.arange(60, 120)).arrays().fails, np.ones((1, 3), np.float32)
    metrics = diversities(fails, everyone, pair_statistics(fails.T @ fails, 60))
    assert turn.memo.seen == pytest.approx(decider_view(everyone, metrics), abs=1e-6)


def test_a_graded_candidate_is_worth_the_mean_of_its_backers_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the Fusion's draw as for the answer."""
    lines = [closed(n, {}) for n in range(40)]
    for line in lines:
        del line["label"]
        line["outputs"] = {name: output(1, score=score) for name, score in (("a", 0.2), ("b", 0.8), ("c", 0.6))}
    training, rows = parts(table_of(tmp_path, lines, {name: PRICES[name] for name in "abc"}))
    settings = replace(QUICK, decider_head=Everyone, passes=1, update_every=len(rows) - 1)
    strategy, batches = rl_focal(training, settings), list[AgentStep]()

    def watched(agents: Agents, steps: AgentStep, *_: object, **__: object) -> Agents:
        batches.append(steps)
        return agents

    monkeypatch.setattr("focalroute.evaluate.presets.rl_focal.learn", watched)
    play(strategy, training.table, rows)
    (steps,) = batches
    assert steps.tells.any()
    assert steps.rewards == pytest.approx(2 * (0.2 + 0.8 + 0.6) / 3 - 1)


def test_only_what_it_asked_is_seen(tmp_path: Path) -> None:
    table = two_sides(tmp_path, 300)
    assert sees_only_what_it_asked(table, lambda training: rl_focal(training, replace(QUICK, passes=2)))


def test_the_same_seed_does_the_same_and_another_does_not(tmp_path: Path) -> None:
    table = two_sides(tmp_path, 200)
    runs = []
    for seed in (0, 0, 1):
        training, rows = parts(table, seed=seed)
        runs.append(play(rl_focal(training, replace(QUICK, passes=2)), table, rows))
    assert np.array_equal(runs[0].asked, runs[1].asked)
    assert not np.array_equal(runs[0].asked, runs[2].asked)


def test_a_question_with_too_many_choices_is_left_to_plurality_and_counted(tmp_path: Path) -> None:
    lines = [closed(n, dict.fromkeys("abc", n % 3), n % 3) for n in range(40)]
    for line in lines[35:]:
        line |= {"choices": ["A", "B", "C", "D"], "label": 3, "outputs": {name: output(3) for name in "abc"}}
    table = table_of(tmp_path, lines, {name: PRICES[name] for name in "abc"})
    training, rows = parts(table)
    strategy = rl_focal(training, replace(QUICK, passes=2))
    played = play(strategy, table, rows)
    assert strategy.unfused == 5
    assert played.worth[-5:].tolist() == [1] * 5


@pytest.mark.parametrize(("feedback", "delay"), [("label", 0), ("label", 5), ("reward", 0), ("none", 0)])
@pytest.mark.parametrize("kind", ["free form", "scores", "gaps", "one endpoint"])
def test_it_plays_whatever_a_log_holds(tmp_path: Path, kind: str, feedback: FeedbackKind, delay: int) -> None:
    lines: list[dict[str, Any]] = []
    for n in range(100):
        if kind == "free form":
            outputs = {"a": output(str(n)), "b": output(str(n if n % 2 else n + 1)), "c": output(None)}
            lines.append({"id": str(n), "label": str(n), "outputs": outputs})
        elif kind == "scores":
            outputs = {name: {"score": s, "cost_usd": 1.0} for name, s in (("a", 0.2), ("b", 0.8), ("c", 0.6))}
            lines.append({"id": str(n), "outputs": outputs})
        elif kind == "gaps":
            answers = {"a": n % 3, "b": 1, "c": None} if n % 3 else {"b": 0}
            lines.append(closed(n, answers, n % 3))
            if n % 4 == 0:
                lines[-1]["outputs"]["b"] = output(None, error="timeout")
        else:
            lines.append(closed(n, {"a": n % 3}, n % 3))
    names = "a" if kind == "one endpoint" else "abc"
    table = table_of(tmp_path, lines, {name: PRICES[name] for name in names})
    training, rows = parts(table)
    strategy = rl_focal(training, replace(QUICK, passes=2, update_every=10))
    played = play(strategy, table, rows, feedback=FeedbackStream(FeedbackPlan(feedback, delay=delay)))
    assert strategy.unfused == 0
    assert played.asked.any(axis=1).all()
    assert np.isfinite(played.worth).all()


def test_free_form_candidates_come_by_mass_and_choices_in_their_place() -> None:
    mass = np.zeros((1, 2, 4), np.float32)
    mass[0, 0], mass[0, 1] = [0, 0.2, 0.5, 0.3], [0, 0.1, 0.1, 0.6]
    order, offered = fusion_columns(mass, 0, 3)
    assert (order.tolist(), offered.tolist()) == ([[3, 2, 1]], [[True, True, True]])
    mass[0, :, 1] = 0
    assert fusion_columns(mass, 0, 3)[1].tolist() == [[True, True, False]]
    order, offered = fusion_columns(mass, 2, 3)
    assert (order.tolist(), offered.tolist()) == ([[0, 1, 2]], [[True, True, False]])
    assert not fusion_columns(np.zeros((1, 2, 4), np.float32), 2, 3)[1].any()


def test_the_fusions_width_is_that_of_the_training_part(tmp_path: Path) -> None:
    lines = [closed(n, {"a": 0}) for n in range(10)]
    lines[9]["choices"] = list("ABCDEF")
    table = table_of(tmp_path, lines, {"a": 1.0})
    assert width_of(parts(table, 0.8)[0].arrays(), QUICK) == 3
    free = [{"id": str(n), "label": "0", "outputs": {x: output(x) for x in "abcd"}} for n in range(10)]
    data = parts(table_of(tmp_path, free, PRICES))[0].arrays()
    assert width_of(data, QUICK) == 4
    assert width_of(data, replace(QUICK, largest_free_form=2)) == 2


def test_a_pool_has_at_least_two_and_the_likeliest_fill_up() -> None:
    agents = Agents.fresh(np.random.default_rng(0), 4, 3, QUICK)
    net = replace(agents.decider.net, out_bias=np.array([-9, -3, -9, -2], np.float32))
    seen = decider_view(np.ones((500, 4), np.float32), np.zeros((500, len(METRICS)), np.float32))
    picked, pools = BranchingHead(4).draw(Learned.fresh(net)(seen), np.random.default_rng(0))
    assert pools.sum(axis=1).min() == 2
    assert (pools >= picked).all()
    nobody = picked.sum(axis=1) == 0
    assert nobody.any()
    assert pools[nobody].tolist() == [[0, 1, 0, 1]] * int(nobody.sum())


@pytest.mark.parametrize(("decide", "fuse"), [(True, False), (False, True), (False, False)])
def test_each_agent_learns_only_when_it_should_and_the_critic_always(decide: bool, fuse: bool) -> None:
    rng = np.random.default_rng(0)
    agents = Agents.fresh(rng, 4, 3, QUICK)
    after = learn(agents, _steps(rng), QUICK, rng, decide=decide, fuse=fuse)
    assert _same(after.decider, agents.decider) != decide
    assert _same(after.fusion, agents.fusion) != fuse
    assert not _same(after.critic, agents.critic)


def test_the_fusion_learns_nothing_from_steps_that_tell_nothing() -> None:
    rng = np.random.default_rng(0)
    agents = Agents.fresh(rng, 4, 3, QUICK)
    steps = replace(_steps(rng), tells=np.zeros((2, 9), bool))
    assert _same(learn(agents, steps, QUICK, rng, decide=False, fuse=True).fusion, agents.fusion)


def test_the_paper_has_about_17000_parameters() -> None:
    """8 models, 4 choices: the two policies."""
    agents = Agents.fresh(np.random.default_rng(0), 8, 4, RlFocalSettings())
    policies = (parameters(learned.net) for learned in (agents.decider, agents.fusion))
    assert sum(array.size for arrays in policies for array in arrays.values()) == pytest.approx(17_000, rel=0.1)


def _steps(rng: np.random.Generator) -> AgentStep:
    seen, shown = 4 + 1 + len(METRICS), QUICK.window + 4 * 3
    made = [
        AgentStep(
            seen=rng.standard_normal((2, seen)).astype(np.float32),
            picked=rng.random((2, 4)) < 0.5,
            shown=rng.standard_normal((2, shown)).astype(np.float32),
            offered=np.ones((2, 3), bool),
            fused=rng.integers(0, 3, 2),
            tells=np.ones(2, bool),
            state=rng.standard_normal((2, seen + shown)).astype(np.float32),
            rewards=rng.choice([-1, 1], (2, 2)).astype(np.float32),
        )
        for _ in range(9)
    ]
    return AgentStep.stack(made)


def _same(one: Learned, other: Learned) -> bool:
    return all(np.array_equal(getattr(one.net, f.name), getattr(other.net, f.name)) for f in fields(one.net))


def test_asking_goes_through_the_turn(tmp_path: Path) -> None:
    """What it answers with was backed by somebody it asked, whenever all agree."""
    table = table_of(tmp_path, [closed(n, dict.fromkeys("abcd", n % 3), n % 3) for n in range(60)], PRICES)
    training, rows = parts(table)
    strategy = rl_focal(training, replace(QUICK, passes=2))
    turn = Turn(table, int(rows[0]))
    strategy.answer(turn)
    assert 2 <= len(turn.replies) <= 4


@pytest.mark.slow
def test_one_head_over_all_teams_learns_too(tmp_path: Path) -> None:
    """Of four endpoints there are 11 teams of at least two; the probability learned from is that of the team drawn."""
    training, rows = parts(two_sides(tmp_path, 400))
    strategy = rl_focal(training, replace(QUICK, passes=8, decider_head=SingleHead))
    assert strategy.agents.decider.net.out_bias.shape == (11,)
    assert play(strategy, training.table, rows).worth.mean() > 0.95
    heads, logits = SingleHead(4), np.log(np.arange(1, 12, dtype=np.float32))[None]
    for team, probability in zip(teams(4), np.arange(1, 12) / 66, strict=True):
        assert np.exp(heads.likelihood(logits, team[None]).log_pi) == pytest.approx(probability)
    with pytest.raises(ValueError, match="not 13"):
        SingleHead(13)


def test_the_decider_sees_only_the_metrics_it_is_given(tmp_path: Path) -> None:
    training, _ = parts(two_sides(tmp_path, 200))
    seen = []
    settings = replace(QUICK, metrics=("focal",), passes=2)
    train(training.arrays(), settings, 0, watch=lambda step: seen.append(step.seen.shape))
    assert set(seen) == {(QUICK.lanes, 4 + 1 + 1)}
