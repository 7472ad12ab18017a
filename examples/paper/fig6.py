"""RL-Focal, Fig. 6: the pool of 8 replicated to 16, 32 and 64 endpoints: accuracy, and how long training takes.

python -m examples.paper.fig6 [--seeds 5] [--keep FOLDER]
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from examples.paper.common import (
    Benchmark,
    accuracy,
    benchmarks,
    cost,
    figure,
    mean_se,
    members,
    options,
    show,
    two_scales,
)
from focalroute.evaluate.presets.rl_focal import rl_focal
from focalroute.evaluate.replay import ReplayResult, play

_BASE = 8
_COPIES = (1, 2, 4, 8)


def timed(benchmark: Benchmark, seed: int) -> dict[str, NDArray[Any]]:
    """Return one run, and the CPU seconds of its training."""
    began = time.process_time()
    strategy = rl_focal(benchmark.training(seed), benchmark.options.rl_focal())
    seconds = time.process_time() - began
    played = play(strategy, benchmark.table, benchmark.parts.test)
    return {"worth": played.worth, "usd": played.usd, "asked": played.asked, "seconds": np.array(seconds)}


def main() -> None:
    """Train, play, print and draw."""
    asked = options(__doc__ or "")
    for benchmark in benchmarks(["ZeroEval"], asked):
        base = list(range(min(_BASE, len(benchmark.table.names))))
        played: dict[float, list[ReplayResult]] = {}
        seconds: list[list[float]] = []
        rows = []
        for copies in _COPIES[: 2 if asked.quick else None]:
            pool = replace(benchmark, table=members(benchmark.table, base * copies))
            size = len(base) * copies
            runs = [
                asked.kept(f"{benchmark.name}/replicated {size}/{seed}", partial(timed, pool, seed))
                for seed in range(asked.seeds)
            ]
            played[size] = [ReplayResult(run["worth"], run["usd"], run["asked"]) for run in runs]
            seconds.append([float(run["seconds"]) for run in runs])
            ratio = cost(played[size], pool.ask_all_usd)
            rows.append([str(size), accuracy(played[size]), ratio, mean_se(seconds[-1], scale=1, digits=1)])
        show(
            f"{benchmark.name}: the first {len(base)} endpoints, replicated; published: accuracy stays, "
            "0.8 minutes more of training for each further model",
            ["endpoints", "accuracy %", "cost ratio", "training, s of CPU"],
            rows,
        )
        with figure("paper-fig6", asked) as (axes,):
            two_scales(axes, "endpoints", played, [float(np.mean(each)) for each in seconds], "training, s of CPU")
            axes.set(title=benchmark.name)


if __name__ == "__main__":
    main()
