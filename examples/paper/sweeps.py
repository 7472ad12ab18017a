"""RL-Focal, Tables 4 and 5 and Fig. 5: window T, discount gamma and penalty alpha; accuracy and cost of each.

python -m examples.paper.sweeps [--seeds 5] [--keep FOLDER]
"""

from __future__ import annotations

import numpy as np

from examples.paper.common import accuracy, benchmarks, cost, figure, mean_se, options, show

WINDOWS = (10, 100, 300, 500, 1000)
GAMMAS = (0.5, 0.8, 0.9, 0.99)
ALPHAS = (0.0, 0.1, 0.3, 1.0, 3.0)
#: Published, on GSM8K: accuracy %, cost in cents.
PUBLISHED: dict[str, dict[float, str]] = {
    "window": {10: "73.79, 762", 100: "77.42, 1404", 300: "73.95, 447", 500: "72.26, 692", 1000: "74.60, 1351"},
    "gamma": {0.5: "74.92", 0.8: "75.00", 0.9: "76.77", 0.99: "0.32 (no convergence)"},
}


def main() -> None:
    """Train, play, print and draw."""
    asked = options(__doc__ or "")
    for benchmark in benchmarks(["ZeroEval"], asked):
        with figure("paper-fig5", asked) as (axes,):
            for name, values in (("window", WINDOWS), ("gamma", GAMMAS), ("alpha", ALPHAS)):
                played = {value: benchmark.rl_focal(**{name: value}) for value in values}
                rows = [
                    [
                        f"{value:g}",
                        accuracy(runs),
                        cost(runs, benchmark.everybody),
                        mean_se([run.asked.sum(axis=1).mean() for run in runs], scale=1),
                        PUBLISHED.get(name, {}).get(value, ""),
                    ]
                    for value, runs in played.items()
                ]
                show(f"{benchmark.name}", [name, "accuracy %", "cost ratio", "calls", "published"], rows)
                if name == "alpha":
                    axes.plot(
                        values, [100 * np.mean([run.worth.mean() for run in runs]) for runs in played.values()], "o-"
                    )
                    axes.set(xlabel="alpha", ylabel="right, %", title=benchmark.name)
                    other = axes.twinx()
                    usd = [np.mean([run.usd.sum() for run in runs]) / benchmark.everybody for runs in played.values()]
                    other.plot(values, usd, "s--", color="tab:orange")
                    other.set(ylabel="cost, asking everybody = 1 (dashed)", ylim=(0, 1))


if __name__ == "__main__":
    main()
