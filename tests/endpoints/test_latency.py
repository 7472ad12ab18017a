"""The recent quantiles of one endpoint's latencies."""

from __future__ import annotations

from focalroute.endpoints.latency import Latencies


def test_quantiles_are_of_the_latest_calls_and_unknown_before_there_are_some() -> None:
    latencies = Latencies()
    for i in range(19):
        latencies.add(i / 10)
    assert latencies.quantile(0.5) is None
    latencies.add(1.9)
    assert latencies.quantile(0.5) == 1.0
    assert latencies.quantile(0.95) == 1.9
    for _ in range(144):
        latencies.add(7.0)
    assert latencies.quantile(0.5) == 7.0
    assert latencies.quantile(0.95) == 7.0
