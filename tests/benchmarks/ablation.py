"""Measures what each part of offline training and of the observation is worth.

    python -m tests.benchmarks.ablation LOG --pool POOL [--seeds N] [--part validation|test|both] [--only NAME...]
        [--keep FOLDER] [--engine ENGINE]

The default training, `focalroute.learn.offline.train.train`, and each variant of it learn from the first 80 % of the
log, with the same seeds. ``validation`` measures on the last fifth of that part, from which only the trust in the
Fusion and the best of a few Deciders were chosen. ``test`` measures on the rest of the log, after training on the whole
part. Decisions are greedy; all rows are replayed at once, with windows that hold what the variant's own policy asked
before each row.

A policy is measured at several cost weights; a random mixture of two neighbours meets each of four cost ratios. A cell
of the Markdown table is the variant's accuracy minus the default's at that cost ratio, in points, with the 95 %
interval of a bootstrap over seeds and blocks of 50 consecutive rows, paired by row and seed. "mean" is over the four
ratios. There is no figure for a cost ratio below the cheapest point of a variant's curve; "from" is the cost ratio from
which it has figures with every seed. Variants that hide part of the observation start from scratch, as the shipped
policy, from which the default starts, was trained with all of it; they are compared with "scratch".

With ``--keep``, results are kept in a folder and read from there the next time. Empty it when the code changes.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from focalroute.core.pool import load_pool
from focalroute.evaluate.job_engine import open_engine
from focalroute.evaluate.metrics import BLOCK
from focalroute.evaluate.outcomes import read_log
from focalroute.evaluate.table import join
from focalroute.evaluate.training import recorded
from focalroute.learn.offline import RecordedLog
from focalroute.learn.offline.reinforce import OfflineSettings
from focalroute.learn.offline.rollout import roll
from focalroute.learn.offline.views import long_run, nearest, random_masks
from tests.benchmarks.ablated import Policy, Variant, Windows, train

__all__ = ["COST_RATIOS", "VARIANTS", "Curve", "interval", "main", "measured", "played"]

F64 = NDArray[np.float64]

#: Where curves are compared.
COST_RATIOS = (0.1, 0.15, 0.2, 0.3)
#: Cost weights at which a policy is measured.
PRICES = tuple(np.geomspace(0.003, 8.0, 16).tolist())
TRAINING = 0.8
RENEWALS = 2  # how often the windows, random at first, are replaced by what the policy asked
RESAMPLES = 2000
PARTS = ("validation", "test")

_FIELDS = ("worth", "usd", "calls", "ask_all_usd")

_ACCURACY = frozenset({"accuracy", "seen"})
_STANDING = frozenset({"relative_skill"})
_SIMILAR = frozenset({"similar"})
_DEFAULT = OfflineSettings()
_SCRATCH = Variant(scratch=True)
_FOCAL = replace(_SCRATCH, decider=_ACCURACY | _STANDING | _SIMILAR, fusion=_STANDING | _SIMILAR, weighed_by="level")

#: Name -> what differs from the default.
VARIANTS: Mapping[str, Variant] = {
    "default": Variant(),
    "rounds-1": Variant(settings=replace(_DEFAULT, rounds=1)),
    "rounds-2": Variant(settings=replace(_DEFAULT, rounds=2)),
    "shipped-start": Variant(fresh=False),
    "more-chance": Variant(sharper=1.0, settings=replace(_DEFAULT, decider_rate=1.5e-3, entropy=0.003)),
    "named": Variant(named=True),
    "no-policy-gradient": Variant(improves=False),
    "central-critic": Variant(critic=True),
    "one-sample": Variant(critic=True, one_sample=True),
    "full-windows": Variant(full_windows=True),
    "trust-1": Variant(tempers=False),
    "scratch": _SCRATCH,
    "no-accuracy": replace(_SCRATCH, decider=_ACCURACY),
    "no-standing": replace(_SCRATCH, decider=_STANDING, fusion=_STANDING, weighed_by="accuracy"),
    "no-accuracy-no-standing": replace(_SCRATCH, decider=_ACCURACY | _STANDING, fusion=_STANDING, weighed_by="level"),
    "no-length": replace(_SCRATCH, fusion=frozenset({"length"})),
    "no-focal": replace(_SCRATCH, decider=frozenset({"focal"})),
    "focal-alone": _FOCAL,
    "no-similar": replace(_SCRATCH, decider=_SIMILAR, fusion=_SIMILAR),
    "no-cost-penalty": replace(_SCRATCH, decider=frozenset({"cost_penalty", "log_cost_penalty"})),
    "no-look-ahead": replace(_SCRATCH, looks_ahead=False),
    "partial-information": replace(_SCRATCH, critic=True, one_sample=True, looks_ahead=False),
    "branching-trunk": replace(_SCRATCH, branches=True),
}


def base(name: str, variants: Mapping[str, Variant]) -> str:
    """Return the name of the variant that this one is compared with."""
    return "scratch" if variants[name].scratch and name != "scratch" else "default"


@dataclass(frozen=True, slots=True)
class Curve:
    """A policy's results at P cost weights on T rows.

    Attributes:
        worth: (P, T) worth of the answers.
        usd: (P, T) cost of the answers.
        calls: (P,) mean calls per query.
        ask_all_usd: the cost of asking every endpoint on all rows.
    """

    worth: F64
    usd: F64
    calls: F64
    ask_all_usd: float

    @property
    def cheapest(self) -> float:
        """The lowest cost ratio of any point."""
        return float(self.usd.sum(axis=1).min() / self.ask_all_usd)

    def at(self, cost_ratio: float) -> F64:
        """Return the expected worth at this cost ratio, (T,): NaN below the cheapest point, flat above the dearest."""
        costs = self.usd.sum(axis=1) / self.ask_all_usd
        order = costs.argsort()
        above = int(np.searchsorted(costs[order], cost_ratio, side="right"))
        if above == 0:
            return np.full(self.worth.shape[1], np.nan)
        if above == len(order):
            return np.asarray(self.worth[order[-1]])
        low, high = order[above - 1], order[above]
        share = (cost_ratio - costs[low]) / (costs[high] - costs[low])
        mixed: F64 = (1 - share) * self.worth[low] + share * self.worth[high]
        return mixed


def measured(log: RecordedLog, known: int, start: int, variant: Variant, policy: Policy, seed: int) -> Curve:
    """Measure a policy's greedy decisions on the rows from ``start`` on.

    Args:
        log: all queries.
        known: number of queries, from the start, from which long-run accuracies are taken.
        start: the first row that is scored.
        variant: the variant.
        policy: its trained policy.
        seed: the seed of the windows.
    """
    rng = np.random.default_rng(seed)
    ask_all_usd = float(log.usd[:known].sum() / known)
    _, prior = long_run(log, np.arange(known))
    rounds = variant.settings.rounds
    windows = Windows(log, prior, variant, random_masks(log, rng), since=max(start - variant.settings.window, 0))
    for _ in range(RENEWALS):
        windows.renew(policy.decider, policy.fusion, ask_all_usd, rounds, rng)
    rows = np.arange(start, len(log))
    worth, usd, calls = [], [], []
    for price in PRICES:
        played = roll(
            policy.decider,
            policy.fusion,
            windows.at(nearest(price), rows),
            cost_weight=np.full(len(rows), price, np.float32),
            ask_all_usd=ask_all_usd,
            rounds=rounds,
            samples=1,
            rng=None,
            passes=variant.passes,
        )
        worth.append(played.worth)
        usd.append(played.shares.sum(axis=0) * ask_all_usd)
        calls.append((played.first | played.later).sum(axis=1).mean())
    full = float(log.usd[rows].sum())
    return Curve(np.array(worth, np.float64), np.array(usd, np.float64), np.array(calls, np.float64), full)


def played(log: RecordedLog, variant: Variant, seed: int) -> dict[str, Curve]:
    """Train once; return part -> curve."""
    size = int(len(log) * TRAINING + 1e-9)
    training = log.take(slice(0, size))
    held = size - int(size * variant.settings.validation)
    before, after = train(training, variant, seed)
    return {
        "validation": measured(training, held, held, variant, before, seed),
        "test": measured(log, size, size, variant, after, seed),
    }


def interval(differences: F64, *, seed: int = 0) -> tuple[float, float]:
    """Return the 95 % interval of the mean of (seeds, T), by a bootstrap over seeds and blocks of rows."""
    seeds, size = differences.shape
    starts = np.arange(0, size, BLOCK)
    sums = np.add.reduceat(differences, starts, axis=1)
    sizes = np.diff([*starts, size])
    rng = np.random.default_rng(seed)
    blocks = rng.integers(len(starts), size=(RESAMPLES, len(starts)))
    runs = rng.integers(seeds, size=(RESAMPLES, seeds))
    drawn = sums[runs[:, :, None], blocks[:, None, :]].mean(axis=1)
    low, high = np.percentile(drawn.sum(axis=1) / sizes[blocks].sum(axis=1), (2.5, 97.5)).tolist()
    return low, high


def _cell(differences: F64) -> str:
    if np.isnan(differences).any():
        return ""
    low, high = interval(differences)
    return f"{differences.mean() * 100:+.1f} ({low * 100:+.1f} to {high * 100:+.1f})"


def _at(curves: Sequence[Curve]) -> F64:
    """Return the worth at each of `COST_RATIOS`, (ratios, seeds, T)."""
    return np.array([[curve.at(ratio) for curve in curves] for ratio in COST_RATIOS])


def show(part: str, curves: Mapping[str, Sequence[Curve]], bases: Mapping[str, str]) -> None:
    """Print one part's table; a variant is compared with its base on the seeds that both have."""
    rows = curves["default"][0].worth.shape[1]
    print(
        f"\n{part}, {rows} queries\n\n| | {' | '.join(f'{ratio:g}' for ratio in COST_RATIOS)} | mean | from | seeds |"
    )
    print("|---|" + "---|" * (len(COST_RATIOS) + 3))
    levels = {name: _at(curves[name]) for name in sorted(set(bases.values()))}
    for name, level in levels.items():
        for seed, worth in enumerate(level.mean(axis=2).T):
            cells = [f"{one:.3f}" for one in (*worth, worth.mean())]
            print(f"| {name}, seed {seed}: accuracy | {' | '.join(cells)} | {curves[name][seed].cheapest:.3f} | |")
    for name, found in curves.items():
        if name != "default":
            against = levels[bases[name]]
            seeds = min(len(found), against.shape[1])
            differences = _at(found[:seeds]) - against[:, :seeds]
            row = [_cell(one) for one in (*differences, differences.mean(axis=0))]
            cheapest = max(curve.cheapest for curve in found[:seeds])
            print(f"| {name} - {bases[name]} | {' | '.join(row)} | {cheapest:.3f} | {seeds} |", flush=True)


def _kept(path: Path | None, log: RecordedLog, variant: Variant, seed: int) -> dict[str, Curve]:
    """Return what `played` returns, from the file if it exists."""
    if path is not None and path.exists():
        with np.load(path) as arrays:
            return {part: _curve({name: arrays[f"{part}.{name}"] for name in _FIELDS}) for part in PARTS}
    curves = played(log, variant, seed)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = {f"{part}.{name}": getattr(curve, name) for part, curve in curves.items() for name in _FIELDS}
        np.savez(path, allow_pickle=False, **kept)
    return curves


def _run(
    shared: tuple[RecordedLog, Path | None], one: tuple[str, Variant, int], tell: Callable[[str], object]
) -> dict[str, Curve]:
    """Train and measure one variant with one seed; an engine's job."""
    (log, keep), (name, variant, seed) = shared, one
    began = time.process_time()
    curves = _kept(keep and keep / f"{name}-{seed}.npz", log, variant, seed)
    tell(f"{name}, seed {seed}: {time.process_time() - began:.0f} s")
    return curves


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _curve(arrays: Mapping[str, F64]) -> Curve:
    return Curve(arrays["worth"], arrays["usd"], arrays["calls"], float(arrays["ask_all_usd"]))


def main(arguments: Sequence[str] | None = None, variants: Mapping[str, Variant] = VARIANTS) -> None:
    """Train, measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.ablation")
    parser.add_argument("log", type=Path)
    parser.add_argument("--pool", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--part", choices=(*PARTS, "both"), default="validation")
    parser.add_argument("--only", nargs="+", choices=variants, default=list(variants), metavar="NAME")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--engine", default="local", help="where variants and seeds run: local, ray or ray://host:port")
    asked = parser.parse_args(arguments)
    table = join(read_log(asked.log), load_pool(asked.pool), asked.log)
    log = recorded(table, np.arange(len(table.queries)))
    bases = {name: base(name, variants) for name in asked.only}
    wanted = dict.fromkeys(["default", *bases.values(), *asked.only])
    keep = asked.keep and asked.keep.absolute()
    runs = [(name, variants[name], seed) for seed in range(asked.seeds) for name in wanted]
    found: dict[str, list[dict[str, Curve]]] = {}
    with open_engine(asked.engine) as engine:
        for (name, *_), curves in zip(runs, engine.each(_run, (log, keep), runs, _say), strict=True):
            found.setdefault(name, []).append(curves)
    for part in PARTS if asked.part == "both" else (asked.part,):
        show(
            part,
            {name: [one[part] for one in curves] for name, curves in found.items()},
            {"default": "default", **bases},
        )


if __name__ == "__main__":
    main()
