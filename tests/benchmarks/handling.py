"""What failure handling adds to a call that succeeds, in microseconds of CPU: ``python -m tests.benchmarks.handling``.

The parts alone, and a round of members that answer at once beside a bare `asyncio.gather` of the same coroutines, turn
by turn in one process.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

from focalroute import Endpoint
from focalroute.endpoints.breaker import Breakers
from focalroute.endpoints.rate_limits import Throttle, pause_of

_HEADERS = [(b"Content-Type", b"application/json"), (b"Content-Length", b"312"), (b"Date", b"-"), (b"Server", b"-")]
_TURNS, _CALLS = 40, 500


async def _cost(work: Callable[[], Awaitable[object]]) -> float:
    began = time.process_time()
    for _ in range(_CALLS):
        await work()
    return (time.process_time() - began) / _CALLS * 1e6


async def run() -> None:
    """Print a table."""
    throttle = Throttle(Endpoint("e", base_url="http://127.0.0.1:9/v1", model="m"))
    breaker = Breakers(3).all[0]

    async def nothing() -> None: ...

    async def guarded() -> None:
        in_flight = breaker.enter()
        breaker.leave(in_flight, None)

    async def limited() -> None:
        throttle.leave(await throttle.enter(0.0, 30.0), 10, None)

    async def checked() -> None:
        breaker.notice()
        assert breaker.allows
        assert throttle.ready

    async def heeded() -> None:
        pause_of(_HEADERS)

    async def member() -> None:
        await asyncio.sleep(0)

    async def gathered(size: int) -> None:
        await asyncio.gather(*[asyncio.ensure_future(member()) for _ in range(size)])

    async def watched(size: int) -> None:
        tasks = [asyncio.ensure_future(member()) for _ in range(size)]
        await asyncio.wait(tasks, timeout=30.0, return_when=asyncio.FIRST_EXCEPTION)

    cases: dict[str, Callable[[], Awaitable[object]]] = {
        "nothing": nothing,
        "breaker, a call": guarded,
        "limits, a call": limited,
        "whether it may be called, an endpoint and round": checked,
        "rate-limit headers, a reply": heeded,
        "a lone member, called directly": member,
        "a lone member, watched": lambda: watched(1),
        "three members, gathered": lambda: gathered(3),
        "three members, watched": lambda: watched(3),
    }
    taken: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(_TURNS):
        for name, work in cases.items():
            taken[name].append(await _cost(work))
    floor = statistics.median(taken.pop("nothing"))
    print("| | us (quartiles) |\n|---|---|")
    for name, costs in taken.items():
        low, middle, high = statistics.quantiles([cost - floor for cost in costs], n=4)
        print(f"| {name} | {middle:.2f} ({low:.2f} - {high:.2f}) |")


if __name__ == "__main__":
    asyncio.run(run())
