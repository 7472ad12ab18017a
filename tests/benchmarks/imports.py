"""Measures the time and memory of `import focalroute` and of the first ask, and the size of an installation.

``python -m tests.benchmarks.imports`` runs processes in turn: one imports only the dependencies (asyncio, numpy,
onnxruntime, pydantic), which are the floor; one imports focalroute; and one also loads what an ask needs, which is
otherwise loaded on first use.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from tests.benchmarks import harness
from tests.benchmarks.harness import Section, Table, Target, quartiles
from tests.benchmarks.server import floor_server

TURNS = 15
FLOOR = "import asyncio, numpy, onnxruntime, pydantic"
USE = "from focalroute import Endpoint, Ensemble"
SAID = """
import json, time
started, cpu = time.perf_counter(), time.process_time()
{imports}
taken, cpu = time.perf_counter() - started, time.process_time() - cpu
first = 0.0
if {url!r}:
    before = time.perf_counter()
    from focalroute import Endpoint, Ensemble
    with Ensemble([Endpoint("e", base_url={url!r}, model="m")]) as ensemble:
        ensemble.ask("2 + 2?", answer="number")
        first = time.perf_counter() - before
pages = int(open("/proc/self/statm").read().split()[1])
print(json.dumps([taken, cpu, pages / 256, first]))
"""


def run(imports: str, url: str = "") -> list[float]:
    """Return seconds, CPU seconds, MiB, and seconds of the first ask, of a new process."""
    code = SAID.format(imports=imports, url=url)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found: list[float] = json.loads(done.stdout)
    return found


def base() -> list[tuple[str, str, float]]:
    """Return name, version and MB of everything in a base installation, largest first."""
    seen: dict[str, tuple[str, str, float]] = {}
    left = ["focalroute"]
    while left:
        name = left.pop()
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key in seen:
            continue
        try:
            found = distribution(name)
        except PackageNotFoundError:  # for other systems or Pythons
            continue
        paths = [found.locate_file(path) for path in found.files or ()]
        size = sum(path.stat().st_size for path in map(_path, paths) if path.is_file())
        seen[key] = key, found.version, size / 1e6
        left += [re.split(r"[\s;<>=!~\[(]", needed)[0] for needed in found.requires or () if "extra ==" not in needed]
    seen.pop("focalroute", None)
    return sorted(seen.values(), key=lambda one: -one[2])


def _path(path: object) -> Path:
    return Path(str(path))


def section() -> Section:
    """Measure imports (section 7 of the page)."""
    floor: list[list[float]] = []
    ours: list[list[float]] = []
    used: list[list[float]] = []
    first: list[float] = []
    with floor_server() as url:
        for number in range(TURNS + 2):
            alike = [run(FLOOR), run(f"{FLOOR}, focalroute"), run(f"{FLOOR}\n{USE}")]
            asked = run("import focalroute", url)
            if number >= 2:
                for taken, one in zip((floor, ours, used), alike, strict=True):
                    taken.append(one)
                first.append(asked[3])
    wall, memory = (harness.ratio([one[at] for one in ours], [one[at] for one in floor]) for at in (0, 2))
    ask_s = statistics.median(first)
    alone = statistics.median(one[0] for one in floor) * 1e3
    targets = (
        Target("import, time", "<= 1.3 times the floor", f"{wall:.2f} times", wall <= 1.3, f"{alone:.0f} ms"),
        Target("import, memory", "<= 1.3 times the floor", f"{memory:.2f} times", memory <= 1.3),
        Target("first ask after import", "<= 1 s", f"{ask_s:.2f} s", ask_s <= 1),
    )
    rows = [
        (
            what,
            quartiles([x[0] for x in taken]),
            quartiles([x[1] for x in taken]),
            f"{harness.ratio([x[1] for x in taken], [x[1] for x in floor]):.2f}",
            quartiles([x[2] for x in taken], 1),
        )
        for what, taken in (("the floor", floor), ("and focalroute", ours), (f"and `{USE}`", used))
    ]
    packages = base()
    sizes = [(name, found, f"{size:.1f}") for name, found, size in packages if size >= 1]
    small = [size for _, _, size in packages if size < 1]
    sizes.append((f"{len(small)} others", "", f"{sum(small):.1f}"))
    sizes.append((f"all {len(packages)}", "", f"{sum(size for _, _, size in packages):.1f}"))
    return Section(
        "7. Import and installation",
        targets,
        (
            Table(("import of", "ms (quartiles)", "CPU, ms", "CPU beside the floor", "resident, MiB"), rows),
            Table(("base installation", "version", "MB of files"), sizes),
        ),
    )


if __name__ == "__main__":
    harness.main(section)
