"""Pacing: the cost weight (lambda), adapted so that a query costs on average what the budget allows.

A dual ascent on the constraint E[cost] = target, with a memory. Each query moves the weight by

    log lambda += eta (e + D / H),    e = cost / target - 1,    D = the sum of e so far,

so that over- and underspending is made up for over the next H queries, and the long-run mean is the target whatever
the policy's costs are, as long as a higher weight makes them lower. A step is bounded, so widely that the long tail of
real costs is not cut (that would bias the mean). D is bounded to 1,000 targets, and what is made up for at a time to
half a target: no burst, and no period in which the target could not be met, makes it spend nothing, or everything, for
long.

With many asks under way, costs respond to an old weight. Steps are then smaller, and the asks use weights spread around
the learned one, up to e times lower and higher. Without that, a policy whose cost falls steeply at some weight would
have all asks under way on one side of it, and then all on the other. Mixing reaches the costs in between, and the mixed
cost responds to the weight as gently as it is spread. The positions follow a golden-ratio sequence, so that any few
consecutive asks are spread evenly.

What policies do at the weights they are trained for need be neither the least nor the most that can be spent. Beyond
the highest of these one endpoint is asked, by the text (see `focalroute.serving.ask.Ask.decide`). At the bounds of the
weight some asks go to the cheapest endpoint alone (`HIGHEST_WEIGHT`), or to everybody (`LOWEST_WEIGHT`). Their share
follows D, from none to all within 20 targets, and the weight stays at its bound meanwhile. So every target is held from
what the cheapest endpoint costs to what all cost, but for policies of which nothing shows that asking everybody has
more right (see `Policy.served`).
"""

from __future__ import annotations

import json
import logging
import math
import threading
from collections.abc import Sequence
from decimal import Decimal

from focalroute.core.config import Budget
from focalroute.core.dollars import parse_usd
from focalroute.core.records import COST_WEIGHT_RANGE
from focalroute.store.base import Store

_log = logging.getLogger("focalroute")

#: At this weight, or a lower one, everybody is asked at once.
LOWEST_WEIGHT = COST_WEIGHT_RANGE[0] / 2
#: At this weight, or a higher one, the cheapest endpoint is asked alone.
HIGHEST_WEIGHT = COST_WEIGHT_RANGE[1] * 32

_RATE = 0.1  # eta
_STEP = 1.0  # the most that one query moves log lambda
_REPAID = 300.0  # H
_REPAID_AT_A_TIME = 0.5  # the most of D / H, either way
_DEBT = 1000.0  # the most that D is, either way
_UNDER_WAY = 4  # asks under way from which on steps are smaller, and weights spread
_SPREAD = 1.0  # the most that the weight of one ask may be off, in log lambda, either way
_GOLDEN = (math.sqrt(5) - 1) / 2
_SILVER = math.sqrt(2) - 1  # of the sequence that chance follows: independent of the other one
_MIXED = 20.0  # targets, between an owed D and one in hand, along which the share of asks at a bound rises to all
_TOO_LOW = 1000  # asks in a row of the cheapest alone that cost too much on average: the target cannot be held
_PRICE_RANGE = 1000.0
_FIRST_WORTH = 0.05  # of a right answer
_LATEST = 16  # answers in the store whose weights a new process starts from


class DualAscent:
    """Holds a weight so that the mean of what queries use is the target. Thread-safe.

    Args:
        target: the mean of a query; None: the weight stays as it is.
        weight: at the start.
        bounds: of the weight, lowest and highest.
    """

    _unmet = ""  # a warning, with the target and the mean, where the highest weight is not enough

    def __init__(self, target: float | None, weight: float, bounds: tuple[float, float]) -> None:
        self._target = target
        self._bounds = bounds
        self._log = math.log(weight) if target is not None else 0.0
        self._weight = weight
        self._debt = 0.0
        self._under_way = 0
        self._begun = 0
        self._bound, self._beyond = 0, 0.0  # asks in a row at the highest weight, and the sum of e over them
        self._lock = threading.Lock()

    @property
    def weight(self) -> float:
        """The weight now."""
        return self._weight

    def begin(self) -> float:
        """Count a query that begins; the weight it is to use."""
        with self._lock:
            self._under_way += 1
            self._begun += 1
            return self._weight if self._target is None else self._drawn(self._spread())

    def resume(self, latest: Sequence[float]) -> None:
        """Go on from the mean of the weights that the latest queries used; those of 0 were not held."""
        used = [math.log(weight) for weight in latest if weight > 0]
        if used and self._target is not None:
            self._log = min(max(sum(used) / len(used), math.log(self._bounds[0])), math.log(self._bounds[1]))
            self._weight = self._within(self._log)

    def _spread(self) -> float:
        """The current weight or one near it; the more asks are under way, the further from it."""
        place = 2.0 * (self._begun * _GOLDEN % 1.0) - 1.0
        return self._within(self._log + self._width * place)

    def _drawn(self, weight: float) -> float:
        """The weight that is used for this one."""
        return weight

    @property
    def _width(self) -> float:
        """How far the weights of asks under way are spread, in their logarithm, either way."""
        return _SPREAD * max(0.0, 1.0 - _UNDER_WAY / max(self._under_way, 1))

    def _mixing(self, lowest: float, highest: float) -> bool:
        """Whether the weight stays at its bound, as what is used there is mixed."""
        return False

    def end(self, used: float | Decimal | None) -> None:
        """Count a query that ended, and what it used; None: it was refused, which tells nothing."""
        with self._lock:
            rate = _RATE / max(1.0, self._under_way / _UNDER_WAY)
            self._under_way -= 1
            if self._target is not None and used is not None:
                self._move(rate, float(used) / self._target - 1.0)

    def _move(self, rate: float, error: float) -> None:
        debt = min(max(self._debt + error, -_DEBT), _DEBT)
        repaid = min(max(debt / _REPAID, -_REPAID_AT_A_TIME), _REPAID_AT_A_TIME)
        step = min(max(rate * (error + repaid), -_STEP), _STEP)
        lowest, highest = (math.log(bound) for bound in self._bounds)
        lowest, highest = lowest - self._width, highest + self._width
        self._debt = debt
        if not self._mixing(lowest, highest):
            self._log = min(max(self._log + step, lowest), highest)
        self._weight = self._within(self._log)
        if self._log < highest or debt < _MIXED / 2:
            self._bound, self._beyond = 0, 0.0
            return
        self._bound, self._beyond = self._bound + 1, self._beyond + error
        if self._bound == _TOO_LOW and self._beyond > 0 and self._target is not None:
            _log.warning(self._unmet, self._target, self._target * (1 + self._beyond / self._bound))

    def _within(self, log_weight: float) -> float:
        return min(max(math.exp(log_weight), self._bounds[0]), self._bounds[1])


class Pacer(DualAscent):
    """Holds the cost weight so that a query costs the target in the mean.

    Args:
        target: mean USD of a query; None: the weight stays as it is.
        cost_weight: lambda at the start.
    """

    _unmet = (
        "usd_per_query: %.3g cannot be held: the cheapest way to answer costs %.3g. Raise it, or add a cheaper endpoint"
    )

    def __init__(self, target: Decimal | None, cost_weight: float) -> None:
        super().__init__(None if target is None else float(target), cost_weight, (LOWEST_WEIGHT, HIGHEST_WEIGHT))

    def _drawn(self, weight: float) -> float:
        """This weight; next to a bound the last one that is decided at or, by chance, the bound."""
        lowest = COST_WEIGHT_RANGE[0]
        if lowest <= weight <= HIGHEST_WEIGHT / 2:
            return weight
        last, bound, owed = HIGHEST_WEIGHT / 2, HIGHEST_WEIGHT, self._debt
        if weight < lowest:
            last, bound, owed = lowest, LOWEST_WEIGHT, -self._debt
        at_bound = math.isclose(weight, bound) and self._begun * _SILVER % 1.0 < 0.5 + owed / _MIXED
        return bound if at_bound else last

    def _mixing(self, lowest: float, highest: float) -> bool:
        return (self._log >= highest and self._debt > -_MIXED) or (self._log <= lowest and self._debt < _MIXED)

    def add(self, cost: float) -> None:
        """Count USD spent beside the queries (on exploration or judging): the queries to come make up for them."""
        with self._lock:
            if self._target is not None:
                self._debt = min(self._debt + cost / self._target, _DEBT)


class TimePacer(DualAscent):
    """Holds the price of a second so that a query takes the target in the mean.

    The price lies within a thousand times of where it starts, either way: from next to nothing to where the quickest
    endpoint is asked alone.

    Args:
        target: mean seconds of a query; None: the price stays as it is.
        usd_per_second: the price at the start.
    """

    _unmet = (
        "seconds_per_query: %.3g cannot be held: the quickest way to answer takes %.3g. Raise it, or add a quicker "
        "endpoint"
    )

    def __init__(self, target: float | None, usd_per_second: float) -> None:
        super().__init__(target, usd_per_second, (usd_per_second / _PRICE_RANGE, usd_per_second * _PRICE_RANGE))


def make_pacers(
    budget: Budget | None, store: Store, cost_weight: float, usd_per_second: float, everybody: float
) -> tuple[Pacer, TimePacer]:
    """Make a budget's pacers, which start from the weights of the latest answers in the store, if there are any.

    Args:
        cost_weight: where the cost weight starts on a new store, or stays; ``usd_per_second``: the price of time,
            likewise; at 0 it starts where ``seconds_per_query`` take a twentieth of a right answer.
        everybody: expected USD of asking every endpoint once.
    """
    usd, seconds = (budget.usd_per_query, budget.seconds_per_query) if budget else (None, None)
    target = None if usd is None else parse_usd(usd, "usd_per_query")
    if seconds is not None and not usd_per_second:
        usd_per_second = _FIRST_WORTH * (everybody or 1.0) / cost_weight / seconds
    money, time = Pacer(target, cost_weight), TimePacer(seconds, usd_per_second)
    if target is not None or seconds is not None:
        receipts = [json.loads(answer.receipt) for answer, _ in store.recent(_LATEST)]
        # Receipts from before 24 November 2026 call it price_of_money.
        money.resume([receipt.get("cost_weight") or receipt.get("price_of_money") or 0.0 for receipt in receipts])
        time.resume([receipt.get("usd_per_second") or 0.0 for receipt in receipts])
    return money, time
