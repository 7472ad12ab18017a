"""What a page can draw, as plain numbers, so that it can stand in a JSON file as well. None: there is no value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Value = float | None
#: Cost as a share of asking everybody, USD for 1,000 queries, or (where all is free, or of
#: unknown cost) calls for each query.
CostAxis = Literal["share", "usd", "calls"]


@dataclass(frozen=True, slots=True)
class Dot:
    """A method: its cost and quality, with the ends of the quality's 95 % interval.

    Attributes:
        ours: one of focalroute's operating points, which are joined by a line.
        hollow: not to be compared at face value; the caption says why.
    """

    name: str
    cost: float
    quality: float
    low: float
    high: float
    ours: bool = False
    hollow: bool = False


@dataclass(frozen=True, slots=True)
class CostQuality:
    """Quality against cost; ``scored`` is what quality is."""

    dots: Sequence[Dot]
    scored: str
    axis: CostAxis


@dataclass(frozen=True, slots=True)
class Line:
    """A method's values along an axis."""

    name: str
    values: Sequence[Value]


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened: after ``at`` queries, in words; numbered where it is ``found`` rather than done."""

    at: float
    what: str
    found: bool = True


@dataclass(frozen=True, slots=True)
class OverTime:
    """Rolling means along a stream of queries: quality above, cost below.

    Attributes:
        width: queries that each mean is over.
        at: number of the last query of each mean, 1-based; all lines have as many values.
        cost: focalroute's.
        along: what is counted on the axis.
    """

    width: int
    at: Sequence[float]
    lines: Sequence[Line]
    cost: Sequence[Value]
    scored: str
    axis: CostAxis
    along: str
    marks: Sequence[Mark] = ()


@dataclass(frozen=True, slots=True)
class Corrected:
    """What focalroute does to the errors of another method, as shares of the queries both answered.

    Attributes:
        corrected: right where the other is wrong.
        spoilt: wrong where the other is right.
        errors: where the other is wrong.
        queries: that both answered.
    """

    corrected: float
    spoilt: float
    errors: float
    queries: int


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of other methods, by their names."""

    found: Mapping[str, Corrected]


@dataclass(frozen=True, slots=True)
class WhenRight:
    """What answers are worth where exactly n members are right, n from 0: RL-Focal's consensus plot, its figure 4.

    Attributes:
        rows: queries of each n.
        lines: the mean worth of each method's answers on them.
        members: what n counts.
    """

    rows: Sequence[int]
    lines: Sequence[Line]
    scored: str
    members: str


@dataclass(frozen=True, slots=True)
class Calibration:
    """How far the confidence can be believed, by bins of equal width (Guo et al. 2017, arXiv 1706.04599).

    Attributes:
        count: answers whose confidence lies in the bin.
        confidence: their mean confidence.
        quality: what they were worth on average.
        expected_error: ECE, the mean of \\|quality - confidence\\| over bins, weighted by count.
    """

    count: Sequence[int]
    confidence: Sequence[Value]
    quality: Sequence[Value]
    expected_error: Value
    scored: str


@dataclass(frozen=True, slots=True)
class Rounds:
    """Share of the queries on which each endpoint is asked; ``shares`` has one row a round."""

    names: Sequence[str]
    shares: Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True)
class Grid:
    """Values in [0, 1], row by row; ``digits`` 0: as percent."""

    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[Value]]
    digits: int


@dataclass(frozen=True, slots=True)
class Histories:
    """Several values, each with an axis of its own, over the same versions of a policy."""

    versions: Sequence[int]
    lines: Sequence[Line]


Drawing = CostQuality | OverTime | Errors | WhenRight | Calibration | Rounds | Grid | Histories
