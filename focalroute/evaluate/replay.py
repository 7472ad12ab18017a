"""Replays a log with a strategy: each query is answered first, then its feedback is revealed and learned from.

A strategy sees only the outputs of the endpoints that it asks (`Turn`). Baselines may first learn from the training
rows (`Training`), and choose their settings on the last fifth of them (`best_setting`).
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
from focalroute.serving.labelling import DisputedFirst

FeedbackKind = Literal["label", "reward", "none"]
FeedbackBias = Literal["none", "negative", "disputed"]

_NEGATIVE = 5.0  # with negative bias, a wrong answer gets feedback this many times as often as a right one


@dataclass(frozen=True, slots=True)
class RecordedReply:
    """The reply of an endpoint that was asked.

    Attributes:
        candidate: the candidate it gives; -1: none.
        output: the recorded output.
        usd: the cost of the call.
    """

    candidate: int
    output: Output
    usd: float


@dataclass(frozen=True, slots=True)
class Revealed:
    """The feedback on a strategy's answer.

    Attributes:
        worth: worth of the strategy's answer, in [0, 1].
        label: the right candidate, if revealed and among the candidates seen; else None.
        values: asked endpoint -> worth of its own answer, for those whose worth follows from the feedback.
        text: the label of a free-form question, if revealed.
    """

    worth: float
    label: int | None
    values: Mapping[int, float]
    text: str | None = None


class Turn:
    """One query while a strategy answers it; a strategy reads recorded outputs only through this.

    Attributes:
        query: the query, with its task only if tasks are shown.
        choices: number of choices; 0 for a free-form question.
        available: the endpoints that can be asked, in pool order.
        replies: endpoint -> reply, in the order of asking.
        seconds: the time waited for replies so far.
        memo: anything that the strategy wants to keep until it learns from the feedback.
    """

    __slots__ = ("_row", "_slowest", "_table", "_votes", "available", "choices", "memo", "query", "replies", "seconds")

    def __init__(self, table: LogTable, row: int, *, show_task: bool = False) -> None:
        logged = table.queries[row]
        self._table, self._row = table, row
        self.query = Query(logged.id, logged.messages, logged.choices, task=logged.task if show_task else None)
        self.choices = len(logged.choices or ())
        self.available: tuple[int, ...] = tuple(np.flatnonzero(table.there[row]).tolist())
        self.replies: dict[int, RecordedReply] = {}
        self.memo: Any = None
        self._votes: dict[int, int] = {}  # endpoint -> candidate, for the replies that were waited for
        self.seconds = self._slowest = 0.0

    def wait(self, at_most: float = math.inf) -> None:
        """Wait for all endpoints asked since the last wait, concurrently, or at most this many seconds."""
        self.seconds += min(self._slowest, at_most)
        self._slowest = 0.0

    @property
    def disputed(self) -> bool:
        """Whether the replies that were waited for gave different answers."""
        return len({*self._votes.values()} - {-1}) > 1

    def give_up(self, endpoint: int) -> None:
        """Stop waiting for the reply of an endpoint."""
        self._votes.pop(endpoint, None)

    def latency(self, endpoint: int) -> float:
        """Seconds until an endpoint replies."""
        return float(self._table.seconds[self._row, endpoint])

    def ask(self, endpoint: int, *, waited_for: bool = True) -> RecordedReply:
        """Ask an endpoint and pay for it; asking again returns the same reply for free.

        Args:
            waited_for: whether the answer has to wait for the reply; exploration does not wait.

        Raises:
            KeyError: the endpoint is not available.
        """
        if endpoint not in self.replies:
            table, row = self._table, self._row
            output = table.queries[row].outputs[table.endpoints[endpoint].name]
            self.replies[endpoint] = RecordedReply(
                int(table.candidate[row, endpoint]), output, float(table.usd[row, endpoint])
            )
            if waited_for:
                self._slowest = max(self._slowest, self.latency(endpoint))
                self._votes[endpoint] = self.replies[endpoint].candidate
        return self.replies[endpoint]

    def probabilities(self, width: int) -> F32:
        """Each asked endpoint's probability of each candidate, (N, ``width``); without any, 1 for its candidate."""
        found = np.zeros((len(self._table.endpoints), width), np.float32)
        for i, reply in self.replies.items():
            if reply.output.probabilities is not None and reply.output.error is None:
                found[i, : len(reply.output.probabilities)] = reply.output.probabilities
            elif reply.candidate >= 0:
                found[i, reply.candidate] = 1
        return found


class Strategy(Protocol):
    """A way to answer queries."""

    def answer(self, turn: Turn) -> int:
        """Ask any endpoints and return the candidate to answer with, -1 for none."""

    def learn(self, turn: Turn, revealed: Revealed) -> None:
        """Learn from the feedback on this turn's answer, possibly many turns later; by default do nothing."""
        return


@dataclass(frozen=True, slots=True)
class FeedbackPlan:
    """Which answers get which feedback, and when.

    Random draws depend only on the seed and the row, so they are the same for all strategies.

    Attributes:
        kind: the kind of feedback.
        share: the share of queries with feedback.
        delay: how many more queries are answered before the feedback comes.
        noise: the share of feedback that is wrong: another label, or the reward reversed.
        bias: which answers get feedback more often. ``negative``: wrong ones (worth less than a half), five times as
            often as right ones; the overall share is ``share``, or less where the factor of five does not allow it.
            ``disputed``: those whose members gave different answers, as with a `Judge` (`DisputedFirst`); the overall
            share is about ``share``.
        seed: the random seed.
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
        if self.bias == "disputed":
            parts.append("mostly where members differ")
        return ", ".join(parts)


class FeedbackStream:
    """Gives one strategy its feedback by a plan; feedback still delayed at the end of a `play` comes in the next."""

    def __init__(self, plan: FeedbackPlan) -> None:
        self._plan = plan
        self._delayed: deque[tuple[Turn, Revealed] | None] = deque()
        self._answers, self._right = 2, 1  # estimate the share of right answers; a prior of one right, one wrong
        self._disputed_first = DisputedFirst(plan.share)

    def after(self, table: LogTable, row: int, turn: Turn, answer: int, worth: float) -> tuple[Turn, Revealed] | None:
        """Return the feedback due after this turn, with the turn it is for: this or an earlier one."""
        plan = self._plan
        if plan.kind == "none":
            return None
        rng = random.Random(f"{plan.seed} {row}")  # noqa: S311 - no secret
        if_any, if_wrong, which_label = rng.random(), rng.random(), rng.random()
        feedback = None
        if if_any < self._probability(turn, worth):
            mistake = which_label if if_wrong < plan.noise else None
            feedback = turn, _revealed(table, row, turn, answer, worth, plan.kind, mistake)
        self._delayed.append(feedback)
        return self._delayed.popleft() if len(self._delayed) > plan.delay else None

    def _probability(self, turn: Turn, worth: float) -> float:
        """The probability of feedback for this turn's answer."""
        if self._plan.bias == "disputed":
            return self._disputed_first.probability(turn.disputed)
        if self._plan.bias == "none":
            return self._plan.share
        share_right = self._right / self._answers
        self._answers += 1
        self._right += worth >= 0.5
        if_right = min(self._plan.share / (share_right + _NEGATIVE * (1 - share_right)), 1 / _NEGATIVE)
        return if_right if worth >= 0.5 else _NEGATIVE * if_right


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """A strategy's results on n rows, in the order of replay.

    Attributes:
        worth: (n,) worth of the answers.
        usd: (n,) cost of the answers.
        asked: (n, N) whether each endpoint was asked.
        seconds: (n,) time until the answers; None: unknown.
    """

    worth: F64
    usd: F64
    asked: NDArray[np.bool_]
    seconds: F64 | None = field(default=None, kw_only=True)

    def part(self, rows: slice) -> ReplayResult:
        """Return the results on some of the rows."""
        seconds = None if self.seconds is None else self.seconds[rows]
        return ReplayResult(self.worth[rows], self.usd[rows], self.asked[rows], seconds=seconds)


def play(
    strategy: Strategy,
    table: LogTable,
    rows: NDArray[np.int64],
    *,
    feedback: FeedbackKind | FeedbackStream = "label",
    show_task: bool = False,
    advance: Callable[[int], object] = lambda _: None,
) -> ReplayResult:
    """Replay these rows with a strategy, in order.

    Args:
        feedback: the kind of feedback after each answer; or a stream, which may continue from an earlier replay.
        show_task: whether the strategy sees each query's task.
        advance: called with the number of queries done.
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
        due = stream.after(table, row, turn, answer, float(worth[n]))
        if due is not None:
            strategy.learn(*due)
        advance(1)
    return ReplayResult(worth, usd, asked, seconds=seconds)


def _revealed(
    table: LogTable, row: int, turn: Turn, answer: int, worth: float, kind: FeedbackKind, mistake: float | None
) -> Revealed:
    """Return the feedback on an answer; wrong if there is a ``mistake``, which in [0, 1) picks the wrong label."""
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
    """Return feedback that reveals the label, or another one if there is a ``mistake``."""
    label, text = int(table.label[row]), table.queries[row].label
    if mistake is not None:
        seen = range(turn.choices) if turn.choices else sorted(set(members.values()) - {-1})
        others = [candidate for candidate in seen if candidate != label]
        if others:
            label = others[int(mistake * len(others))]
            text = next((turn.replies[i].output.answer for i, backed in members.items() if backed == label), text)
        elif not turn.choices:
            label, text = -1, f"not {text}"  # an answer that no endpoint gave
    values = {i: float(candidate == label >= 0) for i, candidate in members.items()}
    known = label >= 0 and (turn.choices > 0 or label in members.values())
    worth = float(answer == label >= 0)
    return Revealed(worth, label if known else None, values, text if isinstance(text, str) else None)


#: The cost weight with which baselines trade accuracy for cost: the cost of asking all endpoints once, in right
#: answers. The ensemble's default is the same number.
COST_WEIGHT = 0.1

_S = TypeVar("_S")


@dataclass(frozen=True, slots=True)
class TrainingArrays:
    """The training part as arrays: n rows, N endpoints, C candidates (the most of any row).

    Attributes:
        votes: (n, N, C) 1 for an endpoint's candidate, else 0.
        probabilities: (n, N, C) an endpoint's probability of each candidate; its vote if none are recorded.
        worth: (n, C) worth of each candidate, in [0, 1].
        fails: (n, N) 1 if the endpoint's answer is wrong (worth less than a half), failed or missing, else 0.
        choices: (n,) the number of choices; 0: a free-form question.
        there: (n, N) whether there is an output.
        best_first: (N,) a bonus of less than half a vote that breaks ties; the better an endpoint's rank, the higher.
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
    """The training part, and how baselines are to be fitted to it.

    Attributes:
        table: the log, of which only ``rows`` may be used.
        rows: the training rows, in order.
        seed: the random seed.
        feedback: the feedback that strategies get while their settings are compared.
        show_task: whether strategies see the task.
        usd_per_query: the target mean cost for baselines that can hold one; None: they use `COST_WEIGHT` instead.
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

    def hold_out(self) -> tuple[Training, I64]:
        """Split off the last fifth: return the training part without it, and its rows.

        With fewer than 5 rows, both are all rows.
        """
        n = len(self.rows) // 5
        if n == 0:
            return self, self.rows
        return replace(self, rows=self.rows[:-n]), self.rows[-n:]

    def arrays(self) -> TrainingArrays:
        """The outputs of the training part as arrays, without the rest of the log."""
        table, rows = self.table, self.rows
        worth = table.worths(rows).astype(np.float32)
        n, width = len(table.endpoints), worth.shape[1]
        votes = (table.candidate[rows][:, :, None] == np.arange(width)).astype(np.float32)
        probabilities = table.probabilities(rows, width)
        unknown = np.isnan(probabilities) | table.failed[rows][:, :, None]
        bonus = np.empty(n, np.float32)
        bonus[list(self.rank)] = (n - np.arange(n)) / (2 * n + 2)
        return TrainingArrays(
            votes=votes,
            probabilities=np.where(unknown, votes, probabilities),
            worth=worth,
            fails=((table.value[rows] < 0.5) | ~table.there[rows]).astype(np.float32),
            choices=np.array([len(table.queries[row].choices or ()) for row in rows.tolist()]),
            there=table.there[rows],
            best_first=bonus,
        )


def best_setting(training: Training, settings: Sequence[_S], make: Callable[[Training, _S], Strategy]) -> _S:
    """Return the setting with the best score on the last fifth of the training part; the first of equally good ones.

    The score is accuracy - `COST_WEIGHT` x cost ratio (cost / cost of asking every endpoint).

    Args:
        make: makes the strategy with a setting, fitted to the training part without the last fifth.
    """
    if len(settings) == 1:
        return settings[0]
    fit, held_out = training.hold_out()
    ask_all_usd = training.table.usd[held_out].sum()

    def score(setting: _S) -> float:
        stream = FeedbackStream(training.feedback)
        played = play(make(fit, setting), training.table, held_out, feedback=stream, show_task=training.show_task)
        cost_ratio = played.usd.sum() / ask_all_usd if ask_all_usd else 0.0
        return float(played.worth.mean() - COST_WEIGHT * cost_ratio)

    return max(settings, key=score)
