"""How long the calls to one endpoint take: its own recent quantiles."""

from __future__ import annotations

from collections import deque

_KEPT = 128
_FEWEST = 20
_RENEWED_EVERY = 16  # sorting is cheap, but not for every call


class Latencies:
    """The latest 128 latencies of one endpoint, seconds. Adding one costs well under a microsecond."""

    def __init__(self) -> None:
        self._kept: deque[float] = deque(maxlen=_KEPT)
        self._sorted: list[float] = []
        self._since = 0

    def add(self, latency_s: float) -> None:
        """A call was answered after so long."""
        self._kept.append(latency_s)
        self._since += 1

    def quantile(self, share: float) -> float | None:
        """The latency that this share of calls does not pass; None before 20 calls were answered."""
        if len(self._kept) < _FEWEST:
            return None
        if not self._sorted or self._since >= _RENEWED_EVERY:
            self._sorted, self._since = sorted(self._kept), 0
        return self._sorted[min(int(share * len(self._sorted)), len(self._sorted) - 1)]
