"""Pacing: the cost weight, learned so that a query costs on average what it may.

A dual ascent on the constraint E[cost] = target, with a memory. Each query moves the price by

    log lambda += eta (e + D / H),    e = cost / target - 1,    D = the sum of e so far,

so that what was over- or underspent is made up for over the next H queries, and the long-run mean is the target
whatever the policy's costs are, as long as a higher price makes them lower. A step is bounded, so far out that the
long tail of real costs is not cut (that would bias the mean); so are D, to 1,000 targets, and what is made up for at a
time, to half a target: no burst, and no time in which the target could not be met, can make it spend nothing, or
everything, for long.

With many asks under way costs answer to an old price. Steps are then smaller, and the asks go by prices spread around
the one that is learned, up to e times lower and higher: a policy whose cost falls steeply at some price would else
have all that is under way on one side of it, and then all on the other. Mixing reaches the costs in between, and what
is mixed answers to the price as gently as it is spread. The places follow a golden-ratio sequence, so that any few
consecutive asks are spread evenly.
"""

from __future__ import annotations

import json
import math
import threading
from decimal import Decimal

from focalroute.core.amounts import usd
from focalroute.core.config import Budget
from focalroute.core.constants import COST_WEIGHT_RANGE
from focalroute.store.base import Store

LOWEST, HIGHEST = (
    COST_WEIGHT_RANGE[0] / 2,
    COST_WEIGHT_RANGE[1] * 2,
)  # a policy takes no notice of what lies further out
_RATE = 0.1  # eta
_STEP = 1.0  # the most that one query moves log lambda
_REPAID = 300.0  # H
_REPAID_AT_A_TIME = 0.5  # the most of D / H, either way
_DEBT = 1000.0  # the most that D is, either way
_UNDER_WAY = 4  # asks under way from which on steps are smaller, and prices spread
_SPREAD = 1.0  # the most that the price of one ask may be off, in log lambda, either way
_GOLDEN = (math.sqrt(5) - 1) / 2
_LATEST = 16  # answers in the store whose prices a new process goes on from


class Pacer:
    """Holds the cost weight. Thread-safe.

    Args:
        target: mean USD of a query; None: the price stays as it is.
        price: lambda at the start.
    """

    def __init__(self, target: Decimal | None, price: float) -> None:
        self._target = None if target is None else float(target)
        self._log = math.log(price)
        self._price = price
        self._debt = 0.0
        self._under_way = 0
        self._begun = 0
        self._lock = threading.Lock()

    @property
    def price(self) -> float:
        """Lambda now: what asking the whole pool once is worth in right answers."""
        return self._price

    def begin(self) -> float:
        """A query begins: the price it is to go by."""
        with self._lock:
            self._under_way += 1
            self._begun += 1
            return self._price if self._target is None else self._spread()

    def _spread(self) -> float:
        """The price of now, or one beside it; the more asks are under way, the further."""
        place = 2.0 * (self._begun * _GOLDEN % 1.0) - 1.0
        return _within(self._log + self._width * place)

    @property
    def _width(self) -> float:
        """How far the prices of asks under way are spread, in log lambda, either way."""
        return _SPREAD * max(0.0, 1.0 - _UNDER_WAY / max(self._under_way, 1))

    def end(self, cost: Decimal | None) -> None:
        """A query that began has ended and cost so many USD; None: it was refused, which tells nothing."""
        with self._lock:
            rate = _RATE / max(1.0, self._under_way / _UNDER_WAY)
            self._under_way -= 1
            if self._target is not None and cost is not None:
                self._move(rate, float(cost) / self._target - 1.0)

    def add(self, cost: float) -> None:
        """So many USD were spent besides, on no query of their own (a probe): the queries to come make up for it."""
        with self._lock:
            if self._target is not None:
                self._debt = min(self._debt + cost / self._target, _DEBT)

    def _move(self, rate: float, error: float) -> None:
        debt = min(max(self._debt + error, -_DEBT), _DEBT)
        repaid = min(max(debt / _REPAID, -_REPAID_AT_A_TIME), _REPAID_AT_A_TIME)
        step = min(max(rate * (error + repaid), -_STEP), _STEP)
        lowest, highest = math.log(LOWEST) - self._width, math.log(HIGHEST) + self._width
        self._log = min(max(self._log + step, lowest), highest)
        self._debt = debt
        self._price = _within(self._log)


def _within(log_price: float) -> float:
    return min(max(math.exp(log_price), LOWEST), HIGHEST)


def paced(budget: Budget | None, store: Store, price: float) -> Pacer:
    """The pacer of a budget: it goes on from the prices of the latest answers in the store, if there are any."""
    if budget is None or budget.usd_per_query is None:
        return Pacer(None, price)
    receipts = [json.loads(answer.receipt) for answer, _ in store.recent(_LATEST)]
    # Receipts of before 24 November 2026 have it as price_of_money.
    latest = [receipt.get("cost_weight") or receipt.get("price_of_money") or price for receipt in receipts]
    if latest:
        price = math.exp(sum(map(math.log, latest)) / len(latest))
    return Pacer(usd(budget.usd_per_query, "usd_per_query"), min(max(price, LOWEST), HIGHEST))
