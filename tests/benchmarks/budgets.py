"""Checks a total budget shared by several processes on one store: ``python -m tests.benchmarks.budgets``.

The budget is half of what all asks would cost if each cost as much as the first 100 on average. The benchmark prints
what the simulated providers billed, and what ledger and receipts have. It fails unless

- asks are refused with BudgetExceeded, and billed <= spent + reserved <= limit;
- if every call was completed, ledger = receipts = billed, to the last digit, streamed calls included;
- after a process was killed and asks were cancelled midway, unknown costs count as their reservations.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, aclosing, closing
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from focalroute import Answer, AsyncEnsemble, Budget, Endpoint
from focalroute.core.pool import load_pool
from focalroute.endpoints.client import EndpointClient, HttpSessions
from focalroute.endpoints.paid_call import upper_bound
from focalroute.endpoints.wire import Request
from focalroute.money.budget import BudgetGuard
from focalroute.money.cost import Bill, cost_of
from focalroute.sim import SimulatedModel, SimulatedPool, stream
from focalroute.sim.process import pool_toml
from focalroute.store import open_store
from focalroute.store.accounts import Account
from focalroute.store.base import PROBE

MODELS = [
    SimulatedModel("small", skill=0.6, input_usd_per_1m=Decimal("0.1"), output_usd_per_1m=Decimal("0.1")),
    SimulatedModel("middle", skill=0.75, input_usd_per_1m=Decimal("0.4"), output_usd_per_1m=Decimal("0.6")),
    SimulatedModel("large", skill=0.9, verbosity=20, input_usd_per_1m=Decimal("2"), output_usd_per_1m=Decimal("6")),
]
STREAMED_EVERY = 10
CANCELLED_EVERY = 25
AT_AN_ENDPOINT = 100  # concurrent calls of one process


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one run; amounts are USD.

    Attributes:
        asks: how asks ended ("answered", "refused", "streamed", "cancelled", or an error's name) -> how often.
        limit: the total budget.
        billed: the sum that the simulated providers billed.
        spent, reserved: the limit's account, at the end.
        ledger: the sum of the ledger; ``probes``: the part of it that no ask paid for.
        receipts: the sum over all answers and streamed calls.
        seconds: the duration of the run.
        problems: what is wrong with the store.
    """

    asks: Counter[str]
    limit: Decimal
    billed: Decimal
    spent: Decimal
    reserved: Decimal
    ledger: Decimal
    probes: Decimal
    receipts: Decimal
    seconds: float
    problems: tuple[str, ...]

    def check(self, *, exact: bool) -> None:
        """Raise AssertionError if amounts are wrong or the limit was exceeded; ``exact``: every call was completed."""
        assert self.problems == (), self.problems
        assert not self.asks.keys() - {"answered", "refused", "streamed", "cancelled"}, self.asks
        assert self.asks["answered"], self.asks
        assert self.ledger == self.spent, (self.ledger, self.spent)
        assert self.billed <= self.spent + self.reserved <= self.limit, self
        if exact:
            assert self.asks["refused"], self.asks
            assert self.ledger == self.receipts + self.probes, self
            # a reservation can only be left for a call that was given up because it was silent for too long
            assert self.reserved or self.billed == self.ledger, self


# -- one process -------------------------------------------------------------------------------------------------------


class Streamer:
    """Streams calls under the same budget: reserves the cost, then settles it by the usage that ends the stream."""

    def __init__(self, endpoint: Endpoint, guard: BudgetGuard) -> None:
        self.client = EndpointClient(endpoint, HttpSessions())
        self.guard = guard

    async def ask(self, number: str, text: str) -> Decimal | None:
        """Ask once; return the cost, or None if the budget does not allow it."""
        endpoint = self.client.endpoint
        request = Request(({"role": "user", "content": text},), max_tokens=64)
        bound = upper_bound(request, endpoint)
        assert bound is not None
        ask_budget = self.guard.ask_budget(None, number)
        hold = await ask_budget.reserve(endpoint.name, bound)
        if hold is None:
            return None
        bill = Bill(endpoint.name, None, bound, "reserved")
        try:
            async with aclosing(self.client.stream(request)) as pieces:
                async for piece in pieces:
                    if not isinstance(piece, str) and piece.usage is not None:
                        bill = Bill(endpoint.name, piece.usage, *cost_of(piece.usage, endpoint))
        finally:
            ask_budget.settle(hold, bill)
        return bill.cost


async def work(folder: Path, asks: int, seed: int, limit: str, concurrency: int, *, cancel: bool) -> dict[str, Any]:
    """Ask this number of questions on the folder's pool and store; return counts and the sum of the receipts."""
    endpoints = load_pool(folder / "pool.toml").endpoints
    budget = Budget(usd_total=limit)
    happened: Counter[str] = Counter()
    receipts: list[Decimal] = []
    with closing(open_store(folder / "s.db")) as store:
        streamer = Streamer(endpoints[1], BudgetGuard(budget, endpoints, store))
        async with AsyncEnsemble(endpoints, store=folder / "s.db", budget=budget, deadline_s=3600, seed=seed) as pool:

            async def one(number: int, question: Any) -> None:
                if number % STREAMED_EVERY == 0:
                    cost = await streamer.ask(f"{seed}-{number}", question.text)
                    happened["refused" if cost is None else "streamed"] += 1
                    receipts.extend([] if cost is None else [cost])
                    return
                ask = asyncio.ensure_future(pool.ask(question.text, choices=question.choices))
                if cancel and number % CANCELLED_EVERY == 1:
                    await asyncio.sleep(0.02 if concurrency else 0.004 * number)  # some have begun, some still wait
                    ask.cancel()
                got: object = (await asyncio.gather(ask, return_exceptions=True))[0]
                if isinstance(got, Answer):
                    assert got.cost is not None
                    receipts.append(got.cost)
                names = {"Answer": "answered", "BudgetExceeded": "refused", "CancelledError": "cancelled"}
                happened[names.get(type(got).__name__, repr(got))] += 1

            waiting = iter(enumerate(stream(asks, seed=seed)))

            async def take() -> None:
                for number, question in waiting:
                    await one(number, question)

            await asyncio.gather(*(take() for _ in range(concurrency or asks)))
    return {"asks": happened, "receipts": str(sum(receipts, Decimal(0)))}


# -- all of them -------------------------------------------------------------------------------------------------------


def mean_cost(pool: SimulatedPool, folder: Path) -> Decimal:
    """Measure the mean cost of an ask without a limit, USD; then reset the pool and remove the store."""
    report = asyncio.run(work(folder, 100, 99, "1000", 8, cancel=False))
    pool.reset()
    (folder / "s.db").unlink()
    return Decimal(report["receipts"]) / 100


def run(*, asks: int, processes: int, concurrency: int, kill: bool, limit: Decimal | None = None) -> Outcome:
    """Run once.

    Args:
        asks: number of asks, over all processes.
        processes: number of processes.
        concurrency: concurrent asks in each process; 0: all.
        kill: whether the first process is killed halfway, and asks are cancelled in all of them.
        limit: the total budget; None: half of what the asks would cost, by `mean_cost`.
    """
    models = [replace(model, latency_s=0.02 if kill else 0.0) for model in MODELS]
    with tempfile.TemporaryDirectory() as name, SimulatedPool(models) as pool, ExitStack() as stack:
        folder = Path(name)
        gated = f"[[endpoint]]\nmax_concurrency = {AT_AN_ENDPOINT}\n"
        (folder / "pool.toml").write_text(pool_toml(pool.endpoints).replace("[[endpoint]]\n", gated))
        limit = limit or (mean_cost(pool, folder) * asks / 2).quantize(Decimal("1e-9"))
        begun = time.perf_counter()
        rest = [str(asks // processes), str(limit), str(concurrency), str(int(kill))]
        command = [sys.executable, "-m", "tests.benchmarks.budgets", "--work", name, *rest]
        workers = [
            stack.enter_context(subprocess.Popen([*command, str(seed)], stdout=subprocess.PIPE, text=True))
            for seed in range(processes)
        ]
        if kill:
            _wait_for_spending(folder, limit)
            os.kill(workers[0].pid, signal.SIGKILL)
        outputs = [worker.communicate()[0] for worker in workers]
        reports = [json.loads(text) for text in outputs[int(kill) :]]
        _wait_until_idle(pool)
        with closing(open_store(folder / "s.db")) as store:
            balance = store.open_accounts([Account()])[Account()]
            return Outcome(
                asks=sum((Counter(report["asks"]) for report in reports), Counter()),
                limit=limit,
                billed=sum((stats.usd for stats in pool.stats().values()), Decimal(0)),
                spent=balance.spent,
                reserved=balance.reserved,
                ledger=sum((row.cost for row in store.totals().values()), Decimal(0)),
                probes=_probes(folder / "s.db"),
                receipts=sum((Decimal(report["receipts"]) for report in reports), Decimal(0)),
                seconds=time.perf_counter() - begun,
                problems=store.verify(),
            )


def _probes(path: Path) -> Decimal:
    """Sum the ledger's rows that no ask paid for."""
    with closing(sqlite3.connect(path)) as db:
        probes = "answer_id = ? OR answer_id LIKE ?"  # capability checks and breaker trials; exploration calls
        query = f"SELECT coalesce(sum(cost_pico), 0) FROM ledger WHERE {probes}"
        pico = db.execute(query, (PROBE, f"{PROBE}:%")).fetchone()[0]
    return Decimal(pico) / 10**12


def _wait_for_spending(folder: Path, limit: Decimal) -> None:
    """Wait until a quarter of the limit is spent."""
    with closing(open_store(folder / "s.db")) as store:
        while store.open_accounts([Account()])[Account()].spent < limit / 4:
            time.sleep(0.02)


def _wait_until_idle(pool: SimulatedPool) -> None:
    """Wait until the providers bill nothing more; calls of a process that died may still be running."""
    before = None
    while (after := pool.stats()) != before:
        before = after
        time.sleep(0.2)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run with and without the kill, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--asks", type=int, default=10_000)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--concurrency", type=int, default=0, help="concurrent asks in each process; 0: all")
    parser.add_argument("--work", nargs=6, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.work:
        folder, asks, limit, concurrency, cancel, seed = given.work
        report = work(Path(folder), int(asks), int(seed), limit, int(concurrency), cancel=cancel == "1")
        print(json.dumps(asyncio.run(report)))
        return
    columns = ("answered", "streamed", "refused", "cancelled", "limit", "billed", "ledger", "receipts + probes")
    print(f"| run | {' | '.join(columns)} | reserved | s |\n|{'---|' * (len(columns) + 3)}")
    for what, kill in (("all calls completed", False), ("one process killed, 4 % cancelled", True)):
        got = run(asks=given.asks, processes=given.processes, concurrency=given.concurrency, kill=kill)
        counts = " | ".join(str(got.asks[name]) for name in ("answered", "streamed", "refused", "cancelled"))
        amounts = (got.limit, got.billed, got.ledger, got.receipts + got.probes, got.reserved)
        usd = " | ".join(f"{amount:.6f}" for amount in amounts)
        print(f"| {what} | {counts} | {usd} | {got.seconds:.0f} |", flush=True)
        got.check(exact=not kill)


if __name__ == "__main__":
    main()
