"""Runs all benchmarks of speed, each in its own process: ``python -m tests.benchmarks [NAME ...]``.

Prints Markdown for docs/results/speed.md: the targets and whether they are met, then every table. ``--long`` makes a
run of a million asks instead, which takes most of an hour. A missed target is no failure; a benchmark that breaks is.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any

from tests.benchmarks.harness import Section, Table, Target, machine, markdown

NAMES = ("inside", "serving", "feedbacks", "updates", "training", "memory", "imports")
LONG = (("memory", "--asks", "1000000", "--at-once", "10000"),)


def run(name: str, *options: str) -> Section:
    """Run one benchmark; return its section."""
    started = time.perf_counter()
    print(f"{name} ...", end=" ", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", f"tests.benchmarks.{name}", "--json", *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    print(f"{time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    return _section(json.loads(done.stdout))


def _section(found: dict[str, Any]) -> Section:
    targets = [Target(**target) for target in found["targets"]]
    return Section(found["title"], targets, [Table(**table) for table in found["tables"]], found["notes"])


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks")
    parser.add_argument("names", nargs="*", choices=[[], *NAMES], help="default: all")
    parser.add_argument("--long", action="store_true", help="make a run of a million asks instead")
    given = parser.parse_args()
    wanted = LONG if given.long else [(name,) for name in given.names or NAMES]
    sections = [run(*one) for one in wanted]
    print(f"{machine()}, {time.strftime('%Y-%m-%d', time.gmtime())}")
    for section in sections:
        print(f"\n{markdown(section)}")


if __name__ == "__main__":
    main()
