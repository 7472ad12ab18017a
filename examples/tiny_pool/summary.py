"""Summarises all seeds as Markdown tables and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from pathlib import Path

import numpy as np

from examples.tiny_pool.elicited import Calibration
from examples.tiny_pool.experiment import CHANGING, STEADY, Seed, elicited
from focalroute.evaluate.metrics import Pair, compare, score
from focalroute.evaluate.replay import ReplayResult

__all__ = ["draw", "tables"]

_RIVALS = ("best-single-hindsight", "plurality")
_SMOOTH = 100  # questions that a point of the figure is the mean of


def tables(seeds: Sequence[Seed]) -> str:
    """Everything measured, in Markdown."""
    beside = [seed.beside() for seed in seeds]
    return "\n\n".join(
        (_models(seeds), _methods(seeds, beside), _minus(seeds, beside), _changes(seeds), _elicited(seeds))
    )


def _models(seeds: Sequence[Seed]) -> str:
    topics = sorted({str(query.task) for query in seeds[0].table.queries})
    lines = [["model", "USD per 1M tokens", *topics, "all"]]
    for i, endpoint in enumerate(seeds[0].pool):
        right: dict[str, list[float]] = {topic: [] for topic in topics}
        for seed in seeds:
            for row in seed.rows:
                right[str(seed.table.queries[row].task)].append(float(seed.table.value[row, i]))
        shares = [f"{np.mean(right[topic]):.3f}" for topic in topics]
        every = f"{np.mean([value for values in right.values() for value in values]):.3f}"
        lines.append([endpoint.name, str(endpoint.input_usd_per_1m), *shares, every])
    return "Share right on the streams, by topic.\n\n" + _table(lines)


def _methods(seeds: Sequence[Seed], beside: Sequence[Mapping[str, ReplayResult]]) -> str:
    ask_all_usd = float(np.mean([seed.table.usd[seed.rows].sum() for seed in seeds]))
    lines = [["method", "accuracy", "95 %", "cost of asking all", "with probes", "calls", "by seed"]]
    for name in STEADY:
        runs = [seed.lives[name].played() for seed in seeds]
        ledger = float(np.mean([seed.lives[name].ledger_usd for seed in seeds])) / ask_all_usd
        lines.append(_row(f"focalroute, {name}", runs, ask_all_usd, f"{ledger:.3f}"))
    for name in beside[0]:
        lines.append(_row(name, [played[name] for played in beside], ask_all_usd, ""))
    return _table(lines)


def _row(name: str, runs: Sequence[ReplayResult], ask_all_usd: float, ledger: str) -> list[str]:
    cell = score(name, runs, ask_all_usd)
    low, high = cell.accuracy_ci95
    by_seed = ", ".join(f"{run.worth.mean():.3f}" for run in runs)
    return [
        name,
        f"{cell.accuracy:.3f}",
        f"{low:.3f} to {high:.3f}",
        f"{cell.cost_ratio:.3f}",
        ledger,
        f"{cell.calls_per_query:.2f}",
        by_seed,
    ]


def _minus(seeds: Sequence[Seed], beside: Sequence[Mapping[str, ReplayResult]]) -> str:
    lines = [
        ["points, paired", *(f"minus {rival}" for rival in _RIVALS), "of these, first 500", "last 500", "ahead from"]
    ]
    rivals = [[played[rival] for played in beside] for rival in _RIVALS]
    first, last = slice(None, 500), slice(-500, None)
    ours = {name: [seed.lives[name].played() for seed in seeds] for name in STEADY}
    pairs: dict[tuple[str, int], Pair] = {}
    for name, runs in ours.items():
        columns = [(runs, rival) for rival in rivals]
        columns += [(_cut(runs, part), _cut(rivals[0], part)) for part in (first, last)]
        pairs |= {(name, n): column for n, column in enumerate(columns)}
    minus = compare(pairs)
    for name, runs in ours.items():
        cells = [one.in_points() for (row, _), one in minus.items() if row == name]
        lines.append([f"focalroute, {name}", *cells, _ahead(runs, rivals[0])])
    return (
        "The last three columns are against the best single model: where it says 1, the sum of right answers, over all"
        f" seeds, is above that model's from the first question on.\n\n{_table(lines)}"
    )


def _ahead(runs: Sequence[ReplayResult], others: Sequence[ReplayResult]) -> str:
    """The first question from which on the cumulative accuracy stays ahead to the end."""
    lead = np.cumsum([run.worth - other.worth for run, other in zip(runs, others, strict=True)], axis=1).sum(axis=0)
    behind = np.flatnonzero(lead <= 0)
    if not len(behind):
        return "1"
    return "never" if behind[-1] + 1 == len(lead) else str(behind[-1] + 2)


def _cut(runs: Sequence[ReplayResult], part: slice) -> list[ReplayResult]:
    return [run.part(part) for run in runs]


def _changes(seeds: Sequence[Seed]) -> str:
    sizes = seeds[0].sizes
    lost, joined = int(sizes.lost * sizes.stream), int(sizes.joined * sizes.stream)
    parts = {
        "all five": slice(0, lost),
        f"{seeds[0].roster.killed} killed": slice(lost, joined),
        "newcomer joined": slice(joined, None),
    }
    warm = next(iter(STEADY))
    newcomer = seeds[0].lives[CHANGING].names.index(seeds[0].roster.newcomer.name)
    lines = [["part", "accuracy", f"minus {warm}, unchanged", "newcomer asked in"]]
    runs = [seed.lives[CHANGING].played() for seed in seeds]
    same = [seed.lives[warm].played() for seed in seeds]
    minus = compare({name: (_cut(runs, part), _cut(same, part)) for name, part in parts.items()})
    for name, part in parts.items():
        cut = _cut(runs, part)
        accuracy = f"{np.mean([run.worth.mean() for run in cut]):.3f}"
        asked = f"{np.mean([run.asked[:, newcomer].mean() for run in cut]):.3f}"
        lines.append([name, accuracy, minus[name].in_points(), asked])
    lives = [seed.lives[CHANGING] for seed in seeds]
    unanswered = ", ".join(str(live.unanswered) for live in lives)
    failed = ", ".join(str(live.failed_calls) for live in lives)
    return f"{_table(lines)}\n\nQuestions without an answer, by seed: {unanswered}; failed calls: {failed}."


def _elicited(seeds: Sequence[Seed]) -> str:
    found = elicited(seeds)
    names = ["accuracy", "Brier", "log-loss", "ECE", "ms a call", "USD a call", "tokens back"]
    formats = [".3f"] * 4 + [".0f", ".2e", ".1f"]
    scales = [1, 1, 1, 1, 1000, 1, 1]

    def cells(of: Calibration, sign: str = "") -> list[str]:
        return [
            format(value * scale, sign + style)
            for value, scale, style in zip(astuple(of), scales, formats, strict=True)
        ]

    low, high = cells(found.low, "+"), cells(found.high, "+")
    lines = [
        ["probabilities from", *names],
        ["log-probabilities", *cells(found.first)],
        ["ten samples", *cells(found.second)],
        ["samples minus the other, 95 %", *(f"{a} to {b}" for a, b in zip(low, high, strict=True))],
    ]
    return f"Of {found.answers} answers to {found.questions} questions, for which both gave some.\n\n{_table(lines)}"


def _table(lines: Sequence[Sequence[str]]) -> str:
    head, *rest = (f"| {' | '.join(line)} |" for line in lines)
    return "\n".join((head, "|---" * len(lines[0]) + "|", *rest))


def draw(seeds: Sequence[Seed], path: Path) -> None:
    """Draw the accuracy over the stream as an SVG file."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    beside = [seed.beside() for seed in seeds]
    curves = {f"focalroute, {name}": [seed.lives[name].played() for seed in seeds] for name in seeds[0].lives}
    curves |= {rival: [played[rival] for played in beside] for rival in _RIVALS}
    for name, runs in curves.items():
        worth = np.mean([run.worth for run in runs], axis=0)
        width = min(_SMOOTH, len(worth))
        means = np.convolve(worth, np.full(width, 1 / width), "valid")
        axes.plot(np.arange(width, len(worth) + 1), means, label=name, linewidth=1.2)
    axes.set(xlabel="question", ylabel=f"share right of the last {_SMOOTH}")
    figure.legend(loc="outside upper center", ncols=4, fontsize=7)
    figure.savefig(path, format="svg", metadata={"Date": None})
