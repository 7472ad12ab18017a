"""Measures time and memory of training and evaluation on a log, and how they grow with the number of queries.

``python -m tests.benchmarks.training``. The log is simulated: 12 endpoints with skills by topic (of 8), 4 choices, and
every endpoint's answer to every query. Each run is the command in its own process.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks import harness
from tests.benchmarks.harness import Section, Table, Target

SIZES = (2500, 5000, 10_000)
ENDPOINTS, TOPICS = 12, 8
MIB = 1024  # KiB


@dataclass(frozen=True)
class Run:
    """Wall seconds, CPU seconds and peak MiB of one command."""

    seconds: float
    cpu_s: float
    peak_mb: float


def write_log(path: Path, queries: int) -> None:
    """Write a log of this number of queries."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnop", k=rng.randrange(3, 9))) for _ in range(2000)]
    skill = [[rng.uniform(0.35, 0.9) for _ in range(TOPICS)] for _ in range(ENDPOINTS)]
    with path.open("w") as file:
        for number in range(queries):
            topic, label = rng.randrange(TOPICS), rng.randrange(4)
            told = rng.choices(words[topic * 250 : topic * 250 + 250], k=20) + rng.choices(words, k=10)
            outputs = {}
            for i in range(ENDPOINTS):
                right = rng.random() < skill[i][topic]
                answer = label if right else rng.choice([choice for choice in range(4) if choice != label])
                tokens = {"prompt_tokens": 60, "completion_tokens": rng.randrange(5, 200)}
                outputs[f"e{i}"] = {"answer": answer, **tokens}
            query = {"id": str(number), "task": f"t{topic}", "prompt": " ".join(told), "choices": list("ABCD")}
            file.write(json.dumps({**query, "label": label, "outputs": outputs}) + "\n")


def write_pool(path: Path) -> None:
    """Write the pool file."""
    path.write_text(
        "".join(
            f'[[endpoint]]\nname = "e{i}"\nmodel = "m{i}"\ninput_usd_per_1m = {0.1 * (i + 1):.1f}\n'
            f"output_usd_per_1m = {0.2 * (i + 1):.1f}\n\n"
            for i in range(ENDPOINTS)
        )
    )


def run(*arguments: object) -> Run:
    """Run one command of focalroute."""
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "focalroute", *map(str, arguments)], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"focalroute {arguments[0]} ended with {process.returncode}")
    return Run(time.perf_counter() - started, used.ru_utime + used.ru_stime, used.ru_maxrss / MIB)


def section() -> Section:
    """Measure training (section 5 of the page)."""
    trained, evaluated = {}, {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pool = folder / "pool.toml"
        write_pool(pool)
        for size in SIZES:
            log = folder / f"{size}.jsonl"
            write_log(log, size)
            trained[size] = run("train", log, "--pool", pool, "--out", folder / f"policy-{size}")
        for size in SIZES[1:]:
            evaluated[size] = run("eval", folder / f"{size}.jsonl", "--pool", pool)
    last = trained[SIZES[-1]]
    beside = evaluated[SIZES[-1]].seconds / last.seconds
    targets = [
        Target("training on 10,000 x 12", "< 180 s", f"{last.seconds:.0f} s", last.seconds < 180),
        Target("memory of it", "< 1024 MiB", f"{last.peak_mb:.0f} MiB", last.peak_mb < 1024),
        Target("eval of it", "<= 5 times as long", f"{beside:.1f} times", beside <= 5),
    ]
    for what, runs in (("training", trained), ("eval", evaluated)):
        sizes = sorted(runs)
        grown = runs[sizes[-1]].cpu_s / runs[sizes[0]].cpu_s
        by = sizes[-1] / sizes[0]
        aim = f"linear or less: <= {by:.0f} times"
        targets.append(
            Target(
                f"CPU of {what}, {sizes[0]:,} to {sizes[-1]:,} queries", aim, f"{grown:.2f} times", grown <= 1.1 * by
            )
        )
    rows = [
        row(what, size, one) for what, runs in (("train", trained), ("eval", evaluated)) for size, one in runs.items()
    ]
    head = ("command", "queries", "s", "CPU, s", "most memory, MiB")
    return Section("5. Training and evaluation", targets, (Table(head, rows),))


def row(what: str, size: int, one: Run) -> Sequence[str]:
    """Format a row of the table."""
    return what, f"{size:,}", f"{one.seconds:.0f}", f"{one.cpu_s:.0f}", f"{one.peak_mb:.0f}"


if __name__ == "__main__":
    harness.main(section)
