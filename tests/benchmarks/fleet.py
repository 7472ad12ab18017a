"""Tests a fleet on one Redis, whose learner is killed, and whose Redis is restarted.

``python -m tests.benchmarks.fleet`` starts 8 workers, which together ask 20,000 questions under one budget and give
feedback for each, and one learner. The learner is killed twice; Redis, with its append-only file, is restarted once.
Then all workers go on asking until a smaller limit is spent. The run fails unless

- every ask is answered, and every acknowledged feedback is in Redis, once and unchanged;
- each feedback was used by exactly one update, and none is left;
- the spending in Redis equals what the simulated providers billed, to the picodollar, except for reservations of calls
  that broke off; and no limit is exceeded;
- every living worker serves a new version within a second of its publication.

For the accuracy to expect, the same questions are asked through one process with a SQLite file, which makes as many
updates (their number depends on the machine, and each improves later answers). ``--pairs`` compares the two stores by
turns: asks per second and latencies of two processes that do nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from focalroute import AsyncEnsemble, Budget, BudgetExceeded, StoreError
from focalroute.core.pool import load_pool
from focalroute.learn.fleet.learner import FleetLearner
from focalroute.sim import SimulatedModel, SimulatedPool, stream
from focalroute.sim.process import pool_toml
from focalroute.store.accounts import Account
from focalroute.store.base import PROBE
from focalroute.store.redis.connection import KeyName
from focalroute.store.redis.fleet_policy import FleetPolicy
from focalroute.store.redis.store import RedisStore
from tests.benchmarks.budgets import _wait_until_idle
from tests.benchmarks.harness import machine
from tests.redis_server import RedisServer, place

CONCURRENCY = 4  # asks at a time in each worker
EVERY = 250  # feedbacks between two updates
_MODELS = tuple(
    SimulatedModel(name, skill=skill, latency_s=0.005, input_usd_per_1m=Decimal(usd), output_usd_per_1m=Decimal(usd))
    for name, skill, usd in (("small", 0.6, "0.1"), ("middle", 0.75, "0.3"), ("large", 0.9, "2"))
)


# -- one worker --------------------------------------------------------------------------------------------------------


async def work(folder: Path, where: str, asks: int, seed: int, limit: str) -> dict[str, Any]:
    """Ask this number of questions, with a label for each; return the results. Another process learns."""
    endpoints = load_pool(folder / "pool.toml").endpoints
    policy = folder / f"policy-{seed}"
    said: dict[str, Any] = {"acknowledged": {}, "right": [], "latencies": [], "refused": 0, "again": 0, "versions": []}
    receipts = Decimal(0)
    settings: dict[str, Any] = {"policy": policy, "budget": Budget(usd_total=limit), "seed": seed, "deadline_s": 600}
    async with AsyncEnsemble(endpoints, store=where, **settings) as pool:
        end = threading.Event()
        watcher = threading.Thread(target=watch, args=(pool, said["versions"], end))
        watcher.start()

        async def one(text: str, choices: Sequence[str], right: str) -> None:
            nonlocal receipts
            begun = time.perf_counter()
            answer = await until_there(lambda: pool.ask(text, choices=choices), said)
            assert answer.durable
            receipts += answer.cost or 0
            await until_there(lambda: pool.feedback(answer, label=right), said)
            said["latencies"].append(time.perf_counter() - begun)
            said["acknowledged"][answer.id] = right
            said["right"].append(answer.text == right)

        waiting = iter(stream(asks, seed=seed))

        async def take() -> None:
            for question in waiting:
                try:
                    await one(question.text, question.choices, question.answer)
                except BudgetExceeded:
                    said["refused"] += 1

        begun = time.perf_counter()
        await asyncio.gather(*(take() for _ in range(CONCURRENCY)))
        said["seconds"] = time.perf_counter() - begun
        (folder / f"done-{seed}").touch()
        await asyncio.to_thread(wait_while, folder / "hold")  # until the last version was published
        end.set()
        watcher.join()
    return {**said, "receipts": str(receipts)}


def wait_while(path: Path) -> None:
    """Wait while this file exists."""
    while path.exists():
        time.sleep(0.05)


async def until_there(act: Any, said: dict[str, Any]) -> Any:
    """Repeat a call that failed because Redis was away, as an application would."""
    while True:
        try:
            return await act()
        except StoreError:
            said["again"] += 1
            await asyncio.sleep(0.1)


def watch(pool: AsyncEnsemble, versions: list[tuple[float, int]], end: threading.Event) -> None:
    """Record when each version began to serve."""
    serving = -1
    while not end.wait(0.005):
        if pool._slot.current.version != serving:
            serving = pool._slot.current.version
            versions.append((time.time(), serving))


# -- the fleet ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run.

    Attributes:
        lags: seconds from a version's publication until a worker served it, for every version and worker.
        right: whether each answer was right, in the order of each worker.
    """

    asks: int
    lost: int
    doubled: int
    learned: int
    left: int
    versions: int
    lags: tuple[float, ...]
    billed: Decimal
    spent: Decimal
    reserved: Decimal
    ledger: Decimal
    receipts: Decimal
    probes: Decimal
    limit: Decimal
    refused: int
    right: tuple[tuple[bool, ...], ...] = field(repr=False)
    again: int
    seconds: float
    problems: tuple[str, ...]

    def check(self, *, versions: int = 1, refused: int = 1) -> None:
        """Raise AssertionError if a requirement is not met, or too few versions were published or asks refused."""
        assert self.problems == (), self.problems
        assert (self.lost, self.doubled, self.left) == (0, 0, 0), self
        assert self.learned == self.asks, self
        assert self.versions >= versions, self
        assert self.spent == self.ledger == self.receipts + self.probes, self
        assert self.billed <= self.spent + self.reserved, self  # which is for calls that broke off
        assert self.reserved or self.billed == self.spent, self
        assert self.spent <= self.limit, self
        assert self.refused >= refused, self


Worker = subprocess.Popen[str]


class Fleet:
    """Worker processes and a learner process, with their own Redis and simulated pool."""

    def __init__(self, folder: Path, server: RedisServer, pool: SimulatedPool, stack: ExitStack) -> None:
        self.folder, self.server, self.pool = folder, server, pool
        self.where = place(server.url)
        self._stack = stack
        self.published: list[tuple[float, int]] = []

    def workers(self, asks: int, seeds: Sequence[int], limit: str) -> list[Worker]:
        """Start a worker for each seed, with a journal."""
        where = f"{self.where}&journal={self.folder / 'journal'}"
        return [self.worker(where, asks, seed, limit) for seed in seeds]

    def worker(self, where: str, asks: int, seed: int, limit: str) -> Worker:
        """Start a worker on this store."""
        return self._start(
            ["-m", "tests.benchmarks.fleet", "--work", str(self.folder), where, str(asks), str(seed), limit]
        )

    def learner(self) -> Worker:
        """Start a learner."""
        command = ["-m", "focalroute", "update", "--store", self.where, "--policy", str(self.folder / "learner")]
        return self._start([*command, "--follow", "--every", str(EVERY), "--seed", "0"])

    def _start(self, arguments: Sequence[str]) -> Worker:
        process: Worker = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True)
        self._stack.enter_context(process)  # which closes its pipe, and waits for it
        self._stack.callback(process.kill)
        return process

    @contextmanager
    def watched(self, store: RedisStore) -> Iterator[None]:
        """Record when each version was published, by Redis's clock."""
        end, seen = threading.Event(), 0

        def look() -> None:
            nonlocal seen
            while not end.wait(0.1):
                try:
                    state = FleetPolicy(store).state()
                except StoreError:
                    continue
                if state.current != seen:
                    seen = state.current
                    self.published.append((state.since, seen))

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join()


@contextmanager
def new_fleet() -> Iterator[Fleet]:
    """Start an empty fleet with its own servers."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "redis").mkdir()
        server = stack.enter_context(RedisServer(folder / "redis"))
        pool = stack.enter_context(SimulatedPool(_MODELS))
        (folder / "pool.toml").write_text(pool_toml(pool.endpoints))
        yield Fleet(folder, server, pool, stack)


def run(*, asks: int, workers: int, kills: int = 2) -> Outcome:
    """Run once, with the kills and the restart after given shares of the asks."""
    with new_fleet() as fleet:
        begun = time.perf_counter()
        hold, server = fleet.folder / "hold", fleet.server
        hold.touch()
        with closing(RedisStore(fleet.where, patience_s=60)) as store, fleet.watched(store):
            learner = fleet.learner()
            started = fleet.workers(asks // workers, range(workers), "1000")
            for kill in range(kills):
                wait_for(store, asks * (kill + 1) / (kills + 2))
                learner.kill()
                if not kill:
                    server.stop()
                    server.start()
                learner = fleet.learner()
            while len(list(fleet.folder.glob("done-*"))) < workers:
                assert all(worker.poll() is None for worker in started), "a worker died"
                time.sleep(0.05)
            learner.terminate()
            learner.wait(60)
            last(store)
            time.sleep(1.0)  # that every worker gets to serve it
        hold.unlink()
        said = [json.loads(worker.communicate(timeout=300)[0]) for worker in started]
        seconds = time.perf_counter() - begun
        with closing(RedisStore(fleet.where)) as store:
            balance = store.open_accounts([Account()])[Account()]
        limit = (balance.spent * (1 + Decimal(workers) / asks) + balance.reserved).quantize(Decimal("1e-12"))
        more = fleet.workers(10, range(100, 100 + workers), str(limit))
        spending = [json.loads(worker.communicate(timeout=300)[0]) for worker in more]
        _wait_until_idle(fleet.pool)
        with closing(RedisStore(fleet.where)) as store:
            last(store)
            return measured(store, fleet.pool, [*said, *spending], fleet.published, limit, seconds, workers)


def last(store: RedisStore) -> None:
    """Make updates until all feedback is used."""
    learner = FleetLearner(store, every=1, seed=0)
    give_up = time.monotonic() + 60
    while FleetPolicy(store).state().learned < len_of(store, "feedback"):
        assert time.monotonic() < give_up
        learner.step()
        time.sleep(0.05)
    learner.close()


def len_of(store: RedisStore, stream: KeyName) -> int:
    return int(store.run(lambda connection: connection.command("XLEN", connection.keys[stream])))


def wait_for(store: RedisStore, feedbacks: float) -> None:
    """Wait until this number of feedbacks is in Redis."""
    while len_of(store, "feedback") < feedbacks:
        time.sleep(0.02)


def measured(
    store: RedisStore,
    pool: SimulatedPool,
    said: Sequence[dict[str, Any]],
    published: Sequence[tuple[float, int]],
    limit: Decimal,
    seconds: float,
    workers: int,
) -> Outcome:
    """Compare the workers' reports with Redis and the providers."""
    kept = {answer.id: feedback for answer, feedback in store.recent(10**6)}
    acknowledged = {key for one in said for key in one["acknowledged"]}
    balance = store.balances([Account()]).result()[Account()]
    state = FleetPolicy(store).state()
    lags = [
        max(0.0, min((at for at, version in one["versions"] if version >= number), default=float("inf")) - when)
        for when, number in published
        for one in said[:workers]
    ]
    return Outcome(
        asks=len(acknowledged),
        lost=sum(not kept.get(key) for key in acknowledged),
        doubled=sum(len(feedback) > 1 for feedback in kept.values()),
        learned=state.learned,
        left=len(FleetPolicy(store).unlearned(10**6)),
        versions=state.current,
        lags=tuple(lags),
        billed=sum((stats.usd for stats in pool.stats().values()), Decimal(0)),
        spent=balance.spent,
        reserved=balance.reserved,
        ledger=sum((row.cost for row in store.totals().values()), Decimal(0)),
        receipts=sum((Decimal(one["receipts"]) for one in said), Decimal(0)),
        probes=probes(store),
        limit=limit,
        refused=sum(one["refused"] for one in said),
        right=tuple(tuple(one["right"]) for one in said[:workers]),
        again=sum(one["again"] for one in said),
        seconds=seconds,
        problems=store.verify(),
    )


def probes(store: RedisStore) -> Decimal:
    """Sum the ledger's rows that no ask paid for, USD."""
    rows = store.run(lambda connection: connection.command("XRANGE", connection.keys["ledger"], "-", "+"))
    found = [json.loads(dict(zip(pairs[::2], pairs[1::2], strict=True))[b"row"]) for _, pairs in rows]
    return sum((Decimal(row[7]) for row in found if row[0].startswith(PROBE)), Decimal(0)) / 10**12


# -- beside one file ---------------------------------------------------------------------------------------------------


def alone(asks: int, workers: int, updates: int) -> tuple[tuple[bool, ...], ...]:
    """Ask the same questions through one process with one file and this number of updates; return what was right."""
    with tempfile.TemporaryDirectory() as name, SimulatedPool(_MODELS) as pool:
        folder = Path(name)
        (folder / "pool.toml").write_text(pool_toml(pool.endpoints))
        return asyncio.run(work_alone(folder, asks // workers, workers, every=asks // updates))


async def work_alone(folder: Path, asks: int, streams: int, *, every: int) -> tuple[tuple[bool, ...], ...]:
    """Ask all streams of questions at once through one ensemble, waiting for each of its updates."""
    endpoints = load_pool(folder / "pool.toml").endpoints
    right: list[list[bool]] = [[] for _ in range(streams)]
    settings: dict[str, Any] = {"budget": Budget(usd_total=1000), "seed": 0, "deadline_s": 600}
    async with AsyncEnsemble(endpoints, store=folder / "s.db", policy=folder / "policy", **settings) as pool:

        async def take(number: int, waiting: Iterator[Any]) -> None:
            for question in waiting:
                answer = await pool.ask(question.text, choices=question.choices)
                await pool.feedback(answer, label=question.answer)
                right[number].append(answer.text == question.answer)
                if sum(map(len, right)) % every == 0:
                    await pool.update()

        jobs = [(number, iter(stream(asks, seed=number))) for number in range(streams)]
        await asyncio.gather(*(take(number, waiting) for number, waiting in jobs for _ in range(CONCURRENCY)))
    return tuple(map(tuple, right))


def difference(a: Sequence[Sequence[bool]], b: Sequence[Sequence[bool]]) -> tuple[float, float]:
    """Return accuracy of a minus b over the second halves, in points, and half its 95 % interval over streams."""
    gaps = np.array([_late(one) - _late(other) for one, other in zip(a, b, strict=True)])
    return float(gaps.mean()), float(2.36 * gaps.std(ddof=1) / len(gaps) ** 0.5)


def _late(right: Sequence[bool]) -> float:
    return 100 * float(np.mean(right[len(right) // 2 :]))


@dataclass(frozen=True, slots=True)
class Speed:
    """Run two processes on one store; return asks per second, p50 and p99 of an ask with its feedback, ms."""

    rate: float
    p50: float
    p99: float


STORES = ("SQLite", "Redis")


def paired(pairs: int, asks: int) -> Iterator[dict[str, Speed]]:
    """Measure both stores in turn, in alternating order."""
    with new_fleet() as fleet:
        for pair in range(pairs):
            yield {name: speed(fleet, name, pair, asks) for name in (STORES if pair % 2 else STORES[::-1])}


def speed(fleet: Fleet, store: str, pair: int, asks: int) -> Speed:
    """Measure on a new store of this kind."""
    where = place(fleet.server.url) if store == "Redis" else str(fleet.folder / f"{pair}.db")
    both = [fleet.worker(where, asks, seed, "1000") for seed in (2 * pair, 2 * pair + 1)]
    said = [json.loads(one.communicate(timeout=600)[0]) for one in both]
    p50, p99 = np.quantile([1000 * each for one in said for each in one["latencies"]], (0.5, 0.99)).tolist()
    return Speed(2 * asks / max(one["seconds"] for one in said), p50, p99)


def show(got: Outcome) -> None:
    """Print the tables."""
    print("\n| asks | feedback lost | doubled | noted by updates | versions | problems | s |")
    print("|---|---|---|---|---|---|---|")
    cells = (got.asks, got.lost, got.doubled, got.learned, got.versions, len(got.problems), f"{got.seconds:.0f}")
    print(f"| {' | '.join(map(str, cells))} |")
    print("\n| billed = spent = ledger, USD | limit | held | refused | asked or judged again |\n|---|---|---|---|---|")
    print(f"| {got.spent:f} | {got.limit:f} | {got.reserved:f} | {got.refused} | {got.again} |")
    print("\n| a new version served by a worker | median, s | 95 % within, s | the last, s |\n|---|---|---|---|")
    lags = np.quantile(got.lags or (0.0,), (0.5, 0.95, 1.0))
    print(f"| {len(got.lags)} times | {' | '.join(f'{lag:.2f}' for lag in lags)} |", flush=True)


def show_paired(found: Sequence[dict[str, Speed]]) -> None:
    """Print each pair, and the ratios."""
    print("\n| | asks a second | p50, ms | p99, ms |\n|---|---|---|---|")
    for name in STORES:
        cells = (", ".join(f"{getattr(one[name], what):.0f}" for one in found) for what in ("rate", "p50", "p99"))
        print(f"| {name} | {' | '.join(cells)} |")
    cells = (_ratio([getattr(one["Redis"], what) / getattr(one["SQLite"], what) for one in found])
             for what in ("rate", "p50", "p99"))  # fmt: skip
    print(f"| Redis / SQLite: median (least to most) | {' | '.join(cells)} |", flush=True)


def _ratio(ratios: Sequence[float]) -> str:
    return f"{np.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run and print tables; fail if a requirement is not met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--asks", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--work", nargs=5, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.work:
        folder, where, asks, seed, limit = given.work
        report = work(Path(folder), where, int(asks), int(seed), limit)
        print(json.dumps(asyncio.run(report)))
        return
    print(f"{machine()}, {time.strftime('%Y-%m-%d', time.gmtime())}; load at the start {os.getloadavg()[0]:.1f}")
    if given.pairs:
        show_paired(list(paired(given.pairs, 500)))
    if given.asks:
        got = run(asks=given.asks, workers=given.workers)
        show(got)
        one = alone(given.asks, given.workers, got.versions)
        gap, half = difference(got.right, one)
        late = " and ".join(f"{np.mean([*map(_late, right)]):.1f}" for right in (got.right, one))
        print(f"\n% right in the later half, fleet and one process: {late}; {gap:+.2f} (+- {half:.2f})", flush=True)
        got.check()
        assert max(got.lags) <= 1.0, sorted(got.lags)[-10:]
        assert abs(gap) <= max(half, 1.0), (gap, half)


if __name__ == "__main__":
    main()
