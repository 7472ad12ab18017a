"""Endpoints asked one after another, each shown the answer before its own: over real HTTP, as everything else."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from aiohttp import web
from typer.testing import CliRunner

from focalroute import Answer, AsyncEnsemble, Budget, ConfigError, DeadlineExceeded, Endpoint, Ensemble, PoolError
from focalroute.cli.app import app
from focalroute.core.errors import PolicyError
from focalroute.learn.export import der_model
from focalroute.learn.online import update_policy
from focalroute.observe.calibration import SHARED_ERRORS, recalibrated
from focalroute.observe.layout import width
from focalroute.policy.publish import publish_der
from focalroute.policy.sequential import STEP, STEP_ENDPOINT, load_served
from focalroute.sim import Fault, SimulatedModel, SimulatedPool, stream
from focalroute.store import open_store
from tests.loopback import completion, json_reply, serving

READER = SimulatedModel("reader", skill=0.97, skills={"arithmetic": 0.3, "units": 0.3}, sharpness=3)
RECKONER = SimulatedModel("reckoner", skill=0.97, skills={"counting": 0.3, "sequences": 0.3}, sharpness=3)
DEAR = SimulatedModel("dear", skill=0.6, sharpness=3, input_usd_per_1m=Decimal("20"), output_usd_per_1m=Decimal("60"))
NAMES = ("sequential-round-robin", "self-correction")
QUESTIONS = list(stream(30, seed=1, topics=["multi-hop"]))


@pytest.fixture(scope="module")
def running() -> Iterator[SimulatedPool]:
    with SimulatedPool([READER, RECKONER, DEAR]) as pool:
        yield pool


@pytest.fixture
def pool(running: SimulatedPool) -> SimulatedPool:
    running.reset()
    return running


def asked(answer: Answer) -> list[str]:
    return [call.endpoint for call in answer.receipt.calls]


def der_folder(root: Path, names: list[str], bias: list[float], **weights: float) -> Path:
    """A sequential policy that goes by these logits, the last one for STOP; ``weights``: of "done" to STOP."""
    inputs = width(STEP) + len(names) * width(STEP_ENDPOINT)
    hidden = np.zeros((inputs, 1), np.float32)
    hidden[width(STEP) - 1] = 10.0  # "done"
    out = np.zeros((1, len(bias)), np.float32)
    out[0, -1] = weights.get("done", 0.0)
    net = {
        "hidden": hidden,
        "hidden_bias": np.full(1, -5, np.float32),
        "out": out,
        "out_bias": np.array(bias, np.float32),
    }
    publish_der(root, model=der_model(net), names=names, parent=None)
    return root


def test_a_fixed_route_asks_in_pool_order_and_the_last_reply_is_the_answer(pool: SimulatedPool) -> None:
    """Every step is on the receipt with its cost; one asked again stands there twice."""
    with Ensemble(pool.endpoints[:2], policy="sequential-round-robin", max_rounds=3) as ensemble:
        answers = [ensemble.ask(q.text, answer="number") for q in QUESTIONS]
    routes = {tuple(asked(answer)) for answer in answers}
    assert routes == {("reader", "reckoner"), ("reader", "reckoner", "reader")}
    for answer in answers:
        calls, receipt = answer.receipt.calls, answer.receipt
        assert [call.round for call in calls] == list(range(1, len(calls) + 1)) == [*range(1, receipt.rounds + 1)]
        assert answer.text == answer.replies[-1].text
        assert answer.candidates[calls[-1].candidate or 0] == answer.text
        assert answer.cost == sum(call.cost or 0 for call in calls) > 0
        assert sum(answer.probabilities) == pytest.approx(1)
        most = recalibrated(max(answer.probabilities), (0, SHARED_ERRORS))
        assert answer.confidence < most  # all may be wrong
        assert calls[1].usage is not None
        assert calls[0].usage is not None
        assert calls[1].usage.prompt_tokens > calls[0].usage.prompt_tokens + 50  # it was shown an answer


def test_the_service_is_sent_the_answer_before_and_nothing_else_changes() -> None:
    """As another student's, in the last message of the user; the one before the last step has not been sent again."""
    said = iter(["I say 7.", "No, 8.", "It is 8."])

    async def answer(_: web.Request, body: object) -> web.StreamResponse:
        return json_reply(completion(next(said)))

    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "How many?"}]
    with serving(answer) as server:
        one = Endpoint("one", base_url=server.url, model="m", logprobs=False)
        with Ensemble([one], policy="self-correction", max_rounds=5) as ensemble:
            given = ensemble.ask(messages, answer="number", params={"seed": 3})
    bodies = [received.body for received in server.received if received.path.endswith("completions")]
    assert given.value == 8
    assert not given.disputed  # one member, whose last answer counts
    assert [body["seed"] for body in bodies] == [3, 3, 3]
    assert bodies[0]["messages"] == messages
    for body, shown in zip(bodies[1:], ["I say 7.", "No, 8."], strict=True):
        assert body["messages"][0] == messages[0]
        text = body["messages"][1]["content"]
        assert text.startswith("How many?\n\nAnother student")
        assert f"\n{shown}\n</student_answer>" in text
        assert text.count("<student_answer>") == 1


@pytest.mark.parametrize("name", NAMES)
def test_sync_and_async_answer_the_same_and_the_store_has_nothing_to_learn_from(
    pool: SimulatedPool, tmp_path: Path, name: str
) -> None:
    async def awaited() -> list[Answer]:
        async with AsyncEnsemble(pool.endpoints, policy=name, seed=4) as ensemble:
            return [await ensemble.ask(q.text, choices=q.choices) for q in QUESTIONS[:6]]

    with Ensemble(pool.endpoints, policy=name, seed=4, explore=False, store=tmp_path / "s.db") as ensemble:
        blocking = [ensemble.ask(q.text, choices=q.choices) for q in QUESTIONS[:6]]
        assert ensemble.stats().policy == name
    there = asyncio.run(awaited())
    assert [asked(answer) for answer in blocking] == [asked(answer) for answer in there]
    assert [answer.probabilities for answer in blocking] == [answer.probabilities for answer in there]
    with closing(open_store(tmp_path / "s.db")) as store:
        stored = store.answer(blocking[0].id)
        assert stored is not None
        assert stored.trajectory is None


def test_self_correction_stays_with_the_best_and_stops_once_the_answer_stands(pool: SimulatedPool) -> None:
    with Ensemble(pool.endpoints, policy="self-correction", max_rounds=4) as ensemble:
        first = [ensemble.ask(q.text, answer="number") for q in QUESTIONS]
        for answer in first:
            ensemble.feedback(answer, reward=-1)
        later = ensemble.ask(QUESTIONS[0].text, answer="number")
        sure = ensemble.ask("What is 17 + 25?", choices=["42", "44"])
    for answer in first:
        assert len(set(asked(answer))) == 1
        backed = [call.candidate for call in answer.receipt.calls]
        assert len(backed) == 4 or backed[-1] == backed[-2]
        assert all(a != b for a, b in itertools.pairwise(backed[:-1]))
    assert asked(later)[0] != asked(first[0])[0]  # the first was always wrong
    assert len(asked(sure)) == 1  # its own probability was enough


def test_feedback_teaches_about_the_last_member_of_the_chain(pool: SimulatedPool) -> None:
    """Of an endpoint that replied twice the latest reply counts, and once."""
    with Ensemble(pool.endpoints[:1], policy="self-correction", max_rounds=2) as ensemble:
        for question in QUESTIONS[:10]:
            answer = ensemble.ask(question.text, answer="number")
            ensemble.feedback(answer, label=question.answer)
        stats = ensemble.stats().endpoints["reader"]
    assert stats.calls == 20
    assert stats.seen == 10


# -- what goes wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_failed_member_is_replaced_and_not_asked_again(pool: SimulatedPool, name: str) -> None:
    gone = Endpoint("gone", base_url="http://127.0.0.1:1/v1", model="m", input_usd_per_1m=0, output_usd_per_1m=0)
    with Ensemble([gone, *pool.endpoints], policy=name, attempts=1, max_rounds=3) as ensemble:
        answer = ensemble.ask(QUESTIONS[0].text, answer="number")
    assert asked(answer)[0] == "gone"
    assert asked(answer).count("gone") == 1
    assert answer.receipt.calls[0].candidate is None
    assert "fewer members: gone failed" in answer.degraded
    with Ensemble([gone], policy=name, attempts=1) as ensemble, pytest.raises(PoolError):
        ensemble.ask("What is 1 + 1?")


def test_a_failure_in_the_middle_leaves_the_answer_before_it(pool: SimulatedPool) -> None:
    pool.set("reckoner", faults=Fault("status", status=400))
    with Ensemble(pool.endpoints[:2], policy="sequential-round-robin", max_rounds=2) as ensemble:
        answer = ensemble.ask(QUESTIONS[0].text, answer="number")
    assert asked(answer) == ["reader", "reckoner"]
    assert answer.text == answer.replies[0].text


def test_a_budget_ends_a_chain_or_leaves_the_dear_one_out(pool: SimulatedPool) -> None:
    """The bound of a step counts the answer shown: what does not fit is not asked."""
    question = QUESTIONS[0].text
    with Ensemble(pool.endpoints, policy="sequential-round-robin", max_rounds=5) as ensemble:
        capped = ensemble.ask(question, answer="number", max_usd="0.0004")
    assert "dear" not in asked(capped)
    assert capped.cost is not None
    assert capped.cost <= Decimal("0.0004")
    longest = {}
    for cap in (None, Decimal("0.000186")):
        budget = Budget(max_usd_per_ask=cap)
        with Ensemble(pool.endpoints[:1], policy="self-correction", max_rounds=6, budget=budget) as ensemble:
            answers = [ensemble.ask(q.text, answer="number") for q in QUESTIONS]
        longest[cap] = max(len(asked(answer)) for answer in answers)
        assert cap is None or max(answer.cost or 0 for answer in answers) <= cap
    assert longest == {None: 6, cap: 3}


def test_a_deadline_within_a_chain_leaves_what_was_answered(pool: SimulatedPool) -> None:
    """The second step hangs: it is given up, or cut off by the deadline, and is on the receipt."""
    pool.set("reckoner", faults=Fault("hang", seconds=60))
    with Ensemble(pool.endpoints[:2], policy="sequential-round-robin", deadline_s=5.0) as ensemble:
        answer = ensemble.ask(QUESTIONS[0].text, answer="number")
        assert asked(answer)[:2] == ["reader", "reckoner"]
        assert answer.text == answer.replies[0].text
        assert {"deadline hit: fused what had arrived", "fewer members: reckoner failed"} & set(answer.degraded)
        pool.set("reader", faults=Fault("hang", seconds=60))
        with pytest.raises(DeadlineExceeded):
            ensemble.ask(QUESTIONS[0].text, answer="number", deadline_s=0.3)


# -- a learned one -----------------------------------------------------------------------------------------------------


def test_a_bundle_decides_and_what_is_stored_can_be_learned_from(pool: SimulatedPool, tmp_path: Path) -> None:
    """State, action and log-probability of every step, and no step that another learner would take for its own."""
    root = der_folder(tmp_path / "der", ["reader", "reckoner"], [1.0, 0.5, 0.0])
    with Ensemble(
        pool.endpoints[:2], policy=root, max_rounds=3, explore=True, seed=1, store=tmp_path / "s.db", probe_share=0
    ) as ensemble:
        answers = [ensemble.ask(q.text, answer="number") for q in QUESTIONS]
        for answer, question in zip(answers, QUESTIONS, strict=True):
            ensemble.feedback(answer, label=question.answer)
        assert (ensemble.stats().policy, ensemble.stats().policy_version) == (None, 1)
    assert {len(asked(answer)) for answer in answers} == {1, 2, 3}
    logits = np.array([1.0, 0.5, 0.0])
    with closing(open_store(tmp_path / "s.db")) as store:
        for answer in answers:
            stored = store.answer(answer.id)
            assert stored is not None
            assert stored.trajectory is not None
            for place, (seen, decision) in enumerate(stored.trajectory.decisions):
                offered = logits if place else logits[:2]
                action = decision.picked[0] if decision.picked else 2
                q = np.exp(logits[action]) / np.exp(offered).sum()
                assert decision.log_mu == pytest.approx(np.log(q), abs=1e-6)
                assert seen.context.shape == (width(STEP),)
                assert seen.context[-1] == pytest.approx(place / 3)
                assert seen.endpoints.shape == (2, width(STEP_ENDPOINT))
                choice = answer.receipt.decisions[place]
                assert choice.probability == pytest.approx(q, abs=1e-6)
        report = update_policy(store, tmp_path / "other", seed=0)
    assert (report.status, report.episodes) == ("insufficient", 0)


def test_served_greedily_it_takes_the_likeliest_and_stops_by_its_state(pool: SimulatedPool, tmp_path: Path) -> None:
    root = der_folder(tmp_path, ["reckoner", "unknown", "reader"], [3.0, 9.0, 1.0, -9.0], done=20.0)
    with Ensemble(pool.endpoints, policy=root, max_rounds=4) as ensemble:
        answer = ensemble.ask(QUESTIONS[0].text, answer="number")
    assert asked(answer) == ["reckoner"] * 3  # STOP once "done" is above a half; one not in the pool is no action
    assert json.loads(answer.receipt.to_json())["policy_version"] == 1


def test_an_endpoint_it_does_not_know_is_asked_only_if_no_other_can_be(pool: SimulatedPool, tmp_path: Path) -> None:
    root = der_folder(tmp_path, ["reader"], [1.0, 0.0])
    pool.set("reader", faults=Fault("status", status=400))
    with Ensemble(pool.endpoints[:2], policy=root, seed=0) as ensemble:
        assert asked(ensemble.ask(QUESTIONS[0].text, answer="number"))[:2] == ["reader", "reckoner"]


def test_a_sequential_bundle_is_swapped_rolled_back_and_refused_like_any(pool: SimulatedPool, tmp_path: Path) -> None:
    root = der_folder(tmp_path / "der", ["reader", "reckoner"], [1.0, 0.0, 9.0])
    with Ensemble(pool.endpoints[:2], policy=root) as ensemble:
        before = asked(ensemble.ask(QUESTIONS[0].text, answer="number"))
        der_folder(root, ["reader", "reckoner"], [0.0, 1.0, 9.0])
        ensemble.reload()
        after = ensemble.ask(QUESTIONS[0].text, answer="number")
        assert (before, asked(after), after.receipt.policy_version) == (["reader"], ["reckoner"], 2)
        (root / "v000002" / "der.onnx").write_bytes(b"damaged")
    with Ensemble(pool.endpoints[:2], policy=root) as ensemble:
        assert ensemble.ask(QUESTIONS[0].text, answer="number").receipt.policy_version == 1
        with pytest.raises(Exception, match=r"sequential policy|SHA-256"):
            ensemble.update()


def test_the_command_line_shows_it_and_goes_back(tmp_path: Path) -> None:
    root = der_folder(tmp_path, ["reader"], [1.0, 0.0])
    der_folder(tmp_path, ["reader", "reckoner"], [1.0, 0.0, 0.0])
    shown = CliRunner().invoke(app, ["policy", "show", str(root), "--json"], catch_exceptions=False)
    assert json.loads(shown.output)["names"] == ["reader", "reckoner"]
    CliRunner().invoke(app, ["policy", "rollback", str(root), "1"], catch_exceptions=False)
    served = load_served(root)
    assert (served.version, served.names) == (1, ("reader",))
    with pytest.raises(PolicyError, match="sequential policy"):
        CliRunner().invoke(app, ["policy", "compare", str(root), "cold", "--store", "s.db"], catch_exceptions=False)


def test_the_names_are_known_and_misspelt_ones_corrected(pool: SimulatedPool) -> None:
    with pytest.raises(ConfigError, match="'self-correction'"):
        Ensemble(pool.endpoints, policy="self_correction")
