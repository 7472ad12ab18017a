"""Circuit breakers: put failing endpoints out of use for a while, and find out when they are back.

Outlier detection after Envoy's (https://www.envoyproxy.io/docs/envoy/latest/intro/arch_overview/upstream/outlier):

- An endpoint is ejected after five failures in a row, or if its calls are bad significantly more often than those of
  the rest of the pool. A call is bad if it fails, or takes much longer than the endpoint's own median.
- A call under way that is already much too slow counts as failed if other endpoints answer meanwhile. So an endpoint
  that hangs is ejected before its calls time out.
- It is out for a time that doubles with every ejection. Then single trial calls in the background find out whether it
  is back.
- At most three quarters of a pool are out, and never its last endpoint.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from focalroute.core.records import Failure

_KEPT = 128
_FEWEST = 20
_SORT_EVERY = 16  # calls


class Latencies:
    """The latest 128 latencies of one endpoint, seconds. Adding one costs well under a microsecond."""

    def __init__(self) -> None:
        self._kept: deque[float] = deque(maxlen=_KEPT)
        self._sorted: list[float] = []
        self._since_sorted = 0

    def add(self, latency_s: float) -> None:
        """Add the latency of an answered call."""
        self._kept.append(latency_s)
        self._since_sorted += 1

    def add_cancelled(self, after_s: float) -> None:
        """Add a call that was cancelled after this time, with the latency that was expected of it."""
        left_s = self.expected_left(after_s)
        self.add(after_s + (after_s if left_s is None else left_s))

    def quantile(self, share: float, fewest: int = _FEWEST) -> float | None:
        """Return the latency that this share of calls does not exceed; None before enough calls were answered."""
        if len(self._kept) < fewest:
            return None
        if self._since_sorted >= _SORT_EVERY or 2 * len(self._sorted) < len(self._kept):
            self._sorted, self._since_sorted = sorted(self._kept), 0
        return self._sorted[min(int(share * len(self._sorted)), len(self._sorted) - 1)]

    def expected_left(self, after_s: float = 0.0, scale: float = 1.0) -> float | None:
        """Return how many more seconds a call is expected to take; None: nothing is known.

        This is the mean over the kept calls that took longer. If none did, the call is expected to take as long again.

        Args:
            after_s: how long the call has taken so far.
            scale: the length of its answer, as a multiple of the usual one.
        """
        if not self._kept:
            return None
        longer = [scale * latency_s - after_s for latency_s in tuple(self._kept) if scale * latency_s > after_s]
        return sum(longer) / len(longer) if longer else after_s


State = Literal["closed", "open", "half-open"]

_REFUSED = (400, 413, 422)
_IN_A_ROW = 5
_REMEMBERED = 64  # calls, as the bits of an integer
_ALL = (1 << _REMEMBERED) - 1
_ENOUGH = 20  # calls before a share of bad calls means anything
_BAD_SHARE = 0.5
_SIGMAS = 3.0
_SLOW_FACTOR, _SLOW_S = 5.0, 1.0  # slow: this many times its own median, and at least this long
_NEARLY_ALL, _LATE_FACTOR = 0.95, 1.5  # late: slower than 1.5 times the 95 % quantile of its own calls
_FIRST_S, _LONGEST_S = 2.0, 30.0
_TRIAL_S = 120.0  # longer than a trial call takes, with its wait for the rate limits
_DOUBLINGS = 10  # enough to reach the longest time; more would overflow a float after hours of outage
_RELAPSE_S = 60.0  # an endpoint ejected again this soon after its return is out for longer than the last time
_MOST_OUT = 0.75
_SAME_S = 0.01  # a stored change this close to our latest one is that one, read back

Clock = Callable[[], float]


@dataclass(slots=True, eq=False)
class InFlightCall:
    """A call under way: when it began, in the clock's time, and whether it has been counted as failed already."""

    began: float
    counted: bool = False


class Breaker:
    """One endpoint's breaker. Safe to use from several threads; a call that went well takes no lock.

    Attributes:
        latencies: of its calls that were answered.
        ejections: how often in a row it was ejected within a minute of its return.
        changed_at: when its state last changed, in the clock's time.
        last_success: when the latest of its successful calls began, in the clock's time.
    """

    def __init__(self, pool: Breakers) -> None:
        self.latencies = Latencies()
        self.ejections = 0
        self.changed_at = self.last_success = -math.inf
        self._pool = pool
        self._lock = pool.lock
        self._open_until: float | None = None
        self._failures = 0  # in a row
        self._history = 0  # a bit for each of the latest calls, 1 for a bad one
        self._calls = 0  # in the history
        self._waited_s = 0.0  # the longest wait for a call that timed out, since the latest successful one
        self._in_flight: dict[InFlightCall, None] = {}  # in the order in which they began
        self._trial_until = -math.inf  # by then a claimed trial has ended, unless its event loop was closed
        self._ever_succeeded = False

    @property
    def allows(self) -> bool:
        """Whether asks may call it: it is closed."""
        return self._open_until is None

    @property
    def state(self) -> State:
        """The state now; half-open: a trial call is due, or under way."""
        if self._open_until is None:
            return "closed"
        return "half-open" if self._pool.clock() >= self._open_until else "open"

    @property
    def left_s(self) -> float:
        """Seconds until a trial call is due; 0 if it is closed."""
        return 0.0 if self._open_until is None else max(0.0, self._open_until - self._pool.clock())

    @property
    def failure_share(self) -> float:
        """The share of its latest calls, at most 64, that failed or were much too slow."""
        return self._history.bit_count() / self._calls if self._calls else 0.0

    # -- calls -------------------------------------------------------------------------------------------------------

    def enter(self) -> InFlightCall:
        """Register a call that begins; `leave` must follow."""
        in_flight = InFlightCall(self._pool.clock())
        self._in_flight[in_flight] = None
        return in_flight

    def count_overdue(self) -> None:
        """Count calls under way that are already much too slow as failed, if other endpoints answer meanwhile."""
        for in_flight in self.overdue():
            if not in_flight.counted and self._pool.others_answer(self, in_flight.began):
                in_flight.counted = True
                self._count_bad(failed=True)

    def overdue(self) -> list[InFlightCall]:
        """Return the calls under way that are already much too slow."""
        if not self._in_flight:
            return []
        calls, now = tuple(self._in_flight), self._pool.clock()
        if not calls or now - calls[0].began < _SLOW_S:  # the oldest comes first
            return []
        return [call for call in calls if self._slow(now - call.began)]

    def late(self, silent_s: float, answered_s: float) -> bool:
        """Whether a call has been silent for at least a second, and much longer than nearly all calls take.

        Args:
            silent_s: how long it has been silent.
            answered_s: the longest that another endpoint took to answer the same query; 0: none has answered. That
                one must have been much faster, as a slow query is slow at every endpoint.
        """
        usual_s = self.latencies.quantile(_NEARLY_ALL)
        if usual_s is None or not answered_s:
            return False
        return silent_s > max(_LATE_FACTOR * max(usual_s, answered_s), _SLOW_S)

    def leave(self, in_flight: InFlightCall, failure: Failure | None, *, blameless: bool = False) -> None:
        """Register the end of a call; ``blameless``: its failure says nothing about the endpoint.

        Nor do these count as faults: a reply that cannot be used; a call that we cancelled, unless it was much too
        slow; and, once a call has succeeded, a request refused for its content, as one caller's parameters must not
        close the endpoint to all.
        """
        self._in_flight.pop(in_flight, None)
        latency_s = self._pool.clock() - in_flight.began
        if blameless:
            return
        if failure is None or failure.kind == "unusable":
            self._count_success(in_flight.began, latency_s)
            return
        if failure.kind == "timeout":
            self._waited_s = max(self._waited_s, latency_s)
        if in_flight.counted:
            return
        if failure.kind == "cancelled":
            if self._slow(latency_s):
                self._count_bad(failed=False)
        elif not (self._ever_succeeded and failure.status in _REFUSED):
            self._count_bad(failed=True)

    def _count_success(self, began: float, latency_s: float) -> None:
        self._ever_succeeded, self._waited_s = True, 0.0
        self.last_success = max(self.last_success, began)
        slow = self._slow(latency_s)
        self.latencies.add(latency_s)
        if self._open_until is not None:
            if began > self.changed_at:
                self._close()
        elif slow:
            self._count_bad(failed=False)
        else:
            self._failures = 0
            self._remember(0)

    def _slow(self, latency_s: float) -> bool:
        if latency_s < _SLOW_S:
            return False
        median = self.latencies.quantile(0.5)
        return median is not None and latency_s > _SLOW_FACTOR * median

    def _remember(self, bad: int) -> None:
        self._history = (self._history << 1 | bad) & _ALL
        if self._calls < _REMEMBERED:
            self._calls += 1

    def _count_bad(self, *, failed: bool) -> None:
        """Count a call that failed, or was only slow, and eject the endpoint if that makes it an outlier."""
        with self._lock:
            if self._open_until is not None:
                return  # the call had begun before it opened
            self._failures += failed
            self._remember(1)
            if (self._failures >= _IN_A_ROW or self._worse_than_others()) and self._pool.may_eject():
                self._open()

    def _worse_than_others(self) -> bool:
        """Whether at least half of its calls are bad, significantly more than others' (two proportions, 3 sigma)."""
        bad, calls = self._history.bit_count(), self._calls
        if calls < _ENOUGH or bad < _BAD_SHARE * calls:
            return False
        others = [breaker for breaker in self._pool.all if breaker is not self]
        others_bad = sum(breaker._history.bit_count() for breaker in others)
        others_calls = sum(breaker._calls for breaker in others)
        if not others_calls:
            return False
        both = (bad + others_bad) / (calls + others_calls)
        spread = math.sqrt(both * (1 - both) * (1 / calls + 1 / others_calls))
        return bad / calls - others_bad / others_calls > _SIGMAS * spread

    # -- ejection and return -----------------------------------------------------------------------------------------

    def _open(self) -> None:
        now = self._pool.clock()
        relapse = self.ejections and (self._open_until is not None or now - self.changed_at < _RELAPSE_S)
        self.ejections = self.ejections + 1 if relapse else 1
        self._set(now + min(_FIRST_S * 2 ** min(self.ejections - 1, _DOUBLINGS), _LONGEST_S), now)
        self._pool.changed(self)

    def _close(self) -> None:
        with self._lock:
            if self._open_until is None:
                return
            self._set(None, self._pool.clock())
            self._pool.changed(self)

    def _set(self, open_until: float | None, now: float) -> None:
        self._open_until, self.changed_at = open_until, now
        self._failures, self._history, self._calls = 0, 0, 0

    def claim_trial(self) -> bool:
        """Claim the trial call; False: none is due, or another caller has it. `end_trial` must follow a claim."""
        now = self._pool.clock()
        if self._open_until is None or now < max(self._open_until, self._trial_until):
            return False
        if self._trial_until > -math.inf:  # the last trial never ended, as its event loop was closed
            self.drop_trial()
            return False
        with self._lock:
            claimed = now >= self._trial_until
            self._trial_until = now + _TRIAL_S
        return claimed

    def drop_trial(self) -> None:
        """Close the breaker after a trial without a result: asks try the endpoint, and one failure ejects it again."""
        with self._lock:
            self._trial_until = -math.inf
            if self._open_until is not None:
                self._set(None, self._pool.clock())
                self._failures = _IN_A_ROW - 1

    def end_trial(self, succeeded: bool | None) -> None:
        """Apply a trial call's result: the endpoint is back (True), or out for longer (False); None: there is none.

        If it is back, the longest wait that timed out counts as a latency: its calls may take at least that long.
        """
        self._trial_until = -math.inf
        if succeeded:
            if self._waited_s:
                self.latencies.add(self._waited_s)
                self._waited_s = 0.0
            self._close()
        elif succeeded is False:
            with self._lock:
                if self._open_until is not None:
                    self._open()

    def on_remote_change(self, open_for_s: float | None, ejections: int, since: float) -> None:
        """Adopt the state that another process stored at ``since``, if it is newer; ``open_for_s`` None: closed."""
        with self._lock:
            if since <= self.changed_at + _SAME_S or (open_for_s is None and self._open_until is None):
                return
            if open_for_s is not None and self._open_until is None and not self._pool.may_eject():
                return
            self.ejections = ejections
            # bounded, as the other process's clock may differ
            self._set(None if open_for_s is None else self._pool.clock() + min(open_for_s, _LONGEST_S), since)


class Breakers:
    """The breakers of a pool. They are compared with each other, and only some may be open.

    Args:
        size: how many endpoints the pool has.
        on_change: called with a breaker's index and the breaker when it opens or closes because of calls in this
            process.
    """

    def __init__(
        self, size: int, on_change: Callable[[int, Breaker], None] | None = None, clock: Clock = time.monotonic
    ) -> None:
        self.clock = clock
        self.lock = threading.Lock()  # one for all: two ejected at once could be the last two
        self._on_change = on_change
        self._most_out = min(size - 1, max(1, int(_MOST_OUT * size)))
        self.all = tuple(Breaker(self) for _ in range(size))

    def may_eject(self) -> bool:
        """Whether one more may be ejected."""
        return sum(not breaker.allows for breaker in self.all) < self._most_out

    def others_answer(self, one: Breaker, since: float) -> bool:
        """Whether others have answered calls that began after ``since``, and none of their calls is much too slow.

        If calls are slow at several endpoints, the question is the likely reason.
        """
        others = [breaker for breaker in self.all if breaker is not one and breaker.allows]
        return any(other.last_success > since for other in others) and not any(other.overdue() for other in others)

    def changed(self, breaker: Breaker) -> None:
        """Report that a breaker opened or closed."""
        if self._on_change is not None:
            self._on_change(self.all.index(breaker), breaker)
