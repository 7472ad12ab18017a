"""Measures what labels are worth to the cold start, from none to all, at held costs.

    python -m tests.benchmarks.labels [--seeds 5] [--data ../shared/data] [--rows 4500]

The last 4,500 queries of each recorded log are replayed and scored from the first on; the pacer holds the cost. Prints
Markdown tables of accuracy, cost and ECE over these queries and all seeds. Missing logs are left out. Runs in two
processes.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from focalroute.core.records import F64, I64
from focalroute.evaluate.playing import PolicyReplay
from focalroute.evaluate.replay import FeedbackPlan, Training, play
from focalroute.evaluate.report_page.drawings import measure_calibration
from focalroute.evaluate.table import LogTable, Split
from focalroute.evaluate.training import read_table
from focalroute.evaluate.votes import Vote
from focalroute.policy.bundle import cold

LOGS = ("mmlupro12", "mmlu9", "zeroeval12")
COSTS = (0.15, 0.3, 0.5)
PLANS: Mapping[str, FeedbackPlan] = {
    "no feedback": FeedbackPlan("none"),
    "2 % labels": FeedbackPlan(share=0.02),
    "5 % labels": FeedbackPlan(share=0.05),
    "20 % labels": FeedbackPlan(share=0.2),
    "5 % labels, 200 later, 10 % wrong": FeedbackPlan(share=0.05, delay=200, noise=0.1),
    "2 % labels, where members differ first": FeedbackPlan(share=0.02, bias="disputed"),
    "5 % labels, where members differ first": FeedbackPlan(share=0.05, bias="disputed"),
    "20 % labels, where members differ first": FeedbackPlan(share=0.2, bias="disputed"),
    "every label": FeedbackPlan(),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One run: accuracy, cost ratio, and confidence and worth of each row."""

    accuracy: float
    cost: float
    confidence: F64
    worth: F64


def played(data: Path, log: str, rows: int, plan: str, cost: float, seed: int) -> Cell:
    """Replay the cold start on the last rows of a log."""
    table, last = _table(data, log, rows)
    training = Training(table, last[:0], seed, replace(PLANS[plan], seed=seed))
    replay = PolicyReplay(cold(), table, Split(last[:0], last), training, explore=True, advance=lambda _: None)
    run = replay.run(cost)
    spent = float(run.played.usd.sum() / table.usd[last].sum())
    return Cell(float(run.played.worth.mean()), spent, run.confidence, run.played.worth)


def plurality(data: Path, log: str, rows: int) -> float:
    """See `vote_of_all`."""
    return vote_of_all(*_table(data, log, rows))


def vote_of_all(table: LogTable, rows: I64) -> float:
    """Return the accuracy of a plurality vote of all endpoints on these rows; ties go to the best-ranked backer."""
    return float(play(Vote(table.rank(rows)), table, rows, feedback="none").worth.mean())


def _table(data: Path, log: str, rows: int) -> tuple[LogTable, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    table = read_table(data / f"{log}.jsonl.gz", data / f"{log}.pool.toml", None)
    count = len(table.queries)
    return table, np.arange(max(0, count - rows), count)


def shown(cells: Sequence[Cell]) -> str:
    """Format the means over seeds: accuracy @ cost, and the ECE of all answers."""
    confidence, worth = (np.concatenate([getattr(cell, name) for cell in cells]) for name in ("confidence", "worth"))
    error = measure_calibration(confidence, worth, "accuracy").expected_error
    accuracy, cost = (float(np.mean([getattr(cell, name) for cell in cells])) for name in ("accuracy", "cost"))
    return f"{accuracy:.3f} @ {cost:.3f}, {error:.3f}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Play and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.labels")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--rows", type=int, default=4500)
    given = parser.parse_args(arguments)
    with ProcessPoolExecutor(2) as pool:
        for log in LOGS:
            if not (given.data / f"{log}.jsonl.gz").exists():
                print(f"no {log} in {given.data}")
                continue
            runs = {
                (plan, cost): [
                    pool.submit(played, given.data, log, given.rows, plan, cost, seed) for seed in range(given.seeds)
                ]
                for plan in PLANS
                for cost in COSTS
            }
            vote = pool.submit(plurality, given.data, log, given.rows)
            heads = " | ".join(f"accuracy @ cost, ECE; {cost:g} held" for cost in COSTS)
            print(f"\n{log}\n\n| | {heads} |\n|---|{'---|' * len(COSTS)}")
            for plan in PLANS:
                found = [[run.result() for run in runs[plan, cost]] for cost in COSTS]
                print(f"| {plan} | {' | '.join(map(shown, found))} |", flush=True)
            print(f"| plurality of all | {' | '.join([f'{vote.result():.3f} @ 1.000'] * len(COSTS))} |", flush=True)


if __name__ == "__main__":
    main()
