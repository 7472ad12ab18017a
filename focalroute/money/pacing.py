"""Pacing: the cost weight (lambda), adapted so that a query costs on average what the budget allows.

A dual ascent on the constraint E[cost] = target, with a memory. Each query moves the weight by

    log lambda += eta (e + D / H),    e = cost / target - 1,    D = the sum of e so far,

so that over- and underspending is repaid over the next H queries. If a higher weight lowers the cost, the long-run mean
is the target for any policy. The bound of a step is wide enough not to cut the long tail of real costs, which would
bias the mean. D is bounded to 1,000 targets, and D / H to half a target. So after a burst, or a period in which the
target could not be met, it does not spend nothing, or everything, for long.

With many asks under way, costs respond to an old weight. Steps are then smaller, and the asks use weights spread around
the learned one, up to e times lower and higher. Otherwise, with a policy whose cost falls steeply at some weight, all
asks under way would be on one side of it, and then all on the other. Mixing reaches the costs in between, and the wider
the spread, the more gently the mixed cost responds to the weight. Positions follow a golden-ratio sequence, so that any
few consecutive asks are spread evenly.

A policy at the weights it was trained for may spend neither the least nor the most possible. Beyond the highest of
these weights one endpoint is asked, chosen by the text (see `focalroute.serving.ask.Ask.decide`). At the bounds of the
weight some asks go to the cheapest endpoint alone (`HIGHEST_WEIGHT`), or to all endpoints (`LOWEST_WEIGHT`). Their
share follows D, from none to all within 20 targets, and the weight stays at its bound meanwhile. So every target can be
held from the cost of the cheapest endpoint to the cost of all, except with policies for which there is no evidence that
asking all endpoints gives more right answers (see `Policy.served`).
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Sequence
from decimal import Decimal

from focalroute.core.config import Budget
from focalroute.core.dollars import parse_usd
from focalroute.core.json_values import read_object
from focalroute.core.records import COST_WEIGHT_RANGE
from focalroute.store.base import Store

_log = logging.getLogger("focalroute")

#: At this weight or a lower one, all endpoints are asked at once.
LOWEST_WEIGHT = COST_WEIGHT_RANGE[0] / 2
#: At this weight or a higher one, the cheapest endpoint is asked alone.
HIGHEST_WEIGHT = COST_WEIGHT_RANGE[1] * 32

_RATE = 0.1  # eta
_STEP = 1.0  # the most that one query moves log lambda
_REPAID = 300.0  # H
_REPAID_AT_A_TIME = 0.5  # bound of D / H, either way
_DEBT = 1000.0  # bound of D, either way
_UNDER_WAY = 4  # beyond this many asks under way, steps are smaller and weights spread
_SPREAD = 1.0  # bound of the spread of weights in log lambda, either way
_GOLDEN = (math.sqrt(5) - 1) / 2
_SILVER = math.sqrt(2) - 1  # step of a second sequence, independent of the golden one, which mixes asks at a bound
_MIXED = 20.0  # width of the range of D, in targets, over which the share of asks at a bound rises from none to all
_TOO_LOW = 1000  # consecutive asks at the highest weight; if these cost too much on average, the target cannot be held
_PRICE_RANGE = 1000.0
_FIRST_WORTH = 0.05  # initial price of ``seconds_per_query``, in units of reward (-1 wrong, 1 right)
_LATEST = 16  # answers in the store whose weights a new process starts from


class DualAscent:
    """Adapts a weight so that queries on average use the target amount. Thread-safe.

    Args:
        target: the mean to reach; None: the weight stays constant.
        weight: the initial weight.
        bounds: the lowest and the highest weight.
    """

    _unmet = ""  # format of the warning, with target and mean, that even the highest weight misses the target

    def __init__(self, target: float | None, weight: float, bounds: tuple[float, float]) -> None:
        self._target = target
        self._bounds = bounds
        self._log = math.log(weight) if target is not None else 0.0
        self._weight = weight
        self._debt = 0.0
        self._under_way = 0
        self._begun = 0
        self._at_highest, self._excess = 0, 0.0  # asks in a row at the highest weight, and the sum of e over them
        self._lock = threading.Lock()

    @property
    def weight(self) -> float:
        """The current weight."""
        return self._weight

    def begin(self) -> float:
        """Count a query that begins; return the weight it is to use."""
        with self._lock:
            self._under_way += 1
            self._begun += 1
            return self._weight if self._target is None else self._mix_at_bounds(self._spread_weight())

    def resume(self, latest: Sequence[float]) -> None:
        """Start from the geometric mean of the latest queries' weights; a weight of 0 means none was used."""
        used = [math.log(weight) for weight in latest if weight > 0]
        if used and self._target is not None:
            self._log = min(max(sum(used) / len(used), math.log(self._bounds[0])), math.log(self._bounds[1]))
            self._weight = self._within(self._log)

    def _spread_weight(self) -> float:
        """Return the current weight or one near it; the more asks are under way, the further away."""
        place = 2.0 * (self._begun * _GOLDEN % 1.0) - 1.0
        return self._within(self._log + self._width * place)

    def _mix_at_bounds(self, weight: float) -> float:
        """Return the weight that one query uses, given its spread weight; `Pacer` mixes asks at the bounds."""
        return weight

    @property
    def _width(self) -> float:
        """How far the weights of asks under way are spread in the logarithm, either way."""
        return _SPREAD * max(0.0, 1.0 - _UNDER_WAY / max(self._under_way, 1))

    def _stays_at_bound(self, lowest: float, highest: float) -> bool:
        """Whether the weight stays at its bound, as asks are mixed there."""
        return False

    def end(self, used: float | Decimal | None) -> None:
        """Count a query that ended, and the amount it used; None: it was refused."""
        with self._lock:
            rate = _RATE / max(1.0, self._under_way / _UNDER_WAY)
            self._under_way -= 1
            if self._target is not None and used is not None:
                self._move(rate, float(used) / self._target - 1.0)

    def _move(self, rate: float, error: float) -> None:
        """Move the weight by one query's error e, at the rate eta."""
        debt = min(max(self._debt + error, -_DEBT), _DEBT)
        repaid = min(max(debt / _REPAID, -_REPAID_AT_A_TIME), _REPAID_AT_A_TIME)
        step = min(max(rate * (error + repaid), -_STEP), _STEP)
        lowest, highest = (math.log(bound) for bound in self._bounds)
        lowest, highest = lowest - self._width, highest + self._width
        self._debt = debt
        if not self._stays_at_bound(lowest, highest):
            self._log = min(max(self._log + step, lowest), highest)
        self._weight = self._within(self._log)
        if self._log < highest or debt < _MIXED / 2:
            self._at_highest, self._excess = 0, 0.0
            return
        self._at_highest, self._excess = self._at_highest + 1, self._excess + error
        if self._at_highest == _TOO_LOW and self._excess > 0 and self._target is not None:
            _log.warning(self._unmet, self._target, self._target * (1 + self._excess / self._at_highest))

    def _within(self, log_weight: float) -> float:
        return min(max(math.exp(log_weight), self._bounds[0]), self._bounds[1])


class Pacer(DualAscent):
    """Adapts the cost weight so that queries on average cost the target.

    Args:
        target: mean USD of a query; None: the weight stays constant.
        cost_weight: the initial lambda.
    """

    _unmet = (
        "usd_per_query: %.3g cannot be held: the cheapest way to answer costs %.3g. Raise it, or add a cheaper endpoint"
    )

    def __init__(self, target: Decimal | None, cost_weight: float) -> None:
        super().__init__(None if target is None else float(target), cost_weight, (LOWEST_WEIGHT, HIGHEST_WEIGHT))

    def _mix_at_bounds(self, weight: float) -> float:
        """Return the given weight; near a bound, the last one at which the policy decides or, at random, the bound."""
        lowest = COST_WEIGHT_RANGE[0]
        if lowest <= weight <= HIGHEST_WEIGHT / 2:
            return weight
        last, bound, owed = HIGHEST_WEIGHT / 2, HIGHEST_WEIGHT, self._debt
        if weight < lowest:
            last, bound, owed = lowest, LOWEST_WEIGHT, -self._debt
        at_bound = math.isclose(weight, bound) and self._begun * _SILVER % 1.0 < 0.5 + owed / _MIXED
        return bound if at_bound else last

    def _stays_at_bound(self, lowest: float, highest: float) -> bool:
        return (self._log >= highest and self._debt > -_MIXED) or (self._log <= lowest and self._debt < _MIXED)

    def add(self, cost: float) -> None:
        """Count USD spent on exploration or judging, for which later queries make up."""
        with self._lock:
            if self._target is not None:
                self._debt = min(self._debt + cost / self._target, _DEBT)


class TimePacer(DualAscent):
    """Adapts the price of a second so that queries on average take the target time.

    The price stays within a factor of 1,000 of its start, either way: from next to nothing to a price at which only the
    quickest endpoint is asked.

    Args:
        target: mean seconds of a query; None: the price stays constant.
        usd_per_second: the initial price.
    """

    _unmet = (
        "seconds_per_query: %.3g cannot be held: the quickest way to answer takes %.3g. Raise it, or add a quicker "
        "endpoint"
    )

    def __init__(self, target: float | None, usd_per_second: float) -> None:
        super().__init__(target, usd_per_second, (usd_per_second / _PRICE_RANGE, usd_per_second * _PRICE_RANGE))


def make_pacers(
    budget: Budget | None, store: Store, cost_weight: float, usd_per_second: float, ask_all_usd: float
) -> tuple[Pacer, TimePacer]:
    """Make a budget's pacers, which start from the weights of the latest answers in the store, if there are any.

    Args:
        cost_weight: the cost weight on a new store, or without a target.
        usd_per_second: likewise the price of time; from 0 it starts where ``seconds_per_query`` cost a fortieth of a
            right answer.
        ask_all_usd: expected USD of asking every endpoint once.
    """
    usd, seconds = (budget.usd_per_query, budget.seconds_per_query) if budget else (None, None)
    target = None if usd is None else parse_usd(usd, "usd_per_query")
    if seconds is not None and not usd_per_second:
        usd_per_second = _FIRST_WORTH * (ask_all_usd or 1.0) / cost_weight / seconds
    money, time = Pacer(target, cost_weight), TimePacer(seconds, usd_per_second)
    if target is not None or seconds is not None:
        receipts = [read_object(answer.receipt) for answer, _ in store.recent(_LATEST)]
        # Receipts from before 24 November 2026 call it price_of_money.
        money.resume([receipt.get("cost_weight") or receipt.get("price_of_money") or 0.0 for receipt in receipts])
        time.resume([receipt.get("usd_per_second") or 0.0 for receipt in receipts])
    return money, time
