"""Log-probabilities against shares of ten samples: how well they are calibrated, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from focalroute.evaluate.outcomes import LoggedQuery, Output

__all__ = ["Calibration", "calibrations"]

_BINS = 10
_LEAST = 0.01  # mass of the right choice below which the logarithm is cut: ten samples often give it none


@dataclass(frozen=True, slots=True)
class Calibration:
    """How good probabilities are.

    Attributes:
        answers: they were looked at in so many.
        accuracy: of the likeliest choice.
        brier: the mean squared distance from what was right, summed over the choices (Brier 1950); less is better.
        log_loss: the mean of -ln of the right choice's mass, which counts as .01 at least.
        error: expected calibration error of the likeliest choice, in ten bins of equal width (Guo et al. 2017).
        seconds: of a call, the mean. ``usd``: as the endpoint bills it.
    """

    answers: int
    accuracy: float
    brier: float
    log_loss: float
    error: float
    seconds: float
    usd: float


def calibrations(ways: Mapping[str, Sequence[LoggedQuery]], names: Sequence[str]) -> dict[str, Calibration]:
    """Of each way, on the answers for which all ways gave probabilities.

    Args:
        ways: the same queries in the same order, with probabilities had in different ways.
        names: the endpoints.
    """
    pairs = [
        (number, name)
        for number in range(min(map(len, ways.values())))
        for name in names
        if all(queries[number].outputs[name].probabilities is not None for queries in ways.values())
    ]
    return {
        way: _calibration([(queries[number], queries[number].outputs[name]) for number, name in pairs])
        for way, queries in ways.items()
    }


def _calibration(rows: Sequence[tuple[LoggedQuery, Output]]) -> Calibration:
    """Missing mass is shared out among the choices."""
    masses = [_whole(output.probabilities or ()) for _, output in rows]
    labels = [int(query.label or 0) for query, _ in rows]
    sure = np.array([mass.max() for mass in masses])
    right = np.array([float(mass.argmax() == label) for mass, label in zip(masses, labels, strict=True)])
    of_right = np.array([mass[label] for mass, label in zip(masses, labels, strict=True)])
    square = np.array([float(mass @ mass) for mass in masses])
    bins = np.minimum((sure * _BINS).astype(int), _BINS - 1)
    gaps = [abs(float((sure - right)[bins == i].sum())) for i in range(_BINS)]
    return Calibration(
        answers=len(rows),
        accuracy=float(right.mean()),
        brier=float((square - 2 * of_right + 1).mean()),
        log_loss=float(-np.log(np.maximum(of_right, _LEAST)).mean()),
        error=sum(gaps) / len(rows),
        seconds=float(np.mean([output.latency_s or 0 for _, output in rows])),
        usd=float(np.mean([output.cost_usd or 0 for _, output in rows])),
    )


def _whole(masses: Sequence[float]) -> NDArray[np.float64]:
    array = np.array(masses)
    whole: NDArray[np.float64] = array + (1 - array.sum()) / len(array)
    return whole
