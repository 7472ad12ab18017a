"""`stream` over real HTTP: pieces as they come, what is cancelled and when, and the cost."""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args

import openai
import pytest
from aiohttp import web

from focalroute import (
    Answer,
    AsyncEnsemble,
    Budget,
    ConfigError,
    DeadlineExceeded,
    Endpoint,
    Ensemble,
    EnsembleClosed,
    PoolError,
    StreamBroken,
)
from focalroute.serving.query import ARGUMENTS
from focalroute.sim import Fault, SimulatedModel, SimulatedPool
from focalroute.sim.process import DialectName
from tests.loopback import Server, completion, json_reply, serving, sse, until
from tests.policies import ask_all

QUESTION = "Tell me of the moons of Saturn."
USAGE = {"prompt_tokens": 30, "completion_tokens": 4, "total_tokens": 34}
PAID = Decimal(34) / 1_000_000  # at a dollar for a million of each
LONG_S = 20.0


def chunk(text: str | None = None, finish: str | None = None, usage: Any = None) -> dict[str, Any]:
    """One event of a stream, as OpenAI writes it."""
    delta = {} if text is None else {"content": text}
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}] if usage is None or text or finish else []
    return {"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": choices, "usage": usage}


@dataclass
class Service:
    """Says to each model's calls what it is told to say, piece by piece.

    Attributes:
        says: the pieces of each model; "two", " pieces" by default.
        usage: what a whole stream ends with; None: nothing. ``told``: of each piece so far.
        status: what each model's calls are refused with, as often as the list is long.
        breaks: models whose streams are cut after their pieces.
        holds: models whose streams stop after the first piece until `go_on` is set.
        hanging: models that answer nothing.
        whole: models that do not stream, though they are asked to.
    """

    says: dict[str, list[str]] = field(default_factory=dict)
    usage: Any = field(default_factory=lambda: dict(USAGE))
    told: Any = None
    status: dict[str, list[int]] = field(default_factory=dict)
    breaks: set[str] = field(default_factory=set)
    holds: set[str] = field(default_factory=set)
    hanging: set[str] = field(default_factory=set)
    whole: set[str] = field(default_factory=set)
    go_on: threading.Event = field(default_factory=threading.Event)
    left: dict[str, threading.Event] = field(default_factory=dict)

    def leaves(self, name: str) -> threading.Event:
        """Set once a client has hung up on this model."""
        return self.left.setdefault(name, threading.Event())

    async def handle(self, request: web.Request, body: Any) -> web.StreamResponse:
        name = body["model"]
        try:
            return await self._answer(name, request, body)
        except (asyncio.CancelledError, ConnectionResetError):
            self.leaves(name).set()
            raise

    async def _answer(self, name: str, request: web.Request, body: Any) -> web.StreamResponse:
        if self.status.get(name):
            return json_reply({}, self.status[name].pop())
        if name in self.hanging:
            await asyncio.Event().wait()
        pieces = self.says.get(name, ["two", " pieces"])
        if not body.get("stream") or name in self.whole:
            return json_reply(completion("".join(pieces), usage=USAGE))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for number, piece in enumerate(pieces):
            if number == 1 and name in self.holds:
                await self._wait()
            await response.write(_event(chunk(piece, usage=self.told)))
        if name in self.breaks and request.transport is not None:
            request.transport.close()
            return response
        for last in (chunk(finish="stop"), *([chunk(usage=self.usage)] if self.usage else ())):
            await response.write(_event(last))
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _wait(self) -> None:
        for _ in range(10_000):
            if self.go_on.is_set():
                return
            await asyncio.sleep(0.002)


def _event(payload: Any) -> bytes:
    return f"data: {json.dumps(payload)}\n\n".encode()


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def server(service: Service) -> Iterator[Server]:
    with serving(service.handle) as running:
        yield running


def pool(server: Server, *names: str, **settings: Any) -> list[Endpoint]:
    """The first is the cheapest, and so on."""
    return [
        Endpoint(
            name, base_url=server.url, model=name, input_usd_per_1m=1 + i, output_usd_per_1m=1 + i, dialect="llamacpp",
            **settings,
        )
        for i, name in enumerate(names)
    ]  # fmt: skip


def cost(ensemble: Ensemble | AsyncEnsemble, name: str) -> Decimal:
    """What the ledger has for one endpoint."""
    return ensemble.stats().endpoints[name].cost or Decimal(0)


# -- what is said -----------------------------------------------------------------------------------------------------


def test_a_service_that_does_not_stream_gives_its_reply_in_one_piece(service: Service, server: Server) -> None:
    service.whole.add("a")
    with Ensemble(pool(server, "a"), policy="best-single", probe_share=0) as ensemble:
        with ensemble.stream(QUESTION) as stream:
            assert list(stream) == ["two pieces"]
        assert cost(ensemble, "a") == stream.answer.cost == PAID
    assert stream.answer.text == "two pieces"
    assert len(server.received) == 1


def test_a_single_member_is_streamed_while_it_writes(service: Service, server: Server) -> None:
    """The service does not go on before its first piece was read here."""
    service.holds.add("a")
    with Ensemble(pool(server, "a", "b"), policy="best-single") as ensemble:
        with ensemble.stream(QUESTION, tags=["t"], metadata={"mine": 1}) as stream:
            first = next(stream)
            with pytest.raises(RuntimeError, match="read to its end"):
                _ = stream.answer
            service.go_on.set()
            assert [first, *stream] == ["two", " pieces"]
        answer = stream.answer
        assert cost(ensemble, "a") == PAID
    assert answer.text == answer.value == "two pieces"
    assert answer.replies[0].usage is not None
    assert (answer.replies[0].usage.prompt_tokens, answer.replies[0].usage.completion_tokens) == (30, 4)
    assert (answer.cost, answer.receipt.calls[0].cost_source) == (PAID, "price")
    assert answer.receipt.tags == ("t",)
    assert answer.metadata == {"mine": 1}
    assert server.received[0].body["stream_options"] == {"include_usage": True}


def test_async_is_the_same(service: Service, server: Server) -> None:
    async def run() -> tuple[list[str], Answer]:
        async with AsyncEnsemble(pool(server, "a"), store=None) as ensemble:
            async with ensemble.stream(QUESTION) as stream:
                pieces = [piece async for piece in stream]
            return pieces, stream.answer

    pieces, answer = asyncio.run(run())
    assert "".join(pieces) == "two pieces"
    assert (answer.text, answer.cost) == ("two pieces", PAID)


def test_a_streamed_answer_is_followed_by_no_further_round(service: Service, server: Server) -> None:
    with Ensemble(pool(server, *"abcd"), policy="cascade") as ensemble, ensemble.stream(QUESTION) as stream:
        assert "".join(stream) == "two pieces"
    assert len(server.received) == len(stream.answer.replies) == 1


def test_the_one_member_that_is_picked_is_streamed(service: Service, server: Server, tmp_path: Path) -> None:
    members, policy = pool(server, *"abc"), ask_all(tmp_path / "policy")
    with Ensemble(members, policy=policy) as ensemble, ensemble.stream(QUESTION, combine="pick") as stream:
        assert "".join(stream) == "two pieces"
    assert [got.body["stream"] for got in server.received] == [True]
    assert stream.answer.made_of == (stream.answer.replies[0].endpoint,)


def test_several_members_are_fused_and_the_text_comes_once(service: Service, server: Server) -> None:
    service.says = {"a": ["no"], "b": ["yes"], "c": ["yes"]}
    with Ensemble(pool(server, *"abc"), policy="plurality") as ensemble, ensemble.stream(QUESTION) as stream:
        assert list(stream) == ["yes"]
    assert len(stream.answer.replies) == 3
    assert not any("stream" in call.body for call in server.received)


@pytest.mark.parametrize(("options", "said"), [({"choices": ["one", "two"]}, "two"), ({"answer": "short"}, "two")])
def test_answers_that_can_be_compared_come_in_one_piece(
    service: Service, server: Server, options: Any, said: str
) -> None:
    service.says["a"] = ["t", "wo"]
    with Ensemble(pool(server, "a"), policy="best-single") as ensemble, ensemble.stream(QUESTION, **options) as stream:
        assert list(stream) == [said]
    assert stream.answer.value == said


def test_feedback_on_a_streamed_answer_is_learned(service: Service, server: Server) -> None:
    with Ensemble(pool(server, "a")) as ensemble:
        with ensemble.stream(QUESTION) as stream:
            list(stream)
        ensemble.feedback(stream.answer, reward=1.0)
        assert ensemble.stats().endpoints["a"].seen == 1


@pytest.fixture(scope="module")
def dialects() -> Iterator[SimulatedPool]:
    """A model of each dialect, named for it."""
    models = [SimulatedModel(name, verbosity=12, skill=1.0, latency_s=0.05) for name in get_args(DialectName)[:7]]
    with SimulatedPool(models, dialects={name: name for name in get_args(DialectName)[:7]}) as simulated:
        yield simulated


@pytest.mark.parametrize("dialect", get_args(DialectName)[:7])
def test_a_streams_cost_is_the_services_bill(dialects: SimulatedPool, dialect: DialectName) -> None:
    """Where it tells of a stream's usage at all."""
    (endpoint,) = [endpoint for endpoint in dialects.endpoints if endpoint.name == dialect]
    with Ensemble([endpoint]) as ensemble, ensemble.stream("What is 17 + 25?") as stream:
        pieces = list(stream)
    billed = dialects.stats()[dialect].usd
    assert "".join(pieces) == stream.answer.text
    assert stream.answer.text.endswith("42.")
    if dialect == "minimal":  # it never does
        assert (stream.answer.cost, stream.answer.receipt.calls[0].cost_source) == (None, "unknown")
    else:
        assert stream.answer.cost == pytest.approx(billed)


def test_a_ready_openai_client_streams_too(service: Service, server: Server) -> None:
    async def run() -> str:
        client = openai.AsyncOpenAI(base_url=server.url, api_key="unused")
        async with client, AsyncEnsemble([Endpoint("mine", client=client, model="a")]) as ensemble:
            return "".join([piece async for piece in ensemble.stream(QUESTION)])

    assert asyncio.run(run()) == "two pieces"


# -- what fails -------------------------------------------------------------------------------------------------------


def test_a_member_that_fails_before_its_first_piece_is_asked_again(service: Service, server: Server) -> None:
    service.status["a"] = [503]
    with Ensemble(pool(server, "a")) as ensemble, ensemble.stream(QUESTION) as stream:
        assert "".join(stream) == "two pieces"
    assert stream.answer.replies[0].attempts == 2


def test_another_endpoint_is_asked_if_one_refuses_before_its_first_piece(service: Service, server: Server) -> None:
    service.status["a"] = [400]
    with Ensemble(pool(server, "a", "b"), policy="best-single") as ensemble, ensemble.stream(QUESTION) as stream:
        assert "".join(stream) == "two pieces"
    assert [reply.ok for reply in stream.answer.replies] == [False, True]


def test_an_answer_that_breaks_off_is_an_error_with_what_was_said_and_its_bill(
    service: Service, server: Server
) -> None:
    """Nobody is asked again: half of the answer is out already. The bill is what was reserved."""
    service.breaks.add("a")
    said: list[str] = []
    with Ensemble(pool(server, "a", "b"), policy="best-single", budget=Budget(usd_total=1)) as ensemble:
        with ensemble.stream(QUESTION) as stream, pytest.raises(StreamBroken, match="protocol") as caught:
            said.extend(stream)
        assert list(stream) == []
        (reply,) = caught.value.replies
        assert reply.cost is not None
        assert cost(ensemble, "a") == reply.cost > PAID
        assert reply.cost_source == "reserved"
    assert caught.value.text == "".join(said) == "two pieces"
    assert "pieces" not in str(caught.value)
    assert len(server.received) == 1
    with pytest.raises(RuntimeError, match="read to its end"):
        _ = stream.answer


def test_a_service_that_tells_of_its_usage_as_it_goes_is_paid_that_much(service: Service, server: Server) -> None:
    service.breaks.add("a")
    service.told = USAGE
    with Ensemble(pool(server, "a"), budget=Budget(usd_total=1)) as ensemble:
        with pytest.raises(StreamBroken):
            list(ensemble.stream(QUESTION))
        assert cost(ensemble, "a") == PAID


def test_when_all_fail_nothing_was_streamed(service: Service, server: Server) -> None:
    service.status = {"a": [400], "b": [400]}
    with Ensemble(pool(server, "a", "b")) as ensemble, pytest.raises(PoolError) as caught:
        list(ensemble.stream(QUESTION))
    assert not isinstance(caught.value, StreamBroken)
    assert len(caught.value.replies) == 2


def test_the_deadline_holds_before_the_first_piece_and_after_it(service: Service, server: Server) -> None:
    service.hanging.add("a")
    service.holds.add("b")
    with Ensemble(pool(server, "a")) as ensemble, pytest.raises(DeadlineExceeded):
        list(ensemble.stream(QUESTION, deadline_s=0.2))
    with Ensemble(pool(server, "b")) as ensemble:
        service.go_on.set()
        list(ensemble.stream(QUESTION))  # loads libraries, for which no deadline below shall pay
        service.go_on.clear()
        with pytest.raises(StreamBroken) as caught:
            list(ensemble.stream(QUESTION, deadline_s=3.0))
    assert caught.value.text == "two"
    assert service.leaves("b").wait(LONG_S)


def test_while_a_member_is_silent_another_is_asked_and_the_first_to_write_is_streamed(
    service: Service, server: Server, impatient: Callable[[], None]
) -> None:
    """The one that hangs is given up, down to its socket, before the other has ended."""
    service.holds.add("b")
    with Ensemble(pool(server, "a", "b"), policy="best-single") as ensemble:
        list(ensemble.stream(QUESTION))  # loads libraries, for which no deadline below shall pay
        service.hanging.add("a")
        impatient()
        with ensemble.stream(QUESTION, deadline_s=60) as stream:
            first = next(stream)
            assert service.leaves("a").wait(LONG_S)
            service.go_on.set()
            assert [first, *stream] == ["two", " pieces"]
    kinds = [(reply.endpoint, reply.error.kind if reply.error else "ok") for reply in stream.answer.replies]
    assert kinds == [("a", "cancelled"), ("b", "ok")]


def test_a_member_that_has_begun_to_write_is_not_raced(service: Service, server: Server) -> None:
    """However late it is."""
    service.holds.add("a")
    members = pool(server, "a", "b")
    with Ensemble(members, policy="best-single") as ensemble:
        service.go_on.set()
        list(ensemble.stream(QUESTION))  # loads libraries, for which no deadline below shall pay
        service.go_on.clear()
        with ensemble.stream(QUESTION, deadline_s=6.0) as stream:
            next(stream)
            time.sleep(3.1)  # more than half of the time
            service.go_on.set()
            list(stream)
    assert [call.body["model"] for call in server.received] == ["a", "a"]


# -- what is given up -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("told", [None, USAGE])
def test_a_caller_that_leaves_early_pays_what_was_consumed(service: Service, server: Server, told: Any) -> None:
    """The usage told of so far, else what was reserved; the service sees the connection close."""
    service.holds.add("a")
    service.told = told
    with Ensemble(pool(server, "a"), budget=Budget(usd_total=1)) as ensemble:
        with ensemble.stream(QUESTION) as stream:
            next(stream)
        assert service.leaves("a").wait(LONG_S)
        assert list(stream) == []
        assert cost(ensemble, "a") == PAID if told else cost(ensemble, "a") > PAID
        assert ensemble.stats().endpoints["a"].breaker == "closed"
        stream.close()


def test_a_loop_that_is_left_gives_its_stream_up(service: Service, server: Server) -> None:
    service.holds.add("a")
    with Ensemble(pool(server, "a")) as ensemble:
        for piece in ensemble.stream(QUESTION):
            assert piece == "two"
            break
        gc.collect()
        assert service.leaves("a").wait(LONG_S)
        until(lambda: ensemble.stats().endpoints["a"].calls == 1)


def test_a_cancelled_task_gives_its_stream_up(service: Service, server: Server) -> None:
    service.holds.add("a")

    async def run() -> None:
        async with AsyncEnsemble(pool(server, "a"), budget=Budget(usd_total=1)) as ensemble:
            spoken = asyncio.Event()

            async def read() -> None:
                async with ensemble.stream(QUESTION) as stream:
                    async for _ in stream:
                        spoken.set()

            task = asyncio.create_task(read())
            await spoken.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert cost(ensemble, "a") > 0
            assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())
    assert service.leaves("a").wait(LONG_S)


def test_a_closed_ensemble_gives_its_streams_up_and_says_so(service: Service, server: Server, tmp_path: Path) -> None:
    """Half an answer shall not pass for a whole one, and one that was not begun is not asked for any more."""
    service.holds.add("a")

    async def run() -> None:
        ensemble = AsyncEnsemble(pool(server, "a"), store=tmp_path / "s.db", budget=Budget(usd_total=1))
        stream, unread = ensemble.stream(QUESTION), ensemble.stream(QUESTION)
        assert await anext(stream) == "two"
        await ensemble.aclose()
        with pytest.raises(EnsembleClosed):
            await anext(unread)
        with pytest.raises(RuntimeError, match="ensemble was closed"):
            await anext(stream)
        with pytest.raises(RuntimeError, match="closed"):
            ensemble.stream(QUESTION)

    asyncio.run(run())
    with Ensemble(pool(server, "a"), store=tmp_path / "s.db") as ensemble:
        assert cost(ensemble, "a") > 0


def test_a_blocking_stream_outlives_its_ensemble_politely(service: Service, server: Server) -> None:
    service.holds.add("a")
    with Ensemble(pool(server, "a")) as ensemble:
        stream = ensemble.stream(QUESTION)
        next(stream)
    with pytest.raises(RuntimeError, match="closed"):
        next(stream)
    stream.close()


def test_a_stream_with_two_readers_ends_for_both(service: Service, server: Server) -> None:
    """The one that did not get the end waited for it without end."""

    async def run() -> None:
        async with AsyncEnsemble(pool(server, "a")) as ensemble:
            stream = ensemble.stream(QUESTION)

            async def read() -> list[str]:
                return [piece async for piece in stream]

            async with asyncio.timeout(LONG_S):
                heard = await asyncio.gather(read(), read())
            assert sorted(map("".join, heard)) in (["", "two pieces"], [" pieces", "two"])

    asyncio.run(run())


def test_a_stream_that_is_closed_while_it_is_read_ends(service: Service, server: Server) -> None:
    """It said that its ensemble was closed."""
    service.holds.add("a")

    async def run() -> None:
        async with AsyncEnsemble(pool(server, "a")) as ensemble:
            stream = ensemble.stream(QUESTION)
            assert await anext(stream) == "two"
            rest = asyncio.ensure_future(stream.next_piece())
            await asyncio.sleep(0)
            await stream.aclose()
            assert await rest is None

    asyncio.run(run())


def test_a_stream_that_is_never_read_asks_no_endpoint(service: Service, server: Server) -> None:
    with Ensemble(pool(server, "a")) as ensemble:
        stream = ensemble.stream(QUESTION)
        stream.close()
        assert list(stream) == []
    assert server.received == []


# -- how it is called -------------------------------------------------------------------------------------------------


def test_it_takes_what_ask_takes() -> None:
    asked = inspect.signature(AsyncEnsemble.ask).parameters
    assert set(asked) == {"self", *ARGUMENTS}
    assert list(inspect.signature(AsyncEnsemble.stream).parameters) == list(asked)
    assert list(inspect.signature(Ensemble.ask).parameters) == list(asked)


def test_wrong_arguments_are_refused_at_once(service: Service, server: Server) -> None:
    with Ensemble(pool(server, "a")) as ensemble, pytest.raises(ConfigError, match="query"):
        ensemble.stream("")
    assert server.received == []


def test_a_service_that_does_not_stream_its_usage_is_not_asked_for_it(service: Service, server: Server) -> None:
    with Ensemble(pool(server, "a", stream_usage=False)) as ensemble:
        list(ensemble.stream(QUESTION))
    assert "stream_options" not in server.received[0].body


@pytest.mark.parametrize(("dialect", "connections"), [("together", 1), ("llamacpp", 3)])
def test_connections_to_services_far_away_are_used_again(dialect: Any, connections: int) -> None:
    """Servers nearby may hang up after a stream without having said so: none of theirs is used twice."""
    peers = set()

    async def handler(request: web.Request, _: Any) -> web.StreamResponse:
        assert request.transport is not None
        peers.add(request.transport.get_extra_info("peername"))
        return await sse(request, chunk("yes"), chunk(finish="stop"), "[DONE]")

    with serving(handler) as running:
        endpoint = Endpoint("a", base_url=running.url, model="a", dialect=dialect)
        with Ensemble([endpoint]) as ensemble:
            assert ["".join(ensemble.stream(QUESTION)) for _ in range(3)] == ["yes"] * 3
    assert len(peers) == connections


def test_many_streams_at_a_time_do_not_get_mixed_up() -> None:
    models = [SimulatedModel("one", verbosity=20, skill=1.0)]

    async def run(endpoints: Any) -> None:
        async with AsyncEnsemble(endpoints) as ensemble:

            async def read(number: int) -> None:
                async with ensemble.stream(f"What is {number} + {number}?") as stream:
                    pieces = [piece async for piece in stream]
                assert "".join(pieces) == stream.answer.text
                assert stream.answer.text.endswith(f" {2 * number}.")

            await asyncio.gather(*(read(number) for number in range(10, 50)))

    with SimulatedPool(models) as simulated:
        asyncio.run(run(simulated.endpoints))


def test_a_stream_that_is_cut_costs_what_was_reserved(service: Service) -> None:
    with SimulatedPool([SimulatedModel("one", verbosity=20)]) as simulated:
        simulated.set("one", faults=[Fault("short")])
        with Ensemble(simulated.endpoints, attempts=1, budget=Budget(usd_total=1)) as ensemble:
            with pytest.raises(StreamBroken) as caught:
                list(ensemble.stream("What is 17 + 25?"))
            billed = simulated.stats()["one"].usd
            assert cost(ensemble, "one") == caught.value.replies[0].cost
            assert cost(ensemble, "one") >= billed > 0
    assert caught.value.text
