"""Common parts of the scripts in this folder: options, logs, stored runs, means with standard errors, figures."""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from examples.paper.generated import BBH, GPQA, MUSR, Shape, biased_log, simulated_log
from focalroute.core.pool import PoolFile, load_pool
from focalroute.evaluate.baselines import BASELINES, BY_CHANCE, PRESETS
from focalroute.evaluate.outcomes import LoggedQuery, Output, read_log
from focalroute.evaluate.playing import PolicyReplay, trained
from focalroute.evaluate.presets.rl_focal import Agents, RlFocal, RlFocalSettings, rl_focal
from focalroute.evaluate.replay import ReplayResult, Strategy, Training, play
from focalroute.evaluate.table import LogTable, Split, join, split
from focalroute.learn.offline.reinforce import OfflineSettings
from focalroute.policy.bundle import Policy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "Benchmark",
    "Options",
    "accuracy",
    "benchmarks",
    "cost",
    "figure",
    "mean_se",
    "members",
    "options",
    "parser_of",
    "rl_focal_name",
    "show",
    "spread",
    "two_scales",
    "with_outputs",
]

_ROOT = Path(__file__).resolve().parents[2]
#: Benchmark -> the recorded log it is played on, and the task of it.
_RECORDED: Mapping[str, tuple[str, str | None]] = {
    "MMLU": ("mmlu9", None),
    "MMLU-Pro": ("mmlupro12", None),
    "GSM8K": ("zeroeval12", "gsm"),
    "ZeroEval": ("zeroeval12", None),
}
_PER_TASK = ("ZeroEval",)  # three tasks in blocks: cut once, the test part would be a single task
#: Benchmark -> the generated log that stands in for it.
_GENERATED: Mapping[str, Shape] = {"BBH*": BBH, "MUSR*": MUSR, "GPQA*": GPQA}
_SIMULATED = "simulated*"
_NAMES = (*_RECORDED, *_GENERATED, _SIMULATED)
_LONG = ("rl-focal", "der", "default")
_QUICK = Shape((2, 3), train=30, test=20)


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a script.

    Attributes:
        seeds: how many runs.
        quick: a small generated log and little training, to see that it runs.
        data: the folder of the recorded logs.
        figures: the folder that figures go to.
        keep: the folder in which runs are kept, and looked for; None: nowhere.
        only: benchmarks to play on; empty: those that the script names.
        without: slow methods to leave out: "rl-focal", "der", "default", which is focalroute's own.
    """

    seeds: int
    quick: bool
    data: Path
    figures: Path
    keep: Path | None
    only: tuple[str, ...]
    without: frozenset[str]

    def kept(self, key: str, make: Callable[[], Mapping[str, NDArray[Any]]]) -> Mapping[str, NDArray[Any]]:
        """Arrays, from the folder if they are there."""
        if self.keep is None or self.quick:
            return make()
        path = self.keep / f"{key.replace('/', '-')}.npz"
        if not path.exists():
            found = make()
            path.parent.mkdir(parents=True, exist_ok=True)
            np.savez(path, allow_pickle=False, **found)
        with np.load(path) as arrays:
            return dict(arrays)

    def played(self, key: str, make: Callable[[], ReplayResult]) -> ReplayResult:
        """A run, from the folder if it is there."""

        def arrays() -> Mapping[str, NDArray[Any]]:
            found = make()
            return {"worth": found.worth, "usd": found.usd, "asked": found.asked}

        return ReplayResult(**self.kept(key, arrays))

    def rl_focal(self, **changed: Any) -> RlFocalSettings:
        """Return RL-Focal as published, except for what is changed."""
        less: dict[str, Any] = {"passes": 2, "lanes": 2} if self.quick else {}
        return RlFocalSettings(**changed | less)

    def offline(self) -> OfflineSettings:
        """The settings with which focalroute's default is trained."""
        if not self.quick:
            return OfflineSettings()
        return OfflineSettings(
            fusion_epochs=1,
            lookahead_steps=4,
            iterations=2,
            queries=8,
            samples=4,
            renew=2,
            finish=1,
            finish_epochs=0,
            critic_steps=4,
        )


def parser_of(doc: str) -> argparse.ArgumentParser:
    """Return a parser of the options that all scripts share."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="runs")
    parser.add_argument(
        "--quick", action="store_true", help="use a small generated log and little training, to see that it runs"
    )
    return parser


def options(doc: str) -> Options:
    """Read the options from the command line of a script that replays logs."""
    parser = parser_of(doc)
    parser.add_argument("--data", type=Path, default=_ROOT.parent / "shared" / "data", help="recorded logs")
    parser.add_argument("--figures", type=Path, default=_ROOT / "docs" / "figures", help="where figures go")
    parser.add_argument("--keep", type=Path, help="folder for finished runs, which are not run again")
    parser.add_argument(
        "--only", nargs="+", default=[], choices=_NAMES, help="benchmarks to run on; default: all of the script"
    )
    parser.add_argument("--without", nargs="+", default=[], choices=_LONG, help="slow methods to leave out")
    asked = parser.parse_args()
    seeds = 1 if asked.quick else asked.seeds
    only = tuple(asked.only)
    return Options(seeds, asked.quick, asked.data, asked.figures, asked.keep, only, frozenset(asked.without))


@dataclass(frozen=True, slots=True, eq=False)
class Benchmark:
    """A log, split into a training and a test part.

    Attributes:
        name: with a star where the log is generated.
    """

    name: str
    table: LogTable
    parts: Split
    options: Options

    @property
    def fails(self) -> NDArray[np.float32]:
        """(T, N) 1 if an endpoint failed a query of the log, else 0."""
        return ((self.table.value < 0.5) | ~self.table.there).astype(np.float32)

    @property
    def ask_all_usd(self) -> float:
        """USD of asking every endpoint on the test part."""
        return float(self.table.usd[self.parts.test].sum())

    def training(self, seed: int) -> Training:
        """The training part."""
        return Training(self.table, self.parts.train, seed)

    def published(self, **changed: Any) -> dict[str, list[ReplayResult]]:
        """Return the runs of RL-Focal, unless it is to be left out."""
        return {} if "rl-focal" in self.options.without else {"rl-focal": self.rl_focal(**changed)}

    def defaults(self, *targets: float) -> dict[str, list[ReplayResult]]:
        """Return the runs of focalroute at these cost ratios, unless it is to be left out."""
        left_out = "default" in self.options.without
        return {} if left_out else {f"focalroute @ {target:g}": self.ours(target) for target in targets}

    def run(self, name: str, seed: int = 0) -> ReplayResult:
        """Replay a baseline or preset on the test part."""
        return self.once(name, {**BASELINES, **PRESETS}[name], seed)

    def runs(self, name: str) -> list[ReplayResult]:
        """One run for each seed; a single run of a deterministic strategy."""
        alike = name in BASELINES and name not in BY_CHANCE
        return [self.run(name, seed) for seed in range(1 if alike else self.options.seeds)]

    def rl_focal(self, **changed: Any) -> list[ReplayResult]:
        """RL-Focal as published but for what is changed: pools are drawn, in service too, and it goes on learning."""
        settings = self.options.rl_focal(**changed)

        def make(training: Training) -> RlFocal:
            agents = _agents(self, training.seed, replace(settings, sample=True))
            return RlFocal(agents, training.arrays(), training, settings)

        return [self.once(rl_focal_name(**changed), make, seed) for seed in range(self.options.seeds)]

    def once(self, name: str, make: Callable[[Training], Strategy], seed: int = 0) -> ReplayResult:
        """Replay any strategy on the test part; the run is stored as ``name``."""

        def run() -> ReplayResult:
            return play(make(self.training(seed)), self.table, self.parts.test)

        return self.options.played(f"{self.name}/{name}/{seed}", run)

    def ours(self, target: float) -> list[ReplayResult]:
        """Replay focalroute's default: trained on the training part, then served at a held cost ratio."""
        return [
            self.options.played(f"{self.name}/focalroute {target:g}/{seed}", partial(self.served, seed, target))
            for seed in range(self.options.seeds)
        ]

    def served(self, seed: int, target: float, on: LogTable | None = None) -> ReplayResult:
        """Serve one seed; ``on``: another log of the same queries, on which the policy was not trained."""
        served = PolicyReplay(
            _policy(self, seed),
            on or self.table,
            self.parts,
            self.training(seed),
            explore=False,
            advance=lambda _: None,
        )
        return served.run(target).played


def rl_focal_name(**changed: Any) -> str:
    """Return the name under which RL-Focal is kept; unchanged settings do not show in it."""
    published = RlFocalSettings()
    said = [
        f"{name}={getattr(value, '__name__', value)}"
        for name, value in changed.items()
        if value != getattr(published, name)
    ]
    return " ".join(["rl-focal as published", *said])


@cache
def _agents(benchmark: Benchmark, seed: int, settings: RlFocalSettings) -> Agents:
    """RL-Focal's networks; they do not depend on whether pools are also drawn in service."""
    return rl_focal(benchmark.training(seed), settings).agents


@cache
def _policy(benchmark: Benchmark, seed: int) -> Policy:
    rows, settings = benchmark.parts.train, benchmark.options.offline()
    return trained(benchmark.table, rows, seed=seed, settings=settings, advance=lambda _: None)


def benchmarks(names: Sequence[str], asked: Options) -> Iterator[Benchmark]:
    """Return the named benchmarks whose log is present; with ``quick``, one small generated log in place of all."""
    if asked.quick:
        with tempfile.TemporaryDirectory() as folder:
            table = biased_log(0, Path(folder), _QUICK)
        yield Benchmark("quick*", table, split(table, per_task=False, fraction=0.6), asked)
        return
    for name in asked.only or names:
        found = _table(name, asked.data)
        if found is None:
            print(f"({name}: there is no log of it in {asked.data.name})\n")
        else:
            yield Benchmark(name, found, split(found, per_task=name in _PER_TASK, fraction=0.8), asked)


def _table(name: str, data: Path) -> LogTable | None:
    with tempfile.TemporaryDirectory() as folder:
        if name == _SIMULATED:
            return simulated_log(0, Path(folder))
        if name in _GENERATED:
            return biased_log(0, Path(folder), _GENERATED[name])
    file, task = _RECORDED[name]
    log = data / f"{file}.jsonl.gz"
    if not log.exists():
        return None
    queries = [query for query in read_log(log) if task is None or query.task == task]
    return join(queries, load_pool(data / f"{file}.pool.toml"), log)


def members(table: LogTable, chosen: Sequence[int]) -> LogTable:
    """Return the log with only these endpoints; an endpoint named twice appears twice, under two names."""
    names = [f"{table.names[i]} ({n})" if i in chosen[:n] else table.names[i] for n, i in enumerate(chosen)]
    endpoints = tuple(replace(table.endpoints[i], name=name) for i, name in zip(chosen, names, strict=True))
    olds = [table.names[i] for i in chosen]
    taken = [
        replace(q, outputs={new: q.outputs[old] for old, new in zip(olds, names, strict=True) if old in q.outputs})
        for q in table.queries
    ]
    return join(taken, PoolFile(endpoints, {}, None), "log")


def with_outputs(table: LogTable, changed: Callable[[LoggedQuery], Mapping[str, Output]]) -> LogTable:
    """Return the log with other outputs."""
    queries = [replace(query, outputs=changed(query)) for query in table.queries]
    return join(queries, PoolFile(table.endpoints, {}, None), "log")


def mean_se(values: Sequence[float], scale: float = 100, digits: int = 2) -> str:
    """Mean and standard error of some runs, in percent."""
    mean, error = spread(values)
    said = f"{scale * mean:.{digits}f}"
    return said if len(values) == 1 else f"{said} ± {scale * error:.{digits}f}"


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard error of some runs; the error of a single run is 0."""
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return statistics.fmean(values), error


def accuracy(runs: Sequence[ReplayResult]) -> str:
    """Return the accuracy in percent."""
    return mean_se([run.worth.mean() for run in runs])


def cost(runs: Sequence[ReplayResult], ask_all_usd: float) -> str:
    """Return the cost relative to asking every endpoint."""
    return f"{statistics.fmean(float(run.usd.sum()) for run in runs) / ask_all_usd:.3f}"


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table as Markdown."""
    print(f"{title}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    print(flush=True)


@contextmanager
def figure(name: str, asked: Options, panels: int = 1) -> Iterator[list[Axes]]:
    """Draw panels side by side, saved as ``name``.svg unless the run is ``quick``."""
    from matplotlib import pyplot

    style: Any = {
        "font.size": 8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
        "svg.fonttype": "none",  # text stays text, and the file small
        "svg.hashsalt": name,
    }
    with pyplot.style.context(style):
        drawn, axes = pyplot.subplots(1, panels, figsize=(3.4 * panels + 0.4, 2.8), squeeze=False, layout="constrained")
        yield list(axes[0])
        if not asked.quick:
            asked.figures.mkdir(parents=True, exist_ok=True)
            drawn.savefig(asked.figures / f"{name}.svg", dpi=75, metadata={"Date": None})
        pyplot.close(drawn)


def two_scales(
    axes: Axes, name: str, played: Mapping[float, Sequence[ReplayResult]], others: Sequence[float], label: str
) -> None:
    """Accuracy with its standard error, and a dashed second quantity from 0 up, over evenly spaced values."""
    at = range(len(played))
    right, errors = zip(*(spread([100 * run.worth.mean() for run in runs]) for runs in played.values()), strict=True)
    axes.errorbar(at, right, errors, fmt="o-", capsize=2)
    axes.set(xlabel=name, ylabel="right, %")
    axes.set_xticks(at, [f"{value:g}" for value in played])
    other = axes.twinx()
    other.plot(at, others, "s--", color="tab:orange")
    other.set_ylim(0, 1.2 * max(others))
    other.set_ylabel(f"{label} (dashed)")
