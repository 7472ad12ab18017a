"""How each kind of drawing looks: `as_svg` for a page, `as_png` for a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from focalroute.evaluate.report_page import _engine
from focalroute.evaluate.report_page._engine import Ink
from focalroute.evaluate.report_page.drawings import (
    Calibration,
    CostAxis,
    CostQuality,
    Dot,
    Drawing,
    Errors,
    Grid,
    Histories,
    OverTime,
    Rounds,
    WhenRight,
)
from focalroute.evaluate.report_page.labels import Box, places
from focalroute.evaluate.report_page.sums import BINS, FEW_IN_BIN

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_LETTER = 4.6
_SIDES: Any = {1: "left", 0: "center", -1: "right"}
_LONGEST = 22
_WIDTH = 4.6
_MOST_NUMBERED = 16
_TICKS = tuple(lead * 10.0**power for power in range(-6, 6) for lead in (1, 2, 5))
_AXES: dict[CostAxis, str] = {
    "share": "cost, % of asking everybody",
    "usd": "USD per 1,000 queries",
    "calls": "calls per query (all free, or of unknown cost)",
}
_BELOW: dict[CostAxis, str] = {"share": "cost ratio", "usd": "USD / 1,000", "calls": "calls"}
_LABELLED_MARKS = 12


def as_svg(name: str, drawing: Drawing, *, narrow: bool = False) -> str:
    """For a page; ``name`` begins all ids in it.

    Args:
        narrow: for a phone; only of `CostQuality` that looks different.
    """
    return _engine.svg(name, _size(drawing, narrow), partial(_draw, drawing))


def as_png(drawing: Drawing) -> bytes:
    """For a file."""
    return _engine.png(_size(drawing, False), partial(_draw, drawing))


def _size(drawing: Drawing, narrow: bool) -> tuple[float, float]:
    """Inches."""
    match drawing:
        case CostQuality():
            return (4.2, 5.4) if narrow else (8.6, 5.0)
        case Rounds():
            return _WIDTH, 1.3 + 0.24 * len(drawing.names)
        case Grid():
            return _WIDTH, 1.5 + 0.25 * len(drawing.rows)
        case Errors():
            return _WIDTH, 1.4 + 0.4 * len(drawing.found)
        case Histories():
            return _WIDTH, 0.5 + 1.15 * -(-len(drawing.lines) // 2)
        case _:
            return _WIDTH, 3.6


def _draw(drawing: Drawing, figure: Figure, ink: Ink) -> None:
    draw: Callable[[Any, Figure, Ink], None] = _BY_KIND[type(drawing)]
    draw(drawing, figure, ink)


def _cost_quality(drawing: CostQuality, figure: Figure, ink: Ink) -> None:
    """Operating points joined by a line, all others as labelled points; the cost axis is logarithmic."""
    axes = figure.subplots()
    curve = sorted((dot for dot in drawing.dots if dot.ours), key=lambda dot: dot.cost)
    others = sorted((dot for dot in drawing.dots if not dot.ours), key=lambda dot: -dot.quality)
    dots = (*curve, *others)
    for dot in dots:
        color = ink.ours if dot.ours else ink.muted
        _point(axes, dot, color=color, markerfacecolor="none" if dot.hollow else color)
    axes.plot([dot.cost for dot in curve], [dot.quality for dot in curve], color=ink.ours, linewidth=2)
    _cost_axis(axes, sorted(dot.cost for dot in dots), drawing.axis)
    axes.set_ylabel(drawing.scored)
    axes.margins(x=0.08, y=0.06)
    figure.draw_without_rendering()  # so that it is known where the points are
    _label(axes, dots, len(curve), ink)


def _over_time(drawing: OverTime, figure: Figure, ink: Ink) -> None:
    """Rolling means: quality above, cost below."""
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    for line, (color, dash, _) in zip(drawing.lines, _lines(ink), strict=False):
        above.plot(drawing.at, _floats(line.values), color=color, linestyle=dash, linewidth=1.6, label=line.name)
    above.set_ylabel(drawing.scored)
    _legend(above, len(drawing.lines))
    below.plot(drawing.at, _floats(drawing.cost), color=ink.ours, linewidth=1.4)
    below.set_ylim(bottom=0)
    below.set_ylabel(_BELOW[drawing.axis])
    below.set_xlabel(f"{drawing.along} (means of the last {drawing.width})")
    number = 0
    for mark in drawing.marks:
        number += mark.found
        color, dash = (ink.second, "-") if mark.found else (ink.muted, ":")
        for axes in (above, below):
            axes.axvline(mark.at, color=color, linestyle=dash, linewidth=1)
        if mark.found and number <= _LABELLED_MARKS:
            place: Any = {"transform": above.get_xaxis_transform(), "va": "top", "color": color, "fontsize": 8}
            above.text(mark.at, 1, f" {number}", **place)


def _rounds(drawing: Rounds, figure: Figure, ink: Ink) -> None:
    axes, left = figure.subplots(), np.zeros(len(drawing.names))
    for number, share in enumerate(drawing.shares):
        opacity = max(0.95 - 0.35 * number, 0.15)
        wide = 100 * np.array(share)
        label = f"round {number + 1}"
        axes.barh(range(len(left)), wide, left=left, color=ink.ours, alpha=opacity, label=label)
        left += wide
    axes.set_yticks(range(len(left)), [_short(name) for name in drawing.names])
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.set_xlabel("% of the queries")
    _legend(axes, min(len(drawing.shares), 3))


def _grid(drawing: Grid, figure: Figure, ink: Ink) -> None:
    """The largest the darkest, with numbers where they fit; what has no value is left empty."""
    axes = figure.subplots()
    found = np.array([_floats(row) for row in drawing.values])
    most = float(np.nanmax(found, initial=1e-9))
    for (y, x), value in np.ndenumerate(found):
        if np.isnan(value):
            continue
        axes.bar(x, 1, 1, y - 0.5, color=ink.ours, alpha=0.7 * float(value) / most, linewidth=0)
        if len(drawing.columns) <= _MOST_NUMBERED:
            text = f"{value:.{drawing.digits}f}".removeprefix("0") if drawing.digits else f"{100 * value:.0f}"
            axes.text(x, y, text, ha="center", va="center", fontsize=7)
    axes.set_xlim(-0.5, len(drawing.columns) - 0.5)
    axes.set_ylim(len(drawing.rows) - 0.5, -0.5)
    axes.set_xticks(range(len(drawing.columns)), [_short(one) for one in drawing.columns], rotation=60, ha="left")
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.set_yticks(range(len(drawing.rows)), [_short(one) for one in drawing.rows])
    axes.grid(False)
    axes.spines[:].set_visible(False)


def _when_right(drawing: WhenRight, figure: Figure, ink: Ink) -> None:
    """What answers are worth where exactly n are right, above how many such queries there are."""
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    rows = np.array(drawing.rows)
    at = np.arange(len(rows))
    for line, (color, dash, marker) in zip(drawing.lines, _lines(ink), strict=False):
        style = {"color": color, "linestyle": dash, "marker": marker, "markersize": 4, "linewidth": 1.6}
        above.plot(at, _floats(line.values), label=line.name, **style)
    above.set_ylabel(drawing.scored)
    above.set_ylim(-0.03, 1.03)
    _legend(above, len(drawing.lines))
    below.bar(at, 100 * rows / max(rows.sum(), 1), color=ink.muted, width=0.7)
    below.set_ylabel("% of queries")
    below.set_xlabel(drawing.members)
    below.xaxis.get_major_locator().set_params(integer=True)


def _errors(drawing: Errors, figure: Figure, ink: Ink) -> None:
    """Errors of other methods that focalroute corrects, and right answers that it spoils."""
    axes, at = figure.subplots(), np.arange(len(drawing.found))
    gained = [100 * one.corrected for one in drawing.found.values()]
    lost = [-100 * one.spoilt for one in drawing.found.values()]
    for values, color, label in ((gained, ink.ours, "corrected"), (lost, ink.second, "spoilt")):
        bars = axes.barh(at, values, color=color, label=label, height=0.55)
        axes.bar_label(bars, [f"{abs(value):.1f}" for value in values], padding=3, fontsize=8.5)
    axes.axvline(0, color=ink.ink, linewidth=0.8)
    axes.set_yticks(at, [_short(name) for name in drawing.found])
    axes.invert_yaxis()
    axes.margins(x=0.16)
    axes.xaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")
    axes.grid(False, axis="y")
    axes.set_xlabel("% of the queries")
    _legend(axes, 2)


def _calibration(drawing: Calibration, figure: Figure, ink: Ink) -> None:
    """The reliability diagram: what answers were worth by confidence, above how many had it."""
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    above.plot([0, 1], [0, 1], color=ink.muted, linestyle="--", linewidth=1.2, label="as said")
    said, came, count = _floats(drawing.confidence), _floats(drawing.quality), np.array(drawing.count)
    above.plot(said, came, color=ink.ours, linewidth=1.6, label="as it came")
    for bins, face in ((count >= FEW_IN_BIN, ink.ours), (count < FEW_IN_BIN, "none")):
        above.plot(said[bins], came[bins], "o", color=ink.ours, markersize=4.5, markerfacecolor=face)
    above.set_ylabel(drawing.scored)
    above.set_ylim(-0.03, 1.03)
    _legend(above, 2)
    middle = (np.arange(BINS) + 0.5) / BINS
    below.bar(middle, 100 * count / max(count.sum(), 1), color=ink.muted, width=0.8 / BINS)
    below.set_ylabel("% of answers")
    below.set_xlabel("confidence")
    below.set_xlim(0, 1)


def _histories(drawing: Histories, figure: Figure, ink: Ink) -> None:
    """Small multiples, two in a row."""
    rows = -(-len(drawing.lines) // 2)
    every = figure.subplots(rows, 2, sharex=True, squeeze=False)
    for axes, line in zip(every.flat, drawing.lines, strict=False):
        axes.plot(drawing.versions, _floats(line.values), color=ink.ours, marker="o", markersize=3.5, linewidth=1.4)
        axes.set_title(line.name, loc="left")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.margins(y=0.15)
    for axes in list(every.flat)[len(drawing.lines) :]:
        axes.set_visible(False)
    for axes in every[-1]:
        axes.set_xlabel("version")


_BY_KIND: dict[type, Callable[[Any, Figure, Ink], None]] = {
    Calibration: _calibration,
    CostQuality: _cost_quality,
    Errors: _errors,
    Grid: _grid,
    Histories: _histories,
    OverTime: _over_time,
    Rounds: _rounds,
    WhenRight: _when_right,
}


def _lines(ink: Ink) -> tuple[tuple[str, str, str], ...]:
    """Colour, dash and marker of the first, second and third line."""
    return (ink.ours, "-", "o"), (ink.second, "--", "s"), (ink.third, ":", "^")


def _floats(values: Sequence[float | None]) -> Any:
    """NaN where there is no value: a gap."""
    return np.array([np.nan if value is None else value for value in values], np.float64)


def _point(axes: Axes, dot: Dot, **style: Any) -> None:
    around = [[max(dot.quality - dot.low, 0.0)], [max(dot.high - dot.quality, 0.0)]]
    axes.errorbar([dot.cost], [dot.quality], yerr=around, marker="o", markersize=5, elinewidth=1, capsize=2.5, **style)


def _cost_axis(axes: Axes, costs: Sequence[float], axis: CostAxis) -> None:
    axes.set_xlabel(_AXES[axis])
    least = next((cost for cost in costs if cost > 0), None)
    if axis == "calls" or least is None:
        return
    if costs[0] > 0:
        axes.set_xscale("log")
    else:  # something is free
        axes.set_xscale("symlog", linthresh=least)
    shown = [0.0] * (costs[0] <= 0) + [tick for tick in _TICKS if least / 1.5 <= tick <= costs[-1] * 1.5]
    axes.set_xticks(shown, [f"{tick * (100 if axis == 'share' else 1):g}" for tick in shown])
    axes.set_xticks([], minor=True)


def _label(axes: Axes, dots: Sequence[Dot], curve: int, ink: Ink) -> None:
    """A label beside each dot, but of those that are joined, which are the first, beside the best alone."""
    points = axes.transData.transform([(dot.cost, dot.quality) for dot in dots])
    ends = [axes.transData.transform([(dot.cost, end) for end in (dot.low, dot.high)]) for dot in dots]
    lines: list[Box] = [(x - 1, low, x + 1, high) for (x, low), (_, high) in ends]
    for first, second in pairwise(range(curve)):
        along = points[first] + np.linspace(0, 1, 40)[:, None] * (points[second] - points[first])
        lines += [(x - 1, y - 1, x + 1, y + 1) for x, y in along]
    best = max(range(curve), key=lambda n: dots[n].quality, default=None)
    named = [n for n in range(len(dots)) if n >= curve or n == best]
    names = [_short(dots[n].name) for n in named]
    found = places(
        [tuple(points[n]) for n in named],
        [_LETTER * len(name) for name in names],
        height=10,
        lines=lines,
        within=axes.bbox.extents,
    )
    for n, name, place in zip(named, names, found, strict=True):
        axes.annotate(
            name,
            (dots[n].cost, dots[n].quality),
            tuple(axes.transData.inverted().transform((place.x, place.y))),
            ha=_SIDES[place.side],
            va="center",
            fontsize=8,
            color=ink.ours if dots[n].ours else ink.ink,
            fontweight="bold" if dots[n].ours else "normal",
            arrowprops={"arrowstyle": "-", "color": ink.muted, "linewidth": 0.5, "shrinkB": 3} if place.far else None,
        )


def _legend(axes: Axes, columns: int) -> None:
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, borderaxespad=0.2, handlelength=1.8)


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…"
