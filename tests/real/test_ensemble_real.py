"""Whole asks over third-party servers, beside a simulated one and one that fails."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from focalroute import Answer, AsyncEnsemble, Endpoint, Ensemble
from focalroute.sim import SimulatedModel, SimulatedPool, stream
from tests.policies import ask_all
from tests.real.servers import Server

pytestmark = pytest.mark.real

QUESTION, CHOICES = "What is 17 + 25?", ["32", "42", "44"]


def refused() -> Endpoint:
    """An endpoint where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return Endpoint("fails", base_url=f"http://127.0.0.1:{port}/v1", model="none")


def check(answer: Answer) -> None:
    """One fused answer, and three replies: two usable ones and a typed failure."""
    replies = {reply.endpoint: reply for reply in answer.replies}
    assert set(replies) == {"simulated", "llama.cpp", "fails"}
    assert replies["simulated"].ok
    assert replies["llama.cpp"].ok
    assert replies["llama.cpp"].method == "logprobs"
    assert replies["fails"].error is not None
    assert replies["fails"].error.kind == "connection"
    assert answer.text in CHOICES
    assert sum(answer.probabilities) == pytest.approx(1)
    assert any("fails" in note for note in answer.degraded)


def test_three_real_endpoints_answer_one_ask_sync_and_async(
    llama_server: Callable[[int], Server], tmp_path: Path
) -> None:
    """A simulated one, llama.cpp's own server and one that refuses connections."""
    server = llama_server(0)
    llama = Endpoint("llama.cpp", base_url=server.base_url, model=server.model, dialect="llamacpp")
    policy = ask_all(tmp_path / "policy")

    async def ask_async(endpoints: list[Endpoint]) -> Answer:
        async with AsyncEnsemble(endpoints, policy=policy, attempts=1, explore=False) as ensemble:
            return await ensemble.ask(QUESTION, choices=CHOICES)

    with SimulatedPool([SimulatedModel("simulated")]) as pool:
        endpoints = [*pool.endpoints, llama, refused()]
        with Ensemble(endpoints, policy=policy, attempts=1, explore=False) as ensemble:
            check(ensemble.ask(QUESTION, choices=CHOICES))
        check(asyncio.run(ask_async(endpoints)))


def test_three_llama_servers_make_a_pool_that_learns(llama_server: Callable[[int], Server]) -> None:
    servers = [llama_server(seed) for seed in range(3)]
    endpoints = [
        Endpoint(f"llama-{i}", base_url=s.base_url, model=s.model, dialect="llamacpp") for i, s in enumerate(servers)
    ]
    with Ensemble(endpoints, seed=0) as ensemble:
        for question in stream(20, seed=1):
            answer = ensemble.ask(question.text, choices=question.choices)
            ensemble.feedback(answer, label_index=question.label)
        assert sum(endpoint.seen for endpoint in ensemble.stats().endpoints.values()) >= 20
