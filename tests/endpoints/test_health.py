"""Endpoints that go out of use and come back, over real HTTP and a real store shared by processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from focalroute import Answer, AsyncEnsemble, Budget, Endpoint, Ensemble
from focalroute.endpoints.pool import health_key
from focalroute.store import open_store
from focalroute.store.base import HealthRow
from tests.loopback import Server, completion, json_reply, serving, until
from tests.policies import ask_the_cheapest


class Service:
    """Answers, but for the calls of a model that is down."""

    def __init__(self) -> None:
        self.down: set[str] = set()
        self.calls: dict[str, int] = {}
        self.slow_probes = False
        self.status, self.error = 503, "busy"

    async def handle(self, _: web.Request, body: Any) -> web.StreamResponse:
        name = body["model"]
        self.calls[name] = self.calls.get(name, 0) + 1
        if self.slow_probes and body["messages"][0]["content"] != "?":
            await asyncio.sleep(60)
        if name in self.down:
            return json_reply({"error": {"message": self.error}}, self.status)
        return json_reply(completion("42"))


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def server(service: Service) -> Iterator[Server]:
    with serving(service.handle) as running:
        yield running


@pytest.fixture
def settings(server: Server, tmp_path: Path) -> dict[str, Any]:
    """Two endpoints of which the policy asks the first; one call to a member."""
    pool = [
        Endpoint(name, base_url=server.url, model=name, input_usd_per_1m=1 + i, output_usd_per_1m=1 + i)
        for i, name in enumerate(("first", "second"))
    ]
    return {
        "endpoints": pool, "policy": ask_the_cheapest(tmp_path / "policy"), "store": tmp_path / "s.db",
        "explore": False, "attempts": 1, "learn_from_agreement": False,
    }  # fmt: skip


def ask(ensemble: Ensemble, times: int = 1) -> list[Answer]:
    return [ensemble.ask("?", answer="number") for _ in range(times)]


def asked(answer: Answer) -> list[str]:
    return [call.endpoint for call in answer.receipt.calls]


def breaker(ensemble: Ensemble) -> str:
    return ensemble.stats().endpoints["first"].breaker


def test_an_endpoint_that_fails_is_out_and_comes_back_by_a_probe_in_the_background(
    service: Service, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The probe is on the ledger, and on no receipt."""
    monkeypatch.setattr("focalroute.endpoints.breaker._FIRST_S", 60.0)
    with Ensemble(**settings, budget=Budget(usd_total=1)) as ensemble:
        service.down.add("first")
        during = ask(ensemble, 7)
        assert [asked(answer) for answer in during] == [["first", "second"]] * 5 + [["second"]] * 2
        assert during[-1].degraded == ("breaker open: first could not be asked",)
        assert service.calls["first"] == 5
        health = ensemble.stats().endpoints["first"].health
        assert (health.breaker, health.ejections) == ("open", 1)
        assert 0 < health.probe_in_s <= 60
        service.down.clear()
        ensemble._async._pool._breakers.clock = lambda: time.monotonic() + 60
        assert breaker(ensemble) == "half-open"
        assert asked(ask(ensemble)[0]) == ["second"]  # this one only starts the probe
        until(lambda: breaker(ensemble) == "closed")
        assert service.calls["first"] == 6
        assert ensemble.stats().endpoints["first"].calls == 6
        after = ask(ensemble)[0]
    assert asked(after) == ["first"]
    assert after.degraded == ()


@pytest.mark.parametrize("own", [True, False])
def test_an_endpoint_comes_back_where_the_event_loop_runs_during_asks_alone(
    own: bool, service: Service, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No probe is answered before its loop ends, or within its time limit, so an ask finds out."""
    monkeypatch.setattr("focalroute.endpoints.breaker._FIRST_S", 60.0)
    monkeypatch.setattr("focalroute.endpoints.capabilities.TRIAL_TIMEOUT_S", 0.1)
    service.slow_probes = True
    ensemble = AsyncEnsemble(**settings)
    loop = asyncio.new_event_loop()
    run = asyncio.run if own else loop.run_until_complete

    def ask() -> list[str]:
        return asked(run(ensemble.ask("?", answer="number")))

    service.down.add("first")
    assert [ask() for _ in range(6)][-2:] == [["first", "second"], ["second"]]
    service.down.clear()
    ensemble._pool._breakers.clock = lambda: time.monotonic() + 60
    assert ask() == ["second"]
    if not own:
        time.sleep(1.2)
        ask()
    assert ask() == ["first"]
    run(ensemble.aclose())
    loop.close()


def test_prompts_that_a_filter_withholds_do_not_put_an_endpoint_out(service: Service, settings: dict[str, Any]) -> None:
    """OpenRouter refuses them with the status that a wrong key has; one caller could put it out for all."""
    service.status, service.error = 403, "Your input was flagged by moderation"
    with Ensemble(**settings) as ensemble:
        service.down.add("first")
        assert [asked(answer) for answer in ask(ensemble, 7)] == [["first", "second"]] * 7
        service.error = "Access denied"
        ask(ensemble, 5)
        assert breaker(ensemble) == "open"


def test_a_probe_keeps_to_the_rate_limit(
    service: Service, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("focalroute.endpoints.breaker._FIRST_S", 60.0)
    first, second = settings["endpoints"]
    settings["endpoints"] = [replace(first, requests_per_minute=5), second]
    with Ensemble(**settings) as ensemble:
        service.down.add("first")
        ask(ensemble, 5)
        ensemble._async._pool._breakers.clock = lambda: time.monotonic() + 60
        assert breaker(ensemble) == "half-open"
        ask(ensemble, 2)
        member = ensemble._async._pool._members[0]
        assert not member._trials
        member.throttle._rates["requests"].most = 7
        ask(ensemble)
        until(lambda: service.calls["first"] == 6)
        assert member.throttle._rates["requests"]._total == 6


def test_every_process_on_the_store_knows_which_endpoints_are_out_and_back(
    service: Service, settings: dict[str, Any]
) -> None:
    with Ensemble(**settings) as one, Ensemble(**settings) as other:
        service.down.add("first")
        ask(one, 5)
        until(lambda: asked(ask(other)[0]) == ["second"])
        assert breaker(other) != "closed"
        with Ensemble(**settings) as later:
            assert asked(ask(later)[0]) == ["second"]
        service.down.clear()
        until(lambda: breaker(one) != "open")
        ask(one)
        until(lambda: breaker(one) == "closed")
        calls = service.calls["first"]
        until(lambda: asked(ask(other)[0]) == ["first"])
        assert service.calls["first"] <= calls + 2  # at most a probe of its own, and the ask


def test_an_endpoint_that_is_out_does_not_put_another_with_its_model_out(settings: dict[str, Any]) -> None:
    """Its key may be the reason."""
    first, second = settings["endpoints"]
    settings["endpoints"] = [first, replace(first, name="other key", api_key="k"), second]
    with Ensemble(**settings) as ensemble:
        pool, breakers = ensemble._async._pool, ensemble._async._pool._breakers.all
        breakers[0]._open()
        pool._on_health(pool._store.health())
        assert [one.state for one in breakers] == ["open", "closed", "closed"]


def test_a_state_from_a_clock_far_ahead_is_not_taken_over(settings: dict[str, Any]) -> None:
    """It would be the newest until then, and keep the endpoint out."""
    ahead = time.time() + 3600
    with closing(open_store(settings["store"])) as store:
        store.write(HealthRow(health_key(settings["endpoints"][0]), ahead + 30, 1, ahead)).result(10)
    with Ensemble(**settings) as ensemble:
        assert asked(ask(ensemble)[0]) == ["first"]


def test_the_last_endpoint_is_never_out(service: Service, settings: dict[str, Any]) -> None:
    service.down |= {"first", "second"}
    with Ensemble(**settings) as ensemble:
        for _ in range(12):
            with pytest.raises(Exception, match="HTTP 503"):
                ask(ensemble)
        states = [one.breaker for one in ensemble.stats().endpoints.values()]
        assert [state == "closed" for state in sorted(states)] == [True, False]
        service.down.clear()
        assert ask(ensemble)[0].value == 42
