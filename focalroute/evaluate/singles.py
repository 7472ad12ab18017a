"""Baselines that ask one endpoint a query, without looking at the query."""

from __future__ import annotations

import random
from collections.abc import Sequence

from focalroute.evaluate.replay import Revealed, Turn
from focalroute.evaluate.training import Training, best_setting
from focalroute.policy.baselines import RecencyRanking


def first_of(order: Sequence[int], turn: Turn) -> int | None:
    """The first of an order that can be asked; None if nobody can."""
    return next((i for i in order if i in turn.available), None)


class First:
    """``best-single-train``, ``best-single-hindsight``: always the same endpoint; the next best where it is missing.

    Args:
        order: endpoints, most wanted first.
    """

    def __init__(self, order: Sequence[int]) -> None:
        self._order = tuple(order)

    def answer(self, turn: Turn) -> int:
        """Its answer."""
        wanted = first_of(self._order, turn)
        return -1 if wanted is None else turn.ask(wanted).candidate

    def learn(self, turn: Turn, revealed: Revealed) -> None:
        """Nothing to learn."""


class RandomOf:
    """``random``, ``random-select``: one of the given endpoints, each as likely."""

    def __init__(self, endpoints: Sequence[int], seed: int) -> None:
        self._endpoints = tuple(endpoints)
        self._random = random.Random(seed)  # noqa: S311 - no secret

    def answer(self, turn: Turn) -> int:
        """The answer of one of them; of anybody where none of them is there."""
        there = [i for i in self._endpoints if i in turn.available] or turn.available
        return turn.ask(self._random.choice(there)).candidate if there else -1

    def learn(self, turn: Turn, revealed: Revealed) -> None:
        """Nothing to learn."""


class ReplayedRoundRobin:
    """``round-robin``: everyone in turn, in pool order."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._next = 0

    def answer(self, turn: Turn) -> int:
        """The next one's answer; who is missing is passed over."""
        order = [(self._next + step) % self._size for step in range(self._size)]
        wanted = first_of(order, turn)
        if wanted is None:
            return -1
        self._next = (wanted + 1) % self._size
        return turn.ask(wanted).candidate

    def learn(self, turn: Turn, revealed: Revealed) -> None:
        """Nothing to learn."""


class ReplayedLatestCorrect:
    """``latest-correct`` (the paper's greedy control): the member that was right most recently.

    Ranked by `focalroute.policy.baselines.RecencyRanking` among those that were asked; it starts from the training
    part's last rows, and accuracy there breaks ties.
    """

    def __init__(self, training: Training) -> None:
        table, rows = training.table, training.rows
        self._rank = training.rank
        self._recency = RecencyRanking(len(table.endpoints))
        for row in rows.tolist():
            known = table.there[row] & ~table.failed[row]
            self._recency.record({i: float(table.value[row, i]) for i in known.nonzero()[0].tolist()})

    def answer(self, turn: Turn) -> int:
        """Its answer."""
        wanted = max(turn.available, key=lambda i: (*self._recency.key(i), -self._rank.index(i)), default=None)
        return -1 if wanted is None else turn.ask(wanted).candidate

    def learn(self, turn: Turn, revealed: Revealed) -> None:
        """Note who was right."""
        self._recency.record(revealed.values)


def random_select(training: Training) -> RandomOf:
    """``random-select`` (the paper's greedy control): a random one of the training part's top k.

    k is chosen on its last fifth.
    """
    sizes = range(2, max(3, len(training.table.endpoints) // 2 + 1))
    k = best_setting(training, sizes, lambda part, k: RandomOf(part.rank[:k], part.seed))
    return RandomOf(training.rank[:k], training.seed)
