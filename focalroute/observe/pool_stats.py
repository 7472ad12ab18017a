"""Statistics of a pool's endpoints before they are asked: formulas over arrays, and `PoolStats`, one pool's.

The formulas take any leading shape (...,): none for the pool that is served, one row a query in offline training.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from focalroute.core.records import F32, F64
from focalroute.observe.layout import ENDPOINT, slices, width
from focalroute.observe.observation import bounded_cost_weight, member_rows, vote_weights
from focalroute.observe.window import INFERRED_UNIT, Counts

#: Strength, in asks, of the prior that holds an endpoint's accuracy at its pool's mean.
PRIOR_ASKS = 10

#: Likewise where its long-run accuracy is known; the prior holds it at that distance from the pool's level.
PRIOR_LONG_RUN = 50

#: Strength, in calls, of the listed price as a prior of the mean cost of a call.
PRIOR_CALLS = 5

_AT = slices(ENDPOINT)
_RELATIVES = [_AT["price"].start, _AT["latency"].start]

#: The two columns that depend on the cost weight, lambda.
COST_PENALTIES = slice(_AT["cost_penalty"].start, _AT["log_cost_penalty"].stop)
#: Outcomes below which an endpoint is hardly known: exploration spends more, and no wait for it is cut short.
FEW = 20
_PRICES_KEPT = 16
_NO_ROWS = Counts()
_LEAST = 1e-12  # USD or seconds: what is free or instant counts as this little, so that its logarithm is finite


@dataclass(frozen=True, slots=True)
class EndpointRows:
    """The statistics of the window by endpoint: (..., N) arrays, ``level`` (...,).

    Attributes:
        accuracy: windowed accuracy, shrunk.
        skill: level + relative skill, within 0.02 and 0.98: how likely it is to be right on the next query.
        level: the pool's: how accurate it would be if the window knew equally much of everyone.
        columns: float32 (..., N, De) rows of the layout; 0 in the columns that depend on the query or on lambda.
        shares: c / C, the cost of a call relative to that of asking all once; an unknown cost counts as the mean.
    """

    accuracy: F64
    skill: F64
    level: F64
    columns: F32
    shares: F64


def table_of(prices: F64, counts: F64) -> F64:
    """Return the table for `rows_of`, from sums over the window.

    Expected cost is (S price scale + sum of costs) / (S + n), S = 5 calls; scale is how much more the calls seen cost
    than their prices, over the whole pool, since a price stands for a call of typical length.

    Args:
        prices: (N,) USD of a typical call, NaN where unknown.
        counts: (..., N, 6) rows with a value, and the right ones (an inferred value counts as the fraction it is);
            calls of known cost and their USD; calls of known latency and their seconds.

    Returns:
        (..., N, 8): the first two of these; expected cost and mean latency (0 where unknown), their logarithms, and
        whether they are known.
    """
    priced, usd, timed, seconds = (counts[..., at] for at in (2, 3, 4, 5))
    listed = ~np.isnan(prices)
    price = np.where(listed, prices, 0)
    prior = PRIOR_CALLS * (price[listed].mean() if listed.any() else 0.0)
    typical = (priced * price).sum(axis=-1, keepdims=True) + prior
    paid = (usd * listed).sum(axis=-1, keepdims=True) + prior
    charged = typical > _LEAST  # of prices next to nothing no multiple means anything, or is finite
    scale = np.where(charged, paid / np.where(charged, typical, 1), 1)
    calls = PRIOR_CALLS * listed + priced
    cost = (PRIOR_CALLS * price * scale + usd) / np.maximum(calls, 1)
    latency = seconds / np.maximum(timed, 1)
    table = np.empty((*counts.shape[:-1], 8))
    table[..., :2], table[..., 2], table[..., 3] = counts[..., :2], cost, latency
    table[..., 6], table[..., 7] = calls > 0, timed > 0
    table[..., 4:6] = np.log(np.maximum(table[..., 2:4], _LEAST)) * table[..., 6:]
    return table


def cost_penalties(priced: F64) -> F32:
    """The layout's "cost_penalty" and "log_cost_penalty" (..., 2) of lambda c / C (...,)."""
    both = np.stack([np.minimum(priced, 4.0), np.log10(priced + 1e-4).clip(-4.0, 1.0)], axis=-1)
    return both.astype(np.float32)


def level_column(level: F64) -> F64:
    """The layout's "level" of a pool's level."""
    return (level - 0.5) * 2


def length_moments(replies: F64, tokens: F64, squares: F64) -> tuple[F64, F64]:
    """Mean and deviation of reply lengths; the variance is taken one token squared larger, and as infinite below 2.

    Args:
        replies: of known length; of any shape, as ``tokens``, the sum of their lengths, and ``squares``, that of their
            squares.
    """
    n = np.maximum(replies, 1)
    mean = tokens / n
    variance = np.maximum(squares / n - mean**2, 0)
    return mean, np.where(replies >= 2, np.sqrt(variance + 1), np.inf)


def standardised_length(tokens: Any, mean: Any, deviation: Any) -> Any:
    """The layout's "length" of a reply of known length, not yet clipped; numbers or arrays, as the arguments are."""
    return (tokens - mean) * 0.25 / deviation


def relative_skills(together: F64, wins: F64, offsets: F64, strengths: F64) -> F64:
    """How much more accurate each endpoint is than the others *on the same queries*, (..., N), mean 0.

    An endpoint that is asked where others disagreed sees harder queries, which a plain accuracy ignores. So
    theta minimises the sum over pairs of n_ij (theta_i - theta_j - d_ij)^2, with n_ij the rows both were asked in and
    d_ij how much more of them i got right, plus that of S_i (theta_i - offset_i)^2: least squares on paired comparisons
    (Mosteller 1951), shrunk to the long run.

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


def rows_of(table: F64, focal: F64, relative_skill: F64, offsets: F64, strengths: F64) -> EndpointRows:
    """Return the statistics of a summary's table, for one pool or many at once.

    Accuracy is (right + S (level + offset)) / (n + S), the mean of a Beta posterior whose prior sits where the long run
    puts the endpoint beside the others, within 0.02 and 0.98. The level is (sum of right - sum of n offset + 1)
    / (sum of n + 2): 1/2 before anything was seen, and the pool's mean where no long run is known, all offsets being 0.

    Args:
        table: (..., N, 8), see `table_of`.
        focal: (..., N) each endpoint's mean focal diversity over its pairs.
        relative_skill: (..., N) see `relative_skills`.
        offsets: (N,) long-run accuracy minus the pool's; 0 where not known.
        strengths: (N,) S.
    """
    n, right, costs, logs, known = (table[..., at] for at in (0, 1, 2, slice(4, 6), slice(6, 8)))
    level = ((right - n * offsets).sum(axis=-1) + 1) / (n.sum(axis=-1) + 2)
    prior = (level[..., None] + offsets).clip(0.02, 0.98)
    accuracy = (right + strengths * prior) / (n + strengths)
    # a mean over the known ones; of none, whatever it is is multiplied by 0
    sums, counts = table[..., 2:4].sum(axis=-2), known.sum(axis=-2)
    means = sums / np.maximum(counts, 1)
    columns = np.zeros((*table.shape[:-1], width(ENDPOINT)), np.float32)
    columns[..., _AT["accuracy"].start] = ((accuracy - level[..., None]) * 4).clip(-4, 4)
    columns[..., _AT["relative_skill"].start] = (relative_skill * 4).clip(-4, 4)
    columns[..., _AT["seen"].start] = n / (n + 20)
    relative = (logs - np.log(np.maximum(means, _LEAST))[..., None, :]) * known * 0.25
    columns[..., _RELATIVES] = relative.clip(-4, 4)
    columns[..., _AT["focal"].start] = focal
    paid = np.where(known[..., 0] > 0, costs, means[..., None, 0])
    total = paid.sum(axis=-1, keepdims=True)
    shares = np.where(
        total > 0, paid / np.where(total > 0, total, 1), 1 / table.shape[-2] * (counts[..., None, 0] == 0)
    )
    return EndpointRows(accuracy, (level[..., None] + relative_skill).clip(0.02, 0.98), level, columns, shares)


@dataclass(slots=True)
class PoolStats:
    """One pool's numbers at one moment, the same for an ask in all its rounds; read-only by agreement.

    Attributes:
        names: the endpoints, pool order; N of them.
        rows: see `EndpointRows`.
        seen: rows of the window in which something is known of each, length N.
        relative_skill: float32 (N,), the layout's; ``level``: likewise, of the pool.
        latency_s: mean latency, length N; None where unknown.
        expected_cost: USD of one call, length N; None where unknown.
        mean_length: completion tokens, length N; ``length_deviation``: see `length_moments`.
        order: endpoint indices, cheapest first, unknown cost last, then by name.
        prices: float64 (N,) USD of a typical call, whatever each was asked lately; where none is listed, the mean of
            those seen; NaN where unknown.
        pairs: float32 (N, N) focal diversity of each pair, 0 on the diagonal.
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
    _at_cost_weight: dict[float, tuple[F32, float]] = field(default_factory=dict)
    _by_choices: dict[int, F32] = field(default_factory=dict)

    @property
    def typical_shares(self) -> F64:
        """The cost of a typical call to each, relative to asking all once, (N,); unknown counts as the mean."""
        return typical_shares(self.prices)

    def at(self, factors: F64) -> PoolStats:
        """The same for a query whose cost at each endpoint is this multiple of the usual one (N,)."""
        usual = np.array(self.expected_cost, np.float64)
        costs, there = usual * factors, ~np.isnan(usual)
        dearer = max(np.nansum(costs), _LEAST) / max(np.nansum(usual), _LEAST)
        factors = np.where(there, factors, dearer)  # an unknown cost counts as the mean
        columns, shares = self.rows.columns.copy(), self.rows.shares * factors
        relative = columns[:, _AT["price"].start] + np.log(factors / dearer) * 0.25
        columns[:, _AT["price"].start] = relative.clip(-4, 4)
        known = _where_known(costs, there)
        return replace(
            self,
            rows=replace(self.rows, columns=columns, shares=shares / max(float(shares.sum()), _LEAST)),
            expected_cost=known,
            order=_cheapest_first(known, self.names),
            prices=self.prices * factors,
            _at_cost_weight={},
            _by_choices=self._by_choices,
        )

    def columns(self, cost_weight: float) -> tuple[F32, float]:
        """The endpoint rows (N, De) at this lambda, a copy; and log10 of the lambda, bounded."""
        found = self._at_cost_weight.get(cost_weight)
        if found is None:
            if len(self._at_cost_weight) >= _PRICES_KEPT:
                self._at_cost_weight.clear()
            bounded, rows = float(bounded_cost_weight(cost_weight)), self.rows.columns.copy()
            rows[:, COST_PENALTIES] = cost_penalties(bounded * self.rows.shares)
            found = self._at_cost_weight[cost_weight] = rows, math.log10(bounded)
        return found[0].copy(), found[1]

    def wait_shares(self, waits: F64) -> F64:
        """Waiting costs (N,), USD, relative to asking all once; to waiting for all where all calls are free."""
        known = [usd for usd in self.expected_cost if usd is not None]
        everybody = sum(known) * len(self.names) / max(len(known), 1)
        shares: F64 = waits / max(everybody or float(waits.sum()), _LEAST)
        return shares

    def member_rows(self, choices: int) -> F32:
        """See `focalroute.observe.observation.member_rows`, by votes among this many choices; a copy.

        The columns "similar" and "length" are 0: they depend on the query.
        """
        found = self._by_choices.get(choices)
        if found is None:
            weights = vote_weights(self.rows.skill, choices)
            found = self._by_choices[choices] = member_rows(weights, self.relative_skill, 0, self.level, 0)
        return found.copy()


class PoolTotals:
    """Each endpoint's totals over the window, as arrays.

    Args:
        prices: USD of a typical call of each; None where unknown.

    Attributes:
        prices: float64 (N,), NaN where unknown; what is expected of a call before, and beside, those that were seen.
    """

    def __init__(self, prices: Sequence[float | Decimal | None]) -> None:
        self.prices = np.array(prices, np.float64)
        self._counts = np.zeros((len(prices), 6))  # see `table_of`
        self._agreed = np.zeros((len(prices), 2))  # rows with a value inferred from agreement, and the sum of these
        self._lengths = np.zeros((len(prices), 3))  # see `length_moments`

    def update(self, index: int, labelled: Counts, agreed: Counts = _NO_ROWS) -> None:
        """Take over one endpoint's totals, of the rows with feedback and of those without."""
        c = Counts._make(map(operator.add, labelled, agreed))
        self._lengths[index] = c.lengths, c.tokens, c.tokens_squared
        self._agreed[index] = agreed.inferred, agreed.inferred_sum / INFERRED_UNIT
        self._counts[index] = (
            c.known + c.inferred,
            c.right + c.inferred_sum / INFERRED_UNIT,
            c.priced,
            c.cost_pico / 1e12,
            c.timed,
            c.latency_us / 1e6,
        )

    def share_inferred(self) -> F64:
        """(N,) each endpoint's rows with a value inferred from agreement, as a share of all rows of all."""
        share: F64 = self._agreed[:, 0] / (self._counts[:, 0].sum() + 2)
        return share

    def stats(
        self,
        names: tuple[str, ...],
        pairs: F64,
        relative_skill: F64,
        offsets: F64,
        strengths: F64,
        bias: F64 | float = 0.0,
    ) -> PoolStats:
        """The pool's numbers.

        Args:
            names: the endpoints; ``pairs`` the focal diversity (N, N) of each two; the next ones as for `rows_of`.
            bias: (N,) by how much values inferred from agreement are too low.
        """
        counts = self._counts.copy()
        inferred, values = self._agreed.T
        counts[:, 1] += (values + inferred * bias).clip(0, inferred) - values
        table = table_of(self.prices, counts)
        focal = pairs.sum(axis=-1) / max(len(names) - 1, 1)
        rows = rows_of(table, focal, relative_skill, offsets, strengths)
        costs, latencies = _where_known(table[:, 2], table[:, 6]), _where_known(table[:, 3], table[:, 7])
        mean_length, length_deviation = length_moments(*self._lengths.T)
        return PoolStats(
            names=names,
            rows=rows,
            seen=table[:, 0].astype(int).tolist(),
            relative_skill=rows.columns[:, _AT["relative_skill"].start],
            level=float(level_column(rows.level)),
            latency_s=latencies,
            expected_cost=costs,
            mean_length=mean_length.tolist(),
            length_deviation=length_deviation.tolist(),
            order=_cheapest_first(costs, names),
            prices=np.where(np.isnan(self.prices) & (table[:, 6] > 0), table[:, 2], self.prices),
            pairs=pairs.astype(np.float32),
        )


def typical_shares(prices: F64) -> F64:
    """Each call's cost relative to asking all once, (N,), of its prices (N,); NaN, unknown, counts as the mean."""
    known = ~np.isnan(prices)
    paid = np.where(known, prices, prices[known].mean() if known.any() else 1.0)
    shares: F64 = paid / max(float(paid.sum()), _LEAST)
    return shares


def _where_known(values: F64, known: NDArray[Any]) -> list[float | None]:
    return [value if there else None for value, there in zip(values.tolist(), known.tolist(), strict=True)]


def _cheapest_first(costs: Sequence[float | None], names: Sequence[str]) -> tuple[int, ...]:
    keys = [math.inf if cost is None else cost for cost in costs]
    return tuple(sorted(range(len(names)), key=lambda i: (keys[i], names[i])))
