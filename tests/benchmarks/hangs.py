"""Whether an endpoint that hangs delays any ask: ``python -m tests.benchmarks.hangs``.

Six simulated endpoints on real sockets; 30 % of all calls are faulted: an eighth of these hang, an eighth say to come
back in a second, the rest fail at once in one way or another. 32 asks at a time with a deadline of 3 s, default
settings; beside them as many asks without a fault, and as many where every faulted call fails at once. At least 99.9 %
must be answered by the deadline. The 99th percentile must be at most three times that without faults, and the calls
less than a tenth more than where all fail at once: medians over the seeds, as both swing with what else the machine
does.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from focalroute import AsyncEnsemble, PoolError
from focalroute.sim import Fault, SimulatedPool, default_models, stream

__all__ = ["Outcome", "faults", "run"]

_AT_ONCE = (
    Fault("status", status=500),
    Fault("status", status=502),
    Fault("reset"),
    Fault("cut"),
    Fault("bad_json"),
    Fault("html"),
)
_KINDS = (Fault("hang"), Fault("status", status=503, retry_after_s=1.0), *_AT_ONCE)

_SHARE = 0.3
_ANSWERED, _SLOWER, _MORE = 0.999, 3.0, 0.1


def faults(share: float, kinds: Sequence[Fault] = _KINDS) -> list[Fault]:
    """Faults that together strike this share of calls, each as often as any other."""
    each = share / len(kinds)
    return [replace(fault, probability=each / (1 - number * each)) for number, fault in enumerate(kinds)]


@dataclass(frozen=True)
class Outcome:
    """What became of a run.

    Attributes:
        asks: how each ended.
        seconds: of those answered, ascending.
        calls: that the services counted.
    """

    asks: Counter[str]
    seconds: list[float]
    calls: int

    @property
    def answered(self) -> float:
        """Share of asks."""
        return self.asks["answered"] / self.asks.total()

    def quantile(self, share: float) -> float:
        """Of the seconds of those answered."""
        return self.seconds[min(int(share * len(self.seconds)), len(self.seconds) - 1)]


async def run(
    asks: int,
    faulted: Sequence[Fault] = (),
    *,
    seed: int = 0,
    concurrency: int = 32,
    deadline_s: float = 3.0,
    latency: float = 10.0,
) -> Outcome:
    """Ask so many questions while calls are faulted; ``latency``: how many times the usual pool's."""
    ended: Counter[str] = Counter()
    seconds = []
    models = [replace(m, latency_s=latency * m.latency_s, jitter_s=latency * m.jitter_s) for m in default_models()]
    questions = iter(stream(asks, seed=seed + 1))
    with tempfile.TemporaryDirectory() as folder, SimulatedPool(models) as pool:
        for model in models:
            pool.set(model.name, faults=list(faulted))
        settings: dict[str, Any] = {"store": Path(folder) / "s.db", "deadline_s": deadline_s, "seed": seed}
        async with AsyncEnsemble(pool.endpoints, **settings) as ensemble:

            async def work() -> None:
                for question in questions:
                    began = time.perf_counter()
                    try:
                        answer = await ensemble.ask(question.text, choices=question.choices)
                    except PoolError as error:
                        ended[type(error).__name__] += 1
                        continue
                    seconds.append(time.perf_counter() - began)
                    ended["answered"] += 1
                    await ensemble.feedback(answer, label_index=question.label)

            await asyncio.gather(*(work() for _ in range(concurrency)))
        calls = sum(one.calls for one in pool.stats().values())
    return Outcome(ended, sorted(seconds), calls)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the figures of every seed; fail if they are not what they must be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--asks", type=int, default=1_500)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args(arguments)
    columns = ("seed", "without faults: p99, s", "calls", "all fail at once: calls", "some hang: answered", "p50, s",
        "p99", "p99.9", "calls", "p99 / without faults", "calls / fail at once")  # fmt: skip
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    slower, more = [], []
    for seed in range(given.seeds):
        calm, failing, hanging = (
            asyncio.run(run(given.asks, kinds, seed=seed)) for kinds in ([], faults(_SHARE, _AT_ONCE), faults(_SHARE))
        )
        slower.append(hanging.quantile(0.99) / calm.quantile(0.99))
        more.append(hanging.calls / failing.calls - 1)
        quantiles = " | ".join(f"{hanging.quantile(share):.2f}" for share in (0.5, 0.99, 0.999))
        print(
            f"| {seed} | {calm.quantile(0.99):.2f} | {calm.calls:,} | {failing.calls:,} | {hanging.asks['answered']:,} "
            f"of {given.asks:,} | {quantiles} | {hanging.calls:,} | {slower[-1]:.2f} | {more[-1]:+.1%} |",
            flush=True,
        )
        assert hanging.answered >= _ANSWERED, hanging.asks
    assert statistics.median(slower) <= _SLOWER
    assert statistics.median(more) < _MORE


if __name__ == "__main__":
    main()
