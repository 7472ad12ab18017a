"""LLM-Blender's ranker as a baseline of Table 3."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from focalroute.evaluate.baselines import TextVectors
from focalroute.evaluate.outcomes import Output
from focalroute.evaluate.replay import Revealed, Training, Turn

F64 = NDArray[np.float64]

_RIDGE = 1.0


class Rerank:
    """LLM-Blender's shape (arXiv 2306.02561): all endpoints are asked, and a ranker picks one reply.

    Its PairRanker compares two replies at a time and picks the one that wins most. Here the comparison is linear, in
    the query's text and in the length of the reply, standardised per member; the wins of i over j then add up to i's
    own predicted worth, so that worth is fitted (ridge regression, a weight vector a member). The original also reads
    the replies' text, which a log does not have.
    """

    def __init__(self, training: Training) -> None:
        table, rows = training.table, training.rows
        self._rank, self._vectors = training.rank, TextVectors(training)
        lengths = np.array(
            [[_length(table.queries[row].outputs.get(name)) for name in table.names] for row in rows.tolist()]
        )
        self._centre, self._scale = lengths.mean(axis=0), np.maximum(lengths.std(axis=0), 1e-6)
        values = np.where(table.failed[rows], 0.0, np.nan_to_num(table.value[rows]))
        self._mean: F64 = values.mean(axis=0)
        x = self._vectors.rows.astype(np.float64)
        self._weights = np.stack(
            [self._fitted(x, lengths[:, i], values[:, i], i) for i in range(len(table.names))], axis=1
        )

    def answer(self, turn: Turn) -> int:
        """Return the reply with the highest predicted worth; ties go to the better endpoint."""
        text = self._vectors(turn.query.text)
        best = (-math.inf, -1)
        for i in (i for i in self._rank if i in turn.available):
            reply = turn.ask(i)
            if reply.candidate >= 0:
                length = (_length(reply.output) - self._centre[i]) / self._scale[i]
                worth = float(np.append(text, length) @ self._weights[:, i]) + self._mean[i]
                best = max(best, (worth, reply.candidate), key=lambda one: one[0])
        return best[1]

    def learn(self, turn: Turn, revealed: Revealed) -> None:
        """Learn nothing: it stays as trained."""

    def _fitted(self, text: F64, length: F64, value: F64, i: int) -> F64:
        x = np.column_stack([text, (length - self._centre[i]) / self._scale[i]])
        weights: F64 = np.linalg.solve(x.T @ x + _RIDGE * np.eye(x.shape[1]), x.T @ (value - self._mean[i]))
        return weights


def _length(output: Output | None) -> float:
    return 0.0 if output is None else math.log1p(output.completion_tokens)
