"""A sliding window over the last T outcomes: each endpoint's right answers, costs, latencies and lengths.

All totals are integers (money in picodollars, time in microseconds, inferred values in 1/1024), so that sliding is
exact: after any stream the state equals that of the last T outcomes alone. A push takes O(members), independent of T.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import NamedTuple

from focalroute.core.records import Member, Outcome

#: Inferred values are summed in multiples of 1 over this.
INFERRED_UNIT = 1024


class Counts(NamedTuple):
    """Integer totals of one endpoint over the window.

    Attributes:
        rows: rows in which it replied.
        known: rows in which it is known whether it was right; ``right``: how often it was.
        inferred: rows in which that is only inferred; ``inferred_sum``: sum of these values, in 1 / `INFERRED_UNIT`.
        lengths: replies with an answer and known length; ``tokens`` and ``tokens_squared``: sums of completion tokens
            and of their squares.
        timed: replies of known latency; ``latency_us``: its sum, microseconds.
        priced: replies of known cost; ``cost_pico``: its sum, 1e-12 USD.
    """

    rows: int = 0
    known: int = 0
    right: int = 0
    inferred: int = 0
    inferred_sum: int = 0
    lengths: int = 0
    tokens: int = 0
    tokens_squared: int = 0
    timed: int = 0
    latency_us: int = 0
    priced: int = 0
    cost_pico: int = 0


_NOTHING = Counts()


class _Row(NamedTuple):
    """An outcome: whether its members disagreed, and what each adds to its endpoint's totals."""

    answer_id: str
    disputed: bool
    members: Mapping[str, Counts]


class CoAsked(NamedTuple):
    """How many rows have known outcomes of two endpoints, and how many of these each and both failed.

    ``disputed``: how many of the rows belong to answers whose members disagreed.
    """

    asked: int
    failed_first: int
    failed_second: int
    failed_both: int
    disputed: int


class _Track:
    """One endpoint's totals, and bit sets of ring positions: outcome known (``asked``), and ``failed``."""

    __slots__ = ("asked", "counts", "disputed", "failed")

    def __init__(self) -> None:
        self.counts = self.disputed = Counts()
        self.asked = 0
        self.failed = 0


class Window:
    """A sliding window over outcomes, keyed by endpoint name, of any endpoints that the outcomes name.

    Not thread-safe by itself; `Observer` guards it.

    Args:
        size: T, the outcomes kept; at least 1.

    Attributes:
        size: T.
        version: changes with every push, and whenever something is forgotten.
    """

    def __init__(self, size: int = 500) -> None:
        self.size = size
        self.version = 0
        self._tracks: dict[str, _Track] = {}
        self._ring: list[_Row | None] = [None] * size
        self._position: dict[str, int] = {}
        self._disputed = 0  # bit set of ring positions
        self._next = 0

    def __len__(self) -> int:
        return len(self._position)

    def __contains__(self, answer_id: str) -> bool:
        return answer_id in self._position

    def push(self, outcome: Outcome) -> tuple[tuple[str, ...], ...]:
        """Add an outcome, replacing in place one of the same answer; a full window drops its oldest.

        Values of ``right`` for endpoints that are not members are ignored.

        Returns:
            The members of each row that changed: those of the outcome, and of the row it replaced, if any.
        """
        members = {
            name: _counted(member, outcome.right.get(name), name in outcome.inferred)
            for name, member in outcome.members.items()
        }
        row = _Row(outcome.answer_id, outcome.disputed, members)
        position = self._position.get(outcome.answer_id)
        if position is None:
            position, self._next = self._next, (self._next + 1) % self.size
        before = self._ring[position]
        if before is not None:
            del self._position[before.answer_id]
            self._apply(position, before, operator.sub)
        self._ring[position] = row
        self._position[outcome.answer_id] = position
        self._apply(position, row, operator.add)
        self.version += 1
        return (tuple(members),) if before is None else (tuple(members), tuple(before.members))

    def drop(self, answer_id: str) -> tuple[str, ...]:
        """Remove the row of an answer, if there is one.

        Returns:
            Its members.
        """
        position = self._position.pop(answer_id, None)
        row = None if position is None else self._ring[position]
        if position is None or row is None:
            return ()
        self._ring[position] = None
        self._apply(position, row, operator.sub)
        self.version += 1
        return tuple(row.members)

    def forget(self, name: str, newest: int) -> None:
        """Remove an endpoint, as if not asked, from all rows older than its latest ``newest`` known ones.

        0 removes it from all rows.
        """
        for age in range(1, self.size + 1):
            position = (self._next - age) % self.size
            row = self._ring[position]
            part = row.members.get(name) if row else None
            if row is None or part is None:
                continue
            if newest > 0:
                newest -= part.known
                continue
            self._apply(position, row._replace(members={name: part}), operator.sub)
            others = {other: counts for other, counts in row.members.items() if other != name}
            self._ring[position] = row._replace(members=others)
        self.version += 1

    def known(self, answer_id: str) -> dict[str, bool]:
        """Return whether each member of this answer was right, where known."""
        position = self._position.get(answer_id)
        row = None if position is None else self._ring[position]
        return {name: bool(part.right) for name, part in row.members.items() if part.known} if row else {}

    def counts(self, name: str) -> Counts:
        """Return an endpoint's totals; all zero if it has no row."""
        track = self._tracks.get(name)
        return track.counts if track else _NOTHING

    def disputed(self, name: str) -> Counts:
        """Return an endpoint's totals over the rows whose members disagreed."""
        track = self._tracks.get(name)
        return track.disputed if track else _NOTHING

    def co_asked(self, first: str, second: str) -> CoAsked:
        """Count the rows in which both endpoints' outcomes are known (not inferred), and their failures."""
        one, other = self._tracks.get(first), self._tracks.get(second)
        if one is None or other is None:
            return CoAsked(0, 0, 0, 0, 0)
        failed_i, failed_j = one.failed, other.failed
        rows = one.asked & other.asked
        counts = (rows, failed_i & rows, failed_j & rows, failed_i & failed_j, rows & self._disputed)
        return CoAsked(*(bits.bit_count() for bits in counts))

    def _apply(self, position: int, row: _Row, sign: Callable[[int, int], int]) -> None:
        """Add a row at this position to its members' totals, or subtract it; ``sign`` is `operator.add` or ``sub``."""
        self._disputed = self._disputed & ~(1 << position) | row.disputed << position
        for name, change in row.members.items():
            track = self._tracks.get(name)
            if track is None:
                track = self._tracks[name] = _Track()
            track.counts = Counts._make(map(sign, track.counts, change))
            if row.disputed:
                track.disputed = Counts._make(map(sign, track.disputed, change))
            track.asked ^= change.known << position
            track.failed ^= (change.known - change.right) << position
            if not track.counts.rows:
                del self._tracks[name]


def _counted(member: Member, right: float | None, inferred: bool) -> Counts:
    """Return what a member adds to its endpoint's totals. 0 tokens or a latency of 0 means unknown."""
    known = right is not None and not inferred and right in (0, 1)
    guessed = right is not None and not known
    tokens = 0 if member.candidate is None else max(member.completion_tokens, 0)
    latency = round(member.latency_s * 1e6) if member.latency_s > 0 else 0
    return Counts(
        rows=1,
        known=int(known),
        right=int(right) if right is not None and known else 0,
        inferred=int(guessed),
        inferred_sum=round(right * INFERRED_UNIT) if right is not None and guessed else 0,
        lengths=int(tokens > 0),
        tokens=tokens,
        tokens_squared=tokens * tokens,
        timed=int(latency > 0),
        latency_us=latency,
        priced=int(member.usd is not None),
        cost_pico=round(member.usd * 10**12) if member.usd is not None else 0,
    )
