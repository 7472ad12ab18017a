"""What the window says of one pool at one moment: immutable, so that an ask sees the same numbers in all its rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from focalroute.observe.focal import MIN_ROWS, Bits, common_rows, exact_focal, focal_with_each
from focalroute.observe.layout import ENDPOINT, slices, width
from focalroute.observe.window import INFERRED_UNIT, Counts

__all__ = ["PRIOR_ASKS", "PRIOR_CALLS", "Reading", "Summary", "read"]

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

#: Strength, in asks, of the prior that holds an endpoint's accuracy at its pool's mean.
PRIOR_ASKS = 10

#: Strength, in calls, of the listed price as a prior of the mean cost of a call.
PRIOR_CALLS = 5

_AT = slices(ENDPOINT)
_ACCURACIES = slice(_AT["accuracy"].start, _AT["accuracy_later"].stop)
_RELATIVES = slice(_AT["price"].start, _AT["latency"].stop)
_SETS_KEPT = 256  # focal rows kept per reading; a policy asks a handful of different sets between two feedbacks
_SETS_WARMED = 4
_LEAST = 1e-12  # USD or seconds: what is free or instant counts as this little, so that its logarithm is finite


@dataclass(slots=True)
class Reading:
    """The pool's numbers; read-only by agreement.

    Attributes:
        names: the endpoints, pool order; N of them.
        template: float32 (N, De), the endpoint rows before anybody is asked.
        seen: rows of the window in which something is known of each, length N as all that follow.
        accuracy: the windowed accuracy, shrunk towards the pool's mean; ``centred``: as the layout has it.
        latency_s: mean latency; None where unknown.
        expected_cost: USD of one call; None where unknown.
        mean_length: mean completion tokens; ``length_scale``: what one token above it counts in the layout's "length".
        order: endpoint indices, cheapest first, unknown cost last, then by name.
        bits: (asked, failed) bitsets.
        pairs: focal diversity of each pair: one row an endpoint, 0 on the diagonal.
    """

    names: tuple[str, ...]
    template: F32
    seen: list[int]
    accuracy: list[float]
    centred: list[float]
    latency_s: list[float | None]
    expected_cost: list[float | None]
    mean_length: list[float]
    length_scale: list[float]
    order: tuple[int, ...]
    bits: list[Bits]
    pairs: list[list[float]]
    _rows: dict[tuple[int, ...], F32] = field(default_factory=dict)
    _used: dict[tuple[int, ...], None] = field(default_factory=dict)  # keys of _rows that were asked for, in that order

    def focal_row(self, asked: tuple[int, ...]) -> F32:
        """Focal diversity that a set would have with each endpoint; for its own members, what it has. Shape (N,).

        ``asked`` holds rising indices, at least one.
        """
        self._used[asked] = None
        found = self._rows.get(asked)
        if found is not None:
            return found
        if len(self._rows) >= _SETS_KEPT:
            self._rows.clear()
            self._used.clear()
        row = self._rows[asked] = self._focal_row(asked)
        return row

    def warm(self, before: Reading) -> None:
        """Make ready the focal rows of the sets that were last asked for of an earlier reading."""
        for asked in list(before._used)[-_SETS_WARMED:]:
            self._rows[asked] = self._focal_row(asked)

    def _focal_row(self, asked: tuple[int, ...]) -> F32:
        m, members = len(asked), [self.bits[i] for i in asked]
        inner = sum(self.pairs[i][j] for i in asked for j in asked if i < j)
        with_each = np.add.reduce([self.pairs[i] for i in asked]) + inner
        row: F32 = (with_each * (2 / (m * (m + 1)))).astype(np.float32)
        if m == 1:  # the row holds its pairs, each by its own rows
            row[asked[0]] = 0.0
            return row
        rows = common_rows(members)
        if rows.bit_count() >= MIN_ROWS:
            exact = [
                j for j, bits in enumerate(self.bits) if (bits[0] & rows).bit_count() >= MIN_ROWS and j not in asked
            ]
            if exact:
                row[exact] = focal_with_each(members, [self.bits[j] for j in exact])
        own = exact_focal(members)
        row[list(asked)] = inner * 2 / (m * (m - 1)) if own is None else own
        return row


class Summary:
    """What a reading takes from each endpoint's `Counts`, renewed as endpoints change.

    Attributes:
        table: float64 (N, 10): rows with a value, those of later rounds, the right ones of both (an inferred
            value counts as the fraction it is); cost and latency (0 where unknown), their logarithms, and whether
            they are known.
        costs: expected USD of one call, None where unknown: (5 x listed price + windowed sum) / (5 + n), the plain mean
            without a listed price.
    """

    def __init__(self, prices: Sequence[float | None]) -> None:
        n = len(prices)
        self._prices = prices
        self.table = np.zeros((n, 10))
        self.costs: list[float | None] = [None] * n
        self.latencies: list[float | None] = [None] * n
        self.mean_lengths = [0.0] * n
        self.length_scales = [0.0] * n
        for index in range(n):
            self.renew(index, Counts())

    def renew(self, index: int, c: Counts) -> None:
        """Take over one endpoint's totals."""
        cost = self.costs[index] = self._expected_cost(self._prices[index], c)
        latency = self.latencies[index] = c.latency_us / c.timed / 1e6 if c.timed else None
        self.mean_lengths[index] = c.tokens / c.lengths if c.lengths else 0.0
        self.length_scales[index] = _length_scale(c)
        self.table[index] = (
            c.known + c.inferred,
            c.known_later + c.inferred_later,
            c.right + c.inferred_sum / INFERRED_UNIT,
            c.right_later + c.inferred_sum_later / INFERRED_UNIT,
            cost or 0.0,
            latency or 0.0,
            0.0 if cost is None else math.log(max(cost, _LEAST)),
            0.0 if latency is None else math.log(max(latency, _LEAST)),
            cost is not None,
            latency is not None,
        )

    @staticmethod
    def _expected_cost(price: float | None, c: Counts) -> float | None:
        if price is None:
            return c.cost_pico / c.priced / 1e12 if c.priced else None
        return (PRIOR_CALLS * price + c.cost_pico / 1e12) / (PRIOR_CALLS + c.priced)


def read(names: tuple[str, ...], summary: Summary, bits: list[Bits], pairs: list[list[float]], focal: F64) -> Reading:
    """Make a reading; ``focal`` (N,) is each endpoint's mean over the pairs with every other one.

    Accuracy is (right + S mean) / (n + S), the mean of a Beta posterior whose prior sits at the pool's mean, S = 10;
    the pool's mean is (sum of right + 1) / (sum of n + 2), 1/2 before anything was seen.
    """
    table = summary.table
    n, right, logs, known = table[:, :2], table[:, 2:4], table[:, 6:8], table[:, 8:]
    total = np.add.reduce(table).tolist()
    means = np.array([(total[2] + 1) / (total[0] + 2), (total[3] + 1) / (total[1] + 2)])
    # a mean over the known ones; of none, whatever it is is multiplied by 0
    log_means = [math.log(max(total[at] / max(total[at + 4], 1.0), _LEAST)) for at in (4, 5)]
    accuracy = (right + PRIOR_ASKS * means) / (n + PRIOR_ASKS)
    centred = (accuracy - means) * 4
    template = np.zeros((len(names), width(ENDPOINT)), np.float32)
    template[:, _ACCURACIES] = centred
    template[:, _AT["seen"]] = n[:, :1] / (n[:, :1] + 20)
    template[:, _RELATIVES] = ((logs - log_means) * known * 0.25).clip(-4, 4)
    template[:, _AT["focal"]] = focal[:, None]
    return Reading(
        names=names,
        template=template,
        seen=n[:, 0].astype(int).tolist(),
        accuracy=accuracy[:, 0].tolist(),
        centred=centred[:, 0].tolist(),
        latency_s=summary.latencies.copy(),
        expected_cost=summary.costs.copy(),
        mean_length=summary.mean_lengths.copy(),
        length_scale=summary.length_scales.copy(),
        order=_cheapest_first(summary.costs, names),
        bits=bits,
        pairs=pairs,
    )


def _length_scale(c: Counts) -> float:
    """1 / (4 sd), the variance taken one token squared larger; 0 with fewer than two lengths."""
    if c.lengths < 2:
        return 0.0
    # exact in integers: n sum x^2 - (sum x)^2 never falls below 0
    variance = (c.lengths * c.tokens_squared - c.tokens * c.tokens) / (c.lengths * c.lengths)
    return 0.25 / math.sqrt(variance + 1)


def _cheapest_first(costs: Sequence[float | None], names: Sequence[str]) -> tuple[int, ...]:
    keys = [math.inf if cost is None else cost for cost in costs]
    return tuple(sorted(range(len(names)), key=lambda i: (keys[i], names[i])))
