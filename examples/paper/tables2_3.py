"""RL-Focal, Tables 2 and 3: two endpoints and a threshold; many samples of one; a vote, a reranker, a fixed subset.

python -m examples.paper.tables2_3 [--seeds 5] [--keep FOLDER]

Recorded logs do not have several samples of one endpoint. "simulated*" has its endpoints' whole distributions, from
which samples are drawn here, each paid for.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from examples.paper.common import Benchmark, Options, accuracy, benchmarks, cost, options, show
from examples.paper.reranker import Rerank
from focalroute.evaluate.baselines import First, has_text, threshold_pair
from focalroute.evaluate.replay import ReplayResult, Training

#: Published, Table 2 on GPQA: the strongest with three others, and RL-Focal. Table 3 on MMLU / GSM8K.
PUBLISHED_PAIRS = "40.00, 38.88, 36.66; RL-Focal 48.98"
PUBLISHED = {
    "plurality": "68.06 / 72.31",
    "reranker": "44.01 / 40.41 (LLM-Blender)",
    "static-subset": "72.77 / 79.01 (LLM-TOPLA)",
    "more agents": "51.09 / 61.00 and 60.05 / 77.00",
    "rl-focal": "77.98 / 78.84",
}
_PAIRS, _SAMPLES = 3, (10, 40)
_TARGET = 0.2


def pairs(asked: Options) -> None:
    """Print Table 2: the best endpoint of the training part with each of the next ones."""
    rows = []
    for benchmark in benchmarks(["MMLU-Pro", "ZeroEval"], asked):
        if not has_text(benchmark.training(0)):
            continue
        strong, *others = benchmark.table.rank(benchmark.parts.train)
        for cheap in others[:_PAIRS]:
            names = f"{benchmark.table.names[strong]} + {benchmark.table.names[cheap]}"
            run = benchmark.once(f"pair {names}", partial(threshold_pair, pair=(cheap, strong)))
            rows.append([benchmark.name, names, accuracy([run]), cost([run], benchmark.ask_all_usd)])
        for name, runs in (benchmark.published() | benchmark.defaults(_TARGET)).items():
            rows.append([benchmark.name, f"**{name}**", accuracy(runs), cost(runs, benchmark.ask_all_usd)])
    show(f"Two endpoints and a threshold; published: {PUBLISHED_PAIRS}", ["", "", "accuracy %", "cost ratio"], rows)


def more_agents(benchmark: Benchmark, member: int, samples: int, seed: int) -> ReplayResult:
    """Replay the plurality of n samples of one endpoint; ties go to the answer drawn first."""
    table, test = benchmark.table, benchmark.parts.test
    rng = np.random.default_rng(seed)
    worth = np.zeros(len(test))
    asked = np.zeros((len(test), len(table.names)), bool)
    asked[:, member] = True
    for n, row in enumerate(test.tolist()):
        mass = np.array(table.queries[row].outputs[table.names[member]].probabilities)
        drawn = rng.choice(len(mass), size=samples, p=mass / mass.sum())
        votes = np.bincount(drawn, minlength=len(mass))
        worth[n] = table.worth(row, next(choice for choice in drawn.tolist() if votes[choice] == votes.max()))
    return ReplayResult(worth, samples * table.usd[test, member], asked)


def _alone(member: int, _: Training) -> First:
    return First([member])


def others(asked: Options) -> None:
    """Print Table 3."""
    for benchmark in benchmarks(["simulated*", "ZeroEval", "MMLU"], asked):
        ways = {name: benchmark.runs(name) for name in ("best-single-train", "plurality", "static-subset")}
        if has_text(benchmark.training(0)):
            ways["reranker"] = [benchmark.once("rerank", Rerank)]
            ways["query-weights"] = benchmark.runs("query-weights")
        if benchmark.name.endswith("*"):
            cheapest = np.argsort(benchmark.table.usd.sum(axis=0), kind="stable")[:2].tolist()
            for member in cheapest:
                name = benchmark.table.names[member]
                ways[f"{name} alone"] = [benchmark.once(f"alone {name}", partial(_alone, member))]
                for samples in _SAMPLES:
                    ways[f"more agents: {name} x {samples}"] = [
                        more_agents(benchmark, member, samples, seed) for seed in range(asked.seeds)
                    ]
        ways |= benchmark.published() | benchmark.defaults(_TARGET)
        rows = [
            [name, accuracy(runs), cost(runs, benchmark.ask_all_usd), PUBLISHED.get(name.split(":")[0], "")]
            for name, runs in ways.items()
        ]
        show(f"{benchmark.name}", ["", "accuracy %", "cost ratio", "published, MMLU / GSM8K"], rows)


def main() -> None:
    """Play and print."""
    asked = options(__doc__ or "")
    pairs(asked)
    others(asked)


if __name__ == "__main__":
    main()
