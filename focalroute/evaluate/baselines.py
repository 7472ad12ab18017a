"""The baselines under their stable names, each made from the training part alone, and what no strategy could reach."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from focalroute.core.errors import ConfigError
from focalroute.core.records import I64
from focalroute.evaluate import singles
from focalroute.evaluate.cascade import cascade
from focalroute.evaluate.presets.der import der
from focalroute.evaluate.presets.rl_focal import rl_focal
from focalroute.evaluate.replay import ReplayResult, Strategy, Training
from focalroute.evaluate.table import LogTable
from focalroute.evaluate.votes import MeanVote, Vote, Weighted, log_linear_online, query_weights, static_subset

#: Name -> how it is made. Those that look at the test part, `IN_HINDSIGHT`, are not among them.
BASELINES: Mapping[str, Callable[[Training], Strategy]] = {
    "best-single-train": lambda training: singles.First(training.rank),
    "random": lambda training: singles.RandomOf(range(len(training.table.endpoints)), training.seed),
    "round-robin": lambda training: singles.ReplayedRoundRobin(len(training.table.endpoints)),
    "plurality": lambda training: Vote(training.rank),
    "mean": lambda training: MeanVote(training.rank),
    "weighted-vote": Weighted,
    "log-linear-online": log_linear_online,
    "latest-correct": singles.ReplayedLatestCorrect,
    "random-select": singles.random_select,
    "threshold-pair": singles.threshold_pair,
    "static-subset": static_subset,
    "cascade": cascade,
    "query-weights": query_weights,
    **singles.ROUTED,
}
#: The papers' own methods, likewise.
PRESETS: Mapping[str, Callable[[Training], Strategy]] = {"rl-focal": rl_focal, "der": der}
#: Those that need the text of the queries.
TEXTUAL = frozenset({"query-weights", "threshold-pair", *singles.ROUTED})
#: Those that draw lots: every seed plays them anew.
BY_CHANCE = frozenset({"avengers-pro", "irt-router", "query-weights", "random", "random-select", "thompson"})
#: Not attainable: left out of Pareto comparisons.
IN_HINDSIGHT = ("best-single-hindsight", "oracle")


def baselines(training: Training) -> dict[str, Callable[[Training], Strategy]]:
    """Those that make sense for this log: all, but without text the ones that read none."""
    return {name: make for name, make in BASELINES.items() if name not in TEXTUAL or singles.has_text(training)}


def presets(names: Sequence[str]) -> dict[str, Callable[[Training], Strategy]]:
    """The presets named, as rows of a report: ``preset-rl-focal``, ``preset-der``; one named twice is one row.

    Raises:
        ConfigError: there is no such preset.
    """
    for name in names:
        if name not in PRESETS:
            raise ConfigError(f"preset: there is no {name!r}; give one of {', '.join(PRESETS)}")
    return {f"preset-{name}": PRESETS[name] for name in names}


def best_in_hindsight(table: LogTable, test: I64) -> singles.First:
    """``best-single-hindsight``: the endpoint that turns out best on the test part."""
    return singles.First(table.rank(test))


def oracle(table: LogTable, test: I64) -> ReplayResult:
    """``oracle``: of every query the best answer that anybody gave, from the cheapest that gave it."""
    asked = np.zeros((len(test), len(table.endpoints)), bool)
    worth, usd, seconds = np.zeros((3, len(test)))
    for n, row in enumerate(test.tolist()):
        there = np.flatnonzero(table.there[row]).tolist()
        if there:
            best = min(there, key=lambda i: (-table.value[row, i], table.usd[row, i]))
            worth[n], usd[n], asked[n, best] = table.value[row, best], table.usd[row, best], True
            seconds[n] = table.seconds[row, best]
    return ReplayResult(worth, usd, asked, seconds=seconds)
