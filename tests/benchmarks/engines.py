"""Compares the two engines on this machine: the same work in this process, and as Ray tasks on all cores.

``python -m tests.benchmarks.engines`` alternately trains four seeds on a simulated log, and evaluates with two seeds
and seven operating points, with each engine. It fails if a single byte of the results differs. Seconds do not include
starting and stopping a Ray cluster, which has its own row.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from focalroute.core.pool import load_pool
from focalroute.evaluate.job_engine import HERE, Engine, open_engine
from focalroute.evaluate.outcomes import read_log
from focalroute.evaluate.report import evaluate
from focalroute.evaluate.table import join
from focalroute.evaluate.training import TrainingJob, recorded, train_each
from focalroute.learn.export import decider_model, fusion_model
from focalroute.learn.offline.reinforce import OfflineSettings
from tests.benchmarks.harness import machine
from tests.evaluate.logs import stream, write_log, write_pool

F64 = NDArray[np.float64]

SKILLS = {"a": 0.5, "b": 0.6, "c": 0.7, "d": 0.75, "e": 0.8, "f": 0.9}
SEEDS = range(4)


def training(log: Path, pool: Path, settings: OfflineSettings, engine: Engine) -> object:
    """Train with four seeds; return the model files."""
    table = join(read_log(log), load_pool(pool), log)
    (found,) = train_each([TrainingJob(recorded(table, np.arange(len(table.queries))), settings)], SEEDS, engine=engine)
    return [(decider_model(one.decider), fusion_model(one.fusion), one.score) for one in found]


def evaluation(log: Path, pool: Path, settings: OfflineSettings, engine: Engine) -> object:
    """Evaluate with two seeds at the default operating points; return the report."""
    return evaluate(log, pool, seeds=2, settings=settings, engine=engine).to_dict()


Work = Callable[[Path, Path, OfflineSettings, Engine], object]


def paired(work: Work, ray: Engine, log: Path, pool: Path, settings: OfflineSettings, pairs: int) -> list[F64]:
    """Return the seconds of each pair, here and on Ray, in alternating order."""
    found = []
    for pair in range(pairs):
        seconds, results = np.zeros(2), [object(), object()]
        for side in (0, 1) if pair % 2 else (1, 0):
            began = time.perf_counter()
            results[side] = work(log, pool, settings, (HERE, ray)[side])
            seconds[side] = time.perf_counter() - began
        assert results[0] == results[1], "Ray's figures differ"
        found.append(seconds)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--iterations", type=int, default=100)
    given = parser.parse_args(arguments)
    print(f"{machine()}, {time.strftime('%Y-%m-%d', time.gmtime())}; load at the start {os.getloadavg()[0]:.1f}")
    settings = OfflineSettings(iterations=given.iterations)
    print("\n| | here, s | Ray, s | here / Ray: median (least to most) | the same |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        log = write_log(Path(name) / "log.jsonl", stream(given.queries, SKILLS))
        pool = write_pool(Path(name) / "pool.toml", {name: 2.0**place for place, name in enumerate(SKILLS)})
        began = time.perf_counter()
        with open_engine("ray") as ray:
            started = time.perf_counter() - began
            for what, work in (("training, 4 seeds", training), ("evaluation, 2 seeds, 7 points", evaluation)):
                pairs = paired(work, ray, log, pool, settings, given.pairs)
                ratios = [here / there for here, there in pairs]
                cells = (", ".join(f"{pair[side]:.0f}" for pair in pairs) for side in (0, 1))
                middle = f"{np.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
                print(f"| {what} | {' | '.join(cells)} | {middle} | yes |", flush=True)
            began = time.perf_counter()
    print(f"| starting and ending the cluster | 0 | {started:.0f} + {time.perf_counter() - began:.0f} | | |")


if __name__ == "__main__":
    main()
