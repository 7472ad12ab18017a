"""A round over real HTTP: a late member is raced, a needless member is cancelled, down to the socket."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp import web
from openai import AsyncOpenAI

from focalroute import Answer, AsyncEnsemble, Budget, DeadlineExceeded, Endpoint, Ensemble, PoolError
from focalroute.endpoints.round import RaceAllowance
from focalroute.store.sqlite.store import SqliteStore
from tests.loopback import Server, completion, json_reply, serving, until
from tests.policies import ask_all, ask_the_affordable, ask_the_cheapest

LONG_S = 20.0
DEADLINE_S = 5.0  # of asks that wait for it
USAGE = {
    "prompt_tokens": 200,
    "completion_tokens": 100,
    "total_tokens": 300,
}  # of a typical call, as the price list says


class Service:
    """Answers each model's calls with what it is told to; those of a model that hangs, not at all.

    Attributes:
        delays: seconds that a model takes.
        after: model -> the one that it waits for, until that has replied.
    """

    def __init__(self) -> None:
        self.says: dict[str, str] = {}
        self.status: dict[str, int] = {}
        self.headers: dict[str, dict[str, str]] = {}
        self.hanging: set[str] = set()
        self.hanging_checks = False
        self.delays: dict[str, float] = {}
        self.after: dict[str, str] = {}
        self.calls: list[str] = []
        self.replied: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.left = threading.Event()

    async def handle(self, _: web.Request, body: Any) -> web.StreamResponse:
        name = body["model"]
        self.calls.append(name)
        try:
            hangs = name in self.hanging or (self.hanging_checks and "Which number is larger" in str(body["messages"]))
            if hangs:
                await asyncio.Event().wait()
            if name in self.after:
                await self.replied[self.after[name]].wait()
            await asyncio.sleep(self.delays.get(name, 0.001))
        except asyncio.CancelledError:
            self.left.set()
            raise
        self.replied[name].set()
        said = completion(self.says.get(name, "42"), usage=USAGE)
        return json_reply(said, self.status.get(name, 200), self.headers.get(name))


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def server(service: Service) -> Iterator[Server]:
    with serving(service.handle) as running:
        yield running


def pool(server: Server, *names: str) -> list[Endpoint]:
    """The first is the cheapest, and so on."""
    return [
        Endpoint(name, base_url=server.url, model=name, input_usd_per_1m=1 + i, output_usd_per_1m=1 + i)
        for i, name in enumerate(names)
    ]


def warm_up(ensemble: Ensemble) -> None:
    """The first ask loads libraries, for which no deadline below shall pay."""
    ensemble.ask("?", answer="number")


def kinds(answer: Answer) -> dict[str, str]:
    return {call.endpoint: call.error.kind if call.error else "ok" for call in answer.receipt.calls}


# -- nobody has answered yet -----------------------------------------------------------------------------------------


def test_a_lone_member_that_hangs_does_not_cost_the_answer(service: Service, server: Server, tmp_path: Path) -> None:
    """Nothing is known of how long it may take; yet somebody else is asked long before half of the time is gone."""
    with Ensemble(pool(server, "a", "b"), policy=ask_the_cheapest(tmp_path), explore=False) as ensemble:
        service.hanging.add("a")
        answer = ensemble.ask("?", answer="number", deadline_s=LONG_S)
    assert kinds(answer) == {"a": "cancelled", "b": "ok"}
    assert answer.receipt.calls[1].hedge_of == "a"
    assert answer.receipt.calls[0].cost_source == "unknown"  # given up: nobody knows
    assert answer.receipt.latency_s < 0.4 * LONG_S
    assert service.left.wait(30)  # the service saw the connection close
    assert answer.degraded == ()


def test_a_substitute_that_fails_is_followed_by_the_next_at_once(
    service: Service, server: Server, tmp_path: Path, impatient: Callable[[], None]
) -> None:
    """If each waited for the next half of the time, nothing would be left of it for the last."""
    failing = [f"fails {i}" for i in range(6)]
    members = pool(server, "hangs", *failing, "answers")
    with Ensemble(members, policy=ask_the_cheapest(tmp_path), explore=False) as ensemble:
        warm_up(ensemble)
        service.hanging.add("hangs")
        service.status |= dict.fromkeys(failing, 400)
        impatient()
        answer = ensemble.ask("?", answer="number", deadline_s=LONG_S)
    assert kinds(answer) == {"hangs": "cancelled", **dict.fromkeys(failing, "status"), "answers": "ok"}
    assert answer.receipt.latency_s < 0.4 * LONG_S


def test_from_the_first_ask_on_a_hanging_member_is_given_up_once_another_has_answered(
    service: Service, server: Server, tmp_path: Path, impatient: Callable[[], None]
) -> None:
    """Nothing is known of how long they may take; five asks waited to their deadlines."""
    impatient()
    settings: dict[str, Any] = {"policy": ask_all(tmp_path), "explore": False, "max_rounds": 1}
    with Ensemble(pool(server, "a", "b"), **settings) as ensemble:
        service.hanging.add("a")
        answer = ensemble.ask("?", answer="number", deadline_s=LONG_S)
    assert kinds(answer) == {"a": "timeout", "b": "ok"}
    assert answer.receipt.latency_s < 0.8 * LONG_S
    assert answer.degraded == ("fewer members: a failed",)


def over(transport: httpx.AsyncBaseTransport, server: Server) -> Endpoint:
    """The cheapest endpoint, "a", by a client of the caller's own."""
    http: Any = httpx.AsyncClient(transport=transport)  # openai 3 has one of its own, and takes this as well
    client = AsyncOpenAI(base_url=server.url, api_key="unused", http_client=http)
    return Endpoint("a", client=client, model="a", input_usd_per_1m=1, output_usd_per_1m=1)


class Deaf(httpx.AsyncHTTPTransport):
    """Takes being given up for a fault of the connection, as a handler of all exceptions does."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            return await super().handle_async_request(request)
        except asyncio.CancelledError:
            raise httpx.ReadError("connection lost") from None


def test_a_member_that_ignores_being_given_up_is_not_asked_again(
    service: Service, server: Server, tmp_path: Path, impatient: Callable[[], None]
) -> None:
    """That call would have no end: the deadline it is bounded by is the race's."""
    members = [over(Deaf(), server), pool(server, "a", "b")[1]]
    with Ensemble(members, policy=ask_the_cheapest(tmp_path), explore=False) as ensemble:
        warm_up(ensemble)
        service.hanging.add("a")
        impatient()
        answer = ensemble.ask("?", answer="number", deadline_s=LONG_S)
    assert kinds(answer) == {"a": "connection", "b": "ok"}
    assert service.calls.count("a") == 2


class Stubborn(httpx.AsyncHTTPTransport):
    """Takes its time to end when it is given up for the first time."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            return await super().handle_async_request(request)
        except asyncio.CancelledError:
            await asyncio.sleep(60)
            raise


@pytest.mark.parametrize("spare", [["b"], []])
def test_the_deadline_holds_while_a_member_is_given_up(
    service: Service, server: Server, tmp_path: Path, spare: list[str], impatient: Callable[[], None]
) -> None:
    """Before the deadline, as another one answered, or at the deadline."""
    members = [over(Stubborn(), server), *pool(server, "a", *spare)[1:]]
    with Ensemble(members, policy=ask_the_cheapest(tmp_path), explore=False) as ensemble:
        warm_up(ensemble)
        service.hanging.add("a")
        impatient()
        began = time.monotonic()
        if spare:
            assert kinds(ensemble.ask("?", answer="number", deadline_s=DEADLINE_S)) == {"a": "cancelled", "b": "ok"}
        else:
            with pytest.raises(DeadlineExceeded):
                ensemble.ask("?", answer="number", deadline_s=DEADLINE_S)
        assert time.monotonic() - began < 30


def test_no_ask_waits_for_a_check_of_what_an_endpoint_can_do(server: Server, service: Service) -> None:
    """Its check hangs; the question is put at once, with all that may be there."""
    with Ensemble(pool(server, "a")) as ensemble:
        service.says["a"] = "red"
        service.hanging_checks = True
        assert ensemble.ask("?", choices=["red", "blue"], deadline_s=60).text == "red"
        until(lambda: len(service.calls) == 2)


# -- later than usual --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hedge_after", [0.95, None])
def test_a_member_that_is_silent_for_much_longer_than_usual_is_raced(
    service: Service, server: Server, tmp_path: Path, hedge_after: float | None, impatient: Callable[[], None]
) -> None:
    """As it is not sure to answer; with ``hedge_after`` sooner."""
    settings: dict[str, Any] = {"policy": ask_the_cheapest(tmp_path), "explore": False, "probe_share": 0}
    with Ensemble(pool(server, "a", "b"), hedge_after=hedge_after, **settings) as ensemble:
        for _ in range(20):
            assert kinds(ensemble.ask("?", answer="number")).get("b") is None
        service.hanging.add("a")
        impatient()
        answer = ensemble.ask("?", answer="number", deadline_s=LONG_S)
        ledger = ensemble.stats().endpoints
    assert kinds(answer) == {"a": "cancelled", "b": "ok"}
    assert answer.receipt.latency_s < 0.4 * LONG_S
    assert (ledger["a"].calls, ledger["b"].calls) == (21, 1)


def test_a_member_is_hedged_once_for_every_retry_that_is_left(service: Service, server: Server, tmp_path: Path) -> None:
    """Slow as it is, it answers before it has been silent for too long."""
    settings: dict[str, Any] = {"policy": ask_the_cheapest(tmp_path), "explore": False, "attempts": 1}
    service.delays["a"] = 0.2
    with Ensemble(pool(server, "a", "b"), hedge_after=0.95, **settings) as ensemble:
        for _ in range(20):
            ensemble.ask("?", answer="number")
        service.delays["a"] = 0.4
        answer = ensemble.ask("?", answer="number", deadline_s=LONG_S)
    assert kinds(answer) == {"a": "ok"}


def test_a_racing_endpoint_that_hangs_too_is_raced_in_turn(
    service: Service, server: Server, tmp_path: Path, impatient: Callable[[], None]
) -> None:
    settings: dict[str, Any] = {"policy": ask_the_cheapest(tmp_path), "explore": False}
    with Ensemble(pool(server, "a", "b", "c"), **settings) as ensemble:
        for _ in range(5):
            ensemble.ask("?", answer="number")
        service.hanging |= {"a", "b"}
        impatient()
        answer = ensemble.ask("?", answer="number", deadline_s=LONG_S)
    assert kinds(answer) == {"a": "cancelled", "b": "cancelled", "c": "ok"}
    assert answer.receipt.latency_s < 0.4 * LONG_S


def test_a_member_is_not_raced_for_time_in_which_the_event_loop_was_blocked(
    service: Service, server: Server, tmp_path: Path, impatient: Callable[[], None]
) -> None:
    """Its reply had yet to be read, or its request to be sent."""
    settings: dict[str, Any] = {"policy": ask_the_cheapest(tmp_path), "explore": False, "max_rounds": 1}

    async def ask() -> Answer:
        async with AsyncEnsemble(pool(server, "a", "b"), **settings) as ensemble:
            service.delays["a"] = 0.2
            for _ in range(5):
                await ensemble.ask("?", answer="number")
            service.delays.clear()
            impatient()
            asyncio.get_running_loop().call_later(0.0, time.sleep, 2.0)
            return await ensemble.ask("?", answer="number", deadline_s=LONG_S)

    assert kinds(asyncio.run(ask())) == {"a": "ok"}


def test_an_event_loop_that_was_blocked_beyond_the_deadline_is_not_held_against_the_member(
    service: Service, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows whether it would have answered in time."""
    monkeypatch.setattr("focalroute.endpoints.member._EVIDENCE_S", 0.1)
    service.hanging.add("a")

    async def ask() -> float:
        async with AsyncEnsemble(pool(server, "a"), attempts=1) as ensemble:
            asking = asyncio.create_task(ensemble.ask("?", answer="number", deadline_s=1.0))
            await asyncio.sleep(0.2)
            time.sleep(2.5)  # noqa: ASYNC251 - the loop stands still
            with pytest.raises(DeadlineExceeded):
                await asking
            return ensemble.stats().endpoints["a"].health.failure_share

    assert asyncio.run(ask()) == 0


def test_a_member_that_hangs_while_another_answers_is_given_up(
    service: Service, server: Server, tmp_path: Path, impatient: Callable[[], None]
) -> None:
    settings: dict[str, Any] = {"policy": ask_all(tmp_path), "explore": False, "max_rounds": 1}
    with Ensemble(pool(server, "a", "b"), **settings) as ensemble:
        for _ in range(5):
            ensemble.ask("?", answer="number")
        service.hanging.add("a")
        impatient()
        answer = ensemble.ask("?", answer="number", deadline_s=LONG_S)
    assert kinds(answer) == {"a": "timeout", "b": "ok"}
    assert answer.receipt.latency_s < 0.4 * LONG_S
    assert answer.degraded == ("fewer members: a failed",)


def test_a_member_with_few_answers_may_take_longer_than_others(
    service: Service, server: Server, tmp_path: Path, impatient: Callable[[], None]
) -> None:
    """A model that thinks was given up as soon as others were known to be fast, so that it was never heard."""
    settings: dict[str, Any] = {"policy": ask_all(tmp_path), "explore": False, "max_rounds": 1, "attempts": 1}
    with Ensemble(pool(server, "a", "b"), **settings) as ensemble:
        service.status["a"] = 500
        for _ in range(4):
            ensemble.ask("?", answer="number")
        service.status.clear()
        ensemble.ask("?", answer="number")
        service.delays["a"] = 1.0
        impatient()
        answer = ensemble.ask("?", answer="number", deadline_s=5 * LONG_S)
    assert kinds(answer) == {"a": "ok", "b": "ok"}


def test_a_query_on_which_all_are_slow_gives_none_up(
    service: Service, server: Server, tmp_path: Path, impatient: Callable[[], None]
) -> None:
    settings: dict[str, Any] = {"policy": ask_all(tmp_path), "explore": False, "max_rounds": 1}
    with Ensemble(pool(server, "a", "b"), **settings) as ensemble:
        for _ in range(5):
            ensemble.ask("?", answer="number")
        service.delays |= {"a": 1.2, "b": 0.5}
        service.replied.clear()
        service.after["b"] = "a"
        impatient()
        answer = ensemble.ask("?", answer="number", deadline_s=LONG_S)
    assert kinds(answer) == {"a": "ok", "b": "ok"}


def test_a_member_with_a_long_retry_after_does_not_keep_the_ask_waiting(
    service: Service, server: Server, tmp_path: Path, impatient: Callable[[], None]
) -> None:
    """The next best is asked at once, and nobody calls the one that wants no calls."""
    with Ensemble(pool(server, "a", "b"), policy=ask_the_cheapest(tmp_path), explore=False) as ensemble:
        warm_up(ensemble)
        service.status["a"], service.headers["a"] = 503, {"Retry-After": "18"}
        impatient()
        answer = ensemble.ask("?", answer="number", deadline_s=LONG_S)
        assert kinds(answer) == {"a": "cancelled", "b": "ok"}
        assert answer.receipt.latency_s < 0.4 * LONG_S
        assert kinds(ensemble.ask("?", answer="number")) == {"b": "ok"}
    assert service.calls.count("a") == 2


def test_if_all_endpoints_asked_for_a_pause_a_trial_call_finds_one_that_answers(
    service: Service, server: Server, tmp_path: Path
) -> None:
    with Ensemble(pool(server, "a", "b"), policy=ask_the_cheapest(tmp_path), explore=False, attempts=1) as ensemble:
        warm_up(ensemble)
        for name in "ab":
            service.status[name], service.headers[name] = 503, {"Retry-After": "15"}
        with pytest.raises(PoolError):
            ensemble.ask("?", answer="number", deadline_s=LONG_S)
        service.status.clear()
        answers = [ensemble.ask("?", answer="number", deadline_s=LONG_S) for _ in range(2)]
    assert max(answer.receipt.latency_s for answer in answers) < 0.5 * LONG_S


def test_a_member_that_was_raced_in_vain_is_given_up_once_another_has_answered(
    service: Service, server: Server, tmp_path: Path, impatient: Callable[[], None]
) -> None:
    settings: dict[str, Any] = {"policy": ask_all(tmp_path), "explore": False, "max_rounds": 1, "attempts": 1}
    service.status["c"] = 500
    with Ensemble(pool(server, "a", "b", "c"), **settings) as ensemble:
        for _ in range(5):  # then c is out of use, and asked only to race one that is silent
            ensemble.ask("?", answer="number")
        service.hanging.add("a")
        service.replied.clear()
        service.after["b"], service.delays["b"] = "c", 0.5
        impatient()
        answer = ensemble.ask("?", answer="number", deadline_s=LONG_S)
    assert kinds(answer) == {"a": "timeout", "b": "ok", "c": "status"}
    assert answer.receipt.latency_s < 0.4 * LONG_S


def test_no_more_than_a_tenth_of_all_calls_is_made_because_others_are_silent() -> None:
    allowance = RaceAllowance()
    for _ in range(1000):
        allowance.earn()
    assert sum(allowance.spend() for _ in range(1000)) == 10
    raced = 0
    for _ in range(1000):
        allowance.earn()
        raced += allowance.spend()
    assert 99 <= raced <= 101


def test_a_member_that_loses_such_races_repeatedly_is_ejected(service: Service, server: Server, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"policy": ask_the_cheapest(tmp_path), "explore": False, "hedge_after": 0.95}
    with Ensemble(pool(server, "a", "b"), **settings) as ensemble:
        for _ in range(20):
            ensemble.ask("?", answer="number")
        service.hanging.add("a")
        answers = [ensemble.ask("?", answer="number") for _ in range(6)]
        assert ensemble.stats().endpoints["a"].breaker != "closed"
    assert kinds(answers[-1]) == {"b": "ok"}
    assert answers[-1].degraded == ("breaker open: a could not be asked",)


@pytest.mark.parametrize(
    ("usuals", "hanging", "state"), [(4.0, "a", "open"), (0.5, "a", "closed"), (2.0, "ab", "closed")]
)
def test_a_member_silent_until_a_deadline_is_ejected_if_that_is_long_for_it_and_not_for_all(
    service: Service,
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    usuals: float,
    hanging: str,
    state: str,
) -> None:
    """No deadline below 5 s counted, so that one that hung was asked again and again where its answers take a while."""
    monkeypatch.setattr("focalroute.endpoints.member._EVIDENCE_S", 600.0)  # beyond that any counts
    settings: dict[str, Any] = {"policy": ask_all(tmp_path), "explore": False, "max_rounds": 1, "attempts": 1}

    async def breaker() -> str:
        async with AsyncEnsemble(pool(server, "a", "b"), **settings) as ensemble:
            service.delays["a"] = 0.9
            await asyncio.gather(*(ensemble.ask("?", answer="number") for _ in range(20)))
            usual_s = ensemble._pool.latencies[0].quantile(0.95)
            assert usual_s is not None
            service.hanging |= set(hanging)
            asks = [ensemble.ask("?", answer="number", deadline_s=usuals * usual_s) for _ in range(6)]
            await asyncio.gather(*asks, return_exceptions=True)
            return ensemble.stats().endpoints["a"].breaker

    assert asyncio.run(breaker()) == state


# -- what it saves -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [None, Budget(usd_total=1)], ids=["no budget", "a budget"])
@pytest.mark.parametrize("rule", [{"early_stop": True}, {"hedge_after": 0.95}], ids=str)
def test_a_cancelled_calls_saving_and_bill_agree_everywhere(
    service: Service, server: Server, tmp_path: Path, rule: dict[str, Any], budget: Budget | None
) -> None:
    """Without a budget nothing bounds what the cancelled call can have cost, so it is unknown everywhere."""
    late, policy, asks = ("c", ask_all, 1) if "early_stop" in rule else ("a", ask_the_cheapest, 20)
    service.says |= {"a": "41", "b": "42", "c": "43"}  # so nobody is needless at first
    service.delays["c"] = 0.5
    path = tmp_path / "s.db"
    settings: dict[str, Any] = {"policy": policy(tmp_path / "policy"), "explore": False, "max_rounds": 1, "store": path}
    with Ensemble(pool(server, "a", "b", "c"), budget=budget, probe_share=0, **settings, **rule) as ensemble:
        answers = [ensemble.ask("?", answer="number") for _ in range(asks)]
        for answer in answers:
            ensemble.feedback(answer, label=42)
        before = ensemble.stats().endpoints[late]
        assert before.latency_s is not None
        service.says.clear()
        service.hanging.add(late)
        answers.append(ensemble.ask("?", answer="number", deadline_s=LONG_S))
        stats = ensemble.stats()
    receipt = answers[-1].receipt
    (given_up,) = [call for call in receipt.calls if call.error is not None]
    left = max(0.0, 1 - given_up.latency_s / before.latency_s)
    assert (given_up.endpoint, kinds(answers[-1])[late]) == (late, "cancelled")
    assert (
        receipt.saved
        == given_up.saved
        == pytest.approx(Decimal(before.cost or 0) / before.calls * Decimal(left), abs=Decimal("1e-11"))
    )
    assert given_up.cost_source == ("reserved" if budget else "unknown")
    assert (receipt.cost is None) == (budget is None)

    with closing(SqliteStore(path)) as store:
        ledger = {row.key: row for row in store.ledger("endpoint")}
        assert store.verify() == ()
    calls = [call for answer in answers for call in answer.receipt.calls]
    for name in ledger:
        paid = sum((call.cost or Decimal(0) for call in calls if call.endpoint == name), Decimal(0))
        assert ledger[name].cost == stats.endpoints[name].cost == paid
        assert ledger[name].estimated_cost == (given_up.cost if budget and name == late else 0)
        assert ledger[name].unpriced == stats.endpoints[name].unpriced == (budget is None and name == late)
        doubt = given_up.cost * 2 if budget and name == late and given_up.cost else 0  # held for a day besides
        assert ledger[name].held == doubt
    assert sum(row.calls for row in ledger.values()) == len(calls)


# -- needless --------------------------------------------------------------------------------------------------------


def test_a_member_that_cannot_change_the_answer_is_given_up(service: Service, server: Server, tmp_path: Path) -> None:
    service.hanging.add("c")
    members = pool(server, "a", "b", "c")
    settings: dict[str, Any] = {"policy": ask_all(tmp_path), "explore": False, "max_rounds": 1}
    with Ensemble(members, early_stop=True, **settings) as ensemble:
        answer = ensemble.ask("?", answer="number", deadline_s=LONG_S, max_usd=1)
        assert kinds(answer) == {"a": "ok", "b": "ok", "c": "cancelled"}
        assert answer.degraded == ()
        assert answer.receipt.calls[2].cost_source == "reserved"  # it may have been paid for
        assert service.left.wait(30)
        assert ensemble.stats().endpoints["c"].breaker == "closed"  # it is not to blame


@pytest.mark.parametrize("second", ["42", "43"])
def test_a_member_that_could_change_the_answer_is_waited_for(
    service: Service, server: Server, tmp_path: Path, second: str, impatient: Callable[[], None]
) -> None:
    """With two that disagree the third decides; and so it does with only one reply there."""
    service.says["b"] = second
    members = pool(server, "a", "b", "c")
    settings: dict[str, Any] = {"policy": ask_all(tmp_path), "explore": False, "max_rounds": 1}
    with Ensemble(members, early_stop=True, **settings) as ensemble:
        warm_up(ensemble)
        service.hanging |= {"c"} if second == "43" else {"b", "c"}
        impatient()
        answer = ensemble.ask("?", answer="number", deadline_s=LONG_S)
    assert kinds(answer)["c"] == "timeout"


def test_with_choices_every_vote_and_every_mass_is_tried(service: Service, server: Server, tmp_path: Path) -> None:
    service.says |= {"a": "A", "b": "A", "c": "B"}
    service.hanging.add("c")
    plain = {"logprobs": False, "top_logprobs": 0, "n": False, "structured_choice": False, "stream_usage": False}
    members = [Endpoint(name, base_url=server.url, model=name, **plain) for name in "abc"]  # type: ignore[arg-type]
    settings: dict[str, Any] = {"policy": ask_all(tmp_path), "explore": False, "max_rounds": 1}
    with Ensemble(members, early_stop=True, **settings) as ensemble:
        answer = ensemble.ask("?", choices=["red", "blue"], deadline_s=LONG_S)
    assert answer.choice == 0
    assert kinds(answer)["c"] == "cancelled"


# -- where waiting costs -----------------------------------------------------------------------------------------------


def test_a_slow_member_is_waited_for_only_as_long_as_a_second_is_cheap(
    service: Service, server: Server, tmp_path: Path
) -> None:
    service.says |= {"a": "41", "b": "42"}  # so that "c" decides
    service.delays["c"] = 1.0
    settings: dict[str, Any] = {"policy": ask_the_affordable(tmp_path), "explore": False, "max_rounds": 1}
    settings["learn_from_agreement"] = False  # who is hardly known is waited for where anything teaches
    with Ensemble(pool(server, "a", "b", "c"), cost_weight=0.01, probe_share=0, **settings) as ensemble:
        for _ in range(3):
            patient = ensemble.ask("?", answer="number")
        service.hanging.add("c")
        hurried = ensemble.ask("?", answer="number", usd_per_second=100)
    assert kinds(patient) == {"a": "ok", "b": "ok", "c": "ok"}
    assert patient.receipt.usd_per_second == 0
    assert kinds(hurried)["c"] == "cancelled"
    assert hurried.receipt.usd_per_second == 100
    assert hurried.degraded == ()
