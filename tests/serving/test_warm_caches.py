"""A cached prompt is expected to cost less, over real HTTP, but is reserved at the full price."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from focalroute import Budget, BudgetExceeded, Endpoint, Ensemble
from focalroute.core.records import Query, Reply, Usage
from focalroute.observe import warm_caches
from focalroute.observe.warm_caches import WarmCaches
from tests.loopback import Server, completion, json_reply, serving

RULES, OTHERS = "Our rules: " + "be kind. " * 200, "Other rules: " + "be brief. " * 200


@pytest.fixture
def server() -> Iterator[Server]:
    """The dearer model has the first rules in its cache. The cheaper one has nothing there, and fails at first."""
    failing = ["once"]

    async def say(request: web.Request, body: Any) -> web.StreamResponse:
        if body["model"] == "cheap" and failing:
            return json_reply({"error": {"message": "overloaded"}}, 503 if failing.pop() else 0)
        warm = body["model"] == "dear" and body["messages"][0]["content"] == RULES
        details = {"cached_tokens": 900 if warm else 0}
        usage = {"prompt_tokens": 1000, "completion_tokens": 5, "prompt_tokens_details": details}
        return json_reply(completion("4", usage=usage))

    with serving(say) as server:
        yield server


def pool(server: Server) -> list[Endpoint]:
    return [
        Endpoint(
            name, model=name, base_url=server.url, input_usd_per_1m=usd, output_usd_per_1m=usd,
            cached_input_usd_per_1m=usd / 10, logprobs=False, n=False, structured_choice=False,
        )
        for name, usd in (("cheap", Decimal(1)), ("dear", Decimal("1.5")))
    ]  # fmt: skip


@pytest.mark.parametrize("settings", [{"cost_weight": 10_000}, {"policy": "cascade"}], ids=str)
def test_an_endpoint_whose_cache_is_warm_counts_as_cheaper_for_what_is_in_it(
    server: Server, settings: dict[str, Any]
) -> None:
    """The Decider at the highest cost weight, and the cascade, begin with the cheapest."""
    with Ensemble(pool(server), attempts=1, **settings) as ensemble:

        def first_asked(system: str) -> str:
            answer = ensemble.ask("What is 2 + 2?", system=system, answer="number")
            return answer.receipt.calls[0].endpoint

        assert first_asked(RULES) == "cheap"  # it fails, so the other one is asked, and its cache seen
        assert first_asked(RULES) == "dear"  # 900 of 1000 tokens for a tenth
        assert first_asked(OTHERS) == "cheap"
        assert first_asked(OTHERS) == "cheap"
        assert first_asked(RULES) == "dear"


def test_a_call_is_reserved_in_full_however_warm_the_cache(server: Server) -> None:
    with Ensemble(pool(server)[1:], budget=Budget(usd_total=1)) as ensemble:
        answer = ensemble.ask("What is 2 + 2?", system=RULES, answer="number")
        assert answer.cost == (100 + 900 / Decimal(10) + 5) * Decimal("1.5") / 1_000_000
        with pytest.raises(BudgetExceeded):  # it would be enough for what such a call cost just now
            ensemble.ask("What is 2 + 2?", system=RULES, answer="number", max_usd=2 * answer.cost)


def made_pool() -> list[Endpoint]:
    price = {"input_usd_per_1m": 1, "output_usd_per_1m": 1, "cached_input_usd_per_1m": 0}
    return [Endpoint(name, model="m", base_url="http://localhost:1/v1", **price) for name in "ab"]  # type: ignore[arg-type]


def query(*said: str, system: str = "", **params: Any) -> Query:
    roles = ["user", "assistant"] * len(said)
    messages = [{"role": role, "content": text} for role, text in zip(roles, said, strict=False)]
    return Query("q", tuple([{"role": "system", "content": system}] * bool(system) + messages), params=params)


def reply(endpoint: str, cached: int) -> Reply:
    return Reply(endpoint, usage=Usage(100, 0, cached))


def factors(caches: WarmCaches, query: Query) -> list[float]:
    found = caches.factors(query)
    return [1.0, 1.0] if found is None else found.tolist()


def test_a_conversation_is_known_by_its_first_question_and_a_new_one_by_its_rules() -> None:
    caches = WarmCaches(made_pool())
    caches.learn(query("first", system="rules"), [reply("a", 20)])
    caches.learn(query("first", "yes", "more", system="rules"), [reply("a", 80)])
    usual = (5 + 0.8 + 0.2) / 7  # of the full price, with five calls supposed to be cold
    going_on, new, other = (
        factors(caches, one)
        for one in (query("first", system="rules"), query("new", system="rules"), query("new", system="others"))
    )
    assert going_on == pytest.approx([0.2 / usual, 1], rel=0.02)
    assert new == pytest.approx([0.8 / usual, 1], rel=0.02)
    assert other == pytest.approx([1 / usual, 1], rel=0.02)


def test_a_cache_key_stands_for_the_rules() -> None:
    caches = WarmCaches(made_pool())
    caches.learn(query("first", prompt_cache_key="ann"), [reply("b", 90)])
    usual = 5.1 / 6
    assert factors(caches, query("new", prompt_cache_key="ann")) == pytest.approx([1, 0.1 / usual], rel=0.02)
    assert factors(caches, query("new", prompt_cache_key="bob")) == pytest.approx([1, 1 / usual], rel=0.02)


def test_if_caches_are_always_equally_warm_nothing_is_scaled() -> None:
    caches = WarmCaches(made_pool())
    for number in range(2000):
        caches.learn(query(str(number)), [reply("a", 50)])
    assert caches.factors(query("first")) is None


def test_warm_prompts_are_forgotten_in_time_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    caches = WarmCaches(made_pool())
    caches.learn(query("first"), [reply("a", 50)])
    assert factors(caches, query("first"))[0] < 1
    now = time.monotonic()
    monkeypatch.setattr(warm_caches, "time", SimpleNamespace(monotonic=lambda: now + 301))  # its clock alone
    assert factors(caches, query("first"))[0] > 1
    for number in range(5000):
        caches.learn(query(str(number)), [reply("a", 50)])
    assert len(caches._beginnings) == 4096


def test_nothing_is_kept_of_a_pool_without_a_price_for_cached_tokens() -> None:
    caches = WarmCaches([replace(one, cached_input_usd_per_1m=None) for one in made_pool()])
    caches.learn(query("first"), [reply("a", 50)])
    assert caches.factors(query("first")) is None
    assert not caches._beginnings
