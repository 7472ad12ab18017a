"""What a caller sends is bounded in time, memory and money, with errors that name the field."""

from __future__ import annotations

import asyncio
import tracemalloc
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from focalroute import (
    AsyncEnsemble,
    Budget,
    ConfigError,
    Endpoint,
    Ensemble,
    EnsembleClosed,
    FocalrouteError,
    PoolError,
)
from focalroute.core.config import MOST_CHOICES
from focalroute.endpoints.paid_call import upper_bound
from focalroute.endpoints.wire import Request
from focalroute.serving.query import make_query
from focalroute.sim import SimulatedPool
from tests.paired import assert_cpu_at_most

PRICED = Endpoint("a", model="m", base_url="http://127.0.0.1:9/v1", input_usd_per_1m=1, output_usd_per_1m=1)


def test_many_choices_are_checked_in_linear_time() -> None:
    """They were compared pair by pair: 20,000 took 18 seconds of the event loop."""

    def check() -> None:
        with pytest.raises(ConfigError, match=f"at most {MOST_CHOICES}"):
            make_query("?", choices=[str(n) for n in range(200_000)])
        make_query("?", choices=[str(n) for n in range(MOST_CHOICES)])

    assert_cpu_at_most(10, check)


def test_an_integer_that_python_does_not_print_is_refused_as_a_choice() -> None:
    with pytest.raises(ConfigError, match="choices: a number is too long; give it as text"):
        make_query("?", choices=[10**5000, 1])


def test_a_long_text_is_not_taken_apart() -> None:
    """A tuple was made of its characters: 128 MB, and a tenth of a second of the event loop."""
    text = "a" * 2**24
    tracemalloc.start()
    make_query(text)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**22


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "n"])
@pytest.mark.parametrize("count", [-1, 0, -1000, True, 1.5, "5", None, 10**9])
def test_counts_of_tokens_and_replies_are_whole_and_positive(name: str, count: Any) -> None:
    """A negative count reserved less than nothing, so that no limit held."""
    with pytest.raises(ConfigError, match=f"params: {name}: give a whole number"):
        make_query("?", params={name: count})


def repr_or_huge(amount: Any) -> str:
    return "huge" if isinstance(amount, int) else repr(amount)[:20]


@pytest.mark.parametrize(
    "amount",
    ["1e-400000000", "1e3000000", "1e400", "1_000", "9" * 65, 10**5000, Decimal("1e-25"), "nan"],
    ids=repr_or_huge,
)
def test_an_amount_of_a_size_that_no_money_has_is_refused(amount: Any) -> None:
    """It made answers of 400 MB, and an untyped overflow."""
    with pytest.raises(ConfigError, match="usd_total") as refused:
        Budget(usd_total=amount)
    assert len(str(refused.value)) < 300


def part(**fields: Any) -> tuple[dict[str, Any], ...]:
    return ({"role": "user", "content": [{"type": "text", "text": "?"}, fields]},)


@pytest.mark.parametrize(
    "messages",
    [
        part(type="file", file={"file_data": "x" * 400}),
        part(type="file", file={"file_data": "x" * 400}, text=""),
        part(type="video_url", video_url={"url": "https://example.com/v"}),
        part(type="input_audio", input_audio={"data": "https://example.com/a.wav", "format": "wav"}),
        part(type="new", text="?"),
    ],
)
def test_content_that_nothing_bounds_has_no_upper_bound(messages: tuple[dict[str, Any], ...]) -> None:
    """A file beside an empty text counted nothing, and billed 30 times its key's limit."""
    assert upper_bound(Request(messages, 8), PRICED) is None


def test_audio_counts_each_byte_and_an_image_the_most_any_service_bills() -> None:
    plain = upper_bound(Request(part(type="text", text=""), 8), PRICED)
    audio = upper_bound(Request(part(type="input_audio", input_audio={"data": "x" * 5000}), 8), PRICED)
    image = upper_bound(Request(part(type="image_url", image_url={"url": "data:,"}), 8), PRICED)
    assert plain is not None
    assert audio is not None
    assert image is not None
    assert audio - plain > Decimal(5000) / 1_000_000
    assert image - plain > Decimal(48_169) / 1_000_000


UNBOUNDED = [
    {"tools": [{"type": "web_search_preview"}]},
    {"web_search_options": {}},
    {"plugins": [{"id": "web"}]},
    {"modalities": ["text", "audio"]},
    {"service_tier": "priority"},
    {"search_parameters": {"mode": "on"}},  # xAI's, billed by the source
    {"models": ["a-dear-one"]},  # OpenRouter's, asked in the place of the model
    {"best_of": 20},
]


@pytest.mark.parametrize("params", UNBOUNDED, ids=str)
def test_under_a_limit_what_nothing_bounds_is_refused_before_anything_is_paid(
    params: dict[str, Any], simulated_pool: SimulatedPool
) -> None:
    async def ask() -> None:
        async with AsyncEnsemble(simulated_pool.endpoints, budget=Budget(usd_total=1)) as ensemble:
            with pytest.raises(ConfigError, match=f"params: {next(iter(params))}: nothing bounds"):
                await ensemble.ask("What is 1 + 1?", params=params)

    asyncio.run(ask())
    assert sum(stats.calls for stats in simulated_pool.stats().values()) == 0


def test_a_parameter_that_an_endpoint_has_may_be_given_to_an_ask(simulated_pool: SimulatedPool) -> None:
    """It is the operator's word that it costs nothing."""
    endpoints = [replace(endpoint, params={"safe_prompt": False}) for endpoint in simulated_pool.endpoints]

    async def ask() -> None:
        async with AsyncEnsemble(endpoints, budget=Budget(usd_total=1)) as ensemble:
            with pytest.raises(PoolError, match="safe_prompt"):  # it was sent: the service is one without it
                await ensemble.ask("What is 1 + 1?", extra_body={"safe_prompt": True})
            with pytest.raises(ConfigError, match="params: other: nothing bounds"):
                await ensemble.ask("What is 1 + 1?", extra_body={"other": True})

    asyncio.run(ask())


def test_parameters_nested_too_deep_to_be_sent_are_refused(simulated_pool: SimulatedPool) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]

    async def ask() -> None:
        async with AsyncEnsemble(simulated_pool.endpoints) as ensemble:
            with pytest.raises(ConfigError, match="params: logit_bias: cannot be sent as JSON"):
                await ensemble.ask("What is 1 + 1?", params={"logit_bias": deep})
            with pytest.raises(ConfigError, match="query: cannot be sent as JSON"):
                await ensemble.ask([{"role": "user", "content": "What is 1 + 1?", "name": deep}])

    asyncio.run(ask())


def test_a_closed_ensemble_is_an_error_of_the_tree(simulated_pool: SimulatedPool) -> None:
    async def ask() -> None:
        ensemble = AsyncEnsemble(simulated_pool.endpoints)
        await ensemble.aclose()
        with pytest.raises(EnsembleClosed) as closed:
            await ensemble.ask("What is 1 + 1?")
        assert isinstance(closed.value, FocalrouteError)
        assert isinstance(closed.value, RuntimeError)
        for after in (lambda: ensemble.feedback("id", reward=1), ensemble.reload, ensemble.update, ensemble.__aenter__):
            with pytest.raises(EnsembleClosed):
                await after()
        with pytest.raises(EnsembleClosed):
            ensemble.limit_tags({"a": 1})

    asyncio.run(ask())
    with Ensemble(simulated_pool.endpoints) as ensemble:
        pass
    with pytest.raises(EnsembleClosed):
        ensemble.__enter__()


def test_other_event_loops_than_asyncio_s_are_an_error_of_the_tree(simulated_pool: SimulatedPool) -> None:
    """As trio's, in which no loop of asyncio runs."""
    ensemble = AsyncEnsemble(simulated_pool.endpoints)
    streamed = ensemble.stream("What is 1 + 1?").__anext__()
    for first in (ensemble.ask("What is 1 + 1?"), streamed, ensemble.__aenter__(), ensemble.aclose()):
        with pytest.raises(ConfigError, match="runs on asyncio; under trio use Ensemble"):
            first.send(None)
    asyncio.run(ensemble.aclose())


def test_callers_with_short_deadlines_do_not_shut_an_endpoint_for_others(simulated_pool: SimulatedPool) -> None:
    """Twelve of them ejected healthy endpoints."""

    async def ask() -> None:
        for name in simulated_pool.stats():
            simulated_pool.set(name, latency_s=0.5)
        async with AsyncEnsemble(simulated_pool.endpoints, seed=0) as ensemble:
            for _ in range(12):
                with pytest.raises(TimeoutError):
                    await ensemble.ask("What is 1 + 1?", choices=["1", "2"], deadline_s=0.05)
            health = [endpoint.health.breaker for endpoint in ensemble.stats().endpoints.values()]
            assert set(health) == {"closed"}

    asyncio.run(ask())
