"""The breakers of a pool, with a clock that the test moves."""

from __future__ import annotations

import threading
from random import Random

import pytest

from focalroute.core.records import Failure
from focalroute.endpoints.breaker import Breaker, Breakers, Latencies

FAULT = Failure("connection", "refused")


class Bench:
    """The breakers of a pool of four and their clock; ``breaker`` is the first."""

    def __init__(self, size: int = 4) -> None:
        self.now = 1000.0
        self.changes: list[tuple[int, str]] = []
        self.pool = Breakers(size, self.heard, clock=lambda: self.now)
        self.breaker = self.pool.all[0]

    def heard(self, index: int, breaker: Breaker) -> None:
        self.changes.append((index, breaker.state))

    def call(self, failure: Failure | None = FAULT, times: int = 1, which: int = 0, latency_s: float = 0.1) -> None:
        for _ in range(times):
            in_flight = self.pool.all[which].enter()
            in_flight.began -= latency_s
            self.pool.all[which].leave(in_flight, failure)

    def out_s(self) -> float:
        """How long it stays out from now."""
        return self.breaker.left_s

    def probe(self, well: bool | None) -> None:
        """Wait until a probe is due, and make it."""
        self.now += self.breaker.left_s
        assert self.breaker.claim_trial()
        self.breaker.end_trial(well)


def test_it_opens_after_five_failures_in_a_row() -> None:
    bench = Bench()
    bench.call(times=4)
    assert (bench.breaker.state, bench.breaker.allows) == ("closed", True)
    bench.call()
    assert (bench.breaker.state, bench.breaker.allows) == ("open", False)
    assert bench.changes == [(0, "open")]


def test_an_endpoint_that_was_given_up_but_answers_a_probe_is_known_to_be_slower() -> None:
    """Else it would be given up for ever, as too slow for what is known of others."""
    bench = Bench()
    for seconds in (4.0, 6.0, 5.0, 4.0, 4.0):
        bench.call(Failure("timeout", "silent"), latency_s=seconds)
    bench.probe(well=False)
    assert bench.breaker.latencies.quantile(0.75, 1) is None
    bench.probe(well=True)
    assert bench.breaker.latencies.quantile(0.75, 1) == 6
    bench.call(None)
    bench.call(times=5)
    bench.probe(well=True)
    assert bench.breaker.latencies.quantile(1.0, 3) is None  # the six seconds and one call


def test_a_success_in_between_starts_the_count_anew() -> None:
    bench = Bench()
    bench.call(times=4)
    bench.call(None)
    bench.call(times=4)
    assert bench.breaker.state == "closed"


@pytest.mark.parametrize("kind", ["connection", "timeout", "status", "protocol"])
def test_every_fault_of_the_endpoint_counts(kind: str) -> None:
    bench = Bench()
    bench.call(Failure(kind, ""), times=5)  # type: ignore[arg-type]
    assert bench.breaker.state == "open"


@pytest.mark.parametrize("failure", [Failure("unusable", "no answer in it"), Failure("cancelled", ""), None])
def test_replies_that_are_not_faults_do_not_open_it(failure: Failure | None) -> None:
    bench = Bench()
    bench.call(times=4)
    bench.call(failure, times=9)
    assert bench.breaker.state == "closed"


def test_a_cancelled_call_says_nothing_either_way() -> None:
    bench = Bench()
    bench.call(times=4)
    bench.call(Failure("cancelled", ""), times=9)
    bench.call()
    assert bench.breaker.state == "open"


def test_refused_parameters_count_only_against_an_endpoint_that_never_took_any() -> None:
    bench = Bench()
    bench.call(None)
    bench.call(Failure("status", "", 400), times=9)
    assert bench.breaker.state == "closed"
    bench.call(Failure("status", "", 400), times=5, which=1)
    assert bench.pool.all[1].state == "open"


@pytest.mark.parametrize("others", ["silent", "slow too"])
def test_a_question_on_which_all_are_slow_ejects_none(others: str) -> None:
    bench = Bench()
    for which in (0, 1):
        bench.call(None, 20, which, latency_s=0.3)
    for which in (0, 1) if others == "slow too" else (0,):
        for _ in range(9):
            bench.pool.all[which].enter()
    bench.now += 5
    if others == "slow too":
        bench.call(None, 1, which=2)
    for breaker in bench.pool.all:
        breaker.count_overdue()
    assert bench.changes == []


# -- worse than the others ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("others", "state"), [("well", "open"), ("as badly", "closed")])
def test_an_endpoint_that_fails_significantly_more_often_than_the_others_is_out(others: str, state: str) -> None:
    """Two of three calls fail, never five in a row. Where all others do as badly, the fault is not its own."""
    bench = Bench()
    for _ in range(30):
        for which in range(4):
            failure = FAULT if which == 0 or others == "as badly" else None
            bench.call(failure, 2, which)
            bench.call(None, 1, which)
    assert ("open" in [state for _, state in bench.changes]) == (state == "open")
    assert all(breaker.state == "closed" for breaker in bench.pool.all[1:])


def test_a_share_of_failures_that_is_usual_does_not_open_it() -> None:
    """Three of ten fail everywhere."""
    bench = Bench()
    for number in range(400):
        bench.call(FAULT if number % 10 in (1, 4, 7) else None, which=number % 4)
    assert bench.changes == []


def test_an_endpoint_much_slower_than_its_own_record_is_out_unless_all_are() -> None:
    def slowed(which: tuple[int, ...]) -> list[str]:
        bench = Bench()
        for i in range(4):
            bench.call(None, 60, i, latency_s=0.4)
        for _ in range(60):
            for i in range(4):
                bench.call(None, 1, i, latency_s=3.0 if i in which else 0.4)
        return [state for _, state in bench.changes]

    assert slowed((0,))[:1] == ["open"]
    assert slowed((0, 1, 2, 3)) == []
    assert slowed(()) == []


def test_slow_but_below_a_second_is_not_slow() -> None:
    bench = Bench()
    for i in range(4):
        bench.call(None, 60, i, latency_s=0.01)
    bench.call(None, 64, latency_s=0.9)
    assert bench.changes == []


@pytest.mark.parametrize("deadline_s", [1.5, 2.5, 4.0])
def test_deadlines_that_cut_off_a_heavy_tail_do_not_open_it(deadline_s: float) -> None:
    """Log-normal around a second: a third, a sixth or a twelfth of the calls take longer."""
    bench, random = Bench(), Random(0)
    for _ in range(5000):
        took_s = random.lognormvariate(0.0, 1.0)
        if took_s <= deadline_s:
            bench.call(None, latency_s=took_s)
        else:
            late = bench.breaker.late(deadline_s, 0.1)
            bench.call(Failure("timeout" if late else "cancelled", ""), latency_s=deadline_s)
        bench.call(None, which=1)
    assert bench.changes == []


def test_an_outage_of_hours_is_probed_as_seldom_as_one_of_minutes() -> None:
    bench = Bench()
    bench.call(times=5)
    for _ in range(1100):
        bench.probe(False)
    assert (bench.breaker.ejections, bench.out_s()) == (1101, 30)


# -- out and back ------------------------------------------------------------------------------------------------------


def test_when_the_time_is_up_one_probe_at_a_time_finds_out() -> None:
    bench = Bench()
    bench.call(times=5)
    bench.now += 1.9
    assert bench.breaker.state == "open"
    assert not bench.breaker.claim_trial()
    bench.now += 0.1
    assert (bench.breaker.state, bench.breaker.allows) == ("half-open", False)
    assert bench.breaker.claim_trial()
    assert not bench.breaker.claim_trial()
    bench.breaker.end_trial(True)
    assert (bench.breaker.state, bench.breaker.allows) == ("closed", True)
    assert bench.changes == [(0, "open"), (0, "closed")]


def test_every_failed_probe_doubles_the_time_up_to_half_a_minute() -> None:
    bench = Bench()
    bench.call(times=5)
    lasted = [bench.out_s()]
    for _ in range(5):
        bench.probe(False)
        lasted.append(bench.out_s())
    assert lasted == [2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


@pytest.mark.parametrize(("later_s", "lasts_s"), [(59.0, 4.0), (61.0, 2.0)])
def test_an_endpoint_that_fails_again_within_a_minute_is_out_for_longer(later_s: float, lasts_s: float) -> None:
    bench = Bench()
    bench.call(times=5)
    bench.probe(True)
    bench.now += later_s
    bench.call(times=5)
    assert bench.out_s() == lasts_s


def test_a_probe_from_which_nothing_was_learned_leaves_the_place_to_the_next() -> None:
    bench = Bench()
    bench.call(times=5)
    bench.probe(None)
    assert bench.breaker.state == "half-open"
    bench.probe(True)
    assert bench.breaker.allows


@pytest.mark.parametrize("cancelled", [True, False])
def test_a_probe_whose_event_loop_ends_leaves_it_to_the_next_call(cancelled: bool) -> None:
    """Where every ask has a loop of its own, no probe may ever end. The other processes make probes of their own."""
    bench = Bench()
    bench.call(times=5)
    bench.now += 2
    assert bench.breaker.claim_trial()
    if cancelled:
        bench.breaker.drop_trial()
    else:
        bench.now += 120
        assert not bench.breaker.claim_trial()
    assert bench.breaker.allows
    bench.call(times=1)
    assert (bench.breaker.state, bench.out_s()) == ("open", 4)
    assert bench.changes == [(0, "open"), (0, "open")]


def test_calls_that_began_before_it_opened_do_not_prolong_it() -> None:
    """64 calls under way when an endpoint dies are one outage, not 61 failed probes."""
    bench = Bench()
    bench.call(times=64)
    assert bench.out_s() == 2.0


def test_a_call_that_began_while_it_was_open_and_succeeds_closes_it() -> None:
    bench = Bench()
    bench.call(times=5)
    bench.call(None)  # it had begun before
    assert bench.breaker.state == "open"
    bench.now += 1
    bench.call(None)
    assert bench.breaker.allows


def test_calls_under_way_that_are_much_too_slow_count_before_they_end() -> None:
    bench = Bench()
    bench.call(None, 20, latency_s=0.3)
    calls = [bench.breaker.enter() for _ in range(5)]
    for later_s, state in ((1.4, "closed"), (0.2, "open")):
        bench.now += later_s
        bench.call(None, which=1)
        bench.breaker.count_overdue()
        assert bench.breaker.state == state
    bench.probe(True)
    for call in calls:  # each counts once, and says nothing of what came after
        bench.breaker.leave(call, Failure("timeout", ""))
    assert bench.breaker.allows
    assert bench.breaker.failure_share == 0


@pytest.mark.parametrize(("size", "most"), [(1, 0), (2, 1), (3, 2), (4, 3), (6, 4), (12, 9)])
def test_never_more_than_three_quarters_are_out_and_never_the_last(size: int, most: int) -> None:
    bench = Bench(size)
    for which in range(size):
        bench.call(times=50, which=which)
    assert sum(not breaker.allows for breaker in bench.pool.all) == most


def test_an_endpoint_that_may_not_be_ejected_yet_is_once_another_is_back() -> None:
    bench = Bench(2)
    bench.call(times=5)
    bench.call(times=9, which=1)
    assert bench.pool.all[1].allows
    bench.probe(True)
    bench.call(which=1)
    assert not bench.pool.all[1].allows


@pytest.mark.parametrize(("calls", "state"), [(4, "closed"), (5, "open")])
def test_no_failure_is_lost_between_threads(calls: int, state: str) -> None:
    for _ in range(30):
        bench = Bench()
        ready = threading.Barrier(calls)

        def work(ready: threading.Barrier = ready, bench: Bench = bench) -> None:
            ready.wait()
            bench.call()

        threads = [threading.Thread(target=work) for _ in range(calls)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert bench.breaker.state == state


# -- what other processes saw ------------------------------------------------------------------------------------------


def test_news_of_another_process_open_and_close_it() -> None:
    bench = Bench()
    bench.breaker.on_remote_change(3.0, 2, bench.now)
    assert (bench.breaker.state, bench.breaker.ejections, bench.out_s()) == ("open", 2, 3.0)
    bench.now += 1
    bench.breaker.on_remote_change(None, 2, bench.now)
    assert bench.breaker.state == "closed"
    assert bench.changes == []  # they know


def test_another_clock_puts_it_out_for_no_longer_than_its_own() -> None:
    bench = Bench()
    bench.breaker.on_remote_change(5000.0, 1, bench.now)
    assert bench.out_s() == 30


def test_older_news_than_its_own_are_none() -> None:
    bench = Bench()
    bench.call(times=5)
    bench.breaker.on_remote_change(None, 0, bench.now - 1)
    assert bench.breaker.state == "open"


def test_news_never_eject_the_last_endpoints() -> None:
    bench = Bench(2)
    bench.call(times=5)
    bench.pool.all[1].on_remote_change(5.0, 1, bench.now)
    assert bench.pool.all[1].allows


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
