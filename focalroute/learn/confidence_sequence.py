"""A confidence sequence by betting (Waudby-Smith & Ramdas 2023, arXiv 2010.09686), for values bounded on one side.

A bet against "the mean is at most m" at fair odds multiplies its wealth by 1 + b (x - m) with every value x, for a
stake b that keeps it positive. If the mean is at most m, the wealth ever reaches 1 / alpha with a probability of at
most alpha (Ville), however often one looks. The values need no upper bound (arXiv 2210.10768). No stake has to be
guessed: the first dollar is split over stakes from bold to timid.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

_STAKES = 0.9 * 0.3 ** np.arange(3)
_STEPS = 30  # halvings: the bound to a billionth of the range


def lower_bound(values: NDArray[np.float64], spans: NDArray[np.float64], *, alpha: float) -> float:
    """A bound that the mean of the values is surely not under, with probability 1 - alpha at all times together.

    Args:
        values: (n,) each at least -span, with one mean given those before.
        spans: (n,) positive, each known before its value.
        alpha: how likely the bound may ever be wrong.

    Returns:
        The bound, within the largest span; minus that where there are no values.
    """
    widest = float(spans.max(initial=1.0))
    low, high = -widest, widest
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if _log_wealth(values, spans, middle) >= -math.log(alpha) else (low, middle)
    return low


def _log_wealth(values: NDArray[np.float64], spans: NDArray[np.float64], mean: float) -> float:
    """The logarithm of the wealth against "the mean is at most this"."""
    stakes = _STAKES[:, None] / (spans + max(mean, 0.0))
    logs = np.log1p(stakes * (values - mean)).sum(axis=1)
    return float(np.logaddexp.reduce(logs)) - math.log(len(_STAKES))
