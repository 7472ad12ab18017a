"""Draws quality against cost, with a label beside each point.

Labels are placed one after another, each near its point where it overlaps least with what is already drawn. Libraries
that move labels by simulated forces take seconds for a drawing, are not deterministic, and let labels of close points
overlap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from focalroute.core.records import F64, I64
from focalroute.evaluate.report_page.drawings import CostAxis, CostQuality, MethodPoint

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Left, bottom, right, top.
Box = tuple[float, float, float, float]

_GAP = 6.0  # between a point and its label
_POINT = 9.0  # size of a point
# Penalties of a label's place: outside the axes, on another label or point, on a line, and each step further away.
_OUTSIDE, _COVERS, _CROSSES, _FURTHER = 1000.0, 100.0, 0.4, 0.5


def _candidate_places() -> list[tuple[int, int, int]]:
    """List a label's places as (distance, side, height), nearest first; a label can be centred above or below."""
    places = []
    for reach in (0, 12, 30, 55, 85):
        for up in (0, 11, -11, 22, -22, 36, -36, 52, -52, 70, -70):
            sides = [1, -1]
            if reach == 0 and up != 0:
                sides.append(0)
            places += [(reach, side, up) for side in sides]
    return places


_SPOTS = _candidate_places()
_LETTER_WIDTH = 4.6
_LABEL_HEIGHT = 10.0
_LONGEST_NAME = 22
_ALIGNMENT: Any = {1: "left", 0: "center", -1: "right"}
_TICKS = tuple(lead * 10.0**power for power in range(-6, 6) for lead in (1, 2, 5))
_AXES: dict[CostAxis, str] = {
    "share": "cost, % of asking all",
    "usd": "USD per 1,000 queries",
    "calls": "calls per query (all free, or of unknown cost)",
}


@dataclass(frozen=True, slots=True)
class Palette:
    """The colours of a drawing."""

    ink: str
    grid: str
    ours: str
    second: str
    third: str
    muted: str


@dataclass(frozen=True, slots=True)
class LabelPlace:
    """The place of a label.

    Attributes:
        x, y: the position of its left end (``side`` 1), right end (-1) or middle (0).
        side: the side of the point on which it is.
        far: whether a line joins it to its point.
    """

    x: float
    y: float
    side: int
    far: bool

    def box(self, width: float, height: float) -> Box:
        """Return the box that a label covers there."""
        return _around(self.x + self.side * width / 2, self.y, width, height)


def place_labels(
    points: Sequence[tuple[float, float]], widths: Sequence[float], *, height: float, lines: Sequence[Box], within: Box
) -> list[LabelPlace]:
    """Place a label beside each point, one after another.

    Args:
        points: the points, which labels should not cover.
        widths: widths of the labels.
        height: height of every label.
        lines: boxes that labels should avoid crossing.
        within: the box that labels should stay inside.

    >>> place_labels([(50, 50)], [20], height=10, lines=[], within=(0, 0, 100, 100))
    [LabelPlace(x=56.0, y=50, side=1, far=False)]
    """
    taken = [_around(x, y, _POINT, _POINT) for x, y in points]
    found = []
    for (x, y), width in zip(points, widths, strict=True):
        spots = [
            LabelPlace(x + side * (reach + _GAP), y + up, side, reach > 0 or abs(up) > 12) for reach, side, up in _SPOTS
        ]
        boxes = [spot.box(width, height) for spot in spots]
        chosen = int(_costs(boxes, taken, lines, within).argmin())
        taken.append(boxes[chosen])
        found.append(spots[chosen])
    return found


def _costs(boxes: Sequence[Box], taken: Sequence[Box], lines: Sequence[Box], within: Box) -> F64:
    """Return the penalty of each box for a label; the boxes are ordered by distance from the point."""
    left, bottom, right, top = np.array(boxes).T
    outside = (left < within[0]) | (bottom < within[1]) | (right > within[2]) | (top > within[3])
    covered, crossed = (_overlaps(boxes, others) for others in (taken, lines))
    costs: F64 = _OUTSIDE * outside + _COVERS * covered + _CROSSES * crossed + _FURTHER * np.arange(len(boxes))
    return costs


def _overlaps(boxes: Sequence[Box], others: Sequence[Box]) -> I64:
    """Count the other boxes that each box overlaps."""
    one, other = np.array(boxes)[:, None], np.array(others).reshape(-1, 4)
    apart = (one[..., :2] >= other[:, 2:]) | (other[:, :2] >= one[..., 2:])
    overlaps: I64 = np.logical_not(apart.any(axis=2)).sum(axis=1)
    return overlaps


def _around(x: float, y: float, width: float, height: float) -> Box:
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def draw_cost_quality(drawing: CostQuality, figure: Figure, ink: Palette) -> None:
    """Draw methods with labels, and operating points joined by a line; the cost axis is logarithmic."""
    axes = figure.subplots()
    curve = sorted((dot for dot in drawing.dots if dot.ours), key=lambda dot: dot.cost)
    others = sorted((dot for dot in drawing.dots if not dot.ours), key=lambda dot: -dot.quality)
    dots = (*curve, *others)
    for dot in dots:
        _point(axes, dot, ink)
    axes.plot([dot.cost for dot in curve], [dot.quality for dot in curve], color=ink.ours, linewidth=2)
    _cost_axis(axes, sorted(dot.cost for dot in dots), drawing.axis)
    axes.set_ylabel(drawing.scored)
    axes.margins(x=0.08, y=0.06)
    figure.draw_without_rendering()  # fixes the points' positions
    _label(axes, dots, len(curve), ink)


def _point(axes: Axes, dot: MethodPoint, ink: Palette) -> None:
    style: Any = {"color": ink.ours if dot.ours else ink.muted}
    if dot.hollow:
        style["markerfacecolor"] = "none"
    error = [[max(dot.quality - dot.low, 0.0)], [max(dot.high - dot.quality, 0.0)]]
    axes.errorbar([dot.cost], [dot.quality], yerr=error, marker="o", markersize=5, elinewidth=1, capsize=2.5, **style)


def _cost_axis(axes: Axes, costs: Sequence[float], axis: CostAxis) -> None:
    axes.set_xlabel(_AXES[axis])
    least = next((cost for cost in costs if cost > 0), None)
    if axis == "calls" or least is None:
        return
    shown = [tick for tick in _TICKS if least / 1.5 <= tick <= costs[-1] * 1.5]
    if costs[0] <= 0:  # something is free
        axes.set_xscale("symlog", linthresh=least)
        shown = [0.0, *shown]
    else:
        axes.set_xscale("log")
        if sum(least <= tick <= costs[-1] for tick in shown) < 2:  # all costs are similar
            shown = sorted({float(f"{cost:.3g}") for cost in (least, costs[-1])})
    unit = 100 if axis == "share" else 1
    axes.set_xticks(shown, [f"{tick * unit:g}" for tick in shown])
    axes.set_xticks([], minor=True)


def _label(axes: Axes, dots: Sequence[MethodPoint], curve: int, ink: Palette) -> None:
    """Label each dot; of the first ``curve`` dots, which are joined by a line, only the best."""
    points = axes.transData.transform([(dot.cost, dot.quality) for dot in dots])
    ends = [axes.transData.transform([(dot.cost, end) for end in (dot.low, dot.high)]) for dot in dots]
    lines: list[Box] = [(x - 1, low, x + 1, high) for (x, low), (_, high) in ends]
    for first, second in pairwise(range(curve)):
        along = points[first] + np.linspace(0, 1, 40)[:, None] * (points[second] - points[first])
        lines += [(x - 1, y - 1, x + 1, y + 1) for x, y in along]
    best = max(range(curve), key=lambda n: dots[n].quality, default=None)
    named = [n for n in range(len(dots)) if n >= curve or n == best]
    names = short_names([dots[n].name for n in named])
    found = place_labels(
        [tuple(points[n]) for n in named],
        [_LETTER_WIDTH * len(name) for name in names],
        height=_LABEL_HEIGHT,
        lines=lines,
        within=axes.bbox.extents,
    )
    for n, name, place in zip(named, names, found, strict=True):
        style: Any = {"color": ink.ink, "fontweight": "normal"}
        if dots[n].ours:
            style = {"color": ink.ours, "fontweight": "bold"}
        if place.far:
            style["arrowprops"] = {"arrowstyle": "-", "color": ink.muted, "linewidth": 0.5, "shrinkB": 3}
        axes.annotate(
            name,
            (dots[n].cost, dots[n].quality),
            tuple(axes.transData.inverted().transform((place.x, place.y))),
            ha=_ALIGNMENT[place.side],
            va="center",
            fontsize=8,
            **style,
        )


def short_names(names: Sequence[str]) -> list[str]:
    """Shorten long names: ``service/owner/model`` to the model, and any name to `_LONGEST_NAME` characters.

    If several names would be shortened to the same text, each begins where they differ.
    """
    by_short: dict[str, dict[str, str]] = {}  # shortened name -> (name -> model)
    for name in names:
        model = name if len(name) <= _LONGEST_NAME else name.rpartition("/")[2] or name
        by_short.setdefault(_cut(model), {})[name] = model
    shown: dict[str, str] = {}
    for short, models in by_short.items():
        shown |= _distinguished(models) if len(models) > 1 else dict.fromkeys(models, short)
    return [shown[name] for name in names]


def _distinguished(models: Mapping[str, str]) -> dict[str, str]:
    """Shorten models, given as name -> model, so that each begins where they differ."""
    if len(set(models.values())) == 1:  # one model of several services
        models = {name: name for name in models}
    letters = enumerate(zip_longest(*models.values()))
    same = next(place for place, each in letters if len(set(each)) > 1)
    prefix = "…" if same else ""
    return {name: _cut(prefix + model[same:]) for name, model in models.items()}


def _cut(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"
