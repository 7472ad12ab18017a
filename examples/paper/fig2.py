"""RL-Focal, Fig. 2: does the diversity of a team predict the accuracy of its plurality? All 2^N - N - 1 teams.

python -m examples.paper.fig2

Every metric is measured on the queries that the plurality is scored on, as in the paper, and once more on the training
part, which is all that a policy could know. "same size" is the mean correlation within teams of one size, since
accuracy and diversity both grow with it. The members' mean accuracy is beside them as a control.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from examples.paper.common import Benchmark, benchmarks, figure, options, show
from examples.paper.single_head import teams
from focalroute.evaluate.presets.rl_focal import METRICS, diversities, pair_statistics
from focalroute.evaluate.votes import plurality_accuracies

F64 = NDArray[np.float64]
_ROWS = 2000


def metrics(fails: NDArray[np.float32], pools: NDArray[np.float32]) -> F64:
    """Return every team's diversity metrics and, last, its members' mean accuracy, (S, 8)."""
    found = diversities(fails, pools, pair_statistics(fails.T @ fails, len(fails)))
    mean = pools @ (1 - fails.mean(axis=0)) / pools.sum(axis=1)
    return np.column_stack([found, mean]).astype(np.float64)


def correlation(x: F64, y: F64) -> float:
    """Return Pearson's correlation; 0 if x or y is constant."""
    return float(np.corrcoef(x, y)[0, 1]) if np.ptp(x) > 0 and np.ptp(y) > 0 else 0.0


def within(x: F64, y: F64, sizes: F64) -> float:
    """Return the mean, over team sizes, of the correlation within teams of that size."""
    return float(
        np.mean([correlation(x[sizes == m], y[sizes == m]) for m in np.unique(sizes) if (sizes == m).sum() > 2])
    )


def rows_of(benchmark: Benchmark) -> tuple[list[list[str]], F64, F64, F64]:
    """Return the table, and every team's focal diversity, plurality accuracy and size."""
    pools = teams(len(benchmark.table.endpoints)).astype(np.float32)
    train, test, fails = benchmark.parts.train, benchmark.parts.test, benchmark.fails
    some = train[np.linspace(0, len(train) - 1, min(len(train), _ROWS)).astype(np.int64)]
    right = plurality_accuracies(benchmark.table, test, pools.astype(np.float64), benchmark.table.rank(train))
    now, before, sizes = metrics(fails[test], pools), metrics(fails[some], pools), pools.sum(axis=1).astype(np.float64)
    rows = [
        [
            name,
            *(f"{correlation(x[:, k], right):+.2f}" for x in (now, before)),
            *(f"{within(x[:, k], right, sizes):+.2f}" for x in (now, before)),
        ]
        for k, name in enumerate((*METRICS, "mean accuracy (control)"))
    ]
    return rows, now[:, 0], right, sizes


def main() -> None:
    """Print the correlations, draw the teams."""
    asked = options(__doc__ or "")
    found = [(benchmark.name, *rows_of(benchmark)) for benchmark in benchmarks(["MMLU", "MMLU-Pro", "ZeroEval"], asked)]
    with figure("paper-fig2", asked, len(found)) as panels:
        for axes, (name, rows, focal, right, sizes) in zip(panels, found, strict=True):
            show(
                f"{name}: correlation with the plurality's accuracy, {len(right)} teams",
                ["metric", "all teams", "all teams, metric of the training part", "same size", "same size, training"],
                rows,
            )
            axes.scatter(focal, 100 * right, c=sizes, s=1, cmap="viridis", rasterized=True)
            axes.set(title=name, xlabel="focal diversity", ylabel="plurality right, %")


if __name__ == "__main__":
    main()
