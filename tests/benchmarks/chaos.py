"""Makes 20,000 asks over HTTP while 30 % of all calls fail: ``python -m tests.benchmarks.chaos``.

Six simulated endpoints fail at random in all ways that `focalroute.sim` offers, each equally often: error statuses with
and without Retry-After, resets, hangs, slow drips, cut and truncated replies, wrong types, HTML, endless replies,
redirects and so on. Every answer gets feedback. At least 99.9 % of the asks must be answered; the 99.9th percentile of
their time must be at most the deadline plus 50 ms; no task, thread, socket or file descriptor may be left behind. After
half of the asks, when caches are full, memory in use must not grow significantly (`tests.benchmarks.harness.growth`).
Of ten measurements of memory in a row the smallest counts, as replies of 8 MiB are read at times.

On a busy machine the process may be suspended for hundreds of milliseconds. A heartbeat detects such pauses by
comparing wall time with processor time. Times are given with and without the asks whose end fell into a pause.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import gc
import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from focalroute import Answer, AsyncEnsemble, PoolError
from focalroute.sim import Fault, SimulatedPool, default_models, stream
from focalroute.sim.faults import KINDS
from focalroute.sim.questions import Question
from tests.benchmarks.harness import growth

__all__ = ["Outcome", "faults", "run"]

_BEAT_S, _PAUSE_S = 0.005, 0.015
_LOOKS, _AT_A_TIME = 400, 10  # measurements of memory; of each ten in a row the smallest counts
_STATUSES = ((408, None), (409, None), (429, None), (429, 0.2), (500, None), (502, None), (503, None), (503, 0.2))


def faults(share: float, kinds: Sequence[str] = tuple(KINDS)) -> list[Fault]:
    """Make faults that strike this share of all calls, each kind equally often; the first fault that hits counts."""
    planned = [
        (fault, share / len(kinds) / len(of_kind)) for kind in kinds for of_kind in (_of(kind),) for fault in of_kind
    ]
    made, spared = [], 1.0
    for fault, chance in planned:
        made.append(replace(fault, probability=chance / spared))
        spared -= chance
    return made


def _of(kind: str) -> list[Fault]:
    if kind == "status":
        return [Fault(kind, status=status, retry_after_s=wait) for status, wait in _STATUSES]
    return [Fault(kind)]


@dataclass(frozen=True)
class Outcome:
    """The result of a run.

    Attributes:
        asks: how each ended: "answered", or the error's name.
        right: how many answers were right.
        over_s: for every ask, the seconds after its deadline at which it ended, ascending; negative: before it.
        undisturbed_s: the same, without the asks that ended late in a pause of the machine.
        degraded: first word of `Answer.degraded` -> number of answers.
        struck: number of calls that a fault struck, and of all calls, as counted by the service.
        errors: kind of members' errors -> how often.
        left: tasks, threads and file descriptors at the end that did not exist at the start.
        megabytes: memory in use, measured 400 times during the run.
    """

    asks: Counter[str]
    right: int
    over_s: list[float]
    undisturbed_s: list[float]
    seconds: list[float]
    degraded: Counter[str]
    struck: tuple[int, int]
    errors: Counter[str]
    hedges: int
    left: dict[str, int]
    megabytes: list[float]

    @property
    def answered(self) -> float:
        """Share of asks that were answered."""
        return self.asks["answered"] / self.asks.total()

    @property
    def least_megabytes(self) -> list[float]:
        """The smallest of each ten measurements of memory, when the fewest large replies were being read."""
        seen = self.megabytes
        return [min(seen[at : at + _AT_A_TIME]) for at in range(0, len(seen), _AT_A_TIME)]


async def run(pool: SimulatedPool, asks: int, *, deadline_s: float, concurrency: int, **settings: object) -> Outcome:
    """Ask this number of questions while calls fail."""
    await AsyncEnsemble(pool.endpoints).aclose()  # libraries open files here that they keep open
    with tempfile.TemporaryDirectory() as name:
        before = _held()
        ensemble = AsyncEnsemble(pool.endpoints, store=Path(name) / "s.db", deadline_s=deadline_s, seed=0, **settings)  # type: ignore[arg-type]
        watch = _Watch(ensemble, deadline_s, asks)
        heartbeat = asyncio.create_task(watch.listen())
        async with ensemble:
            await asyncio.gather(*(watch.work() for _ in range(concurrency)))
            stats = pool.stats().values()
            heartbeat.cancel()
        await asyncio.get_running_loop().shutdown_default_executor()
        for _ in range(100):
            await asyncio.sleep(0.05)  # sockets close in the loop's next turns
            after = _held()
            if all(len(after[what]) <= len(before[what]) for what in before):
                break
    return Outcome(
        asks=watch.ended,
        right=watch.right,
        over_s=sorted(ended - began - deadline_s for began, ended in watch.spans),
        undisturbed_s=sorted(
            ended - began - deadline_s for began, ended in watch.spans if not watch.disturbed(began, ended)
        ),
        seconds=sorted(ended - began for began, ended in watch.spans),
        degraded=watch.degraded,
        struck=(sum(one.faults for one in stats), sum(one.calls for one in stats)),
        errors=watch.errors,
        hedges=watch.hedges,
        left={what: len(after[what] - before[what]) for what in before},
        megabytes=watch.megabytes,
    )


class _Watch:
    """Asks questions, and counts the results."""

    def __init__(self, ensemble: AsyncEnsemble, deadline_s: float, asks: int) -> None:
        self._ensemble = ensemble
        self._deadline_s = deadline_s
        self._questions = iter(stream(asks, seed=1))
        self._look_every = self._next_look = max(asks // _LOOKS, 1)
        self.ended: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.degraded: Counter[str] = Counter()
        self.spans: list[tuple[float, float]] = []
        self.pauses: list[tuple[float, float]] = []
        self.right = 0
        self.hedges = 0
        self.megabytes: list[float] = []

    async def work(self) -> None:
        for question in self._questions:
            began = time.perf_counter()
            try:
                answer = await self._ensemble.ask(question.text, choices=question.choices)
            except PoolError as error:
                self.spans.append((began, time.perf_counter()))
                self.ended[type(error).__name__] += 1
            else:
                self.spans.append((began, time.perf_counter()))
                await self._take(answer, question)
            if len(self.spans) >= self._next_look:
                self._next_look += self._look_every
                self.megabytes.append(_megabytes())

    async def listen(self) -> None:
        """Record every pause in which the process was suspended."""
        while True:
            began, worked = time.perf_counter(), time.thread_time()
            await asyncio.sleep(_BEAT_S)
            late = time.perf_counter() - began - _BEAT_S
            if late - (time.thread_time() - worked) > _PAUSE_S:
                self.pauses.append((began, time.perf_counter()))

    def disturbed(self, began: float, ended: float) -> bool:
        """Whether an ask ended late, and a pause overlaps the time after its deadline."""
        deadline = began + self._deadline_s
        return ended > deadline and any(start < ended and end > deadline for start, end in self.pauses)

    async def _take(self, answer: Answer, question: Question) -> None:
        self.ended["answered"] += 1
        self.right += answer.choice == question.label
        self.degraded.update({said.split(":")[0] for said in answer.degraded})
        self.errors.update(call.error.kind for call in answer.receipt.calls if call.error)
        self.hedges += sum(call.hedge_of is not None for call in answer.receipt.calls)
        await self._ensemble.feedback(answer, label_index=question.label)


def quantile(ascending: Sequence[float], share: float) -> float:
    """Return the quantile for this share."""
    return ascending[min(int(share * len(ascending)), len(ascending) - 1)]


def _held() -> dict[str, set[object]]:
    """Return what was not there before, item by item: a new item is not offset by one that has gone."""
    gc.collect()
    return {
        "tasks": set(asyncio.all_tasks()),
        "threads": set(threading.enumerate()),
        "descriptors": set(_descriptors()),
    }


def _descriptors() -> Iterator[tuple[str, str]]:
    """Return number and target of each open file, where the system provides them; a socket's target is unique."""
    folder = Path("/proc/self/fd")
    for path in list(folder.iterdir()) if folder.exists() else ():
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            yield path.name, str(path.readlink())


def _megabytes() -> float:
    """Return the memory in use, MiB; 0 where the system does not provide it."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return 0.0
    with contextlib.suppress(AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)
    _, resident, shared, *_ = map(int, statm.read_text().split())
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE") / 2**20


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the figures; fail if a requirement is not met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--asks", type=int, default=20_000)
    given = parser.parse_args(arguments)
    begun = time.perf_counter()
    with SimulatedPool(default_models()) as pool:
        for model in pool.models:
            pool.set(model.name, faults=faults(0.3))
        outcome = asyncio.run(run(pool, given.asks, deadline_s=3.0, concurrency=16))
    report(outcome)
    print(f"{time.perf_counter() - begun:.0f} s")
    assert outcome.answered >= 0.999
    assert quantile(outcome.undisturbed_s, 0.999) <= 0.05
    assert not any(outcome.left.values())
    share, sure = growth(outcome.least_megabytes[_LOOKS // _AT_A_TIME // 2 :])
    print(f"memory: {share:+.2%} in the second half{', and surely growing' if sure else ''}")
    assert not sure


def report(outcome: Outcome) -> None:
    """Print the figures."""
    struck, calls = outcome.struck
    taken = outcome.seconds
    late = [ended for ended in outcome.over_s if ended > 0]
    left = ", ".join(f"{count} {what}" for what, count in outcome.left.items() if count)
    print(f"| | |\n|---|---|\n| calls | {calls:,}, of which {struck:,} ({100 * struck / calls:.1f} %) were faulted, in "
          f"{len(KINDS)} kinds |")  # fmt: skip
    print(f"| answered | {outcome.asks['answered']:,} of {outcome.asks.total():,} |")
    print(f"| left behind at the end | {left or 'no task, thread or file descriptor'} |")
    quantiles = ", ".join(f"{seconds:.2f}" for seconds in (quantile(taken, 0.5), quantile(taken, 0.99), taken[-1]))
    print(f"| seconds, p50, p99, maximum | {quantiles} |")
    print(f"| over the deadline, all asks | {f'{len(late):,}, at most {late[-1]:.3f} s' if late else 'none'} |")
    over = outcome.undisturbed_s
    print(f"over the deadline, without pauses of the machine ({len(over)}): "
          f"p99.9 {quantile(over, 0.999) * 1e3:.1f} ms, maximum {over[-1] * 1e3:.1f} ms")  # fmt: skip
    print(f"ended: {dict(outcome.asks)}; right {outcome.right}; races: {outcome.hedges}")
    print(f"failed members: {dict(outcome.errors)}; degraded: {dict(outcome.degraded)}")
    print(f"memory, MiB: {[round(x) for x in outcome.least_megabytes]}")


if __name__ == "__main__":
    main()
