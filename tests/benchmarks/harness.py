"""What the benchmarks share: how they measure, and how they print.

Comparisons of speed are paired: both sides run alternately against one server, which has its own process, so that the
ratio is meaningful on a noisy machine. Figures are medians with quartiles.

A benchmark of speed is a module with a function that returns a `Section`. `main` prints it as Markdown, or with
``--json`` as JSON, which ``python -m tests.benchmarks`` collects from all of them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

from focalroute import AsyncEnsemble, Budget, Endpoint
from focalroute.core.records import F64
from focalroute.evaluate.metrics import student_quantile
from tests.benchmarks.peers import MESSAGES as MESSAGES
from tests.benchmarks.peers import PROMPT as PROMPT
from tests.benchmarks.peers import Call

Case = TypeVar("Case")

CHOICES = ("120 km", "180 km", "240 km", "320 km")
WARM = 50
_SPANS = 10


@dataclass(frozen=True)
class Target:
    """A target.

    Attributes:
        what: what is measured.
        aim: the value to reach.
        measured: the value reached.
        met: whether it is met.
        floor: the lowest value that is possible on this machine.
    """

    what: str
    aim: str
    measured: str
    met: bool
    floor: str = ""


@dataclass(frozen=True)
class Table:
    """A table of texts."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Section:
    """The results of one benchmark."""

    title: str
    targets: Sequence[Target] = ()
    tables: Sequence[Table] = ()
    notes: Sequence[str] = field(default_factory=tuple)


def machine() -> str:
    """Describe the machine and the versions of the libraries."""
    names = ("openai", "httpx", "aiohttp", "onnxruntime", "numpy", "torch")
    return (
        f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}, {', '.join(_found(names))}"
    )


def _found(names: Sequence[str]) -> list[str]:
    found = []
    for name in names:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return found


def quartiles(values: Sequence[float], unit: float = 1e3) -> str:
    """Format median (lower quartile - upper quartile) of seconds, by default in milliseconds."""
    found = statistics.quantiles([value * unit for value in values], n=4)
    low, middle, high = (f"{value:.3g}" if value < 1000 else f"{value:.0f}" for value in found)
    return f"{middle} ({low} - {high})"


def student_points(differences: F64, comparisons: int = 1) -> str:
    """Format the mean of differences and its 95 % interval, in points; all ``comparisons`` hold together."""
    points = 100 * differences
    margin = student_quantile(0.025 / comparisons, len(points) - 1) * points.std(ddof=1) / math.sqrt(len(points))
    return f"{points.mean():+.1f} ({points.mean() - margin:+.1f} to {points.mean() + margin:+.1f})"


def p99(seconds: Sequence[float]) -> float:
    """The 99th percentile."""
    return sorted(seconds)[int(len(seconds) * 0.99)]


def best(work: Callable[[], object], *, calls: int = 200, repeats: int = 15) -> float:
    """Return the seconds of one call in the fastest of several runs, which other processes disturbed least."""
    least = float("inf")
    for _ in range(repeats):
        started = time.perf_counter()
        for _ in range(calls):
            work()
        least = min(least, (time.perf_counter() - started) / calls)
    return least


async def alternately(calls: Sequence[Call], rounds: int) -> list[list[float]]:
    """Make each side's call in turn, reversing the order every round; return the seconds of each side's calls."""
    seconds: list[list[float]] = [[] for _ in calls]
    order = list(range(len(calls)))
    for number in range(rounds + WARM):
        for side in order:
            started = time.perf_counter()
            await calls[side]()
            if number >= WARM:
                seconds[side].append(time.perf_counter() - started)
        order.reverse()
    return seconds


def ratio(mine: Sequence[float], other: Sequence[float]) -> float:
    """Return the median ratio over the pairs."""
    return statistics.median(a / b for a, b in zip(mine, other, strict=True))


def ensemble(url: str, size: int, folder: Path, budget: Budget | None = None) -> AsyncEnsemble:
    """Make an ensemble that asks all of its endpoints, with a store on disk."""
    return AsyncEnsemble(
        endpoints(url, size),
        policy=_published(folder / f"policy-{size}"),
        store=folder / f"{size}-{time.time_ns()}.db",
        explore=False,
        budget=budget,
    )


def _published(folder: Path) -> Path:
    """Publish a policy that asks all endpoints, from another process: this one shall import only what asking needs."""
    write = "import sys, pathlib, tests.policies; tests.policies.ask_all(pathlib.Path(sys.argv[1]))"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    subprocess.run([sys.executable, "-c", write, str(folder)], env=environment, check=True)
    return folder


def endpoints(url: str, size: int, *, timeout_s: float = 60.0) -> list[Endpoint]:
    """Make this number of endpoints, with prices, that are all the same server."""
    return [
        Endpoint(f"e{i}", base_url=url, model="floor", input_usd_per_1m=1, output_usd_per_1m=1, timeout_s=timeout_s)
        for i in range(size)
    ]


def resident_mb() -> float:
    """Return the memory that this process has now, MiB (Linux)."""
    return _status_mb("VmRSS")


def peak_mb() -> float:
    """Return the most memory that this process has had, MiB (Linux)."""
    return _status_mb("VmHWM")


def growth(values: Sequence[float]) -> tuple[float, bool]:
    """Fit a line to the means of ten spans; return its rise as a share of the mean, and whether it is significant.

    It is if the rise is more than 2 %, and the slope more than 4.5 standard errors above zero.
    """
    size = len(values) // _SPANS
    means = [statistics.fmean(values[i * size : (i + 1) * size]) for i in range(_SPANS)]
    slope, start = statistics.linear_regression(range(_SPANS), means)
    left = sum((mean - start - slope * i) ** 2 for i, mean in enumerate(means)) / (_SPANS - 2)
    error = (left / sum((i - (_SPANS - 1) / 2) ** 2 for i in range(_SPANS))) ** 0.5
    share = slope * (_SPANS - 1) / statistics.fmean(means)
    return share, slope > 4.5 * error and share > 0.02


def _status_mb(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) / 1024


def play_or_read(
    described: str | None, folder: str, cases: Mapping[str, Case], play: Callable[[Case, Path, int], dict[str, Any]]
) -> list[dict[str, Any]]:
    """Play each case and write its results, or read the results that the command line names.

    Args:
        described: the benchmark's docstring.
        folder: where results are written by default.
        cases: title -> case.
        play: plays a case, given the folder of the logs and the number of seeds.
    """
    parser = argparse.ArgumentParser(description=described, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="*", help="earlier results to print, instead of playing")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", type=Path, default=Path(folder))
    given = parser.parse_args()
    found = [json.loads(file.read_text()) for file in given.files]
    if not found:
        given.json.mkdir(parents=True, exist_ok=True)
        for title, case in cases.items():
            found.append(play(case, given.data, given.seeds))
            (given.json / f"{title}.json").write_text(json.dumps(found[-1], indent=1))
    return found


def main(section: Callable[[], Section]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true", help="as JSON")
    as_json = parser.parse_args().json
    show(section(), as_json=as_json)


def show(found: Section, *, as_json: bool) -> None:
    """Print a section."""
    print(json.dumps(asdict(found)) if as_json else f"{machine()}\n\n{markdown(found)}")


def markdown(section: Section) -> str:
    """Format a section for docs/results/speed.md."""
    parts = [f"### {section.title}"]
    if section.targets:
        rows = [(t.what, t.aim, t.measured, t.floor or "-", "yes" if t.met else "**no**") for t in section.targets]
        parts.append(markdown_table(Table(("target", "aim", "measured", "floor", "met"), rows)))
    parts += map(markdown_table, section.tables)
    parts += section.notes
    return "\n\n".join(parts)


def markdown_table(table: Table) -> str:
    """Format a table as Markdown."""
    lines = ["| " + " | ".join(row) + " |" for row in (table.head, *table.rows)]
    lines.insert(1, "|---" * len(table.head) + "|")
    return "\n".join(lines)
