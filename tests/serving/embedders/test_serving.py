"""An ensemble whose queries' texts are read by an embedder of choice, over real HTTP."""

from __future__ import annotations

import asyncio
import math
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from aiohttp import web

from examples.shipped_policy.training import cold_fusion
from focalroute import Answer, AsyncEnsemble, Budget, ConfigError, Endpoint, Ensemble, OnnxEmbedder
from focalroute.core.records import HASHED, Trajectory
from focalroute.learn.export import decider_model, fusion_model
from focalroute.observe.experience import Experience
from focalroute.observe.features import text_features
from focalroute.observe.layout import ENDPOINT, slices
from focalroute.policy.publish import publish
from focalroute.sim import Fault, SimulatedModel, SimulatedPool
from focalroute.sim.compose import vector
from tests.by_hand import linear_decider
from tests.interruptible import heed_interrupts
from tests.loopback import Server, json_reply, serving, until_checked
from tests.serving.embedders.encoder import write_encoder

QUESTION = "What is 17 + 25?"
CHOICES = ["32", "42", "44", "52"]
#: Whatever the machine is doing, an embedder that works is in time.
PATIENT: dict[str, Any] = {"seed": 0, "deadline_s": 600}
PRICE = {"input_usd_per_1m": 1, "output_usd_per_1m": 0}


@pytest.fixture(scope="module")
def running() -> Iterator[SimulatedPool]:
    names = ("a", "b", "encoder")
    with SimulatedPool([SimulatedModel(name, skill=0.9, input_usd_per_1m=Decimal(1)) for name in names]) as pool:
        yield pool


@pytest.fixture
def sim(running: SimulatedPool) -> SimulatedPool:
    """Two members and, last, a model for embeddings; nothing was asked of them yet."""
    running.reset()
    return running


def members(sim: SimulatedPool) -> Sequence[Endpoint]:
    return sim.endpoints[:2]


def embedder(url: str, **settings: Any) -> Endpoint:
    return Endpoint("texts", model="m", base_url=url, **{**PRICE, **settings})


def steps(ensemble: Ensemble, answer: Answer) -> Trajectory:
    """What the store keeps of how it came about."""
    stored = ensemble._async._store.answer(answer.id)
    assert stored is not None
    assert stored.trajectory is not None
    return stored.trajectory


def of_length(text: str) -> list[float]:
    return [float(len(text)), 1.0]


async def awaited(text: str) -> list[float]:
    await asyncio.sleep(0)
    return of_length(text)


class Awaited:
    name = "mine, version 2"

    async def __call__(self, text: str) -> np.ndarray:
        return np.array(await awaited(text))


# -- where vectors come from ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("embed", "name"),
    [
        (of_length, "of_length"),
        (awaited, "awaited"),
        (Awaited(), "mine, version 2"),
        (lambda text: awaited(text), "<lambda>"),
    ],
    ids=["function", "coroutine", "object", "lambda"],
)
def test_a_functions_vector_is_what_the_text_is_known_by(sim: SimulatedPool, embed: Any, name: str) -> None:
    expected = np.array([len(QUESTION), 1.0]) / np.hypot(len(QUESTION), 1)
    with Ensemble(members(sim), embedder=embed, **PATIENT) as ensemble:
        answer = ensemble.ask(QUESTION, choices=CHOICES)
        kept = steps(ensemble, answer)
    assert answer.degraded == ()
    assert kept.features == pytest.approx(expected)
    assert kept.embedder == name


def test_a_services_embedding_is_paid_by_the_ask_that_needs_it(sim: SimulatedPool, tmp_path: Path) -> None:
    """It is on the receipt, in the ledger under the embedder's name, and all agrees with the service's own bills."""
    encoder = sim.endpoints[2]
    with Ensemble(members(sim), embedder=encoder, store=tmp_path / "s.db", **PATIENT) as ensemble:
        answer = ensemble.ask(QUESTION, choices=CHOICES)
        kept, again = steps(ensemble, answer), ensemble.ask(QUESTION, choices=CHOICES)
        until_checked(ensemble)
        rows = {row.key: row for row in ensemble._async._store.ledger("endpoint")}
        assert ensemble.stats().cost == sum(model.usd for model in sim.stats().values())
    billed = sim.stats()["encoder"]
    assert kept.features == pytest.approx(np.array(vector(QUESTION)))
    assert kept.embedder == encoder.model
    assert billed.calls == 1
    assert answer.receipt.embedding == billed.usd > 0
    assert answer.cost == billed.usd + sum(call.cost or 0 for call in answer.receipt.calls)
    assert (rows["encoder"].calls, rows["encoder"].asks, rows["encoder"].cost) == (1, 1, billed.usd)
    assert again.receipt.embedding == 0  # the same text, known


def test_the_same_works_awaited_and_through_a_ready_client(sim: SimulatedPool) -> None:
    encoder = sim.endpoints[2]

    async def run() -> tuple[Answer, ...]:
        async with openai.AsyncOpenAI(base_url=encoder.base_url, api_key="none") as client:
            ready = replace(encoder, base_url=None, client=client, params={"dimensions": 16})
            async with AsyncEnsemble(members(sim), embedder=ready, **PATIENT) as ensemble:
                answer = await ensemble.ask(QUESTION, choices=CHOICES)
                stored = ensemble._store.answer(answer.id)
        assert stored is not None
        assert stored.trajectory is not None
        assert stored.trajectory.features == pytest.approx(np.array(vector(QUESTION, 16)))
        assert stored.trajectory.embedder == 'encoder {"dimensions": 16}'
        return (answer,)

    (answer,) = asyncio.run(run())
    assert answer.degraded == ()
    assert answer.receipt.embedding == sim.stats()["encoder"].usd


def test_a_local_encoder_reads_the_texts(sim: SimulatedPool, tmp_path: Path) -> None:
    local = OnnxEmbedder(*write_encoder(tmp_path))
    with Ensemble(members(sim), embedder=local, **PATIENT) as ensemble:
        kept = steps(ensemble, ensemble.ask(QUESTION, choices=CHOICES))
    expected = local(QUESTION)
    assert kept.features == pytest.approx(expected / np.linalg.norm(expected), abs=1e-6)
    assert kept.embedder == local.name


def test_without_one_the_built_in_features_are_used(sim: SimulatedPool) -> None:
    with Ensemble(members(sim), **PATIENT) as ensemble:
        kept = steps(ensemble, ensemble.ask(QUESTION, choices=CHOICES))
    assert (kept.features == text_features(QUESTION)).all()
    assert kept.embedder == HASHED


def test_texts_are_read_once_however_many_ask(sim: SimulatedPool) -> None:
    with Ensemble(members(sim), embedder=sim.endpoints[2], **PATIENT) as ensemble:
        answers = ensemble.ask_many([{"query": QUESTION, "choices": CHOICES}] * 8, concurrency=8)
    assert all(isinstance(answer, Answer) and not answer.degraded for answer in answers)
    assert sim.stats()["encoder"].calls == 1


def test_a_plain_function_runs_off_the_loop_one_text_at_a_time(sim: SimulatedPool) -> None:
    under_way, most, threads = 0, 0, set()

    def slow(text: str) -> list[float]:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        threads.add(threading.current_thread().name)
        time.sleep(0.02)
        under_way -= 1
        return [1.0, float(len(text))]

    with Ensemble(members(sim), embedder=slow, **PATIENT) as ensemble:
        ensemble.ask_many([{"query": f"{QUESTION} {n}", "choices": CHOICES} for n in range(6)], concurrency=6)
    assert (most, threads) == (1, {"focalroute-embedder"})


def test_a_key_goes_to_the_embedder_from_the_environment(monkeypatch: pytest.MonkeyPatch, sim: SimulatedPool) -> None:
    async def handler(_: web.Request, __: Any) -> web.StreamResponse:
        return json_reply(reply([1.0, 0.0]))

    with serving(handler) as server:
        service = embedder(server.url, api_key_env="EMBEDDER_KEY")
        with pytest.raises(ConfigError, match="EMBEDDER_KEY is not set"):
            Ensemble(members(sim), embedder=service)
        monkeypatch.setenv("EMBEDDER_KEY", "sk-embedder")
        with Ensemble(members(sim), embedder=service, **PATIENT) as ensemble:
            ensemble.ask(QUESTION, choices=CHOICES)
        (received,) = server.received
    assert received.path == "/v1/embeddings"
    assert received.headers["Authorization"] == "Bearer sk-embedder"
    assert received.body == {"model": "m", "input": [QUESTION]}


# -- where it fails ---------------------------------------------------------------------------------------------------


def reply(*vectors: Any, **fields: Any) -> dict[str, Any]:
    data = [{"object": "embedding", "index": i, "embedding": vector} for i, vector in enumerate(vectors)]
    return {"object": "list", "data": data, "model": "m", "usage": {"prompt_tokens": 9, "total_tokens": 9}, **fields}


def ask_with(server: Server, sim: SimulatedPool, **settings: Any) -> Answer:
    with Ensemble(members(sim), embedder=embedder(server.url), **PATIENT, **settings) as ensemble:
        return ensemble.ask(QUESTION, choices=CHOICES)


@pytest.mark.parametrize(
    ("payload", "status", "says"),
    [
        ({"error": {"code": "overloaded"}}, 503, "HTTP 503"),
        ({"error": {"code": 429}}, 200, "HTTP 429"),
        (reply(), 200, "an embedding for each text"),
        (reply([1.0], [1.0]), 200, "an embedding for each text"),
        (reply([float("nan")]), 200, "finite numbers"),
        (reply(["1.0"]), 200, "finite numbers"),
        (reply([True]), 200, "finite numbers"),
        (reply([]), 200, "finite numbers"),
        (reply("AAAA"), 200, "finite numbers"),
        (reply([1.0] * 9000), 200, "1 to 8192"),
        (reply([1.0]) | {"data": [{"index": 3, "embedding": [1.0]}]}, 200, "do not fit"),
        ([], 200, "not a JSON object"),
    ],
)
def test_a_service_that_gives_no_vector_costs_no_answer(
    sim: SimulatedPool, payload: Any, status: int, says: str
) -> None:
    async def handler(_: web.Request, __: Any) -> web.StreamResponse:
        return json_reply(payload, status)

    with serving(handler) as server:
        answer = ask_with(server, sim)
    assert answer.choice is not None
    (said,) = answer.degraded
    assert said.startswith("text not read: embedder m: ")
    assert says in said
    assert said.count("embedder") == 1
    assert QUESTION not in said


@pytest.mark.parametrize("kind", ["cut", "html", "bad_json", "deep", "flood", "bomb", "reset", "redirect"])
def test_a_hostile_embedder_does_no_more_harm_than_a_failing_one(sim: SimulatedPool, kind: str) -> None:
    sim.set("encoder", faults=Fault(kind, size=10_000_000))
    with Ensemble(members(sim), embedder=sim.endpoints[2], **PATIENT) as ensemble:
        answer = ensemble.ask(QUESTION, choices=CHOICES)
    assert answer.choice is not None
    assert answer.degraded[0].startswith("text not read: embedder encoder: ")


def test_after_a_failure_it_is_left_alone_for_a_while(sim: SimulatedPool, caplog: pytest.LogCaptureFixture) -> None:
    sim.set("encoder", faults=Fault("status"))
    with Ensemble(members(sim), embedder=sim.endpoints[2], **PATIENT) as ensemble:
        assert "HTTP 503" in ensemble.ask(QUESTION, choices=CHOICES).degraded[0]
        ensemble._async._embedding._paused_until = time.monotonic() + 60
        assert "it failed a moment ago" in ensemble.ask(QUESTION, choices=CHOICES).degraded[0]
        assert sim.stats()["encoder"].calls == 1
        assert (
            caplog.text.count("the embedder failed, so asks go on without features of their texts: try again later")
            == 1
        )
        sim.set("encoder", faults=())
        ensemble._async._embedding._paused_until = time.monotonic()
        answer = ensemble.ask(QUESTION, choices=CHOICES)
        assert answer.degraded == ()
        assert steps(ensemble, answer).features.any()


def test_a_slow_service_is_not_waited_for_and_what_it_may_have_cost_is_kept(sim: SimulatedPool) -> None:
    sim.set("encoder", latency_s=30)
    with Ensemble(members(sim), embedder=sim.endpoints[2], **PATIENT) as ensemble:
        answer = ensemble.ask(QUESTION, choices=CHOICES, deadline_s=10)
        rows = {row.key: row for row in ensemble._async._store.ledger("endpoint")}
    assert "text not read: embedder encoder: no vector within " in answer.degraded[0]
    assert answer.choice is not None
    assert rows["encoder"].estimated == 1
    assert answer.receipt.embedding == rows["encoder"].cost > 0


def test_one_hasty_ask_does_not_pause_the_embedder_for_others(sim: SimulatedPool) -> None:
    async def unhurried(text: str) -> list[float]:
        await asyncio.sleep(0.1)
        return of_length(text)

    with Ensemble(members(sim), embedder=unhurried, **PATIENT) as ensemble:
        hasty = ensemble.ask(QUESTION, choices=CHOICES, deadline_s=0.9)
        patient = ensemble.ask(QUESTION, choices=CHOICES)
    assert "no vector within" in hasty.degraded[0]
    assert patient.degraded == ()


def test_a_slow_function_is_not_waited_for(sim: SimulatedPool) -> None:
    free = threading.Event()

    def stuck(text: str) -> list[float]:
        free.wait(60)
        return of_length(text)

    with Ensemble(members(sim), embedder=stuck, **PATIENT) as ensemble:
        answer = ensemble.ask(QUESTION, choices=CHOICES, deadline_s=10)
    free.set()
    assert "text not read: embedder" in answer.degraded[0]
    assert "no vector within" in answer.degraded[0]


@pytest.mark.slow
def test_ctrl_c_does_not_wait_for_a_function_that_is_at_work(sim: SimulatedPool) -> None:
    code = f"""
import time
from focalroute import Endpoint, Ensemble
def embed(text):
    print("called", flush=True)
    time.sleep(120)
with Ensemble([Endpoint("e", base_url={sim.endpoints[0].base_url!r}, model="m")], embedder=embed) as ensemble:
    ensemble.ask("Which?", deadline_s=1000)
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed_interrupts
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "called\n"
        process.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in process.communicate(timeout=60)[1]


def test_a_function_that_raises_costs_no_answer_and_tells_nothing_of_the_text(sim: SimulatedPool) -> None:
    def fails(text: str) -> list[float]:
        raise ValueError(f"cannot read {text}")

    with Ensemble(members(sim), embedder=fails, **PATIENT) as ensemble:
        answer = ensemble.ask(QUESTION, choices=CHOICES)
        assert not steps(ensemble, answer).features.any()
    assert answer.degraded[0].endswith("fails: it raised ValueError")
    assert QUESTION not in answer.receipt.to_json()


async def exits(text: str) -> list[float]:
    sys.exit(3)


@pytest.mark.parametrize(
    ("ends", "says"),
    [(lambda text: sys.exit(3), "SystemExit"), (exits, "SystemExit"), (lambda text: next(iter(())), "RuntimeError")],
    ids=["exit", "async", "stop"],
)
def test_a_function_that_ends_its_thread_costs_no_answer_either(sim: SimulatedPool, ends: Any, says: str) -> None:
    """An asyncio future takes no StopIteration, and SystemExit ends an event loop."""
    with Ensemble(members(sim), embedder=ends, **PATIENT) as ensemble:
        assert ensemble.ask(QUESTION, choices=CHOICES).degraded[0].endswith(f": it raised {says}")
        assert ensemble.ask(QUESTION, choices=CHOICES).text in CHOICES


@pytest.mark.parametrize("given", [[float("nan")], [], 1.0, [[1.0]], "text", None, [1.0] * 9000])
def test_a_function_that_gives_no_vector_is_wrong(sim: SimulatedPool, given: Any) -> None:
    with Ensemble(members(sim), embedder=lambda text: given) as ensemble:
        with pytest.raises(ConfigError, match="embedder: must give a vector"):
            ensemble.ask(QUESTION, choices=CHOICES)
        assert ensemble.stats().asks == 0


@pytest.mark.parametrize(
    ("later", "said"), [([1.0] * 17, "gave 17 numbers for a text, but 16 for an earlier one"), ([math.nan], "finite")]
)
def test_a_function_that_gives_no_such_vector_any_more_has_failed(
    sim: SimulatedPool, later: list[float], said: str
) -> None:
    """A model's numbers may not be finite for some text; that ended the ask."""
    vectors = [later, [1.0] * 16]
    with Ensemble(members(sim), embedder=lambda _: vectors.pop(), **PATIENT) as ensemble:
        assert ensemble.ask(QUESTION, choices=CHOICES).degraded == ()
        assert said in ensemble.ask(QUESTION + "?", choices=CHOICES).degraded[0]


def test_a_service_whose_vectors_change_their_length_has_failed(sim: SimulatedPool) -> None:
    async def handler(_: web.Request, body: Any) -> web.StreamResponse:
        return json_reply(reply([1.0] * len(body["input"][0])))

    with serving(handler) as server, Ensemble(members(sim), embedder=embedder(server.url), **PATIENT) as ensemble:
        assert ensemble.ask(QUESTION, choices=CHOICES).degraded == ()
        assert "now have 17 numbers, but had 16" in ensemble.ask(QUESTION + "?", choices=CHOICES).degraded[0]


def test_a_message_without_text_is_not_read(sim: SimulatedPool) -> None:
    picture = [{"type": "image_url", "image_url": {"url": "data:,"}}]
    with Ensemble(members(sim), embedder=sim.endpoints[2], **PATIENT) as ensemble:
        assert ensemble.ask([{"role": "user", "content": picture}]).degraded == ()
    assert sim.stats()["encoder"].calls == 0


# -- money ------------------------------------------------------------------------------------------------------------


def test_a_cap_that_leaves_no_room_for_it_is_kept(sim: SimulatedPool) -> None:
    dear = replace(sim.endpoints[2], input_usd_per_1m=10_000)
    with Ensemble(members(sim), embedder=dear, budget=Budget(usd_total="0.05"), **PATIENT) as ensemble:
        answer = ensemble.ask(QUESTION, choices=CHOICES, max_usd="0.01")
        assert (ensemble.stats().cost or 0) <= Decimal("0.01")
    assert answer.degraded == ("text not read: embedder encoder: not affordable",)
    assert sim.stats()["encoder"].calls == 0


def test_a_total_counts_it(sim: SimulatedPool) -> None:
    encoder = replace(sim.endpoints[2], input_usd_per_1m=1000)
    with Ensemble(members(sim), embedder=encoder, budget=Budget(usd_total=1), **PATIENT) as ensemble:
        answer = ensemble.ask(QUESTION, choices=CHOICES)
        (limit,) = ensemble.ask(QUESTION, choices=CHOICES).receipt.budget
    assert answer.receipt.embedding == 1000 * sim.stats()["encoder"].usd > 0
    assert limit.spent >= answer.receipt.embedding


def test_without_a_price_the_cost_is_unknown_and_a_budget_is_refused(sim: SimulatedPool) -> None:
    free = Endpoint("encoder", model="encoder", base_url=sim.endpoints[2].base_url)
    with pytest.raises(ConfigError, match="the price of encoder is unknown"):
        Ensemble(members(sim), embedder=free, budget=Budget(usd_total=1))
    with Ensemble(members(sim), embedder=free, **PATIENT) as ensemble:
        answer = ensemble.ask(QUESTION, choices=CHOICES)
    assert (answer.receipt.embedding, answer.cost) == (None, None)


def called(sim: SimulatedPool) -> None:
    """Wait until the encoder was."""
    while not sim.stats()["encoder"].calls:
        time.sleep(0.01)


def test_an_ask_cancelled_while_its_text_is_read_leaves_its_bill(sim: SimulatedPool) -> None:
    sim.set("encoder", latency_s=30)

    async def run() -> None:
        async with AsyncEnsemble(members(sim), embedder=sim.endpoints[2]) as ensemble:
            asking = asyncio.create_task(ensemble.ask(QUESTION, choices=CHOICES))
            await asyncio.to_thread(called, sim)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            assert (ensemble.stats().cost or 0) > 0
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


# -- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda sim: "text-embedding-3-small", "embedder: give an Endpoint, an OnnxEmbedder or a function"),
        (lambda sim: sim.endpoints[0], "more than once: a"),
        (lambda sim: Endpoint("e", model="m"), "e: give base_url"),
        (lambda sim: Endpoint("e", model="m", base_url="https://api.openai.com/v1", api_key_env="GROQ_API_KEY"),
         "GROQ_API_KEY is not a key for api.openai.com"),
    ],
)  # fmt: skip
def test_a_wrong_embedder_is_refused_at_once(
    sim: SimulatedPool, wrong: Callable[[SimulatedPool], Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        Ensemble(members(sim), embedder=wrong(sim))


# -- what was remembered by another one -------------------------------------------------------------------------------


def remembering(root: Path, embedder: str) -> Path:
    """A policy that remembers 30 texts, all of them alike, on which only a was right."""
    alike = np.tile(np.array([1, 0], np.float32), (30, 1))
    even, nothing = np.full(2, 0.5, np.float32), np.full(2, np.nan, np.float32)
    past = Experience(("a", "b"), even, nothing, alike, alike, np.ones_like(alike), embedder=embedder)
    decider, fusion = decider_model(linear_decider()), fusion_model(cold_fusion())
    publish(root, decider=decider, fusion=fusion, names=(), parent=None, experience=past)
    return root


@pytest.mark.parametrize(("trained_with", "used"), [("same", True), ("another", False), (HASHED, False)])
def test_a_policys_memory_is_used_only_with_its_own_embedder(
    sim: SimulatedPool, tmp_path: Path, caplog: pytest.LogCaptureFixture, trained_with: str, used: bool
) -> None:
    def same(text: str) -> list[float]:
        return [1.0, 0.0]

    same.name = "same"  # type: ignore[attr-defined]
    policy = remembering(tmp_path / "policy", trained_with)
    with Ensemble(members(sim), embedder=same, policy=policy, explore=False) as ensemble:
        observation, _ = steps(ensemble, ensemble.ask(QUESTION, choices=CHOICES)).decisions[0]
    assert observation.endpoints[:, slices(ENDPOINT)["similar"]].any() == used
    assert caplog.text.count(f"its embedder was '{trained_with}', this pool's is 'same'") == (not used)


def test_a_stores_answers_are_compared_only_with_their_own_embedders(sim: SimulatedPool, tmp_path: Path) -> None:
    """Vectors of one length, but of another function."""
    remembered = []
    for embed in (of_length, awaited, of_length):
        with Ensemble(members(sim), embedder=embed, store=tmp_path / "s.db", **PATIENT) as ensemble:
            before = len(ensemble._async._observer._memory)
            ensemble.feedback(ensemble.ask(QUESTION, choices=CHOICES), label="42")
            remembered.append((before, len(ensemble._async._observer._memory)))
    assert remembered == [(0, 1), (0, 1), (1, 2)]
