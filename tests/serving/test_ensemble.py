"""`AsyncEnsemble` and `Ensemble` over a simulated pool on real HTTP: the whole serving path."""

from __future__ import annotations

import asyncio
import contextlib
import decimal
import gc
import itertools
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from aiohttp import web

from examples.shipped_policy.training import cold_fusion
from focalroute import (
    Answer,
    AsyncEnsemble,
    BadLabel,
    Budget,
    BudgetExceeded,
    ConfigError,
    DeadlineExceeded,
    Endpoint,
    Ensemble,
    EnsembleClosed,
    FeedbackError,
    PoolError,
    StoreError,
    UnknownAnswer,
)
from focalroute.answers import candidate_key
from focalroute.core.records import Feedback, Member
from focalroute.learn.export import decider_model, fusion_model
from focalroute.observe.calibration import SHARED_ERRORS, recalibrated
from focalroute.observe.experience import Experience
from focalroute.observe.features import text_features
from focalroute.observe.layout import ENDPOINT, slices
from focalroute.policy.fallback import FALLBACK
from focalroute.policy.publish import make_current, publish
from focalroute.sim import Fault, SimulatedModel, SimulatedPool, stream
from focalroute.store.base import StoredAnswer
from focalroute.store.sqlite import database
from focalroute.store.sqlite.store import SqliteStore
from tests.by_hand import linear_decider
from tests.interruptible import heed_interrupts
from tests.loopback import Server, completion, json_reply, serving, until
from tests.policies import ask_all
from tests.store.made import trajectory

QUESTION = "What is 17 + 25?"
CHOICES = ["32", "42", "44", "52"]


@pytest.fixture(scope="module")
def pool() -> Iterator[SimulatedPool]:
    models = [
        SimulatedModel("small", skill=0.6, input_usd_per_1m=Decimal("0.1"), output_usd_per_1m=Decimal("0.1")),
        SimulatedModel("middle", skill=0.75, input_usd_per_1m=Decimal("0.4"), output_usd_per_1m=Decimal("0.6")),
        SimulatedModel("large", skill=0.9, input_usd_per_1m=Decimal("2"), output_usd_per_1m=Decimal("6")),
    ]
    with SimulatedPool(models) as running:
        yield running


def dead(name: str) -> Endpoint:
    """An endpoint that refuses every connection."""
    return Endpoint(name, base_url="http://127.0.0.1:1/v1", model="none", input_usd_per_1m=0, output_usd_per_1m=0)


def plain(name: str, url: str, **settings: Any) -> Endpoint:
    """An endpoint of the loopback server, which need not be probed for free-form questions."""
    return Endpoint(name, base_url=url, model=name, input_usd_per_1m=1, output_usd_per_1m=1, **settings)


def publish_linear(root: Path, parent: int | None = None) -> int:
    """Publish the nets set by hand, as a new version."""
    decider, fusion = decider_model(linear_decider()), fusion_model(cold_fusion())
    return publish(root, decider=decider, fusion=fusion, names=(), parent=parent)


# -- asking -----------------------------------------------------------------------------------------------------------


def test_a_closed_question_is_answered_with_probabilities_and_a_receipt(pool: SimulatedPool) -> None:
    with Ensemble(pool.endpoints, seed=0) as ensemble:
        answer = ensemble.ask(QUESTION, choices=CHOICES, tags=["tests"], metadata={"mine": 1})
    assert answer.candidates == tuple(CHOICES)
    assert answer.choice is not None
    assert answer.text == CHOICES[answer.choice]
    assert sum(answer.probabilities) == pytest.approx(1)
    assert answer.confidence == recalibrated(max(answer.probabilities), (0, SHARED_ERRORS))
    assert answer.durable
    assert answer.degraded == ()
    assert answer.metadata == {"mine": 1}
    receipt = json.loads(answer.receipt.to_json())
    assert receipt["answer_id"] == answer.id
    assert receipt["tags"] == ["tests"]
    assert receipt["policy_version"] == 0
    assert Decimal(receipt["cost"]) == answer.cost == sum(Decimal(call["cost"]) for call in receipt["calls"])
    assert [call["endpoint"] for call in receipt["calls"]] == [reply.endpoint for reply in answer.replies]
    assert QUESTION not in answer.receipt.to_json()


async def ask_once(pool: SimulatedPool) -> Answer:
    async with AsyncEnsemble(pool.endpoints, seed=0) as ensemble:
        return await ensemble.ask(QUESTION, choices=CHOICES)


def test_sync_and_async_decide_the_same(pool: SimulatedPool) -> None:
    with Ensemble(pool.endpoints, seed=0) as ensemble:
        blocking = ensemble.ask(QUESTION, choices=CHOICES)
    awaited = asyncio.run(ask_once(pool))
    assert [r.endpoint for r in blocking.replies] == [r.endpoint for r in awaited.replies]
    assert blocking.probabilities == awaited.probabilities


def test_the_same_seed_gives_the_same_decisions(pool: SimulatedPool) -> None:
    def first(seed: int, question: str, choices: Sequence[str]) -> object:
        """The first decision, to which the latencies of earlier calls contribute nothing."""
        with Ensemble(pool.endpoints, seed=seed) as ensemble:
            answer = ensemble.ask(question, choices=choices)
        return answer.choice, answer.probabilities, [call.endpoint for call in answer.receipt.calls]

    def run(seed: int) -> list[object]:
        return [first(seed, question.text, question.choices) for question in stream(5, seed=3)]

    one = run(1)
    assert one == run(1)
    assert one != run(2)


def test_with_a_seed_concurrent_asks_decide_as_sequential_ones_do(pool: SimulatedPool) -> None:
    asks = [{"query": q.text, "choices": q.choices} for q in stream(40, seed=3)]

    def run(concurrency: int) -> list[object]:
        with Ensemble(pool.endpoints, seed=1, learn_from_agreement=False) as ensemble:
            answers = ensemble.ask_many(asks, concurrency=concurrency)
        return [[call.endpoint for call in a.receipt.calls] for a in answers if isinstance(a, Answer)]

    assert run(1) == run(16)


def test_a_probe_is_remembered_by_the_store(tmp_path: Path) -> None:
    """Beside the first ask it is found out what an endpoint can do, and not again after a restart."""
    calls = []
    with SimulatedPool([SimulatedModel("one")]) as fresh:
        for _ in range(2):
            with Ensemble(fresh.endpoints, store=tmp_path / "s.db") as ensemble:
                ensemble.ask(QUESTION, choices=CHOICES)
            calls.append(fresh.stats()["one"].calls)
    assert calls == [3, 4]


def test_a_blocking_ensemble_works_inside_a_running_loop(pool: SimulatedPool) -> None:
    async def notebook() -> Answer:
        with Ensemble(pool.endpoints) as ensemble:
            return ensemble.ask(QUESTION, choices=CHOICES)

    assert asyncio.run(notebook()).choice is not None


def test_one_ensemble_serves_many_threads(pool: SimulatedPool) -> None:
    questions = list(stream(24, seed=4))  # too few for an endpoint to be found changed, and forgotten
    with Ensemble(pool.endpoints, seed=0, probe_share=0) as ensemble, ThreadPoolExecutor(12) as threads:
        answers = list(threads.map(lambda q: ensemble.ask(q.text, choices=q.choices), questions))
        list(
            threads.map(
                lambda pair: ensemble.feedback(pair[0], label_index=pair[1].label), zip(answers, questions, strict=True)
            )
        )
        seen = sum(endpoint.seen for endpoint in ensemble.stats().endpoints.values())
    assert len({answer.id for answer in answers}) == 24
    assert seen == sum(len(answer.replies) for answer in answers)


def test_one_ensemble_serves_several_event_loops_one_after_another(pool: SimulatedPool) -> None:
    ensemble = AsyncEnsemble(pool.endpoints)
    answers = []
    for _ in range(3):

        async def once() -> Answer:
            return await ensemble.ask(QUESTION, choices=CHOICES)

        answers.append(asyncio.run(once()))
    asyncio.run(ensemble.aclose())
    assert all(answer.choice is not None for answer in answers)


def test_a_number_is_read_out_of_free_text_and_equal_answers_are_one_candidate(pool: SimulatedPool) -> None:
    with Ensemble(pool.endpoints, seed=0) as ensemble:
        answer = ensemble.ask(QUESTION, answer="number")
        assert answer.choice is None
        assert len(answer.candidates) == len(answer.probabilities) <= len(answer.replies)
        assert isinstance(answer.value, int)
        assert str(answer.value) in answer.text
        ensemble.feedback(answer, label=42)
        with pytest.raises(BadLabel):
            ensemble.feedback(answer, label="no number here", source="other")


def test_messages_and_provider_parameters_reach_the_endpoint(pool: SimulatedPool) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]
    with Ensemble(pool.endpoints, seed=0) as ensemble:
        answer = ensemble.ask(messages, params={"max_tokens": 2})
    assert all(reply.usage is not None and reply.usage.completion_tokens <= 2 for reply in answer.replies)


def test_a_ready_openai_client_is_spoken_through(pool: SimulatedPool) -> None:
    async def run() -> Answer:
        first = pool.endpoints[0]
        client = openai.AsyncOpenAI(base_url=first.base_url, api_key="unused")
        async with client, AsyncEnsemble([Endpoint("mine", client=client, model=first.model)]) as ensemble:
            return await ensemble.ask(QUESTION, choices=CHOICES)

    answer = asyncio.run(run())
    assert answer.replies[0].endpoint == "mine"
    assert answer.cost is None  # no price was given, and unknown is not zero


def test_many_queries_come_back_in_order_and_common_arguments_apply(pool: SimulatedPool) -> None:
    questions = list(stream(30, seed=5))
    with Ensemble(pool.endpoints) as ensemble:
        answers = ensemble.ask_many(
            [{"query": q.text, "choices": q.choices} for q in questions], concurrency=7, tags=["t"]
        )
    assert [a.candidates for a in answers if isinstance(a, Answer)] == [tuple(q.choices) for q in questions]
    assert all(isinstance(a, Answer) and a.receipt.tags == ("t",) for a in answers)


def billed(pool: SimulatedPool) -> Decimal:
    return sum((model.usd for model in pool.stats().values()), Decimal(0))


def test_costs_are_what_the_service_billed(pool: SimulatedPool) -> None:
    with SimulatedPool() as fresh, Ensemble(fresh.endpoints, seed=0) as ensemble:
        answers = [ensemble.ask(q.text, choices=q.choices) for q in stream(40, seed=6)]
        until(lambda: ensemble.stats().cost == billed(fresh))  # once the last probe is booked
        stats = ensemble.stats()
    probes = (stats.cost or 0) - sum((a.cost for a in answers if a.cost is not None), Decimal(0))
    assert 0 <= probes < (stats.cost or 0)


# -- members that fail ------------------------------------------------------------------------------------------------


def test_a_member_that_fails_is_data_and_the_answer_says_so(pool: SimulatedPool) -> None:
    with Ensemble([dead("gone"), *pool.endpoints], attempts=1, seed=0, max_rounds=1) as ensemble:
        answers = [ensemble.ask(q.text, choices=q.choices) for q in stream(6, seed=7)]
    hit = [a for a in answers if any(r.endpoint == "gone" for r in a.replies)]
    assert hit
    for answer in hit:
        failed = next(r for r in answer.replies if r.endpoint == "gone")
        assert failed.error is not None
        assert failed.error.kind == "connection"
        assert failed.cost == 0
        assert any("gone" in note for note in answer.degraded)


def test_after_failures_the_breaker_keeps_an_endpoint_out(pool: SimulatedPool) -> None:
    with Ensemble([dead("gone"), *pool.endpoints], attempts=1, seed=0) as ensemble:
        answers = [ensemble.ask(q.text, choices=q.choices) for q in stream(40, seed=7)]
        assert ensemble.stats().endpoints["gone"].breaker == "open"
    calls = sum(r.endpoint == "gone" for a in answers for r in a.replies)
    assert calls <= 6


def test_when_the_first_members_fail_others_are_asked(pool: SimulatedPool) -> None:
    endpoints = [dead(f"gone-{i}") for i in range(4)] + [pool.endpoints[2]]
    with Ensemble(endpoints, attempts=1, seed=0, max_rounds=1) as ensemble:
        answer = ensemble.ask(QUESTION, choices=CHOICES)
    assert answer.replies[-1].endpoint == "large"


def test_when_all_fail_the_error_holds_every_reply() -> None:
    with Ensemble([dead("a"), dead("b")], attempts=1) as ensemble, pytest.raises(PoolError) as caught:
        ensemble.ask(QUESTION, choices=CHOICES)
    assert {reply.endpoint for reply in caught.value.replies} == {"a", "b"}
    assert "connection" in str(caught.value)


def test_the_deadline_holds_for_the_whole_ask() -> None:
    with SimulatedPool([SimulatedModel("slow")]) as pool, Ensemble(pool.endpoints) as ensemble:
        ensemble.ask(QUESTION, answer="number")  # loads libraries, for which no deadline below shall pay
        pool.set("slow", latency_s=60)
        with pytest.raises(DeadlineExceeded) as caught:
            ensemble.ask(QUESTION, answer="number", deadline_s=2.0)
        assert caught.value.replies[0].error is not None
        assert caught.value.replies[0].error.kind == "timeout"


def test_a_store_that_stays_locked_past_the_deadline_is_not_the_endpoints_fault(
    pool: SimulatedPool, tmp_path: Path
) -> None:
    """The error said that no endpoint had answered; none had been asked."""
    path = tmp_path / "s.db"
    with Ensemble(pool.endpoints, store=path, budget=Budget(usd_total=1)) as ensemble:
        ensemble.ask(QUESTION)
        with SqliteLock(path), pytest.raises(DeadlineExceeded, match="no process keeps it locked") as caught:
            ensemble.ask(QUESTION, deadline_s=1.0)
    assert not any(reply.sent for reply in caught.value.replies)


def test_replies_that_arrived_by_the_deadline_are_fused(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"policy": ask_all(tmp_path), "explore": False, "max_rounds": 1}
    models = [SimulatedModel("quick"), SimulatedModel("slow")]
    with SimulatedPool(models) as pool, Ensemble(pool.endpoints, **settings) as ensemble:
        ensemble.ask(QUESTION, answer="number")  # loads libraries, for which no deadline below shall pay
        pool.set("slow", latency_s=60)
        answer = ensemble.ask(QUESTION, answer="number", deadline_s=3.0)
    assert {reply.endpoint: reply.ok for reply in answer.replies} == {"quick": True, "slow": False}
    assert any("deadline" in note for note in answer.degraded)


def test_a_cancelled_ask_leaves_its_costs_in_the_ledger(tmp_path: Path) -> None:
    async def run() -> None:
        with SimulatedPool([SimulatedModel("slow", latency_s=60, skill=1.0)]) as pool:
            async with AsyncEnsemble(pool.endpoints, store=tmp_path / "s.db", budget=Budget(usd_total=1)) as ensemble:
                task = asyncio.create_task(ensemble.ask(QUESTION, answer="number"))
                await asyncio.to_thread(until, lambda: pool.stats()["slow"].calls == 1)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert (ensemble.stats().cost or 0) > 0

    asyncio.run(run())
    store = SqliteStore(tmp_path / "s.db")
    assert store.totals()["slow"].cost > 0
    store.close()


def test_when_an_ask_raises_no_member_is_left_running_and_all_is_in_the_ledger(tmp_path: Path) -> None:
    """The caller's own function gives no text for the quick reply while the slow member is still under way."""

    async def handler(_: web.Request, body: Any) -> web.StreamResponse:
        if body["model"] == "slow":
            await asyncio.sleep(60)
        return json_reply(completion())

    def number(_: str) -> Any:
        return 5

    async def run(url: str) -> None:
        members = [plain("quick", url), plain("slow", url)]
        async with AsyncEnsemble(members, policy=ask_all(tmp_path), explore=False) as ensemble:
            with pytest.raises(ConfigError, match="callable must give"):
                await ensemble.ask(QUESTION, answer=number, max_usd=1)
            assert asyncio.all_tasks() == {asyncio.current_task()}
            kept = ensemble.stats().endpoints
            assert [kept[name].calls for name in ("quick", "slow")] == [1, 1]
            assert (kept["quick"].cost or 0) > (kept["slow"].cost or 0) > 0  # given up: at half of what a call costs

    with serving(handler) as server:
        asyncio.run(run(server.url))


def test_a_call_that_only_waited_for_a_place_costs_nothing_and_is_not_the_endpoints_fault() -> None:
    waited = threading.Event()

    async def handler(_: web.Request, __: Any) -> web.StreamResponse:
        await asyncio.to_thread(waited.wait)
        return json_reply(completion())

    async def run(server: Server) -> None:
        busy = plain("busy", server.url, max_concurrency=1)
        async with AsyncEnsemble([busy], budget=Budget(usd_total=1)) as ensemble:
            first = asyncio.create_task(ensemble.ask(QUESTION))
            await asyncio.to_thread(server.arrived.wait)
            waiting = [ensemble.ask(QUESTION, deadline_s=0.2) for _ in range(6)]
            ended = await asyncio.gather(*waiting, return_exceptions=True)
            assert all(isinstance(one, DeadlineExceeded) for one in ended)
            assert ensemble.stats().endpoints["busy"].breaker == "closed"
            assert ensemble.stats().cost == 0
            waited.set()
            assert (await first).cost == (ensemble.stats().cost or 0) > 0

    with serving(handler) as server:
        asyncio.run(run(server))


def test_a_probe_that_fails_after_its_caller_left_disturbs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    given_up = threading.Event()

    async def handler(_: web.Request, __: Any) -> web.StreamResponse:
        if len(server.received) == 1:
            return json_reply(completion())
        await asyncio.to_thread(given_up.wait)
        return json_reply({}, 401)

    async def run(url: str) -> None:
        async with AsyncEnsemble([plain("locked", url)]) as ensemble:
            await ensemble.ask(QUESTION)  # loads libraries, and probes nobody
            with pytest.raises(DeadlineExceeded):
                await ensemble.ask(QUESTION, choices=CHOICES, deadline_s=2.0)
            given_up.set()
            await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})

    with serving(handler) as server:
        asyncio.run(run(server.url))
    gc.collect()
    assert not caplog.records


def test_an_interrupted_ask_ends_at_once_and_pays_for_no_more() -> None:
    """Ctrl-C while a blocking ensemble waits."""

    async def handler(_: web.Request, __: Any) -> web.StreamResponse:
        await asyncio.sleep(120)
        return json_reply(completion())

    code = """
import sys
from focalroute import Endpoint, Ensemble
with Ensemble([Endpoint("slow", base_url=sys.argv[1], model="m")]) as ensemble:
    ensemble.ask("Which?")
"""
    with serving(handler) as server:
        command = [sys.executable, "-c", code, server.url]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=heed_interrupts)
        assert server.arrived.wait(30)
        process.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in process.communicate(timeout=60)[1]
        assert len(server.received) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("used", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_forked_child_is_told_to_make_its_own_ensemble(pool: SimulatedPool, used: bool) -> None:
    """Before anybody is paid, as the child could not keep the bill."""
    code = f"""
import os, sys, warnings
warnings.simplefilter("ignore")
from focalroute import Endpoint, Ensemble, EnsembleClosed
ensemble = Ensemble([Endpoint("small", base_url={pool.endpoints[0].base_url!r}, model="small")])
if {used}:
    ensemble.ask({QUESTION!r}, answer="number")
if os.fork() == 0:
    try:
        ensemble.ask({QUESTION!r})
    except EnsembleClosed as error:
        os._exit("made before a fork" not in str(error))  # as multiprocessing does: onnxruntime's exit would hang
    os._exit(2)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_a_function_of_an_ask_that_exits_loses_only_that_ask(pool: SimulatedPool) -> None:
    def read(reply: str) -> str:
        raise SystemExit

    line = read.__code__.co_firstlineno + 1

    def choices() -> Iterator[str]:
        raise SystemExit
        yield ""

    with Ensemble(pool.endpoints) as ensemble:
        with pytest.raises(PoolError, match=rf"let the callable return None .* \(SystemExit in line {line}\)"):
            ensemble.ask(QUESTION, answer=read)
        with pytest.raises(SystemExit):
            ensemble.ask(QUESTION, choices=choices())
        assert ensemble.ask(QUESTION, answer="number").text


def test_a_function_of_an_ask_may_close_the_ensemble(pool: SimulatedPool) -> None:
    """It waited for itself, and so did the caller."""
    ensemble = Ensemble(pool.endpoints)
    with contextlib.suppress(PoolError, EnsembleClosed, CancelledError):  # as far as the ask has come
        ensemble.ask(QUESTION, answer=lambda reply: ensemble.close())
    until(lambda: ensemble._loop.gone)


def test_after_a_client_hook_exits_the_ensemble_says_that_it_has_ended(pool: SimulatedPool) -> None:
    async def leave(request: httpx.Request) -> None:
        raise SystemExit

    ensemble = Ensemble(pool.endpoints, http_client=httpx.AsyncClient(event_hooks={"request": [leave]}))
    with pytest.raises((SystemExit, CancelledError)):
        ensemble.ask(QUESTION)
    until(lambda: ensemble._loop.gone)
    with pytest.raises(EnsembleClosed, match="make a new one"):
        ensemble.ask(QUESTION)
    ensemble.close()


# -- budgets ----------------------------------------------------------------------------------------------------------


def test_a_cap_narrows_the_set_before_it_refuses(pool: SimulatedPool) -> None:
    with Ensemble(pool.endpoints, seed=0) as ensemble:
        answer = ensemble.ask(QUESTION, choices=CHOICES, max_usd="0.0002")
        assert {reply.endpoint for reply in answer.replies} == {"small"}
        assert answer.cost is not None
        assert answer.cost <= Decimal("0.0002")
        with pytest.raises(BudgetExceeded) as caught:
            ensemble.ask(QUESTION, choices=CHOICES, max_usd="0.0000001")
    assert caught.value.limit == Decimal("0.0000001")


def test_the_total_is_never_passed_and_survives_a_restart(pool: SimulatedPool, tmp_path: Path) -> None:
    limit = Decimal("0.001")

    def run() -> tuple[int, int]:
        with Ensemble(pool.endpoints, store=tmp_path / "s.db", budget=Budget(usd_total=limit)) as ensemble:
            asks = [{"query": q.text, "choices": q.choices} for q in stream(150, seed=8)]
            answers = ensemble.ask_many(asks, concurrency=16, return_exceptions=True)
            assert (ensemble.stats().cost or 0) <= limit
        refused = [a for a in answers if not isinstance(a, Answer)]
        assert all(isinstance(a, BudgetExceeded) for a in refused)
        return len(answers) - len(refused), len(refused)

    answered, refused = run()
    assert answered
    assert refused
    assert run()[1] >= refused


def test_a_budget_with_an_endpoint_of_unknown_price_is_refused() -> None:
    with pytest.raises(ConfigError, match="price of free"):
        Ensemble([Endpoint("free", base_url="http://localhost:1/v1", model="m")], budget=Budget(usd_total=1))


def test_an_endpoint_of_unknown_price_may_be_allowed_and_its_cost_stays_unknown(pool: SimulatedPool) -> None:
    endpoint = Endpoint("free", base_url=pool.endpoints[0].base_url, model="small")
    with Ensemble([endpoint], budget=Budget(usd_total="0.0001", allow_unpriced=True)) as ensemble:
        answer = ensemble.ask(QUESTION, choices=CHOICES, max_usd="0.00001")
        assert answer.cost is None
        assert answer.receipt.calls[0].cost_source == "unknown"
        until(lambda: ensemble.stats().endpoints["free"].unpriced == 2)  # the check and the call


def test_once_a_limit_is_used_up_an_endpoint_of_unknown_price_is_not_asked(pool: SimulatedPool, tmp_path: Path) -> None:
    """The error said that its call has to reserve $0.000000000001."""
    unpriced = Endpoint("free", base_url=pool.endpoints[0].base_url, model="small")
    with Ensemble(pool.endpoints, store=tmp_path / "s.db") as ensemble:
        ensemble.ask(QUESTION, choices=CHOICES)
    budget = Budget(usd_total="0.000000001", allow_unpriced=True)
    with (
        Ensemble([unpriced], store=tmp_path / "s.db", budget=budget) as ensemble,
        pytest.raises(BudgetExceeded, match=r"held for calls under way$") as caught,
    ):
        ensemble.ask(QUESTION, choices=CHOICES)
    assert caught.value.needed is None


def test_a_tag_that_is_used_up_is_refused_while_others_go_on(pool: SimulatedPool) -> None:
    budget = Budget(usd_per_tag={"poor": {"day": "0.0000001"}}, usd_total=1)
    with Ensemble(pool.endpoints, budget=budget) as ensemble:
        with pytest.raises(
            BudgetExceeded, match=r"usd_per_tag\.poor\.day = 0.0000001 USD; raise it to go on"
        ) as caught:
            ensemble.ask(QUESTION, choices=CHOICES, tags=["poor"])
        assert caught.value.resets_at is None
        receipt = ensemble.ask(QUESTION, choices=CHOICES, tags=["rich"]).receipt
        (limit,) = receipt.budget
        assert (limit.name, limit.usd, limit.resets_at) == ("usd_total", Decimal(1), None)
        assert limit.spent + limit.reserved >= (receipt.cost or 0)


def test_the_receipt_says_which_endpoints_could_be_asked_which_were_and_how_likely_that_was(
    pool: SimulatedPool,
) -> None:
    with Ensemble(pool.endpoints, seed=3, cost_weight=0.2) as ensemble:
        answer = ensemble.ask(QUESTION, choices=CHOICES)
    receipt = answer.receipt
    first, *rest = receipt.decisions
    assert set(first.considered) == {"small", "middle", "large"}
    assert first.picked == tuple(call.endpoint for call in receipt.calls if call.round == 1)
    for before, after in itertools.pairwise(receipt.decisions):
        assert set(after.considered) == set(before.considered) - set(before.picked)
    assert all(choice.probability is None or 0 < choice.probability <= 1 for choice in receipt.decisions)
    assert first.probability is not None
    assert [choice.round for choice in receipt.decisions] == list(range(1, len(rest) + 2))
    assert receipt.cost_weight == 0.2
    assert all((call.evidence is not None) == (call.candidate is not None) for call in receipt.calls)
    again = json.loads(receipt.to_json())
    assert again["decisions"][0]["considered"] == list(first.considered)
    assert again["budget"] == []


def test_running_low_narrows_the_set_before_anything_is_refused(tmp_path: Path) -> None:
    """Asked one after the other: the dear one is left out as soon as it no longer fits, the cheap one answers on."""
    models = [
        SimulatedModel("cheap", input_usd_per_1m=Decimal("0.1"), output_usd_per_1m=Decimal("0.1")),
        SimulatedModel("dear", input_usd_per_1m=Decimal(10), output_usd_per_1m=Decimal(10)),
    ]
    budget = Budget(usd_total="0.015")
    with SimulatedPool(models) as pool:
        policy = ask_all(tmp_path)
        with Ensemble(pool.endpoints, policy=policy, explore=False, max_rounds=1, budget=budget) as ensemble:
            asks = [ensemble.ask(question.text, answer="text") for question in stream(30, seed=1)]
    sizes = [len(answer.replies) for answer in asks]
    assert sizes == sorted(sizes, reverse=True)
    assert (sizes[0], sizes[-1]) == (2, 1)
    assert asks[-1].replies[0].endpoint == "cheap"


@pytest.mark.parametrize(("fault", "estimated"), [("hang", True), ("cut", True), ("no_usage", True), ("status", False)])
def test_a_failed_call_that_may_have_been_billed_is_charged_and_one_that_was_not_is_free(
    fault: str, estimated: bool
) -> None:
    """A service that says nothing may have billed: never less is on the ledger than it did."""
    with SimulatedPool([SimulatedModel("only", skill=0.9)]) as pool:
        pool.set("only", faults=Fault(fault, seconds=0.05, status=429))
        with Ensemble(pool.endpoints, attempts=1, budget=Budget(usd_total=1)) as ensemble:
            with contextlib.suppress(PoolError):
                ensemble.ask(QUESTION, answer="number")
            billed, stats = pool.stats()["only"].usd, ensemble.stats()
            assert (billed > 0) is estimated
            assert billed < (stats.cost or 0) if estimated else stats.cost == 0
            assert stats.endpoints["only"].calls == 1


def test_a_service_that_cannot_be_reached_costs_nothing() -> None:
    endpoint = Endpoint("gone", base_url="http://127.0.0.1:1/v1", model="m", input_usd_per_1m=1, output_usd_per_1m=1)
    client = openai.AsyncOpenAI(base_url=endpoint.base_url, api_key="none")
    ready = Endpoint("ready", client=client, model="m", input_usd_per_1m=1, output_usd_per_1m=1)
    for one in (endpoint, ready):
        with Ensemble([one], attempts=2, budget=Budget(usd_total=1)) as ensemble:
            with pytest.raises(PoolError):
                ensemble.ask(QUESTION, answer="number")
            assert ensemble.stats().cost == 0
            assert ensemble.stats().endpoints[one.name].calls == 2


# -- feedback ---------------------------------------------------------------------------------------------------------


def test_feedback_teaches_which_members_to_believe_and_survives_a_restart(pool: SimulatedPool, tmp_path: Path) -> None:
    with Ensemble(pool.endpoints, store=tmp_path / "s.db", seed=0) as ensemble:
        for question in stream(60, seed=9):
            answer = ensemble.ask(question.text, choices=question.choices)
            ensemble.feedback(answer, label=question.choices[question.label])
        learned = ensemble.stats().endpoints
    assert learned["large"].accuracy > learned["small"].accuracy
    others = [Endpoint("new", base_url="http://localhost:1/v1", model="m"), *reversed(pool.endpoints[1:])]
    with Ensemble(others, store=tmp_path / "s.db") as ensemble:
        kept = ensemble.stats().endpoints
    assert kept["large"].seen == learned["large"].seen
    assert kept["new"].seen == 0


def test_a_reply_in_which_no_answer_is_found_counts_as_wrong_and_one_that_failed_does_not(tmp_path: Path) -> None:
    async def handle(_: web.Request, body: Any) -> web.StreamResponse:
        texts = {"good": "42", "silent": "I would rather not say."}
        return json_reply(completion(texts.get(body["model"], "")), 503 if body["model"] == "down" else 200)

    with serving(handle) as server:
        pool = [plain(name, server.url) for name in ("good", "silent", "down")]
        settings: dict[str, Any] = {"store": tmp_path / "s.db", "policy": ask_all(tmp_path / "policy")}
        with Ensemble(pool, explore=False, attempts=1, probe_share=0, **settings) as ensemble:
            for number in range(3):
                answer = ensemble.ask(f"{QUESTION} ({number})", choices=CHOICES)
                ensemble.feedback(answer, **({"label": "42"} if number else {"reward": True}))
            learned = ensemble.stats().endpoints
        with Ensemble(pool, **settings) as ensemble:
            kept = ensemble.stats().endpoints
    for stats in (learned, kept):
        assert [stats[name].seen for name in ("good", "silent", "down")] == [3, 3, 0]
        assert stats["silent"].accuracy < stats["down"].accuracy < stats["good"].accuracy


def with_experience(folder: Path, pool: SimulatedPool) -> Path:
    """A policy that brings along a long-run accuracy of each of three endpoints, and no texts."""
    names = tuple(endpoint.name for endpoint in pool.endpoints)
    half, unknown = np.full(3, 0.5, np.float32), np.full(3, np.nan, np.float32)
    past = Experience(names, half, unknown, np.zeros((0, 256), np.float32), *np.zeros((2, 0, 3), np.float32))
    files = decider_model(linear_decider()), fusion_model(cold_fusion())
    publish(folder, decider=files[0], fusion=files[1], names=(), parent=None, experience=past)
    return folder


@pytest.mark.parametrize(
    ("trained", "settings", "sampled"),
    [
        (False, {}, True),
        (True, {}, False),
        (True, {"update_every": 100}, True),
        (True, {"explore": True}, True),
        (False, {"explore": False}, False),
    ],
)
def test_decisions_are_sampled_where_something_learns_from_it(
    pool: SimulatedPool, tmp_path: Path, trained: bool, settings: dict[str, Any], sampled: bool
) -> None:
    """A policy that was trained on the pool's own log serves as `focalroute eval` plays it: greedily."""
    policy = with_experience(tmp_path / "policy", pool) if trained else None
    with Ensemble(pool.endpoints, policy=policy, **settings) as ensemble:
        first = ensemble.ask(QUESTION, choices=CHOICES).receipt.decisions[0]
    assert (first.probability is not None) is sampled


def test_endpoints_that_a_trained_policy_does_not_know_are_named(
    pool: SimulatedPool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Renaming endpoints silently made it ask twice as many."""
    policy = with_experience(tmp_path / "policy", pool)
    Ensemble(pool.endpoints, policy=policy).close()
    assert not caplog.records
    Ensemble([*pool.endpoints[:2], replace(pool.endpoints[2], name="renamed")], policy=policy).close()
    assert [record.getMessage() for record in caplog.records] == [
        "the policy was not trained on renamed and knows nothing about it; keep endpoints' names, or train again"
    ]


def test_the_stores_answers_are_remembered_on_top_of_the_policys_experience(
    pool: SimulatedPool, tmp_path: Path
) -> None:
    """The store's answers came later than the experience, which so must not take their place."""
    policy = with_experience(tmp_path / "policy", pool)
    steps = replace(trajectory(), features=text_features(QUESTION))
    members = {name: Member(1, candidate, 5, 0.1, None) for candidate, name in enumerate(("small", "large"))}
    keys = candidate_key("32"), candidate_key("42")
    answered = StoredAnswer("past", 1.0, keys, "choice", 0, (0.5, 0.5), members, steps, "{}")
    with closing(SqliteStore(tmp_path / "s.db")) as store:
        store.write(answered, Feedback("past", -1.0, keys[1], "user", 2.0)).result()
        with Ensemble(pool.endpoints, policy=policy, store=tmp_path / "s.db") as ensemble:
            row = store.answer(ensemble.ask(QUESTION, choices=CHOICES).id)
    assert row is not None
    assert row.trajectory is not None
    observation, _ = row.trajectory.decisions[0]
    small, middle, large = observation.endpoints[:, slices(ENDPOINT)["similar"].start]
    assert small < middle < large
    assert (row.trajectory.features == steps.features).all()


def test_an_identical_repeat_is_a_no_op_and_a_different_one_replaces_it(pool: SimulatedPool) -> None:
    with Ensemble(pool.endpoints) as ensemble:
        answer = ensemble.ask(QUESTION, choices=CHOICES)
        ensemble.feedback(answer, label="42")
        ensemble.feedback(answer.id, label_index=1)
        seen = [e.seen for e in ensemble.stats().endpoints.values()]
        accuracy = [e.accuracy for e in ensemble.stats().endpoints.values()]
        ensemble.feedback(answer, label="44")
        assert [e.accuracy for e in ensemble.stats().endpoints.values()] != accuracy
        ensemble.feedback(answer, label="42")
        ensemble.feedback(answer, reward=0.5, source="judge")
        assert [e.seen for e in ensemble.stats().endpoints.values()] == seen
        assert [e.accuracy for e in ensemble.stats().endpoints.values()] == accuracy


def test_a_users_feedback_replaces_a_judges_and_not_the_other_way_round(pool: SimulatedPool) -> None:
    with Ensemble(pool.endpoints, seed=0) as ensemble:
        answer = ensemble.ask(QUESTION, choices=CHOICES)
        backed = {call.endpoint for call in answer.receipt.calls if call.candidate == answer.choice}
        ensemble.feedback(answer, reward=False, source="judge")
        worse = ensemble.stats().endpoints
        ensemble.feedback(answer, reward=True)
        better = ensemble.stats().endpoints
        assert all(better[name].accuracy > worse[name].accuracy for name in backed)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"label": "7"}, BadLabel),
        ({"label": 4}, BadLabel),
        ({"reward": 2.0}, FeedbackError),
        ({"reward": float("nan")}, FeedbackError),
        ({}, FeedbackError),
        ({"label": "42", "reward": 1.0}, FeedbackError),
    ],
)
def test_wrong_feedback_is_a_typed_error(pool: SimulatedPool, given: dict[str, object], error: type[Exception]) -> None:
    with Ensemble(pool.endpoints) as ensemble:
        answer = ensemble.ask(QUESTION, choices=CHOICES)
        with pytest.raises(error):
            ensemble.feedback(answer, **given)  # type: ignore[arg-type]


def test_feedback_for_an_unknown_answer_says_what_to_do(pool: SimulatedPool) -> None:
    with Ensemble(pool.endpoints) as ensemble, pytest.raises(UnknownAnswer, match="durable=False"):
        ensemble.feedback("no-such-id", reward=1.0)


def test_feedback_by_id_from_another_process_is_learned_from(pool: SimulatedPool, tmp_path: Path) -> None:
    """Also when that process ends, and its threads take no work any more."""
    code = """
import atexit, sys
from focalroute import Endpoint, Ensemble
reviewer = Ensemble([Endpoint("silent", base_url="http://localhost:9/v1", model="none")], store=sys.argv[1])
reviewer.feedback(sys.argv[2], label="42")
atexit.register(reviewer.feedback, sys.argv[2], label="42", source="at exit")
"""
    with Ensemble(pool.endpoints, store=tmp_path / "s.db") as ensemble:
        answer = ensemble.ask(QUESTION, choices=CHOICES)
        subprocess.run([sys.executable, "-c", code, str(tmp_path / "s.db"), answer.id], check=True)
        until(lambda: any(endpoint.seen for endpoint in ensemble.stats().endpoints.values()))
        ((_, given),) = ensemble._async._store.recent(1)
    assert [feedback.source for feedback in given] == ["user", "at exit"]


# -- policies ---------------------------------------------------------------------------------------------------------


def test_one_callers_bad_parameters_do_not_shut_an_endpoint_for_others(pool: SimulatedPool) -> None:
    with Ensemble(pool.endpoints[:1], attempts=1) as ensemble:
        ensemble.ask(QUESTION, choices=CHOICES)
        for _ in range(7):
            with pytest.raises(PoolError):
                ensemble.ask(QUESTION, choices=CHOICES, params={"temprature": 1})
        assert ensemble.stats().endpoints["small"].breaker == "closed"


def test_the_first_closed_question_is_retried_though_it_needs_a_probe() -> None:
    with SimulatedPool([SimulatedModel("one")]) as fresh, Ensemble(fresh.endpoints) as ensemble:
        fresh.set("one", faults=Fault("status", status=503, count=1))
        assert ensemble.ask(QUESTION, choices=CHOICES).replies[0].ok


@pytest.mark.parametrize(("asks", "swaps"), [(60, 2), pytest.param(1000, 20, marks=pytest.mark.slow)])
def test_asks_under_way_during_swaps_of_the_policy_have_one_version_each(
    asks: int, swaps: int, pool: SimulatedPool, tmp_path: Path
) -> None:
    """Every answer is stamped with one version that was served and stored under it, nothing fails and none is lost."""
    root, store = tmp_path / "policy", tmp_path / "s.db"
    published = [publish_linear(root)]
    later = 50 * swaps
    questions = stream(asks + later, seed=10)

    async def run() -> list[Answer]:
        async with AsyncEnsemble(pool.endpoints, policy=root, store=store, seed=0, deadline_s=600) as ensemble:

            def begin(count: int) -> list[asyncio.Task[Answer]]:
                return [
                    asyncio.create_task(ensemble.ask(question.text, choices=question.choices))
                    for question in itertools.islice(questions, count)
                ]

            asking = begin(asks)
            for _ in range(swaps):
                await asyncio.sleep(0.1)
                published.append(await asyncio.to_thread(publish_linear, root))
                await ensemble.reload()
                asking += begin(50)
            return await asyncio.gather(*asking)

    answers = asyncio.run(run())
    kept = SqliteStore(store)
    for answer in answers:
        row = kept.answer(answer.id)
        assert row is not None
        assert row.trajectory is not None
        assert row.trajectory.version == answer.receipt.policy_version
    assert len({answer.id for answer in answers}) == asks + later
    served = {answer.receipt.policy_version for answer in answers}
    assert served == set(published)
    assert kept.verify() == ()
    kept.close()


def test_a_version_that_another_process_publishes_or_rolls_back_to_is_served(
    pool: SimulatedPool, tmp_path: Path
) -> None:
    async def run() -> list[int]:
        first = publish_linear(tmp_path)
        second = publish_linear(tmp_path, parent=first)
        async with AsyncEnsemble(pool.endpoints, policy=tmp_path) as ensemble:
            served = [(await ensemble.ask(QUESTION, choices=CHOICES)).receipt.policy_version]
            assert served == [second]
            make_current(tmp_path, first)
            await ensemble.reload()
            served.append((await ensemble.ask(QUESTION, choices=CHOICES)).receipt.policy_version)
        return served

    assert asyncio.run(run()) == [2, 1]


def test_a_broken_bundle_is_not_served_and_every_answer_says_so(pool: SimulatedPool, tmp_path: Path) -> None:
    publish_linear(tmp_path)
    (tmp_path / "v000001" / "fusion.onnx").write_bytes(b"broken")
    with Ensemble(pool.endpoints, policy=tmp_path) as ensemble:
        answer = ensemble.ask(QUESTION, choices=CHOICES)
    assert answer.receipt.policy_version == FALLBACK
    assert any("fallback" in note for note in answer.degraded)
    assert answer.choice is not None


def taught(ensemble: Ensemble, n: int, seed: int = 12) -> None:
    """Ask n questions and give each its label."""
    questions = list(stream(n, seed=seed))
    answers = ensemble.ask_many([{"query": q.text, "choices": q.choices} for q in questions], concurrency=8)
    for answer, question in zip(answers, questions, strict=True):
        assert isinstance(answer, Answer)
        ensemble.feedback(answer, label_index=question.label)


def test_an_update_is_learned_tried_and_served(pool: SimulatedPool, tmp_path: Path) -> None:
    """Chance gives each ask to the challenger or to the champion, and every answer says which it was."""
    with Ensemble(pool.endpoints, policy=tmp_path / "policy", store=tmp_path / "s.db", seed=0) as ensemble:
        taught(ensemble, 20)
        early = ensemble.update()
        assert (early.status, early.version) == ("insufficient", 0)
        taught(ensemble, 180)
        report = ensemble.update()
        assert (report.status, report.version, report.challenger) == ("on trial", 1, 2)
        answers = [ensemble.ask(QUESTION, choices=CHOICES) for _ in range(40)]
        decided = [answer.receipt.policy_version for answer in answers]
        assert set(decided) == {1, 2}
        assert 10 <= decided.count(2) <= 30
        assert all(answer.degraded == () for answer in answers)
        for answer in answers:
            ensemble.feedback(answer, label_index=0)
        judged = ensemble.update()
        assert judged.comparison is not None
        assert (judged.status, judged.challenger, judged.comparison.episodes) == ("on trial", 2, 40)
    with Ensemble(pool.endpoints, policy=tmp_path / "policy") as again:
        assert again.stats().policy_version == 1
        make_current(tmp_path / "policy", 2)
        again.reload()
        assert {again.ask(QUESTION, choices=CHOICES).receipt.policy_version for _ in range(10)} == {2}


@pytest.mark.slow
def test_updates_in_the_background_follow_every_n_feedbacks(pool: SimulatedPool, tmp_path: Path) -> None:
    with Ensemble(pool.endpoints, policy=tmp_path, update_every=200, seed=0) as ensemble:
        taught(ensemble, 420)
        until(lambda: ensemble.stats().policy_version >= 1)


def test_an_update_needs_a_folder_to_publish_to(pool: SimulatedPool) -> None:
    with pytest.raises(ConfigError, match="policy"):
        Ensemble(pool.endpoints, update_every=100)
    with Ensemble(pool.endpoints) as ensemble, pytest.raises(ConfigError, match="policy"):
        ensemble.update()


# -- the store --------------------------------------------------------------------------------------------------------


def test_no_text_and_no_key_reaches_the_store_unless_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIM_KEY", "sk-very-secret-value")
    secret = "the colour of the vault is ultramarine"
    with SimulatedPool([SimulatedModel("m")], keys={"m": "SIM_KEY"}) as pool:
        for texts in (False, True):
            path = tmp_path / f"{texts}.db"
            with Ensemble(pool.endpoints, store=path, store_text=texts) as ensemble:
                answer = ensemble.ask(f"{secret}: {QUESTION}", choices=CHOICES)
                assert "sk-very-secret-value" not in repr(answer) + repr(ensemble.endpoints)
            stored = b"".join(file.read_bytes() for file in tmp_path.glob(f"{texts}.db*"))
            assert (secret.encode() in stored) == texts
            assert b"sk-very-secret-value" not in stored


def test_when_the_store_fails_the_answer_still_comes_and_says_it_is_not_durable(
    pool: SimulatedPool, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_S", 0.2)
    with Ensemble(pool.endpoints, store=tmp_path / "s.db") as ensemble:
        ensemble.ask(QUESTION, choices=CHOICES)
        with SqliteLock(tmp_path / "s.db"):
            answer = ensemble.ask(QUESTION, choices=CHOICES)
    assert not answer.durable
    assert "could not be stored" in caplog.text


@pytest.mark.parametrize("way", ["ask", "stream", "ask_many"])
def test_an_answer_that_is_due_does_not_wait_for_a_locked_store(
    pool: SimulatedPool,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    """It came up to five seconds late. What was locked out is written, and learned from, once the lock is gone."""
    monkeypatch.setattr(database, "BUSY_S", 60.0)
    path = tmp_path / "s.db"
    with Ensemble(pool.endpoints, store=path, probe_share=0) as ensemble:
        first = ensemble.ask(QUESTION)  # loads libraries
        began = time.monotonic()
        with SqliteLock(path):
            answer = asked(ensemble, way)
            assert 2.7 < time.monotonic() - began < 30
            assert not answer.durable
            assert "due before it was stored" in caplog.text
        until(lambda: answer.id in ensemble._async._feedback._answers)
        ensemble.feedback(answer, reward=True)
        assert ensemble.stats().cost == (first.cost or 0) + (answer.cost or 0)


def asked(ensemble: Ensemble, way: str) -> Answer:
    if way == "ask":
        return ensemble.ask(QUESTION, deadline_s=3.0)
    if way == "ask_many":
        (answer,) = ensemble.ask_many([QUESTION], deadline_s=3.0)
        assert isinstance(answer, Answer)
        return answer
    with ensemble.stream(QUESTION, deadline_s=3.0) as pieces:
        assert "".join(pieces)
    return pieces.answer


def test_bills_that_a_locked_store_never_took_are_in_the_log_after_the_answer_was_due(
    pool: SimulatedPool, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_S", 6.0)
    with Ensemble(pool.endpoints, store=tmp_path / "s.db") as ensemble:
        ensemble.ask(QUESTION)
        with SqliteLock(tmp_path / "s.db"):
            assert not ensemble.ask(QUESTION, deadline_s=3.0).durable
            assert "not in the ledger" not in caplog.text
            until(lambda: "not in the ledger" in caplog.text)


class SqliteLock:
    """Holds the database's write lock for longer than anybody waits: as a hung backup would."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        self._connection = sqlite3.connect(self._path, isolation_level=None)
        self._connection.execute("BEGIN EXCLUSIVE")

    def __exit__(self, *_: object) -> None:
        self._connection.rollback()
        self._connection.close()


# -- bad input at the door --------------------------------------------------------------------------------------------


def test_bad_settings_and_pools_are_refused_before_anything_opens(tmp_path: Path, pool: SimulatedPool) -> None:
    with pytest.raises(ConfigError, match="empty"):
        Ensemble([])
    with pytest.raises(ConfigError, match="unique"):
        Ensemble([pool.endpoints[0], pool.endpoints[0]])
    with pytest.raises(ConfigError, match="max_rounds"):
        Ensemble(pool.endpoints, max_rounds=0)
    with pytest.raises(ConfigError, match="base_url"):
        Ensemble([Endpoint("prices-only", model="m")])
    with pytest.raises(StoreError):
        Ensemble(pool.endpoints, store=tmp_path / "missing" / "s.db")


def test_a_pool_file_configures_pool_ensemble_and_budget(pool: SimulatedPool, tmp_path: Path) -> None:
    first = pool.endpoints[0]
    text = f"""
        [[endpoint]]
        name = "one"
        model = "{first.model}"
        base_url = "{first.base_url}"
        input_usd_per_1m = 1.0
        output_usd_per_1m = 1.0
        [ensemble]
        max_rounds = 1
        [budget]
        usd_total = 0.5
    """
    path = tmp_path / "pool.toml"
    path.write_text(text)
    with Ensemble.from_toml(path) as ensemble:
        assert ensemble.ask(QUESTION, choices=CHOICES).replies[0].endpoint == "one"
    path.write_text(text.replace("max_rounds", "max_round"))
    with pytest.raises(ConfigError, match="max_round"):
        Ensemble.from_toml(path)


def test_a_missing_key_is_named_by_its_variable(pool: SimulatedPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    endpoint = Endpoint("m", base_url=pool.endpoints[0].base_url, model="small", api_key_env="NO_SUCH_KEY")
    with pytest.raises(ConfigError, match="NO_SUCH_KEY"):
        Ensemble([endpoint])


def test_an_ask_that_had_not_begun_when_it_was_closed_does_not_begin(pool: SimulatedPool, tmp_path: Path) -> None:
    """Where many begin at once, some wait for a turn of the loop."""

    async def main() -> list[Answer | BaseException]:
        ensemble = AsyncEnsemble(pool.endpoints, store=tmp_path / "s.db")
        asks = [asyncio.ensure_future(ensemble.ask("What is 1 + 1?", answer="number")) for _ in range(50)]
        await asyncio.sleep(0)
        await ensemble.aclose()
        return await asyncio.gather(*asks, return_exceptions=True)

    found = asyncio.run(main())
    refused = [one for one in found if isinstance(one, RuntimeError)]
    assert len(refused) >= 40
    assert all("closed" in str(one) for one in refused)


@pytest.mark.parametrize("injected", [False, True])
def test_closing_waits_until_asks_under_way_are_in_the_store(tmp_path: Path, injected: bool) -> None:
    """Their calls fail; those by a client of the caller's own go on."""
    go_on = threading.Event()

    async def handler(_: web.Request, __: Any) -> web.StreamResponse:
        await asyncio.to_thread(go_on.wait, 60)
        return json_reply(completion("42"))

    async def main(server: Server) -> list[Any]:
        own = openai.AsyncOpenAI(base_url=server.url, api_key="unused")
        where: dict[str, Any] = {"client": own} if injected else {"base_url": server.url}
        endpoint = Endpoint("a", model="a", input_usd_per_1m=1, output_usd_per_1m=1, **where)
        ensemble = AsyncEnsemble([endpoint], store=tmp_path / "s.db")
        asks = [asyncio.ensure_future(ensemble.ask("?", answer="number")) for _ in range(3)]
        await asyncio.to_thread(until, lambda: len(server.received) == 3)
        if injected:
            asyncio.get_running_loop().call_later(0.1, go_on.set)
        await ensemble.aclose()
        go_on.set()
        found = await asyncio.gather(*asks, return_exceptions=True)
        await own.close()
        return found

    with serving(handler) as server:
        found = asyncio.run(main(server))
    if injected:
        assert [one.durable for one in found] == [True] * 3
    else:
        assert [type(one) for one in found] == [PoolError] * 3
        assert {str(one) for one in found} == {"the ensemble was closed before any endpoint had answered"}
    with closing(SqliteStore(tmp_path / "s.db")) as store:
        assert store.totals()["a"].calls == 3


def test_closing_ends_calls_whose_replies_have_begun_to_arrive(tmp_path: Path) -> None:
    """aiohttp left their readers waiting, so the store was closed without their costs."""
    begun = threading.Event()

    async def handler(request: web.Request, _: Any) -> web.StreamResponse:
        reply = web.StreamResponse(headers={"Content-Type": "application/json"})
        await reply.prepare(request)
        await reply.write(b"  ")
        begun.set()
        await asyncio.sleep(60)
        return reply

    async def main(url: str) -> BaseException | Answer:
        endpoint = Endpoint("a", model="a", base_url=url, input_usd_per_1m=1, output_usd_per_1m=1)
        ensemble = AsyncEnsemble([endpoint], store=tmp_path / "s.db")
        ask = asyncio.ensure_future(ensemble.ask("?", answer="number"))
        await asyncio.to_thread(begun.wait, 60)
        await asyncio.sleep(0.1)  # until the head has been read
        async with asyncio.timeout(4):
            await ensemble.aclose()
        return (await asyncio.gather(ask, return_exceptions=True))[0]

    with serving(handler) as server:
        assert "was closed" in str(asyncio.run(main(server.url)))
        assert len(server.received) == 1  # and none was made anew
    with closing(SqliteStore(tmp_path / "s.db")) as store:
        assert store.totals()["a"].calls == 1


def test_closing_gives_up_calls_by_a_client_of_the_callers_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They went on without a store for their costs; without `await`, closing waited until the asks' deadline."""
    monkeypatch.setattr("focalroute.serving.closing._CLOSING_S", 0.2)

    async def handler(_: web.Request, __: Any) -> web.StreamResponse:
        await asyncio.sleep(60)
        return json_reply(completion("42"))

    with serving(handler) as server, ThreadPoolExecutor(1) as elsewhere:
        endpoint = Endpoint("a", model="a", base_url=server.url, input_usd_per_1m=1, output_usd_per_1m=1)
        ensemble = Ensemble([endpoint], http_client=httpx.AsyncClient(), store=tmp_path / "s.db")
        asked = elsewhere.submit(ensemble.ask, "?", answer="number")
        until(lambda: len(server.received) == 1)
        began = time.monotonic()
        ensemble.close()
        assert time.monotonic() - began < 10
        assert "was closed" in str(asked.exception(60))
    with closing(SqliteStore(tmp_path / "s.db")) as store:
        assert store.totals()["a"].calls == 1


@pytest.mark.parametrize("streams", [False, True])
def test_closing_waits_for_asks_of_other_loops_too(tmp_path: Path, streams: bool) -> None:
    """Their costs were lost, as the store was closed under them."""
    go_on = threading.Event()

    async def handler(_: web.Request, __: Any) -> web.StreamResponse:
        await asyncio.to_thread(go_on.wait, 60)
        return json_reply(completion("42"))

    with serving(handler) as server, ThreadPoolExecutor(1) as elsewhere:
        endpoint = Endpoint("a", model="a", base_url=server.url, input_usd_per_1m=1, output_usd_per_1m=1)
        ensemble = AsyncEnsemble([endpoint], store=tmp_path / "s.db")

        async def ask() -> Answer:
            if not streams:
                return await ensemble.ask("?", answer="number")
            async with ensemble.stream("?", answer="number") as stream:
                async for _ in stream:
                    pass
            return stream.answer

        answer = elsewhere.submit(lambda: asyncio.run(ask()))
        until(lambda: len(server.received) == 1)
        threading.Timer(0.1, go_on.set).start()
        asyncio.run(ensemble.aclose())
        assert answer.result(60).durable
    with closing(SqliteStore(tmp_path / "s.db")) as store:
        assert store.totals()["a"].calls == 1


def test_amounts_do_not_depend_on_the_callers_decimal_context(tmp_path: Path) -> None:
    """They were rounded to its digits; or it raised, and what was reserved stayed so."""

    async def handler(_: web.Request, __: Any) -> web.StreamResponse:
        return json_reply(completion("42", usage={"prompt_tokens": 1000, "completion_tokens": 0}), next(statuses))

    async def run(url: str) -> None:
        endpoint = Endpoint("a", model="a", base_url=url, input_usd_per_1m="0.123456", output_usd_per_1m=1)
        async with AsyncEnsemble([endpoint], attempts=1, budget=Budget(usd_total=1), deadline_s=30) as ensemble:
            with decimal.localcontext(prec=4):
                answer = await ensemble.ask("?" * 2000, answer="number")
                with pytest.raises(PoolError):
                    await ensemble.ask("?" * 2000, answer="number")
                spent = ensemble.stats().cost
            assert answer.cost == Decimal("0.000123456")
            assert spent == answer.cost * 3 / 2
            assert not ensemble._guard._held

    statuses = iter((200, 500))
    with serving(handler) as server:
        asyncio.run(run(server.url))


def test_closing_twice_is_fine_and_a_closed_ensemble_says_so(pool: SimulatedPool) -> None:
    ensemble = Ensemble(pool.endpoints)
    ensemble.ask(QUESTION, choices=CHOICES)
    ensemble.close()
    ensemble.close()
    with pytest.raises(RuntimeError, match="closed"):
        ensemble.ask(QUESTION, choices=CHOICES)


@pytest.mark.slow
def test_an_ensemble_left_open_is_closed_at_exit_and_keeps_nothing_from_ending(
    pool: SimulatedPool, tmp_path: Path
) -> None:
    code = f"""
from focalroute import Endpoint, Ensemble
endpoint = Endpoint("small", base_url={pool.endpoints[0].base_url!r}, model="small")
ensemble = Ensemble([endpoint], store={str(tmp_path / "s.db")!r})
print(ensemble.ask({QUESTION!r}, choices={CHOICES!r}).id)
"""
    result = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")
    store = SqliteStore(tmp_path / "s.db")
    assert store.answer(result.stdout.strip()) is not None
    store.close()
