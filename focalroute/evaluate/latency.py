"""How long recorded calls took; where a log never says it, by a model.

The model: s (0.3 + tokens / 80) seconds, s = (p / median p)^(1/3), p the endpoint's price of a generated token (the
dearer are larger and slower; of unknown price: s = 1). Every call varies by a factor whose logarithm is normal with a
deviation of 0.3, and one in twenty takes three times as long.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from focalroute.core.config import Endpoint
from focalroute.core.records import F64
from focalroute.evaluate.outcomes import LoggedQuery

_FIRST_S, _TOKENS_A_SECOND = 0.3, 80.0
_SPREAD, _LATE_SHARE, _LATE = 0.3, 0.05, 3.0


def call_seconds(queries: Sequence[LoggedQuery], endpoints: Sequence[Endpoint]) -> F64:
    """(T, N) seconds of each call: as the log says (0 where an output does not), or by the model if it never does."""
    outputs = [[query.outputs.get(endpoint.name) for endpoint in endpoints] for query in queries]
    recorded = np.array([[(o and o.latency_s) or 0.0 for o in row] for row in outputs], np.float64)
    if recorded.any():
        return recorded
    tokens = np.array([[o.completion_tokens if o else 0 for o in row] for row in outputs], np.float64)
    prices = np.array([float(e.price.completion) if e.price else 0.0 for e in endpoints])
    median = float(np.median(prices[prices > 0])) if prices.any() else 1.0
    slowness = (np.where(prices > 0, prices, median) / median) ** (1 / 3)
    chance = np.random.default_rng(0)
    factor = np.exp(chance.normal(0, _SPREAD, tokens.shape))
    factor *= np.where(chance.random(tokens.shape) < _LATE_SHARE, _LATE, 1.0)
    seconds: F64 = slowness * (_FIRST_S + tokens / _TOKENS_A_SECOND) * factor
    return seconds
