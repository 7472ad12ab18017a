"""What one ask costs beside the wire: ``make bench`` prints it as Markdown tables.

Every comparison is paired: both sides run alternately in one process against one server in another, so that the ratio
means something on a noisy machine. Medians, with the quartiles of what they are taken over.
"""

from __future__ import annotations

import asyncio
import os
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import openai

from focalroute import AsyncEnsemble, Budget, Endpoint
from focalroute.ask import Ask
from focalroute.budget import BudgetGuard
from focalroute.observe import Observer
from focalroute.policy import bundle
from focalroute.policy.bundle import Policy
from focalroute.policy.fallback import Guarded
from focalroute.query import make_query
from focalroute.records import Member, Outcome, Reply, Round, Usage
from tests.benchmarks.server import floor_server
from tests.policies import ask_everybody

PROMPT = ("A train leaves at nine and drives for three hours at eighty kilometres an hour. " * 3)[:200]
CHOICES = ("120 km", "180 km", "240 km", "320 km")
MESSAGES = [{"role": "user", "content": PROMPT}]

Call = Callable[[], Awaitable[object]]


def quartiles(seconds: Sequence[float], unit: float = 1e3) -> str:
    """Median (lower quartile - upper quartile)."""
    low, middle, high = statistics.quantiles([s * unit for s in seconds], n=4)
    return f"{middle:.3g} ({low:.3g} - {high:.3g})"


def p99(seconds: Sequence[float]) -> float:
    """The 99th percentile."""
    return sorted(seconds)[int(len(seconds) * 0.99)]


# -- inside: no network, no store ------------------------------------------------------------------------------------


def filled_observer(n: int, window: int, rng: random.Random) -> Observer:
    """An observer of n endpoints whose window is full."""
    names = [f"endpoint-{i}" for i in range(n)]
    observer = Observer(names, [0.0001 * (i + 1) for i in range(n)], window=window)
    for number in range(window):
        asked = rng.sample(names, min(n, 4))
        members = {name: Member(1, rng.randrange(4), rng.randrange(20, 200), rng.random(), None) for name in asked}
        observer.learn(Outcome(str(number), members, {name: float(rng.random() < 0.6) for name in asked}))
    return observer


def one_ask(observer: Observer, policy: Policy, replies: Sequence[Sequence[Reply]], rng: random.Random) -> None:
    """All an ask does besides waiting: rounds of 3 and of 1 member, then STOP; answer, receipt, rows for the store."""
    query = make_query(PROMPT, choices=CHOICES)
    guarded, purse = Guarded(policy, observer.endpoints), BudgetGuard(None, ()).purse(None, query.id)
    ask = Ask(query, guarded, observer.begin(query), purse, deadline=0.0, rng=rng)
    for number in range(1, 4):
        observation = ask.observe(0.1)
        decision = ask.decide(observation, order=observer.order(), eligible=lambda *_: True, explore=True)
        ask.take(Round(observation, decision, tuple(replies[number - 1]) if number <= len(replies) else ()))
    ask.stored(ask.answer(), texts=False)
    ask.ledger()


def inside(n: int, window: int, rounds: int, pause_s: float = 0.0) -> list[float]:
    """Seconds of each of ``rounds`` asks, ``pause_s`` of idling before each, one outcome learned between them."""
    rng = random.Random(0)
    observer = filled_observer(n, window, rng)
    policy = bundle.cold()
    usage = Usage(60, 6)
    members = [Reply(name, "A", rng.randrange(4), None, "parsed", usage) for name in observer.endpoints[:4]]
    taken = []
    for number in range(rounds):
        outcome = Outcome(f"new-{number}", {}, {})
        observer.learn(replace(outcome, members={m.endpoint: Member(1, 0, 6, 0.1, None) for m in members[:3]},
                               right={m.endpoint: float(rng.random() < 0.6) for m in members[:3]}))  # fmt: skip
        if pause_s:
            time.sleep(pause_s)
        started = time.perf_counter()
        one_ask(observer, policy, (members[:3], members[3:]), rng)
        taken.append(time.perf_counter() - started)
    return taken[rounds // 10 :]


# -- real asks, against the bare openai client -----------------------------------------------------------------------


async def paired(ours: Call, theirs: Call, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of each side's calls, made alternately, the order swapped every time."""
    taken: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 50):
        for side in ((0, 1), (1, 0))[number % 2]:
            started = time.perf_counter()
            await (ours, theirs)[side]()
            if number >= 50:
                taken[side].append(time.perf_counter() - started)
    return taken


async def at_concurrency(call: Call, concurrency: int, calls: int) -> tuple[float, list[float]]:
    """Calls a second, and each call's seconds, with so many under way at a time."""
    taken: list[float] = []
    left = iter(range(calls))

    async def work() -> None:
        for _ in left:
            started = time.perf_counter()
            await call()
            taken.append(time.perf_counter() - started)

    started = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(concurrency)))
    return calls / (time.perf_counter() - started), taken


def ensemble(url: str, size: int, folder: Path, budget: Budget | None = None) -> AsyncEnsemble:
    """An ensemble that asks all of its endpoints, with a store on disk."""
    endpoints = [
        Endpoint(f"e{i}", base_url=url, model="floor", input_usd_per_1m=1, output_usd_per_1m=1) for i in range(size)
    ]
    root = ask_everybody(folder / f"policy-{size}")
    store = folder / f"{size}-{time.time_ns()}.db"
    return AsyncEnsemble(endpoints, policy=root, store=store, explore=False, budget=budget)


async def against_openai() -> list[tuple[str, str, str, str]]:
    """Rows: what, focalroute, bare openai client, ratio."""
    rows = []
    with tempfile.TemporaryDirectory() as name, floor_server() as url:
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:

            async def bare() -> None:
                await client.chat.completions.create(model="floor", messages=MESSAGES)  # type: ignore[arg-type]

            async def bare_three() -> None:
                await asyncio.gather(bare(), bare(), bare())

            for size, theirs in ((1, bare), (3, bare_three)):
                async with ensemble(url, size, Path(name)) as ours:
                    mine, other = await paired(lambda ours=ours: ours.ask(PROMPT), theirs, 1000)  # type: ignore[misc]
                ratio = statistics.median(mine) / statistics.median(other)
                rows.append((f"{size} endpoint(s), ms", quartiles(mine), quartiles(other), f"{ratio:.2f}"))
    with tempfile.TemporaryDirectory() as name, floor_server(20) as url:
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:

            async def bare_slow() -> None:
                await client.chat.completions.create(model="floor", messages=MESSAGES)  # type: ignore[arg-type]

            async with ensemble(url, 1, Path(name)) as ours:
                await at_concurrency(lambda: ours.ask(PROMPT), 64, 256)
                await at_concurrency(bare_slow, 64, 256)
                mine_rate, mine = await at_concurrency(lambda: ours.ask(PROMPT), 64, 6000)
                other_rate, other = await at_concurrency(bare_slow, 64, 3000)
                rows.append(
                    (
                        "64 at a time, 20 ms server, asks/s",
                        f"{mine_rate:.0f}",
                        f"{other_rate:.0f}",
                        f"{mine_rate / other_rate:.2f}",
                    )
                )
                rows.append(
                    (
                        "the same, p99 ms",
                        f"{p99(mine) * 1e3:.0f}",
                        f"{p99(other) * 1e3:.0f}",
                        f"{p99(mine) / p99(other):.2f}",
                    )
                )
    return rows


async def under_a_budget() -> list[tuple[str, str, str, str]]:
    """Rows: what, with limits that are held in the store, without, ratio."""
    rows = []
    with tempfile.TemporaryDirectory() as name, floor_server() as url:
        for size in (1, 3):
            limits = Budget(usd_total=1000, usd_per_period={"hour": 1000})
            async with (
                ensemble(url, size, Path(name), limits) as limited,
                ensemble(url, size, Path(name)) as free,
            ):
                mine, other = await paired(lambda it=limited: it.ask(PROMPT), lambda it=free: it.ask(PROMPT), 500)  # type: ignore[misc]
            ratio = statistics.median(mine) / statistics.median(other)
            rows.append((f"{size} endpoint(s), ms", quartiles(mine), quartiles(other), f"{ratio:.2f}"))
    return rows


def main() -> None:
    """Print everything."""
    libraries = ", ".join(f"{name} {version(name)}" for name in ("openai", "httpx", "aiohttp", "onnxruntime", "numpy"))
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}, {libraries}")
    print("\n| decide + fuse + bookkeeping of one ask, us | p50 (quartiles) | p99 |\n|---|---|---|")
    for what, n, window, rounds, pause in (
        ("N = 12, T = 500, back to back", 12, 500, 3000, 0.0),
        ("N = 12, T = 500, after 20 ms of idling", 12, 500, 200, 0.02),
        ("N = 2, T = 500", 2, 500, 1000, 0.0),
        ("N = 128, T = 500", 128, 500, 1000, 0.0),
        ("N = 12, T = 10,000", 12, 10_000, 1000, 0.0),
    ):
        taken = inside(n, window, rounds, pause)
        print(f"| {what} | {quartiles(taken, 1e6)} | {p99(taken) * 1e6:.0f} |")
    print("\n| `AsyncEnsemble.ask`, store on | focalroute | bare openai client | ratio |\n|---|---|---|---|")
    for row in asyncio.run(against_openai()):
        print("| " + " | ".join(row) + " |")
    print("\n| `AsyncEnsemble.ask`, store on | two limits in the store | no limit | ratio |\n|---|---|---|---|")
    for row in asyncio.run(under_a_budget()):
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
