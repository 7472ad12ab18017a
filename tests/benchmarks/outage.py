"""Measures an outage of the best endpoint: ``python -m tests.benchmarks.outage``.

An ensemble learns on six simulated endpoints. Then its best one refuses calls, or hangs, for 520 queries, and comes
back. Printed are: how many queries still called it; the accuracy of the last 500 of these queries compared with an
ensemble that never had this endpoint (paired on the same questions, with a 95 % interval); and how long after its
return it was used again. Every answer gets feedback.
"""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from focalroute import AsyncEnsemble, Endpoint
from focalroute.sim import Fault, SimulatedPool, default_models, stream
from focalroute.sim.questions import Question

__all__ = ["BEST", "DOWN", "Outcome", "run"]

BEST = "atlas-70b"
DOWN = {"refuses": Fault("status", status=503), "hangs": Fault("hang")}
_WIDTH = 16  # concurrent queries before the outage
_NOTICED = 20  # after this many queries, the endpoint should get only trial calls


@dataclass(frozen=True)
class Asked:
    """One query: whether its answer was right, whether it called the best endpoint, and how long it took."""

    right: bool
    called: bool
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """The result of a run.

    Attributes:
        before: the queries before the outage.
        during: the queries of the outage.
        without: the same queries, answered by an ensemble that knows only the other endpoints.
        probes: calls during the outage that were not for asks, as counted by the service.
        back_s: seconds from its return until it was asked again; infinite: it never was.
    """

    before: list[Asked]
    during: list[Asked]
    without: list[Asked]
    probes: int
    back_s: float

    @property
    def late_calls(self) -> int:
        """The number of queries after the first 20 of the outage that called it."""
        return sum(asked.called for asked in self.during[_NOTICED:])

    def gains(self) -> list[float]:
        """For each query after the first 20: 100 if only ``during`` is right, -100 if only ``without`` is right."""
        pairs = zip(self.during[_NOTICED:], self.without[_NOTICED:], strict=True)
        return [100.0 * (mine.right - theirs.right) for mine, theirs in pairs]


class _Asking:
    """Asks an ensemble the questions of a stream, at a given rate."""

    def __init__(self, endpoints: Sequence[Endpoint], questions: Iterator[Question], deadline_s: float) -> None:
        self.ensemble = AsyncEnsemble(endpoints, cost_weight=0.01, deadline_s=deadline_s, seed=0)
        self._questions = questions

    async def many(self, count: int, a_second: float) -> list[Asked]:
        began = time.perf_counter()
        tasks = []
        for number in range(count):
            await asyncio.sleep(max(0.0, number / a_second - (time.perf_counter() - began)))
            tasks.append(asyncio.create_task(self.one()))
        return list(await asyncio.gather(*tasks))

    async def at_once(self, count: int) -> list[Asked]:
        """Ask a few at a time, the next as soon as one is answered; all at once, each would take seconds."""
        numbers = iter(range(count))

        async def work() -> list[Asked]:
            return [await self.one() for _ in numbers]

        return [asked for some in await asyncio.gather(*(work() for _ in range(_WIDTH))) for asked in some]

    async def one(self) -> Asked:
        question = next(self._questions)
        began = time.perf_counter()
        answer = await self.ensemble.ask(question.text, choices=question.choices)
        seconds = time.perf_counter() - began
        await self.ensemble.feedback(answer, label_index=question.label)
        called = any(call.endpoint == BEST and call.attempts for call in answer.receipt.calls)
        return Asked(answer.choice == question.label, called, seconds)


async def run(
    pool: SimulatedPool,
    down: Fault,
    *,
    before: int,
    during: int,
    a_second: float,
    deadline_s: float,
    patience_s: float,
) -> Outcome:
    """Ask, take the best endpoint down, ask on, bring it back, and ask until it is in use."""
    full = _Asking(pool.endpoints, stream(10**6, seed=2), deadline_s)
    rest = [one for one in pool.endpoints if one.name != BEST]
    others = _Asking(rest, stream(10**6, seed=2), deadline_s)
    async with full.ensemble, others.ensemble:
        first = await full.at_once(before)
        await others.at_once(before)
        pool.set(BEST, faults=down)
        calls = pool.stats()[BEST].calls
        during_it, without = await asyncio.gather(full.many(during, a_second), others.many(during, a_second))
        calls = pool.stats()[BEST].calls - calls
        pool.set(BEST, faults=[])
        returned = time.perf_counter()
        back_s = math.inf
        while back_s == math.inf and time.perf_counter() - returned < patience_s:
            asked = await full.one()
            if asked.called:
                back_s = time.perf_counter() - returned
            await asyncio.sleep(1 / a_second)
    attempts = sum(asked.called for asked in during_it)
    return Outcome(first, during_it, without, max(0, calls - attempts), back_s)


def main() -> None:
    """Print the figures; fail if a requirement is not met."""
    columns = ("the best endpoint", "asked before", "queries of the first 20 that called it", "of the next 500",
               "probes", "accuracy of these beside an ensemble without it, points", "slowest of these, s",
               "back in use after, s")  # fmt: skip
    print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|")
    failed = []
    for name, fault in DOWN.items():
        with SimulatedPool(default_models()) as pool:
            found = asyncio.run(run(pool, fault, before=400, during=520, a_second=8.0, deadline_s=4.0, patience_s=90))
        gains = found.gains()
        gain, half = statistics.mean(gains), 1.96 * statistics.stdev(gains) / math.sqrt(len(gains))
        cells = (
            name,
            f"in {statistics.mean(asked.called for asked in found.before):.0%}",
            str(sum(asked.called for asked in found.during[:_NOTICED])),
            str(found.late_calls),
            str(found.probes),
            f"{gain:+.1f} ({gain - half:+.1f} to {gain + half:+.1f})",
            f"{max(asked.seconds for asked in found.during[_NOTICED:]):.2f}",
            f"{found.back_s:.1f}",
        )
        print("| " + " | ".join(cells) + " |", flush=True)
        if found.late_calls or gain - half < -1 or found.back_s > 60:
            failed.append(name)
    assert not failed, failed


if __name__ == "__main__":
    main()
