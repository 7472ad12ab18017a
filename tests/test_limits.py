"""The breaker, with a clock that the test moves."""

from __future__ import annotations

import threading

import pytest

from focalroute.limits import Breaker
from focalroute.records import Failure

FAULT = Failure("connection", "refused")


class Bench:
    """A breaker and its clock."""

    def __init__(self, threshold: int = 3) -> None:
        self.now = 0.0
        self.breaker = Breaker(threshold, cooldown_s=2.0, max_cooldown_s=10.0, clock=lambda: self.now)

    def call(self, failure: Failure | None = FAULT, times: int = 1) -> None:
        for _ in range(times):
            self.breaker.enter()
            self.breaker.leave(failure)

    def cooldown(self) -> float:
        """How long it stays open from now."""
        start = self.now
        while self.breaker.state == "open":
            self.now += 0.5
        lasted, self.now = self.now - start, start
        return lasted


def test_it_opens_after_so_many_failures_in_a_row() -> None:
    bench = Bench()
    bench.call(times=2)
    assert (bench.breaker.state, bench.breaker.allows) == ("closed", True)
    bench.call()
    assert (bench.breaker.state, bench.breaker.allows) == ("open", False)


def test_a_success_in_between_starts_the_count_anew() -> None:
    bench = Bench()
    bench.call(times=2)
    bench.call(None)
    bench.call(times=2)
    assert bench.breaker.state == "closed"


@pytest.mark.parametrize("kind", ["connection", "timeout", "status", "protocol"])
def test_every_fault_of_the_endpoint_counts(kind: str) -> None:
    bench = Bench()
    bench.call(Failure(kind, ""), times=3)  # type: ignore[arg-type]
    assert bench.breaker.state == "open"


def test_an_unusable_reply_is_a_sign_of_life() -> None:
    bench = Bench()
    for _ in range(4):
        bench.call(times=2)
        bench.call(Failure("unusable", "no answer in it"))
    assert bench.breaker.state == "closed"


def test_a_cancelled_call_says_nothing_either_way() -> None:
    bench = Bench()
    bench.call(times=2)
    bench.call(Failure("cancelled", ""), times=9)
    assert bench.breaker.allows
    bench.call()
    assert bench.breaker.state == "open"


def test_after_the_cooldown_one_call_at_a_time_passes() -> None:
    bench = Bench()
    bench.call(times=3)
    bench.now = 1.9
    assert bench.breaker.state == "open"
    bench.now = 2.0
    assert (bench.breaker.state, bench.breaker.allows) == ("half-open", True)
    bench.breaker.enter()
    assert (bench.breaker.state, bench.breaker.allows) == ("half-open", False)


def test_a_probe_that_succeeds_closes_it_and_forgets_the_past() -> None:
    bench = Bench()
    bench.call(times=3)
    bench.now = 2.0
    bench.call()
    assert bench.cooldown() == 4.0
    bench.now = 6.0
    bench.call(None)
    assert (bench.breaker.state, bench.breaker.allows) == ("closed", True)
    bench.call(times=2)
    assert bench.breaker.allows
    bench.call()
    assert bench.cooldown() == 2.0


def test_every_failed_probe_doubles_the_cooldown_up_to_its_bound() -> None:
    bench = Bench()
    bench.call(times=3)
    lasted = []
    for _ in range(5):
        lasted.append(bench.cooldown())
        bench.now += lasted[-1]
        bench.call()
        assert bench.breaker.state == "open"
    assert lasted == [2.0, 4.0, 8.0, 10.0, 10.0]


def test_a_cancelled_probe_leaves_the_place_to_the_next() -> None:
    bench = Bench()
    bench.call(times=3)
    bench.now = 2.0
    bench.call(Failure("cancelled", ""))
    assert (bench.breaker.state, bench.breaker.allows) == ("half-open", True)


def test_calls_that_began_before_it_opened_do_not_prolong_it() -> None:
    """64 calls under way when an endpoint dies are one outage, not 61 failed probes."""
    bench = Bench()
    for _ in range(64):
        bench.breaker.enter()
    for _ in range(64):
        bench.breaker.leave(FAULT)
    assert bench.cooldown() == 2.0


def test_a_call_tried_while_everything_is_open_counts_as_a_probe() -> None:
    bench = Bench()
    bench.call(times=3)
    bench.call(None)
    assert bench.breaker.state == "closed"


@pytest.mark.parametrize(("threshold", "state"), [(2000, "open"), (2001, "closed")])
def test_no_failure_is_lost_between_threads(threshold: int, state: str) -> None:
    bench = Bench(threshold)
    ready = threading.Barrier(4)

    def work() -> None:
        ready.wait()
        bench.call(times=500)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bench.breaker.state == state


def test_a_retry_right_after_a_failed_probe_does_not_prolong_the_outage() -> None:
    bench = Bench()
    bench.call(times=3)
    bench.now = 2.0
    bench.call(times=3)  # the probe, and two retries of the same ask
    assert bench.cooldown() == 4.0
