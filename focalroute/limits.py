"""The circuit breaker of one endpoint."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Literal

from focalroute.records import Failure

__all__ = ["Breaker"]

_REFUSED = (400, 413, 422)


class Breaker:
    """Stops calls to an endpoint that keeps failing, and lets single probes find out when it is back.

    Closed until ``threshold`` calls in a row failed; then open for ``cooldown_s``, doubled at every failed probe up to
    ``max_cooldown_s``; then half-open: one call at a time passes, its success closes the breaker.
    """

    def __init__(
        self,
        threshold: int = 5,
        cooldown_s: float = 2.0,
        max_cooldown_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._threshold = threshold
        self._first_cooldown_s = cooldown_s
        self._max_cooldown_s = max_cooldown_s
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._cooldown_s = cooldown_s
        self._open_until: float | None = None
        self._probing = False
        self._proven = False  # whether any call ever succeeded

    @property
    def state(self) -> Literal["closed", "open", "half-open"]:
        """Where it stands now."""
        open_until = self._open_until
        if open_until is None:
            return "closed"
        return "half-open" if self._clock() >= open_until else "open"

    @property
    def allows(self) -> bool:
        """Whether a call may be made now."""
        open_until = self._open_until
        return open_until is None or (not self._probing and self._clock() >= open_until)

    def enter(self) -> None:
        """A call starts; while half-open it is the one probe. One that is tried while open (a retry) is none."""
        with self._lock:
            self._probing = self.state == "half-open"

    def leave(self, failure: Failure | None) -> None:
        """The call ended, with ``failure`` or well.

        A reply that cannot be used, or that we gave up, is no fault; nor is a request that was refused for what it
        asks, where others have been taken: one caller's parameters must not shut the endpoint for everybody.
        """
        with self._lock:
            probed, self._probing = self._probing, False
            if failure is None or failure.kind == "unusable":
                self._proven = True
                self._failures, self._open_until, self._cooldown_s = 0, None, self._first_cooldown_s
            elif failure.kind != "cancelled" and not (self._proven and failure.status in _REFUSED):
                self._count_failure(probed)

    def _count_failure(self, probed: bool) -> None:
        self._failures += 1
        if probed:
            self._cooldown_s = min(2 * self._cooldown_s, self._max_cooldown_s)
        elif self._open_until is not None or self._failures < self._threshold:
            return  # while open: the call had begun before it opened
        self._open_until = self._clock() + self._cooldown_s
