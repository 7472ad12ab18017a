"""From logits to the posterior over candidates. Whoever needs the answer takes its argmax, the first of equals."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp


def posterior(logits: Sequence[float]) -> list[float]:
    """Softmax of the candidates' logits (K,). In plain Python: of a handful of numbers that takes a third of the time.

    >>> posterior([1000.0, 1000.0, -1000.0])
    [0.5, 0.5, 0.0]
    """
    most = max(logits)
    weights = [exp(logit - most) for logit in logits]
    total = sum(weights)
    return [weight / total for weight in weights]
