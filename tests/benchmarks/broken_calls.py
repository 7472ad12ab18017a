"""Compares the ledger with the bill when calls break off: ``python -m tests.benchmarks.broken_calls``.

A client cannot know whether a service bills calls that end with a gateway's error status, a lost connection or a
cancellation. Here simulated services bill all of them, none, or every second one, until a limit is reached.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path

from focalroute import AsyncEnsemble, Budget, BudgetExceeded, PoolError
from focalroute.sim import Fault, SimulatedPool, default_models, stream
from focalroute.store.sqlite.store import SqliteStore

__all__ = ["LIMIT", "MIXTURE", "STATUSES", "Outcome", "faults_of", "run"]

LIMIT = Decimal("0.2")
STATUSES = tuple(Fault("status", status=status) for status in (500, 503, 504))
MIXTURE = (*STATUSES, Fault("reset"), Fault("cut"), Fault("hang", seconds=3.0))
_BILLED = {"none": (False,), "every second one": (True, False), "all": (True,)}
_TIMEOUT_S = 1.0


@dataclass(frozen=True)
class Outcome:
    """The result of a run, USD.

    Attributes:
        ledger: the cost in the ledger; ``estimated``: the part of it that no service reported.
        billed: what the services billed.
        asks: how asks ended -> how often.
    """

    ledger: Decimal
    estimated: Decimal
    billed: Decimal
    asks: Counter[str]

    @property
    def ratio(self) -> float:
        """The ledger relative to the bill."""
        return float(self.ledger / self.billed)


def faults_of(share: float, kinds: Sequence[Fault], billed: str) -> list[Fault]:
    """Make faults for this share of all calls, each kind equally often."""
    faults = [replace(fault, billed=bills) for fault in kinds for bills in _BILLED[billed]]
    each = share / len(faults)
    return [replace(fault, probability=each / (1 - place * each)) for place, fault in enumerate(faults)]


async def run(
    faults: Sequence[Fault],
    *,
    limit: Decimal = LIMIT,
    asks: int = 5_000,
    warm: int = 0,
    free_form: bool = False,
    attempts: int = 1,
) -> Outcome:
    """Ask until the limit is reached, at most this number of questions; the first ``warm`` meet no fault."""
    ended: Counter[str] = Counter()
    models = default_models()
    with tempfile.TemporaryDirectory() as folder, SimulatedPool(models) as pool:
        budget = Budget(usd_total=limit)
        path = Path(folder) / "s.db"
        endpoints = [replace(endpoint, timeout_s=_TIMEOUT_S) for endpoint in pool.endpoints]
        async with AsyncEnsemble(endpoints, store=path, budget=budget, attempts=attempts, seed=0) as ensemble:
            for number, question in enumerate(stream(asks, seed=1)):
                if number == warm:
                    for model in models:
                        pool.set(model.name, faults=list(faults))
                try:
                    if free_form:
                        await ensemble.ask(question.text, answer="short", params={"max_tokens": 200})
                    else:
                        await ensemble.ask(question.text, choices=question.choices)
                    ended["answered"] += 1
                except BudgetExceeded:
                    ended["over budget"] += 1
                    if ended["over budget"] >= 20:
                        break
                except PoolError:
                    ended["failed"] += 1
        with closing(SqliteStore(path)) as store:
            (spent,) = store.ledger("all")
        billed = sum((one.usd for one in pool.stats().values()), Decimal(0))
    return Outcome(spent.cost, spent.estimated_cost, billed, ended)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=Decimal, default=LIMIT, help="USD")
    given = parser.parse_args(arguments)
    print("| of all calls | billed | asked | answered | failed | bill, USD | ledger, USD | ledger / bill |")
    print("|---|---|---|---|---|---|---|---|")
    rows: list[tuple[float, str, Sequence[Fault], int]] = [(0.2, billed, MIXTURE, 3) for billed in _BILLED]
    for share, billed, kinds, attempts in [*rows, (1.0, "all", STATUSES, 1)]:
        for free_form in (False, True):
            faults = faults_of(share, kinds, billed)
            outcome = asyncio.run(run(faults, limit=given.limit, warm=20, free_form=free_form, attempts=attempts))
            print(
                f"| {share:.0%} | {billed} | {'text' if free_form else 'choices'} | {outcome.asks['answered']} | "
                f"{outcome.asks['failed']} | {outcome.billed:.6f} | {outcome.ledger:.6f} | {outcome.ratio:.3f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
