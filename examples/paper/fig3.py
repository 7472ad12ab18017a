"""RL-Focal, Fig. 3: what each diversity metric in the Decider's observation is worth: learning curves, accuracy, cost.

python -m examples.paper.fig3 [--seeds 5]

"no metric" sees only the pool of the last answer and its size; "every endpoint" is the plurality of all.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from examples.paper.common import Benchmark, accuracy, benchmarks, cost, figure, options, rl_focal_name, show, spread
from focalroute.evaluate.presets.rl_focal import METRICS, AgentStep, RlFocal, train
from focalroute.evaluate.replay import ReplayResult, play

VARIANTS: dict[str, tuple[str, ...]] = {"no metric": (), "all": METRICS, **{name: (name,) for name in METRICS}}
_CURVES = ("no metric", "all", "focal", "fleiss_kappa")
_POINTS = 40


def run(benchmark: Benchmark, metrics: tuple[str, ...], seed: int) -> tuple[ReplayResult, NDArray[np.float64]]:
    """Return the run on the test part, and the accuracy in equal parts of the training, (`_POINTS`,)."""
    settings, training = benchmark.options.rl_focal(metrics=metrics), benchmark.training(seed)

    def watched() -> dict[str, NDArray[Any]]:
        right: list[float] = []

        def watch(step: AgentStep) -> None:
            right.append(float((step.rewards[:, 1] > 0).mean()))

        with threadpool_limits(1, "blas"):
            data = training.arrays()
            agents = train(data, settings, seed, watch=watch)
            played = play(RlFocal(agents, data, training, settings), benchmark.table, benchmark.parts.test)
        curve = np.array([part.mean() for part in np.array_split(right, _POINTS)])
        return {"worth": played.worth, "usd": played.usd, "asked": played.asked, "curve": curve}

    found = benchmark.options.kept(f"{benchmark.name}/{rl_focal_name(metrics=metrics)}/{seed}-watched", watched)
    return ReplayResult(found["worth"], found["usd"], found["asked"]), found["curve"]


def main() -> None:
    """Train, play, print and draw."""
    asked = options(__doc__ or "")
    for benchmark in benchmarks(["ZeroEval"], asked):
        found = {
            name: [run(benchmark, metrics, seed) for seed in range(asked.seeds)] for name, metrics in VARIANTS.items()
        }
        played = {name: [one for one, _ in runs] for name, runs in found.items()}
        played["every endpoint"] = benchmark.runs("plurality")
        rows = [[name, accuracy(runs), cost(runs, benchmark.ask_all_usd)] for name, runs in played.items()]
        show(f"{benchmark.name}: metrics that the Decider sees", ["", "accuracy %", "cost ratio"], rows)
        with figure("paper-fig3", asked, 2) as (left, right):
            passes = asked.rl_focal().passes
            for name in _CURVES:
                curve = np.mean([learned for _, learned in found[name]], axis=0)
                each = curve.reshape(passes, -1).mean(axis=1)  # tasks of unequal difficulty follow each other
                left.plot(range(1, passes + 1), 100 * each, marker=".", label=name, lw=1)
            left.axvline((1 + passes) / 2, color="grey", lw=0.7, ls=":")
            left.set(xlabel="pass over the training part", ylabel="right while training, %", title=benchmark.name)
            left.legend()
            for name, runs in played.items():
                x = np.mean([run.usd.sum() for run in runs]) / benchmark.ask_all_usd
                y, error = spread([100 * run.worth.mean() for run in runs])
                right.errorbar(x, y, error, fmt="o", ms=3, label=name)
            right.set(xlabel="cost, asking all = 1", ylabel="right on the test part, %")
            right.legend(fontsize=6)


if __name__ == "__main__":
    main()
