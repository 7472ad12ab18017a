"""FrugalGPT's cascade: from cheap to dear until the answer is sure enough, its list and thresholds learned on a log."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, product

import numpy as np

from focalroute.core.records import F64, I64, Bools
from focalroute.evaluate.replay import PRICE_OF_MONEY, Revealed, Strategy, Training, Turn
from focalroute.evaluate.votes import Accuracies, elect, evidence_weight

_OPEN = 10  # choices that a free-form question counts for
_ENOUGH = (0.6, 0.7, 0.8, 0.9, 0.95, 0.99, math.inf)


class TrainedCascade(Strategy):
    """``cascade``, FrugalGPT (arXiv 2305.05176): ask one by one, stop when the answer is sure enough.

    Sure is the naive Bayes posterior of the leading candidate over the votes so far: over the K choices, or the answers
    given and one more, a vote then weighing as among 10. It stands for the paper's scorer, which reads the answers' own
    texts; no log has these. Accuracies go on being counted.

    Args:
        stages: (endpoint, how sure to be to stop after it), in order.
    """

    def __init__(self, training: Training, stages: Sequence[tuple[int, float]]) -> None:
        self._stages = tuple(stages)
        self._rank = training.rank
        self._accuracies = Accuracies(training)

    def answer(self, turn: Turn) -> int:
        """Ask on until it is sure."""
        scores: dict[int, float] = {}
        stages = [stage for stage in self._stages if stage[0] in turn.available]
        for i, enough in stages or [(i, 0.0) for i in turn.available]:
            candidate = turn.ask(i).candidate
            turn.wait()
            if candidate >= 0:
                weight = evidence_weight(self._accuracies[i], turn.choices or _OPEN)
                scores[candidate] = scores.get(candidate, 0.0) + weight
                if _sureness(scores, turn.choices) >= enough:
                    break
        return elect(scores, turn.replies, self._rank)

    def learn(self, turn: Turn, revealed: Revealed) -> None:
        """Count."""
        self._accuracies.learn(revealed)


def _sureness(scores: dict[int, float], choices: int) -> float:
    """The largest posterior; candidates without a backer score 0."""
    most = max(scores.values())
    unbacked = max(choices - len(scores), 1) if choices != len(scores) else 0
    total = sum(math.exp(score - most) for score in scores.values()) + unbacked * math.exp(-most)
    return 1 / total


def cascade(training: Training) -> TrainedCascade:
    """``cascade`` with its list of endpoints and thresholds learned together, as in FrugalGPT (its Section 3).

    Lists are of up to 3 endpoints from cheap to dear, each stage with a threshold of its own, and of the 4 and the 6
    most accurate with one threshold. They are compared on the last fifth of the training part, accuracies known from
    before: the best has the most right among those within ``usd_per_query``; without that, the best accuracy -
    `PRICE_OF_MONEY` x cost.
    """
    table = training.table
    fit, held = training.cut()
    usd = table.usd[training.rows].sum(axis=0) / np.maximum(table.there[training.rows].sum(axis=0), 1)
    rising = np.argsort(usd, kind="stable").tolist()
    lists = [c for size in (1, 2, 3) for c in combinations(rising, size)]
    lists += [tuple(sorted(training.rank[:size], key=rising.index)) for size in (4, 6) if size <= len(rising)]
    replay = CascadeReplay(fit, held)
    everybody = max(float(table.usd[held].sum(axis=1).mean()), 1e-12)

    def value(tried: tuple[float, float, object]) -> tuple[bool, float]:
        right, paid, _ = tried
        if training.usd_per_query is None:
            return True, right - PRICE_OF_MONEY * paid / everybody
        within = paid <= training.usd_per_query
        return within, right if within else -paid

    _, _, stages = max((tried for order in lists for tried in replay.tried(order)), key=value)
    return TrainedCascade(training, stages)


class CascadeReplay:
    """Cascades over recorded rows, all rows at once."""

    def __init__(self, training: Training, rows: I64) -> None:
        table, accuracies = training.table, Accuracies(training)
        self._worths, self._candidate, self._usd = table.worths(rows), table.candidate[rows], table.usd[rows]
        self._choices = np.array([len(table.queries[row].choices or ()) for row in rows.tolist()])
        among = np.maximum(np.where(self._choices, self._choices, _OPEN), 2) - 1
        odds = [evidence_weight(accuracies[i], 2) for i in range(len(table.endpoints))]
        self._weights = np.log(among)[:, None] + odds

    def tried(self, order: Sequence[int]) -> Iterator[tuple[float, float, tuple[tuple[int, float], ...]]]:
        """(accuracy, USD a query, stages) of this order with each set of thresholds."""
        scores, backed = np.zeros_like(self._worths), np.zeros(self._worths.shape, bool)
        rows, paid, stages = np.arange(len(scores)), np.zeros(len(scores)), []
        for i in order:
            voted = self._candidate[:, i] >= 0
            at = rows[voted], self._candidate[voted, i]
            scores[at] += self._weights[voted, i]
            backed[at] = True
            paid = paid + self._usd[:, i]
            stages.append((self._sure(scores, backed), self._worth(scores, backed), paid))
        free = len(order) - 1
        if len(order) > 3:
            thresholds: Iterable[tuple[float, ...]] = ((enough,) * free for enough in _ENOUGH)
        else:
            thresholds = product(_ENOUGH, repeat=free)
        for enough in thresholds:
            _, right, usd = stages[-1]
            for (sure, worth, cost), least in zip(stages[-2::-1], enough[::-1], strict=True):
                right, usd = np.where(sure >= least, worth, right), np.where(sure >= least, cost, usd)
            yield float(right.mean()), float(usd.mean()), tuple(zip(order, (*enough, math.inf), strict=True))

    def _sure(self, scores: F64, backed: Bools) -> F64:
        """See `_sureness`; 0 where none gave an answer."""
        size = backed.sum(axis=1)
        most = np.where(backed, scores, -np.inf).max(axis=1, initial=-100.0)
        unbacked = np.where(self._choices == size, 0, np.maximum(self._choices - size, 1))
        total = np.where(backed, np.exp(scores - most[:, None]), 0).sum(axis=1) + unbacked * np.exp(-most)
        sure: F64 = (size > 0) / np.maximum(total, 1e-12)
        return sure

    def _worth(self, scores: F64, backed: Bools) -> F64:
        leader = np.where(backed, scores, -np.inf).argmax(axis=1)
        worth: F64 = np.where(backed.any(axis=1), self._worths[np.arange(len(leader)), leader], 0)
        return worth
