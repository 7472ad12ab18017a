"""Measures what an update of the policies costs, in numpy and in torch, and how it delays asks.

``python -m tests.benchmarks.updates``.

All sides make the same update of the same batch (`tests.learn.test_torch` checks that), alternately in one process and
each on one thread, so that the ratio is meaningful on a noisy machine. CPU time is measured, as an update competes with
serving for the processor. Figures are medians with quartiles.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from focalroute import AsyncEnsemble
from focalroute.learn.backend import open_backend
from focalroute.learn.mappo import Hyperparameters, Learner, update
from focalroute.learn.trajectory import Batch
from tests.benchmarks import harness
from tests.benchmarks.harness import PROMPT, Table, Target, p99, quartiles
from tests.benchmarks.server import floor_server
from tests.learn.batches import random_batch, random_learner

ROUNDS, WARM = 30, 3
UPDATES, ASKS = 10, 250
#: A process as polite as an update is, which only keeps a core busy.
SPINNING = "import os; os.nice(10)\nwhile True: pass"
AIM = "<= 1.5 times idle"
PARTS = {
    "alone": "asks, nothing else",
    "beside": "asks during updates",
    "spinning": "asks beside a process that spins",
    "update": "an update",
}
#: (endpoints, episodes, rounds): 1,000 decisions each.
SIZES = ((12, 500, 2), (12, 1000, 1), (64, 500, 2))
#: Nothing stops early: four epochs, whatever happens.
SETTINGS = Hyperparameters(epochs=4, target_kl=np.inf, fusion_target_kl=np.inf)

Update = Callable[[Learner, Batch, Hyperparameters, np.random.Generator], object]


def sides() -> dict[str, Update]:
    """Return what is compared, by name; only numpy if torch is not installed."""
    if find_spec("torch") is None:
        return {"numpy": update}
    import torch

    from tests.benchmarks.torch_update import torch_update

    torch.set_num_threads(1)
    return {"numpy": update, "modules": torch_update, "engine": partial(update, passes=open_backend("torch"))}


def alternately(runs: dict[str, Update], learner: Learner, batch: Batch) -> dict[str, list[float]]:
    """Return the CPU seconds of each side's updates, in alternating order."""
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(ROUNDS + WARM):
        for name in list(runs)[:: (-1) ** number]:
            rng = np.random.default_rng(number)
            started = time.process_time()
            runs[name](learner, batch, SETTINGS, rng)
            if number >= WARM:
                taken[name].append(time.process_time() - started)
    return taken


def row(taken: dict[str, list[float]], what: str) -> tuple[str, ...]:
    """Format a row of the table; the ratio is the median over the pairs."""
    cells = [quartiles(taken[name], 1e3) if name in taken else "-" for name in ("numpy", "modules", "engine")]
    return what, *cells, quartiles(pairs(taken), 1) if "modules" in taken else "-"


def pairs(taken: dict[str, list[float]]) -> list[float]:
    """Compare numpy's time with torch's, update by update."""
    return [mine / theirs for mine, theirs in zip(taken["numpy"], taken["modules"], strict=True)]


# -- while asks are served ---------------------------------------------------------------------------------------------


@contextmanager
def spinning() -> Iterator[None]:
    """Beside such a process, once it is up."""
    with subprocess.Popen([sys.executable, "-c", SPINNING]) as process:
        try:
            time.sleep(0.3)
            yield
        finally:
            process.kill()


async def beside_serving(on_disk: bool) -> dict[str, list[float]]:
    """Seconds of asks while nothing else runs, while an update does, and beside any busy process; and of the updates.

    In turns, so that all see the same machine.
    """
    taken: dict[str, list[float]] = {name: [] for name in PARTS}
    with tempfile.TemporaryDirectory() as name, floor_server() as url:
        pool, store = harness.endpoints(url, 12), Path(name) / "store.db" if on_disk else None
        async with AsyncEnsemble(pool, policy=Path(name) / "policy", store=store, seed=0) as ensemble:

            async def ask() -> float:
                started = time.perf_counter()
                answer = await ensemble.ask(PROMPT, answer="number")
                seconds = time.perf_counter() - started
                await ensemble.feedback(answer, reward=len(answer.receipt.calls) < 4)
                return seconds

            for _ in range(1000):
                await ask()
            for _ in range(UPDATES):
                taken["alone"] += [await ask() for _ in range(ASKS)]
                with spinning():
                    taken["spinning"] += [await ask() for _ in range(ASKS)]
                started, task = time.perf_counter(), asyncio.create_task(ensemble.update())
                while not task.done():
                    taken["beside"].append(await ask())
                taken["update"].append(time.perf_counter() - started)
                await task
    return taken


def section() -> harness.Section:
    """Measure updates (section 4 of the page)."""
    runs, rows = sides(), []
    first: dict[str, list[float]] = {}
    with threadpool_limits(1, "blas"):
        for pool, episodes, rounds in SIZES:
            learner = random_learner(0, pool, np.float32)
            batch = random_batch(0, episodes=episodes, rounds=rounds, pool=pool, learner=learner)
            taken = alternately(runs, learner, batch)
            first = first or taken
            rows.append(row(taken, f"N = {pool}, {episodes:,} answers of {rounds} round(s)"))
    targets = []
    if "modules" in first:
        share = statistics.median(pairs(first))
        what = "update of 1,000 decisions, 4 epochs, CPU, beside torch"
        targets.append(Target(what, "< 1 times", f"{share:.2f} times", share < 1))
    served = []
    for where, on_disk in (("a file", True), ("memory", False)):
        found = asyncio.run(beside_serving(on_disk))
        slower, floor = (p99(found[part]) / p99(found["alone"]) for part in ("beside", "spinning"))
        said, busy = f"{slower:.2f} times", f"{floor:.2f} times beside any busy process"
        targets.append(Target(f"p99 of asks during updates, store in {where}", AIM, said, slower <= 1.5, busy))
        for part, what in PARTS.items():
            seconds = found[part]
            row_name = f"{what}, store in {where}"
            served.append((row_name, quartiles(seconds), f"{p99(seconds) * 1e3:.1f}", f"{len(seconds):,}"))
    head = ("1,000 decisions, 4 epochs, ms of CPU", "numpy, as shipped", "torch", "numpy, its passes by torch", "ratio")
    tables = (
        Table(head, rows),
        Table(("12 endpoints, 1,000 rewarded answers, ms", "p50 (quartiles)", "p99", "of"), served),
    )
    return harness.Section("4. An update", targets, tables)


if __name__ == "__main__":
    harness.main(section)
