"""RL-Focal, Tables 4 and 5 and Fig. 5: window T, discount gamma and penalty alpha; accuracy and cost of each.

The paper does not say how many passes it makes over the training part; that is swept here, too.

python -m examples.paper.sweeps [--seeds 5] [--keep FOLDER]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from examples.paper.common import Benchmark, accuracy, benchmarks, cost, figure, mean_se, options, show, two_scales
from focalroute.evaluate.replay import ReplayResult

SWEPT: Mapping[str, Sequence[float]] = {
    "window": (10, 100, 300, 500, 1000),
    "gamma": (0.5, 0.8, 0.9, 0.99),
    "alpha": (0.0, 0.1, 0.3, 1.0, 3.0),
}
PASSES = (8, 32)
#: Published, on GSM8K: accuracy %, cost in cents.
PUBLISHED: dict[str, dict[float, str]] = {
    "window": {10: "73.79, 762", 100: "77.42, 1404", 300: "73.95, 447", 500: "72.26, 692", 1000: "74.60, 1351"},
    "gamma": {0.5: "74.92", 0.8: "75.00", 0.9: "76.77", 0.99: "0.32 (no convergence)"},
}


def row(benchmark: Benchmark, name: str, value: float, runs: Sequence[ReplayResult]) -> list[str]:
    """Return the row of one setting."""
    calls = mean_se([run.asked.sum(axis=1).mean() for run in runs], scale=1)
    published = PUBLISHED.get(name, {}).get(value, "")
    return [f"{value:g}", accuracy(runs), cost(runs, benchmark.ask_all_usd), calls, published]


def swept(benchmark: Benchmark, name: str, values: Sequence[float]) -> dict[float, list[ReplayResult]]:
    """Play these values of one setting, and print the results."""
    played = {value: benchmark.rl_focal(**{name: value}) for value in values}
    rows = [row(benchmark, name, value, runs) for value, runs in played.items()]
    show(f"{benchmark.name}", [name, "accuracy %", "cost ratio", "calls", "published"], rows)
    return played


def main() -> None:
    """Train, play, print and draw."""
    asked = options(__doc__ or "")
    for benchmark in benchmarks(["ZeroEval"], asked):
        with figure("paper-fig5", asked, len(SWEPT)) as panels:
            for (name, values), axes in zip(SWEPT.items(), panels, strict=True):
                played = swept(benchmark, name, values)
                usd = [np.mean([run.usd.sum() for run in runs]) / benchmark.ask_all_usd for runs in played.values()]
                two_scales(axes, name, played, usd, "cost, asking all = 1")
        swept(benchmark, "passes", PASSES)


if __name__ == "__main__":
    main()
