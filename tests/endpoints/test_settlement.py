"""A call that broke off is settled at the cost that its service reports afterwards."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from aiohttp import web

from focalroute import AsyncEnsemble, Budget, Endpoint, Ensemble, PoolError
from focalroute.endpoints import paid_call
from focalroute.endpoints.wire.fields import stated_cost
from focalroute.store.base import LedgerSum
from focalroute.store.sqlite.store import SqliteStore
from tests.loopback import Server, completion, json_reply, serving, sse, until

SETTINGS: dict[str, Any] = {"attempts": 1, "explore": False, "probe_share": 0, "deadline_s": 30.0}


class Gateway:
    """Replies once as it should, then as ``breaks`` says; tells costs from the third time on that it is asked."""

    def __init__(self) -> None:
        self.breaks = "status"
        self.name = "gen-1"
        self.told: Any = {"data": {"id": "gen-1", "total_cost": 0.000123, "upstream_inference_cost": 0.0001}}
        self.calls = 0
        self.looked_up: list[tuple[str, str | None]] = []
        self.held = threading.Event()  # set: what is looked up hangs

    async def handle(self, request: web.Request, _: Any) -> web.StreamResponse:
        if request.path == "/v1/generation":
            assert request.method == "GET"
            self.looked_up.append((request.query["id"], request.headers.get("Authorization")))
            if self.held.is_set():
                await asyncio.sleep(60)
            if len(self.looked_up) < 3:
                return json_reply({"error": {"message": "not found", "code": 404}}, 404)
            return json_reply(self.told)
        self.calls += 1
        named = {"X-Generation-Id": self.name}
        if self.calls == 1:
            return json_reply(completion("A", id="gen-0"), headers={"X-Generation-Id": "gen-0"})
        if self.breaks == "status":
            return json_reply({"error": {"message": "no"}}, 504, named)
        if self.breaks == "stream":
            chunk = {"id": self.name, "choices": [{"index": 0, "delta": {"content": "A"}}]}
            return await sse(request, chunk, end=False)
        response = web.StreamResponse(headers={**named, "Content-Type": "application/json"})
        await response.prepare(request)
        await response.write(b'{"choices": ')
        if self.breaks == "cut" and request.transport is not None:
            request.transport.abort()
        else:
            await asyncio.sleep(60)
        return response


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Gateway:
    monkeypatch.setattr(paid_call, "_WAITS_S", (0.01, 0.02, 0.03, 0.04))
    return Gateway()


@pytest.fixture
def server(gateway: Gateway) -> Iterator[Server]:
    with serving(gateway.handle) as running:
        yield running


def endpoint(server: Server, **fields: Any) -> Endpoint:
    able = {"logprobs": False, "top_logprobs": 0, "n": False, "structured_choice": False, "stream_usage": True}
    given: dict[str, Any] = {"base_url": server.url, "dialect": "openrouter", "api_key": "sk-secret", **able, **fields}
    return Endpoint("a", model="m", input_usd_per_1m=10, output_usd_per_1m=10, **given)


def ledger(path: Path) -> LedgerSum:
    with closing(SqliteStore(path)) as store:
        assert store.verify() == ()
        (row,) = store.ledger("all")
    return row


def break_off(ensemble: Ensemble, **arguments: Any) -> Decimal:
    """Ask twice, of which the second call breaks off; what the first cost."""
    cost = ensemble.ask("?", choices=["A", "B"], **arguments).cost
    with pytest.raises(PoolError):
        ensemble.ask("?", choices=["A", "B"], **arguments)
    assert cost is not None
    return Decimal(cost)


def until_settled(path: Path) -> None:
    with closing(SqliteStore(path)) as store:
        until(lambda: [one.held for one in store.ledger("all")] == [0])


@pytest.mark.parametrize("breaks", ["status", "cut", "hang"])
@pytest.mark.parametrize("client", ["own", "httpx", "openai"])
def test_the_cost_that_the_service_reports_replaces_the_estimate(
    gateway: Gateway, server: Server, tmp_path: Path, breaks: str, client: str
) -> None:
    gateway.breaks, path = breaks, tmp_path / "s.db"

    async def run() -> None:
        async with httpx.AsyncClient() as http, openai.AsyncOpenAI(base_url=server.url, api_key="sk-secret") as ready:
            fields: dict[str, dict[str, Any]] = {
                "own": {},
                "httpx": {"http_client": http},
                "openai": {"client": ready, "base_url": None, "api_key": None},
            }
            pool = [endpoint(server, **fields[client])]
            async with AsyncEnsemble(pool, store=path, budget=Budget(usd_total=1), **SETTINGS) as ensemble:
                first = (await ensemble.ask("?", choices=["A", "B"])).cost or Decimal(0)
                with pytest.raises(PoolError):
                    await ensemble.ask("?", choices=["A", "B"], deadline_s=2.0 if breaks == "hang" else 30.0)
                await asyncio.to_thread(until_settled, path)
                row = ledger(path)
                assert (row.calls, row.estimated) == (2, 0)
                assert row.cost == ensemble.stats().endpoints["a"].cost == first + Decimal("0.000223")

    asyncio.run(run())
    assert gateway.looked_up == [("gen-1", "Bearer sk-secret")] * 3


def test_a_stream_is_known_by_the_name_in_its_pieces(gateway: Gateway, server: Server, tmp_path: Path) -> None:
    gateway.breaks, path = "stream", tmp_path / "s.db"
    with Ensemble([endpoint(server)], store=path, budget=Budget(usd_total=1), **SETTINGS) as ensemble:
        ensemble.ask("?", choices=["A", "B"])
        with pytest.raises(PoolError), ensemble.stream("?", params={"max_tokens": 10}) as pieces:
            list(pieces)
        until_settled(path)
    assert {name for name, _ in gateway.looked_up} == {"gen-1"}


def test_a_cost_beyond_what_was_reserved_is_not_believed(gateway: Gateway, server: Server, tmp_path: Path) -> None:
    gateway.told, path = {"data": {"total_cost": 99999}}, tmp_path / "s.db"
    with Ensemble([endpoint(server)], store=path, budget=Budget(usd_total="0.01"), **SETTINGS) as ensemble:
        break_off(ensemble)
        until_settled(path)
    assert ledger(path).cost <= Decimal("0.01")


@pytest.mark.parametrize("why", ["another service", "no name", "an odd name", "no limit"])
def test_nothing_is_looked_up_without_a_limit_or_a_proper_id_of_the_call(
    gateway: Gateway, server: Server, tmp_path: Path, why: str
) -> None:
    gateway.name = {"no name": "", "an odd name": "../credits?x=1"}.get(why, "gen-1")
    fields = {"dialect": "openai"} if why == "another service" else {}
    budget = None if why == "no limit" else Budget(usd_total=1)
    with Ensemble([endpoint(server, **fields)], store=tmp_path / "s.db", budget=budget, **SETTINGS) as ensemble:
        break_off(ensemble)
        time.sleep(0.2)
    assert gateway.looked_up == []
    assert ledger(tmp_path / "s.db").held > 0 or budget is None


@pytest.mark.parametrize("told", [{"data": {}}, {"data": {"total_cost": "soon"}}, [], {"data": {"total_cost": -1}}])
def test_a_cost_that_the_service_does_not_report_stays_an_estimate(
    gateway: Gateway, server: Server, tmp_path: Path, told: Any
) -> None:
    gateway.told = told
    with Ensemble([endpoint(server)], store=tmp_path / "s.db", budget=Budget(usd_total=1), **SETTINGS) as ensemble:
        break_off(ensemble)
        until(lambda: len(gateway.looked_up) == 4)
        time.sleep(0.1)
    row = ledger(tmp_path / "s.db")
    assert row.held == 2 * row.estimated_cost > 0


def test_neither_an_answer_nor_the_close_waits_for_a_lookup(gateway: Gateway, server: Server, tmp_path: Path) -> None:
    gateway.held.set()
    with Ensemble([endpoint(server)], store=tmp_path / "s.db", budget=Budget(usd_total=1), **SETTINGS) as ensemble:
        break_off(ensemble)
        until(lambda: len(gateway.looked_up) == 1)
        gateway.calls = 0
        began = time.monotonic()
        ensemble.ask("?", choices=["A", "B"])
    assert time.monotonic() - began < 30
    assert server.cut.wait(30)


def test_a_lookup_that_hangs_is_made_again(
    gateway: Gateway, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("focalroute.endpoints.client.LOOKUP_S", 0.5)
    gateway.held.set()
    with Ensemble([endpoint(server)], store=tmp_path / "s.db", budget=Budget(usd_total=1), **SETTINGS) as ensemble:
        break_off(ensemble)
        until(lambda: len(gateway.looked_up) >= 3)


def test_the_lookups_under_way_are_bounded(
    gateway: Gateway, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paid_call, "_MOST_LOOKUPS", 2)
    gateway.held.set()
    with Ensemble([endpoint(server)], store=tmp_path / "s.db", budget=Budget(usd_total=1), **SETTINGS) as ensemble:
        break_off(ensemble)
        for _ in range(3):
            with pytest.raises(PoolError):
                ensemble.ask("?", choices=["A", "B"])
        until(lambda: len(gateway.looked_up) == 2)
        time.sleep(0.1)
    assert len(gateway.looked_up) == 2


def test_the_answer_to_a_lookup_is_read_no_further_than_an_error(
    gateway: Gateway, server: Server, tmp_path: Path
) -> None:
    gateway.told = {"data": {"total_cost": 0.0001, "more": "x" * 70_000}}
    with Ensemble([endpoint(server)], store=tmp_path / "s.db", budget=Budget(usd_total=1), **SETTINGS) as ensemble:
        break_off(ensemble)
        until(lambda: len(gateway.looked_up) == 4)
        time.sleep(0.1)
    assert ledger(tmp_path / "s.db").held > 0


@pytest.mark.parametrize(
    ("told", "cost"),
    [
        ({"total_cost": 0.5}, "0.5"),
        ({"total_cost": 0.5, "upstream_inference_cost": 0.25, "is_byok": False}, "0.5"),
        ({"total_cost": 0.5, "upstream_inference_cost": 0.25, "is_byok": True}, "0.75"),
        ({"total_cost": 0, "upstream_inference_cost": None}, "0"),
    ],
)
def test_the_upstream_cost_of_your_own_key_is_added(told: dict[str, Any], cost: str) -> None:
    assert stated_cost({"data": told}) == Decimal(cost)
