"""Synthetic responses of a policy's cost to the cost weight, for tests and benchmarks of pacing."""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass
from decimal import Decimal

from focalroute.money.pacing import HIGHEST_WEIGHT, LOWEST_WEIGHT, Pacer

QUERIES = 5000


@dataclass(frozen=True, slots=True)
class Response:
    """Costs fall from 4 to 0.1 targets as log lambda rises, in the middle of it, steeply or not, with noise on each.

    After 2,000 queries they are multiplied by ``price``; after 3,500 the middle moves by ``drift``.

    Attributes:
        where: of the middle, 0 to 1, between the bounds where the target can still be met after both changes.
        start: the cost weight at the start.
    """

    steepness: float
    where: float
    price: float
    drift: float
    noise: float
    start: float
    seed: int

    @property
    def middle(self) -> float:
        dearest = math.log((4 - 1 / 3) / (1 / 3 - 0.1)) / self.steepness  # above it: costs the target at three prices
        low, high = math.log(LOWEST_WEIGHT) + 1.25, math.log(HIGHEST_WEIGHT) - 1.25 - dearest
        return low + self.where * (high - low)

    def cost(self, number: int, cost_weight: float, rng: random.Random) -> float:
        """Of one query, in targets."""
        centre = self.middle + (self.drift if number >= 3500 else 0.0)
        slope = min(self.steepness * (math.log(cost_weight) - centre), 500.0)
        mean = (self.price if number >= 2000 else 1.0) * (0.1 + 3.9 / (1 + math.exp(slope)))
        return mean * rng.lognormvariate(-(self.noise**2) / 2, self.noise)

    def mean(self, under_way: int) -> float:
        """The mean of 5,000, in targets, with so many under way at a time."""
        pacer, rng = Pacer(Decimal(1), self.start), random.Random(self.seed)
        waiting: deque[float] = deque()
        total = 0.0
        for number in range(QUERIES):
            waiting.append(self.cost(number, pacer.begin(), rng))
            total += waiting[-1]
            if len(waiting) == under_way:
                pacer.end(Decimal(repr(waiting.popleft())))
            assert LOWEST_WEIGHT * 0.999 <= pacer.weight <= HIGHEST_WEIGHT * 1.001
        return total / QUERIES


def drawn(count: int, seed: int) -> list[Response]:
    """Responses at random: prices tripled, halved or between; steep or not; the start up to hundreds of times off."""
    rng = random.Random(seed)
    return [
        Response(
            steepness=rng.uniform(0.6, 20),
            where=rng.random(),
            price=rng.uniform(0.5, 3),
            drift=rng.uniform(-1, 1),
            noise=rng.random(),
            start=rng.uniform(0.01, HIGHEST_WEIGHT),
            seed=number,
        )
        for number in range(count)
    ]
