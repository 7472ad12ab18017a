"""RL-Focal, appendix G: accuracy when members' scores become noisy, or the best member adversarial.

python -m examples.paper.appendix_g [--seeds 5] [--keep FOLDER]

Everything is trained on the unchanged log; then, on the test part, at random queries,
- noisy: each member's scores are shuffled over the choices independently;
- adversarial: the best member of the training part exchanges its highest score with its lowest.
Labels are still revealed, so that online learners can adapt.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from examples.paper.common import Benchmark, benchmarks, mean_se, options, show, with_outputs
from focalroute.evaluate.baselines import BASELINES
from focalroute.evaluate.outcomes import LoggedQuery, Output
from focalroute.evaluate.presets.rl_focal import rl_focal
from focalroute.evaluate.replay import ReplayResult, play
from focalroute.evaluate.table import LogTable

SHARES = (0.0, 0.1, 0.3, 0.5, 1.0)
_WAYS = ("best-single-train", "plurality", "log-linear-online")
_TARGET = 0.5
_OURS = f"focalroute @ {_TARGET:g}"
#: Slow methods -> how each is left out.
_LONG = {"rl-focal": "rl-focal", _OURS: "default"}
_KINDS = ("noisy", "adversarial")


@lru_cache(len(_KINDS) * len(SHARES))
def perturbed(benchmark: Benchmark, kind: str, share: float, seed: int) -> LogTable:
    """Return the log with this share of the test queries changed."""
    table, rng = benchmark.table, np.random.default_rng(seed)
    struck = {table.queries[row].id for row in benchmark.parts.test.tolist() if rng.random() < share}
    best = table.names[benchmark.table.rank(benchmark.parts.train)[0]]

    def changed(query: LoggedQuery) -> Mapping[str, Output]:
        if query.id not in struck or query.choices is None:
            return query.outputs
        size = len(query.choices)
        if kind == "noisy":
            return {name: _moved(output, rng.permutation(size)) for name, output in query.outputs.items()}
        said = query.outputs.get(best)
        return query.outputs if said is None else {**query.outputs, best: _moved(said, _exchanged(said, size))}

    return with_outputs(table, changed)


def _exchanged(output: Output, size: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the place that each choice's score moves to: the highest and the lowest are exchanged."""
    order = np.arange(size)
    mass = np.array(output.probabilities or [float(choice == output.answer) for choice in range(size)])
    first, last = int(mass.argmax()), int(size - 1 - mass[::-1].argmin())
    order[[first, last]] = last, first
    return order


def _moved(output: Output, to: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Output:
    """Move the score of each choice i to choice ``to[i]``."""
    answer = int(to[output.answer]) if isinstance(output.answer, int) else output.answer
    if output.probabilities is None:
        return replace(output, answer=answer)
    mass = np.empty(len(to))
    mass[to] = output.probabilities
    return replace(output, answer=answer, probabilities=tuple(mass.tolist()))


def player(benchmark: Benchmark, name: str, seed: int) -> Callable[[LogTable], ReplayResult]:
    """Train on the benchmark's log; return a function that replays the test part of any log."""
    if name == _OURS:
        return partial(benchmark.served, seed, _TARGET)
    training = benchmark.training(seed)
    trained = rl_focal(training, benchmark.options.rl_focal()) if name == "rl-focal" else BASELINES[name](training)
    return lambda table: play(copy.deepcopy(trained), table, benchmark.parts.test)


def accuracies(benchmark: Benchmark, name: str, seed: int, shares: Sequence[float]) -> dict[str, NDArray[Any]]:
    """Kind -> accuracy at each share."""
    played = player(benchmark, name, seed)
    return {
        kind: np.array([played(perturbed(benchmark, kind, share, seed)).worth.mean() for share in shares])
        for kind in _KINDS
    }


def main() -> None:
    """Train, perturb, replay and print."""
    asked = options(__doc__ or "")
    shares = SHARES[::4] if asked.quick else SHARES
    ways = [*_WAYS, *(name for name, long in _LONG.items() if long not in asked.without)]
    for benchmark in benchmarks(["MUSR*", "MMLU-Pro"], asked):
        found: dict[str, list[Mapping[str, NDArray[Any]]]] = {name: [] for name in ways}
        for seed in range(asked.seeds):
            for name in ways:
                key = f"{benchmark.name}/{name}, perturbed/{seed}"
                found[name].append(asked.kept(key, partial(accuracies, benchmark, name, seed, shares)))
        for kind in _KINDS:
            rows = [
                [name, *(mean_se([run[kind][n] for run in runs]) for n in range(len(shares)))]
                for name, runs in found.items()
            ]
            show(f"{benchmark.name}, {kind}: accuracy %", ["share of queries", *map(str, shares)], rows)


if __name__ == "__main__":
    main()
