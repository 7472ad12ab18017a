"""Runs the server for minutes while its endpoints fail: ``python -m tests.benchmarks.soak --minutes 10``.

``focalroute serve`` runs in its own process, over simulated endpoints of whose calls 30 % fail in all ways that
`focalroute.sim` offers. Callers ask questions, stream, hang up and give feedback. Prints the server's memory, file
descriptors and threads over time, and fails if one of them grows significantly after the warm-up. The warm-up ends
after a third of the time, but not before the caches are full.
"""

from __future__ import annotations

import argparse
import http.client
import json
import logging
import math
import os
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from focalroute.sim import SimulatedPool, default_models
from focalroute.sim.process import pool_toml
from tests.benchmarks.chaos import faults
from tests.benchmarks.harness import growth
from tests.server.running import started

FILLED = 10_000  # after this many asks all caches are full: the latest 4,096 answers, the store's pages
CALLERS = 8
SIZE, SECONDS = 200_000, 1.0  # characters of large replies, delay of slow ones
SETTINGS = "\n[ensemble]\ndeadline_s = 2\n"

#: Fixed thresholds make glibc give memory back. By default it raises them as larger blocks come, and then keeps more
#: for later after each rise of the load, which looks like a leak from outside.
MALLOC = {"MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_MMAP_THRESHOLD_": "131072"}


class Load:
    """Callers that ask until they are stopped, together at most ``rate`` times per second."""

    def __init__(self, url: str, rate: float) -> None:
        self._place = urlsplit(url).netloc
        self._rate = rate / CALLERS
        self._stop = threading.Event()
        self.ended: Counter[str] = Counter()
        self._callers = [threading.Thread(target=self._work, args=(number,)) for number in range(CALLERS)]
        for caller in self._callers:
            caller.start()

    def stop(self) -> None:
        """Let them finish."""
        self._stop.set()
        for caller in self._callers:
            caller.join()

    def _work(self, number: int) -> None:
        rng = random.Random(number)
        while not self._stop.wait(rng.expovariate(self._rate)):
            kind = rng.choices(("ask", "stream", "hang up"), (6, 3, 1))[0]
            try:
                self.ended[f"{kind}: {self._ask(kind, rng)}"] += 1
            except (OSError, http.client.HTTPException) as error:
                self.ended[f"{kind}: {type(error).__name__}"] += 1

    def _ask(self, kind: str, rng: random.Random) -> int:
        a, b = rng.randrange(50), rng.randrange(50)
        body: dict[str, object] = {
            "model": "focalroute",
            "messages": [{"role": "user", "content": f"What is {a} + {b}?"}],
            "stream": kind == "stream",
        }
        if kind != "stream":
            body["focalroute"] = {"choices": [str(a + b), str(a + b + 1)]}
        connection = http.client.HTTPConnection(self._place, timeout=60)
        try:
            status, said = self._post(connection, "/v1/chat/completions", body, read=kind != "hang up")
            if kind == "ask" and status == 200:
                self._post(connection, "/v1/feedback", {"id": json.loads(said)["id"], "label": str(a + b)})
            return status
        finally:
            connection.close()

    def _post(
        self, connection: http.client.HTTPConnection, path: str, body: object, *, read: bool = True
    ) -> tuple[int, bytes]:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        if not read:
            return 0, b""
        response = connection.getresponse()
        return response.status, response.read()


def measured(process: int) -> tuple[float, int, int]:
    """Return a process's memory in MiB (without mapped files, such as the store), open files and threads."""
    place = Path(f"/proc/{process}")
    said = dict(line.split(":", 1) for line in (place / "status").read_text().splitlines())
    return int(said["RssAnon"].split()[0]) / 1024, len(list((place / "fd").iterdir())), int(said["Threads"])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run it and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=math.inf, help="asks per second; default: as many as possible")
    given = parser.parse_args(arguments)
    seconds = 60 * given.minutes
    logging.disable(logging.ERROR)  # the simulated services log clients that hang up
    struck = [
        replace(fault, size=SIZE, seconds=SECONDS, probability=fault.probability if fault.kind != "hang" else 0.002)
        for fault in faults(0.3)
    ]
    pool = SimulatedPool(default_models())
    with tempfile.TemporaryDirectory() as folder, pool:
        for model in pool.models:
            pool.set(model.name, faults=struck)
        path = Path(folder) / "pool.toml"
        path.write_text(pool_toml(pool.endpoints) + SETTINGS)
        with started(path, "--store", str(Path(folder) / "s.db"), env={**os.environ, **MALLOC}) as (server, url):
            threading.Thread(target=lambda: server.stderr and server.stderr.read(), daemon=True).start()
            load, seen = Load(url, given.rate), list[tuple[float, int, int]]()
            filled, begun, shown = 0, time.monotonic(), -1.0
            print("| s | asks | MiB | open files | threads |\n|---|---|---|---|---|")
            while (passed := time.monotonic() - begun) < seconds:
                seen.append(measured(server.pid))
                asks = load.ended.total()
                if not filled and asks >= FILLED and passed >= seconds / 3:
                    filled = len(seen)
                if passed - shown >= seconds / 20:
                    shown = passed
                    mib, files, threads = seen[-1]
                    print(f"| {passed:.0f} | {asks:,} | {mib:.1f} | {files} | {threads} |", flush=True)
                time.sleep(0.25)
            load.stop()
            server.terminate()
            with suppress(Exception):
                server.wait(60)
    print(f"\nends: {dict(load.ended.most_common())}")
    assert load.ended["ask: 200"] > 0.5 * sum(load.ended[name] for name in load.ended if name.startswith("ask"))
    assert filled, f"too short to tell: only {load.ended.total()} asks; give more --minutes"
    growing = []
    for name, values in zip(("memory", "open files", "threads"), zip(*seen[filled:], strict=True), strict=True):
        share, sure = growth(values)
        print(f"{name}: {share:+.2%} after the warm-up{', and surely growing' if sure else ''}")
        growing += [name] if sure else []
    assert not growing, growing


if __name__ == "__main__":
    main()
