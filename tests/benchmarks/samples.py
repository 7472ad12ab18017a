"""Measures what several samples of a free-form answer are worth: ``python -m tests.benchmarks.samples``.

Four simulated models of rising skill and price solve word problems with a number as answer. Every setting asks the same
questions from a cold start, and every answer gets its label. The control is one greedy reply: by construction, a
simulated model's most frequent answer is its best, and that is also what several samples find.
"""

from __future__ import annotations

import argparse
import math
import statistics
from decimal import Decimal
from typing import Any, NamedTuple

from focalroute import Ensemble
from focalroute.sim import SimulatedModel, SimulatedPool, stream

ENDINGS = ("\n#### {}", " The answer is **{}**.", "\n\\boxed{{}}", " That makes {}.")
GREEDY = {"params": {"temperature": 0.0}}
SETTINGS: dict[str, dict[str, Any]] = {
    "1 reply": {},
    "1 reply, greedy": GREEDY,
    "1 reply, greedy, money is cheap": {**GREEDY, "cost_weight": 0.003},
    "3 samples": {"samples": 3},
    "5 samples": {"samples": 5},
    "5 samples, money is cheap": {"samples": 5, "cost_weight": 0.003},
}


class Outcome(NamedTuple):
    """For each ask: whether it was right, its cost, and its number of members."""

    right: list[bool]
    usd: list[float]
    members: list[int]


def models() -> list[SimulatedModel]:
    """Make the four models; each costs three times as much as the one before."""
    return [
        SimulatedModel(
            f"model-{i}", skill=0.45 + 0.1 * i, verbosity=20, ending=ending,
            input_usd_per_1m=Decimal(3**i) / 10, output_usd_per_1m=Decimal(3**i) / 10,
        )
        for i, ending in enumerate(ENDINGS)
    ]  # fmt: skip


def run(pool: SimulatedPool, asks: int, seed: int, *, cost_weight: float = 0.1, **how: Any) -> Outcome:
    """Ask this number of questions, one after the other."""
    outcome = Outcome([], [], [])
    with Ensemble(pool.endpoints, seed=seed, cost_weight=cost_weight) as ensemble:
        for question in stream(asks, seed=100 + seed, topics=["stories"]):
            answer = ensemble.ask(question.text, answer="number", **how)
            outcome.right.append(str(answer.value) == question.answer)
            outcome.usd.append(float(answer.cost or 0))
            outcome.members.append(len(answer.replies))
            ensemble.feedback(answer, label=question.answer)
    return outcome


def main() -> None:
    """Print one row for each setting; intervals are over all questions of all seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--asks", type=int, default=250)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    print("|  | right | USD per 1,000 asks | members |\n|---|---|---|---|")
    with SimulatedPool(models()) as pool:
        for name, settings in SETTINGS.items():
            runs = [run(pool, options.asks, seed, **settings) for seed in range(options.seeds)]
            right = [value for outcome in runs for value in outcome.right]
            share = statistics.fmean(right)
            half = 1.96 * math.sqrt(share * (1 - share) / len(right))
            usd = 1000 * statistics.fmean(value for outcome in runs for value in outcome.usd)
            members = statistics.fmean(value for outcome in runs for value in outcome.members)
            print(f"| {name} | {share:.3f} ± {half:.3f} | {usd:.3f} | {members:.2f} |", flush=True)


if __name__ == "__main__":
    main()
