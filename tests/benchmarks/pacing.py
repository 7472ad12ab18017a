"""Checks that pacing holds a target cost over 5,000 asks over HTTP, through a price rise and a drift of topics.

``python -m tests.benchmarks.pacing`` prints the mean cost by phase. The policy only asks fewer endpoints as the cost
weight rises, so this tests the pacing alone. The providers report what they charge (OpenRouter's dialect), as list
prices would not follow the rise.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

from focalroute import Answer, AsyncEnsemble, Budget
from focalroute.sim import SimulatedModel, SimulatedPool, stream
from tests.policies import thrifty

TARGET = Decimal("0.00005")
PRICES = {"a": "0.1", "b": "0.1", "c": "0.2", "d": "0.4"}


async def run(asks: int, concurrency: int) -> tuple[list[Decimal], list[float]]:
    """Make the asks; return cost and cost weight of each."""
    models = [
        SimulatedModel(name, skill=0.7, input_usd_per_1m=Decimal(usd), output_usd_per_1m=Decimal(usd))
        for name, usd in PRICES.items()
    ]
    costs: list[Decimal] = []
    prices: list[float] = []
    with tempfile.TemporaryDirectory() as name, SimulatedPool(models, dialects="openrouter") as pool:
        budget = Budget(usd_per_query=TARGET)
        async with AsyncEnsemble(
            pool.endpoints, policy=thrifty(Path(name) / "policy"), budget=budget, cost_weight=0.01, seed=0
        ) as ensemble:
            for phase, (begin, end) in enumerate(phases(asks)):
                if phase == 1:
                    for model, usd in PRICES.items():
                        pool.set(model, input_usd_per_1m=2 * Decimal(usd), output_usd_per_1m=2 * Decimal(usd))
                if phase == 2:
                    pool.drift()
                topics = ("arithmetic", "ordering") if phase < 2 else ("logic", "dates", "units")
                questions = stream(end - begin, phase, topics)
                answers = await ensemble.ask_many(
                    ({"query": question.text, "choices": question.choices} for question in questions),
                    concurrency=concurrency,
                )
                for answer in answers:
                    assert isinstance(answer, Answer)
                    assert answer.cost is not None
                    costs.append(answer.cost)
                    prices.append(answer.receipt.cost_weight)
    return costs, prices


def phases(asks: int) -> list[tuple[int, int]]:
    """Return the phases: before the rise, before the drift, after both."""
    return [(0, asks * 2 // 5), (asks * 2 // 5, asks * 7 // 10), (asks * 7 // 10, asks)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the mean cost by phase, relative to the target; fail if it is off by more than 2 % over 5,000 asks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--asks", type=int, default=5000)
    parser.add_argument("--concurrency", type=int, default=4)
    given = parser.parse_args(arguments)
    begun = time.perf_counter()
    costs, prices = asyncio.run(run(given.asks, given.concurrency))
    print("| asks | mean cost / target | cost weight at the end |\n|---|---|---|")
    spans = [*phases(given.asks), (0, given.asks)]
    for what, (begin, end) in zip(("first", "prices doubled", "topics drifted", "all"), spans, strict=True):
        mean = sum(costs[begin:end], Decimal(0)) / (end - begin) / TARGET
        print(f"| {what}, {begin} to {end} | {mean:.4f} | {prices[end - 1]:.3g} |")
    print(f"{time.perf_counter() - begun:.0f} s")
    assert given.asks < 5000 or abs(sum(costs, Decimal(0)) / len(costs) / TARGET - 1) <= Decimal("0.02")


if __name__ == "__main__":
    main()
