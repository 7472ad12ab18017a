"""Measures whether memory grows over many asks, and how much ten thousand concurrent asks need.

``python -m tests.benchmarks.memory [--asks 1000000] [--at-once 10000]``; ``make bench-long`` makes a million. Asks go
over HTTP to a server in another process, policies run, the store is on disk, and every answer gets feedback. Each
measurement has its own process. The slope is fitted by least squares to the resident memory after each batch of the
second half; by then the largest caches, of 4,096 answers, are full, and so is the heap, after some 14,000 asks. Its
interval is from a moving block bootstrap of the residuals, as these are autocorrelated.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from focalroute import AsyncEnsemble
from tests.benchmarks import harness
from tests.benchmarks.harness import PROMPT, Section, Table, Target
from tests.benchmarks.server import floor_server

BATCHES, CROWD = 200, 32
MOST_MIB = 1024


async def over_time(url: str, asks: int) -> dict[str, Any]:
    """Return the resident MiB after each batch."""
    seen = []
    with tempfile.TemporaryDirectory() as folder:
        async with AsyncEnsemble(harness.endpoints(url, 3), store=Path(folder) / "store.db", seed=0) as ensemble:
            left = iter(range(asks))

            async def work(until: int) -> None:
                for number in left:
                    answer = await ensemble.ask(f"{number}: {PROMPT}", answer="number")
                    await ensemble.feedback(answer, reward=number % 3 > 0)
                    if number >= until:
                        return

            started = time.perf_counter()
            for batch in range(1, BATCHES + 1):
                await asyncio.gather(*(work(batch * asks // BATCHES - CROWD) for _ in range(CROWD)))
                seen.append(harness.resident_mb())
            taken = time.perf_counter() - started
    return {"resident": seen, "asks_per_s": asks / taken}


async def all_at_once(url: str, asks: int) -> dict[str, Any]:
    """Return the peak MiB of a process with this number of concurrent asks, imports included."""
    with tempfile.TemporaryDirectory() as folder:
        pool, store = harness.endpoints(url, 3, timeout_s=600), Path(folder) / "store.db"
        async with AsyncEnsemble(pool, store=store, seed=0, deadline_s=600) as ensemble:
            await ensemble.ask(PROMPT, answer="number")
            before, started = harness.resident_mb(), time.perf_counter()
            answers = await asyncio.gather(*(ensemble.ask(f"{i}: {PROMPT}", answer="number") for i in range(asks)))
            taken = time.perf_counter() - started
    assert all(answer.durable for answer in answers)
    return {"before": before, "peak": harness.peak_mb(), "taken_s": taken}


def slope(resident: Sequence[float], asks: int) -> tuple[float, float, float]:
    """Return the KiB by which 10,000 asks raise the memory, and the ends of its 95 % interval."""
    late = np.array(resident[len(resident) // 2 :]) * 1024
    at = np.arange(len(late)) * (asks / len(resident)) / 10_000
    fit = np.polyfit(at, late, 1)
    residuals = late - np.polyval(fit, at)
    rng, block = np.random.default_rng(0), max(len(late) // 10, 1)
    slopes = []
    for _ in range(1000):
        starts = rng.integers(0, len(late) - block + 1, -(-len(late) // block))
        drawn = np.concatenate([residuals[start : start + block] for start in starts])[: len(late)]
        slopes.append(np.polyfit(at, np.polyval(fit, at) + drawn, 1)[0])
    low, high = np.percentile(slopes, (2.5, 97.5))
    return float(fit[0]), float(low), float(high)


def apart(*arguments: object) -> dict[str, Any]:
    """Make one measurement in its own process."""
    command = [sys.executable, "-m", "tests.benchmarks.memory", *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def section(asks: int = 30_000, at_once: int = 10_000) -> Section:
    """Measure memory (section 6 of the page)."""
    with floor_server() as url:
        over, crowd = apart("--measure", "over", url, asks), apart("--measure", "crowd", url, at_once)
    resident = over["resident"]
    each, low, high = slope(resident, asks)
    said = f"{each:.0f} KiB a 10,000 asks ({low:.0f} to {high:.0f})"
    grown = (resident[-1] - resident[len(resident) // 2]) * 2**20 / (asks / 2)
    targets = (
        Target(f"memory over {asks:,} asks", "flat: the slope's interval reaches 64 KiB or less", said, low <= 64),
        Target(
            f"{at_once:,} asks at once",
            f"<= {MOST_MIB} MiB",
            f"{crowd['peak']:.0f} MiB at most",
            crowd["peak"] <= MOST_MIB,
            f"{crowd['before']:.0f} MiB before",
        ),
    )
    quarters = [resident[round(part * (len(resident) - 1))] for part in (0, 0.25, 0.5, 0.75, 1)]
    rows = [
        ("resident after the first batch, a quarter, half, three quarters, all, MiB", _joined(quarters)),
        ("bytes an ask, over the last half", f"{grown:.1f}"),
        ("asks a second", f"{over['asks_per_s']:.0f}"),
        (f"seconds for {at_once:,} at once", f"{crowd['taken_s']:.0f}"),
    ]
    return Section("6. Memory", targets, (Table((f"{asks:,} asks", ""), rows),))


def _joined(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.1f}" for value in values)


def main() -> None:
    """Measure, and print it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--asks", type=int, default=30_000)
    parser.add_argument("--at-once", type=int, default=10_000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        what, url, count = given.measure
        work = {"over": over_time, "crowd": all_at_once}[what]
        print(json.dumps(asyncio.run(work(url, int(count)))))
        return
    harness.show(section(given.asks, given.at_once), as_json=given.json)


if __name__ == "__main__":
    main()
