"""Measures what change detection and exploration are worth when an endpoint changes without notice.

    python -m tests.benchmarks.drift [detector] [synthetic] [exchanged] [trained]

``detector``: the detector's false alarms and delays. ``synthetic``: the cold start on streams of independent outcomes.
``exchanged``: a policy trained on two endpoints, which then exchange their skills. ``trained``: a policy trained on
2,000 queries of mmlupro12 (if ../shared/data has it) that serves 2,000 more with a change, compared with a policy that
was trained on the pool as it is after the change. Without an argument, all four.

Each stream is replayed in order, with the change in the middle. Prints Markdown tables. Differences are in points of
accuracy, paired, minus the same without detector on the same stream, or minus the policy that was trained on the
changed pool; intervals as in `focalroute.evaluate.metrics`.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np

from focalroute.core.config import Endpoint
from focalroute.core.pool import PoolFile, load_pool
from focalroute.evaluate.metrics import compare
from focalroute.evaluate.outcomes import LoggedQuery, Output, read_log
from focalroute.evaluate.playing import cost_weight_at, trained
from focalroute.evaluate.replay import ReplayResult, play
from focalroute.evaluate.serving import Serving
from focalroute.evaluate.table import LogTable, join
from focalroute.learn.offline.reinforce import OfflineSettings
from focalroute.observe.drift import Detector
from focalroute.policy.bundle import Policy, cold

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"

SEEDS = range(10)
QUERIES = 2000
RECORDED = 4000
SOON = 500  # number of queries that count as soon after the change
CHOICES = ("A", "B", "C", "D")
COSTS = (0.1, 0.2, 0.3, 0.5)
PRIMES = 1500
WARM = 500  # queries before the change that fill the window
HELD = (0.15, 0.3)
RECORDED_SEEDS = range(5)
#: Endpoint -> the endpoint whose outputs it gives from now on; None: it is not in the pool.
PoolChange = Mapping[str, str | None]

#: The skills in the first half and in the second, where the better endpoint has become the worse one.
EXCHANGED: Sequence[Mapping[str, float]] = ({"cheap": 0.5, "dear": 0.87}, {"cheap": 0.76, "dear": 0.46})
SKILLS = {"a": 0.85, "b": 0.75, "c": 0.7, "d": 0.65, "e": 0.6, "f": 0.5, "g": 0.45, "h": 0.4}
PRICES = {"a": 4.0, "b": 3.0, "c": 2.0, "d": 1.0, "e": 1.0, "f": 2.0, "g": 0.5, "h": 1.0}

#: Row -> whether changes are detected, and probe_share.
VARIANTS: Mapping[str, tuple[bool, float]] = {
    "neither": (False, 0.0),
    "detector": (True, 0.0),
    "probing 2 %": (False, 0.02),
    "both": (True, 0.02),
}

#: Scenario -> changed skills in the second half, and endpoints that are not in the pool in the first.
SCENARIOS: Mapping[str, tuple[Mapping[str, float], frozenset[str]]] = {
    "nothing changes": ({}, frozenset()),
    "the best gets worse": ({"a": 0.4}, frozenset()),
    "a poor one gets good": ({"f": 0.95}, frozenset()),
    "a good one joins": ({"f": 0.95}, frozenset({"f"})),
}


def synthetic(scenario: str, seed: int) -> tuple[LogTable, int]:
    """Make a stream of independent outcomes; also return the index of the endpoint that changes."""
    after, newcomers = SCENARIOS[scenario]
    rng, texts = random.Random(seed), random.Random(f"texts {seed}")
    queries = []
    for n in range(QUERIES):
        second = n >= QUERIES // 2
        skills = {**SKILLS, **after} if second else SKILLS
        label = rng.randrange(len(CHOICES))
        outputs = {name: _output(skill, label, rng) for name, skill in skills.items()}
        for name in newcomers if not second else ():
            del outputs[name]
        message = {"role": "user", "content": f"{texts.getrandbits(800):x}"}  # random, so no text resembles another
        queries.append(LoggedQuery(f"q{n}", None, (message,), CHOICES, label, outputs, n + 1))
    endpoints = tuple(
        Endpoint(name, model="m", input_usd_per_1m=usd, output_usd_per_1m=usd) for name, usd in PRICES.items()
    )
    changed = next(iter(after), "a")
    return join(queries, PoolFile(endpoints, {}, None), "synthetic"), list(SKILLS).index(changed)


def _output(skill: float, label: int, rng: random.Random) -> Output:
    answer = label if rng.random() < skill else rng.choice([k for k in range(len(CHOICES)) if k != label])
    return Output(answer, None, None, 100, rng.randrange(5, 50), None, 1.0, None)


@cache
def _recorded() -> tuple[tuple[LoggedQuery, ...], PoolFile]:
    return read_log(DATA / "mmlupro12.jsonl.gz")[:RECORDED], load_pool(DATA / "mmlupro12.pool.toml")


def table(title: str, make: Callable[[int], tuple[LogTable, int]], explore: bool) -> None:
    """Print one scenario, with every variant on the same streams."""
    print(f"\n{title}, {'sampled' if explore else 'greedy'} decisions\n")
    print(f"| | first {SOON} after | the rest | before | cost | probes' share | asked of it, last {SOON} |")
    print("|---|---|---|---|---|---|---|")
    streams = [make(seed) for seed in SEEDS]
    found = {
        name: [_played(stream, changed, seed, explore, *how) for seed, (stream, changed) in enumerate(streams)]
        for name, how in VARIANTS.items()
    }
    half = len(streams[0][0].queries) // 2
    parts = [slice(half, half + SOON), slice(half + SOON, None), slice(0, half)]
    cut = [[[run[0].part(part) for run in runs] for part in parts] for runs in found.values()]
    for (name, runs), cells in zip(found.items(), _against(cut), strict=True):
        cost, probes, decided = (statistics.fmean(each) for each in zip(*(run[1:] for run in runs), strict=True))
        print(f"| {name} | {' | '.join(cells)} | {cost:.3f} | {probes:.1%} | {decided:.0%} |", flush=True)


def _played(
    stream: LogTable, changed: int, seed: int, explore: bool, detect: bool, share: float
) -> tuple[ReplayResult, float, float, float]:
    """Replay a stream.

    Returns:
        The results, the cost ratio, the cost of exploration relative to that of asks, and the share of the last `SOON`
        queries for which the changed endpoint was picked.
    """
    serving = Serving(cold(), stream.endpoints, seed=seed, explore=explore, detect=detect, probe_share=share)
    rows = np.arange(len(stream.queries))
    played = play(serving, stream, rows)
    probed = played.asked.copy()
    for row, rounds in enumerate(serving.history):
        probed[row, [i for picked in rounds for i in picked]] = False
    probes = float(stream.usd[probed].sum())
    decided = float((played.asked & ~probed)[-SOON:, changed].mean())
    return played, played.usd.sum() / stream.usd.sum(), probes / (played.usd.sum() - probes), decided


def _against(rows: Sequence[Sequence[Sequence[ReplayResult]]]) -> list[list[str]]:
    """Format accuracies by row and column; from the second row on with the difference from the first row."""
    plain = rows[0]
    places = [(row, column) for row in range(1, len(rows)) for column in range(len(plain))]
    minus = compare({(row, column): (rows[row][column], plain[column]) for row, column in places})
    cells = [[_accuracy(runs) for runs in row] for row in rows]
    for (row, column), one in minus.items():
        cells[row][column] += f" {one.in_points()}"
    return cells


def _accuracy(runs: Sequence[ReplayResult]) -> str:
    return f"{np.mean([run.worth.mean() for run in runs]):.3f}"


def detector() -> None:
    """Print how often the detector by itself gives a false alarm, and how soon it finds a change."""
    print("| share right | outcomes | false alarms | outcomes between two |\n|---|---|---|---|")
    for share in (0.5, 0.7, 0.9):
        rng, watching = random.Random(0), Detector()
        outcomes = 50_000
        alarms = sum(watching.push(rng.random() < share) is not None for _ in range(outcomes))
        print(f"| {share} | {outcomes} | {alarms} | {outcomes / max(alarms, 1):.0f} |", flush=True)
    print("\n| after 200 outcomes | delay, outcomes: quartiles | 90 % | not found in 1,000 |\n|---|---|---|---|")
    for before, after in ((0.7, 0.4), (0.4, 0.7), (0.8, 0.6), (0.6, 0.8)):
        delays = sorted(_delay(before, after, seed) for seed in range(200))
        low, middle, high = statistics.quantiles(delays, n=4)
        lost = sum(delay > 1000 for delay in delays)
        print(
            f"| {before} to {after} | {low:.0f}, {middle:.0f}, {high:.0f} | {delays[180]} | {lost} of 200 |", flush=True
        )


def _delay(before: float, after: float, seed: int) -> int:
    """Return the number of outcomes until the change is found; 1001 if it is not."""
    rng, watching = random.Random(seed), Detector()
    for _ in range(200):
        watching.push(rng.random() < before)
    return next((n for n in range(1, 1001) if watching.push(rng.random() < after) is not None), 1001)


def every_scenario() -> None:
    """Print the synthetic streams with sampled decisions; a newcomer also with greedy decisions."""
    for scenario, (_, newcomers) in SCENARIOS.items():
        for explore in (True, False) if newcomers else (True,):
            table(scenario, partial(synthetic, scenario), explore)


def exchanged() -> None:
    """Print the results of a trained policy when two endpoints exchange their skills."""
    print("| | " + " | ".join(f"held at {cost:g}" for cost in COSTS) + " |\n|---" + "|---" * len(COSTS) + "|")
    cells: dict[bool, list[list[ReplayResult]]] = {detect: [[] for _ in COSTS] for detect in (False, True)}
    for seed in SEEDS:
        stream = _primes(seed)
        half = len(stream.queries) // 2
        policy = trained(stream, np.arange(half), seed=seed, settings=OfflineSettings(), advance=lambda _: None)
        for detect, columns in cells.items():
            for cost, runs in zip(COSTS, columns, strict=True):
                runs.append(_held(policy, stream, seed, cost, (half, 2 * half), detect=detect))
    for detect, shown in zip(cells, _against(list(cells.values())), strict=True):
        print(f"| {'detector' if detect else 'without'} | {' | '.join(shown)} |", flush=True)


def trained_before() -> None:
    """Print how a trained policy does when a recorded pool changes, minus one trained on the changed pool."""
    if not (DATA / "mmlupro12.jsonl.gz").exists():
        return
    queries, pool = _recorded()
    half, changed_at = len(queries) // 2, len(queries) // 2 + WARM
    plain = join(queries, pool, "mmlupro12")
    rank = [plain.names[i] for i in plain.rank(np.arange(half))]
    best, middling, worst = rank[0], rank[len(rank) // 2], rank[-1]
    changes: Mapping[str, tuple[PoolChange, PoolChange]] = {
        "two are exchanged": ({}, {best: middling, middling: best}),
        "the best gets worse": ({}, {best: worst}),
        "the worst gets good": ({}, {worst: best}),
        "the best joins": ({best: None}, {}),
    }
    parts = {"first 100 after": slice(0, 100), "next 300": slice(100, 400), "the rest": slice(400, None)}
    print("| change | held at | " + " | ".join(parts) + " |\n|" + "---|" * (len(parts) + 2))
    every: dict[tuple[str, float], tuple[list[ReplayResult], list[ReplayResult]]] = {}
    for change, (before, after) in changes.items():
        old, new = with_outputs(queries, before), with_outputs(queries, after)
        stream = join([*old[:changed_at], *new[changed_at:]], pool, "mmlupro12")
        later = join(new, pool, "after")
        sides = ((stream, join(old, _without(pool, before), "before")), (later, later))
        found = {cost: every.setdefault((change, cost), ([], [])) for cost in HELD}
        for seed in RECORDED_SEEDS:
            for side, (served, taught) in enumerate(sides):
                policy = trained(taught, np.arange(half), seed=seed, settings=OfflineSettings(), advance=lambda _: None)
                for cost, runs in found.items():
                    runs[side].append(_held(policy, served, seed, cost, (half, changed_at, len(queries))))
    pairs = {
        (*cell, name): ([run.part(part) for run in ours], [run.part(part) for run in knew])
        for cell, (ours, knew) in every.items()
        for name, part in parts.items()
    }
    minus = compare(pairs)
    for change, cost in every:
        cells = [f"{_accuracy(pairs[change, cost, name][0])} {minus[change, cost, name].in_points()}" for name in parts]
        print(f"| {change} | {cost:g} | {' | '.join(cells)} |", flush=True)


def with_outputs(queries: Sequence[LoggedQuery], change: PoolChange) -> list[LoggedQuery]:
    """Take the outputs of each changed endpoint from another one, or leave them out (None)."""

    def outputs(query: LoggedQuery) -> dict[str, Output]:
        sources = {name: change.get(name, name) for name in query.outputs}
        return {name: query.outputs[source] for name, source in sources.items() if source is not None}

    return [replace(query, outputs=outputs(query)) for query in queries]


def _without(pool: PoolFile, change: PoolChange) -> PoolFile:
    """Return the pool without the endpoints that the change removes."""
    gone = {name for name, source in change.items() if source is None}
    return replace(pool, endpoints=tuple(endpoint for endpoint in pool.endpoints if endpoint.name not in gone))


def _held(
    policy: Policy, stream: LogTable, seed: int, cost: float, ends: Sequence[int], *, detect: bool = True
) -> ReplayResult:
    """Replay a stream at a held cost, part by part, from `WARM` rows before the first end on; return the last part."""
    serving = Serving(policy, stream.endpoints, seed=seed, detect=detect, cost_weight=cost_weight_at(policy, cost))
    for first, last in zip((ends[0] - WARM, *ends), ends, strict=False):
        rows = np.arange(first, last)
        serving.hold(stream.target_usd_per_query(rows, cost))
        played = play(serving, stream, rows)
    return played


def _primes(seed: int) -> LogTable:
    """Make a stream of one kind of question, for two endpoints."""
    rng, queries = random.Random(f"primes {seed}"), []
    for n in range(PRIMES):
        label = rng.randrange(2)
        skills = EXCHANGED[2 * n // PRIMES]
        right = {name: rng.random() < skill for name, skill in skills.items()}
        outputs = {
            name: Output(label if right[name] else 1 - label, None, None, 40, rng.randrange(60, 300), None, 1.0, None)
            for name in skills
        }
        message = {"role": "user", "content": f"Is {rng.randrange(1000, 20000)} a prime number? Think step by step."}
        queries.append(LoggedQuery(f"q{n}", None, (message,), ("Yes", "No"), label, outputs, n + 1))
    endpoints = (
        Endpoint("cheap", model="m", input_usd_per_1m="1.5", output_usd_per_1m="2"),
        Endpoint("dear", model="m", input_usd_per_1m="30", output_usd_per_1m="60"),
    )
    return join(queries, PoolFile(endpoints, {}, None), "primes")


PARTS: Mapping[str, Callable[[], None]] = {
    "detector": detector,
    "synthetic": every_scenario,
    "exchanged": exchanged,
    "trained": trained_before,
}


def main() -> None:
    """Print the parts that are named, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=PARTS, metavar="PART")
    for part in parser.parse_args().parts or PARTS:
        PARTS[part]()


if __name__ == "__main__":
    main()
