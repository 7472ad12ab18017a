"""What one update of the policies costs, in numpy and in torch: ``make bench`` prints it as a Markdown table.

All sides make the same update of the same batch (`tests.learn.test_torch` holds them equal), alternately in one process
and each on one thread, so that the ratio means something on a noisy machine. It is CPU time: an update competes with
serving for the processor. Medians, with the quartiles of what they are taken over.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec

import numpy as np
from threadpoolctl import threadpool_limits

from focalroute.learn.mappo import Hyperparameters, Learner, update
from focalroute.learn.passes import passes
from focalroute.learn.trajectory import Batch
from tests.benchmarks.overhead import quartiles
from tests.learn.batches import random_batch, random_learner

ROUNDS, WARM = 30, 3
#: (endpoints, episodes, rounds): 1,000 decisions each.
SIZES = ((12, 500, 2), (12, 1000, 1), (64, 500, 2))
#: Nothing stops early: four epochs, whatever happens.
SETTINGS = Hyperparameters(epochs=4, target_kl=np.inf, fusion_target_kl=np.inf)

Update = Callable[[Learner, Batch, Hyperparameters, np.random.Generator], object]


def sides() -> dict[str, Update]:
    """By name what is compared; numpy alone where torch is not installed."""
    if find_spec("torch") is None:
        return {"numpy": update}
    import torch

    from tests.benchmarks.torch_update import torch_update

    torch.set_num_threads(1)
    return {"numpy": update, "modules": torch_update, "engine": partial(update, passes=passes("torch"))}


def alternately(runs: dict[str, Update], learner: Learner, batch: Batch) -> dict[str, list[float]]:
    """CPU seconds of each side's updates, the order turned every time."""
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(ROUNDS + WARM):
        for name in list(runs)[:: (-1) ** number]:
            rng = np.random.default_rng(number)
            started = time.process_time()
            runs[name](learner, batch, SETTINGS, rng)
            if number >= WARM:
                taken[name].append(time.process_time() - started)
    return taken


def row(taken: dict[str, list[float]], what: str) -> str:
    """A line of the table; the ratio is the median over the pairs."""
    cells = [quartiles(taken[name], 1e3) if name in taken else "-" for name in ("numpy", "modules", "engine")]
    pairs = [mine / theirs for mine, theirs in zip(taken["numpy"], taken.get("modules", ()), strict=False)]
    return f"| {' | '.join((what, *cells, quartiles(pairs, 1) if pairs else '-'))} |"


def main() -> None:
    """Print the table."""
    libraries = [f"{name} {version(name)}" for name in ("numpy", "torch") if find_spec(name)]
    print(f"\nPython {platform.python_version()}, {os.cpu_count()} cores, {', '.join(libraries)}")
    head = (
        "1,000 decisions, 4 epochs, ms of CPU",
        "numpy, as shipped",
        "torch",
        "numpy, its passes by torch",
        "numpy / torch",
    )
    print(f"\n| {' | '.join(head)} |\n{'|---' * len(head)}|")
    runs = sides()
    with threadpool_limits(1, "blas"):
        for pool, episodes, rounds in SIZES:
            learner = random_learner(0, pool, np.float32)
            batch = random_batch(0, episodes=episodes, rounds=rounds, pool=pool, learner=learner)
            print(row(alternately(runs, learner, batch), f"N = {pool}, {episodes:,} answers of {rounds} round(s)"))


if __name__ == "__main__":
    main()
