"""Compares trained policies with the baselines on every recorded log, in three Markdown tables.

``python -m tests.benchmarks.quality --seeds 5`` trains and replays (an hour of one core), and writes the report of
`focalroute eval` on each log to the folder ``--json``. Given such files, it only prints their tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from focalroute.evaluate.metrics import PairedDifference
from focalroute.evaluate.report import evaluate
from focalroute.evaluate.table import SplitKind
from tests.benchmarks.harness import Table, markdown_table, play_or_read

#: The baselines that are subtracted from the curve; `_ALSO_BESIDE`: from the point held at `_HELD`.
_BESIDE = (
    "best-single-train", "plurality", "log-linear-online", "query-weights", "static-subset", "cascade", "carrot-knn",
    "carrot-linear", "avengers-pro", "random-select", "threshold-pair", "shuffled",
)  # fmt: skip
_ALSO_BESIDE = ("best-single-train", "plurality", "log-linear-online", "query-weights", "cascade", "shuffled")
_HELD = 0.2
_ROUNDED = 0.0015  # a target may be rounded up from a cost ratio by at most this
#: Log, how it is split, and the cost ratios to hold; one of them is the best single endpoint's.
CASES: Sequence[tuple[str, SplitKind, Sequence[float]]] = (
    ("mmlupro12", "stream", (0.05, 0.095, 0.1, 0.15, 0.2, 0.3, 0.5)),
    ("mmlu9", "stream", (0.05, 0.1, 0.135, 0.2, 0.207, 0.3, 0.5)),
    ("zeroeval12", "stream", (0.05, 0.057, 0.1, 0.2, 0.3, 0.5)),
    ("zeroeval12", "per-task", (0.05, 0.052, 0.1, 0.2, 0.25, 0.3, 0.5)),
    ("llmrouter9", "stream", (0.05, 0.1, 0.2, 0.237, 0.3, 0.5)),
    ("llmrouter9", "per-task", (0.05, 0.1, 0.2, 0.237, 0.3, 0.5)),
)


def main() -> None:
    """Train and replay, or read reports; then print the tables."""
    cases = {f"{log}, {split_by}": (log, split_by, costs) for log, split_by, costs in CASES}
    logs = play_or_read(__doc__, "build/quality", cases, played)
    print("\n\n".join(markdown_table(made) for made in tables(logs)))


def played(case: tuple[str, SplitKind, Sequence[float]], data: Path, seeds: int) -> dict[str, Any]:
    """Evaluate on a log; return its report."""
    log, split_by, costs = case
    return evaluate(
        data / f"{log}.jsonl.gz", data / f"{log}.pool.toml", split_by=split_by, operating_points=costs, seeds=seeds
    ).to_dict()


def tables(logs: Sequence[Mapping[str, Any]]) -> Iterator[Table]:
    """Yield accuracy @ cost of each method; the curve minus each baseline; the point held at `_HELD` minus each."""
    heads = ["", *(f"{Path(log['log']).name.split('.')[0]}, {log['split']}" for log in logs)]
    ours = [{point["target_cost_ratio"]: point for point in log["focalroute"]} for log in logs]
    others = [{method["name"]: method for method in log["methods"]} for log in logs]
    names = list(dict.fromkeys(name for methods in others for name in methods))
    single = [_at_single(points, methods) for points, methods in zip(ours, others, strict=True)]
    targets = sorted({target for points, own in zip(ours, single, strict=True) for target in points if target != own})
    beside = [points.get(own) for points, own in zip(ours, single, strict=True)]
    rows = [
        ["test queries", *(str(log["n_test"]) for log in logs)],
        [
            "focalroute, held at the best single's cost",
            *("" if point is None else f"**{_at(point)}**" for point in beside),
        ],
    ]
    rows += [
        [f"focalroute, held at {target:g}", *(f"**{_at(own[target])}**" if target in own else "" for own in ours)]
        for target in targets
    ]
    rows += [[name, *(_at(methods[name]) if name in methods else "" for methods in others)] for name in names]
    yield Table(heads, rows)
    yield Table(
        heads,
        [
            [name, *(_points(methods.get(name, {}).get("curve_minus")) for methods in others)]
            for name in _BESIDE
            if name in names
        ],
    )
    held = [own[_HELD] for own in ours]
    rows = [["this point", *map(_at, held)]]
    rows += [
        [f"minus {name}", *(_points(point["minus"].get(name)) for point in held)]
        for name in _ALSO_BESIDE
        if name in names
    ]
    yield Table(heads, rows)


def _at_single(targets: Iterable[float], methods: Mapping[str, Any]) -> float | None:
    """Return the target that is the rounded-up cost ratio of the best single endpoint; None if there is none."""
    cost = methods["best-single-train"]["cost_ratio"]
    return next((target for target in targets if cost <= target < cost + _ROUNDED), None)


def _at(one: Mapping[str, Any]) -> str:
    return f"{one['accuracy']:.3f} @ {one['cost_ratio']:.3f}"


def _points(found: Mapping[str, Any] | None) -> str:
    return "" if found is None else PairedDifference(**found).in_points()


if __name__ == "__main__":
    main()
