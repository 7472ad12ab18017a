"""Prequential replay: every query is answered first, then its outcome is revealed, then learned from.

A strategy sees nothing but the outputs of the endpoints it asked, before and after.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from focalroute.core.records import F64, Query
from focalroute.evaluate.outcomes import Output
from focalroute.evaluate.table import LogTable

FeedbackKind = Literal["label", "reward", "none"]


@dataclass(frozen=True, slots=True)
class RecordedReply:
    """What one asked endpoint gave back: the candidate it backs (-1: none), the recorded output, and USD."""

    candidate: int
    output: Output
    usd: float


@dataclass(frozen=True, slots=True)
class Revealed:
    """What is said of a query after it was answered.

    Attributes:
        worth: of the answer given, in [0, 1].
        label: the right candidate, where it is said and known among what was seen.
        values: what each asked endpoint's own answer is worth, where that follows.
        text: the label of a free-form question, where it is said.
    """

    worth: float
    label: int | None
    values: Mapping[int, float]
    text: str | None = None


class Turn:
    """One query under way: what a strategy may know of it, and the only way to an output.

    Attributes:
        query: what is asked; its task only if that is to be shown.
        choices: number of choices, 0 for a free-form question.
        available: the endpoints that can be asked, pool order.
        replies: endpoint -> what it gave back, in the order of asking.
    """

    __slots__ = ("_row", "_table", "available", "choices", "query", "replies")

    def __init__(self, table: LogTable, row: int, *, show_task: bool = False) -> None:
        logged = table.queries[row]
        self._table, self._row = table, row
        self.query = Query(logged.id, logged.messages, logged.choices, task=logged.task if show_task else None)
        self.choices = len(logged.choices or ())
        self.available: tuple[int, ...] = tuple(np.flatnonzero(table.there[row]).tolist())
        self.replies: dict[int, RecordedReply] = {}

    def ask(self, endpoint: int) -> RecordedReply:
        """Ask an endpoint, and pay for it; asked again, it gives the same back for nothing.

        Raises:
            KeyError: it is not available.
        """
        if endpoint not in self.replies:
            table, row = self._table, self._row
            output = table.queries[row].outputs[table.endpoints[endpoint].name]
            self.replies[endpoint] = RecordedReply(
                int(table.candidate[row, endpoint]), output, float(table.usd[row, endpoint])
            )
        return self.replies[endpoint]


class Strategy(Protocol):
    """A way to answer queries."""

    def answer(self, turn: Turn) -> int:
        """Ask whom it likes and give the candidate it answers with, -1 for none."""

    def learn(self, turn: Turn, revealed: Revealed) -> None:
        """Take in what is said of the answer to this turn, which is the one answered last; by default nothing."""
        return


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What a strategy did, n rows in the order played.

    Attributes:
        worth: (n,) what its answers were worth.
        usd: (n,) what it paid.
        asked: (n, N) whom it asked.
    """

    worth: F64
    usd: F64
    asked: NDArray[np.bool_]


def play(
    strategy: Strategy,
    table: LogTable,
    rows: NDArray[np.int64],
    *,
    feedback: FeedbackKind = "label",
    show_task: bool = False,
    advance: Callable[[int], object] = lambda _: None,
) -> ReplayResult:
    """Play a strategy through these rows, in their order."""
    worth, usd = np.zeros(len(rows)), np.zeros(len(rows))
    asked = np.zeros((len(rows), len(table.endpoints)), bool)
    for n, row in enumerate(rows.tolist()):
        turn = Turn(table, row, show_task=show_task)
        answer = strategy.answer(turn)
        worth[n] = table.worth(row, answer)
        usd[n] = sum(reply.usd for reply in turn.replies.values())
        asked[n, list(turn.replies)] = True
        if feedback != "none":
            strategy.learn(turn, _revealed(table, row, turn, answer, float(worth[n]), feedback))
        advance(1)
    return ReplayResult(worth, usd, asked)


def _revealed(table: LogTable, row: int, turn: Turn, answer: int, worth: float, feedback: FeedbackKind) -> Revealed:
    members = {i: reply.candidate for i, reply in turn.replies.items() if reply.output.error is None}
    said = table.queries[row].label
    if feedback == "label":
        values = {i: float(table.value[row, i]) for i in members}
        label = int(table.label[row])
        known = label >= 0 and (turn.choices > 0 or label in members.values())
        return Revealed(worth, label if known else None, values, said if isinstance(said, str) else None)
    values = {i: worth for i, candidate in members.items() if candidate == answer}
    if worth == 1 and said is not None:  # exactly one answer is right, so all others are wrong
        values |= {i: 0.0 for i, candidate in members.items() if candidate != answer}
    return Revealed(worth, answer if worth == 1 and said is not None else None, values)
