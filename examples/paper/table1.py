"""RL-Focal, Table 1: the ensemble against each of its members, and against this project's other methods.

python -m examples.paper.table1 [--seeds 5] [--keep FOLDER]
"""

from __future__ import annotations

from examples.paper.common import Benchmark, accuracy, benchmarks, cost, options, show
from focalroute.evaluate.replay import ReplayResult

#: What the paper reports, in percent: the best single model, and RL-Focal.
PUBLISHED = {
    "MMLU": "77.29, 77.98 ± 0.63",
    "GSM8K": "73.91, 78.84 ± 0.74",
    "BBH*": "59.94, 65.00 ± 1.21",
    "MUSR*": "53.95, 55.25 ± 0.32",
    "GPQA*": "45.56, 48.28 ± 0.59",
}
_BASELINES = ("best-single-train", "plurality", "mean", "log-linear-online", "query-weights", "static-subset")
_TARGETS = (0.2, 0.5)
#: RL-Focal's pools in service: drawn, and learned on (Algorithm 2), or the likeliest pool of the trained Decider.
_POOLS = {"rl-focal, pools drawn": True, "rl-focal, likeliest pool": False}


def members_of(benchmark: Benchmark) -> list[list[str]]:
    """Make a row for each member alone, the most accurate first."""
    table, test = benchmark.table, benchmark.parts.test
    alone = table.accuracy(test)
    share = table.usd[test].sum(axis=0) / benchmark.ask_all_usd
    return [[table.names[i], f"{100 * alone[i]:.2f}", f"{share[i]:.3f}"] for i in table.rank(test)]


def ways_of(benchmark: Benchmark) -> dict[str, list[ReplayResult]]:
    """Return the methods to compare with the members."""
    names = [name for name in _BASELINES if any(benchmark.table.texts) or name != "query-weights"]
    names += [] if "der" in benchmark.options.without else ["der"]
    ways = {name: benchmark.runs(name) for name in names}
    if "rl-focal" not in benchmark.options.without:
        ways |= {name: benchmark.rl_focal(sample=sample) for name, sample in _POOLS.items()}
    return ways | benchmark.defaults(*_TARGETS)


def main() -> None:
    """Play and print."""
    asked = options(__doc__ or "")
    for benchmark in benchmarks(["ZeroEval", "GSM8K", "MMLU", "MMLU-Pro", "BBH*", "MUSR*", "GPQA*"], asked):
        ways = ways_of(benchmark)
        rows = members_of(benchmark)
        rows += [[f"**{name}**", accuracy(runs), cost(runs, benchmark.ask_all_usd)] for name, runs in ways.items()]
        title = f"{benchmark.name}, {len(benchmark.parts.test)} questions after {len(benchmark.parts.train)}"
        published = PUBLISHED.get(benchmark.name, "not played")
        show(f"{title}; published (best single, RL-Focal): {published}", ["", "accuracy %", "cost ratio"], rows)


if __name__ == "__main__":
    main()
