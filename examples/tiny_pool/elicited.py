"""Compares log-probabilities with the shares of ten samples, by calibration and cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np
from numpy.typing import NDArray

from focalroute.evaluate.outcomes import LoggedQuery, Output

__all__ = ["Calibration", "Compared", "compared"]

F64 = NDArray[np.float64]

_BINS = 10
_LEAST = 0.01  # mass of the right choice below which the logarithm is cut: ten samples often give it none
_RESAMPLES = 1000


@dataclass(frozen=True, slots=True)
class Calibration:
    """The quality and cost of probabilities.

    Attributes:
        accuracy: accuracy of the likeliest choice.
        brier: the mean squared error, summed over the choices (Brier 1950); less is better.
        log_loss: the mean of -ln of the right choice's probability, which counts as at least 0.01.
        error: the expected calibration error of the likeliest choice, in ten bins of equal width (Guo et al. 2017).
        seconds: of a call, the mean. ``usd``: as the endpoint bills it.
        tokens: that came back, as the endpoint counts them; the mean.
    """

    accuracy: float
    brier: float
    log_loss: float
    error: float
    seconds: float
    usd: float
    tokens: float


@dataclass(frozen=True, slots=True)
class Compared:
    """Two ways to elicit probabilities, on the same answers.

    Attributes:
        answers: how many; ``questions``: to how many different questions.
        low, high: the 95 % interval of the second minus the first, questions drawn anew with all their answers.
    """

    answers: int
    questions: int
    first: Calibration
    second: Calibration
    low: Calibration
    high: Calibration


def compared(
    first: Sequence[LoggedQuery], second: Sequence[LoggedQuery], names: Sequence[str], *, seed: int = 0
) -> Compared:
    """Compare two ways to elicit probabilities, on the answers for which both gave some.

    Args:
        first: queries with probabilities elicited one way; ``second``: the same queries in order, the other way.
        names: the endpoints.
    """
    pairs = [
        (number, name)
        for number, queries in enumerate(zip(first, second, strict=True))
        for name in names
        if all(query.outputs[name].probabilities is not None for query in queries)
    ]
    ways = [_facts([(queries[number], queries[number].outputs[name]) for number, name in pairs])
            for queries in (first, second)]  # fmt: skip
    numbers, starts = np.unique([number for number, _ in pairs], return_index=True)
    groups = np.split(np.arange(len(pairs)), starts[1:])
    rng, differences = np.random.default_rng(seed), []
    for _ in range(_RESAMPLES):
        rows = np.concatenate([groups[i] for i in rng.integers(len(groups), size=len(groups))])
        drawn = [np.array(astuple(_calibration(facts[rows]))) for facts in ways]
        differences.append(drawn[1] - drawn[0])
    low, high = np.percentile(differences, (2.5, 97.5), axis=0).tolist()
    one, other = map(_calibration, ways)
    return Compared(len(pairs), len(numbers), one, other, Calibration(*low), Calibration(*high))


def _facts(rows: Sequence[tuple[LoggedQuery, Output]]) -> F64:
    """Of each answer: mass of the likeliest choice, whether it is right, Brier's score, log-loss, and what it cost."""
    return np.array([_fact(int(query.label or 0), output) for query, output in rows])


def _fact(label: int, output: Output) -> tuple[float, ...]:
    """The facts of one answer; missing probability is shared equally among the choices."""
    given = np.array(output.probabilities or ())
    mass = given + (1 - given.sum()) / len(given)
    likeliest = int(mass.argmax())
    return (
        float(mass[likeliest]),
        float(likeliest == label),
        float(mass @ mass - 2 * mass[label] + 1),
        float(-np.log(max(mass[label], _LEAST))),
        output.latency_s or 0.0,
        output.cost_usd or 0.0,
        float(output.completion_tokens),
    )


def _calibration(facts: F64) -> Calibration:
    sure, right = facts[:, 0], facts[:, 1]
    bins = np.minimum((sure * _BINS).astype(int), _BINS - 1)
    gaps = np.bincount(bins, weights=sure - right)
    accuracy, brier, log_loss, seconds, usd, tokens = facts[:, 1:].mean(axis=0).tolist()
    return Calibration(accuracy, brier, log_loss, float(np.abs(gaps).sum()) / len(facts), seconds, usd, tokens)
