"""Calls that break off, billed or not, under a limit: ``python -m tests.benchmarks.broken_calls``.

Nobody says whether a gateway's error status, a lost connection or a call that was given up is billed. Here simulated
services bill all of them, or none, and the table sets the ledger beside what they billed until a limit was reached.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from focalroute import AsyncEnsemble, Budget, BudgetExceeded, PoolError
from focalroute.sim import Fault, SimulatedPool, default_models, stream
from focalroute.store.sqlite.store import SqliteStore

__all__ = ["LIMIT", "Outcome", "run"]

LIMIT = Decimal("0.2")
_KINDS = ("status", "reset", "cut")


@dataclass(frozen=True)
class Outcome:
    """What a run came to, USD.

    Attributes:
        ledger: what the ledger says was spent, ``estimated`` the part of it that nobody confirmed.
        billed: what the services billed.
        asks: how they ended.
    """

    ledger: Decimal
    estimated: Decimal
    billed: Decimal
    asks: Counter[str]

    @property
    def ratio(self) -> float:
        """The ledger beside the bill."""
        return float(self.ledger / self.billed)


async def run(
    faults: Sequence[Fault], *, limit: Decimal = LIMIT, asks: int = 5_000, warm: int = 0, free_form: bool = False
) -> Outcome:
    """Ask until the limit is reached, or so many questions; the first ``warm`` of them meet no fault."""
    ended: Counter[str] = Counter()
    models = default_models()
    with tempfile.TemporaryDirectory() as folder, SimulatedPool(models) as pool:
        budget = Budget(usd_total=limit)
        path = Path(folder) / "s.db"
        async with AsyncEnsemble(pool.endpoints, store=path, budget=budget, attempts=1, seed=0) as ensemble:
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
    print("| what breaks off | of all calls | billed | asks | bill, USD | ledger, USD | ledger / bill | limit, USD |")
    print("|---|---|---|---|---|---|---|---|")
    for share in (0.2, 1.0):
        for kind in _KINDS:
            for billed in (False, True):
                if share == 1 and not billed:
                    continue
                fault = Fault(kind, probability=share, status=504, billed=billed)
                for free_form in (False, True):
                    outcome = asyncio.run(run([fault], limit=given.limit, warm=100, free_form=free_form))
                    what = f"{kind}, {'text' if free_form else 'choices'}"
                    print(
                        f"| {what} | {share:.0%} | {'all' if billed else 'none'} | {dict(outcome.asks)} | "
                        f"{outcome.billed:.6f} | {outcome.ledger:.6f} | {outcome.ratio:.3f} | {given.limit} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
