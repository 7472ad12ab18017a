"""From logits to the posterior over candidates. Whoever needs the answer takes its argmax, the first of equals."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from focalroute.records import F32

__all__ = ["posterior"]


def posterior(logits: F32 | NDArray[np.float64]) -> NDArray[np.float64]:
    """Softmax of the candidates' logits, float64 (K,).

    >>> posterior(np.array([1000.0, 1000.0, -1000.0], np.float32)).tolist()
    [0.5, 0.5, 0.0]
    """
    masses = np.exp(logits.astype(np.float64) - logits.max())
    total: NDArray[np.float64] = masses / masses.sum()
    return total
