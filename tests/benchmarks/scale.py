"""Measures the CPU time that a fleet takes of its Redis and its learner, for docs/results/speed.md.

``python -m tests.benchmarks.scale`` works on a Redis of its own: it writes asks of 12 and of 200 endpoints with bills
and feedback, reserves under a budget, lets idle workers look for changes, publishes and fetches bundles, and makes
updates. For each it prints processor time of server and client, and bytes. Processor time, unlike wall time, hardly
depends on what else the machine does.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from decimal import Decimal
from pathlib import Path
from typing import Any

from focalroute.learn.fleet.learner import FleetLearner
from focalroute.store.accounts import Account
from focalroute.store.base import LedgerRow, Reservation
from focalroute.store.redis.fleet_policy import FleetPolicy
from focalroute.store.redis.store import RedisStore
from tests.learn.made import linear_learner, play
from tests.learn.test_online import fill, put
from tests.redis_server import RedisServer, place
from tests.store.made import answer, judge, trajectory

WORKERS = 40  # idle ones
ASKS = 2000
CALLS = 3  # calls of an ask


def server_s(store: RedisStore) -> float:
    """Return the server's processor time so far."""
    said = store.run(lambda connection: connection.command("INFO", "cpu")).decode()
    values = dict(line.split(":") for line in said.splitlines() if ":" in line)
    return float(values["used_cpu_user"]) + float(values["used_cpu_sys"])


def measured(store: RedisStore, what: str, number: int, work: Callable[[], Any]) -> None:
    """Print what a number of operations took."""
    server, client, begun = server_s(store), time.process_time(), time.perf_counter()
    work()
    server, client = server_s(store) - server, time.process_time() - client
    seconds = time.perf_counter() - begun
    print(
        f"| {what} | {number} | {1e6 * server / number:.0f} | {1e6 * client / number:.0f} | {seconds:.1f} |", flush=True
    )


def ended(futures: list[Any]) -> None:
    """Wait for all of them."""
    for future in futures:
        future.result(60)


def asked(store: RedisStore, endpoints: int) -> None:
    """Write asks with their bills, then their feedback, for a pool of this number of endpoints."""
    steps = trajectory(n=endpoints, decisions=2)
    names = [f"{endpoints}-{number}" for number in range(ASKS)]
    bills = [LedgerRow("x", "a", 1.5, None, Decimal("0.001"), "price", ("team",))] * CALLS
    rows = [answer(name, steps=steps) for name in names]
    measured(store, f"asks, {endpoints} endpoints", ASKS, lambda: ended([store.write(row, *bills) for row in rows]))
    measured(store, "feedback to them", ASKS, lambda: ended([store.write(judge(name)) for name in names]))
    size = store.run(lambda connection: connection.command("MEMORY", "USAGE", connection.keys.answer(names[0])))
    print(f"| bytes of memory of an answer, {endpoints} endpoints | {size} | | | |")


def reserved(store: RedisStore) -> None:
    """Reserve and settle amounts."""
    limits = {Account(): Decimal(1000), Account("", 86400): Decimal(1000)}
    store.open_accounts(limits)
    held = [Reservation(f"r{number}", "x", "a", Decimal("0.001")) for number in range(ASKS)]
    measured(store, "reservations, 2 limits", ASKS, lambda: ended([store.reserve(one, limits) for one in held]))
    rows = [LedgerRow("x", "a", time.time(), None, Decimal("0.0005"), "price", (), one) for one in held]
    measured(store, "settlements", ASKS, lambda: ended([store.write(row) for row in rows]))


def learned(store: RedisStore, folder: Path) -> None:
    """Make updates on a full window, and fetch them as a worker does."""
    put(folder, linear_learner())
    learner = FleetLearner(store, start=folder, every=1, seed=0)
    for number in range(3):
        fill(store, play(linear_learner(), 1000, number, version=1))
        measured(store, "updates of 1,000 feedbacks", 1, learner.step)
    current = FleetPolicy(store).state().current
    files = FleetPolicy(store).files(current, ("learner.npz",))
    print(f"| bytes of a bundle that a worker fetches | {sum(map(len, files.values()))} | | | |")
    measured(
        store, "bundles fetched", 200, lambda: [FleetPolicy(store).files(current, ("learner.npz",)) for _ in range(200)]
    )


def main() -> None:
    """Measure and print a table."""
    print("| what | how many | server, us each | client, us each | s in all |\n|---|---|---|---|---|")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "redis").mkdir()
        server = stack.enter_context(RedisServer(folder / "redis"))
        store = stack.enter_context(closing(RedisStore(place(server.url))))
        asked(store, 12)
        asked(store, 200)
        reserved(store)
        where = place(server.url)
        idle = [stack.enter_context(closing(RedisStore(where))) for _ in range(WORKERS)]
        for one in idle:
            one.subscribe(lambda _: None, last=0)
        looks = 4 * 6 * WORKERS
        measured(store, f"looks for news, {WORKERS} idle workers", looks, lambda: time.sleep(6))
        learned(stack.enter_context(closing(RedisStore(place(server.url)))), folder / "policy")


if __name__ == "__main__":
    main()
