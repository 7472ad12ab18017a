"""The limits of one endpoint: concurrent calls, requests and tokens a minute, and the pauses that its service asks for.

Configured limits are kept. The limit on concurrent calls also adapts, as TCP does: a 429 halves it, and every success
adds 1 / limit. If even one call at a time gets a 429, and it asks for no wait, calls pause for a second. Each process
counts its own calls only.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from focalroute.core.config import Endpoint
from focalroute.core.errors import CallFailed
from focalroute.core.event_loops import PerLoop
from focalroute.core.records import Failure
from focalroute.endpoints.wire.refusals import span_s

_MINUTE_S = 60.0
_LONGEST_PAUSE_S = 60.0  # a service that asks for a longer pause is called again after this
_PAUSE_S = 1.0  # after a 429 that asks for no wait, once calls are made one at a time
_LOOK_AGAIN_S = 0.05  # between looks whether a pause was lifted
_CROWDED = 2.0  # the endpoint is not ready if calls under way and waiting reach this multiple of the limit
_LONGEST_VALUE = 64  # characters of a header; reading a span takes time quadratic in them


@dataclass(frozen=True, slots=True)
class Health:
    """An endpoint's health at one moment, as this process knows it.

    Attributes:
        breaker: "closed", "open" (out of use), "half-open" (a trial call is due or under way).
        probe_in_s: seconds until the next trial call; 0 if it is closed.
        ejections: how often in a row it was ejected within a minute of its return.
        failure_share: share of its latest calls, at most 64 since its last ejection, that failed or were much too slow.
        under_way: calls under way.
        concurrency: limit on calls under way, per event loop; None: no limit.
        paused_s: seconds until its service accepts calls again.
    """

    breaker: str
    probe_in_s: float
    ejections: int
    failure_share: float
    under_way: int
    concurrency: int | None
    paused_s: float


class Rolling:
    """A rate limit over a rolling minute: at most ``most`` (which may be changed) in any 60 seconds.

    A single use larger than ``most`` waits until it is the only one.
    """

    def __init__(self, most: float) -> None:
        self.most = most
        self._uses: deque[list[float]] = deque()  # [when, how much], in order of time; some are in the future
        self._total = 0.0

    def earliest(self, amount: float, now: float) -> float:
        """Return the earliest time at which this amount may be used."""
        while self._uses and self._uses[0][0] <= now - _MINUTE_S:
            self._total -= self._uses.popleft()[1]
        over = self._total + amount - self.most  # this much must have expired by then
        when = max(now, self._uses[-1][0]) if self._uses else now
        for used_at, used in self._uses:
            if over <= 0:
                break
            over -= used
            when = max(when, used_at + _MINUTE_S)
        return when

    def use(self, amount: float, when: float) -> list[float]:
        """Record a use at ``when``, which is not before the latest one; return its entry, for `correct`."""
        entry = [when, amount]
        self._uses.append(entry)
        self._total += amount
        return entry

    def correct(self, entry: list[float], amount: float) -> None:
        """Correct an entry to the amount that was really used."""
        if self._uses and entry[0] >= self._uses[0][0]:
            self._total += amount - entry[1]
            entry[1] = amount


@dataclass(slots=True)
class AdmittedCall:
    """A call between `Throttle.enter` and `Throttle.leave`.

    Attributes:
        started: when it was admitted (`time.monotonic`).
        trial: whether it tries, during a pause, if the service accepts calls again.
        uses: its entry in each rate limit.
    """

    started: float
    gate: _Gate
    trial: bool = False
    uses: Mapping[str, list[float]] = field(default_factory=dict)


class _Gate:
    """The calls under way in one event loop, and those that wait for their turn."""

    def __init__(self) -> None:
        self.under_way = 0
        self.waiting: deque[asyncio.Future[None]] = deque()

    async def enter(self, throttle: Throttle) -> None:
        if self.under_way < throttle.limit and not self.waiting:
            self.under_way += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # admitted and cancelled at once
                self.leave(throttle)
            elif turn in self.waiting:
                self.waiting.remove(turn)
            raise

    def leave(self, throttle: Throttle) -> None:
        self.under_way -= 1
        while self.waiting and self.under_way < throttle.limit:
            turn = self.waiting.popleft()
            if not turn.done():
                self.under_way += 1
                turn.set_result(None)


class Throttle:
    """Admits the calls to one endpoint: within each event loop first in, first out.

    A call waits in `enter` for three things in turn: its place among the concurrent calls, the end of a pause, and the
    rates of requests and tokens.

    Attributes:
        limit: the present limit on calls under way per event loop; infinite: none.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._most = math.inf if endpoint.max_concurrency is None else float(endpoint.max_concurrency)
        self.limit = self._most
        limits = {"requests": endpoint.requests_per_minute, "tokens": endpoint.tokens_per_minute}
        self._rates = {name: Rolling(most) for name, most in limits.items() if most is not None}
        self._lock = threading.Lock()  # of the rates; taken only if there are any
        self._paused_until = 0.0
        self._limited_until = 0.0  # until then the pause is for a rate limit, which no trial may break
        self._trial_made = False  # a trial is under way, or was told to retry later
        self._halved_at = -math.inf
        self._peak = 0.0  # the calls under way when the limit was halved last
        self._gates = PerLoop(_Gate)

    @property
    def ready(self) -> bool:
        """Whether a call now would be admitted without a long wait."""
        now = time.monotonic()
        if self._paused_until > now or (self.limit < math.inf and self._crowded()):
            return False
        if not self._rates:
            return True
        with self._lock:
            return self._earliest(1, now) <= now

    @property
    def paused_s(self) -> float:
        """Seconds until the service accepts calls again."""
        return max(0.0, self._paused_until - time.monotonic())

    @property
    def triable(self) -> bool:
        """Whether a single trial call may go out during the pause: it is not for a rate limit, and no other has."""
        return not self._trial_made and self._limited_until <= time.monotonic() < self._paused_until

    @property
    def wait_s(self) -> float:
        """How long a call now would wait for the pause to end."""
        return 0.0 if not self._paused_until or self.triable else self.paused_s

    @property
    def under_way(self) -> int:
        """Calls under way now, in all loops."""
        return sum(gate.under_way for gate in self._gates.all())

    def _crowded(self) -> bool:
        gate = self._gates.known()
        return gate is not None and gate.under_way + len(gate.waiting) >= _CROWDED * self.limit

    def _earliest(self, tokens: float, now: float) -> float:
        """Return the earliest time at which a call of ``tokens`` may begin. The caller holds the lock."""
        amounts = _amounts(tokens)
        return max([rate.earliest(amounts[name], now) for name, rate in self._rates.items()])

    async def enter(self, tokens: float, within_s: float) -> AdmittedCall:
        """Wait until a call may begin; `leave` must follow.

        Args:
            tokens: the most that the call may use.
            within_s: the longest wait, seconds.

        Raises:
            CallFailed: the wait would be longer.
        """
        until = time.monotonic() + within_s
        gate = self._gates.here()
        await gate.enter(self)
        admitted = AdmittedCall(time.monotonic(), gate)
        if self._rates or self._paused_until > admitted.started:
            try:
                await self._wait(admitted, tokens, until)
            except BaseException:
                self._trial_made = self._trial_made and not admitted.trial
                gate.leave(self)
                raise
        return admitted

    async def _wait(self, admitted: AdmittedCall, tokens: float, until: float) -> None:
        await self._wait_for_pause(admitted, until)
        while self._rates:
            await self._wait_for_rates(admitted, tokens, until)
            if admitted.trial or self._paused_until <= time.monotonic():
                break
            self._give_back(admitted)  # a pause has begun meanwhile
            await self._wait_for_pause(admitted, until)
        admitted.started = time.monotonic()

    async def _wait_for_pause(self, admitted: AdmittedCall, until: float) -> None:
        """Wait until the pause is over, or make this call the trial."""
        while (now := time.monotonic()) < self._paused_until:
            if self.triable:
                self._trial_made = admitted.trial = True
                break
            if self._paused_until >= until:
                raise _limited(self._paused_until - now)
            await asyncio.sleep(min(self._paused_until - now, _LOOK_AGAIN_S))

    async def _wait_for_rates(self, admitted: AdmittedCall, tokens: float, until: float) -> None:
        """Record the call in the rates at the earliest possible time, and wait for that time."""
        now = time.monotonic()
        with self._lock:
            when = self._earliest(tokens, now)
            if when >= until:
                raise _limited(when - now)
            amounts = _amounts(tokens)
            admitted.uses = {name: rate.use(amounts[name], when) for name, rate in self._rates.items()}
        try:
            await asyncio.sleep(when - now)
        except BaseException:
            self._give_back(admitted)
            raise

    def _give_back(self, admitted: AdmittedCall) -> None:
        self._correct(admitted, dict.fromkeys(admitted.uses, 0.0))

    def _correct(self, admitted: AdmittedCall, real: Mapping[str, float]) -> None:
        with self._lock:
            for name in real.keys() & admitted.uses.keys():
                self._rates[name].correct(admitted.uses[name], real[name])

    def leave(self, admitted: AdmittedCall, tokens: int | None, failure: Failure | None) -> None:
        """Register the end of a call, with the tokens it used (None: unknown) and its failure, if any."""
        if admitted.uses and tokens is not None:
            self._correct(admitted, {"tokens": float(tokens)})
        if admitted.trial:
            self._trial_made = failure is not None and failure.retry_after_s is not None
        if failure is None:
            if admitted.trial:
                self._paused_until = self._limited_until
            if self.limit < self._most:
                self._raise_limit()
        elif failure.status is not None:
            asked_s = failure.retry_after_s
            if failure.status == 429 and admitted.started > self._halved_at:
                self._halve_limit(admitted.gate.under_way)
                if self.limit == 1.0 and not asked_s:
                    asked_s = _PAUSE_S
            if asked_s:
                self.pause(asked_s, limited=failure.status == 429)
        admitted.gate.leave(self)

    def _halve_limit(self, under_way: int) -> None:
        """Halve the limit on calls under way, once for all refused calls that began before."""
        self._halved_at = time.monotonic()
        self._peak = max(float(under_way), 1.0)
        self.limit = max(1.0, min(self.limit, self._peak) / 2)

    def _raise_limit(self) -> None:
        """Raise the limit a little; beyond twice the peak, remove the adapted limit."""
        self.limit += 1 / self.limit
        if self.limit >= self._most or self.limit > 2 * self._peak:
            self.limit = self._most

    def pause(self, seconds: float, *, limited: bool = True) -> None:
        """Pause calls for this long, at most a minute; ``limited``: for a rate limit, so no trial call may go out."""
        now = time.monotonic()
        until = now + min(seconds, _LONGEST_PAUSE_S)
        if self._paused_until <= now:
            self._trial_made = False
        self._paused_until = max(self._paused_until, until)
        if limited:
            self._limited_until = max(self._limited_until, until)

    def on_headers(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Pause if a response reports that a limit is used up, until the limit resets."""
        seconds = pause_of(headers)
        if seconds:
            self.pause(seconds)


def _amounts(tokens: float) -> Mapping[str, float]:
    """Return how much a call of ``tokens`` uses of each rate."""
    return {"requests": 1.0, "tokens": tokens}


def _limited(left_s: float) -> CallFailed:
    why = "its rate limit, or the pause that its service asked for, lasts beyond the deadline"
    return CallFailed(Failure("limited", why, retry_after_s=left_s if math.isfinite(left_s) else None))


def pause_of(headers: Iterable[tuple[bytes, bytes]], now: float | None = None) -> float:
    """Return the seconds until every limit that is used up resets; 0 if none is used up.

    Reads ``x-ratelimit-remaining-*`` and ``x-ratelimit-reset-*``. Resets come as "1s", "6m0s", "20ms" (OpenAI), seconds
    (Together), or Unix time in seconds or milliseconds (OpenRouter). Values that cannot be read count as 0.
    """
    limits = {
        name[12:].decode("latin-1").lower(): value.decode("latin-1").strip()
        for name, value in headers
        if name[:12].lower() == b"x-ratelimit-" and len(value) <= _LONGEST_VALUE
    }
    if not limits:
        return 0.0
    now = time.time() if now is None else now
    waits = [0.0]
    for name, left in limits.items():
        if name.startswith("remaining") and _number(left) == 0:
            which = name.removeprefix("remaining")
            waits.append(_seconds_until(limits.get("reset" + which, ""), now))
    return max(waits)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _seconds_until(text: str, now: float) -> float:
    """Read the value of a reset header."""
    span = span_s(text)
    if span is not None:
        return span
    value = _number(text)
    if value is None or value < 0:
        return 0.0
    if value > 1e12:
        value /= 1000
    return max(0.0, value - now) if value > 1e9 else value
