"""The server's counters, in Prometheus's text format."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from focalroute.core.receipts import Call
from focalroute.core.records import Reply

CONTENT_TYPE = CONTENT_TYPE_LATEST

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class Metrics:
    """The counters of one server. Labels hold names of callers and endpoints, but nothing of a prompt or a key.

    Attributes:
        under_way: asks under way.
    """

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "focalroute_requests", "Requests answered, 499 if the client went away.", ["path", "status"],
            registry=registry,
        )  # fmt: skip
        self.under_way = 0
        gauge = Gauge("focalroute_asks_under_way", "Asks under way.", registry=registry)
        gauge.set_function(lambda: self.under_way)
        self._seconds = Histogram("focalroute_ask_seconds", "Duration of asks.", registry=registry, buckets=_SECONDS)
        self._cost = Counter("focalroute_cost_usd", "Known cost of asks, USD.", ["caller"], registry=registry)
        self._calls = Counter(
            "focalroute_calls", 'Calls to endpoints; outcome "ok" or the kind of failure.',
            ["endpoint", "outcome"], registry=registry,
        )  # fmt: skip
        self._tokens = Counter("focalroute_tokens", "Tokens of these calls.", ["endpoint", "type"], registry=registry)

    def begin(self) -> None:
        """Count an ask that begins."""
        self.under_way += 1

    def end(self, seconds: float) -> None:
        """Count an ask that ended, answered or not."""
        self.under_way -= 1
        self._seconds.observe(seconds)

    def request(self, path: str, status: int) -> None:
        """Count a request that was answered."""
        self._requests.labels(path, str(status)).inc()

    def paid(self, cost: Decimal, caller: str) -> None:
        """Count the cost of an ask, answered or not."""
        self._cost.labels(caller).inc(float(cost))

    def called(self, calls: Iterable[Call | Reply]) -> None:
        """Count the calls of an ask."""
        for call in calls:
            self._calls.labels(call.endpoint, "ok" if call.error is None else call.error.kind).inc()
            if call.usage is not None:
                self._tokens.labels(call.endpoint, "input").inc(call.usage.prompt_tokens)
                self._tokens.labels(call.endpoint, "output").inc(call.usage.completion_tokens)

    def text(self) -> bytes:
        """Return all counters as text."""
        return generate_latest(self._registry)
