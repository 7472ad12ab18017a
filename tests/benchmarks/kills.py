"""Kills a process under load at random points, and checks that nothing acknowledged is lost.

``python -m tests.benchmarks.kills --kills 100`` runs one process after the other on the same store and policy folder.
Each asks 8 questions at a time of a simulated pool, gives feedback for every answer, keeps publishing bundles, and
reports what `ask`, `feedback` and `publish` have returned. It is killed by SIGKILL at a random point, sometimes during
its start. After each kill the run fails unless

- ``verify()`` finds nothing wrong with the store;
- every answer that `ask` returned is in it, and every feedback that `feedback` returned, with its reward;
- billed <= spent + reserved, as unfinished calls were reserved before;
- ``CURRENT`` names a bundle that passes its checks, and is not older than the last one that `publish` returned.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

from examples.shipped_policy.training import cold_fusion
from focalroute import AsyncEnsemble, Budget
from focalroute.core.pool import load_pool
from focalroute.learn.export import decider_model, fusion_model
from focalroute.policy.bundle import CURRENT, current, load
from focalroute.policy.publish import publish
from focalroute.sim import SimulatedModel, SimulatedPool, stream
from focalroute.sim.process import pool_toml
from focalroute.store import open_store
from focalroute.store.accounts import Account
from focalroute.store.sqlite.store import SqliteStore
from tests.by_hand import linear_decider

CONCURRENCY = 8
EARLY = 0.1  # share of the kills during the start, before any feedback
_MODELS = tuple(
    SimulatedModel(name, skill=skill, latency_s=0.01, input_usd_per_1m=Decimal(1), output_usd_per_1m=Decimal(2))
    for name, skill in (("small", 0.6), ("middle", 0.75), ("large", 0.9))
)


@dataclass(slots=True)
class Acknowledged:
    """What the processes have reported so far: answer ids, answer id -> reward, and the last version published."""

    asked: set[str] = field(default_factory=set)
    judged: dict[str, float] = field(default_factory=dict)
    version: int = 0

    def take(self, line: str) -> None:
        """Read one line of a process; an incomplete last line is ignored."""
        if not line.endswith("\n"):
            return
        what, *rest = line.split()
        if what == "asked":
            self.asked.add(rest[0])
        elif what == "judged":
            self.judged[rest[0]] = float(rest[1])
        else:
            self.version = int(rest[0])

    def take_all(self, lines: Iterable[str]) -> None:
        """Read all lines until the process ends."""
        for line in lines:
            self.take(line)


# -- the process that is killed ----------------------------------------------------------------------------------------


def say(*words: object) -> None:
    """Print a line in one write, which a kill does not cut in two."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def publish_next(root: Path) -> int:
    """Publish a new version of hand-set networks."""
    decider, fusion = decider_model(linear_decider()), fusion_model(cold_fusion())
    return publish(root, decider=decider, fusion=fusion, names=(), parent=None)


def publish_for_ever(root: Path) -> None:
    """Publish one version after the other."""
    while True:
        say("published", publish_next(root))
        time.sleep(0.05)


async def work(folder: Path, seed: int) -> None:
    """Ask and give feedback until killed."""
    threading.Thread(target=publish_for_ever, args=(folder / "policy",), daemon=True).start()
    endpoints = load_pool(folder / "pool.toml").endpoints
    settings = {"store": folder / "s.db", "policy": folder / "policy", "budget": Budget(usd_total=1000)}
    async with AsyncEnsemble(endpoints, **settings) as ensemble:  # type: ignore[arg-type]
        waiting = iter(stream(10**9, seed=seed))

        async def take() -> None:
            for question in waiting:
                answer = await ensemble.ask(question.text, choices=question.choices)
                say("asked", answer.id)
                reward = 1.0 if answer.text == question.answer else -1.0
                await ensemble.feedback(answer, reward=reward)
                say("judged", answer.id, reward)

        await asyncio.gather(*(take() for _ in range(CONCURRENCY)))


# -- who kills it ------------------------------------------------------------------------------------------------------


def live_and_die(folder: Path, rng: random.Random, said: Acknowledged, seed: int, longest_s: float) -> None:
    """Start a process and kill it at a random point."""
    command = [sys.executable, "-m", "tests.benchmarks.kills", "--work", str(folder), str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        if rng.random() < EARLY:
            time.sleep(rng.uniform(0, longest_s))
        else:
            judged = len(said.judged)
            while len(said.judged) == judged and (line := process.stdout.readline()):
                said.take(line)
            time.sleep(rng.uniform(0, longest_s))
        reader = threading.Thread(target=said.take_all, args=(process.stdout,))
        reader.start()
        process.send_signal(signal.SIGKILL)
        reader.join()
        errors = process.stderr.read()
        assert process.wait() == -signal.SIGKILL, errors
        assert not errors, errors


def check(folder: Path, said: Acknowledged, pool: SimulatedPool) -> None:
    """Raise AssertionError if anything is lost or damaged."""
    with closing(SqliteStore(folder / "s.db")) as store:
        assert store.verify() == (), store.verify()
        kept = {answer.id: feedback for answer, feedback in store.recent(10**7)}
        assert said.asked <= kept.keys(), said.asked - kept.keys()
        for answer_id, reward in said.judged.items():
            assert [feedback.reward for feedback in kept[answer_id]] == [reward], answer_id
    if (folder / "policy" / CURRENT).exists():
        assert load(folder / "policy").version >= said.version
    _check_money(folder, pool)


def _check_money(folder: Path, pool: SimulatedPool) -> None:
    before = None
    while (after := pool.stats()) != before:  # calls of the process that died may still be under way
        before = after
        time.sleep(0.03)
    billed = sum((stats.usd for stats in after.values()), Decimal(0))
    with closing(open_store(folder / "s.db")) as store:
        balance = store.open_accounts([Account()])[Account()]
    assert billed <= balance.spent + balance.reserved, (billed, balance)


def run(*, kills: int, seed: int = 0, longest_s: float = 1.0) -> tuple[Acknowledged, int]:
    """Kill this number of processes, checking after each; return what was acknowledged, and the current version.

    Args:
        longest_s: the longest time that a process works after its first feedback.
    """
    rng = random.Random(seed)
    said = Acknowledged()
    with tempfile.TemporaryDirectory() as name, SimulatedPool(_MODELS) as pool:
        folder = Path(name)
        (folder / "pool.toml").write_text(pool_toml(pool.endpoints))
        publish_next(folder / "policy")  # a process whose policy folder holds none says so, as of any fault
        for life in range(kills):
            live_and_die(folder, rng, said, seed=1000 * seed + life, longest_s=longest_s)
            if (folder / "s.db").exists():
                check(folder, said, pool)
        serving = current(folder / "policy")
    return said, serving


def main(arguments: Sequence[str] | None = None) -> None:
    """Run and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.work:
        with suppress(KeyboardInterrupt):
            asyncio.run(work(Path(given.work[0]), int(given.work[1])))
        return
    begun = time.perf_counter()
    said, serving = run(kills=given.kills, seed=given.seed)
    print("| kills | answers acknowledged | feedbacks acknowledged | bundle that serves | lost | damaged | s |")
    print("|---|---|---|---|---|---|---|")
    seconds = time.perf_counter() - begun
    print(f"| {given.kills} | {len(said.asked)} | {len(said.judged)} | v{serving} | 0 | 0 | {seconds:.0f} |")


if __name__ == "__main__":
    main()
