"""The price of time in an ask: asking costs money, waiting costs time.

The Decider was trained on money alone, so what it sees as the cost of an endpoint is an effective one, in USD, with mu
the price of a second and t the seconds that a call is expected to take:

- c + mu t in later rounds;
- mu t for a member under way, whose money is spent, t being what is left: the ask stops waiting once the Decider would
  ask none of those under way at that cost;
- c in the first round, whose slow members need not be waited for. But the first reply is waited for in any case: where
  all that the Decider would ask are slower than the endpoint that is worth most alone, by accuracy, money and time,
  it is c + mu (t - that endpoint's t), not less than c.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from focalroute.core.records import F64
from focalroute.endpoints.breaker import Latencies


@dataclass(frozen=True, slots=True)
class TimePrice:
    """The price of a second, and how long the endpoints of a pool take.

    Attributes:
        usd_per_second: mu.
        latencies: of each endpoint, pool order.
    """

    usd_per_second: float
    latencies: Sequence[Latencies]

    def waits(self, under_way: Mapping[int, float], length: float) -> F64:
        """(N,) USD that waiting for each endpoint's reply is expected to cost; as the others, if unknown.

        Args:
            under_way: endpoint -> for how many seconds its call has been; the others would begin now.
            length: how much longer than usual the replies to this query are.
        """
        left = [one.left(under_way.get(i, 0.0), length) for i, one in enumerate(self.latencies)]
        known = [seconds for seconds in left if seconds is not None]
        usual = sum(known) / len(known) if known else 0.0
        return self.usd_per_second * np.array([usual if seconds is None else seconds for seconds in left])
