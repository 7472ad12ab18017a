"""Statistics of a pool's endpoints before they are asked: formulas over arrays, and one pool's `PoolStats`.

The formulas take arrays of any leading shape (...,): none for the pool that is served, one row per query in offline
training.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from focalroute.core.records import F32, F64, Bools
from focalroute.observe.layout import ENDPOINT, slices, width
from focalroute.observe.observation import bounded_cost_weight, member_rows, vote_weights
from focalroute.observe.window import INFERRED_UNIT, Counts

#: Strength, in calls, of the listed price as a prior of the mean cost of a call.
PRIOR_CALLS = 5

_AT = slices(ENDPOINT)
_RELATIVES = [_AT["price"].start, _AT["latency"].start]

#: The two columns that depend on the cost weight, lambda.
COST_PENALTIES = slice(_AT["cost_penalty"].start, _AT["log_cost_penalty"].stop)
#: Below this many outcomes an endpoint is hardly known: exploration spends more, and no wait for it is cut short.
FEW = 20
_COST_WEIGHTS_KEPT = 16
_NO_ROWS = Counts()
_NONE_DISPUTED = _NO_ROWS, _NO_ROWS
_LEAST = 1e-12  # least USD or seconds, so that logarithms are finite for free or instant calls


@dataclass(slots=True)  # a frozen one takes five times as long to make
class EndpointRows:
    """The window's statistics by endpoint: (..., N) arrays, ``level`` (...,).

    Attributes:
        skill: level + relative skill, within 0.02 and 0.98: how likely it is to be right on the next query.
        level: the pool's accuracy, corrected for which endpoints the window has seen more often.
        columns: float32 (..., N, De) rows of the layout; 0 in the columns that depend on the query or on lambda.
        shares: c / C, the cost of a call relative to that of asking all once; an unknown cost counts as the mean.
    """

    skill: F64
    level: F64
    columns: F32
    shares: F64


class CallMeans(NamedTuple):
    """The expected cost (USD) and the mean latency (seconds) of a call to each endpoint, in this order.

    Attributes:
        values: float64 (..., N, 2); 0 where unknown.
        known: bool (..., N, 2).
    """

    values: F64
    known: Bools


def call_means(prices: F64, counts: F64) -> CallMeans:
    """Return expected costs and mean latencies from sums over the window.

    Expected cost is (S price scale + sum of costs) / (S + n), S = 5 calls. A price assumes a typical length; scale is
    the ratio of observed costs to prices over the whole pool.

    Args:
        prices: (N,) USD of a typical call, NaN where unknown.
        counts: (..., N, 4) calls of known cost and their USD; calls of known latency and their seconds.
    """
    priced, usd, timed, seconds = (counts[..., at] for at in range(4))
    listed = ~np.isnan(prices)
    price = np.where(listed, prices, 0)
    prior = PRIOR_CALLS * (price[listed].mean() if listed.any() else 0.0)
    typical = (priced * price).sum(axis=-1, keepdims=True) + prior
    paid = (usd * listed).sum(axis=-1, keepdims=True) + prior
    charged = typical > _LEAST  # else the ratio means nothing, and may be infinite
    scale = np.where(charged, paid / np.where(charged, typical, 1), 1)
    calls = PRIOR_CALLS * listed + priced
    cost = (PRIOR_CALLS * price * scale + usd) / np.maximum(calls, 1)
    latency = seconds / np.maximum(timed, 1)
    return CallMeans(np.stack([cost, latency], axis=-1), np.stack([calls > 0, timed > 0], axis=-1))


def cost_penalties(penalty: F64) -> F32:
    """Return the columns "cost_penalty" and "log_cost_penalty", (..., 2), of the penalty lambda c / C, (...,)."""
    both = np.stack([np.minimum(penalty, 4.0), np.log10(penalty + 1e-4).clip(-4.0, 1.0)], axis=-1)
    return both.astype(np.float32)


def level_column(level: F64) -> F64:
    """Return the column "level" for a pool's level."""
    return (level - 0.5) * 2


def length_moments(replies: F64, tokens: F64, squares: F64) -> tuple[F64, F64]:
    """Return the mean and standard deviation of reply lengths.

    1 is added to the variance; with fewer than 2 replies the deviation is infinite.

    Args:
        replies: the number of replies of known length; ``tokens``: the sum of their lengths; ``squares``: the sum of
            the squared lengths. All of one shape.
    """
    n = np.maximum(replies, 1)
    mean = tokens / n
    variance = np.maximum(squares / n - mean**2, 0)
    return mean, np.where(replies >= 2, np.sqrt(variance + 1), np.inf)


def standardised_length(tokens: Any, mean: Any, deviation: Any) -> Any:
    """Return the column "length", not clipped, of replies of known length; a number or an array, as the arguments."""
    return (tokens - mean) * 0.25 / deviation


def relative_skills(together: F64, wins: F64, offsets: F64, strengths: F64) -> F64:
    """Return how much more accurate each endpoint is than the others *on the same queries*, (..., N), mean 0.

    An endpoint that is asked only after others disagreed gets harder queries, so its plain accuracy is too low. The
    relative skills theta minimise the sum over pairs of n_ij (theta_i - theta_j - d_ij)^2 plus the sum of
    S_i (theta_i - offset_i)^2, where n_ij counts the rows in which both were asked and d_ij is i's accuracy on these
    minus j's: least squares on paired comparisons (Mosteller 1951), shrunk to the long run.

    Args:
        together: (..., N, N) n_ij, 0 on the diagonal.
        wins: (..., N) sum over j of n_ij d_ij.
        offsets: (N,) long-run accuracy minus the pool's; 0 where not known.
        strengths: (N,) S.
    """
    at = np.arange(len(offsets))
    matrix = -together
    matrix[..., at, at] += together.sum(axis=-1) + strengths
    theta = np.linalg.solve(matrix, (wins + strengths * offsets)[..., None])[..., 0]
    centred: F64 = theta - theta.mean(axis=-1, keepdims=True)
    return centred


def rows_of(
    calls: CallMeans, seen: F64, focal: F64, relative_skill: F64, relative_accuracy: F64, level: F64
) -> EndpointRows:
    """Return the statistics by endpoint, for one pool or many at once.

    Args:
        calls: see `call_means`.
        seen: (..., N) rows of the window in which it is known or inferred whether the endpoint was right.
        focal: (..., N) each endpoint's mean focal diversity over its pairs.
        relative_skill: (..., N) see `relative_skills`.
        relative_accuracy: (..., N) accuracy minus level, see `focalroute.observe.accuracy.averaged`.
        level: (...,) see `focalroute.observe.accuracy.shrunk_accuracy`.
    """
    values, known = calls
    counts = known.sum(axis=-2)
    means = values.sum(axis=-2) / np.maximum(counts, 1)  # over the known values; not used if none is known
    columns = np.zeros((*seen.shape, width(ENDPOINT)), np.float32)
    columns[..., _AT["accuracy"].start] = (relative_accuracy * 4).clip(-4, 4)
    columns[..., _AT["relative_skill"].start] = (relative_skill * 4).clip(-4, 4)
    columns[..., _AT["seen"].start] = seen / (seen + 20)
    logs, log_means = np.log(np.maximum(values, _LEAST)), np.log(np.maximum(means, _LEAST))
    columns[..., _RELATIVES] = ((logs - log_means[..., None, :]) * known * 0.25).clip(-4, 4)
    columns[..., _AT["focal"].start] = focal
    costs = np.where(known[..., 0], values[..., 0], means[..., None, 0])
    total = costs.sum(axis=-1, keepdims=True)
    without_costs = 1 / seen.shape[-1] * (counts[..., None, 0] == 0)  # if all calls are free, shares are 0
    shares = np.where(total > 0, costs / np.where(total > 0, total, 1), without_costs)
    return EndpointRows((level[..., None] + relative_skill).clip(0.02, 0.98), level, columns, shares)


@dataclass(slots=True)
class PoolStats:
    """One pool's statistics at one moment, shared by all rounds of an ask; do not modify.

    Attributes:
        names: the N endpoints in pool order.
        rows: see `EndpointRows`.
        seen: the window's rows in which it is known or inferred whether each was right, length N.
        relative_skill: float32 (N,) the column of this name; ``level``: likewise, of the pool.
        latency_s: mean latency, length N; None where unknown.
        expected_cost: USD of one call, length N; None where unknown.
        mean_length: completion tokens, length N; ``length_deviation``: see `length_moments`.
        order: endpoint indices, cheapest first, unknown cost last, then by name.
        prices: float64 (N,) USD of a typical call, which does not depend on recent queries; expected cost if there is
            no price; NaN where unknown.
        pairs: float32 (N, N) focal diversity of each pair, 0 on the diagonal.
        departure: (N,) see `focalroute.observe.accuracy.departures`.
    """

    names: tuple[str, ...]
    rows: EndpointRows
    seen: list[int]
    relative_skill: F32
    level: float
    latency_s: list[float | None]
    expected_cost: list[float | None]
    mean_length: list[float]
    length_deviation: list[float]
    order: tuple[int, ...]
    prices: F64
    pairs: F32
    departure: F64
    _at_cost_weight: dict[float, tuple[F32, float]] = field(default_factory=dict)
    _by_choices: dict[int, F32] = field(default_factory=dict)

    @property
    def typical_shares(self) -> F64:
        """See the function `typical_shares`."""
        return typical_shares(self.prices)

    def at(self, factors: F64) -> PoolStats:
        """Return the statistics for a query whose cost at each endpoint is this multiple of the usual one, (N,)."""
        usual = np.array(self.expected_cost, np.float64)
        costs, known = usual * factors, ~np.isnan(usual)
        overall = max(np.nansum(costs), _LEAST) / max(np.nansum(usual), _LEAST)
        factors = np.where(known, factors, overall)  # an unknown cost counts as the mean
        columns, shares = self.rows.columns.copy(), self.rows.shares * factors
        relative = columns[:, _AT["price"].start] + np.log(factors / overall) * 0.25
        columns[:, _AT["price"].start] = relative.clip(-4, 4)
        expected_cost = _where_known(costs, known)
        return replace(
            self,
            rows=replace(self.rows, columns=columns, shares=shares / max(float(shares.sum()), _LEAST)),
            expected_cost=expected_cost,
            order=_cheapest_first(expected_cost, self.names),
            prices=self.prices * factors,
            _at_cost_weight={},
            _by_choices=self._by_choices,
        )

    def columns(self, cost_weight: float) -> tuple[F32, float]:
        """Return a copy of the endpoint rows (N, De) at this lambda, and log10 of the bounded lambda."""
        found = self._at_cost_weight.get(cost_weight)
        if found is None:
            if len(self._at_cost_weight) >= _COST_WEIGHTS_KEPT:
                self._at_cost_weight.clear()
            bounded, rows = float(bounded_cost_weight(cost_weight)), self.rows.columns.copy()
            rows[:, COST_PENALTIES] = cost_penalties(bounded * self.rows.shares)
            found = self._at_cost_weight[cost_weight] = rows, math.log10(bounded)
        return found[0].copy(), found[1]

    def wait_shares(self, waits: F64) -> F64:
        """Return costs of waiting, (N,) USD, relative to asking all once; if calls are free, to waiting for all."""
        known = [usd for usd in self.expected_cost if usd is not None]
        asking_all = sum(known) * len(self.names) / max(len(known), 1)
        return waits / max(asking_all or float(waits.sum()), _LEAST)

    def member_rows(self, choices: int) -> F32:
        """Return a copy of the rows of `focalroute.observe.observation.member_rows` for this many choices.

        The columns "similar" and "length" are 0, as they depend on the query.
        """
        found = self._by_choices.get(choices)
        if found is None:
            weights = vote_weights(self.rows.skill, choices)
            found = self._by_choices[choices] = member_rows(weights, self.relative_skill, 0, self.level, 0)
        return found.copy()


def _number_and_sum(counts: Counts) -> tuple[int, float]:
    """Return the number of replies with a known or inferred value, and the sum of these values."""
    return counts.known + counts.inferred, counts.right + counts.inferred_sum / INFERRED_UNIT


class PoolTotals:
    """Each endpoint's totals over the window, as arrays.

    Args:
        prices: USD of a typical call of each; None where unknown.

    Attributes:
        prices: float64 (N,), NaN where unknown; the prior of the mean cost of a call.
    """

    def __init__(self, prices: Sequence[float | Decimal | None]) -> None:
        self.prices = np.array(prices, np.float64)
        self._calls = np.zeros((len(prices), 4))  # see `call_means`
        # [labelled or inferred, all or disputed answers, number or sum of values, endpoint]
        self._values = np.zeros((2, 2, 2, len(prices)))
        self._lengths = np.zeros((len(prices), 3))  # see `length_moments`

    def update(
        self, index: int, labelled: Counts, agreed: Counts = _NO_ROWS, disputed: tuple[Counts, Counts] = _NONE_DISPUTED
    ) -> None:
        """Set one endpoint's totals.

        Args:
            labelled: over the answers with feedback; ``agreed``: over those without.
            disputed: both, over only those answers whose members disagreed.
        """
        c = Counts._make(map(operator.add, labelled, agreed))
        self._lengths[index] = c.lengths, c.tokens, c.tokens_squared
        self._values[0, ..., index] = _number_and_sum(labelled), _number_and_sum(disputed[0])
        self._values[1, ..., index] = _number_and_sum(agreed), _number_and_sum(disputed[1])
        self._calls[index] = c.priced, c.cost_pico / 1e12, c.timed, c.latency_us / 1e6

    def values(self, bias: F64 | None = None, disputed_share: float | None = None) -> F64:
        """Return the number and the sum of labelled values, and of values inferred from agreement, (2, 2, N).

        A value is 1 right, 0 wrong, or a fraction if it is inferred. If users label disputed answers more often than
        others, each such label is weighted down, so that disputed answers count as much as they occur
        (post-stratification).

        Args:
            bias: (2, N) by how much values inferred from agreement are too low, see `Referees.bias`; None: 0.
            disputed_share: of all replies that did not come alone, the share that belong to disputed answers; None:
                unknown, so all labels have weight 1.
        """
        values = self._values[:, 0].copy()
        weight = 1.0 if disputed_share is None else self._weight_of_disputed(disputed_share)
        if weight < 1:
            values[0] -= (1 - weight) * self._values[0, 1]
        if bias is not None:
            n, total = values[1]
            disputed = self._values[1, 1, 0]
            corrected = total + (n - disputed) * bias[0] + disputed * bias[1]
            values[1, 1] = np.minimum(np.maximum(corrected, 0), n)
        return values

    def _weight_of_disputed(self, share: float) -> float:
        """Return the weight of a disputed answer's label that gives disputed answers this share of all replies."""
        (labelled, disputed), (inferred, disputed_inferred) = self._values[:, :, 0].sum(axis=-1).tolist()
        if not inferred or not disputed:
            return 1.0
        undisputed = labelled - disputed + inferred - disputed_inferred
        due = undisputed * share / max(1 - share, _LEAST)
        return float(min(max((due - disputed_inferred) / disputed, 0.0), 1.0))

    def disputed_share(self) -> float:
        """Return which share of all replies with a known or inferred value belong to disputed answers."""
        n, disputed = self._values[:, :, 0].sum(axis=(0, 2)).tolist()
        return float(disputed / max(n, 1.0))

    def inferred(self) -> F64:
        """Return the number of values inferred from agreement, (2, N): of undisputed and of disputed answers."""
        inferred, disputed = self._values[1, :, 0]
        return np.array([inferred - disputed, disputed])

    def seen(self) -> F64:
        """Return the number of each endpoint's replies with a known or inferred value, (N,)."""
        seen: F64 = self._values[:, 0, 0].sum(axis=0)
        return seen

    def stats(
        self,
        names: tuple[str, ...],
        pairs: F64,
        relative_skill: F64,
        relative_accuracy: F64,
        level: float,
        departure: F64,
    ) -> PoolStats:
        """Return the pool's statistics.

        Args:
            names: the endpoints; ``pairs``: focal diversity of each pair, (N, N); the next three as for `rows_of`.
            departure: (N,) see `focalroute.observe.accuracy.departures`.
        """
        calls, seen = call_means(self.prices, self._calls), self.seen()
        focal = pairs.sum(axis=-1) / max(len(names) - 1, 1)
        rows = rows_of(calls, seen, focal, relative_skill, relative_accuracy, np.asarray(level))
        costs, cost_known = calls.values[:, 0], calls.known[:, 0]
        expected_cost = _where_known(costs, cost_known)
        mean_length, length_deviation = length_moments(*self._lengths.T)
        return PoolStats(
            names=names,
            rows=rows,
            seen=seen.astype(int).tolist(),
            relative_skill=rows.columns[:, _AT["relative_skill"].start],
            level=float(level_column(rows.level)),
            latency_s=_where_known(calls.values[:, 1], calls.known[:, 1]),
            expected_cost=expected_cost,
            mean_length=mean_length.tolist(),
            length_deviation=length_deviation.tolist(),
            order=_cheapest_first(expected_cost, names),
            prices=np.where(np.isnan(self.prices) & cost_known, costs, self.prices),
            pairs=pairs.astype(np.float32),
            departure=departure,
        )


def typical_shares(prices: F64) -> F64:
    """Return the price of a typical call to each endpoint relative to asking all once, (N,); NaN counts as the mean."""
    known = ~np.isnan(prices)
    complete = np.where(known, prices, prices[known].mean() if known.any() else 1.0)
    return complete / max(float(complete.sum()), _LEAST)


def _where_known(values: F64, known: NDArray[Any]) -> list[float | None]:
    return [value if there else None for value, there in zip(values.tolist(), known.tolist(), strict=True)]


def _cheapest_first(costs: Sequence[float | None], names: Sequence[str]) -> tuple[int, ...]:
    keys = [math.inf if cost is None else cost for cost in costs]
    return tuple(sorted(range(len(names)), key=lambda i: (keys[i], names[i])))
