"""What the window says of one pool at one moment: immutable, so that an ask sees the same numbers in all its rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from focalroute.observe.focal import Levels
from focalroute.observe.layout import ENDPOINT, slices, width
from focalroute.observe.window import INFERRED_UNIT, Counts

__all__ = ["ACCURACY", "AGREES", "ASKED", "FOCAL", "PRIOR_ASKS", "PRIOR_CALLS", "REPLIED", "Reading", "Summary", "read"]

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

_AT = {name: part.start for name, part in slices(ENDPOINT).items()}
ASKED, REPLIED, AGREES, ACCURACY, FOCAL = (
    _AT[name] for name in ("asked", "replied", "agrees", "accuracy", "focal")
)  #: columns of an endpoint's row

#: Strength, in asks, of the prior that holds an endpoint's accuracy at its pool's mean.
PRIOR_ASKS = 10

#: Strength, in calls, of the listed price as a prior of the mean cost of a call.
PRIOR_CALLS = 5

_SETS_KEPT = 256  # focal rows kept per reading; a policy asks a handful of different sets between two feedbacks


@dataclass(slots=True)
class Reading:
    """The pool's numbers; arrays are read-only by agreement.

    Attributes:
        names: the endpoints, pool order; N of them.
        template: float32 (N, De), the endpoint rows before anybody is asked.
        accuracy: float64 (N,), the shrunk windowed accuracy.
        accuracies: the same as floats; ``centred``: as the layout has it; ``mean_length``, ``length_scale``: completion tokens,
            and what one token above the mean counts in the layout's "length" (0: unknown).
        expected_cost: float64 (N,), USD of one call; NaN where unknown.
        order: endpoint indices, cheapest first, unknown cost last, then by name.
        bits: (asked, failed) bitsets of each endpoint.
        pairs: focal diversity of each pair: one float64 (N,) row an endpoint, 0 on the diagonal.
    """

    names: tuple[str, ...]
    template: F32
    accuracy: F64
    accuracies: list[float]
    centred: list[float]
    mean_length: list[float]
    length_scale: list[float]
    expected_cost: F64
    order: tuple[int, ...]
    bits: Sequence[tuple[int, int]]
    pairs: Sequence[F64]
    _focal: dict[tuple[int, ...], F32] = field(default_factory=dict)

    def focal_row(self, asked: tuple[int, ...]) -> F32:
        """Focal diversity that a set would have with each endpoint; for its own members, what it has. Shape (N,).

        ``asked`` holds rising indices, at least one.
        """
        row = self._focal.get(asked)
        if row is None:
            if len(self._focal) >= _SETS_KEPT:
                self._focal.clear()
            row = self._focal[asked] = self._focal_row(asked)
        return row

    def _focal_row(self, asked: tuple[int, ...]) -> F32:
        m = len(asked)
        inner = sum(float(self.pairs[i][j]) for i in asked for j in asked if i < j)
        row = (inner + np.add.reduce([self.pairs[i] for i in asked])) * (2 / (m * (m + 1)))
        levels = Levels([self.bits[i][0] for i in asked], [self.bits[i][1] for i in asked])
        if m > 1:  # for a pair the row already is exact
            for j, (there, failed) in enumerate(self.bits):
                exact = levels.focal_with(there, failed) if j not in asked else None
                if exact is not None:
                    row[j] = exact
        own = levels.focal()
        row[list(asked)] = own if own is not None else inner * 2 / (m * (m - 1)) if m > 1 else 0.0
        return row.astype(np.float32)


class Summary:
    """Per-endpoint numbers derived from `Counts`, one float64 (N,) column each; rows are renewed as endpoints change.

    Columns: rows with a value, their right ones (an inferred value counts as the fraction it is), the same of later rounds, mean
    latency in seconds, expected cost in USD, mean completion tokens (NaN where unknown), length scale.
    """

    def __init__(self, prices: Sequence[float | None]) -> None:
        self._prices = prices
        self.table = np.zeros((8, len(prices)))
        for index in range(len(prices)):
            self.renew(index, Counts())

    def renew(self, index: int, c: Counts) -> None:
        """Take over one endpoint's totals."""
        self.table[:, index] = (
            c.known + c.inferred,
            c.right + c.inferred_sum / INFERRED_UNIT,
            c.known_later + c.inferred_later,
            c.right_later + c.inferred_sum_later / INFERRED_UNIT,
            c.latency_us / c.timed / 1e6 if c.timed else np.nan,
            self._expected_cost(self._prices[index], c),
            c.tokens / c.lengths if c.lengths else 0.0,
            _length_scale(c),
        )

    @staticmethod
    def _expected_cost(price: float | None, c: Counts) -> float:
        """(5 x listed price + windowed sum) / (5 + n); the plain mean without a listed price; NaN with neither."""
        if price is None:
            return c.cost_pico / c.priced / 1e12 if c.priced else np.nan
        return (PRIOR_CALLS * price + c.cost_pico / 1e12) / (PRIOR_CALLS + c.priced)


def read(
    names: tuple[str, ...], summary: Summary, bits: Sequence[tuple[int, int]], pairs: Sequence[F64], focal: F64
) -> Reading:
    """Make a reading; ``focal`` (N,) is each endpoint's mean over the pairs with every other one."""
    n, right, n_later, right_later, latency, cost, mean_length, length_scale = summary.table
    accuracy, mean = _shrunk(right, n)
    later, mean_later = _shrunk(right_later, n_later)
    template = np.zeros((len(names), width(ENDPOINT)), np.float32)
    centred = (accuracy - mean) * 4
    template[:, ACCURACY] = centred
    template[:, _AT["accuracy_later"]] = (later - mean_later) * 4
    template[:, _AT["seen"]] = n / (n + 20)
    template[:, _AT["price"]] = _relative(cost)
    template[:, _AT["latency"]] = _relative(latency)
    template[:, FOCAL] = focal
    return Reading(
        names=names,
        template=template,
        accuracy=accuracy,
        accuracies=accuracy.tolist(),
        centred=centred.tolist(),
        mean_length=mean_length.tolist(),
        length_scale=length_scale.tolist(),
        expected_cost=cost.copy(),
        order=_cheapest_first(cost.tolist(), names),
        bits=bits,
        pairs=pairs,
    )


def _shrunk(right: F64, n: F64) -> tuple[F64, float]:
    """(right + S mean) / (n + S): the mean of a Beta posterior whose prior sits at the pool's mean, S = `PRIOR_ASKS`.

    The pool's mean is (sum right + 1) / (sum n + 2), 1/2 before anything was seen.
    """
    mean = (float(right.sum()) + 1) / (float(n.sum()) + 2)
    return (right + PRIOR_ASKS * mean) / (n + PRIOR_ASKS), mean


def _relative(values: F64) -> F64:
    """ln(value / mean of the known ones) / 4 within -4..4; 0 where unknown, and where all are free."""
    known = values == values  # NaN is unknown
    mean = values[known].mean() if known.any() else 0.0
    if not mean > 0:
        return np.zeros(len(values))
    return np.where(known, np.log(np.maximum(values / mean, 1e-7)) / 4, 0.0).clip(-4, 4)


def _length_scale(c: Counts) -> float:
    """1 / (4 sd), the variance taken one token squared larger; 0 with fewer than two lengths."""
    if c.lengths < 2:
        return 0.0
    # exact in integers: n sum x^2 - (sum x)^2 never falls below 0
    variance = (c.lengths * c.tokens_squared - c.tokens * c.tokens) / (c.lengths * c.lengths)
    return float(0.25 / (variance + 1) ** 0.5)


def _cheapest_first(costs: list[float], names: tuple[str, ...]) -> tuple[int, ...]:
    keys = [
        (cost if cost == cost else float("inf"), name, i)
        for i, (cost, name) in enumerate(zip(costs, names, strict=True))
    ]
    return tuple(i for *_, i in sorted(keys))
