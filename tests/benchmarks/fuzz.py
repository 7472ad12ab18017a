"""Fuzzes everything that reads foreign input: ``python -m tests.benchmarks.fuzz --inputs 1000000``.

The inputs are valid ones with some bytes or JSON parts changed (`tests.fuzzing`); the same seed gives the same inputs.
It fails at the first input that raises anything but a typed error or takes longer than a limit, and prints the name of
a file with that input. It also fails if memory grows by more than a limit. Prints a table.
"""

from __future__ import annotations

import argparse
import random
import resource
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from types import FrameType

from tests.fuzzing.targets import TARGETS, Target

LIMIT_S = 20.0
LIMIT_MIB = 512  # by which the memory of the process may grow during one target


class Hang(BaseException):
    """An input has taken too long. This is no Exception, so no reader can catch it."""


def hang(_: int, __: FrameType | None) -> None:
    raise Hang


def fuzz(target: Target, inputs: int, seed: int) -> float:
    """Fuzz one target with this number of inputs; return the CPU time of the slowest, seconds.

    Raises:
        AssertionError: an input crashed or hung (its file is named), or took too much memory.
    """
    rng = random.Random(f"{seed} {target.name}")
    slowest, before = 0.0, _peak_mib()
    signal.signal(signal.SIGALRM, hang)
    with target.open() as read:
        for _ in range(inputs):
            data = target.make(rng)
            signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
            begun = time.thread_time()
            try:
                read(data)
            except BaseException as error:
                signal.setitimer(signal.ITIMER_REAL, 0)
                with tempfile.NamedTemporaryFile("wb", prefix="fuzz-", delete=False) as file:
                    file.write(data)
                raise AssertionError(
                    f"{target.name}: {type(error).__name__}: {error}; its input: {file.name}"
                ) from error
            slowest = max(slowest, time.thread_time() - begun)
            signal.setitimer(signal.ITIMER_REAL, 0)
            grown = _peak_mib() - before
            assert grown < LIMIT_MIB, f"{target.name}: the memory grew by {grown:.0f} MiB"
    return slowest


def _peak_mib() -> float:
    """Return the most memory that the process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all targets and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="number of inputs, over all targets")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="only targets with this in their name")
    given = parser.parse_args(arguments)
    warnings.simplefilter("error")
    print("| what reads them | inputs | crashes | hangs | slowest, ms of CPU | s |\n|---|---|---|---|---|---|")
    total = 0
    for target in TARGETS:
        if given.only not in target.name:
            continue
        inputs = max(1, target.inputs * given.inputs // 1_000_000)
        begun = time.perf_counter()
        slowest = fuzz(target, inputs, given.seed)
        total += inputs
        took = time.perf_counter() - begun
        print(f"| {target.name} | {inputs:,} | 0 | 0 | {1000 * slowest:.1f} | {took:.0f} |", flush=True)
    print(f"| all | {total:,} | 0 | 0 | | |")


if __name__ == "__main__":
    main()
