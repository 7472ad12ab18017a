"""RL-Focal, Fig. 4: right when few members are, greedy controls, errors corrected, branching against one head.

python -m examples.paper.fig4 [--seeds 5] [--keep FOLDER]
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from examples.paper.common import (
    Benchmark,
    Options,
    accuracy,
    benchmarks,
    cost,
    figure,
    mean_se,
    members,
    options,
    show,
)
from examples.paper.single_head import SingleHead
from focalroute.evaluate.presets.rl_focal import BranchingHead
from focalroute.evaluate.replay import ReplayResult

_WAYS = ("best-single-train", "plurality", "log-linear-online")
_GREEDY = ("random-select", "latest-correct", "best-single-train", "plurality")
_SIZES = (2, 4, 6, 8, 10, 12)
_TARGET = 0.5


def when_right(benchmark: Benchmark, runs: list[ReplayResult]) -> list[float]:
    """Return the accuracy on the test queries that exactly n members have right, n = 0 to N; NaN if there are none."""
    n = (benchmark.fails[benchmark.parts.test] == 0).sum(axis=1)
    worth = np.mean([run.worth for run in runs], axis=0)
    return [float(worth[n == k].mean()) if (n == k).any() else np.nan for k in range(len(benchmark.table.names) + 1)]


def corrected(benchmark: Benchmark, runs: list[ReplayResult]) -> list[str]:
    """Return the share of the best single endpoint's errors that are corrected, and of its right answers lost."""
    single = benchmark.run("best-single-train").worth >= 0.5
    won = [float((run.worth >= 0.5)[~single].mean()) for run in runs]
    lost = [float((run.worth < 0.5)[single].mean()) for run in runs]
    return [mean_se(won, digits=1), mean_se(lost, digits=1)]


def members_right(benchmark: Benchmark) -> dict[str, list[float]]:
    """Print the accuracy when exactly n members are right, and the errors corrected."""
    ways = {name: benchmark.runs(name) for name in _WAYS} | benchmark.published() | benchmark.defaults(_TARGET)
    found = {name: when_right(benchmark, runs) for name, runs in ways.items()}
    columns = ["members right", *map(str, range(len(benchmark.table.names) + 1))]
    cells = [[name, *("" if np.isnan(x) else f"{100 * x:.0f}" for x in line)] for name, line in found.items()]
    show(f"{benchmark.name}: share right, %, when exactly so many members are", columns, cells)
    rows = [[name, *corrected(benchmark, runs)] for name, runs in ways.items() if name != "best-single-train"]
    show(f"{benchmark.name}: beside the best single endpoint", ["", "errors corrected, %", "right ones lost, %"], rows)
    return found


def by_pool_size(benchmark: Benchmark, asked: Options) -> dict[str, list[list[float]]]:
    """Return the greedy controls' accuracy in growing pools: control -> size -> seed (which shuffles the pool)."""
    total = len(benchmark.table.names)
    found: dict[str, list[list[float]]] = {name: [] for name in _GREEDY}
    for size in [size for size in _SIZES if size <= total]:
        each: dict[str, list[float]] = {name: [] for name in _GREEDY}
        for seed in range(asked.seeds):
            chosen = np.random.default_rng(seed).permutation(total)[:size].tolist()
            smaller = replace(benchmark, name=f"{benchmark.name} {size}", table=members(benchmark.table, chosen))
            for name in _GREEDY:
                each[name].append(float(smaller.run(name, seed).worth.mean()))
        for name in _GREEDY:
            found[name].append(each[name])
    sizes = [str(size) for size in _SIZES if size <= total]
    rows = [[name, *map(mean_se, line)] for name, line in found.items()]
    show(f"{benchmark.name}: accuracy %, pools of so many endpoints, drawn by chance", ["", *sizes], rows)
    return found


def heads(asked: Options) -> None:
    """Print branching heads compared with one head over all teams."""
    rows = []
    for benchmark in benchmarks(["GPQA*", "MUSR*", "BBH*", "ZeroEval"], asked):
        for name, head in (("branching", BranchingHead), ("one head", SingleHead)):
            for runs in benchmark.published(decider_head=head).values():
                rows.append([benchmark.name, name, accuracy(runs), cost(runs, benchmark.ask_all_usd)])
    show("The Decider's last layer", ["", "", "accuracy %", "cost ratio"], rows)


def main() -> None:
    """Replay, print and draw."""
    asked = options(__doc__ or "")
    lines = {benchmark.name: members_right(benchmark) for benchmark in benchmarks(["ZeroEval", "MMLU-Pro"], asked)}
    with figure("paper-fig4", asked, len(lines) + 1) as panels:
        for axes, (title, found) in zip(panels, lines.items(), strict=False):
            for name, line in found.items():
                axes.plot(range(len(line)), 100 * np.array(line), marker=".", lw=1, label=name)
            axes.set(title=title, xlabel="members that are right", ylabel="right, %")
            axes.legend(fontsize=6)
        for benchmark in benchmarks(["ZeroEval"], asked):
            for name, grown in by_pool_size(benchmark, asked).items():
                panels[-1].plot(_SIZES[: len(grown)], 100 * np.mean(grown, axis=1), marker=".", lw=1, label=name)
            panels[-1].set(title=benchmark.name, xlabel="endpoints in the pool", ylabel="right, %")
            panels[-1].legend(fontsize=6)
    heads(asked)


if __name__ == "__main__":
    main()
