"""The training rows as arrays: what everybody answered to them, and what each answer was worth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from focalroute.core.records import F32
from focalroute.evaluate.outcomes import Output
from focalroute.evaluate.training import Training

I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Recorded:
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


def masses(candidate: int, output: Output, width: int) -> F32:
    """An output's mass on each of ``width`` candidates: its probabilities, else its vote; zeros without an answer."""
    found = np.zeros(width, np.float32)
    if output.probabilities is not None and output.error is None:
        found[: len(output.probabilities)] = output.probabilities
    elif candidate >= 0:
        found[candidate] = 1
    return found


def recorded(training: Training) -> Recorded:
    """The training part, and nothing else of the log."""
    table, rows = training.table, training.rows
    worth = table.worths(rows).astype(np.float32)
    n, width = len(table.endpoints), worth.shape[1]
    candidate = table.candidate[rows]
    votes = (candidate[:, :, None] == np.arange(width)).astype(np.float32)
    probabilities = votes.copy()
    for at, row in enumerate(rows.tolist()):
        query = table.queries[row]
        for i, endpoint in enumerate(table.endpoints):
            output = query.outputs.get(endpoint.name)
            if output is not None and output.probabilities is not None:
                probabilities[at, i] = masses(int(candidate[at, i]), output, width)
    bonus = np.empty(n, np.float32)
    bonus[list(training.rank)] = (n - np.arange(n)) / (2 * n + 2)
    return Recorded(
        votes=votes,
        probabilities=probabilities,
        worth=worth,
        fails=((table.value[rows] < 0.5) | ~table.there[rows]).astype(np.float32),
        choices=np.array([len(table.queries[row].choices or ()) for row in rows.tolist()]),
        there=table.there[rows],
        best_first=bonus,
    )
