"""Chooses which answers to label.

Labels teach the most where members differ. Three quarters of the labels go to disputed answers, a quarter to any
answers, because agreement may be wrong, too. With s the share of answers to label and d the share of disputed ones, a
disputed answer is drawn with probability s / 4 + 3/4 s / d, at most 1.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

_AT_RANDOM = 0.25  # of the labels
_PRIOR_ANSWERS, _PRIOR_DISPUTED = 10, 0.2  # prior of the share of disputed answers, and the answers it is worth
_LATEST = 500  # answers that the share of disputed ones is estimated from
_LEAST_DISPUTED = 1e-9  # of that share


class DisputedFirst:
    """Draws answers to label, mostly those whose members differ. Safe to use from several threads.

    Args:
        share: the share of all answers to draw, in [0, 1]; it is met approximately.
        earlier: whether each of the latest answers was disputed, oldest first.
    """

    def __init__(self, share: float, earlier: Iterable[bool] = ()) -> None:
        self._share = share
        self._answers, self._disputed = _PRIOR_ANSWERS, _PRIOR_DISPUTED
        self._lock = threading.Lock()
        for disputed in earlier:
            self.probability(disputed)

    def probability(self, disputed: bool) -> float:
        """Return the probability with which to draw the next answer, and count it."""
        with self._lock:
            d = max(self._disputed, _LEAST_DISPUTED)
            self._answers = min(self._answers + 1, _LATEST)
            self._disputed += (disputed - d) / self._answers
        if_disputed = min(1.0, self._share * (_AT_RANDOM + (1 - _AT_RANDOM) / d))
        return if_disputed if disputed else max(0.0, (self._share - d * if_disputed) / (1 - d))
