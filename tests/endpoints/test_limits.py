"""The rate limits of one endpoint: kept exactly, waited for within the deadline, and learned if unknown."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from focalroute import AsyncEnsemble, Endpoint, Ensemble, PoolError
from focalroute.core.errors import CallFailed
from focalroute.core.records import Failure
from focalroute.endpoints import round as rounds
from focalroute.endpoints.rate_limits import AdmittedCall, Rolling, Throttle, pause_of
from tests.loopback import completion, json_reply, serving, until
from tests.policies import ask_all, ask_the_cheapest

ABLE: Any = {"logprobs": False, "top_logprobs": 0, "n": False, "structured_choice": False, "stream_usage": False,
             "whole_choices": False}  # fmt: skip
FULL = Failure("status", "HTTP 429", 429)


def endpoint(**settings: Any) -> Endpoint:
    return Endpoint("e", base_url="http://127.0.0.1:9/v1", model="m", **settings)


# -- a minute's worth --------------------------------------------------------------------------------------------------
@given(
    st.lists(st.tuples(st.floats(0, 30), st.floats(0.5, 40), st.floats(0, 40)), max_size=30),
    st.integers(1, 100),
)
def test_no_sixty_seconds_hold_more_than_the_limit(uses: list[tuple[float, float, float]], most: int) -> None:
    """Used as early as it may be; some of it is corrected later to what it really was."""
    rolling, now = Rolling(most), 0.0
    made: list[tuple[float, float]] = []
    for wait, amount, real in uses:
        now += wait
        when = rolling.earliest(amount, now)
        assert when >= max([now, *(at for at, _ in made)])
        within = [used for at, used in made if when - 60 + 1e-6 < at <= when]
        assert sum(within) < 1e-6 or sum(within) + amount <= most + 1e-6
        rolling.correct(rolling.use(amount, when), min(real, amount))
        made.append((when, min(real, amount)))


def test_a_use_larger_than_the_limit_waits_until_it_is_alone() -> None:
    rolling = Rolling(10)
    rolling.use(3, rolling.earliest(3, 5.0))
    assert rolling.earliest(50, 6.0) == 65.0


# -- turns -----------------------------------------------------------------------------------------------------------


def turns(work: Callable[[Throttle], Any], **settings: Any) -> Any:
    async def run() -> Any:
        return await work(Throttle(endpoint(**settings)))

    return asyncio.run(run())


def test_a_call_that_would_wait_beyond_the_deadline_is_refused_at_once() -> None:
    async def work(throttle: Throttle) -> None:
        for _ in range(2):
            throttle.leave(await throttle.enter(0, within_s=5), None, None)
        assert not throttle.ready
        with pytest.raises(CallFailed) as caught:
            await throttle.enter(0, within_s=5)
        assert caught.value.failure.kind == "limited"
        assert throttle.under_way == 0

    turns(work, requests_per_minute=2)


def test_tokens_count_as_used_and_not_as_reserved() -> None:
    async def work(throttle: Throttle) -> None:
        for _ in range(6):
            throttle.leave(await throttle.enter(50, within_s=1), 10, None)
        assert throttle.ready
        with pytest.raises(CallFailed):
            await throttle.enter(50, within_s=1)

    turns(work, tokens_per_minute=100)


def test_calls_at_a_time_are_let_in_in_the_order_they_came() -> None:
    async def work(throttle: Throttle) -> None:
        order: list[int] = []

        async def call(number: int) -> None:
            turn = await throttle.enter(0, within_s=5)
            order.append(number)
            assert throttle.under_way <= 2
            await asyncio.sleep(0)
            throttle.leave(turn, None, None)

        tasks = [asyncio.create_task(call(number)) for number in range(20)]
        await asyncio.sleep(0)
        tasks[5].cancel()  # who gives up loses its place, and nobody else's
        await asyncio.gather(*tasks, return_exceptions=True)
        assert order == [number for number in range(20) if number != 5]
        assert throttle.under_way == 0

    turns(work, max_concurrency=2)


def test_a_call_that_is_admitted_and_cancelled_at_once_passes_its_place_on() -> None:
    async def work(throttle: Throttle) -> None:
        first = await throttle.enter(0, within_s=5)
        waiting = [asyncio.create_task(throttle.enter(0, within_s=5)) for _ in range(2)]
        await asyncio.sleep(0)
        throttle.leave(first, None, None)  # lets the first of them in, who does not know yet
        waiting[0].cancel()
        second = await waiting[1]
        assert throttle.under_way == 1
        throttle.leave(second, None, None)
        assert throttle.under_way == 0

    turns(work, max_concurrency=1)


# -- found out ---------------------------------------------------------------------------------------------------------


def test_a_429_halves_the_calls_at_a_time_and_successes_bring_them_back() -> None:
    async def work(throttle: Throttle) -> None:
        first = [await throttle.enter(0, within_s=5) for _ in range(8)]
        for turn in first:  # one refusal of eight calls is one refusal
            throttle.leave(turn, None, FULL)
        assert throttle.limit == 4
        seen = []
        while throttle.limit < float("inf"):
            throttle.leave(await throttle.enter(0, within_s=5), 5, None)
            seen.append(throttle.limit)
        assert seen[:-1] == sorted(seen[:-1])
        assert 16 > seen[-2] > 15  # beyond twice of what it was, the limit is forgotten

    turns(work)


def refused(status: int, retry_after_s: float | None = None) -> Failure:
    return Failure("status", f"HTTP {status}", status, retry_after_s=retry_after_s)


def test_one_call_at_a_time_may_find_out_whether_a_pause_is_still_needed() -> None:
    async def work(throttle: Throttle) -> None:
        throttle.leave(await throttle.enter(0, within_s=5), None, refused(503, 30))
        assert (throttle.ready, throttle.triable, throttle.wait_s) == (False, True, 0)
        trial = await throttle.enter(0, within_s=5)
        assert not throttle.triable
        with pytest.raises(CallFailed):
            await throttle.enter(0, within_s=5)
        throttle.leave(trial, None, refused(500))  # which does not ask for a wait
        assert throttle.triable
        throttle.leave(await throttle.enter(0, within_s=5), None, refused(503, 20))
        assert not throttle.triable
        assert throttle.wait_s > 20

    turns(work)


def test_a_call_that_waits_for_a_pause_goes_on_once_it_is_lifted() -> None:
    async def work(throttle: Throttle) -> None:
        throttle.leave(await throttle.enter(0, within_s=5), None, refused(503, 30))
        trial = await throttle.enter(0, within_s=5)
        waiting = asyncio.create_task(throttle.enter(0, within_s=50))
        await asyncio.sleep(0)
        throttle.leave(trial, 5, None)
        assert throttle.ready
        throttle.leave(await asyncio.wait_for(waiting, 10), 5, None)

    turns(work)


def test_a_trial_that_is_never_made_leaves_the_next_call_to_try() -> None:
    """As its rate leaves no room for it within the deadline."""

    async def work(throttle: Throttle) -> None:
        throttle.leave(await throttle.enter(0, within_s=5), None, refused(503, 30))
        with pytest.raises(CallFailed):
            await throttle.enter(0, within_s=5)
        assert throttle.triable

    turns(work, requests_per_minute=1)


def test_a_pause_that_begins_while_a_call_waits_for_its_rate_holds_for_it() -> None:
    async def work(throttle: Throttle) -> None:
        throttle._rates["requests"].use(1, time.monotonic() - 59.9)
        waiting = asyncio.create_task(throttle.enter(0, within_s=5))
        await asyncio.sleep(0.01)
        throttle.pause(0.3)
        admitted = await waiting
        assert throttle.paused_s == 0
        assert throttle._rates["requests"].earliest(1, admitted.started) == pytest.approx(admitted.started + 60)

    turns(work, requests_per_minute=1)


def test_no_call_passes_a_pause_for_a_rate_limit() -> None:
    async def work(throttle: Throttle) -> None:
        throttle.leave(await throttle.enter(0, within_s=5), None, refused(429, 30))
        throttle.leave(AdmittedCall(time.monotonic(), throttle._gates.here()), None, refused(503, 30))
        assert not throttle.triable
        with pytest.raises(CallFailed):
            await throttle.enter(0, within_s=5)

    turns(work)


def test_refused_again_and_again_it_is_down_to_one_and_no_further() -> None:
    async def work(throttle: Throttle) -> None:
        for _ in range(9):
            throttle.leave(await throttle.enter(0, within_s=5), None, refused(429, 0.01))
        assert throttle.limit == 1

    turns(work, max_concurrency=8)


def test_refused_one_call_at_a_time_it_pauses() -> None:
    """Then its service counts calls in a second or minute, and does not say when it takes the next one."""

    async def work(throttle: Throttle) -> None:
        for turn in [await throttle.enter(0, within_s=5) for _ in range(4)]:
            throttle.leave(turn, None, FULL)
        assert (throttle.limit, throttle.ready) == (2, True)
        throttle.leave(await throttle.enter(0, within_s=5), None, FULL)
        assert 0 < throttle.paused_s <= 1
        assert (throttle.limit, throttle.ready, throttle.triable) == (1, False, False)

    turns(work)


def test_the_wait_for_a_place_counts_towards_the_time_that_a_wait_is_worth() -> None:
    """The call before ends a tenth of a second later, and its service then wants none for 10 seconds."""

    async def work(throttle: Throttle) -> None:
        first = await throttle.enter(0, 10)
        second = asyncio.create_task(throttle.enter(0, 10.05))
        await asyncio.sleep(0.1)
        throttle.leave(first, None, refused(429, 10.0))
        with pytest.raises(CallFailed, match="limit"):
            await asyncio.wait_for(second, 5)

    turns(work, max_concurrency=1)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1.5s"}, 1.5),
        ({"X-RateLimit-Remaining-Tokens": "0", "X-RateLimit-Reset-Tokens": "6m0s"}, 360.0),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "20ms"}, 0.02),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "2"}, 2.0),
        ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1700000003000"}, 3.0),
        ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1700000003"}, 3.0),
        ({"x-ratelimit-remaining-requests": "1", "x-ratelimit-reset-requests": "1s"}, 0.0),
        ({"x-ratelimit-remaining-requests": "0"}, 0.0),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "soon"}, 0.0),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "-1"}, 0.0),
        ({"x-ratelimit-remaining-requests": "nan", "x-ratelimit-reset-requests": "1e999"}, 0.0),
        (
            {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1" * 100_000},
            0.0,
        ),  # more would take time with its square
        ({"content-type": "application/json"}, 0.0),
    ],
    ids=lambda value: str(value)[:100],
)
def test_remaining_limits_in_headers_are_understood(headers: dict[str, str], seconds: float) -> None:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    assert pause_of(raw, now=1_700_000_000) == pytest.approx(seconds)


@given(st.lists(st.tuples(st.sampled_from([b"x-ratelimit-remaining", b"x-ratelimit-reset"]), st.binary(max_size=12))))
def test_no_header_breaks_anything(headers: list[tuple[bytes, bytes]]) -> None:
    assert 0 <= pause_of(headers) < float("inf")


# -- in an ensemble ----------------------------------------------------------------------------------------------------


def test_an_endpoint_over_its_rate_is_left_out_and_the_answer_says_so(tmp_path: Path) -> None:
    async def handler(_: web.Request, __: Any) -> web.StreamResponse:
        return json_reply(completion("42"))

    with serving(handler) as server:
        pool = [
            Endpoint("a", base_url=server.url, model="a", requests_per_minute=3),
            Endpoint("b", base_url=server.url, model="b"),
        ]
        with Ensemble(pool, policy=ask_all(tmp_path), explore=False) as ensemble:
            answers = [ensemble.ask("?", answer="number") for _ in range(5)]
        asked = [[call.endpoint for call in answer.receipt.calls] for answer in answers]
        assert [len(names) for names in asked] == [2, 2, 2, 1, 1]
        assert answers[-1].degraded == ("rate limited: a could not be asked",)
        assert answers[0].degraded == ()


def test_an_endpoint_that_was_asked_is_not_reported_as_left_out_in_later_rounds(tmp_path: Path) -> None:
    """Its only call of the minute fails, and somebody else is asked then."""

    async def handler(_: web.Request, body: Any) -> web.StreamResponse:
        return json_reply(completion("42"), 400 if body["model"] == "a" else 200)

    with serving(handler) as server:
        pool = [
            Endpoint(
                "a", base_url=server.url, model="a", requests_per_minute=1, input_usd_per_1m=1, output_usd_per_1m=1
            ),
            Endpoint("b", base_url=server.url, model="b", input_usd_per_1m=2, output_usd_per_1m=2),
        ]
        with Ensemble(pool, policy=ask_the_cheapest(tmp_path), explore=False) as ensemble:
            answer = ensemble.ask("?", answer="number")
    assert [call.endpoint for call in answer.receipt.calls] == ["a", "b"]
    assert answer.degraded == ("fewer members: a failed",)


def test_a_structured_reply_is_asked_for_again_only_within_the_limit() -> None:
    async def handler(_: web.Request, __: Any) -> web.StreamResponse:
        return json_reply(completion('{"n": "six"}'))

    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    with serving(handler) as server:
        one = Endpoint("a", base_url=server.url, model="a", requests_per_minute=3, **ABLE)
        with Ensemble([one], attempts=1) as ensemble:
            for _ in range(2):
                with pytest.raises(PoolError, match="not JSON that is valid"):
                    ensemble.ask("?", answer=schema, deadline_s=2)
        assert len(server.received) == 3


def test_a_capability_check_that_is_refused_makes_asks_wait_too() -> None:
    async def handler(_: web.Request, body: Any) -> web.StreamResponse:
        if "Which planet" in str(body["messages"]):
            return json_reply(completion("Mars"))
        return json_reply({}, 429, {"Retry-After": "30"})

    with (
        serving(handler) as server,
        Ensemble([Endpoint("a", base_url=server.url, model="a", max_concurrency=8)]) as ensemble,
    ):
        ensemble.ask("Which planet?", choices=["Mars", "Saturn"])
        throttle = ensemble._async._pool._members[0].throttle
        until(lambda: throttle.paused_s > 29)
        assert throttle.limit < 8


def test_the_last_endpoint_left_is_waited_for(tmp_path: Path) -> None:
    """The one that has time left fails; the other's service says that nothing is left for 3 seconds."""

    async def handler(_: web.Request, body: Any) -> web.StreamResponse:
        if body["model"] == "fails":
            return json_reply({}, 400)
        return json_reply(completion("42"), headers=next(said, {}))

    said = iter([{}, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "3"}])  # not the first, which loads libraries
    with serving(handler) as server:
        pool = [Endpoint(name, base_url=server.url, model=name) for name in ("full", "fails")]
        with Ensemble(pool, policy=ask_all(tmp_path), explore=False) as ensemble:
            answers = [ensemble.ask("?", answer="number") for _ in range(3)]
    assert [call.endpoint for call in answers[2].receipt.calls] == ["fails", "full"]
    assert answers[2].value == 42


def test_alone_an_endpoint_is_waited_for() -> None:
    """Its service says that nothing is left for 0.3 seconds."""
    said = iter([{"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "300ms"}])

    async def handler(_: web.Request, __: Any) -> web.StreamResponse:
        return json_reply(completion("42"), headers=next(said, {}))

    with serving(handler) as server, Ensemble([Endpoint("a", base_url=server.url, model="a")]) as ensemble:
        began = time.monotonic()
        answers = [ensemble.ask("?", answer="number") for _ in range(2)]
        assert time.monotonic() - began >= 0.3
        assert [answer.degraded for answer in answers] == [(), ()]


def test_beside_another_answer_no_pause_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two endpoints refuses its seventh call; by then it is known how long an answer takes.

    The pause is a second, and a member is silent after 0.9 at the least.
    """
    monkeypatch.setattr(rounds, "_SHORTEST_S", 0.9)
    calls = 0

    async def handler(_: web.Request, body: Any) -> web.StreamResponse:
        nonlocal calls
        calls += body["model"] == "a"
        return json_reply({}, 429) if calls == 7 and body["model"] == "a" else json_reply(completion("42"))

    with serving(handler) as server:
        plain: Any = {"base_url": server.url, "logprobs": False, "top_logprobs": 0, "n": False}
        pool = [Endpoint(name, model=name, **plain) for name in "ab"]
        with Ensemble(pool, policy="plurality", probe_share=0) as ensemble:
            *_, last = [ensemble.ask(f"? {i}", answer="number") for i in range(7)]
    (refused,) = (call for call in last.receipt.calls if call.endpoint == "a")
    assert (refused.attempts, refused.error is None) == (1, False)
    assert last.latency_s < 0.8


def test_a_service_that_takes_four_at_a_time_is_not_asked_for_more_for_long(tmp_path: Path) -> None:
    """60 asks at once, of which it refuses whatever comes beyond four; all are answered in the end."""
    under_way, peaks, refused = 0, [], 0

    async def handler(_: web.Request, __: Any) -> web.StreamResponse:
        nonlocal under_way, refused
        if under_way >= 4:
            refused += 1
            return json_reply({}, 429)
        under_way += 1
        peaks.append(under_way)
        await asyncio.sleep(0.01)
        under_way -= 1
        return json_reply(completion("42"))

    async def run(url: str) -> int:
        async with AsyncEnsemble([Endpoint("a", base_url=url, model="a")], attempts=10) as ensemble:
            answers = await asyncio.gather(
                *(ensemble.ask("?", answer="number") for _ in range(60)), return_exceptions=True
            )
            limit = ensemble.stats().endpoints["a"].health.concurrency
            assert limit is None or limit < 60
            return sum(not isinstance(answer, BaseException) for answer in answers)

    with serving(handler) as server:
        assert asyncio.run(run(server.url)) == 60
    assert max(peaks) == 4
    assert refused < 250


def test_a_limit_that_outlasts_the_deadline_says_what_to_do() -> None:
    async def handler(_: web.Request, __: Any) -> web.StreamResponse:
        headers = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "24h"}
        return json_reply(completion("4"), headers=headers)

    with serving(handler) as server, Ensemble([Endpoint("a", model="m", base_url=server.url)]) as ensemble:
        assert ensemble.ask("?", answer="number").value == 4
        with pytest.raises(PoolError, match=r"^try again later, or raise deadline_s of the ask; every asked endpoint"):
            ensemble.ask("?", answer="number", deadline_s=1)
