"""Checks that endpoints that hang do not delay asks: ``python -m tests.benchmarks.hangs``.

30 % of all calls to six simulated endpoints fail: an eighth of these hang, an eighth reply with a Retry-After of a
second, the rest fail at once. 32 asks run at a time with a deadline of 3 s and default settings. Controls are as many
asks without faults, and with faults that all fail at once. At least 99.9 % of the asks must be answered by the
deadline. The 99th percentile of their time must be at most three times that without faults, and the number of calls
less than 10 % above that where all faults fail at once; both are medians over seeds, as they depend on what else the
machine does.
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
    """Make faults that strike this share of all calls, each equally often."""
    each = share / len(kinds)
    return [replace(fault, probability=each / (1 - number * each)) for number, fault in enumerate(kinds)]


@dataclass(frozen=True)
class Outcome:
    """The result of a run.

    Attributes:
        asks: how asks ended -> how often.
        seconds: the times of answered asks, ascending.
        calls: number of calls, as counted by the services.
    """

    asks: Counter[str]
    seconds: list[float]
    calls: int

    @property
    def answered(self) -> float:
        """Share of asks that were answered."""
        return self.asks["answered"] / self.asks.total()

    def quantile(self, share: float) -> float:
        """The 99th percentile of the times of answered asks."""
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
    """Ask this number of questions while calls fail; ``latency``: a factor on the endpoints' latencies."""
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
    """Print the figures of every seed; fail if a requirement is not met."""
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
