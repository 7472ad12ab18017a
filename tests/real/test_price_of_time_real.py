"""The price of time beside three real servers of different speed on this machine, with the shipped policy."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from focalroute import Answer, Endpoint, Ensemble
from tests.real import servers
from tests.real.servers import Server

pytestmark = pytest.mark.real

_DEEP = 48  # blocks, where the quick model has two
_ASKS = 8


@pytest.fixture
def deep_server(llama_server: Callable[[int], Server], tmp_path: Path) -> Iterator[Server]:
    """A llama-server with a model of many layers; asked for after one that skips where there is none."""
    llama_server(0)
    with servers.llama_server(tmp_path, 1, blocks=_DEEP) as server:
        yield server


def length_is_even(text: str) -> str:
    """A normal form by which replies of models that speak no sense can agree."""
    return "even" if len(text) % 2 == 0 else "odd"


def asked(quick: Server, deep: Server, vllm: Server) -> tuple[list[Answer], list[Answer]]:
    """Answers while time is free, and then at a cent a second, which is far more than a right answer is worth here."""
    price: dict[str, Any] = {"input_usd_per_1m": 0.1, "output_usd_per_1m": 0.1}
    endpoints = [
        Endpoint("llama-quick", base_url=quick.base_url, model=quick.model, dialect="llamacpp", **price),
        Endpoint("llama-deep", base_url=deep.base_url, model=deep.model, dialect="llamacpp", **price),
        Endpoint("vllm", base_url=vllm.base_url, model=vllm.model, dialect="vllm", **price),
    ]
    with Ensemble(endpoints, explore=False, cost_weight=0.003, seed=0) as ensemble:
        questions = [f"Which planet has {moons} moons?" for moons in range(_ASKS)]
        free = [ensemble.ask(question, answer=length_is_even, max_tokens=64) for question in questions]
        dear = [
            ensemble.ask(question, answer=length_is_even, max_tokens=64, usd_per_second=0.01) for question in questions
        ]
    return free, dear


def test_the_price_of_time_moves_the_choice(
    llama_server: Callable[[int], Server], deep_server: Server, vllm_server: Server
) -> None:
    free, dear = asked(llama_server(0), deep_server, vllm_server)
    seconds: dict[str, list[float]] = {}
    for answer in free:
        for call in answer.receipt.calls:
            if call.error is None:
                seconds.setdefault(call.endpoint, []).append(call.latency_s)
    usual = {name: statistics.median(took) for name, took in seconds.items()}
    assert len(usual) > 1
    assert min(usual, key=usual.__getitem__) == "llama-quick"
    calls = [sum(len(answer.receipt.calls) for answer in answers) for answers in (free, dear)]
    assert calls[1] < calls[0]  # who is asked alone depends on whose nonsense agreed before
    times = [statistics.median(answer.latency_s for answer in answers) for answers in (free, dear)]
    assert times[1] < times[0]
    for answer in (*free, *dear):
        told = [event.what for event in answer.receipt.timeline]
        assert told[0] == "queued"
        assert told[-1] == "fused"
