"""Measures `hedge_after` and `early_stop` with 5 % slow calls: ``python -m tests.benchmarks.stragglers``.

Six simulated endpoints have latencies of 20 to 120 ms, the best endpoint the highest; 5 % of their calls take a second.
Each setting asks the same questions from a cold start, with feedback on every answer. The last column is the slowest
endpoint's accuracy as the ensemble sees it at the end: if its replies were waited for only where the others disagree,
it would look worse than it is.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from focalroute import AsyncEnsemble
from focalroute.sim import Fault, SimulatedPool, default_models, stream

SLOWEST = "atlas-70b"
LATENCIES = (0.02, 0.03, 0.04, 0.05, 0.06, 0.12)
SETTINGS: dict[str, dict[str, Any]] = {
    "neither": {},
    "hedge_after=0.95": {"hedge_after": 0.95},
    "early_stop": {"early_stop": True},
    "both": {"hedge_after": 0.95, "early_stop": True},
}


@dataclass
class Outcome:
    """The results of one setting."""

    seconds: list[float] = field(default_factory=list)
    right: int = 0
    calls: int = 0
    cancelled: int = 0
    usd: float = 0.0
    believed: float = 0.0


async def run(pool: SimulatedPool, asks: int, concurrency: int, settings: dict[str, Any]) -> Outcome:
    """Ask this number of questions."""
    outcome = Outcome()
    questions = iter(stream(asks, seed=3))
    async with AsyncEnsemble(pool.endpoints, seed=0, deadline_s=10, **settings) as ensemble:

        async def work() -> None:
            for question in questions:
                began = time.perf_counter()
                answer = await ensemble.ask(question.text, choices=question.choices)
                outcome.seconds.append(time.perf_counter() - began)
                outcome.right += answer.choice == question.label
                outcome.calls += len(answer.receipt.calls)
                outcome.cancelled += sum(bool(c.error and c.error.kind == "cancelled") for c in answer.receipt.calls)
                outcome.usd += float(answer.cost or 0)
                await ensemble.feedback(answer, label_index=question.label)

        await asyncio.gather(*(work() for _ in range(concurrency)))
        outcome.believed = ensemble.stats().endpoints[SLOWEST].accuracy
    return outcome


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--asks", type=int, default=1500)
    parser.add_argument("--concurrency", type=int, default=4)
    given = parser.parse_args(arguments)
    models = [replace(m, latency_s=s, jitter_s=s / 5) for m, s in zip(default_models(), LATENCIES, strict=True)]
    print("| | p50, ms | p95 | p99 | right | calls an ask | given up | cost of an ask, 1e-6 USD | slowest believed |\n"
          "|---|---|---|---|---|---|---|---|---|")  # fmt: skip
    for name, settings in SETTINGS.items():
        with SimulatedPool(models) as pool:
            for model in models:
                pool.set(model.name, faults=Fault("drip", probability=0.05, seconds=1.0))
            outcome = asyncio.run(run(pool, given.asks, given.concurrency, settings))
        cuts = statistics.quantiles([1e3 * s for s in outcome.seconds], n=100)
        print(f"| {name} | {cuts[49]:.0f} | {cuts[94]:.0f} | {cuts[98]:.0f} | {outcome.right / given.asks:.1%} "
              f"| {outcome.calls / given.asks:.2f} | {outcome.cancelled} | {1e6 * outcome.usd / given.asks:.1f} "
              f"| {outcome.believed:.3f} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
