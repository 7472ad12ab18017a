"""focalroute replayed: the same decisions and answers as in service, and the outcomes learned from."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.shipped_policy.training import cold_fusion
from focalroute import AsyncEnsemble
from focalroute.core.pool import PoolFile, load_pool
from focalroute.core.receipts import Answer
from focalroute.evaluate.outcomes import read_log
from focalroute.evaluate.replay import FeedbackKind, FeedbackPlan, FeedbackStream, Turn, play
from focalroute.evaluate.serving import Serving, Shuffled
from focalroute.evaluate.table import LogTable, join
from focalroute.learn.export import decider_model, fusion_model
from focalroute.policy.bundle import Policy, cold, load
from focalroute.policy.fallback import Fallback
from focalroute.policy.publish import publish
from focalroute.sim import Question, SimulatedPool
from focalroute.sim import stream as questions
from tests.by_hand import linear_decider
from tests.evaluate.logs import Line, closed, output, stream, table_of, write_log
from tests.policies import ask_all, ask_the_affordable

PRICES = {"a": 1.0, "b": 2.0, "c": 4.0}
SKILLS = {"a": 0.5, "b": 0.9, "c": 0.7}


async def _served(pool: SimulatedPool, asked: list[Question]) -> tuple[list[Answer], list[list[Answer]]]:
    """The ensemble's answers, each followed by its label; and every endpoint's own answers."""
    ours = []
    async with AsyncEnsemble(pool.endpoints, seed=5, probe_share=0) as ensemble:
        for q in asked:
            ours.append(await ensemble.ask(q.text, choices=q.choices))
            await ensemble.feedback(ours[-1], label_index=q.label)
    alone = []
    for endpoint in pool.endpoints:
        async with AsyncEnsemble([endpoint]) as single:
            alone.append([await single.ask(q.text, choices=q.choices) for q in asked])
    return ours, alone


def _recorded(n: int, question: Question, answers: list[Answer]) -> Line:
    outputs: dict[str, Any] = {}
    for (reply,) in (answer.replies for answer in answers):
        usage = reply.usage
        assert usage is not None
        outputs[reply.endpoint] = {
            "answer": reply.choice, "probabilities": reply.probabilities, "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens, "latency_s": reply.latency_s,
        }  # fmt: skip
    return {"id": str(n), "prompt": question.text, "choices": list(question.choices), "label": question.label,
            "outputs": outputs}  # fmt: skip


def test_replay_decides_and_answers_as_the_ensemble_does(tmp_path: Path) -> None:
    """25 queries over HTTP with feedback, and the recorded outputs replayed: same calls, rounds, answers and cost."""
    asked = list(questions(25, seed=1))
    with SimulatedPool() as pool:
        ours, alone = asyncio.run(_served(pool, asked))
        lines = [_recorded(n, q, [column[n] for column in alone]) for n, q in enumerate(asked)]
        log = write_log(tmp_path / "log.jsonl", lines)
        table = join(read_log(log), PoolFile(tuple(pool.endpoints), {}, None), log)
        serving = Serving(cold(), pool.endpoints, seed=5, probe_share=0)
        played = play(serving, table, np.arange(25))
    names = [endpoint.name for endpoint in table.endpoints]
    called = [tuple(call.endpoint for call in answer.receipt.calls) for answer in ours]
    assert [tuple(names[i] for round_ in rounds for i in round_) for rounds in serving.history] == called
    assert played.usd.tolist() == pytest.approx([float(answer.cost or 0) for answer in ours])
    assert played.worth.tolist() == [float(a.choice == q.label) for a, q in zip(ours, asked, strict=True)]


def test_it_learns_which_endpoint_to_ask(tmp_path: Path) -> None:
    """A good endpoint is asked ever more, a bad one ever less; without feedback they are not told apart."""
    table = table_of(tmp_path, stream(300, {"a": 0.1, "b": 0.95, "c": 0.1, "d": 0.1}), dict.fromkeys("abcd", 1.0))
    kinds: tuple[FeedbackKind, ...] = ("none", "label", "reward")
    blind, *learned = (
        play(Serving(cold(), table.endpoints, seed=0), table, np.arange(300), feedback=kind) for kind in kinds
    )
    for one in learned:
        shares = one.asked[-100:].mean(axis=0)
        assert shares[1] > 0.8
        assert shares[1] > blind.asked[-100:, 1].mean()
        assert one.worth[-100:].mean() > blind.worth[-100:].mean() + 0.1


def test_a_late_label_teaches_about_its_own_answer(tmp_path: Path) -> None:
    """They replace what agreement said of it: two that are wrong alike are believed no more."""
    lines = stream(300, {"a": 0.95, "b": 0.1})
    for line in lines:
        line["outputs"]["c"] = line["outputs"]["d"] = line["outputs"]["b"]
    table = table_of(tmp_path, lines, dict.fromkeys("abcd", 1.0))
    late, blind = (
        play(Serving(cold(), table.endpoints, seed=0), table, np.arange(300), feedback=FeedbackStream(plan))
        for plan in (FeedbackPlan(delay=50, share=0.5), FeedbackPlan("none"))
    )
    assert late.worth[-100:].mean() > 0.85
    assert blind.worth[-100:].mean() < 0.5


def test_what_a_label_teaches_does_not_depend_on_when_it_comes(tmp_path: Path) -> None:
    table = table_of(tmp_path, stream(60, SKILLS), PRICES)
    views = []
    for delay in (0, 30):
        serving = Serving(load(ask_all(tmp_path / f"{delay}")), table.endpoints, seed=0, probe_share=0)
        feedback = FeedbackStream(FeedbackPlan(delay=delay))
        play(serving, table, np.arange(60), feedback=feedback)
        for _ in range(delay):
            said = feedback.after(table, 0, Turn(table, 0), -1, 0.0)
            assert said is not None
            serving.learn(*said)
        turn = Turn(table, 0)
        serving.answer(turn)
        views.append(turn.memo.trajectory.evidence)
    assert views[0].members.tolist() == views[1].members.tolist()


def test_graded_scores_are_credited_to_every_member(tmp_path: Path) -> None:
    """Where only scores are known it still finds the endpoint with the best ones."""
    scores = {"a": 0.2, "b": 0.9, "c": 0.3, "d": 0.2}
    lines = [{"id": str(n), "outputs": {e: output(None, score=s) for e, s in scores.items()}} for n in range(150)]
    table = table_of(tmp_path, lines, dict.fromkeys("abcd", 1.0))
    played = play(Serving(cold(), table.endpoints, seed=0), table, np.arange(150))
    assert played.worth[-50:].mean() > 0.75


def test_failed_members_are_replaced_and_if_none_is_left_there_is_no_answer(tmp_path: Path) -> None:
    down = {"error": "down", "prompt_tokens": 100, "completion_tokens": 0}
    some = closed(0, {}) | {"outputs": {"a": down, "b": output(None), "c": output(0)}}
    none = closed(1, {}) | {"outputs": {"a": down, "b": down}}
    table = table_of(tmp_path, [some, none, closed(2, {})], PRICES)
    serving = Serving(cold(), table.endpoints, seed=0)
    played = play(serving, table, np.arange(3))
    assert played.worth.tolist() == [1, 0, 0]
    assert played.asked.tolist()[1:] == [[True, True, False], [False, False, False]]


def test_free_form_answers_are_clustered_by_equal_text(tmp_path: Path) -> None:
    """Case and empty text included: they are in normal form already."""
    answers = {"a": "x", "b": "X", "c": "X"}
    line = {"id": "1", "prompt": "?", "label": "X", "outputs": {e: output(text) for e, text in answers.items()}}
    empty = {"id": "2", "prompt": "?", "label": "", "outputs": {e: output("") for e in answers}}
    table = table_of(tmp_path, [line, empty], PRICES)
    serving = Serving(load(ask_all(tmp_path / "policy")), table.endpoints, seed=0, explore=False)
    assert play(serving, table, np.arange(2)).worth.tolist() == [1, 1]


def test_choices_of_equal_text_stay_apart(tmp_path: Path) -> None:
    line = closed(0, {"a": 1, "b": 1, "c": 1}, 1) | {"choices": ["same", "same", "other"]}
    table = table_of(tmp_path, [line], PRICES)
    assert play(Serving(cold(), table.endpoints, seed=0), table, np.arange(1)).worth.tolist() == [1]


def test_any_policy_plugs_in(tmp_path: Path) -> None:
    """A bundle, the fallback, and another one between two turns."""
    table = table_of(tmp_path, stream(20, SKILLS), PRICES)
    serving = Serving(load(ask_all(tmp_path / "policy")), table.endpoints, seed=0, explore=False)
    assert play(serving, table, np.arange(10)).asked.all()
    serving.policy = Fallback()
    assert play(serving, table, np.arange(10, 20)).asked.sum() == 30


def test_the_same_seed_gives_the_same_play_and_another_one_another(tmp_path: Path) -> None:
    table = table_of(tmp_path, stream(50, SKILLS), PRICES)
    asked = [play(Serving(cold(), table.endpoints, seed=s), table, np.arange(50)).asked.tolist() for s in (1, 1, 2)]
    assert asked[0] == asked[1] != asked[2]


def test_shuffled_follows_the_plan_from_its_start(tmp_path: Path) -> None:
    """Before it, and where nobody of it can be asked, it decides by itself."""
    lines = stream(6, SKILLS)
    lines[5]["outputs"].pop("c")
    table = table_of(tmp_path, lines, PRICES)
    plan = [((2,),), ((0, 1), (2,)), ((2,), (0, 1))]
    control = Shuffled(cold(), table.endpoints, seed=0, plan=plan, start=3, probe_share=0)
    plain = Serving(cold(), table.endpoints, seed=0, probe_share=0)
    asked = play(control, table, np.arange(6)).asked
    play(plain, table, np.arange(3))
    assert control.history[:3] == plain.history
    assert control.history[3:5] == [((2,), ()), plan[1]]
    assert asked[3:5].tolist() == [[False, False, True], [True, True, True]]
    assert asked[5].tolist() == [True, True, False]


def test_a_turn_without_outputs_asks_no_endpoint(tmp_path: Path) -> None:
    table = table_of(tmp_path, [closed(0, {})], PRICES)
    turn = Turn(table, 0)
    assert Serving(cold(), table.endpoints, seed=0).answer(turn) == -1
    assert turn.replies == {}


# -- drift -------------------------------------------------------------------------------------------------------------


def turning(tmp_path: Path, before: dict[str, float], after: dict[str, float], *, count: int = 600) -> LogTable:
    """So many queries and then as many more, at other skills; everybody at one price."""
    lines = [*stream(count, before), *stream(count, after, seed=1)]
    for n, line in enumerate(lines):
        line["id"] = str(n)
    return table_of(tmp_path, lines, dict.fromkeys(after, 1.0))


def narrow(tmp_path: Path) -> Policy:
    """The nets set by hand, but they hardly ask more than the one that was right most often."""
    decider = linear_decider()
    decider.bias[:] -= 3
    publish(tmp_path, decider=decider_model(decider), fusion=fusion_model(cold_fusion()), names=(), parent=None)
    return load(tmp_path)


def decided_on(serving: Serving, endpoint: int, rows: slice) -> float:
    """The share of these rows in which it was decided to ask an endpoint: probes are no decisions."""
    return float(np.mean([any(endpoint in picked for picked in rounds) for rounds in serving.history[rows]]))


def test_a_newcomer_is_tried_by_a_probe(tmp_path: Path) -> None:
    """Among greedy decisions."""
    skills = {"a": 0.8, "b": 0.5, "c": 0.3}
    table = turning(tmp_path, skills, {**skills, "new": 0.95}, count=200)
    serving = Serving(narrow(tmp_path / "policy"), table.endpoints, seed=0, explore=False, probe_share=0.05)
    played = play(serving, table, np.arange(400))
    asked = decided_on(serving, 3, slice(300, 400))
    probes = played.asked.sum() - sum(len(picked) for rounds in serving.history for picked in rounds)
    assert asked > 0.9
    assert 0 < probes < 80
    assert played.worth[300:].mean() > 0.9


@pytest.mark.slow
def test_an_endpoint_that_gets_good_is_found(tmp_path: Path) -> None:
    skills = {"a": 0.8, "b": 0.5, "c": 0.3}
    table = turning(tmp_path, skills, {**skills, "c": 0.95})
    serving = Serving(narrow(tmp_path / "policy"), table.endpoints, seed=0, explore=False, probe_share=0.05)
    play(serving, table, np.arange(1200))
    assert decided_on(serving, 2, slice(600, 700)) < 0.1
    assert decided_on(serving, 2, slice(1100, 1200)) > 0.9


@pytest.mark.slow
def test_an_endpoint_that_gets_worse_is_asked_less_within_a_hundred_queries(tmp_path: Path) -> None:
    """And sooner with the detector than without, when the window is long."""
    skills = {"a": 0.95, "b": 0.75, "c": 0.3, "d": 0.3}
    table = turning(tmp_path, skills, {**skills, "a": 0.05})
    late = {}
    for detect in (True, False):
        serving = Serving(
            narrow(tmp_path / f"policy {detect}"), table.endpoints, seed=0, explore=False, probe_share=0, detect=detect
        )
        play(serving, table, np.arange(1200))
        late[detect] = decided_on(serving, 0, slice(600, 700))
    assert late[True] < 0.3 < late[False]


def test_a_change_is_noted_with_its_query(tmp_path: Path) -> None:
    skills = {"a": 0.95, "b": 0.75, "c": 0.3}
    table = turning(tmp_path, skills, {**skills, "a": 0.05}, count=80)
    serving = Serving(narrow(tmp_path / "policy"), table.endpoints, seed=0, explore=False, probe_share=0)
    play(serving, table, np.arange(160))
    ((turn, name, change),) = serving.changes
    assert name == "a"
    assert 80 <= turn < 110
    assert change.after < change.before - 0.3


def test_probes_are_paid_for(tmp_path: Path) -> None:
    """Once all are known at most the share of what the asks cost, and part of what was played; the same every time."""
    table = table_of(tmp_path, stream(250, SKILLS), PRICES)
    before = play(Serving(cold(), table.endpoints, seed=0, probe_share=0.1), table, np.arange(100))
    serving = Serving(cold(), table.endpoints, seed=0, probe_share=0.1)
    played = play(serving, table, np.arange(250))
    decided = np.zeros_like(played.asked)
    for row, rounds in enumerate(serving.history):
        decided[row, [endpoint for picked in rounds for endpoint in picked]] = True
    known = slice(100, 250)
    asks = float(table.usd[known][decided[known]].sum())
    assert played.usd.sum() == pytest.approx(float(table.usd[played.asked].sum()))
    assert 0 <= played.usd[known].sum() - asks <= 0.11 * asks
    assert before.asked.tolist() == played.asked[:100].tolist()


# -- pacing ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [0.15, pytest.param(0.75, marks=pytest.mark.slow)])
def test_the_cost_weight_is_paced_to_a_target(tmp_path: Path, target: float) -> None:
    """A policy that asks the fewer the dearer money is holds the cost ratio in the long run, from a wrong start."""
    prices = {"a": 1.0, "b": 2.0, "c": 4.0, "d": 8.0}
    table = table_of(tmp_path, stream(600, dict.fromkeys(prices, 0.7)), prices)
    policy = load(ask_the_affordable(tmp_path / "policy"))
    usd = target * table.usd[200:].sum(axis=1).mean()
    serving = Serving(policy, table.endpoints, seed=0, explore=False, cost_weight=10.0)
    serving.hold(usd)
    play(serving, table, np.arange(200))
    paid = play(serving, table, np.arange(200, 600)).usd.sum()
    assert paid / table.usd[200:].sum() == pytest.approx(target, rel=0.05)


@pytest.mark.slow
def test_pacing_holds_the_mean_where_single_queries_cost_many_times_the_target(tmp_path: Path) -> None:
    """One endpoint or both: 1/21 or all of it, to hold a twelfth."""
    prices = {"a": 1.0, "b": 20.0}
    table = table_of(tmp_path, stream(800, dict.fromkeys(prices, 0.7)), prices)
    policy = load(ask_the_affordable(tmp_path / "policy"))
    usd = table.usd[200:].sum(axis=1).mean() / 12
    serving = Serving(policy, table.endpoints, seed=0, explore=False)
    serving.hold(usd)
    play(serving, table, np.arange(200))
    paid = play(serving, table, np.arange(200, 800)).usd.sum()
    assert paid / table.usd[200:].sum() == pytest.approx(1 / 12, rel=0.05)


def test_pacing_copes_with_queries_without_outputs_and_pools_without_known_costs(tmp_path: Path) -> None:
    """No warning either."""
    lines = [closed(99, {}), *stream(20, SKILLS)]
    policy = load(ask_the_affordable(tmp_path / "policy"))
    free = table_of(tmp_path, lines, dict.fromkeys(SKILLS, 0.0))
    serving = Serving(policy, free.endpoints, seed=0, explore=False)
    serving.hold(0.1)
    played = play(serving, free, np.arange(21))
    assert played.usd.sum() == 0
    assert not played.asked[0].any()
    for line in lines:
        for one in line["outputs"].values():
            one["cost_usd"] = 1.0
    table = _unpriced(tmp_path, lines)
    serving = Serving(policy, table.endpoints, seed=0, explore=False)
    serving.hold(0.5)
    assert play(serving, table, np.arange(21)).usd.any()


def test_pacing_holds_a_pool_without_prices_by_what_its_services_charge(tmp_path: Path) -> None:
    """Though the dearest, which is best, comes first by name, and is all that is known at first."""
    lines, charged = stream(300, {"a": 0.95, "b": 0.5, "c": 0.6}), {"a": 1.0, "b": 0.002, "c": 0.03}
    for line in lines:
        line["outputs"] = {name: line["outputs"][name] | {"cost_usd": usd} for name, usd in charged.items()}
    table = _unpriced(tmp_path, lines)
    serving = Serving(cold(), table.endpoints, seed=0)
    serving.hold(0.05)
    assert play(serving, table, np.arange(300)).usd.sum() < 0.1 * 300


def _unpriced(folder: Path, lines: list[Line]) -> LogTable:
    """The lines, joined with a pool without prices."""
    log, pool = write_log(folder / "log.jsonl", lines), folder / "unpriced.toml"
    pool.write_text("".join(f'[[endpoint]]\nname = "{name}"\nmodel = "m"\n' for name in SKILLS))
    return join(read_log(log), load_pool(pool), log)


def test_the_confidence_of_every_answer_is_kept(tmp_path: Path) -> None:
    """NaN where there was no answer."""
    table = table_of(tmp_path, [closed(99, {}), *stream(30, SKILLS)], PRICES)
    serving = Serving(cold(), table.endpoints, seed=0)
    play(serving, table, np.arange(31))
    assert len(serving.confidence) == len(serving.history) == 31
    assert np.isnan(serving.confidence[0])
    assert all(1 / 3 <= one <= 1 for one in serving.confidence[1:])
