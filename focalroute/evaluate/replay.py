"""Prequential replay: every query is answered first, then its outcome is revealed, then learned from.

A strategy sees nothing but the outputs of the endpoints it asked, before and after. Baselines may learn from the
training rows, and choose their settings on the last fifth of them.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from focalroute.core.records import F32, F64, I64, Bools, Query
from focalroute.evaluate.outcomes import Output
from focalroute.evaluate.table import LogTable

FeedbackKind = Literal["label", "reward", "none"]
FeedbackBias = Literal["none", "negative"]

_NEGATIVE = 5.0  # so many times as often a biased feedback is of a wrong answer


@dataclass(frozen=True, slots=True)
class RecordedReply:
    """One asked endpoint's reply: the candidate it backs (-1: none), the recorded output, and USD."""

    candidate: int
    output: Output
    usd: float


@dataclass(frozen=True, slots=True)
class Revealed:
    """The feedback on a query after it was answered.

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
        seconds: until the last of those waited for had replied.
        memo: whatever the strategy needs to know of it once something is said of its answer.
    """

    __slots__ = ("_row", "_slowest", "_table", "available", "choices", "memo", "query", "replies", "seconds")

    def __init__(self, table: LogTable, row: int, *, show_task: bool = False) -> None:
        logged = table.queries[row]
        self._table, self._row = table, row
        self.query = Query(logged.id, logged.messages, logged.choices, task=logged.task if show_task else None)
        self.choices = len(logged.choices or ())
        self.available: tuple[int, ...] = tuple(np.flatnonzero(table.there[row]).tolist())
        self.replies: dict[int, RecordedReply] = {}
        self.memo: Any = None
        self.seconds = self._slowest = 0.0

    def wait(self, at_most: float = math.inf) -> None:
        """Wait for all that were asked since the last wait, at once, or for at most this many seconds."""
        self.seconds += min(self._slowest, at_most)
        self._slowest = 0.0

    def takes(self, endpoint: int) -> float:
        """Seconds until it replies."""
        return float(self._table.seconds[self._row, endpoint])

    def ask(self, endpoint: int, *, waited_for: bool = True) -> RecordedReply:
        """Ask an endpoint, and pay for it; asked again, it gives the same back for nothing.

        Args:
            waited_for: whether the answer has to wait for it.

        Raises:
            KeyError: it is not available.
        """
        if endpoint not in self.replies:
            table, row = self._table, self._row
            output = table.queries[row].outputs[table.endpoints[endpoint].name]
            self._slowest = max(self._slowest, waited_for * self.takes(endpoint))
            self.replies[endpoint] = RecordedReply(
                int(table.candidate[row, endpoint]), output, float(table.usd[row, endpoint])
            )
        return self.replies[endpoint]


class Strategy(Protocol):
    """A way to answer queries."""

    def answer(self, turn: Turn) -> int:
        """Ask whom it likes and give the candidate it answers with, -1 for none."""

    def learn(self, turn: Turn, revealed: Revealed) -> None:
        """Take in the feedback on the answer to this turn, maybe many turns later; by default nothing."""
        return


@dataclass(frozen=True, slots=True)
class FeedbackPlan:
    """The feedback on answers, its source and time. Chance depends on the row, so that all strategies share it.

    Attributes:
        kind: what is said.
        share: of the queries that get any.
        delay: how many more queries are answered before it comes.
        noise: the share of it that is wrong: another label, or the reward turned round.
        bias: ``negative``: wrong answers (worth less than a half) get it five times as often as right ones. The share
            stays ``share`` in the mean, or is as near as five times allows.
        seed: of what is random.
    """

    kind: FeedbackKind = "label"
    share: float = 1.0
    delay: int = 0
    noise: float = 0.0
    bias: FeedbackBias = "none"
    seed: int = 0

    def __str__(self) -> str:
        parts: list[str] = [self.kind]
        if self.share < 1:
            parts.append(f"for {self.share:.3g} of the queries")
        if self.delay:
            parts.append(f"{self.delay} queries later")
        if self.noise:
            parts.append(f"{self.noise:.3g} of it wrong")
        if self.bias == "negative":
            parts.append("mostly of wrong answers")
        return ", ".join(parts)


class FeedbackStream:
    """The feedback that one strategy gets, by a plan; what is still to come is kept from one `play` to the next."""

    def __init__(self, plan: FeedbackPlan) -> None:
        self._plan = plan
        self._coming: deque[tuple[Turn, Revealed] | None] = deque()
        self._answers, self._right = 2, 1  # of which the bias takes the share of right answers

    def after(self, table: LogTable, row: int, turn: Turn, answer: int, worth: float) -> tuple[Turn, Revealed] | None:
        """Return the feedback due after this turn, and its turn: this one, or an earlier one."""
        plan = self._plan
        if plan.kind == "none":
            return None
        rng = random.Random(f"{plan.seed} {row}")  # noqa: S311 - no secret
        comes, wrong, other = rng.random(), rng.random(), rng.random()
        said = None
        if comes < self._share(worth):
            mistake = other if wrong < plan.noise else None
            said = turn, _revealed(table, row, turn, answer, worth, plan.kind, mistake)
        self._coming.append(said)
        return self._coming.popleft() if len(self._coming) > plan.delay else None

    def _share(self, worth: float) -> float:
        """How likely something is said of an answer of this worth."""
        if self._plan.bias == "none":
            return self._plan.share
        right = self._right / self._answers
        self._answers += 1
        self._right += worth >= 0.5
        share = min(self._plan.share / (right + _NEGATIVE * (1 - right)), 1 / _NEGATIVE)
        return share if worth >= 0.5 else _NEGATIVE * share


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The result of a strategy, n rows in the order played.

    Attributes:
        worth: (n,) what its answers were worth.
        usd: (n,) what it paid.
        asked: (n, N) whom it asked.
        seconds: (n,) how long they took; None: not known.
    """

    worth: F64
    usd: F64
    asked: NDArray[np.bool_]
    seconds: F64 | None = field(default=None, kw_only=True)


def play(
    strategy: Strategy,
    table: LogTable,
    rows: NDArray[np.int64],
    *,
    feedback: FeedbackKind | FeedbackStream = "label",
    show_task: bool = False,
    advance: Callable[[int], object] = lambda _: None,
) -> ReplayResult:
    """Play a strategy through these rows, in their order.

    Args:
        feedback: what is revealed after each answer; a stream goes on where it was after an earlier play.
    """
    stream = feedback if isinstance(feedback, FeedbackStream) else FeedbackStream(FeedbackPlan(feedback))
    worth, usd, seconds = np.zeros((3, len(rows)))
    asked = np.zeros((len(rows), len(table.endpoints)), bool)
    for n, row in enumerate(rows.tolist()):
        turn = Turn(table, row, show_task=show_task)
        answer = strategy.answer(turn)
        turn.wait()
        seconds[n] = turn.seconds
        worth[n] = table.worth(row, answer)
        usd[n] = sum(reply.usd for reply in turn.replies.values())
        asked[n, list(turn.replies)] = True
        said = stream.after(table, row, turn, answer, float(worth[n]))
        if said is not None:
            strategy.learn(*said)
        advance(1)
    return ReplayResult(worth, usd, asked, seconds=seconds)


def _revealed(
    table: LogTable, row: int, turn: Turn, answer: int, worth: float, kind: FeedbackKind, mistake: float | None
) -> Revealed:
    """Return the feedback on an answer; a ``mistake`` in [0, 1) draws which of the wrong things."""
    members = {i: reply.candidate for i, reply in turn.replies.items() if reply.output.error is None}
    label = table.queries[row].label
    if kind == "label" and label is not None:
        return _labelled(table, row, turn, members, answer, mistake)
    values = {i: float(table.value[row, i]) for i in members}
    if mistake is not None and answer >= 0:
        worth, values = 1 - worth, {i: 1 - value for i, value in values.items()}
    if kind == "label":  # only scores are known
        return Revealed(worth, None, values)
    values = {i: worth for i, candidate in members.items() if candidate == answer}
    exact = worth == 1 and label is not None  # exactly one answer is right, so all others are wrong
    if exact:
        values |= {i: 0.0 for i, candidate in members.items() if candidate != answer}
    return Revealed(worth, answer if exact else None, values)


def _labelled(
    table: LogTable, row: int, turn: Turn, members: Mapping[int, int], answer: int, mistake: float | None
) -> Revealed:
    label, text = int(table.label[row]), table.queries[row].label
    if mistake is not None:
        seen = range(turn.choices) if turn.choices else sorted(set(members.values()) - {-1})
        others = [candidate for candidate in seen if candidate != label]
        if others:
            label = others[int(mistake * len(others))]
            text = next((turn.replies[i].output.answer for i, backed in members.items() if backed == label), text)
        elif not turn.choices:
            label, text = -1, f"not {text}"  # an answer that nobody gave
    values = {i: float(candidate == label >= 0) for i, candidate in members.items()}
    known = label >= 0 and (turn.choices > 0 or label in members.values())
    worth = float(answer == label >= 0)
    return Revealed(worth, label if known else None, values, text if isinstance(text, str) else None)


#: What asking everybody once is worth in right answers, where a baseline trades accuracy for cost; as in the ensemble.
PRICE_OF_MONEY = 0.1

_S = TypeVar("_S")


@dataclass(frozen=True, slots=True)
class TrainingArrays:
    """The n training rows, N endpoints, C candidates (the most that any row has).

    Attributes:
        votes: (n, N, C) 1 for the candidate an endpoint backs.
        probabilities: (n, N, C) its mass on each candidate; its vote where it gave none.
        worth: (n, C) of each candidate, in [0, 1].
        fails: (n, N) 1 where an endpoint was wrong, failed or is missing.
        choices: (n,) the number of choices; 0: a free-form question.
        there: (n, N) whether there is an output.
        best_first: (N,) for ties: an endpoint's bonus, falling with its rank, of less than half a vote.
    """

    votes: F32
    probabilities: F32
    worth: F32
    fails: F32
    choices: I64
    there: Bools
    best_first: F32


@dataclass(frozen=True, slots=True)
class Training:
    """The training part.

    Attributes:
        table: the log; only ``rows`` of it may be looked at.
        rows: the training rows, in order.
        seed: for whatever is random.
        feedback: what is revealed when a baseline is tried out.
        show_task: whether topics are shown.
        usd_per_query: what a query is to cost in the mean, for baselines that can be told; None: they weigh it.
    """

    table: LogTable
    rows: I64
    seed: int
    feedback: FeedbackPlan = FeedbackPlan()
    show_task: bool = False
    usd_per_query: float | None = None

    @property
    def rank(self) -> tuple[int, ...]:
        """The endpoints by accuracy on the training part, best first."""
        return self.table.rank(self.rows)

    def cut(self) -> tuple[Training, I64]:
        """The first four fifths as a training part, and the last fifth's rows; of fewer than 5 rows all, twice."""
        held = len(self.rows) // 5
        return (replace(self, rows=self.rows[:-held]), self.rows[-held:]) if held else (self, self.rows)

    def arrays(self) -> TrainingArrays:
        """All that was answered in the training part, and nothing else of the log."""
        table, rows = self.table, self.rows
        worth = table.worths(rows).astype(np.float32)
        n, width = len(table.endpoints), worth.shape[1]
        votes = (table.candidate[rows][:, :, None] == np.arange(width)).astype(np.float32)
        masses = table.masses(rows, width)
        unknown = np.isnan(masses) | table.failed[rows][:, :, None]
        bonus = np.empty(n, np.float32)
        bonus[list(self.rank)] = (n - np.arange(n)) / (2 * n + 2)
        return TrainingArrays(
            votes=votes,
            probabilities=np.where(unknown, votes, masses),
            worth=worth,
            fails=((table.value[rows] < 0.5) | ~table.there[rows]).astype(np.float32),
            choices=np.array([len(table.queries[row].choices or ()) for row in rows.tolist()]),
            there=table.there[rows],
            best_first=bonus,
        )


def best_setting(training: Training, settings: Sequence[_S], make: Callable[[Training, _S], Strategy]) -> _S:
    """The setting that does best on the last fifth after training on the rest; of equals the first.

    Best is accuracy - `PRICE_OF_MONEY` x cost, the cost relative to asking everybody.
    """
    fit, held = training.cut()
    full = training.table.usd[held].sum()

    def score(setting: _S) -> float:
        stream = FeedbackStream(training.feedback)
        played = play(make(fit, setting), training.table, held, feedback=stream, show_task=training.show_task)
        cost = played.usd.sum() / full if full else 0.0
        return float(played.worth.mean() - PRICE_OF_MONEY * cost)

    return max(settings, key=score) if len(settings) > 1 else settings[0]
