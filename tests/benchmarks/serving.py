"""Compares the speed of `ask` over HTTP, with its store and policies, with bare clients and other routers.

``python -m tests.benchmarks.serving``. Each side has its own process; they take turns, in bursts, against one local
server. Ratios are medians over the turns. openai 2.x, LiteLLM's Router and RouteLLM's controller have their own
environments in the cache folder, which are installed on first use.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import anyio.from_thread

from focalroute import AsyncEnsemble, Budget, Ensemble
from tests.benchmarks import harness
from tests.benchmarks.harness import PROMPT, Section, Table, Target, p99, quartiles
from tests.benchmarks.peers import Peer, peer
from tests.benchmarks.server import floor_server
from tests.policies import ask_all
from tests.real.build import CACHE, LITELLM, LITELLM_VERSION, BuildError, build_environment

HERE = Path(sys.executable)
BURST, TURNS = 20, 40
CROWD, CROWD_CALLS, CROWD_TURNS = 64, 640, 8
SERVER_MS = 20

#: Side -> its name in `tests.benchmarks.peers`, and its environment.
SIDES: dict[str, tuple[str, Callable[[], Path]]] = {
    "aiohttp (floor)": ("aiohttp", lambda: HERE),
    "httpx": ("httpx", lambda: HERE),
    "focalroute": ("focalroute", lambda: HERE),
    "openai 3.x": ("openai", lambda: HERE),
    "openai 2.x": ("openai", partial(build_environment, CACHE / "openai-2", "openai>=2,<3")),
    "litellm.Router": (
        "litellm",
        partial(build_environment, LITELLM.parents[1], f"litellm[proxy]=={LITELLM_VERSION}"),
    ),
    "RouteLLM": (
        "routellm",
        partial(build_environment, CACHE / "routellm-0.2.0", "torch==2.13.*", "routellm==0.2.0"),
    ),
    "focalroute, fan-out of 3": ("focalroute3", lambda: HERE),
    "openai 3.x, 3 at once": ("openai3", lambda: HERE),
    "openai 2.x, 3 at once": ("openai3", partial(build_environment, CACHE / "openai-2", "openai>=2,<3")),
}
CROWDED = ("aiohttp (floor)", "httpx", "focalroute", "openai 3.x", "openai 2.x")

Bursts = dict[str, list[dict[str, Any]]]


def opened(stack: ExitStack, url: str, names: Sequence[str]) -> tuple[dict[str, Peer], list[str]]:
    """Start the available peers; also return why the others are missing."""
    peers, missing = {}, []
    for name in names:
        known, environment = SIDES[name]
        try:
            peers[name] = stack.enter_context(peer(environment(), known, url))
        except (BuildError, RuntimeError) as error:
            missing.append(f"{name} was not measured: {str(error).splitlines()[0]}")
    return peers, missing


def in_turns(peers: dict[str, Peer], turns: int, calls: int, concurrency: int) -> Bursts:
    """Return each side's bursts, without the first two, in alternating order."""
    found: Bursts = {name: [] for name in peers}
    for number in range(turns + 2):
        for name in list(peers)[:: (-1) ** number]:
            burst = peers[name].run(calls, concurrency)
            if number >= 2:
                found[name].append(burst)
    return found


def medians(bursts: Sequence[dict[str, Any]]) -> list[float]:
    """Return the median call of each burst, seconds."""
    return [statistics.median(burst["seconds"]) for burst in bursts]


def one_at_a_time() -> tuple[list[Target], Table, list[str]]:
    """Measure p50 of calls one after the other."""
    with ExitStack() as stack:
        url = stack.enter_context(floor_server())
        peers, missing = opened(stack, url, list(SIDES))
        found = in_turns(peers, TURNS, BURST, 1)
    p50 = {name: medians(bursts) for name, bursts in found.items()}
    cpu = {name: [burst["cpu_s"] for burst in bursts] for name, bursts in found.items()}
    rows = []
    for name in found:
        mine = "focalroute, fan-out of 3" if name.endswith(("of 3", "3 at once")) else "focalroute"
        beside = [f"{harness.ratio(side[mine], side[name]):.2f}" for side in (p50, cpu)]
        rows.append((name, quartiles(p50[name]), quartiles(cpu[name]), *beside))
    floor = statistics.median(p50["aiohttp (floor)"]) * 1e3
    targets = []
    for ours, other in (
        ("focalroute", "openai 3.x"),
        ("focalroute", "openai 2.x"),
        ("focalroute, fan-out of 3", "openai 3.x, 3 at once"),
        ("focalroute, fan-out of 3", "openai 2.x, 3 at once"),
    ):
        if other in p50:
            ratio = harness.ratio(p50[ours], p50[other])
            what = f"{ours} beside {other}, p50"
            targets.append(Target(what, "ratio <= 1.0", f"{ratio:.2f}", ratio <= 1, f"{floor:.2f} ms a call"))
    own = [a - b for a, b in zip(p50["focalroute"], p50["aiohttp (floor)"], strict=True)]
    for name, least in (("litellm.Router", 6.0), ("RouteLLM", 1.0)):
        if name in p50:
            other_own = [a - b for a, b in zip(p50[name], p50["aiohttp (floor)"], strict=True)]
            times = statistics.median(other_own) / statistics.median(own)
            what = f"time over the wire's floor, {name} beside focalroute"
            targets.append(Target(what, f">= {least:.0f} times", f"{times:.1f} times", times >= least))
    head = ("one call after the other", "p50, ms", "CPU a call, ms", "focalroute beside it, p50", "its CPU")
    return targets, Table(head, rows), missing


def in_a_crowd() -> tuple[list[Target], Table, list[str]]:
    """Measure calls per second with 64 and 256 concurrent ones, against a server that takes 20 ms."""
    with ExitStack() as stack:
        url = stack.enter_context(floor_server(SERVER_MS))
        peers, missing = opened(stack, url, CROWDED)
        found = in_turns(peers, CROWD_TURNS, CROWD_CALLS, CROWD)
        many = in_turns({"focalroute": peers["focalroute"]}, 3, 2560, 256)["focalroute"]
    rates = {name: [burst["rate"] for burst in bursts] for name, bursts in found.items()}
    tails = {name: [p99(burst["seconds"]) for burst in bursts] for name, bursts in found.items()}
    rows = [
        (name, quartiles(rates[name], 1), quartiles(tails[name]), quartiles([burst["cpu_s"] for burst in bursts]))
        for name, bursts in found.items()
    ]
    rows.append(
        (
            "focalroute, 256 at a time",
            quartiles([burst["rate"] for burst in many], 1),
            quartiles([p99(burst["seconds"]) for burst in many]),
            quartiles([burst["cpu_s"] for burst in many]),
        )
    )
    floor = f"aiohttp {statistics.median(rates['aiohttp (floor)']):.0f}"
    targets = []
    for name, least in (("openai 3.x", 2.0), ("openai 2.x", 5.0)):
        if name in rates:
            times = harness.ratio(rates["focalroute"], rates[name])
            what = f"calls a second beside {name}, 64 at a time"
            targets.append(Target(what, f">= {least:.0f} times", f"{times:.2f} times", times >= least, floor))
    slower = harness.ratio(tails["focalroute"], tails["aiohttp (floor)"])
    alone = statistics.median(tails["aiohttp (floor)"]) * 1e3
    targets.append(
        Target("p99, 64 at a time", "<= 1.5 times aiohttp's", f"{slower:.2f} times", slower <= 1.5, f"{alone:.0f} ms")
    )
    kept = statistics.median(burst["rate"] for burst in many) / statistics.median(rates["focalroute"])
    targets.append(
        Target("calls a second of 256 at a time beside 64", ">= 0.8 times", f"{kept:.2f} times", kept >= 0.8)
    )
    head = (f"{CROWD} at a time, {SERVER_MS} ms server", "calls/s", "p99, ms", "CPU a call, ms")
    return targets, Table(head, rows), missing


def sync_beside_async() -> Target:
    """Compare p50 of `Ensemble` with that of the `AsyncEnsemble` in its own loop, with calls in turn."""
    with tempfile.TemporaryDirectory() as name, floor_server() as url:
        folder = Path(name)
        pool, policy = harness.endpoints(url, 1), ask_all(folder / "policy")
        with Ensemble(pool, policy=policy, store=folder / "sync.db", explore=False) as ours:

            async def inner(calls: int) -> list[float]:
                taken = []
                for _ in range(calls):
                    started = time.perf_counter()
                    await other.ask(PROMPT)
                    taken.append(time.perf_counter() - started)
                return taken

            with anyio.from_thread.start_blocking_portal() as portal:
                other = AsyncEnsemble(pool, policy=policy, store=folder / "async.db", explore=False)
                apart = []
                for number in range(TURNS + 2):
                    theirs = portal.call(inner, BURST)
                    mine = []
                    for _ in range(BURST):
                        started = time.perf_counter()
                        ours.ask(PROMPT)
                        mine.append(time.perf_counter() - started)
                    if number >= 2:
                        apart.append(statistics.median(mine) / statistics.median(theirs))
                portal.call(other.aclose)
    times = statistics.median(apart)
    return Target("Ensemble beside AsyncEnsemble, p50", "ratio <= 1.2", f"{times:.2f}", times <= 1.2)


async def under_a_budget() -> Table:
    """Measure what limits held in the store add to an ask."""
    rows = []
    with tempfile.TemporaryDirectory() as name, floor_server() as url:
        for size in (1, 3):
            limits = Budget(usd_total=1000, usd_per_period={"hour": 1000})
            async with (
                harness.ensemble(url, size, Path(name), limits) as limited,
                harness.ensemble(url, size, Path(name)) as free,
            ):
                mine, other = await harness.alternately([partial(one.ask, PROMPT) for one in (limited, free)], 400)
            rows.append(
                (f"{size} endpoint(s), ms", quartiles(mine), quartiles(other), f"{harness.ratio(mine, other):.2f}")
            )
    return Table(("`ask`, p50", "two limits in the store", "no limit", "ratio"), rows)


def section() -> Section:
    """Measure asks over HTTP (section 2 of the page)."""
    alone, table, missing = one_at_a_time()
    crowd, crowded, others = in_a_crowd()
    tables = (table, crowded, asyncio.run(under_a_budget()))
    notes = [f"{note}." for note in dict.fromkeys([*missing, *others])]
    return Section("2. Asks over the wire", (*alone, *crowd, sync_beside_async()), tables, notes)


if __name__ == "__main__":
    harness.main(section)
