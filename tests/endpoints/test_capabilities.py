"""What an endpoint can do: probed in few calls over real HTTP, failing closed, overridden by the pool file."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import web

from focalroute import AsyncEnsemble, Budget, Ensemble
from focalroute.core.config import Endpoint
from focalroute.core.errors import CallFailed, PoolError
from focalroute.core.records import Failure, Usage
from focalroute.endpoints import capabilities
from focalroute.endpoints.capabilities import NONE, Capabilities, CapabilityCheck
from focalroute.endpoints.client import EndpointClient, HttpSessions
from focalroute.sim import SimulatedPool
from focalroute.sim.process import DialectName
from tests.loopback import Received, Server, completion, json_reply, serving, sse, until, until_checked
from tests.paired import assert_measured_at_most, cpu_s
from tests.sim.reasoning import Thinker

ALL = Capabilities(logprobs=True, top_logprobs=20, n=True, structured_choice=True, stream_usage=True)
USAGE = {"prompt_tokens": 10, "completion_tokens": 2}


class Service:
    """A service that does what ``able`` says and answers ``refusal`` to fields it does not take.

    Args:
        able: what it does.
        refusal: status for what it does not; None: silently ignored.
        most_top: alternatives above which it refuses.
        reports: whether plain replies carry usage.
    """

    def __init__(
        self, able: Capabilities, refusal: int | None = None, most_top: int = 20, *, reports: bool = True
    ) -> None:
        self.able, self.refusal, self.most_top, self.reports = able, refusal, most_top, reports

    async def __call__(self, request: web.Request, body: Any) -> web.StreamResponse:
        if self.refusal and self.refuses(body):
            return json_reply({"error": {"type": "bad"}}, self.refusal)
        if body.get("stream"):
            events: list[Any] = [{"choices": [{"index": 0, "delta": {"content": "B"}, "finish_reason": "stop"}]}]
            events += [{"choices": [], "usage": USAGE}] if self.able.stream_usage else []
            return await sse(request, *events, "[DONE]")
        choices = [self.choice(i, body) for i in range(body.get("n", 1) if self.able.n else 1)]
        return json_reply(completion(choices=choices, usage=USAGE if self.reports else None))

    def refuses(self, body: Any) -> bool:
        able = self.able
        return (
            ("n" in body and not able.n)
            or ("logprobs" in body and not able.logprobs)
            or body.get("top_logprobs", 0) > self.most_top
            or ("response_format" in body and not able.structured_choice)
            or ("stream_options" in body and not able.stream_usage)
        )

    def choice(self, index: int, body: Any) -> dict[str, Any]:
        held = "response_format" in body and self.able.structured_choice
        text = "B"
        if held:
            wanted = body["response_format"]["json_schema"]["schema"]["properties"]["answer"]["enum"]
            text = json.dumps({"answer": wanted[0]})
        choice: dict[str, Any] = {"index": index, "message": {"content": text}, "finish_reason": "stop"}
        if body.get("logprobs") and self.able.logprobs:
            top = min(self.able.top_logprobs, body.get("top_logprobs", 0))
            tops = [{"token": str(i) if i else text, "logprob": -0.5 - 4 * i} for i in range(top)]
            choice["logprobs"] = {"content": [{"token": text, "logprob": -0.5, "top_logprobs": tops}]}
        return choice


def probe(server: Server) -> tuple[Capabilities, Usage | None]:
    async def run() -> tuple[Capabilities, Usage | None]:
        sessions = HttpSessions()
        try:
            check = CapabilityCheck(EndpointClient(Endpoint("e", model="m", base_url=server.url), sessions))
            return await check.run(), check.usage
        finally:
            await sessions.aclose()

    return asyncio.run(run())


def test_a_service_that_takes_everything_is_known_after_two_calls() -> None:
    """One plain, one streamed; their usage added up."""
    with serving(Service(ALL)) as server:
        assert probe(server) == (ALL, Usage(20, 4))
        assert len(server.received) == 2
        assert all(received.body["max_tokens"] <= 48 for received in server.received)


def test_a_silently_ignored_feature_counts_as_missing() -> None:
    """A 200 alone proves nothing: no logprobs, one sample, an answer outside the set, no usage in the stream."""
    with serving(Service(NONE)) as server:
        assert probe(server) == (NONE, None)
        assert len(server.received) == 2


@pytest.mark.parametrize("missing", ["n", "logprobs", "structured_choice", "stream_usage"])
@pytest.mark.parametrize("refusal", [400, 422, 500])
def test_one_refused_feature_does_not_hide_the_others(missing: str, refusal: int) -> None:
    """The parts are tried one by one, whether the refusal is polite or a breakdown."""
    able = Capabilities.from_dict(
        {**ALL.to_dict(), missing: False} | ({"top_logprobs": 0} if missing == "logprobs" else {})
    )
    with serving(Service(able, refusal)) as server:
        assert probe(server)[0] == able
        assert len(server.received) <= 7


def test_a_service_that_refuses_everything_can_do_nothing_but_answer() -> None:
    """A plain call tells this from a service that is down."""
    with serving(Service(NONE, 400)) as server:
        assert probe(server)[0] == NONE


def test_fewer_alternatives_are_found_where_twenty_are_refused() -> None:
    """A stricter service is asked again for five."""
    with serving(Service(ALL, 400, most_top=5)) as server:
        assert probe(server)[0].top_logprobs == 5


def test_log_probabilities_of_the_sampled_token_alone_are_told_apart() -> None:
    """No alternatives, or only the token itself."""
    for top in (0, 1):
        able = Capabilities(logprobs=True, top_logprobs=top, n=True, structured_choice=True, stream_usage=True)
        with serving(Service(able)) as server:
            found = probe(server)[0]
        assert (found.logprobs, found.top_logprobs) == (True, 0)


def test_usage_that_did_not_come_leaves_the_probe_s_cost_unknown() -> None:
    """Unknown is not zero."""
    with serving(Service(ALL, reports=False)) as server:
        assert probe(server) == (ALL, None)


def test_a_failed_call_that_may_have_been_billed_counts_as_the_most_it_allows() -> None:
    """A service that answers a stream with one plain reply has generated it all the same."""

    async def plain(_: web.Request, body: Any) -> web.StreamResponse:
        return json_reply({"answer": "B"}) if body.get("stream") else json_reply(completion(usage=USAGE))

    with serving(plain) as server:
        able, usage = probe(server)
    assert not able.stream_usage
    assert usage is not None
    assert usage.completion_tokens == USAGE["completion_tokens"] + 48
    assert usage.prompt_tokens > USAGE["prompt_tokens"] + 100


@pytest.mark.parametrize("status", [401, 402, 403, 404, 429, 500, 503])
def test_a_service_that_is_down_teaches_nothing(status: int) -> None:
    """An outage is an error, so that nothing of it is kept."""

    async def down(_: web.Request, __: Any) -> web.StreamResponse:
        return json_reply({}, status)

    with serving(down) as server, pytest.raises(CallFailed) as caught:
        probe(server)
    assert caught.value.failure.status == status


def test_a_service_that_goes_down_midway_teaches_nothing() -> None:
    """Half a probe is not kept as a whole one."""

    async def tires(_: web.Request, body: Any) -> web.StreamResponse:
        return json_reply({}, 503) if body.get("stream") else json_reply(completion())

    with serving(tires) as server, pytest.raises(CallFailed) as caught:
        probe(server)
    assert caught.value.usage is not None, "the calls that got through are paid for, and what broke down may be"
    assert caught.value.usage.completion_tokens > 48


def test_a_check_that_is_refused_after_calls_of_unknown_usage_is_not_free() -> None:
    """Only the last call is."""

    async def tires(_: web.Request, body: Any) -> web.StreamResponse:
        return json_reply({}, 429) if body.get("stream") else json_reply(completion(usage=None))

    with serving(tires) as server, pytest.raises(CallFailed) as caught:
        probe(server)
    assert (caught.value.usage, caught.value.free) == (None, False)
    assert CallFailed(Failure("limited", "it was never called")).free


def test_a_fully_declared_endpoint_needs_no_probe_and_a_partly_declared_one_overrides_it() -> None:
    """The pool file has the last word on what it says."""
    partly = Endpoint("e", model="m", base_url="http://h/v1", n=False, top_logprobs=5)
    assert capabilities.declared(partly) is None
    assert capabilities.override(partly, ALL) == Capabilities(True, 5, False, True, True)
    fully = Endpoint("e", model="m", logprobs=True, top_logprobs=20, n=True, structured_choice=True, stream_usage=True)
    assert capabilities.declared(fully) == ALL


def test_capabilities_go_to_plain_values_and_back_and_fail_closed() -> None:
    """What an older store does not say is not there."""
    assert Capabilities.from_dict(json.loads(json.dumps(ALL.to_dict()))) == ALL
    assert Capabilities.from_dict({}) == NONE


def test_the_key_names_service_model_and_dialect_and_no_secret() -> None:
    """Two models, services or dialects never share a probe; a ready client's key stays with it."""
    plain = Endpoint("e", model="m", base_url="http://h/v1", api_key_env="SOME_KEY")
    assert capabilities.key(plain) == "http://h/v1 m openai"
    client = openai.AsyncOpenAI(api_key="sk-secret", base_url="http://h/v1")
    assert capabilities.key(Endpoint("e", model="m", client=client, dialect="vllm")) == "http://h/v1 m vllm"
    asyncio.run(client.close())


# -- beside the first ask ----------------------------------------------------------------------------------------------


def asks(received: list[Received]) -> list[Any]:
    """The bodies of the calls that ask the user's question."""
    return [one.body for one in received if "Which planet" in str(one.body["messages"])]


@pytest.mark.parametrize("refusal", [None, 400])
def test_features_that_are_only_assumed_cost_no_answer(refusal: int | None, tmp_path: Path) -> None:
    """The first closed question asks for all. Refused, it is put plainly; ignored, the text counts."""
    with (
        serving(Service(NONE, refusal)) as server,
        Ensemble([Endpoint("e", model="m", base_url=server.url)], store=tmp_path / "s.db") as ensemble,
    ):
        answer = ensemble.ask("Which planet?", choices=["Mars", "Saturn"])
        assert (answer.text, answer.replies[0].method) == ("Saturn", "parsed")
        assert answer.degraded == ()
        first, *plain = asks(server.received)
        assert (first["top_logprobs"], "response_format" in first, len(plain)) == (
            20,
            True,
            0 if refusal is None else 1,
        )
        assert not any("logprobs" in body or "response_format" in body for body in plain)
        known = ensemble._async._pool._members[0]
        until(lambda: known._capabilities == NONE)
        ensemble.ask("Which planet?", choices=["Mars", "Saturn"])
        assert "logprobs" not in asks(server.received)[-1]


def test_a_budget_bounds_the_call_that_follows_a_refused_schema_too() -> None:
    async def handle(_: web.Request, body: Any) -> web.StreamResponse:
        if "response_format" in body:
            return json_reply({"error": {"type": "bad"}}, 400)
        choice = {"index": 0, "message": {"content": '{"x": 3}'}, "finish_reason": "stop"}
        return json_reply(completion(choices=[choice], usage=USAGE))

    with serving(handle) as server:
        paid = Endpoint("e", model="m", base_url=server.url, input_usd_per_1m=1, output_usd_per_1m=1)
        with Ensemble([paid], budget=Budget(usd_total=1)) as ensemble:
            assert ensemble.ask("Which planet?", answer=dict[str, int]).value == {"x": 3}
        refused, prompted = asks(server.received)
    assert "response_format" in refused
    assert refused["max_tokens"] == prompted["max_tokens"] == 1024


def test_the_first_question_uses_every_feature_the_service_has() -> None:
    with serving(Service(ALL)) as server, Ensemble([Endpoint("e", model="m", base_url=server.url)]) as ensemble:
        answer = ensemble.ask("Which planet?", choices=["Mars", "Saturn"])
        assert answer.replies[0].method == "logprobs"
        assert len(asks(server.received)) == 1


def test_checks_keep_to_the_limits_and_are_not_repeated_at_once_where_they_fail() -> None:
    """An endpoint that takes one call at a time gets no more; one whose check fails is asked all the same."""
    under_way, most = 0, 0

    async def handle(request: web.Request, body: Any) -> web.StreamResponse:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.02)
        under_way -= 1
        if "Which planet" not in str(body["messages"]):
            return json_reply({}, 401)
        return await Service(ALL)(request, body)

    with serving(handle) as server:
        one = Endpoint("e", model="m", base_url=server.url, max_concurrency=1)
        with Ensemble([one]) as ensemble:
            for _ in range(5):
                ensemble.ask("Which planet?", choices=["Mars", "Saturn"])
        assert len(server.received) == 5 + 1
    assert most == 1


def test_a_check_that_is_cancelled_is_paid_and_not_repeated_by_the_next_ask() -> None:
    """As an event loop for each ask ends before the check: its first call is paid, the second counts as much."""

    async def handle(request: web.Request, body: Any) -> web.StreamResponse:
        if body.get("stream"):
            await asyncio.sleep(60)
        elif "Which planet" in str(body["messages"]):
            await asyncio.sleep(0.2)
        return await Service(ALL)(request, body)

    with serving(handle) as server:
        one = Endpoint("e", model="m", base_url=server.url, input_usd_per_1m=1, output_usd_per_1m=1)
        ensemble = AsyncEnsemble([one], budget=Budget(usd_total=1))
        for _ in range(3):
            answer = asyncio.run(ensemble.ask("Which planet?", choices=["Mars", "Saturn"]))
        assert answer.cost is not None
        assert len(server.received) == 3 + 2
        assert ensemble.stats().cost == (3 + 2) * answer.cost
        asyncio.run(ensemble.aclose())


def test_a_feature_that_met_a_breakdown_is_tried_again_an_hour_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal is believed for a week, also by the next process, and by one that runs for longer."""
    status, clock = 500, time.monotonic

    async def handle(request: web.Request, body: Any) -> web.StreamResponse:
        refused = status != 200 and "n" in body and "Which planet" not in str(body["messages"])
        return json_reply({}, status) if refused else await Service(ALL)(request, body)

    def checks() -> int:
        return sum("stream" in received.body for received in server.received)

    def ask(ensemble: Ensemble) -> Capabilities | None:
        ensemble.ask("Which planet?", choices=["Mars", "Saturn"])
        until_checked(ensemble)
        return ensemble._async._pool._members[0]._capabilities

    with serving(handle) as server:
        settings: Any = {"endpoints": [Endpoint("e", model="m", base_url=server.url)], "store": tmp_path / "s.db"}
        with Ensemble(**settings) as ensemble:
            assert ask(ensemble) == ask(ensemble) == replace(ALL, n=False)
        with Ensemble(**settings) as ensemble:
            assert ask(ensemble) == replace(ALL, n=False)
            assert checks() == 1
            status = 400
            monkeypatch.setattr(time, "monotonic", lambda: clock() + 3601)
            ask(ensemble)
            assert checks() == 2
            status = 200
            monkeypatch.setattr(time, "monotonic", lambda: clock() + 6 * 24 * 3600)
            ask(ensemble)
            assert checks() == 2
            monkeypatch.setattr(time, "monotonic", lambda: clock() + 8 * 24 * 3600)
            assert ask(ensemble) == ALL
            assert checks() == 3


def test_a_check_in_an_outage_costs_no_more_than_was_reserved(caplog: pytest.LogCaptureFixture) -> None:
    """Each failed call counts as the most that it allows; together they are within the bound, so prices are right."""

    async def down(_: web.Request, __: Any) -> web.StreamResponse:
        return json_reply({}, 500)

    with serving(down) as server:
        one = Endpoint("down", model="m", base_url=server.url, input_usd_per_1m=1, output_usd_per_1m=1)
        with Ensemble([one]) as ensemble:
            with pytest.raises(PoolError):
                ensemble.ask("Which planet?", choices=["Mars", "Saturn"])
            until_checked(ensemble)
    assert "Check its prices" not in caplog.text


@pytest.mark.parametrize("dialect", ["openai", "vllm", "deepinfra", "gpt-5", "deepseek-r1"])
def test_the_first_closed_question_takes_hardly_longer_than_the_second(dialect: DialectName) -> None:
    """Of three endpoints that take a second; nothing is loaded, and nothing is found out, while it waits."""
    models = [Thinker(name, skill=1.0, latency_s=1.0) for name in ("a", "b", "c")]
    waits_longer: list[float] = []

    def works_longer() -> float:
        latencies_s: list[float] = []
        with Ensemble(pool.endpoints, policy="plurality") as ensemble:

            def ask() -> None:
                latencies_s.append(ensemble.ask("What is 17 + 25?", choices=["32", "42"]).latency_s)

            first, second = cpu_s(ask), cpu_s(ask)
        waits_longer.append(latencies_s[0] - latencies_s[1])
        return first - second

    with SimulatedPool(models, dialects=dialect) as pool:
        assert_measured_at_most(4, works_longer)
        while waits_longer[-1] > 0.8 and len(waits_longer) < 4:
            works_longer()
    assert waits_longer[-1] <= 0.8  # it did not wait for two calls
