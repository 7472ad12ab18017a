"""Statistics of a pool's endpoints before they are asked: formulas over arrays, and one pool's `PoolStats`.

The formulas take any leading shape (...,): none for the pool that is served, one row per query in offline training.
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


def table_of(prices: F64, counts: F64) -> F64:
    """Return the table for `rows_of` from sums over the window.

    Expected cost is (S price scale + sum of costs) / (S + n), S = 5 calls. A price assumes a typical length; scale is
    the ratio of observed costs to prices over the whole pool.

    Args:
        prices: (N,) USD of a typical call, NaN where unknown.
        counts: (..., N, 5) rows in which it is known or inferred whether the endpoint was right; calls of known cost
            and their USD; calls of known latency and their seconds.

    Returns:
        (..., N, 7): the first of these; expected cost and mean latency (0 where unknown), their logarithms, and
        whether they are known.
    """
    priced, usd, timed, seconds = (counts[..., at] for at in (1, 2, 3, 4))
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
    table = np.empty((*counts.shape[:-1], 7))
    table[..., 0], table[..., 1], table[..., 2] = counts[..., 0], cost, latency
    table[..., 5], table[..., 6] = calls > 0, timed > 0
    table[..., 3:5] = np.log(np.maximum(table[..., 1:3], _LEAST)) * table[..., 5:]
    return table


def cost_penalties(priced: F64) -> F32:
    """Return the columns "cost_penalty" and "log_cost_penalty" (..., 2) for lambda c / C (...,)."""
    both = np.stack([np.minimum(priced, 4.0), np.log10(priced + 1e-4).clip(-4.0, 1.0)], axis=-1)
    return both.astype(np.float32)


def level_column(level: F64) -> F64:
    """Return the column "level" for a pool's level."""
    return (level - 0.5) * 2


def length_moments(replies: F64, tokens: F64, squares: F64) -> tuple[F64, F64]:
    """Return the mean and standard deviation of reply lengths; 1 is added to the variance, infinite below 2 replies.

    Args:
        replies: the number of replies of known length; ``tokens``: the sum of their lengths; ``squares``: the sum of
            the squared lengths. All of one shape.
    """
    n = np.maximum(replies, 1)
    mean = tokens / n
    variance = np.maximum(squares / n - mean**2, 0)
    return mean, np.where(replies >= 2, np.sqrt(variance + 1), np.inf)


def standardised_length(tokens: Any, mean: Any, deviation: Any) -> Any:
    """Return the unclipped column "length" of replies of known length; numbers or arrays, as the arguments are."""
    return (tokens - mean) * 0.25 / deviation


def relative_skills(together: F64, wins: F64, offsets: F64, strengths: F64) -> F64:
    """Return how much more accurate each endpoint is than the others *on the same queries*, (..., N), mean 0.

    An endpoint that is asked after others disagreed gets harder queries, which its plain accuracy ignores. So theta
    minimises the sum over pairs of n_ij (theta_i - theta_j - d_ij)^2 plus the sum of S_i (theta_i - offset_i)^2, with
    n_ij the rows in which both were asked and d_ij i's accuracy on these minus j's: least squares on paired comparisons
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


def rows_of(table: F64, focal: F64, relative_skill: F64, relative_accuracy: F64, level: F64) -> EndpointRows:
    """Return the statistics from the tables of `table_of`, for one pool or many at once.

    Args:
        table: (..., N, 7), see `table_of`.
        focal: (..., N) each endpoint's mean focal diversity over its pairs.
        relative_skill: (..., N) see `relative_skills`.
        relative_accuracy: (..., N) accuracy minus level, see `focalroute.observe.accuracy.mixed`.
        level: (...,) see `focalroute.observe.accuracy.shrunk_accuracy`.
    """
    n, costs, logs, known = (table[..., at] for at in (0, 1, slice(3, 5), slice(5, 7)))
    # means over the known values; if none is known, the mean is later multiplied by 0
    sums, counts = table[..., 1:3].sum(axis=-2), known.sum(axis=-2)
    means = sums / np.maximum(counts, 1)
    columns = np.zeros((*table.shape[:-1], width(ENDPOINT)), np.float32)
    columns[..., _AT["accuracy"].start] = (relative_accuracy * 4).clip(-4, 4)
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
        """The price of a typical call to each relative to asking all once, (N,); unknown counts as the mean."""
        return typical_shares(self.prices)

    def at(self, factors: F64) -> PoolStats:
        """Return the statistics for a query whose cost at each endpoint is this multiple of the usual one, (N,)."""
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
        """Return costs of waiting (N,), USD, relative to asking all once, or to waiting for all if calls are free."""
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


def _values(counts: Counts) -> tuple[int, float]:
    """Return the replies of which it is known or inferred whether they were right, and the sum of these values."""
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
        self._counts = np.zeros((len(prices), 5))  # see `table_of`
        # of labels and of what agreement infers, over all answers and over the disputed ones: n and the sum of values
        self._known = np.zeros((2, 2, 2, len(prices)))
        self._lengths = np.zeros((len(prices), 3))  # see `length_moments`

    def update(
        self, index: int, labelled: Counts, agreed: Counts = _NO_ROWS, disputed: tuple[Counts, Counts] = _NONE_DISPUTED
    ) -> None:
        """Set one endpoint's totals.

        Args:
            labelled: over the answers with feedback; ``agreed``: over those without.
            disputed: the same over those of them whose members gave different answers.
        """
        c = Counts._make(map(operator.add, labelled, agreed))
        self._lengths[index] = c.lengths, c.tokens, c.tokens_squared
        self._known[0, ..., index] = _values(labelled), _values(disputed[0])
        self._known[1, ..., index] = _values(agreed), _values(disputed[1])
        self._counts[index] = c.known + c.inferred, c.priced, c.cost_pico / 1e12, c.timed, c.latency_us / 1e6

    def known(self, bias: F64 | None = None, disputed_share: float | None = None) -> F64:
        """Return n and the sum of the values, (2, 2, N): of labels, and of what agreement infers.

        A value is 1 right, 0 wrong, or a fraction if it is inferred. Where disputed answers get labels more often than
        others, each of these labels counts for less: disputed answers are then as frequent as among all answers
        (post-stratification).

        Args:
            bias: (2, N) by how much values inferred from agreement are too low, see `Referees.bias`; None: 0.
            disputed_share: of all replies that did not come alone, the share that belong to disputed answers; None: it
                is unknown, and all labels count alike.
        """
        known = self._known[:, 0].copy()
        weight = 1.0 if disputed_share is None else self._weight_of_disputed(disputed_share)
        if weight < 1:
            known[0] -= (1 - weight) * self._known[0, 1]
        if bias is not None:
            n, values = known[1]
            disputed = self._known[1, 1, 0]
            corrected = values + (n - disputed) * bias[0] + disputed * bias[1]
            known[1, 1] = np.minimum(np.maximum(corrected, 0), n)
        return known

    def _weight_of_disputed(self, share: float) -> float:
        """Return how much a label of a disputed answer counts, so that these answers have this share of all replies."""
        (labelled, disputed), (inferred, disputed_inferred) = self._known[:, :, 0].sum(axis=-1).tolist()
        if not inferred or not disputed:
            return 1.0
        undisputed = labelled - disputed + inferred - disputed_inferred
        due = undisputed * share / max(1 - share, _LEAST)
        return float(min(max((due - disputed_inferred) / disputed, 0.0), 1.0))

    def disputed_share(self) -> float:
        """Return the share that belong to disputed answers of all replies known or inferred to be right or wrong."""
        n, disputed = self._known[:, :, 0].sum(axis=(0, 2)).tolist()
        return float(disputed / max(n, 1.0))

    def inferred(self) -> F64:
        """Return how many rows are inferred from agreement, (2, N): of undisputed and of disputed answers."""
        inferred, disputed = self._known[1, :, 0]
        return np.array([inferred - disputed, disputed])

    def seen(self) -> float:
        """Return the rows of all endpoints in which it is known or inferred whether they were right."""
        return float(self._counts[:, 0].sum())

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
        table = table_of(self.prices, self._counts)
        focal = pairs.sum(axis=-1) / max(len(names) - 1, 1)
        rows = rows_of(table, focal, relative_skill, relative_accuracy, np.asarray(level))
        costs, latencies = _where_known(table[:, 1], table[:, 5]), _where_known(table[:, 2], table[:, 6])
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
            prices=np.where(np.isnan(self.prices) & (table[:, 5] > 0), table[:, 1], self.prices),
            pairs=pairs.astype(np.float32),
            departure=departure,
        )


def typical_shares(prices: F64) -> F64:
    """Return the price of a typical call to each endpoint relative to asking all once, (N,); NaN counts as the mean."""
    known = ~np.isnan(prices)
    paid = np.where(known, prices, prices[known].mean() if known.any() else 1.0)
    return paid / max(float(paid.sum()), _LEAST)


def _where_known(values: F64, known: NDArray[Any]) -> list[float | None]:
    return [value if there else None for value, there in zip(values.tolist(), known.tolist(), strict=True)]


def _cheapest_first(costs: Sequence[float | None], names: Sequence[str]) -> tuple[int, ...]:
    keys = [math.inf if cost is None else cost for cost in costs]
    return tuple(sorted(range(len(names)), key=lambda i: (keys[i], names[i])))
