"""Baselines that ask a part of the pool: the best fixed part, and a cascade from cheap to dear."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np

from focalroute.core.records import F64, I64
from focalroute.evaluate.presets.diversities import focal_diversities
from focalroute.evaluate.replay import Revealed, Turn
from focalroute.evaluate.table import LogTable
from focalroute.evaluate.training import Training, best_setting
from focalroute.evaluate.votes import Accuracies, Vote, elect, evidence_weight

_LARGEST_POOL = 12  # subsets of more endpoints are not enumerated: only of the most accurate
_ROWS = 1000  # rows that the subsets are compared on, spread evenly


def static_subset(training: Training) -> Vote:
    """``static-subset``, LLM-TOPLA's shape: plurality of the training part's best subset of at least 2 endpoints.

    Best by w x focal diversity + (1 - w) x plurality accuracy, both scaled to [0, 1] over all subsets (of equals the
    cheaper, then the first); w, out of 0, .25, .5, .75 and 1, is chosen on the last fifth.
    """
    if len(training.table.endpoints) < 3:
        return Vote(training.rank)
    fit, _ = training.cut()
    found = dict(zip((0.0, 0.25, 0.5, 0.75, 1.0), _best_subsets(fit, (0.0, 0.25, 0.5, 0.75, 1.0)), strict=True))
    weight = best_setting(training, tuple(found), lambda part, w: Vote(part.rank, found[w]))
    return Vote(training.rank, _best_subsets(training, (weight,))[0])


def _best_subsets(training: Training, weights: Sequence[float]) -> list[tuple[int, ...]]:
    table, rows = training.table, training.rows
    rows = rows[np.linspace(0, len(rows) - 1, min(len(rows), _ROWS)).astype(np.int64)]
    members = sorted(training.rank[:_LARGEST_POOL])
    subsets = [s for size in range(2, len(members) + 1) for s in combinations(members, size)]
    chosen = np.zeros((len(subsets), len(table.endpoints)))
    for n, subset in enumerate(subsets):
        chosen[n, list(subset)] = 1
    failed = (table.value[rows] < 0.5) | ~table.there[rows]
    accuracy = _scaled(plurality_accuracies(table, rows, chosen, training.rank))
    diversity = _scaled(focal_diversities(failed.astype(np.float64), chosen).astype(np.float64))
    usd = chosen @ table.usd[rows].sum(axis=0)
    orders = (np.lexsort((usd, -(w * diversity + (1 - w) * accuracy).round(9))) for w in weights)
    return [subsets[int(order[0])] for order in orders]


def _scaled(x: F64) -> F64:
    scaled: F64 = (x - x.min()) / max(float(np.ptp(x)), 1e-12)
    return scaled


def plurality_accuracies(table: LogTable, rows: I64, chosen: F64, rank: Sequence[int]) -> F64:
    """What the plurality of each subset is worth on average; ties go to the candidate with the best backer.

    Args:
        chosen: (S, N) 1 for the members of each subset.
        rank: the endpoints, best first.

    Returns:
        float64 (S,).
    """
    n = chosen.shape[1]
    place = np.empty(n)
    place[list(rank)] = np.arange(n)
    total = np.zeros(len(chosen))
    for row in rows.tolist():
        backed = table.candidate[row]
        given = np.unique(backed[backed >= 0])
        if not len(given):
            continue
        backs = backed[:, None] == given  # (N, C)
        worth = np.array([table.worth(row, candidate) for candidate in given.tolist()])
        # a vote counts 1; a best backer breaks ties by less than that
        bonus = np.where(backs, ((n - place) / (2 * n))[:, None], 0.0)
        votes = chosen @ backs.astype(np.float64)
        best_backer = np.stack([(chosen * bonus[:, c]).max(axis=1) for c in range(len(given))], axis=1)
        total += worth[(votes + best_backer).argmax(axis=1)] * (votes.sum(axis=1) > 0)
    mean: F64 = total / len(rows)
    return mean


class TrainedCascade:
    """``cascade``, FrugalGPT's shape: ask one by one from cheap to dear, stop when the answer is sure enough.

    Sure is the naive Bayes posterior of the leading candidate over the votes so far: over the K choices, or the answers
    given and one more, a vote then weighing as among 10. The members are the most accurate ones of the training part;
    how many, and the threshold, are chosen on the last fifth. Accuracies go on being counted.

    Args:
        setting: (how many members, the threshold).
    """

    def __init__(self, training: Training, setting: tuple[int, float]) -> None:
        size, self._threshold = setting
        table, rows = training.table, training.rows
        there = table.there[rows].sum(axis=0)
        usd = table.usd[rows].sum(axis=0) / np.maximum(there, 1)
        self._rank = training.rank
        self._order = tuple(sorted(training.rank[:size], key=lambda i: float(usd[i])))
        self._accuracies = Accuracies(training)

    def answer(self, turn: Turn) -> int:
        """Ask on until it is sure."""
        scores: dict[int, float] = {}
        there = [i for i in self._order if i in turn.available] or turn.available
        for i in there:
            candidate = turn.ask(i).candidate
            if candidate >= 0:
                weight = evidence_weight(self._accuracies[i], turn.choices or 10)
                scores[candidate] = scores.get(candidate, 0.0) + weight
                if _sureness(scores, turn.choices) >= self._threshold:
                    break
        return elect(scores, turn.replies, self._rank)

    def learn(self, turn: Turn, revealed: Revealed) -> None:
        """Count."""
        self._accuracies.learn(revealed)


def _sureness(scores: dict[int, float], choices: int) -> float:
    """The largest posterior; candidates nobody backs score 0."""
    most = max(scores.values())
    unbacked = max(choices - len(scores), 1) if choices != len(scores) else 0
    total = sum(math.exp(score - most) for score in scores.values()) + unbacked * math.exp(-most)
    return 1 / total


def cascade(training: Training) -> TrainedCascade:
    """``cascade`` with its settings chosen on the training part's last fifth."""
    n = len(training.table.endpoints)
    settings = [(size, t) for size in sorted({min(s, n) for s in (2, 3, 4, 6)}) for t in (0.7, 0.8, 0.9, 0.95, 0.99)]
    return TrainedCascade(training, best_setting(training, settings, TrainedCascade))
